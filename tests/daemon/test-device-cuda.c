/* The CUDA backend's results and driver calls. */
#include "daemon/backend/cuda/device.h"
#include "tests/daemon/cuda-device.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct fa_device_ops *const ops = &fa_device_cuda;

static void results_child(void)
{
	static const struct fa_case cases[] = {
		{ .seqlen_q = 70, .seqlen_k = 70, .heads = 2 },
		{ .seqlen_q = 33,
		  .seqlen_k = 90,
		  .heads = 4,
		  .kv_heads = 2,
		  .causal = true,
		  .lse = true },
		{ .seqlen_q = 60,
		  .seqlen_k = 80,
		  .batch = 3,
		  .heads = 2,
		  .ragged = true,
		  .lse = true },
		{ .seqlen_q = 60,
		  .seqlen_k = 80,
		  .batch = 3,
		  .heads = 2,
		  .ragged = true,
		  .causal = true,
		  .alibi = true,
		  .sinks = true,
		  .lse = true },
		{ .seqlen_q = 40, .seqlen_k = 40, .batch = 2, .heads = 3, .sinks = true },
		{ .seqlen_q = 40, .seqlen_k = 64, .heads = 2, .alibi = true, .softcap = 5 },
		{ .seqlen_q = 64,
		  .seqlen_k = 64,
		  .windowed = true,
		  .window_left = 7,
		  .window_right = 3 },
		{ .seqlen_q = 20, .seqlen_k = 30, .head_dim = 128, .head_dim_v = 256 },
		{ .seqlen_q = 40, .seqlen_k = 10, .causal = true, .lse = true },
	};
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;

	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); ++i)
		for (unsigned int dtype = FA_WIRE_DTYPE_F32; dtype <= FA_WIRE_DTYPE_BF16; ++dtype)
			for (enum cuda_place place = CUDA_ARENA; place <= CUDA_HOST; ++place) {
				struct fa_case attention = cases[i];

				attention.dtype = (enum fa_wire_dtype)dtype;
				attention.seed = 17 * i + dtype;
				cuda_job_run(&cuda, queue, &attention, place);
			}
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

/* Few rows of a ragged batch behind many keys: packed rows, whose units are listed. */
static void packed_child(void)
{
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;

	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 0);
	for (unsigned int dtype = FA_WIRE_DTYPE_F16; dtype <= FA_WIRE_DTYPE_BF16; ++dtype)
		for (enum cuda_place place = CUDA_ARENA; place <= CUDA_HOST; ++place) {
			struct fa_case attention = {
				.dtype = (enum fa_wire_dtype)dtype,
				.batch = 5,
				.heads = 8,
				.kv_heads = 2,
				.head_dim = 128,
				.seqlen_q = 24,
				.seqlen_k = 3000,
				.ragged = true,
				.causal = place == CUDA_HOST,
				.lse = true,
				.seed = dtype,
			};
			struct cuda_job job = { .attention = attention, .place = place };
			struct fa_cuda_launch launch;
			char text[256];

			cuda_job_init(&job, &cuda);
			fa_check_eq(fa_cuda_attention_plan(&cuda.device->chip, &job.params, text,
			                                   sizeof(text), &launch),
			            0);
			fa_check_eq(launch.kernel->kind, FA_CUDA_PACKED_RAGGED);
			fa_check(launch.workspace_bytes > 0);
			cuda_job_launch(&job, &cuda, queue);
			cuda_job_wait(&job, &cuda);
			fa_check_eq(job.work.status, 0);
			cuda_job_check(&job);
			cuda_job_deinit(&job, &cuda);
		}
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

static void random_child(void)
{
	struct fa_test_random random = { 20 };
	struct fa_device_queue *queues[3];
	struct fa_device_group *group;
	struct cuda_device cuda;

	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	for (int i = 0; i < 3; ++i)
		queues[i] = cuda_queue(&cuda, group, i == 0);
	for (int i = 0; i < (fa_test_long() ? 600 : 60); ++i) {
		struct fa_case attention = {
			.dtype = (enum fa_wire_dtype)(1 + fa_test_random_below(&random, 3)),
			.batch = (int64_t)(1 + fa_test_random_below(&random, 4)),
			.kv_heads = (int64_t)(1 + fa_test_random_below(&random, 3)),
			.head_dim = (int64_t)(8 + 8 * fa_test_random_below(&random, 16)),
			.seqlen_q = (int64_t)(1 + fa_test_random_below(&random, 90)),
			.seqlen_k = (int64_t)(1 + fa_test_random_below(&random, 200)),
			.ragged = fa_test_random_below(&random, 2),
			.causal = fa_test_random_below(&random, 2),
			.lse = fa_test_random_below(&random, 2),
			.alibi = fa_test_random_below(&random, 3) == 0,
			.sinks = fa_test_random_below(&random, 3) == 0,
			.seed = (uint64_t)i,
		};

		attention.heads = attention.kv_heads *
		                  (int64_t)(1 + fa_test_random_below(&random, 3));
		cuda_job_run(&cuda, queues[i % 3], &attention,
		             fa_test_random_below(&random, 2) ? CUDA_HOST : CUDA_ARENA);
	}
	for (int i = 0; i < 3; ++i)
		ops->queue_free(cuda.device, queues[i]);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

/* Without queries no kernel runs, but completion is signalled. Without keys: zeros and -inf. */
static void empty_child(void)
{
	struct cuda_job job = { .attention = { .seqlen_q = 5, .heads = 2, .lse = true } };
	struct fa_wire_attention *message = &job.message.attention;
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;
	uint64_t n_kernels;

	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 0);
	cuda_job_init(&job, &cuda);
	message->q.shape[1] = message->out.shape[1] = message->lse.shape[2] = 0;
	cuda_job_bind(&job);
	n_kernels = fa_test_cuda_kernels(cuda.page);
	cuda_job_launch(&job, &cuda, queue);
	cuda_job_wait(&job, &cuda);
	fa_check_eq(job.work.status, 0);
	fa_check_eq(fa_test_cuda_kernels(cuda.page), n_kernels);
	fa_check(fa_case_untouched(&job.attention, job.data));

	message->q.shape[1] = message->out.shape[1] = message->lse.shape[2] = 5;
	message->k.shape[1] = message->v.shape[1] = 0;
	cuda_job_bind(&job);
	cuda_job_launch(&job, &cuda, queue);
	cuda_job_wait(&job, &cuda);
	fa_check_eq(job.work.status, 0);
	for (int i = 0; i < 5 * 2 * 64; ++i)
		fa_check(((float *)(job.data + job.attention.offset_out))[i] == 0);
	for (int i = 0; i < 5 * 2; ++i)
		fa_check(((float *)(job.data + job.attention.offset_lse))[i] == -INFINITY);
	cuda_job_deinit(&job, &cuda);
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

static void check_child(void)
{
	struct cuda_job job = { .attention = { .seqlen_q = 5, .heads = 2 } };
	static uint32_t lengths[FA_CUDA_SEQUENCES_MAX + 2];
	static float slopes[FA_CUDA_VECTOR_HEADS_MAX + 1];
	struct fa_attention_params params;
	struct cuda_device cuda;
	struct fa_error error;

	cuda_device_open(&cuda, NULL);
	cuda_job_init(&job, &cuda);
	params = job.params;
	fa_check_eq(ops->check(cuda.device, &params, NULL), 0);
	params.head_dim = 12;
	fa_check_eq(ops->check(cuda.device, &params, &error), -ENOTSUP);
	fa_check_contains(error.text, "head_dim 12");
	fa_check_eq(ops->check(cuda.device, &params, NULL), -ENOTSUP);
	params = job.params;
	params.seqlen_k = FA_CUDA_SEQLEN_MAX + 1ll;
	fa_check_eq(ops->check(cuda.device, &params, &error), -ENOTSUP);
	fa_check_contains(error.text, "seqlen_k");
	params = job.params;
	params.cu_seqlens_q = params.cu_seqlens_k = lengths;
	params.batch = FA_CUDA_SEQUENCES_MAX;
	fa_check_eq(ops->check(cuda.device, &params, &error), 0);
	++params.batch;
	fa_check_eq(ops->check(cuda.device, &params, &error), -ENOTSUP);
	fa_check_contains(error.text, "batch 4097");
	params = job.params;
	params.alibi_slopes = slopes;
	params.heads = FA_CUDA_VECTOR_HEADS_MAX;
	fa_check_eq(ops->check(cuda.device, &params, &error), 0);
	params.heads += 2;
	fa_check_eq(ops->check(cuda.device, &params, &error), -ENOTSUP);
	fa_check_contains(error.text, "heads 1026");
	cuda_job_deinit(&job, &cuda);
	cuda_device_close(&cuda);
}

static void test_results(void **state)
{
	cuda_in_child(results_child);
	cuda_in_child(packed_child);
	cuda_in_child(random_child);
	cuda_in_child(empty_child);
	cuda_in_child(check_child);
}

static uint64_t called(const struct fa_test_cuda_calls *before,
                       const struct fa_test_cuda_calls *after, enum fa_test_cuda_call call)
{
	return after->n[call] - before->n[call];
}

static uint64_t launches(const struct fa_test_cuda_calls *before,
                         const struct fa_test_cuda_calls *after)
{
	return called(before, after, FA_TEST_CUDA_cuLaunchKernel) +
	       called(before, after, FA_TEST_CUDA_cuLaunchKernelEx) +
	       called(before, after, FA_TEST_CUDA_cuGraphLaunch);
}

static void calls_child(void)
{
	static const int allowed[] = { FA_TEST_CUDA_cuLaunchKernel,
		                       FA_TEST_CUDA_cuLaunchKernelEx,
		                       FA_TEST_CUDA_cuGraphCreate,
		                       FA_TEST_CUDA_cuGraphAddKernelNode,
		                       FA_TEST_CUDA_cuGraphKernelNodeSetAttribute,
		                       FA_TEST_CUDA_cuGraphInstantiateWithFlags,
		                       FA_TEST_CUDA_cuGraphUpload,
		                       FA_TEST_CUDA_cuGraphExecKernelNodeSetParams,
		                       FA_TEST_CUDA_cuGraphLaunch,
		                       FA_TEST_CUDA_cuMemcpyHtoDAsync,
		                       FA_TEST_CUDA_kernel,
		                       FA_TEST_CUDA_any };
	enum {
		N = 20
	};
	struct cuda_job jobs[4] = {
		{ .attention = { .seqlen_q = 8 } },
		{ .attention = { .seqlen_q = 8, .batch = 2, .ragged = true, .sinks = true } },
		{ .attention = { .seqlen_q = 64, .heads = 8, .kv_heads = 1 }, .place = CUDA_HOST },
		{ .attention = { .seqlen_q = 8, .alibi = true, .heads = 2 }, .place = CUDA_HOST },
	};
	struct fa_test_cuda_calls before, after;
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;
	uint64_t n_copies;

	setenv("FAD_TUNE_STAGING", "always", 1);
	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 1);
	for (int i = 0; i < 4; ++i)
		cuda_job_init(&jobs[i], &cuda);
	fa_test_cuda_calls(cuda.page, &before);
	for (int round = 0; round < N; ++round) {
		for (int i = 0; i < 4; ++i)
			cuda_job_launch(&jobs[i], &cuda, queue);
		ops->cancel(cuda.device, &jobs[round % 4].work);
		for (int i = 0; i < 4; ++i)
			cuda_job_wait(&jobs[i], &cuda);
	}
	fa_test_cuda_calls(cuda.page, &after);
	fa_check_eq(launches(&before, &after), 4 * N);
	/* Small launches signal completion and read vectors in place. */
	fa_check_eq(after.n[FA_TEST_CUDA_cuStreamWriteValue64],
	            before.n[FA_TEST_CUDA_cuStreamWriteValue64]);
	n_copies = after.n[FA_TEST_CUDA_cuMemcpyHtoDAsync] -
	           before.n[FA_TEST_CUDA_cuMemcpyHtoDAsync];
	fa_check_eq(n_copies, (2 + 2) * N);
	for (int i = 0; i < (int)(sizeof(allowed) / sizeof(*allowed)); ++i)
		after.n[allowed[i]] = before.n[allowed[i]];
	/* On a slow machine the stream may have been queried. */
	after.n[FA_TEST_CUDA_cuStreamQuery] = before.n[FA_TEST_CUDA_cuStreamQuery];
	for (int i = 0; i < FA_TEST_CUDA_CALLS; ++i)
		if (after.n[i] != before.n[i])
			fa_test_fail(__FILE__, __LINE__, "%s was called",
			             fa_test_cuda_call_name((enum fa_test_cuda_call)i));
	for (int i = 0; i < 4; ++i) {
		cuda_job_check(&jobs[i]);
		cuda_job_deinit(&jobs[i], &cuda);
	}
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

static uint64_t maps_encoded(const struct cuda_device *cuda)
{
	struct fa_test_cuda_calls calls;

	fa_test_cuda_calls(cuda->page, &calls);
	return calls.n[FA_TEST_CUDA_cuTensorMapEncodeTiled];
}

/* Tensor maps are cached while few others come between; the driver notices a wrong map. */
static void maps_child(void)
{
	enum {
		N = FA_CUDA_MAP_SETS * FA_CUDA_MAP_WAYS / FA_CUDA_MAPS + 40
	};
	static struct cuda_job jobs[N];
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;
	uint64_t n_encoded;

	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 1);
	for (int i = 0; i < N; ++i) {
		jobs[i].attention = (struct fa_case){
			.dtype = i % 2 ? FA_WIRE_DTYPE_BF16 : FA_WIRE_DTYPE_F16,
			.seqlen_q = 3 + i % 5,
			.seqlen_k = 4 + i % 7,
			.batch = 2,
			.heads = 2,
			.ragged = i % 3 == 0,
			.causal = i % 4 == 0,
			.seed = (uint64_t)i,
		};
		jobs[i].place = i % 5 == 0 ? CUDA_HOST : CUDA_ARENA;
		cuda_job_init(&jobs[i], &cuda);
	}
	for (int round = 0; round < 5; ++round) {
		n_encoded = maps_encoded(&cuda);
		for (int i = 0; i < 4; ++i) {
			cuda_job_launch(&jobs[i], &cuda, queue);
			cuda_job_wait(&jobs[i], &cuda);
			cuda_job_check(&jobs[i]);
		}
		fa_check_eq(maps_encoded(&cuda) - n_encoded, round ? 0 : 4 * FA_CUDA_MAPS);
	}
	n_encoded = maps_encoded(&cuda);
	for (int round = 0; round < 3; ++round)
		for (int i = 0; i < N; ++i) {
			cuda_job_launch(&jobs[i], &cuda, queue);
			cuda_job_wait(&jobs[i], &cuda);
			cuda_job_check(&jobs[i]);
		}
	fa_check(maps_encoded(&cuda) - n_encoded > (N - 4) * FA_CUDA_MAPS);
	fa_check(maps_encoded(&cuda) - n_encoded < 3 * N * FA_CUDA_MAPS);
	for (int i = 0; i < N; ++i)
		cuda_job_deinit(&jobs[i], &cuda);

	/*
	 * A map that the driver refuses fails only its launch, and is not cached. Without ragged
	 * lengths the map of Q does not depend on the shape, so an older one may be at its address.
	 */
	cuda_job_init(&jobs[1], &cuda);
	jobs[1].message.attention.q.shape[1] = jobs[1].message.attention.out.shape[1] = 2;
	cuda_job_bind(&jobs[1]);
	for (int i = 0; i < 2; ++i) {
		fa_test_cuda_fail(cuda.page, i ? NULL : "cuTensorMapEncodeTiled:1=1");
		cuda_job_launch(&jobs[1], &cuda, queue);
		cuda_job_wait(&jobs[1], &cuda);
		fa_check_eq(jobs[1].work.status, i ? 0 : -EINVAL);
		if (!i)
			fa_check_contains(jobs[1].work.error.text, "CUDA_ERROR_INVALID_VALUE");
	}
	cuda_job_deinit(&jobs[1], &cuda);
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

static void test_calls(void **state)
{
	cuda_in_child(calls_child);
	cuda_in_child(maps_child);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_results),
		cmocka_unit_test(test_calls),
	};
	int r;

	fa_test_cuda_begin(&cuda_dir);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	fa_test_cuda_end(&cuda_dir);
	return r;
}
