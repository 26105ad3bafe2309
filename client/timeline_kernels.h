/*
 * Kernels that write a slot, or wait for one, with a number found in memory: the driver's
 * operations take numbers fixed when they are enqueued.
 */
#pragma once

#include "common/cudriver.h"
#include "common/error.h"

/* The kernels are loaded once per context. */
struct fa_timeline_kernels {
	struct fa_timeline_kernels *next;
	CUcontext context;
	CUmodule module;
	CUfunction write, wait;
};

/* For the current context: in @list, or loaded into it. */
int fa_timeline_kernels_find(const struct fa_cudriver *driver, struct fa_timeline_kernels **list,
                             struct fa_error *error,
                             const struct fa_timeline_kernels **ret_kernels);

/* Enqueues @kernel for @slot, with @add more than what @base points to. */
CUresult fa_timeline_kernel_launch(const struct fa_cudriver *driver, CUfunction kernel,
                                   CUdeviceptr slot, CUdeviceptr base, uint64_t add,
                                   CUstream stream);

/* @driver NULL: frees memory, but unloads nothing. */
void fa_timeline_kernels_free(const struct fa_cudriver *driver, struct fa_timeline_kernels *list);
