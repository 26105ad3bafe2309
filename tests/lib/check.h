/*
 * Checks for helpers and for processes that a test forks. In the test's own
 * process and main thread a failed check fails the cmocka test that runs;
 * anywhere else (a forked client, another thread) nothing could unwind it, so
 * it says what is wrong on stderr and ends that process with FA_TEST_EXIT.
 */
#pragma once

#include "common/clock.h"
#include "tests/lib/pause.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* In a child that runs tests of its own: from here on it is "the test's own process". */
void fa_test_is_own_process(void);

/* Exit status of a process in which a check failed. */
#define FA_TEST_EXIT 99

void fa_test_fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#define fa_check(condition)                                                                        \
	do {                                                                                       \
		if (!(condition))                                                                  \
			fa_test_fail(__FILE__, __LINE__, "not so: %s", #condition);                \
	} while (0)

/* Compares as signed 64-bit numbers and prints both sides. */
#define fa_check_eq(a, b)                                                                          \
	do {                                                                                       \
		long long _a = (long long)(a), _b = (long long)(b);                                \
		if (_a != _b)                                                                      \
			fa_test_fail(__FILE__, __LINE__, "%s is %lld, but %s is %lld", #a, _a, #b, \
			             _b);                                                          \
	} while (0)

/* Fails unless @text contains @part. */
#define fa_check_contains(text, part) fa_test_contains(__FILE__, __LINE__, #text, (text), (part))

void fa_test_contains(const char *file, int line, const char *name, const char *text,
                      const char *part);

/* What waits for something gives up after this long: long enough for two slow
 * processors under sanitizers. FAD_TEST_PATIENCE_S overrides it. */
uint64_t fa_test_patience_ns(void);

/* Waits until @condition, which is evaluated again and again, or fails. */
#define fa_check_eventually(condition)                                                             \
	do {                                                                                       \
		uint64_t _deadline = fa_deadline_ns(fa_test_patience_ns()), _pause_ns = 0;         \
		while (!(condition)) {                                                             \
			if (fa_now_ns() > _deadline)                                               \
				fa_test_fail(__FILE__, __LINE__, "never came so: %s", #condition); \
			fa_test_poll_pause(&_pause_ns);                                            \
		}                                                                                  \
	} while (0)

/* Whether FAD_TEST_LONG=1: loops run about ten times as long. */
bool fa_test_long(void);

/* Whether this build has a sanitizer: everything is slower and larger. */
bool fa_test_sanitized(void);

/* A small generator of numbers, so that what fails fails again. */
struct fa_test_random {
	uint64_t state;
};
uint64_t fa_test_random(struct fa_test_random *random);
uint64_t fa_test_random_below(struct fa_test_random *random, uint64_t bound);

/*
 * Forks a process that runs @function(userdata) and exits with what it returns.
 * The child dies with the test.
 */
pid_t fa_test_fork(int (*function)(void *userdata), void *userdata);

/* Waits for the end of @pid and returns waitpid()'s status. */
int fa_test_reap(pid_t pid);

/* Open descriptors of a process, 0: of this one. -1 if it is gone. */
int fa_test_count_fds(pid_t pid);

/* Bytes of addresses that @pid has had at most. */
uint64_t fa_test_peak_bytes(pid_t pid);
