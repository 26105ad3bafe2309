/*
 * What a session sends. Messages that its socket does not take wait here; descriptors stay charged
 * until the client has received them. Embedded in the session. Loop thread.
 */
#pragma once

#include "daemon/account/tenant.h"
#include "schema/wire.h"

#include <stddef.h>
#include <stdint.h>

#define FA_SESSION_SEND_FDS 4 /* in a message */

struct fa_context;
struct fa_session;

struct fa_outbox {
	struct fa_list messages; /* encoded, oldest first */
	unsigned int n_messages;
	uint64_t bytes;
	uint64_t turn; /* in which n_sent messages were sent */
	/* The rest of many messages is sent in later turns. */
	unsigned int n_sent;
	/* for descriptors perhaps not received */
	struct fa_charge charge_sent;
};

void fa_outbox_init(struct fa_outbox *outbox);

/* Sends what a turn allows; on failure closes the session. */
void fa_outbox_flush(struct fa_session *session);

/* Sends as far as sockets have room. */
void fa_outbox_flush_all(struct fa_context *context);

void fa_outbox_clear(struct fa_session *session);

/* Sends or queues a message; consumes @fd (-1: none) and @charge (NULL: none). On failure closes
 * the session; nothing happens if it is closing. */
void fa_session_send(struct fa_session *session, const struct fa_wire_message *message, int fd,
                     struct fa_charge *charge);

/* With up to FA_SESSION_SEND_FDS descriptors, all consumed. */
void fa_session_send_fds(struct fa_session *session, const struct fa_wire_message *message,
                         int *fds, size_t n_fds, struct fa_charge *charge);

void fa_session_reply(struct fa_session *session, uint64_t id, int status, const char *text);

/* Sends an error, then closes the connection. */
void fa_session_refuse(struct fa_session *session, uint64_t id, int status, const char *text);

/* Closes @fd. */
void fa_session_reject(struct fa_context *context, int fd, int status, const char *text);

/* -EDQUOT. */
int fa_session_charge_fds(struct fa_session *session, uint64_t n, struct fa_charge *charge,
                          struct fa_error *error);
int fa_session_charge_fd(struct fa_session *session, struct fa_charge *charge,
                         struct fa_error *error);

/* Does nothing until the client has received everything. */
void fa_session_release_received(struct fa_session *session);
