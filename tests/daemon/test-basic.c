/*
 * A well-behaved client of a real daemon: hello, buffers, exact attention, completions, streams,
 * pipelined messages, the status.
 */
#include "tests/lib/attention.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static struct fa_test_daemon daemon_process;
static struct fa_raw raw;

static int start(void **state)
{
	fa_test_daemon_start(&daemon_process, NULL);
	return 0;
}

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

static int open_raw(void **state)
{
	fa_raw_open(&raw, daemon_process.socket);
	return 0;
}

static int close_raw(void **state)
{
	fa_raw_close(&raw);
	return 0;
}

static void test_hello(void **state)
{
	struct fa_wire_message message = fa_raw_hello_message("caf\xc3\xa9\n");
	const struct fa_wire_hello_reply *reply = &raw.message.hello_reply;
	struct fa_raw other;
	int seals;

	fa_raw_connect(&raw, daemon_process.socket);
	message.hello.version_min = 0;
	message.hello.version_max = UINT16_MAX;
	message.hello.features = UINT64_MAX;
	fa_raw_call(&raw, &message, NULL, 0);
	fa_check_eq(raw.message.type, FA_WIRE_HELLO_REPLY);
	fa_check_eq(reply->version, FA_WIRE_VERSION_MAX);
	fa_check_eq(reply->features, FA_WIRE_FEATURE_RING | FA_WIRE_FEATURE_STEP_RING |
	                                     FA_WIRE_FEATURE_SEQUENCE_PAGES |
	                                     FA_WIRE_FEATURE_PAGES_ATTEND | FA_WIRE_FEATURE_STATES |
	                                     FA_WIRE_FEATURE_MASKS | FA_WIRE_FEATURE_BLOCKS |
	                                     FA_WIRE_FEATURE_E4M3);
	assert_string_equal(reply->daemon_version.text, FAD_VERSION);
	assert_string_equal(reply->backend.text, fa_test_is_vulkan() ? "vulkan" : "cpu");
	fa_check(reply->device_name.length > 0);
	fa_check(reply->generation > 0);
	fa_check(reply->session > 0);
	fa_check(reply->secret.lo != 0 || reply->secret.hi != 0);
	fa_check(!reply->resumed);
	fa_check_eq(reply->limits.message_bytes, 65536);
	fa_check_eq(reply->limits.buffers, 4096);
	fa_check_eq(reply->limits.streams, 64);
	fa_check_eq(reply->limits.requests, 1024);

	fa_check_eq(raw.n_fds, 1);
	seals = fcntl(raw.fds[0], F_GET_SEALS);
	fa_check(seals & F_SEAL_SHRINK);
	fa_check(seals & F_SEAL_GROW);
	fa_check(seals & F_SEAL_SEAL);
	fa_check(mmap(NULL, FA_COMPLETION_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
	              raw.fds[0], 0) == MAP_FAILED);

	fa_raw_open(&other, daemon_process.socket);
	fa_check(other.secret.lo != reply->secret.lo || other.secret.hi != reply->secret.hi);
	fa_check(other.session != reply->session);
	fa_check_eq(other.generation, reply->generation);
	fa_raw_close(&other);
}

static void test_ping(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_PING);

	for (uint64_t id = 0; id < 100; ++id) {
		message.id = id * 0x123456789abcdefull;
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		fa_raw_expect_reply(&raw, message.id, 0, NULL, false);
	}
}

static void compute(struct fa_raw_buffer *buffer, struct fa_case *attention, uint32_t stream,
                    uint64_t value)
{
	struct fa_wire_message message;
	struct fa_raw_completion completion;

	attention->seed++;
	fa_case_fill(attention, buffer->data);
	message = fa_case_message(attention, buffer->id, 0, stream, value);
	message.id = value + 1000;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait(&raw, stream, value, &completion);
	fa_check_eq(completion.status, 0);
	fa_check_eq(completion.id, value + 1000);
	assert_string_equal(completion.text, "");
	fa_check(completion.queued_ns > 0);
	fa_check(completion.queued_ns <= completion.started_ns);
	fa_check(completion.started_ns <= completion.finished_ns);
	fa_check_eq(atomic_load(&raw.page[stream].completed), value);
	fa_check_eq(atomic_load(&raw.page[stream].failed), 0);
	fa_check(fa_case_error(attention, buffer->data) <= 1);
}

static struct fa_case some_case(void)
{
	struct fa_case attention = { .heads = 4,
		                     .kv_heads = 2,
		                     .head_dim = 64,
		                     .seqlen_q = 20,
		                     .seqlen_k = 50,
		                     .causal = true,
		                     .lse = true };

	fa_case_plan(&attention);
	return attention;
}

static void test_buffers(void **state)
{
	struct fa_case attention = some_case();
	struct fa_wire_message message;
	struct fa_raw_buffer buffer;

	fa_raw_buffer_register(&raw, &buffer, 7, attention.bytes, 0);
	compute(&buffer, &attention, 0, 1);
	compute(&buffer, &attention, 0, 2);

	message = fa_raw_register_message(7, 4096);
	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	fa_raw_call_expect(&raw, &message, NULL, 0, -EEXIST, "buffer 7 is registered already");
	fa_raw_buffer_free(&raw, &buffer);
	message = fa_raw_message(FA_WIRE_BUFFER_FREE);
	message.buffer_free.buffer = 7;
	fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, "buffer 7 is not registered");

	fa_raw_buffer_arena(&raw, &buffer, 7, attention.bytes);
	for (uint64_t i = 0; i < attention.bytes; ++i)
		fa_check_eq(buffer.data[i], 0);
	compute(&buffer, &attention, 0, 3);
	fa_raw_buffer_free(&raw, &buffer);

	/* The largest id; the buffer ends within a page. */
	fa_raw_buffer_register(&raw, &buffer, UINT32_MAX, attention.bytes, 0);
	compute(&buffer, &attention, 0, 4);
	fa_raw_buffer_free(&raw, &buffer);
}

static void test_ragged(void **state)
{
	struct fa_case attention = { .dtype = FA_WIRE_DTYPE_BF16,
		                     .batch = 4,
		                     .ragged = true,
		                     .heads = 6,
		                     .kv_heads = 3,
		                     .head_dim = 32,
		                     .head_dim_v = 48,
		                     .seqlen_q = 16,
		                     .seqlen_k = 40,
		                     .alibi = true,
		                     .sinks = true,
		                     .lse = true };
	struct fa_raw_buffer buffer;

	fa_case_plan(&attention);
	fa_raw_buffer_register(&raw, &buffer, 1, attention.bytes, 0);
	for (uint64_t value = 1; value <= 5; ++value)
		compute(&buffer, &attention, 0, value);
	fa_raw_buffer_free(&raw, &buffer);
}

static void test_streams(void **state)
{
	struct fa_case attention = some_case();
	struct fa_raw_buffer buffer;

	fa_raw_buffer_register(&raw, &buffer, 1, attention.bytes, 0);
	fa_raw_stream_create(&raw, 63, 1);
	fa_raw_stream_create(&raw, 5, 0);
	compute(&buffer, &attention, 63, 1);
	compute(&buffer, &attention, 5, 1);
	compute(&buffer, &attention, 0, 1);
	compute(&buffer, &attention, 63, 2);
	fa_raw_stream_free(&raw, 63);
	fa_raw_stream_create(&raw, 63, 0);
	compute(&buffer, &attention, 63, 3);
	fa_raw_buffer_free(&raw, &buffer);
}

/* Requests find a buffer whose registration has no reply yet. */
static void test_pipelined(void **state)
{
	struct fa_case attention = some_case();
	struct fa_raw_buffer buffer;
	struct fa_wire_message message;

	fa_raw_buffer_make(&buffer, 1, attention.bytes);
	fa_case_fill(&attention, buffer.data);
	message = fa_raw_register_message(1, attention.bytes);
	message.id = 1;
	message.fds = 1;
	fa_check_eq(fa_raw_send(&raw, &message, &buffer.fd, 1), 0);
	message = fa_case_message(&attention, 1, 0, 0, 1);
	message.id = 2;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	message = fa_raw_message(FA_WIRE_BUFFER_FREE);
	message.id = 3;
	message.buffer_free.buffer = 1;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	message = fa_case_message(&attention, 1, 0, 0, 2);
	message.id = 4;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);

	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	fa_check_eq(raw.message.id, 1);
	fa_check_eq(raw.message.buffer_reply.bytes, attention.bytes);
	fa_raw_expect_reply(&raw, 3, 0, NULL, false);
	fa_raw_wait_expect(&raw, 0, 1, 0, NULL);
	fa_raw_wait_expect(&raw, 0, 2, -ENOENT, "q.buffer is 1, which is not registered");
	fa_check(fa_case_error(&attention, buffer.data) <= 1);
	fa_check_eq(atomic_load(&raw.page[0].completed), 2);
	fa_check_eq(atomic_load(&raw.page[0].failed), 2);
	fa_raw_buffer_free(NULL, &buffer);
}

static void test_many(void **state)
{
	enum {
		N = 200
	};
	struct fa_case attention = some_case();
	struct fa_raw_buffer buffer;
	struct fa_wire_message message;

	fa_raw_buffer_register(&raw, &buffer, 1, attention.bytes, 0);
	fa_case_fill(&attention, buffer.data);
	for (uint64_t value = 1; value <= N; ++value) {
		message = fa_case_message(&attention, 1, 0, 0, value);
		message.id = value;
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	}
	for (uint64_t value = 1; value <= N; ++value) {
		fa_check_eq(fa_raw_receive(&raw, 30000), 1);
		fa_check_eq(raw.message.type, FA_WIRE_COMPLETION);
		fa_check_eq(raw.message.id, value);
		fa_check_eq(raw.message.completion.value, value);
		fa_check_eq(raw.message.completion.status, 0);
	}
	fa_check(fa_case_error(&attention, buffer.data) <= 1);
	fa_raw_buffer_free(&raw, &buffer);
}

static json_int_t number(json_t *object, const char *key)
{
	json_t *value = json_object_get(object, key);

	if (!json_is_integer(value))
		fa_test_fail(__FILE__, __LINE__, "the status has no number \"%s\"", key);
	return json_integer_value(value);
}

static void test_status(void **state)
{
	struct fa_case attention = some_case();
	struct fa_raw_buffer buffer;
	json_t *root, *session, *tenant, *requests;
	char *text;

	fa_raw_buffer_register(&raw, &buffer, 1, attention.bytes, 0);
	compute(&buffer, &attention, 0, 1);
	text = fa_raw_status(&raw);
	root = json_loads(text, 0, NULL);
	fa_check(root);
	assert_string_equal(json_string_value(json_object_get(root, "version")), FAD_VERSION);
	assert_string_equal(json_string_value(json_object_get(root, "backend")),
	                    fa_test_is_vulkan() ? "vulkan" : "cpu");
	fa_check_eq(number(root, "pid"), daemon_process.pid);
	fa_check_eq(number(root, "generation"), raw.generation);
	fa_check(number(root, "uptime_ns") > 0);
	fa_check(fa_test_is_vulkan() || number(root, "threads") > 0);
	fa_check_eq(number(root, "connections"), 1);
	fa_check(json_is_false(json_object_get(root, "draining")));
	requests = json_object_get(root, "requests");
	fa_check_eq(number(requests, "submitted"), number(requests, "finished"));
	fa_check(number(requests, "finished") >= 1);

	fa_check_eq(json_array_size(json_object_get(root, "sessions")), 1);
	session = json_array_get(json_object_get(root, "sessions"), 0);
	fa_check_eq(number(session, "session"), raw.session);
	fa_check_eq(number(session, "pid"), getpid());
	fa_check_eq(number(session, "uid"), getuid());
	fa_check_eq(number(session, "buffers"), 1);
	fa_check_eq(number(session, "buffer_bytes"), attention.bytes);
	fa_check_eq(number(session, "streams"), 1);
	fa_check_eq(number(session, "requests"), 0);
	assert_string_equal(json_string_value(json_object_get(session, "state")), "ready");

	fa_check_eq(json_array_size(json_object_get(root, "tenants")), 1);
	tenant = json_array_get(json_object_get(root, "tenants"), 0);
	fa_check_eq(number(tenant, "uid"), getuid());
	fa_check_eq(number(tenant, "sessions"), 1);
	fa_check_eq(number(tenant, "buffers"), 1);
	fa_check_eq(number(tenant, "buffer_bytes"), attention.bytes);
	fa_check(json_is_string(json_object_get(tenant, "cgroup")));
	json_decref(root);
	free(text);
	fa_raw_buffer_free(&raw, &buffer);
}

int main(void)
{
	/* test_status comes first, when no other client has been counted. */
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_status, open_raw, close_raw),
		cmocka_unit_test_teardown(test_hello, close_raw),
		cmocka_unit_test_setup_teardown(test_ping, open_raw, close_raw),
		cmocka_unit_test_setup_teardown(test_buffers, open_raw, close_raw),
		cmocka_unit_test_setup_teardown(test_ragged, open_raw, close_raw),
		cmocka_unit_test_setup_teardown(test_streams, open_raw, close_raw),
		cmocka_unit_test_setup_teardown(test_pipelined, open_raw, close_raw),
		cmocka_unit_test_setup_teardown(test_many, open_raw, close_raw),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
