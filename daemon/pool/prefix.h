/*
 * Published prefixes: full pages, found by the tokens in them. Loop thread only.
 *
 * The key is a 256-bit hash of the pool's secret, the tenant (unless publisher and reader both
 * share), the cache, an extra key and all tokens so far. So neither an answer nor its time tells
 * what other tenants published for themselves.
 *
 * Tokens are not verified: wrong ones corrupt results of readers of the same tenant, or of those
 * that share.
 *
 * In a cache with states the checkpoints at multiples of its checkpoint_tokens are published with
 * the page that ends there, and found prefixes end at one.
 */
#pragma once

#include "daemon/pool/pool.h"
#include "daemon/pool/state.h"

#define FA_PREFIX_EXTRA_BYTES_MAX 256u

struct fa_prefix_key {
	const void *extra; /* adapters, images: what contents depend on */
	size_t extra_bytes;
	bool shared; /* tenants that share find it, too */
};

struct fa_prefix_hashes {
	uint8_t begin[FA_STATE_HASH_BYTES]; /* hash with which the chain starts */
	uint32_t page_tokens, n;
	uint8_t (*pages)[FA_STATE_HASH_BYTES]; /* [n] */
	uint32_t checkpoint_pages; /* pages between checkpoints; 0: none are published */
	/* Of each checkpoint's first page, [n / checkpoint_pages]; behind pages. */
	uint8_t (*checkpoints)[FA_STATE_HASH_BYTES];
};

/* Allocates hashes for @n_tokens tokens of @sequence. -EINVAL. */
int fa_prefix_hashes_init(const struct fa_pool *pool, const struct fa_actor *actor,
                          uint64_t sequence, const struct fa_prefix_key *key, uint64_t n_tokens,
                          struct fa_error *error, struct fa_prefix_hashes *ret_hashes);
/* Allocates hashes for @n_tokens tokens of any sequence that the actor could make in @cache. */
int fa_prefix_hashes_init_cache(const struct fa_pool *pool, const struct fa_actor *actor,
                                uint64_t cache, const struct fa_prefix_key *key, uint64_t n_tokens,
                                struct fa_error *error, struct fa_prefix_hashes *ret_hashes);
/* Computes the hashes, in 10 ns a token. Any thread may call. */
void fa_prefix_hashes_compute(struct fa_prefix_hashes *hashes, const uint32_t *tokens);
void fa_prefix_hashes_deinit(struct fa_prefix_hashes *hashes);

/*
 * Publishes full durable pages of the first @n_tokens. @hashes were made for the same actor and
 * sequence. Skips pages whose content is published. The publisher pays for them from now on.
 * Returns 0 and the number of new pages. -EINVAL, -EDQUOT.
 */
int fa_prefix_publish(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                      const struct fa_prefix_hashes *hashes, uint64_t n_tokens,
                      struct fa_error *error, uint64_t *ret_pages);

/*
 * Fills an empty @sequence with the longest published prefix of @hashes. Returns 0 and its length
 * in tokens, which may be 0. -EINVAL not empty; -EBUSY steps are in flight; -EDQUOT too many used
 * pages in the cache, or cells.
 */
int fa_prefix_attach(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                     const struct fa_prefix_hashes *hashes, struct fa_error *error,
                     uint64_t *ret_tokens);

/* Returns 0 and the length in tokens that fa_prefix_attach() would find now, of @hashes that were
 * made for the same actor and cache. Changes nothing, not even which pages are evicted next. */
int fa_prefix_find(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t cache,
                   const struct fa_prefix_hashes *hashes, struct fa_error *error,
                   uint64_t *ret_tokens);
