/* What bind() calls: buffers, preparation and dependencies (request.h). Loop thread. */
#include "daemon/session/context.h"
#include "daemon/session/request.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

int fa_request_buffer(struct fa_request *request, const struct fa_wire_view *view, const char *name,
                      const struct fa_device_memory **ret_memory, struct fa_error *error)
{
	struct fa_registered_buffer *buffer = fa_id_table_find(&request->session->buffers,
	                                                       view->buffer);

	if (!buffer)
		return fa_fail(error, -ENOENT,
		               "%s.buffer is %" PRIu32 ", which is not registered in this session",
		               name, view->buffer);
	request->buffers[request->n_buffers++] = fa_registered_buffer_ref(buffer);
	*ret_memory = &buffer->memory;
	return 0;
}

const struct fa_device_memory *fa_request_memory(const struct fa_request *request, uint32_t buffer)
{
	for (unsigned int i = 0; i < request->n_buffers; ++i)
		if (request->buffers[i]->id == buffer)
			return &request->buffers[i]->memory;
	return NULL;
}

/* The stream's previous request, of the same step: its tables can be reused. */
static struct fa_request *find_predecessor(const struct fa_request *request)
{
	const struct fa_session_stream *slot = &request->session->streams[request->stream];
	struct fa_request *last = slot->last;

	return last && request->step && last->step == request->step &&
	                       last->job.stream == slot->stream
	               ? last
	               : NULL;
}

int fa_request_prepare(struct fa_request *request, struct fa_error *error)
{
	struct fa_session *session = request->session;
	const struct fa_context *context = session->context;
	struct fa_device_work *device_work = &request->job.work;
	struct fa_request *predecessor = find_predecessor(request);
	int r;

	device_work->predecessor = predecessor ? &predecessor->job.work : NULL;
	r = context->ops->paged_prepare(context->device, device_work, error);
	device_work->predecessor = NULL;
	if (r == 0 && device_work->metadata_bytes)
		r = fa_charge_add(&request->charge_metadata, session->tenant,
		                  FA_RESOURCE_STEP_BYTES, device_work->metadata_bytes, error);
	if (r == 0 && predecessor && predecessor->job.work.prepared_moved && !predecessor->reported)
		fa_charge_move(&request->charge_host, &predecessor->charge_host);
	else if (r == 0 && device_work->host_bytes)
		r = fa_charge_add(&request->charge_host, session->tenant, FA_RESOURCE_BUFFER_BYTES,
		                  device_work->host_bytes, error);
	if (r == 0)
		session->n_prefixes += device_work->shared_prefixes;
	if (r < 0 && predecessor && predecessor->job.work.prepared_moved) {
		predecessor->job.work.prepared_moved = false;
		device_work->prepared = NULL;
	}
	return r;
}

int fa_request_wait(struct fa_request *request, uint32_t stream, uint64_t value,
                    struct fa_error *error)
{
	if (stream == request->stream || request->session->streams[stream].finished >= value)
		return 0;
	if (!request->dependencies)
		request->dependencies = calloc(FA_SESSION_STREAMS, sizeof(*request->dependencies));
	if (!request->dependencies)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a request's order");
	if (request->dependencies[stream] < value)
		request->dependencies[stream] = value;
	return 0;
}
