/*
 * Descriptors that outlive this process. They are kept by systemd's fd store, or by the supervisor
 * (supervise/), which speaks the same protocol; the next process gets them at its start under the
 * names that they were stored with. Loop thread only.
 *
 * Names of what fad stores begin with "fad-". All others are sockets of socket activation.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FA_FD_STORE_PREFIX "fad-"
#define FA_FD_STORE_LISTEN "fad-listen" /* the listening socket */
#define FA_FD_STORE_TIMELINE_PREFIX "fad-timeline-"

/* Environment variable with the number of descriptors that can be stored; set by the supervisor and
 * by systemd 254 and later. Half of them are for timelines, which clients create, so that timelines
 * cannot crowd out the pool. */
#define FA_FD_STORE_MAX_VARIABLE "FDSTORE"

struct fa_fd_store {
	struct fa_stored_fd {
		char *name;
		int fd; /* -1: taken */
	} * stored;
	size_t n_stored;
	/* How many descriptors of timelines and of the pool can be stored. 0: unknown, or there is
	 * no store. */
	size_t timelines_max, pool_max;
};

/* The store as the parts of the daemon see it; functions as below. All NULL: nothing is stored. */
struct fa_fd_store_ops {
	int (*take)(void *userdata, const char *name);
	int (*add)(void *userdata, const char *name, int fd);
	int (*remove)(void *userdata, const char *name);
	int (*take_any)(void *userdata, const char *prefix, char *ret_name, size_t size);
	void *userdata;
	uint64_t timelines_max, pool_max; /* as in struct fa_fd_store */
};

/*
 * Takes all descriptors that were handed over, and removes them from the environment. After an
 * error (-ENOMEM, or what sd_listen_fds() returns) the store still has them, but this process does
 * not know their names: it must not add or remove anything.
 */
int fa_fd_store_open(struct fa_fd_store *store);

/* Closes the descriptors that were not taken. The store keeps its copies. */
void fa_fd_store_close(struct fa_fd_store *store);

/* Returns the next descriptor with this name, which the caller then owns, or -1. NULL: the next one
 * that was not stored by fad. */
int fa_fd_store_take(struct fa_fd_store *store, const char *name);

/* Like fa_fd_store_take(), but by the beginning of the name. @ret_name receives the name, cut to
 * @size bytes. */
int fa_fd_store_take_any(struct fa_fd_store *store, const char *prefix, char *ret_name,
                         size_t size);

/* Stores a copy of @fd. Returns 0, also if there is no store, or a negative errno if it could not
 * be sent. */
int fa_fd_store_add(const char *name, int fd);

/* Removes all descriptors with this name from the store. Returns the same as fa_fd_store_add(). */
int fa_fd_store_remove(const char *name);

/* @store behind an interface; it must stay open as long as @ret_ops is used. */
void fa_fd_store_get_ops(struct fa_fd_store *store, struct fa_fd_store_ops *ret_ops);
