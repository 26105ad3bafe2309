/*
 * The CUDA backend's paged requests. The loop thread plans each when it comes, and puts
 * what the kernels need of it in a span of the room; the engine thread has the span copied
 * and the kernels launched, one after another on the stream. A step's tables are copied
 * once to each stream that one of its works comes to, by whichever comes first.
 *
 * A stream has scratch for those that run on it: counters and partial results of attention
 * and, behind them, q as it was rotated. It grows when something larger comes, which is
 * the one case of a driver call that is no launch, copy or word.
 */
#include "daemon/device_cuda.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define SCRATCH_BYTES_MIN ((size_t)4 << 20)
/* Rotated q of one request. */
#define Q_BYTES_MAX ((size_t)512 << 20)

/* What fa_device_work.room points to. */
struct room {
	struct fa_cuda_span span;
	size_t workspace_bytes, q_bytes;
	struct part {
		struct fa_cuda_paged_plan plan;
		size_t blob_at; /* in the span */
		/* The request as the kernels are to have it. */
		struct fa_paged_request request;
		struct fa_paged_step step;
		bool writes_q, reads_q; /* in scratch */
	} parts[];
};

/* ---- preparing; on the loop thread */

static size_t align(size_t bytes)
{
	return (bytes + 255) & ~(size_t)255;
}

/* Is being filled. */
struct filling {
	struct fa_device *device;
	const struct fa_device_tables *tables;
	struct room *room;
	size_t used; /* of the span */
};

/* An array of @n words of the host's, as the GPU will have it. */
static void *move_array(struct filling *filling, const void *array, size_t n)
{
	const struct fa_device_tables *tables = filling->tables;
	struct fa_cuda_room *room = &filling->device->room;
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
	return (void *)(room->at + at);
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

static int fill_part(struct filling *filling, const struct fa_paged_request *request,
                     struct part *part, struct fa_error *error)
{
	struct room *room = filling->room;
	size_t q_bytes;
	int r;

	part->request = *request;
	part->blob_at = filling->used;
	r = fa_cuda_paged_plan(&filling->device->chip, request,
	                       filling->device->room.host + room->span.begin + part->blob_at,
	                       error->text, sizeof(error->text), &part->plan);
	if (r < 0)
		return r;
	filling->used += align(part->plan.blob_bytes);
	move_arrays(filling, part);
	if (room->workspace_bytes < part->plan.workspace_bytes)
		room->workspace_bytes = align(part->plan.workspace_bytes);
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

int fa_cuda_paged_prepare(struct fa_device *device, struct fa_device_work *work,
                          struct fa_error *error)
{
	struct filling filling = { .device = device, .tables = work->tables };
	size_t bytes = 0;
	struct room *room;
	int r = 0;

	for (uint32_t i = 0; i < work->n_paged; ++i) {
		r = fa_paged_check(&work->paged[i], error->text, sizeof(error->text));
		if (r < 0)
			return r;
		bytes += bytes_of(&work->paged[i]);
	}
	room = calloc(1, sizeof(*room) + work->n_paged * sizeof(room->parts[0]));
	if (!room)
		return fa_fail(error, -ENOMEM, "no memory for a request over pages");
	if (!fa_cuda_room_take(&device->room, bytes, &room->span)) {
		free(room);
		return fa_fail(error, -ENOMEM,
		               "requests in flight are so large that there is no room for the "
		               "%zu bytes that go with this one",
		               bytes);
	}
	work->room = filling.room = room;
	for (uint32_t i = 0; i < work->n_paged && r == 0; ++i)
		r = fill_part(&filling, &work->paged[i], &room->parts[i], error);
	fa_cuda_room_cut(&room->span, filling.used);
	return r;
}

void fa_cuda_paged_release(struct fa_device *device, struct fa_device_work *work)
{
	struct room *room = fa_steal_ptr(work->room);

	if (!room)
		return;
	fa_cuda_room_give(&device->room, &room->span);
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

static CUresult upload(struct fa_device *device, struct fa_cuda_stream *stream,
                       struct fa_device_work *work)
{
	const struct room *room = work->room;
	const uint64_t bit = (uint64_t)1 << (stream - device->streams);
	struct fa_device_tables *tables = work->tables;
	CUresult result = CUDA_SUCCESS;

	if (tables && tables->bytes && !(tables->backend[1] & bit)) {
		result = device->driver.cuMemcpyHtoDAsync(tables->backend[0], tables->data,
		                                          tables->bytes, stream->stream);
		if (result == CUDA_SUCCESS)
			tables->backend[1] |= bit;
	}
	if (result == CUDA_SUCCESS && room->span.end > room->span.begin)
		result = device->driver.cuMemcpyHtoDAsync(
			device->room.at + room->span.begin, device->room.host + room->span.begin,
			room->span.end - room->span.begin, stream->stream);
	return result;
}

static CUresult launch_part(struct fa_device *device, struct fa_cuda_stream *stream,
                            const struct room *room, struct part *part)
{
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	void *q = (void *)(stream->scratch + room->workspace_bytes);
	CUresult result = CUDA_SUCCESS;
	int n;

	if (part->reads_q)
		part->request.attention.q.data = q;
	if (part->writes_q)
		part->request.append.q_out.data = q;
	if (!++stream->epoch)
		++stream->epoch;
	n = fa_cuda_paged_launches(&part->plan, &part->request,
	                           device->room.at + room->span.begin + part->blob_at,
	                           stream->scratch, stream->epoch, launches);
	for (int i = 0; i < n && result == CUDA_SUCCESS; ++i) {
		void *params[] = { &launches[i].args };

		result = device->driver.cuLaunchKernel(
			device->paged_functions[launches[i].kernel - fa_cuda_paged_kernels],
			launches[i].grid_x, launches[i].grid_y, 1,
			(unsigned int)launches[i].kernel->threads, 1, 1,
			(unsigned int)launches[i].kernel->shared_bytes, stream->stream, params,
			NULL);
	}
	return result;
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
		result = launch_part(device, stream, room, &room->parts[i]);
	}
	return result ? fa_cuda_fail(device, stream->stream, &work->error, result, doing) : 0;
}
