/* How a spinning thread treats its processor. */
#pragma once

#include <sched.h>
#include <stdbool.h>

/* With so few a spinning thread may keep the one it waits for from running: it yields between
 * looks. */
#define FA_CPU_FEW 4

/* Counts processors that this process may use; at least 1. */
unsigned int fa_cpu_count(void);

/* Spares power and the core's other hardware thread. */
static inline void fa_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield" ::: "memory");
#else
	__asm__ volatile("" ::: "memory");
#endif
}

/* A spinning thread calls it between two looks. */
static inline void fa_cpu_spin_pause(bool yields)
{
	if (yields)
		(void)sched_yield();
	else
		fa_cpu_relax();
}
