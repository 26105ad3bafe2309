/*
 * The order of a ragged batch's blocks of rows: dealt out by the number of keys that they see,
 * forwards and backwards in turns, so that thread blocks end at about the same time. A thread block
 * computes its units by head: L2 keeps those heads' keys for all sequences.
 */
#include "kernels/cuda/plan.h"

#include <stdlib.h>
#include <string.h>

/* Blocks of rows are sorted into so many buckets, by their number of tiles. */
#define BUCKETS 1024
/* If so many query heads share a KV head, memory is fast enough without L2. */
#define GROUP_ENOUGH 4

static int32_t n_sequences(const struct fa_cuda_attention *args)
{
	return args->triples / (args->heads * args->slices);
}

static int64_t tiles_of(const struct fa_cuda_launch *launch, int64_t n_q, int64_t n_k, int64_t row)
{
	const struct fa_cuda_attention *args = &launch->args;
	const int64_t keys = launch->kernel->keys, diagonal = n_k - n_q;
	int64_t last = row + launch->kernel->rows, begin, end;

	last = last < n_q ? last : n_q;
	begin = row + diagonal - args->window_left;
	begin = begin > 0 ? begin : 0;
	end = last + diagonal + args->window_right;
	end = end < n_k ? end : n_k;
	return end > begin ? (end - 1) / keys - begin / keys + 1 : 0;
}

/* Within a sequence, later rows come first. */
static void each_block(const struct fa_cuda_launch *launch,
                       void (*call)(void *userdata, uint32_t sequence, uint32_t row, int64_t tiles),
                       void *userdata)
{
	const struct fa_cuda_attention *args = &launch->args;
	const int64_t rows = launch->kernel->rows;

	for (int32_t b = 0; b < n_sequences(args); b++) {
		const int64_t n_q = args->cu_seqlens_q[b + 1] - args->cu_seqlens_q[b];
		const int64_t n_k = args->cu_seqlens_k[b + 1] - args->cu_seqlens_k[b];

		for (int64_t row = (n_q - 1) / rows * rows; n_q > 0 && row >= 0; row -= rows)
			call(userdata, (uint32_t)b, (uint32_t)row, tiles_of(launch, n_q, n_k, row));
	}
}

struct sort {
	struct fa_cuda_ragged_unit *blocks; /* sorted, for the first head */
	uint32_t heads, n;
	int64_t all, most;
	uint32_t places[BUCKETS];
};

static uint32_t bucket_of(const struct sort *sort, int64_t tiles)
{
	return (uint32_t)((sort->most - tiles) * (BUCKETS - 1) / sort->most);
}

static void measure(void *userdata, uint32_t sequence, uint32_t row, int64_t tiles)
{
	struct sort *sort = userdata;

	sort->n++;
	sort->all += tiles;
	sort->most = tiles > sort->most ? tiles : sort->most;
}

static void count(void *userdata, uint32_t sequence, uint32_t row, int64_t tiles)
{
	struct sort *sort = userdata;

	sort->places[bucket_of(sort, tiles)]++;
}

static void place(void *userdata, uint32_t sequence, uint32_t row, int64_t tiles)
{
	struct sort *sort = userdata;

	sort->blocks[sort->places[bucket_of(sort, tiles)]++] =
		(struct fa_cuda_ragged_unit){ sequence * sort->heads, row };
}

/* The blocks with the most tiles go first. */
static void sort_blocks(const struct fa_cuda_launch *launch, struct sort *sort)
{
	uint32_t before = 0;

	each_block(launch, measure, sort);
	each_block(launch, count, sort);
	for (int i = 0; i < BUCKETS; i++) {
		const uint32_t here = sort->places[i];

		sort->places[i] = before;
		before += here;
	}
	each_block(launch, place, sort);
}

/* Returns all heads, unless K and V exceed L2 and memory would be too slow without it. */
static uint32_t heads_together(const struct fa_cuda_launch *launch, int64_t l2_bytes)
{
	const struct fa_cuda_attention *args = &launch->args;
	const int32_t kv_heads = args->heads / args->group;
	const int64_t head_bytes = (int64_t)args->cu_seqlens_k[n_sequences(args)] *
	                           (launch->kernel->dim + launch->kernel->dim_v) * 2;

	if (args->group >= GROUP_ENOUGH || args->slices > 1 || kv_heads * head_bytes <= l2_bytes)
		return (uint32_t)(args->heads * args->slices);
	for (int32_t n = kv_heads; n > 1; n--)
		if (n * head_bytes <= l2_bytes / 2)
			return (uint32_t)(n * args->group);
	return (uint32_t)args->group;
}

bool fa_cuda_ragged_list(const struct fa_cuda_launch *launch, int64_t l2_bytes,
                         struct fa_cuda_ragged_unit *ret_list)
{
	const uint32_t together = heads_together(launch, l2_bytes), grid = launch->grid;
	const uint32_t heads = (uint32_t)(launch->args.heads * launch->args.slices);
	struct sort sort = { .heads = heads, .most = 1 };
	uint32_t *n_given;

	sort.blocks = malloc(launch->list_units / heads * sizeof(*sort.blocks) +
	                     grid * sizeof(*n_given));
	if (!sort.blocks)
		return false;
	sort_blocks(launch, &sort);
	n_given = (uint32_t *)(sort.blocks + sort.n);
	memset(n_given, 0, grid * sizeof(*n_given));
	for (uint32_t first = 0; first < sort.heads; first += together) {
		const uint32_t end = first + together < sort.heads ? first + together : sort.heads;

		for (uint32_t i = 0; i < sort.n; i++)
			for (uint32_t head = first; head < end; head++) {
				const uint32_t rank = i * sort.heads + head, at = rank % grid;
				const uint32_t b = rank / grid % 2 ? grid - 1 - at : at;

				ret_list[(size_t)n_given[b]++ * grid + b] =
					(struct fa_cuda_ragged_unit){ sort.blocks[i].triple + head,
					                              sort.blocks[i].row };
			}
	}
	for (uint32_t b = 0; b < grid; b++)
		for (uint32_t at = n_given[b] * grid + b; at < launch->list_units; at += grid)
			ret_list[at].row = FA_CUDA_RAGGED_NONE;
	free(sort.blocks);
	return true;
}

bool fa_cuda_ragged_plan(const struct fa_cuda_launch *launch, uint32_t *ret_units,
                         double *ret_pairs)
{
	const struct fa_cuda_attention *args = &launch->args;
	const int64_t rows = launch->kernel->rows, heads = (int64_t)args->heads * args->slices;
	struct sort sort = { .most = 1 };
	int64_t blocks = 0;

	for (int32_t b = 0; b < n_sequences(args); b++) {
		blocks += (args->cu_seqlens_q[b + 1] - args->cu_seqlens_q[b] + rows - 1) / rows;
		if (blocks * heads > FA_CUDA_RAGGED_UNITS_MAX)
			return false;
	}
	each_block(launch, measure, &sort);
	*ret_units = (uint32_t)(blocks * heads);
	*ret_pairs = (double)sort.all * (double)rows * launch->kernel->keys * (double)heads;
	return true;
}
