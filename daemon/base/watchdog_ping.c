#include "daemon/base/watchdog_ping.h"

#include "common/cleanup.h"
#include "daemon/base/service_manager.h"

#include <linux/sockios.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void fa_watchdog_ping_open(struct fa_watchdog_ping *ret_ping)
{
	const char *path = getenv("NOTIFY_SOCKET");
	const size_t length = path ? strlen(path) : 0;
	struct fa_watchdog_ping ping = { .fd = -1, .address.sun_family = AF_UNIX };

	if ((length > 1 && (*path == '/' || *path == '@')) &&
	    length < sizeof(ping.address.sun_path)) {
		memcpy(ping.address.sun_path, path, length);
		if (*path == '@')
			ping.address.sun_path[0] = '\0';
		ping.address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length +
		                                 (*path == '/'));
		ping.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	}
	*ret_ping = ping;
}

void fa_watchdog_ping_close(struct fa_watchdog_ping *ping)
{
	fa_close_fdp(&ping->fd);
}

void fa_watchdog_ping_send(const struct fa_watchdog_ping *ping)
{
	static const char text[] = "WATCHDOG=1";
	int unread = 0;

	if (ping->fd < 0)
		(void)fa_manager_notify(text);
	else if (ioctl(ping->fd, SIOCOUTQ, &unread) < 0 || !unread)
		(void)sendto(ping->fd, text, sizeof(text) - 1, MSG_DONTWAIT | MSG_NOSIGNAL,
		             (const struct sockaddr *)&ping->address, ping->address_bytes);
}
