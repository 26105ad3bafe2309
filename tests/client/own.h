/*
 * Daemons of a program's own, as the library starts them, and what can be seen of them from
 * outside. They lie in a directory of the test's, XDG_RUNTIME_DIR.
 */
#pragma once

#include "client/faclient.h"

#include <stdbool.h>
#include <sys/types.h>

extern char own_runtime[64]; /* the directory: empty but for sockets of daemons */

int own_setup(void **state);
int own_teardown(void **state);

/* Orphans come to this process, so that their end can be seen. */
void own_adopt_orphans(bool adopt);

int own_count_entries(const char *path);

/* A client with a new daemon; @daemon and @config as in struct fa_options. */
struct fa_client *own_spawn(const char *daemon, const char *config);

/* It cannot be had, for @code and with a sentence that contains @part; nothing is left. */
void own_expect_failure(const char *daemon, const char *config, int code, const char *part);

/* A number of the daemon's status, in @object unless that is NULL. */
long long own_number(struct fa_client *client, const char *object, const char *name);
pid_t own_pid(struct fa_client *client);

/* A line of /proc/PID/status, after its name and colon; good until the next call. */
char *own_proc_status(pid_t pid, const char *name);

/* How many of its descriptors are files whose names contain @part. */
int own_count_open(pid_t pid, const char *part);

/* The daemon, an adopted orphan, has ended well and nothing is left of it. */
void own_check_end(pid_t pid);
