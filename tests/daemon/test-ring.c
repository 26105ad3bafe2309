/*
 * Requests by ring, written by hand: set-up, answers, order relative to packets, wake-ups, CPU time
 * while idle, and release.
 */
#include "tests/daemon/ring-scene.h"
#include "tests/lib/at_once.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MEASURED_MS 300

static void check_silence(void)
{
	struct pollfd pollfd = { .fd = raw.fd, .events = POLLIN };

	fa_check_eq(poll(&pollfd, 1, 0), 0);
}

static void test_setup(void **state)
{
	static const struct {
		uint64_t wanted, bytes;
	} sizes[] = {
		{ 0, FA_RING_BYTES_DEFAULT },
		{ 1, FA_RING_BYTES_MIN },
		{ 4096, 4096 },
		{ 4097, 8192 },
		{ UINT64_MAX, FA_RING_BYTES_MAX },
	};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); ++i) {
		struct fa_wire_message again = fa_raw_message(FA_WIRE_RING_SETUP);

		open_ring(sizes[i].wanted);
		fa_check_eq(ring.bytes, sizes[i].bytes);
		fa_check(ring.n_records >= raw.limits.requests);
		/* No file can be shrunk, nor results be written. */
		fa_check(ftruncate(ring.ring_fd, 0) < 0);
		fa_check(ftruncate(ring.results_fd, 0) < 0);
		fa_check(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring.results_fd, 0) ==
		         MAP_FAILED);
		fa_raw_call_expect(&raw, &again, NULL, 0, -EEXIST, "ring");
		fa_raw_ping(&raw);
		close_ring();
	}
	fa_scene_check(&scene);
}

static void test_markers(void **state)
{
	open_ring(0);
	for (uint64_t value = 1; value <= 5000; ++value) {
		fa_raw_ring_marker(&ring, 0, value);
		if (value % 50 == 0) {
			struct fa_outcome outcome = fa_raw_ring_wait(&raw, &ring, 0, value);

			fa_check_eq(outcome.status, 0);
			fa_check(outcome.queued_ns && outcome.finished_ns >= outcome.queued_ns);
		}
	}
	check_silence();
	close_ring();
	fa_scene_check(&scene);
}

static void test_markers_as_packets(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_MARKER);

	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_stream_create(&raw, 5, 0);
	for (uint64_t value = 1; value <= 100; ++value) {
		message.marker.stream = value % 2 ? 5 : 0;
		message.marker.value = (value + 1) / 2;
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	}
	fa_raw_wait_expect(&raw, 5, 50, 0, NULL);
	fa_raw_wait_expect(&raw, 0, 50, 0, NULL);
	message.marker.stream = 9;
	message.marker.value = 1;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 9, 1, -ENOENT, "stream 9");
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void test_order_in_stream(void **state)
{
	struct fa_wire_message message;
	uint64_t value = 0;

	open_ring(0);
	make_small();
	for (int round = 0; round < 200; ++round) {
		fa_case_fill(&small, buffer.data);
		message = fa_case_message(&small, 1, 0, 0, ++value);
		fa_raw_ring_send(&ring, &message);
		fa_raw_ring_marker(&ring, 0, ++value);
		fa_check_eq(fa_raw_ring_wait(&raw, &ring, 0, value).status, 0);
		fa_check(fa_case_error(&small, buffer.data) <= 1);
		fa_check(fa_raw_ring_wait(&raw, &ring, 0, value - 1).started_ns);
	}
	check_silence();
	fa_raw_buffer_free(&raw, &buffer);
	close_ring();
	fa_scene_check(&scene);
}

static void test_refused(void **state)
{
	struct fa_wire_message message;
	struct fa_outcome outcome;

	open_ring(0);
	make_small();
	message = fa_case_message(&small, 77, 0, 0, 1);
	fa_raw_ring_send(&ring, &message);
	fa_raw_ring_marker(&ring, 0, 2);
	outcome = fa_raw_ring_wait(&raw, &ring, 0, 2);
	fa_check_eq(outcome.status, 0);
	outcome = fa_raw_ring_wait(&raw, &ring, 0, 1);
	fa_check_eq(outcome.status, -ENOENT);
	fa_raw_wait_expect(&raw, 0, 1, -ENOENT, "buffer is 77");
	fa_raw_ping(&raw);
	check_silence();
	fa_check_eq(raw.n_completions, 0);

	message = fa_raw_message(FA_WIRE_PING);
	message.id = 4711;
	fa_raw_ring_send(&ring, &message);
	fa_raw_expect_reply(&raw, 4711, -ENOTSUP, "ring", false);
	message = fa_raw_message(FA_WIRE_REPLY);
	message.id = 4712;
	fa_raw_ring_send(&ring, &message);
	fa_raw_expect_reply(&raw, 4712, -ENOTSUP, "Reply", false);
	message = fa_raw_message(FA_WIRE_MARKER);
	message.marker.value = 3;
	message.fds = 1;
	message.id = 4713;
	fa_raw_ring_send(&ring, &message);
	fa_raw_expect_reply(&raw, 4713, -EPROTO, "descriptors", true);
	fa_raw_buffer_free(NULL, &buffer);
	close_ring();
	fa_scene_check(&scene);
}

/* Entries put before a packet was sent are handled first. */
static void test_order_with_packets(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);
	uint64_t value = 0;

	open_ring(0);
	for (int round = 0; round < 100; ++round) {
		make_small();
		for (int i = 0; i < 20; ++i) {
			struct fa_wire_message work = fa_case_message(&small, 1, 0, 0, ++value);

			fa_raw_ring_send(&ring, &work);
		}
		message.buffer_free.buffer = 1;
		fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
		fa_check_eq(fa_raw_ring_wait(&raw, &ring, 0, value).status, 0);
		check_silence();
		fa_raw_buffer_free(NULL, &buffer);
	}
	close_ring();
	fa_scene_check(&scene);
}

/* The daemon stops taking requests: the ring fills up, and the daemon does not block. */
static void test_full(void **state)
{
	struct fa_case slow = fa_case_slow();
	struct fa_wire_message message = fa_raw_message(FA_WIRE_MARKER), cancel;
	struct fa_raw_buffer slow_buffer;
	uint64_t value = 1, n = 0;

	open_ring(4096);
	fa_raw_buffer_arena(&raw, &slow_buffer, 2, slow.bytes);
	message = fa_case_message(&slow, 2, 0, 0, value);
	fa_raw_ring_send(&ring, &message);
	/* With too many refusals pending nothing is taken; others are served. */
	message = fa_case_message(&slow, 77, 0, 0, 0);
	for (int turns = 0; turns < 20;) {
		message.attention.value = value + 1;
		if (fa_raw_ring_put(&ring, &message) == 0) {
			++value;
			turns = 0;
			++n;
			fa_check(n < 1000);
		} else {
			++turns;
			fa_raw_ping(&scene.bystander);
		}
	}
	fa_check(n > 32);
	fa_scene_bystander(&scene);
	fa_ring_arm_room(&ring.end);
	fa_check(!fa_ring_has_room(&ring.end, 600));
	fa_raw_close(&raw);
	fa_raw_buffer_free(NULL, &slow_buffer);
	fa_raw_ring_close(&ring);
	fa_scene_check(&scene);

	open_ring(4096);
	fa_raw_buffer_arena(&raw, &slow_buffer, 2, slow.bytes);
	message = fa_case_message(&slow, 2, 0, 0, 1);
	message.timeout_ns = FA_NS_PER_SEC / 2;
	fa_raw_ring_send(&ring, &message);
	for (value = 2; value < 300; ++value) {
		message = fa_case_message(&slow, 77, 0, 0, value);
		fa_raw_ring_send(&ring, &message);
	}
	fa_check_eq(fa_raw_ring_wait(&raw, &ring, 0, 299).status, -ENOENT);
	for (value = 1; value < 300; ++value)
		fa_raw_wait_expect(&raw, 0, value, value == 1 ? -ETIMEDOUT : -ENOENT, NULL);
	cancel = fa_raw_message(FA_WIRE_CANCEL);
	cancel.cancel.value = 299;
	fa_raw_call_expect(&raw, &cancel, NULL, 0, -ENOENT, NULL);
	fa_raw_buffer_free(&raw, &slow_buffer);
	close_ring();
	fa_scene_check(&scene);
}

static bool is_woken(int timeout_ms)
{
	struct pollfd pollfd = { .fd = ring.wake, .events = POLLIN };
	char bytes[16];

	return poll(&pollfd, 1, timeout_ms) == 1 && read(ring.wake, bytes, sizeof(bytes)) > 0;
}

/* Completions wake an armed client only. */
static void test_wake(void **state)
{
	struct fa_wire_message message;
	uint64_t value = 0;

	open_ring(0);
	make_small();
	fa_raw_ring_marker(&ring, 0, ++value);
	fa_raw_ring_wait(&raw, &ring, 0, value);
	fa_check(!is_woken(20));
	for (int round = 0; round < 100; ++round) {
		fa_ring_arm(&ring.end);
		if (round % 2) {
			fa_raw_ring_marker(&ring, 0, ++value);
		} else {
			message = fa_case_message(&small, 1, 0, 0, ++value);
			fa_raw_ring_send(&ring, &message);
		}
		fa_check(is_woken(60000));
		fa_check(atomic_load(&raw.page[0].completed) == value);
	}
	fa_raw_buffer_free(&raw, &buffer);
	close_ring();
	fa_scene_check(&scene);
}

static void test_wake_unread(void **state)
{
	open_ring(0);
	for (uint64_t value = 1; value <= 6000; ++value) {
		fa_ring_arm(&ring.end);
		fa_raw_ring_marker(&ring, 0, value);
		fa_raw_ring_wait(&raw, &ring, 0, value);
	}
	fa_raw_ping(&raw);
	close_ring();
	fa_scene_check(&scene);
}

/* The daemon never reads its doorbell, which the client can make blocking. */
static void test_doorbell_flags(void **state)
{
	eventfd_t count;

	open_ring(0);
	fa_check(fcntl(ring.doorbell, F_SETFL, 0) == 0);
	for (uint64_t value = 1; value <= 50; ++value) {
		fa_test_let_sleep_ms(2);
		fa_raw_ring_marker(&ring, 0, value);
		if (fcntl(ring.doorbell, F_SETFL, O_NONBLOCK) == 0)
			(void)eventfd_read(ring.doorbell, &count);
		(void)fcntl(ring.doorbell, F_SETFL, 0);
		/* A client that reads the doorbell must ring again. */
		fa_raw_ring_bell(&ring);
		fa_raw_ring_wait(&raw, &ring, 0, value);
	}
	fa_check_eq(eventfd_write(ring.doorbell, UINT64_MAX - 1 - 1), 0);
	fa_scene_bystander(&scene);
	close_ring();
	fa_scene_check(&scene);
}

static void test_idle(void **state)
{
	struct fa_test_usage before, after;

	open_ring(0);
	for (uint64_t value = 1; value <= 20000; ++value)
		fa_raw_ring_marker(&ring, 0, value);
	fa_raw_ring_wait(&raw, &ring, 0, 20000);
	fa_test_elapse_ms(10);
	fa_test_daemon_usage(&scene.daemon, &before);
	fa_test_elapse_ms(MEASURED_MS);
	fa_test_daemon_usage(&scene.daemon, &after);
	if (after.cpu_ns - before.cpu_ns > MEASURED_MS * FA_NS_PER_MS / 10)
		fa_test_fail(__FILE__, __LINE__,
		             "behind a busy ring the daemon took %llu ms in %d ms",
		             (unsigned long long)((after.cpu_ns - before.cpu_ns) / FA_NS_PER_MS),
		             MEASURED_MS);
	close_ring();
	fa_scene_check(&scene);
}

static void test_accounts(void **state)
{
	struct fa_test_accounts with, without;
	char *status;

	fa_raw_open(&raw, scene.daemon.socket);
	fa_test_accounts(&raw, &without);
	fa_raw_ring_open(&raw, &ring, 0);
	fa_test_accounts(&raw, &with);
	fa_check(with.buffer_bytes >= without.buffer_bytes + (int64_t)ring.bytes +
	                                      (int64_t)fa_results_bytes(ring.n_records));
	fa_check(with.fds >= without.fds + 2);
	fa_raw_ring_marker(&ring, 0, 1);
	fa_raw_ring_wait(&raw, &ring, 0, 1);
	status = fa_raw_status(&raw);
	fa_check_contains(status, "\"ring_bytes\":262144");
	fa_check_contains(status, "\"ring_requests\":1,");
	free(status);
	close_ring();
	fa_scene_check(&scene);
}

static long long allocated(int fd)
{
	struct stat st;

	fa_check(!fstat(fd, &st));
	return (long long)st.st_blocks * 512;
}

/* Files of an ended session keep one page of the daemon's memory. */
static void test_memory_after_session(void **state)
{
	for (int i = 0; i < 20; ++i) {
		int ring_fd, results_fd;
		const unsigned char *records;
		uint64_t bytes;

		open_ring(FA_RING_BYTES_MAX);
		for (uint64_t value = 1; value <= ring.n_records; ++value)
			fa_raw_ring_marker(&ring, 0, value);
		fa_raw_ring_wait(&raw, &ring, 0, ring.n_records);
		fa_check((ring_fd = dup(ring.ring_fd)) >= 0);
		fa_check((results_fd = dup(ring.results_fd)) >= 0);
		bytes = fa_results_bytes(ring.n_records);
		records = mmap(NULL, bytes, PROT_READ, MAP_SHARED, results_fd, 0);
		fa_check(records != MAP_FAILED);
		fa_check(allocated(results_fd) >= (long long)(bytes / FA_COMPLETION_SLOTS));
		fa_check(allocated(ring_fd) > FA_RING_HEAD_BYTES);
		close_ring();
		fa_check_eventually(allocated(results_fd) == 0);
		fa_check_eventually(allocated(ring_fd) <= FA_RING_HEAD_BYTES);
		for (uint64_t at = 0; at < bytes; at += 4096)
			fa_check_eq(records[at], 0);
		(void)munmap((void *)records, bytes);
		close(ring_fd);
		close(results_fd);
	}
	fa_scene_check(&scene);
}

static void test_constant_memory(void **state)
{
	struct fa_test_usage before, after;
	uint64_t value = 0, most = fa_test_long() ? 5000000 : 300000;

	open_ring(0);
	while (value < 20000)
		fa_raw_ring_marker(&ring, 0, ++value);
	fa_raw_ring_wait(&raw, &ring, 0, value);
	fa_test_daemon_usage(&scene.daemon, &before);
	while (value < most)
		fa_raw_ring_marker(&ring, 0, ++value);
	fa_raw_ring_wait(&raw, &ring, 0, value);
	fa_test_daemon_usage(&scene.daemon, &after);
	if (!fa_test_sanitized())
		fa_check(after.rss_bytes <= before.rss_bytes + (1u << 20));
	close_ring();
	fa_scene_check(&scene);
}

static void test_limits(void **state)
{
	const struct fa_test_daemon_options options = {
		.config = "[limits]\nbuffer_bytes = 1M\nsession_requests = 5000\n",
	};
	struct fa_wire_message message = fa_raw_message(FA_WIRE_RING_SETUP);
	struct fa_scene poor;

	fa_scene_start(&poor, &options);
	fa_raw_open(&raw, poor.daemon.socket);
	fa_raw_call_expect(&raw, &message, NULL, 0, -EDQUOT, "buffer_bytes");
	fa_raw_ping(&raw);
	fa_raw_close(&raw);
	fa_scene_check(&poor);
	fa_scene_stop(&poor);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_setup),
		cmocka_unit_test(test_markers),
		cmocka_unit_test(test_markers_as_packets),
		cmocka_unit_test(test_order_in_stream),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_order_with_packets),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_wake),
		cmocka_unit_test(test_wake_unread),
		cmocka_unit_test(test_doorbell_flags),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_accounts),
		cmocka_unit_test(test_memory_after_session),
		cmocka_unit_test(test_constant_memory),
		cmocka_unit_test(test_limits),
	};

	return fa_test_run_at_once("ring", tests, scene_start, scene_stop);
}
