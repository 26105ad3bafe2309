#include "daemon/backend/cuda/tables.h"

#include "common/cleanup.h"

#include <errno.h>
#include <stdlib.h>

int fa_cuda_tables_new(struct fa_device *device, size_t bytes, struct fa_error *error,
                       struct fa_device_tables **ret_tables)
{
	struct fa_cuda_tables *tables;

	tables = fa_new(struct fa_cuda_tables);
	if (!tables)
		return fa_fail(error, -ENOMEM, "no memory for a step's tables");
	if (!fa_cuda_heap_alloc(&device->heap, bytes + FA_CUDA_CACHED_PLANS_BYTES, &tables->span)) {
		free(tables);
		return fa_fail(error, -ENOMEM,
		               "steps in flight have so large tables that there is no room for "
		               "%zu bytes more",
		               bytes);
	}
	tables->tables.data = device->heap.host + tables->span.begin;
	tables->tables.bytes = bytes;
	tables->used = bytes;
	tables->tables.backend[0] = device->heap.at + tables->span.begin;
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
	fa_cuda_heap_free(&device->heap, &own->span);
	free(own);
	return NULL;
}
