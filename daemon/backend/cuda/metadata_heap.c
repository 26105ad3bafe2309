/*
 * The CUDA backend's room: one allocation in pinned memory and one on the GPU, of which
 * tables and paged requests have spans. No call of the driver after the start. Spans come
 * and go about in order, so that the gap behind the last one that was taken is mostly large
 * enough.
 */
#include "daemon/backend/cuda/backend.h"

#include <errno.h>
#include <string.h>

#define ALIGNMENT ((size_t)256)

int fa_cuda_heap_open(struct fa_device *device, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	struct fa_cuda_heap *room = &device->room;
	CUresult result;
	void *host;

	if (room->host)
		return 0;
	fa_list_init(&room->spans);
	room->last = &room->spans;
	result = driver->cuMemAlloc(&room->at, FA_CUDA_ROOM_BYTES);
	if (result != CUDA_SUCCESS) {
		room->at = 0;
		return fa_cuda_memory_fail(device, error, result, "no memory for tables of pages");
	}
	result = driver->cuMemHostAlloc(&host, FA_CUDA_ROOM_BYTES,
	                                CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
	if (result != CUDA_SUCCESS) {
		(void)driver->cuMemFree(room->at);
		room->at = 0;
		return fa_cuda_memory_fail(device, error, result,
		                           "no pinned memory for tables of pages");
	}
	result = driver->cuMemHostGetDevicePointer(&room->in_place, host, 0);
	if (result != CUDA_SUCCESS) {
		(void)driver->cuMemFreeHost(host);
		(void)driver->cuMemFree(room->at);
		room->at = 0;
		return fa_cuda_memory_fail(device, error, result,
		                           "tables of pages cannot be read by the GPU");
	}
	room->host = host;
	return 0;
}

void fa_cuda_heap_close(struct fa_device *device)
{
	struct fa_cuda_heap *room = &device->room;

	if (room->host)
		(void)device->driver.cuMemFreeHost(room->host);
	if (room->at)
		(void)device->driver.cuMemFree(room->at);
	*room = (struct fa_cuda_heap){ 0 };
}

static const struct fa_cuda_span *span_of(const struct fa_list *link)
{
	return fa_container_of(link, struct fa_cuda_span, link);
}

/* The gap behind @link, which may be the list's head: in front of all. */
static bool fits_behind(const struct fa_cuda_heap *room, const struct fa_list *link, size_t bytes,
                        size_t *ret_begin)
{
	size_t begin = link == &room->spans ? 0 : span_of(link)->end;
	size_t end = link->next == &room->spans ? FA_CUDA_ROOM_BYTES : span_of(link->next)->begin;

	*ret_begin = begin;
	return end - begin >= bytes;
}

bool fa_cuda_heap_take(struct fa_cuda_heap *room, size_t bytes, struct fa_cuda_span *span)
{
	struct fa_list *link = room->last;
	size_t begin;

	if (bytes > FA_CUDA_ROOM_BYTES)
		return false;
	bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	while (!fits_behind(room, link, bytes, &begin)) {
		link = link->next;
		if (link == room->last)
			return false;
	}
	span->begin = begin;
	span->end = begin + bytes;
	/* Behind @link. */
	fa_list_append(link->next, &span->link);
	room->last = &span->link;
	return true;
}

void fa_cuda_heap_cut(struct fa_cuda_span *span, size_t bytes)
{
	span->end = span->begin + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void fa_cuda_heap_give(struct fa_cuda_heap *room, struct fa_cuda_span *span)
{
	if (room->last == &span->link)
		room->last = span->link.prev;
	fa_list_remove(&span->link);
}

/* ---- tables */

int fa_cuda_tables_new(struct fa_device *device, size_t bytes, struct fa_error *error,
                       struct fa_device_tables **ret_tables)
{
	struct fa_cuda_tables *tables;

	tables = fa_new(struct fa_cuda_tables);
	if (!tables)
		return fa_fail(error, -ENOMEM, "no memory for a step's tables");
	if (!fa_cuda_heap_take(&device->room, bytes + FA_CUDA_KEPT_BYTES, &tables->span)) {
		free(tables);
		return fa_fail(error, -ENOMEM,
		               "steps in flight have so large tables that there is no room for "
		               "%zu bytes more",
		               bytes);
	}
	tables->tables.data = device->room.host + tables->span.begin;
	tables->tables.bytes = bytes;
	tables->used = bytes;
	tables->tables.backend[0] = device->room.at + tables->span.begin;
	*ret_tables = &tables->tables;
	return 0;
}

struct fa_device_tables *fa_cuda_tables_free(struct fa_device *device,
                                             struct fa_device_tables *tables)
{
	struct fa_cuda_tables *own;

	if (!tables)
		return NULL;
	own = fa_container_of(tables, struct fa_cuda_tables, tables);
	fa_cuda_heap_give(&device->room, &own->span);
	free(own);
	return NULL;
}
