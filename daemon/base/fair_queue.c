#include "daemon/base/fair_queue.h"

#include "common/list.h"

/* Every so many turns the normal ones go before the urgent ones. */
#define NORMAL_TURN 8

static bool group_empty(const struct fa_fair_queue_group *group)
{
	for (int i = 0; i < _FA_TURNS_CLASS_N; i++)
		if (!fa_list_empty(&group->ready[i]))
			return false;
	return true;
}

void fa_fair_queue_group_init(struct fa_fair_queue_group *group)
{
	*group = (struct fa_fair_queue_group){ 0 };
	for (int i = 0; i < _FA_TURNS_CLASS_N; i++)
		fa_list_init(&group->ready[i]);
}

void fa_fair_queue_add(struct fa_fair_queue *turns, struct fa_fair_queue_group *group,
                       enum fa_fair_queue_class class, struct fa_list *link)
{
	if (group_empty(group)) {
		if (group->used + turns->slack < turns->floor)
			group->used = turns->floor - turns->slack;
		fa_deadline_heap_insert(&turns->groups, &group->place, group->used);
	}
	fa_list_append(&group->ready[class], link);
}

void fa_fair_queue_remove(struct fa_fair_queue *turns, struct fa_fair_queue_group *group,
                          struct fa_list *link)
{
	fa_list_remove(link);
	if (group_empty(group))
		fa_deadline_heap_remove(&turns->groups, &group->place);
}

struct fa_list *fa_fair_queue_next(struct fa_fair_queue *turns)
{
	enum fa_fair_queue_class class = FA_TURNS_HIGH;
	struct fa_fair_queue_group *group;
	struct fa_list *link;

	if (fa_fair_queue_empty(turns))
		return NULL;
	group = fa_container_of(turns->groups.root, struct fa_fair_queue_group, place);
	if (turns->floor < group->used)
		turns->floor = group->used;
	if (fa_list_empty(&group->ready[FA_TURNS_HIGH]) ||
	    (!fa_list_empty(&group->ready[FA_TURNS_NORMAL]) && ++group->n_turns % NORMAL_TURN == 0))
		class = FA_TURNS_NORMAL;
	link = group->ready[class].next;
	fa_list_remove(link);
	fa_list_append(&group->ready[class], link);
	return link;
}

void fa_fair_queue_charge(struct fa_fair_queue *turns, struct fa_fair_queue_group *group,
                          int64_t amount)
{
	group->used += (uint64_t)amount;
	if (group_empty(group))
		return;
	fa_deadline_heap_remove(&turns->groups, &group->place);
	fa_deadline_heap_insert(&turns->groups, &group->place, group->used);
}
