/*
 * The contract of every attention kernel, on every backend: parameters as plain
 * C, and what the numbers mean. Needs libc alone. The CPU kernels (kernels/cpu)
 * define the meaning; all others must match them.
 *
 * For each sequence b, query head h, query row i (of n_q), key row j (of n_k):
 *   s[i,j] = scale * <q[i], k[j]>                     kv head = h / (heads / kv_heads)
 *   s      = softcap * tanh(s / softcap)              if softcap > 0
 *   s     += alibi_slopes[h] * -|j - (i + n_k - n_q)| if alibi_slopes
 *   s      = -inf unless j is visible from i
 *   lse[i] = ln(sum_j exp(s[i,j]) + exp(sinks[h]))    the sink only if sinks
 *   out[i] = sum_j exp(s[i,j] - lse[i]) * v[j]
 * Key j is visible from row i if, with p = i + n_k - n_q (aligned to the bottom
 * right), j <= p if causal, j >= p - window_left if window_left >= 0, and
 * j <= p + window_right if window_right >= 0. A row that sees no key gives zeros
 * and lse -inf, with sinks too lse = sinks[h]. Softmax is in fp32, products are
 * accumulated in fp32, lse is the natural logarithm. Keys that a row does not see
 * never change it, not even by an infinity or a NaN in their K or V.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FA_ATTENTION_HEAD_DIM_MAX 256   /* q and k; a multiple of 8 */
#define FA_ATTENTION_HEAD_DIM_V_MAX 512 /* v and out; a multiple of 8 */

enum fa_attention_dtype {
	FA_ATTENTION_F32 = 1,
	FA_ATTENTION_F16 = 2,
	FA_ATTENTION_BF16 = 3,
};

/* [batch][token][head][dim], strides in elements, dim has stride 1. Ragged
 * batches have no batch stride: sequences follow one another along tokens. */
struct fa_attention_tensor {
	void *data;
	int64_t stride_batch, stride_token, stride_head;
};

struct fa_attention_params {
	enum fa_attention_dtype dtype; /* of q, k, v and out */
	int32_t batch;                 /* sequences */
	int32_t heads, kv_heads;       /* heads is a multiple of kv_heads */
	int32_t head_dim, head_dim_v;
	int64_t seqlen_q, seqlen_k;   /* tokens of each sequence; if ragged, of the longest */
	const uint32_t *cu_seqlens_q; /* [batch + 1], ascending from 0; NULL: not ragged */
	const uint32_t *cu_seqlens_k; /* both or none */
	struct fa_attention_tensor q, k, v, out;
	float *lse; /* may be NULL */
	int64_t lse_stride_batch, lse_stride_head, lse_stride_token;
	float scale;
	float softcap; /* 0: none */
	bool causal;
	int64_t window_left, window_right; /* -1: unbounded */
	const float *alibi_slopes;         /* [heads] or NULL */
	const float *sinks;                /* [heads] or NULL */
};

/*
 * Says whether a kernel covers @params; reads cu_seqlens and no tensor. Returns 0,
 * or -ENOTSUP / -EINVAL with a sentence in @text that names the feature or the
 * field, its value and the bound. Pointers and strides are not judged: bounds are
 * the caller's affair.
 */
int fa_attention_check(const struct fa_attention_params *params, char *text, size_t text_bytes);

/* Multiply-adds count two; only visible (row, key) pairs count. */
double fa_attention_flops(const struct fa_attention_params *params);

/* ---- CPU kernels. Pure functions but for *workspace, any thread; @isa never changes. */

struct fa_cpu_isa; /* one row: a name and its kernels */

/*
 * Picks the widest instruction set that this machine has, or the one that the
 * environment variable FAD_CPU_ISA names (avx512bf16, avx512, avx2, generic).
 * Returns 0, -EINVAL for an unknown name, -ENOTSUP if the machine lacks it.
 */
int fa_cpu_isa_select(char *text, size_t text_bytes, const struct fa_cpu_isa **ret_isa);
const char *fa_cpu_isa_name(const struct fa_cpu_isa *isa);

/*
 * A request is cut into independent tiles (sequence, head or group of heads,
 * block of query rows, and with few of these part of the keys); running every tile
 * 0…n-1 once, in any order, on any threads, completes the request; out and lse are the
 * same to the bit, however many threads there are. A tile takes
 * well under 100 ms wherever the sequence length permits, so that requests can share
 * threads. Tiles of a causal request are numbered
 * longest first (ragged, or with parts of the keys: within each sequence).
 */
int64_t fa_cpu_attention_tiles(const struct fa_cpu_isa *isa,
                               const struct fa_attention_params *params);

/* Scratch that one thread needs for one tile: the same whatever the lengths
 * (O(tile)), 64-byte aligned. At most FA_CPU_SCRATCH_BYTES_MAX. */
#define FA_CPU_SCRATCH_BYTES_MAX (4u << 20)
size_t fa_cpu_attention_scratch_bytes(const struct fa_cpu_isa *isa,
                                      const struct fa_attention_params *params);

/*
 * What the tiles of a request share where they have parts of the keys: 64-byte aligned, the
 * request's own, from fa_cpu_attention_begin(), before the first tile, to the end of the
 * last. 0: none is needed. At most FA_CPU_WORKSPACE_BYTES_MAX, whatever the lengths.
 */
#define FA_CPU_WORKSPACE_BYTES_MAX (32u << 20)
size_t fa_cpu_attention_workspace_bytes(const struct fa_cpu_isa *isa,
                                        const struct fa_attention_params *params);
void fa_cpu_attention_begin(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                            void *workspace);

/*
 * Computes one tile of checked params. Every few hundred keys it looks whether
 * *@stop was set (with any atomic store; NULL: it never is), and if so ends with
 * the tile's rows of out and lse not written, or not all of them, and returns false:
 * then the request has no result.
 */
bool fa_cpu_attention_tile(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                           void *workspace, int64_t tile, void *scratch, const bool *stop);
