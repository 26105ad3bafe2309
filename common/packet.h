/*
 * Packets with descriptors over a SOCK_SEQPACKET socket. Descriptors are close-on-exec; those of a
 * refused packet are closed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define FA_PACKET_FDS_MAX 8
/* SCM_MAX_FD: the kernel's limit for a packet. */
#define FA_PACKET_FDS_KERNEL_MAX 253

/*
 * Sends @bytes with @n_fds borrowed descriptors, at most FA_PACKET_FDS_MAX. @flags as for send(2);
 * MSG_NOSIGNAL is added. Returns 0 or a negative errno, with nothing sent: -EAGAIN the socket is
 * full; -EPIPE the peer is gone; -ETOOMANYREFS more descriptors of this user are in sockets than a
 * process may have.
 */
int fa_packet_send(int socket, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds,
                   int flags);

/*
 * Receives one packet into @buffer and its descriptors, at most FA_PACKET_FDS_MAX, into @ret_fds;
 * the caller owns them. @flags as for recv(2); MSG_CMSG_CLOEXEC is added. Returns the packet's
 * length; 0 at the end of the stream, also after a reset, and for an empty packet; or a negative
 * errno:
 *   -EAGAIN    no packet
 *   -EINTR     interrupted while it waited (not with MSG_DONTWAIT)
 *   -EMSGSIZE  longer than @size
 *   -E2BIG     more than FA_PACKET_FDS_MAX descriptors
 *   -EMFILE    this process cannot have that many descriptors
 * The last three consume the packet. Descriptors are closed unless the length is positive.
 */
ssize_t fa_packet_receive(int socket, void *buffer, size_t size, int *ret_fds, size_t *ret_n_fds,
                          int flags);

/*
 * The same, but descriptors are always the caller's, at most FA_PACKET_FDS_KERNEL_MAX, even of a
 * refused or empty packet: close() may block on a file that another process serves. @ret_lost
 * replaces -EMFILE: some were not received.
 */
ssize_t fa_packet_receive_all(int socket, void *buffer, size_t size, int *ret_fds,
                              size_t *ret_n_fds, bool *ret_lost, int flags);

/*
 * Copies the next packet, which stays in the socket. Does not block. *ret_has_fds: it has
 * descriptors. Otherwise as fa_packet_receive().
 */
ssize_t fa_packet_peek(int socket, void *buffer, size_t size, bool *ret_has_fds);

/* Discards the next packet, which has no descriptors. Does not block. Returns 0, or a negative
 * errno with nothing discarded. */
int fa_packet_drop(int socket);

void fa_packet_close_fds(int *fds, size_t n_fds);
