/* How a client finds a daemon, the handshake, and every failure of these. */
#include "client/faclient.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static int connect_to(const char *path, uint64_t connect_ns, struct fa_client **ret_client)
{
	struct fa_options options = { .size = sizeof(options),
		                      .socket = path,
		                      .connect_ns = connect_ns };

	return fa_connect(&options, ret_client);
}

static void check_works(struct fa_client *client, const char *path)
{
	struct fa_info info = { .size = sizeof(info) };

	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(fa_client_state(client), FA_CLIENT_CONNECTED);
	assert_string_equal(fa_socket_path(client), path);
	fa_check_eq(fa_info(client, &info), 0);
	fa_check_eq(info.size, sizeof(info));
	fa_check_eq(info.protocol, 1);
	assert_string_equal(info.daemon_version, "9.8.7");
	assert_string_equal(info.backend, "fake");
	fa_check_eq(info.generation, 1234);
	fa_check_eq(info.reconnects, 0);
	fa_check_eq(info.max_buffers, 100);
	fa_check_eq(info.max_streams, 8);
	fa_check_eq(info.max_requests, 64);
}

static void clear_environment(void)
{
	unsetenv("FAD_SOCKET");
	unsetenv("FAD_INSTANCE");
	unsetenv("XDG_RUNTIME_DIR");
}

static void test_paths(void **state)
{
	struct fa_client *client;
	struct fake_daemon fake;
	char link[80], dir[80];

	fake_daemon_start(&fake, fake_daemon_serve, NULL);
	clear_environment();

	fa_check_eq(connect_to(fake.socket, 0, &client), 0);
	check_works(client, fake.socket);
	assert_null(fa_disconnect(client));

	setenv("FAD_SOCKET", fake.socket, 1);
	fa_check_eq(fa_connect(NULL, &client), 0);
	check_works(client, fake.socket);
	fa_disconnect(client);
	fa_check_eq(connect_to("/nonexistent/fad.sock", 0, &client), -ENOENT);
	fa_check_contains(fa_error(), "/nonexistent/fad.sock");
	clear_environment();

	/* An instance of the service; a path that is named says more. */
	setenv("FAD_INSTANCE", "of-a-test", 1);
	fa_check_eq(fa_connect(NULL, &client), -ENOENT);
	fa_check_contains(fa_error(), "/run/fad-of-a-test/fad.sock");
	fa_check_eq(connect_to(fake.socket, 0, &client), 0);
	fa_disconnect(client);
	setenv("FAD_SOCKET", fake.socket, 1);
	fa_check_eq(fa_connect(NULL, &client), 0);
	fa_disconnect(client);
	unsetenv("FAD_SOCKET");
	setenv("FAD_INSTANCE", "../etc", 1);
	fa_check_eq(fa_connect(NULL, &client), -EINVAL);
	fa_check_contains(fa_error(), "FAD_INSTANCE is \"../etc\"");
	clear_environment();

	snprintf(dir, sizeof(dir), "%s/fad", fake.dir);
	snprintf(link, sizeof(link), "%s/fad.sock", dir);
	fa_check(!mkdir(dir, 0700));
	fa_check(!symlink(fake.socket, link));
	setenv("XDG_RUNTIME_DIR", fake.dir, 1);
	fa_check_eq(fa_connect(NULL, &client), 0);
	check_works(client, link);
	fa_disconnect(client);
	clear_environment();

	fa_check(!unlink(link));
	fa_check(!rmdir(dir));
	fake_daemon_stop(&fake);
}

#define OTHER_UID 65534

/* Another user finds the daemon of root. */
static int run_other_user(void *userdata)
{
	struct fa_info info = { .size = sizeof(info) };
	struct fa_client *client;

	fa_check_eq(setresuid(OTHER_UID, OTHER_UID, OTHER_UID), 0);
	if (fa_connect(NULL, &client) < 0)
		fa_test_fail(__FILE__, __LINE__, "%s", fa_error());
	fa_check_eq(fa_info(client, &info), 0);
	fa_check_eq(info.origin, FA_DAEMON_USER);
	fa_disconnect(client);
	return 0;
}

/* Default sockets are used only if they are this user's or root's. */
static void test_trust(void **state)
{
	struct fa_info info = { .size = sizeof(info) };
	struct fa_client *client = NULL;
	struct fake_daemon fake;
	char link[80], dir[80];

	if (geteuid() || !access("/run/fad", F_OK))
		skip();
	fake_daemon_start(&fake, fake_daemon_serve, NULL);
	clear_environment();
	snprintf(dir, sizeof(dir), "%s/fad", fake.dir);
	snprintf(link, sizeof(link), "%s/fad.sock", dir);
	fa_check(!mkdir(dir, 0755));
	fa_check(!symlink(fake.socket, link));
	fa_check(!chmod(fake.dir, 0755));
	fa_check(!chmod(fake.socket, 0666));
	setenv("XDG_RUNTIME_DIR", fake.dir, 1);
	fa_check_eq(fa_connect(NULL, &client), 0);
	fa_disconnect(client);
	fa_check_eq(fa_test_reap(fa_test_fork(run_other_user, NULL)), 0);

	/* Another user's directory, even with root's daemon */
	fa_check(!chown(fake.dir, OTHER_UID, OTHER_UID));
	fa_check_eq(fa_connect(NULL, &client), -EACCES);
	fa_check_contains(fa_error(), "XDG_RUNTIME_DIR is ");
	fa_check_contains(fa_error(), "which is user 65534's");
	fa_check_contains(fa_error(), "FAD_SOCKET");
	fa_check(!chown(fake.dir, 0, 0));
	fa_check(!chmod(fake.dir, 0777));
	fa_check_eq(fa_connect(NULL, &client), -EACCES);
	fa_check_contains(fa_error(), "which other users can write (mode 777)");
	fa_check(!chmod(fake.dir, 0755));

	/* Another user's daemon: the socket has the credentials of its listen(). */
	fa_check(!seteuid(OTHER_UID));
	fa_check(!listen(fake.listen_fd, 16));
	fa_check(!seteuid(0));
	fa_check_eq(fa_connect(NULL, &client), -EACCES);
	fa_check_contains(fa_error(), "is user 65534's; expected this user's (0) or root's");
	setenv("FAD_SOCKET", link, 1);
	fa_check_eq(fa_connect(NULL, &client), 0);
	fa_check_eq(fa_info(client, &info), 0);
	fa_check_eq(info.origin, FA_DAEMON_NAMED);
	fa_disconnect(client);
	clear_environment();

	fa_check(!unlink(link));
	fa_check(!rmdir(dir));
	fake_daemon_stop(&fake);
}

static void test_no_daemon(void **state)
{
	struct fa_client *client = (void *)1;
	struct fake_daemon fake;
	char path[300];

	fa_check_eq(connect_to("/nonexistent/fad.sock", 0, &client), -ENOENT);
	fa_check_contains(fa_error(), "/nonexistent/fad.sock");

	fake_daemon_start(&fake, NULL, NULL);
	close(fake.listen_fd);
	fa_check_eq(connect_to(fake.socket, 0, &client), -ECONNREFUSED);
	fa_check_contains(fa_error(), "no daemon listens there");
	fake.listen_fd = -1;
	if (geteuid()) {
		fa_check(!chmod(fake.dir, 0));
		fa_check_eq(connect_to(fake.socket, 0, &client), -EACCES);
		fa_check(!chmod(fake.dir, 0700));
	}
	fake_daemon_stop(&fake);

	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[sizeof(path) - 1] = '\0';
	fa_check_eq(connect_to(path, 0, &client), -ENAMETOOLONG);
	fa_check(client == (void *)1);
	fa_check_eq(fa_connect(NULL, NULL), -EINVAL);
}

static void say_nothing(struct fa_raw *raw, void *userdata)
{
	while (fake_daemon_next(raw))
		;
}

static void test_timeouts(void **state)
{
	struct fa_client *client;
	uint64_t begin = fa_now_ns();
	struct fake_daemon fake;

	fake_daemon_start(&fake, say_nothing, NULL);
	fa_check_eq(connect_to(fake.socket, 50 * FA_NS_PER_MS, &client), -ETIMEDOUT);
	fa_check_contains(fa_error(), "does not answer");
	fake_daemon_stop(&fake);

	/* The fake never accepts: its backlog has space at first, and is full later. */
	fake_daemon_start(&fake, NULL, NULL);
	{
		struct fa_raw *raw = malloc(sizeof(*raw));

		fa_raw_connect(raw, fake.socket);
		fa_check_eq(connect_to(fake.socket, 50 * FA_NS_PER_MS, &client), -ETIMEDOUT);
		fa_check_contains(fa_error(), "accepts no connections");
		fa_raw_close(raw);
		free(raw);
	}
	fake_daemon_stop(&fake);
	fa_check(fa_now_ns() - begin >= 100 * FA_NS_PER_MS);
}

struct refusal {
	int status;
	const char *text;
};

static void refuse(struct fa_raw *raw, void *userdata)
{
	const struct refusal *refusal = userdata;

	if (fake_daemon_next(raw) && refusal)
		fake_daemon_reply(raw, raw->message.id, refusal->status, refusal->text);
}

static void test_refused(void **state)
{
	static const struct refusal version = { -EPROTONOSUPPORT, "speaks 7 to 9, offered 1 to 1" };
	static const struct refusal quota = { -EDQUOT, "1024 sessions are all there may be" };
	static const struct refusal draining = { -ESHUTDOWN, "the daemon is stopping" };
	const struct refusal *const refusals[] = { &version, &quota, &draining };
	struct fa_client *client;
	struct fake_daemon fake;

	for (size_t i = 0; i < sizeof(refusals) / sizeof(*refusals); ++i) {
		fake_daemon_start(&fake, refuse, (void *)refusals[i]);
		fa_check_eq(connect_to(fake.socket, 0, &client), refusals[i]->status);
		fa_check_contains(fa_error(), refusals[i]->text);
		fake_daemon_stop(&fake);
	}

	fake_daemon_start(&fake, refuse, NULL);
	fa_check_eq(connect_to(fake.socket, 0, &client), -ECONNRESET);
	fake_daemon_stop(&fake);
}

static void check_name(struct fa_raw *raw, void *userdata)
{
	if (!fake_daemon_next(raw))
		return;
	fa_check_eq(raw->message.hello.version_min, FA_WIRE_VERSION_MIN);
	fa_check_eq(raw->message.hello.version_max, FA_WIRE_VERSION_MAX);
	fa_check(!raw->message.hello.has_resume);
	fa_check(!strcmp(raw->message.hello.name.text, userdata));
	fake_daemon_reply(raw, raw->message.id, -EPERM, "seen");
}

static void test_name(void **state)
{
	struct fa_options options = { .size = sizeof(options) };
	char name[100] = "", cut[65] = "";
	struct fa_client *client;
	struct fake_daemon fake;

	memset(name, 'n', sizeof(name) - 1);
	memset(cut, 'n', sizeof(cut) - 1);
	fake_daemon_start(&fake, check_name, cut);
	options.socket = fake.socket;
	options.name = name;
	fa_check_eq(fa_connect(&options, &client), -EPERM);
	fake_daemon_stop(&fake);

	fake_daemon_start(&fake, check_name, program_invocation_short_name);
	fa_check_eq(connect_to(fake.socket, 0, &client), -EPERM);
	fake_daemon_stop(&fake);
}

static void test_null_client(void **state)
{
	struct fa_completion completion = { .size = sizeof(completion) };
	struct fa_sequence_info sequence_info = { .size = sizeof(sequence_info) };
	struct fa_cache_options cache_options = { .size = sizeof(cache_options), .dtype = FA_F32 };
	struct fa_cache_info cache_info = { .size = sizeof(cache_info) };
	struct fa_step_item item = { .sequence = 1, .n_new = 1 };
	struct fa_step_options step_options = { .size = sizeof(step_options),
		                                .n_items = 1,
		                                .items = &item };
	struct fa_prefix prefix = { .size = sizeof(prefix) };
	struct fa_info info = { .size = sizeof(info) };
	struct fa_timeline *timeline;
	struct fa_ticket ticket = {};
	struct fa_buffer *buffer;
	struct fa_step *step;
	uint64_t number;
	uint32_t stream;
	char *json;

	const int results[] = {
		fa_reconnect(NULL),
		fa_info(NULL, &info),
		fa_ping(NULL),
		fa_buffer_new(NULL, 4096, 0, &buffer),
		fa_buffer_import_cuda(NULL, 4096, 4096, 0, &buffer),
		fa_cuda_trim(NULL),
		fa_wait(NULL, &ticket, 0, &completion),
		fa_marker(NULL, 0, NULL, &ticket),
		fa_cancel(NULL, &ticket),
		fa_fd(NULL),
		fa_dispatch(NULL),
		fa_stream_new(NULL, 0, &stream),
		fa_stream_free(NULL, 1),
		fa_status(NULL, &json),
		fa_daemon_drain(NULL),
		fa_cache_create(NULL, &cache_options, &number),
		fa_cache_find(NULL, "name", &number),
		fa_cache_info(NULL, 1, &cache_info),
		fa_cache_remove(NULL, 1),
		fa_sequence_create(NULL, 1, &number),
		fa_sequence_find(NULL, "name", &number),
		fa_sequence_fork(NULL, 1, 0, &number),
		fa_sequence_set_name(NULL, 1, "name", 0, 0),
		fa_sequence_truncate(NULL, 1, 0),
		fa_sequence_drop_before(NULL, 1, 0, NULL),
		fa_sequence_remove(NULL, 1),
		fa_sequence_info(NULL, 1, &sequence_info),
		fa_sequence_publish(NULL, 1, &prefix, NULL),
		fa_sequence_attach(NULL, 1, &prefix, NULL),
		fa_prefix_find(NULL, 1, &prefix, &number),
		fa_step_begin(NULL, &step_options, &step),
		fa_timeline_open(NULL, &timeline),
	};

	for (size_t i = 0; i < sizeof(results) / sizeof(*results); ++i)
		fa_check_eq(results[i], -EINVAL);
	fa_check_contains(fa_error(), "client is NULL");
	fa_check_eq(fa_client_state(NULL), FA_CLIENT_LOST);
	fa_check(!fa_socket_path(NULL));
	fa_check(!fa_disconnect(NULL));
}

static void test_descriptors(void **state)
{
	int before = fa_test_count_fds(0);

	test_paths(NULL);
	test_no_daemon(NULL);
	test_refused(NULL);
	fa_check_eq(fa_test_count_fds(0), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_paths),       cmocka_unit_test(test_trust),
		cmocka_unit_test(test_no_daemon),   cmocka_unit_test(test_timeouts),
		cmocka_unit_test(test_refused),     cmocka_unit_test(test_name),
		cmocka_unit_test(test_descriptors), cmocka_unit_test(test_null_client),
	};

	return cmocka_run_group_tests_name("connect", tests, NULL, NULL);
}
