#include "tests/cuda-driver/gate.h"
#include "tests/cuda-driver/driver.h"

#include "common/clock.h"

#include <unistd.h>

#define POLL_US 200

/* Returns the span of @bytes at a kernel's pointer. */
static struct fa_fake_span span_of(const void *at, size_t bytes, bool write)
{
	return (struct fa_fake_span){ (CUdeviceptr)(uintptr_t)at, bytes, write };
}

static void gate_hold(struct fa_fake_context *context)
{
	bool ends = false;

	while (!ends && atomic_load(&fa_fake.page->gates_held)) {
		usleep(POLL_US);
		fa_fake_lock();
		ends = context->lost || context->ending;
		fa_fake_unlock();
	}
}

static bool gate_is_open(const struct fa_cuda_gate *args)
{
	return (int64_t)(__atomic_load_n(args->word, __ATOMIC_ACQUIRE) - args->value) >= 0;
}

CUresult fa_fake_gate_run(struct fa_fake_context *context, const struct fa_cuda_gate *args)
{
	const uint64_t wanted_us = atomic_load(&fa_fake.page->gate_us);
	struct fa_fake_pin pin = {
		.context = context,
		.spans = { span_of(args->word, 8, false), span_of(args->stop, 8, false),
		           span_of(args->shut, 8, true), span_of(args->report, 8, true) },
		.n_spans = 4,
	};
	uint64_t until_ns;
	CUresult result;
	bool open = true, ends;

	gate_hold(context);
	until_ns = fa_now_ns() + (wanted_us ? wanted_us * FA_NS_PER_US : args->patience_ns);
	result = fa_fake_pin(&pin);
	if (result != CUDA_SUCCESS)
		return result;
	if (*args->shut == args->run) {
		fa_fake_unpin(&pin);
		return CUDA_SUCCESS;
	}
	atomic_fetch_add(&fa_fake.page->gates_began, 1);
	while (!gate_is_open(args)) {
		fa_fake_lock();
		ends = context->lost || context->ending;
		fa_fake_unlock();
		if (!ends && fa_now_ns() < until_ns &&
		    __atomic_load_n(args->stop, __ATOMIC_ACQUIRE) < args->turn) {
			usleep(5);
			continue;
		}
		open = false;
		*args->shut = args->run;
		break;
	}
	atomic_fetch_add(open ? &fa_fake.page->gates_opened : &fa_fake.page->gates_shut, 1);
	if (!open)
		__atomic_store_n(args->report, args->turn, __ATOMIC_RELEASE);
	fa_fake_unpin(&pin);
	return CUDA_SUCCESS;
}
