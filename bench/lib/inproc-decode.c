#include "bench/lib/inproc-decode.h"

#include "common/cleanup.h"
#include "kernels/cuda/paged-images.h"
#include "kernels/cuda/paged-plan.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENT_BYTES 2

/* A request that is planned once and launched for any layer. */
struct planned {
	struct fa_paged_request request;
	struct fa_cuda_paged_plan plan;
	CUdeviceptr blob;
};

struct fa_inproc_decode {
	struct fa_inproc_gpu *gpu;
	CUmodule modules[FA_CUDA_PAGED_IMAGES];
	CUfunction *functions; /* loaded on first use */
	struct fa_paged_cache cache;
	/* before: one sequence's earlier tokens; step: all new tokens */
	struct fa_paged_step before, step;
	uint32_t cu_before[2], length_before[1], zero[1];
	/* [batch + 1] */
	uint32_t *cu_new, *lengths, *lengths_before, *table_start;
	uint32_t *host_table; /* [batch * pages] */
	uint32_t pages;       /* pages per sequence */
	CUdeviceptr pool, table, workspace;
	uint32_t epoch;
	struct planned append, attend;
};

static CUresult load(struct fa_inproc_decode *decode, const struct fa_cuda_paged_kernel *kernel)
{
	const struct fa_cudriver *driver = &decode->gpu->driver;
	CUfunction *function = &decode->functions[kernel - fa_cuda_paged_kernels];
	CUmodule *module = &decode->modules[kernel->image];
	CUresult result = CUDA_SUCCESS;

	if (*function)
		return CUDA_SUCCESS;
	if (!*module)
		result = driver->cuModuleLoadData(module, fa_cuda_paged_images[kernel->image].data);
	if (result == CUDA_SUCCESS)
		result = driver->cuModuleGetFunction(function, *module, kernel->symbol);
	if (result == CUDA_SUCCESS)
		result = driver->cuFuncSetAttribute(*function,
		                                    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
		                                    kernel->shared_bytes);
	return result;
}

static int plan(struct fa_inproc_decode *decode, struct planned *planned, struct fa_error *error)
{
	const struct fa_cudriver *driver = &decode->gpu->driver;
	size_t bytes = (fa_cuda_paged_blob_bytes(&planned->request) + 255) / 256 * 256 + 256;
	void *blob = aligned_alloc(256, bytes);
	CUresult result = CUDA_SUCCESS;
	int r;

	if (!blob)
		return fa_fail(error, -ENOMEM, "no memory for a plan");
	r = fa_cuda_paged_plan(&decode->gpu->chip, &planned->request, blob, error->text,
	                       sizeof(error->text), &planned->plan);
	if (r == 0) {
		result = driver->cuMemAlloc(&planned->blob, bytes);
		if (result == CUDA_SUCCESS && planned->plan.blob_bytes)
			result = driver->cuMemcpyHtoD(planned->blob, blob,
			                              planned->plan.blob_bytes);
		/* Only attention plans have a workspace. */
		if (result == CUDA_SUCCESS && planned->plan.workspace_bytes) {
			size_t workspace = planned->plan.workspace_bytes;

			result = driver->cuMemAlloc(&decode->workspace, workspace);
			if (result == CUDA_SUCCESS)
				result = driver->cuMemsetD8(decode->workspace, 0, workspace);
		}
		if (result != CUDA_SUCCESS)
			r = fa_cudriver_fail(driver, error, result,
			                     "planning attention over pages");
	}
	free(blob);
	return r;
}

/* Launches the plan for a layer. @append: appended by the same launch; may be NULL. */
static int launch(struct fa_inproc_decode *decode, struct planned *planned,
                  const struct fa_paged_append *append, struct fa_error *error)
{
	const struct fa_cudriver *driver = &decode->gpu->driver;
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	CUresult result = CUDA_SUCCESS;
	int n;

	n = fa_cuda_paged_launches(&planned->plan, &planned->request, planned->blob,
	                           decode->workspace, ++decode->epoch, launches);
	if (append)
		fa_cuda_paged_add_append(&launches[0], append);
	for (int i = 0; i < n && result == CUDA_SUCCESS; i++) {
		const struct fa_cuda_paged_kernel *kernel = launches[i].kernel;
		void *params[] = { &launches[i].args };

		result = load(decode, kernel);
		if (result == CUDA_SUCCESS)
			result = driver->cuLaunchKernel(
				decode->functions[kernel - fa_cuda_paged_kernels],
				launches[i].grid_x, launches[i].grid_y, 1,
				(unsigned int)kernel->threads, 1, 1,
				(unsigned int)kernel->shared_bytes, decode->gpu->stream, params,
				NULL);
	}
	return result == CUDA_SUCCESS
	               ? 0
	               : fa_cudriver_fail(driver, error, result, "launching a kernel over pages");
}

static struct fa_attention_tensor tensor(CUdeviceptr at, int32_t heads, int32_t dim)
{
	return (struct fa_attention_tensor){ .data = (void *)(uintptr_t)at,
		                             .stride_token = (int64_t)heads * dim,
		                             .stride_head = dim };
}

static int make_steps(struct fa_inproc_decode *decode, const struct fa_inproc_decode_shape *shape,
                      struct fa_error *error)
{
	const uint32_t batch = shape->batch;
	uint32_t *words = calloc(4 * ((size_t)batch + 1), sizeof(*words));

	if (!words)
		return fa_fail(error, -ENOMEM, "no memory for a step");
	decode->cu_new = words;
	decode->lengths = words + (batch + 1);
	decode->lengths_before = words + 2 * (batch + 1);
	decode->table_start = words + 3 * (batch + 1);
	for (uint32_t i = 0; i <= batch; i++) {
		decode->cu_new[i] = i;
		decode->lengths[i] = shape->length;
		decode->lengths_before[i] = shape->length - 1;
		decode->table_start[i] = i * decode->pages;
	}
	decode->step = (struct fa_paged_step){
		.batch = (int32_t)batch,
		.cu_new = decode->cu_new,
		.lengths = decode->lengths,
		.lengths_before = decode->lengths_before,
		.table = (const uint32_t *)(uintptr_t)decode->table,
		.table_start = decode->table_start,
		.table_entries = batch * decode->pages,
		.host_table = decode->host_table,
	};
	decode->length_before[0] = decode->cu_before[1] = shape->length - 1;
	decode->before = (struct fa_paged_step){
		.batch = 1,
		.cu_new = decode->cu_before,
		.lengths = decode->length_before,
		.lengths_before = decode->zero,
		.table_start = decode->zero,
		.table_entries = decode->pages,
	};
	return 0;
}

/* Makes page tables; the pages of a layer are consecutive. */
static int make_pages(struct fa_inproc_decode *decode, const struct fa_inproc_decode_shape *shape,
                      struct fa_error *error)
{
	const struct fa_cudriver *driver = &decode->gpu->driver;
	const uint32_t page_tokens = (uint32_t)shape->page_tokens;
	const uint32_t pages = (shape->length + page_tokens - 1) / page_tokens * shape->batch;
	const int64_t k_bytes = (int64_t)shape->kv_heads * shape->page_tokens * shape->dim *
	                        ELEMENT_BYTES;
	const size_t pool_bytes = (size_t)(2 * k_bytes * pages * shape->layers);
	uint32_t *table = calloc(pages, sizeof(*table));
	CUresult result;

	decode->host_table = table;
	if (!table)
		return fa_fail(error, -ENOMEM, "no memory for a table of pages");
	for (uint32_t i = 0; i < pages; i++)
		table[i] = (uint32_t)(i * (2 * k_bytes / FA_PAGED_SLOT_BYTES));
	result = driver->cuMemAlloc(&decode->pool, pool_bytes);
	if (result == CUDA_SUCCESS)
		result = driver->cuMemsetD8(decode->pool, 0, pool_bytes);
	if (result == CUDA_SUCCESS)
		result = driver->cuMemAlloc(&decode->table, pages * sizeof(*table));
	if (result == CUDA_SUCCESS)
		result = driver->cuMemcpyHtoD(decode->table, table, pages * sizeof(*table));
	if (result != CUDA_SUCCESS)
		return fa_cudriver_fail(driver, error, result, "making pages");
	decode->pages = pages / shape->batch;
	decode->cache = (struct fa_paged_cache){
		.pool = (void *)(uintptr_t)decode->pool,
		.dtype = FA_ATTENTION_BF16,
		.layers = shape->layers,
		.kv_heads = shape->kv_heads,
		.head_dim = shape->dim,
		.head_dim_v = shape->dim,
		.page_tokens = shape->page_tokens,
		.layer_stride = 2 * k_bytes * pages,
		.v_offset = k_bytes,
	};
	return make_steps(decode, shape, error);
}

/* Appends sequence @i's earlier tokens in all layers. */
static int fill(struct fa_inproc_decode *decode, uint32_t i,
                const struct fa_inproc_decode_tensors *tensors, struct fa_error *error)
{
	const struct fa_paged_cache *cache = &decode->cache;
	struct planned planned = {
		.request = { .op = FA_PAGED_APPEND,
		             .append = { .cache = cache,
		                         .step = &decode->before,
		                         .k = tensor(tensors->k_before, cache->kv_heads,
		                                     cache->head_dim),
		                         .v = tensor(tensors->v_before, cache->kv_heads,
		                                     cache->head_dim) } }
	};
	int r;

	decode->before.table = decode->step.table + (size_t)i * decode->pages;
	decode->before.host_table = decode->host_table + (size_t)i * decode->pages;
	r = plan(decode, &planned, error);
	for (int32_t layer = 0; layer < cache->layers && r == 0; layer++) {
		planned.request.append.layer = layer;
		r = launch(decode, &planned, NULL, error);
	}
	if (decode->gpu->driver.cuCtxSynchronize() != CUDA_SUCCESS && r == 0)
		r = fa_fail(error, -EIO, "the GPU fails");
	if (planned.blob)
		(void)decode->gpu->driver.cuMemFree(planned.blob);
	return r;
}

int fa_inproc_decode_new(struct fa_inproc_gpu *gpu, const struct fa_inproc_decode_shape *shape,
                         const struct fa_inproc_decode_tensors *tensors, struct fa_error *error,
                         struct fa_inproc_decode **ret_decode)
{
	struct fa_inproc_decode *decode;
	int r;

	decode = calloc(1, sizeof(*decode));
	if (!decode)
		return fa_fail(error, -ENOMEM, "no memory");
	decode->gpu = gpu;
	decode->functions = calloc(fa_cuda_paged_kernels_count, sizeof(*decode->functions));
	r = decode->functions ? make_pages(decode, shape, error)
	                      : fa_fail(error, -ENOMEM, "no memory");
	for (uint32_t i = 0; i < shape->batch && r == 0; i++)
		r = fill(decode, i, tensors, error);
	decode->append.request = (struct fa_paged_request){
		.op = FA_PAGED_APPEND,
		.append = { .cache = &decode->cache,
		            .step = &decode->step,
		            .k = tensor(tensors->k, shape->kv_heads, shape->dim),
		            .v = tensor(tensors->v, shape->kv_heads, shape->dim) },
	};
	decode->attend.request = (struct fa_paged_request){
		.op = FA_PAGED_ATTEND,
		.attention = { .cache = &decode->cache,
		               .step = &decode->step,
		               .heads = shape->heads,
		               .q = tensor(tensors->q, shape->heads, shape->dim),
		               .out = tensor(tensors->out, shape->heads, shape->dim),
		               .scale = 1 / sqrtf((float)shape->dim),
		               .causal = true,
		               .window_left = -1,
		               .window_right = -1 },
	};
	if (r == 0)
		r = plan(decode, &decode->append, error);
	if (r == 0)
		r = plan(decode, &decode->attend, error);
	if (r < 0) {
		fa_inproc_decode_free(decode);
		return r;
	}
	*ret_decode = decode;
	return 0;
}

struct fa_inproc_decode *fa_inproc_decode_free(struct fa_inproc_decode *decode)
{
	const struct fa_cudriver *driver;

	if (!decode)
		return NULL;
	driver = &decode->gpu->driver;
	(void)driver->cuCtxSynchronize();
	for (int i = 0; i < FA_CUDA_PAGED_IMAGES; i++)
		if (decode->modules[i])
			(void)driver->cuModuleUnload(decode->modules[i]);
	const CUdeviceptr memory[] = { decode->pool, decode->table, decode->workspace,
		                       decode->append.blob, decode->attend.blob };

	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
		if (memory[i])
			(void)driver->cuMemFree(memory[i]);
	free(decode->host_table);
	free(decode->cu_new);
	free(decode->functions);
	free(decode);
	return NULL;
}

int fa_inproc_decode_launch(struct fa_inproc_decode *decode, int32_t layer, bool append,
                            struct fa_error *error)
{
	const struct fa_paged_append *joined = NULL;
	int r = 0;

	decode->append.request.append.layer = layer;
	decode->attend.request.attention.layer = layer;
	if (append &&
	    fa_cuda_paged_can_append(&decode->attend.plan, &decode->attend.request.attention,
	                             &decode->append.request.append))
		joined = &decode->append.request.append;
	if (append && !joined)
		r = launch(decode, &decode->append, NULL, error);
	return r < 0 ? r : launch(decode, &decode->attend, joined, error);
}
