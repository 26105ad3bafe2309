/* Its mutex guards what no comment excepts. */
#pragma once

#include "daemon/backend/cpu/pool.h"
#include "daemon/backend/device.h"
#include "daemon/base/fair_queue.h"

#include <pthread.h>

/* A worker stays with one work so long while others are ready. */
#define FA_CPU_QUANTUM_NS (500 * FA_NS_PER_US)

struct fa_cpu_worker {
	struct fa_device *device;
	pthread_t thread;
	void *scratch;
	size_t scratch_bytes;
};

struct fa_device {
	struct fa_device_config config;
	const struct fa_cpu_isa *isa;

	pthread_mutex_t mutex;
	pthread_cond_t work_available;
	struct fa_fair_queue fair; /* ready works; in nanoseconds */
	/* written with the mutex */
	_Atomic uint32_t n_ready;
	uint32_t n_sleeping;
	struct fa_list done; /* finished works */
	bool stop;

	struct fa_cpu_pool pool; /* used by the loop thread */

	unsigned int n_workers;
	struct fa_cpu_worker workers[];
};
