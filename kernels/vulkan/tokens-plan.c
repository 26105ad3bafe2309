#include "kernels/vulkan/pool.h"
#include "kernels/vulkan/scores.h"

#include <math.h>
#include <string.h>

/* What a row costs beside attention, in arithmetic of the same time. */
#define ROW_FLOPS(dim) (8.0 * (dim))

_Static_assert(sizeof(struct fa_vulkan_tokens) % 8 == 0, "as in GLSL");

uint64_t fa_vulkan_put_table(struct fa_vulkan_writer *writer, const struct fa_paged_cache *cache,
                             const struct fa_paged_step *step, struct fa_vulkan_sequence *sequences)
{
	const uint32_t page_tokens = (uint32_t)cache->page_tokens;
	const uint32_t *table = step->host_table ? step->host_table : step->table;
	size_t n = 0, at = 0;
	uint64_t address;
	uint32_t *to;
	void *host;

	for (int32_t b = 0; b < step->batch; b++) {
		const uint32_t first = step->first ? step->first[b] : 0;

		if (step->lengths[b] > first)
			n += (step->lengths[b] - 1) / page_tokens - first / page_tokens + 1;
	}
	address = fa_vulkan_reserve(writer, n * sizeof(*to), &host);
	to = host;
	if (!to || !sequences)
		return address;
	for (int32_t b = 0; b < step->batch; b++) {
		const uint32_t first = step->first ? step->first[b] : 0;
		const uint32_t page = first / page_tokens;

		sequences[b] = (struct fa_vulkan_sequence){
			.q_begin = step->cu_new[b],
			.k_begin = step->lengths_before[b],
			.n_q = step->cu_new[b + 1] - step->cu_new[b],
			.n_k = step->lengths[b],
			.first = first,
			.table_start = (uint32_t)at - page,
			.tree_start = FA_VULKAN_NO_TREE,
		};
		for (uint32_t i = page;
		     step->lengths[b] > first && i <= (step->lengths[b] - 1) / page_tokens; i++)
			to[at++] = table[(uint32_t)(step->table_start[b] + i)];
	}
	return address;
}

static void set_cache(const struct fa_vulkan_pool *pool, const struct fa_paged_cache *cache,
                      struct fa_vulkan_writer *writer, struct fa_vulkan_tokens *arguments)
{
	const size_t scales = (size_t)cache->layers * (size_t)cache->kv_heads * sizeof(float);

	arguments->chunks = pool->chunks;
	arguments->chunk_shift = pool->chunk_shift;
	arguments->layer_stride = cache->layer_stride;
	arguments->v_offset = cache->v_offset;
	arguments->kv_heads = (uint32_t)cache->kv_heads;
	arguments->head_dim = (uint32_t)cache->head_dim;
	arguments->head_dim_v = (uint32_t)cache->head_dim_v;
	arguments->v_row = fa_vulkan_v_row(cache);
	arguments->page_tokens = (uint32_t)cache->page_tokens;
	arguments->token_scales = fa_vulkan_token_scales(cache);
	if (cache->store != FA_PAGED_PLAIN) {
		arguments->k_scales = fa_vulkan_put(writer, cache->k_scales, scales);
		arguments->v_scales = cache->v_offset
		                              ? fa_vulkan_put(writer, cache->v_scales, scales)
		                              : arguments->k_scales;
	}
}

static void add(struct fa_vulkan_writer *writer, const struct fa_vulkan_tokens *arguments,
                uint32_t op, enum fa_attention_dtype dtype, enum fa_paged_store store,
                uint64_t groups)
{
	struct fa_vulkan_dispatch *dispatch;

	if (!groups)
		return;
	dispatch = fa_vulkan_add(writer, FA_VULKAN_TOKENS,
	                         fa_vulkan_put(writer, arguments, sizeof(*arguments)), groups);
	dispatch->constants[0] = op;
	dispatch->constants[1] = (uint32_t)dtype;
	dispatch->constants[2] = (uint32_t)store;
	dispatch->flops = ROW_FLOPS(arguments->head_dim + arguments->head_dim_v);
}

/* ---- append and read */

/* A position's turns of each pair, modulo 1, in 64 bits: a product with any position is then exact but
 * for these bits' own rounding. */
static void put_rotary(struct fa_vulkan_writer *writer, const struct fa_paged_rotary *rotary,
                       size_t n_new, struct fa_vulkan_tokens *arguments)
{
	const int32_t half = rotary->dim / 2;
	uint64_t *turns;
	void *host;

	arguments->rotary_dim = (uint32_t)rotary->dim;
	arguments->rotary_first = (uint32_t)rotary->first;
	arguments->interleaved = rotary->interleaved;
	if (!rotary->dim)
		return;
	arguments->positions = fa_vulkan_put(writer, rotary->positions, n_new * sizeof(uint32_t));
	if (rotary->cos) {
		arguments->cos = fa_vulkan_address(rotary->cos);
		arguments->sin = fa_vulkan_address(rotary->sin);
		arguments->table_positions = rotary->table_positions;
		return;
	}
	arguments->turns = fa_vulkan_reserve(writer, (size_t)half * sizeof(*turns), &host);
	turns = host;
	for (int32_t i = 0; i < half && turns; i++) {
		const long double turn = (long double)rotary->scale *
		                         powl((long double)rotary->base, -2.0L * i / rotary->dim) /
		                         (2 * 3.14159265358979323846264338327950288L);
		const long double part = (turn - floorl(turn)) * 0x1p64L;

		/* An infinite turn has no cosine; it cannot come from a float position anyway. */
		turns[i] = part >= 0 && part < 0x1p64L ? (uint64_t)part : 0;
	}
}

static void plan_append(const struct fa_vulkan_pool *pool, const struct fa_paged_append *p,
                        bool read, struct fa_vulkan_writer *writer)
{
	const struct fa_paged_step *step = p->step;
	const size_t n_new = step->cu_new[step->batch];
	struct fa_vulkan_tokens arguments = {
		.k = fa_vulkan_address(p->k.data),
		.v = fa_vulkan_address(p->v.data),
		.k_token = p->k.stride_token,
		.k_head = p->k.stride_head,
		.v_token = p->v.stride_token,
		.v_head = p->v.stride_head,
		.tokens = n_new,
		.batch = (uint32_t)step->batch,
		.layer = (uint32_t)p->layer,
	};
	struct fa_vulkan_sequence *sequences;
	void *host;

	set_cache(pool, p->cache, writer, &arguments);
	arguments.sequences = fa_vulkan_reserve(writer, (size_t)step->batch * sizeof(*sequences),
	                                        &host);
	sequences = host;
	arguments.table = fa_vulkan_put_table(writer, p->cache, step, sequences);
	if (!read) {
		put_rotary(writer, &p->rotary, n_new, &arguments);
		if (p->cache->v_offset == 0)
			arguments.v = 0;
		/* Nothing is to do if q stays where it is and is not rotated. */
		if (p->rotary.dim || p->q.data != p->q_out.data)
			arguments.heads = (uint32_t)p->heads;
		arguments.q = fa_vulkan_address(p->q.data);
		arguments.q_out = fa_vulkan_address(p->q_out.data);
		arguments.q_token = p->q.stride_token;
		arguments.q_head = p->q.stride_head;
		arguments.q_out_token = p->q_out.stride_token;
		arguments.q_out_head = p->q_out.stride_head;
	}
	add(writer, &arguments, read ? FA_VULKAN_READ : FA_VULKAN_APPEND, p->cache->dtype,
	    p->cache->store, n_new * (2 * (uint64_t)p->cache->kv_heads + arguments.heads));
}

/* ---- a client's own pages */

static void plan_own_append(const struct fa_paged_own_append *p, struct fa_vulkan_writer *writer)
{
	const struct fa_paged_own *own = p->pages;
	const struct fa_vulkan_tokens arguments = {
		.k = fa_vulkan_address(p->k.data),
		.v = fa_vulkan_address(p->v.data),
		.k_scales = fa_vulkan_address(own->k_scales),
		.v_scales = fa_vulkan_address(own->v_scales),
		.slots = fa_vulkan_address(p->slots),
		.k_data = fa_vulkan_address(own->k.data),
		.v_data = fa_vulkan_address(own->v.data),
		.k_page = own->k.stride_batch,
		.k_token = own->k.stride_token,
		.k_head = own->k.stride_head,
		.v_page = own->v.stride_batch,
		.v_token = own->v.stride_token,
		.v_head = own->v.stride_head,
		.q_token = p->k.stride_token,
		.q_head = p->k.stride_head,
		.q_out_token = p->v.stride_token,
		.q_out_head = p->v.stride_head,
		.tokens = (uint64_t)p->tokens,
		.n_slots = (uint64_t)own->pages * (uint64_t)own->page_tokens,
		.kv_heads = (uint32_t)own->kv_heads,
		.head_dim = (uint32_t)own->head_dim,
		.head_dim_v = (uint32_t)own->head_dim_v,
		.own_page_tokens = (uint32_t)own->page_tokens,
	};

	add(writer, &arguments, FA_VULKAN_APPEND_OWN, own->dtype, own->store,
	    arguments.tokens * 2 * arguments.kv_heads);
}

static void plan_own_copy(const struct fa_vulkan_pool *pool, const struct fa_paged_own_copy *p,
                          bool writes, struct fa_vulkan_writer *writer)
{
	const size_t addresses = (size_t)p->n_layers * sizeof(void *);
	struct fa_vulkan_tokens arguments = {
		.k_page = p->k.stride_batch,
		.k_token = p->k.stride_token,
		.k_head = p->k.stride_head,
		.v_page = p->v.stride_batch,
		.v_token = p->v.stride_token,
		.v_head = p->v.stride_head,
		.tokens = p->step->lengths[0] - p->step->lengths_before[0],
		.batch = 1,
		.layer = (uint32_t)p->layer,
		.own_page_tokens = (uint32_t)p->page_tokens,
		.offset = p->offset,
	};
	struct fa_vulkan_sequence *sequences;
	void *host;

	set_cache(pool, p->cache, writer, &arguments);
	arguments.sequences = fa_vulkan_reserve(writer, sizeof(*sequences), &host);
	sequences = host;
	arguments.table = fa_vulkan_put_table(writer, p->cache, p->step, sequences);
	arguments.k_data = fa_vulkan_put(writer, p->k_data, addresses);
	arguments.v_data = fa_vulkan_put(writer, p->v_data, addresses);
	arguments.pages = fa_vulkan_put(writer, p->pages, p->n_pages * sizeof(uint32_t));
	add(writer, &arguments, writes ? FA_VULKAN_WRITE_OWN : FA_VULKAN_READ_OWN, p->cache->dtype,
	    p->cache->store,
	    arguments.tokens * (uint64_t)p->n_layers * 2 * (uint64_t)p->cache->kv_heads);
}

/* ---- moves and pages */

static void plan_move(const struct fa_vulkan_pool *pool, const struct fa_paged_move *p,
                      struct fa_vulkan_writer *writer)
{
	struct fa_vulkan_tokens arguments = {
		.tokens = (uint64_t)p->batch,
		.batch = (uint32_t)p->batch,
	};
	struct fa_vulkan_sequence *sequences;
	void *host;

	set_cache(pool, p->cache, writer, &arguments);
	arguments.sequences = fa_vulkan_reserve(writer, (size_t)p->batch * sizeof(*sequences),
	                                        &host);
	sequences = host;
	for (int32_t b = 0; b < p->batch && sequences; b++)
		sequences[b] = (struct fa_vulkan_sequence){
			.q_begin = p->cu_moves[b],
			.n_q = p->cu_moves[b + 1] - p->cu_moves[b],
			.first = p->to[b],
			.table_start = p->table_start[b],
		};
	arguments.from = fa_vulkan_put(writer, p->from, p->cu_moves[p->batch] * sizeof(uint32_t));
	arguments.table = fa_vulkan_put(writer, p->table, p->table_entries * sizeof(uint32_t));
	if (p->cu_moves[p->batch])
		add(writer, &arguments, FA_VULKAN_MOVE, p->cache->dtype, p->cache->store,
		    (uint64_t)p->batch * (uint64_t)p->cache->layers * 2 *
		            (uint64_t)p->cache->kv_heads);
}

static uint32_t parts_of(int64_t bytes)
{
	return (uint32_t)((bytes + FA_VULKAN_PART_BYTES - 1) / FA_VULKAN_PART_BYTES);
}

static void plan_pages(const struct fa_vulkan_pool *pool, const struct fa_paged_pages *p,
                       bool clear, struct fa_vulkan_writer *writer)
{
	const size_t bytes = (size_t)p->count * sizeof(uint32_t);
	struct fa_vulkan_pages arguments = {
		.chunks = pool->chunks,
		.layer_stride = p->cache->layer_stride,
		.v_offset = p->cache->v_offset,
		.layers = (uint32_t)p->cache->layers,
		.chunk_shift = pool->chunk_shift,
	};
	struct fa_vulkan_dispatch *dispatch;
	int64_t k_bytes, v_bytes;

	fa_paged_page_bytes(p->cache, &k_bytes, &v_bytes);
	arguments.k_bytes = (uint32_t)k_bytes;
	arguments.v_bytes = (uint32_t)v_bytes;
	arguments.k_parts = parts_of(k_bytes);
	arguments.v_parts = parts_of(v_bytes);
	if (!p->count)
		return;
	arguments.to = fa_vulkan_put(writer, p->to, bytes);
	arguments.from = clear ? 0 : fa_vulkan_put(writer, p->from, bytes);
	dispatch = fa_vulkan_add(writer, FA_VULKAN_PAGES,
	                         fa_vulkan_put(writer, &arguments, sizeof(arguments)),
	                         (uint64_t)p->count * (uint64_t)p->cache->layers *
	                                 (arguments.k_parts + arguments.v_parts));
	dispatch->flops = ROW_FLOPS(FA_VULKAN_PART_BYTES / 4);
}

static void plan_merge(const struct fa_paged_merge *p, struct fa_vulkan_writer *writer)
{
	const struct fa_vulkan_merge arguments = {
		.a = fa_vulkan_address(p->a.out.data),
		.b = fa_vulkan_address(p->b.out.data),
		.result = fa_vulkan_address(p->result.out.data),
		.lse_a = fa_vulkan_address(p->a.lse),
		.lse_b = fa_vulkan_address(p->b.lse),
		.lse_result = fa_vulkan_address(p->result.lse),
		.a_token = p->a.out.stride_token,
		.a_head = p->a.out.stride_head,
		.b_token = p->b.out.stride_token,
		.b_head = p->b.out.stride_head,
		.result_token = p->result.out.stride_token,
		.result_head = p->result.out.stride_head,
		.lse_a_token = p->a.lse_stride_token,
		.lse_a_head = p->a.lse_stride_head,
		.lse_b_token = p->b.lse_stride_token,
		.lse_b_head = p->b.lse_stride_head,
		.lse_result_token = p->result.lse_stride_token,
		.lse_result_head = p->result.lse_stride_head,
		.heads = (uint32_t)p->heads,
		.head_dim_v = (uint32_t)p->head_dim_v,
	};
	struct fa_vulkan_dispatch *dispatch;

	if (!p->tokens)
		return;
	dispatch = fa_vulkan_add(writer, FA_VULKAN_MERGE,
	                         fa_vulkan_put(writer, &arguments, sizeof(arguments)),
	                         (uint64_t)p->tokens * (uint64_t)p->heads);
	dispatch->constants[1] = (uint32_t)p->dtype;
	dispatch->flops = ROW_FLOPS(p->head_dim_v);
}

void fa_vulkan_plan_tokens(const struct fa_vulkan_pool *pool,
                           const struct fa_paged_request *request, struct fa_vulkan_writer *writer)
{
	switch (request->op) {
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		plan_append(pool, &request->append, request->op == FA_PAGED_READ, writer);
		return;
	case FA_PAGED_MERGE:
		plan_merge(&request->merge, writer);
		return;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		plan_pages(pool, &request->pages, request->op == FA_PAGED_CLEAR, writer);
		return;
	case FA_PAGED_MOVE:
		plan_move(pool, &request->move, writer);
		return;
	case FA_PAGED_APPEND_OWN:
		plan_own_append(&request->own_append, writer);
		return;
	case FA_PAGED_READ_OWN:
	case FA_PAGED_WRITE_OWN:
		plan_own_copy(pool, &request->own_copy, request->op == FA_PAGED_WRITE_OWN, writer);
		return;
	case FA_PAGED_ATTEND:
	case FA_PAGED_ATTEND_OWN:
		return;
	}
}
