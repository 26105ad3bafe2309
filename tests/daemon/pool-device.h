/*
 * A pretended device under a pool: instead of K and V a page holds a number for each of
 * its tokens, so that what a sequence is made of can be read back. Shared memory: what a
 * child wrote its parent sees.
 */
#pragma once

#include "daemon/pool/sequence.h"
#include "daemon/pool/step.h"

#include <stdint.h>

#define DEVICE_PAGE_TOKENS 256u

struct device {
	uint32_t *tokens; /* [slot][DEVICE_PAGE_TOKENS] */
	uint32_t n_slots;
};

void device_init(struct device *device, uint64_t pool_bytes);
void device_deinit(struct device *device);

/* A token of a page. */
uint32_t *device_token(const struct device *device, uint32_t slot, uint32_t token);

/* Does what a step asks for before anything else: clears, copies. */
void device_begin(const struct device *device, const struct fa_pool_step *step);

/* The token of a sequence, by its position, through the step's table. */
uint32_t *device_step_token(const struct device *device, const struct fa_pool_step *step,
                            uint32_t entry, uint64_t position);

/* The group of an entry. */
const struct fa_pool_step_group *device_group(const struct fa_pool_step *step, uint32_t entry);

/* A durable token of a sequence. */
uint32_t device_read(const struct device *device, struct fa_pool *pool,
                     const struct fa_pool_sequence_info *info, uint32_t page_tokens,
                     uint64_t position);
