/*
 * SequencePublish, SequenceAttach and PrefixFind: prefixes by content. A worker hashes long ones,
 * while the session is paused.
 */
#include "daemon/requests/kv.h"

#include "common/cleanup.h"
#include "daemon/base/fault_guard.h"
#include "daemon/pool/prefix.h"
#include "daemon/session/context.h"
#include "daemon/session/turns.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define TOKENS_MAX (1u << 20)
/* A worker hashes longer ones: the loop must not block. */
#define TOKENS_INLINE 2048

_Static_assert(FA_WIRE_EXTRA_MAX == FA_PREFIX_EXTRA_BYTES_MAX, "one limit");

/* All of the messages have the same fields. Freed after the reply. */
struct request {
	uv_work_t work;
	struct fa_session *session; /* referenced while a worker runs */
	enum fa_wire_type type;
	uint64_t message_id;
	uint64_t object;          /* the sequence; of PrefixFind the cache */
	struct fa_prefix_key key; /* until the hashes are initialised */
	const uint32_t *tokens;
	uint64_t n_tokens;
	uint32_t *copy; /* NULL: tokens are in the message */
	struct fa_charge charge;
	struct fa_prefix_hashes hashes;
};

static struct request *request_free(struct request *request)
{
	if (!request)
		return NULL;
	free(request->copy);
	fa_charge_release(&request->charge);
	fa_prefix_hashes_deinit(&request->hashes);
	free(request);
	return NULL;
}

static void request_freep(struct request **request)
{
	*request = request_free(*request);
}

static int copy_new(struct fa_session *session, struct request *request, struct fa_error *error)
{
	uint64_t bytes = request->n_tokens * sizeof(uint32_t);
	int r;

	r = fa_charge_add(&request->charge, session->tenant, FA_RESOURCE_STEP_BYTES, bytes, error);
	if (r < 0)
		return r;
	request->copy = malloc(bytes + 1);
	return request->copy
	               ? 0
	               : fa_fail(error, -ENOMEM, "the daemon has no memory for %" PRIu64 " tokens",
	                         request->n_tokens);
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

/* Copies once, as the client can change its buffer at any time. */
static int copy_tokens(struct fa_session *session, const struct fa_wire_view *view,
                       struct request *request, struct fa_error *error)
{
	const struct fa_registered_buffer *buffer = fa_id_table_find(&session->buffers,
	                                                             view->buffer);
	const struct fa_context *context = session->context;
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
	bytes = context->ops->memory_host(context->device, &buffer->memory);
	if (!bytes)
		return fa_fail(error, -EINVAL,
		               "tokens_view.buffer %" PRIu32
		               " is memory of the GPU; expected one of the CPU's",
		               view->buffer);
	request->n_tokens = (uint64_t)view->shape[0];
	r = copy_new(session, request, error);
	if (r < 0)
		return r;
	if (!fa_fault_guard_copy(request->copy, bytes + view->offset,
	                         request->n_tokens * sizeof(uint32_t)))
		return fa_fail(error, -ENOMEM,
		               "no memory for a page of tokens_view.buffer %" PRIu32
		               ": the machine could not provide it (SIGBUS)",
		               view->buffer);
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

static void reply_found(struct fa_session *session, const struct request *request, uint64_t tokens)
{
	const struct fa_wire_message reply = {
		.id = request->message_id,
		.type = FA_WIRE_PREFIX_REPLY,
		.prefix_reply = { .cache = request->object, .tokens = tokens },
	};

	fa_session_send(session, &reply, -1, NULL);
}

static void count_lookup(struct fa_usage *usage, uint64_t tokens, uint64_t matched)
{
	++usage->prefix_lookups;
	usage->prefix_hits += matched > 0;
	usage->prefix_tokens += tokens;
	usage->prefix_matched += matched;
}

static int finish(struct fa_session *session, const struct request *request, struct fa_error *error)
{
	const struct fa_wire_message message = { .id = request->message_id };
	struct fa_call call = { .session = session, .message = &message };
	struct fa_pool *pool = session->context->kv->pool;
	const struct fa_actor *actor = NULL;
	uint64_t matched = 0;
	int r;

	r = fa_kv_actor(session, &actor, error);
	if (r < 0)
		return r;
	if (request->type == FA_WIRE_PREFIX_FIND) {
		r = fa_prefix_find(pool, actor, request->object, &request->hashes, error, &matched);
		if (r == 0) {
			count_lookup(&session->tenant->usage, request->n_tokens, matched);
			reply_found(session, request, matched);
		}
		return r;
	}
	if (request->type == FA_WIRE_SEQUENCE_PUBLISH)
		r = fa_prefix_publish(pool, actor, request->object, &request->hashes,
		                      request->n_tokens, error, &matched);
	else
		r = fa_prefix_attach(pool, actor, request->object, &request->hashes, error,
		                     &matched);
	if (r == 0 && request->type == FA_WIRE_SEQUENCE_ATTACH)
		count_lookup(&session->tenant->usage, request->n_tokens, matched);
	return r ? r : fa_kv_sequence_reply(&call, actor, request->object, matched, error);
}

static void compute(uv_work_t *work)
{
	struct request *request = work->data;

	fa_prefix_hashes_compute(&request->hashes, request->tokens);
}

static void on_computed(uv_work_t *work, int status)
{
	struct request *request = work->data;
	struct fa_session *session = request->session;
	struct fa_error error;
	int r;

	if (session->state != FA_SESSION_CLOSING) {
		struct fa_turn_span span = fa_turn_begin(session);

		r = finish(session, request, &error);
		fa_turn_end(session, &span, 0);
		if (r < 0)
			fa_session_reply(session, request->message_id, r, error.text);
	}
	request_free(request);
	fa_session_resume(session, FA_PAUSE_HASHES);
	fa_session_unref(session);
}

/* A worker hashes, while the session is paused. */
static int start(struct fa_session *session, struct request *request, struct fa_error *error)
{
	int r = 0;

	if (!request->copy) {
		r = copy_new(session, request, error);
		if (r < 0)
			return r;
		memcpy(request->copy, request->tokens, request->n_tokens * sizeof(uint32_t));
		request->tokens = request->copy;
	}
	request->session = fa_session_ref(session);
	request->work.data = request;
	fa_session_pause(session, FA_PAUSE_HASHES);
	(void)uv_queue_work(session->context->loop, &request->work, compute, on_computed);
	return 0;
}

/* @template points into the message. */
static int handle(struct fa_call *call, const struct request *template, uint32_t flags,
                  const struct fa_wire_view *view, struct fa_error *error)
{
	_fa_cleanup_(request_freep) struct request *request = NULL;
	struct fa_session *session = call->session;
	const struct fa_pool *pool = session->context->kv->pool;
	const struct fa_actor *actor = NULL;
	int r;

	r = fa_kv_actor(session, &actor, error);
	if (r < 0)
		return r;
	request = malloc(sizeof(*request));
	if (!request)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a request");
	*request = *template;
	request->message_id = call->message->id;
	request->type = call->message->type;
	r = check_flags(flags, request, error);
	if (r == 0 && view->rank)
		r = copy_tokens(session, view, request, error);
	if (r == 0)
		r = (request->type == FA_WIRE_PREFIX_FIND
		             ? fa_prefix_hashes_init_cache
		             : fa_prefix_hashes_init)(pool, actor, request->object, &request->key,
		                                      request->n_tokens, error, &request->hashes);
	if (r < 0)
		return r;
	request->key = (struct fa_prefix_key){};
	if (request->n_tokens <= TOKENS_INLINE) {
		fa_prefix_hashes_compute(&request->hashes, request->tokens);
		return finish(session, request, error);
	}
	r = start(session, request, error);
	if (r == 0)
		(void)fa_steal_ptr(request);
	return r;
}

int fa_kv_sequence_publish(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_publish *message = &call->message->sequence_publish;
	const struct request request = {
		.object = message->sequence,
		.key = { .extra = message->extra, .extra_bytes = message->n_extra },
		.tokens = message->tokens,
		.n_tokens = message->n_tokens,
	};

	return handle(call, &request, message->flags, &message->tokens_view, error);
}

int fa_kv_sequence_attach(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_attach *message = &call->message->sequence_attach;
	const struct request request = {
		.object = message->sequence,
		.key = { .extra = message->extra, .extra_bytes = message->n_extra },
		.tokens = message->tokens,
		.n_tokens = message->n_tokens,
	};

	return handle(call, &request, message->flags, &message->tokens_view, error);
}

int fa_kv_prefix_find(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_prefix_find *message = &call->message->prefix_find;
	const struct request request = {
		.object = message->cache,
		.key = { .extra = message->extra, .extra_bytes = message->n_extra },
		.tokens = message->tokens,
		.n_tokens = message->n_tokens,
	};

	return handle(call, &request, message->flags, &message->tokens_view, error);
}
