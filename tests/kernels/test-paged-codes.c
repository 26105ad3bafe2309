/*
 * Tests pages of codes on the CPU: the quantiser against a search for the nearest code, append and
 * read bit by bit, moves, and attention against fp64 of the decoded values.
 */
#include "kernels/quantise.h"
#include "tests/kernels/paged-problem.h"
#include "tests/kernels/reference.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define LAYER 2 /* the layer to which tokens are appended */

static const enum fa_attention_dtype dtypes[] = { FA_ATTENTION_BF16, FA_ATTENTION_F16,
	                                          FA_ATTENTION_F32 };

static const struct paged_spec usual = {
	.dtype = FA_ATTENTION_BF16,
	.batch = 3,
	.heads = 4,
	.kv_heads = 2,
	.head_dim = 64,
	.head_dim_v = 64,
	.page_tokens = 64,
	.n_new = { 1, 5, 33 },
	.lengths = { 132, 18, 163 },
	.causal = true,
};

/* Returns @spec with one of the four ways to store codes. */
static struct paged_spec way_of(const struct paged_spec *spec, int i)
{
	struct paged_spec way = *spec;

	way.store = i % 2 ? FA_PAGED_INT8 : FA_PAGED_E4M3;
	way.head_scales = i / 2 % 2;
	way.dtype = dtypes[i / 4 % 3];
	return way;
}

/* ---- numbers */

static void assert_code(enum fa_paged_store store, float x)
{
	uint8_t code = store == FA_PAGED_E4M3 ? fa_e4m3_encode(x) : fa_int8_encode(x);

	if (code != reference_code(store, (double)x))
		fail_msg("store %d: %a is %#x, expected %#x", (int)store, (double)x, code,
		         reference_code(store, (double)x));
}

static void test_codes(void **state)
{
	for (int store = FA_PAGED_E4M3; store <= FA_PAGED_INT8; store++) {
		/* Test values just beside each code, and halfway between two. */
		for (int code = 0; code < (store == FA_PAGED_E4M3 ? 0x7e : 127); code++) {
			float a = (float)reference_code_value(store, (uint8_t)code);
			float b = (float)reference_code_value(store, (uint8_t)(code + 1));
			float points[] = { a, b, (a + b) / 2 };

			for (int i = 0; i < 3; i++) {
				assert_code(store, points[i]);
				assert_code(store, -points[i]);
				assert_code(store, nextafterf(points[i], INFINITY));
				assert_code(store, nextafterf(points[i], -INFINITY));
				assert_code(store, -nextafterf(points[i], INFINITY));
			}
		}
		assert_code(store, NAN);
		assert_code(store, INFINITY);
		assert_code(store, -INFINITY);
		assert_code(store, 464);
		assert_code(store, -500);
		assert_code(store, 1e30f);
		assert_code(store, 0x1p-149f);
		assert_code(store, -0.0f);
		for (int i = 0; i < 20000; i++)
			assert_code(store,
			            (float)ldexp(problem_normal(), (int)problem_random(24) - 12));
	}
	for (int code = 0; code < 256; code++) {
		float got = fa_e4m3_decode((uint8_t)code);
		double expected = reference_code_value(FA_PAGED_E4M3, (uint8_t)code);

		assert_true(isnan(expected) ? isnan(got) : (double)got == expected);
		assert_int_equal(signbit(got) != 0, !isnan(expected) && code >= 0x80);
	}
}

static void test_elements(void **state)
{
	for (int bits = 0; bits < 65536; bits++) {
		uint16_t half[2] = { (uint16_t)bits }, back[2];
		double expected = reference_get(FA_ATTENTION_F16, half, 0);
		float got[2];

		fa_floats_of(FA_ATTENTION_F16, got, half, 1);
		assert_true(isnan(expected) ? isnan(got[0]) : (double)got[0] == expected);
		fa_floats_to(FA_ATTENTION_F16, back, got, 1);
		assert_true(isnan(expected) ? (back[0] & 0x7fff) > 0x7c00 : back[0] == half[0]);
		expected = reference_get(FA_ATTENTION_BF16, half, 0);
		fa_floats_of(FA_ATTENTION_BF16, got, half, 1);
		assert_true(isnan(expected) ? isnan(got[0]) : (double)got[0] == expected);
		fa_floats_to(FA_ATTENTION_BF16, back, got, 1);
		assert_true(isnan(expected) ? (back[0] & 0x7fff) > 0x7f80 : back[0] == half[0]);
	}
	for (int i = 0; i < 20000; i++) {
		float x[2] = { (float)ldexp(problem_normal(), (int)problem_random(48) - 24) };
		uint16_t half[2], expected;

		for (int d = 0; d < 2; d++) {
			fa_floats_to(dtypes[d], half, x, 1);
			reference_set(dtypes[d], &expected, 0, (double)x[0]);
			assert_int_equal(half[0], expected);
		}
	}
}

/* ---- append and read */

struct fresh {
	void *k, *v;
	struct fa_paged_request request;
};

static void fresh_init(struct fresh *fresh, const struct paged_problem *problem)
{
	const struct paged_spec *spec = &problem->spec;
	const size_t n = problem->cu_new[spec->batch] * (size_t)spec->kv_heads;
	struct fa_paged_append *p = &fresh->request.append;

	*fresh = (struct fresh){ .request.op = FA_PAGED_APPEND };
	p->cache = &problem->cache;
	p->step = &problem->step;
	p->layer = LAYER;
	fresh->k = malloc(n * (size_t)spec->head_dim * sizeof(float));
	fresh->v = malloc(n * (size_t)spec->head_dim_v * sizeof(float));
	p->k = (struct fa_attention_tensor){ fresh->k, 0, spec->kv_heads * spec->head_dim,
		                             spec->head_dim };
	p->v = (struct fa_attention_tensor){ fresh->v, 0, spec->kv_heads * spec->head_dim_v,
		                             spec->head_dim_v };
	for (size_t i = 0; i < n * (size_t)spec->head_dim; i++)
		reference_set(spec->dtype, fresh->k, (int64_t)i, problem_normal());
	for (size_t i = 0; i < n * (size_t)spec->head_dim_v; i++)
		reference_set(spec->dtype, fresh->v, (int64_t)i, 5 * problem_normal());
}

static void fresh_deinit(struct fresh *fresh)
{
	free(fresh->k);
	free(fresh->v);
}

static int64_t element_at(const struct fa_attention_tensor *tensor, int64_t token, int32_t head)
{
	return token * tensor->stride_token + head * tensor->stride_head;
}

/* Puts infinities, NaNs, zero rows, and tiny and huge values into rows. */
static void break_rows(struct fresh *fresh, const struct paged_problem *problem)
{
	const struct paged_spec *spec = &problem->spec;
	static const double values[] = { NAN, INFINITY, -INFINITY, 0, 60000, -1e-7 };

	for (int i = 0; i < 24; i++) {
		const bool v = i % 2;
		struct fa_attention_tensor *tensor = v ? &fresh->request.append.v
		                                       : &fresh->request.append.k;
		int64_t token = (int64_t)problem_random(problem->cu_new[spec->batch]);
		int32_t head = (int32_t)problem_random((uint64_t)spec->kv_heads);
		int32_t dim = v ? spec->head_dim_v : spec->head_dim;
		int64_t at = element_at(tensor, token, head);

		if (i % 3 == 0) {
			for (int32_t c = 0; c < dim; c++)
				reference_set(spec->dtype, tensor->data, at + c,
				              values[3 + i % 2 * 2]);
		} else {
			reference_set(spec->dtype, tensor->data,
			              at + (int64_t)problem_random((uint64_t)dim),
			              values[problem_random(6)]);
		}
	}
}

/* Writes the expected result into the pool. */
static void expect_row(const struct paged_problem *problem, const struct fa_attention_tensor *from,
                       int64_t token, int32_t b, int64_t to, int32_t head, bool v)
{
	const struct paged_spec *spec = &problem->spec;
	int32_t dim = v ? spec->head_dim_v : spec->head_dim;
	char *row = v ? paged_v(problem, LAYER, b, to, head) : paged_k(problem, LAYER, b, to, head);
	float *scale = paged_scale(problem, LAYER, b, to, head, v);
	float values[FA_ATTENTION_ROW_MAX];

	for (int32_t c = 0; c < dim; c++)
		values[c] = (float)reference_get(spec->dtype, from->data,
		                                 element_at(from, token, head) + c);
	*scale = reference_quantise(spec->store, values, dim, spec->head_scales ? *scale : 0,
	                            (uint8_t *)row);
}

static void assert_read(const struct paged_problem *problem,
                        const struct fa_attention_tensor *tensor, int64_t token, int32_t b,
                        int64_t from, int32_t head, bool v)
{
	const struct paged_spec *spec = &problem->spec;
	const char *row = v ? paged_v(problem, LAYER, b, from, head)
	                    : paged_k(problem, LAYER, b, from, head);
	float scale = *paged_scale(problem, LAYER, b, from, head, v);

	for (int32_t c = 0; c < (v ? spec->head_dim_v : spec->head_dim); c++) {
		float value = (float)reference_code_value(spec->store, (uint8_t)row[c]) * scale;
		double expected = reference_round(spec->dtype, (double)value);
		double got = reference_get(spec->dtype, tensor->data,
		                           element_at(tensor, token, head) + c);

		if (isnan(expected) ? !isnan(got) : got != expected)
			fail_msg("element %d is %g, expected %g", c, got, expected);
	}
}

static void test_append(void **state)
{
	for (int i = 0; i < 24; i++) {
		struct paged_spec spec = way_of(&usual, i);
		struct paged_problem problem;
		struct fa_paged_append *p;
		struct fresh fresh;
		char *expected, *got;

		spec.head_dim = i % 5 ? 40 : 128;
		spec.head_dim_v = i % 5 == 1 ? 512 : spec.head_dim;
		spec.page_tokens = 16 << i % 5;
		spec.layer_major = i % 2;
		if (i % 7 == 5) {
			spec.v_in_k = true;
			spec.head_dim = 576;
			spec.head_dim_v = 512;
		}
		paged_init(&problem, &spec);
		fresh_init(&fresh, &problem);
		if (i >= 12)
			break_rows(&fresh, &problem);
		p = &fresh.request.append;
		assert_int_equal(fa_paged_check(&fresh.request, NULL, 0), 0);
		got = problem.cache.pool;
		expected = malloc(problem.pool_bytes);
		memcpy(expected, got, problem.pool_bytes);
		problem.cache.pool = expected;
		for (int32_t b = 0; b < spec.batch; b++) {
			for (uint32_t t = 0; t < spec.n_new[b]; t++) {
				for (int32_t h = 0; h < spec.kv_heads; h++) {
					expect_row(&problem, &p->k, problem.cu_new[b] + t, b,
					           problem.before[b] + t, h, false);
					if (!spec.v_in_k)
						expect_row(&problem, &p->v, problem.cu_new[b] + t,
						           b, problem.before[b] + t, h, true);
				}
			}
		}
		problem.cache.pool = got;
		paged_run(problem_isas()[0], &fresh.request);
		assert_memory_equal(got, expected, problem.pool_bytes);
		free(expected);

		fresh.request.op = FA_PAGED_READ;
		paged_run(problem_isas()[0], &fresh.request);
		for (int32_t b = 0; b < spec.batch; b++) {
			for (uint32_t t = 0; t < spec.n_new[b]; t++) {
				for (int32_t h = 0; h < spec.kv_heads; h++) {
					assert_read(&problem, &p->k, problem.cu_new[b] + t, b,
					            problem.before[b] + t, h, false);
					assert_read(&problem, &p->v, problem.cu_new[b] + t, b,
					            problem.before[b] + t, h, true);
				}
			}
		}
		fresh_deinit(&fresh);
		paged_deinit(&problem);
	}
}

/* K is quantised after rotation: at most half a code's step from the exact value. */
static void test_rotary(void **state)
{
	for (int i = 0; i < 8; i++) {
		struct paged_spec spec = way_of(&usual, i);
		const struct fa_cpu_isa *const *isas = problem_isas();
		struct paged_problem problem;
		struct fa_paged_append *p;
		struct fresh fresh;

		paged_init(&problem, &spec);
		fresh_init(&fresh, &problem);
		p = &fresh.request.append;
		p->rotary = (struct fa_paged_rotary){
			.dim = 32, .first = i % 3 * 8, .base = 10000, .scale = 1
		};
		paged_run(isas[0], &fresh.request);
		for (int32_t b = 0; b < spec.batch; b++) {
			for (uint32_t t = 0; t < spec.n_new[b]; t++) {
				const uint8_t *row = (const uint8_t *)paged_k(
					&problem, LAYER, b, problem.before[b] + t, 1);
				double scale = (double)*paged_scale(
					&problem, LAYER, b, problem.before[b] + t, 1, false);
				int64_t at = element_at(&p->k, problem.cu_new[b] + t, 1);

				row += p->rotary.first;
				at += p->rotary.first;
				for (int32_t c = 0; c < 16; c++) {
					double angle = (double)(problem.before[b] + t) *
					               pow(10000, -2.0 * c / 32);
					double x = reference_get(spec.dtype, fresh.k, at + c);
					double y = reference_get(spec.dtype, fresh.k, at + c + 16);
					double turned = x * cos(angle) - y * sin(angle);
					double got = reference_code_value(spec.store, row[c]) *
					             scale;
					double step = spec.store == FA_PAGED_INT8
					                      ? scale
					                      : fmax(fabs(turned) / 8, scale / 512);
					double most = scale *
					              (spec.store == FA_PAGED_INT8 ? 127 : 448);

					if (fabs(turned) > most)
						turned = copysign(most, turned);
					if (!(fabs(got - turned) <= step * 0.501 + 1e-5))
						fail_msg("%g became %g, of scale %g", turned, got,
						         scale);
				}
			}
		}
		fresh_deinit(&fresh);
		paged_deinit(&problem);
	}
}

/* ---- moves of pages and tokens */

static void test_move(void **state)
{
	for (int i = 0; i < 4; i++) {
		struct paged_spec spec = way_of(&usual, i);
		const uint32_t cu_moves[] = { 0, 3 }, from[] = { 100, 101, 130 }, to[] = { 99 };
		struct fa_paged_request request = { .op = FA_PAGED_MOVE };
		struct paged_problem problem;
		char k[3][2][64], v[3][2][64];
		float scales[3][2][2];

		paged_init(&problem, &spec);
		for (int t = 0; t < 3; t++) {
			for (int32_t h = 0; h < 2; h++) {
				memcpy(k[t][h], paged_k(&problem, 1, 0, from[t], h), 64);
				memcpy(v[t][h], paged_v(&problem, 1, 0, from[t], h), 64);
				scales[t][h][0] = *paged_scale(&problem, 1, 0, from[t], h, false);
				scales[t][h][1] = *paged_scale(&problem, 1, 0, from[t], h, true);
			}
		}
		request.move = (struct fa_paged_move){
			.cache = &problem.cache,
			.batch = 1,
			.cu_moves = cu_moves,
			.from = from,
			.to = to,
			.table = problem.table,
			.table_start = problem.table_start,
			.table_entries = problem.step.table_entries,
		};
		assert_int_equal(fa_paged_check(&request, NULL, 0), 0);
		paged_run(problem_isas()[0], &request);
		for (int t = 0; t < 3; t++) {
			for (int32_t h = 0; h < 2; h++) {
				assert_memory_equal(paged_k(&problem, 1, 0, 99 + t, h), k[t][h],
				                    64);
				assert_memory_equal(paged_v(&problem, 1, 0, 99 + t, h), v[t][h],
				                    64);
				assert_memory_equal(paged_scale(&problem, 1, 0, 99 + t, h, false),
				                    &scales[t][h][0], 4);
				assert_memory_equal(paged_scale(&problem, 1, 0, 99 + t, h, true),
				                    &scales[t][h][1], 4);
			}
		}
		paged_deinit(&problem);
	}
}

/* A copied page keeps its scales, and a cleared one is all zero. */
static void test_pages(void **state)
{
	for (int i = 0; i < 4; i++) {
		struct paged_spec spec = way_of(&usual, i);
		struct fa_paged_request request = { .op = FA_PAGED_COPY };
		struct paged_problem problem;
		const char *pool;
		int64_t k_bytes, v_bytes;
		uint32_t from, to;

		paged_init(&problem, &spec);
		pool = problem.cache.pool;
		fa_paged_page_bytes(&problem.cache, &k_bytes, &v_bytes);
		assert_int_equal(k_bytes, 2 * 64 * (spec.head_scales ? 64 : 68));
		from = problem.table[problem.table_start[0]];
		to = problem.spare[0];
		request.pages = (struct fa_paged_pages){
			.cache = &problem.cache, .count = 1, .from = &from, .to = &to
		};
		paged_run(problem_isas()[0], &request);
		for (int64_t layer = 0; layer < 3; layer++) {
			int64_t at = layer * problem.cache.layer_stride;

			assert_memory_equal(pool + at + to * 256LL, pool + at + from * 256LL,
			                    (size_t)k_bytes);
			at += problem.cache.v_offset;
			assert_memory_equal(pool + at + to * 256LL, pool + at + from * 256LL,
			                    (size_t)v_bytes);
		}
		request.op = FA_PAGED_CLEAR;
		paged_run(problem_isas()[0], &request);
		for (int64_t j = 0; j < k_bytes; j++)
			assert_int_equal(pool[problem.cache.layer_stride + to * 256LL + j], 0);
		for (int64_t j = 0; j < v_bytes; j++)
			assert_int_equal(pool[problem.cache.layer_stride + problem.cache.v_offset +
			                      to * 256LL + j],
			                 0);
		paged_deinit(&problem);
	}
}

/* ---- attention */

static void test_attention(void **state)
{
	for (int i = 0; i < 36; i++) {
		struct paged_spec spec = way_of(&usual, i);

		spec.page_tokens = 16 << i % 5;
		spec.heads = spec.kv_heads * (1 + i % 9);
		spec.head_dim = i % 7 == 3 ? 128 : i % 7 == 5 ? 256 : 64;
		spec.head_dim_v = i % 11 == 7 ? 72 : spec.head_dim;
		spec.lengths[0] = i % 6 == 5 ? 1500 : 132;
		spec.first[2] = i % 5 == 4 ? 70 : 0;
		spec.layer_major = i % 2;
		spec.gaps = i % 3 == 1;
		spec.causal = i % 4 != 3;
		spec.left_1 = i % 5 == 1 ? 30 : 0;
		spec.softcap = i % 6 == 1 ? 20 : 0;
		spec.alibi = i % 7 == 1;
		spec.sinks = i % 5 == 3;
		spec.tree = i % 8 == 6;
		paged_test(&spec);
	}
}

/* V is the front of K, with its scales. */
static void test_v_in_k(void **state)
{
	for (int i = 0; i < 24; i++) {
		struct paged_spec spec = way_of(&usual, i);

		spec.v_in_k = true;
		spec.kv_heads = i % 5 == 1 ? 2 : 1;
		spec.heads = spec.kv_heads * (i % 3 == 0 ? 16 : 1 + i % 9);
		spec.head_dim = i % 4 == 0 ? 576 : i % 4 == 1 ? 512 : 96;
		spec.head_dim_v = spec.head_dim == 96 ? 64 : 512;
		spec.lengths[0] = i % 6 == 5 ? 1500 : 132;
		spec.n_new[2] = i % 2 ? 5 : 33;
		spec.first[2] = i % 5 == 4 ? 70 : 0;
		spec.tree = i % 8 == 6;
		spec.broken = i % 7 == 2 ? 2 : 0;
		paged_test(&spec);
	}
}

/* NaNs and infinities in codes and scales do not reach rows that do not see them. */
static void test_broken(void **state)
{
	for (int i = 0; i < 24; i++) {
		struct paged_spec spec = way_of(&usual, i);

		spec.page_tokens = 16 << i % 5;
		spec.broken = 1 + i % 4;
		spec.n_new[0] = 1 + (uint32_t)i % 4;
		spec.n_new[2] = i % 2 ? 70 : 33;
		spec.lengths[0] = i % 4 == 3 ? 1500 : 132;
		spec.first[2] = i % 5 == 0 ? 61 : 0;
		spec.left_1 = i % 3 == 1 ? 1 + 7 * i : 0;
		spec.tree = i % 16 >= 10;
		paged_test(&spec);
	}
}

static void test_check(void **state)
{
	struct paged_spec spec = way_of(&usual, 2);
	struct fa_paged_request request;
	struct paged_problem problem;
	struct fa_paged_cache cache;
	char text[256];

	paged_init(&problem, &spec);
	request = problem.request;
	request.attention.cache = &cache;
	cache = problem.cache;
	cache.store = (enum fa_paged_store)3;
	assert_int_equal(fa_paged_check(&request, text, sizeof(text)), -ENOTSUP);
	assert_non_null(strstr(text, "store 3"));
	cache = problem.cache;
	cache.v_scales = NULL;
	assert_int_equal(fa_paged_check(&request, text, sizeof(text)), -EINVAL);
	assert_non_null(strstr(text, "scales of K are given without those of V"));
	cache.v_offset = 0;
	assert_int_equal(fa_paged_check_cache(&cache, text, sizeof(text)), 0);
	cache = problem.cache;
	assert_int_equal(fa_paged_check_cache(&cache, text, sizeof(text)), 0);
	paged_deinit(&problem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_codes),  cmocka_unit_test(test_elements),
		cmocka_unit_test(test_append), cmocka_unit_test(test_rotary),
		cmocka_unit_test(test_move),   cmocka_unit_test(test_pages),
		cmocka_unit_test(test_check),  cmocka_unit_test(test_attention),
		cmocka_unit_test(test_broken), cmocka_unit_test(test_v_in_k),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
