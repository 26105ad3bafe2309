/* The order in which the CUDA backend launches its queues. */
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
		/* Different vectors reveal memory used twice. */
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

/* The driver has a few works of a queue; others are launched when those end. */
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

/* A group's queues of equal priority share a CUDA stream, however many streams are idle. */
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
	fa_check_eventually(fa_test_cuda_kernels(crowd.cuda.page) == 1);
	fa_check_eq(n_launches(&crowd), DEPTH);
	fa_test_cuda_hold(crowd.cuda.page, false);
	crowd_end(&crowd, N_JOBS);
	for (int i = 0; i < 12; ++i)
		ops->queue_free(crowd.cuda.device, queues[i]);
	ops->group_free(crowd.cuda.device, group);
	cuda_device_close(&crowd.cuda);
}

/* A full stream refuses works of all its queues, without side effects. */
static void full_child(void)
{
	static struct crowd crowd;
	struct fa_device_group *groups[2];
	struct fa_device_queue *queues[2];

	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
	crowd_begin(&crowd, DEPTH + 1);
	for (int i = 0; i < 2; ++i) {
		groups[i] = cuda_group(&crowd.cuda);
		queues[i] = cuda_queue(&crowd.cuda, groups[i], 1);
	}
	fa_check(ops->queue_lane(queues[0]) == ops->queue_lane(queues[1]));
	fa_test_cuda_hold(crowd.cuda.page, true);
	for (int i = 0; i < DEPTH; ++i)
		cuda_job_launch(&crowd.jobs[i], &crowd.cuda, queues[0]);
	for (int i = 0; i < 2; ++i)
		fa_check_eq(ops->launch(crowd.cuda.device, queues[i], &crowd.jobs[DEPTH].work),
		            -EAGAIN);
	fa_check_eq(n_launches(&crowd), DEPTH);

	ops->cancel(crowd.cuda.device, &crowd.jobs[0].work);
	cuda_reap(&crowd.cuda);
	fa_check_eq(crowd.cuda.n_notified, 0);
	fa_check(!crowd.jobs[0].reaped);
	fa_check(fa_case_untouched(&crowd.jobs[DEPTH].attention, crowd.jobs[DEPTH].data));

	fa_test_cuda_hold(crowd.cuda.page, false);
	cuda_job_wait(&crowd.jobs[0], &crowd.cuda);
	cuda_job_launch(&crowd.jobs[DEPTH], &crowd.cuda, queues[1]);
	for (int i = 0; i < DEPTH; ++i) {
		cuda_job_wait(&crowd.jobs[i], &crowd.cuda);
		fa_check_eq(crowd.jobs[i].work.status, 0);
	}
	ops->cancel(crowd.cuda.device, &crowd.jobs[0].work);
	crowd_end(&crowd, DEPTH + 1);
	for (int i = 0; i < 2; ++i) {
		ops->queue_free(crowd.cuda.device, queues[i]);
		ops->group_free(crowd.cuda.device, groups[i]);
	}
	cuda_device_close(&crowd.cuda);
}

static void test_queues(void **state)
{
	cuda_in_child(depth_child);
	cuda_in_child(many_queues_child);
	cuda_in_child(spread_child);
	cuda_in_child(full_child);
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
