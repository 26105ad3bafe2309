/*
 * A GPU for tests, without the daemon's backend: loads the dense kernels and the tests' device
 * code, manages memory, and launches. One thread. Driver errors end the process.
 */
#pragma once

#include "kernels/cuda/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_gpu;

/* NULL, with the reason on stderr, if no GPU is usable. */
struct fa_gpu *fa_gpu_open(void);
struct fa_gpu *fa_gpu_close(struct fa_gpu *gpu);
const struct fa_cuda_chip *fa_gpu_chip(const struct fa_gpu *gpu);
const char *fa_gpu_name(const struct fa_gpu *gpu);

uint64_t fa_gpu_alloc(struct fa_gpu *gpu, size_t bytes);
void fa_gpu_free(struct fa_gpu *gpu, uint64_t address);
/* Host memory that the GPU reads at the same address. */
uint64_t fa_gpu_alloc_shared(struct fa_gpu *gpu, size_t bytes);
void fa_gpu_free_shared(struct fa_gpu *gpu, uint64_t address);
uint64_t fa_gpu_memory_free(struct fa_gpu *gpu);
void fa_gpu_upload(struct fa_gpu *gpu, uint64_t to, const void *from, size_t bytes);
void fa_gpu_download(struct fa_gpu *gpu, void *to, uint64_t from, size_t bytes);
/* Enqueues a copy of @rows rows of @bytes; all are multiples of 4. */
void fa_gpu_copy_rows(struct fa_gpu *gpu, uint64_t to, size_t to_pitch, uint64_t from,
                      size_t from_pitch, size_t bytes, size_t rows);
/* Enqueues a comparison that adds the number of differing words to @ret_count. */
void fa_gpu_compare(struct fa_gpu *gpu, uint64_t a, uint64_t b, size_t bytes, uint64_t ret_count);
void fa_gpu_poison(struct fa_gpu *gpu, uint64_t address, size_t bytes);
/* Waits for all work; exits on an error of the device. */
void fa_gpu_sync(struct fa_gpu *gpu);
/* Returns a stream that does not synchronise with the default one. */
void *fa_gpu_stream(struct fa_gpu *gpu);

/* @stream: a CUstream; NULL: the default stream. */
void fa_gpu_launch(struct fa_gpu *gpu, const struct fa_cuda_launch *launch, void *stream);
/*
 * Runs a launch to its end, preempting it after random pauses of less than @most_ns. Returns the
 * number of yields; -1 if its kernel cannot yield.
 */
int fa_gpu_launch_yielding(struct fa_gpu *gpu, const struct fa_cuda_launch *launch,
                           uint64_t most_ns, uint64_t *random);
/* Returns 0, or the plan's error with its text on stderr. */
int fa_gpu_attention(struct fa_gpu *gpu, const struct fa_attention_params *params, void *stream);

/* See reference.cu. */
void fa_gpu_reference(struct fa_gpu *gpu, const struct fa_attention_params *params,
                      uint64_t ret_out, uint64_t ret_lse, bool naive);
void fa_gpu_poison_shared(struct fa_gpu *gpu);
void fa_gpu_spin(struct fa_gpu *gpu, uint64_t ns, void *stream);
void fa_gpu_flush(struct fa_gpu *gpu, void *stream);

/* Measures the time of enqueued work, by events. */
void fa_gpu_time_start(struct fa_gpu *gpu, void *stream);
double fa_gpu_time_stop_ns(struct fa_gpu *gpu, void *stream);
