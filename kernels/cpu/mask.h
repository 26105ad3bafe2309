/*
 * Which keys the rows of a tile see, as bits: trees, blocks, patterns and bit masks. Windows, causal
 * and chunks are ranges, which score.h has. Lists of blocks are read forwards, once per tile.
 */
#pragma once

#include "kernels/cpu/score.h"

#define MASK_WORDS (SCORE_KEYS / 32)
#define MASK_BLOCK_ROWS_MIN 64
#define MASK_LISTS (FA_CPU_TILE_ROWS_MAX / MASK_BLOCK_ROWS_MIN + 1)

/* The list of one row block. The memory may change at any time: each entry is read once. */
struct mask_list {
	int64_t at, end;           /* entries that were not read */
	int64_t column;            /* the current block, or INT64_MAX: there is none */
	uint32_t seen[MASK_WORDS]; /* of the round */
};

struct mask {
	const struct fa_cpu_job *job;
	int64_t token, end_token; /* of the tile's rows */
	int64_t first_list;       /* the row block of lists[0] */
	int32_t n_lists;
	struct mask_list lists[MASK_LISTS];
};

static inline bool mask_given(const struct fa_cpu_job *job)
{
	return job->tree || job->block_rows || job->pattern.block_tokens || job->bits;
}

/* ---- blocks */

static inline void mask_list_step(const struct fa_cpu_job *job, struct mask_list *list)
{
	const int64_t n_blocks = ceil_div(job->n_k, job->block_keys);

	while (list->at < list->end) {
		int64_t column = __atomic_load_n(&job->columns[list->at++], __ATOMIC_RELAXED);

		if (column > list->column && column < n_blocks) {
			list->column = column;
			return;
		}
	}
	list->column = INT64_MAX;
}

static inline void mask_list_init(const struct fa_cpu_job *job, struct mask_list *list,
                                  int64_t row_block)
{
	const int32_t *offsets = job->offsets + row_block;
	int64_t begin = __atomic_load_n(&offsets[0], __ATOMIC_RELAXED);
	int64_t end = __atomic_load_n(&offsets[1], __ATOMIC_RELAXED);

	list->at = clamp64(begin, 0, job->n_columns);
	list->end = min64(clamp64(end, 0, job->n_columns),
	                  list->at + ceil_div(job->n_k, job->block_keys));
	list->column = -1;
	mask_list_step(job, list);
}

/* The first key from @key on in a block of the list, or INT64_MAX. */
static inline int64_t mask_list_next(const struct fa_cpu_job *job, struct mask_list *list,
                                     int64_t key)
{
	while (list->column != INT64_MAX && (list->column + 1) * job->block_keys <= key)
		mask_list_step(job, list);
	return list->column == INT64_MAX ? INT64_MAX : max64(list->column * job->block_keys, key);
}

/* Blocks are multiples of words. */
static inline void mask_list_round(const struct fa_cpu_job *job, struct mask_list *list,
                                   int64_t key, int32_t n_words)
{
	const int64_t end = key + n_words * 32;

	memset(list->seen, 0, sizeof(list->seen));
	while (mask_list_next(job, list, key) < end) {
		int64_t from = max64(list->column * job->block_keys - key, 0) / 32;
		int64_t to = min64((list->column + 1) * job->block_keys - key, n_words * 32) / 32;

		for (int64_t w = from; w < to; w++)
			list->seen[w] = UINT32_MAX;
		if ((list->column + 1) * job->block_keys > end)
			return;
		mask_list_step(job, list);
	}
}

/* ---- patterns */

static inline bool mask_pattern_sees(const struct fa_cpu_job *job, int64_t row_block,
                                     int64_t key_block)
{
	return row_block - key_block < job->pattern.local_blocks ||
	       (key_block + job->pattern_shift) % job->pattern.vert_stride == 0;
}

static inline int64_t mask_pattern_next(const struct fa_cpu_job *job, int64_t row_block,
                                        int64_t key)
{
	const int64_t tokens = job->pattern.block_tokens, stride = job->pattern.vert_stride;
	int64_t block = key / tokens, local = row_block - job->pattern.local_blocks + 1, remote;

	if (mask_pattern_sees(job, row_block, block))
		return key;
	remote = block + stride - (block + job->pattern_shift) % stride;
	return min64(remote, max64(local, block)) * tokens;
}

/* Patterns have blocks of at least 16 keys. */
static inline uint32_t mask_pattern_word(const struct fa_cpu_job *job, int64_t row_block,
                                         int64_t key)
{
	const int64_t tokens = job->pattern.block_tokens;
	uint32_t word = 0;

	if (mask_pattern_sees(job, row_block, key / tokens))
		word |= 0xffff;
	if (mask_pattern_sees(job, row_block, (key + 16) / tokens))
		word |= 0xffff0000;
	return word;
}

static inline int64_t mask_position(const struct fa_cpu_job *job, int64_t token)
{
	return job->positions ? job->positions[token] : token + job->n_k - job->n_q;
}

/* ---- a tile */

static inline void mask_init(struct mask *mask, const struct fa_cpu_job *job)
{
	mask->job = job;
	mask->token = job->row / job->group;
	mask->end_token = (job->row + job->rows - 1) / job->group + 1;
	mask->n_lists = 0;
	if (!job->block_rows)
		return;
	mask->first_list = mask->token / job->block_rows;
	mask->n_lists = (int32_t)((mask->end_token - 1) / job->block_rows - mask->first_list + 1);
	for (int32_t i = 0; i < mask->n_lists; i++)
		mask_list_init(job, &mask->lists[i], mask->first_list + i);
}

/* Returns a key from @key on, before which from @key on no row sees any; job->end: none sees any. */
static inline int64_t mask_next(struct mask *mask, int64_t key)
{
	const struct fa_cpu_job *job = mask->job;
	int64_t next = key, of_pattern = INT64_MAX;

	if (mask->n_lists) {
		next = INT64_MAX;
		for (int32_t i = 0; i < mask->n_lists; i++)
			next = min64(next, mask_list_next(job, &mask->lists[i], key));
	}
	if (job->pattern.block_tokens) {
		int64_t before = INT64_MIN;

		for (int64_t token = mask->token; token < mask->end_token; token++) {
			int64_t block = floor_div(mask_position(job, token),
			                          job->pattern.block_tokens);

			if (block != before)
				of_pattern = min64(of_pattern, mask_pattern_next(job, block, key));
			before = block;
		}
		/* A tree's tokens stand elsewhere. */
		if (job->tree)
			of_pattern = min64(of_pattern, max64(key, job->n_k - job->n_q));
		next = max64(next, of_pattern);
	}
	return min64(next, job->end);
}

static inline uint32_t mask_tree_word(const struct fa_cpu_job *job, int64_t token, int64_t key,
                                      uint32_t word)
{
	const int64_t old = job->n_k - job->n_q;

	for (int64_t j = max64(old, key); j < min64(key + 32, job->n_k); j++) {
		uint32_t bit = 1u << (j - key);
		int64_t position;

		word &= ~bit;
		if (!score_tree_sees(job, token * job->group, j))
			continue;
		position = mask_position(job, token);
		if (!job->pattern.block_tokens ||
		    mask_pattern_sees(job, floor_div(position, job->pattern.block_tokens),
		                      score_key_position(job, j) / job->pattern.block_tokens))
			word |= bit;
	}
	return word;
}

/* Calls follow one another with ascending keys, which are multiples of 32. Stores the bits of
 * @n_words * 32 keys, for each token of the tile @n_words; the bits of keys from n_k on may be
 * anything. Returns the union of all words in @ret_any. */
static inline void mask_round(struct mask *mask, int64_t key, int32_t n_words, uint32_t *ret_words,
                              uint32_t *ret_any)
{
	const struct fa_cpu_job *job = mask->job;
	int64_t before = INT64_MIN;
	uint32_t pattern[MASK_WORDS] = { 0 };

	for (int32_t i = 0; i < mask->n_lists; i++)
		mask_list_round(job, &mask->lists[i], key, n_words);
	memset(ret_any, 0, (size_t)n_words * sizeof(uint32_t));
	for (int64_t token = mask->token; token < mask->end_token; token++) {
		uint32_t *words = ret_words + (token - mask->token) * n_words;
		const uint32_t *bits = job->bits ? job->bits + token * job->bits_stride : NULL;

		memset(words, 0xff, (size_t)n_words * sizeof(uint32_t));
		if (job->pattern.block_tokens) {
			int64_t block = floor_div(mask_position(job, token),
			                          job->pattern.block_tokens);

			for (int32_t w = 0; w < n_words && block != before; w++)
				pattern[w] = mask_pattern_word(job, block, key + w * 32);
			before = block;
			memcpy(words, pattern, (size_t)n_words * sizeof(uint32_t));
		}
		for (int32_t w = 0; w < n_words; w++) {
			int64_t at = key / 32 + w;

			if (job->tree)
				words[w] = mask_tree_word(job, token, key + w * 32, words[w]);
			if (mask->n_lists)
				words[w] &= mask->lists[token / job->block_rows - mask->first_list]
				                    .seen[w];
			if (bits)
				words[w] &= at < job->bits_words
				                    ? __atomic_load_n(&bits[at], __ATOMIC_RELAXED)
				                    : 0;
			ret_any[w] |= words[w];
		}
	}
}
