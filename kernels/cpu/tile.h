/*
 * A tile of many query rows.
 */
#pragma once

#include "kernels/cpu/mask.h"

#define PANEL (VEC_PANEL_VECTORS * VEC_LANES)
#define PANELS (FA_CPU_TILE_ROWS_MAX / PANEL)
#define KEY_STEP 8 /* a multiple of VEC_PANEL_SCALARS, and even for pairs */
/* Strides from key to key are odd numbers of cache lines. Constant, so that several keys' addresses
 * are one register and offsets; keys of at most K_NARROW words are closer, to span fewer memory
 * pages. */
#define K_NARROW 256
#define K_STRIDE_NARROW (K_NARROW + 16)
#define K_STRIDE_WIDE (FA_ATTENTION_HEAD_DIM_MAX + 16)
#define V_STRIDE (FA_ATTENTION_HEAD_DIM_V_MAX + 16)

_Static_assert(PANELS *PANEL == FA_CPU_TILE_ROWS_MAX, "panels fill a tile");
_Static_assert(KEY_STEP % VEC_PANEL_SCALARS == 0 && SCORE_KEYS % KEY_STEP == 0, "steps fit");

/* Words: a float, or a pair of bf16 that is moved as one. */
struct scratch {
	float q[PANELS * FA_ATTENTION_HEAD_DIM_MAX * PANEL]; /* [panel][word of d][row]: tile_q() */
	float o[PANELS][FA_ATTENTION_HEAD_DIM_V_MAX][PANEL]; /* [panel][dim of v][row] */
	float s[SCORE_KEYS][PANEL];
	float k[SCORE_KEYS * K_STRIDE_WIDE];              /* [key][word of d] */
	float v[SCORE_KEYS * V_STRIDE];                   /* [key or pair][dim of v] */
	float highest[PANELS][PANEL], sum[PANELS][PANEL]; /* running, in log2 */
	/* Sums of o and weights over earlier rounds (score_carry()), relative to far_highest. */
	float far[PANELS][FA_ATTENTION_HEAD_DIM_V_MAX][PANEL];
	float lost[PANELS][FA_ATTENTION_HEAD_DIM_V_MAX][PANEL];
	float far_sum[PANELS][PANEL], lost_sum[PANELS][PANEL], far_highest[PANELS][PANEL];
	float slope[PANELS][PANEL];                     /* ALiBi, in log2 */
	float position[PANEL], low[PANEL], high[PANEL]; /* relative to the round */
	float rescale[PANEL];
	/* The round's masks: bit j % 32 of [j / 32][row] is key j. */
	uint32_t seen[MASK_WORDS][FA_CPU_TILE_ROWS_MAX];
	uint32_t token_seen[FA_CPU_TILE_ROWS_MAX * MASK_WORDS]; /* [token][word] */
	float row[FA_ATTENTION_ROW_MAX + VEC_LANES];
};

_Static_assert(sizeof(struct scratch) <= FA_CPU_SCRATCH_BYTES_MAX, "scratch is bounded");
_Static_assert(sizeof(struct scratch) >= FA_CPU_FEW_ROWS_SCRATCH_MAX, "the other kernel uses it");

struct tile {
	const struct fa_cpu_job *job;
	struct scratch *scratch;
	struct score_map map;
	bool paired;
	int32_t q_words;
	int32_t k_stride;   /* words; K_STRIDE_NARROW or K_STRIDE_WIDE */
	int32_t v_stride;   /* words */
	int64_t round;      /* its first key, a multiple of SCORE_KEYS */
	bool v_has_special; /* V holds an infinity or NaN */
	bool tree;          /* the round has keys of the tree */
	bool masked;        /* scratch->seen is valid */
	bool carried;       /* far has sums */
};

/* A panel's words of Q, [word of d][PANEL]. Panels are adjacent. */
static inline float *tile_q(const struct tile *tile, int32_t panel)
{
	return tile->scratch->q + (int64_t)panel * tile->q_words * PANEL;
}
