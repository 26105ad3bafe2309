/* Starts a daemon. Takes no lock and needs no client. */
#pragma once

#include "common/error.h"

#include <stdint.h>
#include <sys/un.h>

#define FA_SOCKET_PATH_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)

/* Starts a daemon that listens on @path (FA_SOCKET_PATH_BYTES) or, if it is empty, on a socket in a
 * new private directory, whose path is stored there. @config NULL: the defaults, not the system's
 * configuration. *ret_stderr is for fa_spawn_explain(); the caller closes it once the daemon
 * serves. -ETIMEDOUT: the program was not executed until @deadline_ns. */
int fa_spawn(const char *daemon, const char *config, char *path, uint64_t deadline_ns,
             struct fa_error *error, int *ret_stderr);
/* Adds the last line of a daemon that exited or does not answer to @error (with @code, of
 * connecting). Waits for its exit until @deadline_ns. Returns @code, or -ECONNREFUSED if it
 * exited. */
int fa_spawn_explain(int stderr_fd, int code, uint64_t deadline_ns, struct fa_error *error);
void fa_spawn_clean(const char *path);
