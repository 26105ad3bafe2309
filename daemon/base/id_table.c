#include "daemon/base/id_table.h"

#include "common/cleanup.h"

#include <errno.h>

#define SLOTS_MIN 16

static size_t home(const struct fa_id_table *table, uint32_t id)
{
	return (size_t)(id * 0x9e3779b97f4a7c15ull >> 40) & (table->n_slots - 1);
}

void fa_id_table_deinit(struct fa_id_table *table)
{
	free(table->entries);
	*table = (struct fa_id_table){};
}

static size_t probe(const struct fa_id_table *table, uint32_t id)
{
	size_t slot = home(table, id);

	while (table->entries[slot].id && table->entries[slot].id != id)
		slot = (slot + 1) & (table->n_slots - 1);
	return slot;
}

void *fa_id_table_find(const struct fa_id_table *table, uint32_t id)
{
	size_t slot;

	if (!id || !table->n_used)
		return NULL;
	slot = probe(table, id);
	return table->entries[slot].id ? table->entries[slot].value : NULL;
}

static int grow(struct fa_id_table *table)
{
	struct fa_id_table larger = { .n_slots = table->n_slots ? 2 * table->n_slots : SLOTS_MIN,
		                      .n_used = table->n_used };

	larger.entries = calloc(larger.n_slots, sizeof(*larger.entries));
	if (!larger.entries)
		return -ENOMEM;
	for (size_t i = 0; i < table->n_slots; ++i)
		if (table->entries[i].id)
			larger.entries[probe(&larger, table->entries[i].id)] = table->entries[i];
	free(table->entries);
	*table = larger;
	return 0;
}

int fa_id_table_add(struct fa_id_table *table, uint32_t id, void *value)
{
	size_t slot;
	int r;

	if (fa_id_table_find(table, id))
		return -EEXIST;
	if (2 * (table->n_used + 1) > table->n_slots) {
		r = grow(table);
		if (r < 0)
			return r;
	}
	slot = probe(table, id);
	table->entries[slot] = (struct fa_id_table_entry){ .id = id, .value = value };
	++table->n_used;
	if (slot < table->first)
		table->first = slot;
	return 0;
}

/* Also closes the gap in later entries' probe sequences. */
static void *take(struct fa_id_table *table, size_t slot)
{
	void *value = table->entries[slot].value;
	size_t mask = table->n_slots - 1;

	for (size_t next = (slot + 1) & mask; table->entries[next].id; next = (next + 1) & mask) {
		size_t distance = (next - home(table, table->entries[next].id)) & mask;

		if (distance < ((next - slot) & mask))
			continue;
		table->entries[slot] = table->entries[next];
		slot = next;
	}
	table->entries[slot] = (struct fa_id_table_entry){};
	--table->n_used;
	return value;
}

void *fa_id_table_remove(struct fa_id_table *table, uint32_t id)
{
	size_t slot;

	if (!fa_id_table_find(table, id))
		return NULL;
	slot = probe(table, id);
	return take(table, slot);
}

void *fa_id_table_pop(struct fa_id_table *table)
{
	if (!table->n_used)
		return NULL;
	/* take() fills no earlier slot than it empties. */
	while (!table->entries[table->first].id)
		++table->first;
	return take(table, table->first);
}
