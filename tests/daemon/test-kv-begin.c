/*
 * StepBegin through the ring is planned when it is read and finishes in its stream's order, with
 * the step's number in its record. If it fails there is no step. As a packet it is no request of a
 * stream.
 */
#include "common/clock.h"
#include "kv-ring-scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static uint64_t other_sequence;

static int open_two_sequences(void **state)
{
	open_client(state);
	other_sequence = kv_sequence(&client, kv_cache(&client, NULL, 0));
	return 0;
}

/* Keeps @stream busy until open_gate(). */
static uint64_t block(uint32_t stream)
{
	const struct fa_wire_gate wait = { .slot = SLOT, .value = ++gate };
	struct fa_wire_message message = fa_raw_message(FA_WIRE_MARKER);

	message.waits = &wait;
	message.n_waits = 1;
	message.marker.stream = stream;
	message.marker.value = ++client.values[stream];
	kv_send(&client, &message, stream);
	/* Ring entries are ordered only behind packets that were answered. */
	(void)kv_info(&client, sequence);
	return client.values[stream];
}

static struct fa_wire_message begin_message(uint32_t stream, uint32_t step,
                                            const struct fa_wire_step_item *item)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_BEGIN);

	message.id = ++client.raw.next_id;
	message.step_begin = (struct fa_wire_step_begin){ .step = step,
		                                          .items = item,
		                                          .n_items = 1,
		                                          .stream = stream,
		                                          .value = ++client.values[stream] };
	return message;
}

static uint64_t begin(uint32_t stream, uint32_t step)
{
	const struct fa_wire_step_item item = { .sequence = sequence, .n_new = TOKENS };
	struct fa_wire_message message = begin_message(stream, step, &item);

	fa_raw_ring_send(&ring, &message);
	return client.values[stream];
}

static uint64_t wait_begin(uint32_t stream, uint64_t value)
{
	struct fa_outcome outcome = fa_raw_ring_wait(&client.raw, &ring, stream, value);

	fa_check_eq(outcome.status, 0);
	fa_check(outcome.finished_ns >= outcome.queued_ns);
	fa_check_eq(outcome.started_ns, 0);
	fa_check(outcome.number);
	return outcome.number;
}

static void wait_refused(uint32_t stream, uint64_t value, int status, const char *part)
{
	struct fa_outcome outcome = fa_raw_ring_wait(&client.raw, &ring, stream, value);

	fa_check_eq(outcome.status, status);
	kv_wait_expect(&client, stream, value, status, part);
}

static void attend_and_end(uint32_t stream, uint32_t step, const uint32_t *tokens, bool commit)
{
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		kv_attend(&client, stream, step, layer, tokens, TOKENS, NULL);
	kv_wait(&client, stream, kv_end(&client, stream, step, commit));
}

/* Returns when the engine has seen the cancel: it has run later requests. */
static void cancel(uint32_t stream, uint64_t value)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);

	message.cancel = (struct fa_wire_cancel){ .stream = stream, .value = value };
	fa_raw_call(&client.raw, &message, NULL, 0);
	kv_append(&client, other_sequence, numbers,
	          (uint32_t)kv_info(&client, other_sequence).length, 1);
}

static void test_begin(void **state)
{
	uint64_t number, before = 0;

	for (uint32_t i = 0; i < 5; i++) {
		const size_t n = client.raw.n_completions;

		number = wait_begin(STREAM, begin(STREAM, 1 + i));
		fa_check(number > before);
		before = number;
		check_lengths(20 + TOKENS * i, 24 + TOKENS * i);
		/* The record is the only answer. */
		fa_check_eq(client.raw.n_completions, n);
		attend_and_end(STREAM, 1 + i, numbers + 20 + TOKENS * i, true);
		fa_check_eq(kv_info(&client, sequence).step, number);
	}
}

static void test_several(void **state)
{
	uint64_t values[4], number, before = 0;

	for (uint32_t i = 0; i < 4; i++)
		values[i] = begin(i % 2 ? STREAM : 0, 1 + i);
	check_lengths(20, 36);
	for (uint32_t i = 0; i < 4; i++) {
		number = wait_begin(i % 2 ? STREAM : 0, values[i]);
		fa_check(number > before);
		before = number;
	}
	for (uint32_t i = 0; i < 4; i++)
		attend_and_end(i % 2 ? STREAM : 0, 1 + i, numbers + 20 + TOKENS * i, true);
	check_lengths(36, 36);
}

/*
 * Behind a request of its stream StepBegin is planned at once, and its step usable; it finishes
 * later.
 */
static void test_behind(void **state)
{
	uint64_t blocked = block(STREAM), value = begin(STREAM, 1);

	check_lengths(20, 24);
	fa_check(atomic_load(&client.raw.page[STREAM].completed) < blocked);
	attend_and_end(0, 1, numbers + 20, true);
	check_lengths(24, 24);
	fa_check(atomic_load(&client.raw.page[STREAM].completed) < blocked);
	open_gate();
	wait_begin(STREAM, value);
	kv_wait(&client, STREAM, blocked);
}

static void test_refused(void **state)
{
	struct fa_wire_step_item item = { .sequence = sequence + 1000, .n_new = TOKENS };
	struct fa_wire_message message;
	uint64_t first;

#define REFUSED(change, status, part)                                                              \
	message = begin_message(STREAM, 2, &item);                                                 \
	change;                                                                                    \
	fa_raw_ring_send(&ring, &message);                                                         \
	wait_refused(STREAM, client.values[STREAM], status, part)

	REFUSED((void)0, -ENOENT, "sequence");
	item.sequence = sequence;
	REFUSED(message.step_begin.step = 0, -EINVAL, "step is 0");
	item.flags = 2;
	REFUSED((void)0, -EINVAL, "items[0].flags is 0x2");
	item.flags = 0;
	check_lengths(20, 20);
	first = begin(STREAM, 2);
	REFUSED((void)0, -EEXIST, "step 2 is in flight already");
	check_lengths(20, 24);
	wait_begin(STREAM, first);
#undef REFUSED
	first = block(0);
	item.sequence = sequence + 1000;
	message = begin_message(0, 3, &item);
	fa_raw_ring_send(&ring, &message);
	check_lengths(20, 24);
	fa_check(atomic_load(&client.raw.page[0].completed) < first);
	open_gate();
	wait_refused(0, client.values[0], -ENOENT, "sequence");
	kv_wait(&client, 0, first);
	attend_and_end(STREAM, 2, numbers + 20, false);
}

/* Answered at once. */
static void test_no_stream(void **state)
{
	const struct fa_wire_step_item item = { .sequence = sequence, .n_new = TOKENS };
	struct fa_wire_message message = begin_message(STREAM + 1, 1, &item);

	fa_raw_ring_send(&ring, &message);
	kv_wait_expect(&client, STREAM + 1, client.values[STREAM + 1], -ENOENT, "no stream 4");
	check_lengths(20, 20);
}

/* In the ring a value that is not the next ends the connection; so does 0, which a packet has. */
static void test_out_of_order(void **state)
{
	for (uint64_t value = 0; value < 4; value += 2) {
		const struct fa_wire_step_item item = { .sequence = 1, .n_new = TOKENS };
		struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_BEGIN);
		struct kv_client other;
		struct fa_raw_ring others;

		kv_open(&other, daemon_process.socket);
		fa_raw_ring_open(&other.raw, &others, 0);
		message.id = ++other.raw.next_id;
		message.step_begin = (struct fa_wire_step_begin){
			.step = 1, .items = &item, .n_items = 1, .value = value
		};
		fa_raw_ring_send(&others, &message);
		fa_raw_expect_reply(&other.raw, message.id, -EPROTO, "expected 1", true);
		fa_raw_ring_close(&others);
		kv_close(&other);
	}
}

static void test_packet(void **state)
{
	const struct fa_wire_step_item item = { .sequence = sequence, .n_new = TOKENS };
	const struct fa_wire_gate gates[] = { { .slot = SLOT, .value = 1 } };
	struct fa_wire_message message = begin_message(STREAM, 1, &item);

	--client.values[STREAM];
	kv_call_expect(&client, &message, -EINVAL, "expected 0, as the message is a packet");
	message.step_begin.value = 0;
	kv_call_expect(&client, &message, -EINVAL, "stream is 3");
	message.step_begin.stream = 0;
	message.waits = gates;
	message.n_waits = 1;
	kv_call_expect(&client, &message, -EINVAL, "StepBegin came with gates");
	message.waits = NULL;
	message.n_waits = 0;
	message.signals = gates;
	message.n_signals = 1;
	kv_call_expect(&client, &message, -EINVAL, "StepBegin came with gates");
	check_lengths(20, 20);
}

static void test_limit(void **state)
{
	const struct fa_wire_step_item item = { .sequence = sequence };
	struct fa_wire_message message;
	uint32_t n = 0;
	int status = 0;

	while (status == 0) {
		message = begin_message(STREAM, ++n, &item);
		fa_raw_ring_send(&ring, &message);
		status = fa_raw_ring_wait(&client.raw, &ring, STREAM, client.values[STREAM]).status;
		fa_check(n < 10000);
	}
	kv_wait_expect(&client, STREAM, client.values[STREAM], -EDQUOT, "session_steps");
	for (uint32_t step = 1; step < n; step++)
		kv_end(&client, STREAM, step, false);
	kv_wait(&client, STREAM, client.values[STREAM]);
	wait_begin(STREAM, begin(STREAM, n));
	kv_wait(&client, STREAM, kv_end(&client, STREAM, n, false));
}

/* ---- failures after planning */

static void test_cancelled(void **state)
{
	uint64_t blocked = block(STREAM), value = begin(STREAM, 1);

	check_lengths(20, 24);
	cancel(STREAM, value);
	open_gate();
	kv_wait(&client, STREAM, blocked);
	wait_refused(STREAM, value, -ECANCELED, "cancelled");
	check_lengths(20, 20);
	kv_wait_expect(&client, 0, kv_end(&client, 0, 1, true), -ENOENT, "no step 1");
}

static void test_timeout(void **state)
{
	const struct fa_wire_step_item item = { .sequence = sequence, .n_new = TOKENS };
	uint64_t blocked = block(STREAM);
	struct fa_wire_message message = begin_message(STREAM, 1, &item);

	message.timeout_ns = 1;
	fa_raw_ring_send(&ring, &message);
	check_lengths(20, 24);
	/* The engine has run later requests, so it has seen the deadline pass. */
	kv_append(&client, other_sequence, numbers, 0, 1);
	open_gate();
	kv_wait(&client, STREAM, blocked);
	wait_refused(STREAM, client.values[STREAM], -ETIMEDOUT, "deadline");
	check_lengths(20, 20);
}

/* The step ended before, and its id is another step's. */
static void test_cancelled_late(void **state)
{
	uint64_t blocked = block(STREAM), value = begin(STREAM, 1);

	check_lengths(20, 24);
	attend_and_end(0, 1, numbers + 20, true);
	kv_begin_one(&client, 1, sequence, TOKENS);
	cancel(STREAM, value);
	open_gate();
	kv_wait(&client, STREAM, blocked);
	wait_refused(STREAM, value, -ECANCELED, "cancelled");
	check_lengths(24, 28);
	attend_and_end(0, 1, numbers + 24, true);
	check_lengths(28, 28);
}

static void test_cancelled_in_use(void **state)
{
	uint64_t blocked = block(STREAM), value = begin(STREAM, 1), attended;

	check_lengths(20, 24);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		attended = kv_attend(&client, 0, 1, layer, numbers + 20, TOKENS, NULL);
	cancel(STREAM, value);
	open_gate();
	kv_wait(&client, STREAM, blocked);
	wait_refused(STREAM, value, -ECANCELED, "cancelled");
	kv_wait(&client, 0, attended);
	check_lengths(20, 20);
}

static void test_left(void **state)
{
	for (int i = 0; i < 10; i++) {
		struct kv_client other = client;
		struct fa_raw_ring others = ring;
		uint64_t old = sequence;

		kv_open(&client, daemon_process.socket);
		fa_raw_ring_open(&client.raw, &ring, 0);
		sequence = kv_sequence(&client, kv_cache(&client, NULL, 0));
		begin(0, 1);
		if (i % 2)
			check_lengths(0, TOKENS);
		begin(0, 2);
		fa_raw_ring_close(&ring);
		kv_close(&client);
		client = other;
		ring = others;
		sequence = old;
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, open_two_sequences, close_client)
	const struct CMUnitTest tests[] = {
		TEST(begin),     TEST(several),      TEST(behind),         TEST(refused),
		TEST(no_stream), TEST(out_of_order), TEST(packet),         TEST(limit),
		TEST(cancelled), TEST(timeout),      TEST(cancelled_late), TEST(cancelled_in_use),
		TEST(left),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
