/*
 * How one thread waits for news of others: it looks for news, and if there were
 * none, waits; who has news wakes it. `signal` is the only word: whoever has news
 * exchanges it for SIGNALLED, after the news was written, and only if it was ASLEEP
 * is there a system call. The thread exchanges it for AWAKE before it looks, and
 * sleeps only if it can change it from AWAKE to ASLEEP; so what came after the look
 * makes it look again.
 *
 * It spins before it sleeps where that has paid lately, and where there are more
 * than two processors. Who only expects to have news says so, and the thread wakes up
 * meanwhile.
 *
 * Who has news may have to be woken himself before: then to wake this thread when that one
 * is awake makes them wake up one after the other. With more than two processors the thread
 * sleeps on a bell, too, a descriptor that becomes readable when the other one is woken. It
 * never reads it; when the bell has woken it, it spins for longer, and leaves the bell alone
 * until it was woken or prepared by the other one, who has read it by then. Where the bell
 * has rung in vain several times, it is not listened to for some sleeps.
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

struct fa_parker {
	/* The thread that waits looks at these two all the time, and what follows is written. */
	_Atomic uint32_t signal;
	bool may_spin;
	char apart[128];
	/* The bell and what wakes a thread that sleeps on it, both owned; there is none before
	 * `listens`. */
	int bell_fd, wake_fd;
	atomic_bool listens;
	bool heard;                 /* the bell has rung, and nobody has woken it since */
	unsigned int in_vain, rest; /* how often the bell did; sleeps without it */
	uint64_t spin_ns;           /* before a sleep without polling */
	uint64_t look_ns;           /* how long it polls without sleeping */
	uint64_t since_ns;          /* when it began to wait for what it polls for */
};

/* A zeroed waiter can be woken, too. */
void fa_parker_init(struct fa_parker *waiter);

void fa_parker_deinit(struct fa_parker *waiter);

/* Any thread, once: @fd is the bell, of which a copy is made. Without it all works as well. */
int fa_parker_listen(struct fa_parker *waiter, int fd);

/* Any thread. */
void fa_parker_wake(struct fa_parker *waiter);

/* Any thread: there will be news in a moment. */
void fa_parker_prepare(struct fa_parker *waiter);

/* Before each look for news. Returns whether it was woken since the last. */
bool fa_parker_look(struct fa_parker *waiter);

/* Whether it was woken since then. */
bool fa_parker_is_woken(const struct fa_parker *waiter);

/* Returns when woken since the last fa_parker_look(), at @until_ns, or for no reason. */
void fa_parker_wait(struct fa_parker *waiter, uint64_t until_ns);

/* The same, without spinning before. */
void fa_parker_sleep(struct fa_parker *waiter, uint64_t until_ns);

/* Between two looks of who looks all the time. */
void fa_parker_relax(const struct fa_parker *waiter);

/* ---- polling */

/* Something new is waited for. */
void fa_parker_expect(struct fa_parker *waiter);
/* What is waited for is likely to be quick, and urgent, however slow others were lately. */
void fa_parker_expect_soon(struct fa_parker *waiter);

/* Something that was waited for has come. */
void fa_parker_came(struct fa_parker *waiter);

/* How long to sleep at @now_ns before the next look; 0: not at all. */
uint64_t fa_parker_pause_ns(const struct fa_parker *waiter, uint64_t now_ns);

/* Returns when it is worth a look, which is after such a pause, or when fa_parker_wait() would. */
void fa_parker_poll(struct fa_parker *waiter, uint64_t pause_ns, uint64_t until_ns);
