/*
 * Compares paged decode kernels over codes with fp64 over the decoded values
 * (tests/kernels/paged-problem.h), with poison in everything that is no visible token.
 *
 * test-paged-codes [--seed N] [--random N] [--every N] [--small]
 *
 * Skips (77) without a GPU.
 */
#include "tests/gpu/draw.h"
#include "tests/gpu/paged-device.h"
#include "tests/kernels/paged-problem.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --small: fewer tokens and variants, for the emulator. */
static bool small;
static int every = 1, passed, failed;

/*
 * Runs per kernel of compute capability 9.0: [log2 of the head dim - 6][fragments of rows - 1]
 * [store - 1][table in the launch].
 */
static int ran[3][2][2][2];

/* Kernels of compute capability 9.0 have exactly these head dims. */
static int dim_index(const struct paged_spec *spec)
{
	if (spec->head_dim != spec->head_dim_v)
		return -1;
	return spec->head_dim == 64    ? 0
	       : spec->head_dim == 128 ? 1
	       : spec->head_dim == 256 ? 2
	                               : -1;
}

/* Sets one of eight ways: E4M3 or INT8, scales of tokens or of heads, bf16 or fp16. */
static void set_way(struct paged_spec *spec, int i)
{
	spec->store = i % 2 ? FA_PAGED_INT8 : FA_PAGED_E4M3;
	spec->head_scales = i / 2 % 2;
	spec->dtype = i / 4 % 2 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16;
}

static void judge_kernel(const struct paged_problem *problem, const struct fa_cuda_chip *chip,
                         const struct fa_cuda_paged_plan *plan)
{
	const int dim = dim_index(&problem->spec);
	const bool special = dim >= 0 && chip->arch == 90 && !chip->portable_paged &&
	                     chip->shared_bytes_max > 200000;

	/* A step without new tokens has no decode. */
	if (!plan->decode)
		return;
	if (plan->decode->kind == FA_CUDA_PAGED_LATENT) {
		if (problem->spec.head_dim != 576 || problem->spec.head_dim_v != 512 ||
		    !problem->spec.v_in_k || problem->spec.store != FA_PAGED_E4M3 ||
		    chip->arch != 90)
			paged_fail("%s: %s computes MLA only", paged_describe(problem),
			           plan->decode->symbol);
		return;
	}
	if (fa_cuda_paged_kernel_is_special(plan->decode) != special)
		paged_fail("%s: %s is not what should compute it", paged_describe(problem),
		           plan->decode->symbol);
	if (special)
		ran[dim][plan->decode->rows / 16 - 1][problem->spec.store - 1]
		   [plan->decode->small]++;
}

/* Runs twice: the result must be right, and the bits the same. Keeps the result. */
static void run_on(struct paged_device *device, struct paged_problem *problem,
                   const struct fa_cuda_chip *chip)
{
	void *once = malloc(problem->out_bytes + 1);
	struct paged_gpu_plan plan = { .blob = 0 };
	char by[128];
	bool same, rounds_keys;

	if (paged_gpu_plan(paged_device_gpu, chip, &device->request, &plan) < 0)
		paged_fail("%s: no plan", paged_describe(problem));
	judge_kernel(problem, chip, &plan.plan);
	rounds_keys = plan.plan.wide_rows > 0 ||
	              (plan.plan.decode && plan.plan.decode->kind == FA_CUDA_PAGED_LATENT);
	snprintf(by, sizeof(by), "%s, %d SMs", plan.plan.decode ? plan.plan.decode->symbol : "-",
	         chip->sms);
	paged_device_run(device, problem, &plan);
	memcpy(once, problem->out, problem->out_bytes);
	paged_device_run(device, problem, &plan);
	same = memcmp(once, problem->out, problem->out_bytes) == 0;
	paged_gpu_plan_free(paged_device_gpu, &plan);
	if (!same)
		paged_fail("%s on %s: two runs differ", paged_describe(problem), by);
	paged_judge(problem, by, rounds_keys ? PAGED_ROUNDS_KEYS : PAGED_ROUNDS_WEIGHTS_FAST);
	/* paged_judge() has poisoned the result. */
	memcpy(problem->out, once, problem->out_bytes);
	free(once);
	passed++;
}

/* With the table in the launch, and poison in its place in memory, the bits must be the same. */
static void run_carried(struct paged_device *device, struct paged_problem *problem,
                        const struct fa_cuda_chip *chip)
{
	void *once = malloc(problem->out_bytes + 1);
	struct paged_gpu_plan plan;
	bool carries;

	memcpy(once, problem->out, problem->out_bytes);
	device->step.host_table = problem->table;
	if (paged_gpu_plan(paged_device_gpu, chip, &device->request, &plan) < 0)
		paged_fail("%s: no plan", paged_describe(problem));
	carries = plan.plan.inline_table > 0;
	paged_gpu_plan_free(paged_device_gpu, &plan);
	if (carries) {
		paged_gpu_fill(paged_device_gpu, device->table, 0xfe,
		               problem->step.table_entries * 4);
		run_on(device, problem, chip);
		if (memcmp(once, problem->out, problem->out_bytes) != 0)
			paged_fail("%s: other bits with the table in the launch",
			           paged_describe(problem));
		paged_gpu_upload(paged_device_gpu, device->table, problem->table,
		                 problem->step.table_entries * 4);
	}
	device->step.host_table = NULL;
	free(once);
}

/* @sms: number of SMs to plan for; 0: the chip's own. */
static void check_on(const struct paged_spec *given, int32_t sms)
{
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_spec spec = *given;
	struct paged_problem problem;
	struct paged_device device;
	static int number;

	if (number++ % every || !fa_draw())
		return;
	if (sms > 0)
		chip.sms = sms;
	for (int32_t b = 0; small && sms == 0 && b < spec.batch; b++)
		if (spec.lengths[b] > spec.n_new[b] + 400)
			spec.lengths[b] = spec.n_new[b] + 300 + spec.lengths[b] % 97;
	for (int32_t b = 0; b < spec.batch; b++)
		if (spec.first[b] > spec.lengths[b])
			spec.first[b] = spec.lengths[b];
	paged_init(&problem, &spec);
	if (setjmp(paged_failure)) {
		failed++;
		return;
	}
	paged_device_init(&device, &problem);
	run_on(&device, &problem, &chip);
	run_carried(&device, &problem, &chip);
	for (int i = 0; !small && i < 3; i++) {
		chip.sms = i ? 2 + (int32_t)problem_random(300) : 1;
		chip.portable_paged = i == 2;
		run_on(&device, &problem, &chip);
	}
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

static void check(const struct paged_spec *given)
{
	check_on(given, 0);
}

static const struct paged_spec usual = {
	.batch = 3,
	.heads = 8,
	.kv_heads = 2,
	.head_dim = 128,
	.head_dim_v = 128,
	.page_tokens = 64,
	.n_new = { 1, 1, 1 },
	.lengths = { 1000, 65, 130 },
	.causal = true,
};

/*
 * Each head dim and form of codes on all kinds of pages: a copy's strips lie in one page or in
 * several, and tiles start within a page.
 */
static void ways(void)
{
	static const int32_t dims[] = { 128, 64, 256 }, pages[] = { 64, 16, 32, 128, 48, 256, 80 };

	for (int i = 0; i < 24; i++) {
		struct paged_spec spec = usual;

		set_way(&spec, i);
		spec.head_dim = spec.head_dim_v = dims[i / 8];
		spec.page_tokens = pages[i % 7];
		spec.layer_major = i % 2;
		spec.gaps = i % 3;
		/* Windows start anywhere, also within a strip. */
		spec.left_1 = i % 4 == 3 ? 100 + 7 * i : 0;
		spec.first[0] = i % 5 == 2 ? 37 + 48 * (uint32_t)(i % 7) : 0;
		spec.lengths[1] = 33 + 16 * (uint32_t)i;
		check(&spec);
	}
}

/* Up to 16 new tokens: one fragment of rows, two, and several parts. */
static void rows(void)
{
	static const int32_t groups[] = { 4, 1, 3, 5, 16, 7, 2, 11 };
	static const uint32_t n_new[] = { 1, 16, 5, 7, 1, 2, 16, 3 };

	for (int i = 0; i < 8; i++) {
		struct paged_spec spec = usual;

		set_way(&spec, i);
		spec.head_dim = spec.head_dim_v = i % 4 == 3 ? 64 : i % 4 == 2 ? 256 : 128;
		spec.heads = spec.kv_heads * groups[i];
		spec.n_new[0] = n_new[i];
		spec.n_new[2] = 1 + (uint32_t)i;
		spec.lengths[0] = 300;
		spec.causal = i != 5;
		check(&spec);
	}
}

/* NaN lies where only some rows see it. */
static void features(void)
{
	for (int i = 0; i < 16; i++) {
		struct paged_spec spec = usual;

		set_way(&spec, i);
		spec.head_dim = spec.head_dim_v = i % 5 == 3 ? 64 : i % 5 == 4 ? 256 : 128;
		spec.page_tokens = 16 << i % 4;
		spec.n_new[0] = 4 + (uint32_t)(i % 3);
		spec.n_new[2] = i % 2 ? 9 : 1;
		spec.lengths[0] = 250;
		spec.softcap = i % 4 == 0 ? 20 : 0;
		spec.alibi = i % 4 == 1;
		spec.sinks = i % 3 == 1;
		spec.tree = i % 4 == 2;
		spec.left_1 = i % 5 == 1 ? 1 + 5 * i : 0;
		spec.right_1 = i % 7 == 6 ? 3 : 0;
		spec.causal = i % 7 != 6;
		spec.scale = i == 11 ? -0.1f : 0;
		spec.no_lse = i == 9;
		spec.broken = i % 3 ? 3 + i % 5 : 0;
		check(&spec);
	}
}

/* As MLA: V is the front of K, of one KV head; and head dims of which K's rows are padded. */
static void wide(void)
{
	for (int i = 0; i < 12; i++) {
		struct paged_spec spec = usual;

		set_way(&spec, i);
		spec.v_in_k = i % 4 != 3;
		spec.head_dim = i % 3 == 2 ? 512 : 576;
		spec.head_dim_v = i == 9 ? 80 : 512;
		if (i == 6 || i == 7)
			spec.head_dim = spec.head_dim_v = 128;
		spec.kv_heads = i % 5 == 4 ? 2 : 1;
		spec.heads = spec.kv_heads * (i % 2 ? 3 : 16);
		spec.page_tokens = 16 << i % 4;
		spec.n_new[0] = 1 + (uint32_t)i % 2;
		spec.n_new[2] = i % 4 == 1 ? 9 : 1;
		spec.lengths[0] = 230;
		spec.first[0] = i % 5 == 2 ? 37 : 0;
		spec.tree = i % 4 == 1;
		spec.broken = i % 3 == 1 ? 3 : 0;
		check(&spec);
	}
}

static void edges(void)
{
	static const int32_t dims[][2] = { { 128, 64 }, { 80, 80 }, { 192, 128 } };
	struct paged_spec spec = usual;

	spec.batch = 8;
	spec.n_new[1] = 1, spec.lengths[1] = 0;
	spec.n_new[2] = 0, spec.lengths[2] = 100;
	spec.n_new[3] = 5, spec.lengths[3] = 3;
	spec.n_new[4] = 1, spec.lengths[4] = 64, spec.first[4] = 64;
	spec.n_new[5] = 1, spec.lengths[5] = 1;
	spec.n_new[6] = 2, spec.lengths[6] = 129, spec.first[6] = 127;
	spec.n_new[7] = 1, spec.lengths[7] = 64;
	for (int i = 0; i < 4; i++) {
		set_way(&spec, i);
		spec.sinks = i % 2;
		spec.head_dim = spec.head_dim_v = i == 3 ? 64 : i == 2 ? 256 : 128;
		check(&spec);
	}
	spec = usual;
	set_way(&spec, 0);
	spec.batch = 1;
	spec.n_new[0] = 0;
	check(&spec);
	for (int i = 0; i < 3; i++) {
		spec = usual;
		set_way(&spec, i);
		spec.head_dim = dims[i][0];
		spec.head_dim_v = dims[i][1];
		check(&spec);
	}
}

/* Some sequences have more tiles than a warp looks up at once; others have fewer than there are
 * warps. */
static void turns(void)
{
	static const uint32_t lengths[] = { 3, 1900, 70, 64, 129, 1, 200, 330, 65, 2, 128 };

	for (int i = 0; i < 4; i++) {
		struct paged_spec spec = usual;

		set_way(&spec, i);
		spec.head_dim = spec.head_dim_v = i == 2 ? 64 : 128;
		spec.kv_heads = 1;
		spec.heads = i == 3 ? 20 : 4;
		spec.batch = sizeof(lengths) / sizeof(lengths[0]); /* more than a launch carries */
		for (int32_t b = 0; b < spec.batch; b++) {
			spec.n_new[b] = 1;
			spec.lengths[b] = lengths[b];
		}
		check_on(&spec, 1 + i % 2);
	}
}

static bool one_in(uint64_t n)
{
	return problem_random(n) == 0;
}

static uint32_t pick(uint32_t low, uint32_t high)
{
	return low + (uint32_t)problem_random(high - low + 1);
}

static void random_one(uint64_t seed)
{
	struct paged_spec spec = { 0 };

	problem_seed(seed);
	set_way(&spec, (int)problem_random(8));
	spec.batch = (int32_t)pick(1, 10);
	spec.kv_heads = (int32_t)pick(1, 3);
	spec.heads = spec.kv_heads * (int32_t)pick(1, 16);
	spec.head_dim = spec.head_dim_v = 64 << problem_random(3);
	spec.page_tokens = (int32_t)(16 * (one_in(2) ? pick(1, 16) : 1u << pick(0, 4)));
	spec.layer_major = one_in(2);
	spec.gaps = one_in(3);
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = one_in(2) ? 1 : one_in(6) ? 0 : pick(1, 16);
		spec.lengths[b] = spec.n_new[b] + (one_in(6) ? 0 : pick(0, one_in(3) ? 3000 : 200));
		spec.first[b] = one_in(4) ? pick(0, spec.lengths[b]) : 0;
	}
	spec.causal = !one_in(4);
	spec.left_1 = one_in(4) ? pick(1, 300) : 0;
	spec.right_1 = one_in(6) ? pick(1, 60) : 0;
	spec.softcap = one_in(6) ? (float)pick(1, 60) : 0;
	spec.scale = one_in(12) ? -0.1f : 0;
	spec.alibi = one_in(6);
	spec.sinks = one_in(5);
	spec.tree = one_in(5);
	spec.no_lse = one_in(8);
	spec.broken = one_in(4) ? (int32_t)pick(1, 6) : 0;
	check(&spec);
}

/* Fails if random problems missed a decode kernel, with the table carried or uploaded. */
static void judge_coverage(void)
{
	for (int dim = 0; dim < 3; dim++)
		for (int atoms = 0; atoms < (dim < 2 ? 2 : 1); atoms++)
			for (int store = 0; store < 2; store++)
				for (int carried = 0; carried < 2; carried++) {
					if (ran[dim][atoms][store][carried])
						continue;
					printf("FAIL head dim %d, %d rows, store %d, %s table: "
					       "never ran\n",
					       64 << dim, 16 * (atoms + 1), store + 1,
					       carried ? "carried" : "uploaded");
					failed++;
				}
}

static void report(const char *part)
{
	static int passed_before, failed_before;

	printf("%-9s %5d passed, %d failed\n", part, passed - passed_before,
	       failed - failed_before);
	fflush(stdout);
	passed_before = passed;
	failed_before = failed;
}

int main(int argc, char **argv)
{
	uint64_t seed = fa_draw_seed();
	int count = 200;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--small"))
			small = true;
		else if (i + 1 < argc && !strcmp(argv[i], "--every"))
			every = atoi(argv[++i]);
		else if (i + 1 < argc && !strcmp(argv[i], "--seed"))
			seed = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--random"))
			count = atoi(argv[++i]);
	}
	every = every < 1 ? 1 : every;
	paged_device_gpu = paged_gpu_open();
	if (!paged_device_gpu)
		return 77;
	printf("%s, seed %llu\n", paged_gpu_name(paged_device_gpu), (unsigned long long)seed);
	problem_seed(seed);
	ways();
	report("ways");
	rows();
	report("rows");
	features();
	report("features");
	wide();
	report("wide");
	edges();
	report("edges");
	turns();
	report("turns");
	for (int i = 0; i < count; i++)
		random_one(seed + (uint64_t)i);
	report("random");
	if (every == 1 && fa_draw_is_whole() && paged_gpu_chip(paged_device_gpu)->arch == 90)
		judge_coverage();
	printf("%d passed, %d failed\n", passed, failed);
	paged_gpu_close(paged_device_gpu);
	return failed ? 1 : 0;
}
