/*
 * Random attention requests on the GPU: shapes, strides and data, and the judgement
 * of a result. Every byte of a buffer that is no element of its tensor is 0xff, which
 * is NaN in each type, so that whoever reads it shows it in the result; out and lse
 * are 0xff everywhere, so that whoever writes beside them is seen.
 */
#pragma once

#include "kernels/attention.h"
#include "tests/gpu/gpu.h"

#include <stdbool.h>
#include <stdint.h>

/* xorshift; state is never 0. */
uint64_t fa_random(uint64_t *state);
/* 0…n - 1. */
int64_t fa_random_below(uint64_t *state, int64_t n);

struct fa_request_tensor {
	uint64_t address; /* of the whole buffer */
	int64_t elements; /* of the whole buffer */
	int64_t first;    /* where the tensor begins in it */
};

struct fa_request {
	struct fa_attention_params params; /* with device addresses */
	char text[512];                    /* says what it is */
	uint32_t *lengths_q, *lengths_k;   /* cu_seqlens in host memory, or NULL */
	int64_t tokens_q, tokens_k;        /* of a batch entry; of all if ragged */
	struct fa_request_tensor q, k, v, out, lse;
	uint64_t cu_q, cu_k;   /* memory that the host reads, too, as plans do */
	uint64_t alibi, sinks; /* device memory */
};

/* How a request is to be laid out; zeros are the usual. */
struct fa_request_layout {
	bool head_major; /* [batch][head][token][dim], not [batch][token][head][dim] */
	int gap;         /* elements between rows */
	int first;       /* elements before the tensor, besides the guard */
	int broken;      /* elements of V that are infinite or NaN; a sixth as many of K */
};

/*
 * Makes buffers and data for @params, whose pointers and strides are set here.
 * Ragged if @lengths_q: @batch + 1 each, ascending from 0, seqlens set here too.
 * @alibi, @sinks: whether to have them.
 */
void fa_request_make(struct fa_gpu *gpu, struct fa_request *request,
                     const struct fa_attention_params *params, const uint32_t *lengths_q,
                     const uint32_t *lengths_k, struct fa_request_layout layout, bool alibi,
                     bool sinks, uint64_t *random);
void fa_request_random(struct fa_gpu *gpu, struct fa_request *request, uint64_t *random);
void fa_request_free(struct fa_gpu *gpu, struct fa_request *request);

/* The same in host memory, all but the results. */
struct fa_request_copy {
	struct fa_attention_params params; /* with host addresses */
	char *q, *k, *v;
	float *alibi, *sinks;
};

void fa_request_download(struct fa_gpu *gpu, const struct fa_request *request,
                         struct fa_request_copy *ret_copy);
void fa_request_copy_free(struct fa_request_copy *copy);

struct fa_request_reference {
	double *out, *naive, *lse; /* dense, see reference.cu */
};

void fa_request_reference(struct fa_gpu *gpu, const struct fa_request *request,
                          struct fa_request_reference *ret_reference);
void fa_request_reference_free(struct fa_request_reference *reference);

/*
 * Runs @launch twice and judges what it wrote. Returns whether all is well, else with
 * a sentence in @text. @ret_error: the largest error over what the rule allows. Where
 * the reference is infinite or NaN, any value that is one of these will do.
 */
bool fa_request_check(struct fa_gpu *gpu, const struct fa_request *request,
                      const struct fa_cuda_launch *launch,
                      const struct fa_request_reference *reference, char *text, size_t text_bytes,
                      double *ret_error);
