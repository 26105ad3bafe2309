/*
 * Copies between sequences and pages of the program's own while they are in flight: gates, freed
 * buffers, cancellation, the order of layers, and a daemon that is killed.
 */
#include "client/faclient.h"
#include "tests/client/kv-pages.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void must_timeline(struct fa_timeline **ret_timeline)
{
	must(fa_timeline_open(single_client, ret_timeline), "timeline");
}

/* A write and a read wait for the program's word, and signal theirs. */
static void test_gates(void **state)
{
	static uint64_t base; /* values only grow */
	const struct fa_gate wait = { .slot = 1, .value = base + 1 };
	const struct fa_gate signal = { .slot = 2, .value = base + 1 };
	const struct fa_gates gates = { .size = sizeof(gates),
		                        .n_waits = 1,
		                        .waits = &wait,
		                        .n_signals = 1,
		                        .signals = &signal };
	struct fa_sequence_pages request;
	struct fa_timeline *timeline;
	struct fa_ticket ticket;
	struct scene scene;
	struct own own;

	must_timeline(&timeline);
	scene_open(&scene);
	own_init(&own, FA_BF16, 7, 1);
	request = request_of(&own, scene.sequence, scene.pages, 0, 40, 3);
	request.gates = &gates;
	must(fa_sequence_read_pages(single_client, &request, &ticket), "read");
	fa_check_eq(fa_timeline_wait(timeline, 2, base + 1, 30 * 1000 * 1000), -EAGAIN);
	for (size_t i = 0; i < own.bytes; ++i)
		fa_check_eq((unsigned char)own.host[i], POISON);
	must(fa_timeline_write(timeline, 1, base + 1), "write");
	must(fa_timeline_wait(timeline, 2, base + 1, UINT64_MAX), "wait");
	fa_check(memcmp(row_at(&own, &own.v[2], scene.pages, 42, 1),
	                row_at(&scene.own, &scene.own.v[2], scene.pages, 39, 1),
	                (size_t)DIM_V * 2) == 0);
	must(fa_wait(single_client, &ticket, UINT64_MAX, NULL), "end");
	own_deinit(&own);
	scene_close(&scene);
	++base;
}

/* The buffer is freed, and the sequence removed, while the request waits. */
static void test_freed_in_flight(void **state)
{
	const struct fa_gate wait = { .slot = 5, .value = 1 };
	const struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &wait };
	struct fa_sequence_pages request;
	struct fa_timeline *timeline;
	struct fa_ticket ticket;
	struct scene scene;
	struct own own;

	must_timeline(&timeline);
	scene_open(&scene);
	own_init(&own, FA_BF16, 16, 2);
	request = request_of(&own, scene.sequence, scene.pages, 0, 40, 0);
	request.gates = &gates;
	must(fa_sequence_read_pages(single_client, &request, &ticket), "read");
	own_deinit(&own);
	must(fa_sequence_remove(single_client, scene.sequence), "remove");
	must(fa_timeline_write(timeline, 5, 1), "write");
	must(fa_wait(single_client, &ticket, UINT64_MAX, NULL), "end");
	scene_close(&scene);
}

static void test_cancelled(void **state)
{
	const struct fa_gate wait = { .slot = 6, .value = 1 };
	const struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &wait };
	struct fa_sequence_pages request;
	struct fa_timeline *timeline;
	struct fa_ticket ticket;
	struct fa_step *step;
	struct scene scene;

	must_timeline(&timeline);
	scene_open(&scene);
	step = begin(scene.sequence, 20);
	request = request_of(&scene.own, scene.sequence, scene.pages, 40, 20, 0);
	request.gates = &gates;
	must(fa_sequence_write_pages(single_client, &request, &ticket), "write");
	must(fa_cancel(single_client, &ticket), "cancel");
	fa_check_eq(fa_wait(single_client, &ticket, UINT64_MAX, NULL), -ECANCELED);
	fa_check_eq(fa_step_commit(step, NULL, NULL), -ECANCELED);
	fa_step_free(step);
	scene_close(&scene);
}

/* Requests of one layer and of several, on two streams, keep the order of each layer. */
static void test_order_of_layers(void **state)
{
	const struct fa_gate wait = { .slot = 7, .value = 1 };
	const struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &wait };
	struct fa_ticket first, second, third;
	struct fa_sequence_pages request;
	struct fa_timeline *timeline;
	struct fa_sequence_copy copy;
	struct fa_step *step;
	struct dense dense;
	struct scene scene;
	uint32_t stream;

	must_timeline(&timeline);
	must(fa_stream_new(single_client, 0, &stream), "stream");
	scene_open(&scene);
	dense_init(&dense, FA_BF16);
	step = begin(scene.sequence, 16);
	request = request_of(&scene.own, scene.sequence, scene.pages, 40, 16, 0);
	request.gates = &gates;
	must(fa_sequence_write_pages(single_client, &request, &first), "write pages");
	copy = dense_copy(&dense, scene.sequence, 2, 40, 16);
	copy.stream = stream;
	memset(dense.k, 0x11, 16 * dense.k_row);
	memset(dense.v, 0x22, 16 * dense.v_row);
	must(fa_sequence_write(single_client, &copy, &second), "write");
	fa_check_eq(fa_wait(single_client, &second, 20 * 1000 * 1000, NULL), -EAGAIN);
	must(fa_timeline_write(timeline, 7, 1), "open");
	must(fa_wait(single_client, &first, UINT64_MAX, NULL), "first");
	must(fa_wait(single_client, &second, UINT64_MAX, NULL), "second");
	commit(step);
	request = request_of(&scene.own, scene.sequence, scene.pages, 40, 16, 0);
	must(fa_sequence_read_pages(single_client, &request, &third), "read pages");
	must(fa_wait(single_client, &third, UINT64_MAX, NULL), "third");
	fa_check_eq((unsigned char)*row_at(&scene.own, &scene.own.k[2], scene.pages, 5, 1), 0x11);
	fa_check_eq((unsigned char)*row_at(&scene.own, &scene.own.v[2], scene.pages, 5, 1), 0x22);
	must(fa_stream_free(single_client, stream), "stream");
	fa_buffer_free(dense.buffer);
	scene_close(&scene);
}

/* ---- a daemon that is killed */

#define ROUNDS 12

/* The daemon dies with copies in flight. Reads end with -ECONNRESET, or were repeated; writes end
 * with their step; and what was committed is there. */
static void test_killed(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options supervised = { .args = args };
	struct fa_options options = { .size = sizeof(options) };
	struct fa_sequence_info info = { .size = sizeof(info) };
	struct fa_client *const before = single_client;
	struct fa_test_daemon daemon;
	struct scene scene;
	struct own own;

	fa_test_daemon_start(&daemon, &supervised);
	options.socket = daemon.socket;
	must(fa_connect(&options, &single_client), "connect");
	scene_open(&scene);
	own_init(&own, FA_BF16, 7, 1);
	for (int i = 0; i < ROUNDS; ++i) {
		struct fa_sequence_pages request = request_of(&own, scene.sequence, scene.pages, 0,
		                                              40, 3);
		struct fa_ticket tickets[8], last;
		struct fa_step *step;
		pid_t child = fa_test_daemon_child(&daemon);
		int r;

		step = begin(scene.sequence, 20);
		for (int j = 0; j < 8; ++j)
			must(fa_sequence_read_pages(single_client, &request, &tickets[j]), "read");
		request = request_of(&scene.own, scene.sequence, scene.pages, 40, 20, 0);
		r = fa_sequence_write_pages(single_client, &request, &last);
		fa_check(!kill(child, SIGKILL));
		for (int j = 0; j < 8; ++j) {
			const int end = fa_wait(single_client, &tickets[j], UINT64_MAX, NULL);

			if (end)
				fa_check_eq(end, -ECONNRESET);
		}
		if (r == 0) {
			r = fa_wait(single_client, &last, UINT64_MAX, NULL);
			if (r)
				fa_check_eq(r, -ECONNRESET);
		}
		fa_check_eq(fa_step_commit(step, NULL, NULL), -ECONNRESET);
		fa_step_free(step);
		(void)fa_test_daemon_next_child(&daemon, child);
		must(fa_sequence_info(single_client, scene.sequence, &info), "info");
		fa_check_eq(info.length, 40);
		memset(own.host, POISON, own.bytes);
		request = request_of(&own, scene.sequence, scene.pages, 0, 40, 3);
		must(fa_sequence_read_pages(single_client, &request, NULL), "read again");
		for (uint32_t layer = 0; layer < LAYERS; ++layer)
			for (uint64_t t = 0; t < 40; ++t)
				for (int64_t h = 0; h < HEADS; ++h)
					fa_check(!memcmp(
						row_at(&own, &own.k[layer], scene.pages, t + 3, h),
						row_at(&scene.own, &scene.own.k[layer], scene.pages,
					               t, h),
						(size_t)DIM * 2));
	}
	own_deinit(&own);
	scene_close(&scene);
	fa_disconnect(single_client);
	fa_test_daemon_stop(&daemon);
	single_client = before;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gates),     cmocka_unit_test(test_freed_in_flight),
		cmocka_unit_test(test_cancelled), cmocka_unit_test(test_order_of_layers),
		cmocka_unit_test(test_killed),
	};

	return cmocka_run_group_tests_name("kv-pages-flight", tests, single_setup, single_teardown);
}
