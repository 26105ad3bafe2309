/*
 * How launches tell their end (kernels/cuda/common/done.h), judged: every block counts itself
 * once, by a thread that has fenced before; one store follows, behind a fence of its own that
 * reaches the host, in the block that runs last; whoever is not asked tells nothing. Compiled as C++ by the host's
 * compiler.
 */
#include "tests/emulator/emulator.h"
#include "tests/emulator/launch.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t n_blocks, n_begun, n_counts, n_tells;
static bool counted, fenced, fenced_system; /* in this block, since its last count */
static uint32_t fencing_thread;

#define DIE(...)                                                                                   \
	do {                                                                                       \
		fprintf(stderr, "the end of a launch: " __VA_ARGS__);                              \
		fprintf(stderr, "\n");                                                             \
		abort();                                                                           \
	} while (0)

void fa_emulated_fence(bool system)
{
	fenced = true;
	fenced_system = system;
	fencing_thread = threadIdx.x;
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
	if (!counted || n_begun != n_blocks)
		DIE("told in block %llu of %llu", (unsigned long long)n_begun,
		    (unsigned long long)n_blocks);
	n_tells++;
	*word = value;
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
}

/* ---- for those who launch */

static uint64_t word, counter, value;
static uint32_t n_asked;

void fa_emulated_end_ask(struct fa_cuda_done *done, uint64_t blocks)
{
	word = value;
	/* Every third is not asked. */
	*done = {};
	if (n_asked++ % 3 == 0)
		return;
	*done = { &word, ++value, &counter, counter + blocks - 1 };
}

void fa_emulated_end_check(const struct fa_cuda_done *done)
{
	const uint64_t blocks = done->word ? n_blocks : 0;

	if (n_counts != blocks || n_tells != (blocks > 0) || word != value)
		DIE("%llu of %llu blocks counted, %llu told", (unsigned long long)n_counts,
		    (unsigned long long)blocks, (unsigned long long)n_tells);
}
