/*
 * One tile of attention for few query rows, as in decoding: lanes are dims. Compiled for every
 * instruction set; pure functions of a job and its scratch, any thread.
 *
 * K and V are read once, in place, a round of keys at a time, with a prefetch AHEAD_KEYS keys
 * ahead. A token's heads mostly lie side by side, so a tile may hold several KV heads, computed
 * head by head in each round. Where some row does not see all keys of a round, each row is
 * accumulated alone over the keys that it sees: V of hidden keys has no effect.
 */
#include "kernels/cpu/isa-symbols.h"
#include "kernels/cpu/mask.h"

#define ROWS FA_CPU_FEW_ROWS_MAX
#define HEADS FA_CPU_TILE_HEADS_MAX
#define ROUND_KEYS 32 /* this round and the next, of HEADS heads, fit the L2 cache */
#define NEAR_ROUNDS (SCORE_NEAR_ROUNDS * SCORE_KEYS / ROUND_KEYS)
#define AHEAD_KEYS 32       /* a multiple of a round */
#define SEGMENTS ROUND_KEYS /* a client's pages may hold one key */
#define GROUP_ROWS 4        /* rows in registers */
#define STRIP (2 * VEC_LANES)
#define LINE_BYTES 64

/* Rows of q, o, far and lost are in the order of load_strip(). */
struct state {
	float q[ROWS][FA_ATTENTION_HEAD_DIM_MAX + STRIP]; /* padded by zeros */
	float o[ROWS][FA_ATTENTION_HEAD_DIM_V_MAX + STRIP];
	float s[ROWS][ROUND_KEYS];
	float highest[ROWS], rescale[ROWS];
	double sum[ROWS];
	/* Sums of o over earlier rounds (score_carry()), relative to far_highest. */
	float far[ROWS][FA_ATTENTION_HEAD_DIM_V_MAX + STRIP];
	float lost[ROWS][FA_ATTENTION_HEAD_DIM_V_MAX + STRIP];
	float far_highest[ROWS];
};

struct scratch {
	struct state states[HEADS];
	struct fa_cpu_job jobs[HEADS];
};

_Static_assert(sizeof(struct scratch) <= FA_CPU_FEW_ROWS_SCRATCH_MAX, "its scratch is enough");

/* Keys of a round that are adjacent in memory: [first, end), from the round's first. */
struct segment {
	int64_t k, v;             /* the first's, in a head's K and V */
	int64_t ahead_k, ahead_v; /* to what is fetched meanwhile; 0: nothing is left */
	int32_t first, end;
};

/* A round of keys, which are counted from its first. */
struct round {
	int64_t key; /* the first, in the sequence */
	int32_t end;
	int32_t low[ROWS], high[ROWS];
	bool tree;
	bool masked; /* a row's mask hides some keys; else seen is not set */
	uint32_t seen[ROWS];
	int32_t n_segments;
	struct segment segments[SEGMENTS];
};

/* ---- strips of a row */

/* Loads @n elements, 8 to STRIP; the rest is 0. Of bf16 the vectors get the elements of even and of
 * odd number: that takes a shift and a mask alone. */
VEC_INLINE void load_strip(enum fa_attention_dtype dtype, const char *p, int n, vec strip[2])
{
	int bytes = vec_element_bytes(dtype);

	if (dtype == FA_ATTENTION_BF16) {
		vec_u32 words = vec_load_u32(p, n / 2);

		strip[0] = (vec)(words << 16);
		strip[1] = (vec)(words & 0xffff0000u);
		return;
	}
	VEC_UNROLL
	for (int i = 0; i < 2; i++) {
		int left = n - i * VEC_LANES;

		if (left >= VEC_LANES)
			strip[i] = vec_load_elements(dtype, p + i * VEC_LANES * bytes, VEC_LANES);
		else if (left > 0)
			strip[i] = vec_load_elements(dtype, p + i * VEC_LANES * bytes, 8);
		else
			strip[i] = vec_set(0.0f);
	}
}

/* Undoes the order of load_strip(). */
static void order_strip(enum fa_attention_dtype dtype, const float *strip, float *to)
{
	for (int i = 0; i < VEC_LANES; i++) {
		bool pairs = dtype == FA_ATTENTION_BF16;

		to[pairs ? 2 * i : i] = strip[i];
		to[pairs ? 2 * i + 1 : VEC_LANES + i] = strip[VEC_LANES + i];
	}
}

VEC_INLINE void fetch_strip(enum fa_attention_dtype dtype, const char *p)
{
	VEC_UNROLL
	for (int at = 0; at < STRIP * vec_element_bytes(dtype); at += LINE_BYTES)
		__builtin_prefetch(p + at, 0, 2);
}

/* No earlier strip has fetched this one's first line. */
VEC_INLINE bool begins_line(enum fa_attention_dtype dtype, int32_t c)
{
	return c * vec_element_bytes(dtype) % LINE_BYTES == 0;
}

/* ---- products */

/* sums[r][j] += row * key, over a strip of @n elements. */
VEC_INLINE void products_of_strip(enum fa_attention_dtype dtype, const int rows, const int keys,
                                  const int stride, const struct fa_cpu_job *job,
                                  const struct state *state, int32_t row, const char *k, int32_t c,
                                  int n, vec *sums)
{
	k += c * vec_element_bytes(dtype);
	VEC_UNROLL
	for (int j = 0; j < keys; j++, k += job->k_stride) {
#if VEC_HAS_DOT
		if (dtype == FA_ATTENTION_BF16) {
			vec x = (vec)vec_load_u32(k, n / 2);

			VEC_UNROLL
			for (int r = 0; r < rows; r++)
				sums[r * stride + j] = vec_dot(vec_load(state->q[row + r] + c / 2),
				                               x, sums[r * stride + j]);
			continue;
		}
#endif
		vec x[2];

		load_strip(dtype, k, n, x);
		VEC_UNROLL
		for (int i = 0; i < 2; i++) {
			VEC_UNROLL
			for (int r = 0; r < rows; r++)
				sums[r * stride + j] = vec_fma(
					vec_load(state->q[row + r] + c + i * VEC_LANES), x[i],
					sums[r * stride + j]);
		}
	}
}

/* @rows * @keys is at most VEC_LANES. */
VEC_INLINE void products(enum fa_attention_dtype dtype, const int rows, const int keys,
                         const struct fa_cpu_job *job, struct state *state, int32_t row,
                         const char *k, int32_t key, const bool fetches, int64_t ahead)
{
	const int stride = VEC_LANES / (rows == 3 ? 4 : rows); /* keys, in a vector of sums */
	int32_t c = 0, whole = job->head_dim / STRIP * STRIP;
	float lanes[VEC_LANES];
	vec sums[VEC_LANES];

	VEC_UNROLL
	for (int i = 0; i < VEC_LANES; i++)
		sums[i] = vec_set(0.0f);
	for (; c < job->head_dim; c += STRIP) {
		if (fetches && begins_line(dtype, c)) {
			VEC_UNROLL
			for (int j = 0; j < keys; j++)
				fetch_strip(dtype, k + j * job->k_stride + ahead +
				                           c * vec_element_bytes(dtype));
		}
		if (c < whole)
			products_of_strip(dtype, rows, keys, stride, job, state, row, k, c, STRIP,
			                  sums);
		else
			products_of_strip(dtype, rows, keys, stride, job, state, row, k, c,
			                  job->head_dim - c, sums);
	}
	vec_store(lanes, vec_sums(sums));
	VEC_UNROLL
	for (int r = 0; r < rows; r++)
		memcpy(state->s[row + r] + key, lanes + r * stride, (size_t)keys * sizeof(float));
}

/* Returns how many of @left rows to compute at once. */
VEC_INLINE int32_t group_of(int32_t left)
{
	return left == 5 || left == 6 ? 3 : left < GROUP_ROWS ? left : GROUP_ROWS;
}

/* Multiplies all rows with VEC_LANES keys, or with one. */
VEC_INLINE void products_of_rows(enum fa_attention_dtype dtype, const bool one,
                                 const struct fa_cpu_job *job, struct state *state, const char *k,
                                 int32_t key, int64_t ahead)
{
	const int n = one ? 1 : VEC_LANES;
	int32_t group;

	for (int32_t row = 0; row < job->rows; row += group) {
		const bool fetches = row == 0;

		group = group_of(job->rows - row);
		switch (group) {
#define PRODUCTS(rows, keys)                                                                       \
	for (int j = 0; j < n; j += one ? 1 : (keys))                                              \
	products(dtype, rows, one ? 1 : (keys), job, state, row, k + j * job->k_stride, key + j,   \
	         fetches, ahead)
		case 1:
			PRODUCTS(1, VEC_LANES);
			break;
		case 2:
			PRODUCTS(2, VEC_LANES / 2);
			break;
		case 3:
			PRODUCTS(3, VEC_LANES / 4);
			break;
		default:
			PRODUCTS(4, VEC_LANES / 4);
			break;
#undef PRODUCTS
		}
	}
}

VEC_INLINE void round_products(enum fa_attention_dtype dtype, const struct fa_cpu_job *job,
                               struct state *state, const struct round *round)
{
	for (int32_t i = 0; i < round->n_segments; i++) {
		const struct segment *segment = &round->segments[i];
		const char *k = job->k + segment->k;
		int32_t key = segment->first;

		for (; key + VEC_LANES <= segment->end;
		     key += VEC_LANES, k += VEC_LANES * job->k_stride)
			products_of_rows(dtype, false, job, state, k, key, segment->ahead_k);
		for (; key < segment->end; key++, k += job->k_stride)
			products_of_rows(dtype, true, job, state, k, key, segment->ahead_k);
	}
}

/* ---- softmax */

static vec tree_positions(const struct fa_cpu_job *job, const struct round *round, int32_t first)
{
	float positions[VEC_LANES];

	for (int32_t i = 0; i < VEC_LANES; i++)
		positions[i] = first + i < round->end
		                       ? (float)(score_key_position(job, round->key + first + i) -
		                                 round->key)
		                       : 0;
	return vec_load(positions);
}

static void row_softmax(const struct fa_cpu_job *job, const struct score_map *map,
                        struct state *state, const struct round *round, int32_t row)
{
	float *s = state->s[row];
	vec low = vec_set((float)round->low[row]), high = vec_set((float)round->high[row]);
	vec position = vec_set((float)(score_position(job, job->row + row) - round->key));
	vec top = vec_set(-INFINITY), sum = vec_set(0.0f), slope, base;
	float lanes[VEC_LANES], before = state->highest[row], highest;

	for (int i = 0; i < VEC_LANES; i++)
		lanes[i] = (float)i;
	slope = vec_set(
		job->alibi_slopes
			? (float)(job->alibi_slopes[(job->row + row) % job->group] * VEC_LOG2E)
			: 0);

	for (int32_t j = 0; j < round->end; j += VEC_LANES) {
		vec key = vec_load(lanes) + vec_set((float)j);
		vec score = vec_load(s + j) * vec_set(map->scale);

		if (map->capped)
			score = vec_tanh(score) * vec_set(map->cap);
		if (job->alibi_slopes) {
			vec at = key;

			if (round->tree)
				at = tree_positions(job, round, j);
			score = score_bias(score, slope, at, position);
		}
		score = score_mask(score, key, low, high);
		if (round->masked) {
			vec_store(s + j, score);
			for (int32_t i = j; i < j + VEC_LANES && i < round->end; i++) {
				if (!(round->seen[row] >> i & 1))
					s[i] = -INFINITY;
			}
			score = vec_load(s + j);
		}
		vec_store(s + j, score);
		top = vec_max(score, top);
	}
	highest = vec_highest(top);
	highest = highest > before ? highest : before;
	base = score_base(vec_set(highest));
	for (int32_t j = 0; j < round->end; j += VEC_LANES) {
		vec weight = vec_exp2_shifted(vec_load(s + j) - base, map->shift);

		vec_store(s + j, weight);
		sum = sum + weight;
	}

	vec_store(lanes, vec_exp2(vec_set(before) - base));
	state->rescale[row] = lanes[0];
	state->highest[row] = highest;
	state->sum[row] = state->sum[row] * (double)lanes[0] + (double)vec_sum(sum);
}

/* ---- sums of values */

/* @strips strips of V from @c on, the last of @n elements, over keys [first, end). */
VEC_INLINE void values(enum fa_attention_dtype dtype, const int rows, const int strips, int n,
                       const struct fa_cpu_job *job, struct state *state, const struct round *round,
                       int32_t row, int32_t c, int32_t first, int32_t end, bool fetches)
{
	const int bytes = STRIP * vec_element_bytes(dtype);
	vec sums[GROUP_ROWS][2 * 4];

	VEC_UNROLL
	for (int r = 0; r < rows; r++) {
		VEC_UNROLL
		for (int i = 0; i < 2 * strips; i++)
			sums[r][i] = vec_set(0.0f);
	}
	for (int32_t s = 0; s < round->n_segments; s++) {
		const struct segment *segment = &round->segments[s];
		const int32_t from = first > segment->first ? first : segment->first;
		const int32_t to = end < segment->end ? end : segment->end;
		const char *v = job->v + segment->v + (from - segment->first) * job->v_stride +
		                c * vec_element_bytes(dtype);

		for (int32_t j = from; j < to; j++, v += job->v_stride) {
			VEC_UNROLL
			for (int i = 0; i < strips; i++) {
				vec x[2];

				load_strip(dtype, v + i * bytes, i < strips - 1 ? STRIP : n, x);
				if (fetches && (bytes >= LINE_BYTES || i % 2 == 0))
					fetch_strip(dtype, v + segment->ahead_v + i * bytes);
				VEC_UNROLL
				for (int h = 0; h < 2; h++) {
					VEC_UNROLL
					for (int r = 0; r < rows; r++)
						sums[r][2 * i + h] = vec_fma(
							vec_set(state->s[row + r][j]), x[h],
							sums[r][2 * i + h]);
				}
			}
		}
	}
	VEC_UNROLL
	for (int r = 0; r < rows; r++) {
		VEC_UNROLL
		for (int i = 0; i < 2 * strips; i++) {
			float *o = state->o[row + r] + c + i * VEC_LANES;

			vec_store(o, vec_fma(vec_load(o), vec_set(state->rescale[row + r]),
			                     sums[r][i]));
		}
	}
}

VEC_INLINE void values_of_rows(enum fa_attention_dtype dtype, const int strips, int n,
                               const struct fa_cpu_job *job, struct state *state,
                               const struct round *round, int32_t row, int32_t end_row, int32_t c,
                               int32_t first, int32_t end)
{
	bool fetches = row == 0 && begins_line(dtype, c);
	int32_t group;

	for (; row < end_row; row += group, fetches = false) {
		group = group_of(end_row - row);
		switch (group) {
#define VALUES(rows) values(dtype, rows, strips, n, job, state, round, row, c, first, end, fetches)
		case 1:
			VALUES(1);
			break;
		case 2:
			VALUES(2);
			break;
		case 3:
			VALUES(3);
			break;
		default:
			VALUES(4);
			break;
#undef VALUES
		}
	}
}

/* Computes as many columns at once as there are accumulators for. */
VEC_INLINE void values_of_columns(enum fa_attention_dtype dtype, const struct fa_cpu_job *job,
                                  struct state *state, const struct round *round, int32_t row,
                                  int32_t end_row, int32_t first, int32_t end)
{
	const int narrow = VEC_ACCUMULATORS / (2 * GROUP_ROWS), wide = 4;
	int32_t c = 0;

	if (end_row - row == 1) {
		for (; c + wide * STRIP <= job->head_dim_v; c += wide * STRIP)
			values_of_rows(dtype, wide, STRIP, job, state, round, row, end_row, c,
			               first, end);
	}
	for (; c + narrow * STRIP <= job->head_dim_v; c += narrow * STRIP)
		values_of_rows(dtype, narrow, STRIP, job, state, round, row, end_row, c, first,
		               end);
	for (; c < job->head_dim_v; c += STRIP)
		values_of_rows(dtype, 1, job->head_dim_v - c < STRIP ? job->head_dim_v - c : STRIP,
		               job, state, round, row, end_row, c, first, end);
}

VEC_INLINE void values_of_masked_row(enum fa_attention_dtype dtype, const struct fa_cpu_job *job,
                                     struct state *state, const struct round *round, int32_t row)
{
	const uint32_t seen = round->seen[row];

	for (int32_t j = round->low[row], end; j < round->high[row]; j = end) {
		uint32_t sees = seen >> j & 1;

		for (end = j + 1; end < round->high[row] && (seen >> end & 1) == sees;)
			end++;
		if (!sees)
			continue;
		values_of_columns(dtype, job, state, round, row, row + 1, j, end);
		state->rescale[row] = 1;
	}
}

VEC_INLINE void round_values(enum fa_attention_dtype dtype, const struct fa_cpu_job *job,
                             struct state *state, const struct round *round)
{
	bool hidden = false;

	if (round->masked) {
		for (int32_t row = 0; row < job->rows; row++)
			values_of_masked_row(dtype, job, state, round, row);
		return;
	}
	for (int32_t r = 0; r < job->rows; r++)
		hidden |= round->low[r] > 0 || round->high[r] < round->end;
	if (!hidden) {
		values_of_columns(dtype, job, state, round, 0, job->rows, 0, round->end);
		return;
	}
	for (int32_t row = 0; row < job->rows; row++)
		values_of_columns(dtype, job, state, round, row, row + 1, round->low[row],
		                  round->high[row]);
}

/* ---- a tile */

/* Adds the last rounds' sums to those of all; @first: there were none. */
static void carry(const struct fa_cpu_job *job, struct state *state, bool first)
{
	const int32_t dims = (job->head_dim_v + STRIP - 1) / STRIP * STRIP;
	const size_t bytes = (size_t)dims * sizeof(float);

	for (int32_t r = 0; r < job->rows; r++) {
		vec base = score_base(vec_set(state->highest[r]));
		vec factor = vec_exp2(vec_set(state->far_highest[r]) - base);

		if (first) {
			memcpy(state->far[r], state->o[r], bytes);
			memset(state->lost[r], 0, bytes);
		}
		for (int32_t c = 0; !first && c < dims; c += VEC_LANES)
			score_carry(state->far[r] + c, state->lost[r] + c, factor,
			            vec_load(state->o[r] + c));
		memset(state->o[r], 0, bytes);
		state->far_highest[r] = state->highest[r];
	}
}

static void store_query(enum fa_attention_dtype dtype, const char *q, int n, float *to, int32_t c)
{
	vec strip[2];

	switch (dtype) {
	case FA_ATTENTION_F32:
		load_strip(FA_ATTENTION_F32, q, n, strip);
		break;
	case FA_ATTENTION_F16:
		load_strip(FA_ATTENTION_F16, q, n, strip);
		break;
	case FA_ATTENTION_BF16:
#if VEC_HAS_DOT
		vec_store(to + c / 2, (vec)vec_load_u32(q, n / 2));
		return;
#endif
		load_strip(FA_ATTENTION_BF16, q, n, strip);
		break;
	default:
		return;
	}
	vec_store(to + c, strip[0]);
	vec_store(to + c + VEC_LANES, strip[1]);
}

static void state_init(struct state *state, const struct fa_cpu_job *job)
{
	int bytes = vec_element_bytes(job->dtype);

	for (int32_t r = 0; r < job->rows; r++) {
		const char *q = score_q(job, job->row + r);

		for (int32_t c = 0; c < job->head_dim; c += STRIP) {
			int n = job->head_dim - c < STRIP ? job->head_dim - c : STRIP;

			store_query(job->dtype, q + c * bytes, n, state->q[r], c);
		}
		memset(state->o[r], 0, ((size_t)job->head_dim_v + STRIP) * sizeof(float));
		state->highest[r] = state->far_highest[r] = -INFINITY;
		state->sum[r] = 0;
	}
}

static void finish(const struct fa_cpu_job *job, const struct state *state, bool carried)
{
	float row[FA_ATTENTION_HEAD_DIM_V_MAX + STRIP];

	for (int32_t r = 0; r < job->rows; r++) {
		const float *o = carried ? state->far[r] : state->o[r];

		for (int32_t c = 0; c < job->head_dim_v; c += STRIP)
			order_strip(job->dtype, o + c, row + c);
		score_store(job, job->row + r, row,
		            score_finish(job, job->row + r, state->highest[r], state->sum[r]));
	}
}

static void job_of_head(const struct fa_cpu_job *tile, int32_t h, struct fa_cpu_job *ret_job)
{
	int64_t head = (int64_t)h * tile->group;

	*ret_job = *tile;
	ret_job->n_heads = 1;
	ret_job->q += head * tile->q_stride_head;
	ret_job->k += h * tile->k_stride_head;
	ret_job->v += h * tile->v_stride_head;
	ret_job->out += head * tile->out_stride_head;
	if (tile->lse)
		ret_job->lse += head * tile->lse_stride_head;
	if (tile->alibi_slopes)
		ret_job->alibi_slopes += head;
	if (tile->sinks)
		ret_job->sinks += head;
	if (tile->partial)
		ret_job->partial += h * tile->rows * fa_cpu_partial_floats(tile);
}

/* Fills keys [round->key, ...), up to a multiple of ROUND_KEYS or @end. Returns the next. */
static int64_t round_keys(const struct fa_cpu_job *tile, int64_t end, struct round *round)
{
	int64_t key = round->key, stop = (key / ROUND_KEYS + 1) * ROUND_KEYS;

	stop = stop < end ? stop : end;
	round->n_segments = 0;
	while (key < stop) {
		int64_t next = score_page_end(tile, key);

		/* What is AHEAD_KEYS later is adjacent, too. */
		if (key + AHEAD_KEYS < end)
			next = score_clamp(score_page_end(tile, key + AHEAD_KEYS) - AHEAD_KEYS,
			                   key + 1, next);
		next = next < stop ? next : stop;
		struct segment segment = {
			.k = score_k(tile, key) - tile->k,
			.v = score_v(tile, key) - tile->v,
			.first = (int32_t)(key - round->key),
			.end = (int32_t)(next - round->key),
		};

		if (key + AHEAD_KEYS < end) {
			segment.ahead_k = score_k(tile, key + AHEAD_KEYS) - tile->k - segment.k;
			segment.ahead_v = score_v(tile, key + AHEAD_KEYS) - tile->v - segment.v;
		}
		round->segments[round->n_segments++] = segment;
		key = next;
	}
	round->end = (int32_t)(stop - round->key);
	return stop;
}

/* False: no row sees any key. */
static bool round_masks(const struct fa_cpu_job *job, struct mask *mask, struct round *round)
{
	const uint32_t all = UINT32_MAX >> (ROUND_KEYS - round->end);
	uint32_t of_tokens[ROWS], any, skipped = (uint32_t)(round->key % ROUND_KEYS);

	mask_round(mask, round->key - skipped, 1, of_tokens, &any);
	if (!(any >> skipped & all))
		return false;
	for (int32_t r = 0; r < job->rows; r++) {
		round->seen[r] = of_tokens[(job->row + r) / job->group - mask->token] >> skipped;
		round->masked |= (~round->seen[r] & all) != 0;
	}
	return true;
}

VEC_INLINE void few_rows(enum fa_attention_dtype dtype, const struct fa_cpu_job *tile,
                         struct scratch *scratch)
{
	int64_t begin = score_low_of(tile, tile->row, tile->row + tile->rows - 1);
	int64_t end = score_high_of(tile, tile->row, tile->row + tile->rows - 1);
	bool carried = false, masks = mask_given(tile);
	struct score_map map;
	struct mask mask;
	int32_t near = 0;

	score_map_init(&map, tile);
	if (masks)
		mask_init(&mask, tile);
	for (int32_t h = 0; h < tile->n_heads; h++) {
		job_of_head(tile, h, &scratch->jobs[h]);
		state_init(&scratch->states[h], &scratch->jobs[h]);
	}

	for (int64_t key = begin; key < end;) {
		struct round round;
		int64_t next;

		if (fa_cpu_job_stopped(tile))
			return;
		if (masks)
			key = mask_next(&mask, key);
		if (key >= end)
			break;
		round.key = key;
		next = round_keys(tile, end, &round);
		round.masked = false;
		if (masks && !round_masks(tile, &mask, &round)) {
			key = next;
			continue;
		}
		if (near++ == NEAR_ROUNDS) {
			for (int32_t h = 0; h < tile->n_heads; h++)
				carry(&scratch->jobs[h], &scratch->states[h], !carried);
			carried = true;
			near = 1;
		}
		round.tree = tile->tree && next > tile->n_k - tile->n_q;
		for (int32_t r = 0; r < tile->rows; r++) {
			round.low[r] = (int32_t)score_clamp(score_low(tile, tile->row + r) - key, 0,
			                                    round.end);
			round.high[r] = (int32_t)score_clamp(score_high(tile, tile->row + r) - key,
			                                     0, round.end);
		}
		for (int32_t h = 0; h < tile->n_heads; h++) {
			const struct fa_cpu_job *job = &scratch->jobs[h];
			struct state *state = &scratch->states[h];

			round_products(dtype, job, state, &round);
			for (int32_t r = 0; r < job->rows; r++)
				row_softmax(job, &map, state, &round, r);
			round_values(dtype, job, state, &round);
		}
		key = next;
	}

	for (int32_t h = 0; h < tile->n_heads; h++) {
		if (carried)
			carry(&scratch->jobs[h], &scratch->states[h], false);
		finish(&scratch->jobs[h], &scratch->states[h], carried);
	}
}

void FA_CPU_FEW_ROWS(const struct fa_cpu_job *job, void *scratch)
{
	switch (job->dtype) {
	case FA_ATTENTION_F32:
		few_rows(FA_ATTENTION_F32, job, scratch);
		break;
	case FA_ATTENTION_F16:
		few_rows(FA_ATTENTION_F16, job, scratch);
		break;
	case FA_ATTENTION_BF16:
		few_rows(FA_ATTENTION_BF16, job, scratch);
		break;
	}
}
