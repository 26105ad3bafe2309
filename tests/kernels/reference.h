/*
 * Attention computed a second time, as plainly as possible: the formulas of kernels/attention.h,
 * row by row, in fp64. The reference shares no code with the kernels, and reads only what a row may
 * see.
 */
#pragma once

#include "kernels/paged.h"

/* reference_get() returns element @at of a tensor's memory; reference_set() stores one. */
double reference_get(enum fa_attention_dtype dtype, const void *data, int64_t at);
void reference_set(enum fa_attention_dtype dtype, void *data, int64_t at, double value);

/* Returns element @c of a row of q, k or v: sequence @b, token @i, head @h. */
double reference_q(const struct fa_attention_params *params, int32_t b, int64_t i, int32_t h,
                   int32_t c);
double reference_k(const struct fa_attention_params *params, int32_t b, int64_t j, int32_t h,
                   int32_t c);
double reference_v(const struct fa_attention_params *params, int32_t b, int64_t j, int32_t h,
                   int32_t c);

/* Returns the value of a code, without its scale. */
double reference_code_value(enum fa_paged_store store, uint8_t code);

/* Returns the code nearest to @value, ties to even, as kernels/paged.h defines it. */
uint8_t reference_code(enum fa_paged_store store, double value);

/* Quantises @n numbers; @scale <= 0: computes the token's scale. Returns the scale. */
float reference_quantise(enum fa_paged_store store, const float *from, int32_t n, float scale,
                         uint8_t *codes);

/* Returns the nearest value that @dtype has, ties to even. */
double reference_round(enum fa_attention_dtype dtype, double value);

/*
 * Computes one row: token @i of sequence @b, query head @h. @rounded: scores, weights and output
 * are rounded to the tensors' type, as in a naive program. @ret_out has head_dim_v elements.
 */
void reference_row(const struct fa_attention_params *params, int32_t b, int64_t i, int32_t h,
                   bool rounded, double *ret_out, double *ret_lse);

/* Token counts of a sequence, and the offset of its first token in elements. */
int64_t reference_n_q(const struct fa_attention_params *params, int32_t b);
int64_t reference_n_k(const struct fa_attention_params *params, int32_t b);
int64_t reference_q_at(const struct fa_attention_params *params,
                       const struct fa_attention_tensor *tensor, int32_t b, int64_t i, int32_t h);
int64_t reference_k_at(const struct fa_attention_params *params,
                       const struct fa_attention_tensor *tensor, int32_t b, int64_t j, int32_t h);
int64_t reference_lse_at(const struct fa_attention_params *params, int32_t b, int64_t i, int32_t h);

/* Returns true if row @i of query head @h sees key @j. */
bool reference_visible(const struct fa_attention_params *params, int32_t b, int64_t i, int32_t h,
                       int64_t j);

/* The same for a pattern, row position and key position. @group: query heads of a KV head. */
bool reference_pattern_shows(const struct fa_attention_pattern *pattern, int32_t h, int32_t group,
                             int64_t row, int64_t key);
