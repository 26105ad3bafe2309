/*
 * The backend table. A backend owns one device (the CPU, a GPU), the memory that
 * clients handed over as the device sees it, and in-order queues of work. The
 * server sees nothing but this header; backends include nothing of the server.
 *
 * Threads: memory_* are called by workers (they may take milliseconds), and may
 * run beside everything else; group_*, queue_*, may_wait, launch, cancel, reap and health by
 * the engine thread, or the loop thread in its place, but never by both at a time; pool_*,
 * tables_*, paged_* and attention_* by the loop thread; check and describe by any thread.
 */
#pragma once

#include "common/error.h"
#include "common/list.h"
#include "kernels/attention.h"
#include "kernels/paged.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fa_device;
struct fa_device_group;
struct fa_device_queue;

struct fa_device_config {
	unsigned int threads; /* CPU backend: workers; 0: one a processor this process may use */
	const char *device;   /* GPU backends: ordinal ("0") or "GPU-…" UUID; NULL: the first */
	/*
	 * Called by any thread of the backend when reap() has something to return after
	 * it had nothing, or health() has turned bad; must be cheap and thread-safe, and
	 * may not call the backend.
	 * No call is under way once reap() has returned all that was launched.
	 */
	void (*notify)(void *userdata);
	void *userdata;
};

/* Whether contexts on the device are a server's that several processes share. */
enum fa_device_mps {
	FA_DEVICE_MPS_NONE, /* it knows no such thing */
	FA_DEVICE_MPS_OFF,
	FA_DEVICE_MPS_ON,
	FA_DEVICE_MPS_UNKNOWN, /* the driver does not say */
};

struct fa_device_info {
	char backend[16];
	char name[64];     /* the processor's or the GPU's model */
	char details[256]; /* for the log: driver, kernels, time to open; may be empty */
	uint64_t uuid[2];
	unsigned int threads; /* 0 where it means nothing */
	unsigned int depth;   /* launches of one queue that may be outstanding */
	/*
	 * The device tells nobody when it has finished: while something is outstanding,
	 * reap() has to be called again and again. notify is called all the same for
	 * what the backend itself finds out.
	 */
	bool polled;
	/* How long after the end of its process the device may go on with what it was given,
	 * and write to memory that others adopt. */
	uint64_t linger_ns;
	enum fa_device_mps mps;
	bool waits;                               /* it can wait for words of clients (may_wait) */
	uint64_t memory_bytes, memory_free_bytes; /* the device's own; 0 where it has none */
	/* An arena takes multiples of it of that; 0: as much as was asked for. */
	uint64_t arena_bytes;
};

/*
 * Memory as kernels address it: address is good for [address, address + bytes). For
 * GPU backends it is the device's address, that the daemon itself cannot follow.
 */
struct fa_device_memory {
	void *address;
	uint64_t bytes;
	bool writable;
	void *backend; /* the backend's own */
};

/* One allocation of a client's, as a descriptor of the driver's. */
struct fa_device_piece {
	int fd;
	uint64_t bytes; /* as the client says; the driver is asked whether it is true */
};

/* The tensors of a request: their places in fa_device_work.memories. */
enum fa_device_tensor {
	FA_DEVICE_Q,
	FA_DEVICE_K,
	FA_DEVICE_V,
	FA_DEVICE_OUT,
	FA_DEVICE_LSE,
	_FA_DEVICE_TENSOR_N,
};

/*
 * Arrays that many works share, a step's tables: written once, before the first of them
 * is launched.
 */
struct fa_device_tables {
	void *data; /* as the host sees it */
	size_t bytes;
	uint64_t backend[2]; /* the backend's own */
};

enum fa_device_op {
	FA_DEVICE_ATTENTION, /* params */
	FA_DEVICE_PAGED,     /* paged, in the pool's memory */
	FA_DEVICE_NONE,      /* nothing: it is never launched */
};

/* Of the room that steps' tables have: what a backend may keep there of how it planned the works
 * of one step, beside its tables. */
#define FA_DEVICE_KEPT_BYTES 24576

/* A word that a work waits for: it begins when the word has come to value (counted as a
 * timeline's). */
struct fa_device_wait {
	const uint64_t *word; /* as the device addresses it; NULL: it does not wait */
	const uint64_t *here; /* the same as the host does */
	uint64_t value;
};

/*
 * One launch; embedded in the engine's request. The caller sets op and params or paged
 * (which, with all they point to, must live until the work is reaped); the backend sets
 * the rest.
 */
struct fa_device_work {
	struct fa_list link; /* the backend's from launch() to reap() */
	enum fa_device_op op;
	const struct fa_attention_params *params;
	/*
	 * [n_paged], done in order: each when the one before has ended. Tensors, cos and sin
	 * are in the device's memory; all other arrays are the host's or, where they are as
	 * large as those of a step, in tables. A q_out of append without data is room that
	 * the backend has, with strides that leave no gaps; q without data of an attention
	 * behind it is that.
	 */
	struct fa_paged_request *paged;
	uint32_t n_paged;
	struct fa_device_tables *tables; /* NULL: arrays are nowhere but where the host has them */
	/* The caches and steps of paged stay what and where they are as long as tables: works
	 * for other layers that come with the same ones can be planned as this one was. */
	bool repeats;
	void *room; /* the backend's, from paged_prepare() to paged_release(), or attention_* */
	/* One that goes to the same queue before it, and is not released: as they never run at
	 * the same time, paged_prepare() may take its room over, and then sets its room_taken.
	 * That is the later one's from then on, heap_bytes and all. NULL: none. */
	struct fa_device_work *before;
	bool room_taken;
	/* What that takes of the room that steps' tables have, or of the machine's memory; set
	 * by paged_prepare() and attention_prepare() if they succeed. */
	uint64_t room_bytes, heap_bytes;
	/* What sequences of paged have in common and is read once for all of them: how many
	 * such prefixes there are; set by paged_prepare(). */
	uint32_t prefixes;
	/* Words of a client's, as the device addresses them, that all get early_value when the work
	 * has ended, if it ended well (struct fa_completion_slot): before reap() tells. A device
	 * need not. NULL: there are none. */
	uint32_t *early;
	uint32_t early_value;
	/* What it waits for, where may_wait() has said so at that moment. The device may give up: then
	 * the work comes back with shut, with status 0, as if it had never been launched. */
	struct fa_device_wait gate;
	bool shut;
	/* Which memory each tensor lies in; NULL: there is no such tensor. */
	const struct fa_device_memory *memories[_FA_DEVICE_TENSOR_N];
	int status; /* 0, -ECANCELED, -ENODEV (the device is lost), or what went wrong */
	struct fa_error error;
	uint64_t started_ns, finished_ns;
	atomic_bool cancelled;
	struct fa_device_queue *queue;
	uint64_t backend[8]; /* the backend's own */
};

struct fa_device_ops {
	const char *name;

	/* -ENXIO: there is no such device, as far as it can tell. */
	int (*open)(const struct fa_device_config *config, struct fa_error *error,
	            struct fa_device **ret_device);
	/* Every queue is freed and every memory released before. NULL is fine. */
	struct fa_device *(*close)(struct fa_device *device);
	void (*describe)(struct fa_device *device, struct fa_device_info *ret_info);

	/* Maps [offset, offset + bytes) of a checked memfd; @fd stays the caller's.
	 * Read-only if @read_only. *ret_memory is zeros before; what of an import that fails is
	 * to be released as well, at some time, is in its backend, which is not NULL then. */
	int (*memory_import_host)(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
	                          bool read_only, struct fa_error *error,
	                          struct fa_device_memory *ret_memory);
	/* The same of @bytes that the daemon has mapped writable already, shared, at @host, on a
	 * page; which may be unmapped then. NULL where @host is as good. */
	int (*memory_import_mapped)(struct fa_device *device, void *host, uint64_t bytes,
	                            struct fa_error *error, struct fa_device_memory *ret_memory);
	/*
	 * Makes zeroed memory and an fd by which another process maps it: a memfd, with
	 * *ret_piece_bytes 0, or a descriptor of the driver's for one allocation of
	 * *ret_piece_bytes, which is @bytes rounded up.
	 */
	int (*memory_new_arena)(struct fa_device *device, uint64_t bytes, struct fa_error *error,
	                        struct fa_device_memory *ret_memory, int *ret_fd,
	                        uint64_t *ret_piece_bytes);
	/*
	 * Opens [offset, offset + bytes) of the allocation that the CUDA IPC handle @handle
	 * stands for. NULL where there are no such handles.
	 */
	int (*memory_import_ipc)(struct fa_device *device, const uint8_t handle[64],
	                         uint64_t offset, uint64_t bytes, bool read_only,
	                         struct fa_error *error, struct fa_device_memory *ret_memory);
	/*
	 * Maps @n_pieces allocations side by side, and gives [offset, offset + bytes) of
	 * that range. The descriptors stay the caller's. NULL where there are none.
	 */
	int (*memory_import_pieces)(struct fa_device *device, const struct fa_device_piece *pieces,
	                            size_t n_pieces, uint64_t offset, uint64_t bytes,
	                            bool read_only, struct fa_error *error,
	                            struct fa_device_memory *ret_memory);
	/* Of @n memories; nothing in flight has to do with them. May wait for what runs on the
	 * device. */
	void (*memory_release)(struct fa_device *device, struct fa_device_memory *const *memories,
	                       size_t n);
	/* Where the daemon itself can read it; NULL: nowhere. Any thread. */
	const void *(*memory_host)(struct fa_device *device, const struct fa_device_memory *memory);

	/*
	 * The KV pool's memory: one range of addresses for up to @max_chunks chunks. Once,
	 * before any other of pool_*; NULL where there is none. Given back by close(). -ENOTSUP
	 * the device can have no such pool; what else goes wrong may pass.
	 */
	int (*pool_open)(struct fa_device *device, uint64_t chunk_bytes, uint32_t max_chunks,
	                 struct fa_error *error, void **ret_base);
	/* Gives back all of it. Nothing is in flight. */
	void (*pool_close)(struct fa_device *device);
	/* Makes the memory of a chunk, and a descriptor by which a process that comes after
	 * this one adopts it, contents and all. Never waits for the device: what cannot be had
	 * zeroed at once holds anything. */
	int (*pool_chunk_add)(struct fa_device *device, uint32_t chunk, struct fa_error *error,
	                      bool *ret_zeroed, int *ret_fd);
	/* @fd stays the caller's. -EINVAL it stands for no memory of a chunk of this pool; all
	 * else, as -ENOMEM, says nothing of it. */
	int (*pool_chunk_adopt)(struct fa_device *device, uint32_t chunk, int fd,
	                        struct fa_error *error);
	/* Nothing in flight has to do with it. */
	void (*pool_chunk_remove)(struct fa_device *device, uint32_t chunk);

	/* Whether a kernel of this device covers @params (fa_attention_check's rules). */
	int (*check)(struct fa_device *device, const struct fa_attention_params *params,
	             struct fa_error *error);

	/*
	 * Finds the room that an attention needs besides its tensors: @work->params, which were
	 * checked and are those that it is launched with. -ENOMEM. NULL where there is never
	 * any. attention_release() takes one that was not prepared.
	 */
	int (*attention_prepare)(struct fa_device *device, struct fa_device_work *work,
	                         struct fa_error *error);
	void (*attention_release)(struct fa_device *device, struct fa_device_work *work);

	/* NULL where any memory of the host's will do. Freed when no work has to do with
	 * them. -ENOMEM. */
	int (*tables_new)(struct fa_device *device, size_t bytes, struct fa_error *error,
	                  struct fa_device_tables **ret_tables);
	struct fa_device_tables *(*tables_free)(struct fa_device *device,
	                                        struct fa_device_tables *tables);

	/* Whether its kernels cover a cache that stores codes. @cache has neither a pool nor a
	 * place for V. NULL: there are none. */
	int (*paged_cache_check)(struct fa_device *device, const struct fa_paged_cache *cache,
	                         struct fa_error *error);

	/*
	 * Checks the paged requests of @work, and finds the room that they need besides their
	 * tensors. What the contract says the host reads is read now. -EINVAL, -ENOTSUP,
	 * -ENOMEM. NULL where there is no pool. paged_release() takes one that was not
	 * prepared.
	 */
	int (*paged_prepare)(struct fa_device *device, struct fa_device_work *work,
	                     struct fa_error *error);
	void (*paged_release)(struct fa_device *device, struct fa_device_work *work);

	/* Queues that have one share of the device together: a session's. Groups share it
	 * fairly, however many queues each has. Freed after its queues. */
	int (*group_new)(struct fa_device *device, struct fa_error *error,
	                 struct fa_device_group **ret_group);
	struct fa_device_group *(*group_free)(struct fa_device *device,
	                                      struct fa_device_group *group);

	/* An in-order queue. Of a group's queues, those of higher priority go before.
	 * Freed only when nothing of it is outstanding. */
	int (*queue_new)(struct fa_device *device, struct fa_device_group *group, int priority,
	                 struct fa_error *error, struct fa_device_queue **ret_queue);
	struct fa_device_queue *(*queue_free)(struct fa_device *device,
	                                      struct fa_device_queue *queue);

	/* Whether the device itself can wait for a word before @work, which would be the next of
	 * @queue, whose others wait for nothing or for words, too. NULL: it never can. */
	bool (*may_wait)(struct fa_device *device, const struct fa_device_queue *queue,
	                 const struct fa_device_work *work);
	/* Starts @work; never blocks. An error is reported by reap(), like the rest. */
	void (*launch)(struct fa_device *device, struct fa_device_queue *queue,
	               struct fa_device_work *work);
	/* Asks that @work end early with -ECANCELED; it may succeed nevertheless. Where
	 * work cannot be stopped once started, it runs to its end. */
	void (*cancel)(struct fa_device *device, struct fa_device_work *work);
	/* Appends every finished work to @done (linked by fa_device_work.link). */
	void (*reap)(struct fa_device *device, struct fa_list *done);
	/*
	 * 0, or -ENODEV with the reason once the device is lost for good: then all that is
	 * outstanding ends with -ENODEV, what is launched too, and the process has to end.
	 * NULL where that cannot happen. The engine thread asks after reap().
	 */
	int (*health)(struct fa_device *device, struct fa_error *error);
	/* Whether a call has found out, which may be before health() says so: true before any
	 * call returns -ENODEV for it. Any thread; NULL with health(). */
	bool (*is_lost)(struct fa_device *device);
};

/* The same of one memory. */
static inline void fa_device_memory_release(const struct fa_device_ops *ops,
                                            struct fa_device *device,
                                            struct fa_device_memory *memory)
{
	ops->memory_release(device, &memory, 1);
}

/* All backends of this build, best first, ended by NULL. */
extern const struct fa_device_ops *const fa_device_backends[];

extern const struct fa_device_ops fa_device_cuda;
extern const struct fa_device_ops fa_device_cpu;

/*
 * Opens the backend called @name, or with NULL or "auto" the best that works, which
 * is none but a GPU's if config->device names one. @error gets the reason why a
 * better one was passed over (empty if none was), or why none opened. Returns 1 if it
 * was, though its device seems to be there, and else 0.
 */
int fa_device_open(const char *name, const struct fa_device_config *config, struct fa_error *error,
                   const struct fa_device_ops **ret_ops, struct fa_device **ret_device);
