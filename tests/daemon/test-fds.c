/*
 * A daemon without free descriptors refuses what needs one; connected clients keep all they have. A
 * client that uses its whole quota leaves enough for others.
 */
#include "common/cleanup.h"
#include "common/memfd.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <grp.h>
#include <jansson.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MEASURED_MS 300

#define NOBODY 65534

static struct fa_scene scene;
static struct fa_raw innocent;

static int start(void **state)
{
	fa_scene_start(&scene, NULL);
	fa_raw_open(&innocent, scene.daemon.socket);
	return 0;
}

static int stop(void **state)
{
	fa_raw_close(&innocent);
	fa_scene_stop(&scene);
	return 0;
}

static void leave(unsigned int n)
{
	fa_raw_ping(&innocent);
	fa_test_daemon_leave_fds(&scene.daemon, n);
}

static void check_well(void)
{
	leave(UINT_MAX);
	fa_raw_close(&innocent);
	fa_scene_check(&scene);
}

static struct fa_wire_message register_message(uint32_t id, uint8_t n_fds)
{
	struct fa_wire_message message = fa_raw_register_message(id, 4096);

	message.id = ++innocent.next_id;
	message.fds = n_fds;
	return message;
}

static void send_with(const struct fa_wire_message *message, size_t n_fds)
{
	int fds[FA_WIRE_FDS_MAX + 2] = { 0 };

	for (size_t i = 0; i < n_fds; ++i)
		fa_check_eq(fa_memfd_new("fds", 4096, true, &fds[i]), 0);
	fa_check_eq(fa_raw_send(&innocent, message, fds, n_fds), 0);
	for (size_t i = 0; i < n_fds; ++i)
		close(fds[i]);
}

static void test_lost(void **state)
{
	struct fa_wire_message message;
	struct fa_raw_buffer buffer;

	leave(0);
	for (int i = 0; i < 20; ++i) {
		message = register_message(1, 1);
		send_with(&message, 1);
		fa_raw_expect_reply(&innocent, message.id, -EMFILE, "descriptors", false);
		fa_scene_bystander(&scene);
	}
	fa_raw_ping(&innocent);
	fa_test_daemon_log_wait(&scene.daemon, "no descriptors are left");

	leave(UINT_MAX);
	fa_raw_buffer_register(&innocent, &buffer, 1, 4096, 0);
	fa_raw_buffer_free(&innocent, &buffer);
	check_well();
}

static void test_some_lost(void **state)
{
	for (unsigned int n = 0; n < 4; ++n) {
		struct fa_wire_message message = register_message(1, 4);

		leave(n);
		send_with(&message, 4);
		fa_raw_expect_reply(&innocent, message.id, -EINVAL, "4 descriptors", false);
		fa_raw_ping(&innocent);
	}
	check_well();
}

/* Requests without descriptors work, and streams are answered in order. */
static void test_unwanted_lost(void **state)
{
	struct fa_case attention = { .head_dim = 8, .seqlen_q = 2 };
	struct fa_wire_message message;

	fa_case_plan(&attention);
	leave(0);
	message = fa_case_message(&attention, 1, 0, 0, 1);
	message.fds = 1;
	send_with(&message, 1);
	fa_raw_wait_expect(&innocent, 0, 1, -EINVAL, "descriptors");
	message = fa_raw_message(FA_WIRE_PING);
	message.id = 77;
	message.fds = 2;
	send_with(&message, 2);
	fa_raw_expect_reply(&innocent, 77, -EINVAL, "2 descriptors", false);
	message = fa_raw_message(FA_WIRE_MARKER);
	message.marker.value = 2;
	fa_check_eq(fa_raw_send(&innocent, &message, NULL, 0), 0);
	fa_raw_wait_expect(&innocent, 0, 2, 0, NULL);
	check_well();
}

/* More descriptors than announced violate the protocol, however many arrive. */
static void test_more_than_announced(void **state)
{
	static const struct {
		uint8_t announced;
		size_t sent, left;
	} lies[] = { { 0, 1, 0 }, { 1, 2, 1 }, { 1, 10, 3 }, { 9, 9, 0 }, { 200, 10, 5 } };
	const char *socket = scene.daemon.socket;

	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); ++i) {
		struct fa_wire_message message = register_message(1, lies[i].announced);

		leave((unsigned int)lies[i].left);
		send_with(&message, lies[i].sent);
		fa_check_eq(fa_raw_receive(&innocent, 60000), 1);
		fa_check_eq(innocent.message.reply.status, -EPROTO);
		fa_raw_expect_end(&innocent);
		fa_raw_close(&innocent);
		fa_test_daemon_leave_fds(&scene.daemon, UINT_MAX);
		fa_scene_bystander(&scene);
		fa_raw_open(&innocent, socket);
	}
	check_well();
}

static void call_expect(enum fa_wire_type type, int status)
{
	struct fa_wire_message message = fa_raw_message(type);

	fa_raw_call_expect(&innocent, &message, NULL, 0, status, strerror(-status));
}

static void test_none_to_make(void **state)
{
	struct fa_wire_message arena = fa_raw_register_message(1, 4096);
	struct fa_wire_message ring = fa_raw_message(FA_WIRE_RING_SETUP);

	arena.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	for (unsigned int n = 0; n < 4; ++n) {
		leave(n);
		fa_raw_call_expect(&innocent, &ring, NULL, 0, -EMFILE, "ring");
	}
	leave(0);
	call_expect(FA_WIRE_STATUS, -EMFILE);
	call_expect(FA_WIRE_TIMELINE_SETUP, -EMFILE);
	fa_raw_call_expect(&innocent, &arena, NULL, 0, -EMFILE, strerror(EMFILE));
	fa_scene_bystander(&scene);

	leave(UINT_MAX);
	fa_raw_call(&innocent, &ring, NULL, 0);
	fa_check_eq(innocent.message.type, FA_WIRE_RING_REPLY);
	fa_raw_call(&innocent, &arena, NULL, 0);
	fa_check_eq(innocent.message.type, FA_WIRE_BUFFER_REPLY);
	check_well();
}

/* A refusal for lack of descriptors says: try again. */
static void test_hello(void **state)
{
	struct fa_wire_message hello = fa_raw_hello_message("too early");
	static struct fa_raw raw;

	hello.id = 1;
	fa_raw_connect(&raw, scene.daemon.socket);
	fa_scene_bystander(&scene);
	leave(0);
	fa_check_eq(fa_raw_send(&raw, &hello, NULL, 0), 0);
	fa_raw_expect_reply(&raw, 1, -EDQUOT, "no descriptors left", false);
	leave(UINT_MAX);
	fa_raw_hello(&raw);
	fa_raw_ping(&raw);
	fa_raw_close(&raw);
	check_well();
}

/* All connection attempts are answered, with little CPU time. */
static void test_refuses_connections_cheaply(void **state)
{
	struct fa_test_usage before, after;
	static struct fa_raw raws[100];

	leave(0);
	fa_test_daemon_usage(&scene.daemon, &before);
	for (int i = 0; i < 100; ++i)
		fa_raw_connect(&raws[i], scene.daemon.socket);
	for (int i = 0; i < 100; ++i) {
		fa_raw_expect_reply(&raws[i], 0, -EDQUOT, "no descriptors left", true);
		fa_raw_close(&raws[i]);
		fa_raw_ping(&innocent);
	}
	fa_test_elapse_ms(MEASURED_MS);
	fa_test_daemon_usage(&scene.daemon, &after);
	fa_check(after.cpu_ns - before.cpu_ns < MEASURED_MS * FA_NS_PER_MS / 2);
	check_well();
}

static bool number_is(json_t *status, const char *key, json_int_t value)
{
	return json_integer_value(json_object_get(status, key)) == value;
}

static bool is_only_tenant(void)
{
	_fa_cleanup_(fa_freep) char *text = fa_raw_status(&innocent);
	json_t *status = json_loads(text, 0, NULL);
	bool is = status && number_is(status, "tenants_total", 1);

	json_decref(status);
	return is;
}

/* A client whose identity is unreadable is not taken for another. */
static void test_account(void **state)
{
	static struct fa_raw raw;

	for (unsigned int n = 1; n < 8; ++n) {
		struct fa_wire_message hello = fa_raw_hello_message("whoever");
		bool welcome;

		leave(n);
		hello.id = 1;
		fa_raw_connect(&raw, scene.daemon.socket);
		(void)fa_raw_send(&raw, &hello, NULL, 0);
		welcome = fa_raw_receive(&raw, 60000) == 1 &&
		          raw.message.type == FA_WIRE_HELLO_REPLY;
		if (!welcome)
			fa_check_eq(raw.message.reply.status, -EDQUOT);
		fa_check(welcome || n < 7);
		leave(UINT_MAX);
		/* A refused connection has a tenant until it is closed. */
		fa_check_eventually(is_only_tenant());
		fa_raw_close(&raw);
		fa_check_eventually((fa_test_accounts(&innocent, &scene.accounts),
		                     scene.accounts.connections == 2));
	}
	fa_raw_close(&innocent);
	fa_check_eventually((fa_test_accounts(&scene.bystander, &scene.accounts),
	                     scene.accounts.connections == 1 && !scene.accounts.requests));
}

#define FILES 256

static int be_greedy(void *userdata)
{
	static struct fa_raw raws[FILES];
	int n = 0;

	fa_check(!setgroups(0, NULL) && !setgid(NOBODY) && !setuid(NOBODY));
	for (; n < FILES; ++n) {
		struct fa_wire_message ring = fa_raw_message(FA_WIRE_RING_SETUP);
		struct fa_wire_message hello = fa_raw_hello_message("greedy");

		fa_raw_connect(&raws[n], scene.daemon.socket);
		hello.id = 1;
		(void)fa_raw_send(&raws[n], &hello, NULL, 0);
		if (fa_raw_receive(&raws[n], 60000) != 1 ||
		    raws[n].message.type != FA_WIRE_HELLO_REPLY)
			break;
		ring.id = 2;
		(void)fa_raw_send(&raws[n], &ring, NULL, 0);
		(void)fa_raw_receive(&raws[n], 60000);
		for (uint64_t i = 0; i < 20; ++i) {
			struct fa_wire_message status = fa_raw_message(FA_WIRE_STATUS);

			status.id = 3 + i;
			(void)fa_raw_send(&raws[n], &status, NULL, 0);
		}
	}
	fa_check(n > 5 && n < FILES);
	fa_check_eq(raws[n].message.reply.status, -EDQUOT);
	fa_check_contains(raws[n].message.reply.text.text, "fds");
	raise(SIGSTOP);
	return 0;
}

static void test_greedy(void **state)
{
	const struct fa_test_daemon_options options = {
		.nofile = FILES,
		.everyone = true,
		.config = "[daemon]\nmode = 0666\n",
	};
	struct fa_wire_message ring = fa_raw_message(FA_WIRE_RING_SETUP);
	struct fa_raw_buffer buffer;
	int wstatus;
	pid_t pid;

	if (geteuid())
		skip();
	fa_scene_start(&scene, &options);
	pid = fa_test_fork(be_greedy, NULL);
	fa_check_eq(waitpid(pid, &wstatus, WUNTRACED), pid);
	fa_check(WIFSTOPPED(wstatus));
	for (int i = 0; i < 5; ++i) {
		fa_raw_open(&innocent, scene.daemon.socket);
		fa_raw_call(&innocent, &ring, NULL, 0);
		fa_check_eq(innocent.message.type, FA_WIRE_RING_REPLY);
		fa_raw_buffer_register(&innocent, &buffer, 1, 4096, 0);
		free(fa_raw_status(&innocent));
		fa_scene_bystander(&scene);
		fa_raw_buffer_free(&innocent, &buffer);
		fa_raw_close(&innocent);
	}
	fa_check(!kill(pid, SIGKILL));
	fa_test_reap(pid);
	fa_scene_check(&scene);
}

/*
 * Idle sessions keep no received descriptors: one user can have as many connections as the limit on
 * descriptors allows.
 */
static void test_idle_sessions(void **state)
{
	enum {
		N = 28
	};
	struct fa_wire_message ring = fa_raw_message(FA_WIRE_RING_SETUP);
	struct fa_raw *raws = test_calloc(N, sizeof(*raws));

	fa_scene_start(&scene,
	               &(struct fa_test_daemon_options){ .config = "[limits]\nfds = 128\n" });
	for (int i = 0; i < N; ++i) {
		fa_raw_open(&raws[i], scene.daemon.socket);
		fa_raw_call(&raws[i], &ring, NULL, 0);
		fa_check_eq(raws[i].message.type, FA_WIRE_RING_REPLY);
	}
	for (int i = 0; i < N; ++i)
		fa_raw_close(&raws[i]);
	test_free(raws);
	fa_scene_check(&scene);
}

static int stop_scene_always(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

static int stop_scene(void **state)
{
	if (!geteuid())
		fa_scene_stop(&scene);
	return 0;
}

#define test(function) cmocka_unit_test_setup_teardown(function, start, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_lost),
		test(test_some_lost),
		test(test_unwanted_lost),
		test(test_more_than_announced),
		test(test_none_to_make),
		test(test_hello),
		test(test_refuses_connections_cheaply),
		test(test_account),
		cmocka_unit_test_teardown(test_idle_sessions, stop_scene_always),
		cmocka_unit_test_teardown(test_greedy, stop_scene),
	};

	return cmocka_run_group_tests_name("fds", tests, NULL, NULL);
}
