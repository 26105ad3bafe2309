/*
 * Attention over pages that a client manages, on the CPU: page sizes and layouts, every feature,
 * tables and lengths of garbage, also while they change, and appending.
 */
#include "tests/kernels/own-problem.h"
#include "tests/kernels/paged-problem.h"
#include "tests/kernels/problem.h"
#include "tests/kernels/reference.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum fa_attention_dtype dtypes[] = { FA_ATTENTION_F32, FA_ATTENTION_F16,
	                                          FA_ATTENTION_BF16 };

static void test(const struct own_spec *spec)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	struct own_problem problem;

	own_init(&problem, spec);
	for (size_t i = 0; isas[i]; i++) {
		const char *name = fa_cpu_isa_name(isas[i]);

		own_poison(&problem);
		paged_run(isas[i], &problem.request);
		own_judge(&problem, name, problem_rounds_weights(isas[i], spec->dtype));
	}
	own_deinit(&problem);
}

static void test_patterns(void **state)
{
	static const struct fa_attention_pattern patterns[] = {
		{ 64, 2, 4, 1, 0 },  { 16, 1, 3, 0, 0 },  { 64, 1, 8, -1, 0 },  { 48, 0, 5, 2, 7 },
		{ 32, 3, 50, 3, 2 }, { 16, 4, 7, -3, 8 }, { 128, 16, 1, 1, 0 },
	};

	for (int n = 0; n < 28; n++) {
		struct own_spec spec = own_usual;

		spec.dtype = dtypes[n % 3];
		spec.kv_heads = n / 7 % 2 ? 1 : spec.heads / 2;
		spec.pattern = patterns[n % 7];
		spec.causal = n % 4 > 0;
		spec.deterministic = n % 2;
		spec.page_tokens = n % 5 == 4 ? 1 : 16;
		spec.e4m3 = n % 6 == 5;
		test(&spec);
	}
}

static void test_pages(void **state)
{
	static const int32_t pages[] = { 1, 3, 5, 8, 16, 48, 64, 256 };

	for (size_t p = 0; p < sizeof(pages) / sizeof(pages[0]); p++) {
		for (int layout = 0; layout < OWN_LAYOUTS; layout++) {
			struct own_spec spec = own_usual;

			spec.page_tokens = pages[p];
			spec.layout = (enum own_layout)layout;
			spec.dtype = dtypes[(p + (size_t)layout) % 3];
			test(&spec);
			if ((p + (size_t)layout) % 2)
				continue;
			spec.dtype = FA_ATTENTION_BF16;
			spec.e4m3 = true;
			spec.scales = layout < 2;
			test(&spec);
		}
	}
}

static void test_features(void **state)
{
	static const int32_t pages[] = { 3, 1, 16, 64 };

	for (int feature = 0; feature < 13; feature++) {
		for (size_t p = (size_t)feature % 2; p < 4; p += 2) {
			struct own_spec spec = own_usual;

			spec.page_tokens = pages[p];
			spec.dtype = dtypes[((size_t)feature + p) % 3];
			spec.e4m3 = p < 2 && feature % 4 < 2;
			switch (feature) {
			case 0:
				spec.causal = false;
				break;
			case 1:
				spec.left_1 = 1 + 20;
				break;
			case 2:
				spec.causal = false;
				spec.left_1 = 1 + 10;
				spec.right_1 = 1 + 3;
				break;
			case 3:
				spec.softcap = 5;
				break;
			case 4:
				spec.alibi = true;
				break;
			case 5:
				spec.sinks = true;
				break;
			case 6:
				spec.no_lse = true;
				break;
			case 7:
				spec.even = true;
				spec.n_q[0] = 5;
				break;
			case 8:
				spec.heads = 16;
				break;
			case 9:
				spec.chunk = 13;
				break;
			case 10:
				spec.chunk = 37;
				spec.left_1 = 1 + 20;
				spec.causal = false;
				break;
			case 11:
				spec.prefixed = true;
				spec.prefix[0] = 7;
				spec.prefix[1] = INT32_MIN;
				spec.prefix[2] = INT32_MAX;
				spec.right_1 = p == 1 ? 1 + 12 : 0;
				break;
			default:
				spec.softcap = 20;
				spec.alibi = spec.sinks = spec.deterministic = true;
				spec.left_1 = 1 + 40;
			}
			test(&spec);
		}
	}
}

static void test_dims(void **state)
{
	static const int32_t dims[][2] = { { 8, 8 },     { 40, 72 },  { 128, 128 }, { 256, 256 },
		                           { 192, 128 }, { 64, 512 }, { 512, 512 }, { 576, 512 } };

	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
		for (size_t d = 0; d < 3; d++) {
			struct own_spec spec = own_usual;

			spec.head_dim = dims[i][0];
			spec.head_dim_v = dims[i][1];
			spec.dtype = dtypes[d];
			spec.layout = (enum own_layout)((i + d) % OWN_LAYOUTS);
			spec.page_tokens = d == 0 ? 3 : 32;
			test(&spec);
		}
	}
}

/* Lengths with splits along the keys, for few rows and for many. */
static void test_long(void **state)
{
	for (int i = 0; i < 6; i++) {
		struct own_spec spec = own_usual;

		spec.n_q[2] = 17;
		spec.lengths[0] = 5003;
		spec.lengths[2] = 4500;
		spec.page_tokens = i % 2 ? 48 : 3;
		spec.dtype = dtypes[i % 3];
		spec.left_1 = i == 3 ? 1501 : 0;
		spec.deterministic = i >= 4;
		test(&spec);
	}
}

/* Sequences whose partial results exceed the workspace get fewer splits. */
static void test_workspace(void **state)
{
	struct own_spec spec = own_usual;

	spec.batch = 2;
	spec.heads = spec.kv_heads = 31;
	spec.head_dim = 8;
	spec.page_tokens = 256;
	spec.dtype = FA_ATTENTION_F32;
	for (int b = 0; b < 2; b++) {
		spec.n_q[b] = 13;
		spec.lengths[b] = 5000;
	}
	test(&spec);
}

static void test_empty(void **state)
{
	struct own_spec spec = own_usual;

	spec.batch = 5;
	spec.n_q[0] = 0, spec.lengths[0] = 100;
	spec.n_q[1] = 1, spec.lengths[1] = 0;
	spec.n_q[2] = 40, spec.lengths[2] = 0;
	spec.n_q[3] = 20, spec.lengths[3] = 7;
	spec.n_q[4] = 0, spec.lengths[4] = 0;
	test(&spec);
	spec.sinks = true;
	spec.page_tokens = 1;
	test(&spec);
	memset(spec.n_q, 0, sizeof(spec.n_q));
	test(&spec);
	memset(spec.lengths, 0, sizeof(spec.lengths));
	test(&spec);
}

/* A sequence of a deterministic request has the same bits in any batch. */
static void test_deterministic(void **state)
{
	const struct fa_cpu_isa *isa = problem_isas()[0];
	struct own_spec spec = own_usual;
	struct own_problem problem;
	struct fa_paged_own_attention *p = &problem.request.own_attention;
	size_t bytes;
	void *alone;

	spec.batch = 2;
	spec.n_q[0] = 9, spec.lengths[0] = 3000;
	spec.n_q[1] = 70, spec.lengths[1] = 2500;
	spec.no_lse = spec.deterministic = true;
	own_init(&problem, &spec);
	own_poison(&problem);
	paged_run(isa, &problem.request);
	bytes = (size_t)spec.n_q[0] * (size_t)p->out.stride_token * 2;
	alone = malloc(bytes);
	memcpy(alone, problem.out.data, bytes);
	own_poison(&problem);
	p->batch = 1;
	p->max_q = spec.n_q[0];
	p->total_q = spec.n_q[0];
	p->max_k = spec.lengths[0];
	paged_run(isa, &problem.request);
	assert_memory_equal(problem.out.data, alone, bytes);
	free(alone);
	own_deinit(&problem);
}

/* ---- garbage */

static int32_t garbage(void)
{
	static const int32_t odd[] = { INT32_MIN, INT32_MAX, -1, 0, 1 };

	switch (problem_random(4)) {
	case 0:
		return odd[problem_random(5)];
	case 1:
		return (int32_t)problem_random(200);
	case 2:
		return (int32_t)problem_random(1 << 20);
	default:
		return (int32_t)(uint32_t)problem_random(1ull << 32);
	}
}

static void scribble(const struct own_memory *memory)
{
	int32_t *words = (int32_t *)memory->data;

	for (size_t i = 0; i < memory->bytes / sizeof(*words); i++)
		__atomic_store_n(&words[i], garbage(), __ATOMIC_RELAXED);
}

static int32_t clamp(int64_t x, int64_t low, int64_t high)
{
	return (int32_t)(x < low ? low : x > high ? high : x);
}

/* Does to table and lengths in memory what kernels do to what they read. */
static void put_right(struct own_problem *problem)
{
	struct fa_paged_own_attention *p = &problem->request.own_attention;
	int32_t *table = (int32_t *)problem->table.data;
	int32_t *lengths = (int32_t *)problem->lengths.data;
	int64_t most = (int64_t)p->table_columns * problem->spec.page_tokens;

	for (size_t i = 0; i < problem->table.bytes / sizeof(*table); i++)
		if ((uint32_t)table[i] >= (uint32_t)problem->pages.pages)
			table[i] = problem->pages.pages - 1;
	for (int32_t b = 0; b < p->batch; b++)
		lengths[b] = clamp(lengths[b], 0, most < p->max_k ? most : p->max_k);
}

/* Garbage gives the result of the numbers that it is clamped to. */
static void test_garbage(void **state)
{
	for (int i = 0; i < 60; i++) {
		const struct fa_cpu_isa *isa = problem_isas()[i % 2];
		struct own_spec spec = own_usual;
		struct own_problem problem;
		void *out, *lse;

		spec.page_tokens = i % 3 == 0 ? 1 : i % 3 == 1 ? 3 : 16;
		spec.layout = (enum own_layout)(i % OWN_LAYOUTS);
		spec.dtype = dtypes[i % 3];
		spec.e4m3 = i % 5 == 0;
		spec.causal = i % 2;
		spec.left_1 = i % 7 == 0 ? 30 : 0;
		own_init(&problem, &spec);
		scribble(&problem.table);
		scribble(&problem.lengths);
		if (i % 2)
			problem.request.own_attention.max_k = 100 * i;
		if (i % 4 == 1)
			problem.request.own_attention.table_columns = i % 3;
		out = malloc(problem.out.bytes);
		lse = malloc(problem.lse.bytes);
		own_poison(&problem);
		paged_run(isa, &problem.request);
		memcpy(out, problem.out.data, problem.out.bytes);
		memcpy(lse, problem.lse.data, problem.lse.bytes);
		put_right(&problem);
		own_poison(&problem);
		paged_run(isa, &problem.request);
		assert_memory_equal(out, problem.out.data, problem.out.bytes);
		assert_memory_equal(lse, problem.lse.data, problem.lse.bytes);
		free(out);
		free(lse);
		own_deinit(&problem);
	}
}

/* Fails if bytes that belong to no row changed. */
static void check_gaps(const struct own_problem *problem)
{
	const struct fa_paged_own_attention *p = &problem->request.own_attention;
	size_t bytes = problem->spec.dtype == FA_ATTENTION_F32 ? 4 : 2;
	size_t row = (size_t)problem->spec.head_dim_v * bytes;
	size_t stride = (size_t)p->out.stride_head * bytes;

	for (size_t at = 0; at < problem->out.bytes; at++)
		if (at % stride >= row && (unsigned char)problem->out.data[at] != 0xff)
			fail_msg("%s: wrote between rows", own_describe(problem));
}

static void test_garbage_rows(void **state)
{
	for (int i = 0; i < 60; i++) {
		struct own_spec spec = own_usual;
		struct own_problem problem;

		spec.layout = OWN_PADDED;
		spec.dtype = dtypes[i % 3];
		own_init(&problem, &spec);
		scribble(&problem.cu_q);
		if (i % 2) {
			scribble(&problem.table);
			scribble(&problem.lengths);
		}
		own_poison(&problem);
		paged_run(problem_isas()[i % 2], &problem.request);
		check_gaps(&problem);
		own_deinit(&problem);
	}
}

/* Rows that no sequence claims are not written. */
static void test_unclaimed(void **state)
{
	struct own_spec spec = own_usual;
	struct own_problem problem;
	const struct fa_paged_own_attention *p = &problem.request.own_attention;
	int32_t *cu_q;
	size_t row;

	own_init(&problem, &spec);
	cu_q = (int32_t *)problem.cu_q.data;
	row = (size_t)p->out.stride_token * 2;
	cu_q[0] = 4;  /* 4, 5 */
	cu_q[1] = 6;  /* 6 … 9 */
	cu_q[2] = 10; /* nothing: the end is before the beginning */
	cu_q[3] = INT32_MIN;
	own_poison(&problem);
	paged_run(problem_isas()[0], &problem.request);
	for (int64_t i = 0; i < p->total_q; i++) {
		const unsigned char *at = (const unsigned char *)problem.out.data + (size_t)i * row;
		bool poison = true;

		for (size_t c = 0; c < row; c++)
			poison = poison && at[c] == 0xff;
		assert_int_equal(poison, i < 4 || i >= 10);
	}
	own_deinit(&problem);
}

struct scribbler {
	const struct own_problem *problem;
	atomic_bool stop;
};

static void *scribble_on(void *userdata)
{
	struct scribbler *scribbler = userdata;
	const struct own_memory *all[] = { &scribbler->problem->table, &scribbler->problem->lengths,
		                           &scribbler->problem->cu_q };
	uint64_t state = 1;

	while (!atomic_load(&scribbler->stop)) {
		const struct own_memory *memory;

		state = state * 6364136223846793005u + 1442695040888963407u;
		memory = all[(state >> 33) % 3];
		__atomic_store_n((int32_t *)memory->data +
		                         (state >> 40) % (memory->bytes / sizeof(int32_t)),
		                 (int32_t)(state >> 35) >> (state >> 60), __ATOMIC_RELAXED);
	}
	return NULL;
}

static void test_changing(void **state)
{
	struct own_spec spec = own_usual;
	struct own_problem problem;
	struct scribbler scribbler = { .problem = &problem };
	pthread_t thread;

	spec.layout = OWN_PADDED;
	spec.lengths[0] = 3000;
	spec.page_tokens = 3;
	own_init(&problem, &spec);
	assert_int_equal(pthread_create(&thread, NULL, scribble_on, &scribbler), 0);
	for (int i = 0; i < 100; i++) {
		own_poison(&problem);
		paged_run(problem_isas()[i % 2], &problem.request);
		check_gaps(&problem);
	}
	atomic_store(&scribbler.stop, true);
	pthread_join(thread, NULL);
	own_deinit(&problem);
}

/* ---- appending */

static void test_append(void **state)
{
	enum {
		TOKENS = 40
	};

	for (int i = 0; i < 24; i++) {
		struct own_spec spec = own_usual;
		struct own_problem problem;
		struct fa_paged_request request = { .op = FA_PAGED_APPEND_OWN };
		struct fa_paged_own_append *p = &request.own_append;
		char *before_k, *before_v = NULL, *rows[2];
		int64_t slots[TOKENS], most;
		size_t bytes;

		spec.dtype = dtypes[i % 3];
		spec.layout = (enum own_layout)(i / 3 % OWN_LAYOUTS);
		spec.head_dim_v = 40;
		spec.page_tokens = i % 2 ? 16 : 3;
		spec.e4m3 = i % 4 == 1;
		spec.scales = i % 8 == 1;
		own_init(&problem, &spec);
		bytes = spec.dtype == FA_ATTENTION_F32 ? 4 : 2;
		most = (int64_t)problem.pages.pages * spec.page_tokens;
		for (int64_t t = 0; t < TOKENS; t++)
			slots[t] = (t * 7 + 3) % most;
		slots[3] = -1;
		slots[7] = most;
		slots[11] = INT64_MAX;
		slots[19] = INT64_MIN;
		*p = (struct fa_paged_own_append){
			.pages = &problem.pages,
			.tokens = most < TOKENS ? most : TOKENS,
			.k = { .stride_head = spec.head_dim + 2, .stride_token = 3 * 70 },
			.v = { .stride_head = spec.head_dim_v, .stride_token = 2 * 40 },
			.slots = slots,
		};
		rows[0] = malloc((size_t)(TOKENS * p->k.stride_token) * bytes);
		rows[1] = malloc((size_t)(TOKENS * p->v.stride_token) * bytes);
		for (int64_t at = 0; at < TOKENS * p->k.stride_token; at++)
			reference_set(spec.dtype, rows[0], at, problem_normal() * 100);
		for (int64_t at = 0; at < TOKENS * p->v.stride_token; at++)
			reference_set(spec.dtype, rows[1], at, problem_normal());
		p->k.data = i % 6 == 4 ? NULL : rows[0];
		p->v.data = i % 6 == 5 ? NULL : rows[1];
		before_k = malloc(problem.k.bytes);
		memcpy(before_k, problem.k.data, problem.k.bytes);
		if (problem.v.map) {
			before_v = malloc(problem.v.bytes);
			memcpy(before_v, problem.v.data, problem.v.bytes);
		}
		paged_run(problem_isas()[0], &request);

		/* Write the expected rows to the copies; then all of the memory must be equal. */
		for (int64_t t = 0; t < p->tokens; t++) {
			if (slots[t] < 0 || slots[t] >= most)
				continue;
			for (int v = 0; v < 2; v++) {
				const struct fa_attention_tensor *from = v ? &p->v : &p->k;
				const float *scales = v ? problem.pages.v_scales
				                        : problem.pages.k_scales;
				int32_t dim = v ? spec.head_dim_v : spec.head_dim;
				bool in_k = !v || !problem.v.map;
				char *copy = in_k ? before_k : before_v;
				const char *memory = in_k ? problem.k.data : problem.v.data;

				for (int32_t h = 0; h < spec.kv_heads && from->data; h++) {
					char *to = copy + (own_row(&problem, v,
					                           slots[t] / spec.page_tokens,
					                           slots[t] % spec.page_tokens, h) -
					                   memory);
					int64_t at = t * from->stride_token + h * from->stride_head;
					float row[512];

					if (!spec.e4m3) {
						memcpy(to, (char *)from->data + (size_t)at * bytes,
						       (size_t)dim * bytes);
						continue;
					}
					for (int32_t c = 0; c < dim; c++)
						row[c] = (float)reference_get(spec.dtype,
						                              from->data, at + c);
					reference_quantise(FA_PAGED_E4M3, row, dim,
					                   scales ? scales[h] : 1, (uint8_t *)to);
				}
			}
		}
		assert_memory_equal(problem.k.data, before_k, problem.k.bytes);
		if (before_v)
			assert_memory_equal(problem.v.data, before_v, problem.v.bytes);
		free(before_k);
		free(before_v);
		free(rows[0]);
		free(rows[1]);
		own_deinit(&problem);
	}
}

/* ---- what is refused */

static const struct fa_paged_own good_pages = {
	.dtype = FA_ATTENTION_BF16,
	.kv_heads = 2,
	.head_dim = 64,
	.head_dim_v = 64,
	.page_tokens = 3,
	.pages = 10,
	.store = FA_PAGED_PLAIN,
};

static const struct fa_paged_own_attention good_attention = {
	.batch = 2,
	.heads = 4,
	.table_columns = 4,
	.max_q = 3,
	.total_q = 6,
	.max_k = 12,
	.scale = 0.1f,
	.window_left = -1,
	.window_right = -1,
};

#define REFUSED(error, sentence, ...)                                                              \
	do {                                                                                       \
		struct fa_paged_own pages = good_pages;                                            \
		struct fa_paged_request request = { .op = FA_PAGED_ATTEND_OWN,                     \
			                            .own_attention = good_attention };             \
		struct fa_paged_own_attention *p = &request.own_attention;                         \
		char text[256] = "";                                                               \
                                                                                                   \
		p->pages = &pages;                                                                 \
		__VA_ARGS__;                                                                       \
		assert_int_equal(fa_paged_check(&request, text, sizeof(text)), error);             \
		assert_string_equal(text, sentence);                                               \
	} while (0)

static void test_refusals(void **state)
{
	static const int32_t cu_q[3];

	REFUSED(0, "", (void)p);
	REFUSED(0, "", p->cu_q = cu_q; p->total_q = 5);
	REFUSED(0, "", pages.page_tokens = 1; pages.store = FA_PAGED_E4M3);
	REFUSED(-ENOTSUP, "dtype 9 is not supported: fp32 (1), fp16 (2) or bf16 (3)",
	        pages.dtype = (enum fa_attention_dtype)9);
	REFUSED(-EINVAL, "kv_heads 0 is not positive", pages.kv_heads = 0);
	REFUSED(-ENOTSUP, "head_dim 12 is not supported: at most 576, a multiple of 8",
	        pages.head_dim = 12);
	REFUSED(-ENOTSUP, "head_dim_v 520 is not supported: at most 512, a multiple of 8",
	        pages.head_dim_v = 520);
	REFUSED(-EINVAL, "page_tokens 0 is not positive", pages.page_tokens = 0);
	REFUSED(-ENOTSUP, "page_tokens 257 is not supported: at most 256", pages.page_tokens = 257);
	REFUSED(-EINVAL, "pages 0 is not positive", pages.pages = 0);
	REFUSED(-ENOTSUP, "store 2 is not supported in a client's pages: plain (0) or e4m3 (1)",
	        pages.store = FA_PAGED_INT8);
	REFUSED(-EINVAL, "batch 0 is not positive", p->batch = 0);
	REFUSED(-EINVAL, "heads 5 is not a multiple of kv_heads 2", p->heads = 5);
	REFUSED(-EINVAL, "max_q -1 is negative", p->max_q = -1);
	REFUSED(-ENOTSUP, "max_q 536870913 is not supported: at most 536870912",
	        p->max_q = (1 << 29) + 1);
	REFUSED(-EINVAL, "total_q -1 is negative", p->total_q = -1);
	REFUSED(-EINVAL, "max_k -1 is negative", p->max_k = -1);
	REFUSED(-ENOTSUP, "max_k 536870913 is not supported: at most 536870912",
	        p->max_k = (1 << 29) + 1);
	REFUSED(-EINVAL, "total_q 5 is not batch 2 x max_q 3, as it is without cu_q",
	        p->total_q = 5);
	REFUSED(-EINVAL, "table_columns -1 is negative", p->table_columns = -1);
	REFUSED(-EINVAL, "scale inf is not finite", p->scale = INFINITY);
	REFUSED(-EINVAL, "softcap -1 is not a finite number of at least 0", p->softcap = -1);
	REFUSED(-EINVAL, "window_left -2 is below -1", p->window_left = -2);
	REFUSED(-EINVAL, "window_right -2 is below -1", p->window_right = -2);
	REFUSED(-EINVAL, "chunk_tokens -1 is negative", p->chunk_tokens = -1);
}

static void test_append_refusals(void **state)
{
	struct fa_paged_own pages = good_pages;
	struct fa_paged_request request = { .op = FA_PAGED_APPEND_OWN,
		                            .own_append = { .pages = &pages, .tokens = 3 } };
	char text[256] = "";

	assert_int_equal(fa_paged_check(&request, text, sizeof(text)), 0);
	request.own_append.tokens = -1;
	assert_int_equal(fa_paged_check(&request, text, sizeof(text)), -EINVAL);
	assert_string_equal(text, "tokens -1 is negative");
	request.own_append.tokens = 3;
	pages.pages = -1;
	assert_int_equal(fa_paged_check(&request, text, sizeof(text)), -EINVAL);
	assert_string_equal(text, "pages -1 is not positive");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pages),
		cmocka_unit_test(test_patterns),
		cmocka_unit_test(test_features),
		cmocka_unit_test(test_dims),
		cmocka_unit_test(test_long),
		cmocka_unit_test(test_workspace),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_garbage_rows),
		cmocka_unit_test(test_unclaimed),
		cmocka_unit_test(test_changing),
		cmocka_unit_test(test_append),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_append_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
