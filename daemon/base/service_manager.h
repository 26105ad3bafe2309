/*
 * The service manager that started this process: systemd or the supervisor (supervise/). Takes the
 * descriptors it passed, and sends it notifications. One of two files implements it, by the meson
 * option `systemd`: service_manager_systemd.c calls libsystemd; service_manager_plain.c speaks the
 * same protocol without it, but has no journal. Any thread, except fa_manager_listen_fds(), which
 * changes the environment.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first descriptor that the service manager passes. */
#define FA_MANAGER_FDS_START 3

/* Sends assignments such as "READY=1", one a line. Returns 0 if there is no service manager. */
int fa_manager_notify(const char *text);
int fa_manager_notifyf(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Sends @fd along. It stays the caller's. */
int fa_manager_notify_fd(const char *text, int fd);

/* Returns the number of descriptors that this process was passed, close-on-exec from now on, and
 * their names, to be freed one by one and together; or a negative errno. Takes them from the
 * environment, also after an error. */
int fa_manager_listen_fds(char ***ret_names);

/* Returns 1 and the timeout if the service manager expects pings, 0, or -EINVAL for variables that
 * cannot be read. */
int fa_manager_watchdog(uint64_t *ret_timeout_us);

/* Returns false if fad was built without libsystemd, as it then cannot write to the journal. */
bool fa_manager_has_journal(void);
/* Sends one entry of fields such as "PRIORITY=6". Returns -EOPNOTSUPP without libsystemd. */
int fa_manager_journal(const char *const *fields, size_t n);
