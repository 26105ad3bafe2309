/*
 * The KV cache: part of <faclient.h>, which includes it.
 *
 * The daemon keeps keys and values of token sequences in pages, for all processes. A *cache* has
 * the shape of one model's layers; *sequences* lie in a cache. A *step* is one pass of a model over
 * new tokens of some sequences. It is begun; then for each layer the new keys and values are
 * appended and attention is computed over all tokens of the sequences; then it is committed:
 *
 *     fa_step_begin(client, &options, &step);
 *     for each layer: fa_step_attend(step, &attend, NULL);
 *     fa_step_commit(step, NULL, NULL);
 *     step = fa_step_free(step);
 *
 * Numbers: caches and sequences are identified by numbers that are never reused. Any process that
 * may use the object may use its number, also after a restart of the daemon. An object without a
 * name belongs to its client, and is freed when that disconnects or dies. An object with a name
 * stays until it is removed or its time to live is over, and can be found by its name. Each user
 * has names of its own.
 *
 * Reconnecting: a daemon started with --supervise, or by systemd as fad.service, leaves all
 * sequences with all committed tokens to its successor. The client resumes its session by itself,
 * and all its numbers stay valid. Steps that were not committed end with -ECONNRESET, and their
 * sequences are as before them. A commit that ends with -ECONNRESET may have happened: if it has,
 * fa_sequence_info.step is the step's number. If the session could not be resumed (fa_info.resumed
 * is less than fa_info.reconnects), the client's objects without a name are lost: -ESTALE.
 *
 * These calls may be made twice without harm, and repeat themselves once if the connection is lost
 * before the answer: fa_cache_find(), fa_cache_find_of(), fa_cache_info(), fa_sequence_find(),
 * fa_sequence_find_of(), fa_sequence_info(), fa_sequence_truncate(), fa_sequence_drop_before(),
 * fa_sequence_publish() (which then may count pages that it published as not new),
 * fa_sequence_attach(), fa_prefix_find() and fa_step_begin(). They return -ECONNRESET only if the
 * connection is lost twice, or fa_options.reconnect_ns forbids to reconnect. All other calls of
 * this header return it if it is unknown whether they were carried out.
 *
 * Besides the errors named at each function and in faclient.h, functions that take a number or name
 * of a cache or sequence may return
 *   -EINVAL  the number is a sequence's where a cache is expected, or the reverse
 *   -ENOENT  it does not exist, or this client may not know of it: another client's without a name,
 *            or another user's that its mode does not let this one read
 *   -ESTALE  it was removed, or lost with its session; as the result of a request the latter is
 *            -ENOENT
 *   -EACCES  its mode does not admit this call
 * and all functions of this header
 *   -ENOTSUP the daemon has no KV pool
 */
#ifndef FACLIENT_H
#include "faclient.h" /* includes this header */
#elif !defined(FACLIENT_KV_H)
#define FACLIENT_KV_H

/* ---- caches */

#define FA_CACHE_V_IN_K (1u << 0)       /* V is the front of K's rows and not stored */
#define FA_CACHE_TOKEN_SCALES (1u << 1) /* codes: each token has its own scales */

/*
 * How keys and values are stored. Inputs and outputs have the cache's dtype in any case. A code
 * takes one byte per element, and the element is code * scale, in fp32. K and V have separate
 * scales, but with FA_CACHE_V_IN_K there are those of K alone. A scale is for each head of each
 * layer, given in fa_cache_options; or, with FA_CACHE_TOKEN_SCALES, for each token and head, chosen
 * so that the largest element has the largest code (4 more bytes for each scale).
 *
 * Appending rounds to the nearest code, ties to even. Values beyond the largest code, infinities
 * included, become the largest code; for scales of tokens an infinity counts as the largest finite
 * fp32 number. A row of zeros stays zeros. A NaN stays NaN in e4m3. In int8 it becomes 0 with
 * scales of heads; with scales of tokens, the token's whole row of that head becomes NaN. No token
 * changes because of one that it does not see.
 *
 * GPUs support codes for fp16 and bf16, head dims that are multiples of 16, and, with scales of
 * heads, up to 64 heads. Their kernels are made for few new tokens per sequence: steps with many
 * take longer than with FA_STORE_PLAIN.
 */
enum fa_store {
	FA_STORE_PLAIN = 0, /* in the cache's dtype */
	FA_STORE_E4M3 = 1,  /* fp8; the largest code is 448 */
	FA_STORE_INT8 = 2,  /* -127 to 127 */
};

/*
 * Modes: whom an object with a name admits besides its tenant (the same user in the same cgroup,
 * who may do everything); or'ed together. Read: attend to it and query it; of a cache: find it.
 * Append: change it; of a cache: create sequences in it. Fork: of sequences only. Append and fork
 * include read.
 */
enum fa_mode {
	FA_MODE_READ_UID = 1 << 0, /* the same user in any cgroup */
	FA_MODE_READ_ALL = 2 << 0, /* all users who may connect */
	FA_MODE_APPEND_UID = 1 << 2,
	FA_MODE_APPEND_ALL = 2 << 2,
	FA_MODE_FORK_UID = 1 << 4,
	FA_MODE_FORK_ALL = 2 << 4,
};

struct fa_cache_options {
	uint32_t size;        /* sizeof(struct fa_cache_options) */
	uint32_t flags;       /* FA_CACHE_V_IN_K, FA_CACHE_TOKEN_SCALES */
	const char *name;     /* at most 63 bytes; NULL: none, and the cache ends with the client */
	uint32_t mode;        /* enum fa_mode; only with a name */
	uint32_t dtype;       /* enum fa_dtype */
	uint32_t layers;      /* at most 1024 */
	uint32_t kv_heads;    /* at most 1024 */
	uint32_t head_dim;    /* a multiple of 8, at most 576 */
	uint32_t head_dim_v;  /* a multiple of 8, at most 512; 0: head_dim */
	uint32_t page_tokens; /* a power of two from 16 to 256; 0: 64 */
	uint32_t store;       /* enum fa_store */
	uint64_t max_pages;   /* of all its sequences; 0: no limit but the pool's */
	/* Removes the cache after this time without use and sequences; 0: never. Only with a
	 * name. */
	uint64_t ttl_ns;
	/* Codes without FA_CACHE_TOKEN_SCALES: [layers][kv_heads], at most 8000, each from 2^-100
	 * to 2^100; else NULL. With FA_CACHE_V_IN_K only those of K. Copied. */
	const float *k_scales, *v_scales;
	/*
	 * States of linear layers (below): the bytes of each, [n_states], at most 1024, each from 1
	 * to 2^30. Copied. n_states 0: none; state_bytes is NULL then, and checkpoint_tokens 0.
	 */
	const uint32_t *state_bytes;
	uint32_t n_states;
	/* Checkpoints after each multiple of so many tokens are kept; a multiple of page_tokens.
	 * 0: of each sequence only the newest is. */
	uint32_t checkpoint_tokens;
};

/*
 * Creates a cache.
 *   -EEXIST   this user has a cache with that name
 *   -ENOTSUP  no kernel supports the shape or the storage; or the states are too large for the
 *             cache's pages (more tokens a page make them larger); or the daemon is older than
 *             states
 *   -ENOSPC   too many caches
 *   -EDQUOT   too many caches of this user
 */
int fa_cache_create(struct fa_client *client, const struct fa_cache_options *options,
                    uint64_t *ret_cache);

/* Finds a cache by its name. Names belong to a user: this finds caches of this user alone, so that
 * nobody else can create what this program finds. */
int fa_cache_find(struct fa_client *client, const char *name, uint64_t *ret_cache);

/* Finds another user's cache, whose mode must let this user read it. That user can change and
 * remove it. -EINVAL: @uid is UINT32_MAX. */
int fa_cache_find_of(struct fa_client *client, uint32_t uid, const char *name, uint64_t *ret_cache);

struct fa_cache_info {
	uint32_t size;
	uint32_t flags;
	uint32_t mode;
	uint32_t dtype;
	uint32_t layers, kv_heads, head_dim, head_dim_v, page_tokens;
	uint32_t sequences;
	uint64_t page_bytes; /* of one page, all layers */
	uint64_t max_pages;  /* 0: no limit but the pool's */
	uint64_t used_pages; /* in sequences and steps */
	uint64_t idle_pages; /* published, in no sequence; evicted when pages are needed */
	uint32_t store;
	uint32_t uid;               /* of the user whose cache it is */
	uint32_t states;            /* as many as n_states of fa_cache_options */
	uint32_t checkpoint_tokens; /* as in fa_cache_options */
	uint64_t checkpoint_bytes;  /* of all states */
	uint32_t checkpoint_pages;  /* that one checkpoint takes of the cache */
	uint32_t reserved;
};
/* Tells what a cache is and holds. Set ret_info->size before the call. */
int fa_cache_info(struct fa_client *client, uint64_t cache, struct fa_cache_info *ret_info);

/* Removes a cache with all its sequences. -EACCES: it is neither this client's own nor, with a
 * name, its tenant's. */
int fa_cache_remove(struct fa_client *client, uint64_t cache);

/* ---- sequences
 *
 * Tokens are numbered from the sequence's beginning, also after leading tokens were dropped.
 */

/* Creates an empty sequence. -ENOSPC: too many sequences. -EDQUOT: too many of this user. */
int fa_sequence_create(struct fa_client *client, uint64_t cache, uint64_t *ret_sequence);

/* Finds a sequence of this user by its name. */
int fa_sequence_find(struct fa_client *client, const char *name, uint64_t *ret_sequence);

/* Finds another user's sequence, as fa_cache_find_of(). */
int fa_sequence_find_of(struct fa_client *client, uint32_t uid, const char *name,
                        uint64_t *ret_sequence);

/*
 * Creates a sequence with the first @tokens tokens of another one (UINT64_MAX: all). Nothing is
 * copied; later changes of one sequence do not affect the other. In a cache with states the new
 * sequence ends at a checkpoint: see fa_sequence_fork_to().
 *   -EINVAL  the sequence has fewer tokens, or they were dropped
 *   -ENOSPC  too many sequences
 *   -EDQUOT  too many sequences of this user
 *   -ENOMEM  the pool's lists are full
 *   -ENOTSUP the cache keeps the newest checkpoint only (checkpoint_tokens is 0), and that is behind
 *            @tokens; or tokens were dropped, and no checkpoint lies behind these
 */
int fa_sequence_fork(struct fa_client *client, uint64_t sequence, uint64_t tokens,
                     uint64_t *ret_sequence);

/* Does what fa_sequence_fork() does, and tells in *ret_tokens (may be NULL) how many tokens the new
 * sequence has: @tokens or, in a cache with states, those up to the last checkpoint that is not
 * behind @tokens; 0 if there is none. */
int fa_sequence_fork_to(struct fa_client *client, uint64_t sequence, uint64_t tokens,
                        uint64_t *ret_sequence, uint64_t *ret_tokens);

/*
 * Gives a sequence a name of at most 63 bytes; called with the sequence's name, changes its mode
 * and time to live. A sequence with a name outlives the client.
 *   -EEXIST  this user has a sequence with that name, or the sequence has another name
 */
int fa_sequence_set_name(struct fa_client *client, uint64_t sequence, const char *name,
                         uint32_t mode, uint64_t ttl_ns);

/* Removes all tokens from number @tokens on; in a cache with states, all tokens behind the last
 * checkpoint that is not behind @tokens (all, if there is none). -EINVAL: the sequence has fewer.
 * -EBUSY: steps append to it. -ENOTSUP: as fa_sequence_fork(); nothing was removed. */
int fa_sequence_truncate(struct fa_client *client, uint64_t sequence, uint64_t tokens);

/* Does what fa_sequence_truncate() does, and tells in *ret_tokens (may be NULL) how many tokens are
 * left. */
int fa_sequence_truncate_to(struct fa_client *client, uint64_t sequence, uint64_t tokens,
                            uint64_t *ret_tokens);

/* Drops tokens before @first, in whole pages. *ret_first (may be NULL) is the first token left;
 * attention sees no token before it. */
int fa_sequence_drop_before(struct fa_client *client, uint64_t sequence, uint64_t first,
                            uint64_t *ret_first);

/*
 * Removes a sequence, for all processes: numbers are not references, and one from
 * fa_sequence_find() needs no release. A sequence without a name is removed with its client anyway.
 * Forks keep the pages that they share with it. Steps in flight with this sequence are computed,
 * and committed for their other sequences. -EACCES: it is neither this client's own nor, with a
 * name, its tenant's.
 */
int fa_sequence_remove(struct fa_client *client, uint64_t sequence);

struct fa_sequence_info {
	uint32_t size;
	uint32_t mode;
	uint64_t cache;
	uint64_t length;      /* committed tokens; they outlive the daemon */
	uint64_t planned;     /* length with the tokens of steps in progress */
	uint64_t first;       /* tokens before it were dropped */
	uint64_t step;        /* number of the last committed step; 0: none */
	uint32_t uid;         /* of the user whose sequence it is */
	uint32_t checkpoints; /* how many the sequence has */
	uint64_t checkpoint;  /* tokens before the newest; 0: there is none */
};
/* Tells what a sequence holds. Set ret_info->size before the call. */
int fa_sequence_info(struct fa_client *client, uint64_t sequence,
                     struct fa_sequence_info *ret_info);

/* ---- prefixes: finding pages by content */

#define FA_PREFIX_SHARED (1u << 0) /* with every tenant that sets the flag, too */

/* The first tokens of a sequence. */
struct fa_prefix {
	uint32_t size; /* sizeof(struct fa_prefix) */
	uint32_t flags;
	const uint32_t *tokens; /* [n_tokens]; copied */
	uint64_t n_tokens;
	const void *extra;    /* what else keys and values depend on: adapters, images; copied */
	uint64_t extra_bytes; /* at most 256 */
};

/*
 * Publishes which tokens a sequence holds, so that its full pages are found by content. Not
 * verified: wrong tokens corrupt other readers' results. Published pages of no sequence are evicted
 * when room is needed. Checkpoints at multiples of checkpoint_tokens are published with them.
 * *ret_pages (may be NULL) is the number of newly published pages.
 *   -EINVAL  the sequence has fewer tokens
 *   -EDQUOT  the pages, which are charged to the publisher, exceed what this user may have
 */
int fa_sequence_publish(struct fa_client *client, uint64_t sequence, const struct fa_prefix *prefix,
                        uint64_t *ret_pages);

/*
 * Fills an empty sequence with the longest published prefix of these tokens, in full pages.
 * *ret_tokens (may be NULL) is the prefix's length and so the sequence's; may be 0. In a cache with
 * states the prefix ends at a published checkpoint.
 *   -EINVAL  the sequence is not empty
 *   -EBUSY   it is part of steps in progress
 *   -EDQUOT  more pages than the cache may have in use
 *   -ENOMEM  the pool's lists are full
 */
int fa_sequence_attach(struct fa_client *client, uint64_t sequence, const struct fa_prefix *prefix,
                       uint64_t *ret_tokens);

/*
 * Tells how many of the first tokens fa_sequence_attach() would now find for an empty sequence of
 * this cache. Changes nothing: no page is kept because of it, and found pages are evicted when they
 * would have been. So a later attach may find less. *ret_tokens may be 0.
 *   -ENOTSUP  the daemon is older than this call
 */
int fa_prefix_find(struct fa_client *client, uint64_t cache, const struct fa_prefix *prefix,
                   uint64_t *ret_tokens);

/* ---- steps
 * 
 * A step belongs to the client that began it. Several may be in progress; each starts where the
 * earlier ones will end, and they are committed in that order. While a client appends to a
 * sequence, no other client can until its steps have ended.
 * 
 * fa_step_attend() and the calls after it submit requests as fa_attention() does: with a ticket
 * they return once the request was sent, with NULL they wait for its end; streams, timeouts,
 * buffers and errors are as there. Layers may be on several streams. A step ends with the
 * connection at the latest. */

struct fa_step;
struct fa_gate;

/* The step writes a checkpoint, of the states after its new tokens (fa_sequence_write_state()). */
#define FA_STEP_CHECKPOINT (1u << 0)

struct fa_step_item {
	uint64_t sequence;
	uint32_t n_new; /* new tokens; 0: the sequence is only read, unless there is a checkpoint */
	uint32_t flags; /* FA_STEP_CHECKPOINT */
};

#define FA_STEP_NO_TREE UINT32_MAX

struct fa_step_options {
	uint32_t size;    /* sizeof(struct fa_step_options) */
	uint32_t n_items; /* at most 2048; each sequence once */
	const struct fa_step_item *items;
	/*
	 * The new tokens of an item may be a tree of guesses (speculative decoding): new token i
	 * sees new token j if bit j % 32 of word j / 32 of row i of the item's mask is set. A row
	 * has (n_new + 31) / 32 words; a mask has n_new rows and starts at tree[tree_start[item]].
	 * FA_STEP_NO_TREE: the item has none. Both NULL: no trees. Copied.
	 */
	const uint32_t *tree;
	const uint32_t *tree_start; /* [n_items] */
};

/*
 * Reserves room for the new tokens of all items, or changes nothing. While nothing is in flight in
 * stream 0 it is sent as a request of that stream, by the ring.
 *   -EBUSY   another client appends to one of the sequences; or a step in progress appends to a
 *            page that another sequence shares and that must be copied; or a step in progress is
 *            being aborted, or keeps only some of its tokens
 *   -ENOMEM  the pool has too few free pages
 *   -EDQUOT  more than this user or the cache may have, or too many steps in progress
 *   -EAGAIN  fa_step_free() could not abort a step because max_requests were in flight, and they
 *            still are after fa_options.reply_ns
 *   -EINVAL  a sequence occurs twice, too many tokens, or too many pages of all sequences together
 */
int fa_step_begin(struct fa_client *client, const struct fa_step_options *options,
                  struct fa_step **ret_step);

/* Returns the step's number: fa_sequence_info.step of its sequences from its commit until a later
 * step, which has a higher number, is committed. */
uint64_t fa_step_number(const struct fa_step *step);

#define FA_STEP_CAUSAL (1u << 0)             /* new token i sees new tokens up to i */
#define FA_STEP_WINDOW (1u << 1)             /* window_left and window_right apply */
#define FA_STEP_ROTARY_INTERLEAVED (1u << 2) /* pairs are 2i, 2i + 1; else i, i + rotary_dim / 2 */
/*
 * out and lse of an item have the same bits whatever other items the step has, and in every step of
 * the same tokens on the same daemon and GPU. Costs some speed: without the flag the daemon reads
 * tokens that a step's sequences share once, and sums in an order that depends on the step.
 * -ENOTSUP from a daemon that is older than the flag, and on a GPU if summing the items would take
 * more than 512 MiB.
 */
#define FA_STEP_DETERMINISTIC (1u << 3)

/*
 * One layer: appends k_new and v_new, rotated, and computes attention of q, rotated, over all
 * tokens that the sequences then have.
 *
 * Shapes: q [new, heads, head_dim], k_new [new, kv_heads, head_dim],
 *   v_new [new, kv_heads, head_dim_v], out [new, heads, head_dim_v],
 *   lse (optional) fp32 [heads, new],
 * new is the number of new tokens of all items, in the items' order; in a step with several
 * caches, of the items of `cache`. All have the cache's dtype. heads is a multiple of kv_heads. out
 * and lse must share no memory with each other and the layer's other tensors (-EINVAL).
 */
struct fa_step_attend {
	uint32_t size; /* sizeof(struct fa_step_attend) */
	uint32_t flags;
	uint32_t stream;
	uint32_t layer;
	uint64_t cache; /* 0: the step's only cache */
	struct fa_tensor q;
	struct fa_tensor k_new; /* buffer NULL: this layer's keys and values were appended before */
	struct fa_tensor v_new; /* buffer NULL as well if V is in K */
	struct fa_tensor out;   /* buffer NULL as well as q's: appends only */
	struct fa_tensor lse;   /* buffer NULL: not wanted */
	float scale;            /* these five as in struct fa_attention */
	float softcap;
	int64_t window_left;
	int64_t window_right;
	const float *alibi_slopes; /* these two as well; copied */
	const float *sinks;
	/*
	 * Rotary embedding of elements [rotary_first, rotary_first + rotary_dim) of each head of q
	 * and k_new; rotary_dim 0: none. rotary_first is a multiple of 8; it is 512 for MLA, which
	 * rotates the last 64 of 576. The angle of pair i is
	 * position * rotary_scale * rotary_base^(-2i / rotary_dim), or its cosine and sine come from
	 * the tables.
	 */
	uint32_t rotary_dim;
	uint32_t rotary_first;
	double rotary_base;  /* 0: 10000; 0 with tables */
	double rotary_scale; /* 0: 1; 0 with tables */
	/* fp32 [positions, rotary_dim / 2], with a row for each position of the new tokens, else
	 * -EINVAL; buffer NULL: no tables. */
	struct fa_tensor cos, sin;
	/* [new]; NULL: each token's index in its sequence; copied. Positions, slopes, sinks and
	 * prefix lengths together: at most 15800. */
	const uint32_t *positions;
	uint64_t timeout_ns;
	const struct fa_gates *gates;
	/* As in struct fa_attention, by the index of a token in its sequence; in a tree, by its
	 * distance from the root. */
	uint64_t chunk_tokens;
	/* One for each item of the step, of all caches, or NULL; as in struct fa_attention, only
	 * with FA_STEP_CAUSAL. No effect on items with a tree. Copied. */
	const uint32_t *prefix_lengths;
	struct fa_block_pattern pattern; /* as in struct fa_attention; positions as for chunks */
};

/*
 * Requests one layer of a step.
 *   -EINVAL      from the call itself: nothing was sent, and the step goes on
 *   -ECONNRESET  the step ended with its connection
 * A layer that fails later, or that fa_wait() says the daemon refused, makes its step fail: the
 * commit returns -ECANCELED, and its sentence quotes the first such error.
 */
int fa_step_attend(struct fa_step *step, const struct fa_step_attend *attend,
                   struct fa_ticket *ret_ticket);

struct fa_step_attend_layers {
	uint32_t size;                       /* sizeof(struct fa_step_attend_layers) */
	uint32_t n_layers;                   /* at most 256, and max_requests */
	const struct fa_step_attend *attend; /* of the first layer */
	/* Byte strides between the tensors of consecutive layers; 0: all layers use the same
	 * tensor. */
	uint64_t q_bytes, k_bytes, v_bytes, out_bytes, lse_bytes;
	/* What each layer waits for and signals; NULL: nothing. The value grows by the increment
	 * with each layer; signal_increment is at least 1. The gates of attend apply as well: its
	 * waits to the first layer, its signals to the last. */
	const struct fa_gate *wait;
	uint64_t wait_increment;
	const struct fa_gate *signal;
	uint64_t signal_increment;
};

/*
 * Requests all layers of a step, or some consecutive ones, by one message to the daemon: equals as
 * many fa_step_attend(), each of which waits for and signals a value of its own. A CUDA stream or
 * graph of this process can compute what lies between the layers (faclient_timeline.h) without work
 * for the CPU.
 *
 * The ticket is the last layer's. If a layer fails, the later ones end with the same error, and all
 * signals are given. Cancelling cancels all layers that have not ended; if their values may never
 * come, cancel before fa_step_abort(), which runs after them. The timeout applies to each layer,
 * counted from this call.
 */
int fa_step_attend_layers(struct fa_step *step, const struct fa_step_attend_layers *layers,
                          struct fa_ticket *ret_ticket);

struct fa_step_commit {
	uint32_t size; /* sizeof(struct fa_step_commit) */
	uint32_t stream;
	/*
	 * Of item i's new tokens only keep[cu_keep[i]] … keep[cu_keep[i + 1] - 1] stay, ascending,
	 * counted from its first new token: one path of a tree, or the accepted guesses. Both NULL:
	 * all tokens of all items stay. Copied.
	 */
	const uint32_t *keep;
	const uint32_t *cu_keep; /* [n_items + 1], from 0 */
	uint64_t timeout_ns;
	const struct fa_gates *gates;
};

/*
 * Ends the step once all its requests have ended; its tokens then belong to the sequences and
 * outlive the daemon. @commit may be NULL. If the commit or any request of the step fails, the step
 * is aborted.
 *   -EINVAL    from the call itself: nothing was sent, and the step goes on
 *   -EAGAIN    max_requests are in flight: nothing was sent, and the step goes on
 *   -ECANCELED an earlier step was aborted, or a layer of this one was not computed
 */
int fa_step_commit(struct fa_step *step, const struct fa_step_commit *commit,
                   struct fa_ticket *ret_ticket);

/* Ends the step and restores its sequences to their state before it. Until this request has ended,
 * fa_step_begin() with one of the sequences returns -EBUSY. */
int fa_step_abort(struct fa_step *step, uint32_t stream, struct fa_ticket *ret_ticket);

/*
 * Frees the handle. Aborts the step if it has not ended, and waits for that, at most about
 * fa_options.reply_ns in all. If max_requests are in flight all that time, the step is aborted
 * before the next fa_step_begin(), or else with the connection. (If the daemon reads nothing, the
 * connection is given up after reply_ns, as by any request.) Call it before fa_disconnect(), from
 * the last thread that uses the step. Takes NULL, returns NULL.
 */
struct fa_step *fa_step_free(struct fa_step *step);

/* ---- reading and writing keys and values */

struct fa_sequence_copy {
	uint32_t size; /* sizeof(struct fa_sequence_copy) */
	uint32_t stream;
	uint64_t sequence;
	uint64_t first; /* token */
	uint32_t layer;
	uint32_t reserved;
	/* In the cache's dtype, not codes; one of the two may have no buffer. */
	struct fa_tensor k; /* [tokens, kv_heads, head_dim] */
	struct fa_tensor v; /* [tokens, kv_heads, head_dim_v] */
	uint64_t timeout_ns;
	const struct fa_gates *gates;
};

/*
 * Copies keys and values by requests like those of fa_attention(). fa_sequence_read() copies
 * committed tokens out of the pages. fa_sequence_write() copies into tokens that a step of this
 * client has reserved: an alternative to fa_step_attend() for filling a sequence, step by step.
 *   -ECONNRESET  (write) the step ended with its connection
 */
int fa_sequence_read(struct fa_client *client, const struct fa_sequence_copy *copy,
                     struct fa_ticket *ret_ticket);
int fa_sequence_write(struct fa_client *client, const struct fa_sequence_copy *copy,
                      struct fa_ticket *ret_ticket);

struct fa_sequence_pages {
	uint32_t size; /* sizeof(struct fa_sequence_pages) */
	uint32_t stream;
	uint64_t sequence;
	uint64_t first, n_tokens; /* tokens [first, first + n_tokens) of the sequence */
	uint32_t layer, n_layers; /* the first, and how many: at most 256 */
	/*
	 * [n_layers]: k [pages, page_tokens, kv_heads, head_dim], v [.., head_dim_v], with any
	 * strides, which are the same in all layers. So heads may come before tokens, and K and V
	 * may be parts of one tensor. In the cache's dtype, not codes. Copied; one of the two may be
	 * NULL.
	 */
	const struct fa_tensor *k, *v;
	/*
	 * [n_pages], at most 12000: pages of the tensors, in the order of the tokens, and as many as
	 * the tokens need. Token first + i is at place p = page_offset + i: token p % page_tokens of
	 * page pages[p / page_tokens]. Copied.
	 */
	const uint32_t *pages;
	uint32_t n_pages;
	uint32_t page_offset; /* less than page_tokens, which need not be the cache's */
	uint64_t timeout_ns;
	const struct fa_gates *gates;
};

/*
 * Copies keys and values of several layers between a sequence and pages that the caller manages, by
 * one request like those of fa_attention(). fa_sequence_read_pages() copies committed tokens to the
 * caller's pages. fa_sequence_write_pages() copies into tokens that a step of this client has
 * reserved, as fa_sequence_write(); they are committed with the step.
 *   -EINVAL      a page is beyond the tensors, or a read names a page twice, or writes to tensors
 *                that share memory
 *   -ENOTSUP     the daemon is older than these calls
 *   -ECONNRESET  (write) the step ended with its connection
 */
int fa_sequence_read_pages(struct fa_client *client, const struct fa_sequence_pages *pages,
                           struct fa_ticket *ret_ticket);
int fa_sequence_write_pages(struct fa_client *client, const struct fa_sequence_pages *pages,
                            struct fa_ticket *ret_ticket);

/* ---- states of linear layers
 *
 * Linear layers (Mamba, gated delta rule) carry a state of fixed size over from token to token
 * instead of keys and values. fad does not compute them; a cache keeps their states, bytes that only
 * the client understands, with the keys and values of the model's other layers. All states after
 * some tokens of a sequence are a *checkpoint*. A step writes one after its new tokens:
 *
 *     items[0] = (struct fa_step_item){ sequence, n_new, FA_STEP_CHECKPOINT };
 *     fa_step_begin(client, &options, &step);
 *     for each layer with attention: fa_step_attend(step, &attend, NULL);
 *     for each state: fa_sequence_write_state(client, &state, NULL);
 *     fa_step_commit(step, NULL, NULL);
 *
 * The checkpoint is committed with the step, and belongs to the sequence: it is found, forked,
 * published and removed with it, and outlives the daemon. It is never changed. A sequence keeps its
 * newest checkpoint and those after multiples of checkpoint_tokens; a step that is not committed
 * leaves them as they were. Steps without FA_STEP_CHECKPOINT leave the sequence longer than its
 * newest checkpoint. A checkpoint takes checkpoint_pages pages of the cache (fa_cache_info), which
 * count and are charged like pages of tokens. */

struct fa_sequence_state {
	uint32_t size; /* sizeof(struct fa_sequence_state) */
	uint32_t stream;
	uint64_t sequence;
	/* Which checkpoint: the one after so many tokens. 0: the newest, or for a write that of the
	 * newest step in progress. */
	uint64_t tokens;
	uint32_t state; /* less than fa_cache_info.states */
	uint32_t reserved;
	/* One dimension without gaps, of any dtype (FA_E4M3 for bytes), with as many bytes as the
	 * state. */
	struct fa_tensor data;
	uint64_t timeout_ns;
	const struct fa_gates *gates;
};

/*
 * Copies one state by a request like those of fa_attention(). fa_sequence_read_state() copies from a
 * committed checkpoint. fa_sequence_write_state() copies to the checkpoint of a step of this client
 * that was begun with FA_STEP_CHECKPOINT; the step's commit fails unless all states were written
 * (-EINVAL).
 *   -EINVAL      data has another size than the state; or (write) no step in progress writes that
 *                checkpoint
 *   -ENOENT      (read) the sequence has no such checkpoint
 *   -ENOTSUP     the daemon is older than these calls
 *   -ECONNRESET  (write) the step ended with its connection
 */
int fa_sequence_read_state(struct fa_client *client, const struct fa_sequence_state *state,
                           struct fa_ticket *ret_ticket);
int fa_sequence_write_state(struct fa_client *client, const struct fa_sequence_state *state,
                            struct fa_ticket *ret_ticket);

#endif
