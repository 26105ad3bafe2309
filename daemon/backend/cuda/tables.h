/* A step's tables, in the metadata heap. Loop thread. */
#pragma once

#include "daemon/backend/cuda/device.h"

/* Works for the step's other layers reuse this plan. */
struct fa_cuda_cached_plan {
	/* without what differs between layers */
	struct fa_paged_request request;
	struct fa_cuda_paged_plan plan;
	size_t blob_at; /* its blob, in the heap */
};

#define FA_CUDA_CACHED_PLANS 2 /* append and attention */
/* Suffices for 128 sequences with shared prefixes, or more without. */
#define FA_CUDA_CACHED_PLANS_BYTES ((size_t)FA_DEVICE_PLAN_CACHE_BYTES)

/* The span holds the tables, then the blobs of cached plans. */
struct fa_cuda_tables {
	struct fa_device_tables tables; /* backend[0]: on the GPU */
	struct fa_cuda_span span;
	/* The loop thread uses these. */
	size_t used; /* of the span; once written, they never change */
	struct fa_cuda_cached_plan plans[FA_CUDA_CACHED_PLANS];
	unsigned int n_plans;
	/* The engine thread uses these. */
	bool read_in_place;
	size_t uploaded[FA_CUDA_STREAMS_MAX];
};

int fa_cuda_tables_new(struct fa_device *device, size_t bytes, struct fa_error *error,
                       struct fa_device_tables **ret_tables);
struct fa_device_tables *fa_cuda_tables_free(struct fa_device *device,
                                             struct fa_device_tables *tables);
