/*
 * Shared by the tests of paged kernels: options, specs to vary, checks of planned attention,
 * counters, and main().
 */
#pragma once

#include "tests/gpu/paged-device.h"

#include <stdbool.h>
#include <stdint.h>

extern struct paged_options {
	uint64_t seed;
	int count;  /* --random: number of random problems */
	int every;  /* --every: run one case in so many; at least 1 */
	bool small; /* --small: for the emulator, which is slow */
} paged_options;

extern int paged_passed, paged_failed;

/* Opens the GPU, calls @run and prints the result; returns main()'s status: 77 without a GPU. */
int paged_main(int argc, char **argv, void (*run)(void));

/* Prints the counters of a part and resets them. NULL: no check may have succeeded. */
void paged_report(const char *part);

extern const enum fa_attention_dtype paged_dtypes[3];

/* Three sequences with one, five and 129 new tokens. */
extern const struct paged_spec paged_usual;

/* Returns @spec with one of the eight forms of stored codes: four for each of two types. */
struct paged_spec paged_way_of(const struct paged_spec *spec, int i);

/* Plans @device's request for @chip (NULL: the actual GPU); fails on an error. */
void paged_plan(struct paged_device *device, const struct paged_problem *problem,
                const struct fa_cuda_chip *chip, struct paged_gpu_plan *ret_plan);

typedef void (*paged_judge_plan_fn)(const struct paged_problem *problem,
                                    const struct fa_cuda_paged_plan *plan, uint32_t expected);

/*
 * Runs attention twice, as planned for @chip: the result must be right, and the bits the same.
 * Failures are counted without a jump to paged_failure. @judge_plan: NULL accepts any plan.
 */
void paged_check_on(struct paged_device *device, struct paged_problem *problem,
                    const struct fa_cuda_chip *chip, paged_judge_plan_fn judge_plan,
                    uint32_t expected);
