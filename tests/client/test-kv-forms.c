/*
 * Writes without attention, several caches in one step, rotary embedding, V in K, prefixes too long
 * for a message.
 */
#include "client/faclient.h"
#include "tests/client/kv.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void fill_tags(uint32_t *tags, uint32_t n, uint32_t first)
{
	for (uint32_t i = 0; i < n; ++i)
		tags[i] = first + i;
}

static void test_two_caches(void **state)
{
	uint32_t tags[2][40];
	struct kv kvs[2];
	struct kv_item items[4], of[2][2];
	struct fa_step *step;
	uint64_t sequences[4];

	for (int c = 0; c < 2; ++c) {
		kv_init(&kvs[c], single_client, NULL, 0);
		fill_tags(tags[c], 40, 1 + (uint32_t)c * 100);
	}
	/* Items of the two caches alternate; those of one cache keep their order. */
	for (uint32_t i = 0; i < 4; ++i) {
		must(fa_sequence_create(single_client, kvs[i % 2].cache, &sequences[i]), "create");
		items[i] = (struct kv_item){ .sequence = sequences[i],
			                     .tags = tags[i % 2],
			                     .length = 10 + i,
			                     .n_new = 10 + i };
		of[i % 2][i / 2] = items[i];
	}
	must(kv_begin(&kvs[0], items, 4, &step), "begin");
	for (int c = 0; c < 2; ++c) {
		must(kv_attend(&kvs[c], step, of[c], 2, 0, true), "attend");
		kv_check_out(&kvs[c], of[c], 2);
	}
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
	for (uint32_t i = 0; i < 4; ++i)
		kv_check_sequence(&kvs[i % 2], sequences[i], tags[i % 2], 10 + i, 0);

	/* With several caches in a step, each layer must name its cache. */
	must(kv_begin(&kvs[0], items, 2, &step), "begin");
	{
		struct kv nowhere = kvs[0];

		nowhere.cache = 0;
		fa_check_eq(kv_attend(&nowhere, step, items, 1, 0, true), -EINVAL);
	}
	fa_step_free(step);
	for (int c = 0; c < 2; ++c) {
		must(fa_cache_remove(single_client, kvs[c].cache), "remove");
		kv_deinit(&kvs[c]);
	}
}

/* ---- small caches without kv.h: one layer, heads of DIM */

enum {
	DIM = 32,
	ROWS = 48,
	HEADS = 2,
};

struct hand {
	uint64_t cache, sequence;
	struct fa_buffer *buffer;
	float *q, *k, *v, *out;
};

static float random_number(uint32_t i)
{
	uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return (float)((int32_t)((x ^ x >> 31) >> 32) * (2.0 / 2147483648.0));
}

static void hand_init(struct hand *hand, uint32_t flags, uint32_t dim_v)
{
	struct fa_cache_options options = { .size = sizeof(options),
		                            .flags = flags,
		                            .dtype = FA_F32,
		                            .layers = 1,
		                            .kv_heads = HEADS,
		                            .head_dim = DIM,
		                            .head_dim_v = dim_v,
		                            .page_tokens = 32 };
	const size_t n = ROWS * HEADS * DIM;

	must(fa_cache_create(single_client, &options, &hand->cache), "cache");
	must(fa_sequence_create(single_client, hand->cache, &hand->sequence), "sequence");
	must(fa_buffer_new(single_client, 4 * n * sizeof(float), 0, &hand->buffer), "buffer");
	hand->q = fa_buffer_data(hand->buffer);
	hand->k = hand->q + n;
	hand->v = hand->k + n;
	hand->out = hand->v + n;
	for (uint32_t i = 0; i < 3 * n; ++i)
		hand->q[i] = random_number(i);
	memset(hand->out, 0xff, n * sizeof(float));
}

static void hand_deinit(struct hand *hand)
{
	must(fa_cache_remove(single_client, hand->cache), "remove");
	fa_buffer_free(hand->buffer);
}

static struct fa_tensor tensor(const struct hand *hand, const float *at, int64_t rows, int64_t dim)
{
	const int64_t shape[] = { rows, HEADS, dim };
	struct fa_tensor tensor;

	fa_tensor_init(&tensor, hand->buffer,
	               (uint64_t)((const char *)at - (const char *)fa_buffer_data(hand->buffer)),
	               FA_F32, 3, shape);
	return tensor;
}

static struct fa_step *begin(const struct hand *hand, uint32_t n)
{
	const struct fa_step_item item = { .sequence = hand->sequence, .n_new = n };
	struct fa_step_options options = { .size = sizeof(options), .n_items = 1, .items = &item };
	struct fa_step *step;

	must(fa_step_begin(single_client, &options, &step), "begin");
	return step;
}

/* Causal attention of ROWS rows over their own tokens; k, v: doubles, [ROWS][HEADS][dim]. */
static void check_out(const struct hand *hand, const double *q, const double *k, const double *v,
                      int dim_v)
{
	for (int i = 0; i < ROWS; ++i)
		for (int h = 0; h < HEADS; ++h) {
			double sum = 0, result[DIM] = {};

			for (int j = 0; j <= i; ++j) {
				double s = 0, weight;

				for (int d = 0; d < DIM; ++d)
					s += q[(i * HEADS + h) * DIM + d] *
					     k[(j * HEADS + h) * DIM + d];
				weight = exp(s / sqrt(DIM));
				sum += weight;
				for (int d = 0; d < dim_v; ++d)
					result[d] += weight * v[(j * HEADS + h) * dim_v + d];
			}
			for (int d = 0; d < dim_v; ++d) {
				float got = hand->out[(i * HEADS + h) * dim_v + d];

				if (!(fabs(got - result[d] / sum) <= 2e-5))
					fa_test_fail(__FILE__, __LINE__,
					             "row %d, head %d, %d: %.8g; expected %.8g", i,
					             h, d, got, result[d] / sum);
			}
		}
}

static void load(const float *from, double *to, int dim)
{
	for (int i = 0; i < ROWS * HEADS * dim; ++i)
		to[i] = from[i];
}

static void test_write(void **state)
{
	static double q[ROWS * HEADS * DIM], k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
	struct fa_sequence_copy copy = { .size = sizeof(copy) };
	struct fa_step_attend attend = { .size = sizeof(attend), .flags = FA_STEP_CAUSAL };
	struct fa_step *step;
	struct hand hand;

	hand_init(&hand, 0, 0);
	copy.sequence = hand.sequence;
	copy.k = tensor(&hand, hand.k, ROWS, DIM);
	copy.v = tensor(&hand, hand.v, ROWS, DIM);
	/* A write fails without a step, or if the step has not planned its tokens. */
	fa_check(fa_sequence_write(single_client, &copy, NULL) < 0);
	step = begin(&hand, ROWS);
	copy.first = 1;
	fa_check(fa_sequence_write(single_client, &copy, NULL) < 0);
	must(fa_step_abort(step, 0, NULL), "abort");
	fa_step_free(step);

	step = begin(&hand, ROWS);
	copy.first = 0;
	copy.k = tensor(&hand, hand.k, 20, DIM);
	copy.v = tensor(&hand, hand.v, 20, DIM);
	must(fa_sequence_write(single_client, &copy, NULL), "write");
	copy.first = 20;
	copy.k = tensor(&hand, hand.k + 20 * HEADS * DIM, ROWS - 20, DIM);
	copy.v = tensor(&hand, hand.v + 20 * HEADS * DIM, ROWS - 20, DIM);
	must(fa_sequence_write(single_client, &copy, NULL), "write");
	attend.q = tensor(&hand, hand.q, ROWS, DIM);
	attend.out = tensor(&hand, hand.out, ROWS, DIM);
	must(fa_step_attend(step, &attend, NULL), "attend");
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
	load(hand.q, q, DIM);
	load(hand.k, k, DIM);
	load(hand.v, v, DIM);
	check_out(&hand, q, k, v, DIM);

	copy.first = 7;
	copy.k = tensor(&hand, hand.out, 30, DIM);
	copy.v.buffer = NULL;
	must(fa_sequence_read(single_client, &copy, NULL), "read");
	fa_check(!memcmp(hand.out, hand.k + 7 * HEADS * DIM, 30 * HEADS * DIM * sizeof(float)));
	copy.first = 20;
	fa_check_eq(fa_sequence_read(single_client, &copy, NULL), -EINVAL);
	copy.layer = 1;
	copy.first = 0;
	fa_check_eq(fa_sequence_read(single_client, &copy, NULL), -EINVAL);
	hand_deinit(&hand);
}

static void test_v_in_k(void **state)
{
	enum {
		DIM_V = 24
	};
	static double q[ROWS * HEADS * DIM], k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM_V];
	struct fa_step_attend attend = { .size = sizeof(attend), .flags = FA_STEP_CAUSAL };
	struct fa_step *step;
	struct hand hand;

	hand_init(&hand, FA_CACHE_V_IN_K, DIM_V);
	attend.q = tensor(&hand, hand.q, ROWS, DIM);
	attend.k_new = tensor(&hand, hand.k, ROWS, DIM);
	attend.out = tensor(&hand, hand.out, ROWS, DIM_V);
	step = begin(&hand, ROWS);
	must(fa_step_attend(step, &attend, NULL), "attend");
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
	load(hand.q, q, DIM);
	load(hand.k, k, DIM);
	for (int i = 0; i < ROWS * HEADS; ++i)
		for (int d = 0; d < DIM_V; ++d)
			v[i * DIM_V + d] = k[i * DIM + d];
	check_out(&hand, q, k, v, DIM_V);
	hand_deinit(&hand);
}

static void rotate(double *x, const double *angles, int first, int dim, bool interleaved)
{
	for (int i = 0; i < ROWS; ++i)
		for (int h = 0; h < HEADS; ++h)
			for (int p = 0; p < dim / 2; ++p) {
				double *at = x + (i * HEADS + h) * DIM + first;
				double *a = at + (interleaved ? 2 * p : p);
				double *b = at + (interleaved ? 2 * p + 1 : p + dim / 2);
				double c = cos(angles[i * DIM / 2 + p]);
				double s = sin(angles[i * DIM / 2 + p]), old = *a;

				*a = old * c - *b * s;
				*b = *b * c + old * s;
			}
}

static void check_rotary(bool interleaved, int first, int dim, bool positions, bool tables)
{
	static double q[ROWS * HEADS * DIM], k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM];
	static double angles[ROWS * DIM / 2];
	const int64_t shape[] = { 2 * ROWS, dim / 2 };
	struct fa_step_attend attend = { .size = sizeof(attend), .flags = FA_STEP_CAUSAL };
	struct fa_sequence_copy copy = { .size = sizeof(copy) };
	const double base = tables ? 10000 : 500, scale = tables ? 1 : 0.5;
	struct fa_buffer *table;
	uint32_t where[ROWS];
	struct fa_step *step;
	struct hand hand;

	hand_init(&hand, 0, 0);
	must(fa_buffer_new(single_client, sizeof(float) * 4 * ROWS * DIM, 0, &table), "buffer");
	for (int i = 0; i < ROWS; ++i) {
		where[i] = positions ? (uint32_t)(2 * i + 1) : (uint32_t)i;
		for (int p = 0; p < dim / 2; ++p)
			angles[i * DIM / 2 + p] = where[i] * scale * pow(base, -2.0 * p / dim);
	}
	for (int i = 0; i < 2 * ROWS; ++i)
		for (int p = 0; p < dim / 2; ++p) {
			float *at = (float *)fa_buffer_data(table) + i * dim / 2 + p;

			at[0] = (float)cos(i * pow(base, -2.0 * p / dim));
			at[2 * ROWS * DIM] = (float)sin(i * pow(base, -2.0 * p / dim));
		}
	if (interleaved)
		attend.flags |= FA_STEP_ROTARY_INTERLEAVED;
	attend.rotary_dim = (uint32_t)dim;
	attend.rotary_first = (uint32_t)first;
	if (tables) {
		fa_tensor_init(&attend.cos, table, 0, FA_F32, 2, shape);
		fa_tensor_init(&attend.sin, table, sizeof(float) * 2 * ROWS * DIM, FA_F32, 2,
		               shape);
	} else {
		attend.rotary_base = base;
		attend.rotary_scale = scale;
	}
	if (positions)
		attend.positions = where;
	attend.q = tensor(&hand, hand.q, ROWS, DIM);
	attend.k_new = tensor(&hand, hand.k, ROWS, DIM);
	attend.v_new = tensor(&hand, hand.v, ROWS, DIM);
	attend.out = tensor(&hand, hand.out, ROWS, DIM);
	load(hand.q, q, DIM);
	load(hand.k, k, DIM);
	load(hand.v, v, DIM);
	rotate(q, angles, first, dim, interleaved);
	rotate(k, angles, first, dim, interleaved);

	step = begin(&hand, ROWS);
	must(fa_step_attend(step, &attend, NULL), "attend");
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
	check_out(&hand, q, k, v, DIM);

	/* Pages hold rotated keys: the copy returns rotated ones. */
	copy.sequence = hand.sequence;
	copy.k = tensor(&hand, hand.out, ROWS, DIM);
	must(fa_sequence_read(single_client, &copy, NULL), "read");
	for (int i = 0; i < ROWS * HEADS * DIM; ++i)
		fa_check(fabs(hand.out[i] - k[i]) < 2e-5);
	hand_deinit(&hand);
	fa_buffer_free(table);
}

static void test_rotary(void **state)
{
	for (int i = 0; i < 8; ++i)
		check_rotary(i & 1, i % 3 ? 0 : i & 1 ? 8 : 0, i & 1 ? 16 : DIM, i & 2, i & 4);
}

static void test_long_prefix(void **state)
{
	enum {
		STEP = 4096,
		N = 5 * STEP,
		FLOATS = 8 /* per token, K and V together */
	};
	struct fa_cache_options options = { .size = sizeof(options),
		                            .dtype = FA_F32,
		                            .layers = 1,
		                            .kv_heads = 1,
		                            .head_dim = FLOATS,
		                            .page_tokens = 256 };
	const int64_t shape[] = { STEP, 1, FLOATS };
	struct fa_step_options step_options = { .size = sizeof(step_options), .n_items = 1 };
	struct fa_step_attend attend = { .size = sizeof(attend) };
	struct fa_sequence_copy copy = { .size = sizeof(copy), .first = 4 * STEP };
	struct fa_prefix prefix = { .size = sizeof(prefix), .n_tokens = N };
	uint64_t cache, sequence, other, pages = 0, tokens = 0;
	uint32_t *ids = calloc(N, sizeof(*ids));
	struct fa_step_item item;
	struct fa_buffer *buffer;
	struct fa_step *step;
	float *k;

	fa_check(ids);
	must(fa_cache_create(single_client, &options, &cache), "cache");
	must(fa_sequence_create(single_client, cache, &sequence), "sequence");
	must(fa_buffer_new(single_client, 2 * STEP * FLOATS * sizeof(float), 0, &buffer), "buffer");
	k = fa_buffer_data(buffer);
	item = (struct fa_step_item){ .sequence = sequence, .n_new = STEP };
	step_options.items = &item;
	fa_tensor_init(&attend.k_new, buffer, 0, FA_F32, 3, shape);
	fa_tensor_init(&attend.v_new, buffer, STEP * FLOATS * sizeof(float), FA_F32, 3, shape);
	for (uint32_t i = 0; i < N; i += STEP) {
		for (uint32_t t = 0; t < STEP; ++t) {
			ids[i + t] = (i + t) * 7;
			k[t * FLOATS] = (float)(i + t);
		}
		must(fa_step_begin(single_client, &step_options, &step), "begin");
		must(fa_step_attend(step, &attend, NULL), "append");
		must(fa_step_commit(step, NULL, NULL), "commit");
		fa_step_free(step);
	}
	prefix.tokens = ids;
	must(fa_sequence_publish(single_client, sequence, &prefix, &pages), "publish");
	fa_check_eq(pages, N / 256);
	must(fa_sequence_remove(single_client, sequence), "free");
	must(fa_prefix_find(single_client, cache, &prefix, &tokens), "find");
	fa_check_eq(tokens, N);
	must(fa_sequence_create(single_client, cache, &other), "sequence");
	must(fa_sequence_attach(single_client, other, &prefix, &tokens), "attach");
	fa_check_eq(tokens, N);
	copy.sequence = other;
	fa_tensor_init(&copy.k, buffer, 0, FA_F32, 3, shape);
	memset(k, 0, STEP * FLOATS * sizeof(float));
	must(fa_sequence_read(single_client, &copy, NULL), "read");
	for (uint32_t t = 0; t < STEP; ++t)
		fa_check(k[t * FLOATS] == (float)(4 * STEP + t));

	must(fa_sequence_remove(single_client, other), "free");
	must(fa_sequence_create(single_client, cache, &other), "sequence");
	ids[18000]++;
	must(fa_prefix_find(single_client, cache, &prefix, &tokens), "find");
	fa_check_eq(tokens, 18000 / 256 * 256);
	must(fa_sequence_attach(single_client, other, &prefix, &tokens), "attach");
	fa_check_eq(tokens, 18000 / 256 * 256);
	must(fa_cache_remove(single_client, cache), "remove");
	fa_buffer_free(buffer);
	free(ids);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_caches),  cmocka_unit_test(test_write),
		cmocka_unit_test(test_v_in_k),      cmocka_unit_test(test_rotary),
		cmocka_unit_test(test_long_prefix),
	};

	return cmocka_run_group_tests_name("kv-forms", tests, single_setup, single_teardown);
}
