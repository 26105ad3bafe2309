/*
 * What Go calls: one C function for each call of the library, which copies the error's sentence before
 * the goroutine can move to another thread. All are thread-safe as the library is.
 *
 * Handles are integers here: as pointers, Go's collector would follow them. Structs with pointers are
 * made in C from vectors that Go passes for the time of the call.
 */
#pragma once

#include <faclient.h>
#include <stdbool.h>

#define SHIM_ERROR_BYTES 512

/* Its text is "" unless the call returned an error. */
struct shim_error {
	char text[SHIM_ERROR_BYTES];
};

struct shim_tensor {
	uint64_t buffer; /* 0: none */
	uint64_t offset; /* bytes */
	uint32_t dtype;
	uint32_t rank;
	int64_t shape[4];
};

/* What requests of attention have in common. */
struct shim_scores {
	uint32_t flags;
	uint32_t stream;
	float scale, softcap;
	int64_t window_left, window_right;
	uint64_t chunk_tokens;
	struct fa_block_pattern pattern;
};

struct shim_attention {
	struct shim_scores scores;
	struct shim_tensor q, k, v, out, lse;
	struct shim_tensor block_offsets, block_columns, mask;
	uint32_t batch;
	uint32_t block_rows, block_keys;
};

struct shim_attend {
	struct shim_scores scores;
	struct shim_tensor q, k_new, v_new, out, lse;
	uint64_t cache;
	uint32_t layer;
	uint32_t rotary_dim, rotary_first;
	double rotary_base, rotary_scale;
};

struct shim_pages_attend {
	struct shim_scores scores;
	struct shim_tensor q, k, v, out, lse;
	struct shim_tensor table, lengths, cu_q;
	struct shim_tensor k_new, v_new, slots;
	struct shim_tensor k_scales, v_scales, prefix_lengths;
	uint32_t max_q, max_k;
	uint32_t heads_first; /* k and v are [pages, kv_heads, tokens, dim] */
};

struct shim_pages {
	uint64_t sequence, first, n_tokens;
	uint32_t layer, n_layers, n_pages, page_offset;
	uint32_t heads_first;
};

struct shim_options {
	uint32_t flags;
	uint64_t connect_ns, reconnect_ns, reply_ns, spin_ns;
};

struct shim_cache {
	uint32_t flags, mode, dtype, layers, kv_heads, head_dim, head_dim_v, page_tokens, store;
	uint64_t max_pages, ttl_ns;
	uint32_t n_states, checkpoint_tokens;
};

struct shim_copy {
	uint64_t sequence, first;
	uint32_t layer;
	struct shim_tensor k, v;
};

int shim_connect(const struct shim_options *options, const char *socket, const char *name,
                 const char *daemon, const char *config, uint64_t *ret_client,
                 struct shim_error *ret_error);
void shim_disconnect(uint64_t client);
int shim_info(uint64_t client, struct fa_info *ret_info, struct shim_error *ret_error);
int shim_ping(uint64_t client, struct shim_error *ret_error);
int shim_reconnect(uint64_t client, struct shim_error *ret_error);
int shim_state(uint64_t client);
/* Return text that shim_free() frees; NULL: none. */
char *shim_status(uint64_t client, int *ret_result, struct shim_error *ret_error);
char *shim_socket_path(uint64_t client);
void shim_free(char *text);

int shim_buffer_new(uint64_t client, uint64_t bytes, uint64_t *ret_buffer, void **ret_data,
                    struct shim_error *ret_error);
void shim_buffer_free(uint64_t buffer);
int shim_stream_new(uint64_t client, int priority, uint32_t *ret_stream,
                    struct shim_error *ret_error);
int shim_stream_free(uint64_t client, uint32_t stream, struct shim_error *ret_error);

/* @ret_ticket NULL: waits for the end. */
int shim_attention(uint64_t client, const struct shim_attention *attention, const uint32_t *cu_q,
                   const uint32_t *cu_k, const float *slopes, const float *sinks,
                   const uint32_t *prefixes, struct fa_ticket *ret_ticket,
                   struct shim_error *ret_error);
int shim_pages_attend(uint64_t client, const struct shim_pages_attend *attend, const float *slopes,
                      const float *sinks, struct fa_ticket *ret_ticket,
                      struct shim_error *ret_error);
int shim_wait(uint64_t client, const struct fa_ticket *ticket, uint64_t timeout_ns,
              struct fa_completion *ret_completion, struct shim_error *ret_error);
int shim_cancel(uint64_t client, const struct fa_ticket *ticket, struct shim_error *ret_error);

int shim_cache_create(uint64_t client, const struct shim_cache *options, const char *name,
                      const float *k_scales, const float *v_scales, const uint32_t *state_bytes,
                      uint64_t *ret_cache, struct shim_error *ret_error);
/* @uid UINT32_MAX: this user's. */
int shim_cache_find(uint64_t client, uint32_t uid, const char *name, uint64_t *ret_cache,
                    struct shim_error *ret_error);
int shim_cache_info(uint64_t client, uint64_t cache, struct fa_cache_info *ret_info,
                    struct shim_error *ret_error);
int shim_cache_remove(uint64_t client, uint64_t cache, struct shim_error *ret_error);

int shim_sequence_create(uint64_t client, uint64_t cache, uint64_t *ret_sequence,
                         struct shim_error *ret_error);
int shim_sequence_find(uint64_t client, uint32_t uid, const char *name, uint64_t *ret_sequence,
                       struct shim_error *ret_error);
int shim_sequence_info(uint64_t client, uint64_t sequence, struct fa_sequence_info *ret_info,
                       struct shim_error *ret_error);
int shim_sequence_fork(uint64_t client, uint64_t sequence, uint64_t tokens, uint64_t *ret_sequence,
                       struct shim_error *ret_error);
int shim_sequence_set_name(uint64_t client, uint64_t sequence, const char *name, uint32_t mode,
                           uint64_t ttl_ns, struct shim_error *ret_error);
int shim_sequence_truncate(uint64_t client, uint64_t sequence, uint64_t tokens,
                           uint64_t *ret_tokens, struct shim_error *ret_error);
/* Reads a state of linear layers, or writes it. */
int shim_sequence_state(uint64_t client, uint64_t sequence, uint32_t state, uint64_t tokens,
                        const struct shim_tensor *data, bool writes, struct shim_error *ret_error);
int shim_sequence_drop_before(uint64_t client, uint64_t sequence, uint64_t first,
                              uint64_t *ret_first, struct shim_error *ret_error);
int shim_sequence_remove(uint64_t client, uint64_t sequence, struct shim_error *ret_error);
int shim_sequence_read(uint64_t client, const struct shim_copy *copy, struct shim_error *ret_error);
int shim_sequence_write(uint64_t client, const struct shim_copy *copy,
                        struct shim_error *ret_error);
/* @k and @v: a tensor a layer, or NULL. */
int shim_sequence_read_pages(uint64_t client, const struct shim_pages *pages,
                             const struct shim_tensor *k, const struct shim_tensor *v,
                             const uint32_t *numbers, struct fa_ticket *ret_ticket,
                             struct shim_error *ret_error);
int shim_sequence_write_pages(uint64_t client, const struct shim_pages *pages,
                              const struct shim_tensor *k, const struct shim_tensor *v,
                              const uint32_t *numbers, struct fa_ticket *ret_ticket,
                              struct shim_error *ret_error);

enum shim_prefix_call {
	SHIM_PUBLISH, /* @of: the sequence */
	SHIM_ATTACH,  /* the sequence */
	SHIM_FIND,    /* the cache */
};
int shim_prefix(uint64_t client, enum shim_prefix_call call, uint64_t of, uint32_t flags,
                const uint32_t *tokens, uint64_t n_tokens, const void *extra, uint64_t extra_bytes,
                uint64_t *ret_found, struct shim_error *ret_error);

/* @items: pairs of sequence and number of new tokens; @tree and @tree_start may be NULL. */
int shim_step_begin(uint64_t client, const uint64_t *items, uint32_t n_items, const uint32_t *tree,
                    const uint32_t *tree_start, uint64_t *ret_step, uint64_t *ret_number,
                    struct shim_error *ret_error);
int shim_step_attend(uint64_t step, const struct shim_attend *attend, const float *slopes,
                     const float *sinks, const uint32_t *positions, const uint32_t *prefixes,
                     struct fa_ticket *ret_ticket, struct shim_error *ret_error);
int shim_step_commit(uint64_t step, const uint32_t *keep, const uint32_t *cu_keep,
                     struct fa_ticket *ret_ticket, struct shim_error *ret_error);
int shim_step_abort(uint64_t step, struct shim_error *ret_error);
void shim_step_free(uint64_t step);
