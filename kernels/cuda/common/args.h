/*
 * What an attention kernel is given: one plain struct, passed by value. Filled by
 * fa_cuda_attention_plan() alone, so kernels trust every field. Strides are in
 * bytes; [b], [token], [h] of a tensor of [batch][token][head][dim]. Ragged
 * batches have stride_batch 0 and start at cu_seqlens[b] tokens.
 */
#pragma once

#include <stdint.h>

struct fa_cuda_tensor {
	const void *data;
	int64_t stride_batch, stride_token, stride_head;
};

/*
 * How a launch itself says that it has ended (done.h). The counter is of all launches that
 * run one after another with it; it is never set back, so that each launch knows from where
 * it counts.
 */
struct fa_cuda_done {
	/* Of a launch behind a gate (gate.h): it does nothing, and tells nobody, if this word of the
	 * device's memory is gate_run. 0: there is no gate. */
	const uint64_t *shut;
	uint64_t gate_run;
	uint64_t *word; /* of the host's memory; NULL: nobody is told */
	uint64_t value; /* that the word gets */
	/* The same for a client: all these words of the host's memory, on 16 bytes, get early_value.
	 * NULL: there are none. */
	uint32_t *early;
	uint32_t early_value;
	/* Where the launch can (paged-plan.h): so many parts end, each on its own, and part p is
	 * told in word[p] and, of the early words, in p, p + parts, ... The counter stays as it is.
	 * 0: all ends at once. */
	uint32_t parts;
	uint64_t *counter; /* blocks that have ended */
	uint64_t last;     /* what it is when all of the launch's blocks but one have counted */
};

/* A kernel that waits for a word of a client's, for those behind it in its stream (gate.h). */
struct fa_cuda_gate {
	const uint64_t *word; /* of the host's memory, a slot of a timeline: open from value on */
	uint64_t value;
	const uint64_t *stop; /* of the host's memory: given up if no less than turn */
	uint64_t turn;        /* above that of every earlier one of the stream */
	uint64_t patience_ns; /* given up after that */
	uint64_t *shut;       /* of the device's memory: gets run if it was given up, which
	                       * others of the same run then are, too */
	uint64_t run;         /* not 0 */
	/* Of the host's memory: gets turn if it is given up and none of its run was before. */
	uint64_t *report;
};

#define FA_CUDA_DONE_PARTS 8  /* at most */
#define FA_CUDA_EARLY_WORDS 8 /* as FA_COMPLETION_DEVICE_WORDS */

/* What a block of threads has left undone. */
struct fa_cuda_yield_record {
	uint32_t block; /* which of the first launch */
	uint32_t done;  /* of its blocks of rows that see a key */
	uint32_t left;  /* tiles of the next, whose state is saved; 0: it has not begun */
	uint32_t slot;  /* of the state, in the low half; FA_CUDA_YIELD_BROKEN */
};

#define FA_CUDA_YIELD_BROKEN 0x10000u /* rows are to be computed again (sm90/recompute.h) */
#define FA_CUDA_YIELD_RECORDS 16384   /* blocks of a launch that can yield, at most */

/* Behind it the states, [2][slots]. Zeros at first. */
struct fa_cuda_yield_area {
	uint64_t counts; /* records, and in the high half states; 0 between launches */
	uint64_t unused[31];
	struct fa_cuda_yield_record records[2][FA_CUDA_YIELD_RECORDS];
};

/* How a launch may end early (yield.h). A launch that may tells its end itself. */
struct fa_cuda_yield {
	const uint64_t *word; /* of the device's memory; NULL: it never does */
	uint64_t turn;        /* it does when the word is no less */
	void *area;           /* struct fa_cuda_yield_area, of launches in order */
	uint64_t *report;     /* of the host's memory: how many records there are */
	uint32_t slots;       /* of each side */
	uint32_t side;        /* written; the other is read */
	uint32_t resumed;     /* block b goes on with record b */
	uint32_t blocks;      /* of the first launch */
};

/* Bounds that keep positions, and sums of two of them, within int32. */
#define FA_CUDA_SEQLEN_MAX ((int32_t)1 << 29)
#define FA_CUDA_WINDOW_MAX ((int32_t)1 << 30)

#define FA_CUDA_CAP_POWERS 5

/*
 * The order is that in which a block of decode comes to need them, by what it fetches at once: 64
 * bytes of what a launch is given, whose first 48 are, on sm_90, the first such piece. A warp waits
 * 66 clocks for each when it first looks, and 125 where all warps do, on an H200; and before any of
 * a step's K and V is under way there is nothing else to do. In no order, these waits were an
 * eighth of a warp's cycles in decode of 1 x 1k by ncu's samples; on an H100 it took 9.05 us after
 * 9.3 without (a race, no rows).
 */
struct fa_cuda_attention {
	struct fa_cuda_done done; /* the caller's; plans leave it empty */

	int32_t aligned; /* every row of q, k, v and out starts on 16 bytes */
	int32_t group;   /* query heads that share a KV head */
	int32_t head_dim, head_dim_v;
	struct fa_cuda_tensor q;

	struct fa_cuda_tensor k, out; /* out is written */

	const float *alibi_slopes; /* [heads] or NULL */
	const float *sinks;        /* [heads] or NULL */
	/* Row i sees [i + n_k - n_q - window_left, i + n_k - n_q + window_right]:
	 * FA_CUDA_WINDOW_MAX is unbounded, causal is a window_right of 0. */
	int32_t window_left, window_right;
	float scale_log2; /* scale / ln 2 */
	float cap_in;     /* soft cap: logit = cap_out * tanh(cap_in * dot); 0: none */
	float cap_out;    /* softcap / ln 2 */
	/* Where it is negative, the logit is also dot times a polynomial in dot^2 - cap_square, to a
	 * relative 2^-17: softcap.h. The first is the constant, not 0. */
	float cap_square;
	float *lse; /* may be NULL */
	int64_t lse_stride_token, lse_stride_head;

	struct fa_cuda_tensor v;
	int64_t lse_stride_batch;
	const uint32_t *cu_seqlens_q, *cu_seqlens_k; /* [batch + 1], or NULL both */
	float cap_powers[FA_CUDA_CAP_POWERS];
	int32_t seqlen_q, seqlen_k; /* of each sequence; if ragged, of the longest */
	int32_t heads;

	/* The grid is one-dimensional. Blocks of rows are numbered inside sections of
	 * (sequence, head, slice of V) triples, whose K and V fit in L2 together. */
	int32_t blocks_m;     /* blocks of query rows, for the longest sequence */
	int32_t slices;       /* of V's columns */
	int32_t triples;      /* batch * heads * slices */
	int32_t section;      /* triples of a section */
	int32_t longest_last; /* rows further down see more keys: start with them */

	/* Kernels whose blocks of threads compute several blocks of rows, one after
	 * another: units of one block, or of two if @pairs, the n-th and the n-th from
	 * last, which together see as many keys as any such pair. Block b of n computes
	 * units b, b + n, ... of all. */
	int32_t pairs;
	int32_t units_m; /* of a triple */

	struct fa_cuda_yield yield; /* the caller's, as done */
	/* cap_out is that times the first of cap_powers. (Behind those, decode at d64 spills.) */
	float cap_large;
};
