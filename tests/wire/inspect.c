#include "tests/wire/inspect.h"

#include "tests/wire/inspect-kv.h"
#include "tests/wire/inspect-parts.h"

static const char *register_difference(const struct fa_wire_buffer_register *a,
                                       const struct fa_wire_buffer_register *b)
{
	SAME(buffer);
	SAME(kind);
	SAME(flags);
	SAME(offset);
	SAME(bytes);
	DIFFER_IF(memcmp(a->handle, b->handle, sizeof(a->handle)), "handle");
	SAME(pid);
	SAME(n_pieces);
	SAME_VECTOR(piece_bytes);
	return NULL;
}

static const char *pieces_difference(const struct fa_wire_buffer_pieces *a,
                                     const struct fa_wire_buffer_pieces *b)
{
	SAME(buffer);
	SAME_VECTOR(piece_bytes);
	return NULL;
}

static const char *hello_difference(const struct fa_wire_hello *a, const struct fa_wire_hello *b)
{
	SAME(version_min);
	SAME(version_max);
	SAME(features);
	SAME_STRING(name);
	SAME(has_resume);
	SAME_SECRET(resume_secret);
	SAME(resume_generation);
	return NULL;
}

static const char *attention_difference(const struct fa_wire_attention *a,
                                        const struct fa_wire_attention *b)
{
	SAME(stream);
	SAME(flags);
	SAME(value);
	SAME_VIEW(q);
	SAME_VIEW(k);
	SAME_VIEW(v);
	SAME_VIEW(out);
	SAME_VIEW(lse);
	SAME_FLOAT(scale);
	SAME_FLOAT(softcap);
	SAME(window_left);
	SAME(window_right);
	SAME_VECTOR(cu_seqlens_q);
	SAME_VECTOR(cu_seqlens_k);
	SAME_VECTOR(alibi_slopes);
	SAME_VECTOR(sinks);
	SAME(chunk_tokens);
	SAME_VECTOR(prefix_lengths);
	SAME(block_rows);
	SAME(block_keys);
	SAME_VIEW(block_offsets);
	SAME_VIEW(block_columns);
	SAME_VIEW(mask);
	SAME(pattern_block_tokens);
	SAME(pattern_local_blocks);
	SAME(pattern_vert_stride);
	SAME(pattern_head_step);
	SAME(pattern_first_head);
	SAME_VIEW(q_scales);
	SAME_VIEW(k_scales);
	SAME_VIEW(v_scales);
	return NULL;
}

static const char *hello_reply_difference(const struct fa_wire_hello_reply *a,
                                          const struct fa_wire_hello_reply *b)
{
	SAME(version);
	SAME(features);
	SAME_STRING(daemon_version);
	SAME(generation);
	SAME_STRING(backend);
	SAME_STRING(device_name);
	SAME_SECRET(device_uuid);
	SAME(session);
	SAME_SECRET(secret);
	SAME(resumed);
	SAME(limits.message_bytes);
	SAME(limits.buffers);
	SAME(limits.buffer_bytes);
	SAME(limits.streams);
	SAME(limits.requests);
	return NULL;
}

const char *fa_inspect_difference(const struct fa_wire_message *a, const struct fa_wire_message *b)
{
	SAME(id);
	SAME(timeout_ns);
	SAME(fds);
	SAME(type);
	SAME_VECTOR(waits);
	SAME_VECTOR(signals);
	switch (a->type) {
	case FA_WIRE_HELLO:
		return hello_difference(&a->hello, &b->hello);
	case FA_WIRE_BUFFER_REGISTER:
		return register_difference(&a->buffer_register, &b->buffer_register);
	case FA_WIRE_BUFFER_PIECES:
		return pieces_difference(&a->buffer_pieces, &b->buffer_pieces);
	case FA_WIRE_BUFFER_FREE:
		SAME(buffer_free.buffer);
		break;
	case FA_WIRE_STREAM_CREATE:
		SAME(stream_create.stream);
		SAME(stream_create.priority);
		break;
	case FA_WIRE_STREAM_FREE:
		SAME(stream_free.stream);
		break;
	case FA_WIRE_RING_SETUP:
		SAME(ring_setup.bytes);
		break;
	case FA_WIRE_RING_REPLY:
		SAME(ring_reply.bytes);
		SAME(ring_reply.results_bytes);
		SAME(ring_reply.records);
		break;
	case FA_WIRE_TIMELINE_REPLY:
		SAME(timeline_reply.slots);
		SAME(timeline_reply.in_bytes);
		SAME(timeline_reply.out_bytes);
		break;
	case FA_WIRE_TIMELINE_SETUP:
		break;
	case FA_WIRE_MARKER:
		SAME(marker.stream);
		SAME(marker.value);
		break;
	case FA_WIRE_ATTENTION:
		return attention_difference(&a->attention, &b->attention);
	case FA_WIRE_CANCEL:
		SAME(cancel.stream);
		SAME(cancel.value);
		break;
	case FA_WIRE_REPLY:
		SAME(reply.status);
		SAME_STRING(reply.text);
		break;
	case FA_WIRE_HELLO_REPLY:
		return hello_reply_difference(&a->hello_reply, &b->hello_reply);
	case FA_WIRE_BUFFER_REPLY:
		SAME(buffer_reply.buffer);
		SAME(buffer_reply.bytes);
		SAME(buffer_reply.piece_bytes);
		break;
	case FA_WIRE_COMPLETION:
		SAME(completion.stream);
		SAME(completion.status);
		SAME(completion.value);
		SAME(completion.queued_ns);
		SAME(completion.started_ns);
		SAME(completion.finished_ns);
		SAME_STRING(completion.text);
		break;
	case FA_WIRE_STATUS_REPLY:
		SAME(status_reply.bytes);
		break;
	case FA_WIRE_PING:
	case FA_WIRE_STATUS:
	case FA_WIRE_DRAIN:
		break;
	case FA_WIRE_NONE:
	case _FA_WIRE_TYPE_N:
	default:
		return fa_inspect_kv_difference(a, b);
	}
	return NULL;
}

/* ---- reading */

static uint64_t read_attention(struct range range, const struct fa_wire_attention *attention)
{
	return read_view(&attention->q) + read_view(&attention->k) + read_view(&attention->v) +
	       read_view(&attention->out) + read_view(&attention->lse) +
	       read_vector(range, attention->cu_seqlens_q, attention->n_cu_seqlens_q,
	                   FA_WIRE_SEQUENCES_MAX + 1, 4) +
	       read_vector(range, attention->cu_seqlens_k, attention->n_cu_seqlens_k,
	                   FA_WIRE_SEQUENCES_MAX + 1, 4) +
	       read_vector(range, attention->alibi_slopes, attention->n_alibi_slopes,
	                   FA_WIRE_HEADS_MAX, 4) +
	       read_vector(range, attention->sinks, attention->n_sinks, FA_WIRE_HEADS_MAX, 4);
}

static uint64_t read_body(const struct fa_wire_message *message, struct range range)
{
	switch (message->type) {
	case FA_WIRE_HELLO:
		return read_string(range, &message->hello.name, FA_WIRE_NAME_BYTES_MAX);
	case FA_WIRE_ATTENTION:
		return read_attention(range, &message->attention);
	case FA_WIRE_REPLY:
		return read_string(range, &message->reply.text, FA_WIRE_TEXT_BYTES_MAX);
	case FA_WIRE_HELLO_REPLY:
		return read_string(range, &message->hello_reply.daemon_version,
		                   FA_WIRE_NAME_BYTES_MAX) +
		       read_string(range, &message->hello_reply.backend, FA_WIRE_NAME_BYTES_MAX) +
		       read_string(range, &message->hello_reply.device_name,
		                   FA_WIRE_NAME_BYTES_MAX);
	case FA_WIRE_COMPLETION:
		return read_string(range, &message->completion.text, FA_WIRE_TEXT_BYTES_MAX);
	case FA_WIRE_BUFFER_REGISTER:
		demand(message->buffer_register.n_piece_bytes <= FA_WIRE_FDS_MAX,
		       "more pieces than there is room for");
		return message->buffer_register.n_piece_bytes;
	case FA_WIRE_BUFFER_PIECES:
		demand(message->buffer_pieces.n_piece_bytes <= FA_WIRE_FDS_MAX,
		       "more pieces than there is room for");
		return message->buffer_pieces.n_piece_bytes;
	default:
		return fa_inspect_kv_read(message, range);
	}
}

uint64_t fa_inspect_read(const struct fa_wire_message *message, const void *bytes, size_t length)
{
	struct range range = { bytes, length };

	return read_vector(range, message->waits, message->n_waits, FA_WIRE_GATES_MAX,
	                   sizeof(*message->waits)) +
	       read_vector(range, message->signals, message->n_signals, FA_WIRE_GATES_MAX,
	                   sizeof(*message->signals)) +
	       read_body(message, range);
}
