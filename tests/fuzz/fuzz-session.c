/*
 * Fuzzes a whole session: the daemon's loop, engine and CPU backend run in this process, and a
 * client sends the input's packets (packets.h) over a real socket. After the client has gone, the
 * daemon must have released its sessions, buffers, accounts, requests and descriptors. Every
 * message of the daemon must decode.
 *
 * Limits are tiny so that inputs reach them; tensors are small to keep sessions short.
 */
#include "common/clock.h"
#include "common/packet.h"
#include "daemon/account/config.h"
#include "daemon/service/server.h"
#include "daemon/session/session.h"
#include "schema/wire.h"
#include "tests/fuzz/packets.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

#define PATIENCE_NS (10 * FA_NS_PER_SEC)
/* Requests with more multiply-adds are not sent, as they only take time. */
#define WORK_MAX 1000000

static const char configuration[] = "[daemon]\n"
				    "threads = 2\n"
				    "[limits]\n"
				    "sessions = 4\n"
				    "buffers = 6\n"
				    "buffer_bytes = 524288\n"
				    "fds = 6\n"
				    "requests = 6\n"
				    "session_buffers = 4\n"
				    "session_streams = 3\n"
				    "session_requests = 4\n"
				    "session_out_bytes = 4096\n";

static uv_loop_t loop;
static struct fa_server *server;
static struct sockaddr_un address = { .sun_family = AF_UNIX };
static socklen_t address_bytes;
static int n_fds_idle;

static void demand(int condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

/* ---- the daemon */

static void on_draining(void *userdata)
{
}

static void on_stopped(void *userdata)
{
}

static int count_fds(void)
{
	struct dirent *entry;
	int n = 0;
	DIR *dir;

	dir = opendir("/proc/self/fd");
	demand(dir != NULL, "/proc/self/fd cannot be read");
	while ((entry = readdir(dir)))
		n += entry->d_name[0] != '.';
	closedir(dir);
	return n;
}

static void start(void)
{
	struct fa_server_options options = { .loop = &loop,
		                             .draining = on_draining,
		                             .stopped = on_stopped };
	struct fa_config config;
	struct fa_error error;

	fa_log_set(FA_LOG_STDERR, FA_LOG_ERROR);
	demand(uv_loop_init(&loop) == 0, "no loop");
	demand(fa_config_init(&config) == 0, "no configuration");
	demand(fa_config_parse(&config, configuration, &error) == 0, "bad configuration");

	options.config = &config;
	options.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	demand(options.listen_fd >= 0, "no socket");
	/* The socket gets an abstract name, which the kernel chooses. */
	demand(!bind(options.listen_fd, (struct sockaddr *)&address, sizeof(sa_family_t)) &&
	               !listen(options.listen_fd, 16),
	       "no listener");
	address_bytes = sizeof(address);
	demand(!getsockname(options.listen_fd, (struct sockaddr *)&address, &address_bytes),
	       "no name");
	if (fa_server_new(&options, &error, &server) < 0)
		demand(0, error.text);
}

static void list_fds(void)
{
	fprintf(stderr, "%d descriptors are open, %d were\n", count_fds(), n_fds_idle);
	for (int fd = 0; fd < 1024; ++fd) {
		char path[32], target[256];
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target));
		if (n > 0)
			fprintf(stderr, "  %d: %.*s\n", fd, (int)n, target);
	}
}

static bool accounts_are_empty(void)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &server->context.tenants.tenants) {
		struct fa_tenant *tenant = fa_container_of(pos, struct fa_tenant, link);

		for (unsigned int i = 0; i < _FA_RESOURCE_N; ++i)
			if (tenant->used[i])
				return false;
	}
	return true;
}

/* Runs the loop until the connection has come and gone, and its resources are released. */
static void run_until_idle(uint64_t n_connections)
{
	uint64_t deadline = fa_deadline_ns(PATIENCE_NS);

	while (server->accept.n_connections < n_connections || server->context.n_sessions ||
	       !fa_importer_is_idle(&server->context.importer)) {
		uv_run(&loop, UV_RUN_NOWAIT);
		demand(fa_now_ns() < deadline, "a session, or memory of one, stayed");
	}
	demand(server->context.n_requests == 0, "a request stayed");
	/* Other threads release some resources. */
	while (!accounts_are_empty()) {
		uv_run(&loop, UV_RUN_NOWAIT);
		demand(fa_now_ns() < deadline, "something stayed charged");
	}
	/* The reaper thread closes clients' descriptors. */
	while (count_fds() != n_fds_idle)
		if (fa_now_ns() > deadline) {
			list_fds();
			demand(0, "a descriptor stayed open");
		}
}

/* ---- the client */

static int memfd(uint64_t bytes, int seals)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	demand(fd >= 0 && !ftruncate(fd, (off_t)bytes), "no memfd");
	if (seals)
		demand(!fcntl(fd, F_ADD_SEALS, seals), "no seal");
	return fd;
}

static size_t make_fds(unsigned int kind, int *fds)
{
	int pair[2];

	switch (kind) {
	case PACKET_MEMFD:
		fds[0] = memfd(65536, F_SEAL_SHRINK);
		return 1;
	case PACKET_MEMFD_UNSEALED:
		fds[0] = memfd(65536, 0);
		return 1;
	case PACKET_MEMFD_READ_ONLY:
		fds[0] = memfd(65536, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
		return 1;
	case PACKET_MEMFD_SPARSE:
		fds[0] = memfd(1ull << 40, F_SEAL_SHRINK);
		return 1;
	case PACKET_MEMFD_EMPTY:
		fds[0] = memfd(0, F_SEAL_SHRINK);
		return 1;
	case PACKET_PIPE:
		demand(!pipe2(fds, O_CLOEXEC), "no pipe");
		return 2;
	case PACKET_SOCKET:
		demand(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), "no socket");
		close(pair[1]);
		fds[0] = pair[0];
		return 1;
	case PACKET_DIRECTORY:
		fds[0] = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		demand(fds[0] >= 0, "no directory");
		return 1;
	case PACKET_TWO_FDS:
	case PACKET_EIGHT_FDS:
	case PACKET_TWENTY_FDS: {
		size_t n = kind == PACKET_TWO_FDS ? 2 : kind == PACKET_EIGHT_FDS ? 8 : 20;

		for (size_t i = 0; i < n; ++i)
			fds[i] = i ? dup(fds[0]) : memfd(65536, F_SEAL_SHRINK);
		return n;
	}
	default:
		return 0;
	}
}

static bool is_long(const struct fa_wire_message *message)
{
	const struct fa_wire_attention *attention = &message->attention;
	double work = 1, keys = 1;

	if (message->type != FA_WIRE_ATTENTION)
		return false;
	for (unsigned int i = 0; i < FA_WIRE_RANK_MAX; ++i) {
		if (attention->q.shape[i] > 1)
			work *= (double)attention->q.shape[i];
		if (attention->k.shape[i] > 1)
			keys *= (double)attention->k.shape[i];
		if (attention->v.shape[i] > 1)
			work *= i == attention->v.rank - 1u ? (double)attention->v.shape[i] : 1;
	}
	return work * keys > WORK_MAX;
}

/* Packets that would stop the daemon or only take time are not sent. */
static bool is_unwanted(const struct packet *packet)
{
	static _Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];
	struct fa_wire_message message;

	if (packet->length > sizeof(bytes))
		return false;
	memcpy(bytes, packet->bytes, packet->length);
	if (fa_wire_decode(bytes, packet->length, &message) < 0)
		return false;
	return message.type == FA_WIRE_DRAIN || is_long(&message);
}

static void send_packet(int client, const struct packet *packet)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(20 * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)packet->bytes, .iov_len = packet->length };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	int fds[20];
	size_t n_fds;

	n_fds = make_fds(packet->flags & PACKET_FDS, fds);
	if (n_fds) {
		struct cmsghdr *cmsg;

		msg.msg_control = control.space;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	}
	/* If the socket is full or closed, the packet is lost. */
	(void)sendmsg(client, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	for (size_t i = 0; i < n_fds; ++i)
		close(fds[i]);
}

static void read_replies(int client)
{
	static _Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];

	for (;;) {
		struct fa_wire_message message;
		int fds[FA_PACKET_FDS_MAX];
		size_t n_fds = 0;
		ssize_t n;

		n = fa_packet_receive(client, bytes, sizeof(bytes), fds, &n_fds, MSG_DONTWAIT);
		if (n <= 0)
			return;
		demand(fa_wire_decode(bytes, (size_t)n, &message) == 0, "an answer is not valid");
		demand(message.type >= FA_WIRE_REPLY && message.type != FA_WIRE_BUFFER_PIECES,
		       "an answer is a request");
		demand(message.fds == n_fds, "an answer announces other descriptors");
		if (message.type == FA_WIRE_REPLY && message.reply.status < 0)
			demand(message.reply.text.length > 0, "an error has no text");
		if (message.type == FA_WIRE_COMPLETION && message.completion.status < 0)
			demand(message.completion.text.length > 0, "a failure has no text");
		fa_packet_close_fds(fds, n_fds);
	}
}

static bool is_readable(int client)
{
	struct pollfd pollfd = { .fd = client, .events = POLLIN };

	return poll(&pollfd, 1, 0) > 0;
}

/* Runs the daemon until it replies, or up to a bound, as it may have no reply to send. */
static void await_reply(int client)
{
	uint64_t deadline = fa_deadline_ns(2 * FA_NS_PER_MS);

	do
		uv_run(&loop, UV_RUN_NOWAIT);
	while (!is_readable(client) && fa_now_ns() < deadline);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
	struct packet packet;
	uint64_t n_before;
	int client;

	if (!server)
		start();
	/* Count before each input, as libFuzzer opens files between inputs. */
	n_fds_idle = count_fds();
	n_before = server->accept.n_connections;
	client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	demand(client >= 0, "no socket");
	demand(!connect(client, (struct sockaddr *)&address, address_bytes), "no connection");

	while (packet_next(&data, &length, &packet)) {
		if (is_unwanted(&packet))
			continue;
		send_packet(client, &packet);
		if (packet.flags & PACKET_WAIT)
			await_reply(client);
		else if (packet.flags & PACKET_TURN)
			uv_run(&loop, UV_RUN_NOWAIT);
		if (packet.flags & PACKET_READ)
			read_replies(client);
	}
	uv_run(&loop, UV_RUN_NOWAIT);
	read_replies(client);
	close(client);
	run_until_idle(n_before + 1);
	return 0;
}
