/*
 * A client's own CUDA stream takes turns with the daemon, on a real GPU or the tests' CUDA
 * driver: the stream writes the inputs, waits for the daemon and copies the result, while the
 * client's CPU only enqueues. Also: a stream that waits when the daemon is killed.
 *
 * Skips (77) where no daemon with a GPU can be started.
 */
#include "tests/client/attention-request.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include "client/faclient.h"
#include "common/cudriver.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	ROUNDS = 24,
	IN = 3, /* timeline slots */
	OUT = 5,
};

static struct fa_test_daemon supervisor;
static struct fa_cudriver cu; /* used in children only */

#define ok(call)                                                                                   \
	do {                                                                                       \
		int _r = (call);                                                                   \
		if (_r < 0)                                                                        \
			fa_test_fail(__FILE__, __LINE__, "%s: %d, %s", #call, _r, fa_error());     \
	} while (0)
#define cu_ok(call)                                                                                \
	do {                                                                                       \
		const CUresult _result = cu.call;                                                  \
		if (_result != CUDA_SUCCESS)                                                       \
			fa_test_fail(__FILE__, __LINE__, "%s gives %d", #call, (int)_result);      \
	} while (0)

/* ---- a client with its own stream, in a child */

static struct scene {
	struct fa_client *client;
	struct fa_timeline *timeline;
	struct fa_case attention;
	struct fa_buffer *buffer;
	CUdeviceptr at;
	CUstream stream;
	unsigned char *host; /* [ROUNDS] inputs, then [ROUNDS] results */
	uint64_t value;      /* last value, the same in both slots */
} s;

static void open_scene(void)
{
	struct fa_options options = { .size = sizeof(options), .socket = supervisor.socket };
	struct fa_error error;
	CUcontext context;
	CUdevice device;
	void *host;

	if (fa_cudriver_open(FA_CUDRIVER_FOR_ALL, &error, &cu) < 0)
		fa_test_fail(__FILE__, __LINE__, "%s", error.text);
	cu_ok(cuInit(0));
	cu_ok(cuDeviceGet(&device, 0));
	cu_ok(cuDevicePrimaryCtxRetain(&context, device));
	cu_ok(cuCtxSetCurrent(context));
	cu_ok(cuStreamCreateWithPriority(&s.stream, CU_STREAM_NON_BLOCKING, 0));

	options.connect_ns = options.reconnect_ns = fa_test_patience_ns();
	ok(fa_connect(&options, &s.client));
	ok(fa_timeline_open(s.client, &s.timeline));
	s.attention = (struct fa_case){ .dtype = FA_WIRE_DTYPE_F16,
		                        .heads = 4,
		                        .kv_heads = 2,
		                        .seqlen_q = 16,
		                        .seqlen_k = 64,
		                        .causal = true,
		                        .lse = true };
	fa_case_plan(&s.attention);
	cu_ok(cuMemAlloc(&s.at, s.attention.bytes));
	ok(fa_buffer_import_cuda(s.client, s.at, s.attention.bytes, 0, &s.buffer));
	cu_ok(cuMemHostAlloc(&host, 2 * ROUNDS * s.attention.bytes, CU_MEMHOSTALLOC_PORTABLE));
	s.host = host;
}

static void close_scene(void)
{
	cu_ok(cuStreamSynchronize(s.stream));
	fa_buffer_free(s.buffer);
	fa_disconnect(s.client);
	cu_ok(cuStreamDestroy(s.stream));
	cu_ok(cuMemFree(s.at));
	cu_ok(cuMemFreeHost(s.host));
}

/* Sends a request that waits for @value in slot IN and signals it in slot OUT. */
static struct fa_ticket ask(uint64_t value)
{
	struct fa_attention request = fa_case_attention(&s.attention, s.buffer);
	const struct fa_gate wait = { .slot = IN, .value = value },
			     signal = { .slot = OUT, .value = value };
	const struct fa_gates gates = { .size = sizeof(gates),
		                        .n_waits = 1,
		                        .waits = &wait,
		                        .n_signals = 1,
		                        .signals = &signal };
	struct fa_ticket ticket;

	request.gates = &gates;
	ok(fa_attention(s.client, &request, &ticket));
	return ticket;
}

static unsigned char *input(int round)
{
	return s.host + (size_t)round * s.attention.bytes;
}

static unsigned char *output(int round)
{
	return s.host + (size_t)(ROUNDS + round) * s.attention.bytes;
}

static void enqueue_before(int round, uint64_t value)
{
	cu_ok(cuMemsetD8Async(s.at, 0xff, s.attention.bytes, s.stream));
	cu_ok(cuMemcpyHtoDAsync(s.at, input(round), s.attention.bytes, s.stream));
	ok(fa_timeline_enqueue_write(s.timeline, IN, value, s.stream));
}

static void enqueue_after(int round, uint64_t value)
{
	ok(fa_timeline_enqueue_wait(s.timeline, OUT, value, s.stream));
	cu_ok(cuMemcpyDtoHAsync(output(round), s.at, s.attention.bytes, s.stream));
}

static void fill(uint64_t seed)
{
	for (int round = 0; round < ROUNDS; ++round) {
		s.attention.seed = seed + (uint64_t)round;
		fa_case_fill(&s.attention, input(round));
		memset(output(round), 0xff, s.attention.bytes);
	}
}

static void check_outputs(uint64_t seed)
{
	for (int round = 0; round < ROUNDS; ++round) {
		double error;

		s.attention.seed = seed + (uint64_t)round;
		error = fa_case_error(&s.attention, output(round));
		if (!(error <= 1))
			fa_test_fail(__FILE__, __LINE__, "round %d: error %g", round, error);
	}
}

/* Runs all rounds with one synchronisation. @early: requests are sent before the stream's work. */
static void run_rounds(bool early, uint64_t seed)
{
	fill(seed);
	for (int round = 0; early && round < ROUNDS; ++round)
		(void)ask(s.value + 1 + (uint64_t)round);
	for (int round = 0; round < ROUNDS; ++round) {
		const uint64_t value = s.value + 1 + (uint64_t)round;

		enqueue_before(round, value);
		if (!early)
			(void)ask(value);
		enqueue_after(round, value);
	}
	s.value += ROUNDS;
	cu_ok(cuStreamSynchronize(s.stream));
	ok(fa_timeline_wait(s.timeline, OUT, s.value, 0));
	check_outputs(seed);
}

static int child_order(void *userdata)
{
	open_scene();
	for (uint64_t i = 0; i < 3; ++i) {
		run_rounds(true, 100 * i);
		run_rounds(false, 100 * i + 50);
	}
	close_scene();
	return 0;
}

/* A failed request in the middle is reported, and the stream goes on. */
static int child_failure(void *userdata)
{
	struct fa_ticket tickets[3];

	open_scene();
	fill(1);
	for (int round = 0; round < 3; ++round)
		tickets[round] = ask((uint64_t)round + 1);
	enqueue_before(0, 1);
	enqueue_after(0, 1);
	ok(fa_timeline_wait(s.timeline, OUT, 1, fa_test_patience_ns()));
	ok(fa_cancel(s.client, &tickets[1]));
	/*
	 * The stream goes on after the cancelled request, whose value of slot IN is never
	 * written.
	 */
	ok(fa_timeline_enqueue_wait(s.timeline, OUT, 2, s.stream));
	enqueue_before(2, 3);
	enqueue_after(2, 3);
	cu_ok(cuStreamSynchronize(s.stream));
	fa_check_eq(fa_wait(s.client, &tickets[1], fa_test_patience_ns(), NULL), -ECANCELED);
	ok(fa_wait(s.client, &tickets[2], fa_test_patience_ns(), NULL));
	s.attention.seed = 3;
	fa_check(fa_case_error(&s.attention, output(2)) <= 1);
	close_scene();
	return 0;
}

/* ---- the daemon is killed while a stream waits */

struct blocked {
	CUcontext context;
	atomic_bool synchronises;
	CUresult result;
};

static void *synchronise(void *userdata)
{
	struct blocked *b = userdata;

	(void)cu.cuCtxSetCurrent(b->context);
	atomic_store(&b->synchronises, true);
	b->result = cu.cuStreamSynchronize(s.stream);
	return NULL;
}

static int child_killed(void *userdata)
{
	struct fa_timeline_info info = { .size = sizeof(info) };

	open_scene();
	for (uint64_t i = 0; i < 3; ++i) {
		struct blocked blocked = {};
		struct fa_ticket ticket;
		uint64_t value;
		pthread_t thread;
		pid_t pid;

		run_rounds(true, 10 * i);
		/* Slot IN is never written: without the kill the stream would wait for ever. */
		value = s.value += 2;
		ticket = ask(value);
		ok(fa_timeline_enqueue_wait(s.timeline, OUT, value, s.stream));
		cu_ok(cuCtxGetCurrent(&blocked.context));
		fa_check_eq(pthread_create(&thread, NULL, synchronise, &blocked), 0);
		fa_check_eventually(atomic_load(&blocked.synchronises));
		fa_test_let_sleep_ms(20);
		fa_check_eq(cu.cuStreamQuery(s.stream), CUDA_ERROR_NOT_READY);
		pid = fa_test_daemon_child(&supervisor);
		fa_check(pid > 0 && !kill(pid, SIGKILL));
		pthread_join(thread, NULL);
		fa_check_eq(blocked.result, CUDA_SUCCESS);
		/* The wait reports that there is no result. */
		fa_check_eq(fa_timeline_wait(s.timeline, OUT, value, fa_test_patience_ns()),
		            -ECONNRESET);
		fa_check_eq(fa_wait(s.client, &ticket, fa_test_patience_ns(), NULL), -ECONNRESET);
		ok(fa_reconnect(s.client));
		ok(fa_timeline_info(s.timeline, &info));
		fa_check_eq(info.epoch, i + 2);
		/* Enqueueing a wait for a lost value fails at once. */
		fa_check_eq(fa_timeline_enqueue_wait(s.timeline, OUT, value, s.stream),
		            -ECONNRESET);
	}
	run_rounds(false, 1000);
	close_scene();
	return 0;
}

static void run_child(int (*function)(void *))
{
	fa_check_eq(fa_test_reap(fa_test_fork(function, NULL)), 0);
}

static void test_order(void **state)
{
	run_child(child_order);
}

static void test_failure(void **state)
{
	run_child(child_failure);
}

static void test_killed(void **state)
{
	run_child(child_killed);
}

int main(void)
{
	static const char *const args[] = { "--backend", "cuda", "--supervise", NULL };
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_failure),
		cmocka_unit_test(test_killed),
	};
	int r;

	if (!fa_test_daemon_try(&supervisor, &(struct fa_test_daemon_options){ .args = args })) {
		fprintf(stderr, "no daemon with a GPU can be started here\n");
		fa_test_daemon_reap(&supervisor);
		return 77;
	}
	r = cmocka_run_group_tests_name("stream-order", tests, NULL, NULL);
	fa_test_daemon_stop(&supervisor);
	return r;
}
