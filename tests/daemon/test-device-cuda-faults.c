/* Driver calls fail in turn, with a transient and a sticky error. */
#include "common/cudriver.h"
#include "tests/daemon/cuda-device.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static const struct fa_device_ops *const ops = &fa_device_cuda;
static struct cuda_exporter exporter;
static struct fa_cudriver cu;

/* ---- a life with every operation, any of which may fail */

struct life {
	struct cuda_device cuda;
	unsigned int n_failed;
	bool lost;
};

static void step(struct life *life, int status, const char *text)
{
	if (!status)
		return;
	fa_check(status < 0);
	fa_check(*text);
	++life->n_failed;
}

static void live_jobs(struct life *life, struct fa_device_queue *queue)
{
	static struct cuda_job jobs[3];
	struct cuda_device *cuda = &life->cuda;
	struct fa_error error;
	bool made[3];

	for (int i = 0; i < 3; ++i) {
		int r;

		jobs[i] = (struct cuda_job){
			/* The last job uses a kernel with tensor maps. */
			.attention = { .dtype = i == 2 ? FA_WIRE_DTYPE_BF16 : FA_WIRE_DTYPE_F32,
			               .seqlen_q = 20,
			               .batch = 2,
			               .heads = 2,
			               .ragged = true,
			               .sinks = i != 2,
			               .seed = (uint64_t)i },
			.place = i == 1 ? CUDA_HOST : CUDA_ARENA,
		};
		r = cuda_job_try(&jobs[i], cuda, &error);
		step(life, r, error.text);
		made[i] = r == 0;
		if (made[i])
			cuda_job_launch(&jobs[i], cuda, queue);
	}
	for (int i = 0; i < 3; ++i) {
		if (!made[i])
			continue;
		cuda_job_wait(&jobs[i], cuda);
		if (jobs[i].work.status == 0)
			cuda_job_check(&jobs[i]);
		step(life, jobs[i].work.status, jobs[i].work.error.text);
		cuda_job_deinit(&jobs[i], cuda);
	}
}

static void live_memory(struct life *life)
{
	struct fa_device *device = life->cuda.device;
	struct fa_device_memory memory = {};
	struct fa_error error = { "" };
	int r;

	r = ops->memory_import_ipc(device, exporter.handle, 1, 2, false, &error, &memory);
	if (r == 0 || memory.backend)
		fa_test_memory_release(ops, device, &memory);
	step(life, r, error.text);
	r = ops->memory_import_pieces(device, exporter.pieces, 2, 1, CUDA_EXPORTER_PIECE, true,
	                              &error, &memory);
	if (r == 0 || memory.backend)
		fa_test_memory_release(ops, device, &memory);
	step(life, r, error.text);
}

static void live(struct life *life)
{
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct fa_device_info info;
	struct fa_error error;
	int r;

	life->n_failed = 0;
	life->lost = false;
	r = cuda_device_try(&life->cuda, NULL, &error);
	step(life, r, error.text);
	if (r < 0)
		return;
	ops->describe(life->cuda.device, &info);
	group = cuda_group(&life->cuda);
	queue = cuda_queue(&life->cuda, group, 0);
	live_memory(life);
	live_jobs(life, queue);
	life->lost = cu.cuCtxSynchronize() != CUDA_SUCCESS;
	if (life->lost) {
		/* By now every thread knows of the loss. */
		live_jobs(life, queue);
		fa_check_eq(ops->health(life->cuda.device, &error), -ENODEV);
		fa_check_contains(error.text, "the GPU is lost");
		fa_check(life->cuda.n_notified);
	}
	ops->queue_free(life->cuda.device, queue);
	ops->group_free(life->cuda.device, group);
	fa_check(!ops->close(life->cuda.device));
	fa_check_eq(fa_test_cuda_misuses(life->cuda.page), 0);
	fa_test_cuda_detach(life->cuda.page);
}

/* Calls that release something, and leak it if they fail. */
static bool gives_back(enum fa_test_cuda_call call)
{
	switch ((int)call) {
	case FA_TEST_CUDA_cuIpcCloseMemHandle:
	case FA_TEST_CUDA_cuMemAddressFree:
	case FA_TEST_CUDA_cuMemFree:
	case FA_TEST_CUDA_cuMemFreeHost:
	case FA_TEST_CUDA_cuMemHostUnregister:
	case FA_TEST_CUDA_cuMemRelease:
	case FA_TEST_CUDA_cuMemUnmap:
	case FA_TEST_CUDA_cuModuleUnload:
	case FA_TEST_CUDA_cuStreamDestroy:
		return true;
	case FA_TEST_CUDA_cuCtxSetCurrent:
		return true;
	default:
		return false;
	}
}

static void count_calls(struct fa_test_cuda_calls *ret_calls)
{
	struct fa_test_cuda_page *page = fa_test_cuda_attach(&cuda_dir, getpid());
	struct fa_test_cuda_calls before, after;
	struct life life;

	fa_test_cuda_calls(page, &before);
	live(&life);
	fa_check_eq(life.n_failed, 0);
	fa_test_cuda_calls(page, &after);
	for (int i = 0; i < FA_TEST_CUDA_CALLS; ++i)
		ret_calls->n[i] = after.n[i] - before.n[i];
	fa_test_cuda_detach(page);
}

static uint64_t next_call(uint64_t nth, uint64_t n)
{
	if (nth < 3 || nth == n)
		return nth + 1;
	return nth < n / 2 ? n / 2 : n;
}

static void each_call(const struct fa_test_cuda_calls *calls,
                      void (*function)(enum fa_test_cuda_call call, uint64_t nth))
{
	for (int call = 0; call < FA_TEST_CUDA_kernel; ++call) {
		if (call == FA_TEST_CUDA_cuCtxSynchronize)
			continue;
		for (uint64_t nth = 1; nth <= calls->n[call]; nth = next_call(nth, calls->n[call]))
			function((enum fa_test_cuda_call)call, nth);
	}
}

static void fail_once(enum fa_test_cuda_call call, uint64_t nth)
{
	struct fa_test_cuda_lives before;
	struct fa_test_cuda_page *page;
	uint64_t abandoned, failed;
	struct life life;
	char rule[96];

	/* The context would stay for the next life. */
	if (call == FA_TEST_CUDA_cuDevicePrimaryCtxRelease)
		return;

	page = fa_test_cuda_attach(&cuda_dir, getpid());
	abandoned = fa_test_cuda_abandoned(page);
	failed = fa_test_cuda_failed(page);
	snprintf(rule, sizeof(rule), "%s:%llu=%d", fa_test_cuda_call_name(call),
	         (unsigned long long)nth, CUDA_ERROR_OUT_OF_MEMORY);
	fa_test_cuda_fail(page, rule);
	fa_test_cuda_lives(page, &before);
	live(&life);
	if (call != FA_TEST_CUDA_cuStreamQuery)
		fa_check(fa_test_cuda_failed(page) > failed);
	fa_check(!life.lost);
	if (!gives_back(call) && (!fa_test_cuda_lives_equal(page, &before, true) ||
	                          fa_test_cuda_abandoned(page) != abandoned))
		fa_test_fail(__FILE__, __LINE__, "something is left behind if %s fails", rule);
	fa_test_cuda_fail(page, NULL);
	fa_test_cuda_detach(page);
}

static void passing_child(void)
{
	struct fa_test_cuda_calls calls;
	struct life life;

	fa_check_eq(fa_cudriver_open(FA_CUDRIVER_FOR_ALL, NULL, &cu), 0);
	live(&life);
	count_calls(&calls);
	each_call(&calls, fail_once);
	live(&life);
	fa_check_eq(life.n_failed, 0);
}

static void test_passing(void **state)
{
	cuda_in_child(passing_child);
}

static const char *sticky_rule;

static void sticky_child(void)
{
	struct life life;

	fa_check_eq(fa_cudriver_open(FA_CUDRIVER_FOR_ALL, NULL, &cu), 0);
	setenv("FAD_TEST_CUDA_FAIL", sticky_rule, 1);
	live(&life);
}

static void fail_for_ever(enum fa_test_cuda_call call, uint64_t nth)
{
	char rule[96];

	snprintf(rule, sizeof(rule), "%s:%llu=%d", fa_test_cuda_call_name(call),
	         (unsigned long long)nth, CUDA_ERROR_ILLEGAL_ADDRESS);
	sticky_rule = rule;
	cuda_in_child(sticky_child);
}

static struct fa_test_cuda_calls *shared_calls;

static int count_child(void *userdata)
{
	struct life life;

	fa_check_eq(fa_cudriver_open(FA_CUDRIVER_FOR_ALL, NULL, &cu), 0);
	live(&life);
	count_calls(shared_calls);
	return 0;
}

static void test_sticky(void **state)
{
	shared_calls = mmap(NULL, sizeof(*shared_calls), PROT_READ | PROT_WRITE,
	                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	fa_check(shared_calls != MAP_FAILED);
	fa_check_eq(fa_test_reap(fa_test_fork(count_child, NULL)), 0);
	each_call(shared_calls, fail_for_ever);
	munmap(shared_calls, sizeof(*shared_calls));
}

static void faulting_child(void)
{
	enum {
		N = 12
	};
	static struct cuda_job jobs[N + 1];
	struct fa_device_queue *queues[2];
	struct fa_device_memory memory;
	struct fa_device_group *group;
	struct cuda_device cuda;
	struct fa_error error;
	uint64_t piece_bytes;
	int fd;

	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	for (int i = 0; i < 2; ++i)
		queues[i] = cuda_queue(&cuda, group, i);
	for (int i = 0; i <= N; ++i) {
		jobs[i].attention = (struct fa_case){ .seqlen_q = 8 };
		cuda_job_init(&jobs[i], &cuda);
	}
	cuda_job_launch(&jobs[N], &cuda, queues[0]);
	cuda_job_wait(&jobs[N], &cuda);
	cuda_job_check(&jobs[N]);
	fa_check_eq(ops->health(cuda.device, &error), 0);
	fa_check_eq(cuda.n_notified, 0);

	/* The faulting kernel signals nothing; the driver reports the fault only when asked. */
	fa_test_cuda_hold(cuda.page, true);
	fa_test_cuda_fail(cuda.page, "kernel:1=700");
	for (int i = 0; i < N; ++i)
		cuda_job_launch(&jobs[i], &cuda, queues[i % 2]);
	fa_test_cuda_hold(cuda.page, false);
	for (int i = 0; i < N; ++i)
		cuda_job_wait(&jobs[i], &cuda);
	fa_check_eq(ops->health(cuda.device, &error), -ENODEV);
	fa_check_contains(error.text, "CUDA_ERROR_ILLEGAL_ADDRESS");
	fa_check(cuda.n_notified);
	for (int i = 0; i < N; ++i) {
		if (jobs[i].work.status == 0)
			continue;
		fa_check_eq(jobs[i].work.status, -ENODEV);
		fa_check_contains(jobs[i].work.error.text, "CUDA_ERROR_ILLEGAL_ADDRESS");
	}
	fa_check_eq(jobs[N - 2].work.status | jobs[N - 1].work.status, -ENODEV);

	/* From here on launches and imports are refused. */
	cuda_job_launch(&jobs[N], &cuda, queues[0]);
	cuda_job_wait(&jobs[N], &cuda);
	fa_check_eq(jobs[N].work.status, -ENODEV);
	fa_check_eq(ops->memory_new_arena(cuda.device, 1, &error, &memory, &fd, &piece_bytes),
	            -ENODEV);
	fa_check_eq(
		ops->memory_import_ipc(cuda.device, exporter.handle, 0, 1, false, &error, &memory),
		-ENODEV);
	fa_check_eq(ops->memory_import_pieces(cuda.device, exporter.pieces, 2, 0, 1, false, &error,
	                                      &memory),
	            -ENODEV);
	for (int i = 0; i <= N; ++i)
		cuda_job_deinit(&jobs[i], &cuda);
	for (int i = 0; i < 2; ++i)
		ops->queue_free(cuda.device, queues[i]);
	ops->group_free(cuda.device, group);
	fa_check(!ops->close(cuda.device));
}

static void test_faulting(void **state)
{
	cuda_in_child(faulting_child);
}

static void worker_child(void)
{
	struct cuda_job job = { .attention = { .seqlen_q = 8 }, .place = CUDA_HOST };
	struct cuda_job other = { .attention = { .seqlen_q = 8 } };
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;
	struct fa_error error;

	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 0);
	cuda_job_init(&other, &cuda);
	/* A device that lives may also return this code. */
	fa_test_cuda_fail(cuda.page, "cuMemHostRegister:1=2");
	fa_check_eq(cuda_job_try(&job, &cuda, &error), -ENOMEM);
	fa_check_eq(ops->health(cuda.device, &error), 0);

	fa_test_cuda_hold(cuda.page, true);
	cuda_job_launch(&other, &cuda, queue);
	fa_test_cuda_fail(cuda.page, "cuMemHostRegister:1=700");
	fa_check_eq(cuda_job_try(&job, &cuda, &error), -ENODEV);
	fa_check_contains(error.text, "host memory cannot be pinned");
	fa_check_eq(cuda.n_notified, 1);
	fa_check_eq(ops->health(cuda.device, &error), -ENODEV);
	fa_check_contains(error.text, "host memory cannot be pinned");
	fa_test_cuda_hold(cuda.page, false);
	cuda_reap(&cuda);
	fa_check(other.reaped);
	fa_check_eq(other.work.status, -ENODEV);
	cuda_job_deinit(&other, &cuda);
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	fa_check(!ops->close(cuda.device));
}

static void test_worker(void **state)
{
	cuda_in_child(worker_child);
}

static void no_workspace_child(void)
{
	/* Few rows on many keys. */
	const struct fa_case attention = { .dtype = FA_WIRE_DTYPE_BF16,
		                           .head_dim = 64,
		                           .seqlen_q = 8,
		                           .seqlen_k = 6000,
		                           .causal = true };
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;
	uint64_t failed;
	char rule[64];

	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 0);
	/* After a first request only partial results need more memory. */
	cuda_job_run(&cuda, queue, &(struct fa_case){ .seqlen_q = 64, .seqlen_k = 64 }, CUDA_ARENA);
	snprintf(rule, sizeof(rule), "cuMemAlloc:*=%d", CUDA_ERROR_OUT_OF_MEMORY);
	failed = fa_test_cuda_failed(cuda.page);
	fa_test_cuda_fail(cuda.page, rule);
	cuda_job_run(&cuda, queue, &attention, CUDA_ARENA);
	fa_check(fa_test_cuda_failed(cuda.page) > failed);
	fa_test_cuda_fail(cuda.page, NULL);
	cuda_job_run(&cuda, queue, &attention, CUDA_ARENA);
	ops->queue_free(cuda.device, queue);
	ops->group_free(cuda.device, group);
	cuda_device_close(&cuda);
}

/* Without memory for partial results a request is computed in another way. */
static void test_no_workspace(void **state)
{
	cuda_in_child(no_workspace_child);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_workspace), cmocka_unit_test(test_faulting),
		cmocka_unit_test(test_worker),       cmocka_unit_test(test_passing),
		cmocka_unit_test(test_sticky),
	};
	int r;

	fa_test_cuda_begin(&cuda_dir);
	setenv("FAD_TUNE_STAGING", "always", 1);
	cuda_exporter_start(&exporter, 0);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	cuda_exporter_stop(&exporter);
	fa_test_cuda_end(&cuda_dir);
	return r;
}
