#include "tests/daemon/device-cpu-scene.h"

#include "common/clock.h"
#include "tests/lib/pause.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

const struct fa_device_ops *const ops = &fa_device_cpu;

void on_notify(void *userdata)
{
	struct fixture *f = userdata;

	sem_post(&f->notified);
}

void fixture_init(struct fixture *f, unsigned int threads)
{
	struct fa_device_config config = {
		.threads = threads,
		.notify = on_notify,
		.userdata = f,
	};
	struct fa_error error;

	sem_init(&f->notified, 0, 0);
	assert_int_equal(ops->open(&config, &error, &f->device), 0);
	assert_int_equal(ops->group_new(f->device, &error, &f->group), 0);
	for (int i = 0; i < GROUPS; i++)
		assert_int_equal(ops->group_new(f->device, &error, &f->others[i]), 0);
}

void fixture_deinit(struct fixture *f)
{
	assert_null(ops->group_free(f->device, f->group));
	for (int i = 0; i < GROUPS; i++)
		assert_null(ops->group_free(f->device, f->others[i]));
	assert_null(ops->close(f->device));
	sem_destroy(&f->notified);
}

struct fa_device_queue *queue_new_in(struct fixture *f, struct fa_device_group *group, int priority)
{
	struct fa_device_queue *queue;
	struct fa_error error;

	assert_int_equal(ops->queue_new(f->device, group, priority, &error, &queue), 0);
	return queue;
}

struct fa_device_queue *queue_new(struct fixture *f, int priority)
{
	return queue_new_in(f, f->group, priority);
}

void launch(struct fixture *f, struct fa_device_queue *queue, struct item *item)
{
	item->params.q.data = &item->job;
	item->work.params = &item->params;
	ops->launch(f->device, queue, &item->work);
}

void reap(struct fixture *f)
{
	struct fa_list done;
	struct item *item;

	fa_list_init(&done);
	ops->reap(f->device, &done);
	while (!fa_list_empty(&done)) {
		item = fa_container_of(done.next, struct item, work.link);
		fa_list_remove(&item->work.link);
		assert_false(item->reaped);
		item->reaped = true;
	}
}

void finish(struct fixture *f, struct item *item)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_SEC;
	reap(f);
	while (!item->reaped) {
		if (sem_timedwait(&f->notified, &until) < 0 && errno == ETIMEDOUT)
			fail_msg("a work does not end");
		reap(f);
	}
	assert_false(item->job.wrong);
	assert_true(item->work.finished_ns >= item->work.started_ns);
	if (item->work.status == 0)
		assert_int_equal(item->job.n_ran, item->job.n_tiles);
	else
		assert_int_not_equal(item->work.error.text[0], 0);
}

void wait_ran(struct item *item, int64_t n)
{
	uint64_t until_ns = fa_now_ns() + PATIENCE_SEC * FA_NS_PER_SEC, pause_ns = 0;

	while (item->job.n_ran < n) {
		assert_true(fa_now_ns() < until_ns);
		fa_test_poll_pause(&pause_ns);
	}
}

void wait_started(struct item *item)
{
	uint64_t until_ns = fa_now_ns() + PATIENCE_SEC * FA_NS_PER_SEC, pause_ns = 0;

	while (!item->job.first_ran_ns) {
		assert_true(fa_now_ns() < until_ns);
		fa_test_poll_pause(&pause_ns);
	}
}
