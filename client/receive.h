/* Handling what the daemon sends. With the client's mutex. */
#pragma once

#include "client/client.h"
#include "common/packet.h"

#include <stdbool.h>
#include <sys/types.h>

/* What a receive into client->in returned, and the descriptors that came with it. */
struct fa_client_packet {
	ssize_t n;
	size_t n_fds;
	int fds[FA_PACKET_FDS_MAX];
};

/* Handles @packet and consumes its descriptors. Returns false if there was none, or it was the end
 * of the connection. */
bool fa_client_handle_packet(struct fa_client *client, struct fa_client_packet *packet);
/* Reads what has arrived on the socket, without waiting, and wakes waiters. Stops early if no reply
 * is due, unless @all. @any: packets were handled before. The caller leads, or nobody does. */
void fa_client_read_socket(struct fa_client *client, bool all, bool any);
/* Reads what has arrived by ring and socket, without waiting. Leaves the socket to the leader if
 * there is one. */
void fa_client_receive(struct fa_client *client, bool all);
/* Stores results that the ring's records tell, of all streams; returns true if there were any. */
bool fa_client_collect_all(struct fa_client *client);
/* Stores those of one stream; returns true if there were any. */
bool fa_client_collect(struct fa_client *client, uint32_t stream);
/* Wakes the waiters that are ready. */
void fa_client_wake(struct fa_client *client);
