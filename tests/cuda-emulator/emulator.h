/*
 * Device code on the host: enough of CUDA C++ to run this project's kernels as they are, with
 * the functions of kernels/cuda/ptx written anew beside this file (the include path puts
 * them before the real ones). For tests where there is no GPU; slow.
 *
 * A block's threads are fibres of one thread, that give way only where instructions of a
 * warp or block meet. Blocks run one after the other, in an order that the caller draws.
 * Copies by cp.async happen as late as they may: when they are waited for.
 */
#pragma once

#include "tests/cuda-emulator/launch.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct uint4 {
	uint32_t x, y, z, w;
};
struct float2 {
	float x, y;
};
struct float4 {
	float x, y, z, w;
};
struct fa_emulated_index {
	uint32_t x, y, z;
};

/* Of the fibre that runs. */
extern struct fa_emulated_index threadIdx, blockIdx;

/* The block's dynamic shared memory, by the names that kernels give it. */
extern char shared_memory[];

#define FA_EMULATED_SHARED_MAX (228 << 10)

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return { x, y, z, w };
}

static inline float2 make_float2(float x, float y)
{
	return { x, y };
}

static inline int32_t min(int32_t a, int32_t b)
{
	return a < b ? a : b;
}
static inline uint32_t min(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}
static inline uint32_t min(int32_t a, uint32_t b)
{
	return min((uint32_t)a, b);
}
static inline uint32_t min(uint32_t a, int32_t b)
{
	return min(a, (uint32_t)b);
}
static inline int32_t max(int32_t a, int32_t b)
{
	return a > b ? a : b;
}
static inline uint32_t max(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static inline uint32_t __float_as_uint(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, 4);
	return bits;
}

static inline float __uint_as_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, 4);
	return value;
}

static inline void sincospif(float x, float *ret_sin, float *ret_cos)
{
	*ret_sin = (float)sin(M_PI * (double)x);
	*ret_cos = (float)cos(M_PI * (double)x);
}

template <class T> static inline T __ldcg(const T *from)
{
	return *from;
}

/* Where all lanes of the warp meet: each gives a value and gets all 32, which stay good until
 * they meet for the second time after. */
const uint64_t *fa_emulated_meet(uint64_t value);
/* The same with FA_EMULATED_WORDS words of each. */
#define FA_EMULATED_WORDS 6
const uint32_t (*fa_emulated_meet_words(const uint32_t *words))[FA_EMULATED_WORDS];
/* Where lanes of @mask meet, no two masks that share a lane being in use at once. */
void fa_emulated_meet_some(uint32_t mask);
/* Where @threads threads meet at barrier @id; whether any gave true. */
bool fa_emulated_barrier(uint32_t id, uint32_t threads, bool value);
uint32_t fa_emulated_block_threads(void);

static inline void __syncthreads(void)
{
	fa_emulated_barrier(0, fa_emulated_block_threads(), false);
}

static inline int __syncthreads_or(int value)
{
	return fa_emulated_barrier(0, fa_emulated_block_threads(), value != 0);
}

static inline void __syncwarp(uint32_t mask = ~0u)
{
	if (mask == ~0u)
		fa_emulated_meet(0);
	else
		fa_emulated_meet_some(mask);
}

static inline void __threadfence(void)
{
}

template <class T> static inline T fa_emulated_from(T value, uint32_t lane)
{
	uint64_t bits = 0;
	T back;

	static_assert(sizeof(T) <= 8, "a word");
	memcpy(&bits, &value, sizeof(T));
	bits = fa_emulated_meet(bits)[lane];
	memcpy(&back, &bits, sizeof(T));
	return back;
}

template <class T> static inline T __shfl_sync(uint32_t, T value, int lane)
{
	return fa_emulated_from(value, (uint32_t)lane % 32);
}

template <class T> static inline T __shfl_xor_sync(uint32_t, T value, int mask)
{
	return fa_emulated_from(value, (threadIdx.x ^ (uint32_t)mask) % 32);
}

static inline bool __any_sync(uint32_t, bool value)
{
	const uint64_t *all = fa_emulated_meet(value);
	bool any = false;

	for (int i = 0; i < 32; i++)
		any |= all[i] != 0;
	return any;
}

/* cp.async */
void fa_emulated_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t zeros);
void fa_emulated_commit(void);
void fa_emulated_wait(uint32_t pending);
