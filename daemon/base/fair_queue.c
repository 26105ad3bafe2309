#include "daemon/base/fair_queue.h"

#include "common/list.h"

/* At every eighth choice normal priority goes first. */
#define NORMAL_PICK 8

static bool group_empty(const struct fa_fair_queue_group *group)
{
	for (int i = 0; i < _FA_FAIR_QUEUE_CLASS_N; i++)
		if (!fa_list_empty(&group->ready[i]))
			return false;
	return true;
}

void fa_fair_queue_group_init(struct fa_fair_queue_group *group)
{
	*group = (struct fa_fair_queue_group){ 0 };
	for (int i = 0; i < _FA_FAIR_QUEUE_CLASS_N; i++)
		fa_list_init(&group->ready[i]);
}

void fa_fair_queue_add(struct fa_fair_queue *queue, struct fa_fair_queue_group *group,
                       enum fa_fair_queue_class class, struct fa_list *link)
{
	if (group_empty(group)) {
		if (group->used + queue->slack < queue->floor)
			group->used = queue->floor - queue->slack;
		fa_deadline_heap_insert(&queue->groups, &group->place, group->used);
	}
	fa_list_append(&group->ready[class], link);
}

void fa_fair_queue_remove(struct fa_fair_queue *queue, struct fa_fair_queue_group *group,
                          struct fa_list *link)
{
	fa_list_remove(link);
	if (group_empty(group))
		fa_deadline_heap_remove(&queue->groups, &group->place);
}

struct fa_list *fa_fair_queue_next(struct fa_fair_queue *queue)
{
	enum fa_fair_queue_class class = FA_FAIR_QUEUE_HIGH;
	struct fa_fair_queue_group *group;
	struct fa_list *link;

	if (fa_fair_queue_empty(queue))
		return NULL;
	group = fa_container_of(queue->groups.root, struct fa_fair_queue_group, place);
	if (queue->floor < group->used)
		queue->floor = group->used;
	if (fa_list_empty(&group->ready[FA_FAIR_QUEUE_HIGH]) ||
	    (!fa_list_empty(&group->ready[FA_FAIR_QUEUE_NORMAL]) &&
	     ++group->n_picks % NORMAL_PICK == 0))
		class = FA_FAIR_QUEUE_NORMAL;
	link = group->ready[class].next;
	fa_list_remove(link);
	fa_list_append(&group->ready[class], link);
	return link;
}

void fa_fair_queue_put_back(struct fa_fair_queue_group *group, enum fa_fair_queue_class class,
                            struct fa_list *link)
{
	if (!fa_list_empty(&group->ready[FA_FAIR_QUEUE_HIGH]) &&
	    !fa_list_empty(&group->ready[FA_FAIR_QUEUE_NORMAL]))
		--group->n_picks;
	fa_list_remove(link);
	fa_list_append(group->ready[class].next, link);
}

void fa_fair_queue_charge(struct fa_fair_queue *queue, struct fa_fair_queue_group *group,
                          int64_t amount)
{
	group->used += (uint64_t)amount;
	if (group_empty(group))
		return;
	fa_deadline_heap_remove(&queue->groups, &group->place);
	fa_deadline_heap_insert(&queue->groups, &group->place, group->used);
}
