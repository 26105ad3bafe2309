/*
 * Operations on tokens in pages: append with rotary embedding, read, copy, clear, move; and the
 * merge of two results. A thread moves 16 bytes.
 */
#pragma once

#include "kernels/cuda/common/paged-args.h"
#include "kernels/cuda/ptx/math.h"

#include <math.h>
#include <stdint.h>

#define FA_DTYPE_F32 1 /* as enum fa_attention_dtype */
#define FA_DTYPE_F16 2

/* ---- elements */

__device__ __forceinline__ float fa_element_get(int32_t dtype, const void *row, int32_t i)
{
	uint16_t half;

	if (dtype == FA_DTYPE_F32)
		return ((const float *)row)[i];
	half = ((const uint16_t *)row)[i];
	return dtype == FA_DTYPE_F16 ? fa_from_f16(half) : __uint_as_float((uint32_t)half << 16);
}

__device__ __forceinline__ void fa_element_set(int32_t dtype, void *row, int32_t i, float value)
{
	if (dtype == FA_DTYPE_F32)
		((float *)row)[i] = value;
	else
		((uint16_t *)row)[i] = (uint16_t)(dtype == FA_DTYPE_F16
		                                          ? fa_pack<fa_f16>(value, 0)
		                                          : fa_pack<fa_bf16>(value, 0));
}

/* 8 elements, or 4 in fp32. */
__device__ __forceinline__ void fa_chunk_get(int32_t dtype, uint4 chunk, float (&ret)[8])
{
	const uint32_t words[4] = { chunk.x, chunk.y, chunk.z, chunk.w };

#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (dtype == FA_DTYPE_F32) {
			ret[i] = __uint_as_float(words[i]);
		} else if (dtype == FA_DTYPE_F16) {
			ret[2 * i] = fa_from_f16((uint16_t)words[i]);
			ret[2 * i + 1] = fa_from_f16((uint16_t)(words[i] >> 16));
		} else {
			ret[2 * i] = __uint_as_float(words[i] << 16);
			ret[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
		}
	}
}

__device__ __forceinline__ uint4 fa_chunk_of(int32_t dtype, const float (&values)[8])
{
	uint32_t words[4];

#pragma unroll
	for (int i = 0; i < 4; i++)
		words[i] = dtype == FA_DTYPE_F32 ? __float_as_uint(values[i])
		           : dtype == FA_DTYPE_F16
		                   ? fa_pack<fa_f16>(values[2 * i], values[2 * i + 1])
		                   : fa_pack<fa_bf16>(values[2 * i], values[2 * i + 1]);
	return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ uint4 fa_load_16(const char *from, bool aligned, int32_t bytes)
{
	if (aligned)
		return *(const uint4 *)from;
	if (bytes == 4) {
		const uint32_t *words = (const uint32_t *)from;

		return make_uint4(words[0], words[1], words[2], words[3]);
	}
	const uint16_t *halves = (const uint16_t *)from;

	return make_uint4(
		halves[0] | (uint32_t)halves[1] << 16, halves[2] | (uint32_t)halves[3] << 16,
		halves[4] | (uint32_t)halves[5] << 16, halves[6] | (uint32_t)halves[7] << 16);
}

__device__ __forceinline__ void fa_store_16(char *to, uint4 value, bool aligned, int32_t bytes)
{
	const uint32_t words[4] = { value.x, value.y, value.z, value.w };

	if (aligned) {
		*(uint4 *)to = value;
		return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (bytes == 4) {
			((uint32_t *)to)[i] = words[i];
		} else {
			((uint16_t *)to)[2 * i] = (uint16_t)words[i];
			((uint16_t *)to)[2 * i + 1] = (uint16_t)(words[i] >> 16);
		}
	}
}

/* ---- where a token lies */

struct fa_token_place {
	int64_t k, v; /* bytes from slot 0's head 0; -1: none */
};

/* @table: pages.table or an inline table; by reference, which saves registers. */
__device__ __forceinline__ struct fa_token_place fa_token_find(const struct fa_cuda_pages &pages,
                                                               const uint32_t *const &table,
                                                               uint32_t table_start, uint32_t token)
{
	const uint32_t strip = token / FA_CUDA_PAGED_STRIP;
	const uint32_t page = (uint32_t)(strip * pages.page_magic >> 32);
	const int64_t slot = (int64_t)table[table_start + page] * 256;
	const int64_t in_page = token - page * pages.page_strips * FA_CUDA_PAGED_STRIP;
	const struct fa_token_place place = { slot + in_page * pages.k_row,
		                              slot + in_page * pages.v_row };

	return place;
}

/* ---- append and read */

struct fa_append_shared {
	struct fa_token_place places[FA_CUDA_APPEND_TOKENS];
	int32_t positions[FA_CUDA_APPEND_TOKENS];
	float2 turns[FA_CUDA_APPEND_TOKENS][FA_CUDA_ROTARY_DIM_MAX / 2]; /* cosine, sine */
};

__device__ __forceinline__ void
fa_append_find(const struct fa_cuda_paged_append &args, const struct fa_cuda_paged_item *items,
               const uint32_t *table, struct fa_append_shared &shared, int32_t first, int32_t count)
{
	for (int32_t b = threadIdx.x; b < args.batch; b += FA_CUDA_TOKENS_THREADS) {
		const struct fa_cuda_paged_item &item = items[b];
		const int32_t begin = max((int32_t)item.first_q, first);
		const int32_t end = min((int32_t)(item.first_q + item.n_q), first + count);

		for (int32_t token = begin; token < end; token++) {
			const int32_t i = token - (int32_t)item.first_q, at = token - first;

			shared.positions[at] = (int32_t)item.n_k - (int32_t)item.n_q + i;
			shared.places[at].k = shared.places[at].v = -1;
			if (item.append < item.n_k)
				shared.places[at] = fa_token_find(
					args.pages, table, item.table_start, item.append + i);
		}
	}
}

__device__ __forceinline__ void fa_append_turn(const struct fa_cuda_paged_append &args,
                                               struct fa_append_shared &shared, int32_t first,
                                               int32_t count)
{
	const struct fa_cuda_rotary &rotary = args.rotary;

	for (int32_t i = threadIdx.x; i < count * rotary.half; i += FA_CUDA_TOKENS_THREADS) {
		const int32_t at = i / rotary.half, angle = i % rotary.half;
		int64_t position = rotary.positions ? (int64_t)rotary.positions[first + at]
		                                    : (int64_t)shared.positions[at];
		float2 turn;

		if (rotary.cos) {
			int64_t row = position < rotary.table_positions
			                      ? position
			                      : (int64_t)rotary.table_positions - 1;

			row = row < 0 ? 0 : row;
			turn.x = rotary.cos[row * rotary.half + angle];
			turn.y = rotary.sin[row * rotary.half + angle];
		} else {
			/* The angle is computed in double, so that any position is as exact as the
			 * first. */
			const double turns = (double)position * rotary.turns[angle];

			sincospif(2 * (float)(turns - rint(turns)), &turn.y, &turn.x);
		}
		shared.turns[at][angle] = turn;
	}
}

__device__ __forceinline__ void fa_rotate(float x, float y, float2 turn, float &ret_x, float &ret_y)
{
	ret_x = x * turn.x - y * turn.y;
	ret_y = y * turn.x + x * turn.y;
}

/* Heads of a token, of K or Q, that are rotated on the way. Threads get units of work so that no
 * two read and write the same elements (the target may be the source): pairs of chunks that rotate
 * together, then copied chunks; if chunks do not divide the dims, one unit for all that rotates. */
struct fa_rotation {
	int32_t units, paired; /* units per row; how many of them rotate */
	int32_t distance;      /* bytes from x to y of a pair; 0: both are in one chunk */
	bool whole;            /* one unit rotates everything, element by element */
};

__device__ __forceinline__ struct fa_rotation
fa_rotation_of(const struct fa_cuda_paged_append &args, int32_t bytes)
{
	const int32_t chunk = 16 / bytes, dim = 2 * args.rotary.half;
	struct fa_rotation rotation = { 0, 0, 0, false };

	if (args.rotary.interleaved && dim % chunk == 0) {
		rotation.paired = dim / chunk;
		rotation.units = args.head_dim / chunk;
	} else if (!args.rotary.interleaved && args.rotary.half % chunk == 0) {
		rotation.paired = args.rotary.half / chunk;
		rotation.units = args.head_dim / chunk - rotation.paired;
		rotation.distance = args.rotary.half * bytes;
	} else {
		rotation.whole = true;
		rotation.paired = 1;
		rotation.units = 1 + (args.head_dim - dim);
	}
	return rotation;
}

__device__ __forceinline__ void fa_rotate_unit(const struct fa_cuda_paged_append &args,
                                               const struct fa_rotation &rotation, int32_t unit,
                                               char *to, const char *from, const float2 *turns,
                                               bool to_aligned)
{
	const int32_t dtype = args.dtype, bytes = dtype == FA_DTYPE_F32 ? 4 : 2;
	const int32_t elements = 16 / bytes, half = args.rotary.half, first = args.rotary.first;

	if (rotation.whole) {
		if (unit > 0) {
			const int32_t at = unit - 1 < first ? unit - 1 : 2 * half + unit - 1;

			fa_element_set(dtype, to, at, fa_element_get(dtype, from, at));
			return;
		}
		for (int32_t i = 0; i < half; i++) {
			const int32_t at = first + (args.rotary.interleaved ? 2 * i : i);
			const int32_t at_y = at + (args.rotary.interleaved ? 1 : half);
			float x, y;

			fa_rotate(fa_element_get(dtype, from, at),
			          fa_element_get(dtype, from, at_y), turns[i], x, y);
			fa_element_set(dtype, to, at, x);
			fa_element_set(dtype, to, at_y, y);
		}
		return;
	}
	if (unit >= rotation.paired) {
		const int32_t before = (unit - rotation.paired) *
		                       16; /* if before the rotated part */
		const int32_t offset = before < first * bytes ? before
		                                              : unit * 16 + rotation.distance;

		fa_store_16(to + offset, fa_load_16(from + offset, args.aligned, bytes), to_aligned,
		            bytes);
		return;
	}

	const int32_t offset = first * bytes + unit * 16;
	float x[8], y[8];

	fa_chunk_get(dtype, fa_load_16(from + offset, args.aligned, bytes), x);
	if (rotation.distance == 0) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (2 * i < elements)
				fa_rotate(x[2 * i], x[2 * i + 1], turns[unit * elements / 2 + i],
				          x[2 * i], x[2 * i + 1]);
		fa_store_16(to + offset, fa_chunk_of(dtype, x), to_aligned, bytes);
		return;
	}
	fa_chunk_get(dtype, fa_load_16(from + offset + rotation.distance, args.aligned, bytes), y);
#pragma unroll
	for (int i = 0; i < 8; i++)
		if (i < elements)
			fa_rotate(x[i], y[i], turns[unit * elements + i], x[i], y[i]);
	fa_store_16(to + offset, fa_chunk_of(dtype, x), to_aligned, bytes);
	fa_store_16(to + offset + rotation.distance, fa_chunk_of(dtype, y), to_aligned, bytes);
}

template <bool READ>
__device__ __forceinline__ void fa_paged_append(const struct fa_cuda_paged_append &args,
                                                const struct fa_cuda_paged_item *items,
                                                const uint32_t *table)
{
	static __shared__ struct fa_append_shared shared;
	const int32_t first = blockIdx.x * FA_CUDA_APPEND_TOKENS;
	const int32_t count = min(FA_CUDA_APPEND_TOKENS, args.tokens - first);
	const int32_t bytes = args.dtype == FA_DTYPE_F32 ? 4 : 2;
	const uint32_t head_tokens = args.pages.page_strips * FA_CUDA_PAGED_STRIP;

	fa_append_find(args, items, table, shared, first, count);
	__syncthreads(); /* places and positions are written */
	if (!READ && args.rotary.half > 0) {
		fa_append_turn(args, shared, first, count);
		__syncthreads(); /* turns are written */
	}

	for (int which = 0; which < 2; which++) {
		const struct fa_cuda_tensor &tensor = which ? args.v : args.k;
		const int32_t dim = which ? args.head_dim_v : args.head_dim;
		const uint32_t row_bytes = which ? args.pages.v_row : args.pages.k_row;
		const int32_t chunks = dim * bytes / 16, of_token = chunks * args.kv_heads;

		if (!tensor.data || (!which && !READ && args.rotary.half > 0))
			continue;
#pragma unroll 2
		for (int32_t i = threadIdx.x; i < count * of_token; i += FA_CUDA_TOKENS_THREADS) {
			const int32_t chunk = i % chunks, rest = i / chunks;
			const int32_t at = rest % count, head = rest / count;
			const struct fa_token_place &place = shared.places[at];
			char *const dense = (char *)tensor.data +
			                    (int64_t)(first + at) * tensor.stride_token +
			                    head * tensor.stride_head + chunk * 16;
			char *const page = (which ? args.pages.v + place.v
			                          : args.pages.k + place.k) +
			                   (int64_t)head * head_tokens * row_bytes + chunk * 16;

			if (place.k < 0)
				continue;
			if (READ)
				fa_store_16(dense, *(const uint4 *)page, args.aligned, bytes);
			else
				*(uint4 *)page = fa_load_16(dense, args.aligned, bytes);
		}
	}
	if (READ)
		return;

	const struct fa_rotation rotation = fa_rotation_of(args, bytes);

	for (int which = 0; which < 2; which++) {
		const struct fa_cuda_tensor &tensor = which ? args.q : args.k;
		const int32_t heads = which ? args.heads : args.kv_heads;
		const int32_t of_token = heads * rotation.units;

		if (!tensor.data || (!which && args.rotary.half == 0))
			continue;
#pragma unroll 2
		for (int32_t i = threadIdx.x; i < count * of_token; i += FA_CUDA_TOKENS_THREADS) {
			const int32_t unit = i % rotation.units, rest = i / rotation.units;
			const int32_t at = rest % count, head = rest / count;
			const char *const from = (const char *)tensor.data +
			                         (int64_t)(first + at) * tensor.stride_token +
			                         head * tensor.stride_head;
			char *to = (char *)args.q_out.data +
			           (int64_t)(first + at) * args.q_out.stride_token +
			           head * args.q_out.stride_head;

			if (!which) {
				to = args.pages.k + shared.places[at].k +
				     (int64_t)head * head_tokens * args.pages.k_row;
				if (shared.places[at].k < 0)
					continue;
			}
			fa_rotate_unit(args, rotation, unit, to, from, shared.turns[at],
			               !which || args.aligned);
		}
	}
}

/* ---- merge */

__device__ __forceinline__ void fa_paged_merge(const struct fa_cuda_paged_merge &args)
{
	const int64_t row = ((int64_t)blockIdx.x * FA_CUDA_TOKENS_THREADS + threadIdx.x) / 8;
	const int32_t lane = threadIdx.x % 8, bytes = args.dtype == FA_DTYPE_F32 ? 4 : 2;
	const int64_t token = row / args.heads, head = row % args.heads;
	float lse_a, lse_b, top, sum, lse = -INFINITY, weight_a = 0, weight_b = 0;

	if (row >= args.rows)
		return;
	lse_a = args.a.lse[token * args.a.lse_stride_token + head * args.a.lse_stride_head];
	lse_b = args.b.lse[token * args.b.lse_stride_token + head * args.b.lse_stride_head];
	lse_a = lse_a == INFINITY ? -INFINITY : lse_a;
	lse_b = lse_b == INFINITY ? -INFINITY : lse_b;
	top = fmaxf(lse_a, lse_b);
	if (top != -INFINITY) {
		weight_a = expf(lse_a - top);
		weight_b = expf(lse_b - top);
		sum = weight_a + weight_b;
		lse = top + logf(sum);
		weight_a /= sum;
		weight_b /= sum;
	}
	/* The result may be an operand, so all lanes of the row read before one writes. */
	__syncwarp(0xffu << (threadIdx.x % 32 / 8 * 8));
	if (lane == 0 && args.result.lse)
		args.result.lse[token * args.result.lse_stride_token +
		                head * args.result.lse_stride_head] = lse;

	const char *const a = (const char *)args.a.out.data + token * args.a.out.stride_token +
	                      head * args.a.out.stride_head;
	const char *const b = (const char *)args.b.out.data + token * args.b.out.stride_token +
	                      head * args.b.out.stride_head;
	char *const to = (char *)args.result.out.data + token * args.result.out.stride_token +
	                 head * args.result.out.stride_head;

	for (int32_t offset = lane * 16; offset < args.head_dim_v * bytes; offset += 8 * 16) {
		float x[8] = { 0 }, y[8] = { 0 };

		if (weight_a != 0)
			fa_chunk_get(args.dtype, fa_load_16(a + offset, args.aligned, bytes), x);
		if (weight_b != 0)
			fa_chunk_get(args.dtype, fa_load_16(b + offset, args.aligned, bytes), y);
#pragma unroll
		for (int i = 0; i < 8; i++)
			x[i] = x[i] * weight_a + y[i] * weight_b;
		fa_store_16(to + offset, fa_chunk_of(args.dtype, x), args.aligned, bytes);
	}
}

/* ---- pages */

__device__ __forceinline__ void fa_paged_copy_part(char *to, const char *from, int64_t bytes)
{
#pragma unroll 4
	for (int64_t at = threadIdx.x * 16; at < bytes; at += FA_CUDA_TOKENS_THREADS * 16)
		*(uint4 *)(to + at) = from ? *(const uint4 *)(from + at) : make_uint4(0, 0, 0, 0);
}

__device__ __forceinline__ void fa_paged_copy(const struct fa_cuda_paged_copy &args)
{
	char *const layer = args.pool + blockIdx.y * args.layer_stride;
	char *const to = layer + (int64_t)args.to[blockIdx.x] * 256;
	const char *const from = args.from ? layer + (int64_t)args.from[blockIdx.x] * 256 : NULL;

	fa_paged_copy_part(to, from, args.k_bytes);
	fa_paged_copy_part(to + args.v_offset, from ? from + args.v_offset : NULL, args.v_bytes);
}

__device__ __forceinline__ void fa_paged_move_scales(const struct fa_cuda_paged_moves &args,
                                                     const struct fa_cuda_paged_moved &moved)
{
	const struct fa_cuda_pages &pages = args.pages;
	const uint32_t page_tokens = args.page_tokens;

	for (uint32_t i = threadIdx.x; i < 2 * (uint32_t)args.kv_heads;
	     i += FA_CUDA_TOKENS_THREADS) {
		char *const base = (i % 2 ? pages.v + args.v_scales_at
		                          : pages.k + args.k_scales_at) +
		                   blockIdx.y * args.layer_stride;
		const uint32_t head = i / 2 * page_tokens;

		for (uint32_t m = moved.begin; m < moved.end; m++) {
			const uint32_t tokens[2] = { args.from[m], moved.to + (m - moved.begin) };
			float *places[2];

			for (int side = 0; side < 2; side++) {
				const uint32_t page = tokens[side] / page_tokens;
				const int64_t slot = pages.table[moved.table_start + page];

				places[side] = (float *)(base + slot * 256) + head +
				               tokens[side] % page_tokens;
			}
			*places[1] = *places[0];
		}
	}
}

__device__ __forceinline__ void fa_paged_move(const struct fa_cuda_paged_moves &args)
{
	const struct fa_cuda_paged_moved moved = args.sequences[blockIdx.x];
	const uint32_t k_chunks = args.k_bytes / 16 * args.kv_heads;
	const uint32_t v_chunks = args.v_bytes / 16 * args.kv_heads;

	for (uint32_t i = threadIdx.x; i < k_chunks + v_chunks; i += FA_CUDA_TOKENS_THREADS) {
		const bool is_k = i < k_chunks;
		const uint32_t chunks = (is_k ? args.k_bytes : args.v_bytes) / 16;
		const uint32_t at = is_k ? i : i - k_chunks;
		const uint32_t row_bytes = is_k ? args.pages.k_row : args.pages.v_row;
		char *const base = (is_k ? args.pages.k : args.pages.v) +
		                   blockIdx.y * args.layer_stride +
		                   (int64_t)(at / chunks) * args.page_tokens * row_bytes +
		                   at % chunks * 16;

		for (uint32_t m = moved.begin; m < moved.end; m++) {
			const struct fa_token_place from = fa_token_find(
				args.pages, args.pages.table, moved.table_start, args.from[m]);
			const struct fa_token_place to = fa_token_find(
				args.pages, args.pages.table, moved.table_start,
				moved.to + (m - moved.begin));

			*(uint4 *)(base + (is_k ? to.k : to.v)) = *(
				const uint4 *)(base + (is_k ? from.k : from.v));
		}
	}
	if (args.k_scales_at)
		fa_paged_move_scales(args, moved);
}
