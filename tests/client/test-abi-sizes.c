/*
 * Structs of older and newer callers. The library extends shorter structs by zeros, accepts longer
 * ones whose rest is zero, and writes nothing beyond the caller's size.
 */
#include "client/faclient.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define POISON 0x5a
#define EXTRA 64

static struct fake_daemon fake;
static struct fa_client *client;

static int setup(void **state)
{
	struct fa_options options = { .size = sizeof(options) };

	fake_daemon_start(&fake, fake_daemon_serve, NULL);
	options.socket = fake.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	return 0;
}

static int teardown(void **state)
{
	fa_disconnect(client);
	fake_daemon_stop(&fake);
	return 0;
}

/* Allocates exactly @size, so that sanitizers see overruns. */
static void *copy_of(const void *from, size_t known, size_t size)
{
	void *copy = malloc(size);

	fa_check(copy);
	memset(copy, 0, size);
	memcpy(copy, from, size < known ? size : known);
	*(uint32_t *)copy = (uint32_t)size;
	return copy;
}

static void test_options(void **state)
{
	struct fa_options options = { .size = sizeof(options) };
	struct fa_client *other;
	struct fake_daemon second;
	unsigned char *copy;

	fake_daemon_start(&second, fake_daemon_serve, NULL);
	options.socket = second.socket;
	copy = copy_of(&options, sizeof(options), offsetof(struct fa_options, name));
	fa_check_eq(fa_connect((void *)copy, &other), 0);
	fa_disconnect(other);
	free(copy);

	copy = copy_of(&options, sizeof(options), sizeof(options) + EXTRA);
	fa_check_eq(fa_connect((void *)copy, &other), 0);
	fa_disconnect(other);
	copy[sizeof(options) + EXTRA - 1] = 1;
	fa_check_eq(fa_connect((void *)copy, &other), -E2BIG);
	fa_check_contains(fa_error(), "fa_options");
	free(copy);

	options.size = 0;
	fa_check_eq(fa_connect(&options, &other), -EINVAL);
	fa_check_contains(fa_error(), "fa_options.size");
	options.size = sizeof(options);
	options.flags = 1u << 31;
	fa_check_eq(fa_connect(&options, &other), -EINVAL);
	fa_check_contains(fa_error(), "flags");
	fake_daemon_stop(&second);
}

static void test_attention(void **state)
{
	const int64_t shape[] = { 1, 4, 1, 8 };
	struct fa_attention attention = { .size = sizeof(attention) };
	struct fa_buffer *buffer;
	unsigned char *copy;

	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	fa_tensor_init(&attention.q, buffer, 0, FA_F32, 4, shape);
	attention.k = attention.v = attention.out = attention.q;
	attention.out.offset = 2048;
	fa_check_eq(fa_attention(client, &attention, NULL), 0);

	copy = copy_of(&attention, sizeof(attention), offsetof(struct fa_attention, timeout_ns));
	fa_check_eq(fa_attention(client, (void *)copy, NULL), 0);
	free(copy);
	copy = copy_of(&attention, sizeof(attention), offsetof(struct fa_attention, lse));
	fa_check_eq(fa_attention(client, (void *)copy, NULL), 0);
	free(copy);

	copy = copy_of(&attention, sizeof(attention), sizeof(attention) + EXTRA);
	fa_check_eq(fa_attention(client, (void *)copy, NULL), 0);
	copy[sizeof(attention)] = 1;
	fa_check_eq(fa_attention(client, (void *)copy, NULL), -E2BIG);
	fa_check_contains(fa_error(), "fa_attention");
	free(copy);

	attention.size = 4;
	fa_check_eq(fa_attention(client, &attention, NULL), -EINVAL);
	fa_check_contains(fa_error(), "fa_attention.size");
	fa_check_eq(fa_attention(client, NULL, NULL), -EINVAL);
	fa_buffer_free(buffer);
}

/* Only @size bytes of @memory may be written, with zeros after @known. */
static void check_out(const unsigned char *memory, size_t size, size_t known, size_t room)
{
	fa_check_eq(*(const uint32_t *)memory, size);
	for (size_t i = known; i < size; ++i)
		fa_check_eq(memory[i], 0);
	for (size_t i = size; i < room; ++i)
		fa_check_eq(memory[i], POISON);
}

static void test_info(void **state)
{
	const size_t known = sizeof(struct fa_info), room = known + EXTRA;
	unsigned char memory[sizeof(struct fa_info) + EXTRA];
	const size_t sizes[] = { offsetof(struct fa_info, generation), known, known + EXTRA / 2 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); ++i) {
		struct fa_info *info = (void *)memory;

		memset(memory, POISON, room);
		info->size = (uint32_t)sizes[i];
		fa_check_eq(fa_info(client, info), 0);
		check_out(memory, sizes[i], known, room);
		assert_string_equal(info->backend, "fake");
	}
	((struct fa_info *)memory)->size = 0;
	fa_check_eq(fa_info(client, (void *)memory), -EINVAL);
	fa_check_contains(fa_error(), "fa_info.size");
	fa_check_eq(fa_info(client, NULL), -EINVAL);
}

static void test_completion(void **state)
{
	const size_t known = sizeof(struct fa_completion), room = known + EXTRA;
	unsigned char memory[sizeof(struct fa_completion) + EXTRA];
	const size_t sizes[] = { 8, known, known + EXTRA / 2 };
	const int64_t shape[] = { 1, 4, 1, 8 };
	struct fa_attention attention = { .size = sizeof(attention) };
	struct fa_buffer *buffer;
	struct fa_ticket ticket;

	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	fa_tensor_init(&attention.q, buffer, 0, FA_F32, 4, shape);
	attention.k = attention.v = attention.out = attention.q;
	attention.out.offset = 2048;
	fa_check_eq(fa_attention(client, &attention, &ticket), 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); ++i) {
		struct fa_completion *completion = (void *)memory;

		memset(memory, POISON, room);
		completion->size = (uint32_t)sizes[i];
		fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, completion), 0);
		check_out(memory, sizes[i], known, room);
		fa_check_eq(completion->status, 0);
	}
	((struct fa_completion *)memory)->size = 7;
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, (void *)memory), -EINVAL);
	fa_check_contains(fa_error(), "fa_completion.size");
	fa_buffer_free(buffer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_attention),
		cmocka_unit_test(test_info),
		cmocka_unit_test(test_completion),
	};

	return cmocka_run_group_tests_name("abi-sizes", tests, setup, teardown);
}
