/*
 * The row of the table of instruction sets that a translation unit belongs to, and the
 * names of its parts; the build defines FA_CPU_NAME.
 */
#pragma once

#include "kernels/cpu/isa.h"

#define FA_CPU_JOIN_(a, b) a##b
#define FA_CPU_JOIN(a, b) FA_CPU_JOIN_(a, b)
#define FA_CPU_STRING_(a) #a
#define FA_CPU_STRING(a) FA_CPU_STRING_(a)

#define FA_CPU_ROW FA_CPU_JOIN(fa_cpu_isa_, FA_CPU_NAME) /* in wide.c, whose scratch is largest */
#define FA_CPU_THIN FA_CPU_JOIN(fa_cpu_thin_, FA_CPU_NAME)

void FA_CPU_THIN(const struct fa_cpu_job *job, void *scratch);
