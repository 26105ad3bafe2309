/* The messages about caches. */
#include "daemon/requests/kv.h"

#include "daemon/session/context.h"

#include <errno.h>
#include <string.h>

#define PAGE_TOKENS_DEFAULT 64

_Static_assert(FA_WIRE_STORE_PLAIN == (int)FA_PAGED_PLAIN &&
                       FA_WIRE_STORE_E4M3 == (int)FA_PAGED_E4M3 &&
                       FA_WIRE_STORE_INT8 == (int)FA_PAGED_INT8,
               "stores travel as they are");
_Static_assert(FA_WIRE_NAME_BYTES_MAX >= FA_NAME_BYTES - 1, "what is too long, is told so");

static void reply(struct fa_call *call, const struct fa_pool_cache_info *info)
{
	struct fa_wire_message message = {
		.id = call->message->id,
		.type = FA_WIRE_CACHE_REPLY,
		.cache_reply = {
			.cache = info->id,
			.mode = info->mode,
			.dtype = (uint8_t)info->geometry.dtype,
			.flags = (info->geometry.v_in_k ? FA_WIRE_CACHE_V_IN_K : 0) |
			         (info->geometry.token_scales ? FA_WIRE_CACHE_TOKEN_SCALES : 0),
			.layers = info->geometry.layers,
			.kv_heads = info->geometry.kv_heads,
			.head_dim = info->geometry.head_dim,
			.head_dim_v = info->geometry.head_dim_v,
			.page_tokens = info->geometry.page_tokens,
			.page_bytes = info->layout.page_bytes,
			.max_pages = info->max_pages,
			.used_pages = info->used_pages,
			.idle_pages = info->idle_pages,
			.sequences = info->sequences,
			.store = (uint8_t)info->geometry.store,
		},
	};

	fa_session_send(call->session, &message, -1, NULL);
}

static int check_create(const struct fa_wire_cache_create *request, struct fa_error *error)
{
	const uint32_t known = FA_WIRE_CACHE_V_IN_K | FA_WIRE_CACHE_TOKEN_SCALES;

	if (request->flags & ~known)
		return fa_fail(error, -ENOTSUP,
		               "flags %#x are not supported; expected none but %#x, V_IN_K and "
		               "TOKEN_SCALES",
		               request->flags, known);
	return 0;
}

/* Whether there are kernels for its codes. */
static int check_codes(const struct fa_context *context, const struct fa_pool_cache_config *config,
                       struct fa_error *error)
{
	const struct fa_cache_geometry *geometry = &config->geometry;
	static const float one = 1;
	const struct fa_paged_cache cache = {
		.dtype = geometry->dtype,
		.layers = (int32_t)geometry->layers,
		.kv_heads = (int32_t)geometry->kv_heads,
		.head_dim = (int32_t)geometry->head_dim,
		.head_dim_v = (int32_t)geometry->head_dim_v,
		.page_tokens = (int32_t)geometry->page_tokens,
		/* Which matters is that it is not 0. */
		.v_offset = FA_PAGED_SLOT_BYTES,
		.store = geometry->store,
		/* Those of the request are judged where they are kept. */
		.k_scales = geometry->token_scales ? NULL : &one,
		.v_scales = geometry->token_scales ? NULL : &one,
	};

	if (geometry->store == FA_PAGED_PLAIN || geometry->v_in_k)
		return 0;
	if (!context->ops->paged_cache_check)
		return fa_fail(error, -ENOTSUP, "this device has no kernels for e4m3 and int8");
	return context->ops->paged_cache_check(context->device, &cache, error);
}

int fa_kv_cache_create(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_cache_create *request = &call->message->cache_create;
	const struct fa_pool_cache_config config = {
		.geometry = {
			.layers = request->layers,
			.kv_heads = request->kv_heads,
			.head_dim = request->head_dim,
			.head_dim_v = request->head_dim_v,
			.dtype = (enum fa_attention_dtype)request->dtype,
			.page_tokens = request->page_tokens ? request->page_tokens
			                                    : PAGE_TOKENS_DEFAULT,
			.v_in_k = request->flags & FA_WIRE_CACHE_V_IN_K,
			.store = (enum fa_paged_store)request->store,
			.token_scales = request->flags & FA_WIRE_CACHE_TOKEN_SCALES,
		},
		.k_scales = request->k_scales,
		.v_scales = request->v_scales,
		.n_k_scales = request->n_k_scales,
		.n_v_scales = request->n_v_scales,
		.name = request->name.text,
		.mode = request->mode,
		.ttl_ns = request->ttl_ns,
		.max_pages = request->max_pages,
	};
	struct fa_pool *pool = call->session->context->kv->pool;
	const struct fa_actor *actor = NULL;
	struct fa_pool_cache_info info;
	uint64_t id;
	int r;

	r = check_create(request, error);
	if (r == 0)
		r = check_codes(call->session->context, &config, error);
	if (r == 0)
		r = fa_kv_actor(call->session, &actor, error);
	if (r == 0)
		r = fa_pool_cache_new(pool, actor, &config, fa_kv_now_ns(), error, &id);
	if (r == 0)
		r = fa_pool_cache_get_info(pool, actor, id, error, &info);
	if (r < 0)
		return r;
	fa_kv_wake(call->session->context->kv);
	reply(call, &info);
	return 0;
}

int fa_kv_cache_find(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_cache_find *request = &call->message->cache_find;
	struct fa_pool *pool = call->session->context->kv->pool;
	uint64_t id = request->cache;
	struct fa_pool_cache_info info;
	struct fa_actor actor;
	int r;

	r = fa_kv_actor_admin(call->session, &actor, error);
	if (r == 0 && request->name.text)
		r = fa_pool_cache_find(pool, &actor, request->name.text, fa_kv_now_ns(), error,
		                       &id);
	if (r == 0)
		r = fa_pool_cache_get_info(pool, &actor, id, error, &info);
	if (r == 0)
		reply(call, &info);
	return r;
}

int fa_kv_cache_remove(struct fa_call *call, struct fa_error *error)
{
	struct fa_actor actor;
	int r;

	r = fa_kv_actor_admin(call->session, &actor, error);
	if (r == 0)
		r = fa_pool_cache_remove(call->session->context->kv->pool, &actor,
		                         call->message->cache_remove.cache, error);
	if (r == 0)
		fa_session_reply(call->session, call->message->id, 0, NULL);
	return r;
}
