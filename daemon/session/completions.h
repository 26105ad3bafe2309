/*
 * Reaps finished requests from the engine, answers them, frees closed streams, and arms the
 * engine's wake-ups. Accounts take turns: one that ends hundreds of requests at once delays no
 * other. Loop thread, except fa_completions_notify().
 */
#pragma once

#include <stdbool.h>

struct fa_context;
struct fa_session;

/*
 * Reaps what the session's account has, before a message is handled whose client may have seen its
 * requests end. Without @all the time is bounded; false: something is left, and the message must
 * wait.
 */
bool fa_completions_reap(struct fa_session *session, bool all);

void fa_completions_reap_all(struct fa_context *context);

/* For a bounded time; checks for a lost device. Returns true if something was reaped. */
bool fa_completions_poll(struct fa_context *context);

/* From now on the engine wakes the loop. */
void fa_completions_arm(struct fa_context *context);

/* @userdata: the context. From the engine and the loop thread. */
void fa_completions_notify(void *userdata);
