#include "daemon/service/status_kv.h"

#include "common/text.h"
#include "daemon/kv/store.h"
#include "daemon/pool/cache.h"
#include "daemon/pool/sequence.h"
#include "daemon/service/server.h"
#include "daemon/service/status.h"

#include <string.h>

/* Limits the sequences that are examined, listed or not. */
#define SCANNED_MAX 4096

static int set(json_t *object, const char *key, uint64_t number)
{
	return json_object_set_new(object, key, json_integer((json_int_t)number));
}

static int set_text(json_t *object, const char *key, const char *text)
{
	char clean[FA_NAME_BYTES * 4];

	fa_text_clean(text, strlen(text), clean, sizeof(clean));
	return json_object_set_new(object, key, json_string(clean));
}

static uint32_t uid_of(const struct fa_pool *pool, uint32_t tag)
{
	struct fa_pool_tenant_info tenant;
	uint32_t cursor = 0;

	while (fa_pool_tenant_each(pool, &cursor, &tenant))
		if (tenant.tag == tag)
			return tenant.uid;
	return UINT32_MAX;
}

static bool may_see(const struct fa_session *viewer, uint32_t tenant)
{
	return viewer->observer || (viewer->kv.known && viewer->kv.actor.tenant == tenant);
}

static const char *store_name(enum fa_paged_store store)
{
	return store == FA_PAGED_E4M3 ? "e4m3" : store == FA_PAGED_INT8 ? "int8" : "plain";
}

static const char *dtype_name(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? "fp32" : dtype == FA_ATTENTION_F16 ? "fp16" : "bf16";
}

static int add_cache(json_t *caches, const struct fa_pool *pool,
                     const struct fa_pool_cache_info *info)
{
	json_t *object = json_object();
	int r = 0;

	r |= set(object, "cache", info->id);
	r |= set_text(object, "name", info->name);
	r |= set(object, "uid", uid_of(pool, info->tenant));
	r |= set(object, "session", info->owner);
	r |= set(object, "mode", info->mode);
	r |= set(object, "layers", info->geometry.layers);
	r |= set(object, "kv_heads", info->geometry.kv_heads);
	r |= set(object, "head_dim", info->geometry.head_dim);
	r |= set(object, "head_dim_v", info->geometry.head_dim_v);
	r |= set_text(object, "dtype", dtype_name(info->geometry.dtype));
	r |= set_text(object, "store", store_name(info->geometry.store));
	r |= set(object, "page_tokens", info->geometry.page_tokens);
	r |= set(object, "page_bytes", info->layout.page_bytes);
	r |= set(object, "used_pages", info->used_pages);
	r |= set(object, "idle_pages", info->idle_pages);
	r |= set(object, "free_pages", info->free_pages);
	r |= set(object, "max_pages", info->max_pages);
	r |= set(object, "states", info->n_states);
	r |= set(object, "checkpoint_tokens", info->checkpoint_tokens);
	r |= set(object, "checkpoint_pages", info->checkpoint_pages);
	r |= set(object, "sequences", info->sequences);
	return r | json_array_append_new(caches, object);
}

static int add_sequence(json_t *sequences, const struct fa_pool *pool,
                        const struct fa_pool_sequence_info *info)
{
	json_t *object = json_object();
	int r = 0;

	r |= set(object, "sequence", info->id);
	r |= set_text(object, "name", info->name);
	r |= set(object, "cache", info->cache);
	r |= set(object, "uid", uid_of(pool, info->tenant));
	r |= set(object, "session", info->owner);
	r |= set(object, "mode", info->mode);
	r |= set(object, "length", info->length);
	r |= set(object, "planned", info->planned);
	r |= set(object, "first", info->first);
	r |= set(object, "steps", info->in_flight);
	r |= set(object, "checkpoint", info->checkpoint);
	r |= set(object, "checkpoints", info->n_checkpoints);
	return r | json_array_append_new(sequences, object);
}

static void describe_own(const struct fa_kv *kv, const struct fa_session *viewer,
                         struct fa_pool_tenant_info *ret_info)
{
	uint32_t cursor = 0;

	while (viewer->kv.known && fa_pool_tenant_each(kv->pool, &cursor, ret_info))
		if (ret_info->tag == viewer->kv.actor.tenant)
			return;
	*ret_info = (struct fa_pool_tenant_info){};
}

static int add_pages(json_t *object, const struct fa_pool *pool)
{
	uint64_t used = 0, idle = 0, n_free = 0;
	struct fa_pool_cache_info cache;
	uint32_t cursor = 0;
	int r = 0;

	while (fa_pool_cache_each(pool, &cursor, &cache)) {
		used += cache.used_pages;
		idle += cache.idle_pages;
		n_free += cache.free_pages;
	}
	r |= set(object, "used_pages", used);
	r |= set(object, "idle_pages", idle);
	return r | set(object, "free_pages", n_free);
}

/* Adds tenants even without a session. */
static int add_tenants(json_t *object, const struct fa_pool *pool, const struct fa_session *viewer)
{
	json_t *tenants = json_array();
	struct fa_pool_tenant_info info;
	uint32_t cursor = 0;
	int r = 0;

	while (fa_pool_tenant_each(pool, &cursor, &info) &&
	       json_array_size(tenants) < FA_STATUS_LISTED_MAX) {
		json_t *tenant;

		if (!may_see(viewer, info.tag))
			continue;
		tenant = json_object();
		r |= set(tenant, "uid", info.uid);
		r |= fa_status_set_cgroup(tenant, info.cgroup);
		r |= set(tenant, "used_bytes", info.bytes - info.idle_bytes);
		r |= set(tenant, "idle_bytes", info.idle_bytes);
		r |= set(tenant, "caches", info.n_caches);
		r |= set(tenant, "sequences", info.n_sequences);
		r |= json_array_append_new(tenants, tenant);
	}
	return r | json_object_set_new(object, "tenants", tenants);
}

/* Only privileged viewers see totals of all tenants. */
static int add_pool(json_t *object, const struct fa_kv *kv, const struct fa_session *viewer)
{
	struct fa_pool_tenant_info own;
	json_t *pool = json_object();
	struct fa_pool_info info;
	int r = 0;

	fa_pool_get_info(kv->pool, &info);
	r |= set(pool, "generation", info.generation);
	r |= set(pool, "chunk_bytes", info.chunk_bytes);
	r |= set(pool, "chunks_max", kv->chunks_max);
	if (viewer->observer) {
		r |= set(pool, "chunks", info.chunks);
		r |= set(pool, "chunks_free", info.chunks_free);
		r |= set(pool, "chunks_unkept", fa_kv_unpersisted_chunks(kv, info.chunks));
		r |= set(pool, "used_bytes", info.used_bytes);
		r |= set(pool, "idle_bytes", info.idle_bytes);
		r |= add_pages(pool, kv->pool);
		r |= set(pool, "tenants_total", info.tenants);
		r |= set(pool, "caches", info.caches);
		r |= set(pool, "sequences", info.sequences);
		r |= set(pool, "steps", info.steps);
		r |= set(pool, "evicted_pages", info.evicted_pages);
		r |= set(pool, "shared_pages", info.shared_pages);
		r |= set(pool, "quarantined_pages", info.quarantined_pages);
		r |= set(pool, "sessions_awaited", kv->session_store.n_lost);
	} else {
		describe_own(kv, viewer, &own);
		r |= set(pool, "used_bytes", own.bytes - own.idle_bytes);
		r |= set(pool, "idle_bytes", own.idle_bytes);
		r |= set(pool, "caches", own.n_caches);
		r |= set(pool, "sequences", own.n_sequences);
	}
	r |= add_tenants(pool, kv->pool, viewer);
	return r | json_object_set_new(object, "pool", pool);
}

int fa_kv_status(json_t *object, struct fa_session *viewer)
{
	const struct fa_kv *kv = viewer->context->kv;
	json_t *caches = json_array(), *sequences = json_array();
	struct fa_pool_sequence_info sequence;
	struct fa_pool_cache_info cache;
	uint32_t cursor = 0;
	int r = 0;

	if (!kv->pool) {
		json_decref(caches);
		json_decref(sequences);
		return 0;
	}
	while (fa_pool_cache_each(kv->pool, &cursor, &cache) &&
	       json_array_size(caches) < FA_STATUS_LISTED_MAX)
		if (may_see(viewer, cache.tenant))
			r |= add_cache(caches, kv->pool, &cache);
	cursor = 0;
	for (int i = 0; i < SCANNED_MAX && fa_pool_sequence_each(kv->pool, &cursor, &sequence) &&
	                json_array_size(sequences) < FA_STATUS_LISTED_MAX;
	     ++i)
		if (may_see(viewer, sequence.tenant))
			r |= add_sequence(sequences, kv->pool, &sequence);
	r |= add_pool(object, kv, viewer);
	r |= json_object_set_new(object, "caches", caches);
	return r | json_object_set_new(object, "sequences", sequences);
}
