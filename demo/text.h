/*
 * A made-up text and a made-up model of it: what token stands where, the query, key and
 * value that a layer makes of a token, and, in double precision, what attention over the
 * text is. All of it follows from a number, so that every process knows what others wrote.
 */
#pragma once

#include <stdint.h>

enum {
	DEMO_LAYERS = 2,
	DEMO_HEADS = 4,
	DEMO_KV_HEADS = 2,
	DEMO_DIM = 64,
	DEMO_TEXT_TOKENS = 4000, /* what is prefilled */
	DEMO_WAY_TOKENS = 64,    /* what each way goes on with */
	DEMO_ROTARY_BASE = 10000,
};

/*
 * The first @shared tokens of the text and then those of the way @way, of which there are
 * many: @n in all.
 */
struct demo_text {
	int way;
	int64_t shared, n;
	/* Of each layer, [n][heads][DEMO_DIM]: q and k rotated, rounded to fp16. */
	double *q[DEMO_LAYERS], *k[DEMO_LAYERS], *v[DEMO_LAYERS];
};

/* 0 or -ENOMEM. */
int demo_text_new(int way, int64_t shared, int64_t n, struct demo_text **ret_text);
void demo_text_free(struct demo_text *text);

/*
 * What token i's layer makes before it is rotated, in fp16: to [DEMO_HEADS][DEMO_DIM], k and
 * v to [DEMO_KV_HEADS][DEMO_DIM] each.
 */
void demo_text_store(const struct demo_text *text, int layer, int64_t i, uint16_t *ret_q,
                     uint16_t *ret_k, uint16_t *ret_v);

/*
 * Compares the results, fp16 [n][DEMO_HEADS][DEMO_DIM], of tokens [first, first + n) with
 * dense attention over all up to each. *error: the largest difference so far, *part: and in
 * parts of what rounding can cost; NaN makes both infinite. 0 or -ENOMEM.
 */
int demo_text_check(const struct demo_text *text, int layer, int64_t first, int64_t n,
                    const uint16_t *out, double *error, double *part);
