#include "tests/lib/at_once.h"

#include "tests/lib/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Status of a group's setup if there is nothing to test. */
#define ABSENT 77

struct run {
	pid_t pid;
	int output; /* a memfd with the test's output */
};

static void start(struct run *run, const char *name, const struct CMUnitTest *tests, size_t n,
                  size_t i, CMFixtureFunction setup, CMFixtureFunction teardown)
{
	run->output = memfd_create("output", MFD_CLOEXEC);
	fa_check(run->output >= 0);
	fflush(NULL);
	run->pid = fork();
	fa_check(run->pid >= 0);
	if (run->pid != 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(run->output, STDOUT_FILENO);
	dup2(run->output, STDERR_FILENO);
	fa_test_is_own_process();
	cmocka_set_test_filter(tests[i].name);
	exit(_cmocka_run_group_tests(name, tests, n, setup, teardown));
}

/* The test's exit status (0: passed or skipped), or -1. */
static int finish(const struct run *run, const char *name)
{
	const int status = fa_test_reap(run->pid);
	char bytes[4096];
	ssize_t length;
	off_t at = 0;

	while ((length = pread(run->output, bytes, sizeof(bytes), at)) > 0) {
		fwrite(bytes, 1, (size_t)length, stdout);
		at += length;
	}
	close(run->output);
	if (WIFSIGNALED(status))
		printf("%s: ended by signal %d\n", name, WTERMSIG(status));
	else if (WEXITSTATUS(status) != 0)
		printf("%s: ended with status %d\n", name, WEXITSTATUS(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int fa_test_run_at_once_n(const char *name, const struct CMUnitTest *tests, size_t n,
                          CMFixtureFunction setup, CMFixtureFunction teardown)
{
	struct run *runs;
	size_t absent = 0;
	int failed = 0;

	if (getenv("FAD_TEST_BACKEND"))
		return _cmocka_run_group_tests(name, tests, n, setup, teardown);
	runs = calloc(n, sizeof(*runs));
	fa_check(runs != NULL);
	for (size_t i = 0; i < n; i++)
		start(&runs[i], name, tests, n, i, setup, teardown);
	for (size_t i = 0; i < n; i++) {
		const int status = finish(&runs[i], tests[i].name);

		failed += status != 0;
		absent += status == ABSENT;
	}
	free(runs);
	if (absent == n)
		exit(ABSENT);
	return failed;
}
