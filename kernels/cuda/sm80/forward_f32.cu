#include "kernels/cuda/common/done.h"
#include "kernels/cuda/sm80/forward_f32.h"

#define FA_ROW(dim, dim_v, rows, keys)                                                             \
	extern "C" __global__ void __launch_bounds__(FA_SM80_F32_THREADS, 2)                       \
		fa_sm80_forward_f32_d##dim##_v##dim_v##_rich(                                      \
			const __grid_constant__ struct fa_cuda_attention args)                     \
	{                                                                                          \
		fa_sm80_forward_f32<dim, dim_v, rows, keys>(args);                                 \
		fa_done(args.done);                                                                \
	}

FA_SM80_FORWARD_F32(FA_ROW)
