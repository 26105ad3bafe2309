#pragma once
#include "kernels/cuda/ptx/memory.h"
#include "tests/emulator/emulator.h"

static inline void fa_emulated_ldmatrix(uint32_t (&ret)[4], uint32_t address, bool trans)
{
	const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	const uint64_t *all = fa_emulated_warp_exchange(address);

	for (int j = 0; j < 4; j++) {
		uint16_t pair[2];

		for (uint32_t e = 0; e < 2; e++) {
			const uint32_t row = trans ? 2 * t + e : g, column = trans ? g : 2 * t + e;

			memcpy(&pair[e],
			       fa_emulated_shared((uint32_t)all[8 * j + row], 16) + column * 2, 2);
		}
		ret[j] = pair[0] | (uint32_t)pair[1] << 16;
	}
}

static inline void fa_ldmatrix_x4(uint32_t (&ret)[4], uint32_t address)
{
	fa_emulated_ldmatrix(ret, address, false);
}

static inline void fa_ldmatrix_x4_trans(uint32_t (&ret)[4], uint32_t address)
{
	fa_emulated_ldmatrix(ret, address, true);
}
