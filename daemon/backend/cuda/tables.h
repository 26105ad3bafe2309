/* A step's tables, in the metadata heap. The loop thread calls these functions. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* A plan that the step's works for other layers reuse. */
struct fa_cuda_cached_plan {
	/* without what differs between layers */
	struct fa_paged_request request;
	struct fa_cuda_paged_plan plan;
	size_t blob_at; /* of the plan's blob, in the heap */
};

#define FA_CUDA_CACHED_PLANS 2 /* one for append, one for attention */
/* Enough for 128 sequences with shared prefixes, or more without. */
#define FA_CUDA_CACHED_PLANS_BYTES ((size_t)FA_DEVICE_PLAN_CACHE_BYTES)

/* The span holds a step's tables, then the blobs of cached plans. */
struct fa_cuda_tables {
	struct fa_device_tables tables; /* backend[0]: address on the GPU */
	struct fa_cuda_span span;
	/* The loop thread uses this field. */
	size_t used; /* bytes of the span in use; once written, they never change */
	struct fa_cuda_cached_plan plans[FA_CUDA_CACHED_PLANS];
	unsigned int n_plans;
	/* The engine thread uses these fields. */
	bool read_in_place;                   /* a work reads the tables in host memory */
	size_t uploaded[FA_CUDA_STREAMS_MAX]; /* bytes that each stream has copied to the GPU */
};

int fa_cuda_tables_new(struct fa_device *device, size_t bytes, struct fa_error *error,
                       struct fa_device_tables **ret_tables);
struct fa_device_tables *fa_cuda_tables_free(struct fa_device *device,
                                             struct fa_device_tables *tables);
