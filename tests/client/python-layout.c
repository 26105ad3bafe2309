/*
 * Prints each constant, field and struct of the header that client/examples/attention.py repeats.
 */
#include "client/faclient.h"

#include <stdio.h>

#define TYPE(value)                                                                                \
	_Generic((value),                                                                          \
	         uint32_t: "uint32_t",                                                             \
	         uint64_t: "uint64_t",                                                             \
	         float: "float",                                                                   \
	         double: "double",                                                                 \
	         int32_t: "int32_t",                                                               \
	         int64_t: "int64_t",                                                               \
	         int64_t *: "int64_t[]",                                                           \
	         const char *: "char *",                                                           \
	         const float *: "float *",                                                         \
	         const uint32_t *: "uint32_t *",                                                   \
	         struct fa_buffer *: "struct fa_buffer *",                                         \
	         const struct fa_gates *: "struct fa_gates *",                                     \
	         const struct fa_step_item *: "struct fa_step_item *",                             \
	         struct fa_block_pattern: "struct fa_block_pattern",                               \
	         struct fa_tensor: "struct fa_tensor")
#define CONSTANT(name) printf("constant %s %lld\n", #name, (long long)(name))
#define STRUCT(name) printf("struct %s %zu\n", #name, sizeof(struct name))
/* A field of the struct printed before. */
#define FIELD(name, field)                                                                         \
	printf("field %s %zu %zu %s\n", #field, offsetof(struct name, field),                      \
	       sizeof(((struct name *)NULL)->field), TYPE(((struct name *)NULL)->field))

int main(void)
{
	CONSTANT(FA_CONNECT_SPAWN);
	CONSTANT(FA_BF16);
	CONSTANT(FA_ATTENTION_CAUSAL);
	CONSTANT(FA_STEP_CAUSAL);
	STRUCT(fa_options);
	FIELD(fa_options, size);
	FIELD(fa_options, flags);
	FIELD(fa_options, socket);
	FIELD(fa_options, name);
	FIELD(fa_options, daemon);
	FIELD(fa_options, connect_ns);
	FIELD(fa_options, reconnect_ns);
	FIELD(fa_options, spin_ns);
	FIELD(fa_options, reply_ns);
	FIELD(fa_options, config);
	STRUCT(fa_tensor);
	FIELD(fa_tensor, buffer);
	FIELD(fa_tensor, offset);
	FIELD(fa_tensor, dtype);
	FIELD(fa_tensor, rank);
	FIELD(fa_tensor, shape);
	FIELD(fa_tensor, strides);
	STRUCT(fa_attention);
	FIELD(fa_attention, size);
	FIELD(fa_attention, flags);
	FIELD(fa_attention, stream);
	FIELD(fa_attention, batch);
	FIELD(fa_attention, q);
	FIELD(fa_attention, k);
	FIELD(fa_attention, v);
	FIELD(fa_attention, out);
	FIELD(fa_attention, lse);
	FIELD(fa_attention, scale);
	FIELD(fa_attention, softcap);
	FIELD(fa_attention, window_left);
	FIELD(fa_attention, window_right);
	FIELD(fa_attention, cu_seqlens_q);
	FIELD(fa_attention, cu_seqlens_k);
	FIELD(fa_attention, alibi_slopes);
	FIELD(fa_attention, sinks);
	FIELD(fa_attention, timeout_ns);
	FIELD(fa_attention, gates);
	FIELD(fa_attention, chunk_tokens);
	FIELD(fa_attention, prefix_lengths);
	FIELD(fa_attention, block_rows);
	FIELD(fa_attention, block_keys);
	FIELD(fa_attention, block_offsets);
	FIELD(fa_attention, block_columns);
	FIELD(fa_attention, mask);
	FIELD(fa_attention, pattern);
	FIELD(fa_attention, q_scales);
	FIELD(fa_attention, k_scales);
	FIELD(fa_attention, v_scales);
	STRUCT(fa_block_pattern);
	FIELD(fa_block_pattern, block_tokens);
	FIELD(fa_block_pattern, local_blocks);
	FIELD(fa_block_pattern, vert_stride);
	FIELD(fa_block_pattern, head_step);
	FIELD(fa_block_pattern, first_head);
	FIELD(fa_block_pattern, reserved);
	STRUCT(fa_ticket);
	FIELD(fa_ticket, value);
	FIELD(fa_ticket, stream);
	FIELD(fa_ticket, client);
	STRUCT(fa_cache_options);
	FIELD(fa_cache_options, size);
	FIELD(fa_cache_options, flags);
	FIELD(fa_cache_options, name);
	FIELD(fa_cache_options, mode);
	FIELD(fa_cache_options, dtype);
	FIELD(fa_cache_options, layers);
	FIELD(fa_cache_options, kv_heads);
	FIELD(fa_cache_options, head_dim);
	FIELD(fa_cache_options, head_dim_v);
	FIELD(fa_cache_options, page_tokens);
	FIELD(fa_cache_options, store);
	FIELD(fa_cache_options, max_pages);
	FIELD(fa_cache_options, ttl_ns);
	FIELD(fa_cache_options, k_scales);
	FIELD(fa_cache_options, v_scales);
	FIELD(fa_cache_options, state_bytes);
	FIELD(fa_cache_options, n_states);
	FIELD(fa_cache_options, checkpoint_tokens);
	STRUCT(fa_step_item);
	FIELD(fa_step_item, sequence);
	FIELD(fa_step_item, n_new);
	FIELD(fa_step_item, flags);
	STRUCT(fa_step_options);
	FIELD(fa_step_options, size);
	FIELD(fa_step_options, n_items);
	FIELD(fa_step_options, items);
	FIELD(fa_step_options, tree);
	FIELD(fa_step_options, tree_start);
	STRUCT(fa_step_attend);
	FIELD(fa_step_attend, size);
	FIELD(fa_step_attend, flags);
	FIELD(fa_step_attend, stream);
	FIELD(fa_step_attend, layer);
	FIELD(fa_step_attend, cache);
	FIELD(fa_step_attend, q);
	FIELD(fa_step_attend, k_new);
	FIELD(fa_step_attend, v_new);
	FIELD(fa_step_attend, out);
	FIELD(fa_step_attend, lse);
	FIELD(fa_step_attend, scale);
	FIELD(fa_step_attend, softcap);
	FIELD(fa_step_attend, window_left);
	FIELD(fa_step_attend, window_right);
	FIELD(fa_step_attend, alibi_slopes);
	FIELD(fa_step_attend, sinks);
	FIELD(fa_step_attend, rotary_dim);
	FIELD(fa_step_attend, rotary_first);
	FIELD(fa_step_attend, rotary_base);
	FIELD(fa_step_attend, rotary_scale);
	FIELD(fa_step_attend, cos);
	FIELD(fa_step_attend, sin);
	FIELD(fa_step_attend, positions);
	FIELD(fa_step_attend, timeout_ns);
	FIELD(fa_step_attend, gates);
	FIELD(fa_step_attend, chunk_tokens);
	FIELD(fa_step_attend, prefix_lengths);
	FIELD(fa_step_attend, pattern);
	return 0;
}
