/*
 * The log: stderr, or the journal with fields. Loop thread only. Lines that clients cause are
 * rate-limited, so that none can fill a disk.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* The values are syslog's. */
enum fa_log_level {
	FA_LOG_ERROR = 3,
	FA_LOG_WARNING = 4,
	FA_LOG_INFO = 6,
	FA_LOG_DEBUG = 7,
};

enum fa_log_target {
	FA_LOG_AUTO, /* the journal if it reads stderr, else stderr */
	FA_LOG_STDERR,
	FA_LOG_JOURNAL,
};

/* Lines on stderr then begin with the time in UTC, unless the journal reads them. Before that a
 * line is a command's message. */
void fa_log_set(enum fa_log_target target, enum fa_log_level level);

enum fa_log_target fa_log_resolve(enum fa_log_target target);

void fa_log(enum fa_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct fa_log_subject {
	uint64_t session;
	uid_t uid;
	pid_t pid;
	const char *cgroup; /* may be NULL */
};

/* For what a client caused: rate-limited, except at the debug level. */
void fa_log_about(const struct fa_log_subject *subject, enum fa_log_level level, const char *format,
                  ...) __attribute__((format(printf, 3, 4)));
