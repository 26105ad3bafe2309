/*
 * Tests paged kernels over sequences in pieces: a shared prefix is read once and results are right
 * against fp64; in deterministic mode a sequence's bits do not depend on the rest of the step.
 *
 * test-pieces [--seed N] [--random N] [--small]
 *
 * Skips (77) without a GPU.
 */
#include "tests/gpu/draw.h"
#include "tests/gpu/paged-fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DETERMINISTIC UINT32_MAX /* no prefixes; sequences are divided into units */
#define ANY (UINT32_MAX - 1)     /* as many prefixes as the plan wants */

static const enum fa_attention_dtype dtypes[] = { FA_ATTENTION_BF16, FA_ATTENTION_F16,
	                                          FA_ATTENTION_F32 };

static struct paged_spec usual(enum fa_attention_dtype dtype, int32_t dim)
{
	struct paged_spec spec = {
		.dtype = dtype,
		.batch = 6,
		.heads = 8,
		.kv_heads = 2,
		.head_dim = dim,
		.head_dim_v = dim,
		.page_tokens = 32,
		.causal = true,
	};

	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = 1 + (uint32_t)b % 3;
		spec.lengths[b] = 515 + 37 * (uint32_t)(b * b % 5);
		spec.prefix_of_1[b] = b > 0;
		spec.prefix_pages[b] = 16;
	}
	return spec;
}

/* ---- comparison with fp64 */

static void judge_plan(const struct paged_problem *problem, const struct fa_cuda_paged_plan *plan,
                       uint32_t prefixes)
{
	const bool splits = plan->decode && plan->decode->kind == FA_CUDA_PAGED_SPLIT;

	if (prefixes == DETERMINISTIC && plan->prefixes == 0 && (splits || !plan->decode))
		return;
	if (prefixes == ANY && splits == (plan->prefixes > 0))
		return;
	if (plan->prefixes == prefixes && splits == (prefixes > 0))
		return;
	paged_fail("%s: %u prefixes, and %s", paged_describe(problem), plan->prefixes,
	           plan->decode ? plan->decode->symbol : "nothing to decode");
}

static void check(const struct paged_spec *spec, uint32_t prefixes)
{
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_problem problem;
	struct paged_device device;
	static int reached;
	const int number = reached++;

	if (!fa_draw())
		return;
	paged_init(&problem, spec);
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	device.step.host_table = problem.table;
	/* Few SMs, so that sharing rarely pays; or the plan decides. */
	chip.share_early = prefixes != ANY || problem_one_in(2);
	chip.pack = -1; /* packed rows share prefixes otherwise (test-paged-choice) */
	chip.sms = prefixes == ANY || prefixes == DETERMINISTIC ? (int32_t)problem_pick(1, 20) : 5;
	/* The emulator is slow: alternate between the kinds of kernels. */
	for (int i = 0; i < 3; i++) {
		chip.portable_paged = i != 0;
		chip.shared_bytes_max = i == 2 ? 101376
		                               : paged_gpu_chip(paged_device_gpu)->shared_bytes_max;
		if (!paged_options.small || number % 3 == i)
			paged_check_on(&device, &problem, &chip, judge_plan, prefixes);
	}
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

static void prefixes(void)
{
	static const int32_t dims[] = { 64, 128, 256 };
	struct paged_spec spec;

	for (size_t i = 0; i < 9; i++) {
		spec = usual(dtypes[i % 3], dims[i / 3]);
		check(&spec, 1);
	}
	/* V is narrower, lies in K, or is in slices. */
	spec = usual(FA_ATTENTION_BF16, 128);
	spec.softcap = 10;
	spec.sinks = true;
	check(&spec, 1);
	spec = usual(FA_ATTENTION_F16, 128);
	spec.no_lse = true;
	spec.gaps = 1;
	spec.head_dim_v = 72;
	spec.v_in_k = true;
	check(&spec, 1);
	spec = usual(FA_ATTENTION_BF16, 64);
	spec.head_dim_v = 136;
	check(&spec, 1);
	/* Not grouped: positions matter, or some rows do not see all keys. */
	spec = usual(FA_ATTENTION_BF16, 128);
	spec.alibi = true;
	check(&spec, 0);
	spec = usual(FA_ATTENTION_BF16, 128);
	spec.left_1 = 200;
	check(&spec, 0);
	/* Trees, which lie in tails; a window that hides nothing. */
	spec = usual(FA_ATTENTION_BF16, 128);
	spec.tree = true;
	spec.left_1 = 1000;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = b == 5 ? 16 : 1 + 2 * (uint32_t)b % 5;
		spec.lengths[b] += 16;
	}
	check(&spec, 1);
	/* Row blocks hold parts of two tails. */
	spec = usual(FA_ATTENTION_F16, 128);
	spec.heads = 14;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = 5;
		spec.lengths[b] += 16;
	}
	check(&spec, 1);
	/* Sequences share all pages except those of new tokens, or drop pages. */
	spec = usual(FA_ATTENTION_BF16, 128);
	spec.heads = 2;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = 1;
		spec.lengths[b] = 513;
		spec.first[b] = 70;
	}
	check(&spec, 1);
	/*
	 * Two interleaved groups, and sequences that join none. Decode kernels leave out the sequence
	 * with many rows.
	 */
	spec = usual(FA_ATTENTION_BF16, 128);
	spec.batch = 9;
	for (int32_t b = 0; b < 9; b++) {
		spec.n_new[b] = b == 7 ? 0 : b == 6 ? 60 : 1;
		spec.lengths[b] = 600;
		spec.prefix_of_1[b] = b < 2 || b == 8 ? 0 : 1 + b % 2;
		spec.prefix_pages[b] = 16;
	}
	check(&spec, 2);
	/* Nested prefixes: either grouping is right. */
	spec = usual(FA_ATTENTION_BF16, 128);
	for (int32_t b = 1; b < spec.batch; b++)
		spec.prefix_pages[b] = b < 3 ? 16 : 2;
	check(&spec, ANY);
	for (int32_t b = 1; b < spec.batch; b++) {
		spec.prefix_of_1[b] = 1 + (b > 3 ? 3 : 0);
		spec.prefix_pages[b] = b == 3 ? 1 : 16;
	}
	check(&spec, 2);
	for (int i = 0; i < 3; i++) {
		spec = usual(dtypes[i], 128);
		spec.broken = 6;
		for (int32_t b = 0; b < spec.batch; b++)
			spec.n_new[b] = dtypes[i] == FA_ATTENTION_F32 ? 2 : 4;
		check(&spec, 1);
	}
}

/* ---- the same bits */

static void alone(const struct paged_device *device, const struct paged_problem *problem, int32_t b,
                  struct paged_device *ret_one, uint32_t *cu_new)
{
	struct fa_paged_attention *p = &ret_one->request.attention;
	const uint32_t first = problem->cu_new[b];
	const int64_t bytes = problem->spec.dtype == FA_ATTENTION_F32 ? 4 : 2;

	*ret_one = *device;
	cu_new[0] = 0;
	cu_new[1] = problem->cu_new[b + 1] - first;
	ret_one->step.batch = 1;
	ret_one->step.cu_new = cu_new;
	ret_one->step.lengths += b;
	ret_one->step.lengths_before += b;
	ret_one->step.first += b;
	ret_one->step.table_start += b;
	p->step = &ret_one->step;
	p->q.data = (char *)p->q.data + first * p->q.stride_token * bytes;
	p->out.data = (char *)p->out.data + first * p->out.stride_token * bytes;
	if (p->lse)
		p->lse += first * p->lse_stride_token;
	if (p->tree) {
		p->tree_start += b;
		p->positions += first;
	}
}

static void same(const struct paged_spec *spec)
{
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_problem problem;
	struct paged_device device;
	struct paged_gpu_plan plan = { .blob = 0 };
	void *volatile out = NULL, *volatile lse = NULL;
	uint32_t cu_new[2];

	if (!fa_draw())
		return;
	paged_init(&problem, spec);
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	device.step.host_table = problem.table;
	chip.portable_paged = problem_one_in(2);
	chip.sms = (int32_t)problem_pick(1, 20);
	if (paged_gpu_plan(paged_device_gpu, &chip, &device.request, &plan) < 0)
		paged_fail("%s: no plan", paged_describe(&problem));
	judge_plan(&problem, &plan.plan, DETERMINISTIC);
	paged_device_run(&device, &problem, &plan);
	paged_gpu_plan_free(paged_device_gpu, &plan);
	out = malloc(problem.out_bytes + 1);
	lse = malloc(problem.lse_bytes + 1);
	memcpy(out, problem.out, problem.out_bytes);
	memcpy(lse, problem.lse, problem.lse_bytes);

	/* The results of lone sequences, divided differently, give the whole output. */
	paged_gpu_fill(paged_device_gpu, device.out, 0xff, problem.out_bytes);
	paged_gpu_fill(paged_device_gpu, device.lse, 0xff, problem.lse_bytes);
	for (int32_t b = 0; b < spec->batch; b++) {
		struct paged_device one;

		alone(&device, &problem, b, &one, cu_new);
		chip.sms = (int32_t)problem_pick(1, 20);
		if (paged_gpu_plan(paged_device_gpu, &chip, &one.request, &plan) < 0)
			paged_fail("%s: no plan for %d", paged_describe(&problem), b);
		paged_gpu_launch(paged_device_gpu, &plan, &one.request);
		paged_gpu_sync(paged_device_gpu);
		paged_gpu_plan_free(paged_device_gpu, &plan);
	}
	paged_gpu_download(paged_device_gpu, problem.out, device.out, problem.out_bytes);
	paged_gpu_download(paged_device_gpu, problem.lse, device.lse, problem.lse_bytes);
	if (memcmp(out, problem.out, problem.out_bytes) != 0)
		paged_fail("%s: alone, sequences have other results", paged_describe(&problem));
	if (memcmp(lse, problem.lse, problem.lse_bytes) != 0)
		paged_fail("%s: alone, sequences have other LSEs", paged_describe(&problem));
	paged_passed++;
	free(out);
	free(lse);
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

static void deterministic(void)
{
	static const int32_t dims[] = { 64, 128, 256 };
	struct paged_spec spec;

	for (size_t i = 0; i < 9; i += paged_options.small ? 2 : 1) {
		spec = usual(dtypes[i % 3], dims[i / 3]);
		spec.deterministic = true;
		spec.sinks = i % 2;
		spec.lengths[2] = 1300;
		spec.lengths[4] = 1;
		spec.n_new[4] = 1;
		spec.prefix_of_1[4] = 0;
		check(&spec, DETERMINISTIC);
		same(&spec);
	}
	spec = usual(FA_ATTENTION_BF16, 128);
	spec.deterministic = spec.tree = spec.alibi = true;
	spec.left_1 = 300;
	spec.lengths[1] = 900;
	spec.n_new[2] = 13;
	spec.n_new[5] = 40;
	check(&spec, DETERMINISTIC);
	same(&spec);
	spec = usual(FA_ATTENTION_F16, 128);
	spec.deterministic = true;
	spec.heads = 36;
	spec.lengths[2] = 1300;
	check(&spec, DETERMINISTIC);
	same(&spec);
	spec = usual(FA_ATTENTION_BF16, 64);
	spec.deterministic = true;
	spec.heads = spec.kv_heads = 1;
	spec.batch = paged_options.small ? 1 : 2;
	spec.lengths[0] = 66000;
	check(&spec, DETERMINISTIC);
	same(&spec);
}

static void random_one(uint64_t seed)
{
	static const int32_t dims[] = { 64, 128, 256, 96, 40 };
	struct paged_spec spec = { 0 };

	problem_seed(seed);
	spec.dtype = dtypes[problem_random(3)];
	spec.batch = (int32_t)problem_pick(2, 12);
	spec.kv_heads = (int32_t)problem_pick(1, 3);
	spec.heads = spec.kv_heads * (int32_t)problem_pick(1, 9);
	spec.head_dim = dims[problem_random(5)];
	spec.head_dim_v = problem_one_in(4) ? (int32_t)(8 * problem_pick(1, 20)) : spec.head_dim;
	spec.page_tokens = (int32_t)(16 * problem_pick(1, 6));
	spec.v_in_k = spec.head_dim_v <= spec.head_dim && problem_one_in(4);
	spec.gaps = problem_one_in(2) ? (int32_t)problem_pick(1, 2) : 0;
	for (int32_t b = 0; b < spec.batch; b++) {
		const uint32_t page = (uint32_t)spec.page_tokens;

		spec.n_new[b] = problem_one_in(2) ? 1 : problem_one_in(6) ? 0 : problem_pick(1, 20);
		spec.lengths[b] = spec.n_new[b] + problem_pick(0, 700);
		if (b == 0 || problem_one_in(4))
			continue;
		spec.prefix_of_1[b] = 1 + (int32_t)problem_random((uint64_t)b);
		spec.prefix_pages[b] = problem_pick(0, 40);
		spec.first[b] = spec.first[spec.prefix_of_1[b] - 1];
		/* New tokens are in the sequence's own pages. */
		if (spec.prefix_pages[b] > (spec.lengths[b] - spec.n_new[b]) / page)
			spec.prefix_pages[b] = (spec.lengths[b] - spec.n_new[b]) / page;
	}
	spec.causal = !problem_one_in(3);
	spec.left_1 = problem_one_in(4) ? problem_pick(1, 900) : 0;
	spec.right_1 = problem_one_in(4) ? problem_pick(1, 60) : 0;
	spec.softcap = problem_one_in(4) ? (float)problem_pick(1, 60) : 0;
	spec.alibi = problem_one_in(6);
	spec.sinks = problem_one_in(3);
	spec.tree = problem_one_in(4);
	spec.no_lse = problem_one_in(8);
	spec.broken = problem_one_in(4) ? (int32_t)problem_pick(1, 6) : 0;
	spec.deterministic = problem_one_in(3);
	check(&spec, spec.deterministic ? DETERMINISTIC : ANY);
	if (spec.deterministic)
		same(&spec);
}

static void run(void)
{
	prefixes();
	paged_report("prefixes");
	deterministic();
	paged_report("deterministic");
	for (int i = 0; i < paged_options.count; i++)
		random_one(paged_options.seed + (uint64_t)i);
	paged_report("random");
}

int main(int argc, char **argv)
{
	return paged_main(argc, argv, run);
}
