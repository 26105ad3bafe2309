/*
 * Completions that the device itself writes to a client's completion page, before the engine has
 * seen them: device_words in common/completion.h. Loop thread.
 *
 * Only for a request that is alone in its stream and ends with its device work. All that follows
 * from its end still waits for the engine; so the daemon syncs before it handles a message of a
 * client that may have seen such a completion.
 */
#pragma once

#include "daemon/session/session.h"

#include <stdint.h>

/* Starts to pin the session's completion page, once. On failure the device completes nothing. */
void fa_device_completion_open(struct fa_session *session);

/* For a closing session. The caller has a reference to it. */
void fa_device_completion_stop(struct fa_session *session);

/* For a session without requests; its page may be unmapped afterwards. */
void fa_device_completion_close(struct fa_session *session);

/* To be called for each new stream. */
void fa_device_completion_stream(struct fa_session *session, uint32_t id);

/* Request @value is the stream's next. Returns true if the device completes it; never unless
 * @allowed. */
bool fa_device_completion_submit(struct fa_session *session, uint32_t stream, uint64_t value,
                                 bool allowed);

/* The stream's request that the device completes was reaped. */
void fa_device_completion_finished(struct fa_session *session, uint32_t stream);

/* Reaps every request whose completion a client may have seen or heard of from another client; but
 * gives up after a while. Sessions may be closed afterwards. */
void fa_device_completion_sync(struct fa_context *context);
