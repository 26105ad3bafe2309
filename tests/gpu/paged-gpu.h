/* Runs the paged kernels on a GPU of gpu.h. One thread. Driver errors end the process. */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct paged_gpu;

/* NULL, with the reason on stderr, if there is no GPU or no kernel. */
struct paged_gpu *paged_gpu_open(void);
struct paged_gpu *paged_gpu_close(struct paged_gpu *gpu);
const struct fa_cuda_chip *paged_gpu_chip(const struct paged_gpu *gpu);
const char *paged_gpu_name(const struct paged_gpu *gpu);
/* True if kernels that load by TMA run. */
bool paged_gpu_has_tma(const struct paged_gpu *gpu);

/* Returns 0 without enough memory. */
uint64_t paged_gpu_alloc(struct paged_gpu *gpu, size_t bytes);
void paged_gpu_free(struct paged_gpu *gpu, uint64_t address);
/* Registers host memory; returns its address on the GPU. */
uint64_t paged_gpu_pin(struct paged_gpu *gpu, void *memory, size_t bytes);
void paged_gpu_unpin(struct paged_gpu *gpu, void *memory);
void paged_gpu_upload(struct paged_gpu *gpu, uint64_t to, const void *from, size_t bytes);
void paged_gpu_download(struct paged_gpu *gpu, void *to, uint64_t from, size_t bytes);
void paged_gpu_fill(struct paged_gpu *gpu, uint64_t to, unsigned char byte, size_t bytes);
void paged_gpu_copy(struct paged_gpu *gpu, uint64_t to, uint64_t from, size_t bytes);
void paged_gpu_sync(struct paged_gpu *gpu);

/* All plans share the GPU's workspace, which starts as zeros. */
struct paged_gpu_plan {
	struct fa_cuda_paged_plan plan;
	uint64_t blob;
};

/* Returns the plan's error, with its text on stderr. */
int paged_gpu_plan(struct paged_gpu *gpu, const struct fa_cuda_chip *chip,
                   const struct fa_paged_request *request, struct paged_gpu_plan *ret_plan);
void paged_gpu_plan_free(struct paged_gpu *gpu, struct paged_gpu_plan *plan);
void paged_gpu_launch(struct paged_gpu *gpu, const struct paged_gpu_plan *plan,
                      const struct fa_paged_request *request);
void paged_gpu_launch_append(struct paged_gpu *gpu, const struct paged_gpu_plan *plan,
                             const struct fa_paged_request *request,
                             const struct fa_paged_append *append);

/*
 * Preempts launches that can yield, after random pauses of less than @most_ns; paged_gpu_launch()
 * then returns when they end. 0: stops. Returns the number of yields since the last call. On the
 * emulator launches yield by themselves.
 */
uint32_t paged_gpu_yield(struct paged_gpu *gpu, uint64_t most_ns);

/* @unstable: what launches read or write changes meanwhile, so that results may differ. The emulator
 * then does not compare those of a launch that yields. */
void paged_gpu_unstable(struct paged_gpu *gpu, bool unstable);

int paged_gpu_dense(struct paged_gpu *gpu, const struct fa_cuda_chip *chip,
                    const struct fa_attention_params *params);

/* See paged-measure.cu. */
void paged_gpu_poison_shared(struct paged_gpu *gpu);
void paged_gpu_flush(struct paged_gpu *gpu);
void paged_gpu_spin(struct paged_gpu *gpu, uint64_t ns);
void paged_gpu_bare(struct paged_gpu *gpu, uint64_t splits, uint64_t count, uint32_t piece_bytes);
void paged_gpu_normal(struct paged_gpu *gpu, uint64_t to, size_t bytes, uint32_t seed);
/* Copies pages of [head][token][dim] to pages of [token][head][dim]. */
void paged_gpu_token_major(struct paged_gpu *gpu, uint64_t from, size_t page_stride_bytes,
                           uint64_t to, uint64_t pages, uint32_t heads, uint32_t tokens,
                           uint32_t row_bytes);
void paged_gpu_time_start(struct paged_gpu *gpu);
double paged_gpu_time_stop_ns(struct paged_gpu *gpu);
