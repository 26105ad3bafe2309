/*
 * A daemon (fake-daemon.h) that breaks every rule. The client does not crash, hang, leak
 * descriptors or believe it: the connection is lost with -EPROTO, and waits end.
 */
#include "client/faclient.h"
#include "common/cleanup.h"
#include "common/memfd.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/at_once.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static struct fa_client *connect_to(struct fake_daemon *fake)
{
	struct fa_options options = { .size = sizeof(options),
		                      .socket = fake->socket,
		                      .reconnect_ns = UINT64_MAX };
	struct fa_client *client;

	fa_check_eq(fa_connect(&options, &client), 0);
	return client;
}

static int *null_fds(size_t n)
{
	static int fds[253];

	for (size_t i = 0; i < n; ++i)
		fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return fds;
}

static void send_fds(struct fa_raw *raw, struct fa_wire_message *message, size_t announced,
                     size_t n)
{
	unsigned char bytes[FA_WIRE_BYTES_MAX + 64];
	int *fds = null_fds(n);
	size_t length;

	message->fds = (uint8_t)announced;
	length = fa_raw_encode(message, bytes);
	(void)fa_raw_send_bytes(raw, bytes, length, fds, n, 0);
	for (size_t i = 0; i < n; ++i)
		close(fds[i]);
}

static void garbage(struct fa_raw *raw)
{
	char bytes[100];

	memset(bytes, 0xa5, sizeof(bytes));
	(void)fa_raw_send_bytes(raw, bytes, sizeof(bytes), NULL, 0, 0);
}

static void truncated(struct fa_raw *raw)
{
	struct fa_wire_message message = { .id = raw->message.id, .type = FA_WIRE_REPLY };
	unsigned char bytes[FA_WIRE_BYTES_MAX + 64];
	size_t length = fa_raw_encode(&message, bytes);

	(void)fa_raw_send_bytes(raw, bytes, length / 2, NULL, 0, 0);
}

static void oversized(struct fa_raw *raw)
{
	static char bytes[FA_WIRE_BYTES_MAX + 1];

	(void)fa_raw_send_bytes(raw, bytes, sizeof(bytes), NULL, 0, 0);
}

static void unknown_type(struct fa_raw *raw)
{
	struct fa_wire_message message = { .id = raw->message.id, .type = FA_WIRE_REPLY };
	unsigned char bytes[FA_WIRE_BYTES_MAX + 64];
	size_t length = fa_raw_encode(&message, bytes);

	fa_raw_set_type(bytes, 200);
	(void)fa_raw_send_bytes(raw, bytes, length, NULL, 0, 0);
}

static void a_request(struct fa_raw *raw)
{
	struct fa_wire_message message = { .id = raw->message.id, .type = FA_WIRE_PING };

	(void)fa_raw_send(raw, &message, NULL, 0);
}

static void hello_again(struct fa_raw *raw)
{
	struct fa_wire_message message = fake_daemon_hello_reply(raw->message.id);

	send_fds(raw, &message, 1, 1);
}

static void wrong_id(struct fa_raw *raw)
{
	fake_daemon_reply(raw, raw->message.id + 1, 0, NULL);
}

static void detached_id(struct fa_raw *raw)
{
	fake_daemon_reply(raw, raw->message.id | 1ull << 63, 0, NULL);
}

static void twice(struct fa_raw *raw)
{
	fake_daemon_reply(raw, raw->message.id, 0, NULL);
	fake_daemon_reply(raw, raw->message.id, 0, NULL);
	if (fake_daemon_next(raw))
		fake_daemon_reply(raw, raw->message.id, 0, NULL);
}

static void positive(struct fa_raw *raw)
{
	fake_daemon_reply(raw, raw->message.id, 7, NULL);
}

static void wrong_type(struct fa_raw *raw)
{
	struct fa_wire_message message = { .id = raw->message.id, .type = FA_WIRE_BUFFER_REPLY };

	(void)fa_raw_send(raw, &message, NULL, 0);
}

static void fds_unasked(struct fa_raw *raw)
{
	struct fa_wire_message message = { .id = raw->message.id, .type = FA_WIRE_REPLY };

	send_fds(raw, &message, 3, 3);
}

static void fds_unannounced(struct fa_raw *raw)
{
	struct fa_wire_message message = { .id = raw->message.id, .type = FA_WIRE_REPLY };

	send_fds(raw, &message, 0, 2);
}

static void fds_missing(struct fa_raw *raw)
{
	struct fa_wire_message message = { .id = raw->message.id, .type = FA_WIRE_REPLY };

	send_fds(raw, &message, 2, 0);
}

static void fds_many(struct fa_raw *raw)
{
	struct fa_wire_message message = { .id = raw->message.id, .type = FA_WIRE_REPLY };

	send_fds(raw, &message, 200, 200);
}

static void completion_unasked(struct fa_raw *raw)
{
	fake_daemon_complete(raw, 0, 1, 0, NULL);
}

static void completion_far(struct fa_raw *raw)
{
	fake_daemon_complete(raw, 4000000000u, 1, 0, NULL);
}

static void completion_fds(struct fa_raw *raw)
{
	struct fa_wire_message message = { .type = FA_WIRE_COMPLETION,
		                           .completion = { .value = 1 } };

	send_fds(raw, &message, 1, 1);
}

static void says_protocol_error(struct fa_raw *raw)
{
	fake_daemon_reply(raw, 0, -EPROTO, "that was no message");
}

static void misbehave_once(struct fa_raw *raw, void *userdata)
{
	void (*misbehave)(struct fa_raw *) = *(void (**)(struct fa_raw *))userdata;

	if (!fake_daemon_welcome(raw) || !fake_daemon_next(raw))
		return;
	misbehave(raw);
	while (fake_daemon_next(raw))
		;
}

static void test_replies(void **state)
{
	static void (*const all[])(struct fa_raw *) = {
		garbage,        truncated,      oversized,
		unknown_type,   a_request,      hello_again,
		wrong_id,       detached_id,    positive,
		wrong_type,     fds_unasked,    fds_unannounced,
		fds_missing,    fds_many,       completion_unasked,
		completion_far, completion_fds, says_protocol_error,
	};
	int before = fa_test_count_fds(0);

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); ++i) {
		struct fa_client *client;
		struct fake_daemon fake;

		fake_daemon_start(&fake, misbehave_once, (void *)&all[i]);
		client = connect_to(&fake);
		fa_check_eq(fa_ping(client), -EPROTO);
		fa_check(*fa_error());
		fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
		fa_check_eq(fa_ping(client), -EPROTO);
		fa_disconnect(client);
		fake_daemon_stop(&fake);
	}
	fa_check_eq(fa_test_count_fds(0), before);
}

static void test_twice(void **state)
{
	static void (*const misbehave)(struct fa_raw *) = twice;
	struct fa_client *client;
	struct fake_daemon fake;

	fake_daemon_start(&fake, misbehave_once, (void *)&misbehave);
	client = connect_to(&fake);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(fa_ping(client), -EPROTO);
	fa_disconnect(client);
	fake_daemon_stop(&fake);
}

static void spoilt_hello(struct fa_raw *raw, void *userdata)
{
	_fa_cleanup_(fa_close_fdp) int page = -1;
	_fa_cleanup_(fa_close_fdp) int small = -1;
	_fa_cleanup_(fa_close_fdp) int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct fa_wire_message reply;
	int fds[2];

	if (!fake_daemon_next(raw))
		return;
	fa_check_eq(fa_memfd_new("page", FA_COMPLETION_PAGE_BYTES, 0, &page), 0);
	fa_check_eq(fa_memfd_new("page", 100, 0, &small), 0);
	reply = fake_daemon_hello_reply(raw->message.id);
	fds[0] = fds[1] = page;
	switch (*(int *)userdata) {
	case 0:
		reply.hello_reply.version = 9;
		break;
	case 1:
		reply.hello_reply.limits.requests = 0;
		break;
	case 2:
		reply.hello_reply.resumed = true;
		break;
	case 3:
		reply.fds = 0;
		break;
	case 4:
		reply.fds = 2;
		break;
	case 5:
		fds[0] = null;
		break;
	case 6:
		fds[0] = small;
		break;
	case 7:
		reply.id = 77;
		break;
	case 8:
		reply.type = FA_WIRE_STATUS_REPLY;
		break;
	case 9:
		reply = (struct fa_wire_message){ .id = reply.id, .type = FA_WIRE_REPLY };
		break;
	}
	(void)fa_raw_send(raw, &reply, fds, reply.fds);
	while (fake_daemon_next(raw))
		;
}

static void test_handshake(void **state)
{
	int before = fa_test_count_fds(0);

	for (int i = 0; i < 10; ++i) {
		struct fa_options options = { .size = sizeof(options) };
		struct fa_client *client;
		struct fake_daemon fake;

		fake_daemon_start(&fake, spoilt_hello, &i);
		options.socket = fake.socket;
		fa_check_eq(fa_connect(&options, &client), -EPROTO);
		fa_check(*fa_error());
		fake_daemon_stop(&fake);
	}
	fa_check_eq(fa_test_count_fds(0), before);
}

/* ---- shared memory that is not as announced */

static void spoilt_memory(struct fa_raw *raw, void *userdata)
{
	struct fa_wire_message reply = { .fds = 1 };
	int fd = -1;

	if (!fake_daemon_welcome(raw) || !fake_daemon_next(raw))
		return;
	reply.id = raw->message.id;
	if (raw->message.type == FA_WIRE_STATUS) {
		reply.type = FA_WIRE_STATUS_REPLY;
		reply.status_reply.bytes = *(int *)userdata == 3 ? 1ull << 50 : 8192;
	} else {
		reply.type = FA_WIRE_BUFFER_REPLY;
		reply.buffer_reply.bytes = 8192;
	}
	switch (*(int *)userdata) {
	case 0: /* too short: reading it would raise SIGBUS */
		fa_check_eq(fa_memfd_new("short", 4096, 1, &fd), 0);
		break;
	case 1: /* not sealed against shrinking */
		fd = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		fa_check(!ftruncate(fd, 8192));
		break;
	case 2:
		fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
		break;
	case 3:
		reply.fds = 0;
		reply.status_reply.bytes = 1ull << 50;
		break;
	}
	(void)fa_raw_send(raw, &reply, &fd, reply.fds);
	close(fd);
	while (fake_daemon_next(raw))
		;
}

static void test_memory(void **state)
{
	int before = fa_test_count_fds(0);

	for (int i = 0; i < 4; ++i) {
		struct fa_buffer *buffer = NULL;
		struct fa_client *client;
		struct fake_daemon fake;
		char *json = NULL;

		fake_daemon_start(&fake, spoilt_memory, &i);
		client = connect_to(&fake);
		fa_check_eq(fa_buffer_new(client, 8192, FA_BUFFER_DEVICE, &buffer), -EPROTO);
		fa_check(!buffer);
		fa_disconnect(client);
		client = connect_to(&fake);
		fa_check_eq(fa_status(client, &json), -EPROTO);
		fa_check(!json);
		fa_disconnect(client);
		fake_daemon_stop(&fake);
	}
	fa_check_eq(fa_test_count_fds(0), before);
}

static void spoilt_timeline(struct fa_raw *raw, void *userdata)
{
	struct fa_wire_message reply = { .fds = 2, .type = FA_WIRE_TIMELINE_REPLY };
	int how = *(int *)userdata, fds[2];

	if (!fake_daemon_welcome(raw) || !fake_daemon_next(raw))
		return;
	reply.id = raw->message.id;
	reply.timeline_reply.slots = 64;
	reply.timeline_reply.in_bytes = 4096;
	reply.timeline_reply.out_bytes = how == 3 ? 64 : 4096;
	for (int i = 0; i < 2; ++i)
		if (how == i) {
			fds[i] = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
			fa_check(!ftruncate(fds[i], 4096));
		} else if (how == 2) {
			fds[i] = open("/dev/zero", O_RDWR | O_CLOEXEC);
		} else {
			fa_check_eq(fa_memfd_new("short", how == 4 ? 0 : 4096, 1, &fds[i]), 0);
		}
	if (how == 5)
		reply.fds = 1;
	(void)fa_raw_send(raw, &reply, fds, reply.fds);
	close(fds[0]);
	close(fds[1]);
	while (fake_daemon_next(raw))
		;
}

static void test_timeline(void **state)
{
	int before = fa_test_count_fds(0);

	for (int i = 0; i < 6; ++i) {
		struct fa_timeline *timeline = NULL;
		struct fa_client *client;
		struct fake_daemon fake;

		fake_daemon_start(&fake, spoilt_timeline, &i);
		client = connect_to(&fake);
		fa_check_eq(fa_timeline_open(client, &timeline), -EPROTO);
		fa_check(!timeline);
		fa_disconnect(client);
		fake_daemon_stop(&fake);
	}
	fa_check_eq(fa_test_count_fds(0), before);
}

enum lie {
	LIE_NONE,
	LIE_OUT_OF_TURN,
	LIE_OTHER_STREAM,
	LIE_POSITIVE,
	LIE_TWICE,
};

static void lie_about_requests(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);
	enum lie lie = *(enum lie *)userdata;

	while (page && fake_daemon_next(raw)) {
		if (raw->message.type != FA_WIRE_ATTENTION) {
			fake_daemon_answer(raw, page);
			continue;
		}
		fake_daemon_complete(raw, lie == LIE_OTHER_STREAM ? 3 : 0,
		                     raw->message.attention.value + (lie == LIE_OUT_OF_TURN),
		                     lie == LIE_POSITIVE ? 1 : 0, NULL);
		if (lie == LIE_TWICE)
			fake_daemon_complete(raw, 0, raw->message.attention.value, 0, NULL);
	}
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

static void test_completions(void **state)
{
	for (enum lie lie = LIE_NONE; lie <= LIE_TWICE; ++lie) {
		struct fa_attention attention;
		struct fa_buffer *buffer;
		struct fa_ticket ticket;
		struct fa_client *client;
		struct fake_daemon fake;

		fake_daemon_start(&fake, lie_about_requests, &lie);
		client = connect_to(&fake);
		fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
		attention = small_attention(buffer);
		fa_check_eq(fa_attention(client, &attention, &ticket), 0);
		fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL),
		            lie == LIE_NONE || lie == LIE_TWICE ? 0 : -EPROTO);
		fa_check_eq(fa_ping(client), lie == LIE_NONE ? 0 : -EPROTO);
		fa_buffer_free(buffer);
		fa_disconnect(client);
		fake_daemon_stop(&fake);
	}
}

/*
 * The page is ahead of the socket and holds only the latest failure: request 1 succeeds, request 2
 * fails, and the client sees completed 2, failed 2.
 */
static void pipelined(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);
	uint64_t value;

	while (page && fake_daemon_next(raw)) {
		if (raw->message.type != FA_WIRE_ATTENTION) {
			fake_daemon_answer(raw, page);
			continue;
		}
		value = raw->message.attention.value;
		if (value != 2)
			continue;
		atomic_store(&page[0].failed, value);
		atomic_store(&page[0].completed, value);
		fa_test_quiet_ms(20);
		fake_daemon_complete(raw, 0, 1, 0, NULL);
		fa_test_quiet_ms(20);
		fake_daemon_complete(raw, 0, 2, -EINVAL, "the second is wrong");
	}
}

/* The page announces completions long before the socket does. */
static void page_first(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);

	if (!page)
		return;
	atomic_store(&page[0].completed, UINT64_MAX);
	for (uint64_t done = 0; fake_daemon_next(raw);) {
		if (raw->message.type == FA_WIRE_ATTENTION)
			continue;
		if (raw->message.type == FA_WIRE_PING)
			while (done < 3)
				fake_daemon_complete(raw, 0, ++done, 0, NULL);
		fake_daemon_answer(raw, page);
	}
}

static void test_page(void **state)
{
	void (*const serve[])(struct fa_raw *, void *) = { pipelined, page_first };

	for (int i = 0; i < 4; ++i) {
		struct fa_completion completion = { .size = sizeof(completion) };
		struct fa_options options = { .size = sizeof(options) };
		struct fa_attention attention;
		struct fa_ticket tickets[3];
		struct fa_client *client;
		struct fa_buffer *buffer;
		struct fake_daemon fake;

		fake_daemon_start(&fake, serve[i / 2], NULL);
		options.socket = fake.socket;
		options.reconnect_ns = UINT64_MAX;
		options.spin_ns = i % 2 ? FA_NS_PER_SEC : 1;
		fa_check_eq(fa_connect(&options, &client), 0);
		fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
		attention = small_attention(buffer);
		for (int k = 0; k < 3; ++k)
			fa_check_eq(fa_attention(client, &attention, &tickets[k]), 0);
		if (i / 2) {
			fa_check_eq(fa_wait(client, &tickets[0], UINT64_MAX, NULL), 0);
			fa_check_eq(fa_wait(client, &tickets[2], 0, NULL), 0);
			fa_check_eq(fa_wait(client, &tickets[2], 0, &completion), -EAGAIN);
			fa_check_eq(fa_cancel(client, &tickets[2]), -ENOENT);
			fa_check_eq(fa_ping(client), 0);
			fa_check_eq(fa_wait(client, &tickets[2], UINT64_MAX, &completion), 0);
			fa_check_eq(completion.finished_ns, 30);
			fa_check_eq(fa_wait(client, &tickets[2], 0, NULL), 0);
		} else {
			fa_check_eq(fa_wait(client, &tickets[1], UINT64_MAX, NULL), -EINVAL);
			fa_check_contains(fa_error(), "the second is wrong");
			fa_check_eq(fa_wait(client, &tickets[1], UINT64_MAX, &completion), -EINVAL);
			fa_check_eq(completion.status, -EINVAL);
			fa_check_eq(fa_wait(client, &tickets[1], 0, NULL), -EINVAL);
			fa_check_eq(fa_wait(client, &tickets[0], 0, NULL), 0);
			fa_check_eq(fa_wait(client, &tickets[2], 10 * FA_NS_PER_MS, NULL), -EAGAIN);
		}
		fa_disconnect(client);
		fake_daemon_stop(&fake);
	}
}

/* ---- a daemon that reads only while its replies are read */

static void choke(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);
	uint64_t done = 0;

	while (page && fake_daemon_next(raw)) {
		if (raw->message.type == FA_WIRE_ATTENTION)
			fake_daemon_complete(raw, 0, ++done, 0, "x");
		else
			fake_daemon_answer(raw, page);
	}
}

static void test_full_socket(void **state)
{
	struct fa_attention attention;
	struct fa_ticket ticket = {};
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct fake_daemon fake;
	int r;

	fake_daemon_start(&fake, choke, NULL);
	client = connect_to(&fake);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	attention = small_attention(buffer);
	for (int i = 0; i < 5000; ++i) {
		do
			r = fa_attention(client, &attention, &ticket);
		while (r == -EAGAIN);
		fa_check_eq(r, 0);
	}
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), 0);
	fa_check_eq(ticket.value, 5000);
	ticket.value = 5000 - 4095;
	fa_check_eq(fa_wait(client, &ticket, 0, NULL), 0);
	ticket.value = 5000 - 4096;
	fa_check_eq(fa_wait(client, &ticket, 0, NULL), -ESTALE);
	fa_disconnect(client);
	fake_daemon_stop(&fake);
}

/*
 * Calls that free a buffer wait for no reply, so no thread reads. Replies fill the daemon's side of
 * the socket, it stops reading, and requests fill the client's side. Only a sender that reads can
 * resolve this.
 */
static void test_full_socket_by_frees(void **state)
{
	struct fa_options options = { .size = sizeof(options), .reconnect_ns = UINT64_MAX };
	struct fa_buffer *buffers[1500];
	const size_t n = sizeof(buffers) / sizeof(*buffers);
	struct rlimit limit, before;
	struct fa_client *client;
	struct fake_daemon fake;

	fa_check(!getrlimit(RLIMIT_NOFILE, &before));
	limit = before;
	limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
	if (limit.rlim_cur < n + 100)
		skip();
	fa_check(!setrlimit(RLIMIT_NOFILE, &limit));

	options.reply_ns = fa_test_patience_ns() / 4;
	fake_daemon_start(&fake, choke, NULL);
	options.socket = fake.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	for (size_t i = 0; i < n; ++i)
		fa_check_eq(fa_buffer_new(client, 4096, 0, &buffers[i]), 0);
	for (size_t i = 0; i < n; ++i)
		fa_buffer_free(buffers[i]);
	fa_check_eq(fa_ping(client), 0);
	fa_disconnect(client);
	fake_daemon_stop(&fake);
	fa_check(!setrlimit(RLIMIT_NOFILE, &before));
}

static void mute(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);

	while (page && fake_daemon_next(raw))
		if (raw->message.type == FA_WIRE_BUFFER_REGISTER)
			fake_daemon_answer(raw, page);
}

static void test_no_reply(void **state)
{
	struct fa_options options = { .size = sizeof(options),
		                      .reconnect_ns = UINT64_MAX,
		                      .reply_ns = 3 * FA_NS_PER_SEC };
	struct fa_attention attention;
	struct fa_ticket ticket;
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct fake_daemon fake;

	fake_daemon_start(&fake, mute, NULL);
	options.socket = fake.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	attention = small_attention(buffer);
	fa_check_eq(fa_attention(client, &attention, &ticket), 0);
	fa_check_eq(fa_wait(client, &ticket, 10 * FA_NS_PER_MS, NULL), -EAGAIN);
	fa_check_eq(fa_ping(client), -ETIMEDOUT);
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), -ECONNRESET);
	fa_disconnect(client);
	fake_daemon_stop(&fake);
}

static void idle(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);

	while (page && fake_daemon_next(raw))
		if (raw->message.type != FA_WIRE_MARKER)
			fake_daemon_answer(raw, page);
}

/* fa_step_free() returns in time although it cannot send the abort. */
static void test_no_completion(void **state)
{
	const struct fa_step_item item = { .sequence = 1, .n_new = 1 };
	struct fa_step_options step_options = { .size = sizeof(step_options),
		                                .n_items = 1,
		                                .items = &item };
	struct fa_options options = { .size = sizeof(options), .reconnect_ns = UINT64_MAX };
	struct fa_client *client;
	struct fa_ticket ticket;
	struct fa_step *step;
	struct fake_daemon fake;
	uint64_t begin_ns;

	options.reply_ns = fa_test_patience_ns() / 20;
	fake_daemon_start(&fake, idle, NULL);
	options.socket = fake.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	for (int i = 0; i < 64; ++i)
		fa_check_eq(fa_marker(client, 0, NULL, &ticket), 0);
	fa_check_eq(fa_marker(client, 0, NULL, &ticket), -EAGAIN);
	fa_check_contains(fa_error(), "64 requests");
	fa_check_eq(fa_step_begin(client, &step_options, &step), 0);
	begin_ns = fa_now_ns();
	fa_step_free(step);
	fa_check(fa_now_ns() - begin_ns >= options.reply_ns);
	fa_check(fa_now_ns() - begin_ns < fa_test_patience_ns() / 3);
	fa_check_eq(fa_ping(client), 0);
	fa_disconnect(client);
	fake_daemon_stop(&fake);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_replies),
		cmocka_unit_test(test_twice),
		cmocka_unit_test(test_handshake),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_timeline),
		cmocka_unit_test(test_completions),
		cmocka_unit_test(test_page),
		cmocka_unit_test(test_full_socket),
		cmocka_unit_test(test_full_socket_by_frees),
		cmocka_unit_test(test_no_reply),
		cmocka_unit_test(test_no_completion),
	};

	return fa_test_run_at_once("hostile-daemon", tests, fake_daemon_setup, NULL);
}
