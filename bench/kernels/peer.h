/*
 * A peer: a library of whoever's kernels, which time-paged measures in turn with ours
 * (--peer LIBRARY[:NAME]). It exports one function, fa_peer_decode, and is opened with
 * dlopen(), so that nothing here knows what it is or is linked with it.
 *
 * A peer gets pools of its own: the same numbers in the layout that most kernels want,
 * [page][token][head][dim], K and V apart. Its pages lie in the order in which ours do, so
 * that both read equally scattered memory.
 *
 * All of it is of one thread. What touches the GPU is in time-paged; this is not.
 */
#pragma once

#include "kernels/paged.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One attention over pages: few new tokens of each sequence, causal, all bf16. Pointers are
 * the device's but for @name. All new tokens are in the pool already. */
struct fa_peer_decode {
	uint32_t size;          /* sizeof(struct fa_peer_decode); it may grow at its end */
	int32_t dtype;          /* FA_ATTENTION_BF16 (3) */
	const char *name;       /* what followed the colon, or "": which of its forms to run */
	const void *q;          /* [batch][n_new][heads][dim] */
	const void *k, *v;      /* [pages][page_tokens][kv_heads][dim] */
	void *out;              /* like q */
	const int32_t *table;   /* [batch][table_pages], page numbers; unused entries are 0 */
	const int32_t *lengths; /* [batch], tokens, the new ones counted */
	void *stream;           /* a CUstream, NULL: the default one */
	int32_t batch, n_new, heads, kv_heads, dim;
	int32_t pages, page_tokens, table_pages;
	int32_t length_max; /* the greatest of lengths */
	float scale;        /* of q · k */
};

/*
 * What the library exports under this name. The primary context of device 0 is current. It
 * enqueues the work on the stream and returns 0, -ENOTSUP for what it does not cover, or
 * another negative errno for a failure. Two requests are the same if their bytes are. The
 * first call with a request is not measured and may take as long as it wants, to allocate, or
 * to try which setting is best; later ones only enqueue, in turn with those of other forms.
 */
typedef int (*fa_peer_decode_fn)(const struct fa_peer_decode *request);

struct fa_peer {
	void *library;
	fa_peer_decode_fn decode;
	char *path;
	const char *name;  /* points into path; "" if there is none */
	const char *title; /* of its rows: the name, else the library's file name */
};

/* Opens LIBRARY[:NAME]. -EINVAL, with a sentence on stderr, if it cannot be opened or does
 * not export the function. */
int fa_peer_open(const char *text, struct fa_peer *ret_peer);
void fa_peer_close(struct fa_peer *peer);

/* The pages of a step's sequences as numbers of pages of @slots_per_page slots each,
 * [batch][*ret_table_pages]; the caller frees it. NULL: no memory. @table is the step's, in
 * host memory. */
int32_t *fa_peer_table(const struct fa_paged_step *step, const uint32_t *table, int32_t page_tokens,
                       uint32_t slots_per_page, int32_t *ret_table_pages);

/* Whether @theirs is what @ours is but for bf16's rounding on the way: no difference may be
 * above 1/64 of the greatest value of ours. NaN anywhere is a difference. The greatest
 * difference, as a part of the greatest value, goes to @ret_worst; infinite for NaN. */
bool fa_peer_agrees(const uint16_t *ours, const uint16_t *theirs, size_t n, double *ret_worst);
