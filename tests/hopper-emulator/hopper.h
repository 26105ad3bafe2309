/*
 * Device code for compute capability 9.0 on the host: what tests/cuda-emulator has, and
 * warpgroups, bulk copies and the barriers that count them. For tests of the kernels in
 * kernels/cuda/sm90 where there is no GPU; slow.
 *
 * It judges how they are put together, not how fast they are:
 *   - warps run in an order that is drawn, some of them seldom;
 *   - copies by TMA happen some time after they were asked for, in any order; until then
 *     NaN stands where they go;
 *   - products of wgmma happen when they are committed or when they are waited for, one or
 *     the other throughout a block, with the operands that stand in shared memory and
 *     registers then; until they are waited for NaN stands in their results;
 *   - stores to shared memory reach tensor cores and TMA at a proxy fence, not before;
 *   - what waits for ever is found out, and too many arrivals are;
 *   - rows that are computed again, which would hide that something went wrong, are counted.
 */
#pragma once

#include "tests/cuda-emulator/emulator.h"

#include <stdint.h>

struct uint2 {
	uint32_t x, y;
};

extern struct fa_emulated_index gridDim;

static inline int32_t __float_as_int(float value)
{
	return (int32_t)__float_as_uint(value);
}

static inline float __int_as_float(int32_t bits)
{
	return __uint_as_float((uint32_t)bits);
}

static inline bool __all_sync(uint32_t mask, bool value)
{
	return !__any_sync(mask, !value);
}

/* Named barriers: arrives without waiting. */
void fa_hopper_arrive(uint32_t id, uint32_t threads);

/* mbarriers, by their address. */
void fa_hopper_mbarrier_init(uint32_t barrier, uint32_t count);
void fa_hopper_mbarrier_arrive(uint32_t barrier, uint32_t bytes);
bool fa_hopper_mbarrier_test(uint32_t barrier, uint32_t parity);
void fa_hopper_mbarrier_wait(uint32_t barrier, uint32_t parity);

/* A copy of the box at @at of what @map, a struct fa_cuda_map, describes. */
void fa_hopper_load(uint32_t shared, const void *map, uint32_t barrier, const int32_t (&at)[4]);

/* A store of 16 bytes, and what makes this thread's visible to the asynchronous proxy. */
void fa_hopper_store(uint32_t address, uint4 value);
void fa_hopper_fence(void);

/* One product, m64nNk16, of this warpgroup; @a_registers NULL: A is @a, from shared memory. */
void fa_hopper_product(float *d, int n, bool bf16, uint64_t a, const uint32_t *a_registers,
                       uint64_t b, bool add);
void fa_hopper_commit(void);
void fa_hopper_wait(uint32_t pending);

/* A warp goes through its rows again (kernels/cuda/sm90/redo.h). */
void fa_hopper_redone(void);
