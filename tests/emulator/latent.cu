/* The sm90 kernels for decode of MLA as host code. */
#include "tests/emulator/emulator.h"
#include "tests/emulator/launch.h"

#include "kernels/cuda/sm90/latent_bf16.cu"
#include "kernels/cuda/sm90/latent_e4m3.cu"
#include "kernels/cuda/sm90/latent_f16.cu"

template <void kernel(struct fa_cuda_paged_attention, struct fa_cuda_maps)>
static void run(const void *data)
{
	const struct fa_emulated_mapped *args = (const struct fa_emulated_mapped *)data;

	kernel(*(const struct fa_cuda_paged_attention *)args->attention,
	       *(const struct fa_cuda_maps *)args->maps);
}

static void run_codes(const void *data)
{
	fa_sm90_paged_latent_e4m3(*(const struct fa_cuda_paged_attention_quantised *)data);
}

extern "C" const struct fa_emulated_kernel fa_emulated_latent[] = {
	{ "fa_sm90_paged_latent_bf16", run<fa_sm90_paged_latent_bf16> },
	{ "fa_sm90_paged_latent_f16", run<fa_sm90_paged_latent_f16> },
	{ "fa_sm90_paged_latent_e4m3", run_codes },
	{ NULL, NULL }
};
