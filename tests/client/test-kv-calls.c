/*
 * What the calls about the KV cache say on the wire, what they make of the answers,
 * and what they refuse themselves. The daemon is a fake that keeps the last request.
 */
#include "client/faclient.h"
#include "tests/client/fake.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

static struct fa_fake fake;
static struct fa_client *client;

/* What came. Written by the fake's thread before it answers, read after the answer. */
static struct seen {
	struct fa_wire_message last;
	int count[_FA_WIRE_TYPE_N];
	/* Vectors and strings point into the bytes of the connection, which are those of the
	 * last message. */
	uint32_t *buffer; /* the buffer that was registered last, mapped; never unmapped */
	uint64_t buffer_bytes;
	struct fa_wire_view tokens_view; /* of the last SequencePublish */
	int status;                      /* of the next answers; 0: they are good */
} seen;
static pthread_mutex_t seen_mutex = PTHREAD_MUTEX_INITIALIZER;

/* The answer may have come by memory, of which thread sanitizers know nothing. */
static struct seen *heard(void)
{
	pthread_mutex_lock(&seen_mutex);
	pthread_mutex_unlock(&seen_mutex);
	return &seen;
}

static void serve(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fa_fake_welcome(raw);

	while (page && fa_fake_next(raw)) {
		int status;

		pthread_mutex_lock(&seen_mutex);
		seen.last = raw->message;
		++seen.count[raw->message.type];
		if (raw->message.type == FA_WIRE_BUFFER_REGISTER) {
			seen.buffer_bytes = raw->message.buffer_register.bytes;
			seen.buffer = mmap(NULL, seen.buffer_bytes, PROT_READ, MAP_SHARED,
			                   raw->fds[0], 0);
			fa_check(seen.buffer != MAP_FAILED);
		}
		if (raw->message.type == FA_WIRE_SEQUENCE_PUBLISH)
			seen.tokens_view = raw->message.sequence_publish.tokens_view;
		status = seen.status;
		pthread_mutex_unlock(&seen_mutex);
		if (status)
			fa_fake_reply(raw, raw->message.id, status, "for a reason");
		else
			fa_fake_answer(raw, page);
	}
}

static int setup(void **state)
{
	struct fa_options options = { .size = sizeof(options) };

	fa_fake_start(&fake, serve, NULL);
	options.socket = fake.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	return 0;
}

static int teardown(void **state)
{
	fa_disconnect(client);
	fa_fake_stop(&fake);
	return 0;
}

#define check_string(string, expected)                                                             \
	do {                                                                                       \
		fa_check_eq((string).length, strlen(expected));                                    \
		fa_check(!memcmp((string).text, (expected), (string).length));                     \
	} while (0)

/* ---- caches */

static void test_cache(void **state)
{
	struct fa_cache_options options = {
		.size = sizeof(options),
		.flags = FA_CACHE_V_IN_K,
		.name = "llama",
		.mode = FA_READ_ALL | FA_APPEND_UID | FA_FORK_ALL,
		.dtype = FA_BF16,
		.layers = 32,
		.kv_heads = 8,
		.head_dim = 128,
		.head_dim_v = 64,
		.page_tokens = 32,
		.max_pages = 1000,
		.ttl_ns = 77,
	};
	struct fa_cache_info info = { .size = sizeof(info) };
	uint64_t cache = 0;

	fa_check_eq(fa_cache_create(client, &options, &cache), 0);
	fa_check_eq(cache, FA_FAKE_CACHE);
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

	/* Without a name, and with the head dim for both. */
	options.name = NULL;
	options.mode = 0;
	options.ttl_ns = 0;
	options.head_dim_v = 0;
	fa_check_eq(fa_cache_create(client, &options, &cache), 0);
	fa_check(!heard()->last.cache_create.name.text);
	fa_check_eq(heard()->last.cache_create.head_dim_v, 128);

	cache = 0;
	fa_check_eq(fa_cache_find(client, "other", &cache), 0);
	fa_check_eq(cache, FA_FAKE_CACHE);
	check_string(heard()->last.cache_find.name, "other");
	fa_check_eq(heard()->last.cache_find.cache, 0);

	fa_check_eq(fa_cache_info(client, 12, &info), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_CACHE_FIND);
	fa_check(!heard()->last.cache_find.name.text);
	fa_check_eq(heard()->last.cache_find.cache, 12);
	fa_check_eq(info.flags, FA_CACHE_V_IN_K);
	fa_check_eq(info.mode, FA_READ_UID);
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
	options.mode = FA_READ_ALL;
	fa_check_eq(fa_cache_create(client, &options, &cache), -EINVAL);
	fa_check_contains(fa_error(), "mode");
	options = good;
	options.ttl_ns = 1;
	fa_check_eq(fa_cache_create(client, &options, &cache), -EINVAL);
	fa_check_contains(fa_error(), "ttl_ns");
	options = good;
	options.reserved = 1;
	fa_check_eq(fa_cache_create(client, &options, &cache), -EINVAL);
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

	/* What the daemon refuses. */
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

/* ---- sequences */

static void test_sequence(void **state)
{
	struct fa_sequence_info info = { .size = sizeof(info) };
	uint64_t sequence = 0, first = 0;

	fa_check_eq(fa_sequence_create(client, 31, &sequence), 0);
	fa_check_eq(sequence, FA_FAKE_SEQUENCE);
	fa_check_eq(heard()->last.type, FA_WIRE_SEQUENCE_CREATE);
	fa_check_eq(heard()->last.sequence_create.cache, 31);

	sequence = 0;
	fa_check_eq(fa_sequence_find(client, "prompt", &sequence), 0);
	fa_check_eq(sequence, FA_FAKE_SEQUENCE);
	check_string(heard()->last.sequence_find.name, "prompt");

	sequence = 0;
	fa_check_eq(fa_sequence_fork(client, 32, UINT64_MAX, &sequence), 0);
	fa_check_eq(sequence, FA_FAKE_SEQUENCE);
	fa_check_eq(heard()->last.sequence_fork.sequence, 32);
	fa_check_eq(heard()->last.sequence_fork.tokens, UINT64_MAX);
	fa_check_eq(fa_sequence_fork(client, 32, 0, &sequence), 0);
	fa_check_eq(heard()->last.sequence_fork.tokens, 0);

	fa_check_eq(fa_sequence_set_name(client, 33, "chat", FA_FORK_UID, 9), 0);
	check_string(heard()->last.sequence_set_name.name, "chat");
	fa_check_eq(heard()->last.sequence_set_name.sequence, 33);
	fa_check_eq(heard()->last.sequence_set_name.mode, 1 << 4);
	fa_check_eq(heard()->last.sequence_set_name.ttl_ns, 9);

	fa_check_eq(fa_sequence_truncate(client, 34, 100), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_SEQUENCE_TRUNCATE);
	fa_check_eq(heard()->last.sequence_truncate.sequence, 34);
	fa_check_eq(heard()->last.sequence_truncate.tokens, 100);

	fa_check_eq(fa_sequence_drop(client, 35, 17, &first), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_SEQUENCE_DROP);
	fa_check_eq(heard()->last.sequence_drop.sequence, 35);
	fa_check_eq(heard()->last.sequence_drop.first, 17);
	fa_check_eq(first, 16);
	fa_check_eq(fa_sequence_drop(client, 35, 17, NULL), 0);

	fa_check_eq(fa_sequence_info(client, 36, &info), 0);
	fa_check_eq(heard()->last.sequence_info.sequence, 36);
	fa_check_eq(info.mode, 2);
	fa_check_eq(info.cache, FA_FAKE_CACHE);
	fa_check_eq(info.length, 20);
	fa_check_eq(info.planned, 21);
	fa_check_eq(info.first, 16);
	fa_check_eq(info.step, 22);

	fa_check_eq(fa_sequence_free(client, 37), 0);
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
	/* No session was lost: nothing is made of it. */
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

/* More tokens than a message takes lie in a buffer meanwhile. */
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
	/* The buffer is freed without waiting for the answer. */
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(heard()->count[FA_WIRE_BUFFER_FREE], frees + 1);
	fa_check_eq(heard()->buffer_bytes, sizeof(tokens));
	fa_check(!memcmp(heard()->buffer, tokens, sizeof(tokens)));

	/* The longest that fits. */
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

/* ---- steps */

static struct fa_step *begin(uint32_t n_items)
{
	static struct fa_step_item items[64];
	struct fa_step_options options = { .size = sizeof(options),
		                           .n_items = n_items,
		                           .items = items };
	struct fa_step *step;

	for (uint32_t i = 0; i < n_items; ++i)
		items[i] = (struct fa_step_item){ .sequence = i + 1, .n_new = 4 };
	fa_check_eq(fa_step_begin(client, &options, &step), 0);
	return step;
}

static void test_begin(void **state)
{
	const struct fa_step_item items[] = { { 51, 3, 0 }, { 52, 0, 0 }, { 53, 40, 0 } };
	uint32_t tree[83] = { 1, 3, 5 };
	uint32_t tree_start[] = { 0, FA_STEP_NO_TREE, 3 };
	struct fa_step_options options = { .size = sizeof(options),
		                           .n_items = 3,
		                           .items = items,
		                           .tree = tree,
		                           .tree_start = tree_start };
	struct fa_step *step, *other;
	uint32_t id;

	fa_check_eq(fa_step_begin(client, &options, &step), 0);
	fa_check_eq(fa_step_number(step), FA_FAKE_STEP);
	id = heard()->last.step_begin.step;
	fa_check(id);
	fa_check_eq(heard()->last.step_begin.n_items, 3);
	fa_check(!memcmp(heard()->last.step_begin.items, items, sizeof(items)));
	fa_check_eq(heard()->last.step_begin.n_tree, 83);
	fa_check(!memcmp(heard()->last.step_begin.tree, tree, sizeof(tree)));
	fa_check_eq(heard()->last.step_begin.n_tree_start, 3);
	fa_check(!memcmp(heard()->last.step_begin.tree_start, tree_start, sizeof(tree_start)));

	/* Beside it, another, without trees. */
	options.tree = NULL;
	options.tree_start = NULL;
	fa_check_eq(fa_step_begin(client, &options, &other), 0);
	fa_check(heard()->last.step_begin.step && heard()->last.step_begin.step != id);
	fa_check_eq(heard()->last.step_begin.n_tree, 0);
	fa_check_eq(heard()->last.step_begin.n_tree_start, 0);
	fa_step_free(other);
	fa_step_free(step);
	fa_check(!fa_step_free(NULL));
	fa_check_eq(fa_step_number(NULL), 0);
	fa_check_eq(fa_ping(client), 0);

	fa_check_eq(fa_step_begin(client, NULL, &step), -EINVAL);
	fa_check_eq(fa_step_begin(client, &options, NULL), -EINVAL);
	fa_check_eq(fa_step_begin(NULL, &options, &step), -EINVAL);
	options.tree = tree;
	fa_check_eq(fa_step_begin(client, &options, &step), -EINVAL);
	options.tree_start = tree_start;
	tree_start[2] = 16000;
	fa_check_eq(fa_step_begin(client, &options, &step), -EINVAL);
	fa_check_contains(fa_error(), "item 2");
	options.tree = options.tree_start = NULL;
	options.n_items = 0;
	fa_check_eq(fa_step_begin(client, &options, &step), -EINVAL);
	fa_check_contains(fa_error(), "no items");
	options.n_items = 2049;
	fa_check_eq(fa_step_begin(client, &options, &step), -EINVAL);
	fa_check_contains(fa_error(), "at most 2048");
}

static void test_largest_step(void **state)
{
	static struct fa_step_item items[2048];
	static uint32_t tree[16000], tree_start[2048];
	struct fa_step_options options = { .size = sizeof(options),
		                           .n_items = 2048,
		                           .items = items };
	struct fa_step *step;

	for (uint32_t i = 0; i < 2048; ++i)
		items[i] = (struct fa_step_item){ .sequence = i + 1, .n_new = 1 };
	fa_check_eq(fa_step_begin(client, &options, &step), 0);
	fa_check_eq(heard()->last.step_begin.n_items, 2048);
	fa_step_free(step);
	/* Items, and a tree as long as may be, do not fit into one message together. */
	options.tree = tree;
	options.tree_start = tree_start;
	for (uint32_t i = 0; i < 2048; ++i)
		tree_start[i] = FA_STEP_NO_TREE;
	tree_start[2047] = 15999;
	fa_check_eq(fa_step_begin(client, &options, &step), -EMSGSIZE);
	fa_check_contains(fa_error(), "too long");
	fa_check_eq(fa_ping(client), 0);
}

static struct fa_tensor tensor(struct fa_buffer *buffer, uint32_t rank, int64_t a, int64_t b,
                               int64_t c)
{
	const int64_t shape[] = { a, b, c };
	struct fa_tensor tensor;

	fa_tensor_init(&tensor, buffer, 64, FA_F32, rank, shape);
	return tensor;
}

static struct fa_step_attend attend_all(struct fa_buffer *buffer)
{
	struct fa_step_attend attend = {
		.size = sizeof(attend),
		.flags = FA_STEP_CAUSAL | FA_STEP_WINDOW | FA_STEP_ROTARY_INTERLEAVED,
		.layer = 5,
		.cache = 6,
		.q = tensor(buffer, 3, 4, 2, 16),
		.k_new = tensor(buffer, 3, 4, 1, 16),
		.v_new = tensor(buffer, 3, 4, 1, 8),
		.out = tensor(buffer, 3, 4, 2, 8),
		.lse = tensor(buffer, 2, 2, 4, 0),
		.scale = 0.5f,
		.softcap = 30,
		.window_left = 128,
		.window_right = 0,
		.rotary_dim = 8,
		.rotary_base = 5e5,
		.rotary_scale = 0.25,
		.cos = tensor(buffer, 2, 32, 4, 0),
		.sin = tensor(buffer, 2, 32, 4, 0),
		.timeout_ns = 123456789,
	};

	return attend;
}

static void test_attend(void **state)
{
	const float slopes[] = { 1, 2 }, sinks[] = { 3, 4 };
	const uint32_t positions[] = { 9, 8, 7, 6 };
	struct fa_step_attend attend;
	struct fa_step *step = begin(1);
	uint32_t id = heard()->last.step_begin.step;
	struct fa_ticket ticket;
	struct fa_buffer *buffer;
	uint64_t value;

	fa_check_eq(fa_buffer_new(client, 65536, 0, &buffer), 0);
	attend = attend_all(buffer);
	attend.alibi_slopes = slopes;
	attend.sinks = sinks;
	attend.positions = positions;
	fa_check_eq(fa_step_attend(step, &attend, NULL), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_STEP_ATTEND);
	fa_check_eq(heard()->last.timeout_ns, 123456789);
	fa_check_eq(heard()->last.step_attend.stream, 0);
	value = heard()->last.step_attend.value;
	fa_check_eq(heard()->last.step_attend.step, id);
	fa_check_eq(heard()->last.step_attend.cache, 6);
	fa_check_eq(heard()->last.step_attend.layer, 5);
	fa_check_eq(heard()->last.step_attend.flags,
	            FA_WIRE_STEP_CAUSAL | FA_WIRE_STEP_ROTARY_INTERLEAVED);
	fa_check_eq(heard()->last.step_attend.q.rank, 3);
	fa_check_eq(heard()->last.step_attend.q.offset, 64);
	fa_check_eq(heard()->last.step_attend.q.shape[1], 2);
	fa_check_eq(heard()->last.step_attend.q.strides[0], 32);
	fa_check_eq(heard()->last.step_attend.k.shape[2], 16);
	fa_check_eq(heard()->last.step_attend.v.shape[2], 8);
	fa_check_eq(heard()->last.step_attend.out.shape[2], 8);
	fa_check_eq(heard()->last.step_attend.lse.rank, 2);
	fa_check(heard()->last.step_attend.scale == 0.5f &&
	         heard()->last.step_attend.softcap == 30);
	fa_check_eq(heard()->last.step_attend.window_left, 128);
	fa_check_eq(heard()->last.step_attend.window_right, 0);
	fa_check_eq(heard()->last.step_attend.n_alibi_slopes, 2);
	fa_check(heard()->last.step_attend.alibi_slopes[1] == 2);
	fa_check_eq(heard()->last.step_attend.n_sinks, 2);
	fa_check(heard()->last.step_attend.sinks[0] == 3);
	fa_check_eq(heard()->last.step_attend.rotary_dim, 8);
	fa_check(heard()->last.step_attend.rotary_base == 5e5 &&
	         heard()->last.step_attend.rotary_scale == 0.25);
	fa_check_eq(heard()->last.step_attend.cos.rank, 2);
	fa_check_eq(heard()->last.step_attend.sin.shape[0], 32);
	fa_check_eq(heard()->last.step_attend.n_positions, 4);
	fa_check(!memcmp(heard()->last.step_attend.positions, positions, sizeof(positions)));

	/* Defaults. Windows without their flag do not count. */
	attend = (struct fa_step_attend){ .size = sizeof(attend),
		                          .q = tensor(buffer, 3, 4, 2, 16),
		                          .out = tensor(buffer, 3, 4, 2, 16),
		                          .window_left = 3,
		                          .window_right = 4,
		                          .rotary_dim = 8 };
	fa_check_eq(fa_step_attend(step, &attend, &ticket), 0);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), 0);
	fa_check_eq(heard()->last.step_attend.value, value + 1);
	fa_check_eq(heard()->last.step_attend.k.rank, 0);
	fa_check_eq(heard()->last.step_attend.v.rank, 0);
	fa_check_eq(heard()->last.step_attend.lse.rank, 0);
	fa_check_eq(heard()->last.step_attend.window_left, -1);
	fa_check_eq(heard()->last.step_attend.window_right, -1);
	fa_check(heard()->last.step_attend.rotary_base == 10000 &&
	         heard()->last.step_attend.rotary_scale == 1);
	fa_check_eq(heard()->last.step_attend.cos.rank, 0);
	fa_check_eq(heard()->last.step_attend.n_positions, 0);

	/* Only written, with positions: as many as there are tokens of k. */
	attend = (struct fa_step_attend){ .size = sizeof(attend),
		                          .k_new = tensor(buffer, 3, 4, 1, 16),
		                          .v_new = tensor(buffer, 3, 4, 1, 16),
		                          .rotary_dim = 8,
		                          .positions = positions };
	fa_check_eq(fa_step_attend(step, &attend, NULL), 0);
	fa_check_eq(heard()->last.step_attend.q.rank, 0);
	fa_check_eq(heard()->last.step_attend.out.rank, 0);
	fa_check_eq(heard()->last.step_attend.n_positions, 4);
	fa_step_free(step);
	fa_buffer_free(buffer);
}

static void refuse(struct fa_step *step, const struct fa_step_attend *attend, const char *part)
{
	int before = heard()->count[FA_WIRE_STEP_ATTEND];

	fa_check_eq(fa_step_attend(step, attend, NULL), -EINVAL);
	fa_check_contains(fa_error(), part);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(heard()->count[FA_WIRE_STEP_ATTEND], before);
}

static void test_attend_refused(void **state)
{
	const float slopes[] = { 1, 2 };
	const uint32_t positions[4] = {};
	struct fa_step *step = begin(1);
	struct fa_step_attend good, attend;
	struct fa_buffer *buffer;

	fa_check_eq(fa_buffer_new(client, 65536, 0, &buffer), 0);
	good = attend = attend_all(buffer);
	refuse(NULL, &attend, "step is NULL");
	refuse(step, NULL, "fa_step_attend is NULL");
	attend.flags = 8;
	refuse(step, &attend, "flags");
	attend = good;
	attend.reserved = 1;
	refuse(step, &attend, "reserved");
	attend = good;
	attend.stream = 64;
	refuse(step, &attend, "stream is 64");
	attend.stream = 1;
	refuse(step, &attend, "no stream 1");
	attend = good;
	attend.q.rank = 4;
	refuse(step, &attend, "q.rank is 4");
	attend = good;
	attend.q.buffer = NULL;
	refuse(step, &attend, "q.buffer is NULL");
	attend = good;
	attend.k_new.buffer = NULL;
	refuse(step, &attend, "k_new");
	attend.v_new.buffer = attend.out.buffer = attend.lse.buffer = NULL;
	refuse(step, &attend, "nothing is asked");
	attend = good;
	attend.out.buffer = NULL;
	refuse(step, &attend, "lse");
	attend.lse.buffer = NULL;
	attend.alibi_slopes = slopes;
	refuse(step, &attend, "alibi_slopes");
	attend = good;
	attend.sinks = slopes;
	attend.q.shape[1] = attend.out.shape[1] = 1025;
	attend.q.shape[0] = attend.out.shape[0] = 0;
	refuse(step, &attend, "1025 heads");
	attend = good;
	attend.sin.buffer = NULL;
	refuse(step, &attend, "cos and sin");
	attend = good;
	attend.positions = positions;
	attend.q.shape[0] = 16001;
	attend.q.strides[2] = 1;
	refuse(step, &attend, "at most 16000");
	attend = good;
	attend.k_new.shape[0] = 1 << 20;
	refuse(step, &attend, "k_new reaches beyond");
	fa_step_free(step);
	fa_buffer_free(buffer);
}

static void test_commit(void **state)
{
	const uint32_t keep[] = { 0, 2, 3, 1 };
	uint32_t cu_keep[] = { 0, 3, 3, 4 };
	struct fa_step_commit commit = {
		.size = sizeof(commit), .keep = keep, .cu_keep = cu_keep, .timeout_ns = 1000
	};
	struct fa_step *step = begin(3);
	uint32_t id = heard()->last.step_begin.step;
	struct fa_ticket ticket;
	uint32_t stream;
	uint64_t value;
	int ends;

	/* Refused here, it goes on. */
	cu_keep[3] = 2;
	fa_check_eq(fa_step_commit(step, &commit, NULL), -EINVAL);
	fa_check_contains(fa_error(), "cu_keep[3]");
	cu_keep[3] = 4;
	cu_keep[0] = 1;
	fa_check_eq(fa_step_commit(step, &commit, NULL), -EINVAL);
	cu_keep[0] = 0;
	commit.keep = NULL;
	fa_check_eq(fa_step_commit(step, &commit, NULL), -EINVAL);
	commit.keep = keep;
	commit.cu_keep = NULL;
	fa_check_eq(fa_step_commit(step, &commit, NULL), -EINVAL);
	commit.cu_keep = cu_keep;
	commit.stream = 5;
	fa_check_eq(fa_step_commit(step, &commit, NULL), -EINVAL);
	fa_check_eq(fa_step_commit(NULL, NULL, NULL), -EINVAL);

	fa_check_eq(fa_stream_new(client, 0, &stream), 0);
	commit.stream = stream;
	fa_check_eq(fa_step_commit(step, &commit, &ticket), 0);
	fa_check_eq(ticket.stream, stream);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_STEP_END);
	fa_check_eq(heard()->last.timeout_ns, 1000);
	fa_check_eq(heard()->last.step_end.stream, stream);
	value = heard()->last.step_end.value;
	fa_check_eq(heard()->last.step_end.step, id);
	fa_check_eq(heard()->last.step_end.flags, FA_WIRE_STEP_COMMIT);
	fa_check_eq(heard()->last.step_end.n_keep, 4);
	fa_check(!memcmp(heard()->last.step_end.keep, keep, sizeof(keep)));
	fa_check_eq(heard()->last.step_end.n_cu_keep, 4);
	fa_check(!memcmp(heard()->last.step_end.cu_keep, cu_keep, sizeof(cu_keep)));

	/* It has ended, and its end is not sent twice. */
	fa_check_eq(fa_step_commit(step, NULL, NULL), -EINVAL);
	fa_check_contains(fa_error(), "before");
	fa_check_eq(fa_step_abort(step, 0, NULL), -EINVAL);
	ends = heard()->count[FA_WIRE_STEP_END];
	fa_step_free(step);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(heard()->count[FA_WIRE_STEP_END], ends);

	/* Nothing kept; all kept; aborted; forgotten. */
	step = begin(3);
	memset(cu_keep, 0, sizeof(cu_keep));
	commit.keep = NULL;
	fa_check_eq(fa_step_commit(step, &commit, NULL), 0);
	fa_check_eq(heard()->last.step_end.value, value + 1);
	fa_check_eq(heard()->last.step_end.n_keep, 0);
	fa_check_eq(heard()->last.step_end.n_cu_keep, 4);
	fa_step_free(step);
	step = begin(3);
	fa_check_eq(fa_step_commit(step, NULL, NULL), 0);
	fa_check_eq(heard()->last.step_end.n_cu_keep, 0);
	fa_check_eq(heard()->last.step_end.flags, FA_WIRE_STEP_COMMIT);
	fa_step_free(step);
	step = begin(3);
	fa_check_eq(fa_step_abort(step, stream, NULL), 0);
	fa_check_eq(heard()->last.step_end.stream, stream);
	fa_check_eq(heard()->last.step_end.flags, 0);
	fa_step_free(step);
	ends = heard()->count[FA_WIRE_STEP_END];
	step = begin(3);
	id = heard()->last.step_begin.step;
	fa_step_free(step);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(heard()->count[FA_WIRE_STEP_END], ends + 1);
	fa_check_eq(fa_stream_free(client, stream), 0);
}

/* ---- copies */

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

/* ---- structs of other sizes */

/* In memory of exactly its size, so that sanitizers see a step beyond. */
static void *copy_of(const void *from, size_t known, size_t size)
{
	void *copy = calloc(1, size);

	fa_check(copy);
	memcpy(copy, from, size < known ? size : known);
	*(uint32_t *)copy = (uint32_t)size;
	return copy;
}

static void test_sizes(void **state)
{
	const struct fa_cache_options cache = {
		.size = sizeof(cache), .dtype = FA_F32, .layers = 1, .kv_heads = 1, .head_dim = 64
	};
	const struct fa_step_item item = { .sequence = 1, .n_new = 4 };
	const struct fa_step_options begin = { .size = sizeof(begin),
		                               .n_items = 1,
		                               .items = &item };
	const uint32_t token = 1;
	const struct fa_prefix prefix = { .size = sizeof(prefix), .tokens = &token, .n_tokens = 1 };
	struct fa_step_attend attend;
	struct fa_sequence_info info;
	struct fa_buffer *buffer;
	struct fa_step *step;
	unsigned char *copy;
	uint64_t number;

	copy = copy_of(&cache, sizeof(cache), offsetof(struct fa_cache_options, head_dim_v));
	fa_check_eq(fa_cache_create(client, (void *)copy, &number), 0);
	free(copy);
	copy = copy_of(&cache, sizeof(cache), sizeof(cache) + 8);
	fa_check_eq(fa_cache_create(client, (void *)copy, &number), 0);
	copy[sizeof(cache) + 7] = 1;
	fa_check_eq(fa_cache_create(client, (void *)copy, &number), -E2BIG);
	free(copy);

	copy = copy_of(&begin, sizeof(begin), offsetof(struct fa_step_options, tree));
	fa_check_eq(fa_step_begin(client, (void *)copy, &step), 0);
	free(copy);
	fa_check_eq(fa_buffer_new(client, 65536, 0, &buffer), 0);
	attend = attend_all(buffer);
	copy = copy_of(&attend, sizeof(attend), offsetof(struct fa_step_attend, scale));
	fa_check_eq(fa_step_attend(step, (void *)copy, NULL), 0);
	fa_check_eq(heard()->last.step_attend.rotary_dim, 0);
	free(copy);
	fa_step_free(step);
	fa_buffer_free(buffer);

	copy = copy_of(&prefix, sizeof(prefix), offsetof(struct fa_prefix, extra));
	fa_check_eq(fa_sequence_publish(client, 1, (void *)copy, NULL), 0);
	free(copy);

	/* To be filled: not a byte more than the caller has. */
	memset(&info, 0x5a, sizeof(info));
	info.size = offsetof(struct fa_sequence_info, planned);
	fa_check_eq(fa_sequence_info(client, 1, &info), 0);
	fa_check_eq(info.length, 20);
	fa_check_eq(info.planned, 0x5a5a5a5a5a5a5a5all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cache),    cmocka_unit_test(test_cache_refused),
		cmocka_unit_test(test_sequence), cmocka_unit_test(test_sequence_refused),
		cmocka_unit_test(test_prefix),   cmocka_unit_test(test_long_prefix),
		cmocka_unit_test(test_begin),    cmocka_unit_test(test_largest_step),
		cmocka_unit_test(test_attend),   cmocka_unit_test(test_attend_refused),
		cmocka_unit_test(test_commit),   cmocka_unit_test(test_copy),
		cmocka_unit_test(test_sizes),
	};

	return cmocka_run_group_tests_name("kv-calls", tests, setup, teardown);
}
