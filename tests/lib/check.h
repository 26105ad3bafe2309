/*
 * Checks for helpers and forked processes. In the main thread of the test's own process, a failed
 * check fails the running cmocka test. In a forked client or another thread, cmocka cannot end the
 * test: there the check prints its message and ends the process with FA_TEST_EXIT.
 */
#pragma once

#include "common/clock.h"
#include "tests/lib/pause.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Makes the calling child "the test's own process", for children that run cmocka tests. */
void fa_test_is_own_process(void);

/* The exit status of a process after a failed check. */
#define FA_TEST_EXIT 99

void fa_test_fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#define fa_check(condition)                                                                        \
	do {                                                                                       \
		if (!(condition))                                                                  \
			fa_test_fail(__FILE__, __LINE__, "not so: %s", #condition);                \
	} while (0)

/* Compares as int64_t and prints both sides. */
#define fa_check_eq(a, b)                                                                          \
	do {                                                                                       \
		long long _a = (long long)(a), _b = (long long)(b);                                \
		if (_a != _b)                                                                      \
			fa_test_fail(__FILE__, __LINE__, "%s is %lld, but %s is %lld", #a, _a, #b, \
			             _b);                                                          \
	} while (0)

#define fa_check_contains(text, part) fa_test_contains(__FILE__, __LINE__, #text, (text), (part))

void fa_test_contains(const char *file, int line, const char *name, const char *text,
                      const char *part);

/*
 * Returns the time-out of every wait: enough for two slow cores under sanitizers.
 * FAD_TEST_PATIENCE_S overrides it.
 */
uint64_t fa_test_patience_ns(void);

/* Evaluates @condition with pauses until it holds; fails after the time-out. */
#define fa_check_eventually(condition)                                                             \
	do {                                                                                       \
		uint64_t _deadline = fa_deadline_ns(fa_test_patience_ns()), _pause_ns = 0;         \
		while (!(condition)) {                                                             \
			if (fa_now_ns() > _deadline)                                               \
				fa_test_fail(__FILE__, __LINE__, "never came so: %s", #condition); \
			fa_test_poll_pause(&_pause_ns);                                            \
		}                                                                                  \
	} while (0)

/* Returns true with FAD_TEST_LONG=1: loops run about ten times as long. */
bool fa_test_long(void);

/* Returns true if built with a sanitizer, which makes everything slower and larger. */
bool fa_test_sanitized(void);

/* A random generator with a seed, so that failures can be repeated. */
struct fa_test_random {
	uint64_t state;
};
uint64_t fa_test_random(struct fa_test_random *random);
uint64_t fa_test_random_below(struct fa_test_random *random, uint64_t bound);

/*
 * Forks a process that exits with the result of @function(userdata), and that dies with the
 * test.
 */
pid_t fa_test_fork(int (*function)(void *userdata), void *userdata);

/* Waits for @pid to exit and returns waitpid()'s status. */
int fa_test_reap(pid_t pid);

/* Counts the open descriptors of a process (0: the caller). Returns -1 if the process is gone. */
int fa_test_count_fds(pid_t pid);

/* Returns the peak size of the address space of @pid. */
uint64_t fa_test_peak_bytes(pid_t pid);
