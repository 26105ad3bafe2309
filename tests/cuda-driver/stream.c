/* Streams: a queue of ops each, and a thread that runs them in order. */
#include "tests/cuda-driver/driver.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define STACK_BYTES ((size_t)4 << 20)

struct fa_fake_stream {
	struct fa_fake_stream *next; /* the context's next stream */
	struct fa_fake_context *context;
	pthread_cond_t work;             /* signalled when the thread has work */
	struct fa_fake_op *first, *last; /* the queue; the first op is running */
	bool blocking, started, destroyed;
	bool capturing;
	struct fa_fake_op *captured, *last_captured; /* what is captured so far */
};

static uint64_t last_sequence;
/* Streams that are captured in a mode that restricts other calls. */
static unsigned int n_captures;

struct fa_fake_op *fa_fake_op_new(CUresult (*run)(struct fa_fake_op *op,
                                                  struct fa_fake_context *context))
{
	struct fa_fake_op *op = calloc(1, sizeof(*op));

	if (op)
		op->run = run;
	return op;
}

static void op_free(struct fa_fake_op *op)
{
	if (!op)
		return;
	if (op->free)
		op->free(op);
	free(op->staged);
	free(op);
}

struct fa_fake_op *fa_fake_op_copy(const struct fa_fake_op *op)
{
	struct fa_fake_op *copy = fa_fake_op_new(op->run);

	if (!copy)
		return NULL;
	*copy = *op;
	copy->next = NULL;
	copy->staged = NULL;
	if (!op->staged)
		return copy;
	copy->staged = malloc(op->staged_bytes);
	if (!copy->staged) {
		free(copy);
		return NULL;
	}
	memcpy(copy->staged, op->staged, op->staged_bytes);
	return copy;
}

void fa_fake_ops_free(struct fa_fake_op *op)
{
	while (op) {
		struct fa_fake_op *next = op->next;

		op_free(op);
		op = next;
	}
}

/* ---- the thread */

static void stream_free(struct fa_fake_stream *stream)
{
	struct fa_fake_stream **at = &stream->context->streams;

	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	if (stream->context->default_stream == stream)
		stream->context->default_stream = NULL;
	else
		fa_fake_count(FA_TEST_CUDA_STREAMS, -1);
	n_captures -= stream->capturing;
	fa_fake_ops_free(stream->captured);
	pthread_cond_destroy(&stream->work);
	free(stream);
	pthread_cond_broadcast(&fa_fake.changed);
}

static void *stream_main(void *userdata)
{
	struct fa_fake_stream *stream = userdata;
	struct fa_fake_context *context = stream->context;

	pthread_setname_np(pthread_self(), "cuda-stream");
	fa_fake_lock();
	for (;;) {
		struct fa_fake_op *op = stream->first;
		CUresult result = CUDA_SUCCESS;

		if (!op) {
			if (stream->destroyed)
				break;
			pthread_cond_wait(&stream->work, &fa_fake.lock);
			continue;
		}
		/* A lost context runs no work. */
		if (!context->lost && !context->ending) {
			fa_fake_unlock();
			result = op->run(op, context);
			fa_fake_lock();
		}
		if (result != CUDA_SUCCESS)
			fa_fake_lose(context, result);
		stream->first = op->next;
		op_free(op);
		pthread_cond_broadcast(&fa_fake.changed);
	}
	stream_free(stream);
	fa_fake_unlock();
	return NULL;
}

static int stream_start(struct fa_fake_stream *stream)
{
	sigset_t all, old;
	pthread_attr_t attributes;
	pthread_t thread;
	int r;

	sigfillset(&all);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&thread, &attributes, stream_main, stream);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attributes);
	stream->started = r == 0;
	return -r;
}

static struct fa_fake_stream *stream_new(struct fa_fake_context *context, bool blocking)
{
	struct fa_fake_stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->context = context;
	stream->blocking = blocking;
	pthread_cond_init(&stream->work, NULL);
	stream->next = context->streams;
	context->streams = stream;
	return stream;
}

static void stream_destroy(struct fa_fake_stream *stream)
{
	stream->destroyed = true;
	if (stream->started)
		pthread_cond_signal(&stream->work);
	else
		stream_free(stream);
}

void fa_fake_streams_end(struct fa_fake_context *context)
{
	struct fa_fake_stream *stream = context->streams;

	while (stream) {
		struct fa_fake_stream *next = stream->next;

		if (!stream->destroyed) {
			if (stream != context->default_stream)
				atomic_fetch_add(&fa_fake.page->abandoned, 1);
			stream_destroy(stream);
		}
		stream = next;
	}
	while (context->streams)
		pthread_cond_wait(&fa_fake.changed, &fa_fake.lock);
}

/* ---- waiting; the lock is held */

/* Returns whether all of @stream up to @sequence has run. */
static bool has_run(const struct fa_fake_stream *stream, uint64_t sequence)
{
	return !stream->first || stream->first->sequence > sequence;
}

/* Returns a stream of @context. NULL is its default stream, which is made on demand. */
static struct fa_fake_stream *stream_find(struct fa_fake_context *context, CUstream value)
{
	/* NULL and CU_STREAM_LEGACY */
	if ((uintptr_t)value <= 1) {
		if (!context->default_stream)
			context->default_stream = stream_new(context, true);
		return context->default_stream;
	}
	for (struct fa_fake_stream *stream = context->streams; stream; stream = stream->next)
		if (stream == (struct fa_fake_stream *)value && !stream->destroyed)
			return stream;
	return NULL;
}

static CUresult stream_wait(struct fa_fake_context *context, CUstream value, uint64_t sequence)
{
	for (;;) {
		const struct fa_fake_stream *stream = stream_find(context, value);

		if (context->lost)
			return context->lost;
		if (!stream || has_run(stream, sequence))
			return CUDA_SUCCESS;
		pthread_cond_wait(&fa_fake.changed, &fa_fake.lock);
	}
}

/* Makes the default stream and blocking streams wait for one another. */
static CUresult serialise_with_default(struct fa_fake_context *context,
                                       const struct fa_fake_stream *stream)
{
	const uint64_t sequence = last_sequence;
	const bool is_default = stream == context->default_stream;

	if (!stream->blocking)
		return CUDA_SUCCESS;
	for (;;) {
		const struct fa_fake_stream *other = context->streams;

		while (other &&
		       (!other->blocking || (other == context->default_stream) == is_default ||
		        has_run(other, sequence)))
			other = other->next;
		if (context->lost)
			return context->lost;
		if (!other)
			return CUDA_SUCCESS;
		pthread_cond_wait(&fa_fake.changed, &fa_fake.lock);
	}
}

CUresult fa_fake_drain(struct fa_fake_context *context)
{
	CUresult result;
	uint64_t sequence;

	fa_fake_lock();
	++context->n_draining;
	sequence = last_sequence;
	for (;;) {
		const struct fa_fake_stream *stream = context->streams;

		while (stream && has_run(stream, sequence))
			stream = stream->next;
		result = context->lost;
		if (result != CUDA_SUCCESS || !stream)
			break;
		pthread_cond_wait(&fa_fake.changed, &fa_fake.lock);
	}
	--context->n_draining;
	pthread_cond_broadcast(&fa_fake.changed);
	fa_fake_unlock();
	return result;
}

/* ---- submission */

/* Appends @op to a stream. Called with the lock held. */
static CUresult submit(CUstream value, struct fa_fake_op *op)
{
	struct fa_fake_context *context = fa_fake_current();
	struct fa_fake_stream *stream;
	CUresult result;

	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	while (context->n_draining && !context->lost)
		pthread_cond_wait(&fa_fake.changed, &fa_fake.lock);
	stream = stream_find(context, value);
	if (!stream)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->capturing) {
		if (!op->again)
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		if (stream->captured)
			stream->last_captured->next = op;
		else
			stream->captured = op;
		stream->last_captured = op;
		return CUDA_SUCCESS;
	}
	result = serialise_with_default(context, stream);
	if (result != CUDA_SUCCESS)
		return result;
	if (!stream->started && stream_start(stream) < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	op->sequence = ++last_sequence;
	if (stream->first)
		stream->last->next = op;
	else
		stream->first = op;
	stream->last = op;
	pthread_cond_signal(&stream->work);
	return CUDA_SUCCESS;
}

CUresult fa_fake_submit(CUstream stream, struct fa_fake_op *op)
{
	CUresult result;

	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fa_fake_lock();
	result = submit(stream, op);
	if (result != CUDA_SUCCESS)
		op_free(op);
	fa_fake_unlock();
	return result;
}

CUresult fa_fake_submit_and_wait(CUstream stream, struct fa_fake_op *op)
{
	CUresult result;

	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fa_fake_lock();
	result = submit(stream, op);
	if (result == CUDA_SUCCESS)
		result = stream_wait(fa_fake_current(), stream, op->sequence);
	else
		op_free(op);
	fa_fake_unlock();
	return result;
}

/* ---- the driver's functions */

CUresult cuStreamCreateWithPriority(CUstream *ret_stream, unsigned int flags, int priority)
{
	struct fa_fake_stream *stream;

	FA_FAKE_ENTER(cuStreamCreateWithPriority, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	if (flags & ~(unsigned int)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	fa_fake_lock();
	stream = stream_new(fa_fake_current(), !(flags & CU_STREAM_NON_BLOCKING));
	if (stream)
		fa_fake_count(FA_TEST_CUDA_STREAMS, 1);
	fa_fake_unlock();
	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ret_stream = (CUstream)stream;
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream value)
{
	struct fa_fake_stream *stream = NULL;

	FA_FAKE_ENTER(cuStreamDestroy, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	if ((uintptr_t)value > 1)
		stream = stream_find(fa_fake_current(), value);
	if (stream)
		stream_destroy(stream);
	fa_fake_unlock();
	return stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamQuery(CUstream value)
{
	const struct fa_fake_stream *stream;
	CUresult result = CUDA_SUCCESS;

	FA_FAKE_ENTER(cuStreamQuery, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	stream = stream_find(fa_fake_current(), value);
	if (!stream)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (stream->context->lost)
		result = stream->context->lost;
	else if (stream->first)
		result = CUDA_ERROR_NOT_READY;
	fa_fake_unlock();
	return result;
}

CUresult cuStreamSynchronize(CUstream value)
{
	CUresult result = CUDA_ERROR_INVALID_HANDLE;
	struct fa_fake_context *context;

	FA_FAKE_ENTER(cuStreamSynchronize, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	context = fa_fake_current();
	if (stream_find(context, value))
		result = stream_wait(context, value, last_sequence);
	fa_fake_unlock();
	return result;
}

/* ---- capture */

CUresult fa_fake_refuse_capture(void)
{
	CUresult result;

	fa_fake_lock();
	result = n_captures && fa_fake_thread()->capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED
	                 ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	                 : CUDA_SUCCESS;
	fa_fake_unlock();
	return result;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	struct fa_fake_thread *thread = fa_fake_thread();
	const CUstreamCaptureMode before = thread->capture_mode;

	FA_FAKE_ENTER(cuThreadExchangeStreamCaptureMode, FA_FAKE_INIT);
	if (*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread->capture_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

/* The mode is the global one, which restricts all threads. */
CUresult cuStreamBeginCapture(CUstream value, CUstreamCaptureMode mode)
{
	CUresult result = CUDA_ERROR_INVALID_HANDLE;
	struct fa_fake_stream *stream = NULL;

	FA_FAKE_ENTER(cuStreamBeginCapture, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL)
		return CUDA_ERROR_NOT_SUPPORTED;
	fa_fake_lock();
	if ((uintptr_t)value > 1)
		stream = stream_find(fa_fake_current(), value);
	if (stream && !stream->capturing) {
		stream->capturing = true;
		++n_captures;
		result = CUDA_SUCCESS;
	}
	fa_fake_unlock();
	return result;
}

CUresult cuStreamEndCapture(CUstream value, CUgraph *ret_graph)
{
	struct fa_fake_op *captured = NULL;
	struct fa_fake_stream *stream;
	bool good;

	FA_FAKE_ENTER(cuStreamEndCapture, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	stream = stream_find(fa_fake_current(), value);
	good = stream && stream->capturing;
	if (good) {
		captured = stream->captured;
		stream->captured = NULL;
		stream->capturing = false;
		--n_captures;
	}
	fa_fake_unlock();
	return good ? fa_fake_graph_of(captured, ret_graph) : CUDA_ERROR_INVALID_HANDLE;
}
