/*
 * Copies a paged work's span and tables, then launches its requests in order. Each stream copies a
 * step's tables once; kernels of a small first work read them in host memory.
 */
#include "daemon/backend/cuda/paged_launch.h"

#include "daemon/backend/cuda/context.h"
#include "daemon/backend/cuda/gate.h"
#include "daemon/backend/cuda/graph_cache.h"
#include "daemon/backend/cuda/preempt.h"
#include "daemon/backend/cuda/scratch.h"
#include "daemon/backend/cuda/stream.h"

static void redirect(const uint32_t **array, const struct fa_device_tables *tables, CUdeviceptr to)
{
	const CUdeviceptr at = (CUdeviceptr)*array;

	if (at >= tables->backend[0] && at - tables->backend[0] < tables->bytes)
		*array = (const uint32_t *)(at - tables->backend[0] + to);
}

static void read_tables_in_place(struct fa_device *device, struct fa_device_work *work)
{
	const struct fa_device_tables *tables = work->tables;
	const CUdeviceptr to = tables->backend[0] - device->heap.at + device->heap.in_place;
	struct fa_cuda_paged_work *paged = fa_cuda_paged_work(work);

	for (uint32_t i = 0; i < work->n_paged; ++i) {
		struct fa_cuda_paged_part *part = &paged->parts[i];

		if (part->fused)
			continue;
		redirect(&part->step.table, tables, to);
		if (part->request.op == FA_PAGED_ATTEND) {
			redirect(&part->request.attention.tree, tables, to);
			redirect(&part->request.attention.positions, tables, to);
		} else {
			redirect(&part->request.append.rotary.positions, tables, to);
		}
	}
}

/* Skips what the stream's earlier works have copied. */
static CUresult upload_tables(struct fa_device *device, struct fa_cuda_stream *stream,
                              struct fa_device_work *work)
{
	struct fa_cuda_tables *tables = fa_cuda_paged_tables(work);
	struct fa_cuda_paged_work *paged = fa_cuda_paged_work(work);
	size_t *uploaded, begin;
	CUresult result;

	if (!tables)
		return CUDA_SUCCESS;
	uploaded = &tables->uploaded[stream - device->streams];
	if (*uploaded >= paged->tables_bytes)
		return CUDA_SUCCESS;
	if (paged->in_place && !tables->read_in_place) {
		tables->read_in_place = paged->tables_in_place = true;
		read_tables_in_place(device, work);
		return CUDA_SUCCESS;
	}
	begin = tables->span.begin + *uploaded;
	result = device->driver.cuMemcpyHtoDAsync(device->heap.at + begin,
	                                          device->heap.host + begin,
	                                          paged->tables_bytes - *uploaded, stream->stream);
	if (result == CUDA_SUCCESS)
		*uploaded = paged->tables_bytes;
	return result;
}

static CUresult upload(struct fa_device *device, struct fa_cuda_stream *stream,
                       struct fa_device_work *work)
{
	const struct fa_cuda_paged_work *paged = fa_cuda_paged_work(work);
	CUresult result;

	result = upload_tables(device, stream, work);
	if (result != CUDA_SUCCESS || paged->in_place || paged->span.end == paged->span.begin)
		return result;
	return device->driver.cuMemcpyHtoDAsync(
		device->heap.at + paged->span.begin, device->heap.host + paged->span.begin,
		paged->span.end - paged->span.begin, stream->stream);
}

/* Returns which of a part's @n launches comes as number @i. @forward_last: what may be preempted comes
 * last; codes are widened before all else. */
static int place_of(const struct fa_cuda_paged_plan *plan, int i, int n, bool forward_last)
{
	const int first = plan->wide_rows > 0;

	return forward_last && i >= first ? n - 1 - (i - first) : i;
}

static CUresult launch_part(struct fa_device *device, struct fa_cuda_stream *stream,
                            struct fa_device_work *work, struct fa_cuda_paged_part *part, bool last)
{
	const struct fa_cuda_paged_work *paged = fa_cuda_paged_work(work);
	const bool in_place = part->cached ? paged->tables_in_place : paged->in_place;
	const bool own = part->request.op == FA_PAGED_ATTEND_OWN;
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	void *q = (void *)(stream->scratch + paged->workspace_bytes);
	CUresult result = CUDA_SUCCESS;
	bool preemptible;
	int n;

	if (part->reads_q)
		part->request.attention.q.data = q;
	if (part->writes_q)
		part->request.append.q_out.data = q;
	if (part->fused)
		return CUDA_SUCCESS;
	++stream->epoch;
	n = fa_cuda_paged_launches(part->plan, &part->request,
	                           (in_place ? device->heap.in_place : device->heap.at) +
	                                   part->blob_at,
	                           stream->scratch, stream->epoch, launches);
	if (part > paged->parts && part[-1].fused)
		fa_cuda_paged_add_append(&launches[0], &part[-1].request.append);
	/* Only the work's last kernel can be preemptible. */
	preemptible = last && (part->request.op == FA_PAGED_ATTEND || own) &&
	              part->plan->forward_blocks > 0 &&
	              fa_cuda_preempt_prepare(device, stream, part->plan->forward->state_bytes,
	                                      part->plan->forward_ns);
	for (int i = 0; i < n && result == CUDA_SUCCESS; ++i) {
		struct fa_cuda_paged_launch *launch =
			&launches[place_of(part->plan, i, n, preemptible && !own)];
		const uint64_t blocks = (uint64_t)launch->grid_x * launch->grid_y;
		const CUfunction function =
			device->paged_functions[launch->kernel - fa_cuda_paged_kernels];
		const bool signals = last && i == n - 1;
		struct fa_cuda_gate gate;
		struct fa_cuda_maps maps;
		void *params[] = { &launch->args, &maps };

		result = fa_cuda_tensor_maps_encode(&device->tensor_maps, &device->driver,
		                                    launch->maps, launch->n_maps, &maps);
		if (result != CUDA_SUCCESS)
			break;
		if (preemptible && signals)
			return fa_cuda_preempt_launch(
				device, stream, work,
				&(struct fa_cuda_preempt_kernel){ function, launch->grid_x,
			                                          launch->kernel->threads,
			                                          launch->kernel->shared_bytes },
				&launch->args,
				own ? sizeof(launch->args.own) : sizeof(launch->args.attention),
				&maps);
		if (signals)
			fa_cuda_self_signal_args(stream, work, blocks, launch->parts,
			                         fa_cuda_paged_done(launch));
		if (work->gate.word)
			gate = fa_cuda_gate_of(stream, work, fa_cuda_paged_done(launch));
		result = fa_cuda_launch_kernel(
			device, stream,
			&(struct fa_cuda_kernel_launch){ function, launch->grid_x, launch->grid_y,
		                                         (unsigned int)launch->kernel->threads,
		                                         (unsigned int)launch->kernel->shared_bytes,
		                                         launch->kernel->awaits &&
		                                                 (stream->n_works > 0 || i > 0) },
			params, work->gate.word ? &gate : NULL);
		if (signals && result == CUDA_SUCCESS)
			fa_cuda_self_signal_launched(stream, blocks, launch->parts);
	}
	return result;
}

bool fa_cuda_paged_can_wait(const struct fa_device_work *work)
{
	const struct fa_cuda_paged_work *paged = fa_cuda_paged_work(work);
	const uint32_t last = work->n_paged - 1;
	const struct fa_cuda_paged_plan *plan = paged->parts[last].plan;

	for (uint32_t i = 0; i < last; ++i)
		if (!paged->parts[i].fused)
			return false;
	return paged->parts[last].request.op == FA_PAGED_ATTEND && !plan->forward_blocks &&
	       plan->decode_grid > 0 && plan->decode_grid <= FA_CUDA_SELF_SIGNAL_BLOCKS;
}

int fa_cuda_paged_enqueue(struct fa_device *device, struct fa_cuda_stream *stream,
                          struct fa_device_work *work)
{
	const char *doing = "the GPU's context cannot be used";
	struct fa_cuda_paged_work *paged = fa_cuda_paged_work(work);
	const size_t bytes = paged->workspace_bytes + paged->q_bytes;
	CUresult result;

	result = fa_cuda_enter(device);
	if (!result) {
		doing = "no memory for what attention over pages needs";
		result = fa_cuda_scratch_grow(device, stream, bytes);
	}
	if (!result) {
		doing = "the request's tables cannot be copied to the GPU";
		result = upload(device, stream, work);
	}
	for (uint32_t i = 0; i < work->n_paged && !result; ++i) {
		doing = "a kernel over pages cannot be launched";
		result = launch_part(device, stream, work, &paged->parts[i],
		                     i == work->n_paged - 1);
	}
	return result ? fa_cuda_fail(device, stream->stream, &work->error, result, doing) : 0;
}
