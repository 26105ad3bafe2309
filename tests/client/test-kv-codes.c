/*
 * Caches that store quantised codes. Tokens read back are bit by bit what an independent quantiser
 * makes of the input, in forks, after truncation and in trees, too. Attention uses the quantised
 * values.
 */
#include "client/faclient.h"
#include "kernels/quantise.h"
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

enum {
	LAYERS = 2,
	KV_HEADS = 2,
	GROUP = 3,
	HEADS = KV_HEADS * GROUP,
	DIM = 64,
	ROWS = 96,
	K_ROW = KV_HEADS * DIM,
	Q_ROW = HEADS * DIM,
};

static struct scene {
	enum fa_dtype dtype;
	enum fa_store store;
	bool tokens;
	float k_scales[LAYERS * KV_HEADS], v_scales[LAYERS * KV_HEADS];
	uint64_t cache;
	struct fa_buffer *buffer;
	uint16_t *q, *k, *v, *out;
} scene;

static enum fa_attention_dtype kernel_dtype(void)
{
	return scene.dtype == FA_F16 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16;
}

/* An element of a token's K (0), V (1) or q (2). One token in 13 is much larger. */
static float number(uint32_t tag, uint32_t layer, int which, uint32_t j)
{
	uint64_t x = ((uint64_t)tag << 32 | layer << 24 | (uint64_t)which << 20 | j) + 1;
	float size = which == 2 ? 3 : tag % 13 == 5 ? 30 : 1;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	x ^= x >> 31;
	return size * (float)((int32_t)(x >> 32) * (1.0 / 2147483648.0));
}

static void fill(uint16_t *to, uint32_t tag, uint32_t layer, int which, uint32_t n)
{
	float row[Q_ROW];

	for (uint32_t j = 0; j < n; ++j)
		row[j] = number(tag, layer, which, j);
	fa_floats_to(kernel_dtype(), to, row, (int32_t)n);
}

/* A row of K or V after quantisation. */
static void expect_row(uint32_t tag, uint32_t layer, int which, uint32_t head, float *ret_row)
{
	const float *scales = which ? scene.v_scales : scene.k_scales;
	float scale = scales[layer * KV_HEADS + head], row[DIM];
	uint16_t all[K_ROW];
	uint8_t codes[DIM];

	fill(all, tag, layer, which, K_ROW);
	fa_floats_of(kernel_dtype(), row, all + head * DIM, DIM);
	if (scene.tokens)
		scale = fa_quantise_token((enum fa_paged_store)scene.store, row, DIM, codes);
	else
		fa_quantise_row((enum fa_paged_store)scene.store, row, DIM, scale, codes);
	fa_dequantise_row((enum fa_paged_store)scene.store, codes, scale, ret_row, DIM);
}

static void open_scene(int way, uint32_t page_tokens)
{
	const uint64_t rows = (uint64_t)ROWS * (2 * K_ROW + 2 * Q_ROW);
	struct fa_cache_options options = { .size = sizeof(options),
		                            .layers = LAYERS,
		                            .kv_heads = KV_HEADS,
		                            .head_dim = DIM,
		                            .page_tokens = page_tokens };
	struct fa_cache_info info = { .size = sizeof(info) };

	scene = (struct scene){ .dtype = way & 4 ? FA_F16 : FA_BF16,
		                .store = way & 1 ? FA_STORE_INT8 : FA_STORE_E4M3,
		                .tokens = way & 2 };
	for (int i = 0; i < LAYERS * KV_HEADS; ++i) {
		scene.k_scales[i] = 0.01f * (float)(1 + i) *
		                    (scene.store == FA_STORE_INT8 ? 1 : 0.3f);
		scene.v_scales[i] = 0.02f * (float)(5 - i) *
		                    (scene.store == FA_STORE_INT8 ? 1 : 0.3f);
	}
	options.dtype = scene.dtype;
	options.store = scene.store;
	if (scene.tokens) {
		options.flags = FA_CACHE_TOKEN_SCALES;
	} else {
		options.k_scales = scene.k_scales;
		options.v_scales = scene.v_scales;
	}
	must(fa_cache_create(single_client, &options, &scene.cache), "cache");
	must(fa_cache_info(single_client, scene.cache, &info), "info");
	fa_check_eq(info.store, scene.store);
	fa_check_eq(info.flags, options.flags);
	fa_check_eq(info.dtype, scene.dtype);
	/* K and V of a layer are each rounded up to 256 bytes. */
	fa_check_eq(info.page_bytes,
	            2 * LAYERS *
	                    ((KV_HEADS * page_tokens * (DIM + (scene.tokens ? 4 : 0)) + 255) / 256 *
	                     256));
	must(fa_buffer_new(single_client, rows * 2, 0, &scene.buffer), "buffer");
	scene.q = fa_buffer_data(scene.buffer);
	scene.out = scene.q + ROWS * Q_ROW;
	scene.k = scene.out + ROWS * Q_ROW;
	scene.v = scene.k + ROWS * K_ROW;
}

static void close_scene(void)
{
	must(fa_cache_remove(single_client, scene.cache), "remove");
	fa_buffer_free(scene.buffer);
}

static void tensor_init(struct fa_tensor *tensor, const uint16_t *at, uint32_t n, int64_t heads)
{
	const int64_t shape[] = { n, heads, DIM };

	fa_tensor_init(tensor, scene.buffer, (uint64_t)(at - scene.q) * 2, scene.dtype, 3, shape);
}

static void fill_tensors(const uint32_t *tags, uint32_t n, uint32_t layer)
{
	for (uint32_t i = 0; i < n; ++i) {
		fill(scene.q + i * Q_ROW, tags[i], layer, 2, Q_ROW);
		fill(scene.k + i * K_ROW, tags[i], layer, 0, K_ROW);
		fill(scene.v + i * K_ROW, tags[i], layer, 1, K_ROW);
	}
}

static double out_at(uint32_t i)
{
	float values[DIM];

	fa_floats_of(kernel_dtype(), values, scene.out + i, 1);
	return (double)values[0];
}

static void check_out(const uint32_t *tags, uint32_t length, uint32_t n, uint32_t layer)
{
	float *k = calloc((size_t)length * DIM, sizeof(*k)),
	      *v = calloc((size_t)length * DIM, sizeof(*v));
	double *weights = calloc(length, sizeof(*weights));

	fa_check(k && v && weights);
	for (uint32_t h = 0; h < HEADS; ++h) {
		for (uint32_t j = 0; j < length; ++j) {
			expect_row(tags[j], layer, 0, h / GROUP, k + j * DIM);
			expect_row(tags[j], layer, 1, h / GROUP, v + j * DIM);
		}
		for (uint32_t i = 0; i < n; ++i) {
			const uint32_t seen = length - n + i + 1;
			double highest = -INFINITY, sum = 0, largest = 0;
			float q[DIM];

			fa_floats_of(kernel_dtype(), q, scene.q + i * Q_ROW + h * DIM, DIM);
			for (uint32_t j = 0; j < seen; ++j) {
				weights[j] = 0;
				for (uint32_t c = 0; c < DIM; ++c) {
					weights[j] += (double)q[c] * (double)k[j * DIM + c];
					largest = fmax(largest, fabs((double)v[j * DIM + c]));
				}
				weights[j] /= 8;
				highest = fmax(highest, weights[j]);
			}
			for (uint32_t j = 0; j < seen; ++j)
				sum += weights[j] = exp(weights[j] - highest);
			for (uint32_t c = 0; c < DIM; ++c) {
				double expected = 0, got = out_at(i * Q_ROW + h * DIM + c);

				for (uint32_t j = 0; j < seen; ++j)
					expected += weights[j] / sum * (double)v[j * DIM + c];
				if (!(fabs(got - expected) <= largest / 64))
					fa_test_fail(__FILE__, __LINE__,
					             "row %u head %u dim %u is %g, expected %g", i,
					             h, c, got, expected);
			}
		}
	}
	free(k);
	free(v);
	free(weights);
}

static void append(uint64_t sequence, const uint32_t *tags, uint32_t length, uint32_t n)
{
	const struct fa_step_item item = { .sequence = sequence, .n_new = n };
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = 1,
		                                 .items = &item };
	struct fa_step *step;

	must(fa_step_begin(single_client, &options, &step), "begin");
	for (uint32_t layer = 0; layer < LAYERS; ++layer) {
		struct fa_step_attend attend = { .size = sizeof(attend),
			                         .flags = FA_STEP_CAUSAL,
			                         .layer = layer };

		fill_tensors(tags + length - n, n, layer);
		tensor_init(&attend.q, scene.q, n, HEADS);
		tensor_init(&attend.out, scene.out, n, HEADS);
		tensor_init(&attend.k_new, scene.k, n, KV_HEADS);
		tensor_init(&attend.v_new, scene.v, n, KV_HEADS);
		must(fa_step_attend(step, &attend, NULL), "attend");
		check_out(tags, length, n, layer);
	}
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
}

static void check_row(const uint16_t *got, uint32_t tag, uint32_t layer, int which)
{
	uint16_t expected[DIM];
	float row[DIM];

	for (uint32_t h = 0; h < KV_HEADS; ++h) {
		expect_row(tag, layer, which, h, row);
		fa_floats_to(kernel_dtype(), expected, row, DIM);
		if (memcmp(expected, got + h * DIM, sizeof(expected)))
			fa_test_fail(__FILE__, __LINE__, "%s of tag %u, layer %u, head %u is other",
			             which ? "V" : "K", tag, layer, h);
	}
}

static void check_pages(uint64_t sequence, const uint32_t *tags, uint32_t first, uint32_t n)
{
	for (uint32_t layer = 0; layer < LAYERS; ++layer) {
		struct fa_sequence_copy copy = {
			.size = sizeof(copy), .sequence = sequence, .first = first, .layer = layer
		};

		tensor_init(&copy.k, scene.k, n, KV_HEADS);
		tensor_init(&copy.v, scene.v, n, KV_HEADS);
		memset(scene.k, 0xff, 2 * ROWS * K_ROW * sizeof(*scene.k));
		must(fa_sequence_read(single_client, &copy, NULL), "read");
		for (uint32_t i = 0; i < n; ++i) {
			check_row(scene.k + i * K_ROW, tags[first + i], layer, 0);
			check_row(scene.v + i * K_ROW, tags[first + i], layer, 1);
		}
	}
}

static void count(uint32_t *tags, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; ++i)
		tags[i] = first + i;
}

static void test_forks(void **state)
{
	for (int way = 0; way < 8; ++way) {
		uint32_t tags[160], forked[160];
		uint64_t sequence, fork;

		open_scene(way, way % 3 ? 16 : 64);
		count(tags, 1, 160);
		must(fa_sequence_create(single_client, scene.cache, &sequence), "create");
		append(sequence, tags, 70, 70);
		append(sequence, tags, 71, 1);
		check_pages(sequence, tags, 3, 68);

		/* One sequence appends: the shared last page is copied up to its fill level. */
		must(fa_sequence_fork(single_client, sequence, 67, &fork), "fork");
		memcpy(forked, tags, sizeof(tags));
		count(forked + 67, 500, 60);
		append(fork, forked, 70, 3);
		append(sequence, tags, 76, 5);
		check_pages(fork, forked, 0, 70);
		check_pages(sequence, tags, 0, 76);

		must(fa_sequence_truncate(single_client, fork, 60), "truncate");
		count(forked + 60, 700, 60);
		append(fork, forked, 80, 20);
		check_pages(fork, forked, 10, 70);
		must(fa_sequence_remove(single_client, sequence), "free");
		append(fork, forked, 81, 1);
		check_pages(fork, forked, 0, 81);
		close_scene();
	}
}

/* A kept path of a tree: tokens move with their scales. */
static void test_tree(void **state)
{
	for (int way = 0; way < 8; ++way) {
		const uint32_t tree[] = { 1, 3, 5, 11, 21, 43 }, tree_start = 0;
		const uint32_t keep[] = { 0, 2, 4 }, cu_keep[] = { 0, 3 };
		struct fa_step_options options = { .size = sizeof(options),
			                           .n_items = 1,
			                           .tree = tree,
			                           .tree_start = &tree_start };
		const struct fa_step_commit commit = { .size = sizeof(commit),
			                               .keep = keep,
			                               .cu_keep = cu_keep };
		struct fa_step_item item = { .n_new = 6 };
		uint32_t tags[64], after[64];
		struct fa_step *step;

		open_scene(way, 16);
		count(tags, 1, 64);
		must(fa_sequence_create(single_client, scene.cache, &item.sequence), "create");
		append(item.sequence, tags, 29, 29);
		options.items = &item;
		must(fa_step_begin(single_client, &options, &step), "begin");
		for (uint32_t layer = 0; layer < LAYERS; ++layer) {
			struct fa_step_attend attend = { .size = sizeof(attend), .layer = layer };

			fill_tensors(tags + 29, 6, layer);
			tensor_init(&attend.k_new, scene.k, 6, KV_HEADS);
			tensor_init(&attend.v_new, scene.v, 6, KV_HEADS);
			must(fa_step_attend(step, &attend, NULL), "attend");
		}
		must(fa_step_commit(step, &commit, NULL), "commit");
		fa_step_free(step);
		memcpy(after, tags, sizeof(tags));
		for (int i = 0; i < 3; ++i)
			after[29 + i] = tags[29 + keep[i]];
		check_pages(item.sequence, after, 0, 32);
		append(item.sequence, after, 34, 2);
		close_scene();
	}
}

static void test_write(void **state)
{
	for (int way = 0; way < 4; ++way) {
		struct fa_step_options options = { .size = sizeof(options), .n_items = 1 };
		struct fa_step_item item = { .n_new = 20 };
		uint32_t tags[64];
		struct fa_step *step;

		open_scene(way, 16);
		count(tags, 1, 64);
		must(fa_sequence_create(single_client, scene.cache, &item.sequence), "create");
		options.items = &item;
		must(fa_step_begin(single_client, &options, &step), "begin");
		for (uint32_t layer = 0; layer < LAYERS; ++layer) {
			struct fa_sequence_copy copy = { .size = sizeof(copy),
				                         .sequence = item.sequence,
				                         .layer = layer };

			fill_tensors(tags, 20, layer);
			tensor_init(&copy.k, scene.k, 20, KV_HEADS);
			tensor_init(&copy.v, scene.v, 20, KV_HEADS);
			must(fa_sequence_write(single_client, &copy, NULL), "write");
		}
		must(fa_step_commit(step, NULL, NULL), "commit");
		fa_step_free(step);
		check_pages(item.sequence, tags, 0, 20);
		append(item.sequence, tags, 22, 2);
		close_scene();
	}
}

static void test_refused(void **state)
{
	struct fa_cache_options options = { .size = sizeof(options),
		                            .flags = FA_CACHE_TOKEN_SCALES,
		                            .dtype = FA_BF16,
		                            .store = FA_STORE_E4M3,
		                            .layers = 1,
		                            .kv_heads = 1,
		                            .head_dim = 64 };
	const float scale = 0.5f;
	uint64_t cache = 7;

	options.head_dim = 584;
	fa_check_eq(fa_cache_create(single_client, &options, &cache), -ENOTSUP);
	fa_check_contains(fa_error(), "head_dim 584 is not supported: at most 576");
	options.flags = FA_CACHE_V_IN_K;
	options.head_dim = 576;
	options.head_dim_v = 512;
	options.k_scales = options.v_scales = &scale;
	fa_check_eq(fa_cache_create(single_client, &options, &cache), -EINVAL);
	fa_check_contains(fa_error(), "v_scales is given, which has no effect");
	options.k_scales = options.v_scales = NULL;
	fa_check_eq(fa_cache_create(single_client, &options, &cache), -EINVAL);
	fa_check_contains(fa_error(), "k_scales is NULL");
	fa_check_eq(cache, 7);
	options.k_scales = &scale;
	must(fa_cache_create(single_client, &options, &cache), "create");
	must(fa_cache_remove(single_client, cache), "remove");
	options.k_scales = NULL;
	options.store = FA_STORE_E4M3;
	options.flags = FA_CACHE_TOKEN_SCALES;
	options.head_dim_v = 0;
	options.head_dim = 64;
	must(fa_cache_create(single_client, &options, &cache), "create");
	must(fa_cache_remove(single_client, cache), "remove");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forks),
		cmocka_unit_test(test_tree),
		cmocka_unit_test(test_write),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests_name("kv-codes", tests, single_setup, single_teardown);
}
