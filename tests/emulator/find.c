#include "tests/emulator/find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct fa_emulated_kernel *fa_emulated_find(const struct fa_cuda_paged_kernel *kernel)
{
	static const struct fa_emulated_kernel *const modules[] = {
		[FA_CUDA_IMAGE_SM80_PAGED_F16] = fa_emulated_f16,
		[FA_CUDA_IMAGE_SM80_PAGED_BF16] = fa_emulated_bf16,
		[FA_CUDA_IMAGE_SM80_PAGED_F32] = fa_emulated_f32,
		[FA_CUDA_IMAGE_SM80_PAGED_TOKENS] = fa_emulated_tokens,
		[FA_CUDA_IMAGE_SM80_PAGED_CODES] = fa_emulated_codes,
		[FA_CUDA_IMAGE_SM80_OWN_F16] = fa_emulated_own_f16,
		[FA_CUDA_IMAGE_SM80_OWN_BF16] = fa_emulated_own_bf16,
		[FA_CUDA_IMAGE_SM80_OWN] = fa_emulated_own,
		[FA_CUDA_IMAGE_SM90_OWN_F16] = fa_emulated_own_90_f16,
		[FA_CUDA_IMAGE_SM90_OWN_BF16] = fa_emulated_own_90_bf16,
		[FA_CUDA_IMAGE_SM90_OWN_E4M3] = fa_emulated_own_90_e4m3,
		[FA_CUDA_IMAGE_SM90_OWN_PREFILL_F16] = fa_emulated_own_prefill_f16,
		[FA_CUDA_IMAGE_SM90_OWN_PREFILL_BF16] = fa_emulated_own_prefill_bf16,
		[FA_CUDA_IMAGE_SM90_PREFILL_F16] = fa_emulated_prefill_f16,
		[FA_CUDA_IMAGE_SM90_PREFILL_BF16] = fa_emulated_prefill_bf16,
		[FA_CUDA_IMAGE_SM90_PAGED_F16] = fa_emulated_90_f16,
		[FA_CUDA_IMAGE_SM90_PAGED_BF16] = fa_emulated_90_bf16,
		[FA_CUDA_IMAGE_SM90_PAGED_CODES] = fa_emulated_90_codes,
		[FA_CUDA_IMAGE_SM90_LATENT_F16] = fa_emulated_latent,
		[FA_CUDA_IMAGE_SM90_LATENT_BF16] = fa_emulated_latent,
		[FA_CUDA_IMAGE_SM90_LATENT_E4M3] = fa_emulated_latent,
	};
	const struct fa_emulated_kernel *emulated = modules[kernel->image];

	while (emulated->symbol && strcmp(emulated->symbol, kernel->symbol) != 0)
		emulated++;
	if (!emulated->symbol) {
		fprintf(stderr, "%s is not emulated\n", kernel->symbol);
		abort();
	}
	return emulated;
}
