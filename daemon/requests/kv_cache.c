#include "daemon/requests/kv.h"

#include "daemon/kv/growth.h"
#include "daemon/pool/state.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define PAGE_TOKENS_DEFAULT 64

_Static_assert(FA_WIRE_STORE_PLAIN == (int)FA_PAGED_PLAIN &&
                       FA_WIRE_STORE_E4M3 == (int)FA_PAGED_E4M3 &&
                       FA_WIRE_STORE_INT8 == (int)FA_PAGED_INT8,
               "the wire uses the kernels' values");
_Static_assert(FA_WIRE_STATES_MAX == FA_STATE_STATES, "one limit");
_Static_assert(FA_WIRE_NAME_BYTES_MAX >= FA_NAME_BYTES - 1, "the pool refuses a longer name");

static uint64_t checkpoint_bytes(const struct fa_pool_cache_info *info)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < info->n_states; ++i)
		bytes += info->state_bytes[i];
	return bytes;
}

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
			.uid = info->uid,
			.states = info->n_states,
			.checkpoint_tokens = info->checkpoint_tokens,
			.checkpoint_pages = info->checkpoint_pages,
			.checkpoint_bytes = checkpoint_bytes(info),
		},
	};

	fa_session_send(call->session, &message, -1, NULL);
}

static int check_create(const struct fa_wire_cache_create *m, struct fa_error *error)
{
	const uint32_t known = FA_WIRE_CACHE_V_IN_K | FA_WIRE_CACHE_TOKEN_SCALES;

	if (m->flags & ~known)
		return fa_fail(error, -ENOTSUP,
		               "flags %#x are not supported; expected none but %#x, V_IN_K and "
		               "TOKEN_SCALES",
		               m->flags, known);
	return 0;
}

/* The device needs kernels for the cache's store. */
static int check_store(const struct fa_context *context, const struct fa_pool_cache_config *config,
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
		/* 0 would mean that V is the front of K. */
		.v_offset = geometry->v_in_k ? 0 : FA_PAGED_SLOT_BYTES,
		.store = geometry->store,
		/* The pool checks the message's scales. */
		.k_scales = geometry->token_scales ? NULL : &one,
		.v_scales = geometry->token_scales ? NULL : &one,
	};

	if (geometry->store == FA_PAGED_PLAIN)
		return 0;
	if (!context->ops->paged_cache_check)
		return fa_fail(error, -ENOTSUP, "this device has no kernels for e4m3 and int8");
	return context->ops->paged_cache_check(context->device, &cache, error);
}

int fa_kv_cache_create(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_cache_create *m = &call->message->cache_create;
	const struct fa_pool_cache_config config = {
		.geometry = {
			.layers = m->layers,
			.kv_heads = m->kv_heads,
			.head_dim = m->head_dim,
			.head_dim_v = m->head_dim_v,
			.dtype = (enum fa_attention_dtype)m->dtype,
			.page_tokens = m->page_tokens ? m->page_tokens
			                                    : PAGE_TOKENS_DEFAULT,
			.v_in_k = m->flags & FA_WIRE_CACHE_V_IN_K,
			.store = (enum fa_paged_store)m->store,
			.token_scales = m->flags & FA_WIRE_CACHE_TOKEN_SCALES,
		},
		.k_scales = m->k_scales,
		.v_scales = m->v_scales,
		.n_k_scales = m->n_k_scales,
		.n_v_scales = m->n_v_scales,
		.state_bytes = m->state_bytes,
		.n_states = m->n_state_bytes,
		.checkpoint_tokens = m->checkpoint_tokens,
		.name = m->name.text,
		.mode = m->mode,
		.ttl_ns = m->ttl_ns,
		.max_pages = m->max_pages,
	};
	struct fa_pool *pool = call->session->context->kv->pool;
	const struct fa_actor *actor = NULL;
	struct fa_pool_cache_info info;
	uint64_t id;
	int r;

	r = check_create(m, error);
	if (r == 0)
		r = check_store(call->session->context, &config, error);
	if (r == 0)
		r = fa_kv_actor(call->session, &actor, error);
	if (r == 0)
		r = fa_pool_cache_new(pool, actor, &config, fa_kv_now_ns(), error, &id);
	if (r == 0)
		r = fa_pool_cache_get_info(pool, actor, id, error, &info);
	if (r < 0)
		return r;
	fa_kv_timer_start(call->session->context->kv);
	reply(call, &info);
	return 0;
}

int fa_kv_user(uint64_t user, struct fa_error *error, uint32_t *ret_uid)
{
	if (user > UINT32_MAX)
		return fa_fail(error, -EINVAL,
		               "user is %" PRIu64 "; expected a uid + 1, at most %" PRIu32, user,
		               UINT32_MAX);
	*ret_uid = user ? (uint32_t)(user - 1) : FA_UID_OWN;
	return 0;
}

int fa_kv_cache_find(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_cache_find *m = &call->message->cache_find;
	struct fa_pool *pool = call->session->context->kv->pool;
	uint64_t id = m->cache;
	struct fa_pool_cache_info info;
	struct fa_actor actor;
	uint32_t uid = 0;
	int r;

	if (!m->name.text && m->user)
		return fa_fail(error, -EINVAL, "user is given without a name");
	r = fa_kv_user(m->user, error, &uid);
	if (r == 0)
		r = fa_kv_actor_admin(call->session, &actor, error);
	if (r == 0 && m->name.text)
		r = fa_pool_cache_find(pool, &actor, m->name.text, uid, fa_kv_now_ns(), error, &id);
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
