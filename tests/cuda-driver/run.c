#include "tests/cuda-driver/run.h"

#include "common/clock.h"

#include <unistd.h>

#define POLL_US 200

void fa_fake_run_until(const struct fa_fake_context *context, uint64_t end_ns)
{
	for (;;) {
		const uint64_t now_ns = fa_now_ns();
		bool ends;

		fa_fake_lock();
		ends = context->lost || context->ending;
		fa_fake_unlock();
		if (ends || (now_ns >= end_ns && !atomic_load(&fa_fake.page->held)))
			return;
		usleep(now_ns < end_ns && end_ns - now_ns < POLL_US * FA_NS_PER_US
		               ? (useconds_t)((end_ns - now_ns) / FA_NS_PER_US + 1)
		               : POLL_US);
	}
}

static void span(struct fa_fake_pin *pin, const void *at, size_t bytes)
{
	pin->spans[pin->n_spans++] = (struct fa_fake_span){ (CUdeviceptr)(uintptr_t)at, bytes,
		                                            true };
}

/*
 * Stops a launch of @blocks blocks, and records that the last @left blocks of the first launch are
 * undone.
 */
static void leave(const struct fa_cuda_attention *args, uint64_t blocks, uint64_t left)
{
	const struct fa_cuda_preempt *yield = &args->preempt;
	struct fa_cuda_preempt_area *area = yield->area;

	for (uint64_t i = 0; i < left; ++i)
		area->records[yield->side][i] = (struct fa_cuda_preempt_record){
			.block = (uint32_t)(yield->blocks - left + i)
		};
	*args->done.counter += blocks;
	atomic_fetch_add(&fa_fake.page->stopped, 1);
	__atomic_store_n(yield->report, left, __ATOMIC_RELEASE);
}

/* Returns whether a resumed launch does other blocks than the last @blocks of the first launch. */
static bool resumes_wrong(const struct fa_cuda_preempt *yield, uint64_t blocks)
{
	const struct fa_cuda_preempt_area *area = yield->area;

	for (uint64_t i = 0; i < blocks; ++i)
		if (area->records[yield->side ^ 1][i].block != yield->blocks - blocks + i)
			return true;
	return false;
}

CUresult fa_fake_run_preemptible(struct fa_fake_context *context, uint64_t ns,
                                 const struct fa_cuda_attention *args, uint64_t blocks,
                                 bool *ret_preempted)
{
	const struct fa_cuda_preempt *yield = &args->preempt;
	struct fa_cuda_preempt_area *area = yield->area;
	struct fa_fake_pin pin = { .context = context };
	const uint64_t begin_ns = fa_now_ns();
	CUresult result;

	*ret_preempted = false;
	if (!yield->word) {
		fa_fake_run_until(context, begin_ns + ns);
		return CUDA_SUCCESS;
	}
	span(&pin, yield->word, sizeof(*yield->word));
	span(&pin, area, sizeof(*area));
	span(&pin, yield->report, sizeof(*yield->report));
	result = fa_fake_pin(&pin);
	if (result != CUDA_SUCCESS)
		return result;
	if (blocks > FA_CUDA_PREEMPT_RECORDS || blocks > yield->blocks || area->counts ||
	    *yield->report || !args->done.word || !yield->slots ||
	    (!yield->resumed && blocks != yield->blocks))
		result = fa_fake_misuse(CUDA_ERROR_LAUNCH_FAILED, "a launch cannot yield so");
	else if (yield->resumed && resumes_wrong(yield, blocks))
		result = fa_fake_misuse(CUDA_ERROR_LAUNCH_FAILED,
		                        "a launch goes on from what nobody left");
	else
		ns = ns * blocks / yield->blocks;
	while (result == CUDA_SUCCESS) {
		const bool held = atomic_load(&fa_fake.page->held);
		const uint64_t ran_ns = fa_now_ns() - begin_ns;
		uint64_t left = blocks;

		/* Acquire: if the word is seen, so are writes made before it. */
		*ret_preempted = __atomic_load_n(yield->word, __ATOMIC_ACQUIRE) >= yield->turn;
		fa_fake_lock();
		if (context->lost || context->ending)
			result = CUDA_ERROR_LAUNCH_FAILED;
		fa_fake_unlock();
		if (*ret_preempted && result == CUDA_SUCCESS) {
			if (!held && ns)
				left -= ran_ns < ns ? blocks * ran_ns / ns : blocks - 1;
			leave(args, blocks, left);
		}
		if (*ret_preempted || (!held && ran_ns >= ns))
			break;
		usleep(POLL_US / 4);
	}
	fa_fake_unpin(&pin);
	return result;
}

static void tell_client(const struct fa_cuda_done *done, uint32_t first, uint32_t step)
{
	for (uint32_t i = first; done->client_words && i < FA_CUDA_CLIENT_WORDS; i += step)
		__atomic_store_n(done->client_words + i, done->client_value, __ATOMIC_RELEASE);
}

CUresult fa_fake_signal_end(struct fa_fake_context *context, const struct fa_cuda_done *done,
                            uint64_t blocks)
{
	const uint32_t words = done->parts ? done->parts : 1;
	const uint32_t record_us = atomic_load(&fa_fake.page->record_us);
	struct fa_fake_pin pin = { .context = context };
	CUresult result;
	bool ends;

	/* A launch never signals its end if the context was lost while it ran. */
	fa_fake_lock();
	ends = context->lost || context->ending;
	fa_fake_unlock();
	if (!done->word || ends)
		return CUDA_SUCCESS;
	pin.spans[pin.n_spans++] = (struct fa_fake_span){ (CUdeviceptr)(uintptr_t)done->counter,
		                                          sizeof(*done->counter), true };
	pin.spans[pin.n_spans++] = (struct fa_fake_span){ (CUdeviceptr)(uintptr_t)done->word,
		                                          words * sizeof(*done->word), true };
	if (done->client_words)
		pin.spans[pin.n_spans++] = (struct fa_fake_span){
			(CUdeviceptr)(uintptr_t)done->client_words,
			FA_CUDA_CLIENT_WORDS * sizeof(*done->client_words), true
		};
	result = fa_fake_pin(&pin);
	if (result != CUDA_SUCCESS)
		return result;
	if (done->parts > FA_CUDA_DONE_PARTS) {
		result = fa_fake_misuse(CUDA_ERROR_LAUNCH_FAILED, "%u parts are told", done->parts);
	} else if (done->parts == 0) {
		if (*done->counter + blocks - 1 != done->last)
			result = fa_fake_misuse(
				CUDA_ERROR_LAUNCH_FAILED,
				"%llu blocks count from %llu, and the last is to find %llu",
				(unsigned long long)blocks, (unsigned long long)*done->counter,
				(unsigned long long)done->last);
		*done->counter += blocks;
	}
	if (result == CUDA_SUCCESS && record_us && done->client_words) {
		tell_client(done, 0, 1);
		usleep(record_us);
	}
	/* Parts of the launch signal their ends one by one, in any order. */
	for (uint32_t n = 0; result == CUDA_SUCCESS && n < words; n++) {
		const uint32_t i = (uint32_t)(done->value + n) % words;

		tell_client(done, i, words);
		__atomic_store_n(done->word + i, done->value, __ATOMIC_RELEASE);
		if (n + 1 < words)
			usleep(1);
	}
	fa_fake_unpin(&pin);
	return result;
}
