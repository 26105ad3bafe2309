/*
 * Checks for helpers and forked processes. In the main thread of the test's own process a failed
 * check fails the cmocka test. In a child or another thread, which cmocka cannot end, it prints its
 * message and ends the process with FA_TEST_EXIT.
 */
#pragma once

#include "common/clock.h"
#include "tests/lib/pause.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* For children that run cmocka tests: makes the caller the test's own process. */
void fa_test_is_own_process(void);

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
 * The time-out of every wait: enough for two slow cores under sanitizers, or FAD_TEST_PATIENCE_S.
 */
uint64_t fa_test_patience_ns(void);

/* Polls until @condition holds; fails after the time-out. */
#define fa_check_eventually(condition)                                                             \
	do {                                                                                       \
		uint64_t _deadline = fa_deadline_ns(fa_test_patience_ns()), _pause_ns = 0;         \
		while (!(condition)) {                                                             \
			if (fa_now_ns() > _deadline)                                               \
				fa_test_fail(__FILE__, __LINE__, "never came so: %s", #condition); \
			fa_test_poll_pause(&_pause_ns);                                            \
		}                                                                                  \
	} while (0)

/* True with FAD_TEST_LONG=1: loops run about ten times as long. */
bool fa_test_long(void);

/* True in a sanitizer build, which is slower and larger. */
bool fa_test_sanitized(void);

/* True where daemons are started with the Vulkan backend, which tests run on the CPU: much slower, and with
 * fewer keys. */
bool fa_test_is_vulkan(void);

/* Seeded, so that failures can be repeated. */
struct fa_test_random {
	uint64_t state;
};
uint64_t fa_test_random(struct fa_test_random *random);
uint64_t fa_test_random_below(struct fa_test_random *random, uint64_t bound);

/* The child exits with the result of @function(userdata), and dies with the test. */
pid_t fa_test_fork(int (*function)(void *userdata), void *userdata);

/* Returns waitpid()'s status. */
int fa_test_reap(pid_t pid);

/* Open descriptors of a process (0: the caller); -1: it is gone. */
int fa_test_count_fds(pid_t pid);

/* Returns the largest size that the process's address space had. */
uint64_t fa_test_peak_bytes(pid_t pid);
