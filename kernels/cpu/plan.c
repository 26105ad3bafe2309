/*
 * Which rows and keys a tile computes (tiling.h says how a request is divided). Pure functions, any
 * thread; the only state is in the request's workspace.
 *
 * Query heads of a KV head are one list of rows (token by token, head by head), of which a tile is
 * a block. In a ragged batch, blocks of M rows of sequence b, which starts at row s, have numbers
 * from s / M + b on, without a table; at most one number per sequence is unused, an empty tile.
 * Where all sequences are short, a tile is one sequence's rows of a few adjacent KV heads.
 *
 * Where that gives few tiles of many keys, a tile computes one split of its block's keys and leaves
 * partial rows in the workspace. The tile that finishes a block's last split reduces all in order.
 * Such tiles are numbered by sequence, block, heads and split.
 */
#include "kernels/cpu/integer.h"
#include "kernels/cpu/tiling.h"

#include <stdatomic.h>

struct location {
	int32_t sequence, kv_head, n_heads;
	int64_t block, n_blocks;
};

static void locate_ragged(const struct fa_attention_params *params, int32_t block, int64_t tile,
                          struct location *ret_location)
{
	const uint32_t *cu = params->cu_seqlens_q;
	int64_t group = params->heads / params->kv_heads;
	int64_t slot = tile / params->kv_heads;
	int32_t low = 0, high = params->batch; /* the last b whose first number is <= slot */

	while (high - low > 1) {
		int32_t middle = low + (high - low) / 2;

		if (cu[middle] * group / block + middle <= slot)
			low = middle;
		else
			high = middle;
	}
	*ret_location = (struct location){
		.sequence = low,
		.kv_head = (int32_t)(tile % params->kv_heads),
		.n_heads = 1,
		.block = slot - (cu[low] * group / block + low),
		.n_blocks = ceil_div((cu[low + 1] - cu[low]) * group, block),
	};
	if (params->causal && ret_location->block < ret_location->n_blocks)
		ret_location->block = ret_location->n_blocks - 1 - ret_location->block;
}

static void locate_even(const struct fa_attention_params *params, int32_t block, int64_t tile,
                        struct location *ret_location)
{
	int64_t group = params->heads / params->kv_heads;
	int64_t n_blocks = ceil_div(params->seqlen_q * group, block);
	int64_t lists = (int64_t)params->batch * params->kv_heads;
	int64_t list, at;

	if (params->causal) {
		/* Later rows see more keys and go first. */
		list = tile % lists;
		at = n_blocks - 1 - tile / lists;
	} else {
		/* Follows the lists, so that K and V stay in the cache. */
		list = tile / n_blocks;
		at = tile % n_blocks;
	}
	*ret_location = (struct location){
		.sequence = (int32_t)(list / params->kv_heads),
		.kv_head = (int32_t)(list % params->kv_heads),
		.n_heads = 1,
		.block = at,
		.n_blocks = n_blocks,
	};
}

static void locate_few_rows(const struct fa_attention_params *params, int32_t heads, int64_t tile,
                            struct location *ret_location)
{
	int64_t n_tiles = ceil_div(params->kv_heads, heads); /* tiles of a sequence */
	int32_t kv_head = (int32_t)(tile % n_tiles) * heads;
	int32_t sequence = (int32_t)(tile / n_tiles);
	const uint32_t *cu = params->cu_seqlens_q;

	*ret_location = (struct location){
		.sequence = sequence,
		.kv_head = kv_head,
		.n_heads = (int32_t)min64(heads, params->kv_heads - kv_head),
		.block = 0,
		.n_blocks = cu && cu[sequence + 1] == cu[sequence] ? 0 : 1,
	};
}

/* ---- parts of the keys */

/* The workspace has finished splits per block, then partial rows. */
struct splits {
	int64_t n_tiles, n_blocks; /* a block counts once for all heads of a tile */
	int64_t n_partials;        /* of blocks with more than one split */
	int64_t head_floats;       /* per split and KV head */
	size_t partials;           /* offset in bytes */
	size_t bytes;
};

static int32_t tile_heads(const struct fa_cpu_tiling *tiling)
{
	return tiling->heads > 0 ? tiling->heads : 1;
}

static void splits_init(struct splits *splits, const struct fa_attention_params *params,
                        const struct fa_cpu_tiling *tiling)
{
	int64_t rows = min64(tiling->block, params->seqlen_q * (params->heads / params->kv_heads));
	int64_t heads = tile_heads(tiling), n_sets = ceil_div(params->kv_heads, heads);
	struct fa_cpu_tiling_sequence sequence;

	*splits = (struct splits){
		.head_floats = rows * fa_cpu_partial_floats_of(params->head_dim_v),
	};
	for (int32_t b = 0; b < params->batch; b++) {
		int64_t n;

		fa_cpu_tiling_sequence(params, tiling, b, &sequence);
		n = sequence.n_blocks * n_sets;
		splits->n_tiles += n * sequence.n_splits;
		splits->n_blocks += n;
		splits->n_partials += sequence.n_splits > 1 ? n * sequence.n_splits : 0;
	}
	splits->partials = ((size_t)splits->n_blocks * sizeof(uint32_t) + 63) / 64 * 64;
	splits->bytes = splits->partials +
	                (size_t)(splits->n_partials * heads * splits->head_floats) * sizeof(float);
}

struct split {
	int64_t number;
	int64_t counter;
	int64_t partial, stride; /* the block's first partial row; between splits */
};

static void locate_split(const struct fa_attention_params *params,
                         const struct fa_cpu_tiling *tiling, int64_t head_floats, int64_t tile,
                         struct location *ret_location, struct split *ret_split)
{
	int64_t heads = tile_heads(tiling), n_sets = ceil_div(params->kv_heads, heads), list;
	struct split split = { .number = tile, .stride = heads * head_floats };
	struct fa_cpu_tiling_sequence sequence;
	int32_t b = 0;

	for (;; b++) {
		int64_t n;

		fa_cpu_tiling_sequence(params, tiling, b, &sequence);
		n = sequence.n_blocks * n_sets;
		if (split.number < n * sequence.n_splits)
			break;
		split.number -= n * sequence.n_splits;
		split.counter += n;
		split.partial += sequence.n_splits > 1 ? n * sequence.n_splits * split.stride : 0;
	}
	list = split.number / sequence.n_splits;
	split.number %= sequence.n_splits;
	split.counter += list;
	split.partial += list * sequence.n_splits * split.stride;
	*ret_location = (struct location){
		.sequence = b,
		.kv_head = (int32_t)(list % n_sets * heads),
		.block = list / n_sets,
		.n_blocks = sequence.n_blocks,
	};
	ret_location->n_heads = (int32_t)min64(heads, params->kv_heads - ret_location->kv_head);
	if (params->causal)
		ret_location->block = sequence.n_blocks - 1 - ret_location->block;
	*ret_split = split;
}

/* ---- what a tile computes */

/* Query heads of one KV head that have different masks are taken for heads with KV heads of their
 * own. */
struct request {
	struct fa_attention_params params;
	int32_t sharers; /* heads of @params that share a KV head */
};

static void request_init(struct request *request, const struct fa_attention_params *params)
{
	*request = (struct request){ .params = *params, .sharers = 1 };
	if (!fa_cpu_tiling_masks_of_heads(params))
		return;
	request->sharers = params->heads / params->kv_heads;
	request->params.kv_heads = params->heads;
}

static void fill_masks(const struct fa_attention_params *p, int32_t sequence, int64_t head,
                       int64_t group, struct fa_cpu_job *job)
{
	const struct fa_attention_blocks *blocks = &p->blocks;
	const struct fa_attention_bits *bits = &p->bits;

	if (blocks->rows) {
		job->block_rows = blocks->rows;
		job->block_keys = blocks->keys;
		job->n_columns = blocks->n_columns;
		job->offsets = blocks->offsets + sequence * blocks->offsets_stride_batch +
		               head * blocks->offsets_stride_head;
		job->columns = blocks->columns + sequence * blocks->columns_stride_batch +
		               head * blocks->columns_stride_head;
	}
	if (p->pattern.block_tokens)
		fa_cpu_job_set_pattern(job, &p->pattern, head, group);
	if (bits->words) {
		job->bits = bits->words + sequence * bits->stride_batch + head * bits->stride_head;
		job->bits_stride = bits->stride_row;
		job->bits_words = bits->row_words;
	}
}

/* Returns the scale of the sequence's token 0, in @head; NULL: there is none. */
static const float *scales_at(const struct fa_attention_scales *scales, const uint32_t *cu_seqlens,
                              int32_t sequence, int64_t head)
{
	int64_t token = cu_seqlens ? cu_seqlens[sequence] : 0;

	return scales->data ? scales->data + sequence * scales->stride_batch +
	                              token * scales->stride_token + head * scales->stride_head
	                    : NULL;
}

static void fill_scales(const struct fa_attention_params *p, int32_t sequence, int64_t head,
                        int64_t kv_head, struct fa_cpu_job *job)
{
	job->store = FA_PAGED_E4M3;
	job->q_e4m3 = true;
	job->q_scales = scales_at(&p->q_scales, p->cu_seqlens_q, sequence, head);
	job->q_scale_stride_token = p->q_scales.stride_token;
	job->q_scale_stride_head = p->q_scales.stride_head;
	job->k_scales = (const char *)scales_at(&p->k_scales, p->cu_seqlens_k, sequence, kv_head);
	job->v_scales = (const char *)scales_at(&p->v_scales, p->cu_seqlens_k, sequence, kv_head);
	job->k_scale_stride = p->k_scales.stride_token * (int64_t)sizeof(float);
	job->v_scale_stride = p->v_scales.stride_token * (int64_t)sizeof(float);
	job->k_scale = job->v_scale = 1;
}

/* Fills all but rows and stop, for all keys of KV heads [kv_head, kv_head + n_heads). */
static void fill_job(const struct request *request, int32_t sequence, int32_t kv_head,
                     int32_t n_heads, struct fa_cpu_job *ret_job)
{
	const struct fa_attention_params *p = &request->params;
	int64_t out_bytes = p->dtype == FA_ATTENTION_F32 ? 4 : 2;
	int64_t bytes = p->e4m3 ? 1 : out_bytes, in_kv = kv_head / request->sharers;
	int64_t q_batch, k_batch, v_batch, out_batch, lse_batch, far, head;
	struct fa_cpu_job job = { .n_heads = n_heads, .store = FA_PAGED_PLAIN };

	if (p->cu_seqlens_q) {
		int64_t token_q = p->cu_seqlens_q[sequence];
		int64_t token_k = p->cu_seqlens_k[sequence];

		job.n_q = p->cu_seqlens_q[sequence + 1] - token_q;
		job.n_k = p->cu_seqlens_k[sequence + 1] - token_k;
		q_batch = token_q * p->q.stride_token;
		k_batch = token_k * p->k.stride_token;
		v_batch = token_k * p->v.stride_token;
		out_batch = token_q * p->out.stride_token;
		lse_batch = token_q * p->lse_stride_token;
	} else {
		job.n_q = p->seqlen_q;
		job.n_k = p->seqlen_k;
		q_batch = sequence * p->q.stride_batch;
		k_batch = sequence * p->k.stride_batch;
		v_batch = sequence * p->v.stride_batch;
		out_batch = sequence * p->out.stride_batch;
		lse_batch = sequence * p->lse_stride_batch;
	}

	job.group = p->heads / p->kv_heads;
	head = (int64_t)kv_head * job.group;
	job.q = (const char *)p->q.data + (q_batch + head * p->q.stride_head) * bytes;
	job.k = (const char *)p->k.data + (k_batch + in_kv * p->k.stride_head) * bytes;
	job.v = (const char *)p->v.data + (v_batch + in_kv * p->v.stride_head) * bytes;
	job.out = (char *)p->out.data + (out_batch + head * p->out.stride_head) * out_bytes;
	job.lse = p->lse ? p->lse + lse_batch + head * p->lse_stride_head : NULL;
	job.q_stride_token = p->q.stride_token * bytes;
	job.q_stride_head = p->q.stride_head * bytes;
	job.k_stride = p->k.stride_token * bytes;
	job.v_stride = p->v.stride_token * bytes;
	job.out_stride_token = p->out.stride_token * out_bytes;
	job.out_stride_head = p->out.stride_head * out_bytes;
	job.k_stride_head = p->k.stride_head * bytes;
	job.v_stride_head = p->v.stride_head * bytes;
	job.lse_stride_token = p->lse_stride_token;
	job.lse_stride_head = p->lse_stride_head;

	job.dtype = p->dtype;
	job.head_dim = p->head_dim;
	job.head_dim_v = p->head_dim_v;
	job.end = job.n_k;
	far = job.n_q + job.n_k;
	job.left = window(p->window_left, far);
	job.right_prefix = window(p->window_right, far);
	job.right = p->causal ? 0 : job.right_prefix;
	job.prefix = p->prefix_lengths ? p->prefix_lengths[sequence] : 0;
	job.chunk_tokens = p->chunk_tokens;
	job.scale = p->scale;
	job.softcap = p->softcap;
	job.alibi_slopes = p->alibi_slopes ? p->alibi_slopes + head : NULL;
	job.sinks = p->sinks ? p->sinks + head : NULL;
	fill_masks(p, sequence, head, job.group * request->sharers, &job);
	if (p->e4m3)
		fill_scales(p, sequence, head, in_kv, &job);

	*ret_job = job;
}

static bool run_job(const struct fa_cpu_isa *isa, const struct fa_cpu_job *job, void *scratch)
{
	if (job->rows <= FA_CPU_FEW_ROWS_MAX && job->store == FA_PAGED_PLAIN)
		isa->few_rows(job, scratch);
	else
		isa->many_rows(job, scratch);
	return !fa_cpu_job_stopped(job);
}

static void seen_by_job(const struct fa_cpu_job *job, int64_t *ret_begin, int64_t *ret_end)
{
	int64_t first = job->row / job->group + job->n_k - job->n_q;
	int64_t last = (job->row + job->rows - 1) / job->group + job->n_k - job->n_q;

	*ret_begin = clamp64(fa_cpu_job_low(job, first), 0, job->n_k);
	*ret_end = clamp64(fa_cpu_job_high(job, last), 0, job->n_k);
}

static void merge(const struct fa_cpu_isa *isa, const struct request *request,
                  const struct location *location, const struct fa_cpu_job *tile,
                  const float *partials, int64_t n_splits, int64_t stride)
{
	struct fa_cpu_job job;

	for (int32_t h = 0; h < location->n_heads; h++) {
		fill_job(request, location->sequence, location->kv_head + h, 1, &job);
		job.row = tile->row;
		job.rows = tile->rows;
		isa->reduce(&job, partials, n_splits, stride);
		partials += job.rows * fa_cpu_partial_floats(&job);
	}
}

static bool run_split(const struct fa_cpu_isa *isa, const struct request *request,
                      const struct fa_cpu_tiling *tiling, void *workspace, int64_t tile,
                      void *scratch, const bool *stop)
{
	const struct fa_attention_params *params = &request->params;
	_Atomic uint32_t *counters = workspace;
	int64_t begin, end, n_splits;
	struct fa_cpu_job job;
	struct location location;
	struct splits splits;
	struct split split;
	float *partials;

	splits_init(&splits, params, tiling);
	locate_split(params, tiling, splits.head_floats, tile, &location, &split);
	fill_job(request, location.sequence, location.kv_head, location.n_heads, &job);
	job.stop = stop;
	job.row = location.block * tiling->block;
	job.rows = (int32_t)min64(tiling->block, job.n_q * job.group - job.row);
	seen_by_job(&job, &begin, &end);
	n_splits = ceil_div(end - begin, tiling->split_keys);
	if (split.number > 0 && split.number >= n_splits)
		return true;
	if (n_splits <= 1)
		return run_job(isa, &job, scratch);

	partials = (float *)((char *)workspace + splits.partials) + split.partial;
	job.begin = begin + split.number * tiling->split_keys;
	job.end = min64(job.begin + tiling->split_keys, end);
	job.partial = partials + split.number * split.stride;
	if (!run_job(isa, &job, scratch))
		return false;
	if (atomic_fetch_add_explicit(&counters[split.counter], 1, memory_order_acq_rel) + 1 <
	    (uint32_t)n_splits)
		return true;
	merge(isa, request, &location, &job, partials, n_splits, split.stride);
	return true;
}

/* ---- the contract */

int64_t fa_cpu_attention_tiles(const struct fa_cpu_isa *isa,
                               const struct fa_attention_params *params)
{
	struct fa_cpu_tiling tiling;
	struct request request;
	struct splits splits;

	if (params->seqlen_q == 0)
		return 0;
	request_init(&request, params);
	params = &request.params;
	fa_cpu_tiling_choose(isa, params, &tiling);
	if (tiling.split_keys) {
		splits_init(&splits, params, &tiling);
		return splits.n_tiles;
	}
	if (tiling.heads > 0)
		return ceil_div(params->kv_heads, tiling.heads) * params->batch;
	return fa_cpu_tiling_head_tiles(params, &tiling) * params->kv_heads;
}

size_t fa_cpu_attention_scratch_bytes(const struct fa_cpu_isa *isa,
                                      const struct fa_attention_params *params)
{
	return isa->scratch_bytes;
}

size_t fa_cpu_attention_workspace_bytes(const struct fa_cpu_isa *isa,
                                        const struct fa_attention_params *params)
{
	struct fa_cpu_tiling tiling;
	struct request request;
	struct splits splits;

	request_init(&request, params);
	params = &request.params;
	fa_cpu_tiling_choose(isa, params, &tiling);
	if (!tiling.split_keys)
		return 0;
	splits_init(&splits, params, &tiling);
	return splits.bytes;
}

void fa_cpu_attention_begin(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                            void *workspace)
{
	_Atomic uint32_t *counters = workspace;
	struct fa_cpu_tiling tiling;
	struct request request;
	struct splits splits;

	request_init(&request, params);
	params = &request.params;
	fa_cpu_tiling_choose(isa, params, &tiling);
	if (!tiling.split_keys)
		return;
	splits_init(&splits, params, &tiling);
	for (int64_t i = 0; i < splits.n_blocks; i++)
		atomic_init(&counters[i], 0);
}

bool fa_cpu_attention_tile(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                           void *workspace, int64_t tile, void *scratch, const bool *stop)
{
	struct fa_cpu_job job;
	struct fa_cpu_tiling tiling;
	struct location location;
	struct request request;

	request_init(&request, params);
	params = &request.params;
	fa_cpu_tiling_choose(isa, params, &tiling);
	if (tiling.split_keys)
		return run_split(isa, &request, &tiling, workspace, tile, scratch, stop);
	if (tiling.heads > 0)
		locate_few_rows(params, tiling.heads, tile, &location);
	else if (params->cu_seqlens_q)
		locate_ragged(params, tiling.block, tile, &location);
	else
		locate_even(params, tiling.block, tile, &location);
	if (location.block >= location.n_blocks)
		return true;

	fill_job(&request, location.sequence, location.kv_head, location.n_heads, &job);
	job.stop = stop;
	job.row = location.block * tiling.block;
	job.rows = (int32_t)min64(tiling.block, job.n_q * job.group - job.row);
	return run_job(isa, &job, scratch);
}
