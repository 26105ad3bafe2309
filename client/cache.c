#include "client/cancel.h"
#include "client/kv.h"
#include "client/last_error.h"
#include "client/struct_size.h"

#include <errno.h>

_Static_assert(FA_CACHE_V_IN_K == FA_WIRE_CACHE_V_IN_K &&
                       FA_CACHE_TOKEN_SCALES == FA_WIRE_CACHE_TOKEN_SCALES,
               "flags travel as they are");
_Static_assert(FA_STORE_PLAIN == FA_WIRE_STORE_PLAIN && FA_STORE_E4M3 == FA_WIRE_STORE_E4M3 &&
                       FA_STORE_INT8 == FA_WIRE_STORE_INT8,
               "stores travel as they are");
_Static_assert(FA_MODE_READ_UID == FA_WIRE_ADMIT_UID && FA_MODE_READ_ALL == FA_WIRE_ADMIT_ALL &&
                       FA_MODE_APPEND_UID == FA_WIRE_ADMIT_UID << 2 &&
                       FA_MODE_APPEND_ALL == FA_WIRE_ADMIT_ALL << 2 &&
                       FA_MODE_FORK_UID == FA_WIRE_ADMIT_UID << 4 &&
                       FA_MODE_FORK_ALL == FA_WIRE_ADMIT_ALL << 4,
               "modes travel as they are");

static int put_scales(const struct fa_cache_options *options, struct fa_wire_cache_create *wire)
{
	const bool heads = options->store && !(options->flags & FA_CACHE_TOKEN_SCALES);
	const bool v_in_k = options->flags & FA_CACHE_V_IN_K;
	const uint64_t n = (uint64_t)options->layers * options->kv_heads;

	if (options->store > FA_STORE_INT8)
		return fa_error_set(
			-EINVAL,
			"fa_cache_options.store is %u; expected FA_STORE_PLAIN, FA_STORE_E4M3 or "
			"FA_STORE_INT8",
			options->store);
	if (!options->store && options->flags & FA_CACHE_TOKEN_SCALES)
		return fa_error_set(-EINVAL,
		                    "FA_CACHE_TOKEN_SCALES is for FA_STORE_E4M3 and FA_STORE_INT8");
	if (!heads && (options->k_scales || options->v_scales))
		return fa_error_set(-EINVAL,
		                    "fa_cache_options.%s is for FA_STORE_E4M3 and FA_STORE_INT8 "
		                    "without FA_CACHE_TOKEN_SCALES",
		                    options->k_scales ? "k_scales" : "v_scales");
	if (!heads)
		return 0;
	if (v_in_k && options->v_scales)
		return fa_error_set(
			-EINVAL, "fa_cache_options.v_scales is given, which has no effect as V is "
				 "the front of K, with the scales of K");
	if (!options->k_scales || (!options->v_scales && !v_in_k))
		return fa_error_set(-EINVAL,
		                    "fa_cache_options.%s is NULL; expected scales of all heads, or "
		                    "FA_CACHE_TOKEN_SCALES",
		                    options->k_scales ? "v_scales" : "k_scales");
	if (n > FA_WIRE_SCALES_MAX)
		return fa_error_set(-ENOTSUP,
		                    "all layers together have %llu heads; with scales of heads at "
		                    "most %u are supported",
		                    (unsigned long long)n, FA_WIRE_SCALES_MAX);
	wire->k_scales = options->k_scales;
	wire->v_scales = options->v_scales;
	wire->n_k_scales = n;
	wire->n_v_scales = v_in_k ? 0 : n;
	return 0;
}

static int put_states(struct fa_client *client, const struct fa_cache_options *options,
                      struct fa_wire_cache_create *wire)
{
	if (!options->n_states && (options->state_bytes || options->checkpoint_tokens))
		return fa_error_set(-EINVAL, "fa_cache_options.%s is for caches with states",
		                    options->state_bytes ? "state_bytes" : "checkpoint_tokens");
	if (!options->n_states)
		return 0;
	if (!options->state_bytes)
		return fa_error_set(-EINVAL,
		                    "fa_cache_options.state_bytes is NULL, and n_states is %u",
		                    options->n_states);
	if (options->n_states > FA_WIRE_STATES_MAX)
		return fa_error_set(-ENOTSUP,
		                    "fa_cache_options.n_states is %u; at most %u are supported",
		                    options->n_states, FA_WIRE_STATES_MAX);
	wire->state_bytes = options->state_bytes;
	wire->n_state_bytes = options->n_states;
	wire->checkpoint_tokens = options->checkpoint_tokens;
	/* An older daemon would make a cache without them. */
	return fa_kv_check_states(client);
}

int fa_cache_create(struct fa_client *handle, const struct fa_cache_options *options,
                    uint64_t *ret_cache)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_CACHE_CREATE };
	struct fa_client_call call = { .expect = FA_WIRE_CACHE_REPLY };
	struct fa_wire_cache_create *wire = &message.cache_create;
	struct fa_cache_options padded;
	const void *o;
	int r;

	r = fa_struct_in("fa_cache_options", options, &padded, sizeof(padded), &o);
	if (r < 0)
		return r;
	options = o;
	if (!ret_cache)
		return fa_error_set(-EINVAL, "ret_cache is NULL");
	if (!fa_dtype_bytes(options->dtype))
		return fa_error_set(
			-EINVAL, "fa_cache_options.dtype is %u; expected FA_F32, FA_F16 or FA_BF16",
			options->dtype);
	r = put_scales(options, wire);
	if (r == 0)
		r = put_states(client, options, wire);
	if (r < 0)
		return r;
	if (options->name) {
		r = fa_kv_name(options->name, &wire->name);
		if (r < 0)
			return r;
	} else if (options->mode || options->ttl_ns) {
		return fa_error_set(-EINVAL, "fa_cache_options.%s is for caches with a name",
		                    options->mode ? "mode" : "ttl_ns");
	}
	wire->mode = options->mode;
	wire->ttl_ns = options->ttl_ns;
	wire->dtype = (uint8_t)options->dtype;
	wire->flags = options->flags;
	wire->store = (uint8_t)options->store;
	wire->layers = options->layers;
	wire->kv_heads = options->kv_heads;
	wire->head_dim = options->head_dim;
	wire->head_dim_v = options->head_dim_v ? options->head_dim_v : options->head_dim;
	wire->page_tokens = options->page_tokens;
	wire->max_pages = options->max_pages;
	r = fa_kv_call(client, &message, false, &call);
	if (r < 0)
		return r;
	*ret_cache = call.cache.cache;
	return 0;
}

static int find(struct fa_client *client, const char *name, uint64_t user, uint64_t *ret_cache)
{
	struct fa_wire_message message = { .type = FA_WIRE_CACHE_FIND, .cache_find.user = user };
	struct fa_client_call call = { .expect = FA_WIRE_CACHE_REPLY };
	int r;

	if (!ret_cache)
		return fa_error_set(-EINVAL, "ret_cache is NULL");
	r = fa_kv_name(name, &message.cache_find.name);
	if (r < 0)
		return r;
	r = fa_kv_call(client, &message, false, &call);
	if (r < 0)
		return r;
	*ret_cache = call.cache.cache;
	return 0;
}

int fa_cache_find(struct fa_client *handle, const char *name, uint64_t *ret_cache)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return find(client, name, 0, ret_cache);
}

int fa_cache_find_of(struct fa_client *handle, uint32_t uid, const char *name, uint64_t *ret_cache)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return find(client, name, (uint64_t)uid + 1, ret_cache);
}

int fa_cache_info(struct fa_client *handle, uint64_t cache, struct fa_cache_info *ret_info)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_CACHE_FIND, .cache_find.cache = cache };
	struct fa_client_call call = { .expect = FA_WIRE_CACHE_REPLY };
	const struct fa_wire_cache_reply *reply = &call.cache;
	struct fa_cache_info info;
	int r;

	r = fa_struct_out_check("fa_cache_info", ret_info);
	if (r < 0)
		return r;
	r = fa_kv_call(client, &message, true, &call);
	if (r < 0)
		return r;
	info = (struct fa_cache_info){
		.flags = reply->flags,
		.mode = reply->mode,
		.dtype = reply->dtype,
		.layers = reply->layers,
		.kv_heads = reply->kv_heads,
		.head_dim = reply->head_dim,
		.head_dim_v = reply->head_dim_v,
		.page_tokens = reply->page_tokens,
		.sequences = reply->sequences,
		.page_bytes = reply->page_bytes,
		.max_pages = reply->max_pages,
		.used_pages = reply->used_pages,
		.idle_pages = reply->idle_pages,
		.store = reply->store,
		.uid = reply->uid,
		.states = reply->states,
		.checkpoint_tokens = reply->checkpoint_tokens,
		.checkpoint_bytes = reply->checkpoint_bytes,
		.checkpoint_pages = reply->checkpoint_pages,
	};
	fa_struct_out(ret_info, &info, sizeof(info));
	return 0;
}

int fa_cache_remove(struct fa_client *handle, uint64_t cache)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_CACHE_REMOVE,
		                           .cache_remove.cache = cache };
	struct fa_client_call call = { .expect = FA_WIRE_REPLY };

	return fa_kv_call(client, &message, true, &call);
}
