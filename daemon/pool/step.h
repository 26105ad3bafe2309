/*
 * Steps: new tokens of several sequences, planned at once, then committed or aborted.
 * Loop thread only.
 *
 * Planning checks everything and reserves all pages, or changes nothing. What it gives is
 * what kernels take (kernels/paged.h), cache by cache. Before anything reads or writes the
 * pages of a step, its clears and copies are done, and after whatever steps before it wrote.
 *
 * Steps of one session may be planned on one another's planned lengths; they are committed in
 * the order in which they were planned. If one is aborted, those behind it that append to one
 * of its sequences can only be aborted. A session that appends to a sequence has it for
 * itself until its steps have ended; others are told -EBUSY. Reading (no new tokens) needs
 * the right to read, disturbs nobody, and holds the pages as they are durable.
 *
 * The caller ends a step when nothing on the device reads or writes its pages any more:
 * commits it if all of it was written, else aborts it. Of a sequence that was freed
 * meanwhile nothing is committed.
 */
#pragma once

#include "daemon/pool/cache_layout.h"
#include "daemon/pool/pool.h"

#define FA_POOL_STEP_SEQUENCES_MAX 4096u
#define FA_POOL_STEP_PAGES_MAX (1u << 22) /* in the tables: forks count what they share */

struct fa_pool_step_item {
	uint64_t sequence;
	uint32_t n_tokens; /* 0: it is only read */
};

struct fa_pool_step_entry {
	uint64_t sequence;
	uint32_t item;          /* its place in the caller's array */
	uint64_t before, after; /* lengths */
	uint64_t first;         /* tokens before it were dropped */
	bool stale;             /* it was freed: it was not committed */
	/* It was planned on what other steps are to write, or others may be on what it does:
	 * of those with the sequence that are so, it ends in its turn. */
	bool ordered;
	bool copies; /* one of the group's copies is of its page with the end of @before tokens */
};

/* The sequences of one cache, as struct fa_paged_step wants them. */
struct fa_pool_step_group {
	uint64_t cache;
	struct fa_cache_layout layout;
	uint32_t begin, end; /* entries; also the index into the arrays below */

	/* Of the group's sequences: [end - begin], cu_new one more, from 0. */
	const uint32_t *cu_new, *lengths, *lengths_before, *first, *table_start;
	const uint32_t *table; /* slots, [table_entries] */
	uint32_t table_entries;

	const uint32_t *clears; /* slots of pages to be filled with zeros */
	uint32_t n_clears;
	/* After that, the first tokens of pages, and nothing that lies behind them in the old
	 * page: that is not the sequence's. [n_copies]; no page is in both. */
	const uint32_t *copies_from, *copies_to, *copies_tokens;
	uint32_t n_copies;
};

struct fa_pool_step {
	uint64_t number;
	struct fa_pool_step_entry *entries; /* by cache, then as the caller had them */
	uint32_t n_entries;
	struct fa_pool_step_group *groups;
	uint32_t n_groups;
};

/*
 * @number, above 0, is what a sequence's info will say once the step is committed.
 *
 * -EINVAL no or too many items, a sequence twice, too many tokens or pages; -ENOENT, -ESTALE,
 * -EACCES of a sequence; -EBUSY another session is appending to it, or a step before was
 * aborted and those behind it have not ended; -EDQUOT; -ENOMEM the pool is exhausted.
 * All name the item.
 */
int fa_pool_step_plan(struct fa_pool *pool, const struct fa_actor *actor,
                      const struct fa_pool_step_item *items, uint32_t n_items, uint64_t number,
                      uint64_t now_ns, struct fa_error *error, struct fa_pool_step **ret_step);

/*
 * Keeps, of the new tokens of the sequence of @entry, only @positions (ascending, from 0):
 * one path of a tree. They move up: token ret_from[i] becomes token *ret_to + i, in order or
 * all at once, before the step is committed. *ret_n is 0 if nothing has to be moved. Once a
 * sequence and step; *ret_from is good until the step is freed.
 * -EINVAL; -EBUSY a later step is planned on what was to be there.
 */
int fa_pool_step_keep(struct fa_pool *pool, struct fa_pool_step *step, uint32_t entry,
                      const uint32_t *positions, uint32_t n_positions, struct fa_error *error,
                      const uint32_t **ret_from, uint32_t *ret_n, uint32_t *ret_to);

/*
 * Makes it durable, sequence by sequence, and ends it. -EBUSY a step before it has not
 * ended; -ECANCELED one before it was aborted: abort it too.
 */
int fa_pool_step_commit(struct fa_pool *pool, struct fa_pool_step *step, struct fa_error *error);

/* Its sequences are as if it had not been planned. */
void fa_pool_step_abort(struct fa_pool *pool, struct fa_pool_step *step);

/*
 * A kernel of the step went wrong: nobody knows what it wrote over. Its sequences are
 * dropped, now or, if the process dies before, by fa_pool_open(). Aborts the step. Returns
 * how many were dropped.
 */
uint32_t fa_pool_step_suspect(struct fa_pool *pool, struct fa_pool_step *step);

/* Of an ended step. NULL is fine. */
struct fa_pool_step *fa_pool_step_free(struct fa_pool_step *step);
