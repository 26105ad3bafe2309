/* Thresholds of the backend. Tests and benchmarks link tests/cuda-driver/tuning-env.c, which reads
 * the environment, in place of tuning.c. */
#pragma once

#include "common/clock.h"
#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>

enum fa_cuda_staging_mode {
	FA_CUDA_STAGE_AUTO, /* where it pays */
	FA_CUDA_STAGE_ALWAYS,
	FA_CUDA_STAGE_NEVER,
};

struct fa_cuda_tuning {
	enum fa_cuda_staging_mode staging;
	/* Memory is pinned in parts: pinning holds driver locks that launches need. */
	uint64_t pin_part_bytes; /* a multiple of 1 MiB */
	uint64_t pin_pause_ns;
	/* Launches of at least this time are preemptible, which costs 5 us. */
	uint64_t preempt_work_ns;
	uint64_t preempt_run_ns;  /* before a stop */
	uint64_t preempt_stop_ns; /* longest stop */
	/* Works of at least this time are long (quiesce.h): about that of a call that waits for the
	 * GPU. */
	uint64_t long_ns;
	bool share_early; /* for fa_cuda_chip.share_early */
};

static inline struct fa_cuda_tuning fa_cuda_tuning_default(void)
{
	return (struct fa_cuda_tuning){
		.staging = FA_CUDA_STAGE_AUTO,
		.pin_part_bytes = 1 << 20,
		.pin_pause_ns = 100 * FA_NS_PER_US,
		.preempt_work_ns = 300 * FA_NS_PER_US,
		.preempt_run_ns = 15 * FA_NS_PER_US,
		.preempt_stop_ns = 2 * FA_NS_PER_MS,
		.long_ns = 2 * FA_NS_PER_MS,
	};
}

int fa_cuda_tuning_load(struct fa_error *error, struct fa_cuda_tuning *ret_tuning);
