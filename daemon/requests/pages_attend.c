/*
 * PagesAttend: appends rows to a client's own pages, and attends over them. Tensors' shapes and
 * bounds are checked here; numbers in table, lengths, cu_q and slots, which the client can change,
 * are bounded by the kernel.
 */
#include "daemon/requests/pages_attend.h"

#include "common/cleanup.h"
#include "daemon/memory/overlap.h"
#include "daemon/memory/tensor_view.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define FLAGS (FA_WIRE_PAGES_CAUSAL | FA_WIRE_PAGES_DETERMINISTIC)

struct pages_attend {
	struct fa_request request; /* must be first */
	struct fa_paged_request paged[2];
	struct fa_paged_own pages;
	uint32_t *tail; /* alibi_slopes, sinks */
};

_Static_assert(sizeof(struct pages_attend) <= FA_REQUEST_CACHED_BYTES, "the block cache keeps it");

enum tensor {
	Q,
	K,
	V,
	OUT,
	LSE,
	TABLE,
	LENGTHS,
	CU_Q,
	K_NEW,
	V_NEW,
	SLOTS,
	K_SCALES,
	V_SCALES,
	PREFIX_LENGTHS,
	_TENSORS,
};

_Static_assert((int)_TENSORS <= FA_REQUEST_BUFFERS_MAX, "each may be in a buffer of its own");

enum type {
	OF_Q,      /* q's dtype */
	OF_STORE,  /* q's dtype, or e4m3 */
	OF_NUMBER, /* the rule's dtype */
};

static const struct rule {
	const char *name, *shape;
	size_t at;
	unsigned int rank;
	bool optional;
	enum type type;
	enum fa_wire_dtype dtype;
} rules[_TENSORS] = {
#define TENSOR(field) .name = #field, .at = offsetof(struct fa_wire_pages_attend, field)
	[Q] = { TENSOR(q), .rank = 3, .shape = "[rows, heads, dim]" },
	[K] = { TENSOR(k), .rank = 4, .shape = "[pages, page_tokens, kv_heads, dim]",
	        .type = OF_STORE },
	[V] = { TENSOR(v), .rank = 4, .shape = "[pages, page_tokens, kv_heads, dim]",
	        .type = OF_STORE },
	[OUT] = { TENSOR(out), .rank = 3, .shape = "[rows, heads, dim]" },
	[LSE] = { TENSOR(lse), .rank = 2, .shape = "[heads, rows]", .optional = true,
	          .type = OF_NUMBER, .dtype = FA_WIRE_DTYPE_F32 },
	[TABLE] = { TENSOR(table), .rank = 2, .shape = "[batch, columns]", .type = OF_NUMBER,
	            .dtype = FA_WIRE_DTYPE_I32 },
	[LENGTHS] = { TENSOR(lengths), .rank = 1, .shape = "[batch]", .type = OF_NUMBER,
	              .dtype = FA_WIRE_DTYPE_I32 },
	[CU_Q] = { TENSOR(cu_q), .rank = 1, .shape = "[batch + 1]", .optional = true,
	           .type = OF_NUMBER, .dtype = FA_WIRE_DTYPE_I32 },
	[K_NEW] = { TENSOR(k_new), .rank = 3, .shape = "[tokens, kv_heads, dim]",
	            .optional = true },
	[V_NEW] = { TENSOR(v_new), .rank = 3, .shape = "[tokens, kv_heads, dim]",
	            .optional = true },
	[SLOTS] = { TENSOR(slots), .rank = 1, .shape = "[tokens]", .optional = true,
	            .type = OF_NUMBER, .dtype = FA_WIRE_DTYPE_I64 },
	[K_SCALES] = { TENSOR(k_scales), .rank = 1, .shape = "[kv_heads]", .optional = true,
	               .type = OF_NUMBER, .dtype = FA_WIRE_DTYPE_F32 },
	[V_SCALES] = { TENSOR(v_scales), .rank = 1, .shape = "[kv_heads]", .optional = true,
	               .type = OF_NUMBER, .dtype = FA_WIRE_DTYPE_F32 },
	[PREFIX_LENGTHS] = { TENSOR(prefix_lengths), .rank = 1, .shape = "[batch]",
	                     .optional = true, .type = OF_NUMBER, .dtype = FA_WIRE_DTYPE_I32 },
#undef TENSOR
};

struct binding {
	struct pages_attend *attend;
	const struct fa_wire_pages_attend *message;
	const struct fa_device_memory *memories[_TENSORS];
	struct fa_error *error;
};

static struct pages_attend *attend_of(struct fa_request *request)
{
	return fa_container_of(request, struct pages_attend, request);
}

static void release(struct fa_request *request)
{
	struct fa_context *context = request->session->context;

	if (request->job.work.paged)
		context->ops->paged_release(context->device, &request->job.work);
	free(fa_steal_ptr(attend_of(request)->tail));
}

static const struct fa_wire_view *view_of(const struct binding *b, enum tensor i)
{
	return (const struct fa_wire_view *)((const char *)b->message + rules[i].at);
}

static bool has(const struct binding *b, enum tensor i)
{
	return view_of(b, i)->rank != 0;
}

static bool is_appended(const struct binding *b)
{
	return has(b, K_NEW) || has(b, V_NEW);
}

static bool is_written(const struct binding *b, enum tensor i)
{
	switch (i) {
	case OUT:
	case LSE:
		return true;
	case K:
		return has(b, K_NEW);
	case V:
		return has(b, V_NEW);
	default:
		return false;
	}
}

/* ---- views, each by itself */

static int bind_view(struct binding *b, enum tensor i)
{
	const struct fa_wire_view *view = view_of(b, i);
	const struct rule *rule = &rules[i];
	enum fa_wire_dtype dtype = rule->dtype;
	int r;

	if (!view->rank && rule->optional)
		return 0;
	if (view->rank != rule->rank)
		return fa_fail(b->error, -EINVAL, "%s.rank is %u; expected %u, %s", rule->name,
		               view->rank, rule->rank, rule->shape);
	r = fa_request_buffer(&b->attend->request, view, rule->name, &b->memories[i], b->error);
	if (r < 0)
		return r;
	if (i == Q)
		return fa_tensor_view_check(view, rule->name, false, b->memories[i], b->error);
	if (rule->type == OF_STORE && b->message->k.dtype == FA_WIRE_DTYPE_E4M3)
		dtype = FA_WIRE_DTYPE_E4M3;
	else if (rule->type != OF_NUMBER)
		dtype = (enum fa_wire_dtype)b->message->q.dtype;
	return fa_tensor_view_check_dtype(view, rule->name, dtype, is_written(b, i), b->memories[i],
	                                  b->error);
}

/* ---- views, compared */

static int expect(const struct binding *b, enum tensor i, unsigned int dim, int64_t expected,
                  const char *meaning)
{
	const struct fa_wire_view *view = view_of(b, i);

	if (!view->rank || view->shape[dim] == expected)
		return 0;
	return fa_fail(b->error, -EINVAL, "%s.shape[%u] is %" PRId64 "; expected %" PRId64 ", %s",
	               rules[i].name, dim, view->shape[dim], expected, meaning);
}

static int bounded(const struct binding *b, enum tensor i, unsigned int dim, int64_t least,
                   int64_t most, const char *meaning)
{
	int64_t n = view_of(b, i)->shape[dim];

	if (n >= least && n <= most)
		return 0;
	return fa_fail(b->error, n < least ? -EINVAL : -ENOTSUP,
	               "%s.shape[%u], %s, is %" PRId64 "; expected %" PRId64 " to %" PRId64,
	               rules[i].name, dim, meaning, n, least, most);
}

#define TRY(call)                                                                                  \
	do {                                                                                       \
		int _r = (call);                                                                   \
		if (_r < 0)                                                                        \
			return _r;                                                                 \
	} while (0)

static int check_shapes(const struct binding *b)
{
	const struct fa_wire_pages_attend *m = b->message;
	const struct fa_wire_view *q = &m->q, *k = &m->k;

	TRY(bounded(b, Q, 0, 0, INT32_MAX, "the rows"));
	TRY(bounded(b, Q, 1, 1, FA_WIRE_HEADS_MAX, "the heads"));
	TRY(bounded(b, Q, 2, 1, FA_ATTENTION_HEAD_DIM_MAX, "the head dim"));
	TRY(bounded(b, K, 0, 1, INT32_MAX, "the pages"));
	TRY(bounded(b, K, 1, 1, FA_PAGED_PAGE_TOKENS_MAX, "the tokens of a page"));
	TRY(bounded(b, K, 2, 1, FA_WIRE_HEADS_MAX, "the KV heads"));
	TRY(bounded(b, V, 3, 1, FA_ATTENTION_HEAD_DIM_V_MAX, "the head dim of v"));
	TRY(bounded(b, TABLE, 0, 0, FA_VIEW_BATCH_MAX, "the batch"));
	TRY(bounded(b, TABLE, 1, 0, INT32_MAX, "the columns"));
	TRY(expect(b, K, 3, q->shape[2], "the head dim of q"));
	TRY(expect(b, V, 0, k->shape[0], "the pages of k"));
	TRY(expect(b, V, 1, k->shape[1], "the tokens of a page of k"));
	TRY(expect(b, V, 2, k->shape[2], "the heads of k"));
	TRY(expect(b, OUT, 0, q->shape[0], "the rows of q"));
	TRY(expect(b, OUT, 1, q->shape[1], "the heads of q"));
	TRY(expect(b, OUT, 2, m->v.shape[3], "the head dim of v"));
	TRY(expect(b, LSE, 0, q->shape[1], "the heads of q"));
	TRY(expect(b, LSE, 1, q->shape[0], "the rows of q"));
	TRY(expect(b, LENGTHS, 0, m->table.shape[0], "the batch of table"));
	TRY(expect(b, CU_Q, 0, m->table.shape[0] + 1, "the batch of table and one"));
	TRY(expect(b, PREFIX_LENGTHS, 0, m->table.shape[0], "the batch of table"));
	TRY(expect(b, K_SCALES, 0, k->shape[2], "the heads of k"));
	TRY(expect(b, V_SCALES, 0, k->shape[2], "the heads of k"));
	if (q->shape[1] % k->shape[2])
		return fa_fail(b->error, -EINVAL,
		               "q.shape[1], the heads, is %" PRId64
		               "; expected a multiple of the heads of k, %" PRId64,
		               q->shape[1], k->shape[2]);
	return 0;
}

static int check_append(const struct binding *b)
{
	const struct fa_wire_pages_attend *m = b->message;

	if (is_appended(b) != has(b, SLOTS))
		return fa_fail(b->error, -EINVAL, "%s",
		               has(b, SLOTS) ? "slots came without k_new and v_new"
		                             : "slots is absent; expected one for each new token");
	if (!is_appended(b))
		return 0;
	TRY(bounded(b, SLOTS, 0, 0, INT32_MAX, "the new tokens"));
	TRY(expect(b, K_NEW, 0, m->slots.shape[0], "the tokens of slots"));
	TRY(expect(b, K_NEW, 1, m->k.shape[2], "the heads of k"));
	TRY(expect(b, K_NEW, 2, m->k.shape[3], "the head dim of k"));
	TRY(expect(b, V_NEW, 0, m->slots.shape[0], "the tokens of slots"));
	TRY(expect(b, V_NEW, 1, m->v.shape[2], "the heads of v"));
	TRY(expect(b, V_NEW, 2, m->v.shape[3], "the head dim of v"));
	return 0;
}

/* Written memory must have no other use, but V may be the front of K where only K is written. */
static int check_overlap(const struct binding *b)
{
	struct fa_tensor_use uses[_TENSORS];
	bool v_in_k = is_written(b, K) && !is_written(b, V);

	for (unsigned int i = 0; i < _TENSORS; ++i)
		uses[i] = (struct fa_tensor_use){
			.name = rules[i].name,
			.view = view_of(b, i),
			.memory = b->memories[i],
			.written = is_written(b, i) && !(i == K && v_in_k),
		};
	TRY(fa_tensor_uses_check(uses, _TENSORS, b->error));
	if (!v_in_k)
		return 0;
	uses[K].written = true;
	uses[V] = uses[Q];
	return fa_tensor_uses_check(uses, _TENSORS, b->error);
}

/* ---- requests */

static void *data_of(const struct binding *b, enum tensor i)
{
	return has(b, i) ? (char *)b->memories[i]->address + view_of(b, i)->offset : NULL;
}

/* @token: the dimension of tokens. */
static struct fa_attention_tensor tensor(const struct binding *b, enum tensor i, unsigned int token)
{
	const struct fa_wire_view *view = view_of(b, i);

	return (struct fa_attention_tensor){
		.data = data_of(b, i),
		.stride_batch = token ? fa_tensor_view_stride(view, 0) : 0,
		.stride_token = fa_tensor_view_stride(view, token),
		.stride_head = fa_tensor_view_stride(view, token + 1),
	};
}

static int bind_pages(struct binding *b)
{
	const struct fa_wire_pages_attend *m = b->message;
	bool codes = m->k.dtype == FA_WIRE_DTYPE_E4M3;

	if (!codes && (has(b, K_SCALES) || has(b, V_SCALES)))
		return fa_fail(b->error, -EINVAL,
		               "%s came, which has no effect as k and v are not e4m3",
		               has(b, K_SCALES) ? "k_scales" : "v_scales");
	b->attend->pages = (struct fa_paged_own){
		.dtype = (enum fa_attention_dtype)m->q.dtype,
		.kv_heads = (int32_t)m->k.shape[2],
		.head_dim = (int32_t)m->k.shape[3],
		.head_dim_v = (int32_t)m->v.shape[3],
		.page_tokens = (int32_t)m->k.shape[1],
		.pages = (int32_t)m->k.shape[0],
		.store = codes ? FA_PAGED_E4M3 : FA_PAGED_PLAIN,
		.k = tensor(b, K, 1),
		.v = tensor(b, V, 1),
		.k_scales = data_of(b, K_SCALES),
		.v_scales = data_of(b, V_SCALES),
	};
	return 0;
}

/* The daemon cannot read the lengths. */
static int bind_bounds(const struct binding *b, struct fa_paged_own_attention *p)
{
	const struct fa_wire_pages_attend *m = b->message;
	int64_t batch = m->table.shape[0], rows = m->q.shape[0];
	int64_t room = m->table.shape[1] * m->k.shape[1];

	if (!has(b, CU_Q) && (batch ? rows != batch * m->max_q : rows != 0))
		return fa_fail(b->error, -EINVAL,
		               "q.shape[0] is %" PRId64 "; expected %" PRId64 ", max_q %" PRIu32
		               " for each of %" PRId64 " sequences, as cu_q is absent",
		               rows, batch * m->max_q, m->max_q, batch);
	if (m->max_q > rows)
		return fa_fail(b->error, -EINVAL,
		               "max_q is %" PRIu32 "; expected at most %" PRId64 ", the rows of q",
		               m->max_q, rows);
	if (m->max_k > room)
		return fa_fail(b->error, -EINVAL,
		               "max_k is %" PRIu32 "; expected at most %" PRId64
		               ", as table has %" PRId64 " columns, of pages of %" PRId64 " tokens",
		               m->max_k, room, m->table.shape[1], m->k.shape[1]);
	if (m->max_q > FA_VIEW_TOKENS_MAX || m->max_k > FA_VIEW_TOKENS_MAX)
		return fa_fail(b->error, -ENOTSUP, "%s is %" PRIu32 "; at most %d are supported",
		               m->max_q > FA_VIEW_TOKENS_MAX ? "max_q" : "max_k",
		               m->max_q > FA_VIEW_TOKENS_MAX ? m->max_q : m->max_k,
		               FA_VIEW_TOKENS_MAX);
	if (m->max_k)
		room = m->max_k;
	p->max_k = (int32_t)(room < FA_VIEW_TOKENS_MAX ? room : FA_VIEW_TOKENS_MAX);
	p->max_q = (int32_t)m->max_q;
	p->total_q = rows;
	p->batch = (int32_t)batch;
	p->table_columns = (int32_t)m->table.shape[1];
	p->table_stride = fa_tensor_view_stride(&m->table, 0);
	p->table = data_of(b, TABLE);
	p->lengths = data_of(b, LENGTHS);
	p->cu_q = data_of(b, CU_Q);
	p->prefix_lengths = data_of(b, PREFIX_LENGTHS);
	return 0;
}

static int bind_numbers(const struct binding *b, struct fa_paged_own_attention *p)
{
	const struct fa_wire_pages_attend *m = b->message;
	size_t heads = (size_t)m->q.shape[1];

	if (m->flags & ~FLAGS)
		return fa_fail(b->error, -ENOTSUP,
		               "flags %#" PRIx32 " are not supported; expected none but %#x",
		               m->flags, FLAGS);
	if ((m->n_alibi_slopes && m->n_alibi_slopes != heads) ||
	    (m->n_sinks && m->n_sinks != heads))
		return fa_fail(
			b->error, -EINVAL, "%s has %zu entries; expected %zu, one a head of q",
			m->n_alibi_slopes && m->n_alibi_slopes != heads ? "alibi_slopes" : "sinks",
			m->n_alibi_slopes && m->n_alibi_slopes != heads ? m->n_alibi_slopes
									: m->n_sinks,
			heads);
	TRY(fa_tensor_view_check_heads(m->n_alibi_slopes ? m->alibi_slopes : NULL,
	                               m->n_sinks ? m->sinks : NULL, heads, b->error));
	if (has(b, PREFIX_LENGTHS) && !(m->flags & FA_WIRE_PAGES_CAUSAL))
		return fa_fail(b->error, -EINVAL,
		               "prefix_lengths came, which have no effect without the flag causal");
	p->heads = (int32_t)heads;
	p->chunk_tokens = fa_tensor_view_chunk(m->chunk_tokens);
	p->pattern = fa_tensor_view_pattern(m);
	p->scale = m->scale != 0.0f ? m->scale : 1.0f / sqrtf((float)m->q.shape[2]);
	p->softcap = m->softcap;
	p->causal = m->flags & FA_WIRE_PAGES_CAUSAL;
	p->deterministic = m->flags & FA_WIRE_PAGES_DETERMINISTIC;
	p->window_left = m->window_left > FA_PAGED_LENGTH_MAX ? -1 : m->window_left;
	p->window_right = m->window_right > FA_PAGED_LENGTH_MAX ? -1 : m->window_right;
	return 0;
}

/* The message ends with the handler. */
static int keep_tail(struct binding *b, struct fa_paged_own_attention *p)
{
	const struct fa_wire_pages_attend *m = b->message;
	const size_t n = m->n_alibi_slopes + m->n_sinks;
	uint32_t *tail;

	if (!n)
		return 0;
	tail = b->attend->tail = calloc(n, sizeof(*tail));
	if (!tail)
		return fa_fail(b->error, -ENOMEM,
		               "the daemon has no memory for a request's vectors");
	if (m->n_alibi_slopes)
		p->alibi_slopes = memcpy(tail, m->alibi_slopes, m->n_alibi_slopes * sizeof(*tail));
	if (m->n_sinks)
		p->sinks = memcpy(tail + m->n_alibi_slopes, m->sinks, m->n_sinks * sizeof(*tail));
	return 0;
}

static int check_kernel(const struct binding *b, const struct fa_paged_own_attention *p)
{
	struct fa_paged_request request = { .op = FA_PAGED_ATTEND_OWN, .own_attention = *p };

	if (!request.own_attention.batch)
		request.own_attention.batch = 1;
	if (!request.own_attention.cu_q)
		request.own_attention.total_q = (int64_t)request.own_attention.batch *
		                                request.own_attention.max_q;
	return fa_paged_check(&request, b->error->text, sizeof(b->error->text));
}

static int bind_requests(struct binding *b)
{
	struct fa_device_work *work = &b->attend->request.job.work;
	struct fa_paged_own_append append = { .pages = &b->attend->pages };
	struct fa_paged_own_attention attention = {
		.pages = &b->attend->pages,
		.q = tensor(b, Q, 0),
		.out = tensor(b, OUT, 0),
		.lse = data_of(b, LSE),
	};

	if (has(b, LSE)) {
		attention.lse_stride_head = fa_tensor_view_stride(&b->message->lse, 0);
		attention.lse_stride_token = fa_tensor_view_stride(&b->message->lse, 1);
	}
	TRY(bind_pages(b));
	TRY(bind_bounds(b, &attention));
	TRY(bind_numbers(b, &attention));
	TRY(keep_tail(b, &attention));
	TRY(check_kernel(b, &attention));
	work->op = FA_DEVICE_PAGED;
	work->paged = b->attend->paged;
	if (is_appended(b) && b->message->slots.shape[0]) {
		append.tokens = b->message->slots.shape[0];
		append.slots = data_of(b, SLOTS);
		if (has(b, K_NEW))
			append.k = tensor(b, K_NEW, 0);
		if (has(b, V_NEW))
			append.v = tensor(b, V_NEW, 0);
		work->paged[work->n_paged++] = (struct fa_paged_request){ .op = FA_PAGED_APPEND_OWN,
			                                                  .own_append = append };
	}
	if (attention.batch && attention.total_q)
		work->paged[work->n_paged++] = (struct fa_paged_request){
			.op = FA_PAGED_ATTEND_OWN, .own_attention = attention
		};
	if (work->n_paged)
		return fa_request_prepare(&b->attend->request, b->error);
	work->op = FA_DEVICE_NONE;
	work->paged = NULL;
	return 0;
}

static int bind_pages_attend(struct fa_request *request, const struct fa_wire_message *message,
                             struct fa_error *error)
{
	struct binding b = {
		.attend = attend_of(request),
		.message = &message->pages_attend,
		.error = error,
	};

	for (unsigned int i = 0; i < _TENSORS; ++i)
		TRY(bind_view(&b, i));
	TRY(check_shapes(&b));
	TRY(check_append(&b));
	TRY(check_overlap(&b));
	return bind_requests(&b);
}

const struct fa_request_kind fa_pages_attend_kind = {
	.name = "PagesAttend",
	.bytes = sizeof(struct pages_attend),
	.bind = bind_pages_attend,
	.release = release,
};
