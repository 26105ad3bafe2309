#include "daemon/pool/cache.h"
#include "daemon/pool/cache_private.h"
#include "daemon/pool/sequence_private.h"
#include "daemon/pool/state_store.h"

#include <errno.h>

static void destroy_cache(struct fa_pool *pool, struct fa_pool_cache *cache)
{
	struct fa_list *pos, *tmp;

	fa_state_store(&cache->record->state, FA_STATE_REMOVED);
	cache->removed = true;
	/* Keep the cache until its last sequence is removed. */
	cache->n_sequences++;
	fa_list_for_each_safe(pos, tmp, &cache->sequences) {
		struct fa_pool_sequence *sequence = fa_container_of(pos, struct fa_pool_sequence,
		                                                    cache_link);

		if (!sequence->removed)
			fa_pool_sequence_destroy(pool, sequence);
	}
	cache->n_sequences--;
	fa_pool_cache_try_free(pool, cache);
}

int fa_pool_cache_remove(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                         struct fa_error *error)
{
	struct fa_pool_cache *cache = NULL;
	int r;

	r = fa_pool_cache_get(pool, actor, id, FA_RIGHT_READ, error, &cache);
	if (r < 0)
		return r;
	if (cache->record->name[0] && !actor->admin && actor->tenant != cache->record->tenant)
		return fa_fail(error, -EACCES,
		               "the cache '%s' is another tenant's; only that can remove it",
		               cache->record->name);
	destroy_cache(pool, cache);
	return 0;
}

void fa_pool_release_owner(struct fa_pool *pool, uint64_t owner)
{
	struct fa_list *pos, *tmp;

	fa_list_for_each_safe(pos, tmp, &pool->owned[owner % FA_POOL_OWNER_BUCKETS]) {
		struct fa_pool_sequence *sequence = fa_container_of(pos, struct fa_pool_sequence,
		                                                    owner_link);

		if (sequence->removed || sequence->record->owner != owner)
			continue;
		if (!sequence->record->name[0]) {
			fa_pool_sequence_destroy(pool, sequence);
			continue;
		}
		__atomic_store_n(&sequence->record->owner, 0, __ATOMIC_RELEASE);
		fa_list_remove(&sequence->owner_link);
	}
	for (uint32_t i = 0; i < pool->header->max_caches; i++) {
		struct fa_pool_cache *cache = pool->caches[i];

		if (!cache || cache->removed || cache->record->owner != owner)
			continue;
		if (cache->record->name[0])
			__atomic_store_n(&cache->record->owner, 0, __ATOMIC_RELEASE);
		else
			destroy_cache(pool, cache);
	}
}

bool fa_pool_owner_each(const struct fa_pool *pool, uint32_t *cursor, uint64_t *ret_owner)
{
	while (*cursor < pool->header->max_caches + pool->header->high_sequences) {
		uint32_t i = (*cursor)++;
		uint64_t owner = 0;

		if (i < pool->header->max_caches) {
			if (pool->caches[i] && !pool->caches[i]->removed)
				owner = pool->cache_records[i].owner;
		} else {
			i -= pool->header->max_caches;
			if (pool->sequences[i] && !pool->sequences[i]->removed)
				owner = pool->sequence_records[i].owner;
		}
		if (!owner)
			continue;
		*ret_owner = owner;
		return true;
	}
	return false;
}

static bool is_expired(uint64_t ttl_ns, uint64_t used_ns, uint64_t now_ns)
{
	return ttl_ns && now_ns > used_ns && now_ns - used_ns > ttl_ns;
}

size_t fa_pool_expire(struct fa_pool *pool, uint64_t now_ns)
{
	size_t n = 0;

	pool->now_ns = now_ns;
	for (uint32_t i = 0; pool->n_names && i < pool->header->high_sequences; i++) {
		struct fa_pool_sequence *sequence = pool->sequences[i];

		if (!sequence || sequence->removed || !sequence->record->name[0] ||
		    sequence->n_in_flight ||
		    !is_expired(sequence->record->ttl_ns, sequence->record->used_ns, now_ns))
			continue;
		fa_pool_sequence_destroy(pool, sequence);
		n++;
	}
	for (uint32_t i = 0; i < pool->header->max_caches; i++) {
		struct fa_pool_cache *cache = pool->caches[i];

		if (!cache || cache->removed || !cache->record->name[0] || cache->n_sequences ||
		    !is_expired(cache->record->ttl_ns, cache->record->used_ns, now_ns))
			continue;
		destroy_cache(pool, cache);
		n++;
	}
	return n;
}
