/*
 * Attention of few rows over many keys, as attend.comp computes it, for plain rows of DIM elements that are
 * aligned to 16 bytes. A workgroup computes ROWS packed rows over one of the parts into which the keys that the
 * rows see are split. Each invocation has LOADS pieces of 16 bytes of K, and of V, in flight. Where there is one
 * part the workgroup stores results, else what combine.comp joins.
 *
 * Barriers, four per block of keys, all arrive at all: after K is in shared memory, after the partial scores,
 * after the scores, and after the weights.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "memory.glsl"

#define LANES FA_VULKAN_DECODE_LANES
#define LOADS FA_VULKAN_DECODE_LOADS
#define STOP_BLOCKS 8 /* how many blocks go by between two looks at the word that stops */
#define STORE PLAIN

layout(constant_id = 0) const uint SOURCE = FA_VULKAN_DENSE;
layout(constant_id = 1) const uint DTYPE = F32;
layout(constant_id = 2) const uint DIM = 64; /* of K and of V */
layout(constant_id = 3) const uint ROWS = 1;
layout(constant_id = 4) const bool HALVES = false; /* the device's conversion of halves is exact */
layout(constant_id = 5) const bool SPLIT = false;

layout(local_size_x = LANES) in;

#define EACH (DTYPE == F32 ? 4 : 8) /* elements of a piece */
#define PIECES (DIM / EACH)         /* of a row */
#define KEYS (LANES * LOADS / PIECES)
#define PARTS (LANES / KEYS)      /* a score's products are divided over so many invocations */
#define GROUPS (LANES / PIECES)   /* so many keys' V are added at once */
#define K_STRIDE (PIECES + 1)     /* keeps rows out of each other's banks */
#define OWN ((ROWS * KEYS + LANES - 1) / LANES) /* scores of an invocation */

#include "rows.glsl"

shared vec4 s_q[ROWS * DIM / 4];
shared uvec4 s_k[KEYS * K_STRIDE]; /* at last sums of V */
shared float s_part[LANES * ROWS]; /* [part][row][key]: partial scores; at last sums of weights */
shared vec4 s_score[ROWS * KEYS / 4];
shared float s_weight[KEYS * ROWS]; /* [key][row]; -1: the row does not see the key */
shared float s_factor[ROWS];
shared Row s_k_row[KEYS], s_v_row[KEYS];
shared uint s_mixed; /* the last block with keys that some rows see and others do not, from 1 */
shared bool s_stop;

uvec4 load_piece(Row row, uint piece)
{
	return Words4(base_of(row, 16 * piece) + 16 * piece).x;
}

vec2 decode_pair(uint bits)
{
	if (DTYPE == BF16)
		return vec2(uintBitsToFloat(bits << 16), uintBitsToFloat(bits & 0xffff0000u));
	if (HALVES)
		return unpackHalf2x16(bits);
	return vec2(f16_decode(bits & 0xffffu), f16_decode(bits >> 16));
}

/* Returns four of a piece's elements; of fp32 @half_of is 0. */
vec4 decode4(uvec4 piece, uint half_of)
{
	if (DTYPE == F32)
		return uintBitsToFloat(piece);
	return half_of == 0 ? vec4(decode_pair(piece.x), decode_pair(piece.y))
	                    : vec4(decode_pair(piece.z), decode_pair(piece.w));
}

/* Writes where this invocation's key of the block from @key on lies; 0: no row sees it. */
void put_rows(uint b, uint kv_head, int64_t key, int64_t low, int64_t high)
{
	const uint i = gl_LocalInvocationIndex;

	if (i >= KEYS)
		return;

	Rows at = Rows(row_at(0), row_at(0), 1, 1);

	if (key + i >= low && key + i < high)
		at = find_rows(b, kv_head, uint(key + i));
	s_k_row[i] = at.k;
	s_v_row[i] = at.v;
}

void main()
{
	const uint lane = gl_LocalInvocationIndex;
	const uint64_t number = push.first_tile + gl_WorkGroupID.x;
	uint64_t rest;
	uint b;

	load_arguments();

	const uint splits = SPLIT ? A.splits : 1;
	const uint64_t tile = number / splits;
	const uint split = uint(number % splits);

	find_sequence(tile, b, rest);
	barrier();

	const uint64_t n_rows = uint64_t(s_sequence.n_q) * A.group;
	const uint64_t blocks = A.sequences == 0 ? A.blocks : (n_rows + ROWS - 1) / ROWS;
	const uint kv_head = uint(rest / blocks), group = A.group;
	const uint64_t first_row = rest % blocks * ROWS;
	const uint rows = uint(min(uint64_t(ROWS), n_rows - min(n_rows, first_row)));

	/* Memory of parts may hold another request's, and combine.comp may find more rows, which a client can write. */
	if (SPLIT && lane >= rows && lane < ROWS)
		Float(A.part_sums + 8 * ((tile * ROWS + lane) * splits + split) + 4).x = -1;
	if (rows == 0)
		return;
	for (uint i = lane; i < ROWS * DIM / 4; i += LANES) {
		const uint r = i / (DIM / 4), c = i % (DIM / 4) * 4;
		const int64_t token = s_sequence.q_begin + int64_t((first_row + r) / group);
		const uint head = kv_head * group + uint((first_row + r) % group);
		vec4 x = vec4(0);

		if (r < rows)
			x = load4(DTYPE, true,
			          A.q + (b * A.q_batch + token * A.q_token + head * A.q_head) *
			                        element_bytes(DTYPE),
			          c);
		s_q[i] = x;
	}
	if (lane < ROWS) {
		s_position[lane] = s_low[lane] = s_high[lane] = 0;
		if (lane < rows)
			find_keys(lane, (first_row + lane) / group);
	}
	if (lane == 0) {
		s_mixed = 0;
		s_stop = false;
	}
	barrier();

	int64_t low = int64_t(s_sequence.n_k), high = 0;

	for (uint r = 0; r < rows; r++) {
		if (s_low[r] >= s_high[r])
			continue;
		low = min(low, s_low[r]);
		high = max(high, s_high[r]);
	}

	/* Blocks begin at multiples of their size, so that a row's sums depend little on its neighbours. */
	int64_t begin = low - low % KEYS, end = high;

	if (SPLIT && begin < end) {
		const int64_t n_blocks = (end - begin + KEYS - 1) / KEYS;
		const int64_t each = (n_blocks + splits - 1) / splits * KEYS;

		begin += each * split;
		end = min(end, begin + each);
	}

	const int shift = weight_shift();
	const uint key_of = lane % KEYS, part = lane / KEYS;
	const uint piece = lane % PIECES;
	float highest[OWN], total[ROWS];
	vec4 sums[ROWS * EACH / 4];
	uint n_blocks = 0;

	[[unroll]] for (uint i = 0; i < OWN; i++)
		highest[i] = -INF;
	[[unroll]] for (uint r = 0; r < ROWS; r++)
		total[r] = 0;
	[[unroll]] for (uint i = 0; i < ROWS * EACH / 4; i++)
		sums[i] = vec4(0);
	put_rows(b, kv_head, begin, low, end);
	barrier();

	for (int64_t key = begin; key < end; key += KEYS) {
		uvec4 k[LOADS], v[LOADS];

		[[unroll]] for (uint i = 0; i < LOADS; i++) {
			const uint at = (i * LANES + lane) / PIECES;

			k[i] = v[i] = uvec4(0);
			if (s_k_row[at].at != 0) {
				k[i] = load_piece(s_k_row[at], piece);
				v[i] = load_piece(s_v_row[at], piece);
			}
		}
		if (lane == 0 && n_blocks % STOP_BLOCKS == 0)
			s_stop = VolatileWord(A.stop).x != 0;
		n_blocks++;
		[[unroll]] for (uint i = 0; i < LOADS; i++)
			s_k[(i * LANES + lane) / PIECES * K_STRIDE + piece] = k[i];
		barrier();
		if (s_stop)
			return;
		if (key + KEYS < end)
			put_rows(b, kv_head, key + KEYS, low, end);

		/* ---- scores */

		float score[ROWS];

		[[unroll]] for (uint r = 0; r < ROWS; r++)
			score[r] = 0;
		[[unroll]] for (uint j = 0; j < PIECES / PARTS; j++) {
			const uint c = part * (PIECES / PARTS) + j;
			const uvec4 bits = s_k[key_of * K_STRIDE + c];

			[[unroll]] for (uint h = 0; h < EACH / 4; h++) {
				const vec4 x = decode4(bits, h);

				[[unroll]] for (uint r = 0; r < ROWS; r++)
					score[r] += dot(x, s_q[(r * DIM + c * EACH) / 4 + h]);
			}
		}
		[[unroll]] for (uint r = 0; r < ROWS; r++)
			s_part[(part * ROWS + r) * KEYS + key_of] = score[r];
		barrier();

		float own[OWN];
		bool seen[OWN];

		[[unroll]] for (uint i = 0; i < OWN; i++) {
			const uint at = i * LANES + lane, r = at / KEYS;

			own[i] = -INF;
			seen[i] = false;
			if (at < ROWS * KEYS) {
				const int64_t own_key = key + at % KEYS;
				const uint64_t row = first_row + r;
				float sum = 0;

				[[unroll]] for (uint p = 0; p < PARTS; p++)
					sum += s_part[(p * ROWS + r) * KEYS + at % KEYS];
				seen[i] = r < rows && own_key >= s_low[r] && own_key < s_high[r] &&
				          own_key < end && sees(r, row / group, own_key);
				if (seen[i])
					own[i] = finish_score(
						sum, kv_head * group + uint(row % group),
						A.slopes != 0 ? key_position(own_key) - s_position[r]
						              : int64_t(0));
				else if (r < rows && own_key >= low && own_key < end)
					s_mixed = n_blocks;
				s_score[at / 4][at % 4] = own[i];
			}
		}
		barrier();

		/* ---- weights */

		[[unroll]] for (uint i = 0; i < OWN; i++) {
			const uint at = i * LANES + lane, r = at / KEYS;

			if (at < ROWS * KEYS) {
				const float before = highest[i];
				float most = before, base;

				/* All invocations of a row find the same. NaN never becomes the maximum. */
				[[unroll]] for (uint j = 0; j < KEYS / 4; j++) {
					const vec4 s = s_score[r * KEYS / 4 + j];

					[[unroll]] for (uint h = 0; h < 4; h++)
						most = s[h] > most ? s[h] : most;
				}
				base = most == -INF ? 0 : most;
				highest[i] = most;
				s_weight[at % KEYS * ROWS + r] =
					seen[i] ? exp_shifted(own[i] - base, shift) : -1;
				if (at % KEYS == 0)
					s_factor[r] = before == most ? 1 : exp_shifted(before - most, 0);
			}
		}
		barrier();

		/* ---- sums of V */

		const bool mixed = s_mixed == n_blocks;

		[[unroll]] for (uint r = 0; r < ROWS; r++) {
			const float factor = s_factor[r];

			total[r] *= factor;
			[[unroll]] for (uint h = 0; h < EACH / 4; h++)
				sums[r * EACH / 4 + h] *= factor;
		}
		[[unroll]] for (uint i = 0; i < LOADS; i++) {
			const uint at = (i * LANES + lane) / PIECES;
			float weight[ROWS];
			bool hidden[ROWS];

			[[unroll]] for (uint r = 0; r < ROWS; r++) {
				const float w = s_weight[at * ROWS + r];

				hidden[r] = w < 0;
				weight[r] = hidden[r] ? 0 : w;
				total[r] += weight[r];
			}
			[[unroll]] for (uint h = 0; h < EACH / 4; h++) {
				const vec4 x = decode4(v[i], h);

				/* V of a key that is hidden from a row may be NaN; of keys hidden from all it is
				 * zero. */
				[[unroll]] for (uint r = 0; r < ROWS; r++)
					sums[r * EACH / 4 + h] +=
						mixed && hidden[r] ? vec4(0) : weight[r] * x;
			}
		}
	}

	/* ---- results: the sums of all invocations that have the same piece */

	barrier();
	[[unroll]] for (uint r = 0; r < ROWS; r++) {
		if (piece == 0)
			s_part[lane / PIECES * ROWS + r] = total[r];
		/* The maxima are with the invocations that have the row's first key. */
		if (r * KEYS % LANES == lane)
			s_factor[r] = highest[r * KEYS / LANES];
	}
	[[unroll]] for (uint r = 0; r < ROWS; r++) {
		if (r >= rows)
			continue;
		barrier();
		[[unroll]] for (uint h = 0; h < EACH / 4; h++)
			s_k[lane * (EACH / 4) + h] = floatBitsToUint(sums[r * EACH / 4 + h]);
		barrier();

		const int64_t at = s_sequence.q_begin + int64_t((first_row + r) / group);
		const uint head = kv_head * group + uint((first_row + r) % group);
		const uint64_t place = (tile * ROWS + r) * splits + split;
		float all = 0, lse, factor = 1;

		[[unroll]] for (uint g = 0; g < GROUPS; g++)
			all += s_part[g * ROWS + r];
		if (!SPLIT)
			factor = finish_row(s_factor[r], all, shift, head, lse);
		for (uint c = lane; c < DIM; c += LANES) {
			float x = 0;

			[[unroll]] for (uint g = 0; g < GROUPS; g++)
				x += uintBitsToFloat(s_k[(g * DIM + c) / 4][c % 4]);
			if (SPLIT)
				Float(A.parts + 4 * (place * DIM + c)).x = x;
			else
				store(DTYPE, result_row(b, at, head), c, mean(x, factor));
		}
		if (lane == 0 && SPLIT) {
			Float(A.part_sums + 8 * place).x = s_factor[r];
			Float(A.part_sums + 8 * place + 4).x = all;
		} else if (lane == 0 && A.lse != 0) {
			Float(lse_at(b, at, head)).x = lse;
		}
	}
}
