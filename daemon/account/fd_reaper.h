/*
 * Closes clients' descriptors on its own threads, as close() can block for ever (FUSE files,
 * lingering connections). A user has two queues, one for its refused connections, and delays only
 * itself. Charges are released after close(), and descriptors without a charge are counted, so
 * pending ones are bounded. Loop thread only.
 */
#pragma once

#include "common/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct fa_charge;
struct fa_fd_reaper;
struct fa_tenant;

/* Rejected descriptors in a queue. Above the soft limit a session that sends more is paused; above
 * the hard limit, all sessions of the tenant that send some. A packet may exceed either by
 * FA_PACKET_FDS_KERNEL_MAX. */
#define FA_FD_REAPER_REJECTED_SOFT_MAX 64
#define FA_FD_REAPER_REJECTED_HARD_MAX 128

/* While so many descriptors without a charge wait, no connections are accepted. */
#define FA_FD_REAPER_UNCHARGED_MAX 128

/* One for each user or, for uid 0, each tenant. Starts zeroed. */
struct fa_fd_reaper_queue {
	/* Guarded by the reaper's mutex. */
	struct fa_list link;    /* in reaper.ready */
	struct fa_list entries; /* oldest first */
	bool initialized;       /* the lists are */
	bool busy;              /* in reaper.ready, or taken by a thread */
	/* The loop thread's. */
	uint64_t n_rejected; /* descriptors */
};

/* Any thread may call @notify, after which fa_fd_reaper_collect() has work. */
int fa_fd_reaper_new(void (*notify)(void *userdata), void *userdata,
                     struct fa_fd_reaper **ret_reaper);

/* From now on a filter receives packets with descriptors (account/fd_filter.h). */
int fa_fd_reaper_start_filter(struct fa_fd_reaper *reaper);

bool fa_fd_reaper_has_filter(const struct fa_fd_reaper *reaper);

/* Waits at most a second for blocked close() calls. */
struct fa_fd_reaper *fa_fd_reaper_free(struct fa_fd_reaper *reaper);

/* Consumes descriptors of a rejected message; some may be -1. */
void fa_fd_reaper_add_rejected(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int *fds,
                               size_t n_fds);

/*
 * As fa_packet_receive_all() with MSG_DONTWAIT, from a tenant's connection. With a filter,
 * descriptors that might block are rejected, and those at @ret_placeholders stand for them; -EIO:
 * the filter failed.
 */
ssize_t fa_fd_reaper_receive(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int socket,
                             void *buffer, size_t size, int *ret_fds, size_t *ret_n_fds,
                             bool *ret_lost, unsigned int *ret_placeholders);

/* Consumes a descriptor, and releases its charge once it is closed. */
void fa_fd_reaper_add_charged(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int fd,
                              struct fa_charge *charge);

bool fa_fd_reaper_is_full(const struct fa_fd_reaper *reaper);

/*
 * Shuts down and consumes a connection. Discards unread input, or close() would reset it before the
 * client has read all. @tenant and @charge may be NULL.
 */
void fa_fd_reaper_add_connection(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int fd,
                                 struct fa_charge *charge);

/* Releases charges of closed descriptors. Returns true if a queue fell below the soft limit. */
bool fa_fd_reaper_collect(struct fa_fd_reaper *reaper);
