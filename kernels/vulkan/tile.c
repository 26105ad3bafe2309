#include "kernels/vulkan/tile.h"

#include <string.h>

/* Rows in shared memory, as matrix.comp has them. */
#define ROW_BYTES (3 * sizeof(int64_t) + sizeof(float))
#define KEY_BYTES 48
#define FIXED_BYTES 1024

/* Lavapipe leaves the loops of a workgroup after 65,535 rounds in all, of which a key may take 70. */
#define LAVAPIPE_KEYS_MAX 768

/* An operation of a kernel with matrices takes about so much of one of the scalar kernel. */
#define MATRIX_SHARE 0.0625
/* The same of the kernel for few rows. */
#define DECODE_SHARE 0.125

static uint32_t shared_bytes(const struct fa_vulkan_matrices *m, uint32_t dim, uint32_t subgroups,
                             uint32_t row_tiles, uint32_t keys)
{
	const uint32_t kv = 2 * keys * (dim / 8 + 1) * 16;
	const uint32_t scores = subgroups * m->m * (keys / 4 + 1) * 16;
	const uint32_t rows = subgroups * row_tiles * m->m;

	return kv + scores + rows * ((keys / 4 + 2) * 8 + (uint32_t)ROW_BYTES) + keys * KEY_BYTES +
	       FIXED_BYTES;
}

static bool divides(uint32_t n, uint32_t of)
{
	return n && of % n == 0;
}

/* Returns true if a kernel with matrices covers the request. */
static bool choose_matrices(const struct fa_vulkan_matrices *m, const struct fa_vulkan_request *r,
                            struct fa_vulkan_tile *ret_tile)
{
	const uint32_t dim = (uint32_t)r->head_dim;
	uint32_t subgroups, row_tiles, keys;

	if (!m || r->masks || r->store != FA_PAGED_PLAIN || r->head_dim != r->head_dim_v ||
	    (dim != 64 && dim != 128) || r->most_rows <= 1 || r->longest > INT32_MAX)
		return false;
	if (!(r->dtype == FA_ATTENTION_F16 && m->f16) &&
	    !(r->dtype == FA_ATTENTION_BF16 && m->bf16))
		return false;
	if (m->exact && (r->longest > LAVAPIPE_KEYS_MAX || r->most_rows == UINT64_MAX))
		return false;
	subgroups = dim <= 64 ? m->narrow.subgroups : m->wide.subgroups;
	row_tiles = dim <= 64 ? m->narrow.row_tiles : m->wide.row_tiles;
	keys = dim <= 64 ? m->narrow.keys : m->wide.keys;
	/* Few kinds, as each is a kernel to compile. */
	if (r->most_rows <= m->m)
		subgroups = row_tiles = 1;
	if (!divides(m->m, m->subgroup) || !divides(m->m, 2 * keys) || !divides(m->n, keys) ||
	    !divides(m->k, keys) || !divides(keys, dim) || !divides(8, m->n) || !divides(8, m->k) ||
	    keys * m->m / m->subgroup > 32 || keys * m->m / m->subgroup % 4 ||
	    !divides(subgroups * m->subgroup, keys * dim / 8) ||
	    shared_bytes(m, dim, subgroups, row_tiles, keys) > m->shared_bytes)
		return false;
	*ret_tile = (struct fa_vulkan_tile){
		.kernel = r->dtype == FA_ATTENTION_F16 ? FA_VULKAN_MATRIX_F16
		                                       : FA_VULKAN_MATRIX_BF16,
		.constants = { r->source, dim, r->begins % 16 == 0, !r->adjusts_scores, m->exact,
		               m->m, m->n, m->k, keys, subgroups, subgroups * m->subgroup,
		               row_tiles },
		.rows = subgroups * row_tiles * m->m,
	};
	return true;
}

/* ---- few rows */

#define DECODE_ROWS_MAX 8
/* So many rows read K and V twice, which costs less than the few workgroups of a kernel without splits. */
#define DECODE_TWICE_ROWS_MAX 16
#define DECODE_TWICE_KEYS 1024
/* Of a workgroup's shared memory, as context.c has it of the device. */
#define DECODE_BYTES_MAX (22u << 10)

static uint32_t decode_bytes(uint32_t dim, uint32_t pieces, uint32_t rows)
{
	const uint32_t keys = FA_VULKAN_DECODE_LANES * FA_VULKAN_DECODE_LOADS / pieces;

	return rows * dim * 4 + keys * (pieces + 1) * 16 + FA_VULKAN_DECODE_LANES * rows * 4 +
	       2 * rows * keys * 4 + keys * KEY_BYTES + FIXED_BYTES;
}

/* Returns true if the kernel for few rows covers the request. */
static bool choose_decode(const struct fa_vulkan_request *r, struct fa_vulkan_tile *ret_tile)
{
	const uint32_t dim = (uint32_t)r->head_dim;
	const uint32_t pieces = dim / (r->dtype == FA_ATTENTION_F32 ? 4 : 8);
	uint32_t rows = 1;

	if (!r->splits || r->longest < r->splits->from_keys || r->masks ||
	    r->store != FA_PAGED_PLAIN || r->head_dim != r->head_dim_v || r->begins % 16 ||
	    r->longest > INT32_MAX)
		return false;
	if (r->most_rows >
	    (r->longest >= DECODE_TWICE_KEYS ? DECODE_TWICE_ROWS_MAX : DECODE_ROWS_MAX))
		return false;
	/* Few kinds, as each is a kernel to compile. */
	if ((pieces != 8 && pieces != 16 && pieces != 32) ||
	    dim != pieces * (r->dtype == FA_ATTENTION_F32 ? 4 : 8))
		return false;
	while (rows < r->most_rows && rows < DECODE_ROWS_MAX)
		rows *= 2;
	if (decode_bytes(dim, pieces, rows) > DECODE_BYTES_MAX)
		return false;
	*ret_tile = (struct fa_vulkan_tile){
		.kernel = FA_VULKAN_DECODE,
		.constants = { r->source, (uint32_t)r->dtype, dim, rows,
		               r->dtype == FA_ATTENTION_F16 && r->splits->halves },
		.rows = rows,
		.dim = dim,
		.longest = r->longest,
	};
	return true;
}

static uint32_t divide_up(int64_t n, int64_t by)
{
	return (uint32_t)((n + by - 1) / by);
}

/* Returns into how many parts the keys of each of @tiles tiles are split. */
static uint32_t splits_of(const struct fa_vulkan_splits *splits, uint64_t tiles, int64_t longest)
{
	const uint32_t most = divide_up(longest, splits->least_keys);
	const uint32_t least = divide_up(longest, splits->most_keys);
	uint32_t n = tiles < splits->groups ? divide_up(splits->groups, (int64_t)tiles) : 1;

	n = n < most ? n : most;
	n = n > least ? n : least;
	n = n > 1 ? n : 1;
	return n < FA_VULKAN_SPLITS_MAX ? n : FA_VULKAN_SPLITS_MAX;
}

static void add_decode(struct fa_vulkan_writer *writer, const struct fa_vulkan_tile *tile,
                       const struct fa_vulkan_attend *arguments, uint64_t tiles, double flops)
{
	const uint32_t n = splits_of(writer->splits, tiles, tile->longest);
	const uint64_t rows = tiles * tile->rows, sums = rows * n * tile->dim * sizeof(float);
	const uint64_t parts_bytes = n > 1 ? sums + rows * n * 2 * sizeof(float) : 0;
	struct fa_vulkan_attend of_parts = *arguments;
	struct fa_vulkan_dispatch *dispatch;
	uint64_t at;

	if (parts_bytes > writer->parts_bytes)
		writer->parts_bytes = parts_bytes;
	of_parts.splits = n;
	of_parts.parts = writer->parts;
	of_parts.part_sums = writer->parts + sums;
	at = fa_vulkan_put(writer, &of_parts, sizeof(of_parts));
	dispatch = fa_vulkan_add(writer, FA_VULKAN_DECODE, at, tiles * n);
	memcpy(dispatch->constants, tile->constants, sizeof(dispatch->constants));
	dispatch->constants[5] = n > 1;
	dispatch->flops = flops * DECODE_SHARE / n;
	if (n == 1)
		return;
	dispatch = fa_vulkan_add(writer, FA_VULKAN_COMBINE, at, rows);
	memcpy(dispatch->constants, tile->constants, 4 * sizeof(uint32_t));
	dispatch->flops = (double)n * tile->dim;
}

void fa_vulkan_choose_tile(const struct fa_vulkan_matrices *matrices,
                           const struct fa_vulkan_request *request, struct fa_vulkan_tile *ret_tile)
{
	const struct fa_vulkan_request *r = request;
	uint32_t columns = ((uint32_t)r->head_dim_v + FA_VULKAN_LANES - 1) / FA_VULKAN_LANES;

	if (choose_decode(r, ret_tile) || choose_matrices(matrices, r, ret_tile))
		return;
	/* Few kinds, as each is a kernel to compile. */
	columns = columns <= 1 ? 1 : columns <= 2 ? 2 : columns <= 4 ? 4 : columns <= 8 ? 8 : 16;
	*ret_tile = (struct fa_vulkan_tile){
		.kernel = FA_VULKAN_ATTEND,
		.rows = r->most_rows <= 1 ? 1
		        : columns <= 4    ? 8
		                          : 4,
	};
	memcpy(ret_tile->constants,
	       (const uint32_t[]){ r->source, (uint32_t)r->dtype, (uint32_t)r->store, r->aligned_k,
	                           ret_tile->rows, columns },
	       6 * sizeof(uint32_t));
}

void fa_vulkan_add_attention(struct fa_vulkan_writer *writer, const struct fa_vulkan_tile *tile,
                             const struct fa_vulkan_attend *arguments, uint64_t tiles, double flops)
{
	struct fa_vulkan_dispatch *dispatch;

	if (tile->kernel == FA_VULKAN_DECODE) {
		add_decode(writer, tile, arguments, tiles, flops);
		return;
	}
	dispatch = fa_vulkan_add(writer, tile->kernel,
	                         fa_vulkan_put(writer, arguments, sizeof(*arguments)), tiles);
	memcpy(dispatch->constants, tile->constants, sizeof(dispatch->constants));
	dispatch->flops = tile->kernel == FA_VULKAN_ATTEND ? flops : flops * MATRIX_SHARE;
}
