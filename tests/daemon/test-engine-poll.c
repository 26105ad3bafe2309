/* The submitting thread attends: it does the engine thread's part. */
#include "fake-device.h"
#include "tests/lib/pause.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static struct fa_job *submit_attending(struct fixture *f, unsigned int i)
{
	struct fa_job *job;

	fa_engine_batch_begin(f->engine);
	job = submit(f, i);
	fa_engine_poll(f->engine);
	return job;
}

static bool was_launched_here(struct fixture *f)
{
	bool here;

	pthread_mutex_lock(&f->device.mutex);
	here = pthread_equal(f->device.launcher, pthread_self());
	pthread_mutex_unlock(&f->device.mutex);
	return here;
}

/*
 * An attended job is launched before the call returns; a later call reaps it, unless the engine
 * thread does.
 */
static void test_attended(void **state)
{
	unsigned int launched = 0, finished = 0;
	struct fa_job *job;
	struct fixture f;

	fixture_init_polled(&f, 1);
	stream_open(&f, 0, 0);
	for (uint64_t i = 1; i <= 2000; i++) {
		job = submit_attending(&f, 0);
		wait_launched(&f, i);
		launched += was_launched_here(&f);
		complete(&f, job, 0);
		fa_engine_poll(f.engine);
		finished += fa_engine_has_events(f.engine);
		expect(&f, job, 0);
	}
	assert_true(launched > 0);
	assert_true(finished > 0);
	fa_engine_poll_end(f.engine);
	fixture_deinit(&f);
}

/*
 * The polling thread never waits for the engine thread, which takes what was submitted meanwhile.
 */
static void test_busy(void **state)
{
	struct fa_job *job;
	struct fixture f;

	fixture_init_polled(&f, 1);
	stream_open(&f, 0, 0);
	hold_at_reap(&f);
	job = submit_attending(&f, 0);
	for (int i = 0; i < 1000; i++)
		fa_engine_poll(f.engine);
	pthread_mutex_lock(&f.device.mutex);
	assert_int_equal(f.device.n_launched, 0);
	pthread_mutex_unlock(&f.device.mutex);
	release_reap(&f);
	wait_launched(&f, 1);
	assert_false(was_launched_here(&f));
	complete(&f, job, 0);
	expect(&f, job, 0);
	fixture_deinit(&f);
}

static void test_many(void **state)
{
	struct fa_job *jobs[3];
	struct fixture f;

	fixture_init_polled(&f, 3);
	stream_open(&f, 0, 0);
	fa_engine_batch_begin(f.engine);
	for (int i = 0; i < 3; i++)
		jobs[i] = submit(&f, 0);
	fa_engine_poll(f.engine);
	wait_launched(&f, 3);
	assert_false(was_launched_here(&f));
	for (int i = 0; i < 3; i++)
		complete(&f, jobs[i], 0);
	for (int i = 0; i < 3; i++)
		expect(&f, jobs[i], 0);
	fixture_deinit(&f);
}

/* Jobs are reaped and launched even if the thread leaves without notice. */
static void test_thread_leaves(void **state)
{
	struct fa_job *job;
	struct fixture f;

	fixture_init_polled(&f, 1);
	stream_open(&f, 0, 0);
	for (uint64_t i = 1; i <= 50; i++) {
		job = submit_attending(&f, 0);
		wait_launched(&f, i);
		if (i % 2)
			fa_engine_poll_end(f.engine);
		if (i % 3 == 0)
			fa_test_let_sleep_ms(3);
		complete(&f, job, 0);
		expect(&f, job, 0);
	}
	for (uint64_t i = 51; i <= 100; i++) {
		job = submit_attending(&f, 0);
		wait_launched(&f, i);
		complete(&f, job, 0);
		expect(&f, job, 0);
		job = submit(&f, 0);
		wait_launched(&f, ++i);
		complete(&f, job, 0);
		expect(&f, job, 0);
	}
	fixture_deinit(&f);
}

/*
 * The engine thread, with a distant deadline, must take over when this thread begins to attend and
 * stalls.
 */
static void test_stalled(void **state)
{
	struct fa_job *held, *job;
	struct fixture f;

	fixture_init_polled(&f, 1);
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 0);
	held = job_new(&f, 1);
	held->held = true;
	held->deadline_ns = fa_deadline_ns(3600 * FA_NS_PER_SEC);
	fa_engine_submit(f.engine, held);
	for (uint64_t i = 1; i <= 30; i++) {
		const uint64_t begin_ns = fa_now_ns();

		while (fa_now_ns() < begin_ns + i * 10 * FA_NS_PER_US)
			fa_engine_poll(f.engine);
		fa_engine_wake(f.engine);
		fa_test_any_moment_us(i % 3 * 100);
		job = submit_attending(&f, 0);
		wait_launched(&f, i);
		complete(&f, job, 0);
		expect(&f, job, 0);
	}
	fa_engine_release(f.engine, held, -ECANCELED, &(struct fa_error){ "no more" });
	expect(&f, held, -ECANCELED);
	fixture_deinit(&f);
}

static void test_ends(void **state)
{
	struct fa_job *running, *waiting;
	struct fa_error reason;
	struct fixture f;

	fixture_init_polled(&f, 1);
	stream_open(&f, 0, 0);
	running = submit_attending(&f, 0);
	waiting = job_new(&f, 0);
	waiting->deadline_ns = fa_deadline_ns(5 * FA_NS_PER_MS);
	fa_engine_batch_begin(f.engine);
	fa_engine_submit(f.engine, waiting);
	while (fa_now_ns() < waiting->deadline_ns)
		fa_engine_poll(f.engine);
	fa_engine_cancel(f.engine, f.streams[0], running->value, 0);
	while (!fa_engine_has_events(f.engine))
		fa_engine_poll(f.engine);
	expect(&f, running, -ECANCELED);
	expect(&f, waiting, -ETIMEDOUT);

	running = submit_attending(&f, 0);
	wait_launched(&f, 2);
	lose(&f);
	while (!fa_engine_lost(f.engine, &reason))
		fa_engine_poll(f.engine);
	complete(&f, running, -ENODEV);
	expect(&f, running, -ENODEV);
	waiting = submit_attending(&f, 0);
	expect(&f, waiting, -ENODEV);
	fixture_deinit(&f);
}

/* A device that signals completion is left to the engine thread. */
static void test_not_polled(void **state)
{
	struct fa_job *job;
	struct fixture f;

	fixture_init(&f, 1);
	stream_open(&f, 0, 0);
	job = submit_attending(&f, 0);
	wait_launched(&f, 1);
	assert_false(was_launched_here(&f));
	complete(&f, job, 0);
	expect(&f, job, 0);
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attended),   cmocka_unit_test(test_busy),
		cmocka_unit_test(test_many),       cmocka_unit_test(test_thread_leaves),
		cmocka_unit_test(test_stalled),    cmocka_unit_test(test_ends),
		cmocka_unit_test(test_not_polled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
