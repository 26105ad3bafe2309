/*
 * How tests observe and control processes that use the tests' CUDA driver: their calls and objects,
 * calls that are to fail, the time of kernels. A test makes a directory; processes that are started
 * from then on have their pages there.
 *
 *   fa_test_cuda_begin(&cuda);
 *   fa_test_daemon_start(&daemon, NULL);
 *   page = fa_test_cuda_attach(&cuda, daemon.pid);
 *   fa_test_cuda_fail(page, "cuMemMap:2=2");    the second one from now on
 *   fa_test_cuda_fail(page, "kernel:1=700");    the next kernel faults
 *   fa_test_cuda_detach(page);
 *   fa_test_cuda_end(&cuda);
 */
#pragma once

#include "tests/cuda-driver/page.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fa_test_cuda {
	char dir[48];
};

/* Makes a directory that all users may use, and sets FAD_TEST_CUDA_DIR. Processes that called the
 * driver before have no page. */
void fa_test_cuda_begin(struct fa_test_cuda *cuda);
void fa_test_cuda_end(struct fa_test_cuda *cuda);

/* Waits until @pid has called the driver. The page outlives the process. */
struct fa_test_cuda_page *fa_test_cuda_attach(const struct fa_test_cuda *cuda, pid_t pid);
void fa_test_cuda_detach(struct fa_test_cuda_page *page);

/* Adds faults by fa_test_cuda_page_fail(); NULL removes all. */
void fa_test_cuda_fail(struct fa_test_cuda_page *page, const char *text);
/* Adds faults to every process that calls the driver for the first time from now on. */
void fa_test_cuda_fail_next(const struct fa_test_cuda *cuda, const char *text);
/* Return the number of faults injected so far, and the function that failed last. */
uint64_t fa_test_cuda_failed(const struct fa_test_cuda_page *page);
enum fa_test_cuda_call fa_test_cuda_failed_at(const struct fa_test_cuda_page *page);
/* Returns whether a context of the process was lost. */
bool fa_test_cuda_is_lost(const struct fa_test_cuda_page *page);

/* Makes every kernel take at least @us. */
void fa_test_cuda_kernel_us(struct fa_test_cuda_page *page, uint32_t us);
/* Makes a launch that signals its end tell the daemon @us later than the client. */
void fa_test_cuda_record_us(struct fa_test_cuda_page *page, uint32_t us);
/* With @hold, kernels that begin do not end until this is called with false. */
void fa_test_cuda_hold(struct fa_test_cuda_page *page, bool hold);
/* With @hold, pinning of host memory does not end until this is called with false. */
void fa_test_cuda_hold_pins(struct fa_test_cuda_page *page, bool hold);
/* Sets how long gates wait before they give up; 0: as long as their launch says. */
void fa_test_cuda_gate_us(struct fa_test_cuda_page *page, uint32_t us);
/* With @hold, gates do not begin, as if they had no SM, until this is called with false. */
void fa_test_cuda_hold_gates(struct fa_test_cuda_page *page, bool hold);

/* How many gates began to wait, opened, and gave up so far. */
struct fa_test_cuda_gates {
	uint32_t began, opened, shut;
};
struct fa_test_cuda_gates fa_test_cuda_gates(const struct fa_test_cuda_page *page);
/* Returns how many kernels began so far. */
uint64_t fa_test_cuda_kernels(const struct fa_test_cuda_page *page);
/* Returns how many kernels were preempted so far. */
uint64_t fa_test_cuda_stopped(const struct fa_test_cuda_page *page);

/* Numbers of calls so far, by enum fa_test_cuda_call. */
struct fa_test_cuda_calls {
	uint64_t n[FA_TEST_CUDA_CALLS];
};
void fa_test_cuda_calls(const struct fa_test_cuda_page *page, struct fa_test_cuda_calls *ret_calls);

/* Returns the number of launches so far, of kernels and of graphs. */
uint64_t fa_test_cuda_launches(const struct fa_test_cuda_page *page);

/* Numbers of objects that the process holds, by enum fa_test_cuda_live. */
struct fa_test_cuda_lives {
	int64_t n[FA_TEST_CUDA_LIVE];
};
void fa_test_cuda_lives(const struct fa_test_cuda_page *page, struct fa_test_cuda_lives *ret_lives);

/*
 * Returns whether the process holds the same objects as in @then. @loud: prints differences to
 * stderr.
 */
bool fa_test_cuda_lives_equal(const struct fa_test_cuda_page *page,
                              const struct fa_test_cuda_lives *then, bool loud);

/*
 * Return how many objects were left when their context ended, and how many calls and kernels a GPU
 * would have faulted on.
 */
uint64_t fa_test_cuda_abandoned(const struct fa_test_cuda_page *page);
uint64_t fa_test_cuda_misuses(const struct fa_test_cuda_page *page);

/* Returns how many bytes of device memory the living processes keep alive together. */
uint64_t fa_test_cuda_bytes(const struct fa_test_cuda *cuda);
