/*
 * What the files of the CUDA backend share (device_cuda*.c); nobody else includes it.
 *
 * Threads: a device's streams, groups, queues and works are the engine thread's, which may be
 * the loop thread for a round of the engine. Its memory is the workers', one at a time by their
 * turn. What the engine thread and workers both touch is atomic or under device.mutex. The rest
 * never changes between open and close.
 *
 * Every thread that calls the driver enters the device first, which is a comparison
 * once it has been there.
 */
#pragma once

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/cudriver.h"
#include "daemon/backend/device.h"
#include "kernels/cuda/paged-plan.h"
#include "kernels/cuda/plan.h"

#include <pthread.h>

/* ---- limits */

/* Streams that the driver can serve without one waiting for another; a user may ask
 * for fewer with CUDA_DEVICE_MAX_CONNECTIONS. */
#define FA_CUDA_CONNECTIONS 32
/* A quarter for high priority, half less one for normal, one for memory, and one for words that
 * ask launches to yield; the driver's own use the rest. */
#define FA_CUDA_STREAMS_MAX (FA_CUDA_CONNECTIONS * 3 / 4)
/* Works that a CUDA stream holds at once: enough to keep it busy while the engine looks
 * elsewhere, few enough that a queue which shares the stream is soon served. */
#define FA_CUDA_STREAM_DEPTH 4
/* Works that a queue may have outstanding. */
#define FA_CUDA_QUEUE_DEPTH 4
/* CUDA streams of one priority that a group spreads over: with more of them a group gets
 * more of the GPU than one that has a single queue. */
#define FA_CUDA_GROUP_STREAMS 1

/* Entries of a work's vectors: cu_seqlens have one more, slopes and sinks as many. */
#define FA_CUDA_SEQUENCES_MAX 4096
#define FA_CUDA_VECTOR_HEADS_MAX 1024
/* Room for all four, each on 16 bytes. */
#define FA_CUDA_VECTORS_BYTES (2 * 4 * (FA_CUDA_SEQUENCES_MAX + 4 + FA_CUDA_VECTOR_HEADS_MAX))

/* A launch of so many blocks at most tells its end itself (kernels/cuda/common/done.h): of
 * more, the fences of all blocks cost what the driver's word behind the launch does not. */
#define FA_CUDA_TELL_BLOCKS 1024
/* A launch of so few tiles to a block reads its vectors and tables where the host has them:
 * each is read once, sooner than it could be copied. */
#define FA_CUDA_IN_PLACE_TILES 2

/* Launches that are expected to take so long may give way to what is more urgent. What it costs
 * them when nobody asks is that the next launch is not there when they end: some 5 us.
 * FAD_YIELD_NS changes it, to measure. */
#define FA_CUDA_YIELD_NS (300 * FA_NS_PER_US)
/* Those that take so long may even where no stream of high priority has had a work: the 5 us are
 * a thousandth of them, and its first work would wait for all the rest. */
#define FA_CUDA_YIELD_ALWAYS_NS (5 * FA_NS_PER_MS)
/* They run for so long before they are asked, so that they get further each time;
 * FAD_YIELD_RUN_NS changes it, to measure. */
#define FA_CUDA_YIELD_RUN_NS (15 * FA_NS_PER_US)
/* What is urgent stops them for so long at a time; FAD_YIELD_STOP_NS changes it. */
#define FA_CUDA_YIELD_STOP_NS (2 * FA_NS_PER_MS)
/* What is expected to take so long is not to be waited for by calls that all launches wait for;
 * about what such a call takes itself. FAD_LONG_NS changes it, to test. */
#define FA_CUDA_LONG_NS (2 * FA_NS_PER_MS)

/* ---- the device */

/* Ranges of the staging area, in order; a work owns one while it is on its way. */
struct fa_cuda_range {
	struct fa_list link; /* device.stage.ranges */
	uint64_t begin, end; /* offsets; the same: none */
};

/* The launch of a stream that may give way to what is more urgent (backend/cuda/preempt.c): the
 * stream's last, as nothing is launched behind it. */
struct fa_cuda_preemption {
	struct fa_device_work *work; /* NULL: there is none */
	uint64_t stopped_ns;         /* when it was seen to have ended early; 0: it runs */
	CUdeviceptr word_at;         /* launches whose turn it has reached are to end */
	uint64_t run_ns;             /* that it has before it is asked, ... */
	uint64_t not_before_ns;      /* ... which is until then; UINT64_MAX: it waits for others */
	bool asked;
	CUfunction function;
	unsigned int grid, threads, shared_bytes; /* of the next launch, if it was stopped */
	union {
		struct fa_cuda_attention attention;
		struct fa_cuda_paged_attention paged;
	} args;
	struct fa_cuda_maps maps;
	bool is_long;     /* the work is one of the lull's while it runs */
	CUdeviceptr area; /* struct fa_cuda_yield_area and states */
	size_t area_bytes;
	uint64_t *report; /* the GPU writes here how many blocks are left */
	CUdeviceptr report_at;
};

/* What is launched, as far as its args do not say it. */
struct fa_cuda_preempt_kernel {
	CUfunction function;
	uint32_t grid;
	int32_t threads, shared_bytes;
};

/* What stands ready for one kernel of a stream's, see backend/cuda/graph_cache.c. */
#define FA_CUDA_GRAPHS 8

struct fa_cuda_graph {
	CUfunction function; /* NULL: the place is free */
	bool gated;          /* another kernel waits before it */
	CUgraph graph;
	CUgraphNode node, gate_node;
	CUgraphExec exec;  /* NULL: so far it is launched without */
	uint32_t launches; /* till then */
	uint64_t used;     /* stream.n_launches at the last one */
};

/* What stands behind gates on a stream, see backend/cuda/gate.c: the last of its works. */
struct fa_cuda_gates {
	const struct fa_device_queue *queue; /* whose they are */
	unsigned int n_works;                /* how many are not done */
	unsigned int n_open; /* of which so many have, or are about to have, begun */
	bool stopped;        /* they are asked to give up */
	uint64_t run;
	uint64_t *stop;         /* the host writes here up to which turn they are to */
	const uint64_t *report; /* the GPU writes here the turn of one that gives up, */
	uint64_t reported;      /* ... of which this was seen */
	CUdeviceptr stop_at, report_at, shut_at;
};

struct fa_cuda_stream {
	CUstream stream;
	int priority;
	unsigned int n_queues;
	/* The GPU writes here, in order, the sequence of each work that it has finished; of one
	 * whose parts are told, of each part to a word of its own. */
	const uint64_t *word;
	CUdeviceptr word_at;
	uint64_t sequence; /* of the last work given to the driver */
	/* ... or the last launch of a work writes it, whose blocks have counted themselves. */
	CUdeviceptr counter_at;
	uint64_t n_counted;           /* blocks of all launches that were asked to */
	uint64_t told;                /* the last work whose launch does */
	uint32_t told_parts;          /* of that, or 0: as a whole */
	uint64_t finished_ns;         /* when the last one was seen to be finished */
	struct fa_list works;         /* that the driver has, by fa_device_work.link */
	unsigned int n_works;         /* of them */
	struct fa_list shares;        /* of groups that have works for it, in their turn */
	bool held;                    /* ... all of which are long and held */
	char *vectors;                /* [FA_CUDA_STREAM_DEPTH][FA_CUDA_VECTORS_BYTES] */
	CUdeviceptr vectors_at;       /* the same on the GPU */
	CUdeviceptr vectors_in_place; /* vectors, as the GPU sees the host's memory */
	/* What paged requests use while they run: counters and partial results, then q. It
	 * grows, and what it was before is freed at the end. */
	CUdeviceptr scratch;
	size_t scratch_bytes;
	uint64_t epoch; /* of the last that used its counters */
	struct fa_cuda_graph graphs[FA_CUDA_GRAPHS];
	uint64_t n_launches; /* by them or for them */
	struct fa_cuda_gates gates;
	struct fa_cuda_preemption yielding;
};

/* Scratch of all streams that were ever made. */
struct fa_cuda_scratch {
	struct fa_cuda_scratch *next;
	CUdeviceptr at;
};

/*
 * Room for what travels with paged requests: pinned, and as much on the GPU. Who has a span
 * writes to it on the host; it is copied to the same place before it is used. The loop
 * thread's.
 */
#define FA_CUDA_ROOM_BYTES ((size_t)64 << 20)

struct fa_cuda_span {
	struct fa_list link; /* room.spans, by place */
	size_t begin, end;
};

struct fa_cuda_heap {
	char *host;           /* NULL: there is none */
	CUdeviceptr at;       /* the same on the GPU */
	CUdeviceptr in_place; /* host, as the GPU sees it */
	struct fa_list spans;
	struct fa_list *last; /* where the search for a gap goes on */
};

/* A work of a step's as it was planned: that of another layer is the same. */
struct fa_cuda_kept {
	struct fa_paged_request request; /* without what a layer has of its own */
	struct fa_cuda_paged_plan plan;
	size_t blob_at; /* in the room */
};

#define FA_CUDA_KEPT 2 /* append, and attention */
/* Of both of 128 sequences, with what those share; of more that share nothing. */
#define FA_CUDA_KEPT_BYTES ((size_t)FA_DEVICE_KEPT_BYTES)

/* A step's tables, and behind them what is kept for its works. */
struct fa_cuda_tables {
	struct fa_device_tables tables; /* first; backend[0]: where they are on the GPU */
	struct fa_cuda_span span;
	/* The loop thread's. */
	size_t used; /* of the span; what was written once stays as it is */
	struct fa_cuda_kept kept[FA_CUDA_KEPT];
	unsigned int n_kept;
	/* The engine thread's. */
	bool read_in_place;                   /* by a work */
	size_t uploaded[FA_CUDA_STREAMS_MAX]; /* of the span; each stream copies for itself */
};

/* The KV pool's memory: chunks side by side in one range of addresses. The loop thread's. */
struct fa_cuda_pool {
	CUdeviceptr at; /* 0: not open */
	uint64_t chunk_bytes;
	uint32_t max_chunks;
	bool *mapped; /* [max_chunks] */
};

enum fa_cuda_staging_mode {
	FA_CUDA_STAGE_AUTO,
	FA_CUDA_STAGE_ALWAYS,
	FA_CUDA_STAGE_NEVER,
};

/*
 * Maps as the driver encoded them, by all that they are made of: requests come again with
 * the same tensors, and encoding takes longer than finding. A map says where a tensor
 * lies and how, not what is there, so it never grows old. The engine thread's.
 */
#define FA_CUDA_MAP_SETS 64
#define FA_CUDA_MAP_WAYS 4

struct fa_cuda_known_map {
	struct fa_cuda_map of;                                  /* data NULL: there is none */
	uint64_t words[sizeof(CUtensorMap) / sizeof(uint64_t)]; /* not aligned as it is to be */
};

struct fa_cuda_known_maps {
	struct fa_cuda_known_map sets[FA_CUDA_MAP_SETS][FA_CUDA_MAP_WAYS];
	uint8_t oldest[FA_CUDA_MAP_SETS]; /* the way that is replaced next */
};

/* Whose turn it is to call the driver for memory: first come, first served. */
struct fa_cuda_turn {
	pthread_mutex_t mutex;
	pthread_cond_t next;
	uint64_t n_asked, n_done;
};

/* Times in which nothing runs that takes long, see backend/cuda/quiesce.c. */
struct fa_cuda_quiesce {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	/* Under the mutex. */
	unsigned int n_long;  /* works that the driver has, and that may take long */
	unsigned int n_calls; /* workers that make calls which wait for the GPU, or are about to */
	unsigned int n_waiting; /* workers that wait for n_long to become 0, ... */
	uint64_t hard_ns;       /* ... for which steady ones are held from then on */
	uint64_t ended_ns;      /* when calls had been made that held up something */
	bool held;              /* something long could not begin, and has not begun since */

	atomic_bool wanted; /* n_waiting is not 0 */
	/* The engine thread's. */
	unsigned int n_steady;    /* of the long ones, those that cannot give way */
	uint64_t steady_until_ns; /* when all of them should have ended */
	uint64_t long_ns;         /* what is expected to take so long is long */
};

struct fa_device {
	struct fa_cudriver driver;
	struct fa_device_config config;
	uint64_t serial; /* of devices that this process opened */
	CUdevice ordinal;
	CUcontext context;
	int driver_version;
	struct fa_cuda_chip chip;
	struct fa_device_info info; /* but the free memory */
	size_t granularity;         /* of allocations that are mapped */

	CUmodule modules[FA_CUDA_IMAGES];
	CUfunction *functions; /* [fa_cuda_kernels_count]; NULL: not for this chip */
	unsigned int n_functions;
	struct fa_error special_error; /* why chip.portable, if it is */
	struct fa_cuda_known_maps maps;
	CUmodule paged_modules[FA_CUDA_PAGED_IMAGES];
	CUfunction *paged_functions; /* [fa_cuda_paged_kernels_count]; NULL: not for this chip */
	CUfunction gate_function;    /* one of these; NULL: the device waits for no words */

	void *pinned;        /* words, then vectors */
	CUdeviceptr vectors; /* and the streams' counters behind them */
	struct fa_cuda_stream streams[FA_CUDA_STREAMS_MAX];
	unsigned int n_streams, n_high; /* those of high priority come first */
	struct fa_list done;            /* to be reaped */
	bool reaping;
	bool held;            /* a work of a stream is, as it takes long (backend/cuda/quiesce.c) */
	bool no_graphs;       /* the driver could not make one */
	unsigned int n_works; /* that the driver has */
	uint64_t progress_ns, queried_ns; /* last finished; last asked for errors */

	struct {
		CUdeviceptr at;
		uint64_t bytes;
		enum fa_cuda_staging_mode mode;
		struct fa_list ranges;
	} stage;

	struct fa_cuda_heap room;
	struct fa_cuda_pool pool;
	struct fa_cuda_scratch *scratches; /* the engine thread's */

	/* The engine thread's. */
	struct {
		CUstream stream;   /* that words are written on */
		CUdeviceptr words; /* one for each of streams */
		uint64_t turn;     /* of the last launch that may yield */
		unsigned int n_running;
		uint64_t least_work_ns, least_run_ns, longest_stop_ns;
	} yield;

	struct fa_cuda_quiesce lull;
	struct fa_cuda_turn turn;
	CUstream memory_stream;
	uint64_t pin_part_bytes, pin_pause_ns;

	pthread_mutex_t mutex;
	atomic_bool lost;
	struct fa_error lost_error;         /* under the mutex until lost, then never changed */
	uint64_t free_bytes, free_bytes_ns; /* under the mutex: what was asked when */
};

/* Makes the device's context this thread's. */
CUresult fa_cuda_enter(struct fa_device *device);

/* The device is lost for good, for the reason in @why. Any thread. */
void fa_cuda_lose(struct fa_device *device, const char *why);

/*
 * A call of the driver failed on @stream, or on one that has nothing to do with it:
 * writes the sentence, finds out whether the device is lost, and returns the errno,
 * which is -ENODEV if and only if it is.
 */
int fa_cuda_fail(struct fa_device *device, CUstream stream, struct fa_error *error, CUresult result,
                 const char *doing);

/* ---- kernels (backend/cuda/modules.c) */

/* Loads every kernel that the chip can run. */
int fa_cuda_kernels_load(struct fa_device *device, struct fa_error *error);
void fa_cuda_kernels_unload(struct fa_device *device);
/* The same for those over pages, which a build may lack. */
int fa_cuda_paged_kernels_load(struct fa_device *device, struct fa_error *error);

int fa_cuda_check(struct fa_device *device, const struct fa_attention_params *params,
                  struct fa_error *error);

/* ---- maps (backend/cuda/tensor_maps.c); on the engine thread */

/* What a kernel takes besides its args, if it takes maps: @n of them, or none. */
CUresult fa_cuda_maps_make(struct fa_device *device, const struct fa_cuda_map *maps, uint32_t n,
                           struct fa_cuda_maps *ret_maps);

/* ---- memory (backend/cuda/memory.c, _host.c, _vmm.c); on workers */

enum fa_cuda_memory_kind {
	FA_CUDA_MEMORY_HOST,   /* pinned */
	FA_CUDA_MEMORY_IPC,    /* opened by its handle */
	FA_CUDA_MEMORY_MAPPED, /* allocations mapped side by side */
};

/* What fa_device_memory.backend points to. */
struct fa_cuda_memory {
	enum fa_cuda_memory_kind kind;
	CUdeviceptr at; /* of what was pinned, opened or reserved */
	uint64_t bytes; /* of it */
	/* Pinned memory: where it is in this process, how much of it is pinned, and in
	 * parts of which size: no copy may cross their borders. */
	char *host;
	uint64_t pinned_bytes, part_bytes;
	size_t n_mapped; /* pieces that are mapped */
	uint64_t piece_bytes[];
};

/* Whose turn it is to call the driver for memory. */
struct fa_device *fa_cuda_turn_begin(struct fa_device *device);
void fa_cuda_turn_endp(struct fa_device **device);

/* Waits for its turn, which lasts until the end of the block. */
#define FA_CUDA_TAKE_TURN(device)                                                                  \
	_fa_cleanup_(fa_cuda_turn_endp) struct fa_device *_turn                                    \
		__attribute__((unused)) = fa_cuda_turn_begin(device)

/* In the middle of a turn: leaves the driver to others for a while; and the turn, too. */
void fa_cuda_pause(uint64_t ns);
void fa_cuda_turn_pause(struct fa_device *device, uint64_t ns);

/* A worker's stay in a lull. */
struct fa_cuda_quiesce_visit {
	struct fa_device *device;
	uint64_t until_ns; /* it lasts; 0: there is none so far */
	bool waited;       /* for it */
	bool hard;         /* the last time steady launches were held for it */
};

/* Before each call of the driver that waits for the GPU, without a turn: waits for a lull, unless
 * the last one still lasts. What is long is held as long as the visit lasts: so no call is to be
 * made, and nothing else done, when it is over. */
void fa_cuda_quiesce_enter(struct fa_cuda_quiesce_visit *visit);
bool fa_cuda_quiesce_is_over(const struct fa_cuda_quiesce_visit *visit);
void fa_cuda_quiesce_leave(struct fa_cuda_quiesce_visit *visit);

/* Between the allocations of one buffer. */
#define FA_CUDA_PIECE_PAUSE_NS 20000

/* fa_cuda_fail() on the workers' stream. */
int fa_cuda_memory_fail(struct fa_device *device, struct fa_error *error, CUresult result,
                        const char *doing);
int fa_cuda_memory_enter(struct fa_device *device, struct fa_error *error);

/* Zeroed, or NULL. */
struct fa_cuda_memory *fa_cuda_memory_new(enum fa_cuda_memory_kind kind, size_t n_pieces);
/* Gives back what the driver gave, however far it had got. Takes NULL. */
struct fa_cuda_memory *fa_cuda_memory_free(struct fa_cuda_quiesce_visit *visit,
                                           struct fa_cuda_memory *memory);
/* Of an import that failed: what would have to wait for a lull is left in *ret_memory, to be
 * released. */
void fa_cuda_memory_drop(struct fa_device *device, struct fa_cuda_memory *memory,
                         struct fa_device_memory *ret_memory);

/* Whether [offset, offset + bytes) lies in @whole_bytes. */
bool fa_cuda_memory_fits(uint64_t offset, uint64_t bytes, uint64_t whole_bytes);

int fa_cuda_memory_import_host(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
                               bool read_only, struct fa_error *error,
                               struct fa_device_memory *ret_memory);
int fa_cuda_memory_import_mapped(struct fa_device *device, void *host, uint64_t bytes,
                                 struct fa_error *error, struct fa_device_memory *ret_memory);
int fa_cuda_memory_new_arena(struct fa_device *device, uint64_t bytes, struct fa_error *error,
                             struct fa_device_memory *ret_memory, int *ret_fd,
                             uint64_t *ret_piece_bytes);
int fa_cuda_memory_import_ipc(struct fa_device *device, const uint8_t handle[64], uint64_t offset,
                              uint64_t bytes, bool read_only, struct fa_error *error,
                              struct fa_device_memory *ret_memory);
int fa_cuda_memory_import_pieces(struct fa_device *device, const struct fa_device_piece *pieces,
                                 size_t n_pieces, uint64_t offset, uint64_t bytes, bool read_only,
                                 struct fa_error *error, struct fa_device_memory *ret_memory);
void fa_cuda_memory_release(struct fa_device *device, struct fa_device_memory *const *memories,
                            size_t n);

/* Fills it with zeros, and waits for that. */
int fa_cuda_zero(struct fa_device *device, CUdeviceptr at, uint64_t bytes, struct fa_error *error);
/* Lets the GPU read and write it; @read_only: only read it, if the driver can say so. */
int fa_cuda_set_access(struct fa_device *device, CUdeviceptr at, uint64_t bytes, bool read_only,
                       struct fa_error *error);
/* An allocation that can be exported as a descriptor. */
CUmemAllocationProp fa_cuda_allocation(const struct fa_device *device);
const void *fa_cuda_memory_host(struct fa_device *device, const struct fa_device_memory *memory);

/* ---- the KV pool (backend/cuda/pool.c); on the loop thread */

int fa_cuda_pool_open(struct fa_device *device, uint64_t chunk_bytes, uint32_t max_chunks,
                      struct fa_error *error, void **ret_base);
void fa_cuda_pool_close(struct fa_device *device);
int fa_cuda_pool_chunk_add(struct fa_device *device, uint32_t chunk, struct fa_error *error,
                           bool *ret_zeroed, int *ret_fd);
int fa_cuda_pool_chunk_adopt(struct fa_device *device, uint32_t chunk, int fd,
                             struct fa_error *error);
void fa_cuda_pool_chunk_remove(struct fa_device *device, uint32_t chunk);

/* ---- room (backend/cuda/metadata_heap.c); on the loop thread */

int fa_cuda_heap_open(struct fa_device *device, struct fa_error *error);
void fa_cuda_heap_close(struct fa_device *device);
/* A span of at least @bytes, on 256 bytes; false: there is no gap so large. */
bool fa_cuda_heap_take(struct fa_cuda_heap *room, size_t bytes, struct fa_cuda_span *span);
/* Keeps the first @bytes of it. */
void fa_cuda_heap_cut(struct fa_cuda_span *span, size_t bytes);
void fa_cuda_heap_give(struct fa_cuda_heap *room, struct fa_cuda_span *span);
int fa_cuda_tables_new(struct fa_device *device, size_t bytes, struct fa_error *error,
                       struct fa_device_tables **ret_tables);
struct fa_device_tables *fa_cuda_tables_free(struct fa_device *device,
                                             struct fa_device_tables *tables);

/* ---- paged requests (backend/cuda/paged.c) */

/* On the loop thread. */
int fa_cuda_paged_cache_check(struct fa_device *device, const struct fa_paged_cache *cache,
                              struct fa_error *error);
int fa_cuda_paged_prepare(struct fa_device *device, struct fa_device_work *work,
                          struct fa_error *error);
void fa_cuda_paged_release(struct fa_device *device, struct fa_device_work *work);
/* Whether that is one kernel which may stand behind a gate, and maybe copies before. */
bool fa_cuda_paged_may_wait(const struct fa_device_work *work);
/* How long a prepared work takes, with caution; and whether its kernel can give way. */
double fa_cuda_paged_ns(const struct fa_device_work *work);
bool fa_cuda_paged_may_give_way(const struct fa_device_work *work);
/* All that the driver is told of a prepared work; on the engine thread. 0 or its status. */
int fa_cuda_paged_enqueue(struct fa_device *device, struct fa_cuda_stream *stream,
                          struct fa_device_work *work);
void fa_cuda_paged_close(struct fa_device *device);

/* ---- staging (backend/cuda/staging.c) */

/*
 * Whether @span_bytes of pinned memory, of which @data_bytes are the tensor's, are to
 * be copied to the GPU before a kernel that reads each of them @n_reads times.
 */
bool fa_cuda_staging_pays(uint64_t span_bytes, uint64_t data_bytes, uint64_t n_reads);

/* How often @launch reads each element of K and V, about. */
uint64_t fa_cuda_staging_reads(const struct fa_cuda_launch *launch);

/*
 * Copies what of K and V lies in host memory to the staging area, as far as that pays
 * and there is room, and makes @launch read it there. @range holds the room until
 * fa_cuda_staging_free(). On the engine thread.
 */
CUresult fa_cuda_stage(struct fa_device *device, CUstream stream, const struct fa_device_work *work,
                       struct fa_cuda_launch *launch, struct fa_cuda_range *range);
void fa_cuda_staging_free(struct fa_cuda_range *range);

/* ---- streams (backend/cuda/stream.c) */

int fa_cuda_streams_open(struct fa_device *device, struct fa_error *error);
void fa_cuda_streams_close(struct fa_device *device);

/*
 * Asks the launch that is the last of the stream's newest work to tell its end; @done is its
 * argument, @parts as in fa_cuda_done. Whoever launched says so with fa_cuda_self_signal_launched(), else the
 * driver is asked for a word. On the engine thread.
 */
void fa_cuda_self_signal_args(const struct fa_cuda_stream *stream,
                              const struct fa_device_work *work, uint64_t blocks, uint32_t parts,
                              struct fa_cuda_done *done);
void fa_cuda_self_signal_launched(struct fa_cuda_stream *stream, uint64_t blocks, uint32_t parts);

/* ---- launches (backend/cuda/graph_cache.c); on the engine thread */

struct fa_cuda_kernel_launch {
	CUfunction function;
	unsigned int grid_x, grid_y, threads, shared_bytes;
	bool behind; /* the stream has launches ahead of it, and it awaits their end itself */
};

/* On @stream, as the next of its newest work, @params as cuLaunchKernel() takes them; @gate: what
 * waits before it, or NULL. */
CUresult fa_cuda_launch_kernel(struct fa_device *device, struct fa_cuda_stream *stream,
                               const struct fa_cuda_kernel_launch *launch, void **params,
                               const struct fa_cuda_gate *gate);
/* Nothing of the stream is in flight. */
void fa_cuda_graphs_close(struct fa_device *device, struct fa_cuda_stream *stream);

/* ---- gates (backend/cuda/gate.c); on the engine thread but for the first */

/* With the kernels over pages: finds the gate among them, if there are to be any. */
void fa_cuda_gates_open(struct fa_device *device);
/* The gate of @work, the stream's newest, whose launch tells its end by @done. */
struct fa_cuda_gate fa_cuda_gate_of(const struct fa_cuda_stream *stream,
                                    const struct fa_device_work *work, struct fa_cuda_done *done);
/* One that was launched behind its gate, of @queue as all that are. */
void fa_cuda_gates_add(struct fa_cuda_stream *stream, const struct fa_device_queue *queue);
/* Asks all gates of the stream to give up. */
void fa_cuda_gates_stop(struct fa_cuda_stream *stream);
/* Whether one has given up since this was asked: then from *ret_turn on all are shut. */
bool fa_cuda_gates_are_shut(struct fa_cuda_stream *stream, uint64_t *ret_turn);
/* Those that come now have nothing to do with those that came before. */
void fa_cuda_gates_begin(struct fa_cuda_stream *stream);

/* ---- giving way (backend/cuda/preempt.c); on the engine thread but for the first two */

int fa_cuda_preempt_open(struct fa_device *device, struct fa_error *error);
void fa_cuda_preempt_close(struct fa_device *device);

/* Whether a launch of @stream that takes @work_ns is to be one that may yield; finds the room
 * for its states then. */
bool fa_cuda_preempt_prepare(struct fa_device *device, struct fa_cuda_stream *stream,
                             int32_t state_bytes, uint64_t work_ns);
/* Launches it as the last of @work, the stream's newest. @args: those of attention over tensors
 * or over pages. */
CUresult fa_cuda_preempt_launch(struct fa_device *device, struct fa_cuda_stream *stream,
                                struct fa_device_work *work,
                                const struct fa_cuda_preempt_kernel *kernel, const void *args,
                                size_t args_bytes, const struct fa_cuda_maps *maps);
/* A work is about to be launched on @stream. */
void fa_cuda_preempt_ask(struct fa_device *device, const struct fa_cuda_stream *stream);
/* @work is now the first of the stream's works: those ahead of it have ended. */
void fa_cuda_preempt_first(struct fa_cuda_stream *stream, const struct fa_device_work *work,
                           uint64_t now_ns);
/* The work that may yield was cancelled: asks for its end. */
void fa_cuda_preempt_cancel(struct fa_device *device, struct fa_cuda_stream *stream);
/* Whether the stream has a work that ended early and is not done. */
bool fa_cuda_preempt_stopped(struct fa_device *device, struct fa_cuda_stream *stream);
/* The stream's work that may yield has ended. */
void fa_cuda_preempt_end(struct fa_device *device, struct fa_cuda_stream *stream);
/* Launches the rest of one that was stopped, if it is time. */
CUresult fa_cuda_preempt_resume(struct fa_device *device, struct fa_cuda_stream *stream);
/* Asks those who could not be asked so far. */
void fa_cuda_preempt_look(struct fa_device *device);

/* ---- what takes long (backend/cuda/quiesce.c); on the engine thread but for the first two */

void fa_cuda_quiesce_init(struct fa_cuda_quiesce *lull);
void fa_cuda_quiesce_deinit(struct fa_cuda_quiesce *lull);
/* How long @work takes, which is prepared, if that is long; else 0. And whether its kernel is one
 * that can give way, and probably will be asked to. */
uint64_t fa_cuda_long_ns(const struct fa_device *device, const struct fa_device_work *work);
bool fa_cuda_may_give_way(const struct fa_device *device, const struct fa_device_work *work);
/* So many operations on numbers of @dtype, by a kernel for the chip alone or another. */
double fa_cuda_flops_ns(const struct fa_device *device, enum fa_attention_dtype dtype, bool special,
                        double flops);
/* Whether something long may be launched, which takes @steady_ns, or 0 if it can give way; if so it
 * is ended once it has ended, or stopped. */
bool fa_cuda_long_begin(struct fa_device *device, uint64_t steady_ns);
void fa_cuda_long_end(struct fa_device *device);
/* It was launched and cannot give way: until when it should have ended. When it has, and with that
 * is not long any more, @until_ns is that of the others. */
uint64_t fa_cuda_steady_begin(struct fa_device *device, uint64_t steady_ns);
void fa_cuda_steady_end(struct fa_device *device, uint64_t until_ns);
/* What might not be launched is no more to be. */
void fa_cuda_long_forget(struct fa_device *device);
/* Whether workers wait for what is long and can give way, and for nothing else. */
bool fa_cuda_quiesce_is_near(const struct fa_device *device);

/* ---- queues (backend/cuda/queue.c); on the engine thread */

int fa_cuda_group_new(struct fa_device *device, struct fa_error *error,
                      struct fa_device_group **ret_group);
struct fa_device_group *fa_cuda_group_free(struct fa_device *device, struct fa_device_group *group);
int fa_cuda_queue_new(struct fa_device *device, struct fa_device_group *group, int priority,
                      struct fa_error *error, struct fa_device_queue **ret_queue);
struct fa_device_queue *fa_cuda_queue_free(struct fa_device *device, struct fa_device_queue *queue);
bool fa_cuda_may_wait(struct fa_device *device, const struct fa_device_queue *queue,
                      const struct fa_device_work *work);
void fa_cuda_launch(struct fa_device *device, struct fa_device_queue *queue,
                    struct fa_device_work *work);
void fa_cuda_cancel(struct fa_device *device, struct fa_device_work *work);
void fa_cuda_reap(struct fa_device *device, struct fa_list *done);
int fa_cuda_health(struct fa_device *device, struct fa_error *error);
bool fa_cuda_is_lost(struct fa_device *device);
