/* Shared by the tests of paged kernels. */
#pragma once

#include "tests/gpu/paged-device.h"

#include <stdbool.h>
#include <stdint.h>

extern struct paged_options {
	uint64_t seed;
	int count;  /* --random: number of random problems */
	int every;  /* --every: run one case in @every, at least 1 */
	bool small; /* --small: for the emulator, which is slow */
} paged_options;

extern int paged_passed, paged_failed;

/* Returns main()'s status: 77 without a GPU. */
int paged_main(int argc, char **argv, void (*run)(void));

/* Prints and resets a part's counters. @part NULL: no check may have succeeded. */
void paged_report(const char *part);

extern const enum fa_attention_dtype paged_dtypes[3];

/* Three sequences with one, five and 129 new tokens. */
extern const struct paged_spec paged_usual;

/* Returns @spec with form @i of 8 of stored codes. */
struct paged_spec paged_way_of(const struct paged_spec *spec, int i);

/* @chip NULL: the actual GPU. Fails on an error. */
void paged_plan(struct paged_device *device, const struct paged_problem *problem,
                const struct fa_cuda_chip *chip, struct paged_gpu_plan *ret_plan);

typedef void (*paged_judge_plan_fn)(const struct paged_problem *problem,
                                    const struct fa_cuda_paged_plan *plan, uint32_t expected);

/*
 * Runs attention twice, as planned for @chip: the result must be right, and the bits the same.
 * Counts failures without a jump. @judge_plan NULL: any plan is accepted.
 */
void paged_check_on(struct paged_device *device, struct paged_problem *problem,
                    const struct fa_cuda_chip *chip, paged_judge_plan_fn judge_plan,
                    uint32_t expected);
