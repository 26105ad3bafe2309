/*
 * Kernels for a CUDA stream that write a slot, or wait for one, with a number that they find in
 * memory: the driver's own operations take numbers that are fixed when they are enqueued.
 */
#pragma once

#include "common/cudriver.h"
#include "common/error.h"

/* The kernels in one context. */
struct fa_timeline_kernels {
	struct fa_timeline_kernels *next;
	CUcontext context;
	CUmodule module;
	CUfunction write, wait;
};

/* Finds the kernels of the current context in @list, or loads them and adds them to it. */
int fa_timeline_kernels_find(const struct fa_cudriver *driver, struct fa_timeline_kernels **list,
                             struct fa_error *error,
                             const struct fa_timeline_kernels **ret_kernels);

/* Enqueues @kernel with its arguments: the slot, and the number that is @add more than what @base
 * points to. */
CUresult fa_timeline_kernel_launch(const struct fa_cudriver *driver, CUfunction kernel,
                                   CUdeviceptr slot, CUdeviceptr base, uint64_t add,
                                   CUstream stream);

/* Unloads and frees all; @driver NULL: only frees. */
void fa_timeline_kernels_free(const struct fa_cudriver *driver, struct fa_timeline_kernels *list);
