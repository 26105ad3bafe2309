#include "tests/lib/raw.h"

#include "common/cleanup.h"
#include "common/memfd.h"
#include "common/packet.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define FDS_MAX 253 /* SCM_MAX_FD */

/* ---- connection */

void fa_raw_init(struct fa_raw *raw, int fd)
{
	/* .bytes is large, and always written before it is read. */
	memset(raw, 0, offsetof(struct fa_raw, bytes));
	memset(&raw->page_fd, 0, sizeof(*raw) - offsetof(struct fa_raw, page_fd));
	raw->fd = fd;
	raw->page_fd = -1;
}

int fa_raw_connect_try(struct fa_raw *raw, const char *socket_path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	_fa_cleanup_(fa_close_fdp) int fd = -1;

	fa_raw_init(raw, -1);
	fa_check(strlen(socket_path) < sizeof(address.sun_path));
	strcpy(address.sun_path, socket_path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	while (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		if (errno != EINTR)
			return -errno;
	raw->fd = fa_steal_fd(&fd);
	return 0;
}

void fa_raw_connect(struct fa_raw *raw, const char *socket_path)
{
	fa_check_eq(fa_raw_connect_try(raw, socket_path), 0);
}

void fa_raw_open(struct fa_raw *raw, const char *socket_path)
{
	fa_raw_connect(raw, socket_path);
	fa_raw_hello(raw);
}

void fa_raw_hello(struct fa_raw *raw)
{
	struct fa_wire_message hello = fa_raw_hello_message("test");

	fa_raw_hello_with(raw, &hello);
}

void fa_raw_hello_with(struct fa_raw *raw, struct fa_wire_message *hello)
{
	void *page;

	fa_raw_call(raw, hello, NULL, 0);
	if (raw->message.type == FA_WIRE_REPLY)
		fa_test_fail(__FILE__, __LINE__, "Hello was refused: %d, %s",
		             raw->message.reply.status, raw->message.reply.text.text);
	fa_check_eq(raw->message.type, FA_WIRE_HELLO_REPLY);
	fa_check_eq(raw->message.hello_reply.version, FA_WIRE_VERSION_MAX);
	fa_check_eq(raw->n_fds, 1);
	raw->generation = raw->message.hello_reply.generation;
	raw->session = raw->message.hello_reply.session;
	raw->secret = raw->message.hello_reply.secret;
	raw->limits = raw->message.hello_reply.limits;
	raw->page_fd = fa_steal_fd(&raw->fds[0]);
	raw->n_fds = 0;
	page = mmap(NULL, FA_COMPLETION_PAGE_BYTES, PROT_READ, MAP_SHARED, raw->page_fd, 0);
	fa_check(page != MAP_FAILED);
	raw->page = page;
}

void fa_raw_close(struct fa_raw *raw)
{
	fa_packet_close_fds(raw->fds, raw->n_fds);
	raw->n_fds = 0;
	if (raw->page)
		munmap((void *)raw->page, FA_COMPLETION_PAGE_BYTES);
	raw->page = NULL;
	fa_close_fdp(&raw->page_fd);
	fa_close_fdp(&raw->fd);
	free(raw->completions);
	raw->completions = NULL;
	raw->n_completions = raw->size_completions = 0;
}

/* ---- sending */

size_t fa_raw_encode(const struct fa_wire_message *message, unsigned char *buffer)
{
	_Alignas(8) unsigned char space[FA_WIRE_BYTES_MAX];
	const void *bytes;
	size_t length;

	fa_check_eq(fa_wire_encode(message, space, sizeof(space), &bytes, &length), 0);
	memcpy(buffer, bytes, length);
	return length;
}

int fa_raw_send(struct fa_raw *raw, const struct fa_wire_message *message, const int *fds,
                size_t n_fds)
{
	_Alignas(8) unsigned char space[FA_WIRE_BYTES_MAX];
	const void *bytes;
	size_t length;

	fa_check_eq(fa_wire_encode(message, space, sizeof(space), &bytes, &length), 0);
	return fa_raw_send_bytes(raw, bytes, length, fds, n_fds, 0);
}

int fa_raw_send_bytes(struct fa_raw *raw, const void *bytes, size_t length, const int *fds,
                      size_t n_fds, int flags)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(FDS_MAX * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)bytes, .iov_len = length };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	fa_check(n_fds <= FDS_MAX);
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
	do
		n = sendmsg(raw->fd, &msg, flags | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

/*
 * body_type is field 3 of Message: its vtable entry follows two 16-bit numbers and those of fields
 * 0 to 2. Messages of known types always have it.
 */
void fa_raw_set_type(unsigned char *bytes, uint8_t type)
{
	uint32_t root;
	int32_t to_vtable;
	uint16_t field;

	memcpy(&root, bytes, sizeof(root));
	memcpy(&to_vtable, bytes + root, sizeof(to_vtable));
	memcpy(&field, bytes + root - to_vtable + 4 + 3 * 2, sizeof(field));
	fa_check(field);
	bytes[root + field] = type;
}

/* ---- receiving */

int fa_raw_receive(struct fa_raw *raw, int timeout_ms)
{
	struct pollfd pollfd = { .fd = raw->fd, .events = POLLIN };
	ssize_t n;
	int r;

	fa_packet_close_fds(raw->fds, raw->n_fds);
	raw->n_fds = 0;
	do
		r = poll(&pollfd, 1, timeout_ms);
	while (r < 0 && errno == EINTR);
	fa_check(r >= 0);
	if (!r)
		return -EAGAIN;
	n = fa_packet_receive(raw->fd, raw->bytes, sizeof(raw->bytes), raw->fds, &raw->n_fds, 0);
	if (n == 0 || n == -ECONNRESET)
		return 0;
	if (n < 0)
		fa_test_fail(__FILE__, __LINE__, "cannot receive: %s", strerror((int)-n));
	r = fa_wire_decode(raw->bytes, (size_t)n, &raw->message);
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "the daemon sent what nobody can decode: %s",
		             strerror(-r));
	fa_check_eq(raw->message.fds, raw->n_fds);
	return 1;
}

static int patience_ms(void)
{
	return (int)(fa_test_patience_ns() / FA_NS_PER_MS);
}

static void keep_completion(struct fa_raw *raw)
{
	const struct fa_wire_completion *from = &raw->message.completion;
	struct fa_raw_completion *to;

	if (raw->n_completions == raw->size_completions) {
		raw->size_completions = raw->size_completions ? 2 * raw->size_completions : 16;
		raw->completions = realloc(raw->completions, raw->size_completions * sizeof(*to));
		fa_check(raw->completions);
	}
	to = &raw->completions[raw->n_completions++];
	*to = (struct fa_raw_completion){
		.stream = from->stream,
		.status = from->status,
		.id = raw->message.id,
		.value = from->value,
		.queued_ns = from->queued_ns,
		.started_ns = from->started_ns,
		.finished_ns = from->finished_ns,
	};
	snprintf(to->text, sizeof(to->text), "%s", from->text.text ? from->text.text : "");
}

void fa_raw_receive_reply(struct fa_raw *raw)
{
	for (;;) {
		int r = fa_raw_receive(raw, patience_ms());

		if (r != 1)
			fa_test_fail(__FILE__, __LINE__, "no answer came: %s",
			             r ? "nothing was sent" : "the connection was closed");
		if (raw->message.type != FA_WIRE_COMPLETION)
			return;
		keep_completion(raw);
	}
}

void fa_raw_call(struct fa_raw *raw, struct fa_wire_message *message, const int *fds, size_t n_fds)
{
	message->id = ++raw->next_id;
	message->fds = (uint8_t)n_fds;
	fa_check_eq(fa_raw_send(raw, message, fds, n_fds), 0);
	fa_raw_receive_reply(raw);
	if (raw->message.id != message->id)
		fa_test_fail(__FILE__, __LINE__, "%s %llu was answered by %s %llu, status %d: %s",
		             fa_wire_type_name(message->type), (unsigned long long)message->id,
		             fa_wire_type_name(raw->message.type),
		             (unsigned long long)raw->message.id,
		             raw->message.type == FA_WIRE_REPLY ? raw->message.reply.status : 0,
		             raw->message.type == FA_WIRE_REPLY && raw->message.reply.text.text
		                     ? raw->message.reply.text.text
		                     : "");
}

static void check_status(const char *what, int got, const char *text, int status, const char *part)
{
	if (got != status)
		fa_test_fail(__FILE__, __LINE__, "%s has status %d (%s), not %d; it says: %s", what,
		             got, strerror(-got), status, text ? text : "nothing");
	if (status < 0 && (!text || !*text))
		fa_test_fail(__FILE__, __LINE__, "%s has status %d and no text", what, status);
	if (part)
		fa_check_contains(text, part);
}

void fa_raw_call_expect(struct fa_raw *raw, struct fa_wire_message *message, const int *fds,
                        size_t n_fds, int status, const char *part)
{
	fa_raw_call(raw, message, fds, n_fds);
	if (raw->message.type != FA_WIRE_REPLY)
		fa_test_fail(__FILE__, __LINE__, "%s was answered by %s, not by status %d",
		             fa_wire_type_name(message->type), fa_wire_type_name(raw->message.type),
		             status);
	check_status("the reply", raw->message.reply.status, raw->message.reply.text.text, status,
	             part);
}

void fa_raw_expect_reply(struct fa_raw *raw, uint64_t id, int status, const char *part, bool closed)
{
	fa_raw_receive_reply(raw);
	fa_check_eq(raw->message.type, FA_WIRE_REPLY);
	fa_check_eq(raw->message.id, id);
	check_status("the reply", raw->message.reply.status, raw->message.reply.text.text, status,
	             part);
	if (closed)
		fa_raw_expect_end(raw);
}

void fa_raw_expect_end(struct fa_raw *raw)
{
	int r;

	while ((r = fa_raw_receive(raw, patience_ms())) == 1) {
		if (raw->message.type != FA_WIRE_COMPLETION)
			fa_test_fail(__FILE__, __LINE__, "%s came, not the end of the connection",
			             fa_wire_type_name(raw->message.type));
		keep_completion(raw);
	}
	if (r)
		fa_test_fail(__FILE__, __LINE__, "the connection was not closed");
}

void fa_raw_wait(struct fa_raw *raw, uint32_t stream, uint64_t value,
                 struct fa_raw_completion *ret_completion)
{
	for (;;) {
		for (size_t i = 0; i < raw->n_completions; ++i) {
			if (raw->completions[i].stream != stream ||
			    raw->completions[i].value != value)
				continue;
			*ret_completion = raw->completions[i];
			memmove(&raw->completions[i], &raw->completions[i + 1],
			        (raw->n_completions - i - 1) * sizeof(raw->completions[0]));
			raw->n_completions--;
			return;
		}
		if (fa_raw_receive(raw, patience_ms()) != 1)
			fa_test_fail(__FILE__, __LINE__, "request %llu of stream %u never ended",
			             (unsigned long long)value, stream);
		if (raw->message.type != FA_WIRE_COMPLETION)
			fa_test_fail(__FILE__, __LINE__, "%s came, not a Completion: %s",
			             fa_wire_type_name(raw->message.type),
			             raw->message.type == FA_WIRE_REPLY &&
			                             raw->message.reply.text.text
			                     ? raw->message.reply.text.text
			                     : "");
		keep_completion(raw);
	}
}

void fa_raw_wait_expect(struct fa_raw *raw, uint32_t stream, uint64_t value, int status,
                        const char *part)
{
	struct fa_raw_completion completion;

	fa_raw_wait(raw, stream, value, &completion);
	check_status("the completion", completion.status, completion.text, status, part);
}

/* ---- common messages */

struct fa_wire_message fa_raw_message(enum fa_wire_type type)
{
	struct fa_wire_message message;

	memset(&message, 0, sizeof(message));
	message.type = type;
	return message;
}

struct fa_wire_message fa_raw_hello_message(const char *name)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_HELLO);

	message.hello.version_min = FA_WIRE_VERSION_MIN;
	message.hello.version_max = FA_WIRE_VERSION_MAX;
	message.hello.name.text = name;
	message.hello.name.length = strlen(name);
	return message;
}

void fa_raw_ping(struct fa_raw *raw)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_PING);

	fa_raw_call_expect(raw, &message, NULL, 0, 0, NULL);
}

static void buffer_map(struct fa_raw_buffer *buffer)
{
	void *data = mmap(NULL, buffer->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, buffer->fd, 0);

	fa_check(data != MAP_FAILED);
	buffer->data = data;
}

void fa_raw_buffer_make(struct fa_raw_buffer *buffer, uint32_t id, uint64_t bytes)
{
	buffer->id = id;
	buffer->bytes = bytes;
	fa_check_eq(fa_memfd_new("test", bytes, true, &buffer->fd), 0);
	buffer_map(buffer);
}

struct fa_wire_message fa_raw_register_message(uint32_t id, uint64_t bytes)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_REGISTER);

	message.buffer_register.buffer = id;
	message.buffer_register.kind = FA_WIRE_BUFFER_HOST_FD;
	message.buffer_register.bytes = bytes;
	return message;
}

static void expect_buffer_reply(struct fa_raw *raw, const struct fa_raw_buffer *buffer,
                                size_t n_fds)
{
	if (raw->message.type == FA_WIRE_REPLY)
		fa_test_fail(__FILE__, __LINE__, "buffer %u was refused: %d, %s", buffer->id,
		             raw->message.reply.status, raw->message.reply.text.text);
	fa_check_eq(raw->message.type, FA_WIRE_BUFFER_REPLY);
	fa_check_eq(raw->message.buffer_reply.buffer, buffer->id);
	fa_check_eq(raw->message.buffer_reply.bytes, buffer->bytes);
	fa_check_eq(raw->n_fds, n_fds);
}

void fa_raw_buffer_register(struct fa_raw *raw, struct fa_raw_buffer *buffer, uint32_t id,
                            uint64_t bytes, uint32_t flags)
{
	struct fa_wire_message message = fa_raw_register_message(id, bytes);

	fa_raw_buffer_make(buffer, id, bytes);
	message.buffer_register.flags = flags;
	fa_raw_call(raw, &message, &buffer->fd, 1);
	expect_buffer_reply(raw, buffer, 0);
}

void fa_raw_buffer_arena(struct fa_raw *raw, struct fa_raw_buffer *buffer, uint32_t id,
                         uint64_t bytes)
{
	struct fa_wire_message message = fa_raw_register_message(id, bytes);

	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	buffer->id = id;
	buffer->bytes = bytes;
	fa_raw_call(raw, &message, NULL, 0);
	expect_buffer_reply(raw, buffer, 1);
	buffer->fd = fa_steal_fd(&raw->fds[0]);
	raw->n_fds = 0;
	buffer_map(buffer);
}

void fa_raw_buffer_free(struct fa_raw *raw, struct fa_raw_buffer *buffer)
{
	if (raw) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

		message.buffer_free.buffer = buffer->id;
		fa_raw_call_expect(raw, &message, NULL, 0, 0, NULL);
	}
	munmap(buffer->data, buffer->bytes);
	buffer->data = NULL;
	fa_close_fdp(&buffer->fd);
}

void fa_raw_stream_create(struct fa_raw *raw, uint32_t stream, int priority)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STREAM_CREATE);

	message.stream_create.stream = stream;
	message.stream_create.priority = (int8_t)priority;
	fa_raw_call_expect(raw, &message, NULL, 0, 0, NULL);
}

void fa_raw_stream_free(struct fa_raw *raw, uint32_t stream)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STREAM_FREE);

	message.stream_free.stream = stream;
	fa_raw_call_expect(raw, &message, NULL, 0, 0, NULL);
}

char *fa_raw_status(struct fa_raw *raw)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STATUS);
	uint64_t bytes;
	char *text;

	fa_raw_call(raw, &message, NULL, 0);
	fa_check_eq(raw->message.type, FA_WIRE_STATUS_REPLY);
	fa_check_eq(raw->n_fds, 1);
	bytes = raw->message.status_reply.bytes;
	fa_check(bytes && bytes < 64u << 20);
	text = malloc(bytes + 1);
	fa_check(text);
	fa_check_eq(pread(raw->fds[0], text, bytes, 0), bytes);
	text[bytes] = 0;
	return text;
}
