/*
 * Part of wire.cc: from the plain structs to FlatBuffers.
 *
 * The builder gets the caller's buffer as its one and only piece of memory. It
 * would grow when full, so an upper bound of what the message takes is computed
 * first; what passes that check cannot make it grow.
 */
#pragma once

#include "schema/wire.h"

#include <cstring>

namespace
{

/*
 * Upper bounds of what the builder uses. A field: up to 8 bytes and as many of
 * padding, its entry in the vtable, and 8 bytes of notes that the builder keeps
 * at the other end of the buffer. A table: its offset to the vtable, the
 * vtable's head, padding, a note. A struct or vector: its bytes, the length and
 * padding at both ends.
 */
constexpr size_t tables_bytes(size_t n_tables, size_t n_fields)
{
	return n_tables * 24 + n_fields * 26;
}

constexpr size_t array_bytes(size_t bytes)
{
	return bytes + 24;
}

constexpr size_t FRAME_BYTES = tables_bytes(1, 7) + 24; /* Message, root offset, identifier */

constexpr size_t FIXED_BYTES[_FA_WIRE_TYPE_N] = {
	0,                                                                    /* NONE */
	FRAME_BYTES + tables_bytes(1, 6) + array_bytes(sizeof(wire::Secret)), /* HELLO */
	FRAME_BYTES + tables_bytes(1, 0),                                     /* PING */
	FRAME_BYTES + tables_bytes(1, 9) + array_bytes(sizeof(wire::Handle)), /* BUFFER_REGISTER */
	FRAME_BYTES + tables_bytes(1, 1),                                     /* BUFFER_FREE */
	FRAME_BYTES + tables_bytes(1, 2),                                     /* STREAM_CREATE */
	FRAME_BYTES + tables_bytes(1, 1),                                     /* STREAM_FREE */
	FRAME_BYTES + tables_bytes(1, 16) + 5 * array_bytes(sizeof(wire::View)),   /* ATTENTION */
	FRAME_BYTES + tables_bytes(1, 2),                                          /* CANCEL */
	FRAME_BYTES + tables_bytes(1, 0),                                          /* STATUS */
	FRAME_BYTES + tables_bytes(1, 0),                                          /* DRAIN */
	FRAME_BYTES + tables_bytes(1, 2),                                          /* REPLY */
	FRAME_BYTES + tables_bytes(2, 16) + 2 * array_bytes(sizeof(wire::Secret)), /* HELLO_REPLY */
	FRAME_BYTES + tables_bytes(1, 3),  /* BUFFER_REPLY */
	FRAME_BYTES + tables_bytes(1, 7),  /* COMPLETION */
	FRAME_BYTES + tables_bytes(1, 1),  /* STATUS_REPLY */
	FRAME_BYTES + tables_bytes(1, 2),  /* BUFFER_PIECES */
	FRAME_BYTES + tables_bytes(1, 14), /* CACHE_CREATE */
	FRAME_BYTES + tables_bytes(1, 2),  /* CACHE_FIND */
	FRAME_BYTES + tables_bytes(1, 1),  /* CACHE_REMOVE */
	FRAME_BYTES + tables_bytes(1, 15), /* CACHE_REPLY */
	FRAME_BYTES + tables_bytes(1, 1),  /* SEQUENCE_CREATE */
	FRAME_BYTES + tables_bytes(1, 1),  /* SEQUENCE_FIND */
	FRAME_BYTES + tables_bytes(1, 2),  /* SEQUENCE_FORK */
	FRAME_BYTES + tables_bytes(1, 4),  /* SEQUENCE_SET_NAME */
	FRAME_BYTES + tables_bytes(1, 2),  /* SEQUENCE_TRUNCATE */
	FRAME_BYTES + tables_bytes(1, 2),  /* SEQUENCE_DROP */
	FRAME_BYTES + tables_bytes(1, 1),  /* SEQUENCE_FREE */
	FRAME_BYTES + tables_bytes(1, 1),  /* SEQUENCE_INFO */
	FRAME_BYTES + tables_bytes(1, 8),  /* SEQUENCE_REPLY */
	FRAME_BYTES + tables_bytes(1, 5) +
		1 * array_bytes(sizeof(wire::View)), /* SEQUENCE_PUBLISH */
	FRAME_BYTES + tables_bytes(1, 5) +
		1 * array_bytes(sizeof(wire::View)), /* SEQUENCE_ATTACH */
	FRAME_BYTES + tables_bytes(1, 8) + 2 * array_bytes(sizeof(wire::View)),  /* SEQUENCE_COPY */
	FRAME_BYTES + tables_bytes(1, 4),                                        /* STEP_BEGIN */
	FRAME_BYTES + tables_bytes(1, 2),                                        /* STEP_REPLY */
	FRAME_BYTES + tables_bytes(1, 23) + 7 * array_bytes(sizeof(wire::View)), /* STEP_ATTEND */
	FRAME_BYTES + tables_bytes(1, 6),                                        /* STEP_END */
	FRAME_BYTES + tables_bytes(1, 1),                                        /* RING_SETUP */
	FRAME_BYTES + tables_bytes(1, 3),                                        /* RING_REPLY */
	FRAME_BYTES + tables_bytes(1, 2),                                        /* MARKER */
	FRAME_BYTES + tables_bytes(1, 0), /* TIMELINE_SETUP */
	FRAME_BYTES + tables_bytes(1, 3), /* TIMELINE_REPLY */
	FRAME_BYTES + tables_bytes(2, 34) + 7 * array_bytes(sizeof(wire::View)) +
		2 * array_bytes(sizeof(wire::Gate)), /* STEP_ATTEND_LAYERS */
};

static_assert(FIXED_BYTES[FA_WIRE_STEP_ATTEND_LAYERS] <= FA_WIRE_FIXED_BYTES_MAX, "longest");
static_assert(FIXED_BYTES[FA_WIRE_ATTENTION] <= FA_WIRE_FIXED_BYTES_MAX, "long, too");
static_assert(FIXED_BYTES[FA_WIRE_HELLO_REPLY] <= FA_WIRE_FIXED_BYTES_MAX, "long, too");

/* Adds up what a message needs; stays above every limit once it was above one. */
class Bound
{
      public:
	explicit Bound(size_t bytes) : bytes_(bytes)
	{
	}

	void array(const void *data, size_t n, size_t element_bytes)
	{
		if (!data)
			return;
		if (n > FA_WIRE_BYTES_MAX)
			n = FA_WIRE_BYTES_MAX;
		bytes_ += array_bytes(n * element_bytes);
	}

	void string(const struct fa_wire_string &string)
	{
		array(string.text, string.length, 1);
	}

	void step_attend(const struct fa_wire_step_attend &attend)
	{
		array(attend.alibi_slopes, attend.n_alibi_slopes, sizeof(float));
		array(attend.sinks, attend.n_sinks, sizeof(float));
		array(attend.positions, attend.n_positions, sizeof(uint32_t));
	}

	size_t bytes() const
	{
		return bytes_;
	}

      private:
	size_t bytes_;
};

size_t encoded_bytes_max(const struct fa_wire_message *message, uint32_t type)
{
	Bound bound(FIXED_BYTES[type]);

	bound.array(message->waits, message->n_waits, sizeof(struct fa_wire_gate));
	bound.array(message->signals, message->n_signals, sizeof(struct fa_wire_gate));
	switch (type) {
	case FA_WIRE_HELLO:
		bound.string(message->hello.name);
		break;
	case FA_WIRE_ATTENTION: {
		const auto &attention = message->attention;

		bound.array(attention.cu_seqlens_q, attention.n_cu_seqlens_q, sizeof(uint32_t));
		bound.array(attention.cu_seqlens_k, attention.n_cu_seqlens_k, sizeof(uint32_t));
		bound.array(attention.alibi_slopes, attention.n_alibi_slopes, sizeof(float));
		bound.array(attention.sinks, attention.n_sinks, sizeof(float));
		break;
	}
	case FA_WIRE_BUFFER_REGISTER:
		bound.array(message->buffer_register.piece_bytes,
		            message->buffer_register.n_piece_bytes, sizeof(uint64_t));
		break;
	case FA_WIRE_BUFFER_PIECES:
		bound.array(message->buffer_pieces.piece_bytes,
		            message->buffer_pieces.n_piece_bytes, sizeof(uint64_t));
		break;
	case FA_WIRE_REPLY:
		bound.string(message->reply.text);
		break;
	case FA_WIRE_HELLO_REPLY:
		bound.string(message->hello_reply.daemon_version);
		bound.string(message->hello_reply.backend);
		bound.string(message->hello_reply.device_name);
		break;
	case FA_WIRE_COMPLETION:
		bound.string(message->completion.text);
		break;
	case FA_WIRE_CACHE_CREATE:
		bound.string(message->cache_create.name);
		bound.array(message->cache_create.k_scales, message->cache_create.n_k_scales,
		            sizeof(float));
		bound.array(message->cache_create.v_scales, message->cache_create.n_v_scales,
		            sizeof(float));
		break;
	case FA_WIRE_CACHE_FIND:
		bound.string(message->cache_find.name);
		break;
	case FA_WIRE_SEQUENCE_FIND:
		bound.string(message->sequence_find.name);
		break;
	case FA_WIRE_SEQUENCE_SET_NAME:
		bound.string(message->sequence_set_name.name);
		break;
	case FA_WIRE_SEQUENCE_PUBLISH:
		bound.array(message->sequence_publish.extra, message->sequence_publish.n_extra,
		            sizeof(uint8_t));
		bound.array(message->sequence_publish.tokens, message->sequence_publish.n_tokens,
		            sizeof(uint32_t));
		break;
	case FA_WIRE_SEQUENCE_ATTACH:
		bound.array(message->sequence_attach.extra, message->sequence_attach.n_extra,
		            sizeof(uint8_t));
		bound.array(message->sequence_attach.tokens, message->sequence_attach.n_tokens,
		            sizeof(uint32_t));
		break;
	case FA_WIRE_STEP_BEGIN:
		bound.array(message->step_begin.items, message->step_begin.n_items,
		            sizeof(struct fa_wire_step_item));
		bound.array(message->step_begin.tree, message->step_begin.n_tree, sizeof(uint32_t));
		bound.array(message->step_begin.tree_start, message->step_begin.n_tree_start,
		            sizeof(uint32_t));
		break;
	case FA_WIRE_STEP_ATTEND:
		bound.step_attend(message->step_attend);
		break;
	case FA_WIRE_STEP_ATTEND_LAYERS:
		bound.step_attend(message->step_attend_layers.attend);
		break;
	case FA_WIRE_STEP_END:
		bound.array(message->step_end.keep, message->step_end.n_keep, sizeof(uint32_t));
		bound.array(message->step_end.cu_keep, message->step_end.n_cu_keep,
		            sizeof(uint32_t));
		break;
	default:
		break;
	}
	return bound.bytes();
}

/* Gives the caller's buffer, once. */
class BufferAllocator final : public flatbuffers::Allocator
{
      public:
	BufferAllocator(uint8_t *buffer, size_t size) : buffer_(buffer), size_(size)
	{
	}

	uint8_t *allocate(size_t size) override
	{
		uint8_t *buffer = buffer_;

		/* The bound was wrong: our mistake, and no way back from here. */
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

using Builder = flatbuffers::FlatBufferBuilder;
using StringOffset = flatbuffers::Offset<flatbuffers::String>;

StringOffset string_write(Builder &builder, const struct fa_wire_string &string)
{
	return string.text ? builder.CreateString(string.text, string.length) : StringOffset();
}

template <typename T>
flatbuffers::Offset<flatbuffers::Vector<T>> vector_write(Builder &builder, const T *data, size_t n)
{
	if (!data || !n)
		return {};
	return builder.CreateVector(data, n);
}

wire::Secret secret_write(const struct fa_wire_secret &secret)
{
	return wire::Secret(secret.lo, secret.hi);
}

/* More than the struct has room for. */
bool has_too_many_pieces(const struct fa_wire_message *message, uint32_t type)
{
	return (type == FA_WIRE_BUFFER_REGISTER &&
	        message->buffer_register.n_piece_bytes > FA_WIRE_FDS_MAX) ||
	       (type == FA_WIRE_BUFFER_PIECES &&
	        message->buffer_pieces.n_piece_bytes > FA_WIRE_FDS_MAX);
}

/* A view that stays away when it says nothing. */
class ViewWriter
{
      public:
	explicit ViewWriter(const struct fa_wire_view &view)
	    : present_(is_present(view)),
	      view_(view.offset, flatbuffers::span<const int64_t, FA_WIRE_RANK_MAX>(view.shape),
	            flatbuffers::span<const int64_t, FA_WIRE_RANK_MAX>(view.strides), view.buffer,
	            view.dtype, view.rank, view.reserved)
	{
	}

	const wire::View *get() const
	{
		return present_ ? &view_ : nullptr;
	}

	static bool is_present(const struct fa_wire_view &view)
	{
		static const struct fa_wire_view zero = {};

		return view.rank || memcmp(&view, &zero, sizeof(view)) != 0;
	}

      private:
	bool present_;
	wire::View view_;
};

flatbuffers::Offset<wire::BufferRegister>
buffer_register_write(Builder &builder, const struct fa_wire_buffer_register &body)
{
	static const uint8_t zero[FA_WIRE_HANDLE_BYTES] = {};
	bool has_handle = memcmp(body.handle, zero, sizeof(zero)) != 0;
	wire::Handle handle(flatbuffers::span<const uint8_t, FA_WIRE_HANDLE_BYTES>(body.handle));
	auto piece_bytes = vector_write(builder, body.piece_bytes, body.n_piece_bytes);

	return wire::CreateBufferRegister(builder, body.buffer, body.kind, body.flags, body.offset,
	                                  body.bytes, has_handle ? &handle : nullptr, body.pid,
	                                  body.n_pieces, piece_bytes);
}

flatbuffers::Offset<wire::Attention> attention_write(Builder &builder,
                                                     const struct fa_wire_attention &attention)
{
	auto cu_seqlens_q = vector_write(builder, attention.cu_seqlens_q, attention.n_cu_seqlens_q);
	auto cu_seqlens_k = vector_write(builder, attention.cu_seqlens_k, attention.n_cu_seqlens_k);
	auto alibi_slopes = vector_write(builder, attention.alibi_slopes, attention.n_alibi_slopes);
	auto sinks = vector_write(builder, attention.sinks, attention.n_sinks);
	ViewWriter q(attention.q), k(attention.k), v(attention.v), out(attention.out),
		lse(attention.lse);

	return wire::CreateAttention(builder, attention.stream, attention.flags, attention.value,
	                             q.get(), k.get(), v.get(), out.get(), lse.get(),
	                             attention.scale, attention.softcap, attention.window_left,
	                             attention.window_right, cu_seqlens_q, cu_seqlens_k,
	                             alibi_slopes, sinks);
}

flatbuffers::Offset<wire::Hello> hello_write(Builder &builder, const struct fa_wire_hello &hello)
{
	auto name = string_write(builder, hello.name);
	auto secret = secret_write(hello.resume_secret);

	return wire::CreateHello(builder, hello.version_min, hello.version_max, hello.features,
	                         name, hello.has_resume ? &secret : nullptr,
	                         hello.has_resume ? hello.resume_generation : 0);
}

flatbuffers::Offset<wire::HelloReply> hello_reply_write(Builder &builder,
                                                        const struct fa_wire_hello_reply &reply)
{
	auto daemon_version = string_write(builder, reply.daemon_version);
	auto backend = string_write(builder, reply.backend);
	auto device_name = string_write(builder, reply.device_name);
	auto limits = wire::CreateLimits(builder, reply.limits.message_bytes, reply.limits.buffers,
	                                 reply.limits.buffer_bytes, reply.limits.streams,
	                                 reply.limits.requests);
	auto device_uuid = secret_write(reply.device_uuid);
	auto secret = secret_write(reply.secret);

	return wire::CreateHelloReply(builder, reply.version, reply.features, daemon_version,
	                              reply.generation, backend, device_name, &device_uuid,
	                              reply.session, &secret, reply.resumed, limits);
}

flatbuffers::Offset<flatbuffers::Vector<const wire::StepItem *>>
step_items_write(Builder &builder, const struct fa_wire_step_item *items, size_t n)
{
	if (!items || !n)
		return {};
	/* One layout: mirror.h proves it. */
	return builder.CreateVectorOfStructs(reinterpret_cast<const wire::StepItem *>(items), n);
}

flatbuffers::Offset<wire::CacheCreate> cache_create_write(Builder &builder,
                                                          const struct fa_wire_cache_create &body)
{
	auto name = string_write(builder, body.name);
	auto k_scales = vector_write(builder, body.k_scales, body.n_k_scales);
	auto v_scales = vector_write(builder, body.v_scales, body.n_v_scales);

	return wire::CreateCacheCreate(builder, name, body.mode, body.ttl_ns, body.dtype,
	                               body.flags, body.layers, body.kv_heads, body.head_dim,
	                               body.head_dim_v, body.page_tokens, body.max_pages,
	                               body.store, k_scales, v_scales);
}

flatbuffers::Offset<wire::CacheFind> cache_find_write(Builder &builder,
                                                      const struct fa_wire_cache_find &body)
{
	auto name = string_write(builder, body.name);

	return wire::CreateCacheFind(builder, name, body.cache);
}

flatbuffers::Offset<wire::CacheRemove> cache_remove_write(Builder &builder,
                                                          const struct fa_wire_cache_remove &body)
{
	return wire::CreateCacheRemove(builder, body.cache);
}

flatbuffers::Offset<wire::CacheReply> cache_reply_write(Builder &builder,
                                                        const struct fa_wire_cache_reply &body)
{
	return wire::CreateCacheReply(builder, body.cache, body.mode, body.dtype, body.flags,
	                              body.layers, body.kv_heads, body.head_dim, body.head_dim_v,
	                              body.page_tokens, body.page_bytes, body.max_pages,
	                              body.used_pages, body.idle_pages, body.sequences, body.store);
}

flatbuffers::Offset<wire::SequenceCreate>
sequence_create_write(Builder &builder, const struct fa_wire_sequence_create &body)
{
	return wire::CreateSequenceCreate(builder, body.cache);
}

flatbuffers::Offset<wire::SequenceFind>
sequence_find_write(Builder &builder, const struct fa_wire_sequence_find &body)
{
	auto name = string_write(builder, body.name);

	return wire::CreateSequenceFind(builder, name);
}

flatbuffers::Offset<wire::SequenceFork>
sequence_fork_write(Builder &builder, const struct fa_wire_sequence_fork &body)
{
	return wire::CreateSequenceFork(builder, body.sequence, body.tokens);
}

flatbuffers::Offset<wire::SequenceSetName>
sequence_set_name_write(Builder &builder, const struct fa_wire_sequence_set_name &body)
{
	auto name = string_write(builder, body.name);

	return wire::CreateSequenceSetName(builder, body.sequence, name, body.mode, body.ttl_ns);
}

flatbuffers::Offset<wire::SequenceTruncate>
sequence_truncate_write(Builder &builder, const struct fa_wire_sequence_truncate &body)
{
	return wire::CreateSequenceTruncate(builder, body.sequence, body.tokens);
}

flatbuffers::Offset<wire::SequenceDrop>
sequence_drop_write(Builder &builder, const struct fa_wire_sequence_drop &body)
{
	return wire::CreateSequenceDrop(builder, body.sequence, body.first);
}

flatbuffers::Offset<wire::SequenceFree>
sequence_free_write(Builder &builder, const struct fa_wire_sequence_free &body)
{
	return wire::CreateSequenceFree(builder, body.sequence);
}

flatbuffers::Offset<wire::SequenceInfo>
sequence_info_write(Builder &builder, const struct fa_wire_sequence_info &body)
{
	return wire::CreateSequenceInfo(builder, body.sequence);
}

flatbuffers::Offset<wire::SequenceReply>
sequence_reply_write(Builder &builder, const struct fa_wire_sequence_reply &body)
{
	return wire::CreateSequenceReply(builder, body.sequence, body.cache, body.length,
	                                 body.planned, body.first, body.step, body.mode,
	                                 body.matched);
}

flatbuffers::Offset<wire::SequencePublish>
sequence_publish_write(Builder &builder, const struct fa_wire_sequence_publish &body)
{
	auto extra = vector_write(builder, body.extra, body.n_extra);
	auto tokens = vector_write(builder, body.tokens, body.n_tokens);
	ViewWriter tokens_view(body.tokens_view);

	return wire::CreateSequencePublish(builder, body.sequence, body.flags, extra, tokens,
	                                   tokens_view.get());
}

flatbuffers::Offset<wire::SequenceAttach>
sequence_attach_write(Builder &builder, const struct fa_wire_sequence_attach &body)
{
	auto extra = vector_write(builder, body.extra, body.n_extra);
	auto tokens = vector_write(builder, body.tokens, body.n_tokens);
	ViewWriter tokens_view(body.tokens_view);

	return wire::CreateSequenceAttach(builder, body.sequence, body.flags, extra, tokens,
	                                  tokens_view.get());
}

flatbuffers::Offset<wire::SequenceCopy>
sequence_copy_write(Builder &builder, const struct fa_wire_sequence_copy &body)
{
	ViewWriter k(body.k);
	ViewWriter v(body.v);

	return wire::CreateSequenceCopy(builder, body.stream, body.value, body.sequence, body.flags,
	                                body.layer, body.first, k.get(), v.get());
}

flatbuffers::Offset<wire::StepBegin> step_begin_write(Builder &builder,
                                                      const struct fa_wire_step_begin &body)
{
	auto items = step_items_write(builder, body.items, body.n_items);
	auto tree = vector_write(builder, body.tree, body.n_tree);
	auto tree_start = vector_write(builder, body.tree_start, body.n_tree_start);

	return wire::CreateStepBegin(builder, body.step, items, tree, tree_start);
}

flatbuffers::Offset<wire::StepReply> step_reply_write(Builder &builder,
                                                      const struct fa_wire_step_reply &body)
{
	return wire::CreateStepReply(builder, body.step, body.number);
}

flatbuffers::Offset<wire::StepAttend> step_attend_write(Builder &builder,
                                                        const struct fa_wire_step_attend &body)
{
	ViewWriter q(body.q);
	ViewWriter k(body.k);
	ViewWriter v(body.v);
	ViewWriter out(body.out);
	ViewWriter lse(body.lse);
	auto alibi_slopes = vector_write(builder, body.alibi_slopes, body.n_alibi_slopes);
	auto sinks = vector_write(builder, body.sinks, body.n_sinks);
	ViewWriter cos(body.cos);
	ViewWriter sin(body.sin);
	auto positions = vector_write(builder, body.positions, body.n_positions);

	return wire::CreateStepAttend(
		builder, body.stream, body.value, body.step, body.cache, body.layer, body.flags,
		q.get(), k.get(), v.get(), out.get(), lse.get(), body.scale, body.softcap,
		body.window_left, body.window_right, alibi_slopes, sinks, body.rotary_dim,
		body.rotary_base, body.rotary_scale, cos.get(), sin.get(), positions);
}

flatbuffers::Offset<wire::StepAttendLayers>
step_attend_layers_write(Builder &builder, const struct fa_wire_step_attend_layers &body)
{
	auto attend = step_attend_write(builder, body.attend);
	wire::Gate wait(body.wait.slot, body.wait.reserved, body.wait.value);
	wire::Gate signal(body.signal.slot, body.signal.reserved, body.signal.value);

	return wire::CreateStepAttendLayers(
		builder, attend, body.n_layers, body.q_bytes, body.k_bytes, body.v_bytes,
		body.out_bytes, body.lse_bytes, body.has_wait ? &wait : nullptr,
		body.wait_increment, body.has_signal ? &signal : nullptr, body.signal_increment);
}

flatbuffers::Offset<flatbuffers::Vector<const wire::Gate *>>
gates_write(Builder &builder, const struct fa_wire_gate *gates, size_t n)
{
	if (!gates || !n)
		return {};
	return builder.CreateVectorOfStructs(reinterpret_cast<const wire::Gate *>(gates), n);
}

flatbuffers::Offset<wire::StepEnd> step_end_write(Builder &builder,
                                                  const struct fa_wire_step_end &body)
{
	auto keep = vector_write(builder, body.keep, body.n_keep);
	auto cu_keep = vector_write(builder, body.cu_keep, body.n_cu_keep);

	return wire::CreateStepEnd(builder, body.stream, body.value, body.step, body.flags, keep,
	                           cu_keep);
}

flatbuffers::Offset<void> body_write(Builder &builder, const struct fa_wire_message *message,
                                     uint32_t type)
{
	switch (type) {
	case FA_WIRE_HELLO:
		return hello_write(builder, message->hello).Union();
	case FA_WIRE_PING:
		return wire::CreatePing(builder).Union();
	case FA_WIRE_BUFFER_REGISTER:
		return buffer_register_write(builder, message->buffer_register).Union();
	case FA_WIRE_BUFFER_FREE:
		return wire::CreateBufferFree(builder, message->buffer_free.buffer).Union();
	case FA_WIRE_STREAM_CREATE: {
		const auto &body = message->stream_create;

		return wire::CreateStreamCreate(builder, body.stream, body.priority).Union();
	}
	case FA_WIRE_STREAM_FREE:
		return wire::CreateStreamFree(builder, message->stream_free.stream).Union();
	case FA_WIRE_ATTENTION:
		return attention_write(builder, message->attention).Union();
	case FA_WIRE_CANCEL: {
		const auto &body = message->cancel;

		return wire::CreateCancel(builder, body.stream, body.value).Union();
	}
	case FA_WIRE_STATUS:
		return wire::CreateStatus(builder).Union();
	case FA_WIRE_DRAIN:
		return wire::CreateDrain(builder).Union();
	case FA_WIRE_REPLY: {
		const auto &body = message->reply;

		return wire::CreateReply(builder, body.status, string_write(builder, body.text))
		        .Union();
	}
	case FA_WIRE_HELLO_REPLY:
		return hello_reply_write(builder, message->hello_reply).Union();
	case FA_WIRE_BUFFER_REPLY: {
		const auto &body = message->buffer_reply;

		return wire::CreateBufferReply(builder, body.buffer, body.bytes, body.piece_bytes)
		        .Union();
	}
	case FA_WIRE_COMPLETION: {
		const auto &body = message->completion;

		return wire::CreateCompletion(builder, body.stream, body.status, body.value,
		                              body.queued_ns, body.started_ns, body.finished_ns,
		                              string_write(builder, body.text))
		        .Union();
	}
	case FA_WIRE_STATUS_REPLY:
		return wire::CreateStatusReply(builder, message->status_reply.bytes).Union();
	case FA_WIRE_BUFFER_PIECES: {
		const auto &body = message->buffer_pieces;

		return wire::CreateBufferPieces(
			       builder, body.buffer,
			       vector_write(builder, body.piece_bytes, body.n_piece_bytes))
		        .Union();
	}
	case FA_WIRE_CACHE_CREATE:
		return cache_create_write(builder, message->cache_create).Union();
	case FA_WIRE_CACHE_FIND:
		return cache_find_write(builder, message->cache_find).Union();
	case FA_WIRE_CACHE_REMOVE:
		return cache_remove_write(builder, message->cache_remove).Union();
	case FA_WIRE_CACHE_REPLY:
		return cache_reply_write(builder, message->cache_reply).Union();
	case FA_WIRE_SEQUENCE_CREATE:
		return sequence_create_write(builder, message->sequence_create).Union();
	case FA_WIRE_SEQUENCE_FIND:
		return sequence_find_write(builder, message->sequence_find).Union();
	case FA_WIRE_SEQUENCE_FORK:
		return sequence_fork_write(builder, message->sequence_fork).Union();
	case FA_WIRE_SEQUENCE_SET_NAME:
		return sequence_set_name_write(builder, message->sequence_set_name).Union();
	case FA_WIRE_SEQUENCE_TRUNCATE:
		return sequence_truncate_write(builder, message->sequence_truncate).Union();
	case FA_WIRE_SEQUENCE_DROP:
		return sequence_drop_write(builder, message->sequence_drop).Union();
	case FA_WIRE_SEQUENCE_FREE:
		return sequence_free_write(builder, message->sequence_free).Union();
	case FA_WIRE_SEQUENCE_INFO:
		return sequence_info_write(builder, message->sequence_info).Union();
	case FA_WIRE_SEQUENCE_REPLY:
		return sequence_reply_write(builder, message->sequence_reply).Union();
	case FA_WIRE_SEQUENCE_PUBLISH:
		return sequence_publish_write(builder, message->sequence_publish).Union();
	case FA_WIRE_SEQUENCE_ATTACH:
		return sequence_attach_write(builder, message->sequence_attach).Union();
	case FA_WIRE_SEQUENCE_COPY:
		return sequence_copy_write(builder, message->sequence_copy).Union();
	case FA_WIRE_STEP_BEGIN:
		return step_begin_write(builder, message->step_begin).Union();
	case FA_WIRE_STEP_REPLY:
		return step_reply_write(builder, message->step_reply).Union();
	case FA_WIRE_STEP_ATTEND:
		return step_attend_write(builder, message->step_attend).Union();
	case FA_WIRE_STEP_END:
		return step_end_write(builder, message->step_end).Union();
	case FA_WIRE_RING_SETUP:
		return wire::CreateRingSetup(builder, message->ring_setup.bytes).Union();
	case FA_WIRE_RING_REPLY: {
		const auto &body = message->ring_reply;

		return wire::CreateRingReply(builder, body.bytes, body.results_bytes, body.records)
		        .Union();
	}
	case FA_WIRE_MARKER:
		return wire::CreateMarker(builder, message->marker.stream, message->marker.value)
		        .Union();
	case FA_WIRE_TIMELINE_SETUP:
		return wire::CreateTimelineSetup(builder).Union();
	case FA_WIRE_TIMELINE_REPLY: {
		const auto &body = message->timeline_reply;

		return wire::CreateTimelineReply(builder, body.slots, body.in_bytes, body.out_bytes)
		        .Union();
	}
	case FA_WIRE_STEP_ATTEND_LAYERS:
		return step_attend_layers_write(builder, message->step_attend_layers).Union();
	default:
		__builtin_unreachable(); /* fa_wire_encode() has looked */
	}
}

} // namespace
