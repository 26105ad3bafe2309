/*
 * Two users are two tenants: each has its own quotas, sees its own sessions only, and cannot stop
 * the daemon. Needs root.
 */
#include "common/cleanup.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <grp.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define NOBODY 65534
#define OTHER 65533

static struct fa_scene scene;

static int stop(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

static void start(const char *config)
{
	fa_scene_start(&scene,
	               &(struct fa_test_daemon_options){ .config = config, .everyone = true });
}

struct role {
	uid_t uid;
	int (*function)(void);
};

static int become(void *userdata)
{
	struct role *role = userdata;

	fa_check(!setgroups(0, NULL) && !setgid((gid_t)role->uid) && !setuid(role->uid));
	return role->function();
}

static void run_as(uid_t uid, int (*function)(void))
{
	struct role role = { uid, function };
	int status = fa_test_reap(fa_test_fork(become, &role));

	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), 0);
}

static bool makes_arena(struct fa_raw *raw, uint32_t id, const char *limit)
{
	struct fa_wire_message message = fa_raw_register_message(id, 4096);

	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	fa_raw_call(raw, &message, NULL, 0);
	if (raw->message.type == FA_WIRE_BUFFER_REPLY)
		return true;
	fa_check_eq(raw->message.reply.status, -EDQUOT);
	fa_check_contains(raw->message.reply.text.text, limit);
	return false;
}

static int take_all(void)
{
	static struct fa_raw raw;
	uint32_t id = 1;

	fa_raw_open(&raw, scene.daemon.socket);
	while (makes_arena(&raw, id, "buffers"))
		id++;
	fa_check_eq(id, 4);
	fa_raw_close(&raw);
	return 0;
}

static void test_quotas(void **state)
{
	struct fa_raw raw;

	start("[daemon]\nmode = 0666\n[limits]\nbuffers = 3\n");
	fa_raw_open(&raw, scene.daemon.socket);
	fa_check(makes_arena(&raw, 1, ""));
	fa_check(makes_arena(&raw, 2, ""));
	fa_check(!makes_arena(&raw, 3, "buffers"));
	run_as(NOBODY, take_all);
	run_as(OTHER, take_all);
	fa_check(!makes_arena(&raw, 3, "buffers"));
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static int take_timelines(void)
{
	static struct fa_raw raws[4];
	int n = 0;

	for (int i = 0; i < 4; i++) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_TIMELINE_SETUP);

		fa_raw_open(&raws[i], scene.daemon.socket);
		fa_raw_call(&raws[i], &message, NULL, 0);
		if (raws[i].message.type == FA_WIRE_TIMELINE_REPLY) {
			n++;
			continue;
		}
		fa_check_eq(raws[i].message.reply.status, -EDQUOT);
		fa_check_contains(raws[i].message.reply.text.text, "timelines");
	}
	fa_check_eq(n, 3);
	return 0;
}

static int keep_timelines(void)
{
	take_timelines();
	raise(SIGSTOP);
	return 0;
}

static void test_timelines(void **state)
{
	struct role role = { NOBODY, keep_timelines };
	int status;
	pid_t pid;

	start("[daemon]\nmode = 0666\n[limits]\ntimelines = 3\n");
	pid = fa_test_fork(become, &role);
	fa_check_eq(waitpid(pid, &status, WUNTRACED), pid);
	fa_check(WIFSTOPPED(status));
	run_as(OTHER, take_timelines);
	fa_check(!kill(pid, SIGKILL));
	fa_test_reap(pid);
	fa_scene_check(&scene);
	run_as(NOBODY, take_timelines);
	fa_scene_check(&scene);
}

static int64_t count_tenants(json_t *status, uid_t *ret_uid)
{
	json_t *tenants = json_object_get(status, "tenants");

	fa_check(json_is_array(tenants));
	if (json_array_size(tenants))
		*ret_uid = (uid_t)json_integer_value(
			json_object_get(json_array_get(tenants, 0), "uid"));
	return (int64_t)json_array_size(tenants);
}

static int look_around(void)
{
	_fa_cleanup_(fa_freep) char *text = NULL;
	static struct fa_raw raw;
	json_t *status, *session, *requests;
	uid_t uid = 0;

	fa_raw_open(&raw, scene.daemon.socket);
	text = fa_raw_status(&raw);
	status = json_loads(text, 0, NULL);
	fa_check(status);
	fa_check_eq(json_array_size(json_object_get(status, "sessions")), 1);
	session = json_array_get(json_object_get(status, "sessions"), 0);
	fa_check_eq(json_integer_value(json_object_get(session, "uid")), getuid());
	fa_check_eq(json_integer_value(json_object_get(session, "pid")), getpid());
	fa_check_eq(count_tenants(status, &uid), 1);
	fa_check_eq(uid, getuid());
	fa_check(!strstr(text, "bystander"));
	fa_check(!json_object_get(status, "connections_refused"));
	fa_check(!json_object_get(status, "rings"));
	/* The bystander and its requests do not count. */
	fa_check_eq(json_integer_value(json_object_get(status, "connections")), 1);
	requests = json_object_get(status, "requests");
	fa_check_eq(json_integer_value(json_object_get(requests, "submitted")), 0);
	fa_check_eq(json_integer_value(json_object_get(requests, "finished")), 0);
	fa_check_eq(json_integer_value(json_object_get(requests, "busy_ns")), 0);
	json_decref(status);
	fa_raw_close(&raw);
	return 0;
}

static int linger(void)
{
	static struct fa_raw raw;

	fa_raw_open(&raw, scene.daemon.socket);
	raise(SIGSTOP);
	return 0;
}

static int ask_for_one(void)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_MARKER);
	static struct fa_raw raw;

	fa_raw_open(&raw, scene.daemon.socket);
	message.marker.value = 1;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, 1, 0, NULL);
	fa_raw_close(&raw);
	return 0;
}

static void test_status(void **state)
{
	_fa_cleanup_(fa_freep) char *text = NULL;
	struct fa_wire_message hello = fa_raw_hello_message("bystander");
	struct role role = { OTHER, linger };
	struct fa_raw raw;
	json_t *status;
	uid_t uid = 0;
	pid_t pid;
	int wait_status;

	start(NULL);
	fa_raw_connect(&raw, scene.daemon.socket);
	fa_raw_call(&raw, &hello, NULL, 0);
	pid = fa_test_fork(become, &role);
	fa_check_eq(waitpid(pid, &wait_status, WUNTRACED), pid);
	fa_check(WIFSTOPPED(wait_status));
	run_as(OTHER, ask_for_one);
	run_as(NOBODY, look_around);

	text = fa_raw_status(&scene.bystander);
	status = json_loads(text, 0, NULL);
	fa_check(status);
	fa_check(count_tenants(status, &uid) >= 2);
	fa_check(json_array_size(json_object_get(status, "sessions")) >= 3);
	fa_check_contains(text, "65533");
	fa_check_contains(text, "bystander");
	json_decref(status);
	fa_check(!kill(pid, SIGKILL));
	fa_test_reap(pid);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static int observe(void)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_DRAIN);
	_fa_cleanup_(fa_freep) char *text = NULL;
	static struct fa_raw raw;
	json_t *status;
	uid_t uid;

	fa_raw_open(&raw, scene.daemon.socket);
	text = fa_raw_status(&raw);
	status = json_loads(text, 0, NULL);
	fa_check(status);
	fa_check_eq(json_array_size(json_object_get(status, "sessions")), 2);
	fa_check_eq(count_tenants(status, &uid), 2);
	fa_check(json_object_get(status, "connections_refused"));
	fa_check_eq(json_integer_value(json_object_get(status, "uid")), 0); /* the daemon's */
	json_decref(status);
	fa_raw_call_expect(&raw, &message, NULL, 0, -EPERM, "root");
	fa_raw_close(&raw);
	return 0;
}

static size_t count_sessions(void)
{
	_fa_cleanup_(fa_freep) char *text = fa_raw_status(&scene.bystander);
	json_t *status = json_loads(text, 0, NULL);
	size_t n = json_array_size(json_object_get(status, "sessions"));

	json_decref(status);
	return n;
}

/* The observer sees all, but does not control the daemon. */
static void test_observer(void **state)
{
	start("[daemon]\nmode = 0666\nobserver = nobody\n");
	run_as(OTHER, look_around);
	fa_check_eventually(count_sessions() == 1);
	run_as(NOBODY, observe);
	fa_scene_check(&scene);
}

/* Ended requests of @uid; -1: the user still has sessions, or is unknown. */
static json_int_t finished_of_gone(uid_t uid)
{
	_fa_cleanup_(fa_freep) char *text = fa_raw_status(&scene.bystander);
	json_t *status = json_loads(text, 0, NULL), *tenant;
	json_int_t finished = -1;
	size_t i;

	json_array_foreach(json_object_get(status, "tenants"), i, tenant)
	{
		if (json_integer_value(json_object_get(tenant, "uid")) == uid &&
		    !json_integer_value(json_object_get(tenant, "sessions")))
			finished = json_integer_value(json_object_get(tenant, "finished"));
	}
	json_decref(status);
	return finished;
}

/* Counters outlive a user's sessions and go on with later ones. */
static void test_gone(void **state)
{
	start(NULL);
	fa_check_eq(finished_of_gone(NOBODY), -1);
	for (int i = 1; i <= 3; ++i) {
		run_as(NOBODY, ask_for_one);
		fa_check_eventually(finished_of_gone(NOBODY) == i);
	}
	fa_scene_check(&scene);
}

static int try_drain(void)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_DRAIN);
	static struct fa_raw raw;

	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_call_expect(&raw, &message, NULL, 0, -EPERM, "root");
	fa_raw_ping(&raw);
	fa_raw_close(&raw);
	return 0;
}

static void test_drain(void **state)
{
	struct fa_test_accounts accounts;

	start(NULL);
	run_as(NOBODY, try_drain);
	fa_test_accounts(&scene.bystander, &accounts);
	fa_check(!accounts.draining);
	fa_scene_check(&scene);
}

static int try_connect(void)
{
	static struct fa_raw raw;

	fa_check_eq(fa_raw_connect_try(&raw, scene.daemon.socket), -EACCES);
	return 0;
}

static void test_mode(void **state)
{
	start("[daemon]\nmode = 0660\n");
	run_as(NOBODY, try_connect);
	fa_scene_check(&scene);
}

static int free_foreign(void)
{
	static struct fa_raw raw;

	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_ping(&raw);
	/* Guessed ids stop no sessions of others. */
	for (uint32_t id = 1; id < 4; ++id) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

		message.buffer_free.buffer = id;
		fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, NULL);
	}
	fa_raw_close(&raw);
	return 0;
}

static void test_ids(void **state)
{
	start(NULL);
	run_as(NOBODY, free_foreign);
	fa_scene_check(&scene);
}

#define test(function) cmocka_unit_test_teardown(function, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_quotas), test(test_timelines), test(test_status), test(test_observer),
		test(test_gone),   test(test_drain),     test(test_mode),   test(test_ids),
	};

	if (geteuid()) {
		fprintf(stderr, "only root can become several users\n");
		return 77;
	}
	return cmocka_run_group_tests_name("tenants", tests, NULL, NULL);
}
