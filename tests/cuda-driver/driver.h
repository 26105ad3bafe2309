/*
 * A CUDA driver of the tests' own: libcuda.so.1 with the functions of
 * common/cudriver.h over host memory, so that everything above it runs for real, in
 * several processes, on machines without a GPU. What the real one was seen to do, it
 * does; where that is not known it is the stricter. Device memory is memfds, mapped
 * where device pointers point, so that kernels are the CPU's (kernels/attention.h).
 *
 * Environment, read at a process's first call:
 *   FAD_TEST_CUDA_DIR         where processes show what they do (page.h, control.h)
 *   FAD_TEST_CUDA_FAIL        faults on demand, as in fa_test_cuda_page_fail()
 *   FAD_TEST_CUDA_DEVICES     how many GPUs there are (1; 0 is possible, 8 at most)
 *   FAD_TEST_CUDA_MEMORY_MIB  memory of each (16384)
 *   FAD_TEST_CUDA_VERSION     of the driver (13000)
 *   FAD_TEST_CUDA_LACKS       a function that it does not have
 *   FAD_TEST_CUDA_PID         the process's number as IPC handles have it
 *   FAD_TEST_CUDA_MPS         contexts say that they are a server's of several processes
 *   FAD_TEST_CUDA_KERNEL_US   kernels take at least so long (0)
 *   FAD_TEST_CUDA_GFLOP       kernels with more work are not computed, and take 50 ms:
 *                             for tests in which slow requests never come to their end (0:
 *                             all are computed)
 *
 * What is simpler than in the real one: two GPUs cannot reach one another's memory;
 * work on the legacy default stream waits for that of blocking streams, and theirs for
 * it, in the thread that submits it; cuMemAllocAsync allocates at once.
 *
 * Threads: any may call. One lock holds the tables; each stream has a thread that runs
 * its work in order, without the lock. What running work touches is pinned: memory that
 * is taken away meanwhile makes the context fail, as it would on a GPU, and stays until
 * the work has ended.
 */
#pragma once

#include "common/cudriver.h"
#include "kernels/cuda/plan.h"
#include "tests/cuda-driver/page.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FA_FAKE_API __attribute__((visibility("default")))
#define FA_FAKE_DEVICES_MAX 8
#define FA_FAKE_GRANULARITY ((size_t)2 << 20)
#define FA_FAKE_LEAST_PRIORITY 0
#define FA_FAKE_GREATEST_PRIORITY (-5)

#define FA_FAKE_PROTOTYPE(name, params) FA_FAKE_API CUresult name params;
FA_CUDRIVER_CLIENT(FA_FAKE_PROTOTYPE)
FA_CUDRIVER_REST(FA_FAKE_PROTOTYPE)
#undef FA_FAKE_PROTOTYPE

/* ---- the process (process.c) */

struct fa_fake_stream;

/* The primary context of a device. */
struct fa_fake_context {
	int device;
	unsigned int retained;
	CUresult lost;           /* sticky; 0 while all is well */
	bool ending;             /* its streams run nothing more */
	unsigned int n_draining; /* calls that wait until they have run all */
	uint64_t generation;     /* counts how often it was made */
	struct fa_fake_stream *streams, *default_stream;
};

struct fa_fake_process {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* something under the lock that somebody may wait for */
	bool initialised;       /* by cuInit */
	bool forked;            /* from a process that had called cuInit */
	int n_devices, version;
	size_t memory_bytes;
	double flops_max; /* of a kernel that is computed; 0: all are */
	char dir[256];    /* empty: none */
	struct fa_test_cuda_page *page;
	struct fa_fake_context contexts[FA_FAKE_DEVICES_MAX];
};

extern struct fa_fake_process fa_fake;

/* What a function needs besides a driver. */
enum {
	FA_FAKE_INIT = 1,    /* cuInit */
	FA_FAKE_CURRENT = 2, /* a context of the thread's */
	FA_FAKE_ALIVE = 4,   /* that context is not lost; of any, if it needs none */
	FA_FAKE_TELLS = 8,   /* nothing, but a sticky error of it means that a context is lost */
};

/* Begins every function: counts the call, and says what it returns instead. */
CUresult fa_fake_enter(enum fa_test_cuda_call call, unsigned int needs);

#define FA_FAKE_ENTER(name, needs)                                                                 \
	do {                                                                                       \
		const CUresult _entered = fa_fake_enter(FA_TEST_CUDA_##name, needs);               \
		if (_entered != CUDA_SUCCESS)                                                      \
			return _entered;                                                           \
	} while (0)

/* The same for a kernel that begins to run. */
CUresult fa_fake_enter_kernel(void);

/* At the end of a stream's thread: what its kernels had for their computing. */
void fa_fake_scratch_free(void);

void fa_fake_count(enum fa_test_cuda_live what, int64_t change);

/* Says on stderr what a GPU would have choked on; returns @result. */
CUresult fa_fake_misuse(CUresult result, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

void fa_fake_lock(void);
void fa_fake_unlock(void);

/* ---- contexts (context.c) */

struct fa_fake_context *fa_fake_current(void);

/* Whether a context that saw @result is lost. */
bool fa_fake_is_sticky(CUresult result);

/* Loses @context; the lock is held. */
void fa_fake_lose(struct fa_fake_context *context, CUresult result);

/* ---- memory (memory.c, region.c) */

/* Device memory; the lock is held for all but the fd. */
struct fa_fake_memory {
	int fd;
	uint64_t id; /* the memfd's inode: the same in every process */
	size_t bytes;
	int device;
	unsigned int handle_types;
	unsigned int refs;
	int hold; /* in the page; -1: no room */
};

int fa_fake_memory_new(const char *name, size_t bytes, int device, unsigned int handle_types,
                       struct fa_fake_memory **ret_memory);
/* Takes over @fd. */
int fa_fake_memory_from_fd(int fd, int device, unsigned int handle_types,
                           struct fa_fake_memory **ret_memory);
struct fa_fake_memory *fa_fake_memory_unref(struct fa_fake_memory *memory);
void fa_fake_memory_close_all(void); /* in a child, after fork */

enum fa_fake_kind {
	FA_FAKE_ALLOC,
	FA_FAKE_ASYNC,
	FA_FAKE_MANAGED,
	FA_FAKE_IPC,
	FA_FAKE_VMM,
	FA_FAKE_HOST_ALLOC,
	FA_FAKE_HOST_REGISTERED,
};

/* A range of addresses that device pointers may point into. */
struct fa_fake_region {
	CUdeviceptr at;
	size_t bytes;        /* as asked for */
	size_t mapped_bytes; /* rounded up */
	enum fa_fake_kind kind;
	int device;
	uint64_t buffer_id; /* never given twice */
	bool readable, writable;
	struct fa_fake_memory *memory; /* NULL: the host's */
	unsigned int opens;            /* FA_FAKE_IPC */
};

/* All with the lock held. */
struct fa_fake_region *fa_fake_region_find(CUdeviceptr at);
size_t fa_fake_region_count(void);
struct fa_fake_region *fa_fake_region_at(size_t index);
int fa_fake_region_new(const struct fa_fake_region *like, struct fa_fake_region **ret_region);
bool fa_fake_region_overlaps(CUdeviceptr at, size_t bytes);

/* Takes @region out of the table and frees it, once no work that runs touches it; work
 * that does loses its context, unless @patient. Unmaps nothing. */
void fa_fake_region_drop(struct fa_fake_region *region, bool patient);

/* Addresses for device memory; freed ones are the next to be given. */
int fa_fake_space_take(size_t bytes, size_t alignment, CUdeviceptr *ret_at);
void fa_fake_space_give(CUdeviceptr at);
int fa_fake_space_map(const struct fa_fake_region *region);
void fa_fake_space_unmap(CUdeviceptr at, size_t bytes);

/* What a piece of work touches. */
struct fa_fake_span {
	CUdeviceptr at;
	size_t bytes;
	bool write;
};

#define FA_FAKE_SPANS 12

struct fa_fake_pin {
	struct fa_fake_pin *next;
	struct fa_fake_context *context;
	struct fa_fake_span spans[FA_FAKE_SPANS];
	size_t n_spans;
};

/* Without the lock. CUDA_ERROR_ILLEGAL_ADDRESS unless all of it can be touched. */
CUresult fa_fake_pin(struct fa_fake_pin *pin);
void fa_fake_unpin(struct fa_fake_pin *pin);
/* With it. */
bool fa_fake_span_is_good(int device, const struct fa_fake_span *span);

/* Frees what @context's memory functions made; the lock is held. */
void fa_fake_memory_end(struct fa_fake_context *context);

/* ---- streams (stream.c) */

struct fa_fake_op {
	struct fa_fake_op *next;
	uint64_t sequence; /* grows with every op of the process */
	CUresult (*run)(struct fa_fake_op *op, struct fa_fake_context *context);
	void (*free)(struct fa_fake_op *op); /* what it holds; may be NULL; the lock is held */
	CUdeviceptr to, from;
	size_t bytes;
	uint64_t value;
	void *staged; /* freed with it */
	void *object;
	struct fa_cuda_attention args;
	uint64_t blocks; /* of a launch */
};

struct fa_fake_op *fa_fake_op_new(CUresult (*run)(struct fa_fake_op *op,
                                                  struct fa_fake_context *context));

/* Takes over @op (NULL: CUDA_ERROR_OUT_OF_MEMORY). */
CUresult fa_fake_submit(CUstream stream, struct fa_fake_op *op);

/* ... and waits until it has run. */
CUresult fa_fake_submit_and_wait(CUstream stream, struct fa_fake_op *op);

/* Waits until all that was submitted to @context has run; without the lock. Meanwhile nothing is
 * submitted: who wants to waits, too. */
CUresult fa_fake_drain(struct fa_fake_context *context);

/* End @context's streams, events, modules and graphs. The lock is held, and let go while streams
 * come to their end. */
void fa_fake_streams_end(struct fa_fake_context *context);
void fa_fake_events_end(struct fa_fake_context *context);
void fa_fake_modules_end(struct fa_fake_context *context);
void fa_fake_graphs_end(struct fa_fake_context *context);
