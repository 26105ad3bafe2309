/*
 * mbarrier: barriers in shared memory that count arrivals and transaction bytes. Phases differ by
 * parity; the first is 0.
 */
#pragma once

#include <stdint.h>

/* Initialises a barrier whose phases complete after @count arrivals and all expected bytes. */
__device__ __forceinline__ void fa_mbarrier_init(uint32_t barrier, uint32_t count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count)
	             : "memory");
}

/* Makes inits visible to the copy engine; a barrier among threads must follow. */
__device__ __forceinline__ void fa_mbarrier_init_fence(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void fa_mbarrier_arrive(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives and adds @bytes to the phase's expected transaction bytes. */
__device__ __forceinline__ void fa_mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
	             "r"(bytes)
	             : "memory");
}

/* The phase with @parity has completed. */
__device__ __forceinline__ bool fa_mbarrier_test(uint32_t barrier, uint32_t parity)
{
	uint32_t done;

	asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; "
	             "selp.b32 %0, 1, 0, p;}"
	             : "=r"(done)
	             : "r"(barrier), "r"(parity)
	             : "memory");
	return done != 0;
}

/* The same, after a bounded wait. */
__device__ __forceinline__ bool fa_mbarrier_try_wait(uint32_t barrier, uint32_t parity)
{
	uint32_t done;

	asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
	             "selp.b32 %0, 1, 0, p;}"
	             : "=r"(done)
	             : "r"(barrier), "r"(parity)
	             : "memory");
	return done != 0;
}

__device__ __forceinline__ void fa_mbarrier_wait(uint32_t barrier, uint32_t parity)
{
	while (!fa_mbarrier_try_wait(barrier, parity))
		;
}
