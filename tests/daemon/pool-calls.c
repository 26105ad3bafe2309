#include "tests/daemon/pool-calls.h"

#include "common/cleanup.h"
#include "daemon/pool/cache_private.h"
#include "daemon/pool/checkpoint.h"
#include "daemon/pool/hash.h"
#include "daemon/pool/page_list.h"
#include "daemon/pool/prefix_index.h"
#include "daemon/pool/reclaim.h"
#include "daemon/pool/sequence_private.h"

int pool_publish(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                 const struct fa_prefix_key *key, const uint32_t *tokens, uint64_t n_tokens,
                 struct fa_error *error, uint64_t *ret_pages)
{
	_fa_cleanup_(fa_prefix_hashes_deinit) struct fa_prefix_hashes hashes = {};
	int r;

	r = fa_prefix_hashes_init(pool, actor, sequence, key, n_tokens, error, &hashes);
	if (r < 0)
		return r;
	fa_prefix_hashes_compute(&hashes, tokens);
	return fa_prefix_publish(pool, actor, sequence, &hashes, n_tokens, error, ret_pages);
}

int pool_attach(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                const struct fa_prefix_key *key, const uint32_t *tokens, uint64_t n_tokens,
                struct fa_error *error, uint64_t *ret_tokens)
{
	_fa_cleanup_(fa_prefix_hashes_deinit) struct fa_prefix_hashes hashes = {};
	int r;

	r = fa_prefix_hashes_init(pool, actor, sequence, key, n_tokens, error, &hashes);
	if (r < 0)
		return r;
	fa_prefix_hashes_compute(&hashes, tokens);
	return fa_prefix_attach(pool, actor, sequence, &hashes, error, ret_tokens);
}

int pool_find_prefix(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t cache_id,
                     const struct fa_prefix_key *key, const uint32_t *tokens, uint64_t n_tokens,
                     struct fa_error *error, uint64_t *ret_tokens)
{
	uint8_t hash[FA_STATE_HASH_BYTES];
	struct fa_pool_cache *cache = NULL;
	uint32_t page_tokens;
	uint64_t n;
	int r;

	r = fa_pool_cache_get(pool, actor, cache_id, FA_RIGHT_APPEND, error, &cache);
	if (r < 0)
		return r;
	page_tokens = cache->layout.page_tokens;
	fa_pool_hash_prefix_begin(pool->header->secret, cache_id, key->shared ? 0 : actor->tenant,
	                          key->extra, key->extra_bytes, hash);
	for (n = 0; n < n_tokens / page_tokens; n++) {
		fa_pool_hash_prefix_next(tokens + n * page_tokens, page_tokens, hash);
		if (!fa_prefix_index_find(pool, hash))
			break;
	}
	*ret_tokens = n * page_tokens;
	return 0;
}

size_t pool_sequence_slots(const struct fa_pool *pool, uint64_t id, uint32_t *slots, size_t size)
{
	const struct fa_actor admin = { .admin = true };
	struct fa_pool_sequence *sequence = NULL;
	uint32_t begin, n;

	if (fa_pool_sequence_get(pool, &admin, id, FA_RIGHT_READ, NULL, &sequence) < 0)
		return 0;
	begin = fa_pool_sequence_first_page(sequence);
	n = fa_pages_of(sequence->cache, sequence->length) - begin;
	for (uint32_t i = 0; i < n && i < size; i++)
		slots[i] = fa_pool_sequence_slot(sequence, begin + i);
	return n;
}

size_t pool_checkpoint_slots(const struct fa_pool *pool, uint64_t id, uint32_t *slots, size_t size)
{
	const struct fa_actor admin = { .admin = true };
	struct fa_pool_sequence *sequence = NULL;
	size_t n = 0;

	if (fa_pool_sequence_get(pool, &admin, id, FA_RIGHT_READ, NULL, &sequence) < 0)
		return 0;
	for (const struct fa_pool_checkpoint *at = sequence->checkpoints; at; at = at->older)
		for (uint32_t i = 0; i < sequence->cache->checkpoint_pages && n < size; i++)
			slots[n++] = at->slots[i];
	return n;
}

uint64_t pool_evict(struct fa_pool *pool, uint64_t id)
{
	const struct fa_actor admin = { .admin = true };
	struct fa_pool_cache *cache = NULL;

	if (fa_pool_cache_get(pool, &admin, id, FA_RIGHT_READ, NULL, &cache) < 0)
		return 0;
	return fa_reclaim_cache(pool, cache);
}
