/*
 * Sequences that are too long for a workgroup of a Vulkan device: the request fails, or is refused, and the
 * device goes on. A tensor whose tokens share their memory has as many keys as a client likes.
 */
#include "daemon/backend/vulkan/device.h"

#include "common/clock.h"

#include <errno.h>
#include <math.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct fa_device_ops *const ops = &fa_device_vulkan;

static sem_t notified;

static void on_notify(void *userdata)
{
	sem_post(&notified);
}

struct scene {
	struct fa_device *device;
	struct fa_device_queue *queue;
	struct fa_device_memory memory;
	struct fa_attention_params params;
	struct fa_error error;
};

#define OUT 4096
#define LSE 65536
#define ROWS 16
#define BYTES (LSE + ROWS * sizeof(float))

/* All tokens of q, of k and of v are one row of zeros. */
static void set(struct scene *scene, int32_t head_dim, int32_t head_dim_v, int64_t n_q, int64_t n_k)
{
	char *const at = scene->memory.address;
	const struct fa_attention_tensor row = { .data = at };

	scene->params = (struct fa_attention_params){
		.dtype = FA_ATTENTION_F32,
		.batch = 1,
		.heads = 1,
		.kv_heads = 1,
		.head_dim = head_dim,
		.head_dim_v = head_dim_v,
		.seqlen_q = n_q,
		.seqlen_k = n_k,
		.q = row,
		.k = row,
		.v = row,
		.out = { .data = at + OUT, .stride_token = head_dim_v },
		.lse = (float *)(at + LSE),
		.lse_stride_token = 1,
		.scale = 1,
		.window_left = -1,
		.window_right = -1,
	};
}

static int check(struct scene *scene)
{
	return ops->check(scene->device, &scene->params, &scene->error);
}

static int attend(struct scene *scene)
{
	struct fa_device_work work = { .op = FA_DEVICE_ATTENTION, .params = &scene->params };
	struct fa_list done;

	assert_int_equal(ops->attention_prepare(scene->device, &work, &scene->error), 0);
	assert_int_equal(ops->launch(scene->device, scene->queue, &work), 0);
	fa_list_init(&done);
	while (fa_list_empty(&done)) {
		sem_wait(&notified);
		ops->reap(scene->device, &done);
	}
	scene->error = work.error;
	ops->attention_release(scene->device, &work);
	return work.status;
}

/* A workgroup that takes too long is stopped. */
static void test_stopped(struct scene *scene)
{
	const uint64_t usual_ns = scene->device->hang_ns;

	set(scene, 576, 512, 1, 100);
	assert_int_equal(attend(scene), 0);
	scene->device->hang_ns = 5 * FA_NS_PER_MS;
	set(scene, 576, 512, 1, 1 << 24);
	assert_int_equal(attend(scene), -ETIME);
	assert_non_null(strstr(scene->error.text, "sequences are too long for this device"));
	assert_int_equal(ops->health(scene->device, &scene->error), 0);
	scene->device->hang_ns = usual_ns;
	set(scene, 576, 512, 1, 100);
	assert_int_equal(attend(scene), 0);
}

/* Lavapipe leaves long loops early: the longest sequences that are not refused are still attended to as a
 * whole, so that the sum of weights is their number of keys. */
static void test_longest(struct scene *scene)
{
	static const int32_t dims[][2] = { { 8, 8 },     { 64, 64 },   { 128, 128 },
		                           { 256, 256 }, { 256, 264 }, { 576, 512 } };
	const float *lse = (const float *)((const char *)ops->memory_host(scene->device,
	                                                                  &scene->memory) +
	                                   LSE);

	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
		for (int64_t n_q = 1; n_q <= ROWS; n_q *= 4) {
			int64_t most = 1 << 24;

			set(scene, dims[i][0], dims[i][1], n_q, most);
			if (check(scene) == 0)
				return;
			assert_non_null(strstr(scene->error.text, "too many for Mesa's lavapipe"));
			for (int64_t step = 1 << 23; step; step /= 2) {
				scene->params.seqlen_k = most - step;
				if (most > step && check(scene) < 0)
					most -= step;
			}
			scene->params.seqlen_k = --most;
			assert_int_equal(check(scene), 0);
			assert_int_equal(attend(scene), 0);
			for (int64_t row = 0; row < n_q; row++)
				assert_true(fabs(exp((double)lse[row]) / (double)most - 1) < 1e-4);
		}
}

static void test_long(void **state)
{
	const struct fa_device_config config = { .notify = on_notify };
	struct fa_device_group *group;
	struct scene scene = { NULL };
	struct fa_device_memory *memories[] = { &scene.memory };
	uint64_t piece_bytes;
	int fd = -1;

	sem_init(&notified, 0, 0);
	if (ops->open(&config, &scene.error, &scene.device) < 0) {
		printf("skipped: %s\n", scene.error.text);
		skip();
	}
	assert_int_equal(ops->memory_new_arena(scene.device, BYTES, &scene.error, &scene.memory,
	                                       &fd, &piece_bytes),
	                 0);
	assert_int_equal(ops->group_new(scene.device, &scene.error, &group), 0);
	assert_int_equal(ops->queue_new(scene.device, group, 0, &scene.error, &scene.queue), 0);
	test_stopped(&scene);
	test_longest(&scene);
	ops->queue_free(scene.device, scene.queue);
	ops->group_free(scene.device, group);
	ops->memory_release(scene.device, memories, 1);
	close(fd);
	ops->close(scene.device);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_long) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
