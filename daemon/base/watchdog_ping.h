/*
 * Sends WATCHDOG=1 to systemd or the supervisor. Never blocks, and leaves at most one ping unread,
 * so that pings cannot fill the queue for fd store descriptors. One thread.
 */
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

struct fa_watchdog_ping {
	int fd; /* -1: only fa_manager_notify() supports the address */
	struct sockaddr_un address;
	socklen_t address_bytes;
};

void fa_watchdog_ping_open(struct fa_watchdog_ping *ret_ping);
void fa_watchdog_ping_close(struct fa_watchdog_ping *ping);
void fa_watchdog_ping_send(const struct fa_watchdog_ping *ping);
