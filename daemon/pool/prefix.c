#include "daemon/pool/prefix.h"

#include "common/cleanup.h"
#include "daemon/pool/cache_private.h"
#include "daemon/pool/checkpoint.h"
#include "daemon/pool/hash.h"
#include "daemon/pool/page.h"
#include "daemon/pool/page_list.h"
#include "daemon/pool/prefix_index.h"
#include "daemon/pool/reclaim.h"
#include "daemon/pool/sequence.h"
#include "daemon/pool/sequence_private.h"
#include "daemon/pool/state_store.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static int check_key(const struct fa_prefix_key *key, struct fa_error *error)
{
	if (key->extra_bytes > FA_PREFIX_EXTRA_BYTES_MAX)
		return fa_fail(error, -EINVAL, "the extra key has %zu bytes; expected at most %u",
		               key->extra_bytes, FA_PREFIX_EXTRA_BYTES_MAX);
	return 0;
}

static int check_tokens(uint64_t n_tokens, struct fa_error *error)
{
	if (n_tokens > FA_POOL_SEQUENCE_TOKENS_MAX)
		return fa_fail(error, -EINVAL,
		               "%" PRIu64 " tokens are looked up; expected at most %" PRIu64,
		               n_tokens, FA_POOL_SEQUENCE_TOKENS_MAX);
	return 0;
}

static int hashes_init(const struct fa_pool *pool, const struct fa_actor *actor,
                       const struct fa_pool_cache *cache, const struct fa_prefix_key *key,
                       uint64_t n_tokens, struct fa_error *error,
                       struct fa_prefix_hashes *ret_hashes)
{
	struct fa_prefix_hashes hashes = {};
	size_t n;
	int r;

	r = check_key(key, error);
	if (r == 0)
		r = check_tokens(n_tokens, error);
	if (r < 0)
		return r;
	fa_pool_hash_prefix_begin(pool->header->secret, fa_pool_cache_id(cache),
	                          key->shared ? 0 : actor->tenant, key->extra, key->extra_bytes,
	                          hashes.begin);
	hashes.page_tokens = cache->layout.page_tokens;
	hashes.n = (uint32_t)(n_tokens / hashes.page_tokens);
	if (cache->checkpoint_pages)
		hashes.checkpoint_pages = cache->record->checkpoint_tokens / hashes.page_tokens;
	n = hashes.n;
	if (hashes.checkpoint_pages)
		n += hashes.n / hashes.checkpoint_pages;
	hashes.pages = malloc(n * sizeof(*hashes.pages) + 1);
	if (!hashes.pages)
		return fa_fail(error, -ENOMEM, "there is no memory for %" PRIu32 " hashes",
		               hashes.n);
	hashes.checkpoints = hashes.pages + hashes.n;
	*ret_hashes = hashes;
	return 0;
}

/* No prefix has such a hash: a page of tokens has 16 or more. */
static void checkpoint_hash(const uint8_t prefix[FA_STATE_HASH_BYTES], uint32_t place,
                            uint8_t ret_hash[FA_STATE_HASH_BYTES])
{
	const uint32_t words[] = { 0x74617473, place };

	memcpy(ret_hash, prefix, FA_STATE_HASH_BYTES);
	fa_pool_hash_prefix_next(words, 2, ret_hash);
}

int fa_prefix_hashes_init(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                          const struct fa_prefix_key *key, uint64_t n_tokens,
                          struct fa_error *error, struct fa_prefix_hashes *ret_hashes)
{
	struct fa_pool_sequence *sequence = NULL;
	int r;

	r = fa_pool_sequence_get(pool, actor, id, FA_RIGHT_APPEND, error, &sequence);
	return r ? r : hashes_init(pool, actor, sequence->cache, key, n_tokens, error, ret_hashes);
}

int fa_prefix_hashes_init_cache(const struct fa_pool *pool, const struct fa_actor *actor,
                                uint64_t id, const struct fa_prefix_key *key, uint64_t n_tokens,
                                struct fa_error *error, struct fa_prefix_hashes *ret_hashes)
{
	struct fa_pool_cache *cache = NULL;
	int r;

	r = fa_pool_cache_get(pool, actor, id, FA_RIGHT_APPEND, error, &cache);
	return r ? r : hashes_init(pool, actor, cache, key, n_tokens, error, ret_hashes);
}

void fa_prefix_hashes_compute(struct fa_prefix_hashes *hashes, const uint32_t *tokens)
{
	const uint32_t each = hashes->checkpoint_pages;
	uint8_t hash[FA_STATE_HASH_BYTES];

	memcpy(hash, hashes->begin, sizeof(hash));
	for (uint32_t i = 0; i < hashes->n; i++) {
		fa_pool_hash_prefix_next(tokens + (uint64_t)i * hashes->page_tokens,
		                         hashes->page_tokens, hash);
		memcpy(hashes->pages[i], hash, sizeof(hash));
		if (each && (i + 1) % each == 0)
			checkpoint_hash(hash, 0, hashes->checkpoints[i / each]);
	}
}

void fa_prefix_hashes_deinit(struct fa_prefix_hashes *hashes)
{
	free(hashes->pages);
	*hashes = (struct fa_prefix_hashes){};
}

static bool is_unpublished(const struct fa_pool *pool, const struct fa_pool_sequence *sequence,
                           uint32_t number)
{
	uint32_t slot = fa_pool_sequence_slot(sequence, number);

	return !(pool->pages[fa_page_index(pool, sequence->cache, slot)].flags & FA_PAGE_PUBLISHED);
}

static void publish_page(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index,
                         uint32_t tenant, const uint8_t hash[FA_STATE_HASH_BYTES])
{
	struct fa_state_page *record = &pool->page_records[index];

	memcpy(record->hash, hash, FA_STATE_HASH_BYTES);
	record->tenant = tenant;
	fa_state_store(&record->state, FA_STATE_PAGE_PUBLISHED);
	/* It is full, so no dead daemon was appending to it. */
	pool->pages[index].flags &= ~FA_PAGE_SUSPECT;
	pool->pages[index].flags |= FA_PAGE_PUBLISHED;
	(void)fa_prefix_index_add(pool, index);
	if (pool->pages[index].tenant != tenant) {
		/* It may have tokens of the previous payer. */
		pool->pages[index].flags |= FA_PAGE_TAINTED;
		fa_page_charge(pool, cache, index, tenant);
	}
}

/* ---- checkpoints */

/* Returns how many pages of a published checkpoint there are, from the first on. */
static uint32_t find_checkpoint(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                                const uint8_t prefix[FA_STATE_HASH_BYTES], uint32_t *indices)
{
	uint8_t hash[FA_STATE_HASH_BYTES];
	uint32_t i, at;

	for (i = 0; i < cache->checkpoint_pages; i++) {
		checkpoint_hash(prefix, i, hash);
		at = fa_prefix_index_find(pool, hash);
		if (!at)
			break;
		if (indices)
			indices[i] = at - 1;
	}
	return i;
}

/* Returns the pages of the longest prefix of @n_pages published ones that ends at a published
 * checkpoint; without states, @n_pages. @indices: of the checkpoint's pages, or NULL. */
static uint32_t end_at_checkpoint(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                                  const struct fa_prefix_hashes *hashes, uint32_t n_pages,
                                  uint32_t *indices)
{
	const uint32_t each = hashes->checkpoint_pages;

	if (!cache->checkpoint_pages)
		return n_pages;
	if (!each)
		return 0;
	for (n_pages -= n_pages % each; n_pages; n_pages -= each)
		/* Most prefixes have none, which costs no hash. */
		if (fa_prefix_index_find(pool, hashes->checkpoints[n_pages / each - 1]) &&
		    find_checkpoint(pool, cache, hashes->pages[n_pages - 1], indices) ==
		            cache->checkpoint_pages)
			break;
	return n_pages;
}

static void unpublish_page(struct fa_pool *pool, struct fa_pool_cache *cache, uint32_t index)
{
	if (!pool->refs[index]) {
		fa_page_evict(pool, cache, index);
		return;
	}
	fa_prefix_index_remove(pool, index);
	fa_state_store(&pool->page_records[index].state, 0);
	pool->pages[index].flags &= ~FA_PAGE_PUBLISHED;
}

/* Not all pages are published if the daemon died while it published them. */
static bool is_published(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                         const struct fa_pool_checkpoint *checkpoint)
{
	for (uint32_t i = 0; i < cache->checkpoint_pages; i++)
		if (!(pool->pages[fa_page_index(pool, cache, checkpoint->slots[i])].flags &
		      FA_PAGE_PUBLISHED))
			return false;
	return true;
}

/* True: it is kept, and no other of the same tokens is published. */
static bool is_publishable(const struct fa_pool *pool, const struct fa_pool_sequence *sequence,
                           const struct fa_pool_checkpoint *checkpoint,
                           const struct fa_prefix_hashes *hashes, uint32_t end)
{
	const struct fa_pool_cache *cache = sequence->cache;
	const uint64_t number = checkpoint->length / cache->layout.page_tokens;

	return fa_checkpoint_stays(cache, checkpoint->length) && number <= end &&
	       number > fa_pool_sequence_first_page(sequence) &&
	       !is_published(pool, cache, checkpoint) &&
	       fa_prefix_index_find(pool, hashes->pages[number - 1]) &&
	       find_checkpoint(pool, cache, hashes->pages[number - 1], NULL) <
	               cache->checkpoint_pages;
}

/* Pages of two checkpoints do not fit together: what evictions have left is unpublished. */
static void publish_checkpoint(struct fa_pool *pool, struct fa_pool_cache *cache,
                               const struct fa_pool_checkpoint *checkpoint, uint32_t tenant,
                               const uint8_t prefix[FA_STATE_HASH_BYTES])
{
	uint8_t hash[FA_STATE_HASH_BYTES];

	for (uint32_t i = 0; i < cache->checkpoint_pages; i++) {
		uint32_t at;

		checkpoint_hash(prefix, i, hash);
		at = fa_prefix_index_find(pool, hash);
		if (at)
			unpublish_page(pool, cache, at - 1);
		at = fa_page_index(pool, cache, checkpoint->slots[i]);
		if (pool->pages[at].flags & FA_PAGE_PUBLISHED)
			unpublish_page(pool, cache, at);
	}
	for (uint32_t i = 0; i < cache->checkpoint_pages; i++) {
		checkpoint_hash(prefix, i, hash);
		publish_page(pool, cache, fa_page_index(pool, cache, checkpoint->slots[i]), tenant,
		             hash);
	}
}

/* Counts what the publisher is to pay for checkpoints in the first @end pages. */
static void count_checkpoints(const struct fa_pool *pool, const struct fa_pool_sequence *sequence,
                              uint32_t end, uint32_t tenant, uint64_t *bytes, uint64_t *n_pages)
{
	const struct fa_pool_cache *cache = sequence->cache;
	const struct fa_pool_checkpoint *checkpoint = fa_checkpoint_find(
		sequence, (uint64_t)end * cache->layout.page_tokens);

	for (; checkpoint; checkpoint = checkpoint->older) {
		if (!fa_checkpoint_stays(cache, checkpoint->length) ||
		    is_published(pool, cache, checkpoint))
			continue;
		*n_pages += cache->checkpoint_pages;
		for (uint32_t i = 0; i < cache->checkpoint_pages; i++) {
			const struct fa_page *page =
				&pool->pages[fa_page_index(pool, cache, checkpoint->slots[i])];

			if (page->tenant != tenant)
				*bytes += cache->layout.page_bytes;
		}
	}
}

static uint64_t publish_checkpoints(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                                    const struct fa_prefix_hashes *hashes, uint32_t end,
                                    uint32_t tenant)
{
	struct fa_pool_cache *cache = sequence->cache;
	uint64_t n = 0;

	for (const struct fa_pool_checkpoint *i = sequence->checkpoints; i; i = i->older)
		if (is_publishable(pool, sequence, i, hashes, end)) {
			publish_checkpoint(
				pool, cache, i, tenant,
				hashes->pages[i->length / cache->layout.page_tokens - 1]);
			n += cache->checkpoint_pages;
		}
	return n;
}

/* ---- publish, attach, find */

int fa_prefix_publish(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                      const struct fa_prefix_hashes *hashes, uint64_t n_tokens,
                      struct fa_error *error, uint64_t *ret_pages)
{
	struct fa_pool_sequence *sequence = NULL;
	uint32_t first, end = hashes->n;
	struct fa_pool_more more = {};
	uint64_t n = 0, n_checkpoint_pages = 0;
	int r;

	r = fa_pool_sequence_get(pool, actor, id, FA_RIGHT_APPEND, error, &sequence);
	if (r < 0)
		return r;
	if (n_tokens > sequence->length)
		return fa_fail(error, -EINVAL,
		               "%" PRIu64 " tokens are to be published; expected at most %" PRIu64
		               ", the sequence's length",
		               n_tokens, sequence->length);
	first = fa_pool_sequence_first_page(sequence);

	for (uint32_t number = first; number < end; number++) {
		uint32_t slot = fa_pool_sequence_slot(sequence, number);

		if (is_unpublished(pool, sequence, number) &&
		    pool->pages[fa_page_index(pool, sequence->cache, slot)].tenant != actor->tenant)
			more.bytes += sequence->cache->layout.page_bytes;
	}
	count_checkpoints(pool, sequence, end, actor->tenant, &more.bytes, &n_checkpoint_pages);
	if (more.bytes) {
		r = fa_tenant_check_quota(pool, actor->tenant, &more, error);
		if (r < 0)
			return r;
	}
	r = fa_prefix_index_prepare(pool, (end > first ? end - first : 0) + n_checkpoint_pages);
	if (r < 0)
		return fa_fail(error, r, "there is no memory for the index of %" PRIu64 " pages",
		               end - first + n_checkpoint_pages);

	fa_pool_sequence_touch(pool, sequence);
	if (more.bytes)
		fa_reclaim_quota(pool, actor->tenant, more.bytes);
	for (uint32_t number = first; number < end; number++) {
		uint32_t slot = fa_pool_sequence_slot(sequence, number);

		if (!is_unpublished(pool, sequence, number) ||
		    fa_prefix_index_find(pool, hashes->pages[number]))
			continue;
		publish_page(pool, sequence->cache, fa_page_index(pool, sequence->cache, slot),
		             actor->tenant, hashes->pages[number]);
		n++;
	}
	*ret_pages = n + publish_checkpoints(pool, sequence, hashes, end, actor->tenant);
	return 0;
}

/* An attach makes idle pages used. */
static int check_max_pages(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                           const uint32_t *indices, uint32_t n_pages, struct fa_error *error)
{
	uint64_t max = cache->record->max_pages, n_idle = 0;

	for (uint32_t i = 0; max && i < n_pages; i++)
		n_idle += !pool->refs[indices[i]];
	if (!max || !n_idle || (cache->n_used <= max && n_idle <= max - cache->n_used))
		return 0;
	return fa_fail(error, -EDQUOT,
	               "the prefix needs %" PRIu64 " pages more of a cache that uses %" PRIu64
	               " of at most %" PRIu64,
	               n_idle, cache->n_used, max);
}

int fa_prefix_attach(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                     const struct fa_prefix_hashes *hashes, struct fa_error *error,
                     uint64_t *ret_tokens)
{
	_fa_cleanup_(fa_freep) uint32_t *indices = NULL;
	_fa_cleanup_(fa_freep) struct fa_pool_checkpoint *checkpoint = NULL;
	struct fa_pool_sequence *sequence = NULL;
	struct fa_pool_cache *cache = NULL;
	uint32_t n_pages = 0, n_used, n_cells, at;
	uint64_t length;
	int r;

	r = fa_pool_sequence_get(pool, actor, id, FA_RIGHT_APPEND, error, &sequence);
	if (r < 0)
		return r;
	if (sequence->n_in_flight)
		return fa_fail(error, -EBUSY, "the sequence is part of steps; end them first");
	if (sequence->length)
		return fa_fail(error, -EINVAL,
		               "the sequence has %" PRIu64 " tokens; expected an empty one",
		               sequence->length);
	cache = sequence->cache;
	indices = calloc((size_t)hashes->n + cache->checkpoint_pages + 1, sizeof(*indices));
	checkpoint = fa_checkpoint_new(cache, 0);
	if (!indices || !checkpoint)
		return fa_fail(error, -ENOMEM, "there is no memory to look up %" PRIu32 " pages",
		               hashes->n);
	while (n_pages < hashes->n && (at = fa_prefix_index_find(pool, hashes->pages[n_pages])))
		indices[n_pages++] = at - 1;
	n_pages = end_at_checkpoint(pool, cache, hashes, n_pages, checkpoint->slots);
	n_used = n_pages + (n_pages ? cache->checkpoint_pages : 0);
	memcpy(indices + n_pages, checkpoint->slots, (n_used - n_pages) * sizeof(*indices));
	r = check_max_pages(pool, cache, indices, n_used, error);
	if (r < 0)
		return r;
	r = fa_page_list_prepare(sequence, n_pages, 0);
	if (r < 0)
		return fa_fail(error, r, "there is no memory for the list of %" PRIu32 " pages",
		               n_pages);
	n_cells = fa_page_list_missing(sequence, n_pages) +
	          (n_used > n_pages ? fa_checkpoint_cells(cache) : 0);
	r = fa_page_list_check_cells(pool, n_cells, error);
	if (r < 0)
		return r;
	r = fa_tenant_check_cells(pool, sequence->record->tenant, n_cells, error);
	if (r < 0)
		return r;

	fa_pool_sequence_touch(pool, sequence);
	for (uint32_t i = 0; i < n_pages; i++) {
		uint32_t slot = fa_page_slot(pool, cache, indices[i]);

		fa_page_ref(pool, cache, indices[i]);
		fa_page_list_append(pool, sequence, &slot, 1);
	}
	length = (uint64_t)n_pages * cache->layout.page_tokens;
	if (n_used > n_pages) {
		checkpoint->length = length;
		for (uint32_t i = 0; i < cache->checkpoint_pages; i++)
			checkpoint->slots[i] = fa_page_slot(pool, cache, indices[n_pages + i]);
		fa_checkpoint_share(pool, sequence, checkpoint, checkpoint->slots);
		(void)fa_checkpoint_push(pool, sequence, fa_steal_ptr(checkpoint));
	}
	sequence->planned = length;
	if (length)
		fa_page_list_commit(pool, sequence, length, 0,
		                    fa_pool_sequence_durable(sequence)->step);
	*ret_tokens = length;
	return 0;
}

int fa_prefix_find(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                   const struct fa_prefix_hashes *hashes, struct fa_error *error,
                   uint64_t *ret_tokens)
{
	struct fa_pool_cache *cache = NULL;
	uint32_t n_pages = 0;
	int r;

	r = fa_pool_cache_get(pool, actor, id, FA_RIGHT_APPEND, error, &cache);
	if (r < 0)
		return r;
	while (n_pages < hashes->n && fa_prefix_index_find(pool, hashes->pages[n_pages]))
		n_pages++;
	n_pages = end_at_checkpoint(pool, cache, hashes, n_pages, NULL);
	*ret_tokens = (uint64_t)n_pages * hashes->page_tokens;
	return 0;
}
