/*
 * Whose turn it is. What wants to be served stands in groups: a session's streams, or
 * their works. Of the groups that have something, the one that has used least is next,
 * so that they get equal shares however much stands in each. One that comes back has a
 * claim to what it left to others, up to the slack and no further. Inside a group what is urgent
 * goes first, but for every eighth turn, so that it cannot starve the rest; what is equally
 * urgent takes turns. So urgency is of no use against another group.
 *
 * What is used is counted by the caller, in a unit of its choice. Nothing is allocated.
 * Everything here belongs to one thread, or to a lock.
 */
#pragma once

#include "common/list.h"
#include "daemon/base/deadline_heap.h"

#include <stdint.h>

enum fa_fair_queue_class {
	FA_TURNS_HIGH,
	FA_TURNS_NORMAL,
	_FA_TURNS_CLASS_N,
};

struct fa_fair_queue {
	struct fa_deadline_heap groups; /* those that have something, by what they used */
	uint64_t floor;                 /* what the last one served had used; never falls */
	uint64_t slack;                 /* the caller's */
};

struct fa_fair_queue_group {
	struct fa_deadline place;
	uint64_t used;
	struct fa_list ready[_FA_TURNS_CLASS_N]; /* what stands here, next ones first */
	unsigned int n_turns;                    /* in which there was a choice */
};

static inline enum fa_fair_queue_class fa_fair_queue_class(int priority)
{
	return priority > 0 ? FA_TURNS_HIGH : FA_TURNS_NORMAL;
}

/* A zeroed struct fa_fair_queue needs no such thing; its slack is none. */
void fa_fair_queue_group_init(struct fa_fair_queue_group *group);

/* Adds @link, which is in no list, to @group. */
void fa_fair_queue_add(struct fa_fair_queue *turns, struct fa_fair_queue_group *group,
                       enum fa_fair_queue_class class, struct fa_list *link);

/* Nothing happens if it is not there. */
void fa_fair_queue_remove(struct fa_fair_queue *turns, struct fa_fair_queue_group *group,
                          struct fa_list *link);

static inline bool fa_fair_queue_empty(const struct fa_fair_queue *turns)
{
	return !turns->groups.root;
}

/* The link whose turn it is, which goes to the end of its line; NULL: there is none. */
struct fa_list *fa_fair_queue_next(struct fa_fair_queue *turns);

/* @group has used @amount more, or so much less than was thought. */
void fa_fair_queue_charge(struct fa_fair_queue *turns, struct fa_fair_queue_group *group,
                          int64_t amount);
