/* The search begins at the last span: as spans are freed about in order, the gap there mostly
 * suffices. */
#include "daemon/backend/cuda/metadata_heap.h"

#define ALIGNMENT ((size_t)256)

CUresult fa_cuda_heap_open(struct fa_cuda_heap *heap, const struct fa_cudriver *driver,
                           const char **ret_doing)
{
	CUresult result;
	void *host;

	if (heap->host)
		return CUDA_SUCCESS;
	fa_list_init(&heap->spans);
	heap->last = &heap->spans;
	*ret_doing = "no memory for tables of pages";
	result = driver->cuMemAlloc(&heap->at, FA_CUDA_HEAP_BYTES);
	if (result != CUDA_SUCCESS) {
		heap->at = 0;
		return result;
	}
	*ret_doing = "no pinned memory for tables of pages";
	result = driver->cuMemHostAlloc(&host, FA_CUDA_HEAP_BYTES,
	                                CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
	if (result == CUDA_SUCCESS) {
		heap->host = host;
		*ret_doing = "tables of pages cannot be read by the GPU";
		result = driver->cuMemHostGetDevicePointer(&heap->in_place, host, 0);
	}
	if (result != CUDA_SUCCESS)
		fa_cuda_heap_close(heap, driver);
	return result;
}

void fa_cuda_heap_close(struct fa_cuda_heap *heap, const struct fa_cudriver *driver)
{
	if (heap->host)
		(void)driver->cuMemFreeHost(heap->host);
	if (heap->at)
		(void)driver->cuMemFree(heap->at);
	*heap = (struct fa_cuda_heap){ 0 };
}

static const struct fa_cuda_span *span_of(const struct fa_list *link)
{
	return fa_container_of(link, struct fa_cuda_span, link);
}

/* @link: a span; for the first gap the list's head. */
static bool fits_behind(const struct fa_cuda_heap *heap, const struct fa_list *link, size_t bytes,
                        size_t *ret_begin)
{
	size_t begin = link == &heap->spans ? 0 : span_of(link)->end;
	size_t end = link->next == &heap->spans ? FA_CUDA_HEAP_BYTES : span_of(link->next)->begin;

	*ret_begin = begin;
	return end - begin >= bytes;
}

bool fa_cuda_heap_alloc(struct fa_cuda_heap *heap, size_t bytes, struct fa_cuda_span *span)
{
	struct fa_list *link = heap->last;
	size_t begin;

	if (bytes > FA_CUDA_HEAP_BYTES)
		return false;
	bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	while (!fits_behind(heap, link, bytes, &begin)) {
		link = link->next;
		if (link == heap->last)
			return false;
	}
	span->begin = begin;
	span->end = begin + bytes;
	fa_list_append(link->next, &span->link);
	heap->last = &span->link;
	return true;
}

void fa_cuda_heap_shrink(struct fa_cuda_span *span, size_t bytes)
{
	span->end = span->begin + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void fa_cuda_heap_free(struct fa_cuda_heap *heap, struct fa_cuda_span *span)
{
	if (heap->last == &span->link)
		heap->last = span->link.prev;
	fa_list_remove(&span->link);
}
