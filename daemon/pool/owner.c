/* Objects whose session is gone, or that nobody has used for long. */
#include "daemon/pool/private.h"

void fa_pool_set_time(struct fa_pool *pool, uint64_t now_ns)
{
	pool->now_ns = now_ns;
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
			fa_pool_cache_destroy(pool, cache);
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
		fa_pool_cache_destroy(pool, cache);
		n++;
	}
	return n;
}
