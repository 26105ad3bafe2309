#include "kernels/vulkan/plan.h"

#include "kernels/vulkan/pool.h"
#include "kernels/vulkan/scores.h"
#include "kernels/vulkan/tile.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

int fa_vulkan_check_cache(const struct fa_paged_cache *cache, char *text, size_t text_bytes)
{
	if (cache->head_dim <= FA_VULKAN_HEAD_DIM_MAX &&
	    cache->head_dim_v <= FA_VULKAN_HEAD_DIM_V_MAX)
		return 0;
	if (text && text_bytes)
		snprintf(text, text_bytes,
		         "head_dim %" PRId32 " and head_dim_v %" PRId32
		         " are not supported by Vulkan kernels: at most %d and %d",
		         cache->head_dim, cache->head_dim_v, FA_VULKAN_HEAD_DIM_MAX,
		         FA_VULKAN_HEAD_DIM_V_MAX);
	return -ENOTSUP;
}

/* Returns the request's dims, of a cache or of a client's own pages. */
static void find_dims(const struct fa_paged_request *request, struct fa_paged_cache *ret_cache)
{
	const struct fa_paged_own *own = NULL;

	switch (request->op) {
	case FA_PAGED_ATTEND:
		*ret_cache = *request->attention.cache;
		return;
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		*ret_cache = *request->append.cache;
		return;
	case FA_PAGED_MERGE:
		*ret_cache = (struct fa_paged_cache){ .head_dim_v = request->merge.head_dim_v };
		return;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		*ret_cache = *request->pages.cache;
		return;
	case FA_PAGED_MOVE:
		*ret_cache = *request->move.cache;
		return;
	case FA_PAGED_READ_OWN:
	case FA_PAGED_WRITE_OWN:
		*ret_cache = *request->own_copy.cache;
		return;
	case FA_PAGED_ATTEND_OWN:
		own = request->own_attention.pages;
		break;
	case FA_PAGED_APPEND_OWN:
		own = request->own_append.pages;
		break;
	}
	*ret_cache = (struct fa_paged_cache){ 0 };
	if (own) {
		ret_cache->head_dim = own->head_dim;
		ret_cache->head_dim_v = own->head_dim_v;
	}
}

int fa_vulkan_check_paged(const struct fa_paged_request *request, char *text, size_t text_bytes)
{
	struct fa_paged_cache cache;

	find_dims(request, &cache);
	return fa_vulkan_check_cache(&cache, text, text_bytes);
}

/* ---- attention over the pool */

static void plan_attention(const struct fa_vulkan_pool *pool, const struct fa_paged_attention *p,
                           struct fa_vulkan_writer *writer)
{
	const struct fa_paged_cache *cache = p->cache;
	const struct fa_paged_step *step = p->step;
	const uint32_t group = (uint32_t)(p->heads / cache->kv_heads);
	const int64_t layer_scales = (int64_t)p->layer * cache->kv_heads;
	const size_t scale_bytes = (size_t)cache->kv_heads * sizeof(float);
	const size_t n_new = step->cu_new[step->batch];
	const struct fa_vulkan_scores scores = {
		.scale = p->scale,
		.softcap = p->softcap,
		.causal = p->causal,
		.window_left = p->window_left,
		.window_right = p->window_right,
		.chunk_tokens = p->chunk_tokens,
		.pattern = p->pattern,
		.alibi_slopes = p->alibi_slopes,
		.sinks = p->sinks,
		.heads = p->heads,
	};
	struct fa_vulkan_attend arguments = {
		.q = fa_vulkan_address(p->q.data),
		.result = fa_vulkan_address(p->out.data),
		.lse = fa_vulkan_address(p->lse),
		.chunks = pool->chunks,
		.q_token = p->q.stride_token,
		.q_head = p->q.stride_head,
		.result_token = p->out.stride_token,
		.result_head = p->out.stride_head,
		.lse_token = p->lse_stride_token,
		.lse_head = p->lse_stride_head,
		.layer_offset = p->layer * cache->layer_stride,
		.v_offset = cache->v_offset,
		.batch = (uint32_t)step->batch,
		.kv_heads = (uint32_t)cache->kv_heads,
		.group = group,
		.head_dim = (uint32_t)cache->head_dim,
		.head_dim_v = (uint32_t)cache->head_dim_v,
		.page_tokens = (uint32_t)cache->page_tokens,
		.v_row = fa_vulkan_v_row(cache),
		.token_scales = fa_vulkan_token_scales(cache),
		.chunk_shift = pool->chunk_shift,
	};
	const int64_t bytes = fa_vulkan_element_bytes(cache->dtype);
	struct fa_vulkan_request request = {
		.source = FA_VULKAN_POOL,
		.dtype = cache->dtype,
		.store = cache->store,
		.head_dim = cache->head_dim,
		.head_dim_v = cache->head_dim_v,
		/* Pages begin at multiples of 256 bytes. */
		.begins = fa_vulkan_begins(&p->q, false, bytes) | (uint64_t)cache->layer_stride |
		          (uint64_t)cache->v_offset | (uint64_t)(cache->head_dim * bytes) |
		          (uint64_t)(fa_vulkan_v_row(cache) * bytes),
		.aligned_k = true, /* the pool's rows are */
		.masks = p->pattern.block_tokens,
		.adjusts_scores = p->softcap > 0 || p->alibi_slopes || p->tree,
		.splits = writer->splits,
	};
	uint64_t tiles = 0;
	struct fa_vulkan_sequence *sequences;
	struct fa_vulkan_tile tile;
	size_t tree_words = 0;
	double pairs = 0;
	void *host;

	for (int32_t b = 0; b < step->batch; b++) {
		const uint64_t n = step->cu_new[b + 1] - step->cu_new[b];

		request.most_rows = n * group > request.most_rows ? n * group : request.most_rows;
		request.longest = step->lengths[b] > request.longest ? step->lengths[b]
		                                                     : request.longest;
		pairs += (double)n * step->lengths[b];
	}
	/* Kernels for one row and for many may round differently. */
	if (p->deterministic)
		request.most_rows = UINT64_MAX;
	fa_vulkan_choose_tile(writer->matrices, &request, &tile);
	arguments.sequences = fa_vulkan_reserve(writer, (size_t)step->batch * sizeof(*sequences),
	                                        &host);
	sequences = host;
	arguments.table = fa_vulkan_put_table(writer, cache, step, sequences);
	for (int32_t b = 0; b < step->batch; b++) {
		const uint32_t n = step->cu_new[b + 1] - step->cu_new[b];
		const bool tree = p->tree && n && p->tree_start[b] != FA_PAGED_NO_TREE;

		if (sequences) {
			sequences[b].tile_begin = tiles;
			sequences[b].prefix = p->prefix_lengths ? p->prefix_lengths[b] : 0;
			sequences[b].tree_start = tree ? p->tree_start[b] : FA_VULKAN_NO_TREE;
		}
		if (tree && p->tree_start[b] + (size_t)n * ((n + 31) / 32) > tree_words)
			tree_words = p->tree_start[b] + (size_t)n * ((n + 31) / 32);
		tiles += ((uint64_t)n * group + tile.rows - 1) / tile.rows *
		         (uint64_t)cache->kv_heads;
	}
	if (!tiles)
		return;
	if (tree_words) {
		arguments.tree = fa_vulkan_put(writer, p->tree, tree_words * sizeof(uint32_t));
		arguments.positions = fa_vulkan_put(writer, p->positions, n_new * sizeof(uint32_t));
	}
	if (cache->store != FA_PAGED_PLAIN && cache->k_scales) {
		arguments.k_scales = fa_vulkan_put(writer, cache->k_scales + layer_scales,
		                                   scale_bytes);
		arguments.v_scales = arguments.k_scales;
		if (cache->v_offset)
			arguments.v_scales = fa_vulkan_put(writer, cache->v_scales + layer_scales,
			                                   scale_bytes);
	}
	fa_vulkan_put_scores(writer, &scores, &arguments);
	fa_vulkan_add_attention(writer, &tile, &arguments, tiles,
	                        2 * pairs * p->heads * (cache->head_dim + cache->head_dim_v) /
	                                (double)tiles);
}

/* ---- attention over a client's own pages */

static void plan_own_attention(const struct fa_paged_own_attention *p,
                               struct fa_vulkan_writer *writer)
{
	const struct fa_paged_own *own = p->pages;
	const uint32_t group = (uint32_t)(p->heads / own->kv_heads);
	const int64_t columns_tokens = (int64_t)p->table_columns * own->page_tokens;
	const int64_t longest = p->max_k < columns_tokens ? p->max_k : columns_tokens;
	const struct fa_vulkan_scores scores = {
		.scale = p->scale,
		.softcap = p->softcap,
		.causal = p->causal,
		.window_left = p->window_left,
		.window_right = p->window_right,
		.chunk_tokens = p->chunk_tokens,
		.pattern = p->pattern,
		.alibi_slopes = p->alibi_slopes,
		.sinks = p->sinks,
		.heads = p->heads,
	};
	struct fa_vulkan_attend arguments = {
		.q = fa_vulkan_address(p->q.data),
		.k = fa_vulkan_address(own->k.data),
		.v = fa_vulkan_address(own->v.data),
		.result = fa_vulkan_address(p->out.data),
		.lse = fa_vulkan_address(p->lse),
		.table = fa_vulkan_address(p->table),
		.lengths = fa_vulkan_address(p->lengths),
		.cu_q = fa_vulkan_address(p->cu_q),
		.prefixes = fa_vulkan_address(p->prefix_lengths),
		.k_scales = fa_vulkan_address(own->k_scales),
		.v_scales = fa_vulkan_address(own->v_scales),
		.q_token = p->q.stride_token,
		.q_head = p->q.stride_head,
		.k_batch = own->k.stride_batch,
		.k_token = own->k.stride_token,
		.k_head = own->k.stride_head,
		.v_batch = own->v.stride_batch,
		.v_token = own->v.stride_token,
		.v_head = own->v.stride_head,
		.result_token = p->out.stride_token,
		.result_head = p->out.stride_head,
		.lse_token = p->lse_stride_token,
		.lse_head = p->lse_stride_head,
		.table_stride = p->table_stride,
		.longest = longest,
		.total_q = p->total_q,
		.batch = (uint32_t)p->batch,
		.kv_heads = (uint32_t)own->kv_heads,
		.group = group,
		.head_dim = (uint32_t)own->head_dim,
		.head_dim_v = (uint32_t)own->head_dim_v,
		.n_q = (uint32_t)p->max_q,
		.page_tokens = (uint32_t)own->page_tokens,
		.last_page = (uint32_t)own->pages - 1,
	};
	const int64_t bytes = own->store == FA_PAGED_PLAIN ? fa_vulkan_element_bytes(own->dtype)
	                                                   : 1;
	const uint64_t k_begins = fa_vulkan_begins(&own->k, true, bytes);
	const struct fa_vulkan_request request = {
		.source = FA_VULKAN_OWN,
		.dtype = own->dtype,
		.store = own->store,
		.head_dim = own->head_dim,
		.head_dim_v = own->head_dim_v,
		.most_rows = p->deterministic ? UINT64_MAX : (uint64_t)p->max_q * group,
		.begins = k_begins | fa_vulkan_begins(&own->v, true, bytes) |
		          fa_vulkan_begins(&p->q, false, bytes),
		.longest = longest,
		.aligned_k = k_begins % (uint64_t)(4 * bytes) == 0,
		.masks = p->pattern.block_tokens,
		.adjusts_scores = p->softcap > 0 || p->alibi_slopes,
		.splits = writer->splits,
	};
	struct fa_vulkan_tile tile;
	uint64_t tiles;

	fa_vulkan_choose_tile(writer->matrices, &request, &tile);
	arguments.blocks = ((uint64_t)p->max_q * group + tile.rows - 1) / tile.rows;
	tiles = arguments.blocks * (uint64_t)own->kv_heads * (uint64_t)p->batch;
	if (!tiles || !p->total_q)
		return;
	fa_vulkan_put_scores(writer, &scores, &arguments);
	fa_vulkan_add_attention(writer, &tile, &arguments, tiles,
	                        2.0 * tile.rows * (double)longest *
	                                (own->head_dim + own->head_dim_v));
}

void fa_vulkan_plan_paged(const struct fa_vulkan_pool *pool, const struct fa_paged_request *request,
                          struct fa_vulkan_writer *writer)
{
	switch (request->op) {
	case FA_PAGED_ATTEND:
		plan_attention(pool, &request->attention, writer);
		return;
	case FA_PAGED_ATTEND_OWN:
		plan_own_attention(&request->own_attention, writer);
		return;
	default:
		fa_vulkan_plan_tokens(pool, request, writer);
	}
}
