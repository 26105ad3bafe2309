#include "common/memfd.h"

#include "common/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

/* Beyond RLIMIT_FSIZE the thread also gets SIGXFSZ, which must not end a process that embeds the
 * library: it is blocked here and consumed. */
static int set_size(int fd, uint64_t bytes)
{
	const struct timespec now = {};
	sigset_t xfsz, pending, before;
	int r, was_pending;

	sigemptyset(&xfsz);
	sigaddset(&xfsz, SIGXFSZ);
	(void)pthread_sigmask(SIG_BLOCK, &xfsz, &before);
	/* A signal that was pending before stays pending for the caller. */
	was_pending = !sigpending(&pending) && sigismember(&pending, SIGXFSZ) > 0;
	r = ftruncate(fd, (off_t)bytes) < 0 ? -errno : 0;
	if (r == -EFBIG && !was_pending)
		while (sigtimedwait(&xfsz, NULL, &now) < 0 && errno == EINTR)
			;
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return r;
}

int fa_memfd_new(const char *name, uint64_t bytes, int seal_all, int *ret_fd)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	int seals = seal_all ? F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL : F_SEAL_SHRINK;
	int r;

	if (bytes > INT64_MAX)
		return -EFBIG;
	/* The flag is new in Linux 6.3, and may be mandatory there. */
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	r = set_size(fd, bytes);
	if (r < 0)
		return r;
	if (fcntl(fd, F_ADD_SEALS, seals) < 0)
		return -errno;
	*ret_fd = fa_steal_fd(&fd);
	return 0;
}

const char *fa_memfd_explain(int code, char *ret_text, size_t size)
{
	struct rlimit limit;

	if (code == -EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
	    limit.rlim_cur != RLIM_INFINITY)
		(void)snprintf(ret_text, size,
		               "a file of this process may have %" PRIu64
		               " bytes at most (RLIMIT_FSIZE, ulimit -f)",
		               (uint64_t)limit.rlim_cur);
	else
		(void)snprintf(ret_text, size, "%s", strerrordesc_np(-code));
	return ret_text;
}

int fa_memfd_reopen_read_only(int fd, int *ret_fd)
{
	char path[32];
	int r;

	/* Other users cannot open it for writing. */
	if (fchmod(fd, S_IRUSR | S_IWUSR) < 0)
		return -errno;
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = open(path, O_RDONLY | O_CLOEXEC);
	if (r < 0)
		return -errno;
	*ret_fd = r;
	return 0;
}

void fa_memfd_discard(void *memory, uint64_t bytes)
{
	/* Else the pages are freed with the last mapping. */
	(void)madvise(memory, bytes, MADV_REMOVE);
}

int fa_memfd_check(int fd, uint64_t offset, uint64_t bytes, struct fa_error *error,
                   uint64_t *ret_size, int *ret_seals)
{
	struct statfs fs;
	struct stat st;
	uint64_t end;
	int seals;

	/* First the seals: an unsealed file could shrink after its size was read, and fstat() of a
	 * file that is no memfd may block (FUSE). */
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0)
		return fa_fail(
			error, -EINVAL,
			"the file descriptor is not a memfd; expected one from memfd_create()");
	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
		return fa_fail(error, -errno, "the memfd cannot be examined: %m");
	if (fs.f_type == HUGETLBFS_MAGIC)
		return fa_fail(
			error, -ENOTSUP,
			"the memfd is backed by huge pages (MFD_HUGETLB); expected plain pages");
	if (!(seals & F_SEAL_SHRINK))
		return fa_fail(error, -EINVAL,
		               "the memfd is not sealed against shrinking; expected F_SEAL_SHRINK");
	if (offset % (uint64_t)sysconf(_SC_PAGESIZE))
		return fa_fail(error, -EINVAL,
		               "offset %" PRIu64 " is no multiple of the page size %ld", offset,
		               sysconf(_SC_PAGESIZE));
	if (!bytes)
		return fa_fail(error, -EINVAL, "bytes is 0; expected at least 1");
	if (__builtin_add_overflow(offset, bytes, &end) || end > (uint64_t)st.st_size)
		return fa_fail(error, -EINVAL,
		               "offset %" PRIu64 " + %" PRIu64
		               " bytes lies outside the memfd, which has %" PRId64 " bytes",
		               offset, bytes, (int64_t)st.st_size);
	*ret_size = (uint64_t)st.st_size;
	*ret_seals = seals;
	return 0;
}
