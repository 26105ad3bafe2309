/*
 * Random attention requests on a GPU: makes shapes, strides and data, and checks results. Every
 * byte outside of a tensor's elements is 0xff, NaN in each type, so that reading it shows in the
 * result; out and lse are 0xff everywhere, so that stray writes are noticed.
 */
#pragma once

#include "kernels/attention.h"
#include "tests/gpu/gpu.h"

#include <stdbool.h>
#include <stdint.h>

/* xorshift; the state is never 0. */
uint64_t fa_random(uint64_t *state);
/* Returns a number from 0 to n - 1. */
int64_t fa_random_below(uint64_t *state, int64_t n);

struct fa_request_tensor {
	uint64_t address;
	int64_t elements; /* number of elements in the whole buffer */
	int64_t first;
};

struct fa_request {
	struct fa_attention_params params; /* addresses are the device's */
	char text[512];                    /* description */
	float v_size;
	uint32_t *lengths_q, *lengths_k; /* cu_seqlens in host memory, or NULL */
	int64_t tokens_q, tokens_k;      /* tokens of a batch entry; of the whole batch if ragged */
	struct fa_request_tensor q, k, v, out, lse;
	uint64_t cu_q, cu_k; /* in memory that the host can read, too, as plans require */
	uint64_t alibi, sinks;
};

/* Layout of a request's tensors; zeros are the default. */
struct fa_request_layout {
	bool head_major; /* [batch][head][token][dim], not [batch][token][head][dim] */
	int gap;         /* elements between rows */
	int first;       /* elements before the tensor, after the guard */
	int broken;      /* this many elements of V are infinite or NaN, and a sixth as many of K */
	float v_size;    /* multiplies V; 0: 1 */
	bool v_positive;
};

/*
 * Makes buffers and data for @params, and sets its pointers and strides. With @lengths_q the batch
 * is ragged: each array has @batch + 1 values, ascending from 0, and seqlens are set, too. @alibi,
 * @sinks: use them.
 */
void fa_request_make(struct fa_gpu *gpu, struct fa_request *request,
                     const struct fa_attention_params *params, const uint32_t *lengths_q,
                     const uint32_t *lengths_k, struct fa_request_layout layout, bool alibi,
                     bool sinks, uint64_t *random);
void fa_request_random(struct fa_gpu *gpu, struct fa_request *request, uint64_t *random);
void fa_request_free(struct fa_gpu *gpu, struct fa_request *request);
/* Raises every logit of key i by about nats[i], of which there are tokens_k. */
void fa_request_raise(struct fa_gpu *gpu, struct fa_request *request, const float *nats);

/* A copy of a request in host memory, without results. */
struct fa_request_copy {
	struct fa_attention_params params;
	char *q, *k, *v;
	float *alibi, *sinks;
};

void fa_request_download(struct fa_gpu *gpu, const struct fa_request *request,
                         struct fa_request_copy *ret_copy);
void fa_request_copy_free(struct fa_request_copy *copy);

struct fa_request_reference {
	double *out, *naive, *lse; /* dense results of the reference, see reference.cu */
};

void fa_request_reference(struct fa_gpu *gpu, const struct fa_request *request,
                          struct fa_request_reference *ret_reference);
void fa_request_reference_free(struct fa_request_reference *reference);

/*
 * Runs @launch twice and checks the results; on failure @text says what is wrong. @ret_error: the
 * largest error relative to the allowed one. Where the reference is infinite or NaN, the result
 * must be either.
 */
bool fa_request_check(struct fa_gpu *gpu, const struct fa_request *request,
                      const struct fa_cuda_launch *launch,
                      const struct fa_request_reference *reference, char *text, size_t text_bytes,
                      double *ret_error);
