/*
 * Decode whose completion the device itself signals to the client: when fa_wait() returns, all of
 * out and lse is visible, the same in every round.
 */
#include "client/faclient.h"
#include "common/clock.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	DIM = 128,
	HEADS_MAX = 32,
	NEW_MAX = 4,
	LENGTH_MAX = 4000,
	AT_ONCE = 250,
	OUT_BYTES = NEW_MAX * HEADS_MAX * DIM * 2,
	LSE_BYTES = NEW_MAX * HEADS_MAX * 4,
	ROUNDS_MIN = 50, /* per shape: at least this many rounds */
};

#define ROUNDS_NS (2 * FA_NS_PER_SEC)

struct shape {
	uint32_t heads, kv_heads, length, n_new, batch;
	int rounds;
};

static const struct shape shapes[] = {
	{ 32, 8, 1000, 1, 1, 4000 }, /* eight parts of several blocks each */
	{ 32, 8, 30, 1, 1, 2000 },   /* eight parts of one block each */
	{ 8, 1, 4000, 1, 1, 1000 },  /* one part of all blocks */
	{ 10, 2, 1000, 4, 1, 1000 }, { 24, 3, 700, 1, 1, 1000 },
	{ 32, 16, 500, 1, 1, 500 }, /* too many parts to be signalled */
	{ 32, 8, 200, 1, 3, 500 },  /* several sequences: not signalled */
};

static struct scene {
	struct fa_buffer *buffer;
	char *host, *q, *k, *v, *out;
	float *lse;
	uint64_t state;
} scene = { .state = 1 };

static void tensor_init(struct fa_tensor *tensor, const char *at, uint32_t n, uint32_t heads)
{
	const int64_t shape[] = { n, heads, DIM };

	fa_tensor_init(tensor, scene.buffer, (uint64_t)(at - scene.host), FA_BF16, 3, shape);
}

static uint64_t write_sequence(uint64_t cache, const struct shape *shape)
{
	uint64_t id;

	must(fa_sequence_create(single_client, cache, &id), "create");
	for (uint32_t first = 0; first < shape->length; first += AT_ONCE) {
		const uint32_t left = shape->length - first, n = left < AT_ONCE ? left : AT_ONCE;
		struct fa_step_item item = { .sequence = id, .n_new = n };
		struct fa_sequence_copy copy = { .size = sizeof(copy),
			                         .sequence = id,
			                         .first = first };
		struct fa_step *step = single_begin(&item, 1);

		single_fill(&scene.state, scene.k, (size_t)n * shape->kv_heads * DIM);
		single_fill(&scene.state, scene.v, (size_t)n * shape->kv_heads * DIM);
		tensor_init(&copy.k, scene.k, n, shape->kv_heads);
		tensor_init(&copy.v, scene.v, n, shape->kv_heads);
		must(fa_sequence_write(single_client, &copy, NULL), "write");
		must(fa_step_commit(step, NULL, NULL), "commit");
		fa_step_free(step);
	}
	return id;
}

/* The first request appends the new tokens; the others attend to them. */
static void attend(const struct shape *shape, struct fa_step *step)
{
	const uint32_t rows = shape->n_new * shape->batch;
	const int64_t lse_shape[] = { shape->heads, rows };
	struct fa_step_attend attend = { .size = sizeof(attend), .flags = FA_STEP_CAUSAL };
	struct fa_completion completion = { .size = sizeof(completion) };
	const size_t out_bytes = (size_t)rows * shape->heads * DIM * 2;
	const size_t lse_bytes = (size_t)rows * shape->heads * 4;
	const uint64_t until_ns = fa_deadline_ns(ROUNDS_NS);
	char first_out[OUT_BYTES], first_lse[LSE_BYTES];
	struct fa_ticket ticket;

	fa_check(out_bytes <= OUT_BYTES && lse_bytes <= LSE_BYTES);
	single_fill(&scene.state, scene.q, (size_t)rows * shape->heads * DIM);
	single_fill(&scene.state, scene.k, (size_t)rows * shape->kv_heads * DIM);
	single_fill(&scene.state, scene.v, (size_t)rows * shape->kv_heads * DIM);
	tensor_init(&attend.q, scene.q, rows, shape->heads);
	tensor_init(&attend.out, scene.out, rows, shape->heads);
	tensor_init(&attend.k_new, scene.k, rows, shape->kv_heads);
	tensor_init(&attend.v_new, scene.v, rows, shape->kv_heads);
	fa_tensor_init(&attend.lse, scene.buffer, (uint64_t)((char *)scene.lse - scene.host),
	               FA_F32, 2, lse_shape);
	for (int round = 0; round < shape->rounds && (round < ROUNDS_MIN || fa_now_ns() < until_ns);
	     ++round) {
		memset(scene.out, 0xff, out_bytes);
		memset(scene.lse, 0xff, lse_bytes);
		if (round % 5 == 4) {
			must(fa_step_attend(step, &attend, NULL), "attend");
		} else {
			must(fa_step_attend(step, &attend, &ticket), "attend");
			must(fa_wait(single_client, &ticket, UINT64_MAX, NULL), "wait");
		}
		if (round == 0) {
			memcpy(first_out, scene.out, out_bytes);
			memcpy(first_lse, scene.lse, lse_bytes);
			for (size_t i = 0; i < lse_bytes / 4; ++i)
				fa_check(isfinite(scene.lse[i]));
			attend.k_new = attend.v_new = (struct fa_tensor){ 0 };
		} else if (memcmp(scene.out, first_out, out_bytes) != 0 ||
		           memcmp(scene.lse, first_lse, lse_bytes) != 0) {
			fa_test_fail(__FILE__, __LINE__,
			             "round %d, %u heads, %u tokens: it was not there yet", round,
			             shape->heads, shape->length);
		}
		/* A completion that the client has seen stays as it was. */
		if (round % 5 == 3) {
			must(fa_wait(single_client, &ticket, 0, &completion),
			     "a wait for the times");
			fa_check_eq(completion.status, 0);
			fa_check(completion.started_ns >= completion.queued_ns &&
			         completion.finished_ns >= completion.started_ns);
			fa_check_eq(fa_cancel(single_client, &ticket), -ENOENT);
		}
	}
}

static void check(const struct shape *shape)
{
	struct fa_cache_options options = { .size = sizeof(options),
		                            .dtype = FA_BF16,
		                            .layers = 1,
		                            .kv_heads = shape->kv_heads,
		                            .head_dim = DIM,
		                            .page_tokens = 64 };
	struct fa_step_item items[NEW_MAX];
	struct fa_step *step;
	uint64_t cache;

	must(fa_cache_create(single_client, &options, &cache), "cache");
	for (uint32_t i = 0; i < shape->batch; ++i)
		items[i] = (struct fa_step_item){ .sequence = write_sequence(cache, shape),
			                          .n_new = shape->n_new };
	step = single_begin(items, shape->batch);
	attend(shape, step);
	must(fa_step_abort(step, 0, NULL), "abort");
	fa_step_free(step);
	must(fa_cache_remove(single_client, cache), "remove");
}

static void test_results_visible_at_wait(void **state)
{
	const size_t kv_bytes = (size_t)AT_ONCE * 16 * DIM * 2;

	must(fa_buffer_new(single_client, 2 * kv_bytes + 2 * OUT_BYTES + LSE_BYTES, 0,
	                   &scene.buffer),
	     "buffer");
	scene.host = fa_buffer_data(scene.buffer);
	scene.k = scene.host;
	scene.v = scene.k + kv_bytes;
	scene.q = scene.v + kv_bytes;
	scene.out = scene.q + OUT_BYTES;
	scene.lse = (float *)(scene.out + OUT_BYTES);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); ++i)
		check(&shapes[i]);
	fa_buffer_free(scene.buffer);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_results_visible_at_wait) };

	return cmocka_run_group_tests(tests, single_setup, single_teardown);
}
