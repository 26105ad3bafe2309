/*
 * Copies between sequences and pages of the program's own: all layouts, storages and types, both
 * ways, against copies of one layer; and requests that a program gets wrong.
 */
#include "client/faclient.h"
#include "tests/client/kv-pages.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Fails unless tokens [first, first + n) read the same, to the bit, as @dense holds of all layers. */
static void check_same(uint64_t sequence, uint32_t layer, uint64_t first, uint64_t n,
                       const struct dense *expected, struct dense *got)
{
	const struct fa_sequence_copy copy = dense_copy(got, sequence, layer, first, (int64_t)n);

	must(fa_sequence_read(single_client, &copy, NULL), "read");
	fa_check(!memcmp(got->k, expected->k, n * got->k_row));
	fa_check(!memcmp(got->v, expected->v, n * got->v_row));
}

/* Everything but the rows of @pages is as it was. */
static void check_untouched(const struct own *own, const uint32_t *pages, uint32_t offset,
                            uint64_t n, uint32_t from, uint32_t to)
{
	char *copy = malloc(own->bytes);

	memcpy(copy, own->host, own->bytes);
	for (uint32_t layer = from; layer < to; ++layer)
		for (uint64_t i = 0; i < n; ++i)
			for (int64_t h = 0; h < HEADS; ++h) {
				memset(copy + (row_at(own, &own->k[layer], pages, offset + i, h) -
				               own->host),
				       POISON, DIM * element_bytes(own->dtype));
				memset(copy + (row_at(own, &own->v[layer], pages, offset + i, h) -
				               own->host),
				       POISON, DIM_V * element_bytes(own->dtype));
			}
	for (size_t i = 0; i < own->bytes; ++i)
		fa_check_eq((unsigned char)copy[i], POISON);
	free(copy);
}

/* ---- both ways */

static void both_ways(int i)
{
	static const uint32_t dtypes[] = { FA_BF16, FA_F16, FA_F32 };
	static const uint32_t stores[] = { FA_STORE_PLAIN, FA_STORE_E4M3, FA_STORE_INT8 };
	static const int64_t sizes[] = { 16, 1, 7, PAGE_MAX, 32 };
	const bool gpu = single_on_gpu();
	const uint32_t store = stores[i / 3 % 3];
	const uint32_t dtype = gpu && store ? dtypes[i % 2] : dtypes[i % 3];
	const uint64_t cache = cache_new(dtype, store, store && i / 9 % 2, 16u << i % 3);
	const uint64_t by_pages = sequence_new(cache), by_layers = sequence_new(cache);
	const int64_t page_tokens = sizes[i % 5], other_tokens = sizes[(i + 1 + i / 5) % 5];
	const uint32_t offset = below((uint32_t)page_tokens), other = below((uint32_t)other_tokens);
	const uint32_t most = (uint32_t)(page_tokens < other_tokens ? page_tokens : other_tokens) *
	                      (N_PAGES - 2);
	uint32_t n = 1 + below(most < TOKENS_MAX ? most : TOKENS_MAX), first;
	uint32_t pages[N_PAGES], others[N_PAGES];
	struct fa_sequence_pages request;
	struct dense expected, got;
	struct fa_step *step, *step_2;
	struct own from, to;

	own_init(&from, dtype, page_tokens, i % LAYOUTS);
	own_init(&to, dtype, other_tokens, (i / 4 + 1) % LAYOUTS);
	dense_init(&expected, dtype);
	dense_init(&got, dtype);
	own_fill(&from);
	pages_draw(pages);
	pages_draw(others);

	/* Writes the same tokens by one request, and layer by layer. */
	step = begin(by_pages, n);
	step_2 = begin(by_layers, n);
	request = request_of(&from, by_pages, pages, 0, n, offset);
	must(fa_sequence_write_pages(single_client, &request, NULL), "write pages");
	for (uint32_t layer = 0; layer < LAYERS; ++layer) {
		const struct fa_sequence_copy copy = dense_copy(&expected, by_layers, layer, 0, n);

		gather(&from, layer, pages, offset, n, &expected);
		must(fa_sequence_write(single_client, &copy, NULL), "write");
	}
	commit(step);
	commit(step_2);
	for (uint32_t layer = 0; layer < LAYERS; ++layer) {
		const struct fa_sequence_copy copy = dense_copy(&expected, by_layers, layer, 0, n);

		must(fa_sequence_read(single_client, &copy, NULL), "read");
		check_same(by_pages, layer, 0, n, &expected, &got);
		if (store)
			continue;
		gather(&from, layer, pages, offset, n, &got);
		fa_check(!memcmp(got.k, expected.k, n * got.k_row));
		fa_check(!memcmp(got.v, expected.v, n * got.v_row));
	}

	/* Out by one request, some tokens of some layers, to other pages. */
	first = below(n);
	n = 1 + below(n - first);
	request = request_of(&to, by_pages, others, first, n, other);
	request.layer = (uint32_t)i % LAYERS;
	request.n_layers = LAYERS - request.layer;
	request.k = to.k + request.layer;
	request.v = to.v + request.layer;
	must(fa_sequence_read_pages(single_client, &request, NULL), "read pages");
	for (uint32_t layer = request.layer; layer < LAYERS; ++layer) {
		const struct fa_sequence_copy copy = dense_copy(&expected, by_layers, layer, first,
		                                                n);

		must(fa_sequence_read(single_client, &copy, NULL), "read");
		gather(&to, layer, others, other, n, &got);
		fa_check(!memcmp(got.k, expected.k, n * got.k_row));
		fa_check(!memcmp(got.v, expected.v, n * got.v_row));
	}
	check_untouched(&to, others, other, n, request.layer, LAYERS);

	must(fa_cache_remove(single_client, cache), "remove");
	fa_buffer_free(expected.buffer);
	fa_buffer_free(got.buffer);
	own_deinit(&from);
	own_deinit(&to);
}

static void test_both_ways(void **state)
{
	for (int i = 0; i < 90; ++i)
		both_ways(i);
}
static void refused(const struct fa_sequence_pages *request, int error, const char *part)
{
	fa_check_eq(fa_sequence_read_pages(single_client, request, NULL), error);
	fa_check_contains(fa_error(), part);
}

/* The library or the daemon refuses these reads, and copies nothing. */
static void test_refused(void **state)
{
	struct fa_sequence_pages request;
	struct fa_tensor k[LAYERS];
	uint32_t pages[N_PAGES];
	struct scene scene;

	scene_open(&scene);
	memset(scene.own.host, POISON, scene.own.bytes);
	request = read_of(&scene);
	request.k = request.v = NULL;
	refused(&request, -EINVAL, "k and v are NULL");
	request = read_of(&scene);
	request.n_layers = 0;
	refused(&request, -EINVAL, "n_layers is 0; expected 1 to 256");
	request = read_of(&scene);
	request.n_layers = 257;
	refused(&request, -EINVAL, "n_layers is 257");
	request = read_of(&scene);
	request.n_pages = 12001;
	refused(&request, -EINVAL, "n_pages is 12001; expected at most 12000");
	request = read_of(&scene);
	request.pages = NULL;
	refused(&request, -EINVAL, "pages is NULL, and n_pages is 3");
	request = read_of(&scene);
	request.n_pages = 2;
	refused(&request, -EINVAL,
	        "pages has 2 entries; expected 3, for 40 tokens from place 0 on in pages of 16");
	request = read_of(&scene);
	request.page_offset = 16;
	refused(&request, -EINVAL, "page_offset is 16; expected less than 16");
	request = read_of(&scene);
	request.layer = 1;
	refused(&request, -EINVAL, "3 layers from 1 on are to be copied; the cache has 3");
	request = read_of(&scene);
	request.first = 1;
	refused(&request, -EINVAL, "tokens 1 to 41 are to be read; the sequence has 0 to 40");
	request = read_of(&scene);
	request.first = UINT64_MAX;
	refused(&request, -EINVAL, "are to be copied; expected 0 to");
	request = read_of(&scene);
	request.n_tokens = UINT64_MAX;
	refused(&request, -EINVAL, "are to be copied; expected 0 to");
	request = read_of(&scene);
	request.sequence = UINT64_MAX / 2;
	fa_check(fa_sequence_read_pages(single_client, &request, NULL) < 0);

	/* Pages. */
	memcpy(pages, scene.pages, sizeof(pages));
	request = read_of(&scene);
	request.pages = pages;
	pages[1] = N_PAGES;
	refused(&request, -EINVAL, "pages[1] is 24; expected less than 24");
	pages[1] = UINT32_MAX;
	refused(&request, -EINVAL, "pages[1] is 4294967295; expected less than 24");
	pages[1] = pages[2];
	refused(&request, -EINVAL, "expected each page once");

	/* Tensors. */
	request = read_of(&scene);
	request.k = k;
	memcpy(k, scene.own.k, sizeof(k));
	k[2].shape[0] = N_PAGES - 1;
	refused(&request, -EINVAL, "k[2] has another dtype, shape or stride than k[0]");
	memcpy(k, scene.own.k, sizeof(k));
	k[1].offset = scene.own.bytes - 1000;
	refused(&request, -EINVAL, "k[1] reaches beyond the end of its buffer");
	memcpy(k, scene.own.k, sizeof(k));
	k[1].offset = k[0].offset;
	refused(&request, -EINVAL, "overlaps");
	memcpy(k, scene.own.k, sizeof(k));
	k[0].offset = scene.own.v[1].offset + 2ull * 16 * HEADS * DIM * 2;
	refused(&request, -EINVAL, "overlaps");
	memcpy(k, scene.own.k, sizeof(k));
	for (int i = 0; i < LAYERS; ++i)
		k[i].strides[1] = 8; /* tokens within one another */
	refused(&request, -EINVAL, "k[0]");
	memcpy(k, scene.own.k, sizeof(k));
	for (int i = 0; i < LAYERS; ++i)
		k[i].dtype = FA_F16;
	refused(&request, -ENOTSUP, "k.dtype is 2; expected 3, the cache's");
	memcpy(k, scene.own.k, sizeof(k));
	for (int i = 0; i < LAYERS; ++i)
		k[i].shape[2] = 1;
	refused(&request, -EINVAL, "k.shape[2] is 1; expected 2, the heads of the cache");
	memcpy(k, scene.own.k, sizeof(k));
	for (int i = 0; i < LAYERS; ++i)
		k[i].rank = 3;
	refused(&request, -EINVAL, "k[0].rank is 3; expected 4");
	memcpy(k, scene.own.k, sizeof(k));
	for (int i = 0; i < LAYERS; ++i)
		k[i].shape[1] = 8;
	refused(&request, -EINVAL, "v has 24 pages of 16 tokens; expected 24 of 8, as k");

	for (size_t i = 0; i < scene.own.bytes; ++i)
		fa_check_eq((unsigned char)scene.own.host[i], POISON);
	/* A read of no tokens takes no page. */
	request = read_of(&scene);
	request.n_tokens = 0;
	request.n_pages = 0;
	must(fa_sequence_read_pages(single_client, &request, NULL), "no tokens");
	scene_close(&scene);
}

/* A write needs a step with its tokens; one that is refused makes the step fail. */
static void test_writes_refused(void **state)
{
	struct fa_sequence_info info = { .size = sizeof(info) };
	struct fa_sequence_pages request;
	uint32_t pages[] = { 3, N_PAGES };
	struct fa_step *step;
	struct scene scene;

	scene_open(&scene);
	request = request_of(&scene.own, scene.sequence, pages, 40, 20, 0);
	fa_check_eq(fa_sequence_write_pages(single_client, &request, NULL), -EINVAL);
	fa_check_contains(fa_error(), "tokens 40 to 60 are to be written; expected some that a "
	                              "step in flight has planned");
	step = begin(scene.sequence, 10);
	fa_check_eq(fa_sequence_write_pages(single_client, &request, NULL), -EINVAL);
	must(fa_step_commit(step, NULL, NULL), "nothing but a request that found no step");
	fa_step_free(step);
	must(fa_sequence_truncate(single_client, scene.sequence, 40), "truncate");

	step = begin(scene.sequence, 20);
	fa_check_eq(fa_sequence_write_pages(single_client, &request, NULL), -EINVAL);
	fa_check_contains(fa_error(), "pages[1] is 24; expected less than 24");
	fa_check_eq(fa_step_commit(step, NULL, NULL), -ECANCELED);
	fa_check_contains(fa_error(), "3 layers from 0 on: pages[1] is 24");
	fa_step_free(step);

	/* A page may be read twice. */
	step = begin(scene.sequence, 20);
	pages[1] = 3;
	must(fa_sequence_write_pages(single_client, &request, NULL), "a page twice");
	commit(step);
	must(fa_sequence_info(single_client, scene.sequence, &info), "info");
	fa_check_eq(info.length, 60);
	scene_close(&scene);
}

/* V is the front of K: it is read, not written. */
static void test_v_in_k(void **state)
{
	const struct fa_cache_options options = { .size = sizeof(options),
		                                  .flags = FA_CACHE_V_IN_K,
		                                  .dtype = FA_BF16,
		                                  .layers = LAYERS,
		                                  .kv_heads = HEADS,
		                                  .head_dim = DIM,
		                                  .head_dim_v = DIM_V };
	struct fa_sequence_pages request;
	uint32_t pages[N_PAGES];
	uint64_t cache, sequence;
	struct fa_step *step;
	struct own own;

	must(fa_cache_create(single_client, &options, &cache), "cache");
	sequence = sequence_new(cache);
	own_init(&own, FA_BF16, 16, 0);
	own_fill(&own);
	pages_draw(pages);
	step = begin(sequence, 40);
	request = request_of(&own, sequence, pages, 0, 40, 0);
	fa_check_eq(fa_sequence_write_pages(single_client, &request, NULL), -EINVAL);
	fa_check_contains(fa_error(), "v is the front of k in this cache");
	fa_step_free(step);
	step = begin(sequence, 40);
	request.v = NULL;
	must(fa_sequence_write_pages(single_client, &request, NULL), "write");
	commit(step);
	request.k = NULL;
	request.v = own.v;
	must(fa_sequence_read_pages(single_client, &request, NULL), "read");
	for (uint32_t layer = 0; layer < LAYERS; ++layer)
		for (uint64_t i = 0; i < 40; ++i)
			for (int64_t h = 0; h < HEADS; ++h)
				fa_check(!memcmp(row_at(&own, &own.v[layer], pages, i, h),
				                 row_at(&own, &own.k[layer], pages, i, h),
				                 (size_t)DIM_V * 2));
	must(fa_cache_remove(single_client, cache), "remove");
	own_deinit(&own);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both_ways),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_writes_refused),
		cmocka_unit_test(test_v_in_k),
	};

	return cmocka_run_group_tests_name("kv-pages", tests, single_setup, single_teardown);
}
