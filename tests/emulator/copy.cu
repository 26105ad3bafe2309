/*
 * Emulates shared memory as threads and as the async proxy see it, copies to it, and mbarriers.
 * Compiled as C++. Copies by the proxy are visible to both. A thread's stores are visible to
 * threads at once, and to the proxy after the thread's fence; until then the proxy reads poison.
 * cp.async writes for threads only.
 */
#include "kernels/cuda/plan.h"
#include "tests/emulator/fibre.h"

#define MBARRIERS_MAX 64
#define FLIGHTS_MAX 2048 /* copies in flight */
#define COPIES_MAX 4096  /* a thread's cp.async copies that it has not waited for */
#define GROUPS_MAX 64
#define STORES_MAX 4096 /* a thread's stores that it has not fenced */

alignas(1024) char shared_memory[SHARED_MAX];
/* The name that sm80/forward_f32.h has for it. */
extern char shared_f32[SHARED_MAX] __attribute__((alias("shared_memory")));
static char async_memory[SHARED_MAX];

struct mbarrier {
	uint32_t address, count, pending; /* count 0: not initialised */
	int64_t bytes;
	uint64_t phase; /* completed phases */
};

/* A bulk copy in flight, or the TMA copy of a box. */
struct flight {
	uint32_t to, bytes;
	const void *from;
	struct mbarrier *barrier;
	const struct fa_cuda_map *map; /* NULL: a bulk copy */
	int32_t at[4];
};

struct copy {
	uint32_t to, bytes, zeros;
	const void *from;
};

struct store {
	uint32_t address, bytes;
	char value[16];
};

/* A thread's copies in order; groups are end indices into them. */
static struct queue {
	struct copy *copies;
	uint32_t n_copies, groups[GROUPS_MAX], n_groups;
	struct store *stores;
	uint32_t n_stores;
} queues[THREADS_MAX];

static struct mbarrier mbarriers[MBARRIERS_MAX];
static struct flight flights[FLIGHTS_MAX];
static uint32_t n_flights, rarity;

void copy_begin(void)
{
	memset(shared_memory, 0xff, sizeof(shared_memory));
	memset(async_memory, 0xff, sizeof(async_memory));
	memset(mbarriers, 0, sizeof(mbarriers));
	rarity = 1u << 2 * random_below(6);
	for (uint32_t i = 0; i < n_threads; i++) {
		struct queue *queue = &queues[i];

		if (!queue->copies) {
			queue->copies = (struct copy *)malloc(COPIES_MAX * sizeof(*queue->copies));
			queue->stores = (struct store *)malloc(STORES_MAX * sizeof(*queue->stores));
		}
		queue->n_copies = queue->n_groups = queue->n_stores = 0;
	}
}

char *fa_emulated_shared(uint32_t address, uint32_t bytes)
{
	if (address % bytes || address > SHARED_MAX - bytes)
		DIE("%u bytes of shared memory at %u", bytes, address);
	return shared_memory + address;
}

const char *shared_async(uint32_t address, uint32_t bytes)
{
	return async_memory + (fa_emulated_shared(address, bytes) - shared_memory);
}

void fa_emulated_store(uint32_t address, const void *value, uint32_t bytes)
{
	struct queue *queue = &queues[current];
	struct store *store;

	/* Without a proxy fence, kernels store for threads only: the proxy keeps reading poison. */
	if (queue->n_stores == STORES_MAX)
		queue->n_stores = 0;
	memcpy(fa_emulated_shared(address, bytes), value, bytes);
	memset(async_memory + address, 0xff, bytes);
	store = &queue->stores[queue->n_stores++];
	store->address = address;
	store->bytes = bytes;
	memcpy(store->value, value, bytes);
}

void fa_emulated_proxy_fence(void)
{
	struct queue *queue = &queues[current];

	for (uint32_t i = 0; i < queue->n_stores; i++) {
		const struct store *store = &queue->stores[i];

		memcpy(async_memory + store->address, store->value, store->bytes);
	}
	queue->n_stores = 0;
}

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
	happened();
}

void fa_emulated_mbarrier_init(uint32_t address, uint32_t count)
{
	if (address % 8 || address + 8 > SHARED_MAX || !count)
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

void fa_emulated_mbarrier_arrive(uint32_t address, uint32_t bytes)
{
	struct mbarrier *barrier = mbarrier_find(address);

	if (!barrier->pending)
		DIE("one arrival too many at the mbarrier at %u", address);
	barrier->bytes += bytes;
	barrier->pending--;
	mbarrier_end(barrier);
}

bool fa_emulated_mbarrier_test(uint32_t address, uint32_t parity)
{
	return (mbarrier_find(address)->phase & 1) != parity;
}

void fa_emulated_mbarrier_wait(uint32_t address, uint32_t parity)
{
	struct mbarrier *barrier = mbarrier_find(address);

	while ((barrier->phase & 1) == parity)
		wait_until_not(&barrier->phase, barrier->phase);
}

void copy_explain(const uint64_t *at)
{
	for (int i = 0; i < MBARRIERS_MAX; i++)
		if (at == &mbarriers[i].phase)
			fprintf(stderr,
			        " at the mbarrier at %u: %u arrivals and %lld bytes to come",
			        mbarriers[i].address, mbarriers[i].pending,
			        (long long)mbarriers[i].bytes);
}

static void flight_begin(const struct flight *flight)
{
	if (n_flights == FLIGHTS_MAX || flight->to > SHARED_MAX ||
	    flight->bytes > SHARED_MAX - flight->to)
		DIE("%u copies under way, one of %u to %u", n_flights, flight->bytes, flight->to);
	memset(shared_memory + flight->to, 0xff, flight->bytes);
	memset(async_memory + flight->to, 0xff, flight->bytes);
	flights[n_flights++] = *flight;
}

void fa_emulated_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
	const struct flight flight = { to, bytes, from, mbarrier_find(barrier) };

	must_have_awaited("a bulk copy");
	if (to % 16 || bytes % 16 || !bytes || (uintptr_t)from % 16)
		DIE("a bulk copy of %u to %u from %p", bytes, to, from);
	flight_begin(&flight);
}

void fa_emulated_box(uint32_t to, const void *described, uint32_t barrier, const int32_t (&at)[4])
{
	const struct fa_cuda_map *map = (const struct fa_cuda_map *)described;
	const struct flight flight = { to,   map->box[0] * map->box[1] * map->box[2] * 2,
		                       NULL, mbarrier_find(barrier),
		                       map,  { at[0], at[1], at[2], at[3] } };

	if (map->in_rows)
		must_have_awaited("a box");
	if (to % (map->in_rows ? 128 : 1024) || (!map->in_rows && map->box[0] != 64) ||
	    map->box[3] != 1)
		DIE("a box of %u to %u", flight.bytes, to);
	flight_begin(&flight);
}

static void box_run(const struct flight *flight)
{
	const struct fa_cuda_map *map = flight->map;

	for (uint32_t row = 0; row < map->box[1] * map->box[2]; row++)
		for (uint32_t column = 0; column < map->box[0]; column++) {
			const int64_t at[4] = { (int64_t)flight->at[0] + column,
				                (int64_t)flight->at[1] + row % map->box[1],
				                (int64_t)flight->at[2] + row / map->box[1],
				                flight->at[3] };
			int64_t offset = at[0] * 2;
			bool inside = true;

			for (int i = 0; i < 4; i++) {
				inside = inside && at[i] >= 0 && (uint64_t)at[i] < map->dims[i];
				if (i)
					offset += at[i] * (int64_t)map->strides[i - 1];
			}
			const uint32_t place = flight->to + (row * map->box[0] + column) * 2;
			char *const to = shared_memory + (map->in_rows ? place : swizzle(place));
			if (inside)
				memcpy(to, (const char *)map->data + offset, 2);
			else
				memset(to, 0, 2);
		}
}

bool copy_any(void)
{
	return n_flights > 0;
}

void copy_one(void)
{
	const uint32_t index = random_below(n_flights);
	const struct flight flight = flights[index];

	flights[index] = flights[--n_flights];
	if (flight.map)
		box_run(&flight);
	else
		memcpy(shared_memory + flight.to, flight.from, flight.bytes);
	memcpy(async_memory + flight.to, shared_memory + flight.to, flight.bytes);
	flight.barrier->bytes -= flight.bytes;
	mbarrier_end(flight.barrier);
}

void copy_seldom(void)
{
	if (n_flights > 0 && random_below(rarity) == 0)
		copy_one();
}

void fa_emulated_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t zeros)
{
	struct queue *queue = &queues[current];

	if (queue->n_copies == COPIES_MAX || (bytes && (uintptr_t)from % bytes))
		DIE("%u copies wait, one of %u from %p", queue->n_copies, bytes, from);
	/* The destination must not be read before the wait. */
	memset(fa_emulated_shared(to, bytes + zeros), 0xff, bytes + zeros);
	memset(async_memory + to, 0xff, bytes + zeros);
	queue->copies[queue->n_copies++] = { to, bytes, zeros, from };
}

void fa_emulated_commit(void)
{
	struct queue *queue = &queues[current];

	if (queue->n_groups == GROUPS_MAX)
		DIE("too many groups of copies");
	queue->groups[queue->n_groups++] = queue->n_copies;
}

void fa_emulated_wait(uint32_t pending)
{
	struct queue *queue = &queues[current];
	uint32_t n, done;

	if (queue->n_groups <= pending)
		return;
	n = queue->n_groups - pending;
	done = queue->groups[n - 1];
	for (uint32_t i = 0; i < done; i++) {
		const struct copy *copy = &queue->copies[i];

		if (copy->bytes)
			memcpy(shared_memory + copy->to, copy->from, copy->bytes);
		memset(shared_memory + copy->to + copy->bytes, 0, copy->zeros);
	}
	memmove(queue->copies, queue->copies + done,
	        (queue->n_copies - done) * sizeof(*queue->copies));
	queue->n_copies -= done;
	for (uint32_t i = n; i < queue->n_groups; i++)
		queue->groups[i - n] = queue->groups[i] - done;
	queue->n_groups -= n;
}
