/* Sending by the socket. Called with the client's mutex held, and released during waits. */
#pragma once

#include "client/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A deadline: reply_ns from when the send has to wait. */
#define FA_DEADLINE_REPLY 0

/* Encodes @message into client->out. */
int fa_encode(struct fa_client *client, const struct fa_wire_message *message,
              const void **ret_bytes, size_t *ret_length);
/* -EAGAIN: the socket is full; -ETOOMANYREFS: sockets of this user hold too many descriptors. */
int fa_send_once(struct fa_client *client, const void *bytes, size_t length, const int *fds,
                 size_t n_fds);
/* Waits until the socket takes more, and reads replies meanwhile. @too_many_fds: pauses and
 * retries. */
int fa_send_await_socket(struct fa_client *client, bool too_many_fds, uint64_t deadline_ns);
/* The daemon reads nothing. Returns -ETIMEDOUT. */
int fa_send_give_up(struct fa_client *client);
/* @resend: if the connection was lost before, sends @message over the next one. */
int fa_send(struct fa_client *client, struct fa_wire_message *message, const int *fds, size_t n_fds,
            uint64_t deadline_ns, bool resend);
