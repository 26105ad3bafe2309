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
	/* Read while spinning; padded from what is written. */
	_Atomic uint32_t signal;
	bool may_spin;
	char pad[128];
	/* The watched descriptor, and the eventfd that wakes a thread asleep on it; owned, and
	 * valid once `watching`. */
	int watch_fd, wake_fd;
	atomic_bool watching;
	bool watch_fired;                /* woken by watch_fd, and by no waker since */
	struct fa_backoff watch_backoff; /* whether a sleep watches */
	uint64_t spin_ns;                /* before a sleep without polling */
	uint64_t poll_spin_ns;           /* how long it polls without sleeping */
	uint64_t poll_since_ns;          /* when the wait for the polled event began */
};

/* A zeroed parker can be woken, too. */
void fa_parker_init(struct fa_parker *parker);

void fa_parker_deinit(struct fa_parker *parker);

/* Any thread, once: also wakes up with @fd, which is duplicated and never read. Optional. */
int fa_parker_watch_fd(struct fa_parker *parker, int fd);

/* Any thread. */
void fa_parker_wake(struct fa_parker *parker);

/* Any thread: an event is about to come. A sleeping thread wakes up and spins. */
void fa_parker_prewake(struct fa_parker *parker);

/* Consumes pending wake-ups before each look for events; true: there were any. */
bool fa_parker_consume(struct fa_parker *parker);

bool fa_parker_is_woken(const struct fa_parker *parker);

/* Spins, then sleeps. Returns with a wake-up pending, at @until_ns, or for no reason. */
void fa_parker_park(struct fa_parker *parker, uint64_t until_ns);

/* The same without spinning. */
void fa_parker_sleep(struct fa_parker *parker, uint64_t until_ns);

/* Between a busy loop's looks: pauses or yields the processor. */
void fa_parker_relax(const struct fa_parker *parker);

/* ---- polling */

/* Work was started. */
void fa_parker_poll_begin(struct fa_parker *parker);
/* The work is urgent and likely quick: poll without sleeping, however slow work was lately. */
void fa_parker_poll_urgent(struct fa_parker *parker);

/* Work has finished. */
void fa_parker_poll_hit(struct fa_parker *parker);

/* Sleep at @now_ns before the next look; 0: none. */
uint64_t fa_parker_poll_pause_ns(const struct fa_parker *parker, uint64_t now_ns);

/* Waits for @pause_ns, or until fa_parker_park() would return. */
void fa_parker_poll(struct fa_parker *parker, uint64_t pause_ns, uint64_t until_ns);
