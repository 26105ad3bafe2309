#include "tests/kernels/own-copy-problem.h"

#include "tests/kernels/reference.h"

#include <stdlib.h>
#include <string.h>

#define POISON 0xff

static int64_t element_bytes(const struct own_problem *own)
{
	return own->problem->spec.dtype == FA_ATTENTION_F32 ? 4 : 2;
}

/* Sets the strides of K and V, and where each layer begins, in elements. Returns the elements of
 * all tensors. */
static int64_t lay_out(struct own_problem *own, int layout, int64_t n_pages, int64_t *ret_k,
                       int64_t *ret_v)
{
	const struct paged_spec *spec = &own->problem->spec;
	struct fa_paged_own_copy *copy = &own->copy;
	const int64_t layers = copy->n_layers, tokens = copy->page_tokens, heads = spec->kv_heads;
	const int64_t wide = spec->head_dim > spec->head_dim_v ? spec->head_dim : spec->head_dim_v;
	const int64_t row = layout == 4 ? wide + 3 : wide, page = tokens * heads * row;
	struct fa_attention_tensor t = { NULL, page, heads * row, row };

	if (layout % 2) {
		t.stride_token = row;
		t.stride_head = tokens * row;
	}
	if (layout == 2)
		t.stride_batch = 2 * page;
	if (layout == 3)
		t.stride_batch = 2 * layers * page;
	copy->k = copy->v = t;
	for (int64_t l = 0; l < layers; l++) {
		ret_k[l] = layout == 2   ? 2 * l * n_pages * page
		           : layout == 3 ? 2 * l * page
		                         : 2 * l * n_pages * page + (layout == 4);
		ret_v[l] = ret_k[l] + (layout == 2 || layout == 3 ? page : n_pages * page);
	}
	return 2 * layers * n_pages * page + (layout == 4);
}

void own_init(struct own_problem *own, struct paged_problem *problem, int32_t sequence,
              uint32_t first, uint32_t end, int layout, int32_t page_tokens)
{
	struct fa_paged_own_copy *copy = &own->copy;
	int64_t k[OWN_LAYERS_MAX], v[OWN_LAYERS_MAX];
	uint32_t n_pages;

	memset(own, 0, sizeof(*own));
	own->problem = problem;
	own->sequence = sequence;
	own->cu_new[1] = end - first;
	own->length = end;
	own->before = first;
	own->first = problem->spec.first[sequence];
	own->step = problem->step;
	own->step.batch = 1;
	own->step.cu_new = own->cu_new;
	own->step.lengths = &own->length;
	own->step.lengths_before = &own->before;
	own->step.first = &own->first;
	own->step.table_start = &problem->table_start[sequence];

	copy->cache = &problem->cache;
	copy->step = &own->step;
	copy->layer = (int32_t)problem_random(2);
	copy->n_layers = problem->cache.layers - copy->layer;
	copy->page_tokens = page_tokens;
	copy->offset = (uint32_t)problem_random((uint64_t)page_tokens);
	copy->n_pages = (copy->offset + end - first + (uint32_t)page_tokens - 1) /
	                (uint32_t)page_tokens;
	n_pages = copy->n_pages + 3;
	if (n_pages > OWN_PAGES_MAX)
		paged_fail("%u pages are too many for the test", n_pages);
	for (uint32_t i = 0; i < n_pages; i++)
		own->pages[i] = i;
	for (uint32_t i = n_pages - 1; i > 0; i--) {
		uint32_t j = (uint32_t)problem_random(i + 1), page = own->pages[i];

		own->pages[i] = own->pages[j];
		own->pages[j] = page;
	}
	copy->pages = own->pages;

	own->bytes = (size_t)(lay_out(own, layout, n_pages, k, v) * element_bytes(own));
	own->memory = malloc(own->bytes);
	if (!own->memory)
		paged_fail("no memory");
	for (int32_t l = 0; l < copy->n_layers; l++) {
		own->k_data[l] = own->memory + k[l] * element_bytes(own);
		own->v_data[l] = own->memory + v[l] * element_bytes(own);
	}
	copy->k_data = own->k_data;
	copy->v_data = own->v_data;
	own_poison(own);
}

void own_deinit(struct own_problem *own)
{
	free(own->memory);
}

void own_fill(struct own_problem *own)
{
	for (size_t i = 0; i < own->bytes / (size_t)element_bytes(own); i++)
		reference_set(own->problem->spec.dtype, own->memory, (int64_t)i, problem_normal());
}

void own_poison(struct own_problem *own)
{
	memset(own->memory, POISON, own->bytes);
}

char *own_row(const struct own_problem *own, int32_t layer, uint32_t token, int32_t head, bool v)
{
	const struct fa_paged_own_copy *copy = &own->copy;
	const struct fa_attention_tensor *t = v ? &copy->v : &copy->k;
	const uint32_t place = copy->offset + (token - own->before);
	const uint32_t page_tokens = (uint32_t)copy->page_tokens;

	return (char *)(v ? copy->v_data : copy->k_data)[layer - copy->layer] +
	       (copy->pages[place / page_tokens] * t->stride_batch +
	        place % page_tokens * t->stride_token + head * t->stride_head) *
	               element_bytes(own);
}

/* @to_pool, @to_memory: distances of what is expected from what is used. */
static void expect_row(const struct own_problem *own, bool writes, int32_t layer, uint32_t token,
                       int32_t head, bool v, ptrdiff_t to_pool, ptrdiff_t to_memory)
{
	const struct paged_spec *spec = &own->problem->spec;
	const int32_t dim = v ? spec->head_dim_v : spec->head_dim;
	char *mine = own_row(own, layer, token, head, v) + to_memory;
	char *pool = (v ? paged_v : paged_k)(own->problem, layer, own->sequence, token, head) +
	             to_pool;
	float *scale, values[FA_ATTENTION_ROW_MAX];
	bool own_scale = spec->store != FA_PAGED_PLAIN && !spec->head_scales;

	if (spec->store == FA_PAGED_PLAIN) {
		if (writes)
			memcpy(pool, mine, (size_t)(dim * element_bytes(own)));
		else
			memcpy(mine, pool, (size_t)(dim * element_bytes(own)));
		return;
	}
	scale = paged_scale(own->problem, layer, own->sequence, token, head, v);
	if (own_scale)
		scale = (float *)((char *)scale + to_pool);
	if (writes) {
		float used;

		for (int32_t d = 0; d < dim; d++)
			values[d] = (float)reference_get(spec->dtype, mine, d);
		used = reference_quantise(spec->store, values, dim, own_scale ? 0 : *scale,
		                          (uint8_t *)pool);
		if (own_scale)
			*scale = used;
		return;
	}
	for (int32_t d = 0; d < dim; d++)
		reference_set(spec->dtype, mine, d,
		              (double)((float)reference_code_value(spec->store, (uint8_t)pool[d]) *
		                       *scale));
}

void own_expect(const struct own_problem *own, bool writes, char *pool, char *memory)
{
	const struct fa_paged_own_copy *copy = &own->copy;
	const ptrdiff_t to_pool = pool - (char *)own->problem->cache.pool;
	const ptrdiff_t to_memory = memory - own->memory;

	for (int32_t l = copy->layer; l < copy->layer + copy->n_layers; l++)
		for (uint32_t token = own->before; token < own->length; token++)
			for (int32_t h = 0; h < own->problem->spec.kv_heads; h++) {
				if (copy->k_data)
					expect_row(own, writes, l, token, h, false, to_pool,
					           to_memory);
				if (copy->v_data)
					expect_row(own, writes, l, token, h, true, to_pool,
					           to_memory);
			}
}
