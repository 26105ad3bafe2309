/*
 * Bounds the tenants with series of their own: a slot each, which goes to the next tenant when its
 * own is gone. All others are one, "other", whose counters never fall while the daemon lives.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define FA_FOLD_SLOTS_MAX 128
/* Counters of a tenant, with the entries of its histograms. */
#define FA_FOLD_COUNTERS 86

struct fa_fold_counters {
	uint64_t n[FA_FOLD_COUNTERS];
};

struct fa_fold_slot {
	char *cgroup; /* NULL: the slot is free */
	int64_t uid;
	uint64_t round; /* the last with the tenant */
	struct fa_fold_counters last;
};

struct fa_fold {
	size_t n_slots;
	struct fa_fold_slot slots[FA_FOLD_SLOTS_MAX];
	int64_t generation; /* of the counters' daemon */
	uint64_t round;
	struct fa_fold_counters left;  /* of tenants that lost their slot */
	struct fa_fold_counters other; /* of all without a slot; last value */
};

void fa_fold_deinit(struct fa_fold *fold);

/* Replaces the tenants of @status, for the daemon's observer, root or its own user. Returns 0 or
 * -ENOMEM. */
int fa_fold_apply(struct fa_fold *fold, json_t *status);
