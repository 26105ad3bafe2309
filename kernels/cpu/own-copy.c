/* A tile is some tokens of a layer. Pure functions, any thread. */
#include "kernels/cpu/own-copy.h"

#include "kernels/cpu/page-row.h"
#include "kernels/quantise.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define TOKENS 64
/* Larger copies bypass the cache. */
#define STREAM_BYTES ((uint64_t)8 << 20)
/* A row is fetched while this many tokens before it are copied. */
#define AHEAD 6
#define LINE 64

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

static bool is_large(const struct fa_paged_own_copy *copy)
{
	const struct fa_paged_cache *cache = copy->cache;
	const int64_t dims = (copy->k_data ? cache->head_dim : 0) +
	                     (copy->v_data ? cache->head_dim_v : 0);

	return (uint64_t)(n_tokens(copy) * (int64_t)copy->n_layers * cache->kv_heads * dims *
	                  fa_cpu_element_bytes(cache->dtype)) > STREAM_BYTES;
}

/* K or V of a tile's tokens. */
struct side {
	bool is_v;
	int32_t dim;
	int64_t pool_head, own_head;      /* bytes from head to head */
	char *pool[TOKENS], *own[TOKENS]; /* each token's row of head 0 */
	float *scales[TOKENS];            /* of head 0 */
	int64_t scale_stride;             /* floats from head to head */
	bool by_token;                    /* heads are closer than tokens in own */
};

static void locate(const struct fa_paged_own_copy *copy, bool is_v, int32_t index, uint32_t first,
                   uint32_t count, struct side *ret_side)
{
	const struct fa_paged_cache *cache = copy->cache;
	const struct fa_paged_step *step = copy->step;
	const struct fa_attention_tensor *tensor = is_v ? &copy->v : &copy->k;
	const int64_t bytes = fa_cpu_element_bytes(cache->dtype);
	const uint32_t page_tokens = (uint32_t)copy->page_tokens;
	const uint32_t pool_tokens = (uint32_t)cache->page_tokens;
	const uint32_t token = step->lengths_before[0] + first, at = copy->offset + first;
	char *const data = (is_v ? copy->v_data : copy->k_data)[index];
	uint32_t in_pool = token % pool_tokens, in_own = at % page_tokens, page = at / page_tokens;
	struct fa_cpu_page_row row = { 0 };
	int64_t k_row = 0, v_row = 0;

	ret_side->is_v = is_v;
	ret_side->dim = is_v ? cache->head_dim_v : cache->head_dim;
	ret_side->own_head = tensor->stride_head * bytes;
	ret_side->by_token = tensor->stride_head <= tensor->stride_token;
	for (uint32_t i = 0; i < count; i++, in_pool++, in_own++) {
		in_pool = in_pool == pool_tokens ? 0 : in_pool;
		if (i == 0 || in_pool == 0)
			fa_cpu_page_row_find(cache, copy->layer + index, step->table,
			                     step->table_start[0], token + i, &row);
		if (i == 0) {
			k_row = row.k_stride / pool_tokens;
			v_row = row.v_stride / pool_tokens;
		}
		if (in_own == page_tokens) {
			in_own = 0;
			++page;
		}
		ret_side->pool[i] = is_v ? row.v : row.k;
		ret_side->scales[i] = is_v ? row.v_scale : row.k_scale;
		ret_side->own[i] = data + (copy->pages[page] * tensor->stride_batch +
		                           in_own * tensor->stride_token) *
		                                  bytes;
		row.k += k_row;
		row.v += v_row;
		if (row.k_scale) {
			row.k_scale++;
			row.v_scale++;
		}
	}
	ret_side->pool_head = is_v ? row.v_stride : row.k_stride;
	ret_side->scale_stride = row.scale_stride;
}

static void copy_codes(const struct fa_paged_own_copy *copy, const struct side *side, int32_t layer,
                       uint32_t i, int32_t head, bool writes)
{
	const struct fa_paged_cache *cache = copy->cache;
	const float *scales = fa_cpu_head_scales(cache, side->is_v, layer);
	float *own_scale = scales ? NULL : side->scales[i] + head * side->scale_stride;
	const float scale = scales ? scales[head] : *own_scale;
	uint8_t *const pool = (uint8_t *)side->pool[i] + head * side->pool_head;
	char *const own = side->own[i] + head * side->own_head;
	float values[FA_ATTENTION_ROW_MAX];

	if (!writes) {
		fa_dequantise_row(cache->store, pool, scale, values, side->dim);
		fa_floats_to(cache->dtype, own, values, side->dim);
		return;
	}
	fa_floats_of(cache->dtype, values, own, side->dim);
	if (scales)
		fa_quantise_row(cache->store, values, side->dim, scale, pool);
	else
		*own_scale = fa_quantise_token(cache->store, values, side->dim, pool);
}

/* @stream: past the cache, as memcpy() does by itself for large copies. */
static void copy_bytes(char *to, const char *from, size_t bytes, bool stream)
{
#ifdef __SSE2__
	if (stream && ((uintptr_t)to | bytes) % 16 == 0) {
		for (size_t at = 0; at < bytes; at += 16)
			_mm_stream_si128((__m128i *)(to + at),
			                 _mm_loadu_si128((const __m128i *)(from + at)));
		return;
	}
#endif
	memcpy(to, from, bytes);
}

static void prefetch(const char *from, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += LINE)
		__builtin_prefetch(from + at);
}

/* Copies rows from token @i on that are contiguous on both sides, up to @end. Returns their
 * number. */
static uint32_t copy_rows(const struct side *side, uint32_t i, uint32_t end, uint32_t count,
                          int32_t head, size_t row_bytes, bool writes, bool stream)
{
	char *const *const sources = writes ? side->own : side->pool;
	const int64_t of_head = head * (writes ? side->own_head : side->pool_head);
	char *const pool = side->pool[i] + head * side->pool_head;
	char *const own = side->own[i] + head * side->own_head;
	uint32_t n = 1;

	while (i + n < end && side->pool[i + n] == side->pool[i] + n * row_bytes &&
	       side->own[i + n] == side->own[i] + n * row_bytes)
		++n;
	if (n == 1 && i + AHEAD < count)
		prefetch(sources[i + AHEAD] + of_head, row_bytes);
	copy_bytes(writes ? pool : own, writes ? own : pool, n * row_bytes, stream && n == 1);
	return n;
}

static void copy_side(const struct fa_paged_own_copy *copy, const struct side *side, int32_t layer,
                      uint32_t count, bool writes, bool stream)
{
	const int32_t heads = copy->cache->kv_heads;
	const size_t row_bytes = (size_t)(side->dim * fa_cpu_element_bytes(copy->cache->dtype));

	if (copy->cache->store != FA_PAGED_PLAIN) {
		for (uint32_t i = 0; i < count; i++)
			for (int32_t h = 0; h < heads; h++)
				copy_codes(copy, side, layer, i, h, writes);
	} else if (writes && side->by_token) {
		/* Follows the order of the sources, which the processor prefetches. */
		for (uint32_t i = 0; i < count; i++)
			for (int32_t h = 0; h < heads; h++)
				copy_rows(side, i, i + 1, count, h, row_bytes, writes, stream);
	} else {
		for (int32_t h = 0; h < heads; h++)
			for (uint32_t i = 0; i < count;)
				i += copy_rows(side, i, count, count, h, row_bytes, writes, stream);
	}
}

void fa_cpu_own_copy_tile(const struct fa_paged_own_copy *copy, bool writes, int64_t tile)
{
	const int32_t index = (int32_t)(tile / chunks(copy));
	const uint32_t first = (uint32_t)(tile % chunks(copy)) * TOKENS,
		       left = n_tokens(copy) - first;
	const uint32_t count = left < TOKENS ? left : TOKENS;
	const bool stream = is_large(copy);
	struct side side;

	for (int is_v = 0; is_v < 2; is_v++) {
		if (!(is_v ? copy->v_data : copy->k_data))
			continue;
		locate(copy, is_v, index, first, count, &side);
		copy_side(copy, &side, copy->layer + index, count, writes, stream);
	}
#ifdef __SSE2__
	if (stream)
		_mm_sfence();
#endif
}
