/*
 * A fair queue of groups. The group that has used least is next, so groups get equal shares however
 * many entries they have. A group that was empty may claim what it left to others, up to the slack.
 * Inside a group high priority goes first, except at every eighth pick; equals go round robin.
 *
 * The caller charges use in any unit. One thread or one lock.
 */
#pragma once

#include "common/list.h"
#include "daemon/base/deadline_heap.h"

#include <stdint.h>

enum fa_fair_queue_class {
	FA_FAIR_QUEUE_HIGH,
	FA_FAIR_QUEUE_NORMAL,
	_FA_FAIR_QUEUE_CLASS_N,
};

struct fa_fair_queue {
	struct fa_deadline_heap groups; /* groups with entries */
	uint64_t floor;                 /* use of the group served last; never falls */
	uint64_t slack;
};

struct fa_fair_queue_group {
	struct fa_deadline place;
	uint64_t used;
	struct fa_list ready[_FA_FAIR_QUEUE_CLASS_N];
	/* with a choice between classes */
	unsigned int n_picks;
};

static inline enum fa_fair_queue_class fa_fair_queue_class(int priority)
{
	return priority > 0 ? FA_FAIR_QUEUE_HIGH : FA_FAIR_QUEUE_NORMAL;
}

/* A struct fa_fair_queue starts zeroed, with no slack. */
void fa_fair_queue_group_init(struct fa_fair_queue_group *group);

void fa_fair_queue_add(struct fa_fair_queue *queue, struct fa_fair_queue_group *group,
                       enum fa_fair_queue_class class, struct fa_list *link);

/* Does nothing if @link is in no list. */
void fa_fair_queue_remove(struct fa_fair_queue *queue, struct fa_fair_queue_group *group,
                          struct fa_list *link);

static inline bool fa_fair_queue_empty(const struct fa_fair_queue *queue)
{
	return !queue->groups.root;
}

/* Returns the entry to serve next, which moves to the end of its class; NULL: none. */
struct fa_list *fa_fair_queue_next(struct fa_fair_queue *queue);

/* Undoes the last fa_fair_queue_next(), which returned @link. */
void fa_fair_queue_put_back(struct fa_fair_queue_group *group, enum fa_fair_queue_class class,
                            struct fa_list *link);

/* A negative @amount is a refund. */
void fa_fair_queue_charge(struct fa_fair_queue *queue, struct fa_fair_queue_group *group,
                          int64_t amount);
