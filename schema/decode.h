/* Part of wire.cc: from verified FlatBuffers to the C structs. */
#pragma once

#include "schema/wire.h"

#include <cstring>

namespace
{

/*
 * Notes too long strings and vectors. __restrict: results are no part of the message, so tables
 * need not be loaded again after each store.
 */
class Reader
{
      public:
	bool too_long() const
	{
		return too_long_;
	}

	/* Compiles only if the C field has the table's type. */
	template <typename T> void number(T value, T *ret_value)
	{
		*ret_value = value;
	}

	void string(const flatbuffers::String *string, size_t length_max,
	            struct fa_wire_string *ret_string)
	{
		*ret_string = {};
		if (!string)
			return;
		if (string->size() > length_max) {
			too_long_ = true;
			return;
		}
		ret_string->text = string->c_str();
		ret_string->length = string->size();
	}

	template <typename T>
	void vector(const flatbuffers::Vector<T> *vector, size_t n_max, const T **ret_data,
	            size_t *ret_n)
	{
		*ret_data = nullptr;
		*ret_n = 0;
		if (!vector || !vector->size())
			return;
		if (vector->size() > n_max) {
			too_long_ = true;
			return;
		}
		*ret_data = vector->data();
		*ret_n = vector->size();
	}

	/* FlatBuffers before 23 do not verify the alignment of vectors of structs. */
	template <typename T, typename S>
	void vector(const flatbuffers::Vector<const T *> *vector, size_t n_max, const S **ret_data,
	            size_t *ret_n)
	{
		static_assert(sizeof(T) == sizeof(S) && alignof(T) == alignof(S), "see mirror.h");
		*ret_data = nullptr;
		*ret_n = 0;
		if (!vector || !vector->size())
			return;
		if (vector->size() > n_max ||
		    reinterpret_cast<uintptr_t>(vector->Data()) % alignof(S)) {
			too_long_ = true;
			return;
		}
		*ret_data = reinterpret_cast<const S *>(vector->Data());
		*ret_n = vector->size();
	}

	/* Copied: FlatBuffers before 23 do not verify the alignment of vectors of longs. */
	void pieces(const flatbuffers::Vector<uint64_t> *vector,
	            uint64_t (*ret_pieces)[FA_WIRE_FDS_MAX], size_t *ret_n)
	{
		size_t n = vector ? vector->size() : 0;

		if (n > FA_WIRE_FDS_MAX) {
			too_long_ = true;
			n = 0;
		}
		memset(*ret_pieces, 0, sizeof(*ret_pieces));
		if (n)
			memcpy(*ret_pieces, vector->Data(), n * sizeof(**ret_pieces));
		*ret_n = n;
	}

	void view(const wire::View *view, struct fa_wire_view *__restrict ret_view)
	{
		if (!view) {
			*ret_view = {};
			return;
		}
		number(view->offset(), &ret_view->offset);
		memcpy(ret_view->shape, view->shape()->Data(), sizeof(ret_view->shape));
		memcpy(ret_view->strides, view->strides()->Data(), sizeof(ret_view->strides));
		number(view->buffer(), &ret_view->buffer);
		number(view->dtype(), &ret_view->dtype);
		number(view->rank(), &ret_view->rank);
		number(view->reserved(), &ret_view->reserved);
	}

	void handle(const wire::Handle *handle, uint8_t (*ret_handle)[FA_WIRE_HANDLE_BYTES])
	{
		if (handle)
			memcpy(*ret_handle, handle->bytes()->Data(), sizeof(*ret_handle));
		else
			memset(*ret_handle, 0, sizeof(*ret_handle));
	}

	void secret(const wire::Secret *secret, struct fa_wire_secret *ret_secret)
	{
		*ret_secret = {};
		if (!secret)
			return;
		number(secret->lo(), &ret_secret->lo);
		number(secret->hi(), &ret_secret->hi);
	}

	void optional(const wire::Secret *secret, struct fa_wire_secret *ret_secret, bool *ret_has)
	{
		*ret_has = secret;
		this->secret(secret, ret_secret);
	}

	void optional(const wire::Gate *gate, struct fa_wire_gate *ret_gate, bool *ret_has)
	{
		*ret_has = gate;
		*ret_gate = {};
		if (!gate)
			return;
		number(gate->slot(), &ret_gate->slot);
		number(gate->reserved(), &ret_gate->reserved);
		number(gate->value(), &ret_gate->value);
	}

	/* An absent nested table stands for the defaults of fad.fbs. */
	void defaults(struct fa_wire_limits *ret_limits)
	{
		*ret_limits = {};
	}

	void defaults(struct fa_wire_step_attend *ret_attend)
	{
		*ret_attend = {};
		ret_attend->window_left = ret_attend->window_right = -1;
	}

#define NUMBER(field) number(body->field(), &ret_body->field);
#define NUMBER_IF(field, has)                                                                      \
	number(ret_body->has ? body->field() : decltype(body->field())(0), &ret_body->field);
#define STRING(field, max) string(body->field(), max, &ret_body->field);
#define VECTOR(field, max) vector(body->field(), max, &ret_body->field, &ret_body->n_##field);
#define PIECES(field) pieces(body->field(), &ret_body->field, &ret_body->n_##field);
#define VIEW(field) view(body->field(), &ret_body->field);
#define HANDLE(field) handle(body->field(), &ret_body->field);
#define SECRET(field) secret(body->field(), &ret_body->field);
#define OPTIONAL(field, has) optional(body->field(), &ret_body->field, &ret_body->has);
#define NESTED(field, member)                                                                      \
	if (body->field())                                                                         \
		member##_read(body->field(), &ret_body->field);                                    \
	else                                                                                       \
		defaults(&ret_body->field);
#define TABLE(Table, member, fields)                                                               \
	void member##_read(const wire::Table *body, struct fa_wire_##member *__restrict ret_body)  \
	{                                                                                          \
		fields                                                                             \
	}
#define MESSAGE(TAG, Table, member, fields) TABLE(Table, member, fields)
#include "schema/messages.def"

	void body(const wire::Message *message, struct fa_wire_message *ret_message)
	{
		switch (message->body_type()) {
#define MESSAGE(TAG, Table, member, fields)                                                        \
	case wire::Body::Table:                                                                    \
		return member##_read(message->body_as_##Table(), &ret_message->member);
#define EMPTY(TAG, Table)                                                                          \
	case wire::Body::Table:                                                                    \
		return;
#include "schema/messages.def"
		case wire::Body::NONE:
			return;
		}
	}

      private:
	bool too_long_ = false;
};

} // namespace
