/* A step's tables, in the metadata heap. The loop thread's. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* For the step's works of other layers. */
struct fa_cuda_cached_plan {
	struct fa_paged_request request; /* without what differs between layers */
	struct fa_cuda_paged_plan plan;
	size_t blob_at; /* in the heap */
};

#define FA_CUDA_CACHED_PLANS 2 /* append, and attention */
/* Enough for 128 sequences with shared prefixes, or more without. */
#define FA_CUDA_CACHED_PLANS_BYTES ((size_t)FA_DEVICE_PLAN_CACHE_BYTES)

/* The span has the tables, then the cached plans' blobs. */
struct fa_cuda_tables {
	struct fa_device_tables tables; /* backend[0]: address on the GPU */
	struct fa_cuda_span span;
	/* The loop thread's. */
	size_t used; /* written bytes never change */
	struct fa_cuda_cached_plan plans[FA_CUDA_CACHED_PLANS];
	unsigned int n_plans;
	/* The engine thread's. */
	bool read_in_place;                   /* by a work */
	size_t uploaded[FA_CUDA_STREAMS_MAX]; /* bytes, by each stream */
};

int fa_cuda_tables_new(struct fa_device *device, size_t bytes, struct fa_error *error,
                       struct fa_device_tables **ret_tables);
struct fa_device_tables *fa_cuda_tables_free(struct fa_device *device,
                                             struct fa_device_tables *tables);
