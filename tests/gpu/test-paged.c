/* Compares paged attention on a GPU with fp64 (tests/kernels/paged-problem.h), with work divided
 * over different numbers of blocks, and with the kernels for chips with less shared memory.
 *   test-paged [--seed N] [--random N] [--every N] [--small] Skips (77) without a GPU. */
#include "tests/gpu/draw.h"
#include "tests/gpu/paged-fixture.h"
#include "tests/kernels/reference.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For the emulator: fewer tokens where that tests the same code. */
static void make_small(struct paged_spec *spec)
{
	for (int32_t b = 0; paged_options.small && b < spec->batch; b++) {
		const uint32_t old = spec->lengths[b] - spec->n_new[b];

		if (spec->n_new[b] > 60)
			spec->n_new[b] = 49 + spec->n_new[b] % 16;
		if (spec->lengths[b] > spec->n_new[b] && old > 150) {
			const uint32_t less = (old - 100 - old % 64) / 64 * 64;

			spec->lengths[b] -= less;
			spec->first[b] -= spec->first[b] < less ? spec->first[b] : less;
		}
		if (spec->lengths[b] > spec->n_new[b] + 500)
			spec->lengths[b] = spec->n_new[b] + 400 + spec->lengths[b] % 64;
	}
	if (paged_options.small && spec->heads > 9) {
		spec->kv_heads = spec->heads % 3 == 0 ? spec->kv_heads : 1;
		spec->heads = spec->kv_heads * (spec->heads / paged_usual.kv_heads);
	}
}

/* Also runs many rows of short sequences on the kernel for long ones. */
static void check_long(struct paged_device *device, struct paged_problem *problem,
                       const struct fa_cuda_chip *chip)
{
	const struct fa_cuda_paged_kernel *forward;
	struct paged_gpu_plan plan = { .blob = 0 };

	paged_plan(device, problem, chip, &plan);
	forward = plan.plan.forward;
	paged_gpu_plan_free(paged_device_gpu, &plan);
	if (!forward || !forward->keys || forward->seqlen_k_max == INT32_MAX)
		return;
	device->request.attention.deterministic = true;
	paged_check_on(device, problem, chip, NULL, 0);
	device->request.attention.deterministic = problem->spec.deterministic;
}

/* Also runs many rows packed, in units of few tiles, and not packed. */
static void check_packed(struct paged_device *device, struct paged_problem *problem,
                         const struct fa_cuda_chip *chip)
{
	const int32_t packs[] = { 1 + (int32_t)problem_random(3), -1 };
	struct fa_cuda_chip other = *chip;
	struct paged_gpu_plan plan = { .blob = 0 };
	bool packed;

	other.pack = packs[0];
	paged_plan(device, problem, &other, &plan);
	packed = plan.plan.forward && plan.plan.forward->kind == FA_CUDA_PAGED_PACKED;
	paged_gpu_plan_free(paged_device_gpu, &plan);
	for (int i = 0; i < 2 && packed; i++) {
		other.pack = packs[i];
		paged_check_on(device, problem, &other, NULL, 0);
	}
}

static void check(const struct paged_spec *given)
{
	const struct fa_cuda_chip *chip = paged_gpu_chip(paged_device_gpu);
	struct fa_cuda_chip other = *chip;
	struct paged_spec spec = *given;
	struct paged_problem problem;
	struct paged_device device;
	static int number;

	if (number++ % paged_options.every || !fa_draw())
		return;
	make_small(&spec);
	paged_init(&problem, &spec);
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	paged_check_on(&device, &problem, chip, NULL, 0);
	check_long(&device, &problem, chip);
	check_packed(&device, &problem, chip);
	other.sms = 1;
	if (!paged_options.small)
		paged_check_on(&device, &problem, &other, NULL, 0);
	other.sms = 7 + (int32_t)problem_random(300);
	if (!paged_options.small)
		paged_check_on(&device, &problem, &other, NULL, 0);
	/* Check on portable kernels, too. */
	other.portable_paged = true;
	if (!paged_options.small)
		paged_check_on(&device, &problem, &other, NULL, 0);
	other.shared_bytes_max = spec.dtype == FA_ATTENTION_F32 && spec.head_dim > 256 ? 166912
	                                                                               : 101376;
	paged_check_on(&device, &problem, &other, NULL, 0);
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

static void blocks_one(int i)
{
	static const uint32_t n_new[] = { 600, 70, 330 }, before[] = { 0, 130, 64 };
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_spec spec = paged_usual;
	struct paged_problem problem;
	struct paged_device device;

	chip.pack = -1;
	spec.dtype = i % 2 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16;
	spec.head_dim = spec.head_dim_v = i == 3 ? 128 : 64;
	spec.page_tokens = 16 << i;
	spec.heads = 2;
	spec.kv_heads = 1;
	spec.batch = 3;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = n_new[b];
		spec.lengths[b] = n_new[b] + before[b];
		spec.first[b] = b == 2 ? 40 : 0;
	}
	spec.left_1 = i == 2 ? 130 : 0;
	chip.sms = 1 + i;
	paged_init(&problem, &spec);
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	paged_check_on(&device, &problem, &chip, NULL, 0);
	check_long(&device, &problem, &chip);
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

static void blocks(void)
{
	for (int i = 0; i < 4; i++)
		if (fa_draw())
			blocks_one(i);
}

/* Caches of codes, also with NaN and infinities. */
static void codes(void)
{
	static const int32_t dims[][2] = { { 128, 128 }, { 64, 64 },  { 256, 256 }, { 16, 48 },
		                           { 192, 128 }, { 128, 80 }, { 64, 512 } };
	static const int32_t groups[] = { 4, 1, 8, 3, 16, 5 };

	for (int i = 0; i < 48; i++) {
		struct paged_spec spec = paged_way_of(&paged_usual, i);

		spec.head_dim = dims[i % 7][0];
		spec.head_dim_v = dims[i % 7][1];
		spec.heads = spec.kv_heads * groups[i % 6];
		spec.page_tokens = 16 << i % 5;
		spec.layer_major = i % 2;
		spec.gaps = i % 3;
		spec.n_new[0] = 1 + (uint32_t)i % 3;
		spec.n_new[2] = i % 2 ? 60 : 20;
		spec.lengths[0] = 200 + 300 * (uint32_t)(i % 4);
		spec.lengths[2] = 463;
		spec.first[2] = i % 4 == 1 ? 250 : 0;
		spec.causal = i % 6 != 5;
		spec.left_1 = i % 5 == 2 ? 1 + 5 * i : 0;
		spec.softcap = i % 9 == 8 ? 20 : 0;
		spec.alibi = i % 8 == 3;
		spec.sinks = i % 5 == 1;
		spec.tree = i % 7 == 4;
		spec.scale = i % 11 == 10 ? -0.1f : 0;
		spec.broken = i % 3 == 2 ? 4 + i % 5 : 0;
		check(&spec);
	}
}

static void chosen(void)
{
	static const int32_t pages[] = { 16, 32, 48, 64, 128, 256 };
	static const int32_t dims[][2] = { { 8, 8 },     { 40, 72 },   { 64, 64 },   { 96, 96 },
		                           { 128, 128 }, { 256, 256 }, { 192, 128 }, { 64, 512 } };
	static const int32_t groups[] = { 1, 2, 3, 5, 6, 7, 8, 16 };
	struct paged_spec spec;

	for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
		for (size_t d = 0; d < 3; d++) {
			spec = paged_usual;
			spec.page_tokens = pages[i];
			spec.dtype = paged_dtypes[d];
			spec.layer_major = i % 2;
			check(&spec);
		}
	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
		for (size_t d = 0; d < 3; d++) {
			spec = paged_usual;
			spec.dtype = paged_dtypes[d];
			spec.head_dim = dims[i][0];
			spec.head_dim_v = dims[i][1];
			spec.gaps = (int32_t)((i + d) % 3);
			check(&spec);
		}
	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
		spec = paged_usual;
		spec.heads = groups[i] * 2;
		spec.dtype = paged_dtypes[i % 3];
		check(&spec);
	}
	/* Empty sequences, dropped pages, V that lies in K, and long sequences. */
	spec = paged_usual;
	spec.batch = 7;
	spec.n_new[0] = 0, spec.lengths[0] = 100;
	spec.n_new[1] = 1, spec.lengths[1] = 0;
	spec.n_new[2] = 40, spec.lengths[2] = 0;
	spec.n_new[3] = 20, spec.lengths[3] = 7;
	spec.n_new[4] = 1, spec.lengths[4] = 64, spec.first[4] = 64;
	spec.n_new[5] = 60, spec.lengths[5] = 10;
	spec.n_new[6] = 50, spec.lengths[6] = 70, spec.first[6] = 70;
	for (int sinks = 0; sinks < 2; sinks++) {
		spec.sinks = sinks;
		check(&spec);
	}
	for (int i = 0; i < 6; i++) {
		spec = paged_usual;
		spec.dtype = paged_dtypes[i % 3];
		spec.page_tokens = pages[i];
		spec.first[0] = 1000;
		spec.first[1] = 7;
		spec.first[2] = 200;
		spec.batch = 4;
		spec.n_new[3] = 1;
		spec.lengths[3] = 5000;
		spec.first[3] = 4321;
		spec.causal = i % 2;
		check(&spec);
		spec = paged_usual;
		spec.dtype = paged_dtypes[i % 3];
		spec.v_in_k = true;
		spec.heads = 16;
		spec.kv_heads = 1;
		spec.head_dim = 32 + 32 * i;
		spec.head_dim_v = 32 + 8 * i;
		check(&spec);
		spec = paged_usual;
		spec.dtype = paged_dtypes[i % 3];
		spec.batch = 2;
		spec.lengths[0] = 20000 + 777 * (uint32_t)i;
		spec.head_dim = spec.head_dim_v = i % 2 ? 128 : 64;
		spec.left_1 = i > 3 ? 15001 : 0;
		check(&spec);
		/* Trees with few and with many rows. */
		spec = paged_usual;
		spec.dtype = paged_dtypes[i % 3];
		spec.tree = true;
		spec.n_new[0] = 3 + (uint32_t)i;
		spec.n_new[2] = 33 + 20 * (uint32_t)i;
		spec.left_1 = i > 1 ? 1 + 17 * i : 0;
		spec.alibi = spec.sinks = i > 3;
		spec.softcap = i == 5 ? 10 : 0;
		check(&spec);
	}
}

/* K and V are infinite or NaN at tokens that only some rows see: because of windows, causality,
 * dropped pages and trees; with few rows and many, alone or beside others in a block. */
static void broken(void)
{
	static const int32_t dims[] = { 64, 128, 256 };
	struct paged_spec spec;

	for (int i = 0; i < 12; i++) {
		spec = paged_usual;
		spec.dtype = i % 4 == 3 ? FA_ATTENTION_F32
		             : i % 2    ? FA_ATTENTION_F16
		                        : FA_ATTENTION_BF16;
		spec.head_dim = spec.head_dim_v = dims[i % 3];
		spec.page_tokens = 16 << i / 2 % 3;
		spec.broken = 4 + i % 5;
		spec.heads = i % 6 == 4 ? 2 : 8;
		spec.n_new[0] = 1 + (uint32_t)i % 3;
		spec.lengths[0] = 200 + 113 * (uint32_t)(i % 3);
		spec.first[2] = i % 4 == 1 ? 250 : 0;
		spec.causal = i % 6 != 5;
		spec.left_1 = i % 3 == 2 ? 1 + 5 * i : 0;
		spec.right_1 = i % 6 == 5 ? 3 : 0;
		spec.tree = i % 4 == 2 || i == 7;
		spec.v_in_k = i == 4 || i == 11;
		spec.softcap = i == 8 ? 20 : 0;
		spec.alibi = i == 3 || i == 10;
		spec.sinks = i % 5 == 1;
		check(&spec);
	}
}

/* Chunks, with new tokens in one and in several, dropped tokens before them, trees within one, and
 * infinities and NaNs in the chunks that a row does not see. */
static void chunks(void)
{
	static const int32_t dims[] = { 64, 128, 256 };
	struct paged_spec spec;

	for (int i = 0; i < 16; i++) {
		spec = paged_usual;
		spec.dtype = paged_dtypes[i % 3];
		spec.head_dim = spec.head_dim_v = dims[i % 3];
		spec.page_tokens = 16 << i % 4;
		spec.chunk = i % 4 == 3 ? 300 : 40 + 17 * i;
		spec.batch = 4;
		spec.n_new[0] = 1 + (uint32_t)i % 3;
		spec.n_new[2] = i % 2 ? 150 : 33;
		spec.n_new[3] = 60;
		spec.lengths[0] = 200 + 113 * (uint32_t)(i % 5);
		spec.lengths[2] = 463;
		spec.lengths[3] = i % 3 ? 60 : 45;
		spec.first[2] = i % 4 == 1 ? 250 : 0;
		spec.causal = i % 6 != 5;
		spec.left_1 = i % 5 == 2 ? 30 : 0;
		spec.right_1 = i % 6 == 5 ? 20 : 0;
		spec.softcap = i == 8 ? 20 : 0;
		spec.alibi = i % 7 == 3;
		spec.sinks = i % 5 == 1;
		spec.deterministic = i % 8 == 7;
		spec.broken = i % 3 == 1 ? 5 : 0;
		check(&spec);
	}
	spec = paged_usual;
	spec.tree = true;
	spec.chunk = 64;
	spec.n_new[0] = 3, spec.lengths[0] = 132;
	spec.n_new[2] = 33, spec.lengths[2] = 163;
	check(&spec);
}

/* Head dims above 256, as of MLA and Gemma 4: few rows, extends and prefill; V is the front of K, or
 * not. */
static void wide(void)
{
	static const int32_t dims[][2] = { { 576, 512 }, { 512, 512 }, { 264, 264 },
		                           { 576, 512 }, { 520, 72 },  { 512, 512 } };

	for (int i = 0; i < 12; i++) {
		struct paged_spec spec = paged_usual;

		spec.dtype = i % 6 == 5 ? FA_ATTENTION_F32
		             : i % 2    ? FA_ATTENTION_F16
		                        : FA_ATTENTION_BF16;
		spec.head_dim = dims[i % 6][0];
		spec.head_dim_v = dims[i % 6][1];
		spec.v_in_k = i % 3 == 0;
		spec.kv_heads = spec.v_in_k ? 1 : 2;
		spec.heads = spec.kv_heads * (i == 0 ? 16 : 3);
		spec.page_tokens = 16 << i % 4;
		spec.n_new[0] = 1 + (uint32_t)i % 2;
		spec.n_new[1] = i % 4 == 3 ? 0 : 1;
		spec.n_new[2] = i % 3 == 1 ? 70 : 5;
		spec.lengths[0] = 132;
		spec.lengths[2] = 163;
		spec.first[2] = i % 5 == 1 ? 30 : 0;
		spec.left_1 = i % 4 == 1 ? 41 : 0;
		spec.tree = i % 4 == 2;
		spec.broken = i == 3 || i == 7 ? 4 : 0;
		spec.softcap = i == 4 ? 20 : 0;
		spec.alibi = i % 6 == 4;
		spec.sinks = i % 5 == 1;
		check(&spec);
	}
}

/* V is large, but its means are finite: a mean of fp32 or bf16, or of codes of any kind. */
static void large(void)
{
	static const int32_t dims[] = { 64, 128, 256, 96 };

	for (int i = 0; i < 16; i++) {
		struct paged_spec spec = i < 8 ? paged_usual : paged_way_of(&paged_usual, i);

		if (i < 8)
			spec.dtype = paged_dtypes[i % 4 < 2 ? 2 : 3 - i % 4];
		spec.v_size = spec.dtype == FA_ATTENTION_F16 ? 1.8e4f : 8e37f;
		spec.v_positive = i % 3 == 0;
		spec.head_dim = spec.head_dim_v = dims[i % (i < 8 ? 4 : 3)];
		spec.n_new[0] = 1 + (uint32_t)i % 3;
		spec.sinks = i % 4 == 1;
		spec.softcap = i % 5 == 2 ? 20 : 0;
		spec.alibi = i % 5 == 4;
		check(&spec);
	}
}

/* Changes the last token's K, and its V if codes are stored. */
static void grow_last(struct paged_problem *problem, int32_t b, int32_t h)
{
	const struct paged_spec *spec = &problem->spec;
	const int64_t token = spec->lengths[b] - 1;
	char *const k = paged_k(problem, 1, b, token, h);

	for (int32_t c = 0; c < spec->head_dim; c++) {
		if (spec->store == FA_PAGED_PLAIN)
			reference_set(spec->dtype, k, c, 100 * problem_normal());
		else
			k[c] = (char)problem_random(127);
	}
	if (spec->store == FA_PAGED_PLAIN)
		return;
	memset(paged_v(problem, 1, b, token, h), 0x7e, (size_t)spec->head_dim_v);
	if (!spec->head_scales)
		*paged_scale(problem, 1, b, token, h, true) *= 1e10f;
}

/* The last token's K grows: rows that do not see it keep their bits. */
static void unseen(enum fa_attention_dtype dtype, int codes)
{
	struct paged_spec spec = codes < 0 ? paged_usual : paged_way_of(&paged_usual, codes);
	struct paged_problem problem;
	struct paged_gpu_plan plan;
	struct paged_device device;
	size_t row_bytes;
	void *once;

	spec.dtype = dtype;
	spec.batch = 2;
	spec.n_new[0] = 4;
	spec.n_new[1] = 60;
	spec.lengths[0] = spec.lengths[1] = 150;
	paged_init(&problem, &spec);
	once = malloc(problem.out_bytes);
	row_bytes = problem.out_bytes / problem.cu_new[2];
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	paged_plan(&device, &problem, NULL, &plan);
	paged_device_run(&device, &problem, &plan);
	memcpy(once, problem.out, problem.out_bytes);
	for (int32_t b = 0; b < 2; b++)
		for (int32_t h = 0; h < spec.kv_heads; h++)
			grow_last(&problem, b, h);
	paged_gpu_upload(paged_device_gpu, device.pool, problem.cache.pool, problem.pool_bytes);
	paged_device_run(&device, &problem, &plan);
	for (uint32_t row = 0; row < problem.cu_new[2]; row++) {
		const bool sees = row + 1 == problem.cu_new[1] || row + 1 == problem.cu_new[2];
		const size_t at = row * row_bytes;

		if (!memcmp((char *)once + at, (char *)problem.out + at, row_bytes) == sees)
			paged_fail("dtype %d: token %u %s", dtype, row,
			           sees ? "did not change" : "saw what it does not see");
	}
	paged_passed++;
	paged_gpu_plan_free(paged_device_gpu, &plan);
	paged_device_deinit(&device);
	paged_deinit(&problem);
	free(once);
}

static void random_one(uint64_t seed)
{
	static const int32_t dims[] = { 64, 128, 256, 96, 192, 80, 40, 8, 200 };
	struct paged_spec spec = { 0 };

	problem_seed(seed);
	spec.dtype = paged_dtypes[problem_random(3)];
	spec.batch = (int32_t)problem_pick(1, 8);
	spec.kv_heads = (int32_t)problem_pick(1, 3);
	spec.heads = spec.kv_heads * (int32_t)(problem_one_in(3) ? 1 : problem_pick(1, 9));
	spec.head_dim = dims[problem_random(9)];
	spec.head_dim_v = problem_one_in(3)
	                          ? (int32_t)(8 * problem_pick(1, problem_one_in(4) ? 64 : 16))
	                          : spec.head_dim;
	spec.page_tokens = (int32_t)(16 * (problem_one_in(3) ? problem_pick(1, 16)
	                                                     : 1u << problem_pick(0, 4)));
	spec.v_in_k = spec.head_dim_v <= spec.head_dim && problem_one_in(4);
	spec.layer_major = problem_one_in(2);
	spec.gaps = problem_one_in(2) ? (int32_t)problem_pick(1, 2) : 0;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = problem_one_in(2)   ? 1
		                : problem_one_in(4) ? 0
		                                    : problem_pick(1, problem_one_in(2) ? 20 : 150);
		spec.lengths[b] =
			spec.n_new[b] +
			(problem_one_in(4) ? 0 : problem_pick(0, problem_one_in(3) ? 2000 : 200));
		if (problem_one_in(20))
			spec.lengths[b] = problem_pick(0, 20);
		spec.first[b] = problem_one_in(4) ? problem_pick(0, spec.lengths[b]) : 0;
	}
	spec.causal = problem_one_in(2);
	spec.left_1 = problem_one_in(3) ? problem_pick(1, 300) : 0;
	spec.right_1 = problem_one_in(3) ? problem_pick(1, 60) : 0;
	spec.softcap = problem_one_in(4) ? (float)problem_pick(1, 60) : 0;
	spec.scale = problem_one_in(10) ? -0.1f : 0;
	spec.alibi = problem_one_in(5);
	spec.sinks = problem_one_in(4);
	spec.tree = problem_one_in(4);
	spec.no_lse = problem_one_in(8);
	spec.broken = problem_one_in(4) ? (int32_t)problem_pick(1, 6) : 0;
	spec.raised = problem_one_in(4) && !spec.v_in_k && spec.dtype != FA_ATTENTION_F32;
	check(&spec);
}

/* A split request gives the same bits every time, whatever the counters were and in whatever
 * order groups of warps arrive. */
static void reruns_of(int32_t head_dim, uint32_t n_new)
{
	struct paged_spec spec = paged_usual;
	struct paged_problem problem;
	struct paged_gpu_plan plan;
	struct paged_device device;
	void *once;

	spec.head_dim = spec.head_dim_v = head_dim;
	spec.n_new[1] = n_new;
	spec.lengths[0] = 9000;
	make_small(&spec);
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
	for (int i = 0; i < (paged_options.small ? 20 : 1000); i++) {
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

static void reruns(void)
{
	for (int i = 0; i < 6; i++)
		if (fa_draw())
			reruns_of(64 << i / 2, i % 2 ? 5 : 1);
}

/* MLA in plain form: prefill and extends. */
static void plain(void)
{
	static const uint32_t n_new[] = { 64, 300, 17, 49, 700, 1 };
	static const uint32_t before[] = { 2935, 0, 1000, 64, 77, 600 };

	for (int i = 0; i < 12; i++) {
		struct paged_spec spec = paged_usual;

		spec.dtype = paged_dtypes[1 + i % 2];
		spec.head_dim = 192;
		spec.head_dim_v = 128;
		spec.page_tokens = 16 << i % 5;
		spec.kv_heads = 1 + i % 3;
		spec.heads = spec.kv_heads * (i % 4 == 3 ? 4 : 1);
		spec.batch = i < 6 ? 1 : 3;
		for (int32_t b = 0; b < spec.batch; b++) {
			spec.n_new[b] = n_new[(i + b) % 6];
			spec.lengths[b] = n_new[(i + b) % 6] + before[(i + b) % 6];
		}
		spec.first[0] = i % 4 == 1 ? spec.lengths[0] / 3 : 0;
		spec.causal = i % 5 != 4;
		spec.left_1 = i % 6 == 5 ? 130 : 0;
		spec.sinks = i % 3 == 2;
		spec.deterministic = i % 7 == 3;
		spec.gaps = i % 2;
		spec.broken = i % 4 == 2 ? 4 : 0;
		check(&spec);
	}
}

/* Preempted prefill gives the same bits, however often and wherever it yields. */
static void yields(int32_t pack)
{
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_spec spec = {
		.dtype = FA_ATTENTION_BF16,
		.batch = 8,
		.heads = 8,
		.kv_heads = 2,
		.head_dim = 128,
		.head_dim_v = 128,
		.page_tokens = 64,
		.causal = true,
	};
	struct paged_problem problem;
	struct paged_gpu_plan plan;
	struct paged_device device;
	volatile uint32_t stops = 0;
	void *once;

	/* Some new tokens see a context, and tiles end within pages. */
	for (int b = 0; b < spec.batch; b++) {
		spec.n_new[b] = (pack > 0 ? 50 : 500) + 3 * (uint32_t)b;
		spec.lengths[b] = spec.n_new[b] + (pack > 0 ? 2000 : 77) * (uint32_t)b;
	}
	chip.pack = pack;
	paged_init(&problem, &spec);
	once = malloc(problem.out_bytes);
	if (setjmp(paged_failure)) {
		paged_gpu_yield(paged_device_gpu, 0);
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	paged_plan(&device, &problem, &chip, &plan);
	if (!plan.plan.forward || !plan.plan.forward->state_bytes) {
		printf("no prefill gives way on this GPU\n");
	} else {
		paged_device_run(&device, &problem, &plan);
		memcpy(once, problem.out, problem.out_bytes);
		for (int i = 0; i < 60; i++) {
			(void)paged_gpu_yield(paged_device_gpu, 40000);
			paged_device_run(&device, &problem, &plan);
			stops = stops + paged_gpu_yield(paged_device_gpu, 0);
			if (memcmp(once, problem.out, problem.out_bytes) != 0)
				paged_fail("%s, having stopped: run %d differs",
				           plan.plan.forward->symbol, i);
		}
		if (!stops)
			paged_fail("%s never gave way", plan.plan.forward->symbol);
		paged_passed++;
	}
	paged_gpu_plan_free(paged_device_gpu, &plan);
	paged_device_deinit(&device);
	paged_deinit(&problem);
	free(once);
}

/* Uses slots beyond 2^24, at offsets beyond 2^32 bytes. */
static void far_slots(void)
{
	const size_t far = (size_t)36 << 30;
	struct paged_spec spec = paged_usual;
	struct paged_problem problem;
	struct paged_device device;
	uint64_t pool;

	pool = paged_gpu_alloc(paged_device_gpu, far + (64 << 20));
	if (!pool) {
		printf("no memory for far slots\n");
		return;
	}
	spec.page_tokens = 16;
	paged_init(&problem, &spec);
	if (problem.pool_bytes > 64 << 20 || setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	paged_gpu_upload(paged_device_gpu, pool + far, problem.cache.pool, problem.pool_bytes);
	for (uint32_t i = 0; i < problem.step.table_entries; i++)
		if (problem.table[i] != PAGED_WILD)
			problem.table[i] += (uint32_t)(far / 256);
	paged_gpu_upload(paged_device_gpu, device.table, problem.table,
	                 problem.step.table_entries * 4);
	device.cache.pool = POINTER(pool);
	paged_check_on(&device, &problem, paged_gpu_chip(paged_device_gpu), NULL, 0);
	paged_device_deinit(&device);
	paged_deinit(&problem);
	paged_gpu_free(paged_device_gpu, pool);
}

static void run(void)
{
	blocks();
	paged_report("blocks");
	chosen();
	paged_report("chosen");
	codes();
	paged_report("codes");
	reruns();
	paged_report("reruns");
	plain();
	paged_report("plain");
	if (!paged_options.small) {
		yields(-1);
		yields(4);
		paged_report("yields");
	}
	far_slots();
	paged_report("far slots");
	paged_options.every = 1;
	broken();
	paged_report("broken");
	chunks();
	paged_report("chunks");
	wide();
	paged_report("wide");
	large();
	paged_report("large");
	for (int i = 0; i < 3; i++)
		if (fa_draw())
			unseen(paged_dtypes[i], -1);
	for (int i = 0; i < 8; i++)
		if (fa_draw())
			unseen(paged_way_of(&paged_usual, i).dtype, i);
	paged_report("unseen");
	for (int i = 0; i < paged_options.count; i++)
		random_one(paged_options.seed + (uint64_t)i);
	paged_report("random");
}

int main(int argc, char **argv)
{
	return paged_main(argc, argv, run);
}
