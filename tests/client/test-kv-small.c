/*
 * Many caches in a small pool: 256 fit into that of a spawned daemon, beside large pages in runs of
 * chunks, and all survive the daemon.
 */
#include "client/faclient.h"
#include "tests/client/kv.h"
#include "tests/client/spawn.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum {
	CACHES = 256,
	TOKENS = 40, /* of each small cache: three pages */
	LARGE_LAYERS = 48,
	LARGE_DIM = 64,
	LARGE_TOKENS = 300, /* five pages of 1.5 MiB */
};

static uint32_t tags[TOKENS];

static void must(int r, const char *what)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%s: %d, %s", what, r, fa_error());
}

/* ---- small caches */

struct small {
	struct kv kv;
	uint64_t sequence;
};

static void small_fill(struct small *small, struct fa_client *client, struct fa_buffer *buffer,
                       uint32_t number)
{
	struct fa_cache_options options = { .size = sizeof(options),
		                            .dtype = FA_F32,
		                            .layers = KV_LAYERS,
		                            .kv_heads = KV_KV_HEADS,
		                            .head_dim = KV_DIM,
		                            .page_tokens = KV_PAGE_TOKENS };
	struct kv_item item = { .tags = tags, .length = TOKENS, .n_new = TOKENS };
	struct fa_step *step;
	uint64_t cache;

	must(fa_cache_create(client, &options, &cache), "cache");
	kv_init_over(&small->kv, client, cache, buffer, fa_buffer_data(buffer));
	must(fa_sequence_create(client, cache, &small->sequence), "sequence");
	for (uint32_t i = 0; i < TOKENS; ++i)
		tags[i] = number * TOKENS + i;
	item.sequence = small->sequence;
	must(kv_begin(&small->kv, &item, 1, &step), "begin");
	must(kv_attend(&small->kv, step, &item, 1, 0, true), "attend");
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
}

static void small_check(struct small *small, uint32_t number)
{
	for (uint32_t i = 0; i < TOKENS; ++i)
		tags[i] = number * TOKENS + i;
	kv_check_sequence(&small->kv, small->sequence, tags, TOKENS, 0);
}

/* ---- a cache with large pages */

struct large {
	uint64_t cache, sequence;
	struct fa_buffer *buffer;
	float *numbers; /* K and V of a layer: [2][LARGE_TOKENS][1][LARGE_DIM] */
};

static float number_of(uint32_t layer, uint32_t place)
{
	return (float)(layer * 100000 + place);
}

static struct fa_sequence_copy large_copy(const struct large *large, uint32_t layer)
{
	static const int64_t shape[] = { LARGE_TOKENS, 1, LARGE_DIM };
	struct fa_sequence_copy copy = { .size = sizeof(copy),
		                         .sequence = large->sequence,
		                         .layer = layer };

	fa_tensor_init(&copy.k, large->buffer, 0, FA_F32, 3, shape);
	fa_tensor_init(&copy.v, large->buffer, LARGE_TOKENS * LARGE_DIM * sizeof(float), FA_F32, 3,
	               shape);
	return copy;
}

static void large_fill(struct large *large, struct fa_client *client)
{
	struct fa_cache_options options = { .size = sizeof(options),
		                            .dtype = FA_F32,
		                            .layers = LARGE_LAYERS,
		                            .kv_heads = 1,
		                            .head_dim = LARGE_DIM,
		                            .page_tokens = 64 };
	struct fa_step_item item = { .n_new = LARGE_TOKENS };
	struct fa_step_options begin = { .size = sizeof(begin), .n_items = 1, .items = &item };
	struct fa_step *step;

	must(fa_cache_create(client, &options, &large->cache), "cache");
	must(fa_sequence_create(client, large->cache, &large->sequence), "sequence");
	must(fa_buffer_new(client, 2 * LARGE_TOKENS * LARGE_DIM * sizeof(float), 0, &large->buffer),
	     "buffer");
	large->numbers = fa_buffer_data(large->buffer);
	item.sequence = large->sequence;
	must(fa_step_begin(client, &begin, &step), "begin");
	for (uint32_t layer = 0; layer < LARGE_LAYERS; ++layer) {
		struct fa_sequence_copy copy = large_copy(large, layer);

		for (uint32_t i = 0; i < 2 * LARGE_TOKENS * LARGE_DIM; ++i)
			large->numbers[i] = number_of(layer, i);
		must(fa_sequence_write(client, &copy, NULL), "write");
	}
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
}

static void large_check(struct large *large, struct fa_client *client)
{
	for (uint32_t layer = 0; layer < LARGE_LAYERS; ++layer) {
		struct fa_sequence_copy copy = large_copy(large, layer);

		must(fa_sequence_read(client, &copy, NULL), "read");
		for (uint32_t i = 0; i < 2 * LARGE_TOKENS * LARGE_DIM; ++i)
			fa_check(large->numbers[i] == number_of(layer, i));
	}
}

/* ---- the tests */

static struct small smalls[CACHES];

static void fill(struct fa_client *client, struct fa_buffer *buffer, struct large *large,
                 uint32_t n_small)
{
	for (uint32_t i = 0; i < n_small; ++i) {
		/* Between small caches, so that the free chunks lie apart. */
		if (large && i == n_small / 2)
			large_fill(large, client);
		small_fill(&smalls[i], client, buffer, i);
	}
}

static void check(struct fa_client *client, struct large *large, uint32_t n_small)
{
	for (uint32_t i = 0; i < n_small; ++i)
		small_check(&smalls[i], i);
	if (large)
		large_check(large, client);
}

/* On small machines the default pool is smaller; it has 256 chunks nevertheless. */
static void test_spawned(void **state)
{
	struct fa_cache_options one_more = {
		.size = sizeof(one_more), .dtype = FA_F32, .layers = 1, .kv_heads = 1, .head_dim = 8
	};
	struct fa_client *client = spawn_client(NULL, NULL);
	struct fa_buffer *buffer;
	uint64_t cache;

	must(fa_buffer_new(client, KV_BUFFER_BYTES, 0, &buffer), "buffer");
	fill(client, buffer, NULL, CACHES);
	check(client, NULL, CACHES);
	fa_check(fa_cache_create(client, &one_more, &cache) < 0);
	fa_disconnect(client);
}

static void test_killed(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options daemon_options = {
		.args = args, .config = "[pool]\nbytes = 256M\n[limits]\ncaches = 256\n"
	};
	struct fa_options options = { .size = sizeof(options) };
	struct fa_test_daemon supervisor;
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct large large;
	pid_t pid;

	fa_test_daemon_start(&supervisor, &daemon_options);
	options.socket = supervisor.socket;
	must(fa_connect(&options, &client), "connect");
	must(fa_buffer_new(client, KV_BUFFER_BYTES, 0, &buffer), "buffer");
	fill(client, buffer, &large, 100);
	for (int i = 0; i < 3; ++i) {
		pid = fa_test_daemon_child(&supervisor);
		fa_check(pid > 0 && !kill(pid, SIGKILL));
		(void)fa_test_daemon_next_child(&supervisor, pid);
		must(fa_reconnect(client), "reconnect");
		check(client, &large, 100);
	}
	fa_disconnect(client);
	fa_test_daemon_stop(&supervisor);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_spawned),
		cmocka_unit_test(test_killed),
	};

	return cmocka_run_group_tests_name("kv-small", tests, spawn_setup, spawn_teardown);
}
