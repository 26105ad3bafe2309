/* Starting a daemon process. Takes no lock and needs no client. */
#pragma once

#include "common/error.h"

#include <stdint.h>
#include <sys/un.h>

#define FA_SOCKET_PATH_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)

/*
 * Starts a daemon that listens on @path (FA_SOCKET_PATH_BYTES). If @path is empty, the socket is
 * made in a new private directory and its path is stored there. @config NULL: the daemon runs with
 * the defaults and does not read the system's configuration. *ret_stderr is the read end of the
 * daemon's stderr, for fa_spawn_explain(); the caller closes it once the daemon serves.
 */
int fa_spawn(const char *daemon, const char *config, char *path, struct fa_error *error,
             int *ret_stderr);
/*
 * Adds to @error (with @code, from connecting) the last line that the daemon wrote, if it exited or
 * does not answer. Waits for its exit until @deadline_ns at most. Returns @code, or -ECONNREFUSED
 * if the daemon exited.
 */
int fa_spawn_explain(int stderr_fd, int code, uint64_t deadline_ns, struct fa_error *error);
/* Removes the socket and directory of a spawned daemon that died without doing so. */
void fa_spawn_clean(const char *path);
