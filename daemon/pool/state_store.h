/* The one way to make a change of the state take effect. Loop thread only. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* For tests: if set, called before and after every store that takes effect, so that a test can
 * end the process there. */
extern void (*fa_state_fault_hook)(void);

static inline void fa_state_fault_point(void)
{
	if (__builtin_expect(fa_state_fault_hook != NULL, 0))
		fa_state_fault_hook();
}

/*
 * Stores an aligned word that takes effect. Stores before it in the program reach the state
 * before it, stores after it later. A process that is killed stops between two instructions,
 * so program order is all that matters: only the compiler must be kept from reordering.
 */
static inline void fa_state_store(uint32_t *at, uint32_t value)
{
	fa_state_fault_point();
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	fa_state_fault_point();
}
