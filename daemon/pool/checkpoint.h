/*
 * Checkpoints of a sequence: what the linear layers of a model carry over after some of its tokens,
 * as bytes in pages of the sequence's cache. Loop thread.
 *
 * A checkpoint is written by a step, and never changes. A sequence keeps those at multiples of the
 * cache's checkpoint_tokens, and the newest.
 */
#pragma once

#include "daemon/pool/objects.h"

/* Limits the pages of one checkpoint. */
#define FA_CHECKPOINT_PAGES_MAX 4096u

/* Returns how many cells a checkpoint of the cache takes. */
static inline uint32_t fa_checkpoint_cells(const struct fa_pool_cache *cache)
{
	return (cache->checkpoint_pages + FA_STATE_CELL_PAGES) / FA_STATE_CELL_PAGES;
}

/* Returns true if the sequence keeps a checkpoint at @length when a newer one is added. */
static inline bool fa_checkpoint_stays(const struct fa_pool_cache *cache, uint64_t length)
{
	const uint32_t tokens = cache->record->checkpoint_tokens;

	return tokens && length % tokens == 0;
}

/* Allocates a checkpoint that has no pages yet. NULL: no memory. */
struct fa_pool_checkpoint *fa_checkpoint_new(const struct fa_pool_cache *cache, uint64_t length);
/* Frees a checkpoint without pages. Takes NULL. */
void fa_checkpoint_free(struct fa_pool_checkpoint *checkpoint);
void fa_checkpoint_free_list(struct fa_pool_checkpoint *list);

/* Takes pages and cells, which were checked to be there. Appends slots of pages that must be
 * cleared to *@clears. */
void fa_checkpoint_take(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                        struct fa_pool_checkpoint *checkpoint, uint32_t **clears);
/* References pages, and takes cells. */
void fa_checkpoint_share(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                         struct fa_pool_checkpoint *checkpoint, const uint32_t *slots);
/* Gives cells and pages back, and frees the checkpoint. @deferred: steps in flight may read it, and
 * fa_page_list_prepare() has made room for its pages. Takes NULL. */
void fa_checkpoint_put(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                       struct fa_pool_checkpoint *checkpoint, bool deferred);
/* The same for a list linked by `older`. */
void fa_checkpoint_put_list(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                            struct fa_pool_checkpoint *list, bool deferred);

/*
 * These three change the list. The change becomes durable with the sequence's next commit
 * (fa_page_list_commit()); then the caller puts what they return.
 */
/* Adds the newest checkpoint. Returns the one it replaces, or NULL. */
struct fa_pool_checkpoint *fa_checkpoint_push(struct fa_pool *pool,
                                              struct fa_pool_sequence *sequence,
                                              struct fa_pool_checkpoint *checkpoint);
/* Removes checkpoints behind @length. */
struct fa_pool_checkpoint *fa_checkpoint_cut(struct fa_pool_sequence *sequence, uint64_t length);
/* Removes checkpoints before @first. After the commit, fa_checkpoint_seal() must be called. */
struct fa_pool_checkpoint *fa_checkpoint_drop(struct fa_pool_sequence *sequence, uint64_t first);
void fa_checkpoint_seal(struct fa_pool *pool, const struct fa_pool_sequence *sequence);

/* Returns the newest checkpoint of at most @length tokens, or NULL. */
const struct fa_pool_checkpoint *fa_checkpoint_find(const struct fa_pool_sequence *sequence,
                                                    uint64_t length);
/*
 * Finds where a sequence can be cut: at @length, or in a cache with states at the last checkpoint
 * that is not behind it; at 0 if there is none. -ENOTSUP: the sequence keeps nothing there.
 */
int fa_checkpoint_cut_at(const struct fa_pool_sequence *sequence, uint64_t length,
                         struct fa_error *error, uint64_t *ret_length);
