/*
 * Plans paged works, and writes kernels' other inputs to a span of the metadata heap. Works for a
 * step's other layers reuse plans, cached with the tables. An append is fused into the attention
 * behind it where that launch can do it. What is read about once stays in host memory.
 */
#include "daemon/backend/cuda/paged_prepare.h"

#include "common/cleanup.h"
#include "daemon/backend/cuda/cost.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* With fewer tiles a block, each entry is read about once. */
#define IN_PLACE_TILES 2
#define Q_BYTES_MAX ((size_t)512 << 20)
/* Limits a work's partial results, as streams keep their scratch. */
#define WORKSPACE_BYTES_MAX ((size_t)512 << 20)

static size_t align(size_t bytes)
{
	return (bytes + 255) & ~(size_t)255;
}

struct span_writer {
	struct fa_device *device;
	const struct fa_device_work *work;
	const struct fa_device_tables *tables;
	struct fa_cuda_paged_work *paged;
	size_t used;
};

/* Copies @n words that are not in the step's tables. Returns their GPU address. */
static void *copy_array(struct span_writer *writer, const void *array, size_t n)
{
	const struct fa_device_tables *tables = writer->tables;
	struct fa_cuda_heap *heap = &writer->device->heap;
	size_t at = writer->paged->span.begin + writer->used;

	if (!array)
		return NULL;
	if (tables && (const char *)array >= (const char *)tables->data &&
	    (const char *)array < (const char *)tables->data + tables->bytes)
		return (void *)(tables->backend[0] +
		                (size_t)((const char *)array - (const char *)tables->data));
	/* span_bytes() does not count arrays that are in tables. */
	assert(writer->used + align(n * sizeof(uint32_t)) <=
	       writer->paged->span.end - writer->paged->span.begin);
	memcpy(heap->host + at, array, n * sizeof(uint32_t));
	writer->used += align(n * sizeof(uint32_t));
	return (void *)((writer->paged->in_place ? heap->in_place : heap->at) + at);
}

static size_t new_tokens(const struct fa_paged_step *step)
{
	return step->cu_new[step->batch];
}

/* Returns an upper bound for the request's own arrays and the blob. */
static size_t span_bytes(const struct fa_paged_request *request)
{
	size_t bytes = align(fa_cuda_paged_blob_bytes(request)), words = 0;

	if (request->op == FA_PAGED_ATTEND)
		words = 2 * (size_t)request->attention.heads;
	else if (request->op == FA_PAGED_ATTEND_OWN)
		words = 2 * (size_t)request->own_attention.heads;
	else if ((request->op == FA_PAGED_APPEND || request->op == FA_PAGED_READ) &&
	         request->append.rotary.positions)
		words = new_tokens(request->append.step);
	return bytes + align(words * sizeof(uint32_t)) + 2 * 256;
}

static void copy_step(struct span_writer *writer, struct fa_cuda_paged_part *part,
                      const struct fa_paged_step **step)
{
	part->step = **step;
	part->step.table = copy_array(writer, part->step.table, part->step.table_entries);
	*step = &part->step;
}

static void copy_arrays(struct span_writer *writer, struct fa_cuda_paged_part *part)
{
	struct fa_paged_request *request = &part->request;
	struct fa_paged_attention *attention = &request->attention;
	struct fa_paged_append *append = &request->append;
	struct fa_paged_own_attention *own = &request->own_attention;

	switch (request->op) {
	case FA_PAGED_ATTEND:
		part->reads_q = !attention->q.data;
		attention->alibi_slopes = copy_array(writer, attention->alibi_slopes,
		                                     (size_t)attention->heads);
		attention->sinks = copy_array(writer, attention->sinks, (size_t)attention->heads);
		attention->tree = copy_array(writer, attention->tree, 0);
		attention->positions = copy_array(writer, attention->positions, 0);
		copy_step(writer, part, &attention->step);
		break;
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		part->writes_q = append->heads && !append->q_out.data;
		append->rotary.positions = copy_array(writer, append->rotary.positions,
		                                      new_tokens(append->step));
		copy_step(writer, part, &append->step);
		break;
	case FA_PAGED_MOVE:
		request->move.table = copy_array(writer, request->move.table,
		                                 request->move.table_entries);
		break;
	case FA_PAGED_READ_OWN:
	case FA_PAGED_WRITE_OWN:
		copy_step(writer, part, &request->own_copy.step);
		break;
	case FA_PAGED_MERGE:
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
	case FA_PAGED_APPEND_OWN:
		break;
	case FA_PAGED_ATTEND_OWN:
		own->alibi_slopes = copy_array(writer, own->alibi_slopes, (size_t)own->heads);
		own->sinks = copy_array(writer, own->sinks, (size_t)own->heads);
		break;
	}
}

static bool reads_tables(const struct fa_cuda_paged_part *part)
{
	const struct fa_paged_request *request = &part->request;

	if (!part->plan->inline_table)
		return true;
	return request->op == FA_PAGED_ATTEND
	               ? request->attention.tree || request->attention.positions
	               : request->append.rotary.positions != NULL;
}

static bool is_small(const struct fa_cuda_paged_part *part)
{
	const struct fa_cuda_paged_plan *plan = part->plan;

	switch (part->request.op) {
	case FA_PAGED_ATTEND:
		/* Blocks of a split decode also read the list of splits. */
		return !plan->forward_blocks && plan->tiles_each < IN_PLACE_TILES &&
		       (!plan->decode || plan->decode->kind == FA_CUDA_PAGED_DECODE);
	case FA_PAGED_APPEND:
		return new_tokens(part->request.append.step) <= FA_CUDA_APPEND_TOKENS;
	default:
		return false;
	}
}

/* Plans depend only on a pointer's alignment, and on NULL. */
static void *alignment_of(const void *pointer)
{
	return (void *)(pointer ? ((uintptr_t)pointer & 15) | 16 : 0);
}

/* Removes what may differ between a step's layers. False: @request has arrays of its own. */
static bool strip_layer(struct fa_paged_request *request)
{
	struct fa_paged_attention *attention = &request->attention;
	struct fa_paged_append *append = &request->append;

	switch (request->op) {
	case FA_PAGED_ATTEND:
		attention->layer = 0;
		attention->q.data = alignment_of(attention->q.data);
		attention->out.data = alignment_of(attention->out.data);
		attention->lse = alignment_of(attention->lse);
		return !attention->alibi_slopes && !attention->sinks && !attention->prefix_lengths;
	case FA_PAGED_APPEND:
		append->layer = 0;
		append->k.data = alignment_of(append->k.data);
		append->v.data = alignment_of(append->v.data);
		append->q.data = alignment_of(append->q.data);
		append->q_out.data = alignment_of(append->q_out.data);
		return !append->rotary.positions;
	default:
		return false;
	}
}

/* Compares bytes: if padding differs, the work is planned again. */
static bool is_same(const struct fa_paged_request *a, const struct fa_paged_request *b)
{
	if (a->op != b->op)
		return false;
	return a->op == FA_PAGED_ATTEND
	               ? !memcmp(&a->attention, &b->attention, sizeof(a->attention))
	               : !memcmp(&a->append, &b->append, sizeof(a->append));
}

static bool find_cached(const struct fa_cuda_tables *tables, const struct fa_paged_request *request,
                        struct fa_cuda_paged_part *part)
{
	struct fa_paged_request common = *request;

	if (!tables || !tables->n_plans || !strip_layer(&common))
		return false;
	for (unsigned int i = 0; i < tables->n_plans; ++i) {
		const struct fa_cuda_cached_plan *cached = &tables->plans[i];

		if (!is_same(&cached->request, &common))
			continue;
		part->plan = &cached->plan;
		part->blob_at = cached->blob_at;
		return true;
	}
	return false;
}

/* If there is room. It does not move while the tables live. */
static void cache_plan(struct fa_device *device, struct fa_cuda_tables *tables,
                       const struct fa_paged_request *request, struct fa_cuda_paged_part *part)
{
	const size_t bytes = part->plan->blob_bytes;
	struct fa_cuda_cached_plan *cached;
	size_t at;

	if (!tables || tables->n_plans == FA_CUDA_CACHED_PLANS)
		return;
	at = tables->span.begin + align(tables->used);
	if (at + bytes > tables->span.end)
		return;
	cached = &tables->plans[tables->n_plans];
	cached->request = *request;
	if (!strip_layer(&cached->request))
		return;
	++tables->n_plans;
	memcpy(device->heap.host + at, device->heap.host + part->blob_at, bytes);
	cached->plan = *part->plan;
	cached->blob_at = part->blob_at = at;
	part->plan = &cached->plan;
	free(fa_steal_ptr(part->own_plan));
	part->cached = true;
	tables->used = at + bytes - tables->span.begin;
}

/* True: part @i is an append, and the next part's planned launch does it. */
static bool is_fused(const struct fa_device_work *work, const struct fa_cuda_paged_work *paged,
                     uint32_t i)
{
	const struct fa_paged_request *request = &work->paged[i];

	return request->op == FA_PAGED_APPEND && i + 1 < work->n_paged &&
	       request[1].op == FA_PAGED_ATTEND && paged->parts[i + 1].plan &&
	       fa_cuda_paged_can_append(paged->parts[i + 1].plan, &request[1].attention,
	                                &request->append);
}

static int plan_part(struct span_writer *writer, struct fa_cuda_tables *tables,
                     const struct fa_paged_request *request, struct fa_cuda_paged_part *part,
                     struct fa_error *error)
{
	struct fa_device *device = writer->device;
	struct fa_cuda_paged_work *paged = writer->paged;
	int r;

	part->request = *request;
	part->fused = is_fused(writer->work, paged, (uint32_t)(part - paged->parts));
	if (part->fused)
		return 0;
	if (!part->cached) {
		part->blob_at = paged->span.begin + writer->used;
		part->plan = part->own_plan = malloc(sizeof(*part->own_plan));
		if (!part->own_plan)
			return fa_fail(error, -ENOMEM, "no memory for a request over pages");
		r = fa_cuda_paged_plan(&device->chip, request, device->heap.host + part->blob_at,
		                       error->text, sizeof(error->text), part->own_plan);
		if (r < 0)
			return r;
		cache_plan(device, tables, request, part);
		if (!part->cached)
			writer->used += align(part->plan->blob_bytes);
	}
	paged->in_place = paged->in_place && is_small(part);
	return 0;
}

static int fill_part(struct span_writer *writer, struct fa_cuda_paged_part *part,
                     struct fa_error *error)
{
	const struct fa_paged_request *request = &part->request;
	struct fa_cuda_paged_work *paged = writer->paged;
	size_t q_bytes;

	if (part->fused)
		return 0;
	copy_arrays(writer, part);
	if (part->plan->workspace_bytes > WORKSPACE_BYTES_MAX)
		return fa_fail(error, -ENOTSUP,
		               "attention over pages needs %zu bytes for partial results of the "
		               "step; at most %zu can be had, with fewer or shorter sequences",
		               part->plan->workspace_bytes, WORKSPACE_BYTES_MAX);
	if (paged->workspace_bytes < part->plan->workspace_bytes)
		paged->workspace_bytes = align(part->plan->workspace_bytes);
	if (!part->writes_q)
		return 0;
	q_bytes = new_tokens(&part->step) * (size_t)request->append.heads *
	          (size_t)request->append.cache->head_dim *
	          (request->append.cache->dtype == FA_ATTENTION_F32 ? 4 : 2);
	if (q_bytes > Q_BYTES_MAX)
		return fa_fail(error, -ENOTSUP,
		               "q has %zu bytes; at most %zu can be rotated in one request",
		               q_bytes, Q_BYTES_MAX);
	paged->q_bytes = align(q_bytes);
	/* q lies behind the counters: the workspace is at least as large. */
	if (paged->workspace_bytes < FA_CUDA_PAGED_COUNTERS_BYTES)
		paged->workspace_bytes = align(FA_CUDA_PAGED_COUNTERS_BYTES);
	return 0;
}

int fa_cuda_paged_cache_check(struct fa_device *device, const struct fa_paged_cache *cache,
                              struct fa_error *error)
{
	return fa_cuda_paged_check_cache(&device->chip, cache, error->text, sizeof(error->text));
}

int fa_cuda_paged_prepare(struct fa_device *device, struct fa_device_work *work,
                          struct fa_error *error)
{
	struct span_writer writer = { .device = device, .work = work, .tables = work->tables };
	struct fa_cuda_tables *tables = fa_cuda_paged_tables(work);
	struct fa_cuda_tables *cache = work->reuse_plan ? tables : NULL;
	size_t bytes = 0;
	struct fa_cuda_paged_work *paged;
	int r = 0;

	/* calloc() would bypass malloc()'s thread cache. */
	paged = malloc(sizeof(*paged) + work->n_paged * sizeof(paged->parts[0]));
	if (!paged)
		return fa_fail(error, -ENOMEM, "no memory for a request over pages");
	*paged = (struct fa_cuda_paged_work){};
	for (uint32_t i = 0; i < work->n_paged; ++i)
		paged->parts[i] = (struct fa_cuda_paged_part){};
	fa_list_init(&paged->span.link);
	work->prepared = writer.paged = paged;
	for (uint32_t i = 0; i < work->n_paged; ++i) {
		r = fa_paged_check(&work->paged[i], error->text, sizeof(error->text));
		if (r < 0)
			return r;
	}
	/* Plans backwards, as an append is fused into the part after it. */
	for (uint32_t i = work->n_paged; i-- > 0;) {
		if (is_fused(work, paged, i))
			continue;
		paged->parts[i].cached = find_cached(cache, &work->paged[i], &paged->parts[i]);
		if (!paged->parts[i].cached)
			bytes += span_bytes(&work->paged[i]);
	}
	if (bytes && !fa_cuda_heap_alloc(&device->heap, bytes, &paged->span))
		return fa_fail(error, -ENOMEM,
		               "requests in flight are so large that there is no room for the "
		               "%zu bytes that go with this one",
		               bytes);
	paged->in_place = true;
	for (uint32_t i = work->n_paged; i-- > 0 && r == 0;)
		r = plan_part(&writer, cache, &work->paged[i], &paged->parts[i], error);
	for (uint32_t i = 0; i < work->n_paged && r == 0; ++i)
		r = fill_part(&writer, &paged->parts[i], error);
	for (uint32_t i = 0; i < work->n_paged && r == 0; ++i)
		if (!paged->parts[i].fused)
			work->shared_prefixes += paged->parts[i].plan->prefixes;
	if (bytes) {
		fa_cuda_heap_shrink(&paged->span, writer.used);
		work->metadata_bytes = paged->span.end - paged->span.begin;
	}
	work->host_bytes = 0;
	for (uint32_t i = 0; i < work->n_paged && r == 0; ++i)
		paged->ns += fa_cuda_cost_paged_ns(device, &paged->parts[i].request,
		                                   paged->parts[i].plan);
	for (uint32_t i = 0; i < work->n_paged && r == 0; ++i) {
		if (paged->parts[i].own_plan)
			work->host_bytes += sizeof(*paged->parts[i].own_plan);
		if (tables && !paged->parts[i].fused && reads_tables(&paged->parts[i]))
			paged->tables_bytes = tables->used;
	}
	return r;
}

void fa_cuda_paged_release(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_cuda_paged_work *paged = fa_steal_ptr(work->prepared);

	if (!paged)
		return;
	for (uint32_t i = 0; i < work->n_paged; ++i)
		free(paged->parts[i].own_plan);
	fa_cuda_heap_free(&device->heap, &paged->span);
	free(paged);
}
