/* Merges two results over disjoint sets of keys. A workgroup does one row. The result may be one of the two. */
#version 460
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"

#define LANES FA_VULKAN_LANES

layout(constant_id = 1) const uint DTYPE = F32;

layout(local_size_x = LANES) in;

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer Arguments {
	fa_vulkan_merge a;
};
layout(push_constant, scalar) uniform Push {
	uint64_t arguments, first_group;
} push;

#define A Arguments(push.arguments).a
#define BYTES element_bytes(DTYPE)

void main()
{
	const uint64_t group = push.first_group + gl_WorkGroupID.x;
	const int64_t token = int64_t(group / A.heads);
	const uint head = uint(group % A.heads);
	const uint64_t a = A.a + (token * A.a_token + head * A.a_head) * BYTES;
	const uint64_t b = A.b + (token * A.b_token + head * A.b_head) * BYTES;
	const uint64_t result = A.result + (token * A.result_token + head * A.result_head) * BYTES;
	float lse_a = Float(A.lse_a + 4 * (token * A.lse_a_token + head * A.lse_a_head)).x;
	float lse_b = Float(A.lse_b + 4 * (token * A.lse_b_token + head * A.lse_b_head)).x;
	float weight_a = 0, weight_b = 0, lse = -INF, highest;

	/* All read before the first writes, as the result's lse may be one of the two. */
	barrier();
	lse_a = lse_a == INF ? -INF : lse_a;
	lse_b = lse_b == INF ? -INF : lse_b;
	highest = lse_a > lse_b ? lse_a : lse_b;
	if (highest != -INF) {
		float sum;

		weight_a = exp_shifted(lse_a - highest, 0);
		weight_b = exp_shifted(lse_b - highest, 0);
		sum = weight_a + weight_b;
		weight_a /= sum;
		weight_b /= sum;
		lse = highest + log_of(sum);
	}
	for (uint c = gl_LocalInvocationIndex; c < A.head_dim_v; c += LANES) {
		/* A result that saw no key is not read: it may be NaN. */
		float x = weight_a != 0 ? load(DTYPE, a, c) * weight_a : 0;

		if (weight_b != 0)
			x += load(DTYPE, b, c) * weight_b;
		store(DTYPE, result, c, x);
	}
	if (A.lse_result != 0 && gl_LocalInvocationIndex == 0)
		Float(A.lse_result + 4 * (token * A.lse_result_token + head * A.lse_result_head)).x = lse;
}
