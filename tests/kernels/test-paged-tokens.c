/*
 * Operations on tokens in pages, on the CPU: append (to the bit, and rotated), read, copy, clear,
 * move; and the merge of two results. All other memory must stay as it was.
 */
#include "tests/kernels/paged-problem.h"
#include "tests/kernels/reference.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define POSITIONS 70

static const enum fa_attention_dtype dtypes[] = { FA_ATTENTION_F32, FA_ATTENTION_F16,
	                                          FA_ATTENTION_BF16 };

static size_t element_bytes(const struct paged_problem *problem)
{
	return problem->spec.dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static void make(struct paged_problem *problem, int i)
{
	struct paged_spec spec = {
		.dtype = dtypes[i % 3],
		.batch = 4,
		.heads = 6,
		.kv_heads = 2,
		.head_dim = 40,
		.head_dim_v = 24,
		.page_tokens = 16 << i % 5,
		.n_new = { 1, 35, 0, 20 },
		.lengths = { 33, 100, 50, 20 },
		.v_in_k = i % 4 == 3,
		.layer_major = i % 2,
		.gaps = i % 2 == 0,
	};

	paged_init(problem, &spec);
}

/* New K and V, as tensors in memory of their own. */
struct fresh {
	void *k, *v, *q;
	size_t q_bytes;
	struct fa_paged_request request;
};

static void fresh_init(struct fresh *fresh, const struct paged_problem *problem)
{
	const struct paged_spec *spec = &problem->spec;
	size_t tokens = problem->cu_new[spec->batch], bytes = element_bytes(problem);
	struct fa_paged_append *p = &fresh->request.append;
	int64_t k_head = spec->head_dim + 8, v_head = spec->head_dim_v;

	memset(fresh, 0, sizeof(*fresh));
	fresh->request.op = FA_PAGED_APPEND;
	p->cache = &problem->cache;
	p->step = &problem->step;
	p->layer = 2;
	fresh->k = malloc(tokens * (size_t)(spec->kv_heads * k_head) * bytes);
	fresh->v = malloc(tokens * (size_t)(spec->kv_heads * v_head) * bytes);
	p->k = (struct fa_attention_tensor){ fresh->k, 0, spec->kv_heads * k_head, k_head };
	/* V is [head][token][dim]. */
	p->v = (struct fa_attention_tensor){ fresh->v, 0, v_head, v_head * (int64_t)tokens };
	for (size_t i = 0; i < tokens * (size_t)(spec->kv_heads * k_head); i++)
		reference_set(spec->dtype, fresh->k, (int64_t)i, problem_normal());
	for (size_t i = 0; i < tokens * (size_t)(spec->kv_heads * v_head); i++)
		reference_set(spec->dtype, fresh->v, (int64_t)i, problem_normal());
	fresh->q_bytes = problem->q_bytes;
	fresh->q = malloc(fresh->q_bytes);
	memcpy(fresh->q, problem->q, fresh->q_bytes);
	p->heads = spec->heads;
	p->q = p->q_out = problem->request.attention.q;
	p->q_out.data = fresh->q;
}

static void fresh_deinit(struct fresh *fresh)
{
	free(fresh->k);
	free(fresh->v);
	free(fresh->q);
}

static const char *element(const struct paged_problem *problem,
                           const struct fa_attention_tensor *tensor, int64_t token, int32_t head)
{
	return (const char *)tensor->data +
	       (token * tensor->stride_token + head * tensor->stride_head) *
	               (int64_t)element_bytes(problem);
}

static void *copy_of_pool(const struct paged_problem *problem)
{
	void *copy = malloc(problem->pool_bytes);

	memcpy(copy, problem->cache.pool, problem->pool_bytes);
	return copy;
}

static void test_append(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (int i = 0; i < 15; i++) {
		struct paged_problem problem;
		struct fa_paged_append *p;
		struct fresh fresh;
		char *expected, *got;

		make(&problem, i);
		fresh_init(&fresh, &problem);
		p = &fresh.request.append;
		if (i == 14)
			p->v.data = NULL;
		assert_int_equal(fa_paged_check(&fresh.request, NULL, 0), 0);
		got = problem.cache.pool;
		expected = copy_of_pool(&problem);
		problem.cache.pool = expected;
		for (int32_t b = 0; b < 4; b++) {
			for (uint32_t t = 0; t < problem.spec.n_new[b]; t++) {
				int64_t token = problem.cu_new[b] + t;

				for (int32_t h = 0; h < 2; h++) {
					memcpy(paged_k(&problem, 2, b, problem.before[b] + t, h),
					       element(&problem, &p->k, token, h),
					       40 * element_bytes(&problem));
					if (p->v.data && !problem.spec.v_in_k)
						memcpy(paged_v(&problem, 2, b,
						               problem.before[b] + t, h),
						       element(&problem, &p->v, token, h),
						       24 * element_bytes(&problem));
				}
			}
		}
		problem.cache.pool = got;
		paged_run(isas[i % 2], &fresh.request);
		assert_memory_equal(got, expected, problem.pool_bytes);
		assert_memory_equal(fresh.q, problem.q, fresh.q_bytes);
		free(expected);

		/* Read the tokens back. */
		memset(fresh.k, 0, 16);
		memset(fresh.v, 0, 16);
		fresh.request.op = FA_PAGED_READ;
		paged_run(isas[0], &fresh.request);
		for (int32_t b = 0; b < 4; b++) {
			for (uint32_t t = 0; t < problem.spec.n_new[b]; t++) {
				for (int32_t h = 0; h < 2; h++) {
					int64_t token = problem.cu_new[b] + t;

					assert_memory_equal(
						element(&problem, &p->k, token, h),
						paged_k(&problem, 2, b, problem.before[b] + t, h),
						40 * element_bytes(&problem));
					if (p->v.data)
						assert_memory_equal(
							element(&problem, &p->v, token, h),
							paged_v(&problem, 2, b,
						                problem.before[b] + t, h),
							24 * element_bytes(&problem));
				}
			}
		}
		fresh_deinit(&fresh);
		paged_deinit(&problem);
	}
}

/* A step without new tokens, but with queries. */
static void test_append_nothing(void **state)
{
	struct paged_problem problem;
	struct fresh fresh;
	void *before;

	make(&problem, 1);
	fresh_init(&fresh, &problem);
	memcpy(problem.before, problem.spec.lengths, sizeof(problem.before));
	before = copy_of_pool(&problem);
	paged_run(problem_isas()[0], &fresh.request);
	assert_memory_equal(problem.cache.pool, before, problem.pool_bytes);
	free(before);
	fresh_deinit(&fresh);
	paged_deinit(&problem);
}

struct table {
	float cos[POSITIONS * 20], sin[POSITIONS * 20];
};

static void check_rotated(const struct paged_problem *problem, const struct fa_paged_rotary *rotary,
                          int64_t position, const char *from, const char *to)
{
	enum fa_attention_dtype dtype = problem->spec.dtype;
	int32_t half = rotary->dim / 2, end = rotary->first + rotary->dim;

	for (int32_t i = 0; i < half; i++) {
		int32_t x_at = rotary->first + (rotary->interleaved ? 2 * i : i);
		int32_t y_at = x_at + (rotary->interleaved ? 1 : half);
		double x = reference_get(dtype, from, x_at), y = reference_get(dtype, from, y_at);
		double angle = (double)position * rotary->scale *
		               pow(rotary->base, -2.0 * i / rotary->dim);
		double c = cos(angle), s = sin(angle), unit, size;

		if (rotary->cos) {
			int64_t row = position < POSITIONS ? position : POSITIONS - 1;

			c = rotary->cos[row * half + i];
			s = rotary->sin[row * half + i];
		}
		size = fabs(x) + fabs(y);
		unit = size * (dtype == FA_ATTENTION_F32   ? 2e-7
		               : dtype == FA_ATTENTION_F16 ? 0x1p-11 + 1e-6
		                                           : 0x1p-8 + 1e-6);
		if (!(fabs(reference_get(dtype, to, x_at) - (x * c - y * s)) <= unit) ||
		    !(fabs(reference_get(dtype, to, y_at) - (y * c + x * s)) <= unit))
			fail_msg("dim %d of %d at position %lld: %g %g", i, rotary->dim,
			         (long long)position, reference_get(dtype, to, x_at),
			         x * c - y * s);
	}
	assert_memory_equal(from, to, (size_t)rotary->first * element_bytes(problem));
	assert_memory_equal(from + (size_t)end * element_bytes(problem),
	                    to + (size_t)end * element_bytes(problem),
	                    (size_t)(problem->spec.head_dim - end) * element_bytes(problem));
}

static void test_rotary(void **state)
{
	static const int32_t dims[] = { 40, 2, 32, 22, 16 }, firsts[] = { 0, 8, 8, 16, 24 };
	const struct fa_cpu_isa *const *isas = problem_isas();
	static struct table table;
	uint32_t positions[64];

	for (int i = 0; i < POSITIONS * 20; i++) {
		table.cos[i] = (float)cos(i);
		table.sin[i] = (float)sin(i);
	}
	for (int i = 0; i < 40; i++) {
		struct paged_problem problem;
		struct fa_paged_append *p;
		struct fresh fresh;
		void *q_before;

		make(&problem, i);
		fresh_init(&fresh, &problem);
		p = &fresh.request.append;
		p->rotary = (struct fa_paged_rotary){
			.dim = dims[i % 5],
			.first = i % 3 ? firsts[i % 5] : 0,
			.interleaved = i / 5 % 2,
			.base = i % 3 ? 10000 : 500000,
			.scale = i % 7 ? 1 : 0.25,
			.positions = i / 10 % 2 ? positions : NULL,
			.table_positions = POSITIONS,
		};
		if (i / 20) {
			p->rotary.cos = table.cos;
			p->rotary.sin = table.sin;
		}
		for (int t = 0; t < 64; t++)
			positions[t] = (uint32_t)problem_random(i % 2 ? 100000 : 80);
		q_before = malloc(problem.q_bytes);
		memcpy(q_before, problem.q, problem.q_bytes);
		if (i % 2)
			p->q_out = p->q; /* Q is rotated in place */
		assert_int_equal(fa_paged_check(&fresh.request, NULL, 0), 0);
		for (int isa = 0; isas[isa]; isa++) {
			memcpy(problem.q, q_before, problem.q_bytes);
			paged_run(isas[isa], &fresh.request);
			for (int32_t b = 0; b < 4; b++) {
				for (uint32_t t = 0; t < problem.spec.n_new[b]; t++) {
					int64_t token = problem.cu_new[b] + t;
					int64_t position = i / 10 % 2 ? positions[token]
					                              : problem.before[b] + t;
					struct fa_attention_tensor from = p->q;

					from.data = q_before;
					for (int32_t h = 0; h < 6; h++)
						check_rotated(
							&problem, &p->rotary, position,
							element(&problem, &from, token, h),
							element(&problem, &p->q_out, token, h));
					for (int32_t h = 0; h < 2; h++)
						check_rotated(&problem, &p->rotary, position,
						              element(&problem, &p->k, token, h),
						              paged_k(&problem, 2, b,
						                      problem.before[b] + t, h));
				}
			}
		}
		free(q_before);
		fresh_deinit(&fresh);
		paged_deinit(&problem);
	}
}

static void test_pages(void **state)
{
	for (int i = 0; i < 4; i++) {
		struct fa_paged_request request = { .op = FA_PAGED_COPY };
		struct paged_problem problem;
		int64_t k_bytes, v_bytes;
		char *expected;
		uint32_t from;

		make(&problem, i);
		expected = copy_of_pool(&problem);
		from = problem.table[problem.table_start[1]];
		request.pages = (struct fa_paged_pages){ &problem.cache, 1, &from, problem.spare };
		fa_paged_page_bytes(&problem.cache, &k_bytes, &v_bytes);
		assert_int_equal(v_bytes == 0, problem.spec.v_in_k);
		for (int32_t layer = 0; layer < 3; layer++) {
			char *base = expected + layer * problem.cache.layer_stride;
			char *to = base + problem.spare[0] * 256ll, *source = base + from * 256ll;

			memcpy(to, source, (size_t)k_bytes);
			memcpy(to + problem.cache.v_offset, source + problem.cache.v_offset,
			       (size_t)v_bytes);
		}
		paged_run(problem_isas()[0], &request);
		assert_memory_equal(problem.cache.pool, expected, problem.pool_bytes);

		request.op = FA_PAGED_CLEAR;
		request.pages.count = 2;
		for (int32_t layer = 0; layer < 3; layer++) {
			for (int page = 0; page < 2; page++) {
				char *to = expected + layer * problem.cache.layer_stride +
				           problem.spare[page] * 256ll;

				memset(to, 0, (size_t)k_bytes);
				memset(to + problem.cache.v_offset, 0, (size_t)v_bytes);
			}
		}
		paged_run(problem_isas()[0], &request);
		assert_memory_equal(problem.cache.pool, expected, problem.pool_bytes);
		free(expected);
		paged_deinit(&problem);
	}
}

static void test_move(void **state)
{
	static const uint32_t from[] = { 60, 62, 63, 64, 90, 99, 5, 6 }, cu[] = { 0, 0, 6, 6, 8 };
	static const uint32_t to[] = { 0, 60, 0, 3 };

	for (int i = 0; i < 8; i++) {
		struct fa_paged_request request = { .op = FA_PAGED_MOVE };
		struct paged_problem problem;
		char *pool, *before, *expected;

		make(&problem, i);
		request.move = (struct fa_paged_move){ &problem.cache,
			                               4,
			                               cu,
			                               from,
			                               to,
			                               problem.table,
			                               problem.table_start,
			                               problem.step.table_entries };
		assert_int_equal(fa_paged_check(&request, NULL, 0), 0);
		pool = problem.cache.pool;
		before = copy_of_pool(&problem);
		expected = copy_of_pool(&problem);
		for (int32_t b = 0; b < 4; b++) {
			for (uint32_t m = cu[b]; m < cu[b + 1]; m++) {
				for (int32_t at = 0; at < 6; at++) {
					int32_t layer = at / 2, h = at % 2;
					char k[160], v[160];
					size_t bytes = element_bytes(&problem);

					problem.cache.pool = before;
					memcpy(k, paged_k(&problem, layer, b, from[m], h),
					       40 * bytes);
					memcpy(v, paged_v(&problem, layer, b, from[m], h),
					       24 * bytes);
					problem.cache.pool = expected;
					memcpy(paged_k(&problem, layer, b, to[b] + m - cu[b], h), k,
					       40 * bytes);
					memcpy(paged_v(&problem, layer, b, to[b] + m - cu[b], h), v,
					       24 * bytes);
				}
			}
		}
		problem.cache.pool = pool;
		paged_run(problem_isas()[0], &request);
		assert_memory_equal(pool, expected, problem.pool_bytes);
		free(before);
		free(expected);
		paged_deinit(&problem);
	}
}

static void test_move_check(void **state)
{
	uint32_t from[] = { 60, 62 }, cu[] = { 0, 0, 2, 2, 2 }, to[] = { 0, 60, 0, 0 };
	struct fa_paged_request request = { .op = FA_PAGED_MOVE };
	struct paged_problem problem;

	make(&problem, 0);
	request.move = (struct fa_paged_move){ &problem.cache,
		                               4,
		                               cu,
		                               from,
		                               to,
		                               problem.table,
		                               problem.table_start,
		                               problem.step.table_entries };
	assert_int_equal(fa_paged_check(&request, NULL, 0), 0);
	to[1] = 61;
	assert_int_equal(fa_paged_check(&request, NULL, 0), -EINVAL);
	to[1] = 60;
	from[1] = 60;
	assert_int_equal(fa_paged_check(&request, NULL, 0), -EINVAL);
	from[1] = 1000000;
	assert_int_equal(fa_paged_check(&request, NULL, 0), -EINVAL);
	from[1] = FA_PAGED_LENGTH_MAX;
	assert_int_equal(fa_paged_check(&request, NULL, 0), -ENOTSUP);
	paged_deinit(&problem);
}

/* ---- merge */

#define ROWS 70
#define DIM 40

static void test_merge(void **state)
{
	static const float special[] = { -INFINITY, INFINITY, -200, 200, 0 };
	static float a[ROWS * DIM], b[ROWS * DIM], result[ROWS * DIM];
	const struct fa_cpu_isa *const *isas = problem_isas();
	float lse_a[ROWS], lse_b[ROWS], lse[ROWS];

	for (size_t d = 0; d < 3; d++) {
		struct fa_paged_request request = { .op = FA_PAGED_MERGE };
		struct fa_paged_partial in = { { a, 0, 2 * DIM, DIM }, lse_a, 2, 1 };
		double unit = d == 0 ? 1e-6 : d == 1 ? 0x1p-11 + 1e-6 : 0x1p-8 + 1e-6;

		request.merge = (struct fa_paged_merge){ dtypes[d], ROWS / 2, 2, DIM, in, in, in };
		request.merge.b.out.data = b;
		request.merge.b.lse = lse_b;
		request.merge.result.out.data = result;
		request.merge.result.lse = lse;
		assert_int_equal(fa_paged_check(&request, NULL, 0), 0);
		for (int64_t i = 0; i < ROWS; i++) {
			lse_a[i] = i < 25 ? special[i / 5] : (float)problem_normal() * 4;
			lse_b[i] = i < 25 ? special[i % 5] : (float)problem_normal() * 4;
			for (int64_t c = 0; c < DIM; c++) {
				double x = isinf(lse_a[i]) ? NAN : problem_normal();
				double y = isinf(lse_b[i]) ? NAN : problem_normal();

				reference_set(dtypes[d], a, i * DIM + c, x);
				reference_set(dtypes[d], b, i * DIM + c, y);
			}
		}
		for (int isa = 0; isas[isa]; isa++) {
			memset(result, 0xff, sizeof(result));
			memset(lse, 0xff, sizeof(lse));
			paged_run(isas[isa], &request);
			for (int64_t i = 0; i < ROWS; i++) {
				double x = isinf(lse_a[i]) ? 0 : exp((double)lse_a[i]);
				double y = isinf(lse_b[i]) ? 0 : exp((double)lse_b[i]);

				if (x + y == 0)
					assert_true(lse[i] == -INFINITY);
				else
					assert_true(fabs(lse[i] - log(x + y)) <= 2e-5);
				for (int64_t c = 0; c < DIM; c++) {
					double of_a = reference_get(dtypes[d], a, i * DIM + c);
					double of_b = reference_get(dtypes[d], b, i * DIM + c);
					double sum = (x > 0 ? of_a * x : 0) +
					             (y > 0 ? of_b * y : 0);
					double got = reference_get(dtypes[d], result, i * DIM + c);

					sum = x + y > 0 ? sum / (x + y) : 0;
					assert_true(fabs(got - sum) <= unit * (fabs(sum) + 1));
				}
			}
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_append), cmocka_unit_test(test_append_nothing),
		cmocka_unit_test(test_rotary), cmocka_unit_test(test_pages),
		cmocka_unit_test(test_move),   cmocka_unit_test(test_move_check),
		cmocka_unit_test(test_merge),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
