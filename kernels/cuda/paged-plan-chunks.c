/*
 * Attention chunks over the pool's pages: each in which a sequence has new tokens becomes a
 * sequence, whose earlier tokens count as dropped. Pure functions; the caller frees what they
 * return.
 */
#include "kernels/cuda/paged-plan-private.h"

#include <errno.h>
#include <stdlib.h>

/* Parts of a step with chunks: as many as a step may have sequences. */
#define PARTS_MAX 4096

/* A sequence's new tokens. @begin may be below 0. */
struct span {
	int64_t begin, end;
};

static struct span span_of(const struct fa_paged_step *step, int32_t b)
{
	const int64_t length = step->lengths[b];

	return (struct span){ length - fa_cuda_paged_n_new(step, b), length };
}

/* Returns the end of the part that begins at position @begin. */
static int64_t part_end(const struct fa_paged_attention *p, int64_t begin, int64_t end)
{
	const int64_t chunk = p->chunk_tokens;
	int64_t part;

	if (begin < 0)
		return end < 0 ? end : 0;
	part = begin / chunk * chunk;
	return chunk >= end - part ? end : part + chunk;
}

/* Returns PARTS_MAX + 1 for more than PARTS_MAX. */
static int64_t count_parts(const struct fa_paged_attention *p)
{
	int64_t n = 0;

	for (int32_t b = 0; b < p->step->batch; b++) {
		const struct span span = span_of(p->step, b);

		n += span.begin == span.end;
		for (int64_t at = span.begin; at < span.end && n <= PARTS_MAX; n++)
			at = part_end(p, at, span.end);
	}
	return n > PARTS_MAX ? PARTS_MAX + 1 : n;
}

static void fill_part(struct fa_cuda_paged_chunks *chunks, const struct fa_paged_attention *p,
                      int32_t b, int32_t part, int64_t begin, int64_t end)
{
	const struct fa_paged_step *step = p->step;
	const uint32_t first = step->first ? step->first[b] : 0,
		       length = end > 0 ? (uint32_t)end : 0;
	const uint32_t n_new = (uint32_t)(end - begin);
	const int64_t chunk = begin > 0 ? begin / p->chunk_tokens * p->chunk_tokens : 0;

	chunks->cu_new[part + 1] = chunks->cu_new[part] + n_new;
	chunks->lengths[part] = length;
	chunks->before[part] = step->lengths_before[b] == step->lengths[b] ? length
	                                                                   : length - n_new;
	chunks->first[part] = first > chunk ? first : (uint32_t)chunk;
	if (chunks->first[part] > length)
		chunks->first[part] = length;
	chunks->table_start[part] = step->table_start[b];
	chunks->tree_start[part] = p->tree ? p->tree_start[b] : FA_PAGED_NO_TREE;
}

/* -ENOTSUP: a tree, whose positions are not known here, would be divided. */
static int fill(struct fa_cuda_paged_chunks *chunks, const struct fa_paged_attention *p, char *text,
                size_t text_bytes)
{
	int32_t part = 0;

	for (int32_t b = 0; b < p->step->batch; b++) {
		const struct span span = span_of(p->step, b);
		int64_t at = span.begin;

		do {
			const int64_t end = part_end(p, at, span.end);

			if (fa_cuda_paged_has_tree(p, b) && end < span.end)
				return fa_cuda_paged_fail(
					text, text_bytes,
					"the tree of sequence %d crosses the border of a chunk of "
					"%lld tokens, which is not supported on a GPU",
					b, (long long)p->chunk_tokens);
			fill_part(chunks, p, b, part++, at, end);
			at = end;
		} while (at < span.end);
	}
	return 0;
}

int fa_cuda_paged_chunks_new(const struct fa_paged_attention *p, char *text, size_t text_bytes,
                             struct fa_cuda_paged_chunks **ret_chunks)
{
	const int64_t n = count_parts(p);
	struct fa_cuda_paged_chunks *chunks;
	uint32_t *arrays;
	int r;

	if (n > PARTS_MAX)
		return fa_cuda_paged_fail(text, text_bytes,
		                          "chunks of %lld tokens divide the step into more than "
		                          "%d parts, which is not supported on a GPU",
		                          (long long)p->chunk_tokens, PARTS_MAX);
	chunks = calloc(1, sizeof(*chunks) + (6 * (size_t)n + 1) * sizeof(uint32_t));
	if (!chunks) {
		(void)fa_cuda_paged_fail(text, text_bytes, "no memory to divide a step by chunks");
		return -ENOMEM;
	}
	arrays = (uint32_t *)(chunks + 1);
	chunks->lengths = arrays;
	chunks->before = arrays + n;
	chunks->first = arrays + 2 * n;
	chunks->table_start = arrays + 3 * n;
	chunks->tree_start = arrays + 4 * n;
	chunks->cu_new = arrays + 5 * n;
	r = fill(chunks, p, text, text_bytes);
	if (r < 0) {
		free(chunks);
		return r;
	}
	chunks->step = *p->step;
	chunks->step.batch = (int32_t)n;
	chunks->step.cu_new = chunks->cu_new;
	chunks->step.lengths = chunks->lengths;
	chunks->step.lengths_before = chunks->before;
	chunks->step.first = chunks->first;
	chunks->step.table_start = chunks->table_start;
	chunks->attention = *p;
	chunks->attention.step = &chunks->step;
	chunks->attention.tree_start = chunks->tree_start;
	chunks->attention.chunk_tokens = 0;
	*ret_chunks = chunks;
	return 0;
}
