#include "daemon/pool/name_index.h"

#include "daemon/pool/hash.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS_MIN 64

static uint32_t *bucket_of(const struct fa_pool *pool, const char *name)
{
	uint64_t hash = fa_pool_hash_short(pool->header->secret, name, strlen(name));

	return &pool->names[hash & (pool->n_name_buckets - 1)];
}

struct fa_pool_sequence *fa_name_index_find(const struct fa_pool *pool, uint32_t uid,
                                            const char *name)
{
	uint32_t i;

	if (!pool->n_names)
		return NULL;
	for (i = *bucket_of(pool, name); i; i = pool->sequences[i - 1]->name_next)
		if (!strcmp(pool->sequence_records[i - 1].name, name) &&
		    fa_tenant_record(pool, pool->sequence_records[i - 1].tenant)->uid == uid)
			return pool->sequences[i - 1];
	return NULL;
}

static int grow(struct fa_pool *pool)
{
	uint32_t n = pool->n_name_buckets ? 2 * pool->n_name_buckets : BUCKETS_MIN;
	uint32_t *old = pool->names, n_old = pool->n_name_buckets;
	uint32_t *names = calloc(n, sizeof(*names));

	if (!names)
		return -ENOMEM;
	pool->names = names;
	pool->n_name_buckets = n;
	for (uint32_t i = 0; i < n_old; i++)
		for (uint32_t at = old[i], next; at; at = next) {
			struct fa_pool_sequence *sequence = pool->sequences[at - 1];
			uint32_t *bucket = bucket_of(pool, sequence->record->name);

			next = sequence->name_next;
			sequence->name_next = *bucket;
			*bucket = at;
		}
	free(old);
	return 0;
}

int fa_name_index_prepare(struct fa_pool *pool)
{
	return pool->n_names == pool->n_name_buckets ? grow(pool) : 0;
}

void fa_name_index_add(struct fa_pool *pool, struct fa_pool_sequence *sequence)
{
	uint32_t *bucket = bucket_of(pool, sequence->record->name);

	sequence->name_next = *bucket;
	*bucket = sequence->index + 1;
	pool->n_names++;
}

void fa_name_index_remove(struct fa_pool *pool, struct fa_pool_sequence *sequence)
{
	uint32_t *at = bucket_of(pool, sequence->record->name);

	while (*at != sequence->index + 1)
		at = &pool->sequences[*at - 1]->name_next;
	*at = sequence->name_next;
	pool->n_names--;
}
