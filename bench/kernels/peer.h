/*
 * A peer: a library with somebody else's kernels that time-paged measures in turn with ours (--peer
 * LIBRARY[:NAME]). It exports fa_peer_decode and is opened by dlopen(), so fad neither knows nor
 * links it.
 *
 * A peer gets its own pool with the same numbers in the common layout [page][token][head][dim], K
 * and V separate. Its pages are scattered like ours. One thread. Only time-paged touches the GPU;
 * peer.c does not.
 */
#pragma once

#include "kernels/paged.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Decode attention over pages: few new tokens per sequence, causal, all bf16. All pointers except
 * @name are device pointers. The new tokens are in the pool already.
 */
struct fa_peer_decode {
	uint32_t size;          /* of this struct, which may grow at its end */
	int32_t dtype;          /* FA_ATTENTION_BF16 (3) */
	const char *name;       /* which variant: the text behind the colon, or "" */
	const void *q;          /* [batch][n_new][heads][dim] */
	const void *k, *v;      /* [pages][page_tokens][kv_heads][dim] */
	void *out;              /* like q */
	const int32_t *table;   /* [batch][table_pages], page numbers; unused entries are 0 */
	const int32_t *lengths; /* token counts, including the new tokens: [batch] */
	void *stream;           /* a CUstream; NULL: the default stream */
	int32_t batch, n_new, heads, kv_heads, dim;
	int32_t pages, page_tokens, table_pages;
	int32_t length_max; /* greatest of lengths */
	float scale;        /* factor on q · k */
};

/*
 * The type of fa_peer_decode. The primary context of device 0 is current. The function enqueues the
 * work on the stream and returns 0, -ENOTSUP if it does not cover the request, or another negative
 * errno. Requests with equal bytes are the same request. The first call with a request is not
 * measured and may allocate or try settings at length; later calls only enqueue, in turn with other
 * variants' calls.
 */
typedef int (*fa_peer_decode_fn)(const struct fa_peer_decode *request);

struct fa_peer {
	void *library;
	fa_peer_decode_fn decode;
	char *path;
	const char *name;  /* points into path; "": none */
	const char *title; /* in result rows: the name, or the library's file name */
};

/* Opens LIBRARY[:NAME]. -EINVAL, with a message on stderr: the library cannot be opened or does not
 * export the function. */
int fa_peer_open(const char *text, struct fa_peer *ret_peer);
void fa_peer_close(struct fa_peer *peer);

/*
 * Returns a step's page table in pages of @slots_per_page slots, [batch][*ret_table_pages]; the
 * caller frees it. NULL: no memory. @table: the step's table, in host memory.
 */
int32_t *fa_peer_table(const struct fa_paged_step *step, const uint32_t *table, int32_t page_tokens,
                       uint32_t slots_per_page, int32_t *ret_table_pages);

/*
 * Returns true if @theirs differs from @ours by bf16 rounding only: at most 1/64 of our greatest
 * value. @ret_worst: the greatest difference, relative to that value; infinite if either has NaN.
 */
bool fa_peer_agrees(const uint16_t *ours, const uint16_t *theirs, size_t n, double *ret_worst);
