#include "tests/gpu/paged-own.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const layout_names[] = { "NHD", "HND", "pairs", "unpadded" };

static int64_t element_bytes(const struct paged_spec *spec)
{
	return spec->store != FA_PAGED_PLAIN ? 1 : spec->dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static int64_t up_16(int64_t bytes)
{
	return (bytes + 15) / 16 * 16;
}

/* Sets strides, in elements, for rows of both widths in one allocation; returns its bytes. */
static size_t lay_out(struct paged_own *own, const struct paged_spec *spec)
{
	const int64_t bytes = element_bytes(spec), tokens = own->page_tokens,
		      heads = spec->kv_heads, pages = own->pages.pages;
	/* 16-byte aligned rows of K, and of V. */
	int64_t k = up_16(spec->head_dim * bytes) / bytes;
	int64_t v = up_16(spec->head_dim_v * bytes) / bytes;
	struct fa_attention_tensor *const to_k = &own->pages.k, *const to_v = &own->pages.v;

	switch (own->layout) {
	case PAGED_OWN_HND:
		*to_k = (struct fa_attention_tensor){ NULL, heads * tokens * k, k, tokens * k };
		*to_v = (struct fa_attention_tensor){ NULL, heads * tokens * v, v, tokens * v };
		own->v_at = pages * to_k->stride_batch * bytes;
		return (size_t)(own->v_at + pages * to_v->stride_batch * bytes);
	case PAGED_OWN_PAIRS:
		to_k->stride_batch = to_v->stride_batch = tokens * heads * (k + v);
		to_k->stride_token = to_v->stride_token = heads * (k + v);
		to_k->stride_head = k;
		to_v->stride_head = v;
		own->v_at = heads * k * bytes;
		return (size_t)(pages * to_k->stride_batch * bytes);
	case PAGED_OWN_UNPADDED:
		k += 1;
		v += 3;
		/* fallthrough */
	default:
		*to_k = (struct fa_attention_tensor){ NULL, heads * tokens * k, heads * k, k };
		*to_v = (struct fa_attention_tensor){ NULL, heads * tokens * v, heads * v, v };
		own->v_at = pages * to_k->stride_batch * bytes;
		return (size_t)(own->v_at + pages * to_v->stride_batch * bytes);
	}
}

char *paged_own_row(const struct paged_own *own, char *kv, int64_t bytes, bool v, int64_t slot,
                    int64_t head)
{
	const struct fa_attention_tensor *const tensor = v ? &own->pages.v : &own->pages.k;
	const int64_t page = slot / own->page_tokens, token = slot % own->page_tokens;

	return kv + (v ? own->v_at : 0) +
	       (page * tensor->stride_batch + token * tensor->stride_token +
	        head * tensor->stride_head) *
	               bytes;
}

int64_t paged_own_slot(const struct paged_own *own, int32_t b, int64_t token)
{
	const int64_t stride = own->request.own_attention.table_stride;

	return (int64_t)own->table[b * stride + token / own->page_tokens] * own->page_tokens +
	       token % own->page_tokens;
}

static int32_t n_new(const struct paged_problem *problem, int32_t b)
{
	return (int32_t)(problem->cu_new[b + 1] - problem->cu_new[b]);
}

static void make_table(struct paged_own *own, const struct paged_problem *problem)
{
	struct fa_paged_own_attention *const p = &own->request.own_attention;
	const int32_t batch = problem->spec.batch, tokens = own->page_tokens;
	int32_t n = 0, *order;

	for (int32_t b = 0; b < batch; b++) {
		const int32_t length = (int32_t)problem->spec.lengths[b];
		const int32_t of = (length + tokens - 1) / tokens;

		n += of;
		p->table_columns = of > p->table_columns ? of : p->table_columns;
		p->max_k = length > p->max_k ? length : p->max_k;
		p->max_q = n_new(problem, b) > p->max_q ? n_new(problem, b) : p->max_q;
	}
	p->table_stride = p->table_columns + 1;
	/* Bounds far above what there is. */
	if (problem_random(2)) {
		p->table_columns += 1000;
		p->table_stride += 1000;
		p->max_k = p->max_k * 20 + 5;
	}
	own->pages.pages = n + 3;
	order = malloc((size_t)(n + 3) * sizeof(*order));
	for (int32_t i = 0; i < n + 3; i++) {
		const int32_t other = (int32_t)problem_random((uint64_t)i + 1);

		order[i] = order[other];
		order[other] = i;
	}
	own->table_bytes = (size_t)(batch * p->table_stride) * sizeof(*own->table);
	own->table = malloc(own->table_bytes + 1);
	for (int64_t i = 0; i < batch * p->table_stride; i++)
		own->table[i] = (int32_t)PAGED_WILD;
	n = 0;
	for (int32_t b = 0; b < batch; b++)
		for (int32_t i = 0; i * tokens < (int32_t)problem->spec.lengths[b]; i++)
			own->table[b * p->table_stride + i] = order[n++];
	free(order);
}

void paged_own_init(struct paged_own *own, struct paged_problem *problem,
                    struct paged_device *device, enum paged_own_layout layout, int32_t page_tokens)
{
	const struct paged_spec *const spec = &problem->spec;
	const struct fa_paged_attention *const from = &device->request.attention;
	struct fa_paged_own_attention *const p = &own->request.own_attention;
	const int64_t bytes = element_bytes(spec);
	bool even = true;

	*own = (struct paged_own){ .layout = layout, .page_tokens = page_tokens };
	own->request.op = FA_PAGED_ATTEND_OWN;
	own->pages = (struct fa_paged_own){
		.dtype = spec->dtype,
		.kv_heads = spec->kv_heads,
		.head_dim = spec->head_dim,
		.head_dim_v = spec->head_dim_v,
		.page_tokens = page_tokens,
		.store = spec->store,
	};
	make_table(own, problem);
	own->kv_bytes = lay_out(own, spec);
	own->kv = malloc(own->kv_bytes + 64);
	memset(own->kv, 0xff, own->kv_bytes + 64);
	own->lengths = malloc((size_t)spec->batch * sizeof(*own->lengths));
	own->cu_q = malloc(((size_t)spec->batch + 1) * sizeof(*own->cu_q));
	own->cu_q[0] = 0;
	for (int32_t b = 0; b < spec->batch; b++) {
		own->lengths[b] = (int32_t)spec->lengths[b];
		own->cu_q[b + 1] = (int32_t)problem->cu_new[b + 1];
		even &= n_new(problem, b) == n_new(problem, 0);
		for (int32_t t = 0; t < own->lengths[b]; t++)
			for (int32_t h = 0; h < spec->kv_heads; h++) {
				const int64_t slot = paged_own_slot(own, b, t);

				memcpy(paged_own_row(own, own->kv, bytes, false, slot, h),
				       paged_k(problem, from->layer, b, t, h),
				       (size_t)(spec->head_dim * bytes));
				memcpy(paged_own_row(own, own->kv, bytes, true, slot, h),
				       paged_v(problem, from->layer, b, t, h),
				       (size_t)(spec->head_dim_v * bytes));
			}
	}
	own->device_kv = paged_device_upload(own->kv, own->kv_bytes + 64);
	own->device_table = paged_device_upload(own->table, own->table_bytes);
	own->device_lengths = paged_device_upload(own->lengths, (size_t)spec->batch * 4);
	own->device_cu_q = paged_device_upload(own->cu_q, ((size_t)spec->batch + 1) * 4);
	own->pages.k.data = POINTER(own->device_kv);
	own->pages.v.data = POINTER(own->device_kv + (uint64_t)own->v_at);
	if (spec->store != FA_PAGED_PLAIN) {
		const size_t at = (size_t)(from->layer * spec->kv_heads);

		own->k_scales = paged_device_upload(problem->k_scales + at,
		                                    (size_t)spec->kv_heads * 4);
		own->v_scales = paged_device_upload(problem->v_scales + at,
		                                    (size_t)spec->kv_heads * 4);
		own->pages.k_scales = POINTER(own->k_scales);
		own->pages.v_scales = POINTER(own->v_scales);
	}
	p->pages = &own->pages;
	p->batch = spec->batch;
	p->heads = spec->heads;
	p->table = POINTER(own->device_table);
	p->lengths = POINTER(own->device_lengths);
	p->cu_q = even && problem_random(2) ? NULL : POINTER(own->device_cu_q);
	p->total_q = problem->cu_new[spec->batch];
	p->q = from->q;
	p->out = from->out;
	p->lse = from->lse;
	p->lse_stride_token = from->lse_stride_token;
	p->lse_stride_head = from->lse_stride_head;
	p->scale = from->scale;
	p->softcap = from->softcap;
	p->causal = from->causal;
	p->window_left = from->window_left;
	p->window_right = from->window_right;
	p->alibi_slopes = from->alibi_slopes;
	p->sinks = from->sinks;
	p->deterministic = spec->deterministic;
	p->chunk_tokens = from->chunk_tokens;
	p->pattern = from->pattern;
	if (spec->prefixed) {
		own->prefixes = paged_device_upload(spec->prefix, (size_t)spec->batch * 4);
		p->prefix_lengths = POINTER(own->prefixes);
	}
}

void paged_own_deinit(struct paged_own *own)
{
	paged_gpu_free(paged_device_gpu, own->device_kv);
	paged_gpu_free(paged_device_gpu, own->device_table);
	paged_gpu_free(paged_device_gpu, own->device_lengths);
	paged_gpu_free(paged_device_gpu, own->device_cu_q);
	if (own->prefixes)
		paged_gpu_free(paged_device_gpu, own->prefixes);
	if (own->k_scales) {
		paged_gpu_free(paged_device_gpu, own->k_scales);
		paged_gpu_free(paged_device_gpu, own->v_scales);
	}
	free(own->kv);
	free(own->table);
	free(own->lengths);
	free(own->cu_q);
}

struct paged_gpu_plan paged_own_plan(const struct paged_own *own,
                                     const struct paged_problem *problem,
                                     const struct fa_cuda_chip *chip)
{
	struct paged_gpu_plan plan = { .blob = 0 };
	char text[256] = "";

	if (fa_paged_check(&own->request, text, sizeof(text)) < 0)
		paged_fail("%s: refused: %s", paged_describe(problem), text);
	if (paged_gpu_plan(paged_device_gpu, chip, &own->request, &plan) < 0)
		paged_fail("%s: no plan", paged_describe(problem));
	return plan;
}

void paged_own_run(struct paged_own *own, struct paged_device *device,
                   struct paged_problem *problem, const struct paged_gpu_plan *plan)
{
	paged_gpu_fill(paged_device_gpu, device->out, 0xff, problem->out_bytes);
	paged_gpu_fill(paged_device_gpu, device->lse, 0xff, problem->lse_bytes);
	paged_gpu_poison_shared(paged_device_gpu);
	paged_gpu_launch(paged_device_gpu, plan, &own->request);
	paged_gpu_sync(paged_device_gpu);
	paged_gpu_download(paged_device_gpu, problem->out, device->out, problem->out_bytes);
	paged_gpu_download(paged_device_gpu, problem->lse, device->lse, problem->lse_bytes);
}

const char *paged_own_describe(const struct paged_own *own, const struct paged_problem *problem)
{
	static char text[1200];

	snprintf(text, sizeof(text), "%s pages of %d: %s", layout_names[own->layout],
	         own->page_tokens, paged_describe(problem));
	return text;
}
