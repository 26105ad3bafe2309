#include "common/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void fa_packet_close_fds(int *fds, size_t n_fds)
{
	for (size_t i = 0; i < n_fds; ++i) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

int fa_packet_send(int socket, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds,
                   int flags)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(FA_PACKET_FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = (void *)bytes, .iov_len = n_bytes };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (n_fds > FA_PACKET_FDS_MAX)
		return -E2BIG;

	if (n_fds) {
		struct cmsghdr *cmsg;

		memset(&control, 0, sizeof(control));
		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	}

	do
		n = sendmsg(socket, &msg, flags | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

/* The kernel drops descriptors without room in @control. */
static ssize_t receive_once(int socket, void *buffer, size_t size, void *control,
                            size_t control_bytes, int *ret_fds, size_t *ret_n_fds, bool *ret_lost,
                            int flags)
{
	struct iovec iov = { .iov_base = buffer, .iov_len = size };
	struct msghdr msg = { .msg_iov = &iov,
		              .msg_iovlen = 1,
		              .msg_control = control,
		              .msg_controllen = control_bytes };
	size_t n_fds = 0;
	ssize_t n;

	/* No retry if it blocks: SO_RCVTIMEO would start again with each signal. */
	do
		n = recvmsg(socket, &msg, flags | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR && flags & MSG_DONTWAIT);
	*ret_lost = n >= 0 && (msg.msg_flags & MSG_CTRUNC);
	if (n < 0) {
		*ret_n_fds = 0;
		return -errno;
	}

	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
		size_t count;

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; ++i)
			memcpy(&ret_fds[n_fds++], CMSG_DATA(cmsg) + i * sizeof(int), sizeof(int));
	}

	*ret_n_fds = n_fds;
	if (msg.msg_flags & MSG_TRUNC)
		return -EMSGSIZE;
	return n_fds > FA_PACKET_FDS_MAX ? -E2BIG : n;
}

/* A peer that closes with unread data resets the connection. The kernel reports that once; the
 * packets that the peer had sent follow. */
static ssize_t receive(int socket, void *buffer, size_t size, void *control, size_t control_bytes,
                       int *ret_fds, size_t *ret_n_fds, bool *ret_lost, int flags)
{
	ssize_t n = receive_once(socket, buffer, size, control, control_bytes, ret_fds, ret_n_fds,
	                         ret_lost, flags);

	return n == -ECONNRESET ? receive_once(socket, buffer, size, control, control_bytes,
	                                       ret_fds, ret_n_fds, ret_lost, flags)
	                        : n;
}

ssize_t fa_packet_receive_all(int socket, void *buffer, size_t size, int *ret_fds,
                              size_t *ret_n_fds, bool *ret_lost, int flags)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(FA_PACKET_FDS_KERNEL_MAX * sizeof(int))];
	} control;

	return receive(socket, buffer, size, control.space,
	               CMSG_LEN(FA_PACKET_FDS_KERNEL_MAX * sizeof(int)), ret_fds, ret_n_fds,
	               ret_lost, flags);
}

ssize_t fa_packet_peek(int socket, void *buffer, size_t size, bool *ret_has_fds)
{
	size_t n_fds;

	return receive(socket, buffer, size, NULL, 0, NULL, &n_fds, ret_has_fds,
	               MSG_PEEK | MSG_DONTWAIT);
}

int fa_packet_drop(int socket)
{
	ssize_t n = recv(socket, NULL, 0, MSG_DONTWAIT);

	/* The kernel reports a reset before the packet. */
	if (n < 0 && errno == ECONNRESET)
		n = recv(socket, NULL, 0, MSG_DONTWAIT);
	return n < 0 ? -errno : 0;
}

ssize_t fa_packet_receive(int socket, void *buffer, size_t size, int *ret_fds, size_t *ret_n_fds,
                          int flags)
{
	/* Has room for the permitted number of descriptors: the kernel drops others, and sets
	 * MSG_CTRUNC. */
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(FA_PACKET_FDS_MAX * sizeof(int))];
	} control;
	bool lost;
	ssize_t n;

	n = receive(socket, buffer, size, control.space, CMSG_LEN(FA_PACKET_FDS_MAX * sizeof(int)),
	            ret_fds, ret_n_fds, &lost, flags);
	/* If `control` had room left, it was this process's limit. */
	if (n >= 0 && lost)
		n = *ret_n_fds < FA_PACKET_FDS_MAX ? -EMFILE : -E2BIG;
	/* An empty packet counts as the stream's end. */
	if (n <= 0) {
		fa_packet_close_fds(ret_fds, *ret_n_fds);
		*ret_n_fds = 0;
	}
	return n;
}
