/*
 * A client of the KV cache on the wire. A token is a number, and from it follow its K, V
 * and q in every layer; so a sequence is an array of such numbers for the test, and what
 * the daemon has of it can be compared to the bit, and attention over it computed anew.
 */
#pragma once

#include "tests/lib/raw.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_client {
	struct fa_raw raw;
	struct fa_raw_buffer buffer; /* all tensors, one after another, round and round */
	uint64_t used;
	uint64_t values[64]; /* last one of each stream */
};

/* The caches of all tests; the dtype is fp32. */
#define KV_LAYERS 2
#define KV_KV_HEADS 2
#define KV_HEADS 4
#define KV_DIM 16
#define KV_DIM_V 8
#define KV_PAGE 16
/* Layers that they have besides, and nobody uses: for pages of more bytes. */
extern uint32_t kv_spare_layers;

void kv_open(struct kv_client *client, const char *socket);
void kv_close(struct kv_client *client);

/* The two halves of kv_open(), the first as the session that had @secret. HelloReply is in
 * raw.message between them. */
void kv_open_resumed(struct kv_client *client, const char *socket,
                     const struct fa_wire_secret *secret, uint64_t generation);
void kv_open_buffer(struct kv_client *client);

/* ---- one message each; those that end with _try return what the daemon says */

struct fa_wire_message kv_cache_message(const char *name, uint32_t mode);
uint64_t kv_cache(struct kv_client *client, const char *name, uint32_t mode);
uint64_t kv_cache_find(struct kv_client *client, const char *name);

uint64_t kv_sequence(struct kv_client *client, uint64_t cache);
uint64_t kv_sequence_find(struct kv_client *client, const char *name);
uint64_t kv_fork(struct kv_client *client, uint64_t sequence, uint64_t tokens);
void kv_set_name(struct kv_client *client, uint64_t sequence, const char *name, uint32_t mode);
void kv_truncate(struct kv_client *client, uint64_t sequence, uint64_t tokens);
void kv_drop(struct kv_client *client, uint64_t sequence, uint64_t first);
void kv_free(struct kv_client *client, uint64_t sequence);
struct fa_wire_sequence_reply kv_info(struct kv_client *client, uint64_t sequence);

/* Calls and wants a reply of @type, or prints what came instead. */
void kv_call(struct kv_client *client, struct fa_wire_message *message, enum fa_wire_type type);
/* ... or the status, with a text that contains @part. */
void kv_call_expect(struct kv_client *client, struct fa_wire_message *message, int status,
                    const char *part);

/* Returns the step's number. */
uint64_t kv_begin(struct kv_client *client, uint32_t step, const struct fa_wire_step_item *items,
                  uint32_t n);
uint64_t kv_begin_one(struct kv_client *client, uint32_t step, uint64_t sequence, uint32_t n);
void kv_begin_expect(struct kv_client *client, uint32_t step, const struct fa_wire_step_item *items,
                     uint32_t n, int status, const char *part);

/* ---- requests of streams: sent, and not waited for; they return their values */

/* Appends tokens with these numbers to one layer. @ret_out: where the result will be, in
 * memory of the client; NULL: nothing is attended. */
uint64_t kv_attend(struct kv_client *client, uint32_t stream, uint32_t step, uint32_t layer,
                   const uint32_t *numbers, uint32_t n, const float **ret_out);
/* The same message, to be changed. */
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

/* ---- whole stories */

/* A step of its own: appends to all layers, checks attention, commits. @old: the numbers of
 * the @n_old tokens before. */
void kv_append(struct kv_client *client, uint64_t sequence, const uint32_t *numbers, uint32_t n_old,
               uint32_t n);

/* The sequence has just these tokens from @first on, in all layers. */
void kv_check(struct kv_client *client, uint64_t sequence, const uint32_t *numbers, uint64_t first,
              uint64_t length);

/* Whether @out is causal attention of the last @n of @length tokens over all of them. */
void kv_check_out(uint32_t layer, const uint32_t *numbers, uint32_t length, uint32_t n,
                  const float *out);

/* What K, V and q of a token are. */
void kv_fill(uint32_t layer, uint32_t number, float *k, float *v, float *q);

/* Ascending numbers from @first on. */
void kv_count(uint32_t *numbers, uint32_t first, uint32_t n);
