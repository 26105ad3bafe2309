/* Plans a step: checks and counts everything, then reserves pages, which cannot fail. */
#include "common/cleanup.h"
#include "daemon/pool/cache_private.h"
#include "daemon/pool/checkpoint.h"
#include "daemon/pool/page.h"
#include "daemon/pool/page_list.h"
#include "daemon/pool/reclaim.h"
#include "daemon/pool/sequence.h"
#include "daemon/pool/sequence_private.h"
#include "daemon/pool/step_private.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct plan {
	struct fa_pool *pool;
	const struct fa_actor *actor;
	const struct fa_pool_step_item *items;
	uint32_t n_items;
	uint64_t serial;
	struct fa_pool_cache *caches; /* linked by next_planned */
	struct fa_tenant_account *tenants;
	uint32_t n_caches;
	uint64_t n_cells, n_pages, n_copies, n_entries; /* n_entries: of tables */
	uint64_t n_checkpoint_pages;
	struct fa_pool_step_part *parts; /* [n_items] */
};

static uint64_t before_of(const struct fa_pool_step_part *part)
{
	return part->after - part->n_tokens;
}

static bool can_append_in_place(const struct fa_pool *pool, const struct fa_pool_sequence *sequence,
                                uint32_t slot)
{
	uint32_t index = fa_page_index(pool, sequence->cache, slot);
	const struct fa_page *page = &pool->pages[index];

	return pool->refs[index] == 1 && page->tenant == sequence->record->tenant &&
	       !(page->flags & FA_PAGE_PUBLISHED) &&
	       !(pool->quarantine && (page->flags & FA_PAGE_SUSPECT));
}

/* True if steps in flight may read truncated tokens of the page, which an append would
 * overwrite. */
static bool has_reader(const struct fa_pool_sequence *sequence, uint32_t slot)
{
	return sequence->truncated && slot == sequence->truncated_slot && sequence->n_in_flight &&
	       fa_container_of(sequence->in_flight.next, struct fa_pool_step_part, link)->serial <=
	               sequence->truncated_serial;
}

static int check_busy(const struct plan *plan, uint32_t i, const struct fa_pool_sequence *sequence,
                      struct fa_error *error)
{
	if (sequence->n_appending && sequence->appender != plan->actor->owner)
		return fa_fail(error, -EBUSY,
		               "item %" PRIu32
		               " of the step: another session is appending to the sequence",
		               i);
	if (sequence->n_cancelled)
		return fa_fail(error, -EBUSY,
		               "item %" PRIu32 " of the step: a step of the sequence was aborted; "
		               "end those behind it first",
		               i);
	if (sequence->keep_pending)
		return fa_fail(error, -EBUSY,
		               "item %" PRIu32 " of the step: a step keeps some of its tokens of "
		               "the sequence; commit it first",
		               i);
	return 0;
}

static void need(struct plan *plan, const struct fa_pool_sequence *sequence, uint64_t n_pages,
                 uint64_t n_cells)
{
	struct fa_pool_cache *cache = sequence->cache;
	struct fa_tenant_account *account = fa_tenant_account(plan->pool, sequence->record->tenant);

	if (!cache->n_items++) {
		cache->next_planned = plan->caches;
		plan->caches = cache;
		plan->n_caches++;
	}
	if (!n_pages)
		return;
	if (!account->need_bytes) {
		account->next_planned = plan->tenants;
		plan->tenants = account;
	}
	cache->need_pages += n_pages;
	account->need_bytes += n_pages * cache->layout.page_bytes;
	account->need_cells += n_cells;
}

static int check_checkpoint(struct plan *plan, uint32_t i, struct fa_pool_step_part *part,
                            struct fa_error *error)
{
	const struct fa_pool_cache *cache = part->sequence->cache;

	if (!plan->items[i].checkpoint)
		return 0;
	if (!cache->checkpoint_pages)
		return fa_fail(error, -EINVAL,
		               "item %" PRIu32 " of the step is to write a checkpoint; expected "
		               "none, as the cache has no states",
		               i);
	if (!part->after)
		return fa_fail(error, -EINVAL,
		               "item %" PRIu32 " of the step is to write a checkpoint; expected "
		               "one after at least one token",
		               i);
	part->checkpoint = fa_checkpoint_new(cache, part->after);
	if (!part->checkpoint)
		return fa_fail(error, -ENOMEM, "there is no memory for a checkpoint");
	plan->n_checkpoint_pages += cache->checkpoint_pages;
	return 0;
}

static int check_item(struct plan *plan, uint32_t i, struct fa_error *error)
{
	const struct fa_pool_step_item *item = &plan->items[i];
	struct fa_pool_step_part *part = &plan->parts[i];
	struct fa_pool_sequence *sequence = NULL;
	struct fa_error reason;
	uint32_t end, first, n_pages, n_cells, n_deferred;
	uint64_t before;
	int r;

	r = fa_pool_sequence_get(plan->pool, plan->actor, item->sequence,
	                         item->n_tokens || item->checkpoint ? FA_RIGHT_APPEND
	                                                            : FA_RIGHT_READ,
	                         &reason, &sequence);
	if (r < 0)
		return fa_fail(error, r, "item %" PRIu32 " of the step: %s", i, reason.text);
	if (sequence->plan_serial == plan->serial)
		return fa_fail(error, -EINVAL,
		               "item %" PRIu32 " of the step: the sequence is in it already", i);
	sequence->plan_serial = plan->serial;
	part->appends = item->n_tokens || item->checkpoint ||
	                (sequence->n_appending && sequence->appender == plan->actor->owner);
	if (part->appends) {
		r = check_busy(plan, i, sequence, error);
		if (r < 0)
			return r;
	}
	before = part->appends ? sequence->planned : sequence->length;
	if (item->n_tokens > FA_POOL_SEQUENCE_TOKENS_MAX - before)
		return fa_fail(error, -EINVAL,
		               "item %" PRIu32 " of the step: %" PRIu64 " and %" PRIu32
		               " new tokens; expected at most %" PRIu64,
		               i, before, item->n_tokens, FA_POOL_SEQUENCE_TOKENS_MAX);

	part->sequence = sequence;
	part->serial = plan->serial;
	part->n_tokens = item->n_tokens;
	part->after = part->length = before + item->n_tokens;
	first = fa_pool_sequence_first_page(sequence);
	end = fa_pages_of(sequence->cache, part->after);
	n_pages = end - fa_pages_of(sequence->cache, before);
	if (item->n_tokens && before % sequence->cache->layout.page_tokens) {
		uint32_t slot =
			sequence->pages[before / sequence->cache->layout.page_tokens - first];

		part->copies = !can_append_in_place(plan->pool, sequence, slot) ||
		               has_reader(sequence, slot);
	}
	r = check_checkpoint(plan, i, part, error);
	if (r < 0)
		return r;
	/* Each commit of a checkpoint may replace one. */
	n_deferred = (sequence->n_planned_checkpoints + (part->checkpoint != NULL)) *
	             sequence->cache->checkpoint_pages;
	r = fa_page_list_prepare(sequence, end, n_deferred);
	if (r < 0)
		return fa_fail(error, r,
		               "item %" PRIu32 " of the step: there is no memory for the list of "
		               "%" PRIu32 " pages",
		               i, end);
	n_cells = fa_page_list_missing(sequence, end);
	if (part->checkpoint)
		n_cells += fa_checkpoint_cells(sequence->cache);
	plan->n_cells += n_cells;
	plan->n_pages += n_pages;
	plan->n_copies += part->copies;
	plan->n_entries += end > first ? end - first : 0;
	if (part->checkpoint)
		n_pages += sequence->cache->checkpoint_pages;
	need(plan, sequence, n_pages + part->copies, n_cells);
	return 0;
}

static int check_quotas(const struct plan *plan, struct fa_error *error)
{
	const struct fa_pool *pool = plan->pool;
	int r;

	for (const struct fa_pool_cache *cache = plan->caches; cache; cache = cache->next_planned)
		if (cache->record->max_pages && cache->need_pages &&
		    cache->n_used + cache->need_pages > cache->record->max_pages)
			return fa_fail(error, -EDQUOT,
			               "the step needs %" PRIu64 " pages more of a cache that uses "
			               "%" PRIu64 " of at most %" PRIu64,
			               cache->need_pages, cache->n_used, cache->record->max_pages);
	for (const struct fa_tenant_account *account = plan->tenants; account;
	     account = account->next_planned) {
		const struct fa_pool_more more = { .bytes = account->need_bytes };

		r = fa_tenant_check_quota(pool, fa_tenant_tag(pool, account), &more, error);
		if (r < 0)
			return r;
	}
	r = fa_page_list_check_cells(pool, plan->n_cells, error);
	for (const struct fa_tenant_account *account = plan->tenants; account && r == 0;
	     account = account->next_planned)
		r = fa_tenant_check_cells(pool, fa_tenant_tag(pool, account), account->need_cells,
		                          error);
	return r;
}

static int check(struct plan *plan, uint64_t number, struct fa_error *error)
{
	int r;

	if (!number)
		return fa_fail(error, -EINVAL, "the step's number is 0; expected a larger one");
	if (!plan->n_items || plan->n_items > FA_POOL_STEP_SEQUENCES_MAX)
		return fa_fail(error, -EINVAL,
		               "the step has %" PRIu32 " sequences; expected 1 to %u",
		               plan->n_items, FA_POOL_STEP_SEQUENCES_MAX);
	plan->parts = calloc(plan->n_items, sizeof(*plan->parts));
	if (!plan->parts)
		return fa_fail(error, -ENOMEM, "there is no memory for the step");
	for (uint32_t i = 0; i < plan->n_items; i++) {
		r = check_item(plan, i, error);
		if (r < 0)
			return r;
	}
	if (plan->n_entries > FA_POOL_STEP_PAGES_MAX)
		return fa_fail(error, -EINVAL,
		               "the sequences of the step have %" PRIu64
		               " pages, each with what it shares; expected at most %u",
		               plan->n_entries, FA_POOL_STEP_PAGES_MAX);
	return check_quotas(plan, error);
}

static struct fa_pool_step_private *alloc_step(const struct plan *plan, uint64_t number)
{
	struct fa_pool_step_private *private = fa_new(struct fa_pool_step_private);
	uint64_t n = 5ull * plan->n_items + plan->n_caches + plan->n_entries + plan->n_pages +
	             plan->n_checkpoint_pages + 4 * plan->n_copies;

	if (!private)
		return NULL;
	private->serial = plan->serial;
	private->step.number = number;
	private->step.n_entries = plan->n_items;
	private->step.n_groups = plan->n_caches;
	private->step.entries = calloc(plan->n_items, sizeof(*private->step.entries));
	private->step.groups = calloc(plan->n_caches, sizeof(*private->step.groups));
	private->parts = calloc(plan->n_items, sizeof(*private->parts));
	private->arrays = malloc(n * sizeof(*private->arrays));
	private->ended = true;
	if (!private->step.entries || !private->step.groups || !private->parts ||
	    !private->arrays) {
		fa_pool_step_free(&private->step);
		return NULL;
	}
	return private;
}

struct arrays {
	uint32_t *cu_new, *lengths, *lengths_before, *first, *table_start;
	uint32_t *table, *clears, *from, *to, *tokens;
};

static void copy_page(struct fa_pool *pool, struct fa_pool_step_part *part, struct arrays *next)
{
	struct fa_pool_sequence *sequence = part->sequence;
	struct fa_pool_cache *cache = sequence->cache;
	uint32_t number = (uint32_t)(before_of(part) / cache->layout.page_tokens), index;
	uint32_t *slot = &sequence->pages[number - fa_pool_sequence_first_page(sequence)];
	const struct fa_page *old = &pool->pages[fa_page_index(pool, cache, *slot)];
	bool clear;

	index = fa_page_take(pool, cache, sequence->record->tenant, &clear);
	/* The page's tokens may be another tenant's. */
	if (old->tenant != sequence->record->tenant || (old->flags & FA_PAGE_TAINTED))
		pool->pages[index].flags |= FA_PAGE_TAINTED;
	sequence->copied = true;
	sequence->copied_number = number;
	sequence->copied_slot = *slot;
	*next->from++ = *slot;
	*slot = fa_page_slot(pool, cache, index);
	*next->to++ = *slot;
	*next->tokens++ = (uint32_t)(before_of(part) % cache->layout.page_tokens);
	if (clear)
		*next->clears++ = *slot;
}

static void append_pages(struct fa_pool *pool, struct fa_pool_step_part *part, struct arrays *next)
{
	struct fa_pool_sequence *sequence = part->sequence;
	struct fa_pool_cache *cache = sequence->cache;
	uint32_t end = fa_pages_of(cache, part->after) - fa_pool_sequence_first_page(sequence);

	while (sequence->n_pages < end) {
		bool clear;
		uint32_t index = fa_page_take(pool, cache, sequence->record->tenant, &clear);
		uint32_t slot = fa_page_slot(pool, cache, index);

		fa_page_list_append(pool, sequence, &slot, 1);
		if (clear)
			*next->clears++ = slot;
	}
}

static void put_in_flight(const struct plan *plan, struct fa_pool_step_part *part)
{
	struct fa_pool_sequence *sequence = part->sequence;

	fa_list_append(&sequence->in_flight, &part->link);
	sequence->n_in_flight++;
	if (part->appends) {
		sequence->n_appending++;
		sequence->appender = plan->actor->owner;
		sequence->planned = part->after;
	}
	sequence->n_planned_checkpoints += part->checkpoint != NULL;
	fa_pool_sequence_touch(plan->pool, sequence);
}

static uint32_t *carve(uint32_t **at, uint64_t n)
{
	uint32_t *piece = *at;

	*at += n;
	return piece;
}

static void fill_entry(const struct fa_pool_step_part *part, struct fa_pool_step_entry *entry,
                       uint32_t i, const struct arrays *arrays, uint32_t *table_entries)
{
	const struct fa_pool_sequence *sequence = part->sequence;
	uint32_t first_page = fa_pool_sequence_first_page(sequence);
	uint32_t end = fa_pages_of(sequence->cache, part->after);
	uint32_t n = end > first_page ? end - first_page : 0;
	uint32_t *table = arrays->table + *table_entries;

	entry->sequence = fa_pool_sequence_id(sequence);
	entry->before = before_of(part);
	entry->after = part->after;
	entry->first = sequence->first;
	entry->ordered = part->appends;
	entry->copies = part->copies;
	entry->checkpoint = part->checkpoint ? part->checkpoint->slots : NULL;
	entry->n_checkpoint_pages = part->checkpoint ? sequence->cache->checkpoint_pages : 0;
	arrays->cu_new[i + 1] = arrays->cu_new[i] + part->n_tokens;
	arrays->lengths[i] = (uint32_t)entry->after;
	arrays->lengths_before[i] = (uint32_t)entry->before;
	arrays->first[i] = (uint32_t)entry->first;
	arrays->table_start[i] = *table_entries - first_page;
	if (n)
		memcpy(table, sequence->pages, n * sizeof(*table));
	/* Readers get the durable original, not the copy being written. */
	if (!part->appends && sequence->copied && sequence->copied_number < end)
		table[sequence->copied_number - first_page] = sequence->copied_slot;
	*table_entries += n;
}

static void sort(const struct plan *plan, struct fa_pool_step_private *private)
{
	struct fa_pool_step *step = &private->step;
	uint32_t n = 0, g = 0;

	for (struct fa_pool_cache *cache = plan->caches; cache; cache = cache->next_planned) {
		step->groups[g++] = (struct fa_pool_step_group){
			.cache = fa_pool_cache_id(cache),
			.layout = cache->layout,
			.begin = n,
			.end = n + cache->n_items,
		};
		n += cache->n_items;
		/* From now on n_items is the index of the cache's next item. */
		cache->n_items = n - cache->n_items;
	}
	for (uint32_t i = 0; i < plan->n_items; i++) {
		uint32_t place = plan->parts[i].sequence->cache->n_items++;

		private->parts[place] = plan->parts[i];
		plan->parts[i].checkpoint = NULL; /* the step's from here on */
		step->entries[place].item = i;
	}
}

static void apply(const struct plan *plan, struct fa_pool_step_private *private)
{
	struct fa_pool *pool = plan->pool;
	struct fa_pool_step *step = &private->step;
	uint32_t *at = private->arrays;
	struct arrays next = {
		.table = carve(&at, plan->n_entries),
		.clears = carve(&at, plan->n_pages + plan->n_copies + plan->n_checkpoint_pages),
		.from = carve(&at, plan->n_copies),
		.to = carve(&at, plan->n_copies),
		.tokens = carve(&at, plan->n_copies),
	};

	for (uint32_t g = 0; g < step->n_groups; g++) {
		struct fa_pool_step_group *group = &step->groups[g];
		uint32_t n = group->end - group->begin;
		struct arrays arrays = next;

		arrays.cu_new = carve(&at, n + 1);
		arrays.lengths = carve(&at, n);
		arrays.lengths_before = carve(&at, n);
		arrays.first = carve(&at, n);
		arrays.table_start = carve(&at, n);
		arrays.cu_new[0] = 0;
		for (uint32_t i = 0; i < n; i++) {
			struct fa_pool_step_part *part = &private->parts[group->begin + i];

			if (part->copies)
				copy_page(pool, part, &next);
			append_pages(pool, part, &next);
			if (part->checkpoint)
				fa_checkpoint_take(pool, part->sequence, part->checkpoint,
				                   &next.clears);
			put_in_flight(plan, part);
			fill_entry(part, &step->entries[group->begin + i], i, &arrays,
			           &group->table_entries);
		}
		next.table += group->table_entries;
		group->cu_new = arrays.cu_new;
		group->lengths = arrays.lengths;
		group->lengths_before = arrays.lengths_before;
		group->first = arrays.first;
		group->table_start = arrays.table_start;
		group->table = arrays.table;
		group->clears = arrays.clears;
		group->n_clears = (uint32_t)(next.clears - arrays.clears);
		group->copies_from = arrays.from;
		group->copies_to = arrays.to;
		group->copies_tokens = arrays.tokens;
		group->n_copies = (uint32_t)(next.from - arrays.from);
	}
}

static void plan_deinit(struct plan *plan)
{
	while (plan->caches) {
		struct fa_pool_cache *cache = plan->caches;

		plan->caches = cache->next_planned;
		cache->need_pages = 0;
		cache->n_items = 0;
		cache->next_planned = NULL;
	}
	while (plan->tenants) {
		struct fa_tenant_account *account = plan->tenants;

		plan->tenants = account->next_planned;
		account->need_bytes = account->need_cells = 0;
		account->next_planned = NULL;
	}
	for (uint32_t i = 0; plan->parts && i < plan->n_items; i++)
		fa_checkpoint_free(plan->parts[i].checkpoint);
	free(plan->parts);
}

int fa_pool_step_plan(struct fa_pool *pool, const struct fa_actor *actor,
                      const struct fa_pool_step_item *items, uint32_t n_items, uint64_t number,
                      uint64_t now_ns, struct fa_error *error, struct fa_pool_step **ret_step)
{
	_fa_cleanup_(plan_deinit) struct plan plan = {
		.pool = pool,
		.actor = actor,
		.items = items,
		.n_items = n_items,
		.serial = ++pool->serial,
	};
	struct fa_pool_step_private *private;
	int r;

	pool->now_ns = now_ns;
	r = check(&plan, number, error);
	if (r < 0)
		return r;
	private = alloc_step(&plan, number);
	if (!private)
		return fa_fail(error, -ENOMEM, "there is no memory for the step");
	r = fa_reclaim_pages(pool, plan.caches, error);
	if (r < 0) {
		fa_pool_step_free(&private->step);
		return r;
	}
	for (const struct fa_tenant_account *account = plan.tenants; account;
	     account = account->next_planned)
		fa_reclaim_quota(pool, fa_tenant_tag(pool, account), account->need_bytes);
	sort(&plan, private);
	apply(&plan, private);
	private->ended = false;
	pool->n_steps++;
	*ret_step = &private->step;
	return 0;
}
