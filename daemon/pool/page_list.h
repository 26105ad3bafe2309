/* A sequence's pages: planned in memory, then stored in cells of the state. Loop thread. */
#pragma once

#include "daemon/pool/objects.h"

static inline uint32_t fa_pages_of(const struct fa_pool_cache *cache, uint64_t tokens)
{
	return (uint32_t)((tokens + cache->layout.page_tokens - 1) >> cache->layout.token_shift);
}

static inline uint32_t fa_pool_sequence_first_page(const struct fa_pool_sequence *sequence)
{
	return (uint32_t)(sequence->first >> sequence->cache->layout.token_shift);
}

static inline uint32_t fa_pool_sequence_slot(const struct fa_pool_sequence *sequence,
                                             uint32_t number)
{
	return sequence->copied && number == sequence->copied_number
	               ? sequence->copied_slot
	               : sequence->pages[number - fa_pool_sequence_first_page(sequence)];
}

/* Returns how many cells pages up to @end lack. */
uint32_t fa_page_list_missing(const struct fa_pool_sequence *sequence, uint32_t end);
/* Allocates room for pages up to number @end and @n_deferred deferred releases. -ENOMEM. */
int fa_page_list_prepare(struct fa_pool_sequence *sequence, uint32_t end, uint32_t n_deferred);
int fa_page_list_check_cells(const struct fa_pool *pool, uint64_t n, struct fa_error *error);
/* The list was prepared with enough cells. */
void fa_page_list_append(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                         const uint32_t *slots, uint32_t n);
void fa_page_list_replace(struct fa_pool *pool, struct fa_pool_sequence *sequence, uint32_t number,
                          uint32_t slot);
/* Makes @length, @first and @step durable by one store. */
void fa_page_list_commit(struct fa_pool *pool, struct fa_pool_sequence *sequence, uint64_t length,
                         uint64_t first, uint64_t step);
/* Releases pages after the planned length; @durable ones later, as steps may read them. */
void fa_page_list_trim(struct fa_pool *pool, struct fa_pool_sequence *sequence, bool durable);
void fa_page_list_drop_before(struct fa_pool *pool, struct fa_pool_sequence *sequence,
                              uint64_t first);
/* Releases a page once steps in flight have ended. fa_page_list_prepare() has made room. */
void fa_page_list_release(struct fa_pool *pool, struct fa_pool_sequence *sequence, uint32_t slot);
/* The caller has checked that there is a cell. */
uint32_t fa_page_list_take_cell(struct fa_pool *pool, const struct fa_pool_sequence *sequence);
void fa_page_list_give_cell(struct fa_pool *pool, const struct fa_pool_sequence *sequence,
                            uint32_t cell);
void fa_page_list_free_cell(struct fa_pool *pool, uint32_t cell);
