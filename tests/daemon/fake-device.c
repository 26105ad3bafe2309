#include "fake-device.h"

#include "daemon/engine/private.h"
#include "tests/lib/pause.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_SEC 30

struct fa_device_group {
	unsigned int n_queues;
};

struct fa_device_queue {
	struct fa_device_group *group;
	struct fake_lane *lane; /* NULL: no lanes */
	unsigned int outstanding;
};

/* ---- the device table; called by whichever thread acts as the engine */

static void fake_describe(struct fa_device *device, struct fa_device_info *ret_info)
{
	*ret_info = (struct fa_device_info){
		.backend = "fake",
		.depth = device->depth,
		.polled = device->polled,
	};
}

static int fake_group_new(struct fa_device *device, struct fa_error *error,
                          struct fa_device_group **ret_group)
{
	if (device->group_error)
		return fa_fail(error, device->group_error, "no group today");
	*ret_group = calloc(1, sizeof(**ret_group));
	pthread_mutex_lock(&device->mutex);
	device->n_groups++;
	pthread_mutex_unlock(&device->mutex);
	return 0;
}

static struct fa_device_group *fake_group_free(struct fa_device *device,
                                               struct fa_device_group *group)
{
	assert(group->n_queues == 0);
	pthread_mutex_lock(&device->mutex);
	device->n_groups--;
	pthread_mutex_unlock(&device->mutex);
	free(group);
	return NULL;
}

static int fake_queue_new(struct fa_device *device, struct fa_device_group *group, int priority,
                          struct fa_error *error, struct fa_device_queue **ret_queue)
{
	if (device->queue_error)
		return fa_fail(error, device->queue_error, "no queue today");
	*ret_queue = calloc(1, sizeof(**ret_queue));
	(*ret_queue)->group = group;
	if (device->lane_slots)
		(*ret_queue)->lane = &device->lanes[priority > 0 ? 0 : device->lane];
	group->n_queues++;
	pthread_mutex_lock(&device->mutex);
	device->n_queues++;
	pthread_mutex_unlock(&device->mutex);
	return 0;
}

static struct fa_device_queue *fake_queue_free(struct fa_device *device,
                                               struct fa_device_queue *queue)
{
	assert(queue->outstanding == 0);
	queue->group->n_queues--;
	pthread_mutex_lock(&device->mutex);
	device->n_queues--;
	pthread_mutex_unlock(&device->mutex);
	free(queue);
	return NULL;
}

static int fake_launch(struct fa_device *device, struct fa_device_queue *queue,
                       struct fa_device_work *work)
{
	struct fa_job *job = fa_container_of(work, struct fa_job, work);
	struct fake_lane *lane = queue->lane;
	int r = 0;

	pthread_mutex_lock(&device->mutex);
	assert(work->params == &job->params);
	if (lane && lane->outstanding >= device->lane_slots) {
		device->n_full++;
		r = -EAGAIN;
	} else if (device->holds && work->params->scale == FAKE_LONG) {
		device->n_held++;
		r = -EBUSY;
	}
	if (r < 0) {
		pthread_cond_broadcast(&device->changed);
		pthread_mutex_unlock(&device->mutex);
		return r;
	}
	if (lane)
		lane->outstanding++;
	work->queue = queue;
	work->status = 0;
	work->started_ns = fa_now_ns();
	queue->outstanding++;
	assert(queue->outstanding <= device->depth);
	if (device->n_launched < FAKE_LAUNCHED_MAX)
		device->launched[device->n_launched] = job;
	device->n_launched++;
	device->launcher = pthread_self();
	device->n_running++;
	fa_list_append(&device->running, &work->link);
	pthread_cond_broadcast(&device->changed);
	while (device->blocked)
		pthread_cond_wait(&device->changed, &device->mutex);
	pthread_mutex_unlock(&device->mutex);
	return 0;
}

static void wake(struct fa_device *device)
{
	if (!device->polled)
		fa_engine_wake(device->engine);
}

/* Called with the mutex held; the caller wakes the engine. */
static void fake_finish(struct fa_device *device, struct fa_device_work *work, int status)
{
	fa_list_remove(&work->link);
	work->status = status;
	if (status)
		fa_fail(&work->error, status, "the device says so");
	work->finished_ns = fa_now_ns();
	device->n_running--;
	fa_list_append(&device->done, &work->link);
}

static void fake_cancel(struct fa_device *device, struct fa_device_work *work)
{
	bool running = false;
	struct fa_list *pos;

	pthread_mutex_lock(&device->mutex);
	device->n_cancelled++;
	fa_list_for_each(pos, &device->running)
		running = running || pos == &work->link;
	if (running && device->stubbornness == FAKE_STOPS)
		fake_finish(device, work, -ECANCELED);
	pthread_cond_broadcast(&device->changed);
	pthread_mutex_unlock(&device->mutex);
	wake(device);
}

static void fake_reap(struct fa_device *device, struct fa_list *done)
{
	struct fa_list *pos;

	pthread_mutex_lock(&device->mutex);
	while (device->reap_blocked) {
		device->reaping = true;
		pthread_cond_broadcast(&device->changed);
		pthread_cond_wait(&device->changed, &device->mutex);
	}
	fa_list_for_each(pos, &device->done) {
		struct fa_device_queue *queue =
			fa_container_of(pos, struct fa_device_work, link)->queue;

		queue->outstanding--;
		if (queue->lane)
			queue->lane->outstanding--;
	}
	fa_list_splice(done, &device->done);
	pthread_mutex_unlock(&device->mutex);
}

static int fake_health(struct fa_device *device, struct fa_error *error)
{
	bool lost;

	pthread_mutex_lock(&device->mutex);
	lost = device->lost;
	pthread_mutex_unlock(&device->mutex);
	return lost ? fa_fail(error, -ENODEV, "it fell out") : 0;
}

static const struct fa_device_ops fake_ops = {
	.name = "fake",
	.describe = fake_describe,
	.group_new = fake_group_new,
	.group_free = fake_group_free,
	.queue_new = fake_queue_new,
	.queue_free = fake_queue_free,
	.launch = fake_launch,
	.cancel = fake_cancel,
	.reap = fake_reap,
	.health = fake_health,
};

static struct fa_device_lane *fake_queue_lane(struct fa_device_queue *queue)
{
	return &queue->lane->lane;
}

static const struct fa_device_ops lane_ops = {
	.name = "fake",
	.describe = fake_describe,
	.group_new = fake_group_new,
	.group_free = fake_group_free,
	.queue_new = fake_queue_new,
	.queue_free = fake_queue_free,
	.queue_lane = fake_queue_lane,
	.launch = fake_launch,
	.cancel = fake_cancel,
	.reap = fake_reap,
	.health = fake_health,
};

/* ---- called by the test */

static void on_notify(void *userdata)
{
	struct fixture *f = userdata;

	sem_post(&f->notified);
}

static struct timespec patience(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_SEC;
	return until;
}

static void init(struct fixture *f, unsigned int depth, unsigned int slots, bool polled)
{
	memset(f, 0, sizeof(*f));
	f->device.depth = depth;
	f->device.polled = polled;
	f->device.lane_slots = slots;
	f->device.lane = 1;
	for (int i = 0; i < FAKE_LANES; i++)
		fa_device_lane_init(&f->device.lanes[i].lane);
	fa_list_init(&f->device.running);
	fa_list_init(&f->device.done);
	pthread_mutex_init(&f->device.mutex, NULL);
	pthread_cond_init(&f->device.changed, NULL);
	sem_init(&f->notified, 0, 0);
	assert_int_equal(fa_engine_new(slots ? &lane_ops : &fake_ops, on_notify, f, &f->engine), 0);
	f->device.engine = f->engine;
	assert_int_equal(fa_engine_start(f->engine, &f->device), 0);
	for (unsigned int i = 0; i < FAKE_GROUPS; i++)
		assert_int_equal(fa_engine_group_new(f->engine, &f->groups[i]), 0);
}

void fixture_init(struct fixture *f, unsigned int depth)
{
	init(f, depth, 0, false);
}

void fixture_init_polled(struct fixture *f, unsigned int depth)
{
	init(f, depth, 0, true);
}

void fixture_init_lanes(struct fixture *f, unsigned int depth, unsigned int slots, bool polled)
{
	init(f, depth, slots, polled);
}

void fixture_deinit(struct fixture *f)
{
	for (unsigned int i = 0; i < FAKE_STREAMS; i++) {
		if (!f->streams[i])
			continue;
		fa_engine_stream_close(f->engine, f->streams[i], -ECANCELED);
		expect_closed(f, i);
	}
	for (unsigned int i = 0; i < FAKE_GROUPS; i++)
		assert_null(fa_engine_group_free(f->groups[i]));
	assert_null(fa_engine_free(f->engine));
	assert_int_equal(f->device.n_queues, 0);
	assert_int_equal(f->device.n_groups, 0);
	assert_int_equal(f->device.n_running, 0);
	sem_destroy(&f->notified);
	pthread_cond_destroy(&f->device.changed);
	pthread_mutex_destroy(&f->device.mutex);
}

void stream_open(struct fixture *f, unsigned int i, int priority)
{
	assert_int_equal(fa_engine_stream_new(f->groups[f->group[i]], priority, &f->slots[i],
	                                      f->last[i] + 1, &f->slots[i], &f->streams[i]),
	                 0);
	assert_ptr_equal(fa_stream_owner(f->streams[i]), &f->slots[i]);
}

struct fa_job *job_new(struct fixture *f, unsigned int i)
{
	struct fa_job *job = calloc(1, sizeof(*job));

	assert_non_null(job);
	job->stream = f->streams[i];
	job->value = ++f->last[i];
	job->deadline_ns = FA_NS_NEVER;
	job->queued_ns = fa_now_ns();
	return job;
}

struct fa_job *submit(struct fixture *f, unsigned int i)
{
	struct fa_job *job = job_new(f, i);

	fa_engine_submit(f->engine, job);
	return job;
}

void take(struct fixture *f, struct fa_job **ret_job, struct fa_stream **ret_closed)
{
	struct timespec until = patience();

	while (!fa_engine_take(f->engine, ret_job, ret_closed))
		if (sem_timedwait(&f->notified, &until) < 0 && errno == ETIMEDOUT)
			fail_msg("nothing came out of the engine");
	assert_true(!*ret_job != !*ret_closed);
}

uint64_t stream_finished(struct fa_stream *stream)
{
	return atomic_load(&stream->slot->completed);
}

void expect(struct fixture *f, struct fa_job *job, int status)
{
	struct fa_job *taken;
	struct fa_stream *closed;

	take(f, &taken, &closed);
	assert_ptr_equal(taken, job);
	assert_int_equal(taken->status, status);
	assert_int_not_equal(taken->finished_ns, 0);
	assert_int_equal(status != 0, taken->error.text[0] != 0);
	assert_true(stream_finished(taken->stream) >= taken->value);
	free(taken);
}

void expect_closed(struct fixture *f, unsigned int i)
{
	struct fa_job *job;
	struct fa_stream *closed;

	take(f, &job, &closed);
	assert_ptr_equal(closed, f->streams[i]);
	f->streams[i] = fa_stream_free(closed);
}

void expect_nothing(struct fixture *f)
{
	struct fa_job *job;
	struct fa_stream *closed;

	fa_test_quiet_ms(20);
	assert_false(fa_engine_take(f->engine, &job, &closed));
}

void wait_launched(struct fixture *f, uint64_t n)
{
	struct timespec until = patience();

	pthread_mutex_lock(&f->device.mutex);
	while (f->device.n_launched < n)
		if (pthread_cond_timedwait(&f->device.changed, &f->device.mutex, &until))
			fail_msg("only %d launches", (int)f->device.n_launched);
	assert_int_equal(f->device.n_launched, n);
	pthread_mutex_unlock(&f->device.mutex);
}

void wait_cancelled(struct fixture *f, uint64_t n)
{
	struct timespec until = patience();

	pthread_mutex_lock(&f->device.mutex);
	while (f->device.n_cancelled < n)
		if (pthread_cond_timedwait(&f->device.changed, &f->device.mutex, &until))
			fail_msg("only %d cancels", (int)f->device.n_cancelled);
	pthread_mutex_unlock(&f->device.mutex);
}

void wait_refused(struct fixture *f, uint64_t n_full, uint64_t n_held)
{
	struct timespec until = patience();

	pthread_mutex_lock(&f->device.mutex);
	while (f->device.n_full < n_full || f->device.n_held < n_held)
		if (pthread_cond_timedwait(&f->device.changed, &f->device.mutex, &until))
			fail_msg("only %d and %d works were refused", (int)f->device.n_full,
			         (int)f->device.n_held);
	pthread_mutex_unlock(&f->device.mutex);
}

void hold_long(struct fixture *f, bool holds)
{
	pthread_mutex_lock(&f->device.mutex);
	f->device.holds = holds;
	pthread_mutex_unlock(&f->device.mutex);
	wake(&f->device);
}

void complete(struct fixture *f, struct fa_job *job, int status)
{
	pthread_mutex_lock(&f->device.mutex);
	fake_finish(&f->device, &job->work, status);
	pthread_mutex_unlock(&f->device.mutex);
	wake(&f->device);
}

void lose(struct fixture *f)
{
	pthread_mutex_lock(&f->device.mutex);
	f->device.lost = true;
	pthread_mutex_unlock(&f->device.mutex);
	fa_engine_wake(f->engine);
}

void block(struct fixture *f, bool blocked)
{
	pthread_mutex_lock(&f->device.mutex);
	f->device.blocked = blocked;
	pthread_cond_broadcast(&f->device.changed);
	pthread_mutex_unlock(&f->device.mutex);
}

void hold_at_reap(struct fixture *f)
{
	struct timespec until = patience();

	pthread_mutex_lock(&f->device.mutex);
	f->device.reap_blocked = true;
	pthread_mutex_unlock(&f->device.mutex);
	fa_engine_wake(f->engine);
	pthread_mutex_lock(&f->device.mutex);
	while (!f->device.reaping)
		if (pthread_cond_timedwait(&f->device.changed, &f->device.mutex, &until))
			fail_msg("the engine does not reap");
	pthread_mutex_unlock(&f->device.mutex);
}

void release_reap(struct fixture *f)
{
	pthread_mutex_lock(&f->device.mutex);
	f->device.reap_blocked = f->device.reaping = false;
	pthread_cond_broadcast(&f->device.changed);
	pthread_mutex_unlock(&f->device.mutex);
}

static void *completer_run(void *userdata)
{
	struct fa_device *device = userdata;
	unsigned int seed = 7, skip;
	struct fa_list *pos;

	pthread_mutex_lock(&device->mutex);
	for (;;) {
		while (!device->n_running && !device->stop)
			pthread_cond_wait(&device->changed, &device->mutex);
		if (device->stop)
			break;
		skip = (unsigned int)rand_r(&seed) % 16;
		pos = device->running.next;
		while (skip-- && pos->next != &device->running)
			pos = pos->next;
		fake_finish(device, fa_container_of(pos, struct fa_device_work, link),
		            rand_r(&seed) % 16 ? 0 : -EIO);
		pthread_mutex_unlock(&device->mutex);
		wake(device);
		pthread_mutex_lock(&device->mutex);
	}
	pthread_mutex_unlock(&device->mutex);
	return NULL;
}

void completer_start(struct fixture *f)
{
	assert_int_equal(pthread_create(&f->device.completer, NULL, completer_run, &f->device), 0);
}

void completer_stop(struct fixture *f)
{
	pthread_mutex_lock(&f->device.mutex);
	f->device.stop = true;
	pthread_cond_broadcast(&f->device.changed);
	pthread_mutex_unlock(&f->device.mutex);
	pthread_join(f->device.completer, NULL);
}
