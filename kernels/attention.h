/*
 * The contract of every attention kernel, on every backend: the parameters as plain C, and what
 * they mean. Needs only libc. The CPU kernels (kernels/cpu) are the reference; all others must
 * match them.
 *
 * For each sequence b, query head h, query row i (of n_q), key row j (of n_k):
 *   s[i,j] = scale * <q[i], k[j]>                     kv head = h / (heads / kv_heads)
 *   s      = softcap * tanh(s / softcap)              if softcap > 0
 *   s     += alibi_slopes[h] * -|j - (i + n_k - n_q)| if alibi_slopes
 *   s      = -inf unless j is visible from i
 *   lse[i] = ln(sum_j exp(s[i,j]) + exp(sinks[h]))    the sink only if sinks
 *   out[i] = sum_j exp(s[i,j] - lse[i]) * v[j]
 * With p = i + n_k - n_q (aligned to the bottom right), key j is visible from row i if all of these
 * hold:
 *   j <= p, or j < prefix_lengths[b]               if causal; the latter only if prefix_lengths
 *   j >= p - window_left                           if window_left >= 0
 *   j <= p + window_right                          if window_right >= 0
 *   floor(j / chunk_tokens) = floor(p / chunk_tokens)  if chunk_tokens > 0
 *   blocks, pattern and bits show it               those of them that are given
 * A row without visible keys gives zeros and lse -inf, or lse = sinks[h] if there are sinks.
 * Softmax is in fp32, products are accumulated in fp32, lse is a natural logarithm. A key that is
 * not visible from a row never changes that row, not even if its K or V holds an infinity or a NaN.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FA_ATTENTION_HEAD_DIM_MAX 576   /* q and k; a multiple of 8 */
#define FA_ATTENTION_HEAD_DIM_V_MAX 512 /* v and out; a multiple of 8 */
#define FA_ATTENTION_ROW_MAX 576        /* any of them */

enum fa_attention_dtype {
	FA_ATTENTION_F32 = 1,
	FA_ATTENTION_F16 = 2,
	FA_ATTENTION_BF16 = 3,
};

/* [batch][token][head][dim]; strides in elements, dim has stride 1. A ragged batch has no batch
 * stride: its sequences follow one another along the tokens. */
struct fa_attention_tensor {
	void *data;
	int64_t stride_batch, stride_token, stride_head;
};

/*
 * Scales of E4M3 codes: an element is code * scale, in fp32. The scale of a sequence's token and
 * head, a query head for q and a KV head for k and v, is at
 *   data[sequence * stride_batch + token * stride_token + head * stride_head]
 * and in a ragged batch tokens are counted from the batch's first. A stride of 0 shares the scale, so
 * that all strides of 0 give one for the tensor. data is in memory of the device.
 *
 * A scale may be any number: products follow IEEE, so that a negative one turns signs, and one of
 * zero, infinity or NaN gives what it gives. Codes 0x7f and 0xff are NaN. What a key's codes and
 * scales hold does not matter to rows that do not see it; a row's own matter to it alone.
 */
struct fa_attention_scales {
	const float *data;                               /* NULL: 1 */
	int64_t stride_batch, stride_token, stride_head; /* in elements */
};

/*
 * A block-sparse mask in compressed rows (CSR). Row i is in row block floor(i / rows), key j in key
 * block floor(j / keys); both are counted within the sequence. Row block r of a sequence and a query
 * head sees the key blocks in columns[offsets[r]] to columns[offsets[r + 1] - 1], which ascend.
 *
 * Both arrays are in memory of the device, and a client may write them at any time. Whatever they
 * hold, kernels read nothing but these arrays and the request's tensors:
 *   - an offset counts as the nearest number from 0 to n_columns, and a list that ends before it
 *     begins is empty;
 *   - only the first ceil(n_k / keys) entries of a list count;
 *   - a column that is negative, not below ceil(n_k / keys), or not above all columns before it
 *     that count, is ignored.
 */
struct fa_attention_blocks {
	int32_t rows, keys;     /* tokens of a block, each 64 or 128; 0: no such mask */
	const int32_t *offsets; /* [batch][head][ceil(seqlen_q / rows) + 1] */
	const int32_t *columns; /* [batch][head][n_columns] */
	int64_t n_columns;
	/* In elements; 0: shared by all sequences, or heads. */
	int64_t offsets_stride_batch, offsets_stride_head;
	int64_t columns_stride_batch, columns_stride_head;
};

/*
 * Local blocks and a stride, by numbers. A row at position p, in query head h, sees key j if
 *   floor(p / block_tokens) - floor(j / block_tokens) < local_blocks, or
 *   floor(j / block_tokens) + first + 1 is a multiple of vert_stride,
 * where first = (first_head + h) * head_step, or, if head_step is negative, the same number for KV
 * heads: floor((first_head + h) / group) * -head_step.
 */
struct fa_attention_pattern {
	int32_t block_tokens; /* a multiple of 16; 0: no pattern */
	int32_t local_blocks, vert_stride;
	int32_t head_step;  /* 0: all heads have the same pattern */
	int32_t first_head; /* the number of query head 0, where heads are divided among processes */
};

/*
 * A bit for each row and key: row i of a sequence sees key j if bit j % 32 of word j / 32 of its row
 * is set. Keys from 32 * row_words on are hidden. words is in memory of the device, and a client may
 * write it at any time: kernels then compute something, but read no other memory.
 */
struct fa_attention_bits {
	const uint32_t *words; /* [batch][head][row][row_words]; NULL: no such mask */
	int64_t row_words;
	int64_t stride_batch, stride_head, stride_row; /* in words; 0: shared */
};

struct fa_attention_params {
	enum fa_attention_dtype dtype; /* of q, k, v and out; with e4m3 of out alone */
	/* q, k and v are codes of E4M3, whose strides count bytes. Weights are not rounded. */
	bool e4m3;
	int32_t batch;           /* sequences */
	int32_t heads, kv_heads; /* heads is a multiple of kv_heads */
	int32_t head_dim, head_dim_v;
	int64_t seqlen_q, seqlen_k;   /* tokens of each sequence; if ragged, of the longest */
	const uint32_t *cu_seqlens_q; /* [batch + 1], ascending from 0; NULL: not ragged */
	const uint32_t *cu_seqlens_k; /* given together with cu_seqlens_q */
	struct fa_attention_tensor q, k, v, out;
	struct fa_attention_scales q_scales, k_scales, v_scales; /* only with e4m3 */
	float *lse;                                              /* may be NULL */
	int64_t lse_stride_batch, lse_stride_head, lse_stride_token;
	float scale;
	float softcap; /* 0: none */
	bool causal;
	int64_t window_left, window_right; /* -1: unbounded */
	const float *alibi_slopes;         /* [heads] or NULL */
	const float *sinks;                /* [heads] or NULL; finite or -inf: no sink */
	int64_t chunk_tokens;              /* 0: rows see all chunks */
	/* [batch], host memory, or NULL for zeros: a prefix-LM's prefixes; no effect unless causal */
	const uint32_t *prefix_lengths;
	struct fa_attention_blocks blocks;
	struct fa_attention_pattern pattern;
	struct fa_attention_bits bits;
};

/* Returns 0 if a kernel covers @params, else -ENOTSUP or -EINVAL with a sentence in @text that
 * names the feature or the field, its value and the bound. Reads host arrays and no tensor. Does not
 * check pointers and strides: the caller must know that the tensors are in bounds. */
int fa_attention_check(const struct fa_attention_params *params, char *text, size_t text_bytes);

/* Checks a pattern, as fa_attention_check() does. */
int fa_attention_pattern_check(const struct fa_attention_pattern *pattern, char *text,
                               size_t text_bytes);

/* Returns the name of the first of blocks, pattern and bits that @params has, or NULL. */
static inline const char *fa_attention_mask_name(const struct fa_attention_params *params)
{
	return params->blocks.rows            ? "block-sparse masks"
	       : params->pattern.block_tokens ? "patterns of blocks"
	       : params->bits.words           ? "bit masks"
	                                      : NULL;
}

/* Counts the arithmetic: a multiply-add counts as two, and only visible (row, key) pairs count.
 * Blocks, pattern and bits are taken to hide nothing. */
double fa_attention_flops(const struct fa_attention_params *params);

/* ---- CPU kernels. Pure functions but for *workspace, any thread; @isa never changes. */

struct fa_cpu_isa; /* the kernels of one instruction set */

/* Chooses the widest instruction set that this machine has, or the one that the environment
 * variable FAD_CPU_ISA names (avx512bf16, avx512, avx2, generic). Returns 0, -EINVAL for an unknown
 * name, or -ENOTSUP if the machine lacks it. */
int fa_cpu_isa_select(char *text, size_t text_bytes, const struct fa_cpu_isa **ret_isa);
const char *fa_cpu_isa_name(const struct fa_cpu_isa *isa);

/* The number of independent tiles of a request. A tile is a block of query rows of a sequence and a
 * head or group of heads and, where there are few of these, a split of the keys. The request is
 * complete when every tile 0…n-1 has run once, in any order, on any threads; out and lse are the
 * same to the bit for any number of threads. A tile takes well under 100 ms wherever the sequence
 * length permits, so that requests can share threads. Tiles of a causal request are numbered
 * longest first (ragged, or with split keys: within each sequence). */
int64_t fa_cpu_attention_tiles(const struct fa_cpu_isa *isa,
                               const struct fa_attention_params *params);

/* Returns the size of the scratch that one thread needs for one tile, 64-byte aligned. The size is
 * independent of the lengths (O(tile)), and at most FA_CPU_SCRATCH_BYTES_MAX. */
#define FA_CPU_SCRATCH_BYTES_MAX (4u << 20)
size_t fa_cpu_attention_scratch_bytes(const struct fa_cpu_isa *isa,
                                      const struct fa_attention_params *params);

/* Returns the size of the memory that the tiles of a request with split keys share; 0: none is
 * needed. The memory is 64-byte aligned and used by this request alone from
 * fa_cpu_attention_begin(), which comes before the first tile, to the end of the last tile. The
 * size is at most FA_CPU_WORKSPACE_BYTES_MAX, whatever the lengths. */
#define FA_CPU_WORKSPACE_BYTES_MAX (32u << 20)
size_t fa_cpu_attention_workspace_bytes(const struct fa_cpu_isa *isa,
                                        const struct fa_attention_params *params);
void fa_cpu_attention_begin(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                            void *workspace);

/* Computes one tile of checked params. Reads *@stop every few hundred keys (any atomic store may
 * set it; NULL: never set). Once it is set, returns false: the tile's rows of out and lse are then
 * not written, or only partly, and the request has no result. */
bool fa_cpu_attention_tile(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                           void *workspace, int64_t tile, void *scratch, const bool *stop);
