/* Copies of K and V in GPU memory. Engine thread. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* A part of the staging area. A work in flight owns it. */
struct fa_cuda_range {
	struct fa_list link; /* device.staging.ranges */
	uint64_t begin, end; /* equal: empty */
};

/* True: copying @span_bytes costs less than letting a kernel read the tensor's @data_bytes in them
 * @n_reads times. */
bool fa_cuda_staging_pays(uint64_t span_bytes, uint64_t data_bytes, uint64_t n_reads);
/* Returns about how often @launch reads an element of K and V. */
uint64_t fa_cuda_staging_reads(const struct fa_cuda_launch *launch);

/* Copies as far as that pays and fits; @launch then reads the copies. @range holds the space until
 * fa_cuda_staging_free(). */
CUresult fa_cuda_stage(struct fa_device *device, CUstream stream, const struct fa_device_work *work,
                       struct fa_cuda_launch *launch, struct fa_cuda_range *range);
void fa_cuda_staging_free(struct fa_cuda_range *range);
