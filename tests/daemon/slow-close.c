/*
 * Part of fad-slow-close, a fad whose threads cannot close sockets, or be interrupted, while the file
 * FAD_TEST_CLOSE_GATE exists. It stands for files whose close() waits for a device or a server, which a test
 * cannot have. The main thread closes at once.
 */
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POLL_US 2000

static int is_shut(void)
{
	const char *gate = getenv("FAD_TEST_CLOSE_GATE");

	return gate && access(gate, F_OK) == 0;
}

int close(int fd)
{
	socklen_t length = sizeof(int);
	int type;

	if (gettid() != getpid() && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0)
		while (is_shut())
			usleep(POLL_US);
	return (int)syscall(SYS_close, fd);
}
