#include "tests/kernels/own-problem.h"

#include "tests/kernels/problem.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define POISON 0xff /* a NaN in every type */
#define WILD_PAGES 2

const struct own_spec own_usual = {
	.dtype = FA_ATTENTION_BF16,
	.batch = 3,
	.heads = 4,
	.kv_heads = 2,
	.head_dim = 64,
	.head_dim_v = 64,
	.page_tokens = 16,
	.n_q = { 1, 5, 33 },
	.lengths = { 132, 18, 163 },
	.causal = true,
};

static void __attribute__((format(printf, 1, 2), noreturn)) give_up(const char *format, ...)
{
	char text[2048];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fail_msg("%s", text);
	abort();
}

static void memory_new(struct own_memory *memory, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page) / page * page;

	memory->map_bytes = inner + 2 * page;
	memory->map = mmap(NULL, memory->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory->map == MAP_FAILED ||
	    mprotect(memory->map + page, inner, PROT_READ | PROT_WRITE) < 0)
		give_up("no memory");
	memory->bytes = bytes;
	memory->data = memory->map + page + inner - bytes;
	memset(memory->map + page, POISON, inner);
}

static void memory_free(struct own_memory *memory)
{
	if (memory->map)
		munmap(memory->map, memory->map_bytes);
	*memory = (struct own_memory){ 0 };
}

static size_t element_bytes(const struct own_spec *spec)
{
	return spec->dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static size_t stored_bytes(const struct own_spec *spec)
{
	return spec->e4m3 ? 1 : element_bytes(spec);
}

char *own_row(const struct own_problem *problem, bool v, int64_t page, int64_t token, int32_t head)
{
	const struct fa_attention_tensor *t = v ? &problem->pages.v : &problem->pages.k;

	return (char *)t->data +
	       (page * t->stride_batch + token * t->stride_token + head * t->stride_head) *
	               (int64_t)stored_bytes(&problem->spec);
}

/* ---- making a problem */

/* Returns the elements of a tensor of @pages pages. */
static int64_t lay_out(const struct own_spec *spec, int64_t pages, int32_t dim,
                       struct fa_attention_tensor *tensor)
{
	int64_t gap = spec->layout == OWN_PADDED ? 3 : 0;

	if (spec->layout == OWN_HND) {
		tensor->stride_token = dim;
		tensor->stride_head = (int64_t)spec->page_tokens * dim;
		tensor->stride_batch = spec->kv_heads * tensor->stride_head;
	} else {
		tensor->stride_head = dim + gap;
		tensor->stride_token = spec->kv_heads * tensor->stride_head + gap;
		tensor->stride_batch = spec->page_tokens * tensor->stride_token + gap;
	}
	return pages * tensor->stride_batch;
}

static void make_pages(struct own_problem *problem, int64_t pages)
{
	const struct own_spec *spec = &problem->spec;
	struct fa_paged_own *own = &problem->pages;
	size_t bytes = stored_bytes(spec);
	int64_t k = lay_out(spec, pages, spec->head_dim, &own->k);
	int64_t v = lay_out(spec, pages, spec->head_dim_v, &own->v);

	own->pages = (int32_t)pages;
	if (spec->layout == OWN_INTERLEAVED) {
		int64_t k_page = own->k.stride_batch, page = k_page + own->v.stride_batch;

		memory_new(&problem->k, (size_t)(pages * page) * bytes);
		own->k.data = problem->k.data;
		own->v.data = problem->k.data + (size_t)k_page * bytes;
		own->k.stride_batch = own->v.stride_batch = page;
		return;
	}
	memory_new(&problem->k, (size_t)k * bytes);
	memory_new(&problem->v, (size_t)v * bytes);
	own->k.data = problem->k.data;
	own->v.data = problem->v.data;
}

static void fill_row(const struct own_problem *problem, char *row, int32_t dim, float scale)
{
	float values[FA_ATTENTION_ROW_MAX];

	for (int32_t c = 0; c < dim; c++) {
		values[c] = (float)problem_normal();
		if (!problem->spec.e4m3)
			reference_set(problem->spec.dtype, row, c, (double)values[c]);
	}
	if (problem->spec.e4m3)
		reference_quantise(FA_PAGED_E4M3, values, dim, scale, (uint8_t *)row);
}

static int64_t pages_of(const struct own_spec *spec, int32_t b)
{
	return (spec->lengths[b] + spec->page_tokens - 1) / spec->page_tokens;
}

/* The first token that any row of the sequence sees. */
static int64_t first_seen(const struct own_spec *spec, int32_t n_q, int32_t b)
{
	int64_t row = (int64_t)spec->lengths[b] - n_q;
	int64_t first = spec->left_1 ? row - (spec->left_1 - 1) : 0;

	if (spec->chunk && row > 0 && first < row / spec->chunk * spec->chunk)
		first = row / spec->chunk * spec->chunk;
	return first > 0 ? first : 0;
}

static int32_t rows_of(const struct own_spec *spec, int32_t b)
{
	return spec->n_q[spec->even ? 0 : b];
}

/* Fills the table. Page numbers are a permutation; entries that must not be followed are garbage. */
static void make_table(struct own_problem *problem, int64_t columns)
{
	static const int32_t wild[] = { -1, INT32_MAX, INT32_MIN, 1 << 20 };
	const struct own_spec *spec = &problem->spec;
	int32_t *table = (int32_t *)problem->table.data;
	const float *k_scales = (const float *)problem->k_scales.data;
	const float *v_scales = (const float *)problem->v_scales.data;
	int64_t n = problem->pages.pages, *numbers = malloc((size_t)n * sizeof(*numbers));

	for (int64_t i = 0; i < n; i++)
		numbers[i] = i;
	/* The last page is what wild numbers become; it holds no token. */
	for (int64_t i = n - 2; i > 0; i--) {
		int64_t j = (int64_t)problem_random((uint64_t)i + 1), number = numbers[i];

		numbers[i] = numbers[j];
		numbers[j] = number;
	}
	n = 0;
	for (int32_t b = 0; b < spec->batch; b++) {
		int64_t first = first_seen(spec, rows_of(spec, b), b);

		for (int64_t i = 0; i < columns; i++) {
			int32_t *entry =
				&table[b * problem->request.own_attention.table_stride + i];

			*entry = wild[problem_random(4)];
			if (i >= pages_of(spec, b) || (i + 1) * spec->page_tokens <= first)
				continue;
			*entry = (int32_t)numbers[n++];
			for (int64_t t = 0; t < spec->page_tokens; t++) {
				int64_t token = i * spec->page_tokens + t;

				if (token < first || token >= spec->lengths[b])
					continue;
				for (int32_t h = 0; h < spec->kv_heads; h++) {
					fill_row(problem, own_row(problem, false, *entry, t, h),
					         spec->head_dim, k_scales ? k_scales[h] : 1);
					fill_row(problem, own_row(problem, true, *entry, t, h),
					         spec->head_dim_v, v_scales ? v_scales[h] : 1);
				}
			}
		}
	}
	free(numbers);
}

static void make_expectation(struct own_problem *problem);

static void make_scales(struct own_problem *problem)
{
	const struct own_spec *spec = &problem->spec;
	size_t bytes = (size_t)spec->kv_heads * sizeof(float);

	if (!spec->e4m3 || !spec->scales)
		return;
	memory_new(&problem->k_scales, bytes);
	memory_new(&problem->v_scales, bytes);
	for (int32_t h = 0; h < spec->kv_heads; h++) {
		((float *)problem->k_scales.data)[h] = (float)(0.01 + 0.01 * h);
		((float *)problem->v_scales.data)[h] = (float)(0.03 - 0.002 * h);
	}
	problem->pages.k_scales = (const float *)problem->k_scales.data;
	problem->pages.v_scales = (const float *)problem->v_scales.data;
}

static void make_rows(struct own_problem *problem)
{
	const struct own_spec *spec = &problem->spec;
	struct fa_paged_own_attention *p = &problem->request.own_attention;
	int64_t gap = spec->layout == OWN_PADDED ? 5 : 0;
	size_t bytes = element_bytes(spec), heads = (size_t)spec->heads;

	p->q.stride_head = spec->head_dim + gap;
	p->q.stride_token = spec->heads * p->q.stride_head;
	p->out.stride_head = spec->head_dim_v + gap;
	p->out.stride_token = spec->heads * p->out.stride_head;
	memory_new(&problem->q, (size_t)(p->total_q * p->q.stride_token) * bytes);
	memory_new(&problem->out, (size_t)(p->total_q * p->out.stride_token) * bytes);
	p->q.data = problem->q.data;
	p->out.data = problem->out.data;
	for (int64_t i = 0; i < p->total_q; i++)
		for (int32_t h = 0; h < spec->heads; h++)
			for (int32_t c = 0; c < spec->head_dim; c++)
				reference_set(spec->dtype, p->q.data,
				              i * p->q.stride_token + h * p->q.stride_head + c,
				              problem_normal());
	if (spec->no_lse)
		return;
	memory_new(&problem->lse, (size_t)p->total_q * heads * sizeof(float));
	p->lse = (float *)problem->lse.data;
	p->lse_stride_token = 1;
	p->lse_stride_head = p->total_q;
}

void own_init(struct own_problem *problem, const struct own_spec *spec)
{
	struct fa_paged_own_attention *p = &problem->request.own_attention;
	int64_t pages = WILD_PAGES, columns = 0;
	char text[256];

	memset(problem, 0, sizeof(*problem));
	problem->spec = *spec;
	problem->pages = (struct fa_paged_own){
		.dtype = spec->dtype,
		.kv_heads = spec->kv_heads,
		.head_dim = spec->head_dim,
		.head_dim_v = spec->head_dim_v,
		.page_tokens = spec->page_tokens,
		.store = spec->e4m3 ? FA_PAGED_E4M3 : FA_PAGED_PLAIN,
	};
	problem->request.op = FA_PAGED_ATTEND_OWN;
	*p = (struct fa_paged_own_attention){
		.pages = &problem->pages,
		.batch = spec->batch,
		.heads = spec->heads,
		.scale = 1 / sqrtf((float)spec->head_dim),
		.softcap = spec->softcap,
		.causal = spec->causal,
		.window_left = spec->left_1 - 1,
		.window_right = spec->right_1 - 1,
		.alibi_slopes = spec->alibi ? problem->slopes : NULL,
		.sinks = spec->sinks ? problem->sinks : NULL,
		.deterministic = spec->deterministic,
		.chunk_tokens = spec->chunk,
		.pattern = spec->pattern,
	};
	for (int32_t h = 0; h < spec->heads; h++) {
		problem->slopes[h] = (float)exp2(-8.0 * (h + 1) / spec->heads);
		problem->sinks[h] = (float)problem_normal() * 2;
	}
	for (int32_t b = 0; b < spec->batch; b++) {
		int64_t n = pages_of(spec, b);

		pages += n;
		columns = n > columns ? n : columns;
		p->total_q += rows_of(spec, b);
		p->max_q = rows_of(spec, b) > p->max_q ? rows_of(spec, b) : p->max_q;
		p->max_k = spec->lengths[b] > p->max_k ? spec->lengths[b] : p->max_k;
	}
	columns += 2;
	p->table_columns = (int32_t)columns;
	p->table_stride = columns + 1;
	memory_new(&problem->table, (size_t)(spec->batch * p->table_stride) * sizeof(int32_t));
	memory_new(&problem->lengths, (size_t)spec->batch * sizeof(int32_t));
	p->table = (const int32_t *)problem->table.data;
	p->lengths = (const int32_t *)problem->lengths.data;
	memcpy(problem->lengths.data, spec->lengths, problem->lengths.bytes);
	if (spec->prefixed) {
		memory_new(&problem->prefixes, (size_t)spec->batch * sizeof(int32_t));
		memcpy(problem->prefixes.data, spec->prefix, problem->prefixes.bytes);
		p->prefix_lengths = (const int32_t *)problem->prefixes.data;
	}
	if (!spec->even) {
		int32_t *cu_q;

		memory_new(&problem->cu_q, (size_t)(spec->batch + 1) * sizeof(int32_t));
		cu_q = (int32_t *)problem->cu_q.data;
		cu_q[0] = 0;
		for (int32_t b = 0; b < spec->batch; b++)
			cu_q[b + 1] = cu_q[b] + spec->n_q[b];
		p->cu_q = cu_q;
	}
	make_scales(problem);
	make_pages(problem, pages);
	make_table(problem, columns);
	make_rows(problem);
	if (fa_paged_check(&problem->request, text, sizeof(text)) != 0)
		give_up("%s: refused: %s", own_describe(problem), text);
	make_expectation(problem);
}

void own_deinit(struct own_problem *problem)
{
	struct own_memory *all[] = { &problem->k,        &problem->v,       &problem->q,
		                     &problem->out,      &problem->lse,     &problem->table,
		                     &problem->lengths,  &problem->cu_q,    &problem->k_scales,
		                     &problem->v_scales, &problem->prefixes };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		memory_free(all[i]);
	free(problem->exact);
	free(problem->naive);
	free(problem->exact_lse);
}

const char *own_describe(const struct own_problem *problem)
{
	static char text[1024];
	const struct own_spec *s = &problem->spec;
	int n;

	n = snprintf(text, sizeof(text),
	             "dtype %d heads %d/%d dims %d/%d page %d layout %d e4m3 %d causal %d window "
	             "%lld/%lld chunk %lld softcap %g alibi %d sinks %d even %d:",
	             (int)s->dtype, s->heads, s->kv_heads, s->head_dim, s->head_dim_v,
	             s->page_tokens, (int)s->layout, s->e4m3, s->causal, (long long)s->left_1 - 1,
	             (long long)s->right_1 - 1, (long long)s->chunk, (double)s->softcap, s->alibi,
	             s->sinks, s->even);
	for (int32_t b = 0; b < s->batch && n > 0 && (size_t)n < sizeof(text); b++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %d/%d/%d", rows_of(s, b),
		              s->lengths[b], s->prefixed ? s->prefix[b] : 0);
	return text;
}

/* ---- the reference */

/* A row of a page as fp32 if it has codes, else as it is. */
static void gather_row(const struct own_problem *problem, bool v, int64_t page, int64_t token,
                       int32_t h, void *to, int64_t at, int32_t dim)
{
	const char *row = own_row(problem, v, page, token, h);
	const float *scales = v ? problem->pages.v_scales : problem->pages.k_scales;
	size_t bytes = element_bytes(&problem->spec);

	if (!problem->spec.e4m3) {
		memcpy((char *)to + (size_t)at * bytes, row, (size_t)dim * bytes);
		return;
	}
	for (int32_t c = 0; c < dim; c++)
		((float *)to)[at + c] = (float)(reference_code_value(FA_PAGED_E4M3,
		                                                     (uint8_t)row[c]) *
		                                (double)(scales ? scales[h] : 1));
}

static void *gather(const struct own_problem *problem, int32_t b, bool v)
{
	const struct own_spec *spec = &problem->spec;
	const struct fa_paged_own_attention *p = &problem->request.own_attention;
	int32_t dim = v ? spec->head_dim_v : spec->head_dim;
	int64_t row = (int64_t)spec->kv_heads * dim;
	void *memory = calloc((size_t)(spec->lengths[b] * row) + 1, sizeof(float));

	for (int64_t j = first_seen(spec, rows_of(spec, b), b); j < spec->lengths[b]; j++)
		for (int32_t h = 0; h < spec->kv_heads; h++)
			gather_row(
				problem, v, p->table[b * p->table_stride + j / spec->page_tokens],
				j % spec->page_tokens, h, memory, j * row + (int64_t)h * dim, dim);
	return memory;
}

static void make_expectation(struct own_problem *problem)
{
	const struct own_spec *spec = &problem->spec;
	const struct fa_paged_own_attention *p = &problem->request.own_attention;
	size_t rows = (size_t)p->total_q * (size_t)spec->heads;
	int64_t row = 0, q_elements = p->total_q * p->q.stride_token;
	float *q = calloc((size_t)q_elements + 1, sizeof(*q));

	for (int64_t i = 0; i < q_elements; i++)
		q[i] = (float)reference_get(spec->dtype, p->q.data, i);
	problem->exact = calloc(rows * (size_t)spec->head_dim_v + 1, sizeof(double));
	problem->naive = calloc(rows * (size_t)spec->head_dim_v + 1, sizeof(double));
	problem->exact_lse = calloc(rows + 1, sizeof(double));
	for (int32_t b = 0; b < spec->batch; b++) {
		const uint32_t prefix = spec->prefix[b] > 0 ? (uint32_t)spec->prefix[b] : 0;
		struct fa_attention_params params = {
			.dtype = spec->e4m3 ? FA_ATTENTION_F32 : spec->dtype,
			.batch = 1,
			.heads = spec->heads,
			.kv_heads = spec->kv_heads,
			.head_dim = spec->head_dim,
			.head_dim_v = spec->head_dim_v,
			.seqlen_q = rows_of(spec, b),
			.seqlen_k = spec->lengths[b],
			.scale = p->scale,
			.softcap = p->softcap,
			.causal = p->causal,
			.window_left = p->window_left,
			.window_right = p->window_right,
			.chunk_tokens = p->chunk_tokens,
			.pattern = p->pattern,
			.prefix_lengths = spec->prefixed ? &prefix : NULL,
			.alibi_slopes = p->alibi_slopes,
			.sinks = p->sinks,
			.q = p->q,
			.k.stride_token = (int64_t)spec->kv_heads * spec->head_dim,
			.k.stride_head = spec->head_dim,
			.v.stride_token = (int64_t)spec->kv_heads * spec->head_dim_v,
			.v.stride_head = spec->head_dim_v,
		};
		int64_t begin = row * p->q.stride_token / spec->heads;

		params.q.data = spec->e4m3
		                        ? (char *)(q + begin)
		                        : (char *)p->q.data + begin * (int64_t)element_bytes(spec);
		params.k.data = gather(problem, b, false);
		params.v.data = gather(problem, b, true);
		for (int64_t i = 0; i < params.seqlen_q; i++) {
			for (int32_t h = 0; h < spec->heads; h++, row++) {
				double unused;

				reference_row(&params, 0, i, h, false,
				              problem->exact + row * spec->head_dim_v,
				              problem->exact_lse + row);
				reference_row(&params, 0, i, h, true,
				              problem->naive + row * spec->head_dim_v, &unused);
			}
		}
		free(params.k.data);
		free(params.v.data);
	}
	free(q);
}

/* ---- judging */

static bool all_poison(const struct own_memory *memory)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (!memory->map)
		return true;
	for (size_t i = page; i < memory->map_bytes - page; i++)
		if ((unsigned char)memory->map[i] != POISON)
			return false;
	return true;
}

void own_poison(struct own_problem *problem)
{
	memset(problem->out.data, POISON, problem->out.bytes);
	if (problem->lse.map)
		memset(problem->lse.data, POISON, problem->lse.bytes);
}

void own_judge(struct own_problem *problem, const char *by, bool rounds_weights)
{
	const struct own_spec *spec = &problem->spec;
	const struct fa_paged_own_attention *p = &problem->request.own_attention;
	const double unit = spec->dtype == FA_ATTENTION_F32   ? 0
	                    : spec->dtype == FA_ATTENTION_F16 ? 0x1p-11
	                                                      : 0x1p-8;
	double highest = 0, naive = 0, worst = 0, lse_worst = 0, allowed;
	int64_t row = 0;

	for (int64_t i = 0; i < p->total_q; i++) {
		for (int32_t h = 0; h < spec->heads; h++, row++) {
			int64_t at = i * p->out.stride_token + h * p->out.stride_head;

			for (int32_t c = 0; c < spec->head_dim_v; c++) {
				double exact = problem->exact[row * spec->head_dim_v + c];
				double got = reference_get(spec->dtype, p->out.data, at + c);

				highest = fmax(highest, fabs(exact));
				naive = fmax(
					naive,
					fabs(problem->naive[row * spec->head_dim_v + c] - exact));
				worst = isfinite(got) ? fmax(worst, fabs(got - exact)) : INFINITY;
			}
			memset((char *)p->out.data + (size_t)at * element_bytes(spec), POISON,
			       (size_t)spec->head_dim_v * element_bytes(spec));
			if (p->lse) {
				float *got =
					&p->lse[i * p->lse_stride_token + h * p->lse_stride_head];
				double exact = problem->exact_lse[row];

				if (isinf(exact) || !isfinite(*got))
					lse_worst = *got == exact ? lse_worst : INFINITY;
				else
					lse_worst = fmax(lse_worst,
					                 fabs(*got - exact) / (1 + fabs(exact)));
				memset(got, POISON, sizeof(*got));
			}
		}
	}
	allowed = highest * unit + 8e-6 * fmax(1, highest) * (spec->alibi ? 3 : 1);
	if (rounds_weights && spec->dtype != FA_ATTENTION_F32)
		allowed += 2 * naive;
	if (!(worst <= allowed))
		give_up("%s on %s: largest error %g, allowed %g", own_describe(problem), by, worst,
		        allowed);
	if (!(lse_worst <= (spec->alibi ? 9e-6 : 3e-6) * (rounds_weights ? 4 : 1)))
		give_up("%s on %s: largest error of lse %g", own_describe(problem), by, lse_worst);
	if (!all_poison(&problem->out) || !all_poison(&problem->lse))
		give_up("%s on %s: wrote outside the rows", own_describe(problem), by);
}
