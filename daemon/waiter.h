/*
 * How one thread waits for news of others: it looks for news, and if there were
 * none, waits; who has news wakes it. `signal` is the only word: whoever has news
 * exchanges it for SIGNALLED, after the news was written, and only if it was ASLEEP
 * is there a system call. The thread exchanges it for AWAKE before it looks, and
 * sleeps only if it can change it from AWAKE to ASLEEP; so what came after the look
 * makes it look again.
 *
 * It spins before it sleeps where that has paid lately, and where there are more
 * than two processors.
 *
 * For some of its news nobody wakes it: a device that only writes words. While such
 * news are due it polls: it looks again and again, for as long as the quick ones take,
 * and then between sleeps that grow with the time that it has waited for, so that it
 * is late by a small part of that at most, and a long wait costs next to nothing. With
 * two processors or fewer it lets others run between two looks.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fa_waiter {
	_Atomic uint32_t signal;
	bool may_spin;
	uint64_t spin_ns;  /* before a sleep without polling */
	uint64_t look_ns;  /* how long it polls without sleeping */
	uint64_t since_ns; /* when it began to wait for what it polls for */
};

/* A zeroed waiter can be woken, too. */
void fa_waiter_init(struct fa_waiter *waiter);

/* Any thread. */
void fa_waiter_wake(struct fa_waiter *waiter);

/* Before each look for news. Returns whether it was woken since the last. */
bool fa_waiter_look(struct fa_waiter *waiter);

/* Returns when woken since the last fa_waiter_look(), at @until_ns, or for no reason. */
void fa_waiter_wait(struct fa_waiter *waiter, uint64_t until_ns);

/* ---- polling */

/* Something new is waited for. */
void fa_waiter_expect(struct fa_waiter *waiter);

/* Something that was waited for has come. */
void fa_waiter_came(struct fa_waiter *waiter);

/* Returns when it is worth a look, or when fa_waiter_wait() would. */
void fa_waiter_poll(struct fa_waiter *waiter, uint64_t until_ns);

/* How long fa_waiter_poll() sleeps at @now_ns; 0: it does not. */
uint64_t fa_waiter_pause_ns(const struct fa_waiter *waiter, uint64_t now_ns);
