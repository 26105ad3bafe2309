/*
 * What all kernels of attention share: which rows and keys a workgroup computes, where they lie, and what
 * becomes of scores and sums. The including kernel has the constants SOURCE, DTYPE, STORE and ROWS.
 */
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer Arguments {
	fa_vulkan_attend a;
};
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer Sequence {
	fa_vulkan_sequence s;
};
layout(push_constant, scalar) uniform Push {
	uint64_t arguments, first_tile;
} push;

shared int64_t s_position[ROWS], s_low[ROWS], s_high[ROWS];
shared fa_vulkan_sequence s_sequence;
shared fa_vulkan_attend s_arguments;

/* Arguments may lie in the host's memory, which is far. */
#define A s_arguments

/* Returns @at, or any address of memory where the condition does not hold: lavapipe loads from an address that is
 * the same for all invocations even if none is to. */
uint64_t if_so(bool condition, uint64_t at)
{
	return condition ? at : push.arguments;
}

void load_arguments()
{
	if (gl_LocalInvocationIndex == 0)
		s_arguments = Arguments(push.arguments).a;
	barrier();
}

#define STORED_BYTES (STORE == PLAIN ? element_bytes(DTYPE) : 1)

/* ---- which rows */

/* Stores the tile's sequence in s_sequence, by one invocation alone: a client may write its lengths
 * while they are read. */
void find_sequence(uint64_t tile, out uint b, out uint64_t rest)
{
	uint low = 0, high = A.batch;

	if (A.sequences == 0) {
		uint64_t each = A.kv_heads * A.blocks;

		b = uint(tile / each);
		rest = tile % each;
	} else {
		while (high - low > 1) {
			uint middle = low + (high - low) / 2;

			if (Sequence(A.sequences + middle * 40).s.tile_begin <= tile)
				low = middle;
			else
				high = middle;
		}
		b = low;
		rest = tile - Sequence(A.sequences + b * 40).s.tile_begin;
	}
	if (gl_LocalInvocationIndex != 0)
		return;
	if (SOURCE == FA_VULKAN_OWN) {
		/* Found out here, as a compiler knows the condition behind it. */
		const uint64_t q_at = if_so(A.cu_q != 0, A.cu_q + 4 * uint64_t(b));
		const uint64_t prefix_at = if_so(A.prefixes != 0, A.prefixes + 4 * uint64_t(b));
		int64_t n_k = clamp(int64_t(int(VolatileWord(A.lengths + 4 * uint64_t(b)).x)), int64_t(0),
		                    A.longest);
		int64_t begin = int64_t(b) * A.n_q, n = A.n_q;

		if (A.cu_q != 0) {
			begin = clamp(int64_t(int(VolatileWord(q_at).x)), int64_t(0), A.total_q);
			n = clamp(int64_t(int(VolatileWord(q_at + 4).x)) - begin, int64_t(0),
			          min(int64_t(A.n_q), A.total_q - begin));
		}
		s_sequence.q_begin = uint(begin);
		s_sequence.n_q = uint(n);
		s_sequence.n_k = uint(n_k);
		s_sequence.k_begin = 0;
		s_sequence.first = 0;
		s_sequence.tree_start = FA_VULKAN_NO_TREE;
		s_sequence.prefix = 0;
		if (A.prefixes != 0)
			s_sequence.prefix = uint(max(int(VolatileWord(prefix_at).x), 0));
	} else if (A.sequences != 0) {
		s_sequence = Sequence(A.sequences + b * 40).s;
	} else {
		s_sequence.q_begin = 0;
		s_sequence.k_begin = 0;
		s_sequence.n_q = A.n_q;
		s_sequence.n_k = A.n_k;
		s_sequence.first = 0;
		s_sequence.tree_start = FA_VULKAN_NO_TREE;
		s_sequence.prefix = A.prefixes != 0 ? Word(if_so(A.prefixes != 0, A.prefixes + 4 * uint64_t(b))).x : 0;
	}
}

/* ---- which keys */

bool has_tree()
{
	return SOURCE == FA_VULKAN_POOL && s_sequence.tree_start != FA_VULKAN_NO_TREE;
}

int64_t n_old()
{
	return int64_t(s_sequence.n_k) - int64_t(s_sequence.n_q);
}

int64_t tree_position(int64_t token)
{
	return int64_t(Word(if_so(has_tree() && A.positions != 0, A.positions + 4 * (s_sequence.q_begin + token))).x);
}

int64_t row_position(uint64_t token)
{
	if (has_tree() && A.positions != 0)
		return tree_position(int64_t(token));
	return int64_t(token) + n_old();
}

int64_t key_position(int64_t key)
{
	if (has_tree() && A.positions != 0 && key >= n_old())
		return tree_position(key - n_old());
	return key;
}

/* Stores row @r's position and the keys [low, high) that it may see. */
void find_keys(uint r, uint64_t token)
{
	int64_t position = row_position(token), n_k = int64_t(s_sequence.n_k);
	int64_t low = max(int64_t(s_sequence.first), position - A.left);
	int64_t high = min(n_k, position + A.right + 1);

	if (s_sequence.prefix > 0)
		high = max(high, min(min(n_k, int64_t(s_sequence.prefix)),
		                     position + A.right_tree + 1));
	if (A.chunk_tokens > 0) {
		int64_t begin = max(position, int64_t(0)) / A.chunk_tokens * A.chunk_tokens;

		low = max(low, begin);
		high = min(high, position < 0 ? 0 : begin + A.chunk_tokens);
	}
	if (has_tree()) {
		/* Positions of new tokens may be less than their indices. */
		high = n_k;
		low = max(int64_t(s_sequence.first), min(low, n_old()));
	}
	s_position[r] = position;
	s_low[r] = min(low, n_k);
	s_high[r] = max(high, s_low[r]);
}

/* @key is one of the row's [low, high). */
bool sees(uint r, uint64_t token, int64_t key)
{
	if (!has_tree())
		return true;

	int64_t other = key - n_old(), distance = key_position(key) - s_position[r];

	if (other >= 0) {
		uint64_t words = (s_sequence.n_q + 31) / 32;
		uint64_t at = s_sequence.tree_start + token * words + uint64_t(other) / 32;

		if ((Word(if_so(has_tree() && other >= 0, A.tree + 4 * at)).x >> uint(other % 32) & 1) == 0)
			return false;
	}
	if (A.chunk_tokens > 0 && key_position(key) / A.chunk_tokens != s_position[r] / A.chunk_tokens)
		return false;
	return A.positions == 0 || distance >= -A.left && distance <= A.right_tree;
}

struct Rows {
	Row k, v;
	float k_scale, v_scale;
};

/* Finds the rows of a token's K and V. */
Rows find_rows(uint b, uint kv_head, uint key)
{
	Rows rows = Rows(row_at(0), row_at(0), 1, 1);

	if (SOURCE == FA_VULKAN_DENSE) {
		int64_t token = int64_t(s_sequence.k_begin) + key;

		rows.k.at = A.k + (b * A.k_batch + token * A.k_token + kv_head * A.k_head) * STORED_BYTES;
		rows.v.at = A.v + (b * A.v_batch + token * A.v_token + kv_head * A.v_head) * STORED_BYTES;
		return rows;
	}

	uint page = key / A.page_tokens, token = key % A.page_tokens;

	if (SOURCE == FA_VULKAN_POOL) {
		uint slot = Word(A.table + 4 * uint64_t(s_sequence.table_start + page)).x;
		uint64_t page_at = uint64_t(slot) * 256 + A.layer_offset;
		uint64_t row = uint64_t(kv_head) * A.page_tokens + token;
		uint64_t all = uint64_t(A.kv_heads) * A.page_tokens;

		rows.k = pool_row(A.chunks, A.chunk_shift, page_at + row * A.head_dim * STORED_BYTES,
		                  A.head_dim * STORED_BYTES);
		rows.v = pool_row(A.chunks, A.chunk_shift,
		                  page_at + A.v_offset + row * A.v_row * STORED_BYTES,
		                  A.head_dim_v * STORED_BYTES);
		if (STORE != PLAIN && A.token_scales != 0) {
			rows.k_scale = Float(pool_address(A.chunks, A.chunk_shift,
			                                  page_at + all * A.head_dim + 4 * row)).x;
			rows.v_scale = Float(pool_address(A.chunks, A.chunk_shift,
			                                  page_at + A.v_offset + all * A.v_row +
			                                          4 * row)).x;
		}
	} else {
		uint entry = Word(A.table + 4 * (b * A.table_stride + page)).x;
		int64_t at = int64_t(min(entry, A.last_page));

		rows.k.at = A.k + (at * A.k_batch + token * A.k_token + kv_head * A.k_head) * STORED_BYTES;
		rows.v.at = A.v + (at * A.v_batch + token * A.v_token + kv_head * A.v_head) * STORED_BYTES;
	}
	if (STORE != PLAIN && A.k_scales != 0)
		rows.k_scale = Float(if_so(A.k_scales != 0, A.k_scales + 4 * kv_head)).x;
	if (STORE != PLAIN && A.v_scales != 0)
		rows.v_scale = Float(if_so(A.v_scales != 0, A.v_scales + 4 * kv_head)).x;
	return rows;
}

/* ---- numbers */

float finish_score(float product, uint head, int64_t distance)
{
	float s = product * A.scale, cap = A.softcap;

	if (cap > 0 && !(abs(s) < cap * 1.220703125e-4))
		s = cap * tanh_of(s / cap);
	if (A.slopes != 0)
		s -= Float(if_so(A.slopes != 0, A.slopes + 4 * head)).x * abs(float(distance));
	return s;
}

/* Multiplies by the row's factor. The mean of finite values is finite, though rounding may lift the
 * product above the largest. */
float mean(float sum, float factor)
{
	float x = sum * factor;

	return is_finite(sum) && !is_nan(factor) ? clamp(x, -FLT_LARGEST, FLT_LARGEST) : x;
}

/* Returns what the row's sum of weighted V is multiplied by: its weights, whose sum is @sum, are
 * 2^-shift times exp(score - highest). */
float finish_row(float highest, float sum, int shift, uint head, out float lse)
{
	const bool nothing = highest == -INF && sum == 0;
	float factor = 0;

	lse = -INF;
	if (A.sinks != 0) {
		float sink = Float(if_so(A.sinks != 0, A.sinks + 4 * head)).x;

		if (nothing) {
			lse = sink;
		} else {
			float base = highest > sink ? highest : sink, all;
			float part = exp_shifted(highest - base, 0);

			if (is_nan(sum))
				part = 1;
			all = part * sum + (sink == -INF ? 0 : exp_shifted(sink - base, shift));
			factor = part / all;
			lse = base + (log_of(all) + shift * 0.693147181);
		}
	} else if (!nothing) {
		factor = 1 / sum;
		lse = highest + (log_of(sum) + shift * 0.693147181);
		if (is_nan(sum))
			lse = sum;
	}
	return factor;
}

/* Weights are 2^-shift times exp(score - maximum), so that no sum of finite values overflows. */
int weight_shift()
{
	return s_sequence.n_k > 1 ? 1 + findMSB(s_sequence.n_k) : 0;
}

/* Addresses of the result's row and its LSE. */
uint64_t result_row(uint b, int64_t token, uint head)
{
	return A.result + (b * A.result_batch + token * A.result_token + head * A.result_head) *
	                          element_bytes(DTYPE);
}

uint64_t lse_at(uint b, int64_t token, uint head)
{
	return A.lse + 4 * (b * A.lse_batch + token * A.lse_token + head * A.lse_head);
}
