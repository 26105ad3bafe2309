#include "tests/wire/inspect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIFFER_IF(condition, name)                                                                 \
	do {                                                                                       \
		if (condition)                                                                     \
			return name;                                                               \
	} while (0)

#define SAME(field) DIFFER_IF(a->field != b->field, #field)
#define SAME_STRING(field) DIFFER_IF(!string_equal(&a->field, &b->field), #field)
#define SAME_SECRET(field) DIFFER_IF(!secret_equal(&a->field, &b->field), #field)
#define SAME_VIEW(field) DIFFER_IF(!view_equal(&a->field, &b->field), #field)
#define SAME_FLOAT(field) DIFFER_IF(!float_equal(a->field, b->field), #field)
#define SAME_VECTOR(field)                                                                         \
	DIFFER_IF(                                                                                 \
		!vector_equal(a->field, a->n_##field, b->field, b->n_##field, sizeof(*a->field)),  \
		#field)

static bool string_equal(const struct fa_wire_string *a, const struct fa_wire_string *b)
{
	if (!a->text || !b->text)
		return !a->text && !b->text;
	return a->length == b->length && !memcmp(a->text, b->text, a->length);
}

static bool secret_equal(const struct fa_wire_secret *a, const struct fa_wire_secret *b)
{
	return a->lo == b->lo && a->hi == b->hi;
}

static bool view_equal(const struct fa_wire_view *a, const struct fa_wire_view *b)
{
	for (unsigned i = 0; i < FA_WIRE_RANK_MAX; ++i)
		if (a->shape[i] != b->shape[i] || a->strides[i] != b->strides[i])
			return false;
	return a->offset == b->offset && a->buffer == b->buffer && a->dtype == b->dtype &&
	       a->rank == b->rank && a->reserved == b->reserved;
}

static bool float_equal(float a, float b)
{
	return a == b || (a != a && b != b);
}

static bool vector_equal(const void *a, size_t n_a, const void *b, size_t n_b, size_t element_bytes)
{
	return n_a == n_b && (!n_a || !memcmp(a, b, n_a * element_bytes));
}

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
		return "type, which is none of ours";
	}
	return NULL;
}

/* ---- reading */

struct range {
	const unsigned char *bytes;
	size_t length;
};

static void demand(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "a decoded message is wrong: %s\n", what);
	abort();
}

static uint64_t read_bytes(struct range range, const void *data, size_t length)
{
	const unsigned char *bytes = data;
	uintptr_t start = (uintptr_t)range.bytes;
	uintptr_t at = (uintptr_t)data;
	uint64_t sum = 0;

	demand(at >= start && at - start <= range.length && length <= range.length - (at - start),
	       "something lies outside of its bytes");
	for (size_t i = 0; i < length; ++i)
		sum += bytes[i];
	return sum;
}

static uint64_t read_string(struct range range, const struct fa_wire_string *string,
                            size_t length_max)
{
	uint64_t sum;

	if (!string->text) {
		demand(!string->length, "an absent string has a length");
		return 0;
	}
	demand(string->length <= length_max, "a string is longer than allowed");
	sum = read_bytes(range, string->text, string->length + 1);
	demand(!string->text[string->length], "a string is not ended by a zero byte");
	return sum;
}

static uint64_t read_vector(struct range range, const void *data, size_t n, size_t n_max)
{
	if (!n) {
		demand(!data, "an empty vector is not NULL");
		return 0;
	}
	demand(n <= n_max, "a vector is longer than allowed");
	demand((uintptr_t)data % sizeof(uint32_t) == 0, "a vector is misaligned");
	return read_bytes(range, data, n * sizeof(uint32_t));
}

static uint64_t read_view(const struct fa_wire_view *view)
{
	uint64_t sum = view->offset + view->buffer + view->dtype + view->rank + view->reserved;

	for (unsigned i = 0; i < FA_WIRE_RANK_MAX; ++i)
		sum += (uint64_t)view->shape[i] + (uint64_t)view->strides[i];
	return sum;
}

static uint64_t read_attention(struct range range, const struct fa_wire_attention *attention)
{
	return read_view(&attention->q) + read_view(&attention->k) + read_view(&attention->v) +
	       read_view(&attention->out) + read_view(&attention->lse) +
	       read_vector(range, attention->cu_seqlens_q, attention->n_cu_seqlens_q,
	                   FA_WIRE_SEQUENCES_MAX + 1) +
	       read_vector(range, attention->cu_seqlens_k, attention->n_cu_seqlens_k,
	                   FA_WIRE_SEQUENCES_MAX + 1) +
	       read_vector(range, attention->alibi_slopes, attention->n_alibi_slopes,
	                   FA_WIRE_HEADS_MAX) +
	       read_vector(range, attention->sinks, attention->n_sinks, FA_WIRE_HEADS_MAX);
}

uint64_t fa_inspect_read(const struct fa_wire_message *message, const void *bytes, size_t length)
{
	struct range range = { bytes, length };

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
		return 0;
	}
}
