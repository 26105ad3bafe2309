/* The sm90 kernel for decode of MLA as host code. */
#include "tests/emulator/emulator.h"
#include "tests/emulator/launch.h"

#include "kernels/cuda/sm90/latent_bf16.cu"

static void run(const void *data)
{
	const struct fa_emulated_mapped *args = (const struct fa_emulated_mapped *)data;

	fa_sm90_paged_latent_bf16(*(const struct fa_cuda_paged_attention *)args->attention,
	                          *(const struct fa_cuda_maps *)args->maps);
}

extern "C" const struct fa_emulated_kernel fa_emulated_latent[] = {
	{ "fa_sm90_paged_latent_bf16", run }, { NULL, NULL }
};
