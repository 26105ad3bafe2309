/*
 * Arguments of an attention kernel, passed by value. fa_cuda_attention_plan() fills them, so
 * kernels trust every field. Strides are in bytes, of [batch][token][head][dim]. Ragged batches
 * have stride_batch 0 and start at cu_seqlens[b] tokens.
 */
#pragma once

#include <stdint.h>

struct fa_cuda_tensor {
	const void *data;
	int64_t stride_batch, stride_token, stride_head;
};

/* How a launch reports completion (done.h). Launches share the counter, which is never reset. */
struct fa_cuda_done {
	/* The launch does nothing if this word of device memory equals gate_run (gate.h). NULL: no
	 * gate. */
	const uint64_t *shut;
	uint64_t gate_run;
	uint64_t *word; /* host memory; NULL: no report */
	uint64_t value;
	/* The client's words in host memory, 16-byte aligned; each gets client_value. NULL:
	 * none. */
	uint32_t *client_words;
	uint32_t client_value;
	/* Parts of the output that complete separately (paged-plan.h): part p is reported in
	 * word[p] and in client words p, p + parts, ...; the counter is unused. 0: one report. */
	uint32_t parts;
	uint64_t *counter; /* finished blocks */
	uint64_t last;     /* value before the last block counts itself */
};

/* Holds back its stream until a client's word allows it (gate.h). */
struct fa_cuda_gate {
	const uint64_t *word; /* host memory, a timeline's slot; open from value on */
	uint64_t value;
	const uint64_t *stop; /* host memory; the gate gives up once it is >= turn */
	uint64_t turn;
	uint64_t patience_ns;
	/* Device memory. A gate that gives up writes run here, for later gates of the run. */
	uint64_t *shut;
	uint64_t run; /* not 0 */
	/* Host memory; gets the turn of the run's first gate that gives up. */
	uint64_t *report;
};

#define FA_CUDA_DONE_PARTS 8
#define FA_CUDA_CLIENT_WORDS 8 /* as FA_COMPLETION_DEVICE_WORDS */

struct fa_cuda_preempt_record {
	uint32_t block; /* the block's number in the first launch */
	uint32_t done;  /* finished blocks of rows that see a key */
	/* Tiles left of the next block of rows, with saved state; 0: it has not begun. */
	uint32_t left;
	uint32_t slot; /* low half: the saved state's slot; and FA_CUDA_PREEMPT_BROKEN */
};

#define FA_CUDA_PREEMPT_BROKEN 0x10000u /* rows must be recomputed (sm90/recompute.h) */
#define FA_CUDA_PREEMPT_RECORDS 16384

struct fa_cuda_preempt_area {
	uint64_t counts; /* records; in the high half states; 0 between launches */
	uint64_t unused[31];
	struct fa_cuda_preempt_record records[2][FA_CUDA_PREEMPT_RECORDS];
};

/* How a launch can be preempted (preempt.h); it then reports completion itself. */
struct fa_cuda_preempt {
	const uint64_t *word; /* device memory; NULL: never preempted */
	uint64_t turn;        /* preempted once the word has it */
	/* A struct fa_cuda_preempt_area, shared by launches that run in order. */
	void *area;
	uint64_t *report; /* host memory; number of records */
	uint32_t slots;   /* for states, per side */
	uint32_t side;
	uint32_t resumed; /* block b resumes record b */
	uint32_t blocks;  /* of the first launch */
};

/* Positions, and sums of two positions, stay within int32. */
#define FA_CUDA_SEQLEN_MAX ((int32_t)1 << 29)
#define FA_CUDA_WINDOW_MAX ((int32_t)1 << 30)

#define FA_CUDA_CAP_POWERS 5

/* A unit of a ragged batch: a triple's rows from @row on. */
struct fa_cuda_ragged_unit {
	uint32_t triple, row;
};

#define FA_CUDA_RAGGED_NONE (~0u) /* the row of no unit */
#define FA_CUDA_RAGGED_UNITS_MAX 16384
#define FA_CUDA_RAGGED_BLOCKS_MAX 4096
#define FA_CUDA_LIST_BYTES_MAX (8 * (FA_CUDA_RAGGED_UNITS_MAX + FA_CUDA_RAGGED_BLOCKS_MAX))

/* A decode block reads the fields in this order. The GPU fetches 64 bytes of arguments at once, on
 * sm_90 first 48. */
struct fa_cuda_attention {
	struct fa_cuda_done done; /* filled by the caller */

	int32_t aligned; /* rows of q, k, v and out are 16-byte aligned */
	int32_t group;
	int32_t head_dim, head_dim_v;
	struct fa_cuda_tensor q;

	struct fa_cuda_tensor k, out;

	const float *alibi_slopes; /* [heads] or NULL */
	const float *sinks;        /* [heads] or NULL */
	/* Row i sees [i + n_k - n_q - window_left, i + n_k - n_q + window_right].
	 * FA_CUDA_WINDOW_MAX: unbounded; causal: window_right 0. */
	int32_t window_left, window_right;
	float scale_log2; /* scale / ln 2 */
	float cap_in;     /* soft cap: logit = cap_out * tanh(cap_in * dot); 0: none */
	float cap_out;    /* softcap / ln 2 */
	/* Below this dot^2 the logit is dot times a polynomial in dot^2 - cap_square (softcap.h).
	 * The first power is the constant, not 0. */
	float cap_square;
	float *lse; /* may be NULL */
	int64_t lse_stride_token, lse_stride_head;

	struct fa_cuda_tensor v;
	int64_t lse_stride_batch;
	const uint32_t *cu_seqlens_q, *cu_seqlens_k; /* [batch + 1], or both NULL */
	float cap_powers[FA_CUDA_CAP_POWERS];
	int32_t seqlen_q, seqlen_k; /* if ragged, of the longest sequence */
	int32_t heads;

	/* Blocks of rows are numbered by sections of (sequence, head, slice of V) triples whose K
	 * and V fit in L2 together. */
	int32_t blocks_m; /* for the longest sequence */
	int32_t slices;
	int32_t triples; /* batch * heads * slices */
	int32_t section;
	int32_t longest_last; /* later rows see more keys: start first */

	/* A unit is a block of rows or, if @pairs, the n-th and the n-th from last, which see about
	 * equally many keys together. Block b of n computes units b, b + n, ... */
	int32_t pairs;
	int32_t units_m; /* per triple */

	struct fa_cuda_preempt preempt; /* filled by the caller */
	/* cap_out / cap_powers[0]. Before cap_powers it makes decode at d64 spill. */
	float cap_large;

	/* Length of the list of units that ends where cu_seqlens_q begins, and which
	 * FA_CUDA_RAGGED_NONE may end early; 0: none. Filled by the caller. */
	uint32_t list_units;
};
