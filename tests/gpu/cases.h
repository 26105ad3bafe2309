/* What the cases of test-attention share. */
#pragma once

#include "tests/gpu/request.h"

struct fa_cases {
	struct fa_gpu *gpu;
	uint64_t random;
	int count;          /* random requests */
	int reruns;         /* of the same request */
	const char *kernel; /* a part of the names of the kernels to check */
	int passed, failed, skipped;
	double worst[FA_ATTENTION_BF16 + 1]; /* largest share of the allowed error */
	int *checks;                         /* [fa_cuda_kernels_count]: of each kernel */
};

/* Counts a check; a failed one says @format. */
void fa_cases_count(struct fa_cases *cases, bool ok, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Rows, and heads, so far apart that offsets need more than 32 bits: the same bits as close
 * by. */
void fa_case_far(struct fa_cases *cases);
/* The same bits however many blocks of threads share the blocks of rows. */
void fa_case_chain(struct fa_cases *cases);
/* A sequence gets the same bits whatever else is in its batch. */
void fa_case_alone(struct fa_cases *cases);
/* The same bits @reruns times, while other work comes and goes beside. */
void fa_case_rerun(struct fa_cases *cases);
/* The same bits however often a launch gives way, and wherever. */
void fa_case_yield(struct fa_cases *cases);
