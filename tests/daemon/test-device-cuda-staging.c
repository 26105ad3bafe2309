/* Staging of the CUDA backend: what is copied, and when. */
#include "daemon/backend/cuda/staging.h"
#include "tests/daemon/cuda-device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct fa_device_ops *const ops = &fa_device_cuda;

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

	assert_int_equal(fa_cuda_staging_reads(&launch), 9 * 4 * 2);
	launch.args.window_right = 0;
	assert_int_equal(fa_cuda_staging_reads(&launch), 5 * 4 * 2);
	launch.args.window_left = 256;
	assert_int_equal(fa_cuda_staging_reads(&launch), 4 * 4 * 2);
	launch.args.window_left = 100000;
	assert_int_equal(fa_cuda_staging_reads(&launch), 9 * 4 * 2);

	/* Staging does not pay for memory that is read once, tiny, or mostly gaps. */
	assert_false(fa_cuda_staging_pays(1 << 30, 1 << 30, 1));
	assert_true(fa_cuda_staging_pays(1 << 30, 1 << 30, 2));
	assert_false(fa_cuda_staging_pays(4096, 4096, 4));
	assert_true(fa_cuda_staging_pays(2 << 20, 1 << 20, 8));
	assert_false(fa_cuda_staging_pays((2 << 20) + 2, 1 << 20, 8));
	assert_true(fa_cuda_staging_pays(1ull << 40, 1ull << 40, UINT64_MAX));
}

static uint64_t n_copies(const struct cuda_device *cuda)
{
	return atomic_load(&cuda->page->calls[FA_TEST_CUDA_cuMemcpyHtoDAsync]);
}

/* K and V of 3 MiB, pinned in parts of 1 MiB: no copy crosses a border. */
static void parts_child(void)
{
	const struct fa_case attention = { .seqlen_q = 30, .seqlen_k = 3000, .heads = 4 };
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct cuda_device cuda;
	uint64_t before;

	setenv("FAD_TUNE_PIN_PART_BYTES", "1048576", 1);
	setenv("FAD_TUNE_STAGING", "always", 1);
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

	setenv("FAD_TUNE_STAGING", "never", 1);
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

	setenv("FAD_TUNE_STAGING", "auto", 1);
	cuda_device_open(&cuda, NULL);
	group = cuda_group(&cuda);
	queue = cuda_queue(&cuda, group, 0);
	cuda_job_init(&job, &cuda);
	before = n_copies(&cuda);
	cuda_job_launch(&job, &cuda, queue);
	cuda_job_wait(&job, &cuda);
	cuda_job_check(&job);
	fa_check_eq(n_copies(&cuda), before + 2);

	/* The check uses a copy of the old numbers. */
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

/* Many works of 400 KB share a staging area of 1 MiB: some find no space. */
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
	setenv("FAD_TUNE_STAGING", "always", 1);
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
	/* In the end the whole area is free. */
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
		cmocka_unit_test(test_stage_choice),
		cmocka_unit_test(test_stage),
	};
	int r;

	fa_test_cuda_begin(&cuda_dir);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	fa_test_cuda_end(&cuda_dir);
	return r;
}
