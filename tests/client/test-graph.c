/*
 * A CUDA graph of kernel, fad, kernel that is captured once and launched a thousand times: the
 * numbers of the gates come from memory. Each launch computes with numbers of its own, so that one
 * that ran ahead, or did not wait, would be seen. Also on a GPU.
 */
#include "client/faclient.h"
#include "common/cudriver.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/pause.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	LAUNCHES = 1000,
	HEADS = 2,
	DIM = 64,
	N = HEADS * DIM,
	/* Requests in flight: the daemon allows more. */
	AHEAD = 16,
};

/* fa_test_begin(counter, x, n): counts up, and fills x with numbers of this count.
 * fa_test_end(counter, out, n, wrong): counts in wrong the numbers of out that are of another. */
static const char ptx[] =
	".version 6.4\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .entry fa_test_begin(.param .u64 counter, .param .u64 x, .param .u64 n)\n"
	"{\n"
	"	.reg .u64 %counter, %x, %n, %count, %i, %value;\n"
	"	.reg .f32 %number;\n"
	"	.reg .pred %over;\n"
	"	ld.param.u64 %counter, [counter];\n"
	"	ld.param.u64 %x, [x];\n"
	"	ld.param.u64 %n, [n];\n"
	"	ld.u64 %count, [%counter];\n"
	"	add.u64 %count, %count, 1;\n"
	"	st.u64 [%counter], %count;\n"
	"	and.b64 %count, %count, 4095;\n"
	"	shl.b64 %count, %count, 4;\n"
	"	mov.u64 %i, 0;\n"
	"again:\n"
	"	setp.ge.u64 %over, %i, %n;\n"
	"	@%over bra done;\n"
	"	and.b64 %value, %i, 15;\n"
	"	add.u64 %value, %value, %count;\n"
	"	cvt.rn.f32.u64 %number, %value;\n"
	"	st.f32 [%x], %number;\n"
	"	add.u64 %x, %x, 4;\n"
	"	add.u64 %i, %i, 1;\n"
	"	bra again;\n"
	"done:\n"
	"	ret;\n"
	"}\n"
	".visible .entry fa_test_end(.param .u64 counter, .param .u64 out, .param .u64 n, "
	".param .u64 wrong)\n"
	"{\n"
	"	.reg .u64 %counter, %out, %n, %wrong, %count, %i, %value, %sum;\n"
	"	.reg .f32 %number, %got;\n"
	"	.reg .pred %over, %differs;\n"
	"	ld.param.u64 %counter, [counter];\n"
	"	ld.param.u64 %out, [out];\n"
	"	ld.param.u64 %n, [n];\n"
	"	ld.param.u64 %wrong, [wrong];\n"
	"	ld.u64 %count, [%counter];\n"
	"	ld.u64 %sum, [%wrong];\n"
	"	and.b64 %count, %count, 4095;\n"
	"	shl.b64 %count, %count, 4;\n"
	"	mov.u64 %i, 0;\n"
	"again:\n"
	"	setp.ge.u64 %over, %i, %n;\n"
	"	@%over bra done;\n"
	"	and.b64 %value, %i, 15;\n"
	"	add.u64 %value, %value, %count;\n"
	"	cvt.rn.f32.u64 %number, %value;\n"
	"	ld.f32 %got, [%out];\n"
	"	setp.neu.f32 %differs, %got, %number;\n"
	"	@%differs add.u64 %sum, %sum, 1;\n"
	"	add.u64 %out, %out, 4;\n"
	"	add.u64 %i, %i, 1;\n"
	"	bra again;\n"
	"done:\n"
	"	st.u64 [%wrong], %sum;\n"
	"	ret;\n"
	"}\n";

static struct fa_cudriver cu;

static void cuda(CUresult result, const char *what)
{
	const char *name = NULL;

	if (result == CUDA_SUCCESS)
		return;
	(void)cu.cuGetErrorName(result, &name);
	fa_test_fail(__FILE__, __LINE__, "%s: %s", what, name ? name : "an unknown error");
}

static void must(int r, const char *what)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%s: %d, %s", what, r, fa_error());
}

static struct scene {
	struct fa_test_daemon daemon;
	struct fa_client *client;
	struct fa_timeline *timeline;
	CUcontext context;
	CUmodule module;
	CUfunction begin, end;
	CUstream stream;
	CUdeviceptr q, k, v, out, counter, wrong; /* one allocation, from q on */
	struct fa_buffer *buffer;
} scene;

#define TENSOR_BYTES (N * sizeof(float))

static void scene_open(void)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options supervised = { .args = args };
	struct fa_options options = { .size = sizeof(options) };
	CUdevice device;

	fa_test_daemon_start(&scene.daemon, &supervised);
	options.socket = scene.daemon.socket;
	must(fa_connect(&options, &scene.client), "connect");
	must(fa_timeline_open(scene.client, &scene.timeline), "timeline");
	cuda(cu.cuInit(0), "init");
	cuda(cu.cuDeviceGet(&device, 0), "device");
	cuda(cu.cuDevicePrimaryCtxRetain(&scene.context, device), "context");
	cuda(cu.cuCtxSetCurrent(scene.context), "current");
	cuda(cu.cuModuleLoadData(&scene.module, ptx), "module");
	cuda(cu.cuModuleGetFunction(&scene.begin, scene.module, "fa_test_begin"), "begin");
	cuda(cu.cuModuleGetFunction(&scene.end, scene.module, "fa_test_end"), "end");
	cuda(cu.cuStreamCreateWithPriority(&scene.stream, CU_STREAM_NON_BLOCKING, 0), "stream");
	cuda(cu.cuMemAlloc(&scene.q, 4 * TENSOR_BYTES + 64), "memory");
	/* The stream does not wait for the null stream's. */
	cuda(cu.cuMemsetD8Async(scene.q, 0, 4 * TENSOR_BYTES + 64, scene.stream), "clear");
	cuda(cu.cuStreamSynchronize(scene.stream), "synchronise");
	scene.k = scene.q + TENSOR_BYTES;
	scene.v = scene.k + TENSOR_BYTES;
	scene.out = scene.v + TENSOR_BYTES;
	scene.counter = scene.out + TENSOR_BYTES;
	scene.wrong = scene.counter + 8;
	must(fa_buffer_import_cuda(scene.client, scene.q, 4 * TENSOR_BYTES, 0, &scene.buffer),
	     "import");
}

static void scene_close(void)
{
	cuda(cu.cuStreamSynchronize(scene.stream), "synchronise");
	fa_buffer_free(scene.buffer);
	fa_disconnect(scene.client);
	cuda(cu.cuMemFree(scene.q), "free");
	cuda(cu.cuStreamDestroy(scene.stream), "destroy");
	cuda(cu.cuModuleUnload(scene.module), "unload");
	cuda(cu.cuDevicePrimaryCtxRelease(0), "release");
	fa_test_daemon_stop(&scene.daemon);
}

/* Attention of one row to one key: its value. */
static void request(uint64_t number, uint32_t wait_slot, uint32_t signal_slot,
                    struct fa_ticket *ret_ticket)
{
	static const int64_t shape[] = { 1, 1, HEADS, DIM };
	const struct fa_gate wait = { .slot = wait_slot, .value = number };
	const struct fa_gate signal = { .slot = signal_slot, .value = number };
	const struct fa_gates gates = { .size = sizeof(gates),
		                        .n_waits = 1,
		                        .waits = &wait,
		                        .n_signals = 1,
		                        .signals = &signal };
	struct fa_attention attention = { .size = sizeof(attention), .gates = &gates };

	fa_tensor_init(&attention.q, scene.buffer, 0, FA_F32, 4, shape);
	fa_tensor_init(&attention.k, scene.buffer, TENSOR_BYTES, FA_F32, 4, shape);
	fa_tensor_init(&attention.v, scene.buffer, 2 * TENSOR_BYTES, FA_F32, 4, shape);
	fa_tensor_init(&attention.out, scene.buffer, 3 * TENSOR_BYTES, FA_F32, 4, shape);
	must(fa_attention(scene.client, &attention, ret_ticket), "attention");
}

static void launch(CUfunction function, void **params)
{
	cuda(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, scene.stream, params, NULL),
	     "launch");
}

/* Captures kernel, fad, kernel. The first call for a stream may come here. */
static CUgraphExec capture(uint32_t write_slot, uint32_t wait_slot, uint64_t add)
{
	const uint64_t *counter = (const uint64_t *)(uintptr_t)scene.counter;
	uint64_t n = N;
	void *begin[] = { &scene.counter, &scene.v, &n };
	void *end[] = { &scene.counter, &scene.out, &n, &scene.wrong };
	CUgraphExec exec;
	CUgraph graph;

	cuda(cu.cuStreamBeginCapture(scene.stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "capture");
	launch(scene.begin, begin);
	must(fa_timeline_enqueue_write_indirect(scene.timeline, write_slot, counter, add,
	                                        scene.stream),
	     "write");
	must(fa_timeline_enqueue_wait_indirect(scene.timeline, wait_slot, counter, add,
	                                       scene.stream),
	     "wait");
	launch(scene.end, end);
	cuda(cu.cuStreamEndCapture(scene.stream, &graph), "end of capture");
	cuda(cu.cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
	cuda(cu.cuGraphDestroy(graph), "destroy");
	return exec;
}

static uint64_t number_at(CUdeviceptr at)
{
	uint64_t number;

	cuda(cu.cuMemcpyDtoH(&number, at, sizeof(number)), "copy");
	return number;
}

/* Launches the graph @n times, the counter being at @count; sends requests before the launches and
 * after them. */
static void launch_all(CUgraphExec exec, uint64_t count, uint32_t n, uint32_t write_slot,
                       uint32_t wait_slot, uint64_t add)
{
	struct fa_ticket tickets[AHEAD];

	for (uint32_t i = 0; i < n; ++i) {
		const uint64_t number = count + i + 1 + add;

		if (i >= AHEAD)
			must(fa_wait(scene.client, &tickets[i % AHEAD], UINT64_MAX, NULL), "wait");
		if (i % 3)
			request(number, write_slot, wait_slot, &tickets[i % AHEAD]);
		cuda(cu.cuGraphLaunch(exec, scene.stream), "launch of the graph");
		if (i % 3 == 0)
			request(number, write_slot, wait_slot, &tickets[i % AHEAD]);
	}
	for (uint32_t i = n < AHEAD ? 0 : n - AHEAD; i < n; ++i)
		must(fa_wait(scene.client, &tickets[i % AHEAD], UINT64_MAX, NULL), "wait");
	cuda(cu.cuStreamSynchronize(scene.stream), "synchronise");
	fa_check_eq(number_at(scene.counter), count + n);
	fa_check_eq(number_at(scene.wrong), 0);
}

/* Without fad's part the last kernel sees numbers of another count: the test can fail. */
static void test_detects(void **state)
{
	uint64_t n = N;
	void *begin[] = { &scene.counter, &scene.v, &n };
	void *end[] = { &scene.counter, &scene.out, &n, &scene.wrong };

	launch(scene.begin, begin);
	launch(scene.end, end);
	cuda(cu.cuStreamSynchronize(scene.stream), "synchronise");
	fa_check_eq(number_at(scene.wrong), N);
	cuda(cu.cuMemsetD8Async(scene.counter, 0, 16, scene.stream), "clear");
}

static void test_launched_again(void **state)
{
	CUgraphExec exec = capture(0, 1, 0), other;

	launch_all(exec, 0, LAUNCHES, 0, 1, 0);
	/* Another graph, with other slots, and an addend. */
	other = capture(7, 63, (uint64_t)1 << 40);
	launch_all(other, LAUNCHES, 20, 7, 63, (uint64_t)1 << 40);
	launch_all(exec, LAUNCHES + 20, 20, 0, 1, 0);
	cuda(cu.cuGraphExecDestroy(exec), "destroy");
	cuda(cu.cuGraphExecDestroy(other), "destroy");
}

/* The wait does not pass before its number, and the write gives just that number. */
static void test_waits(void **state)
{
	const uint64_t *counter = (const uint64_t *)(uintptr_t)scene.counter;
	const uint64_t count = number_at(scene.counter);
	uint64_t value;

	must(fa_timeline_enqueue_write_indirect(scene.timeline, 20, counter, 5, scene.stream),
	     "write");
	must(fa_timeline_enqueue_wait_indirect(scene.timeline, 21, counter, 5, scene.stream),
	     "wait");
	for (int i = 0; i < 20; ++i) {
		fa_check_eq(cu.cuStreamQuery(scene.stream), CUDA_ERROR_NOT_READY);
		fa_test_quiet_ms(1);
	}
	must(fa_timeline_read(scene.timeline, 20, &value), "read");
	fa_check_eq(value, count + 5);
	{
		const struct fa_gate signals[] = { { .slot = 21, .value = count + 4 },
			                           { .slot = 21, .value = count + 5 } };

		for (int i = 0; i < 2; ++i) {
			const struct fa_gates gates = { .size = sizeof(gates),
				                        .n_signals = 1,
				                        .signals = &signals[i] };

			fa_check_eq(cu.cuStreamQuery(scene.stream), CUDA_ERROR_NOT_READY);
			must(fa_marker(scene.client, 0, &gates, NULL), "marker");
			if (i == 0)
				fa_test_quiet_ms(20);
		}
	}
	cuda(cu.cuStreamSynchronize(scene.stream), "synchronise");
}

static void test_refused(void **state)
{
	const uint64_t *counter = (const uint64_t *)(uintptr_t)scene.counter;
	const uint64_t *odd = (const uint64_t *)(uintptr_t)(scene.counter + 4);

	fa_check_eq(fa_timeline_enqueue_write_indirect(scene.timeline, 0, NULL, 0, scene.stream),
	            -EINVAL);
	fa_check_contains(fa_error(), "base is (nil); expected the address of a 64-bit number");
	fa_check_eq(fa_timeline_enqueue_wait_indirect(scene.timeline, 0, odd, 0, scene.stream),
	            -EINVAL);
	fa_check_eq(fa_timeline_enqueue_wait_indirect(scene.timeline, 64, counter, 0, scene.stream),
	            -EINVAL);
	fa_check_contains(fa_error(), "fa_timeline_enqueue_wait_indirect: slot is 0x40");
	fa_check_eq(fa_timeline_enqueue_wait_indirect(NULL, 0, counter, 0, scene.stream), -EINVAL);
	cuda(cu.cuCtxSetCurrent(NULL), "no context");
	fa_check_eq(fa_timeline_enqueue_write_indirect(scene.timeline, 0, counter, 0, scene.stream),
	            -EINVAL);
	fa_check_contains(fa_error(), "no CUDA context is current");
	cuda(cu.cuCtxSetCurrent(scene.context), "context");
}

/* A daemon that is killed releases a stream that waits for a request which was never sent. After
 * the reconnect the graph is captured again. */
static void test_reconnects(void **state)
{
	const uint64_t *counter = (const uint64_t *)(uintptr_t)scene.counter;
	const uint64_t count = number_at(scene.counter);
	struct fa_timeline_info info = { .size = sizeof(info) };
	pid_t child = fa_test_daemon_child(&scene.daemon);
	uint64_t epoch;
	CUgraphExec exec;

	must(fa_timeline_info(scene.timeline, &info), "info");
	epoch = info.epoch;
	must(fa_timeline_enqueue_wait_indirect(scene.timeline, 1, counter, 1000, scene.stream),
	     "wait");
	fa_test_quiet_ms(20);
	fa_check_eq(cu.cuStreamQuery(scene.stream), CUDA_ERROR_NOT_READY);
	fa_check(!kill(child, SIGKILL));
	cuda(cu.cuStreamSynchronize(scene.stream), "synchronise");
	(void)fa_test_daemon_next_child(&scene.daemon, child);
	must(fa_ping(scene.client), "ping");
	must(fa_timeline_info(scene.timeline, &info), "info");
	fa_check(info.epoch > epoch);
	exec = capture(0, 1, 0);
	launch_all(exec, count, 50, 0, 1, 0);
	cuda(cu.cuGraphExecDestroy(exec), "destroy");
}

static int setup(void **state)
{
	scene_open();
	return 0;
}

static int teardown(void **state)
{
	scene_close();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_detects),        cmocka_unit_test(test_refused),
		cmocka_unit_test(test_launched_again), cmocka_unit_test(test_waits),
		cmocka_unit_test(test_reconnects),
	};
	struct fa_error error;
	int n = 0;

	if (fa_cudriver_open(FA_CUDRIVER_FOR_ALL, &error, &cu) < 0 || cu.cuInit(0) ||
	    cu.cuDeviceGetCount(&n) || !n) {
		printf("skipped: no GPU\n");
		return 77;
	}
	return cmocka_run_group_tests_name("graph", tests, setup, teardown);
}
