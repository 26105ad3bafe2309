/* See emulator.h. Compiled as C++ by the host's compiler. */
#include "kernels/cuda/ptx/mma.h"
#include "tests/cuda-emulator/emulator.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#define THREADS_MAX 512
#define STACK_BYTES (96 << 10)
#define COPIES_MAX 4096 /* of a thread, waiting */
#define GROUPS_MAX 64

struct fa_emulated_index threadIdx, blockIdx;
alignas(1024) char shared_memory[FA_EMULATED_SHARED_MAX];

struct copy {
	uint32_t to, bytes, zeros;
	const void *from;
};

struct fibre {
	ucontext_t context;
	jmp_buf place;
	bool started, ended;
	char *stack;
	/* Copies in order; groups are ends in them. */
	struct copy *copies;
	uint32_t n_copies, groups[GROUPS_MAX], n_groups;
};

struct warp {
	uint32_t arrived;
	uint64_t generation;
	uint64_t values[4][32];
	uint32_t words[4][32][FA_EMULATED_WORDS];
	/* Of masks, by their lowest lane. */
	uint32_t some_arrived[32];
	uint64_t some_generation[32];
};

struct barrier {
	uint32_t arrived;
	uint64_t generation;
	bool any, answer;
};

static struct fibre fibres[THREADS_MAX];
static struct warp warps[THREADS_MAX / 32];
static struct barrier barriers[16];
static uint32_t n_threads, current, n_alive;
static jmp_buf scheduler;
static void (*run_thread)(const void *args);
static const void *run_args;

/* ---- fibres */

static void fibre_main(void)
{
	run_thread(run_args);
	fibres[current].ended = true;
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

/* Gives way to the scheduler, which comes back after all others had their turn. */
static void give_way(void)
{
	if (!_setjmp(fibres[current].place))
		_longjmp(scheduler, 1);
}

static void run_block(void)
{
	static volatile uint32_t next;

	n_alive = n_threads;
	next = 0;
	_setjmp(scheduler);
	while (n_alive > 0) {
		const uint32_t index = next % n_threads;

		/* Ended since it was last looked at. */
		if (index == 0) {
			n_alive = 0;
			for (uint32_t i = 0; i < n_threads; i++)
				n_alive += !fibres[i].ended;
		}
		next = next + 1;
		if (!fibres[index].ended)
			fibre_resume(index);
	}
}

/* ---- where threads meet */

const uint64_t *fa_emulated_meet(uint64_t value)
{
	struct warp *warp = &warps[current / 32];
	const uint64_t generation = warp->generation;

	warp->values[generation % 4][current % 32] = value;
	if (++warp->arrived == 32) {
		warp->arrived = 0;
		warp->generation++;
	}
	while (warp->generation == generation)
		give_way();
	return warp->values[generation % 4];
}

const uint32_t (*fa_emulated_meet_words(const uint32_t *words))[FA_EMULATED_WORDS]
{
	struct warp *warp = &warps[current / 32];
	uint32_t(*const all)[FA_EMULATED_WORDS] = warp->words[warp->generation % 4];

	memcpy(all[current % 32], words, sizeof(all[0]));
	fa_emulated_meet(0);
	return all;
}

void fa_emulated_meet_some(uint32_t mask)
{
	struct warp *warp = &warps[current / 32];
	const int lowest = __builtin_ctz(mask);
	const uint64_t generation = warp->some_generation[lowest];

	if (++warp->some_arrived[lowest] == (uint32_t)__builtin_popcount(mask)) {
		warp->some_arrived[lowest] = 0;
		warp->some_generation[lowest]++;
	}
	while (warp->some_generation[lowest] == generation)
		give_way();
}

bool fa_emulated_barrier(uint32_t id, uint32_t threads, bool value)
{
	struct barrier *barrier = &barriers[id];
	const uint64_t generation = barrier->generation;

	if (id >= 16)
		abort();
	barrier->any |= value;
	if (++barrier->arrived == threads) {
		barrier->arrived = 0;
		barrier->answer = barrier->any;
		barrier->any = false;
		barrier->generation++;
	}
	while (barrier->generation == generation)
		give_way();
	return barrier->answer;
}

uint32_t fa_emulated_block_threads(void)
{
	return n_threads;
}

/* ---- cp.async */

void fa_emulated_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t zeros)
{
	struct fibre *fibre = &fibres[current];

	if (fibre->n_copies == COPIES_MAX || to % (bytes + zeros) ||
	    to + bytes + zeros > FA_EMULATED_SHARED_MAX || (bytes && (uintptr_t)from % bytes))
		abort();
	/* Until it is waited for, nobody may read what stands there. */
	memset(shared_memory + to, 0xff, bytes + zeros);
	fibre->copies[fibre->n_copies++] = { to, bytes, zeros, from };
}

void fa_emulated_commit(void)
{
	struct fibre *fibre = &fibres[current];

	if (fibre->n_groups == GROUPS_MAX)
		abort();
	fibre->groups[fibre->n_groups++] = fibre->n_copies;
}

void fa_emulated_wait(uint32_t pending)
{
	struct fibre *fibre = &fibres[current];
	uint32_t n, done;

	if (fibre->n_groups <= pending)
		return;
	n = fibre->n_groups - pending;
	done = fibre->groups[n - 1];
	for (uint32_t i = 0; i < done; i++) {
		const struct copy *copy = &fibre->copies[i];

		if (copy->bytes)
			memcpy(shared_memory + copy->to, copy->from, copy->bytes);
		memset(shared_memory + copy->to + copy->bytes, 0, copy->zeros);
	}
	memmove(fibre->copies, fibre->copies + done,
	        (fibre->n_copies - done) * sizeof(*fibre->copies));
	fibre->n_copies -= done;
	for (uint32_t i = n; i < fibre->n_groups; i++)
		fibre->groups[i - n] = fibre->groups[i] - done;
	fibre->n_groups -= n;
}

/* ---- launches */

void fa_emulated_launch(uint32_t grid_x, uint32_t grid_y, uint32_t threads, uint32_t shared_bytes,
                        void (*run)(const void *args), const void *args,
                        uint64_t (*random)(uint64_t below))
{
	const uint64_t blocks = (uint64_t)grid_x * grid_y;
	uint64_t *order = (uint64_t *)malloc(blocks * sizeof(*order));

	if (threads > THREADS_MAX || threads % 32 || shared_bytes > FA_EMULATED_SHARED_MAX ||
	    !order)
		abort();
	run_thread = run;
	run_args = args;
	n_threads = threads;
	for (uint64_t i = 0; i < blocks; i++)
		order[i] = i;
	for (uint64_t i = blocks; i > 1; i--) {
		const uint64_t j = random(i), block = order[i - 1];

		order[i - 1] = order[j];
		order[j] = block;
	}
	for (uint64_t i = 0; i < blocks; i++) {
		memset(shared_memory, 0xff, sizeof(shared_memory));
		memset(warps, 0, sizeof(warps));
		memset(barriers, 0, sizeof(barriers));
		for (uint32_t thread = 0; thread < threads; thread++) {
			struct fibre *fibre = &fibres[thread];

			if (!fibre->stack) {
				fibre->stack = (char *)malloc(STACK_BYTES);
				fibre->copies = (struct copy *)malloc(COPIES_MAX *
				                                      sizeof(*fibre->copies));
			}
			fibre->started = fibre->ended = false;
			fibre->n_copies = fibre->n_groups = 0;
		}
		blockIdx = { (uint32_t)(order[i] % grid_x), (uint32_t)(order[i] / grid_x), 0 };
		run_block();
	}
	free(order);
}

/* ---- elements */

float fa_emulated_from_f16(uint16_t half)
{
	const uint32_t magnitude = half & 0x7fff, sign = (uint32_t)(half & 0x8000) << 16;

	if (magnitude >= 0x7c00)
		return __uint_as_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
	/* The same bits as an fp32 number differ by the exponents' bias alone. */
	return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f));
}

uint16_t fa_emulated_to_f16(float given)
{
	const uint16_t sign = signbit(given) ? 0x8000 : 0;
	double value = fabs((double)given);
	int exponent;
	uint32_t bits;

	if (isnan(value))
		return 0x7fff;
	if (isinf(value))
		return sign | 0x7c00;
	if (value == 0)
		return sign;
	frexp(value, &exponent);
	if (exponent < -13)
		return (uint16_t)(sign | (uint16_t)nearbyint(ldexp(value, 24)));
	bits = (uint32_t)((exponent + 13) << 10) + (uint32_t)nearbyint(ldexp(value, 11 - exponent));
	return (uint16_t)(sign | (bits > 0x7c00 ? 0x7c00 : bits));
}

uint16_t fa_emulated_to_bf16(float value)
{
	const uint32_t bits = __float_as_uint(value);

	if (isnan(value))
		return 0x7fff;
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
