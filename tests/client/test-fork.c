/*
 * In a forked child every call with the parent's client is refused. If the child frees that client,
 * the parent's session survives.
 */
#include "client/faclient.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_child_is_refused),
		cmocka_unit_test(test_child_connects),
		cmocka_unit_test(test_child_keeps_no_session),
	};

	return cmocka_run_group_tests_name("fork", tests, fake_daemon_setup, NULL);
}
