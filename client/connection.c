/* Every wait of an attempt to connect ends at the deadline. */
#include "client/connection.h"

#include "client/poll_until.h"
#include "client/trusted.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/memfd.h"
#include "common/packet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#define HELLO_ID 1

/* A full backlog cannot be polled for. */
#define BACKLOG_PAUSE_NS FA_NS_PER_MS

int fa_connection_check_fds(int fd, size_t n, struct fa_error *error)
{
	int fds[FA_PACKET_FDS_MAX], code = 0;
	size_t had = 0;

	for (; had < n && !code; ++had) {
		fds[had] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		/* If the limit is 0, F_DUPFD fails with EINVAL. */
		if (fds[had] < 0)
			code = errno == EINVAL ? -EMFILE : -errno;
	}
	fa_packet_close_fds(fds, had);
	if (!code)
		return 0;
	return fa_fail(error, code,
	               "the daemon's answer comes with %zu descriptors, and this process can have "
	               "no more: %s",
	               n, strerror(-code));
}

static int connect_socket(const char *path, uint64_t deadline_ns, struct fa_error *error,
                          int *ret_fd)
{
	const struct timeval slice = { .tv_sec = FA_RECEIVE_SLICE_NS / FA_NS_PER_SEC };
	const struct timespec pause = { .tv_nsec = BACKLOG_PAUSE_NS };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	size_t length = strlen(path);

	if (length >= sizeof(address.sun_path))
		return fa_fail(error, -ENAMETOOLONG,
		               "the socket's path has %zu bytes; at most %zu are possible", length,
		               sizeof(address.sun_path) - 1);
	memcpy(address.sun_path, path, length);

	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fa_fail(error, -errno, "no socket: %m");

	while (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int code = -errno;

		if (code == -EINTR)
			continue;
		if (code != -EAGAIN)
			return fa_fail(error, code, "cannot connect to fad at %s: %s", path,
			               code == -ENOENT
			                       ? "there is no such socket; is the service started "
			                         "(systemctl start fad)?"
			               : code == -ECONNREFUSED ? "no daemon listens there"
			               : code == -EACCES
			                       ? "the socket's mode or directory forbids it; its "
			                         "group may connect"
			                       : strerror(-code));
		if (fa_now_ns() >= deadline_ns)
			return fa_fail(error, -ETIMEDOUT,
			               "cannot connect to fad at %s: it accepts no connections",
			               path);
		(void)nanosleep(&pause, NULL);
	}

	/* Callers that must not wait pass MSG_DONTWAIT. */
	if (fcntl(fd, F_SETFL, 0) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof(slice)) < 0)
		return fa_fail(error, -errno, "the socket cannot be set up: %m");
	*ret_fd = fa_steal_fd(&fd);
	return 0;
}

static int send_hello(int socket, const char *name, const struct fa_session_key *key, uint8_t *out)
{
	struct fa_wire_message message = {
		.id = HELLO_ID,
		.type = FA_WIRE_HELLO,
		.hello = { .version_min = FA_WIRE_VERSION_MIN,
		           .version_max = FA_WIRE_VERSION_MAX,
		           .name = { .text = name, .length = strlen(name) },
		           .has_resume = key->generation != 0,
		           .resume_secret = key->secret,
		           .resume_generation = key->generation },
	};
	const void *bytes;
	size_t length;
	int r;

	r = fa_wire_encode(&message, out, FA_WIRE_BYTES_MAX, &bytes, &length);
	if (r < 0)
		return r;
	return fa_packet_send(socket, bytes, length, NULL, 0, MSG_DONTWAIT);
}

static void copy_string(char *to, size_t size, const struct fa_wire_string *from)
{
	(void)snprintf(to, size, "%.*s", (int)from->length, from->text ? from->text : "");
}

/* The daemon must have sealed the page, so that it cannot shrink. */
static int map_page(int fd, struct fa_error *error, const struct fa_completion_slot **ret_page)
{
	struct fa_error why;
	uint64_t size;
	void *page;
	int r, seals;

	r = fa_memfd_check(fd, 0, FA_COMPLETION_PAGE_BYTES, &why, &size, &seals);
	if (r < 0)
		return fa_fail(error, -EPROTO, "the daemon's completion page is unusable: %.180s",
		               why.text);
	page = mmap(NULL, FA_COMPLETION_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return fa_fail(error, -errno, "cannot map the completion page: %m");
	*ret_page = page;
	return 0;
}

static int read_hello_reply(const struct fa_wire_message *message, const int *fds, size_t n_fds,
                            const struct fa_session_key *key, struct fa_error *error,
                            struct fa_connection *connection)
{
	const struct fa_wire_hello_reply *reply = &message->hello_reply;

	if (message->fds != n_fds)
		return fa_fail(error, -EPROTO, "the daemon announced %u descriptors and sent %zu",
		               message->fds, n_fds);
	if (message->type == FA_WIRE_REPLY && message->reply.status < 0)
		return fa_fail(error, message->reply.status,
		               "the daemon refused the connection: %.*s",
		               (int)message->reply.text.length,
		               message->reply.text.text ? message->reply.text.text : "");
	if (message->type != FA_WIRE_HELLO_REPLY || message->id != HELLO_ID || n_fds != 1)
		return fa_fail(error, -EPROTO,
		               "the daemon answered Hello with %s, id %llu and %zu descriptors",
		               fa_wire_type_name(message->type), (unsigned long long)message->id,
		               n_fds);
	if (reply->version < FA_WIRE_VERSION_MIN || reply->version > FA_WIRE_VERSION_MAX)
		return fa_fail(error, -EPROTO,
		               "the daemon chose protocol version %u; offered %u to %u",
		               reply->version, FA_WIRE_VERSION_MIN, FA_WIRE_VERSION_MAX);
	if (!reply->limits.requests || !reply->limits.streams ||
	    (reply->resumed && !key->generation))
		return fa_fail(error, -EPROTO, "the daemon's HelloReply is invalid");

	connection->version = reply->version;
	connection->features = reply->features;
	copy_string(connection->daemon_version, sizeof(connection->daemon_version),
	            &reply->daemon_version);
	copy_string(connection->backend, sizeof(connection->backend), &reply->backend);
	copy_string(connection->device_name, sizeof(connection->device_name), &reply->device_name);
	connection->device_uuid[0] = reply->device_uuid.lo;
	connection->device_uuid[1] = reply->device_uuid.hi;
	connection->generation = reply->generation;
	connection->session = reply->session;
	connection->pid = reply->pid;
	connection->secret = reply->secret;
	connection->resumed = reply->resumed;
	connection->limits = reply->limits;
	return map_page(fds[0], error, &connection->page);
}

static int shake_hands(const char *path, const char *name, const struct fa_session_key *key,
                       uint8_t *in, uint8_t *out, uint64_t deadline_ns, struct fa_error *error,
                       struct fa_connection *connection)
{
	struct fa_wire_message message;
	int r, fds[FA_PACKET_FDS_MAX];
	size_t n_fds = 0;
	ssize_t n;

	/* After a failed send the daemon's reason may be in the socket. */
	r = send_hello(connection->socket, name, key, out);
	if (r < 0 && r != -EPIPE && r != -ECONNRESET)
		return fa_fail(error, r, "cannot send Hello to fad at %s: %s", path, strerror(-r));

	do {
		if (fa_poll(connection->socket, POLLIN, deadline_ns) < 0 &&
		    fa_now_ns() >= deadline_ns)
			return fa_fail(error, -ETIMEDOUT, "fad at %s does not answer", path);
		n = fa_packet_receive(connection->socket, in, FA_WIRE_BYTES_MAX, fds, &n_fds,
		                      MSG_DONTWAIT);
	} while (n == -EAGAIN);
	if (n == 0 || n == -ECONNRESET)
		return fa_fail(error, -ECONNRESET, "fad at %s closed the connection at once", path);
	if (n == -EMFILE)
		return fa_fail(error, -EMFILE, "this process can have no more descriptors");
	if (n < 0)
		return fa_fail(error, -EPROTO, "fad at %s sent an impossible packet: %s", path,
		               strerror((int)-n));

	r = fa_wire_decode(in, (size_t)n, &message);
	if (r < 0)
		r = fa_fail(error, -EPROTO, "what answers at %s does not speak fad's protocol",
		            path);
	else
		r = read_hello_reply(&message, fds, n_fds, key, error, connection);
	fa_packet_close_fds(fds, n_fds);
	return r;
}

int fa_connection_open(const char *path, bool named, const char *name,
                       const struct fa_session_key *key, uint8_t *in, uint8_t *out,
                       uint64_t deadline_ns, struct fa_error *error,
                       struct fa_connection *ret_connection)
{
	struct fa_connection connection = { .socket = -1 };
	int r;

	r = connect_socket(path, deadline_ns, error, &connection.socket);
	if (r >= 0 && !named)
		r = fa_trusted_peer(connection.socket, path, error);
	if (r >= 0)
		r = fa_connection_check_fds(connection.socket, 1, error);
	if (r >= 0)
		r = shake_hands(path, name, key, in, out, deadline_ns, error, &connection);
	if (r < 0) {
		fa_connection_close(&connection);
		return r;
	}
	*ret_connection = connection;
	return 0;
}

void fa_connection_close(struct fa_connection *connection)
{
	if (connection->page)
		(void)munmap((void *)connection->page, FA_COMPLETION_PAGE_BYTES);
	connection->page = NULL;
	fa_client_ring_close(&connection->ring);
	fa_close_fdp(&connection->socket);
}
