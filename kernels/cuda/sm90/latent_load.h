/*
 * Producer warp of decode of MLA: loads the block's tiles by TMA. A box has columns of 64 elements
 * and args.box_keys tokens of one page; each lane issues at most one box of a quarter.
 * Slots of pages are looked up a tile ahead.
 */
#pragma once

#include "kernels/cuda/common/maps.h"
#include "kernels/cuda/common/paged_segment.h"
#include "kernels/cuda/ptx/bulk.h"
#include "kernels/cuda/ptx/mbarrier.h"
#include "kernels/cuda/ptx/tma.h"
#include "kernels/cuda/sm90/latent_config.h"

#include <stdint.h>

/* A segment of the block's team. Its row block is the thread block's own. */
template <class C> struct fa_sm90_latent_segment : fa_paged_segment_of<C> {
	uint32_t team, member, team_size;

	__device__ __forceinline__ void start_team(const struct fa_cuda_paged_attention &args)
	{
		team_size = args.loaders;
		team = blockIdx.x / team_size;
		member = blockIdx.x - team * team_size;
		this->start(args, team);
		this->row_block = this->row_block * team_size + member;
	}

	__device__ __forceinline__ bool next_of_team(const struct fa_cuda_paged_attention &args)
	{
		if (!this->next(args))
			return false;
		this->row_block = this->row_block * team_size + member;
		return true;
	}

	/* Rows of the thread block; at most 0 if it has none. */
	__device__ __forceinline__ int32_t
	own_rows(const struct fa_cuda_paged_attention &args) const
	{
		return min((int32_t)(this->item.n_q * (uint32_t)args.attention.group) -
		                   (int32_t)this->row_block * C::ROWS,
		           C::ROWS);
	}
};

template <class C>
__device__ __forceinline__ int32_t fa_sm90_latent_slot(const struct fa_cuda_paged_attention &args,
                                                       const fa_sm90_latent_segment<C> &segment,
                                                       int32_t key, int32_t &ret_token)
{
	const uint32_t strip = (uint32_t)key / FA_CUDA_PAGED_STRIP;
	const uint32_t page = (uint32_t)(strip * args.pages.page_magic >> 32);

	ret_token = (int32_t)(strip - page * args.pages.page_strips) * FA_CUDA_PAGED_STRIP;
	/* Pages without tokens may not exist. TMA fills zeros. */
	if (key >= segment.end)
		return INT32_MAX;
	return (int32_t)args.pages.table[segment.item.table_start + page];
}

template <class C>
__device__ __forceinline__ void fa_sm90_latent_load(const struct fa_cuda_paged_attention &args,
                                                    const struct fa_cuda_maps &maps,
                                                    uint32_t shared)
{
	const uint32_t lane = threadIdx.x % 32, boxes = C::KEYS / (uint32_t)args.box_keys;
	const uint32_t column = lane / boxes, row = lane % boxes * (uint32_t)args.box_keys;
	const uint64_t policy = args.loaders > 1 ? fa_bulk_policy_normal() : fa_tma_policy_once();
	const void *const map = &maps.maps[FA_CUDA_MAP_K];
	fa_sm90_latent_segment<C> segment;
	uint32_t parity[2] = { 1, 1 };

	segment.start_team(args);
	fa_await_launch_ahead();
	do {
		const int32_t head = (int32_t)segment.kv_head(args), end = segment.end;
		int32_t in_page, next_in_page, slot, next_slot;
		uint32_t stage = 0;

		if (segment.own_rows(args) <= 0)
			continue;
		next_slot = fa_sm90_latent_slot<C>(args, segment, segment.begin + (int32_t)row,
		                                   next_in_page);
#pragma unroll 1
		for (int32_t token = segment.begin; token < end; token += C::KEYS) {
			const uint32_t to = shared + C::K_AT + stage * C::TILE_BYTES +
			                    column * C::COLUMN + row * 128;

			slot = next_slot;
			in_page = next_in_page;
			next_slot = fa_sm90_latent_slot<C>(
				args, segment, token + C::KEYS + (int32_t)row, next_in_page);
#pragma unroll
			for (uint32_t i = 0; i < C::QUARTERS; i++) {
				const uint32_t quarter = C::quarter(i);
				const uint32_t full = shared + C::full(0, quarter) +
				                      8 * C::QUARTERS * stage;
				const uint32_t first = quarter * C::QUARTER_COLUMNS;
				const uint32_t columns = quarter == C::QUARTERS - 1
				                                 ? C::COLUMNS - first
				                                 : C::QUARTER_COLUMNS;

				fa_mbarrier_wait(shared + C::empty(0, quarter) +
				                         8 * C::QUARTERS * stage,
				                 stage ? parity[1] : parity[0]);
				if (lane == 0)
					fa_mbarrier_arrive_expect(full, columns * C::COLUMN);
				__syncwarp();
				if (column < columns)
					fa_tma_load(to + first * C::COLUMN, map, full,
					            (int32_t)(column + first) * 64, in_page, head,
					            slot, policy);
				__syncwarp();
			}
			if (stage)
				parity[1] ^= 1;
			else
				parity[0] ^= 1;
			stage ^= 1;
		}
	} while (segment.next_of_team(args));
}
