/*
 * How launches tell their end (kernels/cuda/common/done.h), judged: every block counts itself
 * once, by a thread that has fenced before; one store follows, behind a fence of its own that
 * reaches the host, in the block that runs last. Or nobody counts, and each part's word is stored
 * once, behind such a fence, and what blocks have stored besides shares is behind a fence of each
 * thread that gives one. A client's words come before those; whoever is not asked tells nothing.
 * Compiled as C++ by the host's compiler.
 */
#include "tests/emulator/fibre.h"
#include "tests/emulator/launch.h"

static uint64_t n_blocks, n_begun, n_counts, n_tells;
static bool counted, fenced, fenced_system; /* in this block, since its last count */
static uint32_t fencing_thread;
/* Stores of this block that nobody was told of, and of those the ones before a thread's fence. */
static uint32_t n_stored, n_fenced[THREADS_MAX];

/* The launch's that is judged, if it is. */
static uint64_t words[FA_CUDA_DONE_PARTS], counter, value;
static uint32_t early[FA_CUDA_EARLY_WORDS];
static struct fa_cuda_done asked;

void fa_emulated_fence(bool system)
{
	fenced = true;
	fenced_system = system;
	fencing_thread = threadIdx.x;
	n_fenced[threadIdx.x] = n_stored;
}

void fa_emulated_end_store(void)
{
	n_stored++;
}

static void forget_stores(void)
{
	n_stored = 0;
	memset(n_fenced, 0, sizeof(n_fenced));
}

void fa_emulated_end_give(void)
{
	if (asked.parts > 0 && n_fenced[threadIdx.x] != n_stored)
		DIE("thread %u has not fenced what its block has stored", threadIdx.x);
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
		DIE("a block counts itself twice");
	counted = true;
	n_counts++;
	*counter += value;
	return before;
}

void fa_emulated_tell(uint64_t *word, uint64_t value)
{
	check_fence();
	if (!fenced_system)
		DIE("told behind a fence that does not reach the host");
	if (asked.parts > 0 && word >= words && word < words + asked.parts) {
		if (*word == value)
			DIE("part %u is told twice", (uint32_t)(word - words));
	} else if (!counted || n_begun != n_blocks) {
		DIE("told in block %llu of %llu", (unsigned long long)n_begun,
		    (unsigned long long)n_blocks);
	}
	n_tells++;
	*word = value;
	forget_stores();
}

void fa_emulated_tell_early(uint32_t *at, uint32_t n, uint32_t value)
{
	const uint32_t step = asked.parts ? asked.parts : 1;

	if (!asked.early || at < early || at + n > early + FA_CUDA_EARLY_WORDS || !fenced ||
	    !fenced_system || fencing_thread != threadIdx.x)
		DIE("a client is told what it is not to be told");
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t part = (uint32_t)(at + i - early) % step;

		if (words[part] == asked.value || at[i] == value)
			DIE("word %u of a client's is told behind that of its part, or twice",
			    (uint32_t)(at + i - early));
		at[i] = value;
	}
}

void fa_emulated_end_launch(uint64_t blocks)
{
	n_blocks = blocks;
	n_begun = n_counts = n_tells = 0;
}

void fa_emulated_end_block(void)
{
	n_begun++;
	counted = fenced = false;
	forget_stores();
}

/* ---- for those who launch */

void fa_emulated_end_ask(struct fa_cuda_done *done, uint64_t blocks, uint32_t parts)
{
	static uint32_t n_asked;

	n_asked++;
	asked = {};
	/* Every third is not asked; some are not asked for parts, some not by a client. */
	if (n_asked % 3 != 1) {
		asked.word = words;
		asked.value = ++value;
		asked.counter = &counter;
		asked.last = counter + blocks - 1;
		asked.early = n_asked % 5 ? early : NULL;
		asked.early_value = (uint32_t)value;
		asked.parts = n_asked % 4 ? parts : 0;
	}
	*done = asked;
}

void fa_emulated_end_check(void)
{
	const uint64_t blocks = asked.word && !asked.parts ? n_blocks : 0;
	const uint32_t tells = asked.parts ? asked.parts : asked.word ? 1 : 0;

	if (n_counts != blocks || n_tells != tells)
		DIE("%llu of %llu blocks counted, %llu of %u told", (unsigned long long)n_counts,
		    (unsigned long long)blocks, (unsigned long long)n_tells, tells);
	for (uint32_t i = 0; i < tells; i++)
		if (words[i] != value)
			DIE("part %u is not told", i);
	for (uint32_t i = 0; i < FA_CUDA_EARLY_WORDS && asked.early; i++)
		if (early[i] != (uint32_t)value)
			DIE("word %u of a client's is not told", i);
}
