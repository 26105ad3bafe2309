#include "kernels/cuda/common/gate.h"
#include "kernels/cuda/sm90/latent.h"

extern "C" __global__ void __launch_bounds__(FA_SM90_LATENT_THREADS, 1)
	fa_sm90_paged_latent_bf16(const __grid_constant__ struct fa_cuda_paged_attention args,
                                  const __grid_constant__ struct fa_cuda_maps maps)
{
	fa_gate_pass(args.attention.done);
	fa_sm90_latent_decode<fa_sm90_latent_config<fa_bf16, false>>(args, &maps);
}
