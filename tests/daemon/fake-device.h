/*
 * A device that completes works when and in the order that the test says, and an engine on it. The
 * test's thread is the engine's loop thread.
 */
#pragma once

#include "common/clock.h"
#include "daemon/engine/engine.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define FAKE_STREAMS 64
#define FAKE_GROUPS 8
#define FAKE_LAUNCHED_MAX 4096
#define FAKE_LANES 3

/* Works with this scale are long: refused with -EBUSY while the device holds long ones. */
#define FAKE_LONG 77.0f

enum fake_stubbornness {
	FAKE_STOPS,   /* a cancelled work ends at once with -ECANCELED */
	FAKE_IGNORES, /* a cancelled work goes on until the test completes it */
};

struct fake_lane {
	struct fa_device_lane lane;
	unsigned int outstanding;
};

struct fa_device {
	unsigned int depth;
	unsigned int lane_slots; /* 0: no lanes */
	unsigned int lane;       /* lane of new queues of normal priority; others have lane 0 */
	struct fake_lane lanes[FAKE_LANES];
	bool polled; /* the end of a work does not wake the engine */
	enum fake_stubbornness stubbornness;
	int group_error, queue_error; /* errors of the next group_new() and queue_new() */
	struct fa_engine *engine;

	pthread_mutex_t mutex;
	pthread_cond_t changed;
	bool lost;                    /* for health() */
	bool holds;                   /* long works are refused */
	bool blocked;                 /* launch() blocks the engine */
	bool reap_blocked, reaping;   /* reap() is to block; reap() blocks now */
	struct fa_list running, done; /* works */
	uint64_t n_launched, n_running, n_cancelled, n_queues, n_groups;
	uint64_t n_full, n_held; /* refused because the lane was full, or the job long */
	pthread_t launcher;      /* launched last */
	struct fa_job *launched[FAKE_LAUNCHED_MAX]; /* the first ones, in order */

	pthread_t completer;
	bool stop;
};

struct fixture {
	struct fa_device device;
	struct fa_engine *engine;
	sem_t notified;
	struct fa_completion_slot slots[FAKE_STREAMS];
	struct fa_engine_group *groups[FAKE_GROUPS];
	struct fa_stream *streams[FAKE_STREAMS]; /* owner: the slot */
	unsigned int group[FAKE_STREAMS];        /* of each stream */
	uint64_t last[FAKE_STREAMS];             /* value submitted */
};

void fixture_init(struct fixture *f, unsigned int depth);
void fixture_init_polled(struct fixture *f, unsigned int depth);
/* As fixture_init(), with lanes that hold @slots works each. */
void fixture_init_lanes(struct fixture *f, unsigned int depth, unsigned int slots, bool polled);
/* Closes the open streams; the test has taken all of their jobs. */
void fixture_deinit(struct fixture *f);

void stream_open(struct fixture *f, unsigned int i, int priority);
/* job_new() makes the stream's next job; submit() also submits it. */
struct fa_job *job_new(struct fixture *f, unsigned int i);
struct fa_job *submit(struct fixture *f, unsigned int i);

void take(struct fixture *f, struct fa_job **ret_job, struct fa_stream **ret_closed);
/*
 * The engine's next result must be @job with @status; the end of stream @i; or must not exist.
 * Frees jobs and streams.
 */
/* Returns what the client sees: the value up to which all jobs of the stream are finished. */
uint64_t stream_finished(struct fa_stream *stream);
void expect(struct fixture *f, struct fa_job *job, int status);
void expect_closed(struct fixture *f, unsigned int i);
void expect_nothing(struct fixture *f);

/* Waits until @n works were launched; fails if there are more. */
void wait_launched(struct fixture *f, uint64_t n);
void wait_cancelled(struct fixture *f, uint64_t n);
/* Waits until the device has refused @n_full works for a full lane, and @n_held because they are
 * long. */
void wait_refused(struct fixture *f, uint64_t n_full, uint64_t n_held);
void hold_long(struct fixture *f, bool holds);
void complete(struct fixture *f, struct fa_job *job, int status);
/* The device is lost; its works stay in flight. */
void lose(struct fixture *f);
void block(struct fixture *f, bool blocked);
/* Blocks the engine in its next reap(), until it is released. */
void hold_at_reap(struct fixture *f);
void release_reap(struct fixture *f);

/* A thread that completes works in random order, some with -EIO. */
void completer_start(struct fixture *f);
void completer_stop(struct fixture *f);
