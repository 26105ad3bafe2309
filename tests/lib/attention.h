/*
 * Attention cases: random tensors in one buffer, their request, and an fp64 reference, which
 * follows the formula in kernels/attention.h and shares no code with any kernel.
 */
#pragma once

#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>

#define FA_CASE_SEQUENCES_MAX 8
#define FA_CASE_HEADS_MAX 64

struct fa_case {
	/*
	 * Inputs. fa_case_plan() replaces 0: fp32, one sequence, one head, dim 64, as many keys as
	 * queries.
	 */
	enum fa_wire_dtype dtype;
	int64_t batch, heads, kv_heads, head_dim, head_dim_v, seqlen_q, seqlen_k;
	bool ragged; /* sequence b has about (b + 1) / batch of seqlen_q and seqlen_k */
	bool causal, lse, alibi, sinks;
	bool windowed; /* false: unbounded */
	int64_t window_left, window_right;
	uint64_t chunk_tokens;
	bool prefixed; /* sequence b has a prefix of prefix_lengths[b] keys */
	uint32_t prefix_lengths[FA_CASE_SEQUENCES_MAX];
	int64_t block_rows, block_keys; /* 0: no blocks; about half of them are seen */
	bool bits;                      /* of which about half are set */
	bool mask_heads;                /* heads have blocks and bits of their own */
	uint32_t pattern_tokens, pattern_local, pattern_stride; /* 0: no pattern */
	int32_t pattern_step;
	float scale, softcap;
	uint64_t seed;

	/* Set by fa_case_plan(). */
	uint64_t offset_q, offset_k, offset_v, offset_out, offset_lse;
	uint64_t offset_offsets, offset_columns, offset_bits;
	int64_t row_blocks, columns, row_words;
	uint64_t bytes; /* of the buffer */
	int64_t tokens_q, tokens_k;
	uint32_t cu_seqlens_q[FA_CASE_SEQUENCES_MAX + 1], cu_seqlens_k[FA_CASE_SEQUENCES_MAX + 1];
	float alibi_slopes[FA_CASE_HEADS_MAX], sink_values[FA_CASE_HEADS_MAX];
};

void fa_case_plan(struct fa_case *attention);

/* Random q, k, v; poison in out and lse. @data has @attention->bytes. */
void fa_case_fill(const struct fa_case *attention, void *data);

/* The request points into @attention. All tensors lie in @buffer from byte @base on. */
struct fa_wire_message fa_case_message(const struct fa_case *attention, uint32_t buffer,
                                       uint64_t base, uint32_t stream, uint64_t value);

/*
 * Compares out and lse with the reference. Returns the largest error in units of what the dtype
 * allows (right if at most 1); infinity for NaN, poison, or a finite number where none is allowed.
 */
double fa_case_error(const struct fa_case *attention, const void *data);

/* Returns true if out is still poisoned. */
bool fa_case_untouched(const struct fa_case *attention, const void *data);

/* ---- number formats */
size_t fa_case_dtype_bytes(enum fa_wire_dtype dtype);
double fa_case_dtype_load(enum fa_wire_dtype dtype, const void *data, int64_t index);
void fa_case_dtype_store(enum fa_wire_dtype dtype, void *data, int64_t index, double value);
