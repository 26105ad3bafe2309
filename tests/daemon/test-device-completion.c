/*
 * Requests whose completion the device itself signals: when it does, what is visible then, and that
 * the daemon agrees with what its client saw.
 */
#include "tests/daemon/ring-scene.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS 2000

static const struct fa_test_daemon_options one_request = {
	.config = "[limits]\nrequests = 1\nsession_requests = 1\n",
};

static int start_limited(void **state)
{
	fa_scene_start(&scene, &one_request);
	return 0;
}

static bool is_signalled(uint32_t stream, uint64_t value)
{
	return fa_completion_device_done(&raw.page[stream], value);
}

static void wait_told(uint32_t stream, uint64_t value)
{
	/* The test has its own time limit. */
	while (!is_signalled(stream, value))
		(void)sched_yield();
}

/* A daemon with a GPU must register the page first. */
static uint64_t wait_until_signalled(uint32_t stream)
{
	for (uint64_t value = 1;; ++value) {
		struct fa_wire_message message = fa_case_message(&small, 1, 0, stream, value);

		fa_raw_ring_send(&ring, &message);
		fa_check_eq(fa_raw_ring_wait(&raw, &ring, stream, value).status, 0);
		if (is_signalled(stream, value))
			return value;
	}
}

static void test_signalled_by_device(void **state)
{
	uint64_t value;

	open_ring(0);
	make_small();
	fa_raw_stream_create(&raw, 3, 0);
	value = wait_until_signalled(3);
	for (int round = 0; round < ROUNDS; ++round) {
		struct fa_wire_message message = fa_case_message(&small, 1, 0, 3, ++value);

		fa_case_fill(&small, buffer.data);
		fa_raw_ring_send(&ring, &message);
		wait_told(3, value);
		/* The whole output is visible before the daemon says anything. */
		fa_check(fa_case_error(&small, buffer.data) <= 1);
		if (round % 7 == 0)
			fa_check_eq(fa_raw_ring_wait(&raw, &ring, 3, value).status, 0);
	}
	fa_check_eq(fa_raw_ring_wait(&raw, &ring, 3, value).status, 0);
	fa_raw_stream_free(&raw, 3);
	fa_raw_stream_create(&raw, 3, 0);
	for (int round = 0; round < 10; ++round) {
		struct fa_wire_message message = fa_case_message(&small, 1, 0, 3, ++value);

		fa_raw_ring_send(&ring, &message);
		wait_told(3, value);
	}
	close_ring();
	fa_scene_check(&scene);
}

/* Requests that may end otherwise, or wait, are completed by the daemon. */
static void test_signalled_by_daemon(void **state)
{
	struct fa_wire_message message;
	uint64_t value, told;

	open_ring(0);
	make_small();
	value = told = wait_until_signalled(0);
	for (int round = 0; round < 20; ++round) {
		message = fa_case_message(&small, 1, 0, 0, ++value);
		message.timeout_ns = UINT64_MAX / 4;
		fa_raw_ring_send(&ring, &message);
		fa_check_eq(fa_raw_ring_wait(&raw, &ring, 0, value).status, 0);
		fa_raw_ring_marker(&ring, 0, ++value);
		fa_check_eq(fa_raw_ring_wait(&raw, &ring, 0, value).status, 0);
		message = fa_case_message(&small, 77, 0, 0, ++value);
		fa_raw_ring_send(&ring, &message);
		fa_check_eq(fa_raw_ring_wait(&raw, &ring, 0, value).status, -ENOENT);
		fa_check(is_signalled(0, told));
	}
	close_ring();
	fa_scene_check(&scene);
}

static void test_cancelled(void **state)
{
	struct fa_wire_message cancel = fa_raw_message(FA_WIRE_CANCEL), message;
	struct fa_case slow = fa_case_slow();
	struct fa_raw_buffer large;
	struct fa_outcome outcome;

	open_ring(0);
	fa_raw_buffer_register(&raw, &large, 2, slow.bytes, 0);
	message = fa_case_message(&slow, 2, 0, 0, 1);
	fa_raw_ring_send(&ring, &message);
	cancel.cancel.value = 1;
	fa_raw_call_expect(&raw, &cancel, NULL, 0, 0, NULL);
	outcome = fa_raw_ring_wait(&raw, &ring, 0, 1);
	fa_check(outcome.status == -ECANCELED ? !is_signalled(0, 1) : outcome.status == 0);
	fa_raw_buffer_free(&raw, &large);
	close_ring();
	fa_scene_check(&scene);
}

/*
 * When the device has signalled a request, the daemon counts it as ended and allows another, by
 * ring or by packet.
 */
static void test_limit_per_session(void **state)
{
	uint64_t value;

	open_ring(0);
	make_small();
	value = wait_until_signalled(0);
	for (int round = 0; round < ROUNDS; ++round) {
		struct fa_wire_message message = fa_case_message(&small, 1, 0, 0, ++value);

		if (round % 3 == 2)
			fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		else
			fa_raw_ring_send(&ring, &message);
		while (!is_signalled(0, value) && !raw.page[0].failed)
			(void)sched_yield();
		fa_check_eq(raw.page[0].failed, 0);
	}
	fa_check_eq(fa_raw_ring_wait(&raw, &ring, 0, value).status, 0);
	close_ring();
	fa_scene_check(&scene);
}

/* Two sessions of a tenant that may have one request in flight. */
static void test_limit_per_tenant(void **state)
{
	struct fa_raw raws[2];
	struct fa_raw_ring rings[2];
	struct fa_raw_buffer buffers[2];
	uint64_t values[2];

	for (int i = 0; i < 2; ++i) {
		open_ring(0);
		make_small();
		values[i] = wait_until_signalled(0);
		raws[i] = raw;
		rings[i] = ring;
		buffers[i] = buffer;
	}
	for (uint64_t round = 0; round < ROUNDS; ++round) {
		const int i = (int)(round % 2);
		const uint64_t value = ++values[i];
		struct fa_wire_message message = fa_case_message(&small, 1, 0, 0, value);

		fa_raw_ring_send(&rings[i], &message);
		while (!fa_completion_device_done(&raws[i].page[0], value) &&
		       !raws[i].page[0].failed)
			(void)sched_yield();
		fa_check_eq(raws[i].page[0].failed, 0);
	}
	for (int i = 0; i < 2; ++i) {
		fa_check_eq(fa_raw_ring_wait(&raws[i], &rings[i], 0, values[i]).status, 0);
		raw = raws[i];
		ring = rings[i];
		buffer = buffers[i];
		close_ring();
	}
	fa_scene_check(&scene);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_signalled_by_device),
		cmocka_unit_test(test_signalled_by_daemon),
		cmocka_unit_test(test_cancelled),
	};
	const struct CMUnitTest limited[] = {
		cmocka_unit_test(test_limit_per_session),
		cmocka_unit_test(test_limit_per_tenant),
	};
	int failed = cmocka_run_group_tests(tests, scene_start, scene_stop);

	return failed + cmocka_run_group_tests(limited, start_limited, scene_stop);
}
