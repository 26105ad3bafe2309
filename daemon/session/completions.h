/*
 * Reaps finished requests from the engine, answers them, and frees closed streams. Also arms the
 * wake-up of the loop by the engine. Loop thread, except fa_completions_notify().
 */
#pragma once

#include <stdbool.h>

struct fa_context;

/* Answers and frees all requests that the engine has finished. */
void fa_completions_reap_all(struct fa_context *context);

/* The same for a bounded number; also checks whether the device is lost. Returns true if anything
 * was reaped. */
bool fa_completions_poll(struct fa_context *context);

/* The loop stops polling: from now on the engine wakes it. */
void fa_completions_arm(struct fa_context *context);

/* Wakes the loop if it sleeps; @userdata is the context. Called by the engine's thread, or by the
 * loop's while it runs the engine. */
void fa_completions_notify(void *userdata);
