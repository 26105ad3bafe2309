#include "tests/cuda-driver/paged.h"
#include "tests/cuda-driver/paged-rows.h"
#include "tests/cuda-driver/paged-tokens.h"

#include "kernels/quantise.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- attention */

/* Returns the sum of the products of the @n elements at @a, of @dtype, with those at @b. */
static double dot(enum fa_attention_dtype dtype, const void *a, const float *b, int32_t n)
{
	double sum = 0;

	if (dtype == FA_ATTENTION_F16)
		for (int32_t i = 0; i < n; i++)
			sum += (double)half_value(((const uint16_t *)a)[i]) * b[i];
	else
		for (int32_t i = 0; i < n; i++)
			sum += (double)load(dtype, a, i) * b[i];
	return sum;
}

/* Sets each sum to sum * shrink + grow * the element at @a. */
static void blend(double *sum, double shrink, double grow, enum fa_attention_dtype dtype,
                  const void *a, int32_t n)
{
	if (dtype == FA_ATTENTION_F16)
		for (int32_t i = 0; i < n; i++)
			sum[i] = sum[i] * shrink + grow * half_value(((const uint16_t *)a)[i]);
	else
		for (int32_t i = 0; i < n; i++)
			sum[i] = sum[i] * shrink + grow * load(dtype, a, i);
}

/* A row of q to compute attention for. */
struct row {
	const struct fa_cuda_paged_attention *args;
	const struct fa_cuda_paged_item *item;
	enum fa_attention_dtype dtype;
	uint32_t i; /* index of its token among the item's new tokens */
	int32_t head;
	struct fa_cuda_paged_quantised *codes; /* NULL: K and V are not codes */
	/* Start of the table for keys before item->begin. */
	uint32_t prefix_start;
	const struct fa_cuda_own *own; /* NULL: K and V are in the pool */
};

static uint32_t table_start_of(const struct row *row, int64_t j)
{
	return j < row->item->begin ? row->prefix_start : row->item->table_start;
}

/* Returns the address of K (or V) of a token. */
static const char *kv_row(const struct row *row, int64_t j, bool v)
{
	const struct fa_cuda_pages *pages = &row->args->pages;
	const struct fa_cuda_own *own = row->own;
	const int32_t head = row->head / row->args->attention.group;
	uint32_t page;

	if (!own)
		return page_row(pages, table_start_of(row, j), j, head, v);
	page = pages->table[row->item->table_start + (uint32_t)j / own->page_tokens];
	page = page < own->last_page ? page : own->last_page;
	return v ? pages->v + page * own->v_page + j % own->page_tokens * own->v_token +
	                       head * own->v_head
	         : pages->k + page * own->k_page + j % own->page_tokens * own->k_token +
	                       head * own->k_head;
}

static float kv_scale(const struct row *row, int64_t j, bool v)
{
	const int32_t head = row->head / row->args->attention.group;
	const float *scales;

	if (!row->own)
		return *scale_of(&row->args->pages, row->codes, table_start_of(row, j), j, head, v);
	scales = v ? row->own->v_scales : row->own->k_scales;
	return scales ? scales[head] : 1;
}

/* Decodes K (or V) of a token to floats. */
static void decode_row(const struct row *row, int64_t j, bool v, float *to)
{
	const struct fa_cuda_attention *a = &row->args->attention;

	fa_dequantise_row((enum fa_paged_store)row->codes->store,
	                  (const uint8_t *)kv_row(row, j, v), kv_scale(row, j, v), to,
	                  v ? a->head_dim_v : a->head_dim);
}

/* @p: the row's position. */
static bool in_pattern(const struct row *row, int64_t j, int64_t p)
{
	const struct fa_cuda_own *own = row->own;
	int64_t block;

	if (!own || !own->pattern_strips)
		return true;
	block = j / own->pattern_tokens;
	return (block + own->pattern_local) * own->pattern_tokens > p ||
	       block % own->pattern_stride == own->columns[row->head];
}

static bool sees(const struct row *row, int64_t j, int64_t *ret_distance)
{
	const struct fa_cuda_paged_attention *args = row->args;
	const struct fa_cuda_paged_item *item = row->item;
	const int64_t old = (int64_t)item->n_k - item->n_q;
	const bool tree = item->tree_start != FA_CUDA_PAGED_NO_TREE;
	int64_t left = args->attention.window_left, right = args->attention.window_right;
	int64_t p = old + row->i, k = j;

	if (tree) {
		const uint32_t *mask = args->tree + item->tree_start +
		                       (size_t)row->i * ((item->n_q + 31) / 32);

		if (j >= old && !(mask[(j - old) / 32] >> (j - old) % 32 & 1))
			return false;
		right = args->tree_right;
		if (args->positions) {
			p = args->positions[item->first_q + row->i];
			k = j >= old ? args->positions[item->first_q + (j - old)] : j;
		}
	}
	*ret_distance = k > p ? k - p : p - k;
	if (row->own && j < item->append)
		right = row->own->right;
	return k >= p - left && k <= p + right && in_pattern(row, j, p);
}

static float score(const struct row *row, const float *q, int64_t j, int64_t distance)
{
	const struct fa_cuda_attention *a = &row->args->attention;
	const char *k = kv_row(row, j, false);
	float decoded[FA_ATTENTION_HEAD_DIM_MAX];
	double s;

	if (row->codes)
		decode_row(row, j, false, decoded);
	s = row->codes ? dot(FA_ATTENTION_F32, decoded, q, a->head_dim)
	               : dot(row->dtype, k, q, a->head_dim);
	if (a->cap_in != 0)
		s = a->cap_out * M_LN2 * tanh(s * a->cap_in);
	else
		s *= a->scale_log2 * M_LN2;
	if (a->alibi_slopes)
		s -= a->alibi_slopes[row->head] * (double)distance;
	return (float)s;
}

static void attend_row(const struct row *row)
{
	const struct fa_cuda_attention *a = &row->args->attention;
	const int64_t token = row->item->first_q + row->i, n_k = row->item->n_k;
	double *sum = calloc((size_t)a->head_dim_v, sizeof(*sum));
	float *q = calloc((size_t)a->head_dim, sizeof(*q));
	double top = a->sinks ? a->sinks[row->head] : -INFINITY;
	double weight = a->sinks ? 1 : 0;
	char *out = row_of(&a->out, token, row->head);
	int64_t distance;

	for (int32_t d = 0; d < a->head_dim; d++)
		q[d] = load(row->dtype, row_of(&a->q, token, row->head), d);
	for (int64_t j = row->item->first; j < n_k; j++) {
		const char *v = kv_row(row, j, true);
		double s, shrink, grow;

		if (!sees(row, j, &distance))
			continue;
		s = score(row, q, j, distance);
		shrink = s > top ? exp(top - s) : 1;
		grow = s > top ? 1 : exp(s - top);
		top = s > top ? s : top;
		weight = weight * shrink + grow;
		if (row->codes) {
			float decoded[FA_ATTENTION_HEAD_DIM_V_MAX];

			decode_row(row, j, true, decoded);
			blend(sum, shrink, grow, FA_ATTENTION_F32, decoded, a->head_dim_v);
			continue;
		}
		blend(sum, shrink, grow, row->dtype, v, a->head_dim_v);
	}
	for (int32_t d = 0; d < a->head_dim_v; d++)
		store(row->dtype, out, d, weight > 0 ? (float)(sum[d] / weight) : 0);
	if (a->lse)
		a->lse[token * a->lse_stride_token + row->head * a->lse_stride_head] =
			weight > 0 ? (float)(top + log(weight)) : -INFINITY;
	free(sum);
	free(q);
}

/* Returns the shared prefix that has the item's first keys, or NULL. */
static const struct fa_cuda_paged_item *prefix_of(const struct fa_cuda_paged_attention *args,
                                                  const struct fa_cuda_paged_item *item)
{
	const uint32_t suffix = args->splits[item - args->items].suffixes;
	const struct fa_cuda_paged_item *prefix;

	if (suffix == FA_CUDA_PAGED_NO_SUFFIX)
		return NULL;
	prefix = &args->items[args->suffixes[suffix].prefix_item];
	if (prefix->n_k != item->begin)
		abort();
	for (uint32_t i = 0; i < item->n_q; i++) {
		const uint32_t row = args->suffixes[suffix].row / (uint32_t)args->attention.group +
		                     i;

		if (args->tokens[prefix->first_q + row] != item->first_q + i)
			abort();
	}
	return prefix;
}

/* Appends an item's new tokens to its pages. */
static void take_new(const struct fa_cuda_paged_attention *args,
                     const struct fa_cuda_paged_item *item)
{
	const struct fa_cuda_attention *a = &args->attention;

	for (uint32_t token = item->append; token < item->n_k; token++)
		for (int32_t h = 0; h < args->kv_heads; h++) {
			const int64_t at = (int64_t)item->first_q + (token - item->append);

			memcpy(page_row(&args->pages, item->table_start, token, h, false),
			       row_of(&a->k, at, h), args->pages.k_row);
			memcpy(page_row(&args->pages, item->table_start, token, h, true),
			       row_of(&a->v, at, h), args->pages.v_row);
		}
}

/* Computes all items of a decode launch. A prefix is computed with the items that share it. */
static void decode(const struct fa_cuda_paged_launch *launch, struct row *row)
{
	const struct fa_cuda_paged_attention *args = row->args;
	const bool splits = launch->kernel->kind == FA_CUDA_PAGED_SPLIT;
	const struct fa_cuda_paged_item *items = args->inline_items ? args->first_items
	                                                            : args->items;
	const uint32_t team = launch->kernel->kind == FA_CUDA_PAGED_LATENT ? args->loaders : 1;
	const uint64_t tiles = (uint64_t)args->tiles_each * (launch->grid_x / team) +
	                       args->tiles_extra;

	for (row->item = items;
	     row->item == items ||
	     row->item[-1].tile + (uint64_t)row->item[-1].parts * row->item[-1].tiles < tiles;
	     row->item++) {
		const struct fa_cuda_paged_item *prefix;

		if (splits && args->splits[row->item - items].n_suffixes > 0)
			continue;
		prefix = splits ? prefix_of(args, row->item) : NULL;
		row->prefix_start = prefix ? prefix->table_start : row->item->table_start;
		if (args->attention.k.data)
			take_new(args, row->item);
		for (row->i = 0; row->i < row->item->n_q; row->i++)
			for (row->head = 0; row->head < args->attention.heads; row->head++)
				attend_row(row);
	}
}

/* Computes a row of an item that shares a prefix, with all keys of its sequence. */
static void attend_sharing_row(struct row *row)
{
	const struct fa_cuda_paged_item *const items = row->args->items;
	const uint32_t first = row->item->packed.suffix;
	const struct fa_cuda_paged_item *suffix = &items[first];
	struct fa_cuda_paged_item own;
	struct row of_own = *row;

	while (row->i >= suffix->packed.end_row)
		suffix++;
	own = *suffix;
	own.first = items[first - 1].first;
	own.first_q += suffix->packed.begin_row;
	own.n_q = suffix->packed.end_row - suffix->packed.begin_row;
	of_own.item = &own;
	of_own.i -= suffix->packed.begin_row;
	of_own.prefix_start = own.table_start;
	attend_row(&of_own);
}

/* The rows of each block, with all of its keys. */
static void attend_packed(const struct fa_cuda_paged_launch *launch, struct row *row)
{
	const struct fa_cuda_paged_attention *args = row->args;
	const uint32_t tokens = 1u << args->pack_shift, heads = 64 / tokens;

	for (uint32_t u = 0; u < args->n_units; u++) {
		const struct fa_cuda_paged_unit *unit = &args->units[u];
		int32_t set = (int32_t)(unit->parts_set >> FA_CUDA_PAGED_UNIT_SET_SHIFT);
		uint32_t head = unit->head, token = unit->token;

		row->item = &args->items[unit->item];
		row->prefix_start = row->item->table_start;
		if (unit->parts_set % FA_CUDA_PAGED_UNIT_PARTS)
			continue;
		for (int32_t group = 0; group < launch->kernel->rows / 64; group++) {
			for (row->i = token; row->i < row->item->n_q && row->i < token + tokens;
			     row->i++)
				for (row->head = (int32_t)head; row->head < (int32_t)(head + heads);
				     row->head++) {
					if (row->item->packed.suffix == FA_CUDA_PACKED_ALONE)
						attend_row(row);
					else
						attend_sharing_row(row);
				}
			head += heads;
			if (++set == args->pack_sets) {
				set = 0;
				head -= (uint32_t)args->attention.group;
				token += tokens;
			}
		}
	}
}

static void attend(const struct fa_cuda_paged_launch *launch)
{
	const struct fa_cuda_paged_attention *args = &launch->args.attention;
	const uint32_t heads = (uint32_t)args->attention.heads;
	struct fa_cuda_paged_attention own;
	struct row row = { .args = args, .dtype = launch->kernel->dtype };

	struct fa_cuda_paged_quantised codes;

	if (launch->kernel->stores) {
		codes = launch->args.attention_quantised.quantised;
		row.codes = &codes;
		row.dtype = (enum fa_attention_dtype)codes.dtype;
	}
	if (launch->kernel->small) {
		own = *args;
		own.pages.table = launch->kernel->stores
		                          ? launch->args.small_attention_quantised.table
		                          : launch->args.small_attention.table;
		row.args = args = &own;
	}
	if (launch->kernel->kind == FA_CUDA_PAGED_DECODE ||
	    launch->kernel->kind == FA_CUDA_PAGED_SPLIT ||
	    launch->kernel->kind == FA_CUDA_PAGED_LATENT) {
		decode(launch, &row);
		return;
	}
	if (launch->kernel->kind == FA_CUDA_PAGED_PACKED) {
		attend_packed(launch, &row);
		return;
	}
	/* A thread block may compute several blocks of rows. */
	for (uint32_t b = 0;
	     b < (launch->kernel->keys ? (uint32_t)args->attention.blocks_m
	                               : launch->grid_x / (heads * (uint32_t)args->slices));
	     b++) {
		const uint32_t begin = args->blocks[b].row;

		row.item = &args->items[args->blocks[b].item];
		row.prefix_start = row.item->table_start;
		for (row.i = begin;
		     row.i < row.item->n_q && row.i < begin + (uint32_t)launch->kernel->rows;
		     row.i++)
			for (row.head = 0; row.head < args->attention.heads; row.head++)
				attend_row(&row);
	}
}

/* ---- attention over a client's own pages */

static int64_t clamp(int64_t x, int64_t most)
{
	return x < 0 ? 0 : x > most ? most : x;
}

/* Which of a stride of blocks all rows of a head see. */
static uint32_t column_of(const struct fa_cuda_own_plan *p, uint32_t head)
{
	const int64_t stride = p->pattern_stride, number = (int64_t)p->pattern_first + head;
	const int64_t shift = p->pattern_step < 0 ? number / p->group * -(int64_t)p->pattern_step
	                                          : number * p->pattern_step;

	return (uint32_t)((stride - (shift + 1) % stride) % stride);
}

/* Writes an item of each sequence and chunk, of few rows or of many, for the launch that decodes. */
static void plan_own(const struct fa_cuda_own_plan *p)
{
	*p->ranges = (struct fa_cuda_own_ranges){ 1, 0, 0, 0 };
	for (uint32_t h = 0; p->pattern_stride && h < p->heads; h++)
		p->columns[h] = column_of(p, h);
	for (int32_t b = 0; b < p->batch; b++) {
		const int64_t n_k = clamp(p->lengths[b], p->max_k);
		int64_t begin = (int64_t)b * p->max_q, n = p->max_q, end;

		if (p->cu_q) {
			begin = clamp(p->cu_q[b], p->total_q);
			n = clamp(p->cu_q[b + 1] - begin, p->max_q);
		}
		n = clamp(n, p->total_q - begin);
		for (int64_t row = 0; row < n; row += end - (n_k - n + row)) {
			const int64_t at = n_k - n + row;
			const int64_t chunk = p->chunk && at > 0 ? at / p->chunk * p->chunk : 0;

			/* Rows before the first key are in chunks without keys. */
			end = !p->chunk ? n_k : at < 0 ? 0 : clamp(chunk + p->chunk, n_k);
			p->items[p->ranges->blocks++] = (struct fa_cuda_paged_item){
				.first_q = (uint32_t)(begin + row),
				.n_q = (uint32_t)(end - at),
				.n_k = (uint32_t)end,
				.first = (uint32_t)chunk,
				.table_start = (uint32_t)b * p->table_stride,
				.tree_start = FA_CUDA_PAGED_NO_TREE,
				.append = p->prefixes ? (uint32_t)clamp(p->prefixes[b], n_k) : 0,
			};
		}
	}
}

static void attend_own(const struct fa_cuda_paged_attention_own *p)
{
	struct fa_cuda_paged_quantised codes = p->attention.quantised;
	struct fa_cuda_own_plan plan = p->own.plan;
	struct fa_cuda_paged_item *items = NULL;
	struct fa_cuda_own_ranges ranges;
	struct row row = {
		.args = &p->attention.attention,
		.own = &p->own,
		.dtype = (enum fa_attention_dtype)codes.dtype,
		.codes = codes.store ? &codes : NULL,
	};

	if (!p->own.ranges) {
		plan.ranges = &ranges;
		plan.items = items = calloc(plan.items_max, sizeof(*items));
		plan_own(&plan);
	}
	for (uint32_t i = 0; i < (items ? &ranges : p->own.ranges)->blocks; i++) {
		row.item = &(items ? items : row.args->items)[i];
		for (row.i = 0; row.i < row.item->n_q; row.i++)
			for (row.head = 0; row.head < row.args->attention.heads; row.head++)
				attend_row(&row);
	}
	free(items);
}

/* ---- launches */

const char *fa_fake_paged_wrong(const struct fa_cuda_paged_launch *launch)
{
	const struct fa_cuda_paged_attention *a = &launch->args.attention;

	switch (launch->kernel->kind) {
	case FA_CUDA_PAGED_DECODE:
	case FA_CUDA_PAGED_SPLIT:
	case FA_CUDA_PAGED_LATENT:
	case FA_CUDA_PAGED_BAND:
	case FA_CUDA_PAGED_RICH:
	case FA_CUDA_PAGED_PACKED:
		if (a->attention.head_dim > launch->kernel->dim ||
		    a->slices * launch->kernel->dim_v < a->attention.head_dim_v)
			return "head dims";
		if ((!a->items && !a->inline_items) ||
		    (!a->pages.table && !launch->kernel->small) || !a->attention.q.data ||
		    !a->attention.out.data)
			return "an array that is not there";
		if (a->inline_items > FA_CUDA_PAGED_INLINE_ITEMS ||
		    (launch->kernel->small && !a->inline_items))
			return "items";
		if (launch->kernel->kind != FA_CUDA_PAGED_BAND &&
		    launch->kernel->kind != FA_CUDA_PAGED_RICH &&
		    (launch->kernel->kind == FA_CUDA_PAGED_PACKED
		             ? !a->unit_counters || !a->unit_partials || !a->units
		             : !a->counters))
			return "an array of its own that is not there";
		if (launch->kernel->kind != FA_CUDA_PAGED_BAND &&
		    launch->kernel->kind != FA_CUDA_PAGED_RICH && !a->epoch)
			return "no epoch";
		if (!a->attention.k.data != !a->attention.v.data ||
		    (a->attention.k.data && !launch->kernel->appends))
			return "new tokens";
		return NULL;
	case FA_CUDA_PAGED_APPEND:
	case FA_CUDA_PAGED_READ:
		if (launch->kernel->small)
			return launch->args.append.batch <= FA_CUDA_PAGED_INLINE_ITEMS ? NULL
			                                                               : "items";
		return launch->args.append.items && launch->args.append.pages.table
		               ? NULL
		               : "an array that is not there";
	case FA_CUDA_PAGED_WIDEN:
		return launch->args.widen.items && launch->args.widen.block_items &&
		                       launch->args.widen.pages.table
		               ? NULL
		               : "an array that is not there";
	case FA_CUDA_PAGED_OWN_COPY:
		return launch->args.own_copy.own_pages && launch->args.own_copy.pages.table &&
		                       (launch->args.own_copy.k_data ||
		                        launch->args.own_copy.v_data)
		               ? NULL
		               : "an array that is not there";
	default:
		return NULL;
	}
}

void fa_fake_paged_run(const struct fa_cuda_paged_launch *launch)
{
	switch (launch->kernel->kind) {
	case FA_CUDA_PAGED_DECODE:
	case FA_CUDA_PAGED_SPLIT:
	case FA_CUDA_PAGED_LATENT:
	case FA_CUDA_PAGED_BAND:
	case FA_CUDA_PAGED_RICH:
	case FA_CUDA_PAGED_PACKED:
		attend(launch);
		break;
	case FA_CUDA_PAGED_APPEND:
	case FA_CUDA_PAGED_READ:
		if (launch->kernel->small) {
			const struct fa_cuda_paged_small_append *args = &launch->args.small_append;
			struct fa_cuda_paged_append own = args->plain;

			own.items = args->items;
			own.pages.table = args->table;
			fa_fake_append_or_read(&own, NULL, false);
		} else {
			struct fa_cuda_paged_quantised codes =
				launch->args.append_quantised.quantised;

			fa_fake_append_or_read(&launch->args.append,
			                       launch->kernel->stores ? &codes : NULL,
			                       launch->kernel->kind == FA_CUDA_PAGED_READ);
		}
		break;
	case FA_CUDA_PAGED_WIDEN:
		fa_fake_widen(&launch->args.widen, launch->grid_x, launch->grid_y / 2);
		break;
	case FA_CUDA_PAGED_COPY:
		fa_fake_copy_pages(&launch->args.copy, launch->grid_x, launch->grid_y);
		break;
	case FA_CUDA_PAGED_MOVE:
		fa_fake_move_tokens(&launch->args.moves, launch->grid_x, launch->grid_y);
		break;
	case FA_CUDA_PAGED_OWN_COPY:
		fa_fake_own_copy(&launch->args.own_copy, launch->grid_y);
		break;
	case FA_CUDA_PAGED_OWN_PLAN:
		plan_own(&launch->args.own_plan);
		break;
	case FA_CUDA_PAGED_OWN_DECODE:
	case FA_CUDA_PAGED_OWN_PACKED: /* alone, or behind a launch that has computed all rows */
		attend_own(&launch->args.own);
		break;
	case FA_CUDA_PAGED_OWN_APPEND:
		fa_fake_append_own(&launch->args.own_append);
		break;
	case FA_CUDA_PAGED_OWN_FORWARD: /* the launch that decodes computes all rows */
	case FA_CUDA_PAGED_OWN_BAND:
	case FA_CUDA_PAGED_OWN_RICH:
	case FA_CUDA_PAGED_MERGE:
	case FA_CUDA_PAGED_GATE:
		break;
	}
}
