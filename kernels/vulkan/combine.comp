/* Joins what decode.comp's workgroups have stored of the parts of a row's keys. A workgroup does one row. */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "memory.glsl"

#define LANES FA_VULKAN_DECODE_LANES
#define AT_ONCE 8 /* loads that an invocation has in flight */
#define STORE PLAIN

layout(constant_id = 0) const uint SOURCE = FA_VULKAN_DENSE;
layout(constant_id = 1) const uint DTYPE = F32;
layout(constant_id = 2) const uint DIM = 64;
layout(constant_id = 3) const uint ROWS = 1;

layout(local_size_x = LANES) in;

#include "rows.glsl"

shared float s_max[FA_VULKAN_SPLITS_MAX];
shared float s_sum[FA_VULKAN_SPLITS_MAX]; /* -1: the part was not stored */
shared bool s_stop;

void main()
{
	const uint lane = gl_LocalInvocationIndex;
	const uint64_t number = push.first_tile + gl_WorkGroupID.x, tile = number / ROWS;
	const uint r = uint(number % ROWS);
	uint64_t rest;
	uint b;

	load_arguments();
	find_sequence(tile, b, rest);

	const uint splits = A.splits;
	const uint64_t place = number * splits;

	for (uint s = lane; s < splits; s += LANES) {
		s_max[s] = Float(A.part_sums + 8 * (place + s)).x;
		s_sum[s] = Float(A.part_sums + 8 * (place + s) + 4).x;
		if (s_sum[s] < 0)
			s_max[s] = -INF;
	}
	/* A part that was stopped has stored nothing, and its memory may hold another request's. */
	if (lane == 0)
		s_stop = VolatileWord(A.stop).x != 0;
	barrier();
	if (s_stop)
		return;

	const uint64_t n_rows = uint64_t(s_sequence.n_q) * A.group;
	const uint64_t blocks = A.sequences == 0 ? A.blocks : (n_rows + ROWS - 1) / ROWS;
	const uint kv_head = uint(rest / blocks), group = A.group;
	const uint64_t row = rest % blocks * ROWS + r;

	if (row >= n_rows)
		return;

	float highest = -INF, total = 0, lse, factor;

	for (uint s = 0; s < splits; s++)
		highest = s_max[s] > highest ? s_max[s] : highest;
	for (uint s = 0; s < splits; s++) {
		if (!(s_sum[s] < 0))
			total += s_sum[s] *
			         (s_max[s] == highest ? 1 : exp_shifted(s_max[s] - highest, 0));
	}

	const int64_t at = s_sequence.q_begin + int64_t(row / group);
	const uint head = kv_head * group + uint(row % group);

	factor = finish_row(highest, total, weight_shift(), head, lse);
	for (uint c = lane; c < DIM; c += LANES) {
		float sum = 0;

		for (uint first = 0; first < splits; first += AT_ONCE) {
			float x[AT_ONCE];

			[[unroll]] for (uint i = 0; i < AT_ONCE; i++)
				x[i] = first + i < splits && !(s_sum[first + i] < 0)
				               ? Float(A.parts + 4 * ((place + first + i) * DIM + c)).x
				               : 0;
			[[unroll]] for (uint i = 0; i < AT_ONCE; i++) {
				const uint s = min(first + i, splits - 1);

				sum += x[i] * (s_max[s] == highest ? 1 : exp_shifted(s_max[s] - highest, 0));
			}
		}
		store(DTYPE, result_row(b, at, head), c, mean(sum, factor));
	}
	if (lane == 0 && A.lse != 0)
		Float(lse_at(b, at, head)).x = lse;
}
