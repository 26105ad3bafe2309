/* A tile is a layer of some tokens. Pure functions, any thread. */
#include "kernels/cpu/own-copy.h"

#include "kernels/cpu/page-row.h"
#include "kernels/quantise.h"

#include <string.h>

#define TOKENS 64

static uint32_t n_tokens(const struct fa_paged_own_copy *copy)
{
	return copy->step->lengths[0] - copy->step->lengths_before[0];
}

static int64_t chunks(const struct fa_paged_own_copy *copy)
{
	return ((int64_t)n_tokens(copy) + TOKENS - 1) / TOKENS;
}

int64_t fa_cpu_own_copy_tiles(const struct fa_paged_own_copy *copy)
{
	return copy->n_layers * chunks(copy);
}

/* Tokens that follow one another in a page of the pool and in a page of the client's. */
struct run {
	struct fa_cpu_page_row row; /* the first token's */
	int64_t page, place;        /* where the first token lies in the client's tensors */
	uint32_t count;
};

/* One of K and V. */
struct side {
	bool is_v;
	int32_t dim;
	const struct fa_attention_tensor *tensor; /* strides */
	char *data;
	char *rows;          /* head 0, first token of the run */
	int64_t head_stride; /* bytes in the pool */
	int64_t row_bytes;   /* of a token and head in the pool */
	float *scales;       /* of the first token, or NULL */
};

static char *own_row(const struct side *side, const struct run *run, int64_t bytes, uint32_t token,
                     int32_t head)
{
	const struct fa_attention_tensor *t = side->tensor;

	return side->data + (run->page * t->stride_batch + (run->place + token) * t->stride_token +
	                     head * t->stride_head) *
	                            bytes;
}

static void copy_codes(const struct fa_paged_own_copy *copy, const struct side *side, int32_t layer,
                       int32_t head, char *own, char *pool, float *token_scale, bool writes)
{
	const struct fa_paged_cache *cache = copy->cache;
	const float *scales = side->is_v ? cache->v_scales : cache->k_scales;
	const float scale = scales ? scales[(int64_t)layer * cache->kv_heads + head] : *token_scale;
	float values[FA_ATTENTION_HEAD_DIM_V_MAX];

	if (!writes) {
		fa_dequantise_row(cache->store, (const uint8_t *)pool, scale, values, side->dim);
		fa_floats_to(cache->dtype, own, values, side->dim);
		return;
	}
	fa_floats_of(cache->dtype, values, own, side->dim);
	if (scales)
		fa_quantise_row(cache->store, values, side->dim, scale, (uint8_t *)pool);
	else
		*token_scale = fa_quantise_token(cache->store, values, side->dim, (uint8_t *)pool);
}

static void copy_head(const struct fa_paged_own_copy *copy, const struct side *side,
                      const struct run *run, int32_t layer, int32_t head, bool writes)
{
	const struct fa_paged_cache *cache = copy->cache;
	const int64_t bytes = fa_cpu_element_bytes(cache->dtype);
	const size_t own_bytes = (size_t)(side->dim * bytes);
	/* Rows that lie behind one another on both sides are copied at once. */
	const bool dense = cache->store == FA_PAGED_PLAIN &&
	                   side->row_bytes == (int64_t)own_bytes &&
	                   side->tensor->stride_token == side->dim;
	const uint32_t each = dense ? run->count : 1;

	for (uint32_t i = 0; i < run->count; i += each) {
		char *pool = side->rows + head * side->head_stride + i * side->row_bytes;
		char *own = own_row(side, run, bytes, i, head);

		if (cache->store != FA_PAGED_PLAIN)
			copy_codes(copy, side, layer, head, own, pool,
			           side->scales ? side->scales + head * run->row.scale_stride + i
			                        : NULL,
			           writes);
		else
			memcpy(writes ? pool : own, writes ? own : pool, each * own_bytes);
	}
}

static void copy_run(const struct fa_paged_own_copy *copy, const struct run *run, int32_t index,
                     bool writes)
{
	const struct fa_paged_cache *cache = copy->cache;
	const struct fa_cpu_page_row *row = &run->row;
	const struct side sides[] = {
		{
			.dim = cache->head_dim,
			.tensor = &copy->k,
			.data = copy->k_data ? copy->k_data[index] : NULL,
			.rows = row->k,
			.head_stride = row->k_stride,
			.row_bytes = row->k_stride / cache->page_tokens,
			.scales = row->k_scale,
		},
		{
			.is_v = true,
			.dim = cache->head_dim_v,
			.tensor = &copy->v,
			.data = copy->v_data ? copy->v_data[index] : NULL,
			.rows = row->v,
			.head_stride = row->v_stride,
			.row_bytes = row->v_stride / cache->page_tokens,
			.scales = row->v_scale,
		},
	};

	for (int i = 0; i < 2; i++)
		for (int32_t h = 0; sides[i].data && h < cache->kv_heads; h++)
			copy_head(copy, &sides[i], run, copy->layer + index, h, writes);
}

static uint32_t min(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

void fa_cpu_own_copy_tile(const struct fa_paged_own_copy *copy, bool writes, int64_t tile)
{
	const struct fa_paged_cache *cache = copy->cache;
	const struct fa_paged_step *step = copy->step;
	const int32_t index = (int32_t)(tile / chunks(copy));
	const uint32_t page_tokens = (uint32_t)copy->page_tokens;
	uint32_t i = (uint32_t)(tile % chunks(copy)) * TOKENS;
	const uint32_t end = min(i + TOKENS, n_tokens(copy));
	struct run run;

	for (; i < end; i += run.count) {
		const uint32_t token = step->lengths_before[0] + i;
		const uint64_t at = (uint64_t)copy->offset + i;
		const uint32_t place = (uint32_t)(at % page_tokens);

		run.page = copy->pages[at / page_tokens];
		run.place = place;
		run.count = min(end - i, page_tokens - place);
		run.count = min(run.count, (uint32_t)cache->page_tokens -
		                                   token % (uint32_t)cache->page_tokens);
		fa_cpu_page_row_find(cache, copy->layer + index, step->table, step->table_start[0],
		                     token, &run.row);
		copy_run(copy, &run, index, writes);
	}
}
