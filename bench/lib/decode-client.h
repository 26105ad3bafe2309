/*
 * The other side of gpu-decode.h: the same step asked for of a daemon, over the same tensors.
 * One thread, which has the GPU's context.
 */
#pragma once

#include "bench/lib/gpu-decode.h"

#include "client/faclient.h"

/* What both sides read and write, in one allocation. */
struct fa_decode_tensors {
	struct fa_gpu_decode_shape shape;
	CUdeviceptr at;
	uint64_t q_bytes, kv_bytes, bytes; /* of q, of k, of all */
	uint64_t out_at, k_at, v_at, k_before_at, v_before_at;
};

/* The same @n random numbers each time, in bf16. */
void fa_decode_random(uint16_t *values, uint64_t n);

/* Random numbers. */
int fa_decode_tensors_new(struct fa_gpu *gpu, const struct fa_gpu_decode_shape *shape,
                          struct fa_error *error, struct fa_decode_tensors *ret_tensors);
void fa_decode_tensors_free(struct fa_gpu *gpu, struct fa_decode_tensors *tensors);
/* As the kernels are to have them. */
struct fa_gpu_decode_tensors fa_decode_tensors_at(const struct fa_decode_tensors *tensors);

/* A client with sequences of its own, in the middle of a step. */
struct fa_decode_client {
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct fa_step_item *items; /* [batch]: the sequences, with a new token each */
	uint32_t batch;
	struct fa_step *step;
	struct fa_step_attend attend; /* of layer 0 */
	struct fa_timeline *timeline;
	uint64_t value; /* of its slots 0 */
};

/* @flags and @spin_ns: fa_options'. Half-made ones are closed, too. */
int fa_decode_client_open(const struct fa_decode_tensors *tensors, const char *socket,
                          uint32_t flags, uint64_t spin_ns, struct fa_error *error,
                          struct fa_decode_client *ret_client);
void fa_decode_client_close(struct fa_decode_client *c);

/* Begins the step of all sequences with a new token each; commits it, and takes the new
 * tokens back. */
int fa_decode_client_begin(struct fa_decode_client *c, struct fa_error *error);
int fa_decode_client_commit(struct fa_decode_client *c, struct fa_error *error);
int fa_decode_client_take_back(struct fa_decode_client *c, uint32_t length, struct fa_error *error);

/* One layer of the step. @gates may be NULL; without @ret_ticket it waits for the end. */
int fa_decode_client_attend(struct fa_decode_client *c, uint32_t layer, bool append,
                            const struct fa_gates *gates, struct fa_error *error,
                            struct fa_ticket *ret_ticket);

/* @n_layers by one request. @wait and @signal, of which each layer has the next value, may be
 * NULL. */
int fa_decode_client_attend_layers(struct fa_decode_client *c, uint32_t n_layers,
                                   const struct fa_gate *wait, const struct fa_gate *signal,
                                   bool append, struct fa_error *error,
                                   struct fa_ticket *ret_ticket);
