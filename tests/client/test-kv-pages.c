/*
 * Copies between sequences and pages of the program's own: all layouts, storages and types, both
 * ways, against copies of one layer; gates; and requests that a program gets wrong.
 */
#include "client/faclient.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	LAYERS = 3,
	HEADS = 2,
	DIM = 48,
	DIM_V = 32,
	WIDE = DIM + 3,
	N_PAGES = 24,
	PAGE_MAX = 64,
	TOKENS_MAX = 150,
	LAYOUTS = 4,
	POISON = 0xa5,
};

static uint64_t numbers = 1;

static uint32_t below(uint32_t n)
{
	numbers = numbers * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((numbers >> 33) % n);
}

static uint32_t element_bytes(uint32_t dtype)
{
	return dtype == FA_F32 ? 4 : 2;
}

/* Pages of the program's own. */
struct own {
	struct fa_buffer *buffer;
	char *host;
	size_t bytes;
	uint32_t dtype;
	int64_t page_tokens;
	struct fa_tensor k[LAYERS], v[LAYERS];
};

/* Layouts: [page][token][head][dim]; heads before tokens; K and V of a layer in one tensor; all
 * layers in one, with rows that are aligned to elements alone. */
static void own_init(struct own *own, uint32_t dtype, int64_t page_tokens, int layout)
{
	const int64_t row = layout == 3 ? WIDE : DIM, page = page_tokens * HEADS * row;
	const int64_t stride = layout == 2 ? 2 * page : layout == 3 ? (2 * LAYERS) * page : page;
	const bool by_head = layout == 1;

	*own = (struct own){ .dtype = dtype, .page_tokens = page_tokens };
	own->bytes = (size_t)(2 * LAYERS * N_PAGES * page + 1) * element_bytes(dtype);
	must(fa_buffer_new(single_client, own->bytes, 0, &own->buffer), "buffer");
	own->host = fa_buffer_data(own->buffer);
	memset(own->host, POISON, own->bytes);
	for (int64_t i = 0; i < (int64_t)2 * LAYERS; ++i) {
		const int64_t at = layout == 2   ? i / 2 * 2 * N_PAGES * page + i % 2 * page
		                   : layout == 3 ? i * page + 1
		                                 : i * N_PAGES * page;
		struct fa_tensor *tensor = i % 2 ? &own->v[i / 2] : &own->k[i / 2];

		*tensor = (struct fa_tensor){
			.buffer = own->buffer,
			.offset = (uint64_t)at * element_bytes(dtype),
			.dtype = dtype,
			.rank = 4,
			.shape = { N_PAGES, page_tokens, HEADS, i % 2 ? DIM_V : DIM },
			.strides = { stride, by_head ? row : HEADS * row,
			             by_head ? page_tokens * row : row, 1 },
		};
	}
}

static void own_deinit(struct own *own)
{
	fa_buffer_free(own->buffer);
}

/* Small numbers, of all types. */
static void own_fill(struct own *own)
{
	for (size_t i = 0; i < own->bytes / element_bytes(own->dtype); ++i) {
		const float value = (float)(int32_t)(below(255) - 127) / 64;
		const uint32_t sign = value < 0 ? 0x8000 : 0;
		uint32_t bits;

		memcpy(&bits, &value, 4);
		if (own->dtype == FA_F32)
			memcpy(own->host + 4 * i, &bits, 4);
		else if (own->dtype == FA_BF16)
			((uint16_t *)own->host)[i] = (uint16_t)(bits >> 16);
		else /* fp16 from 1 on */
			((uint16_t *)own->host)[i] = (uint16_t)(sign | 0x3c00 | below(0x400));
	}
}

/* Random pages, each once. */
static void pages_draw(uint32_t *pages)
{
	for (uint32_t i = 0; i < N_PAGES; ++i) {
		const uint32_t j = below(i + 1);

		pages[i] = pages[j];
		pages[j] = i;
	}
}

/* @pages: for tokens [first, first + n), from place @offset on. */
static struct fa_sequence_pages request_of(const struct own *own, uint64_t sequence,
                                           const uint32_t *pages, uint64_t first, uint64_t n,
                                           uint32_t offset)
{
	return (struct fa_sequence_pages){
		.size = sizeof(struct fa_sequence_pages),
		.sequence = sequence,
		.first = first,
		.n_tokens = n,
		.n_layers = LAYERS,
		.k = own->k,
		.v = own->v,
		.pages = pages,
		.n_pages = n ? (uint32_t)((offset + n - 1) / (uint64_t)own->page_tokens + 1) : 0,
		.page_offset = offset,
	};
}

static char *row_at(const struct own *own, const struct fa_tensor *tensor, const uint32_t *pages,
                    uint64_t place, int64_t head)
{
	const int64_t at = pages[place / (uint64_t)own->page_tokens] * tensor->strides[0] +
	                   (int64_t)(place % (uint64_t)own->page_tokens) * tensor->strides[1] +
	                   head * tensor->strides[2];

	return own->host + tensor->offset + (uint64_t)at * element_bytes(own->dtype);
}

/* K and V of some tokens of a layer, [tokens][heads][dim]. */
struct dense {
	struct fa_buffer *buffer;
	char *k, *v;
	size_t k_row, v_row; /* bytes of a token */
	uint32_t dtype;
};

static void dense_init(struct dense *dense, uint32_t dtype)
{
	*dense = (struct dense){
		.dtype = dtype,
		.k_row = (size_t)HEADS * DIM * element_bytes(dtype),
		.v_row = (size_t)HEADS * DIM_V * element_bytes(dtype),
	};
	must(fa_buffer_new(single_client, TOKENS_MAX * (dense->k_row + dense->v_row), 0,
	                   &dense->buffer),
	     "buffer");
	dense->k = fa_buffer_data(dense->buffer);
	dense->v = dense->k + TOKENS_MAX * dense->k_row;
}

static struct fa_sequence_copy dense_copy(const struct dense *dense, uint64_t sequence,
                                          uint32_t layer, uint64_t first, int64_t n)
{
	const int64_t k[] = { n, HEADS, DIM }, v[] = { n, HEADS, DIM_V };
	struct fa_sequence_copy copy = {
		.size = sizeof(copy), .sequence = sequence, .layer = layer, .first = first
	};

	fa_tensor_init(&copy.k, dense->buffer, 0, dense->dtype, 3, k);
	fa_tensor_init(&copy.v, dense->buffer, TOKENS_MAX * dense->k_row, dense->dtype, 3, v);
	return copy;
}

/* Copies @n rows from the pages to @dense. */
static void gather(const struct own *own, uint32_t layer, const uint32_t *pages, uint32_t offset,
                   uint64_t n, struct dense *dense)
{
	const size_t k = dense->k_row / HEADS, v = dense->v_row / HEADS;

	for (uint64_t i = 0; i < n; ++i)
		for (int64_t h = 0; h < HEADS; ++h) {
			memcpy(dense->k + i * dense->k_row + (size_t)h * k,
			       row_at(own, &own->k[layer], pages, offset + i, h), k);
			memcpy(dense->v + i * dense->v_row + (size_t)h * v,
			       row_at(own, &own->v[layer], pages, offset + i, h), v);
		}
}

static uint64_t cache_new(uint32_t dtype, uint32_t store, bool token_scales, uint32_t page_tokens)
{
	float k_scales[LAYERS * HEADS], v_scales[LAYERS * HEADS];
	struct fa_cache_options options = {
		.size = sizeof(options),
		.flags = token_scales ? FA_CACHE_TOKEN_SCALES : 0,
		.dtype = dtype,
		.store = store,
		.layers = LAYERS,
		.kv_heads = HEADS,
		.head_dim = DIM,
		.head_dim_v = DIM_V,
		.page_tokens = page_tokens,
	};
	uint64_t cache;

	for (int i = 0; i < LAYERS * HEADS; ++i) {
		k_scales[i] = 0.01f * (float)(1 + i);
		v_scales[i] = 0.02f * (float)(7 - i);
	}
	if (store && !token_scales) {
		options.k_scales = k_scales;
		options.v_scales = v_scales;
	}
	must(fa_cache_create(single_client, &options, &cache), "cache");
	return cache;
}

static uint64_t sequence_new(uint64_t cache)
{
	uint64_t sequence;

	must(fa_sequence_create(single_client, cache, &sequence), "sequence");
	return sequence;
}

static struct fa_step *begin(uint64_t sequence, uint32_t n)
{
	const struct fa_step_item item = { .sequence = sequence, .n_new = n };

	return single_begin(&item, 1);
}

static void commit(struct fa_step *step)
{
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
}

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

	/* In by one request, and layer by layer. */
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

/* ---- a scene with a sequence of 40 tokens */

struct scene {
	uint64_t cache, sequence;
	struct own own;
	uint32_t pages[N_PAGES];
};

static void scene_open(struct scene *scene)
{
	struct fa_sequence_pages request;
	struct fa_step *step;

	*scene = (struct scene){ .cache = cache_new(FA_BF16, FA_STORE_PLAIN, false, 16) };
	scene->sequence = sequence_new(scene->cache);
	own_init(&scene->own, FA_BF16, 16, 0);
	own_fill(&scene->own);
	pages_draw(scene->pages);
	step = begin(scene->sequence, 40);
	request = request_of(&scene->own, scene->sequence, scene->pages, 0, 40, 0);
	must(fa_sequence_write_pages(single_client, &request, NULL), "write");
	commit(step);
}

static void scene_close(struct scene *scene)
{
	must(fa_cache_remove(single_client, scene->cache), "remove");
	own_deinit(&scene->own);
}

static struct fa_sequence_pages read_of(const struct scene *scene)
{
	return request_of(&scene->own, scene->sequence, scene->pages, 0, 40, 0);
}

static void refused(const struct fa_sequence_pages *request, int error, const char *part)
{
	fa_check_eq(fa_sequence_read_pages(single_client, request, NULL), error);
	fa_check_contains(fa_error(), part);
}

/* What the library or the daemon refuses of a read. Nothing of it is done. */
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
	/* No token is no page. */
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

/* ---- gates, and what happens in flight */

static void must_timeline(struct fa_timeline **ret_timeline)
{
	must(fa_timeline_open(single_client, ret_timeline), "timeline");
}

/* A write and a read wait for the program's word, and signal theirs. */
static void test_gates(void **state)
{
	static uint64_t base; /* values only grow */
	const struct fa_gate wait = { .slot = 1, .value = base + 1 };
	const struct fa_gate signal = { .slot = 2, .value = base + 1 };
	const struct fa_gates gates = { .size = sizeof(gates),
		                        .n_waits = 1,
		                        .waits = &wait,
		                        .n_signals = 1,
		                        .signals = &signal };
	struct fa_sequence_pages request;
	struct fa_timeline *timeline;
	struct fa_ticket ticket;
	struct scene scene;
	struct own own;

	must_timeline(&timeline);
	scene_open(&scene);
	own_init(&own, FA_BF16, 7, 1);
	request = request_of(&own, scene.sequence, scene.pages, 0, 40, 3);
	request.gates = &gates;
	must(fa_sequence_read_pages(single_client, &request, &ticket), "read");
	fa_check_eq(fa_timeline_wait(timeline, 2, base + 1, 30 * 1000 * 1000), -EAGAIN);
	for (size_t i = 0; i < own.bytes; ++i)
		fa_check_eq((unsigned char)own.host[i], POISON);
	must(fa_timeline_write(timeline, 1, base + 1), "write");
	must(fa_timeline_wait(timeline, 2, base + 1, UINT64_MAX), "wait");
	fa_check(memcmp(row_at(&own, &own.v[2], scene.pages, 42, 1),
	                row_at(&scene.own, &scene.own.v[2], scene.pages, 39, 1),
	                (size_t)DIM_V * 2) == 0);
	must(fa_wait(single_client, &ticket, UINT64_MAX, NULL), "end");
	own_deinit(&own);
	scene_close(&scene);
	++base;
}

/* The buffer is freed, and the sequence removed, while the request waits. */
static void test_freed_in_flight(void **state)
{
	const struct fa_gate wait = { .slot = 5, .value = 1 };
	const struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &wait };
	struct fa_sequence_pages request;
	struct fa_timeline *timeline;
	struct fa_ticket ticket;
	struct scene scene;
	struct own own;

	must_timeline(&timeline);
	scene_open(&scene);
	own_init(&own, FA_BF16, 16, 2);
	request = request_of(&own, scene.sequence, scene.pages, 0, 40, 0);
	request.gates = &gates;
	must(fa_sequence_read_pages(single_client, &request, &ticket), "read");
	own_deinit(&own);
	must(fa_sequence_remove(single_client, scene.sequence), "remove");
	must(fa_timeline_write(timeline, 5, 1), "write");
	must(fa_wait(single_client, &ticket, UINT64_MAX, NULL), "end");
	scene_close(&scene);
}

static void test_cancelled(void **state)
{
	const struct fa_gate wait = { .slot = 6, .value = 1 };
	const struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &wait };
	struct fa_sequence_pages request;
	struct fa_timeline *timeline;
	struct fa_ticket ticket;
	struct fa_step *step;
	struct scene scene;

	must_timeline(&timeline);
	scene_open(&scene);
	step = begin(scene.sequence, 20);
	request = request_of(&scene.own, scene.sequence, scene.pages, 40, 20, 0);
	request.gates = &gates;
	must(fa_sequence_write_pages(single_client, &request, &ticket), "write");
	must(fa_cancel(single_client, &ticket), "cancel");
	fa_check_eq(fa_wait(single_client, &ticket, UINT64_MAX, NULL), -ECANCELED);
	fa_check_eq(fa_step_commit(step, NULL, NULL), -ECANCELED);
	fa_step_free(step);
	scene_close(&scene);
}

/* Requests of one layer and of several, on two streams, keep the order of each layer. */
static void test_order_of_layers(void **state)
{
	const struct fa_gate wait = { .slot = 7, .value = 1 };
	const struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &wait };
	struct fa_ticket first, second, third;
	struct fa_sequence_pages request;
	struct fa_timeline *timeline;
	struct fa_sequence_copy copy;
	struct fa_step *step;
	struct dense dense;
	struct scene scene;
	uint32_t stream;

	must_timeline(&timeline);
	must(fa_stream_new(single_client, 0, &stream), "stream");
	scene_open(&scene);
	dense_init(&dense, FA_BF16);
	step = begin(scene.sequence, 16);
	request = request_of(&scene.own, scene.sequence, scene.pages, 40, 16, 0);
	request.gates = &gates;
	must(fa_sequence_write_pages(single_client, &request, &first), "write pages");
	copy = dense_copy(&dense, scene.sequence, 2, 40, 16);
	copy.stream = stream;
	memset(dense.k, 0x11, 16 * dense.k_row);
	memset(dense.v, 0x22, 16 * dense.v_row);
	must(fa_sequence_write(single_client, &copy, &second), "write");
	fa_check_eq(fa_wait(single_client, &second, 20 * 1000 * 1000, NULL), -EAGAIN);
	must(fa_timeline_write(timeline, 7, 1), "open");
	must(fa_wait(single_client, &first, UINT64_MAX, NULL), "first");
	must(fa_wait(single_client, &second, UINT64_MAX, NULL), "second");
	commit(step);
	request = request_of(&scene.own, scene.sequence, scene.pages, 40, 16, 0);
	must(fa_sequence_read_pages(single_client, &request, &third), "read pages");
	must(fa_wait(single_client, &third, UINT64_MAX, NULL), "third");
	fa_check_eq((unsigned char)*row_at(&scene.own, &scene.own.k[2], scene.pages, 5, 1), 0x11);
	fa_check_eq((unsigned char)*row_at(&scene.own, &scene.own.v[2], scene.pages, 5, 1), 0x22);
	must(fa_stream_free(single_client, stream), "stream");
	fa_buffer_free(dense.buffer);
	scene_close(&scene);
}

/* ---- a daemon that is killed */

#define ROUNDS 12

/* The daemon dies with copies in flight. Reads end with -ECONNRESET, or were repeated; writes end
 * with their step; and what was committed is there. */
static void test_killed(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options supervised = { .args = args };
	struct fa_options options = { .size = sizeof(options) };
	struct fa_sequence_info info = { .size = sizeof(info) };
	struct fa_client *const before = single_client;
	struct fa_test_daemon daemon;
	struct scene scene;
	struct own own;

	fa_test_daemon_start(&daemon, &supervised);
	options.socket = daemon.socket;
	must(fa_connect(&options, &single_client), "connect");
	scene_open(&scene);
	own_init(&own, FA_BF16, 7, 1);
	for (int i = 0; i < ROUNDS; ++i) {
		struct fa_sequence_pages request = request_of(&own, scene.sequence, scene.pages, 0,
		                                              40, 3);
		struct fa_ticket tickets[8], last;
		struct fa_step *step;
		pid_t child = fa_test_daemon_child(&daemon);
		int r;

		step = begin(scene.sequence, 20);
		for (int j = 0; j < 8; ++j)
			must(fa_sequence_read_pages(single_client, &request, &tickets[j]), "read");
		request = request_of(&scene.own, scene.sequence, scene.pages, 40, 20, 0);
		r = fa_sequence_write_pages(single_client, &request, &last);
		fa_check(!kill(child, SIGKILL));
		for (int j = 0; j < 8; ++j) {
			const int end = fa_wait(single_client, &tickets[j], UINT64_MAX, NULL);

			if (end)
				fa_check_eq(end, -ECONNRESET);
		}
		if (r == 0) {
			r = fa_wait(single_client, &last, UINT64_MAX, NULL);
			if (r)
				fa_check_eq(r, -ECONNRESET);
		}
		fa_check_eq(fa_step_commit(step, NULL, NULL), -ECONNRESET);
		fa_step_free(step);
		(void)fa_test_daemon_next_child(&daemon, child);
		must(fa_sequence_info(single_client, scene.sequence, &info), "info");
		fa_check_eq(info.length, 40);
		memset(own.host, POISON, own.bytes);
		request = request_of(&own, scene.sequence, scene.pages, 0, 40, 3);
		must(fa_sequence_read_pages(single_client, &request, NULL), "read again");
		for (uint32_t layer = 0; layer < LAYERS; ++layer)
			for (uint64_t t = 0; t < 40; ++t)
				for (int64_t h = 0; h < HEADS; ++h)
					fa_check(!memcmp(
						row_at(&own, &own.k[layer], scene.pages, t + 3, h),
						row_at(&scene.own, &scene.own.k[layer], scene.pages,
					               t, h),
						(size_t)DIM * 2));
	}
	own_deinit(&own);
	scene_close(&scene);
	fa_disconnect(single_client);
	fa_test_daemon_stop(&daemon);
	single_client = before;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both_ways),      cmocka_unit_test(test_refused),
		cmocka_unit_test(test_writes_refused), cmocka_unit_test(test_v_in_k),
		cmocka_unit_test(test_gates),          cmocka_unit_test(test_freed_in_flight),
		cmocka_unit_test(test_cancelled),      cmocka_unit_test(test_order_of_layers),
		cmocka_unit_test(test_killed),
	};

	return cmocka_run_group_tests_name("kv-pages", tests, single_setup, single_teardown);
}
