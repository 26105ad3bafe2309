#include "tests/cuda-driver/paged-tokens.h"
#include "tests/cuda-driver/paged-rows.h"

#include "kernels/quantise.h"

static void rotate_row(const struct fa_cuda_paged_append *p, const char *from, float *row,
                       int64_t at)
{
	const enum fa_attention_dtype dtype = (enum fa_attention_dtype)p->dtype;
	const struct fa_cuda_rotary *rotary = &p->rotary;

	for (int32_t d = 0; d < p->head_dim; d++)
		row[d] = load(dtype, from, d);
	if (at >= rotary->table_positions && rotary->cos)
		at = (int64_t)rotary->table_positions - 1;
	for (int32_t i = 0; i < rotary->half; i++) {
		const double angle = 2 * M_PI * fmod((double)at * rotary->turns[i], 1);
		const float c = rotary->cos ? rotary->cos[at * rotary->half + i]
		                            : (float)cos(angle);
		const float s = rotary->sin ? rotary->sin[at * rotary->half + i]
		                            : (float)sin(angle);
		float *x = &row[rotary->first + (rotary->interleaved ? 2 * i : i)];
		float *y = x + (rotary->interleaved ? 1 : rotary->half);
		const float old = *x;

		*x = old * c - *y * s;
		*y = *y * c + old * s;
	}
}

static void rotate(const struct fa_cuda_paged_append *p, const char *from, char *to, int64_t at)
{
	float row[FA_ATTENTION_ROW_MAX];

	rotate_row(p, from, row, at);
	for (int32_t d = 0; d < p->head_dim; d++)
		store((enum fa_attention_dtype)p->dtype, to, d, row[d]);
}

/* Converts K (or V) of a head and new token @i from a tensor to codes, or back. */
static void append_or_read_codes(const struct fa_cuda_paged_append *p,
                                 struct fa_cuda_paged_quantised *codes,
                                 const struct fa_cuda_paged_item *item, uint32_t i, int32_t head,
                                 bool v, int64_t at, bool read)
{
	const enum fa_paged_store stored = (enum fa_paged_store)codes->store;
	const struct fa_cuda_tensor *tensor = v ? &p->v : &p->k;
	const int64_t token = item->append + i;
	char *dense, *page;
	float row[FA_ATTENTION_ROW_MAX], *scale;
	const int32_t dim = v ? p->head_dim_v : p->head_dim;

	if (!tensor->data)
		return;
	dense = row_of(tensor, item->first_q + i, head);
	page = page_row(&p->pages, item->table_start, token, head, v);
	scale = scale_of(&p->pages, codes, item->table_start, token, head, v);
	if (read) {
		fa_dequantise_row(stored, (const uint8_t *)page, *scale, row, dim);
		for (int32_t d = 0; d < dim; d++)
			store((enum fa_attention_dtype)p->dtype, dense, d, row[d]);
		return;
	}
	for (int32_t d = 0; v && d < dim; d++)
		row[d] = load((enum fa_attention_dtype)p->dtype, dense, d);
	if (!v)
		rotate_row(p, dense, row, at);
	if (codes->token_scales)
		*scale = fa_quantise_token(stored, row, dim, (uint8_t *)page);
	else
		fa_quantise_row(stored, row, dim, *scale, (uint8_t *)page);
}

void fa_fake_append_or_read(const struct fa_cuda_paged_append *p,
                            struct fa_cuda_paged_quantised *codes, bool read)
{
	const int64_t bytes = element_bytes((enum fa_attention_dtype)p->dtype);

	for (int32_t b = 0; b < p->batch; b++)
		for (uint32_t i = 0; i < p->items[b].n_q; i++) {
			const struct fa_cuda_paged_item *item = &p->items[b];
			const int64_t token = item->first_q + i;
			const int64_t at = p->rotary.positions ? p->rotary.positions[token]
			                                       : (int64_t)item->n_k - item->n_q + i;

			for (int32_t h = 0; p->q.data && h < p->heads; h++)
				rotate(p, row_of(&p->q, token, h), row_of(&p->q_out, token, h), at);
			for (int32_t h = 0; h < p->kv_heads && item->append != item->n_k; h++) {
				char *k = page_row(&p->pages, item->table_start, item->append + i,
				                   h, false);
				char *v = page_row(&p->pages, item->table_start, item->append + i,
				                   h, true);

				if (codes) {
					append_or_read_codes(p, codes, item, i, h, false, at, read);
					append_or_read_codes(p, codes, item, i, h, true, at, read);
					continue;
				}
				if (p->k.data && read)
					memcpy(row_of(&p->k, token, h), k,
					       (size_t)(p->head_dim * bytes));
				else if (p->k.data)
					rotate(p, row_of(&p->k, token, h), k, at);
				if (p->v.data && read)
					memcpy(row_of(&p->v, token, h), v,
					       (size_t)(p->head_dim_v * bytes));
				else if (p->v.data)
					memcpy(v, row_of(&p->v, token, h),
					       (size_t)(p->head_dim_v * bytes));
			}
		}
}

static void widen_row(const struct fa_cuda_paged_widen *p, const struct fa_cuda_paged_item *item,
                      uint32_t row, uint32_t head, bool v)
{
	struct fa_cuda_paged_quantised codes = p->quantised;
	const int64_t token = item->begin + (row - item->tile);
	const int32_t dim = v ? p->head_dim_v : p->head_dim;
	char *const to = (v ? p->v : p->k) + ((int64_t)head * p->rows + row) * dim * 2;
	float values[FA_ATTENTION_ROW_MAX];

	if (token < item->first) {
		memset(to, 0, (size_t)dim * 2);
		return;
	}
	fa_dequantise_row((enum fa_paged_store)codes.store,
	                  (const uint8_t *)page_row(&p->pages, item->table_start, token, head, v),
	                  *scale_of(&p->pages, &codes, item->table_start, token, (int32_t)head, v),
	                  values, dim);
	for (int32_t d = 0; d < dim; d++)
		store(FA_ATTENTION_BF16, to, d, values[d]);
}

void fa_fake_widen(const struct fa_cuda_paged_widen *p, uint32_t blocks, uint32_t kv_heads)
{
	for (uint32_t row = 0; row < blocks * FA_CUDA_WIDEN_TOKENS; row++) {
		const struct fa_cuda_paged_item *item =
			&p->items[p->block_items[row / FA_CUDA_WIDEN_TOKENS]];

		for (uint32_t h = 0; h < 2 * kv_heads; h++)
			if (item->begin + (row - item->tile) < item->n_k)
				widen_row(p, item, row, h / 2, h % 2);
	}
}

void fa_fake_copy_pages(const struct fa_cuda_paged_copy *p, uint32_t pages, uint32_t layers)
{
	for (uint32_t i = 0; i < pages; i++)
		for (uint32_t layer = 0; layer < layers; layer++) {
			char *pool = p->pool + layer * p->layer_stride;
			char *to = pool + (int64_t)p->to[i] * FA_PAGED_SLOT_BYTES, *from;

			if (!p->from) {
				memset(to, 0, (size_t)p->k_bytes);
				memset(to + p->v_offset, 0, (size_t)p->v_bytes);
				continue;
			}
			from = pool + (int64_t)p->from[i] * FA_PAGED_SLOT_BYTES;
			memcpy(to, from, (size_t)p->k_bytes);
			memcpy(to + p->v_offset, from + p->v_offset, (size_t)p->v_bytes);
		}
}

static void move_scales(const struct fa_cuda_paged_moves *p, const struct fa_cuda_pages *pages,
                        const struct fa_cuda_paged_moved *moved, uint32_t i, int32_t head)
{
	struct fa_cuda_paged_quantised codes = { .token_scales = true,
		                                 .k_scales_at = p->k_scales_at,
		                                 .v_scales_at = p->v_scales_at };

	for (int v = 0; v < 2; v++)
		*scale_of(pages, &codes, moved->table_start, moved->to + (i - moved->begin), head,
		          v) = *scale_of(pages, &codes, moved->table_start, p->from[i], head, v);
}

void fa_fake_move_tokens(const struct fa_cuda_paged_moves *p, uint32_t sequences, uint32_t layers)
{
	for (uint32_t b = 0; b < sequences; b++)
		for (uint32_t layer = 0; layer < layers; layer++) {
			const struct fa_cuda_paged_moved *moved = &p->sequences[b];
			struct fa_cuda_pages pages = p->pages;

			pages.k += layer * p->layer_stride;
			pages.v += layer * p->layer_stride;
			for (uint32_t i = moved->begin; i < moved->end; i++)
				for (int32_t h = 0; h < p->kv_heads; h++) {
					const int64_t to = moved->to + (i - moved->begin);

					memmove(page_row(&pages, moved->table_start, to, h, false),
					        page_row(&pages, moved->table_start, p->from[i], h,
					                 false),
					        p->k_bytes);
					memmove(page_row(&pages, moved->table_start, to, h, true),
					        page_row(&pages, moved->table_start, p->from[i], h,
					                 true),
					        p->v_bytes);
					if (p->k_scales_at)
						move_scales(p, &pages, moved, i, h);
				}
		}
}

/* ---- a client's own pages */

/* Copies one token and head of K or V of a layer. */
static void own_copy_row(const struct fa_cuda_paged_own_copy *p, const struct fa_cuda_pages *pages,
                         uint32_t layer, uint32_t token, int32_t head, bool v)
{
	const enum fa_attention_dtype dtype = (enum fa_attention_dtype)p->dtype;
	const enum fa_paged_store stored = (enum fa_paged_store)p->store;
	const struct fa_cuda_own_strides *strides = v ? &p->v_strides : &p->k_strides;
	const float *scales = v ? p->v_scales : p->k_scales;
	const int32_t dim = v ? p->head_dim_v : p->head_dim;
	const uint32_t place = p->offset + (token - p->first);
	char *pool = page_row(pages, p->table_start, token, head, v), *own;
	float row[FA_ATTENTION_ROW_MAX], *scale;
	struct fa_cuda_paged_quantised codes = { .token_scales = true,
		                                 .k_scales_at = p->k_scales_at,
		                                 .v_scales_at = p->v_scales_at };
	float of_head = scales ? scales[layer * (uint32_t)p->kv_heads + (uint32_t)head] : 0;

	own = (v ? p->v_data : p->k_data)[layer] +
	      p->own_pages[place / p->own_page_tokens] * strides->page +
	      place % p->own_page_tokens * strides->token + head * strides->head;
	if (stored == FA_PAGED_PLAIN) {
		memcpy(p->writes ? pool : own, p->writes ? own : pool,
		       (size_t)(dim * element_bytes(dtype)));
		return;
	}
	scale = scales ? &of_head : scale_of(pages, &codes, p->table_start, token, head, v);
	if (!p->writes) {
		fa_dequantise_row(stored, (const uint8_t *)pool, *scale, row, dim);
		for (int32_t d = 0; d < dim; d++)
			store(dtype, own, d, row[d]);
		return;
	}
	for (int32_t d = 0; d < dim; d++)
		row[d] = load(dtype, own, d);
	if (scales)
		fa_quantise_row(stored, row, dim, *scale, (uint8_t *)pool);
	else
		*scale = fa_quantise_token(stored, row, dim, (uint8_t *)pool);
}

void fa_fake_own_copy(const struct fa_cuda_paged_own_copy *p, uint32_t grid_y)
{
	const uint32_t layers = p->k_data && p->v_data ? grid_y / 2 : grid_y;

	for (uint32_t layer = 0; layer < layers; layer++) {
		struct fa_cuda_pages pages = p->pages;

		pages.k += layer * p->layer_stride;
		pages.v += layer * p->layer_stride;
		for (uint32_t token = p->first; token < p->end; token++)
			for (int32_t h = 0; h < p->kv_heads; h++) {
				if (p->k_data)
					own_copy_row(p, &pages, layer, token, h, false);
				if (p->v_data)
					own_copy_row(p, &pages, layer, token, h, true);
			}
	}
}

void fa_fake_append_own(const struct fa_cuda_own_append *p)
{
	const enum fa_attention_dtype dtype = (enum fa_attention_dtype)p->dtype;

	for (uint32_t i = 0; i < 2 * p->tokens * p->kv_heads; i++) {
		const bool v = i % 2;
		const uint32_t token = i / 2 / p->kv_heads, head = i / 2 % p->kv_heads;
		const struct fa_cuda_tensor *from = v ? &p->from_v : &p->from_k;
		const float *scales = v ? p->v_scales : p->k_scales;
		const int32_t dim = (int32_t)(v ? p->head_dim_v : p->head_dim);
		const int64_t slot = p->slots[token];
		float row[FA_ATTENTION_ROW_MAX];
		char *to;

		if (!from->data || slot < 0 || slot >= (int64_t)p->pages * p->page_tokens)
			continue;
		to = v ? p->v + slot / p->page_tokens * p->v_page +
		                     slot % p->page_tokens * p->v_token + head * p->v_head
		       : p->k + slot / p->page_tokens * p->k_page +
		                     slot % p->page_tokens * p->k_token + head * p->k_head;
		if (!p->store) {
			memcpy(to, row_of(from, token, head), (size_t)(dim * element_bytes(dtype)));
			continue;
		}
		for (int32_t d = 0; d < dim; d++)
			row[d] = load(dtype, row_of(from, token, head), d);
		fa_quantise_row((enum fa_paged_store)p->store, row, dim, scales ? scales[head] : 1,
		                (uint8_t *)to);
	}
}
