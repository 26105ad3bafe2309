/* 16-bit elements, rounded as the GPU does. Compiled as C++. */
#include "tests/emulator/emulator.h"

float fa_emulated_from_f16(uint16_t half)
{
	const uint32_t magnitude = half & 0x7fff, sign = (uint32_t)(half & 0x8000) << 16;

	if (magnitude >= 0x7c00)
		return __uint_as_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
	/* fp16 and fp32 differ only in the exponent's bias. */
	return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f));
}

uint16_t fa_emulated_to_f16(float value)
{
	const uint16_t sign = signbit(value) ? 0x8000 : 0;
	const float magnitude = fabsf(value);
	uint32_t bits;

	if (isnan(value))
		return 0x7fff;
	if (magnitude >= 65520)
		return sign | 0x7c00;
	/* Below 2^-14 numbers are multiples of 2^-24. */
	if (magnitude < 0x1p-14f)
		return (uint16_t)(sign | (uint16_t)nearbyintf(magnitude * 0x1p24f));
	bits = __float_as_uint(magnitude * 0x1p-112f);
	return (uint16_t)(sign | (bits + 0xfff + (bits >> 13 & 1)) >> 13);
}

uint16_t fa_emulated_to_bf16(float value)
{
	const uint32_t bits = __float_as_uint(value);

	if (isnan(value))
		return 0x7fff;
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
