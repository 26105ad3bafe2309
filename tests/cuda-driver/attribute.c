/* Attributes of pointers. */
#include "tests/cuda-driver/driver.h"

#include <stdlib.h>

static CUresult attribute_of(const struct fa_fake_region *region, CUpointer_attribute attribute,
                             void *ret_value)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		/* VMM memory and pools belong to no context. */
		*(CUcontext *)ret_value = region->kind == FA_FAKE_VMM ||
		                                          region->kind == FA_FAKE_ASYNC
		                                  ? NULL
		                                  : (CUcontext)&fa_fake.contexts[region->device];
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned int *)ret_value = region->memory ? CU_MEMORYTYPE_DEVICE
		                                            : CU_MEMORYTYPE_HOST;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)ret_value = region->buffer_id;
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned int *)ret_value = region->kind == FA_FAKE_MANAGED;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)ret_value = region->device;
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(int *)ret_value = region->kind == FA_FAKE_ALLOC;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)ret_value = region->at;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)ret_value = region->bytes;
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(uint64_t *)ret_value = region->memory ? region->memory->handle_types : 0;
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(void **)ret_value = region->kind == FA_FAKE_ASYNC
		                              ? &fa_fake.contexts[region->device]
		                              : NULL;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *ret_value, CUpointer_attribute attribute, CUdeviceptr at)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	const struct fa_fake_region *region;

	FA_FAKE_ENTER(cuPointerGetAttribute, FA_FAKE_INIT);
	fa_fake_lock();
	region = fa_fake_region_find(at);
	if (region)
		result = attribute_of(region, attribute, ret_value);
	fa_fake_unlock();
	return result;
}

CUresult cuMemGetAddressRange(CUdeviceptr *ret_base, size_t *ret_bytes, CUdeviceptr at)
{
	CUresult result = CUDA_ERROR_NOT_FOUND;
	const struct fa_fake_region *region;

	FA_FAKE_ENTER(cuMemGetAddressRange, FA_FAKE_INIT | FA_FAKE_ALIVE);
	fa_fake_lock();
	region = fa_fake_region_find(at);
	if (region) {
		if (ret_base)
			*ret_base = region->at;
		if (ret_bytes)
			*ret_bytes = region->bytes;
		result = CUDA_SUCCESS;
	}
	fa_fake_unlock();
	return result;
}

CUresult cuMemGetInfo(size_t *ret_free, size_t *ret_total)
{
	uint64_t used;
	int device;

	FA_FAKE_ENTER(cuMemGetInfo, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	device = fa_fake_current()->device;
	fa_fake_unlock();
	/* Without a directory the processes do not know one another: only this one is counted. */
	if (fa_fake.dir[0])
		used = fa_test_cuda_dir_bytes(fa_fake.dir, device);
	else
		used = (uint64_t)atomic_load(&fa_fake.page->live[FA_TEST_CUDA_DEVICE_BYTES]);
	*ret_free = used < fa_fake.memory_bytes ? fa_fake.memory_bytes - used : 0;
	*ret_total = fa_fake.memory_bytes;
	return CUDA_SUCCESS;
}
