/* `fad --supervise`: replaces this process by fad-supervise, which lies beside fad and starts it. */
#pragma once

#include "common/error.h"

/*
 * @argv: of the daemon, whose first entry is its name. @ready_fd: where the supervisor writes READY;
 * -1: nowhere. Returns only with an error.
 */
int fa_exec_supervisor(char *const *argv, int ready_fd, struct fa_error *error);
