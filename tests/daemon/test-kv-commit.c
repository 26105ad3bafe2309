/*
 * A StepEnd completes before the next message is handled if no request of its step is in flight,
 * else behind what it waits for; by packet and by ring.
 */
#include "common/clock.h"
#include "kv-ring-scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static uint64_t attend(uint32_t stream, uint32_t step, const uint32_t *tokens, uint32_t n,
                       bool gated)
{
	const struct fa_wire_gate wait = { .slot = SLOT, .value = gate + 1 };
	struct fa_wire_message message;
	uint64_t value = 0;

	for (uint32_t layer = 0; layer < n; layer++) {
		message = kv_attend_message(&client, stream, step, layer, tokens, TOKENS, NULL);
		if (gated && !layer) {
			message.waits = &wait;
			message.n_waits = 1;
			++gate;
		}
		value = kv_send(&client, &message, stream);
	}
	return value;
}

static uint64_t end_by_ring(uint32_t stream, uint32_t step, bool commit)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_END);

	/* Ring entries are ordered only behind packets that were answered. */
	(void)kv_info(&client, sequence);
	message.id = ++client.raw.next_id;
	message.step_end.stream = stream;
	message.step_end.value = ++client.values[stream];
	message.step_end.step = step;
	message.step_end.flags = commit ? FA_WIRE_STEP_COMMIT : 0;
	fa_raw_ring_send(&ring, &message);
	return client.values[stream];
}

static uint64_t end(bool by_ring, uint32_t stream, uint32_t step, bool commit)
{
	return by_ring ? end_by_ring(stream, step, commit) : kv_end(&client, stream, step, commit);
}

/* By ring, only a failure has a Completion. */
static void wait_end(bool by_ring, uint32_t stream, uint64_t value, int status, const char *part)
{
	struct fa_outcome outcome = fa_raw_ring_wait(&client.raw, &ring, stream, value);

	fa_check_eq(outcome.status, status);
	fa_check(outcome.finished_ns >= outcome.queued_ns);
	fa_check_eq(outcome.started_ns, 0);
	if (!by_ring || status)
		kv_wait_expect(&client, stream, value, status, part);
}

/* ---- at once: the next packet finds the step ended */

static void commit_at_once(bool by_ring)
{
	uint64_t value;

	kv_begin_one(&client, 1, sequence, TOKENS);
	kv_wait(&client, STREAM, attend(STREAM, 1, numbers + 20, KV_LAYERS, false));
	value = end(by_ring, STREAM, 1, true);
	check_lengths(24, 24);
	wait_end(by_ring, STREAM, value, 0, NULL);
	value = end(by_ring, STREAM, 1, true);
	wait_end(by_ring, STREAM, value, -ENOENT, "no step 1");
}

static void test_commit(void **state)
{
	commit_at_once(false);
}

static void test_commit_by_ring(void **state)
{
	commit_at_once(true);
}

static void abort_at_once(bool by_ring)
{
	uint64_t value;

	kv_begin_one(&client, 1, sequence, TOKENS);
	kv_wait(&client, STREAM, attend(STREAM, 1, numbers + 20, 1, false));
	value = end(by_ring, STREAM, 1, false);
	check_lengths(20, 20);
	wait_end(by_ring, STREAM, value, 0, NULL);
}

static void test_abort(void **state)
{
	abort_at_once(false);
}

static void test_abort_by_ring(void **state)
{
	abort_at_once(true);
}

static void fail_at_once(bool by_ring)
{
	struct fa_wire_message message;
	uint64_t value;

	kv_begin_one(&client, 1, sequence, TOKENS);
	message = kv_attend_message(&client, STREAM, 1, KV_LAYERS, numbers, TOKENS, NULL);
	kv_wait_expect(&client, STREAM, kv_send(&client, &message, STREAM), -EINVAL, "layer");
	value = end(by_ring, STREAM, 1, true);
	check_lengths(20, 20);
	wait_end(by_ring, STREAM, value, -ECANCELED, "has failed");
	fa_check_eq(atomic_load(&client.raw.page[STREAM].failed), value);
}

static void test_failed(void **state)
{
	fail_at_once(false);
}

static void test_failed_by_ring(void **state)
{
	fail_at_once(true);
}

static void test_several(void **state)
{
	uint64_t values[4];

	for (uint32_t i = 0; i < 4; i++) {
		kv_begin_one(&client, 1 + i, sequence, TOKENS);
		attend(STREAM, 1 + i, numbers + 20 + TOKENS * i, KV_LAYERS, false);
	}
	kv_wait(&client, STREAM, client.values[STREAM]);
	for (uint32_t i = 0; i < 4; i++)
		values[i] = end_by_ring(i % 2 ? STREAM : 0, 1 + i, true);
	check_lengths(36, 36);
	for (uint32_t i = 0; i < 4; i++)
		wait_end(true, i % 2 ? STREAM : 0, values[i], 0, NULL);
}

/* A commit that completes at once is in time. */
static void test_deadline_is_met(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_END);

	kv_begin_one(&client, 1, sequence, TOKENS);
	kv_wait(&client, STREAM, attend(STREAM, 1, numbers + 20, KV_LAYERS, false));
	message.timeout_ns = 10 * FA_NS_PER_SEC;
	message.step_end = (struct fa_wire_step_end){ .stream = STREAM,
		                                      .value = ++client.values[STREAM],
		                                      .step = 1,
		                                      .flags = FA_WIRE_STEP_COMMIT };
	kv_send(&client, &message, STREAM);
	check_lengths(24, 24);
	kv_wait(&client, STREAM, client.values[STREAM]);
}

static void commit_behind(bool by_ring, uint32_t stream)
{
	uint64_t value;

	kv_begin_one(&client, 1, sequence, TOKENS);
	attend(STREAM, 1, numbers + 20, KV_LAYERS, true);
	value = end(by_ring, stream, 1, true);
	check_lengths(20, 24);
	fa_check(atomic_load(&client.raw.page[stream].completed) < value);
	open_gate();
	wait_end(by_ring, stream, value, 0, NULL);
	check_lengths(24, 24);
}

static void test_behind(void **state)
{
	commit_behind(false, STREAM);
}

static void test_behind_by_ring(void **state)
{
	commit_behind(true, STREAM);
}

static void test_behind_other_stream(void **state)
{
	commit_behind(false, 0);
}

static void test_behind_other_stream_by_ring(void **state)
{
	commit_behind(true, 0);
}

/* A commit behind another step's request in its stream. */
static void test_in_order(void **state)
{
	uint64_t other = kv_sequence(&client, kv_cache(&client, NULL, 0)), first, second;

	kv_begin_one(&client, 1, sequence, TOKENS);
	kv_wait(&client, STREAM, attend(STREAM, 1, numbers + 20, KV_LAYERS, false));
	kv_begin_one(&client, 2, other, TOKENS);
	first = attend(STREAM, 2, numbers, KV_LAYERS, true);
	second = end_by_ring(STREAM, 1, true);
	check_lengths(20, 24);
	open_gate();
	wait_end(true, STREAM, second, 0, NULL);
	kv_wait(&client, STREAM, first);
	check_lengths(24, 24);
	kv_wait(&client, 0, kv_end(&client, 0, 2, false));
}

/* A finished step commits after the unfinished one on which it is planned. */
static void test_planned_on(void **state)
{
	uint64_t first, second;

	kv_begin_one(&client, 1, sequence, TOKENS);
	attend(STREAM, 1, numbers + 20, KV_LAYERS, true);
	first = end_by_ring(STREAM, 1, true);
	kv_begin_one(&client, 2, sequence, 0);
	second = end_by_ring(0, 2, true);
	check_lengths(20, 24);
	fa_check(atomic_load(&client.raw.page[0].completed) < second);
	open_gate();
	wait_end(true, 0, second, 0, NULL);
	fa_check(atomic_load(&client.raw.page[STREAM].completed) >= first);
	wait_end(true, STREAM, first, 0, NULL);
	check_lengths(24, 24);
}

static void test_gated(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_END);
	const struct fa_wire_gate wait = { .slot = SLOT, .value = ++gate };

	kv_begin_one(&client, 1, sequence, TOKENS);
	kv_wait(&client, STREAM, attend(STREAM, 1, numbers + 20, KV_LAYERS, false));
	message.waits = &wait;
	message.n_waits = 1;
	message.step_end = (struct fa_wire_step_end){ .stream = STREAM,
		                                      .value = ++client.values[STREAM],
		                                      .step = 1,
		                                      .flags = FA_WIRE_STEP_COMMIT };
	kv_send(&client, &message, STREAM);
	check_lengths(20, 24);
	open_gate();
	kv_wait(&client, STREAM, client.values[STREAM]);
	check_lengths(24, 24);
}

static void test_cancelled(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);
	uint64_t first, value;

	kv_begin_one(&client, 1, sequence, TOKENS);
	first = attend(STREAM, 1, numbers + 20, 1, true);
	value = end_by_ring(0, 1, true);
	check_lengths(20, 24);
	message.cancel = (struct fa_wire_cancel){ .stream = STREAM, .value = first };
	fa_raw_call(&client.raw, &message, NULL, 0);
	kv_wait_expect(&client, STREAM, first, -ECANCELED, NULL);
	wait_end(true, 0, value, -ECANCELED, "has failed");
	check_lengths(20, 20);
	open_gate();
}

/* Commits of both kinds are in flight: each has happened or not, and the sequence is usable. */
static void test_client_leaves(void **state)
{
	struct kv_client other;
	uint64_t cache, named;
	char name[32];

	for (int i = 0; i < 20; i++) {
		kv_open(&other, daemon_process.socket);
		snprintf(name, sizeof(name), "left-%d", i);
		cache = kv_cache(&other, name, 0);
		named = kv_sequence(&other, cache);
		kv_set_name(&other, named, name, 0);
		kv_begin_one(&other, 1, named, TOKENS);
		for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
			kv_attend(&other, 0, 1, layer, numbers, TOKENS, NULL);
		if (i % 2)
			kv_wait(&other, 0, other.values[0]);
		kv_end(&other, 0, 1, true);
		kv_close(&other);
		named = kv_sequence_find(&client, name);
		kv_check(&client, named, numbers, 0, kv_info(&client, named).length);
		kv_free(&client, named);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, open_client, close_client)
	const struct CMUnitTest tests[] = {
		TEST(commit),
		TEST(commit_by_ring),
		TEST(abort),
		TEST(abort_by_ring),
		TEST(failed),
		TEST(failed_by_ring),
		TEST(several),
		TEST(deadline_is_met),
		TEST(behind),
		TEST(behind_by_ring),
		TEST(behind_other_stream),
		TEST(behind_other_stream_by_ring),
		TEST(in_order),
		TEST(planned_on),
		TEST(gated),
		TEST(cancelled),
		TEST(client_leaves),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
