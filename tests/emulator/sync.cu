/* Synchronisation of a warp's lanes and of a block's threads. Compiled as C++. */
#include "tests/emulator/fibre.h"

#define BARRIERS_MAX 16

static struct warp {
	uint32_t arrived;
	uint64_t generation;
	uint64_t values[4][32];
	uint32_t words[4][32][FA_EMULATED_WORDS];
	/* indexed by the lowest lane of a mask */
	uint32_t some_arrived[32];
	uint64_t some_generation[32];
} warps[WARPS_MAX];

static struct barrier {
	uint32_t arrived, threads;
	uint64_t generation;
	bool any, answer;
} barriers[BARRIERS_MAX];

void sync_begin(void)
{
	memset(warps, 0, sizeof(warps));
	memset(barriers, 0, sizeof(barriers));
}

void sync_explain(const uint64_t *at)
{
	for (int i = 0; i < BARRIERS_MAX; i++)
		if (at == &barriers[i].generation)
			fprintf(stderr, " at barrier %d, %u of %u there", i, barriers[i].arrived,
			        barriers[i].threads);
	for (int i = 0; i < WARPS_MAX; i++)
		if (at == &warps[i].generation)
			fprintf(stderr, " for its warp, %u there", warps[i].arrived);
}

const uint64_t *fa_emulated_warp_exchange(uint64_t value)
{
	struct warp *warp = &warps[current / 32];
	const uint64_t generation = warp->generation;

	warp->values[generation % 4][current % 32] = value;
	if (++warp->arrived == 32) {
		warp->arrived = 0;
		warp->generation++;
		happened();
	}
	wait_until_not(&warp->generation, generation);
	return warp->values[generation % 4];
}

const uint32_t (*fa_emulated_warp_exchange_words(const uint32_t *words))[FA_EMULATED_WORDS]
{
	struct warp *warp = &warps[current / 32];
	uint32_t(*const all)[FA_EMULATED_WORDS] = warp->words[warp->generation % 4];

	memcpy(all[current % 32], words, sizeof(all[0]));
	fa_emulated_warp_exchange(0);
	return all;
}

void fa_emulated_warp_sync_mask(uint32_t mask)
{
	struct warp *warp = &warps[current / 32];
	const int lowest = __builtin_ctz(mask);
	const uint64_t generation = warp->some_generation[lowest];

	if (++warp->some_arrived[lowest] == (uint32_t)__builtin_popcount(mask)) {
		warp->some_arrived[lowest] = 0;
		warp->some_generation[lowest]++;
		happened();
	}
	wait_until_not(&warp->some_generation[lowest], generation);
}

static struct barrier *barrier_arrive(uint32_t id, uint32_t threads, bool value)
{
	struct barrier *barrier = &barriers[id];

	if (id >= BARRIERS_MAX || threads % 32 || threads > n_threads)
		DIE("barrier %u of %u threads", id, threads);
	if (barrier->arrived && barrier->threads != threads)
		DIE("barrier %u is of %u threads and of %u", id, barrier->threads, threads);
	barrier->threads = threads;
	barrier->any |= value;
	if (++barrier->arrived == threads) {
		barrier->arrived = 0;
		barrier->answer = barrier->any;
		barrier->any = false;
		barrier->generation++;
		happened();
	}
	return barrier;
}

bool fa_emulated_barrier(uint32_t id, uint32_t threads, bool value)
{
	const uint64_t generation = barriers[id % BARRIERS_MAX].generation;
	struct barrier *barrier = barrier_arrive(id, threads, value);

	wait_until_not(&barrier->generation, generation);
	return barrier->answer;
}

void fa_emulated_arrive(uint32_t id, uint32_t threads)
{
	barrier_arrive(id, threads, false);
}
