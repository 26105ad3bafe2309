/*
 * Serves the metrics by HTTP. At loopback addresses any local user may read the totals; at a path
 * root, the daemon's user and the exporter's own read all. One thread; libmicrohttpd runs inside
 * fa_exporter_run().
 */
#pragma once

#include "tools/exporter/fold.h"
#include "tools/exporter/source.h"

#include <stdbool.h>
#include <stddef.h>

struct MHD_Daemon;

#define FA_EXPORTER_SOCKETS_MAX 8

struct fa_exporter_socket {
	struct fa_exporter *exporter;
	struct MHD_Daemon *http;
	char *path; /* to remove at the end; NULL: none */
	bool is_unix;
};

struct fa_exporter {
	struct fa_source source;
	struct fa_fold fold;
	struct fa_exporter_socket sockets[FA_EXPORTER_SOCKETS_MAX];
	size_t n_sockets;
};

/*
 * @address: "PORT", "HOST:PORT" with a loopback address, or an absolute path. Says on stdout where
 * it listens. Returns 0, or a negative errno after a message on stderr; -EINVAL: no such address.
 */
int fa_exporter_listen(struct fa_exporter *exporter, const char *address);

/* Until SIGTERM or SIGINT. Returns 0 or a negative errno, after a message. */
int fa_exporter_run(struct fa_exporter *exporter);

/* Takes a zeroed struct. */
void fa_exporter_deinit(struct fa_exporter *exporter);
