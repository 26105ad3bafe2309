#include "tests/daemon/pool-device.h"

#include "daemon/pool/cache_layout.h"
#include "tests/daemon/pool-calls.h"
#include "tests/lib/check.h"

#include <string.h>
#include <sys/mman.h>

static size_t bytes_of(const struct device *device)
{
	return (size_t)device->n_slots * DEVICE_PAGE_TOKENS * sizeof(*device->tokens);
}

void device_init(struct device *device, uint64_t pool_bytes)
{
	void *memory;

	device->n_slots = (uint32_t)(pool_bytes / FA_SLOT_BYTES);
	memory = mmap(NULL, bytes_of(device), PROT_READ | PROT_WRITE,
	              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	fa_check(memory != MAP_FAILED);
	device->tokens = memory;
}

void device_deinit(struct device *device)
{
	munmap(device->tokens, bytes_of(device));
}

uint32_t *device_token(const struct device *device, uint32_t slot, uint32_t token)
{
	fa_check(slot <= device->n_slots - 1);
	fa_check(token <= DEVICE_PAGE_TOKENS - 1);
	return &device->tokens[(size_t)slot * DEVICE_PAGE_TOKENS + token];
}

void device_begin(const struct device *device, const struct fa_pool_step *step)
{
	for (uint32_t g = 0; g < step->n_groups; g++) {
		const struct fa_pool_step_group *group = &step->groups[g];
		size_t bytes = DEVICE_PAGE_TOKENS * sizeof(*device->tokens);

		for (uint32_t i = 0; i < group->n_clears; i++)
			memset(device_token(device, group->clears[i], 0), 0, bytes);
		for (uint32_t i = 0; i < group->n_copies; i++)
			memcpy(device_token(device, group->copies_to[i], 0),
			       device_token(device, group->copies_from[i], 0),
			       group->copies_tokens[i] * sizeof(*device->tokens));
	}
}

const struct fa_pool_step_group *device_group(const struct fa_pool_step *step, uint32_t entry)
{
	const struct fa_pool_step_group *group = step->groups;

	while (entry >= group->end)
		group++;
	return group;
}

uint32_t *device_step_token(const struct device *device, const struct fa_pool_step *step,
                            uint32_t entry, uint64_t position)
{
	const struct fa_pool_step_group *group = device_group(step, entry);
	uint32_t page_tokens = group->layout.page_tokens;
	uint32_t place = group->table_start[entry - group->begin] +
	                 (uint32_t)(position / page_tokens);

	fa_check(place <= group->table_entries - 1);
	return device_token(device, group->table[place], (uint32_t)(position % page_tokens));
}

uint32_t device_read(const struct device *device, struct fa_pool *pool,
                     const struct fa_pool_sequence_info *info, uint32_t page_tokens,
                     uint64_t position)
{
	uint32_t slots[4096];
	size_t n = pool_sequence_slots(pool, info->id, slots, 4096);
	uint64_t page = (position - info->first) / page_tokens;

	fa_check(page <= n - 1);
	return *device_token(device, slots[page], (uint32_t)(position % page_tokens));
}
