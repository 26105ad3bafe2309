/*
 * Masks over tensors that no kernel has, on any kernel. Each chunk in which a sequence has rows
 * becomes a sequence of a ragged batch, with that chunk's keys; keys of chunks without rows belong
 * to sequences without rows. Prefixes that hide nothing, or all that causal does, become causal or
 * its absence. Pure functions; the caller frees what they return.
 */
#include "kernels/cuda/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct parts {
	const struct fa_attention_params *params;
	int64_t n; /* sequences of the ragged batch so far */
	int64_t longest_q, longest_k, all_q, all_k;
	uint32_t *cu_q, *cu_k; /* NULL: they are only counted */
};

static void add(struct parts *parts, int64_t n_q, int64_t n_k)
{
	const int64_t n = parts->n++;

	if (n_q > parts->longest_q)
		parts->longest_q = n_q;
	if (n_k > parts->longest_k)
		parts->longest_k = n_k;
	parts->all_q += n_q;
	parts->all_k += n_k;
	if (!parts->cu_q)
		return;
	parts->cu_q[n + 1] = parts->cu_q[n] + (uint32_t)n_q;
	parts->cu_k[n + 1] = parts->cu_k[n] + (uint32_t)n_k;
}

/* Gives up at @most parts of all sequences. */
static void add_sequence(struct parts *parts, int64_t n_q, int64_t n_k, int64_t most)
{
	const int64_t chunk = parts->params->chunk_tokens;
	int64_t row = n_k - n_q, key = 0; /* the next position, and the next key */

	if (n_q == 0) {
		add(parts, 0, n_k);
		return;
	}
	/* Rows before the first key see none. */
	if (row < 0) {
		add(parts, n_k < n_q ? -row : n_q, 0);
		row = 0;
	}
	while (row < n_k && parts->n <= most) {
		const int64_t begin = row / chunk * chunk;
		const int64_t end = chunk < n_k - begin ? begin + chunk : n_k;

		if (key < begin)
			add(parts, 0, begin - key);
		add(parts, end - row, end - begin);
		row = key = end;
	}
}

static void add_all(struct parts *parts, int64_t most)
{
	const struct fa_attention_params *p = parts->params;

	parts->n = parts->all_q = parts->all_k = 0;
	for (int32_t b = 0; b < p->batch && parts->n <= most; b++)
		add_sequence(parts,
		             p->cu_seqlens_q ? (int64_t)p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b]
		                             : p->seqlen_q,
		             p->cu_seqlens_k ? (int64_t)p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b]
		                             : p->seqlen_k,
		             most);
}

/* True if a batch's sequences follow one another along the tokens, as in ragged batches. Where each
 * has one token, *stride_token becomes such that they do. */
static bool follow(const struct fa_attention_params *params, int64_t *stride_batch,
                   int64_t *stride_token, int64_t tokens)
{
	const int64_t between = *stride_batch;

	*stride_batch = 0;
	if (params->batch == 1 || params->cu_seqlens_q || tokens == 0)
		return true;
	if (tokens == 1)
		*stride_token = between;
	return between == tokens * *stride_token;
}

/* Makes the tensors of @p ragged. Returns the name of one that cannot be. */
static const char *join(struct fa_attention_params *p)
{
	if (!follow(p, &p->q.stride_batch, &p->q.stride_token, p->seqlen_q))
		return "q";
	if (!follow(p, &p->k.stride_batch, &p->k.stride_token, p->seqlen_k))
		return "k";
	if (!follow(p, &p->v.stride_batch, &p->v.stride_token, p->seqlen_k))
		return "v";
	if (!follow(p, &p->out.stride_batch, &p->out.stride_token, p->seqlen_q))
		return "out";
	if (!follow(p, &p->lse_stride_batch, &p->lse_stride_token, p->seqlen_q) && p->lse)
		return "lse";
	return NULL;
}

void fa_cuda_prefixes_add(struct fa_cuda_prefixes *prefixes, int64_t n_q, int64_t n_k,
                          int64_t prefix)
{
	/* The last row is at the last key, and sees all with causal. */
	if (n_q < 2 || n_k == 0)
		return;
	if (prefix >= n_k)
		prefixes->all = true;
	else if (prefix == 0 || prefix <= n_k - n_q + 1)
		prefixes->none = true;
	else
		prefixes->some = true;
}

int fa_cuda_prefixes_causal(const struct fa_cuda_prefixes *prefixes, bool *ret_causal, char *text,
                            size_t text_bytes)
{
	if (!prefixes->some && !(prefixes->all && prefixes->none)) {
		*ret_causal = !prefixes->all;
		return 0;
	}
	snprintf(text, text_bytes, "prefix_lengths are not supported on a GPU where %s",
	         prefixes->some
	                 ? "one ends among the rows of its sequence"
	                 : "one ends before the rows of its sequence, and another one behind them");
	return -ENOTSUP;
}

static int remove_prefixes(struct fa_attention_params *params, char *text, size_t text_bytes)
{
	const uint32_t *q = params->cu_seqlens_q, *k = params->cu_seqlens_k;
	struct fa_cuda_prefixes prefixes = { false };

	for (int32_t b = 0; b < params->batch && params->causal; b++)
		fa_cuda_prefixes_add(&prefixes, q ? (int64_t)q[b + 1] - q[b] : params->seqlen_q,
		                     k ? (int64_t)k[b + 1] - k[b] : params->seqlen_k,
		                     params->prefix_lengths[b]);
	params->prefix_lengths = NULL;
	return params->causal
	               ? fa_cuda_prefixes_causal(&prefixes, &params->causal, text, text_bytes)
	               : 0;
}

static int divide(const struct fa_attention_params *params, int32_t most, char *text,
                  size_t text_bytes, struct fa_attention_params *ret_params, uint32_t **ret_lengths)
{
	struct parts parts = { .params = params };
	struct fa_attention_params divided = *params;
	const char *name = join(&divided);
	uint32_t *lengths;

	if (name) {
		snprintf(text, text_bytes,
		         "chunk_tokens %lld is not supported on a GPU where sequences of %s do not "
		         "follow one another",
		         (long long)params->chunk_tokens, name);
		return -ENOTSUP;
	}
	add_all(&parts, most);
	if (parts.n > most) {
		snprintf(
			text, text_bytes,
			"chunk_tokens %lld divides the batch into more than %d parts, which is not "
			"supported on a GPU",
			(long long)params->chunk_tokens, most);
		return -ENOTSUP;
	}
	/* With strides of 0 a tensor may have more rows than bytes. */
	if (parts.all_q > UINT32_MAX || parts.all_k > UINT32_MAX) {
		snprintf(text, text_bytes,
		         "chunk_tokens %lld is not supported on a GPU where a batch has more than "
		         "2^32 rows or keys",
		         (long long)params->chunk_tokens);
		return -ENOTSUP;
	}
	lengths = calloc(2 * ((size_t)parts.n + 1), sizeof(*lengths));
	if (!lengths) {
		snprintf(text, text_bytes, "no memory to divide a batch by chunks");
		return -ENOMEM;
	}
	parts.cu_q = lengths;
	parts.cu_k = lengths + parts.n + 1;
	add_all(&parts, most);
	divided.batch = (int32_t)parts.n;
	divided.seqlen_q = parts.longest_q;
	divided.seqlen_k = parts.longest_k;
	divided.cu_seqlens_q = parts.cu_q;
	divided.cu_seqlens_k = parts.cu_k;
	divided.chunk_tokens = 0;
	*ret_params = divided;
	*ret_lengths = lengths;
	return 0;
}

int fa_cuda_masks_rewrite(struct fa_attention_params *params, int32_t most, char *text,
                          size_t text_bytes, uint32_t **ret_lengths)
{
	struct fa_attention_params rewritten = *params;
	uint32_t *lengths = NULL;
	int r = 0;

	if (fa_attention_mask_name(params) && fa_cuda_has_chunks(params)) {
		snprintf(text, text_bytes,
		         "chunk_tokens %lld is not supported on a GPU together with %s",
		         (long long)params->chunk_tokens, fa_attention_mask_name(params));
		return -ENOTSUP;
	}
	if (params->prefix_lengths)
		r = remove_prefixes(&rewritten, text, text_bytes);
	if (r == 0 && fa_cuda_has_chunks(&rewritten))
		r = divide(&rewritten, most, text, text_bytes, &rewritten, &lengths);
	if (r < 0)
		return r;
	*params = rewritten;
	*ret_lengths = lengths;
	return 0;
}
