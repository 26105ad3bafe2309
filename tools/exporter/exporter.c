#include "tools/exporter/exporter.h"

#include "common/cleanup.h"
#include "tools/exporter/accept.h"
#include "tools/exporter/address.h"
#include "tools/metrics.h"

#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS_MAX 32
#define CONNECTION_TIMEOUT_S 10
#define REQUEST_BYTES_MAX 16384

#define OPEN_METRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"
#define PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

static const char index_page[] = "The metrics of fad are at /metrics.\n";

/* ---- what to answer */

/* @connection's peer, by a Unix socket, may see the tenants. */
static bool sees_tenants(const struct fa_exporter_socket *socket, struct MHD_Connection *connection)
{
	const json_t *daemon_uid = json_object_get(socket->exporter->source.status, "uid");
	const union MHD_ConnectionInfo *info;
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	if (!socket->is_unix)
		return false;
	info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	if (!info || getsockopt(info->connect_fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
		return false;
	return peer.uid == 0 || peer.uid == geteuid() ||
	       (json_is_integer(daemon_uid) &&
	        (json_int_t)peer.uid == json_integer_value(daemon_uid));
}

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned int code,
                              const char *type, struct MHD_Response *response)
{
	enum MHD_Result result;

	if (!response)
		return MHD_NO; /* closes the connection */
	(void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		(void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	result = MHD_queue_response(connection, code, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned int code,
                                   const char *text)
{
	return answer(connection, code, "text/plain; charset=utf-8",
	              MHD_create_response_from_buffer(strlen(text), (void *)text,
	                                              MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result answer_metrics(const struct fa_exporter_socket *socket,
                                      struct MHD_Connection *connection)
{
	struct fa_exporter *exporter = socket->exporter;
	const char *accept = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
	                                                 MHD_HTTP_HEADER_ACCEPT);
	const bool open_metrics = fa_accept_open_metrics(accept);
	struct fa_metrics_format format = { .prometheus = !open_metrics, .tells_up = true };
	_fa_cleanup_(fa_freep) char *text = NULL;
	size_t bytes = 0;
	FILE *file;
	int r = -ENOMEM;

	if (fa_source_refresh(&exporter->source) && exporter->source.status &&
	    fa_fold_apply(&exporter->fold, exporter->source.status) < 0)
		return MHD_NO;
	format.totals_only = !sees_tenants(socket, connection);
	file = open_memstream(&text, &bytes);
	if (file)
		r = fa_metrics_print_status(exporter->source.status, &format, file);
	if (file && fclose(file) != 0)
		r = -ENOMEM;
	if (r < 0)
		return answer_text(connection, MHD_HTTP_INTERNAL_SERVER_ERROR,
		                   "The daemon's status cannot be read.\n");
	return answer(
		connection, MHD_HTTP_OK, open_metrics ? OPEN_METRICS_TYPE : PROMETHEUS_TYPE,
		MHD_create_response_from_buffer(bytes, fa_steal_ptr(text), MHD_RESPMEM_MUST_FREE));
}

static enum MHD_Result on_request(void *userdata, struct MHD_Connection *connection,
                                  const char *url, const char *method, const char *version,
                                  const char *data, size_t *data_bytes, void **request)
{
	static int seen;

	/* The first call comes before the body. */
	if (*request != &seen) {
		*request = &seen;
		return MHD_YES;
	}
	if (*data_bytes) {
		*data_bytes = 0; /* no body is wanted */
		return MHD_YES;
	}
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "Only GET and HEAD.\n");
	if (strcmp(url, "/metrics") == 0)
		return answer_metrics(userdata, connection);
	if (strcmp(url, "/") == 0)
		return answer_text(connection, MHD_HTTP_OK, index_page);
	return answer_text(connection, MHD_HTTP_NOT_FOUND, "There is only /metrics.\n");
}

/* ---- sockets */

int fa_exporter_listen(struct fa_exporter *exporter, const char *address)
{
	struct fa_exporter_socket *socket = &exporter->sockets[exporter->n_sockets];
	char url[256];
	int fd;

	if (exporter->n_sockets == FA_EXPORTER_SOCKETS_MAX) {
		fprintf(stderr, "fad-metrics: %s: at most %d addresses\n", address,
		        FA_EXPORTER_SOCKETS_MAX);
		return -EINVAL;
	}
	fd = fa_address_listen(address, &socket->is_unix, url, sizeof(url));
	if (fd < 0)
		return fd;
	socket->exporter = exporter;
	socket->path = socket->is_unix ? strdup(address) : NULL;
	/* libmicrohttpd closes the socket. */
	socket->http = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, socket,
	                                MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
	                                CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
	                                CONNECTION_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
	                                (size_t)REQUEST_BYTES_MAX, MHD_OPTION_END);
	if (!socket->http) {
		fprintf(stderr, "fad-metrics: %s cannot be served\n", address);
		close(fd);
		free(fa_steal_ptr(socket->path));
		return -EIO;
	}
	exporter->n_sockets++;
	printf("listening at %s%s\n", url, socket->is_unix ? "" : "metrics");
	return 0;
}

/* ---- running */

static int open_signals(void)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) < 0)
		return -errno;
	return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

static int timeout_ms(const struct fa_exporter *exporter)
{
	int shortest = -1;

	for (size_t i = 0; i < exporter->n_sockets; ++i) {
		MHD_UNSIGNED_LONG_LONG ms;

		if (MHD_get_timeout(exporter->sockets[i].http, &ms) == MHD_YES &&
		    (shortest < 0 || ms < (MHD_UNSIGNED_LONG_LONG)shortest))
			shortest = ms > 60000 ? 60000 : (int)ms;
	}
	return shortest;
}

int fa_exporter_run(struct fa_exporter *exporter)
{
	struct pollfd polled[FA_EXPORTER_SOCKETS_MAX + 1];
	_fa_cleanup_(fa_close_fdp) int signals = -1;

	signals = open_signals();
	if (signals < 0) {
		fprintf(stderr, "fad-metrics: signals cannot be read: %s\n", strerror(errno));
		return -errno;
	}
	(void)fflush(stdout);
	for (size_t i = 0; i < exporter->n_sockets; ++i)
		polled[i] = (struct pollfd){
			.fd = MHD_get_daemon_info(exporter->sockets[i].http,
			                          MHD_DAEMON_INFO_EPOLL_FD)
			              ->epoll_fd,
			.events = POLLIN,
		};
	polled[exporter->n_sockets] = (struct pollfd){ .fd = signals, .events = POLLIN };
	while (!polled[exporter->n_sockets].revents) {
		if (poll(polled, exporter->n_sockets + 1, timeout_ms(exporter)) < 0 &&
		    errno != EINTR) {
			fprintf(stderr, "fad-metrics: poll: %s\n", strerror(errno));
			return -errno;
		}
		for (size_t i = 0; i < exporter->n_sockets; ++i)
			(void)MHD_run(exporter->sockets[i].http);
	}
	return 0;
}

void fa_exporter_deinit(struct fa_exporter *exporter)
{
	for (size_t i = 0; i < exporter->n_sockets; ++i) {
		struct fa_exporter_socket *socket = &exporter->sockets[i];

		MHD_stop_daemon(socket->http);
		if (socket->path)
			(void)unlink(socket->path);
		free(socket->path);
	}
	exporter->n_sockets = 0;
	fa_fold_deinit(&exporter->fold);
	fa_source_deinit(&exporter->source);
}
