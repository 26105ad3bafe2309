/*
 * Preemption of long launches by works of high priority, and by workers that wait for the GPU
 * (quiesce.h). kernels/cuda/common/yield.h has the kernel's side.
 *
 * Nothing is launched behind a preemptible launch in its stream, as it would run before the rest.
 * To preempt, the engine writes the launch's turn to a word in GPU memory, on a stream of its own,
 * which the GPU's front end does at once however many blocks wait for an SM. A launch that stopped
 * reports how many blocks are left; the rest is launched when no work of high priority is in
 * flight. A cancelled launch is stopped and not resumed.
 *
 * No launch starves: each has preempt_run_ns before it is asked to stop, and is resumed for
 * FORCED_RUN_NS after preempt_stop_ns even if high priority is always in flight. Both count from
 * when the works ahead of it in its stream have ended. When a launch gets an SM is not known: one
 * behind a launch of another stream may be asked before it has begun, then stops at once and gets
 * its time when it is resumed.
 */
#include "daemon/backend/cuda/preempt.h"

#include "common/clock.h"
#include "daemon/backend/cuda/paged_work.h"
#include "daemon/backend/cuda/scratch.h"

#include <string.h>

#define FORCED_RUN_NS (500 * FA_NS_PER_US)
/* Blocks an SM at most: when asked to stop, blocks that have not begun end one after another. */
#define BLOCKS_AN_SM 16
/* Distance of words, as all blocks of a launch read one while the next is written. */
#define WORD_BYTES 128

static bool is_high(const struct fa_device *device, const struct fa_cuda_stream *stream)
{
	return stream < device->streams + device->n_high;
}

int fa_cuda_preempt_open(struct fa_device *device, struct fa_error *error)
{
	const size_t words_bytes = (size_t)device->n_streams * WORD_BYTES;
	const struct fa_cudriver *driver = &device->driver;
	int least, greatest;
	CUresult result;

	result = driver->cuCtxGetStreamPriorityRange(&least, &greatest);
	if (result == CUDA_SUCCESS)
		result = driver->cuStreamCreateWithPriority(&device->preempt.stream,
		                                            CU_STREAM_NON_BLOCKING, greatest);
	if (result != CUDA_SUCCESS) {
		device->preempt.stream = NULL;
		return fa_cudriver_fail(driver, error, result, "a stream cannot be made");
	}
	result = driver->cuMemAlloc(&device->preempt.words, words_bytes);
	if (result != CUDA_SUCCESS) {
		device->preempt.words = 0;
		return fa_cudriver_fail(driver, error, result, "no memory for words");
	}
	for (unsigned int i = 0; i < device->n_streams; ++i)
		device->streams[i].preemption.word_at = device->preempt.words + i * WORD_BYTES;
	result = driver->cuMemsetD8Async(device->preempt.words, 0, words_bytes,
	                                 device->preempt.stream);
	/* Let the driver set up now what it sets up for the first word. */
	if (result == CUDA_SUCCESS)
		result = driver->cuStreamWriteValue64(device->preempt.stream, device->preempt.words,
		                                      0, CU_STREAM_WRITE_VALUE_DEFAULT);
	if (result == CUDA_SUCCESS)
		result = driver->cuStreamSynchronize(device->preempt.stream);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "a word cannot be written");
	return 0;
}

void fa_cuda_preempt_close(struct fa_device *device)
{
	if (device->preempt.stream)
		(void)device->driver.cuStreamDestroy(device->preempt.stream);
	if (device->preempt.words)
		(void)device->driver.cuMemFree(device->preempt.words);
}

/* ---- launching */

bool fa_cuda_preempt_covers(const struct fa_device *device, const struct fa_device_work *work)
{
	const struct fa_cuda_kernel *kernel;
	const struct fa_cuda_paged_part *last;

	if (work->op == FA_DEVICE_PAGED) {
		last = &fa_cuda_paged_work(work)->parts[work->n_paged - 1];
		return last->request.op == FA_PAGED_ATTEND && last->plan->forward_blocks > 0 &&
		       last->plan->forward->state_bytes > 0;
	}
	kernel = fa_cuda_attention_kernel(&device->chip, work->params);
	return kernel && kernel->state_bytes > 0;
}

/* Makes the stream's area, for records and saved states, at least @bytes large. */
static CUresult grow_area(struct fa_device *device, struct fa_cuda_stream *stream, size_t bytes)
{
	CUresult result;

	if (bytes <= stream->preemption.area_bytes)
		return CUDA_SUCCESS;
	result = fa_cuda_scratch_alloc(device, stream->stream, bytes, sizeof(uint64_t),
	                               &stream->preemption.area);
	if (result == CUDA_SUCCESS)
		stream->preemption.area_bytes = bytes;
	return result;
}

bool fa_cuda_preempt_prepare(struct fa_device *device, struct fa_cuda_stream *stream,
                             int32_t state_bytes, uint64_t work_ns)
{
	unsigned int n_queues = 0;

	if (!state_bytes || work_ns < device->tuning.preempt_work_ns || is_high(device, stream))
		return false;
	/* Nothing can preempt it now; but while a very long one runs, a queue of high priority may
	 * come. */
	for (unsigned int i = 0; i < device->n_high; ++i)
		n_queues += device->streams[i].n_queues;
	if (!n_queues && work_ns < FA_CUDA_PREEMPT_ALWAYS_NS)
		return false;
	/* Without the area the launch is not preemptible. */
	return grow_area(device, stream,
	                 sizeof(struct fa_cuda_yield_area) +
	                         2 * (size_t)device->chip.sms * (size_t)state_bytes) ==
	       CUDA_SUCCESS;
}

static struct fa_cuda_attention *attention_of(struct fa_cuda_preemption *preemption)
{
	/* Both kinds of arguments begin with it. */
	return &preemption->args.attention;
}

_Static_assert(offsetof(struct fa_cuda_paged_attention, attention) == 0, "attention comes first");

/* Launches with a new turn; the kernel signals its end, or reports what is left. */
static CUresult launch(struct fa_device *device, struct fa_cuda_stream *stream,
                       const struct fa_device_work *work, uint64_t run_ns)
{
	struct fa_cuda_preemption *preemption = &stream->preemption;
	struct fa_cuda_attention *args = attention_of(preemption);
	void *params[] = { &preemption->args, &preemption->maps };
	/* A launch that resumes has nothing ahead of it. */
	const bool is_behind = !preemption->work && stream->n_works > 0;
	CUresult result;

	args->yield.turn = ++device->preempt.turn;
	args->done = (struct fa_cuda_done){
		.word = (uint64_t *)stream->word_at,
		.value = stream->sequence,
		.counter = (uint64_t *)stream->counter_at,
		.last = stream->n_counted + preemption->grid - 1,
		.early = work->completion_words,
		.early_value = work->completion_value,
	};
	__atomic_store_n(preemption->report, 0, __ATOMIC_RELEASE);
	result = device->driver.cuLaunchKernel(preemption->function, preemption->grid, 1, 1,
	                                       preemption->threads, 1, 1, preemption->shared_bytes,
	                                       stream->stream, params, NULL);
	if (result != CUDA_SUCCESS)
		return result;
	stream->n_counted += preemption->grid;
	stream->self_signalled = stream->sequence;
	stream->self_signal_parts = 0;
	preemption->stopped_ns = 0;
	preemption->asked = false;
	preemption->run_ns = run_ns;
	preemption->not_before_ns = is_behind ? UINT64_MAX : fa_now_ns() + run_ns;
	++device->preempt.n_running;
	return CUDA_SUCCESS;
}

CUresult fa_cuda_preempt_launch(struct fa_device *device, struct fa_cuda_stream *stream,
                                struct fa_device_work *work,
                                const struct fa_cuda_preempt_kernel *kernel, const void *args,
                                size_t args_bytes, const struct fa_cuda_maps *maps)
{
	const uint32_t slots = (uint32_t)device->chip.sms;
	const uint32_t most = BLOCKS_AN_SM * slots < FA_CUDA_YIELD_RECORDS ? BLOCKS_AN_SM * slots
	                                                                   : FA_CUDA_YIELD_RECORDS;
	struct fa_cuda_preemption *preemption = &stream->preemption;
	CUresult result;

	memcpy(&preemption->args, args, args_bytes);
	preemption->maps = *maps;
	preemption->function = kernel->function;
	preemption->grid = kernel->grid < most ? kernel->grid : most;
	preemption->threads = (unsigned int)kernel->threads;
	preemption->shared_bytes = (unsigned int)kernel->shared_bytes;
	attention_of(preemption)->yield = (struct fa_cuda_yield){
		.word = (const uint64_t *)preemption->word_at,
		.area = (void *)preemption->area,
		.report = (uint64_t *)preemption->report_at,
		.slots = slots,
		.blocks = preemption->grid,
	};
	result = launch(device, stream, work, device->tuning.preempt_run_ns);
	if (result == CUDA_SUCCESS)
		preemption->work = work;
	return result;
}

void fa_cuda_preempt_first(struct fa_cuda_stream *stream, const struct fa_device_work *work,
                           uint64_t now_ns)
{
	struct fa_cuda_preemption *preemption = &stream->preemption;

	if (work == preemption->work && preemption->not_before_ns == UINT64_MAX)
		preemption->not_before_ns = now_ns + preemption->run_ns;
}

/* ---- asking */

static void ask_to_stop(struct fa_device *device, struct fa_cuda_preemption *preemption)
{
	if (!preemption->work || preemption->stopped_ns || preemption->asked)
		return;
	/* If it fails, the launch runs on until the next attempt. */
	preemption->asked = device->driver.cuStreamWriteValue64(
				    device->preempt.stream, preemption->word_at,
				    attention_of(preemption)->yield.turn,
				    CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
}

/* Returns whether the stream has works besides those behind closed gates. Waiting works count: they
 * wait for a gate to give up, which has to begin first, and for which a prefill may leave no SM. */
static bool is_busy(const struct fa_cuda_stream *stream)
{
	return stream->n_works > stream->gates.n_works - stream->gates.n_open ||
	       stream->lane.wanted;
}

static bool is_urgent(const struct fa_device *device)
{
	for (unsigned int i = 0; i < device->n_high; ++i)
		if (is_busy(&device->streams[i]))
			return true;
	return false;
}

/* Asks to stop: launches past their guaranteed time, if @urgent or if workers wait for long ones;
 * and cancelled ones. */
static void ask_all(struct fa_device *device, bool urgent)
{
	const bool quiesce = fa_cuda_quiesce_wants_preemption(&device->quiesce);
	const uint64_t now_ns = fa_now_ns();

	for (unsigned int i = device->n_high; i < device->n_streams; ++i) {
		struct fa_cuda_preemption *preemption = &device->streams[i].preemption;

		if (preemption->work &&
		    (((urgent || (quiesce && preemption->is_long)) &&
		      now_ns >= preemption->not_before_ns) ||
		     atomic_load_explicit(&preemption->work->cancelled, memory_order_relaxed)))
			ask_to_stop(device, preemption);
	}
}

void fa_cuda_preempt_ask(struct fa_device *device, const struct fa_cuda_stream *stream)
{
	if (is_high(device, stream) && device->preempt.n_running)
		ask_all(device, true);
}

void fa_cuda_preempt_cancel(struct fa_device *device, struct fa_cuda_stream *stream)
{
	/* No progress is needed: ask at once, even if it has not begun. */
	ask_to_stop(device, &stream->preemption);
}

bool fa_cuda_preempt_stopped(struct fa_device *device, struct fa_cuda_stream *stream)
{
	struct fa_cuda_preemption *preemption = &stream->preemption;
	uint64_t left;

	if (!preemption->work)
		return false;
	if (preemption->stopped_ns)
		return true;
	/* Acquire: orders the GPU's earlier writes before what follows. */
	left = __atomic_load_n(preemption->report, __ATOMIC_ACQUIRE);
	if (!left)
		return false;
	preemption->stopped_ns = device->progress_ns = fa_now_ns();
	preemption->grid = (uint32_t)left;
	--device->preempt.n_running;
	if (preemption->is_long)
		fa_cuda_quiesce_long_end(&device->quiesce);
	return true;
}

void fa_cuda_preempt_end(struct fa_device *device, struct fa_cuda_stream *stream)
{
	if (!stream->preemption.stopped_ns) {
		--device->preempt.n_running;
		if (stream->preemption.is_long)
			fa_cuda_quiesce_long_end(&device->quiesce);
	}
	stream->preemption.work = NULL;
	stream->preemption.is_long = false;
	stream->preemption.stopped_ns = 0;
}

CUresult fa_cuda_preempt_resume(struct fa_device *device, struct fa_cuda_stream *stream)
{
	struct fa_cuda_preemption *preemption = &stream->preemption;
	struct fa_cuda_yield *yield = &attention_of(preemption)->yield;
	const bool urgent = is_urgent(device);
	CUresult result;

	if (urgent && fa_now_ns() - preemption->stopped_ns < device->tuning.preempt_stop_ns)
		return CUDA_SUCCESS;
	if (preemption->is_long && !fa_cuda_quiesce_long_begin(&device->quiesce, 0)) {
		device->held = true;
		return CUDA_SUCCESS;
	}
	/* The states it saved are those it loads now. */
	yield->side ^= 1;
	yield->resumed = 1;
	result = launch(device, stream, preemption->work,
	                urgent ? FORCED_RUN_NS : device->tuning.preempt_run_ns);
	if (result != CUDA_SUCCESS && preemption->is_long)
		fa_cuda_quiesce_long_end(&device->quiesce);
	return result;
}

void fa_cuda_preempt_poll(struct fa_device *device)
{
	if (device->preempt.n_running)
		ask_all(device, is_urgent(device));
}
