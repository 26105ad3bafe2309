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
#include "daemon/deadline.h"

#include <stdint.h>

enum fa_turns_class {
	FA_TURNS_HIGH,
	FA_TURNS_NORMAL,
	_FA_TURNS_CLASS_N,
};

struct fa_turns {
	struct fa_deadlines groups; /* those that have something, by what they used */
	uint64_t floor;             /* what the last one served had used; never falls */
	uint64_t slack;             /* the caller's */
};

struct fa_turns_group {
	struct fa_deadline place;
	uint64_t used;
	struct fa_list ready[_FA_TURNS_CLASS_N]; /* what stands here, next ones first */
	unsigned int n_turns;                    /* in which there was a choice */
};

static inline enum fa_turns_class fa_turns_class(int priority)
{
	return priority > 0 ? FA_TURNS_HIGH : FA_TURNS_NORMAL;
}

/* A zeroed struct fa_turns needs no such thing; its slack is none. */
void fa_turns_group_init(struct fa_turns_group *group);

/* Adds @link, which is in no list, to @group. */
void fa_turns_add(struct fa_turns *turns, struct fa_turns_group *group, enum fa_turns_class class,
                  struct fa_list *link);

/* Nothing happens if it is not there. */
void fa_turns_remove(struct fa_turns *turns, struct fa_turns_group *group, struct fa_list *link);

static inline bool fa_turns_empty(const struct fa_turns *turns)
{
	return !turns->groups.root;
}

/* The link whose turn it is, which goes to the end of its line; NULL: there is none. */
struct fa_list *fa_turns_next(struct fa_turns *turns);

/* @group has used @amount more, or so much less than was thought. */
void fa_turns_charge(struct fa_turns *turns, struct fa_turns_group *group, int64_t amount);
