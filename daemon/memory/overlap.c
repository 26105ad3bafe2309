#include "daemon/memory/overlap.h"

#include "schema/overlap.h"

#include <errno.h>

static bool overlap(const struct fa_tensor_use *a, const struct fa_tensor_use *b)
{
	const struct fa_device_memory *memory = a->memory, *other = b->memory;

	if (memory == other)
		return fa_wire_views_overlap(a->view, 0, b->view, 0);
	if (memory->inode && memory->inode == other->inode &&
	    memory->file_system == other->file_system)
		return fa_wire_views_overlap(a->view, memory->file_offset, b->view,
		                             other->file_offset);
	return fa_wire_views_overlap(a->view, (uintptr_t)memory->address, b->view,
	                             (uintptr_t)other->address);
}

int fa_tensor_uses_check(const struct fa_tensor_use *uses, size_t n, struct fa_error *error)
{
	for (size_t i = 0; i < n; ++i) {
		if (!uses[i].written || !uses[i].view->rank)
			continue;
		for (size_t j = 0; j < n; ++j) {
			/* Of two outputs the first one is compared with the second. */
			if (i == j || !uses[j].view->rank || (uses[j].written && j < i))
				continue;
			if (overlap(&uses[i], &uses[j]))
				return fa_fail(error, -EINVAL,
				               "%s overlaps %s; expected memory of its own, as %s "
				               "is written",
				               uses[i].name, uses[j].name, uses[i].name);
		}
	}
	return 0;
}
