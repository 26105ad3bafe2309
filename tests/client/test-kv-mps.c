/*
 * Under load (kv-load.h), another client of the daemon's MPS server makes an illegal access again
 * and again, which hits every client of the server: the supervised daemon restarts, and only
 * sequences that were being written may be lost. The access is made by test-attention of the GPU
 * bundle. Skips (77) without that, a GPU, or MPS.
 */
#include "tests/client/kv-load.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/dir.h"

#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include <cmocka.h>

#define FAULTS 20

static char faulty[PATH_MAX + 32], control[PATH_MAX], pipes[64];

/* Returns the exit status of `path word`; -1 if it did not exit. */
static int run(const char *path, const char *word, const char *input)
{
	int status, in[2];
	pid_t pid;

	fa_check(!pipe(in));
	pid = fork();
	fa_check(pid >= 0);
	if (!pid) {
		dup2(in[0], STDIN_FILENO);
		close(in[0]);
		close(in[1]);
		execl(path, path, word, NULL);
		_exit(127);
	}
	close(in[0]);
	fa_check_eq(write(in[1], input, strlen(input)), strlen(input));
	close(in[1]);
	fa_check(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The MPS control program may be installed outside of PATH. */
static bool find_control(void)
{
	static const char name[] = "nvidia-cuda-mps-control";
	const char *path = getenv("PATH");
	char all[8192], *rest = all, *dir;

	snprintf(all, sizeof(all), "%s:/usr/bin:/usr/local/nvidia/bin:/usr/local/cuda/bin",
	         path ? path : "");
	while ((dir = strsep(&rest, ":"))) {
		snprintf(control, sizeof(control), "%s/%s", dir, name);
		if (*dir && !access(control, X_OK))
			return true;
	}
	return false;
}

static bool find_faulty(void)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n < 0)
		return false;
	self[n] = 0;
	snprintf(faulty, sizeof(faulty), "%s/test-attention", dirname(self));
	return !access(faulty, X_OK) && run(faulty, "--probe", "") == 0;
}

static void test_faults(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options options = {
		.args = args, .config = "[pool]\nbytes = 4G\nchunk_bytes = 2M\n"
	};
	struct fa_test_daemon supervisor;
	uint64_t longest_ns = 0;

	fa_test_daemon_start(&supervisor, &options);
	kv_load_begin(supervisor.socket, true);
	for (int i = 0; i < FAULTS; ++i) {
		uint64_t before = kv_load_progress(), died_ns;
		pid_t pid = fa_test_daemon_child(&supervisor);
		char said[64];

		fa_check_eventually(kv_load_progress() > before + 20);
		fa_check(pid > 0);
		/* The MPS server accepts clients again when all that it has ended are gone. */
		fa_check_eq(run(faulty, "--fault", ""), -1);
		died_ns = fa_now_ns();
		(void)fa_test_daemon_next_child(&supervisor, pid);
		snprintf(said, sizeof(said), "fad (%ld) exited with status %d", (long)pid,
		         EX_TEMPFAIL);
		fa_test_daemon_log_wait(&supervisor, said);
		before = kv_load_progress();
		fa_check_eventually(kv_load_progress() > before);
		if (fa_now_ns() - died_ns > longest_ns)
			longest_ns = fa_now_ns() - died_ns;
	}
	kv_load_end();
	print_message("%d faults, at most %" PRIu64 " ms without work\n", FAULTS,
	              (uint64_t)(longest_ns / FA_NS_PER_MS));
	fa_test_daemon_stop(&supervisor);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_faults),
	};
	int r;

	if (!find_faulty() || !find_control()) {
		printf("no GPU, no MPS, or not in the bundle\n");
		return 77;
	}
	fa_test_dir_make(pipes, sizeof(pipes));
	setenv("CUDA_MPS_PIPE_DIRECTORY", pipes, 1);
	setenv("CUDA_MPS_LOG_DIRECTORY", pipes, 1);
	setenv("FAD_TEST_BACKEND", "cuda", 1);
	if (run(control, "-d", "")) {
		printf("MPS cannot be started\n");
		fa_test_dir_remove(pipes);
		return 77;
	}
	r = cmocka_run_group_tests_name("kv-mps", tests, NULL, NULL);
	(void)run(control, NULL, "quit\n");
	fa_test_dir_remove(pipes);
	return r;
}
