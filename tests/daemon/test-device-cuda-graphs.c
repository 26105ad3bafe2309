/*
 * Launches by CUDA graph: when a kernel gets one, each launch's own params, eviction, and drivers
 * without graphs.
 */
#include "daemon/backend/cuda/device.h"
#include "tests/daemon/cuda-device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct fa_device_ops *const ops = &fa_device_cuda;

enum {
	N_JOBS = 10,
	ENOUGH = 20 /* launches until a kernel has its graph */
};

struct scene {
	struct cuda_device cuda;
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_job jobs[N_JOBS];
};

static void scene_begin(struct scene *scene)
{
	static const struct fa_case cases[N_JOBS] = {
		{ .dtype = FA_WIRE_DTYPE_BF16, .head_dim = 64, .causal = true },
		{ .dtype = FA_WIRE_DTYPE_F16, .head_dim = 64, .causal = true },
		{ .dtype = FA_WIRE_DTYPE_BF16, .head_dim = 128, .causal = true },
		{ .dtype = FA_WIRE_DTYPE_F16, .head_dim = 128, .causal = true },
		{ .dtype = FA_WIRE_DTYPE_F32, .head_dim = 64 },
		{ .dtype = FA_WIRE_DTYPE_F32, .head_dim = 128 },
		{ .dtype = FA_WIRE_DTYPE_BF16, .head_dim = 256 },
		{ .dtype = FA_WIRE_DTYPE_F16, .head_dim = 256 },
		{ .dtype = FA_WIRE_DTYPE_BF16, .head_dim = 192 },
		{ .dtype = FA_WIRE_DTYPE_F16, .head_dim = 192 },
	};

	*scene = (struct scene){};
	cuda_device_open(&scene->cuda, NULL);
	scene->group = cuda_group(&scene->cuda);
	scene->queue = cuda_queue(&scene->cuda, scene->group, 1);
	for (int i = 0; i < N_JOBS; ++i) {
		scene->jobs[i].attention = cases[i];
		scene->jobs[i].attention.seqlen_q = 5 + i;
		scene->jobs[i].attention.seqlen_k = 9 + i;
		scene->jobs[i].attention.heads = 2;
		scene->jobs[i].attention.seed = (uint64_t)i;
		cuda_job_init(&scene->jobs[i], &scene->cuda);
	}
}

static void scene_end(struct scene *scene)
{
	for (int i = 0; i < N_JOBS; ++i) {
		cuda_job_check(&scene->jobs[i]);
		cuda_job_deinit(&scene->jobs[i], &scene->cuda);
	}
	ops->queue_free(scene->cuda.device, scene->queue);
	ops->group_free(scene->cuda.device, scene->group);
	cuda_device_close(&scene->cuda);
}

static uint64_t called(const struct scene *scene, enum fa_test_cuda_call call)
{
	struct fa_test_cuda_calls calls;

	fa_test_cuda_calls(scene->cuda.page, &calls);
	return calls.n[call];
}

static uint64_t repeat(struct scene *scene, int job, int n)
{
	const uint64_t before = called(scene, FA_TEST_CUDA_cuGraphLaunch);
	const uint64_t kernels = called(scene, FA_TEST_CUDA_kernel);

	for (int i = 0; i < n; ++i) {
		cuda_job_launch(&scene->jobs[job], &scene->cuda, scene->queue);
		cuda_job_wait(&scene->jobs[job], &scene->cuda);
		cuda_job_check(&scene->jobs[job]);
	}
	fa_check_eq(called(scene, FA_TEST_CUDA_kernel) - kernels, (uint64_t)n);
	return called(scene, FA_TEST_CUDA_cuGraphLaunch) - before;
}

static void repeated_child(void)
{
	struct scene scene;
	uint64_t first;

	scene_begin(&scene);
	fa_check_eq(repeat(&scene, 0, 1), 0);
	first = repeat(&scene, 0, ENOUGH);
	fa_check(first > 0 && first < ENOUGH);
	fa_check_eq(repeat(&scene, 0, 5), 5);
	for (int i = 1; i < FA_CUDA_GRAPHS; ++i)
		(void)repeat(&scene, i, ENOUGH);
	for (int round = 0; round < 3; ++round)
		for (int i = 0; i < FA_CUDA_GRAPHS; ++i)
			fa_check_eq(repeat(&scene, i, 1), 1);
	fa_check_eq(called(&scene, FA_TEST_CUDA_cuGraphInstantiateWithFlags), FA_CUDA_GRAPHS);
	for (int i = FA_CUDA_GRAPHS; i < N_JOBS; ++i)
		(void)repeat(&scene, i, 1);
	scene_end(&scene);
}

static void in_flight_child(void)
{
	struct cuda_job others[3] = {};
	struct scene scene;

	scene_begin(&scene);
	(void)repeat(&scene, 0, ENOUGH);
	for (int i = 0; i < 3; ++i) {
		others[i].attention = scene.jobs[0].attention;
		others[i].attention.seqlen_k += 3 * i + 1;
		others[i].attention.seed = 70 + (uint64_t)i;
		cuda_job_init(&others[i], &scene.cuda);
	}
	for (int round = 0; round < 4; ++round) {
		fa_test_cuda_hold(scene.cuda.page, true);
		cuda_job_launch(&scene.jobs[0], &scene.cuda, scene.queue);
		for (int i = 0; i < 3; ++i)
			cuda_job_launch(&others[i], &scene.cuda, scene.queue);
		fa_test_cuda_hold(scene.cuda.page, false);
		cuda_job_wait(&scene.jobs[0], &scene.cuda);
		for (int i = 0; i < 3; ++i) {
			cuda_job_wait(&others[i], &scene.cuda);
			cuda_job_check(&others[i]);
		}
	}
	for (int i = 0; i < 3; ++i)
		cuda_job_deinit(&others[i], &scene.cuda);
	for (int i = 1; i < N_JOBS; ++i)
		(void)repeat(&scene, i, 1);
	scene_end(&scene);
}

/* With more kernels than graphs the least recently used graph goes. */
static void eviction_child(void)
{
	struct scene scene;

	scene_begin(&scene);
	for (int i = 0; i < N_JOBS; ++i)
		fa_check(repeat(&scene, i, ENOUGH) > 0);
	fa_check_eq(called(&scene, FA_TEST_CUDA_cuGraphExecDestroy), N_JOBS - FA_CUDA_GRAPHS);
	for (int i = N_JOBS - FA_CUDA_GRAPHS; i < N_JOBS; ++i)
		fa_check_eq(repeat(&scene, i, 1), 1);
	/* A rare kernel takes a slot but gets no graph. */
	fa_check_eq(repeat(&scene, 0, 1), 0);
	fa_check_eq(called(&scene, FA_TEST_CUDA_cuGraphExecDestroy), N_JOBS - FA_CUDA_GRAPHS + 1);
	for (int i = N_JOBS - FA_CUDA_GRAPHS + 1; i < N_JOBS; ++i)
		fa_check_eq(repeat(&scene, i, 1), 1);
	for (int i = 0; i < N_JOBS; ++i)
		(void)repeat(&scene, i, 1);
	scene_end(&scene);
}

static void refused_child(void)
{
	static const char *const rules[] = { "cuGraphCreate:1=2", "cuGraphAddKernelNode:1=801",
		                             "cuGraphKernelNodeSetAttribute:1=1",
		                             "cuGraphInstantiateWithFlags:1=2",
		                             "cuGraphUpload:1=2" };

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); ++i) {
		struct scene scene;

		scene_begin(&scene);
		fa_test_cuda_fail(scene.cuda.page, rules[i]);
		for (int j = 0; j < N_JOBS; ++j)
			fa_check_eq(repeat(&scene, j, ENOUGH), 0);
		scene_end(&scene);
	}
}

static void failed_child(void)
{
	static const char *const rules[] = { "cuGraphExecKernelNodeSetParams:1=1",
		                             "cuGraphLaunch:1=1" };
	struct scene scene;

	scene_begin(&scene);
	(void)repeat(&scene, 0, ENOUGH);
	for (int i = 0; i < 2; ++i) {
		fa_test_cuda_fail(scene.cuda.page, rules[i]);
		cuda_job_launch(&scene.jobs[0], &scene.cuda, scene.queue);
		cuda_job_wait(&scene.jobs[0], &scene.cuda);
		fa_check(scene.jobs[0].work.status < 0);
		(void)repeat(&scene, 0, 3);
	}
	for (int i = 1; i < N_JOBS; ++i)
		(void)repeat(&scene, i, 1);
	scene_end(&scene);
}

static void test_graphs(void **state)
{
	cuda_in_child(repeated_child);
	cuda_in_child(in_flight_child);
	cuda_in_child(eviction_child);
	cuda_in_child(refused_child);
	cuda_in_child(failed_child);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_graphs),
	};
	int r;

	fa_test_cuda_begin(&cuda_dir);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	fa_test_cuda_end(&cuda_dir);
	return r;
}
