/* Events, and the values that streams write and wait for. */
#include "tests/cuda-driver/driver.h"

#include "common/clock.h"

#include <stdlib.h>
#include <unistd.h>

#define POLL_US 50

struct event {
	struct event *next; /* in the list of all events */
	struct fa_fake_context *context;
	unsigned int refs; /* one of the owner, and one for each pending record */
	unsigned int flags;
	uint64_t recorded, happened;
	uint64_t at_ns;
	bool destroyed;
};

static struct event *events;

/* The static functions below run under the lock. */

static struct event *event_find(CUevent value)
{
	for (struct event *event = events; event; event = event->next)
		if (event == (struct event *)value && !event->destroyed)
			return event;
	return NULL;
}

static void event_unref(struct event *event)
{
	struct event **at = &events;

	if (--event->refs)
		return;
	while (*at != event)
		at = &(*at)->next;
	*at = event->next;
	free(event);
}

static void event_destroy(struct event *event)
{
	event->destroyed = true;
	fa_fake_count(FA_TEST_CUDA_EVENTS, -1);
	event_unref(event);
}

void fa_fake_events_end(struct fa_fake_context *context)
{
	struct event *event = events;

	while (event) {
		struct event *next = event->next;

		if (event->context == context && !event->destroyed) {
			atomic_fetch_add(&fa_fake.page->abandoned, 1);
			event_destroy(event);
		}
		event = next;
	}
}

CUresult cuEventCreate(CUevent *ret_event, unsigned int flags)
{
	struct event *event;

	FA_FAKE_ENTER(cuEventCreate, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	if (flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	event = calloc(1, sizeof(*event));
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->refs = 1;
	event->flags = flags;
	fa_fake_lock();
	event->context = fa_fake_current();
	event->next = events;
	events = event;
	fa_fake_count(FA_TEST_CUDA_EVENTS, 1);
	fa_fake_unlock();
	*ret_event = (CUevent)event;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent value)
{
	struct event *event;

	FA_FAKE_ENTER(cuEventDestroy, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	event = event_find(value);
	if (event)
		event_destroy(event);
	fa_fake_unlock();
	return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult record_run(struct fa_fake_op *op, struct fa_fake_context *context)
{
	struct event *event = op->object;

	fa_fake_lock();
	event->at_ns = fa_now_ns();
	event->happened = op->value;
	pthread_cond_broadcast(&fa_fake.changed);
	fa_fake_unlock();
	return CUDA_SUCCESS;
}

static void record_free(struct fa_fake_op *op)
{
	event_unref(op->object);
}

CUresult cuEventRecord(CUevent value, CUstream stream)
{
	struct fa_fake_op *op = NULL;
	struct event *event;

	FA_FAKE_ENTER(cuEventRecord, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	event = event_find(value);
	if (event) {
		op = fa_fake_op_new(record_run);
		if (op) {
			op->object = event;
			op->free = record_free;
			++event->refs;
			op->value = ++event->recorded;
		}
	}
	fa_fake_unlock();
	return event ? fa_fake_submit(stream, op) : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult event_state(const struct event *event)
{
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->context->lost)
		return event->context->lost;
	return event->happened == event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventQuery(CUevent value)
{
	CUresult result;

	FA_FAKE_ENTER(cuEventQuery, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	result = event_state(event_find(value));
	fa_fake_unlock();
	return result;
}

CUresult cuEventSynchronize(CUevent value)
{
	CUresult result;

	FA_FAKE_ENTER(cuEventSynchronize, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	while ((result = event_state(event_find(value))) == CUDA_ERROR_NOT_READY)
		pthread_cond_wait(&fa_fake.changed, &fa_fake.lock);
	fa_fake_unlock();
	return result;
}

CUresult cuEventElapsedTime(float *ret_ms, CUevent start_value, CUevent end_value)
{
	const struct event *start, *end;
	CUresult result;

	FA_FAKE_ENTER(cuEventElapsedTime, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	start = event_find(start_value);
	end = event_find(end_value);
	result = event_state(start);
	if (result == CUDA_SUCCESS)
		result = event_state(end);
	if (result == CUDA_SUCCESS && (!start->recorded || !end->recorded ||
	                               (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
		result = CUDA_ERROR_INVALID_HANDLE;
	if (result == CUDA_SUCCESS)
		*ret_ms = (float)((double)(int64_t)(end->at_ns - start->at_ns) / 1e6);
	fa_fake_unlock();
	return result;
}

/* ---- values */

/* Returns the word at @at if @device can access it. */
static uint64_t *word_find(int device, CUdeviceptr at, bool write)
{
	const struct fa_fake_span span = { at, sizeof(uint64_t), write };

	return fa_fake_span_is_good(device, &span) ? (uint64_t *)(uintptr_t)at : NULL;
}

static CUresult write_run(struct fa_fake_op *op, struct fa_fake_context *context)
{
	uint64_t *word;

	fa_fake_lock();
	word = word_find(context->device, op->to, true);
	if (word)
		__atomic_store_n(word, op->value, __ATOMIC_RELEASE);
	fa_fake_unlock();
	return word ? CUDA_SUCCESS
	            : fa_fake_misuse(CUDA_ERROR_ILLEGAL_ADDRESS,
	                             "a value is to be written to %#llx",
	                             (unsigned long long)op->to);
}

static CUresult wait_run(struct fa_fake_op *op, struct fa_fake_context *context)
{
	for (;;) {
		bool met = false, ends;
		const uint64_t *word;

		fa_fake_lock();
		word = word_find(context->device, op->to, false);
		if (word)
			met = (int64_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - op->value) >= 0;
		ends = context->lost || context->ending;
		fa_fake_unlock();
		if (!word)
			return fa_fake_misuse(CUDA_ERROR_ILLEGAL_ADDRESS,
			                      "a value is waited for at %#llx",
			                      (unsigned long long)op->to);
		if (met || ends)
			return CUDA_SUCCESS;
		usleep(POLL_US);
	}
}

static CUresult value_submit(CUstream stream, CUdeviceptr at, uint64_t value, bool write)
{
	struct fa_fake_op *op;
	bool good;

	fa_fake_lock();
	good = at % sizeof(uint64_t) == 0 && word_find(fa_fake_current()->device, at, write);
	fa_fake_unlock();
	if (!good)
		return CUDA_ERROR_INVALID_VALUE;
	op = fa_fake_op_new(write ? write_run : wait_run);
	if (op) {
		op->to = at;
		op->value = value;
		op->again = true;
	}
	return fa_fake_submit(stream, op);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned int flags)
{
	FA_FAKE_ENTER(cuStreamWriteValue64, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	/* The flag CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER is accepted, and makes no difference. */
	if (flags & ~1u)
		return CUDA_ERROR_INVALID_VALUE;
	return value_submit(stream, at, value, true);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned int flags)
{
	FA_FAKE_ENTER(cuStreamWaitValue64, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	if (flags != CU_STREAM_WAIT_VALUE_GEQ)
		return CUDA_ERROR_NOT_SUPPORTED;
	return value_submit(stream, at, value, false);
}
