/*
 * Attention over tensors, over pages of the KV pool, or over a client's own pages, as
 * kernels/attention.h and kernels/paged.h define it. A workgroup computes ROWS packed rows (the
 * query heads of a KV head, token by token) in one pass over the keys with an online softmax: each
 * invocation computes one key's scores, and then some elements of the output.
 *
 * Barriers, once per block of keys, all arrive at all: after the scores, after the maxima, after
 * the weights, and before the next block's scores; with blocks or a pattern once more, before the scores.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "memory.glsl"

#define LANES FA_VULKAN_LANES
#define DIM_MAX 576
#define STOP_BLOCKS 8 /* how many blocks go by between two looks at the word that stops */

layout(constant_id = 0) const uint SOURCE = FA_VULKAN_DENSE;
layout(constant_id = 1) const uint DTYPE = F32;
layout(constant_id = 2) const uint STORE = PLAIN;
layout(constant_id = 3) const bool ALIGNED = false;
layout(constant_id = 4) const uint ROWS = 8;
layout(constant_id = 5) const uint COLUMNS = 4; /* of LANES elements of V */

layout(local_size_x = LANES) in;

#include "rows.glsl"

shared float s_q[ROWS * DIM_MAX];
shared float s_weight[ROWS * LANES]; /* [row][key]: scores' weights; -1: the row does not see the key */
shared float s_max[ROWS], s_factor[ROWS];
shared Row s_v[LANES]; /* of V */
shared float s_v_scale[LANES];
shared bool s_stop;
shared int64_t s_next[ROWS]; /* with blocks or a pattern: the first key that the row may see */
shared bool s_listed[ROWS];  /* the keys are in a block of the row's list */

/* ---- masks */

#define NO_BLOCK (int64_t(1) << 44)

/* What is left of a row's list of blocks. Each entry is read once, as a client may write it. */
struct List {
	uint64_t at, end;
	int64_t block; /* the current one */
};

void list_step(inout List list)
{
	const int64_t n_blocks = (int64_t(s_sequence.n_k) + A.block_keys - 1) / A.block_keys;

	while (list.at < list.end) {
		const int64_t block = int64_t(int(VolatileWord(list.at).x));

		list.at += 4;
		if (block > list.block && block < n_blocks) {
			list.block = block;
			return;
		}
	}
	list.block = NO_BLOCK;
}

List list_of(uint b, uint head, uint64_t token)
{
	const uint64_t offsets = A.offsets + 4 * (b * A.offsets_batch + head * A.offsets_head +
	                                          int64_t(token) / A.block_rows);
	const uint64_t columns = A.columns + 4 * (b * A.columns_batch + head * A.columns_head);
	const int64_t most = (int64_t(s_sequence.n_k) + A.block_keys - 1) / A.block_keys;
	const int64_t begin = clamp(int64_t(int(VolatileWord(offsets).x)), int64_t(0), A.n_columns);
	const int64_t end = clamp(int64_t(int(VolatileWord(offsets + 4).x)), int64_t(0), A.n_columns);
	List list = List(columns + 4 * begin, columns + 4 * max(begin, min(end, begin + most)), -1);

	list_step(list);
	return list;
}

/* GLSL defines remainders of numbers from 0 on alone. */
int64_t pattern_block(int64_t position)
{
	return position < 0 ? -((A.pattern_tokens - 1 - position) / A.pattern_tokens)
	                    : position / A.pattern_tokens;
}

/* Of key blocks those are seen whose number and this are multiples of the stride. */
int64_t pattern_shift(uint head)
{
	const int64_t number = A.pattern_first + head;

	return (A.pattern_step < 0 ? number / A.group * -A.pattern_step : number * A.pattern_step) + 1;
}

bool pattern_shows(int64_t row, int64_t block, int64_t shift)
{
	return pattern_block(row) - block < A.pattern_local || (block + shift) % A.pattern_stride == 0;
}

/* Returns the first key from @key on that the row's pattern shows. */
int64_t pattern_next(int64_t row, int64_t key, uint head)
{
	const int64_t block = key / A.pattern_tokens, shift = pattern_shift(head);
	const int64_t local = pattern_block(row) - A.pattern_local + 1;

	if (pattern_shows(row, block, shift))
		return key;
	return min(block + A.pattern_stride - (block + shift) % A.pattern_stride, max(local, block)) *
	       A.pattern_tokens;
}

/* Stores from which key on the row may see any, and whether its list has @key's block. */
void find_next(uint r, inout List list, uint head, int64_t key)
{
	int64_t next = key;

	s_listed[r] = true;
	if (A.offsets != 0) {
		while (list.block != NO_BLOCK && (list.block + 1) * A.block_keys <= key)
			list_step(list);
		next = max(key, list.block * A.block_keys);
		s_listed[r] = next == key;
	}
	/* Tokens of a tree stand elsewhere. */
	if (A.pattern_tokens != 0)
		next = max(next, min(pattern_next(s_position[r], key, head),
		                     has_tree() ? max(key, n_old()) : NO_BLOCK));
	s_next[r] = next;
}

bool masks_show(uint r, uint b, uint head, uint64_t token, int64_t key)
{
	if (!s_listed[r])
		return false;
	if (A.pattern_tokens != 0 && !pattern_shows(s_position[r], pattern_block(key_position(key)),
	                                            pattern_shift(head)))
		return false;
	if (A.bits == 0)
		return true;
	return key / 32 < A.bits_words &&
	       (VolatileWord(A.bits + 4 * (b * A.bits_batch + head * A.bits_head +
	                                   int64_t(token) * A.bits_row + key / 32)).x >>
	                uint(key % 32) & 1) != 0;
}

void main()
{
	const uint lane = gl_LocalInvocationIndex;
	uint64_t tile = push.first_tile + gl_WorkGroupID.x, rest;
	uint b;

	load_arguments();
	find_sequence(tile, b, rest);
	barrier();

	const uint64_t n_rows = uint64_t(s_sequence.n_q) * A.group;
	const uint64_t blocks = A.sequences == 0 ? A.blocks : (n_rows + ROWS - 1) / ROWS;
	const uint kv_head = uint(rest / blocks);
	const uint64_t first_row = rest % blocks * ROWS;
	const uint rows = uint(min(uint64_t(ROWS), n_rows - min(n_rows, first_row)));
	const uint dim = A.head_dim, dim_v = A.head_dim_v, group = A.group;
	int64_t low = int64_t(s_sequence.n_k), high = 0;

	if (rows == 0)
		return;
	for (uint r = 0; r < rows; r++) {
		uint64_t token = (first_row + r) / group;
		uint head = kv_head * group + uint((first_row + r) % group);
		uint64_t q = A.q + (b * A.q_batch + (s_sequence.q_begin + int64_t(token)) * A.q_token +
		                    head * A.q_head) *
		                           element_bytes(DTYPE);

		for (uint c = lane; c < dim; c += LANES)
			s_q[r * DIM_MAX + c] = load(DTYPE, q, c);
		if (lane == r) {
			find_keys(r, token);
			s_max[r] = -INF;
		}
	}
	/* Rows beyond the last are computed as zeros, and not stored. */
	for (uint r = rows; r < ROWS; r++) {
		for (uint c = lane; c < dim; c += LANES)
			s_q[r * DIM_MAX + c] = 0;
		if (lane == r) {
			s_position[r] = s_low[r] = s_high[r] = 0;
			s_max[r] = -INF;
		}
	}
	barrier();
	for (uint r = 0; r < rows; r++) {
		if (s_low[r] >= s_high[r])
			continue;
		low = min(low, s_low[r]);
		high = max(high, s_high[r]);
	}

	/* Blocks begin at multiples of their size, so that a row's sums do not depend on its neighbours. */
	const int64_t first_key = low;

	low -= low % LANES;

	const int shift = weight_shift();
	float total[ROWS], values[ROWS * COLUMNS];

	for (uint r = 0; r < ROWS; r++)
		total[r] = 0;
	for (uint i = 0; i < ROWS * COLUMNS; i++)
		values[i] = 0;

	uint n_blocks = 0;
	const bool skips = A.offsets != 0 || A.pattern_tokens != 0, masked = skips || A.bits != 0;
	/* Lane r keeps row r's. */
	const uint own_head = kv_head * group + uint((first_row + lane) % group);
	List list;

	if (lane < ROWS)
		s_listed[lane] = true;
	if (A.offsets != 0 && lane < rows)
		list = list_of(b, own_head, (first_row + lane) / group);
	barrier();

	for (int64_t key = low; key < high; key += LANES) {
		if (skips) {
			int64_t next = high;

			if (lane < ROWS)
				s_next[lane] = high;
			if (lane < rows)
				find_next(lane, list, own_head, key);
			barrier();
			for (uint r = 0; r < ROWS; r++)
				next = min(next, s_next[r]);
			if (next >= high)
				break;
			next -= next % LANES;
			if (next > key) {
				key = next - LANES;
				barrier();
				continue;
			}
		}

		const uint keys = uint(min(int64_t(LANES), high - key));
		float score[ROWS];
		bool seen[ROWS];

		for (uint r = 0; r < ROWS; r++) {
			score[r] = 0;
			seen[r] = false;
		}
		if (lane < keys && key + lane >= first_key) {
			const int64_t own = key + lane;
			const Rows at = find_rows(b, kv_head, uint(own));
			vec4 sums[ROWS];

			for (uint r = 0; r < ROWS; r++)
				sums[r] = vec4(0);
			for (uint c = 0; c < dim; c += 4) {
				const uint64_t row = SOURCE == FA_VULKAN_POOL
				                             ? base_of(at.k, c * STORED_BYTES)
				                             : at.k.at;
				vec4 k = STORE == PLAIN
				                 ? load4(DTYPE, ALIGNED, row, c)
				                 : load4_codes(STORE, ALIGNED, row, c) * at.k_scale;

				for (uint r = 0; r < ROWS; r++) {
					uint i = r * DIM_MAX + c;

					sums[r] += k * vec4(s_q[i], s_q[i + 1], s_q[i + 2], s_q[i + 3]);
				}
			}
			for (uint r = 0; r < ROWS; r++) {
				uint64_t row = first_row + r;

				seen[r] = r < rows && own >= s_low[r] && own < s_high[r] &&
				          sees(r, row / group, own) &&
				          (!masked ||
				           masks_show(r, b, kv_head * group + uint(row % group),
				                      row / group, own));
				if (seen[r])
					score[r] = finish_score(
						sums[r].x + sums[r].y + (sums[r].z + sums[r].w),
						kv_head * group + uint(row % group),
						A.slopes != 0 ? key_position(own) - s_position[r]
						              : int64_t(0));
			}
			s_v[lane] = at.v;
			s_v_scale[lane] = at.v_scale;
		} else {
			s_v[lane] = row_at(0);
		}
		for (uint r = 0; r < ROWS; r++)
			s_weight[r * LANES + lane] = seen[r] ? score[r] : -INF;
		if (lane == 0 && n_blocks++ % STOP_BLOCKS == 0)
			s_stop = VolatileWord(A.stop).x != 0;
		barrier();

		if (s_stop)
			return;
		if (lane < ROWS) {
			float before = s_max[lane], highest = before;

			for (uint i = 0; i < keys; i++) {
				float s = s_weight[lane * LANES + i];

				/* NaN never becomes the maximum. */
				if (s > highest)
					highest = s;
			}
			s_max[lane] = highest;
			s_factor[lane] = before == highest ? 1 : exp_shifted(before - highest, 0);
		}
		barrier();

		for (uint r = 0; r < ROWS; r++) {
			float highest = s_max[r], base = highest == -INF ? 0 : highest;

			s_weight[r * LANES + lane] =
				seen[r] ? exp_shifted(score[r] - base, shift) : -1;
		}
		barrier();

		/* The block's own sums come first, as one long sum loses digits. */
		float near_total[ROWS], near[ROWS * COLUMNS];

		for (uint r = 0; r < ROWS; r++)
			near_total[r] = 0;
		for (uint i = 0; i < ROWS * COLUMNS; i++)
			near[i] = 0;
		for (uint i = 0; i < keys; i++) {
			const Row at = s_v[i];
			const float v_scale = STORE == PLAIN ? 1 : s_v_scale[i];
			float weight[ROWS];

			for (uint r = 0; r < ROWS; r++) {
				weight[r] = s_weight[r * LANES + i];
				near_total[r] += weight[r] < 0 ? 0 : weight[r];
			}
			for (uint t = 0; t < COLUMNS; t++) {
				const uint c = t * LANES + lane;
				float v = 0;

				const uint64_t row = SOURCE == FA_VULKAN_POOL
				                             ? base_of(at, c * STORED_BYTES)
				                             : at.at;

				if (c < dim_v && at.at != 0)
					v = STORE == PLAIN ? load(DTYPE, row, c)
					                   : load_code(STORE, row, c) * v_scale;
				/* A hidden key's V may be NaN. */
				for (uint r = 0; r < ROWS; r++)
					near[r * COLUMNS + t] +=
						weight[r] < 0 ? 0 : weight[r] * v;
			}
		}
		for (uint r = 0; r < ROWS; r++) {
			const float factor = s_factor[r];

			total[r] = total[r] * factor + near_total[r];
			for (uint t = 0; t < COLUMNS; t++)
				values[r * COLUMNS + t] =
					values[r * COLUMNS + t] * factor + near[r * COLUMNS + t];
		}
		barrier();
	}

	for (uint r = 0; r < ROWS; r++) {
		if (r >= rows)
			continue;

		const uint64_t token = (first_row + r) / group;
		const uint head = kv_head * group + uint((first_row + r) % group);
		const int64_t at = s_sequence.q_begin + int64_t(token);
		const uint64_t result = result_row(b, at, head);
		float lse;
		const float factor = finish_row(s_max[r], total[r], shift, head, lse);

		for (uint t = 0; t < COLUMNS; t++) {
			const uint c = t * LANES + lane;

			if (c < dim_v)
				store(DTYPE, result, c, mean(values[r * COLUMNS + t], factor));
		}
		if (lane == 0 && A.lse != 0)
			Float(lse_at(b, at, head)).x = lse;
	}
}
