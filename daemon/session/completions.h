/*
 * Reaps finished requests from the engine, answers them, and frees closed streams. Also arms the
 * wake-up of the loop by the engine. Loop thread, except fa_completions_notify().
 */
#pragma once

#include <stdbool.h>

struct fa_context;

void fa_completions_reap_all(struct fa_context *context);

/* Reaps a bounded number; checks whether the device is lost. True: something was reaped. */
bool fa_completions_poll(struct fa_context *context);

/* The loop stops polling: from now on the engine wakes it. */
void fa_completions_arm(struct fa_context *context);

/* Wakes the loop if it sleeps; @userdata is the context. Engine thread, or loop thread. */
void fa_completions_notify(void *userdata);
