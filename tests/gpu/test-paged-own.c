/* Attention over a client's own pages (paged-own.h), and append to them, compared with fp64.
 *   test-paged-own [--seed N] [--random N] [--every N] [--small] Skips (77) without a GPU. */
#include "tests/gpu/draw.h"
#include "tests/gpu/paged-fixture.h"
#include "tests/gpu/paged-own.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_on(struct paged_own *own, struct paged_device *device,
                     struct paged_problem *problem, const struct fa_cuda_chip *chip)
{
	void *const once = malloc(problem->out_bytes + 1);
	struct paged_gpu_plan plan = paged_own_plan(own, problem, chip);
	char by[1500];

	snprintf(by, sizeof(by), "%s, %s, %d SMs, %s",
	         plan.plan.decode ? plan.plan.decode->symbol : "-",
	         plan.plan.forward ? plan.plan.forward->symbol : "-", chip->sms,
	         paged_own_describe(own, problem));
	paged_own_run(own, device, problem, &plan);
	memcpy(once, problem->out, problem->out_bytes);
	paged_own_run(own, device, problem, &plan);
	paged_gpu_plan_free(paged_device_gpu, &plan);
	if (memcmp(once, problem->out, problem->out_bytes) != 0)
		paged_fail("%s: two runs differ", by);
	free(once);
	paged_judge(problem, by, PAGED_ROUNDS_WEIGHTS_FAST);
	paged_passed++;
}

/* Tests kernels of packed rows, if they cover the problem, with a random number of processors. */
static void check_packed(struct paged_own *own, struct paged_device *device,
                         struct paged_problem *problem)
{
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_gpu_plan plan;
	bool packed;

	if (!paged_gpu_has_tma(paged_device_gpu))
		return;
	chip.pack = 1;
	chip.sms = problem->spec.kv_heads * (1 + (int32_t)problem_random(20));
	plan = paged_own_plan(own, problem, &chip);
	packed = plan.plan.forward && plan.plan.forward->kind == FA_CUDA_PAGED_OWN_PACKED;
	paged_gpu_plan_free(paged_device_gpu, &plan);
	if (packed)
		check_on(own, device, problem, &chip);
}

static void check(const struct paged_spec *given, enum paged_own_layout layout, int32_t page_tokens)
{
	static int number;
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_spec spec = *given;
	struct paged_problem problem;
	struct paged_device device;
	struct paged_own own;

	if (number++ % paged_options.every || !fa_draw())
		return;
	for (int32_t b = 0; paged_options.small && b < spec.batch; b++)
		if (spec.lengths[b] > spec.n_new[b] + 320)
			spec.lengths[b] = spec.n_new[b] + 300 + spec.lengths[b] % 97;
	paged_init(&problem, &spec);
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	paged_own_init(&own, &problem, &device, layout, page_tokens);
	check_on(&own, &device, &problem, &chip);
	check_packed(&own, &device, &problem);
	/* The portable kernels, which have less shared memory; and other divisions. */
	if (!paged_options.small || number % 2) {
		chip.portable_paged = true;
		chip.sms = 1 + (int32_t)problem_random(300);
		check_on(&own, &device, &problem, &chip);
	}
	paged_own_deinit(&own);
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

/* ---- all kernels, with some features each */

static void run_kernels(void)
{
	static const int32_t dims[][2] = { { 128, 128 }, { 64, 64 },   { 256, 256 },
		                           { 80, 80 },   { 192, 128 }, { 64, 136 } };
	static const int32_t sizes[] = { 16, 1, 64, 3, 128, 17, 256, 8 };
	int i = 0;

	for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
		for (int t = 0; t < 4; t++, i++) {
			struct paged_spec spec = paged_usual;

			if (paged_options.small) {
				spec.n_new[2] = 60;
				spec.lengths[0] = 230;
				spec.lengths[2] = 150;
			}
			spec.dtype = t == 3 ? paged_dtypes[1 + i % 2] : paged_dtypes[t];
			spec.head_dim = dims[d][0];
			spec.head_dim_v = dims[d][1];
			if (t == 3) {
				spec.store = FA_PAGED_E4M3;
				spec.head_scales = true;
				spec.head_dim_v = dims[d][1] / 16 * 16;
			}
			spec.alibi = i % 5 == 1;
			spec.sinks = i % 4 == 2;
			spec.softcap = i % 7 == 3 ? 20 : 0;
			spec.left_1 = i % 3 == 2 ? 77 : 0;
			spec.causal = i % 4 != 3;
			spec.right_1 = i % 8 == 3 ? 4 : 0;
			spec.deterministic = i % 6 == 5;
			spec.gaps = i % 5 == 3 ? 1 + i % 2 : 0;
			check(&spec, (enum paged_own_layout)(i % PAGED_OWN_LAYOUTS), sizes[i % 8]);
			check(&spec, (enum paged_own_layout)((i + 1) % PAGED_OWN_LAYOUTS),
			      sizes[(i + 3) % 8]);
		}
	paged_report("kernels");
}

static void run_sizes(void)
{
	for (int32_t tokens = 1; tokens <= 256; tokens += tokens < 20 ? 1 : 47) {
		struct paged_spec spec = paged_usual;

		spec.n_new[2] = tokens % 2 ? 7 : 60;
		spec.head_dim = spec.head_dim_v = tokens % 3 ? 64 : 128;
		check(&spec, (enum paged_own_layout)(tokens % PAGED_OWN_LAYOUTS), tokens);
	}
	paged_report("sizes");
}

/* Decode of one token, a batch of equal sequences, empty sequences and rows without keys. */
static void run_shapes(void)
{
	static const struct {
		int32_t batch, heads, kv_heads;
		uint32_t n_new[4], lengths[4];
	} shapes[] = {
		{ 1, 32, 8, { 1 }, { 1 } },
		{ 1, 8, 1, { 1 }, { 4000 } },
		{ 4, 8, 8, { 1, 1, 1, 1 }, { 300, 1, 0, 64 } },
		{ 3, 12, 4, { 2, 0, 70 }, { 130, 9, 33 } },
		{ 2, 6, 2, { 5, 100 }, { 3, 0 } },
		{ 4, 4, 4, { 0, 0, 0, 0 }, { 10, 0, 7, 1 } },
		{ 2, 16, 1, { 48, 47 }, { 1000, 900 } },
	};

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int causal = 0; causal < 2; causal++) {
			struct paged_spec spec = paged_usual;

			spec.batch = shapes[i].batch;
			spec.heads = shapes[i].heads;
			spec.kv_heads = shapes[i].kv_heads;
			memcpy(spec.n_new, shapes[i].n_new, sizeof(shapes[i].n_new));
			memcpy(spec.lengths, shapes[i].lengths, sizeof(shapes[i].lengths));
			spec.causal = causal;
			spec.broken = causal ? 0 : 6;
			spec.v_size = causal ? 8e37f : 0;
			check(&spec,
			      (enum paged_own_layout)((i + (size_t)causal) % PAGED_OWN_LAYOUTS),
			      causal ? 16 : 5);
		}
	paged_report("shapes");
}

/* Few new tokens on many keys, which rows are packed for. */
static void run_extends(void)
{
	static const struct {
		int32_t batch, heads, kv_heads, dim;
		uint32_t n_new[4], lengths[4];
	} shapes[] = {
		{ 1, 8, 2, 128, { 64 }, { 4000 } },
		{ 1, 4, 1, 64, { 16 }, { 3000 } },
		{ 1, 6, 3, 256, { 33 }, { 700 } },
		{ 4, 8, 2, 128, { 1, 70, 0, 12 }, { 900, 1500, 5, 12 } },
		{ 3, 5, 1, 64, { 100, 3, 129 }, { 2000, 3, 700 } },
		{ 2, 32, 2, 128, { 17, 300 }, { 1000, 60 } },
		{ 4, 4, 4, 64, { 20, 20, 20, 20 }, { 0, 10, 20, 2000 } },
	};

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int form = 0; form < 4; form++) {
			struct paged_spec spec = paged_usual;

			spec.batch = shapes[i].batch;
			spec.heads = shapes[i].heads;
			spec.kv_heads = shapes[i].kv_heads;
			spec.head_dim = spec.head_dim_v = shapes[i].dim;
			memcpy(spec.n_new, shapes[i].n_new, sizeof(shapes[i].n_new));
			memcpy(spec.lengths, shapes[i].lengths, sizeof(shapes[i].lengths));
			spec.dtype = paged_dtypes[1 + form % 2];
			spec.causal = form != 2;
			spec.left_1 = form == 1 ? 150 : 0;
			spec.broken = form == 3 ? 5 : 0;
			check(&spec, (enum paged_own_layout)(form % 3), 16 << form);
		}
	paged_report("extends");
}

/* MLA in plain form. */
static void run_plain(void)
{
	static const uint32_t n_new[] = { 64, 300, 17, 129 }, lengths[] = { 2999, 300, 1017, 200 };

	for (int i = 0; i < 12; i++) {
		struct paged_spec spec = paged_usual;

		spec.dtype = paged_dtypes[1 + i % 2];
		spec.head_dim = 192;
		spec.head_dim_v = 128;
		spec.kv_heads = 1 + i % 3;
		spec.heads = spec.kv_heads * (i % 4 == 3 ? 4 : 1);
		spec.batch = i < 6 ? 1 : 3;
		for (int32_t b = 0; b < spec.batch; b++) {
			spec.n_new[b] = n_new[(i + b) % 4];
			spec.lengths[b] = lengths[(i + b) % 4];
		}
		spec.causal = i % 5 != 4;
		spec.left_1 = i % 6 == 5 ? 130 : 0;
		spec.deterministic = i % 7 == 3;
		spec.broken = i % 4 == 2 ? 4 : 0;
		check(&spec, (enum paged_own_layout)(i % PAGED_OWN_LAYOUTS), 16 << i % 4);
	}
	paged_report("plain");
}

/* Head dims above 256. */
static void run_wide(void)
{
	static const int32_t dims[][2] = { { 576, 512 }, { 512, 512 }, { 264, 80 } };

	for (int i = 0; i < 9; i++) {
		struct paged_spec spec = paged_usual;

		spec.dtype = i == 8 ? FA_ATTENTION_F32 : paged_dtypes[1 + i % 2];
		spec.head_dim = dims[i % 3][0];
		spec.head_dim_v = dims[i % 3][1];
		spec.kv_heads = 1 + i % 2;
		spec.heads = spec.kv_heads * (i % 4 == 0 ? 16 : 3);
		spec.n_new[0] = 1 + (uint32_t)i % 2;
		spec.n_new[2] = i % 4 == 1 ? 70 : 5;
		spec.lengths[0] = 230;
		spec.lengths[2] = 150;
		if (i % 4 == 2) {
			spec.store = FA_PAGED_E4M3;
			spec.head_scales = true;
			spec.head_dim = spec.head_dim / 16 * 16;
		}
		spec.broken = i % 3 == 1 ? 3 : 0;
		check(&spec, (enum paged_own_layout)(i % PAGED_OWN_LAYOUTS), i % 2 ? 16 : 5);
	}
	paged_report("wide");
}

/* Attention chunks, which divide sequences of few rows and of many, and prefixes that end before, among
 * and behind the rows; with infinities and NaNs where a row does not see them. */
static void run_parts(void)
{
	static const uint32_t n_new[] = { 1, 60, 7, 140 }, lengths[] = { 300, 200, 129, 90 };
	static const int32_t dims[] = { 128, 64, 80, 256 };

	for (int i = 0; i < 24; i++) {
		struct paged_spec spec = paged_usual;

		spec.dtype = paged_dtypes[i % 5 == 4 ? 0 : 1 + i % 2];
		spec.head_dim = spec.head_dim_v = dims[i / 2 % 4];
		spec.batch = 1 + i % 4;
		for (int32_t b = 0; b < spec.batch; b++) {
			spec.n_new[b] = n_new[(i + b) % 4];
			spec.lengths[b] = lengths[(i / 3 + b) % 4];
			spec.prefix[b] = b % 3 == 2 ? 1000 : 10 + 23 * (uint32_t)(i + b) % 200;
		}
		spec.causal = i % 8 != 3;
		spec.prefixed = spec.causal && i % 3 > 0;
		spec.chunk = i % 3 != 1 ? 16 + 13 * i % 90 : 0;
		spec.left_1 = i % 7 == 5 ? 50 : 0;
		spec.right_1 = i % 8 == 3 ? 20 : 0;
		spec.alibi = i % 9 == 7;
		spec.sinks = i % 5 == 2;
		spec.softcap = i % 6 == 4 ? 20 : 0;
		spec.deterministic = i % 10 == 6;
		spec.broken = i % 4 == 1 ? 5 : 0;
		if (i % 6 == 5 && spec.dtype != FA_ATTENTION_F32) {
			spec.store = FA_PAGED_E4M3;
			spec.head_scales = true;
		}
		check(&spec, (enum paged_own_layout)(i % PAGED_OWN_LAYOUTS), i % 3 ? 16 : 5);
	}
	/* Sequences of a row each need no launch that divides them. */
	for (int i = 0; i < 6; i++) {
		struct paged_spec spec = paged_usual;

		spec.batch = 4;
		for (int32_t b = 0; b < spec.batch; b++) {
			spec.n_new[b] = 1;
			spec.lengths[b] = lengths[b];
		}
		spec.dtype = paged_dtypes[1 + i % 2];
		spec.head_dim = spec.head_dim_v = dims[i % 2];
		spec.chunk = 64 + 21 * (i % 3);
		spec.left_1 = i == 4 ? 30 : 0;
		check(&spec, (enum paged_own_layout)(i % PAGED_OWN_LAYOUTS), 16);
	}
	paged_report("parts");
}

/* Local and strided blocks, in decode and of many rows; hidden tokens hold infinities and NaNs. */
static void run_patterns(void)
{
	static const uint32_t n_new[] = { 1, 60, 7, 140 }, lengths[] = { 700, 200, 129, 90 };
	static const int32_t dims[] = { 128, 64, 80, 256 }, steps[] = { 0, 1, -1, 3 };

	for (int i = 0; i < 24; i++) {
		struct paged_spec spec = paged_usual;

		spec.dtype = paged_dtypes[i % 5 == 4 ? 0 : 1 + i % 2];
		spec.head_dim = spec.head_dim_v = dims[i / 2 % 4];
		spec.batch = 1 + i % 3;
		for (int32_t b = 0; b < spec.batch; b++) {
			spec.n_new[b] = i < 8 ? 1 + (uint32_t)b : n_new[(i + b) % 4];
			spec.lengths[b] = lengths[(i / 3 + b) % 4];
			spec.prefix[b] = 10 + 23 * (uint32_t)(i + b) % 200;
		}
		if (i % 9 == 4) {
			spec.heads = 40;
			spec.kv_heads = 1;
		}
		spec.pattern = (struct fa_attention_pattern){ i % 3 ? 16 << i % 3 : 48, i % 4,
			                                      2 + i % 7, steps[i / 4 % 4], i % 5 };
		spec.causal = i % 8 != 3;
		spec.prefixed = spec.causal && i % 6 == 2;
		spec.chunk = i % 7 == 5 ? 100 : 0;
		spec.left_1 = i % 7 == 6 ? 150 : 0;
		spec.right_1 = i % 8 == 3 ? 20 : 0;
		spec.alibi = i % 9 == 7;
		spec.sinks = i % 5 == 2;
		spec.softcap = i % 6 == 4 ? 20 : 0;
		spec.deterministic = i % 10 == 6;
		spec.broken = i % 4 == 1 ? 5 : 0;
		if (i % 6 == 5 && spec.dtype != FA_ATTENTION_F32) {
			spec.store = FA_PAGED_E4M3;
			spec.head_scales = true;
		}
		check(&spec, (enum paged_own_layout)(i % PAGED_OWN_LAYOUTS), i % 3 ? 16 : 5);
	}
	paged_report("patterns");
}

static void run_random(void)
{
	for (int i = 0; i < paged_options.count; i++) {
		struct paged_spec spec = paged_usual;

		spec.dtype = paged_dtypes[problem_random(3)];
		spec.batch = 1 + (int32_t)problem_random(6);
		spec.kv_heads = 1 + (int32_t)problem_random(3);
		spec.heads = spec.kv_heads * (1 + (int32_t)problem_random(9));
		spec.head_dim = 16 * (1 + (int32_t)problem_random(16));
		spec.head_dim_v = problem_random(2) ? spec.head_dim
		                                    : 16 * (1 + (int32_t)problem_random(20));
		if (spec.dtype != FA_ATTENTION_F32 && problem_random(3) == 0) {
			spec.store = FA_PAGED_E4M3;
			spec.head_scales = true;
			spec.head_dim_v = spec.head_dim_v > 256 ? 256 : spec.head_dim_v;
		}
		for (int32_t b = 0; b < spec.batch; b++) {
			spec.n_new[b] = problem_random(3) ? 1 + (uint32_t)problem_random(4)
			                                  : (uint32_t)problem_random(150);
			spec.lengths[b] = (uint32_t)problem_random(problem_random(2) ? 90 : 1500);
		}
		spec.causal = problem_random(3) > 0;
		spec.alibi = problem_random(4) == 0;
		spec.sinks = problem_random(4) == 0;
		spec.no_lse = problem_random(4) == 0;
		spec.deterministic = problem_random(4) == 0;
		spec.softcap = problem_random(4) == 0 ? 15 : 0;
		spec.left_1 = problem_random(3) == 0 ? 1 + (int64_t)problem_random(200) : 0;
		spec.chunk = problem_random(4) == 0 ? 1 + (int64_t)problem_random(300) : 0;
		spec.prefixed = spec.causal && problem_random(4) == 0;
		if (problem_random(4) == 0)
			spec.pattern = (struct fa_attention_pattern){
				.block_tokens = 16 * (1 + (int32_t)problem_random(8)),
				.local_blocks = (int32_t)problem_random(5),
				.vert_stride = 1 + (int32_t)problem_random(12),
				.head_step = (int32_t)problem_random(4) - 1,
				.first_head = (int32_t)problem_random(9),
			};
		for (int32_t b = 0; b < spec.batch; b++)
			spec.prefix[b] = (uint32_t)problem_random(problem_random(2) ? 200 : 1500);
		spec.gaps = (int32_t)problem_random(3);
		spec.broken = problem_random(4) == 0 ? 4 : 0;
		if (problem_random(4) == 0)
			spec.v_size = spec.dtype == FA_ATTENTION_F16 ? 1.8e4f : 8e37f;
		check(&spec, (enum paged_own_layout)problem_random(PAGED_OWN_LAYOUTS),
		      1 + (int32_t)problem_random(problem_random(2) ? 20 : 256));
	}
	paged_report("random");
}

/* ---- hostile tables, lengths and cu_q */

static int32_t clamp(int64_t x, int64_t low, int64_t high)
{
	return (int32_t)(x < low ? low : x > high ? high : x);
}

static int32_t hostile(void)
{
	static const int32_t some[] = { 0, -1, 1, INT32_MAX, INT32_MIN, 100, -100, 1 << 20 };

	return problem_random(3) ? some[problem_random(8)] : (int32_t)problem_random(1ull << 32);
}

/* Uploads a table and lengths of garbage, or with @clamp_them what the contract says they mean. */
static void upload_hostile(const struct paged_own *own, const int32_t *table,
                           const int32_t *lengths, bool clamp_them)
{
	const struct fa_paged_own_attention *const p = &own->request.own_attention;
	const int64_t most = (int64_t)p->table_columns * own->page_tokens;
	const size_t n = own->table_bytes / 4;
	int32_t *const copy = malloc(own->table_bytes + (size_t)p->batch * 4 + 8);

	for (size_t i = 0; i < n; i++)
		copy[i] = !clamp_them                                        ? table[i]
		          : (uint32_t)table[i] >= (uint32_t)own->pages.pages ? own->pages.pages - 1
		                                                             : table[i];
	paged_gpu_upload(paged_device_gpu, own->device_table, copy, own->table_bytes);
	for (int32_t b = 0; b < p->batch; b++)
		copy[b] = clamp_them ? clamp(lengths[b], 0, most < p->max_k ? most : p->max_k)
		                     : lengths[b];
	paged_gpu_upload(paged_device_gpu, own->device_lengths, copy, (size_t)p->batch * 4);
	free(copy);
}

/* Garbage gives what its clamped values give, to the bit, and nothing outside of out is written. */
static void hostile_one(int i)
{
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_spec spec = paged_usual;
	struct fa_paged_own_attention *p;
	struct paged_problem problem;
	struct paged_device device;
	struct paged_gpu_plan plan;
	int32_t *table, lengths[PAGED_BATCH_MAX], cu_q[PAGED_BATCH_MAX + 1];
	void *once, *lse;
	struct paged_own own;

	spec.dtype = paged_dtypes[i % 3];
	spec.batch = 1 + i % 5;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = b % 3 ? 1 + (uint32_t)i % 3 : 1 + 59 * ((uint32_t)i / 2 % 2);
		spec.lengths[b] = 60 + 37 * (uint32_t)b;
	}
	if (i % 4 == 3 && spec.dtype != FA_ATTENTION_F32) {
		spec.store = FA_PAGED_E4M3;
		spec.head_scales = true;
	}
	spec.chunk = i % 4 == 2 ? 20 : 0;
	spec.prefixed = i % 5 == 3;
	for (int32_t b = 0; b < spec.batch; b++)
		spec.prefix[b] = (uint32_t)hostile() & INT32_MAX;
	chip.portable_paged = i / 2 % 2;
	if (i % 3 == 1) {
		chip.pack = 1;
		chip.sms = 40;
	}
	paged_init(&problem, &spec);
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	paged_own_init(&own, &problem, &device, (enum paged_own_layout)(i % PAGED_OWN_LAYOUTS),
	               i % 3 ? 16 : 1 + i % 40);
	/* Finite everywhere. */
	memset(own.kv, 0x11, own.kv_bytes);
	paged_gpu_upload(paged_device_gpu, own.device_kv, own.kv, own.kv_bytes);
	p = &own.request.own_attention;
	p->max_k = 90 + i;
	plan = paged_own_plan(&own, &problem, &chip);
	table = malloc(own.table_bytes);
	once = malloc(problem.out_bytes + 1);
	lse = malloc(problem.lse_bytes + 1);
	for (size_t at = 0; at < own.table_bytes / 4; at++)
		table[at] = hostile();
	for (int32_t b = 0; b < spec.batch; b++)
		lengths[b] = hostile();
	upload_hostile(&own, table, lengths, false);
	paged_own_run(&own, &device, &problem, &plan);
	memcpy(once, problem.out, problem.out_bytes);
	memcpy(lse, problem.lse, problem.lse_bytes);
	upload_hostile(&own, table, lengths, true);
	paged_own_run(&own, &device, &problem, &plan);
	if (memcmp(once, problem.out, problem.out_bytes) != 0 ||
	    memcmp(lse, problem.lse, problem.lse_bytes) != 0)
		paged_fail("hostile %d, %s: garbage is not as its clamped values", i,
		           paged_own_describe(&own, &problem));

	/* With a garbage cu_q, too, the launch ends, and gaps between rows stay as they were. */
	paged_gpu_unstable(paged_device_gpu, true);
	for (int round = 0; round < 4; round++) {
		for (int32_t b = 0; b <= spec.batch; b++)
			cu_q[b] = round % 2 ? hostile() : (int32_t)problem_random(70);
		paged_gpu_upload(paged_device_gpu, own.device_cu_q, cu_q,
		                 ((size_t)spec.batch + 1) * 4);
		paged_own_run(&own, &device, &problem, &plan);
	}
	paged_gpu_unstable(paged_device_gpu, false);
	paged_gpu_plan_free(paged_device_gpu, &plan);
	paged_poison(&problem);
	paged_passed++;
	free(table);
	free(once);
	free(lse);
	paged_own_deinit(&own);
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

struct scribbler {
	_Atomic bool stop;
	volatile int32_t *words;
	size_t n;
};

static void *scribble(void *userdata)
{
	struct scribbler *const scribbler = userdata;
	uint64_t x = 88172645463325252ull;

	while (!scribbler->stop) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		scribbler->words[x % scribbler->n] = x >> 40 & 1 ? (int32_t)(x >> 32)
		                                                 : (int32_t)(x >> 32) & 127;
	}
	return NULL;
}

/* Table, lengths and cu_q change while kernels run: all launches end, and a run after that is
 * right. */
static void scribbled_one(int i)
{
	const int rounds = paged_options.small ? 3 : 300;
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_spec spec = paged_usual;
	struct paged_problem problem;
	struct paged_device device;
	struct paged_gpu_plan plan;
	struct fa_paged_request right;
	struct scribbler scribbler = { .stop = false };
	const size_t bytes = 1 << 16;
	pthread_t thread;
	struct paged_own own;
	uint64_t at;
	void *words;

	chip.portable_paged = i % 2;
	chip.pack = i % 4 == 2;
	chip.sms = i % 4 == 2 ? 60 : chip.sms;
	spec.dtype = paged_dtypes[1 + i / 2 % 2];
	spec.n_new[2] = i % 4 < 2 ? 3 : 129;
	spec.chunk = i % 4 == 3 ? 50 : 0;
	paged_init(&problem, &spec);
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	paged_own_init(&own, &problem, &device, (enum paged_own_layout)(i % 3), i % 4 ? 16 : 7);
	plan = paged_own_plan(&own, &problem, &chip);
	words = aligned_alloc(4096, bytes);
	memset(words, 0, bytes);
	at = paged_gpu_pin(paged_device_gpu, words, bytes);
	right = own.request;
	own.request.own_attention.lengths = POINTER(at);
	own.request.own_attention.cu_q = POINTER(at + 64);
	own.request.own_attention.table = POINTER(at + 128);
	own.request.own_attention.table_stride = 100;
	own.request.own_attention.table_columns = 100;
	scribbler.words = words;
	scribbler.n = bytes / 4;
	if (pthread_create(&thread, NULL, scribble, &scribbler) != 0)
		abort();
	paged_gpu_unstable(paged_device_gpu, true);
	for (int round = 0; round < rounds; round++)
		paged_own_run(&own, &device, &problem, &plan);
	scribbler.stop = true;
	pthread_join(thread, NULL);
	paged_gpu_unstable(paged_device_gpu, false);
	own.request = right;
	paged_own_run(&own, &device, &problem, &plan);
	paged_gpu_plan_free(paged_device_gpu, &plan);
	paged_gpu_unpin(paged_device_gpu, words);
	free(words);
	paged_judge(&problem, paged_own_describe(&own, &problem), PAGED_ROUNDS_WEIGHTS_FAST);
	paged_passed++;
	paged_own_deinit(&own);
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

static void run_hostile(void)
{
	const int count = paged_options.small ? 8 : 60;

	for (int i = 0; i < count; i++)
		if (fa_draw())
			hostile_one(i);
	for (int i = 0; i < (paged_options.small ? 3 : 8); i++)
		if (fa_draw())
			scribbled_one(i);
	paged_report("hostile");
}

/* ---- append */

/* Appends the sequences' tokens to empty pages, and rows with slots that are not written. */
static void append_one(int i)
{
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_spec spec = paged_usual;
	struct fa_paged_own_append *append;
	struct fa_paged_request request = { .op = FA_PAGED_APPEND_OWN };
	struct paged_gpu_plan plan = { .blob = 0 };
	struct paged_problem problem;
	struct paged_device device;
	int64_t bytes, n = 0, tokens = 0, *slots;
	uint64_t device_k, device_v, device_slots;
	char *k, *v, *pages;
	struct paged_own own;

	spec.dtype = paged_dtypes[i % 3];
	spec.head_dim = i % 2 ? 64 : 80;
	spec.head_dim_v = i % 4 ? 96 : spec.head_dim;
	spec.lengths[0] = 77;
	spec.lengths[2] = 130;
	bytes = spec.dtype == FA_ATTENTION_F32 ? 4 : 2;
	paged_init(&problem, &spec);
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	paged_own_init(&own, &problem, &device, (enum paged_own_layout)(i % PAGED_OWN_LAYOUTS),
	               1 + i * 5 % 64);
	for (int32_t b = 0; b < spec.batch; b++)
		tokens += own.lengths[b];
	slots = malloc((size_t)(tokens + 4) * sizeof(*slots));
	k = malloc((size_t)((tokens + 4) * spec.kv_heads * spec.head_dim * bytes));
	v = malloc((size_t)((tokens + 4) * spec.kv_heads * spec.head_dim_v * bytes));
	memset(k, 0x22, (size_t)((tokens + 4) * spec.kv_heads * spec.head_dim * bytes));
	memset(v, 0x22, (size_t)((tokens + 4) * spec.kv_heads * spec.head_dim_v * bytes));
	slots[n++] = -1;
	slots[n++] = INT64_MIN;
	slots[n++] = INT64_MAX;
	slots[n++] = (int64_t)own.pages.pages * own.page_tokens;
	for (int32_t b = 0; b < spec.batch; b++)
		for (int32_t t = 0; t < own.lengths[b]; t++, n++) {
			slots[n] = paged_own_slot(&own, b, t);
			for (int32_t h = 0; h < spec.kv_heads; h++) {
				const int64_t at = n * spec.kv_heads + h;

				memcpy(k + at * spec.head_dim * bytes,
				       paged_own_row(&own, own.kv, bytes, false, slots[n], h),
				       (size_t)(spec.head_dim * bytes));
				memcpy(v + at * spec.head_dim_v * bytes,
				       paged_own_row(&own, own.kv, bytes, true, slots[n], h),
				       (size_t)(spec.head_dim_v * bytes));
			}
		}
	device_k = paged_device_upload(k, (size_t)(n * spec.kv_heads * spec.head_dim * bytes));
	device_v = paged_device_upload(v, (size_t)(n * spec.kv_heads * spec.head_dim_v * bytes));
	device_slots = paged_device_upload(slots, (size_t)n * sizeof(*slots));
	paged_gpu_fill(paged_device_gpu, own.device_kv, 0xff, own.kv_bytes + 64);
	append = &request.own_append;
	*append = (struct fa_paged_own_append){
		.pages = &own.pages,
		.tokens = n,
		.k = { POINTER(device_k), 0, (int64_t)spec.kv_heads * spec.head_dim,
		       spec.head_dim },
		.v = { POINTER(device_v), 0, (int64_t)spec.kv_heads * spec.head_dim_v,
		       spec.head_dim_v },
		.slots = POINTER(device_slots),
	};
	if (paged_gpu_plan(paged_device_gpu, &chip, &request, &plan) < 0)
		paged_fail("%s: no plan of an append", paged_own_describe(&own, &problem));
	paged_gpu_launch(paged_device_gpu, &plan, &request);
	paged_gpu_sync(paged_device_gpu);
	paged_gpu_plan_free(paged_device_gpu, &plan);
	pages = malloc(own.kv_bytes + 64);
	paged_gpu_download(paged_device_gpu, pages, own.device_kv, own.kv_bytes + 64);
	if (memcmp(pages, own.kv, own.kv_bytes + 64) != 0)
		paged_fail("%s: pages are not what was appended",
		           paged_own_describe(&own, &problem));
	paged_passed++;
	free(pages);
	free(slots);
	free(k);
	free(v);
	paged_gpu_free(paged_device_gpu, device_k);
	paged_gpu_free(paged_device_gpu, device_v);
	paged_gpu_free(paged_device_gpu, device_slots);
	paged_own_deinit(&own);
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

static void run_appends(void)
{
	for (int i = 0; i < 12; i++)
		if (fa_draw())
			append_one(i);
	paged_report("append");
}

static void run_all(void)
{
	run_appends();
	run_shapes();
	run_extends();
	run_plain();
	run_wide();
	run_parts();
	run_patterns();
	run_kernels();
	run_sizes();
	run_hostile();
	run_random();
}

int main(int argc, char **argv)
{
	return paged_main(argc, argv, run_all);
}
