/*
 * Attention as attend.comp computes it, by products of matrices (VK_KHR_cooperative_matrix), for fp16
 * and bf16, and head dims that are multiples of the matrices'. The build compiles this file once for each
 * type. A workgroup computes ROWS packed rows, of which each subgroup has ROW_TILES matrices of TILE_M.
 * K and V of a block of keys go to shared memory; scores go there on their way to weights, as a subgroup
 * cannot tell which elements of a matrix it holds.
 *
 * Barriers, twice per block of keys, all arrive at both: before its K and V are written, and before they
 * are read. Those of a subgroup are between what its invocations hand to one another.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_cooperative_matrix : require
#ifdef OF_BF16
#extension GL_EXT_bfloat16 : require
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif
#include "memory.glsl"

#define STOP_BLOCKS 8 /* how many blocks go by between two looks at the word that stops */
#define LOG2_E 1.44269504
#define AT_ONCE 4 /* loads of K, and of V, that an invocation has in flight */

#ifdef OF_BF16
#define DTYPE BF16
#else
#define DTYPE F16
#endif
#define STORE PLAIN

layout(constant_id = 0) const uint SOURCE = FA_VULKAN_DENSE;
layout(constant_id = 1) const uint DIM = 128; /* of K and of V */
layout(constant_id = 2) const bool ALIGNED = false; /* rows begin at multiples of 16 bytes */
layout(constant_id = 3) const bool SIMPLE = false;  /* neither soft cap, ALiBi nor trees */
layout(constant_id = 4) const bool EXACT = false;   /* the device's exp2 is not to be relied on */
layout(constant_id = 5) const uint TILE_M = 16;
layout(constant_id = 6) const uint TILE_N = 16;
layout(constant_id = 7) const uint TILE_K = 16;
layout(constant_id = 8) const uint KEYS = 32; /* of a block */
layout(constant_id = 9) const uint SUBGROUPS = 4;
layout(constant_id = 10) const uint LANES = 128;
layout(constant_id = 11) const uint ROW_TILES = 1;

layout(local_size_x_id = 10) in;

#define SUBGROUP (LANES / SUBGROUPS)
#define ROWS (SUBGROUPS * ROW_TILES * TILE_M)
/* A row's scores are divided over so many invocations, which have so many each. */
#define PARTS (SUBGROUP / TILE_M)
#define PART (KEYS / PARTS)

#define EIGHTS (DIM / 8)
#define K_TILES (DIM / TILE_K) /* of a row of Q */
#define N_TILES (DIM / TILE_N) /* of a row of the result */
#define S_TILES (KEYS / TILE_N)
/* Rows in shared memory, in units of its arrays; 16 bytes between rows keep them out of each other's banks. */
#define KV_STRIDE (DIM / 8 + 1)
#define S_STRIDE (KEYS / 4 + 1)
#define P_STRIDE (KEYS / 4 + 2)

#include "rows.glsl"

shared uvec4 s_kv[2 * KEYS * KV_STRIDE];          /* a block's K, then its V; at first Q */
shared vec4 s_s[SUBGROUPS * TILE_M * S_STRIDE];   /* scores of one matrix of rows; at last results */
shared uvec2 s_p[ROWS * P_STRIDE];                /* weights */
shared float s_factor[ROWS];
shared Row s_k_row[KEYS], s_v_row[KEYS];
shared uint s_group_low[SUBGROUPS], s_group_high[SUBGROUPS];
shared uint s_odd; /* the last block with an element of V that is not finite, from 1 */
shared bool s_stop;

#define A_MATRIX coopmat<ELEMENT, gl_ScopeSubgroup, TILE_M, TILE_K, gl_MatrixUseA>
#define B_MATRIX coopmat<ELEMENT, gl_ScopeSubgroup, TILE_K, TILE_N, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, TILE_M, TILE_N, gl_MatrixUseAccumulator>

/* Hands shared memory over within a subgroup. Lavapipe makes a barrier of the whole workgroup of any, but runs
 * a subgroup in lockstep. */
void subgroup_barrier()
{
	if (EXACT)
		subgroupMemoryBarrierShared();
	else
		subgroupBarrier();
}

/* Loads eight elements of a row from number @c on. */
uvec4 load8(Row row, uint c)
{
	uvec4 x;

	if (ALIGNED)
		return Words4(base_of(row, 2 * c) + 2 * c).x;
	for (uint i = 0; i < 4; i++) {
		const uint at = 2 * c + 4 * i;

		x[i] = uint(Half(base_of(row, at) + at).x) |
		       uint(Half(base_of(row, at + 2) + at + 2).x) << 16;
	}
	return x;
}

bool has_odd(uvec4 x)
{
#ifdef OF_BF16
	const uvec4 carry = (x & 0x7f807f80u) + 0x00800080u & 0x80008000u;
#else
	const uvec4 carry = (x & 0x7c007c00u) + 0x04000400u & 0x80008000u;
#endif

	return carry != uvec4(0);
}

uint bits_below(int n)
{
	return n < 32 ? (1u << n) - 1 : 0xffffffffu;
}

float decode(uint bits)
{
	return DTYPE == F16 ? f16_decode(bits) : bf16_decode(bits);
}

uint encode_pair(float x, float y)
{
#ifdef OF_BF16
	return bf16_encode(x) | bf16_encode(y) << 16;
#else
	return packFloat2x16(f16vec2(x, y));
#endif
}

/* Returns 2^-shift times exp(x), of x up to 0. */
float weigh(float x, int shift)
{
	return EXACT ? exp_shifted(x, shift) : exp2(x * LOG2_E - float(shift));
}

/* Writes where this invocation's key of the block from @key on lies. */
void put_rows(uint b, uint kv_head, uint key, uint first_key, uint high)
{
	for (uint i = gl_LocalInvocationIndex; i < KEYS; i += LANES) {
		Rows at = Rows(row_at(0), row_at(0), 1, 1);

		if (key + i >= first_key && key + i < high)
			at = find_rows(b, kv_head, key + i);
		s_k_row[i] = at.k;
		s_v_row[i] = at.v;
	}
}

/* Stores the block's K and V in shared memory; keys that no row sees are zeros. */
void load_block(uint number)
{
	const uint each = KEYS * EIGHTS / LANES;
	uvec4 k[AT_ONCE], v[AT_ONCE];
	bool odd = false;

	for (uint first = 0; first < each; first += AT_ONCE) {
		/* All loads precede all stores, so that they are in flight together. */
		[[unroll]] for (uint i = 0; i < AT_ONCE && first + i < each; i++) {
			const uint at = (first + i) * LANES + gl_LocalInvocationIndex;
			const uint key = at / EIGHTS, c = at % EIGHTS * 8;

			k[i] = v[i] = uvec4(0);
			if (s_k_row[key].at != 0) {
				k[i] = load8(s_k_row[key], c);
				v[i] = load8(s_v_row[key], c);
			}
		}
		[[unroll]] for (uint i = 0; i < AT_ONCE && first + i < each; i++) {
			const uint at = (first + i) * LANES + gl_LocalInvocationIndex;
			const uint key = at / EIGHTS, c = at % EIGHTS;

			s_kv[key * KV_STRIDE + c] = k[i];
			s_kv[(KEYS + key) * KV_STRIDE + c] = v[i];
			odd = odd || has_odd(v[i]);
		}
	}
	if (odd)
		s_odd = number;
}

void main()
{
	const uint lane = gl_LocalInvocationIndex;
	const uint tile = gl_SubgroupID * ROW_TILES; /* the subgroup's first matrix of rows */
	const uint row_of = gl_SubgroupInvocationID % TILE_M, part = gl_SubgroupInvocationID / TILE_M;
	uint64_t rest;
	uint b;

	load_arguments();
	find_sequence(push.first_tile + gl_WorkGroupID.x, b, rest);
	barrier();

	const uint64_t n_rows = uint64_t(s_sequence.n_q) * A.group;
	const uint64_t blocks = A.sequences == 0 ? A.blocks : (n_rows + ROWS - 1) / ROWS;
	const uint kv_head = uint(rest / blocks), group = A.group;
	/* With causal attention the last rows take longest, so they begin first. */
	const uint64_t first_row = (blocks - 1 - rest % blocks) * ROWS;
	const uint rows = uint(min(uint64_t(ROWS), n_rows - min(n_rows, first_row)));

	if (rows == 0)
		return;
	for (uint r = lane; r < ROWS; r += LANES) {
		s_position[r] = s_low[r] = s_high[r] = 0;
		if (r < rows)
			find_keys(r, (first_row + r) / group);
	}
	if (lane == 0) {
		s_odd = 0;
		s_stop = false;
	}
	barrier();

	/* ---- which keys the subgroup's rows, and all rows, see */

	uint own_low = 0xffffffffu, own_high = 0, low = 0xffffffffu, high = 0;

	for (uint r = gl_SubgroupInvocationID; r < ROW_TILES * TILE_M; r += SUBGROUP) {
		const uint at = tile * TILE_M + r;

		if (s_low[at] < s_high[at]) {
			own_low = min(own_low, uint(s_low[at]));
			own_high = max(own_high, uint(s_high[at]));
		}
	}
	own_low = subgroupMin(own_low);
	own_high = subgroupMax(own_high);
	if (subgroupElect()) {
		s_group_low[gl_SubgroupID] = own_low;
		s_group_high[gl_SubgroupID] = own_high;
	}
	barrier();
	for (uint i = 0; i < SUBGROUPS; i++) {
		low = min(low, s_group_low[i]);
		high = max(high, s_group_high[i]);
	}

	/* ---- Q */

	A_MATRIX q[ROW_TILES * K_TILES];

	[[unroll]] for (uint first = 0; first < ROWS; first += 2 * KEYS) {
		barrier();
		for (uint i = lane; i < 2 * KEYS * EIGHTS; i += LANES) {
			const uint r = first + i / EIGHTS;
			uvec4 x = uvec4(0);

			if (r < rows) {
				const uint64_t row = first_row + r;
				const int64_t token = s_sequence.q_begin + int64_t(row / group);
				const uint head = kv_head * group + uint(row % group);

				x = load8(row_at(A.q + 2 * (b * A.q_batch + token * A.q_token +
				                            head * A.q_head)),
				          i % EIGHTS * 8);
			}
			s_kv[i / EIGHTS * KV_STRIDE + i % EIGHTS] = x;
		}
		barrier();
		[[unroll]] for (uint t = 0; t < ROW_TILES; t++) {
			const uint at = (tile + t) * TILE_M;

			if (at < first || at >= first + 2 * KEYS)
				continue;
			[[unroll]] for (uint k = 0; k < K_TILES; k++)
				coopMatLoad(q[t * K_TILES + k], s_kv,
				            (at - first) * KV_STRIDE + k * TILE_K / 8, KV_STRIDE,
				            gl_CooperativeMatrixLayoutRowMajor);
		}
	}

	/* ---- blocks of keys, which begin at multiples of their size, so that a row's sums do not depend on
	 * its neighbours */

	const uint first_key = low;
	/* Sums of fp16's numbers are far from fp32's bounds, and its weights want all of their bits. */
	const int shift = DTYPE == F16 ? 0 : weight_shift();
	SUMS sums[ROW_TILES * N_TILES];
	float highest[ROW_TILES], total[ROW_TILES];
	uint n_blocks = 0;

	[[unroll]] for (uint i = 0; i < ROW_TILES * N_TILES; i++)
		sums[i] = SUMS(0);
	[[unroll]] for (uint t = 0; t < ROW_TILES; t++) {
		highest[t] = -INF;
		total[t] = 0;
	}
	low -= low % KEYS;
	if (low < high)
		put_rows(b, kv_head, low, first_key, high);
	for (uint key = low; key < high; key += KEYS) {
		if (lane == 0 && n_blocks % STOP_BLOCKS == 0)
			s_stop = VolatileWord(A.stop).x != 0;
		n_blocks++;
		barrier();
		if (s_stop)
			return;
		load_block(n_blocks);
		barrier();
		if (key + KEYS < high)
			put_rows(b, kv_head, key + KEYS, first_key, high);
		if (key >= own_high || key + KEYS <= own_low)
			continue;

		const bool odd = s_odd == n_blocks;
		SUMS s[ROW_TILES * S_TILES];

		[[unroll]] for (uint n = 0; n < S_TILES; n++) {
			[[unroll]] for (uint t = 0; t < ROW_TILES; t++)
				s[t * S_TILES + n] = SUMS(0);
			[[unroll]] for (uint k = 0; k < K_TILES; k++) {
				B_MATRIX keys;

				coopMatLoad(keys, s_kv, n * TILE_N * KV_STRIDE + k * TILE_K / 8,
				            KV_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
				[[unroll]] for (uint t = 0; t < ROW_TILES; t++)
					s[t * S_TILES + n] = coopMatMulAdd(q[t * K_TILES + k], keys,
					                                   s[t * S_TILES + n]);
			}
		}
		[[unroll]] for (uint t = 0; t < ROW_TILES; t++) {
			const uint r = (tile + t) * TILE_M + row_of;
			const uint s_at = gl_SubgroupID * TILE_M * S_STRIDE;
			const uint s_own = s_at + row_of * S_STRIDE + part * (PART / 4);
			const uint own = key + part * PART;
			const int64_t row = int64_t(first_row) + r;
			const uint head = kv_head * group + uint(row % group);
			const int from = int(clamp(s_low[r] - int64_t(own), int64_t(0), int64_t(PART)));
			const int to = int(clamp(s_high[r] - int64_t(own), int64_t(0), int64_t(PART)));
			const float before = highest[t];
			float score[PART], most = before, near = 0;
			uint seen = 0xffffffffu;

			subgroup_barrier();
			[[unroll]] for (uint n = 0; n < S_TILES; n++)
				coopMatStore(s[t * S_TILES + n], s_s, s_at + n * TILE_N / 4, S_STRIDE,
				             gl_CooperativeMatrixLayoutRowMajor);
			subgroup_barrier();
			if (!SIMPLE) {
				/* In shared memory, so that this code is not there for each score. */
				seen = 0;
				for (uint i = uint(from); int(i) < to; i++) {
					const uint at = s_own + i / 4;

					if (r >= rows || !sees(r, row / group, own + i))
						continue;
					seen |= 1u << i;
					s_s[at][i % 4] = finish_score(
						s_s[at][i % 4], head,
						A.slopes != 0 ? key_position(own + i) - s_position[r]
						              : int64_t(0));
				}
			}
			[[unroll]] for (uint i = 0; i < PART; i += 4) {
				const vec4 x = s_s[s_own + i / 4];

				[[unroll]] for (uint j = 0; j < 4; j++)
					score[i + j] = SIMPLE ? x[j] * A.scale : x[j];
			}
			if (!SIMPLE || !subgroupAll(from == 0 && to == PART)) {
				if (SIMPLE)
					seen = bits_below(to) & ~bits_below(from);
				[[unroll]] for (uint i = 0; i < PART; i++)
					score[i] = (seen >> i & 1) != 0 ? score[i] : -INF;
			}
			/* NaN never becomes the maximum. */
			[[unroll]] for (uint i = 0; i < PART; i++)
				most = score[i] > most ? score[i] : most;
			[[unroll]] for (uint other = TILE_M; other < SUBGROUP; other *= 2) {
				const float s_other = subgroupShuffleXor(most, other);

				most = s_other > most ? s_other : most;
			}

			const float base = most == -INF ? 0 : most;
			const float factor = before == most ? 1 : weigh(before - most, 0);

			[[unroll]] for (uint i = 0; i < PART; i += 4) {
				vec4 w;

				[[unroll]] for (uint j = 0; j < 4; j++) {
					w[j] = weigh(score[i + j] - base, shift);
					near += w[j];
					if (odd)
						score[i + j] = w[j];
				}
				s_p[r * P_STRIDE + part * (PART / 4) + i / 4] =
					uvec2(encode_pair(w.x, w.y), encode_pair(w.z, w.w));
			}
			highest[t] = most;
			total[t] = total[t] * factor + near;
			if (part == 0)
				s_factor[r] = factor;
			if (subgroupAny(factor != 1)) {
				SUMS factors;

				subgroup_barrier();
				/* All columns are the same. */
				coopMatLoad(factors, s_factor, (tile + t) * TILE_M, 0,
				            gl_CooperativeMatrixLayoutColumnMajor);
				[[unroll]] for (uint n = 0; n < N_TILES; n++)
					sums[t * N_TILES + n] = sums[t * N_TILES + n] * factors;
			}
			if (!odd)
				continue;

			/* Elements of V that are not finite must not change rows that do not see them. */
			[[unroll]] for (uint i = 0; i < PART; i += 4) {
				vec4 w;

				[[unroll]] for (uint j = 0; j < 4; j++)
					w[j] = (seen >> i + j & 1) != 0 ? score[i + j] : -1;
				s_s[s_own + i / 4] = w;
			}
			[[unroll]] for (uint n = 0; n < N_TILES; n++) {
				SUMS more;

				subgroup_barrier();
				for (uint i = gl_SubgroupInvocationID; i < TILE_M * TILE_N / 2; i += SUBGROUP) {
					const uint m = i / (TILE_N / 2), c = n * TILE_N + i % (TILE_N / 2) * 2;
					vec2 sum = vec2(0);

					for (uint j = 0; j < KEYS; j++) {
						const float w = s_s[s_at + m * S_STRIDE + j / 4][j % 4];
						const uint pair =
							s_kv[(KEYS + j) * KV_STRIDE + c / 8][c % 8 / 2];

						if (!(w < 0))
							sum += w * vec2(decode(pair & 0xffff),
							                decode(pair >> 16));
					}
					s_p[((tile + t) * TILE_M + m) * P_STRIDE + i % (TILE_N / 2)] =
						floatBitsToUint(sum);
				}
				subgroup_barrier();
				coopMatLoad(more, s_p, (tile + t) * TILE_M * P_STRIDE, P_STRIDE,
				            gl_CooperativeMatrixLayoutRowMajor);
				sums[t * N_TILES + n] = sums[t * N_TILES + n] + more;
			}
		}
		if (odd)
			continue;
		subgroup_barrier();
		[[unroll]] for (uint k = 0; k < KEYS / TILE_K; k++) {
			A_MATRIX weights[ROW_TILES];

			[[unroll]] for (uint t = 0; t < ROW_TILES; t++)
				coopMatLoad(weights[t], s_p,
				            (tile + t) * TILE_M * P_STRIDE + k * TILE_K / 4, P_STRIDE,
				            gl_CooperativeMatrixLayoutRowMajor);
			[[unroll]] for (uint n = 0; n < N_TILES; n++) {
				B_MATRIX values;

				coopMatLoad(values, s_kv,
				            (KEYS + k * TILE_K) * KV_STRIDE + n * TILE_N / 8, KV_STRIDE,
				            gl_CooperativeMatrixLayoutRowMajor);
				[[unroll]] for (uint t = 0; t < ROW_TILES; t++)
					sums[t * N_TILES + n] = coopMatMulAdd(weights[t], values,
					                                      sums[t * N_TILES + n]);
			}
		}
	}

	/* ---- results */

	[[unroll]] for (uint t = 0; t < ROW_TILES; t++) {
		const uint r = (tile + t) * TILE_M + row_of;
		const uint s_at = gl_SubgroupID * TILE_M * S_STRIDE;
		const int64_t row = int64_t(first_row) + r;
		const uint head = kv_head * group + uint(row % group);

		[[unroll]] for (uint other = TILE_M; other < SUBGROUP; other *= 2)
			total[t] += subgroupShuffleXor(total[t], other);
		if (part == 0 && r < rows) {
			float lse;

			s_factor[r] = finish_row(highest[t], total[t], shift, head, lse);
			if (A.lse != 0)
				Float(lse_at(b, s_sequence.q_begin + row / group, head)).x = lse;
		}
		[[unroll]] for (uint first = 0; first < DIM; first += KEYS) {
			subgroup_barrier();
			[[unroll]] for (uint n = 0; n < S_TILES; n++)
				coopMatStore(sums[t * N_TILES + first / TILE_N + n], s_s,
				             s_at + n * TILE_N / 4, S_STRIDE,
				             gl_CooperativeMatrixLayoutRowMajor);
			subgroup_barrier();
			for (uint i = gl_SubgroupInvocationID; i < TILE_M * KEYS / 4; i += SUBGROUP) {
				const uint m = (tile + t) * TILE_M + i / (KEYS / 4), c = first + i % (KEYS / 4) * 4;
				const int64_t row = int64_t(first_row) + m;

				if (m >= rows)
					continue;

				const vec4 x = s_s[s_at + i / (KEYS / 4) * S_STRIDE + i % (KEYS / 4)];
				const uint64_t at = result_row(b, s_sequence.q_begin + row / group,
				                               kv_head * group + uint(row % group));
				const float factor = s_factor[m];

				[[unroll]] for (uint j = 0; j < 4; j++)
					store(DTYPE, at, c + j, mean(x[j], factor));
			}
		}
	}
}
