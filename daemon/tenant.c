#include "daemon/tenant.h"

#include "common/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

void fa_tenants_init(struct fa_tenants *tenants, const struct fa_limits *limits)
{
	fa_list_init(&tenants->tenants);
	tenants->limits = limits;
}

int fa_tenant_get(struct fa_tenants *tenants, uid_t uid, const char *cgroup,
                  struct fa_tenant **ret_tenant)
{
	struct fa_tenant *tenant;
	struct fa_list *pos;

	fa_list_for_each(pos, &tenants->tenants) {
		tenant = fa_container_of(pos, struct fa_tenant, link);
		if (tenant->uid == uid && !strcmp(tenant->cgroup, cgroup)) {
			*ret_tenant = fa_tenant_ref(tenant);
			return 0;
		}
	}

	tenant = fa_new(struct fa_tenant);
	if (!tenant)
		return -ENOMEM;
	tenant->cgroup = strdup(cgroup);
	if (!tenant->cgroup) {
		free(tenant);
		return -ENOMEM;
	}
	tenant->n_refs = 1;
	tenant->tenants = tenants;
	tenant->uid = uid;
	fa_list_append(&tenants->tenants, &tenant->link);
	*ret_tenant = tenant;
	return 0;
}

struct fa_tenant *fa_tenant_ref(struct fa_tenant *tenant)
{
	++tenant->n_refs;
	return tenant;
}

struct fa_tenant *fa_tenant_unref(struct fa_tenant *tenant)
{
	if (!tenant || --tenant->n_refs)
		return NULL;
	for (unsigned int i = 0; i < _FA_RESOURCE_N; ++i)
		assert(!tenant->used[i]);
	fa_list_remove(&tenant->link);
	free(tenant->cgroup);
	free(tenant);
	return NULL;
}

const char *fa_resource_name(enum fa_resource resource)
{
	static const char *const names[_FA_RESOURCE_N] = {
		[FA_RESOURCE_SESSIONS] = "sessions",         [FA_RESOURCE_BUFFERS] = "buffers",
		[FA_RESOURCE_BUFFER_BYTES] = "buffer_bytes", [FA_RESOURCE_FDS] = "fds",
		[FA_RESOURCE_REQUESTS] = "requests",
	};

	return names[resource];
}

int fa_charge_add(struct fa_charge *charge, struct fa_tenant *tenant, enum fa_resource resource,
                  uint64_t amount, struct fa_error *error)
{
	uint64_t limit = tenant->tenants->limits->tenant[resource];
	uint64_t used = tenant->used[resource];

	assert(!charge->tenant || (charge->tenant == tenant && charge->resource == resource));
	/* A reload may have put the limit below what is in use. */
	if (used > limit || amount > limit - used)
		return fa_fail(error, -EDQUOT,
		               "%" PRIu64 " more would exceed the limit %s, which is %" PRIu64
		               " for a user, of which %" PRIu64 " are in use",
		               amount, fa_resource_name(resource), limit, used);
	if (!charge->tenant) {
		charge->tenant = fa_tenant_ref(tenant);
		charge->resource = resource;
	}
	tenant->used[resource] += amount;
	charge->amount += amount;
	return 0;
}

void fa_charge_move(struct fa_charge *to, struct fa_charge *from)
{
	if (!from->tenant)
		return;
	if (!to->tenant) {
		*to = *from;
	} else {
		assert(to->tenant == from->tenant && to->resource == from->resource);
		to->amount += from->amount;
		fa_tenant_unref(from->tenant);
	}
	*from = (struct fa_charge){};
}

void fa_charge_release(struct fa_charge *charge)
{
	if (!charge->tenant)
		return;
	assert(charge->tenant->used[charge->resource] >= charge->amount);
	charge->tenant->used[charge->resource] -= charge->amount;
	fa_tenant_unref(charge->tenant);
	*charge = (struct fa_charge){};
}
