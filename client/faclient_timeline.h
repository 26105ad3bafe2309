/*
 * libfaclient: order between requests and everything else. Part of faclient.h, which says
 * what holds for all calls.
 *
 * A client has one timeline: 64 slots that it writes, and 64 that the daemon writes, each
 * a number that only grows. A request can wait for values of slots before it is started,
 * and gives values to slots when it has ended. So kernel, attention, kernel run one after
 * another without this process's CPU waiting in between: a stream of its own writes a slot
 * (fa_timeline_enqueue_write()), the request waits for that and gives a value to one of the
 * daemon's slots, for which the stream waits (fa_timeline_enqueue_wait()).
 *
 * Values: a slot has reached v once (int64_t)(slot - v) >= 0. All are 0 at first. What is
 * written to a slot is more than what it had; a request that is to give a daemon's slot a
 * value must come with more than any request before it did, also before a reconnect, and less than
 * 2^62 above what the slot has.
 *
 * Memory order: what was written before a slot was given a value is seen by whoever has
 * seen that value, on the CPU and, with the functions below, on the GPU: a request that
 * waited sees what was written before, and who waited for its signal sees its output.
 *
 * A request that waits costs nobody else anything; those behind it in its stream wait, too.
 * It ends like others, by fa_cancel(), by its timeout, or with the connection. All its
 * signals are given however it ended, so that nobody waits for ever; fa_wait() says how.
 *
 * When the connection is lost, requests that had not ended end with -ECONNRESET, and all
 * who wait for one of the daemon's slots are released: when the daemon ends or closes the
 * connection by itself, at once; when it is killed, by who keeps the descriptors that it
 * stored: fad --supervise, or its successor under a systemd that keeps them, as fad.service
 * asks for. Where there is nobody, fa_timeline_wait() returns with -ECONNRESET all the same,
 * within milliseconds of the loss; but the words stay as they are, and a stream that waits
 * for one of them, or code of the program's own that looks at one, waits for ever: the
 * stream ends with its context alone. So a daemon for which streams wait wants a keeper. A
 * stream that was released so goes on as if it had the value: look at fa_timeline_wait() of
 * it before its results are used. Afterwards the library sets the timeline up anew under the same
 * handle, in other memory. The client's slots keep their values, but for what streams write to them
 * later that was enqueued before; the daemon's begin again with 0, and who waits for a value that a
 * request was to give before gets -ECONNRESET at once.
 */
#ifndef FACLIENT_TIMELINE_H
#define FACLIENT_TIMELINE_H

#define FA_TIMELINE_SLOTS 64
#define FA_GATES_MAX 8 /* waits, and signals, of one request */

#define FA_GATE_DAEMON (1u << 31) /* fa_gate.slot of a wait: one of the daemon's slots */

struct fa_gate {
	uint32_t
		slot; /* less than FA_TIMELINE_SLOTS; of waits the client's, or with FA_GATE_DAEMON */
	uint32_t reserved;
	uint64_t value;
};

/*
 * Of a request, as `gates` of its parameters (NULL: none); all is copied. Needs a timeline.
 * -EINVAL comes from fa_wait() if a signal's value is not more than one before it; then the
 * request is not computed. Such a request is not sent again if the connection is lost.
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

/* The client's timeline, which is set up by the first call and lives as long as the client.
 *   -ENOTSUP  the daemon is older than timelines
 *   -EDQUOT   too much memory of this user, or more timelines than are kept for the daemon's
 *             successor */
int fa_timeline_open(struct fa_client *client, struct fa_timeline **ret_timeline);

struct fa_timeline_info {
	uint32_t size;
	uint32_t slots; /* of each kind */
	/* Where they are mapped, stride bytes apart, for this process's own code: 64-bit words,
	 * the daemon's can only be read. They stay mapped until fa_disconnect(), but are of no
	 * use any more once epoch has changed. */
	uint64_t *client_slots;
	const uint64_t *daemon_slots;
	uint32_t stride;
	uint32_t reserved;
	uint64_t epoch; /* grows when the timeline is set up anew */
};
/* Set ret_info->size before. Sets up anew what was lost, if the connection stands. */
int fa_timeline_info(struct fa_timeline *timeline, struct fa_timeline_info *ret_info);

/* Gives one of the client's slots a value, from this thread. */
int fa_timeline_write(struct fa_timeline *timeline, uint32_t slot, uint64_t value);

/* What a slot has: of the client's, or with FA_GATE_DAEMON of the daemon's. */
int fa_timeline_read(struct fa_timeline *timeline, uint32_t slot, uint64_t *ret_value);

/*
 * Waits until one of the daemon's slots has reached @value, @timeout_ns at most (UINT64_MAX:
 * for ever, 0: only looks). It spins for fa_options.spin_ns and then sleeps. Never connects
 * again, nor sets up anew what was lost: the request that is to give the value does. 0 if that
 * one, and all that gave later ones so far, succeeded, else the error of the last of them that
 * did not (fa_wait() has that of each).
 *   -EAGAIN      not in that time
 *   -ECONNRESET  it will not come any more
 */
int fa_timeline_wait(struct fa_timeline *timeline, uint32_t slot, uint64_t value,
                     uint64_t timeout_ns);

/*
 * The same for a CUDA stream (a CUstream, cudaStream_t) of this process: when the work in
 * it has come so far, one of the client's slots is written, or one of the daemon's is
 * waited for, by one operation of the stream. The stream's context must be current in this thread.
 * Returns at once, but for the first such call of a connection: that asks the daemon (reply_ns at
 * most) if it is not the first, and registers the timeline's memory with the driver until
 * fa_disconnect(). Before that streams must have got past what was enqueued, which a request's end
 * does not tell: synchronise them. Not in a graph that is launched again after a reconnect, as the
 * memory is another then.
 *   -ENODEV, -ENOSYS  no CUDA driver here, too old, or its context is lost
 *   -ECONNRESET       (wait) the value was lost with a connection; nothing is enqueued
 */
int fa_timeline_enqueue_write(struct fa_timeline *timeline, uint32_t slot, uint64_t value,
                              void *stream);
int fa_timeline_enqueue_wait(struct fa_timeline *timeline, uint32_t slot, uint64_t value,
                             void *stream);

#endif
