/* A ticket lock. */
#include "daemon/backend/cuda/driver_lock.h"

#include "common/clock.h"

#include <time.h>

void fa_cuda_driver_lock_init(struct fa_cuda_driver_lock *lock)
{
	pthread_mutex_init(&lock->mutex, NULL);
	pthread_cond_init(&lock->next, NULL);
}

void fa_cuda_driver_lock_deinit(struct fa_cuda_driver_lock *lock)
{
	pthread_cond_destroy(&lock->next);
	pthread_mutex_destroy(&lock->mutex);
}

struct fa_cuda_driver_lock *fa_cuda_driver_lock_acquire(struct fa_cuda_driver_lock *lock)
{
	uint64_t ticket;

	pthread_mutex_lock(&lock->mutex);
	ticket = lock->n_tickets++;
	while (lock->n_served != ticket)
		pthread_cond_wait(&lock->next, &lock->mutex);
	pthread_mutex_unlock(&lock->mutex);
	return lock;
}

void fa_cuda_driver_lock_releasep(struct fa_cuda_driver_lock **lock)
{
	pthread_mutex_lock(&(*lock)->mutex);
	++(*lock)->n_served;
	pthread_cond_broadcast(&(*lock)->next);
	pthread_mutex_unlock(&(*lock)->mutex);
}

void fa_cuda_driver_lock_yield(struct fa_cuda_driver_lock *lock, uint64_t ns)
{
	fa_cuda_driver_lock_releasep(&lock);
	fa_cuda_sleep(ns);
	(void)fa_cuda_driver_lock_acquire(lock);
}

void fa_cuda_sleep(uint64_t ns)
{
	const struct timespec time = {
		.tv_sec = (time_t)(ns / FA_NS_PER_SEC),
		.tv_nsec = (long)(ns % FA_NS_PER_SEC),
	};

	if (ns)
		(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}
