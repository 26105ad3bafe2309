/*
 * What the calls about caches and sequences send, how they read replies, and which arguments they
 * refuse.
 */
#include "tests/client/kv-calls.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_cache(void **state)
{
	struct fa_cache_options options = {
		.size = sizeof(options),
		.flags = FA_CACHE_V_IN_K,
		.name = "llama",
		.mode = FA_MODE_READ_ALL | FA_MODE_APPEND_UID | FA_MODE_FORK_ALL,
		.dtype = FA_BF16,
		.layers = 32,
		.kv_heads = 8,
		.head_dim = 128,
		.head_dim_v = 64,
		.page_tokens = 32,
		.max_pages = 1000,
		.ttl_ns = 77,
	};
	const float k_scales[6] = { 1, 2, 3, 4, 5, 6 }, v_scales[6] = { 7, 8, 9, 10, 11, 12 };
	struct fa_cache_info info = { .size = sizeof(info) };
	uint64_t cache = 0;

	fa_check_eq(fa_cache_create(client, &options, &cache), 0);
	fa_check_eq(cache, FAKE_DAEMON_CACHE);
	fa_check_eq(heard()->last.type, FA_WIRE_CACHE_CREATE);
	check_string(heard()->last.cache_create.name, "llama");
	fa_check_eq(heard()->last.cache_create.mode, 2 | 1 << 2 | 2 << 4);
	fa_check_eq(heard()->last.cache_create.ttl_ns, 77);
	fa_check_eq(heard()->last.cache_create.dtype, FA_WIRE_DTYPE_BF16);
	fa_check_eq(heard()->last.cache_create.flags, FA_WIRE_CACHE_V_IN_K);
	fa_check_eq(heard()->last.cache_create.layers, 32);
	fa_check_eq(heard()->last.cache_create.kv_heads, 8);
	fa_check_eq(heard()->last.cache_create.head_dim, 128);
	fa_check_eq(heard()->last.cache_create.head_dim_v, 64);
	fa_check_eq(heard()->last.cache_create.page_tokens, 32);
	fa_check_eq(heard()->last.cache_create.max_pages, 1000);

	options.name = NULL;
	options.mode = 0;
	options.ttl_ns = 0;
	options.head_dim_v = 0;
	fa_check_eq(fa_cache_create(client, &options, &cache), 0);
	fa_check(!heard()->last.cache_create.name.text);
	fa_check_eq(heard()->last.cache_create.head_dim_v, 128);

	options.flags = 0;
	options.store = FA_STORE_INT8;
	options.layers = 2;
	options.kv_heads = 3;
	options.k_scales = k_scales;
	options.v_scales = v_scales;
	fa_check_eq(fa_cache_create(client, &options, &cache), 0);
	fa_check_eq(heard()->last.cache_create.store, FA_WIRE_STORE_INT8);
	fa_check_eq(heard()->last.cache_create.n_k_scales, 6);
	fa_check_eq(heard()->last.cache_create.n_v_scales, 6);
	options.flags = FA_CACHE_TOKEN_SCALES;
	options.store = FA_STORE_E4M3;
	options.k_scales = options.v_scales = NULL;
	fa_check_eq(fa_cache_create(client, &options, &cache), 0);
	fa_check_eq(heard()->last.cache_create.store, FA_WIRE_STORE_E4M3);
	fa_check_eq(heard()->last.cache_create.flags, FA_WIRE_CACHE_TOKEN_SCALES);
	fa_check_eq(heard()->last.cache_create.n_k_scales, 0);

	cache = 0;
	fa_check_eq(fa_cache_find(client, "other", &cache), 0);
	fa_check_eq(cache, FAKE_DAEMON_CACHE);
	check_string(heard()->last.cache_find.name, "other");
	fa_check_eq(heard()->last.cache_find.cache, 0);

	fa_check_eq(fa_cache_info(client, 12, &info), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_CACHE_FIND);
	fa_check(!heard()->last.cache_find.name.text);
	fa_check_eq(heard()->last.cache_find.cache, 12);
	fa_check_eq(info.flags, FA_CACHE_V_IN_K);
	fa_check_eq(info.mode, FA_MODE_READ_UID);
	fa_check_eq(info.dtype, FA_F16);
	fa_check_eq(info.layers, 2);
	fa_check_eq(info.kv_heads, 3);
	fa_check_eq(info.head_dim, 4);
	fa_check_eq(info.head_dim_v, 5);
	fa_check_eq(info.page_tokens, 6);
	fa_check_eq(info.page_bytes, 7);
	fa_check_eq(info.max_pages, 8);
	fa_check_eq(info.used_pages, 9);
	fa_check_eq(info.idle_pages, 10);
	fa_check_eq(info.sequences, 11);

	fa_check_eq(fa_cache_remove(client, 13), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_CACHE_REMOVE);
	fa_check_eq(heard()->last.cache_remove.cache, 13);
}

static void test_cache_refused(void **state)
{
	const struct fa_cache_options good = {
		.size = sizeof(good), .dtype = FA_F32, .layers = 1, .kv_heads = 1, .head_dim = 64
	};
	struct fa_cache_options options = good;
	struct fa_cache_info info = {};
	char name[66] = "";
	const float scale = 1;
	uint64_t cache = 5;
	int before = heard()->count[FA_WIRE_CACHE_CREATE];

	memset(name, 'n', 64);
	fa_check_eq(fa_cache_create(client, NULL, &cache), -EINVAL);
	fa_check_eq(fa_cache_create(client, &options, NULL), -EINVAL);
	fa_check_eq(fa_cache_create(NULL, &options, &cache), -EINVAL);
	options.dtype = 9;
	fa_check_eq(fa_cache_create(client, &options, &cache), -EINVAL);
	fa_check_contains(fa_error(), "dtype is 9");
	options = good;
	options.mode = FA_MODE_READ_ALL;
	fa_check_eq(fa_cache_create(client, &options, &cache), -EINVAL);
	fa_check_contains(fa_error(), "mode");
	options = good;
	options.ttl_ns = 1;
	fa_check_eq(fa_cache_create(client, &options, &cache), -EINVAL);
	fa_check_contains(fa_error(), "ttl_ns");
	options = good;
	options.store = 3;
	fa_check_eq(fa_cache_create(client, &options, &cache), -EINVAL);
	fa_check_contains(fa_error(), "store is 3");
	options = good;
	options.flags = FA_CACHE_TOKEN_SCALES;
	fa_check_eq(fa_cache_create(client, &options, &cache), -EINVAL);
	fa_check_contains(fa_error(), "FA_CACHE_TOKEN_SCALES is for");
	options = good;
	options.store = FA_STORE_E4M3;
	options.v_scales = &scale;
	fa_check_eq(fa_cache_create(client, &options, &cache), -EINVAL);
	fa_check_contains(fa_error(), "k_scales is NULL");
	options.flags = FA_CACHE_TOKEN_SCALES;
	fa_check_eq(fa_cache_create(client, &options, &cache), -EINVAL);
	fa_check_contains(fa_error(), "v_scales is for");
	options.flags = 0;
	options.k_scales = &scale;
	options.layers = options.kv_heads = 90;
	fa_check_eq(fa_cache_create(client, &options, &cache), -ENOTSUP);
	fa_check_contains(fa_error(), "at most 8000");
	options = good;
	options.name = name;
	fa_check_eq(fa_cache_create(client, &options, &cache), -ENAMETOOLONG);
	options.name = "";
	fa_check_eq(fa_cache_create(client, &options, &cache), -EINVAL);
	fa_check_eq(fa_cache_find(client, NULL, &cache), -EINVAL);
	fa_check_eq(fa_cache_find(client, "", &cache), -EINVAL);
	fa_check_eq(fa_cache_find(client, name, &cache), -ENAMETOOLONG);
	fa_check_contains(fa_error(), "at most 63");
	fa_check_eq(fa_cache_find(client, "x", NULL), -EINVAL);
	fa_check_eq(fa_cache_info(client, 1, &info), -EINVAL);
	fa_check_eq(fa_cache_info(client, 1, NULL), -EINVAL);
	fa_check_eq(heard()->count[FA_WIRE_CACHE_CREATE], before);
	fa_check_eq(cache, 5);

	name[63] = '\0';
	options.name = name;
	heard()->status = -EEXIST;
	fa_check_eq(fa_cache_create(client, &options, &cache), -EEXIST);
	fa_check_contains(fa_error(), "for a reason");
	fa_check_eq(cache, 5);
	heard()->status = -ENOENT;
	fa_check_eq(fa_cache_remove(client, 1), -ENOENT);
	heard()->status = 0;
	fa_check_eq(fa_client_state(client), FA_CLIENT_CONNECTED);
}

static void test_sequence(void **state)
{
	struct fa_sequence_info info = { .size = sizeof(info) };
	uint64_t sequence = 0, first = 0;

	fa_check_eq(fa_sequence_create(client, 31, &sequence), 0);
	fa_check_eq(sequence, FAKE_DAEMON_SEQUENCE);
	fa_check_eq(heard()->last.type, FA_WIRE_SEQUENCE_CREATE);
	fa_check_eq(heard()->last.sequence_create.cache, 31);

	sequence = 0;
	fa_check_eq(fa_sequence_find(client, "prompt", &sequence), 0);
	fa_check_eq(sequence, FAKE_DAEMON_SEQUENCE);
	check_string(heard()->last.sequence_find.name, "prompt");

	sequence = 0;
	fa_check_eq(fa_sequence_fork(client, 32, UINT64_MAX, &sequence), 0);
	fa_check_eq(sequence, FAKE_DAEMON_SEQUENCE);
	fa_check_eq(heard()->last.sequence_fork.sequence, 32);
	fa_check_eq(heard()->last.sequence_fork.tokens, UINT64_MAX);
	fa_check_eq(fa_sequence_fork(client, 32, 0, &sequence), 0);
	fa_check_eq(heard()->last.sequence_fork.tokens, 0);

	fa_check_eq(fa_sequence_set_name(client, 33, "chat", FA_MODE_FORK_UID, 9), 0);
	check_string(heard()->last.sequence_set_name.name, "chat");
	fa_check_eq(heard()->last.sequence_set_name.sequence, 33);
	fa_check_eq(heard()->last.sequence_set_name.mode, 1 << 4);
	fa_check_eq(heard()->last.sequence_set_name.ttl_ns, 9);

	fa_check_eq(fa_sequence_truncate(client, 34, 100), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_SEQUENCE_TRUNCATE);
	fa_check_eq(heard()->last.sequence_truncate.sequence, 34);
	fa_check_eq(heard()->last.sequence_truncate.tokens, 100);

	fa_check_eq(fa_sequence_drop_before(client, 35, 17, &first), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_SEQUENCE_DROP);
	fa_check_eq(heard()->last.sequence_drop.sequence, 35);
	fa_check_eq(heard()->last.sequence_drop.first, 17);
	fa_check_eq(first, 16);
	fa_check_eq(fa_sequence_drop_before(client, 35, 17, NULL), 0);

	fa_check_eq(fa_sequence_info(client, 36, &info), 0);
	fa_check_eq(heard()->last.sequence_info.sequence, 36);
	fa_check_eq(info.mode, 2);
	fa_check_eq(info.cache, FAKE_DAEMON_CACHE);
	fa_check_eq(info.length, 20);
	fa_check_eq(info.planned, 21);
	fa_check_eq(info.first, 16);
	fa_check_eq(info.step, 22);

	fa_check_eq(fa_sequence_remove(client, 37), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_SEQUENCE_FREE);
	fa_check_eq(heard()->last.sequence_free.sequence, 37);
}

static void test_sequence_refused(void **state)
{
	struct fa_sequence_info info = { .size = sizeof(info), .length = 3 };
	uint64_t sequence = 5;

	fa_check_eq(fa_sequence_create(client, 1, NULL), -EINVAL);
	fa_check_eq(fa_sequence_fork(client, 1, 1, NULL), -EINVAL);
	fa_check_eq(fa_sequence_find(client, "", &sequence), -EINVAL);
	fa_check_eq(fa_sequence_find(client, NULL, &sequence), -EINVAL);
	fa_check_eq(fa_sequence_set_name(client, 1, NULL, 0, 0), -EINVAL);
	fa_check_eq(fa_sequence_info(client, 1, NULL), -EINVAL);
	heard()->status = -EACCES;
	fa_check_eq(fa_sequence_find(client, "x", &sequence), -EACCES);
	fa_check_eq(fa_sequence_info(client, 1, &info), -EACCES);
	fa_check_eq(info.length, 3);
	/* No session was lost: the daemon's errno is forwarded. */
	heard()->status = -ENOENT;
	fa_check_eq(fa_sequence_truncate(client, 1, 2), -ENOENT);
	heard()->status = 0;
	fa_check_eq(sequence, 5);
}

static void test_prefix(void **state)
{
	const uint32_t tokens[] = { 7, 8, 9 };
	struct fa_prefix prefix = { .size = sizeof(prefix),
		                    .flags = FA_PREFIX_SHARED,
		                    .tokens = tokens,
		                    .n_tokens = 3,
		                    .extra = "lora",
		                    .extra_bytes = 4 };
	uint64_t n = 0;

	fa_check_eq(fa_sequence_publish(client, 41, &prefix, &n), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_SEQUENCE_PUBLISH);
	fa_check_eq(n, 23);
	fa_check_eq(heard()->last.sequence_publish.sequence, 41);
	fa_check_eq(heard()->last.sequence_publish.flags, FA_WIRE_PREFIX_SHARED);
	fa_check_eq(heard()->last.sequence_publish.n_extra, 4);
	fa_check(!memcmp(heard()->last.sequence_publish.extra, "lora", 4));
	fa_check_eq(heard()->last.sequence_publish.n_tokens, 3);
	fa_check(!memcmp(heard()->last.sequence_publish.tokens, tokens, sizeof(tokens)));
	fa_check_eq(heard()->last.sequence_publish.tokens_view.rank, 0);

	n = 0;
	prefix.flags = 0;
	prefix.extra = NULL;
	prefix.extra_bytes = 0;
	fa_check_eq(fa_sequence_attach(client, 42, &prefix, &n), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_SEQUENCE_ATTACH);
	fa_check_eq(n, 23);
	fa_check_eq(heard()->last.sequence_attach.sequence, 42);
	fa_check_eq(heard()->last.sequence_attach.flags, 0);
	fa_check_eq(heard()->last.sequence_attach.n_extra, 0);
	fa_check_eq(heard()->last.sequence_attach.n_tokens, 3);
	fa_check_eq(fa_sequence_attach(client, 42, &prefix, NULL), 0);

	prefix.flags = FA_PREFIX_SHARED;
	fa_check_eq(fa_prefix_find(client, 43, &prefix, &n), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_PREFIX_FIND);
	fa_check_eq(n, 24);
	fa_check_eq(heard()->last.prefix_find.cache, 43);
	fa_check_eq(heard()->last.prefix_find.flags, FA_WIRE_PREFIX_SHARED);
	fa_check_eq(heard()->last.prefix_find.n_tokens, 3);
	fa_check_eq(fa_prefix_find(client, 43, &prefix, NULL), -EINVAL);
	fa_check_contains(fa_error(), "ret_tokens is NULL");

	prefix.tokens = NULL;
	fa_check_eq(fa_sequence_publish(client, 1, &prefix, NULL), -EINVAL);
	fa_check_contains(fa_error(), "tokens is NULL");
	prefix.n_tokens = 0;
	fa_check_eq(fa_sequence_publish(client, 1, &prefix, NULL), 0);
	fa_check_eq(heard()->last.sequence_publish.n_tokens, 0);
	prefix.extra_bytes = 1;
	fa_check_eq(fa_sequence_publish(client, 1, &prefix, NULL), -EINVAL);
	prefix.extra = tokens;
	prefix.extra_bytes = 257;
	fa_check_eq(fa_sequence_attach(client, 1, &prefix, NULL), -EINVAL);
	fa_check_contains(fa_error(), "at most 256");
	fa_check_eq(fa_sequence_attach(client, 1, NULL, NULL), -EINVAL);
}

/* More tokens than fit into a message go by a temporary buffer. */
static void test_long_prefix(void **state)
{
	enum {
		N = 16001
	};
	static uint32_t tokens[N];
	struct fa_prefix prefix = { .size = sizeof(prefix), .tokens = tokens, .n_tokens = N };
	int frees = heard()->count[FA_WIRE_BUFFER_FREE];

	for (uint32_t i = 0; i < N; ++i)
		tokens[i] = i * 3;
	fa_check_eq(fa_sequence_publish(client, 41, &prefix, NULL), 0);
	fa_check(heard()->tokens_view.buffer);
	fa_check_eq(heard()->tokens_view.rank, 1);
	fa_check_eq(heard()->tokens_view.dtype, 0);
	fa_check_eq(heard()->tokens_view.offset, 0);
	fa_check_eq(heard()->tokens_view.shape[0], N);
	fa_check_eq(heard()->tokens_view.strides[0], 1);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(heard()->count[FA_WIRE_BUFFER_FREE], frees + 1);
	fa_check_eq(heard()->buffer_bytes, sizeof(tokens));
	fa_check(!memcmp(heard()->buffer, tokens, sizeof(tokens)));

	prefix.n_tokens = N - 1;
	prefix.extra = tokens;
	prefix.extra_bytes = 256;
	fa_check_eq(fa_sequence_publish(client, 41, &prefix, NULL), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_SEQUENCE_PUBLISH);
	fa_check_eq(heard()->last.sequence_publish.n_tokens, N - 1);
	fa_check_eq(heard()->tokens_view.rank, 0);
	prefix.n_tokens = (uint64_t)UINT32_MAX + 1;
	fa_check_eq(fa_sequence_publish(client, 41, &prefix, NULL), -EINVAL);
}

static void test_copy(void **state)
{
	struct fa_sequence_copy copy = { .size = sizeof(copy), .sequence = 61, .first = 10 };
	struct fa_buffer *buffer;
	struct fa_ticket ticket;

	fa_check_eq(fa_buffer_new(client, 65536, 0, &buffer), 0);
	copy.layer = 3;
	copy.timeout_ns = 55;
	copy.k = tensor(buffer, 3, 7, 2, 16);
	fa_check_eq(fa_sequence_read(client, &copy, NULL), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_SEQUENCE_COPY);
	fa_check_eq(heard()->last.timeout_ns, 55);
	fa_check_eq(heard()->last.sequence_copy.sequence, 61);
	fa_check_eq(heard()->last.sequence_copy.flags, 0);
	fa_check_eq(heard()->last.sequence_copy.layer, 3);
	fa_check_eq(heard()->last.sequence_copy.first, 10);
	fa_check_eq(heard()->last.sequence_copy.k.shape[0], 7);
	fa_check_eq(heard()->last.sequence_copy.v.rank, 0);
	copy.v = tensor(buffer, 3, 7, 2, 8);
	fa_check_eq(fa_sequence_write(client, &copy, &ticket), 0);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), 0);
	fa_check_eq(heard()->last.sequence_copy.flags, FA_WIRE_COPY_WRITE);
	fa_check_eq(heard()->last.sequence_copy.v.shape[2], 8);

	copy.reserved = 1;
	fa_check_eq(fa_sequence_read(client, &copy, NULL), -EINVAL);
	copy.reserved = 0;
	copy.k.rank = 2;
	fa_check_eq(fa_sequence_read(client, &copy, NULL), -EINVAL);
	copy.k.buffer = copy.v.buffer = NULL;
	fa_check_eq(fa_sequence_read(client, &copy, NULL), -EINVAL);
	fa_check_contains(fa_error(), "neither k nor v");
	fa_check_eq(fa_sequence_read(client, NULL, NULL), -EINVAL);
	fa_buffer_free(buffer);
}

/* The fake daemon says of no feature that it has it. */
static void test_older_daemon(void **state)
{
	const uint32_t page = 0;
	struct fa_sequence_pages pages = { .size = sizeof(pages),
		                           .sequence = 61,
		                           .n_tokens = 7,
		                           .n_layers = 1,
		                           .pages = &page,
		                           .n_pages = 1 };
	struct fa_tensor k = { .dtype = FA_F32, .rank = 4, .shape = { 1, 7, 2, 16 } };
	struct fa_buffer *buffer;

	fa_check_eq(fa_buffer_new(client, 65536, 0, &buffer), 0);
	k.buffer = buffer;
	pages.k = &k;
	fa_check_eq(fa_sequence_read_pages(client, &pages, NULL), -ENOTSUP);
	fa_check_contains(fa_error(), "the daemon is older than copies of a client's pages");
	fa_check_eq(fa_sequence_write_pages(client, &pages, NULL), -ENOTSUP);
	fa_check_eq(fa_sequence_read_pages(client, NULL, NULL), -EINVAL);
	fa_buffer_free(buffer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cache),    cmocka_unit_test(test_cache_refused),
		cmocka_unit_test(test_sequence), cmocka_unit_test(test_sequence_refused),
		cmocka_unit_test(test_prefix),   cmocka_unit_test(test_long_prefix),
		cmocka_unit_test(test_copy),     cmocka_unit_test(test_older_daemon),
	};

	return cmocka_run_group_tests_name("kv-calls", tests, calls_setup, calls_teardown);
}
