/*
 * Pages of a program's own, as engines have them, and requests that copy tokens between them and
 * sequences of the KV cache.
 */
#pragma once

#include "client/faclient.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	LAYERS = 3,
	HEADS = 2,
	DIM = 48,
	DIM_V = 32,
	N_PAGES = 24,
	PAGE_MAX = 64,
	TOKENS_MAX = 150,
	LAYOUTS = 4,
	POISON = 0xa5,
};

/* A random number below @n. */
uint32_t below(uint32_t n);

uint32_t element_bytes(uint32_t dtype);

/* The pages: a tensor of K and one of V per layer, in one buffer. */
struct own {
	struct fa_buffer *buffer;
	char *host;
	size_t bytes;
	uint32_t dtype;
	int64_t page_tokens;
	struct fa_tensor k[LAYERS], v[LAYERS];
};

/*
 * Fills the buffer with POISON. Layouts: 0: [page][token][head][dim]; 1: heads before tokens; 2: K
 * and V of a layer in one tensor; 3: all layers in one tensor, with rows aligned to elements only.
 */
void own_init(struct own *own, uint32_t dtype, int64_t page_tokens, int layout);
void own_deinit(struct own *own);
void own_fill(struct own *own);

/* Writes all page numbers in random order. */
void pages_draw(uint32_t *pages);

/* Returns a request for tokens [first, first + n); the first is at place @offset of pages[0]. */
struct fa_sequence_pages request_of(const struct own *own, uint64_t sequence, const uint32_t *pages,
                                    uint64_t first, uint64_t n, uint32_t offset);

char *row_at(const struct own *own, const struct fa_tensor *tensor, const uint32_t *pages,
             uint64_t place, int64_t head);

/* K and V of some tokens of a layer, [tokens][heads][dim]. */
struct dense {
	struct fa_buffer *buffer;
	char *k, *v;
	size_t k_row, v_row; /* bytes of a token */
	uint32_t dtype;
};

void dense_init(struct dense *dense, uint32_t dtype);
struct fa_sequence_copy dense_copy(const struct dense *dense, uint64_t sequence, uint32_t layer,
                                   uint64_t first, int64_t n);

/* Copies @n rows from the pages to @dense. */
void gather(const struct own *own, uint32_t layer, const uint32_t *pages, uint32_t offset,
            uint64_t n, struct dense *dense);

uint64_t cache_new(uint32_t dtype, uint32_t store, bool token_scales, uint32_t page_tokens);
uint64_t sequence_new(uint64_t cache);
struct fa_step *begin(uint64_t sequence, uint32_t n);
void commit(struct fa_step *step);

/* A sequence of 40 tokens that were written from the pages. */
struct scene {
	uint64_t cache, sequence;
	struct own own;
	uint32_t pages[N_PAGES];
};

void scene_open(struct scene *scene);
void scene_close(struct scene *scene);

/* Returns a request that reads all tokens. */
struct fa_sequence_pages read_of(const struct scene *scene);
