/*
 * SequenceState: copies a state of linear layers between a tensor and a checkpoint. A write belongs
 * to the step that has planned the checkpoint; a read has a step of its own, which keeps the pages.
 */
#include "daemon/requests/kv.h"

#include "common/cleanup.h"
#include "daemon/kv/step.h"
#include "daemon/memory/tensor_view.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* Bounds one copy: the CPU's workers share a large state. */
#define COPY_BYTES_MAX ((uint64_t)4 << 20)

struct state {
	struct fa_request request;     /* must be first */
	struct fa_device_copy *copies; /* of the work */
};

static struct state *state_of(struct fa_request *request)
{
	return fa_container_of(request, struct state, request);
}

static void release(struct fa_request *request)
{
	free(fa_steal_ptr(state_of(request)->copies));
}

/* A state lies in the pages of a checkpoint. */
struct place {
	struct fa_kv_step *step;
	const struct fa_kv_group *group;
	const struct fa_cache_layout *layout;
	const uint32_t *slots;
	uint32_t entry;
};

static bool writes(const struct fa_wire_sequence_state *m)
{
	return m->flags & FA_WIRE_COPY_WRITE;
}

static int find_step(struct fa_session *session, const struct fa_wire_sequence_state *m,
                     struct place *place, struct fa_error *error)
{
	struct fa_list *pos;

	place->step = NULL;
	fa_list_for_each(pos, &session->kv.steps) {
		struct fa_kv_step *step = fa_container_of(pos, struct fa_kv_step, link);

		for (uint32_t i = 0; i < step->plan->n_entries && !step->end_requested; ++i) {
			const struct fa_pool_step_entry *entry = &step->plan->entries[i];

			if (entry->sequence != m->sequence || !entry->checkpoint ||
			    (m->tokens && m->tokens != entry->after))
				continue;
			place->step = step;
			place->entry = i;
			place->slots = entry->checkpoint;
		}
	}
	if (place->step)
		return 0;
	return fa_fail(error, -EINVAL,
	               "a state is to be written; expected a step in flight that writes a "
	               "checkpoint of the sequence after as many tokens");
}

static int step_for_read(struct fa_session *session, const struct fa_wire_sequence_state *m,
                         struct place *place, struct fa_error *error)
{
	const struct fa_pool_step_item item = { .sequence = m->sequence };
	struct fa_pool *pool = session->context->kv->pool;
	const struct fa_actor *actor = NULL;
	uint64_t length;
	int r;

	r = fa_kv_actor(session, &actor, error);
	if (r == 0)
		r = fa_pool_sequence_checkpoint(pool, actor, m->sequence,
		                                m->tokens ? m->tokens : UINT64_MAX, error, &length,
		                                &place->slots);
	if (r == 0)
		r = fa_kv_step_new(session, actor, 0, &item, 1, NULL, 0, NULL, error, &place->step);
	if (r < 0)
		return r;
	/* Planning a read does not change the sequence, but the array may have moved. */
	(void)fa_pool_sequence_checkpoint(pool, actor, m->sequence, length, error, &length,
	                                  &place->slots);
	place->entry = 0;
	return 0;
}

static int join(struct fa_request *request, const struct fa_wire_sequence_state *m,
                struct place *place, struct fa_error *error)
{
	int r;

	if (m->flags & ~FA_WIRE_COPY_WRITE)
		return fa_fail(error, -ENOTSUP,
		               "flags %#" PRIx32 " are not supported; expected none but %#x, write",
		               m->flags, FA_WIRE_COPY_WRITE);
	r = writes(m) ? find_step(request->session, m, place, error)
	              : step_for_read(request->session, m, place, error);
	if (r < 0)
		return r;
	r = fa_kv_step_add(place->step, request, FA_KV_STATE_LAYER + m->state % FA_KV_STATE_LAYER,
	                   1, error);
	if (r < 0 && !writes(m))
		fa_kv_step_abandon(place->step);
	if (r < 0)
		return r;
	/* The step of a read ends with its request. */
	place->step->abandoned = !writes(m);
	place->group = fa_kv_step_group(place->step, place->entry);
	place->layout = &place->step->plan->groups[place->group - place->step->groups].layout;
	return 0;
}

static int check(const struct fa_wire_sequence_state *m, const struct fa_kv_group *group,
                 const struct fa_device_memory *memory, struct fa_error *error)
{
	const unsigned int element = fa_tensor_view_dtype_bytes(m->data.dtype);
	uint32_t bytes;
	int r;

	if (m->state >= group->n_states)
		return fa_fail(error, -EINVAL,
		               "state is %" PRIu32 "; expected one below %" PRIu32
		               ", the states of the cache",
		               m->state, group->n_states);
	bytes = group->state_bytes[m->state];
	if (!element)
		return fa_fail(error, -EINVAL, "data.dtype is %u, which is unknown", m->data.dtype);
	if (m->data.rank != 1 || m->data.shape[0] < 0 ||
	    (uint64_t)m->data.shape[0] != bytes / element || bytes % element)
		return fa_fail(error, -EINVAL,
		               "data has rank %u and %" PRId64
		               " elements of %u bytes; expected one dimension of %" PRIu32
		               " bytes, those of state %" PRIu32,
		               m->data.rank, m->data.shape[0], element, bytes, m->state);
	r = fa_tensor_view_check_dtype(&m->data, "data", (enum fa_wire_dtype)m->data.dtype,
	                               !writes(m), memory, error);
	return r;
}

static uint64_t end_of_copy(uint64_t begin, uint64_t bytes, uint64_t chunk_bytes)
{
	const uint64_t left = chunk_bytes - begin % chunk_bytes;

	return bytes < left ? bytes : left;
}

/* Only counts the copies if there is no array yet. */
static uint32_t fill(const struct place *place, const struct fa_kv *kv, uint32_t state, char *data,
                     const struct fa_device_memory *memory, struct fa_device_copy *copies)
{
	const struct fa_kv_group *group = place->group;
	const uint64_t bytes = group->state_bytes[state];
	uint64_t at = 0, n;
	uint32_t n_copies = 0;

	for (uint32_t i = 0; i < state; ++i)
		at += fa_cache_state_room(group->state_bytes[i]);
	for (uint64_t done = 0; done < bytes; done += n) {
		const uint64_t most = bytes - done < COPY_BYTES_MAX ? bytes - done : COPY_BYTES_MAX;
		const uint64_t offset = fa_cache_checkpoint_find(
			place->layout, place->slots, group->checkpoint_pages, at + done, most, &n);

		n = end_of_copy(offset, n, fa_pool_chunk_bytes(kv->pool));
		if (copies)
			copies[n_copies] = (struct fa_device_copy){ .pool = (char *)kv->base +
				                                            offset,
				                                    .data = data + done,
				                                    .bytes = n,
				                                    .memory = memory };
		++n_copies;
	}
	return n_copies;
}

static int bind_state(struct fa_request *request, const struct fa_wire_message *message,
                      struct fa_error *error)
{
	const struct fa_wire_sequence_state *m = &message->sequence_state;
	const struct fa_kv *kv = request->session->context->kv;
	struct fa_device_work *work = &request->job.work;
	const struct fa_device_memory *memory = NULL;
	struct place place;
	char *data;
	int r;

	r = join(request, m, &place, error);
	if (r == 0)
		r = fa_request_buffer(request, &m->data, "data", &memory, error);
	if (r == 0)
		r = check(m, place.group, memory, error);
	if (r < 0)
		return r;
	data = (char *)memory->address + m->data.offset;
	work->op = FA_DEVICE_COPY;
	work->to_pool = writes(m);
	work->n_copies = fill(&place, kv, m->state, data, memory, NULL);
	r = fa_charge_add(&request->charge_host, request->session->tenant, FA_RESOURCE_BUFFER_BYTES,
	                  work->n_copies * sizeof(*work->copies), error);
	if (r < 0)
		return r;
	work->copies = state_of(request)->copies = calloc(work->n_copies, sizeof(*work->copies));
	if (!work->copies)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a request's copies");
	(void)fill(&place, kv, m->state, data, memory, state_of(request)->copies);
	if (writes(m))
		fa_kv_step_state_written(place.step, place.entry, m->state);
	return 0;
}

static void refused(struct fa_request *request, const struct fa_wire_message *message)
{
	request->layer = FA_KV_STATE_LAYER + message->sequence_state.state % FA_KV_STATE_LAYER;
	fa_kv_step_request_refused(request);
}

const struct fa_request_kind fa_kv_state_kind = {
	.name = "SequenceState",
	.bytes = sizeof(struct state),
	.bind = bind_state,
	.release = release,
	.refused = refused,
	.ended = fa_kv_step_request_ended,
};
