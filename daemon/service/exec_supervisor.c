#include "daemon/service/exec_supervisor.h"

#include "common/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "fad-supervise"

static int find_supervisor(char *ret_path, size_t size, struct fa_error *error)
{
	ssize_t n = readlink("/proc/self/exe", ret_path, size);
	char *slash;

	if (n < 0)
		return fa_fail(error, -errno, "/proc/self/exe cannot be read: %m");
	slash = memrchr(ret_path, '/', (size_t)n);
	if (!slash || (size_t)(slash - ret_path) + sizeof("/" PROGRAM) > size)
		return fa_fail(error, -ENAMETOOLONG, "the path of fad is too long");
	strcpy(slash, "/" PROGRAM);
	return 0;
}

int fa_exec_supervisor(char *const *argv, int ready_fd, struct fa_error *error)
{
	_fa_cleanup_(fa_freep) char **args = NULL;
	_fa_cleanup_(fa_close_fdp) int exe_fd = -1;
	char exe[16], ready[16], path[PATH_MAX];
	size_t n_argv = 0, n = 0;
	int r;

	r = find_supervisor(path, sizeof(path), error);
	if (r < 0)
		return r;
	/* Restarts run this program even if the file is replaced. */
	exe_fd = open("/proc/self/exe", O_PATH);
	if (exe_fd < 0)
		return fa_fail(error, -errno, "/proc/self/exe cannot be opened: %m");
	while (argv[n_argv])
		++n_argv;
	args = calloc(n_argv + 7, sizeof(*args));
	if (!args)
		return fa_fail(error, -ENOMEM, "no memory to start " PROGRAM);
	snprintf(exe, sizeof(exe), "%d", exe_fd);
	snprintf(ready, sizeof(ready), "%d", ready_fd);
	args[n++] = (char *)PROGRAM;
	args[n++] = (char *)"--exe-fd";
	args[n++] = exe;
	if (ready_fd >= 0) {
		args[n++] = (char *)"--ready-fd";
		args[n++] = ready;
	}
	args[n++] = (char *)"--";
	memcpy(args + n, argv, n_argv * sizeof(*args));
	execv(path, args);
	r = -errno;
	return fa_fail(error, r, "%.200s cannot be started: %s", path, strerror(-r));
}
