/* Publishing and looking up by content. */
#include "daemon/kv_messages.h"

#include "common/cleanup.h"
#include "daemon/prefix.h"
#include "daemon/server.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* They are hashed by the loop thread. */
#define TOKENS_MAX (1u << 20)

_Static_assert(FA_WIRE_EXTRA_MAX == FA_PREFIX_EXTRA_BYTES_MAX, "one limit");

/* Both messages have the same fields. */
struct request {
	struct fa_prefix_key key;
	const uint32_t *tokens;
	uint64_t n_tokens;
	uint32_t *copy; /* tokens, if they came in a buffer */
};

static void request_deinit(struct request *request)
{
	free(request->copy);
}

static int check_view(const struct fa_wire_view *view, const struct fa_device_memory *memory,
                      struct fa_error *error)
{
	uint64_t bytes;

	if (view->rank != 1 || view->dtype || view->reserved)
		return fa_fail(error, -EINVAL,
		               "tokens_view has rank %u and dtype %u; expected 1 and 0, as tokens "
		               "are uint32",
		               view->rank, view->dtype);
	if (view->shape[0] < 0 || view->shape[0] > TOKENS_MAX)
		return fa_fail(error, -EINVAL,
		               "tokens_view.shape[0] is %" PRId64 "; expected 0 to %u",
		               view->shape[0], TOKENS_MAX);
	if (view->strides[0] != 1 || view->offset % sizeof(uint32_t))
		return fa_fail(error, -EINVAL,
		               "tokens_view.strides[0] is %" PRId64 ", its offset %" PRIu64
		               "; expected 1 and a multiple of 4",
		               view->strides[0], view->offset);
	bytes = (uint64_t)view->shape[0] * sizeof(uint32_t);
	if (view->offset > memory->bytes || bytes > memory->bytes - view->offset)
		return fa_fail(error, -EINVAL,
		               "tokens_view is out of bounds: %" PRIu64 " bytes at %" PRIu64
		               ", and buffer %" PRIu32 " has %" PRIu64,
		               bytes, view->offset, view->buffer, memory->bytes);
	return 0;
}

/* What the client can write is looked at once. */
static int copy_tokens(struct fa_session *session, const struct fa_wire_view *view,
                       struct request *request, struct fa_error *error)
{
	const struct fa_buffer *buffer = fa_table_find(&session->buffers, view->buffer);
	const struct fa_server *server = session->server;
	const char *bytes;
	int r;

	if (!buffer)
		return fa_fail(error, -ENOENT,
		               "tokens_view.buffer is %" PRIu32
		               ", which is not registered in this session",
		               view->buffer);
	r = check_view(view, &buffer->memory, error);
	if (r < 0)
		return r;
	bytes = server->ops->memory_host(server->device, &buffer->memory);
	if (!bytes)
		return fa_fail(error, -EINVAL,
		               "tokens_view.buffer %" PRIu32
		               " is memory of the GPU; expected one of the CPU's",
		               view->buffer);
	request->n_tokens = (uint64_t)view->shape[0];
	request->copy = malloc(request->n_tokens * sizeof(uint32_t) + 1);
	if (!request->copy)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for %" PRIu64 " tokens",
		               request->n_tokens);
	memcpy(request->copy, bytes + view->offset, request->n_tokens * sizeof(uint32_t));
	request->tokens = request->copy;
	return 0;
}

static int check_flags(uint32_t flags, struct request *request, struct fa_error *error)
{
	if (flags & ~FA_WIRE_PREFIX_SHARED)
		return fa_fail(error, -ENOTSUP,
		               "flags %#" PRIx32
		               " are not supported; expected none but %#x, shared",
		               flags, FA_WIRE_PREFIX_SHARED);
	request->key.shared = flags & FA_WIRE_PREFIX_SHARED;
	return 0;
}

int fa_kv_sequence_publish(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_publish *message = &call->message->sequence_publish;
	_fa_cleanup_(request_deinit) struct request request = {
		.key = { .extra = message->extra, .extra_bytes = message->n_extra },
		.tokens = message->tokens,
		.n_tokens = message->n_tokens,
	};
	const struct fa_actor *actor = NULL;
	uint64_t pages = 0;
	int r;

	r = fa_kv_actor(call->session, &actor, error);
	if (r == 0)
		r = check_flags(message->flags, &request, error);
	if (r == 0 && message->tokens_view.rank)
		r = copy_tokens(call->session, &message->tokens_view, &request, error);
	if (r == 0)
		r = fa_prefix_publish(call->session->server->kv.pool, actor, message->sequence,
		                      &request.key, request.tokens, request.n_tokens, error,
		                      &pages);
	return r ? r : fa_kv_sequence_reply(call, actor, message->sequence, pages, error);
}

int fa_kv_sequence_attach(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_attach *message = &call->message->sequence_attach;
	_fa_cleanup_(request_deinit) struct request request = {
		.key = { .extra = message->extra, .extra_bytes = message->n_extra },
		.tokens = message->tokens,
		.n_tokens = message->n_tokens,
	};
	const struct fa_actor *actor = NULL;
	uint64_t tokens = 0;
	int r;

	r = fa_kv_actor(call->session, &actor, error);
	if (r == 0)
		r = check_flags(message->flags, &request, error);
	if (r == 0 && message->tokens_view.rank)
		r = copy_tokens(call->session, &message->tokens_view, &request, error);
	if (r == 0)
		r = fa_prefix_attach(call->session->server->kv.pool, actor, message->sequence,
		                     &request.key, request.tokens, request.n_tokens, error,
		                     &tokens);
	return r ? r : fa_kv_sequence_reply(call, actor, message->sequence, tokens, error);
}
