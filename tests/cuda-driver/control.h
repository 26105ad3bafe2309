/*
 * How tests see and steer processes that use the tests' CUDA driver: what each has
 * called and holds, which of its calls fail, how long its kernels take. A test makes
 * a directory first; every process started from then on shows itself there.
 *
 *	fa_test_cuda_begin(&cuda);
 *	fa_test_daemon_start(&daemon, NULL);
 *	page = fa_test_cuda_attach(&cuda, daemon.pid);
 *	fa_test_cuda_fail(page, "cuMemMap:2=2");    the second one from now on
 *	fa_test_cuda_fail(page, "kernel:1=700");    the next kernel faults
 *	fa_test_cuda_detach(page);
 *	fa_test_cuda_end(&cuda);
 */
#pragma once

#include "tests/cuda-driver/page.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fa_test_cuda {
	char dir[48];
};

/* Makes a directory that all users may use, and sets FAD_TEST_CUDA_DIR. Processes that
 * have called the driver before stay unseen. */
void fa_test_cuda_begin(struct fa_test_cuda *cuda);
void fa_test_cuda_end(struct fa_test_cuda *cuda);

/* Waits until @pid has called the driver. What it shows can be read after its death. */
struct fa_test_cuda_page *fa_test_cuda_attach(const struct fa_test_cuda *cuda, pid_t pid);
void fa_test_cuda_detach(struct fa_test_cuda_page *page);

/* Adds faults, see fa_test_cuda_page_fail(); NULL takes all back. */
void fa_test_cuda_fail(struct fa_test_cuda_page *page, const char *text);
/* The same for each process that uses the driver for the first time from now on. */
void fa_test_cuda_fail_next(const struct fa_test_cuda *cuda, const char *text);
/* How many happened so far, and at what the last of them. */
uint64_t fa_test_cuda_failed(const struct fa_test_cuda_page *page);
enum fa_test_cuda_call fa_test_cuda_failed_at(const struct fa_test_cuda_page *page);
/* Whether a context of the process was lost. */
bool fa_test_cuda_is_lost(const struct fa_test_cuda_page *page);

/* Kernels take at least so long. */
void fa_test_cuda_kernel_us(struct fa_test_cuda_page *page, uint32_t us);
/* Kernels that began do not end, until this is called with false. */
void fa_test_cuda_hold(struct fa_test_cuda_page *page, bool hold);
/* Pinning of host memory that begins does not end, until this is called with false. */
void fa_test_cuda_hold_pins(struct fa_test_cuda_page *page, bool hold);
/* Gates wait for so long; 0: as they are asked to. */
void fa_test_cuda_gate_us(struct fa_test_cuda_page *page, uint32_t us);
/* How many have begun to wait, have opened, and have given up. */
/* None begins from now on, as if it had no SM, or those go on. */
void fa_test_cuda_hold_gates(struct fa_test_cuda_page *page, bool hold);

struct fa_test_cuda_gates {
	uint32_t began, opened, shut;
};
struct fa_test_cuda_gates fa_test_cuda_gates(const struct fa_test_cuda_page *page);
/* Kernels that began so far. */
uint64_t fa_test_cuda_kernels(const struct fa_test_cuda_page *page);
/* Those that were asked to give way, and did. */
uint64_t fa_test_cuda_stopped(const struct fa_test_cuda_page *page);

/* Calls of the driver so far, by enum fa_test_cuda_call. */
struct fa_test_cuda_calls {
	uint64_t n[FA_TEST_CUDA_CALLS];
};
void fa_test_cuda_calls(const struct fa_test_cuda_page *page, struct fa_test_cuda_calls *ret_calls);

/* Launches so far, plain ones and graphs. */
uint64_t fa_test_cuda_launches(const struct fa_test_cuda_page *page);

/* What the process holds, by enum fa_test_cuda_live. */
struct fa_test_cuda_lives {
	int64_t n[FA_TEST_CUDA_LIVE];
};
void fa_test_cuda_lives(const struct fa_test_cuda_page *page, struct fa_test_cuda_lives *ret_lives);

/* Whether it holds what it held then; if not and @loud, says on stderr what differs. */
bool fa_test_cuda_lives_equal(const struct fa_test_cuda_page *page,
                              const struct fa_test_cuda_lives *then, bool loud);

/* Objects that were left behind when their context ended; calls and kernels that a GPU
 * would have choked on. */
uint64_t fa_test_cuda_abandoned(const struct fa_test_cuda_page *page);
uint64_t fa_test_cuda_misuses(const struct fa_test_cuda_page *page);

/* The device memory that all living processes together keep alive. */
uint64_t fa_test_cuda_bytes(const struct fa_test_cuda *cuda);
