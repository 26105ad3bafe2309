/* Paged requests on the CPU's kernels, for tests with cmocka. See paged-problem.h. */
#include "tests/kernels/paged-problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define POISON 0xff

void paged_fail(const char *format, ...)
{
	char text[2048];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fail_msg("%s", text);
	abort();
}

void paged_run(const struct fa_cpu_isa *isa, const struct fa_paged_request *request)
{
	size_t scratch_bytes = fa_cpu_paged_scratch_bytes(isa, request);
	size_t workspace_bytes = fa_cpu_paged_workspace_bytes(isa, request);
	void *scratch = aligned_alloc(64, (scratch_bytes + 127) / 64 * 64);
	void *workspace = aligned_alloc(64, (workspace_bytes + 127) / 64 * 64);
	const bool go_on = false;
	int64_t *numbers, tiles;

	assert_true(scratch_bytes <= FA_CPU_SCRATCH_BYTES_MAX);
	memset(scratch, POISON, scratch_bytes);
	memset(workspace, POISON, workspace_bytes);
	tiles = fa_cpu_paged_begin(isa, request, workspace);
	numbers = malloc(((size_t)tiles + 1) * sizeof(*numbers));
	for (int64_t i = 0; i < tiles; i++)
		numbers[i] = i;
	for (int64_t i = tiles - 1; i > 0; i--) {
		int64_t j = (int64_t)problem_random((uint64_t)i + 1), number = numbers[i];

		numbers[i] = numbers[j];
		numbers[j] = number;
	}
	for (int64_t i = 0; i < tiles; i++)
		assert_true(
			fa_cpu_paged_tile(isa, request, workspace, numbers[i], scratch, &go_on));
	free(numbers);
	free(workspace);
	free(scratch);
}

void paged_check(struct paged_problem *problem, const struct fa_cpu_isa *isa)
{
	const char *name = fa_cpu_isa_name(isa);
	bool dots = problem_rounds_weights(isa, problem->spec.dtype);
	void *once = malloc(problem->out_bytes + 1);

	for (int run = 0; run < 2; run++) {
		paged_poison(problem);
		paged_run(isa, &problem->request);
		if (run == 0)
			memcpy(once, problem->out, problem->out_bytes);
	}
	if (memcmp(once, problem->out, problem->out_bytes) != 0)
		paged_fail("%s on %s: two runs differ", paged_describe(problem), name);
	free(once);
	paged_judge(problem, name, dots ? PAGED_ROUNDS_WEIGHTS : PAGED_ROUNDS_OUTPUT);
}

void paged_test(const struct paged_spec *spec)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	struct paged_problem problem;

	paged_init(&problem, spec);
	for (size_t i = 0; isas[i]; i++)
		paged_check(&problem, isas[i]);
	paged_deinit(&problem);
}
