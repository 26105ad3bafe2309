/*
 * Checks how launches signal completion (kernels/cuda/common/done.h). Each block counts once after
 * a fence, and the last block stores the word after a system fence; or each part's word is stored
 * once, after such a fence. A thread that stores a partial result has fenced its block's earlier
 * stores. Client words are stored before the others. Compiled as C++.
 */
#include "tests/emulator/fibre.h"
#include "tests/emulator/launch.h"

static uint64_t n_blocks, n_begun, n_counts, n_signals;
static bool counted, fenced, fenced_system; /* what this block did since its last count */
static uint32_t fencing_thread;
/* The block's stores that were not signalled, and how many of them precede a thread's last
 * fence. */
static uint32_t n_stored, n_fenced[THREADS_MAX];

/* State of the launch that is checked, if any. */
static uint64_t words[FA_CUDA_DONE_PARTS], counter, value;
static uint32_t early[FA_CUDA_CLIENT_WORDS];
static struct fa_cuda_done requested;

void fa_emulated_fence(bool system)
{
	fenced = true;
	fenced_system = system;
	fencing_thread = threadIdx.x;
	n_fenced[threadIdx.x] = n_stored;
}

void fa_emulated_completion_store(void)
{
	n_stored++;
}

static void reset_stores(void)
{
	n_stored = 0;
	memset(n_fenced, 0, sizeof(n_fenced));
}

void fa_emulated_completion_partial(void)
{
	if (requested.parts > 0 && n_fenced[threadIdx.x] != n_stored)
		DIE("thread %u has not fenced its block's earlier stores", threadIdx.x);
}

static void check_fence(void)
{
	if (!fenced || fencing_thread != threadIdx.x)
		DIE("thread %u has not fenced", threadIdx.x);
	fenced = false;
}

uint64_t fa_emulated_count(uint64_t *counter, uint64_t value)
{
	const uint64_t before = *counter;

	check_fence();
	if (counted)
		DIE("a block is counted twice");
	counted = true;
	n_counts++;
	*counter += value;
	return before;
}

void fa_emulated_signal(uint64_t *word, uint64_t value)
{
	check_fence();
	if (!fenced_system)
		DIE("the host is signalled after a fence of device scope only");
	if (requested.parts > 0 && word >= words && word < words + requested.parts) {
		if (*word == value)
			DIE("part %u is signalled twice", (uint32_t)(word - words));
	} else if (!counted || n_begun != n_blocks) {
		DIE("signalled in block %llu of %llu", (unsigned long long)n_begun,
		    (unsigned long long)n_blocks);
	}
	n_signals++;
	*word = value;
	reset_stores();
}

void fa_emulated_signal_early(uint32_t *at, uint32_t n, uint32_t value)
{
	const uint32_t step = requested.parts ? requested.parts : 1;

	if (!requested.client_words || at < early || at + n > early + FA_CUDA_CLIENT_WORDS ||
	    !fenced || !fenced_system || fencing_thread != threadIdx.x)
		DIE("a client word is stored that was not requested");
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t part = (uint32_t)(at + i - early) % step;

		if (words[part] == requested.value || at[i] == value)
			DIE("client word %u is stored after its part was signalled, or twice",
			    (uint32_t)(at + i - early));
		at[i] = value;
	}
}

void fa_emulated_completion_launch(uint64_t blocks)
{
	n_blocks = blocks;
	n_begun = n_counts = n_signals = 0;
}

void fa_emulated_completion_block(void)
{
	n_begun++;
	counted = fenced = false;
	reset_stores();
}

void fa_emulated_completion_request(struct fa_cuda_done *done, uint64_t blocks, uint32_t parts)
{
	static uint32_t n_requests;

	n_requests++;
	requested = {};
	/* Every third launch has no request. Some requests ask for no parts, some for no client
	 * words. */
	if (n_requests % 3 != 1) {
		requested.word = words;
		requested.value = ++value;
		requested.counter = &counter;
		requested.last = counter + blocks - 1;
		requested.client_words = n_requests % 5 ? early : NULL;
		requested.client_value = (uint32_t)value;
		requested.parts = n_requests % 4 ? parts : 0;
	}
	*done = requested;
}

void fa_emulated_completion_check(void)
{
	const uint64_t blocks = requested.word && !requested.parts ? n_blocks : 0;
	const uint32_t signals = requested.parts ? requested.parts : requested.word ? 1 : 0;

	if (n_counts != blocks || n_signals != signals)
		DIE("%llu of %llu blocks counted, %llu of %u signalled",
		    (unsigned long long)n_counts, (unsigned long long)blocks,
		    (unsigned long long)n_signals, signals);
	for (uint32_t i = 0; i < signals; i++)
		if (words[i] != value)
			DIE("part %u is not signalled", i);
	for (uint32_t i = 0; i < FA_CUDA_CLIENT_WORDS && requested.client_words; i++)
		if (early[i] != (uint32_t)value)
			DIE("client word %u is not stored", i);
}
