/* Part of wire.cc: from verified FlatBuffers to the plain structs. */
#pragma once

#include "schema/wire.h"

#include <cstring>

namespace
{

/*
 * Reads what was verified; remembers whether anything was longer than allowed.
 * __restrict: what is written is never part of the message, whose tables then
 * need not be looked up anew after every store.
 */
class Reader
{
      public:
	bool too_long() const
	{
		return too_long_;
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

	void secret(const wire::Secret *secret, struct fa_wire_secret *ret_secret)
	{
		*ret_secret = {};
		if (!secret)
			return;
		ret_secret->lo = secret->lo();
		ret_secret->hi = secret->hi();
	}

	void view(const wire::View *view, struct fa_wire_view *__restrict ret_view)
	{
		if (!view) {
			*ret_view = {};
			return;
		}
		ret_view->offset = view->offset();
		memcpy(ret_view->shape, view->shape()->Data(), sizeof(ret_view->shape));
		memcpy(ret_view->strides, view->strides()->Data(), sizeof(ret_view->strides));
		ret_view->buffer = view->buffer();
		ret_view->dtype = view->dtype();
		ret_view->rank = view->rank();
		ret_view->reserved = view->reserved();
	}

	void hello(const wire::Hello *body, struct fa_wire_hello *ret_hello)
	{
		ret_hello->version_min = body->version_min();
		ret_hello->version_max = body->version_max();
		ret_hello->features = body->features();
		string(body->name(), FA_WIRE_NAME_BYTES_MAX, &ret_hello->name);
		ret_hello->has_resume = body->resume_secret();
		secret(body->resume_secret(), &ret_hello->resume_secret);
		ret_hello->resume_generation = ret_hello->has_resume ? body->resume_generation()
		                                                     : 0;
	}

	/* Copied: FlatBuffers before 23 do not verify that a vector of longs is aligned. */
	void pieces(const flatbuffers::Vector<uint64_t> *vector, uint64_t *ret_piece_bytes,
	            size_t *ret_n)
	{
		size_t n = vector ? vector->size() : 0;

		if (n > FA_WIRE_FDS_MAX) {
			too_long_ = true;
			n = 0;
		}
		memset(ret_piece_bytes, 0, FA_WIRE_FDS_MAX * sizeof(*ret_piece_bytes));
		if (n)
			memcpy(ret_piece_bytes, vector->Data(), n * sizeof(*ret_piece_bytes));
		*ret_n = n;
	}

	void buffer_register(const wire::BufferRegister *body,
	                     struct fa_wire_buffer_register *__restrict ret_register)
	{
		ret_register->buffer = body->buffer();
		ret_register->kind = body->kind();
		ret_register->flags = body->flags();
		ret_register->offset = body->offset();
		ret_register->bytes = body->bytes();
		if (body->handle())
			memcpy(ret_register->handle, body->handle()->bytes()->Data(),
			       sizeof(ret_register->handle));
		else
			memset(ret_register->handle, 0, sizeof(ret_register->handle));
		ret_register->pid = body->pid();
		ret_register->n_pieces = body->n_pieces();
		pieces(body->piece_bytes(), ret_register->piece_bytes,
		       &ret_register->n_piece_bytes);
	}

	void attention(const wire::Attention *body,
	               struct fa_wire_attention *__restrict ret_attention)
	{
		ret_attention->stream = body->stream();
		ret_attention->flags = body->flags();
		ret_attention->value = body->value();
		view(body->q(), &ret_attention->q);
		view(body->k(), &ret_attention->k);
		view(body->v(), &ret_attention->v);
		view(body->out(), &ret_attention->out);
		view(body->lse(), &ret_attention->lse);
		ret_attention->scale = body->scale();
		ret_attention->softcap = body->softcap();
		ret_attention->window_left = body->window_left();
		ret_attention->window_right = body->window_right();
		vector(body->cu_seqlens_q(), FA_WIRE_SEQUENCES_MAX + 1,
		       &ret_attention->cu_seqlens_q, &ret_attention->n_cu_seqlens_q);
		vector(body->cu_seqlens_k(), FA_WIRE_SEQUENCES_MAX + 1,
		       &ret_attention->cu_seqlens_k, &ret_attention->n_cu_seqlens_k);
		vector(body->alibi_slopes(), FA_WIRE_HEADS_MAX, &ret_attention->alibi_slopes,
		       &ret_attention->n_alibi_slopes);
		vector(body->sinks(), FA_WIRE_HEADS_MAX, &ret_attention->sinks,
		       &ret_attention->n_sinks);
	}

	void limits(const wire::Limits *limits, struct fa_wire_limits *ret_limits)
	{
		*ret_limits = {};
		if (!limits)
			return;
		ret_limits->message_bytes = limits->message_bytes();
		ret_limits->buffers = limits->buffers();
		ret_limits->buffer_bytes = limits->buffer_bytes();
		ret_limits->streams = limits->streams();
		ret_limits->requests = limits->requests();
	}

	void hello_reply(const wire::HelloReply *body, struct fa_wire_hello_reply *ret_reply)
	{
		ret_reply->version = body->version();
		ret_reply->features = body->features();
		string(body->daemon_version(), FA_WIRE_NAME_BYTES_MAX, &ret_reply->daemon_version);
		ret_reply->generation = body->generation();
		string(body->backend(), FA_WIRE_NAME_BYTES_MAX, &ret_reply->backend);
		string(body->device_name(), FA_WIRE_NAME_BYTES_MAX, &ret_reply->device_name);
		secret(body->device_uuid(), &ret_reply->device_uuid);
		ret_reply->session = body->session();
		secret(body->secret(), &ret_reply->secret);
		ret_reply->resumed = body->resumed();
		limits(body->limits(), &ret_reply->limits);
	}

	void completion(const wire::Completion *body, struct fa_wire_completion *ret_completion)
	{
		ret_completion->stream = body->stream();
		ret_completion->status = body->status();
		ret_completion->value = body->value();
		ret_completion->queued_ns = body->queued_ns();
		ret_completion->started_ns = body->started_ns();
		ret_completion->finished_ns = body->finished_ns();
		string(body->text(), FA_WIRE_TEXT_BYTES_MAX, &ret_completion->text);
	}

	void body(const wire::Message *message, struct fa_wire_message *ret_message);

      private:
	bool too_long_ = false;
};

void Reader::body(const wire::Message *message, struct fa_wire_message *ret_message)
{
	switch (message->body_type()) {
	case wire::Body::Hello:
		hello(message->body_as_Hello(), &ret_message->hello);
		break;
	case wire::Body::BufferRegister:
		buffer_register(message->body_as_BufferRegister(), &ret_message->buffer_register);
		break;
	case wire::Body::BufferFree:
		ret_message->buffer_free.buffer = message->body_as_BufferFree()->buffer();
		break;
	case wire::Body::StreamCreate: {
		auto body = message->body_as_StreamCreate();

		ret_message->stream_create.stream = body->stream();
		ret_message->stream_create.priority = body->priority();
		break;
	}
	case wire::Body::StreamFree:
		ret_message->stream_free.stream = message->body_as_StreamFree()->stream();
		break;
	case wire::Body::Attention:
		attention(message->body_as_Attention(), &ret_message->attention);
		break;
	case wire::Body::Cancel: {
		auto body = message->body_as_Cancel();

		ret_message->cancel.stream = body->stream();
		ret_message->cancel.value = body->value();
		break;
	}
	case wire::Body::Reply: {
		auto body = message->body_as_Reply();

		ret_message->reply.status = body->status();
		string(body->text(), FA_WIRE_TEXT_BYTES_MAX, &ret_message->reply.text);
		break;
	}
	case wire::Body::HelloReply:
		hello_reply(message->body_as_HelloReply(), &ret_message->hello_reply);
		break;
	case wire::Body::BufferReply: {
		auto body = message->body_as_BufferReply();

		ret_message->buffer_reply.buffer = body->buffer();
		ret_message->buffer_reply.bytes = body->bytes();
		ret_message->buffer_reply.piece_bytes = body->piece_bytes();
		break;
	}
	case wire::Body::BufferPieces: {
		auto body = message->body_as_BufferPieces();

		ret_message->buffer_pieces.buffer = body->buffer();
		pieces(body->piece_bytes(), ret_message->buffer_pieces.piece_bytes,
		       &ret_message->buffer_pieces.n_piece_bytes);
		break;
	}
	case wire::Body::Completion:
		completion(message->body_as_Completion(), &ret_message->completion);
		break;
	case wire::Body::StatusReply:
		ret_message->status_reply.bytes = message->body_as_StatusReply()->bytes();
		break;
	case wire::Body::NONE:
	case wire::Body::Ping:
	case wire::Body::Status:
	case wire::Body::Drain:
		break;
	}
}

} // namespace
