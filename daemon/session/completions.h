/*
 * Reaps finished requests from the engine, answers them, frees closed streams, and arms the
 * engine's wake-ups. Loop thread, except fa_completions_notify().
 */
#pragma once

#include <stdbool.h>

struct fa_context;

void fa_completions_reap_all(struct fa_context *context);

/* Reaps a bounded number; checks for a lost device. True: something was reaped. */
bool fa_completions_poll(struct fa_context *context);

/* From now on the engine wakes the loop. */
void fa_completions_arm(struct fa_context *context);

/* Wakes a sleeping loop; @userdata is the context. Engine or loop thread. */
void fa_completions_notify(void *userdata);
