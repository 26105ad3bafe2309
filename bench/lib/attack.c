#include "bench/lib/attack.h"

#include "client/faclient.h"
#include "client/faclient_kv.h"
#include "common/cleanup.h"
#include "common/packet.h"
#include "schema/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	DIM = 16,
	PAGE_TOKENS = 16,
	ITEMS = 2048, /* items of a step */
	STEP_TOKENS = 1 << 16,
	LONG_TOKENS = 1 << 20,
	IN_FLIGHT = 512,
	CONNECTIONS = 300,
	MESSAGES = 200, /* messages on each connection, until all connections begin anew */
	LINGER_S = 60,
	BUFFERS_MAX = 4096,
};

#define SPARSE_BYTES (1ull << 30)

/* Tells the process that reads the pipe @begun. */
static void has_begun(int begun)
{
	if (write(begun, "", 1) != 1)
		_exit(1);
}

static void must(int r, const char *what)
{
	if (r >= 0)
		return;
	fprintf(stderr, "an attack ends: %s: %s (%s)\n", what, strerror(-r), fa_error());
	_exit(1);
}

/* ---- by hand */

static int connect_raw(const char *socket_path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	must(fd < 0 ? -errno : 0, "socket");
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket_path);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

/* @space holds FA_WIRE_BYTES_MAX bytes. */
static void encode(const struct fa_wire_message *message, void *space, const void **ret_bytes,
                   size_t *ret_length)
{
	must(fa_wire_encode(message, space, FA_WIRE_BYTES_MAX, ret_bytes, ret_length), "encoding");
}

/* Sends a Hello, whose answer nobody reads. */
static int open_raw(const char *socket_path)
{
	static _Alignas(8) unsigned char space[FA_WIRE_BYTES_MAX];
	struct fa_wire_message hello = { .type = FA_WIRE_HELLO };
	const int fd = connect_raw(socket_path);
	const void *bytes;
	size_t length;

	if (fd < 0)
		return -1;
	hello.hello.version_min = FA_WIRE_VERSION_MIN;
	hello.hello.version_max = FA_WIRE_VERSION_MAX;
	hello.hello.name.text = "attack";
	hello.hello.name.length = strlen("attack");
	encode(&hello, space, &bytes, &length);
	(void)fa_packet_send(fd, bytes, length, NULL, 0, 0);
	return fd;
}

static void burn(const char *socket, int begun)
{
	const pid_t parent = getpid();

	for (int i = 0; i < 2 && getpid() == parent; i++)
		if (fork() == 0)
			prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getpid() == parent)
		has_begun(begun);
	/* A child that missed its parent's death ends here. */
	while (getpid() == parent || getppid() == parent)
		;
}

const struct fa_attack fa_attack_none = { "none", "burns three processors", burn };

static void connections(const char *socket, int begun)
{
	has_begun(begun);
	for (;;) {
		const int fd = connect_raw(socket);

		if (fd >= 0)
			close(fd);
	}
}

/* Sends as many of a message as the sockets take, and reads nothing. When the daemon reads no more,
 * all connections begin anew. */
static void flood(const char *socket, int begun, enum fa_wire_type type)
{
	static _Alignas(8) unsigned char space[FA_WIRE_BYTES_MAX];
	const struct fa_wire_message message = { .type = type, .id = 1 };
	static int fds[CONNECTIONS];
	const void *bytes;
	size_t length;

	encode(&message, space, &bytes, &length);
	has_begun(begun);
	for (;;) {
		for (int i = 0; i < CONNECTIONS; i++)
			fds[i] = open_raw(socket);
		for (int j = 0; j < MESSAGES; j++)
			for (int i = 0; i < CONNECTIONS; i++)
				if (fds[i] >= 0)
					(void)fa_packet_send(fds[i], bytes, length, NULL, 0,
					                     MSG_DONTWAIT);
		for (int i = 0; i < CONNECTIONS; i++)
			fa_close_fdp(&fds[i]);
	}
}

static void statuses(const char *socket, int begun)
{
	flood(socket, begun, FA_WIRE_STATUS);
}

static void pings(const char *socket, int begun)
{
	flood(socket, begun, FA_WIRE_PING);
}

/* Returns a connection whose close() waits for @address, which does not read. */
static int new_lingering(const struct sockaddr_in *address)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = LINGER_S };
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	static const char bytes[65536];
	const int small = 1;

	must(fd < 0 ? -errno : 0, "socket");
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	must(connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? -errno : 0,
	     "connect");
	while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	return fd;
}

/* Passes descriptors that no message wants, and whose close() blocks. */
static void blocking_closes(const char *socket_path, int begun)
{
	static _Alignas(8) unsigned char space[FA_WIRE_BYTES_MAX];
	const struct fa_wire_message ping = { .type = FA_WIRE_PING, .id = 1 };
	const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 1;
	const struct linger none = {};
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t size = sizeof(address);
	const void *bytes;
	size_t length;

	must(listener < 0 ? -errno : 0, "socket");
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	(void)setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	must(bind(listener, (struct sockaddr *)&address, size) < 0 ? -errno : 0, "bind");
	must(listen(listener, 4096) < 0 ? -errno : 0, "listen");
	must(getsockname(listener, (struct sockaddr *)&address, &size) < 0 ? -errno : 0, "address");
	encode(&ping, space, &bytes, &length);
	has_begun(begun);
	for (;;) {
		const int fd = open_raw(socket_path);

		for (int i = 0; i < 64 && fd >= 0; i++) {
			const int passed = new_lingering(&address);

			/* Sends the descriptor, so that the daemon has it, too, and this process's
			 * close() does not wait. */
			if (fa_packet_send(fd, bytes, length, &passed, 1, MSG_DONTWAIT) < 0)
				(void)setsockopt(passed, SOL_SOCKET, SO_LINGER, &none,
				                 sizeof(none));
			close(passed);
		}
		if (fd >= 0)
			close(fd);
	}
}

/* ---- by the library */

static struct fa_client *connect_to(const char *socket)
{
	struct fa_options options = { .size = sizeof(options), .socket = socket };
	struct fa_client *client;

	must(fa_connect(&options, &client), "connecting");
	return client;
}

static uint64_t make_cache(struct fa_client *client)
{
	const struct fa_cache_options options = { .size = sizeof(options),
		                                  .dtype = FA_F16,
		                                  .layers = 1,
		                                  .kv_heads = 1,
		                                  .head_dim = DIM,
		                                  .page_tokens = PAGE_TOKENS };
	uint64_t cache;

	must(fa_cache_create(client, &options, &cache), "a cache");
	return cache;
}

static void one_buffer(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	struct fa_buffer *buffer;

	has_begun(begun);
	for (;;) {
		must(fa_buffer_new(client, 1 << 20, 0, &buffer), "a buffer");
		fa_buffer_free(buffer);
	}
}

/* Takes all buffers that the user may have, and frees them. */
static void all_buffers(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	static struct fa_buffer *buffers[BUFFERS_MAX];

	has_begun(begun);
	for (;;) {
		int n = 0;

		while (n < BUFFERS_MAX && fa_buffer_new(client, 4096, 0, &buffers[n]) == 0)
			n++;
		while (n)
			fa_buffer_free(buffers[--n]);
	}
}

static void begins(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	const uint64_t cache = make_cache(client);
	static struct fa_step_item items[ITEMS];
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = ITEMS,
		                                 .items = items };
	struct fa_step *step;

	for (int i = 0; i < ITEMS; i++)
		must(fa_sequence_create(client, cache, &items[i].sequence), "a sequence");
	has_begun(begun);
	for (;;) {
		must(fa_step_begin(client, &options, &step), "a step");
		fa_step_free(step);
	}
}

/* Returns a sequence of LONG_TOKENS tokens. */
static uint64_t make_long(struct fa_client *client, uint64_t cache)
{
	struct fa_step_item item = { .n_new = STEP_TOKENS };
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = 1,
		                                 .items = &item };
	struct fa_step *step;

	must(fa_sequence_create(client, cache, &item.sequence), "a sequence");
	for (int n = 0; n < LONG_TOKENS; n += STEP_TOKENS) {
		must(fa_step_begin(client, &options, &step), "a step");
		must(fa_step_commit(step, NULL, NULL), "a commit");
		fa_step_free(step);
	}
	return item.sequence;
}

static void forks(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	const uint64_t parent = make_long(client, make_cache(client));
	uint64_t child;

	has_begun(begun);
	for (;;) {
		must(fa_sequence_fork(client, parent, LONG_TOKENS, &child), "a fork");
		must(fa_sequence_remove(client, child), "removing");
	}
}

static void attaches(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	const uint64_t cache = make_cache(client), published = make_long(client, cache);
	uint32_t *tokens = calloc(LONG_TOKENS, sizeof(*tokens));
	const struct fa_prefix prefix = { .size = sizeof(prefix),
		                          .tokens = tokens,
		                          .n_tokens = LONG_TOKENS };
	uint64_t sequence, n;

	must(tokens ? 0 : -ENOMEM, "tokens");
	must(fa_sequence_publish(client, published, &prefix, NULL), "publishing");
	has_begun(begun);
	for (;;) {
		must(fa_sequence_create(client, cache, &sequence), "a sequence");
		must(fa_sequence_attach(client, sequence, &prefix, &n), "attaching");
		must(n == LONG_TOKENS ? 0 : -ENODATA, "attaching all");
		must(fa_sequence_remove(client, sequence), "removing");
	}
}

static void init_attention(struct fa_attention *attention, struct fa_buffer *buffer, int64_t keys)
{
	const int64_t q_shape[] = { 1, 1, 1, DIM }, k_shape[] = { 1, keys, 1, DIM };

	*attention = (struct fa_attention){ .size = sizeof(*attention) };
	fa_tensor_init(&attention->q, buffer, 0, FA_F32, 4, q_shape);
	fa_tensor_init(&attention->out, buffer, 4096, FA_F32, 4, q_shape);
	fa_tensor_init(&attention->k, buffer, 8192, FA_F32, 4, k_shape);
	fa_tensor_init(&attention->v, buffer, 8192, FA_F32, 4, k_shape);
}

/* Requests are sent and cancelled, many at once. */
static void cancels(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	static struct fa_ticket tickets[IN_FLIGHT];
	struct fa_attention attention;
	struct fa_buffer *buffer;

	must(fa_buffer_new(client, 1 << 20, 0, &buffer), "a buffer");
	init_attention(&attention, buffer, 4096);
	has_begun(begun);
	for (;;) {
		int n = 0;

		while (n < IN_FLIGHT && fa_attention(client, &attention, &tickets[n]) == 0)
			n++;
		for (int i = n; i-- > 0;)
			(void)fa_cancel(client, &tickets[i]);
		for (int i = 0; i < n; i++)
			(void)fa_wait(client, &tickets[i], UINT64_MAX, NULL);
	}
}

/* Gives the daemon large memory without pages, and lets it map and read some. */
static void sparse(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	struct fa_attention attention;
	struct fa_buffer *buffer;

	has_begun(begun);
	for (;;) {
		int r = fa_buffer_new(client, SPARSE_BYTES, 0, &buffer);

		if (r == -EDQUOT)
			continue;
		must(r, "a buffer");
		init_attention(&attention, buffer, 1 << 16);
		must(fa_attention(client, &attention, NULL), "a request");
		fa_buffer_free(buffer);
	}
}

/* Sends as many requests as may be in flight, and reads no answer. */
static void slow_readers(const char *socket, int begun)
{
	has_begun(begun);
	for (;;) {
		struct fa_client *client = connect_to(socket);
		struct fa_attention attention;
		struct fa_buffer *buffer;
		struct fa_ticket ticket;

		must(fa_buffer_new(client, 1 << 20, 0, &buffer), "a buffer");
		init_attention(&attention, buffer, 16);
		while (fa_attention(client, &attention, &ticket) == 0)
			;
		fa_disconnect(client);
	}
}

const struct fa_attack fa_attacks[] = {
	{ "connections", "connects and closes", connections },
	{ "status", "asks for 300 statuses and reads none", statuses },
	{ "pings", "pings by 300 connections and reads nothing", pings },
	{ "blocking-closes", "passes descriptors whose close() blocks", blocking_closes },
	{ "one-buffer", "registers and frees a buffer", one_buffer },
	{ "all-buffers", "takes all buffers it may have, and frees them", all_buffers },
	{ "begins", "begins steps of 2048 empty sequences", begins },
	{ "attaches", "attaches a prefix of a million tokens", attaches },
	{ "forks", "forks sequences of a million tokens", forks },
	{ "cancels", "cancels 512 requests at once", cancels },
	{ "sparse", "computes over memory without pages", sparse },
	{ "slow-readers", "leaves answers unread and goes", slow_readers },
	{ NULL, NULL, NULL },
};

/* ---- control */

int fa_attack_start(const struct fa_attack *attack, const char *socket, uid_t uid, pid_t *ret_pid)
{
	const pid_t parent = getpid();
	int begun[2];
	ssize_t n;
	pid_t pid;
	char byte;

	if (pipe(begun) < 0)
		return -errno;
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		close(begun[0]);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent || setresgid(uid, uid, uid) < 0 ||
		    setresuid(uid, uid, uid) < 0)
			_exit(1);
		/* Set here because a change of uid clears it. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		attack->run(socket, begun[1]);
		_exit(1);
	}
	close(begun[1]);
	n = pid < 0 ? -1 : read(begun[0], &byte, 1);
	close(begun[0]);
	if (n == 1) {
		*ret_pid = pid;
		return 0;
	}
	fprintf(stderr, "attack %s: does not begin\n", attack->name);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	return -EIO;
}

int fa_attack_end(pid_t pid)
{
	int status;
	const bool ended = waitpid(pid, &status, WNOHANG) != 0;

	if (ended)
		return -EIO;
	kill(pid, SIGKILL);
	return waitpid(pid, &status, 0) == pid ? 0 : -EIO;
}
