#include "tests/gpu/paged-fixture.h"

#include "tests/gpu/draw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct paged_options paged_options = { .count = 200, .every = 1 };
int paged_passed, paged_failed;

const enum fa_attention_dtype paged_dtypes[3] = { FA_ATTENTION_F32, FA_ATTENTION_F16,
	                                          FA_ATTENTION_BF16 };

const struct paged_spec paged_usual = {
	.dtype = FA_ATTENTION_BF16,
	.batch = 3,
	.heads = 8,
	.kv_heads = 2,
	.head_dim = 128,
	.head_dim_v = 128,
	.page_tokens = 64,
	.n_new = { 1, 5, 129 },
	.lengths = { 1328, 18, 463 },
	.causal = true,
};

struct paged_spec paged_way_of(const struct paged_spec *spec, int i)
{
	struct paged_spec way = *spec;

	way.dtype = i / 4 % 2 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16;
	way.store = i % 2 ? FA_PAGED_INT8 : FA_PAGED_E4M3;
	way.head_scales = i / 2 % 2;
	return way;
}

static void parse(int argc, char **argv)
{
	paged_options.seed = fa_draw_seed();
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--small"))
			paged_options.small = true;
		else if (i + 1 < argc && !strcmp(argv[i], "--every"))
			paged_options.every = atoi(argv[++i]);
		else if (i + 1 < argc && !strcmp(argv[i], "--seed"))
			paged_options.seed = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--random"))
			paged_options.count = atoi(argv[++i]);
	}
	if (paged_options.every < 1)
		paged_options.every = 1;
}

int paged_main(int argc, char **argv, void (*run)(void))
{
	parse(argc, argv);
	paged_device_gpu = paged_gpu_open();
	if (!paged_device_gpu)
		return 77;
	printf("%s, seed %llu\n", paged_gpu_name(paged_device_gpu),
	       (unsigned long long)paged_options.seed);
	problem_seed(paged_options.seed);
	paged_report(NULL);
	run();
	printf("%d passed, %d failed\n", paged_passed, paged_failed);
	paged_gpu_close(paged_device_gpu);
	return paged_failed ? 1 : 0;
}

void paged_report(const char *part)
{
	static int passed_before, failed_before;
	static double seconds_before;
	struct timespec now;
	double seconds;

	clock_gettime(CLOCK_MONOTONIC, &now);
	seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
	if (part)
		printf("%-18s %5d passed, %d failed, %.1f s\n", part, paged_passed - passed_before,
		       paged_failed - failed_before, seconds - seconds_before);
	fflush(stdout);
	passed_before = paged_passed;
	failed_before = paged_failed;
	seconds_before = seconds;
}

void paged_plan(struct paged_device *device, const struct paged_problem *problem,
                const struct fa_cuda_chip *chip, struct paged_gpu_plan *ret_plan)
{
	chip = chip ? chip : paged_gpu_chip(paged_device_gpu);
	if (paged_gpu_plan(paged_device_gpu, chip, &device->request, ret_plan) < 0)
		paged_fail("%s: no plan", paged_describe(problem));
}

void paged_check_on(struct paged_device *device, struct paged_problem *problem,
                    const struct fa_cuda_chip *chip, paged_judge_plan_fn judge_plan,
                    uint32_t expected)
{
	void *volatile once = malloc(problem->out_bytes + 1);
	struct paged_gpu_plan plan = { .blob = 0 };
	bool latent;
	char by[192];

	if (setjmp(paged_failure)) {
		paged_failed++;
	} else {
		paged_plan(device, problem, chip, &plan);
		if (judge_plan)
			judge_plan(problem, &plan.plan, expected);
		snprintf(by, sizeof(by), "%s, %s, %d SMs",
		         plan.plan.decode ? plan.plan.decode->symbol : "-",
		         plan.plan.forward ? plan.plan.forward->symbol : "-", chip->sms);
		latent = plan.plan.decode && plan.plan.decode->kind == FA_CUDA_PAGED_LATENT;
		paged_device_run(device, problem, &plan);
		memcpy(once, problem->out, problem->out_bytes);
		paged_device_run(device, problem, &plan);
		if (memcmp(once, problem->out, problem->out_bytes) != 0)
			paged_fail("%s on %s: two runs differ", paged_describe(problem), by);
		paged_judge(problem, by,
		            plan.plan.wide_rows || (latent && problem->spec.store != FA_PAGED_PLAIN)
		                    ? PAGED_ROUNDS_KEYS
		                    : PAGED_ROUNDS_WEIGHTS_FAST);
		paged_passed++;
	}
	paged_gpu_plan_free(paged_device_gpu, &plan);
	free(once);
}
