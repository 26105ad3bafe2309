/*
 * A panel over a round of keys: products, masks, softmax.
 */
#pragma once

#include "kernels/cpu/tile.h"

/* ---- the register block */

VEC_INLINE vec multiply_add(const bool paired, vec a, vec b, vec c)
{
#if VEC_HAS_DOT
	if (paired)
		return vec_dot(a, b, c);
#endif
	return vec_fma(a, b, c);
}

/*
 * sums[j][i] += sum over t of rows[t][i] * scalars[t * step_stride + j * stride]: @vectors
 * vectors of query rows, VEC_PANEL_SCALARS scalars.
 */
VEC_INLINE void block(const bool paired, const int vectors, int32_t steps, const float *rows,
                      const float *scalars, const int32_t stride, int32_t step_stride,
                      vec sums[VEC_PANEL_SCALARS][VEC_PANEL_VECTORS])
{
	for (int32_t t = 0; t < steps; t++) {
		vec row[VEC_PANEL_VECTORS];

		VEC_UNROLL
		for (int i = 0; i < vectors; i++)
			row[i] = vec_load(rows + i * VEC_LANES);
		VEC_UNROLL
		for (int j = 0; j < VEC_PANEL_SCALARS; j++) {
			vec scalar = vec_set(scalars[j * stride]);

			VEC_UNROLL
			for (int i = 0; i < vectors; i++)
				sums[j][i] = multiply_add(paired, row[i], scalar, sums[j][i]);
		}
		rows += PANEL;
		scalars += step_stride;
	}
}

/* Computes scaled scores of keys [first, end) of the round; end - first is a multiple of
 * KEY_STEP. */
VEC_INLINE void panel_scores(const struct tile *tile, int32_t panel, const bool paired,
                             const int vectors, int32_t first, int32_t end)
{
	struct scratch *scratch = tile->scratch;
	const float *const q = tile_q(tile, panel);
	vec scale = vec_set(tile->map.scale);

	for (int32_t j = first; j < end; j += VEC_PANEL_SCALARS) {
		vec sums[VEC_PANEL_SCALARS][VEC_PANEL_VECTORS];

		VEC_UNROLL
		for (int a = 0; a < VEC_PANEL_SCALARS; a++) {
			VEC_UNROLL
			for (int i = 0; i < vectors; i++)
				sums[a][i] = vec_set(0.0f);
		}
		if (tile->k_stride == K_STRIDE_NARROW)
			block(paired, vectors, tile->q_words, q, scratch->k + j * K_STRIDE_NARROW,
			      K_STRIDE_NARROW, 1, sums);
		else
			block(paired, vectors, tile->q_words, q, scratch->k + j * K_STRIDE_WIDE,
			      K_STRIDE_WIDE, 1, sums);
		VEC_UNROLL
		for (int a = 0; a < VEC_PANEL_SCALARS; a++) {
			VEC_UNROLL
			for (int i = 0; i < vectors; i++)
				vec_store(scratch->s[j + a] + i * VEC_LANES, sums[a][i] * scale);
		}
	}
}

/* O^T = rescale * O^T + V^T P^T over keys [first, end) of the round. */
VEC_INLINE void panel_values(const struct tile *tile, int32_t panel, const bool paired,
                             const int vectors, int32_t first, int32_t end)
{
	struct scratch *scratch = tile->scratch;
	int32_t keys = paired ? 2 : 1;

	for (int32_t c = 0; c < tile->job->head_dim_v; c += VEC_PANEL_SCALARS) {
		vec sums[VEC_PANEL_SCALARS][VEC_PANEL_VECTORS];

		VEC_UNROLL
		for (int a = 0; a < VEC_PANEL_SCALARS; a++) {
			VEC_UNROLL
			for (int i = 0; i < vectors; i++)
				sums[a][i] = vec_set(0.0f);
		}
		block(paired, vectors, (end - first) / keys, scratch->s[first / keys],
		      scratch->v + first / keys * tile->v_stride + c, 1, tile->v_stride, sums);
		VEC_UNROLL
		for (int a = 0; a < VEC_PANEL_SCALARS; a++) {
			VEC_UNROLL
			for (int i = 0; i < vectors; i++) {
				float *o = scratch->o[panel][c + a] + i * VEC_LANES;

				vec_store(o, vec_fma(vec_load(o),
				                     vec_load(scratch->rescale + i * VEC_LANES),
				                     sums[a][i]));
			}
		}
	}
}

/* ---- softmax */

static void panel_finish_scores(const struct tile *tile, int32_t panel, int vectors, int32_t first,
                                int32_t end, bool hidden)
{
	struct scratch *scratch = tile->scratch;

	for (int32_t j = first; j < end; j++) {
		vec key = vec_set((float)j), stands = key;

		if (tile->tree && tile->round + j < tile->job->n_k)
			stands = vec_set((float)(score_key_position(tile->job, tile->round + j) -
			                         tile->round));
		for (int i = 0; i < vectors; i++) {
			int at = i * VEC_LANES;
			vec score = vec_load(scratch->s[j] + at);

			if (tile->map.capped)
				score = vec_tanh(score) * vec_set(tile->map.cap);
			if (tile->job->alibi_slopes)
				score = score_bias(score, vec_load(scratch->slope[panel] + at),
				                   stands, vec_load(scratch->position + at));
			if (hidden)
				score = score_mask(score, key, vec_load(scratch->low + at),
				                   vec_load(scratch->high + at));
			vec_store(scratch->s[j] + at, score);
		}
	}
}

/* Replaces scores, or weights, of hidden keys. */
static void panel_mask(const struct tile *tile, int32_t panel, int vectors, int32_t first,
                       int32_t end, float replacement)
{
	const vec_u32 hidden = (vec_u32)vec_set(replacement);

	for (int32_t j = first; j < end; j++) {
		const uint32_t *words = tile->scratch->seen[j / 32] + panel * PANEL;

		for (int i = 0; i < vectors; i++) {
			float *s = tile->scratch->s[j] + i * VEC_LANES;
			vec_u32 seen = vec_load_u32(words + i * VEC_LANES, VEC_LANES);

			seen = 0u - (seen >> (j % 32) & 1u); /* all bits, or none */
			vec_store(s, (vec)(((vec_u32)vec_load(s) & seen) | (hidden & ~seen)));
		}
	}
}

/* Scores become weights, relative to each row's running maximum. */
VEC_INLINE void panel_softmax(const struct tile *tile, int32_t panel, const int vectors,
                              int32_t first, int32_t end)
{
	struct scratch *scratch = tile->scratch;
	vec before[VEC_PANEL_VECTORS], highest[VEC_PANEL_VECTORS], base[VEC_PANEL_VECTORS];
	vec sum[VEC_PANEL_VECTORS];

	VEC_UNROLL
	for (int i = 0; i < vectors; i++)
		highest[i] = before[i] = vec_load(scratch->highest[panel] + i * VEC_LANES);
	for (int32_t j = first; j < end; j++) {
		VEC_UNROLL
		for (int i = 0; i < vectors; i++)
			highest[i] = vec_max(vec_load(scratch->s[j] + i * VEC_LANES), highest[i]);
	}

	VEC_UNROLL
	for (int i = 0; i < vectors; i++) {
		base[i] = score_base(highest[i]);
		sum[i] = vec_set(0.0f);
	}
	for (int32_t j = first; j < end; j++) {
		VEC_UNROLL
		for (int i = 0; i < vectors; i++) {
			vec weight = vec_exp2_shifted(
				vec_load(scratch->s[j] + i * VEC_LANES) - base[i], tile->map.shift);

			sum[i] = sum[i] + weight;
			vec_store(scratch->s[j] + i * VEC_LANES, weight);
		}
	}

	VEC_UNROLL
	for (int i = 0; i < vectors; i++) {
		vec rescale = vec_exp2(before[i] - base[i]);
		float *total = scratch->sum[panel] + i * VEC_LANES;

		vec_store(scratch->rescale + i * VEC_LANES, rescale);
		vec_store(scratch->highest[panel] + i * VEC_LANES, highest[i]);
		vec_store(total, vec_fma(vec_load(total), rescale, sum[i]));
	}
}

#if VEC_HAS_DOT
static void panel_pair_weights(const struct tile *tile, int vectors, int32_t first, int32_t end)
{
	struct scratch *scratch = tile->scratch;

	for (int32_t j = first; j < end; j += 2) {
		for (int i = 0; i < vectors; i++) {
			int at = i * VEC_LANES;

			vec_store(scratch->s[j / 2] + at,
			          vec_pair_bf16(vec_load(scratch->s[j] + at),
			                        vec_load(scratch->s[j + 1] + at)));
		}
	}
}
#endif

/* As panel_values(), but skips hidden keys rather than multiplying by 0. */
static void panel_values_seen(const struct tile *tile, int32_t panel, int vectors, int32_t first,
                              int32_t end, bool masked)
{
	struct scratch *scratch = tile->scratch;

	for (int32_t c = 0; c < tile->job->head_dim_v; c++) {
		for (int i = 0; i < vectors; i++) {
			float *o = scratch->o[panel][c] + i * VEC_LANES;
			vec low = vec_load(scratch->low + i * VEC_LANES);
			vec high = vec_load(scratch->high + i * VEC_LANES);
			vec sum = vec_set(0.0f);

			for (int32_t j = first; j < end; j++) {
				vec key = vec_set((float)j), added;
				float value;

				if (tile->paired) {
					uint32_t pair;

					memcpy(&pair, scratch->v + j / 2 * tile->v_stride + c, 4);
					pair = j % 2 == 0 ? pair << 16 : pair & 0xffff0000u;
					memcpy(&value, &pair, 4);
				} else {
					value = scratch->v[j * tile->v_stride + c];
				}
				added = vec_fma(vec_load(scratch->s[j] + i * VEC_LANES),
				                vec_set(value), sum);
				added = vec_select(vec_less(key, low), sum, added);
				if (masked)
					added = vec_select(
						vec_less(vec_load(scratch->s[j] + i * VEC_LANES),
					                 vec_set(0.0f)),
						sum, added);
				sum = vec_select(vec_less(key, high), added, sum);
			}
			vec_store(o, vec_fma(vec_load(o),
			                     vec_load(scratch->rescale + i * VEC_LANES), sum));
		}
	}
}

/* ---- sums over many rounds */

/* Moves the sums of the last rounds into those of all. */
static void panel_carry(const struct tile *tile, int32_t panel)
{
	struct scratch *scratch = tile->scratch;
	const size_t o_bytes = (size_t)tile->job->head_dim_v * sizeof(scratch->o[panel][0]);

	if (!tile->carried) {
		memcpy(scratch->far[panel], scratch->o[panel], o_bytes);
		memset(scratch->lost[panel], 0, o_bytes);
		memcpy(scratch->far_sum[panel], scratch->sum[panel], sizeof(scratch->sum[panel]));
		memset(scratch->lost_sum[panel], 0, sizeof(scratch->lost_sum[panel]));
	}
	for (int at = 0; tile->carried && at < PANEL; at += VEC_LANES) {
		vec base = score_base(vec_load(scratch->highest[panel] + at));
		vec factor = vec_exp2(vec_load(scratch->far_highest[panel] + at) - base);

		for (int32_t c = 0; c < tile->job->head_dim_v; c++)
			score_carry(scratch->far[panel][c] + at, scratch->lost[panel][c] + at,
			            factor, vec_load(scratch->o[panel][c] + at));
		score_carry(scratch->far_sum[panel] + at, scratch->lost_sum[panel] + at, factor,
		            vec_load(scratch->sum[panel] + at));
	}
	memcpy(scratch->far_highest[panel], scratch->highest[panel],
	       sizeof(scratch->highest[panel]));
	memset(scratch->o[panel], 0, o_bytes);
	memset(scratch->sum[panel], 0, sizeof(scratch->sum[panel]));
}
