/*
 * wgmma m64nNk16: asynchronous products of a warpgroup (four warps, 16 of 64 rows each), 16-bit
 * operands, fp32 accumulators. Between fa_wgmma_fence() and the fa_wgmma_wait() that completes a
 * product, no instruction may touch its registers. A from registers is laid out as in mma.h.
 * Accumulators, with g = lane / 4 and t = lane % 4: d[4 j] and d[4 j + 1] are row g, columns 8 j +
 * 2 t and the next, d[4 j + 2] and d[4 j + 3] row g + 8.
 */
#pragma once

#include "kernels/cuda/ptx/mma.h"

#include <stdint.h>

/* Descriptor of an operand in shared memory with TMA's 128-byte swizzle: columns of 128-byte rows,
 * each at a multiple of 1024 bytes. A, and B of Q K^T, are K-major. B of O += P V is N-major, with
 * @column_bytes from one column to the next. */
__device__ __forceinline__ uint64_t fa_wgmma_operand(uint32_t shared, uint32_t column_bytes)
{
	/* The swizzle mode, and 1024 bytes between groups of eight rows. */
	constexpr uint64_t constant = (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32;

	return constant | (uint64_t)(column_bytes >> 4) << 16 | shared >> 4;
}

__device__ __forceinline__ uint64_t fa_wgmma_advance(uint64_t operand, uint32_t bytes)
{
	return operand + (bytes >> 4);
}

/* Orders earlier register accesses before the products that follow. */
__device__ __forceinline__ void fa_wgmma_fence(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void fa_wgmma_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most @pending groups are in flight. */
template <int pending> __device__ __forceinline__ void fa_wgmma_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* Keeps the compiler from moving uses of @d above a wait. */
template <int COUNT> __device__ __forceinline__ void fa_wgmma_hold(float (&d)[COUNT])
{
#pragma unroll
	for (int i = 0; i < COUNT; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

__device__ __forceinline__ void fa_wgmma_hold(uint32_t &a)
{
	asm volatile("" : "+r"(a)::"memory");
}

/* dots: D = A B or, if @add, D += A B. Both operands are in shared memory, rows along k. add: D +=
 * A B, with A in registers and B's rows along n. add_shared: the same with A in shared memory, rows
 * along k. */
template <class T, int N> struct fa_wgmma;

/* clang-format off */
/* Accumulator lists, sixteen or eight at a time. */
#define FA_D0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FA_D16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FA_D32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FA_D48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FA_D64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define FA_D80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FA_D96 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define FA_D112 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FA_FLOATS(i) \
	"+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
	"+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), \
	"+f"(d[i + 11]), "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define FA_D_64 FA_D0 ", " FA_D16
#define FA_FLOATS_64 FA_FLOATS(0), FA_FLOATS(16)
#define FA_D_128 FA_D0 ", " FA_D16 ", " FA_D32 ", " FA_D48
#define FA_FLOATS_128 FA_FLOATS(0), FA_FLOATS(16), FA_FLOATS(32), FA_FLOATS(48)
#define FA_D_96 FA_D0 ", " FA_D16 ", " FA_D32
#define FA_FLOATS_96 FA_FLOATS(0), FA_FLOATS(16), FA_FLOATS(32)
#define FA_D_192 FA_D_96 ", " FA_D48 ", " FA_D64 ", " FA_D80
#define FA_FLOATS_192 FA_FLOATS_96, FA_FLOATS(48), FA_FLOATS(64), FA_FLOATS(80)
#define FA_D_256 \
	FA_D0 ", " FA_D16 ", " FA_D32 ", " FA_D48 ", " \
	FA_D64 ", " FA_D80 ", " FA_D96 ", " FA_D112
#define FA_FLOATS_256 \
	FA_FLOATS(0), FA_FLOATS(16), FA_FLOATS(32), FA_FLOATS(48), \
	FA_FLOATS(64), FA_FLOATS(80), FA_FLOATS(96), FA_FLOATS(112)

#define FA_WGMMA(type, name, N, r0, r1, r2, r3, r4) \
	template <> struct fa_wgmma<type, N> { \
		static __device__ __forceinline__ void dots(float (&d)[N / 2], uint64_t a, \
		                                            uint64_t b, bool add) \
		{ \
			asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r2 ", 0; " \
			             "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name "." name \
			             " {" FA_D_##N "}, %" #r0 ", %" #r1 ", p, 1, 1, 0, 0;}" \
			             : FA_FLOATS_##N \
			             : "l"(a), "l"(b), "r"((uint32_t)add)); \
		} \
		static __device__ __forceinline__ void add(float (&d)[N / 2], \
		                                           const uint32_t (&a)[4], uint64_t b) \
		{ \
			asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; " \
			             "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name "." name \
			             " {" FA_D_##N "}, {%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 \
			             "}, %" #r4 ", p, 1, 1, 1;}" \
			             : FA_FLOATS_##N \
			             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
		} \
		static __device__ __forceinline__ void add_shared(float (&d)[N / 2], uint64_t a, \
		                                                  uint64_t b) \
		{ \
			asm volatile("{.reg .pred p; setp.eq.b32 p, 0, 0; " \
			             "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." name "." name \
			             " {" FA_D_##N "}, %" #r0 ", %" #r1 ", p, 1, 1, 0, 1;}" \
			             : FA_FLOATS_##N \
			             : "l"(a), "l"(b)); \
		} \
	};

FA_WGMMA(fa_f16, "f16", 64, 32, 33, 34, 35, 36)
FA_WGMMA(fa_bf16, "bf16", 64, 32, 33, 34, 35, 36)
FA_WGMMA(fa_f16, "f16", 96, 48, 49, 50, 51, 52)
FA_WGMMA(fa_bf16, "bf16", 96, 48, 49, 50, 51, 52)
FA_WGMMA(fa_f16, "f16", 128, 64, 65, 66, 67, 68)
FA_WGMMA(fa_bf16, "bf16", 128, 64, 65, 66, 67, 68)
FA_WGMMA(fa_f16, "f16", 192, 96, 97, 98, 99, 100)
FA_WGMMA(fa_bf16, "bf16", 192, 96, 97, 98, 99, 100)
FA_WGMMA(fa_f16, "f16", 256, 128, 129, 130, 131, 132)
FA_WGMMA(fa_bf16, "bf16", 256, 128, 129, 130, 131, 132)
/* clang-format on */
