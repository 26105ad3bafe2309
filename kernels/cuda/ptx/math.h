/* Instructions that C++ has no name for. */
#pragma once

#include "kernels/cuda/ptx/mma.h"

#include <stdint.h>

/* Returns 2^x to 2 ulp; -inf gives 0. */
__device__ __forceinline__ float fa_ex2(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Returns log2(x) to an absolute 2^-22 near 1, and to 1 ulp elsewhere; 0 gives -inf. */
__device__ __forceinline__ float fa_lg2(float x)
{
	float y;

	asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Returns 1 / x to 1 ulp. */
__device__ __forceinline__ float fa_rcp(float x)
{
	float y;

	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Returns a or b without a branch. */
__device__ __forceinline__ float fa_select(bool which, float a, float b)
{
	float y;

	asm("{.reg .pred p; setp.ne.s32 p, %3, 0; selp.f32 %0, %1, %2, p;}"
	    : "=f"(y)
	    : "f"(a), "f"(b), "r"((int32_t)which));
	return y;
}

/* Moves a warp-uniform value to a vector register: ptxas would move it at each use. It does not see
 * through 0 * lane + x. */
__device__ __forceinline__ float fa_to_vector_register(float x)
{
	float y;

	asm volatile(
		"{.reg .u32 lane; .reg .f32 z; mov.u32 lane, %%laneid; cvt.rn.f32.u32 z, lane; "
		"fma.rn.f32 %0, z, 0f00000000, %1;}"
		: "=f"(y)
		: "f"(x));
	return y;
}

/* The compiler does not know that it is 0, nor computes what depends on it earlier. */
__device__ __forceinline__ int32_t fa_opaque_zero(void)
{
	int32_t zero;

	asm volatile("mov.s32 %0, 0;" : "=r"(zero));
	return zero;
}

__device__ __forceinline__ float fa_from_f16(uint16_t half)
{
	float y;

	asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(half));
	return y;
}

/* Packs two numbers, rounded to nearest; @lo is the low half. */
template <class T> __device__ __forceinline__ uint32_t fa_pack(float lo, float hi);

template <> __device__ __forceinline__ uint32_t fa_pack<fa_f16>(float lo, float hi)
{
	uint32_t y;

	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
	return y;
}

template <> __device__ __forceinline__ uint32_t fa_pack<fa_bf16>(float lo, float hi)
{
	uint32_t y;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
	return y;
}

template <class T>
__device__ __forceinline__ uint32_t fa_fma_packed(uint32_t a, uint32_t b, uint32_t c);

template <>
__device__ __forceinline__ uint32_t fa_fma_packed<fa_f16>(uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t y;

	asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
	return y;
}

template <>
__device__ __forceinline__ uint32_t fa_fma_packed<fa_bf16>(uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t y;

	asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
	return y;
}

/* Converts two e4m3, the first in the low byte, to fp16. */
__device__ __forceinline__ uint32_t fa_e4m3_to_f16(uint32_t codes)
{
	uint32_t y;

#if __CUDA_ARCH__ >= 890
	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"((uint16_t)codes));
#else
	/* fp16 has one more exponent bit and another bias: a shifted code is 2^8 times too
	 * small. */
	const uint32_t spread = __byte_perm(codes, 0, 0x1404);
	const uint32_t magnitude = spread & 0x7f007f00;
	const uint32_t nan = (magnitude + 0x01000100) & 0x80008000;

	y = fa_fma_packed<fa_f16>((spread & 0x80008000) | magnitude >> 1, 0x5c005c00, 0x80008000);
	y |= nan - (nan >> 9);
#endif
	return y;
}

/* Converts four e4m3, the first in the low byte, to fp16. */
__device__ __forceinline__ void fa_e4m3_to_f16_pairs(uint32_t codes, uint32_t &ret_first,
                                                     uint32_t &ret_last)
{
#if __CUDA_ARCH__ >= 890
	/* Half a register can be an operand; a shift would be an instruction. */
	asm("{.reg .b16 first, last; mov.b32 {first, last}, %2; "
	    "cvt.rn.f16x2.e4m3x2 %0, first; cvt.rn.f16x2.e4m3x2 %1, last;}"
	    : "=r"(ret_first), "=r"(ret_last)
	    : "r"(codes));
#else
	ret_first = fa_e4m3_to_f16(codes & 0xffff);
	ret_last = fa_e4m3_to_f16(codes >> 16);
#endif
}

template <class T> __device__ constexpr uint32_t fa_infinity(void);

template <> __device__ constexpr uint32_t fa_infinity<fa_f16>(void)
{
	return 0x7c00;
}

template <> __device__ constexpr uint32_t fa_infinity<fa_bf16>(void)
{
	return 0x7f80;
}

template <class T> __device__ __forceinline__ float fa_widen(uint16_t x);

template <> __device__ __forceinline__ float fa_widen<fa_f16>(uint16_t x)
{
	float y;

	asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
	return y;
}

template <> __device__ __forceinline__ float fa_widen<fa_bf16>(uint16_t x)
{
	return __uint_as_float((uint32_t)x << 16);
}
