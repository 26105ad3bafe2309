/* The process that connected to a socket, according to the kernel. Any thread. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#define FA_CGROUP_BYTES 512 /* including the NUL; longer paths are truncated */

struct fa_peer {
	pid_t pid; /* 0: outside this PID namespace */
	uid_t uid;
	gid_t gid;
	char cgroup[FA_CGROUP_BYTES]; /* "" if unknown */
};

/* -EMFILE, -ENFILE: no descriptor to read /proc; or an error of getsockopt(). */
int fa_peer_read(int socket, struct fa_peer *ret_peer);

/*
 * Opens a pidfd of the process that connected to @socket, whose peer is @peer; it need not be visible
 * in this PID namespace. -ESRCH: the process has ended. -ENOTSUP: the kernel cannot name it. -EMFILE,
 * -ENFILE: no descriptor.
 */
int fa_peer_open(int socket, const struct fa_peer *peer, int *ret_pidfd);

/*
 * Finds the path in /proc/PID/cgroup's text: in the unified hierarchy unless that is unused ("/"),
 * then systemd's, then the memory controller's; else "".
 */
void fa_cgroup_parse(const char *text, char *ret_path, size_t size);
