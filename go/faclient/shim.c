#include "shim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct fa_client *client_of(uint64_t handle)
{
	return (struct fa_client *)(uintptr_t)handle;
}

static struct fa_step *step_of(uint64_t handle)
{
	return (struct fa_step *)(uintptr_t)handle;
}

/* Returns @r; copies the sentence that belongs to it, while this is the thread that it is of. */
static int told(int r, struct shim_error *ret_error)
{
	size_t length;

	ret_error->text[0] = 0;
	if (r >= 0)
		return r;
	length = strlen(fa_error());
	if (length >= sizeof(ret_error->text))
		length = sizeof(ret_error->text) - 1;
	memcpy(ret_error->text, fa_error(), length);
	ret_error->text[length] = 0;
	return r;
}

static void fill(struct fa_tensor *ret_tensor, const struct shim_tensor *from)
{
	ret_tensor->buffer = (struct fa_buffer *)(uintptr_t)from->buffer;
	ret_tensor->offset = from->offset;
	ret_tensor->dtype = from->dtype;
	ret_tensor->rank = from->rank;
	memcpy(ret_tensor->shape, from->shape, sizeof(from->shape));
}

/* The same with tokens before heads, of a tensor that may have heads first. */
static void fill_pages(struct fa_tensor *ret_tensor, const struct shim_tensor *from,
                       uint32_t heads_first)
{
	const int64_t *n = from->shape;

	fill(ret_tensor, from);
	if (!heads_first || from->rank != 4)
		return;
	ret_tensor->shape[1] = n[2];
	ret_tensor->shape[2] = n[1];
	/* The tensor's elements lie in memory, so their number is an int64. */
	ret_tensor->strides[0] = n[1] * n[2] * n[3];
	ret_tensor->strides[1] = n[3];
	ret_tensor->strides[2] = n[2] * n[3];
	ret_tensor->strides[3] = 1;
}

int shim_connect(const struct shim_options *options, const char *socket, const char *name,
                 const char *daemon, const char *config, uint64_t *ret_client,
                 struct shim_error *ret_error)
{
	const struct fa_options all = { .size = sizeof(all),
		                        .flags = options->flags,
		                        .socket = socket,
		                        .name = name,
		                        .daemon = daemon,
		                        .config = config,
		                        .connect_ns = options->connect_ns,
		                        .reconnect_ns = options->reconnect_ns,
		                        .reply_ns = options->reply_ns,
		                        .spin_ns = options->spin_ns };
	struct fa_client *client = NULL;
	int r = told(fa_connect(&all, &client), ret_error);

	*ret_client = (uintptr_t)client;
	return r;
}

void shim_disconnect(uint64_t client)
{
	fa_disconnect(client_of(client));
}

int shim_info(uint64_t client, struct fa_info *ret_info, struct shim_error *ret_error)
{
	ret_info->size = sizeof(*ret_info);
	return told(fa_info(client_of(client), ret_info), ret_error);
}

int shim_ping(uint64_t client, struct shim_error *ret_error)
{
	return told(fa_ping(client_of(client)), ret_error);
}

int shim_reconnect(uint64_t client, struct shim_error *ret_error)
{
	return told(fa_reconnect(client_of(client)), ret_error);
}

int shim_state(uint64_t client)
{
	return (int)fa_client_state(client_of(client));
}

char *shim_status(uint64_t client, int *ret_result, struct shim_error *ret_error)
{
	char *json = NULL;

	*ret_result = told(fa_status(client_of(client), &json), ret_error);
	return json;
}

char *shim_socket_path(uint64_t client)
{
	const char *path = fa_socket_path(client_of(client));

	return path ? strdup(path) : NULL;
}

void shim_free(char *text)
{
	free(text);
}

int shim_buffer_new(uint64_t client, uint64_t bytes, uint64_t *ret_buffer, void **ret_data,
                    struct shim_error *ret_error)
{
	struct fa_buffer *buffer = NULL;
	int r = told(fa_buffer_new(client_of(client), bytes, 0, &buffer), ret_error);

	if (r < 0)
		return r;
	*ret_buffer = (uintptr_t)buffer;
	*ret_data = fa_buffer_data(buffer);
	return 0;
}

void shim_buffer_free(uint64_t buffer)
{
	fa_buffer_free((struct fa_buffer *)(uintptr_t)buffer);
}

int shim_stream_new(uint64_t client, int priority, uint32_t *ret_stream,
                    struct shim_error *ret_error)
{
	return told(fa_stream_new(client_of(client), priority, ret_stream), ret_error);
}

int shim_stream_free(uint64_t client, uint32_t stream, struct shim_error *ret_error)
{
	return told(fa_stream_free(client_of(client), stream), ret_error);
}

int shim_attention(uint64_t client, const struct shim_attention *attention, const uint32_t *cu_q,
                   const uint32_t *cu_k, const float *slopes, const float *sinks,
                   const uint32_t *prefixes, struct fa_ticket *ret_ticket,
                   struct shim_error *ret_error)
{
	const struct shim_scores *scores = &attention->scores;
	struct fa_attention all = { .size = sizeof(all),
		                    .flags = scores->flags,
		                    .stream = scores->stream,
		                    .batch = attention->batch,
		                    .scale = scores->scale,
		                    .softcap = scores->softcap,
		                    .window_left = scores->window_left,
		                    .window_right = scores->window_right,
		                    .cu_seqlens_q = cu_q,
		                    .cu_seqlens_k = cu_k,
		                    .alibi_slopes = slopes,
		                    .sinks = sinks,
		                    .chunk_tokens = scores->chunk_tokens,
		                    .pattern = scores->pattern,
		                    .prefix_lengths = prefixes,
		                    .block_rows = attention->block_rows,
		                    .block_keys = attention->block_keys };

	fill(&all.q, &attention->q);
	fill(&all.k, &attention->k);
	fill(&all.v, &attention->v);
	fill(&all.out, &attention->out);
	fill(&all.lse, &attention->lse);
	fill(&all.block_offsets, &attention->block_offsets);
	fill(&all.block_columns, &attention->block_columns);
	fill(&all.mask, &attention->mask);
	return told(fa_attention(client_of(client), &all, ret_ticket), ret_error);
}

int shim_pages_attend(uint64_t client, const struct shim_pages_attend *attend, const float *slopes,
                      const float *sinks, struct fa_ticket *ret_ticket,
                      struct shim_error *ret_error)
{
	const struct shim_scores *scores = &attend->scores;
	struct fa_pages_attend all = { .size = sizeof(all),
		                       .flags = scores->flags,
		                       .stream = scores->stream,
		                       .max_q = attend->max_q,
		                       .max_k = attend->max_k,
		                       .scale = scores->scale,
		                       .softcap = scores->softcap,
		                       .window_left = scores->window_left,
		                       .window_right = scores->window_right,
		                       .alibi_slopes = slopes,
		                       .sinks = sinks,
		                       .chunk_tokens = scores->chunk_tokens,
		                       .pattern = scores->pattern };

	fill(&all.q, &attend->q);
	fill_pages(&all.k, &attend->k, attend->heads_first);
	fill_pages(&all.v, &attend->v, attend->heads_first);
	fill(&all.out, &attend->out);
	fill(&all.lse, &attend->lse);
	fill(&all.table, &attend->table);
	fill(&all.lengths, &attend->lengths);
	fill(&all.cu_q, &attend->cu_q);
	fill(&all.k_new, &attend->k_new);
	fill(&all.v_new, &attend->v_new);
	fill(&all.slots, &attend->slots);
	fill(&all.k_scales, &attend->k_scales);
	fill(&all.v_scales, &attend->v_scales);
	fill(&all.prefix_lengths, &attend->prefix_lengths);
	return told(fa_pages_attend(client_of(client), &all, ret_ticket), ret_error);
}

int shim_wait(uint64_t client, const struct fa_ticket *ticket, uint64_t timeout_ns,
              struct fa_completion *ret_completion, struct shim_error *ret_error)
{
	if (ret_completion)
		ret_completion->size = sizeof(*ret_completion);
	return told(fa_wait(client_of(client), ticket, timeout_ns, ret_completion), ret_error);
}

int shim_cancel(uint64_t client, const struct fa_ticket *ticket, struct shim_error *ret_error)
{
	return told(fa_cancel(client_of(client), ticket), ret_error);
}

int shim_cache_create(uint64_t client, const struct shim_cache *options, const char *name,
                      const float *k_scales, const float *v_scales, const uint32_t *state_bytes,
                      uint64_t *ret_cache, struct shim_error *ret_error)
{
	const struct fa_cache_options all = { .size = sizeof(all),
		                              .flags = options->flags,
		                              .name = name,
		                              .mode = options->mode,
		                              .dtype = options->dtype,
		                              .layers = options->layers,
		                              .kv_heads = options->kv_heads,
		                              .head_dim = options->head_dim,
		                              .head_dim_v = options->head_dim_v,
		                              .page_tokens = options->page_tokens,
		                              .store = options->store,
		                              .max_pages = options->max_pages,
		                              .ttl_ns = options->ttl_ns,
		                              .k_scales = k_scales,
		                              .v_scales = v_scales,
		                              .state_bytes = state_bytes,
		                              .n_states = options->n_states,
		                              .checkpoint_tokens = options->checkpoint_tokens };

	return told(fa_cache_create(client_of(client), &all, ret_cache), ret_error);
}

int shim_cache_find(uint64_t client, uint32_t uid, const char *name, uint64_t *ret_cache,
                    struct shim_error *ret_error)
{
	int r = uid == UINT32_MAX ? fa_cache_find(client_of(client), name, ret_cache)
	                          : fa_cache_find_of(client_of(client), uid, name, ret_cache);

	return told(r, ret_error);
}

int shim_cache_info(uint64_t client, uint64_t cache, struct fa_cache_info *ret_info,
                    struct shim_error *ret_error)
{
	ret_info->size = sizeof(*ret_info);
	return told(fa_cache_info(client_of(client), cache, ret_info), ret_error);
}

int shim_cache_remove(uint64_t client, uint64_t cache, struct shim_error *ret_error)
{
	return told(fa_cache_remove(client_of(client), cache), ret_error);
}

int shim_sequence_create(uint64_t client, uint64_t cache, uint64_t *ret_sequence,
                         struct shim_error *ret_error)
{
	return told(fa_sequence_create(client_of(client), cache, ret_sequence), ret_error);
}

int shim_sequence_find(uint64_t client, uint32_t uid, const char *name, uint64_t *ret_sequence,
                       struct shim_error *ret_error)
{
	int r = uid == UINT32_MAX ? fa_sequence_find(client_of(client), name, ret_sequence)
	                          : fa_sequence_find_of(client_of(client), uid, name, ret_sequence);

	return told(r, ret_error);
}

int shim_sequence_info(uint64_t client, uint64_t sequence, struct fa_sequence_info *ret_info,
                       struct shim_error *ret_error)
{
	ret_info->size = sizeof(*ret_info);
	return told(fa_sequence_info(client_of(client), sequence, ret_info), ret_error);
}

int shim_sequence_fork(uint64_t client, uint64_t sequence, uint64_t tokens, uint64_t *ret_sequence,
                       struct shim_error *ret_error)
{
	return told(fa_sequence_fork(client_of(client), sequence, tokens, ret_sequence), ret_error);
}

int shim_sequence_set_name(uint64_t client, uint64_t sequence, const char *name, uint32_t mode,
                           uint64_t ttl_ns, struct shim_error *ret_error)
{
	return told(fa_sequence_set_name(client_of(client), sequence, name, mode, ttl_ns),
	            ret_error);
}

int shim_sequence_truncate(uint64_t client, uint64_t sequence, uint64_t tokens,
                           uint64_t *ret_tokens, struct shim_error *ret_error)
{
	return told(fa_sequence_truncate_to(client_of(client), sequence, tokens, ret_tokens),
	            ret_error);
}

int shim_sequence_state(uint64_t client, uint64_t sequence, uint32_t state, uint64_t tokens,
                        const struct shim_tensor *data, bool writes, struct shim_error *ret_error)
{
	struct fa_sequence_state all = {
		.size = sizeof(all), .sequence = sequence, .state = state, .tokens = tokens
	};

	fill(&all.data, data);
	return told(writes ? fa_sequence_write_state(client_of(client), &all, NULL)
	                   : fa_sequence_read_state(client_of(client), &all, NULL),
	            ret_error);
}

int shim_sequence_drop_before(uint64_t client, uint64_t sequence, uint64_t first,
                              uint64_t *ret_first, struct shim_error *ret_error)
{
	return told(fa_sequence_drop_before(client_of(client), sequence, first, ret_first),
	            ret_error);
}

int shim_sequence_remove(uint64_t client, uint64_t sequence, struct shim_error *ret_error)
{
	return told(fa_sequence_remove(client_of(client), sequence), ret_error);
}

static struct fa_sequence_copy copy_of(const struct shim_copy *copy)
{
	struct fa_sequence_copy all = { .size = sizeof(all),
		                        .sequence = copy->sequence,
		                        .first = copy->first,
		                        .layer = copy->layer };

	fill(&all.k, &copy->k);
	fill(&all.v, &copy->v);
	return all;
}

int shim_sequence_read(uint64_t client, const struct shim_copy *copy, struct shim_error *ret_error)
{
	const struct fa_sequence_copy all = copy_of(copy);

	return told(fa_sequence_read(client_of(client), &all, NULL), ret_error);
}

int shim_sequence_write(uint64_t client, const struct shim_copy *copy, struct shim_error *ret_error)
{
	const struct fa_sequence_copy all = copy_of(copy);

	return told(fa_sequence_write(client_of(client), &all, NULL), ret_error);
}

typedef int pages_call(struct fa_client *client, const struct fa_sequence_pages *pages,
                       struct fa_ticket *ret_ticket);

static int copy_pages(pages_call *call, uint64_t client, const struct shim_pages *pages,
                      const struct shim_tensor *k, const struct shim_tensor *v,
                      const uint32_t *numbers, struct fa_ticket *ret_ticket,
                      struct shim_error *ret_error)
{
	struct fa_tensor *tensors = calloc(2 * (size_t)pages->n_layers + 1, sizeof(*tensors));
	struct fa_sequence_pages all = { .size = sizeof(all),
		                         .sequence = pages->sequence,
		                         .first = pages->first,
		                         .n_tokens = pages->n_tokens,
		                         .layer = pages->layer,
		                         .n_layers = pages->n_layers,
		                         .pages = numbers,
		                         .n_pages = pages->n_pages,
		                         .page_offset = pages->page_offset };
	int r;

	if (!tensors) {
		strcpy(ret_error->text, "there is no memory for the layers' tensors");
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < pages->n_layers; ++i) {
		if (k)
			fill_pages(&tensors[i], &k[i], pages->heads_first);
		if (v)
			fill_pages(&tensors[pages->n_layers + i], &v[i], pages->heads_first);
	}
	all.k = k ? tensors : NULL;
	all.v = v ? tensors + pages->n_layers : NULL;
	r = told(call(client_of(client), &all, ret_ticket), ret_error);
	free(tensors);
	return r;
}

int shim_sequence_read_pages(uint64_t client, const struct shim_pages *pages,
                             const struct shim_tensor *k, const struct shim_tensor *v,
                             const uint32_t *numbers, struct fa_ticket *ret_ticket,
                             struct shim_error *ret_error)
{
	return copy_pages(fa_sequence_read_pages, client, pages, k, v, numbers, ret_ticket,
	                  ret_error);
}

int shim_sequence_write_pages(uint64_t client, const struct shim_pages *pages,
                              const struct shim_tensor *k, const struct shim_tensor *v,
                              const uint32_t *numbers, struct fa_ticket *ret_ticket,
                              struct shim_error *ret_error)
{
	return copy_pages(fa_sequence_write_pages, client, pages, k, v, numbers, ret_ticket,
	                  ret_error);
}

int shim_prefix(uint64_t client, enum shim_prefix_call call, uint64_t of, uint32_t flags,
                const uint32_t *tokens, uint64_t n_tokens, const void *extra, uint64_t extra_bytes,
                uint64_t *ret_found, struct shim_error *ret_error)
{
	const struct fa_prefix prefix = { .size = sizeof(prefix),
		                          .flags = flags,
		                          .tokens = tokens,
		                          .n_tokens = n_tokens,
		                          .extra = extra,
		                          .extra_bytes = extra_bytes };
	int r = call == SHIM_PUBLISH
	                ? fa_sequence_publish(client_of(client), of, &prefix, ret_found)
	        : call == SHIM_ATTACH
	                ? fa_sequence_attach(client_of(client), of, &prefix, ret_found)
	                : fa_prefix_find(client_of(client), of, &prefix, ret_found);

	return told(r, ret_error);
}

int shim_step_begin(uint64_t client, const uint64_t *items, uint32_t n_items, const uint32_t *tree,
                    const uint32_t *tree_start, uint64_t *ret_step, uint64_t *ret_number,
                    struct shim_error *ret_error)
{
	struct fa_step_options options = {
		.size = sizeof(options), .n_items = n_items, .tree = tree, .tree_start = tree_start
	};
	struct fa_step_item *all = calloc(n_items ? n_items : 1, sizeof(*all));
	struct fa_step *step = NULL;
	int r;

	if (!all) {
		strcpy(ret_error->text, "there is no memory for the step's items");
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n_items; ++i)
		all[i] = (struct fa_step_item){ .sequence = items[2 * i],
			                        .n_new = (uint32_t)items[2 * i + 1],
			                        .flags = (uint32_t)(items[2 * i + 1] >> 32) };
	options.items = all;
	r = told(fa_step_begin(client_of(client), &options, &step), ret_error);
	free(all);
	if (r < 0)
		return r;
	*ret_step = (uintptr_t)step;
	*ret_number = fa_step_number(step);
	return 0;
}

int shim_step_attend(uint64_t step, const struct shim_attend *attend, const float *slopes,
                     const float *sinks, const uint32_t *positions, const uint32_t *prefixes,
                     struct fa_ticket *ret_ticket, struct shim_error *ret_error)
{
	const struct shim_scores *scores = &attend->scores;
	struct fa_step_attend all = { .size = sizeof(all),
		                      .flags = scores->flags,
		                      .stream = scores->stream,
		                      .layer = attend->layer,
		                      .cache = attend->cache,
		                      .scale = scores->scale,
		                      .softcap = scores->softcap,
		                      .window_left = scores->window_left,
		                      .window_right = scores->window_right,
		                      .alibi_slopes = slopes,
		                      .sinks = sinks,
		                      .rotary_dim = attend->rotary_dim,
		                      .rotary_first = attend->rotary_first,
		                      .rotary_base = attend->rotary_base,
		                      .rotary_scale = attend->rotary_scale,
		                      .positions = positions,
		                      .chunk_tokens = scores->chunk_tokens,
		                      .pattern = scores->pattern,
		                      .prefix_lengths = prefixes };

	fill(&all.q, &attend->q);
	fill(&all.k_new, &attend->k_new);
	fill(&all.v_new, &attend->v_new);
	fill(&all.out, &attend->out);
	fill(&all.lse, &attend->lse);
	return told(fa_step_attend(step_of(step), &all, ret_ticket), ret_error);
}

int shim_step_commit(uint64_t step, const uint32_t *keep, const uint32_t *cu_keep,
                     struct fa_ticket *ret_ticket, struct shim_error *ret_error)
{
	const struct fa_step_commit commit = { .size = sizeof(commit),
		                               .keep = keep,
		                               .cu_keep = cu_keep };

	return told(fa_step_commit(step_of(step), &commit, ret_ticket), ret_error);
}

int shim_step_abort(uint64_t step, struct shim_error *ret_error)
{
	return told(fa_step_abort(step_of(step), 0, NULL), ret_error);
}

void shim_step_free(uint64_t step)
{
	fa_step_free(step_of(step));
}
