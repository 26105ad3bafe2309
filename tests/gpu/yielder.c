#include "tests/gpu/yielder.h"

#include "common/clock.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* A launch yields at most this often, so that it ends. */
#define ASKED_MAX 12
#define WORDS_BYTES 512
#define TOLD_WITHIN_NS (20 * 1000 * FA_NS_PER_MS)

static void must(const struct fa_cudriver *driver, CUresult result, const char *doing)
{
	struct fa_error error;

	if (result == CUDA_SUCCESS)
		return;
	fa_cudriver_fail(driver, &error, result, doing);
	fprintf(stderr, "giving way: %s\n", error.text);
	abort();
}

static void open_words(struct fa_yielder *yielder, const struct fa_cudriver *driver)
{
	int least, greatest;

	must(driver, driver->cuCtxGetStreamPriorityRange(&least, &greatest), "priorities");
	must(driver,
	     driver->cuStreamCreateWithPriority(&yielder->stream, CU_STREAM_NON_BLOCKING, greatest),
	     "a stream");
	must(driver, driver->cuMemAlloc(&yielder->word, WORDS_BYTES), "a word");
	must(driver, driver->cuMemsetD8(yielder->word, 0, WORDS_BYTES), "a word");
	yielder->counter = yielder->word + WORDS_BYTES / 2;
	must(driver,
	     driver->cuMemHostAlloc((void **)&yielder->told, WORDS_BYTES, CU_MEMHOSTALLOC_PORTABLE),
	     "words of the host");
}

static void grow_area(struct fa_yielder *yielder, const struct fa_cudriver *driver, size_t bytes)
{
	if (bytes <= yielder->area_bytes)
		return;
	if (yielder->area)
		must(driver, driver->cuMemFree(yielder->area), "freeing the area");
	must(driver, driver->cuMemAlloc(&yielder->area, bytes), "the area");
	must(driver, driver->cuMemsetD8(yielder->area, 0xff, bytes), "the area");
	must(driver, driver->cuMemsetD8(yielder->area, 0, sizeof(uint64_t)), "the area");
	yielder->area_bytes = bytes;
}

static uint64_t draw(uint64_t *random, uint64_t below)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return below ? (*random >> 16) % below : 0;
}

/* Returns the number of blocks left when the launch ends or yields. */
static uint32_t wait_told(struct fa_yielder *yielder)
{
	const uint64_t until_ns = fa_now_ns() + TOLD_WITHIN_NS;
	volatile uint64_t *end = &yielder->told[0], *left = &yielder->told[1];

	while (!*end && !*left)
		if (fa_now_ns() > until_ns) {
			fprintf(stderr, "giving way: neither its end nor what is left was told\n");
			abort();
		}
	return (uint32_t)*left;
}

uint32_t fa_yielder_run(struct fa_yielder *yielder, const struct fa_cudriver *driver,
                        const struct fa_yielder_launch *launch, uint64_t most_ns, uint64_t *random)
{
	struct fa_cuda_attention *a = launch->attention;
	uint32_t grid = launch->grid;

	if (!yielder->told)
		open_words(yielder, driver);
	grow_area(yielder, driver,
	          sizeof(struct fa_cuda_preempt_area) +
	                  2 * (size_t)launch->slots * launch->state_bytes);
	a->preempt = (struct fa_cuda_preempt){
		.word = (const uint64_t *)(uintptr_t)yielder->word,
		.area = (void *)(uintptr_t)yielder->area,
		.report = &yielder->told[1],
		.slots = launch->slots,
		.blocks = launch->grid,
	};
	for (uint32_t n = 0;; n++) {
		uint32_t left;

		yielder->told[0] = yielder->told[1] = 0;
		a->preempt.turn = ++yielder->turn;
		a->done = (struct fa_cuda_done){
			.word = &yielder->told[0],
			.value = 1,
			.counter = (uint64_t *)(uintptr_t)yielder->counter,
			.last = yielder->counted + grid - 1,
		};
		yielder->counted += grid;
		must(driver,
		     driver->cuLaunchKernel(launch->function, grid, 1, 1, launch->threads, 1, 1,
		                            launch->shared_bytes, launch->stream, launch->args,
		                            NULL),
		     "a launch");
		if (n < ASKED_MAX) {
			const uint64_t until_ns = fa_now_ns() + draw(random, most_ns);

			while (fa_now_ns() < until_ns)
				;
			must(driver,
			     driver->cuStreamWriteValue64(yielder->stream, yielder->word,
			                                  yielder->turn,
			                                  CU_STREAM_WRITE_VALUE_DEFAULT),
			     "asking");
		}
		left = wait_told(yielder);
		must(driver, driver->cuStreamSynchronize(launch->stream), "the launch");
		if (!left)
			return n;
		if (left > grid) {
			fprintf(stderr, "giving way: %u blocks are left of %u\n", left, grid);
			abort();
		}
		grid = left;
		a->preempt.side ^= 1;
		a->preempt.resumed = 1;
	}
}

void fa_yielder_close(struct fa_yielder *yielder, const struct fa_cudriver *driver)
{
	if (!yielder->told)
		return;
	must(driver, driver->cuStreamDestroy(yielder->stream), "the end");
	must(driver, driver->cuMemFree(yielder->word), "the end");
	must(driver, driver->cuMemFreeHost(yielder->told), "the end");
	if (yielder->area)
		must(driver, driver->cuMemFree(yielder->area), "the end");
	*yielder = (struct fa_yielder){ 0 };
}
