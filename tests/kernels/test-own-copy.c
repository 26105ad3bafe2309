/*
 * Copies between the pool and a client's own pages on the CPU, both ways, in all layouts and
 * storages. All other memory must stay as it was.
 */
#include "tests/kernels/own-copy-problem.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int32_t page_sizes[] = { 16, 1, 7, 64, 256, 5, 32 };

static const struct paged_spec usual = {
	.dtype = FA_ATTENTION_BF16,
	.batch = 2,
	.heads = 4,
	.kv_heads = 2,
	.head_dim = 48,
	.head_dim_v = 32,
	.page_tokens = 32,
	.n_new = { 1, 1 },
	.lengths = { 70, 333 },
	.first = { 0, 65 },
};

/* Number @i of the problems: 3 dtypes, 5 storages, with V in K. */
static struct paged_spec spec_of(int i)
{
	static const enum fa_attention_dtype dtypes[] = { FA_ATTENTION_BF16, FA_ATTENTION_F16,
		                                          FA_ATTENTION_F32 };
	static const enum fa_paged_store stores[] = { FA_PAGED_PLAIN, FA_PAGED_E4M3, FA_PAGED_PLAIN,
		                                      FA_PAGED_INT8 };
	struct paged_spec spec = usual;

	spec.dtype = dtypes[i % 3];
	spec.store = stores[i % 4];
	spec.head_scales = i / 4 % 2;
	spec.page_tokens = 16 << i % 5;
	spec.layer_major = i % 2;
	spec.v_in_k = i % 8 == 6 || i % 8 == 5;
	spec.head_dim = i % 8 == 5 ? 576 : spec.head_dim;
	return spec;
}

static char *copy_of(const void *memory, size_t bytes)
{
	char *copy = malloc(bytes);

	memcpy(copy, memory, bytes);
	return copy;
}

static void run(struct own_problem *own, bool writes, const struct fa_cpu_isa *isa)
{
	struct paged_problem *problem = own->problem;
	struct fa_paged_request request = {
		.op = writes ? FA_PAGED_WRITE_OWN : FA_PAGED_READ_OWN,
		.own_copy = own->copy,
	};
	char *pool = copy_of(problem->cache.pool, problem->pool_bytes), *memory;
	char text[256] = "";

	if (writes)
		own_fill(own);
	memory = copy_of(own->memory, own->bytes);
	if (fa_paged_check(&request, text, sizeof(text)) < 0)
		fail_msg("%s", text);
	own_expect(own, writes, pool, memory);
	paged_run(isa, &request);
	assert_memory_equal(problem->cache.pool, pool, problem->pool_bytes);
	assert_memory_equal(own->memory, memory, own->bytes);
	free(pool);
	free(memory);
}

static void test_both_ways(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (int i = 0; i < 120; i++) {
		const struct paged_spec spec = spec_of(i);
		const uint32_t first = i % 3 ? 65 + (uint32_t)problem_random(100) : 65;
		const uint32_t end = i % 3 == 1 ? 333 : first + (uint32_t)problem_random(160);
		struct paged_problem problem;
		struct own_problem own;

		paged_init(&problem, &spec);
		own_init(&own, &problem, 1, first, end, i % OWN_LAYOUTS, page_sizes[i % 7]);
		if (i % 10 == 7)
			own.copy.k_data = NULL;
		if (i % 10 == 3)
			own.copy.v_data = NULL;
		run(&own, false, isas[0]);
		if (!spec.v_in_k)
			run(&own, true, isas[0]);
		own_deinit(&own);
		paged_deinit(&problem);
	}
}

/* Tokens that are read, written elsewhere and read again are the same bits. Codes are, too, as reading
 * and quantising again with the same scale gives the same codes. */
static void test_round_trip(void **state)
{
	struct paged_spec spec = usual;
	struct paged_problem problem;
	struct own_problem own;
	char *before;

	spec.dtype = FA_ATTENTION_F32;
	spec.store = FA_PAGED_INT8;
	spec.head_scales = true;
	paged_init(&problem, &spec);
	own_init(&own, &problem, 0, 0, 70, 0, 16);
	before = copy_of(problem.cache.pool, problem.pool_bytes);
	paged_run(problem_isas()[0],
	          &(struct fa_paged_request){ .op = FA_PAGED_READ_OWN, .own_copy = own.copy });
	for (int32_t l = own.copy.layer; l < problem.cache.layers; l++)
		for (int32_t h = 0; h < spec.kv_heads; h++)
			memset(paged_k(&problem, l, 0, 5, h), 1, (size_t)spec.head_dim);
	paged_run(problem_isas()[0],
	          &(struct fa_paged_request){ .op = FA_PAGED_WRITE_OWN, .own_copy = own.copy });
	assert_memory_equal(problem.cache.pool, before, problem.pool_bytes);
	free(before);
	own_deinit(&own);
	paged_deinit(&problem);
}

static void refused(const struct fa_paged_own_copy *copy, enum fa_paged_op op, const char *expected)
{
	const struct fa_paged_request request = { .op = op, .own_copy = *copy };
	char text[256] = "";

	assert_int_equal(fa_paged_check(&request, text, sizeof(text)), -EINVAL);
	if (!strstr(text, expected))
		fail_msg("\"%s\" does not say \"%s\"", text, expected);
}

static void test_refused(void **state)
{
	struct paged_spec spec = usual;
	struct paged_problem problem;
	struct fa_paged_own_copy copy;
	struct own_problem own;

	spec.v_in_k = true;
	paged_init(&problem, &spec);
	own_init(&own, &problem, 0, 3, 70, 0, 16);
	refused(&own.copy, FA_PAGED_WRITE_OWN, "V is the front of K");
	copy = own.copy;
	--copy.n_pages;
	refused(&copy, FA_PAGED_READ_OWN, "have no place");
	copy = own.copy;
	copy.page_tokens = 0;
	refused(&copy, FA_PAGED_READ_OWN, "page_tokens 0");
	copy = own.copy;
	++copy.n_layers;
	refused(&copy, FA_PAGED_READ_OWN, "are not below 3");
	copy.layer = -1;
	copy.n_layers = 1;
	refused(&copy, FA_PAGED_READ_OWN, "are not below 3");
	copy = own.copy;
	copy.n_layers = 0;
	refused(&copy, FA_PAGED_READ_OWN, "n_layers 0");
	copy = own.copy;
	copy.k_data = copy.v_data = NULL;
	refused(&copy, FA_PAGED_READ_OWN, "neither K nor V");
	own.length = 20000;
	own.cu_new[1] = own.length - own.before;
	refused(&own.copy, FA_PAGED_READ_OWN, "the table has");
	own_deinit(&own);
	paged_deinit(&problem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both_ways),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
