/*
 * Device code on the host: enough of CUDA C++ to run the project's kernels unchanged.
 * kernels/cuda/ptx is reimplemented beside this file; the include path finds it first.
 *
 * A block's threads are fibres of one thread; they switch where a warp or block synchronises or
 * waits for copies or products. Blocks run one after another. It checks synchronisation, not speed:
 *  - blocks and warps run in random order, some warps rarely;
 *  - cp.async copies happen at the wait; bulk and TMA copies at any time after their issue;
 *  - wgmma products happen at the commit or at the wait, one way throughout a block;
 *  - until then, destinations hold NaN;
 *  - stores to shared memory reach wgmma only at a proxy fence;
 *  - deadlocks and surplus arrivals are fatal;
 *  - recomputed rows are counted, since they could hide a fault.
 */
#pragma once

#include "tests/emulator/launch.h"

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

struct uint2 {
	uint32_t x, y;
};
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

extern struct fa_emulated_index threadIdx, blockIdx, gridDim;

extern char shared_memory[];

#define FA_EMULATED_SHARED_MAX (228 << 10)

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return { x, y, z, w };
}

static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
	return { x, y };
}

static inline float2 make_float2(float x, float y)
{
	return { x, y };
}

static inline float4 make_float4(float x, float y, float z, float w)
{
	return { x, y, z, w };
}

static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t which)
{
	const uint64_t bytes = x | (uint64_t)y << 32;
	uint32_t value = 0;

	for (int i = 0; i < 4; i++)
		value |= (uint32_t)(bytes >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
	return value;
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

static inline int32_t __float_as_int(float value)
{
	return (int32_t)__float_as_uint(value);
}

static inline float __int_as_float(int32_t bits)
{
	return __uint_as_float((uint32_t)bits);
}

static inline float __fmul_rn(float a, float b)
{
	return a * b;
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

/* Exchanges a value between all lanes of the warp. The 32 values stay valid until the second
 * next exchange. */
const uint64_t *fa_emulated_warp_exchange(uint64_t value);
/* fa_emulated_warp_exchange_words() exchanges FA_EMULATED_WORDS words per lane. */
#define FA_EMULATED_WORDS 6
const uint32_t (*fa_emulated_warp_exchange_words(const uint32_t *words))[FA_EMULATED_WORDS];
/* Syncs the lanes of @mask. Masks in use at once must be disjoint. */
void fa_emulated_warp_sync_mask(uint32_t mask);
/* Syncs @threads threads at barrier @id; returns whether any passed true. */
bool fa_emulated_barrier(uint32_t id, uint32_t threads, bool value);
void fa_emulated_arrive(uint32_t id, uint32_t threads); /* arrives without waiting */
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
		fa_emulated_warp_exchange(0);
	else
		fa_emulated_warp_sync_mask(mask);
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
	bits = fa_emulated_warp_exchange(bits)[lane];
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
	const uint64_t *all = fa_emulated_warp_exchange(value);
	bool any = false;

	for (int i = 0; i < 32; i++)
		any |= all[i] != 0;
	return any;
}

static inline uint32_t __ballot_sync(uint32_t, bool value)
{
	const uint64_t *all = fa_emulated_warp_exchange(value);
	uint32_t lanes = 0;

	for (int i = 0; i < 32; i++)
		lanes |= (uint32_t)(all[i] != 0) << i;
	return lanes;
}

/* Threads of a block take turns. */
static inline uint32_t atomicOr(uint32_t *address, uint32_t value)
{
	const uint32_t before = *address;

	*address = before | value;
	return before;
}

static inline int __popc(uint32_t x)
{
	return __builtin_popcount(x);
}

static inline int __clz(int x)
{
	return x ? __builtin_clz((uint32_t)x) : 32;
}

static inline int __ffs(int x)
{
	return __builtin_ffs(x);
}

static inline bool __all_sync(uint32_t mask, bool value)
{
	return !__any_sync(mask, !value);
}

/* Checks completion of a launch (kernels/cuda/common/done.h): each block counts once, after a
 * fence of the counting thread; the last block signals the host. */
uint64_t fa_emulated_count(uint64_t *counter, uint64_t value);
void fa_emulated_fence(bool system);
void fa_emulated_signal(uint64_t *word, uint64_t value);
void fa_emulated_signal_early(uint32_t *words, uint32_t n, uint32_t value);
/* The first notes a global store that must be fenced before the host is signalled, the second
 * the store of a partial result. */
void fa_emulated_completion_store(void);
void fa_emulated_completion_partial(void);

/* Notes that the thread has waited for the preceding launch (kernels/cuda/ptx/control.h). Before
 * that, bulk copies and accesses to partial results are fatal. */
void fa_emulated_await(void);

/* Accesses to partial results in global memory (partials.cu). */
void fa_emulated_partial_fence(void);
void fa_emulated_partial_store(void *address, const void *value, uint32_t bytes);
void fa_emulated_partial_load(const void *address, void *ret_value, uint32_t bytes);

/* mbarriers, identified by their address. */
void fa_emulated_mbarrier_init(uint32_t barrier, uint32_t count);
void fa_emulated_mbarrier_arrive(uint32_t barrier, uint32_t bytes);
bool fa_emulated_mbarrier_test(uint32_t barrier, uint32_t parity);
void fa_emulated_mbarrier_wait(uint32_t barrier, uint32_t parity);
/* Starts copies whose bytes @barrier counts: bulk, or by TMA the box at @at of @map, a struct
 * fa_cuda_map. */
void fa_emulated_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
void fa_emulated_box(uint32_t to, const void *map, uint32_t barrier, const int32_t (&at)[4]);

/* copies by cp.async */
void fa_emulated_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t zeros);
void fa_emulated_commit(void);
void fa_emulated_wait(uint32_t pending);

/* Returns an address in shared memory; misaligned ones are fatal. */
char *fa_emulated_shared(uint32_t address, uint32_t bytes);
/* fa_emulated_store() stores 4 or 16 bytes; the fence makes this thread's stores visible to the
 * async proxy. */
void fa_emulated_store(uint32_t address, const void *value, uint32_t bytes);
void fa_emulated_proxy_fence(void);

/* Issues one wgmma m64nNk16 of this warpgroup. @a_registers NULL: A is @a, in shared memory. */
void fa_emulated_product(float *d, int n, bool bf16, uint64_t a, const uint32_t *a_registers,
                         uint64_t b, bool n_major, bool add);
void fa_emulated_product_commit(void);
void fa_emulated_product_wait(uint32_t pending);

void fa_emulated_recomputed(void);

float fa_emulated_from_f16(uint16_t half);
uint16_t fa_emulated_to_f16(float value);
uint16_t fa_emulated_to_bf16(float value);
