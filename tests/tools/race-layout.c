/*
 * Prints a line for each field of the structs that bench/race.py and bench/decode.py mirror, with
 * the field's offset.
 */
#include "kernels/cuda/paged-plan.h"
#include "kernels/cuda/plan.h"

#include <stdio.h>

#define PARAMS(field) printf("Params %s %zu\n", #field, offsetof(struct fa_attention_params, field))
#define TENSOR(field) printf("Tensor %s %zu\n", #field, offsetof(struct fa_attention_tensor, field))
#define KERNEL(field) printf("Kernel %s %zu\n", #field, offsetof(struct fa_cuda_kernel, field))
#define CACHE(field) printf("Cache %s %zu\n", #field, offsetof(struct fa_paged_cache, field))
#define STEP(field) printf("Step %s %zu\n", #field, offsetof(struct fa_paged_step, field))
#define ATTENTION(field)                                                                           \
	printf("Attention %s %zu\n", #field, offsetof(struct fa_paged_attention, field))
#define ROTARY(field) printf("Rotary %s %zu\n", #field, offsetof(struct fa_paged_rotary, field))
#define APPEND(field) printf("Append %s %zu\n", #field, offsetof(struct fa_paged_append, field))
#define OWN_PAGES(field) printf("OwnPages %s %zu\n", #field, offsetof(struct fa_paged_own, field))
#define OWN_ATTENTION(field)                                                                       \
	printf("OwnAttention %s %zu\n", #field, offsetof(struct fa_paged_own_attention, field))
#define REQUEST(field) printf("Request %s %zu\n", #field, offsetof(struct fa_paged_request, field))

static void print_own(void)
{
	OWN_PAGES(dtype);
	OWN_PAGES(kv_heads);
	OWN_PAGES(head_dim);
	OWN_PAGES(head_dim_v);
	OWN_PAGES(page_tokens);
	OWN_PAGES(pages);
	OWN_PAGES(store);
	OWN_PAGES(k);
	OWN_PAGES(v);
	OWN_PAGES(k_scales);
	OWN_PAGES(v_scales);
	printf("OwnPages - %zu\n", sizeof(struct fa_paged_own));
	OWN_ATTENTION(pages);
	OWN_ATTENTION(batch);
	OWN_ATTENTION(heads);
	OWN_ATTENTION(table);
	OWN_ATTENTION(table_columns);
	OWN_ATTENTION(table_stride);
	OWN_ATTENTION(lengths);
	OWN_ATTENTION(cu_q);
	OWN_ATTENTION(max_q);
	OWN_ATTENTION(total_q);
	OWN_ATTENTION(max_k);
	OWN_ATTENTION(q);
	OWN_ATTENTION(out);
	OWN_ATTENTION(lse);
	OWN_ATTENTION(lse_stride_token);
	OWN_ATTENTION(lse_stride_head);
	OWN_ATTENTION(scale);
	OWN_ATTENTION(softcap);
	OWN_ATTENTION(causal);
	OWN_ATTENTION(window_left);
	OWN_ATTENTION(window_right);
	OWN_ATTENTION(alibi_slopes);
	OWN_ATTENTION(sinks);
	OWN_ATTENTION(deterministic);
	OWN_ATTENTION(chunk_tokens);
	OWN_ATTENTION(prefix_lengths);
	OWN_ATTENTION(pattern);
	printf("OwnAttention - %zu\n", sizeof(struct fa_paged_own_attention));
	printf("Values FA_PAGED_ATTEND_OWN %d\n", FA_PAGED_ATTEND_OWN);
}

static void print_paged(void)
{
	CACHE(pool);
	CACHE(dtype);
	CACHE(layers);
	CACHE(kv_heads);
	CACHE(head_dim);
	CACHE(head_dim_v);
	CACHE(page_tokens);
	CACHE(layer_stride);
	CACHE(v_offset);
	CACHE(store);
	CACHE(k_scales);
	CACHE(v_scales);
	printf("Cache - %zu\n", sizeof(struct fa_paged_cache));
	STEP(batch);
	STEP(cu_new);
	STEP(lengths);
	STEP(lengths_before);
	STEP(first);
	STEP(table);
	STEP(table_start);
	STEP(table_entries);
	STEP(host_table);
	printf("Step - %zu\n", sizeof(struct fa_paged_step));
	ATTENTION(cache);
	ATTENTION(step);
	ATTENTION(layer);
	ATTENTION(heads);
	ATTENTION(q);
	ATTENTION(out);
	ATTENTION(lse);
	ATTENTION(lse_stride_token);
	ATTENTION(lse_stride_head);
	ATTENTION(scale);
	ATTENTION(softcap);
	ATTENTION(causal);
	ATTENTION(window_left);
	ATTENTION(window_right);
	ATTENTION(alibi_slopes);
	ATTENTION(sinks);
	ATTENTION(deterministic);
	ATTENTION(tree);
	ATTENTION(tree_start);
	ATTENTION(positions);
	ATTENTION(chunk_tokens);
	ATTENTION(prefix_lengths);
	ATTENTION(pattern);
	printf("Attention - %zu\n", sizeof(struct fa_paged_attention));
	ROTARY(dim);
	ROTARY(first);
	ROTARY(interleaved);
	ROTARY(base);
	ROTARY(scale);
	ROTARY(cos);
	ROTARY(sin);
	ROTARY(table_positions);
	ROTARY(positions);
	printf("Rotary - %zu\n", sizeof(struct fa_paged_rotary));
	APPEND(cache);
	APPEND(step);
	APPEND(layer);
	APPEND(k);
	APPEND(v);
	APPEND(heads);
	APPEND(q);
	APPEND(q_out);
	APPEND(rotary);
	printf("Append - %zu\n", sizeof(struct fa_paged_append));
	REQUEST(op);
	REQUEST(attention);
	REQUEST(append);
	REQUEST(own_attention);
	printf("Values FA_PAGED_ATTEND %d\n", FA_PAGED_ATTEND);
	printf("Values FA_PAGED_APPEND %d\n", FA_PAGED_APPEND);
	/* decode.py allocates this much for a plan and its blob's address. */
	_Static_assert(sizeof(struct fa_cuda_paged_plan) + 16 <= 1 << 16, "");
}

int main(void)
{
	PARAMS(dtype);
	PARAMS(batch);
	PARAMS(heads);
	PARAMS(kv_heads);
	PARAMS(head_dim);
	PARAMS(head_dim_v);
	PARAMS(seqlen_q);
	PARAMS(seqlen_k);
	PARAMS(cu_seqlens_q);
	PARAMS(cu_seqlens_k);
	PARAMS(q);
	PARAMS(k);
	PARAMS(v);
	PARAMS(out);
	PARAMS(lse);
	PARAMS(lse_stride_batch);
	PARAMS(lse_stride_head);
	PARAMS(lse_stride_token);
	PARAMS(scale);
	PARAMS(softcap);
	PARAMS(causal);
	PARAMS(window_left);
	PARAMS(window_right);
	PARAMS(alibi_slopes);
	PARAMS(sinks);
	PARAMS(chunk_tokens);
	PARAMS(prefix_lengths);
	PARAMS(blocks);
	PARAMS(pattern);
	PARAMS(bits);
	printf("Params - %zu\n", sizeof(struct fa_attention_params));
	TENSOR(data);
	TENSOR(stride_batch);
	TENSOR(stride_token);
	TENSOR(stride_head);
	printf("Tensor - %zu\n", sizeof(struct fa_attention_tensor));
	KERNEL(symbol);
	KERNEL(image);
	KERNEL(dtype);
	KERNEL(kind);
	KERNEL(arch);
	KERNEL(dim);
	KERNEL(dim_v);
	KERNEL(rows);
	KERNEL(threads);
	KERNEL(shared_bytes);
	KERNEL(arch_end);
	KERNEL(keys);
	KERNEL(rows_q);
	KERNEL(seqlen_k_max);
	KERNEL(state_bytes);
	printf("Kernel - %zu\n", sizeof(struct fa_cuda_kernel));
	/* race.py allocates this much for a launch. */
	_Static_assert(sizeof(struct fa_cuda_launch) <= 1024, "");
	print_own();
	print_paged();
	return 0;
}
