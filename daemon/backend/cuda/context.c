#include "daemon/backend/cuda/context.h"

#include <errno.h>

CUresult fa_cuda_enter(struct fa_device *device)
{
	static __thread uint64_t inside;
	CUresult result;

	if (inside == device->serial)
		return CUDA_SUCCESS;
	result = device->driver.cuCtxSetCurrent(device->context);
	if (result == CUDA_SUCCESS)
		inside = device->serial;
	return result;
}

bool fa_cuda_is_lost(struct fa_device *device)
{
	return atomic_load_explicit(&device->lost, memory_order_acquire);
}

void fa_cuda_lose(struct fa_device *device, const char *why)
{
	bool first;

	pthread_mutex_lock(&device->mutex);
	first = !atomic_load_explicit(&device->lost, memory_order_relaxed);
	if (first) {
		fa_fail(&device->lost_error, -ENODEV, "the GPU is lost: %s", why);
		atomic_store_explicit(&device->lost, true, memory_order_release);
	}
	pthread_mutex_unlock(&device->mutex);
	if (first)
		device->config.notify(device->config.userdata);
}

int fa_cuda_fail(struct fa_device *device, CUstream stream, struct fa_error *error, CUresult result,
                 const char *doing)
{
	struct fa_error unused;
	CUresult state;
	int r;

	if (!error)
		error = &unused;
	r = fa_cudriver_fail(&device->driver, error, result, doing);
	state = device->driver.cuStreamQuery(stream);
	if (state != CUDA_SUCCESS && state != CUDA_ERROR_NOT_READY) {
		fa_cuda_lose(device, error->text);
		return -ENODEV;
	}
	/* The device works: the driver has rejected a client's input. */
	return r == -ENODEV ? -EINVAL : r;
}
