/*
 * More rejected connections than may wait to be closed: no others are accepted meanwhile, those that are
 * connected are served, and all goes on when they are closed. The daemon is fad-slow-close.
 */
#include "daemon/account/fd_reaper.h"
#include "tests/lib/check.h"
#include "tests/lib/dir.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX FA_FD_REAPER_UNCHARGED_MAX
#define N (MAX + 40)
/* Within this time, a daemon that accepted more would have done so. */
#define QUIET_MS 300

static struct fa_scene scene;
static struct fa_raw second; /* beside the bystander: no more are admitted */
static char dir[48], gate[64];

static void shut(void)
{
	const int fd = open(gate, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	fa_check(fd >= 0);
	close(fd);
}

static int count_fds(void)
{
	struct fa_test_usage usage;

	fa_test_daemon_usage(&scene.daemon, &usage);
	return usage.fds;
}

static bool is_answered(struct fa_raw *raw, int timeout_ms)
{
	if (fa_raw_receive(raw, timeout_ms) != 1)
		return false;
	fa_check_eq(raw->message.reply.status, -EDQUOT);
	return true;
}

static void test_full(void **state)
{
	static struct fa_raw raws[N];
	const int before = count_fds();
	unsigned int n = 0;

	shut();
	/* Stopped, so that each has sent something when it is rejected. */
	fa_test_daemon_signal(&scene.daemon, SIGSTOP);
	for (int i = 0; i < N; ++i) {
		fa_raw_connect(&raws[i], scene.daemon.socket);
		fa_check_eq(fa_raw_send_bytes(&raws[i], "x", 1, NULL, 0, 0), 0);
	}
	fa_test_daemon_signal(&scene.daemon, SIGCONT);
	fa_test_daemon_log_wait(&scene.daemon, "rejected connections are not closed yet");
	for (int i = 0; i < MAX; ++i)
		fa_check(is_answered(&raws[i], (int)(fa_test_patience_ns() / FA_NS_PER_MS)));
	fa_test_quiet_ms(QUIET_MS);
	for (int i = MAX; i < N; ++i)
		n += is_answered(&raws[i], 0);
	fa_check_eq(n, 0);
	fa_scene_bystander(&scene);

	fa_check(!unlink(gate));
	for (int i = MAX; i < N; ++i)
		fa_check(is_answered(&raws[i], (int)(fa_test_patience_ns() / FA_NS_PER_MS)));
	fa_check_eventually(count_fds() <= before);
	for (int i = 0; i < N; ++i)
		fa_raw_close(&raws[i]);
	fa_raw_close(&second);
	fa_scene_check(&scene);
}

/* A daemon that ends does not wait for them. */
static void test_stopped(void **state)
{
	static struct fa_raw raws[N];

	shut();
	fa_test_daemon_signal(&scene.daemon, SIGSTOP);
	for (int i = 0; i < N; ++i) {
		fa_raw_connect(&raws[i], scene.daemon.socket);
		fa_check_eq(fa_raw_send_bytes(&raws[i], "x", 1, NULL, 0, 0), 0);
	}
	fa_test_daemon_signal(&scene.daemon, SIGCONT);
	fa_test_daemon_log_wait(&scene.daemon, "rejected connections are not closed yet");
	fa_scene_stop(&scene);
	fa_raw_close(&second);
	for (int i = 0; i < N; ++i)
		fa_raw_close(&raws[i]);
	fa_check(!unlink(gate));
}

static int start(void **state)
{
	fa_scene_start(&scene,
	               &(struct fa_test_daemon_options){ .config = "[limits]\nconnections = 2\n" });
	fa_raw_open(&second, scene.daemon.socket);
	return 0;
}

static int stop(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_full, start, stop),
		cmocka_unit_test_setup(test_stopped, start),
	};
	int failed;

	fa_test_dir_make(dir, sizeof(dir));
	snprintf(gate, sizeof(gate), "%s/gate", dir);
	setenv("FAD_TEST_CLOSE_GATE", gate, 1);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fa_test_dir_remove(dir);
	return failed;
}
