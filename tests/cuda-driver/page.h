/* The page that a process with the tests' CUDA driver shares with tests: the driver's counters, and
 * the tests' orders. It is the file FAD_TEST_CUDA_DIR/process-PID, made by the first call of the
 * driver and left at exit; without the variable it is private memory. */
#pragma once

#include "common/cudriver.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FA_TEST_CUDA_PAGE_MAGIC 0x6661642d63756461ull
#define FA_TEST_CUDA_RULES 64
#define FA_TEST_CUDA_HOLDS 16384

/* The driver's functions, and two counters of other things. */
enum fa_test_cuda_call {
#define FA_TEST_CUDA_CALL(name, params) FA_TEST_CUDA_##name,
	FA_CUDRIVER_CLIENT(FA_TEST_CUDA_CALL)
	FA_CUDRIVER_REST(FA_TEST_CUDA_CALL)
#undef FA_TEST_CUDA_CALL
		FA_TEST_CUDA_kernel, /* kernels that began to run */
	FA_TEST_CUDA_any,            /* calls of all functions */
	FA_TEST_CUDA_CALLS,
};

/* Objects that a process holds. */
enum fa_test_cuda_live {
	FA_TEST_CUDA_CONTEXTS,         /* retained primary contexts */
	FA_TEST_CUDA_ALLOCATIONS,      /* cuMemAlloc, cuMemAllocAsync, cuMemAllocManaged */
	FA_TEST_CUDA_HANDLES,          /* until cuMemRelease */
	FA_TEST_CUDA_RESERVATIONS,     /* cuMemAddressReserve */
	FA_TEST_CUDA_MAPPINGS,         /* cuMemMap */
	FA_TEST_CUDA_IPC_OPENS,        /* opens of IPC handles */
	FA_TEST_CUDA_HOST_ALLOCATIONS, /* cuMemHostAlloc */
	FA_TEST_CUDA_REGISTRATIONS,    /* cuMemHostRegister */
	FA_TEST_CUDA_STREAMS,
	FA_TEST_CUDA_EVENTS,
	FA_TEST_CUDA_MODULES,
	FA_TEST_CUDA_DEVICE_BYTES, /* device memory that it keeps alive, its own or others' */
	FA_TEST_CUDA_HOST_BYTES,   /* bytes of pinned host memory */
	FA_TEST_CUDA_LIVE,
};

/* The code of a fault that makes the call never return. */
#define FA_TEST_CUDA_HANG (-1)

/* A fault to inject. */
struct fa_test_cuda_rule {
	_Atomic uint32_t state; /* 0: free, 1: being written, 2: in force */
	uint32_t call;
	uint64_t at; /* which call fails, counted as in calls[]; 0: every call */
	int32_t code;
};

/* Device memory that the process keeps alive. */
struct fa_test_cuda_hold {
	_Atomic uint64_t id; /* of the memory, the same in every process; 0: this entry is free */
	uint64_t bytes;
	int32_t device;
};

struct fa_test_cuda_page {
	uint64_t magic; /* written last */
	int32_t pid;
	uint64_t started; /* start time of the process: distinguishes processes of one PID */

	_Atomic uint64_t calls[FA_TEST_CUDA_CALLS];
	_Atomic int64_t live[FA_TEST_CUDA_LIVE];
	_Atomic uint64_t failed;    /* faults that were injected */
	_Atomic uint32_t failed_at; /* enum fa_test_cuda_call: the function that failed last */
	_Atomic uint32_t lost;      /* contexts that were lost */
	_Atomic uint64_t misuses;   /* calls and kernels that a GPU would fault on */
	_Atomic uint64_t abandoned; /* objects left when their context ended */
	_Atomic uint64_t stopped;   /* kernels that were preempted */

	_Atomic uint32_t kernel_us; /* kernels take at least this long */
	_Atomic uint32_t held;      /* kernels that began end when this is 0 */
	_Atomic uint32_t
		/* Time between a launch's words for the client and those for the daemon. */
		record_us;
	_Atomic uint32_t gate_us; /* how long gates wait; 0: as long as their launch says */
	_Atomic bool gates_held;  /* gates do not begin */
	_Atomic uint32_t gates_began, gates_opened, gates_shut;
	_Atomic uint32_t pins_held; /* pinning of host memory ends when this is 0 */
	struct fa_test_cuda_rule rules[FA_TEST_CUDA_RULES];
	_Atomic uint32_t holds_end; /* holds[] from this index on were never used */
	struct fa_test_cuda_hold holds[FA_TEST_CUDA_HOLDS];
};

const char *fa_test_cuda_call_name(enum fa_test_cuda_call call);

/* Adds rules like "cuMemMap:3=2,kernel:1=700,cuMemAlloc:*=2": the third cuMemMap from now on
 * returns 2, the next kernel faults, every cuMemAlloc fails. "cuLaunchKernel:1=hang": the next
 * launch never returns. Returns 0, -EINVAL or -ENOSPC. */
int fa_test_cuda_page_fail(struct fa_test_cuda_page *page, const char *text);

/* Returns the start time of a process by the kernel's clock; 0 if it is gone or a zombie. */
uint64_t fa_test_cuda_started(int pid);

/* Returns how much device memory the living processes of @dir keep alive. @device -1: on all
 * devices. */
uint64_t fa_test_cuda_dir_bytes(const char *dir, int device);

/* Maps the page that a file holds. On failure returns NULL with errno set. */
struct fa_test_cuda_page *fa_test_cuda_page_map(const char *path, bool create);
