/*
 * Which tile of a request is which (cut.h says how it is cut), and what that tile computes:
 * pure functions of the parameters and the instruction set, any thread, nothing remembered
 * but in the request's own workspace.
 *
 * Query heads that share a KV head are packed into one list of rows (token
 * by token, head by head within a token), so that they share each pass over K
 * and V. A tile is a block of that list. Tiles are numbered so that one finds its
 * sequence without a table: blocks of a sequence of n rows that starts at row s of the
 * ragged batch, with M rows to a block, are given the numbers s / M + b and up;
 * these ranges never overlap, and leave at most one number a sequence unused,
 * whose tile is empty. If all sequences are short, as in decoding, a tile is instead one
 * sequence's rows of a few neighbouring KV heads.
 *
 * Where that would be few tiles for many keys, a tile has only a part of the keys that its
 * block sees, and leaves partial rows in the workspace. A block's parts are counted there;
 * whoever ends the last of them merges all, in the order of the keys, whichever came first.
 * There are few sequences then: tiles are numbered one sequence after the other, block by
 * block, heads by heads, part by part.
 */
#include "kernels/cpu/cut.h"
#include "kernels/cpu/integer.h"

#include <stdatomic.h>

struct place {
	int32_t sequence, kv_head, n_heads;
	int64_t block, n_blocks; /* of the sequence */
};

static void place_ragged(const struct fa_attention_params *params, int32_t block, int64_t tile,
                         struct place *ret_place)
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
	*ret_place = (struct place){
		.sequence = low,
		.kv_head = (int32_t)(tile % params->kv_heads),
		.n_heads = 1,
		.block = slot - (cu[low] * group / block + low),
		.n_blocks = ceil_div((cu[low + 1] - cu[low]) * group, block),
	};
	if (params->causal && ret_place->block < ret_place->n_blocks)
		ret_place->block = ret_place->n_blocks - 1 - ret_place->block;
}

static void place_even(const struct fa_attention_params *params, int32_t block, int64_t tile,
                       struct place *ret_place)
{
	int64_t group = params->heads / params->kv_heads;
	int64_t n_blocks = ceil_div(params->seqlen_q * group, block);
	int64_t lists = (int64_t)params->batch * params->kv_heads;
	int64_t list, at;

	if (params->causal) {
		/* The last rows see most: every list's last block first. */
		list = tile % lists;
		at = n_blocks - 1 - tile / lists;
	} else {
		/* One list after the other, whose K and V then stay in the cache. */
		list = tile / n_blocks;
		at = tile % n_blocks;
	}
	*ret_place = (struct place){
		.sequence = (int32_t)(list / params->kv_heads),
		.kv_head = (int32_t)(list % params->kv_heads),
		.n_heads = 1,
		.block = at,
		.n_blocks = n_blocks,
	};
}

static void place_thin(const struct fa_attention_params *params, int32_t heads, int64_t tile,
                       struct place *ret_place)
{
	int64_t n_tiles = ceil_div(params->kv_heads, heads); /* of a sequence */
	int32_t kv_head = (int32_t)(tile % n_tiles) * heads;
	int32_t sequence = (int32_t)(tile / n_tiles);
	const uint32_t *cu = params->cu_seqlens_q;

	*ret_place = (struct place){
		.sequence = sequence,
		.kv_head = kv_head,
		.n_heads = (int32_t)min64(heads, params->kv_heads - kv_head),
		.block = 0,
		.n_blocks = cu && cu[sequence + 1] == cu[sequence] ? 0 : 1,
	};
}

/* ---- parts of the keys */

/* The workspace: a counter of ended parts for each block, then partial rows, of each part as
 * many as a block has at most. */
struct parts {
	int64_t n_tiles, n_blocks; /* those of a tile's heads are one */
	int64_t n_partials;        /* parts, where there is more than one */
	int64_t head_floats;       /* of one part and KV head */
	size_t partials;           /* where they begin */
	size_t bytes;
};

static int32_t tile_heads(const struct fa_cpu_cut *cut)
{
	return cut->heads > 0 ? cut->heads : 1;
}

static void parts_init(struct parts *parts, const struct fa_attention_params *params,
                       const struct fa_cpu_cut *cut)
{
	int64_t rows = min64(cut->block, params->seqlen_q * (params->heads / params->kv_heads));
	int64_t heads = tile_heads(cut), n_sets = ceil_div(params->kv_heads, heads);
	struct fa_cpu_cut_sequence sequence;

	*parts = (struct parts){
		.head_floats = rows * fa_cpu_partial_floats_of(params->head_dim_v),
	};
	for (int32_t b = 0; b < params->batch; b++) {
		int64_t n;

		fa_cpu_cut_sequence(params, cut, b, &sequence);
		n = sequence.n_blocks * n_sets;
		parts->n_tiles += n * sequence.n_parts;
		parts->n_blocks += n;
		parts->n_partials += sequence.n_parts > 1 ? n * sequence.n_parts : 0;
	}
	parts->partials = ((size_t)parts->n_blocks * sizeof(uint32_t) + 63) / 64 * 64;
	parts->bytes = parts->partials +
	               (size_t)(parts->n_partials * heads * parts->head_floats) * sizeof(float);
}

struct part {
	int64_t number;          /* of its block's */
	int64_t counter;         /* its block's */
	int64_t partial, stride; /* where its block's partial rows begin, and from part to part */
};

/* Of a tile of a request with parts. */
static void place_part(const struct fa_attention_params *params, const struct fa_cpu_cut *cut,
                       int64_t head_floats, int64_t tile, struct place *ret_place,
                       struct part *ret_part)
{
	int64_t heads = tile_heads(cut), n_sets = ceil_div(params->kv_heads, heads), list;
	struct part part = { .number = tile, .stride = heads * head_floats };
	struct fa_cpu_cut_sequence sequence;
	int32_t b = 0;

	for (;; b++) {
		int64_t n;

		fa_cpu_cut_sequence(params, cut, b, &sequence);
		n = sequence.n_blocks * n_sets;
		if (part.number < n * sequence.n_parts)
			break;
		part.number -= n * sequence.n_parts;
		part.counter += n;
		part.partial += sequence.n_parts > 1 ? n * sequence.n_parts * part.stride : 0;
	}
	list = part.number / sequence.n_parts;
	part.number %= sequence.n_parts;
	part.counter += list;
	part.partial += list * sequence.n_parts * part.stride;
	*ret_place = (struct place){
		.sequence = b,
		.kv_head = (int32_t)(list % n_sets * heads),
		.block = list / n_sets,
		.n_blocks = sequence.n_blocks,
	};
	ret_place->n_heads = (int32_t)min64(heads, params->kv_heads - ret_place->kv_head);
	if (params->causal)
		ret_place->block = sequence.n_blocks - 1 - ret_place->block;
	*ret_part = part;
}

/* ---- what a tile computes */

/* All but its rows, and who may stop it: it has all keys of KV heads [kv_head, kv_head +
 * n_heads) of a sequence. */
static void fill_job(const struct fa_attention_params *p, int32_t sequence, int32_t kv_head,
                     int32_t n_heads, struct fa_cpu_job *ret_job)
{
	int64_t bytes = p->dtype == FA_ATTENTION_F32 ? 4 : 2;
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
	job.k = (const char *)p->k.data + (k_batch + kv_head * p->k.stride_head) * bytes;
	job.v = (const char *)p->v.data + (v_batch + kv_head * p->v.stride_head) * bytes;
	job.out = (char *)p->out.data + (out_batch + head * p->out.stride_head) * bytes;
	job.lse = p->lse ? p->lse + lse_batch + head * p->lse_stride_head : NULL;
	job.q_stride_token = p->q.stride_token * bytes;
	job.q_stride_head = p->q.stride_head * bytes;
	job.k_stride = p->k.stride_token * bytes;
	job.v_stride = p->v.stride_token * bytes;
	job.out_stride_token = p->out.stride_token * bytes;
	job.out_stride_head = p->out.stride_head * bytes;
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
	job.right = p->causal ? 0 : window(p->window_right, far);
	job.scale = p->scale;
	job.softcap = p->softcap;
	job.alibi_slopes = p->alibi_slopes ? p->alibi_slopes + head : NULL;
	job.sinks = p->sinks ? p->sinks + head : NULL;

	*ret_job = job;
}

static bool run_job(const struct fa_cpu_isa *isa, const struct fa_cpu_job *job, void *scratch)
{
	if (job->rows <= FA_CPU_THIN_ROWS)
		isa->thin(job, scratch);
	else
		isa->wide(job, scratch);
	return !fa_cpu_job_stopped(job);
}

/* The keys that any of the job's rows sees, for all of which a block has its parts. */
static void seen_by_job(const struct fa_cpu_job *job, int64_t *ret_begin, int64_t *ret_end)
{
	int64_t first = job->row / job->group + job->n_k - job->n_q;
	int64_t last = (job->row + job->rows - 1) / job->group + job->n_k - job->n_q;

	*ret_begin = clamp64(first - job->left, 0, job->n_k);
	*ret_end = clamp64(last + job->right + 1, 0, job->n_k);
}

/* Whoever ends the last part of a block ends its rows. */
static void merge(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                  const struct place *place, const struct fa_cpu_job *tile, const float *partials,
                  int64_t n_parts, int64_t stride)
{
	struct fa_cpu_job job;

	for (int32_t h = 0; h < place->n_heads; h++) {
		fill_job(params, place->sequence, place->kv_head + h, 1, &job);
		job.row = tile->row;
		job.rows = tile->rows;
		isa->reduce(&job, partials, n_parts, stride);
		partials += job.rows * fa_cpu_partial_floats(&job);
	}
}

static bool run_part(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                     const struct fa_cpu_cut *cut, void *workspace, int64_t tile, void *scratch,
                     const bool *stop)
{
	_Atomic uint32_t *counters = workspace;
	int64_t begin, end, n_parts;
	struct fa_cpu_job job;
	struct place place;
	struct parts parts;
	struct part part;
	float *partials;

	parts_init(&parts, params, cut);
	place_part(params, cut, parts.head_floats, tile, &place, &part);
	fill_job(params, place.sequence, place.kv_head, place.n_heads, &job);
	job.stop = stop;
	job.row = place.block * cut->block;
	job.rows = (int32_t)min64(cut->block, job.n_q * job.group - job.row);
	seen_by_job(&job, &begin, &end);
	n_parts = ceil_div(end - begin, cut->chunk);
	if (part.number > 0 && part.number >= n_parts)
		return true;
	if (n_parts <= 1)
		return run_job(isa, &job, scratch);

	partials = (float *)((char *)workspace + parts.partials) + part.partial;
	job.begin = begin + part.number * cut->chunk;
	job.end = min64(job.begin + cut->chunk, end);
	job.partial = partials + part.number * part.stride;
	if (!run_job(isa, &job, scratch))
		return false;
	if (atomic_fetch_add_explicit(&counters[part.counter], 1, memory_order_acq_rel) + 1 <
	    (uint32_t)n_parts)
		return true;
	merge(isa, params, &place, &job, partials, n_parts, part.stride);
	return true;
}

/* ---- the contract */

int64_t fa_cpu_attention_tiles(const struct fa_cpu_isa *isa,
                               const struct fa_attention_params *params)
{
	struct fa_cpu_cut cut;
	struct parts parts;

	if (params->seqlen_q == 0)
		return 0;
	fa_cpu_cut(isa, params, &cut);
	if (cut.chunk) {
		parts_init(&parts, params, &cut);
		return parts.n_tiles;
	}
	if (cut.heads > 0)
		return ceil_div(params->kv_heads, cut.heads) * params->batch;
	return fa_cpu_cut_head_tiles(params, &cut) * params->kv_heads;
}

size_t fa_cpu_attention_scratch_bytes(const struct fa_cpu_isa *isa,
                                      const struct fa_attention_params *params)
{
	return isa->scratch_bytes;
}

size_t fa_cpu_attention_workspace_bytes(const struct fa_cpu_isa *isa,
                                        const struct fa_attention_params *params)
{
	struct fa_cpu_cut cut;
	struct parts parts;

	fa_cpu_cut(isa, params, &cut);
	if (!cut.chunk)
		return 0;
	parts_init(&parts, params, &cut);
	return parts.bytes;
}

void fa_cpu_attention_begin(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                            void *workspace)
{
	_Atomic uint32_t *counters = workspace;
	struct fa_cpu_cut cut;
	struct parts parts;

	fa_cpu_cut(isa, params, &cut);
	if (!cut.chunk)
		return;
	parts_init(&parts, params, &cut);
	for (int64_t i = 0; i < parts.n_blocks; i++)
		atomic_init(&counters[i], 0);
}

bool fa_cpu_attention_tile(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                           void *workspace, int64_t tile, void *scratch, const bool *stop)
{
	struct fa_cpu_job job;
	struct fa_cpu_cut cut;
	struct place place;

	fa_cpu_cut(isa, params, &cut);
	if (cut.chunk)
		return run_part(isa, params, &cut, workspace, tile, scratch, stop);
	if (cut.heads > 0)
		place_thin(params, cut.heads, tile, &place);
	else if (params->cu_seqlens_q)
		place_ragged(params, cut.block, tile, &place);
	else
		place_even(params, cut.block, tile, &place);
	if (place.block >= place.n_blocks)
		return true;

	fill_job(params, place.sequence, place.kv_head, place.n_heads, &job);
	job.stop = stop;
	job.row = place.block * cut.block;
	job.rows = (int32_t)min64(cut.block, job.n_q * job.group - job.row);
	return run_job(isa, &job, scratch);
}
