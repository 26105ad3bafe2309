#include "kernels/cpu/paged-own.h"

#include "kernels/cpu/integer.h"
#include "kernels/cpu/paged-plan.h"
#include "kernels/quantise.h"

/* Partial rows of a request that need not be deterministic: enough for any number of threads. */
#define PARTIAL_BYTES (4 << 20)
/* Splits of a sequence in a deterministic request; there may be one more. */
#define DETERMINISTIC_SPLITS 8
/* Lists of a sequence with split keys, unless one per KV head is more. Such a list has fewer rows
 * than FA_CPU_TILE_ROWS_MAX. */
#define SPLIT_LISTS 32

/* A sequence as it was read from the client's memory. */
struct sequence {
	int64_t begin, n_q, n_k, prefix;
};

static int64_t read_int32(const int32_t *p)
{
	return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static int64_t element_bytes(const struct fa_paged_own *pages)
{
	return pages->dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static int64_t stored_bytes(const struct fa_paged_own *pages)
{
	return pages->store == FA_PAGED_PLAIN ? element_bytes(pages) : 1;
}

/* ---- the workspace: sequences, then what tilings need */

static size_t sequences_bytes(const struct fa_paged_own_attention *p)
{
	return ((size_t)p->batch * sizeof(struct sequence) + 63) / 64 * 64;
}

static int32_t lists(const struct fa_paged_own_attention *p)
{
	return fa_cpu_paged_lists(&p->pattern, p->heads, p->pages->kv_heads);
}

static int64_t counters_max(const struct fa_paged_own_attention *p)
{
	return p->batch * max64(lists(p), SPLIT_LISTS);
}

static int64_t longest(const struct fa_paged_own_attention *p)
{
	return min64(p->max_k, (int64_t)p->table_columns * p->pages->page_tokens);
}

/* Bounds the floats of a sequence's partial rows. */
static int64_t sequence_floats_max(const struct fa_paged_own_attention *p, int64_t splits)
{
	int64_t kv_heads = lists(p), rows = p->max_q * (p->heads / kv_heads);
	int64_t few = kv_heads * min64(rows, FA_CPU_FEW_ROWS_MAX);
	int64_t many = 0;

	if (rows > FA_CPU_FEW_ROWS_MAX && kv_heads < SPLIT_LISTS)
		many = min64(kv_heads * (rows + FA_CPU_TILE_ROWS_MAX),
		             SPLIT_LISTS * FA_CPU_TILE_ROWS_MAX);
	return max64(few, many) * splits * fa_cpu_partial_floats_of(p->pages->head_dim_v);
}

static int64_t partial_floats_max(const struct fa_paged_own_attention *p)
{
	int64_t splits = longest(p) / FA_CPU_PAGED_SPLIT_MIN + 2;

	if (longest(p) <= FA_CPU_PAGED_SPLIT_MIN)
		return 0;
	if (p->deterministic)
		return p->batch * sequence_floats_max(p, min64(splits, DETERMINISTIC_SPLITS + 1));
	return min64(p->batch * sequence_floats_max(p, splits),
	             PARTIAL_BYTES / (int64_t)sizeof(float));
}

size_t fa_cpu_own_workspace_bytes(const struct fa_paged_own_attention *p)
{
	const struct fa_cpu_paged_plan most = {
		.n_counters = counters_max(p),
		.partial_floats = partial_floats_max(p),
	};
	struct fa_cpu_paged_workspace workspace;

	fa_cpu_paged_lay_out(p->batch, &most, NULL, &workspace);
	return sequences_bytes(p) + workspace.bytes;
}

static void read_sequences(const struct fa_paged_own_attention *p, struct sequence *sequences)
{
	int64_t rest = p->total_q; /* rows that no earlier sequence has */

	for (int32_t b = 0; b < p->batch; b++) {
		struct sequence *sequence = &sequences[b];

		sequence->n_k = clamp64(read_int32(&p->lengths[b]), 0, longest(p));
		sequence->prefix = p->prefix_lengths ? max64(read_int32(&p->prefix_lengths[b]), 0)
		                                     : 0;
		sequence->begin = (int64_t)b * p->max_q;
		sequence->n_q = p->max_q;
		if (p->cu_q) {
			sequence->begin = clamp64(read_int32(&p->cu_q[b]), 0, p->total_q);
			sequence->n_q = clamp64(read_int32(&p->cu_q[b + 1]) - sequence->begin, 0,
			                        min64(p->max_q, p->total_q - sequence->begin));
		}
		sequence->n_q = min64(sequence->n_q, rest);
		rest -= sequence->n_q;
	}
}

static void plan_sequences(const struct fa_cpu_isa *isa, const struct fa_paged_own_attention *p,
                           const struct sequence *sequences, int64_t split_keys_min,
                           struct fa_cpu_paged_tiling *tilings, struct fa_cpu_paged_plan *ret_plan)
{
	const struct fa_cpu_paged_shape shape = {
		.heads = p->heads,
		.kv_heads = lists(p),
		.head_dim = p->pages->head_dim,
		.head_dim_v = p->pages->head_dim_v,
	};

	*ret_plan = (struct fa_cpu_paged_plan){ 0 };
	for (int32_t b = 0; b < p->batch; b++) {
		struct fa_cpu_paged_rows rows = {
			.n_q = sequences[b].n_q,
			.n_k = sequences[b].n_k,
			.left = p->window_left,
			.chunk_tokens = p->chunk_tokens,
			.split_keys_min = split_keys_min,
		};

		if (p->deterministic)
			rows.split_keys_min = max64(
				split_keys_min,
				ceil_div(rows.n_k, DETERMINISTIC_SPLITS * FA_CPU_PAGED_SPLIT_STEP) *
					FA_CPU_PAGED_SPLIT_STEP);
		fa_cpu_paged_plan_sequence(isa, &shape, &rows, ret_plan, &tilings[b]);
	}
}

int64_t fa_cpu_own_begin(const struct fa_cpu_isa *isa, const struct fa_paged_own_attention *p,
                         void *memory)
{
	struct sequence *sequences = memory;
	struct fa_cpu_paged_tiling *tilings = (void *)((char *)memory + sequences_bytes(p));
	int64_t split_keys_min = FA_CPU_PAGED_SPLIT_MIN;
	struct fa_cpu_paged_workspace workspace;
	struct fa_cpu_paged_plan plan;

	read_sequences(p, sequences);
	for (;;) {
		plan_sequences(isa, p, sequences, split_keys_min, tilings, &plan);
		if (plan.partial_floats <= partial_floats_max(p))
			break;
		split_keys_min *= 2;
	}
	fa_cpu_paged_lay_out(p->batch, &plan, tilings, &workspace);
	for (int64_t i = 0; i < plan.n_counters; i++)
		atomic_init(&workspace.counters[i], 0);
	return plan.n_tiles;
}

/* ---- attention */

static void fill_job(const struct fa_paged_own_attention *p, const struct sequence *sequence,
                     const struct fa_cpu_paged_place *place, struct fa_cpu_job *ret_job)
{
	const struct fa_paged_own *pages = p->pages;
	int64_t bytes = element_bytes(pages), stored = stored_bytes(pages);
	int64_t group = p->heads / lists(p), head = place->kv_head * group;
	int64_t kv_head = place->kv_head / (lists(p) / pages->kv_heads);
	int64_t far = sequence->n_q + sequence->n_k;
	struct fa_cpu_job job = {
		.dtype = pages->dtype,
		.head_dim = pages->head_dim,
		.head_dim_v = pages->head_dim_v,
		.group = (int32_t)group,
		.n_heads = 1,
		.n_q = sequence->n_q,
		.n_k = sequence->n_k,
		.store = pages->store,
		.k_stride = pages->k.stride_token * stored,
		.v_stride = pages->v.stride_token * stored,
		.k_scale = 1,
		.v_scale = 1,
		.table = (const uint32_t *)p->table + place->sequence * p->table_stride,
		.last_page = (uint32_t)pages->pages - 1,
		.page_tokens = pages->page_tokens,
		.k_page_bytes = pages->k.stride_batch * stored,
		.v_page_bytes = pages->v.stride_batch * stored,
		.q_stride_token = p->q.stride_token * bytes,
		.q_stride_head = p->q.stride_head * bytes,
		.out_stride_token = p->out.stride_token * bytes,
		.out_stride_head = p->out.stride_head * bytes,
		.lse_stride_token = p->lse_stride_token,
		.lse_stride_head = p->lse_stride_head,
		.scale = p->scale,
		.softcap = p->softcap,
		.alibi_slopes = p->alibi_slopes ? p->alibi_slopes + head : NULL,
		.sinks = p->sinks ? p->sinks + head : NULL,
		.left = window(p->window_left, far),
		.right = p->causal ? 0 : window(p->window_right, far),
		.right_prefix = window(p->window_right, far),
		.prefix = sequence->prefix,
		.chunk_tokens = p->chunk_tokens,
	};

	job.k = (const char *)pages->k.data + kv_head * pages->k.stride_head * stored;
	job.v = (const char *)pages->v.data + kv_head * pages->v.stride_head * stored;
	if (pages->k_scales)
		job.k_scale = pages->k_scales[kv_head];
	if (pages->v_scales)
		job.v_scale = pages->v_scales[kv_head];
	job.q = (const char *)p->q.data + sequence->begin * job.q_stride_token +
	        head * job.q_stride_head;
	job.out = (char *)p->out.data + sequence->begin * job.out_stride_token +
	          head * job.out_stride_head;
	if (p->lse)
		job.lse = p->lse + sequence->begin * p->lse_stride_token +
		          head * p->lse_stride_head;
	if (p->pattern.block_tokens)
		fa_cpu_job_set_pattern(&job, &p->pattern, head, p->heads / pages->kv_heads);
	*ret_job = job;
}

bool fa_cpu_own_attend(const struct fa_cpu_isa *isa, const struct fa_paged_own_attention *p,
                       void *memory, int64_t tile, void *scratch, const bool *stop)
{
	const struct sequence *sequences = memory;
	struct fa_cpu_paged_workspace workspace;
	struct fa_cpu_paged_place place;
	struct fa_cpu_job job;

	fa_cpu_paged_find(p->batch, lists(p), (char *)memory + sequences_bytes(p), &workspace);
	fa_cpu_paged_locate(&workspace, lists(p), tile, &place);
	fill_job(p, &sequences[place.sequence], &place, &job);
	job.stop = stop;
	return fa_cpu_paged_run(isa, &workspace, &place, &job, scratch);
}

/* ---- append */

static void append_rows(const struct fa_paged_own *pages, const struct fa_attention_tensor *from,
                        const struct fa_attention_tensor *to, const float *scales, int32_t dim,
                        int64_t token, int64_t slot)
{
	int64_t bytes = element_bytes(pages), stored = stored_bytes(pages);
	float row[FA_ATTENTION_ROW_MAX];

	for (int32_t h = 0; h < pages->kv_heads; h++) {
		const char *source = (const char *)from->data +
		                     (token * from->stride_token + h * from->stride_head) * bytes;
		char *target = (char *)to->data + (slot / pages->page_tokens * to->stride_batch +
		                                   slot % pages->page_tokens * to->stride_token +
		                                   h * to->stride_head) *
		                                          stored;

		if (pages->store == FA_PAGED_PLAIN) {
			memcpy(target, source, (size_t)(dim * bytes));
			continue;
		}
		fa_floats_of(pages->dtype, row, source, dim);
		fa_quantise_row(pages->store, row, dim, scales ? scales[h] : 1, (uint8_t *)target);
	}
}

void fa_cpu_own_append(const struct fa_paged_own_append *p, int64_t token)
{
	const struct fa_paged_own *pages = p->pages;
	int64_t slot = __atomic_load_n(&p->slots[token], __ATOMIC_RELAXED);

	if (slot < 0 || slot >= (int64_t)pages->pages * pages->page_tokens)
		return;
	if (p->k.data)
		append_rows(pages, &p->k, &pages->k, pages->k_scales, pages->head_dim, token, slot);
	if (p->v.data)
		append_rows(pages, &p->v, &pages->v, pages->v_scales, pages->head_dim_v, token,
		            slot);
}
