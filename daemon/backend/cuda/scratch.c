#include "daemon/backend/cuda/scratch.h"

#include "common/cleanup.h"
#include "kernels/cuda/paged-plan.h"

#include <stdlib.h>

#define SCRATCH_BYTES_MIN ((size_t)4 << 20)

CUresult fa_cuda_scratch_alloc(struct fa_device *device, CUstream stream, size_t bytes,
                               size_t zero_bytes, CUdeviceptr *ret_at)
{
	struct fa_cuda_scratch *scratch;
	CUresult result;

	scratch = fa_new(struct fa_cuda_scratch);
	if (!scratch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = device->driver.cuMemAlloc(&scratch->at, bytes);
	if (result != CUDA_SUCCESS) {
		free(scratch);
		return result;
	}
	scratch->next = device->scratches;
	device->scratches = scratch;
	result = device->driver.cuMemsetD8Async(scratch->at, 0, zero_bytes, stream);
	if (result == CUDA_SUCCESS)
		*ret_at = scratch->at;
	return result;
}

CUresult fa_cuda_scratch_grow(struct fa_device *device, struct fa_cuda_stream *stream, size_t bytes)
{
	size_t new_bytes = SCRATCH_BYTES_MIN;
	CUresult result;

	if (bytes <= stream->scratch_bytes)
		return CUDA_SUCCESS;
	while (new_bytes < bytes)
		new_bytes *= 2;
	result = fa_cuda_scratch_alloc(device, stream->stream, new_bytes,
	                               FA_CUDA_PAGED_COUNTERS_BYTES, &stream->scratch);
	if (result == CUDA_SUCCESS)
		stream->scratch_bytes = new_bytes;
	return result;
}

void fa_cuda_scratch_free_all(struct fa_device *device)
{
	while (device->scratches) {
		struct fa_cuda_scratch *scratch = device->scratches;

		device->scratches = scratch->next;
		(void)device->driver.cuMemFree(scratch->at);
		free(scratch);
	}
}
