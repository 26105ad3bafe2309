/*
 * Tenants: the accounts that clients' resources are charged to. A tenant is a uid in a cgroup. As
 * users may create cgroups, all tenants of one uid (except uid 0) share a second account with
 * uid_factor times the limits. A charge is embedded in the object that it pays for and keeps its
 * tenant alive. Up to FA_TENANTS_GONE_MAX unreferenced tenants keep their usage for their return.
 * Loop thread only.
 */
#pragma once

#include "common/error.h"
#include "common/list.h"
#include "daemon/account/fd_reaper.h"
#include "daemon/account/limits.h"
#include "daemon/account/usage.h"

#include <stdint.h>
#include <sys/types.h>

#define FA_TENANTS_GONE_MAX 64

struct fa_tenants {
	struct fa_list tenants;
	struct fa_list gone; /* unreferenced, oldest first */
	unsigned int n_gone;
	struct fa_list users;
	uint64_t used_fds;              /* descriptors charged to all tenants together */
	const struct fa_limits *limits; /* read for each charge; may change */
};

/* The account of a uid, which its tenants reference. */
struct fa_user {
	unsigned int n_refs;
	struct fa_list link;
	uid_t uid;
	uint64_t used[_FA_RESOURCE_N];
	struct fa_fd_reaper_queue queue;
};

struct fa_tenant {
	unsigned int n_refs;
	struct fa_list link;
	struct fa_tenants *tenants;
	uid_t uid;
	struct fa_user *user; /* NULL: uid 0 */
	char *cgroup;         /* "" if unknown */
	uint64_t used[_FA_RESOURCE_N];
	struct fa_usage usage;           /* including sessions that ended */
	struct fa_fd_reaper_queue queue; /* closes the descriptors of a tenant without a user */
};

struct fa_charge {
	struct fa_tenant *tenant; /* NULL: nothing is charged */
	enum fa_resource resource;
	uint64_t amount;
};

void fa_tenants_init(struct fa_tenants *tenants, const struct fa_limits *limits);
/* Frees all tenants, of which none may be referenced. Takes a zeroed struct. */
void fa_tenants_deinit(struct fa_tenants *tenants);

int fa_tenant_get(struct fa_tenants *tenants, uid_t uid, const char *cgroup,
                  struct fa_tenant **ret_tenant);
struct fa_tenant *fa_tenant_ref(struct fa_tenant *tenant);
struct fa_tenant *fa_tenant_unref(struct fa_tenant *tenant);

struct fa_fd_reaper_queue *fa_tenant_reaper_queue(struct fa_tenant *tenant);

/* Returns a resource's name, like "buffer_bytes". */
const char *fa_resource_name(enum fa_resource resource);

/* Charges @amount to the tenant. @charge is zeroed or has the same tenant and resource. -EDQUOT. */
int fa_charge_add(struct fa_charge *charge, struct fa_tenant *tenant, enum fa_resource resource,
                  uint64_t amount, struct fa_error *error);

/* Moves a charge to @to, which is zeroed or has the same tenant and resource. */
void fa_charge_move(struct fa_charge *to, struct fa_charge *from);

void fa_charge_split(struct fa_charge *from, uint64_t amount, struct fa_charge *ret_charge);

void fa_charge_release(struct fa_charge *charge);
