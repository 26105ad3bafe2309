/*
 * Steps: new tokens of several sequences, planned at once, then committed or aborted. Loop thread
 * only.
 *
 * Planning reserves all pages or changes nothing. Its result, grouped by cache, is what kernels
 * take (kernels/paged.h). The caller does a step's clears, then its copies, after all writes of
 * earlier steps and before anything else uses its pages. It ends a step once the device no longer
 * uses these: by commit if everything was written, else by abort.
 *
 * Steps of one session may build on one another's planned lengths; those that share a sequence
 * commit in the order of planning. After an abort, later steps that append to its sequences can
 * only be aborted. While a session appends, others get -EBUSY. Reading (no new tokens) is always
 * possible and keeps durable pages.
 */
#pragma once

#include "daemon/pool/cache_layout.h"
#include "daemon/pool/pool.h"

#define FA_POOL_STEP_SEQUENCES_MAX 4096u
#define FA_POOL_STEP_PAGES_MAX (1u << 22) /* in all tables; shared ones count each time */

struct fa_pool_step_item {
	uint64_t sequence;
	uint32_t n_tokens; /* 0: read only, unless there is a checkpoint */
	bool checkpoint;   /* write one, of the states after all tokens */
};

struct fa_pool_step_entry {
	uint64_t sequence;
	uint32_t item;
	uint64_t before, after; /* the sequence's lengths */
	uint64_t first;         /* first token that is not dropped */
	bool stale;             /* the sequence was removed: it is not committed */
	/* The step appends; such steps end in the order of planning. */
	bool ordered;
	/* Pages of the checkpoint that the step writes, until it ends; NULL: none. */
	const uint32_t *checkpoint;
	uint32_t n_checkpoint_pages;
	bool copies; /* the page in which the length before ends is written as a copy */
};

/* The entries of one cache, in the form of struct fa_paged_step. */
struct fa_pool_step_group {
	uint64_t cache;
	struct fa_cache_layout layout;
	uint32_t begin, end; /* the group's entries */

	/* One element per entry, [end - begin]; cu_new has one more and starts with 0. */
	const uint32_t *cu_new, *lengths, *lengths_before, *first, *table_start;
	const uint32_t *table; /* slots, [table_entries] */
	uint32_t table_entries;

	const uint32_t *clears; /* to zero */
	uint32_t n_clears;
	/* Copies after the clears, [n_copies]: of each page only the first copies_tokens tokens. No
	 * page is in both from and to. */
	const uint32_t *copies_from, *copies_to, *copies_tokens;
	uint32_t n_copies;
};

struct fa_pool_step {
	uint64_t number;
	struct fa_pool_step_entry *entries; /* by cache, then as the items */
	uint32_t n_entries;
	struct fa_pool_step_group *groups;
	uint32_t n_groups;
};

/*
 * Plans a step. The commit stores @number, above 0, in the sequences. -EINVAL no or too many items,
 * a sequence twice, too many tokens or pages; -EBUSY another session is appending, an earlier step
 * was aborted and later ones have not ended, or one keeps some of its tokens; -EDQUOT; -ENOMEM the
 * pool is exhausted.
 */
int fa_pool_step_plan(struct fa_pool *pool, const struct fa_actor *actor,
                      const struct fa_pool_step_item *items, uint32_t n_items, uint64_t number,
                      uint64_t now_ns, struct fa_error *error, struct fa_pool_step **ret_step);

/*
 * Keeps only @positions (ascending, from 0) of the entry's new tokens: one path of a tree. Before
 * the commit the caller moves token ret_from[i] to token *ret_to + i, in order or all at once;
 * *ret_n may be 0. Once for each entry. *ret_from is valid until the step is freed. -EINVAL; -EBUSY
 * a later step builds on all new tokens; -ECANCELED an earlier one was aborted.
 */
int fa_pool_step_keep(struct fa_pool *pool, struct fa_pool_step *step, uint32_t entry,
                      const uint32_t *positions, uint32_t n_positions, struct fa_error *error,
                      const uint32_t **ret_from, uint32_t *ret_n, uint32_t *ret_to);

/* Makes the step durable, sequence by sequence, and ends it. -EBUSY an earlier step has not ended;
 * -ECANCELED an earlier one was aborted: abort this one, too. */
int fa_pool_step_commit(struct fa_pool *pool, struct fa_pool_step *step, struct fa_error *error);

void fa_pool_step_abort(struct fa_pool *pool, struct fa_pool_step *step);

/* Ends a step with a failed kernel, which may have overwritten anything: removes the sequences it
 * appended to, in the next process if need be. Returns their number. */
uint32_t fa_pool_step_suspect(struct fa_pool *pool, struct fa_pool_step *step);

/* The step must have ended, or be NULL. */
struct fa_pool_step *fa_pool_step_free(struct fa_pool_step *step);
