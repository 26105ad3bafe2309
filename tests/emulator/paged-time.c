/*
 * Implements tests/gpu/paged-gpu.h for time-paged on the emulator: checks that time-paged works and
 * what it prints. Times mean nothing.
 */
#include "tests/gpu/paged-gpu.h"

#include "common/clock.h"
#include "tests/kernels/problem.h"
#include "tests/kernels/reference.h"

#include <string.h>

static uint64_t start_ns;

static char *at(uint64_t address)
{
	return (char *)(uintptr_t)address;
}

void paged_gpu_copy(struct paged_gpu *gpu, uint64_t to, uint64_t from, size_t bytes)
{
	memmove(at(to), at(from), bytes);
}

int paged_gpu_dense(struct paged_gpu *gpu, const struct fa_cuda_chip *chip,
                    const struct fa_attention_params *params)
{
	return 0;
}

void paged_gpu_flush(struct paged_gpu *gpu)
{
}

void paged_gpu_spin(struct paged_gpu *gpu, uint64_t ns)
{
}

/* Checks only that the memory to be read exists. */
void paged_gpu_bare(struct paged_gpu *gpu, uint64_t pieces, uint64_t count, uint32_t piece_bytes)
{
	volatile char sum = 0;

	for (uint64_t i = 0; i < count; i++) {
		const char *const piece = at(((const uint64_t *)at(pieces))[i]);

		for (uint32_t byte = 0; byte < piece_bytes; byte++)
			sum = (char)(sum + piece[byte]);
	}
}

void paged_gpu_normal(struct paged_gpu *gpu, uint64_t to, size_t bytes, uint32_t seed)
{
	problem_seed(seed);
	for (size_t i = 0; i < bytes / 2; i++)
		reference_set(FA_ATTENTION_BF16, at(to), (int64_t)i, problem_normal());
}

void paged_gpu_token_major(struct paged_gpu *gpu, uint64_t from, size_t page_stride_bytes,
                           uint64_t to, uint64_t pages, uint32_t heads, uint32_t tokens,
                           uint32_t row_bytes)
{
	for (uint64_t page = 0; page < pages; page++)
		for (uint32_t token = 0; token < tokens; token++)
			for (uint32_t head = 0; head < heads; head++)
				memcpy(at(to) +
				               ((page * tokens + token) * heads + head) * row_bytes,
				       at(from) + page * page_stride_bytes +
				               ((size_t)head * tokens + token) * row_bytes,
				       row_bytes);
}

void paged_gpu_time_start(struct paged_gpu *gpu)
{
	start_ns = fa_now_ns();
}

double paged_gpu_time_stop_ns(struct paged_gpu *gpu)
{
	return (double)(fa_now_ns() - start_ns) + 1;
}
