#include "tests/lib/dir.h"

#include "tests/lib/check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A child reads paths from a pipe, and removes them when all writers have closed it. */
static const char script[] = "while read -r path; do set -- \"$@\" \"$path\"; done\n"
			     "exec rm -rf -- \"$@\"";

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int keeper = -1;

/*
 * Double fork and setsid(): the child survives a kill of the test's group, and is not the test's
 * child. It holds no other descriptor, as somebody may wait for the end of the test's output.
 */
static void keep(int input)
{
	int null = open("/dev/null", O_RDWR);

	pid_t pid = fork();

	if (pid)
		_exit(pid < 0 ? FA_TEST_EXIT : 0);
	if (setsid() < 0 || dup2(input, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 ||
	    dup2(null, STDERR_FILENO) < 0)
		_exit(FA_TEST_EXIT);
	execl("/bin/sh", "sh", "-c", script, "sh", NULL);
	_exit(FA_TEST_EXIT);
}

static void start_keeper(void)
{
	int fds[2];
	pid_t pid;

	fa_check(!pipe2(fds, O_CLOEXEC));
	fflush(NULL);
	pid = fork();
	fa_check(pid >= 0);
	if (!pid)
		keep(fds[0]);
	fa_check_eq(fa_test_reap(pid), 0);
	close(fds[0]);
	keeper = fds[1];
}

void fa_test_dir_make(char *path, size_t size)
{
	char line[32];
	int length;

	pthread_once(&once, start_keeper);
	fa_check(size >= 24);
	strcpy(path, "/tmp/fad-test-XXXXXX");
	fa_check(mkdtemp(path));
	length = snprintf(line, sizeof(line), "%s\n", path);
	fa_check_eq(write(keeper, line, (size_t)length), length);
}

void fa_test_dir_remove(const char *path)
{
	char command[64];

	if (!*path)
		return;
	fa_check(!strncmp(path, "/tmp/fad-test-", 14));
	snprintf(command, sizeof(command), "rm -rf -- '%s'", path);
	if (system(command) != 0)
		fprintf(stderr, "%s was not removed\n", path);
}
