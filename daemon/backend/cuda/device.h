/*
 * State of the open device and of its streams. Every file of the backend may read it; the functions
 * are declared part by part in the header beside each .c file.
 *
 * Threads: streams, groups, queues and works belong to the engine thread (or to the loop thread
 * while it runs a round of the engine), the pool and the metadata heap to the loop thread, imported
 * memory to the workers. What several of them touch is atomic or under device.mutex; the rest does
 * not change between open and close.
 */
#pragma once

#include "common/cudriver.h"
#include "common/list.h"
#include "daemon/backend/cuda/driver_lock.h"
#include "daemon/backend/cuda/metadata_heap.h"
#include "daemon/backend/cuda/quiesce.h"
#include "daemon/backend/cuda/tensor_maps.h"
#include "daemon/backend/cuda/tuning.h"
#include "daemon/backend/device.h"
#include "kernels/cuda/paged-plan.h"
#include "kernels/cuda/plan.h"

#include <pthread.h>

/* Streams that the driver serves independently (CUDA_DEVICE_MAX_CONNECTIONS lowers it). */
#define FA_CUDA_CONNECTIONS 32
/* A quarter for high priority and half less one for normal; one more for memory and one for
 * preemption words. The driver uses the rest. */
#define FA_CUDA_STREAMS_MAX (FA_CUDA_CONNECTIONS * 3 / 4)
/* Works in flight on a CUDA stream: enough to keep it busy between two polls of the engine, few
 * enough that queues which share the stream are served soon. */
#define FA_CUDA_STREAM_DEPTH 4

/* Entries of a work's vectors: cu_seqlens have one more; slopes and sinks have one a head. */
#define FA_CUDA_SEQUENCES_MAX 4096
#define FA_CUDA_VECTOR_HEADS_MAX 1024
/* All four vectors of a work, each aligned to 16 bytes. */
#define FA_CUDA_VECTORS_BYTES (2 * 4 * (FA_CUDA_SEQUENCES_MAX + 4 + FA_CUDA_VECTOR_HEADS_MAX))

/* Kernels of a stream that have a graph. */
#define FA_CUDA_GRAPHS 8

/* A stream's preemptible launch (preempt.c). It is the stream's last: nothing is launched behind
 * it. */
struct fa_cuda_preemption {
	struct fa_device_work *work; /* NULL: there is none */
	uint64_t stopped_ns;         /* when it was seen to have stopped early; 0: it runs */
	CUdeviceptr word_at;         /* a launch stops once this word has reached its turn */
	uint64_t run_ns;             /* guaranteed before it is asked to stop, ... */
	uint64_t not_before_ns;      /* ... that is until then; UINT64_MAX: works are ahead of it */
	bool asked;
	CUfunction function;
	unsigned int grid, threads, shared_bytes; /* of the launch that resumes it */
	union {
		struct fa_cuda_attention attention;
		struct fa_cuda_paged_attention paged;
	} args;
	struct fa_cuda_maps maps;
	bool is_long;     /* counted in device.quiesce while it runs */
	CUdeviceptr area; /* struct fa_cuda_yield_area, then the saved states of blocks */
	size_t area_bytes;
	uint64_t *report; /* the GPU writes how many blocks are left */
	CUdeviceptr report_at;
};

/* A kernel's instantiated graph (graph_cache.c). */
struct fa_cuda_graph {
	CUfunction function; /* NULL: the entry is free */
	bool gated;          /* a gate kernel precedes it */
	CUgraph graph;
	CUgraphNode node, gate_node;
	CUgraphExec exec;  /* NULL: launched plainly so far */
	uint32_t launches; /* plain ones */
	uint64_t used;     /* stream.n_launches at the last one */
};

/* Works behind gates (gate.c): the last of a stream's. */
struct fa_cuda_gates {
	const struct fa_device_queue *queue; /* the only one that has such works */
	unsigned int n_works;                /* in flight */
	unsigned int n_open;                 /* of these, how many have begun or are about to */
	bool stopped;                        /* they were asked to give up */
	uint64_t run;
	uint64_t *stop;         /* gates up to the turn that the host writes here give up */
	const uint64_t *report; /* the GPU writes the turn of a gate that gave up */
	uint64_t reported;      /* the last report that was read */
	CUdeviceptr stop_at, report_at, shut_at;
};

struct fa_cuda_stream {
	CUstream stream;
	int priority;
	unsigned int n_queues;
	/* The GPU writes the sequence of each work that has ended, in order. A work with self_signal_parts
	 * writes it once a part, each part to a word of its own. */
	const uint64_t *word;
	CUdeviceptr word_at;
	uint64_t sequence; /* of the last work given to the driver */
	/* Blocks that signal the end of their launch themselves count here. */
	CUdeviceptr counter_at;
	uint64_t n_counted;           /* blocks of all launches that count */
	uint64_t self_signalled;      /* the last work that signals its end itself, */
	uint32_t self_signal_parts;   /* ... in so many parts; 0: as a whole */
	uint64_t finished_ns;         /* when the last work was seen to have ended */
	struct fa_list works;         /* in flight, by fa_device_work.link */
	unsigned int n_works;         /* in flight */
	struct fa_device_lane lane;   /* the stream, as the engine sees it */
	char *vectors;                /* [FA_CUDA_STREAM_DEPTH][FA_CUDA_VECTORS_BYTES] */
	CUdeviceptr vectors_at;       /* the copy on the GPU */
	CUdeviceptr vectors_in_place; /* vectors as the GPU addresses the host's memory */
	/* Paged works use it while they run: counters and partial results, then q. A larger one
	 * replaces it, and the old one is freed at close. */
	CUdeviceptr scratch;
	size_t scratch_bytes;
	uint64_t epoch; /* of the last launch that used the counters */
	struct fa_cuda_graph graphs[FA_CUDA_GRAPHS];
	uint64_t n_launches; /* through graphs, or counted towards one */
	struct fa_cuda_gates gates;
	struct fa_cuda_preemption preemption;
};

/* The KV pool's memory: chunks side by side in one range of addresses (pool.c). */
struct fa_cuda_pool {
	CUdeviceptr at; /* 0: not open */
	uint64_t chunk_bytes;
	uint32_t max_chunks;
	bool *mapped; /* [max_chunks] */
};

/* GPU memory that is freed at close only (scratch.c). */
struct fa_cuda_scratch {
	struct fa_cuda_scratch *next;
	CUdeviceptr at;
};

struct fa_device {
	struct fa_cudriver driver;
	struct fa_device_config config;
	struct fa_cuda_tuning tuning;
	uint64_t serial; /* unique in this process */
	CUdevice ordinal;
	CUcontext context;
	int driver_version;
	struct fa_cuda_chip chip;
	struct fa_device_info info; /* without the free memory */
	size_t granularity;         /* of mapped allocations */

	CUmodule modules[FA_CUDA_IMAGES];
	CUfunction *functions; /* [fa_cuda_kernels_count]; NULL: not for this chip */
	unsigned int n_functions;
	struct fa_error special_error; /* if chip.portable: why */
	CUmodule paged_modules[FA_CUDA_PAGED_IMAGES];
	CUfunction *paged_functions; /* [fa_cuda_paged_kernels_count]; NULL: not for this chip */
	CUfunction gate_function;    /* one of these; NULL: the device cannot wait for words */
	struct fa_cuda_tensor_map_cache tensor_maps;

	/* The engine thread's. */
	void *pinned;        /* the streams' words, then their vectors */
	CUdeviceptr vectors; /* and the streams' counters behind them */
	struct fa_cuda_stream streams[FA_CUDA_STREAMS_MAX];
	unsigned int n_streams, n_high; /* those of high priority come first */
	struct fa_list done;            /* to be reaped */
	bool reaping;
	bool held;            /* a long work of a stream is held (quiesce.c) */
	bool no_graphs;       /* the driver refused one */
	unsigned int n_works; /* in flight */
	uint64_t progress_ns; /* last work seen to end */
	uint64_t queried_ns;  /* last query of the driver for errors */

	struct {
		CUdeviceptr at;
		uint64_t bytes;
		struct fa_list ranges; /* fa_cuda_range.link, by address */
	} staging;

	struct {
		CUstream stream;   /* writes the words */
		CUdeviceptr words; /* one for each of streams */
		uint64_t turn;     /* of the last preemptible launch */
		unsigned int n_running;
	} preempt;
	struct fa_cuda_scratch *scratches;

	/* The loop thread's. */
	struct fa_cuda_heap heap;
	struct fa_cuda_pool pool;

	/* The workers'. */
	struct fa_cuda_driver_lock memory_lock;
	CUstream memory_stream;

	struct fa_cuda_quiesce quiesce;

	pthread_mutex_t mutex;
	atomic_bool lost;
	struct fa_error lost_error; /* under the mutex until lost, constant afterwards */
	uint64_t free_bytes,
		free_bytes_ns; /* under the mutex: the free memory, and when it was asked */
};
