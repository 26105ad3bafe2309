/*
 * How long prefill gives way to works of streams with high priority, on the engine thread.
 * kernels/cuda/common/yield.h says what a kernel does about it; here is who asks, and when a
 * launch goes on. Workers that wait for a lull are given way to as well (backend/cuda/quiesce.c).
 *
 * A launch that is expected to take long may yield: then nothing stands behind it in its CUDA
 * stream, as that would go before the rest of it. When a work of high priority is launched, the
 * launches that may yield are asked, each by a word of its stream's in the device's memory,
 * which is written on a stream of its own: what the GPU's front end does at once, however many
 * blocks wait for an SM. A launch that has ended early says how many blocks are left; it goes on
 * when no work of high priority is in flight. A launch whose work was cancelled is asked, too,
 * it alone, and does not go on.
 *
 * Nobody starves: a launch has least_run_ns before it is asked, so that it gets further each
 * time; and where high priority is always in flight it goes on after longest_stop_ns all the
 * same, for FORCED_RUN_NS. Both count from when the works ahead of it in its stream were seen to
 * have ended. What the work itself has ahead of its last launch is not seen to end: one that is
 * asked meanwhile ends as it begins, and has its time when it goes on. Nor is it seen when a
 * launch gets an SM: those that high priority has are soon free, but a launch of another stream
 * that came before it may have all of them for as long as it runs. So of several the first gets
 * further, and the next when it has ended. To know when a block has begun the kernel would have
 * to tell the host.
 */
#include "daemon/backend/cuda/backend.h"

#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

#define FORCED_RUN_NS (500 * FA_NS_PER_US)
/* Blocks for each SM, at most: those that have not begun end one after another when asked. */
#define BLOCKS_AN_SM 16
/* Words apart, as each is read by all blocks of a launch while the next one is written. */
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
		result = driver->cuStreamCreateWithPriority(&device->yield.stream,
		                                            CU_STREAM_NON_BLOCKING, greatest);
	if (result != CUDA_SUCCESS) {
		device->yield.stream = NULL;
		return fa_cudriver_fail(driver, error, result, "a stream cannot be made");
	}
	result = driver->cuMemAlloc(&device->yield.words, words_bytes);
	if (result != CUDA_SUCCESS) {
		device->yield.words = 0;
		return fa_cudriver_fail(driver, error, result, "no memory for words");
	}
	for (unsigned int i = 0; i < device->n_streams; ++i)
		device->streams[i].yielding.word_at = device->yield.words + i * WORD_BYTES;
	result = driver->cuMemsetD8Async(device->yield.words, 0, words_bytes, device->yield.stream);
	/* Set up now what the driver sets up with the first. */
	if (result == CUDA_SUCCESS)
		result = driver->cuStreamWriteValue64(device->yield.stream, device->yield.words, 0,
		                                      CU_STREAM_WRITE_VALUE_DEFAULT);
	if (result == CUDA_SUCCESS)
		result = driver->cuStreamSynchronize(device->yield.stream);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "a word cannot be written");
	return 0;
}

void fa_cuda_preempt_close(struct fa_device *device)
{
	if (device->yield.stream)
		(void)device->driver.cuStreamDestroy(device->yield.stream);
	if (device->yield.words)
		(void)device->driver.cuMemFree(device->yield.words);
}

/* ---- launching */

/* Room for records and states of @stream's launches. */
static CUresult grow_area(struct fa_device *device, struct fa_cuda_stream *stream, size_t bytes)
{
	struct fa_cuda_scratch *scratch;
	CUresult result;

	if (bytes <= stream->yielding.area_bytes)
		return CUDA_SUCCESS;
	scratch = fa_new(struct fa_cuda_scratch);
	if (!scratch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = device->driver.cuMemAlloc(&scratch->at, bytes);
	if (result != CUDA_SUCCESS) {
		free(scratch);
		return result;
	}
	scratch->next = device->scratches;
	device->scratches = scratch;
	result = device->driver.cuMemsetD8Async(scratch->at, 0, sizeof(uint64_t), stream->stream);
	if (result != CUDA_SUCCESS)
		return result;
	stream->yielding.area = scratch->at;
	stream->yielding.area_bytes = bytes;
	return CUDA_SUCCESS;
}

bool fa_cuda_preempt_prepare(struct fa_device *device, struct fa_cuda_stream *stream,
                             int32_t state_bytes, uint64_t work_ns)
{
	unsigned int n_queues = 0;

	if (!state_bytes || work_ns < device->yield.least_work_ns || is_high(device, stream))
		return false;
	/* Nobody could ask now; but of what takes very long somebody new may want the place. */
	for (unsigned int i = 0; i < device->n_high; ++i)
		n_queues += device->streams[i].n_queues;
	if (!n_queues && work_ns < FA_CUDA_YIELD_ALWAYS_NS)
		return false;
	/* Without room it does not yield. */
	return grow_area(device, stream,
	                 sizeof(struct fa_cuda_yield_area) +
	                         2 * (size_t)device->chip.sms * (size_t)state_bytes) ==
	       CUDA_SUCCESS;
}

static struct fa_cuda_attention *attention_of(struct fa_cuda_preemption *yielding)
{
	/* Both kinds of args begin with it. */
	return &yielding->args.attention;
}

_Static_assert(offsetof(struct fa_cuda_paged_attention, attention) == 0, "it begins with it");

/* Launches blocks that have the latest turn, and tell the end or what is left. */
static CUresult launch(struct fa_device *device, struct fa_cuda_stream *stream,
                       const struct fa_device_work *work, uint64_t run_ns)
{
	struct fa_cuda_preemption *yielding = &stream->yielding;
	struct fa_cuda_attention *args = attention_of(yielding);
	void *params[] = { &yielding->args, &yielding->maps };
	/* The rest of one that was stopped has nothing ahead of it. */
	const bool waits = !yielding->work && stream->n_works > 0;
	CUresult result;

	args->yield.turn = ++device->yield.turn;
	args->done = (struct fa_cuda_done){
		.word = (uint64_t *)stream->word_at,
		.value = stream->sequence,
		.counter = (uint64_t *)stream->counter_at,
		.last = stream->n_counted + yielding->grid - 1,
		.early = work->early,
		.early_value = work->early_value,
	};
	__atomic_store_n(yielding->report, 0, __ATOMIC_RELEASE);
	result = device->driver.cuLaunchKernel(yielding->function, yielding->grid, 1, 1,
	                                       yielding->threads, 1, 1, yielding->shared_bytes,
	                                       stream->stream, params, NULL);
	if (result != CUDA_SUCCESS)
		return result;
	stream->n_counted += yielding->grid;
	stream->told = stream->sequence;
	stream->told_parts = 0;
	yielding->stopped_ns = 0;
	yielding->asked = false;
	yielding->run_ns = run_ns;
	yielding->not_before_ns = waits ? UINT64_MAX : fa_now_ns() + run_ns;
	++device->yield.n_running;
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
	struct fa_cuda_preemption *yielding = &stream->yielding;
	CUresult result;

	memcpy(&yielding->args, args, args_bytes);
	yielding->maps = *maps;
	yielding->function = kernel->function;
	yielding->grid = kernel->grid < most ? kernel->grid : most;
	yielding->threads = (unsigned int)kernel->threads;
	yielding->shared_bytes = (unsigned int)kernel->shared_bytes;
	attention_of(yielding)->yield = (struct fa_cuda_yield){
		.word = (const uint64_t *)yielding->word_at,
		.area = (void *)yielding->area,
		.report = (uint64_t *)yielding->report_at,
		.slots = slots,
		.blocks = yielding->grid,
	};
	result = launch(device, stream, work, device->yield.least_run_ns);
	if (result == CUDA_SUCCESS)
		yielding->work = work;
	return result;
}

void fa_cuda_preempt_first(struct fa_cuda_stream *stream, const struct fa_device_work *work,
                           uint64_t now_ns)
{
	struct fa_cuda_preemption *yielding = &stream->yielding;

	if (work == yielding->work && yielding->not_before_ns == UINT64_MAX)
		yielding->not_before_ns = now_ns + yielding->run_ns;
}

/* ---- asking */

static void ask(struct fa_device *device, struct fa_cuda_preemption *yielding)
{
	if (!yielding->work || yielding->stopped_ns || yielding->asked)
		return;
	/* If it fails, whoever waits waits until blocks end, or until it is tried again. */
	yielding->asked = device->driver.cuStreamWriteValue64(
				  device->yield.stream, yielding->word_at,
				  attention_of(yielding)->yield.turn,
				  CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
}

/* With more than what waits for its gates to open. Who waits for the stream counts, too: a gate
 * has to begin, for which a prefill may have left no room, before it gives up. */
static bool is_busy(const struct fa_cuda_stream *stream)
{
	return stream->n_works > stream->gates.n_works - stream->gates.n_open ||
	       (!fa_list_empty(&stream->shares) && !stream->held);
}

static bool is_urgent(const struct fa_device *device)
{
	for (unsigned int i = 0; i < device->n_high; ++i)
		if (is_busy(&device->streams[i]))
			return true;
	return false;
}

/* Those that have had their time if something is @urgent, or if they take long and are waited for;
 * and those that were cancelled. */
static void ask_all(struct fa_device *device, bool urgent)
{
	const bool lull = fa_cuda_quiesce_is_near(device);
	const uint64_t now_ns = fa_now_ns();

	for (unsigned int i = device->n_high; i < device->n_streams; ++i) {
		struct fa_cuda_preemption *yielding = &device->streams[i].yielding;

		if (yielding->work &&
		    (((urgent || (lull && yielding->is_long)) &&
		      now_ns >= yielding->not_before_ns) ||
		     atomic_load_explicit(&yielding->work->cancelled, memory_order_relaxed)))
			ask(device, yielding);
	}
}

void fa_cuda_preempt_ask(struct fa_device *device, const struct fa_cuda_stream *stream)
{
	if (is_high(device, stream) && device->yield.n_running)
		ask_all(device, true);
}

void fa_cuda_preempt_cancel(struct fa_device *device, struct fa_cuda_stream *stream)
{
	/* It needs to get no further: it is asked at once, even if it has not begun. */
	ask(device, &stream->yielding);
}

bool fa_cuda_preempt_stopped(struct fa_device *device, struct fa_cuda_stream *stream)
{
	struct fa_cuda_preemption *yielding = &stream->yielding;
	uint64_t left;

	if (!yielding->work)
		return false;
	if (yielding->stopped_ns)
		return true;
	/* Acquire: what the GPU wrote before it is seen after it. */
	left = __atomic_load_n(yielding->report, __ATOMIC_ACQUIRE);
	if (!left)
		return false;
	yielding->stopped_ns = device->progress_ns = fa_now_ns();
	yielding->grid = (uint32_t)left;
	--device->yield.n_running;
	if (yielding->is_long)
		fa_cuda_long_end(device);
	return true;
}

void fa_cuda_preempt_end(struct fa_device *device, struct fa_cuda_stream *stream)
{
	if (!stream->yielding.stopped_ns) {
		--device->yield.n_running;
		if (stream->yielding.is_long)
			fa_cuda_long_end(device);
	}
	stream->yielding.work = NULL;
	stream->yielding.is_long = false;
	stream->yielding.stopped_ns = 0;
}

CUresult fa_cuda_preempt_resume(struct fa_device *device, struct fa_cuda_stream *stream)
{
	struct fa_cuda_preemption *yielding = &stream->yielding;
	struct fa_cuda_yield *yield = &attention_of(yielding)->yield;
	const bool urgent = is_urgent(device);
	CUresult result;

	if (urgent && fa_now_ns() - yielding->stopped_ns < device->yield.longest_stop_ns)
		return CUDA_SUCCESS;
	if (yielding->is_long && !fa_cuda_long_begin(device, 0)) {
		device->held = true;
		return CUDA_SUCCESS;
	}
	/* What it wrote is what it reads now. */
	yield->side ^= 1;
	yield->resumed = 1;
	result = launch(device, stream, yielding->work,
	                urgent ? FORCED_RUN_NS : device->yield.least_run_ns);
	if (result != CUDA_SUCCESS && yielding->is_long)
		fa_cuda_long_end(device);
	return result;
}

void fa_cuda_preempt_look(struct fa_device *device)
{
	if (device->yield.n_running)
		ask_all(device, is_urgent(device));
}
