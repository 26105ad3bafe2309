#include "daemon/account/peer.h"

#include "common/cleanup.h"
#include "common/text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define PROC_BYTES 16384 /* of /proc/PID/cgroup; the rest is cut off */

void fa_cgroup_parse(const char *text, char *ret_path, size_t size)
{
	static const char deleted[] = " (deleted)";
	const char *best = NULL;
	size_t best_length = 0;
	int best_rank = 0;

	/* Lines are ID:CONTROLLERS:PATH; PATH may contain colons. */
	while (*text) {
		const char *end = strchrnul(text, '\n');
		const char *list = memchr(text, ':', (size_t)(end - text));
		const char *path = list ? memchr(list + 1, ':', (size_t)(end - list - 1)) : NULL;

		if (path) {
			size_t list_length = (size_t)(path - list - 1);
			size_t length = (size_t)(end - path - 1);
			bool root = length <= 1;
			int rank = 1;

			if (!list_length && !strncmp(text, "0:", 2))
				rank = root ? 2 : 5;
			else if (fa_text_list_has(list + 1, list_length, "name=systemd"))
				rank = root ? 2 : 4;
			else if (fa_text_list_has(list + 1, list_length, "memory"))
				rank = root ? 2 : 3;
			if (path[1] == '/' && rank > best_rank) {
				best = path + 1;
				best_length = length;
				best_rank = rank;
			}
		}
		text = *end ? end + 1 : end;
	}

	if (best_length > sizeof(deleted) - 1 &&
	    !memcmp(best + best_length - (sizeof(deleted) - 1), deleted, sizeof(deleted) - 1))
		best_length -= sizeof(deleted) - 1;
	if (best_length >= size)
		best_length = size - 1;
	if (best)
		memcpy(ret_path, best, best_length);
	ret_path[best_length] = 0;
}

static int read_file(int dir, const char *name, char *text, size_t size)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	size_t length = 0;

	fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (length < size - 1) {
		ssize_t n = read(fd, text + length, size - 1 - length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		length += (size_t)n;
	}
	text[length] = 0;
	return 0;
}

/* Needs Linux 6.5. */
static int peer_pidfd(int socket, int *ret_pidfd)
{
	socklen_t length = sizeof(*ret_pidfd);

	return getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, ret_pidfd, &length) < 0 ? -errno : 0;
}

static bool has_ended(int pidfd)
{
	struct pollfd pollfd = { .fd = pidfd, .events = POLLIN };

	return poll(&pollfd, 1, 0) != 0;
}

/*
 * The pid may have been reused: checks afterwards, by a pidfd (Linux 6.5), that the process still
 * runs, or that it has the same uid.
 */
static int read_cgroup(int socket, struct fa_peer *peer)
{
	_fa_cleanup_(fa_close_fdp) int pidfd = -1;
	_fa_cleanup_(fa_close_fdp) int dir = -1;
	char path[32], text[PROC_BYTES];
	struct stat st;
	bool have_pidfd;
	int r;

	if (peer->pid <= 0)
		return 0;
	r = peer_pidfd(socket, &pidfd);
	have_pidfd = r == 0;
	if (r < 0 && r != -ENOPROTOOPT)
		return r;

	snprintf(path, sizeof(path), "/proc/%d", (int)peer->pid);
	dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	r = read_file(dir, "cgroup", text, sizeof(text));
	if (r < 0)
		return r;
	if (have_pidfd) {
		if (has_ended(pidfd))
			return 0;
	} else if (fstat(dir, &st) < 0 || (st.st_uid != peer->uid && st.st_uid != 0)) {
		return 0;
	}
	fa_cgroup_parse(text, peer->cgroup, sizeof(peer->cgroup));
	return 0;
}

/* Without SO_PEERPIDFD the pid may have been reused: the process must at least be the user's. */
static int open_pid(const struct fa_peer *peer, int *ret_pidfd)
{
	_fa_cleanup_(fa_close_fdp) int pidfd = -1;
	char path[32];
	struct stat st;

	if (peer->pid <= 0)
		return -ENOTSUP;
	pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
	if (pidfd < 0)
		return -errno;
	snprintf(path, sizeof(path), "/proc/%d", (int)peer->pid);
	if (stat(path, &st) < 0 || (st.st_uid != peer->uid && st.st_uid != 0))
		return -ENOTSUP;
	*ret_pidfd = fa_steal_fd(&pidfd);
	return 0;
}

int fa_peer_open(int socket, const struct fa_peer *peer, int *ret_pidfd)
{
	int r = peer_pidfd(socket, ret_pidfd);

	if (r == -ENOPROTOOPT)
		r = open_pid(peer, ret_pidfd);
	/* Kernels before 6.16 say this of a process that was reaped. */
	if (r == -EINVAL)
		r = -ESRCH;
	if (r == 0 || r == -ESRCH || r == -EMFILE || r == -ENFILE || r == -ENOMEM)
		return r;
	return -ENOTSUP;
}

int fa_peer_read(int socket, struct fa_peer *ret_peer)
{
	struct ucred ucred;
	socklen_t length = sizeof(ucred);
	int r;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &ucred, &length) < 0)
		return -errno;
	*ret_peer = (struct fa_peer){ .pid = ucred.pid, .uid = ucred.uid, .gid = ucred.gid };
	r = read_cgroup(socket, ret_peer);
	/* A process that has ended has no cgroup. A lack of descriptors must not change the
	 * account. */
	return r == -EMFILE || r == -ENFILE ? r : 0;
}
