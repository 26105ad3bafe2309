/* Gates and timelines: the order of requests, and how waits end when something goes wrong. */
#include "client/faclient.h"
#include "common/completion.h"
#include "tests/client/attention-request.h"
#include "tests/client/kv-load.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

static struct fa_test_daemon fad;

static void check(int r)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
}

static int setup(void **state)
{
	fa_test_daemon_start(&fad, NULL);
	return 0;
}

static int teardown(void **state)
{
	fa_test_daemon_stop(&fad);
	return 0;
}

static uint64_t spin_ns;

static struct fa_client *connect_to(const char *socket)
{
	struct fa_options options = { .size = sizeof(options), .socket = socket };
	struct fa_client *client;

	options.connect_ns = options.reconnect_ns = fa_test_patience_ns();
	options.spin_ns = spin_ns;
	check(fa_connect(&options, &client));
	return client;
}

/* Each stream has its own output. */
struct scene {
	struct fa_client *client;
	struct fa_timeline *timeline;
	struct fa_case attention;
	struct fa_buffer *buffer;
};

static void scene_open_at(struct scene *s, const char *socket)
{
	*s = (struct scene){ .attention = { .heads = 2, .seqlen_q = 8, .seqlen_k = 24 } };
	s->client = connect_to(socket);
	check(fa_timeline_open(s->client, &s->timeline));
	fa_case_plan(&s->attention);
	check(fa_buffer_new(s->client, FA_COMPLETION_SLOTS * s->attention.bytes, 0, &s->buffer));
	fa_case_fill(&s->attention, fa_buffer_data(s->buffer));
}

static void scene_open(struct scene *s)
{
	scene_open_at(s, fad.socket);
}

static void scene_close(struct scene *s)
{
	fa_buffer_free(s->buffer);
	fa_disconnect(s->client);
}

static struct fa_gate gate(uint32_t slot, uint64_t value)
{
	return (struct fa_gate){ .slot = slot, .value = value };
}

static struct fa_attention attention_of(struct scene *s, uint32_t stream)
{
	struct fa_attention attention = fa_case_attention(&s->attention, s->buffer);

	attention.stream = stream;
	attention.out.offset += stream * s->attention.bytes;
	return attention;
}

static struct fa_ticket ask(struct scene *s, uint32_t stream, const struct fa_gate *wait,
                            const struct fa_gate *signal, uint64_t timeout_ns)
{
	struct fa_attention request = attention_of(s, stream);
	const struct fa_gates gates = { .size = sizeof(gates),
		                        .n_waits = wait != NULL,
		                        .waits = wait,
		                        .n_signals = signal != NULL,
		                        .signals = signal };
	struct fa_ticket ticket;

	request.timeout_ns = timeout_ns;
	request.gates = &gates;
	check(fa_attention(s->client, &request, &ticket));
	return ticket;
}

static uint64_t read_slot(struct scene *s, uint32_t slot)
{
	uint64_t value;

	check(fa_timeline_read(s->timeline, slot, &value));
	return value;
}

enum {
	ROUNDS = 200
};

/* Like a GPU stream: writes a request's inputs, and checks its result, one after another. */
static void *run_stream(void *userdata)
{
	struct scene *s = userdata;

	for (uint64_t round = 1; round <= ROUNDS; ++round) {
		double error;

		s->attention.seed = round;
		fa_case_fill(&s->attention, fa_buffer_data(s->buffer));
		check(fa_timeline_write(s->timeline, 0, round));
		check(fa_timeline_wait(s->timeline, 1, round, fa_test_patience_ns()));
		error = fa_case_error(&s->attention, fa_buffer_data(s->buffer));
		if (!(error <= 1))
			fa_test_fail(__FILE__, __LINE__, "round %d: error %g", (int)round, error);
	}
	return NULL;
}

static void test_between_kernels(void **state)
{
	struct fa_ticket ticket = {};
	pthread_t stream;
	struct scene s;

	scene_open(&s);
	for (uint64_t round = 1; round <= ROUNDS; ++round) {
		const struct fa_gate wait = gate(0, round), signal = gate(1, round);

		ticket = ask(&s, 0, &wait, &signal, 0);
	}
	fa_check_eq(fa_wait(s.client, &ticket, 0, NULL), -EAGAIN);
	fa_check_eq(pthread_create(&stream, NULL, run_stream, &s), 0);
	pthread_join(stream, NULL);
	check(fa_wait(s.client, &ticket, fa_test_patience_ns(), NULL));
	scene_close(&s);
}

enum {
	STREAMS = 6,
	SLOTS = 5,
	DEPTH = 12
};

struct model_request {
	struct fa_ticket ticket;
	struct fa_gate waits[FA_GATES_MAX], signals[FA_GATES_MAX];
	uint32_t n_waits, n_signals;
	bool done;
};

struct model {
	struct model_request requests[STREAMS][DEPTH];
	unsigned int head[STREAMS], tail[STREAMS];
	uint64_t in[SLOTS], out[SLOTS], planned[SLOTS];
};

static bool model_may_start(const struct model *m, const struct model_request *request)
{
	for (uint32_t i = 0; i < request->n_waits; ++i) {
		uint32_t slot = request->waits[i].slot & ~FA_GATE_DAEMON;
		uint64_t has = request->waits[i].slot & FA_GATE_DAEMON ? m->out[slot] : m->in[slot];

		if (has < request->waits[i].value)
			return false;
	}
	return true;
}

static void model_run(struct model *m)
{
	bool changed = true;

	while (changed) {
		changed = false;
		for (unsigned int i = 0; i < STREAMS; ++i) {
			struct model_request *request = &m->requests[i][m->head[i] % DEPTH];

			if (m->head[i] == m->tail[i] || !model_may_start(m, request))
				continue;
			for (uint32_t k = 0; k < request->n_signals; ++k) {
				const struct fa_gate *signal = &request->signals[k];

				if (m->out[signal->slot] < signal->value)
					m->out[signal->slot] = signal->value;
			}
			request->done = true;
			++m->head[i];
			changed = true;
		}
	}
}

static void model_ask(struct model *m, struct scene *s, const uint32_t *streams, unsigned int i,
                      struct fa_test_random *random)
{
	struct model_request *request = &m->requests[i][m->tail[i]++ % DEPTH];
	struct fa_attention attention = attention_of(s, streams[i]);
	struct fa_gates gates = { .size = sizeof(gates) };

	*request = (struct model_request){};
	for (uint64_t n = fa_test_random_below(random, 3); n; --n) {
		uint32_t slot = (uint32_t)fa_test_random_below(random, SLOTS);
		bool out = fa_test_random_below(random, 2);
		uint64_t at = out ? m->planned[slot] : m->in[slot] + 2;

		request->waits[request->n_waits++] = gate(slot | (out ? FA_GATE_DAEMON : 0),
		                                          fa_test_random_below(random, at + 1));
	}
	for (uint64_t n = fa_test_random_below(random, 3); n; --n) {
		uint32_t slot = (uint32_t)fa_test_random_below(random, SLOTS);

		m->planned[slot] += 1 + fa_test_random_below(random, 3);
		request->signals[request->n_signals++] = gate(slot, m->planned[slot]);
	}
	gates.waits = request->waits;
	gates.n_waits = request->n_waits;
	gates.signals = request->signals;
	gates.n_signals = request->n_signals;
	attention.gates = &gates;
	check(fa_attention(s->client, &attention, &request->ticket));
}

static void model_compare(struct model *m, struct scene *s)
{
	for (unsigned int i = 0; i < STREAMS; ++i)
		for (unsigned int k = m->tail[i] > DEPTH ? m->tail[i] - DEPTH : 0; k < m->tail[i];
		     ++k) {
			const struct model_request *request = &m->requests[i][k % DEPTH];

			if (request->done)
				check(fa_wait(s->client, &request->ticket, fa_test_patience_ns(),
				              NULL));
			else
				fa_check_eq(fa_wait(s->client, &request->ticket, 0, NULL), -EAGAIN);
		}
	for (uint32_t i = 0; i < SLOTS; ++i) {
		if (m->out[i])
			check(fa_timeline_wait(s->timeline, i, m->out[i], fa_test_patience_ns()));
		fa_check_eq(read_slot(s, i | FA_GATE_DAEMON), m->out[i]);
	}
}

static void test_random(void **state)
{
	struct fa_test_random random = { .state = 7 };
	struct model *m = calloc(1, sizeof(*m));
	uint32_t streams[STREAMS] = {};
	struct scene s;

	scene_open(&s);
	for (unsigned int i = 1; i < STREAMS; ++i)
		check(fa_stream_new(s.client, i % 2, &streams[i]));
	for (int round = 0; round < (fa_test_long() ? 6000 : 600); ++round) {
		unsigned int i = (unsigned int)fa_test_random_below(&random, STREAMS);

		if (fa_test_random_below(&random, 4)) {
			if (m->tail[i] - m->head[i] < DEPTH)
				model_ask(m, &s, streams, i, &random);
		} else {
			uint32_t slot = (uint32_t)fa_test_random_below(&random, SLOTS);

			m->in[slot] += 1 + fa_test_random_below(&random, 3);
			check(fa_timeline_write(s.timeline, slot, m->in[slot]));
		}
		model_run(m);
		if (round % 8 == 0)
			model_compare(m, &s);
	}
	for (uint32_t i = 0; i < SLOTS; ++i) {
		m->in[i] = 1000000;
		check(fa_timeline_write(s.timeline, i, m->in[i]));
	}
	model_run(m);
	model_compare(m, &s);
	for (unsigned int i = 0; i < STREAMS; ++i)
		fa_check_eq(m->head[i], m->tail[i]);
	scene_close(&s);
	free(m);
}

/* A gate that stays closed blocks no other stream. */
static void test_closed_gate_blocks_nobody_else(void **state)
{
	const struct fa_gate never = gate(5, 1), signal = gate(0, 1);
	struct fa_ticket tickets[63], shut, behind;
	uint32_t streams[63];
	struct scene s;

	scene_open(&s);
	shut = ask(&s, 0, &never, &signal, 0);
	behind = ask(&s, 0, NULL, NULL, 0);
	for (int i = 0; i < 63; ++i)
		check(fa_stream_new(s.client, 0, &streams[i]));
	for (int round = 0; round < 20; ++round) {
		for (int i = 0; i < 63; ++i)
			tickets[i] = ask(&s, streams[i], NULL, NULL, 0);
		for (int i = 0; i < 63; ++i)
			check(fa_wait(s.client, &tickets[i], fa_test_patience_ns(), NULL));
	}
	fa_check_eq(fa_wait(s.client, &shut, 0, NULL), -EAGAIN);
	fa_check_eq(fa_wait(s.client, &behind, 0, NULL), -EAGAIN);
	fa_check_eq(read_slot(&s, 0 | FA_GATE_DAEMON), 0);
	check(fa_cancel(s.client, &shut));
	fa_check_eq(fa_wait(s.client, &shut, fa_test_patience_ns(), NULL), -ECANCELED);
	fa_check_eq(fa_timeline_wait(s.timeline, 0, 1, fa_test_patience_ns()), -ECANCELED);
	check(fa_wait(s.client, &behind, fa_test_patience_ns(), NULL));
	scene_close(&s);
}

static void test_timeout(void **state)
{
	const struct fa_gate never = gate(5, 1), first = gate(0, 1), second = gate(0, 2),
			     other = gate(1, 9);
	struct fa_ticket late, after;
	struct scene s;

	scene_open(&s);
	late = ask(&s, 0, &never, &first, 20 * FA_NS_PER_MS);
	fa_check_eq(fa_wait(s.client, &late, fa_test_patience_ns(), NULL), -ETIMEDOUT);
	fa_check_eq(fa_timeline_wait(s.timeline, 0, 1, fa_test_patience_ns()), -ETIMEDOUT);
	fa_check_contains(fa_error(), "slot 0");
	after = ask(&s, 0, NULL, &second, 0);
	check(fa_wait(s.client, &after, fa_test_patience_ns(), NULL));
	check(fa_timeline_wait(s.timeline, 0, 2, fa_test_patience_ns()));
	fa_check_eq(fa_timeline_wait(s.timeline, 1, 9, 0), -EAGAIN);
	fa_check_eq(fa_timeline_wait(s.timeline, 1, 9, 30 * FA_NS_PER_MS), -EAGAIN);
	ask(&s, 0, NULL, &other, 0);
	check(fa_timeline_wait(s.timeline, 1, 9, fa_test_patience_ns()));
	scene_close(&s);
}

/* Markers only wait and signal; they block their stream like any request. */
static void test_markers(void **state)
{
	const struct fa_gate waits[] = { gate(3, 7), gate(4, 8) },
			     signals[] = { gate(1, 1), gate(2, 2) };
	const struct fa_gates gates = { .size = sizeof(gates),
		                        .n_waits = 2,
		                        .waits = waits,
		                        .n_signals = 2,
		                        .signals = signals };
	struct fa_ticket marker, behind, last;
	struct scene s;

	scene_open(&s);
	check(fa_marker(s.client, 0, &gates, &marker));
	behind = ask(&s, 0, NULL, NULL, 0);
	check(fa_marker(s.client, 0, NULL, &last));
	check(fa_timeline_write(s.timeline, 4, 8));
	fa_check_eq(fa_wait(s.client, &marker, 5 * FA_NS_PER_MS, NULL), -EAGAIN);
	fa_check_eq(fa_wait(s.client, &behind, 0, NULL), -EAGAIN);
	check(fa_timeline_write(s.timeline, 3, 7));
	check(fa_wait(s.client, &last, fa_test_patience_ns(), NULL));
	check(fa_wait(s.client, &marker, 0, NULL));
	check(fa_timeline_wait(s.timeline, 1, 1, fa_test_patience_ns()));
	check(fa_timeline_wait(s.timeline, 2, 2, fa_test_patience_ns()));
	scene_close(&s);
}

/*
 * A signal that does not exceed the slot's last value fails the request with -EINVAL. Its other
 * signals are still written, and their waiters get -EINVAL, too.
 */
static void test_values_backwards(void **state)
{
	struct fa_attention request;
	struct fa_ticket ticket;
	struct scene s;

	scene_open(&s);
	for (int i = 0; i < 3; ++i) {
		static const uint64_t values[] = { 10, 10, 9 };
		const struct fa_gate signals[] = { gate(0, values[i]), gate(1, (uint64_t)i + 1) };
		const struct fa_gates gates = { .size = sizeof(gates),
			                        .n_signals = 2,
			                        .signals = signals };

		request = fa_case_attention(&s.attention, s.buffer);
		request.gates = &gates;
		check(fa_attention(s.client, &request, &ticket));
		fa_check_eq(fa_wait(s.client, &ticket, fa_test_patience_ns(), NULL),
		            i ? -EINVAL : 0);
		if (i)
			fa_check_contains(fa_error(), "signals[0].value is");
		fa_check_eq(fa_timeline_wait(s.timeline, 1, (uint64_t)i + 1, fa_test_patience_ns()),
		            i ? -EINVAL : 0);
		fa_check_eq(read_slot(&s, 0 | FA_GATE_DAEMON), 10);
	}
	scene_close(&s);
}

static void test_refused_by_library(void **state)
{
	const struct fa_gate bad = gate(64, 1), out = gate(FA_GATE_DAEMON, 1),
			     reserved = { .reserved = 1 };
	struct fa_gates gates = { .size = sizeof(gates) };
	struct fa_attention request;
	struct fa_ticket ticket;
	struct fa_client *client;
	uint64_t value;
	struct scene s;

	scene_open(&s);
	request = fa_case_attention(&s.attention, s.buffer);
	request.gates = &gates;
	gates.n_waits = 1;
	fa_check_eq(fa_attention(s.client, &request, &ticket), -EINVAL);
	gates.waits = &bad;
	fa_check_eq(fa_attention(s.client, &request, &ticket), -EINVAL);
	fa_check_contains(fa_error(), "slot is 0x40");
	gates.waits = &reserved;
	fa_check_eq(fa_attention(s.client, &request, &ticket), -EINVAL);
	gates.n_waits = FA_GATES_MAX + 1;
	fa_check_eq(fa_attention(s.client, &request, &ticket), -EINVAL);
	gates.n_waits = 0;
	gates.n_signals = 1;
	gates.signals = &out;
	fa_check_eq(fa_attention(s.client, &request, &ticket), -EINVAL);
	gates.size = 0;
	fa_check_eq(fa_attention(s.client, &request, &ticket), -EINVAL);
	gates.size = sizeof(gates);
	fa_check_eq(fa_timeline_read(s.timeline, 64, &value), -EINVAL);
	fa_check_eq(fa_timeline_write(s.timeline, 64, 1), -EINVAL);
	fa_check_eq(fa_timeline_write(s.timeline, FA_GATE_DAEMON, 1), -EINVAL);
	fa_check_eq(fa_timeline_wait(s.timeline, 64, 1, 0), -EINVAL);
	fa_check_eq(fa_timeline_write(NULL, 0, 1), -EINVAL);

	client = connect_to(fad.socket);
	gates.n_signals = 0;
	gates.n_waits = 1;
	gates.waits = &(const struct fa_gate){ .value = 1 };
	{
		struct fa_buffer *buffer;

		check(fa_buffer_new(client, s.attention.bytes, 0, &buffer));
		request = fa_case_attention(&s.attention, buffer);
		request.gates = &gates;
		fa_check_eq(fa_attention(client, &request, &ticket), -EINVAL);
		fa_check_contains(fa_error(), "fa_timeline_open");
		fa_buffer_free(buffer);
	}
	fa_disconnect(client);
	scene_close(&s);
}

/* The client's mapping of the daemon's words is read-only. */
static void test_memory(void **state)
{
	struct fa_timeline_info info = { .size = sizeof(info) };
	const struct fa_gate wait = gate(63, 5), signal = gate(63, 6);
	struct fa_timeline *again;
	struct fa_ticket ticket;
	struct scene s;

	scene_open(&s);
	check(fa_timeline_open(s.client, &again));
	fa_check(again == s.timeline);
	check(fa_timeline_info(s.timeline, &info));
	fa_check_eq(info.slots, 64);
	fa_check_eq(info.epoch, 1);
	fa_check_eq(mprotect((void *)info.daemon_slots, 4096, PROT_READ | PROT_WRITE), -1);
	fa_check_eq(errno, EACCES);
	ticket = ask(&s, 0, &wait, &signal, 0);
	atomic_store((_Atomic uint64_t *)(void *)((char *)info.client_slots + 63 * info.stride), 5);
	check(fa_wait(s.client, &ticket, fa_test_patience_ns(), NULL));
	fa_check_eq(*(const volatile uint64_t *)(const void *)((const char *)info.daemon_slots +
	                                                       63 * info.stride),
	            6);
	fa_check_eq(read_slot(&s, 63), 5);
	scene_close(&s);
}

static int use_in_child(void *userdata)
{
	struct scene *s = userdata;
	uint64_t value;

	fa_check_eq(fa_timeline_write(s->timeline, 0, 1), -ECHILD);
	fa_check_eq(fa_timeline_read(s->timeline, 0, &value), -ECHILD);
	fa_check_eq(fa_timeline_wait(s->timeline, 0, 1, 0), -ECHILD);
	scene_close(s);
	return 0;
}

static void test_fork(void **state)
{
	const struct fa_gate wait = gate(0, 1), signal = gate(0, 1);
	struct scene s;

	scene_open(&s);
	ask(&s, 0, &wait, &signal, 0);
	fa_check_eq(fa_test_reap(fa_test_fork(use_in_child, &s)), 0);
	check(fa_timeline_write(s.timeline, 0, 1));
	check(fa_timeline_wait(s.timeline, 0, 1, fa_test_patience_ns()));
	scene_close(&s);
}

struct blocked {
	struct scene *s;
	uint32_t slot;
	uint64_t value;
	atomic_bool waits;
	int result;
};

static void *wait_for_ever(void *userdata)
{
	struct blocked *b = userdata;

	atomic_store(&b->waits, true);
	b->result = fa_timeline_wait(b->s->timeline, b->slot, b->value, UINT64_MAX);
	return NULL;
}

/* More threads sleep than the daemon wakes at once: all return. */
static void test_many_sleepers(void **state)
{
	enum {
		N = 150,
	};
	static struct blocked waiters[N];
	static pthread_t threads[N];
	const struct fa_gate wait = gate(3, 1), signal = gate(4, 1);
	struct scene s;

	scene_open(&s);
	(void)ask(&s, 0, &wait, &signal, 0);
	for (int i = 0; i < N; ++i) {
		waiters[i] = (struct blocked){ .s = &s, .slot = 4, .value = 1 };
		fa_check_eq(pthread_create(&threads[i], NULL, wait_for_ever, &waiters[i]), 0);
	}
	for (int i = 0; i < N; ++i)
		fa_check_eventually(atomic_load(&waiters[i].waits));
	fa_test_let_sleep_ms(50);
	check(fa_timeline_write(s.timeline, 3, 1));
	for (int i = 0; i < N; ++i) {
		pthread_join(threads[i], NULL);
		fa_check_eq(waiters[i].result, 0);
	}
	scene_close(&s);
}

/* Polls the shared word without the library, as a GPU kernel would. */
static void *watch_for_ever(void *userdata)
{
	struct fa_timeline_info info = { .size = sizeof(info) };
	const _Atomic uint64_t *word;
	struct blocked *b = userdata;

	check(fa_timeline_info(b->s->timeline, &info));
	word = (const void *)info.daemon_slots;
	atomic_store(&b->waits, true);
	fa_check_eventually((int64_t)(atomic_load(word) - b->value) >= 0);
	b->result = atomic_load((const _Atomic int32_t *)(const void *)(word + 2));
	return NULL;
}

static void daemon_is_killed(void)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options options = { .args = args };
	struct fa_timeline_info info = { .size = sizeof(info) };
	struct fa_test_daemon supervisor;
	struct fa_ticket ticket;
	struct scene s;

	fa_test_daemon_start(&supervisor, &options);
	scene_open_at(&s, supervisor.socket);
	for (uint64_t i = 0; i < 3; ++i) {
		const struct fa_gate never = gate(5, 1000000), signal = gate(0, 100 * i + 50),
				     signal_again = gate(0, 100 * i + 100), wait = gate(6, i + 1);
		struct blocked waiter = { .s = &s, .value = 100 * i + 50 }, watcher = waiter;
		pthread_t threads[2];
		pid_t pid = fa_test_daemon_child(&supervisor);

		check(fa_timeline_write(s.timeline, 6, i));
		ticket = ask(&s, 0, &never, &signal, 0);
		fa_check_eq(pthread_create(&threads[0], NULL, wait_for_ever, &waiter), 0);
		fa_check_eq(pthread_create(&threads[1], NULL, watch_for_ever, &watcher), 0);
		fa_check_eventually(atomic_load(&waiter.waits) && atomic_load(&watcher.waits));
		fa_check(!kill(pid, SIGKILL));
		pthread_join(threads[0], NULL);
		pthread_join(threads[1], NULL);
		fa_check_eq(waiter.result, -ECONNRESET);
		fa_check_eq(watcher.result, -ECONNRESET);
		fa_check_eq(fa_wait(s.client, &ticket, fa_test_patience_ns(), NULL), -ECONNRESET);
		(void)fa_test_daemon_next_child(&supervisor, pid);

		check(fa_reconnect(s.client));
		check(fa_timeline_info(s.timeline, &info));
		fa_check_eq(info.epoch, i + 2);
		fa_check_eq(read_slot(&s, 6), i);
		fa_check_eq(fa_timeline_wait(s.timeline, 0, 100 * i + 50, UINT64_MAX), -ECONNRESET);
		check(fa_timeline_write(s.timeline, 6, i + 1));
		ticket = ask(&s, 0, &wait, &signal_again, 0);
		check(fa_timeline_wait(s.timeline, 0, 100 * i + 100, fa_test_patience_ns()));
		check(fa_wait(s.client, &ticket, fa_test_patience_ns(), NULL));
	}
	scene_close(&s);
	fa_test_daemon_stop(&supervisor);
}

static void test_daemon_killed(void **state)
{
	daemon_is_killed();
}

static void test_daemon_killed_spinning(void **state)
{
	spin_ns = fa_test_patience_ns();
	daemon_is_killed();
	spin_ns = 0;
}

/* Without a successor, the supervisor releases the waiters of the shared words. */
static void test_no_successor(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options options = { .args = args };
	struct fa_test_daemon supervisor;
	struct blocked watcher;
	pthread_t thread;
	struct scene s;
	pid_t pid;

	fa_test_daemon_start(&supervisor, &options);
	scene_open_at(&s, supervisor.socket);
	watcher = (struct blocked){ .s = &s, .value = 1 };
	fa_check_eq(pthread_create(&thread, NULL, watch_for_ever, &watcher), 0);
	fa_check_eventually(atomic_load(&watcher.waits));
	/* Kill both, so that preferably no successor starts. */
	pid = fa_test_daemon_child(&supervisor);
	fa_test_daemon_signal(&supervisor, SIGSTOP);
	fa_check(!kill(pid, SIGKILL));
	fa_test_daemon_signal(&supervisor, SIGTERM);
	fa_test_daemon_signal(&supervisor, SIGCONT);
	pthread_join(thread, NULL);
	fa_check_eq(watcher.result, -ECONNRESET);
	(void)fa_test_daemon_reap(&supervisor);
	scene_close(&s);
}

/*
 * Without a supervisor the shared words stay as they are; calls of the library return all the same.
 */
static void killed_without_keeper(void)
{
	const struct fa_gate never = gate(5, 1), signal = gate(1, 7);
	struct fa_timeline_info info = { .size = sizeof(info) };
	struct blocked waiters[4];
	struct fa_test_daemon other;
	struct fa_ticket ticket;
	pthread_t threads[4];
	struct scene s;

	fa_test_daemon_start(&other, NULL);
	scene_open_at(&s, other.socket);
	check(fa_timeline_info(s.timeline, &info));
	ticket = ask(&s, 0, &never, &signal, 0);
	for (int i = 0; i < 4; ++i) {
		waiters[i] = (struct blocked){ .s = &s, .value = 1 + (uint64_t)i };
		fa_check_eq(pthread_create(&threads[i], NULL, wait_for_ever, &waiters[i]), 0);
		fa_check_eventually(atomic_load(&waiters[i].waits));
	}
	fa_test_daemon_signal(&other, SIGKILL);
	for (int i = 0; i < 4; ++i) {
		pthread_join(threads[i], NULL);
		fa_check_eq(waiters[i].result, -ECONNRESET);
	}
	fa_check_eq(fa_wait(s.client, &ticket, fa_test_patience_ns(), NULL), -ECONNRESET);
	fa_check_eq(fa_timeline_wait(s.timeline, 0, 1, UINT64_MAX), -ECONNRESET);
	fa_check_eq(fa_timeline_wait(s.timeline, 1, 7, UINT64_MAX), -ECONNRESET);
	for (uint32_t i = 0; i < info.slots; ++i)
		fa_check_eq(*(const uint64_t *)(const void *)((const char *)info.daemon_slots +
		                                              i * info.stride),
		            0);
	(void)fa_test_daemon_reap(&other);
	scene_close(&s);
}

static void test_killed_without_keeper(void **state)
{
	killed_without_keeper();
}

static void test_killed_without_keeper_spinning(void **state)
{
	spin_ns = fa_test_patience_ns();
	killed_without_keeper();
	spin_ns = 0;
}

/* A daemon that exits normally releases the waiters itself. */
static void test_daemon_stopped(void **state)
{
	const struct fa_gate never = gate(5, 1), signal = gate(1, 1);
	struct blocked waiter, watcher;
	struct fa_test_daemon other;
	pthread_t threads[2];
	struct scene s;

	fa_test_daemon_start(&other, &(const struct fa_test_daemon_options){
					     .config = "[daemon]\ndrain_timeout_ms = 10\n" });
	scene_open_at(&s, other.socket);
	waiter = (struct blocked){ .s = &s, .value = 1 };
	watcher = (struct blocked){ .s = &s, .value = 1 };
	ask(&s, 0, &never, &signal, 0);
	fa_check_eq(pthread_create(&threads[0], NULL, wait_for_ever, &waiter), 0);
	fa_check_eq(pthread_create(&threads[1], NULL, watch_for_ever, &watcher), 0);
	fa_check_eventually(atomic_load(&waiter.waits) && atomic_load(&watcher.waits));
	fa_test_daemon_stop(&other);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	fa_check_eq(waiter.result, -ECONNRESET);
	fa_check_eq(watcher.result, -ECONNRESET);
	fa_check(fa_timeline_wait(s.timeline, 1, 1, fa_test_patience_ns()) < 0);
	scene_close(&s);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_between_kernels),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_closed_gate_blocks_nobody_else),
		cmocka_unit_test(test_timeout),
		cmocka_unit_test(test_markers),
		cmocka_unit_test(test_values_backwards),
		cmocka_unit_test(test_refused_by_library),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_many_sleepers),
		cmocka_unit_test(test_fork),
		cmocka_unit_test(test_daemon_killed),
		cmocka_unit_test(test_daemon_killed_spinning),
		cmocka_unit_test(test_no_successor),
		cmocka_unit_test(test_killed_without_keeper),
		cmocka_unit_test(test_killed_without_keeper_spinning),
		cmocka_unit_test(test_daemon_stopped),
	};

	return cmocka_run_group_tests_name("timeline", tests, setup, teardown);
}
