/*
 * A raw client of the KV cache. A token is a number from which its K, V and q in every layer
 * follow: a test keeps the numbers of its sequences, compares contents bit by bit, and recomputes
 * attention.
 */
#pragma once

#include "common/timeline.h"
#include "tests/lib/raw.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_client {
	struct fa_raw raw;
	struct fa_raw_buffer buffer; /* for all tensors, reused cyclically */
	uint64_t used;
	uint64_t values[64];
};

/* Shape of all caches; fp32. */
#define KV_LAYERS 2
#define KV_KV_HEADS 2
#define KV_HEADS 4
#define KV_DIM 16
#define KV_DIM_V 8
#define KV_PAGE 16
/* Unused layers, for larger pages. */
extern uint32_t kv_spare_layers;

void kv_open(struct kv_client *client, const char *socket);
void kv_close(struct kv_client *client);

/*
 * kv_open() in two halves, to resume the session with @secret. After the first one raw.message is
 * the HelloReply.
 */
void kv_open_resumed(struct kv_client *client, const char *socket,
                     const struct fa_wire_secret *secret, uint64_t generation);
void kv_open_buffer(struct kv_client *client);

/*
 * Sets up the session's timeline; maps the client's slots and, unless @ret_out is NULL, the
 * daemon's. kv_close_timeline() takes NULL for @out.
 */
void kv_open_timeline(struct kv_client *client, struct fa_timeline_in **ret_in,
                      const struct fa_timeline_out **ret_out);
void kv_close_timeline(struct fa_timeline_in *in, const struct fa_timeline_out *out);

struct fa_wire_message kv_cache_message(const char *name, uint32_t mode);
uint64_t kv_cache(struct kv_client *client, const char *name, uint32_t mode);
uint64_t kv_cache_find(struct kv_client *client, const char *name);
uint64_t kv_cache_find_of(struct kv_client *client, uint64_t user, const char *name);

uint64_t kv_sequence(struct kv_client *client, uint64_t cache);
uint64_t kv_sequence_find(struct kv_client *client, const char *name);
uint64_t kv_sequence_find_of(struct kv_client *client, uint64_t user, const char *name);
uint64_t kv_fork(struct kv_client *client, uint64_t sequence, uint64_t tokens);
void kv_set_name(struct kv_client *client, uint64_t sequence, const char *name, uint32_t mode);
void kv_truncate(struct kv_client *client, uint64_t sequence, uint64_t tokens);
void kv_drop(struct kv_client *client, uint64_t sequence, uint64_t first);
void kv_free(struct kv_client *client, uint64_t sequence);
struct fa_wire_sequence_reply kv_info(struct kv_client *client, uint64_t sequence);

void kv_call(struct kv_client *client, struct fa_wire_message *message, enum fa_wire_type type);
/* The reply must have this status and a text that contains @part. */
void kv_call_expect(struct kv_client *client, struct fa_wire_message *message, int status,
                    const char *part);

/* Return the step's id. */
uint64_t kv_begin(struct kv_client *client, uint32_t step, const struct fa_wire_step_item *items,
                  uint32_t n);
uint64_t kv_begin_one(struct kv_client *client, uint32_t step, uint64_t sequence, uint32_t n);
void kv_begin_expect(struct kv_client *client, uint32_t step, const struct fa_wire_step_item *items,
                     uint32_t n, int status, const char *part);

/*
 * Appends these tokens to one layer and attends. @ret_out: where the result will be; NULL: no
 * attention.
 */
uint64_t kv_attend(struct kv_client *client, uint32_t stream, uint32_t step, uint32_t layer,
                   const uint32_t *numbers, uint32_t n, const float **ret_out);
/* The message of kv_attend(), not sent. */
struct fa_wire_message kv_attend_message(struct kv_client *client, uint32_t stream, uint32_t step,
                                         uint32_t layer, const uint32_t *numbers, uint32_t n,
                                         const float **ret_out);
uint64_t kv_end(struct kv_client *client, uint32_t stream, uint32_t step, bool commit);
struct fa_wire_message kv_copy_message(struct kv_client *client, uint32_t stream, uint64_t sequence,
                                       uint32_t layer, uint64_t first, uint32_t n, bool write,
                                       float **ret_k, float **ret_v);
uint64_t kv_send(struct kv_client *client, struct fa_wire_message *message, uint32_t stream);

void kv_wait(struct kv_client *client, uint32_t stream, uint64_t value);
void kv_wait_expect(struct kv_client *client, uint32_t stream, uint64_t value, int status,
                    const char *part);

/*
 * A step that appends to all layers, checks attention, and commits. @old: the @n_old tokens before.
 */
void kv_append(struct kv_client *client, uint64_t sequence, const uint32_t *numbers, uint32_t n_old,
               uint32_t n);

/* The sequence must have exactly these tokens from @first on. */
void kv_check(struct kv_client *client, uint64_t sequence, const uint32_t *numbers, uint64_t first,
              uint64_t length);

/* @out must be causal attention of the last @n of @length tokens. */
void kv_check_out(uint32_t layer, const uint32_t *numbers, uint32_t length, uint32_t n,
                  const float *out);

void kv_fill(uint32_t layer, uint32_t number, float *k, float *v, float *q);

void kv_count(uint32_t *numbers, uint32_t first, uint32_t n);
