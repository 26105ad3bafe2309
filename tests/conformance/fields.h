/* Fields of an operation of the cases, which need nothing of the case that runs. */
#pragma once

#include "client/faclient.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	FIELD_FLOATS_MAX = 64,
	FIELD_INTEGERS_MAX = 64,
};

/* Returns element @index of the random tensor with this seed. */
float field_element(uint64_t seed, uint64_t index);

/* Returns @to, or NULL if the operation has no such field. */
const float *field_floats(const json_t *operation, const char *key, float *to);

/* Returns the number of integers. */
uint32_t field_integers(const json_t *operation, const char *key, uint32_t *to);

float field_real(const json_t *operation, const char *key);

/* Returns false if the operation has no window. */
bool field_window(const json_t *operation, int64_t *ret_left, int64_t *ret_right);

/* Returns the operation's pattern of blocks; zeros: it has none. */
struct fa_block_pattern field_pattern(const json_t *operation);
