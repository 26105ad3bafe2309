/*
 * Works, from launch() over a CUDA stream to reap(). Engine thread. A CUDA stream is a lane of the
 * engine's and holds at most FA_CUDA_STREAM_DEPTH works; launch() refuses more. A group uses the
 * least used stream of each priority.
 *
 * At a work's end the GPU writes a number to a pinned word, just after the client's completion
 * words: by the last block of its last launch, or the blocks that finish its parts, each to its own
 * word; otherwise by the driver. reap() only compares words. Between launch and reap the driver is
 * asked only for copies, kernels, words and, rarely, a graph.
 *
 * Small vectors are in pinned memory, one place per work of the stream, where launches of few
 * blocks read them.
 */
#include "daemon/backend/cuda/queue.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/timeline.h"
#include "daemon/backend/cuda/context.h"
#include "daemon/backend/cuda/copy.h"
#include "daemon/backend/cuda/cost.h"
#include "daemon/backend/cuda/gate.h"
#include "daemon/backend/cuda/graph_cache.h"
#include "daemon/backend/cuda/paged_launch.h"
#include "daemon/backend/cuda/preempt.h"
#include "daemon/backend/cuda/scratch.h"
#include "daemon/backend/cuda/staging.h"
#include "daemon/backend/cuda/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The driver is asked for errors so long after the last end. */
#define QUIET_NS (20 * FA_NS_PER_MS)

enum work_state {
	LAUNCHED, /* to the driver */
	FINISHED,
};

/* Stored in fa_device_work.backend. */
struct cuda_work {
	uint64_t sequence; /* in its CUDA stream */
	struct fa_cuda_range range;
	enum work_state state;
	uint32_t parts;   /* that signal their end; 0: the whole work does */
	uint32_t counted; /* blocks, in stream.n_counted */
	bool gated;
	bool open;           /* or about to open */
	bool nonpreemptible; /* launched, long */
	bool preemptible;
	/* Expected time; 0: not long. For nonpreemptible works: expected end. */
	uint64_t long_ns;
};

_Static_assert(sizeof(struct cuda_work) <= sizeof(((struct fa_device_work *)0)->backend),
               "it fits");

/* A group's queues of one priority share a stream. */
struct fa_device_group {
	struct {
		struct fa_cuda_stream *stream;
		/* 0: the next queue chooses the stream */
		unsigned int n_queues;
	} shares[2]; /* normal and high priority */
};

struct fa_device_queue {
	struct fa_cuda_stream *stream;
	unsigned int *n_of_group; /* of the group's share */
};

static struct cuda_work *cuda_work(struct fa_device_work *work)
{
	return (struct cuda_work *)work->backend;
}

static struct fa_device_work *first_work(const struct fa_list *list)
{
	return fa_container_of(list->next, struct fa_device_work, link);
}

/* ---- ends of works */

static void work_finish(struct fa_device *device, struct fa_device_work *work)
{
	struct cuda_work *cuda = cuda_work(work);

	fa_list_remove(&work->link);
	fa_cuda_staging_free(&cuda->range);
	cuda->state = FINISHED;
	if (!work->finished_ns)
		work->finished_ns = fa_now_ns();
	if (!device->reaping && fa_list_empty(&device->done))
		device->config.notify(device->config.userdata);
	fa_list_append(&device->done, &work->link);
}

static uint64_t nonpreemptible_until_ns(struct fa_device *device)
{
	const struct fa_list *pos;
	uint64_t until_ns = 0;

	for (unsigned int i = 0; i < device->n_streams; ++i) {
		fa_list_for_each(pos, &device->streams[i].works) {
			const struct cuda_work *cuda = cuda_work(fa_container_of(
				(struct fa_list *)pos, struct fa_device_work, link));

			if (cuda->nonpreemptible && until_ns < cuda->long_ns)
				until_ns = cuda->long_ns;
		}
	}
	return until_ns;
}

static void work_detach(struct fa_device *device, struct fa_cuda_stream *stream,
                        struct fa_device_work *work)
{
	struct cuda_work *cuda = cuda_work(work);

	stream->gates.n_works -= cuda->gated;
	stream->gates.n_open -= cuda->open;
	cuda->gated = cuda->open = false;
	if (work == stream->preemption.work)
		fa_cuda_preempt_end(device, stream);
	if (cuda->nonpreemptible) {
		cuda->nonpreemptible = false;
		fa_cuda_quiesce_nonpreemptible_end(&device->quiesce,
		                                   nonpreemptible_until_ns(device));
	}
}

static void work_finish_lost(struct fa_device *device, struct fa_device_work *work)
{
	work->status = fa_fail(&work->error, -ENODEV, "%s", device->lost_error.text);
	work_finish(device, work);
}

/* ---- works on their way to the GPU */

/* Appends the vector. Returns its GPU address. */
static void *put_vector(char *place, CUdeviceptr place_at, size_t *used, const void *vector,
                        size_t n)
{
	const CUdeviceptr at = place_at + *used;

	if (!vector)
		return NULL;
	memcpy(place + *used, vector, n * 4);
	*used += (n * 4 + 15) & ~(size_t)15;
	return (void *)at;
}

/* Copies cu_seqlens, slopes, sinks, and a ragged launch's list, unless each thread block reads them
 * once. */
static CUresult copy_vectors(struct fa_device *device, struct fa_cuda_stream *stream,
                             const struct fa_attention_params *params,
                             struct fa_cuda_launch *launch)
{
	struct fa_cuda_attention *const args = &launch->args;
	const size_t packed_bytes = fa_cuda_packed_list_bytes(launch);
	const bool in_place = launch->grid <= (uint32_t)device->chip.sms && !launch->list_units &&
	                      !packed_bytes;
	const size_t offset = (stream->sequence % FA_CUDA_STREAM_DEPTH) * FA_CUDA_VECTORS_BYTES;
	const size_t n_lengths = (size_t)params->batch + 1, heads = (size_t)params->heads;
	const CUdeviceptr at = (in_place ? stream->vectors_in_place : stream->vectors_at) + offset;
	char *place = stream->vectors + offset;
	size_t used = 0;

	if (launch->list_units > 0) {
		struct fa_cuda_ragged_unit *const list = (struct fa_cuda_ragged_unit *)place;

		/* It ends where cu_seqlens_q begins. */
		used = (launch->list_units * sizeof(*list) + 15) & ~(size_t)15;
		if (fa_cuda_ragged_list(launch, device->chip.l2_bytes,
		                        list + used / sizeof(*list) - launch->list_units))
			args->list_units = launch->list_units;
	} else if (packed_bytes > 0) {
		fa_cuda_packed_list(launch, place, at);
		used = (packed_bytes + 15) & ~(size_t)15;
	}
	args->cu_seqlens_q = put_vector(place, at, &used, params->cu_seqlens_q, n_lengths);
	args->cu_seqlens_k = put_vector(place, at, &used, params->cu_seqlens_k, n_lengths);
	args->alibi_slopes = put_vector(place, at, &used, params->alibi_slopes, heads);
	args->sinks = put_vector(place, at, &used, params->sinks, heads);
	if (!used || in_place)
		return CUDA_SUCCESS;
	return device->driver.cuMemcpyHtoDAsync(at, place, used, stream->stream);
}

static CUresult launch_kernel(struct fa_device *device, struct fa_cuda_stream *stream,
                              struct fa_device_work *work, struct fa_cuda_launch *launch)
{
	const struct fa_cuda_kernel *kernel = launch->kernel;
	const CUfunction function = device->functions[kernel - fa_cuda_kernels];
	struct fa_cuda_maps maps;
	void *params[] = { &launch->args, &maps };
	CUresult result;

	result = fa_cuda_tensor_maps_encode(&device->tensor_maps, &device->driver, launch->maps,
	                                    launch->n_maps, &maps);
	if (result != CUDA_SUCCESS)
		return result;
	if (fa_cuda_preempt_prepare(device, stream, kernel->state_bytes, launch->work_ns))
		return fa_cuda_preempt_launch(
			device, stream, work,
			&(struct fa_cuda_preempt_kernel){ function, launch->grid, kernel->threads,
		                                          kernel->shared_bytes },
			&launch->args, fa_cuda_kernel_args_bytes(kernel), &maps);
	fa_cuda_self_signal_args(stream, work, launch->grid, 0, &launch->args.done);
	result = fa_cuda_launch_kernel(
		device, stream,
		&(struct fa_cuda_kernel_launch){ function, launch->grid, 1,
	                                         (unsigned int)kernel->threads,
	                                         (unsigned int)kernel->shared_bytes },
		params, NULL);
	if (result == CUDA_SUCCESS)
		fa_cuda_self_signal_launched(stream, launch->grid, 0);
	return result;
}

static CUresult plan_without_workspace(struct fa_device *device, struct fa_device_work *work,
                                       struct fa_cuda_launch *ret_launch)
{
	struct fa_cuda_chip chip = device->chip;

	chip.workspace = false;
	return fa_cuda_attention_plan(&chip, work->params, work->error.text,
	                              sizeof(work->error.text), ret_launch) < 0
	               ? CUDA_ERROR_OUT_OF_MEMORY
	               : CUDA_SUCCESS;
}

static int work_enqueue(struct fa_device *device, struct fa_cuda_stream *stream,
                        struct fa_device_work *work)
{
	const char *doing = "the GPU's context cannot be used";
	struct fa_cuda_launch launch;
	CUresult result;
	int r;

	if (work->op == FA_DEVICE_PAGED)
		return fa_cuda_paged_enqueue(device, stream, work);
	if (work->op == FA_DEVICE_COPY)
		return fa_cuda_copy_enqueue(device, stream, work);
	r = fa_cuda_attention_plan(&device->chip, work->params, work->error.text,
	                           sizeof(work->error.text), &launch);
	if (r < 0)
		return r;
	result = fa_cuda_enter(device);
	if (!launch.grid && !result)
		return 0;
	if (!result && launch.workspace_bytes > 0) {
		doing = "no memory for partial results";
		result = fa_cuda_scratch_grow(device, stream, launch.workspace_bytes);
		if (result == CUDA_SUCCESS)
			fa_cuda_packed_set(&launch, stream->scratch, ++stream->epoch);
		else if (result == CUDA_ERROR_OUT_OF_MEMORY)
			result = plan_without_workspace(device, work, &launch);
	}
	if (!result) {
		doing = "the request's vectors cannot be copied to the GPU";
		result = copy_vectors(device, stream, work->params, &launch);
	}
	if (!result) {
		doing = "K and V cannot be copied to the GPU";
		result = fa_cuda_stage(device, stream->stream, work, &launch,
		                       &cuda_work(work)->range);
	}
	if (!result) {
		doing = "the kernel cannot be launched";
		result = launch_kernel(device, stream, work, &launch);
	}
	return result ? fa_cuda_fail(device, stream->stream, &work->error, result, doing) : 0;
}

/* The stream may use the work's memory until its word is written, even after half a launch. */
static void work_start(struct fa_device *device, struct fa_cuda_stream *stream,
                       struct fa_device_work *work)
{
	struct cuda_work *cuda = cuda_work(work);
	const uint64_t n_counted = stream->n_counted;
	CUresult result = CUDA_SUCCESS;
	struct fa_error error;

	work->started_ns = fa_now_ns();
	cuda->sequence = ++stream->sequence;
	if (!work->gate.word)
		fa_cuda_preempt_request(device, stream);
	work->status = work_enqueue(device, stream, work);
	if (stream->preemption.work == work) {
		stream->preemption.is_long = cuda->long_ns > 0;
	} else if (cuda->long_ns > 0) {
		cuda->nonpreemptible = true;
		cuda->long_ns = fa_cuda_quiesce_nonpreemptible_begin(&device->quiesce,
		                                                     cuda->long_ns);
	}
	cuda->counted = (uint32_t)(stream->n_counted - n_counted);
	cuda->gated = work->gate.word && !work->status;
	if (cuda->gated)
		fa_cuda_gates_add(stream, work->queue);
	if (stream->self_signalled == cuda->sequence)
		cuda->parts = stream->self_signal_parts;
	else
		result = device->driver.cuStreamWriteValue64(stream->stream, stream->word_at,
		                                             cuda->sequence,
		                                             CU_STREAM_WRITE_VALUE_DEFAULT);
	if (result != CUDA_SUCCESS) {
		/* Otherwise no end of the stream's works would be seen. */
		(void)fa_cudriver_fail(&device->driver, &error, result,
		                       "the end of a request cannot be asked for");
		fa_cuda_lose(device, error.text);
	}
	if (!device->n_works++)
		device->progress_ns = work->started_ns;
	++stream->n_works;
	fa_list_append(&stream->works, &work->link);
	cuda->state = LAUNCHED;
}

/* True if the stream takes @work, of @queue, now. Behind gates it takes only gated works of that
 * queue; for others it asks the gates to give up. */
static bool has_slot(struct fa_device *device, const struct fa_device_queue *queue,
                     const struct fa_device_work *work)
{
	struct fa_cuda_stream *stream = queue->stream;

	if (stream->n_works >= FA_CUDA_STREAM_DEPTH || stream->preemption.work)
		return false;
	if (!stream->gates.n_works)
		return true;
	if (stream->gates.queue == queue)
		return work->gate.word != NULL;
	if (!stream->gates.stopped)
		fa_cuda_gates_stop(stream);
	fa_cuda_preempt_request(device, stream);
	return false;
}

/* False: @work is long and must wait, because workers do. A nonpreemptible work never passes a
 * deferred one of its stream. */
static bool may_begin(struct fa_device *device, const struct fa_cuda_stream *stream,
                      struct fa_device_work *work)
{
	const struct cuda_work *cuda = cuda_work(work);

	if (!cuda->long_ns)
		return true;
	return (!stream->lane.n_deferred || cuda->preemptible) &&
	       fa_cuda_quiesce_long_begin(&device->quiesce, cuda->preemptible ? 0 : cuda->long_ns);
}

static bool has_ended(const struct fa_cuda_stream *stream)
{
	const struct cuda_work *cuda = cuda_work(first_work(&stream->works));
	uint32_t i = 0;

	/* Acquire orders the GPU's earlier writes before. */
	do {
		if (__atomic_load_n(stream->word + i, __ATOMIC_ACQUIRE) < cuda->sequence)
			return false;
	} while (++i < cuda->parts);
	return true;
}

/* True: gates shut from @turn on kept @work from running. */
static bool is_shut_out(struct fa_device_work *work, uint64_t turn)
{
	const struct cuda_work *cuda = cuda_work(work);

	return cuda->gated && cuda->sequence >= turn;
}

/* First synchronises: a GPU that did not stop with an error may still use works' memory. */
static void fail_all(struct fa_device *device)
{
	for (unsigned int i = 0; i < device->n_streams; ++i) {
		struct fa_cuda_stream *stream = &device->streams[i];
		bool shut, is_lost = false;
		uint64_t turn;

		if (stream->n_works)
			(void)device->driver.cuStreamSynchronize(stream->stream);
		shut = fa_cuda_gates_are_shut(stream, &turn);
		/* The work has succeeded, unless its gate has shut. */
		while (!fa_list_empty(&stream->works)) {
			struct fa_device_work *work = first_work(&stream->works);
			const bool ended = !is_lost && has_ended(stream) &&
			                   !(shut && is_shut_out(work, turn));

			is_lost = !ended;
			work_detach(device, stream, work);
			if (ended)
				work_finish(device, work);
			else
				work_finish_lost(device, work);
		}
		device->n_works -= stream->n_works;
		stream->n_works = 0;
		fa_cuda_gates_begin(stream);
	}
}

/* ---- launching and cancelling */

bool fa_cuda_can_wait(struct fa_device *device, const struct fa_device_queue *queue,
                      const struct fa_device_work *work)
{
	const struct fa_cuda_stream *stream = queue->stream;
	const struct fa_cuda_gates *gates = &stream->gates;

	return device->gate_function && work->op == FA_DEVICE_PAGED &&
	       fa_cuda_paged_can_wait(work) && stream->n_works < FA_CUDA_STREAM_DEPTH &&
	       !stream->preemption.work && !fa_cuda_cost_long_ns(device, work) &&
	       (!gates->n_works || (gates->queue == queue && !gates->stopped));
}

struct fa_device_lane *fa_cuda_queue_lane(struct fa_device_queue *queue)
{
	return &queue->stream->lane;
}

int fa_cuda_launch(struct fa_device *device, struct fa_device_queue *queue,
                   struct fa_device_work *work)
{
	const bool lost = fa_cuda_is_lost(device);
	struct cuda_work *cuda = cuda_work(work);

	(void)fa_cuda_enter(device);
	if (!lost && !has_slot(device, queue, work))
		return -EAGAIN;
	if (!work->deferred) {
		*cuda = (struct cuda_work){ .long_ns = fa_cuda_cost_long_ns(device, work) };
		cuda->preemptible = cuda->long_ns > 0 && fa_cuda_preempt_covers(device, work);
	}
	work->deferred = !lost && !may_begin(device, queue->stream, work);
	if (work->deferred) {
		device->held = true;
		return -EBUSY;
	}
	work->queue = queue;
	work->status = 0;
	work->started_ns = work->finished_ns = 0;
	work->gate_gave_up = false;
	atomic_store_explicit(&work->cancelled, false, memory_order_relaxed);
	fa_list_init(&cuda->range.link);
	fa_list_init(&work->link);
	if (lost)
		work_finish_lost(device, work);
	else
		work_start(device, queue->stream, work);
	return 0;
}

void fa_cuda_cancel(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_cuda_stream *stream = work->queue->stream;

	if (cuda_work(work)->state != LAUNCHED)
		return;
	/* Most kernels run on; a preemptible one is asked to stop. */
	if (stream->preemption.work == work) {
		atomic_store_explicit(&work->cancelled, true, memory_order_relaxed);
		(void)fa_cuda_enter(device);
		fa_cuda_preempt_cancel(device, stream);
	} else if (cuda_work(work)->gated) {
		atomic_store_explicit(&work->cancelled, true, memory_order_relaxed);
		fa_cuda_gates_stop(stream);
	}
}

static void stream_finish(struct fa_device *device, struct fa_cuda_stream *stream,
                          struct fa_device_work *work, uint64_t now_ns)
{
	/* A work cannot start before the work ahead has ended. */
	if (work->started_ns < stream->finished_ns)
		work->started_ns = stream->finished_ns;
	work->finished_ns = now_ns;
	work_detach(device, stream, work);
	work_finish(device, work);
	--stream->n_works;
	--device->n_works;
}

static void stream_resume(struct fa_device *device, struct fa_cuda_stream *stream)
{
	struct fa_device_work *work = stream->preemption.work;
	const char *doing = "the rest of the kernel cannot be launched";
	CUresult result;

	if (atomic_load_explicit(&work->cancelled, memory_order_relaxed)) {
		work->status = fa_fail(&work->error, -ECANCELED, "the work was cancelled");
	} else {
		result = fa_cuda_preempt_resume(device, stream);
		if (result == CUDA_SUCCESS)
			return;
		work->status = fa_cuda_fail(device, stream->stream, &work->error, result, doing);
		if (fa_cuda_is_lost(device))
			return; /* fail_all() ends it with all others */
	}
	stream->finished_ns = fa_now_ns();
	stream_finish(device, stream, work, stream->finished_ns);
}

/* Gives works behind gates shut from @turn on back to the engine. */
static void return_unlaunched(struct fa_device *device, struct fa_cuda_stream *stream,
                              uint64_t turn)
{
	struct fa_list *pos, *next;

	fa_list_for_each_safe(pos, next, &stream->works) {
		struct fa_device_work *work = fa_container_of(pos, struct fa_device_work, link);
		const struct cuda_work *cuda = cuda_work(work);

		if (!is_shut_out(work, turn))
			continue;
		work_detach(device, stream, work);
		stream->n_counted -= cuda->counted;
		--stream->n_works;
		--device->n_works;
		if (atomic_load_explicit(&work->cancelled, memory_order_relaxed))
			work->status = fa_fail(&work->error, -ECANCELED, "the work was cancelled");
		else
			work->gate_gave_up = true;
		work_finish(device, work);
	}
}

/* True: gates have given up since the last call, and their works have left the stream. */
static bool handle_shut_gates(struct fa_device *device, struct fa_cuda_stream *stream)
{
	uint64_t turn;

	if (!fa_cuda_gates_are_shut(stream, &turn))
		return false;
	return_unlaunched(device, stream, turn);
	fa_cuda_gates_begin(stream);
	return true;
}

/* First the word, then the gate: the driver writes the word of a failed launch even if the gate has
 * shut. */
static bool first_has_ended(struct fa_device *device, struct fa_cuda_stream *stream)
{
	while (!fa_list_empty(&stream->works) && has_ended(stream))
		if (!cuda_work(first_work(&stream->works))->gated ||
		    !handle_shut_gates(device, stream))
			return true;
	return false;
}

/* Behind an opened gate a work is as urgent as a new launch. */
static void poll_gates(struct fa_device *device, struct fa_cuda_stream *stream)
{
	const struct fa_list *pos;

	(void)handle_shut_gates(device, stream);
	if (stream->gates.n_open == stream->gates.n_works)
		return;
	fa_list_for_each(pos, &stream->works) {
		struct fa_device_work *work = fa_container_of(pos, struct fa_device_work, link);
		struct cuda_work *cuda = cuda_work(work);

		if (!cuda->gated || cuda->open)
			continue;
		if (!fa_timeline_reached(__atomic_load_n(work->gate.host_word, __ATOMIC_ACQUIRE),
		                         work->gate.value))
			return;
		cuda->open = true;
		++stream->gates.n_open;
		work->started_ns = device->progress_ns = fa_now_ns();
		fa_cuda_preempt_request(device, stream);
	}
}

static void stream_reap(struct fa_device *device, struct fa_cuda_stream *stream)
{
	uint64_t now_ns;

	if (stream->gates.n_works)
		poll_gates(device, stream);
	if (!first_has_ended(device, stream)) {
		/* Resumes only if no work ahead still has to end. */
		if (stream->n_works && first_work(&stream->works) == stream->preemption.work &&
		    fa_cuda_preempt_stopped(device, stream))
			stream_resume(device, stream);
		return;
	}
	now_ns = fa_now_ns();
	device->progress_ns = now_ns;
	do
		stream_finish(device, stream, first_work(&stream->works), now_ns);
	while (first_has_ended(device, stream));
	if (!fa_list_empty(&stream->works))
		fa_cuda_preempt_reached_head(stream, first_work(&stream->works), now_ns);
	stream->finished_ns = now_ns;
}

void fa_cuda_reap(struct fa_device *device, struct fa_list *done)
{
	const bool held = device->held;

	device->reaping = true;
	device->held = false;
	/* Another thread may have launched before. */
	(void)fa_cuda_enter(device);
	for (unsigned int i = 0; i < device->n_streams && device->n_works; ++i)
		if (device->streams[i].n_works)
			stream_reap(device, &device->streams[i]);
	fa_cuda_preempt_poll(device);
	for (unsigned int i = 0; i < device->n_streams && held; ++i)
		device->held = device->held || device->streams[i].lane.n_deferred > 0;
	if (held && !device->held)
		fa_cuda_quiesce_forget_held(&device->quiesce);
	if (fa_cuda_is_lost(device))
		fail_all(device);
	device->reaping = false;
	fa_list_splice(done, &device->done);
}

int fa_cuda_health(struct fa_device *device, struct fa_error *error)
{
	struct fa_error why;
	CUresult result;
	uint64_t now_ns;

	if (!fa_cuda_is_lost(device) && device->n_works) {
		now_ns = fa_now_ns();
		if (now_ns - device->progress_ns >= QUIET_NS &&
		    now_ns - device->queried_ns >= QUIET_NS) {
			device->queried_ns = now_ns;
			for (unsigned int i = 0; i < device->n_streams; ++i) {
				if (!device->streams[i].n_works)
					continue;
				result = device->driver.cuStreamQuery(device->streams[i].stream);
				if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)
					continue;
				(void)fa_cudriver_fail(&device->driver, &why, result,
				                       "what runs on the GPU failed");
				fa_cuda_lose(device, why.text);
				break;
			}
		}
	}
	return fa_cuda_is_lost(device) ? fa_fail(error, -ENODEV, "%s", device->lost_error.text) : 0;
}

int fa_cuda_group_new(struct fa_device *device, struct fa_error *error,
                      struct fa_device_group **ret_group)
{
	struct fa_device_group *group;

	group = fa_new(struct fa_device_group);
	if (!group)
		return fa_fail(error, -ENOMEM, "no memory for a group of queues");
	*ret_group = group;
	return 0;
}

struct fa_device_group *fa_cuda_group_free(struct fa_device *device, struct fa_device_group *group)
{
	free(group);
	return NULL;
}

int fa_cuda_queue_new(struct fa_device *device, struct fa_device_group *group, int priority,
                      struct fa_error *error, struct fa_device_queue **ret_queue)
{
	const unsigned int begin = priority > 0 ? 0 : device->n_high;
	const unsigned int end = priority > 0 ? device->n_high : device->n_streams;
	struct fa_cuda_stream *least = &device->streams[begin];
	struct fa_device_queue *queue;

	queue = fa_new(struct fa_device_queue);
	if (!queue)
		return fa_fail(error, -ENOMEM, "no memory for a queue");
	for (unsigned int i = begin; i < end; ++i)
		if (device->streams[i].n_queues < least->n_queues)
			least = &device->streams[i];
	queue->n_of_group = &group->shares[priority > 0].n_queues;
	if (!(*queue->n_of_group)++)
		group->shares[priority > 0].stream = least;
	queue->stream = group->shares[priority > 0].stream;
	++queue->stream->n_queues;
	*ret_queue = queue;
	return 0;
}

struct fa_device_queue *fa_cuda_queue_free(struct fa_device *device, struct fa_device_queue *queue)
{
	if (!queue)
		return NULL;
	--queue->stream->n_queues;
	--*queue->n_of_group;
	free(queue);
	return NULL;
}
