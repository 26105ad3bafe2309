/*
 * A paged request to test: a pool that is NaN except for visible tokens, tables whose unused
 * entries are invalid, and a comparison of attention with fp64, on every instruction set of the
 * machine.
 */
#pragma once

#include "kernels/paged.h"
#include "tests/kernels/problem.h"

#define PAGED_BATCH_MAX 16
#define PAGED_WILD 2147480000u /* an entry that nobody may follow */

/* The request's features; zero means none. Window bounds: 0 is unbounded, n is n - 1. */
struct paged_spec {
	enum fa_attention_dtype dtype;
	int32_t batch, heads, kv_heads, head_dim, head_dim_v, page_tokens;
	uint32_t n_new[PAGED_BATCH_MAX], lengths[PAGED_BATCH_MAX], first[PAGED_BATCH_MAX];
	enum fa_paged_store store;
	bool head_scales; /* scales of codes: per head, else per token */
	bool v_in_k, layer_major, causal, alibi, sinks, no_lse, deterministic;
	int32_t gaps; /* alignment of rows of Q and out: 1: 16 or 32 bytes; 2: 3 elements */
	/* Sequence b begins with prefix_pages[b] pages of an earlier sequence, prefix_of_1[b] -
	 * 1. */
	int32_t prefix_of_1[PAGED_BATCH_MAX];
	uint32_t prefix_pages[PAGED_BATCH_MAX];
	int64_t left_1, right_1, chunk;
	uint32_t prefix[PAGED_BATCH_MAX]; /* if prefixed */
	bool prefixed;
	struct fa_attention_pattern pattern;
	float softcap, scale; /* scale 0: 1 / sqrt(head_dim) */
	bool tree;            /* every second sequence has a tree, if it may */
	/* This many infinities and NaNs in V, and half as many in K, mostly at tokens that only
	 * some rows see. */
	int32_t broken;
	float v_size; /* multiplies V; 0: 1 */
	bool v_positive;
	bool raised; /* logits of some keys are up to 400 above others (plain pages) */
};

struct paged_problem {
	struct paged_spec spec;
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	struct fa_paged_request request; /* a request for attention */
	size_t pool_bytes;
	uint32_t cu_new[PAGED_BATCH_MAX + 1], before[PAGED_BATCH_MAX];
	uint32_t table_start[PAGED_BATCH_MAX], tree_start[PAGED_BATCH_MAX];
	uint32_t *table, *tree, *positions;
	uint32_t *spare; /* slots of pages that are in no table */
	uint32_t n_spare;
	float *k_scales, *v_scales; /* scales per head */
	float slopes[PROBLEM_HEADS_MAX], sinks[PROBLEM_HEADS_MAX];
	void *q, *out, *lse;
	size_t q_bytes, out_bytes, lse_bytes;
	/* exact and naive: [token][head][dim]; exact_lse: [token][head] */
	double *exact, *naive, *exact_lse;
};

void paged_init(struct paged_problem *problem, const struct paged_spec *spec);
void paged_deinit(struct paged_problem *problem);
const char *paged_describe(const struct paged_problem *problem);

/* Returns the address of element 0 of a token's K or V, by the contract. */
char *paged_k(const struct paged_problem *problem, int32_t layer, int32_t b, int64_t token,
              int32_t head);
char *paged_v(const struct paged_problem *problem, int32_t layer, int32_t b, int64_t token,
              int32_t head);

/* Returns the scale of a token's K or V: the token's own, or the head's. */
float *paged_scale(const struct paged_problem *problem, int32_t layer, int32_t b, int64_t token,
                   int32_t head, bool v);

/* Fills out and lse with poison. */
void paged_poison(struct paged_problem *problem);

/* What a kernel rounds to the tensors' type, besides its output. */
enum paged_rounding {
	PAGED_ROUNDS_OUTPUT,
	PAGED_ROUNDS_WEIGHTS,      /* FlashAttention's rule applies */
	PAGED_ROUNDS_WEIGHTS_FAST, /* the same, with the GPU's exponential */
	PAGED_ROUNDS_KEYS,         /* the same; and codes times their scales become bf16 */
};

/* Checks out and lse, and poisons them again; @by: the kernel's name. */
void paged_judge(struct paged_problem *problem, const char *by, enum paged_rounding rounding);

/* Defined by the test: reports a failure, and does not return. */
void __attribute__((format(printf, 1, 2), noreturn)) paged_fail(const char *format, ...);

/* ---- paged-run.c: runs on the CPU's kernels, in tests with cmocka */

/* Runs all tiles of any request in a shuffled order, with poisoned scratch and workspace. */
void paged_run(const struct fa_cpu_isa *isa, const struct fa_paged_request *request);

/* Runs the attention of @problem on @isa and fails the test unless it is right. */
void paged_check(struct paged_problem *problem, const struct fa_cpu_isa *isa);

/* Makes a problem of @spec, checks it on every instruction set, and frees it. */
void paged_test(const struct paged_spec *spec);
