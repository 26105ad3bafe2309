/*
 * StepAttendLayers with invalid numbers: which layers are refused and why. Refused layers signal,
 * and the step cannot be committed.
 */
#include "common/clock.h"
#include "common/timeline.h"
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/ring.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum {
	STEP = 7,
	STREAM = 3,
	TOKENS = 4,
	GIVEN = 5,
	LAST = 6,
	WANTED = 9,
};

static struct fa_test_daemon daemon_process;
static struct kv_client client;
static struct fa_timeline_in *in;
static const struct fa_timeline_out *out;
static uint64_t sequence;
static uint32_t numbers[64];

static int start(void **state)
{
	fa_test_daemon_start(&daemon_process,
	                     &(struct fa_test_daemon_options){ .config = "[pool]\nbytes = 16M\n"
	                                                                 "chunk_bytes = 2M\n" });
	kv_count(numbers, 1, 64);
	return 0;
}

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

static int open_client(void **state)
{
	kv_open(&client, daemon_process.socket);
	fa_raw_stream_create(&client.raw, STREAM, 0);
	kv_open_timeline(&client, &in, &out);
	sequence = kv_sequence(&client, kv_cache(&client, NULL, 0));
	kv_append(&client, sequence, numbers, 0, 20);
	return 0;
}

/* Sequence and stream must be usable whatever the test did. */
static int close_client(void **state)
{
	kv_check(&client, sequence, numbers, 0, 20);
	kv_append(&client, sequence, numbers, 20, 1);
	kv_close_timeline(in, out);
	kv_close(&client);
	return 0;
}

static uint64_t given(uint32_t slot)
{
	return atomic_load((_Atomic uint64_t *)(void *)&out[slot].value);
}

static struct fa_wire_message layers_message(uint32_t stream)
{
	static struct fa_wire_gate signals[1];
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_ATTEND_LAYERS);
	struct fa_wire_step_attend_layers *layers = &message.step_attend_layers;
	const float *result;

	signals[0] = (struct fa_wire_gate){ .slot = LAST, .value = given(LAST) + 1 };
	layers->attend =
		kv_attend_message(&client, stream, STEP, 0, numbers, TOKENS, &result).step_attend;
	layers->n_layers = KV_LAYERS;
	layers->has_wait = layers->has_signal = true;
	layers->wait = (struct fa_wire_gate){ .slot = WANTED };
	layers->signal = (struct fa_wire_gate){ .slot = GIVEN, .value = given(GIVEN) + 1 };
	layers->wait_increment = 0;
	layers->signal_increment = 1;
	message.signals = signals;
	message.n_signals = 1;
	return message;
}

static uint64_t send_layers(struct fa_wire_message *message, uint32_t stream, uint32_t n)
{
	uint64_t first = kv_send(&client, message, stream);

	client.values[stream] = first + n - 1;
	return first;
}

static void check_aborted(void)
{
	kv_wait_expect(&client, 0, kv_end(&client, 0, STEP, true), -ECANCELED, NULL);
	fa_check_eq(kv_info(&client, sequence).length, 20);
}

static void test_number(void **state)
{
	static const uint32_t wrong[] = { 0, FA_WIRE_LAYERS_MAX + 1, 1000, UINT32_MAX };

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); ++i) {
		struct fa_wire_message message;
		uint64_t value, signal, last;

		kv_begin_one(&client, STEP, sequence, TOKENS);
		message = layers_message(STREAM);
		message.step_attend_layers.n_layers = wrong[i];
		message.step_attend_layers.wait.value = 1;
		signal = message.step_attend_layers.signal.value;
		last = message.signals[0].value;
		value = send_layers(&message, STREAM, 1);
		kv_wait_expect(&client, STREAM, value, -EINVAL, "n_layers is ");
		fa_check_eq(given(GIVEN), signal + (wrong[i] ? wrong[i] - 1 : 0));
		fa_check_eq(given(LAST), last);
		fa_check_eq(out[GIVEN].status, -EINVAL);
		check_aborted();
	}
}

/* The layers' values wrap around behind the last one signalled. */
static void test_number_round(void **state)
{
	struct fa_wire_message message;
	uint64_t before;

	kv_begin_one(&client, STEP, sequence, TOKENS);
	message = layers_message(STREAM);
	message.step_attend_layers.n_layers = 257;
	message.step_attend_layers.signal.value = given(GIVEN) + 1;
	message.step_attend_layers.signal_increment = UINT64_MAX;
	before = given(GIVEN);
	kv_wait_expect(&client, STREAM, send_layers(&message, STREAM, 1), -EINVAL, NULL);
	fa_check_eq(given(GIVEN), before);
	check_aborted();
}

static void test_maximum(void **state)
{
	struct fa_wire_message message;
	uint64_t first, signal, last;

	kv_begin_one(&client, STEP, sequence, TOKENS);
	message = layers_message(STREAM);
	message.step_attend_layers.n_layers = FA_WIRE_LAYERS_MAX;
	signal = message.step_attend_layers.signal.value;
	last = message.signals[0].value;
	first = send_layers(&message, STREAM, FA_WIRE_LAYERS_MAX);
	kv_wait(&client, STREAM, first);
	kv_wait(&client, STREAM, first + 1);
	for (uint32_t i = KV_LAYERS; i < FA_WIRE_LAYERS_MAX; ++i)
		kv_wait_expect(&client, STREAM, first + i, -EINVAL, "layer is 2;");
	fa_check_eq(given(GIVEN), signal + FA_WIRE_LAYERS_MAX - 1);
	fa_check_eq(given(LAST), last);
	check_aborted();
}

static void check_refused(struct fa_wire_message *message, bool both, int status, const char *part)
{
	uint64_t first = send_layers(message, STREAM, KV_LAYERS), last = message->signals[0].value;

	if (both)
		kv_wait_expect(&client, STREAM, first, status, part);
	else
		kv_wait(&client, STREAM, first);
	kv_wait_expect(&client, STREAM, first + 1, status, part);
	fa_check_eq(given(LAST), last);
	check_aborted();
}

#define LAYERS(message) ((message).step_attend_layers)

static void test_growing(void **state)
{
	struct fa_wire_message message;

#define EXPECT(change, both, status, part)                                                         \
	do {                                                                                       \
		kv_begin_one(&client, STEP, sequence, TOKENS);                                     \
		message = layers_message(STREAM);                                                  \
		LAYERS(message).change;                                                            \
		check_refused(&message, both, status, part);                                       \
	} while (0)
	EXPECT(attend.layer = UINT32_MAX, true, -EINVAL, "layer is 4294967295;");
	EXPECT(attend.layer = 1, false, -EINVAL, "layer is 2;");
	EXPECT(q_bytes = UINT64_MAX, false, -EINVAL, "q");
	EXPECT(q_bytes = 1, false, -EINVAL, "q");
	EXPECT(k_bytes = client.buffer.bytes, false, -EINVAL, "k");
	EXPECT(v_bytes = UINT64_MAX - LAYERS(message).attend.v.offset, false, -EINVAL, "v");
	EXPECT(out_bytes = (uint64_t)1 << 63, false, -EINVAL, "out");
	EXPECT(wait.slot = 64, true, -EINVAL, "waits[0].slot is 0x40");
	EXPECT(wait.reserved = 1, true, -EINVAL, "waits[0].reserved");
	EXPECT(signal.slot = FA_WIRE_GATE_OUT, true, -EINVAL, "signals[0].slot is 0x80000000");
	EXPECT(signal_increment = 0, false, -EINVAL, "signals[0].value is");
	EXPECT(signal_increment = UINT64_MAX, false, -EINVAL, "signals[0].value is");
#undef EXPECT
}

/* Layers of a missing step do not count for another. */
static void test_no_step(void **state)
{
	struct fa_wire_message message;
	uint64_t first;

	kv_begin_one(&client, STEP, sequence, TOKENS);
	message = layers_message(STREAM);
	LAYERS(message).attend.step = STEP + 1;
	first = send_layers(&message, STREAM, KV_LAYERS);
	for (uint32_t i = 0; i < KV_LAYERS; ++i)
		kv_wait_expect(&client, STREAM, first + i, -ENOENT, "no step 8");
	kv_wait(&client, 0, kv_end(&client, 0, STEP, false));
}

/* A value half the range away counts as not reached. */
static void test_wait_half_around(void **state)
{
	struct fa_wire_message message, cancel = fa_raw_message(FA_WIRE_CANCEL);
	uint64_t first;

	kv_begin_one(&client, STEP, sequence, TOKENS);
	message = layers_message(STREAM);
	LAYERS(message).wait_increment = (uint64_t)1 << 63;
	first = send_layers(&message, STREAM, KV_LAYERS);
	kv_wait(&client, STREAM, first);
	fa_test_quiet_ms(20);
	fa_check(client.raw.page[STREAM].completed == first);
	cancel.cancel.stream = STREAM;
	cancel.cancel.value = first + 1;
	fa_raw_call_expect(&client.raw, &cancel, NULL, 0, 0, NULL);
	kv_wait_expect(&client, STREAM, first + 1, -ECANCELED, NULL);
	check_aborted();
}

static void test_no_stream(void **state)
{
	struct fa_wire_message message;
	uint64_t first, signal, last;

	kv_begin_one(&client, STEP, sequence, TOKENS);
	message = layers_message(STREAM + 1);
	signal = LAYERS(message).signal.value;
	last = message.signals[0].value;
	first = send_layers(&message, STREAM + 1, KV_LAYERS);
	for (uint32_t i = 0; i < KV_LAYERS; ++i)
		kv_wait_expect(&client, STREAM + 1, first + i, -ENOENT, "no stream 4");
	fa_check_eq(given(GIVEN), signal + KV_LAYERS - 1);
	fa_check_eq(given(LAST), last);
	check_aborted();

	/* In an unknown stream, too, a StepEnd ends its step. */
	kv_begin_one(&client, STEP, sequence, TOKENS);
	first = kv_end(&client, STREAM + 1, STEP, true);
	kv_wait_expect(&client, STREAM + 1, first, -ENOENT, "no stream 4");
	kv_wait_expect(&client, 0, kv_end(&client, 0, STEP, true), -ENOENT, "no step 7");
	fa_check_eq(kv_info(&client, sequence).length, 20);
}

static void test_by_ring(void **state)
{
	static const uint32_t wrong[] = { 0, FA_WIRE_LAYERS_MAX + 1, UINT32_MAX };
	struct fa_wire_message message;
	struct fa_raw_ring ring;
	uint64_t first;

	fa_raw_ring_open(&client.raw, &ring, 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); ++i) {
		kv_begin_one(&client, STEP, sequence, TOKENS);
		message = layers_message(STREAM);
		LAYERS(message).n_layers = wrong[i];
		message.id = ++client.raw.next_id;
		fa_raw_ring_send(&ring, &message);
		kv_wait_expect(&client, STREAM, client.values[STREAM], -EINVAL, "n_layers is ");
		fa_check_eq(
			fa_raw_ring_wait(&client.raw, &ring, STREAM, client.values[STREAM]).status,
			-EINVAL);
		check_aborted();
	}

	kv_begin_one(&client, STEP, sequence, TOKENS);
	first = client.values[STREAM] + 1;
	for (int i = 0; i < 20; ++i) {
		message = layers_message(STREAM);
		message.n_signals = 0;
		LAYERS(message).has_signal = false;
		LAYERS(message).attend.step = STEP + 1;
		LAYERS(message).n_layers = FA_WIRE_LAYERS_MAX;
		message.id = ++client.raw.next_id;
		fa_raw_ring_send(&ring, &message);
		client.values[STREAM] += FA_WIRE_LAYERS_MAX - 1;
	}
	for (uint64_t value = first; value <= client.values[STREAM]; ++value)
		kv_wait_expect(&client, STREAM, value, -ENOENT, "no step 8");
	kv_wait(&client, 0, kv_end(&client, 0, STEP, false));
	fa_raw_ring_close(&ring);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_number, open_client, close_client),
		cmocka_unit_test_setup_teardown(test_number_round, open_client, close_client),
		cmocka_unit_test_setup_teardown(test_maximum, open_client, close_client),
		cmocka_unit_test_setup_teardown(test_growing, open_client, close_client),
		cmocka_unit_test_setup_teardown(test_no_step, open_client, close_client),
		cmocka_unit_test_setup_teardown(test_wait_half_around, open_client, close_client),
		cmocka_unit_test_setup_teardown(test_no_stream, open_client, close_client),
		cmocka_unit_test_setup_teardown(test_by_ring, open_client, close_client),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
