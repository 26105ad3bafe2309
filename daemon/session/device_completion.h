/*
 * Completions that the device itself writes to the completion page (common/completion.h). Loop
 * thread. It may complete a request that ends with its device work, if the client has seen the end
 * of all earlier ones of the stream.
 *
 * The engine sees that later, so the daemon syncs before it handles a message whose sender may have
 * seen one. A request that the device has reported counts for no limit.
 */
#pragma once

#include "daemon/session/request.h"

#include <stdint.h>

/* Pins the page, once. If that fails, the device completes nothing. */
void fa_device_completion_open(struct fa_session *session);

/* For a closing session that the caller references. */
void fa_device_completion_stop(struct fa_session *session);

/* Nothing may be in flight. The page may be unmapped next. */
void fa_device_completion_close(struct fa_session *session);

void fa_device_completion_stream(struct fa_session *session, uint32_t id);

/* For each new request. Returns true if the device completes it; only if @allowed. */
bool fa_device_completion_submit(struct fa_request *request, bool allowed);

/* For each value that neither the device completes nor an engine's job has. */
void fa_device_completion_pass(struct fa_session *session, uint32_t stream, uint64_t value);

/* A request that the device completes was reaped. */
void fa_device_completion_finished(const struct fa_request *request);

/* Notes what the device has reported, and gives the engine a short time to see it. May close
 * sessions. */
void fa_device_completion_sync(struct fa_context *context);
