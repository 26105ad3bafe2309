/* Pages of a program's own (see the header). */
#include "tests/client/kv-pages.h"
#include "tests/client/single-client.h"

#include <string.h>

#define WIDE (DIM + 3) /* elements of a row of layout 3 */

static uint64_t numbers = 1;

uint32_t below(uint32_t n)
{
	numbers = numbers * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((numbers >> 33) % n);
}

uint32_t element_bytes(uint32_t dtype)
{
	return dtype == FA_F32 ? 4 : 2;
}

void own_init(struct own *own, uint32_t dtype, int64_t page_tokens, int layout)
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

void own_deinit(struct own *own)
{
	fa_buffer_free(own->buffer);
}

/* Small numbers, of all types. */
void own_fill(struct own *own)
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

void pages_draw(uint32_t *pages)
{
	for (uint32_t i = 0; i < N_PAGES; ++i) {
		const uint32_t j = below(i + 1);

		pages[i] = pages[j];
		pages[j] = i;
	}
}

struct fa_sequence_pages request_of(const struct own *own, uint64_t sequence, const uint32_t *pages,
                                    uint64_t first, uint64_t n, uint32_t offset)
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

char *row_at(const struct own *own, const struct fa_tensor *tensor, const uint32_t *pages,
             uint64_t place, int64_t head)
{
	const int64_t at = pages[place / (uint64_t)own->page_tokens] * tensor->strides[0] +
	                   (int64_t)(place % (uint64_t)own->page_tokens) * tensor->strides[1] +
	                   head * tensor->strides[2];

	return own->host + tensor->offset + (uint64_t)at * element_bytes(own->dtype);
}

void dense_init(struct dense *dense, uint32_t dtype)
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

struct fa_sequence_copy dense_copy(const struct dense *dense, uint64_t sequence, uint32_t layer,
                                   uint64_t first, int64_t n)
{
	const int64_t k[] = { n, HEADS, DIM }, v[] = { n, HEADS, DIM_V };
	struct fa_sequence_copy copy = {
		.size = sizeof(copy), .sequence = sequence, .layer = layer, .first = first
	};

	fa_tensor_init(&copy.k, dense->buffer, 0, dense->dtype, 3, k);
	fa_tensor_init(&copy.v, dense->buffer, TOKENS_MAX * dense->k_row, dense->dtype, 3, v);
	return copy;
}

void gather(const struct own *own, uint32_t layer, const uint32_t *pages, uint32_t offset,
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

uint64_t cache_new(uint32_t dtype, uint32_t store, bool token_scales, uint32_t page_tokens)
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

uint64_t sequence_new(uint64_t cache)
{
	uint64_t sequence;

	must(fa_sequence_create(single_client, cache, &sequence), "sequence");
	return sequence;
}

struct fa_step *begin(uint64_t sequence, uint32_t n)
{
	const struct fa_step_item item = { .sequence = sequence, .n_new = n };

	return single_begin(&item, 1);
}

void commit(struct fa_step *step)
{
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
}

void scene_open(struct scene *scene)
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

void scene_close(struct scene *scene)
{
	must(fa_cache_remove(single_client, scene->cache), "remove");
	own_deinit(&scene->own);
}

struct fa_sequence_pages read_of(const struct scene *scene)
{
	return request_of(&scene->own, scene->sequence, scene->pages, 0, 40, 0);
}
