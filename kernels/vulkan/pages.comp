/* Copies whole pages of the pool, all layers, or fills them with zeros. A workgroup does a part of K or V of
 * one layer. */
#version 460
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"

#define LANES FA_VULKAN_LANES

layout(local_size_x = LANES) in;

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer Arguments {
	fa_vulkan_pages a;
};
layout(push_constant, scalar) uniform Push {
	uint64_t arguments, first_group;
} push;

#define A Arguments(push.arguments).a

void main()
{
	const uint64_t group = push.first_group + gl_WorkGroupID.x;
	const uint parts = A.k_parts + A.v_parts;
	uint part = uint(group % parts);
	const uint layer = uint(group / parts % A.layers);
	const uint64_t i = group / parts / A.layers;
	const bool is_v = part >= A.k_parts;
	const uint bytes = is_v ? A.v_bytes : A.k_bytes;

	part -= is_v ? A.k_parts : 0;

	const uint64_t at = layer * A.layer_stride + (is_v ? A.v_offset : int64_t(0)) +
	                    part * FA_VULKAN_PART_BYTES;
	const uint end = min(bytes - part * FA_VULKAN_PART_BYTES, uint(FA_VULKAN_PART_BYTES));
	const uint64_t to = uint64_t(Word(A.to + 4 * i).x) * 256 + at;
	uint64_t from = 0;

	if (A.from != 0)
		from = uint64_t(Word(A.from + 4 * i).x) * 256 + at;
	/* A page may lie in several chunks. */
	for (uint c = 4 * gl_LocalInvocationIndex; c < end; c += 4 * LANES)
		Word(pool_address(A.chunks, A.chunk_shift, to + c)).x =
			A.from != 0 ? Word(pool_address(A.chunks, A.chunk_shift, from + c)).x : 0;
}
