/* A daemon's client that runs inproc-decode.h's decode step over the same tensors. One thread, with
 * the GPU's context. */
#pragma once

#include "bench/lib/inproc-decode.h"

#include "client/faclient.h"

/* The tensors of a step, in one allocation. */
struct fa_decode_tensors {
	struct fa_inproc_decode_shape shape;
	CUdeviceptr at;
	uint64_t q_bytes, kv_bytes, bytes; /* bytes of q, of k, of all */
	uint64_t out_at, k_at, v_at, k_before_at, v_before_at;
};

/* Fills @values with random bf16 numbers, the same each time. */
void fa_decode_random(uint16_t *values, uint64_t n);

int fa_decode_tensors_new(struct fa_inproc_gpu *gpu, const struct fa_inproc_decode_shape *shape,
                          struct fa_error *error, struct fa_decode_tensors *ret_tensors);
void fa_decode_tensors_free(struct fa_inproc_gpu *gpu, struct fa_decode_tensors *tensors);
struct fa_inproc_decode_tensors fa_decode_tensors_at(const struct fa_decode_tensors *tensors);

/* A client with its own sequences, and a step that has begun. */
struct fa_decode_client {
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct fa_step_item *items; /* [batch]: one new token each */
	uint32_t batch;
	struct fa_step *step;
	struct fa_step_attend attend; /* the request for layer 0 */
	struct fa_timeline *timeline;
	uint64_t value; /* last value of its slots 0 */
};

/* @flags and @spin_ns as in fa_options. On failure nothing stays open. */
int fa_decode_client_open(const struct fa_decode_tensors *tensors, const char *socket,
                          uint32_t flags, uint64_t spin_ns, struct fa_error *error,
                          struct fa_decode_client *ret_client);
void fa_decode_client_close(struct fa_decode_client *c);

/* Begin a step with one new token per sequence, commit it, and remove the tokens. */
int fa_decode_client_begin(struct fa_decode_client *c, struct fa_error *error);
int fa_decode_client_commit(struct fa_decode_client *c, struct fa_error *error);
int fa_decode_client_truncate(struct fa_decode_client *c, uint32_t length, struct fa_error *error);

/* Requests a layer's attention. @gates may be NULL. Without @ret_ticket waits for its end. */
int fa_decode_client_attend(struct fa_decode_client *c, uint32_t layer, bool append,
                            const struct fa_gates *gates, struct fa_error *error,
                            struct fa_ticket *ret_ticket);

/* Requests all layers at once. @wait and @signal may be NULL; each layer uses the next value. */
int fa_decode_client_attend_layers(struct fa_decode_client *c, uint32_t n_layers,
                                   const struct fa_gate *wait, const struct fa_gate *signal,
                                   bool append, struct fa_error *error,
                                   struct fa_ticket *ret_ticket);
