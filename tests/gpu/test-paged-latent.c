/* Compares decode of MLA by compute capability 9.0's kernels (sm90/latent.h) with fp64: V is the front
 * of K, one KV head, up to 128 query heads. Work is divided over different numbers of blocks.
 *   test-paged-latent [--seed N] [--random N] [--small] [--variant NAME]
 * Skips (77) without such a GPU. */
#include "tests/gpu/draw.h"
#include "tests/gpu/paged-fixture.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the variant of pages under test. */
static struct paged_spec usual = {
	.dtype = FA_ATTENTION_BF16,
	.batch = 3,
	.heads = 16,
	.kv_heads = 1,
	.head_dim = 576,
	.head_dim_v = 512,
	.page_tokens = 64,
	.v_in_k = true,
	.n_new = { 1, 2, 1 },
	.lengths = { 328, 18, 163 },
	.causal = true,
};

/* Pages of 16-bit numbers, and of codes. */
static const struct variant {
	const char *name;
	enum fa_attention_dtype dtype;
	enum fa_paged_store store;
	bool head_scales;
} variants[] = {
	{ "bf16", FA_ATTENTION_BF16, FA_PAGED_PLAIN, false },
	{ "fp16", FA_ATTENTION_F16, FA_PAGED_PLAIN, false },
	{ "e4m3", FA_ATTENTION_BF16, FA_PAGED_E4M3, false },
	{ "e4m3-heads", FA_ATTENTION_BF16, FA_PAGED_E4M3, true },
};

static void judge_latent(const struct paged_problem *problem, const struct fa_cuda_paged_plan *plan,
                         uint32_t sms)
{
	if (!plan->decode || plan->decode->kind != FA_CUDA_PAGED_LATENT)
		paged_fail("%s is not computed as MLA", paged_describe(problem));
	if (plan->decode_grid * plan->team > (sms > plan->team ? sms : plan->team))
		paged_fail("%u teams of %u blocks on %u multiprocessors", plan->decode_grid,
		           plan->team, sms);
}

static void check(const struct paged_spec *spec)
{
	const struct fa_cuda_chip *chip = paged_gpu_chip(paged_device_gpu);
	const int32_t sms[] = { chip->sms, 1, 2 + (int32_t)problem_random(40) };
	struct paged_problem problem;
	struct paged_device device;

	if (!fa_draw())
		return;
	paged_init(&problem, spec);
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	for (size_t i = 0; i < sizeof(sms) / sizeof(sms[0]); i++) {
		struct fa_cuda_chip other = *chip;

		other.sms = sms[i];
		paged_check_on(&device, &problem, &other, judge_latent, (uint32_t)sms[i]);
	}
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

static void heads(void)
{
	static const int32_t heads[] = { 1, 3, 16, 24, 33, 64, 100, 128 };

	for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
		struct paged_spec spec = usual;

		spec.heads = heads[i];
		spec.n_new[0] = 1 + i % 2;
		spec.n_new[1] = 1 + i % 3;
		spec.gaps = (int32_t)(i % 2);
		spec.layer_major = i % 2;
		check(&spec);
	}
}

/* The ends of tiles and pairs of tiles, of strips and pages; no keys, fewer keys than rows. */
static void lengths(void)
{
	static const uint32_t lengths[] = { 0,  1,   2,   15,  16,  17,  63,  64,  65,
		                            66, 127, 128, 129, 191, 192, 193, 257, 321 };
	static const int32_t pages[] = { 64, 16, 32, 48, 128, 256 };

	for (int i = 0; i < 6; i++) {
		struct paged_spec spec = usual;

		spec.page_tokens = pages[i];
		for (int b = 0; b < 3; b++) {
			spec.lengths[b] = lengths[3 * i + b];
			spec.n_new[b] = 1 + (uint32_t)(i + b) % 2;
		}
		check(&spec);
		spec.heads = 64;
		spec.n_new[1] = 5;
		spec.first[2] = spec.lengths[2] / 2;
		spec.no_lse = i % 2;
		check(&spec);
	}
}

static void masks(void)
{
	for (int i = 0; i < 10; i++) {
		struct paged_spec spec = usual;

		spec.heads = i % 3 == 1 ? 64 : 20;
		spec.page_tokens = 16 << i % 4;
		spec.n_new[0] = 1 + (uint32_t)i % 4;
		spec.n_new[2] = i % 5 == 2 ? 20 : 2;
		spec.first[0] = i % 3 == 2 ? 70 + 13 * (uint32_t)i : 0;
		spec.left_1 = i % 4 == 1 ? 1 + 31 * i : 0;
		spec.right_1 = i % 4 == 3 ? 3 : 0;
		spec.causal = i % 4 != 3;
		spec.sinks = i % 3 == 0;
		spec.broken = i % 2 ? 4 : 0;
		spec.chunk = i == 8 ? 100 : 0;
		check(&spec);
	}
}

/* Maxima rise from tile to tile. */
static void raised(void)
{
	/* Codes' scales have no such range. */
	for (int i = 0; i < 4 && usual.store == FA_PAGED_PLAIN; i++) {
		struct paged_spec spec = usual;

		spec.n_new[0] = 1 + (uint32_t)i % 2;
		spec.lengths[0] = 700;
		spec.heads = i < 2 ? 16 : 64;
		spec.raised = true;
		check(&spec);
	}
}

/* Many sequences, long sequences, and reruns. */
static void many(void)
{
	for (int i = 0; i < 4; i++) {
		struct paged_spec spec = usual;

		spec.batch = paged_options.small ? 5 : 16;
		for (int32_t b = 0; b < spec.batch; b++) {
			spec.n_new[b] = 1 + (uint32_t)(i + b) % 2;
			spec.lengths[b] = 40 +
			                  problem_random(paged_options.small || i < 2 ? 300 : 1000);
		}
		if (!paged_options.small)
			spec.lengths[3] = i < 2 ? 2000 : 9000;
		spec.heads = i < 2 ? 128 : 16;
		check(&spec);
	}
}

static void random_one(uint64_t seed)
{
	struct paged_spec spec = usual;

	problem_seed(seed);
	spec.batch = (int32_t)problem_pick(1, 6);
	spec.heads = (int32_t)(problem_one_in(2) ? problem_pick(1, 128) : 16u << problem_random(4));
	spec.page_tokens = (int32_t)(16 * (problem_one_in(3) ? problem_pick(1, 16)
	                                                     : 1u << problem_pick(0, 4)));
	spec.layer_major = problem_one_in(2);
	spec.gaps = (int32_t)problem_random(2);
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = problem_one_in(2) ? 1 : problem_pick(1, 6);
		spec.lengths[b] = spec.n_new[b] + problem_pick(0, problem_one_in(3) ? 600 : 200);
		spec.first[b] = problem_one_in(4) ? problem_pick(0, spec.lengths[b]) : 0;
	}
	spec.causal = !problem_one_in(4);
	spec.left_1 = problem_one_in(3) ? problem_pick(1, 300) : 0;
	spec.right_1 = problem_one_in(3) ? problem_pick(1, 60) : 0;
	spec.sinks = problem_one_in(4);
	spec.no_lse = problem_one_in(8);
	spec.broken = problem_one_in(4) ? (int32_t)problem_pick(1, 6) : 0;
	check(&spec);
}

static void reruns(void)
{
	struct paged_spec spec = usual;
	struct paged_problem problem;
	struct paged_gpu_plan plan;
	struct paged_device device;
	void *once;

	if (!fa_draw())
		return;
	spec.heads = 64;
	spec.lengths[0] = paged_options.small ? 700 : 4000;
	paged_init(&problem, &spec);
	once = malloc(problem.out_bytes);
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	paged_plan(&device, &problem, NULL, &plan);
	paged_device_run(&device, &problem, &plan);
	memcpy(once, problem.out, problem.out_bytes);
	for (int i = 0; i < (paged_options.small ? 5 : 1000); i++) {
		paged_gpu_launch(paged_device_gpu, &plan, &device.request);
		if (i % 20 && !paged_options.small)
			continue;
		paged_device_run(&device, &problem, &plan);
		if (memcmp(once, problem.out, problem.out_bytes) != 0)
			paged_fail("run %d differs", i);
	}
	paged_passed++;
	paged_gpu_plan_free(paged_device_gpu, &plan);
	paged_device_deinit(&device);
	paged_deinit(&problem);
	free(once);
}

static void report(const struct variant *variant, const char *part)
{
	char text[64];

	snprintf(text, sizeof(text), "%s %s", variant->name, part);
	paged_report(text);
}

static void run_variant(const struct variant *variant)
{
	usual.dtype = variant->dtype;
	usual.store = variant->store;
	usual.head_scales = variant->head_scales;
	lengths();
	report(variant, "lengths");
	heads();
	report(variant, "heads");
	masks();
	report(variant, "masks");
	raised();
	report(variant, "raised");
	many();
	report(variant, "many");
	reruns();
	report(variant, "reruns");
	for (int i = 0; i < paged_options.count; i++)
		random_one(paged_options.seed + (uint64_t)i);
	report(variant, "random");
}

static const char *only; /* NULL: all variants */

static void run(void)
{
	if (paged_gpu_chip(paged_device_gpu)->arch != 90)
		exit(77);
	for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
		if (!only || !strcmp(only, variants[i].name))
			run_variant(&variants[i]);
}

int main(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i++)
		if (!strcmp(argv[i], "--variant"))
			only = argv[i + 1];
	return paged_main(argc, argv, run);
}
