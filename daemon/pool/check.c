/*
 * Opening a state: everything is looked at before it is believed, and what the running pool
 * knows besides is derived from it.
 *
 * A writer that was killed leaves nothing inconsistent, so what is dropped here was damaged
 * in another way. Whatever bytes the tables hold, nothing outside of them is touched, and
 * nothing goes round for ever.
 */
#include "daemon/pool/private.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

struct check {
	struct fa_pool *pool;
	fa_pool_chunk_present_fn *has; /* NULL: all chunks */
	void *userdata;
	struct fa_pool_report *report;
	struct fa_error *error;
	uint8_t *cells_used; /* [high_cells] */
	uint32_t *numbers;   /* by page index: its number in sequences, plus one; sparse */
	uint64_t numbers_bytes;
	uint32_t *slots, *cells; /* of the sequence that is looked at */
	uint32_t slots_size, cells_size;
};

static void deinit(struct check *check)
{
	free(check->cells_used);
	free(check->slots);
	free(check->cells);
	if (check->numbers)
		munmap(check->numbers, check->numbers_bytes);
}

static void check_tenants(struct check *check)
{
	struct fa_pool *pool = check->pool;

	for (uint32_t i = 0; i < pool->header->high_tenants; i++) {
		struct fa_state_tenant *record = &pool->tenant_records[i];

		if (record->state == FA_STATE_FREE)
			continue;
		if (record->state != FA_STATE_USED || record->tag % FA_STATE_TENANTS != i ||
		    record->tag < FA_STATE_TENANTS ||
		    !memchr(record->cgroup, '\0', sizeof(record->cgroup))) {
			fa_pool_report_add(check->report, "tenant %" PRIu32 " is damaged: dropped",
			                   i);
			record->state = FA_STATE_FREE;
			continue;
		}
		pool->n_tenants++;
	}
}

/* A name that is in use must have an end and be the only one. */
static const char *cache_fault(const struct fa_pool *pool, uint32_t index)
{
	const struct fa_state_cache *record = &pool->cache_records[index];

	if (record->state != FA_STATE_USED)
		return "its state is unknown";
	if (!record->generation)
		return "it has no generation";
	if (!fa_tenant_known(pool, record->tenant))
		return "its tenant is unknown";
	if (!memchr(record->name, '\0', sizeof(record->name)))
		return "its name has no end";
	if (record->v_in_k > 1)
		return "its geometry is damaged";
	if (record->token_scales > 1)
		return "its scales are damaged";
	if (record->store && !record->token_scales &&
	    ((uint64_t)record->layers * record->kv_heads > FA_STATE_SCALES ||
	     !fa_pool_cache_scales_good(pool->scale_records[index].k,
	                                (size_t)record->layers * record->kv_heads) ||
	     !fa_pool_cache_scales_good(pool->scale_records[index].v,
	                                (size_t)record->layers * record->kv_heads)))
		return "its scales are damaged";
	for (uint32_t i = 0; record->name[0] && i < index; i++)
		if (pool->caches[i] && !strcmp(pool->cache_records[i].name, record->name))
			return "another has its name";
	return NULL;
}

static int check_caches(struct check *check)
{
	struct fa_pool *pool = check->pool;

	for (uint32_t i = 0; i < pool->header->max_caches; i++) {
		struct fa_state_cache *record = &pool->cache_records[i];
		struct fa_error reason;
		const char *fault;
		int r;

		if (record->state == FA_STATE_FREE)
			continue;
		if (record->state == FA_STATE_REMOVED) {
			record->state = FA_STATE_FREE;
			continue;
		}
		fault = cache_fault(pool, i);
		if (!fault) {
			r = fa_pool_cache_load(pool, i, &reason);
			if (r == -ENOMEM)
				return fa_fail(check->error, r, "there is no memory for caches");
			if (r == 0)
				continue;
			fault = reason.text;
		}
		fa_pool_report_add(check->report, "cache %" PRIu32 " is dropped: %s", i, fault);
		record->state = FA_STATE_FREE;
	}
	return 0;
}

/* What is published in it would be the next owner's. */
static void empty_chunk(struct fa_pool *pool, uint32_t chunk)
{
	struct fa_state_page *records = &pool->page_records[chunk << pool->page_shift];

	for (uint32_t i = 0; i < 1u << pool->page_shift; i++)
		if (records[i].state)
			records[i].state = 0;
}

static void check_chunks(struct check *check)
{
	struct fa_pool *pool = check->pool;

	for (uint32_t i = 0; i < pool->header->max_chunks; i++) {
		struct fa_chunk *chunk = &pool->chunks[i];
		uint32_t *owner = &pool->chunk_records[i].owner;
		struct fa_pool_cache *cache;

		fa_list_init(&chunk->link);
		if (*owner == FA_STATE_CHUNK_ABSENT)
			continue;
		if (check->has && !check->has(check->userdata, i)) {
			fa_pool_report_add(check->report,
			                   "chunk %" PRIu32
			                   " has no memory any more: what was in it "
			                   "is dropped",
			                   i);
			empty_chunk(pool, i);
			fa_state_store(owner, FA_STATE_CHUNK_ABSENT);
			continue;
		}
		pool->n_chunks++;
		if (*owner == FA_STATE_CHUNK_QUARANTINED)
			continue;
		if (*owner != FA_STATE_CHUNK_FREE &&
		    *owner - FA_STATE_CHUNK_CACHE >= pool->header->max_caches) {
			fa_pool_report_add(check->report,
			                   "chunk %" PRIu32 " belongs to nobody known: freed", i);
			*owner = FA_STATE_CHUNK_FREE;
		}
		if (*owner == FA_STATE_CHUNK_FREE) {
			pool->n_free_chunks++;
			continue;
		}
		cache = pool->caches[*owner - FA_STATE_CHUNK_CACHE];
		if (!cache) {
			/* Its cache was on its way out, or was dropped and that was said. */
			empty_chunk(pool, i);
			fa_state_store(owner, FA_STATE_CHUNK_QUARANTINED);
			continue;
		}
		chunk->fresh_begin = cache->layout.pages_per_chunk;
		cache->n_chunks++;
	}
}

static int grow(uint32_t **array, uint32_t *size, uint32_t n)
{
	uint32_t *larger;

	if (n < *size)
		return 0;
	larger = reallocarray(*array, n * 2 + 16, sizeof(**array));
	if (!larger)
		return -ENOMEM;
	*array = larger;
	*size = n * 2 + 16;
	return 0;
}

/* Whether @slot is that of a page of @cache; its index. */
static bool find_page(const struct fa_pool *pool, const struct fa_pool_cache *cache, uint32_t slot,
                      uint32_t *ret_index)
{
	uint32_t chunk = slot >> pool->slot_shift;
	uint32_t place = slot & ((1u << pool->slot_shift) - 1);

	if (chunk >= pool->header->max_chunks ||
	    pool->chunk_records[chunk].owner != FA_STATE_CHUNK_CACHE + cache->index ||
	    place % cache->layout.page_slots ||
	    place / cache->layout.page_slots >= cache->layout.pages_per_chunk)
		return false;
	*ret_index = fa_page_index(pool, cache, slot);
	return true;
}

static const char *sequence_fault(const struct fa_pool *pool, uint32_t index)
{
	const struct fa_state_sequence *record = &pool->sequence_records[index];
	const struct fa_state_commit *body;
	const struct fa_pool_cache *cache;

	if (record->state == FA_STATE_SUSPECT)
		return "a kernel of its last step went wrong";
	if (record->state != FA_STATE_USED)
		return "its state is unknown";
	if (!record->generation)
		return "it has no generation";
	if (!fa_tenant_known(pool, record->tenant))
		return "its tenant is unknown";
	if (record->current > 1)
		return "neither of its commits counts";
	if (record->cache >= pool->header->max_caches || !pool->caches[record->cache])
		return "its cache is unknown";
	if (!memchr(record->name, '\0', sizeof(record->name)))
		return "its name has no end";
	if (record->name[0] && fa_name_index_find(pool, record->name))
		return "another has its name";
	cache = pool->caches[record->cache];
	body = &record->commits[record->current];
	if (body->length > FA_POOL_SEQUENCE_TOKENS_MAX || body->first > body->length ||
	    body->first % cache->layout.page_tokens)
		return "its length is damaged";
	return NULL;
}

/*
 * Reads the list into check->slots and check->cells, and finds out whether it can be: its
 * cells are no other's, its pages are the cache's and not at another place elsewhere.
 */
static int read_list(struct check *check, uint32_t index, uint32_t *ret_pages, uint32_t *ret_cells,
                     const char **ret_fault)
{
	struct fa_pool *pool = check->pool;
	const struct fa_state_sequence *record = &pool->sequence_records[index];
	const struct fa_state_commit *body = &record->commits[record->current];
	const struct fa_pool_cache *cache = pool->caches[record->cache];
	uint32_t first = (uint32_t)(body->first / cache->layout.page_tokens);
	uint32_t end = fa_pages_of(cache, body->length), next = body->head;

	*ret_fault = NULL;
	*ret_pages = *ret_cells = 0;
	for (uint32_t number = first; number < end; number++) {
		uint32_t page;

		if (!*ret_cells || number % FA_STATE_CELL_PAGES == 0) {
			if (!next || next > pool->header->high_cells ||
			    check->cells_used[next - 1]) {
				*ret_fault = "its list of pages is broken";
				break;
			}
			if (grow(&check->cells, &check->cells_size, *ret_cells) < 0)
				return -ENOMEM;
			check->cells_used[next - 1] = 1;
			check->cells[(*ret_cells)++] = next - 1;
			next = pool->cells[next - 1].next;
		}
		if (grow(&check->slots, &check->slots_size, *ret_pages) < 0)
			return -ENOMEM;
		check->slots[*ret_pages] = pool->cells[check->cells[*ret_cells - 1]]
		                                   .slots[number % FA_STATE_CELL_PAGES];
		if (!find_page(pool, cache, check->slots[(*ret_pages)++], &page)) {
			*ret_fault = "a page of it is not its cache's";
			break;
		}
		if (check->numbers[page] && check->numbers[page] != number + 1) {
			*ret_fault = "a page of it is at another place too";
			break;
		}
		check->numbers[page] = number + 1;
	}
	if (!*ret_fault)
		return 0;
	for (uint32_t i = 0; i < *ret_pages; i++) {
		uint32_t page;

		if (find_page(pool, cache, check->slots[i], &page) && !pool->refs[page])
			check->numbers[page] = 0;
	}
	while (*ret_cells)
		check->cells_used[check->cells[--*ret_cells]] = 0;
	return 0;
}

static int load_sequence(struct check *check, uint32_t index, uint32_t n_pages, uint32_t n_cells)
{
	struct fa_pool *pool = check->pool;
	struct fa_state_sequence *record = &pool->sequence_records[index];
	const struct fa_state_commit *body = &record->commits[record->current];
	struct fa_pool_cache *cache = pool->caches[record->cache];
	uint32_t first = (uint32_t)(body->first / cache->layout.page_tokens);
	struct fa_pool_sequence *sequence = fa_pool_sequence_alloc(pool, cache, index);
	int r;

	if (!sequence)
		return -ENOMEM;
	pool->sequences[index] = sequence;
	sequence->length = sequence->planned = body->length;
	sequence->first = body->first;
	r = fa_page_list_prepare(sequence, first + n_pages, 0);
	if (r < 0)
		return r;
	sequence->n_pages = n_pages;
	sequence->n_cells = n_cells;
	if (n_pages) {
		memcpy(sequence->pages, check->slots, n_pages * sizeof(*check->slots));
		memcpy(sequence->cells, check->cells, n_cells * sizeof(*check->cells));
	}
	for (uint32_t i = 0; i < n_pages; i++) {
		uint32_t page = fa_page_index(pool, cache, check->slots[i]);

		/* The first that has it is taken to pay. */
		if (!pool->refs[page]++)
			pool->pages[page].tenant = record->tenant;
		/* A step may have been appending to it. */
		if ((first + i + 1) * (uint64_t)cache->layout.page_tokens > body->length)
			pool->pages[page].flags |= FA_PAGE_SUSPECT;
	}
	if (record->name[0]) {
		r = fa_name_index_prepare(pool);
		if (r < 0)
			return r;
		fa_name_index_add(pool, sequence);
	}
	fa_pool_sequence_link(pool, sequence);
	pool->n_sequences++;
	cache->n_sequences++;
	fa_tenant_account(pool, record->tenant)->n_sequences++;
	fa_tenant_account(pool, record->tenant)->n_cells += n_cells;
	return 0;
}

static int check_sequences(struct check *check)
{
	struct fa_pool *pool = check->pool;

	for (uint32_t i = 0; i < pool->header->high_sequences; i++) {
		struct fa_state_sequence *record = &pool->sequence_records[i];
		const char *fault;
		uint32_t n_pages, n_cells;
		int r;

		if (record->state == FA_STATE_FREE)
			continue;
		fault = sequence_fault(pool, i);
		if (!fault) {
			r = read_list(check, i, &n_pages, &n_cells, &fault);
			if (r < 0)
				return r;
		}
		if (!fault) {
			r = load_sequence(check, i, n_pages, n_cells);
			if (r < 0)
				return r;
			continue;
		}
		/* What went with its cache needs no word of its own. */
		if (record->cache >= pool->header->max_caches || pool->caches[record->cache] ||
		    record->state != FA_STATE_USED)
			fa_pool_report_add(check->report, "sequence %" PRIu32 " is dropped: %s", i,
			                   fault);
		record->state = FA_STATE_FREE;
	}
	/* From the end, so that low indices are used first. */
	for (uint32_t i = pool->header->high_sequences; i-- > 0;)
		if (!pool->sequences[i] && pool->sequence_records[i].generation < UINT32_MAX) {
			pool->free_sequences[i] = pool->free_sequence;
			pool->free_sequence = i + 1;
		}
	for (uint32_t i = pool->header->high_cells; i-- > 0;)
		if (!check->cells_used[i])
			fa_page_list_free_cell(pool, i);
	return 0;
}

static void check_published(struct check *check, struct fa_pool_cache *cache, uint32_t index)
{
	struct fa_pool *pool = check->pool;
	struct fa_state_page *record = &pool->page_records[index];
	const char *fault = NULL;

	if (!record->state)
		return;
	if (record->state != FA_STATE_PAGE_PUBLISHED)
		fault = "its state is unknown";
	else if (!fa_tenant_known(pool, record->tenant))
		fault = "its publisher is unknown";
	else if (!fa_prefix_index_add(pool, index))
		fault = "another has its content";
	if (fault) {
		fa_pool_report_add(check->report,
		                   "page %" PRIu32 " of cache %" PRIu32 " is published no more: %s",
		                   fa_page_slot(pool, cache, index), cache->index, fault);
		record->state = 0;
		return;
	}
	/* It is full, so nothing was appending to it, though a sequence may have a part of it. */
	pool->pages[index].flags &= ~FA_PAGE_SUSPECT;
	pool->pages[index].flags |= FA_PAGE_PUBLISHED;
	pool->pages[index].tenant = record->tenant;
}

/* Counts pages, and finds those that are idle or free. */
static int check_pages(struct check *check)
{
	struct fa_pool *pool = check->pool;
	uint64_t n_pages = 0;

	for (uint32_t i = 0; i < pool->header->max_chunks; i++)
		n_pages += pool->chunks[i].fresh_begin;
	if (fa_prefix_index_prepare(pool, n_pages) < 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < pool->header->max_chunks; i++) {
		uint32_t owner = pool->chunk_records[i].owner, first = i << pool->page_shift;
		struct fa_pool_cache *cache;

		if (owner < FA_STATE_CHUNK_CACHE || owner == FA_STATE_CHUNK_QUARANTINED)
			continue;
		cache = pool->caches[owner - FA_STATE_CHUNK_CACHE];
		for (uint32_t j = 0; j < pool->chunks[i].fresh_begin; j++) {
			check_published(check, cache, first + j);
			fa_page_load(pool, cache, first + j);
		}
	}
	return 0;
}

/* Nobody holds tenants now; those that own nothing and pay for nothing are gone. */
static void settle_tenants(struct fa_pool *pool)
{
	for (uint32_t i = 0; i < pool->header->high_tenants; i++)
		if (pool->tenant_records[i].state == FA_STATE_USED)
			fa_tenant_try_free(pool, pool->tenant_records[i].tag);
}

static int init(struct check *check)
{
	const struct fa_state_header *header = check->pool->header;
	void *numbers;

	check->cells_used = calloc((size_t)header->high_cells + 1, 1);
	check->numbers_bytes = ((uint64_t)header->max_chunks << header->page_shift) *
	                       sizeof(*check->numbers);
	numbers = mmap(NULL, check->numbers_bytes, PROT_READ | PROT_WRITE,
	               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (numbers == MAP_FAILED || !check->cells_used)
		return -ENOMEM;
	check->numbers = numbers;
	return 0;
}

int fa_pool_recover(struct fa_pool *pool, fa_pool_chunk_present_fn *has, void *userdata,
                    struct fa_pool_report *report, struct fa_error *error)
{
	_fa_cleanup_(deinit) struct check check = {
		.pool = pool, .has = has, .userdata = userdata, .report = report, .error = error
	};
	int r;

	/* Until the caller says otherwise the dead daemon's device may still be writing. */
	pool->quarantine = true;
	r = init(&check);
	if (r < 0)
		return fa_fail(error, r, "there is no memory to check the pool");
	check_tenants(&check);
	r = check_caches(&check);
	if (r < 0)
		return r;
	check_chunks(&check);
	r = check_sequences(&check);
	if (r >= 0)
		r = check_pages(&check);
	if (r < 0)
		return fa_fail(error, r, "there is no memory to check the pool");
	settle_tenants(pool);
	return 0;
}
