/* Textbook attention in double precision, without fad's code; number formats. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Dense, [token][head][dim]. */
struct demo_sequence {
	const double *q, *k, *v;
	int64_t n_q, n_k;
	int heads, kv_heads, dim;
	bool causal; /* the last row sees the last key */
};

/* Writes n_q * heads * dim results, and as many magnitudes: results for |v| instead of v.
 * -ENOMEM. */
int demo_reference(const struct demo_sequence *sequence, double *ret_out, double *ret_magnitude);

/* Counts visible pairs only. */
double demo_flops(const struct demo_sequence *sequence);

/* @dtype is an enum fa_dtype. */
double demo_load(const void *data, uint32_t dtype, size_t index);
void demo_store(void *data, uint32_t dtype, size_t index, double value); /* rounds to nearest */
