/*
 * A synthetic text and model: tokens, their query, key and value in each layer, and attention in
 * double precision. Deterministic: each process knows what others wrote.
 */
#pragma once

#include <stdint.h>

enum {
	DEMO_LAYERS = 2,
	DEMO_HEADS = 4,
	DEMO_KV_HEADS = 2,
	DEMO_DIM = 64,
	DEMO_TEXT_TOKENS = 4000, /* prefilled */
	DEMO_BRANCH_TOKENS = 64, /* per branch */
	DEMO_ROTARY_BASE = 10000,
};

/* @n tokens: the text's first @shared, then branch @branch's. */
struct demo_text {
	int branch;
	int64_t shared, n;
	/* [n][heads][DEMO_DIM] per layer; q and k rotated and rounded to fp16. */
	double *q[DEMO_LAYERS], *k[DEMO_LAYERS], *v[DEMO_LAYERS];
};

int demo_text_new(int branch, int64_t shared, int64_t n, struct demo_text **ret_text);
void demo_text_free(struct demo_text *text);

/* Stores token @i in fp16, not rotated: q [DEMO_HEADS][DEMO_DIM], k and v
 * [DEMO_KV_HEADS][DEMO_DIM]. */
void demo_text_store(const struct demo_text *text, int layer, int64_t i, uint16_t *ret_q,
                     uint16_t *ret_k, uint16_t *ret_v);

/*
 * Compares @out, fp16 [n][DEMO_HEADS][DEMO_DIM] of tokens [first, first + n), with dense causal
 * attention. Raises *error and *fraction to the largest difference, and difference / tolerance; NaN
 * makes both infinite. -ENOMEM.
 */
int demo_text_check(const struct demo_text *text, int layer, int64_t first, int64_t n,
                    const uint16_t *out, double *error, double *fraction);
