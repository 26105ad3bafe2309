/* Calls on the timeline for CUDA streams of this process. */
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

/* Stores the device addresses of the memory, and registers it with the driver before the first
 * use. */
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

static int enqueue(struct fa_timeline *timeline, uint32_t slot, uint64_t value, void *stream,
                   bool waits)
{
	const size_t offset = slot * sizeof(struct fa_timeline_in);
	const struct fa_cudriver *driver;
	CUdeviceptr in, out;
	struct fa_error error;
	CUresult result;
	int r;

	r = fa_cuda_open(&error, &driver);
	if (r < 0)
		return fa_error_copy(r, &error);
	r = fa_timeline_enter(
		timeline, waits ? "fa_timeline_enqueue_wait" : "fa_timeline_enqueue_write", slot);
	if (r < 0)
		return r;
	/* A write to the old memory would be lost. */
	if (timeline->client->state == FA_CLIENT_CONNECTED)
		r = fa_timeline_set_up(timeline);
	else if (waits)
		r = fa_client_lost_error(timeline->client);
	if (r >= 0 && waits) {
		const struct fa_wire_gate wait = { .slot = slot | FA_GATE_DAEMON, .value = value };

		r = fa_timeline_check_wait(timeline, &wait);
	}
	if (r >= 0)
		r = device_memory(timeline, driver);
	in = timeline->memory->in_device;
	out = timeline->memory->out_device;
	fa_client_leave(timeline->client);
	if (r < 0)
		return r;
	/* Without the mutex: the driver blocks while a stream's queue is full. */
	result = waits ? driver->cuStreamWaitValue64(stream, out + offset, value,
	                                             CU_STREAM_WAIT_VALUE_GEQ)
	               : driver->cuStreamWriteValue64(stream, in + offset, value,
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
	struct fa_timeline *timeline = fa_timeline_of(handle);
	return enqueue(timeline, slot, value, stream, false);
}

int fa_timeline_enqueue_wait(struct fa_timeline *handle, uint32_t slot, uint64_t value,
                             void *stream)
{
	fa_uncancelled();
	struct fa_timeline *timeline = fa_timeline_of(handle);
	return enqueue(timeline, slot, value, stream, true);
}
