/* A prepared paged work: fa_device_work.prepared. */
#pragma once

#include "daemon/backend/cuda/tables.h"

/* One request. */
struct fa_cuda_paged_part {
	const struct fa_cuda_paged_plan *plan;
	struct fa_cuda_paged_plan *own_plan; /* equal to plan; NULL: plan is cached */
	size_t blob_at;                      /* in the heap */
	bool cached;                         /* with the tables */
	/* The request and step with addresses as the kernels read them. */
	struct fa_paged_request request;
	struct fa_paged_step step;
	bool writes_q, reads_q; /* in scratch */
	bool fused;             /* an append in the next launch; no plan */
};

struct fa_cuda_paged_work {
	struct fa_cuda_span span;
	size_t workspace_bytes, q_bytes;
	size_t tables_bytes; /* of the tables' span, to be on the GPU; 0: none */
	double ns;           /* estimate */
	bool in_place;       /* the GPU reads the span in host memory */
	bool tables_in_place;
	struct fa_cuda_paged_part parts[]; /* [fa_device_work.n_paged] */
};

static inline struct fa_cuda_paged_work *fa_cuda_paged_work(const struct fa_device_work *work)
{
	return work->prepared;
}

static inline struct fa_cuda_tables *fa_cuda_paged_tables(const struct fa_device_work *work)
{
	return work->tables ? fa_container_of(work->tables, struct fa_cuda_tables, tables) : NULL;
}
