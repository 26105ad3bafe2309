/*
 * Shared by the planner's files over pages, and by no others.
 */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stddef.h>
#include <stdint.h>

static inline int64_t fa_cuda_paged_element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static inline int64_t fa_cuda_paged_stored_bytes(const struct fa_paged_cache *cache)
{
	return cache->store != FA_PAGED_PLAIN ? 1 : fa_cuda_paged_element_bytes(cache->dtype);
}

/* Avoids the division where one block suffices. */
static inline uint32_t fa_cuda_paged_ceil_div(uint64_t a, uint64_t b)
{
	return a <= b ? a > 0 : (uint32_t)((a + b - 1) / b);
}

/* Arrays in the blob are 16-byte aligned. */
static inline size_t fa_cuda_paged_align(size_t bytes)
{
	return (bytes + 15) / 16 * 16;
}

static inline uint32_t fa_cuda_paged_n_new(const struct fa_paged_step *step, int32_t b)
{
	return step->cu_new[b + 1] - step->cu_new[b];
}

/* -1: unbounded. */
static inline int64_t fa_cuda_paged_left(const struct fa_paged_attention *p)
{
	return p->window_left > FA_PAGED_LENGTH_MAX ? -1 : p->window_left;
}

/* Fields other than of sequence @b are 0. */
static inline void fa_cuda_paged_item_of(const struct fa_paged_step *step, int32_t b,
                                         struct fa_cuda_paged_item *ret_item)
{
	const uint32_t first = step->first ? step->first[b] : 0;
	const uint32_t first_q = step->cu_new[b], end_q = step->cu_new[b + 1];
	const uint32_t length = step->lengths[b], before = step->lengths_before[b];
	const uint32_t table_start = step->table_start[b];

	*ret_item = (struct fa_cuda_paged_item){
		.first_q = first_q,
		.n_q = end_q - first_q,
		.n_k = length,
		.begin = first,
		.first = first,
		.table_start = table_start,
		.tree_start = FA_CUDA_PAGED_NO_TREE,
		.append = before,
	};
}

static inline bool fa_cuda_paged_has_tree(const struct fa_paged_attention *p, int32_t b)
{
	return p->tree && p->tree_start[b] != FA_PAGED_NO_TREE;
}

/* Sequences with fewer new tokens decode; others prefill, in blocks of rows. */
#define FA_CUDA_PAGED_PREFILL_TOKENS 48u

/* Sequences with at least so many may share a prefix as packed rows; of others decode does. */
#define FA_CUDA_PAGED_SHARE_TOKENS 2u

/* As soon as a KV head has more rows than decode computes at once. */
static inline uint32_t fa_cuda_paged_packed_tokens(const struct fa_paged_attention *p)
{
	const uint32_t group = (uint32_t)(p->heads / p->cache->kv_heads), tokens = 32 / group + 1;

	return tokens < 9 ? 9 : tokens;
}

/* A bit of the number of tokens from which on sequences do not decode: codes are widened for
 * them (paged-plan-widen.c). Otherwise all sequences over codes decode. */
#define FA_CUDA_PAGED_WIDENS (1u << 31)

/* @from: fewer new tokens decode. */
static inline bool fa_cuda_paged_is_prefill(const struct fa_paged_attention *p, uint32_t from,
                                            int32_t b)
{
	return p->cache->dtype != FA_ATTENTION_F32 &&
	       (p->cache->store == FA_PAGED_PLAIN || (from & FA_CUDA_PAGED_WIDENS)) &&
	       !fa_cuda_paged_has_tree(p, b) &&
	       fa_cuda_paged_n_new(p->step, b) >= (from & ~FA_CUDA_PAGED_WIDENS);
}

static inline uint32_t fa_cuda_paged_slices(const struct fa_paged_attention *p,
                                            const struct fa_cuda_paged_kernel *kernel)
{
	return fa_cuda_paged_ceil_div((uint64_t)p->cache->head_dim_v, (uint64_t)kernel->dim_v);
}

/* An attention without chunks that is the same as one with chunks (paged-plan-chunks.c). */
struct fa_cuda_paged_chunks {
	struct fa_paged_attention attention;
	struct fa_paged_step step;
	uint32_t *lengths, *before, *first, *table_start, *tree_start, *cu_new;
};

/* Makes *ret_chunks for @p, which has chunks; the caller frees it. -ENOTSUP, -ENOMEM. */
int fa_cuda_paged_chunks_new(const struct fa_paged_attention *p, char *text, size_t text_bytes,
                             struct fa_cuda_paged_chunks **ret_chunks);

/* Returns -ENOTSUP, with a sentence in @text. */
__attribute__((format(printf, 3, 4))) int fa_cuda_paged_fail(char *text, size_t text_bytes,
                                                             const char *format, ...);

/* The text says that there is no kernel for @what. */
int fa_cuda_paged_no_kernel(const struct fa_cuda_chip *chip, const char *what, char *text,
                            size_t text_bytes);

/* Returns true if rows of @tensor can be moved 16 bytes at a time, with offsets within a tile of at
 * most 512 rows in 32 bits. */
bool fa_cuda_paged_tensor_aligned(const struct fa_attention_tensor *tensor, int64_t bytes);

struct fa_cuda_tensor fa_cuda_paged_tensor_of(const struct fa_attention_tensor *tensor,
                                              int64_t bytes);
struct fa_cuda_pages fa_cuda_paged_pages_of(const struct fa_paged_cache *cache, int32_t layer,
                                            const uint32_t *table);
void fa_cuda_paged_quantised_of(const struct fa_paged_cache *cache, int32_t layer,
                                struct fa_cuda_paged_quantised *ret_codes);

/* Returns the kernel of a kind that computes the least, without kernels by TMA; among equals the
 * first, which has the larger ring. NULL: none. */
const struct fa_cuda_paged_kernel *fa_cuda_paged_find(const struct fa_cuda_chip *chip,
                                                      enum fa_cuda_paged_kind kind,
                                                      enum fa_paged_store store,
                                                      enum fa_attention_dtype dtype, int32_t dim,
                                                      int32_t dim_v, int32_t rows);

/* If the table is short and @kernel has a variant with an inline table: gives @plan the table and
 * returns the variant; else returns @kernel. */
const struct fa_cuda_paged_kernel *
fa_cuda_paged_inline_table(const struct fa_cuda_paged_kernel *kernel,
                           const struct fa_paged_step *step, struct fa_cuda_paged_plan *plan);

/* Returns the variant of @kernel that reduces many results sooner, or NULL. */
const struct fa_cuda_paged_kernel *fa_cuda_paged_levels(const struct fa_cuda_paged_kernel *kernel);

/* ---- paged-plan-attend.c */

size_t fa_cuda_paged_split_bytes(const struct fa_paged_attention *p);
int fa_cuda_paged_plan_attention(const struct fa_cuda_chip *chip,
                                 const struct fa_paged_attention *p, char *blob,
                                 struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes);
int fa_cuda_paged_launch_attention(const struct fa_cuda_paged_plan *plan,
                                   const struct fa_paged_attention *p, uint64_t blob,
                                   uint64_t workspace, uint64_t epoch,
                                   struct fa_cuda_paged_launch *launches);

/* ---- paged-plan-prefill.c */

int fa_cuda_paged_plan_prefill(const struct fa_paged_attention *p, char *blob,
                               struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes);
/* Approximately. */
uint64_t fa_cuda_paged_seen(const struct fa_paged_attention *p,
                            const struct fa_cuda_paged_item *item, uint32_t row, uint32_t rows);
/* An item's tile is its first block's number. */
uint32_t fa_cuda_paged_block_item(const struct fa_cuda_paged_item *items, uint32_t n,
                                  uint32_t number);
/* The greatest first. */
int fa_cuda_paged_compare_blocks(const void *a, const void *b);

/* ---- paged-plan-widen.c */

/* An attention over keys that were widened. */
struct fa_cuda_paged_wide {
	struct fa_paged_attention attention;
	struct fa_paged_cache cache;
	struct fa_paged_step step;
};

/* Bytes of the arrays in the blob; 0: no codes are widened. */
size_t fa_cuda_paged_widen_bytes(const struct fa_paged_attention *p);
/* If the codes of sequences with many rows are widened, sets plan->kernel, wide_rows and
 * prefill_tokens, and returns true. */
bool fa_cuda_paged_widen_find(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                              struct fa_cuda_paged_plan *plan);
/* Writes the arrays at @*at in the blob; advances @*at. */
void fa_cuda_paged_widen_plan(const struct fa_paged_attention *p, char *blob, size_t *at,
                              struct fa_cuda_paged_plan *plan);
/* Sets *ret_wide to the attention of these sequences. @host_blob: NULL when launching. */
void fa_cuda_paged_wide_of(const struct fa_cuda_paged_plan *plan,
                           const struct fa_paged_attention *p, char *host_blob, uint64_t blob,
                           uint64_t workspace, struct fa_cuda_paged_wide *ret_wide);
/* Bytes of the workspace from plan->wide_at on. */
size_t fa_cuda_paged_wide_bytes(const struct fa_cuda_paged_plan *plan,
                                const struct fa_paged_cache *cache);
void fa_cuda_paged_widen_launch(const struct fa_cuda_paged_plan *plan,
                                const struct fa_paged_attention *p, uint64_t blob,
                                uint64_t workspace, struct fa_cuda_paged_launch *launch);

/* ---- paged-plan-decode.c */

struct fa_cuda_paged_groups;

/* Plans the sequences of few rows, with @groups' prefixes, from @*at in the blob on; advances
 * @*at. */
int fa_cuda_paged_plan_decode(const struct fa_cuda_chip *chip, const struct fa_paged_attention *p,
                              const struct fa_cuda_paged_groups *groups, char *blob, size_t *at,
                              struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes);

/* ---- paged-plan-partition.c */

/* Returns the time to finish a part, in tiles; 0: unknown. */
uint32_t fa_cuda_paged_epilogue_tiles(const struct fa_cuda_chip *chip,
                                      const struct fa_paged_cache *cache);
/* Divides the tiles of @n items over blocks, and writes each block's first item. @end: tiles that
 * may be added to each part for its epilogue. Returns true if a part may span blocks. */
bool fa_cuda_paged_partition(const struct fa_cuda_chip *chip, uint32_t end,
                             struct fa_cuda_paged_item *items, uint32_t n,
                             struct fa_cuda_paged_plan *plan, uint32_t *block_items);

/* ---- paged-plan-own-copy.c */

size_t fa_cuda_paged_own_copy_blob_bytes(const struct fa_paged_own_copy *p);
int fa_cuda_paged_plan_own_copy(const struct fa_cuda_chip *chip, const struct fa_paged_own_copy *p,
                                char *blob, struct fa_cuda_paged_plan *plan, char *text,
                                size_t text_bytes);
void fa_cuda_paged_launch_own_copy(const struct fa_cuda_paged_plan *plan,
                                   const struct fa_paged_own_copy *p, uint64_t blob,
                                   struct fa_cuda_paged_own_copy *ret_args);

/* ---- paged-plan-tokens.c */

int fa_cuda_paged_plan_append(const struct fa_cuda_chip *chip, const struct fa_paged_append *p,
                              char *blob, struct fa_cuda_paged_plan *plan, char *text,
                              size_t text_bytes);
int fa_cuda_paged_plan_merge(const struct fa_cuda_chip *chip, const struct fa_paged_merge *p,
                             struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes);
int fa_cuda_paged_plan_pages(const struct fa_cuda_chip *chip, const struct fa_paged_pages *p,
                             char *blob, struct fa_cuda_paged_plan *plan, char *text,
                             size_t text_bytes);
int fa_cuda_paged_plan_move(const struct fa_cuda_chip *chip, const struct fa_paged_move *p,
                            char *blob, struct fa_cuda_paged_plan *plan, char *text,
                            size_t text_bytes);

void fa_cuda_paged_launch_append(const struct fa_cuda_paged_plan *plan,
                                 const struct fa_paged_append *p, uint64_t blob,
                                 struct fa_cuda_paged_launch *launch);
void fa_cuda_paged_launch_merge(const struct fa_paged_merge *p,
                                struct fa_cuda_paged_merge *ret_args);
void fa_cuda_paged_launch_pages(const struct fa_cuda_paged_plan *plan,
                                const struct fa_paged_pages *p, uint64_t blob,
                                struct fa_cuda_paged_copy *ret_args);
void fa_cuda_paged_launch_move(const struct fa_cuda_paged_plan *plan, const struct fa_paged_move *p,
                               uint64_t blob, struct fa_cuda_paged_moves *ret_args);

/* ---- paged-plan-own.c */

int fa_cuda_paged_plan_own(const struct fa_cuda_chip *chip, const struct fa_paged_own_attention *p,
                           struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes);
int fa_cuda_paged_launch_own(const struct fa_cuda_paged_plan *plan,
                             const struct fa_paged_own_attention *p, uint64_t workspace,
                             uint64_t epoch, struct fa_cuda_paged_launch *launches);
int fa_cuda_paged_plan_own_append(const struct fa_cuda_chip *chip,
                                  const struct fa_paged_own_append *p,
                                  struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes);
void fa_cuda_paged_launch_own_append(const struct fa_paged_own_append *p,
                                     struct fa_cuda_own_append *ret_args);

/* ---- paged-plan-own-packed.c */

/* As fa_cuda_paged_packed_find(). @stand_in: as if there were one sequence, as long as bounds
 * allow. */
bool fa_cuda_paged_own_packed_find(const struct fa_cuda_chip *chip,
                                   const struct fa_paged_own_attention *p,
                                   const struct fa_paged_attention *stand_in,
                                   struct fa_cuda_paged_plan *plan);
/* Completes @launch, of @kernel. */
void fa_cuda_paged_own_packed_launch(const struct fa_cuda_paged_plan *plan,
                                     const struct fa_cuda_paged_kernel *kernel, uint64_t workspace,
                                     struct fa_cuda_paged_launch *launch);
