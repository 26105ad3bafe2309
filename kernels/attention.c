/*
 * Checks of a request that hold for every kernel, and its amount of arithmetic. Pure functions, any
 * thread. Of the memory that parameters point to they read only cu_seqlens, because its entries
 * address other memory.
 */
#include "kernels/attention.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define HEADS_MAX 65536 /* keeps tokens x heads far from overflow */
#define PATTERN_BLOCK_STEP 16

static int __attribute__((format(printf, 4, 5)))
refuse(int error, char *text, size_t text_bytes, const char *format, ...)
{
	va_list args;

	if (text && text_bytes > 0) {
		va_start(args, format);
		vsnprintf(text, text_bytes, format, args);
		va_end(args);
	}
	return error;
}

#define REFUSE(error, ...) return refuse(error, text, text_bytes, __VA_ARGS__)

static int check_dim(const char *name, int32_t dim, int32_t max, char *text, size_t text_bytes)
{
	if (dim <= 0)
		REFUSE(-EINVAL, "%s %" PRId32 " is not positive", name, dim);
	if (dim > max || dim % 8 != 0)
		REFUSE(-ENOTSUP,
		       "%s %" PRId32 " is not supported: at most %" PRId32 ", a multiple of 8",
		       name, dim, max);
	return 0;
}

static int check_length(const char *name, int64_t length, char *text, size_t text_bytes)
{
	if (length < 0)
		REFUSE(-EINVAL, "%s %" PRId64 " is negative", name, length);
	if (length > UINT32_MAX)
		REFUSE(-ENOTSUP, "%s %" PRId64 " is not supported: at most %" PRIu32, name, length,
		       UINT32_MAX);
	return 0;
}

static int check_cu_seqlens(const char *name, const uint32_t *cu, int32_t batch, int64_t longest,
                            char *text, size_t text_bytes)
{
	if (cu[0] != 0)
		REFUSE(-EINVAL, "%s[0] is %" PRIu32 ", not 0", name, cu[0]);
	for (int32_t b = 0; b < batch; b++) {
		if (cu[b + 1] < cu[b])
			REFUSE(-EINVAL,
			       "%s[%" PRId32 "] %" PRIu32 " is below its predecessor %" PRIu32,
			       name, b + 1, cu[b + 1], cu[b]);
		if (cu[b + 1] - cu[b] > longest)
			REFUSE(-EINVAL,
			       "%s gives sequence %" PRId32 " %" PRIu32
			       " tokens, more than the longest, %" PRId64,
			       name, b, cu[b + 1] - cu[b], longest);
	}
	return 0;
}

int fa_attention_pattern_check(const struct fa_attention_pattern *pattern, char *text,
                               size_t text_bytes)
{
	if (pattern->block_tokens == 0)
		return 0;
	if (pattern->block_tokens < 0 || pattern->block_tokens % PATTERN_BLOCK_STEP != 0)
		REFUSE(-EINVAL, "pattern.block_tokens %" PRId32 " is not a multiple of %d",
		       pattern->block_tokens, PATTERN_BLOCK_STEP);
	if (pattern->local_blocks < 0)
		REFUSE(-EINVAL, "pattern.local_blocks %" PRId32 " is negative",
		       pattern->local_blocks);
	if (pattern->vert_stride <= 0)
		REFUSE(-EINVAL, "pattern.vert_stride %" PRId32 " is not positive",
		       pattern->vert_stride);
	if (pattern->first_head < 0)
		REFUSE(-EINVAL, "pattern.first_head %" PRId32 " is negative", pattern->first_head);
	return 0;
}

static int check_masks(const struct fa_attention_params *params, char *text, size_t text_bytes)
{
	const struct fa_attention_blocks *blocks = &params->blocks;
	const struct fa_attention_bits *bits = &params->bits;

	if (!blocks->rows != !blocks->keys)
		REFUSE(-EINVAL, "blocks.%s is 0, but blocks.%s is %" PRId32,
		       blocks->rows ? "keys" : "rows", blocks->rows ? "rows" : "keys",
		       blocks->rows ? blocks->rows : blocks->keys);
	if (blocks->rows && blocks->rows != 64 && blocks->rows != 128)
		REFUSE(-ENOTSUP, "blocks.rows %" PRId32 " is not supported: 64 or 128",
		       blocks->rows);
	if (blocks->keys && blocks->keys != 64 && blocks->keys != 128)
		REFUSE(-ENOTSUP, "blocks.keys %" PRId32 " is not supported: 64 or 128",
		       blocks->keys);
	if (blocks->n_columns < 0 || blocks->n_columns > INT32_MAX)
		REFUSE(-EINVAL, "blocks.n_columns %" PRId64 " is not from 0 to %" PRId32,
		       blocks->n_columns, INT32_MAX);
	if (bits->words && bits->row_words < 0)
		REFUSE(-EINVAL, "bits.row_words %" PRId64 " is negative", bits->row_words);
	return fa_attention_pattern_check(&params->pattern, text, text_bytes);
}

int fa_attention_check(const struct fa_attention_params *params, char *text, size_t text_bytes)
{
	const struct fa_attention_params *p = params;
	int64_t rows;
	int r;

	if (p->dtype != FA_ATTENTION_F32 && p->dtype != FA_ATTENTION_F16 &&
	    p->dtype != FA_ATTENTION_BF16)
		REFUSE(-ENOTSUP, "dtype %d is not supported: fp32 (%d), fp16 (%d) or bf16 (%d)",
		       (int)p->dtype, FA_ATTENTION_F32, FA_ATTENTION_F16, FA_ATTENTION_BF16);
	if (!p->e4m3 && (p->q_scales.data || p->k_scales.data || p->v_scales.data))
		REFUSE(-EINVAL, "%s is given, but q, k and v are not e4m3",
		       p->q_scales.data   ? "q_scales"
		       : p->k_scales.data ? "k_scales"
		                          : "v_scales");
	if (p->batch <= 0)
		REFUSE(-EINVAL, "batch %" PRId32 " is not positive", p->batch);
	if (p->heads <= 0)
		REFUSE(-EINVAL, "heads %" PRId32 " is not positive", p->heads);
	if (p->heads > HEADS_MAX)
		REFUSE(-ENOTSUP, "heads %" PRId32 " is not supported: at most %d", p->heads,
		       HEADS_MAX);
	if (p->kv_heads <= 0)
		REFUSE(-EINVAL, "kv_heads %" PRId32 " is not positive", p->kv_heads);
	if (p->heads % p->kv_heads != 0)
		REFUSE(-EINVAL, "heads %" PRId32 " is not a multiple of kv_heads %" PRId32,
		       p->heads, p->kv_heads);

	r = check_dim("head_dim", p->head_dim, FA_ATTENTION_HEAD_DIM_MAX, text, text_bytes);
	if (r < 0)
		return r;
	r = check_dim("head_dim_v", p->head_dim_v, FA_ATTENTION_HEAD_DIM_V_MAX, text, text_bytes);
	if (r < 0)
		return r;
	r = check_length("seqlen_q", p->seqlen_q, text, text_bytes);
	if (r < 0)
		return r;
	r = check_length("seqlen_k", p->seqlen_k, text, text_bytes);
	if (r < 0)
		return r;
	if (__builtin_mul_overflow((int64_t)p->batch, (int64_t)p->heads, &rows) ||
	    __builtin_mul_overflow(rows, p->seqlen_q + 1, &rows))
		REFUSE(-EINVAL,
		       "batch %" PRId32 " x heads %" PRId32 " x seqlen_q %" PRId64 " overflows",
		       p->batch, p->heads, p->seqlen_q);

	if (!p->cu_seqlens_q != !p->cu_seqlens_k)
		REFUSE(-EINVAL, "%s is given without %s: a ragged batch needs both",
		       p->cu_seqlens_q ? "cu_seqlens_q" : "cu_seqlens_k",
		       p->cu_seqlens_q ? "cu_seqlens_k" : "cu_seqlens_q");
	if (p->cu_seqlens_q) {
		r = check_cu_seqlens("cu_seqlens_q", p->cu_seqlens_q, p->batch, p->seqlen_q, text,
		                     text_bytes);
		if (r < 0)
			return r;
		r = check_cu_seqlens("cu_seqlens_k", p->cu_seqlens_k, p->batch, p->seqlen_k, text,
		                     text_bytes);
		if (r < 0)
			return r;
	}

	if (!isfinite(p->scale))
		REFUSE(-EINVAL, "scale %g is not finite", (double)p->scale);
	if (!isfinite(p->softcap) || p->softcap < 0)
		REFUSE(-EINVAL, "softcap %g is not a finite number of at least 0",
		       (double)p->softcap);
	if (p->window_left < -1)
		REFUSE(-EINVAL, "window_left %" PRId64 " is below -1", p->window_left);
	if (p->window_right < -1)
		REFUSE(-EINVAL, "window_right %" PRId64 " is below -1", p->window_right);
	if (p->chunk_tokens < 0)
		REFUSE(-EINVAL, "chunk_tokens %" PRId64 " is negative", p->chunk_tokens);
	return check_masks(p, text, text_bytes);
}

/* The sum over i in [0, n) of i + first, each term clamped to [0, max]. */
static double clamped_sum(double first, double n, double max)
{
	double begin = fmin(fmax(-first, 0), n);        /* first i with a positive term */
	double end = fmin(fmax(max - first, begin), n); /* first i whose term is max */

	return (end - begin) * (first + (begin + end - 1) / 2) + (n - end) * max;
}

/* Rows at positions [first, end) see keys [key, key_end), as far as the masks allow. */
struct range {
	double first, end, key, key_end;
};

/* Counts pairs with key j in [p - left, p + right]; left may be negative. */
static double pairs_in_band(const struct range *range, double left, double right)
{
	double n = range->end - range->first, keys = range->key_end - range->key;

	return clamped_sum(range->first - range->key + right + 1, n, keys) -
	       clamped_sum(range->first - range->key - left, n, keys);
}

static double visible_pairs_of(const struct fa_attention_params *params, const struct range *range,
                               double prefix)
{
	double far = fabs(range->first) + range->end + range->key_end;
	double left = params->window_left < 0 ? far : fmin((double)params->window_left, far);
	double right = params->window_right < 0 ? far : fmin((double)params->window_right, far);
	struct range before = *range;
	double pairs;

	if (!params->causal)
		return pairs_in_band(range, left, right);
	pairs = pairs_in_band(range, left, 0);
	/* Keys before the prefix that are after their row. */
	before.key_end = fmin(range->key_end, fmax(prefix, range->key));
	return pairs + pairs_in_band(&before, -1, right);
}

static double visible_pairs(const struct fa_attention_params *params, double n_q, double n_k,
                            double prefix)
{
	const struct range all = { n_k - n_q, n_k, 0, n_k };
	double size = (double)params->chunk_tokens, pairs = 0, first, last;

	if (n_q == 0 || n_k == 0)
		return 0;
	if (size == 0 || size >= n_k)
		return visible_pairs_of(
			params,
			&(struct range){ size ? fmax(all.first, 0) : all.first, n_k, 0, n_k },
			prefix);
	/* Chunks are alike but for the first and the last that have rows, and the one in which the
	 * prefix ends. */
	first = floor(fmax(all.first, 0) / size);
	last = floor((n_k - 1) / size);
	for (double chunk = first; chunk <= last;) {
		struct range range = { fmax(chunk * size, all.first), fmin((chunk + 1) * size, n_k),
			               chunk * size, fmin((chunk + 1) * size, n_k) };
		double ends = floor(prefix / size), next = chunk + 1;

		if (chunk > first && chunk < last && chunk != ends)
			next = chunk < ends && ends < last ? ends : last;
		pairs += (next - chunk) * visible_pairs_of(params, &range, prefix);
		chunk = next;
	}
	return pairs;
}

double fa_attention_flops(const struct fa_attention_params *params)
{
	const uint32_t *prefixes = params->prefix_lengths;
	double pairs = 0;

	if (params->cu_seqlens_q) {
		const uint32_t *q = params->cu_seqlens_q, *k = params->cu_seqlens_k;

		for (int32_t b = 0; b < params->batch; b++)
			pairs += visible_pairs(params, q[b + 1] - q[b], k[b + 1] - k[b],
			                       prefixes ? prefixes[b] : 0);
	} else if (prefixes) {
		for (int32_t b = 0; b < params->batch; b++)
			pairs += visible_pairs(params, (double)params->seqlen_q,
			                       (double)params->seqlen_k, prefixes[b]);
	} else {
		pairs = params->batch * visible_pairs(params, (double)params->seqlen_q,
		                                      (double)params->seqlen_k, 0);
	}
	return pairs * params->heads * 2 * ((double)params->head_dim + params->head_dim_v);
}
