/*
 * Which process the kernel ends first when memory is short: the daemon, which can be started again with
 * its pool, rather than the supervisor, which has the pool.
 */
#pragma once

/* Makes this process a less likely victim, where it may. Returns its score before. */
int fa_oom_protect(void);

/* For the child: makes it a more likely victim than @score. */
void fa_oom_expose(int score);
