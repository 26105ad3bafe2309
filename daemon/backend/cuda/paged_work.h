/* The target of fa_device_work.prepared for paged works. */
#pragma once

#include "daemon/backend/cuda/tables.h"

struct fa_cuda_paged_part {
	const struct fa_cuda_paged_plan *plan;
	/* NULL: the plan is cached */
	struct fa_cuda_paged_plan *own_plan;
	size_t blob_at; /* in the heap */
	bool cached;    /* with the step's tables */
	struct fa_paged_request request;
	struct fa_paged_step step;
	bool writes_q, reads_q; /* to, from scratch */
	bool fused;             /* an append in the next launch; no plan */
};

struct fa_cuda_paged_work {
	struct fa_cuda_span span;
	size_t workspace_bytes, q_bytes;
	size_t tables_bytes; /* of the tables' span, on the GPU; 0: none */
	double ns;           /* estimated time */
	bool in_place;       /* the GPU reads the host's span */
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
