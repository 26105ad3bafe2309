/*
 * Published prefixes: full pages that are found again by the tokens in them. Loop thread only.
 *
 * The key of a page is a 256-bit hash chained over the pages before it. It covers the pool's
 * secret, the tenant (unless publisher and reader both share), the cache, an extra key and
 * the tokens. So a reader can neither ask for what another tenant published for itself, nor
 * learn from the answer or its time whether it exists.
 *
 * That a page holds the tokens it is published under is not verified: wrong tokens corrupt
 * the results of readers of the same tenant, or of those that share.
 */
#pragma once

#include "daemon/pool/pool.h"
#include "daemon/pool/state.h"

#define FA_PREFIX_EXTRA_BYTES_MAX 256u

struct fa_prefix_key {
	const void *extra; /* what else the contents depend on: adapters, images */
	size_t extra_bytes;
	bool shared; /* with every tenant that shares too */
};

/* The hashes of the full pages of some tokens. */
struct fa_prefix_hashes {
	uint8_t begin[FA_STATE_HASH_BYTES]; /* start of the chain */
	uint32_t page_tokens, n;
	uint8_t (*pages)[FA_STATE_HASH_BYTES]; /* [n] */
};

/*
 * Allocates for the pages of @n_tokens tokens of @sequence. Needs the right to append.
 * -EINVAL; -ENOMEM.
 */
int fa_prefix_hashes_init(const struct fa_pool *pool, const struct fa_actor *actor,
                          uint64_t sequence, const struct fa_prefix_key *key, uint64_t n_tokens,
                          struct fa_error *error, struct fa_prefix_hashes *ret_hashes);
/* Takes 10 ns a token. Any thread: touches nothing but @hashes. */
void fa_prefix_hashes_compute(struct fa_prefix_hashes *hashes, const uint32_t *tokens);
/* Zeroed is fine. */
void fa_prefix_hashes_deinit(struct fa_prefix_hashes *hashes);

/*
 * Publishes the full durable pages of @sequence among its first @n_tokens, counted from the
 * sequence's beginning. @hashes are of these tokens, made for the same actor and sequence.
 * Skips pages that are published or whose content is. From now on the publisher pays for
 * them. Needs the right to append. Returns 0 and the number of new pages. -EINVAL, -EDQUOT,
 * -ENOMEM.
 */
int fa_prefix_publish(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                      const struct fa_prefix_hashes *hashes, uint64_t n_tokens,
                      struct fa_error *error, uint64_t *ret_pages);

/*
 * Adds the longest published prefix with @hashes, made for the same actor and sequence, to
 * @sequence, which is empty. Returns 0 and its length in tokens, which may be 0. -EINVAL not
 * empty; -EBUSY steps are in flight; -EDQUOT too many pages in use in the cache, or too many
 * cells of lists; -ENOMEM.
 */
int fa_prefix_attach(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                     const struct fa_prefix_hashes *hashes, struct fa_error *error,
                     uint64_t *ret_tokens);
