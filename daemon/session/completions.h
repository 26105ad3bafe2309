/*
 * Takes finished requests from the engine, answers them, and frees streams that were closed.
 * Arms and disarms the engine's wake-up of the loop. Loop thread, but for
 * fa_completions_notify().
 */
#pragma once

#include <stdbool.h>

struct fa_context;

/* Answers all requests that the engine has finished so far, and frees them. A client may have
 * seen their ends in its completion page before this thread did. */
void fa_completions_reap_all(struct fa_context *context);

/* The same for a bounded number; also looks whether the device is lost. Returns true if there
 * was anything to take. */
bool fa_completions_poll(struct fa_context *context);

/* The loop polls the engine no more: from now on the engine wakes it. */
void fa_completions_arm(struct fa_context *context);

/* Wakes the loop if it sleeps; @userdata is the context. The engine's thread, or the loop's
 * while it runs the engine. */
void fa_completions_notify(void *userdata);
