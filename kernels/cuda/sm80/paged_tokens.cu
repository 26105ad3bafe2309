#include "kernels/cuda/common/done.h"
#include "kernels/cuda/common/gate.h"
#include "kernels/cuda/sm80/paged_append_quantised.h"
#include "kernels/cuda/sm80/paged_own_copy.h"
#include "kernels/cuda/sm80/paged_widen.h"

#define FA_TOKENS_KERNEL(name, args_name)                                                          \
	extern "C" __global__ void __launch_bounds__(FA_CUDA_TOKENS_THREADS)                       \
		fa_sm80_paged_##name(const __grid_constant__ struct args_name args)

FA_TOKENS_KERNEL(append, fa_cuda_paged_append)
{
	fa_paged_append<false>(args, args.items, args.pages.table);
	fa_done(args.done);
}

FA_TOKENS_KERNEL(append_small, fa_cuda_paged_small_append)
{
	fa_paged_append<false>(args.plain, args.items, args.table);
	fa_done(args.plain.done);
}

FA_TOKENS_KERNEL(read, fa_cuda_paged_append)
{
	fa_paged_append<true>(args, args.items, args.pages.table);
	fa_done(args.done);
}

FA_TOKENS_KERNEL(append_codes, fa_cuda_paged_append_quantised)
{
	fa_paged_append_codes<false>(args);
	fa_done(args.append.done);
}

FA_TOKENS_KERNEL(read_codes, fa_cuda_paged_append_quantised)
{
	fa_paged_append_codes<true>(args);
	fa_done(args.append.done);
}

FA_TOKENS_KERNEL(widen, fa_cuda_paged_widen)
{
	fa_paged_widen(args);
	fa_done(args.done);
}

FA_TOKENS_KERNEL(merge, fa_cuda_paged_merge)
{
	fa_paged_merge(args);
	fa_done(args.done);
}

FA_TOKENS_KERNEL(copy, fa_cuda_paged_copy)
{
	fa_paged_copy(args);
	fa_done(args.done);
}

FA_TOKENS_KERNEL(move, fa_cuda_paged_moves)
{
	fa_paged_move(args);
	fa_done(args.done);
}

FA_TOKENS_KERNEL(own_copy, fa_cuda_paged_own_copy)
{
	fa_paged_own_copy(args);
	fa_done(args.done);
}

FA_TOKENS_KERNEL(own_copy_codes, fa_cuda_paged_own_copy)
{
	fa_paged_own_copy_codes(args);
	fa_done(args.done);
}

extern "C" __global__ void __launch_bounds__(FA_CUDA_GATE_THREADS)
	fa_sm80_paged_gate(const __grid_constant__ struct fa_cuda_gate args)
{
	if (threadIdx.x == 0)
		fa_gate(args);
}
