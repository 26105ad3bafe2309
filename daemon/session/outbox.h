/*
 * What a session sends. Messages that the socket does not take wait here; descriptors stay charged
 * until the client has received them. Embedded in the session. Loop thread.
 */
#pragma once

#include "daemon/account/tenant.h"
#include "schema/wire.h"

#include <stddef.h>
#include <stdint.h>

#define FA_SESSION_SEND_FDS 4 /* most descriptors in a message */

struct fa_context;
struct fa_session;

struct fa_outbox {
	struct fa_list messages; /* encoded, oldest first */
	unsigned int n_messages;
	uint64_t bytes;
	uint64_t turn; /* turn of the loop in which n_sent messages were sent */
	/* A session with many messages sends the rest in later turns. */
	unsigned int n_sent;
	/* for descriptors that were sent but perhaps not received */
	struct fa_charge charge_sent;
};

void fa_outbox_init(struct fa_outbox *outbox);

/* Sends what waits, as much as one turn of the loop allows; on failure closes the session. */
void fa_outbox_flush(struct fa_session *session);

/* Sends what waits in all sessions, as far as their sockets have room. */
void fa_outbox_flush_all(struct fa_context *context);

void fa_outbox_clear(struct fa_session *session);

/* Sends or queues a message; takes over @fd (-1: none) and its @charge (NULL: none). On failure
 * closes the session. Does nothing if it is closing. */
void fa_session_send(struct fa_session *session, const struct fa_wire_message *message, int fd,
                     struct fa_charge *charge);

/* As fa_session_send(), with up to FA_SESSION_SEND_FDS descriptors, all of which it takes over. */
void fa_session_send_fds(struct fa_session *session, const struct fa_wire_message *message,
                         int *fds, size_t n_fds, struct fa_charge *charge);

void fa_session_reply(struct fa_session *session, uint64_t id, int status, const char *text);

/* Sends an error, then closes the connection. */
void fa_session_refuse(struct fa_session *session, uint64_t id, int status, const char *text);

/* Rejects a connection without a session: sends the sentence and closes @fd. */
void fa_session_reject(struct fa_context *context, int fd, int status, const char *text);

/* Charges @n descriptors to the tenant. -EDQUOT. */
int fa_session_charge_fds(struct fa_session *session, uint64_t n, struct fa_charge *charge,
                          struct fa_error *error);
int fa_session_charge_fd(struct fa_session *session, struct fa_charge *charge,
                         struct fa_error *error);

/* Releases charge_sent if the client has received everything. */
void fa_session_release_received(struct fa_session *session);
