/* Copies of K and V in host memory to the GPU, where a kernel reads them often. The engine
 * thread's. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Offsets into the staging area; a work owns one while it is in flight. */
struct fa_cuda_range {
	struct fa_list link; /* device.staging.ranges */
	uint64_t begin, end; /* equal: none */
};

/* Returns whether a copy pays of @span_bytes of pinned memory, of which @data_bytes are the
 * tensor's, before a kernel that reads each of them @n_reads times. */
bool fa_cuda_staging_pays(uint64_t span_bytes, uint64_t data_bytes, uint64_t n_reads);
/* Returns about how often @launch reads each element of K and V. */
uint64_t fa_cuda_staging_reads(const struct fa_cuda_launch *launch);

/*
 * Copies K and V from host memory to the staging area, as far as that pays and space is left, and
 * makes @launch read them there. @range holds the space until fa_cuda_staging_free().
 */
CUresult fa_cuda_stage(struct fa_device *device, CUstream stream, const struct fa_device_work *work,
                       struct fa_cuda_launch *launch, struct fa_cuda_range *range);
void fa_cuda_staging_free(struct fa_cuda_range *range);
