#include "daemon/kv/quota.h"

#include "daemon/kv/store.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>

static int check_limit(const char *name, uint64_t limit, uint64_t held, uint64_t more,
                       const char *whose, struct fa_error *error)
{
	if (!more || (held <= limit && more <= limit - held))
		return 0;
	return fa_fail(error, -EDQUOT,
	               "%" PRIu64 " more would exceed the limit %s, which is %" PRIu64
	               " for %s, of which %" PRIu64 " are in use",
	               more, name, limit, whose, held);
}

static int check_limits(const struct fa_limits *limits, uint64_t factor,
                        const struct fa_pool_tenant_info *held, const struct fa_pool_more *more,
                        const char *whose, struct fa_error *error)
{
	uint64_t bytes;
	int r;

	if (__builtin_mul_overflow(limits->pool_bytes, factor, &bytes))
		bytes = UINT64_MAX;
	r = check_limit("pool_bytes", bytes, held->bytes, more->bytes, whose, error);
	if (r == 0)
		r = check_limit("sequences", limits->sequences * factor, held->n_sequences,
		                more->sequences, whose, error);
	if (r == 0)
		r = check_limit("caches", limits->caches * factor, held->n_caches, more->caches,
		                whose, error);
	return r;
}

int fa_kv_check_quota(void *userdata, const struct fa_pool_tenant_info *held,
                      const struct fa_pool_more *more, struct fa_error *error)
{
	const struct fa_kv *kv = userdata;
	const struct fa_limits *limits = &kv->context->config.limits;
	struct fa_pool_tenant_info all = *held;
	int r;

	r = check_limits(limits, 1, held, more, "a user", error);
	/* uid 0 makes cgroups for others. */
	if (r < 0 || !held->uid)
		return r;
	all.bytes = held->user.bytes;
	all.n_sequences = held->user.n_sequences;
	all.n_caches = held->user.n_caches;
	return check_limits(limits, limits->uid_factor, &all, more,
	                    "all cgroups of the uid together", error);
}
