/*
 * The open device and its streams. Comments name a field's thread; the loop thread replaces the
 * engine thread while it runs an engine round. Shared fields are atomic or under device.mutex;
 * others are constant between open and close.
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

/* How many streams the driver serves independently. */
#define FA_CUDA_CONNECTIONS 32
/* Streams: a quarter of the connections have high priority, half of them, less one, normal
 * priority. Memory and preemption have one each, and the driver keeps the rest. */
#define FA_CUDA_STREAMS_MAX (FA_CUDA_CONNECTIONS * 3 / 4)
/* Limit of a stream's works in flight. More keep the stream busy between two polls, but other
 * queues wait for them. */
#define FA_CUDA_STREAM_DEPTH 4

/* Most entries of a work's vectors (cu_seqlens have one more). */
#define FA_CUDA_SEQUENCES_MAX 4096
#define FA_CUDA_VECTOR_HEADS_MAX 1024
/* Bytes for a work's vectors, each aligned to 16 bytes. */
#define FA_CUDA_VECTORS_BYTES                                                                      \
	(2 * 4 * (FA_CUDA_SEQUENCES_MAX + 4 + FA_CUDA_VECTOR_HEADS_MAX) +                          \
	 sizeof(struct fa_cuda_ragged_unit) *                                                      \
	         (FA_CUDA_RAGGED_UNITS_MAX + FA_CUDA_RAGGED_BLOCKS_MAX))

#define FA_CUDA_GRAPHS 8

/* A stream's preemptible launch (preempt.c), which is always its last. */
struct fa_cuda_preemption {
	struct fa_device_work *work; /* NULL: none */
	uint64_t stopped_ns;         /* 0: it runs */
	CUdeviceptr word_at;         /* the launch stops when it reaches its turn */
	uint64_t run_ns;             /* guaranteed run time */
	/* earliest time for a stop; UINT64_MAX: works ahead have not ended */
	uint64_t not_before_ns;
	bool stop_requested;
	CUfunction function;
	unsigned int grid, threads, shared_bytes; /* of the next launch */
	union {
		struct fa_cuda_attention attention;
		struct fa_cuda_paged_attention paged;
		struct fa_cuda_paged_attention_own own;
	} args;
	struct fa_cuda_maps maps;
	bool is_long; /* counted by device.quiesce */
	/* For preempted blocks: struct fa_cuda_preempt_area, then the states. */
	CUdeviceptr area;
	size_t area_bytes;
	uint64_t *report; /* the GPU writes the number of blocks left here */
	CUdeviceptr report_at;
};

struct fa_cuda_graph {
	CUfunction function; /* NULL: the entry is free */
	bool gated;          /* a gate precedes it */
	CUgraph graph;
	CUgraphNode node, gate_node;
	CUgraphExec exec;  /* NULL: not made yet */
	uint32_t launches; /* launches of this kernel without the graph */
	uint64_t used;     /* value of stream.n_launches at the last use */
};

/* A stream's works behind gates (gate.c), always its last. */
struct fa_cuda_gates {
	const struct fa_device_queue *queue; /* of the works */
	/* Works in flight; those of them behind open gates. */
	unsigned int n_works, n_open;
	bool stopped;
	uint64_t run;
	uint64_t *stop;         /* written by the host: gates up to this turn give up */
	const uint64_t *report; /* written by the GPU: turn of a gate that gave up */
	uint64_t reported;      /* last report read */
	CUdeviceptr stop_at, report_at, shut_at;
};

struct fa_cuda_stream {
	CUstream stream;
	int priority;
	unsigned int n_queues;
	/* The GPU writes a work's sequence here when the work has ended; of a work in parts, one
	 * word per part, side by side. */
	const uint64_t *word;
	CUdeviceptr word_at;
	uint64_t sequence;       /* of the newest work in flight */
	CUdeviceptr counter_at;  /* counts blocks of launches that signal their end */
	uint64_t n_counted;      /* counter's value after all launches so far */
	uint64_t self_signalled; /* newest work that signals its own end */
	/* parts that signal that end; 0: the work as a whole */
	uint32_t self_signal_parts;
	uint64_t finished_ns;
	struct fa_list works;         /* works in flight, by fa_device_work.link */
	unsigned int n_works;         /* in flight */
	struct fa_device_lane lane;   /* the engine's view */
	char *vectors;                /* [FA_CUDA_STREAM_DEPTH][FA_CUDA_VECTORS_BYTES] */
	CUdeviceptr vectors_at;       /* device address of the vectors' copy */
	CUdeviceptr vectors_in_place; /* device address of the host's vectors */
	/* Scratch of running paged works: counters and partial results, then q. */
	CUdeviceptr scratch;
	size_t scratch_bytes;
	uint64_t epoch; /* of the counters' last use */
	struct fa_cuda_graph graphs[FA_CUDA_GRAPHS];
	uint64_t n_launches; /* launches that used the graph cache */
	struct fa_cuda_gates gates;
	struct fa_cuda_preemption preemption;
};

struct fa_cuda_pool {
	CUdeviceptr at; /* 0: not open */
	uint64_t chunk_bytes;
	uint32_t max_chunks;
	bool *mapped; /* [max_chunks] */
};

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
	struct fa_device_info info; /* except the free memory */
	size_t granularity;         /* granularity of mapped memory */

	CUmodule modules[FA_CUDA_IMAGES];
	CUfunction *functions; /* [fa_cuda_kernels_count]; NULL: not for this chip */
	unsigned int n_functions;
	struct fa_error special_error; /* why chip.portable is set */
	CUmodule paged_modules[FA_CUDA_PAGED_IMAGES];
	CUfunction *paged_functions; /* [fa_cuda_paged_kernels_count]; NULL: not for this chip */
	CUfunction gate_function;    /* one of these functions; NULL: no gates */
	struct fa_cuda_tensor_map_cache tensor_maps;

	/* The engine thread uses these fields. */
	void *pinned;        /* words of all streams, then their vectors */
	CUdeviceptr vectors; /* vectors on the GPU, and streams' counters */
	struct fa_cuda_stream streams[FA_CUDA_STREAMS_MAX];
	unsigned int n_streams, n_high; /* streams, of which those of high priority come first */
	struct fa_list done;            /* works to be reaped */
	bool reaping;
	bool held;            /* quiesce.c defers a work */
	bool no_graphs;       /* the driver refused to make a graph */
	unsigned int n_works; /* works in flight */
	uint64_t progress_ns; /* when a work last ended */
	uint64_t queried_ns;

	struct {
		CUdeviceptr at;
		uint64_t bytes;
		struct fa_list ranges; /* fa_cuda_range.link, by offset */
	} staging;

	struct {
		CUstream stream;   /* stream that writes the words */
		CUdeviceptr words; /* one word for each stream */
		uint64_t turn;     /* of the last preemptible launch */
		unsigned int n_running;
	} preempt;
	struct fa_cuda_scratch *scratches;

	/* The loop thread uses these fields. */
	struct fa_cuda_heap heap;
	struct fa_cuda_pool pool;

	/* Workers use these fields. */
	struct fa_cuda_driver_lock memory_lock;
	CUstream memory_stream;

	struct fa_cuda_quiesce quiesce;

	pthread_mutex_t mutex;
	atomic_bool lost;
	struct fa_error lost_error; /* under the mutex until lost, then constant */
	uint64_t free_bytes;        /* free GPU memory, under the mutex */
	uint64_t free_bytes_ns;
};
