#include "kernels/cpu/paged-plan.h"
#include "kernels/cpu/integer.h"

#define TILE_SECONDS 0.03
#define TILES_WANTED 32 /* wanted tiles per sequence; with fewer, keys are split */
#define SPLIT_KEYS_STEP FA_CPU_PAGED_SPLIT_STEP
#define SPLIT_KEYS_MAX 4096
#define FEW_ROWS_SPLITS 64

static void tile_few_rows(struct fa_cpu_paged_tiling *tiling, int64_t rows, int64_t keys,
                          int64_t least)
{
	tiling->block = (int32_t)rows;
	tiling->split_keys = max64(least, ceil_div(keys, FEW_ROWS_SPLITS * SPLIT_KEYS_STEP) *
	                                          SPLIT_KEYS_STEP);
}

static void tile_many_rows(const struct fa_cpu_isa *isa, const struct fa_cpu_paged_shape *shape,
                           struct fa_cpu_paged_tiling *tiling, int64_t rows, int64_t keys,
                           int64_t least)
{
	double columns = 2.0 * (shape->head_dim + shape->head_dim_v);
	double flops = TILE_SECONDS * isa->flops, fit;

	tiling->block = (int32_t)min64(FA_CPU_TILE_ROWS_MAX,
	                               ceil_div(rows, isa->panel_rows) * isa->panel_rows);
	if (ceil_div(rows, tiling->block) * shape->kv_heads < TILES_WANTED) {
		fit = flops / (columns * tiling->block);
		tiling->split_keys = max64(
			least,
			min64((int64_t)(fit / SPLIT_KEYS_STEP) * SPLIT_KEYS_STEP, SPLIT_KEYS_MAX));
		return;
	}
	tiling->split_keys = INT64_MAX / 4;
	fit = flops / (columns * (double)max64(keys, 1));
	if (fit < tiling->block)
		tiling->block = (int32_t)max64((int64_t)fit / isa->panel_rows, 1) * isa->panel_rows;
}

void fa_cpu_paged_plan_sequence(const struct fa_cpu_isa *isa,
                                const struct fa_cpu_paged_shape *shape,
                                const struct fa_cpu_paged_rows *rows,
                                struct fa_cpu_paged_plan *plan,
                                struct fa_cpu_paged_tiling *ret_tiling)
{
	int64_t group = shape->heads / shape->kv_heads, n_rows = rows->n_q * group, lists;
	int64_t first_row = rows->n_k - rows->n_q; /* its position */
	int64_t keys_begin = max64(rows->keys_begin,
	                           first_row - window(rows->left, rows->n_q + rows->n_k));
	struct fa_cpu_paged_tiling tiling = {
		.tile = plan->n_tiles,
		.keys_end = rows->n_k,
		.counter = plan->n_counters,
		.partial = plan->partial_floats,
		.block = 1,
	};
	int64_t keys; /* of a row */

	if (rows->chunk_tokens)
		keys_begin = max64(keys_begin, chunk_begin(first_row, rows->chunk_tokens));
	tiling.keys_begin = keys_begin;
	keys = rows->n_k - keys_begin;
	if (rows->chunk_tokens)
		keys = min64(keys, rows->chunk_tokens);
	if (n_rows > 0) {
		if (n_rows <= FA_CPU_FEW_ROWS_MAX)
			tile_few_rows(&tiling, n_rows, rows->n_k - keys_begin,
			              rows->split_keys_min);
		else
			tile_many_rows(isa, shape, &tiling, n_rows, keys, rows->split_keys_min);
		tiling.n_blocks = ceil_div(n_rows, tiling.block);
		tiling.first_split = keys_begin / tiling.split_keys;
		tiling.n_splits = (int32_t)max64(
			ceil_div(rows->n_k, tiling.split_keys) - tiling.first_split, 1);
	}
	lists = tiling.n_blocks * shape->kv_heads;
	plan->n_tiles += lists * tiling.n_splits;
	if (tiling.n_splits > 1) {
		plan->n_counters += lists;
		plan->partial_floats += lists * tiling.n_splits * tiling.block *
		                        fa_cpu_partial_floats_of(shape->head_dim_v);
	}
	*ret_tiling = tiling;
}

void fa_cpu_paged_plan(const struct fa_cpu_isa *isa, const struct fa_paged_attention *params,
                       struct fa_cpu_paged_tiling *tilings, struct fa_cpu_paged_plan *ret_plan)
{
	const struct fa_paged_step *step = params->step;
	const struct fa_cpu_paged_shape shape = {
		.heads = params->heads,
		.kv_heads = fa_cpu_paged_lists(&params->pattern, params->heads,
		                               params->cache->kv_heads),
		.head_dim = params->cache->head_dim,
		.head_dim_v = params->cache->head_dim_v,
	};
	struct fa_cpu_paged_plan plan = { 0 };
	struct fa_cpu_paged_tiling tiling;

	for (int32_t b = 0; b < step->batch; b++) {
		const struct fa_cpu_paged_rows rows = {
			.n_q = (int64_t)step->cu_new[b + 1] - step->cu_new[b],
			.n_k = step->lengths[b],
			.keys_begin = step->first ? step->first[b] : 0,
			.left = params->window_left,
			.chunk_tokens = params->chunk_tokens,
			.split_keys_min = FA_CPU_PAGED_SPLIT_MIN,
		};

		fa_cpu_paged_plan_sequence(isa, &shape, &rows, &plan, &tiling);
		if (tilings)
			tilings[b] = tiling;
	}
	*ret_plan = plan;
}

static size_t align(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

void fa_cpu_paged_lay_out(int32_t batch, const struct fa_cpu_paged_plan *plan, void *memory,
                          struct fa_cpu_paged_workspace *ret_workspace)
{
	size_t counters = align((size_t)batch * sizeof(*ret_workspace->tilings));
	size_t partials = counters + align((size_t)plan->n_counters * sizeof(uint32_t));

	*ret_workspace = (struct fa_cpu_paged_workspace){
		.batch = batch,
		.bytes = partials + (size_t)plan->partial_floats * sizeof(float),
	};
	if (memory) {
		ret_workspace->tilings = memory;
		ret_workspace->counters = (void *)((char *)memory + counters);
		ret_workspace->partials = (void *)((char *)memory + partials);
	}
}

void fa_cpu_paged_find(int32_t batch, int32_t kv_heads, void *memory,
                       struct fa_cpu_paged_workspace *ret_workspace)
{
	const struct fa_cpu_paged_tiling *last = (const struct fa_cpu_paged_tiling *)memory +
	                                         batch - 1;
	struct fa_cpu_paged_plan plan = { .n_counters = last->counter };

	if (last->n_splits > 1)
		plan.n_counters += last->n_blocks * kv_heads;
	fa_cpu_paged_lay_out(batch, &plan, memory, ret_workspace);
}

/* Returns the last sequence with tiles that begins at or before the tile. */
static int32_t find_sequence(const struct fa_cpu_paged_tiling *tilings, int32_t batch, int64_t tile)
{
	int32_t low = 0, high = batch;

	while (high - low > 1) {
		int32_t middle = low + (high - low) / 2;

		if (tilings[middle].tile <= tile)
			low = middle;
		else
			high = middle;
	}
	return low;
}

void fa_cpu_paged_locate(const struct fa_cpu_paged_workspace *workspace, int32_t kv_heads,
                         int64_t tile, struct fa_cpu_paged_place *ret_place)
{
	int32_t b = find_sequence(workspace->tilings, workspace->batch, tile);
	const struct fa_cpu_paged_tiling *tiling = &workspace->tilings[b];
	int64_t at = tile - tiling->tile, list = at / tiling->n_splits;

	*ret_place = (struct fa_cpu_paged_place){
		.sequence = b,
		.kv_head = (int32_t)(list % kv_heads),
		.list = list,
		.block = tiling->n_blocks - 1 - list / kv_heads,
		.split = at % tiling->n_splits,
	};
}

bool fa_cpu_paged_run(const struct fa_cpu_isa *isa, const struct fa_cpu_paged_workspace *workspace,
                      const struct fa_cpu_paged_place *place, struct fa_cpu_job *job, void *scratch)
{
	const struct fa_cpu_paged_tiling *tiling = &workspace->tilings[place->sequence];
	int64_t first_key = (tiling->first_split + place->split) * tiling->split_keys;
	int64_t split_floats = tiling->block * fa_cpu_partial_floats(job);
	float *partials = workspace->partials + tiling->partial +
	                  place->list * tiling->n_splits * split_floats;

	job->row = place->block * tiling->block;
	job->rows = (int32_t)min64(tiling->block, job->n_q * job->group - job->row);
	job->begin = min64(max64(tiling->keys_begin, first_key), tiling->keys_end);
	job->end = place->split == tiling->n_splits - 1 ? tiling->keys_end
	                                                : first_key + tiling->split_keys;
	if (tiling->n_splits > 1)
		job->partial = partials + place->split * split_floats;
	if (job->rows <= FA_CPU_FEW_ROWS_MAX && job->store == FA_PAGED_PLAIN)
		isa->few_rows(job, scratch);
	else
		isa->many_rows(job, scratch);
	if (fa_cpu_job_stopped(job))
		return false;
	if (tiling->n_splits == 1)
		return true;

	/* Finishing a block's last split, a tile reduces them all. */
	if (atomic_fetch_add_explicit(&workspace->counters[tiling->counter + place->list], 1,
	                              memory_order_acq_rel) +
	            1 <
	    (uint32_t)tiling->n_splits)
		return true;
	job->partial = NULL;
	isa->reduce(job, partials, tiling->n_splits, split_floats);
	return true;
}

static void fill_job(const struct fa_paged_attention *p, int32_t b, int32_t list,
                     struct fa_cpu_job *ret_job)
{
	const struct fa_paged_cache *cache = p->cache;
	const struct fa_paged_step *step = p->step;
	int64_t bytes = cache->dtype == FA_ATTENTION_F32 ? 4 : 2;
	int64_t stored = cache->store != FA_PAGED_PLAIN ? 1 : bytes;
	int32_t lists = fa_cpu_paged_lists(&p->pattern, p->heads, cache->kv_heads);
	int64_t group = p->heads / lists, head = list * group;
	int64_t kv_head = list / (lists / cache->kv_heads);
	int64_t token = step->cu_new[b];
	bool tree = p->tree && p->tree_start[b] != FA_PAGED_NO_TREE;
	bool in_k = cache->v_offset == 0;
	char *layer = (char *)cache->pool + p->layer * cache->layer_stride;
	struct fa_cpu_job job = {
		.dtype = cache->dtype,
		.head_dim = cache->head_dim,
		.head_dim_v = cache->head_dim_v,
		.group = (int32_t)group,
		.n_heads = 1,
		.n_q = (int64_t)step->cu_new[b + 1] - token,
		.n_k = step->lengths[b],
		.store = cache->store,
		.k_stride = cache->head_dim * stored,
		.v_stride = (in_k ? cache->head_dim : cache->head_dim_v) * stored,
		.table = step->table,
		.table_start = step->table_start[b],
		.page_tokens = cache->page_tokens,
		.last_page = UINT32_MAX,
		.k_page_bytes = FA_PAGED_SLOT_BYTES,
		.v_page_bytes = FA_PAGED_SLOT_BYTES,
		.q_stride_token = p->q.stride_token * bytes,
		.q_stride_head = p->q.stride_head * bytes,
		.out_stride_token = p->out.stride_token * bytes,
		.out_stride_head = p->out.stride_head * bytes,
		.lse_stride_token = p->lse_stride_token,
		.lse_stride_head = p->lse_stride_head,
		.scale = p->scale,
		.softcap = p->softcap,
		.alibi_slopes = p->alibi_slopes ? p->alibi_slopes + head : NULL,
		.sinks = p->sinks ? p->sinks + head : NULL,
	};

	job.k_stride_head = cache->page_tokens * job.k_stride;
	job.v_stride_head = cache->page_tokens * job.v_stride;
	job.k = layer + kv_head * job.k_stride_head;
	job.v = layer + cache->v_offset + kv_head * job.v_stride_head;
	if (cache->k_scales) {
		job.k_scale = cache->k_scales[p->layer * cache->kv_heads + kv_head];
		job.v_scale = in_k ? job.k_scale
		                   : cache->v_scales[p->layer * cache->kv_heads + kv_head];
	} else if (cache->store != FA_PAGED_PLAIN) {
		int64_t of_head = cache->page_tokens * (int64_t)sizeof(float);

		job.k_scale_stride = job.v_scale_stride = sizeof(float);
		job.k_scales = layer + cache->kv_heads * job.k_stride_head + kv_head * of_head;
		job.v_scales = layer + cache->v_offset + cache->kv_heads * job.v_stride_head +
		               kv_head * of_head;
	}
	job.q = (const char *)p->q.data + token * job.q_stride_token + head * job.q_stride_head;
	job.out = (char *)p->out.data + token * job.out_stride_token + head * job.out_stride_head;
	if (p->lse)
		job.lse = p->lse + token * p->lse_stride_token + head * p->lse_stride_head;
	job.left = window(p->window_left, job.n_q + job.n_k);
	job.right_prefix = window(p->window_right, job.n_q + job.n_k);
	job.right = p->causal && !tree ? 0 : job.right_prefix;
	job.prefix = p->prefix_lengths ? p->prefix_lengths[b] : 0;
	job.chunk_tokens = p->chunk_tokens;
	if (tree) {
		job.tree = p->tree + p->tree_start[b];
		job.tree_words = (job.n_q + 31) / 32;
		if (p->window_left >= 0 || p->window_right >= 0 || p->chunk_tokens ||
		    p->pattern.block_tokens || p->alibi_slopes)
			job.positions = p->positions + token;
	}
	if (p->pattern.block_tokens)
		fa_cpu_job_set_pattern(&job, &p->pattern, head, p->heads / cache->kv_heads);
	*ret_job = job;
}

bool fa_cpu_paged_attend(const struct fa_cpu_isa *isa, const struct fa_paged_attention *params,
                         void *memory, int64_t tile, void *scratch, const bool *stop)
{
	struct fa_cpu_paged_workspace workspace;
	struct fa_cpu_paged_place place;
	int32_t lists = fa_cpu_paged_lists(&params->pattern, params->heads,
	                                   params->cache->kv_heads);
	struct fa_cpu_job job;

	fa_cpu_paged_find(params->step->batch, lists, memory, &workspace);
	fa_cpu_paged_locate(&workspace, lists, tile, &place);
	fill_job(params, place.sequence, place.kv_head, &job);
	job.stop = stop;
	return fa_cpu_paged_run(isa, &workspace, &place, &job, scratch);
}
