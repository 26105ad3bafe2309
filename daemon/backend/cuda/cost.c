/* Runs on the engine thread; fa_cuda_cost_paged_ns() on the loop thread. */
#include "daemon/backend/cuda/cost.h"

#include "daemon/backend/cuda/memory.h"
#include "daemon/backend/cuda/paged_work.h"

#include <math.h>

#define SM_FLOPS_PER_NS 2000 /* speed with wgmma */
#define SM_FLOPS_PER_NS_PORTABLE 500
#define SM_FLOPS_PER_NS_F32 60
#define SM_BYTES_PER_NS 12
#define HOST_BYTES_PER_NS 20   /* of the bus */
#define TENSOR_BYTES_PER_NS 20 /* tensors may be in host memory */

#define NS_MAX 3e16

static unsigned int count_sms(const struct fa_device *device)
{
	return device->chip.sms > 0 ? (unsigned int)device->chip.sms : 1;
}

static double flops_ns(const struct fa_device *device, enum fa_attention_dtype dtype, bool special,
                       double flops)
{
	const double speed = dtype == FA_ATTENTION_F32 ? SM_FLOPS_PER_NS_F32
	                     : special                 ? SM_FLOPS_PER_NS
	                                               : SM_FLOPS_PER_NS_PORTABLE;

	return flops / speed / count_sms(device);
}

static double memory_ns(const struct fa_device *device, double bytes)
{
	return bytes / SM_BYTES_PER_NS / count_sms(device);
}

static double element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

/* ---- attention over tensors */

static double host_bytes(const struct fa_device_work *work, enum fa_device_tensor index,
                         double elements)
{
	const struct fa_device_memory *memory = work->memories[index];
	const struct fa_cuda_memory *cuda = memory ? memory->backend : NULL;

	return cuda && cuda->kind == FA_CUDA_MEMORY_HOST
	               ? elements * element_bytes(work->params->dtype)
	               : 0;
}

static double attention_ns(const struct fa_device *device, const struct fa_device_work *work)
{
	const struct fa_attention_params *p = work->params;
	const bool ragged = p->cu_seqlens_q && p->cu_seqlens_k;
	const double batch = p->batch, dims = (double)p->head_dim + p->head_dim_v;
	const double rows = p->heads *
	                    (ragged ? p->cu_seqlens_q[p->batch] : batch * (double)p->seqlen_q);
	const double keys = p->kv_heads *
	                    (ragged ? p->cu_seqlens_k[p->batch] : batch * (double)p->seqlen_k);
	const double bytes = host_bytes(work, FA_DEVICE_Q, rows * p->head_dim) +
	                     host_bytes(work, FA_DEVICE_K, keys * p->head_dim) +
	                     host_bytes(work, FA_DEVICE_V, keys * p->head_dim_v) +
	                     host_bytes(work, FA_DEVICE_OUT, rows * p->head_dim_v);
	const double host_ns = bytes / HOST_BYTES_PER_NS;
	const double bound_ns = host_ns + flops_ns(device, p->dtype, false,
	                                           2 * rows * (double)p->seqlen_k * dims);
	const struct fa_cuda_kernel *kernel;

	/* By the upper bound most works are short; the exact count takes a microsecond. */
	if (bound_ns < (double)device->tuning.long_ns)
		return bound_ns;
	kernel = fa_cuda_attention_kernel(&device->chip, p);
	return host_ns + flops_ns(device, p->dtype, kernel && fa_cuda_kernel_is_special(kernel),
	                          fa_attention_flops(p));
}

/* ---- paged requests */

/* Counts one layer, in the type of the computation. */
static double token_bytes(const struct fa_paged_cache *cache)
{
	return cache->kv_heads * ((double)cache->head_dim + cache->head_dim_v) *
	       element_bytes(cache->dtype);
}

/* Counts one layer, as pages store it. */
static double stored_token_bytes(const struct fa_paged_cache *cache)
{
	return cache->store == FA_PAGED_PLAIN ? token_bytes(cache)
	                                      : token_bytes(cache) / element_bytes(cache->dtype);
}

static size_t new_tokens(const struct fa_paged_step *step)
{
	return step->cu_new[step->batch];
}

static double attend_ns(const struct fa_device *device, const struct fa_paged_attention *p,
                        const struct fa_cuda_paged_plan *plan)
{
	const struct fa_paged_cache *cache = p->cache;
	const struct fa_paged_step *step = p->step;
	double flops = 0, ns = (double)plan->forward_ns;

	/* Each entry of the table may be read. */
	ns += memory_ns(device, (double)step->table_entries * cache->page_tokens *
	                                stored_token_bytes(cache));
	ns += new_tokens(step) * (double)p->heads * 2 * cache->head_dim *
	      element_bytes(cache->dtype) / TENSOR_BYTES_PER_NS;
	if (!plan->forward_blocks || plan->forward_ns)
		return ns;
	for (int32_t b = 0; b < step->batch; ++b)
		flops += (double)(step->cu_new[b + 1] - step->cu_new[b]) * step->lengths[b];
	flops *= 2 * (double)p->heads * ((double)cache->head_dim + cache->head_dim_v);
	return ns + flops_ns(device, cache->dtype, false, flops);
}

static double own_token_bytes(const struct fa_paged_own *pages)
{
	return pages->kv_heads * ((double)pages->head_dim + pages->head_dim_v) *
	       (pages->store == FA_PAGED_PLAIN ? element_bytes(pages->dtype) : 1);
}

/* Lengths are on the device: each sequence counts as the longest possible. */
static double own_attend_ns(const struct fa_device *device, const struct fa_paged_own_attention *p)
{
	const double keys = (double)p->batch * p->max_k;
	const double dims = (double)p->pages->head_dim + p->pages->head_dim_v;
	const double flops = 2 * (double)p->total_q * p->heads * p->max_k * dims;
	const double ns = memory_ns(device, keys * own_token_bytes(p->pages));

	return p->max_q > 1 ? ns + flops_ns(device, p->pages->dtype, false, flops) : ns;
}

double fa_cuda_cost_paged_ns(const struct fa_device *device, const struct fa_paged_request *request,
                             const struct fa_cuda_paged_plan *plan)
{
	const struct fa_paged_append *append = &request->append;
	const struct fa_paged_merge *merge = &request->merge;
	const struct fa_paged_own_copy *own_copy = &request->own_copy;

	switch (request->op) {
	case FA_PAGED_ATTEND:
		return attend_ns(device, &request->attention, plan);
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		return new_tokens(append->step) *
		       (token_bytes(append->cache) + 2.0 * append->heads * append->cache->head_dim *
		                                             element_bytes(append->cache->dtype)) /
		       TENSOR_BYTES_PER_NS;
	case FA_PAGED_MERGE:
		return 3.0 * (double)merge->tokens * merge->heads * merge->head_dim_v *
		       element_bytes(merge->dtype) / TENSOR_BYTES_PER_NS;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		return memory_ns(device, 2.0 * request->pages.count * request->pages.cache->layers *
		                                 request->pages.cache->page_tokens *
		                                 stored_token_bytes(request->pages.cache));
	case FA_PAGED_MOVE:
		return memory_ns(device, 2.0 * request->move.cu_moves[request->move.batch] *
		                                 request->move.cache->layers *
		                                 stored_token_bytes(request->move.cache));
	case FA_PAGED_READ_OWN:
	case FA_PAGED_WRITE_OWN:
		return memory_ns(device, (double)(own_copy->step->lengths[0] -
		                                  own_copy->step->lengths_before[0]) *
		                                 own_copy->n_layers *
		                                 (token_bytes(own_copy->cache) +
		                                  stored_token_bytes(own_copy->cache)));
	case FA_PAGED_ATTEND_OWN:
		return own_attend_ns(device, &request->own_attention);
	case FA_PAGED_APPEND_OWN:
		return memory_ns(device, 2.0 * (double)request->own_append.tokens *
		                                 own_token_bytes(request->own_append.pages));
	}
	return 0;
}

static double copies_ns(const struct fa_device *device, const struct fa_device_work *work)
{
	double ns = 0;

	for (uint32_t i = 0; i < work->n_copies; ++i) {
		const struct fa_device_copy *copy = &work->copies[i];
		const struct fa_cuda_memory *memory = copy->memory->backend;

		ns += memory->kind == FA_CUDA_MEMORY_HOST
		              ? (double)copy->bytes / HOST_BYTES_PER_NS
		              : memory_ns(device, 2.0 * (double)copy->bytes);
	}
	return ns;
}

uint64_t fa_cuda_cost_long_ns(const struct fa_device *device, const struct fa_device_work *work)
{
	const double ns = work->op == FA_DEVICE_PAGED  ? fa_cuda_paged_work(work)->ns
	                  : work->op == FA_DEVICE_COPY ? copies_ns(device, work)
	                                               : attention_ns(device, work);

	return ns >= (double)device->tuning.long_ns ? (uint64_t)fmin(ns, NS_MAX) : 0;
}
