/* Launches. Checks a launch for what a GPU would fault on, turns it back into the request that it
 * was planned from, and computes that with the CPU kernels. */
#include "tests/cuda-driver/launch.h"
#include "tests/cuda-driver/driver.h"
#include "tests/cuda-driver/emulate.h"
#include "tests/cuda-driver/gate.h"
#include "tests/cuda-driver/module.h"
#include "tests/cuda-driver/paged.h"
#include "tests/cuda-driver/run.h"
#include "tests/cuda-driver/tensor_map.h"

#include "common/clock.h"
#include "kernels/cuda/sm90/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED_NS (50 * FA_NS_PER_MS) /* how long a kernel takes that is not computed */

/* ---- from a launch back to a request */

static int64_t element_bytes(const struct fa_cuda_kernel *kernel)
{
	return kernel->dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static struct fa_attention_tensor tensor_of(const struct fa_cuda_kernel *kernel,
                                            const struct fa_cuda_tensor *tensor)
{
	const int64_t bytes = element_bytes(kernel);

	return (struct fa_attention_tensor){
		.data = (void *)tensor->data,
		.stride_batch = tensor->stride_batch / bytes,
		.stride_token = tensor->stride_token / bytes,
		.stride_head = tensor->stride_head / bytes,
	};
}

static int64_t window_of(int32_t window)
{
	return window == FA_CUDA_WINDOW_MAX ? -1 : window;
}

static void set_masks(struct fa_attention_params *params, const struct fa_cuda_mask *mask)
{
	params->blocks = (struct fa_attention_blocks){
		.rows = mask->block_rows,
		.keys = mask->block_keys,
		.offsets = mask->offsets,
		.columns = mask->columns,
		.n_columns = mask->n_columns,
		.offsets_stride_batch = mask->offsets_batch,
		.offsets_stride_head = mask->offsets_head,
		.columns_stride_batch = mask->columns_batch,
		.columns_stride_head = mask->columns_head,
	};
	params->pattern = (struct fa_attention_pattern){
		mask->pattern_tokens, mask->pattern_local, mask->pattern_stride,
		mask->pattern_step,   mask->pattern_first,
	};
	params->bits = (struct fa_attention_bits){
		.words = mask->bits,
		.row_words = mask->row_words,
		.stride_batch = mask->bits_batch,
		.stride_head = mask->bits_head,
		.stride_row = mask->bits_row,
	};
}

static struct fa_attention_params params_of(const struct fa_cuda_kernel *kernel,
                                            const struct fa_cuda_attention *args)
{
	struct fa_attention_params params = {
		.dtype = kernel->dtype,
		.batch = args->triples / args->slices / args->heads,
		.heads = args->heads,
		.kv_heads = args->heads / args->group,
		.head_dim = args->head_dim,
		.head_dim_v = args->head_dim_v,
		.seqlen_q = args->seqlen_q,
		.seqlen_k = args->seqlen_k,
		.cu_seqlens_q = args->cu_seqlens_q,
		.cu_seqlens_k = args->cu_seqlens_k,
		.q = tensor_of(kernel, &args->q),
		.k = tensor_of(kernel, &args->k),
		.v = tensor_of(kernel, &args->v),
		.out = tensor_of(kernel, &args->out),
		.lse = args->lse,
		.lse_stride_batch = args->lse_stride_batch,
		.lse_stride_head = args->lse_stride_head,
		.lse_stride_token = args->lse_stride_token,
		.scale = (float)(args->scale_log2 * M_LN2),
		.window_left = window_of(args->window_left),
		.window_right = window_of(args->window_right),
		.alibi_slopes = args->alibi_slopes,
		.sinks = args->sinks,
	};

	if (kernel->kind == FA_CUDA_MASKED)
		set_masks(&params,
		          &((const struct fa_cuda_masked_attention *)(const void *)args)->mask);
	if (args->cap_in != 0) {
		params.softcap = (float)(args->cap_out * M_LN2);
		params.scale = args->cap_in * params.softcap;
	}
	return params;
}

/* Returns whether rows of @tensor are aligned to 16 bytes. */
static bool rows_aligned(const struct fa_cuda_tensor *tensor, int64_t batch, int64_t tokens,
                         int64_t heads)
{
	return (uintptr_t)tensor->data % 16 == 0 &&
	       (batch <= 1 || tensor->stride_batch % 16 == 0) &&
	       (tokens <= 1 || tensor->stride_token % 16 == 0) &&
	       (heads <= 1 || tensor->stride_head % 16 == 0);
}

/* Returns NULL if the launch fits its row of the table, else why not. */
static const char *args_wrong(const struct fa_cuda_kernel *kernel,
                              const struct fa_cuda_attention *args, unsigned int grid)
{
	const bool adds_sinks = kernel->keys && (kernel->kind != FA_CUDA_BAND ||
	                                         FA_SM90_BAND_SINKS(kernel->dim, kernel->keys));

	if (args->seqlen_q < 0 || args->seqlen_k < 0 || args->heads <= 0 || args->group <= 0 ||
	    args->heads % args->group || args->slices <= 0 || args->section <= 0)
		return "lengths or heads";
	if (args->head_dim > kernel->dim || args->slices * kernel->dim_v < args->head_dim_v)
		return "head dims";
	if (args->blocks_m != (args->seqlen_q + kernel->rows - 1) / kernel->rows)
		return "blocks_m";
	if (args->triples % (args->slices * args->heads))
		return "triples";
	if (kernel->kind == FA_CUDA_PACKED_RAGGED) {
		const struct fa_cuda_packed_attention *packed = (const void *)args;

		if (grid != packed->n_units || !packed->units || !packed->items ||
		    !args->cu_seqlens_q ||
		    packed->pack_sets << (6 - packed->pack_shift) != args->group)
			return "the listed units";
	} else if (kernel->kind == FA_CUDA_PACKED) {
		const struct fa_cuda_packed_attention *packed = (const void *)args;

		if (grid != packed->n_units || !packed->parts ||
		    grid != packed->blocks * packed->parts * packed->kv_heads *
		                    (uint32_t)(args->triples / args->heads) ||
		    packed->pack_sets << (6 - packed->pack_shift) != args->group)
			return "the units";
		if (packed->parts > 1 &&
		    (!packed->epoch || !packed->unit_counters || !packed->unit_partials))
			return "no workspace";
	} else if (kernel->keys
	                   ? args->units_m != (args->pairs ? (args->blocks_m + 1) / 2
	                                                   : args->blocks_m) ||
	                             grid > (args->list_units ? args->list_units
	                                                      : (uint64_t)args->units_m *
	                                                                (uint64_t)args->triples)
	                   : grid != (uint64_t)args->blocks_m * (uint64_t)args->triples)
		return "the grid";
	if (!args->cu_seqlens_q != !args->cu_seqlens_k)
		return "cu_seqlens";
	if (kernel->kind == FA_CUDA_CAP
	            ? !(args->cap_out > 0) || args->alibi_slopes
	            : kernel->kind != FA_CUDA_RICH && kernel->kind != FA_CUDA_MASKED &&
	                      (args->cap_in != 0 || args->alibi_slopes ||
	                       (args->sinks && !adds_sinks) || !(args->scale_log2 > 0) ||
	                       !args->aligned))
		return "a feature that this kind of kernel does not have";
	if (kernel->kind == FA_CUDA_FULL &&
	    (args->window_left != FA_CUDA_WINDOW_MAX || args->window_right != FA_CUDA_WINDOW_MAX))
		return "a window";
	return NULL;
}

/* ---- running */

static void pin_table(struct fa_fake_pin *pin, const void *at, size_t bytes)
{
	if (at)
		pin->spans[pin->n_spans++] = (struct fa_fake_span){ (CUdeviceptr)(uintptr_t)at,
			                                            bytes, false };
}

static void pin_tensor(struct fa_fake_pin *pin, const void *at, int64_t strides[3],
                       const int64_t sizes[3], int64_t row_bytes, bool write)
{
	int64_t low = 0, high = row_bytes;

	for (int i = 0; i < 3; ++i) {
		const int64_t reach = (sizes[i] - 1) * strides[i];

		if (sizes[i] <= 0)
			return;
		if (reach < 0)
			low += reach;
		else
			high += reach;
	}
	pin->spans[pin->n_spans++] = (struct fa_fake_span){
		(CUdeviceptr)((intptr_t)at + low),
		(size_t)(high - low),
		write,
	};
}

/* Returns the number of tokens in a ragged batch; -1: the table is invalid. */
static int64_t ragged_tokens(const uint32_t *cu_seqlens, int32_t batch, int64_t longest)
{
	for (int32_t i = 0; i < batch; ++i)
		if (cu_seqlens[i + 1] < cu_seqlens[i] ||
		    cu_seqlens[i + 1] - cu_seqlens[i] > longest)
			return -1;
	return cu_seqlens[0] == 0 ? (int64_t)cu_seqlens[batch] : -1;
}

/* Sequences with rows, which packed rows list. cu_seqlens may still be invalid. */
static size_t packed_sequences(const struct fa_attention_params *params)
{
	const uint32_t *at = params->cu_seqlens_q;
	size_t n = 0;

	for (int32_t b = 0; b < params->batch; ++b)
		n += at[b + 1] > at[b];
	return n;
}

static void pin_masks(struct fa_fake_pin *pin, const struct fa_attention_params *params)
{
	const struct fa_attention_blocks *blocks = &params->blocks;
	const struct fa_attention_bits *bits = &params->bits;
	const int64_t last_batch = params->batch - 1, last_head = params->heads - 1;

	if (blocks->rows) {
		pin_table(pin, blocks->offsets,
		          (size_t)(last_batch * blocks->offsets_stride_batch +
		                   last_head * blocks->offsets_stride_head +
		                   (params->seqlen_q + blocks->rows - 1) / blocks->rows + 1) *
		                  sizeof(int32_t));
		pin_table(pin, blocks->columns,
		          (size_t)(last_batch * blocks->columns_stride_batch +
		                   last_head * blocks->columns_stride_head + blocks->n_columns) *
		                  sizeof(int32_t));
	}
	if (bits->words && bits->row_words)
		pin_table(pin, bits->words,
		          (size_t)(last_batch * bits->stride_batch + last_head * bits->stride_head +
		                   (params->seqlen_q - 1) * bits->stride_row + bits->row_words) *
		                  sizeof(uint32_t));
}

static CUresult pin_tables(struct fa_fake_pin *pin, const struct fa_attention_params *params,
                           const struct fa_cuda_kernel *kernel, const struct fa_fake_op *op)
{
	const size_t batch = (size_t)params->batch, heads = (size_t)params->heads;
	const uint32_t list_units = op->args.list_units;

	pin_table(pin, params->cu_seqlens_q, (batch + 1) * sizeof(uint32_t));
	pin_table(pin, params->cu_seqlens_k, (batch + 1) * sizeof(uint32_t));
	if (list_units > 0)
		pin_table(pin,
		          (const struct fa_cuda_ragged_unit *)params->cu_seqlens_q - list_units,
		          list_units * sizeof(struct fa_cuda_ragged_unit));
	if (kernel->kind == FA_CUDA_PACKED_RAGGED) {
		pin_table(pin, op->packed.units, op->packed.n_units * sizeof(*op->packed.units));
		pin_table(pin, op->packed.items,
		          packed_sequences(params) * sizeof(*op->packed.items));
	}
	if (kernel->kind == FA_CUDA_MASKED)
		pin_masks(pin, params);
	pin_table(pin, params->alibi_slopes, heads * sizeof(float));
	pin_table(pin, params->sinks, heads * sizeof(float));
	return fa_fake_pin(pin);
}

/* Pins the parts of the tensors that are used; the tables are pinned already. @maps may be NULL. */
static CUresult pin_tensors(struct fa_fake_pin *pin, const struct fa_cuda_kernel *kernel,
                            const struct fa_cuda_attention *args, const struct fa_cuda_maps *maps,
                            const struct fa_attention_params *params)
{
	const int64_t bytes = element_bytes(kernel);
	int64_t batch = params->batch, n_q = params->seqlen_q, n_k = params->seqlen_k;
	const struct {
		const struct fa_cuda_tensor *tensor;
		bool of_keys, write;
		int32_t heads, dim;
	} tensors[] = {
		{ &args->q, false, false, params->heads, params->head_dim },
		{ &args->k, true, false, params->kv_heads, params->head_dim },
		{ &args->v, true, false, params->kv_heads, params->head_dim_v },
		{ &args->out, false, true, params->heads, params->head_dim_v },
	};

	if (params->cu_seqlens_q) {
		n_q = ragged_tokens(params->cu_seqlens_q, params->batch, n_q);
		n_k = ragged_tokens(params->cu_seqlens_k, params->batch, n_k);
		if (n_q < 0 || n_k < 0)
			return fa_fake_misuse(CUDA_ERROR_ILLEGAL_ADDRESS,
			                      "cu_seqlens are not lengths of sequences");
		if (maps && !fa_fake_maps_fit(maps, n_q, n_k))
			return fa_fake_misuse(CUDA_ERROR_LAUNCH_FAILED,
			                      "%s: maps of other lengths than cu_seqlens",
			                      kernel->symbol);
		batch = 1;
	}
	for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); ++i) {
		const struct fa_cuda_tensor *tensor = tensors[i].tensor;
		const int64_t tokens = tensors[i].of_keys ? n_k : n_q;
		int64_t strides[3] = { tensor->stride_batch, tensor->stride_token,
			               tensor->stride_head };
		const int64_t sizes[3] = { batch, tokens, tensors[i].heads };

		if (args->aligned && !rows_aligned(tensor, batch, tokens, tensors[i].heads))
			return fa_fake_misuse(CUDA_ERROR_MISALIGNED_ADDRESS,
			                      "rows of tensor %zu are not on 16 bytes", i);
		pin_tensor(pin, tensor->data, strides, sizes, tensors[i].dim * bytes,
		           tensors[i].write);
	}
	if (params->lse) {
		int64_t strides[3] = { 4 * params->lse_stride_batch, 4 * params->lse_stride_token,
			               4 * params->lse_stride_head };
		const int64_t sizes[3] = { batch, n_q, params->heads };

		pin_tensor(pin, params->lse, strides, sizes, 4, true);
	}
	return fa_fake_pin(pin);
}

static CUresult compute(const struct fa_attention_params *params)
{
	const size_t workspace = (fa_cpu_attention_workspace_bytes(fa_fake_isa, params) + 63) / 64 *
	                         64;
	const size_t bytes = workspace + fa_cpu_attention_scratch_bytes(fa_fake_isa, params);
	const int64_t tiles = fa_cpu_attention_tiles(fa_fake_isa, params);
	struct fa_fake_thread *thread = fa_fake_thread();

	if (bytes > thread->scratch_bytes) {
		free(thread->scratch);
		thread->scratch_bytes = 0;
		thread->scratch = aligned_alloc(64, (bytes + 127) / 64 * 64);
		if (!thread->scratch)
			return CUDA_ERROR_LAUNCH_FAILED;
		thread->scratch_bytes = bytes;
	}
	fa_cpu_attention_begin(fa_fake_isa, params, thread->scratch);
	for (int64_t tile = 0; tile < tiles; ++tile)
		fa_cpu_attention_tile(fa_fake_isa, params, thread->scratch, tile,
		                      (char *)thread->scratch + workspace, NULL);
	return CUDA_SUCCESS;
}

/* Returns whether thread blocks find as many units in a ragged batch's list as there are blocks of
 * rows, all within. @blocks: of the first launch. */
static bool list_is_right(const struct fa_cuda_kernel *kernel, const struct fa_cuda_attention *args,
                          uint64_t blocks)
{
	const uint32_t heads = (uint32_t)(args->heads * args->slices),
		       rows = (uint32_t)kernel->rows;
	const struct fa_cuda_ragged_unit *list;
	uint64_t n = 0;

	if (args->list_units == 0)
		return true;
	list = (const struct fa_cuda_ragged_unit *)args->cu_seqlens_q - args->list_units;
	for (int32_t b = 0; b < args->triples / (int32_t)heads; b++)
		n += (uint64_t)((args->cu_seqlens_q[b + 1] - args->cu_seqlens_q[b] + rows - 1) /
		                rows) *
		     heads;
	for (uint64_t block = 0; block < blocks; block++)
		for (uint64_t i = block; i < args->list_units; i += blocks) {
			const uint32_t *at = args->cu_seqlens_q + list[i].triple / heads;

			if (list[i].row == FA_CUDA_RAGGED_NONE)
				break;
			if (list[i].triple >= (uint32_t)args->triples || list[i].row % rows ||
			    list[i].row >= at[1] - at[0])
				return false;
			n--;
		}
	return n == 0;
}

/* Tiles of keys that the rows of a listed unit's block see, of all its parts. */
static uint32_t block_tiles(const struct fa_cuda_kernel *kernel,
                            const struct fa_cuda_packed_attention *packed,
                            const struct fa_cuda_paged_unit *unit)
{
	const struct fa_cuda_paged_item *item = &packed->items[unit->item];
	const struct fa_cuda_attention *args = &packed->attention;
	const uint32_t tokens = 1u << packed->pack_shift, groups = (uint32_t)kernel->rows / 64;
	const uint32_t set = unit->parts_set >> FA_CUDA_PAGED_UNIT_SET_SHIFT;
	const uint32_t more = (set + groups - 1) / (uint32_t)packed->pack_sets + 1;
	const int64_t diagonal = (int64_t)item->n_k - item->n_q;
	int64_t end_row = (int64_t)unit->token + more * tokens, begin, end;

	end_row = end_row < item->n_q ? end_row : item->n_q;
	begin = unit->token + diagonal - args->window_left;
	end = end_row + diagonal + args->window_right;
	begin = begin > 0 ? begin : 0;
	end = end < item->n_k ? end : item->n_k;
	return (uint32_t)((end - 1) / kernel->keys - begin / kernel->keys + 1);
}

/* Returns whether the list's units have every block of packed rows once, with all tiles of keys. */
static bool packed_list_is_right(const struct fa_cuda_kernel *kernel,
                                 const struct fa_cuda_packed_attention *packed)
{
	const struct fa_cuda_attention *args = &packed->attention;
	const uint32_t tokens = 1u << packed->pack_shift, groups = (uint32_t)kernel->rows / 64;
	const uint32_t kv_heads = (uint32_t)(args->heads / args->group);
	uint64_t blocks = 0, tiles = 0;
	uint32_t n_items = 0, n_found = 0;

	for (int32_t b = 0; b < args->triples / args->heads; b++)
		n_items += args->cu_seqlens_q[b + 1] > args->cu_seqlens_q[b];
	/* Items are in another order than sequences. */
	for (int32_t b = 0; b < args->triples / args->heads; b++) {
		const uint32_t *q = args->cu_seqlens_q + b, *k = args->cu_seqlens_k + b;
		const uint32_t n_q = q[1] - q[0];

		for (uint32_t i = 0; i < n_items && n_q > 0; i++) {
			const struct fa_cuda_paged_item *item = &packed->items[i];

			n_found += item->first_q == q[0] && item->n_q == n_q &&
			           item->table_start == k[0] && item->n_k == k[1] - k[0] &&
			           item->n_k >= n_q && !item->first;
		}
		blocks += ((n_q + tokens - 1) / tokens * (uint32_t)packed->pack_sets + groups - 1) /
		          groups * kv_heads;
	}
	if (n_found != n_items)
		return false;
	for (uint32_t i = 0; i < packed->n_units; i++) {
		const struct fa_cuda_paged_unit *unit = &packed->units[i];
		const uint32_t parts = unit->parts_set / FA_CUDA_PAGED_UNIT_PARTS %
		                       FA_CUDA_PAGED_UNIT_PARTS;

		if (unit->item >= n_items || unit->head >= (uint32_t)args->heads ||
		    unit->token >= packed->items[unit->item].n_q || !unit->count || !parts ||
		    unit->last >= (packed->items[unit->item].n_k + kernel->keys - 1) /
		                          (uint32_t)kernel->keys ||
		    (parts > 1 && (!packed->unit_partials || !packed->epoch)))
			return false;
		tiles -= unit->count;
		if (unit->parts_set % FA_CUDA_PAGED_UNIT_PARTS == 0) {
			tiles += block_tiles(kernel, packed, unit);
			blocks--;
		}
	}
	return blocks == 0 && tiles == 0;
}

static CUresult launch_run(struct fa_fake_op *op, struct fa_fake_context *context)
{
	const struct fa_cuda_kernel *kernel = op->object;
	const struct fa_attention_params params = params_of(kernel, &op->args);
	struct fa_fake_pin tables = { .context = context }, tensors = { .context = context };
	const uint64_t ns = atomic_load(&fa_fake.page->kernel_us) * FA_NS_PER_US;
	bool preempted = false;
	CUresult result;
	char text[256];

	result = fa_fake_enter_kernel();
	if (result != CUDA_SUCCESS) {
		fa_fake_run_until(context, fa_now_ns() + ns);
		return result;
	}
	result = pin_tables(&tables, &params, kernel, op);
	if (result != CUDA_SUCCESS)
		return result;
	if (kernel->kind == FA_CUDA_PACKED_RAGGED
	            ? !packed_list_is_right(kernel, &op->packed)
	            : !list_is_right(kernel, &op->args,
	                             op->args.preempt.resumed ? op->args.preempt.blocks
	                                                      : op->blocks))
		result = fa_fake_misuse(CUDA_ERROR_LAUNCH_FAILED,
		                        "%s: a list with other blocks of rows", kernel->symbol);
	else if (fa_attention_check(&params, text, sizeof(text)) < 0)
		result = fa_fake_misuse(CUDA_ERROR_LAUNCH_FAILED, "%s: %s", kernel->symbol, text);
	else
		result = pin_tensors(&tensors, kernel, &op->args, op->staged, &params);
	if (result == CUDA_SUCCESS) {
		const bool skipped = fa_fake.flops_max > 0 &&
		                     fa_attention_flops(&params) > fa_fake.flops_max;

		result = fa_fake_run_preemptible(context, ns + (skipped ? SKIPPED_NS : 0),
		                                 &op->args, op->blocks, &preempted);
		if (result == CUDA_SUCCESS && !preempted && !skipped)
			result = compute(&params);
		fa_fake_unpin(&tensors);
	}
	fa_fake_unpin(&tables);
	if (result == CUDA_SUCCESS && !preempted)
		result = fa_fake_signal_end(context, &op->args.done, op->blocks);
	return result;
}

/* Returns whether the launch's gates have given up, so that the launch does nothing. */
static bool is_shut(const struct fa_cuda_done *done)
{
	return done->gate_run && *done->shut == done->gate_run;
}

static CUresult paged_run(struct fa_fake_op *op, struct fa_fake_context *context)
{
	const uint64_t ns = atomic_load(&fa_fake.page->kernel_us) * FA_NS_PER_US;
	struct fa_cuda_paged_launch *launch = op->staged;
	bool preempted = false;
	CUresult result;

	if (launch->kernel->kind == FA_CUDA_PAGED_GATE)
		return fa_fake_gate_run(context, &launch->args.gate);
	if (is_shut(fa_cuda_paged_done(launch)))
		return CUDA_SUCCESS;
	result = fa_fake_enter_kernel();
	if (result != CUDA_SUCCESS || !launch->kernel->state_bytes)
		fa_fake_run_until(context, fa_now_ns() + ns);
	else
		result = fa_fake_run_preemptible(context, ns, &launch->args.attention.attention,
		                                 op->blocks, &preempted);
	if (result == CUDA_SUCCESS && !preempted && !fa_fake_emulate(op->staged))
		fa_fake_paged_run(op->staged);
	if (result == CUDA_SUCCESS && !preempted)
		result = fa_fake_signal_end(context, fa_cuda_paged_done(op->staged), op->blocks);
	return result;
}

static CUresult plain_run(struct fa_fake_op *op, struct fa_fake_context *context)
{
	const uint64_t end_ns = fa_now_ns() + atomic_load(&fa_fake.page->kernel_us) * FA_NS_PER_US;
	const CUresult result = fa_fake_enter_kernel();

	fa_fake_run_until(context, end_ns);
	return result;
}

static size_t args_bytes(const struct fa_cuda_paged_kernel *kernel)
{
	const bool codes = kernel->stores != 0;

	switch (kernel->kind) {
	case FA_CUDA_PAGED_APPEND:
	case FA_CUDA_PAGED_READ:
		return kernel->small ? sizeof(struct fa_cuda_paged_small_append)
		       : codes       ? sizeof(struct fa_cuda_paged_append_quantised)
		                     : sizeof(struct fa_cuda_paged_append);
	case FA_CUDA_PAGED_WIDEN:
		return sizeof(struct fa_cuda_paged_widen);
	case FA_CUDA_PAGED_MERGE:
		return sizeof(struct fa_cuda_paged_merge);
	case FA_CUDA_PAGED_COPY:
		return sizeof(struct fa_cuda_paged_copy);
	case FA_CUDA_PAGED_MOVE:
		return sizeof(struct fa_cuda_paged_moves);
	case FA_CUDA_PAGED_OWN_COPY:
		return sizeof(struct fa_cuda_paged_own_copy);
	case FA_CUDA_PAGED_GATE:
		return sizeof(struct fa_cuda_gate);
	case FA_CUDA_PAGED_OWN_DECODE:
	case FA_CUDA_PAGED_OWN_FORWARD:
	case FA_CUDA_PAGED_OWN_BAND:
	case FA_CUDA_PAGED_OWN_RICH:
	case FA_CUDA_PAGED_OWN_PACKED:
		return sizeof(struct fa_cuda_paged_attention_own);
	case FA_CUDA_PAGED_OWN_PLAN:
		return sizeof(struct fa_cuda_own_plan);
	case FA_CUDA_PAGED_OWN_APPEND:
		return sizeof(struct fa_cuda_own_append);
	default:
		if (codes)
			return kernel->small
			               ? sizeof(struct fa_cuda_paged_small_attention_quantised)
			               : sizeof(struct fa_cuda_paged_attention_quantised);
		return kernel->small ? sizeof(struct fa_cuda_paged_small_attention)
		                     : sizeof(struct fa_cuda_paged_attention);
	}
}

static CUresult launch_paged(const struct fa_cuda_paged_kernel *kernel, unsigned int grid_x,
                             unsigned int grid_y, void **params, CUstream stream)
{
	struct fa_cuda_paged_launch *launch = calloc(1, sizeof(*launch));
	struct fa_fake_op *op;
	const char *wrong;

	if (!launch)
		return CUDA_ERROR_OUT_OF_MEMORY;
	launch->kernel = kernel;
	launch->grid_x = grid_x;
	launch->grid_y = grid_y;
	memcpy(&launch->args, params[0], args_bytes(kernel));
	wrong = fa_fake_paged_wrong(launch);
	if (!wrong && (kernel->keys || kernel->kind == FA_CUDA_PAGED_LATENT) &&
	    kernel->kind < FA_CUDA_PAGED_OWN_DECODE)
		wrong = fa_fake_paged_maps_wrong(kernel, &launch->args.attention, params[1]);
	if (wrong) {
		free(launch);
		return fa_fake_misuse(CUDA_ERROR_INVALID_VALUE, "%s: wrong: %s", kernel->symbol,
		                      wrong);
	}
	op = fa_fake_op_new(paged_run);
	if (op) {
		op->staged = launch;
		op->blocks = (uint64_t)grid_x * grid_y;
	} else {
		free(launch);
	}
	return fa_fake_submit(stream, op);
}

/* A kernel to be launched. */
struct known {
	const struct fa_cuda_kernel *kernel;
	const struct fa_cuda_paged_kernel *paged;
	bool plain;
	const struct fa_fake_text_kernel *text;
};

static CUresult look_up(const CUDA_KERNEL_NODE_PARAMS_v2 *wanted, struct known *ret_known)
{
	const struct fa_fake_function *function;
	CUresult result = CUDA_SUCCESS;

	fa_fake_lock();
	function = fa_fake_function_find(wanted->func);
	if (!function || function->context != fa_fake_current())
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (wanted->sharedMemBytes > (unsigned int)function->shared_bytes_max)
		result = CUDA_ERROR_INVALID_VALUE;
	else
		*ret_known = (struct known){ function->kernel, function->paged, function->plain,
			                     function->text };
	fa_fake_unlock();
	return result;
}

static CUresult launch_dense(const struct fa_cuda_kernel *kernel, unsigned int grid, void **params,
                             CUstream stream)
{
	const struct fa_cuda_attention *args = params[0];
	const char *wrong = args_wrong(kernel, args, grid);
	struct fa_cuda_maps *maps = NULL;
	struct fa_fake_op *op;

	if (!wrong && kernel->keys)
		wrong = fa_fake_maps_wrong(kernel, args, params[1]);
	if (wrong)
		return fa_fake_misuse(CUDA_ERROR_INVALID_VALUE, "%s: wrong: %s", kernel->symbol,
		                      wrong);
	if (kernel->keys) {
		maps = aligned_alloc(_Alignof(struct fa_cuda_maps), sizeof(*maps));
		if (!maps)
			return CUDA_ERROR_OUT_OF_MEMORY;
		memcpy(maps, params[1], sizeof(*maps));
	}
	op = fa_fake_op_new(launch_run);
	if (op) {
		op->object = (void *)kernel;
		if (fa_cuda_kernel_is_packed(kernel))
			op->packed = *(const struct fa_cuda_packed_attention *)args;
		else if (kernel->kind == FA_CUDA_MASKED)
			op->masked = *(const struct fa_cuda_masked_attention *)args;
		else
			op->args = *args;
		op->blocks = grid;
		op->staged = maps;
	} else {
		free(maps);
	}
	return fa_fake_submit(stream, op);
}

CUresult fa_fake_launch(const CUDA_KERNEL_NODE_PARAMS_v2 *wanted, CUstream stream)
{
	int threads, kernel_bytes;
	struct known known;
	CUresult result;

	result = look_up(wanted, &known);
	if (result != CUDA_SUCCESS)
		return result;
	if (known.plain)
		return fa_fake_submit(stream, fa_fake_op_new(plain_run));
	if (known.text)
		return fa_fake_text_launch(known.text, wanted, stream);
	threads = known.paged ? known.paged->threads : known.kernel->threads;
	kernel_bytes = known.paged ? known.paged->shared_bytes : known.kernel->shared_bytes;
	if (!wanted->gridDimX || !wanted->gridDimY || (!known.paged && wanted->gridDimY != 1) ||
	    wanted->gridDimZ != 1 || wanted->blockDimX != (unsigned int)threads ||
	    wanted->blockDimY != 1 || wanted->blockDimZ != 1 ||
	    wanted->sharedMemBytes != (unsigned int)kernel_bytes || !wanted->kernelParams ||
	    !wanted->kernelParams[0] || wanted->extra)
		return fa_fake_misuse(CUDA_ERROR_INVALID_VALUE,
		                      "%s: launched with %ux%ux%u blocks of %ux%ux%u threads and "
		                      "%u bytes; it takes blocks of %d and %d bytes",
		                      known.paged ? known.paged->symbol : known.kernel->symbol,
		                      wanted->gridDimX, wanted->gridDimY, wanted->gridDimZ,
		                      wanted->blockDimX, wanted->blockDimY, wanted->blockDimZ,
		                      wanted->sharedMemBytes, threads, kernel_bytes);
	if (known.paged)
		return launch_paged(known.paged, wanted->gridDimX, wanted->gridDimY,
		                    wanted->kernelParams, stream);
	return launch_dense(known.kernel, wanted->gridDimX, wanted->kernelParams, stream);
}

CUresult fa_fake_launch_bytes(const CUDA_KERNEL_NODE_PARAMS_v2 *wanted,
                              size_t ret_bytes[FA_FAKE_PARAMS])
{
	struct known known;
	CUresult result;

	result = look_up(wanted, &known);
	if (result != CUDA_SUCCESS)
		return result;
	ret_bytes[0] = ret_bytes[1] = 0;
	if (known.plain)
		return CUDA_SUCCESS;
	if (known.text)
		return CUDA_ERROR_NOT_SUPPORTED;
	ret_bytes[0] = known.paged ? args_bytes(known.paged)
	                           : fa_cuda_kernel_args_bytes(known.kernel);
	if (known.paged ? known.paged->keys : known.kernel->keys)
		ret_bytes[1] = sizeof(struct fa_cuda_maps);
	return CUDA_SUCCESS;
}

/* Launches a kernel. Here launches run one after another, but a kernel that may begin early must
 * still declare that it waits. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                          void **extra)
{
	const CUDA_KERNEL_NODE_PARAMS_v2 wanted = {
		.func = function,
		.gridDimX = config->gridDimX,
		.gridDimY = config->gridDimY,
		.gridDimZ = config->gridDimZ,
		.blockDimX = config->blockDimX,
		.blockDimY = config->blockDimY,
		.blockDimZ = config->blockDimZ,
		.sharedMemBytes = config->sharedMemBytes,
		.kernelParams = params,
		.extra = extra,
	};
	struct known known;
	CUresult result;

	FA_FAKE_ENTER(cuLaunchKernelEx, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	for (unsigned int i = 0; i < config->numAttrs; ++i) {
		if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
			return CUDA_ERROR_NOT_SUPPORTED;
		result = look_up(&wanted, &known);
		if (result != CUDA_SUCCESS)
			return result;
		if (config->attrs[i].value.programmaticStreamSerializationAllowed &&
		    !(known.paged && known.paged->awaits))
			return fa_fake_misuse(CUDA_ERROR_LAUNCH_FAILED,
			                      "a kernel that does not wait begins sooner");
	}
	return fa_fake_launch(&wanted, config->hStream);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                        void **params, void **extra)
{
	const CUDA_KERNEL_NODE_PARAMS_v2 wanted = {
		.func = function,
		.gridDimX = grid_x,
		.gridDimY = grid_y,
		.gridDimZ = grid_z,
		.blockDimX = block_x,
		.blockDimY = block_y,
		.blockDimZ = block_z,
		.sharedMemBytes = shared_bytes,
		.kernelParams = params,
		.extra = extra,
	};

	FA_FAKE_ENTER(cuLaunchKernel, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	return fa_fake_launch(&wanted, stream);
}
