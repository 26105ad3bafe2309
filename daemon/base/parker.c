#include "daemon/base/parker.h"

#include "common/clock.h"
#include "common/cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Spinning pays only for shorter sleeps. */
#define SPIN_MAX_NS (50 * FA_NS_PER_US)
#define SPIN_MIN_NS (5 * FA_NS_PER_US)
/* A thread that the descriptor woke spins this long before it sleeps again: the waker has only
 * just woken up, too. */
#define WATCH_SPIN_NS (200 * FA_NS_PER_US)
/* Limits the sleeps that do not watch the descriptor after wake-ups in vain. */
#define WATCH_SKIPS 64
/* Work that takes longer counts as slow. */
#define POLL_SPIN_MAX_NS (200 * FA_NS_PER_US)
#define POLL_SPIN_MIN_NS (10 * FA_NS_PER_US)
/* A sleep between looks takes this part of the time waited so far, up to a maximum. */
#define POLL_PAUSE_FRACTION 16
#define POLL_PAUSE_MAX_NS FA_NS_PER_MS

enum signal {
	AWAKE,
	SIGNALLED,
	PARKED,
	PARKED_WATCHING,
};

static void wake_thread(struct fa_parker *parker, uint32_t before)
{
	if (before == PARKED)
		(void)syscall(SYS_futex, &parker->signal, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	else if (before == PARKED_WATCHING)
		(void)eventfd_write(parker->wake_fd, 1);
}

void fa_parker_init(struct fa_parker *parker)
{
	parker->may_spin = fa_cpu_count() > 2;
	parker->poll_spin_ns = POLL_SPIN_MAX_NS;
}

void fa_parker_deinit(struct fa_parker *parker)
{
	if (!atomic_load_explicit(&parker->watching, memory_order_acquire))
		return;
	close(parker->watch_fd);
	close(parker->wake_fd);
}

int fa_parker_watch_fd(struct fa_parker *parker, int fd)
{
	int r, watch_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (watch_fd < 0)
		return -errno;
	parker->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (parker->wake_fd < 0) {
		r = -errno;
		close(watch_fd);
		return r;
	}
	parker->watch_fd = watch_fd;
	atomic_store_explicit(&parker->watching, true, memory_order_release);
	return 0;
}

void fa_parker_wake(struct fa_parker *parker)
{
	wake_thread(parker, atomic_exchange(&parker->signal, SIGNALLED));
}

void fa_parker_prewake(struct fa_parker *parker)
{
	uint32_t before = PARKED;

	if (!parker->may_spin)
		return;
	if (atomic_compare_exchange_strong(&parker->signal, &before, AWAKE) ||
	    (before == PARKED_WATCHING &&
	     atomic_compare_exchange_strong(&parker->signal, &before, AWAKE)))
		wake_thread(parker, before);
}

bool fa_parker_consume(struct fa_parker *parker)
{
	/* If a waker comes later, the next look finds SIGNALLED. */
	if (atomic_load_explicit(&parker->signal, memory_order_relaxed) == AWAKE)
		return false;
	if (atomic_exchange(&parker->signal, AWAKE) != SIGNALLED)
		return false;
	if (parker->watch_fired)
		fa_backoff_succeeded(&parker->watch_backoff);
	parker->watch_fired = false;
	return true;
}

bool fa_parker_is_woken(const struct fa_parker *parker)
{
	return atomic_load_explicit(&parker->signal, memory_order_relaxed) == SIGNALLED;
}

static bool spin(struct fa_parker *parker, uint64_t spin_ns)
{
	uint64_t end_ns;

	if (!spin_ns)
		return false;
	end_ns = fa_now_ns() + spin_ns;
	do {
		for (int i = 0; i < 32; i++) {
			if (atomic_load_explicit(&parker->signal, memory_order_relaxed) ==
			    SIGNALLED)
				return true;
			fa_cpu_relax();
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

	/* The time is CLOCK_MONOTONIC. Why the call returned does not matter. */
	(void)syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value,
	              until_ns == FA_NS_NEVER ? NULL : &timeout, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* True: only the descriptor has woken the thread. *ret_prepared: fa_parker_prewake() has. */
static bool sleep_on_fd(struct fa_parker *parker, uint64_t until_ns, bool *ret_prepared)
{
	struct pollfd fds[] = { { .fd = parker->watch_fd, .events = POLLIN },
		                { .fd = parker->wake_fd, .events = POLLIN } };
	uint64_t now_ns = until_ns == FA_NS_NEVER ? 0 : fa_now_ns();
	uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
	uint32_t awake = AWAKE, watching = PARKED_WATCHING;
	const struct timespec timeout = { .tv_sec = (time_t)(left_ns / FA_NS_PER_SEC),
		                          .tv_nsec = (long)(left_ns % FA_NS_PER_SEC) };
	eventfd_t count;

	*ret_prepared = false;
	if (!atomic_compare_exchange_strong(&parker->signal, &awake, PARKED_WATCHING))
		return false;
	if (ppoll(fds, 2, until_ns == FA_NS_NEVER ? NULL : &timeout, NULL) < 0)
		fds[0].revents = fds[1].revents = 0;
	/* A waker changes the signal, then writes wake_fd. If the write comes after this read, the
	 * next sleep ends early. */
	if (fds[1].revents)
		(void)eventfd_read(parker->wake_fd, &count);
	if (atomic_compare_exchange_strong(&parker->signal, &watching, AWAKE))
		return fds[0].revents;
	*ret_prepared = watching == AWAKE;
	return false;
}

static bool may_watch(struct fa_parker *parker)
{
	if (!parker->may_spin || parker->watch_fired ||
	    !atomic_load_explicit(&parker->watching, memory_order_acquire))
		return false;
	return fa_backoff_next(&parker->watch_backoff);
}

/* Returns true after fa_parker_prewake(), too. */
static bool sleep_on_futex(struct fa_parker *parker, uint64_t until_ns)
{
	uint32_t awake = AWAKE;

	if (!atomic_compare_exchange_strong(&parker->signal, &awake, PARKED))
		return false;
	futex_wait(&parker->signal, PARKED, until_ns);
	return atomic_load_explicit(&parker->signal, memory_order_relaxed) == AWAKE;
}

static bool sleep_watching(struct fa_parker *parker, uint64_t until_ns)
{
	bool prepared;

	if (!sleep_on_fd(parker, until_ns, &prepared))
		return prepared;
	parker->watch_fired = true;
	fa_backoff_failed(&parker->watch_backoff, WATCH_SKIPS);
	(void)spin(parker, WATCH_SPIN_NS);
	return false;
}

void fa_parker_park(struct fa_parker *parker, uint64_t until_ns)
{
	uint64_t before_ns, slept_ns;
	bool prepared;

	if (spin(parker, parker->spin_ns))
		return;
	if (!parker->may_spin) {
		(void)sleep_on_futex(parker, until_ns);
		return;
	}
	before_ns = fa_now_ns();
	prepared = may_watch(parker) ? sleep_watching(parker, until_ns)
	                             : sleep_on_futex(parker, until_ns);
	slept_ns = fa_now_ns() - before_ns;
	if (prepared) {
		parker->spin_ns = SPIN_MAX_NS;
		parker->watch_fired = false;
	} else if (slept_ns > SPIN_MAX_NS)
		parker->spin_ns = parker->spin_ns / 2 < SPIN_MIN_NS ? 0 : parker->spin_ns / 2;
	else if (parker->spin_ns < SPIN_MAX_NS)
		parker->spin_ns = parker->spin_ns ? parker->spin_ns * 2 : SPIN_MIN_NS;
}

void fa_parker_sleep(struct fa_parker *parker, uint64_t until_ns)
{
	uint32_t awake = AWAKE;

	if (atomic_compare_exchange_strong(&parker->signal, &awake, PARKED))
		futex_wait(&parker->signal, PARKED, until_ns);
}

void fa_parker_relax(const struct fa_parker *parker)
{
	fa_cpu_spin_pause(!parker->may_spin);
}

/* ---- polling */

void fa_parker_poll_begin(struct fa_parker *parker)
{
	parker->poll_since_ns = fa_now_ns();
}

void fa_parker_poll_urgent(struct fa_parker *parker)
{
	parker->poll_spin_ns = POLL_SPIN_MAX_NS;
}

void fa_parker_poll_hit(struct fa_parker *parker)
{
	uint64_t now_ns = fa_now_ns();

	if (now_ns - parker->poll_since_ns <= POLL_SPIN_MAX_NS)
		parker->poll_spin_ns = POLL_SPIN_MAX_NS;
	else if (parker->poll_spin_ns / 2 >= POLL_SPIN_MIN_NS)
		parker->poll_spin_ns /= 2;
	parker->poll_since_ns = now_ns;
}

uint64_t fa_parker_poll_pause_ns(const struct fa_parker *parker, uint64_t now_ns)
{
	uint64_t waited_ns = now_ns - parker->poll_since_ns;

	if (waited_ns < parker->poll_spin_ns)
		return 0;
	return waited_ns / POLL_PAUSE_FRACTION < POLL_PAUSE_MAX_NS ? waited_ns / POLL_PAUSE_FRACTION
	                                                           : POLL_PAUSE_MAX_NS;
}

void fa_parker_poll(struct fa_parker *parker, uint64_t pause_ns, uint64_t until_ns)
{
	uint64_t now_ns;

	if (!pause_ns) {
		fa_parker_relax(parker);
		return;
	}
	now_ns = fa_now_ns();
	if (until_ns > now_ns + pause_ns)
		until_ns = now_ns + pause_ns;
	fa_parker_sleep(parker, until_ns);
}
