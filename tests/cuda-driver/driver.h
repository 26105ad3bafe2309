/*
 * A CUDA driver for tests: libcuda.so.1 with the functions of common/cudriver.h over host memory,
 * so that the code above it runs for real, in several processes, without a GPU. It behaves as the
 * real driver was seen to, and where that is unknown more strictly. Device memory is memfds, mapped
 * where device pointers point; kernels are the CPU's (kernels/attention.h).
 *
 * Environment, read at a process's first call: FAD_TEST_CUDA_DIR         where processes publish
 * their state (page.h, control.h) FAD_TEST_CUDA_FAIL        faults to inject, as in
 * fa_test_cuda_page_fail() FAD_TEST_CUDA_DEVICES     number of GPUs (1; 0 to 8)
 * FAD_TEST_CUDA_MEMORY_MIB  memory of each (16384) FAD_TEST_CUDA_VERSION     of the driver (13000)
 * FAD_TEST_CUDA_LACKS       a function that it does not have FAD_TEST_CUDA_PID         the
 * process's PID in IPC handles FAD_TEST_CUDA_MPS         contexts report that they are an MPS
 * server's FAD_TEST_CUDA_KERNEL_US   kernels take at least this long (0) FAD_TEST_CUDA_GFLOP
 * kernels with more operations are not computed, and take 50 ms: for tests that never wait for slow
 * requests (0: all are computed)
 *
 * Simpler than the real driver: GPUs cannot access one another's memory; the legacy default stream
 * and blocking streams wait for one another in the submitting thread; cuMemAllocAsync allocates at
 * once.
 *
 * Any thread may call. One lock guards the tables; each stream has a thread that runs its work in
 * order, without the lock. Memory of running work is pinned: if it is freed meanwhile, the context
 * fails as on a GPU, and the memory stays until the work has ended.
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
	CUresult lost;           /* sticky error; 0: none */
	bool ending;             /* its streams run no more work */
	unsigned int n_draining; /* calls that wait for all its work */
	uint64_t generation;     /* counts how often it was created */
	struct fa_fake_stream *streams, *default_stream;
};

struct fa_fake_process {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* state under the lock has changed */
	bool initialised;       /* cuInit was called */
	bool forked;            /* forked from a process that had called cuInit */
	int n_devices, version;
	size_t memory_bytes;
	double flops_max; /* kernels with more operations are not computed; 0: no limit */
	char dir[256];    /* FAD_TEST_CUDA_DIR; empty: none */
	struct fa_test_cuda_page *page;
	struct fa_fake_context contexts[FA_FAKE_DEVICES_MAX];
};

extern struct fa_fake_process fa_fake;

/* What a function of the driver requires, or'ed. */
enum {
	FA_FAKE_INIT = 1,    /* cuInit was called */
	FA_FAKE_CURRENT = 2, /* a context is current */
	FA_FAKE_ALIVE = 4,   /* the current context is not lost; without CURRENT: no context is */
	/* Needs nothing; if it returns a sticky error, a context is lost. */
	FA_FAKE_REPORTS_LOSS = 8,
};

/* Called first by every function: counts the call, and returns the error to return instead, if
 * any. */
CUresult fa_fake_enter(enum fa_test_cuda_call call, unsigned int needs);

#define FA_FAKE_ENTER(name, needs)                                                                 \
	do {                                                                                       \
		const CUresult _entered = fa_fake_enter(FA_TEST_CUDA_##name, needs);               \
		if (_entered != CUDA_SUCCESS)                                                      \
			return _entered;                                                           \
	} while (0)

/* Counts a kernel that begins to run. Returns the error with which it is to fail, if any. */
CUresult fa_fake_enter_kernel(void);

void fa_fake_count(enum fa_test_cuda_live what, int64_t change);

/* Reports on stderr a misuse that a GPU would fault on. Returns @result. */
CUresult fa_fake_misuse(CUresult result, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

void fa_fake_lock(void);
void fa_fake_unlock(void);

/* ---- threads (thread.c) */

struct fa_fake_thread {
	struct fa_fake_context *current; /* NULL: none */
	uint64_t generation;             /* of the current context */
	CUstreamCaptureMode capture_mode;
	/* Scratch memory of kernels, kept until the thread ends: several megabytes from malloc()'s
	 * shared arenas would make the process grow at random, which tests check. */
	void *scratch;
	size_t scratch_bytes;
};

/* Returns what the driver keeps for the calling thread. */
struct fa_fake_thread *fa_fake_thread(void);

/* ---- contexts (context.c) */

struct fa_fake_context *fa_fake_current(void);

/* Returns whether @result is an error that loses the context. */
bool fa_fake_is_sticky(CUresult result);

/* Loses @context with the error @result. Called with the lock held. */
void fa_fake_lose(struct fa_fake_context *context, CUresult result);

/* ---- memory (memory.c, region.c) */

/* Device memory. The lock guards all members except the fd. */
struct fa_fake_memory {
	int fd;
	uint64_t id; /* the memfd's inode: the same in every process */
	size_t bytes;
	int device;
	unsigned int handle_types;
	unsigned int refs;
	int hold; /* this process's entry in page.holds; -1: the page is full */
};

int fa_fake_memory_new(const char *name, size_t bytes, int device, unsigned int handle_types,
                       struct fa_fake_memory **ret_memory);
/* Makes memory of the memfd @fd, which it takes over. */
int fa_fake_memory_from_fd(int fd, int device, unsigned int handle_types,
                           struct fa_fake_memory **ret_memory);
struct fa_fake_memory *fa_fake_memory_unref(struct fa_fake_memory *memory);
void fa_fake_memory_close_all(void); /* closes the parent's memory in a child, after fork */

enum fa_fake_kind {
	FA_FAKE_ALLOC,
	FA_FAKE_ASYNC,
	FA_FAKE_MANAGED,
	FA_FAKE_IPC,
	FA_FAKE_VMM,
	FA_FAKE_HOST_ALLOC,
	FA_FAKE_HOST_REGISTERED,
};

/* A range of valid device addresses. */
struct fa_fake_region {
	CUdeviceptr at;
	size_t bytes;        /* as requested */
	size_t mapped_bytes; /* bytes, rounded up */
	enum fa_fake_kind kind;
	int device;
	uint64_t buffer_id; /* never reused */
	bool readable, writable;
	struct fa_fake_memory *memory; /* NULL: host memory */
	unsigned int opens;            /* FA_FAKE_IPC: how often it is open */
};

/* Finds a region by an address. Called with the lock held. */
struct fa_fake_region *fa_fake_region_find(CUdeviceptr at);
size_t fa_fake_region_count(void);
struct fa_fake_region *fa_fake_region_at(size_t index);
int fa_fake_region_new(const struct fa_fake_region *like, struct fa_fake_region **ret_region);
bool fa_fake_region_overlaps(CUdeviceptr at, size_t bytes);

/* Removes @region from the table, and frees it once no running work uses it. Unless @patient,
 * running work that uses it loses its context. Does not unmap the memory. */
void fa_fake_region_drop(struct fa_fake_region *region, bool patient);

/* Reserves addresses for device memory; reuses the last freed ones first. */
int fa_fake_space_take(size_t bytes, size_t alignment, CUdeviceptr *ret_at);
void fa_fake_space_give(CUdeviceptr at);
int fa_fake_space_map(const struct fa_fake_region *region);
void fa_fake_space_unmap(CUdeviceptr at, size_t bytes);

/* A range of addresses that a piece of work uses. */
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

/*
 * Pins all spans of @pin, or returns CUDA_ERROR_ILLEGAL_ADDRESS if any address in them is
 * inaccessible. Called without the lock.
 */
CUresult fa_fake_pin(struct fa_fake_pin *pin);
void fa_fake_unpin(struct fa_fake_pin *pin);
/* Returns whether @device can access the whole span. Called with the lock held. */
bool fa_fake_span_is_good(int device, const struct fa_fake_span *span);

/* Frees all memory of @context. Called with the lock held. */
void fa_fake_memory_end(struct fa_fake_context *context);

/* ---- streams (stream.c) */

struct fa_fake_op {
	struct fa_fake_op *next;
	uint64_t sequence; /* unique and ascending in the process */
	CUresult (*run)(struct fa_fake_op *op, struct fa_fake_context *context);
	void (*free)(struct fa_fake_op *op); /* frees what the op holds, under the lock; or NULL */
	CUdeviceptr to, from;
	size_t bytes;
	uint64_t value;
	void *staged; /* freed with the op */
	size_t staged_bytes;
	bool again; /* may be in a captured graph: a copy, also of staged, can run as well */
	void *object;
	union {
		struct fa_cuda_attention args;
		struct fa_cuda_packed_attention packed; /* of packed rows; begins with args */
		struct fa_cuda_masked_attention masked; /* of MASKED; begins with args */
	};
	uint64_t blocks; /* of a launch: its number of blocks */
};

struct fa_fake_op *fa_fake_op_new(CUresult (*run)(struct fa_fake_op *op,
                                                  struct fa_fake_context *context));

/* Appends @op to the stream and takes it over. If @op is NULL, returns CUDA_ERROR_OUT_OF_MEMORY. */
CUresult fa_fake_submit(CUstream stream, struct fa_fake_op *op);

/* Returns a copy of an op that may run again, or NULL. */
struct fa_fake_op *fa_fake_op_copy(const struct fa_fake_op *op);
/* Frees ops that follow one another by next. */
void fa_fake_ops_free(struct fa_fake_op *op);

/* Makes a graph of @ops, which it takes over. */
CUresult fa_fake_graph_of(struct fa_fake_op *ops, CUgraph *ret_graph);

/* Returns CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for a call that the driver refuses while a stream
 * is captured, unless the thread's capture mode is relaxed; else CUDA_SUCCESS. */
CUresult fa_fake_refuse_capture(void);

/* Appends @op like fa_fake_submit(), and waits until it has run. */
CUresult fa_fake_submit_and_wait(CUstream stream, struct fa_fake_op *op);

/* Waits, without the lock, until all work of @context has run. Threads that submit wait
 * meanwhile. */
CUresult fa_fake_drain(struct fa_fake_context *context);

/* End @context's streams, events, modules and graphs. Called with the lock held; it is released
 * while streams end. */
void fa_fake_streams_end(struct fa_fake_context *context);
void fa_fake_events_end(struct fa_fake_context *context);
void fa_fake_modules_end(struct fa_fake_context *context);
void fa_fake_graphs_end(struct fa_fake_context *context);
