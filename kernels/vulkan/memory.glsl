/*
 * Memory behind device addresses, and elements of the types that tensors have. Rows begin at
 * addresses that are aligned to elements; load4() of ALIGNED kernels wants four elements' alignment.
 */
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int32 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require

#include "arguments.h"
#include "number.glsl"

#define F32 1
#define F16 2
#define BF16 3

#define PLAIN 0
#define E4M3 1
#define INT8 2

layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Word64 { uint64_t x; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Word { uint x; };
layout(buffer_reference, scalar, buffer_reference_align = 4) volatile buffer VolatileWord { uint x; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Float { float x; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Half { uint16_t x; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Byte { uint8_t x; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Float4 { vec4 x; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Half4 { uvec2 x; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Words4 { uvec4 x; };

/* A row of memory. One in the pool may lie in two chunks, whose addresses need not follow one another: its
 * bytes from split on are at next + their number. */
struct Row {
	uint64_t at, next;
	uint split;
};

Row row_at(uint64_t at)
{
	return Row(at, at, 0xffffffffu);
}

/* Returns the address to which byte @offset of the row is relative. */
uint64_t base_of(Row row, uint offset)
{
	return offset < row.split ? row.at : row.next;
}

/* Finds byte @at of the pool. */
uint64_t pool_address(uint64_t chunks, uint shift, uint64_t at)
{
	return Word64(chunks + 8 * (at >> shift)).x + (at & (uint64_t(1) << shift) - 1);
}

/* Finds a row of the pool, which is shorter than a chunk. */
Row pool_row(uint64_t chunks, uint shift, uint64_t at, uint bytes)
{
	const uint64_t left = (uint64_t(1) << shift) - (at & (uint64_t(1) << shift) - 1);
	Row row = row_at(pool_address(chunks, shift, at));

	if (left < bytes) {
		row.split = uint(left);
		row.next = Word64(chunks + 8 * ((at >> shift) + 1)).x - left;
	}
	return row;
}

uint element_bytes(uint dtype)
{
	return dtype == F32 ? 4 : 2;
}

float load(uint dtype, uint64_t row, uint c)
{
	if (dtype == F32)
		return Float(row + 4 * c).x;
	uint half_bits = uint(Half(row + 2 * c).x);
	return dtype == F16 ? f16_decode(half_bits) : bf16_decode(half_bits);
}

void store(uint dtype, uint64_t row, uint c, float x)
{
	if (dtype == F32)
		Float(row + 4 * c).x = x;
	else
		Half(row + 2 * c).x = uint16_t(dtype == F16 ? f16_encode(x) : bf16_encode(x));
}

float load_code(uint store_as, uint64_t row, uint c)
{
	uint code = uint(Byte(row + c).x);

	return store_as == E4M3 ? e4m3_decode(code) : int8_decode(code);
}

vec4 load4(uint dtype, bool aligned, uint64_t row, uint c)
{
	if (!aligned)
		return vec4(load(dtype, row, c), load(dtype, row, c + 1), load(dtype, row, c + 2),
		            load(dtype, row, c + 3));
	if (dtype == F32)
		return Float4(row + 4 * c).x;
	uvec2 pairs = Half4(row + 2 * c).x;
	uvec4 bits = uvec4(pairs.x & 0xffff, pairs.x >> 16, pairs.y & 0xffff, pairs.y >> 16);
	if (dtype == F16)
		return vec4(f16_decode(bits.x), f16_decode(bits.y), f16_decode(bits.z),
		            f16_decode(bits.w));
	return vec4(bf16_decode(bits.x), bf16_decode(bits.y), bf16_decode(bits.z),
	            bf16_decode(bits.w));
}

/* Rows of codes begin at multiples of 8 bytes in the pool, but anywhere in a client's pages. */
vec4 load4_codes(uint store_as, bool aligned, uint64_t row, uint c)
{
	uvec4 codes;

	if (aligned) {
		uint word = Word(row + c).x;

		codes = uvec4(word & 0xff, word >> 8 & 0xff, word >> 16 & 0xff, word >> 24);
	} else {
		codes = uvec4(uint(Byte(row + c).x), uint(Byte(row + c + 1).x),
		              uint(Byte(row + c + 2).x), uint(Byte(row + c + 3).x));
	}
	if (store_as == E4M3)
		return vec4(e4m3_decode(codes.x), e4m3_decode(codes.y), e4m3_decode(codes.z),
		            e4m3_decode(codes.w));
	return vec4(int8_decode(codes.x), int8_decode(codes.y), int8_decode(codes.z),
	            int8_decode(codes.w));
}
