/*
 * An unusable GPU, on the tests' CUDA driver: the daemon logs that it falls back to the CPU, or
 * refuses to start if its configuration requires a GPU.
 */
#include "common/cleanup.h"
#include "cuda-client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define WARNING "warning: the CPU computes, though there seems to be a GPU: "
#define WHY "the CUDA driver does not start: CUDA_ERROR_UNKNOWN"

static struct fa_test_daemon daemon_;
static int notify_fd = -1;
static char ready[1024];

static void start(const char *fault, const char *option, const char *value)
{
	const char *const args[] = { option, value, NULL };

	setenv("FAD_TEST_CUDA_FAIL", fault, 1);
	fa_test_daemon_start(&daemon_, &(struct fa_test_daemon_options){ .args = args });
}

static int open_notify(void **state)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char name[64];
	int n = snprintf(name, sizeof(name), "@fad-test-passed-over-%ld", (long)getpid());

	memcpy(address.sun_path + 1, name + 1, (size_t)n - 1);
	notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	fa_check(!bind(notify_fd, (struct sockaddr *)&address,
	               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n)));
	setenv("NOTIFY_SOCKET", name, 1);
	return 0;
}

static int close_notify(void **state)
{
	fa_test_daemon_stop(&daemon_);
	close(notify_fd);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("FAD_TEST_CUDA_FAIL");
	unsetenv("FAD_TEST_CUDA_DEVICES");
	return 0;
}

static void read_ready(void)
{
	do {
		memset(ready, 0, sizeof(ready));
		fa_check(recv(notify_fd, ready, sizeof(ready) - 1, 0) >= 0);
	} while (!strstr(ready, "READY=1"));
}

static void check_told(bool told)
{
	_fa_cleanup_(fa_freep) char *log = fa_test_daemon_log(&daemon_);
	_fa_cleanup_(fa_freep) char *status = NULL;
	struct fa_raw raw;

	read_ready();
	fa_raw_open(&raw, daemon_.socket);
	status = fa_raw_status(&raw);
	fa_raw_close(&raw);
	fa_check_contains(status, "\"backend\":\"cpu\"");
	if (told) {
		fa_check_contains(log, WARNING WHY);
		fa_check_contains(status, "\"gpu_unused\":\"" WHY);
		fa_check_contains(ready, "\nSTATUS=Serving on ");
		fa_check_contains(ready, "; a GPU is not used: " WHY);
	} else {
		fa_check(!strstr(log, WARNING));
		fa_check(!strstr(status, "gpu_unused"));
		fa_check(!strstr(ready, "not used"));
	}
}

static void test_told(void **state)
{
	start("cuInit:1=999", NULL, NULL);
	check_told(true);
}

/* An MPS server that has just been started takes no clients yet. */
static void test_mps_starts(void **state)
{
	_fa_cleanup_(fa_freep) char *status = NULL;
	struct fa_raw raw;

	start("cuInit:1=807,cuInit:2=805,cuInit:3=807", NULL, NULL);
	read_ready();
	fa_raw_open(&raw, daemon_.socket);
	status = fa_raw_status(&raw);
	fa_raw_close(&raw);
	fa_check_contains(status, "\"backend\":\"cuda\"");
	fa_check(!strstr(status, "gpu_unused"));
}

static void test_no_gpu(void **state)
{
	/* The machine has a GPU, though not for the tests' CUDA driver. */
	if (access("/proc/driver/nvidia", F_OK) == 0)
		skip();
	setenv("FAD_TEST_CUDA_DEVICES", "0", 1);
	start("", NULL, NULL);
	check_told(false);
}

static void test_not_wanted(void **state)
{
	start("cuInit:1=999", "--backend", "cpu");
	check_told(false);
}

static void test_refused(void **state)
{
	static const char *const args[][3] = { { "--backend", "cuda" }, { "--device", "0" } };

	setenv("FAD_TEST_CUDA_FAIL", "cuInit:1=999", 1);
	for (int i = 0; i < 2; i++) {
		_fa_cleanup_(fa_freep) char *log = NULL;

		fa_check(!fa_test_daemon_try(&daemon_,
		                             &(struct fa_test_daemon_options){ .args = args[i] }));
		fa_test_daemon_wait_dead(&daemon_);
		log = fa_test_daemon_log(&daemon_);
		fa_check_contains(log, "error: " WHY);
		fa_check(fa_test_daemon_reap(&daemon_) != 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_told, open_notify, close_notify),
		cmocka_unit_test_setup_teardown(test_mps_starts, open_notify, close_notify),
		cmocka_unit_test_setup_teardown(test_no_gpu, open_notify, close_notify),
		cmocka_unit_test_setup_teardown(test_not_wanted, open_notify, close_notify),
		cmocka_unit_test_setup_teardown(test_refused, open_notify, close_notify),
	};

	return cmocka_run_group_tests_name("cuda-passed-over", tests, NULL, NULL);
}
