#include "demo/memory.h"

#include "common/cudriver.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Small: a tensor has several pieces. */
#define PIECE_BYTES ((size_t)2 << 20)

struct demo_memory {
	enum demo_memory_kind kind;
	struct fa_buffer *buffer;
	size_t bytes;
	void *host;
	bool on_gpu;
	CUdeviceptr at; /* with on_gpu */

	/* CUDA_FD */
	size_t reserved_bytes, mapped_bytes;
};

static struct fa_cudriver driver;

static int fail_cuda(CUresult result, const char *doing, char *text, size_t text_bytes)
{
	struct fa_error error;
	int r = fa_cudriver_fail(&driver, &error, result, doing);

	snprintf(text, text_bytes, "%s", error.text);
	return r;
}

/* The daemon uses the first GPU as well. */
static int open_gpu(char *text, size_t text_bytes)
{
	struct fa_error error;
	CUcontext context;
	CUresult result;
	CUdevice device;
	int r;

	if (driver.library)
		return 0;
	r = fa_cudriver_open(FA_CUDRIVER_FOR_ALL, &error, &driver);
	if (r < 0) {
		snprintf(text, text_bytes, "%s", error.text);
		return r;
	}
	result = driver.cuInit(0);
	if (result == CUDA_SUCCESS)
		result = driver.cuDeviceGet(&device, 0);
	if (result == CUDA_SUCCESS)
		result = driver.cuDevicePrimaryCtxRetain(&context, device);
	if (result == CUDA_SUCCESS)
		result = driver.cuCtxSetCurrent(context);
	if (result != CUDA_SUCCESS)
		return fail_cuda(result, "using the first GPU", text, text_bytes);
	return 0;
}

/* Maps pieces at adjacent addresses, as growing allocators do. */
static int map_pieces(struct demo_memory *memory, char *text, size_t text_bytes)
{
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	};
	const CUmemAccessDesc access = {
		.location = properties.location,
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	const size_t bytes = (memory->bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
	CUmemGenericAllocationHandle handle;
	CUresult result;

	result = driver.cuMemAddressReserve(&memory->at, bytes, 0, 0, 0);
	if (result != CUDA_SUCCESS)
		return fail_cuda(result, "reserving addresses", text, text_bytes);
	memory->reserved_bytes = bytes;
	while (memory->mapped_bytes < bytes) {
		result = driver.cuMemCreate(&handle, PIECE_BYTES, &properties, 0);
		if (result != CUDA_SUCCESS)
			return fail_cuda(result, "making memory", text, text_bytes);
		result = driver.cuMemMap(memory->at + memory->mapped_bytes, PIECE_BYTES, 0, handle,
		                         0);
		(void)driver.cuMemRelease(handle); /* the mapping keeps it */
		if (result != CUDA_SUCCESS)
			return fail_cuda(result, "mapping memory", text, text_bytes);
		memory->mapped_bytes += PIECE_BYTES;
	}
	result = driver.cuMemSetAccess(memory->at, bytes, &access, 1);
	if (result != CUDA_SUCCESS)
		return fail_cuda(result, "opening memory", text, text_bytes);
	return 0;
}

static int make(struct fa_client *client, struct demo_memory *memory, char *text, size_t text_bytes)
{
	CUresult result;
	int r;

	if (memory->kind == DEMO_MEMFD || memory->kind == DEMO_ARENA) {
		r = fa_buffer_new(client, memory->bytes,
		                  memory->kind == DEMO_ARENA ? FA_BUFFER_DEVICE : 0,
		                  &memory->buffer);
		if (r < 0) {
			snprintf(text, text_bytes, "%s", fa_error());
			return r;
		}
		memory->host = fa_buffer_data(memory->buffer);
		if (memory->host)
			return 0;
		memory->on_gpu = true;
		memory->at = fa_buffer_device_data(memory->buffer);
		return open_gpu(text, text_bytes);
	}

	memory->on_gpu = true;
	r = open_gpu(text, text_bytes);
	if (r < 0)
		return r;
	if (memory->kind == DEMO_CUDA_IPC) {
		result = driver.cuMemAlloc(&memory->at, memory->bytes);
		if (result != CUDA_SUCCESS)
			return fail_cuda(result, "making memory", text, text_bytes);
	} else {
		r = map_pieces(memory, text, text_bytes);
		if (r < 0)
			return r;
	}
	r = fa_buffer_import_cuda(client, memory->at, memory->bytes, 0, &memory->buffer);
	if (r < 0)
		snprintf(text, text_bytes, "%s", fa_error());
	return r;
}

int demo_memory_new(struct fa_client *client, enum demo_memory_kind kind, size_t bytes, char *text,
                    size_t text_bytes, struct demo_memory **ret_memory)
{
	struct demo_memory *memory = calloc(1, sizeof(*memory));
	int r;

	if (!memory) {
		snprintf(text, text_bytes, "no memory");
		return -ENOMEM;
	}
	memory->kind = kind;
	memory->bytes = bytes;
	r = make(client, memory, text, text_bytes);
	if (r == 0 && memory->on_gpu) {
		memory->host = calloc(1, bytes);
		if (!memory->host) {
			snprintf(text, text_bytes, "no memory");
			r = -ENOMEM;
		}
	}
	if (r < 0) {
		demo_memory_free(memory);
		return r;
	}
	*ret_memory = memory;
	return 0;
}

void demo_memory_free(struct demo_memory *memory)
{
	if (!memory)
		return;
	fa_buffer_free(memory->buffer);
	if (memory->kind == DEMO_CUDA_IPC && memory->at)
		(void)driver.cuMemFree(memory->at);
	if (memory->mapped_bytes)
		(void)driver.cuMemUnmap(memory->at, memory->mapped_bytes);
	if (memory->reserved_bytes)
		(void)driver.cuMemAddressFree(memory->at, memory->reserved_bytes);
	if (memory->on_gpu)
		free(memory->host);
	free(memory);
}

struct fa_buffer *demo_memory_buffer(struct demo_memory *memory)
{
	return memory->buffer;
}

void *demo_memory_host(struct demo_memory *memory)
{
	return memory->host;
}

int demo_memory_push(struct demo_memory *memory)
{
	if (!memory->on_gpu)
		return 0;
	/* The daemon reads on its own stream: the copy must end here. */
	return fa_cudriver_errno(driver.cuMemcpyHtoD(memory->at, memory->host, memory->bytes))
	               ?: fa_cudriver_errno(driver.cuCtxSynchronize());
}

int demo_memory_pull(struct demo_memory *memory)
{
	if (!memory->on_gpu)
		return 0;
	return fa_cudriver_errno(driver.cuMemcpyDtoH(memory->host, memory->at, memory->bytes));
}

const char *demo_memory_name(enum demo_memory_kind kind)
{
	static const char *const names[] = {
		[DEMO_MEMFD] = "memfd",
		[DEMO_ARENA] = "arena",
		[DEMO_CUDA_IPC] = "CUDA IPC",
		[DEMO_CUDA_FD] = "CUDA fd",
	};

	return names[kind];
}
