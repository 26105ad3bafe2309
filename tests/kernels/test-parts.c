/*
 * Tests requests whose tiles split the keys. Results are right with every mask, type and grouping
 * of heads, and bit by bit the same in any order of tiles and for any number of processors. A block
 * has no result if one of its splits was given up.
 */
#include "tests/kernels/problem.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* The simulated number of processors; 0: the real one. */
static long seeming_processors;

/* glibc's own name of sysconf(). */
long __sysconf(int name);

/* ThreadSanitizer calls sysconf() before its own set-up, when instrumented code would crash. */
#if defined(__has_attribute)
#if __has_attribute(disable_sanitizer_instrumentation)
__attribute__((disable_sanitizer_instrumentation))
#endif
#endif
long sysconf(int name)
{
	return name == _SC_NPROCESSORS_ONLN && seeming_processors ? seeming_processors
	                                                          : __sysconf(name);
}

static const struct problem_spec varied[] = {
	/* Few rows of a KV head. */
	{ .heads = 1, .kv_heads = 1, .n_q = 1, .n_k = 5000 },
	{ .heads = 8, .kv_heads = 1, .n_q = 1, .n_k = 4099, .sinks = true, .causal = true },
	{ .heads = 6, .kv_heads = 3, .n_q = 3, .n_k = 3001, .causal = true, .alibi = true },
	{ .heads = 5, .kv_heads = 5, .batch = 2, .n_q = 2, .n_k = 2500, .softcap = 1.5f },
	{ .heads = 2, .kv_heads = 2, .n_q = 4, .n_k = 4000, .left_1 = 2400, .causal = true },
	{ .heads = 2, .kv_heads = 1, .n_q = 4, .n_k = 6000, .left_1 = 2300, .right_1 = 2 },
	{ .heads = 2, .kv_heads = 2, .n_q = 2, .n_k = 2048, .right_1 = 1, .sinks = true },
	/* Rows without keys, in some sequences and in none. */
	{ .heads = 4,
	  .kv_heads = 2,
	  .batch = 5,
	  .ragged = true,
	  .lengths_q = { 2, 0, 3, 4, 1 },
	  .lengths_k = { 2600, 900, 0, 2, 3333 },
	  .causal = true,
	  .sinks = true },
	{ .heads = 3,
	  .kv_heads = 3,
	  .batch = 3,
	  .ragged = true,
	  .lengths_q = { 4, 1, 2 },
	  .lengths_k = { 3, 4500, 1 },
	  .causal = true },
	/* Many rows take the other kernel, or both kernels. */
	{ .heads = 13, .kv_heads = 1, .n_q = 1, .n_k = 4321, .sinks = true },
	{ .heads = 16, .kv_heads = 1, .n_q = 5, .n_k = 2222, .causal = true, .alibi = true },
	{ .heads = 1, .kv_heads = 1, .n_q = 200, .n_k = 2300, .causal = true },
	{ .heads = 2, .kv_heads = 2, .n_q = 50, .n_k = 3000, .left_1 = 2100, .softcap = 2 },
	{ .heads = 2, .kv_heads = 1, .n_q = 40, .n_k = 4500, .left_1 = 2200, .right_1 = 17 },
	{ .heads = 2,
	  .kv_heads = 1,
	  .batch = 4,
	  .ragged = true,
	  .lengths_q = { 30, 0, 101, 3 },
	  .lengths_k = { 3000, 5, 60, 2400 },
	  .causal = true,
	  .sinks = true },
	{ .heads = 12, .kv_heads = 1, .n_q = 1, .n_k = 4321, .sinks = true },
	{ .heads = 8, .kv_heads = 2, .n_q = 3, .n_k = 4400, .causal = true, .alibi = true },
	{ .heads = 11, .kv_heads = 1, .n_q = 1, .n_k = 5000, .left_1 = 2300 },
};

#define N_VARIED (sizeof(varied) / sizeof(varied[0]))

static struct problem_spec varied_spec(size_t i, size_t which)
{
	struct problem_spec spec = varied[i];

	spec.dtype = (enum fa_attention_dtype)(1 + (i + which) % 3);
	spec.batch = spec.batch ? spec.batch : 1;
	spec.head_dim = which % 2 ? 24 : 16;
	spec.head_dim_v = which % 2 ? 16 : 40;
	spec.layout = (enum problem_layout)((i + which) % PROBLEM_LAYOUTS);
	return spec;
}

static void assert_has_parts(const struct problem *problem, const struct fa_cpu_isa *isa)
{
	if (fa_cpu_attention_workspace_bytes(isa, &problem->params) == 0)
		fail_msg("%s on %s has no parts", problem_describe(problem), fa_cpu_isa_name(isa));
}

static void test_results(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t i = 0; i < N_VARIED; i++) {
		for (size_t which = 0; which < 3; which++) {
			struct problem_spec spec = varied_spec(i, which);
			struct problem problem;

			spec.no_lse = which == 2 && i % 4 == 0;
			problem_init(&problem, &spec);
			for (size_t n = 0; isas[n]; n++) {
				assert_has_parts(&problem, isas[n]);
				problem_run(&problem, isas[n], PROBLEM_SHUFFLED);
				problem_check(&problem, isas[n]);
			}
			problem_deinit(&problem);
		}
	}
}

/* Scores vanish beside another split's maximum, or stand alone. */
static void test_large_scores(void **state)
{
	for (size_t i = 0; i < N_VARIED; i++) {
		struct problem_spec spec = varied_spec(i, 1);

		spec.dtype = FA_ATTENTION_F32;
		spec.magnitude = 6;
		spec.tolerance = 4;
		problem_test(&spec);
	}
}

static void test_same_to_the_bit(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();

	for (size_t i = 0; i < N_VARIED; i++) {
		struct problem_spec spec = varied_spec(i, 0);
		struct problem problem;
		const struct problem_memory *out = &problem.out, *lse = &problem.lse;

		problem_init(&problem, &spec);
		for (size_t n = 0; isas[n]; n++) {
			char *once = malloc(out->bytes), *once_lse = malloc(lse->bytes);

			problem_run(&problem, isas[n], PROBLEM_ASCENDING);
			memcpy(once, out->data, out->bytes);
			memcpy(once_lse, lse->data, lse->bytes);
			for (int run = 0; run < 3; run++) {
				problem_run(&problem, isas[n],
				            run ? PROBLEM_SHUFFLED : PROBLEM_DESCENDING);
				assert_memory_equal(out->data, once, out->bytes);
				assert_memory_equal(lse->data, once_lse, lse->bytes);
			}
			free(once);
			free(once_lse);
		}
		problem_deinit(&problem);
	}
}

/* Runs in its own process, as the number of processors is determined once. Returns the number of
 * tiles. */
static int64_t run_with_processors(long n, struct problem *problem, const struct fa_cpu_isa *isa,
                                   char *shared)
{
	int64_t tiles;
	int status;
	pid_t pid;

	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		seeming_processors = n;
		problem_run(problem, isa, PROBLEM_ASCENDING);
		tiles = fa_cpu_attention_tiles(isa, &problem->params);
		memcpy(shared, &tiles, sizeof(tiles));
		memcpy(shared + 64, problem->out.data, problem->out.bytes);
		memcpy(shared + 64 + problem->out.bytes, problem->lse.data, problem->lse.bytes);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	memcpy(&tiles, shared, sizeof(tiles));
	return tiles;
}

/* Must run before this process first reads the number of processors. */
static void test_processors(void **state)
{
	static const long counts[] = { 1, 7, 300 };
	const struct fa_cpu_isa *const *isas = problem_isas();
	bool cut_otherwise = false;

	for (size_t i = 0; i < N_VARIED; i++) {
		struct problem_spec spec = varied_spec(i, 1);
		struct problem problem;
		size_t bytes;
		char *shared, *once;

		problem_init(&problem, &spec);
		bytes = 64 + problem.out.bytes + problem.lse.bytes;
		once = malloc(bytes);
		shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		              0);
		assert_ptr_not_equal(shared, MAP_FAILED);
		for (size_t n = 0; isas[n]; n++) {
			for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
				memset(shared, 0, bytes);
				run_with_processors(counts[c], &problem, isas[n], shared);
				if (c == 0)
					memcpy(once, shared, bytes);
				cut_otherwise |= memcmp(once, shared, 64) != 0;
				assert_memory_equal(once + 64, shared + 64, bytes - 64);
			}
		}
		munmap(shared, bytes);
		free(once);
		problem_deinit(&problem);
	}
	/* Some numbers of processors gave tiles of different numbers of heads. */
	assert_true(cut_otherwise);
}

/* A NaN key in some split changes the rows that see it, and no others. */
static void test_hidden_nan(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	static const size_t causal[] = { 2, 4, 10, 11 };

	for (size_t i = 0; i < sizeof(causal) / sizeof(causal[0]); i++) {
		struct problem_spec spec = varied_spec(causal[i], 0);
		struct problem problem;
		const struct fa_attention_params *params = &problem.params;
		double *exact = malloc(sizeof(*exact) * (size_t)spec.head_dim_v);

		problem_init(&problem, &spec);
		/* All rows see the last but one key, except earlier ones. */
		for (int32_t h = 0; h < params->kv_heads; h++) {
			int64_t at = reference_k_at(params, &params->v, 0, spec.n_k - 2, h);

			for (int32_t c = 0; c < spec.head_dim_v; c++)
				reference_set(spec.dtype, params->v.data, at + c, NAN);
		}
		for (size_t n = 0; isas[n]; n++) {
			int64_t clean = 0, hit = 0;

			assert_has_parts(&problem, isas[n]);
			problem_run(&problem, isas[n], PROBLEM_SHUFFLED);
			for (int64_t row = 0; row < spec.n_q * spec.heads; row++) {
				int64_t t = row / spec.heads;
				int32_t h = (int32_t)(row % spec.heads);
				int64_t at = reference_q_at(params, &params->out, 0, t, h);
				bool sees = reference_visible(params, 0, t, 0, spec.n_k - 2);
				double lse;

				if (!sees)
					reference_row(params, 0, t, h, false, exact, &lse);
				for (int32_t c = 0; c < spec.head_dim_v; c++) {
					double got = reference_get(spec.dtype, params->out.data,
					                           at + c);

					assert_true(sees ? isnan(got)
					                 : fabs(got - exact[c]) < 0.03);
				}
				hit += sees;
				clean += !sees;
			}
			assert_true(hit > 0 && clean > 0);
		}
		free(exact);
		problem_deinit(&problem);
	}
}

/* A block is not reduced if a split did not finish. */
static void test_stop(void **state)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	static const size_t one_block[] = { 0, 9 };

	for (size_t i = 0; i < 2; i++) {
		struct problem_spec spec = varied_spec(one_block[i], 0);
		const bool stop = true, go_on = false;
		struct problem problem;
		const struct fa_attention_params *params = &problem.params;
		void *scratch = aligned_alloc(64, FA_CPU_SCRATCH_BYTES_MAX);
		void *workspace = aligned_alloc(64, FA_CPU_WORKSPACE_BYTES_MAX);

		problem_init(&problem, &spec);
		for (size_t n = 0; isas[n]; n++) {
			int64_t tiles = fa_cpu_attention_tiles(isas[n], params);
			float *lse = problem.params.lse;

			assert_true(tiles > 1);
			for (int64_t stopped = 0; stopped < tiles; stopped++) {
				memset(lse, 0xff, problem.lse.bytes);
				fa_cpu_attention_begin(isas[n], params, workspace);
				for (int64_t tile = 0; tile < tiles; tile++) {
					bool ends = tile == stopped;

					assert_int_equal(fa_cpu_attention_tile(
								 isas[n], params, workspace, tile,
								 scratch, ends ? &stop : &go_on),
					                 !ends);
				}
				assert_true(isnan(lse[reference_lse_at(params, 0, 0, 0)]));
				/* Compute the tile that was stopped before. */
				assert_true(fa_cpu_attention_tile(isas[n], params, workspace,
				                                  stopped, scratch, &go_on));
				assert_false(isnan(lse[reference_lse_at(params, 0, 0, 0)]));
			}
		}
		free(scratch);
		free(workspace);
		problem_deinit(&problem);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_processors),   cmocka_unit_test(test_results),
		cmocka_unit_test(test_large_scores), cmocka_unit_test(test_same_to_the_bit),
		cmocka_unit_test(test_hidden_nan),   cmocka_unit_test(test_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
