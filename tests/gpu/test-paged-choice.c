/* Decode and packed rows over pages, where a kernel of sm90 must be what computes. Compares with
 * fp64 (tests/kernels/paged-problem.h), and checks what the plan chose.
 *   test-paged-choice [--seed N] [--small] Skips (77) without a GPU. */
#include "kernels/cuda/sm90/kernels.h"
#include "tests/gpu/draw.h"
#include "tests/gpu/paged-fixture.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

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

/* Few sequences with equally many new tokens. */
struct few {
	int32_t batch, head_dim, page_tokens, heads, kv_heads;
	uint32_t n_new, length;
	bool carried; /* the launch carries the table, where kernels support that */
};

static void few_one(const struct few *few, int i)
{
	struct paged_spec spec = paged_usual;
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
		paged_failed++;
		return;
	}
	paged_device_init(&device, &problem);
	paged_check_on(&device, &problem, paged_gpu_chip(paged_device_gpu), NULL, 0);
	memcpy(once, problem.out, problem.out_bytes);

	device.step.host_table = problem.table;
	paged_plan(&device, &problem, NULL, &plan);
	carries = plan.plan.inline_table > 0;
	paged_gpu_plan_free(paged_device_gpu, &plan);
	if (carries != (few->carried && has_small()))
		paged_fail("%s: a table of %u entries is %scarried", paged_describe(&problem),
		           problem.step.table_entries, carries ? "" : "not ");
	if (carries)
		paged_device_hide_table(&device, &problem);
	paged_check_on(&device, &problem, paged_gpu_chip(paged_device_gpu), NULL, 0);
	if (memcmp(once, problem.out, problem.out_bytes) != 0)
		paged_fail("%s: other bits with the table in the launch", paged_describe(&problem));
	paged_passed++;
	paged_device_deinit(&device);
	paged_deinit(&problem);
	free(once);
}

/* Few short sequences give the same bits with the table in memory and in the launch. Tables have as
 * many entries and sequences as a launch can carry, and one more. */
static void few(void)
{
	static const struct few cases[] = {
		{ 1, 128, 64, 8, 2, 1, 1000, true },
		{ 1, 128, 16, 4, 1, 1, 16 * (FA_CUDA_PAGED_INLINE_TABLE - 2), true },
		{ 1, 128, 16, 4, 1, 1, 16 * (FA_CUDA_PAGED_INLINE_TABLE - 2) + 1, false },
		{ FA_CUDA_PAGED_INLINE_ITEMS, 128, 32, 8, 2, 1, 40, true },
		{ FA_CUDA_PAGED_INLINE_ITEMS + 1, 128, 32, 8, 2, 1, 40, false },
		{ 3, 128, 16, 16, 2, 5, 200, true }, /* two fragments of rows */
		{ 2, 256, 128, 6, 2, 2, 300, true },
		{ 5, 128, 48, 6, 3, 9, 100, true },
		{ 2, 64, 16, 4, 1, 1, 100, true },
		{ 3, 64, 64, 16, 2, 5, 500, true },
		{ 2, 96, 16, 4, 1, 1, 100, false }, /* a portable kernel */
	};

	for (int i = 0; i < (int)(sizeof(cases) / sizeof(cases[0])); i++)
		if (fa_draw())
			few_one(&cases[i], i);
}

static void judge_special(const struct paged_problem *problem,
                          const struct fa_cuda_paged_plan *plan, uint32_t expected)
{
	if (fa_cuda_paged_kernel_is_special(plan->decode) != expected)
		paged_fail("%s: %s is not what should compute it", paged_describe(problem),
		           plan->decode->symbol);
}

/* Returns 1 if tiles of @tile_rows rows are fewer when those of sequences @low to @high - 1 lie
 * together. */
static uint32_t saves_tiles(const struct paged_spec *spec, int32_t low, int32_t high,
                            uint32_t tile_rows)
{
	const uint32_t group = (uint32_t)(spec->heads / spec->kv_heads);
	uint32_t rows = 0, tiles = 0;

	for (int32_t b = low; b < high; b++) {
		rows += spec->n_new[b] * group;
		tiles += (spec->n_new[b] * group + tile_rows - 1) / tile_rows;
	}
	return (rows + tile_rows - 1) / tile_rows < tiles;
}

/* Both prefixes of shared_one() are shared if that saves a tile. @has_kernel: packed rows have one. */
static void judge_shared(const struct paged_problem *problem, const struct fa_cuda_paged_plan *plan,
                         uint32_t has_kernel)
{
	const bool packed = plan->forward && plan->forward->kind == FA_CUDA_PAGED_PACKED;
	uint32_t expected = 0;

	if (has_kernel && packed)
		expected = saves_tiles(&problem->spec, 0, 4, (uint32_t)plan->forward->rows) +
		           saves_tiles(&problem->spec, 5, 8, (uint32_t)plan->forward->rows);
	if (packed != has_kernel || plan->packed_prefixes != expected)
		paged_fail("%s: packed rows share %u prefixes, expected %u",
		           paged_describe(problem), plan->packed_prefixes, expected);
}

/* Checks @spec as planned for @chip; @judge checks the plan. */
static void check_as(const struct paged_spec *spec, const struct fa_cuda_chip *chip,
                     paged_judge_plan_fn judge, uint32_t expected)
{
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
	if (judge == judge_shared)
		device.step.host_table = problem.table;
	paged_check_on(&device, &problem, chip, judge, expected);
	paged_device_deinit(&device);
	paged_deinit(&problem);
}

static void turns_one(int i)
{
	struct paged_spec spec = paged_usual;
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);

	spec.dtype = i % 2 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16;
	spec.head_dim = spec.head_dim_v = 64;
	spec.page_tokens = 16 * (1 + i * 3 % 8);
	spec.batch = 8;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = i % 3 == 2 ? 5 : 1; /* two fragments of rows, or one */
		spec.lengths[b] = 64 * (uint32_t)((5 * b + i) % 9) + 5 + 9 * (uint32_t)b;
		spec.first[b] = (b + i) % 4 == 1 ? spec.lengths[b] / 3 : 0;
	}
	spec.left_1 = i == 3 ? 200 : 0;
	spec.alibi = i == 1 || i == 5;
	spec.sinks = i % 4 == 1;
	spec.softcap = i == 4 ? 20 : 0;
	spec.tree = i == 2;
	spec.broken = i > 4 ? i : 0;
	chip.sms = 1 + i % 3 * 2;
	check_as(&spec, &chip, judge_special, has_small());
}

/* Rows of 64 columns: groups of warps take their tiles in turn. A block has sequences of few and of
 * many tiles, so that each group begins some sequence. */
static void turns(void)
{
	for (int i = 0; i < 8; i++)
		turns_one(i);
}

static void judge_ends(const struct paged_problem *problem, const struct fa_cuda_paged_plan *plan,
                       uint32_t expected)
{
	if ((plan->epilogue_tiles > 0) != expected)
		paged_fail("%s: %u tiles for an end", paged_describe(problem),
		           plan->epilogue_tiles);
}

static void uneven_one(int i)
{
	static const int32_t dims[] = { 128, 64, 256 };
	struct paged_spec spec = i % 4 ? paged_usual : paged_way_of(&paged_usual, i);
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);

	spec.head_dim = spec.head_dim_v = dims[i % 3];
	spec.batch = 10;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = 1 + (uint32_t)(i + b) % 3;
		spec.lengths[b] = b < 6 ? 5 + 11 * (uint32_t)b : 400 + 37 * (uint32_t)(i + b);
		spec.first[b] = b == 8 ? 70 : 0;
	}
	spec.sinks = i % 2;
	chip.sms = 2 + i % 2;
	chip.portable_paged = i == 3;
	check_as(&spec, &chip, judge_ends, chip.arch == 90);
}

/* Many short sequences precede few long ones: the ends of parts have tiles without tokens, at the
 * start or end of a block's range. */
static void uneven(void)
{
	for (int i = 0; i < 8; i++)
		uneven_one(i);
}

static void judge_levels(const struct paged_problem *problem, const struct fa_cuda_paged_plan *plan,
                         uint32_t expected)
{
	if (plan->decode->levels != expected)
		paged_fail("%s: %s is not what should compute it", paged_describe(problem),
		           plan->decode->symbol);
}

/* Lengths at which a part's rows are joined from 39 and 77 partial results, or from 2 and 20; parts
 * also end within a block's range. */
static void levels_one(int i)
{
	static const int32_t dims[] = { 128, 64, 256 }, heads[] = { 8, 3, 1, 16, 5 };
	static const uint32_t lengths[] = { 180, 4900, 2516 };
	/* new tokens in one part */
	const uint32_t most = (i % 3 == 2 ? 16 : 32) / (uint32_t)heads[i % 5];
	const uint32_t n_new = most < 4 ? most : 4;
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_spec spec = i % 4 < 2 ? paged_usual : paged_way_of(&paged_usual, i);

	spec.dtype = i % 2 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16;
	spec.head_dim = spec.head_dim_v = dims[i % 3];
	spec.heads = heads[i % 5];
	spec.kv_heads = 1 + i / 3 % 2;
	spec.heads *= spec.kv_heads;
	spec.batch = i % 2 ? 3 : 1;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = i % 6 == 4 ? n_new : 1 + (uint32_t)(i / 2) % n_new;
		spec.lengths[b] = lengths[spec.batch == 1 ? 1 : b];
	}
	spec.sinks = i % 5 == 1;
	spec.broken = i % 4 == 3 ? i : 0;
	chip.sms = spec.kv_heads * (i % 2 ? 66 : 40 + 40 * (i % 4 / 2));
	check_as(&spec, &chip, judge_levels, has_small());
}

static void levels(void)
{
	for (int i = 0; i < (paged_options.small ? 6 : 30); i++)
		levels_one(i);
}

static void judge_packed(const struct paged_problem *problem, const struct fa_cuda_paged_plan *plan,
                         uint32_t expected)
{
	if (plan->forward->kind != FA_CUDA_PAGED_PACKED || plan->unit_tiles != expected)
		paged_fail("%s: %s in units of %u tiles is not what should compute it",
		           paged_describe(problem), plan->forward->symbol, plan->unit_tiles);
}

static void packed_one(int i)
{
	static const int32_t heads[][2] = { { 4, 1 }, { 8, 2 }, { 16, 1 }, { 3, 1 },
		                            { 4, 2 }, { 5, 1 }, { 2, 2 },  { 8, 1 } };
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_spec spec = paged_usual;

	spec.dtype = i % 4 == 3 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16;
	spec.head_dim = spec.head_dim_v = 64 << i % 3;
	spec.heads = heads[i % 8][0];
	spec.kv_heads = heads[i % 8][1];
	spec.page_tokens = 16 << i % 5;
	spec.batch = 1 + i % 3;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = 48 + (uint32_t)((b + i) % 5) * 23;
		spec.lengths[b] = spec.n_new[b] + 100 + 190 * (uint32_t)((2 * b + i) % 4);
		spec.first[b] = b == 1 ? 70 : 0;
	}
	spec.causal = i % 5 != 4;
	spec.left_1 = i % 6 == 5 ? 200 : 0;
	spec.broken = i % 3 == 2 ? 1 + i % 9 : 0;
	chip.pack = 1 + i % 4;
	if (paged_gpu_has_tma(paged_device_gpu))
		check_as(&spec, &chip, judge_packed, (uint32_t)chip.pack);
}

/* Few tokens on more keys, in blocks of rows of several heads whose keys are divided. */
static void packed(void)
{
	for (int i = 0; i < (paged_options.small ? 8 : 72); i++)
		packed_one(i);
}

/* Sequences 0 to 3 share a prefix, and 5 to 7 another one. 4 is alone, and shorter than most: in some
 * cases it decodes. */
static void shared_one(int i)
{
	static const int32_t heads[][2] = { { 4, 1 }, { 8, 2 }, { 3, 1 }, { 8, 1 }, { 2, 2 } };
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_spec spec = paged_usual;

	spec.dtype = i % 4 == 3 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16;
	spec.head_dim = spec.head_dim_v = 64 << (i + 1) % 3;
	spec.heads = heads[i % 5][0];
	spec.kv_heads = heads[i % 5][1];
	spec.page_tokens = 16 << i % 4;
	spec.batch = 8;
	for (int32_t b = 0; b < spec.batch; b++) {
		const uint32_t pages = (b < 4 ? 384u : 256u) / (uint32_t)spec.page_tokens;

		spec.n_new[b] = b == 4 ? 1 + (uint32_t)i % 2 * 9
		                       : 5 + (uint32_t)(5 * b + 3 * i) % (i % 3 == 2 ? 70 : 23);
		spec.lengths[b] = pages * (uint32_t)spec.page_tokens + spec.n_new[b] +
		                  (uint32_t)(37 * b + 11 * i) % (i % 4 == 1 ? 300 : 40);
		spec.first[b] = i % 5 == 3 && b < 4 ? 70 : 0;
		if (b % 5 != 0 && b != 4) {
			spec.prefix_of_1[b] = 1 + (b < 4 ? 0 : 5);
			spec.prefix_pages[b] = pages;
		}
	}
	spec.causal = i % 6 != 5;
	spec.sinks = i % 7 == 2;
	spec.broken = i % 3 == 1 ? 1 + i % 9 : 0;
	chip.pack = 1 + i % 4;
	chip.share_early = true;
	if (paged_gpu_has_tma(paged_device_gpu))
		check_as(&spec, &chip, judge_shared,
		         !spec.sinks || FA_SM90_PAGED_BAND_SINKS(spec.head_dim));
}

/* The rows of several sequences are computed together over the keys that they share. */
static void shared(void)
{
	for (int i = 0; i < (paged_options.small ? 8 : 60); i++)
		shared_one(i);
}

static void judge_widened(const struct paged_problem *problem,
                          const struct fa_cuda_paged_plan *plan, uint32_t expected)
{
	/* A window needs no more. */
	if (!plan->forward || plan->wide_rows == 0 || plan->wide_rows > expected || !plan->decode)
		paged_fail("%s: %u rows are widened, expected %u", paged_describe(problem),
		           plan->wide_rows, expected);
}

/* Sequences of 40 and 100 new tokens, and one that decodes between them. */
static void widened_one(int i)
{
	static const int32_t dims[] = { 128, 64, 256, 96 };
	static const uint32_t n_new[] = { 100, 1, 40 };
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_spec spec = paged_usual;
	uint32_t rows = 0;

	spec.dtype = FA_ATTENTION_BF16;
	spec.store = i % 2 ? FA_PAGED_INT8 : FA_PAGED_E4M3;
	spec.head_scales = i / 2 % 2;
	spec.head_dim = spec.head_dim_v = dims[i % 4];
	spec.heads = i % 3 == 1 ? 16 : 8;
	spec.kv_heads = spec.heads / 8;
	/* The first that drops tokens drops whole pages, which have no entries. */
	spec.page_tokens = 16 << (i + 2) % 5;
	spec.batch = 3;
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = n_new[b];
		spec.lengths[b] = n_new[b] + 60 + 90 * (uint32_t)((b + i) % 4);
		spec.first[b] = i % 4 == 3 && b != 1 ? 37 : 0;
		if (b != 1)
			rows += (spec.lengths[b] + 127) / 128 * 128;
	}
	spec.causal = i % 5 != 4;
	spec.left_1 = i % 6 == 5 ? 100 : 0;
	spec.softcap = i % 7 == 3 ? 20 : 0;
	spec.alibi = i % 7 == 6;
	spec.sinks = i % 4 == 2;
	spec.chunk = i % 8 == 1 ? 64 : 0; /* parts of 64 tokens, and shorter ones that decode */
	chip.pack = i % 3 - 1;
	if (paged_gpu_has_tma(paged_device_gpu))
		check_as(&spec, &chip, judge_widened, rows);
}

/* Codes of sequences with many rows become bf16 first. */
static void widened(void)
{
	for (int i = 0; i < (paged_options.small ? 8 : 40); i++)
		widened_one(i);
}

static void run(void)
{
	few();
	paged_report("few");
	turns();
	paged_report("turns");
	uneven();
	paged_report("uneven");
	levels();
	paged_report("levels");
	packed();
	paged_report("packed");
	shared();
	paged_report("shared");
	widened();
	paged_report("widened");
}

int main(int argc, char **argv)
{
	return paged_main(argc, argv, run);
}
