#include "daemon/pool/prefix_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS_MIN 1024

static uint32_t *bucket_of(const struct fa_pool *pool, const uint8_t hash[FA_STATE_HASH_BYTES])
{
	uint64_t first;

	memcpy(&first, hash, sizeof(first));
	return &pool->buckets[first & (pool->n_buckets - 1)];
}

uint32_t fa_prefix_index_find(const struct fa_pool *pool, const uint8_t hash[FA_STATE_HASH_BYTES])
{
	uint32_t at;

	if (!pool->n_published)
		return 0;
	for (at = *bucket_of(pool, hash); at; at = pool->pages[at - 1].hash_next)
		if (!memcmp(pool->page_records[at - 1].hash, hash, FA_STATE_HASH_BYTES))
			return at;
	return 0;
}

int fa_prefix_index_prepare(struct fa_pool *pool, uint64_t n_more)
{
	uint64_t n = pool->n_buckets ? pool->n_buckets : BUCKETS_MIN, n_old = pool->n_buckets;
	uint32_t *old = pool->buckets, *buckets;

	while (n < pool->n_published + n_more)
		n *= 2;
	if (n == n_old)
		return 0;
	buckets = calloc(n, sizeof(*buckets));
	if (!buckets)
		return -ENOMEM;
	pool->buckets = buckets;
	pool->n_buckets = n;
	for (uint64_t i = 0; i < n_old; i++)
		for (uint32_t at = old[i], next; at; at = next) {
			uint32_t *bucket = bucket_of(pool, pool->page_records[at - 1].hash);

			next = pool->pages[at - 1].hash_next;
			pool->pages[at - 1].hash_next = *bucket;
			*bucket = at;
		}
	free(old);
	return 0;
}

bool fa_prefix_index_add(struct fa_pool *pool, uint32_t index)
{
	const uint8_t *hash = pool->page_records[index].hash;
	uint32_t *bucket = bucket_of(pool, hash);

	if (fa_prefix_index_find(pool, hash))
		return false;
	pool->pages[index].hash_next = *bucket;
	*bucket = index + 1;
	pool->n_published++;
	return true;
}

void fa_prefix_index_remove(struct fa_pool *pool, uint32_t index)
{
	uint32_t *at = bucket_of(pool, pool->page_records[index].hash);

	while (*at != index + 1)
		at = &pool->pages[*at - 1].hash_next;
	*at = pool->pages[index].hash_next;
	pool->n_published--;
}
