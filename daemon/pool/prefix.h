/*
 * Published prefixes: full pages, found by their tokens. Loop thread only.
 *
 * The key is a 256-bit hash of the pool's secret, the tenant (unless publisher and reader both
 * share), the cache, an extra key and all tokens so far: neither an answer nor its time tells what
 * other tenants published for themselves.
 *
 * Tokens are not verified: wrong ones corrupt results of readers of the same tenant, or of those
 * that share. In a cache with states, kept checkpoints are published with the page that ends there,
 * and found prefixes end at one.
 */
#pragma once

#include "daemon/pool/pool.h"
#include "daemon/pool/state.h"

#define FA_PREFIX_EXTRA_BYTES_MAX 256u

struct fa_prefix_key {
	const void *extra; /* adapters, images: what else contents depend on */
	size_t extra_bytes;
	bool shared; /* tenants that share find it, too */
};

struct fa_prefix_hashes {
	uint8_t begin[FA_STATE_HASH_BYTES]; /* start of the chain */
	uint32_t page_tokens, n;
	uint8_t (*pages)[FA_STATE_HASH_BYTES]; /* [n] */
	uint32_t checkpoint_pages;             /* pages between checkpoints; 0: no checkpoints */
	/* For each checkpoint's first page, [n / checkpoint_pages]; in the memory of pages. */
	uint8_t (*checkpoints)[FA_STATE_HASH_BYTES];
};

/* -EINVAL. */
int fa_prefix_hashes_init(const struct fa_pool *pool, const struct fa_actor *actor,
                          uint64_t sequence, const struct fa_prefix_key *key, uint64_t n_tokens,
                          struct fa_error *error, struct fa_prefix_hashes *ret_hashes);
/* For any sequence that the actor could make in @cache. */
int fa_prefix_hashes_init_cache(const struct fa_pool *pool, const struct fa_actor *actor,
                                uint64_t cache, const struct fa_prefix_key *key, uint64_t n_tokens,
                                struct fa_error *error, struct fa_prefix_hashes *ret_hashes);
/* Takes about 10 ns a token. Any thread may call. */
void fa_prefix_hashes_compute(struct fa_prefix_hashes *hashes, const uint32_t *tokens);
void fa_prefix_hashes_deinit(struct fa_prefix_hashes *hashes);

/*
 * Publishes full durable pages of the first @n_tokens but those whose content is published.
 * @hashes: of the same actor and sequence. The publisher pays from now on. Returns 0 and the number
 * of new pages. -EINVAL, -EDQUOT.
 */
int fa_prefix_publish(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                      const struct fa_prefix_hashes *hashes, uint64_t n_tokens,
                      struct fa_error *error, uint64_t *ret_pages);

/*
 * Fills an empty @sequence with the longest published prefix of @hashes. Returns 0 and its length
 * in tokens, maybe 0. -EINVAL not empty; -EBUSY steps are in flight; -EDQUOT too many used pages in
 * the cache, or cells.
 */
int fa_prefix_attach(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                     const struct fa_prefix_hashes *hashes, struct fa_error *error,
                     uint64_t *ret_tokens);

/* Returns 0 and the length in tokens that fa_prefix_attach() would find. @hashes: of the same actor
 * and cache. Changes nothing, not even the order of eviction. */
int fa_prefix_find(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t cache,
                   const struct fa_prefix_hashes *hashes, struct fa_error *error,
                   uint64_t *ret_tokens);
