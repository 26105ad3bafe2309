/*
 * The listening socket: opened at a path, or inherited from the client that spawned this daemon or
 * from systemd. Loop thread.
 *
 * A lock file beside the path makes sure that only one of two daemons takes it; a socket that a
 * dead daemon left is replaced.
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
	bool owns_path; /* the path is removed at the end, if dev and ino still match */
	bool owns_dir;  /* and its directory, if it is empty and named fad-… */
	dev_t dev;
	ino_t ino;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
};

#define FA_LISTENER_NULL ((struct fa_listener){ .fd = -1, .lock_fd = -1 })

/* Opens the socket at config.socket or the default path, with mode and group. -EADDRINUSE if a
 * daemon answers there. */
int fa_listener_open(const struct fa_config *config, struct fa_error *error,
                     struct fa_listener *ret_listener);

/* Takes a listening socket; consumes @fd on success. -EINVAL if it is of the wrong kind.
 * @unlink_path sets owns_path and owns_dir. */
int fa_listener_take(int fd, bool unlink_path, struct fa_error *error,
                     struct fa_listener *ret_listener);

/* Takes a socket that fa_listener_open() opened in a daemon that has died, with its path. Consumes
 * @fd on success. -ESTALE: the path is gone. */
int fa_listener_retake(int fd, struct fa_error *error, struct fa_listener *ret_listener);

/* Stops listening and removes the path. */
void fa_listener_close(struct fa_listener *listener);
