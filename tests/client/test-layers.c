/*
 * fa_step_attend_layers() on a real daemon equals, bit by bit, a request per layer, with gates per
 * layer; and the remaining layers after a failure or cancellation.
 */
#include "client/faclient.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum {
	LAYERS = 32,
	HEADS = 4,
	KV_HEADS = 2,
	DIM = 32,
	TOKENS = 5,
	Q_FLOATS = TOKENS * HEADS * DIM,
	KV_FLOATS = TOKENS * KV_HEADS * DIM,
	LSE_FLOATS = TOKENS * HEADS,
	LAYER_FLOATS = 2 * Q_FLOATS + 2 * KV_FLOATS + LSE_FLOATS,
};

static struct fa_test_daemon fad;
static struct fa_client *client;
static struct fa_timeline *timeline;
static struct fa_buffer *buffer;
static float *data;
static uint64_t cache;
static uint64_t last_in, last_out; /* last values of slot 0 */

static void check(int r)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
}

static int setup(void **state)
{
	struct fa_cache_options cache_options = { .size = sizeof(cache_options),
		                                  .dtype = FA_F32,
		                                  .layers = LAYERS,
		                                  .kv_heads = KV_HEADS,
		                                  .head_dim = DIM,
		                                  .page_tokens = 16 };
	struct fa_options options = { .size = sizeof(options) };

	fa_test_daemon_start(&fad, &(const struct fa_test_daemon_options){
					   .config = "[pool]\nbytes = 64M\nchunk_bytes = 2M\n" });
	options.socket = fad.socket;
	options.connect_ns = fa_test_patience_ns();
	check(fa_connect(&options, &client));
	check(fa_timeline_open(client, &timeline));
	check(fa_cache_create(client, &cache_options, &cache));
	check(fa_buffer_new(client, sizeof(float) * LAYERS * LAYER_FLOATS, 0, &buffer));
	data = fa_buffer_data(buffer);
	return 0;
}

static int teardown(void **state)
{
	fa_buffer_free(buffer);
	fa_disconnect(client);
	fa_test_daemon_stop(&fad);
	return 0;
}

static void fill(uint64_t seed)
{
	struct fa_test_random random = { .state = seed };

	for (size_t i = 0; i < (size_t)LAYERS * LAYER_FLOATS; ++i)
		data[i] = (float)fa_test_random_below(&random, 2001) / 1000.0f - 1.0f;
}

static struct fa_tensor tensor(uint64_t at, int64_t heads)
{
	const int64_t shape[] = { TOKENS, heads, DIM };
	struct fa_tensor tensor;

	fa_tensor_init(&tensor, buffer, at * sizeof(float), FA_F32, 3, shape);
	return tensor;
}

static struct fa_step_attend attend_layer(uint32_t layer)
{
	const uint64_t at = (uint64_t)layer * LAYER_FLOATS;
	const int64_t lse_shape[] = { HEADS, TOKENS };
	struct fa_step_attend attend = { .size = sizeof(attend),
		                         .flags = FA_STEP_CAUSAL,
		                         .layer = layer,
		                         .q = tensor(at, HEADS),
		                         .out = tensor(at + Q_FLOATS, HEADS),
		                         .k_new = tensor(at + 2 * Q_FLOATS, KV_HEADS),
		                         .v_new = tensor(at + 2 * Q_FLOATS + KV_FLOATS, KV_HEADS),
		                         .rotary_dim = DIM };

	fa_tensor_init(&attend.lse, buffer, (at + 2 * Q_FLOATS + 2 * KV_FLOATS) * sizeof(float),
	               FA_F32, 2, lse_shape);
	return attend;
}

static struct fa_step *begin(uint64_t sequence)
{
	const struct fa_step_item item = { .sequence = sequence, .n_new = TOKENS };
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = 1,
		                                 .items = &item };
	struct fa_step *step;

	check(fa_step_begin(client, &options, &step));
	return step;
}

/*
 * Each layer waits for the next value of the client's slot 0, and signals the next one of the
 * daemon's.
 */
static struct fa_ticket attend_all(struct fa_step *step, const struct fa_step_attend *attend,
                                   uint32_t n_layers)
{
	const uint64_t bytes = LAYER_FLOATS * sizeof(float);
	const struct fa_gate wait = { .value = last_in + 1 }, signal = { .value = last_out + 1 };
	const struct fa_step_attend_layers layers = { .size = sizeof(layers),
		                                      .n_layers = n_layers,
		                                      .attend = attend,
		                                      .q_bytes = bytes,
		                                      .k_bytes = bytes,
		                                      .v_bytes = bytes,
		                                      .out_bytes = bytes,
		                                      .lse_bytes = bytes,
		                                      .wait = &wait,
		                                      .wait_increment = 1,
		                                      .signal = &signal,
		                                      .signal_increment = 1 };
	struct fa_ticket ticket;

	check(fa_step_attend_layers(step, &layers, &ticket));
	last_in += n_layers;
	last_out += n_layers;
	return ticket;
}

static uint64_t signalled(void)
{
	uint64_t value;

	check(fa_timeline_read(timeline, FA_GATE_DAEMON, &value));
	return value;
}

static void test_same_bits(void **state)
{
	static float expected[LAYERS * LAYER_FLOATS];
	const struct fa_step_attend first = attend_layer(0);
	uint64_t sequences[2];

	check(fa_sequence_create(client, cache, &sequences[0]));
	check(fa_sequence_create(client, cache, &sequences[1]));
	for (uint64_t round = 0; round < 8; ++round) {
		const uint64_t before = last_out;
		struct fa_step *step;
		struct fa_ticket ticket;

		fill(round + 1);
		step = begin(sequences[0]);
		for (uint32_t layer = 0; layer < LAYERS; ++layer) {
			struct fa_step_attend attend = attend_layer(layer);

			check(fa_step_attend(step, &attend, NULL));
		}
		check(fa_step_commit(step, NULL, NULL));
		fa_step_free(step);
		memcpy(expected, data, sizeof(expected));

		fill(round + 1);
		step = begin(sequences[1]);
		ticket = attend_all(step, &first, LAYERS);
		fa_check_eq(fa_wait(client, &ticket, 0, NULL), -EAGAIN);
		for (uint32_t layer = 0; layer < LAYERS; ++layer) {
			fa_check_eq(signalled(), before + layer);
			check(fa_timeline_write(timeline, 0, before + layer + 1));
			check(fa_timeline_wait(timeline, 0, before + layer + 1,
			                       fa_test_patience_ns()));
			/* Exactly the layers up to this one have been computed. */
			fa_check(!memcmp(data, expected,
			                 (size_t)(layer + 1) * LAYER_FLOATS * sizeof(float)));
			if (layer + 1 < LAYERS)
				fa_check(memcmp(data + (size_t)(layer + 1) * LAYER_FLOATS,
				                expected + (size_t)(layer + 1) * LAYER_FLOATS,
				                LAYER_FLOATS * sizeof(float)));
		}
		check(fa_wait(client, &ticket, fa_test_patience_ns(), NULL));
		check(fa_step_commit(step, NULL, NULL));
		fa_step_free(step);
	}
	check(fa_sequence_remove(client, sequences[0]));
	check(fa_sequence_remove(client, sequences[1]));
}

static void test_without_gates(void **state)
{
	const uint64_t bytes = LAYER_FLOATS * sizeof(float);
	struct fa_step_attend attend = attend_layer(3);
	struct fa_step_attend_layers layers = { .size = sizeof(layers),
		                                .n_layers = 7,
		                                .attend = &attend,
		                                .q_bytes = bytes,
		                                .k_bytes = bytes,
		                                .v_bytes = bytes,
		                                .out_bytes = bytes,
		                                .lse_bytes = bytes };
	struct fa_ticket ticket, next;
	uint64_t sequence;
	struct fa_step *step;

	check(fa_sequence_create(client, cache, &sequence));
	fill(77);
	step = begin(sequence);
	check(fa_step_attend_layers(step, &layers, &ticket));
	attend = attend_layer(0);
	check(fa_step_attend(step, &attend, &next));
	fa_check_eq(next.value, ticket.value + 1);
	attend = attend_layer(10);
	layers.n_layers = LAYERS - 10;
	check(fa_step_attend_layers(step, &layers, NULL));
	check(fa_wait(client, &ticket, 0, NULL));
	layers.n_layers = 0;
	fa_check_eq(fa_step_attend_layers(step, &layers, &ticket), -EINVAL);
	layers.n_layers = 257;
	fa_check_eq(fa_step_attend_layers(step, &layers, &ticket), -EINVAL);
	layers.n_layers = 1;
	layers.attend = NULL;
	fa_check_eq(fa_step_attend_layers(step, &layers, &ticket), -EINVAL);
	check(fa_step_abort(step, 0, NULL));
	fa_step_free(step);
	check(fa_sequence_remove(client, sequence));
}

/* The daemon must signal all values, and the step can only be aborted. */
static void expect_failed(struct fa_step *step, const struct fa_ticket *ticket, int status)
{
	fa_check_eq(fa_wait(client, ticket, fa_test_patience_ns(), NULL), status);
	fa_check_eq(fa_timeline_wait(timeline, 0, last_out, fa_test_patience_ns()), status);
	check(fa_timeline_write(timeline, 0, last_in));
	fa_check_eq(fa_step_commit(step, NULL, NULL), -ECANCELED);
	fa_step_free(step);
}

/* More layers than the cache has: the cache's layers are computed. */
static void test_fails_in_the_middle(void **state)
{
	struct fa_sequence_info info = { .size = sizeof(info) };
	const uint64_t before = last_out;
	struct fa_step_attend attend = attend_layer(LAYERS - 4);
	struct fa_ticket ticket, layer;
	uint64_t sequence;
	struct fa_step *step;

	attend.q = attend.out = (struct fa_tensor){};
	attend.lse = (struct fa_tensor){};
	attend.rotary_dim = 0;
	attend.k_new = tensor(0, KV_HEADS);
	attend.v_new = tensor(KV_FLOATS, KV_HEADS);
	check(fa_sequence_create(client, cache, &sequence));
	step = begin(sequence);
	ticket = attend_all(step, &attend, 10);
	for (uint64_t i = 1; i <= 4; ++i) {
		check(fa_timeline_write(timeline, 0, before + i));
		layer = ticket;
		layer.value = ticket.value - 10 + i;
		check(fa_wait(client, &layer, fa_test_patience_ns(), NULL));
	}
	expect_failed(step, &ticket, -EINVAL);
	check(fa_sequence_info(client, sequence, &info));
	fa_check_eq(info.length, 0);
	check(fa_sequence_remove(client, sequence));
}

static void test_refused(void **state)
{
	static const struct {
		uint32_t n_layers;
		uint64_t wait_increment, signal_increment;
		bool no_gates;
		int status;
		const char *text;
	} cases[] = {
		{ 0, 1, 1, false, -EINVAL, "n_layers is 0; expected 1 to 256" },
		{ 257, 1, 1, false, -EINVAL, "n_layers is 257; expected 1 to 256" },
		{ UINT32_MAX, 1, 1, false, -EINVAL, "n_layers is 4294967295" },
		{ 2, 1, 0, false, -EINVAL, "signal_increment is 0; expected 1 to " },
		{ 2, 1, 1ull << 63, false, -EINVAL, "signal_increment is 9223372036854775808" },
		{ 3, 1, 1ull << 62, false, -EINVAL, "signal_increment is" },
		{ 2, UINT64_MAX, 1, false, -EINVAL, "wait_increment is 18446744073709551615" },
		{ 3, 1ull << 62, 1, false, -EINVAL, "wait_increment is" },
		{ 2, UINT64_MAX, 0, true, -EINVAL, "no effect as wait is NULL" },
		{ 2, 0, 1, true, -EINVAL, "no effect as signal is NULL" },
		{ 2, 0, 0, true, 0, NULL },
		/* Increments are ignored with a single layer. */
		{ 1, UINT64_MAX, 0, false, 0, NULL },
	};
	const struct fa_gate far = { .slot = FA_TIMELINE_SLOTS };
	struct fa_step_attend attend = attend_layer(0);
	uint64_t sequence;
	struct fa_step *step;

	attend.q = attend.out = attend.lse = (struct fa_tensor){};
	attend.rotary_dim = 0;
	check(fa_sequence_create(client, cache, &sequence));
	step = begin(sequence);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); ++i) {
		const struct fa_gate wait = { .slot = 1 }, signal = { .slot = 1, .value = i + 1 };
		struct fa_step_attend_layers layers = {
			.size = sizeof(layers),
			.n_layers = cases[i].n_layers,
			.attend = &attend,
			.wait = cases[i].no_gates ? NULL : &wait,
			.wait_increment = cases[i].wait_increment,
			.signal = cases[i].no_gates ? NULL : &signal,
			.signal_increment = cases[i].signal_increment,
		};

		fa_check_eq(fa_step_attend_layers(step, &layers, NULL), cases[i].status);
		if (cases[i].text)
			fa_check_contains(fa_error(), cases[i].text);
		layers.n_layers = 1;
		layers.signal = &far;
		layers.wait = &wait;
		fa_check_eq(fa_step_attend_layers(step, &layers, NULL), -EINVAL);
		fa_check_contains(fa_error(), "signal: slot is 0x40");
		layers.attend = NULL;
		fa_check_eq(fa_step_attend_layers(step, &layers, NULL), -EINVAL);
		fa_check_contains(fa_error(), "attend is NULL");
		fa_check_eq(fa_step_attend_layers(step, NULL, NULL), -EINVAL);
		fa_check_eq(fa_step_attend_layers(NULL, &layers, NULL), -EINVAL);
	}
	check(fa_step_abort(step, 0, NULL));
	fa_step_free(step);
	check(fa_sequence_remove(client, sequence));
}

static void test_cancel(void **state)
{
	const struct fa_step_attend first = attend_layer(0);

	for (uint64_t opened = 0; opened < LAYERS; opened += 9) {
		const uint64_t before = last_out;
		struct fa_ticket ticket;
		uint64_t sequence;
		struct fa_step *step;

		check(fa_sequence_create(client, cache, &sequence));
		fill(opened + 1);
		step = begin(sequence);
		ticket = attend_all(step, &first, LAYERS);
		check(fa_timeline_write(timeline, 0, before + opened));
		if (opened)
			check(fa_timeline_wait(timeline, 0, before + opened,
			                       fa_test_patience_ns()));
		check(fa_cancel(client, &ticket));
		expect_failed(step, &ticket, -ECANCELED);
		check(fa_sequence_remove(client, sequence));
	}
}

static void test_timeout(void **state)
{
	struct fa_step_attend attend = attend_layer(0);
	struct fa_ticket ticket;
	uint64_t sequence;
	struct fa_step *step;

	check(fa_sequence_create(client, cache, &sequence));
	step = begin(sequence);
	attend.timeout_ns = 20 * FA_NS_PER_MS;
	ticket = attend_all(step, &attend, LAYERS);
	expect_failed(step, &ticket, -ETIMEDOUT);
	check(fa_sequence_remove(client, sequence));
}

/* More layers than may be in flight. */
static void test_in_flight_limit(void **state)
{
	struct fa_info info = { .size = sizeof(info) };
	const struct fa_step_attend first = attend_layer(0);
	struct fa_ticket ticket = {};
	uint64_t sequence, n;
	struct fa_step *step;

	check(fa_info(client, &info));
	n = info.max_requests / LAYERS;
	check(fa_sequence_create(client, cache, &sequence));
	fill(5);
	step = begin(sequence);
	for (uint64_t i = 0; i < n; ++i)
		ticket = attend_all(step, &first, LAYERS);
	{
		const struct fa_step_attend_layers layers = { .size = sizeof(layers),
			                                      .n_layers = LAYERS,
			                                      .attend = &first };

		fa_check_eq(fa_step_attend_layers(step, &layers, &ticket), -EAGAIN);
	}
	check(fa_timeline_write(timeline, 0, last_in));
	check(fa_timeline_wait(timeline, 0, last_out, fa_test_patience_ns()));
	check(fa_step_commit(step, NULL, NULL));
	fa_step_free(step);
	check(fa_sequence_remove(client, sequence));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_without_gates),
		cmocka_unit_test(test_fails_in_the_middle),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_timeout),
		cmocka_unit_test(test_in_flight_limit),
	};

	return cmocka_run_group_tests_name("layers", tests, setup, teardown);
}
