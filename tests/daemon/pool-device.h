/*
 * A fake device under a pool, in memory shared with child processes. A page holds a number per
 * token, so that a sequence's contents can be read back.
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

uint32_t *device_token(const struct device *device, uint32_t slot, uint32_t token);

/* The step's clears and copies. */
void device_begin(const struct device *device, const struct fa_pool_step *step);

/* The token at a position, found through the step's table. */
uint32_t *device_step_token(const struct device *device, const struct fa_pool_step *step,
                            uint32_t entry, uint64_t position);

const struct fa_pool_step_group *device_group(const struct fa_pool_step *step, uint32_t entry);

/* A durable token of a sequence. */
uint32_t device_read(const struct device *device, struct fa_pool *pool,
                     const struct fa_pool_sequence_info *info, uint32_t page_tokens,
                     uint64_t position);
