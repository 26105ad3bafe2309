/*
 * Preemption of long launches by works of high priority. Asked to stop, the tests' driver's kernels
 * leave the blocks for which they had no time; while held, all blocks.
 */
#include "daemon/backend/cuda/preempt.h"
#include "daemon/backend/cuda/stream.h"
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
	LONG,   /* preemptible */
	BEHIND, /* the same, behind it in its queue */
	BESIDE, /* the same, of another group */
	SHORT,  /* not preemptible */
	URGENT,
	URGENT_TOO,
	N_JOBS
};

#define N_GROUPS 3

struct scene {
	struct cuda_device cuda;
	struct cuda_job jobs[N_JOBS];
	struct fa_device_group *groups[N_GROUPS];
	struct fa_device_queue *low, *beside, *high;
};

static struct fa_case case_of(int job)
{
	struct fa_case attention = {
		.dtype = FA_WIRE_DTYPE_BF16,
		.head_dim = 128,
		.heads = job == LONG ? 16 : 2,
		.seqlen_q = job >= URGENT ? 1 : 300,
		.seqlen_k = job == LONG ? 50 : 400, /* many blocks, little to compute */
		.causal = job == BEHIND,
		.lse = true,
		.seed = (uint64_t)job,
	};

	/* No kernel of this dtype is preemptible. */
	if (job == SHORT)
		attention.dtype = FA_WIRE_DTYPE_F32;
	return attention;
}

static void begin(struct scene *scene)
{
	cuda_device_open(&scene->cuda, NULL);
	/* Independent of this machine's speed. */
	scene->cuda.device->tuning.preempt_stop_ns = UINT64_MAX;
	for (int i = 0; i < N_GROUPS; ++i)
		scene->groups[i] = cuda_group(&scene->cuda);
	scene->low = cuda_queue(&scene->cuda, scene->groups[0], 0);
	scene->high = cuda_queue(&scene->cuda, scene->groups[1], 1);
	scene->beside = cuda_queue(&scene->cuda, scene->groups[2], 0);
	for (int i = 0; i < N_JOBS; ++i) {
		scene->jobs[i] = (struct cuda_job){ .attention = case_of(i) };
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
	ops->queue_free(scene->cuda.device, scene->beside);
	for (int i = 0; i < N_GROUPS; ++i)
		ops->group_free(scene->cuda.device, scene->groups[i]);
}

static void end(struct scene *scene)
{
	free_all(scene);
	cuda_device_close(&scene->cuda);
}

static uint64_t n_launches(const struct scene *scene)
{
	return fa_test_cuda_launches(scene->cuda.page);
}

static void start(struct scene *scene, int job)
{
	cuda_job_launch(&scene->jobs[job], &scene->cuda,
	                job >= URGENT   ? scene->high
	                : job == BESIDE ? scene->beside
	                                : scene->low);
}

static bool has_stopped(struct scene *scene)
{
	const struct fa_cuda_stream *streams = scene->cuda.device->streams;

	cuda_reap(&scene->cuda);
	for (unsigned int i = 0; i < scene->cuda.device->n_streams; ++i)
		if (streams[i].preemption.stopped_ns)
			return true;
	return false;
}

/* The stream of a preemptible work. */
static const struct fa_cuda_stream *stream_of_work(const struct scene *scene,
                                                   const struct fa_device_work *work)
{
	const struct fa_cuda_stream *streams = scene->cuda.device->streams;
	unsigned int i = 0;

	while (streams[i].preemption.work != work) {
		++i;
		fa_check(i < scene->cuda.device->n_streams);
	}
	return &streams[i];
}

static const struct fa_cuda_stream *stream_of(const struct scene *scene, int job)
{
	return stream_of_work(scene, &scene->jobs[job].work);
}

/* The long work runs until it is asked to stop. */
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

/* The long work stops, the urgent one runs, the long one is resumed, then the one behind. */
static void order_child(void)
{
	static struct scene scene;

	begin(&scene);
	/* Leave the signal words as after a decode with parts, which the next work may not have. */
	for (unsigned int i = 0; i < scene.cuda.device->n_streams; ++i)
		fa_cuda_self_signal_launched(&scene.cuda.device->streams[i], FA_CUDA_DONE_PARTS,
		                             FA_CUDA_DONE_PARTS);
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

/* A work is resumed even if urgent works never end. */
static void starving_child(void)
{
	static struct scene scene;

	begin(&scene);
	run_long(&scene);
	start(&scene, URGENT);
	fa_check_eq(n_launches(&scene), 2);
	fa_check_eventually(has_stopped(&scene));
	fa_check_eq(n_launches(&scene), 2);
	scene.cuda.device->tuning.preempt_stop_ns = 1;
	fa_check_eventually((cuda_reap(&scene.cuda), n_launches(&scene) >= 3));
	fa_check(!scene.jobs[URGENT].reaped);
	/* The resumed work now runs long enough to make up for the preemption. */
	fa_check_eq(stream_of(&scene, LONG)->preemption.run_ns, 500 * FA_NS_PER_US);
	fa_test_cuda_hold(scene.cuda.page, false);
	check_done(&scene, URGENT);
	check_done(&scene, LONG);
	end(&scene);
}

/* Runs the long work while one of two urgent ones is always in flight. */
static void run_beside_urgent(struct scene *scene, const int urgent[2], uint64_t until_ns)
{
	start(scene, LONG);
	while (!scene->jobs[LONG].reaped) {
		uint64_t pause_ns = 0;

		fa_check(fa_now_ns() < until_ns);
		cuda_reap(&scene->cuda);
		for (int i = 0; i < 2; ++i)
			if (scene->jobs[urgent[i]].reaped)
				start(scene, urgent[i]);
		fa_test_poll_pause(&pause_ns);
	}
	check_done(scene, LONG);
}

/* A work makes progress each time, however many urgent ones come. */
static void endless_child(void)
{
	static const int urgent[] = { URGENT, URGENT_TOO };
	const uint64_t until_ns = fa_deadline_ns(fa_test_patience_ns());
	static struct scene scene;

	begin(&scene);
	scene.cuda.device->tuning.preempt_stop_ns = fa_cuda_tuning_default().preempt_stop_ns;
	/* The kernel takes much longer than it may run between stops. */
	fa_test_cuda_kernel_us(scene.cuda.page, 20000);
	for (int i = 0; i < 2; ++i)
		start(&scene, urgent[i]);
	/* The kernel may end unseen while this thread has no processor: tries again. */
	do
		run_beside_urgent(&scene, urgent, until_ns);
	while (fa_test_cuda_stopped(scene.cuda.page) == 0);
	for (int i = 0; i < 2; ++i)
		check_done(&scene, urgent[i]);
	end(&scene);
}

/* The guaranteed time begins when the launch can. */
static void waits_child(void)
{
	const struct fa_cuda_stream *stream;
	static struct scene scene;

	begin(&scene);
	fa_test_cuda_kernel_us(scene.cuda.page, 500000);
	start(&scene, SHORT);
	start(&scene, LONG);
	fa_check_eq(n_launches(&scene), 2);
	fa_check_eventually(fa_test_cuda_kernels(scene.cuda.page) == 1);
	fa_test_cuda_kernel_us(scene.cuda.page, 3000000);
	start(&scene, URGENT);
	stream = stream_of(&scene, LONG);
	do {
		fa_check(!stream->preemption.stop_requested);
		cuda_reap(&scene.cuda);
	} while (!scene.jobs[SHORT].reaped);
	fa_check(stream->preemption.not_before_ns > scene.jobs[SHORT].work.finished_ns);
	fa_check_eventually(has_stopped(&scene));
	fa_check(!scene.jobs[URGENT].reaped);
	fa_test_cuda_kernel_us(scene.cuda.page, 0);
	for (int i = SHORT; i <= URGENT; ++i)
		check_done(&scene, i);
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

	/* While stopped: it does not wait for the urgent one. */
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

/* Only the cancelled work is asked to stop. */
static void cancel_one_child(void)
{
	static struct scene scene;

	begin(&scene);
	run_long(&scene);
	start(&scene, BESIDE);
	fa_check_eventually(fa_test_cuda_kernels(scene.cuda.page) == 2);
	ops->cancel(scene.cuda.device, &scene.jobs[LONG].work);
	cuda_job_wait(&scene.jobs[LONG], &scene.cuda);
	fa_check_eq(scene.jobs[LONG].work.status, -ECANCELED);
	fa_test_quiet_ms(20);
	cuda_reap(&scene.cuda);
	fa_check(!stream_of(&scene, BESIDE)->preemption.stop_requested);
	fa_check_eq(fa_test_cuda_stopped(scene.cuda.page), 1);
	fa_test_cuda_hold(scene.cuda.page, false);
	check_done(&scene, BESIDE);
	fa_check_eq(n_launches(&scene), 2);
	end(&scene);
}

/* The driver refused to write the stop word: it is written again. */
static void cancel_again_child(void)
{
	static struct scene scene;

	begin(&scene);
	run_long(&scene);
	fa_test_cuda_fail(scene.cuda.page, "cuStreamWriteValue64:1=1");
	ops->cancel(scene.cuda.device, &scene.jobs[LONG].work);
	fa_check(!stream_of(&scene, LONG)->preemption.stop_requested);
	cuda_job_wait(&scene.jobs[LONG], &scene.cuda);
	fa_check_eq(scene.jobs[LONG].work.status, -ECANCELED);
	fa_test_cuda_hold(scene.cuda.page, false);
	end(&scene);
}

/* The GPU is lost while a work is stopped, or the rest cannot be launched. */
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
	static const int launched[] = { LONG, BEHIND, URGENT };
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
	for (size_t i = 0; i < sizeof(launched) / sizeof(launched[0]); ++i) {
		cuda_job_wait(&scene.jobs[launched[i]], &scene.cuda);
		fa_check_eq(scene.jobs[launched[i]].work.status, -ENODEV);
	}
	/* A lost driver frees nothing. */
	free_all(&scene);
	fa_check(!ops->close(scene.cuda.device));
}

/* Without queues of high priority, works are launched behind one another. */
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

/* Very long works are preempted by a queue that came later, too. */
static void later_child(void)
{
	static struct scene scene;
	struct cuda_job job = {
		.attention = { .dtype = FA_WIRE_DTYPE_BF16,
		               .head_dim = 128,
		               .heads = 32,
		               .kv_heads = 1,
		               .seqlen_q = 1024,
		               .seqlen_k = 2048 },
	};
	const struct cuda_device *cuda = &scene.cuda;

	setenv("FAD_TEST_CUDA_GFLOP", "1", 1); /* never computed */
	begin(&scene);
	cuda->device->chip.sms = 1; /* makes the estimate long */
	ops->queue_free(cuda->device, scene.high);
	cuda_job_init(&job, &scene.cuda);
	fa_test_cuda_hold(cuda->page, true);
	cuda_job_launch(&job, &scene.cuda, scene.low);
	fa_check_eventually(fa_test_cuda_kernels(cuda->page) == 1);
	scene.high = cuda_queue(&scene.cuda, scene.groups[1], 1);
	start(&scene, URGENT);
	fa_check_eventually(has_stopped(&scene));
	fa_test_cuda_hold(cuda->page, false);
	check_done(&scene, URGENT);
	cuda_job_wait(&job, &scene.cuda);
	fa_check_eq(job.work.status, 0);
	cuda_job_deinit(&job, &scene.cuda);
	end(&scene);
}

/* A ragged batch's list is of as many thread blocks as a preemptible launch has; the tests' driver
 * checks the list at the launch, and when the rest is launched. */
static void ragged_child(void)
{
	static struct scene scene;
	struct cuda_job job = {
		.attention = { .dtype = FA_WIRE_DTYPE_BF16,
		               .ragged = true,
		               .batch = 7,
		               .head_dim = 128,
		               .heads = 32,
		               .kv_heads = 1,
		               .seqlen_q = 1000,
		               .seqlen_k = 2300 },
	};
	const struct cuda_device *cuda = &scene.cuda;
	const struct fa_cuda_preemption *preemption;

	setenv("FAD_TEST_CUDA_GFLOP", "1", 1); /* never computed */
	begin(&scene);
	cuda->device->chip.sms = 2; /* makes the estimate long */
	cuda_job_init(&job, &scene.cuda);
	fa_test_cuda_hold(cuda->page, true);
	cuda_job_launch(&job, &scene.cuda, scene.low);
	fa_check_eventually(fa_test_cuda_kernels(cuda->page) == 1);
	preemption = &stream_of_work(&scene, &job.work)->preemption;
	fa_check_eq(preemption->grid, FA_CUDA_PREEMPT_BLOCKS_AN_SM * cuda->device->chip.sms);
	fa_check(preemption->args.attention.list_units > preemption->grid);
	start(&scene, URGENT);
	fa_check_eventually(has_stopped(&scene));
	fa_test_cuda_hold(cuda->page, false);
	check_done(&scene, URGENT);
	cuda_job_wait(&job, &scene.cuda);
	fa_check_eq(job.work.status, 0);
	fa_check(n_launches(&scene) >= 3);
	cuda_job_deinit(&job, &scene.cuda);
	end(&scene);
}

static void short_child(void)
{
	static struct scene scene;

	unsetenv("FAD_TUNE_PREEMPT_WORK_NS");
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
	cuda_in_child(endless_child);
	cuda_in_child(waits_child);
}

static void test_cancel(void **state)
{
	cuda_in_child(cancel_child);
	cuda_in_child(cancel_one_child);
	cuda_in_child(cancel_again_child);
}

static void test_faults(void **state)
{
	cuda_in_child(fault_child);
	cuda_in_child(lost_child);
}

static void test_when(void **state)
{
	cuda_in_child(nobody_child);
	cuda_in_child(later_child);
	cuda_in_child(ragged_child);
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
	setenv("FAD_TUNE_PREEMPT_WORK_NS", "0", 1);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	fa_test_cuda_end(&cuda_dir);
	return r;
}
