/*
 * Deadlines in order: a pairing heap of nodes that live in what they belong to.
 * Nothing is allocated; insertion and looking at the earliest are O(1), removal
 * O(log n) amortised. Belongs to one thread, as does every node in it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* All zero: in no heap. */
struct fa_deadline {
	uint64_t at_ns;
	struct fa_deadline *child, *next;
	struct fa_deadline *prev; /* the left sibling; of a first child, the parent */
	bool linked;
};

struct fa_deadline_heap {
	struct fa_deadline *root; /* the earliest; NULL: none */
};

void fa_deadline_heap_insert(struct fa_deadline_heap *deadlines, struct fa_deadline *deadline,
                             uint64_t at_ns);

/* Nothing happens if it is in no heap. */
void fa_deadline_heap_remove(struct fa_deadline_heap *deadlines, struct fa_deadline *deadline);
