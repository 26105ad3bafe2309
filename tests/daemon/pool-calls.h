/* Calls that only tests make. */
#pragma once

#include "daemon/pool/prefix.h"

/* Hashes the tokens before fa_prefix_publish(). */
int pool_publish(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                 const struct fa_prefix_key *key, const uint32_t *tokens, uint64_t n_tokens,
                 struct fa_error *error, uint64_t *ret_pages);
/* Hashes the tokens before fa_prefix_attach(). */
int pool_attach(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                const struct fa_prefix_key *key, const uint32_t *tokens, uint64_t n_tokens,
                struct fa_error *error, uint64_t *ret_tokens);
/* How many tokens an attach would find. */
int pool_find_prefix(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t cache,
                     const struct fa_prefix_key *key, const uint32_t *tokens, uint64_t n_tokens,
                     struct fa_error *error, uint64_t *ret_tokens);

/* Writes up to @size slots of the sequence's durable pages. Returns how many pages it has. */
size_t pool_sequence_slots(const struct fa_pool *pool, uint64_t id, uint32_t *slots, size_t size);
/* The same for the pages of its checkpoints. */
size_t pool_checkpoint_slots(const struct fa_pool *pool, uint64_t id, uint32_t *slots, size_t size);
/* Evicts all idle pages; returns how many. */
uint64_t pool_evict(struct fa_pool *pool, uint64_t cache);
