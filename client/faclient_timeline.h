/*
 * Timelines: ordering requests with other work. Part of <faclient.h>, which includes it.
 *
 * A client has one timeline: 64 slots that the client writes and 64 that the daemon writes. A slot
 * is a number that only grows, like a timeline semaphore. A request can wait for values of slots
 * before it starts, and signal values when it has ended. So kernel, attention, kernel run one after
 * another without a wait of this process's CPU: a CUDA stream writes a slot
 * (fa_timeline_enqueue_write()), the request waits for that value and signals one of the daemon's
 * slots, and the stream waits for that (fa_timeline_enqueue_wait()).
 *
 * Values: a slot has reached v if (int64_t)(slot - v) >= 0. All slots start with 0. A value written
 * to a slot must be more than the slot's. A value that a request signals must be more than that of
 * any earlier request, also of one before a reconnect, and less than 2^62 above the slot's.
 *
 * Memory order: writes before a slot gets a value are visible to all that have seen the value, on
 * the CPU and, with the functions below, on the GPU. A request that waited sees what was written
 * before the value; a reader of its signal sees its output.
 *
 * A waiting request delays only those behind it in its stream. It ends like any request, also by
 * fa_cancel(), its timeout, or with the connection. All its signals are given however it ends, so
 * that nothing waits forever; fa_wait() returns how it ended.
 *
 * Lost connections: requests in flight end with -ECONNRESET, and waits for the daemon's slots are
 * released. A daemon that exits or closes the connection releases them at once. For a daemon that
 * is killed, the process that keeps its stored descriptors does: fad --supervise, or its successor
 * under a systemd that keeps them, as fad.service asks for. Without such a keeper,
 * fa_timeline_wait() still returns -ECONNRESET within milliseconds of the loss; but the words do
 * not change, and a CUDA stream that waits for one, or code of the program that polls one, waits
 * forever: such a stream ends only with its context. A daemon that streams wait for should
 * therefore have a keeper. A stream that was released continues as if it had the value: check
 * fa_timeline_wait() for that value before using its results.
 *
 * After a reconnect the library sets the timeline up again, under the same handle in other memory.
 * The client's slots keep their values, except for later writes by streams that were enqueued
 * before the loss. The daemon's slots start with 0 again, and waiting for a value that a request
 * was to signal before the loss fails with -ECONNRESET at once.
 */
#ifndef FACLIENT_H
#include "faclient.h" /* includes this header */
#elif !defined(FACLIENT_TIMELINE_H)
#define FACLIENT_TIMELINE_H

#define FA_TIMELINE_SLOTS 64
#define FA_GATES_MAX 8 /* waits of one request; likewise signals */

#define FA_GATE_DAEMON (1u << 31) /* or'ed to the slot of a wait: a slot of the daemon */

struct fa_gate {
	/* Less than FA_TIMELINE_SLOTS. Waits: a slot of the client, or with FA_GATE_DAEMON of the
	 * daemon. Signals: a slot of the daemon. */
	uint32_t slot;
	uint32_t reserved;
	uint64_t value;
};

/*
 * What a request waits for and signals: `gates` of its parameters (NULL: nothing). All is copied.
 * Requires a timeline. If a signal's value is not more than that of an earlier request, this
 * request is not computed, and fa_wait() returns -EINVAL. A request with gates is not sent again if
 * the connection is lost.
 *   -EDQUOT  more gates of requests in flight than this user may have
 */
struct fa_gates {
	uint32_t size; /* sizeof(struct fa_gates) */
	uint32_t n_waits;
	const struct fa_gate *waits;
	uint32_t n_signals;
	uint32_t reserved;
	const struct fa_gate *signals;
};

struct fa_timeline;

/*
 * Returns the client's timeline. The first call sets it up; it lives as long as the client.
 *   -ENOTSUP  the daemon is older than timelines
 *   -EDQUOT   this user has too much memory, or more timelines than are kept for the daemon's
 *             successor
 */
int fa_timeline_open(struct fa_client *client, struct fa_timeline **ret_timeline);

struct fa_timeline_info {
	uint32_t size;
	uint32_t slots; /* of the client; likewise of the daemon */
	/* The slots' 64-bit words, stride bytes apart, for this process's own code; those of the
	 * daemon are read-only. They stay mapped until fa_disconnect(), but are not updated once
	 * epoch has changed. */
	uint64_t *client_slots;
	const uint64_t *daemon_slots;
	uint32_t stride;
	uint32_t reserved;
	uint64_t epoch; /* grows when the timeline is set up again */
};
/* Tells where the timeline's slots are. Set ret_info->size before the call. Sets the timeline up
 * again if it was lost and the connection stands. */
int fa_timeline_info(struct fa_timeline *timeline, struct fa_timeline_info *ret_info);

/* Writes @value to a slot of the client, from this thread. */
int fa_timeline_write(struct fa_timeline *timeline, uint32_t slot, uint64_t value);

/* Reads a slot of the client, or with FA_GATE_DAEMON of the daemon. */
int fa_timeline_read(struct fa_timeline *timeline, uint32_t slot, uint64_t *ret_value);

/*
 * Waits until a slot of the daemon has reached @value, at most @timeout_ns (UINT64_MAX: no limit,
 * 0: does not wait). Spins for fa_options.spin_ns, then sleeps. Never reconnects, nor sets the
 * timeline up again: the request that signals the value does. Returns 0 if the request that
 * signalled @value and all that signalled later ones so far succeeded, else the error of the last
 * one that failed (fa_wait() has each request's).
 *   -EAGAIN      not reached in time
 *   -ECONNRESET  the value was lost with a connection
 */
int fa_timeline_wait(struct fa_timeline *timeline, uint32_t slot, uint64_t value,
                     uint64_t timeout_ns);

/*
 * Enqueues one operation in a CUDA stream of this process (a CUstream, cudaStream_t): a write to a
 * slot of the client, or a wait for a slot of the daemon. The stream's context must be current in
 * this thread. Returns at once, except for the first call of a connection: it registers the
 * timeline's memory with the driver until fa_disconnect(), and after a reconnect it also asks the
 * daemon, for at most reply_ns. Before that call streams must have passed all operations enqueued
 * here earlier, which the end of a request does not tell: synchronise them. In a CUDA graph the
 * values are those of its capture, so that a graph is good for one launch; and the memory changes
 * with a reconnect.
 *   -ENODEV, -ENOSYS  no CUDA driver here, too old a driver, or its context is lost
 *   -ECONNRESET       (wait) the value was lost with a connection; nothing is enqueued
 */
int fa_timeline_enqueue_write(struct fa_timeline *timeline, uint32_t slot, uint64_t value,
                              void *stream);
int fa_timeline_enqueue_wait(struct fa_timeline *timeline, uint32_t slot, uint64_t value,
                             void *stream);

/*
 * Enqueues a write to a slot, or a wait for one, of a number that the stream finds in memory when it
 * gets there: @add more than *@base, a 64-bit number that CUDA kernels of the stream's context can
 * read. So a CUDA graph that was captured from the stream can be launched again and again, with a
 * kernel of yours that counts *@base up; each launch needs a request of its own, with gates of that
 * launch's numbers. Both are small kernels. While it waits, one thread occupies the GPU: without
 * MPS, the request's kernels get their turn only when the driver switches between processes.
 *
 * As for fa_timeline_enqueue_write(), after a reconnect a graph has to be captured again: an older
 * one writes to memory that nobody reads, and does not wait. fa_timeline_info.epoch tells. A wait
 * that is enqueued or captured then, for a number whose request went with the old connection, does
 * not end before another request signals as much. @base and the client must live as long as the
 * graph.
 *   -EINVAL           @base is NULL, or no multiple of 8
 *   -ENODEV, -ENOSYS  as above
 *   -ECONNRESET       (wait) the connection is lost; nothing is enqueued
 */
int fa_timeline_enqueue_write_indirect(struct fa_timeline *timeline, uint32_t slot,
                                       const uint64_t *base, uint64_t add, void *stream);
int fa_timeline_enqueue_wait_indirect(struct fa_timeline *timeline, uint32_t slot,
                                      const uint64_t *base, uint64_t add, void *stream);

#endif
