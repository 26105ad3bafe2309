#include "kernels/cpu/paged-plan.h"
#include "kernels/cpu/integer.h"

#define TILE_SECONDS 0.03
#define TILES_WANTED 32 /* of a sequence, before its keys stay whole */
#define CHUNK_STEP 256  /* a multiple of every kernel's round */
#define CHUNK_MIN 1024
#define CHUNK_WIDE_MAX 4096
#define THIN_SPLITS 64

static void place_thin(struct fa_cpu_paged_place *place, int64_t rows, int64_t keys)
{
	place->block = (int32_t)rows;
	place->chunk = max64(CHUNK_MIN, ceil_div(keys, THIN_SPLITS * CHUNK_STEP) * CHUNK_STEP);
}

static void place_wide(const struct fa_cpu_isa *isa, const struct fa_paged_attention *params,
                       struct fa_cpu_paged_place *place, int64_t rows, int64_t keys)
{
	double columns = 2.0 * (params->cache->head_dim + params->cache->head_dim_v);
	double flops = TILE_SECONDS * isa->flops, fit;

	place->block = (int32_t)min64(FA_CPU_TILE_ROWS,
	                              ceil_div(rows, isa->panel_rows) * isa->panel_rows);
	if (ceil_div(rows, place->block) * params->cache->kv_heads < TILES_WANTED) {
		fit = flops / (columns * place->block);
		place->chunk = max64(
			CHUNK_MIN, min64((int64_t)(fit / CHUNK_STEP) * CHUNK_STEP, CHUNK_WIDE_MAX));
		return;
	}
	place->chunk = INT64_MAX / 4;
	fit = flops / (columns * (double)max64(keys, 1));
	if (fit < place->block)
		place->block = (int32_t)max64((int64_t)fit / isa->panel_rows, 1) * isa->panel_rows;
}

void fa_cpu_paged_plan(const struct fa_cpu_isa *isa, const struct fa_paged_attention *params,
                       struct fa_cpu_paged_place *places, struct fa_cpu_paged_plan *ret_plan)
{
	const struct fa_paged_step *step = params->step;
	int64_t group = params->heads / params->cache->kv_heads;
	int64_t floats = fa_cpu_partial_floats_of(params->cache->head_dim_v);
	struct fa_cpu_paged_plan plan = { 0 };

	for (int32_t b = 0; b < step->batch; b++) {
		int64_t n_q = (int64_t)step->cu_new[b + 1] - step->cu_new[b];
		int64_t n_k = step->lengths[b], rows = n_q * group, lists;
		struct fa_cpu_paged_place place = {
			.tile = plan.n_tiles,
			.keys_begin = step->first ? step->first[b] : 0,
			.keys_end = n_k,
			.counter = plan.n_counters,
			.partial = plan.partial_floats,
		};

		place.keys_begin = max64(place.keys_begin,
		                         n_k - n_q - window(params->window_left, n_q + n_k));
		if (rows == 0) {
			place.block = 1;
		} else {
			if (rows <= FA_CPU_THIN_ROWS)
				place_thin(&place, rows, n_k - place.keys_begin);
			else
				place_wide(isa, params, &place, rows, n_k - place.keys_begin);
			place.n_blocks = ceil_div(rows, place.block);
			place.first_chunk = place.keys_begin / place.chunk;
			place.n_splits = (int32_t)max64(
				ceil_div(n_k, place.chunk) - place.first_chunk, 1);
		}
		lists = place.n_blocks * params->cache->kv_heads;
		plan.n_tiles += lists * place.n_splits;
		if (place.n_splits > 1) {
			plan.n_counters += lists;
			plan.partial_floats += lists * place.n_splits * place.block * floats;
		}
		if (places)
			places[b] = place;
	}
	*ret_plan = plan;
}

static size_t align(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

void fa_cpu_paged_lay_out(const struct fa_paged_attention *params,
                          const struct fa_cpu_paged_plan *plan, void *workspace,
                          struct fa_cpu_paged_workspace *ret_workspace)
{
	size_t counters = align((size_t)params->step->batch * sizeof(*ret_workspace->places));
	size_t partials = counters + align((size_t)plan->n_counters * sizeof(uint32_t));

	*ret_workspace = (struct fa_cpu_paged_workspace){
		.bytes = partials + (size_t)plan->partial_floats * sizeof(float),
	};
	if (workspace) {
		ret_workspace->places = workspace;
		ret_workspace->counters = (void *)((char *)workspace + counters);
		ret_workspace->partials = (void *)((char *)workspace + partials);
	}
}

/* The sequence whose tile it is: the last that begins at or before it and has any. */
static int32_t find_sequence(const struct fa_cpu_paged_place *places, int32_t batch, int64_t tile)
{
	int32_t low = 0, high = batch;

	while (high - low > 1) {
		int32_t middle = low + (high - low) / 2;

		if (places[middle].tile <= tile)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static void fill_job(const struct fa_paged_attention *p, int32_t b, int32_t kv_head,
                     struct fa_cpu_job *ret_job)
{
	const struct fa_paged_cache *cache = p->cache;
	const struct fa_paged_step *step = p->step;
	int64_t bytes = cache->dtype == FA_ATTENTION_F32 ? 4 : 2;
	int64_t stored = cache->store != FA_PAGED_PLAIN ? 1 : bytes;
	int64_t group = p->heads / cache->kv_heads, head = kv_head * group;
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
		.slot_bytes = FA_PAGED_SLOT_BYTES,
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
		job.v_scale = cache->v_scales[p->layer * cache->kv_heads + kv_head];
	} else if (cache->store != FA_PAGED_PLAIN) {
		int64_t of_head = cache->page_tokens * (int64_t)sizeof(float);

		job.k_scales = layer + cache->kv_heads * job.k_stride_head + kv_head * of_head;
		job.v_scales = layer + cache->v_offset + cache->kv_heads * job.v_stride_head +
		               kv_head * of_head;
	}
	job.q = (const char *)p->q.data + token * job.q_stride_token + head * job.q_stride_head;
	job.out = (char *)p->out.data + token * job.out_stride_token + head * job.out_stride_head;
	if (p->lse)
		job.lse = p->lse + token * p->lse_stride_token + head * p->lse_stride_head;
	job.left = window(p->window_left, job.n_q + job.n_k);
	job.right = p->causal && !tree ? 0 : window(p->window_right, job.n_q + job.n_k);
	if (tree) {
		job.tree = p->tree + p->tree_start[b];
		job.tree_words = (job.n_q + 31) / 32;
		if (p->window_left >= 0 || p->window_right >= 0 || p->alibi_slopes)
			job.positions = p->positions + token;
	}
	*ret_job = job;
}

bool fa_cpu_paged_attend(const struct fa_cpu_isa *isa, const struct fa_paged_attention *params,
                         const struct fa_cpu_paged_workspace *workspace, int64_t tile,
                         void *scratch, const bool *stop)
{
	int32_t b = find_sequence(workspace->places, params->step->batch, tile);
	const struct fa_cpu_paged_place *place = &workspace->places[b];
	int64_t at = tile - place->tile, split = at % place->n_splits;
	int64_t list = at / place->n_splits, block = list / params->cache->kv_heads;
	int64_t split_floats, chunk;
	float *partials;
	struct fa_cpu_job job;

	/* The last rows see most: they go first. */
	block = place->n_blocks - 1 - block;
	fill_job(params, b, (int32_t)(list % params->cache->kv_heads), &job);
	job.stop = stop;
	job.row = block * place->block;
	job.rows = (int32_t)min64(place->block, job.n_q * job.group - job.row);
	chunk = (place->first_chunk + split) * place->chunk;
	job.begin = min64(max64(place->keys_begin, chunk), place->keys_end);
	job.end = split == place->n_splits - 1 ? place->keys_end : chunk + place->chunk;

	split_floats = place->block * fa_cpu_partial_floats(&job);
	partials = workspace->partials + place->partial + list * place->n_splits * split_floats;
	if (place->n_splits > 1)
		job.partial = partials + split * split_floats;
	if (job.rows <= FA_CPU_THIN_ROWS && job.store == FA_PAGED_PLAIN)
		isa->thin(&job, scratch);
	else
		isa->wide(&job, scratch);
	if (fa_cpu_job_stopped(&job))
		return false;
	if (place->n_splits == 1)
		return true;

	/* Whoever ends the last split of a block ends its rows. */
	if (atomic_fetch_add_explicit(&workspace->counters[place->counter + list], 1,
	                              memory_order_acq_rel) +
	            1 <
	    (uint32_t)place->n_splits)
		return true;
	job.partial = NULL;
	isa->reduce(&job, partials, place->n_splits, split_floats);
	return true;
}
