/*
 * The symbols of an instruction set; the build defines FA_CPU_NAME.
 */
#pragma once

#include "kernels/cpu/isa.h"

#define FA_CPU_JOIN_(a, b) a##b
#define FA_CPU_JOIN(a, b) FA_CPU_JOIN_(a, b)
#define FA_CPU_STRING_(a) #a
#define FA_CPU_STRING(a) FA_CPU_STRING_(a)

#define FA_CPU_ISA FA_CPU_JOIN(fa_cpu_isa_, FA_CPU_NAME) /* defined in many_rows.c */
#define FA_CPU_FEW_ROWS FA_CPU_JOIN(fa_cpu_few_rows_, FA_CPU_NAME)
#define FA_CPU_REDUCE FA_CPU_JOIN(fa_cpu_reduce_, FA_CPU_NAME)
#define FA_CPU_BLEND FA_CPU_JOIN(fa_cpu_blend_, FA_CPU_NAME)
#define FA_CPU_ROTATE FA_CPU_JOIN(fa_cpu_rotate_, FA_CPU_NAME)

void FA_CPU_FEW_ROWS(const struct fa_cpu_job *job, void *scratch);
void FA_CPU_REDUCE(const struct fa_cpu_job *job, const float *partials, int64_t n, int64_t stride);
void FA_CPU_BLEND(enum fa_attention_dtype dtype, void *to, const void *a, float weight_a,
                  const void *b, float weight_b, int32_t dim);
void FA_CPU_ROTATE(enum fa_attention_dtype dtype, void *to, const void *from, const float *cos,
                   const float *sin, int32_t dim, bool interleaved);
