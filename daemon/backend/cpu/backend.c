/*
 * The CPU backend: a pool of threads that runs the tiles of attention requests.
 *
 * A work of several paged requests is run as so many phases: when nobody runs a tile of
 * one any more, the last of its workers begins the next.
 *
 * Each queue has at most one active work, so that a work sees all that the one
 * before it wrote. Active works that have tiles left to hand out are `ready`, and
 * stand in their groups (daemon/base/fair_queue.h); a worker takes the one whose turn it is
 * and runs its tiles for a quantum without touching the lock: claiming the next
 * tile is one atomic addition. So a small request waits for a quantum or a tile of
 * the others, never for the whole of them. What a group uses is the time of the
 * workers that serve it, of which it is charged a quantum beforehand, so that not
 * all of them go to one group. Time in which nobody else wanted it costs nothing.
 *
 * A work ends when nobody runs it any more and either all its tiles were claimed
 * or it was cancelled; who finds that out, under the lock, finishes it and
 * activates the queue's next.
 *
 * Threads: everything that has no other owner is under device.mutex. A scratch is
 * its worker's. Workers without work sleep on device.work_available.
 */
#include "daemon/backend/cpu/backend.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/completion.h"
#include "common/cpu.h"
#include "common/memfd.h"
#include "daemon/base/fair_queue.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#define THREADS_MAX 1024
/* Enough for a queue to have its next works at hand while the engine wakes up. */
#define DEPTH 8
/* How long a worker stays with one work while others are ready. */
#define QUANTUM_NS (500 * FA_NS_PER_US)
/* How long the whole pool may make up for what a group left to others: while the one
 * work that it has ready is run to its end, for one. */
#define SLACK_NS (10 * FA_NS_PER_MS)
/* Sleepers that a worker wakes when it finds more than it can do. */
#define WAKE_FAN_OUT 2

enum work_state {
	QUEUED,   /* in its queue, behind others */
	ACTIVE,   /* its queue's active work */
	FINISHED, /* in device.done, or reaped */
};

/* What fa_device_work.backend holds. */
struct cpu_work {
	_Atomic int64_t next; /* next tile of the phase to claim; grows past n_tiles */
	int64_t n_tiles;      /* of the phase, once that has begun */
	struct fa_list ready_link;
	size_t scratch_bytes;
	uint32_t n_workers; /* that run its tiles now */
	uint32_t state;
	int32_t failure;     /* a worker could not go on */
	uint32_t phase;      /* of n_paged; else 0 */
	atomic_bool stopped; /* a tile was given up halfway */
};

_Static_assert(sizeof(struct cpu_work) <= sizeof(((struct fa_device_work *)0)->backend), "it fits");

struct fa_device_group {
	struct fa_fair_queue_group turns; /* cpu_work.ready_link */
};

struct fa_device_queue {
	struct fa_device_group *group;
	enum fa_fair_queue_class class;
	struct fa_list works; /* by fa_device_work.link; the first is active */
};

struct worker {
	struct fa_device *device;
	pthread_t thread;
	void *scratch;
	size_t scratch_bytes;
};

struct fa_device {
	struct fa_device_config config;
	const struct fa_cpu_isa *isa;

	pthread_mutex_t mutex;
	pthread_cond_t work_available;
	struct fa_fair_queue turns; /* in nanoseconds */
	_Atomic uint32_t n_ready;   /* works; written under the mutex, read by anyone */
	uint32_t n_sleeping;
	struct fa_list done; /* fa_device_work.link */
	bool stop;

	struct fa_cpu_pool pool; /* the loop thread's */

	unsigned int n_workers;
	struct worker workers[];
};

static struct cpu_work *cpu_work(struct fa_device_work *work)
{
	return (struct cpu_work *)work->backend;
}

static struct fa_device_work *first_work(struct fa_list *list)
{
	return fa_container_of(list->next, struct fa_device_work, link);
}

/* ---- under the mutex */

static void work_unready(struct fa_device *device, struct fa_device_work *work)
{
	struct cpu_work *cpu = cpu_work(work);

	if (fa_list_empty(&cpu->ready_link))
		return;
	fa_fair_queue_remove(&device->turns, &work->queue->group->turns, &cpu->ready_link);
	atomic_fetch_sub_explicit(&device->n_ready, 1, memory_order_relaxed);
}

static bool work_all_claimed(struct fa_device_work *work)
{
	struct cpu_work *cpu = cpu_work(work);

	return atomic_load_explicit(&cpu->next, memory_order_relaxed) >= cpu->n_tiles;
}

static bool work_last_phase(struct fa_device_work *work)
{
	return work->op != FA_DEVICE_PAGED || cpu_work(work)->phase + 1 >= work->n_paged;
}

/* Of its phase there is nothing left to hand out. */
static bool work_over(struct fa_device_work *work)
{
	return work_all_claimed(work) ||
	       atomic_load_explicit(&work->cancelled, memory_order_relaxed);
}

static void work_finish(struct fa_device *device, struct fa_device_work *work)
{
	struct cpu_work *cpu = cpu_work(work);

	work_unready(device, work);
	fa_list_remove(&work->link);
	cpu->state = FINISHED;
	work->finished_ns = fa_now_ns();
	if (work_all_claimed(work) && work_last_phase(work) &&
	    !atomic_load_explicit(&cpu->stopped, memory_order_relaxed))
		work->status = 0;
	else if (cpu->failure)
		work->status = fa_fail(&work->error, cpu->failure,
		                       "no memory for %zu bytes of scratch", cpu->scratch_bytes);
	else
		work->status = fa_fail(&work->error, -ECANCELED, "the work was cancelled");

	/* Announced before it can be reaped: who has reaped all will not be notified
	 * any more, and may take apart what would have been. */
	if (fa_list_empty(&device->done))
		device->config.notify(device->config.userdata);
	fa_list_append(&device->done, &work->link);
	/* Before anybody can take it. Release: who sees them sees what was computed. */
	for (int i = 0; i < FA_COMPLETION_EARLY && work->early && !work->status; i++)
		__atomic_store_n(&work->early[i], work->early_value, __ATOMIC_RELEASE);
}

static void work_ready(struct fa_device *device, struct fa_device_work *work)
{
	fa_fair_queue_add(&device->turns, &work->queue->group->turns, work->queue->class,
	                  &cpu_work(work)->ready_link);
	atomic_fetch_add_explicit(&device->n_ready, 1, memory_order_relaxed);
}

/* Begins the phase, or the next after it that has tiles, or the last. Nobody else has to
 * do with the work now. */
static void work_begin_phase(struct fa_device *device, struct fa_device_work *work)
{
	struct cpu_work *cpu = cpu_work(work);

	for (;;) {
		struct fa_paged_request *request = &work->paged[cpu->phase];

		cpu->n_tiles = fa_cpu_paged_tiles(device->isa, request);
		if (cpu->n_tiles || work_last_phase(work))
			break;
		++cpu->phase;
	}
	cpu->scratch_bytes = fa_cpu_paged_scratch_bytes(device->isa, &work->paged[cpu->phase]);
	if (cpu->n_tiles)
		fa_cpu_paged_begin(device->isa, &work->paged[cpu->phase], work->room);
	atomic_store_explicit(&cpu->next, 0, memory_order_relaxed);
}

/* Under the mutex, which is given up meanwhile, as a work's room may be that of the one
 * before it and is filled only now. It is in nobody's hands but counts as if a worker had it,
 * so that who cancels it leaves it to us. */
static void work_begin(struct fa_device *device, struct fa_device_work *work)
{
	struct cpu_work *cpu = cpu_work(work);

	if (work->op != FA_DEVICE_PAGED ||
	    atomic_load_explicit(&work->cancelled, memory_order_relaxed))
		return;
	cpu->n_workers++;
	pthread_mutex_unlock(&device->mutex);
	work_begin_phase(device, work);
	pthread_mutex_lock(&device->mutex);
	cpu->n_workers--;
}

/* Makes the first work of the queue active; those that have nothing to run
 * finish at once. The mutex is given up meanwhile. */
static void queue_activate(struct fa_device *device, struct fa_device_queue *queue)
{
	struct fa_device_work *work;
	struct cpu_work *cpu;

	while (!fa_list_empty(&queue->works)) {
		work = first_work(&queue->works);
		cpu = cpu_work(work);
		if (cpu->state == ACTIVE)
			return;
		cpu->state = ACTIVE;
		work_begin(device, work);
		if (!work_over(work)) {
			work_ready(device, work);
			return;
		}
		work_finish(device, work);
	}
}

/* The work to serve next, if any; its group has paid for a quantum. */
static struct fa_device_work *device_pick(struct fa_device *device)
{
	struct fa_device_work *work;
	struct cpu_work *cpu;

	while (!fa_fair_queue_empty(&device->turns)) {
		cpu = fa_container_of(fa_fair_queue_next(&device->turns), struct cpu_work,
		                      ready_link);
		work = fa_container_of(cpu, struct fa_device_work, backend);
		if (work_over(work)) {
			/* Others run its last tiles and finish it. */
			work_unready(device, work);
			continue;
		}
		fa_fair_queue_charge(&device->turns, &work->queue->group->turns, QUANTUM_NS);
		return work;
	}
	return NULL;
}

/* How many sleepers are worth waking for what the worker that took @cpu leaves:
 * few, as each of them asks again. */
static uint32_t device_to_wake(struct fa_device *device, struct cpu_work *cpu)
{
	int64_t rest = cpu->n_tiles - atomic_load_explicit(&cpu->next, memory_order_relaxed) - 1;
	uint32_t wake = device->n_sleeping < WAKE_FAN_OUT ? device->n_sleeping : WAKE_FAN_OUT;

	rest += device->n_ready - 1;
	return rest < wake ? (uint32_t)(rest > 0 ? rest : 0) : wake;
}

/* ---- phases */

/* Under the mutex, which is given up meanwhile, by the last of the work's workers. */
static void work_next_phase(struct fa_device *device, struct fa_device_work *work)
{
	struct cpu_work *cpu = cpu_work(work);

	if (atomic_load_explicit(&work->cancelled, memory_order_relaxed))
		return;
	work_unready(device, work);
	pthread_mutex_unlock(&device->mutex);
	++cpu->phase;
	work_begin_phase(device, work);
	pthread_mutex_lock(&device->mutex);
	if (!work_over(work))
		work_ready(device, work);
}

/* ---- workers */

static bool worker_tile(struct worker *worker, struct fa_device_work *work, int64_t tile)
{
	const struct fa_cpu_isa *isa = worker->device->isa;
	const bool *stop = (const bool *)&work->cancelled;

	if (work->op != FA_DEVICE_PAGED)
		return fa_cpu_attention_tile(isa, work->params, work->room, tile, worker->scratch,
		                             stop);
	return fa_cpu_paged_tile(isa, &work->paged[cpu_work(work)->phase], work->room, tile,
	                         worker->scratch, stop);
}

static int worker_reserve(struct worker *worker, size_t bytes)
{
	if (bytes <= worker->scratch_bytes)
		return 0;
	free(worker->scratch);
	worker->scratch_bytes = 0;
	bytes = (bytes + 63) & ~(size_t)63;
	worker->scratch = aligned_alloc(64, bytes);
	if (!worker->scratch)
		return -ENOMEM;
	worker->scratch_bytes = bytes;
	return 0;
}

/* Runs tiles until there are none, it was cancelled, or it is others' turn. Returns
 * how long others had to wait for it. */
static uint64_t worker_serve(struct worker *worker, struct fa_device_work *work)
{
	uint64_t begin_ns = fa_now_ns(), now_ns = begin_ns;
	struct fa_device *device = worker->device;
	struct cpu_work *cpu = cpu_work(work);
	int64_t tile;

	while (!atomic_load_explicit(&work->cancelled, memory_order_relaxed) &&
	       now_ns - begin_ns < QUANTUM_NS) {
		tile = atomic_fetch_add_explicit(&cpu->next, 1, memory_order_relaxed);
		if (tile >= cpu->n_tiles)
			break;
		if (!worker_tile(worker, work, tile))
			atomic_store_explicit(&cpu->stopped, true, memory_order_relaxed);

		now_ns = fa_now_ns();
		if (atomic_load_explicit(&device->n_ready, memory_order_relaxed) <= 1)
			begin_ns = now_ns;
	}
	return now_ns - begin_ns;
}

static void *worker_run(void *userdata)
{
	struct worker *worker = userdata;
	struct fa_device *device = worker->device;
	struct fa_device_work *work;
	struct fa_device_queue *queue;
	struct cpu_work *cpu;
	uint64_t used_ns;
	uint32_t wake;

	pthread_mutex_lock(&device->mutex);
	while (!device->stop) {
		work = device_pick(device);
		if (!work) {
			device->n_sleeping++;
			pthread_cond_wait(&device->work_available, &device->mutex);
			device->n_sleeping--;
			continue;
		}
		cpu = cpu_work(work);
		queue = work->queue;
		cpu->n_workers++;
		if (!work->started_ns)
			work->started_ns = fa_now_ns();
		wake = device_to_wake(device, cpu);
		pthread_mutex_unlock(&device->mutex);

		while (wake-- > 0)
			pthread_cond_signal(&device->work_available);
		used_ns = 0;
		if (worker_reserve(worker, cpu->scratch_bytes) == 0)
			used_ns = worker_serve(worker, work);

		pthread_mutex_lock(&device->mutex);
		fa_fair_queue_charge(&device->turns, &queue->group->turns,
		                     (int64_t)(used_ns - QUANTUM_NS));
		if (worker->scratch_bytes < cpu->scratch_bytes) {
			cpu->failure = -ENOMEM;
			atomic_store_explicit(&work->cancelled, true, memory_order_relaxed);
		}
		if (cpu->n_workers == 1 && work_over(work) && !work_last_phase(work))
			work_next_phase(device, work);
		if (--cpu->n_workers == 0 && work_over(work)) {
			work_finish(device, work);
			queue_activate(device, queue);
		}
	}
	pthread_mutex_unlock(&device->mutex);
	return NULL;
}

/* Plain scheduling and no signals, whatever the thread that asks has. */
static int worker_start(struct worker *worker)
{
	pthread_attr_t attributes;
	sigset_t all, old;
	int r;

	r = -pthread_attr_init(&attributes);
	if (r < 0)
		return r;
	pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(&attributes, SCHED_OTHER);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(&worker->thread, &attributes, worker_run, worker);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attributes);
	if (r == 0)
		(void)pthread_setname_np(worker->thread, "fad-cpu");
	return r;
}

/* ---- the backend table */

static struct fa_device *cpu_close(struct fa_device *device)
{
	if (!device)
		return NULL;
	pthread_mutex_lock(&device->mutex);
	device->stop = true;
	pthread_cond_broadcast(&device->work_available);
	pthread_mutex_unlock(&device->mutex);
	for (unsigned int i = 0; i < device->n_workers; i++) {
		pthread_join(device->workers[i].thread, NULL);
		free(device->workers[i].scratch);
	}
	fa_cpu_pool_close(&device->pool);
	pthread_cond_destroy(&device->work_available);
	pthread_mutex_destroy(&device->mutex);
	free(device);
	return NULL;
}

static int cpu_open(const struct fa_device_config *config, struct fa_error *error,
                    struct fa_device **ret_device)
{
	unsigned int n = config->threads ? config->threads : fa_cpu_count();
	const struct fa_cpu_isa *isa;
	struct fa_device *device;
	int r;

	if (n > THREADS_MAX)
		return fa_fail(error, -EINVAL, "%u threads are more than %d", n, THREADS_MAX);
	r = fa_cpu_isa_select(error ? error->text : NULL, error ? sizeof(error->text) : 0, &isa);
	if (r < 0)
		return r;
	device = calloc(1, sizeof(*device) + n * sizeof(device->workers[0]));
	if (!device)
		return fa_fail(error, -ENOMEM, "no memory for %u threads", n);
	device->config = *config;
	device->isa = isa;
	pthread_mutex_init(&device->mutex, NULL);
	pthread_cond_init(&device->work_available, NULL);
	device->turns.slack = n * SLACK_NS;
	fa_list_init(&device->done);
	for (; device->n_workers < n; device->n_workers++) {
		device->workers[device->n_workers].device = device;
		r = worker_start(&device->workers[device->n_workers]);
		if (r < 0) {
			fa_fail(error, r, "thread %u of %u cannot be started: %s",
			        device->n_workers + 1, n, strerrordesc_np(-r));
			cpu_close(device);
			return r;
		}
	}
	*ret_device = device;
	return 0;
}

static void describe_model(char *name, size_t size)
{
	char line[256], model[64] = "";
	struct utsname uts;
	FILE *file;

	file = fopen("/proc/cpuinfo", "re");
	while (file && !model[0] && fgets(line, sizeof(line), file))
		(void)sscanf(line, "model name : %63[^\n]", model);
	if (file)
		(void)fclose(file);
	if (!model[0] && uname(&uts) == 0)
		snprintf(model, sizeof(model), "%.63s", uts.machine);
	snprintf(name, size, "%s", model);
}

/* The same on each start, and not the machine's id itself, which is confidential. */
static void describe_uuid(uint64_t uuid[2])
{
	uint64_t hash = 0xcbf29ce484222325;
	char id[33] = "";
	FILE *file;

	uuid[0] = uuid[1] = 0;
	file = fopen("/etc/machine-id", "re");
	if (!file)
		return;
	if (fgets(id, sizeof(id), file) && id[0]) {
		for (int half = 0; half < 2; half++) {
			for (const char *c = id; *c; c++)
				hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
			uuid[half] = hash;
		}
	}
	(void)fclose(file);
}

static void cpu_describe(struct fa_device *device, struct fa_device_info *ret_info)
{
	struct fa_device_info info = {
		.backend = "cpu",
		.threads = device->n_workers,
		.depth = DEPTH,
	};
	const char *isa = fa_cpu_isa_name(device->isa);
	size_t used;

	/* The kernels' name matters more than the end of the model's. */
	describe_model(info.name, sizeof(info.name) - strlen(isa) - 3);
	used = strlen(info.name);
	snprintf(info.name + used, sizeof(info.name) - used, used ? " (%s)" : "%s", isa);
	snprintf(info.details, sizeof(info.details), "%u threads", device->n_workers);
	describe_uuid(info.uuid);
	*ret_info = info;
}

/* Clients' tensors do not belong in a core dump. */
static void *map_shared(int fd, uint64_t offset, uint64_t bytes, int protection)
{
	void *address;

	address = mmap(NULL, bytes, protection, MAP_SHARED, fd, (off_t)offset);
	if (address != MAP_FAILED)
		(void)madvise(address, bytes, MADV_DONTDUMP);
	return address;
}

static int cpu_memory_import_host(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
                                  bool read_only, struct fa_error *error,
                                  struct fa_device_memory *ret_memory)
{
	void *address;

	address = map_shared(fd, offset, bytes, PROT_READ | (read_only ? 0 : PROT_WRITE));
	if (address == MAP_FAILED)
		return fa_fail(error, -errno,
		               "%" PRIu64 " bytes at %" PRIu64
		               " of the memfd cannot be mapped %s: %m",
		               bytes, offset, read_only ? "for reading" : "for writing");
	*ret_memory = (struct fa_device_memory){
		.address = address,
		.bytes = bytes,
		.writable = !read_only,
	};
	return 0;
}

static int cpu_memory_new_arena(struct fa_device *device, uint64_t bytes, struct fa_error *error,
                                struct fa_device_memory *ret_memory, int *ret_fd,
                                uint64_t *ret_piece_bytes)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	int r;

	r = fa_memfd_new("fad-arena", bytes, true, &fd);
	if (r < 0)
		return fa_fail(error, r, "%" PRIu64 " bytes of memory cannot be made: %s", bytes,
		               strerrordesc_np(-r));
	r = cpu_memory_import_host(device, fd, 0, bytes, false, error, ret_memory);
	if (r < 0)
		return r;
	*ret_fd = fa_steal_fd(&fd);
	*ret_piece_bytes = 0;
	return 0;
}

static void cpu_memory_release(struct fa_device *device, struct fa_device_memory *const *memories,
                               size_t n)
{
	for (size_t i = 0; i < n; i++) {
		(void)munmap(memories[i]->address, memories[i]->bytes);
		*memories[i] = (struct fa_device_memory){ 0 };
	}
}

static const void *cpu_memory_host(struct fa_device *device, const struct fa_device_memory *memory)
{
	return memory->address;
}

static int cpu_check(struct fa_device *device, const struct fa_attention_params *params,
                     struct fa_error *error)
{
	return fa_attention_check(params, error ? error->text : NULL,
	                          error ? sizeof(error->text) : 0);
}

static int cpu_group_new(struct fa_device *device, struct fa_error *error,
                         struct fa_device_group **ret_group)
{
	struct fa_device_group *group;

	group = fa_new(struct fa_device_group);
	if (!group)
		return fa_fail(error, -ENOMEM, "no memory for a group of queues");
	fa_fair_queue_group_init(&group->turns);
	*ret_group = group;
	return 0;
}

static struct fa_device_group *cpu_group_free(struct fa_device *device,
                                              struct fa_device_group *group)
{
	free(group);
	return NULL;
}

static int cpu_queue_new(struct fa_device *device, struct fa_device_group *group, int priority,
                         struct fa_error *error, struct fa_device_queue **ret_queue)
{
	struct fa_device_queue *queue;

	queue = fa_new(struct fa_device_queue);
	if (!queue)
		return fa_fail(error, -ENOMEM, "no memory for a queue");
	queue->group = group;
	queue->class = fa_fair_queue_class(priority);
	fa_list_init(&queue->works);
	*ret_queue = queue;
	return 0;
}

static struct fa_device_queue *cpu_queue_free(struct fa_device *device,
                                              struct fa_device_queue *queue)
{
	free(queue);
	return NULL;
}

static int cpu_paged_cache_check(struct fa_device *device, const struct fa_paged_cache *cache,
                                 struct fa_error *error)
{
	return fa_paged_check_cache(cache, error->text, sizeof(error->text));
}

static int cpu_paged_prepare(struct fa_device *device, struct fa_device_work *work,
                             struct fa_error *error)
{
	return fa_cpu_room_new(device->isa, work, error);
}

static int cpu_attention_prepare(struct fa_device *device, struct fa_device_work *work,
                                 struct fa_error *error)
{
	return fa_cpu_room_new_attention(device->isa, work, error);
}

static void cpu_release(struct fa_device *device, struct fa_device_work *work)
{
	fa_cpu_room_free(work);
}

static int cpu_pool_open(struct fa_device *device, uint64_t chunk_bytes, uint32_t max_chunks,
                         struct fa_error *error, void **ret_base)
{
	return fa_cpu_pool_open(&device->pool, chunk_bytes, max_chunks, error, ret_base);
}

static void cpu_pool_close(struct fa_device *device)
{
	fa_cpu_pool_close(&device->pool);
}

static int cpu_pool_chunk_add(struct fa_device *device, uint32_t chunk, struct fa_error *error,
                              bool *ret_zeroed, int *ret_fd)
{
	int r;

	r = fa_cpu_pool_chunk_add(&device->pool, chunk, error, ret_fd);
	if (r == 0)
		*ret_zeroed = true;
	return r;
}

static int cpu_pool_chunk_adopt(struct fa_device *device, uint32_t chunk, int fd,
                                struct fa_error *error)
{
	return fa_cpu_pool_chunk_adopt(&device->pool, chunk, fd, error);
}

static void cpu_pool_chunk_remove(struct fa_device *device, uint32_t chunk)
{
	fa_cpu_pool_chunk_remove(&device->pool, chunk);
}

static void cpu_launch(struct fa_device *device, struct fa_device_queue *queue,
                       struct fa_device_work *work)
{
	struct cpu_work *cpu = cpu_work(work);
	bool wake;

	work->queue = queue;
	work->status = 0;
	work->started_ns = work->finished_ns = 0;
	atomic_store_explicit(&work->cancelled, false, memory_order_relaxed);
	*cpu = (struct cpu_work){ .state = QUEUED };
	fa_list_init(&cpu->ready_link);
	if (work->op == FA_DEVICE_PAGED) {
		cpu->n_tiles = INT64_MAX; /* until it begins */
	} else {
		cpu->n_tiles = fa_cpu_attention_tiles(device->isa, work->params);
		cpu->scratch_bytes = fa_cpu_attention_scratch_bytes(device->isa, work->params);
		if (work->room)
			fa_cpu_attention_begin(device->isa, work->params, work->room);
	}

	pthread_mutex_lock(&device->mutex);
	fa_list_append(&queue->works, &work->link);
	queue_activate(device, queue);
	wake = device->n_sleeping > 0 && !fa_list_empty(&cpu->ready_link);
	pthread_mutex_unlock(&device->mutex);
	/* One: it wakes others if there is work for them. */
	if (wake)
		pthread_cond_signal(&device->work_available);
}

static void cpu_cancel(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_device_queue *queue = work->queue;
	struct cpu_work *cpu = cpu_work(work);
	bool wake;

	pthread_mutex_lock(&device->mutex);
	if (cpu->state != FINISHED) {
		atomic_store_explicit(&work->cancelled, true, memory_order_relaxed);
		/* Those who run it finish it otherwise. */
		if (cpu->n_workers == 0)
			work_finish(device, work);
		else
			work_unready(device, work);
		queue_activate(device, queue);
	}
	/* Whoever was woken for this one may have found nothing before the next was ready. */
	wake = device->n_sleeping > 0 && device->n_ready > 0;
	pthread_mutex_unlock(&device->mutex);
	if (wake)
		pthread_cond_signal(&device->work_available);
}

static void cpu_reap(struct fa_device *device, struct fa_list *done)
{
	pthread_mutex_lock(&device->mutex);
	fa_list_splice(done, &device->done);
	pthread_mutex_unlock(&device->mutex);
}

const struct fa_device_ops fa_device_cpu = {
	.name = "cpu",
	.open = cpu_open,
	.close = cpu_close,
	.describe = cpu_describe,
	.memory_import_host = cpu_memory_import_host,
	.memory_new_arena = cpu_memory_new_arena,
	.memory_release = cpu_memory_release,
	.memory_host = cpu_memory_host,
	.pool_open = cpu_pool_open,
	.pool_close = cpu_pool_close,
	.pool_chunk_add = cpu_pool_chunk_add,
	.pool_chunk_adopt = cpu_pool_chunk_adopt,
	.pool_chunk_remove = cpu_pool_chunk_remove,
	.paged_cache_check = cpu_paged_cache_check,
	.paged_prepare = cpu_paged_prepare,
	.paged_release = cpu_release,
	.attention_prepare = cpu_attention_prepare,
	.attention_release = cpu_release,
	.check = cpu_check,
	.group_new = cpu_group_new,
	.group_free = cpu_group_free,
	.queue_new = cpu_queue_new,
	.queue_free = cpu_queue_free,
	.launch = cpu_launch,
	.cancel = cpu_cancel,
	.reap = cpu_reap,
};
