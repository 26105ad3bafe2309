#include "daemon/memory/tensor_view.h"

#include "common/finite.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DTYPE_NAME_BYTES 16

const char *fa_tensor_view_name(enum fa_tensor_view_index index)
{
	static const char *const names[_FA_VIEW_N] = {
		"q",    "k",        "v",        "out",      "lse", "block_offsets", "block_columns",
		"mask", "q_scales", "k_scales", "v_scales",
	};

	return names[index];
}

const struct fa_wire_view *fa_tensor_view_of(const struct fa_wire_attention *attention,
                                             enum fa_tensor_view_index index)
{
	switch (index) {
	case FA_VIEW_Q:
		return &attention->q;
	case FA_VIEW_K:
		return &attention->k;
	case FA_VIEW_V:
		return &attention->v;
	case FA_VIEW_OUT:
		return &attention->out;
	case FA_VIEW_BLOCK_OFFSETS:
		return &attention->block_offsets;
	case FA_VIEW_BLOCK_COLUMNS:
		return &attention->block_columns;
	case FA_VIEW_MASK:
		return &attention->mask;
	case FA_VIEW_Q_SCALES:
		return &attention->q_scales;
	case FA_VIEW_K_SCALES:
		return &attention->k_scales;
	case FA_VIEW_V_SCALES:
		return &attention->v_scales;
	default:
		return &attention->lse;
	}
}

unsigned int fa_tensor_view_dtype_bytes(unsigned int dtype)
{
	switch (dtype) {
	case FA_WIRE_DTYPE_F32:
	case FA_WIRE_DTYPE_I32:
		return 4;
	case FA_WIRE_DTYPE_F16:
	case FA_WIRE_DTYPE_BF16:
		return 2;
	case FA_WIRE_DTYPE_E4M3:
		return 1;
	case FA_WIRE_DTYPE_I64:
		return 8;
	default:
		return 0;
	}
}

static const char *dtype_name(unsigned int dtype)
{
	switch (dtype) {
	case FA_WIRE_DTYPE_F32:
		return "fp32";
	case FA_WIRE_DTYPE_F16:
		return "fp16";
	case FA_WIRE_DTYPE_BF16:
		return "bf16";
	case FA_WIRE_DTYPE_E4M3:
		return "e4m3";
	case FA_WIRE_DTYPE_I32:
		return "int32";
	case FA_WIRE_DTYPE_I64:
		return "int64";
	default:
		return "unknown";
	}
}

static int check_numbers(const struct fa_wire_view *view, const char *name, struct fa_error *error)
{
	unsigned int bytes = fa_tensor_view_dtype_bytes(view->dtype);

	if (view->rank < 1 || view->rank > FA_WIRE_RANK_MAX)
		return fa_fail(error, -EINVAL, "%s.rank is %u; expected 1 to %d", name, view->rank,
		               FA_WIRE_RANK_MAX);
	if (view->reserved)
		return fa_fail(error, -EINVAL, "%s.reserved is %u; expected 0", name,
		               view->reserved);
	if (view->offset % bytes)
		return fa_fail(error, -EINVAL,
		               "%s.offset %" PRIu64
		               " is misaligned; expected a multiple of %u, the "
		               "size of an element of %s",
		               name, view->offset, bytes, dtype_name(view->dtype));
	for (unsigned int i = 0; i < view->rank; ++i) {
		if (view->shape[i] < 0)
			return fa_fail(error, -EINVAL,
			               "%s.shape[%u] is %" PRId64 "; expected at least 0", name, i,
			               view->shape[i]);
		if (view->strides[i] < 0)
			return fa_fail(error, -EINVAL,
			               "%s.strides[%u] is %" PRId64 "; expected at least 0", name,
			               i, view->strides[i]);
	}
	if (view->strides[view->rank - 1] != 1)
		return fa_fail(error, -EINVAL,
		               "%s.strides[%u] is %" PRId64
		               "; expected 1, as the inner dimension is contiguous",
		               name, view->rank - 1, view->strides[view->rank - 1]);
	return 0;
}

/*
 * Elements must not overlap: in ascending order, each stride must exceed the extent of all smaller
 * dimensions. Refuses interleaved layouts, too.
 */
static int check_distinct(const struct fa_wire_view *view, const char *name, struct fa_error *error)
{
	unsigned int order[FA_WIRE_RANK_MAX], n = 0;
	int64_t reach = 0; /* so far; cannot overflow in the buffer */

	for (unsigned int i = 0; i < view->rank; ++i) {
		unsigned int j;

		if (view->shape[i] <= 1)
			continue;
		for (j = n++; j && view->strides[order[j - 1]] > view->strides[i]; --j)
			order[j] = order[j - 1];
		order[j] = i;
	}
	for (unsigned int j = 0; j < n; ++j) {
		unsigned int i = order[j];

		if (view->strides[i] <= reach)
			return fa_fail(error, -EINVAL,
			               "%s.strides[%u] is %" PRId64
			               ", so that elements overlap; expected at least %" PRId64
			               ", as %s is written",
			               name, i, view->strides[i], reach + 1, name);
		reach += (view->shape[i] - 1) * view->strides[i];
	}
	return 0;
}

static int check_view(const struct fa_wire_view *view, const char *name, bool output,
                      const struct fa_device_memory *memory, struct fa_error *error)
{
	uint64_t last = 0, end; /* index of the last element, offset behind it */
	bool empty = false;
	int r;

	r = check_numbers(view, name, error);
	if (r < 0)
		return r;
	if (output && !memory->writable)
		return fa_fail(error, -EINVAL,
		               "%s.buffer %" PRIu32
		               " is read-only; expected one that can be written",
		               name, view->buffer);

	for (unsigned int i = 0; i < view->rank; ++i) {
		uint64_t step;

		if (!view->shape[i]) {
			empty = true;
			continue;
		}
		if (__builtin_mul_overflow((uint64_t)view->shape[i] - 1, (uint64_t)view->strides[i],
		                           &step) ||
		    __builtin_add_overflow(last, step, &last))
			return fa_fail(error, -EINVAL,
			               "%s.shape[%u] %" PRId64 " with strides[%u] %" PRId64
			               " overflows; buffer %" PRIu32 " has %" PRIu64 " bytes",
			               name, i, view->shape[i], i, view->strides[i], view->buffer,
			               memory->bytes);
	}
	if (empty) {
		if (view->offset > memory->bytes)
			return fa_fail(error, -EINVAL,
			               "%s.offset %" PRIu64 " is out of bounds; buffer %" PRIu32
			               " has %" PRIu64 " bytes",
			               name, view->offset, view->buffer, memory->bytes);
		return 0;
	}
	if (__builtin_add_overflow(last, 1, &end) ||
	    __builtin_mul_overflow(end, (uint64_t)fa_tensor_view_dtype_bytes(view->dtype), &end) ||
	    __builtin_add_overflow(end, view->offset, &end))
		return fa_fail(error, -EINVAL,
		               "%s.offset %" PRIu64 " with its shape and strides overflows; buffer "
		               "%" PRIu32 " has %" PRIu64 " bytes",
		               name, view->offset, view->buffer, memory->bytes);
	if (end > memory->bytes)
		return fa_fail(error, -EINVAL,
		               "%s is out of bounds: it ends at byte %" PRIu64
		               ", and buffer %" PRIu32 " has %" PRIu64 " bytes",
		               name, end, view->buffer, memory->bytes);
	return output ? check_distinct(view, name, error) : 0;
}

int fa_tensor_view_check(const struct fa_wire_view *view, const char *name, bool output,
                         const struct fa_device_memory *memory, struct fa_error *error)
{
	if (view->dtype < FA_WIRE_DTYPE_F32 || view->dtype > FA_WIRE_DTYPE_BF16)
		return fa_fail(
			error, -ENOTSUP,
			"%s.dtype %u is not supported; expected fp32 (%d), fp16 (%d) or bf16 (%d)",
			name, view->dtype, FA_WIRE_DTYPE_F32, FA_WIRE_DTYPE_F16,
			FA_WIRE_DTYPE_BF16);
	return check_view(view, name, output, memory, error);
}

int fa_tensor_view_check_dtype(const struct fa_wire_view *view, const char *name,
                               enum fa_wire_dtype dtype, bool output,
                               const struct fa_device_memory *memory, struct fa_error *error)
{
	if (view->dtype != (uint8_t)dtype)
		return fa_fail(error, -ENOTSUP, "%s.dtype is %s (%u); expected %s (%d)", name,
		               dtype_name(view->dtype), view->dtype, dtype_name(dtype), (int)dtype);
	return check_view(view, name, output, memory, error);
}

/* ---- whole requests */

struct bind {
	const struct fa_wire_attention *attention;
	struct fa_attention_params *params;
	struct fa_error *error;
	bool ragged;
	bool e4m3; /* q, k and v */
	/* Indices of dimensions. Ragged tensors have no batch. */
	unsigned int token, head, dim;
};

static int expect(struct bind *bind, enum fa_tensor_view_index index, unsigned int i,
                  int64_t expected, const char *meaning)
{
	const struct fa_wire_view *view = fa_tensor_view_of(bind->attention, index);

	if (view->shape[i] == expected)
		return 0;
	return fa_fail(bind->error, -EINVAL,
	               "%s.shape[%u] is %" PRId64 "; expected %" PRId64 ", %s",
	               fa_tensor_view_name(index), i, view->shape[i], expected, meaning);
}

static int bounded(struct bind *bind, enum fa_tensor_view_index index, unsigned int i, int64_t max,
                   const char *meaning)
{
	const struct fa_wire_view *view = fa_tensor_view_of(bind->attention, index);

	if (view->shape[i] <= max)
		return 0;
	return fa_fail(bind->error, -ENOTSUP,
	               "%s.shape[%u], %s, is %" PRId64 "; at most %" PRId64 " are supported",
	               fa_tensor_view_name(index), i, meaning, view->shape[i], max);
}

static int check_views(struct bind *bind, const struct fa_device_memory *const memories[_FA_VIEW_N])
{
	const struct fa_wire_attention *attention = bind->attention;
	unsigned int rank = bind->ragged ? 3 : 4;
	int r;

	for (unsigned int i = FA_VIEW_Q; i <= FA_VIEW_OUT; ++i) {
		const struct fa_wire_view *view = fa_tensor_view_of(attention, i);
		const char *name = fa_tensor_view_name(i);

		if (bind->e4m3 && i != FA_VIEW_OUT)
			r = fa_tensor_view_check_dtype(view, name, FA_WIRE_DTYPE_E4M3, false,
			                               memories[i], bind->error);
		else
			r = fa_tensor_view_check(view, name, i == FA_VIEW_OUT, memories[i],
			                         bind->error);
		if (r < 0)
			return r;
		if (view->rank != rank)
			return fa_fail(bind->error, -EINVAL, "%s.rank is %u; expected %u, %s", name,
			               view->rank, rank,
			               bind->ragged
			                       ? "[tokens, heads, dim], as there are cu_seqlens"
			                       : "[batch, tokens, heads, dim]");
		if (!bind->e4m3 && view->dtype != attention->q.dtype)
			return fa_fail(bind->error, -ENOTSUP,
			               "%s.dtype is %s and q.dtype is %s; expected one for q, k, v "
			               "and out",
			               name, dtype_name(view->dtype),
			               dtype_name(attention->q.dtype));
	}
	if (attention->lse.rank) {
		r = fa_tensor_view_check(&attention->lse, "lse", true, memories[FA_VIEW_LSE],
		                         bind->error);
		if (r < 0)
			return r;
		if (attention->lse.rank != rank - 1)
			return fa_fail(bind->error, -EINVAL, "lse.rank is %u; expected %u, %s",
			               attention->lse.rank, rank - 1,
			               bind->ragged ? "[heads, tokens]" : "[batch, heads, tokens]");
		if (attention->lse.dtype != FA_WIRE_DTYPE_F32)
			return fa_fail(bind->error, -ENOTSUP, "lse.dtype is %s; expected fp32",
			               dtype_name(attention->lse.dtype));
	}
	return 0;
}

#define TRY(call)                                                                                  \
	do {                                                                                       \
		int _r = (call);                                                                   \
		if (_r < 0)                                                                        \
			return _r;                                                                 \
	} while (0)

static int check_shapes(struct bind *bind)
{
	const struct fa_wire_attention *attention = bind->attention;
	const struct fa_wire_view *q = &attention->q, *k = &attention->k, *v = &attention->v;
	unsigned int token = bind->token, head = bind->head, dim = bind->dim;

	TRY(bounded(bind, FA_VIEW_Q, head, FA_WIRE_HEADS_MAX, "the heads"));
	TRY(bounded(bind, FA_VIEW_Q, dim, FA_ATTENTION_HEAD_DIM_MAX, "the head dim"));
	TRY(bounded(bind, FA_VIEW_V, dim, FA_ATTENTION_HEAD_DIM_V_MAX, "the head dim of v"));
	if (!bind->ragged) {
		TRY(bounded(bind, FA_VIEW_Q, 0, FA_VIEW_BATCH_MAX, "the batch"));
		TRY(bounded(bind, FA_VIEW_Q, token, FA_VIEW_TOKENS_MAX, "the tokens"));
		TRY(bounded(bind, FA_VIEW_K, token, FA_VIEW_TOKENS_MAX, "the tokens"));
		TRY(expect(bind, FA_VIEW_K, 0, q->shape[0], "the batch of q"));
		TRY(expect(bind, FA_VIEW_V, 0, q->shape[0], "the batch of q"));
		TRY(expect(bind, FA_VIEW_OUT, 0, q->shape[0], "the batch of q"));
	}
	TRY(expect(bind, FA_VIEW_V, token, k->shape[token], "the tokens of k"));
	TRY(expect(bind, FA_VIEW_OUT, token, q->shape[token], "the tokens of q"));
	TRY(expect(bind, FA_VIEW_OUT, head, q->shape[head], "the heads of q"));
	TRY(expect(bind, FA_VIEW_V, head, k->shape[head], "the heads of k"));
	TRY(expect(bind, FA_VIEW_K, dim, q->shape[dim], "the head dim of q"));
	TRY(expect(bind, FA_VIEW_OUT, dim, v->shape[dim], "the head dim of v"));
	if (!q->shape[head] || !k->shape[head] || q->shape[head] % k->shape[head])
		return fa_fail(bind->error, -EINVAL,
		               "q.shape[%u], the heads, is %" PRId64
		               "; expected a multiple of the heads of k, %" PRId64
		               ", and none of them 0",
		               head, q->shape[head], k->shape[head]);
	if (attention->lse.rank) {
		if (!bind->ragged)
			TRY(expect(bind, FA_VIEW_LSE, 0, q->shape[0], "the batch of q"));
		TRY(expect(bind, FA_VIEW_LSE, bind->ragged ? 0 : 1, q->shape[head],
		           "the heads of q"));
		TRY(expect(bind, FA_VIEW_LSE, bind->ragged ? 1 : 2, q->shape[token],
		           "the tokens of q"));
	}
	return 0;
}

/* They must ascend from 0 to the tensor's tokens. */
static int check_lengths(struct bind *bind, const char *name, const uint32_t *cu, size_t n,
                         enum fa_tensor_view_index index, int64_t *ret_longest)
{
	int64_t tokens = fa_tensor_view_of(bind->attention, index)->shape[bind->token];
	uint32_t longest = 0;

	if (cu[0] != 0)
		return fa_fail(bind->error, -EINVAL, "%s[0] is %" PRIu32 "; expected 0", name,
		               cu[0]);
	for (size_t i = 1; i < n; ++i) {
		if (cu[i] < cu[i - 1])
			return fa_fail(bind->error, -EINVAL,
			               "%s[%zu] is %" PRIu32 "; expected at least %" PRIu32
			               ", the one before it",
			               name, i, cu[i], cu[i - 1]);
		if (cu[i] - cu[i - 1] > longest)
			longest = cu[i] - cu[i - 1];
	}
	if (cu[n - 1] != tokens)
		return fa_fail(bind->error, -EINVAL,
		               "%s[%zu], the last, is %" PRIu32 "; expected %" PRId64
		               ", the tokens of %s",
		               name, n - 1, cu[n - 1], tokens, fa_tensor_view_name(index));
	if (longest > FA_VIEW_TOKENS_MAX)
		return fa_fail(bind->error, -ENOTSUP,
		               "the longest sequence in %s has %" PRIu32
		               " tokens; at most %d are supported",
		               name, longest, FA_VIEW_TOKENS_MAX);
	*ret_longest = longest;
	return 0;
}

static int bind_lengths(struct bind *bind)
{
	const struct fa_wire_attention *attention = bind->attention;
	struct fa_attention_params *params = bind->params;

	if (!bind->ragged) {
		params->batch = (int32_t)attention->q.shape[0];
		params->seqlen_q = attention->q.shape[bind->token];
		params->seqlen_k = attention->k.shape[bind->token];
		return 0;
	}
	if (attention->n_cu_seqlens_q != attention->n_cu_seqlens_k)
		return fa_fail(
			bind->error, -EINVAL,
			"cu_seqlens_q has %zu entries and cu_seqlens_k has %zu; expected as many "
			"of both, batch + 1",
			attention->n_cu_seqlens_q, attention->n_cu_seqlens_k);
	if (attention->n_cu_seqlens_q < 2 || attention->n_cu_seqlens_q > FA_VIEW_BATCH_MAX + 1)
		return fa_fail(bind->error, -EINVAL,
		               "cu_seqlens_q has %zu entries; expected 2 to %d, batch + 1",
		               attention->n_cu_seqlens_q, FA_VIEW_BATCH_MAX + 1);
	TRY(check_lengths(bind, "cu_seqlens_q", attention->cu_seqlens_q, attention->n_cu_seqlens_q,
	                  FA_VIEW_Q, &params->seqlen_q));
	TRY(check_lengths(bind, "cu_seqlens_k", attention->cu_seqlens_k, attention->n_cu_seqlens_k,
	                  FA_VIEW_K, &params->seqlen_k));
	params->batch = (int32_t)(attention->n_cu_seqlens_q - 1);
	params->cu_seqlens_q = attention->cu_seqlens_q;
	params->cu_seqlens_k = attention->cu_seqlens_k;
	return 0;
}

/* Beyond all keys it becomes -1, unbounded: no overflow in kernels. */
static int bind_window(struct bind *bind, const char *name, int64_t window, int64_t *ret_window)
{
	struct fa_attention_params *params = bind->params;

	if (window < -1)
		return fa_fail(bind->error, -EINVAL,
		               "%s is %" PRId64 "; expected at least -1, which is unbounded", name,
		               window);
	*ret_window = window > params->seqlen_q + params->seqlen_k ? -1 : window;
	return 0;
}

int fa_tensor_view_check_heads(const float *alibi_slopes, const float *sinks, size_t heads,
                               struct fa_error *error)
{
	size_t i = alibi_slopes ? fa_first_not_finite(alibi_slopes, heads) : heads;

	if (i < heads)
		return fa_fail(error, -EINVAL, "alibi_slopes[%zu] is %g; expected a finite number",
		               i, (double)alibi_slopes[i]);
	i = sinks ? fa_first_bad_sink(sinks, heads) : heads;
	if (i < heads)
		return fa_fail(error, -EINVAL,
		               "sinks[%zu] is %g; expected a finite number, or -infinity for none",
		               i, (double)sinks[i]);
	return 0;
}

int fa_tensor_view_check_prefixes(size_t n, size_t expected, bool causal, struct fa_error *error)
{
	if (n && !causal)
		return fa_fail(error, -EINVAL,
		               "prefix_lengths came, which have no effect without the flag causal");
	if (n && n != expected)
		return fa_fail(error, -EINVAL,
		               "prefix_lengths has %zu entries; expected %zu, one a sequence", n,
		               expected);
	return 0;
}

int64_t fa_tensor_view_chunk(uint64_t chunk_tokens)
{
	return chunk_tokens > INT64_MAX ? INT64_MAX : (int64_t)chunk_tokens;
}

static int bind_numbers(struct bind *bind)
{
	const struct fa_wire_attention *attention = bind->attention;
	struct fa_attention_params *params = bind->params;

	if (attention->flags & ~FA_WIRE_ATTENTION_CAUSAL)
		return fa_fail(bind->error, -ENOTSUP,
		               "flags %#" PRIx32
		               " are not supported; expected none but %#x, causal",
		               attention->flags, FA_WIRE_ATTENTION_CAUSAL);
	if (!isfinite(attention->scale))
		return fa_fail(bind->error, -EINVAL, "scale is %g; expected a finite number",
		               (double)attention->scale);
	if (!isfinite(attention->softcap) || attention->softcap < 0)
		return fa_fail(bind->error, -EINVAL,
		               "softcap is %g; expected a finite number of at least 0",
		               (double)attention->softcap);
	TRY(bind_window(bind, "window_left", attention->window_left, &params->window_left));
	TRY(bind_window(bind, "window_right", attention->window_right, &params->window_right));
	TRY(fa_tensor_view_check_prefixes(attention->n_prefix_lengths, (size_t)params->batch,
	                                  attention->flags & FA_WIRE_ATTENTION_CAUSAL,
	                                  bind->error));
	if (attention->n_alibi_slopes && attention->n_alibi_slopes != (size_t)params->heads)
		return fa_fail(bind->error, -EINVAL,
		               "alibi_slopes has %zu entries; expected %" PRId32
		               ", one a head of q",
		               attention->n_alibi_slopes, params->heads);
	if (attention->n_sinks && attention->n_sinks != (size_t)params->heads)
		return fa_fail(bind->error, -EINVAL,
		               "sinks has %zu entries; expected %" PRId32 ", one a head of q",
		               attention->n_sinks, params->heads);

	params->causal = attention->flags & FA_WIRE_ATTENTION_CAUSAL;
	params->chunk_tokens = fa_tensor_view_chunk(attention->chunk_tokens);
	params->prefix_lengths = attention->n_prefix_lengths ? attention->prefix_lengths : NULL;
	params->softcap = attention->softcap;
	params->scale = attention->scale;
	/* Kernels refuse head dim 0. */
	if (params->scale == 0.0f && params->head_dim)
		params->scale = 1.0f / sqrtf((float)params->head_dim);
	params->alibi_slopes = attention->n_alibi_slopes ? attention->alibi_slopes : NULL;
	params->sinks = attention->n_sinks ? attention->sinks : NULL;
	return fa_tensor_view_check_heads(params->alibi_slopes, params->sinks,
	                                  (size_t)params->heads, bind->error);
}

int64_t fa_tensor_view_stride(const struct fa_wire_view *view, unsigned int i)
{
	for (unsigned int j = 0; j < view->rank; ++j)
		if (!view->shape[j])
			return 0;
	return view->shape[i] > 1 ? view->strides[i] : 0;
}

static struct fa_attention_tensor tensor(const struct bind *bind, const struct fa_wire_view *view,
                                         const struct fa_device_memory *memory)
{
	return (struct fa_attention_tensor){
		.data = (char *)memory->address + view->offset,
		.stride_batch = bind->ragged ? 0 : fa_tensor_view_stride(view, 0),
		.stride_token = fa_tensor_view_stride(view, bind->token),
		.stride_head = fa_tensor_view_stride(view, bind->head),
	};
}

/* ---- masks */

/* Expects int32 [batch or 1, heads or 1, rows, ..]. */
static int check_mask(struct bind *bind, enum fa_tensor_view_index index, unsigned int rank,
                      const char *shape, const struct fa_device_memory *memory)
{
	const struct fa_wire_view *view = fa_tensor_view_of(bind->attention, index);
	const int64_t expected[] = { bind->params->batch, bind->params->heads };
	const char *name = fa_tensor_view_name(index);

	TRY(fa_tensor_view_check_dtype(view, name, FA_WIRE_DTYPE_I32, false, memory, bind->error));
	if (view->rank != rank)
		return fa_fail(bind->error, -EINVAL, "%s.rank is %u; expected %u, %s", name,
		               view->rank, rank, shape);
	for (unsigned int i = 0; i < 2; ++i)
		if (view->shape[i] != 1 && view->shape[i] != expected[i])
			return fa_fail(bind->error, -EINVAL,
			               "%s.shape[%u] is %" PRId64 "; expected 1 or %" PRId64
			               ", the %s of q",
			               name, i, view->shape[i], expected[i], i ? "heads" : "batch");
	return 0;
}

static const void *data_of(const struct bind *bind, enum fa_tensor_view_index index,
                           const struct fa_device_memory *memory)
{
	return (const char *)memory->address + fa_tensor_view_of(bind->attention, index)->offset;
}

static int bind_blocks(struct bind *bind, const struct fa_device_memory *const memories[_FA_VIEW_N])
{
	const struct fa_wire_attention *m = bind->attention;
	const struct fa_wire_view *offsets = &m->block_offsets, *columns = &m->block_columns;
	struct fa_attention_blocks *blocks = &bind->params->blocks;

	if (!m->block_rows && !m->block_keys) {
		if (offsets->rank || columns->rank)
			return fa_fail(bind->error, -EINVAL,
			               "%s came, which has no effect as block_rows is 0",
			               offsets->rank ? "block_offsets" : "block_columns");
		return 0;
	}
	if ((m->block_rows != 64 && m->block_rows != 128) ||
	    (m->block_keys != 64 && m->block_keys != 128))
		return fa_fail(bind->error, -ENOTSUP,
		               "block_rows is %" PRIu32 " and block_keys %" PRIu32
		               "; expected 64 or 128",
		               m->block_rows, m->block_keys);
	if (!offsets->rank || !columns->rank)
		return fa_fail(bind->error, -EINVAL,
		               "block_%s is absent, and block_rows is %" PRIu32,
		               offsets->rank ? "columns" : "offsets", m->block_rows);
	TRY(check_mask(bind, FA_VIEW_BLOCK_OFFSETS, 3, "[batch, heads, row blocks + 1]",
	               memories[FA_VIEW_BLOCK_OFFSETS]));
	TRY(check_mask(bind, FA_VIEW_BLOCK_COLUMNS, 3, "[batch, heads, columns]",
	               memories[FA_VIEW_BLOCK_COLUMNS]));
	blocks->rows = (int32_t)m->block_rows;
	blocks->keys = (int32_t)m->block_keys;
	TRY(expect(bind, FA_VIEW_BLOCK_OFFSETS, 2,
	           (bind->params->seqlen_q + blocks->rows - 1) / blocks->rows + 1,
	           "the row blocks of q and 1"));
	TRY(bounded(bind, FA_VIEW_BLOCK_COLUMNS, 2, INT32_MAX, "the columns"));
	blocks->n_columns = columns->shape[2];
	blocks->offsets = data_of(bind, FA_VIEW_BLOCK_OFFSETS, memories[FA_VIEW_BLOCK_OFFSETS]);
	blocks->columns = data_of(bind, FA_VIEW_BLOCK_COLUMNS, memories[FA_VIEW_BLOCK_COLUMNS]);
	blocks->offsets_stride_batch = fa_tensor_view_stride(offsets, 0);
	blocks->offsets_stride_head = fa_tensor_view_stride(offsets, 1);
	blocks->columns_stride_batch = fa_tensor_view_stride(columns, 0);
	blocks->columns_stride_head = fa_tensor_view_stride(columns, 1);
	return 0;
}

static int bind_masks(struct bind *bind, const struct fa_device_memory *const memories[_FA_VIEW_N])
{
	const struct fa_wire_view *mask = &bind->attention->mask;
	struct fa_attention_bits *bits = &bind->params->bits;

	bind->params->pattern = fa_tensor_view_pattern(bind->attention);
	TRY(bind_blocks(bind, memories));
	if (!mask->rank)
		return 0;
	TRY(check_mask(bind, FA_VIEW_MASK, 4, "[batch, heads, rows, words]",
	               memories[FA_VIEW_MASK]));
	TRY(expect(bind, FA_VIEW_MASK, 2, bind->params->seqlen_q, "the tokens of q"));
	bits->words = data_of(bind, FA_VIEW_MASK, memories[FA_VIEW_MASK]);
	bits->row_words = mask->shape[3];
	bits->stride_batch = fa_tensor_view_stride(mask, 0);
	bits->stride_head = fa_tensor_view_stride(mask, 1);
	bits->stride_row = fa_tensor_view_stride(mask, 2);
	return 0;
}

/* ---- scales */

/* Expects fp32 [batch or 1, tokens or 1, heads or 1]. */
static int bind_scales(struct bind *bind, enum fa_tensor_view_index index,
                       enum fa_tensor_view_index of,
                       const struct fa_device_memory *const memories[_FA_VIEW_N],
                       struct fa_attention_scales *ret_scales)
{
	static const char *const meanings[] = { "batch", "tokens", "heads" };
	const struct fa_wire_view *view = fa_tensor_view_of(bind->attention, index);
	const struct fa_wire_view *codes = fa_tensor_view_of(bind->attention, of);
	const int64_t expected[] = { bind->params->batch, codes->shape[bind->token],
		                     codes->shape[bind->head] };
	const char *name = fa_tensor_view_name(index);

	if (!view->rank)
		return 0;
	if (!bind->e4m3)
		return fa_fail(bind->error, -EINVAL,
		               "%s came, which has no effect as q, k and v are not e4m3", name);
	TRY(fa_tensor_view_check_dtype(view, name, FA_WIRE_DTYPE_F32, false, memories[index],
	                               bind->error));
	if (view->rank != 3)
		return fa_fail(bind->error, -EINVAL,
		               "%s.rank is %u; expected 3, [batch, tokens, heads]", name,
		               view->rank);
	for (unsigned int i = 0; i < 3; ++i)
		if (view->shape[i] != 1 && view->shape[i] != expected[i])
			return fa_fail(bind->error, -EINVAL,
			               "%s.shape[%u] is %" PRId64 "; expected 1 or %" PRId64
			               ", the %s of %s",
			               name, i, view->shape[i], expected[i], meanings[i],
			               fa_tensor_view_name(of));
	if (bind->ragged && view->shape[0] != 1 && view->shape[1] != 1)
		return fa_fail(bind->error, -EINVAL,
		               "%s has sequences and tokens; expected 1 of either, as there are "
		               "cu_seqlens",
		               name);
	ret_scales->data = data_of(bind, index, memories[index]);
	ret_scales->stride_batch = fa_tensor_view_stride(view, 0);
	ret_scales->stride_token = fa_tensor_view_stride(view, 1);
	ret_scales->stride_head = fa_tensor_view_stride(view, 2);
	return 0;
}

int fa_attention_bind(const struct fa_wire_attention *attention,
                      const struct fa_device_memory *const memories[_FA_VIEW_N],
                      struct fa_attention_params *ret_params, struct fa_error *error)
{
	struct fa_attention_params params = {};
	struct bind bind = { .attention = attention, .params = &params, .error = error };

	bind.e4m3 = attention->q.dtype == FA_WIRE_DTYPE_E4M3;
	bind.ragged = attention->n_cu_seqlens_q || attention->n_cu_seqlens_k;
	bind.token = bind.ragged ? 0 : 1;
	bind.head = bind.token + 1;
	bind.dim = bind.token + 2;

	TRY(check_views(&bind, memories));
	TRY(check_shapes(&bind));
	params.dtype = (enum fa_attention_dtype)attention->out.dtype;
	params.e4m3 = bind.e4m3;
	params.heads = (int32_t)attention->q.shape[bind.head];
	params.kv_heads = (int32_t)attention->k.shape[bind.head];
	params.head_dim = (int32_t)attention->q.shape[bind.dim];
	params.head_dim_v = (int32_t)attention->v.shape[bind.dim];
	TRY(bind_lengths(&bind));
	TRY(bind_numbers(&bind));
	TRY(bind_masks(&bind, memories));
	TRY(bind_scales(&bind, FA_VIEW_Q_SCALES, FA_VIEW_Q, memories, &params.q_scales));
	TRY(bind_scales(&bind, FA_VIEW_K_SCALES, FA_VIEW_K, memories, &params.k_scales));
	TRY(bind_scales(&bind, FA_VIEW_V_SCALES, FA_VIEW_V, memories, &params.v_scales));

	params.q = tensor(&bind, &attention->q, memories[FA_VIEW_Q]);
	params.k = tensor(&bind, &attention->k, memories[FA_VIEW_K]);
	params.v = tensor(&bind, &attention->v, memories[FA_VIEW_V]);
	params.out = tensor(&bind, &attention->out, memories[FA_VIEW_OUT]);
	if (attention->lse.rank) {
		const struct fa_wire_view *lse = &attention->lse;

		params.lse = (float *)((char *)memories[FA_VIEW_LSE]->address + lse->offset);
		params.lse_stride_batch = bind.ragged ? 0 : fa_tensor_view_stride(lse, 0);
		params.lse_stride_head = fa_tensor_view_stride(lse, bind.ragged ? 0 : 1);
		params.lse_stride_token = fa_tensor_view_stride(lse, bind.ragged ? 1 : 2);
	}
	*ret_params = params;
	return 0;
}

_Static_assert((int)FA_ATTENTION_F32 == (int)FA_WIRE_DTYPE_F32, "one numbering");
_Static_assert((int)FA_ATTENTION_F16 == (int)FA_WIRE_DTYPE_F16, "one numbering");
_Static_assert((int)FA_ATTENTION_BF16 == (int)FA_WIRE_DTYPE_BF16, "one numbering");
