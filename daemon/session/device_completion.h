/*
 * Completions that the device itself writes to the completion page (common/completion.h). Loop
 * thread.
 *
 * The device may complete a request if the client has seen the end of all earlier ones of its
 * stream, and if the request ends with its device work. The engine sees such a completion later, so
 * the daemon syncs before it handles a message whose sender may have seen one. A request that the
 * device has reported counts for no limit from then on.
 */
#pragma once

#include "daemon/session/request.h"

#include <stdint.h>

/* Pins the completion page once. If that fails, the device completes nothing. */
void fa_device_completion_open(struct fa_session *session);

/* Call for a closing session, to which the caller has a reference. */
void fa_device_completion_stop(struct fa_session *session);

/* Nothing may be in flight. The page may be unmapped next. */
void fa_device_completion_close(struct fa_session *session);

/* Call for each new stream. */
void fa_device_completion_stream(struct fa_session *session, uint32_t id);

/* Call for each new request. Returns true if the device completes it; only if @allowed. */
bool fa_device_completion_submit(struct fa_request *request, bool allowed);

/* Call for each value of a stream that neither the device completes nor an engine's job has. */
void fa_device_completion_pass(struct fa_session *session, uint32_t stream, uint64_t value);

/* Call when a request that the device completes was reaped. */
void fa_device_completion_finished(const struct fa_request *request);

/* Notes what the device has reported to clients, and gives the engine a short time to see the same.
 * May close sessions. */
void fa_device_completion_sync(struct fa_context *context);
