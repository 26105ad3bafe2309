/*
 * StepAttend: writes a layer's new tokens into pages, rotated, and attends to all tokens of their
 * sequences.
 */
#include "daemon/requests/kv.h"

#include "common/cleanup.h"
#include "daemon/kv/step.h"
#include "daemon/kv/view.h"
#include "daemon/memory/overlap.h"
#include "daemon/memory/tensor_view.h"
#include "daemon/pool/id.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define FLAGS                                                                                      \
	(FA_WIRE_STEP_CAUSAL | FA_WIRE_STEP_ROTARY_INTERLEAVED | FA_WIRE_STEP_DETERMINISTIC |      \
	 FA_WIRE_STEP_ROTARY_FIRST)

struct attend {
	struct fa_request request; /* must be first */
	struct fa_paged_request paged[2];
	uint32_t *tail; /* alibi_slopes, sinks, positions, prefix_lengths of the group */
};

_Static_assert(sizeof(struct attend) <= FA_REQUEST_CACHED_BYTES, "the block cache keeps it");

struct binding {
	struct attend *attend;
	const struct fa_wire_step_attend *message;
	const struct fa_kv_step *step;
	const struct fa_kv_group *group;
	int64_t tokens;
	struct fa_error *error;
};

static struct attend *attend_of(struct fa_request *request)
{
	return fa_container_of(request, struct attend, request);
}

static void release(struct fa_request *request)
{
	struct fa_context *context = request->session->context;

	if (request->job.work.paged)
		context->ops->paged_release(context->device, &request->job.work);
	free(fa_steal_ptr(attend_of(request)->tail));
}

static bool is_there(const struct fa_wire_view *view)
{
	return view->rank != 0;
}

static int find_group(const struct fa_kv_step *step, uint64_t cache,
                      const struct fa_kv_group **ret_group, struct fa_error *error)
{
	int r;

	if (!cache && step->plan->n_groups > 1)
		return fa_fail(error, -EINVAL,
		               "cache is 0, and step %" PRIu32 " has sequences of %" PRIu32
		               " caches; expected one of them",
		               step->id, step->plan->n_groups);
	for (uint32_t i = 0; i < step->plan->n_groups; ++i)
		if (!cache || step->groups[i].cache_id == cache) {
			*ret_group = &step->groups[i];
			return 0;
		}
	r = fa_id_check_kind(FA_ID_CACHE, cache, error);
	return r ? r
	         : fa_fail(error, -ENOENT, "step %" PRIu32 " has no sequences of cache %#" PRIx64,
	                   step->id, cache);
}

static int check(const struct binding *b)
{
	const struct fa_wire_step_attend *m = b->message;
	const struct fa_paged_cache *cache = &b->group->cache;

	if (m->flags & ~FLAGS)
		return fa_fail(b->error, -ENOTSUP,
		               "flags %#" PRIx32 " are not supported; expected none but %#x",
		               m->flags, FLAGS);
	if (m->layer >= (uint32_t)cache->layers)
		return fa_fail(b->error, -EINVAL,
		               "layer is %" PRIu32 "; expected one below %" PRId32, m->layer,
		               cache->layers);
	if (is_there(&m->q) != is_there(&m->out))
		return fa_fail(b->error, -EINVAL, "%s is absent; expected q and out, or neither",
		               is_there(&m->q) ? "out" : "q");
	if (!is_there(&m->out) && !is_there(&m->k))
		return fa_fail(b->error, -EINVAL,
		               "q, k, v and out are absent: there is nothing to do");
	if (is_there(&m->lse) && !is_there(&m->out))
		return fa_fail(b->error, -EINVAL, "lse came without out");
	if (b->group->v_in_k && is_there(&m->v))
		return fa_fail(b->error, -EINVAL,
		               "v is the front of k in this cache; expected none");
	if (!b->group->v_in_k && is_there(&m->k) != is_there(&m->v))
		return fa_fail(b->error, -EINVAL, "%s is absent; expected k and v, or neither",
		               is_there(&m->k) ? "v" : "k");
	if (m->rotary_dim > (uint32_t)cache->head_dim)
		return fa_fail(b->error, -EINVAL,
		               "rotary_dim is %" PRIu32 "; expected at most %" PRId32
		               ", the head dim",
		               m->rotary_dim, cache->head_dim);
	if (!(m->flags & FA_WIRE_STEP_ROTARY_FIRST) != !m->rotary_first)
		return fa_fail(b->error, -EINVAL,
		               "rotary_first is %" PRIu32 ", and flags are %#" PRIx32
		               "; expected %#x in flags if rotary_first is not 0",
		               m->rotary_first, m->flags, FA_WIRE_STEP_ROTARY_FIRST);
	if (m->rotary_first % 8 || m->rotary_first > (uint32_t)cache->head_dim - m->rotary_dim)
		return fa_fail(b->error, -EINVAL,
		               "rotary_first is %" PRIu32
		               "; expected a multiple of 8, at most %" PRIu32
		               ", so that rotary_dim elements follow",
		               m->rotary_first, (uint32_t)cache->head_dim - m->rotary_dim);
	if (!m->rotary_dim && (is_there(&m->cos) || is_there(&m->sin) || m->n_positions))
		return fa_fail(b->error, -EINVAL,
		               "cos, sin or positions came, and rotary_dim is 0");
	if (m->n_positions && m->n_positions != (size_t)b->tokens)
		return fa_fail(b->error, -EINVAL,
		               "positions has %zu entries; expected %" PRId64 ", one a new token",
		               m->n_positions, b->tokens);
	if ((m->n_prefix_lengths || m->chunk_tokens) && !is_there(&m->out))
		return fa_fail(b->error, -EINVAL, "%s came without out",
		               m->chunk_tokens ? "chunk_tokens" : "prefix_lengths");
	if (m->pattern_block_tokens && !is_there(&m->out))
		return fa_fail(b->error, -EINVAL, "a pattern came without out");
	return fa_tensor_view_check_prefixes(m->n_prefix_lengths, b->step->n_items,
	                                     m->flags & FA_WIRE_STEP_CAUSAL, b->error);
}

static void *copy(uint32_t **tail, const void *from, size_t n)
{
	uint32_t *to = *tail;

	if (!n)
		return NULL;
	memcpy(to, from, n * sizeof(uint32_t));
	*tail += n;
	return to;
}

/* The message ends with the handler. */
static int keep_tail(struct binding *b, struct fa_paged_attention *attention,
                     struct fa_paged_rotary *rotary)
{
	const struct fa_wire_step_attend *m = b->message;
	const size_t n_prefixes = m->n_prefix_lengths ? (size_t)b->group->step.batch : 0;
	const size_t n = m->n_alibi_slopes + m->n_sinks + m->n_positions + n_prefixes;
	const struct fa_pool_step *plan = b->step->plan;
	const struct fa_pool_step_entry *entries =
		&plan->entries[plan->groups[b->group - b->step->groups].begin];
	uint32_t *tail = NULL;

	if (n)
		tail = b->attend->tail = calloc(n, sizeof(*tail));
	if (n && !tail)
		return fa_fail(b->error, -ENOMEM,
		               "the daemon has no memory for a request's vectors");
	attention->alibi_slopes = copy(&tail, m->alibi_slopes, m->n_alibi_slopes);
	attention->sinks = copy(&tail, m->sinks, m->n_sinks);
	rotary->positions = copy(&tail, m->positions, m->n_positions);
	for (size_t i = 0; i < n_prefixes; ++i)
		tail[i] = m->prefix_lengths[entries[i].item];
	attention->prefix_lengths = n_prefixes ? tail : NULL;
	/* Positions in a tree are not consecutive. */
	if (!rotary->positions)
		rotary->positions = b->group->positions;
	return 0;
}

/* Each new token's position needs a row in the tables. */
static int check_positions(const struct binding *b, const struct fa_paged_rotary *rotary)
{
	const struct fa_paged_step *step = &b->group->step;
	const uint32_t rows = rotary->table_positions;

	for (int64_t i = 0; rotary->positions && i < b->tokens; ++i)
		if (rotary->positions[i] >= rows)
			return fa_fail(b->error, -EINVAL,
			               "%s of new token %" PRId64 " is %" PRIu32
			               "; expected less than %" PRIu32 ", the rows of cos and sin",
			               b->message->n_positions ? "position" : "tree position", i,
			               rotary->positions[i], rows);
	for (int32_t i = 0; !rotary->positions && i < step->batch; ++i)
		if (step->cu_new[i + 1] > step->cu_new[i] && step->lengths[i] > rows)
			return fa_fail(b->error, -EINVAL,
			               "cos.shape[0] is %" PRIu32 "; expected at least %" PRIu32
			               ", as a new token is at position %" PRIu32,
			               rows, step->lengths[i], step->lengths[i] - 1);
	return 0;
}

static int bind_rotary(struct binding *b, struct fa_paged_rotary *rotary)
{
	const struct fa_wire_step_attend *m = b->message;
	float *cos = NULL, *sin = NULL;
	int64_t half = m->rotary_dim / 2;
	int r = 0;

	rotary->dim = (int32_t)m->rotary_dim;
	rotary->first = (int32_t)m->rotary_first;
	rotary->interleaved = m->flags & FA_WIRE_STEP_ROTARY_INTERLEAVED;
	rotary->base = m->rotary_base;
	rotary->scale = m->rotary_scale;
	if (!m->rotary_dim || (!is_there(&m->cos) && !is_there(&m->sin)))
		return 0;
	if (!is_there(&m->cos) || !is_there(&m->sin))
		return fa_fail(b->error, -EINVAL, "%s is absent; expected cos and sin, or neither",
		               is_there(&m->cos) ? "sin" : "cos");
	r = fa_kv_bind_floats(&b->attend->request, &m->cos, "cos", false, -1, half, &cos, b->error);
	if (r == 0)
		r = fa_kv_bind_floats(&b->attend->request, &m->sin, "sin", false, m->cos.shape[0],
		                      half, &sin, b->error);
	if (r < 0)
		return r;
	if (m->cos.shape[0] < 1 || m->cos.shape[0] > UINT32_MAX ||
	    (m->cos.shape[0] > 1 && (m->cos.strides[0] != half || m->sin.strides[0] != half)))
		return fa_fail(b->error, -EINVAL,
		               "cos and sin have %" PRId64 " rows, with strides %" PRId64
		               " and %" PRId64 "; expected at least 1, without gaps",
		               m->cos.shape[0], m->cos.strides[0], m->sin.strides[0]);
	rotary->cos = cos;
	rotary->sin = sin;
	rotary->table_positions = (uint32_t)m->cos.shape[0];
	return check_positions(b, rotary);
}

static int bind_kv(struct binding *b, struct fa_paged_append *append)
{
	const struct fa_wire_step_attend *m = b->message;
	const struct fa_paged_cache *cache = &b->group->cache;
	const struct fa_kv_tensor k = {
		.name = "k",
		.dtype = cache->dtype,
		.tokens = b->tokens,
		.heads = cache->kv_heads,
		.dim = cache->head_dim,
	};
	struct fa_kv_tensor v = k;
	int r = 0;

	v.name = "v";
	v.dim = cache->head_dim_v;
	if (is_there(&m->k))
		r = fa_kv_bind_tensor(&b->attend->request, &m->k, &k, &append->k, NULL, b->error);
	if (r == 0 && is_there(&m->v))
		r = fa_kv_bind_tensor(&b->attend->request, &m->v, &v, &append->v, NULL, b->error);
	return r;
}

static int bind_numbers(struct binding *b, struct fa_paged_attention *attention)
{
	const struct fa_wire_step_attend *m = b->message;
	const int64_t heads = attention->heads;
	int r;

	if (!isfinite(m->scale))
		return fa_fail(b->error, -EINVAL, "scale is %g; expected a finite number",
		               (double)m->scale);
	if (m->window_left < -1 || m->window_right < -1)
		return fa_fail(b->error, -EINVAL,
		               "window_left is %" PRId64 ", window_right %" PRId64
		               "; expected at least -1, which is unbounded",
		               m->window_left, m->window_right);
	if (m->n_alibi_slopes && m->n_alibi_slopes != (size_t)heads)
		return fa_fail(b->error, -EINVAL,
		               "alibi_slopes has %zu entries; expected %" PRId64
		               ", one a head of q",
		               m->n_alibi_slopes, heads);
	if (m->n_sinks && m->n_sinks != (size_t)heads)
		return fa_fail(b->error, -EINVAL,
		               "sinks has %zu entries; expected %" PRId64 ", one a head of q",
		               m->n_sinks, heads);
	r = fa_tensor_view_check_heads(m->n_alibi_slopes ? m->alibi_slopes : NULL,
	                               m->n_sinks ? m->sinks : NULL, (size_t)heads, b->error);
	if (r < 0)
		return r;
	attention->chunk_tokens = fa_tensor_view_chunk(m->chunk_tokens);
	attention->pattern = fa_tensor_view_pattern(m);
	attention->scale = m->scale != 0.0f ? m->scale
	                                    : 1.0f / sqrtf((float)b->group->cache.head_dim);
	attention->softcap = m->softcap;
	attention->causal = m->flags & FA_WIRE_STEP_CAUSAL;
	attention->deterministic = m->flags & FA_WIRE_STEP_DETERMINISTIC;
	/* A window wider than any sequence is unbounded. */
	attention->window_left = m->window_left > FA_PAGED_LENGTH_MAX ? -1 : m->window_left;
	attention->window_right = m->window_right > FA_PAGED_LENGTH_MAX ? -1 : m->window_right;
	return 0;
}

static int bind_attention(struct binding *b, struct fa_paged_attention *attention)
{
	const struct fa_wire_step_attend *m = b->message;
	const struct fa_paged_cache *cache = &b->group->cache;
	struct fa_kv_tensor q = {
		.name = "q",
		.dtype = cache->dtype,
		.tokens = b->tokens,
		.dim = cache->head_dim,
	};
	int r;

	r = fa_kv_bind_tensor(&b->attend->request, &m->q, &q, &attention->q, &attention->heads,
	                      b->error);
	if (r < 0)
		return r;
	q.name = "out";
	q.output = true;
	q.heads = attention->heads;
	q.dim = cache->head_dim_v;
	r = fa_kv_bind_tensor(&b->attend->request, &m->out, &q, &attention->out, NULL, b->error);
	if (r == 0 && is_there(&m->lse)) {
		r = fa_kv_bind_floats(&b->attend->request, &m->lse, "lse", true, attention->heads,
		                      b->tokens, &attention->lse, b->error);
		attention->lse_stride_head = fa_tensor_view_stride(&m->lse, 0);
		attention->lse_stride_token = fa_tensor_view_stride(&m->lse, 1);
	}
	if (r == 0)
		r = bind_numbers(b, attention);
	attention->cache = cache;
	attention->step = &b->group->step;
	attention->layer = (int32_t)m->layer;
	if (b->group->tree_start) {
		attention->tree = b->attend->request.step->tree;
		attention->tree_start = b->group->tree_start;
		attention->positions = b->group->positions;
	}
	return r;
}

/* Append writes q, rotated, to the device's scratch memory, where attention reads it. */
static void rotate_q(struct fa_paged_append *append, struct fa_paged_attention *attention)
{
	const int64_t dim = append->cache->head_dim;

	append->heads = attention->heads;
	append->q = attention->q;
	append->q_out = (struct fa_attention_tensor){ .stride_token = dim * attention->heads,
		                                      .stride_head = dim };
	attention->q = append->q_out;
}

static int check_overlap(const struct binding *b)
{
	const struct fa_wire_step_attend *m = b->message;
	struct fa_tensor_use uses[] = {
		{ .name = "out", .view = &m->out, .written = true },
		{ .name = "lse", .view = &m->lse, .written = true },
		{ .name = "q", .view = &m->q },
		{ .name = "k", .view = &m->k },
		{ .name = "v", .view = &m->v },
		{ .name = "cos", .view = &m->cos },
		{ .name = "sin", .view = &m->sin },
	};
	const size_t n = sizeof(uses) / sizeof(*uses);

	for (size_t i = 0; i < n; ++i)
		if (is_there(uses[i].view))
			uses[i].memory = fa_request_memory(&b->attend->request,
			                                   uses[i].view->buffer);
	return fa_tensor_uses_check(uses, n, b->error);
}

static int bind_requests(struct binding *b)
{
	struct fa_device_work *device_work = &b->attend->request.job.work;
	const struct fa_wire_step_attend *m = b->message;
	struct fa_paged_attention attention = {};
	struct fa_paged_append append = {
		.cache = &b->group->cache,
		.step = &b->group->step,
		.layer = (int32_t)m->layer,
	};
	int r;

	r = keep_tail(b, &attention, &append.rotary);
	if (r == 0)
		r = bind_rotary(b, &append.rotary);
	if (r == 0)
		r = bind_kv(b, &append);
	if (r == 0 && is_there(&m->out))
		r = bind_attention(b, &attention);
	if (r == 0)
		r = check_overlap(b);
	if (r < 0)
		return r;
	if (!b->tokens) {
		device_work->op = FA_DEVICE_NONE;
		return 0;
	}
	device_work->op = FA_DEVICE_PAGED;
	device_work->paged = b->attend->paged;
	device_work->tables = b->attend->request.step->tables;
	device_work->reuse_plan = true;
	if (is_there(&m->out) && append.rotary.dim)
		rotate_q(&append, &attention);
	if (is_there(&m->k) || append.heads)
		device_work->paged[device_work->n_paged++] =
			(struct fa_paged_request){ .op = FA_PAGED_APPEND, .append = append };
	if (is_there(&m->out))
		device_work->paged[device_work->n_paged++] =
			(struct fa_paged_request){ .op = FA_PAGED_ATTEND, .attention = attention };
	return 0;
}

static int bind_attend(struct fa_request *request, const struct fa_wire_message *message,
                       struct fa_error *error)
{
	struct binding b = {
		.attend = attend_of(request),
		.message = &message->step_attend,
		.error = error,
	};
	struct fa_kv_step *step;
	int r;

	r = fa_kv_step_find(request->session, b.message->step, error, &step);
	if (r == 0)
		r = find_group(step, b.message->cache, &b.group, error);
	if (r < 0)
		return r;
	b.step = step;
	b.tokens = b.group->step.cu_new[b.group->step.batch];
	r = check(&b);
	if (r == 0)
		r = fa_kv_step_add(step, request, b.message->layer, 1, error);
	if (r == 0)
		r = bind_requests(&b);
	if (r == 0 && b.tokens)
		r = fa_request_prepare(request, error);
	return r;
}

static void refused(struct fa_request *request, const struct fa_wire_message *message)
{
	/* After StepEnd a request does not make the step fail. */
	if (!request->step &&
	    fa_kv_step_find(request->session, message->step_attend.step, NULL, &request->step) ==
	            0 &&
	    request->step->end_requested)
		request->step = NULL;
	request->layer = message->step_attend.layer;
	fa_kv_step_request_refused(request);
}

const struct fa_request_kind fa_kv_attend_kind = {
	.name = "StepAttend",
	.bytes = sizeof(struct attend),
	.bind = bind_attend,
	.release = release,
	.refused = refused,
	.ended = fa_kv_step_request_ended,
};
