/* Intrusive circular doubly linked list. An empty head points at itself. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct fa_list {
	struct fa_list *next, *prev;
};

#define FA_LIST_INIT(head) ((struct fa_list){ &(head), &(head) })

#define fa_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

static inline void fa_list_init(struct fa_list *list)
{
	list->next = list->prev = list;
}

static inline bool fa_list_empty(const struct fa_list *head)
{
	return head->next == head;
}

static inline void fa_list_append(struct fa_list *head, struct fa_list *entry)
{
	entry->next = head;
	entry->prev = head->prev;
	head->prev->next = entry;
	head->prev = entry;
}

/* Removing an entry twice is harmless. */
static inline void fa_list_remove(struct fa_list *entry)
{
	entry->next->prev = entry->prev;
	entry->prev->next = entry->next;
	fa_list_init(entry);
}

static inline void fa_list_splice(struct fa_list *to, struct fa_list *from)
{
	if (fa_list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	fa_list_init(from);
}

#define fa_list_for_each(pos, head) for (pos = (head)->next; pos != (head); pos = pos->next)

/* The loop may remove @pos. */
#define fa_list_for_each_safe(pos, tmp, head)                                                      \
	for (pos = (head)->next, tmp = pos->next; pos != (head); pos = tmp, tmp = pos->next)
