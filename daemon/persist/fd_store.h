/*
 * Descriptors that outlive this process: systemd, or the supervisor (supervise/) by the same
 * protocol, passes them by name to the next one. fad's names begin with "fad-"; others are for
 * socket activation. Loop thread only.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FA_FD_STORE_PREFIX "fad-"
#define FA_FD_STORE_LISTEN "fad-listen" /* the listening socket */
#define FA_FD_STORE_TIMELINE_PREFIX "fad-timeline-"

/* Variable with the store's size, set by the supervisor and systemd 254. Half is for timelines:
 * clients cannot crowd out the pool. */
#define FA_FD_STORE_MAX_VARIABLE "FDSTORE"

struct fa_fd_store {
	struct fa_stored_fd {
		char *name;
		int fd; /* -1: taken */
	} * stored;
	size_t n_stored;
	/* 0: unknown, or no store. */
	size_t timelines_max, pool_max;
};

/* All are NULL without a store. */
struct fa_fd_store_ops {
	int (*take)(void *userdata, const char *name);
	int (*add)(void *userdata, const char *name, int fd);
	int (*remove)(void *userdata, const char *name);
	int (*take_any)(void *userdata, const char *prefix, char *ret_name, size_t size);
	void *userdata;
	uint64_t timelines_max, pool_max;
};

/*
 * Takes all descriptors from the environment. After an error (-ENOMEM, or of
 * fa_manager_listen_fds()) they stay stored, and this process must not add or remove any.
 */
int fa_fd_store_open(struct fa_fd_store *store);

/* Descriptors that were not taken stay stored. */
void fa_fd_store_close(struct fa_fd_store *store);

/* Takes the next descriptor of this name; -1: none. @name NULL: those that fad did not store. */
int fa_fd_store_take(struct fa_fd_store *store, const char *name);

/* Copies @fd. Returns 0 also without a store. */
int fa_fd_store_add(const char *name, int fd);

/* Returns 0 also without a store. */
int fa_fd_store_remove(const char *name);

void fa_fd_store_get_ops(struct fa_fd_store *store, struct fa_fd_store_ops *ret_ops);
