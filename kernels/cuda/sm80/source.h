/*
 * Where the rows, K and V of a forward kernel come from: a SOURCE, part of its config.
 * Here they are tensors; paged_forward.h has K and V in pages. A source gives
 *   ARGS, attention()  what the kernel is given, and of that what it is to compute
 *   WORK, work()       the block's part of it, as fa_work; may be asked again at any time
 *   STARTS, start()    whether keys before start() are hidden, and not even there
 *   hidden()           how many keys of K's loader's tile are so; 0 or less: none
 *   k(), v()           loaders of tiles, the first being the one of key @key; V's may follow
 *                      what K's does
 *   k_rows(), v_rows() rows one by one, those from key @key on: whether a row has() memory,
 *                      and where that is, at()
 */
#pragma once

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/tile.h"
#include "kernels/cuda/common/work.h"

#include <stdint.h>

struct fa_sm80_tensor_rows {
	const char *base; /* of row 0 */
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
