/*
 * A decode step over pages, in the benchmark's own process: the kernels that the daemon would
 * choose, launched as a program would that has them itself. One thread.
 */
#pragma once

#include "bench/lib/gpu.h"

#include <stdbool.h>

struct fa_gpu_decode;

/* bf16. */
struct fa_gpu_decode_shape {
	int32_t layers, heads, kv_heads, dim, page_tokens;
	uint32_t batch;  /* sequences */
	uint32_t length; /* of each, with the new token */
};

/* [token][head][dim]. q, out, k and v are the new tokens', one of each sequence; of the tokens
 * before, which every layer of every sequence gets, there are length - 1. */
struct fa_gpu_decode_tensors {
	CUdeviceptr q, k, v, out, k_before, v_before;
};

/* Makes the pages and fills them. */
int fa_gpu_decode_new(struct fa_gpu *gpu, const struct fa_gpu_decode_shape *shape,
                      const struct fa_gpu_decode_tensors *tensors, struct fa_error *error,
                      struct fa_gpu_decode **ret_decode);
/* Takes NULL, returns NULL. */
struct fa_gpu_decode *fa_gpu_decode_free(struct fa_gpu_decode *decode);

/* Enqueues what there is to do for @layer: attention, and with or before it, if @append, the
 * new tokens' way into the pages. */
int fa_gpu_decode_launch(struct fa_gpu_decode *decode, int32_t layer, bool append,
                         struct fa_error *error);
