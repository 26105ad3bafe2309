/* A paged work between paged_prepare() and paged_release(): what fa_device_work.room points to. */
#pragma once

#include "daemon/backend/cuda/tables.h"

/* One of the work's requests. */
struct fa_cuda_paged_part {
	const struct fa_cuda_paged_plan *plan;
	struct fa_cuda_paged_plan *own_plan; /* the same, unless it is cached with the tables */
	size_t blob_at;                      /* in the heap */
	bool cached;                         /* plan and blob are the tables' */
	/* The request with arrays and step as the kernels read them. */
	struct fa_paged_request request;
	struct fa_paged_step step;
	bool writes_q, reads_q; /* in scratch */
	bool fused;             /* an append that the next part's launch does; has no plan */
};

struct fa_cuda_paged_work {
	struct fa_cuda_span span;
	size_t workspace_bytes, q_bytes;
	size_t tables_bytes; /* of the tables' span, needed on the GPU; 0: not read */
	double ns;           /* estimate */
	bool in_place;       /* the GPU reads the span where the host has it */
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
