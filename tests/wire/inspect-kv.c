#include "tests/wire/inspect-kv.h"

#include "tests/wire/inspect-parts.h"

static const char *cache_create_difference(const struct fa_wire_cache_create *a,
                                           const struct fa_wire_cache_create *b)
{
	SAME_STRING(name);
	SAME(mode);
	SAME(ttl_ns);
	SAME(dtype);
	SAME(flags);
	SAME(layers);
	SAME(kv_heads);
	SAME(head_dim);
	SAME(head_dim_v);
	SAME(page_tokens);
	SAME(max_pages);
	SAME(store);
	SAME_VECTOR(k_scales);
	SAME_VECTOR(v_scales);
	SAME_VECTOR(state_bytes);
	SAME(checkpoint_tokens);
	return NULL;
}

static const char *cache_find_difference(const struct fa_wire_cache_find *a,
                                         const struct fa_wire_cache_find *b)
{
	SAME_STRING(name);
	SAME(cache);
	return NULL;
}

static const char *cache_remove_difference(const struct fa_wire_cache_remove *a,
                                           const struct fa_wire_cache_remove *b)
{
	SAME(cache);
	return NULL;
}

static const char *cache_reply_difference(const struct fa_wire_cache_reply *a,
                                          const struct fa_wire_cache_reply *b)
{
	SAME(cache);
	SAME(mode);
	SAME(dtype);
	SAME(flags);
	SAME(layers);
	SAME(kv_heads);
	SAME(head_dim);
	SAME(head_dim_v);
	SAME(page_tokens);
	SAME(page_bytes);
	SAME(max_pages);
	SAME(used_pages);
	SAME(idle_pages);
	SAME(sequences);
	SAME(store);
	SAME(uid);
	SAME(states);
	SAME(checkpoint_tokens);
	SAME(checkpoint_pages);
	SAME(checkpoint_bytes);
	return NULL;
}

static const char *sequence_create_difference(const struct fa_wire_sequence_create *a,
                                              const struct fa_wire_sequence_create *b)
{
	SAME(cache);
	return NULL;
}

static const char *sequence_find_difference(const struct fa_wire_sequence_find *a,
                                            const struct fa_wire_sequence_find *b)
{
	SAME_STRING(name);
	return NULL;
}

static const char *sequence_fork_difference(const struct fa_wire_sequence_fork *a,
                                            const struct fa_wire_sequence_fork *b)
{
	SAME(sequence);
	SAME(tokens);
	return NULL;
}

static const char *sequence_set_name_difference(const struct fa_wire_sequence_set_name *a,
                                                const struct fa_wire_sequence_set_name *b)
{
	SAME(sequence);
	SAME_STRING(name);
	SAME(mode);
	SAME(ttl_ns);
	return NULL;
}

static const char *sequence_truncate_difference(const struct fa_wire_sequence_truncate *a,
                                                const struct fa_wire_sequence_truncate *b)
{
	SAME(sequence);
	SAME(tokens);
	return NULL;
}

static const char *sequence_drop_difference(const struct fa_wire_sequence_drop *a,
                                            const struct fa_wire_sequence_drop *b)
{
	SAME(sequence);
	SAME(first);
	return NULL;
}

static const char *sequence_free_difference(const struct fa_wire_sequence_free *a,
                                            const struct fa_wire_sequence_free *b)
{
	SAME(sequence);
	return NULL;
}

static const char *sequence_info_difference(const struct fa_wire_sequence_info *a,
                                            const struct fa_wire_sequence_info *b)
{
	SAME(sequence);
	return NULL;
}

static const char *sequence_reply_difference(const struct fa_wire_sequence_reply *a,
                                             const struct fa_wire_sequence_reply *b)
{
	SAME(sequence);
	SAME(cache);
	SAME(length);
	SAME(planned);
	SAME(first);
	SAME(step);
	SAME(mode);
	SAME(matched);
	SAME(uid);
	SAME(checkpoint);
	SAME(checkpoints);
	return NULL;
}

static const char *sequence_publish_difference(const struct fa_wire_sequence_publish *a,
                                               const struct fa_wire_sequence_publish *b)
{
	SAME(sequence);
	SAME(flags);
	SAME_VECTOR(extra);
	SAME_VECTOR(tokens);
	SAME_VIEW(tokens_view);
	return NULL;
}

static const char *sequence_attach_difference(const struct fa_wire_sequence_attach *a,
                                              const struct fa_wire_sequence_attach *b)
{
	SAME(sequence);
	SAME(flags);
	SAME_VECTOR(extra);
	SAME_VECTOR(tokens);
	SAME_VIEW(tokens_view);
	return NULL;
}

static const char *prefix_find_difference(const struct fa_wire_prefix_find *a,
                                          const struct fa_wire_prefix_find *b)
{
	SAME(cache);
	SAME(flags);
	SAME_VECTOR(extra);
	SAME_VECTOR(tokens);
	SAME_VIEW(tokens_view);
	return NULL;
}

static const char *prefix_reply_difference(const struct fa_wire_prefix_reply *a,
                                           const struct fa_wire_prefix_reply *b)
{
	SAME(cache);
	SAME(tokens);
	return NULL;
}

static const char *sequence_copy_difference(const struct fa_wire_sequence_copy *a,
                                            const struct fa_wire_sequence_copy *b)
{
	SAME(stream);
	SAME(value);
	SAME(sequence);
	SAME(flags);
	SAME(layer);
	SAME(first);
	SAME_VIEW(k);
	SAME_VIEW(v);
	return NULL;
}

static const char *sequence_pages_difference(const struct fa_wire_sequence_pages *a,
                                             const struct fa_wire_sequence_pages *b)
{
	SAME(stream);
	SAME(value);
	SAME(sequence);
	SAME(flags);
	SAME(layer);
	SAME(first);
	SAME(n_tokens);
	SAME_VIEW(k);
	SAME_VIEW(v);
	SAME_VECTOR(k_places);
	SAME_VECTOR(v_places);
	SAME_VECTOR(pages);
	SAME(page_offset);
	return NULL;
}

static const char *sequence_state_difference(const struct fa_wire_sequence_state *a,
                                             const struct fa_wire_sequence_state *b)
{
	SAME(stream);
	SAME(value);
	SAME(sequence);
	SAME(flags);
	SAME(state);
	SAME(tokens);
	SAME_VIEW(data);
	return NULL;
}

static const char *step_begin_difference(const struct fa_wire_step_begin *a,
                                         const struct fa_wire_step_begin *b)
{
	SAME(step);
	SAME_VECTOR(items);
	SAME_VECTOR(tree);
	SAME_VECTOR(tree_start);
	SAME(stream);
	SAME(value);
	return NULL;
}

static const char *step_reply_difference(const struct fa_wire_step_reply *a,
                                         const struct fa_wire_step_reply *b)
{
	SAME(step);
	SAME(number);
	return NULL;
}

static const char *step_attend_difference(const struct fa_wire_step_attend *a,
                                          const struct fa_wire_step_attend *b)
{
	SAME(stream);
	SAME(value);
	SAME(step);
	SAME(cache);
	SAME(layer);
	SAME(flags);
	SAME_VIEW(q);
	SAME_VIEW(k);
	SAME_VIEW(v);
	SAME_VIEW(out);
	SAME_VIEW(lse);
	SAME_FLOAT(scale);
	SAME_FLOAT(softcap);
	SAME(window_left);
	SAME(window_right);
	SAME_VECTOR(alibi_slopes);
	SAME_VECTOR(sinks);
	SAME(rotary_dim);
	SAME_FLOAT(rotary_base);
	SAME_FLOAT(rotary_scale);
	SAME_VIEW(cos);
	SAME_VIEW(sin);
	SAME_VECTOR(positions);
	SAME(rotary_first);
	SAME(chunk_tokens);
	SAME_VECTOR(prefix_lengths);
	SAME(pattern_block_tokens);
	SAME(pattern_local_blocks);
	SAME(pattern_vert_stride);
	SAME(pattern_head_step);
	SAME(pattern_first_head);
	return NULL;
}

static const char *step_attend_layers_difference(const struct fa_wire_step_attend_layers *a,
                                                 const struct fa_wire_step_attend_layers *b)
{
	SAME(n_layers);
	SAME(q_bytes);
	SAME(k_bytes);
	SAME(v_bytes);
	SAME(out_bytes);
	SAME(lse_bytes);
	SAME(has_wait);
	SAME(wait.slot);
	SAME(wait.reserved);
	SAME(wait.value);
	SAME(wait_increment);
	SAME(has_signal);
	SAME(signal.slot);
	SAME(signal.reserved);
	SAME(signal.value);
	SAME(signal_increment);
	return step_attend_difference(&a->attend, &b->attend);
}

static const char *step_end_difference(const struct fa_wire_step_end *a,
                                       const struct fa_wire_step_end *b)
{
	SAME(stream);
	SAME(value);
	SAME(step);
	SAME(flags);
	SAME_VECTOR(keep);
	SAME_VECTOR(cu_keep);
	return NULL;
}

static const char *pages_attend_difference(const struct fa_wire_pages_attend *a,
                                           const struct fa_wire_pages_attend *b)
{
	SAME(stream);
	SAME(flags);
	SAME(value);
	SAME_VIEW(q);
	SAME_VIEW(k);
	SAME_VIEW(v);
	SAME_VIEW(out);
	SAME_VIEW(lse);
	SAME_VIEW(table);
	SAME_VIEW(lengths);
	SAME_VIEW(cu_q);
	SAME(max_q);
	SAME(max_k);
	SAME_VIEW(k_new);
	SAME_VIEW(v_new);
	SAME_VIEW(slots);
	SAME_VIEW(k_scales);
	SAME_VIEW(v_scales);
	SAME_FLOAT(scale);
	SAME_FLOAT(softcap);
	SAME(window_left);
	SAME(window_right);
	SAME_VECTOR(alibi_slopes);
	SAME_VECTOR(sinks);
	SAME(chunk_tokens);
	SAME_VIEW(prefix_lengths);
	SAME(pattern_block_tokens);
	SAME(pattern_local_blocks);
	SAME(pattern_vert_stride);
	SAME(pattern_head_step);
	SAME(pattern_first_head);
	return NULL;
}

const char *fa_inspect_kv_difference(const struct fa_wire_message *a,
                                     const struct fa_wire_message *b)
{
	switch (a->type) {
	case FA_WIRE_CACHE_CREATE:
		return cache_create_difference(&a->cache_create, &b->cache_create);
	case FA_WIRE_CACHE_FIND:
		return cache_find_difference(&a->cache_find, &b->cache_find);
	case FA_WIRE_CACHE_REMOVE:
		return cache_remove_difference(&a->cache_remove, &b->cache_remove);
	case FA_WIRE_CACHE_REPLY:
		return cache_reply_difference(&a->cache_reply, &b->cache_reply);
	case FA_WIRE_SEQUENCE_CREATE:
		return sequence_create_difference(&a->sequence_create, &b->sequence_create);
	case FA_WIRE_SEQUENCE_FIND:
		return sequence_find_difference(&a->sequence_find, &b->sequence_find);
	case FA_WIRE_SEQUENCE_FORK:
		return sequence_fork_difference(&a->sequence_fork, &b->sequence_fork);
	case FA_WIRE_SEQUENCE_SET_NAME:
		return sequence_set_name_difference(&a->sequence_set_name, &b->sequence_set_name);
	case FA_WIRE_SEQUENCE_TRUNCATE:
		return sequence_truncate_difference(&a->sequence_truncate, &b->sequence_truncate);
	case FA_WIRE_SEQUENCE_DROP:
		return sequence_drop_difference(&a->sequence_drop, &b->sequence_drop);
	case FA_WIRE_SEQUENCE_FREE:
		return sequence_free_difference(&a->sequence_free, &b->sequence_free);
	case FA_WIRE_SEQUENCE_INFO:
		return sequence_info_difference(&a->sequence_info, &b->sequence_info);
	case FA_WIRE_SEQUENCE_REPLY:
		return sequence_reply_difference(&a->sequence_reply, &b->sequence_reply);
	case FA_WIRE_SEQUENCE_PUBLISH:
		return sequence_publish_difference(&a->sequence_publish, &b->sequence_publish);
	case FA_WIRE_SEQUENCE_ATTACH:
		return sequence_attach_difference(&a->sequence_attach, &b->sequence_attach);
	case FA_WIRE_PREFIX_FIND:
		return prefix_find_difference(&a->prefix_find, &b->prefix_find);
	case FA_WIRE_PREFIX_REPLY:
		return prefix_reply_difference(&a->prefix_reply, &b->prefix_reply);
	case FA_WIRE_PAGES_ATTEND:
		return pages_attend_difference(&a->pages_attend, &b->pages_attend);
	case FA_WIRE_SEQUENCE_COPY:
		return sequence_copy_difference(&a->sequence_copy, &b->sequence_copy);
	case FA_WIRE_SEQUENCE_PAGES:
		return sequence_pages_difference(&a->sequence_pages, &b->sequence_pages);
	case FA_WIRE_SEQUENCE_STATE:
		return sequence_state_difference(&a->sequence_state, &b->sequence_state);
	case FA_WIRE_STEP_BEGIN:
		return step_begin_difference(&a->step_begin, &b->step_begin);
	case FA_WIRE_STEP_REPLY:
		return step_reply_difference(&a->step_reply, &b->step_reply);
	case FA_WIRE_STEP_ATTEND:
		return step_attend_difference(&a->step_attend, &b->step_attend);
	case FA_WIRE_STEP_ATTEND_LAYERS:
		return step_attend_layers_difference(&a->step_attend_layers,
		                                     &b->step_attend_layers);
	case FA_WIRE_STEP_END:
		return step_end_difference(&a->step_end, &b->step_end);
	default:
		return "type, which is none of ours";
	}
}

static uint64_t read_step_attend(struct range range, const struct fa_wire_step_attend *attend)
{
	return read_view(&attend->q) + read_view(&attend->k) + read_view(&attend->v) +
	       read_view(&attend->out) + read_view(&attend->lse) +
	       read_vector(range, attend->alibi_slopes, attend->n_alibi_slopes, FA_WIRE_HEADS_MAX,
	                   sizeof(*attend->alibi_slopes)) +
	       read_vector(range, attend->sinks, attend->n_sinks, FA_WIRE_HEADS_MAX,
	                   sizeof(*attend->sinks)) +
	       read_view(&attend->cos) + read_view(&attend->sin) +
	       read_vector(range, attend->positions, attend->n_positions, FA_WIRE_TOKENS_MAX,
	                   sizeof(*attend->positions));
}

static uint64_t read_pages_attend(struct range range, const struct fa_wire_pages_attend *attend)
{
	return read_view(&attend->q) + read_view(&attend->k) + read_view(&attend->v) +
	       read_view(&attend->out) + read_view(&attend->lse) + read_view(&attend->table) +
	       read_view(&attend->lengths) + read_view(&attend->cu_q) + read_view(&attend->k_new) +
	       read_view(&attend->v_new) + read_view(&attend->slots) +
	       read_view(&attend->k_scales) + read_view(&attend->v_scales) +
	       read_vector(range, attend->alibi_slopes, attend->n_alibi_slopes, FA_WIRE_HEADS_MAX,
	                   4) +
	       read_vector(range, attend->sinks, attend->n_sinks, FA_WIRE_HEADS_MAX, 4);
}

uint64_t fa_inspect_kv_read(const struct fa_wire_message *message, struct range range)
{
	switch (message->type) {
	case FA_WIRE_CACHE_CREATE:
		return read_string(range, &message->cache_create.name, FA_WIRE_NAME_BYTES_MAX) +
		       read_vector(range, message->cache_create.k_scales,
		                   message->cache_create.n_k_scales, FA_WIRE_SCALES_MAX,
		                   sizeof(*message->cache_create.k_scales)) +
		       read_vector(range, message->cache_create.v_scales,
		                   message->cache_create.n_v_scales, FA_WIRE_SCALES_MAX,
		                   sizeof(*message->cache_create.v_scales)) +
		       read_vector(range, message->cache_create.state_bytes,
		                   message->cache_create.n_state_bytes, FA_WIRE_STATES_MAX,
		                   sizeof(*message->cache_create.state_bytes));
	case FA_WIRE_CACHE_FIND:
		return read_string(range, &message->cache_find.name, FA_WIRE_NAME_BYTES_MAX);
	case FA_WIRE_SEQUENCE_FIND:
		return read_string(range, &message->sequence_find.name, FA_WIRE_NAME_BYTES_MAX);
	case FA_WIRE_SEQUENCE_SET_NAME:
		return read_string(range, &message->sequence_set_name.name, FA_WIRE_NAME_BYTES_MAX);
	case FA_WIRE_SEQUENCE_PUBLISH:
		return read_vector(range, message->sequence_publish.extra,
		                   message->sequence_publish.n_extra, FA_WIRE_EXTRA_MAX,
		                   sizeof(*message->sequence_publish.extra)) +
		       read_vector(range, message->sequence_publish.tokens,
		                   message->sequence_publish.n_tokens, FA_WIRE_TOKENS_MAX,
		                   sizeof(*message->sequence_publish.tokens)) +
		       read_view(&message->sequence_publish.tokens_view);
	case FA_WIRE_SEQUENCE_ATTACH:
		return read_vector(range, message->sequence_attach.extra,
		                   message->sequence_attach.n_extra, FA_WIRE_EXTRA_MAX,
		                   sizeof(*message->sequence_attach.extra)) +
		       read_vector(range, message->sequence_attach.tokens,
		                   message->sequence_attach.n_tokens, FA_WIRE_TOKENS_MAX,
		                   sizeof(*message->sequence_attach.tokens)) +
		       read_view(&message->sequence_attach.tokens_view);
	case FA_WIRE_PREFIX_FIND:
		return read_vector(range, message->prefix_find.extra, message->prefix_find.n_extra,
		                   FA_WIRE_EXTRA_MAX, sizeof(*message->prefix_find.extra)) +
		       read_vector(range, message->prefix_find.tokens,
		                   message->prefix_find.n_tokens, FA_WIRE_TOKENS_MAX,
		                   sizeof(*message->prefix_find.tokens)) +
		       read_view(&message->prefix_find.tokens_view);
	case FA_WIRE_PAGES_ATTEND:
		return read_pages_attend(range, &message->pages_attend);
	case FA_WIRE_SEQUENCE_COPY:
		return read_view(&message->sequence_copy.k) + read_view(&message->sequence_copy.v);
	case FA_WIRE_SEQUENCE_PAGES:
		return read_view(&message->sequence_pages.k) +
		       read_view(&message->sequence_pages.v) +
		       read_vector(range, message->sequence_pages.k_places,
		                   message->sequence_pages.n_k_places, FA_WIRE_LAYERS_MAX,
		                   sizeof(*message->sequence_pages.k_places)) +
		       read_vector(range, message->sequence_pages.v_places,
		                   message->sequence_pages.n_v_places, FA_WIRE_LAYERS_MAX,
		                   sizeof(*message->sequence_pages.v_places)) +
		       read_vector(range, message->sequence_pages.pages,
		                   message->sequence_pages.n_pages, FA_WIRE_PAGES_MAX,
		                   sizeof(*message->sequence_pages.pages));
	case FA_WIRE_SEQUENCE_STATE:
		return read_view(&message->sequence_state.data);
	case FA_WIRE_STEP_BEGIN:
		return read_vector(range, message->step_begin.items, message->step_begin.n_items,
		                   FA_WIRE_STEP_MAX, sizeof(*message->step_begin.items)) +
		       read_vector(range, message->step_begin.tree, message->step_begin.n_tree,
		                   FA_WIRE_TOKENS_MAX, sizeof(*message->step_begin.tree)) +
		       read_vector(range, message->step_begin.tree_start,
		                   message->step_begin.n_tree_start, FA_WIRE_STEP_MAX,
		                   sizeof(*message->step_begin.tree_start));
	case FA_WIRE_STEP_ATTEND:
		return read_step_attend(range, &message->step_attend);
	case FA_WIRE_STEP_ATTEND_LAYERS:
		return read_step_attend(range, &message->step_attend_layers.attend);
	case FA_WIRE_STEP_END:
		return read_vector(range, message->step_end.keep, message->step_end.n_keep,
		                   FA_WIRE_TOKENS_MAX, sizeof(*message->step_end.keep)) +
		       read_vector(range, message->step_end.cu_keep, message->step_end.n_cu_keep,
		                   FA_WIRE_STEP_MAX + 1, sizeof(*message->step_end.cu_keep));
	default:
		return 0;
	}
}
