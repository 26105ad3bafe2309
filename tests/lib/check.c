#include "tests/lib/check.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static pid_t test_pid;
static bool has_failed;

__attribute__((constructor)) void fa_test_is_own_process(void)
{
	test_pid = getpid();
}

/* cmocka prints a failing group teardown but returns 0 for it. */
__attribute__((destructor)) static void exit_failed(void)
{
	if (!has_failed || getpid() != test_pid)
		return;
	fflush(NULL);
	_exit(FA_TEST_EXIT);
}

void fa_test_fail(const char *file, int line, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "%s:%d: ", file, line);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	if (getpid() == test_pid && (pid_t)syscall(SYS_gettid) == test_pid) {
		has_failed = true;
		_fail(file, line);
	}
	_exit(FA_TEST_EXIT);
}

void fa_test_contains(const char *file, int line, const char *name, const char *text,
                      const char *part)
{
	if (!text || !strstr(text, part))
		fa_test_fail(file, line, "%s is \"%s\", which does not contain \"%s\"", name,
		             text ? text : "(null)", part);
}

uint64_t fa_test_patience_ns(void)
{
	const char *patience = getenv("FAD_TEST_PATIENCE_S");

	return (patience ? strtoull(patience, NULL, 10) : 60) * FA_NS_PER_SEC;
}

bool fa_test_long(void)
{
	const char *value = getenv("FAD_TEST_LONG");

	return value && !strcmp(value, "1");
}

bool fa_test_is_vulkan(void)
{
	const char *backend = getenv("FAD_TEST_BACKEND");

	return backend && !strcmp(backend, "vulkan");
}

bool fa_test_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
	__has_feature(memory_sanitizer)
	return true;
#else
	return false;
#endif
#else
	return false;
#endif
}

/* splitmix64 */
uint64_t fa_test_random(struct fa_test_random *random)
{
	uint64_t z = random->state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

uint64_t fa_test_random_below(struct fa_test_random *random, uint64_t bound)
{
	return fa_test_random(random) % bound;
}

pid_t fa_test_fork(int (*function)(void *userdata), void *userdata)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	fa_check(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(function(userdata));
	}
	return pid;
}

int fa_test_reap(pid_t pid)
{
	int status = -1;

	while (waitpid(pid, &status, 0) < 0)
		fa_check(errno == EINTR);
	return status;
}

int fa_test_count_fds(pid_t pid)
{
	/* Not /proc/getpid(): if /proc is of an outer PID namespace, that is another process. */
	char path[64] = "/proc/self/fd";
	struct dirent *entry;
	int n = 0;
	DIR *dir;

	if (pid)
		snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	if (!dir)
		return -1;
	while ((entry = readdir(dir)))
		n += entry->d_name[0] != '.';
	closedir(dir);
	return pid ? n : n - 1; /* without the directory's own descriptor */
}

uint64_t fa_test_peak_bytes(pid_t pid)
{
	char path[64], line[128];
	uint64_t kib = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	fa_check(file != NULL);
	while (fgets(line, sizeof(line), file) && sscanf(line, "VmPeak: %" SCNu64, &kib) != 1)
		;
	(void)fclose(file);
	fa_check(kib > 0);
	return kib << 10;
}
