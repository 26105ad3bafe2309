#include "daemon/persist/fd_store.h"

#include "common/cleanup.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>

static void find_max(struct fa_fd_store *keeper)
{
	const char *text = getenv(FA_KEEPER_MAX_VARIABLE);
	size_t max = text ? strtoul(text, NULL, 10) : 0, rest;

	if (!max || max == ULONG_MAX)
		return;
	keeper->timelines_max = (max + 1) / 2;
	rest = max - keeper->timelines_max;
	/* One is the socket. */
	keeper->pool_max = rest > 1 ? rest - 1 : 1;
}

int fa_fd_store_open(struct fa_fd_store *keeper)
{
	char **names = NULL;
	int n;

	*keeper = (struct fa_fd_store){ 0 };
	find_max(keeper);
	n = sd_listen_fds_with_names(1, &names);
	if (n < 0)
		return n;
	if (n == 0)
		return 0;
	keeper->kept = calloc((size_t)n, sizeof(*keeper->kept));
	if (!keeper->kept) {
		for (int i = 0; i < n; ++i) {
			close(SD_LISTEN_FDS_START + i);
			free(names[i]);
		}
		free(names);
		return -ENOMEM;
	}
	for (int i = 0; i < n; ++i)
		keeper->kept[keeper->n_kept++] = (struct fa_kept){ .name = names[i],
			                                           .fd = SD_LISTEN_FDS_START + i };
	free(names);
	return 0;
}

void fa_fd_store_close(struct fa_fd_store *keeper)
{
	for (size_t i = 0; i < keeper->n_kept; ++i) {
		fa_close_fdp(&keeper->kept[i].fd);
		free(keeper->kept[i].name);
	}
	free(keeper->kept);
	*keeper = (struct fa_fd_store){ 0 };
}

int fa_fd_store_take(struct fa_fd_store *keeper, const char *name)
{
	for (size_t i = 0; i < keeper->n_kept; ++i) {
		struct fa_kept *kept = &keeper->kept[i];

		if (kept->fd >= 0 &&
		    (name ? !strcmp(kept->name, name)
		          : strncmp(kept->name, FA_KEEPER_PREFIX, strlen(FA_KEEPER_PREFIX)) != 0))
			return fa_steal_fd(&kept->fd);
	}
	return -1;
}

int fa_fd_store_take_any(struct fa_fd_store *keeper, const char *prefix, char *ret_name,
                         size_t size)
{
	for (size_t i = 0; i < keeper->n_kept; ++i) {
		struct fa_kept *kept = &keeper->kept[i];

		if (kept->fd < 0 || strncmp(kept->name, prefix, strlen(prefix)) != 0)
			continue;
		(void)snprintf(ret_name, size, "%s", kept->name);
		return fa_steal_fd(&kept->fd);
	}
	return -1;
}

int fa_fd_store_store(const char *name, int fd)
{
	char text[128];
	int r;

	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);
	r = sd_pid_notify_with_fds(0, 0, text, &fd, 1);
	return r < 0 ? r : 0;
}

int fa_fd_store_forget(const char *name)
{
	int r = sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name);

	return r < 0 ? r : 0;
}
