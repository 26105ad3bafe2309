/* A first-come, first-served lock for workers' memory calls: one at a time calls, and pauses, as
 * the driver holds locks that launches need. */
#pragma once

#include "common/cleanup.h"

#include <pthread.h>
#include <stdint.h>

struct fa_cuda_driver_lock {
	pthread_mutex_t mutex;
	pthread_cond_t next;
	uint64_t n_tickets, n_served;
};

void fa_cuda_driver_lock_init(struct fa_cuda_driver_lock *lock);
void fa_cuda_driver_lock_deinit(struct fa_cuda_driver_lock *lock);

struct fa_cuda_driver_lock *fa_cuda_driver_lock_acquire(struct fa_cuda_driver_lock *lock);
void fa_cuda_driver_lock_releasep(struct fa_cuda_driver_lock **lock);
void fa_cuda_driver_lock_yield(struct fa_cuda_driver_lock *lock, uint64_t ns);

#define FA_CUDA_HOLD_DRIVER_LOCK(lock)                                                             \
	_fa_cleanup_(fa_cuda_driver_lock_releasep) struct fa_cuda_driver_lock *_held               \
		__attribute__((unused)) = fa_cuda_driver_lock_acquire(lock)

void fa_cuda_sleep(uint64_t ns);
