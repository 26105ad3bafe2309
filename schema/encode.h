/*
 * Part of wire.cc: encodes the C structs. The builder's only memory is the caller's buffer, which
 * cannot grow: so its size is first compared with an upper bound of what the builder needs.
 */
#pragma once

#include "schema/wire.h"

#include <cstring>

namespace
{

using Builder = flatbuffers::FlatBufferBuilder;

/* ---- the upper bound */

/* Offset to the vtable, head, padding, and a note of the builder at the buffer's other end. */
constexpr size_t TABLE_BYTES = 24;
/* A field: at most 8 bytes and as many of padding, its vtable entry, 8 bytes of notes. */
constexpr size_t FIELD_BYTES = 26;
/* Message with 7 fields, the root's offset and the file identifier. */
constexpr size_t FRAME_BYTES = TABLE_BYTES + 7 * FIELD_BYTES + 24;

/* A struct or vector: bytes, length, padding at both ends. */
constexpr size_t array_bytes(size_t bytes)
{
	return bytes + 24;
}

/* Cannot overflow: one array longer than a message is enough for -EMSGSIZE. */
template <typename T> constexpr size_t vector_bytes(const T *data, size_t n)
{
	return data ? array_bytes((n < FA_WIRE_BYTES_MAX ? n : FA_WIRE_BYTES_MAX) * sizeof(T)) : 0;
}

#define NUMBER(field) +FIELD_BYTES
#define NUMBER_IF(field, has) +FIELD_BYTES
#define STRING(field, max) +FIELD_BYTES + vector_bytes(body.field.text, body.field.length)
#define VECTOR(field, max) +FIELD_BYTES + vector_bytes(body.field, body.n_##field)
#define PIECES(field) +FIELD_BYTES + array_bytes(sizeof(body.field))
#define VIEW(field) +FIELD_BYTES + array_bytes(sizeof(wire::View))
#define HANDLE(field) +FIELD_BYTES + array_bytes(sizeof(wire::Handle))
#define SECRET(field) +FIELD_BYTES + array_bytes(sizeof(wire::Secret))
#define OPTIONAL(field, has) +FIELD_BYTES + array_bytes(sizeof(body.field))
#define NESTED(field, member) +FIELD_BYTES + member##_bytes_max(body.field)
#define TABLE(Table, member, fields)                                                               \
	constexpr size_t member##_bytes_max(const struct fa_wire_##member &body)                   \
	{                                                                                          \
		(void)body;                                                                        \
		return TABLE_BYTES fields;                                                         \
	}
#define MESSAGE(TAG, Table, member, fields)                                                        \
	TABLE(Table, member, fields)                                                               \
	static_assert(FRAME_BYTES + member##_bytes_max({}) <= FA_WIRE_FIXED_BYTES_MAX, #Table);
#include "schema/messages.def"

size_t encoded_bytes_max(const struct fa_wire_message *message, uint32_t type)
{
	size_t bytes = FRAME_BYTES + vector_bytes(message->waits, message->n_waits) +
	               vector_bytes(message->signals, message->n_signals);

	switch (type) {
#define MESSAGE(TAG, Table, member, fields)                                                        \
	case FA_WIRE_##TAG:                                                                        \
		return bytes + member##_bytes_max(message->member);
#include "schema/messages.def"
	default:
		return bytes + TABLE_BYTES;
	}
}

/* Gives the builder the caller's buffer, once. */
class BufferAllocator final : public flatbuffers::Allocator
{
      public:
	BufferAllocator(uint8_t *buffer, size_t size) : buffer_(buffer), size_(size)
	{
	}

	uint8_t *allocate(size_t size) override
	{
		uint8_t *buffer = buffer_;

		/* The upper bound is wrong. */
		if (!buffer || size != size_)
			__builtin_trap();
		buffer_ = nullptr;
		return buffer;
	}

	void deallocate(uint8_t *, size_t) override
	{
	}

      private:
	uint8_t *buffer_;
	size_t size_;
};

/* ---- fields */

/* Generated functions take structs by pointer, NULL if absent. */
template <typename T> struct OptionalStruct {
	bool present;
	T value;
};

template <typename T> const T *argument(const OptionalStruct<T> &optional)
{
	return optional.present ? &optional.value : nullptr;
}

template <typename T> T argument(const T &value)
{
	return value;
}

flatbuffers::Offset<flatbuffers::String> string_write(Builder &builder,
                                                      const struct fa_wire_string &string)
{
	if (!string.text)
		return {};
	return builder.CreateString(string.text, string.length);
}

template <typename T>
flatbuffers::Offset<flatbuffers::Vector<T>> vector_write(Builder &builder, const T *data, size_t n)
{
	if (!data || !n)
		return {};
	return builder.CreateVector(data, n);
}

/* Copied as they are: mirror.h proves that both kinds have one layout. */
template <typename T, typename S>
flatbuffers::Offset<flatbuffers::Vector<const T *>> structs_write(Builder &builder, const S *data,
                                                                  size_t n)
{
	if (!data || !n)
		return {};
	return builder.CreateVectorOfStructs(reinterpret_cast<const T *>(data), n);
}

auto vector_write(Builder &builder, const struct fa_wire_step_item *items, size_t n)
{
	return structs_write<wire::StepItem>(builder, items, n);
}

auto vector_write(Builder &builder, const struct fa_wire_place *places, size_t n)
{
	return structs_write<wire::Place>(builder, places, n);
}

auto vector_write(Builder &builder, const struct fa_wire_gate *gates, size_t n)
{
	return structs_write<wire::Gate>(builder, gates, n);
}

bool view_is_present(const struct fa_wire_view &view)
{
	static const struct fa_wire_view zero = {};

	return view.rank || memcmp(&view, &zero, sizeof(view)) != 0;
}

OptionalStruct<wire::View> view_write(const struct fa_wire_view &view)
{
	using Sizes = flatbuffers::span<const int64_t, FA_WIRE_RANK_MAX>;

	return { view_is_present(view),
		 wire::View(view.offset, Sizes(view.shape), Sizes(view.strides), view.buffer,
		            view.dtype, view.rank, view.reserved) };
}

OptionalStruct<wire::Handle> handle_write(const uint8_t (&handle)[FA_WIRE_HANDLE_BYTES])
{
	static const uint8_t zero[FA_WIRE_HANDLE_BYTES] = {};

	return { memcmp(handle, zero, sizeof(zero)) != 0,
		 wire::Handle(flatbuffers::span<const uint8_t, FA_WIRE_HANDLE_BYTES>(handle)) };
}

OptionalStruct<wire::Secret> struct_write(bool present, const struct fa_wire_secret &secret)
{
	return { present, wire::Secret(secret.lo, secret.hi) };
}

OptionalStruct<wire::Gate> struct_write(bool present, const struct fa_wire_gate &gate)
{
	return { present, wire::Gate(gate.slot, gate.reserved, gate.value) };
}

/* ---- tables */

/*
 * Writes fields in the order of the braces, which a plain call would leave to the compiler. By
 * pointer the function has no default arguments: a field missing from messages.def does not
 * compile.
 */
template <typename T> struct Created {
	flatbuffers::Offset<T> offset;

	template <typename... Parameters, typename... Fields>
	Created(flatbuffers::Offset<T> (*create)(Builder &, Parameters...), Builder &builder,
	        const Fields &...fields)
	    : offset(create(builder, argument(fields)...))
	{
	}
};

#define NUMBER(field) , body.field
#define NUMBER_IF(field, has) , body.has ? body.field : decltype(body.field)(0)
#define STRING(field, max) , string_write(builder, body.field)
#define VECTOR(field, max) , vector_write(builder, body.field, body.n_##field)
#define PIECES(field) , vector_write(builder, body.field, body.n_##field)
#define VIEW(field) , view_write(body.field)
#define HANDLE(field) , handle_write(body.field)
#define SECRET(field) , struct_write(true, body.field)
#define OPTIONAL(field, has) , struct_write(body.has, body.field)
#define NESTED(field, member) , member##_write(builder, body.field)
#define TABLE(Table, member, ...) /* the fields, each after a comma */                             \
	flatbuffers::Offset<wire::Table> member##_write(Builder &builder,                          \
	                                                const struct fa_wire_##member &body)       \
	{                                                                                          \
		return Created<wire::Table>{ wire::Create##Table, builder __VA_ARGS__ }.offset;    \
	}
#define MESSAGE(TAG, Table, member, fields) TABLE(Table, member, fields)
#include "schema/messages.def"

flatbuffers::Offset<void> body_write(Builder &builder, const struct fa_wire_message *message,
                                     uint32_t type)
{
	switch (type) {
#define MESSAGE(TAG, Table, member, fields)                                                        \
	case FA_WIRE_##TAG:                                                                        \
		return member##_write(builder, message->member).Union();
#define EMPTY(TAG, Table)                                                                          \
	case FA_WIRE_##TAG:                                                                        \
		return wire::Create##Table(builder).Union();
#include "schema/messages.def"
	default:
		__builtin_unreachable(); /* fa_wire_encode() has checked the type */
	}
}

} // namespace
