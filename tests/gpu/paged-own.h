/*
 * A problem over the pool (tests/kernels/paged-problem.h) as a request over a client's own pages: its
 * tokens in pages of any size and layout. Memory of other tokens is NaN, and entries that must not be
 * followed are wild.
 */
#pragma once

#include "tests/gpu/paged-device.h"

#include <stdbool.h>
#include <stdint.h>

enum paged_own_layout {
	PAGED_OWN_NHD,      /* [page][token][head][dim] */
	PAGED_OWN_HND,      /* [page][head][token][dim] */
	PAGED_OWN_PAIRS,    /* [page][token][K, V][head][dim], in one tensor */
	PAGED_OWN_UNPADDED, /* as PAGED_OWN_NHD, but no row is aligned to 16 bytes */
	PAGED_OWN_LAYOUTS,
};

struct paged_own {
	struct fa_paged_own pages;
	struct fa_paged_request request;
	enum paged_own_layout layout;
	int32_t page_tokens;
	size_t kv_bytes, table_bytes;
	char *kv; /* host copies */
	int32_t *table, *lengths, *cu_q;
	int64_t v_at; /* bytes from K to V */
	uint64_t device_kv, device_table, device_lengths, device_cu_q, k_scales, v_scales, prefixes;
};

/* Moves the tokens of @problem, whose other tensors are @device's. */
void paged_own_init(struct paged_own *own, struct paged_problem *problem,
                    struct paged_device *device, enum paged_own_layout layout, int32_t page_tokens);
void paged_own_deinit(struct paged_own *own);

/* Returns a row in @kv: of slot page * page_tokens + token. */
char *paged_own_row(const struct paged_own *own, char *kv, int64_t bytes, bool v, int64_t slot,
                    int64_t head);
/* Returns the slot of token @token of sequence @b. */
int64_t paged_own_slot(const struct paged_own *own, int32_t b, int64_t token);

/* Fails if the request is refused or has no plan. */
struct paged_gpu_plan paged_own_plan(const struct paged_own *own,
                                     const struct paged_problem *problem,
                                     const struct fa_cuda_chip *chip);
/* Runs on poisoned outputs, and downloads them. */
void paged_own_run(struct paged_own *own, struct paged_device *device,
                   struct paged_problem *problem, const struct paged_gpu_plan *plan);

/* In words, for a failed check; valid until the next call. */
const char *paged_own_describe(const struct paged_own *own, const struct paged_problem *problem);
