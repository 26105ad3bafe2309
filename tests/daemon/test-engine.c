/*
 * The engine's contract, one case per test, on a fake device.
 */
#include "daemon/engine/private.h"
#include "fake-device.h"
#include "tests/lib/pause.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_order(void **state)
{
	struct fa_job *a, *b, *c, *d;
	struct fixture f;

	fixture_init(&f, 3);
	stream_open(&f, 0, 0);
	a = submit(&f, 0);
	b = submit(&f, 0);
	c = submit(&f, 0);
	d = submit(&f, 0);
	wait_launched(&f, 3); /* as deep as the queue */
	assert_ptr_equal(f.device.launched[0], a);
	assert_ptr_equal(f.device.launched[1], b);
	assert_ptr_equal(f.device.launched[2], c);

	complete(&f, c, 0);
	wait_launched(&f, 4);
	assert_ptr_equal(f.device.launched[3], d);
	complete(&f, b, -EIO);
	expect_nothing(&f);
	assert_int_equal(f.slots[0].completed, 0);

	complete(&f, a, 0);
	expect(&f, a, 0);
	expect(&f, b, -EIO);
	expect(&f, c, 0);
	assert_int_equal(f.slots[0].completed, 3);
	assert_int_equal(f.slots[0].failed, 2);
	complete(&f, d, 0);
	expect(&f, d, 0);
	fixture_deinit(&f);
}

static void test_streams_do_not_wait_for_each_other(void **state)
{
	struct fa_job *a, *b;
	struct fixture f;

	fixture_init(&f, 1);
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 0);
	a = submit(&f, 0);
	b = submit(&f, 1);
	wait_launched(&f, 2);
	complete(&f, b, 0);
	expect(&f, b, 0);
	complete(&f, a, 0);
	expect(&f, a, 0);
	fixture_deinit(&f);
}

static void test_refused_in_turn(void **state)
{
	struct fa_job *a, *refused, *c, *alone;
	struct fixture f;

	fixture_init(&f, 4);
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 0);
	a = submit(&f, 0);
	refused = job_new(&f, 0);
	refused->status = fa_fail(&refused->error, -EINVAL, "no");
	refused->deadline_ns = 1; /* passed, but the refusal comes first */
	fa_engine_submit(f.engine, refused);
	c = submit(&f, 0);
	wait_launched(&f, 2);
	assert_ptr_equal(f.device.launched[1], c);
	complete(&f, c, 0);
	expect_nothing(&f);

	alone = job_new(&f, 1);
	alone->status = fa_fail(&alone->error, -ENOTSUP, "no");
	fa_engine_submit(f.engine, alone);
	expect(&f, alone, -ENOTSUP);

	complete(&f, a, 0);
	expect(&f, a, 0);
	expect(&f, refused, -EINVAL);
	expect(&f, c, 0);
	assert_int_equal(f.slots[0].failed, 2);
	fixture_deinit(&f);
}

static void test_stream_continues_values(void **state)
{
	struct fa_job *a;
	struct fixture f;

	fixture_init(&f, 4);
	f.last[5] = 41;
	stream_open(&f, 5, 0);
	a = submit(&f, 5);
	wait_launched(&f, 1);
	complete(&f, a, 0);
	expect(&f, a, 0);
	assert_int_equal(f.slots[5].completed, 42);
	fixture_deinit(&f);
}

static void test_queue_fails(void **state)
{
	struct fa_job *a, *b;
	struct fixture f;

	fixture_init(&f, 1);
	f.device.queue_error = -ENOMEM;
	stream_open(&f, 0, 0);
	a = submit(&f, 0);
	b = submit(&f, 0);
	expect(&f, a, -ENOMEM);
	expect(&f, b, -ENOMEM);
	assert_int_equal(f.device.n_groups, 0);
	f.device.group_error = -EIO;
	a = submit(&f, 0);
	expect(&f, a, -EIO);
	f.device.group_error = f.device.queue_error = 0;
	a = submit(&f, 0);
	wait_launched(&f, 1);
	complete(&f, a, 0);
	expect(&f, a, 0);
	assert_int_equal(f.device.n_groups, 1);
	fixture_deinit(&f);
}

static void test_deadline_queued(void **state)
{
	struct fa_job *a, *b, *c;
	struct fixture f;

	fixture_init(&f, 1);
	stream_open(&f, 0, 0);
	a = submit(&f, 0);
	wait_launched(&f, 1);
	b = job_new(&f, 0);
	b->deadline_ns = fa_deadline_ns(10 * FA_NS_PER_MS);
	fa_engine_submit(f.engine, b);
	c = submit(&f, 0);
	fa_test_elapse_ms(30);
	complete(&f, a, 0);
	expect(&f, a, 0);
	expect(&f, b, -ETIMEDOUT);
	wait_launched(&f, 2);
	assert_ptr_equal(f.device.launched[1], c);
	complete(&f, c, 0);
	expect(&f, c, 0);
	fixture_deinit(&f);
}

static void test_deadline_passed_on_arrival(void **state)
{
	struct fa_job *a;
	struct fixture f;

	fixture_init(&f, 1);
	stream_open(&f, 0, 0);
	a = job_new(&f, 0);
	a->deadline_ns = 1;
	fa_engine_submit(f.engine, a);
	expect(&f, a, -ETIMEDOUT);
	assert_int_equal(f.device.n_launched, 0);
	fixture_deinit(&f);
}

/* Only the end of its own sleep wakes the engine for a deadline. */
static void test_deadline_running(void **state)
{
	struct fa_job *a, *b;
	struct fixture f;

	fixture_init(&f, 1);
	stream_open(&f, 0, 0);
	block(&f, true); /* the deadline may pass before the launch */
	a = job_new(&f, 0);
	a->deadline_ns = fa_deadline_ns(FA_NS_PER_SEC);
	fa_engine_submit(f.engine, a);
	wait_launched(&f, 1);
	block(&f, false);
	expect(&f, a, -ETIMEDOUT);
	assert_int_equal(f.device.n_cancelled, 1);

	/* A job that the device cannot stop ends by itself, late. */
	f.device.stubbornness = FAKE_IGNORES;
	b = job_new(&f, 0);
	b->deadline_ns = fa_deadline_ns(FA_NS_PER_SEC);
	fa_engine_submit(f.engine, b);
	wait_cancelled(&f, 2);
	complete(&f, b, 0);
	expect(&f, b, -ETIMEDOUT);
	fixture_deinit(&f);
}

static void test_deadline_kept(void **state)
{
	struct fa_job *a;
	struct fixture f;

	fixture_init(&f, 1);
	stream_open(&f, 0, 0);
	a = job_new(&f, 0);
	a->deadline_ns = fa_deadline_ns(3600 * FA_NS_PER_SEC);
	fa_engine_submit(f.engine, a);
	wait_launched(&f, 1);
	complete(&f, a, 0);
	expect(&f, a, 0);
	fixture_deinit(&f);
}

static void test_cancel(void **state)
{
	struct fa_job *a, *b, *c, *d;
	struct fixture f;

	fixture_init(&f, 2);
	stream_open(&f, 0, 0);
	a = submit(&f, 0);
	b = submit(&f, 0);
	c = submit(&f, 0);
	d = submit(&f, 0);
	wait_launched(&f, 2);
	fa_engine_cancel(f.engine, f.streams[0], 3, 0);
	fa_engine_cancel(f.engine, f.streams[0], 3, -EIO);
	fa_engine_cancel(f.engine, f.streams[0], 99, 0);
	fa_engine_cancel(f.engine, f.streams[0], 1, -ECONNRESET);
	expect(&f, a, -ECONNRESET);
	fa_engine_cancel(f.engine, f.streams[0], 1, 0);
	wait_launched(&f, 3);
	assert_ptr_equal(f.device.launched[2], d);
	complete(&f, b, 0);
	expect(&f, b, 0);
	expect(&f, c, -ECANCELED);
	complete(&f, d, 0);
	for (uint64_t pause_ns = 0; stream_finished(f.streams[0]) < 4;)
		fa_test_poll_pause(&pause_ns);
	fa_engine_cancel(f.engine, f.streams[0], 4, 0);
	expect(&f, d, 0);
	expect_nothing(&f);
	fixture_deinit(&f);
}

static void test_cancel_settled(void **state)
{
	struct fa_job *a, *b;
	struct fixture f;

	fixture_init(&f, 2);
	stream_open(&f, 0, 0);
	a = submit(&f, 0);
	b = submit(&f, 0);
	wait_launched(&f, 2);
	complete(&f, b, 0);
	fa_test_let_sleep_ms(10);
	fa_engine_cancel(f.engine, f.streams[0], 2, 0);
	complete(&f, a, 0);
	expect(&f, a, 0);
	expect(&f, b, 0);
	fixture_deinit(&f);
}

static void test_cancel_too_late(void **state)
{
	struct fa_job *a;
	struct fixture f;

	fixture_init(&f, 1);
	f.device.stubbornness = FAKE_IGNORES;
	stream_open(&f, 0, 0);
	a = submit(&f, 0);
	wait_launched(&f, 1);
	fa_engine_cancel(f.engine, f.streams[0], 1, 0);
	wait_cancelled(&f, 1);
	complete(&f, a, 0);
	expect(&f, a, 0);
	fixture_deinit(&f);
}

/* A cancel is in transit while its job finishes, is taken and freed. */
static void test_cancel_crosses_finish(void **state)
{
	struct fa_job *a, *b;
	struct fixture f;

	fixture_init(&f, 1);
	stream_open(&f, 0, 0);
	a = submit(&f, 0);
	b = submit(&f, 0);
	wait_launched(&f, 1);
	hold_at_reap(&f); /* the engine has looked for cancels before */
	complete(&f, a, 0);
	fa_engine_cancel(f.engine, f.streams[0], 1, 0);
	fa_engine_cancel(f.engine, f.streams[0], 2, 0);
	block(&f, true); /* the engine looks for none before a is freed */
	release_reap(&f);
	expect(&f, a, 0);
	block(&f, false);
	expect(&f, b, -ECANCELED);
	fixture_deinit(&f);
}

static void test_close(void **state)
{
	struct fa_job *jobs[6];
	struct fa_engine_stats stats;
	struct fixture f;

	fixture_init(&f, 2);
	f.device.stubbornness = FAKE_IGNORES;
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 0);
	for (int i = 0; i < 5; i++)
		jobs[i] = submit(&f, 0);
	jobs[5] = submit(&f, 1);
	wait_launched(&f, 3);
	fa_engine_cancel(f.engine, f.streams[0], 2, -EIO);
	fa_engine_cancel(f.engine, f.streams[0], 4, -EIO);
	fa_engine_stream_close(f.engine, f.streams[0], -ECONNRESET);
	wait_cancelled(&f, 2);
	expect_nothing(&f);
	complete(&f, jobs[1], -ECANCELED);
	complete(&f, jobs[0], -ECANCELED);
	expect(&f, jobs[0], -ECONNRESET);
	expect(&f, jobs[1], -EIO);
	expect(&f, jobs[2], -ECONNRESET);
	expect(&f, jobs[3], -EIO);
	expect(&f, jobs[4], -ECONNRESET);
	expect_closed(&f, 0);
	complete(&f, jobs[5], 0);
	expect(&f, jobs[5], 0);

	fa_engine_stats(f.engine, &stats);
	assert_int_equal(stats.submitted, 6);
	assert_int_equal(stats.finished, 6);
	assert_int_equal(stats.launched, 3);
	assert_int_equal(stats.failed, 5);
	assert_int_equal(stats.cancelled, 0);
	assert_true(stats.busy_ns > 0);
	fixture_deinit(&f);
}

static void expect_lost(struct fixture *f, struct fa_job *job)
{
	struct fa_job *taken;
	struct fa_stream *closed;

	take(f, &taken, &closed);
	assert_ptr_equal(taken, job);
	assert_int_equal(taken->status, -ENODEV);
	assert_non_null(strstr(taken->error.text, "it fell out"));
	free(taken);
}

static void lost(bool polled)
{
	struct fa_job *a, *b, *c, *refused, *d, *other, *late;
	struct fa_error reason;
	struct fixture f;

	if (polled)
		fixture_init_polled(&f, 2);
	else
		fixture_init(&f, 2);
	for (unsigned int i = 0; i < 3; i++)
		stream_open(&f, i, 0);
	a = submit(&f, 0);
	b = submit(&f, 0);
	c = submit(&f, 0);
	refused = job_new(&f, 0);
	refused->status = fa_fail(&refused->error, -EINVAL, "no");
	fa_engine_submit(f.engine, refused);
	d = job_new(&f, 0);
	d->deadline_ns = fa_deadline_ns(3600 * FA_NS_PER_SEC);
	fa_engine_submit(f.engine, d);
	other = submit(&f, 1);
	wait_launched(&f, 3);
	assert_false(fa_engine_lost(f.engine, &reason));

	lose(&f);
	while (!fa_engine_lost(f.engine, &reason))
		assert_int_equal(sem_wait(&f.notified), 0);
	assert_string_equal(reason.text, "it fell out");
	late = submit(&f, 2);
	expect_lost(&f, late);
	late = submit(&f, 1);
	/* Jobs report the loss of the device, not the cancel. */
	fa_engine_cancel(f.engine, f.streams[0], c->value, -ESHUTDOWN);
	fa_engine_cancel(f.engine, f.streams[1], other->value, -ESHUTDOWN);
	wait_cancelled(&f, 1);
	expect_lost(&f, other);
	expect_lost(&f, late);
	expect_nothing(&f);

	complete(&f, a, 0);
	expect(&f, a, 0);
	complete(&f, b, -ENODEV);
	expect(&f, b, -ENODEV);
	expect_lost(&f, c);
	expect(&f, refused, -EINVAL);
	expect_lost(&f, d);
	assert_int_equal(f.device.n_launched, 3);
	fixture_deinit(&f);
}

static void test_lost(void **state)
{
	lost(false);
}

static void test_lost_polled(void **state)
{
	lost(true);
}

static void test_many_streams_do_not_delay_others(void **state)
{
	const uint64_t crowd = 1000;
	struct fa_job *urgent, *other, *taken;
	uint64_t at_other = 0, at_urgent = 0;
	struct fa_stream *closed;
	struct fixture f;

	fixture_init(&f, 4096);
	for (unsigned int i = 0; i < 3; i++)
		stream_open(&f, i, i == 2);
	block(&f, true);
	for (uint64_t i = 0; i < crowd; i++)
		(void)submit(&f, 0);
	wait_launched(&f, 1);
	other = submit(&f, 1);
	urgent = submit(&f, 2);
	block(&f, false);
	wait_launched(&f, crowd + 2);
	for (uint64_t i = 0; i < crowd + 2; i++) {
		if (f.device.launched[i] == other)
			at_other = i;
		if (f.device.launched[i] == urgent)
			at_urgent = i;
	}
	/* A round had begun; jobs of high priority go first in the next. */
	assert_in_range(at_urgent, 1, 16);
	assert_in_range(at_other, 2, 18);

	for (uint64_t i = 0; i < crowd + 2; i++)
		complete(&f, f.device.launched[i], 0);
	for (uint64_t i = 0; i < crowd + 2; i++) {
		take(&f, &taken, &closed);
		free(taken);
	}
	fixture_deinit(&f);
}

/* Slow works make polling rare, urgent jobs make it constant. */
static void test_urgent_is_polled_for(void **state)
{
	struct fa_job *job;
	struct fa_parker *waiter;
	uint64_t pause_ns;
	struct fixture f;

	fixture_init_polled(&f, 1);
	waiter = &f.engine->parker;
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 1);
	for (uint64_t i = 1; i <= 8; i++) {
		job = submit(&f, 0);
		wait_launched(&f, i);
		fa_test_work_us(1000);
		complete(&f, job, 0);
		expect(&f, job, 0);
	}
	assert_int_not_equal(
		fa_parker_poll_pause_ns(waiter, waiter->poll_since_ns + 25 * FA_NS_PER_US), 0);
	job = submit(&f, 1);
	wait_launched(&f, 9);
	pthread_mutex_lock(&f.engine->state_mutex);
	pause_ns = fa_parker_poll_pause_ns(waiter, waiter->poll_since_ns + 150 * FA_NS_PER_US);
	pthread_mutex_unlock(&f.engine->state_mutex);
	assert_int_equal(pause_ns, 0);
	complete(&f, job, 0);
	expect(&f, job, 0);
	fixture_deinit(&f);
}

static void crowd(struct fixture *f, unsigned int group, unsigned int first, unsigned int n,
                  int priority, unsigned int each)
{
	for (unsigned int i = first; i < first + n; i++) {
		f->group[i] = group;
		stream_open(f, i, priority);
	}
	for (unsigned int j = 0; j < each; j++)
		for (unsigned int i = first; i < first + n; i++)
			(void)submit(f, i);
}

static void take_all(struct fixture *f, uint64_t n)
{
	struct fa_job *taken;
	struct fa_stream *closed;

	wait_launched(f, n);
	for (uint64_t i = 0; i < n; i++)
		complete(f, f->device.launched[i], 0);
	for (uint64_t i = 0; i < n; i++) {
		take(f, &taken, &closed);
		assert_non_null(taken);
		free(taken);
	}
}

static unsigned int stream_of(struct fixture *f, uint64_t launch)
{
	return (unsigned int)((struct fa_completion_slot *)fa_stream_owner(
				      f->device.launched[launch]->stream) -
	                      f->slots);
}

/* Groups take turns whatever their streams and priorities. */
static void test_groups_take_turns(void **state)
{
	unsigned int n_alone = 0, n[FAKE_GROUPS] = { 0 };
	struct fixture f;

	fixture_init(&f, 4096);
	block(&f, true);
	crowd(&f, 0, 0, 1, 0, 1);
	wait_launched(&f, 1);
	crowd(&f, 1, 1, 40, 1, 10);
	crowd(&f, 2, 41, 1, 0, 100);
	crowd(&f, 3, 42, 2, 0, 50);
	block(&f, false);
	wait_launched(&f, 601);
	for (uint64_t i = 1; i <= 300; i++) {
		n[f.group[stream_of(&f, i)]]++;
		n_alone += stream_of(&f, i) == 41;
		/* No group is ahead of another by more than the jobs that were submitted before. */
		assert_in_range(n[2] + 20, n[1], n[1] + 40);
		assert_in_range(n[3] + 20, n[1], n[1] + 40);
	}
	assert_int_equal(n_alone, 100);
	take_all(&f, 601);
	fixture_deinit(&f);
}

/* High priority first, but every eighth turn is a normal one's. */
static void test_priority_in_a_group(void **state)
{
	unsigned int n_normal = 0;
	struct fixture f;

	fixture_init(&f, 4096);
	block(&f, true);
	crowd(&f, 0, 0, 1, 0, 1);
	wait_launched(&f, 1);
	crowd(&f, 1, 1, 3, 0, 100);
	crowd(&f, 1, 4, 2, 1, 160);
	block(&f, false);
	wait_launched(&f, 1 + 300 + 320);
	for (uint64_t i = 1; i <= 320; i++)
		n_normal += stream_of(&f, i) < 4;
	assert_in_range(n_normal, 320 / 8 - 1, 320 / 8 + 16);
	take_all(&f, 1 + 300 + 320);
	fixture_deinit(&f);
}

/* With a job in flight and a distant deadline almost no CPU time is used. */
static void idle(bool polled)
{
	struct timespec before, after;
	struct fa_job *a;
	struct fixture f;
	uint64_t begin_ns;
	int64_t used_ns;

	if (polled)
		fixture_init_polled(&f, 1);
	else
		fixture_init(&f, 1);
	stream_open(&f, 0, 0);
	a = job_new(&f, 0);
	a->deadline_ns = fa_deadline_ns(3600 * FA_NS_PER_SEC);
	fa_engine_submit(f.engine, a);
	wait_launched(&f, 1);
	fa_test_elapse_ms(10);
	begin_ns = fa_now_ns();
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	fa_test_elapse_ms(300);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	used_ns = (after.tv_sec - before.tv_sec) * (int64_t)FA_NS_PER_SEC + after.tv_nsec -
	          before.tv_nsec;
	assert_in_range(used_ns, 0, (fa_now_ns() - begin_ns) / 10);
	complete(&f, a, 0);
	expect(&f, a, 0);
	fixture_deinit(&f);
}

static void test_idle(void **state)
{
	idle(false);
}

static void test_idle_polled(void **state)
{
	idle(true);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* The median of how late the engine notices the end of works that take @took_ns. */
static uint64_t median_delay_ns(struct fixture *f, uint64_t took_ns, size_t *n_launched)
{
	enum {
		WORKS = 15
	};
	uint64_t late_ns[WORKS], at_ns;
	struct fa_job *a, *taken;
	struct fa_stream *closed;

	for (size_t n = 0; n < WORKS; n++) {
		a = submit(f, 0);
		wait_launched(f, ++*n_launched);
		fa_test_pause_ns(took_ns);
		at_ns = fa_now_ns();
		complete(f, a, 0);
		take(f, &taken, &closed);
		late_ns[n] = fa_now_ns() - at_ns;
		assert_ptr_equal(taken, a);
		free(taken);
	}
	qsort(late_ns, WORKS, sizeof(*late_ns), compare);
	print_message("took %d us: found %d us later\n", (int)(took_ns / 1000),
	              (int)(late_ns[WORKS / 2] / 1000));
	return late_ns[WORKS / 2];
}

/*
 * A device without signals is polled: ends of short works are found sooner. Repeats, as a busy
 * machine may delay any one.
 */
static void test_polled(void **state)
{
	static const uint64_t took_ns[] = { 0, 10 * FA_NS_PER_US, 3 * FA_NS_PER_MS,
		                            40 * FA_NS_PER_MS };
	size_t n_launched = 0;
	struct fixture f;

	fixture_init_polled(&f, 2);
	stream_open(&f, 0, 0);
	for (size_t i = 0; i < sizeof(took_ns) / sizeof(*took_ns); i++) {
		const uint64_t until_ns = fa_deadline_ns(20 * FA_NS_PER_SEC);

		while (median_delay_ns(&f, took_ns[i], &n_launched) >=
		       FA_NS_PER_MS + took_ns[i] / 4)
			assert_true(fa_now_ns() < until_ns);
	}
	fixture_deinit(&f);
}

/* A submission ends the engine's sleep, however long it is. */
static void test_polled_submit(void **state)
{
	struct fa_job *a, *b;
	struct fixture f;

	fixture_init_polled(&f, 1);
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 0);
	a = submit(&f, 0);
	wait_launched(&f, 1);
	fa_test_work_us(50000);
	for (uint64_t i = 0; i < 20; i++) {
		b = submit(&f, 1);
		wait_launched(&f, i + 2);
		complete(&f, b, 0);
		expect(&f, b, 0);
	}
	fa_engine_cancel(f.engine, f.streams[0], 1, 0);
	expect(&f, a, -ECANCELED);
	fixture_deinit(&f);
}

static bool has_heartbeat(struct fixture *f, uint64_t patience_ns)
{
	const uint64_t until_ns = fa_deadline_ns(patience_ns);
	uint64_t pause_ns = 0;

	while (!fa_engine_heartbeat(f->engine)) {
		if (fa_now_ns() > until_ns)
			return false;
		fa_test_poll_pause(&pause_ns);
	}
	return true;
}

/* The heart beats while the engine sleeps or works, but not in a device call that hangs. */
static void test_heartbeat(void **state)
{
	struct fa_job *a;
	struct fixture f;

	fixture_init(&f, 1);
	stream_open(&f, 0, 0);
	for (int i = 0; i < 10; i++) {
		assert_true(has_heartbeat(&f, 20 * FA_NS_PER_SEC));
		fa_test_let_sleep_ms(10);
	}
	a = submit(&f, 0);
	wait_launched(&f, 1);
	for (int i = 0; i < 10; i++)
		assert_true(has_heartbeat(&f, 20 * FA_NS_PER_SEC));
	complete(&f, a, 0);
	expect(&f, a, 0);

	block(&f, true);
	a = submit(&f, 0);
	wait_launched(&f, 2);
	(void)fa_engine_heartbeat(f.engine);
	assert_false(has_heartbeat(&f, 200 * FA_NS_PER_MS));
	block(&f, false);
	assert_true(has_heartbeat(&f, 20 * FA_NS_PER_SEC));
	complete(&f, a, 0);
	expect(&f, a, 0);
	fixture_deinit(&f);
}

static void test_free_unstarted(void **state)
{
	static const struct fa_device_ops none;
	struct fa_engine *engine;

	assert_int_equal(fa_engine_new(&none, NULL, NULL, &engine), 0);
	fa_engine_wake(engine);
	assert_null(fa_engine_free(engine));
	assert_null(fa_engine_free(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_streams_do_not_wait_for_each_other),
		cmocka_unit_test(test_refused_in_turn),
		cmocka_unit_test(test_stream_continues_values),
		cmocka_unit_test(test_queue_fails),
		cmocka_unit_test(test_deadline_queued),
		cmocka_unit_test(test_deadline_passed_on_arrival),
		cmocka_unit_test(test_deadline_running),
		cmocka_unit_test(test_deadline_kept),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_cancel_settled),
		cmocka_unit_test(test_cancel_too_late),
		cmocka_unit_test(test_cancel_crosses_finish),
		cmocka_unit_test(test_close),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_lost_polled),
		cmocka_unit_test(test_many_streams_do_not_delay_others),
		cmocka_unit_test(test_groups_take_turns),
		cmocka_unit_test(test_priority_in_a_group),
		cmocka_unit_test(test_urgent_is_polled_for),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_idle_polled),
		cmocka_unit_test(test_polled),
		cmocka_unit_test(test_polled_submit),
		cmocka_unit_test(test_heartbeat),
		cmocka_unit_test(test_free_unstarted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
