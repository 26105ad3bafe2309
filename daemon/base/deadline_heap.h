/*
 * Deadlines in order: an intrusive pairing heap. Insertion and the earliest are O(1), removal O(log
 * n) amortised; nothing is allocated. One thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* A zeroed deadline is in no heap. */
struct fa_deadline {
	uint64_t at_ns;
	struct fa_deadline *child, *next;
	struct fa_deadline *prev; /* left sibling, or the parent */
	bool linked;
};

struct fa_deadline_heap {
	struct fa_deadline *root;
};

void fa_deadline_heap_insert(struct fa_deadline_heap *deadlines, struct fa_deadline *deadline,
                             uint64_t at_ns);

/* The deadline may be in no heap. */
void fa_deadline_heap_remove(struct fa_deadline_heap *deadlines, struct fa_deadline *deadline);
