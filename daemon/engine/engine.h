/*
 * The engine: queues jobs in streams, launches them on the device, and finishes them. The loop
 * thread submits and takes through a mailbox; it may also run the engine's iterations
 * (fa_engine_poll), which saves small jobs a hand-over. Jobs of a stream start and finish in order.
 * Groups of streams share each lane of the device fairly.
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
 * Allocated and freed by the loop thread; the engine's from fa_engine_submit() until
 * fa_engine_take(). With work.op FA_DEVICE_NONE a job needs no device, and later jobs do not wait
 * for it.
 */
struct fa_job {
	/* Set before submission. */
	struct fa_stream *stream;
	uint64_t id;          /* of the message */
	uint64_t value;       /* in its stream: 1, 2, 3… */
	uint64_t deadline_ns; /* FA_NS_NEVER: none */
	uint64_t queued_ns;
	struct fa_attention_params params; /* its pointers live as long as the job */
	void *owner;                       /* the session; opaque */
	/* It starts, or without device work finishes, only after fa_engine_release(). */
	bool held;
	/* After its success (without device work: after earlier jobs) fa_engine_take() returns the
	 * job with `confirming` set. fa_engine_confirm() then finishes it. */
	bool confirms;
	bool confirming;
	/* The job and its successors start when the waits are met; signals are written when it
	 * finishes, with any status. NULL: none. Lives as long as the job. */
	struct fa_gates *gates;
	/* It ends with its predecessor's error. Cancelling one job of a chain cancels all. */
	bool chained;
	/* The device may write the stream's words (fa_engine_stream_set_device_words) when the job
	 * succeeds: only if it has written them for all other jobs of the stream in flight, and
	 * nothing follows the device work. */
	bool device_completes;

	/* At submission: the job was refused. It is not launched, and finishes in order. */
	int status;
	struct fa_error error;
	uint64_t started_ns, finished_ns;
	uint64_t number; /* for its record */

	/* Private to the engine. */
	struct fa_list link;        /* the stream's jobs, later the finished ones */
	struct fa_list index_link;  /* loop thread: the stream's index */
	struct fa_list cancel_link; /* inbox.cancelled */
	/* Link in inbox.answered or jobs to confirm; the caller's, once the job was taken. */
	struct fa_list answer_link;
	int answer; /* of fa_engine_release() or fa_engine_confirm() */
	struct fa_error answer_error;
	int cancel_status; /* of the first cancel; loop thread */
	int end_status;    /* why the device was asked to stop the job */
	unsigned int state;
	bool delivered;    /* in the outbox; mailbox mutex */
	bool chain_ended;  /* its predecessor failed */
	bool device_gated; /* launched before its gate opened: the device waits */
	struct fa_deadline deadline;
	struct fa_device_work work;
};

/*
 * The thread that runs the iteration calls @notify when fa_engine_take() has something again, and
 * when the device is lost; never after fa_engine_free(). The device's notify must be
 * fa_engine_wake.
 */
int fa_engine_new(const struct fa_device_ops *ops, void (*notify)(void *userdata), void *userdata,
                  struct fa_engine **ret_engine);

/* @device was opened with fa_engine_wake as notify. */
int fa_engine_start(struct fa_engine *engine, struct fa_device *device);

/* Stops the thread. All streams must have been taken, and the device be idle. Takes NULL. */
struct fa_engine *fa_engine_free(struct fa_engine *engine);

/* Returns true and the reason if the device is lost. Then every job ends with -ENODEV, a running
 * one when the device returns it. Any thread. */
bool fa_engine_lost(struct fa_engine *engine, struct fa_error *ret_reason);

/* The engine thread, too, wakes up once when @fd, which is duplicated, becomes readable. Failing
 * costs latency only. */
void fa_engine_watch_fd(struct fa_engine *engine, int fd);

/* @engine: struct fa_engine. Any thread. */
void fa_engine_wake(void *engine);

/* ---- loop thread only */

/* Makes a group for the streams of a session, which share the device as one. Free it after its
 * streams; takes NULL. */
int fa_engine_group_new(struct fa_engine *engine, struct fa_engine_group **ret_group);
struct fa_engine_group *fa_engine_group_free(struct fa_engine_group *group);

/* @slot outlives the stream. @owner is opaque. @first: value of the first job: 1, unless the stream
 * follows an earlier one in the slot. */
int fa_engine_stream_new(struct fa_engine_group *group, int priority,
                         struct fa_completion_slot *slot, uint64_t first, void *owner,
                         struct fa_stream **ret_stream);
/* Finished jobs are now recorded in @records, table @id, and a sleeping client is woken. The stream
 * holds a reference. */
void fa_engine_stream_set_records(struct fa_stream *stream, struct fa_completion_records *records,
                                  uint32_t id);
/* The device may now complete jobs with device_completes in @words, a device address
 * (fa_device_work.completion_words). */
void fa_engine_stream_set_device_words(struct fa_stream *stream, uint32_t *words);
void *fa_stream_owner(struct fa_stream *stream);

/* @job is the engine's until fa_engine_take(). Never blocks or fails. The job can be taken once the
 * client sees it finished. */
void fa_engine_submit(struct fa_engine *engine, struct fa_job *job);

/* Call it if jobs will follow: wakes a sleeping engine thread. */
void fa_engine_prewake(struct fa_engine *engine);

/* A batch's jobs reach the engine together, or a few at a time. */
void fa_engine_batch_begin(struct fa_engine *engine);
void fa_engine_batch_end(struct fa_engine *engine);

/*
 * Ends a batch, and runs one iteration unless the engine thread does or the batch has several jobs.
 * Call it again at once, or fa_engine_poll_end(): the engine thread takes over when no call comes
 * for some microseconds (100 if there was little to do). Returns true if there is more to launch.
 */
bool fa_engine_poll(struct fa_engine *engine);
void fa_engine_poll_end(struct fa_engine *engine);

/* Finishes @value, the next of @stream, without a job. The stream is idle; the client is not
 * woken. */
void fa_engine_complete_empty(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                              const struct fa_outcome *outcome);

/* Lets a held job start, or ends it with @status and @error. Once, before the job was taken. */
void fa_engine_release(struct fa_engine *engine, struct fa_job *job, int status,
                       const struct fa_error *error);

/* Finishes a confirming job, which fa_engine_take() returns again: next, if the engine is not in an
 * iteration. */
void fa_engine_confirm(struct fa_engine *engine, struct fa_job *job, int status,
                       const struct fa_error *error);

/* Asks job @value to end early, with @status (0: -ECANCELED), unless it is finished. */
void fa_engine_cancel(struct fa_engine *engine, struct fa_stream *stream, uint64_t value,
                      int status);

/* Cancels all jobs with @status. fa_engine_take() returns the stream once, after its jobs; then
 * call fa_stream_free(). */
void fa_engine_stream_close(struct fa_engine *engine, struct fa_stream *stream, int status);
struct fa_stream *fa_stream_free(struct fa_stream *stream);

/* Takes a finished or confirming job (*ret_job) or a closed stream (*ret_closed); the other is
 * NULL. Jobs that finished before a job became confirming come first. Returns false if there is
 * nothing. */
bool fa_engine_take(struct fa_engine *engine, struct fa_job **ret_job,
                    struct fa_stream **ret_closed);

/* The link of a closed stream that was taken, for a list of the caller's; and back. */
struct fa_list *fa_stream_link(struct fa_stream *stream);
struct fa_stream *fa_stream_of_link(struct fa_list *link);

/* True: fa_engine_take() may have something. Costs one load. */
bool fa_engine_has_events(struct fa_engine *engine);

/* Returns true, and requests another iteration of the engine thread, if the last requested one is
 * complete (at first: true). */
bool fa_engine_heartbeat(struct fa_engine *engine);

/* For any thread. */
struct fa_engine_stats {
	uint64_t submitted, finished, launched;
	uint64_t cancelled; /* with -ECANCELED */
	uint64_t failed;    /* with another error */
	uint64_t busy_ns;
};
void fa_engine_stats(struct fa_engine *engine, struct fa_engine_stats *ret_stats);
