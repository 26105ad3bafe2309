/*
 * Implements tests/gpu/gpu.h on the emulator: device memory is the host's, and only sm_90a kernels
 * run, those for head dims above 256, and those with masks. Times mean nothing.
 */
#include "tests/gpu/gpu.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/yield.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fa_gpu {
	struct fa_cuda_chip chip;
};

struct fa_gpu *fa_gpu_open(void)
{
	static struct fa_gpu gpu = {
		/* Few SMs, so that thread blocks have many blocks of rows. */
		.chip = { .arch = 90,
		          .shared_bytes_max = 232448,
		          .l2_bytes = 50 << 20,
		          .sms = 3,
		          .workspace = true },
	};

	fa_emulated_seed(1);
	return &gpu;
}

struct fa_gpu *fa_gpu_close(struct fa_gpu *gpu)
{
	return NULL;
}

const struct fa_cuda_chip *fa_gpu_chip(const struct fa_gpu *gpu)
{
	return &gpu->chip;
}

const char *fa_gpu_name(const struct fa_gpu *gpu)
{
	return "emulator";
}

uint64_t fa_gpu_alloc(struct fa_gpu *gpu, size_t bytes)
{
	void *at = aligned_alloc(256, (bytes + 256) / 256 * 256);

	if (!at)
		abort();
	return (uint64_t)(uintptr_t)at;
}

void fa_gpu_free(struct fa_gpu *gpu, uint64_t address)
{
	free((void *)(uintptr_t)address);
}

uint64_t fa_gpu_alloc_shared(struct fa_gpu *gpu, size_t bytes)
{
	return fa_gpu_alloc(gpu, bytes);
}

void fa_gpu_free_shared(struct fa_gpu *gpu, uint64_t address)
{
	fa_gpu_free(gpu, address);
}

/* Tests that need much memory skip. */
uint64_t fa_gpu_memory_free(struct fa_gpu *gpu)
{
	return 0;
}

void fa_gpu_upload(struct fa_gpu *gpu, uint64_t to, const void *from, size_t bytes)
{
	memcpy((void *)(uintptr_t)to, from, bytes);
}

void fa_gpu_download(struct fa_gpu *gpu, void *to, uint64_t from, size_t bytes)
{
	memcpy(to, (const void *)(uintptr_t)from, bytes);
}

void fa_gpu_copy_rows(struct fa_gpu *gpu, uint64_t to, size_t to_pitch, uint64_t from,
                      size_t from_pitch, size_t bytes, size_t rows)
{
	for (size_t i = 0; i < rows; i++)
		memcpy((char *)(uintptr_t)to + i * to_pitch,
		       (const char *)(uintptr_t)from + i * from_pitch, bytes);
}

void fa_gpu_compare(struct fa_gpu *gpu, uint64_t a, uint64_t b, size_t bytes, uint64_t ret_count)
{
	const uint32_t *x = (const uint32_t *)(uintptr_t)a, *y = (const uint32_t *)(uintptr_t)b;

	for (size_t i = 0; i < bytes / 4; i++)
		*(uint32_t *)(uintptr_t)ret_count += x[i] != y[i];
}

void *fa_gpu_stream(struct fa_gpu *gpu)
{
	return gpu;
}

void fa_gpu_poison(struct fa_gpu *gpu, uint64_t address, size_t bytes)
{
	memset((void *)(uintptr_t)address, 0xff, bytes);
}

void fa_gpu_sync(struct fa_gpu *gpu)
{
}

/* Returns whether all elements of K or V are below @most. */
static bool is_below(const struct fa_cuda_launch *launch, const struct fa_cuda_map *map,
                     double most)
{
	for (uint64_t b = 0; b < map->dims[3]; b++)
		for (uint64_t h = 0; h < map->dims[2]; h++)
			for (uint64_t t = 0; t < map->dims[1]; t++) {
				const char *const row = (const char *)map->data +
				                        t * map->strides[0] + h * map->strides[1] +
				                        b * map->strides[2];

				for (uint64_t d = 0; d < map->dims[0]; d++)
					if (!(fabs(reference_get(launch->kernel->dtype, row,
					                         (int64_t)d)) < most))
						return false;
			}
	return true;
}

/* Checks that rows were recomputed only if an input is infinite or NaN, if logits are unusually
 * large, as for short vectors, or if V is, in kernels with modified logits. Otherwise recomputation
 * hides a fault. */
static void check_recomputed(const struct fa_cuda_launch *launch)
{
	const float peak = launch->args.head_dim < 64 ? 4.5f : 8.5f;
	const float usual = peak * 1.44269504f / sqrtf((float)launch->args.head_dim);
	const bool modifies = launch->kernel->kind == FA_CUDA_RICH ||
	                      launch->kernel->kind == FA_CUDA_CAP;

	if (!fa_emulated_take_recomputed() || launch->args.scale_log2 > usual ||
	    !is_below(launch, &launch->maps[FA_CUDA_MAP_K], INFINITY) ||
	    !is_below(launch, &launch->maps[FA_CUDA_MAP_V], modifies ? 0x1p100 : INFINITY))
		return;
	fprintf(stderr, "%s: rows without an infinity or NaN were computed again\n",
	        launch->kernel->symbol);
	abort();
}

static void poison(const void *userdata)
{
	const struct fa_cuda_launch *launch = userdata;
	const struct fa_cuda_attention *a = &launch->args;
	const uint64_t *dims = launch->maps[FA_CUDA_MAP_Q].dims;

	for (uint64_t b = 0; b < dims[3]; b++)
		for (uint64_t h = 0; h < dims[2]; h++)
			for (uint64_t t = 0; t < dims[1]; t++) {
				memset((char *)a->out.data + (int64_t)b * a->out.stride_batch +
				               (int64_t)t * a->out.stride_token +
				               (int64_t)h * a->out.stride_head,
				       0xff, (size_t)a->head_dim_v * 2);
				if (a->lse)
					memset(&a->lse[(int64_t)b * a->lse_stride_batch +
					               (int64_t)t * a->lse_stride_token +
					               (int64_t)h * a->lse_stride_head],
					       0xff, 4);
			}
}

struct emulated {
	union {
		struct fa_cuda_attention attention;
		struct fa_cuda_packed_attention packed;
		struct fa_cuda_masked_attention masked;
	};
	struct fa_cuda_maps maps;
	struct fa_emulated_mapped args;
	struct fa_emulated_yielding yielding;
};

static uint64_t epoch;

/* Returns memory that launches keep, whose counters were zero at first. */
static uint64_t workspace(size_t bytes)
{
	static size_t size;
	static void *at;

	if (bytes > size) {
		free(at);
		at = calloc(1, bytes);
		size = bytes;
	}
	if (!at)
		abort();
	return (uint64_t)(uintptr_t)at;
}

/* Gives a ragged launch its list, in memory that is kept until the next one. */
static void set_list(const struct fa_cuda_launch *launch, struct fa_cuda_attention *args)
{
	const size_t list_bytes = launch->list_units * sizeof(struct fa_cuda_ragged_unit);
	const size_t batch = (size_t)(args->triples / (args->heads * args->slices));
	const size_t lengths_bytes = (batch + 1) * sizeof(uint32_t);
	static char *data;

	free(data);
	data = malloc(list_bytes + lengths_bytes);
	if (!data)
		abort();
	if (!fa_cuda_ragged_list(launch, 50 << 20, (struct fa_cuda_ragged_unit *)data))
		abort();
	memcpy(data + list_bytes, args->cu_seqlens_q, lengths_bytes);
	args->list_units = launch->list_units;
	args->cu_seqlens_q = (const uint32_t *)(data + list_bytes);
}

/* Gives a ragged launch with packed rows its list, in memory that is kept until the next one. */
static void set_packed_list(struct fa_cuda_launch *launch)
{
	static char *data;

	free(data);
	data = malloc(fa_cuda_packed_list_bytes(launch));
	if (!data)
		abort();
	fa_cuda_packed_list(launch, data, (uint64_t)(uintptr_t)data);
}

static void prepare(const struct fa_cuda_launch *launch, struct emulated *ret_emulated)
{
	struct fa_cuda_launch with = *launch;
	static const struct fa_emulated_kernel *const special[] = {
		[FA_ATTENTION_F16] = fa_emulated_forward_f16,
		[FA_ATTENTION_BF16] = fa_emulated_forward_bf16,
	};
	static const struct fa_emulated_kernel *const portable[] = {
		[FA_ATTENTION_F32] = fa_emulated_forward_wide_f32,
		[FA_ATTENTION_F16] = fa_emulated_forward_wide_f16,
		[FA_ATTENTION_BF16] = fa_emulated_forward_wide_bf16,
	};
	static const struct fa_emulated_kernel *const with_masks[] = {
		[FA_ATTENTION_F16] = fa_emulated_masked_f16,
		[FA_ATTENTION_BF16] = fa_emulated_masked_bf16,
	};
	const struct fa_emulated_kernel *kernel = portable[launch->kernel->dtype];

	if (launch->kernel->kind == FA_CUDA_MASKED)
		kernel = with_masks[launch->kernel->dtype];
	else if (fa_cuda_kernel_is_special(launch->kernel))
		kernel = special[launch->kernel->dtype];

	while (kernel->symbol && strcmp(kernel->symbol, launch->kernel->symbol) != 0)
		kernel++;
	if (!kernel->symbol) {
		fprintf(stderr, "%s does not run on the emulator\n", launch->kernel->symbol);
		abort();
	}
	if (fa_cuda_packed_list_bytes(launch) > 0)
		set_packed_list(&with);
	if (launch->workspace_bytes > 0)
		fa_cuda_packed_set(&with, workspace(launch->workspace_bytes), ++epoch);
	if (fa_cuda_kernel_is_packed(launch->kernel)) {
		ret_emulated->packed = with.packed;
	} else if (launch->kernel->kind == FA_CUDA_MASKED) {
		ret_emulated->masked = launch->masked;
	} else {
		ret_emulated->attention = launch->args;
		if (launch->list_units > 0)
			set_list(launch, &ret_emulated->attention);
	}
	memset(&ret_emulated->maps, 0, sizeof(ret_emulated->maps));
	for (uint32_t i = 0; i < launch->n_maps; i++)
		ret_emulated->maps.maps[i].words[0] = (uint64_t)(uintptr_t)&launch->maps[i];
	ret_emulated->args = (struct fa_emulated_mapped){ &ret_emulated->attention,
		                                          &ret_emulated->maps };
	ret_emulated->yielding = (struct fa_emulated_yielding){
		.symbol = kernel->symbol,
		.grid = launch->grid,
		.threads = (uint32_t)launch->kernel->threads,
		.shared_bytes = (uint32_t)launch->kernel->shared_bytes,
		.state_bytes = (uint32_t)launch->kernel->state_bytes,
		.run = kernel->run,
		.args = &ret_emulated->args,
		.attention = &ret_emulated->attention,
		.q = &launch->maps[FA_CUDA_MAP_Q],
	};
}

void fa_gpu_launch(struct fa_gpu *gpu, const struct fa_cuda_launch *launch, void *stream)
{
	struct emulated emulated;

	prepare(launch, &emulated);
	fa_emulated_completion_request(&emulated.attention.done, launch->grid, 0);
	fa_emulated_launch(launch->grid, 1, emulated.yielding.threads,
	                   emulated.yielding.shared_bytes, emulated.yielding.run, &emulated.args);
	fa_emulated_completion_check();
	if (launch->workspace_bytes > 0)
		emulated.packed.epoch = ++epoch;
	fa_emulated_yield(&emulated.yielding, poison, launch);
	check_recomputed(launch);
}

int fa_gpu_launch_yielding(struct fa_gpu *gpu, const struct fa_cuda_launch *launch,
                           uint64_t most_ns, uint64_t *random)
{
	struct emulated emulated;
	int stops;

	if (!launch->kernel->state_bytes || launch->grid > FA_CUDA_PREEMPT_RECORDS)
		return -1;
	prepare(launch, &emulated);
	stops = (int)fa_emulated_yield_run(&emulated.yielding);
	check_recomputed(launch);
	return stops;
}

int fa_gpu_attention(struct fa_gpu *gpu, const struct fa_attention_params *params, void *stream)
{
	struct fa_cuda_launch launch;
	char text[256];
	const int r = fa_cuda_attention_plan(&gpu->chip, params, text, sizeof(text), &launch);

	if (r == 0)
		fa_gpu_launch(gpu, &launch, stream);
	else
		fprintf(stderr, "%s\n", text);
	return r;
}

void fa_gpu_reference(struct fa_gpu *gpu, const struct fa_attention_params *params,
                      uint64_t ret_out, uint64_t ret_lse, bool naive)
{
	double *out = (double *)(uintptr_t)ret_out, *lse = (double *)(uintptr_t)ret_lse;

	for (int32_t b = 0; b < params->batch; b++)
		for (int64_t i = 0; i < reference_n_q(params, b); i++)
			for (int32_t h = 0; h < params->heads; h++) {
				const int64_t first = params->cu_seqlens_q
				                              ? (int64_t)params->cu_seqlens_q[b]
				                              : b * params->seqlen_q;
				const int64_t row = (first + i) * params->heads + h;

				reference_row(params, b, i, h, naive,
				              out + row * params->head_dim_v, lse + row);
			}
}

void fa_gpu_poison_shared(struct fa_gpu *gpu)
{
}

void fa_gpu_spin(struct fa_gpu *gpu, uint64_t ns, void *stream)
{
}

void fa_gpu_flush(struct fa_gpu *gpu, void *stream)
{
}

void fa_gpu_time_start(struct fa_gpu *gpu, void *stream)
{
}

double fa_gpu_time_stop_ns(struct fa_gpu *gpu, void *stream)
{
	return 0;
}
