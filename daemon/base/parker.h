/*
 * How a thread waits for other threads' events: it consumes pending wake-ups, looks for events, and
 * parks if there were none. `signal` is the only shared word: a waker exchanges it for SIGNALLED
 * after publishing its event, and makes a system call only if it was PARKED. The thread parks only
 * if it can change the word from AWAKE, so no event is missed.
 *
 * - With more than two processors it spins before it sleeps, as long as that has paid lately.
 * - It may also wake up with a watched descriptor, which wakes the thread that will wake it: one
 *   wake-up after the other would add their latencies. It backs off if those are in vain.
 * - For a device that only writes words it polls: it spins as long as quick work takes, then
 *   sleeps for a small fraction of the time waited so far between two looks.
 */
#pragma once

#include "common/backoff.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fa_parker {
	/* Read by spinning threads, so padded. */
	_Atomic uint32_t signal;
	bool may_spin;
	char pad[128];
	/* The watched descriptor, and the eventfd that wakes a thread asleep on it. Valid once
	 * `watching` is set. */
	int watch_fd, wake_fd;
	atomic_bool watching;
	bool watch_fired;                /* it has woken the thread, and no waker since */
	struct fa_backoff watch_backoff; /* decides if a sleep watches */
	uint64_t spin_ns;                /* before a sleep */
	uint64_t poll_spin_ns;           /* polling without sleep */
	uint64_t poll_since_ns;
};

/* Even a zeroed parker can be woken. */
void fa_parker_init(struct fa_parker *parker);

void fa_parker_deinit(struct fa_parker *parker);

/* The thread wakes up with @fd, too, which is duplicated and never read. Optional; once, from any
 * thread. */
int fa_parker_watch_fd(struct fa_parker *parker, int fd);

/* Any thread may call. */
void fa_parker_wake(struct fa_parker *parker);

/* An event is about to come: a sleeping thread wakes up and spins. Any thread. */
void fa_parker_prewake(struct fa_parker *parker);

/* Consumes pending wake-ups before each look for events. Returns true if there were any. */
bool fa_parker_consume(struct fa_parker *parker);

bool fa_parker_is_woken(const struct fa_parker *parker);

/* Spins, then sleeps. Returns with a wake-up pending, at @until_ns, or for no reason. */
void fa_parker_park(struct fa_parker *parker, uint64_t until_ns);

/* Like fa_parker_park(), but does not spin. */
void fa_parker_sleep(struct fa_parker *parker, uint64_t until_ns);

void fa_parker_relax(const struct fa_parker *parker);

/* ---- polling */

/* Call it when work was started. */
void fa_parker_poll_begin(struct fa_parker *parker);
/* Work is urgent and likely quick: the thread polls without sleeping, however slow work was
 * lately. */
void fa_parker_poll_urgent(struct fa_parker *parker);

/* Call it when work has finished. */
void fa_parker_poll_hit(struct fa_parker *parker);

/* Returns how long to sleep before the next look; 0: not at all. */
uint64_t fa_parker_poll_pause_ns(const struct fa_parker *parker, uint64_t now_ns);

void fa_parker_poll(struct fa_parker *parker, uint64_t pause_ns, uint64_t until_ns);
