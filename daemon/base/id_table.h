/*
 * A hash table from ids that clients choose (not 0) to objects: linear probing, at most half full.
 * Bounded by the caller to a few thousand entries: even ids chosen to collide cost microseconds.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct fa_id_table_entry {
	uint32_t id; /* 0: empty */
	void *value;
};

/* A zeroed table is empty. */
struct fa_id_table {
	struct fa_id_table_entry *entries;
	size_t n_slots; /* a power of two, or 0 */
	size_t n_used;
	size_t first;
};

void fa_id_table_deinit(struct fa_id_table *table);

void *fa_id_table_find(const struct fa_id_table *table, uint32_t id);

/* @value is not NULL. -EEXIST, -ENOMEM. */
int fa_id_table_add(struct fa_id_table *table, uint32_t id, void *value);

void *fa_id_table_remove(struct fa_id_table *table, uint32_t id);

/* Removes any value; NULL: the table is empty. */
void *fa_id_table_pop(struct fa_id_table *table);
