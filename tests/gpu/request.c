#include "tests/gpu/request.h"

#include "tests/kernels/reference.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 1024 /* elements around a tensor */

uint64_t fa_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state * 0x2545f4914f6cdd1dull;
}

int64_t fa_random_below(uint64_t *state, int64_t n)
{
	return (int64_t)((fa_random(state) >> 11) % (uint64_t)n);
}

/* Roughly normal, variance 1. */
static float random_normal(uint64_t *state)
{
	const uint64_t bits = fa_random(state);
	float sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (float)(bits >> 16 * i & 0xffff) / 65536 - 0.5f;
	return sum * 1.7320508f;
}

static uint32_t float_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static size_t element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

/*
 * Lays out a tensor in a poisoned buffer. With @random fills it, and makes @broken elements
 * infinite or NaN.
 */
static void tensor_make(struct fa_gpu *gpu, const struct fa_attention_params *params,
                        struct fa_request_layout layout, int64_t tokens, int heads, int dim,
                        int broken, bool v, struct fa_request_tensor *tensor,
                        struct fa_attention_tensor *ret_view, uint64_t *random)
{
	const size_t bytes = element_bytes(params->dtype);
	const int64_t batch = params->cu_seqlens_q ? 1 : params->batch, row = dim + layout.gap;
	const float size = v && layout.v_size > 0 ? layout.v_size : 1;
	char *data;

	if (layout.head_major) {
		ret_view->stride_token = row;
		ret_view->stride_head = row * tokens + layout.gap;
		ret_view->stride_batch = ret_view->stride_head * heads;
	} else {
		ret_view->stride_head = row;
		ret_view->stride_token = row * heads + layout.gap;
		ret_view->stride_batch = ret_view->stride_token * tokens;
	}
	tensor->first = GUARD + layout.first;
	tensor->elements = tensor->first + batch * ret_view->stride_batch + GUARD +
	                   (layout.head_major ? 0 : layout.gap);
	tensor->address = fa_gpu_alloc(gpu, (size_t)tensor->elements * bytes);
	ret_view->data = (void *)(uintptr_t)(tensor->address + (uint64_t)tensor->first * bytes);
	if (!random) {
		fa_gpu_poison(gpu, tensor->address, (size_t)tensor->elements * bytes);
		return;
	}

	data = malloc((size_t)tensor->elements * bytes);
	if (!data)
		abort();
	memset(data, 0xff, (size_t)tensor->elements * bytes);
	for (int64_t b = 0; b < batch; b++)
		for (int64_t t = 0; t < tokens; t++)
			for (int h = 0; h < heads; h++)
				for (int d = 0; d < dim; d++) {
					const float value = size * random_normal(random);

					reference_set(params->dtype, data,
					              tensor->first + b * ret_view->stride_batch +
					                      t * ret_view->stride_token +
					                      h * ret_view->stride_head + d,
					              v && layout.v_positive ? fabsf(value)
					                                     : value);
				}
	for (int i = 0; i < broken && tokens > 0; i++) {
		static const float values[] = { INFINITY, -INFINITY, NAN };

		reference_set(params->dtype, data,
		              tensor->first +
		                      fa_random_below(random, batch) * ret_view->stride_batch +
		                      fa_random_below(random, tokens) * ret_view->stride_token +
		                      fa_random_below(random, heads) * ret_view->stride_head +
		                      fa_random_below(random, dim),
		              values[fa_random_below(random, 3)]);
	}
	fa_gpu_upload(gpu, tensor->address, data, (size_t)tensor->elements * bytes);
	free(data);
}

static uint64_t upload_new(struct fa_gpu *gpu, const void *data, size_t bytes)
{
	const uint64_t address = fa_gpu_alloc(gpu, bytes);

	fa_gpu_upload(gpu, address, data, bytes);
	return address;
}

void fa_request_make(struct fa_gpu *gpu, struct fa_request *request,
                     const struct fa_attention_params *params, const uint32_t *lengths_q,
                     const uint32_t *lengths_k, struct fa_request_layout layout, bool alibi,
                     bool sinks, uint64_t *random)
{
	struct fa_attention_params *p = &request->params;
	struct fa_attention_tensor lse;
	struct fa_attention_params lse_params;
	float values[256];

	memset(request, 0, sizeof(*request));
	*p = *params;
	request->v_size = layout.v_size > 0 ? layout.v_size : 1;
	request->tokens_q = p->seqlen_q;
	request->tokens_k = p->seqlen_k;
	if (lengths_q) {
		const size_t bytes = ((size_t)p->batch + 1) * sizeof(uint32_t);

		request->lengths_q = malloc(bytes);
		request->lengths_k = malloc(bytes);
		if (!request->lengths_q || !request->lengths_k)
			abort();
		memcpy(request->lengths_q, lengths_q, bytes);
		memcpy(request->lengths_k, lengths_k, bytes);
		request->cu_q = fa_gpu_alloc_shared(gpu, bytes);
		memcpy((void *)(uintptr_t)request->cu_q, lengths_q, bytes);
		request->cu_k = fa_gpu_alloc_shared(gpu, bytes);
		memcpy((void *)(uintptr_t)request->cu_k, lengths_k, bytes);
		p->cu_seqlens_q = (const uint32_t *)(uintptr_t)request->cu_q;
		p->cu_seqlens_k = (const uint32_t *)(uintptr_t)request->cu_k;
		p->seqlen_q = p->seqlen_k = 0;
		for (int b = 0; b < p->batch; b++) {
			if (lengths_q[b + 1] - lengths_q[b] > p->seqlen_q)
				p->seqlen_q = lengths_q[b + 1] - lengths_q[b];
			if (lengths_k[b + 1] - lengths_k[b] > p->seqlen_k)
				p->seqlen_k = lengths_k[b + 1] - lengths_k[b];
		}
		request->tokens_q = lengths_q[p->batch];
		request->tokens_k = lengths_k[p->batch];
	}
	tensor_make(gpu, p, layout, request->tokens_q, p->heads, p->head_dim, 0, false, &request->q,
	            &p->q, random);
	/*
	 * A broken element of K breaks all rows that see its token. K has fewer of them, so that
	 * enough rows can be compared.
	 */
	tensor_make(gpu, p, layout, request->tokens_k, p->kv_heads, p->head_dim, layout.broken / 6,
	            false, &request->k, &p->k, random);
	tensor_make(gpu, p, layout, request->tokens_k, p->kv_heads, p->head_dim_v, layout.broken,
	            true, &request->v, &p->v, random);
	tensor_make(gpu, p, layout, request->tokens_q, p->heads, p->head_dim_v, 0, false,
	            &request->out, &p->out, NULL);
	lse_params = *p;
	lse_params.dtype = FA_ATTENTION_F32;
	tensor_make(gpu, &lse_params, layout, request->tokens_q, p->heads, 1, 0, false,
	            &request->lse, &lse, NULL);
	p->lse = lse.data;
	p->lse_stride_batch = lse.stride_batch;
	p->lse_stride_head = lse.stride_head;
	p->lse_stride_token = lse.stride_token;

	if (alibi) {
		for (int h = 0; h < p->heads; h++)
			values[h] = (float)exp2(-8.0 * (h + 1) / p->heads);
		request->alibi = upload_new(gpu, values, (size_t)p->heads * sizeof(float));
		p->alibi_slopes = (const float *)(uintptr_t)request->alibi;
	}
	if (sinks) {
		for (int h = 0; h < p->heads; h++)
			values[h] = 3 * random_normal(random);
		request->sinks = upload_new(gpu, values, (size_t)p->heads * sizeof(float));
		p->sinks = (const float *)(uintptr_t)request->sinks;
	}

	snprintf(request->text, sizeof(request->text),
	         "%s batch %d heads %d/%d dim %d/%d tokens %lld/%lld (longest %lld/%lld)%s scale %g"
	         "%s window %lld,%lld softcap %g%s%s broken %d%s gap %d first %d "
	         "V's size %g%s",
	         p->dtype == FA_ATTENTION_F32   ? "f32"
	         : p->dtype == FA_ATTENTION_F16 ? "f16"
	                                        : "bf16",
	         p->batch, p->heads, p->kv_heads, p->head_dim, p->head_dim_v,
	         (long long)request->tokens_q, (long long)request->tokens_k, (long long)p->seqlen_q,
	         (long long)p->seqlen_k, lengths_q ? " ragged" : "", p->scale,
	         p->causal ? " causal" : "", (long long)p->window_left, (long long)p->window_right,
	         p->softcap, alibi ? " alibi" : "", sinks ? " sinks" : "", layout.broken,
	         layout.head_major ? " head-major" : "", layout.gap, layout.first,
	         (double)request->v_size, layout.v_positive ? ", positive" : "");
}

/* Sets the first element of each of a tensor's rows: to @value, or to @value * values[token]. */
static void set_first_elements(struct fa_gpu *gpu, const struct fa_attention_params *params,
                               const struct fa_request_tensor *tensor,
                               const struct fa_attention_tensor *view, int64_t tokens, int heads,
                               float value, const float *values)
{
	const size_t bytes = (size_t)tensor->elements * element_bytes(params->dtype);
	const int64_t batch = params->cu_seqlens_q ? 1 : params->batch;
	char *data = malloc(bytes);

	if (!data)
		abort();
	fa_gpu_download(gpu, data, tensor->address, bytes);
	for (int64_t b = 0; b < batch; b++)
		for (int64_t t = 0; t < tokens; t++)
			for (int h = 0; h < heads; h++)
				reference_set(params->dtype, data,
				              tensor->first + b * view->stride_batch +
				                      t * view->stride_token +
				                      h * view->stride_head,
				              value * (values ? values[t] : 1));
	fa_gpu_upload(gpu, tensor->address, data, bytes);
	free(data);
}

void fa_request_raise(struct fa_gpu *gpu, struct fa_request *request, const float *nats)
{
	const struct fa_attention_params *p = &request->params;

	set_first_elements(gpu, p, &request->q, &p->q, request->tokens_q, p->heads, 8, NULL);
	set_first_elements(gpu, p, &request->k, &p->k, request->tokens_k, p->kv_heads,
	                   1 / (8 * p->scale), nats);
}

/* Returns a length: often near a tile's border, sometimes tiny, sometimes long. */
static int64_t random_length(uint64_t *random)
{
	switch (fa_random_below(random, 4)) {
	case 0:
		return fa_random_below(random, 20);
	case 1: {
		const int64_t length = 32 * fa_random_below(random, 12) +
		                       fa_random_below(random, 5) - 2;

		return length < 0 ? 1 : length;
	}
	case 2:
		return fa_random_below(random, 300);
	default:
		return fa_random_below(random, 1300);
	}
}

void fa_request_random(struct fa_gpu *gpu, struct fa_request *request, uint64_t *random)
{
	static const int dims[] = { 64, 128, 256, 96, 192, 80, 40, 72, 8, 104, 200, 248 };
	struct fa_attention_params params = { .window_left = -1, .window_right = -1 };
	struct fa_request_layout layout = { 0 };
	const int group = 1 + (int)fa_random_below(random, 8);
	const bool ragged = fa_random_below(random, 3) == 0;
	uint32_t lengths_q[9] = { 0 }, lengths_k[9] = { 0 };

	params.dtype = (enum fa_attention_dtype)(FA_ATTENTION_F32 + fa_random_below(random, 3));
	params.batch = 1 + (int)fa_random_below(random, ragged ? 8 : 3);
	params.kv_heads = 1 + (int)fa_random_below(random, 3);
	params.heads = params.kv_heads * group;
	params.head_dim = dims[fa_random_below(random, 12)];
	params.head_dim_v = params.head_dim;
	if (fa_random_below(random, 4) == 0)
		params.head_dim_v = 8 * (1 + (int)fa_random_below(random, 64));
	params.seqlen_q = random_length(random);
	params.seqlen_k = random_length(random);
	if (fa_random_below(random, 3) == 0)
		params.seqlen_k = params.seqlen_q;
	if (ragged) {
		for (int b = 0; b < params.batch; b++) {
			lengths_q[b + 1] = lengths_q[b] + (uint32_t)random_length(random);
			lengths_k[b + 1] = lengths_k[b] + (uint32_t)random_length(random);
		}
	}
	params.scale = (float)(1 / sqrt(params.head_dim));
	switch (fa_random_below(random, 12)) {
	case 0:
		params.scale *= -1;
		break;
	case 1:
		params.scale = 0;
		break;
	case 2:
	case 3:
		params.scale *= 8; /* peaked scores: the running maximum changes */
		break;
	}
	params.causal = fa_random_below(random, 2);
	if (fa_random_below(random, 3) == 0)
		params.window_left = fa_random_below(random, 400);
	if (fa_random_below(random, 4) == 0)
		params.window_right = fa_random_below(random, 300);
	if (fa_random_below(random, 5) == 0)
		params.softcap = (float)(1 + fa_random_below(random, 50));
	layout.head_major = fa_random_below(random, 2);
	if (fa_random_below(random, 3) == 0)
		layout.gap = 8 * (int)fa_random_below(random, 5);
	if (fa_random_below(random, 6) == 0) {
		layout.gap = (int)fa_random_below(random, 20);
		layout.first = (int)fa_random_below(random, 8);
	}
	if (fa_random_below(random, 6) == 0)
		layout.broken = 1 + (int)fa_random_below(random, 20);
	const bool alibi = fa_random_below(random, 6) == 0;
	const bool sinks = fa_random_below(random, 6) == 0;

	fa_request_make(gpu, request, &params, ragged ? lengths_q : NULL, ragged ? lengths_k : NULL,
	                layout, alibi, sinks, random);
}

void fa_request_free(struct fa_gpu *gpu, struct fa_request *request)
{
	fa_gpu_free(gpu, request->q.address);
	fa_gpu_free(gpu, request->k.address);
	fa_gpu_free(gpu, request->v.address);
	fa_gpu_free(gpu, request->out.address);
	fa_gpu_free(gpu, request->lse.address);
	fa_gpu_free_shared(gpu, request->cu_q);
	fa_gpu_free_shared(gpu, request->cu_k);
	fa_gpu_free(gpu, request->alibi);
	fa_gpu_free(gpu, request->sinks);
	free(request->lengths_q);
	free(request->lengths_k);
	memset(request, 0, sizeof(*request));
}

static int64_t rows_of(const struct fa_request *request)
{
	return (request->lengths_q ? 1 : request->params.batch) * request->tokens_q *
	       request->params.heads;
}

static void *download(struct fa_gpu *gpu, uint64_t address, size_t bytes)
{
	void *data = malloc(bytes + 1);

	if (!data)
		abort();
	fa_gpu_download(gpu, data, address, bytes);
	return data;
}

void fa_request_reference(struct fa_gpu *gpu, const struct fa_request *request,
                          struct fa_request_reference *ret_reference)
{
	const int64_t rows = rows_of(request), count = rows * request->params.head_dim_v;
	const uint64_t out = fa_gpu_alloc(gpu, (size_t)count * sizeof(double) + 8);
	const uint64_t lse = fa_gpu_alloc(gpu, (size_t)rows * sizeof(double) + 8);

	fa_gpu_reference(gpu, &request->params, out, lse, true);
	fa_gpu_sync(gpu);
	ret_reference->naive = download(gpu, out, (size_t)count * sizeof(double));
	fa_gpu_reference(gpu, &request->params, out, lse, false);
	fa_gpu_sync(gpu);
	ret_reference->out = download(gpu, out, (size_t)count * sizeof(double));
	ret_reference->lse = download(gpu, lse, (size_t)rows * sizeof(double));
	fa_gpu_free(gpu, out);
	fa_gpu_free(gpu, lse);
}

void fa_request_reference_free(struct fa_request_reference *reference)
{
	free(reference->out);
	free(reference->naive);
	free(reference->lse);
	memset(reference, 0, sizeof(*reference));
}

void fa_request_download(struct fa_gpu *gpu, const struct fa_request *request,
                         struct fa_request_copy *ret_copy)
{
	const size_t bytes = element_bytes(request->params.dtype);
	const size_t heads_bytes = (size_t)request->params.heads * sizeof(float);
	struct fa_attention_params *p = &ret_copy->params;

	*p = request->params;
	ret_copy->q = download(gpu, request->q.address, (size_t)request->q.elements * bytes);
	ret_copy->k = download(gpu, request->k.address, (size_t)request->k.elements * bytes);
	ret_copy->v = download(gpu, request->v.address, (size_t)request->v.elements * bytes);
	ret_copy->alibi = request->alibi ? download(gpu, request->alibi, heads_bytes) : NULL;
	ret_copy->sinks = request->sinks ? download(gpu, request->sinks, heads_bytes) : NULL;
	p->q.data = ret_copy->q + (size_t)request->q.first * bytes;
	p->k.data = ret_copy->k + (size_t)request->k.first * bytes;
	p->v.data = ret_copy->v + (size_t)request->v.first * bytes;
	p->out.data = NULL;
	p->lse = NULL;
	p->cu_seqlens_q = request->lengths_q;
	p->cu_seqlens_k = request->lengths_k;
	p->alibi_slopes = ret_copy->alibi;
	p->sinks = ret_copy->sinks;
}

void fa_request_copy_free(struct fa_request_copy *copy)
{
	free(copy->q);
	free(copy->k);
	free(copy->v);
	free(copy->alibi);
	free(copy->sinks);
	memset(copy, 0, sizeof(*copy));
}

static void *run(struct fa_gpu *gpu, const struct fa_request *request,
                 const struct fa_cuda_launch *launch, float **ret_lse)
{
	const size_t out_bytes = (size_t)request->out.elements *
	                         element_bytes(request->params.dtype);
	const size_t lse_bytes = (size_t)request->lse.elements * sizeof(float);
	void *out = malloc(out_bytes);
	float *lse = malloc(lse_bytes);

	if (!out || !lse)
		abort();
	fa_gpu_poison(gpu, request->out.address, out_bytes);
	fa_gpu_poison(gpu, request->lse.address, lse_bytes);
	fa_gpu_poison_shared(gpu);
	fa_gpu_launch(gpu, launch, NULL);
	fa_gpu_sync(gpu);
	fa_gpu_download(gpu, out, request->out.address, out_bytes);
	fa_gpu_download(gpu, lse, request->lse.address, lse_bytes);
	*ret_lse = lse;
	return out;
}

/*
 * Returns the allowed error. FlashAttention's rule: twice the error of the naive computation in the
 * same type, plus rounding near the values. For fp32: a fixed share of the largest value, or twice
 * the rounding error of scores if that is larger. (A score is rounded to 2^-23 of itself, a weight
 * has the error of its score, and no relevant score exceeds the LSE.)
 */
static double allowed(const struct fa_request *request,
                      const struct fa_request_reference *reference)
{
	const int64_t count = rows_of(request) * request->params.head_dim_v;
	const double shift = 0.3 * (double)request->v_size;
	double naive = 0, rounding = 0, largest = 0, lse = 0;

	for (int64_t i = 0; i < rows_of(request); i++)
		if (isfinite(reference->lse[i]))
			lse = fmax(lse, fabs(reference->lse[i]));
	for (int64_t i = 0; i < count; i++) {
		const double value = reference->out[i];

		if (!isfinite(value))
			continue;
		const double there = reference_round(request->params.dtype, value + shift);

		if (isfinite(reference->naive[i]))
			naive = fmax(naive, fabs(reference->naive[i] - value));
		rounding = fmax(rounding,
		                fabs(reference_round(request->params.dtype, there - shift) -
		                     reference_round(request->params.dtype, value)));
		largest = fmax(largest, fabs(value));
	}
	if (request->params.dtype == FA_ATTENTION_F32)
		return fmax(1e-5, 2 * ldexp(lse, -23)) * largest;
	return 2 * naive + 2 * rounding;
}

bool fa_request_check(struct fa_gpu *gpu, const struct fa_request *request,
                      const struct fa_cuda_launch *launch,
                      const struct fa_request_reference *reference, char *text, size_t text_bytes,
                      double *ret_error)
{
	const struct fa_attention_params *p = &request->params;
	const size_t bytes = element_bytes(p->dtype);
	const int64_t batch = request->lengths_q ? 1 : p->batch;
	float *lse, *lse_again;
	char *out = run(gpu, request, launch, &lse);
	char *again = run(gpu, request, launch, &lse_again);
	const double bound = allowed(request, reference);
	/*
	 * In fp32 a capped logit is only accurate to 2^-17 of itself
	 * (kernels/cuda/common/softcap.h), and it may be large where ALiBi makes the LSE small.
	 */
	const double capped = p->dtype == FA_ATTENTION_F32 ? 0 : ldexp(p->softcap, -17);
	double error = 0;
	bool ok = true;

#define FAIL(...)                                                                                  \
	do {                                                                                       \
		if (ok)                                                                            \
			snprintf(text, text_bytes, __VA_ARGS__);                                   \
		ok = false;                                                                        \
	} while (0)

	if (memcmp(out, again, (size_t)request->out.elements * bytes) ||
	    memcmp(lse, lse_again, (size_t)request->lse.elements * sizeof(float)))
		FAIL("a second run gave other bits");

	/* Compare each value and poison it again: then the whole buffer must be poison. */
	for (int64_t b = 0; b < batch; b++)
		for (int64_t t = 0; t < request->tokens_q; t++)
			for (int h = 0; h < p->heads; h++) {
				const int64_t row = (b * request->tokens_q + t) * p->heads + h;
				const int64_t at = request->out.first + b * p->out.stride_batch +
				                   t * p->out.stride_token + h * p->out.stride_head;
				float *l = &lse[request->lse.first + b * p->lse_stride_batch +
				                t * p->lse_stride_token + h * p->lse_stride_head];
				const double want = reference->lse[row];

				for (int d = 0; d < p->head_dim_v; d++) {
					const double value = reference_get(p->dtype, out, at + d);
					const double expected =
						reference->out[row * p->head_dim_v + d];
					const double off = isfinite(expected)
					                           ? fabs(value - expected)
					                   : isfinite(value) ? INFINITY
					                                     : 0;

					if (!(off <= bound))
						FAIL("out[%lld][%lld][%d][%d] is %g, not %g "
						     "(error %g, allowed %g)",
						     (long long)b, (long long)t, h, d, value,
						     expected, off, bound);
					error = fmax(error, off);
				}
				memset(out + at * (int64_t)bytes, 0xff,
				       (size_t)p->head_dim_v * bytes);
				if (isnan(want)   ? isfinite(*l)
				    : isinf(want) ? *l != want
				                  : !(fabs(*l - want) <=
				                      2e-5 * fmax(1, fabs(want)) + capped))
					FAIL("lse[%lld][%lld][%d] is %g, not %g", (long long)b,
					     (long long)t, h, *l, want);
				memset(l, 0xff, sizeof(*l));
			}
	for (int64_t i = 0; i < request->out.elements * (int64_t)bytes; i++)
		if ((unsigned char)out[i] != 0xff) {
			FAIL("byte %lld of out's buffer, outside the tensor, was written",
			     (long long)i);
			break;
		}
	for (int64_t i = 0; i < request->lse.elements; i++)
		if (float_bits(lse[i]) != ~0u) {
			FAIL("element %lld of lse's buffer, outside the tensor, was written",
			     (long long)i);
			break;
		}
#undef FAIL
	free(out);
	free(again);
	free(lse);
	free(lse_again);
	*ret_error = bound > 0 ? error / bound : 0;
	return ok;
}
