/* Shared by gpu.c and paged-gpu.c only: the CUDA driver of an open GPU. */
#pragma once

#include "common/cudriver.h"
#include "tests/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>

const struct fa_cudriver *fa_gpu_driver(const struct fa_gpu *gpu);
/* Sets *@ret to a function of @module, with the dynamic shared memory that it needs. */
void fa_gpu_function(struct fa_gpu *gpu, CUmodule module, const char *symbol, int32_t shared_bytes,
                     CUfunction *ret);
void fa_gpu_encode_maps(struct fa_gpu *gpu, const struct fa_cuda_map *maps, uint32_t n,
                        struct fa_cuda_maps *ret_maps);

/* Calls a function of @driver (a pointer); a failure ends the process. */
#define MUST(driver, call)                                                                         \
	do {                                                                                       \
		const CUresult must_result = (driver)->call;                                       \
		if (must_result != CUDA_SUCCESS) {                                                 \
			struct fa_error must_error;                                                \
			fa_cudriver_fail((driver), &must_error, must_result, #call);               \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, must_error.text);       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)
