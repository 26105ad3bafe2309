/*
 * Decode in which each layer's q, k and v are results of the layer before, requested without waits.
 * Results equal, bit by bit, those with a wait after each request. On a GPU a launch may start
 * before the previous one of its stream has ended.
 */
#include "client/faclient.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	LAYERS = 6,
	STEPS = 16,
	/*
	 * The first result is the input. In each layer one request appends, and a second attends.
	 */
	RESULTS = STEPS * LAYERS * 2 + 1,
	BATCH_MAX = 12,
	ROWS_MAX = 3 * 32 * 128,
	LENGTH_MAX = 1000,
	AT_ONCE = 250,
};

struct shape {
	uint32_t heads, kv_heads, dim, length, batch;
	enum fa_store store;
	uint32_t flags;
};

static const struct shape shapes[] = {
	{ 32, 8, 128, 1000, 1, FA_STORE_PLAIN },
	{ 32, 8, 128, 40, 1, FA_STORE_PLAIN },
	{ 8, 2, 64, 700, 1, FA_STORE_PLAIN },
	{ 8, 2, 256, 300, 1, FA_STORE_PLAIN },
	{ 8, 1, 128, 900, 1, FA_STORE_PLAIN },
	{ 16, 4, 128, 333, 3, FA_STORE_PLAIN },
	{ 32, 8, 128, 500, 1, FA_STORE_E4M3 },
	{ 8, 4, 80, 200, 2, FA_STORE_PLAIN },
	{ 8, 2, 128, 150, 12, FA_STORE_PLAIN },
	{ 8, 2, 64, 80, 12, FA_STORE_INT8 },
	{ 8, 2, 128, 600, 2, FA_STORE_PLAIN, FA_STEP_DETERMINISTIC },
};

static struct scene {
	const struct shape *shape;
	struct fa_buffer *buffer;
	char *host, *results, *kv;
	size_t result_bytes;
	uint64_t state;
} scene;

static uint64_t write_sequence(uint64_t cache)
{
	const struct shape *shape = scene.shape;
	const size_t bytes = (size_t)AT_ONCE * shape->kv_heads * shape->dim * 2;
	uint64_t id;

	must(fa_sequence_create(single_client, cache, &id), "create");
	for (uint32_t first = 0; first < shape->length; first += AT_ONCE) {
		const uint32_t left = shape->length - first, n = left < AT_ONCE ? left : AT_ONCE;
		const int64_t tokens[] = { n, shape->kv_heads, shape->dim };
		const struct fa_step_item item = { .sequence = id, .n_new = n };
		struct fa_step *step = single_begin(&item, 1);

		for (uint32_t layer = 0; layer < LAYERS; ++layer) {
			struct fa_sequence_copy copy = {
				.size = sizeof(copy), .sequence = id, .layer = layer, .first = first
			};

			single_fill(&scene.state, scene.kv, bytes);
			fa_tensor_init(&copy.k, scene.buffer, (uint64_t)(scene.kv - scene.host),
			               FA_BF16, 3, tokens);
			fa_tensor_init(&copy.v, scene.buffer,
			               (uint64_t)(scene.kv + bytes - scene.host), FA_BF16, 3,
			               tokens);
			must(fa_sequence_write(single_client, &copy, NULL), "write");
		}
		must(fa_step_commit(step, NULL, NULL), "commit");
		fa_step_free(step);
	}
	return id;
}

/* Heads [first, first + heads) of result @n. */
static void result_init(struct fa_tensor *tensor, uint32_t n, uint32_t first, uint32_t heads)
{
	const int64_t shape[] = { scene.shape->batch, heads, scene.shape->dim };

	fa_tensor_init(tensor, scene.buffer,
	               (uint64_t)(scene.results - scene.host) + n * scene.result_bytes +
	                       (size_t)first * scene.shape->dim * 2,
	               FA_BF16, 3, shape);
	tensor->strides[0] = (int64_t)scene.shape->heads * scene.shape->dim;
	tensor->strides[1] = scene.shape->dim;
	tensor->strides[2] = 1;
}

static void attend(struct fa_step *step, uint32_t layer, uint32_t n, bool appends, bool waits)
{
	struct fa_step_attend attend = { .size = sizeof(attend),
		                         .flags = FA_STEP_CAUSAL | scene.shape->flags,
		                         .layer = layer,
		                         /*
		                          * Large, so that few keys dominate and results stay as
		                          * diverse as values.
		                          */
		                         .scale = 0.5f };
	const uint32_t heads = scene.shape->heads, kv_heads = scene.shape->kv_heads;
	struct fa_ticket ticket;

	result_init(&attend.q, n, 0, heads);
	result_init(&attend.out, n + 1, 0, heads);
	if (appends) {
		/* With the queries' own heads each query would see only itself. */
		result_init(&attend.k_new, n, heads - kv_heads, kv_heads);
		result_init(&attend.v_new, n, 0, kv_heads);
	}
	must(fa_step_attend(step, &attend, &ticket), "attend");
	if (waits)
		must(fa_wait(single_client, &ticket, UINT64_MAX, NULL), "wait");
}

static void run(bool waits)
{
	const struct shape *shape = scene.shape;
	struct fa_cache_options options = { .size = sizeof(options),
		                            .dtype = FA_BF16,
		                            .store = shape->store,
		                            .layers = LAYERS,
		                            .kv_heads = shape->kv_heads,
		                            .head_dim = shape->dim,
		                            .page_tokens = 64,
		                            .flags = shape->store ? FA_CACHE_TOKEN_SCALES : 0 };
	struct fa_step_item items[BATCH_MAX];
	struct fa_ticket ticket;
	uint64_t cache;
	uint32_t n = 0;

	scene.state = 1;
	must(fa_cache_create(single_client, &options, &cache), "cache");
	for (uint32_t i = 0; i < shape->batch; ++i)
		items[i] = (struct fa_step_item){ .sequence = write_sequence(cache), .n_new = 1 };
	memset(scene.results, 0xff, RESULTS * scene.result_bytes);
	single_fill(&scene.state, scene.results, scene.result_bytes / 2);
	for (int i = 0; i < STEPS; ++i) {
		struct fa_step *step = single_begin(items, shape->batch);

		for (uint32_t layer = 0; layer < LAYERS; ++layer) {
			attend(step, layer, n++, true, waits);
			attend(step, layer, n++, false, waits);
		}
		must(fa_step_commit(step, NULL, &ticket), "commit");
		if (waits || i == STEPS - 1)
			must(fa_wait(single_client, &ticket, UINT64_MAX, NULL), "wait");
		fa_step_free(step);
	}
	must(fa_cache_remove(single_client, cache), "remove");
}

static void test_same_bits(void **state)
{
	const size_t kv_bytes = (size_t)AT_ONCE * 8 * 128 * 2;
	char *expected = malloc((size_t)RESULTS * ROWS_MAX * 2);

	fa_check(expected);
	must(fa_buffer_new(single_client, 2 * kv_bytes + (size_t)RESULTS * ROWS_MAX * 2, 0,
	                   &scene.buffer),
	     "buffer");
	scene.host = fa_buffer_data(scene.buffer);
	scene.kv = scene.host;
	scene.results = scene.kv + 2 * kv_bytes;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); ++i) {
		scene.shape = &shapes[i];
		scene.result_bytes = (size_t)shapes[i].batch * shapes[i].heads * shapes[i].dim * 2;
		fa_check(scene.result_bytes <= ROWS_MAX * 2);
		run(true);
		memcpy(expected, scene.results, RESULTS * scene.result_bytes);
		for (uint32_t n = 1; n < RESULTS; ++n)
			fa_check(memcmp(expected + n * scene.result_bytes,
			                expected + (n - 1) * scene.result_bytes,
			                scene.result_bytes) != 0);
		for (int round = 0; round < 3; ++round) {
			run(false);
			for (uint32_t n = 0; n < RESULTS; ++n)
				if (memcmp(expected + n * scene.result_bytes,
				           scene.results + n * scene.result_bytes,
				           scene.result_bytes) != 0)
					fa_test_fail(__FILE__, __LINE__,
					             "shape %zu, round %d: result %u is another", i,
					             round, n);
		}
	}
	fa_buffer_free(scene.buffer);
	free(expected);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_same_bits) };

	return cmocka_run_group_tests(tests, single_setup, single_teardown);
}
