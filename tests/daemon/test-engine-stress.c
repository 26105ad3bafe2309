/* Many streams, threads and failures at once, on a fake device. */
#include "fake-device.h"

#include <errno.h>
#include <stdlib.h>

/* A hostile client: overwrites its completion page, which clients must only read. */
struct scribbler {
	struct fa_completion_slot *slots;
	pthread_t thread;
	atomic_bool stop;
};

static void *scribbler_run(void *userdata)
{
	struct scribbler *scribbler = userdata;
	uint64_t x = 88172645463325252ull;

	while (!atomic_load(&scribbler->stop)) {
		for (int i = 0; i < FAKE_STREAMS; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			atomic_store(&scribbler->slots[i].completed, x);
			atomic_store(&scribbler->slots[i].failed, i % 2 ? 0 : x);
		}
	}
	return NULL;
}

struct stress {
	struct fixture f;
	bool attends;
	unsigned int seed, one_late_in;
	uint64_t submitted, taken;
	uint64_t taken_value[FAKE_STREAMS];
	bool closing[FAKE_STREAMS];
};

static unsigned int dice(struct stress *s, unsigned int n)
{
	return (unsigned int)rand_r(&s->seed) % n;
}

static void stress_submit(struct stress *s, unsigned int i)
{
	struct fa_job *job = job_new(&s->f, i);

	if (dice(s, 8) == 0)
		job->status = fa_fail(&job->error, -EINVAL, "refused");
	if (s->f.device.lane_slots && dice(s, 8) == 0)
		job->params.scale = FAKE_LONG;
	if (dice(s, s->one_late_in) == 0)
		job->deadline_ns = fa_deadline_ns(dice(s, 5 * FA_NS_PER_MS));
	fa_engine_submit(s->f.engine, job);
	s->submitted++;
}

/*
 * Takes at least one record: each job ends once, in stream order, with an expected status; a stream
 * ends last.
 */
static void stress_take(struct stress *s)
{
	struct fa_completion_slot *owner;
	struct fa_job *job;
	struct fa_stream *closed;
	size_t i;

	while (s->attends && !fa_engine_has_events(s->f.engine) && dice(s, 200))
		fa_engine_poll(s->f.engine);
	take(&s->f, &job, &closed);
	do {
		owner = fa_stream_owner(job ? job->stream : closed);
		i = (size_t)(owner - s->f.slots);
		if (closed) {
			assert_true(s->closing[i]);
			assert_int_equal(s->taken_value[i], s->f.last[i]);
			s->f.streams[i] = fa_stream_free(closed);
			s->closing[i] = false;
			continue;
		}
		assert_int_equal(job->value, ++s->taken_value[i]);
		assert_true(stream_finished(job->stream) >= job->value);
		switch (job->status) {
		case 0:
		case -EIO:
			assert_true(job->finished_ns >= job->started_ns);
			assert_true(job->started_ns >= job->queued_ns);
			break;
		case -EINVAL:
			assert_int_equal(job->started_ns, 0);
			break;
		default:
			assert_true(job->status == -ETIMEDOUT || job->status == -ECANCELED ||
			            job->status == -ECONNRESET);
		}
		free(job);
		s->taken++;
	} while (fa_engine_take(s->f.engine, &job, &closed));
}

/* Streams come and go with requests that are refused, late, cancelled or closed at random. */
static void stress(bool polled, bool attends, unsigned int one_late_in, unsigned int slots)
{
	const uint64_t total = 60000;
	static struct stress s;
	struct scribbler scribbler = { .slots = s.f.slots };
	struct fa_engine_stats stats;
	unsigned int i;

	s = (struct stress){ .seed = 3, .attends = attends, .one_late_in = one_late_in };
	if (slots)
		fixture_init_lanes(&s.f, 3, slots, polled);
	else if (polled)
		fixture_init_polled(&s.f, 3);
	else
		fixture_init(&s.f, 3);
	for (i = 0; i < FAKE_STREAMS; i++)
		s.f.group[i] = i % FAKE_GROUPS;
	completer_start(&s.f);
	assert_int_equal(pthread_create(&scribbler.thread, NULL, scribbler_run, &scribbler), 0);
	while (s.taken < total) {
		if (slots && dice(&s, 16) == 0)
			hold_long(&s.f, dice(&s, 4) == 0);
		i = dice(&s, FAKE_STREAMS);
		if (s.closing[i] || s.submitted == total || s.submitted - s.taken > 2000) {
			if (s.f.device.holds)
				hold_long(&s.f, false);
			stress_take(&s);
			continue;
		}
		if (!s.f.streams[i])
			stream_open(&s.f, i, dice(&s, 4) == 0);
		if (attends)
			fa_engine_batch_begin(s.f.engine);
		for (unsigned int n = dice(&s, 20) % (attends ? 5 : 20);
		     n > 0 && s.submitted < total; n--)
			stress_submit(&s, i);
		if (attends && dice(&s, 16) == 0)
			fa_engine_cancel(s.f.engine, s.f.streams[i], s.f.last[i], 0);
		for (unsigned int n = attends + dice(&s, 3) * attends; n > 0; n--)
			fa_engine_poll(s.f.engine);
		for (unsigned int n = dice(&s, 4); n > 0; n--)
			fa_engine_cancel(s.f.engine, s.f.streams[i], s.f.last[i] - dice(&s, 30), 0);
		if (attends && dice(&s, 64) == 0)
			fa_engine_poll_end(s.f.engine);
		if (dice(&s, 32) == 0) {
			fa_engine_stream_close(s.f.engine, s.f.streams[i], -ECONNRESET);
			s.closing[i] = true;
		}
	}
	hold_long(&s.f, false);
	for (i = 0; i < FAKE_STREAMS; i++)
		while (s.closing[i])
			stress_take(&s);

	fa_engine_stats(s.f.engine, &stats);
	assert_int_equal(stats.submitted, total);
	assert_int_equal(stats.finished, total);
	assert_true(stats.launched > 0 && stats.launched < total);
	assert_true(stats.cancelled > 0 && stats.failed > 0);

	atomic_store(&scribbler.stop, true);
	pthread_join(scribbler.thread, NULL);
	completer_stop(&s.f);
	fixture_deinit(&s.f);
}

static void test_stress(void **state)
{
	stress(false, false, 4, 0);
}

static void test_stress_polled(void **state)
{
	stress(true, false, 4, 0);
}

static void test_stress_attended(void **state)
{
	stress(true, true, 4, 0);
}

/* Works are launched at once where no deadline can have passed. */
static void test_stress_at_once(void **state)
{
	stress(true, true, 2000, 0);
}

static void test_stress_lanes(void **state)
{
	stress(false, false, 4, 4);
	stress(true, false, 4, 1);
	stress(true, true, 2000, 4);
}

/* One job at a time: after a lost wake-up this test does not end. */
static void test_ping_pong(void **state)
{
	struct fa_job *job;
	struct fa_stream *closed;
	struct fixture f;

	fixture_init(&f, 1);
	stream_open(&f, 0, 0);
	completer_start(&f);
	for (int i = 0; i < 20000; i++) {
		(void)submit(&f, 0);
		take(&f, &job, &closed);
		assert_int_equal(job->value, i + 1);
		free(job);
	}
	completer_stop(&f);
	fixture_deinit(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stress),          cmocka_unit_test(test_stress_polled),
		cmocka_unit_test(test_stress_attended), cmocka_unit_test(test_stress_at_once),
		cmocka_unit_test(test_stress_lanes),    cmocka_unit_test(test_ping_pong),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
