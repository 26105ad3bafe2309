/* Directories and sockets that the program did not name must be this user's or root's. After su or
 * sudo -E they could be another user's. */
#pragma once

#include "common/error.h"

#define FA_SYSTEM_SOCKET "/run/fad/fad.sock"

/* $XDG_RUNTIME_DIR, or NULL if it is not set. -EACCES: it is another user's. */
int fa_trusted_runtime_dir(struct fa_error *error, const char **ret_dir);

/* This user or root must listen at the other end; at FA_SYSTEM_SOCKET also the directory's owner,
 * the service's user, may. -EACCES. */
int fa_trusted_peer(int socket, const char *path, struct fa_error *error);
