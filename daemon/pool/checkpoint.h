/*
 * Checkpoints of a sequence: what a model's linear layers carry over after some tokens, as bytes in
 * pages of the cache. Loop thread. A step writes a checkpoint, which then never changes. A sequence
 * keeps the newest and those at multiples of the cache's checkpoint_tokens.
 */
#pragma once

#include "daemon/pool/objects.h"

#define FA_CHECKPOINT_PAGES_MAX 4096u

static inline uint32_t fa_checkpoint_cells(const struct fa_pool_cache *cache)
{
	return (cache->checkpoint_pages + FA_STATE_CELL_PAGES) / FA_STATE_CELL_PAGES;
}

/* True: a checkpoint at @length stays when a newer one is added. */
static inline bool fa_checkpoint_stays(const struct fa_pool_cache *cache, uint64_t length)
{
	const uint32_t tokens = cache->record->checkpoint_tokens;

	return tokens && length % tokens == 0;
}

/* The checkpoint has no pages yet. NULL: no memory. */
struct fa_pool_checkpoint *fa_checkpoint_new(const struct fa_pool_cache *cache, uint64_t length);
/* The checkpoint must have no pages. Takes NULL. */
void fa_checkpoint_free(struct fa_pool_checkpoint *checkpoint);
void fa_checkpoint_free_list(struct fa_pool_checkpoint *list);

/* Takes pages and cells, which must be there. Appends slots of pages to clear to *@clears. */
void fa_checkpoint_take(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                        struct fa_pool_checkpoint *checkpoint, uint32_t **clears);
void fa_checkpoint_share(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                         struct fa_pool_checkpoint *checkpoint, const uint32_t *slots);
/* Gives cells and pages back, and frees the checkpoint (may be NULL). @deferred: steps in flight
 * may read it, and fa_page_list_prepare() has made room. */
void fa_checkpoint_put(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                       struct fa_pool_checkpoint *checkpoint, bool deferred);
/* The same for a list linked by `older`. */
void fa_checkpoint_put_list(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                            struct fa_pool_checkpoint *list, bool deferred);

/*
 * These three change the list, which the next fa_page_list_commit() makes durable; then the caller
 * puts what they return.
 */
/* Returns what the new one replaces, or NULL. */
struct fa_pool_checkpoint *fa_checkpoint_push(struct fa_pool *pool,
                                              struct fa_pool_sequence *sequence,
                                              struct fa_pool_checkpoint *checkpoint);
/* Removes checkpoints behind @length. */
struct fa_pool_checkpoint *fa_checkpoint_cut(struct fa_pool_sequence *sequence, uint64_t length);
/* Removes checkpoints before @first. After the commit, call fa_checkpoint_seal(). */
struct fa_pool_checkpoint *fa_checkpoint_drop(struct fa_pool_sequence *sequence, uint64_t first);
void fa_checkpoint_seal(struct fa_pool *pool, const struct fa_pool_sequence *sequence);

/* NULL: there is none. */
const struct fa_pool_checkpoint *fa_checkpoint_find(const struct fa_pool_sequence *sequence,
                                                    uint64_t length);
/*
 * Finds where a sequence can be cut: at @length or, with states, at the last checkpoint up to it,
 * else at 0. -ENOTSUP: the sequence keeps nothing there.
 */
int fa_checkpoint_cut_at(const struct fa_pool_sequence *sequence, uint64_t length,
                         struct fa_error *error, uint64_t *ret_length);
