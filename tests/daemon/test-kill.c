/*
 * SIGKILL in every state of the protocol: a forked client reports a state and is killed at once,
 * later, or while it loops there. All its resources are released.
 */
#include "common/cleanup.h"
#include "common/memfd.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct fa_scene scene;

/* ---- states of the client, in the forked process */

static struct fa_raw raw;
static struct fa_case slow, small;
static struct fa_raw_buffer slow_buffer, small_buffer;

static void send_message(struct fa_wire_message message, const int *fds, size_t n_fds)
{
	message.fds = (uint8_t)n_fds;
	message.id = ++raw.next_id;
	fa_check_eq(fa_raw_send(&raw, &message, fds, n_fds), 0);
}

static void wait_readable(void)
{
	struct pollfd pollfd = { .fd = raw.fd, .events = POLLIN };

	fa_check(poll(&pollfd, 1, 60000) == 1);
}

static void open_raw(void)
{
	fa_raw_open(&raw, scene.daemon.socket);
}

static void open_with_buffers(void)
{
	open_raw();
	slow = fa_case_slow();
	small = (struct fa_case){ .head_dim = 16, .seqlen_q = 4 };
	fa_case_plan(&small);
	fa_raw_buffer_arena(&raw, &slow_buffer, 1, slow.bytes);
	fa_raw_buffer_register(&raw, &small_buffer, 2, small.bytes, 0);
}

static void submit(const struct fa_case *attention, uint32_t stream, uint64_t value)
{
	send_message(fa_case_message(attention, attention == &slow ? 1 : 2, 0, stream, value), NULL,
	             0);
}

static void state_connected(void)
{
	fa_raw_connect(&raw, scene.daemon.socket);
}

static void state_hello_unread(void)
{
	state_connected();
	send_message(fa_raw_hello_message("to be killed"), NULL, 0);
}

static void state_welcome_unread(void)
{
	state_hello_unread();
	wait_readable();
}

static void state_ready(void)
{
	open_raw();
}

static void state_version_refused(void)
{
	struct fa_wire_message hello = fa_raw_hello_message("too new");

	state_connected();
	hello.hello.version_min = hello.hello.version_max = 99;
	send_message(hello, NULL, 0);
}

static void register_memfd(uint32_t id, uint64_t bytes)
{
	int fd;

	fa_check_eq(fa_memfd_new("killed", bytes, true, &fd), 0);
	send_message(fa_raw_register_message(id, bytes), &fd, 1);
	close(fd);
}

static void state_registering(void)
{
	open_raw();
	register_memfd(1, 64 << 20);
}

static void state_registering_many(void)
{
	open_raw();
	for (uint32_t id = 1; id <= 50; ++id)
		register_memfd(id, 1 << 20);
}

static void state_registered(void)
{
	open_raw();
	fa_raw_buffer_register(&raw, &small_buffer, 1, 8 << 20, 0);
}

static struct fa_wire_message arena(uint32_t id, uint64_t bytes)
{
	struct fa_wire_message message = fa_raw_register_message(id, bytes);

	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	return message;
}

static void state_making_arena(void)
{
	open_raw();
	for (uint32_t id = 1; id <= 8; ++id)
		send_message(arena(id, 32 << 20), NULL, 0);
}

static void state_arena_unread(void)
{
	open_raw();
	send_message(arena(1, 32 << 20), NULL, 0);
	wait_readable();
}

static void state_freeing(void)
{
	open_with_buffers();
	for (uint32_t id = 1; id <= 2; ++id) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

		message.buffer_free.buffer = id;
		send_message(message, NULL, 0);
	}
}

static void state_queued(void)
{
	open_with_buffers();
	submit(&slow, 0, 1);
	submit(&small, 0, 2);
	submit(&slow, 0, 3);
}

static void state_running(void)
{
	open_with_buffers();
	submit(&slow, 0, 1);
	fa_raw_ping(&raw);
	fa_test_any_moment_us(5000);
}

static void state_completion_unread(void)
{
	open_with_buffers();
	submit(&small, 0, 1);
	wait_readable();
}

static void state_refusal_unread(void)
{
	open_with_buffers();
	send_message(fa_case_message(&small, 77, 0, 0, 1), NULL, 0);
	wait_readable();
}

static void state_cancelling(void)
{
	state_running();
	for (uint64_t value = 1; value <= 2; ++value) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);

		message.cancel.value = value;
		send_message(message, NULL, 0);
	}
}

static void state_freed_in_use(void)
{
	state_running();
	for (uint32_t id = 1; id <= 2; ++id) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

		message.buffer_free.buffer = id;
		send_message(message, NULL, 0);
	}
}

static void state_out_of_time(void)
{
	open_with_buffers();
	for (uint64_t value = 1; value <= 4; ++value) {
		struct fa_wire_message message = fa_case_message(&slow, 1, 0, 0, value);

		message.timeout_ns = value * FA_NS_PER_MS;
		send_message(message, NULL, 0);
	}
}

static void create_streams(void)
{
	for (uint32_t stream = 1; stream <= 10; ++stream) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_STREAM_CREATE);

		message.stream_create.stream = stream;
		message.stream_create.priority = stream % 2;
		send_message(message, NULL, 0);
	}
}

static void state_creating_streams(void)
{
	open_raw();
	create_streams();
}

static void state_freeing_streams(void)
{
	open_raw();
	create_streams();
	for (uint32_t stream = 1; stream <= 10; ++stream) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_STREAM_FREE);

		message.stream_free.stream = stream;
		send_message(message, NULL, 0);
	}
}

static void state_many_in_flight(void)
{
	open_with_buffers();
	create_streams();
	for (uint64_t value = 1; value <= 20; ++value)
		for (uint32_t stream = 0; stream <= 10; ++stream)
			submit(value % 3 ? &small : &slow, stream, value);
}

static void state_status_unread(void)
{
	open_raw();
	send_message(fa_raw_message(FA_WIRE_STATUS), NULL, 0);
	wait_readable();
}

static void state_statuses_unread(void)
{
	open_raw();
	for (int i = 0; i < 100; ++i)
		send_message(fa_raw_message(FA_WIRE_STATUS), NULL, 0);
}

static void state_flooding(void)
{
	_Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];
	struct fa_wire_message message = fa_raw_message(FA_WIRE_PING);
	size_t length = fa_raw_encode(&message, bytes);

	open_raw();
	for (int i = 0; i < 100000; ++i)
		if (fa_raw_send_bytes(&raw, bytes, length, NULL, 0, MSG_DONTWAIT) == -EAGAIN)
			break;
}

static void state_told_off(void)
{
	int fds[8];

	open_raw();
	for (int i = 0; i < 8; ++i)
		fa_check_eq(fa_memfd_new("killed", 4096, true, &fds[i]), 0);
	fa_check_eq(fa_raw_send_bytes(&raw, "no message", 10, fds, 8, 0), 0);
}

static void state_half_closed(void)
{
	state_running();
	fa_check(!shutdown(raw.fd, SHUT_WR));
}

static void state_working(void)
{
	open_with_buffers();
	for (uint64_t value = 1;; ++value) {
		struct fa_raw_buffer buffer;

		if (value == 3)
			(void)!write(STDOUT_FILENO, "r", 1); /* "ready", see run_client() */
		submit(&small, 0, value);
		fa_raw_buffer_arena(&raw, &buffer, 3, 1 << 20);
		fa_raw_buffer_free(&raw, &buffer);
		fa_raw_wait_expect(&raw, 0, value, 0, NULL);
	}
}

static void state_reconnecting(void)
{
	for (int i = 0;; ++i) {
		if (i == 3)
			(void)!write(STDOUT_FILENO, "r", 1);
		open_raw();
		register_memfd(1, 1 << 20);
		fa_raw_close(&raw);
	}
}

static const struct {
	const char *name;
	void (*reach)(void);
} states[] = {
	{ "connected", state_connected },
	{ "Hello sent", state_hello_unread },
	{ "HelloReply unread", state_welcome_unread },
	{ "ready", state_ready },
	{ "version refused", state_version_refused },
	{ "registering", state_registering },
	{ "registering many", state_registering_many },
	{ "registered", state_registered },
	{ "arena being made", state_making_arena },
	{ "arena unread", state_arena_unread },
	{ "freeing buffers", state_freeing },
	{ "requests queued", state_queued },
	{ "request running", state_running },
	{ "completion unread", state_completion_unread },
	{ "refusal unread", state_refusal_unread },
	{ "cancelling", state_cancelling },
	{ "buffers freed in use", state_freed_in_use },
	{ "out of time", state_out_of_time },
	{ "creating streams", state_creating_streams },
	{ "freeing streams", state_freeing_streams },
	{ "many in flight", state_many_in_flight },
	{ "status unread", state_status_unread },
	{ "statuses unread", state_statuses_unread },
	{ "flooding", state_flooding },
	{ "told off", state_told_off },
	{ "half closed", state_half_closed },
	{ "working", state_working },
	{ "reconnecting", state_reconnecting },
};

#define N_STATES (sizeof(states) / sizeof(states[0]))

struct victim {
	size_t state;
	int ready[2];
	const int *heirs; /* NULL: none; else a pipe, at whose end heirs exit */
};

/* Forks a child that keeps all descriptors and mappings. */
static void leave_heir(const int *pipe)
{
	char byte;
	pid_t pid = fork();

	fa_check(pid >= 0);
	if (pid)
		return;
	close(pipe[1]);
	_exit(read(pipe[0], &byte, 1) != 0);
}

static int run_client(void *userdata)
{
	struct victim *victim = userdata;

	/* The states write to the test by stdout, whose number they all know. */
	if (dup2(victim->ready[1], STDOUT_FILENO) < 0)
		return 1;
	states[victim->state].reach();
	if (victim->heirs)
		leave_heir(victim->heirs);
	(void)!write(STDOUT_FILENO, "r", 1);
	for (;;)
		pause();
}

static pid_t start_client(size_t state, const int *heirs)
{
	struct victim victim = { .state = state, .heirs = heirs };
	char byte;
	pid_t pid;

	fa_check(!pipe(victim.ready));
	pid = fa_test_fork(run_client, &victim);
	close(victim.ready[1]);
	if (read(victim.ready[0], &byte, 1) != 1)
		fa_test_fail(__FILE__, __LINE__, "a client did not get as far as \"%s\"",
		             states[state].name);
	close(victim.ready[0]);
	return pid;
}

static void kill_client(pid_t pid, size_t state)
{
	int status;

	fa_check(!kill(pid, SIGKILL));
	status = fa_test_reap(pid);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		fa_test_fail(__FILE__, __LINE__, "a client ended by itself in \"%s\": %#x",
		             states[state].name, status);
}

static int setup(void **state)
{
	fa_scene_start(&scene, NULL);
	return 0;
}

static int teardown(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

static void test_one_by_one(void **state)
{
	for (size_t i = 0; i < N_STATES; ++i) {
		kill_client(start_client(i, NULL), i);
		fa_scene_check(&scene);
	}
}

/* A session ends with its process, even if a child has inherited its socket and memory. */
static void test_with_heirs(void **state)
{
	size_t n = 0;
	int heirs[2];

	fa_check(!pipe(heirs));
	fa_check(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	for (; states[n].reach != state_working; ++n) {
		kill_client(start_client(n, heirs), n);
		fa_scene_check(&scene);
	}
	fa_check_eq(waitpid(-1, NULL, WNOHANG), 0);
	close(heirs[1]);
	for (size_t i = 0; i < n; ++i)
		fa_check_eq(fa_test_reap(-1), 0);
	close(heirs[0]);
	fa_check(!prctl(PR_SET_CHILD_SUBREAPER, 0));
}

static void test_at_random(void **state)
{
	const int rounds = fa_test_long() ? 550 : 55;
	struct fa_test_random random = { 3 };
	size_t next = 0;

	for (int round = 0; round < rounds; ++round) {
		struct {
			pid_t pid;
			size_t state;
		} victims[4];

		for (int i = 0; i < 4; ++i) {
			victims[i].state = next++ % N_STATES;
			victims[i].pid = start_client(victims[i].state, NULL);
		}
		if (round % 2)
			fa_test_any_moment_us(fa_test_random_below(&random, 3000));
		for (int i = 0; i < 4; ++i)
			kill_client(victims[i].pid, victims[i].state);
		if (round % 7 == 0)
			fa_scene_check(&scene);
	}
	fa_scene_check(&scene);
}

static void test_before_state(void **state)
{
	const int n = fa_test_long() ? 1000 : 100;
	struct fa_test_random random = { 4 };

	for (int i = 0; i < n; ++i) {
		struct victim victim = { .state = fa_test_random_below(&random, N_STATES) };
		pid_t pid;

		fa_check(!pipe(victim.ready));
		pid = fa_test_fork(run_client, &victim);
		fa_test_any_moment_us(fa_test_random_below(&random, 6000));
		kill_client(pid, victim.state);
		close(victim.ready[0]);
		close(victim.ready[1]);
		if (i % 25 == 0)
			fa_scene_check(&scene);
	}
	fa_scene_check(&scene);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_by_one),
		cmocka_unit_test(test_with_heirs),
		cmocka_unit_test(test_at_random),
		cmocka_unit_test(test_before_state),
	};

	return cmocka_run_group_tests_name("kill", tests, setup, teardown);
}
