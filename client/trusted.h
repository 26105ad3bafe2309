/* Which directories and sockets the library uses that the program did not name: those of this user
 * and of root. They could be another user's after su or sudo -E. */
#pragma once

#include "common/error.h"

#define FA_SYSTEM_SOCKET "/run/fad/fad.sock"

/* Returns 0 and $XDG_RUNTIME_DIR, or NULL if it is not set. -EACCES: it is another user's. */
int fa_trusted_runtime_dir(struct fa_error *error, const char **ret_dir);

/* Checks that this user or root listens at the other end; at FA_SYSTEM_SOCKET it may also be the
 * owner of the directory, which is the service's user. -EACCES. */
int fa_trusted_peer(int socket, const char *path, struct fa_error *error);
