/*
 * Moves rows of tokens, as kernels/paged.h defines it: to the pages of the pool with rotary embedding and
 * quantising, from them, within them, and between them and a client's own pages. A workgroup does one row.
 */
#version 460
#extension GL_GOOGLE_include_directive : require
#include "memory.glsl"

#define LANES FA_VULKAN_LANES
#define DIM_MAX 576

layout(constant_id = 0) const uint OP = FA_VULKAN_APPEND;
layout(constant_id = 1) const uint DTYPE = F32;
layout(constant_id = 2) const uint STORE = PLAIN; /* in pages */

layout(local_size_x = LANES) in;

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer Arguments {
	fa_vulkan_tokens a;
};
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer Sequence {
	fa_vulkan_sequence s;
};
layout(push_constant, scalar) uniform Push {
	uint64_t arguments, first_group;
} push;

#define A Arguments(push.arguments).a

shared float s_row[DIM_MAX];
shared float s_highest[LANES];
shared bool s_nan[LANES];
shared uint64_t s_slot;

#define BYTES element_bytes(DTYPE)
#define STORED_BYTES (STORE == PLAIN ? BYTES : 1)

/* ---- where rows are */

struct Place {
	Row row;
	uint64_t scale; /* 0: the token has none */
};

Place in_pool(uint layer, uint table_start, uint token, uint head, bool is_v)
{
	uint slot = Word(A.table + 4 * uint64_t(table_start + token / A.page_tokens)).x;
	uint64_t base = uint64_t(slot) * 256 + layer * A.layer_stride + (is_v ? A.v_offset : int64_t(0));
	uint64_t row = uint64_t(head) * A.page_tokens + token % A.page_tokens;
	uint dim = is_v ? A.v_row : A.head_dim;
	Place place = Place(pool_row(A.chunks, A.chunk_shift, base + row * dim * STORED_BYTES,
	                             dim * STORED_BYTES),
	                    0);

	if (STORE != PLAIN && A.token_scales != 0)
		place.scale = pool_address(A.chunks, A.chunk_shift,
		                           base + uint64_t(A.kv_heads) * A.page_tokens * dim + 4 * row);
	return place;
}

uint64_t in_own(uint64_t data, int64_t page, uint token, uint head, bool is_v)
{
	int64_t at = is_v ? page * A.v_page + token * A.v_token + head * A.v_head
	                  : page * A.k_page + token * A.k_token + head * A.k_head;

	return data + at * (OP == FA_VULKAN_APPEND_OWN ? STORED_BYTES : BYTES);
}

uint64_t in_tensor(uint64_t token, uint head, bool is_v)
{
	return is_v ? A.v + (int64_t(token) * A.v_token + head * A.v_head) * BYTES
	            : A.k + (int64_t(token) * A.k_token + head * A.k_head) * BYTES;
}

float head_scale(uint layer, uint head, bool is_v)
{
	uint64_t scales = is_v ? A.v_scales : A.k_scales;

	return scales == 0 ? 1 : Float(scales + 4 * (uint64_t(layer) * A.kv_heads + head)).x;
}

/* ---- rows */

void copy_row(Row to, Row from, uint first, uint dim)
{
	for (uint c = first + gl_LocalInvocationIndex; c < dim; c += LANES) {
		uint64_t target = base_of(to, c * BYTES), source = base_of(from, c * BYTES);

		if (DTYPE == F32)
			Word(target + 4 * c).x = Word(source + 4 * c).x;
		else
			Half(target + 2 * c).x = Half(source + 2 * c).x;
	}
}

/* Returns the elements of pair @i after rotation, and where they are. @from is outside of the pool. */
vec2 rotated(uint64_t from, uint64_t position, uint i, out uvec2 at)
{
	uint half_dim = A.rotary_dim / 2;
	vec2 unit;

	at = A.rotary_first + (A.interleaved != 0 ? uvec2(2 * i, 2 * i + 1) : uvec2(i, i + half_dim));
	if (A.cos != 0) {
		uint64_t row = min(position, uint64_t(A.table_positions - 1)) * half_dim + i;

		unit = vec2(Float(A.cos + 4 * row).x, Float(A.sin + 4 * row).x);
	} else {
		unit = cos_sin_of(position * Word64(A.turns + 8 * i).x);
	}

	float x = load(DTYPE, from, at.x), y = load(DTYPE, from, at.y);

	return vec2(x * unit.x - y * unit.y, y * unit.x + x * unit.y);
}

/* Copies a row of K or q, and rotates a part of it. @to may be @from. */
void rotate_row(Row to, uint64_t from, uint64_t position)
{
	uvec2 at;

	for (uint i = gl_LocalInvocationIndex; i < A.rotary_dim / 2; i += LANES) {
		vec2 pair = rotated(from, position, i, at);

		store(DTYPE, base_of(to, at.x * BYTES), at.x, pair.x);
		store(DTYPE, base_of(to, at.y * BYTES), at.y, pair.y);
	}
	if (to.at != from) {
		copy_row(to, row_at(from), 0, A.rotary_first);
		copy_row(to, row_at(from), A.rotary_first + A.rotary_dim, A.head_dim);
	}
}

/* Reads a row from outside of the pool to s_row; K's is rotated. */
void read_row(uint64_t from, uint64_t position, uint dim, bool rotates)
{
	uvec2 at;

	for (uint c = gl_LocalInvocationIndex; c < dim; c += LANES)
		if (!rotates || c - A.rotary_first >= A.rotary_dim)
			s_row[c] = load(DTYPE, from, c);
	for (uint i = gl_LocalInvocationIndex; rotates && i < A.rotary_dim / 2; i += LANES) {
		vec2 pair = rotated(from, position, i, at);

		s_row[at.x] = pair.x;
		s_row[at.y] = pair.y;
	}
	barrier();
}

/* Stores the codes of s_row, with a scale of its own if the place has one, else with the head's. */
void quantise_row(Place to, uint dim, float scale_of_head)
{
	const uint lane = gl_LocalInvocationIndex;
	precise float scale = scale_of_head, inverse;
	bool has_nan = false;

	if (to.scale != 0) {
		float highest = 0;

		for (uint c = lane; c < dim; c += LANES) {
			float magnitude = abs(clamp_finite(s_row[c]));

			has_nan = has_nan || is_nan(magnitude);
			highest = magnitude > highest ? magnitude : highest;
		}
		s_highest[lane] = highest;
		s_nan[lane] = has_nan;
		barrier();
		for (uint i = 0; i < LANES; i++) {
			has_nan = has_nan || s_nan[i];
			highest = s_highest[i] > highest ? s_highest[i] : highest;
		}
		scale = divide(highest, STORE == E4M3 ? 448.0 : 127.0);
		if (!(scale >= uintBitsToFloat(0x00800000u)))
			scale = 0;
	}
	inverse = scale > 0 ? divide(1, scale) : 0;
	for (uint c = lane; c < dim; c += LANES) {
		precise float x = clamp_finite(s_row[c]) * inverse;

		Byte(base_of(to.row, c) + c).x =
			uint8_t(STORE == E4M3 ? e4m3_encode(x) : int8_encode(x));
	}
	if (to.scale != 0 && lane == 0)
		Float(to.scale).x = has_nan && STORE == INT8 ? NAN : scale;
}

void dequantise_row(uint64_t to, Place from, uint dim, float scale_of_head)
{
	float scale = from.scale != 0 ? Float(from.scale).x : scale_of_head;

	for (uint c = gl_LocalInvocationIndex; c < dim; c += LANES)
		store(DTYPE, to, c, load_code(STORE, base_of(from.row, c), c) * scale);
}

/* ---- operations */

uint find_sequence(uint64_t token)
{
	uint low = 0, high = A.batch;

	while (high - low > 1) {
		uint middle = low + (high - low) / 2;

		if (Sequence(A.sequences + middle * 40).s.q_begin <= token)
			low = middle;
		else
			high = middle;
	}
	return low;
}

void append_or_read(uint64_t token, uint row)
{
	const fa_vulkan_sequence s = Sequence(A.sequences + find_sequence(token) * 40).s;
	const uint64_t i = token - s.q_begin;
	uint64_t position = uint64_t(int64_t(s.n_k) - int64_t(s.n_q) + int64_t(i));

	if (OP == FA_VULKAN_APPEND && A.positions != 0)
		position = Word(A.positions + 4 * token).x;
	/* A length that is less than the new tokens gives positions below 0. */
	if (A.cos != 0 && int64_t(position) < 0)
		position = 0;
	if (OP == FA_VULKAN_APPEND && row >= 2 * A.kv_heads) {
		uint head = row - 2 * A.kv_heads;

		rotate_row(row_at(A.q_out + (int64_t(token) * A.q_out_token + head * A.q_out_head) * BYTES),
		           A.q + (int64_t(token) * A.q_token + head * A.q_head) * BYTES, position);
		return;
	}

	const bool is_v = row >= A.kv_heads;
	const uint head = is_v ? row - A.kv_heads : row, dim = is_v ? A.head_dim_v : A.head_dim;

	if ((is_v ? A.v : A.k) == 0 || s.k_begin == s.n_k)
		return;

	const Place place = in_pool(A.layer, s.table_start, s.k_begin + uint(i), head, is_v);
	const uint64_t tensor = in_tensor(token, head, is_v);

	if (OP == FA_VULKAN_READ) {
		if (STORE == PLAIN)
			copy_row(row_at(tensor), place.row, 0, dim);
		else
			dequantise_row(tensor, place, dim, head_scale(A.layer, head, is_v));
	} else if (STORE == PLAIN) {
		if (is_v)
			copy_row(place.row, row_at(tensor), 0, dim);
		else
			rotate_row(place.row, tensor, position);
	} else {
		read_row(tensor, position, dim, !is_v);
		quantise_row(place, dim, head_scale(A.layer, head, is_v));
	}
}

/* A client may write its slots at any time, so one invocation reads for all. */
void append_own(uint64_t token, uint row)
{
	const bool is_v = row >= A.kv_heads;
	const uint head = is_v ? row - A.kv_heads : row, dim = is_v ? A.head_dim_v : A.head_dim;

	if ((is_v ? A.v : A.k) == 0)
		return;
	if (gl_LocalInvocationIndex == 0)
		s_slot = Word64(A.slots + 8 * token).x;
	barrier();

	const uint64_t slot = s_slot;

	if (slot >= A.n_slots)
		return;

	const uint64_t tensor = is_v ? A.v + (int64_t(token) * A.q_out_token + head * A.q_out_head) * BYTES
	                             : A.k + (int64_t(token) * A.q_token + head * A.q_head) * BYTES;
	const uint64_t to = in_own(is_v ? A.v_data : A.k_data, int64_t(slot / A.own_page_tokens),
	                           uint(slot % A.own_page_tokens), head, is_v);

	if (STORE == PLAIN) {
		copy_row(row_at(to), row_at(tensor), 0, dim);
	} else {
		read_row(tensor, 0, dim, false);
		quantise_row(Place(row_at(to), 0), dim, head_scale(0, head, is_v));
	}
}

void copy_own(uint layer, uint64_t token, uint row)
{
	const bool is_v = row >= A.kv_heads;
	const uint head = is_v ? row - A.kv_heads : row, dim = is_v ? A.head_dim_v : A.head_dim;
	const uint64_t all = is_v ? A.v_data : A.k_data;
	const fa_vulkan_sequence s = Sequence(A.sequences).s;

	if (all == 0)
		return;

	const uint place = A.offset + uint(token);
	const uint64_t own = in_own(Word64(all + 8 * layer).x,
	                            int64_t(Word(A.pages + 4 * (place / A.own_page_tokens)).x),
	                            place % A.own_page_tokens, head, is_v);
	const Place pool =
		in_pool(A.layer + layer, s.table_start, s.k_begin + uint(token), head, is_v);
	const float scale = head_scale(A.layer + layer, head, is_v);

	if (OP == FA_VULKAN_READ_OWN) {
		if (STORE == PLAIN)
			copy_row(row_at(own), pool.row, 0, dim);
		else
			dequantise_row(own, pool, dim, scale);
	} else if (STORE == PLAIN) {
		copy_row(pool.row, row_at(own), 0, dim);
	} else {
		read_row(own, 0, dim, false);
		quantise_row(pool, dim, scale);
	}
}

/* Tokens move only towards the front, and in order. Each invocation copies the same words of every
 * token, so none is overwritten before it has moved. */
void move_tokens(uint layer, uint64_t sequence, uint row)
{
	const fa_vulkan_sequence s = Sequence(A.sequences + sequence * 40).s;
	const bool is_v = row >= A.kv_heads;
	const uint head = is_v ? row - A.kv_heads : row, dim = is_v ? A.head_dim_v : A.head_dim;

	if (is_v && A.v_offset == 0)
		return;
	for (uint i = 0; i < s.n_q; i++) {
		const uint source = Word(A.from + 4 * uint64_t(s.q_begin + i)).x, target = s.first + i;

		if (source == target)
			continue;

		const Place from = in_pool(layer, s.table_start, source, head, is_v);
		const Place to = in_pool(layer, s.table_start, target, head, is_v);

		for (uint c = gl_LocalInvocationIndex; c < dim * STORED_BYTES / 4; c += LANES)
			Word(base_of(to.row, 4 * c) + 4 * c).x =
				Word(base_of(from.row, 4 * c) + 4 * c).x;
		if (from.scale != 0 && gl_LocalInvocationIndex == 0)
			Word(to.scale).x = Word(from.scale).x;
	}
}

void main()
{
	const uint64_t group = push.first_group + gl_WorkGroupID.x;
	const uint rows = 2 * A.kv_heads + (OP == FA_VULKAN_APPEND ? A.heads : 0);
	const uint row = uint(group % rows);
	const uint64_t token = group / rows % A.tokens;
	const uint layer = uint(group / rows / A.tokens);

	if (OP == FA_VULKAN_APPEND || OP == FA_VULKAN_READ)
		append_or_read(token, row);
	else if (OP == FA_VULKAN_APPEND_OWN)
		append_own(token, row);
	else if (OP == FA_VULKAN_MOVE)
		move_tokens(layer, token, row);
	else
		copy_own(layer, token, row);
}
