/* Workers claim tiles by an atomic addition, and take the mutex once a quantum: a small request
 * waits for a quantum or a tile. */
#include "daemon/backend/cpu/worker.h"

#include "common/clock.h"
#include "daemon/backend/cpu/queue.h"
#include "daemon/base/fault_guard.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void copy_tile(const struct fa_device_work *work, const struct fa_device_copy *copy)
{
	if (work->to_pool)
		memcpy(copy->pool, copy->data, copy->bytes);
	else
		memcpy(copy->data, copy->pool, copy->bytes);
}

static bool run_tile(struct fa_cpu_worker *worker, struct fa_device_work *work, int64_t tile)
{
	const struct fa_cpu_isa *isa = worker->device->isa;
	const bool *stop = (const bool *)&work->cancelled;

	if (work->op == FA_DEVICE_COPY) {
		copy_tile(work, &work->copies[tile]);
		return true;
	}
	if (work->op != FA_DEVICE_PAGED)
		return fa_cpu_attention_tile(isa, work->params, work->prepared, tile,
		                             worker->scratch, stop);
	return fa_cpu_paged_tile(isa, &work->paged[fa_cpu_work(work)->phase], work->prepared, tile,
	                         worker->scratch, stop);
}

static int reserve_scratch(struct fa_cpu_worker *worker, size_t bytes)
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

struct turn {
	struct fa_cpu_worker *worker;
	struct fa_device_work *work;
	uint64_t used_ns; /* while other works waited */
};

static void run_tiles(void *userdata)
{
	uint64_t begin_ns = fa_now_ns(), now_ns = begin_ns;
	struct turn *turn = userdata;
	struct fa_device_work *work = turn->work;
	struct fa_device *device = turn->worker->device;
	struct fa_cpu_work *cpu = fa_cpu_work(work);
	int64_t tile;

	while (!atomic_load_explicit(&work->cancelled, memory_order_relaxed) &&
	       now_ns - begin_ns < FA_CPU_QUANTUM_NS) {
		tile = atomic_fetch_add_explicit(&cpu->next, 1, memory_order_relaxed);
		if (tile >= cpu->n_tiles)
			break;
		if (!run_tile(turn->worker, work, tile))
			atomic_store_explicit(&cpu->stopped, true, memory_order_relaxed);

		now_ns = fa_now_ns();
		if (atomic_load_explicit(&device->n_ready, memory_order_relaxed) <= 1)
			begin_ns = now_ns;
	}
	turn->used_ns = now_ns - begin_ns;
}

static void *worker_run(void *userdata)
{
	struct fa_cpu_worker *worker = userdata;
	struct turn turn;
	struct fa_device *device = worker->device;
	struct fa_device_work *work;
	uint32_t wake;
	int r;

	pthread_mutex_lock(&device->mutex);
	while (!device->stop) {
		work = fa_cpu_queue_pick(device);
		if (!work) {
			device->n_sleeping++;
			pthread_cond_wait(&device->work_available, &device->mutex);
			device->n_sleeping--;
			continue;
		}
		wake = fa_cpu_queue_serve_begin(device, work);
		pthread_mutex_unlock(&device->mutex);

		while (wake-- > 0)
			pthread_cond_signal(&device->work_available);
		r = reserve_scratch(worker, fa_cpu_work(work)->scratch_bytes);
		turn = (struct turn){ .worker = worker, .work = work };
		if (r == 0 && !fa_fault_guard_run(run_tiles, &turn))
			r = -EFAULT;

		pthread_mutex_lock(&device->mutex);
		fa_cpu_queue_serve_end(device, work, turn.used_ns, r);
	}
	pthread_mutex_unlock(&device->mutex);
	return NULL;
}

int fa_cpu_worker_start(struct fa_cpu_worker *worker)
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
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = -pthread_create(&worker->thread, &attributes, worker_run, worker);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attributes);
	if (r == 0)
		(void)pthread_setname_np(worker->thread, "fad-cpu");
	return r;
}

void fa_cpu_worker_join(struct fa_cpu_worker *worker)
{
	pthread_join(worker->thread, NULL);
	free(worker->scratch);
}
