/*
 * Where a forward kernel's rows, K and V come from: a SOURCE, part of its config. Here they are
 * tensors; paged_forward.h has K and V in pages. A source gives
 *   ARGS, attention()  the kernel's arguments, and the attention to compute
 *   WORK, work()       the block's work, as fa_work; may be called again at any time
 *   STARTS, start()    whether keys before start() are hidden, and have no memory
 *   hidden()           hidden keys of K's loader's tile; 0 or less: none
 *   k(), v()           loaders of tiles, starting with that of key @key; V's may depend on K's
 *   k_rows(), v_rows() single rows, from key @key on: has() says whether a row has memory,
 *                      at() where it is
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/tile.h"
#include "kernels/cuda/common/work.h"

#include <stdint.h>

struct fa_sm80_tensor_rows {
	const char *base;
	int64_t stride;
	int32_t end;

	__device__ __forceinline__ bool has(int32_t row) const
	{
		return row < end;
	}

	__device__ __forceinline__ const char *at(int32_t row) const
	{
		return base + row * stride;
	}
};

struct fa_sm80_tensors {
	using ARGS = struct fa_cuda_attention;
	using WORK = struct fa_work;
	static constexpr bool STARTS = false;

	static __device__ __forceinline__ const struct fa_cuda_attention &
	attention(const ARGS &args)
	{
		return args;
	}

	static __device__ __forceinline__ WORK work(const ARGS &args, int32_t rows)
	{
		return fa_work_get(args, rows);
	}

	static __device__ __forceinline__ int32_t start(const WORK &)
	{
		return 0;
	}

	template <class K> static __device__ __forceinline__ int32_t hidden(const K &)
	{
		return 0;
	}

	template <class C>
	static __device__ __forceinline__ auto k(const ARGS &args, const WORK &work, int32_t key)
	{
		return fa_loader<C::KEYS, C::DIM, C::THREADS, C::NEAR>(
			fa_work_base(args.k, work.sequence, work.first_k, work.head / args.group),
			args.k.stride_token, key, args.head_dim);
	}

	template <class C, class K>
	static __device__ __forceinline__ auto v(const ARGS &args, const WORK &work, int32_t key,
	                                         const K &)
	{
		return fa_loader<C::KEYS, C::DIM_V, C::THREADS, C::NEAR>(
			fa_work_base(args.v, work.sequence, work.first_k, work.head / args.group) +
				work.slice * C::DIM_V * 2,
			args.v.stride_token, key, args.head_dim_v - work.slice * C::DIM_V);
	}

	template <class C>
	static __device__ __forceinline__ struct fa_sm80_tensor_rows
	k_rows(const ARGS &args, const WORK &work, int32_t key)
	{
		return { fa_work_base(args.k, work.sequence, work.first_k, work.head / args.group) +
			         key * args.k.stride_token,
			 args.k.stride_token, work.n_k - key };
	}

	template <class C>
	static __device__ __forceinline__ struct fa_sm80_tensor_rows
	v_rows(const ARGS &args, const WORK &work, int32_t key)
	{
		return { fa_work_base(args.v, work.sequence, work.first_k, work.head / args.group) +
			         work.slice * C::DIM_V * 2 + key * args.v.stride_token,
			 args.v.stride_token, work.n_k - key };
	}
};
