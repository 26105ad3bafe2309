/*
 * How a request is cut into tiles, and which tile is which: pure functions of
 * the parameters and the instruction set, any thread, nothing remembered.
 *
 * Query heads that share a KV head are packed into one list of rows (token
 * by token, head by head within a token), so that they share each pass over K
 * and V. A tile is a block of that list. Tiles are numbered so that one finds its
 * sequence without a table: blocks of a sequence of n rows that starts at row s of the
 * ragged batch, with M rows to a block, are given the numbers s / M + b and up;
 * these ranges never overlap, and leave at most one number a sequence unused,
 * whose tile is empty. If all sequences are short, as in decoding, a tile is instead one
 * sequence's rows of a few neighbouring KV heads.
 */
#include "kernels/cpu/isa.h"

#include <stdatomic.h>
#include <unistd.h>

#define TILE_SECONDS 0.03
#define THIN_BYTES_PER_SECOND 5e9 /* a cautious guess of a thread's speed on K and V */
#define TILES_WANTED 32           /* for threads to share; what one more costs is small beside it */

static int64_t ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t window(int64_t given, int64_t far)
{
	return given < 0 ? far : min64(given, far);
}

static int32_t tile_rows(const struct fa_cpu_isa *isa, const struct fa_attention_params *params)
{
	int64_t group = params->heads / params->kv_heads;
	int64_t total, keys = params->seqlen_k;
	double row_flop, rows;

	if (params->window_left >= 0 && (params->causal || params->window_right >= 0))
		keys = min64(keys,
		             params->window_left + 1 +
		                     (params->causal ? 0 : min64(params->window_right, keys)));
	row_flop = 2.0 * (double)max64(keys, 1) * (params->head_dim + params->head_dim_v);
	rows = TILE_SECONDS * isa->flops / row_flop;
	if (rows > FA_CPU_TILE_ROWS)
		rows = FA_CPU_TILE_ROWS;

	if (params->cu_seqlens_q)
		total = params->cu_seqlens_q[params->batch] * group * params->kv_heads;
	else
		total = params->seqlen_q * params->batch * params->heads;
	if (rows > (double)total / TILES_WANTED) {
		/* A tile of half the size costs a few per cent more; less does not pay. */
		double least = rows < FA_CPU_TILE_ROWS / 2 ? rows : FA_CPU_TILE_ROWS / 2;

		rows = (double)total / TILES_WANTED;
		if (rows < least)
			rows = least;
	}

	return (int32_t)max64((int64_t)rows / isa->panel_rows, 1) * isa->panel_rows;
}

/* Numbers of tiles that one KV head has; for ragged batches with unused ones. */
static int64_t head_tiles(const struct fa_attention_params *params, int32_t block)
{
	int64_t group = params->heads / params->kv_heads;

	if (params->cu_seqlens_q)
		return params->cu_seqlens_q[params->batch] * group / block + params->batch;
	return ceil_div(params->seqlen_q * group, block) * params->batch;
}

/* Asked once, so that a request is cut in the same way from its first tile to its last. */
static int64_t processors(void)
{
	static atomic_int_fast64_t known;
	int64_t n = atomic_load_explicit(&known, memory_order_relaxed), nothing = 0;

	if (n == 0) {
		n = max64(sysconf(_SC_NPROCESSORS_ONLN), 1);
		if (!atomic_compare_exchange_strong(&known, &nothing, n))
			n = nothing;
	}
	return n;
}

/*
 * KV heads to a tile of a request whose sequences all have few rows, as in decoding; 0
 * for other requests. As many as leave work for every processor.
 */
static int32_t thin_heads(const struct fa_attention_params *params)
{
	int64_t group = params->heads / params->kv_heads;
	int64_t heads = (int64_t)params->batch * params->kv_heads / processors();
	double head_bytes = (double)params->seqlen_k * (params->head_dim + params->head_dim_v) * 4;

	if (params->seqlen_q * group > FA_CPU_THIN_ROWS)
		return 0;
	if ((double)heads * head_bytes > TILE_SECONDS * THIN_BYTES_PER_SECOND)
		heads = (int64_t)(TILE_SECONDS * THIN_BYTES_PER_SECOND / head_bytes);
	heads = min64(heads, min64(params->kv_heads, FA_CPU_THIN_HEADS));
	return (int32_t)max64(heads, 1);
}

int64_t fa_cpu_attention_tiles(const struct fa_cpu_isa *isa,
                               const struct fa_attention_params *params)
{
	int32_t heads = thin_heads(params);

	if (params->seqlen_q == 0)
		return 0;
	if (heads > 0)
		return ceil_div(params->kv_heads, heads) * params->batch;
	return head_tiles(params, tile_rows(isa, params)) * params->kv_heads;
}

size_t fa_cpu_attention_scratch_bytes(const struct fa_cpu_isa *isa,
                                      const struct fa_attention_params *params)
{
	return isa->scratch_bytes;
}

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

bool fa_cpu_attention_tile(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                           int64_t tile, void *scratch, const bool *stop)
{
	const struct fa_attention_params *p = params;
	int32_t block = tile_rows(isa, params), heads = thin_heads(params);
	int64_t bytes = p->dtype == FA_ATTENTION_F32 ? 4 : 2;
	int64_t q_batch, k_batch, v_batch, out_batch, lse_batch, far, head;
	struct fa_cpu_job job;
	struct place place;

	if (heads > 0)
		place_thin(p, heads, tile, &place);
	else if (p->cu_seqlens_q)
		place_ragged(p, block, tile, &place);
	else
		place_even(p, block, tile, &place);
	if (place.block >= place.n_blocks)
		return true;

	if (p->cu_seqlens_q) {
		int64_t token_q = p->cu_seqlens_q[place.sequence];
		int64_t token_k = p->cu_seqlens_k[place.sequence];

		job.n_q = p->cu_seqlens_q[place.sequence + 1] - token_q;
		job.n_k = p->cu_seqlens_k[place.sequence + 1] - token_k;
		q_batch = token_q * p->q.stride_token;
		k_batch = token_k * p->k.stride_token;
		v_batch = token_k * p->v.stride_token;
		out_batch = token_q * p->out.stride_token;
		lse_batch = token_q * p->lse_stride_token;
	} else {
		job.n_q = p->seqlen_q;
		job.n_k = p->seqlen_k;
		q_batch = place.sequence * p->q.stride_batch;
		k_batch = place.sequence * p->k.stride_batch;
		v_batch = place.sequence * p->v.stride_batch;
		out_batch = place.sequence * p->out.stride_batch;
		lse_batch = place.sequence * p->lse_stride_batch;
	}

	job.group = p->heads / p->kv_heads;
	job.n_heads = place.n_heads;
	head = (int64_t)place.kv_head * job.group;
	job.q = (const char *)p->q.data + (q_batch + head * p->q.stride_head) * bytes;
	job.k = (const char *)p->k.data + (k_batch + place.kv_head * p->k.stride_head) * bytes;
	job.v = (const char *)p->v.data + (v_batch + place.kv_head * p->v.stride_head) * bytes;
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

	job.stop = stop;
	job.dtype = p->dtype;
	job.head_dim = p->head_dim;
	job.head_dim_v = p->head_dim_v;
	job.row = place.block * block;
	job.rows = (int32_t)min64(block, job.n_q * job.group - job.row);

	job.store = FA_PAGED_PLAIN;
	job.table = NULL;
	job.tree = job.positions = NULL;
	job.partial = NULL;
	job.begin = 0;
	job.end = job.n_k;
	far = job.n_q + job.n_k;
	job.left = window(p->window_left, far);
	job.right = p->causal ? 0 : window(p->window_right, far);
	job.scale = p->scale;
	job.softcap = p->softcap;
	job.alibi_slopes = p->alibi_slopes ? p->alibi_slopes + head : NULL;
	job.sinks = p->sinks ? p->sinks + head : NULL;

	if (job.rows <= FA_CPU_THIN_ROWS)
		isa->thin(&job, scratch);
	else
		isa->wide(&job, scratch);
	return !fa_cpu_job_stopped(&job);
}
