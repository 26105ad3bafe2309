/*
 * Checks of a paged request that hold for every kernel. Pure functions, any thread; they read only
 * host arrays.
 */
#include "kernels/paged.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#define HEADS_MAX 65536

static int __attribute__((format(printf, 4, 5)))
refuse(int error, char *text, size_t text_bytes, const char *format, ...)
{
	va_list args;

	if (text && text_bytes > 0) {
		va_start(args, format);
		vsnprintf(text, text_bytes, format, args);
		va_end(args);
	}
	return error;
}

#define REFUSE(error, ...) return refuse(error, text, text_bytes, __VA_ARGS__)

static int64_t element_bytes(const struct fa_paged_cache *cache)
{
	if (cache->store != FA_PAGED_PLAIN)
		return 1;
	return cache->dtype == FA_ATTENTION_F32 ? 4 : 2;
}

void fa_paged_page_bytes(const struct fa_paged_cache *cache, int64_t *ret_k_bytes,
                         int64_t *ret_v_bytes)
{
	int64_t rows = (int64_t)cache->kv_heads * cache->page_tokens;

	int64_t scales = cache->store != FA_PAGED_PLAIN && !cache->k_scales
	                         ? rows * (int64_t)sizeof(float)
	                         : 0;

	*ret_k_bytes = rows * cache->head_dim * element_bytes(cache) + scales;
	*ret_v_bytes = cache->v_offset ? rows * cache->head_dim_v * element_bytes(cache) + scales
	                               : 0;
}

static int check_dtype(enum fa_attention_dtype dtype, char *text, size_t text_bytes)
{
	if (dtype != FA_ATTENTION_F32 && dtype != FA_ATTENTION_F16 && dtype != FA_ATTENTION_BF16)
		REFUSE(-ENOTSUP, "dtype %d is not supported: fp32 (%d), fp16 (%d) or bf16 (%d)",
		       (int)dtype, FA_ATTENTION_F32, FA_ATTENTION_F16, FA_ATTENTION_BF16);
	return 0;
}

static int check_dim(const char *name, int32_t dim, int32_t max, char *text, size_t text_bytes)
{
	if (dim <= 0)
		REFUSE(-EINVAL, "%s %" PRId32 " is not positive", name, dim);
	if (dim > max || dim % 8 != 0)
		REFUSE(-ENOTSUP,
		       "%s %" PRId32 " is not supported: at most %" PRId32 ", a multiple of 8",
		       name, dim, max);
	return 0;
}

static int check_heads(const char *name, int32_t heads, char *text, size_t text_bytes)
{
	if (heads <= 0)
		REFUSE(-EINVAL, "%s %" PRId32 " is not positive", name, heads);
	if (heads > HEADS_MAX)
		REFUSE(-ENOTSUP, "%s %" PRId32 " is not supported: at most %d", name, heads,
		       HEADS_MAX);
	return 0;
}

static int check_cache(const struct fa_paged_cache *cache, char *text, size_t text_bytes)
{
	int r;

	r = check_dtype(cache->dtype, text, text_bytes);
	if (r < 0)
		return r;
	r = check_heads("kv_heads", cache->kv_heads, text, text_bytes);
	if (r < 0)
		return r;
	r = check_dim("head_dim", cache->head_dim, FA_ATTENTION_HEAD_DIM_MAX, text, text_bytes);
	if (r < 0)
		return r;
	r = check_dim("head_dim_v", cache->head_dim_v, FA_ATTENTION_HEAD_DIM_V_MAX, text,
	              text_bytes);
	if (r < 0)
		return r;
	if (cache->page_tokens < FA_PAGED_PAGE_TOKENS_MIN ||
	    cache->page_tokens > FA_PAGED_PAGE_TOKENS_MAX ||
	    cache->page_tokens % FA_PAGED_PAGE_TOKENS_MIN != 0)
		REFUSE(-ENOTSUP, "page_tokens %" PRId32 " is not a multiple of %d from %d to %d",
		       cache->page_tokens, FA_PAGED_PAGE_TOKENS_MIN, FA_PAGED_PAGE_TOKENS_MIN,
		       FA_PAGED_PAGE_TOKENS_MAX);
	if (cache->layers <= 0)
		REFUSE(-EINVAL, "layers %" PRId32 " is not positive", cache->layers);
	if (cache->layer_stride < 0 || cache->layer_stride % 16 != 0)
		REFUSE(-EINVAL, "layer_stride %" PRId64 " is not a multiple of 16",
		       cache->layer_stride);
	if (cache->v_offset < 0 || cache->v_offset % 16 != 0)
		REFUSE(-EINVAL, "v_offset %" PRId64 " is not a multiple of 16", cache->v_offset);
	if (cache->v_offset == 0 && cache->head_dim_v > cache->head_dim)
		REFUSE(-EINVAL,
		       "head_dim_v %" PRId32 " is larger than head_dim %" PRId32
		       ", whose front V is to be",
		       cache->head_dim_v, cache->head_dim);
	if (cache->store < FA_PAGED_PLAIN || cache->store > FA_PAGED_INT8)
		REFUSE(-ENOTSUP, "store %d is not supported: plain (%d), e4m3 (%d) or int8 (%d)",
		       (int)cache->store, FA_PAGED_PLAIN, FA_PAGED_E4M3, FA_PAGED_INT8);
	if (cache->v_offset != 0 && !cache->k_scales != !cache->v_scales)
		REFUSE(-EINVAL, "scales of %s are given without those of %s",
		       cache->k_scales ? "K" : "V", cache->k_scales ? "V" : "K");
	return 0;
}

int fa_paged_check_cache(const struct fa_paged_cache *cache, char *text, size_t text_bytes)
{
	return check_cache(cache, text, text_bytes);
}

static int check_layer(const struct fa_paged_cache *cache, int32_t layer, char *text,
                       size_t text_bytes)
{
	if (layer < 0 || layer >= cache->layers)
		REFUSE(-EINVAL, "layer %" PRId32 " is not below %" PRId32, layer, cache->layers);
	return 0;
}

/* The table must have an entry for each page of tokens [first, length). */
static int check_table(int32_t b, uint32_t start, uint32_t first, uint32_t length,
                       int32_t page_tokens, uint32_t entries, char *text, size_t text_bytes)
{
	uint32_t page = first / (uint32_t)page_tokens, begin = start + page;
	uint64_t pages = ((uint64_t)length + (uint32_t)page_tokens - 1) / (uint32_t)page_tokens;

	if (length > first && begin + (pages - page) > entries)
		REFUSE(-EINVAL,
		       "sequence %" PRId32 " has table entries %" PRIu32 " to %" PRIu64
		       ", the table has %" PRIu32,
		       b, begin, begin + (pages - page), entries);
	return 0;
}

static int check_step(const struct fa_paged_cache *cache, const struct fa_paged_step *step,
                      char *text, size_t text_bytes)
{
	int r;

	if (step->batch <= 0)
		REFUSE(-EINVAL, "batch %" PRId32 " is not positive", step->batch);
	if (step->cu_new[0] != 0)
		REFUSE(-EINVAL, "cu_new[0] is %" PRIu32 ", not 0", step->cu_new[0]);
	for (int32_t b = 0; b < step->batch; b++) {
		uint32_t length = step->lengths[b];
		uint32_t before = step->lengths_before[b], n_new;

		if (step->cu_new[b + 1] < step->cu_new[b])
			REFUSE(-EINVAL,
			       "cu_new[%" PRId32 "] %" PRIu32 " is below its predecessor %" PRIu32,
			       b + 1, step->cu_new[b + 1], step->cu_new[b]);
		if (length > FA_PAGED_LENGTH_MAX)
			REFUSE(-ENOTSUP,
			       "length %" PRIu32 " of sequence %" PRId32
			       " is not supported: at most %" PRIu32,
			       length, b, FA_PAGED_LENGTH_MAX);
		n_new = step->cu_new[b + 1] - step->cu_new[b];
		if (n_new > FA_PAGED_LENGTH_MAX)
			REFUSE(-ENOTSUP,
			       "sequence %" PRId32 " has %" PRIu32 " new tokens, at most %" PRIu32
			       " are supported",
			       b, n_new, FA_PAGED_LENGTH_MAX);
		if (before != length && (before > length || length - before != n_new))
			REFUSE(-EINVAL,
			       "sequence %" PRId32 " grows from %" PRIu32 " to %" PRIu32
			       " tokens, with %" PRIu32 " new ones",
			       b, before, length, n_new);
		if (step->first && step->first[b] > length)
			REFUSE(-EINVAL,
			       "first[%" PRId32 "] %" PRIu32 " is beyond the length %" PRIu32, b,
			       step->first[b], length);
		r = check_table(b, step->table_start[b], step->first ? step->first[b] : 0, length,
		                cache->page_tokens, step->table_entries, text, text_bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

static int check_trees(const struct fa_paged_attention *p, char *text, size_t text_bytes)
{
	if (!p->tree)
		return 0;
	for (int32_t b = 0; b < p->step->batch; b++) {
		uint32_t n_new = p->step->cu_new[b + 1] - p->step->cu_new[b];

		if (p->tree_start[b] == FA_PAGED_NO_TREE || n_new == 0)
			continue;
		if (n_new > p->step->lengths[b])
			REFUSE(-EINVAL,
			       "sequence %" PRId32 " has a tree of %" PRIu32
			       " tokens and a length of %" PRIu32,
			       b, n_new, p->step->lengths[b]);
		if (!p->positions &&
		    (p->window_left >= 0 || p->window_right >= 0 || p->chunk_tokens ||
		     p->pattern.block_tokens || p->alibi_slopes))
			REFUSE(-EINVAL,
			       "trees with windows, chunks, patterns or ALiBi need positions");
	}
	return 0;
}

static int check_score(float scale, float softcap, int64_t window_left, int64_t window_right,
                       int64_t chunk_tokens, char *text, size_t text_bytes)
{
	if (!isfinite(scale))
		REFUSE(-EINVAL, "scale %g is not finite", (double)scale);
	if (!isfinite(softcap) || softcap < 0)
		REFUSE(-EINVAL, "softcap %g is not a finite number of at least 0", (double)softcap);
	if (window_left < -1)
		REFUSE(-EINVAL, "window_left %" PRId64 " is below -1", window_left);
	if (window_right < -1)
		REFUSE(-EINVAL, "window_right %" PRId64 " is below -1", window_right);
	if (chunk_tokens < 0)
		REFUSE(-EINVAL, "chunk_tokens %" PRId64 " is negative", chunk_tokens);
	return 0;
}

static int check_attention(const struct fa_paged_attention *p, char *text, size_t text_bytes)
{
	int r;

	r = check_cache(p->cache, text, text_bytes);
	if (r < 0)
		return r;
	r = check_layer(p->cache, p->layer, text, text_bytes);
	if (r < 0)
		return r;
	r = check_step(p->cache, p->step, text, text_bytes);
	if (r < 0)
		return r;
	r = check_heads("heads", p->heads, text, text_bytes);
	if (r < 0)
		return r;
	if (p->heads % p->cache->kv_heads != 0)
		REFUSE(-EINVAL, "heads %" PRId32 " is not a multiple of kv_heads %" PRId32,
		       p->heads, p->cache->kv_heads);
	r = check_score(p->scale, p->softcap, p->window_left, p->window_right, p->chunk_tokens,
	                text, text_bytes);
	if (r < 0)
		return r;
	r = fa_attention_pattern_check(&p->pattern, text, text_bytes);
	if (r < 0)
		return r;
	return check_trees(p, text, text_bytes);
}

static int check_append(const struct fa_paged_append *p, enum fa_paged_op op, char *text,
                        size_t text_bytes)
{
	const struct fa_paged_rotary *rotary = &p->rotary;
	int r;

	r = check_cache(p->cache, text, text_bytes);
	if (r < 0)
		return r;
	r = check_layer(p->cache, p->layer, text, text_bytes);
	if (r < 0)
		return r;
	r = check_step(p->cache, p->step, text, text_bytes);
	if (r < 0)
		return r;
	if (op == FA_PAGED_READ)
		return 0;
	if (p->heads < 0 || p->heads > HEADS_MAX)
		REFUSE(-EINVAL, "heads %" PRId32 " is not from 0 to %d", p->heads, HEADS_MAX);
	if (rotary->dim < 0 || rotary->dim % 2 != 0 || rotary->dim > p->cache->head_dim)
		REFUSE(-EINVAL,
		       "rotary dim %" PRId32 " is not an even number of at most head_dim %" PRId32,
		       rotary->dim, p->cache->head_dim);
	if (rotary->first < 0 || rotary->first % 8 != 0 ||
	    rotary->first > p->cache->head_dim - rotary->dim)
		REFUSE(-EINVAL,
		       "rotary first %" PRId32 " is not a multiple of 8 such that %" PRId32
		       " elements from it on are within head_dim %" PRId32,
		       rotary->first, rotary->dim, p->cache->head_dim);
	if (rotary->dim == 0)
		return 0;
	if (!rotary->cos != !rotary->sin)
		REFUSE(-EINVAL, "rotary %s is given without %s", rotary->cos ? "cos" : "sin",
		       rotary->cos ? "sin" : "cos");
	if (rotary->cos && rotary->table_positions == 0)
		REFUSE(-EINVAL, "the rotary table has no positions");
	if (!rotary->cos && (!isfinite(rotary->base) || rotary->base <= 0))
		REFUSE(-EINVAL, "rotary base %g is not a positive number", rotary->base);
	if (!rotary->cos && !isfinite(rotary->scale))
		REFUSE(-EINVAL, "rotary scale %g is not finite", rotary->scale);
	return 0;
}

static int check_merge(const struct fa_paged_merge *p, char *text, size_t text_bytes)
{
	int r;

	r = check_dtype(p->dtype, text, text_bytes);
	if (r < 0)
		return r;
	r = check_heads("heads", p->heads, text, text_bytes);
	if (r < 0)
		return r;
	if (p->tokens < 0 || p->tokens > UINT32_MAX)
		REFUSE(-EINVAL, "tokens %" PRId64 " is not from 0 to %" PRIu32, p->tokens,
		       UINT32_MAX);
	return check_dim("head_dim_v", p->head_dim_v, FA_ATTENTION_HEAD_DIM_V_MAX, text,
	                 text_bytes);
}

static int check_move(const struct fa_paged_move *p, char *text, size_t text_bytes)
{
	int r;

	r = check_cache(p->cache, text, text_bytes);
	if (r < 0)
		return r;
	if (p->batch <= 0)
		REFUSE(-EINVAL, "batch %" PRId32 " is not positive", p->batch);
	if (p->cu_moves[0] != 0)
		REFUSE(-EINVAL, "cu_moves[0] is %" PRIu32 ", not 0", p->cu_moves[0]);
	for (int32_t b = 0; b < p->batch; b++) {
		uint32_t begin = p->cu_moves[b], end = p->cu_moves[b + 1];

		if (end < begin)
			REFUSE(-EINVAL,
			       "cu_moves[%" PRId32 "] %" PRIu32
			       " is below its predecessor %" PRIu32,
			       b + 1, end, begin);
		for (uint32_t i = begin; i < end; i++) {
			if (i > begin && p->from[i] <= p->from[i - 1])
				REFUSE(-EINVAL,
				       "from[%" PRIu32 "] %" PRIu32
				       " is not above its predecessor %" PRIu32,
				       i, p->from[i], p->from[i - 1]);
		}
		if (end == begin)
			continue;
		if (p->from[begin] < p->to[b])
			REFUSE(-EINVAL,
			       "sequence %" PRId32 " moves token %" PRIu32
			       " towards its end, to %" PRIu32,
			       b, p->from[begin], p->to[b]);
		if (p->from[end - 1] >= FA_PAGED_LENGTH_MAX)
			REFUSE(-ENOTSUP,
			       "token %" PRIu32 " of sequence %" PRId32 " is not below %" PRIu32,
			       p->from[end - 1], b, FA_PAGED_LENGTH_MAX);
		r = check_table(b, p->table_start[b], p->to[b], p->from[end - 1] + 1,
		                p->cache->page_tokens, p->table_entries, text, text_bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- a client's own pages */

static int check_own(const struct fa_paged_own *own, char *text, size_t text_bytes)
{
	int r;

	r = check_dtype(own->dtype, text, text_bytes);
	if (r < 0)
		return r;
	r = check_heads("kv_heads", own->kv_heads, text, text_bytes);
	if (r < 0)
		return r;
	r = check_dim("head_dim", own->head_dim, FA_ATTENTION_HEAD_DIM_MAX, text, text_bytes);
	if (r < 0)
		return r;
	r = check_dim("head_dim_v", own->head_dim_v, FA_ATTENTION_HEAD_DIM_V_MAX, text, text_bytes);
	if (r < 0)
		return r;
	if (own->page_tokens <= 0)
		REFUSE(-EINVAL, "page_tokens %" PRId32 " is not positive", own->page_tokens);
	if (own->page_tokens > FA_PAGED_PAGE_TOKENS_MAX)
		REFUSE(-ENOTSUP, "page_tokens %" PRId32 " is not supported: at most %d",
		       own->page_tokens, FA_PAGED_PAGE_TOKENS_MAX);
	if (own->pages <= 0)
		REFUSE(-EINVAL, "pages %" PRId32 " is not positive", own->pages);
	if (own->store != FA_PAGED_PLAIN && own->store != FA_PAGED_E4M3)
		REFUSE(-ENOTSUP,
		       "store %d is not supported in a client's pages: plain (%d) or e4m3 (%d)",
		       (int)own->store, FA_PAGED_PLAIN, FA_PAGED_E4M3);
	return 0;
}

/* Checks a number of rows or tokens against [0, @max]. */
static int check_count(const char *name, int64_t count, int64_t max, char *text, size_t text_bytes)
{
	if (count < 0)
		REFUSE(-EINVAL, "%s %" PRId64 " is negative", name, count);
	if (count > max)
		REFUSE(-ENOTSUP, "%s %" PRId64 " is not supported: at most %" PRId64, name, count,
		       max);
	return 0;
}

static int check_own_attention(const struct fa_paged_own_attention *p, char *text,
                               size_t text_bytes)
{
	int r;

	r = check_own(p->pages, text, text_bytes);
	if (r < 0)
		return r;
	if (p->batch <= 0)
		REFUSE(-EINVAL, "batch %" PRId32 " is not positive", p->batch);
	r = check_heads("heads", p->heads, text, text_bytes);
	if (r < 0)
		return r;
	if (p->heads % p->pages->kv_heads != 0)
		REFUSE(-EINVAL, "heads %" PRId32 " is not a multiple of kv_heads %" PRId32,
		       p->heads, p->pages->kv_heads);
	r = check_count("max_q", p->max_q, FA_PAGED_LENGTH_MAX, text, text_bytes);
	if (r < 0)
		return r;
	r = check_count("total_q", p->total_q, INT32_MAX, text, text_bytes);
	if (r < 0)
		return r;
	r = check_count("max_k", p->max_k, FA_PAGED_LENGTH_MAX, text, text_bytes);
	if (r < 0)
		return r;
	if (!p->cu_q && p->total_q != (int64_t)p->batch * p->max_q)
		REFUSE(-EINVAL,
		       "total_q %" PRId64 " is not batch %" PRId32 " x max_q %" PRId32
		       ", as it is without cu_q",
		       p->total_q, p->batch, p->max_q);
	if (p->table_columns < 0)
		REFUSE(-EINVAL, "table_columns %" PRId32 " is negative", p->table_columns);
	r = check_score(p->scale, p->softcap, p->window_left, p->window_right, p->chunk_tokens,
	                text, text_bytes);
	if (r < 0)
		return r;
	return fa_attention_pattern_check(&p->pattern, text, text_bytes);
}

static int check_own_append(const struct fa_paged_own_append *p, char *text, size_t text_bytes)
{
	int r;

	r = check_own(p->pages, text, text_bytes);
	if (r < 0)
		return r;
	return check_count("tokens", p->tokens, INT32_MAX, text, text_bytes);
}

static int check_own_copy(const struct fa_paged_own_copy *p, enum fa_paged_op op, char *text,
                          size_t text_bytes)
{
	uint64_t places;
	int r;

	r = check_cache(p->cache, text, text_bytes);
	if (r < 0)
		return r;
	r = check_step(p->cache, p->step, text, text_bytes);
	if (r < 0)
		return r;
	if (p->step->batch != 1)
		REFUSE(-EINVAL, "batch is %" PRId32 ", not 1", p->step->batch);
	if (p->n_layers <= 0)
		REFUSE(-EINVAL, "n_layers %" PRId32 " is not positive", p->n_layers);
	if (p->layer < 0 || p->n_layers > p->cache->layers - p->layer)
		REFUSE(-EINVAL,
		       "layers from %" PRId32 " on, %" PRId32 " of them, are not below %" PRId32,
		       p->layer, p->n_layers, p->cache->layers);
	if (!p->k_data && !p->v_data)
		REFUSE(-EINVAL, "neither K nor V is copied");
	if (op == FA_PAGED_WRITE_OWN && p->v_data && p->cache->v_offset == 0)
		REFUSE(-EINVAL, "V is the front of K, and cannot be written");
	if (p->page_tokens <= 0)
		REFUSE(-EINVAL, "page_tokens %" PRId32 " is not positive", p->page_tokens);
	places = (uint64_t)p->offset + p->step->lengths[0] - p->step->lengths_before[0];
	if (places > (uint64_t)p->n_pages * (uint32_t)p->page_tokens)
		REFUSE(-EINVAL, "%" PRIu32 " pages of %" PRId32 " tokens have no place %" PRIu64,
		       p->n_pages, p->page_tokens, places - 1);
	return 0;
}

int fa_paged_check(const struct fa_paged_request *request, char *text, size_t text_bytes)
{
	switch (request->op) {
	case FA_PAGED_ATTEND:
		return check_attention(&request->attention, text, text_bytes);
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		return check_append(&request->append, request->op, text, text_bytes);
	case FA_PAGED_MERGE:
		return check_merge(&request->merge, text, text_bytes);
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		if (request->pages.count < 0)
			REFUSE(-EINVAL, "count %" PRId32 " is negative", request->pages.count);
		return check_cache(request->pages.cache, text, text_bytes);
	case FA_PAGED_MOVE:
		return check_move(&request->move, text, text_bytes);
	case FA_PAGED_ATTEND_OWN:
		return check_own_attention(&request->own_attention, text, text_bytes);
	case FA_PAGED_APPEND_OWN:
		return check_own_append(&request->own_append, text, text_bytes);
	case FA_PAGED_READ_OWN:
	case FA_PAGED_WRITE_OWN:
		return check_own_copy(&request->own_copy, request->op, text, text_bytes);
	}
	REFUSE(-EINVAL, "operation %d is unknown", (int)request->op);
}

void fa_paged_tree_positions(const struct fa_paged_step *step, const uint32_t *tree,
                             const uint32_t *tree_start, uint32_t *ret_positions)
{
	for (int32_t b = 0; b < step->batch; b++) {
		uint32_t n_new = step->cu_new[b + 1] - step->cu_new[b];
		uint32_t old = step->lengths[b] - n_new, n_words = (n_new + 31) / 32;
		uint32_t *positions = ret_positions + step->cu_new[b];

		for (uint32_t i = 0; i < n_new; i++) {
			const uint32_t *row;
			uint32_t seen = 0;

			positions[i] = old + i;
			if (!tree || tree_start[b] == FA_PAGED_NO_TREE)
				continue;
			row = tree + tree_start[b] + (size_t)i * n_words;
			for (uint32_t w = 0; w < n_words; w++) {
				uint32_t bits = n_new - w * 32 < 32 ? (1u << (n_new - w * 32)) - 1
				                                    : ~0u;

				seen += (uint32_t)__builtin_popcount(row[w] & bits);
			}
			positions[i] = old + (seen > 0 ? seen - 1 : 0);
		}
	}
}
