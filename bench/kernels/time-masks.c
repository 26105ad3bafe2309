/*
 * Times the dense kernels with masks of blocks and of bits, beside the same request without a mask.
 *   time-masks [--dtype f16|bf16] [--dim N] [--tokens N] [--samples N] [--json]
 * A row's ratio to "dense" is the efficiency: the time without a mask, by that with it, times the
 * share of the pairs (row, key) that the mask shows. Lists are random, and of each head. Exits with
 * 77 without a GPU.
 */
#include "tests/gpu/request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 100

struct options {
	int dtype, dim, tokens, samples; /* 0: all */
	bool json;
};

/* A request, and what each of its rows is called. */
struct cell {
	struct fa_gpu *gpu;
	const struct options *options;
	struct fa_request request;
	char name[96];
	double dense_ns;
	bool *first; /* of the printed rows */
};

struct block_mask {
	int32_t rows, keys;
	double density;
};

static const struct block_mask block_masks[] = {
	{ 128, 128, 1 },   { 128, 128, 0.25 }, { 128, 128, 0.0625 },
	{ 128, 64, 0.25 }, { 64, 64, 0.25 },
};

static const struct fa_attention_pattern patterns[] = {
	{ .block_tokens = 64, .local_blocks = 16, .vert_stride = 8 },
	{ .block_tokens = 16, .local_blocks = 64, .vert_stride = 8, .head_step = 1 },
};

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median_ns(const struct cell *cell, const struct fa_attention_params *params)
{
	double times[SAMPLES_MAX];

	for (int i = -1; i < cell->options->samples; i++) { /* the first warms up */
		fa_gpu_flush(cell->gpu, NULL);
		fa_gpu_spin(cell->gpu, 100000, NULL);
		fa_gpu_time_start(cell->gpu, NULL);
		if (fa_gpu_attention(cell->gpu, params, NULL) < 0)
			exit(1);
		if (i >= 0)
			times[i] = fa_gpu_time_stop_ns(cell->gpu, NULL);
		else
			fa_gpu_time_stop_ns(cell->gpu, NULL);
	}
	qsort(times, (size_t)cell->options->samples, sizeof(times[0]), compare);
	return times[cell->options->samples / 2];
}

/* @seen: the share of the pairs that the mask shows. */
static void row(const struct cell *cell, const char *mask, const struct fa_attention_params *params,
                double seen)
{
	const double ns = median_ns(cell, params), efficiency = cell->dense_ns * seen / ns;

	if (cell->options->json)
		printf("%s\n{\"name\": \"masks/%s/%s\", \"value\": %.1f, \"unit\": \"us\", "
		       "\"peer\": \"dense\", \"ratio\": %.3f}",
		       *cell->first ? "" : ",", cell->name, mask, ns / 1e3, efficiency);
	else
		printf("masks/%s/%-24s %9.1f us, %.3f of the pairs, %.3f of dense\n", cell->name,
		       mask, ns / 1e3, seen, efficiency);
	fflush(stdout);
	*cell->first = false;
}

/* Writes the lists of all heads: in each row of blocks the last that causal rows see, and random
 * others. Returns the pairs that they show, of all heads. */
static double fill_lists(const struct fa_attention_params *p, const struct block_mask *mask,
                         int32_t *offsets, int32_t *columns, int64_t n_rows, int64_t n_keys)
{
	double blocks = 0;

	for (int32_t h = 0; h < p->heads; h++) {
		int32_t *const list = columns + h * n_rows * n_keys, n = 0;

		for (int64_t i = 0; i < n_rows; i++) {
			const int64_t end = p->causal ? ((i + 1) * mask->rows + mask->keys - 1) /
			                                        mask->keys
			                              : n_keys;
			int64_t wanted = (int64_t)llround((double)end * mask->density) - 1;

			offsets[h * (n_rows + 1) + i] = n;
			for (int64_t j = 0; j < end - 1; j++) {
				if (rand() % (end - 1 - j) >= wanted)
					continue;
				wanted--;
				list[n++] = (int32_t)j;
				blocks++;
			}
			list[n++] = (int32_t)(end - 1);
			blocks += p->causal ? 0.5 : 1;
		}
		offsets[h * (n_rows + 1) + n_rows] = n;
	}
	return blocks * mask->rows * mask->keys;
}

static void row_of_blocks(const struct cell *cell, const struct block_mask *mask, double pairs)
{
	struct fa_attention_params p = cell->request.params;
	const int64_t n_rows = p.seqlen_q / mask->rows, n_keys = p.seqlen_k / mask->keys;
	const size_t offsets_bytes = (size_t)(p.heads * (n_rows + 1)) * sizeof(int32_t);
	const size_t columns_bytes = (size_t)(p.heads * n_rows * n_keys) * sizeof(int32_t);
	int32_t *const offsets = calloc(1, offsets_bytes), *const columns = calloc(1,
	                                                                           columns_bytes);
	const uint64_t device[] = { fa_gpu_alloc(cell->gpu, offsets_bytes),
		                    fa_gpu_alloc(cell->gpu, columns_bytes) };
	char name[64];
	double seen;

	if (!offsets || !columns)
		exit(1);
	seen = fill_lists(&p, mask, offsets, columns, n_rows, n_keys);
	fa_gpu_upload(cell->gpu, device[0], offsets, offsets_bytes);
	fa_gpu_upload(cell->gpu, device[1], columns, columns_bytes);
	p.blocks = (struct fa_attention_blocks){
		.rows = mask->rows,
		.keys = mask->keys,
		.offsets = (const int32_t *)(uintptr_t)device[0],
		.columns = (const int32_t *)(uintptr_t)device[1],
		.n_columns = n_rows * n_keys,
		.offsets_stride_head = n_rows + 1,
		.columns_stride_head = n_rows * n_keys,
	};
	snprintf(name, sizeof(name), "blocks-%dx%d-%g", mask->rows, mask->keys, mask->density);
	row(cell, name, &p, seen / pairs);
	fa_gpu_free(cell->gpu, device[0]);
	fa_gpu_free(cell->gpu, device[1]);
	free(offsets);
	free(columns);
}

/* Counts a pattern's pairs by blocks, of all heads; causal rows see half of the last. */
static double pattern_pairs(const struct fa_attention_params *p)
{
	const struct fa_attention_pattern *pattern = &p->pattern;
	const int64_t blocks = p->seqlen_k / pattern->block_tokens;
	double seen = 0;

	for (int32_t h = 0; h < p->heads; h++)
		for (int64_t i = 0; i < blocks; i++)
			for (int64_t j = 0; j < (p->causal ? i + 1 : blocks); j++)
				if (i - j < pattern->local_blocks ||
				    (j + h * pattern->head_step + 1) % pattern->vert_stride == 0)
					seen += p->causal && j == i ? 0.5 : 1;
	return seen * pattern->block_tokens * pattern->block_tokens;
}

/* Random bits, half of which are set: all tiles are computed. */
static void row_of_bits(const struct cell *cell)
{
	struct fa_attention_params p = cell->request.params;
	const int64_t words = p.seqlen_k / 32;
	const size_t bytes = (size_t)(p.seqlen_q * words) * sizeof(uint32_t);
	uint32_t *const bits = malloc(bytes);
	const uint64_t device = fa_gpu_alloc(cell->gpu, bytes);

	if (!bits)
		exit(1);
	for (size_t i = 0; i < bytes / sizeof(*bits); i++)
		bits[i] = (uint32_t)rand() ^ (uint32_t)rand() << 15;
	fa_gpu_upload(cell->gpu, device, bits, bytes);
	p.bits = (struct fa_attention_bits){
		.words = (const uint32_t *)(uintptr_t)device,
		.row_words = words,
		.stride_row = words,
	};
	row(cell, "bits", &p, 1);
	fa_gpu_free(cell->gpu, device);
	free(bits);
}

static void rows_of(struct cell *cell, int dtype, int dim, int tokens, bool causal)
{
	const int32_t heads = tokens >= 16384 ? 16 : 32;
	const struct fa_attention_params shape = {
		.dtype = (enum fa_attention_dtype)dtype,
		.batch = 1,
		.heads = heads,
		.kv_heads = heads / 4,
		.head_dim = dim,
		.head_dim_v = dim,
		.seqlen_q = tokens,
		.seqlen_k = tokens,
		.scale = (float)(1 / sqrt(dim)),
		.causal = causal,
		.window_left = -1,
		.window_right = -1,
	};
	const double pairs = (causal ? 0.5 * tokens * (tokens + 1.0) : (double)tokens * tokens) *
	                     heads;
	uint64_t random = 1;

	snprintf(cell->name, sizeof(cell->name), "%s/d%d-h%d.%d-s%d/%s",
	         dtype == FA_ATTENTION_F16 ? "f16" : "bf16", dim, heads, heads / 4, tokens,
	         causal ? "causal" : "full");
	fa_request_make(cell->gpu, &cell->request, &shape, NULL, NULL,
	                (struct fa_request_layout){ 0 }, false, false, &random);
	cell->dense_ns = median_ns(cell, &cell->request.params);
	for (size_t i = 0; i < sizeof(block_masks) / sizeof(block_masks[0]); i++)
		row_of_blocks(cell, &block_masks[i], pairs);
	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
		struct fa_attention_params p = cell->request.params;
		char name[64];

		p.pattern = patterns[i];
		snprintf(name, sizeof(name), "pattern-%d-%d-%d", p.pattern.block_tokens,
		         p.pattern.local_blocks, p.pattern.vert_stride);
		row(cell, name, &p, pattern_pairs(&p) / pairs);
	}
	row_of_bits(cell);
	fa_request_free(cell->gpu, &cell->request);
}

static int parse(int argc, char **argv, struct options *options)
{
	for (int i = 1; i < argc; i++) {
		const char *const name = argv[i];
		const char *const value = i + 1 < argc ? argv[i + 1] : "";

		if (!strcmp(name, "--json")) {
			options->json = true;
			continue;
		}
		i++;
		if (!strcmp(name, "--dtype") && (!strcmp(value, "f16") || !strcmp(value, "bf16")))
			options->dtype = !strcmp(value, "f16") ? FA_ATTENTION_F16
			                                       : FA_ATTENTION_BF16;
		else if (!strcmp(name, "--dim") && atoi(value) > 0)
			options->dim = atoi(value);
		else if (!strcmp(name, "--tokens") && atoi(value) > 0 && atoi(value) % 128 == 0)
			options->tokens = atoi(value);
		else if (!strcmp(name, "--samples") && atoi(value) > 0 &&
		         atoi(value) <= SAMPLES_MAX)
			options->samples = atoi(value);
		else {
			fprintf(stderr, "time-masks: %s %s is no option\n", name, value);
			return 2;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct options options = { .samples = 12 };
	static const int all_dims[] = { 64, 128 }, all_tokens[] = { 4096, 16384 };
	struct cell cell = { .options = &options };
	bool first = true;
	int r = parse(argc, argv, &options);

	if (r != 0)
		return r;
	cell.gpu = fa_gpu_open();
	if (!cell.gpu)
		return 77;
	cell.first = &first;
	if (options.json)
		printf("{\"device\": \"%s\", \"results\": [", fa_gpu_name(cell.gpu));
	for (int dtype = FA_ATTENTION_F16; dtype <= FA_ATTENTION_BF16; dtype++)
		for (int d = 0; d < (options.dim ? 1 : 2); d++)
			for (int n = 0; n < (options.tokens ? 1 : 2); n++)
				for (int causal = 0; causal < 2; causal++)
					if (!options.dtype || options.dtype == dtype)
						rows_of(&cell, dtype,
						        options.dim ? options.dim : all_dims[d],
						        options.tokens ? options.tokens
						                       : all_tokens[n],
						        causal);
	if (options.json)
		printf("\n]}\n");
	fa_gpu_close(cell.gpu);
	return 0;
}
