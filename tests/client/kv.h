/*
 * Sequences whose contents follow from numbers: a token is a *tag*, of which its query,
 * keys and values are made, so that a test keeps an array of tags for each sequence and
 * can tell what should be in its pages and what attention over it is. fp32: pages are
 * compared bit by bit, attention with double precision. One is used by one thread.
 */
#pragma once

#include "client/faclient.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	KV_LAYERS = 2,
	KV_HEADS = 4,
	KV_KV_HEADS = 2,
	KV_DIM = 16,
	KV_PAGE_TOKENS = 16,
	KV_ROWS_MAX = 128,    /* new tokens of one step */
	KV_LENGTH_MAX = 4096, /* of a sequence that is checked */
	/* queries and results, keys and values, lse */
	KV_BUFFER_BYTES = 4 * KV_LAYERS * KV_ROWS_MAX *
	                  (2 * KV_HEADS * KV_DIM + 2 * KV_KV_HEADS * KV_DIM + KV_HEADS),
};

struct kv {
	struct fa_client *client;
	uint64_t cache;
	struct fa_buffer *buffer;
	bool owns_buffer;
	char *host;                   /* its contents */
	float *q, *k, *v, *out, *lse; /* in host: [KV_LAYERS][KV_ROWS_MAX][heads][KV_DIM] */
	uint32_t flags;               /* of attention, besides FA_STEP_CAUSAL */
	/* Where the daemon sees another place: makes that the same as host, or host as that. */
	void (*move)(void *userdata, bool to_device);
	void *userdata;
};

/* With a cache of its own, which has @name unless that is NULL; @max_pages as there. */
void kv_init(struct kv *kv, struct fa_client *client, const char *name, uint64_t max_pages);
/* With the cache of another. */
void kv_init_in(struct kv *kv, struct fa_client *client, uint64_t cache);
/* ... and the caller's memory: a buffer of KV_BUFFER_BYTES, of which it sees @host. */
void kv_init_over(struct kv *kv, struct fa_client *client, uint64_t cache, struct fa_buffer *buffer,
                  void *host);
/* Leaves the cache, and, with kv_init_over(), the buffer. */
void kv_deinit(struct kv *kv);

/* ---- steps */

/* One sequence of a step: what it holds with its new tokens, [length], of which the first
 * @first were dropped and the last @n_new are new. */
struct kv_item {
	uint64_t sequence;
	const uint32_t *tags;
	uint32_t length, first, n_new;
	/* NULL: the new tokens are in order; else [n_new]: the one that each follows, or itself
	 * if it follows what was there before. */
	const uint32_t *parents;
};

int kv_begin(struct kv *kv, const struct kv_item *items, uint32_t n_items,
             struct fa_step **ret_step);
/* Asks for all layers, on @stream; waits if @wait. The first error. */
int kv_attend(struct kv *kv, struct fa_step *step, const struct kv_item *items, uint32_t n_items,
              uint32_t stream, bool wait);
/* Writes the keys and values of the new tokens of a step's only item, of all layers, without
 * attention. The first error. */
int kv_write(struct kv *kv, const struct kv_item *item);
/* Fails unless all that came out is right. */
void kv_check_out(const struct kv *kv, const struct kv_item *items, uint32_t n_items);

/* ---- pages */

/* Reads tokens [first, first + n) of every layer, and fails unless they are those of
 * @tags; tags[0] is token 0's. Returns what the library did, if that was an error. */
int kv_check_pages(struct kv *kv, uint64_t sequence, const uint32_t *tags, uint32_t first,
                   uint32_t n);
/* All that the sequence has, and its lengths. */
void kv_check_sequence(struct kv *kv, uint64_t sequence, const uint32_t *tags, uint32_t length,
                       uint32_t first);
