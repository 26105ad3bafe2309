/* Daemons that the library spawns, and checks of their processes from outside. */
#pragma once

#include "client/faclient.h"

#include <stdbool.h>
#include <sys/types.h>

extern char spawn_runtime[64]; /* XDG_RUNTIME_DIR; holds only sockets of daemons */

int spawn_setup(void **state);
int spawn_teardown(void **state);

/* This process becomes the reaper of orphans, so that it sees daemons exit. */
void spawn_adopt_orphans(bool adopt);

int own_count_entries(const char *path);

struct fa_client *spawn_client(const char *daemon, const char *config);

/* Spawning must fail with @code and a text that contains @part, and leave nothing behind. */
void spawn_expect_failure(const char *daemon, const char *config, int code, const char *part);

long long spawn_number(struct fa_client *client, const char *object, const char *name);
pid_t spawn_pid(struct fa_client *client);

/* Returns a field of /proc/PID/status; valid until the next call. */
char *spawn_proc_status(pid_t pid, const char *name);

int spawn_count_open(pid_t pid, const char *part);

/* The daemon, an adopted orphan, must exit with 0 and leave nothing behind. */
void spawn_check_end(pid_t pid);
