/*
 * mma.sync m16n8k16 with 16-bit operands and fp32 accumulators. Fragments, with g = lane / 4 and t
 * = lane % 4:
 *   a[0] (g, 2t), a[1] (g + 8, 2t), a[2] (g, 2t + 8), a[3] (g + 8, 2t + 8): [m][k], pairs along k
 *   b0 (2t, g), b1 (2t + 8, g): [k][n], pairs along k
 *   d[0..1] (g, 2t), d[2..3] (g + 8, 2t): [m][n], pairs along n
 */
#pragma once

#include <stdint.h>

/* Tags of element types: memory holds uint16_t. */
struct fa_f16;
struct fa_bf16;

template <class T>
__device__ __forceinline__ void fa_mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1);

template <>
__device__ __forceinline__ void fa_mma_m16n8k16<fa_f16>(float (&d)[4], const uint32_t (&a)[4],
                                                        uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
	    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void fa_mma_m16n8k16<fa_bf16>(float (&d)[4], const uint32_t (&a)[4],
                                                         uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
