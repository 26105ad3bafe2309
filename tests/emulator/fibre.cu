/* Fibres and their schedule (emulator.h). Compiled as C++. */
#include "tests/emulator/fibre.h"
#include "tests/emulator/launch.h"

#include <setjmp.h>
#include <ucontext.h>

#define STACK_BYTES (128 << 10)

struct fa_emulated_index threadIdx, blockIdx, gridDim;
uint32_t current, n_threads;

static struct fibre {
	ucontext_t context;
	jmp_buf place;
	bool started, awaited;
	char *stack;
} fibres[THREADS_MAX];

/* A thread waits until *at == value. Apart from the fibre, because it is read most. */
static struct wait {
	const uint64_t *at; /* NULL: nothing */
	uint64_t value;
	bool ended;
} waits[THREADS_MAX];

static struct turn {
	uint32_t rarity; /* how often the schedule passes over the warp */
	uint64_t stuck;  /* count of events at which no thread could run */
} turns[WARPS_MAX];

static uint64_t n_events; /* number of events that a thread may have waited for */
static jmp_buf scheduler;
static void (*run_thread)(const void *args);
static const void *run_args;
static uint64_t random_state = 1;

void fa_emulated_seed(uint64_t seed)
{
	random_state = seed * 2 + 1;
}

uint32_t random_below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state * 0x2545f4914f6cdd1dull >> 40) % n;
}

static void fibre_main(void)
{
	run_thread(run_args);
	product_thread_end();
	waits[current].ended = true;
	_longjmp(scheduler, 1);
}

static void fibre_resume(uint32_t index)
{
	struct fibre *fibre = &fibres[index];

	current = index;
	threadIdx = { index, 0, 0 };
	if (fibre->started)
		_longjmp(fibre->place, 1);
	fibre->started = true;
	getcontext(&fibre->context);
	fibre->context.uc_stack.ss_sp = fibre->stack;
	fibre->context.uc_stack.ss_size = STACK_BYTES;
	fibre->context.uc_link = NULL;
	makecontext(&fibre->context, fibre_main, 0);
	setcontext(&fibre->context);
}

void wait_until_not(const uint64_t *at, uint64_t value)
{
	while (*at == value) {
		waits[current].at = at;
		waits[current].value = value;
		if (!_setjmp(fibres[current].place))
			_longjmp(scheduler, 1);
	}
	waits[current].at = NULL;
}

void happened(void)
{
	n_events++;
}

uint32_t fa_emulated_block_threads(void)
{
	return n_threads;
}

static bool is_ready(uint32_t index)
{
	const struct wait *wait = &waits[index];

	return !wait->ended && (!wait->at || *wait->at != wait->value);
}

static bool is_warp_ready(uint32_t index)
{
	struct turn *turn = &turns[index];

	if (turn->stuck == n_events)
		return false;
	for (uint32_t lane = 0; lane < 32; lane++)
		if (is_ready(index * 32 + lane))
			return true;
	turn->stuck = n_events;
	return false;
}

static void die_waiting(void)
{
	for (uint32_t i = 0; i < n_threads; i += 32)
		if (!waits[i].ended) {
			fprintf(stderr, "thread %u waits", i);
			sync_explain(waits[i].at);
			copy_explain(waits[i].at);
			fprintf(stderr, "\n");
		}
	DIE("everybody waits");
}

/* Runs a warp that can go on, or lets a copy happen. */
static void run_block(void)
{
	/* These two variables keep their values across longjmp(). */
	static uint32_t warp, lane;
	static bool any_ready;

	lane = 32;
	_setjmp(scheduler);
	for (;;) {
		for (; lane < 32; lane++)
			if (is_ready(warp * 32 + lane)) {
				lane++;
				fibre_resume(warp * 32 + lane - 1);
			}
		copy_seldom();
		warp = random_below(n_threads / 32);
		if (random_below(turns[warp].rarity) != 0)
			continue;
		if (is_warp_ready(warp)) {
			lane = 0;
			continue;
		}
		any_ready = false;
		for (uint32_t i = 0; i < n_threads / 32 && !any_ready; i++)
			any_ready = is_warp_ready(i);
		if (any_ready)
			continue;
		if (copy_any()) {
			copy_one();
			continue;
		}
		for (uint32_t i = 0; i < n_threads; i++)
			if (!waits[i].ended)
				die_waiting();
		return;
	}
}

void fa_emulated_await(void)
{
	fibres[current].awaited = true;
}

void must_have_awaited(const char *what)
{
	if (!fibres[current].awaited)
		DIE("%s, and the launch ahead was not awaited", what);
}

void fa_emulated_launch(uint32_t grid_x, uint32_t grid_y, uint32_t threads, uint32_t shared_bytes,
                        void (*run)(const void *args), const void *args)
{
	const uint32_t blocks = grid_x * grid_y;
	uint32_t *order = (uint32_t *)malloc(blocks * sizeof(*order));

	if (threads > THREADS_MAX || threads % 32 || shared_bytes > SHARED_MAX || !order)
		abort();
	run_thread = run;
	run_args = args;
	n_threads = threads;
	gridDim = { grid_x, grid_y, 1 };
	for (uint32_t i = 0; i < blocks; i++)
		order[i] = i;
	for (uint32_t i = blocks; i > 1; i--) {
		const uint32_t j = random_below(i), block = order[i - 1];

		order[i - 1] = order[j];
		order[j] = block;
	}
	fa_emulated_completion_launch(blocks);
	partials_begin();
	for (uint32_t i = 0; i < blocks; i++) {
		fa_emulated_completion_block();
		blockIdx = { order[i] % grid_x, order[i] / grid_x, 0 };
		sync_begin();
		copy_begin();
		wgmma_begin();
		for (uint32_t warp = 0; warp < threads / 32; warp++)
			turns[warp] = { random_below(4) ? 1 : 1 + random_below(60), 0 };
		for (uint32_t thread = 0; thread < threads; thread++) {
			struct fibre *fibre = &fibres[thread];

			if (!fibre->stack)
				fibre->stack = (char *)malloc(STACK_BYTES);
			fibre->started = fibre->awaited = false;
			waits[thread] = { NULL, 0, false };
		}
		n_events++;
		run_block();
		if (copy_any())
			DIE("the block ends with copies under way");
	}
	free(order);
}
