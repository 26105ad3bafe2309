/*
 * The engine: one thread that owns every stream's software queue, launches work
 * on the device, and finishes requests. The loop thread hands requests in and
 * takes finished ones out; both ways go through queues.
 * While the loop thread polls rings it may do the engine thread's part itself, a round at a
 * time, where the device is one that has to be polled: a request is launched, and its end
 * seen, without another thread that has to hear of it first, and needs no queue.
 *
 * A stream is in order: its requests start in the order of submission (as many
 * outstanding as the device's depth allows) and finish in that order too. Streams
 * stand in groups: groups are launched from in turn, however many streams each has,
 * and a stream's priority counts against the other streams of its group only. On
 * finishing request v the engine writes first the daemon-private word
 * (stream.finished), which alone releases anything, then the completion slot
 * that the client can read, and then the request's signals (engine/gate.h).
 *
 * A request whose waits are not met is held here. While there is one the engine looks at its
 * words again and again: all the time at first, and after long waits between sleeps that stay
 * short beside them. If one word is left, a device that can look at it itself (may_wait) gets the
 * request ahead; it may give it back, so nothing goes behind it but others like it.
 */
#pragma once

#include "common/completion.h"
#include "common/error.h"
#include "common/list.h"
#include "daemon/backend/device.h"
#include "daemon/base/deadline_heap.h"
#include "daemon/engine/completion_records.h"

#include <stdbool.h>
#include <stdint.h>

struct fa_engine;
struct fa_engine_group;
struct fa_gates;
struct fa_stream;

/*
 * One request. Allocated and freed on the loop thread; the engine's from
 * fa_engine_submit() until it comes out of fa_engine_take().
 *
 * What the device is to do is in work; of op FA_DEVICE_NONE it does nothing, and those
 * behind it do not wait for it.
 *
 * One with gates is not started before its waits are met, and no other of its stream
 * before it. Its signals are given when it is finished, however it ended.
 */
struct fa_job {
	/* Set by the loop thread before submission. */
	struct fa_stream *stream;
	uint64_t id;          /* the message's */
	uint64_t value;       /* place in the stream, 1, 2, 3… without gaps */
	uint64_t deadline_ns; /* FA_NS_NEVER: none */
	uint64_t queued_ns;
	struct fa_attention_params params; /* what it points to lives as long as the request */
	void *owner;                       /* the session; opaque to the engine */
	/* It is not started (if the device has nothing to do: not ended) before
	 * fa_engine_release(). */
	bool held;
	/*
	 * Once its work has been done, and without an error, the loop thread has a part in
	 * it: it is taken with confirming set, and ends with fa_engine_confirm(). If the
	 * device has nothing to do, that is when all before it in its stream have ended.
	 */
	bool confirms;
	bool confirming;
	struct fa_gates *gates; /* NULL: none; lives as long as the request */
	/* If the one before it in its stream fails, it ends with the same error. To cancel one
	 * is to cancel all that hang together so. */
	bool chained;
	/* Its device may tell its success itself, to words of its stream's (fa_engine_stream_early):
	 * nothing but that can be its end, and nothing of its stream is in flight. */
	bool early;

	/*
	 * status: 0 or a negative errno. A request that was refused is submitted all
	 * the same, with status and error already set, so that its value is finished in
	 * its turn; it is not launched.
	 */
	int status;
	struct fa_error error;
	uint64_t started_ns, finished_ns;

	/* The engine's. */
	struct fa_list link;        /* in the stream, then among the finished */
	struct fa_list index_link;  /* loop thread: in the stream's index, by value */
	struct fa_list cancel_link; /* on its way to be cancelled */
	struct fa_list answer_link; /* released or confirmed, or on its way to be confirmed */
	int answer;                 /* what it was released or confirmed with */
	struct fa_error answer_error;
	int cancel_status; /* loop thread: what the first cancel asked for */
	int end_status;    /* why the device was asked to end it early */
	unsigned int state;
	bool delivered;   /* in fa_engine_take()'s queue; under the mutex */
	bool chain_ended; /* the one that it is chained to has failed: so does it */
	bool behind_gate; /* running, or about to, as soon as the device sees its gate open */
	struct fa_deadline deadline;
	struct fa_device_work work;
};

/*
 * @notify is called on the engine thread, or on one that attends, when fa_engine_take() has
 * something after it had nothing (uv_async_send): who is notified takes until there is nothing, or
 * remembers to come back; and when the device is lost. Not called any more once
 * fa_engine_free() returned. The device's notify must be wired to fa_engine_wake.
 */
int fa_engine_new(const struct fa_device_ops *ops, void (*notify)(void *userdata), void *userdata,
                  struct fa_engine **ret_engine);

/* Gives the engine its device and starts its thread. (Two steps, as the device
 * is opened with fa_engine_wake as its notify.) */
int fa_engine_start(struct fa_engine *engine, struct fa_device *device);

/* Stops the thread. Every stream was closed and taken before. The device, which
 * may still call fa_engine_wake() until then, is idle. Takes NULL. */
struct fa_engine *fa_engine_free(struct fa_engine *engine);

/*
 * Whether the device is lost, and then why. From that moment on every request ends
 * with -ENODEV, whether it waits, runs (as soon as the device lets go of it) or is
 * submitted later. Any thread.
 */
bool fa_engine_lost(struct fa_engine *engine, struct fa_error *ret_reason);

/* The loop thread is woken by @fd, too, and will have requests then: the engine thread wakes
 * up with it. Once; a copy is made. What fails here costs time alone. */
void fa_engine_listen(struct fa_engine *engine, int fd);

/* Wakes the engine thread; any thread. @engine is a struct fa_engine. */
void fa_engine_wake(void *engine);

/* ---- loop thread only */

/* Streams that have one share of the device together: a session's. Freed after its
 * streams were; takes NULL. */
int fa_engine_group_new(struct fa_engine *engine, struct fa_engine_group **ret_group);
struct fa_engine_group *fa_engine_group_free(struct fa_engine_group *group);

/* A stream whose completion slot is @slot (which outlives it). @owner is opaque.
 * @first: the value of its first request, 1 unless it follows an earlier stream
 * in the same slot. */
int fa_engine_stream_new(struct fa_engine_group *group, int priority,
                         struct fa_completion_slot *slot, uint64_t first, void *owner,
                         struct fa_stream **ret_stream);
/* From now on each end of a request is recorded in @results as well, in the table of
 * stream @id, and wakes who sleeps for them. A reference is held until it is freed. */
void fa_engine_stream_record(struct fa_stream *stream, struct fa_completion_records *results,
                             uint32_t id);
/* From now on the device may tell the end of requests that are early to @words, as it addresses
 * them (fa_device_work.early). */
void fa_engine_stream_early(struct fa_stream *stream, uint32_t *words);
void *fa_stream_owner(struct fa_stream *stream);
/* The daemon-private word: all requests up to this value are finished. Any thread. */
uint64_t fa_stream_finished(struct fa_stream *stream);

/*
 * Consumes @request until it is taken. Never blocks, never fails. By the time that
 * the client can see in the completion page that it finished, it can be taken.
 */
void fa_engine_submit(struct fa_engine *engine, struct fa_job *request);

/* Requests will come in a moment: if the engine thread sleeps it wakes up meanwhile. */
void fa_engine_prepare(struct fa_engine *engine);

/* Between these two, requests that are submitted reach the engine in one go, or a few at a time if
 * there are many. */
void fa_engine_batch_begin(struct fa_engine *engine);
void fa_engine_batch_end(struct fa_engine *engine);

/*
 * Ends a batch, and does what the engine thread would if that is not at it: launches the
 * batch, if it is of one request, looks at the device and at gates, finishes requests. To be
 * called again at once, or left by fa_engine_unattend(): meanwhile the engine thread stands
 * back, for as long as these calls come; where none comes for some microseconds (a tenth of a
 * millisecond, where there was little to do), as the loop thread has other things to do, it
 * takes over. Returns whether there is more to be launched.
 */
bool fa_engine_attend(struct fa_engine *engine);
void fa_engine_unattend(struct fa_engine *engine);

/*
 * Request @value, the next one of @stream, which has none in flight, needs nothing: it
 * ends here and now. Nobody is woken.
 */
void fa_engine_pass(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                    uint64_t now_ns);

/*
 * What a held request waited for is over; with @status (and a sentence in @error) it ends
 * with that instead of being started. Once, and not after it was taken.
 */
void fa_engine_release(struct fa_engine *engine, struct fa_job *request, int status,
                       const struct fa_error *error);

/* The loop thread's part in a request is done: it ends with @status, and is taken again. */
void fa_engine_confirm(struct fa_engine *engine, struct fa_job *request, int status,
                       const struct fa_error *error);

/* Asks that request @value end early: -ECANCELED (or @status, if it is not 0).
 * Nothing happens if it is finished. */
void fa_engine_cancel(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                      int status);

/*
 * Cancels what is in flight on @stream with @status and closes it. All its
 * requests are taken first, then the stream itself comes out once as closed,
 * and is to be freed by fa_stream_free().
 */
void fa_engine_stream_close(struct fa_engine *engine, struct fa_stream *stream, int status);
struct fa_stream *fa_stream_free(struct fa_stream *stream);

/* Takes one finished request, or one to be confirmed (*ret_request), or one closed
 * stream (*ret_closed); the other is NULL. Those that finished before one that is to be
 * confirmed could be, in any stream, are taken before it. Returns false if there is nothing. */
bool fa_engine_take(struct fa_engine *engine, struct fa_job **ret_request,
                    struct fa_stream **ret_closed);

/* Whether fa_engine_take() may have something; a look costs next to nothing. */
bool fa_engine_has_news(struct fa_engine *engine);

/*
 * Whether the engine thread has gone round since it was asked to by the last call that gave true
 * (which the first does); if so it is asked again. It may sleep as long as it likes: to be asked
 * wakes it. One that hangs, in a call of the driver's or behind a lock, does not answer.
 */
bool fa_engine_pulse(struct fa_engine *engine);

/* Counters for status; any thread. */
struct fa_engine_stats {
	uint64_t submitted, finished, launched;
	uint64_t cancelled; /* of the finished, those with -ECANCELED */
	uint64_t failed;    /* of the finished, those with any other error */
	uint64_t busy_ns;   /* sum of started to finished */
};
void fa_engine_stats(struct fa_engine *engine, struct fa_engine_stats *ret_stats);
