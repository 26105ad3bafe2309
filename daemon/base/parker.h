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
	/* Spinning threads read this word; padding keeps it apart from what is written. */
	_Atomic uint32_t signal;
	bool may_spin;
	char pad[128];
	/* The watched descriptor, and the eventfd that wakes a thread asleep on it. The parker owns
	 * both; they are valid once `watching` is set. */
	int watch_fd, wake_fd;
	atomic_bool watching;
	bool watch_fired;                /* watch_fd has woken the thread, and no waker since */
	struct fa_backoff watch_backoff; /* decides whether a sleep watches */
	uint64_t spin_ns;                /* how long to spin before a sleep, without polling */
	uint64_t poll_spin_ns;           /* how long to poll without sleeping */
	uint64_t poll_since_ns;          /* when the wait for the polled event began */
};

/* Initialises a parker. Even a zeroed one can be woken. */
void fa_parker_init(struct fa_parker *parker);

void fa_parker_deinit(struct fa_parker *parker);

/* Makes the thread wake up with @fd, too. Duplicates @fd and never reads it. Optional; call it
 * once, from any thread. */
int fa_parker_watch_fd(struct fa_parker *parker, int fd);

/* Wakes the thread. Any thread may call. */
void fa_parker_wake(struct fa_parker *parker);

/* Announces that an event is about to come: a sleeping thread wakes up and spins. Any thread may
 * call. */
void fa_parker_prewake(struct fa_parker *parker);

/* Consumes pending wake-ups; call it before each look for events. Returns true if there were
 * any. */
bool fa_parker_consume(struct fa_parker *parker);

bool fa_parker_is_woken(const struct fa_parker *parker);

/* Spins, then sleeps. Returns with a wake-up pending, at @until_ns, or for no reason. */
void fa_parker_park(struct fa_parker *parker, uint64_t until_ns);

/* Sleeps like fa_parker_park(), but without spinning. */
void fa_parker_sleep(struct fa_parker *parker, uint64_t until_ns);

/* Pauses or yields the processor, between a busy loop's looks. */
void fa_parker_relax(const struct fa_parker *parker);

/* ---- polling */

/* Call when work was started. */
void fa_parker_poll_begin(struct fa_parker *parker);
/* Call when the work is urgent and likely quick: the thread then polls without sleeping, however
 * slow work was lately. */
void fa_parker_poll_urgent(struct fa_parker *parker);

/* Call when work has finished. */
void fa_parker_poll_hit(struct fa_parker *parker);

/* Returns how long to sleep at @now_ns before the next look; 0: not at all. */
uint64_t fa_parker_poll_pause_ns(const struct fa_parker *parker, uint64_t now_ns);

/* Waits for @pause_ns, or until fa_parker_park() would return. */
void fa_parker_poll(struct fa_parker *parker, uint64_t pause_ns, uint64_t until_ns);
