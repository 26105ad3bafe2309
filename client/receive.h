/* Handles what the daemon sends. With the client's mutex held. */
#pragma once

#include "client/client.h"
#include "common/packet.h"

#include <stdbool.h>
#include <sys/types.h>

/* As returned by a receive into client->in. */
struct fa_client_packet {
	ssize_t n;
	size_t n_fds;
	int fds[FA_PACKET_FDS_MAX];
};

/* Consumes the packet's descriptors. False: no packet, or the connection ended. */
bool fa_client_handle_packet(struct fa_client *client, struct fa_client_packet *packet);
/* Reads the socket without waiting, and wakes waiters. Stops when no reply is due, unless @all.
 * @any: packets were handled before. For the leader, or any thread while there is none. */
void fa_client_read_socket(struct fa_client *client, bool all, bool any);
/* Reads ring and socket without waiting, but leaves the socket to a leader. */
void fa_client_receive(struct fa_client *client, bool all);
/* Return true if records had results, of all streams or of one. */
bool fa_client_collect_all(struct fa_client *client);
bool fa_client_collect(struct fa_client *client, uint32_t stream);
void fa_client_wake(struct fa_client *client);
