/* Copies and fills. */
#include "tests/cuda-driver/driver.h"

#include <stdlib.h>
#include <string.h>

enum direction {
	HOST_TO_DEVICE,
	DEVICE_TO_HOST,
	DEVICE_TO_DEVICE,
};

/* Which end of a copy is pageable memory, which the GPU does not access. */
enum {
	FROM_PAGEABLE = 1,
	TO_PAGEABLE,
};

static CUresult copy_run(struct fa_fake_op *op, struct fa_fake_context *context)
{
	struct fa_fake_pin pin = { .context = context };
	CUresult result;

	if (op->value != TO_PAGEABLE)
		pin.spans[pin.n_spans++] = (struct fa_fake_span){ op->to, op->bytes, true };
	if (op->value != FROM_PAGEABLE)
		pin.spans[pin.n_spans++] = (struct fa_fake_span){ op->from, op->bytes, false };
	result = fa_fake_pin(&pin);
	if (result != CUDA_SUCCESS)
		return result;
	memmove((void *)(uintptr_t)op->to, op->staged ? op->staged : (void *)(uintptr_t)op->from,
	        op->bytes);
	fa_fake_unpin(&pin);
	return CUDA_SUCCESS;
}

static bool span_is_good(CUdeviceptr at, size_t bytes, bool write)
{
	const struct fa_fake_span span = { at, bytes, write };
	bool good;

	fa_fake_lock();
	good = fa_fake_span_is_good(fa_fake_current()->device, &span);
	fa_fake_unlock();
	return good;
}

/*
 * Returns whether [at, at + bytes) was pinned by one call. It is an error if only parts of it are
 * pinned.
 */
static CUresult host_is_pinned(CUdeviceptr at, size_t bytes, bool *ret_pinned)
{
	const struct fa_fake_region *region;
	CUresult result = CUDA_SUCCESS;

	fa_fake_lock();
	region = fa_fake_region_find(at);
	*ret_pinned = region;
	if (region ? region->memory || region->at + region->bytes - at < bytes
	           : fa_fake_region_overlaps(at, bytes))
		result = CUDA_ERROR_INVALID_VALUE;
	fa_fake_unlock();
	return result;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, enum direction direction,
                     CUstream stream, bool wait)
{
	CUresult result = CUDA_SUCCESS;
	struct fa_fake_op *op;
	bool pinned = true;

	if (!bytes)
		return CUDA_SUCCESS;
	if (direction != DEVICE_TO_DEVICE)
		result = host_is_pinned(direction == HOST_TO_DEVICE ? from : to, bytes, &pinned);
	if (result != CUDA_SUCCESS)
		return result;
	if (((pinned || direction != DEVICE_TO_HOST) && !span_is_good(to, bytes, true)) ||
	    ((pinned || direction != HOST_TO_DEVICE) && !span_is_good(from, bytes, false)))
		return CUDA_ERROR_INVALID_VALUE;
	op = fa_fake_op_new(copy_run);
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	op->to = to;
	op->from = from;
	op->bytes = bytes;
	if (!pinned) {
		op->value = direction == HOST_TO_DEVICE ? FROM_PAGEABLE : TO_PAGEABLE;
		/* The caller may overwrite the source as soon as this returns, so it is copied
		 * now. */
		if (direction == HOST_TO_DEVICE && !wait) {
			op->staged = malloc(bytes);
			if (!op->staged) {
				free(op);
				return CUDA_ERROR_OUT_OF_MEMORY;
			}
			memcpy(op->staged, (void *)(uintptr_t)from, bytes);
		}
		if (direction == DEVICE_TO_HOST)
			wait = true;
	}
	return wait ? fa_fake_submit_and_wait(stream, op) : fa_fake_submit(stream, op);
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes)
{
	FA_FAKE_ENTER(cuMemcpyHtoD, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	return copy(to, (CUdeviceptr)(uintptr_t)from, bytes, HOST_TO_DEVICE, NULL, true);
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes)
{
	FA_FAKE_ENTER(cuMemcpyDtoH, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	return copy((CUdeviceptr)(uintptr_t)to, from, bytes, DEVICE_TO_HOST, NULL, true);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	FA_FAKE_ENTER(cuMemcpyHtoDAsync, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	return copy(to, (CUdeviceptr)(uintptr_t)from, bytes, HOST_TO_DEVICE, stream, false);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	FA_FAKE_ENTER(cuMemcpyDtoHAsync, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	return copy((CUdeviceptr)(uintptr_t)to, from, bytes, DEVICE_TO_HOST, stream, false);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	FA_FAKE_ENTER(cuMemcpyDtoDAsync, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	return copy(to, from, bytes, DEVICE_TO_DEVICE, stream, false);
}

static CUresult fill_run(struct fa_fake_op *op, struct fa_fake_context *context)
{
	struct fa_fake_pin pin = {
		.context = context,
		.spans = { { op->to, op->bytes, true } },
		.n_spans = 1,
	};
	const CUresult result = fa_fake_pin(&pin);

	if (result != CUDA_SUCCESS)
		return result;
	memset((void *)(uintptr_t)op->to, (int)op->value, op->bytes);
	fa_fake_unpin(&pin);
	return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream)
{
	struct fa_fake_op *op;

	if (!bytes)
		return CUDA_SUCCESS;
	if (!span_is_good(at, bytes, true))
		return CUDA_ERROR_INVALID_VALUE;
	op = fa_fake_op_new(fill_run);
	if (op) {
		op->to = at;
		op->bytes = bytes;
		op->value = value;
	}
	return fa_fake_submit(stream, op);
}

CUresult cuMemsetD8(CUdeviceptr at, unsigned char value, size_t bytes)
{
	FA_FAKE_ENTER(cuMemsetD8, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	/* Fills of device memory are asynchronous. */
	return fill(at, value, bytes, NULL);
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream)
{
	FA_FAKE_ENTER(cuMemsetD8Async, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	return fill(at, value, bytes, stream);
}
