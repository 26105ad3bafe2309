/*
 * The engine: queues jobs in streams, launches them on the device, and finishes them. The loop
 * thread submits and takes through a mailbox; to save small jobs a hand-over between threads, it
 * may also run the engine's iterations (fa_engine_poll).
 *
 * Jobs of a stream start and finish in order. Groups of streams share each lane of the device
 * fairly.
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
 * The loop thread allocates and frees a job; the engine owns it from fa_engine_submit() until
 * fa_engine_take(). A job with work.op FA_DEVICE_NONE needs no device, and later jobs of the stream
 * start without waiting for it.
 */
struct fa_job {
	/* Set by the loop thread before submission. */
	struct fa_stream *stream;
	uint64_t id;          /* the client's message */
	uint64_t value;       /* in the stream: 1, 2, 3… without gaps */
	uint64_t deadline_ns; /* FA_NS_NEVER: none */
	uint64_t queued_ns;
	struct fa_attention_params params; /* its pointers stay valid as long as the job */
	void *owner;                       /* the session; opaque */
	/* The job does not start (without device work: does not finish) before
	 * fa_engine_release(). */
	bool held;
	/* After success (without device work: after earlier jobs) it is taken with `confirming`
	 * set, and finishes with fa_engine_confirm(). */
	bool confirms;
	bool confirming;
	/* The job and its successors start when its waits are met; its signals are written when it
	 * finishes, with any status. NULL: none. Lives as long as the job. */
	struct fa_gates *gates;
	/* The job ends with its predecessor's error. Cancelling one job of a chain cancels all. */
	bool chained;
	/* The device may write the stream's words (fa_engine_stream_set_device_words) on success.
	 * Only if nothing else of the stream is in flight, and nothing follows the device work. */
	bool device_completes;

	/* A refused job comes with status and error set: it is not launched, and finishes in
	 * order. */
	int status;
	struct fa_error error;
	uint64_t started_ns, finished_ns;
	uint64_t number; /* for the record; set by the loop thread */

	/* Used by the engine only. */
	struct fa_list link;        /* in the stream, then among the finished */
	struct fa_list index_link;  /* loop thread: the stream's index by value */
	struct fa_list cancel_link; /* inbox.cancelled */
	struct fa_list answer_link; /* inbox.answered, or jobs to be confirmed */
	int answer;                 /* status of fa_engine_release() or fa_engine_confirm() */
	struct fa_error answer_error;
	int cancel_status; /* loop thread: of the first cancel */
	int end_status;    /* why the device was asked to stop early */
	unsigned int state;
	bool delivered;    /* in the outbox; under the mailbox mutex */
	bool chain_ended;  /* its predecessor in the chain failed */
	bool device_gated; /* launched early: the device waits for the gate */
	struct fa_deadline deadline;
	struct fa_device_work work;
};

/*
 * @notify is called on the thread that runs the iteration, when fa_engine_take() has something
 * again, and when the device is lost. No call is under way once fa_engine_free() has returned. The
 * device's notify must be fa_engine_wake.
 */
int fa_engine_new(const struct fa_device_ops *ops, void (*notify)(void *userdata), void *userdata,
                  struct fa_engine **ret_engine);

/* Starts the engine thread. @device was opened with fa_engine_wake as notify. */
int fa_engine_start(struct fa_engine *engine, struct fa_device *device);

/* Stops the thread. All streams must be taken, and the device idle. Takes NULL. */
struct fa_engine *fa_engine_free(struct fa_engine *engine);

/* Returns true and the reason if the device is lost: then every job ends with -ENODEV, a running
 * one when the device returns it. Any thread. */
bool fa_engine_lost(struct fa_engine *engine, struct fa_error *ret_reason);

/* The engine thread, too, wakes up when @fd becomes readable, once. Duplicates @fd. A failure costs
 * latency only. */
void fa_engine_watch_fd(struct fa_engine *engine, int fd);

/* Any thread. @engine is a struct fa_engine. */
void fa_engine_wake(void *engine);

/* ---- loop thread only */

/* Streams with one share of the device together: a session's. Freed after its streams; takes
 * NULL. */
int fa_engine_group_new(struct fa_engine *engine, struct fa_engine_group **ret_group);
struct fa_engine_group *fa_engine_group_free(struct fa_engine_group *group);

/* @slot outlives the stream. @owner is opaque. @first: the value of its first job, 1 unless it
 * follows an earlier stream in the same slot. */
int fa_engine_stream_new(struct fa_engine_group *group, int priority,
                         struct fa_completion_slot *slot, uint64_t first, void *owner,
                         struct fa_stream **ret_stream);
/* From now on finished jobs are recorded in @records, in the table of stream @id, and a sleeping
 * client is woken. The stream holds a reference. */
void fa_engine_stream_set_records(struct fa_stream *stream, struct fa_completion_records *records,
                                  uint32_t id);
/* From now on the device may complete jobs with device_completes in @words, a device address
 * (fa_device_work.completion_words). */
void fa_engine_stream_set_device_words(struct fa_stream *stream, uint32_t *words);
void *fa_stream_owner(struct fa_stream *stream);
/* All jobs up to this value are finished. Clients cannot write it. Any thread. */
uint64_t fa_stream_finished(struct fa_stream *stream);

/* Consumes @job until it is taken. Never blocks or fails. The job can be taken once the client sees
 * it finished. */
void fa_engine_submit(struct fa_engine *engine, struct fa_job *job);

/* Jobs will follow: a sleeping engine thread wakes up meanwhile. */
void fa_engine_prewake(struct fa_engine *engine);

/* Jobs submitted in between reach the engine together, or a few at a time. */
void fa_engine_batch_begin(struct fa_engine *engine);
void fa_engine_batch_end(struct fa_engine *engine);

/*
 * Ends a batch, and runs one iteration unless the engine thread does or the batch has several jobs.
 * Call it again at once, or fa_engine_poll_end(): the engine thread stands by, and takes over when
 * no call comes for some microseconds (100 if there was little to do). Returns true if there is
 * more to launch.
 */
bool fa_engine_poll(struct fa_engine *engine);
void fa_engine_poll_end(struct fa_engine *engine);

/* Finishes @value, the stream's next, without a job. The stream is idle; the client is not
 * woken. */
void fa_engine_complete_empty(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                              const struct fa_outcome *outcome);

/* Lets a held job start, or ends it with @status and @error. Once; not after it was taken. */
void fa_engine_release(struct fa_engine *engine, struct fa_job *job, int status,
                       const struct fa_error *error);

/* Finishes a confirming job with @status. It is taken again: next, if the engine is not in an
 * iteration. */
void fa_engine_confirm(struct fa_engine *engine, struct fa_job *job, int status,
                       const struct fa_error *error);

/* Asks that job @value end early, with @status (0: -ECANCELED). No effect if it is finished. */
void fa_engine_cancel(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                      int status);

/* Cancels all jobs of @stream with @status. The stream is taken once, after them; then
 * fa_stream_free() it. */
void fa_engine_stream_close(struct fa_engine *engine, struct fa_stream *stream, int status);
struct fa_stream *fa_stream_free(struct fa_stream *stream);

/* Takes a finished or confirming job (*ret_job) or a closed stream (*ret_closed); the other is
 * NULL. Jobs of any stream that finished before a job became confirming are taken before it.
 * Returns false if there is nothing. */
bool fa_engine_take(struct fa_engine *engine, struct fa_job **ret_job,
                    struct fa_stream **ret_closed);

/* Returns true if fa_engine_take() may have something; costs one load. */
bool fa_engine_has_events(struct fa_engine *engine);

/* For the watchdog: returns true, and requests another iteration of the engine thread, if the one
 * requested last is complete (initially true). Wakes the thread. */
bool fa_engine_heartbeat(struct fa_engine *engine);

/* Counters; any thread. */
struct fa_engine_stats {
	uint64_t submitted, finished, launched;
	uint64_t cancelled; /* with -ECANCELED */
	uint64_t failed;    /* with another error */
	uint64_t busy_ns;   /* from started to finished */
};
void fa_engine_stats(struct fa_engine *engine, struct fa_engine_stats *ret_stats);
