/*
 * What the files of the planner share: of paged-plan.c, which finds kernels and knows tensors,
 * and for it the operations of the others. Nobody else includes this.
 */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stddef.h>
#include <stdint.h>

static inline int64_t fa_cuda_paged_element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

/* Of what pages hold. */
static inline int64_t fa_cuda_paged_stored_bytes(const struct fa_paged_cache *cache)
{
	return cache->store != FA_PAGED_PLAIN ? 1 : fa_cuda_paged_element_bytes(cache->dtype);
}

/* Of few rows it mostly is one block that is asked for, and a division takes long. */
static inline uint32_t fa_cuda_paged_ceil_div(uint64_t a, uint64_t b)
{
	return a <= b ? a > 0 : (uint32_t)((a + b - 1) / b);
}

/* Arrays in the blob start on 16 bytes. */
static inline size_t fa_cuda_paged_align(size_t bytes)
{
	return (bytes + 15) / 16 * 16;
}

static inline uint32_t fa_cuda_paged_n_new(const struct fa_paged_step *step, int32_t b)
{
	return step->cu_new[b + 1] - step->cu_new[b];
}

/* -1: no key is too far to the left. */
static inline int64_t fa_cuda_paged_left(const struct fa_paged_attention *p)
{
	return p->window_left > FA_PAGED_LENGTH_MAX ? -1 : p->window_left;
}

/* What the step says of sequence @b; the rest is 0. The step is read before anything is written, so
 * that nothing is put together elsewhere and then copied. */
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

/* -ENOTSUP, with a sentence in @text. */
__attribute__((format(printf, 3, 4))) int fa_cuda_paged_fail(char *text, size_t text_bytes,
                                                             const char *format, ...);

/* The same: there is no kernel for @what. */
int fa_cuda_paged_missing(const struct fa_cuda_chip *chip, const char *what, char *text,
                          size_t text_bytes);

/*
 * Whether rows of @tensor can be moved in pieces of 16 bytes, with the offsets inside a
 * tile of at most 512 rows in 32 bits.
 */
bool fa_cuda_paged_tensor_aligned(const struct fa_attention_tensor *tensor, int64_t bytes);

struct fa_cuda_tensor fa_cuda_paged_tensor_of(const struct fa_attention_tensor *tensor,
                                              int64_t bytes);
struct fa_cuda_pages fa_cuda_paged_pages_of(const struct fa_paged_cache *cache, int32_t layer,
                                            const uint32_t *table);
/* With codes: what kernels are to know of them, of a layer. */
void fa_cuda_paged_codes_of(const struct fa_paged_cache *cache, int32_t layer,
                            struct fa_cuda_paged_codes *ret_codes);

/* The kernel of a kind, but for those by TMA, that computes the least; among equals the first,
 * which is the one with the larger ring. NULL if there is none. */
const struct fa_cuda_paged_kernel *fa_cuda_paged_find(const struct fa_cuda_chip *chip,
                                                      enum fa_cuda_paged_kind kind,
                                                      enum fa_paged_store store,
                                                      enum fa_attention_dtype dtype, int32_t dim,
                                                      int32_t dim_v, int32_t rows);

/* @kernel, or the one that does the same and whose launches carry the table, which @plan then
 * gets: if there is one, and the table is short. */
const struct fa_cuda_paged_kernel *
fa_cuda_paged_carry_table(const struct fa_cuda_paged_kernel *kernel,
                          const struct fa_paged_step *step, struct fa_cuda_paged_plan *plan);

/* The one that does the same as @kernel and adds up many shares of a part sooner, or NULL. */
const struct fa_cuda_paged_kernel *fa_cuda_paged_levels(const struct fa_cuda_paged_kernel *kernel);

/* ---- paged-plan-attend.c */

/* What a plan in pieces has in the blob besides, at most. */
size_t fa_cuda_paged_pieces_bytes(const struct fa_paged_attention *p);
int fa_cuda_paged_plan_attention(const struct fa_cuda_chip *chip,
                                 const struct fa_paged_attention *p, char *blob,
                                 struct fa_cuda_paged_plan *plan, char *text, size_t text_bytes);
int fa_cuda_paged_launch_attention(const struct fa_cuda_paged_plan *plan,
                                   const struct fa_paged_attention *p, uint64_t blob,
                                   uint64_t workspace, uint64_t epoch,
                                   struct fa_cuda_paged_launch *launches);

/* Keys that the last of a block's @rows rows from @row on sees, about. */
uint64_t fa_cuda_paged_seen(const struct fa_paged_attention *p,
                            const struct fa_cuda_paged_item *item, uint32_t row, uint32_t rows);
/* Which of the @n items has block @number, if blocks are numbered as items' tiles are. */
uint32_t fa_cuda_paged_block_item(const struct fa_cuda_paged_item *items, uint32_t n,
                                  uint32_t number);
/* Of uint64_t, the greatest first. */
int fa_cuda_paged_compare_blocks(const void *a, const void *b);

/* ---- paged-plan-divide.c */

/* How long the end of a part takes, in the time of tiles; 0: not known. */
uint32_t fa_cuda_paged_end_tiles(const struct fa_cuda_chip *chip,
                                 const struct fa_paged_cache *cache);
/* Divides the tiles of items 0 to @n - 1 over blocks, of which it gives the first item of each.
 * @end: how long the end of a part takes; items may get so many tiles more. Whether a part may be
 * several blocks'. */
bool fa_cuda_paged_divide(const struct fa_cuda_chip *chip, uint32_t end,
                          struct fa_cuda_paged_item *items, uint32_t n,
                          struct fa_cuda_paged_plan *plan, uint32_t *block_items);

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
