/*
 * Descriptors that outlive this process: systemd's fd store, or the parent that
 * `fad --supervise` is, which speaks the same protocol. What was stored is handed to
 * the next process at its start, under the same name. Loop thread.
 *
 * Names of what we store begin with "fad-"; others are sockets of socket activation.
 */
#pragma once

#include <stddef.h>

#define FA_KEEPER_PREFIX "fad-"
#define FA_KEEPER_LISTEN "fad-listen" /* the listening socket */
/* How many descriptors are kept, which systemd says from version 254 on. Half of them are
 * for the pool and what there is once: clients make timelines, and could fill all of it. */
#define FA_KEEPER_MAX_VARIABLE "FDSTORE"

struct fa_fd_store {
	struct fa_kept {
		char *name;
		int fd; /* -1: taken */
	} * kept;
	size_t n_kept;
	/* That can be stored of timelines, and of the pool; 0: nobody keeps any, or says how many. */
	size_t timelines_max, pool_max;
};

/* Takes what was handed over out of the environment, for good. With an error all of it is still
 * kept, and nothing of it known: this process must not store or forget anything. -ENOMEM. */
int fa_fd_store_open(struct fa_fd_store *keeper);

/* Closes what nobody took. */
void fa_fd_store_close(struct fa_fd_store *keeper);

/* The next descriptor of that name, which is the caller's then, or -1. NULL: a socket
 * that we did not store ourselves. */
int fa_fd_store_take(struct fa_fd_store *keeper, const char *name);

/* The same, of any name that begins with @prefix, which is written to @ret_name, cut to
 * @size bytes. */
int fa_fd_store_take_any(struct fa_fd_store *keeper, const char *prefix, char *ret_name,
                         size_t size);

/* Has @fd kept (a copy of it). 0 too if there is nobody to keep it; a negative errno
 * if it could not be handed over. */
int fa_fd_store_store(const char *name, int fd);

/* Has all of that name let go. Returns the same. */
int fa_fd_store_forget(const char *name);
