#include "tests/daemon/lingering.h"

#include "common/packet.h"
#include "tests/lib/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static int listener = -1;
static struct sockaddr_in address;

void lingering_start(void)
{
	socklen_t length = sizeof(address);

	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	fa_check(listener >= 0);
	address = (struct sockaddr_in){ .sin_family = AF_INET };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fa_check(!bind(listener, (struct sockaddr *)&address, sizeof(address)));
	fa_check(!listen(listener, 256));
	fa_check(!getsockname(listener, (struct sockaddr *)&address, &length));
}

void lingering_stop(void)
{
	close(listener);
}

/* True if data is left that the peer has no room for: none is on its way, or it was not taken. */
static bool is_stuck(int fd)
{
	struct pollfd room = { .fd = fd, .events = POLLOUT };
	int queued = 0, unsent = 0;

	fa_check(!ioctl(fd, SIOCOUTQ, &queued));
	fa_check(!ioctl(fd, SIOCOUTQNSD, &unsent));
	return (unsent > 0 && unsent == queued) || poll(&room, 1, 10) == 0;
}

int lingering_new(void)
{
	struct linger linger = { .l_onoff = 1, .l_linger = LINGERING_S };
	static char bytes[65536];
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	fa_check(fd >= 0);
	fa_check(!connect(fd, (struct sockaddr *)&address, sizeof(address)));
	do {
		while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
			;
		fa_check_eq(errno, EAGAIN);
	} while (!is_stuck(fd));
	fa_check(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	return fd;
}

int lingering_new_wrapped(void)
{
	int pair[2], fd;

	fa_check(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	fd = lingering_new();
	fa_check_eq(fa_packet_send(pair[0], "x", 1, &fd, 1, 0), 0);
	close(fd);
	close(pair[0]);
	return pair[1];
}
