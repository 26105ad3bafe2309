#include "client/timeline_kernels.h"

#include <errno.h>
#include <stdlib.h>

/*
 * fa_timeline_write: writes *base + add to the slot, after all that this stream did before.
 * fa_timeline_wait: returns when the slot has reached *base + add (fa_timeline_reached()); later
 * work of the stream sees all that was written before. One thread each. The fences are for other
 * GPUs and the CPU.
 */
static const char ptx[] =
	".version 6.4\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .entry fa_timeline_write(.param .u64 slot, .param .u64 base, .param .u64 add)\n"
	"{\n"
	"	.reg .u64 %slot, %base, %add, %value;\n"
	"	ld.param.u64 %slot, [slot];\n"
	"	ld.param.u64 %base, [base];\n"
	"	ld.param.u64 %add, [add];\n"
	"	ld.relaxed.sys.u64 %value, [%base];\n"
	"	add.u64 %value, %value, %add;\n"
	"	fence.acq_rel.sys;\n"
	"	st.release.sys.u64 [%slot], %value;\n"
	"	ret;\n"
	"}\n"
	".visible .entry fa_timeline_wait(.param .u64 slot, .param .u64 base, .param .u64 add)\n"
	"{\n"
	"	.reg .u64 %slot, %base, %add, %value, %seen;\n"
	"	.reg .s64 %ahead;\n"
	"	.reg .pred %reached;\n"
	"	ld.param.u64 %slot, [slot];\n"
	"	ld.param.u64 %base, [base];\n"
	"	ld.param.u64 %add, [add];\n"
	"	ld.relaxed.sys.u64 %value, [%base];\n"
	"	add.u64 %value, %value, %add;\n"
	"again:\n"
	"	ld.acquire.sys.u64 %seen, [%slot];\n"
	"	sub.s64 %ahead, %seen, %value;\n"
	"	setp.ge.s64 %reached, %ahead, 0;\n"
	"	@%reached bra done;\n"
	"	nanosleep.u32 100;\n"
	"	bra again;\n"
	"done:\n"
	"	fence.acq_rel.sys;\n"
	"	ret;\n"
	"}\n";

static int load(const struct fa_cudriver *driver, struct fa_timeline_kernels *kernels,
                struct fa_error *error)
{
	/* Otherwise a thread that captures a stream may not load a module. */
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult result;

	result = driver->cuThreadExchangeStreamCaptureMode(&mode);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result,
		                        "the thread's capture mode cannot be changed");
	result = driver->cuModuleLoadData(&kernels->module, ptx);
	if (result == CUDA_SUCCESS) {
		result = driver->cuModuleGetFunction(&kernels->write, kernels->module,
		                                     "fa_timeline_write");
		if (result == CUDA_SUCCESS)
			result = driver->cuModuleGetFunction(&kernels->wait, kernels->module,
			                                     "fa_timeline_wait");
		if (result != CUDA_SUCCESS)
			(void)driver->cuModuleUnload(kernels->module);
	}
	(void)driver->cuThreadExchangeStreamCaptureMode(&mode);
	if (result == CUDA_SUCCESS)
		return 0;
	return fa_cudriver_fail(driver, error, result, "the timeline's kernels cannot be loaded");
}

int fa_timeline_kernels_find(const struct fa_cudriver *driver, struct fa_timeline_kernels **list,
                             struct fa_error *error, const struct fa_timeline_kernels **ret_kernels)
{
	struct fa_timeline_kernels *kernels;
	CUcontext context = NULL;
	CUresult result;
	int r;

	result = driver->cuCtxGetCurrent(&context);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "the context cannot be found");
	if (!context)
		return fa_fail(error, -EINVAL, "no CUDA context is current in this thread");
	for (kernels = *list; kernels; kernels = kernels->next)
		if (kernels->context == context) {
			*ret_kernels = kernels;
			return 0;
		}
	kernels = calloc(1, sizeof(*kernels));
	if (!kernels)
		return fa_fail(error, -ENOMEM, "no memory for the timeline's kernels");
	r = load(driver, kernels, error);
	if (r < 0) {
		free(kernels);
		return r;
	}
	kernels->context = context;
	kernels->next = *list;
	*list = kernels;
	*ret_kernels = kernels;
	return 0;
}

CUresult fa_timeline_kernel_launch(const struct fa_cudriver *driver, CUfunction kernel,
                                   CUdeviceptr slot, CUdeviceptr base, uint64_t add,
                                   CUstream stream)
{
	void *params[] = { &slot, &base, &add };

	return driver->cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

void fa_timeline_kernels_free(const struct fa_cudriver *driver, struct fa_timeline_kernels *list)
{
	CUcontext before = NULL;

	if (driver)
		(void)driver->cuCtxGetCurrent(&before);
	while (list) {
		struct fa_timeline_kernels *kernels = list;

		list = kernels->next;
		if (driver && driver->cuCtxSetCurrent(kernels->context) == CUDA_SUCCESS)
			(void)driver->cuModuleUnload(kernels->module);
		free(kernels);
	}
	if (driver)
		(void)driver->cuCtxSetCurrent(before);
}
