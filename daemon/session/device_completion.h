/*
 * Completions that the device itself tells a session's client, before the engine has seen
 * them: the words `early` of its completion page (common/completion.h). Loop thread.
 *
 * They are told of a request that is alone in its stream and has no other end than that of
 * its work. What follows from its end still waits for the engine; so before a message of such
 * a client is handled, what it may have seen is seen here, too.
 */
#pragma once

#include "daemon/session/session.h"

#include <stdint.h>

/* Makes the session's page one that the device can write to, which takes a while where a
 * worker does it. If it cannot be done, nothing is told early. Once. */
void fa_device_completion_open(struct fa_session *session);

/* The session is closing, and somebody has a reference to it. */
void fa_device_completion_stop(struct fa_session *session);

/* Of a session without requests: the page may be unmapped afterwards. */
void fa_device_completion_close(struct fa_session *session);

/* A stream was made. */
void fa_device_completion_stream(struct fa_session *session, uint32_t id);

/* Request @value of the stream comes next, and may be told early if @may. Returns whether it
 * is to be. */
bool fa_device_completion_submit(struct fa_session *session, uint32_t stream, uint64_t value,
                                 bool allowed);

/* The request of the stream that was to be is taken from the engine. */
void fa_device_completion_finished(struct fa_session *session, uint32_t stream);

/* What any client may have seen, or has heard of from another, has been taken from the engine when
 * this returns, as fa_completions_reap_all() does it; but for what takes the engine unusually
 * long. Sessions may be closed afterwards. */
void fa_device_completion_sync(struct fa_context *context);
