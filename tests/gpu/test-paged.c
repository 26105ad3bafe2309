/*
 * The GPU kernels over pages: attention against fp64 (tests/kernels/paged-problem.h), with
 * work divided over different numbers of blocks and on the kernels for chips with less
 * shared memory; everything else against the CPU's.
 *   test-paged [--seed N] [--random N] [--every N] [--small]
 * Skips (77) without a GPU.
 */
#include "tests/gpu/paged-gpu.h"
#include "tests/kernels/paged-problem.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct paged_gpu *gpu;
static int passed, failed;
static jmp_buf failure;

/* ---- what paged-problem.c wants */

static uint64_t random_state = 1;

void problem_seed(uint64_t seed)
{
	random_state = seed * 2 + 1;
	for (int i = 0; i < 8; i++)
		problem_random(2);
}

uint64_t problem_random(uint64_t below)
{
	uint64_t x;

	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	x = random_state ^ random_state >> 29;
	x *= 0x9e3779b97f4a7c15u;
	return (x >> 20) % below;
}

double problem_normal(void)
{
	double sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (double)problem_random(1u << 24) / (1u << 24) - 0.5;
	return sum * 1.7320508;
}

void paged_fail(const char *format, ...)
{
	va_list args;

	printf("FAIL ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	longjmp(failure, 1);
}

/* ---- a problem on the device */

struct device {
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	struct fa_paged_request request;
	uint64_t pool, table, tree, positions, q, out, lse, slopes, sinks;
};

static uint64_t upload_new(const void *from, size_t bytes)
{
	const uint64_t to = paged_gpu_alloc(gpu, bytes);

	if (!to)
		paged_fail("no memory for %zu bytes", bytes);
	paged_gpu_upload(gpu, to, from, bytes);
	return to;
}

static size_t tree_words(const struct paged_problem *problem)
{
	size_t words = 0;

	for (int32_t b = 0; b < problem->spec.batch; b++) {
		const size_t n_new = problem->spec.n_new[b];

		if (problem->tree_start[b] != FA_PAGED_NO_TREE)
			words = problem->tree_start[b] + n_new * ((n_new + 31) / 32);
	}
	return words;
}

#define POINTER(address) ((void *)(uintptr_t)(address))

static void device_init(struct device *device, const struct paged_problem *problem)
{
	const struct paged_spec *spec = &problem->spec;
	struct fa_paged_attention *p = &device->request.attention;
	const size_t tokens = problem->cu_new[spec->batch];

	memset(device, 0, sizeof(*device));
	device->request = problem->request;
	device->cache = problem->cache;
	device->step = problem->step;
	device->pool = upload_new(problem->cache.pool, problem->pool_bytes);
	device->table = upload_new(problem->table, problem->step.table_entries * 4);
	device->q = upload_new(problem->q, problem->q_bytes);
	device->out = upload_new(problem->out, problem->out_bytes);
	device->lse = upload_new(problem->lse, problem->lse_bytes);
	device->slopes = upload_new(problem->slopes, sizeof(problem->slopes));
	device->sinks = upload_new(problem->sinks, sizeof(problem->sinks));
	device->cache.pool = POINTER(device->pool);
	device->step.table = POINTER(device->table);
	p->cache = &device->cache;
	p->step = &device->step;
	p->q.data = POINTER(device->q);
	p->out.data = POINTER(device->out);
	p->lse = p->lse ? POINTER(device->lse) : NULL;
	p->alibi_slopes = p->alibi_slopes ? POINTER(device->slopes) : NULL;
	p->sinks = p->sinks ? POINTER(device->sinks) : NULL;
	if (p->tree) {
		device->tree = upload_new(problem->tree, tree_words(problem) * 4);
		device->positions = upload_new(problem->positions, tokens * 4);
		p->tree = POINTER(device->tree);
		p->positions = POINTER(device->positions);
	}
}

static void device_deinit(struct device *device)
{
	paged_gpu_free(gpu, device->pool);
	paged_gpu_free(gpu, device->table);
	paged_gpu_free(gpu, device->tree);
	paged_gpu_free(gpu, device->positions);
	paged_gpu_free(gpu, device->q);
	paged_gpu_free(gpu, device->out);
	paged_gpu_free(gpu, device->lse);
	paged_gpu_free(gpu, device->slopes);
	paged_gpu_free(gpu, device->sinks);
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

static void run(struct device *device, struct paged_problem *problem,
                const struct paged_gpu_plan *plan)
{
	paged_gpu_fill(gpu, device->out, 0xff, problem->out_bytes);
	paged_gpu_fill(gpu, device->lse, 0xff, problem->lse_bytes);
	paged_gpu_poison_shared(gpu);
	paged_gpu_launch(gpu, plan, &device->request);
	paged_gpu_sync(gpu);
	paged_gpu_download(gpu, problem->out, device->out, problem->out_bytes);
	paged_gpu_download(gpu, problem->lse, device->lse, problem->lse_bytes);
}

static void check_on(struct device *device, struct paged_problem *problem,
                     const struct fa_cuda_chip *chip)
{
	void *volatile once = malloc(problem->out_bytes + 1);
	struct paged_gpu_plan plan = { .blob = 0 };
	char by[128];

	if (setjmp(failure)) {
		failed++;
	} else {
		if (paged_gpu_plan(gpu, chip, &device->request, &plan) < 0)
			paged_fail("%s: no plan", paged_describe(problem));
		snprintf(by, sizeof(by), "%s, %s, %d blocks",
		         plan.plan.decode ? plan.plan.decode->symbol : "-",
		         plan.plan.forward ? plan.plan.forward->symbol : "-", chip->sms);
		run(device, problem, &plan);
		memcpy(once, problem->out, problem->out_bytes);
		run(device, problem, &plan);
		if (memcmp(once, problem->out, problem->out_bytes) != 0)
			paged_fail("%s on %s: two runs differ", paged_describe(problem), by);
		paged_judge(problem, by,
		            problem->spec.dtype == FA_ATTENTION_F32 ? PAGED_ROUNDS_WEIGHTS_FAST
		                                                    : PAGED_ROUNDS_WEIGHTS_FAST);
		passed++;
	}
	paged_gpu_plan_free(gpu, &plan);
	free(once);
}

static void check(const struct paged_spec *given)
{
	const struct fa_cuda_chip *chip = paged_gpu_chip(gpu);
	struct fa_cuda_chip other = *chip;
	struct paged_spec spec = *given;
	struct paged_problem problem;
	struct device device;
	static int number;

	if (number++ % every)
		return;
	make_small(&spec);
	paged_init(&problem, &spec);
	if (setjmp(failure)) {
		failed++;
		return;
	}
	device_init(&device, &problem);
	check_on(&device, &problem, chip);
	other.sms = 1;
	if (!small)
		check_on(&device, &problem, &other);
	other.sms = 7 + (int32_t)problem_random(300);
	if (!small)
		check_on(&device, &problem, &other);
	other.shared_bytes_max = 101376;
	check_on(&device, &problem, &other);
	device_deinit(&device);
	paged_deinit(&problem);
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

/* The last tokens' K grows: other rows, which do not see it, stay as they are to the bit. */
static void unseen(enum fa_attention_dtype dtype)
{
	struct paged_spec spec = usual;
	struct paged_problem problem;
	struct paged_gpu_plan plan;
	struct device device;
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
	if (setjmp(failure)) {
		failed++;
		return;
	}
	device_init(&device, &problem);
	if (paged_gpu_plan(gpu, paged_gpu_chip(gpu), &device.request, &plan) < 0)
		paged_fail("no plan");
	run(&device, &problem, &plan);
	memcpy(once, problem.out, problem.out_bytes);
	for (int32_t b = 0; b < 2; b++)
		for (int32_t h = 0; h < spec.kv_heads; h++)
			for (int32_t c = 0; c < spec.head_dim; c++)
				reference_set(dtype,
				              paged_k(&problem, 1, b, spec.lengths[b] - 1, h), c,
				              100 * problem_normal());
	paged_gpu_upload(gpu, device.pool, problem.cache.pool, problem.pool_bytes);
	run(&device, &problem, &plan);
	for (uint32_t row = 0; row < problem.cu_new[2]; row++) {
		const bool sees = row + 1 == problem.cu_new[1] || row + 1 == problem.cu_new[2];
		const size_t at = row * row_bytes;

		if (!memcmp((char *)once + at, (char *)problem.out + at, row_bytes) == sees)
			paged_fail("dtype %d: token %u %s", dtype, row,
			           sees ? "did not change" : "saw what it does not see");
	}
	passed++;
	paged_gpu_plan_free(gpu, &plan);
	device_deinit(&device);
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
	struct device device;
	void *once;

	spec.lengths[0] = 9000;
	make_small(&spec);
	paged_init(&problem, &spec);
	once = malloc(problem.out_bytes);
	if (setjmp(failure)) {
		failed++;
		return;
	}
	device_init(&device, &problem);
	if (paged_gpu_plan(gpu, paged_gpu_chip(gpu), &device.request, &plan) < 0)
		paged_fail("no plan");
	run(&device, &problem, &plan);
	memcpy(once, problem.out, problem.out_bytes);
	for (int i = 0; i < (small ? 20 : 1000); i++) {
		paged_gpu_launch(gpu, &plan, &device.request);
		if (i % 20 && !small)
			continue;
		run(&device, &problem, &plan);
		if (memcmp(once, problem.out, problem.out_bytes) != 0)
			paged_fail("run %d differs", i);
	}
	passed++;
	paged_gpu_plan_free(gpu, &plan);
	device_deinit(&device);
	paged_deinit(&problem);
	free(once);
}

/* Slots beyond 2^24, whose bytes are beyond 2^32. */
static void far_slots(void)
{
	const size_t far = (size_t)36 << 30;
	struct paged_spec spec = usual;
	struct paged_problem problem;
	struct device device;
	uint64_t pool;

	pool = paged_gpu_alloc(gpu, far + (64 << 20));
	if (!pool) {
		printf("no memory for far slots\n");
		return;
	}
	spec.page_tokens = 16;
	paged_init(&problem, &spec);
	if (problem.pool_bytes > 64 << 20 || setjmp(failure)) {
		failed++;
		return;
	}
	device_init(&device, &problem);
	paged_gpu_upload(gpu, pool + far, problem.cache.pool, problem.pool_bytes);
	for (uint32_t i = 0; i < problem.step.table_entries; i++)
		if (problem.table[i] != PAGED_WILD)
			problem.table[i] += (uint32_t)(far / 256);
	paged_gpu_upload(gpu, device.table, problem.table, problem.step.table_entries * 4);
	device.cache.pool = POINTER(pool);
	check_on(&device, &problem, paged_gpu_chip(gpu));
	device_deinit(&device);
	paged_deinit(&problem);
	paged_gpu_free(gpu, pool);
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
	struct device device;
	struct fa_paged_request host, request;
	char *k, *v, *q_out;
	size_t k_bytes, v_bytes;
	uint64_t device_k, device_v, device_q_out;
	float *table;
	uint64_t device_table;
	uint32_t positions[512];
	uint64_t device_positions;
};

static void tokens_init(struct tokens *t, int i)
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
	spec.gaps = i % 3 == 0;
	paged_init(&t->problem, &spec);
	device_init(&t->device, &t->problem);
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
	t->device_k = upload_new(t->k, t->k_bytes);
	t->device_v = upload_new(t->v, t->v_bytes);
	t->device_q_out = upload_new(t->q_out, t->problem.q_bytes);

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
	paged_gpu_free(gpu, t->device_k);
	paged_gpu_free(gpu, t->device_v);
	paged_gpu_free(gpu, t->device_q_out);
	paged_gpu_free(gpu, t->device_table);
	paged_gpu_free(gpu, t->device_positions);
	free(t->k);
	free(t->v);
	free(t->q_out);
	free(t->table);
	device_deinit(&t->device);
	paged_deinit(&t->problem);
}

/* Runs on both, and compares the pools. */
static void tokens_run(struct tokens *t, double unit, const char *what)
{
	struct paged_gpu_plan plan;
	char *pool = malloc(t->problem.pool_bytes);

	if (paged_gpu_plan(gpu, paged_gpu_chip(gpu), &t->request, &plan) < 0)
		paged_fail("%s: no plan", what);
	paged_gpu_launch(gpu, &plan, &t->request);
	paged_gpu_sync(gpu);
	paged_gpu_plan_free(gpu, &plan);
	run_on_cpu(&t->host);
	paged_gpu_download(gpu, pool, t->device.pool, t->problem.pool_bytes);
	compare(&t->problem, pool, t->problem.cache.pool, t->problem.pool_bytes, unit, what);
	free(pool);
}

static void compare_back(struct tokens *t, uint64_t from, const void *host, size_t bytes,
                         double unit, const char *what)
{
	char *back = malloc(bytes);

	paged_gpu_download(gpu, back, from, bytes);
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
		t->device_positions = upload_new(t->positions, sizeof(t->positions));
		t->host.append.rotary.positions = t->positions;
		t->request.append.rotary.positions = POINTER(t->device_positions);
	}
	if (i % 4 >= 2) {
		t->table = malloc(2 * angles * sizeof(float));
		for (size_t a = 0; a < angles; a++) {
			t->table[a] = (float)cos((double)a * 0.37);
			t->table[angles + a] = (float)sin((double)a * 0.37);
		}
		t->device_table = upload_new(t->table, 2 * angles * sizeof(float));
		t->host.append.rotary.cos = t->table;
		t->host.append.rotary.sin = t->table + angles;
		t->request.append.rotary.cos = POINTER(t->device_table);
		t->request.append.rotary.sin = POINTER(t->device_table + angles * sizeof(float));
		t->host.append.rotary.table_positions = 600;
		t->request.append.rotary.table_positions = 600;
	}
}

static void append(int i)
{
	static struct tokens t;
	double unit;

	if (setjmp(failure)) {
		failed++;
		return;
	}
	tokens_init(&t, i);
	tokens_run(&t, 0, "append");
	compare_back(&t, t.device_q_out, t.q_out, t.problem.q_bytes, 0, "q of append");

	t.host.op = t.request.op = FA_PAGED_READ;
	memset(t.k, 0xff, t.k_bytes);
	memset(t.v, 0xff, t.v_bytes);
	paged_gpu_fill(gpu, t.device_k, 0xff, t.k_bytes);
	paged_gpu_fill(gpu, t.device_v, 0xff, t.v_bytes);
	tokens_run(&t, 0, "read");
	compare_back(&t, t.device_k, t.k, t.k_bytes, 0, "k of read");
	compare_back(&t, t.device_v, t.v, t.v_bytes, 0, "v of read");

	t.host.op = t.request.op = FA_PAGED_APPEND;
	rotary_of(&t, i);
	if (i % 3 == 1) {
		/* In place. */
		t.host.append.q_out.data = t.problem.q;
		t.request.append.q_out.data = POINTER(t.device.q);
	}
	unit = t.problem.spec.dtype == FA_ATTENTION_F32   ? 3e-6
	       : t.problem.spec.dtype == FA_ATTENTION_F16 ? 0x1p-10
	                                                  : 0x1p-7;
	tokens_run(&t, unit, "rotary append");
	compare_back(&t, t.device.q, t.problem.q, t.problem.q_bytes, unit, "q rotated in place");
	compare_back(&t, t.device_q_out, t.q_out, t.problem.q_bytes, unit, "q rotated");
	tokens_deinit(&t);
	passed++;
}

static void pages_and_moves(int i)
{
	static const uint32_t from[] = { 60, 62, 63, 64, 90, 99, 5, 6 },
			      cu[] = { 0, 0, 0, 6, 6, 8 };
	static const uint32_t to[] = { 0, 0, 60, 0, 3 };
	static struct tokens t;
	uint32_t source[2];

	if (setjmp(failure)) {
		failed++;
		return;
	}
	tokens_init(&t, i);
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

	if (setjmp(failure)) {
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
		data[side] = upload_new(host[side], bytes);
		lses[side] = upload_new(lse[side], sizeof(lse[side]));
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
	if (paged_gpu_plan(gpu, paged_gpu_chip(gpu), &request, &plan) < 0)
		paged_fail("merge: no plan");
	paged_gpu_launch(gpu, &plan, &request);
	paged_gpu_sync(gpu);
	paged_gpu_plan_free(gpu, &plan);
	run_on_cpu(&on_cpu);
	paged_gpu_download(gpu, back, data[i % 2 ? 2 : 0], bytes);
	paged_gpu_download(gpu, lse_back, lses[i % 2 ? 2 : 0], sizeof(lse_back));
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
		paged_gpu_free(gpu, data[side]);
		paged_gpu_free(gpu, lses[side]);
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
	gpu = paged_gpu_open();
	if (!gpu)
		return 77;
	printf("%s, seed %llu\n", paged_gpu_name(gpu), (unsigned long long)seed);
	problem_seed(seed);
	report(NULL);
	for (int i = 0; i < 28; i++)
		append(i);
	for (int i = 0; i < 15; i++)
		pages_and_moves(i);
	for (int i = 0; i < 12; i++)
		merge(i);
	report("tokens");
	chosen();
	report("chosen");
	reruns();
	report("reruns");
	far_slots();
	report("far slots");
	every = 1;
	broken();
	report("broken");
	for (int i = 0; i < 3; i++)
		unseen(dtypes[i]);
	report("unseen");
	for (int i = 0; i < count; i++)
		random_one(seed + (uint64_t)i);
	report("random");
	printf("%d passed, %d failed\n", passed, failed);
	paged_gpu_close(gpu);
	return failed ? 1 : 0;
}
