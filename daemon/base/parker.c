#include "daemon/base/parker.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Longest spin before sleeping; a sleep that was shorter makes spinning worth it. */
#define SPIN_MAX_NS (50 * FA_NS_PER_US)
#define SPIN_MIN_NS (5 * FA_NS_PER_US)
/* The other thread, which the bell has woken as well, is about as late as this one. */
#define SPIN_BELL_NS (200 * FA_NS_PER_US)
/* A bell that rings for nothing so often is not heard for so many sleeps. */
#define BELLS_IN_VAIN 4
#define REST 64
/* The same for polling; what takes longer than this is not quick. */
#define LOOK_MAX_NS (200 * FA_NS_PER_US)
#define LOOK_MIN_NS (10 * FA_NS_PER_US)
/* A sleep between two looks: a part of the time waited so far, and at most so much. */
#define PAUSE_PART 16
#define PAUSE_MAX_NS FA_NS_PER_MS

enum signal {
	AWAKE,
	SIGNALLED,
	ASLEEP,
	LISTENING, /* asleep on the bell */
};

/* The thread sleeps no more, or will not. */
static void rouse(struct fa_parker *waiter, uint32_t before)
{
	if (before == ASLEEP)
		(void)syscall(SYS_futex, &waiter->signal, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	else if (before == LISTENING)
		(void)eventfd_write(waiter->wake_fd, 1);
}

void fa_parker_init(struct fa_parker *waiter)
{
	cpu_set_t cpus;

	waiter->may_spin = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) > 2;
	waiter->look_ns = LOOK_MAX_NS;
}

void fa_parker_deinit(struct fa_parker *waiter)
{
	if (!atomic_load_explicit(&waiter->listens, memory_order_acquire))
		return;
	close(waiter->bell_fd);
	close(waiter->wake_fd);
}

int fa_parker_listen(struct fa_parker *waiter, int fd)
{
	int r, bell_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (bell_fd < 0)
		return -errno;
	waiter->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (waiter->wake_fd < 0) {
		r = -errno;
		close(bell_fd);
		return r;
	}
	waiter->bell_fd = bell_fd;
	atomic_store_explicit(&waiter->listens, true, memory_order_release);
	return 0;
}

void fa_parker_wake(struct fa_parker *waiter)
{
	rouse(waiter, atomic_exchange(&waiter->signal, SIGNALLED));
}

void fa_parker_prepare(struct fa_parker *waiter)
{
	uint32_t before = ASLEEP;

	if (!waiter->may_spin)
		return;
	if (atomic_compare_exchange_strong(&waiter->signal, &before, AWAKE) ||
	    (before == LISTENING &&
	     atomic_compare_exchange_strong(&waiter->signal, &before, AWAKE)))
		rouse(waiter, before);
}

bool fa_parker_look(struct fa_parker *waiter)
{
	/* Whoever has news after this makes it look again. */
	if (atomic_load_explicit(&waiter->signal, memory_order_relaxed) == AWAKE)
		return false;
	if (atomic_exchange(&waiter->signal, AWAKE) != SIGNALLED)
		return false;
	if (waiter->heard)
		waiter->in_vain = 0;
	waiter->heard = false;
	return true;
}

bool fa_parker_is_woken(const struct fa_parker *waiter)
{
	return atomic_load_explicit(&waiter->signal, memory_order_relaxed) == SIGNALLED;
}

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Returns true if there are news. */
static bool spin(struct fa_parker *waiter, uint64_t spin_ns)
{
	uint64_t end_ns;

	if (!spin_ns)
		return false;
	end_ns = fa_now_ns() + spin_ns;
	do {
		for (int i = 0; i < 32; i++) {
			if (atomic_load_explicit(&waiter->signal, memory_order_relaxed) ==
			    SIGNALLED)
				return true;
			cpu_relax();
		}
	} while (fa_now_ns() < end_ns);
	return false;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t until_ns)
{
	struct timespec timeout = {
		.tv_sec = (time_t)(until_ns / FA_NS_PER_SEC),
		.tv_nsec = (long)(until_ns % FA_NS_PER_SEC),
	};

	/* Absolute, CLOCK_MONOTONIC. Why it returned does not matter. */
	(void)syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value,
	              until_ns == FA_NS_NEVER ? NULL : &timeout, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* Sleeps on the bell, unless there are news. Returns whether the bell has woken it, and nobody
 * else did; *ret_prepared: somebody did, who will have news. */
static bool sleep_on_bell(struct fa_parker *waiter, uint64_t until_ns, bool *ret_prepared)
{
	struct pollfd fds[] = { { .fd = waiter->bell_fd, .events = POLLIN },
		                { .fd = waiter->wake_fd, .events = POLLIN } };
	uint64_t now_ns = until_ns == FA_NS_NEVER ? 0 : fa_now_ns();
	uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
	uint32_t awake = AWAKE, listening = LISTENING;
	const struct timespec timeout = { .tv_sec = (time_t)(left_ns / FA_NS_PER_SEC),
		                          .tv_nsec = (long)(left_ns % FA_NS_PER_SEC) };
	eventfd_t count;

	*ret_prepared = false;
	if (!atomic_compare_exchange_strong(&waiter->signal, &awake, LISTENING))
		return false;
	if (ppoll(fds, 2, until_ns == FA_NS_NEVER ? NULL : &timeout, NULL) < 0)
		fds[0].revents = fds[1].revents = 0;
	/* One that is written later wakes once for nothing. */
	if (fds[1].revents)
		(void)eventfd_read(waiter->wake_fd, &count);
	if (atomic_compare_exchange_strong(&waiter->signal, &listening, AWAKE))
		return fds[0].revents;
	*ret_prepared = listening == AWAKE;
	return false;
}

static bool may_listen(struct fa_parker *waiter)
{
	if (!waiter->may_spin || waiter->heard ||
	    !atomic_load_explicit(&waiter->listens, memory_order_acquire))
		return false;
	if (!waiter->rest)
		return true;
	--waiter->rest;
	return false;
}

/* Both return whether it was prepared for news meanwhile. */
static bool sleep_deaf(struct fa_parker *waiter, uint64_t until_ns)
{
	uint32_t awake = AWAKE;

	if (!atomic_compare_exchange_strong(&waiter->signal, &awake, ASLEEP))
		return false;
	futex_wait(&waiter->signal, ASLEEP, until_ns);
	return atomic_load_explicit(&waiter->signal, memory_order_relaxed) == AWAKE;
}

static bool sleep_listening(struct fa_parker *waiter, uint64_t until_ns)
{
	bool prepared;

	if (!sleep_on_bell(waiter, until_ns, &prepared))
		return prepared;
	waiter->heard = true;
	if (++waiter->in_vain >= BELLS_IN_VAIN) {
		waiter->in_vain = 0;
		waiter->rest = REST;
	}
	(void)spin(waiter, SPIN_BELL_NS);
	return false;
}

void fa_parker_wait(struct fa_parker *waiter, uint64_t until_ns)
{
	uint64_t before_ns, slept_ns;
	bool prepared;

	if (spin(waiter, waiter->spin_ns))
		return;
	if (!waiter->may_spin) {
		(void)sleep_deaf(waiter, until_ns);
		return;
	}
	before_ns = fa_now_ns();
	prepared = may_listen(waiter) ? sleep_listening(waiter, until_ns)
	                              : sleep_deaf(waiter, until_ns);
	slept_ns = fa_now_ns() - before_ns;
	if (prepared) {
		waiter->spin_ns = SPIN_MAX_NS;
		waiter->heard = false;
	} else if (slept_ns > SPIN_MAX_NS)
		waiter->spin_ns = waiter->spin_ns / 2 < SPIN_MIN_NS ? 0 : waiter->spin_ns / 2;
	else if (waiter->spin_ns < SPIN_MAX_NS)
		waiter->spin_ns = waiter->spin_ns ? waiter->spin_ns * 2 : SPIN_MIN_NS;
}

void fa_parker_sleep(struct fa_parker *waiter, uint64_t until_ns)
{
	uint32_t awake = AWAKE;

	if (atomic_compare_exchange_strong(&waiter->signal, &awake, ASLEEP))
		futex_wait(&waiter->signal, ASLEEP, until_ns);
}

void fa_parker_relax(const struct fa_parker *waiter)
{
	if (waiter->may_spin)
		cpu_relax();
	else
		(void)sched_yield();
}

/* ---- polling */

void fa_parker_expect(struct fa_parker *waiter)
{
	waiter->since_ns = fa_now_ns();
}

void fa_parker_expect_soon(struct fa_parker *waiter)
{
	waiter->look_ns = LOOK_MAX_NS;
}

void fa_parker_came(struct fa_parker *waiter)
{
	uint64_t now_ns = fa_now_ns();

	if (now_ns - waiter->since_ns <= LOOK_MAX_NS)
		waiter->look_ns = LOOK_MAX_NS;
	else if (waiter->look_ns / 2 >= LOOK_MIN_NS)
		waiter->look_ns /= 2;
	waiter->since_ns = now_ns;
}

uint64_t fa_parker_pause_ns(const struct fa_parker *waiter, uint64_t now_ns)
{
	uint64_t waited_ns = now_ns - waiter->since_ns;

	if (waited_ns < waiter->look_ns)
		return 0;
	return waited_ns / PAUSE_PART < PAUSE_MAX_NS ? waited_ns / PAUSE_PART : PAUSE_MAX_NS;
}

void fa_parker_poll(struct fa_parker *waiter, uint64_t pause_ns, uint64_t until_ns)
{
	uint64_t now_ns;

	if (!pause_ns) {
		fa_parker_relax(waiter);
		return;
	}
	now_ns = fa_now_ns();
	if (until_ns > now_ns + pause_ns)
		until_ns = now_ns + pause_ns;
	fa_parker_sleep(waiter, until_ns);
}
