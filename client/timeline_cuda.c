/* Lets CUDA streams of this process use the timeline. */
#include "client/cancel.h"
#include "client/cuda_memory.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "client/timeline_state.h"

#include <errno.h>

static int register_memory(const struct fa_cudriver *driver, struct fa_timeline_memory *memory)
{
	const unsigned int flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	CUcontext context = NULL;
	struct fa_error error;
	CUresult result;

	result = driver->cuCtxGetCurrent(&context);
	if (result == CUDA_SUCCESS && !context)
		return fa_error_set(-EINVAL, "no CUDA context is current in this thread");
	if (result == CUDA_SUCCESS)
		result = driver->cuMemHostRegister(memory->in, FA_TIMELINE_BYTES, flags);
	if (result == CUDA_SUCCESS) {
		result = driver->cuMemHostRegister((void *)memory->out, FA_TIMELINE_BYTES,
		                                   flags | CU_MEMHOSTREGISTER_READ_ONLY);
		if (result == CUDA_SUCCESS)
			memory->context = context;
		else
			(void)driver->cuMemHostUnregister(memory->in);
	}
	if (result == CUDA_SUCCESS)
		return 0;
	return fa_error_copy(fa_cudriver_fail(driver, &error, result,
	                                      "the timeline cannot be registered with the driver"),
	                     &error);
}

/* Registers the memory before its first use, and stores its device addresses. */
static int device_memory(struct fa_timeline *timeline, const struct fa_cudriver *driver)
{
	struct fa_timeline_memory *memory = timeline->memory;
	struct fa_error error;
	CUresult result;
	int r = 0;

	if (memory->out_device)
		return 0;
	if (!memory->context)
		r = register_memory(driver, memory);
	if (r < 0)
		return r;
	result = driver->cuMemHostGetDevicePointer(&memory->in_device, memory->in, 0);
	if (result == CUDA_SUCCESS)
		result = driver->cuMemHostGetDevicePointer(&memory->out_device, (void *)memory->out,
		                                           0);
	if (result == CUDA_SUCCESS)
		return 0;
	return fa_error_copy(
		fa_cudriver_fail(driver, &error, result, "the timeline has no address on the GPU"),
		&error);
}

/* Works while a stream is captured, too, when the driver would otherwise refuse. */
static int device_memory_relaxed(struct fa_timeline *timeline, const struct fa_cudriver *driver)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct fa_error error;
	CUresult result;
	int r;

	if (timeline->memory->out_device)
		return 0;
	result = driver->cuThreadExchangeStreamCaptureMode(&mode);
	if (result != CUDA_SUCCESS)
		return fa_error_copy(
			fa_cudriver_fail(driver, &error, result,
		                         "the thread's capture mode cannot be changed"),
			&error);
	r = device_memory(timeline, driver);
	(void)driver->cuThreadExchangeStreamCaptureMode(&mode);
	return r;
}

/* The number is @value or, with @base, *base + @value when the stream gets to it. */
struct operation {
	const char *name;
	uint32_t slot;
	uint64_t value;
	const uint64_t *base;
	bool waits;
};

/* With the mutex, in a current context. Finds the slot's address, and the kernel if one is
 * needed. */
static int prepare(struct fa_timeline *timeline, const struct fa_cudriver *driver,
                   const struct operation *operation, CUdeviceptr *ret_slot, CUfunction *ret_kernel)
{
	const struct fa_timeline_kernels *kernels;
	struct fa_error error;
	int r = 0;

	/* A write to the old memory would be lost. */
	if (timeline->client->state == FA_CLIENT_CONNECTED)
		r = fa_timeline_set_up(timeline);
	else if (operation->waits)
		r = fa_client_lost_error(timeline->client);
	if (r >= 0 && operation->waits && !operation->base) {
		const struct fa_wire_gate wait = { .slot = operation->slot | FA_GATE_DAEMON,
			                           .value = operation->value };

		r = fa_timeline_check_wait(timeline, &wait);
	}
	if (r >= 0)
		r = device_memory_relaxed(timeline, driver);
	if (r < 0)
		return r;
	*ret_slot = (operation->waits ? timeline->memory->out_device
	                              : timeline->memory->in_device) +
	            operation->slot * sizeof(struct fa_timeline_in);
	if (!operation->base)
		return 0;
	r = fa_timeline_kernels_find(driver, &timeline->kernels, &error, &kernels);
	if (r < 0)
		return fa_error_copy(r, &error);
	*ret_kernel = operation->waits ? kernels->wait : kernels->write;
	return 0;
}

static int enqueue(struct fa_timeline *timeline, const struct operation *operation, void *stream)
{
	const struct fa_cudriver *driver;
	CUfunction kernel = NULL;
	CUdeviceptr slot = 0;
	struct fa_error error;
	CUresult result;
	int r;

	r = fa_cuda_open(&error, &driver);
	if (r < 0)
		return fa_error_copy(r, &error);
	r = fa_timeline_enter(timeline, operation->name, operation->slot);
	if (r < 0)
		return r;
	r = prepare(timeline, driver, operation, &slot, &kernel);
	fa_client_leave(timeline->client);
	if (r < 0)
		return r;
	/* Without the mutex: the driver blocks while a stream's queue is full. */
	if (kernel)
		result = fa_timeline_kernel_launch(driver, kernel, slot,
		                                   (CUdeviceptr)(uintptr_t)operation->base,
		                                   operation->value, stream);
	else if (operation->waits)
		result = driver->cuStreamWaitValue64(stream, slot, operation->value,
		                                     CU_STREAM_WAIT_VALUE_GEQ);
	else
		result = driver->cuStreamWriteValue64(stream, slot, operation->value,
		                                      CU_STREAM_WRITE_VALUE_DEFAULT);
	if (result == CUDA_SUCCESS)
		return 0;
	return fa_error_copy(
		fa_cudriver_fail(driver, &error, result, "the CUDA stream refused the operation"),
		&error);
}

int fa_timeline_enqueue_write(struct fa_timeline *handle, uint32_t slot, uint64_t value,
                              void *stream)
{
	fa_uncancelled();
	const struct operation operation = { .name = __func__, .slot = slot, .value = value };

	return enqueue(fa_timeline_of(handle), &operation, stream);
}

int fa_timeline_enqueue_wait(struct fa_timeline *handle, uint32_t slot, uint64_t value,
                             void *stream)
{
	fa_uncancelled();
	const struct operation operation = {
		.name = __func__, .slot = slot, .value = value, .waits = true
	};

	return enqueue(fa_timeline_of(handle), &operation, stream);
}

static int enqueue_indirect(struct fa_timeline *timeline, const struct operation *operation,
                            void *stream)
{
	if (!operation->base || (uintptr_t)operation->base % sizeof(uint64_t))
		return fa_error_set(-EINVAL,
		                    "%s: base is %p; expected the address of a 64-bit "
		                    "number, a multiple of 8",
		                    operation->name, (const void *)operation->base);
	return enqueue(timeline, operation, stream);
}

int fa_timeline_enqueue_write_indirect(struct fa_timeline *handle, uint32_t slot,
                                       const uint64_t *base, uint64_t add, void *stream)
{
	fa_uncancelled();
	const struct operation operation = {
		.name = __func__, .slot = slot, .value = add, .base = base
	};

	return enqueue_indirect(fa_timeline_of(handle), &operation, stream);
}

int fa_timeline_enqueue_wait_indirect(struct fa_timeline *handle, uint32_t slot,
                                      const uint64_t *base, uint64_t add, void *stream)
{
	fa_uncancelled();
	const struct operation operation = {
		.name = __func__, .slot = slot, .value = add, .base = base, .waits = true
	};

	return enqueue_indirect(fa_timeline_of(handle), &operation, stream);
}
