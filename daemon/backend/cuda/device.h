/*
 * The open device and its streams. Comments name a field's thread; the loop thread may stand in for
 * the engine thread. Shared fields are atomic or under device.mutex; others are constant between
 * open and close.
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

/* The driver serves this many streams independently. */
#define FA_CUDA_CONNECTIONS 32
/* A quarter of the connections have high priority; half, less one, normal priority. Memory and
 * preemption have one each, and the driver the rest. */
#define FA_CUDA_STREAMS_MAX (FA_CUDA_CONNECTIONS * 3 / 4)
/* Limits the works of a stream in flight. More would make other queues wait. */
#define FA_CUDA_STREAM_DEPTH 4

/* Limits the entries of a work's vectors (cu_seqlens have one more). */
#define FA_CUDA_SEQUENCES_MAX 4096
#define FA_CUDA_VECTOR_HEADS_MAX 1024
/* Memory for a work's vectors, each aligned to 16 bytes. */
#define FA_CUDA_VECTORS_BYTES                                                                      \
	(2 * 4 * (FA_CUDA_SEQUENCES_MAX + 4 + FA_CUDA_VECTOR_HEADS_MAX) +                          \
	 sizeof(struct fa_cuda_ragged_unit) *                                                      \
	         (FA_CUDA_RAGGED_UNITS_MAX + FA_CUDA_RAGGED_BLOCKS_MAX))

#define FA_CUDA_GRAPHS 8

/* A stream's preemptible launch (preempt.c), always its last. */
struct fa_cuda_preemption {
	struct fa_device_work *work; /* NULL: none */
	uint64_t stopped_ns;         /* 0: it runs */
	CUdeviceptr word_at;         /* stops the launch when it is its turn */
	uint64_t run_ns;             /* guaranteed run time */
	/* Earliest stop; UINT64_MAX: works ahead have not ended. */
	uint64_t not_before_ns;
	bool stop_requested;
	CUfunction function;
	unsigned int grid, threads, shared_bytes;
	union {
		struct fa_cuda_attention attention;
		struct fa_cuda_packed_attention packed;
		struct fa_cuda_masked_attention masked;
		struct fa_cuda_paged_attention paged;
		struct fa_cuda_paged_attention_own own;
	} args;
	struct fa_cuda_maps maps;
	bool is_long; /* in device.quiesce */
	/* For preempted blocks: struct fa_cuda_preempt_area, then the states. */
	CUdeviceptr area;
	size_t area_bytes;
	uint64_t *report; /* the GPU writes how many blocks are left */
	CUdeviceptr report_at;
};

struct fa_cuda_graph {
	CUfunction function; /* NULL: the entry is free */
	bool gated;          /* a gate precedes it */
	CUgraph graph;
	CUgraphNode node, gate_node;
	CUgraphExec exec;  /* NULL: not made yet */
	uint32_t launches; /* of this kernel, without the graph */
	uint64_t used;     /* stream.n_launches at the last use */
};

/* Works behind gates (gate.c), always the stream's last. */
struct fa_cuda_gates {
	const struct fa_device_queue *queue; /* the works' */
	/* Works in flight, and those of them behind open gates. */
	unsigned int n_works, n_open;
	bool stopped;
	uint64_t run;
	uint64_t *stop;         /* by the host: gates up to this turn give up */
	const uint64_t *report; /* by the GPU: turn of a gate that gave up */
	uint64_t reported;
	CUdeviceptr stop_at, report_at, shut_at;
};

struct fa_cuda_stream {
	CUstream stream;
	int priority;
	unsigned int n_queues;
	/* The GPU writes the sequence of a work that has ended here; for parts, one word each, side
	 * by side. */
	const uint64_t *word;
	CUdeviceptr word_at;
	uint64_t sequence;
	CUdeviceptr counter_at;  /* of blocks that signal their end */
	uint64_t n_counted;      /* its value after all launches so far */
	uint64_t self_signalled; /* newest work that signals its end */
	/* parts that signal it; 0: the whole */
	uint32_t self_signal_parts;
	uint64_t finished_ns;
	struct fa_list works;         /* in flight */
	unsigned int n_works;         /* in flight */
	struct fa_device_lane lane;   /* the engine's view */
	char *vectors;                /* [FA_CUDA_STREAM_DEPTH][FA_CUDA_VECTORS_BYTES] */
	CUdeviceptr vectors_at;       /* the vectors' copy on the GPU */
	CUdeviceptr vectors_in_place; /* the host's vectors, for the GPU */
	/* Scratch of paged works: counters and partial results, then q. */
	CUdeviceptr scratch;
	size_t scratch_bytes;
	uint64_t epoch; /* the counters' last use */
	struct fa_cuda_graph graphs[FA_CUDA_GRAPHS];
	uint64_t n_launches; /* through the graph cache */
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
	uint64_t serial;
	CUdevice ordinal;
	CUcontext context;
	int driver_version;
	struct fa_cuda_chip chip;
	struct fa_device_info info; /* except the free memory */
	size_t granularity;         /* of mapped memory */

	CUmodule modules[FA_CUDA_IMAGES];
	CUfunction *functions; /* [fa_cuda_kernels_count]; NULL: not for this chip */
	unsigned int n_functions;
	struct fa_error special_error;
	CUmodule paged_modules[FA_CUDA_PAGED_IMAGES];
	CUfunction *paged_functions; /* [fa_cuda_paged_kernels_count]; NULL: not for this chip */
	CUfunction gate_function;    /* one of them; NULL: no gates */
	struct fa_cuda_tensor_map_cache tensor_maps;

	/* The engine thread uses these. */
	void *pinned;        /* all streams' words, then their vectors */
	CUdeviceptr vectors; /* on the GPU, and streams' counters */
	struct fa_cuda_stream streams[FA_CUDA_STREAMS_MAX];
	unsigned int n_streams, n_high; /* n_high come first */
	struct fa_list done;            /* to be reaped */
	bool reaping;
	bool held;            /* quiesce.c defers a work */
	bool no_graphs;       /* the driver refused to make a graph */
	unsigned int n_works; /* in flight */
	uint64_t progress_ns;
	uint64_t queried_ns;

	struct {
		CUdeviceptr at;
		uint64_t bytes;
		struct fa_list ranges; /* fa_cuda_range.link, by offset */
	} staging;

	struct {
		CUstream stream;   /* writes the words */
		CUdeviceptr words; /* one per stream */
		uint64_t turn;     /* the last preemptible launch's */
		unsigned int n_running;
	} preempt;
	struct fa_cuda_scratch *scratches;

	/* The loop thread uses these. */
	struct fa_cuda_heap heap;
	struct fa_cuda_pool pool;

	/* Workers use these. */
	struct fa_cuda_driver_lock memory_lock;
	CUstream memory_stream;

	struct fa_cuda_quiesce quiesce;

	pthread_mutex_t mutex;
	atomic_bool lost;
	struct fa_error lost_error; /* under the mutex until lost */
	uint64_t free_bytes;        /* of the GPU, under the mutex */
	uint64_t free_bytes_ns;
};
