/* Runs problems on a GPU; implements the callbacks of tests/kernels/paged-problem.h. */
#pragma once

#include "tests/gpu/paged-gpu.h"
#include "tests/kernels/paged-problem.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

/* Target of paged_fail(). */
extern jmp_buf paged_failure;
extern struct paged_gpu *paged_device_gpu;

#define POINTER(address) ((void *)(uintptr_t)(address))

struct paged_device {
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	struct fa_paged_request request;
	uint64_t pool, table, tree, positions, q, out, lse, slopes, sinks;
};

uint64_t paged_device_upload(const void *from, size_t bytes);
void paged_device_init(struct paged_device *device, const struct paged_problem *problem);
void paged_device_deinit(struct paged_device *device);

/* Poisons the outputs, runs the plan and copies the results to @problem. */
void paged_device_run(struct paged_device *device, struct paged_problem *problem,
                      const struct paged_gpu_plan *plan);

/* Poisons the table in memory, so that launches must carry it. */
void paged_device_hide_table(struct paged_device *device, const struct paged_problem *problem);
void paged_device_show_table(struct paged_device *device, const struct paged_problem *problem);
