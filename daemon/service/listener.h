/*
 * The listening socket: opened at a path, or inherited. Loop thread. A lock file beside the path
 * admits one daemon; a dead one's socket is replaced.
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
	bool owns_path; /* remove the path at the end, if dev and ino match */
	bool owns_dir;  /* and the directory, if empty and named fad-… */
	dev_t dev;
	ino_t ino;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
};

#define FA_LISTENER_NULL ((struct fa_listener){ .fd = -1, .lock_fd = -1 })

/* Opens the configured socket. -EADDRINUSE: another daemon answers. */
int fa_listener_open(const struct fa_config *config, struct fa_error *error,
                     struct fa_listener *ret_listener);

/* @fd, a listening socket, is consumed on success. @unlink_path: sets owns_path and owns_dir.
 * -EINVAL: wrong kind. */
int fa_listener_take(int fd, bool unlink_path, struct fa_error *error,
                     struct fa_listener *ret_listener);

/* Takes a dead daemon's socket @fd, which is consumed on success, with its path. -ESTALE: no
 * path. */
int fa_listener_retake(int fd, struct fa_error *error, struct fa_listener *ret_listener);

/* Also removes the path. */
void fa_listener_close(struct fa_listener *listener);
