#include "bench/lib/mps.h"

#include "common/clock.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTROL "nvidia-cuda-mps-control"
/* The time in which the control daemon's socket must appear. */
#define START_NS (5 * FA_NS_PER_SEC)

static int set_directories(const char *directory)
{
	if (setenv("CUDA_MPS_PIPE_DIRECTORY", directory, 1) < 0 ||
	    setenv("CUDA_MPS_LOG_DIRECTORY", directory, 1) < 0)
		return -ENOMEM;
	return 0;
}

static void remove_directory(const char *directory)
{
	DIR *entries = opendir(directory);
	struct dirent *entry;

	while (entries && (entry = readdir(entries)))
		(void)unlinkat(dirfd(entries), entry->d_name, 0);
	if (entries)
		closedir(entries);
	(void)rmdir(directory);
}

int fa_mps_start(struct fa_mps *ret_mps)
{
	struct fa_mps mps = { .directory = "/tmp/fabench-mps.XXXXXX" };
	uint64_t until_ns = fa_now_ns() + START_NS;
	char path[64];
	int r;

	if (!mkdtemp(mps.directory))
		return -errno;
	r = set_directories(mps.directory);
	if (r == 0 && system(CONTROL " -d") != 0)
		r = -ENOENT;
	snprintf(path, sizeof(path), "%s/control", mps.directory);
	while (r == 0 && access(path, F_OK) < 0) {
		if (fa_now_ns() > until_ns)
			r = -ETIMEDOUT;
		usleep(10000);
	}
	if (r < 0) {
		(void)unsetenv("CUDA_MPS_PIPE_DIRECTORY");
		(void)unsetenv("CUDA_MPS_LOG_DIRECTORY");
		remove_directory(mps.directory);
		return r;
	}
	*ret_mps = mps;
	return 0;
}

void fa_mps_stop(struct fa_mps *mps)
{
	FILE *control;

	if (!mps->directory[0])
		return;
	control = popen(CONTROL " > /dev/null", "w");
	if (control) {
		fputs("quit\n", control);
		pclose(control);
	}
	remove_directory(mps->directory);
	mps->directory[0] = '\0';
}
