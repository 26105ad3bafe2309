#include "daemon/account/tenant.h"

#include "common/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

void fa_tenants_init(struct fa_tenants *tenants, const struct fa_limits *limits)
{
	fa_list_init(&tenants->tenants);
	fa_list_init(&tenants->gone);
	tenants->n_gone = 0;
	tenants->forgotten = (struct fa_usage){};
	fa_list_init(&tenants->users);
	memset(tenants->used, 0, sizeof(tenants->used));
	tenants->limits = limits;
	tenants->own_uid = getuid();
	tenants->n_refused = 0;
	tenants->ended = NULL;
}

static void turn_init(struct fa_turn *turn)
{
	fa_list_init(&turn->link);
	fa_list_init(&turn->waiting);
	fa_list_init(&turn->finished);
	fa_list_init(&turn->closed);
	fa_list_init(&turn->reap_link);
}

static int user_get(struct fa_tenants *tenants, uid_t uid, struct fa_user **ret_user)
{
	struct fa_user *user;
	struct fa_list *pos;

	fa_list_for_each(pos, &tenants->users) {
		user = fa_container_of(pos, struct fa_user, link);
		if (user->uid == uid) {
			++user->n_refs;
			*ret_user = user;
			return 0;
		}
	}

	user = fa_new(struct fa_user);
	if (!user)
		return -ENOMEM;
	user->n_refs = 1;
	user->uid = uid;
	turn_init(&user->turn);
	fa_list_append(&tenants->users, &user->link);
	*ret_user = user;
	return 0;
}

static void user_unref(struct fa_user *user)
{
	if (!user || --user->n_refs)
		return;
	fa_list_remove(&user->link);
	free(user);
}

static struct fa_tenant *find(const struct fa_list *list, uid_t uid, const char *cgroup)
{
	struct fa_list *pos;

	fa_list_for_each(pos, list) {
		struct fa_tenant *tenant = fa_container_of(pos, struct fa_tenant, link);

		if (tenant->uid == uid && !strcmp(tenant->cgroup, cgroup))
			return tenant;
	}
	return NULL;
}

static void tenant_free(struct fa_tenant *tenant)
{
	fa_list_remove(&tenant->link);
	free(tenant->cgroup);
	free(tenant);
}

void fa_tenants_deinit(struct fa_tenants *tenants)
{
	for (; tenants->n_gone; --tenants->n_gone)
		tenant_free(fa_container_of(tenants->gone.next, struct fa_tenant, link));
}

int fa_tenant_get(struct fa_tenants *tenants, uid_t uid, const char *cgroup,
                  struct fa_tenant **ret_tenant)
{
	struct fa_user *user = NULL;
	struct fa_tenant *tenant;

	tenant = find(&tenants->tenants, uid, cgroup);
	if (tenant) {
		*ret_tenant = fa_tenant_ref(tenant);
		return 0;
	}
	if (uid && user_get(tenants, uid, &user) < 0)
		return -ENOMEM;
	tenant = find(&tenants->gone, uid, cgroup);
	if (tenant) {
		fa_list_remove(&tenant->link);
		--tenants->n_gone;
	} else {
		tenant = fa_new(struct fa_tenant);
		if (!tenant || !(tenant->cgroup = strdup(cgroup))) {
			free(tenant);
			user_unref(user);
			return -ENOMEM;
		}
		tenant->tenants = tenants;
		tenant->uid = uid;
		turn_init(&tenant->turn);
	}
	tenant->n_refs = 1;
	tenant->user = user;
	fa_list_append(&tenants->tenants, &tenant->link);
	*ret_tenant = tenant;
	return 0;
}

struct fa_tenant *fa_tenant_ref(struct fa_tenant *tenant)
{
	++tenant->n_refs;
	return tenant;
}

/* Chooses the oldest unreferenced tenant of the uid with the most: users with many cgroups evict
 * their own. */
static struct fa_tenant *find_victim(const struct fa_tenants *tenants)
{
	struct fa_tenant *found = NULL;
	unsigned int most = 0;
	struct fa_list *pos, *other;

	fa_list_for_each(pos, &tenants->gone) {
		struct fa_tenant *tenant = fa_container_of(pos, struct fa_tenant, link);
		unsigned int n = 0;

		fa_list_for_each(other, &tenants->gone)
			n += fa_container_of(other, struct fa_tenant, link)->uid == tenant->uid;
		if (n > most) {
			most = n;
			found = tenant;
		}
	}
	return found;
}

struct fa_tenant *fa_tenant_unref(struct fa_tenant *tenant)
{
	struct fa_tenants *tenants;

	if (!tenant || --tenant->n_refs)
		return NULL;
	for (unsigned int i = 0; i < _FA_RESOURCE_N; ++i)
		assert(!tenant->used[i]);
	fa_list_remove(&tenant->link);
	user_unref(fa_steal_ptr(tenant->user));
	if (!tenant->usage.finished && !tenant->usage.prefix_lookups) {
		tenant_free(tenant);
		return NULL;
	}
	tenants = tenant->tenants;
	fa_list_append(&tenants->gone, &tenant->link);
	if (++tenants->n_gone > FA_TENANTS_GONE_MAX) {
		--tenants->n_gone;
		tenant = find_victim(tenants);
		fa_usage_add(&tenants->forgotten, &tenant->usage);
		tenant_free(tenant);
	}
	return NULL;
}

void fa_tenant_ending(struct fa_tenant *tenant)
{
	++fa_tenant_ref(tenant)->n_ending;
}

void fa_tenant_ended(struct fa_tenant *tenant)
{
	struct fa_tenants *tenants = tenant->tenants;

	--tenant->n_ending;
	fa_tenant_unref(tenant);
	if (tenants->ended)
		tenants->ended(tenants);
}

bool fa_tenants_are_ending(const struct fa_tenants *tenants, uid_t uid)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &tenants->tenants) {
		const struct fa_tenant *tenant = fa_container_of(pos, struct fa_tenant, link);

		if (tenant->uid == uid && tenant->n_ending)
			return true;
	}
	return false;
}

void fa_tenants_usage(const struct fa_tenants *tenants, struct fa_usage *ret_usage)
{
	const struct fa_list *lists[] = { &tenants->tenants, &tenants->gone };
	struct fa_list *pos;

	*ret_usage = tenants->forgotten;
	for (size_t i = 0; i < 2; ++i)
		fa_list_for_each(pos, lists[i])
			fa_usage_add(ret_usage,
			             &fa_container_of(pos, struct fa_tenant, link)->usage);
}

struct fa_fd_reaper_queue *fa_tenant_reaper_queue(struct fa_tenant *tenant)
{
	return tenant->user ? &tenant->user->queue : &tenant->queue;
}

struct fa_fd_reaper_queue *fa_tenant_refused_queue(struct fa_tenant *tenant)
{
	return tenant->user ? &tenant->user->refused : &tenant->refused;
}

struct fa_turn *fa_tenant_turn(struct fa_tenant *tenant)
{
	return tenant->user ? &tenant->user->turn : &tenant->turn;
}

bool fa_tenants_are_alone(const struct fa_tenants *tenants)
{
	return tenants->tenants.next == tenants->tenants.prev;
}

const char *fa_resource_name(enum fa_resource resource)
{
	static const char *const names[_FA_RESOURCE_N] = {
		[FA_RESOURCE_SESSIONS] = "sessions",
		[FA_RESOURCE_BUFFERS] = "buffers",
		[FA_RESOURCE_BUFFER_BYTES] = "buffer_bytes",
		[FA_RESOURCE_DEVICE_BYTES] = "device_bytes",
		[FA_RESOURCE_PIECES] = "pieces",
		[FA_RESOURCE_FDS] = "fds",
		[FA_RESOURCE_REQUESTS] = "requests",
		[FA_RESOURCE_STEP_BYTES] = "step_bytes",
		[FA_RESOURCE_GATES] = "gates",
		[FA_RESOURCE_TIMELINES] = "timelines",
	};

	return names[resource];
}

/* A negative @amount releases. */
static void count(struct fa_tenant *tenant, enum fa_resource resource, uint64_t amount)
{
	tenant->used[resource] += amount;
	if (tenant->user)
		tenant->user->used[resource] += amount;
	tenant->tenants->used[resource] += amount;
}

/* After a reload @used may exceed @limit. */
static bool fits(uint64_t amount, uint64_t limit, uint64_t used)
{
	return used <= limit && amount <= limit - used;
}

static uint64_t limit_of_all(const struct fa_limits *limits, enum fa_resource resource)
{
	switch (resource) {
	case FA_RESOURCE_FDS:
		return limits->all_fds;
	case FA_RESOURCE_BUFFER_BYTES:
		return limits->all_buffer_bytes;
	case FA_RESOURCE_BUFFERS:
		return limits->all_buffers;
	case FA_RESOURCE_SESSIONS:
		return limits->connections;
	default:
		return 0;
	}
}

static int check(const struct fa_tenant *tenant, enum fa_resource resource, uint64_t amount,
                 struct fa_error *error)
{
	const struct fa_limits *limits = tenant->tenants->limits;
	uint64_t limit = limits->tenant[resource], used = tenant->used[resource], user_limit;
	/* The fd store does not grow with cgroups. */
	const uint64_t factor = resource == FA_RESOURCE_TIMELINES ? 1 : limits->uid_factor;
	const uint64_t all = limit_of_all(limits, resource);
	const uint64_t all_used = tenant->tenants->used[resource];
	const struct fa_user *user = tenant->user;
	const bool counted = resource == FA_RESOURCE_BUFFERS || resource == FA_RESOURCE_SESSIONS;

	/* A user leaves others half of what all clients may have. The server checks the sum. */
	if (user && user->uid != tenant->tenants->own_uid && all && counted && limit > all / 2)
		limit = all > 1 ? all / 2 : 1;
	if (!fits(amount, limit, used))
		return fa_fail(error, -EDQUOT,
		               "%" PRIu64 " more would exceed the limit %s, which is %" PRIu64
		               " for a user, of which %" PRIu64 " are in use",
		               amount, fa_resource_name(resource), limit, used);
	if (__builtin_mul_overflow(limit, factor, &user_limit))
		user_limit = UINT64_MAX;
	/* A user leaves half of it to others. */
	if (all && user_limit > all / 2)
		user_limit = limit > all / 2 ? limit : all / 2;
	if (user && !fits(amount, user_limit, user->used[resource]))
		return fa_fail(error, -EDQUOT,
		               "%" PRIu64
		               " more would exceed the limit %s for all cgroups of uid %u "
		               "together, which is %" PRIu64 " (uid_factor is %" PRIu64
		               "), of which %" PRIu64 " are in use",
		               amount, fa_resource_name(resource), (unsigned int)user->uid,
		               user_limit, factor, user->used[resource]);
	if (all && !fits(amount, all, all_used) && resource == FA_RESOURCE_BUFFER_BYTES)
		return fa_fail(error, -EDQUOT,
		               "%" PRIu64 " more would exceed the limit all_buffer_bytes, which is "
		               "%" PRIu64 " for all clients together, of which %" PRIu64
		               " are in use",
		               amount, all, all_used);
	if (all && !fits(amount, all, all_used) && resource == FA_RESOURCE_FDS)
		return fa_fail(
			error, -EDQUOT,
			"%" PRIu64 " more would exceed the descriptors that the daemon has for all "
			"clients together, which are %" PRIu64 " (a part of its RLIMIT_NOFILE)",
			amount, all);
	return 0;
}

int fa_charge_add(struct fa_charge *charge, struct fa_tenant *tenant, enum fa_resource resource,
                  uint64_t amount, struct fa_error *error)
{
	int r;

	assert(!charge->tenant || (charge->tenant == tenant && charge->resource == resource));
	r = check(tenant, resource, amount, error);
	if (r < 0) {
		++tenant->tenants->n_refused;
		return r;
	}
	if (!charge->tenant) {
		charge->tenant = fa_tenant_ref(tenant);
		charge->resource = resource;
	}
	count(tenant, resource, amount);
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

void fa_charge_split(struct fa_charge *from, uint64_t amount, struct fa_charge *ret_charge)
{
	assert(from->tenant && from->amount >= amount);
	*ret_charge = (struct fa_charge){
		.tenant = fa_tenant_ref(from->tenant),
		.resource = from->resource,
		.amount = amount,
	};
	from->amount -= amount;
}

void fa_charge_release(struct fa_charge *charge)
{
	if (!charge->tenant)
		return;
	assert(charge->tenant->used[charge->resource] >= charge->amount);
	count(charge->tenant, charge->resource, -charge->amount);
	fa_tenant_unref(charge->tenant);
	*charge = (struct fa_charge){};
}
