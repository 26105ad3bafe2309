#include "daemon/supervise/store.h"

#include "common/cleanup.h"
#include "daemon/base/log.h"
#include "daemon/persist/fd_store.h"
#include "daemon/persist/timeline_release.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define TIMELINES_MAX 65536
/* Reserved for everything but timelines. */
#define OTHERS_RESERVED 64
#define TIMELINES_MIN_SIZE 64

/* Timelines may take half of RLIMIT_NOFILE. */
static size_t timelines_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 ||
	    limit.rlim_cur > 2 * TIMELINES_MAX + OTHERS_RESERVED)
		return TIMELINES_MAX;
	return limit.rlim_cur > OTHERS_RESERVED ? (size_t)(limit.rlim_cur - OTHERS_RESERVED) / 2
	                                        : 1;
}

void fa_supervisor_store_init(struct fa_supervisor_store *store)
{
	store->max_timelines = timelines_limit();
}

void fa_supervisor_store_deinit(struct fa_supervisor_store *store)
{
	while (store->n_fds)
		close(store->fds[--store->n_fds].fd);
	fa_supervisor_store_release_timelines(store);
	free(fa_steal_ptr(store->timelines));
	store->size_timelines = 0;
}

static bool is_timeline(const char *name)
{
	return !strncmp(name, FA_FD_STORE_TIMELINE_PREFIX, strlen(FA_FD_STORE_TIMELINE_PREFIX));
}

static bool grow_timelines(struct fa_supervisor_store *store)
{
	size_t size = store->size_timelines ? 2 * store->size_timelines : TIMELINES_MIN_SIZE;
	struct fa_supervisor_fd *timelines;

	if (store->n_timelines >= store->max_timelines)
		return false;
	if (store->n_timelines < store->size_timelines)
		return true;
	timelines = reallocarray(store->timelines, size, sizeof(*timelines));
	if (!timelines)
		return false;
	store->timelines = timelines;
	store->size_timelines = size;
	return true;
}

static struct fa_supervisor_fd *new_entry(struct fa_supervisor_store *store, const char *name)
{
	if (is_timeline(name))
		return grow_timelines(store) ? &store->timelines[store->n_timelines++] : NULL;
	return store->n_fds < FA_SUPERVISOR_FDS_MAX ? &store->fds[store->n_fds++] : NULL;
}

void fa_supervisor_store_add(struct fa_supervisor_store *store, const char *name, int *fds,
                             size_t n_fds)
{
	for (size_t i = 0; i < n_fds; ++i) {
		struct fa_supervisor_fd *entry = new_entry(store, name);

		if (!entry) {
			fa_log(FA_LOG_ERROR,
			       "%s cannot be stored: there are %zu descriptors already", name,
			       store->n_fds + store->n_timelines);
			return;
		}
		entry->fd = fa_steal_fd(&fds[i]);
		snprintf(entry->name, sizeof(entry->name), "%s", name);
	}
}

static void remove_from(struct fa_supervisor_fd *entries, size_t *n_entries, const char *name)
{
	for (size_t i = 0; i < *n_entries;) {
		if (strcmp(entries[i].name, name) != 0) {
			++i;
			continue;
		}
		close(entries[i].fd);
		entries[i] = entries[--*n_entries];
	}
}

void fa_supervisor_store_remove(struct fa_supervisor_store *store, const char *name)
{
	if (is_timeline(name))
		remove_from(store->timelines, &store->n_timelines, name);
	else
		remove_from(store->fds, &store->n_fds, name);
}

size_t fa_supervisor_store_drop_state(struct fa_supervisor_store *store)
{
	size_t n = 0, dropped;

	for (size_t i = 0; i < store->n_fds; ++i)
		if (strcmp(store->fds[i].name, FA_FD_STORE_LISTEN) != 0 &&
		    !strncmp(store->fds[i].name, FA_FD_STORE_PREFIX, strlen(FA_FD_STORE_PREFIX)))
			close(store->fds[i].fd);
		else
			store->fds[n++] = store->fds[i];
	dropped = store->n_fds - n;
	store->n_fds = n;
	return dropped;
}

void fa_supervisor_store_release_timelines(struct fa_supervisor_store *store)
{
	if (store->n_timelines)
		fa_log(FA_LOG_INFO, "the waiters of %zu timelines are released",
		       store->n_timelines);
	while (store->n_timelines) {
		struct fa_supervisor_fd *timeline = &store->timelines[--store->n_timelines];

		(void)fa_timeline_fd_release(timeline->fd);
		close(timeline->fd);
	}
}
