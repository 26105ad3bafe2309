/*
 * The engine from inside: what its mailboxes (engine/engine.c), its thread's rounds (engine/engine_loop.c) and
 * the life of requests and streams in them (engine/scheduler.c) share.
 *
 * "The engine thread's" is what belongs to whoever runs a round of the engine, and has the
 * mutex `round` for it: the engine thread, or the loop thread while it attends.
 *
 * A request is waiting (behind others, for room on the device, or held), running (the
 * device has it, or would, if it had anything to do), confirming (the loop thread has
 * it), or settled (its status stands). Settled requests leave in the
 * stream's order, whatever the order in which they settled.
 */
#pragma once

#include "daemon/base/fair_queue.h"
#include "daemon/base/parker.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/gate.h"

#include <pthread.h>

/* Between words that two threads use at the same time: two lines, as they come in pairs. */
#define FA_ENGINE_APART 128

/* Chains of the index from values to requests of one stream. */
#define FA_STREAM_CHAINS 64

enum fa_job_state {
	FA_JOB_WAITING,
	FA_JOB_RUNNING,
	FA_JOB_CONFIRMING,
	FA_JOB_SETTLED,
};

struct fa_engine_group {
	struct fa_engine *engine;

	/* The engine thread's. */
	struct fa_fair_queue_group turns; /* its streams from which something can be launched */
	struct fa_device_group *device;   /* there while there are queues */
	unsigned int n_queues;
};

struct fa_stream {
	struct fa_engine *engine;
	struct fa_engine_group *group;
	void *owner;
	struct fa_completion_slot *slot; /* written only: what it holds is never believed */
	int priority;

	/* The loop thread's. */
	uint64_t next_value;
	struct fa_completion_records *results_ref;
	struct fa_list index[FA_STREAM_CHAINS]; /* requests not taken yet */

	/* Crosses over. */
	struct fa_list link; /* inbox.closing, then outbox.closed */
	int close_status;

	/* The engine thread's. */
	struct fa_device_queue *queue; /* made with the first launch */
	struct fa_list started;        /* running, or settled and not at the head */
	struct fa_list waiting;        /* behind those; waiting, or settled already */
	struct fa_list turn_link;      /* group.turns, if something can be launched */
	unsigned int outstanding;      /* running requests */
	bool closing;
	_Atomic uint64_t finished;
	/* Of the last one that left, for the one chained to it. */
	int chain_status;
	struct fa_error chain_error;
	/* The one that is first in waiting, and waits for its gates; NULL: it does not. */
	struct fa_job *gated;
	uint64_t gated_ns;           /* since when */
	unsigned int n_behind_gates; /* running requests that the device waits with for theirs */
	/* How often in a row it gave up, and requests whose gates it is not asked to wait for. */
	unsigned int gates_in_vain, gates_rest;
	struct fa_list gate_link;     /* engine.gated, while it has not waited for long */
	struct fa_deadline gate_look; /* engine.gate_looks, afterwards */

	/* Set by the loop thread, before any request that relies on it is submitted. */
	struct fa_completion_records *_Atomic results; /* NULL: none */
	uint32_t id;                                   /* in these */
	uint32_t *_Atomic early; /* as the device addresses them; NULL: none */
};

struct fa_engine {
	void (*notify)(void *userdata);
	void *userdata;

	const struct fa_device_ops *ops;
	struct fa_device *device;
	unsigned int depth;
	bool polled; /* the device does not say when it has finished */
	pthread_t thread;
	bool started;

	struct fa_parker waiter;
	atomic_bool stop;
	/* How often the engine thread was asked for a pulse, and up to which it gave one. */
	_Atomic uint64_t pulses_asked, pulses;

	/* The engine thread looks at these while the loop thread, which attends, writes them. */
	char apart_from_waiter[FA_ENGINE_APART];
	pthread_mutex_t round;
	atomic_bool due;        /* there is something to look at again and again, or later */
	atomic_bool attended;   /* the loop thread does, ... */
	_Atomic uint64_t beats; /* ... as often as this was counted */

	char apart_from_round[FA_ENGINE_APART];
	pthread_mutex_t mutex;
	struct {
		struct fa_list submitted, cancelled, answered; /* requests */
		struct fa_list closing;                        /* streams */
	} inbox;
	struct {
		struct fa_list requests;
		struct fa_list confirms; /* requests; those that ended are out before them */
		struct fa_list closed;   /* streams; their requests are out before them */
	} outbox;
	atomic_bool has_news; /* something is in the outbox; written under the mutex */

	/* The loop thread's: taken out of the outbox in one go. */
	struct fa_list taken_requests, taken_confirms, taken_closed;
	struct fa_list staged; /* requests of a batch */
	unsigned int n_staged,
		n_batched; /* of them; and of those that came since it was attended */
	bool batching;
	bool posted; /* something was put into the inbox since this thread emptied it last */

	/* The engine thread's. */
	struct fa_fair_queue turns;            /* in launches */
	struct fa_list done, confirms, closed; /* on the way to the outbox */
	struct fa_deadline_heap deadlines;
	unsigned int n_running;             /* requests that the device has */
	bool urgent;                        /* one that was launched in this round is */
	struct fa_list gated;               /* streams whose gates are looked at all the time */
	struct fa_deadline_heap gate_looks; /* the others: when next */

	/* Written by the engine thread, once: the reason, and then that there is one. */
	struct fa_error lost_reason;
	atomic_bool lost;

	struct {
		_Atomic uint64_t submitted, finished, launched, cancelled, failed, busy_ns;
	} stats;
};

/* Of a counter that both threads may be at. */
static inline void fa_engine_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline struct fa_job *fa_job_first(struct fa_list *list)
{
	return fa_container_of(list->next, struct fa_job, link);
}

/* ---- engine/engine_loop.c */

/* Waits for one of the engine's mutexes, without sleeping at first. */
void fa_engine_lock_mutex(struct fa_engine *engine, pthread_mutex_t *mutex);

static inline void fa_engine_lock(struct fa_engine *engine)
{
	fa_engine_lock_mutex(engine, &engine->mutex);
}

/* The engine thread; @userdata is the engine. */
void *fa_engine_run(void *userdata);

/* Takes what is in the inbox; has the mutex `round`. */
void fa_engine_receive(struct fa_engine *engine);

/* One round, by whoever has the mutex for it. */
void fa_engine_round(struct fa_engine *engine, int max_launches);

/* The private word, which alone releases anything, and then what the client sees. */
void fa_stream_publish(struct fa_stream *stream, uint64_t value, const struct fa_outcome *outcome);

/* ---- engine/scheduler.c; the engine thread's */

/* @request came in. */
void fa_stream_receive(struct fa_stream *stream, struct fa_job *request);

/* The loop thread has released or confirmed it. */
void fa_job_answered(struct fa_job *request);

/* Ends a request early, with @status, unless it is settled. */
void fa_job_end(struct fa_job *request, int status);

/* The device has returned it. */
void fa_job_reaped(struct fa_job *request);

/* Looks at gates that requests wait for. */
void fa_engine_look_at_gates(struct fa_engine *engine);
/* Whether one of those that are looked at all the time has opened. */
bool fa_engine_gate_is_open(const struct fa_engine *engine);

/* Launches one request of the stream whose turn it is; there is one. */
void fa_engine_launch_next(struct fa_engine *engine);

/* Ends all requests with @status, and closes the stream when they are gone. */
void fa_stream_end(struct fa_stream *stream, int status);
