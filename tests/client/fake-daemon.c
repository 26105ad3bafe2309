#include "tests/client/fake-daemon.h"

#include "common/cleanup.h"
#include "common/memfd.h"
#include "tests/lib/check.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct fa_wire_string string(const char *text)
{
	return (struct fa_wire_string){ .text = text, .length = text ? strlen(text) : 0 };
}

static void *run(void *userdata)
{
	struct fake_daemon *fake = userdata;

	for (;;) {
		struct fa_raw raw;
		int fd = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			return NULL;
		fa_raw_init(&raw, fd);
		fake->serve(&raw, fake->userdata);
		fa_raw_close(&raw);
	}
}

void fake_daemon_start(struct fake_daemon *fake, void (*serve)(struct fa_raw *raw, void *userdata),
                       void *userdata)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	*fake = (struct fake_daemon){ .serve = serve, .userdata = userdata };
	fa_test_dir_make(fake->dir, sizeof(fake->dir));
	snprintf(fake->socket, sizeof(fake->socket), "%s/fad.sock", fake->dir);
	strcpy(address.sun_path, fake->socket);
	fake->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	fa_check(fake->listen_fd >= 0);
	fa_check(!bind(fake->listen_fd, (struct sockaddr *)&address, sizeof(address)));
	fa_check(!listen(fake->listen_fd, serve ? 16 : 0));
	if (serve)
		fa_check(!pthread_create(&fake->thread, NULL, run, fake));
}

void fake_daemon_stop(struct fake_daemon *fake)
{
	shutdown(fake->listen_fd, SHUT_RDWR);
	if (fake->serve)
		pthread_join(fake->thread, NULL);
	close(fake->listen_fd);
	fa_test_dir_remove(fake->dir);
}

int fake_daemon_setup(void **state)
{
	char dir[48];

	fa_test_dir_make(dir, sizeof(dir));
	fa_test_dir_remove(dir);
	return 0;
}

struct fa_wire_message fake_daemon_hello_reply(uint64_t id)
{
	return (struct fa_wire_message){
		.id = id,
		.fds = 1,
		.type = FA_WIRE_HELLO_REPLY,
		.hello_reply = { .version = FA_WIRE_VERSION_MAX,
		                 .daemon_version = string("9.8.7"),
		                 .generation = 1234,
		                 .backend = string("fake"),
		                 .device_name = string("none"),
		                 .device_uuid = { 1, 2 },
		                 .session = 5,
		                 .limits = { .message_bytes = FA_WIRE_BYTES_MAX,
		                             .buffers = 100,
		                             .buffer_bytes = 1 << 30,
		                             .streams = 8,
		                             .requests = 64 } },
	};
}

struct fa_completion_slot *fake_daemon_welcome_with(struct fa_raw *raw,
                                                    const struct fa_wire_message *reply)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	void *page;

	fa_check_eq(fa_memfd_new("page", FA_COMPLETION_PAGE_BYTES, 0, &fd), 0);
	page = mmap(NULL, FA_COMPLETION_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	fa_check(page != MAP_FAILED);
	/* fa_raw_close() unmaps the page. */
	raw->page = page;
	(void)fa_raw_send(raw, reply, &fd, 1);
	return page;
}

struct fa_completion_slot *fake_daemon_welcome(struct fa_raw *raw)
{
	struct fa_wire_message reply;

	if (!fake_daemon_next(raw))
		return NULL;
	fa_check_eq(raw->message.type, FA_WIRE_HELLO);
	reply = fake_daemon_hello_reply(raw->message.id);
	return fake_daemon_welcome_with(raw, &reply);
}

struct fa_completion_slot *fake_daemon_welcome_as(struct fa_raw *raw, uint64_t generation,
                                                  struct fa_wire_secret secret, bool resumed)
{
	struct fa_wire_message reply = fake_daemon_hello_reply(raw->message.id);

	reply.hello_reply.generation = generation;
	reply.hello_reply.secret = secret;
	reply.hello_reply.resumed = resumed;
	return fake_daemon_welcome_with(raw, &reply);
}

bool fake_daemon_next(struct fa_raw *raw)
{
	int r = fa_raw_receive(raw, (int)(fa_test_patience_ns() / FA_NS_PER_MS));

	/* A time-out (the client hangs) is a failure; a closed connection is not. */
	if (r == -EAGAIN)
		fa_test_fail(__FILE__, __LINE__, "the client neither asks nor leaves");
	return r == 1;
}

void fake_daemon_reply(struct fa_raw *raw, uint64_t id, int status, const char *text)
{
	struct fa_wire_message message = { .id = id,
		                           .type = FA_WIRE_REPLY,
		                           .reply = { .status = status, .text = string(text) } };

	(void)fa_raw_send(raw, &message, NULL, 0);
}

void fake_daemon_complete(struct fa_raw *raw, uint32_t stream, uint64_t value, int status,
                          const char *text)
{
	struct fa_wire_message message = { .type = FA_WIRE_COMPLETION,
		                           .completion = { .stream = stream,
		                                           .status = status,
		                                           .value = value,
		                                           .queued_ns = 10,
		                                           .started_ns = 20,
		                                           .finished_ns = 30,
		                                           .text = string(text) } };

	(void)fa_raw_send(raw, &message, NULL, 0);
}

static void finish(struct fa_raw *raw, struct fa_completion_slot *page, uint32_t stream,
                   uint64_t value)
{
	atomic_store_explicit(&page[stream].completed, value, memory_order_release);
	fake_daemon_complete(raw, stream, value, 0, NULL);
}

void fake_daemon_answer(struct fa_raw *raw, struct fa_completion_slot *page)
{
	struct fa_wire_message *request = &raw->message;
	struct fa_wire_message reply = { .id = request->id };
	_fa_cleanup_(fa_close_fdp) int fd = -1;

	switch (request->type) {
	case FA_WIRE_MARKER:
		finish(raw, page, request->marker.stream, request->marker.value);
		break;
	case FA_WIRE_ATTENTION:
		finish(raw, page, request->attention.stream, request->attention.value);
		break;
	case FA_WIRE_SEQUENCE_COPY:
		finish(raw, page, request->sequence_copy.stream, request->sequence_copy.value);
		break;
	case FA_WIRE_SEQUENCE_PAGES:
		finish(raw, page, request->sequence_pages.stream, request->sequence_pages.value);
		break;
	case FA_WIRE_STEP_ATTEND:
		finish(raw, page, request->step_attend.stream, request->step_attend.value);
		break;
	case FA_WIRE_STEP_END:
		finish(raw, page, request->step_end.stream, request->step_end.value);
		break;
	case FA_WIRE_CACHE_CREATE:
	case FA_WIRE_CACHE_FIND:
		reply.type = FA_WIRE_CACHE_REPLY;
		reply.cache_reply = (struct fa_wire_cache_reply){
			.cache = FAKE_DAEMON_CACHE,
			.mode = 1,
			.dtype = FA_WIRE_DTYPE_F16,
			.flags = FA_WIRE_CACHE_V_IN_K,
			.layers = 2,
			.kv_heads = 3,
			.head_dim = 4,
			.head_dim_v = 5,
			.page_tokens = 6,
			.page_bytes = 7,
			.max_pages = 8,
			.used_pages = 9,
			.idle_pages = 10,
			.sequences = 11,
		};
		(void)fa_raw_send(raw, &reply, NULL, 0);
		break;
	case FA_WIRE_SEQUENCE_CREATE:
	case FA_WIRE_SEQUENCE_FIND:
	case FA_WIRE_SEQUENCE_FORK:
	case FA_WIRE_SEQUENCE_SET_NAME:
	case FA_WIRE_SEQUENCE_TRUNCATE:
	case FA_WIRE_SEQUENCE_DROP:
	case FA_WIRE_SEQUENCE_INFO:
	case FA_WIRE_SEQUENCE_PUBLISH:
	case FA_WIRE_SEQUENCE_ATTACH:
		reply.type = FA_WIRE_SEQUENCE_REPLY;
		reply.sequence_reply = (struct fa_wire_sequence_reply){
			.sequence = FAKE_DAEMON_SEQUENCE,
			.cache = FAKE_DAEMON_CACHE,
			.length = 20,
			.planned = 21,
			.first = 16,
			.step = 22,
			.mode = 2,
			.matched = 23,
		};
		(void)fa_raw_send(raw, &reply, NULL, 0);
		break;
	case FA_WIRE_PREFIX_FIND:
		reply.type = FA_WIRE_PREFIX_REPLY;
		reply.prefix_reply.cache = request->prefix_find.cache;
		reply.prefix_reply.tokens = 24;
		(void)fa_raw_send(raw, &reply, NULL, 0);
		break;
	case FA_WIRE_STEP_BEGIN:
		reply.type = FA_WIRE_STEP_REPLY;
		reply.step_reply.step = request->step_begin.step;
		reply.step_reply.number = FAKE_DAEMON_STEP;
		(void)fa_raw_send(raw, &reply, NULL, 0);
		break;
	case FA_WIRE_BUFFER_REGISTER:
		reply.type = FA_WIRE_BUFFER_REPLY;
		reply.buffer_reply.buffer = request->buffer_register.buffer;
		reply.buffer_reply.bytes = request->buffer_register.bytes;
		if (request->buffer_register.kind == FA_WIRE_BUFFER_ARENA) {
			fa_check_eq(fa_memfd_new("arena", request->buffer_register.bytes, 1, &fd),
			            0);
			reply.fds = 1;
		}
		(void)fa_raw_send(raw, &reply, &fd, reply.fds);
		break;
	case FA_WIRE_STATUS:
		fa_check_eq(fa_memfd_new("status", 2, 0, &fd), 0);
		fa_check_eq(pwrite(fd, "{}", 2, 0), 2);
		reply.type = FA_WIRE_STATUS_REPLY;
		reply.fds = 1;
		reply.status_reply.bytes = 2;
		(void)fa_raw_send(raw, &reply, &fd, 1);
		break;
	default:
		fake_daemon_reply(raw, request->id, 0, NULL);
		break;
	}
}

void fake_daemon_serve(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);

	while (page && fake_daemon_next(raw))
		fake_daemon_answer(raw, page);
}
