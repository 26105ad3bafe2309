/*
 * Compares paged GPU kernels other than attention with the CPU's: append and read of tokens, copies
 * of pages, and merging of partial results.
 *
 * test-paged-tokens [--seed N]
 *
 * Skips (77) without a GPU.
 */
#include "tests/gpu/paged-fixture.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void run_on_cpu(const struct fa_paged_request *request)
{
	const struct fa_cpu_isa *isa;
	char scratch[8192];
	int64_t n;

	if (fa_cpu_isa_select(NULL, 0, &isa) < 0 ||
	    fa_cpu_paged_scratch_bytes(isa, request) > sizeof(scratch))
		paged_fail("no CPU kernel");
	n = fa_cpu_paged_begin(isa, request, NULL);
	for (int64_t i = 0; i < n; i++)
		fa_cpu_paged_tile(isa, request, NULL, i, scratch, NULL);
}

/* Elements may differ by @unit times their magnitude + 1. */
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

/* @ways: -1, or the form of codes as in paged_way_of(). */
static void tokens_init(struct tokens *t, int i, int ways)
{
	struct paged_spec spec = paged_usual;
	struct fa_paged_append *host = &t->host.append, *p = &t->request.append;
	size_t tokens, bytes;

	memset(t, 0, sizeof(*t));
	spec.dtype = paged_dtypes[i % 3];
	spec.batch = 5;
	spec.n_new[3] = 0, spec.lengths[3] = 30;
	spec.n_new[4] = 40, spec.lengths[4] = 40;
	spec.page_tokens = 16 << i % 5;
	spec.v_in_k = i % 7 == 6;
	spec.head_dim = i % 2 ? 128 : 72;
	spec.head_dim_v = i % 2 ? 128 : 40;
	if (ways >= 0) {
		spec = paged_way_of(&spec, ways);
		spec.head_dim = i % 2 ? 128 : 80;
		spec.head_dim_v = i % 2 ? 128 : 48;
	}
	if (i % 8 == 5)
		spec.head_dim = 576;
	spec.gaps = i % 3 == 0;
	paged_init(&t->problem, &spec);
	paged_device_init(&t->device, &t->problem);
	tokens = t->problem.cu_new[5];
	bytes = spec.dtype == FA_ATTENTION_F32 ? 4 : 2;
	/* Every fourth problem has rows that are not aligned to 16 bytes. */
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

/* Compares the GPU's pool with the CPU's unless @unit is negative. */
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
		.first = i % 4 == 1 ? (t->problem.spec.head_dim - dims[i % 7]) / 8 * 8 : 0,
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
		paged_failed++;
		return;
	}
	tokens_init(&t, i, ways);
	if (i % 2 && ways < 0)
		paged_device_hide_table(&t.device, &t.problem);
	tokens_run(&t, 0, "append");
	paged_device_show_table(&t.device, &t.problem);
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
		paged_device_hide_table(&t.device, &t.problem);
	rotary_of(&t, i);
	if (i % 3 == 1) {
		t.host.append.q_out.data = t.problem.q;
		t.request.append.q_out.data = POINTER(t.device.q);
	}
	unit = t.problem.spec.dtype == FA_ATTENTION_F32   ? 3e-6
	       : t.problem.spec.dtype == FA_ATTENTION_F16 ? 0x1p-10
	                                                  : 0x1p-7;
	/* A code may differ by one; its decoded value is compared. */
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
	paged_passed++;
}

static void pages_and_moves(int i, int ways)
{
	static const uint32_t from[] = { 60, 62, 63, 64, 90, 99, 5, 6 },
			      cu[] = { 0, 0, 0, 6, 6, 8 };
	static const uint32_t to[] = { 0, 0, 60, 0, 3 };
	static struct tokens t;
	uint32_t source[2];

	if (setjmp(paged_failure)) {
		paged_failed++;
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
	paged_passed++;
}

static void merge(int i)
{
	static const float special[] = { -INFINITY, INFINITY, -200, 200, 0 };
	const enum fa_attention_dtype dtype = paged_dtypes[i % 3];
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
		paged_failed++;
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
	paged_passed++;
}

static void run(void)
{
	for (int i = 0; i < 28; i++)
		append(i, -1);
	for (int i = 0; i < 16; i++)
		append(i, i / 2);
	paged_report("append, read");
	for (int i = 0; i < 15; i++)
		pages_and_moves(i, -1);
	for (int i = 0; i < 4; i++)
		pages_and_moves(i, i);
	paged_report("pages, moves");
	for (int i = 0; i < 12; i++)
		merge(i);
	paged_report("merge");
}

int main(int argc, char **argv)
{
	return paged_main(argc, argv, run);
}
