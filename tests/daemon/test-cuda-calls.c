/*
 * Driver calls between a request and its reply, on the tests' CUDA driver: launches, which signal
 * completion themselves unless they have many blocks, and copies; none while idle.
 */
#include "cuda-client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)
#define REQUESTS 200
#define GRAPHS 8

static struct fa_test_cuda cuda;
static struct fa_test_daemon daemon_;
static struct fa_test_cuda_page *page;

static int start(void **state)
{
	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&daemon_, NULL);
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
	return 0;
}

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_);
	fa_test_cuda_detach(page);
	fa_test_cuda_end(&cuda);
	return 0;
}

static void since(struct fa_test_cuda_calls *calls)
{
	const struct fa_test_cuda_calls before = *calls;

	fa_test_cuda_calls(page, calls);
	for (int i = 0; i < FA_TEST_CUDA_CALLS; ++i)
		calls->n[i] -= before.n[i];
}

/*
 * @words: launches whose completion the driver signals. On a slow machine the daemon may also have
 * queried the stream.
 */
static void nothing_but(const struct fa_test_cuda_calls *calls, uint64_t launches, uint64_t words,
                        uint64_t copies_max, uint64_t elapsed_ns)
{
	for (int i = 0; i < FA_TEST_CUDA_any; ++i) {
		const uint64_t n = calls->n[i];
		bool good;

		switch (i) {
		case FA_TEST_CUDA_cuLaunchKernel:
			good = n + calls->n[FA_TEST_CUDA_cuLaunchKernelEx] +
			               calls->n[FA_TEST_CUDA_cuGraphLaunch] ==
			       launches;
			break;
		case FA_TEST_CUDA_cuGraphExecKernelNodeSetParams:
			good = n == calls->n[FA_TEST_CUDA_cuGraphLaunch];
			break;
		case FA_TEST_CUDA_cuGraphLaunch:
		case FA_TEST_CUDA_cuLaunchKernelEx:
			good = n <= launches;
			break;
		case FA_TEST_CUDA_cuGraphCreate:
		case FA_TEST_CUDA_cuGraphAddKernelNode:
		case FA_TEST_CUDA_cuGraphKernelNodeSetAttribute:
		case FA_TEST_CUDA_cuGraphInstantiateWithFlags:
		case FA_TEST_CUDA_cuGraphUpload:
			good = n <= GRAPHS;
			break;
		case FA_TEST_CUDA_kernel:
			good = n == launches;
			break;
		case FA_TEST_CUDA_cuStreamWriteValue64:
			good = n == words;
			break;
		case FA_TEST_CUDA_cuTensorMapEncodeTiled:
			good = n <= 3 * launches;
			break;
		case FA_TEST_CUDA_cuMemcpyHtoDAsync:
			good = n <= copies_max;
			break;
		case FA_TEST_CUDA_cuStreamQuery:
			good = n <= elapsed_ns / (20 * FA_NS_PER_MS);
			break;
		default:
			good = !n;
		}
		if (!good)
			fa_test_fail(__FILE__, __LINE__, "%s was called %llu times",
			             fa_test_cuda_call_name((enum fa_test_cuda_call)i),
			             (unsigned long long)n);
	}
}

static void run(struct fa_raw *raw, const struct fa_case *attention, uint64_t *value)
{
	for (int i = 0; i < REQUESTS; i += 2) {
		struct fa_wire_message message;

		for (int j = 0; j < 2; ++j) {
			message = fa_case_message(attention, 1, 0, 0, ++*value);
			fa_check_eq(fa_raw_send(raw, &message, NULL, 0), 0);
		}
		fa_raw_wait_expect(raw, 0, *value - 1, 0, NULL);
		fa_raw_wait_expect(raw, 0, *value, 0, NULL);
	}
}

static void client(int socket)
{
	struct fa_case dense = { .heads = 4, .head_dim = 64, .seqlen_q = 1, .seqlen_k = 50 };
	struct fa_case ragged = {
		.dtype = FA_WIRE_DTYPE_BF16,
		.heads = 4,
		.head_dim = 128,
		.batch = 3,
		.seqlen_q = 9,
		.seqlen_k = 9,
		.ragged = true,
		.alibi = true,
		.sinks = true,
		.lse = true,
	};
	struct fa_case crowd = {
		.heads = 64,
		.head_dim = 8,
		.batch = 8,
		.seqlen_q = 129,
		.seqlen_k = 1,
		.ragged = true,
	};
	struct fa_test_cuda_calls calls;
	struct cuda_buffer buffer;
	struct fa_raw raw;
	uint64_t value = 0, begin;

	fa_case_plan(&crowd);
	fa_case_plan(&dense);
	fa_case_plan(&ragged);
	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_ipc(&buffer, 1, 16 * MIB);
	cuda_register(&raw, &buffer, 0, 16 * MIB, 0, 0, NULL);
	cuda_case_fill(&dense, buffer.at);
	run(&raw, &dense, &value);

	fa_test_cuda_calls(page, &calls);
	begin = fa_now_ns();
	run(&raw, &dense, &value);
	since(&calls);
	nothing_but(&calls, REQUESTS, 0, 0, fa_now_ns() - begin);

	/* Short vectors are read in place. */
	cuda_case_fill(&ragged, buffer.at);
	fa_test_cuda_calls(page, &calls);
	begin = fa_now_ns();
	run(&raw, &ragged, &value);
	since(&calls);
	nothing_but(&calls, REQUESTS, 0, 0, fa_now_ns() - begin);

	/* A launch of many blocks: vectors are copied, and the driver signals completion. */
	cuda_case_fill(&crowd, buffer.at);
	fa_test_cuda_calls(page, &calls);
	begin = fa_now_ns();
	run(&raw, &crowd, &value);
	since(&calls);
	nothing_but(&calls, REQUESTS, REQUESTS, REQUESTS, fa_now_ns() - begin);

	fa_test_cuda_calls(page, &calls);
	fa_raw_ping(&raw);
	fa_test_quiet_ms(300);
	since(&calls);
	nothing_but(&calls, 0, 0, 0, 0);
	fa_raw_close(&raw);
}

static void test_device_memory(void **state)
{
	fa_cuda_alone(client);
}

/*
 * Host memory is read in place or copied: at most K and V, each by one copy, or by two across a
 * border of pinned parts.
 */
static void test_host_memory(void **state)
{
	struct fa_case attention = { .heads = 8, .head_dim = 64, .seqlen_q = 70, .seqlen_k = 300 };
	struct fa_test_cuda_calls calls;
	struct fa_raw_buffer buffer;
	struct fa_raw raw;
	uint64_t value = 0, begin;

	fa_case_plan(&attention);
	fa_raw_open(&raw, daemon_.socket);
	fa_raw_buffer_register(&raw, &buffer, 1, attention.bytes, 0);
	fa_case_fill(&attention, buffer.data);
	run(&raw, &attention, &value);
	fa_test_cuda_calls(page, &calls);
	begin = fa_now_ns();
	run(&raw, &attention, &value);
	since(&calls);
	nothing_but(&calls, REQUESTS, 0, 4 * REQUESTS, fa_now_ns() - begin);
	fa_check(fa_case_error(&attention, buffer.data) <= 1);
	fa_raw_buffer_free(&raw, &buffer);
	fa_raw_close(&raw);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_device_memory),
		cmocka_unit_test(test_host_memory),
	};

	return cmocka_run_group_tests_name("cuda-calls", tests, start, stop);
}
