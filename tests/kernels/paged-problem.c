/*
 * See paged-problem.h. The reference follows the formulas of the contract, row by row in
 * fp64, and shares no code with the kernels.
 */
#include "tests/kernels/paged-problem.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xff /* a NaN in every type */
#define LAYERS 3
#define LAYER 1 /* the layer in which attention is tested */
#define SPARE 3
#define RAISED_Q 8 /* raised_column() of each row of Q, if logits are raised */

static size_t element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

/* Returns the bytes of an element in the pool. */
static size_t stored_bytes(const struct paged_spec *spec)
{
	return spec->store != FA_PAGED_PLAIN ? 1 : element_bytes(spec->dtype);
}

static float scale_of(const struct paged_spec *spec)
{
	return spec->scale ? spec->scale : 1 / sqrtf((float)spec->head_dim);
}

static bool has_token_scales(const struct paged_spec *spec)
{
	return spec->store != FA_PAGED_PLAIN && !spec->head_scales;
}

static void *poisoned(size_t bytes)
{
	void *memory = malloc(bytes + 1);

	if (!memory)
		paged_fail("no memory");
	memset(memory, POISON, bytes + 1);
	return memory;
}

static uint32_t pages_of(const struct paged_problem *problem, int32_t b)
{
	uint32_t page = (uint32_t)problem->spec.page_tokens;

	return (problem->spec.lengths[b] + page - 1) / page;
}

static char *row_at(const struct paged_problem *problem, int32_t layer, int32_t b, int64_t token,
                    int32_t head, int64_t offset, int64_t row_dim)
{
	const struct fa_paged_cache *cache = &problem->cache;
	uint32_t slot = problem->table[(uint32_t)(problem->table_start[b] +
	                                          (uint32_t)(token / cache->page_tokens))];
	int64_t row = (int64_t)head * cache->page_tokens + token % cache->page_tokens;

	return (char *)cache->pool + (int64_t)slot * 256 + layer * cache->layer_stride + offset +
	       row * row_dim * (int64_t)stored_bytes(&problem->spec);
}

char *paged_k(const struct paged_problem *problem, int32_t layer, int32_t b, int64_t token,
              int32_t head)
{
	return row_at(problem, layer, b, token, head, 0, problem->cache.head_dim);
}

char *paged_v(const struct paged_problem *problem, int32_t layer, int32_t b, int64_t token,
              int32_t head)
{
	return row_at(problem, layer, b, token, head, problem->cache.v_offset,
	              problem->cache.v_offset ? problem->cache.head_dim_v
	                                      : problem->cache.head_dim);
}

float *paged_scale(const struct paged_problem *problem, int32_t layer, int32_t b, int64_t token,
                   int32_t head, bool v)
{
	const struct fa_paged_cache *cache = &problem->cache;
	int64_t rows = (int64_t)cache->kv_heads * cache->page_tokens;
	char *page;

	if (!has_token_scales(&problem->spec))
		return (v && cache->v_offset ? problem->v_scales : problem->k_scales) +
		       layer * cache->kv_heads + head;
	/* Scales follow all of the page's rows, so start from the row of head 0, token 0. */
	page = row_at(problem, layer, b, token / cache->page_tokens * cache->page_tokens, 0,
	              v ? cache->v_offset : 0, 0);
	page += rows * (v && cache->v_offset ? cache->head_dim_v : cache->head_dim);
	return (float *)page + head * cache->page_tokens + token % cache->page_tokens;
}

/* ---- making a problem */

/* True if page @i of sequence @b is shared with the sequence of its prefix. */
static bool is_shared(const struct paged_problem *problem, int32_t b, uint32_t i)
{
	const struct paged_spec *spec = &problem->spec;
	const int32_t other = spec->prefix_of_1[b] - 1;

	return other >= 0 && i < spec->prefix_pages[b] && i < pages_of(problem, other) &&
	       i >= spec->first[other] / (uint32_t)spec->page_tokens;
}

static void make_pool(struct paged_problem *problem)
{
	const struct paged_spec *spec = &problem->spec;
	struct fa_paged_cache *cache = &problem->cache;
	int64_t rows = (int64_t)spec->kv_heads * spec->page_tokens;
	int64_t bytes = (int64_t)stored_bytes(spec), layer_bytes, page_bytes;
	int64_t scales = has_token_scales(spec) ? rows * 4 : 0;
	uint32_t pages = SPARE, entries = 0, *slots;

	cache->v_offset = spec->v_in_k ? 0 : rows * spec->head_dim * bytes + scales + 16;
	layer_bytes = spec->v_in_k ? rows * spec->head_dim * bytes + scales
	                           : cache->v_offset + rows * spec->head_dim_v * bytes + scales;
	layer_bytes = (layer_bytes + 15) / 16 * 16;
	for (int32_t b = 0; b < spec->batch; b++) {
		pages += pages_of(problem, b);
		entries += pages_of(problem, b) + 2;
	}
	if (spec->layer_major) {
		page_bytes = (layer_bytes + 255) / 256 * 256;
		cache->layer_stride = page_bytes * pages;
	} else {
		page_bytes = (layer_bytes * LAYERS + 255) / 256 * 256;
		cache->layer_stride = layer_bytes;
	}
	problem->pool_bytes = (size_t)page_bytes * pages * (spec->layer_major ? LAYERS : 1);
	cache->pool = aligned_alloc(256, problem->pool_bytes);
	if (!cache->pool)
		paged_fail("no memory");
	memset(cache->pool, POISON, problem->pool_bytes);

	slots = malloc(pages * sizeof(*slots));
	for (uint32_t i = 0; i < pages; i++)
		slots[i] = (uint32_t)(i * (page_bytes / 256));
	for (uint32_t i = pages - 1; i > 0; i--) {
		uint32_t j = (uint32_t)problem_random(i + 1), slot = slots[i];

		slots[i] = slots[j];
		slots[j] = slot;
	}
	problem->table = malloc((entries + 1) * sizeof(*problem->table));
	problem->spare = malloc(SPARE * sizeof(*problem->spare));

	entries = 0;
	for (int32_t b = 0; b < spec->batch; b++) {
		uint32_t dropped = spec->first[b] / (uint32_t)spec->page_tokens;
		/* Every second sequence has no entries for dropped pages. */
		uint32_t missing = b % 2 ? dropped : 0;

		problem->table_start[b] = entries - missing;
		for (uint32_t i = missing; i < pages_of(problem, b) + 2; i++) {
			problem->table[entries] = PAGED_WILD;
			if (i < pages_of(problem, b) && i >= dropped)
				problem->table[entries] =
					is_shared(problem, b, i)
						? problem->table[(
							  uint32_t)(problem->table_start
				                                            [spec->prefix_of_1[b] -
				                                             1] +
				                                    i)]
						: slots[--pages];
			entries++;
		}
	}
	problem->step.table_entries = entries;
	problem->n_spare = SPARE;
	for (uint32_t i = 0; i < SPARE; i++)
		problem->spare[i] = slots[--pages];
	free(slots);
}

static void fill_row(enum fa_attention_dtype dtype, char *row, int32_t dim)
{
	for (int32_t c = 0; c < dim; c++)
		reference_set(dtype, row, c, problem_normal());
}

static double random_v(const struct paged_spec *spec)
{
	const double value = (spec->v_size > 0 ? (double)spec->v_size : 1) * problem_normal();

	return spec->v_positive ? fabs(value) : value;
}

/* Stores random codes as a token's K or, with @v, V. Some rows are much smaller than others. With
 * @least the scale is just above the smallest normal number. */
static void fill_codes(const struct paged_problem *problem, char *row, float *scale, int32_t dim,
                       bool v, bool least)
{
	float values[FA_ATTENTION_ROW_MAX];
	float size = has_token_scales(&problem->spec) ? (float)exp2(-(double)problem_random(4)) : 1;

	if (least && has_token_scales(&problem->spec))
		size = problem->spec.store == FA_PAGED_E4M3 ? 0x1p-118f : 0x1p-120f;
	for (int32_t c = 0; c < dim; c++)
		values[c] = size * (float)(v ? random_v(&problem->spec) : problem_normal());
	*scale = reference_quantise(problem->spec.store, values, dim,
	                            has_token_scales(&problem->spec) ? 0 : *scale, (uint8_t *)row);
}

static void make_scales(struct paged_problem *problem)
{
	const size_t n = LAYERS * (size_t)problem->spec.kv_heads;

	problem->k_scales = malloc(n * sizeof(float));
	problem->v_scales = malloc(n * sizeof(float));
	for (size_t i = 0; i < n; i++) {
		problem->k_scales[i] = (float)(0.005 + 0.03 * (double)problem_random(100) / 100);
		problem->v_scales[i] = (float)(0.005 + 0.03 * (double)problem_random(100) / 100);
		if (problem->spec.v_size > 0)
			problem->v_scales[i] *= problem->spec.v_size;
	}
	if (problem->spec.store != FA_PAGED_PLAIN && problem->spec.head_scales) {
		problem->cache.k_scales = problem->k_scales;
		problem->cache.v_scales = problem->spec.v_in_k ? NULL : problem->v_scales;
	}
}

/* Not of V, where it is a part of K. */
static int32_t raised_column(const struct paged_spec *spec)
{
	return spec->v_in_k ? spec->head_dim - 1 : 0;
}

static void fill_token(struct paged_problem *problem, int32_t layer, int32_t b, int64_t j,
                       int32_t h)
{
	const struct paged_spec *spec = &problem->spec;

	if (spec->store != FA_PAGED_PLAIN) {
		/* Some sequences begin with tiny V. */
		fill_codes(problem, paged_k(problem, layer, b, j, h),
		           paged_scale(problem, layer, b, j, h, false), spec->head_dim, false,
		           false);
		if (!spec->v_in_k)
			fill_codes(problem, paged_v(problem, layer, b, j, h),
			           paged_scale(problem, layer, b, j, h, true), spec->head_dim_v,
			           true, b % 2 == 1 && h % 2 == 0 && j < spec->first[b] + 20);
		return;
	}
	fill_row(spec->dtype, paged_k(problem, layer, b, j, h), spec->head_dim);
	if (spec->raised)
		reference_set(spec->dtype, paged_k(problem, layer, b, j, h), raised_column(spec),
		              problem_one_in(100) ? 50.0 * problem_pick(1, 8) / RAISED_Q /
		                                            (double)scale_of(spec)
		                                  : 0);
	for (int32_t c = 0; c < spec->head_dim_v && !spec->v_in_k; c++)
		reference_set(spec->dtype, paged_v(problem, layer, b, j, h), c, random_v(spec));
}

static void fill_pool(struct paged_problem *problem)
{
	const struct paged_spec *spec = &problem->spec;

	for (int32_t b = 0; b < spec->batch; b++) {
		for (int64_t j = spec->first[b]; j < spec->lengths[b]; j++) {
			for (int32_t h = 0; h < spec->kv_heads; h++) {
				for (int32_t layer = 0; layer < LAYERS; layer++)
					fill_token(problem, layer, b, j, h);
			}
		}
	}
}

/* Makes a token's K or V infinite or NaN: one element, or the scale. */
static void break_token(struct paged_problem *problem, int32_t b, int64_t token, int32_t h, bool v)
{
	static const double values[] = { NAN, INFINITY, -INFINITY };
	const struct paged_spec *spec = &problem->spec;
	char *row = v ? paged_v(problem, LAYER, b, token, h) : paged_k(problem, LAYER, b, token, h);
	int64_t at = (int64_t)problem_random((uint64_t)(v ? spec->head_dim_v : spec->head_dim));
	double value = values[problem_random(3)];

	if (spec->store == FA_PAGED_PLAIN)
		reference_set(spec->dtype, row, at, value);
	else if (has_token_scales(spec) && (spec->store == FA_PAGED_INT8 || problem_random(2)))
		*paged_scale(problem, LAYER, b, token, h, v) = NAN;
	else if (spec->store == FA_PAGED_E4M3)
		row[at] = (char)(problem_random(2) ? 0x7f : 0xff);
}

static void break_pool(struct paged_problem *problem)
{
	const struct paged_spec *spec = &problem->spec;

	for (int32_t i = 0; i < spec->broken * 3 / 2; i++) {
		const int32_t b = (int32_t)problem_random((uint64_t)spec->batch);
		const int32_t h = (int32_t)problem_random((uint64_t)spec->kv_heads);
		const int64_t first = spec->first[b], n = spec->lengths[b] - first;
		/* Choose among all tokens, the new tokens, or the tokens that some row's window
		 * may reach. */
		const uint64_t within = problem_random(4) == 0 ? (uint64_t)n
		                        : problem_random(2)
		                                ? spec->n_new[b]
		                                : (uint64_t)(spec->n_new[b] + spec->left_1);
		int64_t token;

		if (n <= 0)
			continue;
		token = spec->lengths[b] - 1 - (int64_t)problem_random(within + 1);
		if (token < first)
			token = first;
		break_token(problem, b, token, h, i < spec->broken);
	}
}

static int64_t make_tensor(const struct paged_problem *problem, int32_t dim,
                           struct fa_attention_tensor *tensor)
{
	static const int64_t gaps[] = { 0, 8, 3 };
	const int64_t gap = gaps[problem->spec.gaps];

	tensor->stride_head = dim + gap;
	tensor->stride_token = problem->spec.heads * tensor->stride_head + gap;
	return problem->cu_new[problem->spec.batch] * tensor->stride_token;
}

/* Makes trees: each token follows an earlier one, or none. */
static void make_trees(struct paged_problem *problem)
{
	const struct paged_spec *spec = &problem->spec;
	uint32_t words = 0;

	for (int32_t b = 0; b < spec->batch; b++) {
		problem->tree_start[b] = FA_PAGED_NO_TREE;
		if (b % 2 == 0 && spec->n_new[b] <= spec->lengths[b]) {
			problem->tree_start[b] = words;
			words += spec->n_new[b] * ((spec->n_new[b] + 31) / 32);
		}
	}
	problem->tree = calloc(words + 1, sizeof(uint32_t));
	for (int32_t b = 0; b < spec->batch; b++) {
		uint32_t n_words = (spec->n_new[b] + 31) / 32;
		uint32_t *rows = problem->tree + problem->tree_start[b];

		if (problem->tree_start[b] == FA_PAGED_NO_TREE)
			continue;
		for (uint32_t i = 0; i < spec->n_new[b]; i++) {
			uint32_t parent = (uint32_t)problem_random(i + 1);

			if (parent < i)
				memcpy(rows + i * n_words, rows + parent * n_words, n_words * 4);
			rows[i * n_words + i / 32] |= 1u << i % 32;
		}
	}
	problem->positions = malloc((problem->cu_new[spec->batch] + 1) * sizeof(uint32_t));
	fa_paged_tree_positions(&problem->step, problem->tree, problem->tree_start,
	                        problem->positions);
	problem->request.attention.tree = problem->tree;
	problem->request.attention.tree_start = problem->tree_start;
	problem->request.attention.positions = problem->positions;
}

static void make_expectation(struct paged_problem *problem);

void paged_init(struct paged_problem *problem, const struct paged_spec *spec)
{
	struct fa_paged_attention *p = &problem->request.attention;
	size_t bytes = element_bytes(spec->dtype);
	struct fa_attention_tensor lse = { 0 };
	int64_t q, out;
	char text[256] = "";

	memset(problem, 0, sizeof(*problem));
	problem->spec = *spec;
	problem->cache = (struct fa_paged_cache){
		.dtype = spec->dtype,
		.layers = LAYERS,
		.kv_heads = spec->kv_heads,
		.head_dim = spec->head_dim,
		.head_dim_v = spec->head_dim_v,
		.page_tokens = spec->page_tokens,
		.store = spec->store,
	};
	for (int32_t b = 0; b < spec->batch; b++) {
		problem->cu_new[b + 1] = problem->cu_new[b] + spec->n_new[b];
		problem->before[b] = spec->n_new[b] <= spec->lengths[b]
		                             ? spec->lengths[b] - spec->n_new[b]
		                             : spec->lengths[b];
	}
	make_pool(problem);
	make_scales(problem);
	problem->step.batch = spec->batch;
	problem->step.cu_new = problem->cu_new;
	problem->step.lengths = problem->spec.lengths;
	problem->step.lengths_before = problem->before;
	problem->step.first = problem->spec.first;
	problem->step.table = problem->table;
	problem->step.host_table = problem->table;
	problem->step.table_start = problem->table_start;
	fill_pool(problem);
	break_pool(problem);

	problem->request.op = FA_PAGED_ATTEND;
	*p = (struct fa_paged_attention){
		.cache = &problem->cache,
		.step = &problem->step,
		.layer = LAYER,
		.heads = spec->heads,
		.scale = scale_of(spec),
		.softcap = spec->softcap,
		.causal = spec->causal,
		.window_left = spec->left_1 - 1,
		.window_right = spec->right_1 - 1,
		.deterministic = spec->deterministic,
		.chunk_tokens = spec->chunk,
		.pattern = spec->pattern,
		.prefix_lengths = spec->prefixed ? problem->spec.prefix : NULL,
	};
	for (int32_t h = 0; h < spec->heads; h++) {
		problem->slopes[h] = (float)exp2(-8.0 * (h + 1) / spec->heads);
		problem->sinks[h] = (float)problem_normal() * 2;
	}
	p->alibi_slopes = spec->alibi ? problem->slopes : NULL;
	p->sinks = spec->sinks ? problem->sinks : NULL;
	if (spec->tree)
		make_trees(problem);

	q = make_tensor(problem, spec->head_dim, &p->q);
	out = make_tensor(problem, spec->head_dim_v, &p->out);
	problem->lse_bytes = (size_t)make_tensor(problem, 1, &lse) * sizeof(float);
	p->lse_stride_token = lse.stride_token;
	p->lse_stride_head = lse.stride_head;
	problem->q_bytes = (size_t)q * bytes;
	problem->out_bytes = (size_t)out * bytes;
	p->q.data = problem->q = poisoned(problem->q_bytes);
	p->out.data = problem->out = poisoned(problem->out_bytes);
	problem->lse = poisoned(problem->lse_bytes);
	p->lse = spec->no_lse ? NULL : problem->lse;
	for (int64_t i = 0; i < problem->cu_new[spec->batch]; i++) {
		for (int32_t h = 0; h < spec->heads; h++) {
			char *const row = (char *)problem->q +
			                  (size_t)(i * p->q.stride_token + h * p->q.stride_head) *
			                          bytes;

			fill_row(spec->dtype, row, spec->head_dim);
			if (spec->raised)
				reference_set(spec->dtype, row, raised_column(spec), RAISED_Q);
		}
	}
	if (fa_paged_check(&problem->request, text, sizeof(text)) != 0)
		paged_fail("%s: refused: %s", paged_describe(problem), text);
	make_expectation(problem);
}

void paged_deinit(struct paged_problem *problem)
{
	free(problem->cache.pool);
	free(problem->table);
	free(problem->tree);
	free(problem->positions);
	free(problem->spare);
	free(problem->k_scales);
	free(problem->v_scales);
	free(problem->q);
	free(problem->out);
	free(problem->lse);
	free(problem->exact);
	free(problem->naive);
	free(problem->exact_lse);
}

const char *paged_describe(const struct paged_problem *problem)
{
	static char text[1024];
	const struct paged_spec *s = &problem->spec;
	int n;

	n = snprintf(
		text, sizeof(text),
		"dtype %d store %d head scales %d batch %d heads %d/%d dims %d/%d page %d causal "
		"%d window %lld/%lld chunk %lld "
		"softcap %g scale %g alibi %d sinks %d tree %d broken %d v_in_k %d layer_major %d "
		"gaps %d deterministic %d raised %d V's size %g%s new/length/first",
		(int)s->dtype, (int)s->store, s->head_scales, s->batch, s->heads, s->kv_heads,
		s->head_dim, s->head_dim_v, s->page_tokens, s->causal, (long long)s->left_1 - 1,
		(long long)s->right_1 - 1, (long long)s->chunk, (double)s->softcap,
		(double)s->scale, s->alibi, s->sinks, s->tree, s->broken, s->v_in_k, s->layer_major,
		s->gaps, s->deterministic, s->raised, (double)s->v_size,
		s->v_positive ? ", positive" : "");
	for (int32_t b = 0; b < s->batch && n > 0 && (size_t)n < sizeof(text); b++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %u/%u/%u", s->n_new[b],
		              s->lengths[b], s->first[b]);
	for (int32_t b = 0; s->prefixed && b < s->batch && n > 0 && (size_t)n < sizeof(text); b++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " prefix %u", s->prefix[b]);
	return text;
}

/* ---- the reference */

static bool has_tree(const struct paged_problem *problem, int32_t b)
{
	return problem->tree && problem->tree_start[b] != FA_PAGED_NO_TREE;
}

static int64_t position_of_row(const struct paged_problem *problem, int32_t b, int64_t i)
{
	if (has_tree(problem, b))
		return problem->positions[problem->cu_new[b] + i];
	return i + (int64_t)problem->spec.lengths[b] - problem->spec.n_new[b];
}

static int64_t position_of_key(const struct paged_problem *problem, int32_t b, int64_t j)
{
	int64_t old = (int64_t)problem->spec.lengths[b] - problem->spec.n_new[b];

	return has_tree(problem, b) && j >= old ? position_of_row(problem, b, j - old) : j;
}

static bool sees(const struct paged_problem *problem, int32_t b, int64_t i, int32_t h, int64_t j)
{
	const struct fa_paged_attention *p = &problem->request.attention;
	int64_t old = (int64_t)problem->spec.lengths[b] - problem->spec.n_new[b];
	int64_t row = position_of_row(problem, b, i), key = position_of_key(problem, b, j);

	if (j < problem->spec.first[b])
		return false;
	if (has_tree(problem, b)) {
		int64_t n_words = (problem->spec.n_new[b] + 31) / 32;
		const uint32_t *mask = problem->tree + problem->tree_start[b] + i * n_words;

		if (j >= old && !(mask[(j - old) / 32] >> (j - old) % 32 & 1))
			return false;
	} else if (p->causal && key > row && !(p->prefix_lengths && j < p->prefix_lengths[b])) {
		return false;
	}
	if (p->chunk_tokens > 0 && floor((double)key / (double)p->chunk_tokens) !=
	                                   floor((double)row / (double)p->chunk_tokens))
		return false;
	if (p->window_left >= 0 && row - key > p->window_left)
		return false;
	if (p->pattern.block_tokens &&
	    !reference_pattern_shows(&p->pattern, h, p->heads / problem->cache.kv_heads, row, key))
		return false;
	return p->window_right < 0 || key - row <= p->window_right;
}

/* A sequence's K and V of one KV head as numbers, [token][dim]. */
struct keys {
	double *k, *v;
};

static double *numbers_of(enum fa_attention_dtype dtype, double *to, const void *from, int32_t n)
{
	for (int32_t c = 0; c < n; c++)
		to[c] = reference_get(dtype, from, c);
	return to + n;
}

static double *codes_of(enum fa_paged_store store, double *to, const char *from, float scale,
                        int32_t n)
{
	for (int32_t c = 0; c < n; c++)
		to[c] = reference_code_value(store, (uint8_t)from[c]) * (double)scale;
	return to + n;
}

static void keys_of(const struct paged_problem *problem, int32_t b, int32_t kv_head,
                    struct keys *ret_keys)
{
	const struct paged_spec *spec = &problem->spec;
	const size_t tokens = spec->lengths[b] - spec->first[b] + 1;
	double *k = malloc(tokens * (size_t)spec->head_dim * sizeof(*k));
	double *v = malloc(tokens * (size_t)spec->head_dim_v * sizeof(*v));

	*ret_keys = (struct keys){ k, v };
	for (int64_t j = spec->first[b]; j < spec->lengths[b]; j++) {
		if (spec->store != FA_PAGED_PLAIN) {
			k = codes_of(spec->store, k, paged_k(problem, LAYER, b, j, kv_head),
			             *paged_scale(problem, LAYER, b, j, kv_head, false),
			             spec->head_dim);
			v = codes_of(spec->store, v, paged_v(problem, LAYER, b, j, kv_head),
			             *paged_scale(problem, LAYER, b, j, kv_head, true),
			             spec->head_dim_v);
			continue;
		}
		k = numbers_of(spec->dtype, k, paged_k(problem, LAYER, b, j, kv_head),
		               spec->head_dim);
		v = numbers_of(spec->dtype, v, paged_v(problem, LAYER, b, j, kv_head),
		               spec->head_dim_v);
	}
}

/* Computes a row of the result from its scores; hidden keys have -inf. */
static void finish_row(const struct paged_problem *problem, int32_t b, int32_t h,
                       const struct keys *keys, const bool *seen, const double *scores,
                       bool rounded, double *ret_out, double *ret_lse)
{
	const struct fa_paged_attention *p = &problem->request.attention;
	const struct paged_spec *spec = &problem->spec;
	const int64_t n = (int64_t)spec->lengths[b] - spec->first[b];
	double highest = p->sinks ? p->sinks[h] : -INFINITY, sum = 0;
	bool nothing = !p->sinks;

	for (int64_t j = 0; j < n; j++) {
		highest = fmax(highest, scores[j]);
		nothing = nothing && scores[j] == -INFINITY;
	}
	for (int64_t j = 0; j < n && !nothing; j++)
		sum += exp(scores[j] - highest);
	if (p->sinks)
		sum += exp(p->sinks[h] - highest);
	*ret_lse = nothing ? -INFINITY : highest + log(sum);
	for (int32_t c = 0; c < spec->head_dim_v; c++)
		ret_out[c] = 0;
	for (int64_t j = 0; j < n; j++) {
		const double *v = keys->v + j * spec->head_dim_v;
		double weight = nothing ? 0 : exp(scores[j] - highest) / sum;

		if (!seen[j])
			continue;
		if (rounded)
			weight = reference_round(spec->dtype, weight);
		for (int32_t c = 0; c < spec->head_dim_v; c++)
			ret_out[c] += weight * v[c];
	}
	for (int32_t c = 0; c < spec->head_dim_v && rounded; c++)
		ret_out[c] = reference_round(spec->dtype, ret_out[c]);
}

/* Computes row @row of the expected result. */
static void expect_row(struct paged_problem *problem, int32_t b, int64_t i, int32_t h,
                       const struct keys *keys, int64_t row)
{
	const struct fa_paged_attention *p = &problem->request.attention;
	const struct paged_spec *spec = &problem->spec;
	enum fa_attention_dtype dtype = spec->dtype;
	const int64_t first = spec->first[b], n = (int64_t)spec->lengths[b] - first;
	double *scores = malloc((size_t)(n + 1) * 2 * sizeof(*scores));
	double *rounded_scores = scores + n + 1, unused, q[FA_ATTENTION_HEAD_DIM_MAX];
	bool *seen = malloc((size_t)(n + 1) * sizeof(*seen));

	for (int32_t c = 0; c < spec->head_dim; c++)
		q[c] = reference_get(dtype, problem->q,
		                     (problem->cu_new[b] + i) * p->q.stride_token +
		                             h * p->q.stride_head + c);
	for (int64_t j = 0; j < n; j++) {
		const double *k = keys->k + j * spec->head_dim;
		double s[2] = { 0 };

		scores[j] = rounded_scores[j] = -INFINITY;
		seen[j] = sees(problem, b, i, h, first + j);
		if (!seen[j])
			continue;
		for (int32_t c = 0; c < spec->head_dim; c++)
			s[0] += q[c] * k[c];
		s[0] *= (double)p->scale;
		s[1] = reference_round(dtype, s[0]);
		for (int r = 0; r < 2; r++) {
			if (p->softcap > 0)
				s[r] = p->softcap * tanh(s[r] / p->softcap);
			if (p->alibi_slopes)
				s[r] -= p->alibi_slopes[h] *
				        fabs((double)(position_of_key(problem, b, first + j) -
				                      position_of_row(problem, b, i)));
		}
		scores[j] = s[0];
		rounded_scores[j] = reference_round(dtype, s[1]);
	}
	finish_row(problem, b, h, keys, seen, scores, false,
	           problem->exact + row * spec->head_dim_v, problem->exact_lse + row);
	finish_row(problem, b, h, keys, seen, rounded_scores, true,
	           problem->naive + row * spec->head_dim_v, &unused);
	free(seen);
	free(scores);
}

static void make_expectation(struct paged_problem *problem)
{
	const struct paged_spec *spec = &problem->spec;
	const int32_t group = spec->heads / spec->kv_heads;
	size_t rows = (size_t)problem->cu_new[spec->batch] * (size_t)spec->heads;
	size_t dim = (size_t)spec->head_dim_v;

	problem->exact = calloc(rows * dim + 1, sizeof(double));
	problem->naive = calloc(rows * dim + 1, sizeof(double));
	problem->exact_lse = calloc(rows + 1, sizeof(double));
	for (int32_t b = 0; b < spec->batch; b++) {
		for (int32_t kv_head = 0; kv_head < spec->kv_heads; kv_head++) {
			struct keys keys;

			keys_of(problem, b, kv_head, &keys);
			for (int64_t i = 0; i < spec->n_new[b]; i++) {
				for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++)
					expect_row(problem, b, i, h, &keys,
					           (problem->cu_new[b] + i) * spec->heads + h);
			}
			free(keys.k);
			free(keys.v);
		}
	}
}

/* ---- judging */

static bool all_poison(const void *memory, size_t bytes)
{
	const unsigned char *begin = memory;

	return bytes == 0 || (begin[0] == POISON && memcmp(begin, begin + 1, bytes - 1) == 0);
}

void paged_poison(struct paged_problem *problem)
{
	memset(problem->out, POISON, problem->out_bytes);
	memset(problem->lse, POISON, problem->lse_bytes);
}

void paged_judge(struct paged_problem *problem, const char *by, enum paged_rounding rounding)
{
	const struct fa_paged_attention *p = &problem->request.attention;
	const struct paged_spec *spec = &problem->spec;
	size_t bytes = element_bytes(spec->dtype);
	double highest = 0, naive = 0, kernel = 0, lse_error = 0, allowed, tiny, lse_allowed;
	int64_t row = 0;

	for (int64_t i = 0; i < problem->cu_new[spec->batch]; i++) {
		for (int32_t h = 0; h < spec->heads; h++, row++) {
			int64_t at = i * p->out.stride_token + h * p->out.stride_head;
			double lse = problem->exact_lse[row];

			for (int32_t c = 0; c < spec->head_dim_v; c++) {
				int64_t value = row * spec->head_dim_v + c;
				double exact = problem->exact[value];
				double got = reference_get(spec->dtype, problem->out, at + c);

				if (!isfinite(exact)) {
					kernel = isfinite(got) ? INFINITY : kernel;
					continue;
				}
				highest = fmax(highest, fabs(exact));
				naive = fmax(naive, fabs(problem->naive[value] - exact));
				kernel = isfinite(got) ? fmax(kernel, fabs(got - exact)) : INFINITY;
			}
			memset((char *)problem->out + (size_t)at * bytes, POISON,
			       (size_t)spec->head_dim_v * bytes);
			if (p->lse) {
				float *got =
					&p->lse[i * p->lse_stride_token + h * p->lse_stride_head];

				if (isnan(lse))
					lse_error = isfinite(*got) ? INFINITY : lse_error;
				else if (isinf(lse) || !isfinite(*got))
					lse_error = fmax(lse_error, *got == lse ? 0 : INFINITY);
				else
					lse_error = fmax(lse_error,
					                 fabs(*got - lse) / (1 + fabs(lse)));
				memset(got, POISON, sizeof(*got));
			}
		}
	}

	tiny = 8e-6 * fmax(1, highest) * (spec->alibi ? 3 : 1);
	lse_allowed = spec->alibi ? 9e-6 : 3e-6;
	if (rounding >= PAGED_ROUNDS_WEIGHTS_FAST) {
		tiny *= 3;
		lse_allowed = 2e-5;
		/* ALiBi can take all 400 nats (580 in base 2) from a raised logit again, and leaves
		 * the rounding of that number in fp32. */
		if (spec->raised && spec->alibi)
			lse_allowed += 580 * 0x1p-24;
	}
	/* An element of K is off by a part of 2^-9 at most, and a score by the sum of hundreds of such
	 * errors: their standard deviation is about 2^-9.8, and this is seven of them. */
	if (rounding == PAGED_ROUNDS_KEYS)
		lse_allowed += 0x1p-7;
	if (spec->dtype == FA_ATTENTION_F32)
		allowed = tiny;
	else if (rounding != PAGED_ROUNDS_OUTPUT)
		allowed = 2 * naive +
		          highest * (spec->dtype == FA_ATTENTION_F16 ? 0x1p-11 : 0x1p-8) + tiny;
	else
		allowed = highest * (spec->dtype == FA_ATTENTION_F16 ? 0x1p-11 : 0x1p-8) + tiny;
	if (!(kernel <= allowed))
		paged_fail("%s on %s: largest error %g, allowed %g", paged_describe(problem), by,
		           kernel, allowed);
	if (!(lse_error <= lse_allowed))
		paged_fail("%s on %s: largest error of lse %g", paged_describe(problem), by,
		           lse_error);
	if (!all_poison(problem->out, problem->out_bytes) ||
	    !all_poison(problem->lse, problem->lse_bytes))
		paged_fail("%s on %s: wrote outside the rows", paged_describe(problem), by);
}
