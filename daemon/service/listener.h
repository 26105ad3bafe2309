/*
 * The listening socket: made at a path, or handed over by a client that spawned
 * this daemon or by systemd. Loop thread.
 *
 * A path is held through a lock file beside it, so that of two daemons that start
 * at once only one takes it; what a daemon that died left there is replaced.
 */
#pragma once

#include "common/error.h"
#include "daemon/account/config.h"

#include <stdbool.h>
#include <sys/types.h>
#include <sys/un.h>

struct fa_listener {
	int fd;
	int lock_fd;
	bool owns_path; /* removed at the end, if it is still ours */
	bool owns_dir;  /* and its directory, if that is called fad-… and empty */
	dev_t dev;
	ino_t ino;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
};

#define FA_LISTENER_NULL ((struct fa_listener){ .fd = -1, .lock_fd = -1 })

/*
 * Makes the socket at config.socket, or at the usual place, with mode and group,
 * and listens. -EADDRINUSE if a daemon answers there.
 */
int fa_listener_open(const struct fa_config *config, struct fa_error *error,
                     struct fa_listener *ret_listener);

/*
 * Takes a socket that listens already; consumes @fd if it succeeds. -EINVAL if it
 * is none of the right kind. If @unlink_path, its path (and a directory around it
 * that is called fad-…, if it is then empty) is removed at the end.
 */
int fa_listener_take(int fd, bool unlink_path, struct fa_error *error,
                     struct fa_listener *ret_listener);

/*
 * Takes one back that fa_listener_open() made in a process that died since: its path is
 * ours again. Consumes @fd if it succeeds. -ESTALE: the path has gone.
 */
int fa_listener_retake(int fd, struct fa_error *error, struct fa_listener *ret_listener);

/* Stops listening and removes the path. */
void fa_listener_close(struct fa_listener *listener);
