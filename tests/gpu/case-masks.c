/*
 * Blocks, patterns and bits on a GPU, random and hostile, combined with all else that kernels with
 * masks have.
 */
#include "tests/gpu/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool one_in(struct fa_cases *cases, int64_t n)
{
	return fa_random_below(&cases->random, n) == 0;
}

static uint64_t upload(struct fa_cases *cases, const void *data, size_t bytes)
{
	const uint64_t address = fa_gpu_alloc(cases->gpu, bytes);

	fa_gpu_upload(cases->gpu, address, data, bytes);
	return address;
}

struct masks {
	uint64_t offsets, columns, words;
};

/* Lists with entries that do not count: out of range, twice, descending. */
static void make_blocks(struct fa_cases *cases, struct fa_attention_params *p, struct masks *masks)
{
	static const int32_t wild[] = { -1, INT32_MIN, INT32_MAX, 0, 3 };
	struct fa_attention_blocks *blocks = &p->blocks;
	const bool hostile = one_in(cases, 2), of_heads = one_in(cases, 2);
	const bool of_batch = one_in(cases, 2);
	const int64_t sets = (of_heads ? p->heads : 1) * (of_batch ? p->batch : 1);
	int64_t rows, keys;
	int32_t *offsets, *columns;

	blocks->rows = one_in(cases, 2) ? 64 : 128;
	blocks->keys = one_in(cases, 2) ? 64 : 128;
	rows = (p->seqlen_q + blocks->rows - 1) / blocks->rows;
	keys = (p->seqlen_k + blocks->keys - 1) / blocks->keys;
	blocks->n_columns = rows * keys;
	blocks->offsets_stride_head = of_heads ? rows + 1 : 0;
	blocks->columns_stride_head = of_heads ? rows * keys : 0;
	blocks->offsets_stride_batch = of_batch ? (of_heads ? p->heads : 1) * (rows + 1) : 0;
	blocks->columns_stride_batch = of_batch ? (of_heads ? p->heads : 1) * rows * keys : 0;
	offsets = calloc((size_t)(sets * (rows + 1)), sizeof(*offsets));
	columns = calloc((size_t)(sets * rows * keys) + 1, sizeof(*columns));
	if (!offsets || !columns)
		abort();
	for (int64_t s = 0; s < sets; s++) {
		int32_t *own = offsets + s * (rows + 1), *list = columns + s * rows * keys;
		int32_t n = 0;

		for (int64_t r = 0; r < rows; r++) {
			const bool empty = one_in(cases, 9);

			own[r] = n;
			for (int32_t c = 0; c < keys && !empty; c++) {
				if (hostile && one_in(cases, 4) && n < rows * keys)
					list[n++] =
						one_in(cases, 2)
							? wild[fa_random_below(&cases->random, 5)]
							: (int32_t)keys;
				if (one_in(cases, 3) && n < rows * keys)
					list[n++] = c;
			}
		}
		own[rows] = n;
		for (int64_t r = 0; r <= rows && hostile; r++)
			if (one_in(cases, 5))
				own[r] = wild[fa_random_below(&cases->random, 5)];
	}
	masks->offsets = upload(cases, offsets, (size_t)(sets * (rows + 1)) * sizeof(*offsets));
	masks->columns = upload(cases, columns,
	                        ((size_t)(sets * rows * keys) + 1) * sizeof(*columns));
	blocks->offsets = (const int32_t *)(uintptr_t)masks->offsets;
	blocks->columns = (const int32_t *)(uintptr_t)masks->columns;
	free(offsets);
	free(columns);
}

static void make_bits(struct fa_cases *cases, struct fa_attention_params *p, struct masks *masks)
{
	struct fa_attention_bits *bits = &p->bits;
	const bool of_heads = one_in(cases, 2), of_batch = one_in(cases, 2);
	const int64_t heads = of_heads ? p->heads : 1;
	uint32_t *words;
	int64_t n;

	bits->row_words = (p->seqlen_k + 31) / 32 + fa_random_below(&cases->random, 3) - 1;
	if (bits->row_words < 0)
		bits->row_words = 0;
	bits->stride_row = bits->row_words + fa_random_below(&cases->random, 3);
	bits->stride_head = of_heads ? p->seqlen_q * bits->stride_row : 0;
	bits->stride_batch = of_batch ? heads * p->seqlen_q * bits->stride_row : 0;
	n = heads * (of_batch ? p->batch : 1) * p->seqlen_q * bits->stride_row;
	words = calloc((size_t)n + 1, sizeof(*words));
	if (!words)
		abort();
	for (int64_t i = 0; i < n; i++)
		words[i] = one_in(cases, 3) ? 0 : (uint32_t)(fa_random(&cases->random) >> 16);
	masks->words = upload(cases, words, ((size_t)n + 1) * sizeof(*words));
	bits->words = (const uint32_t *)(uintptr_t)masks->words;
	free(words);
}

/* Logits that rise by hundreds at some keys: a row's first tile may have the least. */
static void raise_some(struct fa_cases *cases, struct fa_request *request)
{
	static float nats[2000];

	for (size_t i = 0; i < sizeof(nats) / sizeof(nats[0]); i++)
		nats[i] = one_in(cases, 60) ? 100.f * (float)fa_random_below(&cases->random, 5) : 0;
	fa_request_raise(cases->gpu, request, nats);
}

static void check_one(struct fa_cases *cases, int n)
{
	static const int dims[][2] = { { 64, 64 }, { 128, 128 }, { 256, 256 },
		                       { 96, 80 }, { 192, 128 }, { 64, 256 } };
	static const int64_t lengths[][2] = { { 1, 1 },     { 239, 1 },   { 3, 513 },
		                              { 113, 203 }, { 300, 300 }, { 128, 640 },
		                              { 511, 130 }, { 17, 0 } };
	const int64_t *const length = lengths[fa_random_below(&cases->random, 8)];
	const int *const dim = dims[fa_random_below(&cases->random, 6)];
	const int kv_heads = 1 + (int)fa_random_below(&cases->random, 2);
	struct fa_attention_params params = {
		.dtype = n % 2 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16,
		.batch = 1 + (int)fa_random_below(&cases->random, 2),
		.heads = kv_heads * (1 + (int)fa_random_below(&cases->random, 2)),
		.kv_heads = kv_heads,
		.head_dim = dim[0],
		.head_dim_v = dim[1],
		.seqlen_q = length[0],
		.seqlen_k = length[1],
		.scale = (float)(1 / sqrt(dim[0])),
		.softcap = one_in(cases, 6) ? 5 : 0,
		.causal = one_in(cases, 2),
		.window_left = one_in(cases, 5) ? 70 : -1,
		.window_right = -1,
	};
	const struct fa_request_layout layout = { .broken = one_in(cases, 3) ? 5 : 0,
		                                  .gap = one_in(cases, 5) ? 3 : 0 };
	const int which = 1 + (int)fa_random_below(&cases->random, 7);
	uint32_t lengths_q[3], lengths_k[3];
	struct fa_attention_params *p;
	struct masks masks = { 0 };
	struct fa_request request;
	size_t end;
	bool ragged = params.batch == 2 && one_in(cases, 3);

	for (uint32_t b = 0; b < 3; b++) {
		lengths_q[b] = b * (uint32_t)length[0] + (b == 2 ? 70 : 0);
		lengths_k[b] = b * (uint32_t)length[1] + (b == 2 ? 100 : 0);
	}
	fa_request_make(cases->gpu, &request, &params, ragged ? lengths_q : NULL,
	                ragged ? lengths_k : NULL, layout, one_in(cases, 6), one_in(cases, 6),
	                &cases->random);
	p = &request.params;
	if (one_in(cases, 9))
		raise_some(cases, &request);
	if (which & 1)
		make_blocks(cases, p, &masks);
	if (which & 2)
		make_bits(cases, p, &masks);
	if (which & 4)
		p->pattern = (struct fa_attention_pattern){
			16 << fa_random_below(&cases->random, 4),
			(int32_t)fa_random_below(&cases->random, 3),
			1 + (int32_t)fa_random_below(&cases->random, 6),
			(int32_t)fa_random_below(&cases->random, 5) - 2,
			/* The last numbers of heads do not fit into 32 bits. */
			(one_in(cases, 5) ? INT32_MAX - 19 : 0) +
				(int32_t)fa_random_below(&cases->random, 20),
		};
	end = strlen(request.text);
	snprintf(request.text + end, sizeof(request.text) - end,
	         " blocks %dx%d bits %d pattern %d %d %d %d %d", p->blocks.rows, p->blocks.keys,
	         p->bits.words != NULL, p->pattern.block_tokens, p->pattern.local_blocks,
	         p->pattern.vert_stride, p->pattern.head_step, p->pattern.first_head);
	fa_cases_check(cases, &request);
	if (masks.offsets)
		fa_gpu_free(cases->gpu, masks.offsets);
	if (masks.columns)
		fa_gpu_free(cases->gpu, masks.columns);
	if (masks.words)
		fa_gpu_free(cases->gpu, masks.words);
	fa_request_free(cases->gpu, &request);
}

/* Rows start again at a tile whose greatest logits are hidden from some of them. */
static void check_raised(struct fa_cases *cases, int dim)
{
	const struct fa_attention_params params = {
		.dtype = FA_ATTENTION_BF16,
		.batch = 1,
		.heads = 3,
		.kv_heads = 1,
		.head_dim = dim,
		.head_dim_v = dim,
		.seqlen_q = 130,
		.seqlen_k = 500,
		.scale = (float)(1 / sqrt(dim)),
		.causal = true,
		.window_left = -1,
		.window_right = -1,
		.pattern = { 16, 1, 3, 1, 0 },
	};
	const struct fa_request_layout layout = { 0 };
	struct fa_request request;
	float nats[500];

	for (int i = 0; i < 500; i++)
		nats[i] = i < 200 ? 0 : 100.f * (float)(i / 16 * 3 % 5);
	fa_request_make(cases->gpu, &request, &params, NULL, NULL, layout, false, false,
	                &cases->random);
	fa_request_raise(cases->gpu, &request, nats);
	fa_cases_check(cases, &request);
	fa_request_free(cases->gpu, &request);
}

void fa_case_masks(struct fa_cases *cases)
{
	check_raised(cases, 64);
	check_raised(cases, 128);
	for (int n = 0; n < cases->count / 2; n++)
		check_one(cases, n);
}
