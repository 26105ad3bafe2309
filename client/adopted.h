/* Spawned daemons that became children of this process. Any thread; takes no lock. */
#pragma once

#include <sys/types.h>

/* Remembers the daemon @pid, if it is a child of this process. */
void fa_adopted_add(pid_t pid);
void fa_adopted_reap(void);
