/*
 * The GPU itself waits on a client's slot, under simulated MPS. Gated requests begin in order, when
 * the gate opens and not before; other requests do not wait. When the GPU gives up, they return to
 * the daemon and are done once. The tests' driver checks counters against the launches' arguments.
 */
#include "gate-scene.h"

#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void test_open(void **state)
{
	struct fa_test_cuda_gates before;
	struct engine engine;
	const float *out;

	engine_begin(&engine);
	for (uint64_t value = 1; value <= 40; value++) {
		uint64_t request;

		before = fa_test_cuda_gates(page);
		request = attend_at(&engine, value, &out);
		wait_began(&before, 1);
		fa_check(is_untouched(out));
		write_slot(&engine, WANTED, value);
		kv_wait(&engine.client, STREAM, request);
		check_out(&engine, value % KV_LAYERS, out);
		fa_check_eq(fa_test_cuda_gates(page).opened - before.opened, 1);
		fa_check_eq(fa_test_cuda_gates(page).shut, before.shut);
	}
	engine_end(&engine);
}

static void test_several_in_flight(void **state)
{
	struct fa_test_cuda_gates before;
	const float *outs[6];
	struct engine engine;
	uint64_t requests[6];

	engine_begin(&engine);
	before = fa_test_cuda_gates(page);
	for (int i = 0; i < 6; i++)
		requests[i] = attend_at(&engine, (uint64_t)i + 1, &outs[i]);
	for (uint32_t i = 0; i < 6; i++) {
		/* A request that the engine launches late finds its gate open and needs none. */
		wait_began(&before, i + 1);
		fa_check(is_untouched(outs[i]));
		write_slot(&engine, WANTED, i + 1);
		kv_wait(&engine.client, STREAM, requests[i]);
		check_out(&engine, (i + 1) % KV_LAYERS, outs[i]);
	}
	fa_check_eq(fa_test_cuda_gates(page).opened - before.opened, 6);
	fa_check_eq(fa_test_cuda_gates(page).shut, before.shut);
	engine_end(&engine);
}

static void test_two_slots(void **state)
{
	struct fa_test_cuda_gates before;
	const struct fa_wire_gate gates[] = { { .slot = WANTED, .value = 1 },
		                              { .slot = ANOTHER, .value = 1 } };
	struct engine engine;
	const float *out;
	uint64_t request;

	engine_begin(&engine);
	before = fa_test_cuda_gates(page);
	request = attend(&engine, 0, gates, 2, &out);
	write_slot(&engine, ANOTHER, 1);
	fa_test_quiet_ms(20);
	fa_check_eq(fa_test_cuda_gates(page).began, before.began);
	fa_check(is_untouched(out));
	write_slot(&engine, WANTED, 1);
	kv_wait(&engine.client, STREAM, request);
	check_out(&engine, 0, out);
	engine_end(&engine);
}

/* Both gated requests return to the daemon and are done once. */
static void test_give_up(void **state)
{
	struct fa_test_cuda_gates before;
	struct engine engine;
	const float *outs[2];
	uint64_t requests[2];

	engine_begin(&engine);
	for (int round = 0; round < 10; round++) {
		const uint64_t value = slot(&engine) + 1;

		let_pass(&engine);
		fa_test_cuda_gate_us(page, 3000);
		before = ask_two(&engine, value + 70, requests, outs);
		fa_check_eventually(fa_test_cuda_gates(page).shut != before.shut);
		fa_test_any_moment_us((uint64_t)round * 300);
		fa_check(is_untouched(outs[0]) && is_untouched(outs[1]));
		write_slot(&engine, WANTED, value + 70);
		kv_wait(&engine.client, STREAM, requests[0]);
		check_out(&engine, (value + 70) % KV_LAYERS, outs[0]);
		fa_check(is_untouched(outs[1]));
		write_slot(&engine, WANTED, value + 71);
		kv_wait(&engine.client, STREAM, requests[1]);
		check_out(&engine, (value + 71) % KV_LAYERS, outs[1]);
	}
	before = fa_test_cuda_gates(page);
	requests[0] = attend_at(&engine, slot(&engine) + 1, &outs[0]);
	fa_test_quiet_ms(10);
	fa_check_eq(fa_test_cuda_gates(page).began, before.began);
	write_slot(&engine, WANTED, slot(&engine) + 1);
	kv_wait(&engine.client, STREAM, requests[0]);
	engine_end(&engine);
}

/* Behind a request on which the device gave up, later ones neither overtake it nor end first. */
static void test_behind(void **state)
{
	struct fa_test_cuda_gates before;
	struct engine engine;
	const float *outs[2];
	uint64_t requests[2];

	engine_begin(&engine);
	for (int round = 0; round < 3; round++) {
		uint64_t value;

		fa_test_cuda_gate_us(page, FOR_EVER_US);
		let_pass(&engine);
		fa_test_cuda_gate_us(page, 20000);
		value = slot(&engine) + 1;
		before = fa_test_cuda_gates(page);
		requests[0] = attend_at(&engine, value, &outs[0]);
		wait_began(&before, 1);
		requests[1] = attend(&engine, 0, NULL, 0, &outs[1]);
		fa_check_eventually(fa_test_cuda_gates(page).shut != before.shut);
		fa_test_quiet_ms(20);
		fa_check(is_untouched(outs[0]) && is_untouched(outs[1]));
		fa_check(atomic_load(&engine.client.raw.page[STREAM].completed) < requests[0]);
		write_slot(&engine, WANTED, value);
		kv_wait(&engine.client, STREAM, requests[0]);
		check_out(&engine, value % KV_LAYERS, outs[0]);
		kv_wait(&engine.client, STREAM, requests[1]);
		check_out(&engine, 0, outs[1]);
	}
	engine_end(&engine);
}

static void test_mixed(void **state)
{
	struct engine engine, other;
	const float *outs[4], *theirs;
	uint64_t requests[4], values[4];
	unsigned int seed = 11;

	engine_begin(&engine);
	engine_begin(&other);
	fa_test_cuda_gate_us(page, 300);
	for (int round = 0; round < 200; round++) {
		uint64_t value = slot(&engine);

		for (int i = 0; i < 4; i++) {
			const struct fa_wire_gate gate = { .slot = WANTED, .value = ++value };
			const bool gated = rand_r(&seed) % 3 > 0;

			values[i] = gated ? value : 0;
			requests[i] = attend(&engine, (uint32_t)i % KV_LAYERS, &gate, gated,
			                     &outs[i]);
		}
		if (rand_r(&seed) % 2)
			kv_wait(&other.client, STREAM, attend(&other, 0, NULL, 0, &theirs));
		for (int i = 0; i < 4; i++) {
			if (values[i]) {
				fa_test_any_moment_us((uint64_t)rand_r(&seed) % 600);
				for (int k = i; k < 4; k++)
					fa_check(is_untouched(outs[k]));
				fa_check(atomic_load(&engine.client.raw.page[STREAM].completed) <
				         requests[i]);
				write_slot(&engine, WANTED, values[i]);
			}
			kv_wait(&engine.client, STREAM, requests[i]);
			check_out(&engine, (uint32_t)i % KV_LAYERS, outs[i]);
		}
		write_slot(&engine, WANTED, value);
	}
	engine_end(&other);
	engine_end(&engine);
}

static atomic_bool scribbles;

static void *scribble(void *userdata)
{
	struct engine *engine = userdata;
	unsigned int seed = 13;

	while (atomic_load(&scribbles)) {
		write_slot(engine, WANTED, rand_r(&seed) % 2 ? 1 : UINT64_MAX / 2);
		fa_test_any_moment_us((uint64_t)rand_r(&seed) % 50);
	}
	return NULL;
}

/* A slot's value goes up and down: requests that wait for it are done once, and delay no others. */
static void test_scribbled(void **state)
{
	struct engine engine, other;
	const float *outs[4], *theirs;
	uint64_t requests[4];
	pthread_t thread;

	engine_begin(&engine);
	engine_begin(&other);
	fa_test_cuda_gate_us(page, 200);
	atomic_store(&scribbles, true);
	assert_int_equal(pthread_create(&thread, NULL, scribble, &engine), 0);
	for (int round = 0; round < 200; round++) {
		for (uint64_t i = 0; i < 4; i++)
			requests[i] = attend_at(&engine, 2 + i, &outs[i]);
		if (round % 2)
			kv_wait(&other.client, STREAM, attend(&other, 0, NULL, 0, &theirs));
		for (uint32_t i = 0; i < 4; i++) {
			kv_wait(&engine.client, STREAM, requests[i]);
			check_out(&engine, (2 + i) % KV_LAYERS, outs[i]);
		}
	}
	atomic_store(&scribbles, false);
	assert_int_equal(pthread_join(thread, NULL), 0);
	engine_end(&other);
	engine_end(&engine);
}

/* A request without device work does not end before one on which the device gave up. */
static void test_no_work_behind(void **state)
{
	struct fa_test_cuda_gates before;
	struct engine engine;
	const float *out;
	uint64_t request, end;

	engine_begin(&engine);
	fa_test_cuda_gate_us(page, 20000);
	before = fa_test_cuda_gates(page);
	request = attend_at(&engine, 1, &out);
	wait_began(&before, 1);
	end = kv_end(&engine.client, STREAM, STEP, true);
	fa_check_eventually(fa_test_cuda_gates(page).shut != before.shut);
	fa_test_quiet_ms(20);
	fa_check(is_untouched(out));
	fa_check(atomic_load(&engine.client.raw.page[STREAM].completed) < request);
	write_slot(&engine, WANTED, 1);
	kv_wait(&engine.client, STREAM, request);
	check_out(&engine, 1 % KV_LAYERS, out);
	kv_wait(&engine.client, STREAM, end);
	kv_check(&engine.client, engine.sequence, engine.numbers, 0, OLD + TOKENS);
	munmap(engine.in, FA_TIMELINE_BYTES);
	kv_close(&engine.client);
}

static void test_race(void **state)
{
	struct engine engine;
	const float *outs[4];
	uint64_t requests[4];
	unsigned int seed = 7;

	engine_begin(&engine);
	fa_test_cuda_gate_us(page, 300);
	for (int round = 0; round < 150; round++) {
		const uint64_t value = slot(&engine) + 1;

		for (uint64_t i = 0; i < 4; i++)
			requests[i] = attend_at(&engine, value + i, &outs[i]);
		for (uint64_t i = 0; i < 4; i++) {
			fa_test_any_moment_us((uint64_t)rand_r(&seed) % 500);
			write_slot(&engine, WANTED, value + i);
		}
		for (uint64_t i = 0; i < 4; i++) {
			kv_wait(&engine.client, STREAM, requests[i]);
			check_out(&engine, (value + i) % KV_LAYERS, outs[i]);
		}
	}
	engine_end(&engine);
}

/* Another client's requests in the same CUDA stream do not wait for the gate. */
static void test_others(void **state)
{
	struct fa_test_cuda_gates before;
	struct engine engine, other;
	const float *out, *theirs;
	uint64_t request;

	engine_begin(&engine);
	engine_begin(&other);
	for (int round = 0; round < 5; round++) {
		uint64_t value;

		fa_test_cuda_gate_us(page, FOR_EVER_US);
		let_pass(&engine);
		value = slot(&engine) + 1;
		before = fa_test_cuda_gates(page);
		request = attend_at(&engine, value, &out);
		wait_began(&before, 1);
		for (int i = 0; i < 3; i++) {
			kv_wait(&other.client, STREAM, attend(&other, 0, NULL, 0, &theirs));
			check_out(&other, 0, theirs);
		}
		fa_check_eq(fa_test_cuda_gates(page).shut - before.shut, 1);
		fa_check(is_untouched(out));
		write_slot(&engine, WANTED, value);
		kv_wait(&engine.client, STREAM, request);
		check_out(&engine, value % KV_LAYERS, out);
	}
	engine_end(&other);
	engine_end(&engine);
}

/* A prefill is preempted for requests of its stream, even if all are behind gates. */
static void test_prefill(void **state)
{
	struct fa_case attention = {
		.dtype = FA_WIRE_DTYPE_BF16,
		.heads = 2,
		.head_dim = 128,
		.seqlen_q = 300,
		.seqlen_k = 300,
		.causal = true,
	};
	struct fa_wire_message message;
	struct engine engine, other;
	struct fa_raw_buffer buffer;
	const float *out, *theirs;
	uint64_t stopped, kernels, request, request_theirs;
	struct fa_raw raw;

	priority = 1;
	engine_begin(&engine);
	engine_begin(&other);
	priority = 0;
	let_pass(&engine);
	fa_case_plan(&attention);
	fa_raw_open(&raw, daemon_.socket);
	fa_raw_buffer_register(&raw, &buffer, 1, attention.bytes, 0);
	fa_case_fill(&attention, buffer.data);
	fa_test_cuda_hold_gates(page, true);
	fa_test_cuda_hold(page, true);
	stopped = fa_test_cuda_stopped(page);
	kernels = fa_test_cuda_kernels(page);
	message = fa_case_message(&attention, 1, 0, 0, 1);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_check_eventually(fa_test_cuda_kernels(page) == kernels + 1);
	request = attend_at(&engine, slot(&engine) + 1, &out);
	fa_test_quiet_ms(20);
	/* No preemption for requests that only wait for their client. */
	fa_check_eq(fa_test_cuda_stopped(page), stopped);
	request_theirs = attend(&other, 0, NULL, 0, &theirs);
	fa_check_eventually(fa_test_cuda_stopped(page) > stopped);
	fa_test_cuda_hold_gates(page, false);
	fa_test_cuda_hold(page, false);
	kv_wait(&other.client, STREAM, request_theirs);
	check_out(&other, 0, theirs);
	fa_raw_wait_expect(&raw, 0, 1, 0, NULL);
	fa_check(fa_case_error(&attention, buffer.data) <= 1);
	fa_check(is_untouched(out));
	write_slot(&engine, WANTED, slot(&engine) + 1);
	kv_wait(&engine.client, STREAM, request);
	fa_raw_close(&raw);
	fa_raw_buffer_free(NULL, &buffer);
	engine_end(&other);
	engine_end(&engine);
}

static void cancel(struct engine *engine, uint64_t request)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);

	message.cancel.stream = STREAM;
	message.cancel.value = request;
	fa_raw_call(&engine->client.raw, &message, NULL, 0);
}

static void test_cancel(void **state)
{
	struct engine engine;
	const float *outs[2];
	uint64_t requests[2];

	engine_begin(&engine);
	(void)ask_two(&engine, 1, requests, outs);
	cancel(&engine, requests[0]);
	kv_wait_expect(&engine.client, STREAM, requests[0], -ECANCELED, NULL);
	fa_check(is_untouched(outs[0]) && is_untouched(outs[1]));
	write_slot(&engine, WANTED, 2);
	begin_again(&engine, -ECANCELED);
	requests[0] = attend_at(&engine, 2, &outs[0]);
	kv_wait(&engine.client, STREAM, requests[0]);
	check_out(&engine, 0, outs[0]);
	engine_end(&engine);
}

/* A cancelled request does not end before one on which the device gave up. */
static void test_cancel_behind(void **state)
{
	struct fa_test_cuda_gates before;
	struct engine engine;
	const float *outs[2];
	uint64_t requests[2];

	engine_begin(&engine);
	before = ask_two(&engine, 1, requests, outs);
	fa_test_quiet_ms(20);
	cancel(&engine, requests[1]);
	fa_check_eventually(fa_test_cuda_gates(page).shut > before.shut);
	fa_test_quiet_ms(20);
	fa_check(is_untouched(outs[0]) && is_untouched(outs[1]));
	fa_check(atomic_load(&engine.client.raw.page[STREAM].completed) < requests[0]);
	write_slot(&engine, WANTED, 1);
	kv_wait(&engine.client, STREAM, requests[0]);
	check_out(&engine, 1 % KV_LAYERS, outs[0]);
	kv_wait_expect(&engine.client, STREAM, requests[1], -ECANCELED, NULL);
	fa_check(is_untouched(outs[1]));
	begin_again(&engine, -ECANCELED);
	engine_end(&engine);
}

/* Client memory that the daemon has registered, once stable @calm times. */
static int64_t registrations(int calm)
{
	struct fa_test_cuda_lives lives;
	int64_t n = -1;

	for (int same = 0; same < calm; same++) {
		fa_test_cuda_lives(page, &lives);
		if (lives.n[FA_TEST_CUDA_REGISTRATIONS] != n)
			same = 0;
		n = lives.n[FA_TEST_CUDA_REGISTRATIONS];
		fa_test_quiet_ms(5);
	}
	return n;
}

/* When a client goes, its gated requests end at once, and its slots are read no more. */
static void test_client_leaves(void **state)
{
	const int64_t n_registrations = registrations(200);
	struct engine engine;
	const float *out;

	for (int round = 0; round < 10; round++) {
		const uint64_t until_ns = fa_deadline_ns(fa_test_patience_ns());
		struct fa_test_cuda_gates before;

		engine_begin(&engine);
		before = fa_test_cuda_gates(page);
		for (uint64_t i = 0; i < 3; i++)
			(void)attend_at(&engine, i + 1, &out);
		wait_began(&before, 1);
		munmap(engine.in, FA_TIMELINE_BYTES);
		kv_close(&engine.client);
		fa_check_eventually(fa_test_cuda_gates(page).shut != before.shut);
		while (registrations(20) != n_registrations)
			fa_check(fa_now_ns() < until_ns);
	}
	fa_check_eq(fa_test_cuda_misuses(page), 0);
}

/*
 * Without graphs a gate's launch may succeed and that of its work fail. The gate stays closed
 * before the next launch, which is done all the same.
 */
static void test_failing(void **state)
{
	struct fa_test_cuda_gates before;
	struct engine engine, other;
	const float *outs[2];
	uint64_t requests[2];

	fa_test_cuda_fail(page, "cuGraphCreate:1=2");
	engine_begin(&other);
	engine_begin(&engine);
	fa_test_cuda_gate_us(page, 5000);
	for (uint64_t round = 0; round < 5; round++) {
		const uint64_t value = round * 100 + 1;

		before = fa_test_cuda_gates(page);
		fa_test_cuda_fail(page, "cuLaunchKernel:2=2");
		requests[0] = attend_at(&engine, value, &outs[0]);
		kv_wait_expect(&engine.client, STREAM, requests[0], -ENOMEM, NULL);
		kv_wait(&other.client, STREAM, attend(&other, 0, NULL, 0, &outs[1]));
		check_out(&other, 0, outs[1]);
		begin_again(&engine, -ECANCELED);
		fa_check_eventually(fa_test_cuda_gates(page).shut != before.shut);
		for (uint64_t i = 0; i < 2; i++)
			requests[i] = attend_at(&engine, value + i, &outs[i]);
		for (uint64_t i = 0; i < 2; i++) {
			fa_test_quiet_ms(10);
			fa_check(is_untouched(outs[i]));
			write_slot(&engine, WANTED, value + i);
			kv_wait(&engine.client, STREAM, requests[i]);
			check_out(&engine, (value + i) % KV_LAYERS, outs[i]);
		}
		let_pass(&engine);
	}
	engine_end(&engine);
	engine_end(&other);
}

static void test_failing_behind(void **state)
{
	struct fa_test_cuda_gates before;
	struct engine engine, other;
	const float *outs[2], *theirs;
	uint64_t requests[2];

	fa_test_cuda_fail(page, "cuGraphCreate:1=2");
	engine_begin(&other);
	engine_begin(&engine);
	for (int round = 0; round < 5; round++) {
		const uint64_t failed = fa_test_cuda_failed(page);
		uint64_t value;

		let_pass(&engine);
		value = slot(&engine) + 1;
		before = fa_test_cuda_gates(page);
		fa_test_cuda_fail(page, "cuLaunchKernel:4=2");
		for (uint64_t i = 0; i < 2; i++)
			requests[i] = attend_at(&engine, value + i, &outs[i]);
		fa_check_eventually(fa_test_cuda_failed(page) == failed + 1);
		kv_wait(&other.client, STREAM, attend(&other, 0, NULL, 0, &theirs));
		fa_check(fa_test_cuda_gates(page).shut > before.shut);
		fa_test_quiet_ms(10);
		fa_check(is_untouched(outs[0]));
		fa_check(atomic_load(&engine.client.raw.page[STREAM].completed) < requests[0]);
		write_slot(&engine, WANTED, value);
		kv_wait(&engine.client, STREAM, requests[0]);
		check_out(&engine, value % KV_LAYERS, outs[0]);
		kv_wait_expect(&engine.client, STREAM, requests[1], -ENOMEM, NULL);
		begin_again(&engine, -ECANCELED);
	}
	engine_end(&engine);
	engine_end(&other);
}

static void test_lost(void **state)
{
	struct fa_test_cuda_gates before;
	struct engine engine;
	const float *outs[4];
	uint64_t requests[4];

	engine_begin(&engine);
	before = fa_test_cuda_gates(page);
	fa_test_cuda_fail(page, "kernel:1=700");
	for (uint64_t i = 0; i < 3; i++)
		requests[i] = attend_at(&engine, 1 + i, &outs[i]);
	requests[3] = attend(&engine, 0, NULL, 0, &outs[3]);
	wait_began(&before, 1);
	write_slot(&engine, WANTED, 1);
	for (uint64_t i = 0; i < 4; i++)
		kv_wait_expect(&engine.client, STREAM, requests[i], -ENODEV, NULL);
	munmap(engine.in, FA_TIMELINE_BYTES);
	kv_close(&engine.client);
	fa_check(WIFEXITED(fa_test_daemon_reap(&daemon_)));
	fa_test_cuda_detach(page);
	serve();
}

#define TEST(name) cmocka_unit_test(test_##name)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(open),           TEST(several_in_flight),
		TEST(two_slots),      TEST(give_up),
		TEST(race),           TEST(others),
		TEST(cancel),         TEST(cancel_behind),
		TEST(client_leaves),  TEST(behind),
		TEST(no_work_behind), TEST(mixed),
		TEST(lost),           TEST(prefill),
		TEST(failing_behind), TEST(failing),
		TEST(scribbled),
	};

	return cmocka_run_group_tests(tests, gates_start, gates_stop);
}
