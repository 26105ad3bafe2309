/*
 * The service manager that started this process: systemd or the supervisor (supervise/). Takes its
 * descriptors, and notifies it. The meson option `systemd` chooses service_manager_systemd.c or,
 * without a journal, service_manager_plain.c. Any thread, except fa_manager_listen_fds(), which
 * changes the environment.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FA_MANAGER_FDS_START 3

/* Sends assignments such as "READY=1", one a line. Returns 0 without a service manager. */
int fa_manager_notify(const char *text);
int fa_manager_notifyf(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* @fd stays the caller's. */
int fa_manager_notify_fd(const char *text, int fd);

/* Returns the number of descriptors passed, now close-on-exec, and their names, to be freed one by
 * one and together; or a negative errno. Takes them from the environment, also after an error. */
int fa_manager_listen_fds(char ***ret_names);

/* Returns 1 and the timeout if pings are expected, 0, or -EINVAL for unreadable variables. */
int fa_manager_watchdog(uint64_t *ret_timeout_us);

bool fa_manager_has_journal(void);
/* Fields are like "PRIORITY=6". -EOPNOTSUPP without libsystemd. */
int fa_manager_journal(const char *const *fields, size_t n);
