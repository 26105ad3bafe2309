/*
 * Sequences with derived contents: each token is a *tag* from which its q, k and v follow. A test
 * keeps the tags of its sequences, and so knows what pages and attention must be. Numbers are fp32:
 * pages are compared bit by bit, attention with doubles. Each struct is used by one thread only.
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
	KV_ROWS_MAX = 128,
	KV_LENGTH_MAX = 4096,
	/* q and out, k and v, lse */
	KV_BUFFER_BYTES = 4 * KV_LAYERS * KV_ROWS_MAX *
	                  (2 * KV_HEADS * KV_DIM + 2 * KV_KV_HEADS * KV_DIM + KV_HEADS),
};

struct kv {
	struct fa_client *client;
	uint64_t cache;
	struct fa_buffer *buffer;
	bool owns_buffer;
	char *host;
	float *q, *k, *v, *out, *lse; /* in host: [KV_LAYERS][KV_ROWS_MAX][heads][KV_DIM] */
	uint32_t flags;               /* in addition to FA_STEP_CAUSAL */
	/*
	 * Set if the daemon uses other memory than @host: copies from host to that memory, or back.
	 */
	void (*move)(void *userdata, bool to_device);
	void *userdata;
};

/* Creates a cache, named @name unless NULL; @max_pages as in fa_cache_options. */
void kv_init(struct kv *kv, struct fa_client *client, const char *name, uint64_t max_pages);
void kv_init_in(struct kv *kv, struct fa_client *client, uint64_t cache);
/* Uses the caller's buffer of KV_BUFFER_BYTES, which is mapped at @host. */
void kv_init_over(struct kv *kv, struct fa_client *client, uint64_t cache, struct fa_buffer *buffer,
                  void *host);
/* Detaches from the cache, and frees the buffer unless kv_init_over() was given it. */
void kv_deinit(struct kv *kv);

/*
 * One sequence of a step. @tags: all tokens, [length]; the first @first were dropped, the last
 * @n_new are new.
 */
struct kv_item {
	uint64_t sequence;
	const uint32_t *tags;
	uint32_t length, first, n_new;
	/*
	 * NULL: in order; else [n_new]: each new token's parent, or itself if it follows the old
	 * tokens.
	 */
	const uint32_t *parents;
};

int kv_begin(struct kv *kv, const struct kv_item *items, uint32_t n_items,
             struct fa_step **ret_step);
/* All layers, on @stream. Returns the first error. */
int kv_attend(struct kv *kv, struct fa_step *step, const struct kv_item *items, uint32_t n_items,
              uint32_t stream, bool wait);
/* Writes K and V of a single item's new tokens, without attention. Returns the first error. */
int kv_write(struct kv *kv, const struct kv_item *item);
void kv_check_out(const struct kv *kv, const struct kv_item *items, uint32_t n_items);

/*
 * Fails unless tokens [first, first + n) of each layer match @tags (tags[0]: token 0). Returns the
 * library's error, if any.
 */
int kv_check_pages(struct kv *kv, uint64_t sequence, const uint32_t *tags, uint32_t first,
                   uint32_t n);
void kv_check_sequence(struct kv *kv, uint64_t sequence, const uint32_t *tags, uint32_t length,
                       uint32_t first);
