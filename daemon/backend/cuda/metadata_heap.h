/* Tables and paged works' metadata: pinned host memory and as much on the GPU. A span is written on
 * the host and copied to the same offset. Lives as long as the pool. Loop thread. */
#pragma once

#include "common/cudriver.h"
#include "common/list.h"

#include <stdbool.h>

#define FA_CUDA_HEAP_BYTES ((size_t)64 << 20)

struct fa_cuda_span {
	struct fa_list link; /* heap.spans, by offset */
	size_t begin, end;
};

struct fa_cuda_heap {
	char *host;           /* NULL: not open */
	CUdeviceptr at;       /* the GPU's memory */
	CUdeviceptr in_place; /* the host memory, for the GPU */
	struct fa_list spans;
	struct fa_list *last; /* allocated last; search behind it */
};

/* Does nothing if the heap is open. *ret_doing: what failed. */
CUresult fa_cuda_heap_open(struct fa_cuda_heap *heap, const struct fa_cudriver *driver,
                           const char **ret_doing);
void fa_cuda_heap_close(struct fa_cuda_heap *heap, const struct fa_cudriver *driver);

/* Aligned to 256 bytes. False: no gap is large enough. */
bool fa_cuda_heap_alloc(struct fa_cuda_heap *heap, size_t bytes, struct fa_cuda_span *span);
void fa_cuda_heap_shrink(struct fa_cuda_span *span, size_t bytes);
void fa_cuda_heap_free(struct fa_cuda_heap *heap, struct fa_cuda_span *span);
