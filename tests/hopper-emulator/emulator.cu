/*
 * See hopper.h. Compiled as C++ by the host's compiler. A block's threads are fibres of one
 * thread. One block runs at a time, all of its warps until each has ended.
 */
#include "kernels/cuda/plan.h"
#include "kernels/cuda/ptx/mma.h"
#include "tests/hopper-emulator/launch.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#define THREADS_MAX 640
#define WARPS_MAX (THREADS_MAX / 32)
#define STACK_BYTES (128 << 10)
#define MBARRIERS_MAX 64
#define LOADS_MAX 256
#define PRODUCTS_MAX 64 /* of a thread, not yet waited for */
#define STORES_MAX 4096 /* of a thread, not yet fenced */
#define NAMED_MAX 16
#define ACCUMULATORS_MAX 128

struct fa_emulated_index threadIdx, blockIdx, gridDim;
alignas(1024) char shared_memory[FA_EMULATED_SHARED_MAX];

#define DIE(...)                                                                                   \
	do {                                                                                       \
		fprintf(stderr, "block %u thread %u: ", blockIdx.x, current);                      \
		fprintf(stderr, __VA_ARGS__);                                                      \
		fprintf(stderr, "\n");                                                             \
		abort();                                                                           \
	} while (0)

/* A thread's accumulators that products are under way to: what they are, while NaN stands
 * in their place. */
struct accumulators {
	float *d; /* NULL: none */
	float values[ACCUMULATORS_MAX];
	int n, n_products;
};

struct product {
	struct accumulators *accumulators;
	const uint32_t *a_registers[4]; /* of the four threads that share rows; or NULL */
	uint64_t a, b;
	int n;
	bool bf16, add;
};

struct store {
	uint32_t address;
	uint4 value;
};

struct fibre {
	ucontext_t context;
	jmp_buf place;
	bool started;
	char *stack;
	struct accumulators accumulators[2];
	struct product products[PRODUCTS_MAX];
	uint32_t n_products, n_run;              /* the first of them have happened */
	uint32_t groups[PRODUCTS_MAX], n_groups; /* where each ends */
	struct store *stores;
	uint32_t n_stores;
};

struct warp {
	uint32_t arrived;
	uint64_t generation;
	uint64_t values[4][32];
	uint32_t rarity; /* it is passed over so often */
	uint64_t stuck;  /* none of it could go on after so many events */
};

struct named {
	uint32_t arrived, threads;
	uint64_t generation;
};

struct mbarrier {
	uint32_t address; /* 0: none */
	uint32_t count, pending;
	int64_t bytes;
	uint64_t phase; /* how many have ended */
};

struct load {
	const struct fa_cuda_map *map;
	uint32_t shared;
	struct mbarrier *barrier;
	int32_t at[4];
};

/* What keeps a thread from going on: that *at is value. Apart, as it is looked at most. */
static struct wait {
	const uint64_t *at; /* NULL: nothing */
	uint64_t value;
	bool ended;
} waits[THREADS_MAX];

static struct fibre fibres[THREADS_MAX];
static struct warp warps[WARPS_MAX];
static struct named named[NAMED_MAX];
static struct mbarrier mbarriers[MBARRIERS_MAX];
static struct load loads[LOADS_MAX];
static uint32_t n_threads, n_loads, current;
static uint32_t load_rarity; /* copies take so long */
static bool eager;           /* products happen when they are committed, not when waited for */
static uint64_t n_redone;
static uint64_t n_events; /* that somebody may have waited for */
static jmp_buf scheduler;
static void (*run_thread)(const void *args);
static const void *run_args;
static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state * 0x2545f4914f6cdd1dull >> 40) % n;
}

/* ---- fibres */

static void fibre_main(void)
{
	run_thread(run_args);
	if (fibres[current].n_products || fibres[current].n_stores)
		DIE("ends with %u products and %u stores under way", fibres[current].n_products,
		    fibres[current].n_stores);
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

/* Gives way to the scheduler, until *@at is no longer @value. */
static void wait_until_not(const uint64_t *at, uint64_t value)
{
	while (*at == value) {
		waits[current].at = at;
		waits[current].value = value;
		if (!_setjmp(fibres[current].place))
			_longjmp(scheduler, 1);
	}
	waits[current].at = NULL;
}

static bool is_ready(uint32_t index)
{
	const struct wait *wait = &waits[index];

	return !wait->ended && (!wait->at || *wait->at != wait->value);
}

static bool is_warp_ready(uint32_t index)
{
	struct warp *warp = &warps[index];

	if (warp->stuck == n_events)
		return false;
	for (uint32_t lane = 0; lane < 32; lane++)
		if (is_ready(index * 32 + lane))
			return true;
	warp->stuck = n_events;
	return false;
}

static void load_run(uint32_t index);

static void die_waiting(void)
{
	for (uint32_t i = 0; i < n_threads; i++)
		if (!waits[i].ended && i % 32 == 0) {
			const uint64_t *at = waits[i].at;

			fprintf(stderr, "thread %u waits", i);
			for (int b = 0; b < NAMED_MAX; b++)
				if (at == &named[b].generation)
					fprintf(stderr, " at barrier %d, %u of %u there", b,
					        named[b].arrived, named[b].threads);
			for (int b = 0; b < MBARRIERS_MAX; b++)
				if (at == &mbarriers[b].phase)
					fprintf(stderr,
					        " at the mbarrier at %u: %u arrivals and %lld "
					        "bytes to come",
					        mbarriers[b].address, mbarriers[b].pending,
					        (long long)mbarriers[b].bytes);
			fprintf(stderr, "\n");
		}
	DIE("everybody waits");
}

/* Picks a warp that can go on, or lets a copy happen. */
static void run_block(void)
{
	/* Survive longjmp. */
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
		if (n_loads > 0 && random_below(load_rarity) == 0)
			load_run(random_below(n_loads));
		warp = random_below(n_threads / 32);
		if (random_below(warps[warp].rarity) != 0)
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
		if (n_loads > 0) {
			load_run(random_below(n_loads));
			continue;
		}
		for (uint32_t i = 0; i < n_threads; i++)
			if (!waits[i].ended)
				die_waiting();
		return;
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
		n_events++;
	}
	wait_until_not(&warp->generation, generation);
	return warp->values[generation % 4];
}

/* Kernels here ask all lanes of a warp or none. */
void fa_emulated_meet_some(uint32_t)
{
	DIE("some lanes of a warp meet");
}

static struct named *named_arrive(uint32_t id, uint32_t threads)
{
	struct named *barrier = &named[id];

	if (id >= NAMED_MAX || threads % 32 || threads > n_threads)
		DIE("barrier %u of %u threads", id, threads);
	if (barrier->arrived && barrier->threads != threads)
		DIE("barrier %u is of %u threads and of %u", id, barrier->threads, threads);
	barrier->threads = threads;
	if (++barrier->arrived == threads) {
		barrier->arrived = 0;
		barrier->generation++;
		n_events++;
	}
	return barrier;
}

bool fa_emulated_barrier(uint32_t id, uint32_t threads, bool)
{
	const uint64_t generation = named[id % NAMED_MAX].generation;

	wait_until_not(&named_arrive(id, threads)->generation, generation);
	return false;
}

void fa_hopper_arrive(uint32_t id, uint32_t threads)
{
	named_arrive(id, threads);
}

uint32_t fa_emulated_block_threads(void)
{
	return n_threads;
}

/* ---- mbarriers */

static struct mbarrier *mbarrier_find(uint32_t address)
{
	for (int i = 0; i < MBARRIERS_MAX; i++)
		if (mbarriers[i].count && mbarriers[i].address == address)
			return &mbarriers[i];
	DIE("no mbarrier at %u", address);
}

static void mbarrier_end(struct mbarrier *barrier)
{
	if (barrier->pending || barrier->bytes)
		return;
	barrier->pending = barrier->count;
	barrier->phase++;
	n_events++;
}

void fa_hopper_mbarrier_init(uint32_t address, uint32_t count)
{
	if (address % 8 || address + 8 > FA_EMULATED_SHARED_MAX || !count)
		DIE("an mbarrier at %u of %u", address, count);
	for (int i = 0; i < MBARRIERS_MAX; i++)
		if (!mbarriers[i].count) {
			mbarriers[i] = { address, count, count, 0, 0 };
			return;
		} else if (mbarriers[i].address == address) {
			DIE("a second mbarrier at %u", address);
		}
	DIE("too many mbarriers");
}

void fa_hopper_mbarrier_arrive(uint32_t address, uint32_t bytes)
{
	struct mbarrier *barrier = mbarrier_find(address);

	if (!barrier->pending)
		DIE("one arrival too many at the mbarrier at %u", address);
	barrier->bytes += bytes;
	barrier->pending--;
	mbarrier_end(barrier);
}

bool fa_hopper_mbarrier_test(uint32_t address, uint32_t parity)
{
	return (mbarrier_find(address)->phase & 1) != parity;
}

void fa_hopper_mbarrier_wait(uint32_t address, uint32_t parity)
{
	struct mbarrier *barrier = mbarrier_find(address);

	while ((barrier->phase & 1) == parity)
		wait_until_not(&barrier->phase, barrier->phase);
}

/* ---- copies */

/* Swizzled as for boxes of 128 bytes: bits 4 to 6 of an address by bits 7 to 9. */
static uint32_t swizzle(uint32_t address)
{
	return address ^ (address >> 7 & 7) << 4;
}

static char *shared_at(uint32_t address, uint32_t bytes)
{
	if (address % bytes || address + bytes > FA_EMULATED_SHARED_MAX)
		DIE("%u bytes of shared memory at %u", bytes, address);
	return shared_memory + address;
}

void fa_hopper_load(uint32_t shared, const void *map, uint32_t barrier, const int32_t (&at)[4])
{
	struct load *load = &loads[n_loads++];
	uint32_t bytes;

	if (n_loads == LOADS_MAX || shared % 1024)
		DIE("%u copies under way, to %u", n_loads, shared);
	*load = { (const struct fa_cuda_map *)map,
		  shared,
		  mbarrier_find(barrier),
		  { at[0], at[1], at[2], at[3] } };
	bytes = load->map->box[0] * load->map->box[1] * 2;
	if (load->map->box[0] != 64 || load->map->box[2] != 1 || load->map->box[3] != 1 ||
	    shared + bytes > FA_EMULATED_SHARED_MAX)
		DIE("a box of %u to %u", bytes, shared);
	memset(shared_memory + shared, 0xff, bytes);
}

static void load_run(uint32_t index)
{
	const struct load load = loads[index];
	const struct fa_cuda_map *map = load.map;
	const uint32_t rows = map->box[1];

	loads[index] = loads[--n_loads];
	for (uint32_t row = 0; row < rows; row++)
		for (uint32_t column = 0; column < 64; column++) {
			const int64_t at[4] = { (int64_t)load.at[0] + column,
				                (int64_t)load.at[1] + row, load.at[2], load.at[3] };
			int64_t offset = at[0] * 2;
			bool inside = true;

			for (int i = 0; i < 4; i++) {
				inside = inside && at[i] >= 0 && (uint64_t)at[i] < map->dims[i];
				if (i)
					offset += at[i] * (int64_t)map->strides[i - 1];
			}
			char *const to = shared_memory +
			                 swizzle(load.shared + row * 128 + column * 2);
			if (inside)
				memcpy(to, (const char *)map->data + offset, 2);
			else
				memset(to, 0, 2);
		}
	load.barrier->bytes -= rows * 128;
	mbarrier_end(load.barrier);
}

/* ---- stores */

void fa_hopper_store(uint32_t address, uint4 value)
{
	struct fibre *fibre = &fibres[current];

	shared_at(address, 16);
	if (fibre->n_stores == STORES_MAX)
		DIE("too many stores");
	if (!fibre->stores)
		fibre->stores = (struct store *)malloc(STORES_MAX * sizeof(*fibre->stores));
	fibre->stores[fibre->n_stores++] = { address, value };
}

void fa_hopper_fence(void)
{
	struct fibre *fibre = &fibres[current];

	for (uint32_t i = 0; i < fibre->n_stores; i++)
		memcpy(shared_memory + fibre->stores[i].address, &fibre->stores[i].value, 16);
	fibre->n_stores = 0;
}

/* ---- products */

/* All lanes come here together, and four warps sooner or later. */
void fa_hopper_product(float *d, int n, bool bf16, uint64_t a, const uint32_t *a_registers,
                       uint64_t b, bool add)
{
	const uint64_t *all = fa_emulated_meet((uint64_t)(uintptr_t)a_registers);
	struct fibre *fibre = &fibres[current];
	struct product *product = &fibre->products[fibre->n_products++];
	struct accumulators *mine = NULL;

	if (fibre->n_products == PRODUCTS_MAX || n / 2 > ACCUMULATORS_MAX)
		DIE("too many products");
	for (int i = 0; i < 2; i++)
		if (fibre->accumulators[i].d == d)
			mine = &fibre->accumulators[i];
	for (int i = 0; i < 2 && !mine; i++)
		if (!fibre->accumulators[i].d) {
			mine = &fibre->accumulators[i];
			mine->d = d;
			mine->n = n / 2;
			mine->n_products = 0;
			memcpy(mine->values, d, (size_t)n / 2 * sizeof(float));
			memset(d, 0xff, (size_t)n / 2 * sizeof(float));
		}
	if (!mine || mine->n != n / 2)
		DIE("products to too many accumulators");
	mine->n_products++;
	product->accumulators = mine;
	for (int i = 0; i < 4; i++)
		product->a_registers[i] =
			(const uint32_t *)(uintptr_t)all[current % 32 / 4 * 4 + i];
	product->a = a;
	product->b = b;
	product->n = n;
	product->bf16 = bf16;
	product->add = add;
}

static float f16_table[1 << 16];

static float element(uint16_t bits, bool bf16)
{
	return bf16 ? __uint_as_float((uint32_t)bits << 16) : f16_table[bits];
}

/* A descriptor: rows of 128 bytes, swizzled. */
struct operand {
	uint32_t start, leading, stride; /* bytes to the next 64 elements, and 8 rows */

	operand(uint64_t bits)
	    : start((uint32_t)(bits & 0x3fff) << 4), leading((uint32_t)(bits >> 16 & 0x3fff) << 4),
	      stride((uint32_t)(bits >> 32 & 0x3fff) << 4)
	{
		if (bits >> 62 != 1)
			DIE("an operand that is not swizzled by 128 bytes");
	}

	/* Elements of row @row from @column on: @n of them, 2 or 8, side by side. */
	void get(uint32_t row, uint32_t column, uint32_t n, bool bf16, float *ret) const
	{
		const char *const at = shared_at(swizzle(start + column / 64 * leading +
		                                         row / 8 * stride + row % 8 * 128 +
		                                         column % 64 * 2),
		                                 2 * n);

		for (uint32_t i = 0; i < n; i++) {
			uint16_t bits;

			memcpy(&bits, at + 2 * i, 2);
			ret[i] = element(bits, bf16);
		}
	}
};

/* This thread's part: rows g and g + 8 of its warp's, two columns of eight. */
static void product_run(const struct product *product)
{
	const uint32_t thread = current % 128, g = thread % 32 / 4, t = thread % 4;
	const bool from_registers = product->a_registers[0] != NULL, bf16 = product->bf16;
	struct accumulators *mine = product->accumulators;
	const struct operand operand_b(product->b);
	float a[2][16];

	if (from_registers) {
		for (uint32_t r = 0; r < 2; r++)
			for (uint32_t k = 0; k < 16; k++)
				a[r][k] = element(
					(uint16_t)(product->a_registers[k % 8 / 2][k / 8 * 2 + r] >>
				                   k % 2 * 16),
					bf16);
	} else {
		const struct operand operand_a(product->a);

		for (uint32_t r = 0; r < 2; r++)
			for (uint32_t k = 0; k < 16; k += 8)
				operand_a.get(thread / 32 * 16 + r * 8 + g, k, 8, bf16, &a[r][k]);
	}
	for (int i = 0; i < product->n / 2; i += 4) {
		const uint32_t column = (uint32_t)i * 2 + 2 * t;
		float b[16][2], *const values = &mine->values[i];

		if (from_registers) {
			for (uint32_t k = 0; k < 16; k++)
				operand_b.get(k, column, 2, bf16, b[k]);
		} else {
			for (uint32_t e = 0; e < 2; e++) {
				float row[16];

				operand_b.get(column + e, 0, 8, bf16, row);
				operand_b.get(column + e, 8, 8, bf16, row + 8);
				for (uint32_t k = 0; k < 16; k++)
					b[k][e] = row[k];
			}
		}
		for (int d = 0; d < 4; d++) {
			float sum = product->add ? values[d] : 0;

			/* Products of two elements are exact. */
			for (uint32_t k = 0; k < 16; k++)
				sum += a[d / 2][k] * b[k][d % 2];
			values[d] = sum;
		}
	}
}

/* It has been waited for. */
static void product_show(const struct product *product)
{
	struct accumulators *mine = product->accumulators;

	if (--mine->n_products == 0) {
		memcpy(mine->d, mine->values, (size_t)mine->n * sizeof(float));
		mine->d = NULL;
	}
}

/* Runs the first @done of this thread's products. A warp's registers are its own, but its
 * lanes' are one another's here: they do it together. */
static void products_run(uint32_t done)
{
	struct fibre *fibre = &fibres[current];

	fa_emulated_meet(0);
	for (uint32_t i = fibre->n_run; i < done; i++)
		product_run(&fibre->products[i]);
	if (done > fibre->n_run)
		fibre->n_run = done;
	fa_emulated_meet(0);
}

void fa_hopper_commit(void)
{
	struct fibre *fibre = &fibres[current];

	fibre->groups[fibre->n_groups++] = fibre->n_products;
	if (eager)
		products_run(fibre->n_products);
}

void fa_hopper_wait(uint32_t pending)
{
	struct fibre *fibre = &fibres[current];
	uint32_t n, done;

	if (fibre->n_groups <= pending)
		return;
	n = fibre->n_groups - pending;
	done = fibre->groups[n - 1];
	products_run(done);
	for (uint32_t i = 0; i < done; i++)
		product_show(&fibre->products[i]);
	memmove(fibre->products, fibre->products + done,
	        (fibre->n_products - done) * sizeof(*fibre->products));
	fibre->n_products -= done;
	fibre->n_run -= done;
	for (uint32_t i = n; i < fibre->n_groups; i++)
		fibre->groups[i - n] = fibre->groups[i] - done;
	fibre->n_groups -= n;
}

void fa_hopper_redone(void)
{
	n_redone++;
}

uint64_t fa_hopper_take_redone(void)
{
	const uint64_t n = n_redone;

	n_redone = 0;
	return n;
}

/* ---- launches */

void fa_hopper_seed(uint64_t seed)
{
	random_state = seed * 2 + 1;
	for (uint32_t i = 0; i < 1 << 16; i++)
		f16_table[i] = fa_emulated_from_f16((uint16_t)i);
}

void fa_hopper_launch(uint32_t grid, uint32_t threads, uint32_t shared_bytes,
                      void (*run)(const void *args), const void *args)
{
	if (threads > THREADS_MAX || threads % 128 || shared_bytes > FA_EMULATED_SHARED_MAX)
		abort();
	run_thread = run;
	run_args = args;
	n_threads = threads;
	gridDim = { grid, 1, 1 };
	for (uint32_t block = 0; block < grid; block++) {
		blockIdx = { block, 0, 0 };
		memset(shared_memory, 0xff, sizeof(shared_memory));
		memset(warps, 0, sizeof(warps));
		memset(named, 0, sizeof(named));
		memset(mbarriers, 0, sizeof(mbarriers));
		eager = random_below(2);
		load_rarity = 4u << 3 * random_below(4);
		for (uint32_t i = 0; i < threads / 32; i++)
			warps[i].rarity = random_below(4) ? 1 : 1 + random_below(60);
		for (uint32_t i = 0; i < threads; i++) {
			struct fibre *fibre = &fibres[i];

			if (!fibre->stack)
				fibre->stack = (char *)malloc(STACK_BYTES);
			fibre->started = false;
			waits[i] = { NULL, 0, false };
			fibre->n_groups = fibre->n_run = 0;
		}
		n_events++;
		run_block();
		if (n_loads)
			DIE("ends with %u copies under way", n_loads);
	}
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

uint16_t fa_emulated_to_f16(float value)
{
	const uint16_t sign = signbit(value) ? 0x8000 : 0;
	const float magnitude = fabsf(value);
	uint32_t bits;

	if (isnan(value))
		return 0x7fff;
	if (magnitude >= 65520)
		return sign | 0x7c00;
	/* Steps of 2^-24 below 2^-14. */
	if (magnitude < 0x1p-14f)
		return (uint16_t)(sign | (uint16_t)nearbyintf(magnitude * 0x1p24f));
	bits = __float_as_uint(magnitude * 0x1p-112f);
	return (uint16_t)(sign | (bits + 0xfff + (bits >> 13 & 1)) >> 13);
}

uint16_t fa_emulated_to_bf16(float value)
{
	const uint32_t bits = __float_as_uint(value);

	if (isnan(value))
		return 0x7fff;
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
