/* Client buffers on a real daemon: read, written, imported, refused, and freed in use. */
#include "client/faclient.h"
#include "common/cleanup.h"
#include "common/memfd.h"
#include "tests/client/attention-request.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGE 4096

static struct fa_test_daemon fad;
static struct fa_client *client;

static int setup(void **state)
{
	static const struct fa_test_daemon_options limited = {
		.config = "[limits]\nbuffers = 40\nsession_buffers = 20\nbuffer_bytes = 67108864\n"
	};
	struct fa_options options = { .size = sizeof(options) };

	fa_test_daemon_start(&fad, &limited);
	options.socket = fad.socket;
	options.connect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	return 0;
}

static int teardown(void **state)
{
	fa_disconnect(client);
	fa_test_daemon_stop(&fad);
	return 0;
}

static void check(int r)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
}

static void check_use(struct fa_buffer *buffer)
{
	struct fa_case small = { .seqlen_q = 8, .head_dim = 8 };
	struct fa_attention request;

	fa_case_plan(&small);
	fa_check(small.bytes <= fa_buffer_bytes(buffer));
	fa_case_fill(&small, fa_buffer_data(buffer));
	request = fa_case_attention(&small, buffer);
	check(fa_attention(client, &request, NULL));
	fa_check(fa_case_error(&small, fa_buffer_data(buffer)) <= 1);
}

static void test_new(void **state)
{
	const uint32_t flags[] = { 0, FA_BUFFER_DEVICE };
	int before;

	/* The first request opens the ring's descriptors. */
	check(fa_marker(client, 0, NULL, NULL));
	before = fa_test_count_fds(0);
	for (size_t i = 0; i < 2; ++i) {
		struct fa_buffer *buffer;
		const unsigned char *data;

		check(fa_buffer_new(client, 3 * PAGE + 1, flags[i], &buffer));
		data = fa_buffer_data(buffer);
		fa_check_eq(fa_buffer_bytes(buffer), 3 * PAGE + 1);
		fa_check_eq((uintptr_t)data % PAGE, 0);
		for (size_t k = 0; k < fa_buffer_bytes(buffer); ++k)
			fa_check_eq(data[k], 0);
		check_use(buffer);
		assert_null(fa_buffer_free(buffer));
	}
	assert_null(fa_buffer_free(NULL));
	fa_check_eq(fa_test_count_fds(0), before);
}

static void test_read_only(void **state)
{
	struct fa_case small = { .seqlen_q = 8, .head_dim = 8 };
	struct fa_buffer *inputs, *outputs;
	struct fa_attention request;

	check(fa_buffer_new(client, 4 * PAGE, FA_BUFFER_READ_ONLY, &inputs));
	check(fa_buffer_new(client, 4 * PAGE, 0, &outputs));
	fa_case_plan(&small);
	fa_check(small.bytes <= 4 * PAGE);
	fa_case_fill(&small, fa_buffer_data(inputs));
	request = fa_case_attention(&small, inputs);
	fa_check_eq(fa_attention(client, &request, NULL), -EINVAL);
	request.out.buffer = outputs;
	check(fa_attention(client, &request, NULL));
	memcpy((char *)fa_buffer_data(inputs) + small.offset_out,
	       (char *)fa_buffer_data(outputs) + small.offset_out, small.bytes - small.offset_out);
	fa_check(fa_case_error(&small, fa_buffer_data(inputs)) <= 1);
	fa_buffer_free(inputs);
	fa_buffer_free(outputs);
}

static void test_import(void **state)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	int before = fa_test_count_fds(0);
	struct fa_buffer *whole, *part;
	char *data;

	fa_check_eq(fa_memfd_new("imported", 8 * PAGE, 0, &fd), 0);
	data = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	fa_check(data != MAP_FAILED);
	check(fa_buffer_import_fd(client, fd, 0, 8 * PAGE, 0, &whole));
	check(fa_buffer_import_fd(client, fd, 4 * PAGE, 2 * PAGE, 0, &part));
	fa_close_fdp(&fd);
	strcpy(data + 4 * PAGE, "the same memory");
	fa_check_contains((char *)fa_buffer_data(part), "the same memory");
	fa_check_contains((char *)fa_buffer_data(whole) + 4 * PAGE, "the same memory");
	check_use(whole);
	check_use(part);
	fa_buffer_free(whole);
	fa_buffer_free(part);
	munmap(data, 8 * PAGE);
	fa_check_eq(fa_test_count_fds(0), before);
}

static void test_import_fixed(void **state)
{
	int fd = memfd_create("fixed", MFD_CLOEXEC | MFD_ALLOW_SEALING), read_fd;
	struct fa_buffer *buffer;
	char path[64];
	int r;

	fa_check(!ftruncate(fd, PAGE));
	fa_check(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	read_fd = open(path, O_RDONLY | O_CLOEXEC);
	fa_check(read_fd >= 0);
	fa_check_eq(fa_buffer_import_fd(client, read_fd, 0, PAGE, 0, &buffer), -EINVAL);
	fa_check_contains(fa_error(), "FA_BUFFER_READ_ONLY");
	r = fa_buffer_import_fd(client, read_fd, 0, PAGE, FA_BUFFER_READ_ONLY, &buffer);
	/* Some Vulkan drivers pin all pages for writing. */
	if (r == -ENOTSUP && fa_test_is_vulkan()) {
		fa_check_contains(fa_error(), "open for writing, or has F_SEAL_WRITE");
	} else {
		check(r);
		fa_buffer_free(buffer);
	}

	fa_check(!fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
	fa_check_eq(fa_buffer_import_fd(client, fd, 0, PAGE, 0, &buffer), -EINVAL);
	check(fa_buffer_import_fd(client, fd, 0, PAGE, FA_BUFFER_READ_ONLY, &buffer));
	fa_buffer_free(buffer);
	close(read_fd);
	close(fd);
}

static void test_refused(void **state)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	_fa_cleanup_(fa_close_fdp) int open_fd = -1;
	_fa_cleanup_(fa_close_fdp) int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct fa_buffer *buffer = NULL;

	fa_check_eq(fa_memfd_new("short", 2 * PAGE, 0, &fd), 0);
	open_fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	fa_check(!ftruncate(open_fd, PAGE));

	fa_check_eq(fa_buffer_new(client, 0, 0, &buffer), -EINVAL);
	fa_check_eq(fa_buffer_new(client, UINT64_MAX, 0, &buffer), -EINVAL);
	fa_check_eq(fa_buffer_new(client, PAGE, 1u << 9, &buffer), -EINVAL);
	fa_check_contains(fa_error(), "flags");
	fa_check_eq(fa_buffer_new(client, PAGE, 0, NULL), -EINVAL);
	fa_check_eq(fa_buffer_new(NULL, PAGE, 0, &buffer), -EINVAL);
	fa_check_eq(fa_buffer_import_fd(client, null, 0, PAGE, 0, &buffer), -EINVAL);
	fa_check_contains(fa_error(), "memfd");
	fa_check(fa_buffer_import_fd(client, -1, 0, PAGE, 0, &buffer) < 0);
	fa_check_eq(fa_buffer_import_fd(client, open_fd, 0, PAGE, 0, &buffer), -EINVAL);
	fa_check_contains(fa_error(), "F_SEAL_SHRINK");
	fa_check_eq(fa_buffer_import_fd(client, fd, 0, 3 * PAGE, 0, &buffer), -EINVAL);
	fa_check_contains(fa_error(), "outside");
	fa_check_eq(fa_buffer_import_fd(client, fd, 100, PAGE, 0, &buffer), -EINVAL);
	fa_check_contains(fa_error(), "page size");
	fa_check_eq(fa_buffer_import_fd(client, fd, PAGE, UINT64_MAX, 0, &buffer), -EINVAL);
	fa_check_eq(fa_buffer_import_fd(client, fd, 0, PAGE, FA_BUFFER_DEVICE, &buffer), -EINVAL);
	fa_check(!buffer);
	fa_check_eq(fa_ping(client), 0);
}

static void test_quota(void **state)
{
	struct fa_buffer *buffers[20], *extra = NULL;
	struct fa_info info = { .size = sizeof(info) };

	check(fa_info(client, &info));
	fa_check_eq(info.max_buffers, 20);
	fa_check_eq(info.max_buffer_bytes, 64 << 20);
	for (int i = 0; i < 20; ++i)
		check(fa_buffer_new(client, PAGE, i % 2 ? FA_BUFFER_DEVICE : 0, &buffers[i]));
	fa_check_eq(fa_buffer_new(client, PAGE, 0, &extra), -EDQUOT);
	fa_check(*fa_error());
	fa_check_eq(fa_buffer_new(client, PAGE, FA_BUFFER_DEVICE, &extra), -EDQUOT);
	for (int i = 0; i < 20; ++i)
		fa_buffer_free(buffers[i]);
	fa_check_eq(fa_buffer_new(client, 256 << 20, 0, &extra), -EDQUOT);
	fa_check_eq(fa_buffer_new(client, 256 << 20, FA_BUFFER_DEVICE, &extra), -EDQUOT);
	fa_check(!extra);
	check(fa_buffer_new(client, 32 << 20, 0, &extra));
	fa_buffer_free(extra);
}

/* The client cannot use a freed buffer, but the daemon's request still finishes. */
static void test_freed_in_use(void **state)
{
	struct fa_case large = { .heads = 4, .seqlen_q = 2048, .head_dim = 128 };
	struct fa_attention request;
	struct fa_buffer *buffer;
	struct fa_ticket ticket;

	fa_case_plan(&large);
	check(fa_buffer_new(client, large.bytes, 0, &buffer));
	request = fa_case_attention(&large, buffer);
	check(fa_attention(client, &request, &ticket));
	fa_buffer_free(buffer);
	check(fa_wait(client, &ticket, UINT64_MAX, NULL));
	fa_check_eq(fa_ping(client), 0);
}

static void test_sizes(void **state)
{
	const int64_t shape[] = { 2, 3, 4, 5 }, huge[] = { INT64_MAX, 2 }, negative[] = { 2, -3 };

	fa_check_eq(fa_dtype_bytes(FA_F32), 4);
	fa_check_eq(fa_dtype_bytes(FA_F16), 2);
	fa_check_eq(fa_dtype_bytes(FA_BF16), 2);
	fa_check_eq(fa_dtype_bytes(77), 0);
	fa_check_eq(fa_tensor_bytes(FA_F32, 4, shape), 480);
	fa_check_eq(fa_tensor_bytes(FA_BF16, 2, shape), 12);
	fa_check_eq(fa_tensor_bytes(FA_F32, 2, huge), 0);
	fa_check_eq(fa_tensor_bytes(FA_F32, 2, negative), 0);
	fa_check_eq(fa_tensor_bytes(77, 4, shape), 0);
	fa_check_eq(fa_tensor_bytes(FA_F32, 5, shape), 0);
}

/* A tensor is found by its address, in whatever buffer. */
static void test_pointer(void **state)
{
	const int64_t shape[] = { 2, 3, 4 }, strides[] = { 24, 8, 1 };
	struct fa_buffer *buffers[3];
	struct fa_tensor tensor = {};
	char *data;
	int local;

	for (size_t i = 0; i < 3; ++i)
		check(fa_buffer_new(client, PAGE + 1, 0, &buffers[i]));
	for (size_t i = 0; i < 3; ++i) {
		data = fa_buffer_data(buffers[i]);
		check(fa_tensor_from_pointer(client, data + 64, FA_F16, 3, shape, NULL, &tensor));
		fa_check(tensor.buffer == buffers[i]);
		fa_check_eq(tensor.offset, 64);
		fa_check_eq(tensor.dtype, FA_F16);
		fa_check_eq(tensor.rank, 3);
		fa_check(!memcmp(tensor.shape, shape, sizeof(shape)));
		fa_check_eq(tensor.strides[0], 0);
		check(fa_tensor_from_pointer(client, data, FA_F32, 3, shape, strides, &tensor));
		fa_check_eq(tensor.offset, 0);
		fa_check(!memcmp(tensor.strides, strides, sizeof(strides)));
	}
	fa_check_eq(fa_tensor_from_pointer(client, &local, FA_F32, 3, shape, NULL, &tensor),
	            -EINVAL);
	fa_check_contains(fa_error(), "fa_buffer_new()");
	fa_check_eq(fa_tensor_from_pointer(client, NULL, FA_F32, 3, shape, NULL, &tensor), -EINVAL);
	fa_check_eq(fa_tensor_from_pointer(client, data, FA_F32, 5, shape, NULL, &tensor), -EINVAL);
	fa_check_eq(fa_tensor_from_pointer(client, data, FA_F32, 1, NULL, NULL, &tensor), -EINVAL);
	fa_check_eq(fa_tensor_from_pointer(client, data, FA_F32, 3, shape, NULL, NULL), -EINVAL);
	fa_check_eq(fa_tensor_from_pointer(NULL, data, FA_F32, 3, shape, NULL, &tensor), -EINVAL);
	fa_check(tensor.buffer == buffers[2]);
	fa_check_eq(
		fa_tensor_from_pointer(client, data + PAGE + 1, FA_F32, 3, shape, NULL, &tensor),
		-EINVAL);
	for (size_t i = 0; i < 3; ++i)
		fa_buffer_free(buffers[i]);
	fa_check_eq(fa_tensor_from_pointer(client, data, FA_F32, 3, shape, NULL, &tensor), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_new),          cmocka_unit_test(test_read_only),
		cmocka_unit_test(test_import),       cmocka_unit_test(test_import_fixed),
		cmocka_unit_test(test_refused),      cmocka_unit_test(test_quota),
		cmocka_unit_test(test_freed_in_use), cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_pointer),
	};

	return cmocka_run_group_tests_name("buffers", tests, setup, teardown);
}
