/*
 * A handle is kind (3 bits), index (24 bits) and serial number (37 bits). The table grows by
 * chunks, each as large as all before it, which stay until the library is unloaded. At least half
 * of the entries are free: a free one is found soon.
 */
#include "client/handle.h"

#include "client/last_error.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define KIND_BITS 3
#define INDEX_BITS 24
#define SERIAL_SHIFT (KIND_BITS + INDEX_BITS)

#define FIRST_CHUNK 64
#define CHUNKS 18 /* all of them have nearly 2^24 entries */

#define TAKEN UINT64_MAX /* being filled or emptied */

_Static_assert(sizeof(void *) == sizeof(uint64_t), "a handle has 64 bits");

struct entry {
	atomic_uint_fast64_t handle; /* 0: free */
	_Atomic(void *) object;
};

static struct {
	_Atomic(struct entry *) chunks[CHUNKS];
	atomic_uint_fast64_t live, next, serial;
} table;

static struct entry *entry_at(uint64_t index)
{
	const unsigned int chunk = 57 - (unsigned int)__builtin_clzll(index + FIRST_CHUNK);
	struct entry *entries;

	if (chunk >= CHUNKS)
		return NULL;
	entries = atomic_load_explicit(&table.chunks[chunk], memory_order_acquire);
	return entries ? &entries[index + FIRST_CHUNK - ((uint64_t)FIRST_CHUNK << chunk)] : NULL;
}

/* Allocates chunks of the table until it has at least twice @live entries. Returns the number of
 * entries; 0: no memory. */
static uint64_t reserve(uint64_t live)
{
	uint64_t n = 0;

	for (unsigned int i = 0; i < CHUNKS; ++i) {
		const uint64_t size = (uint64_t)FIRST_CHUNK << i;
		struct entry *none = NULL;

		if (!atomic_load(&table.chunks[i])) {
			struct entry *entries;

			if (n >= 2 * live)
				return n;
			entries = calloc(size, sizeof(*entries));
			if (!entries)
				return 0;
			if (!atomic_compare_exchange_strong(&table.chunks[i], &none, entries))
				free(entries);
		}
		n += size;
	}
	return n >= 2 * live ? n : 0;
}

int fa_handle_new(enum fa_handle_kind kind, void *object, void **ret_handle)
{
	const uint64_t n = reserve(atomic_fetch_add(&table.live, 1) + 1);

	if (!n) {
		atomic_fetch_sub(&table.live, 1);
		return fa_error_set(-ENOMEM, "no memory for a handle");
	}
	for (;;) {
		const uint64_t index = atomic_fetch_add(&table.next, 1) % n;
		struct entry *entry = entry_at(index);
		uint_fast64_t free_entry = 0;
		uint64_t handle;

		if (!atomic_compare_exchange_strong(&entry->handle, &free_entry, TAKEN))
			continue;
		/* Serials begin at 0; the kind makes the handle differ from NULL. */
		handle = atomic_fetch_add(&table.serial, 1) << SERIAL_SHIFT | index << KIND_BITS |
		         (uint64_t)kind;
		atomic_store_explicit(&entry->object, object, memory_order_relaxed);
		atomic_store_explicit(&entry->handle, handle, memory_order_release);
		*ret_handle = (void *)(uintptr_t)handle;
		return 0;
	}
}

static struct entry *entry_of(enum fa_handle_kind kind, uint64_t handle)
{
	if ((handle & ((1u << KIND_BITS) - 1)) != (uint64_t)kind || handle == TAKEN)
		return NULL;
	return entry_at(handle >> KIND_BITS & ((1u << INDEX_BITS) - 1));
}

void *fa_handle_find(enum fa_handle_kind kind, const void *handle)
{
	const uint64_t value = (uintptr_t)handle;
	struct entry *entry = entry_of(kind, value);

	if (!entry || atomic_load_explicit(&entry->handle, memory_order_acquire) != value)
		return NULL;
	return atomic_load_explicit(&entry->object, memory_order_relaxed);
}

void *fa_handle_take(enum fa_handle_kind kind, const void *handle)
{
	uint_fast64_t value = (uintptr_t)handle;
	struct entry *entry = entry_of(kind, value);
	void *object;

	if (!entry || !atomic_compare_exchange_strong(&entry->handle, &value, TAKEN))
		return NULL;
	object = atomic_exchange(&entry->object, NULL);
	atomic_store(&entry->handle, 0);
	atomic_fetch_sub(&table.live, 1);
	return object;
}

/* Frees the table when the library is unloaded, unless the program still has handles. */
static __attribute__((destructor)) void unload(void)
{
	if (atomic_load(&table.live))
		return;
	for (unsigned int i = 0; i < CHUNKS; ++i)
		free(atomic_exchange(&table.chunks[i], NULL));
}
