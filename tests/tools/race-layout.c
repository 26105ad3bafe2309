/*
 * Prints a line for each field of the structs that bench/race.py mirrors, with the field's offset.
 */
#include "kernels/cuda/plan.h"

#include <stdio.h>

#define PARAMS(field) printf("Params %s %zu\n", #field, offsetof(struct fa_attention_params, field))
#define TENSOR(field) printf("Tensor %s %zu\n", #field, offsetof(struct fa_attention_tensor, field))
#define KERNEL(field) printf("Kernel %s %zu\n", #field, offsetof(struct fa_cuda_kernel, field))

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
	return 0;
}
