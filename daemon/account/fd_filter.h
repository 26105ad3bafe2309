/*
 * The filter, a process of its own, receives packets with clients' descriptors and passes on what
 * can be a buffer: memfds and handles of a GPU driver. Closing a file that another process serves
 * (FUSE) may take for ever, so the daemon gets none (docs/decisions.md).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* argv[0] of the filter, the daemon's own program. */
#define FA_FD_FILTER_NAME "fad-filter"

int fa_fd_filter_main(void);

struct fa_fd_filter;

/* Names files that the filter keeps until fa_fd_filter_close_batch(). */
struct fa_fd_filter_batch {
	uint64_t id;
	size_t n; /* files; 0: no batch */
	int end;  /* readable once they are closed; the caller's */
	/* Bit set of descriptors that stand for files. */
	unsigned int placeholders;
};

/* Loop thread. */
int fa_fd_filter_new(struct fa_fd_filter **ret_filter);

/* Ends pending fa_fd_filter_close_batch(). Any thread. */
void fa_fd_filter_stop(struct fa_fd_filter *filter);

/* No thread may be in fa_fd_filter_close_batch(). */
struct fa_fd_filter *fa_fd_filter_free(struct fa_fd_filter *filter);

/*
 * As fa_packet_receive_all() with MSG_DONTWAIT, but with at most FA_PACKET_FDS_MAX descriptors,
 * none of which can block. -EIO: the filter failed, and was replaced. Loop thread.
 */
ssize_t fa_fd_filter_receive(struct fa_fd_filter *filter, int socket, void *buffer, size_t size,
                             int *ret_fds, size_t *ret_n_fds, bool *ret_lost,
                             struct fa_fd_filter_batch *ret_batch);

/* Waits until the filter has closed the batch. Any thread; once. */
void fa_fd_filter_close_batch(struct fa_fd_filter *filter, struct fa_fd_filter_batch *batch);
