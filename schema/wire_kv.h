/*
 * The messages of the KV cache; part of wire.h. Numbers of caches and sequences are the daemon's,
 * never reused, and survive its restart. What has no name ends with the session that created it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* mode of a named object: who besides its tenant may read, append and fork. Two bits for each of
 * these rights, lowest first. */
#define FA_WIRE_ADMIT_TENANT 0u /* same uid and cgroup */
#define FA_WIRE_ADMIT_UID 1u
#define FA_WIRE_ADMIT_ALL 2u

#define FA_WIRE_CACHE_V_IN_K (1u << 0) /* V is the front of K and not stored */
/* Codes have a scale for each token's row, instead of k_scales and v_scales by head. */
#define FA_WIRE_CACHE_TOKEN_SCALES (1u << 1)

/* K and V are stored unchanged, or as codes of one byte. */
#define FA_WIRE_STORE_PLAIN 0u
#define FA_WIRE_STORE_E4M3 1u
#define FA_WIRE_STORE_INT8 2u

#define FA_WIRE_SCALES_MAX 8000 /* entries of k_scales and v_scales */

/* HelloReply.features: states, SequenceState. */
#define FA_WIRE_FEATURE_STATES (1ull << 4)
#define FA_WIRE_STATES_MAX 1024 /* entries of state_bytes */

/*
 * page_tokens 0: 64. max_pages 0: no limit. ttl_ns: only with a name; 0: no expiry. k_scales,
 * v_scales: [layers][kv_heads], given if codes are stored without TOKEN_SCALES. state_bytes: of each
 * state of linear layers, which checkpoints hold. checkpoint_tokens: checkpoints at multiples of it
 * are kept; 0: only a sequence's last one. Answered by CacheReply.
 */
struct fa_wire_cache_create {
	struct fa_wire_string name; /* optional */
	uint32_t mode;
	uint64_t ttl_ns;
	uint8_t dtype;
	uint32_t flags;
	uint32_t layers, kv_heads, head_dim, head_dim_v, page_tokens;
	uint64_t max_pages;
	uint8_t store;
	const float *k_scales, *v_scales;
	size_t n_k_scales, n_v_scales;
	const uint32_t *state_bytes;
	size_t n_state_bytes;
	uint32_t checkpoint_tokens;
};

/* By name or, if that is absent, by number. Answered by CacheReply. */
struct fa_wire_cache_find {
	struct fa_wire_string name;
	uint64_t cache;
	uint64_t user; /* the name's: a uid + 1; 0: the caller's */
};

/* With its sequences. Answered by Reply. */
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
	uint32_t uid; /* whose it is */
	uint32_t states, checkpoint_tokens;
	/* of a checkpoint: pages, and bytes of all states */
	uint32_t checkpoint_pages;
	uint64_t checkpoint_bytes;
};

/* SequenceFree is answered by Reply, others down to SequenceAttach by SequenceReply. */
struct fa_wire_sequence_create {
	uint64_t cache;
};

struct fa_wire_sequence_find {
	struct fa_wire_string name;
	uint64_t user; /* as of CacheFind */
};

/* A new sequence with the first tokens of another; UINT64_MAX: all. In a cache with states it ends
 * at the last checkpoint there, as does a truncated one. */
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
	uint64_t first; /* first token still needed */
};

struct fa_wire_sequence_free {
	uint64_t sequence;
};

struct fa_wire_sequence_info {
	uint64_t sequence;
};

struct fa_wire_sequence_reply {
	uint64_t sequence, cache;
	uint64_t length;  /* durable tokens */
	uint64_t planned; /* with tokens of steps in flight */
	uint64_t first;   /* first token that was not dropped */
	uint64_t step;    /* the last committed */
	uint32_t mode;
	uint64_t matched;     /* SequenceAttach: tokens found; SequencePublish: new pages */
	uint32_t uid;         /* whose it is */
	uint64_t checkpoint;  /* tokens before the newest checkpoint; 0: none */
	uint32_t checkpoints; /* how many there are */
};

#define FA_WIRE_PREFIX_SHARED (1u << 0) /* prefixes are shared with all tenants that set it, too */
#define FA_WIRE_EXTRA_MAX 256           /* bytes */
#define FA_WIRE_TOKENS_MAX 16000        /* of a vector; longer lists use a view */

/* tokens, or tokens_view: rank 1, dtype 0, uint32 in a buffer of host memory. */
struct fa_wire_sequence_publish {
	uint64_t sequence;
	uint32_t flags;
	const uint8_t *extra; /* what else K and V depend on */
	size_t n_extra;
	const uint32_t *tokens;
	size_t n_tokens;
	struct fa_wire_view tokens_view;
};

/* The longest published prefix of tokens, for an empty sequence. */
struct fa_wire_sequence_attach {
	uint64_t sequence;
	uint32_t flags;
	const uint8_t *extra;
	size_t n_extra;
	const uint32_t *tokens;
	size_t n_tokens;
	struct fa_wire_view tokens_view;
};

/* What SequenceAttach would attach to an empty sequence of the cache. Older daemons answer
 * -ENOTSUP. Answered by PrefixReply. */
struct fa_wire_prefix_find {
	uint64_t cache;
	uint32_t flags;
	const uint8_t *extra;
	size_t n_extra;
	const uint32_t *tokens;
	size_t n_tokens;
	struct fa_wire_view tokens_view;
};

struct fa_wire_prefix_reply {
	uint64_t cache;
	uint64_t tokens; /* found, in full pages */
};

#define FA_WIRE_COPY_WRITE (1u << 0) /* from k and v to pages; else from pages */

/*
 * Copies tokens from first on. k and v: [tokens, kv_heads, dim] of the cache's dtype. Only tokens
 * that a step of this session has planned for the sequence can be written. In stream order, value
 * as in Attention; answered by Completion.
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

/* HelloReply.features: SequencePages. */
#define FA_WIRE_FEATURE_SEQUENCE_PAGES (1ull << 2)

#define FA_WIRE_PAGES_MAX 12000 /* of one SequencePages */

/* Where a tensor begins. */
struct fa_wire_place {
	uint64_t offset; /* in the buffer */
	uint32_t buffer;
	uint32_t reserved;
};

/*
 * Copies tokens [first, first + n_tokens), in the layers from `layer` on, between the sequence and
 * pages that the client manages. flags and order are as in SequenceCopy.
 *   k, v       [pages, page_tokens, kv_heads, dim] of the cache's dtype, with any strides; offset
 *              and buffer are 0: those of each layer are in k_places and v_places. rank 0, and no
 *              places: not copied.
 *   pages      in order: token first + i is at place p = page_offset + i, token p % page_tokens of
 *              page pages[p / page_tokens]. As many as the tokens need; a read names none twice.
 */
struct fa_wire_sequence_pages {
	uint32_t stream;
	uint64_t value;
	uint64_t sequence;
	uint32_t flags;
	uint32_t layer;
	uint64_t first, n_tokens;
	struct fa_wire_view k, v;
	const struct fa_wire_place *k_places, *v_places; /* one a layer */
	size_t n_k_places, n_v_places;
	const uint32_t *pages;
	size_t n_pages;
	uint32_t page_offset; /* less than page_tokens */
};

/*
 * Copies one state between a checkpoint of a sequence and a tensor. flags and order are as in
 * SequenceCopy. A write goes to the checkpoint of a step of this session (FA_WIRE_ITEM_CHECKPOINT).
 *   tokens  which checkpoint: the one after so many; 0: the newest, or that of the newest step
 *   data    rank 1, contiguous, of any dtype and as many bytes as the state has
 */
struct fa_wire_sequence_state {
	uint32_t stream;
	uint64_t value;
	uint64_t sequence;
	uint32_t flags;
	uint32_t state;
	uint64_t tokens;
	struct fa_wire_view data;
};

#define FA_WIRE_STEP_MAX 2048 /* items of a step */

/* The step writes a checkpoint after the sequence's new tokens. Its commit fails unless all states
 * were written. With FA_WIRE_FEATURE_STATES. */
#define FA_WIRE_ITEM_CHECKPOINT (1u << 0)

struct fa_wire_step_item {
	uint64_t sequence;
	uint32_t n_new; /* tokens; 0: read only, unless there is a checkpoint */
	uint32_t flags; /* FA_WIRE_ITEM_CHECKPOINT */
};

/*
 * step: chosen by the client; not 0, not in use in this session. tree: bit masks of the items that
 * have one, a row of (n_new + 31) / 32 words for each new token. tree_start: for each item, where
 * its mask starts in tree; UINT32_MAX: none.
 *
 * As a packet, stream and value are 0, and StepReply answers. Through the ring, with
 * FA_WIRE_FEATURE_STEP_RING, it is a request of a stream, with value as in Attention: planned when
 * it is read, finished in the stream's order. Its record then has the step's number.
 */
struct fa_wire_step_begin {
	uint32_t step;
	const struct fa_wire_step_item *items;
	size_t n_items;
	const uint32_t *tree, *tree_start;
	size_t n_tree, n_tree_start;
	uint32_t stream;
	uint64_t value;
};

struct fa_wire_step_reply {
	uint32_t step;
	uint64_t number; /* SequenceReply.step after the commit */
};

#define FA_WIRE_STEP_CAUSAL (1u << 0)
#define FA_WIRE_STEP_ROTARY_INTERLEAVED (1u << 1)
#define FA_WIRE_STEP_DETERMINISTIC (1u << 2)
/* Set if rotary_first is not 0: a daemon that does not know the field refuses. */
#define FA_WIRE_STEP_ROTARY_FIRST (1u << 3)

/*
 * One layer of a step: rotates q and k, appends k and v to the sequences, and computes attention
 * of q over all tokens of each sequence. If the step has several caches, the request covers the
 * items of one cache, in their order.
 *   q, out     [new tokens of all items, heads, dim]; out absent: no attention
 *   k, v       [new tokens of all items, kv_heads, dim]; absent: written before
 *   cos, sin   [positions, rotary_dim / 2], fp32; absent: from rotary_base and rotary_scale
 *   positions  one for each new token; absent: the token's index in its sequence
 *   prefix_lengths  one for each item of the step, of all caches, only with causal; or absent
 * Answered by Completion.
 */
struct fa_wire_step_attend {
	uint32_t stream;
	uint64_t value;
	uint32_t step;
	uint64_t cache; /* 0: the step's only one */
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
	uint32_t rotary_first; /* of a head, the first rotated element */
	uint64_t chunk_tokens; /* 0: none */
	const uint32_t *prefix_lengths;
	size_t n_prefix_lengths;
	uint32_t pattern_block_tokens; /* 0: no pattern; these five: struct fa_attention_pattern */
	uint32_t pattern_local_blocks, pattern_vert_stride;
	int32_t pattern_head_step;
	uint32_t pattern_first_head;
};

#define FA_WIRE_STEP_COMMIT (1u << 0) /* without it the step is aborted */

/*
 * Ends a step after all its requests. keep, cu_keep: item i keeps its new tokens
 * keep[cu_keep[i]] to keep[cu_keep[i + 1] - 1], one path of its tree; both absent: all new tokens
 * stay. Answered by Completion: 0 once the tokens are durable. A commit that fails, or follows a
 * failed request of the step, aborts the step.
 */
struct fa_wire_step_end {
	uint32_t stream;
	uint64_t value;
	uint32_t step;
	uint32_t flags;
	const uint32_t *keep, *cu_keep;
	size_t n_keep, n_cu_keep;
};
