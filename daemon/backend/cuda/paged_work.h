/* A prepared paged work, to which fa_device_work.prepared points. */
#pragma once

#include "daemon/backend/cuda/tables.h"

/* One request of the work. */
struct fa_cuda_paged_part {
	const struct fa_cuda_paged_plan *plan;
	/* plan, if the part owns it; NULL: it is cached */
	struct fa_cuda_paged_plan *own_plan;
	size_t blob_at; /* offset of the plan's blob in the heap */
	bool cached;    /* the plan is cached with the step's tables */
	/* The request and its step, with the addresses that kernels use. */
	struct fa_paged_request request;
	struct fa_paged_step step;
	bool writes_q, reads_q; /* q is written to, read from scratch */
	bool fused;             /* an append that the next launch does; no plan */
};

struct fa_cuda_paged_work {
	struct fa_cuda_span span;
	size_t workspace_bytes, q_bytes;
	size_t tables_bytes; /* bytes of the tables' span that must be on the GPU; 0: none */
	double ns;           /* estimated time */
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
