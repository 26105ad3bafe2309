#include "demo/text.h"

#include "client/faclient.h"
#include "demo/reference.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VOCABULARY 32000

/*
 * Unit roundoff of fp16, and relative error of sums in fp32. Weights count twice: they may be
 * rounded, and rest on rotated numbers, which fp32 may round differently.
 */
#define ROUNDOFF 4.9e-4
#define SUMS 2e-6

/* Puts the weight on a few tokens; otherwise all results are near 0. */
#define QUERY_SIZE 3.0

enum part {
	Q,
	K,
	V
};

/* ---- the model */

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t token_at(const struct demo_text *text, int64_t i)
{
	int branch = i < text->shared ? 0 : text->branch;

	return mix((uint64_t)branch << 32 | (uint64_t)i) % VOCABULARY;
}

/* The numbers are about normal, with variance 1, rounded to fp16. */
static void make(uint64_t token, int layer, enum part part, int heads, uint16_t *ret_numbers)
{
	uint64_t state = mix(token << 8 | (uint64_t)layer << 2 | part);

	for (size_t j = 0; j < (size_t)(heads * DEMO_DIM); j++) {
		double sum = 0;

		for (int i = 0; i < 4; i++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			sum += (double)(state >> 40) / (1 << 24);
		}
		sum = (sum - 2) * sqrt(3);
		demo_store(ret_numbers, FA_F16, j, part == Q ? QUERY_SIZE * sum : sum);
	}
}

void demo_text_store(const struct demo_text *text, int layer, int64_t i, uint16_t *ret_q,
                     uint16_t *ret_k, uint16_t *ret_v)
{
	uint64_t token = token_at(text, i);

	make(token, layer, Q, DEMO_HEADS, ret_q);
	make(token, layer, K, DEMO_KV_HEADS, ret_k);
	make(token, layer, V, DEMO_KV_HEADS, ret_v);
}

/* ---- rotary embedding */

static void load(const uint16_t *numbers, int heads, double *ret_numbers)
{
	for (size_t j = 0; j < (size_t)(heads * DEMO_DIM); j++)
		ret_numbers[j] = demo_load(numbers, FA_F16, j);
}

/* The cache stores fp16. */
static double round_to_half(double value)
{
	uint16_t half;

	demo_store(&half, FA_F16, 0, value);
	return demo_load(&half, FA_F16, 0);
}

static void rotate(double *numbers, int heads, int64_t position)
{
	for (int j = 0; j < DEMO_DIM / 2; j++) {
		double angle = (double)position * pow(DEMO_ROTARY_BASE, -2.0 * j / DEMO_DIM);
		double c = cos(angle), s = sin(angle);

		for (int h = 0; h < heads; h++) {
			double *x = numbers + h * DEMO_DIM + j, *y = x + DEMO_DIM / 2;
			double a = *x, b = *y;

			*x = round_to_half(a * c - b * s);
			*y = round_to_half(b * c + a * s);
		}
	}
}

/* ---- the text */

void demo_text_free(struct demo_text *text)
{
	if (!text)
		return;
	for (int l = 0; l < DEMO_LAYERS; l++) {
		free(text->q[l]);
		free(text->k[l]);
		free(text->v[l]);
	}
	free(text);
}

static void fill(struct demo_text *text, int layer)
{
	uint16_t q[DEMO_HEADS * DEMO_DIM], k[DEMO_KV_HEADS * DEMO_DIM], v[DEMO_KV_HEADS * DEMO_DIM];

	for (int64_t i = 0; i < text->n; i++) {
		double *q_at = text->q[layer] + i * DEMO_HEADS * DEMO_DIM;
		double *k_at = text->k[layer] + i * DEMO_KV_HEADS * DEMO_DIM;

		demo_text_store(text, layer, i, q, k, v);
		load(q, DEMO_HEADS, q_at);
		load(k, DEMO_KV_HEADS, k_at);
		load(v, DEMO_KV_HEADS, text->v[layer] + i * DEMO_KV_HEADS * DEMO_DIM);
		rotate(q_at, DEMO_HEADS, i);
		rotate(k_at, DEMO_KV_HEADS, i);
	}
}

int demo_text_new(int branch, int64_t shared, int64_t n, struct demo_text **ret_text)
{
	const size_t bytes = sizeof(double) * (size_t)n * DEMO_DIM;
	struct demo_text *text = calloc(1, sizeof(*text));

	if (!text)
		return -ENOMEM;
	text->branch = branch;
	text->shared = shared;
	text->n = n;
	for (int l = 0; l < DEMO_LAYERS; l++) {
		text->q[l] = malloc(bytes * DEMO_HEADS);
		text->k[l] = malloc(bytes * DEMO_KV_HEADS);
		text->v[l] = malloc(bytes * DEMO_KV_HEADS);
		if (!text->q[l] || !text->k[l] || !text->v[l]) {
			demo_text_free(text);
			return -ENOMEM;
		}
		fill(text, l);
	}
	*ret_text = text;
	return 0;
}

/* ---- attention */

static void compare(const double *expected, const double *magnitude, const uint16_t *out, size_t n,
                    double *error, double *fraction)
{
	for (size_t j = 0; j < n; j++) {
		double difference = fabs(demo_load(out, FA_F16, j) - expected[j]);
		double allowed = ROUNDOFF * (2 * magnitude[j] + fabs(expected[j])) +
		                 SUMS * magnitude[j];

		if (isnan(difference))
			difference = INFINITY;
		*error = fmax(*error, difference);
		*fraction = fmax(*fraction, difference / allowed);
	}
}

int demo_text_check(const struct demo_text *text, int layer, int64_t first, int64_t n,
                    const uint16_t *out, double *error, double *fraction)
{
	const size_t numbers = (size_t)n * DEMO_HEADS * DEMO_DIM;
	struct demo_sequence sequence = {
		.q = text->q[layer] + first * DEMO_HEADS * DEMO_DIM,
		.k = text->k[layer],
		.v = text->v[layer],
		.n_q = n,
		.n_k = first + n,
		.heads = DEMO_HEADS,
		.kv_heads = DEMO_KV_HEADS,
		.dim = DEMO_DIM,
		.causal = true,
	};
	double *expected = malloc(2 * sizeof(double) * numbers);
	int r = -ENOMEM;

	if (expected)
		r = demo_reference(&sequence, expected, expected + numbers);
	if (r == 0)
		compare(expected, expected + numbers, out, numbers, error, fraction);
	free(expected);
	return r;
}
