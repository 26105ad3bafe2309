/* What a client does when its daemon goes away, as a fake daemon sees it. */
#include "client/faclient.h"
#include "common/cleanup.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmocka.h>

#define BUFFERS 300

/* Written by the fake's thread; read by the test while that thread is idle or stopped. */
struct seen {
	atomic_int connections, hang_up;
	int registered[BUFFERS + 10];
	int priority[64];
	int refuse;
};

static void serve(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);
	struct seen *seen = userdata;
	int connection = atomic_fetch_add(&seen->connections, 1) + 1;

	while (page && fake_daemon_next(raw)) {
		const struct fa_wire_message *message = &raw->message;

		switch (message->type) {
		case FA_WIRE_BUFFER_REGISTER:
			if (connection == 2 && seen->refuse) {
				fake_daemon_reply(raw, message->id, seen->refuse,
				                  "no more of these");
				continue;
			}
			if (connection > 1) {
				struct stat st;

				fa_check_eq(message->buffer_register.kind, FA_WIRE_BUFFER_HOST_FD);
				fa_check_eq(raw->n_fds, 1);
				fa_check(!fstat(raw->fds[0], &st));
				fa_check(message->buffer_register.offset +
				                 message->buffer_register.bytes <=
				         (uint64_t)st.st_size);
			}
			fa_check(message->buffer_register.buffer < BUFFERS + 10);
			seen->registered[message->buffer_register.buffer] = connection;
			break;
		case FA_WIRE_STREAM_CREATE:
			seen->priority[message->stream_create.stream] =
				message->stream_create.priority + 1;
			break;
		case FA_WIRE_ATTENTION:
			/*
			 * The third request never ends; the second one's end is only in the page.
			 */
			if (message->attention.value == 3)
				continue;
			if (message->attention.value == 2) {
				atomic_store(&page[0].completed, 2);
				continue;
			}
			break;
		case FA_WIRE_PING:
			if (atomic_exchange(&seen->hang_up, 0))
				return;
			break;
		default:
			break;
		}
		fake_daemon_answer(raw, page);
	}
}

static struct fa_client *connect_to(struct fake_daemon *fake, uint64_t reconnect_ns)
{
	struct fa_options options = { .size = sizeof(options),
		                      .socket = fake->socket,
		                      .reconnect_ns = reconnect_ns };
	struct fa_client *client;

	fa_check_eq(fa_connect(&options, &client), 0);
	return client;
}

static struct fa_attention small_attention(struct fa_buffer *buffer)
{
	struct fa_attention attention = { .size = sizeof(attention) };
	const int64_t shape[] = { 1, 4, 1, 8 };

	fa_tensor_init(&attention.q, buffer, 0, FA_F32, 4, shape);
	attention.k = attention.v = attention.out = attention.q;
	attention.out.offset = 2048;
	return attention;
}

static uint64_t reconnects(struct fa_client *client)
{
	struct fa_info info = { .size = sizeof(info) };

	fa_check_eq(fa_info(client, &info), 0);
	return info.reconnects;
}

/* Returns after a call has failed because the connection has ended. */
static void break_connection(struct fa_client *client, struct seen *seen)
{
	atomic_store(&seen->hang_up, 1);
	fa_check_eq(fa_ping(client), -ECONNRESET);
	fa_check_contains(fa_error(), "went away");
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
}

static void test_registers_everything_again(void **state)
{
	int before = fa_test_count_fds(0);
	struct fa_buffer *buffers[BUFFERS];
	struct fa_client *client;
	struct seen seen = {};
	struct fake_daemon fake;
	uint32_t streams[3];

	fake_daemon_start(&fake, serve, &seen);
	client = connect_to(&fake, 0);
	for (int i = 0; i < BUFFERS; ++i)
		fa_check_eq(fa_buffer_new(client, 4096, i % 10 ? 0 : FA_BUFFER_DEVICE, &buffers[i]),
		            0);
	for (int i = 0; i < 3; ++i)
		fa_check_eq(fa_stream_new(client, i == 1, &streams[i]), 0);
	buffers[7] = fa_buffer_free(buffers[7]);
	fa_check_eq(fa_stream_free(client, streams[2]), 0);
	strcpy(fa_buffer_data(buffers[10]), "kept");

	break_connection(client, &seen);
	buffers[9] = fa_buffer_free(buffers[9]);
	memset(seen.priority, 0, sizeof(seen.priority));
	fa_check_eq(fa_ping(client), 0);

	fa_check_eq(reconnects(client), 1);
	fa_check_eq(seen.connections, 2);
	for (int i = 0; i < BUFFERS; ++i)
		fa_check_eq(seen.registered[i + 1], i == 7 || i == 9 ? 1 : 2);
	fa_check_eq(seen.priority[streams[0]], 1);
	fa_check_eq(seen.priority[streams[1]], 2);
	fa_check_eq(seen.priority[streams[2]], 0);
	fa_check_contains((char *)fa_buffer_data(buffers[10]), "kept");

	fa_disconnect(client);
	fake_daemon_stop(&fake);
	fa_check_eq(fa_test_count_fds(0), before);
}

static void test_requests(void **state)
{
	struct fa_completion completion = { .size = sizeof(completion) };
	struct fa_attention attention;
	struct fa_ticket tickets[4];
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct seen seen = {};
	struct fake_daemon fake;

	fake_daemon_start(&fake, serve, &seen);
	client = connect_to(&fake, 0);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	attention = small_attention(buffer);
	for (int i = 0; i < 3; ++i)
		fa_check_eq(fa_attention(client, &attention, &tickets[i]), 0);
	break_connection(client, &seen);

	for (int again = 0; again < 2; ++again) {
		fa_check_eq(fa_wait(client, &tickets[0], UINT64_MAX, &completion), 0);
		fa_check_eq(completion.finished_ns, 30);
		fa_check_eq(fa_wait(client, &tickets[1], UINT64_MAX, &completion), 0);
		fa_check_eq(completion.finished_ns, 0);
		fa_check_eq(fa_wait(client, &tickets[2], UINT64_MAX, &completion), -ECONNRESET);
		fa_check_contains(fa_error(), "went away");
		fa_check_eq(completion.status, -ECONNRESET);
		fa_check_eq(fa_cancel(client, &tickets[2]), -ENOENT);
		fa_check_eq(fa_reconnect(client), 0);
		fa_check_eq(fa_client_state(client), FA_CLIENT_CONNECTED);
	}
	/* Request values continue for the caller, and restart on the wire. */
	fa_check_eq(fa_attention(client, &attention, &tickets[3]), 0);
	fa_check_eq(tickets[3].value, 4);
	fa_check_eq(fa_wait(client, &tickets[3], UINT64_MAX, NULL), 0);
	fa_check_eq(fa_wait(client, &tickets[2], 0, NULL), -ECONNRESET);

	fa_disconnect(client);
	fake_daemon_stop(&fake);
}

static void test_refused_registration(void **state)
{
	static const int codes[] = { -EINVAL, -EDQUOT, -EMFILE };

	for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); ++i) {
		struct fa_client *client;
		struct fa_buffer *buffer;
		struct fake_daemon fake;
		struct seen seen = { .refuse = codes[i] };

		fake_daemon_start(&fake, serve, &seen);
		client = connect_to(&fake, 0);
		fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
		break_connection(client, &seen);
		/* -EINVAL is final. The others may be temporary: the client retries at once. */
		if (codes[i] == -EINVAL) {
			fa_check_eq(fa_ping(client), codes[i]);
			fa_check_contains(fa_error(), "no more of these");
			fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
		}
		fa_check_eq(fa_ping(client), 0);
		fa_check_eq(seen.registered[1], 3);
		fa_check_eq(reconnects(client), 1);
		fa_disconnect(client);
		fake_daemon_stop(&fake);
	}
}

static bool is_readable(int fd)
{
	struct pollfd pollfd = { .fd = fd, .events = POLLIN };

	return poll(&pollfd, 1, 0) == 1;
}

static void test_fd(void **state)
{
	struct fa_attention attention;
	struct fa_ticket ticket;
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct seen seen = {};
	struct fake_daemon fake;
	int fd;

	fake_daemon_start(&fake, serve, &seen);
	client = connect_to(&fake, UINT64_MAX);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	attention = small_attention(buffer);
	fd = fa_fd(client);
	fa_check(fd >= 0);
	fa_check_eq(fa_dispatch(client), 0);
	fa_check_eq(fa_fd(client), fd);
	fa_check(!is_readable(fd));

	/*
	 * The descriptor becomes readable though another call reads the completion from the socket.
	 */
	fa_check_eq(fa_attention(client, &attention, &ticket), 0);
	fa_check_eventually(is_readable(fd));
	fa_check_eq(fa_ping(client), 0);
	fa_check(is_readable(fd));
	fa_check_eq(fa_dispatch(client), 0);
	fa_check(!is_readable(fd));
	fa_check_eq(fa_wait(client, &ticket, 0, NULL), 0);

	break_connection(client, &seen);
	fa_check(is_readable(fd));
	fa_check_eq(fa_dispatch(client), -ECONNRESET);
	fa_check(!is_readable(fd));
	fa_check_eq(fa_ping(client), -ECONNRESET);

	fa_check_eq(fa_reconnect(client), 0);
	fa_check_eq(fa_fd(client), fd);
	fa_check_eq(fa_dispatch(client), 0);
	fa_check_eq(fa_attention(client, &attention, &ticket), 0);
	fa_check_eventually(is_readable(fd));
	fa_check_eq(fa_dispatch(client), 0);
	fa_check_eq(fa_wait(client, &ticket, 0, NULL), 0);

	fa_disconnect(client);
	fake_daemon_stop(&fake);
}

static void test_gone(void **state)
{
	struct fa_client *client;
	struct seen seen = {};
	struct fake_daemon fake;
	uint64_t begin;

	fake_daemon_start(&fake, serve, &seen);
	client = connect_to(&fake, 100 * FA_NS_PER_MS);
	fa_check_eq(fa_ping(client), 0);
	break_connection(client, &seen);
	fake_daemon_stop(&fake);
	begin = fa_now_ns();
	fa_check_eq(fa_ping(client), -ENOENT);
	fa_check_contains(fa_error(), fake.socket);
	fa_check(fa_now_ns() - begin >= 100 * FA_NS_PER_MS);
	fa_disconnect(client);
}

/* The daemon closes between calls; the next call notices this when it sends. */
struct leaver {
	const char *words;
	atomic_int connections, gone;
};

static void leave(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);
	struct leaver *leaver = userdata;

	if (page && atomic_fetch_add(&leaver->connections, 1) == 0) {
		if (leaver->words)
			fake_daemon_reply(raw, 0, -EPROTO, leaver->words);
		shutdown(raw->fd, SHUT_RDWR);
		atomic_store(&leaver->gone, 1);
		return;
	}
	while (page && fake_daemon_next(raw))
		fake_daemon_answer(raw, page);
}

static void test_closed_silently(void **state)
{
	struct leaver leaver = {};
	struct fa_client *client;
	struct fake_daemon fake;

	fake_daemon_start(&fake, leave, &leaver);
	client = connect_to(&fake, 0);
	fa_check_eventually(atomic_load(&leaver.gone));
	/* The failed call had sent nothing: it is repeated with the next daemon. */
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(reconnects(client), 1);
	fa_disconnect(client);
	fake_daemon_stop(&fake);
}

static void test_closed_with_message(void **state)
{
	struct leaver leaver = { .words = "these are the last words" };
	struct fa_client *client;
	struct fake_daemon fake;

	fake_daemon_start(&fake, leave, &leaver);
	client = connect_to(&fake, UINT64_MAX);
	fa_check_eventually(atomic_load(&leaver.gone));
	fa_check_eq(fa_ping(client), -EPROTO);
	fa_check_contains(fa_error(), leaver.words);
	fa_disconnect(client);
	fake_daemon_stop(&fake);
}

/* While one thread reconnects, known results can be read. */
static void *ping_long(void *userdata)
{
	fa_check_eq(fa_ping(userdata), -ENOENT);
	return NULL;
}

static void test_results_during_reconnect(void **state)
{
	struct fa_attention attention;
	struct fa_ticket ticket;
	struct fa_client *client;
	struct fa_buffer *buffer;
	pthread_t threads[3];
	struct seen seen = {};
	struct fake_daemon fake;
	uint64_t begin;

	fake_daemon_start(&fake, serve, &seen);
	client = connect_to(&fake, FA_NS_PER_SEC);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	attention = small_attention(buffer);
	fa_check_eq(fa_attention(client, &attention, &ticket), 0);
	break_connection(client, &seen);
	fake_daemon_stop(&fake);

	begin = fa_now_ns();
	for (int i = 0; i < 3; ++i)
		fa_check(!pthread_create(&threads[i], NULL, ping_long, client));
	fa_test_let_sleep_ms(50);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), 0);
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
	fa_check_eq(reconnects(client), 0);
	fa_check_eq(fa_dispatch(client), -ECONNRESET);
	for (int i = 0; i < 3; ++i)
		pthread_join(threads[i], NULL);
	fa_check(fa_now_ns() - begin >= FA_NS_PER_SEC);
	fa_disconnect(client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_registers_everything_again),
		cmocka_unit_test(test_requests),
		cmocka_unit_test(test_refused_registration),
		cmocka_unit_test(test_fd),
		cmocka_unit_test(test_gone),
		cmocka_unit_test(test_closed_silently),
		cmocka_unit_test(test_closed_with_message),
		cmocka_unit_test(test_results_during_reconnect),
	};

	return cmocka_run_group_tests_name("restore", tests, fake_daemon_setup, NULL);
}
