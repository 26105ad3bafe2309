/* Runs a decode step over pages in this process, with the daemon's kernels: the peer of requests
 * to a daemon. One thread. */
#pragma once

#include "bench/lib/inproc-gpu.h"

#include <stdbool.h>

struct fa_inproc_decode;

/* The step's shape; the type is bf16. */
struct fa_inproc_decode_shape {
	int32_t layers, heads, kv_heads, dim, page_tokens;
	uint32_t batch;  /* sequences */
	uint32_t length; /* including the new token */
};

/* [token][head][dim]. q, out, k and v: one new token per sequence. k_before, v_before: length - 1
 * tokens, for every sequence and layer. */
struct fa_inproc_decode_tensors {
	CUdeviceptr q, k, v, out, k_before, v_before;
};

int fa_inproc_decode_new(struct fa_inproc_gpu *gpu, const struct fa_inproc_decode_shape *shape,
                         const struct fa_inproc_decode_tensors *tensors, struct fa_error *error,
                         struct fa_inproc_decode **ret_decode);
struct fa_inproc_decode *fa_inproc_decode_free(struct fa_inproc_decode *decode);

/* Enqueues attention. With @append also the append, by the same kernel or one before it. */
int fa_inproc_decode_launch(struct fa_inproc_decode *decode, int32_t layer, bool append,
                            struct fa_error *error);
