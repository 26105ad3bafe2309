#include "daemon/base/deadline_heap.h"

#include <stddef.h>

/* The later root becomes the earlier one's first child. */
static struct fa_deadline *merge(struct fa_deadline *a, struct fa_deadline *b)
{
	struct fa_deadline *tmp;

	if (!a || !b)
		return a ? a : b;
	if (b->at_ns < a->at_ns) {
		tmp = a;
		a = b;
		b = tmp;
	}
	b->prev = a;
	b->next = a->child;
	if (b->next)
		b->next->prev = b;
	a->child = b;
	return a;
}

/* Merges pairs from the left, then all from the right, so that removal is amortised logarithmic. */
static struct fa_deadline *merge_siblings(struct fa_deadline *first)
{
	struct fa_deadline *a, *b, *pairs = NULL, *root = NULL;

	while (first) {
		a = first;
		b = a->next;
		first = b ? b->next : NULL;
		a->next = NULL;
		if (b)
			b->next = NULL;
		a = merge(a, b);
		a->next = pairs;
		pairs = a;
	}
	while (pairs) {
		a = pairs;
		pairs = a->next;
		a->next = NULL;
		root = merge(root, a);
	}
	if (root)
		root->prev = NULL;
	return root;
}

void fa_deadline_heap_insert(struct fa_deadline_heap *deadlines, struct fa_deadline *deadline,
                             uint64_t at_ns)
{
	*deadline = (struct fa_deadline){ .at_ns = at_ns, .linked = true };
	deadlines->root = merge(deadlines->root, deadline);
}

void fa_deadline_heap_remove(struct fa_deadline_heap *deadlines, struct fa_deadline *deadline)
{
	struct fa_deadline *orphans;

	if (!deadline->linked)
		return;
	orphans = merge_siblings(deadline->child);
	if (deadline == deadlines->root) {
		deadlines->root = orphans;
	} else {
		if (deadline->prev->child == deadline)
			deadline->prev->child = deadline->next;
		else
			deadline->prev->next = deadline->next;
		if (deadline->next)
			deadline->next->prev = deadline->prev;
		deadlines->root = merge(deadlines->root, orphans);
	}
	*deadline = (struct fa_deadline){ 0 };
}
