/* The process behind a socket, as the kernel says. Any thread. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#define FA_CGROUP_BYTES 512 /* with the NUL; longer paths are cut off */

struct fa_peer {
	pid_t pid; /* 0: outside this PID namespace */
	uid_t uid;
	gid_t gid;
	char cgroup[FA_CGROUP_BYTES]; /* "" if unknown */
};

/* -EMFILE, -ENFILE: no descriptor to read /proc; or errors of getsockopt(). */
int fa_peer_read(int socket, struct fa_peer *ret_peer);

/*
 * Opens a pidfd of @socket's peer, which need not be visible in this PID namespace. -ESRCH: it has
 * ended. -ENOTSUP: the kernel cannot name it. -EMFILE, -ENFILE: no descriptor.
 */
int fa_peer_open(int socket, const struct fa_peer *peer, int *ret_pidfd);

/*
 * Finds the path in the text of /proc/PID/cgroup: of the unified hierarchy unless it is unused
 * ("/"), else systemd's, the memory controller's, or "".
 */
void fa_cgroup_parse(const char *text, char *ret_path, size_t size);
