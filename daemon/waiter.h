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
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fa_waiter {
	_Atomic uint32_t signal;
	bool may_spin;
	uint64_t spin_ns;
};

/* A zeroed waiter can be woken, too. */
void fa_waiter_init(struct fa_waiter *waiter);

/* Any thread. */
void fa_waiter_wake(struct fa_waiter *waiter);

/* Before each look for news. */
void fa_waiter_look(struct fa_waiter *waiter);

/* Returns when woken since the last fa_waiter_look(), at @until_ns, or for no reason. */
void fa_waiter_wait(struct fa_waiter *waiter, uint64_t until_ns);
