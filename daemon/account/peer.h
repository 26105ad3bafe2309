/*
 * Who is at the other end of a socket, as the kernel tells: process, user and
 * cgroup when it connected. Nothing of it comes from the client's bytes.
 */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#define FA_CGROUP_BYTES 512 /* with the zero; a longer path is cut */

struct fa_peer {
	pid_t pid; /* 0: outside of this pid namespace */
	uid_t uid;
	gid_t gid;
	char cgroup[FA_CGROUP_BYTES]; /* "" if it could not be found out for certain */
};

/* 0; -EMFILE, -ENFILE: it takes descriptors to find out; or what getsockopt() says. */
int fa_peer_read(int socket, struct fa_peer *ret_peer);

/*
 * Finds the path in the text of /proc/PID/cgroup: that of the unified hierarchy,
 * unless that is unused ("/"), then systemd's, then the memory controller's. "" if
 * there is none.
 */
void fa_cgroup_parse(const char *text, char *ret_path, size_t size);
