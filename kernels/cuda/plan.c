#include "kernels/cuda/plan.h"

#include "kernels/cuda/sm90/kernels.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

__attribute__((format(printf, 3, 4))) static int fail(char *text, size_t text_bytes,
                                                      const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(text, text_bytes, format, list);
	va_end(list);
	return -ENOTSUP;
}

static int64_t element_bytes(const struct fa_attention_params *params)
{
	return params->dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static void window(const struct fa_attention_params *params, int32_t *ret_left, int32_t *ret_right)
{
	int64_t left = params->window_left, right = params->window_right;

	if (params->causal)
		right = 0;
	/* Row 0 is at key n_k - n_q, the last row at n_k - 1. */
	if (right < 0 || right >= params->seqlen_q - 1)
		right = FA_CUDA_WINDOW_MAX;
	if (left < 0 || left >= params->seqlen_k - 1)
		left = FA_CUDA_WINDOW_MAX;
	*ret_left = left > FA_CUDA_WINDOW_MAX ? FA_CUDA_WINDOW_MAX : (int32_t)left;
	*ret_right = right > FA_CUDA_WINDOW_MAX ? FA_CUDA_WINDOW_MAX : (int32_t)right;
}

/* True: rows can be moved 16 bytes at a time, with offsets within a tile of at most 512 rows in 32
 * bits. Strides of dims of size 1 are unused. */
static bool tensor_aligned(const struct fa_attention_params *params,
                           const struct fa_attention_tensor *tensor, int64_t tokens, int32_t heads)
{
	const int64_t bytes = element_bytes(params);
	const bool ragged = params->cu_seqlens_q;

	if ((uintptr_t)tensor->data % 16)
		return false;
	if (params->batch > 1 && !ragged && tensor->stride_batch * bytes % 16)
		return false;
	if (heads > 1 && tensor->stride_head * bytes % 16)
		return false;
	if (tokens <= 1 && !ragged)
		return true;
	return tensor->stride_token * bytes % 16 == 0 && tensor->stride_token >= 0 &&
	       tensor->stride_token * bytes < 1 << 22;
}

static bool params_aligned(const struct fa_attention_params *params)
{
	return tensor_aligned(params, &params->q, params->seqlen_q, params->heads) &&
	       tensor_aligned(params, &params->k, params->seqlen_k, params->kv_heads) &&
	       tensor_aligned(params, &params->v, params->seqlen_k, params->kv_heads) &&
	       tensor_aligned(params, &params->out, params->seqlen_q, params->heads);
}

static struct fa_cuda_map map(const struct fa_attention_params *params,
                              const struct fa_attention_tensor *tensor, int64_t tokens,
                              int32_t heads, int32_t dim, int32_t rows)
{
	const uint64_t bytes = (uint64_t)element_bytes(params);
	const int32_t batch = params->cu_seqlens_q ? 1 : params->batch;

	return (struct fa_cuda_map){
		.data = tensor->data,
		.dims = { (uint64_t)dim, (uint64_t)tokens, (uint64_t)heads, (uint64_t)batch },
		.strides = { tokens > 1 ? (uint64_t)tensor->stride_token * bytes : 16,
		             heads > 1 ? (uint64_t)tensor->stride_head * bytes : 16,
		             batch > 1 ? (uint64_t)tensor->stride_batch * bytes : 16 },
		.box = { 64, (uint32_t)rows, 1, 1 },
	};
}

static int64_t tokens_of(const struct fa_attention_params *params, const uint32_t *cu_seqlens,
                         int64_t seqlen)
{
	return cu_seqlens ? cu_seqlens[params->batch] : seqlen;
}

static void make_maps(const struct fa_cuda_kernel *kernel, const struct fa_attention_params *params,
                      struct fa_cuda_map maps[FA_CUDA_MAPS])
{
	const int64_t n_q = tokens_of(params, params->cu_seqlens_q, params->seqlen_q);
	const int64_t n_k = tokens_of(params, params->cu_seqlens_k, params->seqlen_k);
	const int32_t keys = kernel->kind == FA_CUDA_MASKED ? FA_SM90_HALF_KEYS : kernel->keys;

	maps[FA_CUDA_MAP_Q] = map(params, &params->q, n_q, params->heads, params->head_dim,
	                          kernel->rows_q);
	maps[FA_CUDA_MAP_K] = map(params, &params->k, n_k, params->kv_heads, params->head_dim,
	                          keys);
	maps[FA_CUDA_MAP_V] = map(params, &params->v, n_k, params->kv_heads, params->head_dim_v,
	                          keys);
}

/* Kernels count box origins in int32, up to one past the last row's. */
#define MAP_DIM_MAX (INT32_MAX - 256)

/* For TMA strides are multiples of 16 bytes, below 2^40 and not 0, coordinates have 31 bits, and no
 * dimension is empty. */
static bool params_mapped(const struct fa_cuda_kernel *kernel,
                          const struct fa_attention_params *params)
{
	struct fa_cuda_map maps[FA_CUDA_MAPS];

	make_maps(kernel, params, maps);
	for (int m = 0; m < FA_CUDA_MAPS; m++) {
		const struct fa_cuda_map *map = &maps[m];

		if ((uintptr_t)map->data % 16)
			return false;
		for (int i = 0; i < 4; i++)
			if (map->dims[i] == 0 || map->dims[i] > MAP_DIM_MAX)
				return false;
		for (int i = 0; i < 3; i++)
			if (map->strides[i] % 16 || map->strides[i] == 0 || map->strides[i] >> 40)
				return false;
	}
	return true;
}

bool fa_cuda_kernel_is_special(const struct fa_cuda_kernel *kernel)
{
	return kernel->arch_end < INT32_MAX;
}

bool fa_cuda_kernel_runs(const struct fa_cuda_kernel *kernel, const struct fa_cuda_chip *chip)
{
	return chip->arch >= kernel->arch && chip->arch < kernel->arch_end &&
	       kernel->shared_bytes <= chip->shared_bytes_max &&
	       !(chip->portable && fa_cuda_kernel_is_special(kernel));
}

static bool adds_sinks(const struct fa_cuda_kernel *kernel)
{
	return kernel->keys &&
	       (kernel->kind != FA_CUDA_BAND || FA_SM90_BAND_SINKS(kernel->dim, kernel->keys));
}

bool fa_cuda_has_chunks(const struct fa_attention_params *params)
{
	return params->chunk_tokens > 0 &&
	       (params->chunk_tokens < params->seqlen_k || params->cu_seqlens_q ||
	        params->seqlen_q > params->seqlen_k);
}

/* Kernels for sm90 with masks: what of them has a bound, and what they lack. */
static bool masked_sm90_covers(const struct fa_attention_params *params)
{
	return !params->cu_seqlens_q &&
	       (!params->pattern.block_tokens ||
	        params->seqlen_k <= 16 * FA_SM90_MASKED_GRANULES_MAX) &&
	       (params->blocks.rows ||
	        params->seqlen_k <= FA_SM90_HALF_KEYS * FA_SM90_MASKED_HALVES_MAX);
}

bool fa_cuda_kernel_covers(const struct fa_cuda_kernel *kernel,
                           const struct fa_attention_params *params)
{
	int32_t left, right;

	if (fa_cuda_has_chunks(params) || params->prefix_lengths ||
	    !fa_attention_mask_name(params) != (kernel->kind != FA_CUDA_MASKED))
		return false;
	if (kernel->dtype != params->dtype || kernel->dim < params->head_dim ||
	    fa_cuda_kernel_is_packed(kernel))
		return false;
	if (kernel->keys && (!params_aligned(params) || !params_mapped(kernel, params)))
		return false;
	if (kernel->kind == FA_CUDA_RICH || (kernel->kind == FA_CUDA_MASKED && !kernel->keys))
		return true;
	if (kernel->kind == FA_CUDA_MASKED && !masked_sm90_covers(params))
		return false;
	if (kernel->kind == FA_CUDA_CAP)
		return params->softcap > 0 && !params->alibi_slopes;
	if (params->softcap > 0 || params->alibi_slopes || !(params->scale > 0) ||
	    (params->sinks && !adds_sinks(kernel)) || !params_aligned(params))
		return false;
	if (kernel->kind == FA_CUDA_BAND || kernel->kind == FA_CUDA_WINDOW ||
	    kernel->kind == FA_CUDA_MASKED)
		return true;
	window(params, &left, &right);
	return left == FA_CUDA_WINDOW_MAX && right == FA_CUDA_WINDOW_MAX;
}

void fa_cuda_attention_cap(struct fa_cuda_attention *args, float scale, float softcap)
{
	/* tanh(x) / x as a minimax polynomial in x^2, |x| <= 15/16: relative error 2^-17.9. n
	 * coefficients suffice for 2^-17 up to enough[n]. */
	static const double powers[FA_CUDA_CAP_POWERS] = { 0.999995997, -0.333101442, 0.131128025,
		                                           -0.0463132533, 0.00994113596 };
	static const double enough[FA_CUDA_CAP_POWERS] = { 0, 0.002, 0.06, 0.18, 0.34 };
	double limit = 0.9375, in, power;
	int n = 0;

	if (!(softcap > 0))
		return;
	/* Larger than every dot product, without overflow. */
	softcap = fminf(softcap, 0x1p100f);
	args->cap_in = scale / softcap;
	args->cap_out = (float)(softcap * M_LOG2E);
	in = (double)args->cap_in;

	/* Coefficients overflow for tiny caps and underflow for caps in the thousands. */
	for (power = in * args->cap_out; n < FA_CUDA_CAP_POWERS; n++, power *= in * in) {
		if (!(fabs(power * powers[n]) <= (double)FLT_MAX))
			limit = 0;
		if (!(fabs(power * powers[n]) >= (double)FLT_MIN)) {
			limit = fmin(limit, enough[n]);
			break;
		}
	}
	if (limit > 0) {
		/* Keeps squares finite. */
		limit = fmin(limit / fabs(in), 0x1p62);
		args->cap_square = (float)(limit * limit);
	}
	if (args->cap_square >= FLT_MIN) {
		/* Horner's rule, for powers of x^2 - limit. */
		const double middle = in * in * args->cap_square;
		double shifted[FA_CUDA_CAP_POWERS] = { 0 };

		for (int i = n - 1; i >= 0; i--) {
			for (int k = n - 1; k > 0; k--)
				shifted[k] = shifted[k] * middle + shifted[k - 1];
			shifted[0] = shifted[0] * middle + powers[i];
		}
		power = in * args->cap_out;
		for (int i = 0; i < n; i++, power *= in * in)
			args->cap_powers[i] = (float)(power * shifted[i]);
		args->cap_large = args->cap_out / args->cap_powers[0];
	}
	if (!(args->cap_square >= FLT_MIN) || !(fabsf(args->cap_large) < FLT_MAX / 4)) {
		args->cap_square = 0;
		memset(args->cap_powers, 0, sizeof(args->cap_powers));
		args->cap_powers[0] = 1;
		args->cap_large = args->cap_out;
	}
}

static struct fa_cuda_tensor tensor(const struct fa_attention_params *params,
                                    const struct fa_attention_tensor *source)
{
	const int64_t bytes = element_bytes(params);

	return (struct fa_cuda_tensor){
		.data = source->data,
		.stride_batch = params->cu_seqlens_q ? 0 : source->stride_batch * bytes,
		.stride_token = source->stride_token * bytes,
		.stride_head = source->stride_head * bytes,
	};
}

/* Triples whose blocks run together. FULL blocks read all K and V, so heads follow one another. For
 * other kinds the triples that fit half of L2 go together, longest blocks first, so that the last
 * blocks are short. */
static int32_t section(const struct fa_cuda_chip *chip, const struct fa_cuda_kernel *kernel,
                       const struct fa_attention_params *params, int32_t triples)
{
	const int32_t group = params->heads / params->kv_heads;
	const int64_t kv_bytes = params->seqlen_k * (kernel->dim + kernel->dim_v) *
	                         element_bytes(params);
	int64_t wide;

	if (kernel->kind == FA_CUDA_FULL)
		return 1;
	wide = kv_bytes > 0 ? chip->l2_bytes / 2 / kv_bytes * group : triples;
	return wide < 1 ? 1 : wide > triples ? triples : (int32_t)wide;
}

/* Wider windows run faster on BAND (docs/kernels.md). */
#define WINDOW_KEYS 3072

/* True: most rows see few keys, and equally many. */
static bool narrow(int32_t left, int32_t right, int64_t seqlen_k)
{
	return left < FA_CUDA_WINDOW_MAX && right < FA_CUDA_WINDOW_MAX &&
	       ((int64_t)left + right + 1) * 2 <= seqlen_k;
}

static int64_t keys_seen(const struct fa_cuda_attention *args)
{
	const bool left = args->window_left < FA_CUDA_WINDOW_MAX;
	const bool right = args->window_right < FA_CUDA_WINDOW_MAX;
	int64_t keys = args->seqlen_k, window;

	if (left && right) {
		window = (int64_t)args->window_left + args->window_right + 1;
		return window < keys ? window : keys;
	}
	if (left || right)
		keys -= (args->seqlen_q < args->seqlen_k ? args->seqlen_q : args->seqlen_k) / 2;
	return keys;
}

/* A thread block takes about BLOCK_NS, or one unit: higher priority gets an SM only when it
 * ends. */
#define BLOCK_NS 200000
#define SM_FLOPS_PER_NS 6000 /* of an H200 */

/* @pairs: (row, key) pairs of the launch. */
static double work_ns(const struct fa_cuda_chip *chip, const struct fa_cuda_launch *launch,
                      double pairs)
{
	const double flops = 2.0 * pairs * (launch->kernel->dim + launch->kernel->dim_v);

	return flops / SM_FLOPS_PER_NS / (chip->sms > 0 ? chip->sms : 1);
}

/* Upper estimate of the keys that a row sees. What lists and bits hide does not count: a client may
 * write them at any time, and lists may name more key blocks than they have columns. */
static double keys_estimated(const struct fa_cuda_launch *launch)
{
	const struct fa_cuda_attention *args = &launch->args;
	const struct fa_cuda_mask *mask = &launch->masked.mask;
	const double keys = (double)keys_seen(args), tokens = mask->pattern_tokens;

	if (launch->kernel->kind != FA_CUDA_MASKED || !mask->pattern_tokens)
		return keys;
	/* Keys behind a row count as local, too. */
	return fmin(keys, (ceil(ceil(args->seqlen_k / tokens) / mask->pattern_stride) +
	                   mask->pattern_local) *
	                                  tokens +
	                          args->window_right);
}

/* The share of @keys per row that lists show if each column is named once. */
static double listed_share(const struct fa_cuda_launch *launch, double keys)
{
	const struct fa_cuda_mask *mask = &launch->masked.mask;

	if (launch->kernel->kind != FA_CUDA_MASKED || !mask->block_rows)
		return 1;
	return fmin(1, (double)mask->n_columns * mask->block_rows * mask->block_keys /
	                       (launch->args.seqlen_q * keys));
}

static void chain(const struct fa_cuda_chip *chip, struct fa_cuda_launch *launch)
{
	struct fa_cuda_attention *args = &launch->args;
	uint32_t units;
	int64_t blocks;
	double pairs, keys = keys_estimated(launch);
	bool listed;

	/* All blocks of rows run at once: a pair would take longer than its longer block. */
	args->pairs = launch->kernel->kind != FA_CUDA_FULL &&
	              (launch->kernel->kind != FA_CUDA_MASKED ||
	               (args->window_left < FA_CUDA_WINDOW_MAX) !=
	                       (args->window_right < FA_CUDA_WINDOW_MAX)) &&
	              !narrow(args->window_left, args->window_right, args->seqlen_k) &&
	              (int64_t)args->blocks_m * args->triples > chip->sms;
	args->units_m = args->pairs ? (args->blocks_m + 1) / 2 : args->blocks_m;
	launch->grid = (uint32_t)args->units_m * (uint32_t)args->triples;
	/* Blocks that all run at once need no order. */
	listed = args->cu_seqlens_q && chip->sms > 0 && launch->grid > (uint32_t)chip->sms &&
	         fa_cuda_ragged_plan(launch, &units, &pairs);
	if (listed)
		launch->grid = units;
	else
		pairs = (double)launch->grid * launch->kernel->rows * (args->pairs ? 2 : 1) * keys;
	launch->work_ns = (uint64_t)work_ns(chip, launch, pairs);
	if (chip->sms <= 0 || (args->cu_seqlens_q && !listed))
		return;
	blocks = (int64_t)((double)launch->work_ns * listed_share(launch, keys) / BLOCK_NS + 1) *
	         chip->sms;
	/* It is dealt for this grid, so nothing may cut the grid later. */
	if (listed && blocks > (int64_t)chip->sms * FA_CUDA_PREEMPT_BLOCKS_AN_SM)
		blocks = (int64_t)chip->sms * FA_CUDA_PREEMPT_BLOCKS_AN_SM;
	if (listed && blocks > FA_CUDA_RAGGED_BLOCKS_MAX)
		blocks = FA_CUDA_RAGGED_BLOCKS_MAX;
	if (blocks < launch->grid)
		launch->grid = (uint32_t)blocks;
	if (listed && units > 0)
		launch->list_units = (units + launch->grid - 1) / launch->grid * launch->grid;
}

/* Key blocks of the longest sequence. */
static int64_t key_blocks(const struct fa_attention_params *params)
{
	return (params->seqlen_k + params->blocks.keys - 1) / params->blocks.keys;
}

static struct fa_cuda_mask mask(const struct fa_attention_params *params)
{
	const struct fa_attention_blocks *blocks = &params->blocks;
	const struct fa_attention_pattern *pattern = &params->pattern;
	const struct fa_attention_bits *bits = &params->bits;

	return (struct fa_cuda_mask){
		.offsets = blocks->offsets,
		.columns = blocks->columns,
		.offsets_batch = blocks->offsets_stride_batch,
		.offsets_head = blocks->offsets_stride_head,
		.columns_batch = blocks->columns_stride_batch,
		.columns_head = blocks->columns_stride_head,
		.n_columns = (int32_t)blocks->n_columns,
		.block_rows = blocks->rows,
		.block_keys = blocks->keys,
		.pattern_tokens = pattern->block_tokens,
		.pattern_local = pattern->local_blocks,
		.pattern_stride = pattern->vert_stride,
		.pattern_step = pattern->head_step,
		.pattern_first = pattern->first_head,
		.bits = bits->words,
		.bits_batch = bits->stride_batch,
		.bits_head = bits->stride_head,
		.bits_row = bits->stride_row,
		.row_words = bits->row_words,
	};
}

int fa_cuda_attention_plan_on(const struct fa_cuda_chip *chip, const struct fa_cuda_kernel *kernel,
                              const struct fa_attention_params *params, char *text,
                              size_t text_bytes, struct fa_cuda_launch *ret_launch)
{
	struct fa_cuda_launch launch = { .kernel = kernel };
	struct fa_cuda_attention *args = &launch.args;
	int64_t blocks_m, slices, triples;

	if (params->seqlen_q > FA_CUDA_SEQLEN_MAX)
		return fail(text, text_bytes, "seqlen_q is %lld, the GPU kernels take at most %d",
		            (long long)params->seqlen_q, FA_CUDA_SEQLEN_MAX);
	if (params->seqlen_k > FA_CUDA_SEQLEN_MAX)
		return fail(text, text_bytes, "seqlen_k is %lld, the GPU kernels take at most %d",
		            (long long)params->seqlen_k, FA_CUDA_SEQLEN_MAX);

	if (params->blocks.rows && key_blocks(params) > FA_CUDA_MASK_BLOCKS_MAX)
		return fail(text, text_bytes,
		            "seqlen_k %lld has %lld key blocks of %d, GPU kernels take at most %d",
		            (long long)params->seqlen_k, (long long)key_blocks(params),
		            params->blocks.keys, FA_CUDA_MASK_BLOCKS_MAX);

	blocks_m = (params->seqlen_q + kernel->rows - 1) / kernel->rows;
	slices = (params->head_dim_v + kernel->dim_v - 1) / kernel->dim_v;
	if (__builtin_mul_overflow((int64_t)params->batch * params->heads, slices, &triples) ||
	    triples > INT32_MAX || blocks_m * triples > INT32_MAX)
		return fail(text, text_bytes,
		            "batch %d, heads %d and seqlen_q %lld need more than %d blocks",
		            params->batch, params->heads, (long long)params->seqlen_q, INT32_MAX);

	*args = (struct fa_cuda_attention){
		.q = tensor(params, &params->q),
		.k = tensor(params, &params->k),
		.v = tensor(params, &params->v),
		.out = tensor(params, &params->out),
		.lse = params->lse,
		.lse_stride_batch = params->cu_seqlens_q ? 0 : params->lse_stride_batch,
		.lse_stride_token = params->lse_stride_token,
		.lse_stride_head = params->lse_stride_head,
		.cu_seqlens_q = params->cu_seqlens_q,
		.cu_seqlens_k = params->cu_seqlens_k,
		.alibi_slopes = params->alibi_slopes,
		.sinks = params->sinks,
		.seqlen_q = (int32_t)params->seqlen_q,
		.seqlen_k = (int32_t)params->seqlen_k,
		.heads = params->heads,
		.group = params->heads / params->kv_heads,
		.head_dim = params->head_dim,
		.head_dim_v = params->head_dim_v,
		.scale_log2 = (float)(params->scale * M_LOG2E),
		.aligned = params_aligned(params),
		.blocks_m = (int32_t)blocks_m,
		.slices = (int32_t)slices,
		.triples = (int32_t)triples,
		.section = section(chip, kernel, params, (int32_t)triples),
		.longest_last = kernel->kind != FA_CUDA_FULL,
	};
	window(params, &args->window_left, &args->window_right);
	fa_cuda_attention_cap(args, params->scale, params->softcap);
	if (kernel->kind == FA_CUDA_MASKED)
		launch.masked.mask = mask(params);
	launch.grid = (uint32_t)(blocks_m * triples);
	if (kernel->keys) {
		launch.n_maps = FA_CUDA_MAPS;
		make_maps(kernel, params, launch.maps);
		chain(chip, &launch);
	}
	*ret_launch = launch;
	return 0;
}

/* Columns that the kernel multiplies per (row, key), weighted by kind. */
static int64_t cost(const struct fa_cuda_kernel *kernel, const struct fa_attention_params *params)
{
	static const int64_t weight[] = {
		[FA_CUDA_FULL] = 20, [FA_CUDA_BAND] = 21, [FA_CUDA_WINDOW] = 22,
		[FA_CUDA_CAP] = 23,  [FA_CUDA_RICH] = 24, [FA_CUDA_MASKED] = 24
	};
	const int64_t slices = (params->head_dim_v + kernel->dim_v - 1) / kernel->dim_v;
	enum fa_cuda_kind kind = kernel->kind;
	int32_t left, right;

	window(params, &left, &right);
	if (kind == FA_CUDA_WINDOW && narrow(left, right, params->seqlen_k) &&
	    (int64_t)left + right + 1 <= WINDOW_KEYS)
		kind = FA_CUDA_FULL;
	return slices * (kernel->dim + kernel->dim_v) * weight[kind] * (kernel->keys ? 1 : 2);
}

/* @kernel has smaller blocks than @other, and all of them run at once: then its launch is
 * shorter. */
static bool divides_more(const struct fa_cuda_chip *chip, const struct fa_cuda_kernel *kernel,
                         const struct fa_cuda_kernel *other,
                         const struct fa_attention_params *params)
{
	const int64_t slices = (params->head_dim_v + kernel->dim_v - 1) / kernel->dim_v;
	const int64_t blocks = (params->seqlen_q + kernel->rows - 1) / kernel->rows * slices;

	return kernel->keys && kernel->seqlen_k_max < INT32_MAX && kernel->rows < other->rows &&
	       blocks <= chip->sms && blocks * params->batch <= (int64_t)chip->sms / params->heads;
}

const struct fa_cuda_kernel *fa_cuda_attention_kernel(const struct fa_cuda_chip *chip,
                                                      const struct fa_attention_params *params)
{
	const struct fa_cuda_kernel *best = NULL;

	for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
		const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];

		if (fa_cuda_kernel_runs(kernel, chip) && fa_cuda_kernel_covers(kernel, params) &&
		    params->seqlen_k <= kernel->seqlen_k_max &&
		    (!best || cost(kernel, params) < cost(best, params) ||
		     (cost(kernel, params) == cost(best, params) &&
		      divides_more(chip, kernel, best, params))))
			best = kernel;
	}
	return best;
}

int fa_cuda_attention_plan(const struct fa_cuda_chip *chip,
                           const struct fa_attention_params *params, char *text, size_t text_bytes,
                           struct fa_cuda_launch *ret_launch)
{
	const struct fa_cuda_kernel *best = NULL;

	if (params->e4m3)
		return fail(text, text_bytes,
		            "q, k and v of e4m3 are not supported on a GPU: fp32, fp16 or bf16");
	best = fa_cuda_attention_kernel(chip, params);
	if (best && fa_cuda_packed_plan(chip, best, params, ret_launch))
		return 0;
	if (fa_cuda_has_chunks(params))
		return fail(text, text_bytes,
		            "chunk_tokens %lld is not supported by GPU kernels: rewrite the batch",
		            (long long)params->chunk_tokens);
	if (params->prefix_lengths)
		return fail(text, text_bytes,
		            "prefix_lengths are not supported by GPU kernels: rewrite the batch");
	if (!best && fa_attention_mask_name(params))
		return fail(text, text_bytes,
		            "%s are not supported on a GPU with dtype %d and head_dim %d: fp16 or "
		            "bf16, "
		            "and at most 256",
		            fa_attention_mask_name(params), (int)params->dtype, params->head_dim);
	if (!best)
		return fail(text, text_bytes,
		            "no GPU kernel for dtype %d, head_dim %d and head_dim_v %d on compute "
		            "capability %d.%d with %d bytes of shared memory",
		            (int)params->dtype, params->head_dim, params->head_dim_v,
		            chip->arch / 10, chip->arch % 10, chip->shared_bytes_max);
	return fa_cuda_attention_plan_on(chip, best, params, text, text_bytes, ret_launch);
}
