/*
 * CUDA streams, the words that the GPU writes at works' ends, and memory for works' vectors, made
 * at open.
 */
#include "daemon/backend/cuda/stream.h"

#include "common/clock.h"
#include "daemon/backend/cuda/graph_cache.h"
#include "daemon/backend/cuda/preempt.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A GPU's write must not take the cache line of another thread's word. */
#define WORD_BYTES 128
/* Time limit for the first words, when the device is opened. */
#define FIRST_WORD_NS (10 * FA_NS_PER_SEC)

/* Sets the numbers of streams: as many as the driver serves independently, together with the streams
 * for memory and preemption. */
static void count_streams(struct fa_device *device)
{
	const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
	unsigned long n = text ? strtoul(text, NULL, 10) : FA_CUDA_CONNECTIONS;

	if (n > FA_CUDA_CONNECTIONS)
		n = FA_CUDA_CONNECTIONS;
	if (n < 4)
		n = 4;
	device->n_high = (unsigned int)n / 4;
	device->n_streams = device->n_high + (unsigned int)(n - 2) / 2;
}

static CUresult open_pinned(struct fa_device *device)
{
	const size_t vectors_bytes = (size_t)FA_CUDA_STREAM_DEPTH * FA_CUDA_VECTORS_BYTES;
	/* Words: ends of works, reports of preempted launches, reports of gates, requests to
	 * gates. */
	const size_t words_bytes = 4 * device->n_streams * WORD_BYTES;
	const struct fa_cudriver *driver = &device->driver;
	CUdeviceptr words_at;
	CUresult result;

	result = driver->cuMemHostAlloc(&device->pinned,
	                                words_bytes + device->n_streams * vectors_bytes,
	                                CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
	if (result != CUDA_SUCCESS) {
		device->pinned = NULL;
		return result;
	}
	result = driver->cuMemAlloc(&device->vectors,
	                            device->n_streams * (vectors_bytes + 2 * WORD_BYTES));
	if (result != CUDA_SUCCESS) {
		device->vectors = 0;
		return result;
	}
	result = driver->cuMemHostGetDevicePointer(&words_at, device->pinned, 0);
	if (result != CUDA_SUCCESS)
		return result;
	memset(device->pinned, 0, words_bytes);
	for (unsigned int i = 0; i < device->n_streams; ++i) {
		struct fa_cuda_stream *stream = &device->streams[i];

		stream->word = (const uint64_t *)((char *)device->pinned + i * WORD_BYTES);
		stream->word_at = words_at + i * WORD_BYTES;
		stream->preemption.report = (uint64_t *)((char *)device->pinned +
		                                         (device->n_streams + i) * WORD_BYTES);
		stream->preemption.report_at = words_at + (device->n_streams + i) * WORD_BYTES;
		stream->gates.report = (const uint64_t *)((char *)device->pinned +
		                                          (2 * device->n_streams + i) * WORD_BYTES);
		stream->gates.report_at = words_at + (2 * device->n_streams + i) * WORD_BYTES;
		stream->gates.stop = (uint64_t *)((char *)device->pinned +
		                                  (3 * device->n_streams + i) * WORD_BYTES);
		stream->gates.stop_at = words_at + (3 * device->n_streams + i) * WORD_BYTES;
		stream->gates.run = 1;
		stream->vectors = (char *)device->pinned + words_bytes + i * vectors_bytes;
		stream->vectors_at = device->vectors + i * vectors_bytes;
		stream->vectors_in_place = words_at + words_bytes + i * vectors_bytes;
		stream->counter_at = device->vectors + device->n_streams * vectors_bytes +
		                     i * 2 * WORD_BYTES;
		stream->gates.shut_at = stream->counter_at + WORD_BYTES;
	}
	return CUDA_SUCCESS;
}

static CUresult open_streams(struct fa_device *device)
{
	const struct fa_cudriver *driver = &device->driver;
	int least, greatest;
	CUresult result;

	result = driver->cuCtxGetStreamPriorityRange(&least, &greatest);
	if (result == CUDA_SUCCESS)
		/* What clients wait for must not wait for clients' kernels. */
		result = driver->cuStreamCreateWithPriority(&device->memory_stream,
		                                            CU_STREAM_NON_BLOCKING, greatest);
	for (unsigned int i = 0; i < device->n_streams && result == CUDA_SUCCESS; ++i) {
		struct fa_cuda_stream *stream = &device->streams[i];

		stream->priority = i < device->n_high ? greatest : least;
		result = driver->cuStreamCreateWithPriority(&stream->stream, CU_STREAM_NON_BLOCKING,
		                                            stream->priority);
	}
	return result;
}

/*
 * A copy and a word on every stream: the driver does its set-up, and a GPU whose words never arrive
 * shows.
 */
static int try_streams(struct fa_device *device, struct fa_error *error)
{
	const struct fa_cudriver *driver = &device->driver;
	const uint64_t until_ns = fa_now_ns() + FIRST_WORD_NS;
	CUresult result = CUDA_SUCCESS;

	for (unsigned int i = 0; i < device->n_streams && result == CUDA_SUCCESS; ++i) {
		struct fa_cuda_stream *stream = &device->streams[i];

		result = driver->cuMemcpyHtoDAsync(stream->vectors_at, stream->vectors, 16,
		                                   stream->stream);
		if (result == CUDA_SUCCESS)
			result = driver->cuMemsetD8Async(stream->counter_at, 0, 2 * WORD_BYTES,
			                                 stream->stream);
		if (result == CUDA_SUCCESS)
			result = driver->cuStreamWriteValue64(stream->stream, stream->word_at,
			                                      ++stream->sequence,
			                                      CU_STREAM_WRITE_VALUE_DEFAULT);
	}
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "a stream of the GPU does not work");
	for (unsigned int i = 0; i < device->n_streams; ++i) {
		struct fa_cuda_stream *stream = &device->streams[i];

		while (__atomic_load_n(stream->word, __ATOMIC_ACQUIRE) != stream->sequence) {
			if (fa_now_ns() > until_ns)
				return fa_fail(error, -ENODEV, "the GPU does not answer");
			usleep(20);
		}
	}
	return 0;
}

_Static_assert(FA_CUDA_DONE_PARTS * sizeof(uint64_t) <= WORD_BYTES, "parts have words");

void fa_cuda_self_signal_args(const struct fa_cuda_stream *stream,
                              const struct fa_device_work *work, uint64_t blocks, uint32_t parts,
                              struct fa_cuda_done *done)
{
	if (blocks > FA_CUDA_SELF_SIGNAL_BLOCKS)
		return;
	*done = (struct fa_cuda_done){
		.word = (uint64_t *)stream->word_at,
		.value = stream->sequence,
		.counter = (uint64_t *)stream->counter_at,
		.last = stream->n_counted + blocks - 1,
		.client_words = work->completion_words,
		.client_value = work->completion_value,
		.parts = parts,
	};
}

void fa_cuda_self_signal_launched(struct fa_cuda_stream *stream, uint64_t blocks, uint32_t parts)
{
	if (blocks > FA_CUDA_SELF_SIGNAL_BLOCKS)
		return;
	if (!parts)
		stream->n_counted += blocks;
	stream->self_signalled = stream->sequence;
	stream->self_signal_parts = parts;
}

int fa_cuda_streams_open(struct fa_device *device, struct fa_error *error)
{
	CUresult result;
	int r;

	fa_list_init(&device->done);
	count_streams(device);
	for (unsigned int i = 0; i < device->n_streams; ++i) {
		fa_list_init(&device->streams[i].works);
		fa_device_lane_init(&device->streams[i].lane);
	}
	result = open_pinned(device);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(&device->driver, error, result,
		                        "no memory for the GPU's streams");
	result = open_streams(device);
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(&device->driver, error, result,
		                        "streams of the GPU cannot be made");
	r = fa_cuda_preempt_open(device, error);
	return r < 0 ? r : try_streams(device, error);
}

void fa_cuda_streams_close(struct fa_device *device)
{
	const struct fa_cudriver *driver = &device->driver;

	fa_cuda_preempt_close(device);
	for (unsigned int i = 0; i < device->n_streams; ++i) {
		fa_cuda_graphs_close(device, &device->streams[i]);
		if (device->streams[i].stream)
			(void)driver->cuStreamDestroy(device->streams[i].stream);
	}
	if (device->memory_stream)
		(void)driver->cuStreamDestroy(device->memory_stream);
	if (device->vectors)
		(void)driver->cuMemFree(device->vectors);
	if (device->pinned)
		(void)driver->cuMemFreeHost(device->pinned);
}
