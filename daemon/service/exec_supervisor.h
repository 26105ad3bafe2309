/* `fad --supervise`: executes fad-supervise of the same directory, which starts fad. */
#pragma once

#include "common/error.h"

/* @argv: the daemon's. @ready_fd: the supervisor writes READY to it; -1: none. Returns only on
 * error. */
int fa_exec_supervisor(char *const *argv, int ready_fd, struct fa_error *error);
