#pragma once
#include "tests/hopper-emulator/hopper.h"

struct fa_f16;
struct fa_bf16;

float fa_emulated_from_f16(uint16_t half);
uint16_t fa_emulated_to_f16(float value);
uint16_t fa_emulated_to_bf16(float value);

template <class T> float fa_widen(uint16_t bits);

template <> inline float fa_widen<fa_f16>(uint16_t bits)
{
	return fa_emulated_from_f16(bits);
}

template <> inline float fa_widen<fa_bf16>(uint16_t bits)
{
	return __uint_as_float((uint32_t)bits << 16);
}
