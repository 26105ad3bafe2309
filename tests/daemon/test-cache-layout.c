/* No two tiles overlap, and all lie in their chunk. A checkpoint fills just its pages. */
#include "daemon/pool/cache_layout.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHUNK (1u << 20)

static const struct fa_cache_geometry plain = {
	.layers = 2,
	.kv_heads = 2,
	.head_dim = 64,
	.head_dim_v = 64,
	.dtype = FA_ATTENTION_BF16,
	.page_tokens = 64,
};

static uint64_t k_at(const struct fa_cache_layout *layout, uint32_t slot, uint32_t layer)
{
	return (uint64_t)slot * FA_SLOT_BYTES + layer * layout->layer_stride_bytes;
}

#define CHECKPOINT_CHUNKS 2
#define CHECKPOINT_PAGES 9

/* Chooses pages that follow one another, also into the next chunk, and others. Returns how many. */
static uint32_t choose_pages(const struct fa_cache_layout *layout, uint32_t *slots)
{
	const uint32_t n = layout->pages_per_chunk;
	const uint32_t pages[CHECKPOINT_PAGES] = { 0, 1, 2, n - 1, n, n + 1, n + 4, n + 3, 4 };
	bool chosen[CHECKPOINT_PAGES * 1024] = { false };
	uint32_t n_slots = 0;

	assert_true(n + 5 < sizeof(chosen));
	for (uint32_t i = 0; i < CHECKPOINT_PAGES; i++) {
		const uint32_t page = pages[i];

		if (page >= CHECKPOINT_CHUNKS * n || chosen[page])
			continue;
		chosen[page] = true;
		slots[n_slots++] = page / n * (CHUNK / FA_SLOT_BYTES) +
		                   page % n * layout->page_slots;
	}
	return n_slots;
}

/* Copies of at most @most bytes reach every byte of a checkpoint's pages once, and no other. */
static void check_checkpoint(const struct fa_cache_geometry *geometry, uint64_t most)
{
	unsigned char *marks = calloc(CHECKPOINT_CHUNKS, CHUNK);
	struct fa_cache_layout layout;
	uint32_t slots[CHECKPOINT_PAGES], n;
	uint64_t bytes, each;

	assert_non_null(marks);
	assert_int_equal(fa_cache_layout_init(geometry, CHUNK, 1u << 12, NULL, &layout), 0);
	n = choose_pages(&layout, slots);
	bytes = n * layout.page_bytes;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t layer = 0; layer < geometry->layers; layer++) {
			const uint64_t k = k_at(&layout, slots[i], layer);

			memset(marks + k, 1, layout.k_bytes);
			memset(marks + k + layout.v_offset_bytes, 1,
			       geometry->v_in_k ? layout.k_bytes : layout.v_bytes);
		}
	for (uint64_t at = 0; at < bytes; at += each) {
		const uint64_t wanted = bytes - at < most ? bytes - at : most;
		const uint64_t place = fa_cache_checkpoint_find(&layout, slots, n, at, wanted,
		                                                &each);
		uint64_t rest;

		assert_in_range(each, 1, wanted);
		assert_in_range(place, 0, CHECKPOINT_CHUNKS * CHUNK - each);
		for (uint64_t i = 0; i < each; i++)
			assert_int_equal(marks[place + i]++, 1);
		assert_int_equal(fa_cache_checkpoint_find(&layout, slots, n, at + each / 2,
		                                          wanted - each / 2, &rest),
		                 place + each / 2);
		assert_int_equal(rest, each - each / 2);
	}
	for (uint64_t i = 0; i < CHECKPOINT_CHUNKS * CHUNK; i++)
		assert_int_not_equal(marks[i], 1);
	free(marks);
}

static void check_tiles(const struct fa_cache_geometry *geometry)
{
	struct fa_cache_layout layout;
	struct fa_error error;
	unsigned char *marks;
	uint32_t chunk = 3;

	assert_int_equal(fa_cache_layout_init(geometry, CHUNK, 1u << 16, &error, &layout), 0);
	assert_true(layout.pages_per_chunk > 0);
	assert_true(layout.pages_per_chunk * layout.page_bytes <= CHUNK);
	assert_true((layout.pages_per_chunk + 1) * layout.page_bytes > CHUNK);
	marks = calloc(1, CHUNK);
	assert_non_null(marks);
	for (uint32_t page = 0; page < layout.pages_per_chunk; page++)
		for (uint32_t layer = 0; layer < geometry->layers; layer++) {
			uint32_t slot = chunk * (CHUNK / FA_SLOT_BYTES) + page * layout.page_slots;
			uint64_t k = k_at(&layout, slot, layer);
			uint64_t v = k + layout.v_offset_bytes;

			assert_int_equal(k % FA_SLOT_BYTES, 0);
			assert_int_equal(v % FA_SLOT_BYTES, 0);
			assert_in_range(k, (uint64_t)chunk * CHUNK,
			                (uint64_t)(chunk + 1) * CHUNK - layout.k_bytes);
			for (uint64_t i = 0; i < layout.k_bytes; i++)
				assert_int_equal(marks[k % CHUNK + i]++, 0);
			if (geometry->v_in_k) {
				assert_int_equal(v, k);
				continue;
			}
			assert_in_range(v, (uint64_t)chunk * CHUNK,
			                (uint64_t)(chunk + 1) * CHUNK - layout.v_bytes);
			for (uint64_t i = 0; i < layout.v_bytes; i++)
				assert_int_equal(marks[v % CHUNK + i]++, 0);
		}
	free(marks);
	check_checkpoint(geometry, UINT64_MAX);
	check_checkpoint(geometry, 1000);
}

static void test_tiles(void **state)
{
	struct fa_cache_geometry geometry = plain;

	for (int order = FA_CACHE_LAYER_MAJOR; order <= FA_CACHE_PAGE_MAJOR; order++) {
		geometry = plain;
		geometry.order = (enum fa_cache_order)order;
		check_tiles(&geometry);
		geometry.layers = 1;
		check_tiles(&geometry);
		geometry.head_dim_v = 32;
		check_tiles(&geometry);
		geometry.head_dim_v = 64;
		geometry.layers = 5;
		check_tiles(&geometry);
		geometry.head_dim_v = 32;
		check_tiles(&geometry);
		geometry.v_in_k = true;
		check_tiles(&geometry);
		geometry.head_dim = geometry.head_dim_v = 8; /* 24-row tiles that are padded */
		geometry.kv_heads = 3;
		geometry.page_tokens = 16;
		geometry.v_in_k = false;
		check_tiles(&geometry);
		geometry.dtype = FA_ATTENTION_F32;
		check_tiles(&geometry);
		for (int store = FA_PAGED_E4M3; store <= FA_PAGED_INT8; store++) {
			geometry = plain;
			geometry.order = (enum fa_cache_order)order;
			geometry.store = (enum fa_paged_store)store;
			check_tiles(&geometry);
			geometry.token_scales = true;
			check_tiles(&geometry);
			geometry.kv_heads = 3;
			geometry.head_dim_v = 24;
			check_tiles(&geometry);
			geometry.kv_heads = 1;
			geometry.head_dim = 576;
			geometry.head_dim_v = 512;
			geometry.v_in_k = true;
			check_tiles(&geometry);
		}
	}
}

/* Codes take a byte per element, and four per scale. */
static void test_codes(void **state)
{
	const uint64_t rows = (uint64_t)plain.kv_heads * plain.page_tokens;
	struct fa_cache_geometry geometry = plain;
	struct fa_cache_layout layout;

	geometry.store = FA_PAGED_E4M3;
	geometry.kv_heads *= 16;
	assert_int_equal(fa_cache_layout_init(&geometry, 64 * CHUNK, 3, NULL, &layout), 0);
	assert_int_equal(layout.k_bytes, 16 * rows * plain.head_dim);
	assert_int_equal(layout.v_bytes, 16 * rows * plain.head_dim_v);
	geometry.token_scales = true;
	assert_int_equal(fa_cache_layout_init(&geometry, 64 * CHUNK, 3, NULL, &layout), 0);
	assert_int_equal(layout.k_bytes, 16 * rows * (plain.head_dim + 4));
	assert_int_equal(layout.v_bytes, 16 * rows * (plain.head_dim_v + 4));
}

static void test_bound_on_pages(void **state)
{
	struct fa_cache_layout layout;

	assert_int_equal(fa_cache_layout_init(&plain, CHUNK, 3, NULL, &layout), 0);
	assert_int_equal(layout.pages_per_chunk, 3);
	assert_int_equal(layout.v_offset_bytes, 3 * layout.k_bytes);
}

static void test_refused(void **state)
{
	struct fa_cache_layout layout;
	struct fa_cache_geometry g;
	struct fa_error error;

#define REFUSED(code, word, ...)                                                                   \
	do {                                                                                       \
		g = plain;                                                                         \
		__VA_ARGS__;                                                                       \
		error.text[0] = '\0';                                                              \
		assert_int_equal(fa_cache_layout_init(&g, CHUNK, 1u << 16, &error, &layout),       \
		                 code);                                                            \
		assert_non_null(strstr(error.text, word));                                         \
	} while (0)

	REFUSED(-EINVAL, "layers", g.layers = 0);
	REFUSED(-EINVAL, "layers", g.layers = FA_CACHE_LAYERS_MAX + 1);
	REFUSED(-EINVAL, "kv_heads", g.kv_heads = 0);
	REFUSED(-EINVAL, "head_dim ", g.head_dim = 12);
	REFUSED(-EINVAL, "head_dim ", g.head_dim = 0);
	REFUSED(-ENOTSUP, "head_dim 4294967288 ", g.head_dim = UINT32_MAX - 7);
	REFUSED(-ENOTSUP, "head_dim 584 ", g.head_dim = FA_CACHE_HEAD_DIM_MAX + 8);
	REFUSED(-ENOTSUP, "head_dim_v 520 ", g.head_dim_v = FA_CACHE_HEAD_DIM_V_MAX + 8);
	REFUSED(-EINVAL, "head_dim_v", g.v_in_k = true, g.head_dim_v = 72);
	REFUSED(-ENOTSUP, "dtype", g.dtype = 0);
	REFUSED(-EINVAL, "page_tokens", g.page_tokens = 8);
	REFUSED(-EINVAL, "page_tokens", g.page_tokens = 48);
	REFUSED(-EINVAL, "page_tokens", g.page_tokens = 512);
	REFUSED(-ENOTSUP, "store is 3", g.store = 3);
	REFUSED(-EINVAL, "tokens are to have scales", g.token_scales = true);
	REFUSED(-EINVAL, "order", g.order = 2);
	REFUSED(-EINVAL, "chunk", g.layers = 1000);
}

/* Head dims around the bounds, of K and of V; V apart, or the front of K. */
static void test_dims(void **state)
{
	static const uint32_t dims[] = { 0, 8, 256, 264, 512, 520, 576, 584 };
	struct fa_cache_layout layout;
	struct fa_error error;

	for (size_t k = 0; k < 8; k++)
		for (size_t v = 0; v < 8; v++)
			for (int in_k = 0; in_k < 2; in_k++) {
				struct fa_cache_geometry g = plain;
				int expected = 0;

				g.layers = 1;
				g.head_dim = dims[k];
				g.head_dim_v = dims[v];
				g.v_in_k = in_k;
				if (in_k && dims[v] > dims[k])
					expected = -EINVAL;
				if (dims[v] > 512)
					expected = -ENOTSUP;
				if (dims[v] == 0)
					expected = -EINVAL;
				if (dims[k] > 576)
					expected = -ENOTSUP;
				if (dims[k] == 0)
					expected = -EINVAL;
				assert_int_equal(
					fa_cache_layout_init(&g, CHUNK, 3, &error, &layout),
					expected);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tiles),          cmocka_unit_test(test_codes),
		cmocka_unit_test(test_bound_on_pages), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_dims),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
