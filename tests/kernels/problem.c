/*
 * See problem.h. The first check of a problem computes the reference and keeps it.
 */
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

/* ---- memory */

static void memory_new(struct problem_memory *memory, size_t bytes, bool at_begin)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t inner = (bytes + page - 1) / page * page + page;

	memory->map_bytes = inner + 2 * page;
	memory->map = mmap(NULL, memory->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory->map == MAP_FAILED ||
	    mprotect(memory->map + page, inner, PROT_READ | PROT_WRITE) < 0)
		fail_msg("no memory");
	memory->bytes = bytes;
	memory->data = at_begin ? memory->map + page : memory->map + page + inner - bytes;
	memset(memory->map + page, POISON, inner);
}

static void memory_free(struct problem_memory *memory)
{
	if (memory->map)
		munmap(memory->map, memory->map_bytes);
}

/* Sets a tensor's strides for the layout; returns the number of elements up to its end. */
static int64_t lay_out(const struct problem *problem, int64_t batch, int64_t tokens, int64_t heads,
                       int64_t dim, struct fa_attention_tensor *tensor)
{
	int64_t gap = problem->spec.layout == PROBLEM_PADDED ? 8 : 0;
	int64_t rows = tokens > 0 ? tokens : 1;

	if (problem->spec.layout == PROBLEM_HEAD_MAJOR) {
		tensor->stride_token = dim;
		tensor->stride_head = rows * dim;
		tensor->stride_batch = rows * heads * dim;
	} else {
		tensor->stride_head = dim + gap;
		tensor->stride_token = heads * tensor->stride_head + gap;
		tensor->stride_batch = rows * tensor->stride_token + 3 * gap;
	}
	if (tokens == 0)
		return 0;
	return (batch - 1) * tensor->stride_batch + (tokens - 1) * tensor->stride_token +
	       (heads - 1) * tensor->stride_head + dim;
}

static void fill(struct problem *problem, const struct fa_attention_tensor *tensor, bool is_q,
                 int32_t heads, int32_t dim, double magnitude)
{
	const struct fa_attention_params *params = &problem->params;

	for (int32_t b = 0; b < params->batch; b++) {
		int64_t n = is_q ? reference_n_q(params, b) : reference_n_k(params, b);

		for (int64_t i = 0; i < n; i++) {
			for (int32_t h = 0; h < heads; h++) {
				int64_t at = is_q ? reference_q_at(params, tensor, b, i, h)
				                  : reference_k_at(params, tensor, b, i, h);

				for (int32_t c = 0; c < dim; c++) {
					double value = problem_normal() * magnitude;

					if (params->e4m3)
						((uint8_t *)tensor->data)[at + c] = reference_code(
							FA_PAGED_E4M3, value);
					else
						reference_set(params->dtype, tensor->data, at + c,
						              value);
				}
			}
		}
	}
}

/* Scales of random sign from 0.25 to 2, between words of NaN. */
static void make_scales(struct problem *problem, int number, int64_t tokens, int32_t heads,
                        bool at_begin, struct fa_attention_scales *scales)
{
	const unsigned int kind = problem->spec.scales[number];
	const int64_t gap = at_begin ? 2 : 1;
	int64_t n = gap;
	float *data;

	if (!kind)
		return;
	if (kind & PROBLEM_SCALES_HEAD) {
		scales->stride_head = n;
		n *= heads;
	}
	if (kind & PROBLEM_SCALES_TOKEN) {
		scales->stride_token = n;
		n *= tokens > 0 ? tokens : 1;
	}
	if (kind & PROBLEM_SCALES_BATCH) {
		scales->stride_batch = n;
		n *= problem->spec.batch;
	}
	memory_new(&problem->scales[number], (size_t)(n - gap + 1) * sizeof(float), at_begin);
	scales->data = data = (float *)problem->scales[number].data;
	for (int64_t i = 0; i < n; i += gap)
		data[i] = (float)((problem_one_in(4) ? -1 : 1) *
		                  exp2((double)problem_random(300) / 100 - 2));
}

static void make_lists(const struct problem *problem, int32_t *offsets, int64_t n_blocks,
                       int64_t key_blocks, int32_t *columns)
{
	static const int32_t wild[] = { -1, INT32_MIN, INT32_MAX, 0, 3 };
	const struct problem_spec *spec = &problem->spec;
	const int64_t room = problem->params.blocks.n_columns;
	int32_t n = 0;

	for (int64_t r = 0; r < n_blocks; r++) {
		bool empty = problem_one_in(9);

		offsets[r] = n;
		for (int32_t c = 0; c < key_blocks && !empty; c++) {
			if (spec->hostile && problem_one_in(4) && n < room)
				columns[n++] = problem_one_in(2) ? wild[problem_random(5)]
				                                 : (int32_t)key_blocks;
			if ((int32_t)problem_random(100) < spec->density && n < room)
				columns[n++] = c;
		}
	}
	offsets[n_blocks] = n;
	while (n < room)
		columns[n++] = 0; /* in no list */
	/* Lists that end before they begin, or outside of the columns. */
	for (int64_t r = 0; r <= n_blocks && spec->hostile; r++) {
		if (problem_one_in(5))
			offsets[r] = problem_one_in(2)
			                     ? wild[problem_random(5)]
			                     : (int32_t)(problem_random((uint64_t)room + 9));
	}
}

static void make_masks(struct problem *problem, bool at_begin)
{
	struct fa_attention_params *params = &problem->params;
	const struct problem_spec *spec = &problem->spec;
	const int64_t heads = spec->of_heads ? spec->heads : 1;
	const int64_t sets = heads * (spec->of_batch ? spec->batch : 1);

	params->pattern = spec->pattern;
	if (spec->block_rows) {
		struct fa_attention_blocks *blocks = &params->blocks;
		int64_t n_rows = (params->seqlen_q + spec->block_rows - 1) / spec->block_rows;
		int64_t n_keys = (params->seqlen_k + spec->block_keys - 1) / spec->block_keys;
		int32_t *offsets, *columns;

		blocks->rows = spec->block_rows;
		blocks->keys = spec->block_keys;
		blocks->n_columns = n_rows * n_keys;
		blocks->offsets_stride_head = spec->of_heads ? n_rows + 1 : 0;
		blocks->columns_stride_head = spec->of_heads ? blocks->n_columns : 0;
		blocks->offsets_stride_batch = spec->of_batch ? heads * (n_rows + 1) : 0;
		blocks->columns_stride_batch = spec->of_batch ? heads * blocks->n_columns : 0;
		memory_new(&problem->offsets, (size_t)(sets * (n_rows + 1)) * sizeof(int32_t),
		           at_begin);
		memory_new(&problem->columns, (size_t)(sets * blocks->n_columns) * sizeof(int32_t),
		           at_begin);
		blocks->offsets = offsets = (int32_t *)problem->offsets.data;
		blocks->columns = columns = (int32_t *)problem->columns.data;
		for (int64_t set = 0; set < sets; set++)
			make_lists(problem, offsets + set * (n_rows + 1), n_rows, n_keys,
			           columns + set * blocks->n_columns);
	}
	if (spec->bits) {
		struct fa_attention_bits *bits = &params->bits;
		uint32_t *words;

		/* Some words too few, or some that have no key. */
		bits->row_words = (params->seqlen_k + 31) / 32 + (int64_t)problem_random(3) - 1;
		if (bits->row_words < 0)
			bits->row_words = 0;
		bits->stride_row = bits->row_words + (at_begin ? 3 : 0);
		bits->stride_head = spec->of_heads ? params->seqlen_q * bits->stride_row : 0;
		bits->stride_batch = spec->of_batch ? heads * params->seqlen_q * bits->stride_row
		                                    : 0;
		memory_new(&problem->words,
		           (size_t)(sets * params->seqlen_q * bits->stride_row) * sizeof(uint32_t),
		           at_begin);
		bits->words = words = (uint32_t *)problem->words.data;
		for (int64_t i = 0; i < sets * params->seqlen_q * bits->stride_row; i++) {
			bool random = problem_one_in(2);

			words[i] = (int32_t)problem_random(100) < spec->density ? UINT32_MAX : 0;
			if (random)
				words[i] = 0;
			for (int b = 0; b < 32 && random; b++)
				words[i] |= (uint32_t)((int32_t)problem_random(100) < spec->density)
				            << b;
		}
	}
}

void problem_init(struct problem *problem, const struct problem_spec *spec)
{
	struct fa_attention_params *params = &problem->params;
	bool at_begin = spec->layout == PROBLEM_PADDED;
	int64_t batch = spec->batch, tokens_q = spec->n_q, tokens_k = spec->n_k, unused = 0;
	double magnitude = spec->magnitude ? spec->magnitude : 1;
	size_t out_bytes = spec->dtype == FA_ATTENTION_F32 ? 4 : 2;
	size_t bytes = spec->e4m3 ? 1 : out_bytes;
	struct fa_attention_tensor lse;
	int64_t q, k, v, out, lse_elements;
	char text[256] = "";

	memset(problem, 0, sizeof(*problem));
	problem->spec = *spec;
	*params = (struct fa_attention_params){
		.dtype = spec->dtype,
		.e4m3 = spec->e4m3,
		.batch = spec->batch,
		.heads = spec->heads,
		.kv_heads = spec->kv_heads,
		.head_dim = spec->head_dim,
		.head_dim_v = spec->head_dim_v,
		.seqlen_q = spec->n_q,
		.seqlen_k = spec->n_k,
		.scale = spec->scale ? spec->scale : 1 / sqrtf((float)spec->head_dim),
		.softcap = spec->softcap,
		.causal = spec->causal,
		.window_left = spec->left_1 - 1,
		.window_right = spec->right_1 - 1,
		.chunk_tokens = spec->chunk,
	};
	if (spec->ragged) {
		params->seqlen_q = params->seqlen_k = 0;
		for (int32_t b = 0; b < spec->batch; b++) {
			problem->cu_q[b + 1] = problem->cu_q[b] + spec->lengths_q[b];
			problem->cu_k[b + 1] = problem->cu_k[b] + spec->lengths_k[b];
			if (spec->lengths_q[b] > params->seqlen_q)
				params->seqlen_q = spec->lengths_q[b];
			if (spec->lengths_k[b] > params->seqlen_k)
				params->seqlen_k = spec->lengths_k[b];
		}
		params->cu_seqlens_q = problem->cu_q;
		params->cu_seqlens_k = problem->cu_k;
		batch = 1;
		tokens_q = problem->cu_q[spec->batch];
		tokens_k = problem->cu_k[spec->batch];
		unused = spec->layout == PROBLEM_PADDED ? 3 : 0; /* tokens behind the last */
	}
	for (int32_t h = 0; h < spec->heads; h++) {
		problem->slopes[h] = (float)exp2(-8.0 * (h + 1) / spec->heads);
		problem->sinks[h] = (float)problem_normal() * 2;
	}
	params->alibi_slopes = spec->alibi ? problem->slopes : NULL;
	params->sinks = spec->sinks ? problem->sinks : NULL;
	params->prefix_lengths = spec->prefixed ? problem->spec.prefix : NULL;

	q = lay_out(problem, batch, tokens_q + unused, spec->heads, spec->head_dim, &params->q);
	k = lay_out(problem, batch, tokens_k + unused, spec->kv_heads, spec->head_dim, &params->k);
	v = lay_out(problem, batch, tokens_k + unused, spec->kv_heads, spec->head_dim_v,
	            &params->v);
	out = lay_out(problem, batch, tokens_q + unused, spec->heads, spec->head_dim_v,
	              &params->out);
	lse_elements = lay_out(problem, batch, tokens_q + unused, spec->heads, 1, &lse);
	params->lse_stride_batch = lse.stride_batch;
	params->lse_stride_token = lse.stride_token;
	params->lse_stride_head = lse.stride_head;
	memory_new(&problem->q, (size_t)q * bytes, at_begin);
	memory_new(&problem->k, (size_t)k * bytes, at_begin);
	memory_new(&problem->v, (size_t)v * bytes, at_begin);
	memory_new(&problem->out, (size_t)out * out_bytes, at_begin);
	memory_new(&problem->lse, (size_t)lse_elements * sizeof(float), at_begin);
	params->q.data = problem->q.data;
	params->k.data = problem->k.data;
	params->v.data = problem->v.data;
	params->out.data = problem->out.data;
	params->lse = spec->no_lse ? NULL : (float *)problem->lse.data;

	fill(problem, &params->q, true, spec->heads, spec->head_dim, magnitude);
	fill(problem, &params->k, false, spec->kv_heads, spec->head_dim, magnitude);
	fill(problem, &params->v, false, spec->kv_heads, spec->head_dim_v, 1);

	make_masks(problem, at_begin);
	make_scales(problem, 0, tokens_q, spec->heads, at_begin, &params->q_scales);
	make_scales(problem, 1, tokens_k, spec->kv_heads, at_begin, &params->k_scales);
	make_scales(problem, 2, tokens_k, spec->kv_heads, at_begin, &params->v_scales);
	if (fa_attention_check(params, text, sizeof(text)) != 0)
		fail_msg("%s: refused: %s", problem_describe(problem), text);
}

void problem_deinit(struct problem *problem)
{
	memory_free(&problem->q);
	memory_free(&problem->k);
	memory_free(&problem->v);
	memory_free(&problem->out);
	memory_free(&problem->lse);
	memory_free(&problem->offsets);
	memory_free(&problem->columns);
	memory_free(&problem->words);
	for (int i = 0; i < 3; i++)
		memory_free(&problem->scales[i]);
}

const char *problem_describe(const struct problem *problem)
{
	static char text[1024];
	const struct problem_spec *s = &problem->spec;
	int n;

	n = snprintf(text, sizeof(text),
	             "dtype %d batch %d heads %d/%d dims %d/%d tokens %lld/%lld causal %d window "
	             "%lld/%lld chunk %lld softcap %g scale %g alibi %d sinks %d layout %d",
	             (int)s->dtype, s->batch, s->heads, s->kv_heads, s->head_dim, s->head_dim_v,
	             (long long)s->n_q, (long long)s->n_k, s->causal, (long long)s->left_1 - 1,
	             (long long)s->right_1 - 1, (long long)s->chunk, (double)s->softcap,
	             (double)s->scale, s->alibi, s->sinks, (int)s->layout);
	if (s->e4m3 && n > 0 && (size_t)n < sizeof(text))
		n += snprintf(text + n, sizeof(text) - (size_t)n, " e4m3 scales %x/%x/%x",
		              s->scales[0], s->scales[1], s->scales[2]);
	if (s->block_rows && n > 0 && (size_t)n < sizeof(text))
		n += snprintf(text + n, sizeof(text) - (size_t)n, " blocks %dx%d", s->block_rows,
		              s->block_keys);
	if ((s->block_rows || s->bits) && n > 0 && (size_t)n < sizeof(text))
		n += snprintf(text + n, sizeof(text) - (size_t)n,
		              " bits %d density %d heads %d batch %d hostile %d", s->bits,
		              s->density, s->of_heads, s->of_batch, s->hostile);
	if (s->pattern.block_tokens && n > 0 && (size_t)n < sizeof(text))
		n += snprintf(text + n, sizeof(text) - (size_t)n, " pattern %d %d %d %d %d",
		              s->pattern.block_tokens, s->pattern.local_blocks,
		              s->pattern.vert_stride, s->pattern.head_step, s->pattern.first_head);
	for (int32_t b = 0; s->prefixed && b < s->batch && n > 0 && (size_t)n < sizeof(text); b++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " prefix %u", s->prefix[b]);
	for (int32_t b = 0; s->ragged && b < s->batch && n > 0 && (size_t)n < sizeof(text); b++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %u/%u", s->lengths_q[b],
		              s->lengths_k[b]);
	return text;
}

/* ---- running */

const struct fa_cpu_isa *const *problem_isas(void)
{
	static const char *const names[] = { "vulkan", "vulkan-matrices", "avx512bf16", "avx512",
		                             "avx2",   "generic" };
	static const struct fa_cpu_isa *isas[7];
	size_t n = 0;

	if (isas[0])
		return isas;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		setenv("FAD_CPU_ISA", names[i], 1);
		if (fa_cpu_isa_select(NULL, 0, &isas[n]) == 0) {
			assert_string_equal(fa_cpu_isa_name(isas[n]), names[i]);
			n++;
		}
	}
	unsetenv("FAD_CPU_ISA");
	assert_true(n > 0);
	/* vulkan-as-cpu.c has no other. */
	assert_string_equal(fa_cpu_isa_name(isas[n - 1]),
	                    strncmp(fa_cpu_isa_name(isas[0]), "vulkan", 6) == 0
	                            ? fa_cpu_isa_name(isas[0])
	                            : "generic");
	return isas;
}

bool problem_rounds_weights(const struct fa_cpu_isa *isa, enum fa_attention_dtype dtype)
{
	const char *name = fa_cpu_isa_name(isa);

	return (dtype == FA_ATTENTION_BF16 && strcmp(name, "avx512bf16") == 0) ||
	       (dtype != FA_ATTENTION_F32 && strcmp(name, "vulkan-matrices") == 0);
}

/* Memory of @bytes that ends before an unmapped page; reallocated only to grow. */
static void memory_room(struct problem_memory *room, size_t bytes)
{
	bytes = (bytes + 63) / 64 * 64;
	if (!room->map || room->bytes < bytes) {
		memory_free(room);
		memory_new(room, bytes, false);
	}
	room->data = room->map + room->map_bytes - (size_t)sysconf(_SC_PAGESIZE) - bytes;
}

void problem_run(struct problem *problem, const struct fa_cpu_isa *isa, enum problem_order order)
{
	const struct fa_attention_params *params = &problem->params;
	int64_t tiles = fa_cpu_attention_tiles(isa, params);
	size_t scratch_bytes = fa_cpu_attention_scratch_bytes(isa, params);
	int64_t *numbers = malloc(((size_t)tiles + 1) * sizeof(*numbers));
	size_t workspace_bytes = fa_cpu_attention_workspace_bytes(isa, params);
	static struct problem_memory scratch, workspace; /* shared by all problems, never freed */

	assert_true(scratch_bytes <= FA_CPU_SCRATCH_BYTES_MAX);
	assert_true(workspace_bytes <= FA_CPU_WORKSPACE_BYTES_MAX);
	memory_room(&scratch, scratch_bytes);
	memory_room(&workspace, workspace_bytes);

	memset(problem->out.data, POISON, problem->out.bytes);
	memset(problem->lse.data, POISON, problem->lse.bytes);
	for (int64_t i = 0; i < tiles; i++)
		numbers[i] = order == PROBLEM_DESCENDING ? tiles - 1 - i : i;
	for (int64_t i = tiles - 1; order == PROBLEM_SHUFFLED && i > 0; i--) {
		int64_t j = (int64_t)problem_random((uint64_t)i + 1), number = numbers[i];

		numbers[i] = numbers[j];
		numbers[j] = number;
	}
	memset(scratch.data, POISON, scratch_bytes);
	memset(workspace.data, POISON, workspace_bytes);
	fa_cpu_attention_begin(isa, params, workspace_bytes ? workspace.data : NULL);
	for (int64_t i = 0; i < tiles; i++)
		assert_true(fa_cpu_attention_tile(isa, params,
		                                  workspace_bytes ? workspace.data : NULL,
		                                  numbers[i], scratch.data, NULL));
	free(numbers);
}

/* ---- judging */

struct verdict {
	double highest;       /* largest |reference| */
	double naive, kernel; /* largest errors of output */
	double lse;           /* largest error, relative to 1 + |reference| */
};

static void compare_row(struct problem *problem, int32_t b, int64_t i, int32_t h,
                        const double *exact, const double *naive, double lse,
                        struct verdict *verdict)
{
	const struct fa_attention_params *params = &problem->params;
	int64_t at = reference_q_at(params, &params->out, b, i, h);

	for (int32_t c = 0; c < params->head_dim_v; c++) {
		double got = reference_get(params->dtype, problem->out.data, at + c);

		verdict->highest = fmax(verdict->highest, fabs(exact[c]));
		verdict->naive = fmax(verdict->naive, fabs(naive[c] - exact[c]));
		if (!isfinite(got))
			verdict->kernel = INFINITY;
		else
			verdict->kernel = fmax(verdict->kernel, fabs(got - exact[c]));
	}
	if (params->lse) {
		double got = params->lse[reference_lse_at(params, b, i, h)];

		if (isinf(lse) || !isfinite(got))
			verdict->lse = fmax(verdict->lse, got == lse ? 0 : INFINITY);
		else
			verdict->lse = fmax(verdict->lse, fabs(got - lse) / (1 + fabs(lse)));
	}
}

/* Poisons what should have been written, then looks for other changes. */
static void check_rest(struct problem *problem, const struct fa_cpu_isa *isa)
{
	const struct fa_attention_params *params = &problem->params;
	size_t bytes = params->dtype == FA_ATTENTION_F32 ? 4 : 2;
	const struct problem_memory *all[] = { &problem->out, &problem->lse };

	for (int32_t b = 0; b < params->batch; b++) {
		for (int64_t i = 0; i < reference_n_q(params, b); i++) {
			for (int32_t h = 0; h < params->heads; h++) {
				memset(problem->out.data + (size_t)reference_q_at(
								   params, &params->out, b, i, h) *
				                                   bytes,
				       POISON, (size_t)params->head_dim_v * bytes);
				if (params->lse)
					memset(&params->lse[reference_lse_at(params, b, i, h)],
					       POISON, sizeof(float));
			}
		}
	}
	for (size_t m = 0; m < 2; m++) {
		size_t page = (size_t)sysconf(_SC_PAGESIZE);
		const char *begin = all[m]->map + page;
		size_t n = all[m]->map_bytes - 2 * page;

		if ((unsigned char)begin[0] != POISON || memcmp(begin, begin + 1, n - 1) != 0)
			fail_msg("%s on %s: wrote outside the rows of %s",
			         problem_describe(problem), fa_cpu_isa_name(isa),
			         m == 0 ? "out" : "lse");
	}
}

struct expectation {
	double *exact, *naive, *lse; /* [row][dim], [row][dim], [row] */
};

static const struct expectation *expect(struct problem *problem)
{
	static struct expectation expectation;
	static struct problem known;
	const struct fa_attention_params *params = &problem->params;
	int64_t rows = 0, row = 0;
	int32_t dim = params->head_dim_v;

	/* Problems are told apart by all their bytes, which include addresses. */
	if (memcmp(&known, problem, sizeof(known)) == 0)
		return &expectation;
	memcpy(&known, problem, sizeof(known));
	free(expectation.exact);
	free(expectation.naive);
	free(expectation.lse);
	for (int32_t b = 0; b < params->batch; b++)
		rows += reference_n_q(params, b) * params->heads;
	expectation.exact = calloc((size_t)(rows * dim) + 1, sizeof(double));
	expectation.naive = calloc((size_t)(rows * dim) + 1, sizeof(double));
	expectation.lse = calloc((size_t)rows + 1, sizeof(double));
	for (int32_t b = 0; b < params->batch; b++) {
		for (int64_t i = 0; i < reference_n_q(params, b); i++) {
			for (int32_t h = 0; h < params->heads; h++, row++) {
				double unused;

				reference_row(params, b, i, h, false, expectation.exact + row * dim,
				              expectation.lse + row);
				if (params->dtype != FA_ATTENTION_F32)
					reference_row(params, b, i, h, true,
					              expectation.naive + row * dim, &unused);
			}
		}
	}
	return &expectation;
}

void problem_check(struct problem *problem, const struct fa_cpu_isa *isa)
{
	const struct fa_attention_params *params = &problem->params;
	const struct expectation *expected = expect(problem);
	double factor = problem->spec.tolerance ? problem->spec.tolerance : 1;
	struct verdict verdict = { 0 };
	double allowed, tiny;
	int64_t row = 0;
	int32_t dim = params->head_dim_v;

	for (int32_t b = 0; b < params->batch; b++) {
		for (int64_t i = 0; i < reference_n_q(params, b); i++) {
			for (int32_t h = 0; h < params->heads; h++, row++)
				compare_row(problem, b, i, h, expected->exact + row * dim,
				            params->dtype == FA_ATTENTION_F32
				                    ? expected->exact + row * dim
				                    : expected->naive + row * dim,
				            expected->lse[row], &verdict);
		}
	}

	/* An ALiBi bias of hundreds costs fp32 scores their last digits. */
	if (problem->spec.alibi)
		factor *= 3;
	tiny = 8e-6 * factor * fmax(1, verdict.highest);
	if (params->dtype == FA_ATTENTION_F32) {
		allowed = tiny;
	} else if (problem_rounds_weights(isa, params->dtype)) {
		/* Weights are rounded too: FlashAttention's own rule. */
		allowed = 2 * verdict.naive +
		          verdict.highest * (params->dtype == FA_ATTENTION_F16 ? 0x1p-11 : 0x1p-8) +
		          tiny;
	} else {
		/* Nothing but the output is rounded. */
		allowed = verdict.highest * (params->dtype == FA_ATTENTION_F16 ? 0x1p-11 : 0x1p-8) +
		          tiny;
	}
	if (!(verdict.kernel <= allowed))
		fail_msg("%s on %s: largest error %g, allowed %g", problem_describe(problem),
		         fa_cpu_isa_name(isa), verdict.kernel, allowed);
	if (!(verdict.lse <= 3e-6 * factor))
		fail_msg("%s on %s: largest error of lse %g", problem_describe(problem),
		         fa_cpu_isa_name(isa), verdict.lse);
	check_rest(problem, isa);
}

void problem_test(const struct problem_spec *spec)
{
	const struct fa_cpu_isa *const *isas = problem_isas();
	struct problem problem;

	problem_init(&problem, spec);
	for (size_t i = 0; isas[i]; i++) {
		problem_run(&problem, isas[i], PROBLEM_ASCENDING);
		problem_check(&problem, isas[i]);
	}
	problem_deinit(&problem);
}
