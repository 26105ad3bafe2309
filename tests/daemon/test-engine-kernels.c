/*
 * Engine, CPU backend, real kernels: whatever the threads, order and concurrent jobs, a result is
 * bit by bit that of running the tiles in sequence.
 */
#include "common/clock.h"
#include "daemon/engine/engine.h"

#include <errno.h>
#include <math.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PATIENCE_SEC 60
#define REQUESTS 24

static const struct shape {
	int32_t batch, heads, kv_heads, head_dim;
	int64_t seqlen_q, seqlen_k;
	bool causal;
} shapes[] = {
	{ 1, 4, 4, 64, 300, 300, true }, { 2, 8, 2, 128, 100, 257, false },
	{ 3, 2, 1, 72, 1, 500, true },   { 1, 6, 3, 256, 65, 33, false },
	{ 1, 3, 1, 64, 1, 9000, true },  { 1, 2, 1, 32, 40, 5000, false },
};

#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct item {
	struct fa_job job;
	float *out, *lse;
};

struct problem {
	struct fa_attention_params params;
	float *q, *k, *v, *out, *lse;
	size_t out_bytes, lse_bytes;
};

static float *floats(size_t n, uint64_t seed)
{
	float *data = malloc(n * sizeof(*data));

	assert_non_null(data);
	for (size_t i = 0; i < n; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		data[i] = (float)(int32_t)(seed >> 32) / (float)INT32_MAX;
	}
	return data;
}

static struct fa_attention_tensor tensor(float *data, int64_t tokens, int64_t heads, int64_t dim)
{
	return (struct fa_attention_tensor){ data, tokens * heads * dim, heads * dim, dim };
}

static void problem_init(struct problem *problem, const struct shape *shape)
{
	size_t n_q = (size_t)(shape->batch * shape->seqlen_q * shape->heads * shape->head_dim);
	size_t n_k = (size_t)(shape->batch * shape->seqlen_k * shape->kv_heads * shape->head_dim);
	size_t n_lse = (size_t)(shape->batch * shape->seqlen_q * shape->heads);

	problem->q = floats(n_q, 1);
	problem->k = floats(n_k, 2);
	problem->v = floats(n_k, 3);
	problem->out_bytes = n_q * sizeof(float);
	problem->lse_bytes = n_lse * sizeof(float);
	problem->out = calloc(1, problem->out_bytes);
	problem->lse = calloc(1, problem->lse_bytes);
	problem->params = (struct fa_attention_params){
		.dtype = FA_ATTENTION_F32,
		.batch = shape->batch,
		.heads = shape->heads,
		.kv_heads = shape->kv_heads,
		.head_dim = shape->head_dim,
		.head_dim_v = shape->head_dim,
		.seqlen_q = shape->seqlen_q,
		.seqlen_k = shape->seqlen_k,
		.q = tensor(problem->q, shape->seqlen_q, shape->heads, shape->head_dim),
		.k = tensor(problem->k, shape->seqlen_k, shape->kv_heads, shape->head_dim),
		.v = tensor(problem->v, shape->seqlen_k, shape->kv_heads, shape->head_dim),
		.out = tensor(problem->out, shape->seqlen_q, shape->heads, shape->head_dim),
		.lse = problem->lse,
		.lse_stride_batch = shape->heads * shape->seqlen_q,
		.lse_stride_head = shape->seqlen_q,
		.lse_stride_token = 1,
		.scale = 1 / sqrtf((float)shape->head_dim),
		.causal = shape->causal,
		.window_left = -1,
		.window_right = -1,
	};
}

static void problem_solve(struct problem *problem)
{
	struct fa_attention_params *params = &problem->params;
	const struct fa_cpu_isa *isa;
	char text[256];
	void *scratch, *workspace;
	size_t bytes;

	assert_int_equal(fa_cpu_isa_select(text, sizeof(text), &isa), 0);
	assert_int_equal(fa_attention_check(params, text, sizeof(text)), 0);
	bytes = (fa_cpu_attention_scratch_bytes(isa, params) + 63) & ~(size_t)63;
	scratch = aligned_alloc(64, bytes ? bytes : 64);
	assert_non_null(scratch);
	bytes = (fa_cpu_attention_workspace_bytes(isa, params) + 63) & ~(size_t)63;
	workspace = bytes ? aligned_alloc(64, bytes) : NULL;
	assert_int_equal(!workspace, params->seqlen_k < 1000);
	fa_cpu_attention_begin(isa, params, workspace);
	for (int64_t tile = 0; tile < fa_cpu_attention_tiles(isa, params); tile++)
		fa_cpu_attention_tile(isa, params, workspace, tile, scratch, NULL);
	free(workspace);
	free(scratch);
	assert_true(problem->out[0] != 0 && isfinite(problem->out[0]));
}

static void problem_deinit(struct problem *problem)
{
	free(problem->q);
	free(problem->k);
	free(problem->v);
	free(problem->out);
	free(problem->lse);
}

static sem_t notified;

static void on_notify(void *userdata)
{
	sem_post(&notified);
}

static void take(struct fa_engine *engine, struct fa_job **ret_job, struct fa_stream **ret_closed)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_SEC;
	while (!fa_engine_take(engine, ret_job, ret_closed))
		if (sem_timedwait(&notified, &until) < 0 && errno == ETIMEDOUT)
			fail_msg("nothing came out of the engine");
}

static void test_results(void **state)
{
	struct fa_device_config config = { .threads = 4, .notify = fa_engine_wake };
	static struct fa_completion_slot slots[SHAPES];
	static struct item items[SHAPES][REQUESTS];
	struct problem problems[SHAPES];
	struct fa_stream *streams[SHAPES], *closed;
	struct fa_engine_group *groups[SHAPES];
	struct fa_job *job;
	struct fa_engine *engine;
	struct fa_device *device;
	struct fa_error error;
	struct item *item;

	sem_init(&notified, 0, 0);
	assert_int_equal(fa_engine_new(&fa_device_cpu, on_notify, NULL, &engine), 0);
	config.userdata = engine;
	assert_int_equal(fa_device_cpu.open(&config, &error, &device), 0);
	assert_int_equal(fa_engine_start(engine, device), 0);
	for (size_t s = 0; s < SHAPES; s++) {
		problem_init(&problems[s], &shapes[s]);
		problem_solve(&problems[s]);
		assert_int_equal(fa_device_cpu.check(device, &problems[s].params, &error), 0);
		assert_int_equal(fa_engine_group_new(engine, &groups[s]), 0);
		assert_int_equal(
			fa_engine_stream_new(groups[s], 0, &slots[s], 1, &problems[s], &streams[s]),
			0);
	}
	for (size_t i = 0; i < REQUESTS; i++) {
		for (size_t s = 0; s < SHAPES; s++) {
			item = &items[s][i];
			item->out = malloc(problems[s].out_bytes);
			item->lse = malloc(problems[s].lse_bytes);
			memset(item->out, 0xff, problems[s].out_bytes);
			memset(item->lse, 0xff, problems[s].lse_bytes);
			item->job.stream = streams[s];
			item->job.value = i + 1;
			item->job.deadline_ns = FA_NS_NEVER;
			item->job.params = problems[s].params;
			item->job.params.out.data = item->out;
			item->job.params.lse = item->lse;
			item->job.work.params = &item->job.params;
			assert_int_equal(
				fa_device_cpu.attention_prepare(device, &item->job.work, &error),
				0);
			fa_engine_submit(engine, &item->job);
		}
	}
	for (size_t n = 0; n < SHAPES * REQUESTS; n++) {
		struct problem *problem;

		take(engine, &job, &closed);
		assert_non_null(job);
		problem = fa_stream_owner(job->stream);
		item = fa_container_of(job, struct item, job);
		assert_int_equal(job->status, 0);
		assert_memory_equal(item->out, problem->out, problem->out_bytes);
		assert_memory_equal(item->lse, problem->lse, problem->lse_bytes);
		fa_device_cpu.attention_release(device, &job->work);
		free(item->out);
		free(item->lse);
	}
	for (size_t s = 0; s < SHAPES; s++) {
		fa_engine_stream_close(engine, streams[s], -ECANCELED);
		take(engine, &job, &closed);
		assert_ptr_equal(closed, streams[s]);
		fa_stream_free(closed);
		fa_engine_group_free(groups[s]);
		problem_deinit(&problems[s]);
	}
	fa_engine_free(engine);
	fa_device_cpu.close(device);
	sem_destroy(&notified);
}

static void test_check(void **state)
{
	struct fa_device_config config = { .threads = 1, .notify = on_notify };
	struct fa_error error = { "" };
	struct problem problem;
	struct fa_device *device;

	assert_int_equal(fa_device_cpu.open(&config, &error, &device), 0);
	problem_init(&problem, &shapes[0]);
	problem.params.head_dim = 68;
	assert_true(fa_device_cpu.check(device, &problem.params, &error) < 0);
	assert_non_null(strstr(error.text, "68"));
	assert_true(fa_device_cpu.check(device, &problem.params, NULL) < 0);
	problem_deinit(&problem);
	fa_device_cpu.close(device);
}

static void test_unknown_isa(void **state)
{
	struct fa_device_config config = { .threads = 1, .notify = on_notify };
	struct fa_error error = { "" };
	struct fa_device *device;
	char *old = getenv("FAD_CPU_ISA");

	old = old ? strdup(old) : NULL;
	setenv("FAD_CPU_ISA", "abacus", 1);
	assert_int_equal(fa_device_cpu.open(&config, &error, &device), -EINVAL);
	assert_non_null(strstr(error.text, "abacus"));
	assert_int_equal(fa_device_cpu.open(&config, NULL, &device), -EINVAL);
	if (old)
		setenv("FAD_CPU_ISA", old, 1);
	else
		unsetenv("FAD_CPU_ISA");
	free(old);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_results),
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_unknown_isa),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
