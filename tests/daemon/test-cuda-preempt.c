/*
 * A preempted prefill whose client is killed, or whose daemon is told to end, over the tests'
 * driver, whose kernels run until the test ends them.
 */
#include "attention-client.h"
#include "cuda-client.h"

#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)
#define HIGH 1

static struct fa_test_cuda cuda;
static struct fa_test_daemon daemon_;
static struct fa_test_cuda_page *page;
static uint64_t n_before;

/* @urgent also has a stream of high priority. */
static struct attention_client urgent, patient;

/* Its kernel is preemptible. */
static struct fa_case prefill_case(void)
{
	return attention_client_long_case(FA_WIRE_DTYPE_BF16);
}

/* Stops the running kernel by an urgent request, which does not end. */
static void stop_it(uint64_t n_kernels)
{
	const uint64_t n_stopped = fa_test_cuda_stopped(page);

	fa_check_eventually(fa_test_cuda_kernels(page) == n_kernels + 1);
	attention_client_submit(&urgent, HIGH);
	fa_check_eventually(fa_test_cuda_stopped(page) == n_stopped + 1);
	fa_check_eventually(fa_test_cuda_kernels(page) == n_kernels + 2);
}

static void start(const char *drain_timeout_ms)
{
	const char *args[] = { "--drain-timeout-ms", drain_timeout_ms, NULL };

	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&daemon_, &(struct fa_test_daemon_options){ .args = args });
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
	attention_client_open(&urgent, daemon_.socket, attention_client_small_case());
	fa_raw_stream_create(&urgent.raw, HIGH, 1);
	attention_client_open(&patient, daemon_.socket, prefill_case());
	/* From the first urgent request on, other clients' works are preempted. */
	attention_client_submit(&urgent, HIGH);
	attention_client_expect(&urgent, HIGH);
	attention_client_submit(&patient, 0);
	attention_client_expect(&patient, 0);
	n_before = fa_test_cuda_launches(page);
}

/* The stopped daemon must leave nothing on the GPU. */
static void finish(void)
{
	static const struct fa_test_cuda_lives nothing;
	int status;

	fa_test_daemon_wait_dead(&daemon_);
	status = fa_test_daemon_reap(&daemon_);
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), 0);
	fa_check(fa_test_cuda_lives_equal(page, &nothing, true));
	fa_check_eq(fa_test_cuda_abandoned(page), 0);
	fa_check_eq(fa_test_cuda_misuses(page), 0);
}

static int stop(void **state)
{
	attention_client_close(&urgent);
	attention_client_close(&patient);
	fa_test_daemon_stop(&daemon_);
	fa_test_cuda_detach(page);
	fa_test_cuda_end(&cuda);
	return 0;
}

/* One request in flight, two behind it. */
static void prefill_client(int socket)
{
	struct fa_case attention = prefill_case();
	struct cuda_buffer buffer;
	struct fa_raw raw;
	char byte;

	fa_raw_open(&raw, daemon_.socket);
	cuda_arena(&raw, &buffer, 1, 2 * MIB);
	cuda_case_fill(&attention, buffer.at);
	for (uint64_t value = 1; value <= 3; ++value) {
		struct fa_wire_message message = fa_case_message(&attention, 1, 0, 0, value);

		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	}
	fa_cuda_receive(socket, &byte, 1);
}

struct held {
	struct fa_test_cuda_lives lives;
	struct fa_test_usage usage;
};

static bool all_is_back(const struct held *before, bool loud)
{
	struct fa_test_usage now;

	fa_test_daemon_usage(&daemon_, &now);
	if (loud)
		fprintf(stderr, "%d fds, were %d; %d memfds mapped, were %d\n", now.fds,
		        before->usage.fds, now.memfd_maps, before->usage.memfd_maps);
	return fa_test_cuda_lives_equal(page, &before->lives, loud) &&
	       now.fds == before->usage.fds && now.memfd_maps == before->usage.memfd_maps &&
	       (int64_t)fa_test_cuda_bytes(&cuda) == before->lives.n[FA_TEST_CUDA_DEVICE_BYTES];
}

/*
 * Kills a client with a preempted prefill. @before: NULL in the first round, which allocates what
 * later rounds reuse.
 */
static void kill_round(const struct held *before)
{
	const uint64_t launches = fa_test_cuda_launches(page), kernels = fa_test_cuda_kernels(page);
	const uint64_t stopped = fa_test_cuda_stopped(page);
	uint64_t deadline, pause_ns = 0;
	struct fa_cuda_child child;
	int status;

	fa_test_cuda_hold(page, true);
	child = fa_cuda_child(prefill_client, 0);
	stop_it(kernels);
	kill(child.pid, SIGKILL);
	status = fa_test_reap(child.pid);
	fa_check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	close(child.socket);

	/* The killed client's work does not wait for the urgent request. */
	deadline = fa_deadline_ns(fa_test_patience_ns());
	while (before && !all_is_back(before, fa_now_ns() > deadline)) {
		fa_check(fa_now_ns() <= deadline);
		fa_test_poll_pause(&pause_ns);
	}
	/* Others are served, though their requests may be preempted. */
	attention_client_submit(&patient, 0);
	fa_test_cuda_hold(page, false);
	attention_client_expect(&urgent, HIGH);
	attention_client_expect(&patient, 0);
	fa_check_eventually(fa_test_cuda_kernels(page) == fa_test_cuda_launches(page));
	/*
	 * There is a launch per request, and one per resumption beside the endless request, except
	 * after the last stop of the killed client. In the first round that client's request may
	 * have been resumed, and its others begun.
	 */
	if (before)
		fa_check_eq(fa_test_cuda_launches(page) - launches,
		            2 + fa_test_cuda_stopped(page) - stopped);
}

static void test_killed(void **state)
{
	const int rounds = fa_test_long() ? 100 : 10;
	struct held before;

	start("60000");
	kill_round(NULL);
	fa_raw_ping(&patient.raw);
	fa_test_cuda_lives(page, &before.lives);
	fa_test_daemon_usage(&daemon_, &before.usage);
	/* The first client may take long to end. */
	for (int calm = 0; calm < 40; ++calm) {
		fa_test_quiet_ms(25);
		if (all_is_back(&before, false))
			continue;
		fa_test_cuda_lives(page, &before.lives);
		fa_test_daemon_usage(&daemon_, &before.usage);
		calm = 0;
	}
	for (int round = 0; round < rounds; ++round)
		kill_round(&before);
	fa_test_daemon_signal(&daemon_, SIGTERM);
	finish();
}

static void wait_draining(void)
{
	struct fa_test_accounts accounts;

	fa_check_eventually((fa_test_accounts(&urgent.raw, &accounts), accounts.draining));
}

/* Both requests end first, and the prefill is resumed. */
static void test_drained(void **state)
{
	start("60000");
	fa_test_cuda_hold(page, true);
	attention_client_submit(&patient, 0);
	stop_it(n_before);
	fa_test_daemon_signal(&daemon_, SIGTERM);
	wait_draining();
	fa_check_eq(fa_test_cuda_launches(page) - n_before, 2);
	fa_test_cuda_hold(page, false);
	attention_client_expect(&urgent, HIGH);
	attention_client_expect(&patient, 0);
	fa_raw_expect_end(&urgent.raw);
	fa_raw_expect_end(&patient.raw);
	finish();
	fa_check_eq(fa_test_cuda_launches(page) - n_before, 3);
}

/* After a drain's deadline the prefill ends at once. */
static void test_deadline(void **state)
{
	start("200");
	fa_test_cuda_hold(page, true);
	attention_client_submit(&patient, 0);
	stop_it(n_before);
	fa_test_daemon_signal(&daemon_, SIGTERM);
	fa_raw_wait_expect(&patient.raw, 0, patient.values[0], -ESHUTDOWN, NULL);
	fa_test_cuda_hold(page, false);
	fa_raw_expect_end(&urgent.raw);
	fa_raw_expect_end(&patient.raw);
	finish();
	fa_check_eq(fa_test_cuda_launches(page) - n_before, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_killed, stop),
		cmocka_unit_test_teardown(test_drained, stop),
		cmocka_unit_test_teardown(test_deadline, stop),
	};

	/* Works of any length are preempted, until the urgent ones have ended. */
	setenv("FAD_TUNE_PREEMPT_WORK_NS", "0", 1);
	setenv("FAD_TUNE_PREEMPT_STOP_NS", "3600000000000", 1);
	return cmocka_run_group_tests_name("cuda-preempt", tests, NULL, NULL);
}
