/*
 * The CUDA backend's paged requests. The loop thread plans each when it comes, and puts
 * what the kernels need of it in a span of the room; the engine thread has the span copied
 * and the kernels launched, one after another on the stream. A step's tables are copied
 * once to each stream that one of its works comes to, by whichever comes first.
 *
 * What the layers of a step have in common is planned once, and kept behind the tables. Where
 * the launch that attends can put new tokens into the pages itself, the append before it is no
 * part of its own: it has no plan and no launch.
 *
 * What a request over few and short sequences needs of all this its launches carry
 * themselves. Another that is so small that each of its blocks looks things up once reads
 * them in the room itself, and a step's tables if it is the first of the step to come to its
 * stream: there a copy would take longer than all else. Then its launches are all that the
 * driver is told.
 *
 * A stream has scratch for those that run on it: counters and partial results of attention
 * and, behind them, q as it was rotated. It grows when something larger comes, which is
 * the one case of a driver call that is no launch, copy or word.
 */
#include "daemon/backend/cuda/backend.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define SCRATCH_BYTES_MIN ((size_t)4 << 20)
/* Rotated q of one request. */
#define Q_BYTES_MAX ((size_t)512 << 20)
/* Partial results of one request, which are many where they do not depend on the step: a stream
 * keeps its scratch, and the pool and other streams lack it then. A thirtieth of what is read, if
 * sequences do not share it. */
#define WORKSPACE_BYTES_MAX ((size_t)512 << 20)

/* What fa_device_work.room points to. */
struct room {
	struct fa_cuda_span span;
	size_t workspace_bytes, q_bytes;
	size_t tables_bytes; /* of the tables' span, that are to be on the GPU; 0: not read */
	double ns;           /* that it is expected to take */
	bool in_place;       /* the span is read by the GPU where the host has it */
	bool tables_in_place;
	struct part {
		const struct fa_cuda_paged_plan *plan;
		struct fa_cuda_paged_plan *own_plan; /* the same, unless it is kept */
		size_t blob_at;                      /* in the device's room */
		bool kept;                           /* plan and blob are, with the tables */
		/* The request as the kernels are to have it. */
		struct fa_paged_request request;
		struct fa_paged_step step;
		bool writes_q, reads_q; /* in scratch */
		/* Of an append: the next part's launch does it, and this has the request alone. */
		bool joined;
	} parts[];
};

/* ---- preparing; on the loop thread */

static struct fa_cuda_tables *tables_of(const struct fa_device_work *work)
{
	return work->tables ? fa_container_of(work->tables, struct fa_cuda_tables, tables) : NULL;
}

static size_t align(size_t bytes)
{
	return (bytes + 255) & ~(size_t)255;
}

/* Is being filled. */
struct filling {
	struct fa_device *device;
	const struct fa_device_work *work;
	const struct fa_device_tables *tables;
	struct room *room;
	size_t used; /* of the span */
};

/* An array of @n words of the host's, as the GPU will have it. */
static void *move_array(struct filling *filling, const void *array, size_t n)
{
	const struct fa_device_tables *tables = filling->tables;
	struct fa_cuda_heap *room = &filling->device->room;
	size_t at = filling->room->span.begin + filling->used;

	if (!array)
		return NULL;
	if (tables && (const char *)array >= (const char *)tables->data &&
	    (const char *)array < (const char *)tables->data + tables->bytes)
		return (void *)(tables->backend[0] +
		                (size_t)((const char *)array - (const char *)tables->data));
	/* bytes_of() has not counted an array that was to be in tables. */
	assert(filling->used + align(n * sizeof(uint32_t)) <=
	       filling->room->span.end - filling->room->span.begin);
	memcpy(room->host + at, array, n * sizeof(uint32_t));
	filling->used += align(n * sizeof(uint32_t));
	return (void *)((filling->room->in_place ? room->in_place : room->at) + at);
}

static size_t tokens_of(const struct fa_paged_step *step)
{
	return step->cu_new[step->batch];
}

/* Bytes that the request's own arrays and its blob have at most. */
static size_t bytes_of(const struct fa_paged_request *request)
{
	size_t bytes = align(fa_cuda_paged_blob_bytes(request)), words = 0;

	if (request->op == FA_PAGED_ATTEND)
		words = 2 * (size_t)request->attention.heads;
	else if ((request->op == FA_PAGED_APPEND || request->op == FA_PAGED_READ) &&
	         request->append.rotary.positions)
		words = tokens_of(request->append.step);
	return bytes + align(words * sizeof(uint32_t)) + 2 * 256;
}

static void move_step(struct filling *filling, struct part *part, const struct fa_paged_step **step)
{
	part->step = **step;
	part->step.table = move_array(filling, part->step.table, part->step.table_entries);
	*step = &part->step;
}

static void move_arrays(struct filling *filling, struct part *part)
{
	struct fa_paged_request *request = &part->request;
	struct fa_paged_attention *attention = &request->attention;
	struct fa_paged_append *append = &request->append;

	switch (request->op) {
	case FA_PAGED_ATTEND:
		part->reads_q = !attention->q.data;
		attention->alibi_slopes = move_array(filling, attention->alibi_slopes,
		                                     (size_t)attention->heads);
		attention->sinks = move_array(filling, attention->sinks, (size_t)attention->heads);
		/* Masks and positions of trees are in tables. */
		attention->tree = move_array(filling, attention->tree, 0);
		attention->positions = move_array(filling, attention->positions, 0);
		move_step(filling, part, &attention->step);
		break;
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		part->writes_q = append->heads && !append->q_out.data;
		append->rotary.positions = move_array(filling, append->rotary.positions,
		                                      tokens_of(append->step));
		move_step(filling, part, &append->step);
		break;
	case FA_PAGED_MOVE:
		request->move.table = move_array(filling, request->move.table,
		                                 request->move.table_entries);
		break;
	case FA_PAGED_MERGE:
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		break;
	}
}

/* Whether its kernels read what is in the step's tables. */
static bool reads_tables(const struct part *part)
{
	const struct fa_paged_request *request = &part->request;

	if (!part->plan->table_here)
		return true;
	return request->op == FA_PAGED_ATTEND
	               ? request->attention.tree || request->attention.positions
	               : request->append.rotary.positions != NULL;
}

/* Whether its kernel looks each thing up about once. */
static bool is_small(const struct part *part)
{
	const struct fa_cuda_paged_plan *plan = part->plan;

	switch (part->request.op) {
	case FA_PAGED_ATTEND:
		/* Those in pieces look up where shares are, too. */
		return !plan->forward_blocks && plan->tiles_each < FA_CUDA_IN_PLACE_TILES &&
		       (!plan->decode || plan->decode->kind == FA_CUDA_PAGED_DECODE);
	case FA_PAGED_APPEND:
		return tokens_of(part->request.append.step) <= FA_CUDA_APPEND_TOKENS;
	default:
		return false;
	}
}

/* Of a pointer, what plans depend on. */
static void *alignment_of(const void *pointer)
{
	return (void *)(pointer ? ((uintptr_t)pointer & 15) | 16 : 0);
}

/* Makes of @request what is the same for every layer. False: it has vectors of its own. */
static bool make_common(struct fa_paged_request *request)
{
	struct fa_paged_attention *attention = &request->attention;
	struct fa_paged_append *append = &request->append;

	switch (request->op) {
	case FA_PAGED_ATTEND:
		attention->layer = 0;
		attention->q.data = alignment_of(attention->q.data);
		attention->out.data = alignment_of(attention->out.data);
		attention->lse = alignment_of(attention->lse);
		return !attention->alibi_slopes && !attention->sinks;
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

/* Bytes between members may differ: then it is planned once more. */
static bool is_same(const struct fa_paged_request *a, const struct fa_paged_request *b)
{
	if (a->op != b->op)
		return false;
	return a->op == FA_PAGED_ATTEND
	               ? !memcmp(&a->attention, &b->attention, sizeof(a->attention))
	               : !memcmp(&a->append, &b->append, sizeof(a->append));
}

static bool find_kept(const struct fa_cuda_tables *tables, const struct fa_paged_request *request,
                      struct part *part)
{
	struct fa_paged_request common = *request;

	if (!tables || !tables->n_kept || !make_common(&common))
		return false;
	for (unsigned int i = 0; i < tables->n_kept; ++i) {
		const struct fa_cuda_kept *kept = &tables->kept[i];

		if (!is_same(&kept->request, &common))
			continue;
		part->plan = &kept->plan;
		part->blob_at = kept->blob_at;
		return true;
	}
	return false;
}

/* Keeps what @request was planned as, if there is room for it. Once kept it stays what and
 * where it is as long as the tables. */
static void keep(struct fa_device *device, struct fa_cuda_tables *tables,
                 const struct fa_paged_request *request, struct part *part)
{
	const size_t bytes = part->plan->blob_bytes;
	struct fa_cuda_kept *kept;
	size_t at;

	if (!tables || tables->n_kept == FA_CUDA_KEPT)
		return;
	at = tables->span.begin + align(tables->used);
	if (at + bytes > tables->span.end)
		return;
	kept = &tables->kept[tables->n_kept];
	kept->request = *request;
	if (!make_common(&kept->request))
		return;
	++tables->n_kept;
	memcpy(device->room.host + at, device->room.host + part->blob_at, bytes);
	kept->plan = *part->plan;
	kept->blob_at = part->blob_at = at;
	part->plan = &kept->plan;
	free(fa_steal_ptr(part->own_plan));
	part->kept = true;
	tables->used = at + bytes - tables->span.begin;
}

/* Whether the append that is part @i is done by the launch of the next part, as far as that has
 * a plan. */
static bool joins(const struct fa_device_work *work, const struct room *room, uint32_t i)
{
	const struct fa_paged_request *request = &work->paged[i];

	return request->op == FA_PAGED_APPEND && i + 1 < work->n_paged &&
	       request[1].op == FA_PAGED_ATTEND && room->parts[i + 1].plan &&
	       fa_cuda_paged_can_append(room->parts[i + 1].plan, &request[1].attention,
	                                &request->append);
}

static int plan_part(struct filling *filling, struct fa_cuda_tables *tables,
                     const struct fa_paged_request *request, struct part *part,
                     struct fa_error *error)
{
	struct fa_device *device = filling->device;
	struct room *room = filling->room;
	int r;

	part->request = *request;
	part->joined = joins(filling->work, room, (uint32_t)(part - room->parts));
	if (part->joined)
		return 0;
	if (!part->kept) {
		part->blob_at = room->span.begin + filling->used;
		part->plan = part->own_plan = malloc(sizeof(*part->own_plan));
		if (!part->own_plan)
			return fa_fail(error, -ENOMEM, "no memory for a request over pages");
		r = fa_cuda_paged_plan(&device->chip, request, device->room.host + part->blob_at,
		                       error->text, sizeof(error->text), part->own_plan);
		if (r < 0)
			return r;
		keep(device, tables, request, part);
		if (!part->kept)
			filling->used += align(part->plan->blob_bytes);
	}
	room->in_place = room->in_place && is_small(part);
	return 0;
}

static int fill_part(struct filling *filling, struct part *part, struct fa_error *error)
{
	const struct fa_paged_request *request = &part->request;
	struct room *room = filling->room;
	size_t q_bytes;

	if (part->joined)
		return 0;
	move_arrays(filling, part);
	if (part->plan->workspace_bytes > WORKSPACE_BYTES_MAX)
		return fa_fail(error, -ENOTSUP,
		               "attention over pages needs %zu bytes for partial results of the "
		               "step; at most %zu can be had, with fewer or shorter sequences",
		               part->plan->workspace_bytes, WORKSPACE_BYTES_MAX);
	if (room->workspace_bytes < part->plan->workspace_bytes)
		room->workspace_bytes = align(part->plan->workspace_bytes);
	if (!part->writes_q)
		return 0;
	q_bytes = tokens_of(&part->step) * (size_t)request->append.heads *
	          (size_t)request->append.cache->head_dim *
	          (request->append.cache->dtype == FA_ATTENTION_F32 ? 4 : 2);
	if (q_bytes > Q_BYTES_MAX)
		return fa_fail(error, -ENOTSUP,
		               "q has %zu bytes; at most %zu can be rotated in one request",
		               q_bytes, Q_BYTES_MAX);
	room->q_bytes = align(q_bytes);
	/* Behind the counters in any case: they are all works' of the stream. */
	if (room->workspace_bytes < FA_CUDA_PAGED_COUNTERS_BYTES)
		room->workspace_bytes = align(FA_CUDA_PAGED_COUNTERS_BYTES);
	return 0;
}

int fa_cuda_paged_cache_check(struct fa_device *device, const struct fa_paged_cache *cache,
                              struct fa_error *error)
{
	return fa_cuda_paged_check_cache(&device->chip, cache, error->text, sizeof(error->text));
}

/* ---- how long it takes, with caution; on the loop thread */

/* Of memory that is the device's, by an SM; and of tensors, which may be the host's. */
#define SM_BYTES_PER_NS 12
#define TENSOR_BYTES_PER_NS 20

static double element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

/* Bytes that a token has in one layer: as it is computed with, and in pages. */
static double token_bytes(const struct fa_paged_cache *cache)
{
	return cache->kv_heads * ((double)cache->head_dim + cache->head_dim_v) *
	       element_bytes(cache->dtype);
}

static double page_bytes_of(const struct fa_paged_cache *cache)
{
	return cache->store == FA_PAGED_PLAIN ? token_bytes(cache)
	                                      : token_bytes(cache) / element_bytes(cache->dtype);
}

static double memory_ns(const struct fa_device *device, double bytes)
{
	return bytes / SM_BYTES_PER_NS / (device->chip.sms > 0 ? device->chip.sms : 1);
}

static double attend_ns(const struct fa_device *device, const struct fa_paged_attention *p,
                        const struct fa_cuda_paged_plan *plan)
{
	const struct fa_paged_cache *cache = p->cache;
	const struct fa_paged_step *step = p->step;
	double flops = 0, ns = (double)plan->forward_ns;

	/* Each entry of the table may be read. */
	ns += memory_ns(device,
	                (double)step->table_entries * cache->page_tokens * page_bytes_of(cache));
	ns += tokens_of(step) * (double)p->heads * 2 * cache->head_dim *
	      element_bytes(cache->dtype) / TENSOR_BYTES_PER_NS;
	if (!plan->forward_blocks || plan->forward_ns)
		return ns;
	for (int32_t b = 0; b < step->batch; ++b)
		flops += (double)(step->cu_new[b + 1] - step->cu_new[b]) * step->lengths[b];
	flops *= 2 * (double)p->heads * ((double)cache->head_dim + cache->head_dim_v);
	return ns + fa_cuda_flops_ns(device, cache->dtype, false, flops);
}

static double part_ns(const struct fa_device *device, const struct part *part)
{
	const struct fa_paged_request *request = &part->request;
	const struct fa_paged_append *append = &request->append;
	const struct fa_paged_merge *merge = &request->merge;

	switch (request->op) {
	case FA_PAGED_ATTEND:
		return attend_ns(device, &request->attention, part->plan);
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		return tokens_of(append->step) *
		       (token_bytes(append->cache) + 2.0 * append->heads * append->cache->head_dim *
		                                             element_bytes(append->cache->dtype)) /
		       TENSOR_BYTES_PER_NS;
	case FA_PAGED_MERGE:
		return 3.0 * (double)merge->tokens * merge->heads * merge->head_dim_v *
		       element_bytes(merge->dtype) / TENSOR_BYTES_PER_NS;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		return memory_ns(device, 2.0 * request->pages.count * request->pages.cache->layers *
		                                 request->pages.cache->page_tokens *
		                                 page_bytes_of(request->pages.cache));
	case FA_PAGED_MOVE:
		return memory_ns(device, 2.0 * request->move.cu_moves[request->move.batch] *
		                                 request->move.cache->layers *
		                                 page_bytes_of(request->move.cache));
	}
	return 0;
}

int fa_cuda_paged_prepare(struct fa_device *device, struct fa_device_work *work,
                          struct fa_error *error)
{
	struct filling filling = { .device = device, .work = work, .tables = work->tables };
	struct fa_cuda_tables *tables = tables_of(work), *keeper = work->repeats ? tables : NULL;
	size_t bytes = 0;
	struct room *room;
	int r = 0;

	/* Not calloc(), which leaves out malloc()'s cache of what was freed lately. */
	room = malloc(sizeof(*room) + work->n_paged * sizeof(room->parts[0]));
	if (!room)
		return fa_fail(error, -ENOMEM, "no memory for a request over pages");
	*room = (struct room){};
	for (uint32_t i = 0; i < work->n_paged; ++i)
		room->parts[i] = (struct part){};
	fa_list_init(&room->span.link);
	work->room = filling.room = room;
	for (uint32_t i = 0; i < work->n_paged; ++i) {
		r = fa_paged_check(&work->paged[i], error->text, sizeof(error->text));
		if (r < 0)
			return r;
	}
	/* Appends after what may do them. */
	for (uint32_t i = work->n_paged; i-- > 0;) {
		if (joins(work, room, i))
			continue;
		room->parts[i].kept = find_kept(keeper, &work->paged[i], &room->parts[i]);
		if (!room->parts[i].kept)
			bytes += bytes_of(&work->paged[i]);
	}
	if (bytes && !fa_cuda_heap_take(&device->room, bytes, &room->span))
		return fa_fail(error, -ENOMEM,
		               "requests in flight are so large that there is no room for the "
		               "%zu bytes that go with this one",
		               bytes);
	room->in_place = true;
	for (uint32_t i = work->n_paged; i-- > 0 && r == 0;)
		r = plan_part(&filling, keeper, &work->paged[i], &room->parts[i], error);
	for (uint32_t i = 0; i < work->n_paged && r == 0; ++i)
		r = fill_part(&filling, &room->parts[i], error);
	for (uint32_t i = 0; i < work->n_paged && r == 0; ++i)
		if (!room->parts[i].joined)
			work->prefixes += room->parts[i].plan->prefixes;
	if (bytes) {
		fa_cuda_heap_cut(&room->span, filling.used);
		work->room_bytes = room->span.end - room->span.begin;
	}
	work->heap_bytes = 0;
	for (uint32_t i = 0; i < work->n_paged && r == 0; ++i)
		room->ns += part_ns(device, &room->parts[i]);
	for (uint32_t i = 0; i < work->n_paged && r == 0; ++i) {
		if (room->parts[i].own_plan)
			work->heap_bytes += sizeof(*room->parts[i].own_plan);
		if (tables && !room->parts[i].joined && reads_tables(&room->parts[i]))
			room->tables_bytes = tables->used;
	}
	return r;
}

void fa_cuda_paged_release(struct fa_device *device, struct fa_device_work *work)
{
	struct room *room = fa_steal_ptr(work->room);

	if (!room)
		return;
	for (uint32_t i = 0; i < work->n_paged; ++i)
		free(room->parts[i].own_plan);
	fa_cuda_heap_give(&device->room, &room->span);
	free(room);
}

/* ---- launching; on the engine thread */

static CUresult grow_scratch(struct fa_device *device, struct fa_cuda_stream *stream, size_t bytes)
{
	struct fa_cuda_scratch *scratch;
	size_t wanted = SCRATCH_BYTES_MIN;
	CUresult result;

	while (wanted < bytes)
		wanted *= 2;
	scratch = fa_new(struct fa_cuda_scratch);
	if (!scratch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = device->driver.cuMemAlloc(&scratch->at, wanted);
	if (result != CUDA_SUCCESS) {
		free(scratch);
		return result;
	}
	/* Works that the stream has may still use the old one. */
	scratch->next = device->scratches;
	device->scratches = scratch;
	result = device->driver.cuMemsetD8Async(scratch->at, 0, FA_CUDA_PAGED_COUNTERS_BYTES,
	                                        stream->stream);
	if (result != CUDA_SUCCESS)
		return result;
	stream->scratch = scratch->at;
	stream->scratch_bytes = wanted;
	return CUDA_SUCCESS;
}

void fa_cuda_paged_close(struct fa_device *device)
{
	while (device->scratches) {
		struct fa_cuda_scratch *scratch = device->scratches;

		device->scratches = scratch->next;
		(void)device->driver.cuMemFree(scratch->at);
		free(scratch);
	}
}

static void redirect(const uint32_t **array, const struct fa_device_tables *tables, CUdeviceptr to)
{
	const CUdeviceptr at = (CUdeviceptr)*array;

	if (at >= tables->backend[0] && at - tables->backend[0] < tables->bytes)
		*array = (const uint32_t *)(at - tables->backend[0] + to);
}

static void read_tables_in_place(struct fa_device *device, struct fa_device_work *work)
{
	const struct fa_device_tables *tables = work->tables;
	const CUdeviceptr to = tables->backend[0] - device->room.at + device->room.in_place;
	struct room *room = work->room;

	for (uint32_t i = 0; i < work->n_paged; ++i) {
		struct part *part = &room->parts[i];

		if (part->joined)
			continue;
		redirect(&part->step.table, tables, to);
		if (part->request.op == FA_PAGED_ATTEND) {
			redirect(&part->request.attention.tree, tables, to);
			redirect(&part->request.attention.positions, tables, to);
		} else {
			redirect(&part->request.append.rotary.positions, tables, to);
		}
	}
}

/* Later works of a step find the tables on the GPU. */
static CUresult upload_tables(struct fa_device *device, struct fa_cuda_stream *stream,
                              struct fa_device_work *work)
{
	struct fa_cuda_tables *tables = tables_of(work);
	struct room *room = work->room;
	size_t *uploaded, begin;
	CUresult result;

	if (!tables)
		return CUDA_SUCCESS;
	uploaded = &tables->uploaded[stream - device->streams];
	if (*uploaded >= room->tables_bytes)
		return CUDA_SUCCESS;
	if (room->in_place && !tables->read_in_place) {
		tables->read_in_place = room->tables_in_place = true;
		read_tables_in_place(device, work);
		return CUDA_SUCCESS;
	}
	begin = tables->span.begin + *uploaded;
	result = device->driver.cuMemcpyHtoDAsync(device->room.at + begin,
	                                          device->room.host + begin,
	                                          room->tables_bytes - *uploaded, stream->stream);
	if (result == CUDA_SUCCESS)
		*uploaded = room->tables_bytes;
	return result;
}

static CUresult upload(struct fa_device *device, struct fa_cuda_stream *stream,
                       struct fa_device_work *work)
{
	const struct room *room = work->room;
	CUresult result;

	result = upload_tables(device, stream, work);
	if (result != CUDA_SUCCESS || room->in_place || room->span.end == room->span.begin)
		return result;
	return device->driver.cuMemcpyHtoDAsync(device->room.at + room->span.begin,
	                                        device->room.host + room->span.begin,
	                                        room->span.end - room->span.begin, stream->stream);
}

/* @last: nothing of the work comes after. */
static CUresult launch_part(struct fa_device *device, struct fa_cuda_stream *stream,
                            struct fa_device_work *work, struct part *part, bool last)
{
	const struct room *room = work->room;
	const bool in_place = part->kept ? room->tables_in_place : room->in_place;
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	void *q = (void *)(stream->scratch + room->workspace_bytes);
	CUresult result = CUDA_SUCCESS;
	bool yields;
	int n;

	if (part->reads_q)
		part->request.attention.q.data = q;
	if (part->writes_q)
		part->request.append.q_out.data = q;
	if (part->joined)
		return CUDA_SUCCESS;
	++stream->epoch;
	n = fa_cuda_paged_launches(part->plan, &part->request,
	                           (in_place ? device->room.in_place : device->room.at) +
	                                   part->blob_at,
	                           stream->scratch, stream->epoch, launches);
	if (part > room->parts && part[-1].joined)
		fa_cuda_paged_add_append(&launches[0], &part[-1].request.append);
	/* Many rows' kernel, the first, may yield: nothing comes behind it then. */
	yields = last && part->request.op == FA_PAGED_ATTEND && part->plan->forward_blocks > 0 &&
	         fa_cuda_preempt_prepare(device, stream, part->plan->forward->state_bytes,
	                                 part->plan->forward_ns);
	for (int i = 0; i < n && result == CUDA_SUCCESS; ++i) {
		struct fa_cuda_paged_launch *launch = &launches[yields ? n - 1 - i : i];
		const uint64_t blocks = (uint64_t)launch->grid_x * launch->grid_y;
		const CUfunction function =
			device->paged_functions[launch->kernel - fa_cuda_paged_kernels];
		const bool tells = last && i == n - 1;
		struct fa_cuda_gate gate;
		struct fa_cuda_maps maps;
		void *params[] = { &launch->args, &maps };

		result = fa_cuda_maps_make(device, launch->maps, launch->n_maps, &maps);
		if (result != CUDA_SUCCESS)
			break;
		if (yields && tells)
			return fa_cuda_preempt_launch(
				device, stream, work,
				&(struct fa_cuda_preempt_kernel){ function, launch->grid_x,
			                                          launch->kernel->threads,
			                                          launch->kernel->shared_bytes },
				&launch->args.attention, sizeof(launch->args.attention), &maps);
		if (tells)
			fa_cuda_self_signal_args(stream, work, blocks, launch->parts,
			                         fa_cuda_paged_done(launch));
		if (work->gate.word)
			gate = fa_cuda_gate_of(stream, work, fa_cuda_paged_done(launch));
		result = fa_cuda_launch_kernel(
			device, stream,
			&(struct fa_cuda_kernel_launch){ function, launch->grid_x, launch->grid_y,
		                                         (unsigned int)launch->kernel->threads,
		                                         (unsigned int)launch->kernel->shared_bytes,
		                                         launch->kernel->awaits &&
		                                                 (stream->n_works > 0 || i > 0) },
			params, work->gate.word ? &gate : NULL);
		if (tells && result == CUDA_SUCCESS)
			fa_cuda_self_signal_launched(stream, blocks, launch->parts);
	}
	return result;
}

bool fa_cuda_paged_may_wait(const struct fa_device_work *work)
{
	const struct room *room = work->room;
	const uint32_t last = work->n_paged - 1;
	const struct fa_cuda_paged_plan *plan = room->parts[last].plan;

	for (uint32_t i = 0; i < last; ++i)
		if (!room->parts[i].joined)
			return false;
	return room->parts[last].request.op == FA_PAGED_ATTEND && !plan->forward_blocks &&
	       plan->decode_grid > 0 && plan->decode_grid <= FA_CUDA_TELL_BLOCKS;
}

double fa_cuda_paged_ns(const struct fa_device_work *work)
{
	return ((const struct room *)work->room)->ns;
}

bool fa_cuda_paged_may_give_way(const struct fa_device_work *work)
{
	const struct room *room = work->room;
	const struct part *last = &room->parts[work->n_paged - 1];

	return last->request.op == FA_PAGED_ATTEND && last->plan->forward_blocks > 0 &&
	       last->plan->forward->state_bytes > 0;
}

int fa_cuda_paged_enqueue(struct fa_device *device, struct fa_cuda_stream *stream,
                          struct fa_device_work *work)
{
	const char *doing = "the GPU's context cannot be used";
	struct room *room = work->room;
	const size_t bytes = room->workspace_bytes + room->q_bytes;
	CUresult result;

	result = fa_cuda_enter(device);
	if (!result && bytes > stream->scratch_bytes) {
		doing = "no memory for what attention over pages needs";
		result = grow_scratch(device, stream, bytes);
	}
	if (!result) {
		doing = "the request's tables cannot be copied to the GPU";
		result = upload(device, stream, work);
	}
	for (uint32_t i = 0; i < work->n_paged && !result; ++i) {
		doing = "a kernel over pages cannot be launched";
		result = launch_part(device, stream, work, &room->parts[i], i == work->n_paged - 1);
	}
	return result ? fa_cuda_fail(device, stream->stream, &work->error, result, doing) : 0;
}
