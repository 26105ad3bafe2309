#include "daemon/backend/cuda/copy.h"

#include "daemon/backend/cuda/context.h"
#include "daemon/backend/cuda/memory.h"
#include "daemon/backend/cuda/stream.h"

/* Copies in parts: the driver refuses copies across borders of pinned parts. */
static CUresult copy_host(struct fa_device *device, struct fa_cuda_stream *stream,
                          const struct fa_device_copy *copy, bool to_pool)
{
	const struct fa_cuda_memory *memory = copy->memory->backend;
	const uint64_t begin = (uint64_t)copy->data - memory->at;
	CUresult result = CUDA_SUCCESS;
	uint64_t n;

	for (uint64_t done = 0; done < copy->bytes && result == CUDA_SUCCESS; done += n) {
		const uint64_t at = begin + done;

		n = memory->part_bytes - at % memory->part_bytes;
		if (n > copy->bytes - done)
			n = copy->bytes - done;
		result = to_pool ? device->driver.cuMemcpyHtoDAsync(
					   (CUdeviceptr)(copy->pool + done), memory->host + at, n,
					   stream->stream)
		                 : device->driver.cuMemcpyDtoHAsync(
					   memory->host + at, (CUdeviceptr)(copy->pool + done), n,
					   stream->stream);
	}
	return result;
}

static CUresult copy(struct fa_device *device, struct fa_cuda_stream *stream,
                     const struct fa_device_copy *copy, bool to_pool)
{
	const struct fa_cuda_memory *memory = copy->memory->backend;
	const CUdeviceptr pool = (CUdeviceptr)copy->pool, data = (CUdeviceptr)copy->data;

	if (memory->kind == FA_CUDA_MEMORY_HOST)
		return copy_host(device, stream, copy, to_pool);
	return device->driver.cuMemcpyDtoDAsync(to_pool ? pool : data, to_pool ? data : pool,
	                                        copy->bytes, stream->stream);
}

int fa_cuda_copy_enqueue(struct fa_device *device, struct fa_cuda_stream *stream,
                         struct fa_device_work *work)
{
	const char *doing = "the GPU's context cannot be used";
	CUresult result;

	result = fa_cuda_enter(device);
	for (uint32_t i = 0; i < work->n_copies && !result; ++i) {
		doing = "states cannot be copied";
		result = copy(device, stream, &work->copies[i], work->to_pool);
	}
	return result ? fa_cuda_fail(device, stream->stream, &work->error, result, doing) : 0;
}
