/* The queues of the CUDA backend over the tests' driver: what is launched in which order. */
#include "daemon/backend/cuda/queue.h"
#include "tests/daemon/cuda-device.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define DEPTH FA_CUDA_STREAM_DEPTH

static const struct fa_device_ops *const ops = &fa_device_cuda;

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
	return fa_test_cuda_launches(crowd->cuda.page);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_queues),
	};
	int r;

	fa_test_cuda_begin(&cuda_dir);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	fa_test_cuda_end(&cuda_dir);
	return r;
}
