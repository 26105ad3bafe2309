/* Gates in the engine, on a fake device: which jobs wait, and what is signalled. */
#include "daemon/engine/gate.h"
#include "daemon/persist/timeline_release.h"
#include "fake-device.h"
#include "tests/lib/pause.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct scene {
	struct fixture f;
	struct fa_timeline_in in[FA_TIMELINE_SLOTS];
	struct fa_timeline_out out[FA_TIMELINE_SLOTS];
	struct fa_timeline_words words;
};

static void scene_init(struct scene *s, unsigned int depth, bool polled)
{
	memset(s->in, 0, sizeof(s->in));
	memset(s->out, 0, sizeof(s->out));
	memset(&s->words, 0, sizeof(s->words));
	s->words.in = s->in;
	s->words.out = s->out;
	pthread_mutex_init(&s->words.mutex, NULL);
	(polled ? fixture_init_polled : fixture_init)(&s->f, depth);
}

static void scene_deinit(struct scene *s)
{
	fixture_deinit(&s->f);
	pthread_mutex_destroy(&s->words.mutex);
}

static struct fa_gates *gates_new(struct scene *s, unsigned int wait, uint64_t wait_value,
                                  unsigned int signal, uint64_t signal_value)
{
	struct fa_gates *gates = calloc(1, sizeof(*gates) + 2 * sizeof(struct fa_gate));

	gates->words = &s->words;
	if (wait_value)
		gates->gates[gates->n_waits++] = (struct fa_gate){ .slot = wait,
			                                           .value = wait_value };
	if (signal_value)
		fa_gates_signals(gates)[gates->n_signals++] =
			(struct fa_gate){ .slot = signal, .value = signal_value };
	return gates;
}

static struct fa_job *submit_gated(struct scene *s, unsigned int stream, struct fa_gates *gates)
{
	struct fa_job *job = job_new(&s->f, stream);

	job->gates = gates;
	fa_engine_submit(s->f.engine, job);
	return job;
}

static void set(struct scene *s, unsigned int slot, uint64_t value)
{
	atomic_store_explicit(&s->in[slot].value, value, memory_order_release);
}

static uint64_t n_launched(struct scene *s)
{
	uint64_t n;

	pthread_mutex_lock(&s->f.device.mutex);
	n = s->f.device.n_launched;
	pthread_mutex_unlock(&s->f.device.mutex);
	return n;
}

static void holds_until_it_opens(bool polled)
{
	struct fa_gates *gates;
	struct fa_job *a, *b;
	struct scene s;

	scene_init(&s, 4, polled);
	stream_open(&s.f, 0, 0);
	gates = gates_new(&s, 3, 5, 9, 70);
	a = submit_gated(&s, 0, gates);
	b = submit(&s.f, 0);
	for (int i = 0; i < 5; i++) {
		fa_test_let_sleep_ms(2);
		set(&s, 3, (uint64_t)i);
		expect_nothing(&s.f);
		assert_int_equal(n_launched(&s), 0);
	}
	set(&s, 3, 5);
	wait_launched(&s.f, 2);
	assert_ptr_equal(s.f.device.launched[0], a);
	assert_ptr_equal(s.f.device.launched[1], b);
	assert_int_equal(s.out[9].value, 0);
	complete(&s.f, a, 0);
	complete(&s.f, b, 0);
	expect(&s.f, a, 0);
	assert_int_equal(s.out[9].value, 70);
	assert_int_equal(s.out[9].status, 0);
	assert_int_equal(s.words.values[9], 70);
	expect(&s.f, b, 0);
	free(gates);
	scene_deinit(&s);
}

static void test_holds_until_it_opens(void **state)
{
	holds_until_it_opens(false);
}

static void test_holds_until_it_opens_polled(void **state)
{
	holds_until_it_opens(true);
}

/* Values past the gate's own meet it, also when they wrap around. */
static void test_values(void **state)
{
	static const struct {
		uint64_t word, value;
		bool met;
	} cases[] = {
		{ 1, 1, true },
		{ 2, 1, true },
		{ 0, 1, false },
		{ 3, UINT64_MAX, true },
		{ UINT64_MAX, 3, false },
		{ INT64_MAX, 1, true },
		{ FA_TIMELINE_RELEASE + 7, 7, true },
		{ 7, FA_TIMELINE_RELEASE, false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(fa_timeline_reached(cases[i].word, cases[i].value), cases[i].met);
}

/* A gate once met stays met, whatever the client writes. */
static void test_met_stays_met(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));
	struct fa_gates *gates = calloc(1, sizeof(*gates) + 2 * sizeof(struct fa_gate));

	s->words.in = s->in;
	s->words.out = s->out;
	gates->words = &s->words;
	gates->n_waits = 2;
	gates->gates[0] = (struct fa_gate){ .slot = 0, .value = 4 };
	gates->gates[1] = (struct fa_gate){ .slot = 1, .value = 1, .out = true };
	assert_false(fa_gates_met(gates));
	set(s, 0, 4);
	set(s, 1, 9); /* the client's slot of that number does not count */
	assert_false(fa_gates_met(gates));
	set(s, 0, 0);
	/* The daemon compares its own copy, not the shared word. */
	s->out[1].value = 1;
	assert_false(fa_gates_met(gates));
	s->words.values[1] = 1;
	assert_true(fa_gates_met(gates));
	free(gates);
	free(s);
}

static void test_others_go_on(void **state)
{
	enum {
		ROUNDS = 50
	};
	struct fa_gates *gates;
	struct fa_job *shut;
	struct scene s;

	scene_init(&s, 2, false);
	for (unsigned int i = 0; i < FAKE_STREAMS; i++)
		stream_open(&s.f, i, 0);
	gates = gates_new(&s, 0, 1, 0, 0);
	shut = submit_gated(&s, 0, gates);
	for (unsigned int round = 0; round < ROUNDS; round++)
		for (unsigned int i = 1; i < FAKE_STREAMS; i++) {
			struct fa_job *job = submit(&s.f, i);

			wait_launched(&s.f, round * (FAKE_STREAMS - 1) + i);
			complete(&s.f, job, 0);
			expect(&s.f, job, 0);
		}
	fa_engine_cancel(s.f.engine, s.f.streams[0], 1, 0);
	expect(&s.f, shut, -ECANCELED);
	free(gates);
	scene_deinit(&s);
}

/* More gates than one round polls. */
static void test_many_gates(void **state)
{
	struct fa_job *jobs[FAKE_STREAMS];
	struct fa_gates *gates[FAKE_STREAMS];
	struct scene s;

	scene_init(&s, 1, false);
	for (unsigned int i = 0; i < FAKE_STREAMS; i++) {
		stream_open(&s.f, i, 0);
		gates[i] = gates_new(&s, i, 10, 0, 0);
		jobs[i] = submit_gated(&s, i, gates[i]);
	}
	for (unsigned int i = FAKE_STREAMS; i-- > 0;) {
		if (i % 8 == 0)
			fa_test_let_sleep_ms(3);
		set(&s, i, 10);
		wait_launched(&s.f, FAKE_STREAMS - i);
		assert_ptr_equal(s.f.device.launched[FAKE_STREAMS - i - 1], jobs[i]);
		complete(&s.f, jobs[i], 0);
		expect(&s.f, jobs[i], 0);
		free(gates[i]);
	}
	scene_deinit(&s);
}

static void test_ends_behind_a_gate(void **state)
{
	struct fa_job *late, *cancelled, *closed;
	struct fa_gates *gates[3];
	struct scene s;

	scene_init(&s, 1, false);
	stream_open(&s.f, 0, 0);
	for (unsigned int i = 0; i < 3; i++)
		gates[i] = gates_new(&s, 0, 1, i, 100);
	late = job_new(&s.f, 0);
	late->gates = gates[0];
	late->deadline_ns = fa_deadline_ns(10 * FA_NS_PER_MS);
	fa_engine_submit(s.f.engine, late);
	cancelled = submit_gated(&s, 0, gates[1]);
	closed = submit_gated(&s, 0, gates[2]);
	expect(&s.f, late, -ETIMEDOUT);
	assert_int_equal(s.out[0].value, 100);
	assert_int_equal(s.out[0].status, -ETIMEDOUT);
	assert_int_equal(s.out[0].failed, 100);
	assert_int_equal(s.out[1].value, 0);
	fa_engine_cancel(s.f.engine, s.f.streams[0], 2, 0);
	expect(&s.f, cancelled, -ECANCELED);
	assert_int_equal(s.out[1].value, 100);
	assert_int_equal(s.out[1].status, -ECANCELED);
	fa_engine_stream_close(s.f.engine, s.f.streams[0], -ECONNRESET);
	expect(&s.f, closed, -ECONNRESET);
	assert_int_equal(s.out[2].value, 100);
	assert_int_equal(s.out[2].status, -ECONNRESET);
	expect_closed(&s.f, 0);
	assert_int_equal(s.f.device.n_launched, 0);
	for (unsigned int i = 0; i < 3; i++)
		free(gates[i]);
	scene_deinit(&s);
}

static void test_device_lost(void **state)
{
	struct fa_gates *gates;
	struct fa_job *a;
	struct scene s;

	scene_init(&s, 1, false);
	stream_open(&s.f, 0, 0);
	gates = gates_new(&s, 0, 1, 1, 1);
	a = submit_gated(&s, 0, gates);
	fa_test_let_sleep_ms(2);
	lose(&s.f);
	expect(&s.f, a, -ENODEV);
	assert_int_equal(s.out[1].status, -ENODEV);
	assert_int_equal(s.out[1].value, 1);
	free(gates);
	scene_deinit(&s);
}

/* Refused jobs wait for their turn but not for gates, and they signal. */
static void test_refused(void **state)
{
	struct fa_job *a, *refused;
	struct fa_gates *gates;
	struct scene s;

	scene_init(&s, 1, false);
	stream_open(&s.f, 0, 0);
	a = submit(&s.f, 0);
	gates = gates_new(&s, 0, 1, 5, 3);
	refused = job_new(&s.f, 0);
	refused->gates = gates;
	refused->status = fa_fail(&refused->error, -EINVAL, "no");
	fa_engine_submit(s.f.engine, refused);
	wait_launched(&s.f, 1);
	expect_nothing(&s.f);
	assert_int_equal(s.out[5].value, 0);
	complete(&s.f, a, 0);
	expect(&s.f, a, 0);
	expect(&s.f, refused, -EINVAL);
	assert_int_equal(s.out[5].value, 3);
	assert_int_equal(s.out[5].failed, 3);
	free(gates);
	scene_deinit(&s);
}

/* A gated job behind a refused job behind a running one: its gate is polled all the same. */
static void behind_refused(bool has_work, bool cancelled)
{
	struct fa_job *a, *refused, *c;
	struct fa_gates *gates;
	struct scene s;

	scene_init(&s, 4, false);
	stream_open(&s.f, 0, 0);
	a = submit(&s.f, 0);
	wait_launched(&s.f, 1);
	refused = job_new(&s.f, 0);
	if (!cancelled)
		refused->status = fa_fail(&refused->error, -EINVAL, "no");
	else
		refused->held = true;
	fa_engine_submit(s.f.engine, refused);
	gates = gates_new(&s, 2, 7, 5, 3);
	c = job_new(&s.f, 0);
	if (!has_work)
		c->work.op = FA_DEVICE_NONE;
	c->gates = gates;
	fa_engine_submit(s.f.engine, c);
	if (cancelled)
		fa_engine_cancel(s.f.engine, refused->stream, refused->value, -ECANCELED);
	for (int i = 0; i < 5; i++) {
		fa_test_let_sleep_ms(2);
		expect_nothing(&s.f);
		assert_int_equal(n_launched(&s), 1);
		assert_int_equal(s.out[5].value, 0);
	}
	complete(&s.f, a, 0);
	expect(&s.f, a, 0);
	expect(&s.f, refused, cancelled ? -ECANCELED : -EINVAL);
	fa_test_let_sleep_ms(2);
	expect_nothing(&s.f);
	assert_int_equal(n_launched(&s), 1);
	set(&s, 2, 7);
	if (has_work) {
		wait_launched(&s.f, 2);
		complete(&s.f, c, 0);
	}
	expect(&s.f, c, 0);
	assert_int_equal(s.out[5].value, 3);
	free(gates);
	scene_deinit(&s);
}

static void test_behind_refused(void **state)
{
	for (int i = 0; i < 4; i++)
		behind_refused(i & 1, i & 2);
}

static void test_words_never_fall(void **state)
{
	struct fa_gates *gates[2];
	struct fa_job *a, *b;
	struct scene s;

	scene_init(&s, 1, false);
	stream_open(&s.f, 0, 0);
	stream_open(&s.f, 1, 0);
	gates[0] = gates_new(&s, 0, 0, 5, 1);
	gates[1] = gates_new(&s, 0, 0, 5, 2);
	a = submit_gated(&s, 0, gates[0]);
	b = submit_gated(&s, 1, gates[1]);
	wait_launched(&s.f, 2);
	complete(&s.f, b, 0);
	expect(&s.f, b, 0);
	assert_int_equal(s.out[5].value, 2);
	complete(&s.f, a, 0);
	expect(&s.f, a, 0);
	assert_int_equal(s.out[5].value, 2);
	free(gates[0]);
	free(gates[1]);
	scene_deinit(&s);
}

#define CHAIN 6

static void submit_chain(struct scene *s, struct fa_gates **gates, struct fa_job **jobs)
{
	for (unsigned int i = 0; i < CHAIN; i++) {
		gates[i] = gates_new(s, 0, 1 + i, 0, 1 + i);
		jobs[i] = job_new(&s->f, 0);
		jobs[i]->gates = gates[i];
		jobs[i]->chained = i != 0;
		fa_engine_submit(s->f.engine, jobs[i]);
	}
}

static void expect_chain(struct scene *s, struct fa_gates **gates, struct fa_job **jobs,
                         unsigned int first_failed, int status)
{
	for (unsigned int i = 0; i < CHAIN; i++) {
		expect(&s->f, jobs[i], i < first_failed ? 0 : status);
		free(gates[i]);
	}
	assert_int_equal(s->out[0].value, CHAIN);
	assert_int_equal(s->out[0].status, status);
}

/*
 * A chain's job fails: the chain's jobs that wait, run or have run end with its error; later ones
 * do not.
 */
static void test_chain_fails(void **state)
{
	struct fa_job *jobs[CHAIN], *after;
	struct fa_gates *gates[CHAIN];
	struct scene s;

	scene_init(&s, 4, false);
	s.f.device.stubbornness = FAKE_IGNORES;
	stream_open(&s.f, 0, 0);
	submit_chain(&s, gates, jobs);
	after = submit(&s.f, 0);
	set(&s, 0, 4);
	wait_launched(&s.f, 4);
	complete(&s.f, jobs[0], 0);
	complete(&s.f, jobs[2], 0);
	expect(&s.f, jobs[0], 0);
	complete(&s.f, jobs[1], -EIO);
	expect(&s.f, jobs[1], -EIO);
	expect(&s.f, jobs[2], -EIO);
	wait_cancelled(&s.f, 1);
	expect_nothing(&s.f);
	complete(&s.f, jobs[3], 0);
	expect(&s.f, jobs[3], -EIO);
	expect(&s.f, jobs[4], -EIO);
	expect(&s.f, jobs[5], -EIO);
	assert_int_equal(s.out[0].value, CHAIN);
	assert_int_equal(s.out[0].failed, CHAIN);
	wait_launched(&s.f, 5);
	assert_ptr_equal(s.f.device.launched[4], after);
	complete(&s.f, after, 0);
	expect(&s.f, after, 0);
	for (unsigned int i = 0; i < CHAIN; i++)
		free(gates[i]);
	scene_deinit(&s);
}

static void test_chain_cancelled(void **state)
{
	for (unsigned int i = 0; i < CHAIN; i++) {
		struct fa_job *jobs[CHAIN];
		struct fa_gates *gates[CHAIN];
		struct scene s;

		scene_init(&s, 1, false);
		stream_open(&s.f, 0, 0);
		submit_chain(&s, gates, jobs);
		fa_engine_cancel(s.f.engine, s.f.streams[0], 1 + i, 0);
		expect_chain(&s, gates, jobs, 0, -ECANCELED);
		assert_int_equal(s.f.device.n_launched, 0);
		scene_deinit(&s);
	}
}

static void test_chain_late(void **state)
{
	struct fa_job *jobs[CHAIN];
	struct fa_gates *gates[CHAIN];
	struct scene s;

	scene_init(&s, 1, false);
	stream_open(&s.f, 0, 0);
	for (unsigned int i = 0; i < CHAIN; i++) {
		gates[i] = gates_new(&s, 0, 1 + i, 0, 1 + i);
		jobs[i] = job_new(&s.f, 0);
		jobs[i]->gates = gates[i];
		jobs[i]->chained = i != 0;
		jobs[i]->deadline_ns = fa_deadline_ns(i == 2 ? 10 * FA_NS_PER_MS
		                                             : 600 * FA_NS_PER_SEC);
		fa_engine_submit(s.f.engine, jobs[i]);
	}
	for (unsigned int i = 0; i < 2; i++) {
		set(&s, 0, i + 1);
		wait_launched(&s.f, i + 1);
		complete(&s.f, jobs[i], 0);
	}
	expect_chain(&s, gates, jobs, 2, -ETIMEDOUT);
	scene_deinit(&s);
}

static void test_release(void **state)
{
	struct fa_timeline_out *out = calloc(FA_TIMELINE_SLOTS, sizeof(*out));
	uint64_t values[FA_TIMELINE_SLOTS] = { [2] = 7 };

	out[1].value = 41;
	fa_timeline_out_release(out, NULL);
	assert_true(fa_timeline_reached(out[1].value, 41));
	assert_true(fa_timeline_reached(out[1].value, 1000000));
	assert_true(fa_timeline_reached(out[0].value, 1));
	assert_int_equal(out[0].status, -ECONNRESET);
	assert_int_equal(out[0].changes, 1);
	out[2].value = 123;
	fa_timeline_out_release(out, values);
	assert_int_equal(out[2].value, FA_TIMELINE_RELEASE + 7);
	free(out);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_holds_until_it_opens),
		cmocka_unit_test(test_holds_until_it_opens_polled),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_met_stays_met),
		cmocka_unit_test(test_others_go_on),
		cmocka_unit_test(test_many_gates),
		cmocka_unit_test(test_ends_behind_a_gate),
		cmocka_unit_test(test_device_lost),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_behind_refused),
		cmocka_unit_test(test_words_never_fall),
		cmocka_unit_test(test_chain_fails),
		cmocka_unit_test(test_chain_cancelled),
		cmocka_unit_test(test_chain_late),
		cmocka_unit_test(test_release),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
