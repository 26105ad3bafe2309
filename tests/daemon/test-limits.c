/* The error names the limit, the session goes on, and what is released can be used again. */
#include "common/cleanup.h"
#include "common/memfd.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define NOBODY 65534

static struct fa_scene scene;

static void start(const char *limits)
{
	char config[512];

	snprintf(config, sizeof(config), "[limits]\n%s\n", limits);
	fa_scene_start(&scene, &(struct fa_test_daemon_options){ .config = config });
}

static int stop(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

static void register_memfd(struct fa_raw *raw, uint32_t id, uint64_t bytes)
{
	struct fa_wire_message message = fa_raw_register_message(id, bytes);
	int fd;

	fa_check_eq(fa_memfd_new("limits", bytes, true, &fd), 0);
	fa_raw_call(raw, &message, &fd, 1);
	close(fd);
}

static void check_over(struct fa_raw *raw, const char *limit)
{
	fa_check_eq(raw->message.type, FA_WIRE_REPLY);
	fa_check_eq(raw->message.reply.status, -EDQUOT);
	fa_check_contains(raw->message.reply.text.text, limit);
}

static void free_buffer(struct fa_raw *raw, uint32_t id)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

	message.buffer_free.buffer = id;
	fa_raw_call_expect(raw, &message, NULL, 0, 0, NULL);
}

/* A freed buffer's charge is released shortly after its memory: callers may have to retry. */
static bool registers(struct fa_raw *raw, uint32_t id, uint64_t bytes)
{
	register_memfd(raw, id, bytes);
	return raw->message.type == FA_WIRE_BUFFER_REPLY;
}

static void test_connections(void **state)
{
	struct fa_raw *raws = test_calloc(4, sizeof(*raws));
	struct fa_raw extra;

	start("connections = 5");
	for (int i = 0; i < 4; ++i)
		fa_raw_open(&raws[i], scene.daemon.socket);

	fa_raw_connect(&extra, scene.daemon.socket);
	fa_raw_expect_reply(&extra, 0, -EDQUOT, "connections", true);
	fa_raw_close(&extra);
	for (int i = 0; i < 4; ++i)
		fa_raw_ping(&raws[i]);
	fa_scene_bystander(&scene);

	fa_raw_close(&raws[2]);
	for (bool welcome = false; !welcome;) {
		struct fa_wire_message hello = fa_raw_hello_message("again");

		fa_raw_connect(&extra, scene.daemon.socket);
		hello.id = 1;
		(void)fa_raw_send(&extra, &hello, NULL, 0);
		welcome = fa_raw_receive(&extra, 60000) == 1 &&
		          extra.message.type == FA_WIRE_HELLO_REPLY;
		fa_raw_close(&extra);
	}
	for (int i = 0; i < 4; ++i)
		fa_raw_close(&raws[i]);
	test_free(raws);
	fa_scene_check(&scene);
}

static void test_sessions(void **state)
{
	struct fa_raw a, b;

	start("sessions = 2");
	fa_raw_open(&a, scene.daemon.socket);
	fa_raw_connect(&b, scene.daemon.socket);
	fa_raw_expect_reply(&b, 0, -EDQUOT, "sessions", true);
	fa_raw_close(&a);
	fa_raw_close(&b);
	fa_scene_check(&scene);
	fa_raw_open(&b, scene.daemon.socket);
	fa_raw_ping(&b);
	fa_raw_close(&b);
	fa_scene_check(&scene);
}

static void test_session_buffers(void **state)
{
	struct fa_raw raw;

	start("session_buffers = 3");
	fa_raw_open(&raw, scene.daemon.socket);
	fa_check_eq(raw.limits.buffers, 3);
	for (uint32_t id = 1; id <= 3; ++id) {
		register_memfd(&raw, id, 4096);
		fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	}
	register_memfd(&raw, 4, 4096);
	check_over(&raw, "session_buffers");
	free_buffer(&raw, 2);
	fa_check_eventually(registers(&raw, 4, 4096));
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void test_buffers(void **state)
{
	struct fa_raw a, b;

	start("buffers = 4");
	fa_raw_open(&a, scene.daemon.socket);
	fa_raw_open(&b, scene.daemon.socket);
	fa_check(registers(&a, 1, 4096));
	fa_check(registers(&a, 2, 4096));
	fa_check(registers(&b, 1, 4096));
	register_memfd(&b, 2, 4096);
	check_over(&b, "buffers");
	fa_raw_close(&a);
	fa_check_eventually(registers(&b, 2, 4096));
	fa_raw_close(&b);
	fa_scene_check(&scene);
}

static void test_buffer_bytes(void **state)
{
	struct fa_wire_message arena = fa_raw_register_message(9, 2 << 20);
	struct fa_raw raw;

	start("buffer_bytes = 1048576");
	fa_raw_open(&raw, scene.daemon.socket);
	fa_check_eq(raw.limits.buffer_bytes, 1048576);
	fa_check(registers(&raw, 1, 512 << 10));

	register_memfd(&raw, 2, 1ull << 40);
	check_over(&raw, "buffer_bytes");
	register_memfd(&raw, 2, INT64_MAX & ~4095ull);
	check_over(&raw, "buffer_bytes");
	register_memfd(&raw, 2, 512 << 10);
	check_over(&raw, "buffer_bytes");
	arena.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	fa_raw_call(&raw, &arena, NULL, 0);
	check_over(&raw, "buffer_bytes");

	free_buffer(&raw, 1);
	arena.buffer_register.bytes = 512 << 10;
	fa_check_eventually(
		(fa_raw_call(&raw, &arena, NULL, 0), raw.message.type == FA_WIRE_BUFFER_REPLY));
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void test_streams(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STREAM_CREATE);
	struct fa_raw raw;

	start("session_streams = 3");
	fa_raw_open(&raw, scene.daemon.socket);
	fa_check_eq(raw.limits.streams, 3);
	fa_raw_stream_create(&raw, 10, 0);
	fa_raw_stream_create(&raw, 63, 1);
	message.stream_create.stream = 5;
	fa_raw_call(&raw, &message, NULL, 0);
	check_over(&raw, "session_streams");
	fa_raw_stream_free(&raw, 10);
	fa_check_eventually((fa_raw_call(&raw, &message, NULL, 0), raw.message.reply.status == 0));
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void submit(struct fa_raw *raw, const struct fa_case *attention, uint32_t stream,
                   uint64_t value)
{
	struct fa_wire_message message = fa_case_message(attention, 1, 0, stream, value);

	fa_check_eq(fa_raw_send(raw, &message, NULL, 0), 0);
}

static void cancel(struct fa_raw *raw, uint32_t stream, uint64_t value)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);

	message.cancel.stream = stream;
	message.cancel.value = value;
	fa_raw_call_expect(raw, &message, NULL, 0, 0, NULL);
}

static void cancel_soon(struct fa_raw *raw, uint32_t stream, uint64_t value)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);

	message.cancel.stream = stream;
	message.cancel.value = value;
	fa_raw_call(raw, &message, NULL, 0);
	fa_check_eq(raw->message.type, FA_WIRE_REPLY);
}

static struct fa_case wide_case(void)
{
	return (struct fa_case){
		.heads = 8,
		.kv_heads = 1,
		.seqlen_q = 1,
		.seqlen_k = fa_test_is_vulkan() ? 8000 : 20000,
	};
}

/*
 * Partial results of few rows over many keys, which the CPU backend splits, are charged to the
 * client until the request ends. A GPU has its own memory for them. With Vulkan requests have the
 * memory that their arguments are in.
 */
static void test_part_bytes(void **state)
{
	struct fa_case slow = fa_case_slow();
	struct fa_case wide = wide_case();
	struct fa_raw_buffer buffer, slow_buffer;
	struct fa_test_accounts before, after;
	struct fa_raw raw;
	uint64_t value = 0;
	bool cpu, vulkan;

	/* Rows of 64 and two sums, rounded up to 16 words, for 8 heads; about 15 splits. */
	const int64_t least = 8 * 10 * (64 + 2) * 4, most = 8 * 64 * (64 + 16) * 4;
	const uint64_t limit = 128 << 20;

	start("buffer_bytes = 134217728");
	fa_case_plan(&wide);
	fa_raw_open(&raw, scene.daemon.socket);
	cpu = strcmp(raw.message.hello_reply.backend.text, "cpu") == 0;
	vulkan = strcmp(raw.message.hello_reply.backend.text, "vulkan") == 0;
	fa_raw_buffer_register(&raw, &slow_buffer, 2, slow.bytes, 0);
	fa_raw_buffer_register(&raw, &buffer, 1, wide.bytes, 0);
	fa_case_fill(&wide, buffer.data);
	fa_test_accounts(&raw, &before);

	for (int cancelled = 0; cancelled < 2; ++cancelled) {
		struct fa_wire_message first = fa_case_message(&slow, 2, 0, 0, ++value);

		fa_check_eq(fa_raw_send(&raw, &first, NULL, 0), 0);
		submit(&raw, &wide, 0, ++value);
		fa_test_accounts(&raw, &after);
		fa_check_eq(after.requests, before.requests + 2);
		if (cpu)
			fa_check(after.buffer_bytes >= before.buffer_bytes + least &&
			         after.buffer_bytes <= before.buffer_bytes + most);
		else if (vulkan)
			fa_check(after.buffer_bytes >= before.buffer_bytes + 2 * 4096);
		else
			fa_check_eq(after.buffer_bytes, before.buffer_bytes);
		if (cancelled)
			cancel(&raw, 0, value);
		cancel(&raw, 0, value - 1);
		fa_raw_wait_expect(&raw, 0, value - 1, -ECANCELED, NULL);
		fa_raw_wait_expect(&raw, 0, value, cancelled ? -ECANCELED : 0, NULL);
		if (!cancelled)
			fa_check(fa_case_error(&wide, buffer.data) <= 1);
		fa_test_accounts(&raw, &after);
		fa_check_eq(after.buffer_bytes, before.buffer_bytes);
	}

	/* Cancelled while they run or are about to; results of others stay right. */
	for (int i = 0; i < 50; ++i) {
		submit(&raw, &wide, 0, ++value);
		if (i % 2)
			cancel_soon(&raw, 0, value);
	}
	for (uint64_t i = value - 49; i <= value; ++i) {
		struct fa_raw_completion completion;

		fa_raw_wait(&raw, 0, i, &completion);
		fa_check(completion.status == 0 ||
		         (completion.status == -ECANCELED && (value - i) % 2 == 0));
	}
	fa_case_fill(&wide, buffer.data);
	submit(&raw, &wide, 0, ++value);
	fa_raw_wait_expect(&raw, 0, value, 0, NULL);
	fa_check(fa_case_error(&wide, buffer.data) <= 1);

	/* No room is left for partial results. */
	register_memfd(&raw, 3, limit - (uint64_t)before.buffer_bytes - (cpu ? 4096 : 0));
	fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	submit(&raw, &wide, 0, ++value);
	fa_raw_wait_expect(&raw, 0, value, cpu || vulkan ? -EDQUOT : 0,
	                   cpu || vulkan ? "buffer_bytes" : NULL);
	free_buffer(&raw, 3);
	fa_raw_close(&raw);
	fa_raw_buffer_free(NULL, &buffer);
	fa_raw_buffer_free(NULL, &slow_buffer);
	fa_scene_check(&scene);
}

/* Clients leave while many requests are in flight. */
static void leave_many(bool alone)
{
	struct fa_case slow = fa_case_slow();
	struct fa_case wide = wide_case();
	struct fa_raw_buffer buffer, slow_buffer;
	struct fa_raw raw;

	fa_case_plan(&wide);
	for (int round = 0; round < 20; ++round) {
		uint64_t value = 0;

		fa_raw_open(&raw, scene.daemon.socket);
		fa_raw_buffer_register(&raw, &slow_buffer, 2, slow.bytes, 0);
		fa_raw_buffer_register(&raw, &buffer, 1, wide.bytes, 0);
		fa_case_fill(&wide, buffer.data);
		if (round % 2) {
			struct fa_wire_message first = fa_case_message(&slow, 2, 0, 0, ++value);

			fa_check_eq(fa_raw_send(&raw, &first, NULL, 0), 0);
		}
		for (int i = 0; i < 20; ++i)
			submit(&raw, &wide, 0, ++value);
		fa_raw_close(&raw);
		fa_raw_buffer_free(NULL, &buffer);
		fa_raw_buffer_free(NULL, &slow_buffer);
		if (alone)
			fa_scene_check(&scene);
	}
}

static void test_part_bytes_gone(void **state)
{
	start("buffer_bytes = 134217728");
	leave_many(true);
}

/* Beside another account the requests that have ended are reaped for a short time in each turn, and
 * messages wait for that. */
static void test_gone_beside_another(void **state)
{
	struct fa_test_daemon_options options = {
		.config = "[daemon]\nmode = 0666\n[limits]\nbuffer_bytes = 134217728\n",
		.everyone = true,
	};
	struct fa_raw other;

	if (geteuid() != 0)
		skip();
	fa_scene_start(&scene, &options);
	fa_check_eq(seteuid(NOBODY), 0);
	fa_raw_open(&other, scene.daemon.socket);
	fa_check_eq(seteuid(0), 0);
	leave_many(false);
	fa_raw_close(&other);
	fa_scene_check(&scene);
}

static void test_session_requests(void **state)
{
	struct fa_case slow = fa_case_slow();
	struct fa_raw_buffer buffer;
	struct fa_raw raw;

	start("session_requests = 4");
	fa_raw_open(&raw, scene.daemon.socket);
	fa_check_eq(raw.limits.requests, 4);
	fa_raw_buffer_register(&raw, &buffer, 1, slow.bytes, 0);
	fa_raw_stream_create(&raw, 1, 0);
	for (uint64_t value = 1; value <= 4; ++value)
		submit(&raw, &slow, 0, value);

	/* In order: at once if no earlier request is queued. */
	submit(&raw, &slow, 1, 1);
	fa_raw_wait_expect(&raw, 1, 1, -EDQUOT, "session_requests");
	submit(&raw, &slow, 0, 5);
	fa_scene_bystander(&scene);
	for (uint64_t value = 1; value <= 4; ++value)
		cancel(&raw, 0, value);
	for (uint64_t value = 1; value <= 4; ++value)
		fa_raw_wait_expect(&raw, 0, value, -ECANCELED, NULL);
	fa_raw_wait_expect(&raw, 0, 5, -EDQUOT, "session_requests");

	submit(&raw, &slow, 1, 2);
	cancel(&raw, 1, 2);
	fa_raw_wait_expect(&raw, 1, 2, -ECANCELED, NULL);
	fa_raw_close(&raw);
	fa_raw_buffer_free(NULL, &buffer);
	fa_scene_check(&scene);
}

static void test_requests(void **state)
{
	struct fa_case slow = fa_case_slow();
	struct fa_raw_buffer buffer, buffer_b;
	struct fa_raw a, b;

	start("requests = 3");
	fa_raw_open(&a, scene.daemon.socket);
	fa_raw_open(&b, scene.daemon.socket);
	fa_raw_buffer_register(&a, &buffer, 1, slow.bytes, 0);
	fa_raw_buffer_register(&b, &buffer_b, 1, slow.bytes, 0);
	submit(&a, &slow, 0, 1);
	submit(&a, &slow, 0, 2);
	submit(&a, &slow, 0, 3);
	fa_raw_ping(&a);
	submit(&b, &slow, 0, 1);
	fa_raw_wait_expect(&b, 0, 1, -EDQUOT, "requests");
	cancel(&a, 0, 2);
	cancel(&a, 0, 3);
	cancel(&a, 0, 1);
	for (uint64_t value = 1; value <= 3; ++value)
		fa_raw_wait_expect(&a, 0, value, -ECANCELED, NULL);
	submit(&b, &slow, 0, 2);
	cancel(&b, 0, 2);
	fa_raw_wait_expect(&b, 0, 2, -ECANCELED, NULL);
	fa_raw_close(&a);
	fa_raw_close(&b);
	fa_raw_buffer_free(NULL, &buffer);
	fa_raw_buffer_free(NULL, &buffer_b);
	fa_scene_check(&scene);
}

/* Refused requests wait in order behind a slow one, in bounded memory. */
static void test_refused_requests(void **state)
{
	struct fa_case slow = fa_case_slow(), small = { .head_dim = 8, .seqlen_q = 2 };
	_Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];
	struct fa_test_usage before, after;
	struct fa_wire_message message;
	struct fa_raw_buffer buffer;
	uint64_t sent, n_refused = 0;
	struct fa_raw raw;

	fa_case_plan(&small);
	start("session_requests = 2");
	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_buffer_register(&raw, &buffer, 1, slow.bytes, 0);
	fa_test_daemon_usage(&scene.daemon, &before);
	message = fa_case_message(&slow, 1, 0, 0, 1);
	message.timeout_ns = 500 * FA_NS_PER_MS;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	for (sent = 1; sent < 100000; ++sent) {
		size_t length;

		message = fa_case_message(&small, 1, 0, 0, sent + 1);
		length = fa_raw_encode(&message, bytes);
		if (fa_raw_send_bytes(&raw, bytes, length, NULL, 0, MSG_DONTWAIT) == -EAGAIN)
			break;
	}
	fa_check(sent >= 10 && sent < 100000);
	fa_scene_bystander(&scene);
	fa_test_daemon_usage(&scene.daemon, &after);
	if (!fa_test_sanitized())
		fa_check(after.rss_bytes < before.rss_bytes + slow.bytes + (24 << 20));
	fa_raw_wait_expect(&raw, 0, 1, -ETIMEDOUT, NULL);
	for (uint64_t value = 2; value <= sent; ++value) {
		struct fa_raw_completion completion;

		fa_raw_wait(&raw, 0, value, &completion);
		if (completion.status) {
			fa_check_eq(completion.status, -EDQUOT);
			n_refused++;
		}
	}
	fa_check(n_refused > 0);
	fa_check_eq(raw.page[0].completed, sent);
	fa_raw_close(&raw);
	fa_raw_buffer_free(NULL, &buffer);
	fa_scene_check(&scene);
}

/*
 * The largest requests, with limits that allow thousands: the daemon stops reading long before;
 * disconnecting ends everything.
 */
static void test_refused_vectors(void **state)
{
	static uint32_t lengths[FA_WIRE_SEQUENCES_MAX + 1];
	static float heads[FA_WIRE_HEADS_MAX];
	_Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX + 64];
	struct fa_case slow = fa_case_slow();
	struct fa_wire_message message;
	struct fa_raw_buffer buffer;
	struct fa_raw raw;
	uint64_t value = 0;
	int stalled = 0;

	start("session_requests = 1024");
	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_buffer_register(&raw, &buffer, 1, slow.bytes, 0);
	while (value < 50)
		submit(&raw, &slow, 0, ++value);
	while (value < 2000 && (stalled < 200 || (value < 50 + 32 && stalled < 20000))) {
		size_t length;

		message = fa_case_message(&slow, 99, 0, 0, value + 1);
		message.attention.cu_seqlens_q = message.attention.cu_seqlens_k = lengths;
		message.attention.n_cu_seqlens_q = message.attention.n_cu_seqlens_k =
			FA_WIRE_SEQUENCES_MAX + 1;
		message.attention.alibi_slopes = message.attention.sinks = heads;
		message.attention.n_alibi_slopes = message.attention.n_sinks = FA_WIRE_HEADS_MAX;
		length = fa_raw_encode(&message, bytes);
		if (fa_raw_send_bytes(&raw, bytes, length, NULL, 0, MSG_DONTWAIT) == 0) {
			++value;
			stalled = 0;
		} else {
			++stalled;
			fa_test_quiet_ms(2);
		}
	}
	/* The daemon has taken the first 50 and FA_SESSION_REFUSED_MAX others; the rest waits in
	 * the socket. */
	fa_check(value >= 50 + 32);
	fa_check(value < 500);
	fa_scene_bystander(&scene);
	fa_raw_close(&raw);
	fa_raw_buffer_free(NULL, &buffer);
	fa_scene_check(&scene);
}

/* Unread replies with descriptors are bounded. */
static void test_fds(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STATUS);
	int n_status = 0, n_refused = 0;
	struct fa_test_usage usage;
	struct fa_raw raw;

	start("fds = 8");
	fa_raw_open(&raw, scene.daemon.socket);
	for (int i = 0; i < 100; ++i) {
		message.id = (uint64_t)i + 1000;
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	}
	fa_scene_bystander(&scene);
	fa_test_daemon_usage(&scene.daemon, &usage);
	fa_check(usage.fds <= scene.usage.fds + 10);
	for (int i = 0; i < 100; ++i) {
		fa_raw_receive_reply(&raw);
		fa_check_eq(raw.message.id, i + 1000);
		if (raw.message.type == FA_WIRE_STATUS_REPLY) {
			n_status++;
		} else {
			check_over(&raw, "fds");
			n_refused++;
		}
	}
	fa_check(n_status >= 1);
	fa_check_eq(n_status + n_refused, 100);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

#define test(function) cmocka_unit_test_teardown(function, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_connections),     test(test_sessions),
		test(test_session_buffers), test(test_buffers),
		test(test_buffer_bytes),    test(test_part_bytes),
		test(test_part_bytes_gone), test(test_gone_beside_another),
		test(test_streams),         test(test_session_requests),
		test(test_requests),        test(test_refused_requests),
		test(test_refused_vectors), test(test_fds),
	};

	return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
