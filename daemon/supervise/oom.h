/*
 * Which process the kernel ends first when memory is short: the daemon, which can be restarted, not
 * the supervisor, which has its pool.
 */
#pragma once

/* A less likely victim, if allowed. Returns the score before. */
int fa_oom_protect(void);

/* The child becomes a more likely victim than @score. */
void fa_oom_expose(int score);
