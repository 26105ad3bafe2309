/*
 * Reaps finished requests from the engine, answers them, frees closed streams, and arms the
 * engine's wake-ups. Loop thread, except fa_completions_notify().
 */
#pragma once

#include <stdbool.h>

struct fa_context;

void fa_completions_reap_all(struct fa_context *context);

/* Reaps a bounded number of requests, and checks for a lost device. Returns true if something was
 * reaped. */
bool fa_completions_poll(struct fa_context *context);

/* Makes the engine wake the loop from now on. */
void fa_completions_arm(struct fa_context *context);

/* Wakes a sleeping loop. @userdata is the context. The engine thread and the loop thread call
 * it. */
void fa_completions_notify(void *userdata);
