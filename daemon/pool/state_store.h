/* The stores that make changes take effect; state.h says why they suffice. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* For tests: called around every such store. May be NULL. */
extern void (*fa_state_fault_hook)(void);

static inline void fa_state_fault_point(void)
{
	if (__builtin_expect(fa_state_fault_hook != NULL, 0))
		fa_state_fault_hook();
}

/*
 * Stores an aligned word, between earlier and later stores of the program. A killed process stops
 * between two instructions, so only the compiler must not reorder.
 */
static inline void fa_state_store(uint32_t *at, uint32_t value)
{
	fa_state_fault_point();
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	fa_state_fault_point();
}
