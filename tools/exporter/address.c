#include "tools/exporter/address.h"

#include "common/cleanup.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define BACKLOG 32

static int refuse(const char *address, const char *reason)
{
	fprintf(stderr, "fad-metrics: %s: %s\n", address, reason);
	return -EINVAL;
}

static int fail(const char *address)
{
	const int r = -errno;

	fprintf(stderr, "fad-metrics: %s: %s\n", address, strerror(-r));
	return r;
}

/* If nobody listens there. Anything else stays, and bind() fails. */
static void remove_stale(const struct sockaddr_un *at)
{
	_fa_cleanup_(fa_close_fdp) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct stat status;

	if (fd < 0 || lstat(at->sun_path, &status) < 0 || !S_ISSOCK(status.st_mode))
		return;
	if (connect(fd, (const struct sockaddr *)at, sizeof(*at)) < 0 && errno == ECONNREFUSED)
		(void)unlink(at->sun_path);
}

static int listen_at_path(const char *path, char *ret_url, size_t url_bytes)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	struct sockaddr_un at = { .sun_family = AF_UNIX };

	if (strlen(path) >= sizeof(at.sun_path))
		return refuse(path, "the path is too long for a socket");
	strcpy(at.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fail(path);
	remove_stale(&at);
	/* Anybody may connect; what a peer sees depends on its user. */
	if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 || chmod(path, 0666) < 0 ||
	    listen(fd, BACKLOG) < 0)
		return fail(path);
	snprintf(ret_url, url_bytes, "unix:%s", path);
	return fa_steal_fd(&fd);
}

/* True: @host is a loopback address; all of 127.0.0.0/8 is. */
static bool parse_host(const char *host, struct sockaddr_storage *ret_at, socklen_t *ret_bytes)
{
	struct sockaddr_in *four = (struct sockaddr_in *)ret_at;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)ret_at;

	*ret_at = (struct sockaddr_storage){};
	if (inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host,
	              &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		*ret_bytes = sizeof(*four);
		return ntohl(four->sin_addr.s_addr) >> 24 == 127;
	}
	if (inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
		six->sin6_family = AF_INET6;
		*ret_bytes = sizeof(*six);
		return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
	}
	return false;
}

static in_port_t *port_of(struct sockaddr_storage *at)
{
	return at->ss_family == AF_INET ? &((struct sockaddr_in *)at)->sin_port
	                                : &((struct sockaddr_in6 *)at)->sin6_port;
}

/* Splits "HOST:PORT", "[HOST]:PORT" or "PORT". */
static int parse(const char *address, struct sockaddr_storage *ret_at, socklen_t *ret_bytes)
{
	const char *colon = strrchr(address, ':'), *port = colon ? colon + 1 : address;
	size_t length = colon ? (size_t)(colon - address) : 0;
	char host[64] = "127.0.0.1", *end;
	unsigned long number;

	if (length >= 2 && address[0] == '[' && address[length - 1] == ']') {
		++address;
		length -= 2;
	}
	if (length >= sizeof(host))
		return refuse(address, "expected an address of the loopback interface");
	if (colon)
		snprintf(host, sizeof(host), "%.*s", (int)length, address);
	number = strtoul(port, &end, 10);
	if (end == port || *end || port[0] == '-' || port[0] == '+' || number > UINT16_MAX)
		return refuse(port, "expected a port, HOST:PORT or an absolute path");
	if (!parse_host(host, ret_at, ret_bytes))
		return refuse(host, "expected an address of the loopback interface, such as "
		                    "127.0.0.1 or [::1]: for others, put a proxy before it");
	*port_of(ret_at) = htons((in_port_t)number);
	return 0;
}

static int listen_at_port(const char *address, char *ret_url, size_t url_bytes)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	struct sockaddr_storage at;
	char host[INET6_ADDRSTRLEN];
	const int one = 1;
	socklen_t bytes;
	int r;

	r = parse(address, &at, &bytes);
	if (r < 0)
		return r;
	fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fail(address);
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (const struct sockaddr *)&at, bytes) < 0 || listen(fd, BACKLOG) < 0 ||
	    getsockname(fd, (struct sockaddr *)&at, &bytes) < 0)
		return fail(address);
	if (at.ss_family == AF_INET)
		inet_ntop(AF_INET, &((struct sockaddr_in *)&at)->sin_addr, host, sizeof(host));
	else
		inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&at)->sin6_addr, host, sizeof(host));
	snprintf(ret_url, url_bytes, at.ss_family == AF_INET ? "http://%s:%u/" : "http://[%s]:%u/",
	         host, ntohs(*port_of(&at)));
	return fa_steal_fd(&fd);
}

int fa_address_listen(const char *address, bool *ret_is_unix, char *ret_url, size_t url_bytes)
{
	*ret_is_unix = address[0] == '/';
	return *ret_is_unix ? listen_at_path(address, ret_url, url_bytes)
	                    : listen_at_port(address, ret_url, url_bytes);
}
