/*
 * Shared by engine.c, engine_loop.c, scheduler.c and gate_poll.c. state_mutex guards "scheduler
 * state": held during an iteration, by the engine thread or by the loop thread in fa_engine_poll().
 */
#pragma once

#include "daemon/base/fair_queue.h"
#include "daemon/base/parker.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/gate.h"

#include <pthread.h>

/* Between words of two threads: cache lines are fetched in pairs. */
#define FA_ENGINE_PAD_BYTES 128

/* Hash chains of a stream's index from values to jobs. */
#define FA_STREAM_CHAINS 64

enum fa_job_state {
	FA_JOB_WAITING, /* for jobs, gates or a slot, or held */
	FA_JOB_RUNNING, /* launched; or started, without device work */
	FA_JOB_CONFIRMING,
	FA_JOB_SETTLED, /* status is final */
};

/* Shares of the engine's own lane, and of the device's by priority. */
enum fa_engine_share {
	FA_ENGINE_SHARE_OWN,
	FA_ENGINE_SHARE_HIGH,
	FA_ENGINE_SHARE_NORMAL,
	_FA_ENGINE_SHARE_N,
};

struct fa_engine_group {
	struct fa_engine *engine;

	/* Scheduler state. */
	struct {
		struct fa_fair_queue_group queue;
		unsigned int n_streams; /* with a queue of that lane */
	} shares[_FA_ENGINE_SHARE_N];
	struct fa_device_group *device;
	unsigned int n_queues;
};

struct fa_stream {
	struct fa_engine *engine;
	struct fa_engine_group *group;
	void *owner;
	struct fa_completion_slot *slot; /* writable by the client */
	int priority;

	/* The loop thread's. */
	uint64_t next_value;
	struct fa_completion_records *records_ref;
	struct fa_list index[FA_STREAM_CHAINS]; /* not taken yet */

	/* This link crosses the mailbox. */
	struct fa_list link; /* inbox.closing, then outbox.closed */
	int close_status;

	struct fa_device_queue *queue;
	struct fa_list started;      /* running jobs, or settled behind one */
	struct fa_list waiting;      /* behind `started`: waiting or settled */
	struct fa_device_lane *lane; /* of `queue` */
	/* In a lane's queue while a job can be launched. */
	struct fa_list run_link;
	struct fa_device_lane *run_lane; /* whose queue has run_link */
	struct fa_list deferred_link;    /* engine.deferred, */
	struct fa_job *deferred_job;     /* the first waiting job, if deferred */
	unsigned int outstanding;        /* on the device */
	bool closing;
	/* Status of the last job that left, for a chained successor. */
	int chain_status;
	struct fa_error chain_error;
	/* The first waiting job, if its gates are closed. */
	struct fa_job *gated;
	uint64_t gated_ns;
	unsigned int n_device_gated; /* launched, with gates on the device */
	/* Gates in a row that the device gave up, and gated jobs that the engine keeps. */
	unsigned int gate_timeouts, gate_backoff;
	struct fa_list gate_link;       /* hot_gates, for GATE_HOT_NS */
	struct fa_deadline gate_parked; /* engine.parked_gates, afterwards */

	/* Set before a job needs them. */
	struct fa_completion_records *_Atomic records; /* NULL: none */
	uint32_t id;                                   /* in the records */
	uint32_t *_Atomic device_words;                /* a device address; NULL: none */
};

struct fa_engine {
	void (*notify)(void *userdata);
	void *userdata;

	const struct fa_device_ops *ops;
	struct fa_device *device;
	unsigned int depth;
	bool polled; /* the device does not notify: call reap() repeatedly */
	pthread_t thread;
	bool started;

	struct fa_parker parker;
	atomic_bool stop;
	_Atomic uint64_t heartbeats_asked, heartbeats_answered;

	/* The loop thread writes these, a thread on standby reads them. */
	char pad_parker[FA_ENGINE_PAD_BYTES];
	pthread_mutex_t state_mutex;
	atomic_bool needs_polling; /* device, gates or deadlines want another look */
	atomic_bool loop_polls;
	_Atomic uint64_t loop_poll_count;

	char pad_state[FA_ENGINE_PAD_BYTES];
	pthread_mutex_t mailbox_mutex;
	struct {
		struct fa_list submitted, cancelled, answered; /* jobs */
		struct fa_list closing;                        /* streams */
	} inbox;
	struct {
		struct fa_list finished; /* jobs */
		struct fa_list confirms; /* jobs, taken after earlier finished ones */
		struct fa_list closed;   /* streams, taken after their jobs */
	} outbox;
	atomic_bool has_events; /* written with the mailbox mutex */

	/* The loop thread's. */
	struct fa_list taken_finished, taken_confirms, taken_closed;
	struct fa_list staged; /* a batch's jobs */
	unsigned int n_staged;
	unsigned int n_batched; /* in the batch */
	bool batching;
	bool inbox_posted; /* this thread has posted since the last drain */

	/* Scheduler state. */
	struct fa_device_lane lane; /* for jobs without the device */
	/* Lanes with launchable streams and a free slot, round robin. */
	struct fa_list ready_lanes;
	struct fa_list full_lanes; /* the same, but without a slot */
	struct fa_list deferred;
	bool lane_freed;
	struct fa_list done, confirms, closed; /* to the outbox */
	struct fa_deadline_heap deadlines;
	unsigned int n_running;
	bool urgent; /* this iteration launched a job of high priority */
	struct fa_list hot_gates;
	struct fa_deadline_heap parked_gates;

	/* Written before `lost`. */
	struct fa_error lost_reason;
	atomic_bool lost;

	struct {
		_Atomic uint64_t submitted, finished, launched, cancelled, failed, busy_ns;
	} stats;
};

static inline void fa_engine_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline struct fa_job *fa_job_first(struct fa_list *list)
{
	return fa_container_of(list->next, struct fa_job, link);
}

/* ---- engine_loop.c */

void fa_engine_lock_mutex(struct fa_engine *engine, pthread_mutex_t *mutex);

static inline void fa_engine_lock(struct fa_engine *engine)
{
	fa_engine_lock_mutex(engine, &engine->mailbox_mutex);
}

/* @userdata is the engine. */
void *fa_engine_thread(void *userdata);

/* With state_mutex. */
void fa_engine_drain_inbox(struct fa_engine *engine);

/* Finishes and delivers a confirmed job. Returns true if an iteration is needed. With state_mutex. */
bool fa_engine_finish_confirmed(struct fa_engine *engine, struct fa_job *job);

/* With state_mutex. */
void fa_engine_iterate(struct fa_engine *engine, int max_launches);

void fa_stream_publish(struct fa_stream *stream, uint64_t value, const struct fa_outcome *outcome);

/* ---- scheduler.c; with state_mutex */

void fa_stream_receive(struct fa_stream *stream, struct fa_job *job);

/* After a job's state has changed: removes settled jobs in order, and queues a launchable
 * stream. */
void fa_stream_update(struct fa_stream *stream);

/* True if it waits for gates and the device is not lost. */
bool fa_job_is_gated(const struct fa_job *job);

/* Call it after the loop thread has released or confirmed the job. */
void fa_job_answered(struct fa_job *job);

/* Does nothing if the job is settled. */
void fa_job_end(struct fa_job *job, int status);

void fa_job_reaped(struct fa_job *job);

static inline bool fa_engine_can_launch(const struct fa_engine *engine)
{
	return !fa_list_empty(&engine->ready_lanes);
}

/* Launches the next lane's next stream. Call it if fa_engine_can_launch(). Returns 0 if the device
 * refused. */
int fa_engine_launch_next(struct fa_engine *engine);

/* Launches as many as the device takes. Call it after each reap(). */
void fa_engine_retry_deferred(struct fa_engine *engine);

/* Nothing waits for slots of a lost device. */
void fa_engine_free_lanes(struct fa_engine *engine);

void fa_stream_end(struct fa_stream *stream, int status);

/* ---- gate_poll.c; with state_mutex */

void fa_engine_poll_gates(struct fa_engine *engine);
bool fa_engine_any_gate_open(const struct fa_engine *engine);
