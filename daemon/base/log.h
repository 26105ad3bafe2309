/*
 * The log: to stderr, or to the journal with fields. Loop thread only; only main
 * and what answers to clients or signals write to it. What clients cause is
 * limited in rate, so that none can fill a disk.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* syslog's priorities */
enum fa_log_level {
	FA_LOG_ERROR = 3,
	FA_LOG_WARNING = 4,
	FA_LOG_INFO = 6,
	FA_LOG_DEBUG = 7,
};

enum fa_log_target {
	FA_LOG_AUTO, /* the journal if stderr leads there, else stderr */
	FA_LOG_STDERR,
	FA_LOG_JOURNAL,
};

/* Until it is called: to stderr, info and worse. */
void fa_log_set(enum fa_log_target target, enum fa_log_level level);

/* Where @target writes in this process: FA_LOG_STDERR or FA_LOG_JOURNAL. */
enum fa_log_target fa_log_resolve(enum fa_log_target target);

void fa_log(enum fa_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whom a line is about. */
struct fa_log_subject {
	uint64_t session;
	uid_t uid;
	pid_t pid;
	const char *cgroup; /* may be NULL */
};

/* About something that a client did. */
void fa_log_about(const struct fa_log_subject *subject, enum fa_log_level level, const char *format,
                  ...) __attribute__((format(printf, 3, 4)));
