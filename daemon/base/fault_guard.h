/*
 * Runs code that touches clients' memory. A memfd may be sparse, and if the machine cannot provide a page
 * of it (vm.overcommit_memory=2), the kernel sends SIGBUS to the thread that touches it: that must end a
 * request and not the process. Any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Takes SIGBUS over for the process. Elsewhere than in guarded code it still ends the process. */
void fa_fault_guard_install(void);

/*
 * Runs @function. Returns false if it was left because of SIGBUS: it must hold no lock and own no memory
 * that it alone could free. SIGBUS must not be blocked.
 */
bool fa_fault_guard_run(void (*function)(void *userdata), void *userdata);

/* memcpy() from a client's memory. Returns false if that has no page there. */
bool fa_fault_guard_copy(void *to, const void *from, size_t bytes);
