#include "daemon/persist/fd_store.h"

#include "common/cleanup.h"
#include "daemon/base/service_manager.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void find_max(struct fa_fd_store *store)
{
	const char *text = getenv(FA_FD_STORE_MAX_VARIABLE);
	size_t max = text ? strtoul(text, NULL, 10) : 0, rest;

	if (!max || max == ULONG_MAX)
		return;
	store->timelines_max = (max + 1) / 2;
	rest = max - store->timelines_max;
	/* One descriptor is for the listening socket. */
	store->pool_max = rest > 1 ? rest - 1 : 1;
}

int fa_fd_store_open(struct fa_fd_store *store)
{
	char **names = NULL;
	int n;

	*store = (struct fa_fd_store){ 0 };
	find_max(store);
	n = fa_manager_listen_fds(&names);
	if (n < 0)
		return n;
	if (n == 0)
		return 0;
	store->stored = calloc((size_t)n, sizeof(*store->stored));
	if (!store->stored) {
		for (int i = 0; i < n; ++i) {
			close(FA_MANAGER_FDS_START + i);
			free(names[i]);
		}
		free(names);
		return -ENOMEM;
	}
	for (int i = 0; i < n; ++i)
		store->stored[store->n_stored++] =
			(struct fa_stored_fd){ .name = names[i], .fd = FA_MANAGER_FDS_START + i };
	free(names);
	return 0;
}

void fa_fd_store_close(struct fa_fd_store *store)
{
	for (size_t i = 0; i < store->n_stored; ++i) {
		fa_close_fdp(&store->stored[i].fd);
		free(store->stored[i].name);
	}
	free(store->stored);
	*store = (struct fa_fd_store){ 0 };
}

int fa_fd_store_take(struct fa_fd_store *store, const char *name)
{
	for (size_t i = 0; i < store->n_stored; ++i) {
		struct fa_stored_fd *stored = &store->stored[i];

		if (stored->fd >= 0 && (name ? !strcmp(stored->name, name)
		                             : strncmp(stored->name, FA_FD_STORE_PREFIX,
		                                       strlen(FA_FD_STORE_PREFIX)) != 0))
			return fa_steal_fd(&stored->fd);
	}
	return -1;
}

int fa_fd_store_add(const char *name, int fd)
{
	char text[128];

	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);
	return fa_manager_notify_fd(text, fd);
}

int fa_fd_store_remove(const char *name)
{
	return fa_manager_notifyf("FDSTOREREMOVE=1\nFDNAME=%s", name);
}

/* ---- the interface */

static int take(void *userdata, const char *name)
{
	return fa_fd_store_take(userdata, name);
}

static int take_any(void *userdata, const char *prefix, char *ret_name, size_t size)
{
	struct fa_fd_store *store = userdata;

	for (size_t i = 0; i < store->n_stored; ++i) {
		struct fa_stored_fd *stored = &store->stored[i];

		if (stored->fd < 0 || strncmp(stored->name, prefix, strlen(prefix)) != 0)
			continue;
		(void)snprintf(ret_name, size, "%s", stored->name);
		return fa_steal_fd(&stored->fd);
	}
	return -1;
}

static int add(void *userdata, const char *name, int fd)
{
	return fa_fd_store_add(name, fd);
}

static int remove_all(void *userdata, const char *name)
{
	return fa_fd_store_remove(name);
}

void fa_fd_store_get_ops(struct fa_fd_store *store, struct fa_fd_store_ops *ret_ops)
{
	*ret_ops = (struct fa_fd_store_ops){
		.take = take,
		.take_any = take_any,
		.add = add,
		.remove = remove_all,
		.userdata = store,
		.timelines_max = store->timelines_max,
		.pool_max = store->pool_max,
	};
}
