/*
 * In a forked child every call with the parent's client is refused. If the child frees that client,
 * the parent's session survives.
 */
#include "client/faclient.h"
#include "client/faclient_kv.h"
#include "tests/client/fake-daemon.h"
#include "tests/client/spawn.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct family {
	struct fake_daemon fake;
	struct fa_client *client;
	struct fa_buffer *buffer, *other;
	struct fa_ticket ticket;
	struct fa_attention attention;
};

static void family_start(struct family *family)
{
	const int64_t shape[] = { 1, 4, 1, 8 };
	struct fa_options options = { .size = sizeof(options) };

	memset(family, 0, sizeof(*family));
	fake_daemon_start(&family->fake, fake_daemon_serve, NULL);
	options.socket = family->fake.socket;
	fa_check_eq(fa_connect(&options, &family->client), 0);
	fa_check_eq(fa_buffer_new(family->client, 4096, 0, &family->buffer), 0);
	fa_check_eq(fa_buffer_new(family->client, 4096, 0, &family->other), 0);
	strcpy(fa_buffer_data(family->buffer), "from the parent");
	family->attention.size = sizeof(family->attention);
	fa_tensor_init(&family->attention.q, family->buffer, 0, FA_F32, 4, shape);
	family->attention.k = family->attention.v = family->attention.out = family->attention.q;
	family->attention.out.offset = 2048;
	fa_check_eq(fa_attention(family->client, &family->attention, &family->ticket), 0);
	fa_check_eq(fa_wait(family->client, &family->ticket, UINT64_MAX, NULL), 0);
	strcpy(fa_buffer_data(family->buffer), "from the parent");
}

static void family_stop(struct family *family)
{
	fa_disconnect(family->client);
	fake_daemon_stop(&family->fake);
}

static int run_child(void *userdata)
{
	struct family *family = userdata;
	struct fa_client *client = family->client;
	struct fa_info info = { .size = sizeof(info) };
	struct fa_buffer *buffer;
	uint32_t stream;
	char *json;

	fa_check_eq(fa_ping(client), -ECHILD);
	fa_check_contains(fa_error(), "fork()");
	fa_check_contains(fa_error(), "fa_connect()");
	fa_check_eq(fa_reconnect(client), -ECHILD);
	fa_check_eq(fa_info(client, &info), -ECHILD);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), -ECHILD);
	fa_check_eq(fa_attention(client, &family->attention, NULL), -ECHILD);
	fa_check_eq(fa_wait(client, &family->ticket, 0, NULL), -ECHILD);
	fa_check_eq(fa_cancel(client, &family->ticket), -ECHILD);
	fa_check_eq(fa_fd(client), -ECHILD);
	fa_check_eq(fa_dispatch(client), -ECHILD);
	fa_check_eq(fa_stream_new(client, 0, &stream), -ECHILD);
	fa_check_eq(fa_stream_free(client, 1), -ECHILD);
	fa_check_eq(fa_status(client, &json), -ECHILD);
	fa_check_eq(fa_daemon_drain(client), -ECHILD);
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);

	fa_check_contains((char *)fa_buffer_data(family->buffer), "from the parent");
	strcpy(fa_buffer_data(family->buffer), "from the child");
	fa_check(!fa_buffer_free(family->other));
	fa_check(!fa_disconnect(client));
	return 0;
}

static void test_child_is_refused(void **state)
{
	int before = fa_test_count_fds(0), fds;
	struct family family;

	family_start(&family);
	for (int i = 0; i < 3; ++i) {
		strcpy(fa_buffer_data(family.buffer), "from the parent");
		fds = fa_test_count_fds(0);
		fa_check_eq(fa_test_reap(fa_test_fork(run_child, &family)), 0);
		fa_check_eq(fa_test_count_fds(0), fds);
		fa_check_contains((char *)fa_buffer_data(family.buffer), "from the child");
		fa_check_eq(fa_ping(family.client), 0);
		fa_check_eq(fa_attention(family.client, &family.attention, NULL), 0);
		fa_check_eq(fa_client_state(family.client), FA_CLIENT_CONNECTED);
	}
	family_stop(&family);
	fa_check_eq(fa_test_count_fds(0), before);
}

static int run_own(void *userdata)
{
	struct family *family = userdata;
	struct fa_options options = { .size = sizeof(options), .socket = family->fake.socket };
	struct fa_client *own;

	fa_check_eq(fa_connect(&options, &own), 0);
	fa_check_eq(fa_ping(own), 0);
	fa_check_eq(fa_ping(family->client), -ECHILD);
	fa_disconnect(own);
	return 0;
}

static void serve_one_request(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);

	/* The fake can serve the next connection when this function returns. */
	if (page && fake_daemon_next(raw))
		fake_daemon_answer(raw, page);
}

static void test_child_connects(void **state)
{
	struct fa_options options = { .size = sizeof(options) };
	struct family family = {};

	fake_daemon_start(&family.fake, serve_one_request, NULL);
	options.socket = family.fake.socket;
	fa_check_eq(fa_connect(&options, &family.client), 0);
	fa_check_eq(fa_ping(family.client), 0);
	fa_check_eq(fa_test_reap(fa_test_fork(run_own, &family)), 0);
	fa_disconnect(family.client);
	fake_daemon_stop(&family.fake);
}

/* A child with the socket open does not keep the session alive after the parent's death. */
static int run_idle(void *userdata)
{
	char byte;

	return read(*(int *)userdata, &byte, 1) != 1;
}

static void test_child_keeps_no_session(void **state)
{
	struct family family;
	int ends[2];
	pid_t pid;

	fa_check(!pipe(ends));
	family_start(&family);
	pid = fa_test_fork(run_idle, &ends[0]);
	fa_disconnect(family.client);
	fake_daemon_stop(&family.fake);
	fa_check_eq(write(ends[1], "x", 1), 1);
	fa_check_eq(fa_test_reap(pid), 0);
	close(ends[0]);
	close(ends[1]);
}

/* With the real daemon: a process is killed during a step, and its child idles. */

struct killed {
	const char *socket;
	int ends[2]; /* a pipe; the child exits at its end */
};

static int run_killed(void *userdata)
{
	struct killed *killed = userdata;
	struct fa_options options = { .size = sizeof(options), .socket = killed->socket };
	struct fa_cache_options cache_options = { .size = sizeof(cache_options),
		                                  .dtype = FA_F32,
		                                  .layers = 1,
		                                  .kv_heads = 1,
		                                  .head_dim = 64 };
	struct fa_step_item item = { .n_new = 64 };
	struct fa_step_options step_options = { .size = sizeof(step_options),
		                                .items = &item,
		                                .n_items = 1 };
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct fa_step *step;
	uint64_t cache;
	char byte;

	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check_eq(fa_buffer_new(client, 1 << 20, 0, &buffer), 0);
	fa_check_eq(fa_cache_create(client, &cache_options, &cache), 0);
	fa_check_eq(fa_sequence_create(client, cache, &item.sequence), 0);
	fa_check_eq(fa_step_begin(client, &step_options, &step), 0);
	strcpy(fa_buffer_data(buffer), "from the parent");
	if (fork())
		return kill(getpid(), SIGKILL);

	close(killed->ends[1]);
	if (read(killed->ends[0], &byte, 1) != 0)
		return 1;
	fa_check_contains((char *)fa_buffer_data(buffer), "from the parent");
	fa_check_eq(fa_ping(client), -ECHILD);
	fa_check_eq(fa_buffer_free(buffer), 0);
	fa_check_eq(fa_disconnect(client), 0);
	return 0;
}

static void test_child_of_killed_keeps_no_session(void **state)
{
	struct fa_options options = { .size = sizeof(options) };
	struct fa_test_daemon daemon;
	struct killed killed;
	struct fa_client *observer;

	if (!getenv("FAD_DAEMON"))
		skip();
	fa_test_daemon_start(&daemon, NULL);
	options.socket = killed.socket = daemon.socket;
	fa_check_eq(fa_connect(&options, &observer), 0);
	fa_check(!pipe(killed.ends));
	spawn_adopt_orphans(true);
	fa_check_eq(fa_test_reap(fa_test_fork(run_killed, &killed)), SIGKILL);
	fa_check_eventually(spawn_number(observer, "pool", "sequences") == 0);
	fa_check_eventually(spawn_number(observer, NULL, "connections") == 1);
	close(killed.ends[1]);
	fa_check_eq(fa_test_reap(-1), 0);
	spawn_adopt_orphans(false);
	close(killed.ends[0]);
	fa_disconnect(observer);
	fa_test_daemon_stop(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_child_is_refused),
		cmocka_unit_test(test_child_connects),
		cmocka_unit_test(test_child_keeps_no_session),
		cmocka_unit_test(test_child_of_killed_keeps_no_session),
	};

	return cmocka_run_group_tests_name("fork", tests, fake_daemon_setup, NULL);
}
