/*
 * The engine on a fake device whose lanes refuse works beyond a few slots: which waiting job gets a
 * slot, and which needs none.
 */
#include "daemon/engine/private.h"
#include "fake-device.h"
#include "tests/lib/pause.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS 4

static struct fa_job *submit_long(struct fixture *f, unsigned int i)
{
	struct fa_job *job = job_new(f, i);

	job->params.scale = FAKE_LONG;
	fa_engine_submit(f->engine, job);
	return job;
}

static unsigned int stream_of(struct fixture *f, uint64_t launch)
{
	return (unsigned int)((struct fa_completion_slot *)fa_stream_owner(
				      f->device.launched[launch]->stream) -
	                      f->slots);
}

/* Waits until the engine has tried every job whose lane had a slot. */
static void settle(struct fixture *f)
{
	for (int i = 0; i < 2; i++)
		for (uint64_t pause_ns = 0; !fa_engine_heartbeat(f->engine);)
			fa_test_poll_pause(&pause_ns);
}

/*
 * Between these two calls the engine is held in launch(), to get all submitted jobs at once. Launch
 * 0 is the blocking stream's, in lane @priority > 0 ? 0 : 1.
 */
#define BLOCKER 63

static struct fa_job *pause_begin(struct fixture *f, int priority)
{
	struct fa_job *job;

	f->group[BLOCKER] = FAKE_GROUPS - 1;
	stream_open(f, BLOCKER, priority);
	block(f, true);
	job = submit(f, BLOCKER);
	wait_launched(f, 1);
	return job;
}

static void pause_end(struct fixture *f, struct fa_job *job)
{
	block(f, false);
	complete(f, job, 0);
	expect(f, job, 0);
	settle(f);
}

static void drain(struct fixture *f, uint64_t first, uint64_t n, uint64_t slots,
                  unsigned int *ret_order)
{
	const uint64_t end = first + n;
	struct fa_stream *closed;
	struct fa_job *job;

	for (uint64_t i = first; i < end; i++) {
		wait_launched(f, i + slots < end ? i + slots : end);
		ret_order[i - first] = stream_of(f, i);
		complete(f, f->device.launched[i], 0);
		take(f, &job, &closed);
		assert_ptr_equal(job, f->device.launched[i]);
		free(job);
	}
}

static void test_depth(void **state)
{
	unsigned int order[40];
	struct fixture f;

	fixture_init_lanes(&f, 40, SLOTS, false);
	stream_open(&f, 0, 0);
	for (int i = 0; i < 40; i++)
		(void)submit(&f, 0);
	wait_refused(&f, 1, 0);
	settle(&f);
	wait_launched(&f, SLOTS);
	drain(&f, 0, 40, SLOTS, order);
	fixture_deinit(&f);
}

/*
 * Many streams do not delay a single one: after what the lane held, every second slot is the quiet
 * group's.
 */
static void turns(bool polled)
{
	enum {
		LOUD = 37,
		QUIET = 3
	};
	unsigned int order[LOUD + QUIET], n_loud = 0;
	struct fa_job *blocker;
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, SLOTS, polled);
	for (unsigned int i = 0; i <= 10; i++) {
		f.group[i] = i == 10;
		stream_open(&f, i, 1);
	}
	blocker = pause_begin(&f, 0);
	for (unsigned int i = 0; i < LOUD; i++)
		(void)submit(&f, i % 10);
	pause_end(&f, blocker);
	for (unsigned int i = 0; i < QUIET; i++)
		(void)submit(&f, 10);
	settle(&f);
	wait_launched(&f, 1 + SLOTS);
	drain(&f, 1, LOUD + QUIET, SLOTS, order);
	for (unsigned int i = 0; i < QUIET; i++)
		assert_int_equal(order[SLOTS + 1 + 2 * i], 10);
	for (unsigned int i = 0; i < LOUD + QUIET; i++)
		if (order[i] != 10)
			assert_int_equal(order[i], n_loud++ % 10);
	fixture_deinit(&f);
}

static void test_turns(void **state)
{
	turns(false);
}

static void test_turns_polled(void **state)
{
	turns(true);
}

/* One slot refuses works between any two launches; still no stream is skipped. */
static void test_one_slot(void **state)
{
	struct fa_job *blocker;
	unsigned int order[30];
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, 1, false);
	for (unsigned int i = 0; i < 3; i++)
		stream_open(&f, i, 0);
	blocker = pause_begin(&f, 1);
	for (unsigned int i = 0; i < 30; i++)
		(void)submit(&f, i % 3);
	pause_end(&f, blocker);
	drain(&f, 1, 30, 1, order);
	for (unsigned int i = 0; i < 30; i++)
		assert_int_equal(order[i], i % 3);
	fixture_deinit(&f);
}

/* A group's usage of a lane does not count in another. */
static void test_other_lane(void **state)
{
	struct fa_job *blocker;
	unsigned int order[50];
	struct fixture f;

	fixture_init_lanes(&f, 50, SLOTS, false);
	f.group[1] = f.group[2] = 1;
	stream_open(&f, 0, 0);
	blocker = pause_begin(&f, 1);
	for (int i = 0; i < 50; i++)
		(void)submit(&f, 0);
	pause_end(&f, blocker);
	drain(&f, 1, 50, SLOTS, order);
	fa_engine_stream_close(f.engine, f.streams[0], -ECANCELED);
	expect_closed(&f, 0);

	f.device.lane = 2;
	f.device.lane_slots = 1;
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 0);
	for (unsigned int i = 0; i < 12; i++)
		(void)submit(&f, i % 2);
	settle(&f);
	drain(&f, 51, 12, 1, order);
	/* Submitted one by one, the first jobs may have been alone. */
	for (unsigned int i = 2; i + 3 < 12; i++)
		assert_int_equal(order[i], order[i + 2]);
	fixture_deinit(&f);
}

static void test_lanes_do_not_wait_for_each_other(void **state)
{
	struct fa_job *a, *b, *c;
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, 1, false);
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 1);
	f.group[2] = 1;
	stream_open(&f, 2, 0);
	a = submit(&f, 0);
	wait_launched(&f, 1);
	c = submit(&f, 2);
	wait_refused(&f, 1, 0);
	b = submit(&f, 1);
	wait_launched(&f, 2);
	assert_ptr_equal(f.device.launched[1], b);
	complete(&f, b, 0);
	expect(&f, b, 0);
	settle(&f);
	wait_launched(&f, 2);
	complete(&f, a, 0);
	expect(&f, a, 0);
	wait_launched(&f, 3);
	complete(&f, c, 0);
	expect(&f, c, 0);
	fixture_deinit(&f);
}

/* Jobs without device work and refused ones need no slot. */
static void test_no_work(void **state)
{
	struct fa_job *a, *b, *none, *refused;
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, 1, false);
	f.group[1] = 1;
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 0);
	a = submit(&f, 1);
	wait_launched(&f, 1);
	complete(&f, a, 0);
	expect(&f, a, 0);
	a = submit(&f, 0);
	wait_launched(&f, 2);
	b = submit(&f, 0);
	wait_refused(&f, 1, 0);
	none = job_new(&f, 1);
	none->work.op = FA_DEVICE_NONE;
	fa_engine_submit(f.engine, none);
	expect(&f, none, 0);
	refused = job_new(&f, 1);
	refused->status = fa_fail(&refused->error, -EINVAL, "no");
	fa_engine_submit(f.engine, refused);
	expect(&f, refused, -EINVAL);
	complete(&f, a, 0);
	expect(&f, a, 0);
	wait_launched(&f, 3);
	complete(&f, b, 0);
	expect(&f, b, 0);
	fixture_deinit(&f);
}

/* A cancelled waiting job ends at once, out of stream order. */
static void test_cancel(void **state)
{
	struct fa_job *a, *b, *c, *d;
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, 1, false);
	f.device.stubbornness = FAKE_IGNORES;
	stream_open(&f, 0, 1);
	stream_open(&f, 1, 1);
	a = submit(&f, 0);
	wait_launched(&f, 1);
	b = submit(&f, 0);
	c = submit(&f, 1);
	d = submit(&f, 1);
	wait_refused(&f, 1, 0);
	fa_engine_cancel(f.engine, f.streams[1], c->value, 0);
	expect(&f, c, -ECANCELED);
	/* A cancelled job behind a running one ends in its turn. */
	fa_engine_cancel(f.engine, f.streams[0], b->value, 0);
	expect_nothing(&f);
	assert_int_equal(f.device.n_cancelled, 0);
	wait_launched(&f, 1);
	/* Work in the device cannot be stopped. */
	fa_engine_cancel(f.engine, f.streams[0], a->value, 0);
	wait_cancelled(&f, 1);
	expect_nothing(&f);
	complete(&f, a, 0);
	expect(&f, a, 0);
	expect(&f, b, -ECANCELED);
	wait_launched(&f, 2);
	assert_ptr_equal(f.device.launched[1], d);
	complete(&f, d, 0);
	expect(&f, d, 0);
	fixture_deinit(&f);
}

static void test_wanted(void **state)
{
	struct fa_device_lane *lane;
	struct fa_job *a, *b;
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, 1, false);
	lane = &f.device.lanes[1].lane;
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 0);
	a = submit(&f, 0);
	wait_launched(&f, 1);
	settle(&f);
	assert_false(lane->wanted);
	b = submit(&f, 1);
	wait_refused(&f, 1, 0);
	settle(&f);
	assert_true(lane->wanted);
	fa_engine_cancel(f.engine, f.streams[1], b->value, 0);
	expect(&f, b, -ECANCELED);
	assert_false(lane->wanted);
	complete(&f, a, 0);
	expect(&f, a, 0);
	fixture_deinit(&f);
}

static void test_deadline(void **state)
{
	struct fa_job *a, *b, *c;
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, 1, false);
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 0);
	a = submit(&f, 0);
	wait_launched(&f, 1);
	b = job_new(&f, 1);
	b->deadline_ns = fa_deadline_ns(10 * FA_NS_PER_MS);
	fa_engine_submit(f.engine, b);
	c = submit(&f, 1);
	expect(&f, b, -ETIMEDOUT);
	complete(&f, a, 0);
	expect(&f, a, 0);
	wait_launched(&f, 2);
	complete(&f, c, 0);
	expect(&f, c, 0);
	fixture_deinit(&f);
}

static void test_close(void **state)
{
	struct fa_job *a, *b, *c;
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, 1, false);
	f.group[1] = 1;
	stream_open(&f, 0, 0);
	stream_open(&f, 1, 0);
	a = submit(&f, 0);
	wait_launched(&f, 1);
	b = submit(&f, 1);
	c = submit(&f, 1);
	wait_refused(&f, 1, 0);
	fa_engine_stream_close(f.engine, f.streams[1], -ECONNRESET);
	expect(&f, b, -ECONNRESET);
	expect(&f, c, -ECONNRESET);
	expect_closed(&f, 1);
	complete(&f, a, 0);
	expect(&f, a, 0);
	wait_launched(&f, 1);
	fixture_deinit(&f);
}

/*
 * When the device is lost, waiting and held jobs end at once, running ones when the device returns
 * them.
 */
static void lost(bool polled)
{
	struct fa_job *a, *b, *c;
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, 1, polled);
	for (unsigned int i = 0; i < 3; i++) {
		f.group[i] = i;
		stream_open(&f, i, i == 2);
	}
	a = submit(&f, 0);
	wait_launched(&f, 1);
	b = submit(&f, 1);
	wait_refused(&f, 1, 0);
	hold_long(&f, true);
	c = submit_long(&f, 2);
	wait_refused(&f, 1, 1);
	lose(&f);
	for (int i = 0; i < 2; i++) {
		struct fa_stream *closed;
		struct fa_job *job;

		take(&f, &job, &closed);
		assert_true(job == b || job == c);
		assert_int_equal(job->status, -ENODEV);
		free(job);
	}
	expect_nothing(&f);
	complete(&f, a, -ENODEV);
	expect(&f, a, -ENODEV);
	wait_launched(&f, 1);
	fixture_deinit(&f);
}

static void test_lost(void **state)
{
	lost(false);
	lost(true);
}

/*
 * While the device refuses a job, other streams' jobs go first. The engine retries after each reap;
 * later jobs of the stream wait.
 */
static void held(bool polled)
{
	struct fa_job *a, *b, *c, *d;
	struct fa_device_lane *lane;
	int at_a = 0, at_d = 0;
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, SLOTS, polled);
	lane = &f.device.lanes[1].lane;
	for (unsigned int i = 0; i < 3; i++)
		stream_open(&f, i, 0);
	hold_long(&f, true);
	a = submit_long(&f, 0);
	wait_refused(&f, 0, 1);
	b = submit_long(&f, 1);
	wait_refused(&f, 0, 3);
	c = submit(&f, 2);
	wait_launched(&f, 1);
	assert_ptr_equal(f.device.launched[0], c);
	settle(&f);
	assert_false(lane->wanted);
	complete(&f, c, 0);
	expect(&f, c, 0);
	d = submit(&f, 0);
	settle(&f);
	wait_launched(&f, 1);
	hold_long(&f, false);
	wait_launched(&f, 4);
	/* The engine may have been between the retries of a and b when the device was released. */
	for (int i = 1; i < 4; i++) {
		if (f.device.launched[i] == a)
			at_a = i;
		else if (f.device.launched[i] == d)
			at_d = i;
		else
			assert_ptr_equal(f.device.launched[i], b);
	}
	assert_true(at_a && at_a < at_d);
	settle(&f);
	assert_int_equal(lane->n_deferred, 0);
	complete(&f, a, 0);
	expect(&f, a, 0);
	complete(&f, b, 0);
	expect(&f, b, 0);
	complete(&f, d, 0);
	expect(&f, d, 0);
	fixture_deinit(&f);
}

static void test_held(void **state)
{
	held(false);
	held(true);
}

/* A cancelled held job ends at once, and the jobs behind it go on. */
static void test_held_cancelled(void **state)
{
	struct fa_job *a, *b;
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, SLOTS, true);
	stream_open(&f, 0, 0);
	hold_long(&f, true);
	a = submit_long(&f, 0);
	b = submit(&f, 0);
	wait_refused(&f, 0, 10);
	fa_engine_cancel(f.engine, f.streams[0], a->value, 0);
	expect(&f, a, -ECANCELED);
	wait_launched(&f, 1);
	assert_ptr_equal(f.device.launched[0], b);
	settle(&f);
	assert_int_equal(f.device.lanes[1].lane.n_deferred, 0);
	complete(&f, b, 0);
	expect(&f, b, 0);
	fixture_deinit(&f);
}

/* A job that is released while its lane is full waits for a slot. */
static void test_held_then_full(void **state)
{
	struct fa_job *a, *b, *c;
	struct fixture f;

	fixture_init_lanes(&f, SLOTS, 1, true);
	for (unsigned int i = 0; i < 3; i++)
		stream_open(&f, i, 0);
	hold_long(&f, true);
	a = submit_long(&f, 0);
	wait_refused(&f, 0, 1);
	b = submit(&f, 1);
	wait_launched(&f, 1);
	c = submit(&f, 2);
	wait_refused(&f, 1, 1);
	hold_long(&f, false);
	settle(&f);
	wait_launched(&f, 1);
	complete(&f, b, 0);
	expect(&f, b, 0);
	wait_launched(&f, 2);
	complete(&f, f.device.launched[1], 0);
	wait_launched(&f, 3);
	complete(&f, f.device.launched[2], 0);
	if (f.device.launched[1] == a) {
		expect(&f, a, 0);
		expect(&f, c, 0);
	} else {
		expect(&f, c, 0);
		expect(&f, a, 0);
	}
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_depth),
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_turns_polled),
		cmocka_unit_test(test_one_slot),
		cmocka_unit_test(test_other_lane),
		cmocka_unit_test(test_lanes_do_not_wait_for_each_other),
		cmocka_unit_test(test_no_work),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_wanted),
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_close),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_held),
		cmocka_unit_test(test_held_cancelled),
		cmocka_unit_test(test_held_then_full),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
