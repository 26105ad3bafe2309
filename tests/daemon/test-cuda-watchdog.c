/*
 * When a driver call never returns, on the engine thread or the loop, the supervisor kills the
 * daemon, and the next one has the KV cache. A long kernel is left alone while the driver answers.
 */
#include "common/clock.h"
#include "cuda-client.h"
#include "kv-client.h"
#include "tests/lib/at_once.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum {
	TOKENS = 100,
	MORE = 6000,
	STEP = 5,
};

static struct fa_test_cuda cuda;
static struct fa_test_daemon supervisor;
static struct fa_test_cuda_page *page;
static struct kv_client client;
static pid_t child;
static unsigned int interval_ms;
static uint64_t sequence;
static uint32_t numbers[TOKENS];

static int start(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	char usec[24];

	interval_ms = fa_test_sanitized() ? 4000 : 2000;
	snprintf(usec, sizeof(usec), "%u000", interval_ms);
	setenv("WATCHDOG_USEC", usec, 1);
	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&supervisor,
	                     &(struct fa_test_daemon_options){ .args = args,
	                                                       .config = "[pool]\nbytes = 16M\n"
	                                                                 "chunk_bytes = 2M\n" });
	child = fa_test_daemon_next_child(&supervisor, 0);
	page = fa_test_cuda_attach(&cuda, child);
	kv_open(&client, supervisor.socket);
	kv_count(numbers, 1, TOKENS);
	sequence = kv_sequence(&client, kv_cache(&client, NULL, 0));
	kv_append(&client, sequence, numbers, 0, TOKENS);
	return 0;
}

static int stop(void **state)
{
	kv_close(&client);
	fa_test_daemon_stop(&supervisor);
	fa_test_cuda_detach(page);
	fa_test_cuda_end(&cuda);
	unsetenv("WATCHDOG_USEC");
	return 0;
}

/* The daemon must be killed because a call hangs or is about to hang. */
static void check_ended(void)
{
	const struct fa_wire_secret secret = client.raw.secret;
	const uint64_t generation = client.raw.generation, begin_ns = fa_now_ns();

	fa_check_eventually(fa_test_cuda_failed(page) == 1);
	child = fa_test_daemon_next_child(&supervisor, child);
	fa_check(fa_now_ns() - begin_ns < 4 * interval_ms * FA_NS_PER_MS);
	fa_test_daemon_log_wait(&supervisor, "hangs: nothing was heard of it");
	kv_close(&client);
	kv_open_resumed(&client, supervisor.socket, &secret, generation);
	fa_check(client.raw.message.hello_reply.resumed);
	kv_open_buffer(&client);
	kv_check(&client, sequence, numbers, 0, TOKENS);
}

static void test_launch_hangs(void **state)
{
	kv_begin_one(&client, STEP, sequence, 1);
	fa_test_cuda_fail(page,
	                  "cuLaunchKernel:1=hang,cuLaunchKernelEx:1=hang,cuGraphLaunch:1=hang");
	(void)kv_attend(&client, 0, STEP, 0, numbers, 1, NULL);
	check_ended();
}

static void test_loop_hangs(void **state)
{
	const struct fa_wire_step_item item = { .sequence = sequence, .n_new = MORE };
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_BEGIN);

	message.step_begin.step = STEP;
	message.step_begin.items = &item;
	message.step_begin.n_items = 1;
	fa_test_cuda_fail(page, "cuMemCreate:1=hang");
	(void)kv_send(&client, &message, 0);
	check_ended();
}

static void test_kernel_does_not_end(void **state)
{
	uint64_t value;

	kv_begin_one(&client, STEP, sequence, 1);
	fa_test_cuda_hold(page, true);
	value = kv_attend(&client, 0, STEP, 0, numbers, 1, NULL);
	for (int i = 0; i < 40; i++) {
		fa_test_quiet_ms(interval_ms / 10);
		fa_check_eq(fa_test_daemon_child(&supervisor), child);
	}
	fa_test_cuda_hold(page, false);
	kv_wait(&client, 0, value);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_launch_hangs, start, stop),
		cmocka_unit_test_setup_teardown(test_loop_hangs, start, stop),
		cmocka_unit_test_setup_teardown(test_kernel_does_not_end, start, stop),
	};

	return fa_test_run_at_once("cuda-watchdog", tests, NULL, NULL);
}
