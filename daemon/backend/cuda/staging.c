/*
 * Copies K and V from host memory to the GPU, as kernels read them once for each block of query
 * rows and query head. Q and the output are accessed once and stay, as do K and V if the staging
 * area is full.
 */
#include "daemon/backend/cuda/staging.h"

#include "daemon/backend/cuda/memory.h"

/* A copy's overhead, counted as bytes over PCIe. */
#define STAGE_COST_BYTES (128ull << 10)
/* Copies include gaps between rows and heads. */
#define STAGE_SPAN_FACTOR 2
/* Smaller copies let those of several streams interleave. */
#define COPY_BYTES (16ull << 20)
#define ALIGN_BYTES 256ull

/* A range of K, V or both, in pinned memory. */
struct span {
	const struct fa_cuda_memory *memory; /* NULL: nothing to stage */
	uint64_t begin, end;                 /* GPU addresses */
	uint64_t data_bytes;                 /* of the tensors */
	uint64_t staged_at;
};

bool fa_cuda_staging_pays(uint64_t span_bytes, uint64_t data_bytes, uint64_t n_reads)
{
	uint64_t read_bytes;

	if (span_bytes / STAGE_SPAN_FACTOR > data_bytes)
		return false;
	return __builtin_mul_overflow(data_bytes, n_reads, &read_bytes) ||
	       read_bytes > span_bytes + STAGE_COST_BYTES;
}

uint64_t fa_cuda_staging_reads(const struct fa_cuda_launch *launch)
{
	const struct fa_cuda_attention *args = &launch->args;
	const uint64_t rows = (uint64_t)launch->kernel->rows;
	const bool left = args->window_left < FA_CUDA_WINDOW_MAX;
	const bool right = args->window_right < FA_CUDA_WINDOW_MAX;
	uint64_t blocks = (uint64_t)args->blocks_m, in_window;

	if (left && right) {
		in_window = ((uint64_t)args->window_left + (uint64_t)args->window_right) / rows + 2;
		blocks = in_window < blocks ? in_window : blocks;
	} else if (left || right) {
		blocks = (blocks + 1) / 2;
	}
	return blocks * (uint64_t)args->group * (uint64_t)args->slices;
}

static struct span span_of(const struct fa_device_work *work, enum fa_device_tensor index)
{
	const struct fa_attention_params *params = work->params;
	const struct fa_attention_tensor *tensor = index == FA_DEVICE_K ? &params->k : &params->v;
	const int64_t dim = index == FA_DEVICE_K ? params->head_dim : params->head_dim_v;
	const int64_t element = params->dtype == FA_ATTENTION_F32 ? 4 : 2;
	const bool ragged = params->cu_seqlens_k;
	const int64_t tokens = ragged ? params->cu_seqlens_k[params->batch] : params->seqlen_k;
	const int64_t batch = ragged ? 1 : params->batch, heads = params->kv_heads;
	const struct fa_device_memory *memory = work->memories[index];
	struct span span = { NULL };
	int64_t elements;

	if (!memory || !tokens ||
	    ((struct fa_cuda_memory *)memory->backend)->kind != FA_CUDA_MEMORY_HOST)
		return span;
	elements = (batch - 1) * tensor->stride_batch + (tokens - 1) * tensor->stride_token +
	           (heads - 1) * tensor->stride_head + dim;
	span.memory = memory->backend;
	span.begin = (uint64_t)tensor->data;
	span.end = span.begin + (uint64_t)(elements * element);
	span.data_bytes = (uint64_t)(batch * tokens * heads * dim * element);
	return span;
}

static void merge(struct span *k, struct span *v)
{
	if (!k->memory || k->memory != v->memory || k->end <= v->begin || v->end <= k->begin)
		return;
	k->begin = k->begin < v->begin ? k->begin : v->begin;
	k->end = k->end > v->end ? k->end : v->end;
	k->data_bytes += v->data_bytes;
	v->memory = NULL;
}

static bool should_stage(const struct fa_device *device, const struct span *span, uint64_t n_reads)
{
	if (!span->memory || device->tuning.staging == FA_CUDA_STAGE_NEVER)
		return false;
	return device->tuning.staging == FA_CUDA_STAGE_ALWAYS ||
	       fa_cuda_staging_pays(span->end - span->begin, span->data_bytes, n_reads);
}

/* Leaves room for rows to keep their alignment up to 256 bytes. */
static uint64_t staged_bytes(const struct span *span)
{
	return (span->begin % ALIGN_BYTES + span->end - span->begin + ALIGN_BYTES - 1) &
	       ~(ALIGN_BYTES - 1);
}

static bool allocate(struct fa_device *device, uint64_t bytes, struct fa_cuda_range *range)
{
	struct fa_list *pos, *head = &device->staging.ranges;
	uint64_t begin = 0;

	fa_list_for_each(pos, head) {
		const struct fa_cuda_range *next = fa_container_of(pos, struct fa_cuda_range, link);

		if (next->begin - begin >= bytes)
			break;
		begin = next->end;
	}
	if (pos == head && (begin > device->staging.bytes || device->staging.bytes - begin < bytes))
		return false;
	range->begin = begin;
	range->end = begin + bytes;
	fa_list_append(pos, &range->link);
	return true;
}

void fa_cuda_staging_free(struct fa_cuda_range *range)
{
	fa_list_remove(&range->link);
	range->begin = range->end = 0;
}

/* The driver refuses copies across borders of pinned parts. */
static CUresult copy(struct fa_device *device, CUstream stream, const struct span *span)
{
	const struct fa_cuda_memory *memory = span->memory;
	const uint64_t part = memory->part_bytes < COPY_BYTES ? memory->part_bytes : COPY_BYTES;
	uint64_t at = span->begin - memory->at;
	const uint64_t end = span->end - memory->at;
	CUresult result = CUDA_SUCCESS;
	uint64_t next;

	for (; at < end && result == CUDA_SUCCESS; at = next) {
		next = at + part - at % part;
		if (next > end)
			next = end;
		result = device->driver.cuMemcpyHtoDAsync(span->staged_at +
		                                                  (at + memory->at - span->begin),
		                                          memory->host + at, next - at, stream);
	}
	return result;
}

static void redirect(const void **data, const struct span *span)
{
	const uint64_t at = (uint64_t)*data;

	if (at >= span->begin && at < span->end)
		*data = (const void *)(span->staged_at + (at - span->begin));
}

CUresult fa_cuda_stage(struct fa_device *device, CUstream stream, const struct fa_device_work *work,
                       struct fa_cuda_launch *launch, struct fa_cuda_range *range)
{
	struct span spans[2] = { span_of(work, FA_DEVICE_K), span_of(work, FA_DEVICE_V) };
	const uint64_t n_reads = fa_cuda_staging_reads(launch);
	CUresult result = CUDA_SUCCESS;
	uint64_t bytes = 0;

	merge(&spans[0], &spans[1]);
	for (int i = 0; i < 2; ++i) {
		if (should_stage(device, &spans[i], n_reads))
			bytes += staged_bytes(&spans[i]);
		else
			spans[i].memory = NULL;
	}
	if (!bytes || !allocate(device, bytes, range))
		return CUDA_SUCCESS;
	bytes = 0;
	for (int i = 0; i < 2 && result == CUDA_SUCCESS; ++i) {
		if (!spans[i].memory)
			continue;
		spans[i].staged_at = device->staging.at + range->begin + bytes +
		                     spans[i].begin % ALIGN_BYTES;
		bytes += staged_bytes(&spans[i]);
		result = copy(device, stream, &spans[i]);
	}
	if (result != CUDA_SUCCESS)
		return result;
	for (int i = 0; i < 2; ++i) {
		if (!spans[i].memory)
			continue;
		redirect(&launch->args.k.data, &spans[i]);
		redirect(&launch->args.v.data, &spans[i]);
		redirect(&launch->maps[FA_CUDA_MAP_K].data, &spans[i]);
		redirect(&launch->maps[FA_CUDA_MAP_V].data, &spans[i]);
	}
	return CUDA_SUCCESS;
}
