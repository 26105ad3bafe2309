#include "daemon/pool/cache.h"

#include "common/cleanup.h"
#include "daemon/pool/access.h"
#include "daemon/pool/cache_private.h"
#include "daemon/pool/checkpoint.h"
#include "daemon/pool/chunk.h"
#include "daemon/pool/id.h"
#include "daemon/pool/reclaim.h"
#include "daemon/pool/state_store.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

uint64_t fa_pool_cache_id(const struct fa_pool_cache *cache)
{
	return cache->id;
}

static int check_right(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                       const struct fa_actor *actor, enum fa_right right, struct fa_error *error)
{
	static const char *const what[] = { "find it", "make sequences in it", "fork in it" };
	const struct fa_state_cache *record = cache->record;

	if (!record->name[0]) {
		if (actor->admin || record->owner == actor->owner)
			return 0;
		return fa_id_hidden(FA_ID_CACHE, error);
	}
	if (fa_access_allows(pool, record->tenant, record->mode, actor, right))
		return 0;
	if (!fa_access_shows(pool, record->tenant, record->mode, actor))
		return fa_id_hidden(FA_ID_CACHE, error);
	return fa_fail(error, -EACCES,
	               "the cache '%s' is another tenant's, who does not let you %s", record->name,
	               what[right]);
}

int fa_pool_cache_get(const struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                      enum fa_right right, struct fa_error *error, struct fa_pool_cache **ret_cache)
{
	const struct fa_state_cache *record;
	struct fa_pool_cache *cache;
	struct fa_id read;
	int r;

	r = fa_id_read(pool, FA_ID_CACHE, id, error, &read);
	if (r < 0)
		return r;
	if (read.index >= pool->header->max_caches)
		return fa_id_hidden(FA_ID_CACHE, error);
	record = &pool->cache_records[read.index];
	cache = pool->caches[read.index];
	if (!cache || cache->removed || record->generation != read.generation ||
	    record->origin.id_form != read.form)
		return fa_id_missing(pool, FA_ID_CACHE, &read, actor, record->generation,
		                     &record->origin, error);
	r = check_right(pool, cache, actor, right, error);
	if (r < 0)
		return r;
	*ret_cache = cache;
	return 0;
}

static struct fa_pool_cache *find(const struct fa_pool *pool, uint32_t uid, const char *name)
{
	for (uint32_t i = 0; i < pool->header->max_caches; i++)
		if (pool->caches[i] && !pool->caches[i]->removed &&
		    !strcmp(pool->cache_records[i].name, name) &&
		    fa_tenant_record(pool, pool->cache_records[i].tenant)->uid == uid)
			return pool->caches[i];
	return NULL;
}

static int lay_out(const struct fa_pool *pool, const struct fa_cache_geometry *geometry,
                   uint32_t run_shift, struct fa_error *error, struct fa_cache_layout *ret_layout)
{
	return fa_cache_layout_init(geometry, pool->header->chunk_bytes << run_shift,
	                            1u << (pool->page_shift + run_shift), error, ret_layout);
}

/* Chooses the smallest run whose pages leave at most an eighth unused, else the largest. */
static int choose_run_shift(const struct fa_pool *pool, const struct fa_cache_geometry *geometry,
                            struct fa_error *error, uint32_t *ret_run_shift)
{
	const uint32_t max = pool->header->run_shift_max;

	for (uint32_t shift = 0; shift <= max; shift++) {
		const uint64_t bytes = pool->header->chunk_bytes << shift;
		struct fa_cache_layout layout;
		int r;

		r = lay_out(pool, geometry, shift, error, &layout);
		if (r < 0 && shift == max)
			return r;
		if (r < 0 || (shift < max && bytes % layout.page_bytes > bytes / 8))
			continue;
		*ret_run_shift = shift;
		break;
	}
	return 0;
}

static bool has_head_scales(const struct fa_cache_geometry *geometry)
{
	return geometry->store != FA_PAGED_PLAIN && !geometry->token_scales;
}

static int check_states(const struct fa_cache_geometry *geometry,
                        const struct fa_cache_layout *layout, const uint32_t *state_bytes,
                        uint64_t n_states, uint32_t checkpoint_tokens, struct fa_error *error,
                        uint32_t *ret_pages)
{
	const uint64_t n_scales = has_head_scales(geometry)
	                                  ? (uint64_t)geometry->layers * geometry->kv_heads
	                                  : 0;
	uint64_t bytes = 0, pages;

	*ret_pages = 0;
	if (!n_states)
		return checkpoint_tokens ? fa_fail(error, -EINVAL,
		                                   "checkpoint_tokens is %" PRIu32
		                                   "; expected 0, as the cache has no states",
		                                   checkpoint_tokens)
		                         : 0;
	if (n_states > FA_STATE_STATES || n_states > FA_STATE_SCALES - n_scales)
		return fa_fail(error, -ENOTSUP,
		               "%" PRIu64 " states are too many; expected at most %u, and with the "
		               "scales of heads %u",
		               n_states, FA_STATE_STATES, FA_STATE_SCALES);
	if (checkpoint_tokens % geometry->page_tokens || checkpoint_tokens > FA_PAGED_LENGTH_MAX)
		return fa_fail(error, -EINVAL,
		               "checkpoint_tokens is %" PRIu32 "; expected a multiple of %" PRIu32
		               ", the tokens of a page",
		               checkpoint_tokens, geometry->page_tokens);
	for (uint64_t i = 0; i < n_states; i++) {
		if (!state_bytes[i] || state_bytes[i] > FA_POOL_STATE_BYTES_MAX)
			return fa_fail(error, -EINVAL,
			               "state_bytes[%" PRIu64 "] is %" PRIu32
			               "; expected 1 to %" PRIu32,
			               i, state_bytes[i], FA_POOL_STATE_BYTES_MAX);
		if (state_bytes[i] / layout->page_stride_bytes > FA_CHECKPOINT_PAGES_MAX)
			return fa_fail(error, -ENOTSUP,
			               "state_bytes[%" PRIu64 "] is %" PRIu32
			               ", and pages have parts of %" PRIu64
			               " bytes; expected at most %u parts: pages of more tokens "
			               "have larger ones",
			               i, state_bytes[i], layout->page_stride_bytes,
			               FA_CHECKPOINT_PAGES_MAX);
		bytes += fa_cache_state_room(state_bytes[i]);
	}
	pages = (bytes + layout->page_bytes - 1) / layout->page_bytes;
	if (pages > FA_CHECKPOINT_PAGES_MAX)
		return fa_fail(error, -ENOTSUP,
		               "the states take %" PRIu64 " bytes, %" PRIu64
		               " pages of the cache; expected at most %u pages: larger ones have "
		               "more tokens",
		               bytes, pages, FA_CHECKPOINT_PAGES_MAX);
	*ret_pages = (uint32_t)pages;
	return 0;
}

static uint32_t *state_bytes_of(const struct fa_pool *pool, uint32_t index, uint32_t n_states)
{
	return &pool->scale_records[index].words[FA_STATE_SCALES - n_states];
}

int fa_pool_cache_load(struct fa_pool *pool, uint32_t index, struct fa_error *error)
{
	struct fa_state_cache *record = &pool->cache_records[index];
	_fa_cleanup_(fa_freep) struct fa_pool_cache *cache = fa_new(struct fa_pool_cache);
	int r;

	if (!cache)
		return -ENOMEM;
	cache->record = record;
	cache->index = index;
	cache->id = fa_id_write(
		pool, FA_ID_CACHE,
		&(struct fa_id){ record->origin.id_form, record->generation, index });
	cache->geometry = (struct fa_cache_geometry){
		.layers = record->layers,
		.kv_heads = record->kv_heads,
		.head_dim = record->head_dim,
		.head_dim_v = record->head_dim_v,
		.dtype = (enum fa_attention_dtype)record->dtype,
		.page_tokens = record->page_tokens,
		.v_in_k = record->v_in_k,
		.order = (enum fa_cache_order)record->order,
		.store = (enum fa_paged_store)record->store,
		.token_scales = record->token_scales,
	};
	fa_list_init(&cache->open_chunks);
	fa_list_init(&cache->sequences);
	cache->run_shift = record->run_shift;
	if (cache->run_shift > pool->header->run_shift_max)
		return fa_fail(error, -EINVAL, "its runs have 2^%" PRIu32 " chunks",
		               cache->run_shift);
	r = lay_out(pool, &cache->geometry, cache->run_shift, error, &cache->layout);
	if (r < 0)
		return r;
	if (record->n_states > FA_STATE_STATES ||
	    (record->n_states && pool->header->version < FA_STATE_VERSION_CHECKPOINTS))
		return fa_fail(error, -EINVAL, "it has %" PRIu32 " states", record->n_states);
	r = check_states(&cache->geometry, &cache->layout,
	                 state_bytes_of(pool, index, record->n_states), record->n_states,
	                 record->checkpoint_tokens, error, &cache->checkpoint_pages);
	if (r < 0)
		return r;
	fa_tenant_account(pool, record->tenant)->n_caches++;
	pool->caches[index] = fa_steal_ptr(cache);
	return 0;
}

bool fa_pool_cache_scales_good(const float *scales, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!(scales[i] >= FA_PAGED_SCALE_MIN && scales[i] <= FA_PAGED_SCALE_MAX))
			return false;
	return true;
}

static int check_scales(const struct fa_pool_cache_config *config, struct fa_error *error)
{
	const struct fa_cache_geometry *geometry = &config->geometry;
	const size_t n = has_head_scales(geometry) ? (size_t)geometry->layers * geometry->kv_heads
	                                           : 0;
	const size_t n_v = geometry->v_in_k ? 0 : n;

	if (n > FA_STATE_SCALES)
		return fa_fail(error, -ENOTSUP,
		               "%zu heads of all layers are to have scales; expected at most %u", n,
		               FA_STATE_SCALES);
	if (config->n_k_scales != n || config->n_v_scales != n_v)
		return fa_fail(error, -EINVAL,
		               "k_scales has %zu entries, v_scales %zu; expected %zu and %zu, %s",
		               config->n_k_scales, config->n_v_scales, n, n_v,
		               !n ? "as heads have scales only where codes are stored, and tokens "
		                    "have none"
		               : !n_v ? "one a head of each layer, of K alone, whose front is V"
		                      : "one a head of each layer");
	if (!fa_pool_cache_scales_good(config->k_scales, n) ||
	    !fa_pool_cache_scales_good(config->v_scales, n_v))
		return fa_fail(error, -EINVAL,
		               "a scale is none; expected finite numbers above 0, from 2^-100 to "
		               "2^100");
	return 0;
}

static int check_config(const struct fa_pool *pool, const struct fa_actor *actor,
                        const struct fa_pool_cache_config *config, struct fa_error *error,
                        uint32_t *ret_run_shift)
{
	struct fa_cache_layout layout;
	uint32_t unused;
	int r;

	r = check_scales(config, error);
	if (r < 0)
		return r;
	r = choose_run_shift(pool, &config->geometry, error, ret_run_shift);
	if (r == 0)
		r = lay_out(pool, &config->geometry, *ret_run_shift, error, &layout);
	if (r == 0)
		r = check_states(&config->geometry, &layout, config->state_bytes, config->n_states,
		                 config->checkpoint_tokens, error, &unused);
	if (r < 0)
		return r;
	r = fa_access_check_mode(config->mode, error);
	if (r < 0)
		return r;
	if (!config->name) {
		if (config->ttl_ns)
			return fa_fail(error, -EINVAL,
			               "a cache without a name goes with its session; expected "
			               "no time to live");
		return 0;
	}
	r = fa_access_check_name(config->name, error);
	if (r < 0)
		return r;
	if (find(pool, fa_access_name_uid(pool, actor, FA_UID_OWN), config->name))
		return fa_fail(error, -EEXIST, "there is a cache named '%s' already", config->name);
	return 0;
}

int fa_pool_cache_new(struct fa_pool *pool, const struct fa_actor *actor,
                      const struct fa_pool_cache_config *config, uint64_t now_ns,
                      struct fa_error *error, uint64_t *ret_id)
{
	const struct fa_cache_geometry *geometry = &config->geometry;
	struct fa_state_cache *record;
	const struct fa_pool_more more = { .caches = 1 };
	uint32_t i, run_shift = 0;
	int r;

	r = check_config(pool, actor, config, error, &run_shift);
	if (r < 0)
		return r;
	r = fa_tenant_check_quota(pool, actor->tenant, &more, error);
	if (r < 0)
		return r;
	/* Without generations left, ids would repeat. */
	for (i = 0; i < pool->header->max_caches; i++)
		if (!pool->caches[i] && pool->cache_records[i].generation < UINT32_MAX)
			break;
	if (i == pool->header->max_caches)
		return fa_fail(error, -ENOSPC, "there are %" PRIu32 " caches, and no more can be",
		               pool->header->max_caches);

	record = &pool->cache_records[i];
	*record = (struct fa_state_cache){
		.generation = fa_pool_next_generation(pool, record->generation),
		.tenant = actor->tenant,
		.mode = config->mode,
		.owner = actor->owner,
		.ttl_ns = config->ttl_ns,
		.used_ns = now_ns,
		.max_pages = config->max_pages,
		.layers = geometry->layers,
		.kv_heads = geometry->kv_heads,
		.head_dim = geometry->head_dim,
		.head_dim_v = geometry->head_dim_v,
		.dtype = (uint32_t)geometry->dtype,
		.page_tokens = geometry->page_tokens,
		.v_in_k = geometry->v_in_k,
		.order = (uint32_t)geometry->order,
		.store = (uint32_t)geometry->store,
		.token_scales = geometry->token_scales,
		.run_shift = run_shift,
		.n_states = (uint32_t)config->n_states,
		.checkpoint_tokens = config->checkpoint_tokens,
		.origin = fa_id_next_origin(&record->origin, record->generation,
		                            fa_tenant_record(pool, actor->tenant)->uid),
	};
	if (has_head_scales(geometry)) {
		memcpy(pool->scale_records[i].k, config->k_scales,
		       config->n_k_scales * sizeof(float));
		memcpy(pool->scale_records[i].v,
		       geometry->v_in_k ? config->k_scales : config->v_scales,
		       config->n_k_scales * sizeof(float));
	}
	if (config->n_states) {
		memcpy(state_bytes_of(pool, i, record->n_states), config->state_bytes,
		       config->n_states * sizeof(uint32_t));
		if (pool->header->version < FA_STATE_VERSION_CHECKPOINTS)
			fa_state_store(&pool->header->version, FA_STATE_VERSION_CHECKPOINTS);
	}
	if (config->name)
		strcpy(record->name, config->name);
	r = fa_pool_cache_load(pool, i, error);
	if (r < 0)
		return fa_fail(error, r, "there is no memory for another cache");
	fa_state_store(&record->state, FA_STATE_USED);
	*ret_id = fa_pool_cache_id(pool->caches[i]);
	return 0;
}

int fa_pool_cache_find(struct fa_pool *pool, const struct fa_actor *actor, const char *name,
                       uint32_t uid, uint64_t now_ns, struct fa_error *error, uint64_t *ret_id)
{
	struct fa_pool_cache *cache = NULL;
	int r;

	r = fa_access_check_name(name, error);
	if (r < 0)
		return r;
	cache = find(pool, fa_access_name_uid(pool, actor, uid), name);
	if (!cache)
		return fa_fail(error, -ENOENT, "there is no cache named '%s'", name);
	r = check_right(pool, cache, actor, FA_RIGHT_READ, error);
	if (r == -ENOENT)
		return fa_fail(error, r, "there is no cache named '%s'", name);
	if (r < 0)
		return r;
	cache->record->used_ns = now_ns;
	*ret_id = fa_pool_cache_id(cache);
	return 0;
}

void fa_pool_cache_try_free(struct fa_pool *pool, struct fa_pool_cache *cache)
{
	if (!cache->removed || cache->n_sequences)
		return;
	fa_reclaim_cache(pool, cache);
	/* Chunks with quarantined pages, and so the cache, stay until the quarantine ends. */
	for (uint32_t i = 0; cache->n_chunks && i < pool->header->max_chunks; i++)
		if (pool->chunk_records[i].owner == FA_STATE_CHUNK_CACHE + cache->index &&
		    fa_chunk_is_reclaimable(pool, i))
			fa_reclaim_chunk(pool, i);
	if (cache->n_chunks)
		return;
	fa_state_store(&cache->record->state, FA_STATE_FREE);
	pool->caches[cache->index] = NULL;
	fa_tenant_account(pool, cache->record->tenant)->n_caches--;
	fa_tenant_try_free(pool, cache->record->tenant);
	free(cache);
}

static void describe(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                     struct fa_pool_cache_info *info)
{
	const struct fa_state_scales *scales = has_head_scales(&cache->geometry)
	                                               ? &pool->scale_records[cache->index]
	                                               : NULL;

	*info = (struct fa_pool_cache_info){
		.id = fa_pool_cache_id(cache),
		.geometry = cache->geometry,
		.layout = cache->layout,
		.k_scales = scales ? scales->k : NULL,
		.v_scales = scales ? scales->v : NULL,
		.state_bytes = state_bytes_of(pool, cache->index, cache->record->n_states),
		.n_states = cache->record->n_states,
		.checkpoint_tokens = cache->record->checkpoint_tokens,
		.checkpoint_pages = cache->checkpoint_pages,
		.name = cache->record->name,
		.mode = cache->record->mode,
		.tenant = cache->record->tenant,
		.uid = fa_tenant_record(pool, cache->record->tenant)->uid,
		.owner = cache->record->owner,
		.ttl_ns = cache->record->ttl_ns,
		.max_pages = cache->record->max_pages,
		.chunks = cache->n_chunks,
		.sequences = cache->n_sequences,
		.used_pages = cache->n_used,
		.idle_pages = cache->n_idle,
		.free_pages = cache->n_free,
	};
}

int fa_pool_cache_get_info(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                           struct fa_error *error, struct fa_pool_cache_info *ret_info)
{
	struct fa_pool_cache *cache = NULL;
	int r;

	r = fa_pool_cache_get(pool, actor, id, FA_RIGHT_READ, error, &cache);
	if (r < 0)
		return r;
	describe(pool, cache, ret_info);
	return 0;
}

bool fa_pool_cache_each(const struct fa_pool *pool, uint32_t *cursor,
                        struct fa_pool_cache_info *ret_info)
{
	while (*cursor < pool->header->max_caches) {
		const struct fa_pool_cache *cache = pool->caches[(*cursor)++];

		if (!cache || cache->removed)
			continue;
		describe(pool, cache, ret_info);
		return true;
	}
	return false;
}
