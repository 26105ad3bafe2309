/*
 * The daemon loses its GPU, on the tests' CUDA driver: all requests are answered, the log has the
 * reason, and the exit status asks for a restart, even if the driver hangs.
 */
#include "attention-client.h"
#include "common/cleanup.h"
#include "tests/cuda-driver/control.h"
#include "tests/lib/at_once.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
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

/* Replies fit into the sockets; the device cannot take so many at once. */
#define STREAMS 12
#define EACH 10
#define BYTES 65536
/* CUDA_ERROR_ILLEGAL_ADDRESS */
#define FAULT "700"

static struct fa_test_cuda cuda;
static struct fa_test_cuda_page *page;
static struct fa_test_daemon daemon_;
static struct attention_client clients[3];

static int start(void **state)
{
	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&daemon_, NULL);
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
	for (int i = 0; i < 3; ++i)
		attention_client_open(&clients[i], daemon_.socket, attention_client_small_case());
	return 0;
}

static int stop(void **state)
{
	for (int i = 0; i < 3; ++i)
		attention_client_close(&clients[i]);
	fa_test_daemon_stop(&daemon_);
	fa_test_cuda_detach(page);
	fa_test_cuda_end(&cuda);
	return 0;
}

static void submit(int client, uint32_t stream, uint64_t value)
{
	struct fa_wire_message message = fa_case_message(&clients[client].attention, 1, 0, stream,
	                                                 value);

	fa_check_eq(fa_raw_send(&clients[client].raw, &message, NULL, 0), 0);
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
	fa_check_contains(log, "the device is lost, and this process ends: the GPU is lost");
	fa_check_contains(log, "ILLEGAL_ADDRESS");
	fa_check(!in_order == !strstr(log, "bye"));
}

/* One client is idle, one has many requests, and one loses the GPU. */
static void test_every_request_is_answered(void **state)
{
	struct fa_raw *raw = &clients[1].raw;
	bool lost[STREAMS + 1] = { false };
	unsigned int n_lost = 0;

	fa_test_cuda_hold(page, true);
	for (uint32_t stream = 1; stream <= STREAMS; ++stream)
		fa_raw_stream_create(raw, stream, 0);
	for (uint64_t value = 1; value <= EACH; ++value)
		for (uint32_t stream = 1; stream <= STREAMS; ++stream)
			submit(1, stream, value);
	/* Make the daemon read all requests: unread ones may end with the connection. */
	fa_raw_ping(raw);
	fa_check_eventually(fa_test_cuda_kernels(page) >= 1);
	fa_test_cuda_fail(page, "kernel:1=" FAULT);
	submit(2, 0, 1);
	fa_check_eventually(fa_test_cuda_failed(page));
	/* Those that have not begun take so long that they cannot all end before the fault is seen. */
	fa_test_cuda_kernel_us(page, 20000);
	fa_test_cuda_hold(page, false);
	fa_raw_wait_expect(&clients[2].raw, 0, 1, -ENODEV, "ILLEGAL_ADDRESS");

	/*
	 * Each request is answered once, in order, and the page agrees. Those before the faulty one
	 * may succeed.
	 */
	for (uint64_t value = 1; value <= EACH; ++value)
		for (uint32_t stream = 1; stream <= STREAMS; ++stream) {
			struct fa_raw_completion completion;

			fa_raw_wait(raw, stream, value, &completion);
			if (!completion.status && !lost[stream])
				continue;
			lost[stream] = true;
			fa_check_eq(completion.status, -ENODEV);
			fa_check_contains(completion.text, "ILLEGAL_ADDRESS");
			n_lost++;
		}
	fa_check(n_lost > 0);
	for (uint32_t stream = 1; stream <= STREAMS; ++stream)
		fa_check_eq(atomic_load(&raw->page[stream].completed), EACH);
	for (int i = 0; i < 3; ++i)
		fa_raw_expect_end(&clients[i].raw);
	expect_exit(true);
}

/* A registration that hangs in the driver keeps the daemon from exiting early. */
static void test_later_requests_are_refused(void **state)
{
	struct fa_wire_message message = fa_raw_register_message(2, BYTES);
	struct fa_test_accounts before, now;
	struct fa_raw_buffer buffer;

	fa_raw_buffer_make(&buffer, 2, BYTES);
	fa_test_accounts(&clients[2].raw, &before);
	fa_test_cuda_fail(page, "cuMemHostRegister:*=hang");
	message.fds = 1;
	fa_check_eq(fa_raw_send(&clients[0].raw, &message, &buffer.fd, 1), 0);
	fa_check_eventually(
		(fa_test_accounts(&clients[2].raw, &now), now.buffers == before.buffers + 1));
	fa_test_cuda_fail(page, "kernel:1=" FAULT);
	submit(2, 0, 1);
	fa_raw_wait_expect(&clients[2].raw, 0, 1, -ENODEV, "ILLEGAL_ADDRESS");
	fa_test_daemon_log_wait(&daemon_, "the device is lost");
	submit(1, 0, 1);
	submit(1, 60, 1);
	fa_raw_wait_expect(&clients[1].raw, 0, 1, -ENODEV, "lost: the GPU is lost");
	fa_raw_wait_expect(&clients[1].raw, 60, 1, -ENODEV, "lost: the GPU is lost");
	for (int i = 0; i < 3; ++i)
		fa_raw_expect_end(&clients[i].raw);
	fa_raw_buffer_free(NULL, &buffer);
	expect_exit(false);
}

/* Here the driver hangs in the call that waits for the work in flight. */
static void test_exits_though_driver_hangs(void **state)
{
	uint64_t begin_ns = fa_now_ns();

	fa_test_cuda_hold(page, true);
	submit(0, 0, 1);
	fa_check_eventually(fa_test_cuda_kernels(page) == 1);
	fa_test_cuda_fail(page, "cuStreamQuery:1=" FAULT ",cuStreamSynchronize:1=hang");
	fa_test_daemon_log_wait(&daemon_, "the device is lost");
	submit(1, 0, 1);
	for (int i = 0; i < 3; ++i)
		fa_raw_expect_end(&clients[i].raw);
	expect_exit(false);
	fa_check(fa_now_ns() - begin_ns < 60 * FA_NS_PER_SEC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_request_is_answered),
		cmocka_unit_test(test_later_requests_are_refused),
		cmocka_unit_test(test_exits_though_driver_hangs),
	};

	return fa_test_run_at_once("cuda-lost", tests, start, stop);
}
