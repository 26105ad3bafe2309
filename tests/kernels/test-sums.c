/*
 * Sums over very many keys, and of very large values. Keys and values are broadcast, or few, so
 * that the tests need little memory.
 */
#include "common/cleanup.h"
#include "kernels/paged.h"
#include "tests/kernels/problem.h"
#include "tests/kernels/reference.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DIM 8
/* Sanitizers check accesses, not numbers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MANY_KEYS (1 << 16)
#else
#define MANY_KEYS (1 << 20)
#endif
#define ROWS_MAX 64

struct scene {
	struct fa_attention_params params;
	/* The parameters' tensors; K and V have one row, which all keys share, unless a test gives
	 * others. */
	_Alignas(64) float q[ROWS_MAX * DIM], k[DIM], v[DIM], out[ROWS_MAX * DIM], lse[ROWS_MAX];
};

static void scene_init(struct scene *scene, enum fa_attention_dtype dtype, int32_t heads,
                       int64_t n_q, int64_t n_k, double value)
{
	*scene = (struct scene){
		.params = {
			.dtype = dtype,
			.batch = 1,
			.heads = heads,
			.kv_heads = heads,
			.head_dim = DIM,
			.head_dim_v = DIM,
			.seqlen_q = n_q,
			.seqlen_k = n_k,
			.q = { .data = scene->q, .stride_token = DIM },
			.k = { .data = scene->k },
			.v = { .data = scene->v },
			.out = { .data = scene->out, .stride_token = DIM },
			.lse = scene->lse,
			.lse_stride_token = 1,
			.scale = 1,
			.window_left = -1,
			.window_right = -1,
		},
	};
	for (int c = 0; c < DIM; c++)
		reference_set(dtype, scene->v, c, value);
}

/* Runs the tiles of the first head alone, with @all those of every head. */
static void run(struct scene *scene, const struct fa_cpu_isa *isa, bool all)
{
	const struct fa_attention_params *p = &scene->params;
	const size_t bytes = fa_cpu_attention_workspace_bytes(isa, p);
	_fa_cleanup_(fa_freep) void *workspace = aligned_alloc(64, bytes + 64 - bytes % 64);
	_fa_cleanup_(fa_freep) void *scratch = NULL;
	const size_t scratch_bytes = fa_cpu_attention_scratch_bytes(isa, p);
	int64_t n = all ? fa_cpu_attention_tiles(isa, p) : 1;

	scratch = aligned_alloc(64, scratch_bytes + 64 - scratch_bytes % 64);
	assert_non_null(workspace);
	assert_non_null(scratch);
	memset(scratch, 0xff, scratch_bytes);
	fa_cpu_attention_begin(isa, p, workspace);
	for (int64_t tile = 0; tile < n; tile++)
		assert_true(fa_cpu_attention_tile(isa, p, workspace, tile, scratch, NULL));
}

static void run_paged(const struct fa_paged_request *request, const struct fa_cpu_isa *isa)
{
	const size_t bytes = fa_cpu_paged_workspace_bytes(isa, request);
	const size_t scratch_bytes = fa_cpu_paged_scratch_bytes(isa, request);
	_fa_cleanup_(fa_freep) void *workspace = aligned_alloc(64, bytes + 64 - bytes % 64);
	_fa_cleanup_(fa_freep) void *scratch = NULL;
	int64_t n;

	scratch = aligned_alloc(64, scratch_bytes + 64 - scratch_bytes % 64);
	assert_non_null(workspace);
	assert_non_null(scratch);
	memset(scratch, 0xff, scratch_bytes);
	n = fa_cpu_paged_begin(isa, request, workspace);
	for (int64_t tile = 0; tile < n; tile++)
		assert_true(fa_cpu_paged_tile(isa, request, workspace, tile, scratch, NULL));
}

static void check(const struct scene *scene, const struct fa_cpu_isa *isa, double value,
                  double keys)
{
	for (int c = 0; c < DIM; c++) {
		double out = reference_get(scene->params.dtype, scene->out, c);

		if (!(fabs(out - value) <= 1e-5 * fabs(value)))
			fail_msg("%s: out is %.9g; expected %.9g", fa_cpu_isa_name(isa), out,
			         value);
	}
	if (!(fabs((double)scene->lse[0] - log(keys)) <= 1e-5))
		fail_msg("%s: lse is %.9g; expected %.9g", fa_cpu_isa_name(isa),
		         (double)scene->lse[0], log(keys));
}

/* The mean of a million equal values is that value, whatever computes it: few rows or many, keys
 * split or not. */
static void test_many_equal_values(void **state)
{
	static const double values[] = { 1.1, 0.7, 1.3 };
	static const enum fa_attention_dtype dtypes[] = { FA_ATTENTION_F32, FA_ATTENTION_F16,
		                                          FA_ATTENTION_BF16 };
	static const struct {
		int32_t heads;
		int64_t n_q, n_k;
		bool all;
	} shapes[] = {
		{ 64, 2, MANY_KEYS, false },         /* few rows, not split */
		{ 1, 1, MANY_KEYS, true },           /* few rows, split */
		{ 64, 40, MANY_KEYS, false },        /* many rows, not split */
		{ 1, 40, MANY_KEYS / 32 * 3, true }, /* many rows, split */
		{ 64, 1, 2049, false },              /* one key more than a near sum takes */
		{ 64, 40, 2049, false },
	};
	const struct fa_cpu_isa *const *isas = problem_isas();
	struct scene scene;

	for (size_t n = 0; isas[n]; n++)
		for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
			for (size_t j = 0; j < 3; j++) {
				const enum fa_attention_dtype dtype = dtypes[(i + j) % 3];

				scene_init(&scene, dtype, shapes[i].heads, shapes[i].n_q,
				           shapes[i].n_k, values[j]);
				run(&scene, isas[n], shapes[i].all);
				check(&scene, isas[n], reference_get(dtype, scene.v, 0),
				      (double)shapes[i].n_k);
			}
}

/* The same over pages: one page serves for all. */
static void test_many_equal_tokens(void **state)
{
	static const int64_t rows[] = { 1, 40 };
	static const uint32_t lengths_of[] = { MANY_KEYS, MANY_KEYS / 32 * 3 };
	static const double values[] = { 1.1, 2e38 };
	const struct fa_cpu_isa *const *isas = problem_isas();
	_fa_cleanup_(fa_freep) uint32_t *table = calloc(MANY_KEYS / 256, sizeof(*table));
	_fa_cleanup_(fa_freep) float *pool = aligned_alloc(256, (size_t)2 * 256 * DIM * 4);
	struct scene scene;

	assert_non_null(table);
	assert_non_null(pool);
	for (size_t n = 0; isas[n]; n++)
		for (size_t i = 0; i < 4; i++) {
			const uint32_t cu_new[] = { 0, (uint32_t)rows[i % 2] };
			const uint32_t length = lengths_of[i % 2], start = 0;
			const struct fa_paged_cache cache = {
				.pool = pool,
				.dtype = FA_ATTENTION_F32,
				.layers = 1,
				.kv_heads = 1,
				.head_dim = DIM,
				.head_dim_v = DIM,
				.page_tokens = 256,
				.v_offset = (int64_t)256 * DIM * 4,
			};
			const struct fa_paged_step step = {
				.batch = 1,
				.cu_new = cu_new,
				.lengths = &length,
				.lengths_before = &length,
				.table = table,
				.table_start = &start,
				.table_entries = length / 256,
			};
			struct fa_paged_request request = { .op = FA_PAGED_ATTEND };

			memset(pool, 0, (size_t)256 * DIM * 4);
			for (int j = 0; j < 256 * DIM; j++)
				pool[256 * DIM + j] = (float)values[i / 2];
			scene_init(&scene, FA_ATTENTION_F32, 1, rows[i % 2], length, 0);
			request.attention = (struct fa_paged_attention){
				.cache = &cache,
				.step = &step,
				.heads = 1,
				.q = scene.params.q,
				.out = scene.params.out,
				.lse = scene.lse,
				.lse_stride_token = 1,
				.scale = 1,
				.window_left = -1,
				.window_right = -1,
			};
			run_paged(&request, isas[n]);
			check(&scene, isas[n], (double)(float)values[i / 2], length);
		}
}

/* The maximum rises all the time, so that far sums are rescaled, too: half of the weight is the last
 * key's. */
static void test_rising_scores(void **state)
{
	const int64_t rows[] = { 1, 40 };
	const struct fa_cpu_isa *const *isas = problem_isas();
	const int64_t n_k = 1 << 15;
	_fa_cleanup_(fa_freep) float *k = calloc((size_t)n_k * DIM, sizeof(*k));
	struct scene scene;
	double sum = 0;

	assert_non_null(k);
	for (int64_t j = 0; j < n_k; j++) {
		k[j * DIM] = (float)j / 4096;
		sum += exp((double)k[j * DIM]);
	}
	for (size_t n = 0; isas[n]; n++)
		for (size_t r = 0; r < 2; r++) {
			scene_init(&scene, FA_ATTENTION_F32, 64, rows[r], n_k, 1.1);
			scene.params.k.data = k;
			scene.params.k.stride_token = DIM;
			for (int i = 0; i < ROWS_MAX; i++)
				scene.q[i * DIM] = 1;
			run(&scene, isas[n], false);
			check(&scene, isas[n], (double)1.1f, sum);
		}
}

/* A mean of finite values is finite, though their sum is not. */
static void test_large_values(void **state)
{
	static const int64_t rows[] = { 1, 40 }, keys[] = { 2, 3, 200, 5000 };
	static const double values[] = { 2e38, -2e38, FLT_MAX };
	const struct fa_cpu_isa *const *isas = problem_isas();
	struct scene scene;

	for (size_t n = 0; isas[n]; n++)
		for (size_t i = 0; i < 2 * 4 * 3 * 2; i++) {
			const enum fa_attention_dtype dtype = i / 24 ? FA_ATTENTION_BF16
			                                             : FA_ATTENTION_F32;
			double value = values[i / 8 % 3];

			if (dtype == FA_ATTENTION_BF16 && value == FLT_MAX)
				value = 0x1.fep127;
			scene_init(&scene, dtype, 1, rows[i % 2], keys[i / 2 % 4], value);
			run(&scene, isas[n], true);
			check(&scene, isas[n], reference_get(dtype, scene.v, 0),
			      (double)keys[i / 2 % 4]);
		}
}

/* An infinity that a row sees stays one in any sum. */
static void test_infinite_values(void **state)
{
	static const int64_t rows[] = { 1, 40 }, keys[] = { 2, 5000 };
	const struct fa_cpu_isa *const *isas = problem_isas();
	_fa_cleanup_(fa_freep) float *v = calloc(5000 * DIM, sizeof(*v));
	struct scene scene;

	assert_non_null(v);
	v[DIM] = INFINITY;
	v[DIM + 1] = NAN;
	for (size_t n = 0; isas[n]; n++)
		for (size_t i = 0; i < 2 * 2 * 2; i++) {
			scene_init(&scene, FA_ATTENTION_F32, i / 4 ? 64 : 1, rows[i % 2],
			           keys[i / 2 % 2], 0);
			scene.params.v.data = v;
			scene.params.v.stride_token = DIM;
			run(&scene, isas[n], i / 4 == 0);
			assert_true(scene.out[0] == INFINITY);
			assert_true(isnan(scene.out[1]));
			assert_true(scene.out[2] == 0);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_many_equal_values), cmocka_unit_test(test_many_equal_tokens),
		cmocka_unit_test(test_rising_scores),     cmocka_unit_test(test_large_values),
		cmocka_unit_test(test_infinite_values),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
