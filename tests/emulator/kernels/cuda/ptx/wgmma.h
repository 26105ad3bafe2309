#pragma once
#include "kernels/cuda/ptx/mma.h"

static inline uint64_t fa_wgmma_operand(uint32_t shared, uint32_t column_bytes)
{
	constexpr uint64_t constant = (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32;

	return constant | (uint64_t)(column_bytes >> 4) << 16 | shared >> 4;
}

static inline uint64_t fa_wgmma_advance(uint64_t operand, uint32_t bytes)
{
	return operand + (bytes >> 4);
}

static inline void fa_wgmma_fence(void)
{
}

static inline void fa_wgmma_commit(void)
{
	fa_emulated_product_commit();
}

template <int pending> static inline void fa_wgmma_wait(void)
{
	fa_emulated_product_wait(pending);
}

template <int COUNT> static inline void fa_wgmma_hold(float (&)[COUNT])
{
}

static inline void fa_wgmma_hold(uint32_t &)
{
}

template <class T> struct fa_emulated_is_bf16 {
	static constexpr bool value = false;
};

template <> struct fa_emulated_is_bf16<fa_bf16> {
	static constexpr bool value = true;
};

template <class T, int N> struct fa_wgmma {
	static inline void dots(float (&d)[N / 2], uint64_t a, uint64_t b, bool add)
	{
		fa_emulated_product(d, N, fa_emulated_is_bf16<T>::value, a, NULL, b, false, add);
	}

	static inline void add(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b)
	{
		fa_emulated_product(d, N, fa_emulated_is_bf16<T>::value, 0, a, b, true, true);
	}

	static inline void add_shared(float (&d)[N / 2], uint64_t a, uint64_t b)
	{
		fa_emulated_product(d, N, fa_emulated_is_bf16<T>::value, a, NULL, b, true, true);
	}
};
