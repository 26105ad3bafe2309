/*
 * The real daemon loses its device: all requests are answered, the log has the reason, and the
 * exit status asks for a restart. fad with another device (lossy-device.c).
 */
#include "common/cleanup.h"
#include "lossy-device.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sysexits.h>

#include <cmocka.h>

/* Few enough that replies fit into the sockets, more than the device takes at once. */
#define STREAMS 12
#define EACH 10

static struct fa_test_daemon daemon_;
static struct fa_raw raws[3];
static struct fa_raw_buffer buffers[3];

static int stop(void **state)
{
	for (int i = 0; i < 3; ++i) {
		fa_raw_close(&raws[i]);
		fa_raw_buffer_free(NULL, &buffers[i]);
	}
	fa_test_daemon_stop(&daemon_);
	return 0;
}

static void start(const struct fa_case *attention)
{
	memset(raws, 0, sizeof(raws));
	memset(buffers, 0, sizeof(buffers));
	for (int i = 0; i < 3; ++i)
		raws[i].fd = raws[i].page_fd = buffers[i].fd = -1;
	fa_test_daemon_start(&daemon_, NULL);
	for (int i = 0; i < 3; ++i) {
		fa_raw_open(&raws[i], daemon_.socket);
		fa_raw_buffer_register(&raws[i], &buffers[i], 1, attention->bytes, 0);
		fa_case_fill(attention, buffers[i].data);
	}
}

static void ask(int client, const struct fa_case *attention, uint32_t stream, uint64_t value)
{
	struct fa_wire_message message = fa_case_message(attention, 1, 0, stream, value);

	fa_check_eq(fa_raw_send(&raws[client], &message, NULL, 0), 0);
}

static void expect_exit(bool in_order)
{
	_fa_cleanup_(fa_freep) char *log = NULL;
	int status;

	fa_test_daemon_wait_dead(&daemon_);
	log = fa_test_daemon_log(&daemon_);
	status = fa_test_daemon_reap(&daemon_);
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), EX_TEMPFAIL);
	fa_check_contains(log, "somebody pulled the plug");
	fa_check(!in_order == !strstr(log, "bye"));
}

static void test_lost(void **state)
{
	struct fa_case attention = { .heads = 4,
		                     .seqlen_q = fa_test_sanitized() ? 64 : 256,
		                     .seqlen_k = fa_test_sanitized() ? 4096 : 16384 };
	unsigned int n_lost = 0;
	struct fa_case fatal;

	fa_case_plan(&attention);
	start(&attention);
	for (uint32_t stream = 1; stream <= STREAMS; ++stream)
		fa_raw_stream_create(&raws[1], stream, 0);
	for (uint64_t value = 1; value <= EACH; ++value)
		for (uint32_t stream = 1; stream <= STREAMS; ++stream)
			ask(1, &attention, stream, value);
	/* Requests that were not read yet may end with the connection. */
	fa_raw_ping(&raws[1]);
	fatal = attention;
	fatal.scale = FA_LOSSY_LOSE;
	ask(2, &fatal, 0, 1);
	fa_raw_wait_expect(&raws[2], 0, 1, -ENODEV, NULL);

	/* Each is answered once, in order, and the page agrees. */
	for (uint64_t value = 1; value <= EACH; ++value)
		for (uint32_t stream = 1; stream <= STREAMS; ++stream) {
			struct fa_raw_completion completion;

			fa_raw_wait(&raws[1], stream, value, &completion);
			if (!completion.status)
				continue;
			fa_check_eq(completion.status, -ENODEV);
			fa_check(strstr(completion.text, "it was running then") ||
			         (strstr(completion.text, "somebody pulled the plug") &&
			          !completion.started_ns));
			n_lost++;
		}
	fa_check(n_lost > 0);
	for (uint32_t stream = 1; stream <= STREAMS; ++stream)
		fa_check_eq(atomic_load(&raws[1].page[stream].completed), EACH);
	for (int i = 0; i < 3; ++i)
		fa_raw_expect_end(&raws[i]);
	expect_exit(true);
}

/* A driver may hang when its device is lost. Until then others get their answers. */
static void test_hangs(void **state)
{
	struct fa_case attention = { .heads = 1, .seqlen_q = 4, .seqlen_k = 4 };
	uint64_t begin_ns = fa_now_ns();
	struct fa_case fatal;

	fa_case_plan(&attention);
	start(&attention);
	ask(1, &attention, 0, 1);
	fa_raw_wait_expect(&raws[1], 0, 1, 0, NULL);
	fatal = attention;
	fatal.scale = FA_LOSSY_HANG;
	ask(0, &fatal, 0, 1);
	fa_test_daemon_log_wait(&daemon_, "the device is lost");
	ask(1, &attention, 0, 2);
	ask(1, &attention, 60, 1);
	fa_raw_wait_expect(&raws[1], 0, 2, -ENODEV, "lost: somebody pulled the plug");
	fa_raw_wait_expect(&raws[1], 60, 1, -ENODEV, "lost: somebody pulled the plug");
	expect_exit(false);
	fa_check(fa_now_ns() - begin_ns < 60 * FA_NS_PER_SEC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_lost, stop),
		cmocka_unit_test_teardown(test_hangs, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
