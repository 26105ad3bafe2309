/* Memory that must not be mapped, and unannounced descriptors: the daemon keeps none. */
#include "common/cleanup.h"
#include "common/memfd.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static struct fa_scene scene;
static struct fa_raw raw;

static int setup(void **state)
{
	fa_scene_start(&scene, NULL);
	return 0;
}

static int teardown(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

static int open_client(void **state)
{
	fa_raw_open(&raw, scene.daemon.socket);
	return 0;
}

static int close_client(void **state)
{
	fa_raw_close(&raw);
	fa_scene_check(&scene);
	return 0;
}

static int memfd(uint64_t bytes, unsigned int flags, int seals)
{
	int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);

	fa_check(fd >= 0);
	fa_check(!ftruncate(fd, (off_t)bytes));
	if (seals)
		fa_check(!fcntl(fd, F_ADD_SEALS, seals));
	return fd;
}

static void expect_refused_message(int fd, struct fa_wire_message message, int status,
                                   const char *part)
{
	fa_raw_call_expect(&raw, &message, &fd, fd >= 0, status, part);
	if (fd >= 0)
		close(fd);
	fa_raw_ping(&raw);
}

static void expect_refused(int fd, uint64_t bytes, int status, const char *part)
{
	expect_refused_message(fd, fa_raw_register_message(2, bytes), status, part);
}

static void test_seals(void **state)
{
	struct fa_wire_message message = fa_raw_register_message(2, 4096);
	int fd = memfd(4096, 0, 0);

	/* The memfd may grow and be sealed further, but needs F_SEAL_SHRINK. */
	fa_raw_call_expect(&raw, &message, &fd, 1, -EINVAL, "F_SEAL_SHRINK");
	fa_check(!fcntl(fd, F_ADD_SEALS, F_SEAL_GROW));
	fa_raw_call_expect(&raw, &message, &fd, 1, -EINVAL, "F_SEAL_SHRINK");
	fa_check(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	fa_raw_call(&raw, &message, &fd, 1);
	fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	close(fd);
	message = fa_raw_message(FA_WIRE_BUFFER_FREE);
	message.buffer_free.buffer = 2;
	fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);

	fd = memfd_create("unsealable", MFD_CLOEXEC);
	fa_check(fd >= 0 && !ftruncate(fd, 4096));
	expect_refused(fd, 4096, -EINVAL, "F_SEAL_SHRINK");
}

/* Vulkan drivers that pin pages for writing cannot import what others may write and the daemon may not. */
static bool is_refused_by_driver(void)
{
	return raw.message.type == FA_WIRE_REPLY && raw.message.reply.status == -ENOTSUP &&
	       strstr(raw.message.reply.text.text, "this Vulkan driver cannot import");
}

static void test_write_sealed(void **state)
{
	static const int seals[] = { F_SEAL_WRITE, F_SEAL_FUTURE_WRITE };

	for (int i = 0; i < 2; ++i) {
		struct fa_wire_message message = fa_raw_register_message(2, 8192);
		struct fa_raw_buffer out;
		int fd = memfd(8192, 0, F_SEAL_SHRINK | seals[i]);
		struct fa_case attention = { .head_dim = 8, .seqlen_q = 4 };
		struct fa_wire_message request;

		fa_raw_call_expect(&raw, &message, &fd, 1, -EINVAL, "READ_ONLY");
		message.buffer_register.flags = FA_WIRE_BUFFER_READ_ONLY;
		fa_raw_call(&raw, &message, &fd, 1);
		if (seals[i] == F_SEAL_FUTURE_WRITE && is_refused_by_driver()) {
			close(fd);
			continue;
		}
		fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);

		fa_case_plan(&attention);
		fa_raw_buffer_register(&raw, &out, 3, attention.bytes, 0);
		request = fa_case_message(&attention, 2, 0, 0, (uint64_t)i * 2 + 1);
		fa_check_eq(fa_raw_send(&raw, &request, NULL, 0), 0);
		fa_raw_wait_expect(&raw, 0, (uint64_t)i * 2 + 1, -EINVAL, "read-only");
		request.attention.value++;
		request.attention.out.buffer = 3;
		fa_check_eq(fa_raw_send(&raw, &request, NULL, 0), 0);
		fa_raw_wait_expect(&raw, 0, (uint64_t)i * 2 + 2, 0, NULL);
		fa_raw_buffer_free(&raw, &out);
		message = fa_raw_message(FA_WIRE_BUFFER_FREE);
		message.buffer_free.buffer = 2;
		fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
		close(fd);
	}
}

static void test_read_only_descriptor(void **state)
{
	struct fa_wire_message message = fa_raw_register_message(2, 4096);
	int fd = memfd(4096, 0, F_SEAL_SHRINK);
	char path[64];
	int readable;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	readable = open(path, O_RDONLY | O_CLOEXEC);
	fa_check(readable >= 0);
	close(fd);
	fa_raw_call_expect(&raw, &message, &readable, 1, -EACCES, "for writing");
	message.buffer_register.flags = FA_WIRE_BUFFER_READ_ONLY;
	fa_raw_call(&raw, &message, &readable, 1);
	if (!is_refused_by_driver())
		fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	close(readable);
}

static void test_sizes(void **state)
{
	struct fa_wire_message message;

	expect_refused(memfd(4096, 0, F_SEAL_SHRINK), 4097, -EINVAL, "4096");
	expect_refused(memfd(4096, 0, F_SEAL_SHRINK), 8192, -EINVAL, "4096");
	expect_refused(memfd(0, 0, F_SEAL_SHRINK), 1, -EINVAL, "0 bytes");
	expect_refused(memfd(4096, 0, F_SEAL_SHRINK), 0, -EINVAL, "bytes");
	message = fa_raw_register_message(2, 1ull << 62);
	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	fa_raw_call(&raw, &message, NULL, 0);
	fa_check_eq(raw.message.type, FA_WIRE_REPLY);
	fa_check(raw.message.reply.status == -EDQUOT || raw.message.reply.status == -EINVAL);
	fa_check(raw.message.reply.text.length);
	message.buffer_register.bytes = UINT64_MAX;
	fa_raw_call(&raw, &message, NULL, 0);
	fa_check_eq(raw.message.type, FA_WIRE_REPLY);
	fa_check(raw.message.reply.status == -EDQUOT || raw.message.reply.status == -EINVAL);
	message.buffer_register.bytes = 0;
	expect_refused_message(-1, message, -EINVAL, "bytes");
	message.buffer_register.bytes = 4096;
	message.buffer_register.offset = 4096;
	expect_refused_message(-1, message, -EINVAL, "offset");

	message = fa_raw_register_message(2, 4096);
	message.buffer_register.offset = 1;
	expect_refused_message(memfd(8192, 0, F_SEAL_SHRINK), message, -EINVAL, "offset 1");
	message.buffer_register.offset = 8192;
	expect_refused_message(memfd(8192, 0, F_SEAL_SHRINK), message, -EINVAL, "8192");
	message.buffer_register.offset = UINT64_MAX & ~4095ull;
	expect_refused_message(memfd(8192, 0, F_SEAL_SHRINK), message, -EINVAL, "offset");
	message.buffer_register.offset = 1ull << 63;
	expect_refused_message(memfd(8192, 0, F_SEAL_SHRINK), message, -EINVAL, "offset");
}

static void test_fields(void **state)
{
	struct fa_wire_message message = fa_raw_register_message(0, 4096);

	expect_refused_message(memfd(4096, 0, F_SEAL_SHRINK), message, -EINVAL, "0");
	message = fa_raw_register_message(2, 4096);
	message.buffer_register.kind = 0;
	expect_refused_message(-1, message, -ENOTSUP, "kind 0");
	message.buffer_register.kind = 9;
	expect_refused_message(-1, message, -ENOTSUP, "kind 9");
	message.buffer_register.kind = FA_WIRE_BUFFER_HOST_FD;
	message.buffer_register.flags = 6;
	expect_refused_message(memfd(4096, 0, F_SEAL_SHRINK), message, -ENOTSUP, "flags");

	message = fa_raw_register_message(5, 4096);
	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	fa_raw_call(&raw, &message, NULL, 0);
	fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	expect_refused_message(-1, message, -EEXIST, "5");
	message.buffer_register.kind = FA_WIRE_BUFFER_HOST_FD;
	expect_refused_message(memfd(4096, 0, F_SEAL_SHRINK), message, -EEXIST, "5");

	message = fa_raw_message(FA_WIRE_BUFFER_FREE);
	message.buffer_free.buffer = 6;
	fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, "buffer 6");
	message.buffer_free.buffer = 0;
	fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, "buffer 0");
}

static void test_not_memfds(void **state)
{
	static const char *const paths[] = { "/dev/zero", "/dev/null", "/", "/proc/self/mem",
		                             "/proc/self/maps" };
	int fds[2];

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); ++i)
		expect_refused(open(paths[i], O_RDONLY | O_CLOEXEC), 4096, -EINVAL, "memfd");
	fa_check(!pipe2(fds, O_CLOEXEC));
	expect_refused(fds[0], 4096, -EINVAL, "memfd");
	expect_refused(fds[1], 4096, -EINVAL, "memfd");
	fa_check(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	expect_refused(fds[0], 4096, -EINVAL, "memfd");
	close(fds[1]);
	/* The daemon's end of this connection and its completion page cannot be registered. */
	expect_refused(dup(raw.fd), 4096, -EINVAL, "memfd");
	expect_refused(open("/tmp", O_PATH | O_CLOEXEC), 4096, -EINVAL, "memfd");
	{
		FILE *file = tmpfile();

		fa_check(file);
		fa_check(!ftruncate(fileno(file), 4096));
		expect_refused(dup(fileno(file)), 4096, -EINVAL, "");
		fclose(file);
	}
}

static void test_hugetlb(void **state)
{
	int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);

	if (fd < 0 || ftruncate(fd, 2 << 20) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0) {
		if (fd >= 0)
			close(fd);
		print_message("no huge pages here\n");
		skip();
	}
	expect_refused(fd, 2 << 20, -ENOTSUP, "huge");
}

static void expect_closed(struct fa_wire_message message, uint8_t announced, int n_fds)
{
	int fds[253] = { 0 };

	for (int i = 0; i < n_fds; ++i)
		fds[i] = i % 2 ? memfd(4096, 0, F_SEAL_SHRINK) : dup(0);
	message.id = 50;
	message.fds = announced;
	fa_check_eq(fa_raw_send(&raw, &message, fds, (size_t)n_fds), 0);
	for (int i = 0; i < n_fds; ++i)
		close(fds[i]);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.type, FA_WIRE_REPLY);
	fa_check_eq(raw.message.reply.status, -EPROTO);
	fa_check_contains(raw.message.reply.text.text, "descriptor");
	fa_raw_expect_end(&raw);
	fa_raw_close(&raw);
	fa_raw_open(&raw, scene.daemon.socket);
}

static void test_wrong_counts(void **state)
{
	struct fa_wire_message message = fa_raw_register_message(2, 4096);
	struct fa_wire_message ping = fa_raw_message(FA_WIRE_PING);

	expect_closed(message, 0, 1);
	expect_closed(message, 1, 0);
	expect_closed(message, 1, 2);
	expect_closed(message, 2, 1);
	expect_closed(message, 8, 7);
	expect_closed(message, 255, 8);
	expect_closed(message, 9, 9);
	expect_closed(message, 1, 200);
	expect_closed(message, 200, 200);
	expect_closed(message, 253, 253);
	expect_closed(ping, 0, 1);
	expect_closed(ping, 0, 8);
	expect_closed(ping, 3, 0);

	for (int i = 0; i < 2; ++i) {
		static unsigned char bytes[70000];
		int fds[8];

		for (int j = 0; j < 8; ++j)
			fds[j] = memfd(4096, 0, 0);
		fa_check_eq(fa_raw_send_bytes(&raw, bytes, i ? 70000 : 100, fds, 8, 0), 0);
		for (int j = 0; j < 8; ++j)
			close(fds[j]);
		fa_raw_expect_reply(&raw, 0, -EPROTO, NULL, true);
		fa_raw_close(&raw);
		fa_raw_open(&raw, scene.daemon.socket);
	}

	for (int i = 0; i < 5; ++i) {
		int fd = memfd(4096, 0, F_SEAL_SHRINK);

		for (int j = 0; j < 20; ++j)
			if (fa_raw_send_bytes(&raw, j ? "behind" : "garbage", 6, &fd, j > 0, 0) < 0)
				break;
		close(fd);
		fa_raw_expect_reply(&raw, 0, -EPROTO, NULL, true);
		fa_raw_close(&raw);
		fa_raw_open(&raw, scene.daemon.socket);
	}

	{
		int fd = memfd(4096, 0, 0);

		fa_check_eq(fa_raw_send_bytes(&raw, "", 0, &fd, 1, 0), 0);
		close(fd);
		fa_raw_expect_end(&raw);
		fa_raw_close(&raw);
		fa_raw_open(&raw, scene.daemon.socket);
	}
}

static void test_unwanted(void **state)
{
	struct fa_wire_message message;
	int fds[8];

	for (int i = 0; i < 8; ++i)
		fds[i] = memfd(4096, 0, F_SEAL_SHRINK);

	message = fa_raw_register_message(2, 4096);
	fa_raw_call_expect(&raw, &message, NULL, 0, -EINVAL, "descriptor");
	fa_raw_call_expect(&raw, &message, fds, 2, -EINVAL, "descriptor");
	fa_raw_call_expect(&raw, &message, fds, 8, -EINVAL, "descriptor");
	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	fa_raw_call_expect(&raw, &message, fds, 1, -EINVAL, "descriptor");
	message = fa_raw_message(FA_WIRE_PING);
	fa_raw_call_expect(&raw, &message, fds, 1, -EINVAL, "descriptor");
	message = fa_raw_message(FA_WIRE_STATUS);
	fa_raw_call_expect(&raw, &message, fds, 3, -EINVAL, "descriptor");
	message = fa_raw_message(FA_WIRE_CANCEL);
	fa_raw_call_expect(&raw, &message, fds, 8, -EINVAL, "descriptor");
	message = fa_case_message(&scene.attention, 1, 0, 0, 1);
	message.fds = 1;
	fa_check_eq(fa_raw_send(&raw, &message, fds, 1), 0);
	fa_raw_wait_expect(&raw, 0, 1, -EINVAL, "descriptor");
	fa_raw_ping(&raw);
	for (int i = 0; i < 8; ++i)
		close(fds[i]);
}

/* Sockets that hold descriptors: a cycle that only the kernel's garbage collector breaks. */
static void test_circle(void **state)
{
	struct fa_wire_message message = fa_raw_register_message(2, 4096);

	for (int i = 0; i < 50; ++i) {
		int fd = dup(raw.fd);

		fa_raw_call_expect(&raw, &message, &fd, 1, -EINVAL, "memfd");
		close(fd);
	}
}

#define test(function) cmocka_unit_test_setup_teardown(function, open_client, close_client)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_seals),   test(test_write_sealed), test(test_read_only_descriptor),
		test(test_sizes),   test(test_fields),       test(test_not_memfds),
		test(test_hugetlb), test(test_wrong_counts), test(test_unwanted),
		test(test_circle),
	};

	return cmocka_run_group_tests_name("hostile buffers", tests, setup, teardown);
}
