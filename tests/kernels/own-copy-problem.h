/*
 * A copy between the pages of a paged problem and a client's own pages, to test: the client's
 * memory in several layouts, poisoned, and what it should hold.
 */
#pragma once

#include "tests/kernels/paged-problem.h"

#define OWN_LAYERS_MAX 3
#define OWN_PAGES_MAX 600

/* [page][token][head][dim]; heads before tokens; K and V in one tensor; all layers in one tensor;
 * rows that are aligned to elements alone. */
#define OWN_LAYOUTS 5

struct own_problem {
	struct paged_problem *problem;
	int32_t sequence; /* of the problem */
	struct fa_paged_own_copy copy;
	struct fa_paged_step step;
	uint32_t cu_new[2], length, before, first;
	char *memory; /* all tensors */
	size_t bytes;
	void *k_data[OWN_LAYERS_MAX], *v_data[OWN_LAYERS_MAX];
	uint32_t pages[OWN_PAGES_MAX];
};

/* A copy of tokens [first, end) of a sequence with pages of @page_tokens, in all layers or all but
 * the first. */
void own_init(struct own_problem *own, struct paged_problem *problem, int32_t sequence,
              uint32_t first, uint32_t end, int layout, int32_t page_tokens);
void own_deinit(struct own_problem *own);

/* Fills all memory of the client's, the gaps included, with random elements. */
void own_fill(struct own_problem *own);
void own_poison(struct own_problem *own);

/* Returns where a row is in the client's memory, by the contract. @layer: of the cache. */
char *own_row(const struct own_problem *own, int32_t layer, uint32_t token, int32_t head, bool v);

/* Does what the request should, row by row, on @pool and @memory, which are as large as the
 * problem's and the client's. */
void own_expect(const struct own_problem *own, bool writes, char *pool, char *memory);
