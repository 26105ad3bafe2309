/*
 * How long launches give way to works of high priority, over the tests' driver: whose kernels
 * leave all of their blocks when they are asked in time.
 */
#include "daemon/device_cuda.h"
#include "tests/daemon/cuda-device.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static const struct fa_device_ops *const ops = &fa_device_cuda;

enum {
	LONG,   /* may yield */
	BEHIND, /* the same, in the same queue */
	URGENT,
	N_JOBS
};

struct scene {
	struct cuda_device cuda;
	struct cuda_job jobs[N_JOBS];
	struct fa_device_group *groups[2];
	struct fa_device_queue *low, *high;
};

static void begin(struct scene *scene)
{
	cuda_device_open(&scene->cuda, NULL);
	/* However slow this machine is. */
	scene->cuda.device->yield.longest_stop_ns = UINT64_MAX;
	for (int i = 0; i < 2; ++i)
		scene->groups[i] = cuda_group(&scene->cuda);
	scene->low = cuda_queue(&scene->cuda, scene->groups[0], 0);
	scene->high = cuda_queue(&scene->cuda, scene->groups[1], 1);
	for (int i = 0; i < N_JOBS; ++i) {
		scene->jobs[i] = (struct cuda_job){
			.attention = { .dtype = FA_WIRE_DTYPE_BF16,
			               .head_dim = 128,
			               .heads = 2,
			               .seqlen_q = i == URGENT ? 1 : 300,
			               .seqlen_k = 400,
			               .causal = i == BEHIND,
			               .lse = true,
			               .seed = (uint64_t)i },
		};
		cuda_job_init(&scene->jobs[i], &scene->cuda);
	}
}

static void free_all(struct scene *scene)
{
	for (int i = 0; i < N_JOBS; ++i)
		cuda_job_deinit(&scene->jobs[i], &scene->cuda);
	ops->queue_free(scene->cuda.device, scene->low);
	if (scene->high)
		ops->queue_free(scene->cuda.device, scene->high);
	for (int i = 0; i < 2; ++i)
		ops->group_free(scene->cuda.device, scene->groups[i]);
}

static void end(struct scene *scene)
{
	free_all(scene);
	cuda_device_close(&scene->cuda);
}

static uint64_t n_launches(const struct scene *scene)
{
	return atomic_load(&scene->cuda.page->calls[FA_TEST_CUDA_cuLaunchKernel]);
}

static void start(struct scene *scene, int job)
{
	cuda_job_launch(&scene->jobs[job], &scene->cuda, job == URGENT ? scene->high : scene->low);
}

static bool has_stopped(struct scene *scene)
{
	const struct fa_cuda_stream *streams = scene->cuda.device->streams;

	cuda_reap(&scene->cuda);
	for (unsigned int i = 0; i < scene->cuda.device->n_streams; ++i)
		if (streams[i].yielding.stopped_ns)
			return true;
	return false;
}

/* The long one runs until it is told to stop. */
static void run_long(struct scene *scene)
{
	const uint64_t n_kernels = fa_test_cuda_kernels(scene->cuda.page);

	fa_test_cuda_hold(scene->cuda.page, true);
	start(scene, LONG);
	fa_check_eventually(fa_test_cuda_kernels(scene->cuda.page) == n_kernels + 1);
}

static void check_done(struct scene *scene, int job)
{
	cuda_job_wait(&scene->jobs[job], &scene->cuda);
	fa_check_eq(scene->jobs[job].work.status, 0);
	cuda_job_check(&scene->jobs[job]);
}

/* It stops, the urgent one runs, it goes on, and only then what is behind it. */
static void order_child(void)
{
	static struct scene scene;

	begin(&scene);
	run_long(&scene);
	start(&scene, BEHIND);
	fa_check_eq(n_launches(&scene), 1);
	start(&scene, URGENT);
	fa_check_eq(n_launches(&scene), 2);
	fa_check_eventually(has_stopped(&scene));
	fa_check(!scene.jobs[LONG].reaped && !scene.jobs[URGENT].reaped);
	fa_test_cuda_hold(scene.cuda.page, false);
	check_done(&scene, URGENT);
	check_done(&scene, LONG);
	check_done(&scene, BEHIND);
	fa_check(scene.jobs[URGENT].order < scene.jobs[LONG].order);
	fa_check(scene.jobs[LONG].order < scene.jobs[BEHIND].order);
	fa_check(n_launches(&scene) >= 4);
	end(&scene);
}

/* Where urgent works never end it goes on nevertheless. */
static void starving_child(void)
{
	static struct scene scene;

	begin(&scene);
	run_long(&scene);
	start(&scene, URGENT);
	fa_check_eq(n_launches(&scene), 2);
	fa_check_eventually(has_stopped(&scene));
	fa_check_eq(n_launches(&scene), 2);
	scene.cuda.device->yield.longest_stop_ns = 1;
	fa_check_eventually((cuda_reap(&scene.cuda), n_launches(&scene) >= 3));
	fa_check(!scene.jobs[URGENT].reaped);
	fa_test_cuda_hold(scene.cuda.page, false);
	check_done(&scene, URGENT);
	check_done(&scene, LONG);
	end(&scene);
}

static void cancel_child(void)
{
	static struct scene scene;

	/* While it runs: it ends as soon as it can. */
	begin(&scene);
	run_long(&scene);
	start(&scene, BEHIND);
	ops->cancel(scene.cuda.device, &scene.jobs[LONG].work);
	cuda_job_wait(&scene.jobs[LONG], &scene.cuda);
	fa_check_eq(scene.jobs[LONG].work.status, -ECANCELED);
	fa_check(!scene.jobs[BEHIND].reaped);
	fa_test_cuda_hold(scene.cuda.page, false);
	check_done(&scene, BEHIND);
	fa_check_eq(n_launches(&scene), 2);
	end(&scene);

	/* While it is stopped: it does not wait for the urgent one. */
	begin(&scene);
	run_long(&scene);
	start(&scene, URGENT);
	fa_check_eventually(has_stopped(&scene));
	ops->cancel(scene.cuda.device, &scene.jobs[LONG].work);
	cuda_job_wait(&scene.jobs[LONG], &scene.cuda);
	fa_check_eq(scene.jobs[LONG].work.status, -ECANCELED);
	fa_check(!scene.jobs[URGENT].reaped);
	fa_test_cuda_hold(scene.cuda.page, false);
	check_done(&scene, URGENT);
	end(&scene);
}

/* The GPU is lost while it is stopped; or the rest cannot be launched. */
static void fault_child(void)
{
	static struct scene scene;
	struct fa_error error;

	begin(&scene);
	run_long(&scene);
	start(&scene, BEHIND);
	start(&scene, URGENT);
	fa_check_eventually(has_stopped(&scene));
	fa_test_cuda_fail(scene.cuda.page, "cuLaunchKernel:1=1");
	fa_test_cuda_hold(scene.cuda.page, false);
	check_done(&scene, URGENT);
	cuda_job_wait(&scene.jobs[LONG], &scene.cuda);
	fa_check(scene.jobs[LONG].work.status < 0);
	fa_check_contains(scene.jobs[LONG].work.error.text, "rest of the kernel");
	check_done(&scene, BEHIND);
	fa_check_eq(ops->health(scene.cuda.device, &error), 0);
	end(&scene);
}

static void lost_child(void)
{
	static struct scene scene;
	struct fa_error error;

	begin(&scene);
	run_long(&scene);
	start(&scene, BEHIND);
	fa_test_cuda_fail(scene.cuda.page, "kernel:1=700");
	start(&scene, URGENT);
	fa_check_eventually(has_stopped(&scene));
	fa_test_cuda_hold(scene.cuda.page, false);
	fa_check_eventually(ops->health(scene.cuda.device, &error) == -ENODEV);
	for (int i = 0; i < N_JOBS; ++i) {
		cuda_job_wait(&scene.jobs[i], &scene.cuda);
		fa_check_eq(scene.jobs[i].work.status, -ENODEV);
	}
	/* A lost driver takes nothing back. */
	free_all(&scene);
	fa_check(!ops->close(scene.cuda.device));
}

/* Where nobody could ask works stand behind one another as ever. */
static void nobody_child(void)
{
	static struct scene scene;

	begin(&scene);
	ops->queue_free(scene.cuda.device, scene.high);
	scene.high = NULL;
	run_long(&scene);
	start(&scene, BEHIND);
	fa_check_eq(n_launches(&scene), 2);
	fa_test_cuda_hold(scene.cuda.page, false);
	check_done(&scene, LONG);
	check_done(&scene, BEHIND);
	end(&scene);
}

/* The same where works are short. */
static void short_child(void)
{
	static struct scene scene;

	unsetenv("FAD_YIELD_NS");
	begin(&scene);
	run_long(&scene);
	start(&scene, BEHIND);
	fa_check_eq(n_launches(&scene), 2);
	fa_test_cuda_hold(scene.cuda.page, false);
	check_done(&scene, LONG);
	check_done(&scene, BEHIND);
	end(&scene);
}

static void test_order(void **state)
{
	cuda_in_child(order_child);
	cuda_in_child(starving_child);
}

static void test_cancel(void **state)
{
	cuda_in_child(cancel_child);
}

static void test_faults(void **state)
{
	cuda_in_child(fault_child);
	cuda_in_child(lost_child);
}

static void test_when(void **state)
{
	cuda_in_child(nobody_child);
	cuda_in_child(short_child);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_faults),
		cmocka_unit_test(test_when),
	};
	int r;

	fa_test_cuda_begin(&cuda_dir);
	setenv("FAD_YIELD_NS", "0", 1);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	fa_test_cuda_end(&cuda_dir);
	return r;
}
