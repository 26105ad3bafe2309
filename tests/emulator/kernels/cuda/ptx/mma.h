#pragma once
#include "tests/emulator/emulator.h"

struct fa_f16;
struct fa_bf16;

template <class T> float fa_widen(uint16_t bits);

template <> inline float fa_widen<fa_f16>(uint16_t bits)
{
	return fa_emulated_from_f16(bits);
}

template <> inline float fa_widen<fa_bf16>(uint16_t bits)
{
	return __uint_as_float((uint32_t)bits << 16);
}

/* The fragments are those of the real header. */
template <class T>
static inline void fa_mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
	const uint32_t mine[FA_EMULATED_WORDS] = { a[0], a[1], a[2], a[3], b0, b1 };
	const uint32_t(*all)[FA_EMULATED_WORDS] = fa_emulated_warp_exchange_words(mine);
	float rows[2][16], columns[2][16];

	for (int k = 0; k < 16; k++)
		for (uint32_t i = 0; i < 2; i++) {
			const uint32_t row = all[4 * g + k % 8 / 2][k / 8 * 2 + i];
			const uint32_t column = all[4 * (2 * t + i) + k % 8 / 2][4 + k / 8];

			rows[i][k] = fa_widen<T>((uint16_t)(row >> k % 2 * 16));
			columns[i][k] = fa_widen<T>((uint16_t)(column >> k % 2 * 16));
		}
	for (int e = 0; e < 4; e++)
		for (int k = 0; k < 16; k++)
			d[e] += rows[e / 2][k] * columns[e % 2][k];
}
