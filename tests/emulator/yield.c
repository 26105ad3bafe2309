#include "tests/emulator/yield.h"
#include "tests/emulator/launch.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 4

static uint64_t random_state = 88172645463325252ull;
static const uint64_t *asked_word; /* NULL: no block is asked to yield */
static uint64_t asked_turn;
static uint32_t rarity;

static uint32_t draw(uint32_t below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 33) % below;
}

uint64_t fa_emulated_load_word(const uint64_t *word)
{
	return word == asked_word && draw(rarity) == 0 ? asked_turn : *word;
}

static void die(const struct fa_emulated_yielding *launch, const char *what)
{
	fprintf(stderr, "%s, giving way: %s\n", launch->symbol, what);
	abort();
}

/* Copies all rows of O and their LSE to @to, or compares them with it. */
static bool rows(const struct fa_emulated_yielding *launch, char *to, bool compare)
{
	const struct fa_cuda_attention *a = launch->attention;
	const size_t bytes = (size_t)a->head_dim_v * 2;
	const uint64_t *dims = launch->q->dims;

	for (uint64_t b = 0; b < dims[3]; b++)
		for (uint64_t h = 0; h < dims[2]; h++)
			for (uint64_t t = 0; t < dims[1]; t++) {
				const char *row = (const char *)a->out.data +
				                  (int64_t)b * a->out.stride_batch +
				                  (int64_t)t * a->out.stride_token +
				                  (int64_t)h * a->out.stride_head;
				const float *lse =
					a->lse ? &a->lse[(int64_t)b * a->lse_stride_batch +
				                         (int64_t)t * a->lse_stride_token +
				                         (int64_t)h * a->lse_stride_head]
					       : NULL;

				if (compare && (memcmp(to, row, bytes) ||
				                (lse && memcmp(to + bytes, lse, 4)))) {
					fprintf(stderr,
					        "sequence %llu, head %llu, token %llu: 0x%04x, not "
					        "0x%04x, ...\n",
					        (unsigned long long)b, (unsigned long long)h,
					        (unsigned long long)t, *(const uint16_t *)row,
					        *(const uint16_t *)to);
					return false;
				}
				if (!compare) {
					memcpy(to, row, bytes);
					if (lse)
						memcpy(to + bytes, lse, 4);
				}
				to += bytes + 4;
			}
	return true;
}

/* Repeats the launch until it completes. Returns how often it yielded. */
static uint32_t run(const struct fa_emulated_yielding *launch)
{
	static uint64_t word, turn;
	const uint32_t slots[] = { launch->grid, launch->grid, 1 + draw(3), 0 };
	struct fa_cuda_attention *a = launch->attention;
	uint64_t told = 0, report, counter = 0;
	uint32_t grid = launch->grid;
	struct fa_cuda_preempt_area *area;

	a->preempt.slots = slots[draw(4)];
	area = calloc(1, sizeof(*area) + 2 * (size_t)a->preempt.slots * launch->state_bytes);
	if (!area)
		abort();
	a->preempt.blocks = launch->grid;
	a->preempt.area = area;
	a->preempt.word = &word;
	a->preempt.report = &report;
	for (uint32_t n = 0;; n++) {
		/* Stop asking after ROUNDS_MAX, so that the launch completes. */
		asked_word = n < ROUNDS_MAX ? &word : NULL;
		report = 0;
		a->preempt.turn = asked_turn = ++turn;
		a->done = (struct fa_cuda_done){
			.word = &told, .value = 1, .counter = &counter, .last = counter + grid - 1
		};
		fa_emulated_launch(grid, 1, launch->threads, launch->shared_bytes, launch->run,
		                   launch->args);
		if (area->counts)
			die(launch, "counts are left");
		if (told == (report != 0))
			die(launch, "the end was told wrongly");
		if (told) {
			asked_word = NULL;
			free(area);
			return n;
		}
		if (report > grid)
			die(launch, "more is left than there was");
		grid = (uint32_t)report;
		a->preempt.side ^= 1;
		a->preempt.resumed = 1;
	}
}

uint32_t fa_emulated_yield_run(const struct fa_emulated_yielding *launch)
{
	rarity = 2 + draw(8);
	return run(launch);
}

void fa_emulated_yield(const struct fa_emulated_yielding *launch,
                       void (*poison)(const void *userdata), const void *userdata)
{
	static const uint32_t rarities[] = { 2, 5, 20 };
	const uint64_t *dims = launch->q->dims;
	struct fa_cuda_attention *a = launch->attention;
	char *before;

	if (!launch->state_bytes || launch->grid > FA_CUDA_PREEMPT_RECORDS || draw(4))
		return;
	before = malloc((size_t)(dims[1] * dims[2] * dims[3]) * ((size_t)a->head_dim_v * 2 + 4));
	if (!before)
		abort();
	rows(launch, before, false);
	poison(userdata);
	rarity = rarities[draw(3)];
	run(launch);
	if (!launch->unstable && !rows(launch, before, true))
		die(launch, "something else comes out");
	free(before);
}
