#include "daemon/backend/cpu/workspace.h"

#include <errno.h>
#include <stdlib.h>

/* True: append writes q to the workspace for attention. */
static bool wants_q(const struct fa_paged_request *request)
{
	return request->op == FA_PAGED_APPEND && request->append.heads &&
	       !request->append.q_out.data;
}

static size_t q_bytes(const struct fa_paged_append *append)
{
	size_t bytes = append->cache->dtype == FA_ATTENTION_F32 ? 4 : 2;

	return (size_t)append->step->cu_new[append->step->batch] * (size_t)append->heads *
	       (size_t)append->cache->head_dim * bytes;
}

static size_t align(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}

static void put_q(struct fa_device_work *work, void *q)
{
	for (uint32_t i = 0; i < work->n_paged; i++) {
		struct fa_paged_request *request = &work->paged[i];

		if (wants_q(request))
			request->append.q_out.data = q;
		else if (request->op == FA_PAGED_ATTEND && !request->attention.q.data)
			request->attention.q.data = q;
	}
}

static bool take_over(struct fa_device_work *work, size_t bytes)
{
	struct fa_device_work *predecessor = work->predecessor;

	if (!predecessor || !predecessor->prepared || predecessor->prepared_moved ||
	    predecessor->host_bytes < bytes)
		return false;
	work->prepared = predecessor->prepared;
	work->host_bytes = predecessor->host_bytes;
	predecessor->prepared_moved = true;
	return true;
}

static int allocate(struct fa_device_work *work, size_t bytes, struct fa_error *error)
{
	work->prepared = aligned_alloc(64, bytes);
	if (!work->prepared)
		return fa_fail(error, -ENOMEM, "no memory for the %zu bytes that a request needs",
		               bytes);
	work->host_bytes = bytes;
	return 0;
}

int fa_cpu_workspace_new_paged(const struct fa_cpu_isa *isa, struct fa_device_work *work,
                               struct fa_error *error)
{
	size_t workspace = 0, q = 0, bytes;
	int r;

	for (uint32_t i = 0; i < work->n_paged; i++) {
		r = fa_paged_check(&work->paged[i], error->text, sizeof(error->text));
		if (r < 0)
			return r;
		bytes = align(fa_cpu_paged_workspace_bytes(isa, &work->paged[i]));
		workspace = bytes > workspace ? bytes : workspace;
		bytes = wants_q(&work->paged[i]) ? align(q_bytes(&work->paged[i].append)) : 0;
		q = bytes > q ? bytes : q;
	}
	bytes = workspace + q;
	if (!bytes)
		return 0;
	if (!take_over(work, bytes)) {
		r = allocate(work, bytes, error);
		if (r < 0)
			return r;
	}
	if (q)
		put_q(work, (char *)work->prepared + workspace);
	return 0;
}

int fa_cpu_workspace_new_attention(const struct fa_cpu_isa *isa, struct fa_device_work *work,
                                   struct fa_error *error)
{
	size_t bytes = align(fa_cpu_attention_workspace_bytes(isa, work->params));

	return bytes ? allocate(work, bytes, error) : 0;
}

void fa_cpu_workspace_free(struct fa_device_work *work)
{
	if (!work->prepared_moved)
		free(work->prepared);
	work->prepared = NULL;
}
