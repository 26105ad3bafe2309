/*
 * What a process that uses the tests' CUDA driver shares with the tests: a page of
 * counters that the driver keeps, and of orders that a test gives. It is the file
 * FAD_TEST_CUDA_DIR/process-PID, made by the process's first call of the driver and
 * left behind at its end; without that variable it is memory of the process alone.
 */
#pragma once

#include "common/cudriver.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FA_TEST_CUDA_PAGE_MAGIC 0x6661642d63756461ull
#define FA_TEST_CUDA_RULES 64
#define FA_TEST_CUDA_HOLDS 16384

/* The functions of the driver, and two counters that are none. */
enum fa_test_cuda_call {
#define FA_TEST_CUDA_CALL(name, params) FA_TEST_CUDA_##name,
	FA_CUDRIVER_CLIENT(FA_TEST_CUDA_CALL)
	FA_CUDRIVER_REST(FA_TEST_CUDA_CALL)
#undef FA_TEST_CUDA_CALL
		FA_TEST_CUDA_kernel, /* kernels that began to run */
	FA_TEST_CUDA_any,            /* calls of whatever function */
	FA_TEST_CUDA_CALLS,
};

/* What a process holds. */
enum fa_test_cuda_live {
	FA_TEST_CUDA_CONTEXTS,         /* retained primary contexts */
	FA_TEST_CUDA_ALLOCATIONS,      /* cuMemAlloc, cuMemAllocAsync, cuMemAllocManaged */
	FA_TEST_CUDA_HANDLES,          /* references that cuMemRelease gives back */
	FA_TEST_CUDA_RESERVATIONS,     /* cuMemAddressReserve */
	FA_TEST_CUDA_MAPPINGS,         /* cuMemMap */
	FA_TEST_CUDA_IPC_OPENS,        /* opened IPC handles, each as often as it was opened */
	FA_TEST_CUDA_HOST_ALLOCATIONS, /* cuMemHostAlloc */
	FA_TEST_CUDA_REGISTRATIONS,    /* cuMemHostRegister */
	FA_TEST_CUDA_STREAMS,
	FA_TEST_CUDA_EVENTS,
	FA_TEST_CUDA_MODULES,
	FA_TEST_CUDA_DEVICE_BYTES, /* of device memory that it keeps alive, its own or not */
	FA_TEST_CUDA_HOST_BYTES,   /* pinned */
	FA_TEST_CUDA_LIVE,
};

/* The code of calls that never return. */
#define FA_TEST_CUDA_HANG (-1)

/* Makes calls fail. */
struct fa_test_cuda_rule {
	_Atomic uint32_t state; /* 0: free, 1: being written, 2: in force */
	uint32_t call;
	uint64_t at; /* the calls[] of the one that fails; 0: all */
	int32_t code;
};

/* A piece of device memory that the process keeps alive. */
struct fa_test_cuda_hold {
	_Atomic uint64_t id; /* the same in every process; 0: free */
	uint64_t bytes;
	int32_t device;
};

struct fa_test_cuda_page {
	uint64_t magic; /* written last */
	int32_t pid;
	uint64_t started; /* tells it from another process of the same number */

	_Atomic uint64_t calls[FA_TEST_CUDA_CALLS];
	_Atomic int64_t live[FA_TEST_CUDA_LIVE];
	_Atomic uint64_t failed;    /* faults on demand that happened */
	_Atomic uint32_t failed_at; /* enum fa_test_cuda_call: the last of them */
	_Atomic uint32_t lost;      /* contexts that were lost */
	_Atomic uint64_t misuses;   /* calls and kernels that a GPU would have choked on */
	_Atomic uint64_t abandoned; /* objects that were left when their context ended */
	_Atomic uint64_t stopped;   /* kernels that gave way before they had ended */

	_Atomic uint32_t kernel_us; /* kernels take at least so long */
	_Atomic uint32_t held;      /* kernels begin, and go on when this is 0 */
	_Atomic uint32_t gate_us;   /* how long gates wait; 0: as they are asked to */
	_Atomic bool gates_held;    /* none begins */
	_Atomic uint32_t gates_began, gates_opened, gates_shut;
	_Atomic uint32_t pins_held; /* pinning of host memory begins, and goes on when this is 0 */
	struct fa_test_cuda_rule rules[FA_TEST_CUDA_RULES];
	_Atomic uint32_t holds_end; /* holds further on were never used */
	struct fa_test_cuda_hold holds[FA_TEST_CUDA_HOLDS];
};

const char *fa_test_cuda_call_name(enum fa_test_cuda_call call);

/*
 * Adds rules like "cuMemMap:3=2,kernel:1=700,cuMemAlloc:*=2": the third call of cuMemMap
 * from now on gives 2, the next kernel faults, every cuMemAlloc fails. "cuLaunchKernel:1=hang":
 * the next call of that never returns. Returns 0, -EINVAL for a text that says nothing, -ENOSPC.
 */
int fa_test_cuda_page_fail(struct fa_test_cuda_page *page, const char *text);

/* When a process started, as the kernel counts; 0 if it is gone, zombies too. */
uint64_t fa_test_cuda_started(int pid);

/* The device memory that living processes of @dir keep alive. @device -1: all. */
uint64_t fa_test_cuda_dir_bytes(const char *dir, int device);

/* Maps the page of a file; NULL with errno. */
struct fa_test_cuda_page *fa_test_cuda_page_map(const char *path, bool create);
