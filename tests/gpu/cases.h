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
	double worst[FA_ATTENTION_BF16 + 1]; /* error / allowed error */
	int *checks;                         /* [fa_cuda_kernels_count] */
};

/* Counts a check; prints @format if it failed. */
void fa_cases_count(struct fa_cases *cases, bool ok, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Checks every kernel that covers the request. */
void fa_cases_check(struct fa_cases *cases, const struct fa_request *request);

/* MLA in plain form. */
void fa_case_plain(struct fa_cases *cases);
/* Blocks, patterns and bits. */
void fa_case_masks(struct fa_cases *cases);
/* Offsets beyond 32 bits give the same bits as close rows and heads. */
void fa_case_far(struct fa_cases *cases);
/* The number of thread blocks does not change the bits. */
void fa_case_chain(struct fa_cases *cases);
/* A sequence's bits do not depend on the rest of its batch, unless its rows are packed. */
void fa_case_alone(struct fa_cases *cases);
/* @reruns runs beside changing other work give the same bits. */
void fa_case_rerun(struct fa_cases *cases);
/* Preemption does not change the bits. */
void fa_case_yield(struct fa_cases *cases);
