/* Copies of K and V in GPU memory. The engine thread calls these functions. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* A part of the staging area, which a work in flight owns. */
struct fa_cuda_range {
	struct fa_list link; /* device.staging.ranges */
	uint64_t begin, end; /* equal: the range is empty */
};

/* Copying @span_bytes costs less than letting a kernel read the tensor's @data_bytes of them
 * @n_reads times. */
bool fa_cuda_staging_pays(uint64_t span_bytes, uint64_t data_bytes, uint64_t n_reads);
/* About how often @launch reads each element of K and V. */
uint64_t fa_cuda_staging_reads(const struct fa_cuda_launch *launch);

/* Copies as far as that pays and fits, and makes @launch read the copies. @range holds the space
 * until fa_cuda_staging_free(). */
CUresult fa_cuda_stage(struct fa_device *device, CUstream stream, const struct fa_device_work *work,
                       struct fa_cuda_launch *launch, struct fa_cuda_range *range);
void fa_cuda_staging_free(struct fa_cuda_range *range);
