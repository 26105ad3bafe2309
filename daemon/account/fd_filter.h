/*
 * A process of its own, the filter, receives packets that carry clients' descriptors. It passes on
 * what can be a buffer: memfds and handles of a GPU driver. Other files never reach the daemon.
 *
 * The kernel flushes a descriptor when it is closed or its process dies. If another process serves
 * the file (FUSE), that may take for ever: a daemon with such a descriptor could be killed but not
 * reaped, and no successor could start. A filter that cannot be reaped delays nobody.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* argv[0] of the filter, the daemon's own program. */
#define FA_FD_FILTER_NAME "fad-filter"

/* The filter's main(), if argv[0] is its name. */
int fa_fd_filter_main(void);

struct fa_fd_filter;

/* Files of a packet that the filter keeps until fa_fd_filter_close_batch(). */
struct fa_fd_filter_batch {
	uint64_t id;
	size_t n; /* number of files; 0: there is no batch */
	int end;  /* readable once they are closed; owned by the caller */
	/* Bit set of the packet's descriptors that are placeholders for these files. */
	unsigned int placeholders;
};

/* Starts the filter. Loop thread. */
int fa_fd_filter_new(struct fa_fd_filter **ret_filter);

/* Ends pending fa_fd_filter_close_batch(). Any thread. */
void fa_fd_filter_stop(struct fa_fd_filter *filter);

/* No thread may be in fa_fd_filter_close_batch(). */
struct fa_fd_filter *fa_fd_filter_free(struct fa_fd_filter *filter);

/*
 * As fa_packet_receive_all() with MSG_DONTWAIT, except that there are at most FA_PACKET_FDS_MAX
 * descriptors, none of which can block, and -EIO: the filter failed, and a new one was started. Loop
 * thread.
 */
ssize_t fa_fd_filter_receive(struct fa_fd_filter *filter, int socket, void *buffer, size_t size,
                             int *ret_fds, size_t *ret_n_fds, bool *ret_lost,
                             struct fa_fd_filter_batch *ret_batch);

/* Waits until the filter has closed the batch. Any thread; one batch is closed once. */
void fa_fd_filter_close_batch(struct fa_fd_filter *filter, struct fa_fd_filter_batch *batch);
