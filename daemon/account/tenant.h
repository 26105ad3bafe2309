/*
 * Tenants: the accounts to which all that clients make grow is charged. A tenant
 * is a user in a cgroup, so that containers that are all uid 0 are not one. As a user
 * may be able to make cgroups, what all tenants of one uid hold is charged to that uid
 * besides, which may have a few times as much; uid 0 makes cgroups for others, and has
 * no such account. Of descriptors all tenants together may have as many as the process can
 * do without. Loop thread only.
 *
 * A charge is a value embedded in the object that it pays for and is released by
 * that object's destructor; it keeps its tenant alive.
 *
 * A tenant that has gone and had work done is kept in mind, so that what it had done is still
 * told, and goes on where it was if it comes back. Only so many are; then, of the user that has most
 * of them, the one that went first is forgotten.
 */
#pragma once

#include "common/error.h"
#include "common/list.h"
#include "daemon/account/fd_reaper.h"
#include "daemon/account/limits.h"
#include "daemon/account/usage.h"

#include <stdint.h>
#include <sys/types.h>

/* Those that have gone and are kept in mind. */
#define FA_TENANTS_GONE_MAX 64

struct fa_tenants {
	struct fa_list tenants;
	struct fa_list
		gone; /* struct fa_tenant without references, that which went first at first */
	unsigned int n_gone;
	struct fa_list users;
	uint64_t used_fds;              /* of all */
	const struct fa_limits *limits; /* looked at with each charge; may change */
};

/* All tenants of one uid, which hold a reference each. */
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
	struct fa_usage usage;           /* of all its sessions, also of those that have ended */
	struct fa_fd_reaper_queue queue; /* its own, where there is no user */
};

struct fa_charge {
	struct fa_tenant *tenant; /* NULL: nothing is charged */
	enum fa_resource resource;
	uint64_t amount;
};

void fa_tenants_init(struct fa_tenants *tenants, const struct fa_limits *limits);
/* Forgets those that have gone, as all have. Of zeroes nothing. */
void fa_tenants_deinit(struct fa_tenants *tenants);

/* Finds, remembers or makes the tenant, with a reference. -ENOMEM. */
int fa_tenant_get(struct fa_tenants *tenants, uid_t uid, const char *cgroup,
                  struct fa_tenant **ret_tenant);
struct fa_tenant *fa_tenant_ref(struct fa_tenant *tenant);
struct fa_tenant *fa_tenant_unref(struct fa_tenant *tenant);

/* That of its descriptors that are to be closed. */
struct fa_fd_reaper_queue *fa_tenant_reaper_queue(struct fa_tenant *tenant);

/* "buffer_bytes", as the configuration calls it. */
const char *fa_resource_name(enum fa_resource resource);

/*
 * Charges @amount more to @charge, which is zeroed or was charged with the same
 * tenant and resource. -EDQUOT with a sentence that names the limit.
 */
int fa_charge_add(struct fa_charge *charge, struct fa_tenant *tenant, enum fa_resource resource,
                  uint64_t amount, struct fa_error *error);

/* Adds @from, of the same resource, to @to, and zeroes it. */
void fa_charge_move(struct fa_charge *to, struct fa_charge *from);

/* Moves @amount of @from, which has that much, to @ret_charge. */
void fa_charge_split(struct fa_charge *from, uint64_t amount, struct fa_charge *ret_charge);

/* Gives everything back. A zeroed charge is fine. */
void fa_charge_release(struct fa_charge *charge);
