/*
 * The contract between the engine and a backend. A backend owns one device (the CPU or a GPU), the
 * memory that clients handed over as the device sees it, and in-order queues of works. The daemon
 * sees nothing of a backend but this header; backends include nothing of the layers above.
 *
 * Threads: memory_* are called by workers, may take milliseconds, and may run beside everything
 * else. group_*, queue_*, can_wait, launch, cancel, reap and health are called by the engine
 * thread, or by the loop thread in its place, but never by both at a time. open, close, pool_*,
 * tables_*, paged_* and attention_* are called by the loop thread; check, describe, memory_host and
 * is_lost by any thread.
 */
#pragma once

#include "common/error.h"
#include "common/list.h"
#include "daemon/base/fair_queue.h"
#include "kernels/attention.h"
#include "kernels/paged.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fa_device;
struct fa_device_group;
struct fa_device_queue;

struct fa_device_config {
	unsigned int threads; /* CPU: workers; 0: one for each processor this process may use */
	const char *device;   /* GPU: ordinal ("0") or "GPU-…" UUID; NULL: the first */
	/*
	 * Called by any thread of the backend when reap() has something to return after it had
	 * nothing, or when health() has turned bad. Must be cheap and thread-safe, and must not
	 * call the backend. No call is under way once reap() has returned all that was launched.
	 */
	void (*notify)(void *userdata);
	void *userdata;
};

/* Whether contexts on the device belong to an MPS server that several processes share. */
enum fa_device_mps {
	FA_DEVICE_MPS_NONE, /* the device knows no MPS */
	FA_DEVICE_MPS_OFF,
	FA_DEVICE_MPS_ON,
	FA_DEVICE_MPS_UNKNOWN, /* the driver does not say */
};

/* Returns how many modules of GPU kernels this build has; 0: it was built without. */
unsigned int fa_device_cuda_modules(void);

struct fa_device_info {
	char backend[16];
	char name[64];     /* model of the processor or GPU */
	char details[256]; /* for the log: driver, kernels, time to open; may be empty */
	uint64_t uuid[2];
	unsigned int threads; /* 0: does not apply */
	unsigned int depth;   /* works of one queue that may be outstanding */
	/*
	 * The device does not signal the end of a work: while works are outstanding, reap() has to
	 * be called again and again. notify is called nevertheless for what the backend itself
	 * finds out.
	 */
	bool polled;
	/* How long after the end of its process the device may go on with its works, and write to
	 * memory that other processes adopt. */
	uint64_t linger_ns;
	enum fa_device_mps mps;
	bool can_wait; /* the device may be able to wait for clients' words (can_wait()) */
	/* The device's own memory; 0: it has none. */
	uint64_t memory_bytes, memory_free_bytes;
	uint64_t arena_granularity; /* arena sizes are rounded up to multiples; 0: no rounding */
};

/*
 * Memory as kernels address it: [address, address + bytes) is valid. For a GPU it is the device's
 * address, which the daemon itself must not dereference.
 */
struct fa_device_memory {
	void *address;
	uint64_t bytes;
	bool writable;
	void *backend; /* private to the backend */
	/* Set by the importer: which file the memory is part of, and where; inode 0: unknown. */
	uint64_t file_system, inode, file_offset;
};

/* An allocation of a client, passed as a descriptor that the driver has exported. */
struct fa_device_piece {
	int fd;
	uint64_t bytes; /* as the client says; the backend checks it with the driver */
};

/* The tensors of a request: indices of fa_device_work.memories. */
enum fa_device_tensor {
	FA_DEVICE_Q,
	FA_DEVICE_K,
	FA_DEVICE_V,
	FA_DEVICE_OUT,
	FA_DEVICE_LSE,
	FA_DEVICE_BLOCK_OFFSETS,
	FA_DEVICE_BLOCK_COLUMNS,
	FA_DEVICE_MASK,
	FA_DEVICE_Q_SCALES,
	FA_DEVICE_K_SCALES,
	FA_DEVICE_V_SCALES,
	_FA_DEVICE_TENSOR_N,
};

/* Arrays that many works share: a step's tables. Written once, before the first of these works is
 * launched. */
struct fa_device_tables {
	void *data; /* address for the host */
	size_t bytes;
	uint64_t backend[2]; /* private to the backend */
};

/* A backend may use up to this many bytes, besides a step's tables, for plans of the step's
 * works. */
#define FA_DEVICE_PLAN_CACHE_BYTES 24576

enum fa_device_op {
	FA_DEVICE_ATTENTION, /* params */
	FA_DEVICE_PAGED,     /* the requests in `paged`, in the pool's memory */
	FA_DEVICE_COPY,      /* `copies`, of bytes between the pool and clients' memory */
	FA_DEVICE_NONE,      /* nothing; never launched */
};

/* A copy between two places as kernels address them. */
struct fa_device_copy {
	char *pool; /* in one chunk of the pool */
	char *data; /* in @memory */
	uint64_t bytes;
	const struct fa_device_memory *memory;
};

/* A gate: the work begins when the word has reached value (counted as a timeline's). */
struct fa_device_gate {
	const uint64_t *word;      /* address of the word for the device; NULL: no gate */
	const uint64_t *host_word; /* address of the same word for the host */
	uint64_t value;
};

/*
 * One launch, embedded in the engine's job. The caller sets op, params, paged or copies, and the
 * fields below that say so; what they point to must live until the work is reaped.
 * The backend sets the rest.
 */
struct fa_device_work {
	struct fa_list link; /* used by the backend from launch() to reap() */
	enum fa_device_op op;
	const struct fa_attention_params *params;
	/*
	 * [n_paged]: requests that run in order, each after the end of the one before. Tensors, cos
	 * and sin are in the device's memory. All other arrays are in host memory or, where they
	 * are as large as those of a step, in tables. An append with q_out.data NULL writes q to
	 * memory of the backend's, whose strides leave no gaps; an attention behind it with q.data
	 * NULL reads it there.
	 */
	struct fa_paged_request *paged;
	uint32_t n_paged;
	/* [n_copies]: done in any order. @to_pool: from the client's memory to the pool. */
	const struct fa_device_copy *copies;
	uint32_t n_copies;
	bool to_pool;
	struct fa_device_tables
		*tables; /* set by the caller; NULL: all arrays are in host memory */
	/* Set by the caller: caches and steps of paged keep their address and contents as long as
	 * tables, so works for other layers that come with the same ones may reuse this plan. */
	bool reuse_plan;
	/* Private to the backend, from *_prepare() to *_release(). */
	void *prepared;
	/* Set by the caller: a work that goes to the same queue before this one and is not
	 * released, or NULL. As the two never run at the same time, paged_prepare() may take over
	 * its prepared memory, and then sets its prepared_moved: from then on that memory,
	 * host_bytes included, belongs to this work. */
	struct fa_device_work *predecessor;
	bool prepared_moved;
	/* Set by paged_prepare() and attention_prepare() on success: bytes taken of the memory that
	 * steps' tables share, and of the host's memory. */
	uint64_t metadata_bytes, host_bytes;
	/* Set by paged_prepare(): how many prefixes, which sequences of paged share, are read once
	 * for all of them. */
	uint32_t shared_prefixes;
	/* Set by the caller: device addresses of words that the client reads (struct
	 * fa_completion_slot), or NULL. If the work ends well, a device may write completion_value
	 * to all of them before reap() returns the work. */
	uint32_t *completion_words;
	uint32_t completion_value;
	/* Set by the caller, only where can_wait() has just agreed. The device may give up: then
	 * the work comes back with gate_gave_up and status 0, as if it had never been launched. */
	struct fa_device_gate gate;
	bool gate_gave_up;
	bool deferred; /* launch() returned -EBUSY for it; false at first */
	/* Set by the caller: the memory in which each tensor lies; NULL: there is no such
	 * tensor. */
	const struct fa_device_memory *memories[_FA_DEVICE_TENSOR_N];
	int status; /* 0, -ECANCELED, -ENODEV (the device is lost), or what went wrong */
	struct fa_error error;
	uint64_t started_ns, finished_ns;
	atomic_bool cancelled;
	struct fa_device_queue *queue;
	uint64_t backend[8]; /* private to the backend */
};

/*
 * A hardware queue (a CUDA stream): takes a few works, and runs them in order. Several queues may
 * share a lane; lanes are no more than the hardware keeps apart. The engine alone orders works: a
 * lane has no waiting line of its own, and refuses a work for which it has no slot.
 */
struct fa_device_lane {
	/* Written by the engine; the backend may read these. */
	bool wanted;             /* a work that was refused with -EAGAIN waits for a slot */
	unsigned int n_deferred; /* works that were refused with -EBUSY, and wait */
	/* Used by the engine only. */
	struct fa_fair_queue queue; /* streams with a work for this lane */
	struct fa_list link;        /* among the lanes that are ready, or full */
};

static inline void fa_device_lane_init(struct fa_device_lane *lane)
{
	*lane = (struct fa_device_lane){ 0 };
	fa_list_init(&lane->link);
}

struct fa_device_ops {
	const char *name;

	/* -ENXIO: as far as the backend can tell, there is no such device. */
	int (*open)(const struct fa_device_config *config, struct fa_error *error,
	            struct fa_device **ret_device);
	/* Closes the device. Every queue must be freed and every memory released before. Takes
	 * NULL. */
	struct fa_device *(*close)(struct fa_device *device);
	void (*describe)(struct fa_device *device, struct fa_device_info *ret_info);

	/*
	 * Maps [offset, offset + bytes) of a checked memfd, which stays the caller's; read-only if
	 * @read_only. *ret_memory must be zeroed before. If an import fails and leaves something to
	 * release, ret_memory->backend is not NULL, and the caller passes the memory to
	 * memory_release() some time. This holds for all imports.
	 */
	int (*memory_import_host)(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
	                          bool read_only, struct fa_error *error,
	                          struct fa_device_memory *ret_memory);
	/* Imports @bytes at the page-aligned address @host, which the daemon has mapped shared and
	 * writable, and may unmap afterwards. NULL: kernels can use @host itself. */
	int (*memory_import_mapped)(struct fa_device *device, void *host, uint64_t bytes,
	                            struct fa_error *error, struct fa_device_memory *ret_memory);
	/*
	 * Makes zeroed memory and a descriptor by which another process maps it: either a memfd,
	 * and *ret_piece_bytes is 0; or a descriptor of the driver's for one allocation of
	 * *ret_piece_bytes, which is @bytes rounded up.
	 */
	int (*memory_new_arena)(struct fa_device *device, uint64_t bytes, struct fa_error *error,
	                        struct fa_device_memory *ret_memory, int *ret_fd,
	                        uint64_t *ret_piece_bytes);
	/* Opens [offset, offset + bytes) of the allocation behind the CUDA IPC handle. NULL: the
	 * device has no such handles. */
	int (*memory_import_ipc)(struct fa_device *device, const uint8_t handle[64],
	                         uint64_t offset, uint64_t bytes, bool read_only,
	                         struct fa_error *error, struct fa_device_memory *ret_memory);
	/* Maps @n_pieces allocations side by side, and returns [offset, offset + bytes) of that
	 * range. The descriptors stay the caller's. NULL: the device has no such allocations. */
	int (*memory_import_pieces)(struct fa_device *device, const struct fa_device_piece *pieces,
	                            size_t n_pieces, uint64_t offset, uint64_t bytes,
	                            bool read_only, struct fa_error *error,
	                            struct fa_device_memory *ret_memory);
	/* Releases @n memories that nothing in flight uses. May wait for works in flight. */
	void (*memory_release)(struct fa_device *device, struct fa_device_memory *const *memories,
	                       size_t n);
	/* Returns where the daemon itself can read the memory, or NULL if it cannot. */
	const void *(*memory_host)(struct fa_device *device, const struct fa_device_memory *memory);

	/*
	 * Reserves the KV pool's memory: one range of addresses for up to @max_chunks chunks.
	 * Called once, before any other pool_* function. close() gives it back. -ENOTSUP: the
	 * device cannot have such a pool; other errors may be temporary. NULL: the backend has no
	 * pool.
	 */
	int (*pool_open)(struct fa_device *device, uint64_t chunk_bytes, uint32_t max_chunks,
	                 struct fa_error *error, void **ret_base);
	/* Frees the pool's memory. Called only if nothing is in flight. */
	void (*pool_close)(struct fa_device *device);
	/* Makes the memory of a chunk, and a descriptor by which a later process adopts it with its
	 * contents. Never waits for the device: memory that cannot be zeroed at once has any
	 * contents. */
	int (*pool_chunk_add)(struct fa_device *device, uint32_t chunk, struct fa_error *error,
	                      bool *ret_zeroed, int *ret_fd);
	/* Maps the chunk whose memory is behind @fd, which stays the caller's. -EINVAL: @fd is not
	 * the memory of a chunk of this pool; other errors, like -ENOMEM, say nothing about the
	 * chunk. */
	int (*pool_chunk_adopt)(struct fa_device *device, uint32_t chunk, int fd,
	                        struct fa_error *error);
	/* Frees a chunk that nothing in flight uses. */
	void (*pool_chunk_remove)(struct fa_device *device, uint32_t chunk);

	/* Checks that a kernel of this device covers @params (by the rules of
	 * fa_attention_check()). */
	int (*check)(struct fa_device *device, const struct fa_attention_params *params,
	             struct fa_error *error);

	/* Rewrites checked @params without masks that kernels do not have, such as chunks. The caller
	 * frees *ret_lengths, to which cu_seqlens then point; NULL: they are as before. -ENOMEM.
	 * NULL: kernels have all masks. */
	int (*attention_rewrite)(struct fa_device *device, struct fa_attention_params *params,
	                         uint32_t **ret_lengths, struct fa_error *error);

	/*
	 * Allocates what an attention needs besides its tensors. @work->params were checked, and
	 * are those that the work is launched with. -ENOMEM. NULL: nothing is ever needed.
	 * attention_release() also takes works that were not prepared.
	 */
	int (*attention_prepare)(struct fa_device *device, struct fa_device_work *work,
	                         struct fa_error *error);
	void (*attention_release)(struct fa_device *device, struct fa_device_work *work);

	/* Allocates memory for a step's tables, which is freed when no work uses it. -ENOMEM. NULL:
	 * any host memory will do. */
	int (*tables_new)(struct fa_device *device, size_t bytes, struct fa_error *error,
	                  struct fa_device_tables **ret_tables);
	struct fa_device_tables *(*tables_free)(struct fa_device *device,
	                                        struct fa_device_tables *tables);

	/* Checks that kernels cover a cache that stores codes. @cache has neither a pool nor a
	 * place for V. NULL: no kernel does. */
	int (*paged_cache_check)(struct fa_device *device, const struct fa_paged_cache *cache,
	                         struct fa_error *error);

	/*
	 * Checks the paged requests of @work, and allocates what they need besides their tensors.
	 * Reads now what the contract (kernels/paged.h) says the host reads. -EINVAL, -ENOTSUP,
	 * -ENOMEM. NULL: the backend has no pool. paged_release() also takes works that were not
	 * prepared.
	 */
	int (*paged_prepare)(struct fa_device *device, struct fa_device_work *work,
	                     struct fa_error *error);
	void (*paged_release)(struct fa_device *device, struct fa_device_work *work);

	/* A group of queues has one share of the device: a session's. Groups share it fairly,
	 * however many queues each has. Freed after its queues. */
	int (*group_new)(struct fa_device *device, struct fa_error *error,
	                 struct fa_device_group **ret_group);
	struct fa_device_group *(*group_free)(struct fa_device *device,
	                                      struct fa_device_group *group);

	/* An in-order queue. Within a group, queues of higher priority go first. Freed only when
	 * none of its works is outstanding. */
	int (*queue_new)(struct fa_device *device, struct fa_device_group *group, int priority,
	                 struct fa_error *error, struct fa_device_queue **ret_queue);
	struct fa_device_queue *(*queue_free)(struct fa_device *device,
	                                      struct fa_device_queue *queue);

	/* Returns whether the device itself can wait for a word before @work, if @work is the next
	 * of @queue and the queue's other works wait for nothing or for words, too. NULL: it never
	 * can. */
	bool (*can_wait)(struct fa_device *device, const struct fa_device_queue *queue,
	                 const struct fa_device_work *work);
	/* Returns the lane of @queue, which stays the same. A group's queues of high priority (> 0)
	 * share one lane, and so do its others. NULL: all queues have one lane that is never
	 * full. */
	struct fa_device_lane *(*queue_lane)(struct fa_device_queue *queue);
	/*
	 * Starts @work, the next of @queue; never blocks. reap() reports errors, too. A refused
	 * work is as if launch() had not been called:
	 * -EAGAIN  the lane has no free slot; try again once reap() has returned a work of it;
	 * -EBUSY   the work takes long, and is deferred while workers wait for an idle GPU; try
	 *          again after the next reap(). Other works of the lane may be launched before.
	 */
	int (*launch)(struct fa_device *device, struct fa_device_queue *queue,
	              struct fa_device_work *work);
	/* Asks that @work end early with -ECANCELED. It may succeed nevertheless: where a work
	 * cannot be stopped once started, it runs to its end. */
	void (*cancel)(struct fa_device *device, struct fa_device_work *work);
	/* Appends every finished work to @done (linked by fa_device_work.link). */
	void (*reap)(struct fa_device *device, struct fa_list *done);
	/*
	 * Returns 0, or -ENODEV with the reason once the device is lost for good: then all works
	 * that are outstanding or launched later end with -ENODEV, and the process has to end.
	 * NULL: the device cannot be lost. The engine thread calls it after reap().
	 */
	int (*health)(struct fa_device *device, struct fa_error *error);
	/* Returns whether a call found the device lost, maybe before health() says so: true before
	 * any call returns -ENODEV for that reason. NULL with health(). */
	bool (*is_lost)(struct fa_device *device);
};

extern const struct fa_device_ops fa_device_cuda;
extern const struct fa_device_ops fa_device_cpu;
extern const struct fa_device_ops fa_device_vulkan; /* chosen by name only */

/*
 * Opens the backend called @name. With NULL or "auto" opens the best backend that works, but only a
 * GPU's if config->device names a GPU. Returns 1 if a better backend was passed over though its
 * device seems to be there, else 0. @error: why a better backend was passed over (empty if none
 * was), or why none opened.
 */
int fa_device_open(const char *name, const struct fa_device_config *config, struct fa_error *error,
                   const struct fa_device_ops **ret_ops, struct fa_device **ret_device);
