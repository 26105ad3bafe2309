/*
 * The GPU kernels over pages: attention against fp64 (tests/kernels/paged-problem.h), with
 * work divided over different numbers of blocks and on the kernels for chips with less
 * shared memory; everything else against the CPU's.
 *   test-paged [--seed N] [--random N] [--every N] [--small]
 * Skips (77) without a GPU.
 */
#include "tests/gpu/paged-device.h"
#include "tests/kernels/paged-problem.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int passed, failed;

/* Lets launches carry the table, which nobody may then read in memory. */
static void hide_table(struct paged_device *device, const struct paged_problem *problem)
{
	device->step.host_table = problem->table;
	paged_gpu_fill(paged_device_gpu, device->table, 0xfe, problem->step.table_entries * 4);
}

static void show_table(struct paged_device *device, const struct paged_problem *problem)
{
	device->step.host_table = NULL;
	paged_gpu_upload(paged_device_gpu, device->table, problem->table,
	                 problem->step.table_entries * 4);
}

static const enum fa_attention_dtype dtypes[] = { FA_ATTENTION_F32, FA_ATTENTION_F16,
	                                          FA_ATTENTION_BF16 };

static const struct paged_spec usual = {
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

/* For an emulated GPU: fewer tokens, where that changes nothing, and not every case. */
static bool small;
static int every = 1;

static void make_small(struct paged_spec *spec)
{
	for (int32_t b = 0; small && b < spec->batch; b++) {
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
	if (small && spec->heads > 9) {
		spec->kv_heads = spec->heads % 3 == 0 ? spec->kv_heads : 1;
		spec->heads = spec->kv_heads * (spec->heads / usual.kv_heads);
	}
}

/* ---- attention */

static void check_on(struct paged_device *device, struct paged_problem *problem,
                     const struct fa_cuda_chip *chip)
{
	void *volatile once = malloc(problem->out_bytes + 1);
	struct paged_gpu_plan plan = { .blob = 0 };
	char by[128];

	if (setjmp(paged_failure)) {
		failed++;
	} else {
		if (paged_gpu_plan(paged_device_gpu, chip, &device->request, &plan) < 0)
			paged_fail("%s: no plan", paged_describe(problem));
		snprintf(by, sizeof(by), "%s, %s, %d blocks",
		         plan.plan.decode ? plan.plan.decode->symbol : "-",
		         plan.plan.forward ? plan.plan.forward->symbol : "-", chip->sms);
		paged_device_run(device, problem, &plan);
		memcpy(once, problem->out, problem->out_bytes);
		paged_device_run(device, problem, &plan);
		if (memcmp(once, problem->out, problem->out_bytes) != 0)
			paged_fail("%s on %s: two runs differ", paged_describe(problem), by);
		paged_judge(problem, by,
		            problem->spec.dtype == FA_ATTENTION_F32 ? PAGED_ROUNDS_WEIGHTS_FAST
		                                                    : PAGED_ROUNDS_WEIGHTS_FAST);
		passed++;
	}
	paged_gpu_plan_free(paged_device_gpu, &plan);
	free(once);
}

static void check(const struct paged_spec *given)
{
	const struct fa_cuda_chip *chip = paged_gpu_chip(paged_device_gpu);
	struct fa_cuda_chip other = *chip;
	struct paged_spec spec = *given;
	struct paged_problem problem;
	struct paged_device device;
	static int number;

	if (number++ % every)
		return;
	make_small(&spec);
	paged_init(&problem, &spec);
	if (setjmp(paged_failure)) {
		failed++;
		return;
	}
	paged_device_init(&device, &problem);
	check_on(&device, &problem, chip);
	other.sms = 1;
	if (!small)
		check_on(&device, &problem, &other);
	other.sms = 7 + (int32_t)problem_random(300);
	if (!small)
		check_on(&device, &problem, &other);
	/* And without the kernels for this chip alone. */
	other.portable_paged = true;
	if (!small)
		check_on(&device, &problem, &other);
	other.shared_bytes_max = 101376;
	check_on(&device, &problem, &other);
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

static bool has_small(void)
{
	bool has = false;

	for (size_t i = 0; i < fa_cuda_paged_kernels_count; i++)
		has = has || (fa_cuda_paged_kernels[i].kind == FA_CUDA_PAGED_DECODE &&
		              fa_cuda_paged_kernels[i].small &&
		              fa_cuda_paged_kernel_runs(&fa_cuda_paged_kernels[i],
		                                        paged_gpu_chip(paged_device_gpu)));
	return has;
}

/* Of few sequences of the same number of new tokens. */
struct few {
	int32_t batch, head_dim, page_tokens, heads, kv_heads;
	uint32_t n_new, length;
	bool carried; /* where kernels can */
};

static void few_one(const struct few *few, int i)
{
	struct paged_spec spec = usual;
	struct paged_problem problem;
	struct paged_gpu_plan plan = { .blob = 0 };
	struct paged_device device;
	void *once;
	bool carries;

	spec.dtype = i % 2 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16;
	spec.batch = few->batch;
	spec.head_dim = spec.head_dim_v = few->head_dim;
	spec.page_tokens = few->page_tokens;
	spec.heads = few->heads;
	spec.kv_heads = few->kv_heads;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = few->n_new;
		spec.lengths[b] = few->length + 17 * (uint32_t)b;
		spec.first[b] = b % 3 == 1 ? 33 : 0;
	}
	paged_init(&problem, &spec);
	once = malloc(problem.out_bytes);
	if (setjmp(paged_failure)) {
		failed++;
		return;
	}
	paged_device_init(&device, &problem);
	check_on(&device, &problem, paged_gpu_chip(paged_device_gpu));
	memcpy(once, problem.out, problem.out_bytes);

	device.step.host_table = problem.table;
	if (paged_gpu_plan(paged_device_gpu, paged_gpu_chip(paged_device_gpu), &device.request,
	                   &plan) < 0)
		paged_fail("%s: no plan", paged_describe(&problem));
	carries = plan.plan.table_here > 0;
	paged_gpu_plan_free(paged_device_gpu, &plan);
	if (carries != (few->carried && has_small()))
		paged_fail("%s: a table of %u entries is %scarried", paged_describe(&problem),
		           problem.step.table_entries, carries ? "" : "not ");
	if (carries)
		hide_table(&device, &problem);
	check_on(&device, &problem, paged_gpu_chip(paged_device_gpu));
	if (memcmp(once, problem.out, problem.out_bytes) != 0)
		paged_fail("%s: other bits with the table in the launch", paged_describe(&problem));
	passed++;
	paged_device_deinit(&device);
	paged_deinit(&problem);
	free(once);
}

/*
 * Few and short sequences, with the table in memory and in the launch, of as many entries and
 * sequences as that can have and of one more: the same bits.
 */
static void few(void)
{
	static const struct few cases[] = {
		{ 1, 128, 64, 8, 2, 1, 1000, true },
		{ 1, 128, 16, 4, 1, 1, 16 * (FA_CUDA_PAGED_TABLE_HERE - 2), true },
		{ 1, 128, 16, 4, 1, 1, 16 * (FA_CUDA_PAGED_TABLE_HERE - 2) + 1, false },
		{ FA_CUDA_PAGED_ITEMS_HERE, 128, 32, 8, 2, 1, 40, true },
		{ FA_CUDA_PAGED_ITEMS_HERE + 1, 128, 32, 8, 2, 1, 40, false },
		{ 3, 128, 16, 16, 2, 5, 200, true }, /* two fragments of rows */
		{ 2, 256, 128, 6, 2, 2, 300, true },
		{ 5, 128, 48, 6, 3, 9, 100, true },
		{ 2, 64, 16, 4, 1, 1, 100, false }, /* the portable kernel */
	};

	for (int i = 0; i < (int)(sizeof(cases) / sizeof(cases[0])); i++)
		few_one(&cases[i], i);
}

/* One of the four ways to store codes. */
static struct paged_spec way_of(const struct paged_spec *spec, int i)
{
	struct paged_spec way = *spec;

	way.dtype = i / 4 % 2 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16;
	way.store = i % 2 ? FA_PAGED_INT8 : FA_PAGED_E4M3;
	way.head_scales = i / 2 % 2;
	return way;
}

/* Pages of codes; also with NaNs and infinities. */
static void codes(void)
{
	static const int32_t dims[][2] = { { 128, 128 }, { 64, 64 },  { 256, 256 }, { 16, 48 },
		                           { 192, 128 }, { 128, 80 }, { 64, 512 } };
	static const int32_t groups[] = { 4, 1, 8, 3, 16, 5 };

	for (int i = 0; i < 48; i++) {
		struct paged_spec spec = way_of(&usual, i);

		spec.head_dim = dims[i % 7][0];
		spec.head_dim_v = dims[i % 7][1];
		spec.heads = spec.kv_heads * groups[i % 6];
		spec.page_tokens = 16 << i % 5;
		spec.layer_major = i % 2;
		spec.gaps = i % 3 == 1;
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
			spec = usual;
			spec.page_tokens = pages[i];
			spec.dtype = dtypes[d];
			spec.layer_major = i % 2;
			check(&spec);
		}
	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
		for (size_t d = 0; d < 3; d++) {
			spec = usual;
			spec.dtype = dtypes[d];
			spec.head_dim = dims[i][0];
			spec.head_dim_v = dims[i][1];
			spec.gaps = i % 2;
			check(&spec);
		}
	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
		spec = usual;
		spec.heads = groups[i] * 2;
		spec.dtype = dtypes[i % 3];
		check(&spec);
	}
	/* Empty ones, dropped pages, V in K, long ones. */
	spec = usual;
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
		spec = usual;
		spec.dtype = dtypes[i % 3];
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
		spec = usual;
		spec.dtype = dtypes[i % 3];
		spec.v_in_k = true;
		spec.heads = 16;
		spec.kv_heads = 1;
		spec.head_dim = 32 + 32 * i;
		spec.head_dim_v = 32 + 8 * i;
		check(&spec);
		spec = usual;
		spec.dtype = dtypes[i % 3];
		spec.batch = 2;
		spec.lengths[0] = 20000 + 777 * (uint32_t)i;
		spec.head_dim = spec.head_dim_v = i % 2 ? 128 : 64;
		spec.left_1 = i > 3 ? 15001 : 0;
		check(&spec);
		/* Trees of few and of many rows. */
		spec = usual;
		spec.dtype = dtypes[i % 3];
		spec.tree = true;
		spec.n_new[0] = 3 + (uint32_t)i;
		spec.n_new[2] = 33 + 20 * (uint32_t)i;
		spec.left_1 = i > 1 ? 1 + 17 * i : 0;
		spec.alibi = spec.sinks = i > 3;
		spec.softcap = i == 5 ? 10 : 0;
		check(&spec);
	}
}

/*
 * Infinities and NaNs in K and V at tokens that some rows see and others do not: through
 * windows, causal rows, dropped pages and trees, with few rows and many, alone or beside
 * others in a block.
 */
static void broken(void)
{
	static const int32_t dims[] = { 64, 128, 256 };
	struct paged_spec spec;

	for (int i = 0; i < 12; i++) {
		spec = usual;
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

/* The last token's K, and where codes are stored its V. */
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

/* The last tokens' K grows: other rows, which do not see it, stay as they are to the bit. */
static void unseen(enum fa_attention_dtype dtype, int codes)
{
	struct paged_spec spec = codes < 0 ? usual : way_of(&usual, codes);
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
		failed++;
		return;
	}
	paged_device_init(&device, &problem);
	if (paged_gpu_plan(paged_device_gpu, paged_gpu_chip(paged_device_gpu), &device.request,
	                   &plan) < 0)
		paged_fail("no plan");
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
	passed++;
	paged_gpu_plan_free(paged_device_gpu, &plan);
	paged_device_deinit(&device);
	paged_deinit(&problem);
	free(once);
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
	static const int32_t dims[] = { 64, 128, 256, 96, 192, 80, 40, 8, 200 };
	struct paged_spec spec = { 0 };

	problem_seed(seed);
	spec.dtype = dtypes[problem_random(3)];
	spec.batch = (int32_t)pick(1, 8);
	spec.kv_heads = (int32_t)pick(1, 3);
	spec.heads = spec.kv_heads * (int32_t)(one_in(3) ? 1 : pick(1, 9));
	spec.head_dim = dims[problem_random(9)];
	spec.head_dim_v = one_in(3) ? (int32_t)(8 * pick(1, one_in(4) ? 64 : 16)) : spec.head_dim;
	spec.page_tokens = (int32_t)(16 * (one_in(3) ? pick(1, 16) : 1u << pick(0, 4)));
	spec.v_in_k = spec.head_dim_v <= spec.head_dim && one_in(4);
	spec.layer_major = one_in(2);
	spec.gaps = one_in(3);
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = one_in(2) ? 1 : one_in(4) ? 0 : pick(1, one_in(2) ? 20 : 150);
		spec.lengths[b] = spec.n_new[b] + (one_in(4) ? 0 : pick(0, one_in(3) ? 2000 : 200));
		if (one_in(20))
			spec.lengths[b] = pick(0, 20);
		spec.first[b] = one_in(4) ? pick(0, spec.lengths[b]) : 0;
	}
	spec.causal = one_in(2);
	spec.left_1 = one_in(3) ? pick(1, 300) : 0;
	spec.right_1 = one_in(3) ? pick(1, 60) : 0;
	spec.softcap = one_in(4) ? (float)pick(1, 60) : 0;
	spec.scale = one_in(10) ? -0.1f : 0;
	spec.alibi = one_in(5);
	spec.sinks = one_in(4);
	spec.tree = one_in(4);
	spec.no_lse = one_in(8);
	spec.broken = one_in(4) ? (int32_t)pick(1, 6) : 0;
	check(&spec);
}

/* A split request gives the same bits every time, whatever the counters were. */
static void reruns(void)
{
	struct paged_spec spec = usual;
	struct paged_problem problem;
	struct paged_gpu_plan plan;
	struct paged_device device;
	void *once;

	spec.lengths[0] = 9000;
	make_small(&spec);
	paged_init(&problem, &spec);
	once = malloc(problem.out_bytes);
	if (setjmp(paged_failure)) {
		failed++;
		return;
	}
	paged_device_init(&device, &problem);
	if (paged_gpu_plan(paged_device_gpu, paged_gpu_chip(paged_device_gpu), &device.request,
	                   &plan) < 0)
		paged_fail("no plan");
	paged_device_run(&device, &problem, &plan);
	memcpy(once, problem.out, problem.out_bytes);
	for (int i = 0; i < (small ? 20 : 1000); i++) {
		paged_gpu_launch(paged_device_gpu, &plan, &device.request);
		if (i % 20 && !small)
			continue;
		paged_device_run(&device, &problem, &plan);
		if (memcmp(once, problem.out, problem.out_bytes) != 0)
			paged_fail("run %d differs", i);
	}
	passed++;
	paged_gpu_plan_free(paged_device_gpu, &plan);
	paged_device_deinit(&device);
	paged_deinit(&problem);
	free(once);
}

/* Slots beyond 2^24, whose bytes are beyond 2^32. */
static void far_slots(void)
{
	const size_t far = (size_t)36 << 30;
	struct paged_spec spec = usual;
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
		failed++;
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
	check_on(&device, &problem, paged_gpu_chip(paged_device_gpu));
	paged_device_deinit(&device);
	paged_deinit(&problem);
	paged_gpu_free(paged_device_gpu, pool);
}

/* ---- tokens in pages: against the CPU's kernels */

static void run_on_cpu(const struct fa_paged_request *request)
{
	const struct fa_cpu_isa *isa;
	char scratch[8192];

	if (fa_cpu_isa_select(NULL, 0, &isa) < 0 ||
	    fa_cpu_paged_scratch_bytes(isa, request) > sizeof(scratch))
		paged_fail("no CPU kernel");
	for (int64_t i = 0; i < fa_cpu_paged_tiles(isa, request); i++)
		fa_cpu_paged_tile(isa, request, NULL, i, scratch, NULL);
}

/* Of elements that differ: at most @units of the last place. */
static void compare(const struct paged_problem *problem, const void *a, const void *b, size_t bytes,
                    double unit, const char *what)
{
	const enum fa_attention_dtype dtype = problem->spec.dtype;
	const size_t element = dtype == FA_ATTENTION_F32 ? 4 : 2;

	if (memcmp(a, b, bytes) == 0)
		return;
	for (size_t i = 0; i < bytes / element; i++) {
		const double x = reference_get(dtype, a, (int64_t)i);
		const double y = reference_get(dtype, b, (int64_t)i);

		if (memcmp((const char *)a + i * element, (const char *)b + i * element, element) !=
		            0 &&
		    !(fabs(x - y) <= unit * (fabs(x) + 1)))
			paged_fail("%s: element %zu is %g, not %g (%s)", what, i, x, y,
			           paged_describe(problem));
	}
}

struct tokens {
	struct paged_problem problem;
	struct paged_device device;
	struct fa_paged_request host, request;
	char *k, *v, *q_out;
	size_t k_bytes, v_bytes;
	uint64_t device_k, device_v, device_q_out;
	float *table;
	uint64_t device_table;
	uint32_t positions[512];
	uint64_t device_positions;
};

/* @ways: -1, or that of way_of(). */
static void tokens_init(struct tokens *t, int i, int ways)
{
	struct paged_spec spec = usual;
	struct fa_paged_append *host = &t->host.append, *p = &t->request.append;
	size_t tokens, bytes;

	memset(t, 0, sizeof(*t));
	spec.dtype = dtypes[i % 3];
	spec.batch = 5;
	spec.n_new[3] = 0, spec.lengths[3] = 30;
	spec.n_new[4] = 40, spec.lengths[4] = 40;
	spec.page_tokens = 16 << i % 5;
	spec.v_in_k = i % 7 == 6;
	spec.head_dim = i % 2 ? 128 : 72;
	spec.head_dim_v = i % 2 ? 128 : 40;
	if (ways >= 0) {
		spec = way_of(&spec, ways);
		spec.v_in_k = false;
		spec.head_dim = i % 2 ? 128 : 80;
		spec.head_dim_v = i % 2 ? 128 : 48;
	}
	spec.gaps = i % 3 == 0;
	paged_init(&t->problem, &spec);
	paged_device_init(&t->device, &t->problem);
	tokens = t->problem.cu_new[5];
	bytes = spec.dtype == FA_ATTENTION_F32 ? 4 : 2;
	/* Every fourth has rows that start on no 16 bytes. */
	const int64_t k_head = spec.head_dim + (i % 4 == 3 ? 3 : 8);
	const int64_t v_head = spec.head_dim_v;

	t->k_bytes = tokens * 2 * (size_t)k_head * bytes;
	t->v_bytes = tokens * 2 * (size_t)v_head * bytes;
	t->k = malloc(t->k_bytes);
	t->v = malloc(t->v_bytes);
	t->q_out = malloc(t->problem.q_bytes);
	for (size_t e = 0; e < t->k_bytes / bytes; e++)
		reference_set(spec.dtype, t->k, (int64_t)e, problem_normal());
	for (size_t e = 0; e < t->v_bytes / bytes; e++)
		reference_set(spec.dtype, t->v, (int64_t)e, problem_normal());
	memset(t->q_out, 0xff, t->problem.q_bytes);
	t->device_k = paged_device_upload(t->k, t->k_bytes);
	t->device_v = paged_device_upload(t->v, t->v_bytes);
	t->device_q_out = paged_device_upload(t->q_out, t->problem.q_bytes);

	t->host.op = t->request.op = FA_PAGED_APPEND;
	host->cache = &t->problem.cache;
	host->step = &t->problem.step;
	host->layer = 1;
	host->k = (struct fa_attention_tensor){ t->k, 0, 2 * k_head, k_head };
	host->v = (struct fa_attention_tensor){ t->v, 0, v_head, (int64_t)tokens * v_head };
	host->heads = spec.heads;
	host->q = host->q_out = t->problem.request.attention.q;
	host->q_out.data = t->q_out;
	*p = *host;
	p->cache = &t->device.cache;
	p->step = &t->device.step;
	p->k.data = POINTER(t->device_k);
	p->v.data = POINTER(t->device_v);
	p->q.data = POINTER(t->device.q);
	p->q_out.data = POINTER(t->device_q_out);
}

static void tokens_deinit(struct tokens *t)
{
	paged_gpu_free(paged_device_gpu, t->device_k);
	paged_gpu_free(paged_device_gpu, t->device_v);
	paged_gpu_free(paged_device_gpu, t->device_q_out);
	paged_gpu_free(paged_device_gpu, t->device_table);
	paged_gpu_free(paged_device_gpu, t->device_positions);
	free(t->k);
	free(t->v);
	free(t->q_out);
	free(t->table);
	paged_device_deinit(&t->device);
	paged_deinit(&t->problem);
}

/* Runs on both, and compares the pools, unless @unit is below 0. */
static void tokens_run(struct tokens *t, double unit, const char *what)
{
	struct paged_gpu_plan plan;
	char *pool = malloc(t->problem.pool_bytes);

	if (paged_gpu_plan(paged_device_gpu, paged_gpu_chip(paged_device_gpu), &t->request, &plan) <
	    0)
		paged_fail("%s: no plan", what);
	paged_gpu_launch(paged_device_gpu, &plan, &t->request);
	paged_gpu_sync(paged_device_gpu);
	paged_gpu_plan_free(paged_device_gpu, &plan);
	run_on_cpu(&t->host);
	paged_gpu_download(paged_device_gpu, pool, t->device.pool, t->problem.pool_bytes);
	if (unit >= 0)
		compare(&t->problem, pool, t->problem.cache.pool, t->problem.pool_bytes, unit,
		        what);
	free(pool);
}

static void compare_back(struct tokens *t, uint64_t from, const void *host, size_t bytes,
                         double unit, const char *what)
{
	char *back = malloc(bytes);

	paged_gpu_download(paged_device_gpu, back, from, bytes);
	compare(&t->problem, back, host, bytes, unit, what);
	free(back);
}

static void rotary_of(struct tokens *t, int i)
{
	static const int32_t dims[] = { 72, 2, 64, 48, 22, 40, 16 };
	struct fa_paged_rotary rotary = {
		.dim = dims[i % 7],
		.interleaved = i / 7 % 2,
		.base = i % 3 ? 10000 : 500000,
		.scale = i % 5 ? 1 : 0.125,
	};
	const size_t angles = 600 * (size_t)rotary.dim / 2;

	t->host.append.rotary = t->request.append.rotary = rotary;
	if (i % 4 == 1) {
		for (int token = 0; token < 512; token++)
			t->positions[token] = (uint32_t)problem_random(130000);
		t->device_positions = paged_device_upload(t->positions, sizeof(t->positions));
		t->host.append.rotary.positions = t->positions;
		t->request.append.rotary.positions = POINTER(t->device_positions);
	}
	if (i % 4 >= 2) {
		t->table = malloc(2 * angles * sizeof(float));
		for (size_t a = 0; a < angles; a++) {
			t->table[a] = (float)cos((double)a * 0.37);
			t->table[angles + a] = (float)sin((double)a * 0.37);
		}
		t->device_table = paged_device_upload(t->table, 2 * angles * sizeof(float));
		t->host.append.rotary.cos = t->table;
		t->host.append.rotary.sin = t->table + angles;
		t->request.append.rotary.cos = POINTER(t->device_table);
		t->request.append.rotary.sin = POINTER(t->device_table + angles * sizeof(float));
		t->host.append.rotary.table_positions = 600;
		t->request.append.rotary.table_positions = 600;
	}
}

static void append(int i, int ways)
{
	static struct tokens t;
	double unit;

	if (setjmp(paged_failure)) {
		failed++;
		return;
	}
	tokens_init(&t, i, ways);
	/* Every other one carries the table, but for codes. */
	if (i % 2 && ways < 0)
		hide_table(&t.device, &t.problem);
	tokens_run(&t, 0, "append");
	show_table(&t.device, &t.problem);
	compare_back(&t, t.device_q_out, t.q_out, t.problem.q_bytes, 0, "q of append");

	t.host.op = t.request.op = FA_PAGED_READ;
	memset(t.k, 0xff, t.k_bytes);
	memset(t.v, 0xff, t.v_bytes);
	paged_gpu_fill(paged_device_gpu, t.device_k, 0xff, t.k_bytes);
	paged_gpu_fill(paged_device_gpu, t.device_v, 0xff, t.v_bytes);
	tokens_run(&t, 0, "read");
	compare_back(&t, t.device_k, t.k, t.k_bytes, 0, "k of read");
	compare_back(&t, t.device_v, t.v, t.v_bytes, 0, "v of read");

	t.host.op = t.request.op = FA_PAGED_APPEND;
	if (i % 2 && ways < 0)
		hide_table(&t.device, &t.problem);
	rotary_of(&t, i);
	if (i % 3 == 1) {
		/* In place. */
		t.host.append.q_out.data = t.problem.q;
		t.request.append.q_out.data = POINTER(t.device.q);
	}
	unit = t.problem.spec.dtype == FA_ATTENTION_F32   ? 3e-6
	       : t.problem.spec.dtype == FA_ATTENTION_F16 ? 0x1p-10
	                                                  : 0x1p-7;
	/* A code may be the next one; what it stands for is judged. */
	tokens_run(&t, ways < 0 ? unit : -1, "rotary append");
	if (ways >= 0) {
		t.host.op = t.request.op = FA_PAGED_READ;
		tokens_run(&t, -1, "read");
		compare_back(&t, t.device_k, t.k, t.k_bytes, 0.13, "k of read");
		compare_back(&t, t.device_v, t.v, t.v_bytes, 0, "v of read");
	}
	compare_back(&t, t.device.q, t.problem.q, t.problem.q_bytes, unit, "q rotated in place");
	compare_back(&t, t.device_q_out, t.q_out, t.problem.q_bytes, unit, "q rotated");
	tokens_deinit(&t);
	passed++;
}

static void pages_and_moves(int i, int ways)
{
	static const uint32_t from[] = { 60, 62, 63, 64, 90, 99, 5, 6 },
			      cu[] = { 0, 0, 0, 6, 6, 8 };
	static const uint32_t to[] = { 0, 0, 60, 0, 3 };
	static struct tokens t;
	uint32_t source[2];

	if (setjmp(paged_failure)) {
		failed++;
		return;
	}
	tokens_init(&t, i, ways);
	source[0] = t.problem.table[t.problem.table_start[0]];
	source[1] = t.problem.table[t.problem.table_start[4]];
	t.host.op = t.request.op = FA_PAGED_COPY;
	t.host.pages = (struct fa_paged_pages){ &t.problem.cache, 2, source, t.problem.spare };
	t.request.pages = t.host.pages;
	t.request.pages.cache = &t.device.cache;
	tokens_run(&t, 0, "copy");
	t.host.op = t.request.op = FA_PAGED_CLEAR;
	tokens_run(&t, 0, "clear");

	t.host.op = t.request.op = FA_PAGED_MOVE;
	t.host.move = (struct fa_paged_move){ &t.problem.cache,
		                              5,
		                              cu,
		                              from,
		                              to,
		                              t.problem.table,
		                              t.problem.table_start,
		                              t.problem.step.table_entries };
	t.request.move = t.host.move;
	t.request.move.cache = &t.device.cache;
	t.request.move.table = t.device.step.table;
	if (fa_paged_check(&t.host, NULL, 0) < 0)
		paged_fail("moves are refused");
	tokens_run(&t, 0, "move");
	tokens_deinit(&t);
	passed++;
}

static void merge(int i)
{
	static const float special[] = { -INFINITY, INFINITY, -200, 200, 0 };
	const enum fa_attention_dtype dtype = dtypes[i % 3];
	const double unit = dtype == FA_ATTENTION_F32   ? 3e-6
	                    : dtype == FA_ATTENTION_F16 ? 0x1p-10
	                                                : 0x1p-7;
	const int32_t dim = i % 2 ? 40 : 128, gap = i % 4 == 3 ? 1 : 8;
	const int64_t rows = 70, elements = rows * (dim + gap);
	const size_t bytes = (size_t)elements * 4;
	char *host[3] = { calloc(1, bytes), calloc(1, bytes), calloc(1, bytes) };
	float lse[3][70], lse_back[70];
	uint64_t data[3], lses[3];
	struct fa_paged_request on_cpu = { .op = FA_PAGED_MERGE }, request;
	struct fa_paged_partial *sides[] = { &on_cpu.merge.a, &on_cpu.merge.b,
		                             &on_cpu.merge.result };
	struct paged_problem fake = { .spec = { .dtype = dtype } };
	struct paged_gpu_plan plan;
	char *back = malloc(bytes);

	if (setjmp(paged_failure)) {
		failed++;
		return;
	}
	on_cpu.merge.dtype = dtype;
	on_cpu.merge.tokens = rows / 2;
	on_cpu.merge.heads = 2;
	on_cpu.merge.head_dim_v = dim;
	for (int side = 0; side < 3; side++) {
		for (int64_t row = 0; row < rows; row++) {
			lse[side][row] = row < 25 ? special[side ? row % 5 : row / 5]
			                          : (float)problem_normal() * 4;
			for (int32_t c = 0; c < dim; c++)
				reference_set(dtype, host[side], row * (dim + gap) + c,
				              isinf(lse[side][row]) ? NAN : problem_normal());
		}
		data[side] = paged_device_upload(host[side], bytes);
		lses[side] = paged_device_upload(lse[side], sizeof(lse[side]));
		*sides[side] = (struct fa_paged_partial){
			{ host[side], 0, 2 * (dim + gap), dim + gap }, lse[side], 2, 1
		};
	}
	request = on_cpu;
	request.merge.a.out.data = POINTER(data[0]);
	request.merge.a.lse = POINTER(lses[0]);
	request.merge.b.out.data = POINTER(data[1]);
	request.merge.b.lse = POINTER(lses[1]);
	request.merge.result.out.data = POINTER(data[i % 2 ? 2 : 0]);
	request.merge.result.lse = POINTER(lses[i % 2 ? 2 : 0]);
	if (paged_gpu_plan(paged_device_gpu, paged_gpu_chip(paged_device_gpu), &request, &plan) < 0)
		paged_fail("merge: no plan");
	paged_gpu_launch(paged_device_gpu, &plan, &request);
	paged_gpu_sync(paged_device_gpu);
	paged_gpu_plan_free(paged_device_gpu, &plan);
	run_on_cpu(&on_cpu);
	paged_gpu_download(paged_device_gpu, back, data[i % 2 ? 2 : 0], bytes);
	paged_gpu_download(paged_device_gpu, lse_back, lses[i % 2 ? 2 : 0], sizeof(lse_back));
	for (int64_t row = 0; row < rows; row++) {
		const int64_t element = dtype == FA_ATTENTION_F32 ? 4 : 2;
		const int64_t at = row * (dim + gap) * element;

		compare(&fake, back + at, host[2] + at, (size_t)(dim * element), unit, "merge");
		if (lse_back[row] != lse[2][row] &&
		    !(fabs(lse_back[row] - lse[2][row]) <= 2e-5 * (1 + fabs(lse[2][row]))))
			paged_fail("merge: lse %lld is %g, not %g", (long long)row, lse_back[row],
			           lse[2][row]);
	}
	for (int side = 0; side < 3; side++) {
		paged_gpu_free(paged_device_gpu, data[side]);
		paged_gpu_free(paged_device_gpu, lses[side]);
		free(host[side]);
	}
	free(back);
	passed++;
}

/* Says how a part went, and begins the next one. */
static void report(const char *part)
{
	static int passed_before, failed_before;
	static double seconds_before;
	struct timespec now;
	double seconds;

	clock_gettime(CLOCK_MONOTONIC, &now);
	seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
	if (part)
		printf("%-9s %5d passed, %d failed, %.1f s\n", part, passed - passed_before,
		       failed - failed_before, seconds - seconds_before);
	fflush(stdout);
	passed_before = passed;
	failed_before = failed;
	seconds_before = seconds;
}

int main(int argc, char **argv)
{
	uint64_t seed = (uint64_t)time(NULL);
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
	report(NULL);
	for (int i = 0; i < 28; i++)
		append(i, -1);
	for (int i = 0; i < 16; i++)
		append(i, i / 2);
	for (int i = 0; i < 15; i++)
		pages_and_moves(i, -1);
	for (int i = 0; i < 4; i++)
		pages_and_moves(i, i);
	for (int i = 0; i < 12; i++)
		merge(i);
	report("tokens");
	few();
	report("few");
	chosen();
	report("chosen");
	codes();
	report("codes");
	reruns();
	report("reruns");
	far_slots();
	report("far slots");
	every = 1;
	broken();
	report("broken");
	for (int i = 0; i < 3; i++)
		unseen(dtypes[i], -1);
	for (int i = 0; i < 8; i++)
		unseen(way_of(&usual, i).dtype, i);
	report("unseen");
	for (int i = 0; i < count; i++)
		random_one(seed + (uint64_t)i);
	report("random");
	printf("%d passed, %d failed\n", passed, failed);
	paged_gpu_close(paged_device_gpu);
	return failed ? 1 : 0;
}
