/*
 * Paged requests: the tiles of each operation, and operations that move tokens. Attention is in
 * paged-plan.c. Tiles write disjoint memory.
 */
#include "kernels/cpu/integer.h"
#include "kernels/cpu/own-copy.h"
#include "kernels/cpu/page-row.h"
#include "kernels/cpu/paged-own.h"
#include "kernels/cpu/paged-plan.h"
#include "kernels/quantise.h"

#include <math.h>
#include <string.h>

#define TOKENS 16
#define MERGE_ROWS 64

static char *tensor_row(const struct fa_attention_tensor *tensor, int64_t bytes, int64_t token,
                        int64_t head)
{
	return (char *)tensor->data +
	       (token * tensor->stride_token + head * tensor->stride_head) * bytes;
}

static int32_t find_sequence(const struct fa_paged_step *step, int64_t token)
{
	int32_t low = 0, high = step->batch;

	while (high - low > 1) {
		int32_t middle = low + (high - low) / 2;

		if (step->cu_new[middle] <= token)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* ---- append and read */

struct append_scratch {
	float cos[FA_ATTENTION_HEAD_DIM_MAX / 2], sin[FA_ATTENTION_HEAD_DIM_MAX / 2];
	float row[FA_ATTENTION_ROW_MAX];
};

static void angles(const struct fa_paged_rotary *rotary, int64_t position,
                   struct append_scratch *scratch)
{
	int32_t half = rotary->dim / 2;

	if (rotary->cos) {
		if (position >= rotary->table_positions)
			position = (int64_t)rotary->table_positions - 1;
		position = position < 0 ? 0 : position;
		memcpy(scratch->cos, rotary->cos + position * half, (size_t)half * sizeof(float));
		memcpy(scratch->sin, rotary->sin + position * half, (size_t)half * sizeof(float));
		return;
	}
	for (int32_t i = 0; i < half; i++) {
		double angle = (double)position * rotary->scale *
		               pow(rotary->base, -2.0 * i / rotary->dim);

		scratch->cos[i] = (float)cos(angle);
		scratch->sin[i] = (float)sin(angle);
	}
}

static void rotate(const struct fa_cpu_isa *isa, const struct fa_paged_append *p, char *to,
                   const char *from, const struct append_scratch *scratch)
{
	int64_t bytes = fa_cpu_element_bytes(p->cache->dtype);
	int64_t first = p->rotary.first * bytes, end = first + p->rotary.dim * bytes;
	int64_t all = p->cache->head_dim * bytes;

	if (p->rotary.dim == 0)
		first = end = 0;
	else
		isa->rotate(p->cache->dtype, to + first, from + first, scratch->cos, scratch->sin,
		            p->rotary.dim, p->rotary.interleaved);
	if (to != from) {
		memcpy(to, from, (size_t)first);
		memcpy(to + end, from + end, (size_t)(all - end));
	}
}

static void append_codes(const struct fa_cpu_isa *isa, const struct fa_paged_append *p,
                         const char *from, bool is_v, int32_t head,
                         const struct fa_cpu_page_row *row, struct append_scratch *scratch)
{
	const struct fa_paged_cache *cache = p->cache;
	int32_t dim = is_v ? cache->head_dim_v : cache->head_dim;
	char *to = is_v ? row->v + head * row->v_stride : row->k + head * row->k_stride;
	const float *scales = fa_cpu_head_scales(cache, is_v, p->layer);
	float *scale = is_v ? row->v_scale : row->k_scale;

	fa_floats_of(cache->dtype, scratch->row, from, dim);
	if (!is_v && p->rotary.dim > 0)
		isa->rotate(FA_ATTENTION_F32, scratch->row + p->rotary.first,
		            scratch->row + p->rotary.first, scratch->cos, scratch->sin,
		            p->rotary.dim, p->rotary.interleaved);
	if (scales)
		fa_quantise_row(cache->store, scratch->row, dim, scales[head], (uint8_t *)to);
	else
		scale[head * row->scale_stride] = fa_quantise_token(cache->store, scratch->row, dim,
		                                                    (uint8_t *)to);
}

static void append_token(const struct fa_cpu_isa *isa, const struct fa_paged_append *p,
                         int64_t token, struct append_scratch *scratch)
{
	const struct fa_paged_step *step = p->step;
	int64_t bytes = fa_cpu_element_bytes(p->cache->dtype);
	int32_t b = find_sequence(step, token);
	int64_t i = token - step->cu_new[b];

	if (p->rotary.dim > 0) {
		int64_t n_new = (int64_t)step->cu_new[b + 1] - step->cu_new[b];

		angles(&p->rotary,
		       p->rotary.positions ? p->rotary.positions[token]
		                           : (int64_t)step->lengths[b] - n_new + i,
		       scratch);
	}
	for (int32_t h = 0; h < p->heads; h++)
		rotate(isa, p, tensor_row(&p->q_out, bytes, token, h),
		       tensor_row(&p->q, bytes, token, h), scratch);

	if (step->lengths_before[b] == step->lengths[b])
		return;
	for (int32_t h = 0; h < p->cache->kv_heads; h++) {
		struct fa_cpu_page_row row;

		fa_cpu_page_row_find(p->cache, p->layer, step->table, step->table_start[b],
		                     step->lengths_before[b] + i, &row);
		if (p->cache->store != FA_PAGED_PLAIN) {
			if (p->k.data)
				append_codes(isa, p, tensor_row(&p->k, bytes, token, h), false, h,
				             &row, scratch);
			if (p->v.data && p->cache->v_offset)
				append_codes(isa, p, tensor_row(&p->v, bytes, token, h), true, h,
				             &row, scratch);
			continue;
		}
		if (p->k.data)
			rotate(isa, p, row.k + h * row.k_stride, tensor_row(&p->k, bytes, token, h),
			       scratch);
		if (p->v.data && p->cache->v_offset)
			memcpy(row.v + h * row.v_stride, tensor_row(&p->v, bytes, token, h),
			       (size_t)row.v_bytes);
	}
}

static void read_codes(const struct fa_paged_append *p, char *to, bool is_v, int32_t head,
                       const struct fa_cpu_page_row *row)
{
	const struct fa_paged_cache *cache = p->cache;
	int32_t dim = is_v ? cache->head_dim_v : cache->head_dim;
	const char *from = is_v ? row->v + head * row->v_stride : row->k + head * row->k_stride;
	const float *scales = fa_cpu_head_scales(cache, is_v, p->layer);
	const float *scale = is_v ? row->v_scale : row->k_scale;
	float values[FA_ATTENTION_ROW_MAX];

	fa_dequantise_row(cache->store, (const uint8_t *)from,
	                  scales ? scales[head] : scale[head * row->scale_stride], values, dim);
	fa_floats_to(cache->dtype, to, values, dim);
}

static void read_token(const struct fa_paged_append *p, int64_t token)
{
	const struct fa_paged_step *step = p->step;
	int64_t bytes = fa_cpu_element_bytes(p->cache->dtype);
	int32_t b = find_sequence(step, token);
	struct fa_cpu_page_row row;

	if (step->lengths_before[b] == step->lengths[b])
		return;
	fa_cpu_page_row_find(p->cache, p->layer, step->table, step->table_start[b],
	                     step->lengths_before[b] + token - step->cu_new[b], &row);
	for (int32_t h = 0; h < p->cache->kv_heads; h++) {
		if (p->cache->store != FA_PAGED_PLAIN) {
			if (p->k.data)
				read_codes(p, tensor_row(&p->k, bytes, token, h), false, h, &row);
			if (p->v.data)
				read_codes(p, tensor_row(&p->v, bytes, token, h), true, h, &row);
			continue;
		}
		if (p->k.data)
			memcpy(tensor_row(&p->k, bytes, token, h), row.k + h * row.k_stride,
			       (size_t)row.k_bytes);
		if (p->v.data)
			memcpy(tensor_row(&p->v, bytes, token, h), row.v + h * row.v_stride,
			       (size_t)row.v_bytes);
	}
}

/* ---- merge */

static void merge_row(const struct fa_cpu_isa *isa, const struct fa_paged_merge *p, int64_t token,
                      int32_t head)
{
	const struct fa_paged_partial *a = &p->a, *b = &p->b, *result = &p->result;
	int64_t bytes = fa_cpu_element_bytes(p->dtype);
	double lse_a = a->lse[token * a->lse_stride_token + head * a->lse_stride_head];
	double lse_b = b->lse[token * b->lse_stride_token + head * b->lse_stride_head];
	double top, weight_a = 0, weight_b = 0, lse = -INFINITY;

	lse_a = lse_a == INFINITY ? -INFINITY : lse_a;
	lse_b = lse_b == INFINITY ? -INFINITY : lse_b;
	top = lse_a > lse_b ? lse_a : lse_b;
	if (top != -INFINITY) {
		lse = top + log(exp(lse_a - top) + exp(lse_b - top));
		weight_a = exp(lse_a - lse);
		weight_b = exp(lse_b - lse);
	}
	isa->blend(p->dtype, tensor_row(&result->out, bytes, token, head),
	           tensor_row(&a->out, bytes, token, head), (float)weight_a,
	           tensor_row(&b->out, bytes, token, head), (float)weight_b, p->head_dim_v);
	if (result->lse)
		result->lse[token * result->lse_stride_token + head * result->lse_stride_head] =
			(float)lse;
}

/* ---- pages */

static void page_tile(const struct fa_paged_pages *p, bool clear, int64_t tile)
{
	const struct fa_paged_cache *cache = p->cache;
	int64_t i = tile / cache->layers, layer = tile % cache->layers, k_bytes, v_bytes;
	char *pool = (char *)cache->pool + layer * cache->layer_stride;
	char *to = pool + (int64_t)p->to[i] * FA_PAGED_SLOT_BYTES;
	const char *from;

	fa_paged_page_bytes(cache, &k_bytes, &v_bytes);
	if (clear) {
		memset(to, 0, (size_t)k_bytes);
		memset(to + cache->v_offset, 0, (size_t)v_bytes);
		return;
	}
	from = pool + (int64_t)p->from[i] * FA_PAGED_SLOT_BYTES;
	memcpy(to, from, (size_t)k_bytes);
	memcpy(to + cache->v_offset, from + cache->v_offset, (size_t)v_bytes);
}

/* Towards the front, in order: none is overwritten before it moves. */
static void move_tile(const struct fa_paged_move *p, int64_t tile)
{
	const struct fa_paged_cache *cache = p->cache;
	int64_t b = tile / cache->layers, layer = tile % cache->layers;

	for (uint32_t i = p->cu_moves[b]; i < p->cu_moves[b + 1]; i++) {
		int64_t target = (int64_t)p->to[b] + (i - p->cu_moves[b]);
		struct fa_cpu_page_row from, to;

		if (p->from[i] == target)
			continue;
		fa_cpu_page_row_find(cache, layer, p->table, p->table_start[b], p->from[i], &from);
		fa_cpu_page_row_find(cache, layer, p->table, p->table_start[b], target, &to);
		for (int32_t h = 0; h < cache->kv_heads; h++) {
			memcpy(to.k + h * to.k_stride, from.k + h * from.k_stride,
			       (size_t)from.k_bytes);
			if (cache->v_offset)
				memcpy(to.v + h * to.v_stride, from.v + h * from.v_stride,
				       (size_t)from.v_bytes);
			if (from.k_scale) {
				to.k_scale[h * to.scale_stride] =
					from.k_scale[h * from.scale_stride];
				to.v_scale[h * to.scale_stride] =
					from.v_scale[h * from.scale_stride];
			}
		}
	}
}

/* ---- requests */

size_t fa_cpu_paged_scratch_bytes(const struct fa_cpu_isa *isa,
                                  const struct fa_paged_request *request)
{
	switch (request->op) {
	case FA_PAGED_ATTEND:
	case FA_PAGED_ATTEND_OWN:
		return isa->scratch_bytes;
	case FA_PAGED_APPEND:
		return sizeof(struct append_scratch);
	default:
		return 0;
	}
}

size_t fa_cpu_paged_workspace_bytes(const struct fa_cpu_isa *isa,
                                    const struct fa_paged_request *request)
{
	struct fa_cpu_paged_workspace workspace;
	struct fa_cpu_paged_plan plan;

	if (request->op == FA_PAGED_ATTEND_OWN)
		return fa_cpu_own_workspace_bytes(&request->own_attention);
	if (request->op != FA_PAGED_ATTEND)
		return 0;
	fa_cpu_paged_plan(isa, &request->attention, NULL, &plan);
	fa_cpu_paged_lay_out(request->attention.step->batch, &plan, NULL, &workspace);
	return workspace.bytes;
}

static int64_t begin_attention(const struct fa_cpu_isa *isa, const struct fa_paged_attention *p,
                               void *memory)
{
	struct fa_cpu_paged_workspace workspace;
	struct fa_cpu_paged_plan plan;

	fa_cpu_paged_plan(isa, p, memory, &plan);
	fa_cpu_paged_lay_out(p->step->batch, &plan, memory, &workspace);
	for (int64_t i = 0; i < plan.n_counters; i++)
		atomic_init(&workspace.counters[i], 0);
	return plan.n_tiles;
}

int64_t fa_cpu_paged_begin(const struct fa_cpu_isa *isa, const struct fa_paged_request *request,
                           void *workspace)
{
	switch (request->op) {
	case FA_PAGED_ATTEND:
		return begin_attention(isa, &request->attention, workspace);
	case FA_PAGED_APPEND:
	case FA_PAGED_READ: {
		const struct fa_paged_step *step = request->append.step;

		return ceil_div(step->cu_new[step->batch], TOKENS);
	}
	case FA_PAGED_MERGE:
		return ceil_div(request->merge.tokens * request->merge.heads, MERGE_ROWS);
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		return (int64_t)request->pages.count * request->pages.cache->layers;
	case FA_PAGED_MOVE:
		return (int64_t)request->move.batch * request->move.cache->layers;
	case FA_PAGED_READ_OWN:
	case FA_PAGED_WRITE_OWN:
		return fa_cpu_own_copy_tiles(&request->own_copy);
	case FA_PAGED_ATTEND_OWN:
		return fa_cpu_own_begin(isa, &request->own_attention, workspace);
	case FA_PAGED_APPEND_OWN:
		return ceil_div(request->own_append.tokens, TOKENS);
	}
	return 0;
}

bool fa_cpu_paged_tile(const struct fa_cpu_isa *isa, const struct fa_paged_request *request,
                       void *workspace, int64_t tile, void *scratch, const bool *stop)
{
	int64_t end;

	if (stop && __atomic_load_n(stop, __ATOMIC_RELAXED))
		return false;
	switch (request->op) {
	case FA_PAGED_ATTEND:
		return fa_cpu_paged_attend(isa, &request->attention, workspace, tile, scratch,
		                           stop);
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		end = request->append.step->cu_new[request->append.step->batch];
		end = end < (tile + 1) * TOKENS ? end : (tile + 1) * TOKENS;
		for (int64_t token = tile * TOKENS; token < end; token++) {
			if (request->op == FA_PAGED_APPEND)
				append_token(isa, &request->append, token, scratch);
			else
				read_token(&request->append, token);
		}
		return true;
	case FA_PAGED_MERGE:
		end = request->merge.tokens * request->merge.heads;
		end = end < (tile + 1) * MERGE_ROWS ? end : (tile + 1) * MERGE_ROWS;
		for (int64_t row = tile * MERGE_ROWS; row < end; row++)
			merge_row(isa, &request->merge, row / request->merge.heads,
			          (int32_t)(row % request->merge.heads));
		return true;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		page_tile(&request->pages, request->op == FA_PAGED_CLEAR, tile);
		return true;
	case FA_PAGED_MOVE:
		move_tile(&request->move, tile);
		return true;
	case FA_PAGED_READ_OWN:
	case FA_PAGED_WRITE_OWN:
		fa_cpu_own_copy_tile(&request->own_copy, request->op == FA_PAGED_WRITE_OWN, tile);
		return true;
	case FA_PAGED_ATTEND_OWN:
		return fa_cpu_own_attend(isa, &request->own_attention, workspace, tile, scratch,
		                         stop);
	case FA_PAGED_APPEND_OWN:
		end = min64(request->own_append.tokens, (tile + 1) * TOKENS);
		for (int64_t token = tile * TOKENS; token < end; token++)
			fa_cpu_own_append(&request->own_append, token);
		return true;
	}
	return true;
}
