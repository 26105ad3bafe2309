/* Sends by the socket. With the client's mutex held, and released during waits. */
#pragma once

#include "client/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Stands for a deadline reply_ns after the send had to wait. */
#define FA_DEADLINE_REPLY 0

/* Encodes the message into client->out. */
int fa_encode(struct fa_client *client, const struct fa_wire_message *message,
              const void **ret_bytes, size_t *ret_length);
/* -EAGAIN: the socket is full; -ETOOMANYREFS: too many descriptors in sockets of this user. */
int fa_send_once(struct fa_client *client, const void *bytes, size_t length, const int *fds,
                 size_t n_fds);
/* Reads replies while it waits. @too_many_fds: pause, then retry. */
int fa_send_await_socket(struct fa_client *client, bool too_many_fds, uint64_t deadline_ns);
/* Call it when the daemon reads nothing. Returns -ETIMEDOUT. */
int fa_send_give_up(struct fa_client *client);
/* @resend: if the connection was lost before, @message goes over the next one. */
int fa_send(struct fa_client *client, struct fa_wire_message *message, const int *fds, size_t n_fds,
            uint64_t deadline_ns, bool resend);
