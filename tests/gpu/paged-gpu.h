/*
 * The GPU for tests of the kernels over pages: the driver's table, modules, memory, launches
 * of planned requests, timing. One thread. Failures of the driver end the process.
 */
#pragma once

#include "kernels/cuda/paged-plan.h"

#include <stddef.h>
#include <stdint.h>

struct paged_gpu;

/* NULL, with the reason on stderr, if there is no GPU or this build has no kernels. */
struct paged_gpu *paged_gpu_open(void);
struct paged_gpu *paged_gpu_close(struct paged_gpu *gpu);
const struct fa_cuda_chip *paged_gpu_chip(const struct paged_gpu *gpu);
const char *paged_gpu_name(const struct paged_gpu *gpu);

/* 0 if there is not enough memory. */
uint64_t paged_gpu_alloc(struct paged_gpu *gpu, size_t bytes);
void paged_gpu_free(struct paged_gpu *gpu, uint64_t address);
/* The host's memory, which the GPU reads where it is; as it sees it. */
uint64_t paged_gpu_pin(struct paged_gpu *gpu, void *memory, size_t bytes);
void paged_gpu_unpin(struct paged_gpu *gpu, void *memory);
void paged_gpu_upload(struct paged_gpu *gpu, uint64_t to, const void *from, size_t bytes);
void paged_gpu_download(struct paged_gpu *gpu, void *to, uint64_t from, size_t bytes);
void paged_gpu_fill(struct paged_gpu *gpu, uint64_t to, unsigned char byte, size_t bytes);
/* A copy on the device, enqueued. */
void paged_gpu_copy(struct paged_gpu *gpu, uint64_t to, uint64_t from, size_t bytes);
void paged_gpu_sync(struct paged_gpu *gpu);

/* A planned request with its blob uploaded. The workspace is the GPU's own, of all of them,
 * and starts as zeros. */
struct paged_gpu_plan {
	struct fa_cuda_paged_plan plan;
	uint64_t blob;
};

/* Plans for @chip; returns what the plan returned, with its sentence on stderr. */
int paged_gpu_plan(struct paged_gpu *gpu, const struct fa_cuda_chip *chip,
                   const struct fa_paged_request *request, struct paged_gpu_plan *ret_plan);
void paged_gpu_plan_free(struct paged_gpu *gpu, struct paged_gpu_plan *plan);
/* Enqueues the launches. */
void paged_gpu_launch(struct paged_gpu *gpu, const struct paged_gpu_plan *plan,
                      const struct fa_paged_request *request);
/* The same of attention whose launch does @append, too. */
void paged_gpu_launch_append(struct paged_gpu *gpu, const struct paged_gpu_plan *plan,
                             const struct fa_paged_request *request,
                             const struct fa_paged_append *append);

/*
 * From now on launches that can give way are asked to after random pauses of less than @most_ns,
 * and have ended when paged_gpu_launch() returns; 0: they are not any more. Returns how often
 * they stopped since the last call. On the emulator they give way without being told.
 */
uint32_t paged_gpu_yield(struct paged_gpu *gpu, uint64_t most_ns);

/* Dense attention, for comparison: the kernel that is planned for @chip. */
int paged_gpu_dense(struct paged_gpu *gpu, const struct fa_cuda_chip *chip,
                    const struct fa_attention_params *params);

/* See paged-measure.cu. */
void paged_gpu_poison_shared(struct paged_gpu *gpu);
void paged_gpu_flush(struct paged_gpu *gpu);
void paged_gpu_spin(struct paged_gpu *gpu, uint64_t ns);
void paged_gpu_bare(struct paged_gpu *gpu, uint64_t pieces, uint64_t count, uint32_t piece_bytes);
void paged_gpu_normal(struct paged_gpu *gpu, uint64_t to, size_t bytes, uint32_t seed);
/* Pages of [head][token][dim], @page_stride_bytes apart, as pages of [token][head][dim]. */
void paged_gpu_token_major(struct paged_gpu *gpu, uint64_t from, size_t page_stride_bytes,
                           uint64_t to, uint64_t pages, uint32_t heads, uint32_t tokens,
                           uint32_t row_bytes);
void paged_gpu_time_start(struct paged_gpu *gpu);
double paged_gpu_time_stop_ns(struct paged_gpu *gpu);
