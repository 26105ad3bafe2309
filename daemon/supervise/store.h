/*
 * Descriptors stored by the daemon. Timelines are apart: clients may have tens of thousands, which
 * are not handed over but released when the daemon dies.
 */
#pragma once

#include <stddef.h>

#define FA_SUPERVISOR_FDS_MAX 4096
#define FA_SUPERVISOR_NAME_BYTES 64

struct fa_supervisor_store {
	struct fa_supervisor_fd {
		char name[FA_SUPERVISOR_NAME_BYTES];
		int fd;
	} fds[FA_SUPERVISOR_FDS_MAX];
	size_t n_fds;
	struct fa_supervisor_fd *timelines; /* [size_timelines] */
	size_t n_timelines, size_timelines, max_timelines;
};

/* @store is zeroed. RLIMIT_NOFILE limits timelines. */
void fa_supervisor_store_init(struct fa_supervisor_store *store);
/* Releases the timelines' waiters, too. */
void fa_supervisor_store_deinit(struct fa_supervisor_store *store);

/* Takes those of @fds for which there is room. */
void fa_supervisor_store_add(struct fa_supervisor_store *store, const char *name, int *fds,
                             size_t n_fds);
void fa_supervisor_store_remove(struct fa_supervisor_store *store, const char *name);

/* Drops all but the listening socket. Returns their number. */
size_t fa_supervisor_store_drop_state(struct fa_supervisor_store *store);

/* Releases waiters for timelines of a dead daemon. */
void fa_supervisor_store_release_timelines(struct fa_supervisor_store *store);
