/*
 * Completions that the device itself writes to the completion page (common/completion.h). Loop
 * thread.
 *
 * A request can be completed this way only if it is alone in its stream and ends with its device
 * work. The engine sees such a completion later, so the daemon syncs before it handles a message
 * whose sender may have seen one.
 */
#pragma once

#include "daemon/session/session.h"

#include <stdint.h>

/* Pins the completion page once. If that fails, the device completes nothing. */
void fa_device_completion_open(struct fa_session *session);

/* Ends completions by the device for a closing session, to which the caller has a reference. */
void fa_device_completion_stop(struct fa_session *session);

/* Unpins the page. Nothing may be in flight. The page may be unmapped next. */
void fa_device_completion_close(struct fa_session *session);

/* Call for each new stream. */
void fa_device_completion_stream(struct fa_session *session, uint32_t id);

/* Returns true if the device completes the stream's next request; only if @allowed. */
bool fa_device_completion_submit(struct fa_session *session, uint32_t stream, uint64_t value,
                                 bool allowed);

/* Call when a request that the device completes was reaped. */
void fa_device_completion_finished(struct fa_session *session, uint32_t stream);

/* Reaps what clients may have seen, within a time limit. May close sessions. */
void fa_device_completion_sync(struct fa_context *context);
