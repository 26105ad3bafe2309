/* Thread cancellation is off inside the library: a thread that ended within a call would leave
 * locks held and memory lost. */
#pragma once

#include "common/cleanup.h"

#include <pthread.h>

static inline int fa_cancel_disable(void)
{
	int before;

	(void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void fa_cancel_restore(int *before)
{
	(void)pthread_setcancelstate(*before, NULL);
}

/* Begins every public function that may lock, wait or allocate. A cancellation takes effect at the
 * thread's next cancellation point after the call. */
#define fa_uncancelled()                                                                           \
	_fa_cleanup_(fa_cancel_restore) __attribute__((unused)) int _fa_before = fa_cancel_disable()
