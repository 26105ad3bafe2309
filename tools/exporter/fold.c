#include "tools/exporter/fold.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 25

static const struct {
	const char *key, *sum_key;
} counter_keys[] = {
	{ "finished", "client_finished" },
	{ "failed", "client_failed" },
	{ "cancelled", "client_cancelled" },
	{ "busy_ns", "client_busy_ns" },
	{ "took_ns", "took_ns" },
	{ "waited_ns", "waited_ns" },
	{ "ran_ns", "ran_ns" },
	{ "prefix_lookups", "prefix_lookups" },
	{ "prefix_hits", "prefix_hits" },
	{ "prefix_tokens", "prefix_tokens" },
	{ "prefix_matched", "prefix_matched" },
};
static const char *const list_keys[] = { "took", "waited", "ran" };

#define N(array) (sizeof(array) / sizeof((array)[0]))

_Static_assert(N(counter_keys) + N(list_keys) * BUCKETS == FA_FOLD_COUNTERS, "all counters");

void fa_fold_deinit(struct fa_fold *fold)
{
	for (size_t i = 0; i < FA_FOLD_SLOTS_MAX; ++i) {
		free(fold->slots[i].cgroup);
		fold->slots[i].cgroup = NULL;
	}
}

static void read_counters(const json_t *object, bool sums, struct fa_fold_counters *ret_counters)
{
	uint64_t *n = ret_counters->n;

	for (size_t i = 0; i < N(counter_keys); ++i)
		*n++ = (uint64_t)json_integer_value(json_object_get(
			object, sums ? counter_keys[i].sum_key : counter_keys[i].key));
	for (size_t i = 0; i < N(list_keys); ++i)
		for (size_t j = 0; j < BUCKETS; ++j)
			*n++ = (uint64_t)json_integer_value(
				json_array_get(json_object_get(object, list_keys[i]), j));
}

static json_t *write_counters(const struct fa_fold_counters *counters)
{
	const uint64_t *n = counters->n;
	json_t *object = json_object();
	int r = 0;

	for (size_t i = 0; i < N(counter_keys); ++i)
		r |= json_object_set_new(object, counter_keys[i].key,
		                         json_integer((json_int_t)*n++));
	for (size_t i = 0; i < N(list_keys); ++i) {
		json_t *list = json_array();

		for (size_t j = 0; j < BUCKETS; ++j)
			r |= json_array_append_new(list, json_integer((json_int_t)*n++));
		r |= json_object_set_new(object, list_keys[i], list);
	}
	if (r) {
		json_decref(object);
		return NULL;
	}
	return object;
}

static const char *cgroup_of(const json_t *tenant)
{
	const char *cgroup = json_string_value(json_object_get(tenant, "cgroup"));

	return cgroup ? cgroup : "";
}

static int64_t uid_of(const json_t *tenant)
{
	return json_integer_value(json_object_get(tenant, "uid"));
}

static struct fa_fold_slot *find(struct fa_fold *fold, const json_t *tenant)
{
	for (size_t i = 0; i < fold->n_slots; ++i) {
		struct fa_fold_slot *slot = &fold->slots[i];

		if (slot->cgroup && slot->uid == uid_of(tenant) &&
		    strcmp(slot->cgroup, cgroup_of(tenant)) == 0)
			return slot;
	}
	return NULL;
}

/* A free slot, else that of the tenant longest away; NULL: all are present. */
static struct fa_fold_slot *take(struct fa_fold *fold)
{
	struct fa_fold_slot *found = NULL;

	for (size_t i = 0; i < fold->n_slots; ++i) {
		struct fa_fold_slot *slot = &fold->slots[i];

		if (!slot->cgroup)
			return slot;
		if (slot->round != fold->round && (!found || slot->round < found->round))
			found = slot;
	}
	if (found) {
		for (size_t i = 0; i < FA_FOLD_COUNTERS; ++i)
			fold->left.n[i] += found->last.n[i];
		free(found->cgroup);
		found->cgroup = NULL;
	}
	return found;
}

/* Tenants that have a slot keep it; others may take what is left. */
static int assign(struct fa_fold *fold, const json_t *tenants)
{
	struct fa_fold_slot *slot;
	json_t *tenant;
	size_t at;

	json_array_foreach(tenants, at, tenant)
	{
		slot = find(fold, tenant);
		if (slot) {
			slot->round = fold->round;
			read_counters(tenant, false, &slot->last);
		}
	}
	json_array_foreach(tenants, at, tenant)
	{
		if (find(fold, tenant) || !(slot = take(fold)))
			continue;
		slot->cgroup = strdup(cgroup_of(tenant));
		if (!slot->cgroup)
			return -ENOMEM;
		slot->uid = uid_of(tenant);
		slot->round = fold->round;
		read_counters(tenant, false, &slot->last);
	}
	return 0;
}

static bool sum_others(struct fa_fold *fold, const json_t *requests)
{
	struct fa_fold_counters sums;
	bool any = false;

	read_counters(requests, true, &sums);
	for (size_t i = 0; i < FA_FOLD_COUNTERS; ++i) {
		uint64_t n = sums.n[i], own = fold->left.n[i];

		for (size_t j = 0; j < fold->n_slots; ++j)
			own += fold->slots[j].cgroup ? fold->slots[j].last.n[i] : 0;
		n = n > own ? n - own : 0;
		/* A tenant that comes back into a slot takes along what it had among the others. */
		if (n > fold->other.n[i])
			fold->other.n[i] = n;
		any |= fold->other.n[i] > 0;
	}
	return any;
}

static int filter(struct fa_fold *fold, json_t *object)
{
	json_t *tenants = json_object_get(object, "tenants"), *kept = json_array(), *tenant;
	size_t at;
	int r = 0;

	json_array_foreach(tenants, at, tenant)
	{
		if (find(fold, tenant))
			r |= json_array_append(kept, tenant);
	}
	r |= json_object_set_new(object, "tenants", kept);
	return r ? -ENOMEM : 0;
}

int fa_fold_apply(struct fa_fold *fold, json_t *status)
{
	const json_t *requests = json_object_get(status, "requests");
	const int64_t generation = json_integer_value(json_object_get(status, "generation"));
	const json_t *first = json_array_get(json_object_get(status, "tenants"), 0);
	json_t *limits = json_object_get(first, "limits"), *pool = json_object_get(status, "pool");
	json_t *other;
	int r;

	if (!json_object_get(requests, "client_finished"))
		return 0;
	if (generation != fold->generation) {
		fa_fold_deinit(fold);
		fold->generation = generation;
		fold->left = fold->other = (struct fa_fold_counters){};
	}
	++fold->round;
	json_incref(limits); /* the same for all tenants */
	r = assign(fold, json_object_get(status, "tenants"));
	if (r == 0)
		r = filter(fold, status);
	if (r == 0 && json_is_array(json_object_get(pool, "tenants")))
		r = filter(fold, pool);
	if (r < 0 || !sum_others(fold, requests)) {
		json_decref(limits);
		return r;
	}
	other = write_counters(&fold->other);
	if (limits && json_object_set_new(other, "limits", limits))
		r = -ENOMEM;
	return json_array_append_new(json_object_get(status, "tenants"), other) ? -ENOMEM : r;
}
