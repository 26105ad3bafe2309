/*
 * The messages of the KV cache, as plain C structs; part of wire.h. Caches and
 * sequences are named by numbers that the daemon gives and never gives again; they
 * are good after the daemon was restarted, too. What a session made and gave no name
 * is its own and ends with it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Who, besides the tenant that made it, may do what with an object that has a name:
 * two bits for each right, lowest first: read, append, fork. */
#define FA_WIRE_ADMIT_TENANT 0u /* the same uid and cgroup */
#define FA_WIRE_ADMIT_UID 1u
#define FA_WIRE_ADMIT_ALL 2u

#define FA_WIRE_CACHE_V_IN_K (1u << 0) /* V is the front of K: it is not stored */
/* With codes: each token's rows have scales of their own; else k_scales and v_scales say
 * those of heads. */
#define FA_WIRE_CACHE_TOKEN_SCALES (1u << 1)

/* How K and V are stored: as they come, or as codes of a byte. */
#define FA_WIRE_STORE_PLAIN 0u
#define FA_WIRE_STORE_E4M3 1u
#define FA_WIRE_STORE_INT8 2u

#define FA_WIRE_SCALES_MAX 8000 /* entries of k_scales and v_scales */

/*
 * layers, kv_heads, head_dim, head_dim_v (of V), dtype as in views; page_tokens 0: 64;
 * max_pages 0: as many as there are; ttl_ns 0: for ever, only with a name. k_scales,
 * v_scales: [layers][kv_heads], with codes and without TOKEN_SCALES, else absent. Answered
 * by CacheReply.
 */
struct fa_wire_cache_create {
	struct fa_wire_string name; /* absent: none */
	uint32_t mode;
	uint64_t ttl_ns;
	uint8_t dtype;
	uint32_t flags;
	uint32_t layers, kv_heads, head_dim, head_dim_v, page_tokens;
	uint64_t max_pages;
	uint8_t store;
	const float *k_scales, *v_scales;
	size_t n_k_scales, n_v_scales;
};

/* By its name or, if that is absent, its number. Answered by CacheReply. */
struct fa_wire_cache_find {
	struct fa_wire_string name;
	uint64_t cache;
};

/* Frees its sequences too. Answered by Reply. */
struct fa_wire_cache_remove {
	uint64_t cache;
};

struct fa_wire_cache_reply {
	uint64_t cache;
	uint32_t mode;
	uint8_t dtype;
	uint32_t flags;
	uint32_t layers, kv_heads, head_dim, head_dim_v, page_tokens;
	uint64_t page_bytes; /* of all layers */
	uint64_t max_pages, used_pages, idle_pages;
	uint32_t sequences;
	uint8_t store;
};

/* Answered by SequenceReply, like all that follow up to SequenceAttach, but for
 * SequenceFree: that by Reply. */
struct fa_wire_sequence_create {
	uint64_t cache;
};

struct fa_wire_sequence_find {
	struct fa_wire_string name;
};

/* A new one with the first tokens of another; UINT64_MAX: all. */
struct fa_wire_sequence_fork {
	uint64_t sequence;
	uint64_t tokens;
};

struct fa_wire_sequence_set_name {
	uint64_t sequence;
	struct fa_wire_string name;
	uint32_t mode;
	uint64_t ttl_ns;
};

struct fa_wire_sequence_truncate {
	uint64_t sequence;
	uint64_t tokens;
};

struct fa_wire_sequence_drop {
	uint64_t sequence;
	uint64_t first; /* the first token that is still needed */
};

struct fa_wire_sequence_free {
	uint64_t sequence;
};

struct fa_wire_sequence_info {
	uint64_t sequence;
};

struct fa_wire_sequence_reply {
	uint64_t sequence, cache;
	uint64_t length;  /* tokens that a crash cannot take */
	uint64_t planned; /* with those of steps in flight */
	uint64_t first;   /* tokens before it were dropped */
	uint64_t step;    /* the step committed last */
	uint32_t mode;
	uint64_t matched; /* SequenceAttach: tokens found; SequencePublish: pages that are new */
};

#define FA_WIRE_PREFIX_SHARED (1u << 0) /* with every tenant that says so */
#define FA_WIRE_EXTRA_MAX 256           /* bytes of extra */
#define FA_WIRE_TOKENS_MAX 16000        /* entries of vectors; more lie in a buffer */

/* tokens, or tokens_view: rank 1, dtype 0, uint32 in a buffer of the CPU's memory. */
struct fa_wire_sequence_publish {
	uint64_t sequence;
	uint32_t flags;
	const uint8_t *extra; /* what else the contents depend on */
	size_t n_extra;
	const uint32_t *tokens;
	size_t n_tokens;
	struct fa_wire_view tokens_view;
};

/* Puts the longest published prefix into an empty sequence. */
struct fa_wire_sequence_attach {
	uint64_t sequence;
	uint32_t flags;
	const uint8_t *extra;
	size_t n_extra;
	const uint32_t *tokens;
	size_t n_tokens;
	struct fa_wire_view tokens_view;
};

#define FA_WIRE_COPY_WRITE (1u << 0) /* from k and v to the pages; else the reverse */

/*
 * k and v: rank 3, [tokens, kv_heads, dim], of the cache's dtype: tokens from first on.
 * In the stream's order, value as in Attention; answered by Completion. To write, the
 * tokens are those that a step of this session has planned for the sequence.
 */
struct fa_wire_sequence_copy {
	uint32_t stream;
	uint64_t value;
	uint64_t sequence;
	uint32_t flags;
	uint32_t layer;
	uint64_t first;
	struct fa_wire_view k, v;
};

#define FA_WIRE_STEP_MAX 2048 /* sequences of a step */

struct fa_wire_step_item {
	uint64_t sequence;
	uint32_t n_new; /* tokens; 0: it is only read */
	uint32_t reserved;
};

/*
 * step: an id of the client's choosing, not 0, not in use in this session. tree: bit
 * masks, a row of (n_new + 31) / 32 words for each new token of an item that has one,
 * which begins at tree_start (one an item; UINT32_MAX: none). Answered by StepReply.
 */
struct fa_wire_step_begin {
	uint32_t step;
	const struct fa_wire_step_item *items;
	size_t n_items;
	const uint32_t *tree, *tree_start;
	size_t n_tree, n_tree_start;
};

struct fa_wire_step_reply {
	uint32_t step;
	uint64_t number; /* what SequenceReply.step says once it was committed */
};

#define FA_WIRE_STEP_CAUSAL (1u << 0)
#define FA_WIRE_STEP_ROTARY_INTERLEAVED (1u << 1)
#define FA_WIRE_STEP_DETERMINISTIC (1u << 2)

/*
 * For one layer: appends k and v, rotated, to the sequences of a step, and computes
 * attention of q, rotated, over all that they then have. q, out: rank 3,
 * [new tokens of all items, heads, dim]; k, v: [new tokens, kv_heads, dim], absent: they
 * were written before; out absent: nothing is attended. Of a step with several caches
 * only the items of one, in their order. cos, sin: rank 2, [positions, rotary_dim / 2],
 * fp32, absent: of rotary_base and rotary_scale. positions: one a new token, absent:
 * where it lies. Answered by Completion.
 */
struct fa_wire_step_attend {
	uint32_t stream;
	uint64_t value;
	uint32_t step;
	uint64_t cache; /* 0: the step has one */
	uint32_t layer;
	uint32_t flags;
	struct fa_wire_view q, k, v, out, lse;
	float scale, softcap;
	int64_t window_left, window_right;
	const float *alibi_slopes, *sinks;
	size_t n_alibi_slopes, n_sinks;
	uint32_t rotary_dim; /* 0: none */
	double rotary_base, rotary_scale;
	struct fa_wire_view cos, sin;
	const uint32_t *positions;
	size_t n_positions;
};

#define FA_WIRE_STEP_COMMIT (1u << 0) /* else it is aborted */

/*
 * Ends a step when all that was asked for it has ended. keep: of the new tokens of
 * item i only keep[cu_keep[i]] … keep[cu_keep[i + 1] - 1] stay, one path of a tree; both
 * absent: all of all. Answered by Completion: 0 once the tokens are durable. A commit that
 * fails, or cannot be, because something asked for the step has failed, aborts it.
 */
struct fa_wire_step_end {
	uint32_t stream;
	uint64_t value;
	uint32_t step;
	uint32_t flags;
	const uint32_t *keep, *cu_keep;
	size_t n_keep, n_cu_keep;
};
