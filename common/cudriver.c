#include "common/cudriver.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

typedef CUresult (*get_proc_address)(const char *symbol, void **ret_function, int version,
                                     uint64_t flags, int *ret_status);

struct entry {
	const char *name;
	size_t offset; /* in struct fa_cudriver */
};

#define ENTRY(name, params) { #name, offsetof(struct fa_cudriver, name) },
static const struct entry client_entries[] = { FA_CUDRIVER_CLIENT(ENTRY){ NULL, 0 } };
static const struct entry rest_entries[] = { FA_CUDRIVER_REST(ENTRY){ NULL, 0 } };

static int fill(struct fa_cudriver *driver, get_proc_address get, const struct entry *entries,
                struct fa_error *error)
{
	for (; entries->name; ++entries) {
		void *function = NULL;
		int status = 0;

		if (get(entries->name, &function, FA_CUDRIVER_VERSION, 0, &status) !=
		            CUDA_SUCCESS ||
		    !function)
			return fa_fail(error, -ENOSYS,
			               "the CUDA driver has no %s; expected one for CUDA %d.%d or "
			               "later",
			               entries->name, FA_CUDRIVER_VERSION / 1000,
			               FA_CUDRIVER_VERSION % 1000 / 10);
		memcpy((char *)driver + entries->offset, &function, sizeof(function));
	}
	return 0;
}

int fa_cudriver_open(enum fa_cudriver_use use, struct fa_error *error,
                     struct fa_cudriver *ret_driver)
{
	struct fa_cudriver driver = { 0 };
	get_proc_address get;
	void *symbol;
	int r;

	driver.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!driver.library)
		return fa_fail(error, -ENODEV, "no CUDA driver: %s", dlerror());
	symbol = dlsym(driver.library, "cuGetProcAddress_v2");
	if (!symbol) {
		r = fa_fail(error, -ENOSYS,
		            "the CUDA driver is too old; expected one for CUDA %d.%d or later",
		            FA_CUDRIVER_VERSION / 1000, FA_CUDRIVER_VERSION % 1000 / 10);
		goto fail;
	}
	memcpy(&get, &symbol, sizeof(get));
	r = fill(&driver, get, client_entries, error);
	if (r == 0 && use == FA_CUDRIVER_FOR_ALL)
		r = fill(&driver, get, rest_entries, error);
	if (r < 0)
		goto fail;
	*ret_driver = driver;
	return 0;

fail:
	dlclose(driver.library);
	return r;
}

int fa_cudriver_errno(CUresult result)
{
	switch ((int)result) {
	case CUDA_SUCCESS:
		return 0;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_NOT_READY:
		return -EAGAIN;
	case CUDA_ERROR_NOT_SUPPORTED:
		return -ENOTSUP;
	case CUDA_ERROR_DEVICE_UNAVAILABLE:
		return -EBUSY;
	case CUDA_ERROR_NOT_PERMITTED:
		return -EPERM;
	case CUDA_ERROR_NOT_FOUND:
		return -ENOENT;
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_MPS_CONNECTION_FAILED:
	case CUDA_ERROR_MPS_RPC_FAILURE:
	case CUDA_ERROR_MPS_CLIENT_TERMINATED:
	case CUDA_ERROR_UNKNOWN:
		return -ENODEV;
	default:
		return -EINVAL;
	}
}

int fa_cudriver_fail(const struct fa_cudriver *driver, struct fa_error *error, CUresult result,
                     const char *doing)
{
	const char *name = NULL, *text = NULL;

	(void)driver->cuGetErrorName(result, &name);
	(void)driver->cuGetErrorString(result, &text);
	return fa_fail(error, fa_cudriver_errno(result), "%s: %s, %s", doing,
	               name ? name : "an unknown error", text ? text : "no description");
}

static CUresult encode_map(const struct fa_cudriver *driver, const void *address,
                           const uint64_t dims[4], const uint64_t strides[3], const uint32_t box[4],
                           CUtensorMapSwizzle swizzle, void *ret_map)
{
	static const cuuint32_t ones[] = { 1, 1, 1, 1 };

	return driver->cuTensorMapEncodeTiled(
		ret_map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, (void *)address, dims, strides, box,
		ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
		CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

CUresult fa_cudriver_encode_tensor_map(const struct fa_cudriver *driver, const void *address,
                                       const uint64_t dims[4], const uint64_t strides[3],
                                       const uint32_t box[4], void *ret_map)
{
	return encode_map(driver, address, dims, strides, box, CU_TENSOR_MAP_SWIZZLE_128B, ret_map);
}

CUresult fa_cudriver_encode_rows_map(const struct fa_cudriver *driver, const void *address,
                                     const uint64_t dims[4], const uint64_t strides[3],
                                     const uint32_t box[4], void *ret_map)
{
	return encode_map(driver, address, dims, strides, box, CU_TENSOR_MAP_SWIZZLE_NONE, ret_map);
}
