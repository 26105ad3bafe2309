/* Sending messages by the socket. With the client's mutex, which is released while a send waits. */
#pragma once

#include "client/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As a deadline: reply_ns from the moment in which the send has to wait. */
#define FA_DEADLINE_REPLY 0

/* Encodes @message into client->out. */
int fa_encode(struct fa_client *client, const struct fa_wire_message *message,
              const void **ret_bytes, size_t *ret_length);
/* Tries once. -EAGAIN: the socket is full; -ETOOMANYREFS: the sockets of this user hold as many
 * descriptors as they may. */
int fa_send_once(struct fa_client *client, const void *bytes, size_t length, const int *fds,
                 size_t n_fds);
/* Waits until the socket takes more, and reads replies meanwhile. @crowded: waits a moment for
 * descriptors to leave the sockets of this user. */
int fa_send_await_socket(struct fa_client *client, bool crowded, uint64_t deadline_ns);
/* Gives the connection up, as the daemon takes no more messages; returns -ETIMEDOUT. */
int fa_send_give_up(struct fa_client *client);
/* Sends @message, waiting while the socket is full. @again: a message that could not be sent as the
 * connection was lost is sent over the next one. */
int fa_send(struct fa_client *client, struct fa_wire_message *message, const int *fds, size_t n_fds,
            uint64_t deadline_ns, bool again);
