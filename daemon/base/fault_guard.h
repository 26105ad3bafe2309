/*
 * Runs code that touches clients' memory. If the machine has no page for a sparse memfd
 * (vm.overcommit_memory=2), the thread gets SIGBUS, which must end a request and not the process.
 * Any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* For the whole process. Outside of guarded code SIGBUS still ends it. */
void fa_fault_guard_install(void);

/*
 * Returns false if SIGBUS ended @function: it must hold no lock and own no memory that it alone
 * could free. SIGBUS must not be blocked.
 */
bool fa_fault_guard_run(void (*function)(void *userdata), void *userdata);

/* False: the client's memory has no page there. */
bool fa_fault_guard_copy(void *to, const void *from, size_t bytes);
