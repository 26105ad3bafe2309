/*
 * Published prefixes: full pages found again by the tokens in them. Loop thread only.
 *
 * The key of a page is a 256-bit hash, chained over the pages before it, of the pool's
 * secret, the tenant (unless both sides said that they share), the cache, an extra key and
 * the tokens: so what is found is what was asked for, and nobody can ask for what another
 * tenant published for itself: neither the answer nor the time it takes depends on it.
 *
 * That the tokens are those of the pages is the publisher's word; it is believed by its own
 * tenant, and by those who said that they share.
 */
#pragma once

#include "daemon/pool/pool.h"

#define FA_PREFIX_EXTRA_BYTES_MAX 256u

struct fa_prefix_key {
	const void *extra; /* what else the contents depend on: adapters, images */
	size_t extra_bytes;
	bool shared; /* with every tenant that says so too */
};

/* The hashes of full pages of tokens. */
struct fa_prefix_hashes {
	uint8_t begin[32]; /* before the first */
	uint32_t page_tokens, n;
	uint8_t (*pages)[32]; /* [n] */
};

/*
 * Makes room for those of @n_tokens tokens of @sequence, which the actor has the right to append
 * to. fa_prefix_hashes_compute() then takes its time (10 ns a token), on any thread, and
 * touches nothing else. -EINVAL; -ENOMEM.
 */
int fa_prefix_hashes_init(const struct fa_pool *pool, const struct fa_actor *actor,
                          uint64_t sequence, const struct fa_prefix_key *key, uint64_t n_tokens,
                          struct fa_error *error, struct fa_prefix_hashes *ret_hashes);
void fa_prefix_hashes_compute(struct fa_prefix_hashes *hashes, const uint32_t *tokens);
/* Zeroed is fine. */
void fa_prefix_hashes_deinit(struct fa_prefix_hashes *hashes);

/* The two that follow, of tokens whose hashes were computed for the same actor and sequence. */
int fa_prefix_publish_hashed(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                             const struct fa_prefix_hashes *hashes, uint64_t n_tokens,
                             struct fa_error *error, uint64_t *ret_pages);
int fa_prefix_attach_hashed(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                            const struct fa_prefix_hashes *hashes, struct fa_error *error,
                            uint64_t *ret_tokens);

/*
 * Publishes the full durable pages of @sequence among its first @n_tokens, whose tokens are
 * @tokens, counted from the sequence's beginning. Pages whose content is known already, or
 * that are published, are left as they are. The publisher pays for them from now on. Needs
 * the right to append. Returns 0 and how many pages are new. -EINVAL, -EDQUOT.
 */
int fa_prefix_publish(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                      const struct fa_prefix_key *key, const uint32_t *tokens, uint64_t n_tokens,
                      struct fa_error *error, uint64_t *ret_pages);

/*
 * Puts the longest published prefix of @tokens, in full pages, into @sequence, which is
 * empty. Returns 0 and its length in tokens, which may be 0. -EINVAL it is not empty; -EBUSY;
 * -EDQUOT the cache may not have so many pages in use.
 */
int fa_prefix_attach(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                     const struct fa_prefix_key *key, const uint32_t *tokens, uint64_t n_tokens,
                     struct fa_error *error, uint64_t *ret_tokens);

/* The length of it alone. Needs the right to make sequences in @cache. */
int fa_prefix_find(struct fa_pool *pool, const struct fa_actor *actor, uint64_t cache,
                   const struct fa_prefix_key *key, const uint32_t *tokens, uint64_t n_tokens,
                   struct fa_error *error, uint64_t *ret_tokens);
