/*
 * Tenants: the accounts that clients' resources are charged to. A tenant is a uid in a cgroup; all
 * tenants of a uid (except 0) share a second account with uid_factor times the limits. A charge is
 * embedded in the object that it pays for and keeps its tenant alive. Up to FA_TENANTS_GONE_MAX
 * unreferenced tenants keep their usage for their return. Loop thread only.
 */
#pragma once

#include "common/error.h"
#include "common/list.h"
#include "daemon/account/fd_reaper.h"
#include "daemon/account/limits.h"
#include "daemon/account/usage.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define FA_TENANTS_GONE_MAX 64

struct fa_tenants {
	struct fa_list tenants;
	struct fa_list gone; /* unreferenced, oldest first */
	unsigned int n_gone;
	struct fa_usage forgotten; /* of evicted tenants */
	struct fa_list users;
	uint64_t used[_FA_RESOURCE_N];
	const struct fa_limits *limits; /* read for each charge */
	/* This user need leave nothing to others. */
	uid_t own_uid;
	uint64_t n_refused; /* charges */
	/* Called after fa_tenant_ended(). May be NULL. */
	void (*ended)(struct fa_tenants *tenants);
};

/* Its share of the loop thread (session/turns.h). */
struct fa_turn {
	struct fa_list link;    /* fa_turns.accounts or .indebted */
	struct fa_list waiting; /* sessions, in order */
	unsigned int n_waiting;
	uint64_t number; /* turn in which used_ns was used */
	uint64_t used_ns;
	uint64_t paid_ns; /* when all long messages so far are paid for */
	/* Jobs and streams to reap (session/completions.h). */
	struct fa_list finished, closed;
	struct fa_list reap_link; /* fa_context.reapable */
};

/* A uid's account, referenced by its tenants. */
struct fa_user {
	unsigned int n_refs;
	struct fa_list link;
	uid_t uid;
	uint64_t used[_FA_RESOURCE_N];
	struct fa_fd_reaper_queue queue;
	struct fa_fd_reaper_queue refused;
	struct fa_turn turn;
};

struct fa_tenant {
	unsigned int n_refs;
	struct fa_list link;
	struct fa_tenants *tenants;
	uid_t uid;
	struct fa_user *user; /* NULL: uid 0 */
	char *cgroup;         /* "" if unknown */
	uint64_t used[_FA_RESOURCE_N];
	unsigned int n_ending;             /* objects whose charges will soon be released */
	struct fa_usage usage;             /* with ended sessions */
	struct fa_fd_reaper_queue queue;   /* its descriptors, if it has no user */
	struct fa_fd_reaper_queue refused; /* its refused connections */
	struct fa_turn turn;               /* used if the tenant has no user */
};

struct fa_charge {
	struct fa_tenant *tenant; /* NULL: nothing is charged */
	enum fa_resource resource;
	uint64_t amount;
};

void fa_tenants_init(struct fa_tenants *tenants, const struct fa_limits *limits);
/* No tenant may be referenced. Takes a zeroed struct. */
void fa_tenants_deinit(struct fa_tenants *tenants);

int fa_tenant_get(struct fa_tenants *tenants, uid_t uid, const char *cgroup,
                  struct fa_tenant **ret_tenant);
struct fa_tenant *fa_tenant_ref(struct fa_tenant *tenant);
struct fa_tenant *fa_tenant_unref(struct fa_tenant *tenant);

/*
 * An object is ending: its owner was told so, but charges are released later, before the matching
 * fa_tenant_ended(). The tenant lives until then.
 */
void fa_tenant_ending(struct fa_tenant *tenant);
void fa_tenant_ended(struct fa_tenant *tenant);

/* True: objects of the uid are ending, and a refused charge may fit soon. */
bool fa_tenants_are_ending(const struct fa_tenants *tenants, uid_t uid);

/* Forgotten tenants count, so that counters never fall. */
void fa_tenants_usage(const struct fa_tenants *tenants, struct fa_usage *ret_usage);

struct fa_fd_reaper_queue *fa_tenant_reaper_queue(struct fa_tenant *tenant);
/* The filter's close() of refused connections is not interrupted, and must not delay others. */
struct fa_fd_reaper_queue *fa_tenant_refused_queue(struct fa_tenant *tenant);

/* Returns its user's turn, or its own if it has no user. */
struct fa_turn *fa_tenant_turn(struct fa_tenant *tenant);

bool fa_tenants_are_alone(const struct fa_tenants *tenants);

const char *fa_resource_name(enum fa_resource resource);

/* @charge is zeroed or has the same tenant and resource. -EDQUOT. */
int fa_charge_add(struct fa_charge *charge, struct fa_tenant *tenant, enum fa_resource resource,
                  uint64_t amount, struct fa_error *error);

/* @to is zeroed or has the same tenant and resource. */
void fa_charge_move(struct fa_charge *to, struct fa_charge *from);

void fa_charge_split(struct fa_charge *from, uint64_t amount, struct fa_charge *ret_charge);

void fa_charge_release(struct fa_charge *charge);
