/*
 * A request to test: random tensors between unmapped pages, with poison in all other memory, run on
 * every instruction set of the machine, and compared with fp64.
 */
#pragma once

#include "kernels/attention.h"

#include <stddef.h>

#define PROBLEM_BATCH_MAX 16
#define PROBLEM_HEADS_MAX 128

enum problem_layout {
	PROBLEM_TOKEN_MAJOR, /* [batch][token][head][dim], ends at an unmapped page */
	PROBLEM_HEAD_MAJOR,  /* [batch][head][token][dim], ends at an unmapped page */
	PROBLEM_PADDED,      /* gaps everywhere, of NaN; begins behind an unmapped page */
	PROBLEM_LAYOUTS,
};

/* Scales differ between sequences, tokens, heads. */
#define PROBLEM_SCALES 1u
#define PROBLEM_SCALES_BATCH 2u
#define PROBLEM_SCALES_TOKEN 4u
#define PROBLEM_SCALES_HEAD 8u

/* The request's features; zero means none. Window bounds: 0 is unbounded, n is n - 1. */
struct problem_spec {
	enum fa_attention_dtype dtype;
	bool e4m3;              /* q, k and v are codes; dtype is out's */
	unsigned int scales[3]; /* of q, k and v: PROBLEM_SCALES*; 0: none */
	int32_t batch, heads, kv_heads, head_dim, head_dim_v;
	int64_t n_q, n_k;
	uint32_t lengths_q[PROBLEM_BATCH_MAX], lengths_k[PROBLEM_BATCH_MAX]; /* if ragged */
	bool ragged, causal, alibi, sinks, no_lse;
	int64_t left_1, right_1, chunk;
	uint32_t prefix[PROBLEM_BATCH_MAX]; /* if prefixed */
	bool prefixed;
	int32_t block_rows, block_keys; /* 0: no blocks */
	bool bits;
	int32_t density;         /* per cent of blocks, and of bits, that are seen */
	bool of_heads, of_batch; /* heads, or sequences, have blocks and bits of their own */
	bool hostile;            /* lists have entries that do not count */
	struct fa_attention_pattern pattern;
	float softcap;
	float scale;      /* 0: 1 / sqrt(head_dim) */
	float magnitude;  /* magnitude of q and k; 0: 1 */
	double tolerance; /* factor on the usual tolerance; 0: 1 */
	enum problem_layout layout;
};

struct problem_memory {
	char *map;
	size_t map_bytes;
	char *data;
	size_t bytes;
};

struct problem {
	struct problem_spec spec;
	struct fa_attention_params params;
	struct problem_memory q, k, v, out, lse;
	struct problem_memory offsets, columns, words, scales[3];
	uint32_t cu_q[PROBLEM_BATCH_MAX + 1], cu_k[PROBLEM_BATCH_MAX + 1];
	float slopes[PROBLEM_HEADS_MAX], sinks[PROBLEM_HEADS_MAX];
};

/* ---- random.c: random numbers, one state for the process */

void problem_seed(uint64_t seed);
uint64_t problem_random(uint64_t below);
double problem_normal(void);
bool problem_one_in(uint64_t n);
uint32_t problem_pick(uint32_t low, uint32_t high); /* low <= result <= high */

/* ---- problem.c */

void problem_init(struct problem *problem, const struct problem_spec *spec);
void problem_deinit(struct problem *problem);

/* Describes the problem in words, for a failed check. */
const char *problem_describe(const struct problem *problem);

/* The instruction sets of the machine, widest first, always with "generic"; ends with NULL. */
const struct fa_cpu_isa *const *problem_isas(void);

/* Returns true if kernels round weights to the tensors' type, not only their output. */
bool problem_rounds_weights(const struct fa_cpu_isa *isa, enum fa_attention_dtype dtype);

enum problem_order {
	PROBLEM_ASCENDING,
	PROBLEM_DESCENDING,
	PROBLEM_SHUFFLED,
};

/* Poisons out and lse, then runs all tiles with poisoned scratch and workspace of the stated
 * sizes. */
void problem_run(struct problem *problem, const struct fa_cpu_isa *isa, enum problem_order order);

/* Fails the test unless out and lse are right and nothing else of their memory changed. */
void problem_check(struct problem *problem, const struct fa_cpu_isa *isa);

/* Makes a problem, runs and checks it on every instruction set, and frees it. */
void problem_test(const struct problem_spec *spec);
