/*
 * What the tests of the kernels over pages have in common: their options, the specs that they
 * vary, the judgement of attention as it was planned, counts, and what main() does.
 */
#pragma once

#include "tests/gpu/paged-device.h"

#include <stdbool.h>
#include <stdint.h>

extern struct paged_options {
	uint64_t seed; /* --seed */
	int count;     /* --random: how many */
	int every;     /* --every: so many cases one is tried of, at least 1 */
	bool small;    /* --small: for an emulated GPU, which is slow */
} paged_options;

extern int paged_passed, paged_failed;

/* Opens the GPU, runs @run and says how it went; what main() returns: 77 without a GPU. */
int paged_main(int argc, char **argv, void (*run)(void));

/* Says how a part went; the next one begins here. NULL: nothing did go. */
void paged_report(const char *part);

extern const enum fa_attention_dtype paged_dtypes[3];

/* Three sequences, of one, five and 129 new tokens. */
extern const struct paged_spec paged_usual;

/* @spec in one of the ways to store codes: four, for each of two types. */
struct paged_spec paged_way_of(const struct paged_spec *spec, int i);

/* Plans @device's request for @chip, or, if that is NULL, for the GPU that there is; or fails. */
void paged_plan(struct paged_device *device, const struct paged_problem *problem,
                const struct fa_cuda_chip *chip, struct paged_gpu_plan *ret_plan);

/* Fails unless @plan is what it should be. */
typedef void (*paged_judge_plan_fn)(const struct paged_problem *problem,
                                    const struct fa_cuda_paged_plan *plan, uint32_t expected);

/* Attention as it is planned for @chip: right, and the same bits in a second run. A failure is
 * counted, and does not go to paged_failure. @judge_plan: NULL if any plan will do. */
void paged_check_on(struct paged_device *device, struct paged_problem *problem,
                    const struct fa_cuda_chip *chip, paged_judge_plan_fn judge_plan,
                    uint32_t expected);
