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

uint64_t page_at(uint64_t slots, uint64_t i)
{
	uint64_t at = uint64_t(Word(slots + 4 * i).x) * 256;

	return Word64(A.chunks + 8 * (at >> A.chunk_shift)).x +
	       (at & (uint64_t(1) << A.chunk_shift) - 1);
}

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
	const uint64_t to = page_at(A.to, i) + at;
	const uint64_t from = A.from != 0 ? page_at(A.from, i) + at : 0;

	for (uint c = 4 * gl_LocalInvocationIndex; c < end; c += 4 * LANES)
		Word(to + c).x = from != 0 ? Word(from + c).x : 0;
}
