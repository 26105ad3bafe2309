/*
 * A queue has at most one active work, in the fair queue while it has unclaimed tiles. A group pays
 * for its workers' time, a quantum in advance, so that it cannot have all workers. A work runs its
 * paged requests as phases. A phase's last worker begins the next; a work's last worker, or
 * cancel(), finishes it and activates the queue's next.
 */
#include "daemon/backend/cpu/queue.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/completion.h"
#include "daemon/base/fault_guard.h"

#include <errno.h>
#include <stdlib.h>

/* Sleepers that a worker wakes for works that it leaves. */
#define WAKE_FAN_OUT 2

_Static_assert(sizeof(struct fa_cpu_work) <= sizeof(((struct fa_device_work *)0)->backend),
               "the backend's part of a work");

struct fa_device_group {
	struct fa_fair_queue_group fair; /* fa_cpu_work.ready_link */
};

struct fa_device_queue {
	struct fa_device_group *group;
	enum fa_fair_queue_class class;
	struct fa_list works; /* by fa_device_work.link; the first is active */
};

static struct fa_device_work *first_work(struct fa_list *list)
{
	return fa_container_of(list->next, struct fa_device_work, link);
}

/* ---- called with the mutex held */

static void work_unready(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_cpu_work *cpu = fa_cpu_work(work);

	if (fa_list_empty(&cpu->ready_link))
		return;
	fa_fair_queue_remove(&device->fair, &work->queue->group->fair, &cpu->ready_link);
	atomic_fetch_sub_explicit(&device->n_ready, 1, memory_order_relaxed);
}

static bool work_all_claimed(struct fa_device_work *work)
{
	struct fa_cpu_work *cpu = fa_cpu_work(work);

	return atomic_load_explicit(&cpu->next, memory_order_relaxed) >= cpu->n_tiles;
}

static bool work_last_phase(struct fa_device_work *work)
{
	return work->op != FA_DEVICE_PAGED || fa_cpu_work(work)->phase + 1 >= work->n_paged;
}

static bool work_over(struct fa_device_work *work)
{
	return work_all_claimed(work) ||
	       atomic_load_explicit(&work->cancelled, memory_order_relaxed);
}

static void work_finish(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_cpu_work *cpu = fa_cpu_work(work);

	work_unready(device, work);
	fa_list_remove(&work->link);
	cpu->state = FA_CPU_WORK_FINISHED;
	work->finished_ns = fa_now_ns();
	if (work_all_claimed(work) && work_last_phase(work) &&
	    !atomic_load_explicit(&cpu->stopped, memory_order_relaxed))
		work->status = 0;
	else if (cpu->failure == -EFAULT)
		work->status = fa_fail(&work->error, -ENOMEM,
		                       "no memory for a page of the request's tensors or of the "
		                       "cache: the machine could not provide it (SIGBUS)");
	else if (cpu->failure)
		work->status = fa_fail(&work->error, cpu->failure,
		                       "no memory for %zu bytes of scratch", cpu->scratch_bytes);
	else
		work->status = fa_fail(&work->error, -ECANCELED, "the work was cancelled");

	/* Nobody is notified after the last reap(). */
	if (fa_list_empty(&device->done))
		device->config.notify(device->config.userdata);
	fa_list_append(&device->done, &work->link);
	/* Stored before the work can be reaped; readers then see its results (release). */
	for (int i = 0; i < FA_COMPLETION_DEVICE_WORDS && work->completion_words && !work->status;
	     i++)
		__atomic_store_n(&work->completion_words[i], work->completion_value,
		                 __ATOMIC_RELEASE);
}

static void work_ready(struct fa_device *device, struct fa_device_work *work)
{
	fa_fair_queue_add(&device->fair, &work->queue->group->fair, work->queue->class,
	                  &fa_cpu_work(work)->ready_link);
	atomic_fetch_add_explicit(&device->n_ready, 1, memory_order_relaxed);
}

struct phase {
	struct fa_device *device;
	struct fa_device_work *work;
};

static void begin_phase(void *userdata)
{
	const struct phase *phase = userdata;
	struct fa_cpu_work *cpu = fa_cpu_work(phase->work);

	cpu->n_tiles = fa_cpu_paged_begin(phase->device->isa, &phase->work->paged[cpu->phase],
	                                  phase->work->prepared);
}

/* Begins the current phase; if it has no tiles, the next one that has, or the last. */
static void work_begin_phase(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_cpu_work *cpu = fa_cpu_work(work);
	struct phase phase = { device, work };

	for (;;) {
		/* Lengths of sequences may be in a client's memory. */
		if (!fa_fault_guard_run(begin_phase, &phase)) {
			cpu->failure = -EFAULT;
			atomic_store_explicit(&work->cancelled, true, memory_order_relaxed);
			break;
		}
		if (cpu->n_tiles || work_last_phase(work))
			break;
		++cpu->phase;
	}
	cpu->scratch_bytes = fa_cpu_paged_scratch_bytes(device->isa, &work->paged[cpu->phase]);
	atomic_store_explicit(&cpu->next, 0, memory_order_relaxed);
}

/* Not earlier, as the predecessor may share the workspace. The caller counts as a worker, so that
 * cancel() does not finish the work while the mutex is released. */
static void work_begin(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_cpu_work *cpu = fa_cpu_work(work);

	if (work->op != FA_DEVICE_PAGED ||
	    atomic_load_explicit(&work->cancelled, memory_order_relaxed))
		return;
	cpu->n_workers++;
	pthread_mutex_unlock(&device->mutex);
	work_begin_phase(device, work);
	pthread_mutex_lock(&device->mutex);
	cpu->n_workers--;
}

/* A work without tiles finishes at once. Releases the mutex. */
static void queue_activate(struct fa_device *device, struct fa_device_queue *queue)
{
	struct fa_device_work *work;
	struct fa_cpu_work *cpu;

	while (!fa_list_empty(&queue->works)) {
		work = first_work(&queue->works);
		cpu = fa_cpu_work(work);
		if (cpu->state == FA_CPU_WORK_ACTIVE)
			return;
		cpu->state = FA_CPU_WORK_ACTIVE;
		work_begin(device, work);
		if (!work_over(work)) {
			work_ready(device, work);
			return;
		}
		work_finish(device, work);
	}
}

struct fa_device_work *fa_cpu_queue_pick(struct fa_device *device)
{
	struct fa_device_work *work;
	struct fa_cpu_work *cpu;

	while (!fa_fair_queue_empty(&device->fair)) {
		cpu = fa_container_of(fa_fair_queue_next(&device->fair), struct fa_cpu_work,
		                      ready_link);
		work = fa_container_of(cpu, struct fa_device_work, backend);
		if (work_over(work)) {
			work_unready(device, work);
			continue;
		}
		fa_fair_queue_charge(&device->fair, &work->queue->group->fair, FA_CPU_QUANTUM_NS);
		return work;
	}
	return NULL;
}

/* Wakes few, as these wake others. */
static uint32_t count_to_wake(struct fa_device *device, struct fa_cpu_work *cpu)
{
	int64_t rest = cpu->n_tiles - atomic_load_explicit(&cpu->next, memory_order_relaxed) - 1;
	uint32_t wake = device->n_sleeping < WAKE_FAN_OUT ? device->n_sleeping : WAKE_FAN_OUT;

	rest += device->n_ready - 1;
	return rest < wake ? (uint32_t)(rest > 0 ? rest : 0) : wake;
}

/* The phase's last worker calls this. Releases the mutex. */
static void work_next_phase(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_cpu_work *cpu = fa_cpu_work(work);

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

/* ---- the workers' interface */

uint32_t fa_cpu_queue_serve_begin(struct fa_device *device, struct fa_device_work *work)
{
	fa_cpu_work(work)->n_workers++;
	if (!work->started_ns)
		work->started_ns = fa_now_ns();
	return count_to_wake(device, fa_cpu_work(work));
}

void fa_cpu_queue_serve_end(struct fa_device *device, struct fa_device_work *work, uint64_t used_ns,
                            int failure)
{
	struct fa_cpu_work *cpu = fa_cpu_work(work);
	struct fa_device_queue *queue = work->queue;

	fa_fair_queue_charge(&device->fair, &queue->group->fair,
	                     (int64_t)(used_ns - FA_CPU_QUANTUM_NS));
	if (failure) {
		cpu->failure = failure;
		atomic_store_explicit(&work->cancelled, true, memory_order_relaxed);
	}
	if (cpu->n_workers == 1 && work_over(work) && !work_last_phase(work))
		work_next_phase(device, work);
	if (--cpu->n_workers == 0 && work_over(work)) {
		work_finish(device, work);
		queue_activate(device, queue);
	}
}

int fa_cpu_group_new(struct fa_device *device, struct fa_error *error,
                     struct fa_device_group **ret_group)
{
	struct fa_device_group *group;

	group = fa_new(struct fa_device_group);
	if (!group)
		return fa_fail(error, -ENOMEM, "no memory for a group of queues");
	fa_fair_queue_group_init(&group->fair);
	*ret_group = group;
	return 0;
}

struct fa_device_group *fa_cpu_group_free(struct fa_device *device, struct fa_device_group *group)
{
	free(group);
	return NULL;
}

int fa_cpu_queue_new(struct fa_device *device, struct fa_device_group *group, int priority,
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

struct fa_device_queue *fa_cpu_queue_free(struct fa_device *device, struct fa_device_queue *queue)
{
	free(queue);
	return NULL;
}

int fa_cpu_launch(struct fa_device *device, struct fa_device_queue *queue,
                  struct fa_device_work *work)
{
	struct fa_cpu_work *cpu = fa_cpu_work(work);
	bool wake;

	work->queue = queue;
	work->status = 0;
	work->started_ns = work->finished_ns = 0;
	atomic_store_explicit(&work->cancelled, false, memory_order_relaxed);
	*cpu = (struct fa_cpu_work){ .state = FA_CPU_WORK_QUEUED };
	fa_list_init(&cpu->ready_link);
	if (work->op == FA_DEVICE_PAGED) {
		cpu->n_tiles = INT64_MAX;
	} else if (work->op == FA_DEVICE_COPY) {
		cpu->n_tiles = work->n_copies;
	} else {
		cpu->n_tiles = fa_cpu_attention_tiles(device->isa, work->params);
		cpu->scratch_bytes = fa_cpu_attention_scratch_bytes(device->isa, work->params);
		if (work->prepared)
			fa_cpu_attention_begin(device->isa, work->params, work->prepared);
	}

	pthread_mutex_lock(&device->mutex);
	fa_list_append(&queue->works, &work->link);
	queue_activate(device, queue);
	wake = device->n_sleeping > 0 && !fa_list_empty(&cpu->ready_link);
	pthread_mutex_unlock(&device->mutex);
	if (wake)
		pthread_cond_signal(&device->work_available);
	return 0;
}

void fa_cpu_cancel(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_device_queue *queue = work->queue;
	struct fa_cpu_work *cpu = fa_cpu_work(work);
	bool wake;

	pthread_mutex_lock(&device->mutex);
	if (cpu->state != FA_CPU_WORK_FINISHED) {
		atomic_store_explicit(&work->cancelled, true, memory_order_relaxed);
		if (cpu->n_workers == 0)
			work_finish(device, work);
		else
			work_unready(device, work);
		queue_activate(device, queue);
	}
	/* A worker woken for this work may sleep again. */
	wake = device->n_sleeping > 0 && device->n_ready > 0;
	pthread_mutex_unlock(&device->mutex);
	if (wake)
		pthread_cond_signal(&device->work_available);
}

void fa_cpu_reap(struct fa_device *device, struct fa_list *done)
{
	pthread_mutex_lock(&device->mutex);
	fa_list_splice(done, &device->done);
	pthread_mutex_unlock(&device->mutex);
}
