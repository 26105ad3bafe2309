/*
 * Preemption; the kernel's side is kernels/cuda/common/preempt.h. The engine writes the launch's
 * turn to a GPU word on a separate stream. The launch stops and reports the blocks left, which are
 * launched when no work of high priority is in flight; meanwhile nothing is launched behind them.
 *
 * No launch starves: it runs for preempt_run_ns before a stop, and after preempt_stop_ns it is always
 * resumed for FORCED_RUN_NS. Both times begin when the works ahead in its stream have ended.
 */
#include "daemon/backend/cuda/preempt.h"

#include "common/clock.h"
#include "daemon/backend/cuda/paged_work.h"
#include "daemon/backend/cuda/scratch.h"

#include <string.h>

#define FORCED_RUN_NS (500 * FA_NS_PER_US)
/* A cache line: blocks poll one word while another is written. */
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
	/* The driver's lazy set-up happens now. */
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
		return (last->request.op == FA_PAGED_ATTEND ||
		        last->request.op == FA_PAGED_ATTEND_OWN) &&
		       last->plan->forward_blocks > 0 && last->plan->forward->state_bytes > 0;
	}
	if (work->op == FA_DEVICE_COPY)
		return false;
	kernel = fa_cuda_attention_kernel(&device->chip, work->params);
	return kernel && kernel->state_bytes > 0;
}

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
	/* A shorter launch is preemptible only if there is a queue of high priority. */
	for (unsigned int i = 0; i < device->n_high; ++i)
		n_queues += device->streams[i].n_queues;
	if (!n_queues && work_ns < FA_CUDA_PREEMPT_ALWAYS_NS)
		return false;
	return grow_area(device, stream,
	                 sizeof(struct fa_cuda_preempt_area) +
	                         2 * (size_t)device->chip.sms * (size_t)state_bytes) ==
	       CUDA_SUCCESS;
}

static struct fa_cuda_attention *attention_of(struct fa_cuda_preemption *preemption)
{
	return &preemption->args.attention;
}

_Static_assert(offsetof(struct fa_cuda_paged_attention, attention) == 0, "attention comes first");

static CUresult launch(struct fa_device *device, struct fa_cuda_stream *stream,
                       const struct fa_device_work *work, uint64_t run_ns)
{
	struct fa_cuda_preemption *preemption = &stream->preemption;
	struct fa_cuda_attention *args = attention_of(preemption);
	void *params[] = { &preemption->args, &preemption->maps };
	/* A resumed launch has no work ahead of it. */
	const bool is_behind = !preemption->work && stream->n_works > 0;
	CUresult result;

	args->preempt.turn = ++device->preempt.turn;
	args->done = (struct fa_cuda_done){
		.word = (uint64_t *)stream->word_at,
		.value = stream->sequence,
		.counter = (uint64_t *)stream->counter_at,
		.last = stream->n_counted + preemption->grid - 1,
		.client_words = work->completion_words,
		.client_value = work->completion_value,
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
	preemption->stop_requested = false;
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
	const uint32_t most = FA_CUDA_PREEMPT_BLOCKS_AN_SM * slots < FA_CUDA_PREEMPT_RECORDS
	                              ? FA_CUDA_PREEMPT_BLOCKS_AN_SM * slots
	                              : FA_CUDA_PREEMPT_RECORDS;
	struct fa_cuda_preemption *preemption = &stream->preemption;
	CUresult result;

	memcpy(&preemption->args, args, args_bytes);
	preemption->maps = *maps;
	preemption->function = kernel->function;
	preemption->grid = kernel->grid < most ? kernel->grid : most;
	preemption->threads = (unsigned int)kernel->threads;
	preemption->shared_bytes = (unsigned int)kernel->shared_bytes;
	attention_of(preemption)->preempt = (struct fa_cuda_preempt){
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

void fa_cuda_preempt_reached_head(struct fa_cuda_stream *stream, const struct fa_device_work *work,
                                  uint64_t now_ns)
{
	struct fa_cuda_preemption *preemption = &stream->preemption;

	if (work == preemption->work && preemption->not_before_ns == UINT64_MAX)
		preemption->not_before_ns = now_ns + preemption->run_ns;
}

/* ---- stopping and resuming */

static void request_stop(struct fa_device *device, struct fa_cuda_preemption *preemption)
{
	if (!preemption->work || preemption->stopped_ns || preemption->stop_requested)
		return;
	/* If the write fails, the next poll tries again. */
	preemption->stop_requested = device->driver.cuStreamWriteValue64(
					     device->preempt.stream, preemption->word_at,
					     attention_of(preemption)->preempt.turn,
					     CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
}

/* True if it has works besides those behind closed gates. Works that wait for a slot count, as a
 * gate may need an SM to give up. */
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

/* Stops cancelled launches and, if @urgent or workers wait, those past their guaranteed time. */
static void request_stops(struct fa_device *device, bool urgent)
{
	const bool quiesce = fa_cuda_quiesce_wants_preemption(&device->quiesce);
	const uint64_t now_ns = fa_now_ns();

	for (unsigned int i = device->n_high; i < device->n_streams; ++i) {
		struct fa_cuda_preemption *preemption = &device->streams[i].preemption;

		if (preemption->work &&
		    (((urgent || (quiesce && preemption->is_long)) &&
		      now_ns >= preemption->not_before_ns) ||
		     atomic_load_explicit(&preemption->work->cancelled, memory_order_relaxed)))
			request_stop(device, preemption);
	}
}

void fa_cuda_preempt_request(struct fa_device *device, const struct fa_cuda_stream *stream)
{
	if (is_high(device, stream) && device->preempt.n_running)
		request_stops(device, true);
}

void fa_cuda_preempt_cancel(struct fa_device *device, struct fa_cuda_stream *stream)
{
	/* A cancelled launch need make no progress. */
	request_stop(device, &stream->preemption);
}

bool fa_cuda_preempt_stopped(struct fa_device *device, struct fa_cuda_stream *stream)
{
	struct fa_cuda_preemption *preemption = &stream->preemption;
	uint64_t left;

	if (!preemption->work)
		return false;
	if (preemption->stopped_ns)
		return true;
	/* Acquires the GPU's earlier writes. */
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
	struct fa_cuda_preempt *yield = &attention_of(preemption)->preempt;
	const bool urgent = is_urgent(device);
	CUresult result;

	if (urgent && fa_now_ns() - preemption->stopped_ns < device->tuning.preempt_stop_ns)
		return CUDA_SUCCESS;
	if (preemption->is_long && !fa_cuda_quiesce_long_begin(&device->quiesce, 0)) {
		device->held = true;
		return CUDA_SUCCESS;
	}
	/* Reads the half that the last launch saved. */
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
		request_stops(device, is_urgent(device));
}
