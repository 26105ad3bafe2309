#include "daemon/memory/overlap.h"

#include "daemon/memory/tensor_view.h"
#include "schema/overlap.h"

#include <errno.h>
#include <stdlib.h>

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
			/* Each pair of outputs is compared once. */
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

/* ---- many outputs */

/* Limits all exact comparisons of a request together. */
#define OUTPUTS_STEPS_MAX 32768

struct place {
	uint64_t file_system, inode; /* 0: begin and end are addresses */
	uint64_t begin, end;
	/* Stride of dimension 0; extent of the others. */
	uint64_t page_bytes, inner_bytes;
	size_t index;
};

static struct place place_of(const struct fa_tensor_use *use, size_t index)
{
	const struct fa_device_memory *memory = use->memory;
	const struct fa_wire_view *view = use->view;
	const uint64_t bytes = fa_tensor_view_dtype_bytes(view->dtype);
	struct place place = { .index = index };
	uint64_t last = 0;

	for (unsigned int i = 1; i < view->rank; ++i)
		last += (uint64_t)((view->shape[i] - 1) * view->strides[i]);
	place.inner_bytes = (last + 1) * bytes;
	place.page_bytes = (uint64_t)view->strides[0] * bytes;
	place.begin = view->offset;
	if (memory->inode) {
		place.file_system = memory->file_system;
		place.inode = memory->inode;
		place.begin += memory->file_offset;
	} else {
		place.begin += (uintptr_t)memory->address;
	}
	place.end = place.begin + (uint64_t)(view->shape[0] - 1) * place.page_bytes +
	            place.inner_bytes;
	return place;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int compare_places(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->file_system != y->file_system)
		return compare_numbers(x->file_system, y->file_system);
	if (x->inode != y->inode)
		return compare_numbers(x->inode, y->inode);
	return compare_numbers(x->begin, y->begin);
}

/* @a begins first, and @b begins within it. */
static bool places_overlap(const struct fa_tensor_use *uses, const struct place *a,
                           const struct place *b, int *steps)
{
	/* Often both repeat at one distance, and use different parts of each period. */
	if (a->page_bytes == b->page_bytes && a->page_bytes) {
		const uint64_t delta = (b->begin - a->begin) % a->page_bytes;

		if (delta >= a->inner_bytes && delta + b->inner_bytes <= a->page_bytes)
			return false;
	}
	return fa_wire_views_overlap_within(
		uses[a->index].view, a->begin - uses[a->index].view->offset, uses[b->index].view,
		b->begin - uses[b->index].view->offset, steps);
}

bool fa_tensor_outputs_overlap(const struct fa_tensor_use *uses, size_t n, size_t *ret_a,
                               size_t *ret_b)
{
	struct place places[FA_TENSOR_OUTPUTS_MAX];
	int steps = OUTPUTS_STEPS_MAX;

	for (size_t i = 0; i < n; ++i)
		places[i] = place_of(&uses[i], i);
	qsort(places, n, sizeof(*places), compare_places);
	for (size_t i = 0; i < n; ++i)
		for (size_t j = i + 1; j < n; ++j) {
			const struct place *a = &places[i], *b = &places[j];

			if (b->file_system != a->file_system || b->inode != a->inode ||
			    b->begin >= a->end)
				break;
			if (!places_overlap(uses, a, b, &steps))
				continue;
			*ret_a = a->index;
			*ret_b = b->index;
			return true;
		}
	return false;
}
