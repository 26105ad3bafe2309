#include "daemon/waiter.h"

#include "common/clock.h"

#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Longest spin before sleeping; a sleep that was shorter makes spinning worth it. */
#define SPIN_MAX_NS (50 * FA_NS_PER_US)
#define SPIN_MIN_NS (5 * FA_NS_PER_US)
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
};

void fa_waiter_init(struct fa_waiter *waiter)
{
	cpu_set_t cpus;

	waiter->may_spin = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) > 2;
	waiter->look_ns = LOOK_MAX_NS;
}

void fa_waiter_wake(struct fa_waiter *waiter)
{
	if (atomic_exchange(&waiter->signal, SIGNALLED) == ASLEEP)
		(void)syscall(SYS_futex, &waiter->signal, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

bool fa_waiter_look(struct fa_waiter *waiter)
{
	return atomic_exchange(&waiter->signal, AWAKE) == SIGNALLED;
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
static bool spin(struct fa_waiter *waiter)
{
	uint64_t end_ns;

	if (!waiter->spin_ns)
		return false;
	end_ns = fa_now_ns() + waiter->spin_ns;
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

void fa_waiter_wait(struct fa_waiter *waiter, uint64_t until_ns)
{
	uint64_t before_ns, slept_ns;
	uint32_t awake = AWAKE;

	if (spin(waiter))
		return;
	if (!atomic_compare_exchange_strong(&waiter->signal, &awake, ASLEEP))
		return;
	if (!waiter->may_spin) {
		futex_wait(&waiter->signal, ASLEEP, until_ns);
		return;
	}
	before_ns = fa_now_ns();
	futex_wait(&waiter->signal, ASLEEP, until_ns);
	slept_ns = fa_now_ns() - before_ns;
	if (slept_ns > SPIN_MAX_NS)
		waiter->spin_ns = 0;
	else if (waiter->spin_ns < SPIN_MAX_NS)
		waiter->spin_ns = waiter->spin_ns ? waiter->spin_ns * 2 : SPIN_MIN_NS;
}

/* ---- polling */

void fa_waiter_expect(struct fa_waiter *waiter)
{
	waiter->since_ns = fa_now_ns();
}

void fa_waiter_came(struct fa_waiter *waiter)
{
	uint64_t now_ns = fa_now_ns();

	if (now_ns - waiter->since_ns <= LOOK_MAX_NS)
		waiter->look_ns = LOOK_MAX_NS;
	else if (waiter->look_ns / 2 >= LOOK_MIN_NS)
		waiter->look_ns /= 2;
	waiter->since_ns = now_ns;
}

uint64_t fa_waiter_pause_ns(const struct fa_waiter *waiter, uint64_t now_ns)
{
	uint64_t waited_ns = now_ns - waiter->since_ns;

	if (waited_ns < waiter->look_ns)
		return 0;
	return waited_ns / PAUSE_PART < PAUSE_MAX_NS ? waited_ns / PAUSE_PART : PAUSE_MAX_NS;
}

void fa_waiter_poll(struct fa_waiter *waiter, uint64_t until_ns)
{
	uint64_t now_ns = fa_now_ns(), pause_ns = fa_waiter_pause_ns(waiter, now_ns);
	uint32_t awake = AWAKE;

	if (!pause_ns && !waiter->may_spin) {
		(void)sched_yield();
		return;
	}
	if (!pause_ns) {
		cpu_relax();
		return;
	}
	if (until_ns > now_ns + pause_ns)
		until_ns = now_ns + pause_ns;
	if (atomic_compare_exchange_strong(&waiter->signal, &awake, ASLEEP))
		futex_wait(&waiter->signal, ASLEEP, until_ns);
}
