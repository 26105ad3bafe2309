/*
 * ldmatrix: four 8 x 8 matrices of 16-bit elements from shared memory. Lane i gives the 16-byte
 * aligned address of row i % 8 of matrix i / 8. ret[j] is matrix j: lane (g, t) gets row g, columns
 * 2t and 2t + 1, or with _trans rows 2t and 2t + 1 of column g.
 */
#pragma once

#include <stdint.h>

__device__ __forceinline__ void fa_ldmatrix_x4(uint32_t (&ret)[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(ret[0]), "=r"(ret[1]), "=r"(ret[2]), "=r"(ret[3])
	             : "r"(address)
	             : "memory");
}

__device__ __forceinline__ void fa_ldmatrix_x4_trans(uint32_t (&ret)[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(ret[0]), "=r"(ret[1]), "=r"(ret[2]), "=r"(ret[3])
	             : "r"(address)
	             : "memory");
}
