/*
 * Packets with file descriptors over a SOCK_SEQPACKET socket: one packet is
 * one message. Descriptors are close-on-exec from the start and never leak: a
 * packet that is refused closes what came with it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define FA_PACKET_FDS_MAX 8
/* What the kernel lets a packet carry. */
#define FA_PACKET_KEEP_MAX 253

/*
 * Sends @bytes with @n_fds descriptors (borrowed, 0…8). Returns 0 or a negative
 * errno (-EAGAIN: the socket is full, nothing was sent; -EPIPE: the peer is
 * gone; never SIGPIPE; -ETOOMANYREFS: more descriptors of this user lie in sockets
 * than a process may have, nothing was sent). @flags are send(2)'s, MSG_NOSIGNAL is added.
 */
int fa_packet_send(int socket, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds,
                   int flags);

/*
 * Receives one packet into @buffer. Descriptors go to @ret_fds (up to
 * FA_PACKET_FDS_MAX of them, then owned by the caller), their number to
 * @ret_n_fds. Returns the packet's length, 0 at the end of the stream (or for
 * an empty packet, whose descriptors are closed), or a negative errno: -EAGAIN;
 * -EINTR, a signal came while it waited (not with MSG_DONTWAIT); -EMSGSIZE, the
 * packet was longer than @size (it is consumed); -E2BIG, it carried more
 * descriptors than FA_PACKET_FDS_MAX (consumed, all closed); -EMFILE, this process
 * could not have all of them (the same). That the other end reset the connection comes behind
 * what it had sent, as the end of the stream.
 * @flags are recv(2)'s; MSG_CMSG_CLOEXEC is added.
 */
ssize_t fa_packet_receive(int socket, void *buffer, size_t size, int *ret_fds, size_t *ret_n_fds,
                          int flags);

/*
 * The same, but the descriptors of a packet that is refused or empty are the
 * caller's too: @ret_fds has room for FA_PACKET_KEEP_MAX. A packet that brought more than
 * this process could have is none that is refused: @ret_lost says so. For those who cannot
 * wait in close(), as it waits for whoever serves the file.
 */
ssize_t fa_packet_receive_keep(int socket, void *buffer, size_t size, int *ret_fds,
                               size_t *ret_n_fds, bool *ret_lost, int flags);

/* Closes @n_fds descriptors and sets them to -1. */
void fa_packet_close_fds(int *fds, size_t n_fds);
