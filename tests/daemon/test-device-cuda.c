/* The CUDA backend over the tests' driver: how it opens, what it launches, in which order. */
#include "daemon/device_cuda.h"
#include "tests/daemon/cuda-device.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DEPTH FA_CUDA_STREAM_DEPTH

static const struct fa_device_ops *const ops = &fa_device_cuda;

/* ---- opening */

static void open_refused(const char *name, int expected, const char *part)
{
	struct cuda_device cuda;
	struct fa_error error;

	fa_check_eq(cuda_device_try(&cuda, name, &error), expected);
	fa_check_contains(error.text, part);
}

static void open_child(void)
{
	struct fa_device_info info;
	struct cuda_device cuda;
	char name[64];

	setenv("FAD_TEST_CUDA_DEVICES", "3", 1);
	cuda_device_open(&cuda, NULL);
	ops->describe(cuda.device, &info);
	fa_check(!strcmp(info.backend, "cuda"));
	fa_check(info.name[0]);
	fa_check(info.uuid[0] | info.uuid[1]);
	fa_check(info.polled);
	fa_check_eq(info.threads, 0);
	fa_check_eq(info.depth, FA_CUDA_QUEUE_DEPTH);
	fa_check(info.memory_bytes >= info.memory_free_bytes && info.memory_free_bytes);
	fa_check_contains(info.details, "kernels");
	fa_check_eq(ops->health(cuda.device, NULL), 0);
	/* Before the driver started. */
	fa_check(!strcmp(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32"));
	fa_check(!strcmp(getenv("CUDA_MODULE_LOADING"), "EAGER"));
	cuda_device_close(&cuda);

	cuda_device_open(&cuda, "1");
	ops->describe(cuda.device, &info);
	cuda_device_close(&cuda);

	/* The same one, by its UUID. */
	snprintf(name, sizeof(name), "GPU-");
	for (int i = 0; i < 16; ++i)
		snprintf(name + strlen(name), sizeof(name) - strlen(name), "%s%02X",
		         i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
		         ((const unsigned char *)info.uuid)[i]);
	for (int i = 0; i < 2; ++i) {
		struct fa_device_info again;

		cuda_device_open(&cuda, name);
		ops->describe(cuda.device, &again);
		fa_check(again.uuid[0] == info.uuid[0] && again.uuid[1] == info.uuid[1]);
		cuda_device_close(&cuda);
		for (char *c = name + 4; *c; ++c)
			if (*c >= 'A' && *c <= 'F')
				*c = (char)(*c - 'A' + 'a');
	}
	open_refused("3", -ENODEV, "finds 3");
	open_refused("99999999999999999999", -EINVAL, "device is");
	open_refused("1x", -EINVAL, "device is \"1x\"");
	open_refused("-1", -EINVAL, "device is");
	open_refused("GPU-00000000-0000-0000-0000-000000000000", -ENODEV, "none of the 3 GPUs");
}

static void no_gpu_child(void)
{
	setenv("FAD_TEST_CUDA_DEVICES", "0", 1);
	open_refused(NULL, -ENODEV, "CUDA");
}

static void old_driver_child(void)
{
	setenv("FAD_TEST_CUDA_LACKS", "cuMemMap", 1);
	open_refused(NULL, -ENOSYS, "cuMemMap");
}

static void exclusive_child(void)
{
	setenv("FAD_TEST_CUDA_FAIL", "cuDevicePrimaryCtxRetain:1=46", 1);
	open_refused(NULL, -EBUSY, "another process may have it");
}

static void environment_child(void)
{
	setenv("FAD_STAGE", "sometimes", 1);
	open_refused(NULL, -EINVAL, "FAD_STAGE is \"sometimes\"");
	setenv("FAD_STAGE", "auto", 1);
	setenv("FAD_PIN_PART_BYTES", "12345", 1);
	open_refused(NULL, -EINVAL, "FAD_PIN_PART_BYTES");
	setenv("FAD_PIN_PART_BYTES", "64k", 1);
	open_refused(NULL, -EINVAL, "expected a number");
}

static void portable_run(struct cuda_device *cuda, bool portable)
{
	const struct fa_case attention = { .dtype = FA_WIRE_DTYPE_BF16,
		                           .seqlen_q = 70,
		                           .lse = true };
	struct fa_device_group *group = cuda_group(cuda);
	struct fa_device_queue *queue = cuda_queue(cuda, group, 0);
	struct fa_test_cuda_calls before, after;

	fa_test_cuda_calls(cuda->page, &before);
	cuda_job_run(cuda, queue, &attention, CUDA_ARENA);
	fa_test_cuda_calls(cuda->page, &after);
	fa_check_eq(after.n[FA_TEST_CUDA_cuTensorMapEncodeTiled] -
	                    before.n[FA_TEST_CUDA_cuTensorMapEncodeTiled],
	            portable ? 0 : FA_CUDA_MAPS);
	ops->queue_free(cuda->device, queue);
	ops->group_free(cuda->device, group);
}

/* Kernels for the chip alone that cannot be loaded are done without; the others not. */
static void portable_child(void)
{
	static const struct {
		const char *call;
		int code;
		const char *part;
	} cases[] = {
		{ "cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU, "NO_BINARY_FOR_GPU" },
		{ "cuModuleGetFunction", CUDA_ERROR_NOT_FOUND, "NOT_FOUND" },
		{ "cuFuncSetAttribute", CUDA_ERROR_INVALID_VALUE, "INVALID_VALUE" },
	};
	struct fa_test_cuda_calls before, after;
	struct fa_test_cuda_page *page;
	struct fa_device_info info;
	struct cuda_device cuda;
	size_t portable = 0;
	char text[64];

	for (size_t i = 0; i < fa_cuda_kernels_count; ++i)
		portable += !fa_cuda_kernel_is_special(&fa_cuda_kernels[i]);
	fa_check(portable < fa_cuda_kernels_count);
	cuda_device_open(&cuda, NULL);
	fa_check(!cuda.device->chip.portable);
	fa_check_eq(cuda.device->n_functions, fa_cuda_kernels_count);
	portable_run(&cuda, false);
	page = fa_test_cuda_attach(&cuda_dir, getpid());
	cuda_device_close(&cuda);

	/* The last such call of those that loading makes, when the module is there already,
	 * and the first of all. */
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); ++i) {
		fa_test_cuda_calls(page, &before);
		cuda_device_open(&cuda, NULL);
		fa_test_cuda_calls(page, &after);
		cuda_device_close(&cuda);
		for (enum fa_test_cuda_call call = 0; call < FA_TEST_CUDA_CALLS; ++call)
			if (!strcmp(fa_test_cuda_call_name(call), cases[i].call))
				snprintf(text, sizeof(text), "%s:%d=%d", cases[i].call,
				         (int)(after.n[call] - before.n[call]), cases[i].code);
		fa_test_cuda_fail(page, text);
		cuda_device_open(&cuda, NULL);
		fa_test_cuda_fail(page, NULL);
		fa_check(cuda.device->chip.portable);
		fa_check_eq(cuda.device->n_functions, portable);
		ops->describe(cuda.device, &info);
		snprintf(text, sizeof(text), " %zu kernels,", portable);
		fa_check_contains(info.details, text);
		fa_check_contains(info.details, "none for its chip alone: ");
		fa_check_contains(info.details, cases[i].part);
		portable_run(&cuda, true);
		cuda_device_close(&cuda);

		snprintf(text, sizeof(text), "%s:1=%d", cases[i].call, cases[i].code);
		fa_test_cuda_fail(page, text);
		open_refused(NULL, fa_cudriver_errno(cases[i].code), cases[i].part);
		fa_test_cuda_fail(page, NULL);
	}
	fa_test_cuda_detach(page);
}

static void test_open(void **state)
{
	cuda_in_child(open_child);
	cuda_in_child(no_gpu_child);
	cuda_in_child(old_driver_child);
	cuda_in_child(exclusive_child);
	cuda_in_child(environment_child);
	cuda_in_child(portable_child);
}

/* ---- results */

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
		/* rows that see nothing */
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

/* No query: no kernel, and it ends all the same. No key: zeros and minus infinity. */
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
	cuda_in_child(random_child);
	cuda_in_child(empty_child);
	cuda_in_child(check_child);
}

/* ---- what the driver is asked */

static void calls_child(void)
{
	static const int allowed[] = { FA_TEST_CUDA_cuLaunchKernel, FA_TEST_CUDA_cuMemcpyHtoDAsync,
		                       FA_TEST_CUDA_cuStreamWriteValue64, FA_TEST_CUDA_kernel,
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

	setenv("FAD_STAGE", "always", 1);
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
	fa_check_eq(after.n[FA_TEST_CUDA_cuLaunchKernel] - before.n[FA_TEST_CUDA_cuLaunchKernel],
	            4 * N);
	fa_check_eq(after.n[FA_TEST_CUDA_cuStreamWriteValue64] -
	                    before.n[FA_TEST_CUDA_cuStreamWriteValue64],
	            4 * N);
	n_copies = after.n[FA_TEST_CUDA_cuMemcpyHtoDAsync] -
	           before.n[FA_TEST_CUDA_cuMemcpyHtoDAsync];
	/* Vectors of two, K and V of two, of which slopes come on top. */
	fa_check_eq(n_copies, (1 + 2 + 2 + 1) * N);
	for (int i = 0; i < (int)(sizeof(allowed) / sizeof(*allowed)); ++i)
		after.n[allowed[i]] = before.n[allowed[i]];
	/* A slow machine may have asked whether the GPU lives. */
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

/* Maps of tensors are encoded once, as long as not too many others come in between; who
 * gets a wrong one is told by the driver. */
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
	/* The same few again and again. */
	for (int round = 0; round < 5; ++round) {
		n_encoded = maps_encoded(&cuda);
		for (int i = 0; i < 4; ++i) {
			cuda_job_launch(&jobs[i], &cuda, queue);
			cuda_job_wait(&jobs[i], &cuda);
			cuda_job_check(&jobs[i]);
		}
		fa_check_eq(maps_encoded(&cuda) - n_encoded, round ? 0 : 4 * FA_CUDA_MAPS);
	}
	/* More than are kept. */
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

	/* One that the driver does not encode fails alone, and is not kept. */
	cuda_job_init(&jobs[0], &cuda);
	jobs[0].message.attention.q.shape[1] = jobs[0].message.attention.out.shape[1] = 2;
	cuda_job_bind(&jobs[0]);
	for (int i = 0; i < 2; ++i) {
		fa_test_cuda_fail(cuda.page, i ? NULL : "cuTensorMapEncodeTiled:1=1");
		cuda_job_launch(&jobs[0], &cuda, queue);
		cuda_job_wait(&jobs[0], &cuda);
		fa_check_eq(jobs[0].work.status, i ? 0 : -EINVAL);
		if (!i)
			fa_check_contains(jobs[0].work.error.text, "CUDA_ERROR_INVALID_VALUE");
	}
	cuda_job_deinit(&jobs[0], &cuda);
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

static void test_calls(void **state)
{
	cuda_in_child(calls_child);
	cuda_in_child(maps_child);
}

/* ---- queues */

enum {
	N_JOBS = 40
};

struct crowd {
	struct cuda_device cuda;
	struct cuda_job jobs[N_JOBS];
};

static void crowd_begin(struct crowd *crowd, int n)
{
	cuda_device_open(&crowd->cuda, NULL);
	for (int i = 0; i < n; ++i) {
		/* Vectors that differ, so that a place used twice would be seen. */
		crowd->jobs[i] = (struct cuda_job){
			.attention = { .seqlen_q = 4 + i,
			               .seqlen_k = 9 + 2 * i,
			               .batch = 1 + i % 3,
			               .heads = 2,
			               .ragged = true,
			               .alibi = true,
			               .causal = i % 2,
			               .seed = (uint64_t)i },
		};
		cuda_job_init(&crowd->jobs[i], &crowd->cuda);
	}
}

static void crowd_end(struct crowd *crowd, int n)
{
	for (int i = 0; i < n; ++i) {
		cuda_job_wait(&crowd->jobs[i], &crowd->cuda);
		if (crowd->jobs[i].work.status == 0)
			cuda_job_check(&crowd->jobs[i]);
		cuda_job_deinit(&crowd->jobs[i], &crowd->cuda);
	}
}

static uint64_t n_launches(const struct crowd *crowd)
{
	return atomic_load(&crowd->cuda.page->calls[FA_TEST_CUDA_cuLaunchKernel]);
}

/* The driver has a few works of a queue, and the rest comes when they have ended. */
static void depth_child(void)
{
	static struct crowd crowd;
	struct fa_device_group *group;
	struct fa_device_queue *queue;

	crowd_begin(&crowd, N_JOBS);
	group = cuda_group(&crowd.cuda);
	queue = cuda_queue(&crowd.cuda, group, 0);
	fa_test_cuda_hold(crowd.cuda.page, true);
	for (int i = 0; i < N_JOBS; ++i)
		cuda_job_launch(&crowd.jobs[i], &crowd.cuda, queue);
	fa_check_eq(n_launches(&crowd), DEPTH);
	fa_check_eventually(fa_test_cuda_kernels(crowd.cuda.page) == 1);
	cuda_reap(&crowd.cuda);
	fa_check(!crowd.jobs[0].reaped);
	fa_test_cuda_hold(crowd.cuda.page, false);
	crowd_end(&crowd, N_JOBS);
	for (int i = 1; i < N_JOBS; ++i) {
		fa_check_eq(crowd.jobs[i].work.status, 0);
		fa_check(crowd.jobs[i].order > crowd.jobs[i - 1].order);
		fa_check(crowd.jobs[i].work.started_ns >= crowd.jobs[i - 1].work.started_ns);
	}
	ops->queue_free(crowd.cuda.device, queue);
	ops->group_free(crowd.cuda.device, group);
	cuda_device_close(&crowd.cuda);
}

/* Queues beyond the CUDA streams share them, each in its order. */
static void many_queues_child(void)
{
	static struct crowd crowd;
	struct fa_device_group *groups[10];
	struct fa_device_queue *queues[N_JOBS / 2];

	crowd_begin(&crowd, N_JOBS);
	for (int i = 0; i < 10; ++i)
		groups[i] = cuda_group(&crowd.cuda);
	for (int i = 0; i < N_JOBS / 2; ++i)
		queues[i] = cuda_queue(&crowd.cuda, groups[i % 10], i % 4 == 0);
	fa_test_cuda_kernel_us(crowd.cuda.page, 300);
	for (int i = 0; i < N_JOBS; ++i)
		cuda_job_launch(&crowd.jobs[i], &crowd.cuda, queues[i % (N_JOBS / 2)]);
	crowd_end(&crowd, N_JOBS);
	for (int i = N_JOBS / 2; i < N_JOBS; ++i)
		fa_check(crowd.jobs[i].order > crowd.jobs[i - N_JOBS / 2].order);
	for (int i = 0; i < N_JOBS / 2; ++i)
		ops->queue_free(crowd.cuda.device, queues[i]);
	for (int i = 0; i < 10; ++i)
		ops->group_free(crowd.cuda.device, groups[i]);
	cuda_device_close(&crowd.cuda);
}

/* One CUDA stream for high priority: a crowd of queues does not hold up a single one. */
static void turns_child(void)
{
	static struct crowd crowd;
	struct fa_device_group *loud, *quiet;
	struct fa_device_queue *queues[10], *single;

	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
	crowd_begin(&crowd, N_JOBS);
	loud = cuda_group(&crowd.cuda);
	quiet = cuda_group(&crowd.cuda);
	for (int i = 0; i < 10; ++i)
		queues[i] = cuda_queue(&crowd.cuda, loud, 1);
	single = cuda_queue(&crowd.cuda, quiet, 1);
	fa_test_cuda_hold(crowd.cuda.page, true);
	for (int i = 0; i < N_JOBS - 3; ++i)
		cuda_job_launch(&crowd.jobs[i], &crowd.cuda, queues[i % 10]);
	for (int i = N_JOBS - 3; i < N_JOBS; ++i)
		cuda_job_launch(&crowd.jobs[i], &crowd.cuda, single);
	fa_check_eq(n_launches(&crowd), DEPTH);
	fa_test_cuda_hold(crowd.cuda.page, false);
	crowd_end(&crowd, N_JOBS);
	/* Behind what the stream had, every second turn is the quiet one's. */
	for (unsigned int i = 0; i < 3; ++i)
		fa_check_eq(crowd.jobs[N_JOBS - 3 + i].order - crowd.jobs[0].order,
		            DEPTH + 1 + 2 * i);
	for (int i = 0; i < 10; ++i)
		ops->queue_free(crowd.cuda.device, queues[i]);
	ops->queue_free(crowd.cuda.device, single);
	ops->group_free(crowd.cuda.device, loud);
	ops->group_free(crowd.cuda.device, quiet);
	cuda_device_close(&crowd.cuda);
}

/* A group's queues spread over a few CUDA streams. */
static void spread_child(void)
{
	static struct crowd crowd;
	struct fa_device_group *group;
	struct fa_device_queue *queues[12];

	crowd_begin(&crowd, N_JOBS);
	group = cuda_group(&crowd.cuda);
	for (int i = 0; i < 12; ++i)
		queues[i] = cuda_queue(&crowd.cuda, group, 0);
	fa_test_cuda_hold(crowd.cuda.page, true);
	for (int i = 0; i < N_JOBS; ++i)
		cuda_job_launch(&crowd.jobs[i], &crowd.cuda, queues[i % 12]);
	fa_check_eventually(fa_test_cuda_kernels(crowd.cuda.page) == FA_CUDA_GROUP_STREAMS);
	fa_check_eq(n_launches(&crowd), FA_CUDA_GROUP_STREAMS * DEPTH);
	fa_test_cuda_hold(crowd.cuda.page, false);
	crowd_end(&crowd, N_JOBS);
	for (int i = 0; i < 12; ++i)
		ops->queue_free(crowd.cuda.device, queues[i]);
	ops->group_free(crowd.cuda.device, group);
	cuda_device_close(&crowd.cuda);
}

static void cancel_child(void)
{
	static struct crowd crowd;
	struct fa_device_group *group;
	struct fa_device_queue *queue, *other;

	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
	crowd_begin(&crowd, 8);
	group = cuda_group(&crowd.cuda);
	queue = cuda_queue(&crowd.cuda, group, 1);
	other = cuda_queue(&crowd.cuda, group, 1);
	fa_test_cuda_hold(crowd.cuda.page, true);
	for (int i = 0; i < 7; ++i)
		cuda_job_launch(&crowd.jobs[i], &crowd.cuda, queue);
	cuda_job_launch(&crowd.jobs[7], &crowd.cuda, other);
	fa_check_eq(crowd.cuda.n_notified, 0);

	/* What the driver has cannot be stopped; what waits ends at once, out of its order. */
	ops->cancel(crowd.cuda.device, &crowd.jobs[0].work);
	ops->cancel(crowd.cuda.device, &crowd.jobs[5].work);
	ops->cancel(crowd.cuda.device, &crowd.jobs[7].work);
	fa_check_eq(crowd.cuda.n_notified, 1);
	cuda_reap(&crowd.cuda);
	for (int i = 0; i < 8; ++i)
		fa_check_eq(crowd.jobs[i].reaped, i == 5 || i == 7);
	fa_check_eq(crowd.jobs[5].work.status, -ECANCELED);
	fa_check_eq(crowd.jobs[7].work.status, -ECANCELED);
	fa_check(fa_case_untouched(&crowd.jobs[5].attention, crowd.jobs[5].data));
	ops->cancel(crowd.cuda.device, &crowd.jobs[4].work);
	ops->cancel(crowd.cuda.device, &crowd.jobs[6].work);
	fa_check_eq(crowd.cuda.n_notified, 2);

	fa_test_cuda_hold(crowd.cuda.page, false);
	for (int i = 0; i < 8; ++i)
		cuda_job_wait(&crowd.jobs[i], &crowd.cuda);
	for (int i = 0; i < 4; ++i)
		fa_check_eq(crowd.jobs[i].work.status, 0);
	/* Finished works can be cancelled, too, and nothing comes of it. */
	ops->cancel(crowd.cuda.device, &crowd.jobs[0].work);
	crowd_end(&crowd, 8);
	ops->queue_free(crowd.cuda.device, queue);
	ops->queue_free(crowd.cuda.device, other);
	ops->group_free(crowd.cuda.device, group);
	cuda_device_close(&crowd.cuda);
}

static void test_queues(void **state)
{
	cuda_in_child(depth_child);
	cuda_in_child(many_queues_child);
	cuda_in_child(turns_child);
	cuda_in_child(spread_child);
	cuda_in_child(cancel_child);
}

/* ---- staging */

static void test_stage_choice(void **state)
{
	struct fa_cuda_kernel kernel = { .rows = 128 };
	struct fa_cuda_launch launch = {
		.kernel = &kernel,
		.args = { .blocks_m = 9,
		          .group = 4,
		          .slices = 2,
		          .window_left = FA_CUDA_WINDOW_MAX,
		          .window_right = FA_CUDA_WINDOW_MAX },
	};

	assert_int_equal(fa_cuda_stage_reads(&launch), 9 * 4 * 2);
	launch.args.window_right = 0;
	assert_int_equal(fa_cuda_stage_reads(&launch), 5 * 4 * 2);
	launch.args.window_left = 256;
	assert_int_equal(fa_cuda_stage_reads(&launch), 4 * 4 * 2);
	launch.args.window_left = 100000;
	assert_int_equal(fa_cuda_stage_reads(&launch), 9 * 4 * 2);

	/* Read once: never. Read often: if it is not tiny, and not mostly gaps. */
	assert_false(fa_cuda_stage_pays(1 << 30, 1 << 30, 1));
	assert_true(fa_cuda_stage_pays(1 << 30, 1 << 30, 2));
	assert_false(fa_cuda_stage_pays(4096, 4096, 4));
	assert_true(fa_cuda_stage_pays(2 << 20, 1 << 20, 8));
	assert_false(fa_cuda_stage_pays((2 << 20) + 2, 1 << 20, 8));
	assert_true(fa_cuda_stage_pays(1ull << 40, 1ull << 40, UINT64_MAX));
}

static uint64_t n_copies(const struct cuda_device *cuda)
{
	return atomic_load(&cuda->page->calls[FA_TEST_CUDA_cuMemcpyHtoDAsync]);
}

/* K and V of 3 MiB, pinned in parts of 1 MiB: no copy crosses their borders. */
static void parts_child(void)
{
	const struct fa_case attention = { .seqlen_q = 30, .seqlen_k = 3000, .heads = 4 };
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;
	uint64_t before;

	setenv("FAD_PIN_PART_BYTES", "1048576", 1);
	setenv("FAD_STAGE", "always", 1);
	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 0);
	before = n_copies(&cuda);
	cuda_job_run(&cuda, queue, &attention, CUDA_HOST);
	fa_check(n_copies(&cuda) - before >= 6);
	before = n_copies(&cuda);
	cuda_job_run(&cuda, queue, &attention, CUDA_ARENA);
	fa_check_eq(n_copies(&cuda), before);
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

static void never_child(void)
{
	const struct fa_case attention = { .seqlen_q = 30, .seqlen_k = 3000, .heads = 4 };
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;
	uint64_t before;

	setenv("FAD_STAGE", "never", 1);
	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 0);
	before = n_copies(&cuda);
	cuda_job_run(&cuda, queue, &attention, CUDA_HOST);
	fa_check_eq(n_copies(&cuda), before);
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

/* K and V side by side in each token: one copy for both. */
static void interleaved_child(void)
{
	struct cuda_job job = { .attention = { .seqlen_q = 300, .seqlen_k = 300, .heads = 4 },
		                .place = CUDA_HOST };
	struct fa_wire_attention *message = &job.message.attention;
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;
	char *k, *v, *both;
	uint64_t before;

	setenv("FAD_STAGE", "auto", 1);
	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 0);
	cuda_job_init(&job, &cuda);
	before = n_copies(&cuda);
	cuda_job_launch(&job, &cuda, queue);
	cuda_job_wait(&job, &cuda);
	cuda_job_check(&job);
	fa_check_eq(n_copies(&cuda), before + 2);

	/* The same numbers in their new places; the check looks at the old ones, which stay
	 * in a copy. */
	k = job.data + job.attention.offset_k;
	v = job.data + job.attention.offset_v;
	both = malloc(job.attention.bytes);
	memcpy(both, job.data, job.attention.bytes);
	for (int i = 0; i < 300; ++i)
		for (int h = 0; h < 4; ++h) {
			memcpy(k + (i * 8 + h) * 256,
			       both + job.attention.offset_k + (i * 4 + h) * 256, 256);
			memcpy(k + (i * 8 + 4 + h) * 256,
			       both + job.attention.offset_v + (i * 4 + h) * 256, 256);
		}
	fa_check(v == k + 300 * 4 * 256);
	message->v.offset = message->k.offset + 4 * 256;
	message->k.strides[1] = message->v.strides[1] = 8 * 64;
	cuda_job_bind(&job);
	memset(job.data + job.attention.offset_out, 0xff, 300 * 4 * 256);
	before = n_copies(&cuda);
	cuda_job_launch(&job, &cuda, queue);
	cuda_job_wait(&job, &cuda);
	fa_check_eq(n_copies(&cuda), before + 1);
	memcpy(both + job.attention.offset_out, job.data + job.attention.offset_out, 300 * 4 * 256);
	fa_check(fa_case_error(&job.attention, both) <= 1);
	free(both);
	cuda_job_deinit(&job, &cuda);
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

/* A staging area of 1 MiB, for many works of 400 KB each: some find no room. */
static void full_child(void)
{
	enum {
		N = 12
	};
	static struct cuda_job jobs[N];
	struct fa_device_queue *queues[4];
	struct fa_device_group *groups[4];
	struct cuda_device cuda;
	uint64_t before;

	setenv("FAD_TEST_CUDA_MEMORY_MIB", "64", 1);
	setenv("FAD_STAGE", "always", 1);
	cuda_device_open(&cuda, NULL);
	for (int i = 0; i < 4; ++i) {
		groups[i] = cuda_group(&cuda);
		queues[i] = cuda_queue(&cuda, groups[i], 0);
	}
	for (int i = 0; i < N; ++i) {
		jobs[i] = (struct cuda_job){
			.attention = { .seqlen_q = 9, .seqlen_k = 800, .seed = (uint64_t)i },
			.place = CUDA_HOST
		};
		cuda_job_init(&jobs[i], &cuda);
	}
	before = n_copies(&cuda);
	fa_test_cuda_hold(cuda.page, true);
	for (int i = 0; i < N; ++i)
		cuda_job_launch(&jobs[i], &cuda, queues[i % 4]);
	fa_check_eq(n_copies(&cuda), before + 2 * 2);
	fa_test_cuda_hold(cuda.page, false);
	for (int i = 0; i < N; ++i) {
		cuda_job_wait(&jobs[i], &cuda);
		cuda_job_check(&jobs[i]);
	}
	/* All of it is free again. */
	for (int i = 0; i < 2; ++i)
		cuda_job_launch(&jobs[i], &cuda, queues[i]);
	fa_check_eq(n_copies(&cuda), before + 4 * 2);
	for (int i = 0; i < N; ++i) {
		cuda_job_wait(&jobs[i], &cuda);
		cuda_job_deinit(&jobs[i], &cuda);
	}
	for (int i = 0; i < 4; ++i) {
		ops->queue_free(cuda.device, queues[i]);
		ops->group_free(cuda.device, groups[i]);
	}
	cuda_device_close(&cuda);
}

static void test_stage(void **state)
{
	cuda_in_child(parts_child);
	cuda_in_child(never_child);
	cuda_in_child(interleaved_child);
	cuda_in_child(full_child);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open),         cmocka_unit_test(test_results),
		cmocka_unit_test(test_calls),        cmocka_unit_test(test_queues),
		cmocka_unit_test(test_stage_choice), cmocka_unit_test(test_stage),
	};
	int r;

	fa_test_cuda_begin(&cuda_dir);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	fa_test_cuda_end(&cuda_dir);
	return r;
}
