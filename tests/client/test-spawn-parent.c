/*
 * What a program notices of the daemons that the library spawns: no child and no signal; as PID 1,
 * which adopts orphans, no zombie that stays. And spawning where descriptors cannot be closed with
 * close_range().
 */
#include "client/faclient.h"
#include "tests/client/spawn.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SPAWNS 5

static volatile sig_atomic_t child_signals;

static void count_signal(int signal)
{
	++child_signals;
}

static void watch_children(void)
{
	const struct sigaction action = { .sa_handler = count_signal };

	child_signals = 0;
	fa_check(!sigaction(SIGCHLD, &action, NULL));
}

/* Counts on every kind of child, including those that only __WALL shows. */
static bool has_children(void)
{
	siginfo_t info;

	return !waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) || errno != ECHILD;
}

static void spawn_once(void)
{
	struct fa_client *client = spawn_client(NULL, NULL);

	fa_check_eq(fa_ping(client), 0);
	fa_disconnect(client);
	fa_check_eventually(own_count_entries(spawn_runtime) == 0);
}

static void test_unnoticed(void **state)
{
	int before = fa_test_count_fds(0);

	watch_children();
	for (int i = 0; i < SPAWNS; ++i)
		spawn_once();
	spawn_expect_failure("/bin/true", NULL, -ECONNREFUSED, "ended at once");
	fa_check_eq(child_signals, 0);
	fa_check(!has_children());
	fa_check_eq(fa_test_count_fds(0), before);
	fa_check(!sigaction(SIGCHLD, &(struct sigaction){ .sa_handler = SIG_DFL }, NULL));
}

static bool is_reaped(void)
{
	fa_disconnect(NULL);
	return !has_children();
}

/* Runs as PID 1. Only the end of a daemon is noticed, by one signal. */
static int run_as_init(void *userdata)
{
	int before = fa_test_count_fds(0);

	fa_check_eq(getpid(), 1);
	watch_children();
	for (int i = 0; i < SPAWNS; ++i)
		spawn_once();
	fa_check_eventually(is_reaped());
	fa_check(child_signals <= SPAWNS);
	fa_check_eq(fa_test_count_fds(0), before);
	return 0;
}

static int run_in_namespace(void *userdata)
{
	int status;

	if (unshare(CLONE_NEWPID) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) < 0) {
		print_message("skipped: no PID namespace: errno %d\n", errno);
		return 77;
	}
	status = fa_test_reap(fa_test_fork(run_as_init, NULL));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void test_init(void **state)
{
	int status = fa_test_reap(fa_test_fork(run_in_namespace, NULL));

	fa_check(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip();
	fa_check_eq(WEXITSTATUS(status), 0);
}

#define KILL_FD 4096

/* close_range() fails, and closing one descriptor after another up to the limit kills the
 * process. */
static void forbid_closing(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, KILL_FD, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog filter = { sizeof(code) / sizeof(*code), code };

	fa_check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	fa_check(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
}

static int run_without_close_range(void *userdata)
{
	int inherited = memfd_create("never-inherit-this", 0);
	struct fa_client *client;
	struct rlimit limit;

	fa_check(!getrlimit(RLIMIT_NOFILE, &limit));
	/* 2^30 where the kernel allows it (fs.nr_open). */
	limit.rlim_cur = limit.rlim_max = 1 << 30;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0) {
		fa_check(!getrlimit(RLIMIT_NOFILE, &limit));
		limit.rlim_cur = limit.rlim_max;
		fa_check(!setrlimit(RLIMIT_NOFILE, &limit));
	}
	fa_check(limit.rlim_cur > KILL_FD);
	fa_check(inherited >= 0 && dup2(inherited, 900) == 900);
	/* More than one read of a directory lists. */
	for (int i = 0; i < 300; ++i)
		fa_check(dup(inherited) >= 0);
	forbid_closing();
	client = spawn_client(NULL, NULL);
	fa_check(spawn_count_open(getpid(), "never-inherit-this") >= 302);
	fa_check_eq(spawn_count_open(spawn_pid(client), "never-inherit-this"), 0);
	fa_disconnect(client);
	fa_check_eventually(own_count_entries(spawn_runtime) == 0);
	return 0;
}

static void test_no_close_range(void **state)
{
	int status = fa_test_reap(fa_test_fork(run_without_close_range, NULL));

	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_unnoticed),
		                            cmocka_unit_test(test_init),
		                            cmocka_unit_test(test_no_close_range) };

	return cmocka_run_group_tests_name("spawn-parent", tests, spawn_setup, spawn_teardown);
}
