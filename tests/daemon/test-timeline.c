/*
 * Timelines and gates on the wire: what is refused, what clients may do to shared memory, and what
 * a client leaves that is killed while gates never open.
 */
#include "common/timeline.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MEASURED_MS 300

static struct fa_scene scene;

static int start(void **state)
{
	fa_scene_start(&scene, &(const struct fa_test_daemon_options){
				       .config = "[limits]\ngates = 4000\n" });
	return 0;
}

static int stop(void **state)
{
	fa_scene_check(&scene);
	fa_scene_stop(&scene);
	return 0;
}

struct gated {
	struct fa_raw raw;
	struct fa_case attention;
	struct fa_raw_buffer buffer;
	uint64_t values[64];
	struct fa_timeline_in *in;
	const struct fa_timeline_out *out;
	int out_fd;
};

static struct gated client;

static void open_plain(struct gated *g)
{
	memset(g, 0, sizeof(*g));
	g->out_fd = -1;
	fa_raw_open(&g->raw, scene.daemon.socket);
	g->attention = (struct fa_case){ .head_dim = 16, .seqlen_q = 4 };
	fa_case_plan(&g->attention);
	fa_raw_buffer_register(&g->raw, &g->buffer, 1, g->attention.bytes, 0);
	fa_case_fill(&g->attention, g->buffer.data);
}

static void open_timeline(struct gated *g)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_TIMELINE_SETUP);

	fa_raw_call(&g->raw, &message, NULL, 0);
	fa_check_eq(g->raw.message.type, FA_WIRE_TIMELINE_REPLY);
	fa_check_eq(g->raw.n_fds, 2);
	fa_check_eq(g->raw.message.timeline_reply.slots, FA_TIMELINE_SLOTS);
	fa_check_eq(g->raw.message.timeline_reply.in_bytes, FA_TIMELINE_BYTES);
	fa_check_eq(g->raw.message.timeline_reply.out_bytes, FA_TIMELINE_BYTES);
	g->in = mmap(NULL, FA_TIMELINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, g->raw.fds[0], 0);
	fa_check(g->in != MAP_FAILED);
	g->out = mmap(NULL, FA_TIMELINE_BYTES, PROT_READ, MAP_SHARED, g->raw.fds[1], 0);
	fa_check(g->out != MAP_FAILED);
	g->out_fd = dup(g->raw.fds[1]);
}

static void open_gated(struct gated *g)
{
	open_plain(g);
	open_timeline(g);
}

static void close_gated(struct gated *g)
{
	fa_raw_buffer_free(NULL, &g->buffer);
	fa_raw_close(&g->raw);
	if (g->in)
		munmap(g->in, FA_TIMELINE_BYTES);
	if (g->out)
		munmap((void *)g->out, FA_TIMELINE_BYTES);
	if (g->out_fd >= 0)
		close(g->out_fd);
}

static uint64_t ask(struct gated *g, uint32_t stream, const struct fa_wire_gate *waits,
                    size_t n_waits, const struct fa_wire_gate *signals, size_t n_signals)
{
	struct fa_wire_message message = fa_case_message(&g->attention, 1, 0, stream,
	                                                 ++g->values[stream]);

	message.id = ++g->raw.next_id;
	message.waits = waits;
	message.n_waits = n_waits;
	message.signals = signals;
	message.n_signals = n_signals;
	fa_check_eq(fa_raw_send(&g->raw, &message, NULL, 0), 0);
	return g->values[stream];
}

static uint64_t out_value(const struct gated *g, uint32_t slot)
{
	return atomic_load((_Atomic uint64_t *)(void *)&g->out[slot].value);
}

static void set(struct gated *g, uint32_t slot, uint64_t value)
{
	atomic_store(&g->in[slot].value, value);
}

static void test_once(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_TIMELINE_SETUP);
	int flags;

	open_gated(&client);
	fa_raw_call_expect(&client.raw, &message, NULL, 0, -EEXIST, "already");
	message = fa_raw_message(FA_WIRE_TIMELINE_REPLY);
	fa_raw_call_expect(&client.raw, &message, NULL, 0, -ENOTSUP, NULL);
	flags = fcntl(client.out_fd, F_GETFL);
	fa_check_eq(flags & O_ACCMODE, O_RDONLY);
	flags = fcntl(client.out_fd, F_GET_SEALS);
	fa_check(flags & F_SEAL_SHRINK);
	fa_check(mmap(NULL, FA_TIMELINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, client.out_fd,
	              0) == MAP_FAILED);
	close_gated(&client);
	fa_scene_check(&scene);
}

static void test_charged(void **state)
{
	struct fa_test_accounts with, without;

	open_plain(&client);
	fa_test_accounts(&client.raw, &without);
	open_timeline(&client);
	fa_test_accounts(&client.raw, &with);
	fa_check_eq(with.buffer_bytes, without.buffer_bytes + 2 * FA_TIMELINE_BYTES);
	close_gated(&client);
	fa_scene_check(&scene);
}

static void test_refused(void **state)
{
	static const struct {
		struct fa_wire_gate wait, signal;
		bool signals_bad;
		const char *text;
	} cases[] = {
		{ { .slot = 64, .value = 1 }, { .value = 1 }, false, "waits[0].slot is 0x40" },
		{ { .slot = FA_WIRE_GATE_OUT | 64, .value = 1 },
		  { .value = 2 },
		  false,
		  "waits[0].slot is 0x80000040" },
		{ { .slot = UINT32_MAX }, { .value = 3 }, false, "waits[0].slot" },
		{ { .reserved = 7 }, { .value = 4 }, false, "waits[0].reserved is 0x7" },
		{ {}, { .slot = 64, .value = 1 }, true, "signals[1].slot is 0x40" },
		{ {},
		  { .slot = FA_WIRE_GATE_OUT, .value = 100 },
		  true,
		  "signals[1].slot is 0x80000000" },
		{ {}, { .reserved = 1, .value = 100 }, true, "signals[1].reserved is 0x1" },
		{ {}, { .value = 4 }, true, "signals[1].value is 4; expected more than 4" },
		{ {}, { .value = 3 }, true, "signals[1].value is 3; expected more than 4" },
		{ {}, { .value = 5 + (1ull << 63) }, true, "signals[1].value" },
		{ {}, { .value = 0 }, true, "signals[1].value is 0" },
		{ {}, { .value = 4 + (1ull << 62) }, true, "expected less than 2^62 above 4" },
	};

	open_gated(&client);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct fa_wire_gate signals[] = { { .slot = 9, .value = i + 1 },
			                                cases[i].signal,
			                                { .slot = 63, .value = i + 1 } };
		uint64_t value = ask(&client, 0, &cases[i].wait, 1, signals, 3);

		fa_raw_wait_expect(&client.raw, 0, value, -EINVAL, cases[i].text);
		fa_check_eventually(out_value(&client, 63) == i + 1);
		fa_check_eq(out_value(&client, 9), i + 1);
		fa_check_eq(client.out[9].status, -EINVAL);
		fa_check_eq(client.out[9].failed, i + 1);
		fa_check_eq(out_value(&client, 0), cases[i].signals_bad ? 4 : i + 1);
	}
	close_gated(&client);
}

static void test_without_timeline(void **state)
{
	const struct fa_wire_gate gate = { .value = 1 };

	open_plain(&client);
	fa_raw_wait_expect(&client.raw, 0, ask(&client, 0, &gate, 1, NULL, 0), -EINVAL,
	                   "no timeline");
	fa_raw_wait_expect(&client.raw, 0, ask(&client, 0, NULL, 0, &gate, 1), -EINVAL,
	                   "no timeline");
	fa_raw_wait_expect(&client.raw, 0, ask(&client, 0, NULL, 0, NULL, 0), 0, NULL);
	open_timeline(&client);
	fa_raw_wait_expect(&client.raw, 0, ask(&client, 0, NULL, 0, &gate, 1), 0, NULL);
	close_gated(&client);
}

static void test_gates_of_others(void **state)
{
	const struct fa_wire_gate gate = { .value = 1 };
	struct fa_wire_message message = fa_raw_message(FA_WIRE_PING);

	open_gated(&client);
	message.signals = &gate;
	message.n_signals = 1;
	fa_raw_call_expect(&client.raw, &message, NULL, 0, -EINVAL, "Ping came with gates");
	message = fa_raw_message(FA_WIRE_TIMELINE_SETUP);
	message.waits = &gate;
	message.n_waits = 1;
	fa_raw_call_expect(&client.raw, &message, NULL, 0, -EINVAL, "gates");
	close_gated(&client);
}

static void test_without_stream(void **state)
{
	const struct fa_wire_gate wait = { .value = 1 }, signal = { .slot = 3, .value = 4 };

	open_gated(&client);
	fa_raw_wait_expect(&client.raw, 7, ask(&client, 7, &wait, 1, &signal, 1), -ENOENT, NULL);
	fa_check_eventually(out_value(&client, 3) == 4);
	fa_check_eq(client.out[3].status, -ENOENT);
	close_gated(&client);
}

/* A request waits for requests of its own and of other streams by gates on words that the daemon
 * writes. */
static void test_waits_for_the_daemon(void **state)
{
	const struct fa_wire_gate in = { .slot = 2, .value = 5 },
				  out = { .slot = FA_WIRE_GATE_OUT | 2, .value = 1 },
				  first = { .slot = 2, .value = 1 },
				  second = { .slot = 4, .value = 1 };
	struct fa_raw_completion early, late;

	open_gated(&client);
	fa_raw_stream_create(&client.raw, 1, 0);
	ask(&client, 1, &out, 1, &second, 1);
	ask(&client, 0, &in, 1, &first, 1);
	fa_test_quiet_ms(20);
	fa_check_eq(out_value(&client, 4), 0);
	set(&client, 2, 5);
	fa_raw_wait(&client.raw, 0, 1, &early);
	fa_raw_wait(&client.raw, 1, 1, &late);
	fa_check_eq(early.status, 0);
	fa_check_eq(late.status, 0);
	fa_check(late.started_ns >= early.finished_ns);
	fa_check_eventually(out_value(&client, 4) == 1);
	close_gated(&client);
}

static void test_quota(void **state)
{
	enum {
		N = 500
	};
	struct fa_wire_gate waits[8], signals[2];

	open_gated(&client);
	for (uint32_t i = 0; i < 8; i++)
		waits[i] = (struct fa_wire_gate){ .slot = i, .value = 1 };
	for (uint64_t i = 1; i <= N; i++)
		ask(&client, 0, waits, 8, NULL, 0);
	signals[0] = (struct fa_wire_gate){ .slot = 1, .value = 1 };
	ask(&client, 0, waits, 1, signals, 1);
	fa_raw_ping(&client.raw);
	for (uint32_t i = 0; i < 8; i++)
		set(&client, i, 1);
	for (uint64_t i = 1; i <= N; i++)
		fa_raw_wait_expect(&client.raw, 0, i, 0, NULL);
	fa_raw_wait_expect(&client.raw, 0, N + 1, -EDQUOT, "gates");
	fa_check_eventually(out_value(&client, 1) == 1);
	fa_check_eq(client.out[1].status, -EDQUOT);
	fa_raw_wait_expect(&client.raw, 0, ask(&client, 0, waits, 8, NULL, 0), 0, NULL);
	close_gated(&client);
}

struct scribbler {
	void *memory;
	atomic_bool stop;
};

static void *scribble(void *userdata)
{
	struct fa_test_random random = { .state = 3 };
	struct scribbler *s = userdata;

	while (!atomic_load(&s->stop))
		atomic_store((_Atomic uint64_t *)s->memory +
		                     fa_test_random_below(&random, FA_TIMELINE_BYTES / 8),
		             fa_test_random(&random));
	return NULL;
}

static void scribble_over(void *memory)
{
	struct scribbler s = { .memory = memory };
	pthread_t thread;

	fa_check_eq(pthread_create(&thread, NULL, scribble, &s), 0);
	for (uint64_t i = 1; i <= 300; i++) {
		const struct fa_wire_gate wait = { .slot = (uint32_t)i % 64, .value = i },
					  signal = { .slot = (uint32_t)i % 64, .value = i };

		ask(&client, 0, &wait, memory == client.in, &signal, 1);
		if (i % 20 == 0)
			fa_scene_bystander(&scene);
	}
	/* Every word has any value at times. */
	for (uint64_t i = 1; i <= 300; i++)
		fa_raw_wait_expect(&client.raw, 0, i, 0, NULL);
	atomic_store(&s.stop, true);
	pthread_join(thread, NULL);
}

static void test_scribbles_over_its_own(void **state)
{
	open_gated(&client);
	scribble_over(client.in);
	close_gated(&client);
}

static void test_scribbles_over_the_daemons(void **state)
{
	const struct fa_wire_gate wait = { .slot = FA_WIRE_GATE_OUT | 9, .value = 1000 },
				  signal = { .slot = 9, .value = 1000 };
	char path[64];
	void *memory;
	int fd;

	open_gated(&client);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", client.out_fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		close_gated(&client);
		skip();
	}
	memory = mmap(NULL, FA_TIMELINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	fa_check(memory != MAP_FAILED);
	fa_raw_stream_create(&client.raw, 1, 0);
	ask(&client, 1, &wait, 1, NULL, 0);
	atomic_store((_Atomic uint64_t *)memory + 9 * 8, 1000);
	scribble_over(memory);
	memset(memory, 0xff, FA_TIMELINE_BYTES);
	fa_test_quiet_ms(20);
	fa_check_eq(client.raw.page[1].completed, 0);
	ask(&client, 0, NULL, 0, &signal, 1);
	fa_raw_wait_expect(&client.raw, 1, 1, 0, NULL);
	fa_check_eq(out_value(&client, 9), 1000);
	munmap(memory, FA_TIMELINE_BYTES);
	close(fd);
	close_gated(&client);
}

enum {
	KILLED_REQUESTS = 1000
};

static int be_killed(void *userdata)
{
	const int *ready = userdata;

	open_gated(&client);
	for (uint32_t i = 1; i < 8; i++)
		fa_raw_stream_create(&client.raw, i, (int)i % 2);
	for (uint64_t i = 1; i <= KILLED_REQUESTS; i++) {
		const struct fa_wire_gate waits[] = { { .slot = (uint32_t)i % 64, .value = i },
			                              { .slot = FA_WIRE_GATE_OUT | (uint32_t)i % 64,
			                                .value = i } };
		const struct fa_wire_gate signal = { .slot = (uint32_t)i % 64, .value = i };

		ask(&client, (uint32_t)i % 8, waits, 2, &signal, 1);
	}
	fa_raw_ping(&client.raw);
	fa_check_eq(write(ready[1], "", 1), 1);
	pause();
	return 0;
}

static void test_killed(void **state)
{
	struct fa_test_random random = { .state = 11 };
	const int rounds = fa_test_long() ? 200 : 20;
	uint64_t longest_ns = 0;

	for (int i = 0; i < rounds; i++) {
		struct fa_test_accounts accounts;
		uint64_t killed_ns;
		int ready[2];
		char byte;
		pid_t pid;

		fa_check_eq(pipe(ready), 0);
		pid = fa_test_fork(be_killed, ready);
		fa_check_eq(read(ready[0], &byte, 1), 1);
		fa_scene_bystander(&scene);
		fa_test_any_moment_us(fa_test_random_below(&random, 8000));
		fa_check(!kill(pid, SIGKILL));
		killed_ns = fa_now_ns();
		fa_check(WIFSIGNALED(fa_test_reap(pid)));
		fa_check_eventually((fa_test_accounts(&scene.bystander, &accounts),
		                     accounts.requests == 0 && accounts.connections == 1));
		if (fa_now_ns() - killed_ns > longest_ns)
			longest_ns = fa_now_ns() - killed_ns;
		fa_scene_check(&scene);
		close(ready[0]);
		close(ready[1]);
	}
	print_message("%d killed with %d gated requests each, all gone %.1f ms later at most\n",
	              rounds, KILLED_REQUESTS, (double)longest_ns / FA_NS_PER_MS);
}

/* However many streams wait. */
static void test_idle_costs_nothing(void **state)
{
	const struct fa_wire_gate never = { .slot = 1, .value = 1 };
	struct fa_test_usage before, after;

	open_gated(&client);
	for (uint32_t i = 1; i < 64; i++)
		fa_raw_stream_create(&client.raw, i, 0);
	for (uint32_t i = 0; i < 64; i++)
		ask(&client, i, &never, 1, NULL, 0);
	fa_raw_ping(&client.raw);
	fa_test_elapse_ms(1500);
	fa_test_daemon_usage(&scene.daemon, &before);
	fa_test_elapse_ms(MEASURED_MS);
	fa_test_daemon_usage(&scene.daemon, &after);
	fa_check(after.cpu_ns - before.cpu_ns < MEASURED_MS * FA_NS_PER_MS / 2);
	set(&client, 1, 1);
	for (uint32_t i = 0; i < 64; i++)
		fa_raw_wait_expect(&client.raw, i, 1, 0, NULL);
	close_gated(&client);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_once),
		cmocka_unit_test(test_charged),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_without_timeline),
		cmocka_unit_test(test_gates_of_others),
		cmocka_unit_test(test_without_stream),
		cmocka_unit_test(test_waits_for_the_daemon),
		cmocka_unit_test(test_quota),
		cmocka_unit_test(test_scribbles_over_its_own),
		cmocka_unit_test(test_scribbles_over_the_daemons),
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_idle_costs_nothing),
	};

	return cmocka_run_group_tests_name("timeline", tests, start, stop);
}
