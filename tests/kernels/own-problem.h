/*
 * A request over a client's own pages to test: pages that are NaN except for tokens of sequences,
 * between unmapped memory; table entries that nobody may follow are invalid; and a comparison of
 * results with fp64.
 */
#pragma once

#include "kernels/paged.h"

#include <stddef.h>

#define OWN_BATCH_MAX 8
#define OWN_HEADS_MAX 64

enum own_layout {
	OWN_NHD,         /* K and V: [page][token][head][dim] */
	OWN_HND,         /* [page][head][token][dim] */
	OWN_INTERLEAVED, /* one tensor: [page][K, V][token][head][dim] */
	OWN_PADDED,      /* NHD with gaps of 3 elements everywhere */
	OWN_LAYOUTS,
};

/* Zero means no such feature. Window bounds: 0 is unbounded, n is n - 1. */
struct own_spec {
	enum fa_attention_dtype dtype;
	int32_t batch, heads, kv_heads, head_dim, head_dim_v, page_tokens;
	int32_t n_q[OWN_BATCH_MAX], lengths[OWN_BATCH_MAX];
	enum own_layout layout;
	bool e4m3, scales;
	bool even; /* no cu_q: each sequence has n_q[0] rows */
	bool causal, alibi, sinks, no_lse, deterministic;
	int64_t left_1, right_1, chunk;
	int32_t prefix[OWN_BATCH_MAX]; /* if prefixed */
	bool prefixed;
	struct fa_attention_pattern pattern;
	float softcap;
};

struct own_memory {
	char *map;
	size_t map_bytes;
	char *data;
	size_t bytes;
};

struct own_problem {
	struct own_spec spec;
	struct fa_paged_own pages;
	struct fa_paged_request request;
	struct own_memory k, v, q, out, lse, table, lengths, cu_q, k_scales, v_scales, prefixes;
	float slopes[OWN_HEADS_MAX], sinks[OWN_HEADS_MAX];
	/* exact and naive: [row][head][dim]; exact_lse: [row][head] */
	double *exact, *naive, *exact_lse;
};

/* A batch of one, of few and of many new rows, for tests to vary. */
extern const struct own_spec own_usual;

/* Stores a new random request; K and V keep what expectations of it are computed from. */
void own_init(struct own_problem *problem, const struct own_spec *spec);
void own_deinit(struct own_problem *problem);
const char *own_describe(const struct own_problem *problem);

/* Returns the address of element 0 of a row of K or V. */
char *own_row(const struct own_problem *problem, bool v, int64_t page, int64_t token, int32_t head);

/* Fills out and lse with poison. */
void own_poison(struct own_problem *problem);

/* Fails the test unless out and lse are right, and nothing else of their memory was written; @rounds: the
 * kernel rounds weights to dtype. */
void own_judge(struct own_problem *problem, const char *by, bool rounds_weights);
