/*
 * The KV cache: part of <faclient.h>, which includes it.
 *
 * The daemon keeps the keys and values of token sequences in pages, for all processes.
 * A *cache* is made for the shape of one model's layers; *sequences* lie in it. A *step*
 * is one pass of a model over some new tokens of some sequences: begun, then for each
 * layer the new keys and values are appended and attention is computed over all that the
 * sequences then hold, then committed:
 *
 *     fa_step_begin(client, &options, &step);
 *     for each layer: fa_step_attend(step, &attend, NULL);
 *     fa_step_commit(step, NULL, NULL);
 *     step = fa_step_free(step);
 *
 * Numbers: caches and sequences are named by numbers that are never given again. Any
 * process may use them that may use the object, and they are good after the daemon was
 * restarted, too. What has no name is its client's own, and is freed when that
 * disconnects or dies; what has one stays until it is freed or its time to live is over,
 * and is found by its name.
 *
 * Reconnecting: a daemon that was started with --supervise, or by systemd as fad.service,
 * leaves its successor all sequences with all committed tokens. The client resumes its
 * session by itself, and all its numbers stay good. Steps that were not committed end with
 * -ECONNRESET, and their sequences are as they were before. When a commit ends with
 * -ECONNRESET it may have happened: fa_sequence_info() tells, whose step is then the step's
 * number. If the session could not be resumed (fa_info.resumed lags behind
 * fa_info.reconnects), what the client had without a name is gone: -ESTALE.
 *
 * Besides what each function names, and faclient.h says, those that take a number or
 * name of a cache or sequence may return
 *   -ENOENT  there is none, or it is another client's and has no name
 *   -ESTALE  it was removed, or lost with its session; as the end of a request the latter is
 *            -ENOENT
 *   -EACCES  its mode does not admit this user
 * and all of these functions
 *   -ENOTSUP the daemon has no pool for keys and values
 */
#ifndef FACLIENT_KV_H
#define FACLIENT_KV_H

#ifndef FACLIENT_H
#error "include <faclient.h>"
#endif

/* ---- caches */

#define FA_CACHE_V_IN_K (1u << 0)       /* V is the front of K's rows, and not stored */
#define FA_CACHE_TOKEN_SCALES (1u << 1) /* with codes: each token has scales of its own */

/*
 * How keys and values are stored. What goes in and comes out is of the cache's dtype in any
 * case. Codes take a byte an element, which is then code * scale, in fp32: K and V have
 * scales of their own, for each head of each layer as fa_cache_options says; or, with
 * FA_CACHE_TOKEN_SCALES, for each token and head, so that its largest element is the largest
 * code: 8 bytes more a token and head.
 *
 * Putting tokens in rounds to the nearest code, ties to even. What is beyond the largest code
 * becomes that; an infinity does, too, and with scales of tokens counts as the largest finite
 * number of fp32. A row of zeros stays zeros. A NaN stays one in e4m3; in int8, its token's
 * whole row of that head becomes NaN, or with scales of heads it becomes 0. No token is
 * changed by one that it does not see.
 *
 * GPUs have kernels for fp16 and bf16, head dims that are multiples of 16, and, with scales
 * of heads, up to 64 of them. They are made for few new tokens a sequence: steps with many
 * take longer than with FA_STORE_PLAIN.
 */
enum fa_store {
	FA_STORE_PLAIN = 0, /* of the cache's dtype */
	FA_STORE_E4M3 = 1,  /* fp8: the largest is 448 */
	FA_STORE_INT8 = 2,  /* -127 to 127 */
};

/*
 * Modes: whom an object with a name admits, besides the tenant that made it (the same
 * user in the same cgroup; it may do everything), or'ed together. Read: attend to it, look
 * at it; cache: find it. Append: change it; cache: make sequences in it. Fork: only for
 * sequences. Whoever may append or fork may read, too.
 */
enum fa_mode {
	FA_MODE_READ_UID = 1 << 0, /* the same user in any cgroup */
	FA_MODE_READ_ALL = 2 << 0, /* everybody who may connect */
	FA_MODE_APPEND_UID = 1 << 2,
	FA_MODE_APPEND_ALL = 2 << 2,
	FA_MODE_FORK_UID = 1 << 4,
	FA_MODE_FORK_ALL = 2 << 4,
};

struct fa_cache_options {
	uint32_t size;        /* sizeof(struct fa_cache_options) */
	uint32_t flags;       /* FA_CACHE_V_IN_K, FA_CACHE_TOKEN_SCALES */
	const char *name;     /* at most 63 bytes; NULL: none, the client's own */
	uint32_t mode;        /* enum fa_mode; only with a name */
	uint32_t dtype;       /* enum fa_dtype */
	uint32_t layers;      /* at most 1024 */
	uint32_t kv_heads;    /* at most 1024 */
	uint32_t head_dim;    /* a multiple of 8, at most 256 */
	uint32_t head_dim_v;  /* a multiple of 8, at most 512; 0: head_dim */
	uint32_t page_tokens; /* a power of two from 16 to 256; 0: 64 */
	uint32_t store;       /* enum fa_store; codes not with FA_CACHE_V_IN_K */
	uint64_t max_pages;   /* of all its sequences; 0: as many as there are */
	uint64_t ttl_ns;      /* it goes when it was not used for so long and has no sequences;
	                     * 0: never; only with a name */
	/* With codes and without FA_CACHE_TOKEN_SCALES: [layers][kv_heads], at most 8000, each
	 * from 2^-100 to 2^100; else NULL. Copied. */
	const float *k_scales, *v_scales;
};

/*
 * Makes a cache.
 *   -EEXIST   the name is taken
 *   -ENOTSUP  no kernel covers the shape, or what is stored
 *   -ENOSPC   there are too many
 *   -EDQUOT   too many of this user
 */
int fa_cache_create(struct fa_client *client, const struct fa_cache_options *options,
                    uint64_t *ret_cache);

/* By name. */
int fa_cache_find(struct fa_client *client, const char *name, uint64_t *ret_cache);

struct fa_cache_info {
	uint32_t size;
	uint32_t flags;
	uint32_t mode;
	uint32_t dtype;
	uint32_t layers, kv_heads, head_dim, head_dim_v, page_tokens;
	uint32_t sequences;
	uint64_t page_bytes; /* of one page, all layers */
	uint64_t max_pages;  /* 0: as many as there are */
	uint64_t used_pages; /* in sequences and steps */
	uint64_t idle_pages; /* published, in no sequence: to be had for the asking */
	uint32_t store;
	uint32_t reserved;
};
/* Set ret_info->size before. */
int fa_cache_info(struct fa_client *client, uint64_t cache, struct fa_cache_info *ret_info);

/* Removes it and all sequences in it. -EACCES unless it is the client's own or, with a
 * name, its tenant's. */
int fa_cache_remove(struct fa_client *client, uint64_t cache);

/* ---- sequences
 *
 * Tokens are numbered from the sequence's beginning, also when leading ones were dropped.
 */

/* An empty one. -ENOSPC: there are too many. -EDQUOT: too many of this user. */
int fa_sequence_create(struct fa_client *client, uint64_t cache, uint64_t *ret_sequence);

/* By name. */
int fa_sequence_find(struct fa_client *client, const char *name, uint64_t *ret_sequence);

/*
 * A new sequence with the first @tokens tokens of another (UINT64_MAX: all). Nothing is
 * copied; what they share stays as it is for both.
 *   -EINVAL  it has not so many, or they were dropped
 *   -ENOSPC  there are too many
 *   -EDQUOT  too many of this user
 *   -ENOMEM  the pool's lists are full
 */
int fa_sequence_fork(struct fa_client *client, uint64_t sequence, uint64_t tokens,
                     uint64_t *ret_sequence);

/*
 * Gives it a name of at most 63 bytes; or, with the name that it has, another @mode and
 * time to live. It outlives the client from then on.
 *   -EEXIST  the name is taken, or it has another one
 */
int fa_sequence_set_name(struct fa_client *client, uint64_t sequence, const char *name,
                         uint32_t mode, uint64_t ttl_ns);

/* Takes back the tokens from @tokens on. -EINVAL: it has not so many. -EBUSY: steps are
 * appending to it. */
int fa_sequence_truncate(struct fa_client *client, uint64_t sequence, uint64_t tokens);

/* Tokens before @first are not needed any more: whole pages of them go. *ret_first (may be
 * NULL) is the first token that is left. Attention sees no token before it. */
int fa_sequence_drop_before(struct fa_client *client, uint64_t sequence, uint64_t first,
                            uint64_t *ret_first);

/*
 * Removes it, for everybody: numbers are not references, and what fa_sequence_find() gave needs no
 * release. One without a name goes with its client anyway. Forks keep what they share with it. Steps
 * in flight that have it are computed, and committed for their others.
 * -EACCES unless it is the client's own or, with a name, its tenant's.
 */
int fa_sequence_remove(struct fa_client *client, uint64_t sequence);

struct fa_sequence_info {
	uint32_t size;
	uint32_t mode;
	uint64_t cache;
	uint64_t length;  /* tokens: committed, they outlive the daemon */
	uint64_t planned; /* with those of steps in progress */
	uint64_t first;   /* tokens before it were dropped */
	uint64_t step;    /* number of the step committed last; 0: none */
};
/* Set ret_info->size before. */
int fa_sequence_info(struct fa_client *client, uint64_t sequence,
                     struct fa_sequence_info *ret_info);

/* ---- looking up by content */

#define FA_PREFIX_SHARED (1u << 0) /* with every tenant that says so, too */

/* Tokens from a sequence's beginning on. */
struct fa_prefix {
	uint32_t size; /* sizeof(struct fa_prefix) */
	uint32_t flags;
	const uint32_t *tokens; /* [n_tokens]; copied */
	uint64_t n_tokens;
	const void *extra;    /* what else the contents depend on: adapters, images; copied */
	uint64_t extra_bytes; /* at most 256 */
};

/*
 * Says which tokens a sequence holds, so that others find its full pages by them. Keep to
 * the truth: it is taken for granted. Published pages are in nobody's way: they go when
 * room is needed. *ret_pages (may be NULL): how many pages were not known before.
 *   -EINVAL  the sequence has fewer tokens
 *   -EDQUOT  the pages are charged to who publishes them
 */
int fa_sequence_publish(struct fa_client *client, uint64_t sequence, const struct fa_prefix *prefix,
                        uint64_t *ret_pages);

/*
 * Puts the longest prefix of these tokens that was published, in full pages, into an empty
 * sequence. *ret_tokens (may be NULL): its length, and the sequence's then; may be 0.
 *   -EINVAL  the sequence is not empty
 *   -EBUSY   it is part of steps in progress
 *   -EDQUOT  more pages than the cache may have in use
 *   -ENOMEM  the pool's lists are full
 */
int fa_sequence_attach(struct fa_client *client, uint64_t sequence, const struct fa_prefix *prefix,
                       uint64_t *ret_tokens);

/* ---- steps
 *
 * A step belongs to the client that began it; several may be in progress, each beginning
 * where those before it will have ended, and are committed in that order. A client that
 * appends to a sequence has it for itself until its steps have ended.
 *
 * What is asked for a step is a request as fa_attention() is: with a ticket it returns once
 * it is on its way, with NULL it waits for the end; streams, timeouts, buffers and errors
 * are as there. Layers may be asked for on several streams. A step ends at the latest with
 * the connection.
 */

struct fa_step;
struct fa_gate;

struct fa_step_item {
	uint64_t sequence;
	uint32_t n_new; /* new tokens; 0: it is only read */
	uint32_t reserved;
};

#define FA_STEP_NO_TREE UINT32_MAX

struct fa_step_options {
	uint32_t size;    /* sizeof(struct fa_step_options) */
	uint32_t n_items; /* at most 2048; each sequence once */
	const struct fa_step_item *items;
	/*
	 * The new tokens of an item may be a tree of guesses: new token i then sees new token j
	 * if bit j % 32 of word j / 32 of row i of its mask is set. A row has
	 * (n_new + 31) / 32 words, a mask n_new rows, and begins at tree[tree_start[item]];
	 * FA_STEP_NO_TREE: the item has none. Both NULL: there are no trees. All is copied.
	 */
	const uint32_t *tree;
	const uint32_t *tree_start; /* [n_items] */
};

/*
 * Reserves room for the new tokens of all items, or changes nothing.
 *   -EBUSY   another client is appending to one of the sequences; or a step in progress is,
 *            to a page that another sequence has, too, and that is to be copied; or one that
 *            is being aborted, or that keeps some of its tokens
 *   -ENOMEM  the pool has not so many pages
 *   -EDQUOT  more than this user, or the cache, may have; or too many steps in progress
 *   -EAGAIN  fa_step_free() could not abort a step, as max_requests were in flight; they still
 *            are, after fa_options.reply_ns
 *   -EINVAL  a sequence twice, too many tokens, or too many pages of all sequences together
 */
int fa_step_begin(struct fa_client *client, const struct fa_step_options *options,
                  struct fa_step **ret_step);

/* What fa_sequence_info.step says of its sequences once it was committed, until a later
 * step is: that has a higher number. */
uint64_t fa_step_number(const struct fa_step *step);

#define FA_STEP_CAUSAL (1u << 0)             /* new token i sees new tokens up to i */
#define FA_STEP_WINDOW (1u << 1)             /* window_left and window_right count */
#define FA_STEP_ROTARY_INTERLEAVED (1u << 2) /* pairs are 2i, 2i + 1; else i, i + dim / 2 */
/*
 * out and lse of an item are the same to the bit whatever other items the step has, and in
 * every step of the same tokens on the same daemon and GPU. Costs some speed; without it the
 * daemon reads what sequences of a step have in common once, and sums up in an order that
 * depends on the step. -ENOTSUP from a daemon that is older than the flag, and on a GPU if the
 * items are so many and long that it would take more than 512 MiB to sum up.
 */
#define FA_STEP_DETERMINISTIC (1u << 3)

/*
 * One layer: appends k_new and v_new, rotated, and computes attention of q, rotated, over
 * all tokens that the sequences then have.
 *
 * Shapes: q [new, heads, head_dim], k_new [new, kv_heads, head_dim],
 *   v_new [new, kv_heads, head_dim_v], out [new, heads, head_dim_v],
 *   lse (optional) fp32 [heads, new],
 * where new are the new tokens of all items, in their order; of a step with several caches
 * those of one. All of the cache's dtype. heads is a multiple of kv_heads. out and lse must not
 * overlap anything else in use.
 */
struct fa_step_attend {
	uint32_t size; /* sizeof(struct fa_step_attend) */
	uint32_t flags;
	uint32_t stream;
	uint32_t layer;
	uint64_t cache; /* 0: the step has one */
	struct fa_tensor q;
	struct fa_tensor k_new; /* buffer NULL: this layer's keys and values are there already */
	struct fa_tensor v_new; /* buffer NULL, too, if V is in K */
	struct fa_tensor out;   /* buffer NULL: nothing is attended, and q is not looked at */
	struct fa_tensor lse;   /* buffer NULL: not wanted */
	float scale;            /* these five as in struct fa_attention */
	float softcap;
	int64_t window_left;
	int64_t window_right;
	const float *alibi_slopes; /* [heads] or NULL; copied */
	const float *sinks;
	/*
	 * Rotary embedding of the first rotary_dim elements of each head of q and k_new, 0:
	 * none. The angle of pair i is position * rotary_scale * rotary_base^(-2i / rotary_dim),
	 * or its cosine and sine are those of the tables.
	 */
	uint32_t rotary_dim;
	uint32_t reserved;
	double rotary_base;        /* 0: 10000 */
	double rotary_scale;       /* 0: 1 */
	struct fa_tensor cos, sin; /* fp32 [positions, rotary_dim / 2]; buffer NULL: no tables */
	/* [new]; NULL: where each token lies; copied. Positions, slopes and sinks are at most 15800
	 * together. */
	const uint32_t *positions;
	uint64_t timeout_ns;
	const struct fa_gates *gates;
};

/* -ECONNRESET: the step is gone with the connection. */
int fa_step_attend(struct fa_step *step, const struct fa_step_attend *attend,
                   struct fa_ticket *ret_ticket);

struct fa_step_attend_layers {
	uint32_t size;                       /* sizeof(struct fa_step_attend_layers) */
	uint32_t n_layers;                   /* at most 256, and max_requests */
	const struct fa_step_attend *attend; /* of the first layer */
	/* Each layer's tensor begins so many bytes behind that of the one before it; 0: where
	 * that does, too. */
	uint64_t q_bytes, k_bytes, v_bytes, out_bytes, lse_bytes;
	/* What each layer waits for and signals, if not NULL: with each layer that value grows
	 * by the increment, which of signals is at least 1. Gates of attend besides: its waits are
	 * the first layer's, its signals the last one's. */
	const struct fa_gate *wait;
	uint64_t wait_increment;
	const struct fa_gate *signal;
	uint64_t signal_increment;
};

/*
 * All layers of a step, or some that follow one another, by one request to the daemon: as
 * many fa_step_attend(), of which each waits for its own value and gives one. So a stream
 * or CUDA graph of this process computes what lies between the layers (faclient_timeline.h),
 * and its CPU has nothing to do with it.
 *
 * The ticket is that of the last layer. If a layer fails, those behind it end with the same
 * error, and the signals of all are given; to cancel is to cancel all that have not ended
 * (before fa_step_abort(), which comes behind them, if their values may never come).
 * The timeout is that of each layer, counted from now.
 */
int fa_step_attend_layers(struct fa_step *step, const struct fa_step_attend_layers *layers,
                          struct fa_ticket *ret_ticket);

struct fa_step_commit {
	uint32_t size; /* sizeof(struct fa_step_commit) */
	uint32_t stream;
	/*
	 * Of the new tokens of item i only keep[cu_keep[i]] … keep[cu_keep[i + 1] - 1] stay,
	 * ascending, counted from its first new token: one path of a tree, or the guesses that
	 * were right. Both NULL: all of all. Copied.
	 */
	const uint32_t *keep;
	const uint32_t *cu_keep; /* [n_items + 1], from 0 */
	uint64_t timeout_ns;
	const struct fa_gates *gates;
};

/*
 * Ends the step once all that was asked for it has ended; its tokens are the sequences'
 * then, and outlive the daemon. @commit may be NULL. If it fails, or anything that was
 * asked for the step did, the step is aborted.
 *   -EINVAL    with nothing sent: the step goes on
 *   -EAGAIN    the same: max_requests are in flight
 *   -ECANCELED a step before it was aborted, or a layer of it was not computed
 */
int fa_step_commit(struct fa_step *step, const struct fa_step_commit *commit,
                   struct fa_ticket *ret_ticket);

/* Ends the step, too: its sequences are as if it had not been. Until that has happened
 * fa_step_begin() with one of them says -EBUSY. */
int fa_step_abort(struct fa_step *step, uint32_t stream, struct fa_ticket *ret_ticket);

/* Forgets the handle; aborts the step if it has not ended, and waits for that, but in all not
 * longer than about fa_options.reply_ns: where max_requests are in flight so long and none of
 * them ends, the step is aborted before the next fa_step_begin(), or else with the connection.
 * (Where the daemon reads nothing, that is given up after reply_ns, too, as by any request.)
 * Before fa_disconnect(), by the last thread that uses it. Takes NULL, returns NULL. */
struct fa_step *fa_step_free(struct fa_step *step);

/* ---- moving keys and values in and out */

struct fa_sequence_copy {
	uint32_t size; /* sizeof(struct fa_sequence_copy) */
	uint32_t stream;
	uint64_t sequence;
	uint64_t first; /* token */
	uint32_t layer;
	uint32_t reserved;
	struct fa_tensor k; /* [tokens, kv_heads, head_dim] of the cache's dtype, not codes; */
	struct fa_tensor v; /* [tokens, kv_heads, head_dim_v]; one of them may have no buffer */
	uint64_t timeout_ns;
	const struct fa_gates *gates;
};

/*
 * Requests as fa_attention() is. Reading copies committed tokens out of the pages; writing
 * copies into those that a step of this client has reserved: a way of its own to fill a
 * sequence, step by step, without fa_step_attend().
 */
int fa_sequence_read(struct fa_client *client, const struct fa_sequence_copy *copy,
                     struct fa_ticket *ret_ticket);
int fa_sequence_write(struct fa_client *client, const struct fa_sequence_copy *copy,
                      struct fa_ticket *ret_ticket);

#endif
