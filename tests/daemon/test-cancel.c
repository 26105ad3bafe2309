/*
 * Cancels and deadlines of requests that wait, run, have finished or never existed. Requests always
 * end in the order of their stream.
 */
#include "common/cleanup.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct fa_scene scene;
static struct fa_raw raw;
static struct fa_case slow, small;
static struct fa_raw_buffer slow_buffer, small_buffer;
static uint64_t values[4];

static int setup(void **state)
{
	fa_scene_start(&scene, NULL);
	slow = fa_case_slow();
	small = (struct fa_case){ .heads = 2, .head_dim = 16, .seqlen_q = 5, .seqlen_k = 11 };
	fa_case_plan(&small);
	return 0;
}

static int teardown(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

static int open_client(void **state)
{
	memset(values, 0, sizeof(values));
	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_buffer_register(&raw, &slow_buffer, 1, slow.bytes, 0);
	fa_raw_buffer_register(&raw, &small_buffer, 2, small.bytes, 0);
	fa_raw_stream_create(&raw, 1, 0);
	fa_case_fill(&small, small_buffer.data);
	return 0;
}

static int close_client(void **state)
{
	fa_raw_buffer_free(&raw, &slow_buffer);
	fa_raw_buffer_free(&raw, &small_buffer);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
	return 0;
}

static uint64_t submit(const struct fa_case *attention, uint32_t stream, uint64_t timeout_ns)
{
	uint64_t value = ++values[stream];
	struct fa_wire_message message = fa_case_message(attention, attention == &slow ? 1 : 2, 0,
	                                                 stream, value);

	message.timeout_ns = timeout_ns;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	return value;
}

static void cancel(uint32_t stream, uint64_t value, int status)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);

	message.cancel.stream = stream;
	message.cancel.value = value;
	fa_raw_call_expect(&raw, &message, NULL, 0, status, NULL);
}

/*
 * Waits until the slow stream's first request runs: once a refusal on another stream is answered,
 * the engine has seen the request.
 */
static void wait_running(void)
{
	struct fa_test_usage before, now;

	fa_test_daemon_usage(&scene.daemon, &before);
	fa_check_eventually((fa_test_daemon_usage(&scene.daemon, &now),
	                     now.cpu_ns > before.cpu_ns + 30 * FA_NS_PER_MS));
}

static void test_running(void **state)
{
	struct fa_raw_completion completion;
	uint64_t value = submit(&slow, 0, 0);

	wait_running();
	cancel(0, value, 0);
	fa_raw_wait(&raw, 0, value, &completion);
	fa_check_eq(completion.status, -ECANCELED);
	fa_check(*completion.text);
	fa_check(completion.queued_ns && completion.started_ns >= completion.queued_ns);
	fa_check(completion.finished_ns >= completion.started_ns);
	fa_check_eq(raw.page[0].completed, value);
	fa_check_eq(raw.page[0].failed, value);
	cancel(0, value, -ENOENT);
}

static void test_queued(void **state)
{
	uint64_t first = submit(&slow, 0, 0), second = submit(&small, 0, 0),
		 third = submit(&slow, 0, 0), fourth = submit(&small, 0, 0);

	wait_running();
	cancel(0, third, 0);
	cancel(0, second, 0);
	fa_check_eq(raw.page[0].completed, 0);
	fa_check_eq(raw.n_completions, 0);
	cancel(0, first, 0);
	fa_raw_wait_expect(&raw, 0, first, -ECANCELED, NULL);
	fa_raw_wait_expect(&raw, 0, second, -ECANCELED, NULL);
	fa_raw_wait_expect(&raw, 0, third, -ECANCELED, NULL);
	fa_raw_wait_expect(&raw, 0, fourth, 0, NULL);
	fa_check(fa_case_error(&small, small_buffer.data) <= 1);
}

static void test_finished_and_unknown(void **state)
{
	uint64_t value = submit(&small, 0, 0);

	fa_raw_wait_expect(&raw, 0, value, 0, NULL);
	cancel(0, value, -ENOENT);
	cancel(0, value + 1, -ENOENT);
	cancel(0, 0, -ENOENT);
	cancel(0, UINT64_MAX, -ENOENT);
	cancel(1, 1, -ENOENT);
	cancel(2, 1, -ENOENT);
	/* A cancel that came too early affects no later request. */
	fa_raw_wait_expect(&raw, 0, submit(&small, 0, 0), 0, NULL);
}

static void test_twice(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);
	uint64_t value = submit(&slow, 0, 0);

	message.cancel.value = value;
	for (uint64_t id = 1; id <= 20; ++id) {
		message.id = id;
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	}
	for (uint64_t id = 1; id <= 20; ++id) {
		fa_raw_receive_reply(&raw);
		fa_check_eq(raw.message.id, id);
		fa_check(raw.message.reply.status == 0 || raw.message.reply.status == -ENOENT);
		if (id == 1)
			fa_check_eq(raw.message.reply.status, 0);
	}
	fa_raw_wait_expect(&raw, 0, value, -ECANCELED, NULL);
}

/* A cancel that follows its request is never too early. */
static void test_cancel_right_behind(void **state)
{
	for (int i = 0; i < 200; ++i) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);
		struct fa_raw_completion completion;
		uint64_t value = submit(i % 2 ? &small : &slow, (uint32_t)i % 4 / 2, 0);

		message.cancel.stream = (uint32_t)i % 4 / 2;
		message.cancel.value = value;
		fa_raw_call(&raw, &message, NULL, 0);
		fa_check_eq(raw.message.type, FA_WIRE_REPLY);
		fa_raw_wait(&raw, message.cancel.stream, value, &completion);
		if (completion.status == 0)
			fa_check(i % 2);
		else
			fa_check_eq(completion.status, -ECANCELED);
	}
}

static void test_refused_in_turn(void **state)
{
	uint64_t first = submit(&slow, 0, 0), second = ++values[0];
	struct fa_wire_message message = fa_case_message(&small, 99, 0, 0, second);

	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_ping(&raw);
	fa_check_eq(raw.n_completions, 0);
	fa_raw_wait_expect(&raw, 1, submit(&small, 1, 0), 0, NULL);
	cancel(0, first, 0);
	fa_raw_wait_expect(&raw, 0, first, -ECANCELED, NULL);
	fa_raw_wait_expect(&raw, 0, second, -ENOENT, "q.buffer is 99");
}

static void test_deadline_running(void **state)
{
	uint64_t start = fa_now_ns(), value = submit(&slow, 0, 100 * FA_NS_PER_MS);
	struct fa_raw_completion completion;

	fa_raw_wait(&raw, 0, value, &completion);
	fa_check_eq(completion.status, -ETIMEDOUT);
	fa_check(*completion.text);
	fa_check(fa_now_ns() - start >= 100 * FA_NS_PER_MS);
	cancel(0, value, -ENOENT);
	fa_raw_wait_expect(&raw, 0, submit(&small, 0, 0), 0, NULL);
	fa_check(fa_case_error(&small, small_buffer.data) <= 1);
}

static void test_deadline_queued(void **state)
{
	uint64_t first = submit(&slow, 0, 0), second = submit(&small, 0, 50 * FA_NS_PER_MS),
		 third = submit(&small, 0, 60 * FA_NS_PER_SEC);

	fa_test_elapse_ms(150);
	fa_raw_ping(&raw);
	fa_check_eq(raw.n_completions, 0);
	cancel(0, first, 0);
	fa_raw_wait_expect(&raw, 0, first, -ECANCELED, NULL);
	fa_raw_wait_expect(&raw, 0, second, -ETIMEDOUT, NULL);
	fa_raw_wait_expect(&raw, 0, third, 0, NULL);
}

static void test_deadline_extremes(void **state)
{
	struct fa_raw_completion completion;

	fa_raw_wait(&raw, 0, submit(&slow, 0, 1), &completion);
	fa_check_eq(completion.status, -ETIMEDOUT);
	fa_raw_wait_expect(&raw, 0, submit(&small, 0, UINT64_MAX), 0, NULL);
	fa_raw_wait_expect(&raw, 0, submit(&small, 0, UINT64_MAX - 1), 0, NULL);
	fa_raw_wait_expect(&raw, 0, submit(&small, 0, 1ull << 63), 0, NULL);

	/* A request cancelled while it times out ends once, with either status. */
	for (int i = 0; i < 20; ++i) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);

		message.cancel.value = submit(&slow, 0, (uint64_t)i * 500000 + 1);
		fa_test_elapse_ms((unsigned int)i / 2);
		fa_raw_call(&raw, &message, NULL, 0);
		fa_raw_wait(&raw, 0, message.cancel.value, &completion);
		fa_check(completion.status == -ETIMEDOUT || completion.status == -ECANCELED);
	}
	fa_raw_ping(&raw);
	fa_check_eq(raw.n_completions, 0);
}

static void test_deadline_others(void **state)
{
	struct fa_wire_message message = fa_raw_register_message(7, 65536);

	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	for (int i = 0; i < 50; ++i) {
		message.timeout_ns = i % 2 ? 1 : 60 * FA_NS_PER_SEC;
		fa_raw_call(&raw, &message, NULL, 0);
		if (raw.message.type == FA_WIRE_REPLY) {
			fa_check(i % 2);
			fa_check_eq(raw.message.reply.status, -ETIMEDOUT);
			continue;
		}
		fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
		{
			struct fa_wire_message release = fa_raw_message(FA_WIRE_BUFFER_FREE);

			release.buffer_free.buffer = 7;
			fa_raw_call_expect(&raw, &release, NULL, 0, 0, NULL);
		}
	}
	message = fa_raw_message(FA_WIRE_PING);
	message.timeout_ns = 60 * FA_NS_PER_SEC;
	fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
}

static void test_stream_in_use(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STREAM_FREE);
	uint64_t value = submit(&slow, 1, 0);

	message.stream_free.stream = 1;
	fa_raw_call_expect(&raw, &message, NULL, 0, -EBUSY, "stream 1");
	cancel(1, value, 0);
	fa_raw_wait_expect(&raw, 1, value, -ECANCELED, NULL);
	fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
	fa_raw_stream_create(&raw, 1, 1);
	fa_raw_wait_expect(&raw, 1, submit(&small, 1, 0), 0, NULL);
}

static void test_independent_streams(void **state)
{
	uint64_t held = submit(&slow, 0, 0);

	for (int i = 0; i < 10; ++i) {
		uint64_t value = submit(&small, 1, 0);

		fa_raw_wait_expect(&raw, 1, value, 0, NULL);
		fa_check_eq(raw.page[1].completed, value);
		fa_check_eq(raw.page[1].failed, 0);
	}
	fa_check_eq(raw.page[0].completed, 0);
	cancel(0, held, 0);
	fa_raw_wait_expect(&raw, 0, held, -ECANCELED, NULL);
}

#define test(function) cmocka_unit_test_setup_teardown(function, open_client, close_client)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_running),
		test(test_queued),
		test(test_finished_and_unknown),
		test(test_twice),
		test(test_cancel_right_behind),
		test(test_refused_in_turn),
		test(test_deadline_running),
		test(test_deadline_queued),
		test(test_deadline_extremes),
		test(test_deadline_others),
		test(test_stream_in_use),
		test(test_independent_streams),
	};

	return cmocka_run_group_tests_name("cancels and deadlines", tests, setup, teardown);
}
