/*
 * Shared by the cases of test-attention.
 */
#pragma once

#include "tests/gpu/request.h"

struct fa_cases {
	struct fa_gpu *gpu;
	uint64_t random;
	int count;
	int reruns;
	const char *kernel; /* check only kernels whose names contain this text */
	int passed, failed, skipped;
	double worst[FA_ATTENTION_BF16 + 1]; /* largest error relative to the allowed one */
	int *checks;                         /* [fa_cuda_kernels_count] */
};

/* Counts a check; prints @format if it failed. */
void fa_cases_count(struct fa_cases *cases, bool ok, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * Checks that rows and heads so far apart that offsets need more than 32 bits give the same bits as
 * close together.
 */
void fa_case_far(struct fa_cases *cases);
/* Checks for the same bits however many thread blocks share the row blocks. */
void fa_case_chain(struct fa_cases *cases);
/* Checks for the same bits of a sequence whatever else is in its batch. */
void fa_case_alone(struct fa_cases *cases);
/* Checks for the same bits in @reruns runs beside changing other work. */
void fa_case_rerun(struct fa_cases *cases);
/* Checks for the same bits however often and wherever a launch yields. */
void fa_case_yield(struct fa_cases *cases);
