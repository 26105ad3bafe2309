/*
 * One tile of attention for few query rows, as in decoding: lanes are dims. Compiled once for every
 * instruction set; pure functions of a job and its scratch, any thread.
 *
 * The kernel is bound by memory bandwidth: it reads K and V once, in place. A token's heads mostly
 * lie side by side, so a tile may hold several KV heads: it computes a round of keys head by head
 * and prefetches the next round token by token, in memory order. A round ends where its page does.
 *
 * Where some row does not see all keys of a round, each row is accumulated alone over the keys that
 * it sees, so that V of hidden keys has no effect.
 */
#include "kernels/cpu/isa-symbols.h"
#include "kernels/cpu/score.h"

#define ROWS FA_CPU_FEW_ROWS_MAX
#define HEADS FA_CPU_TILE_HEADS_MAX
#define ROUND_KEYS 32 /* this and the next round, of HEADS heads, fit the L2 cache */
#define NEAR_ROUNDS (SCORE_NEAR_ROUNDS * SCORE_KEYS / ROUND_KEYS)
#define CHUNK_KEYS 8
#define LINE_BYTES 64

struct state {
	float q[ROWS][FA_ATTENTION_HEAD_DIM_MAX + 16]; /* fp32; zero-padded to a whole vector */
	float o[ROWS][FA_ATTENTION_HEAD_DIM_V_MAX + 16];
	float s[ROWS][ROUND_KEYS];
	float highest[ROWS], rescale[ROWS];
	double sum[ROWS];
	/* Sums of o over earlier rounds (score_carry()), relative to far_highest. */
	float far[ROWS][FA_ATTENTION_HEAD_DIM_V_MAX + 16];
	float lost[ROWS][FA_ATTENTION_HEAD_DIM_V_MAX + 16];
	float far_highest[ROWS];
};

struct scratch {
	struct state states[HEADS];
	struct fa_cpu_job jobs[HEADS];
};

_Static_assert(sizeof(struct scratch) <= 1536u << 10, "less than any wide kernel's");

/* A round of keys. Keys are counted from the round's first. */
struct round {
	int64_t key; /* the first, in the sequence */
	const char *next_k, *next_v;
	int32_t end;
	int32_t next;
	int32_t low[ROWS], high[ROWS];
	int32_t n_steps, step; /* prefetch steps: in all, and started */
	bool tree;             /* some keys may be hidden by masks */
};

VEC_INLINE void prefetch_row(const char *row, int32_t bytes)
{
	for (int32_t at = 0; at < bytes; at += LINE_BYTES)
		__builtin_prefetch(row + at, 0, 2);
}

/* Prefetches one step's share of the next round, in memory order. */
VEC_INLINE void prefetch_share(enum fa_attention_dtype dtype, const struct fa_cpu_job *job,
                               struct round *round)
{
	int bytes = vec_element_bytes(dtype);
	int32_t key = round->next * round->step / round->n_steps;
	int32_t end = round->next * (round->step + 1) / round->n_steps;

	for (int32_t j = key; j < end; j++) {
		for (int32_t h = 0; h < job->n_heads; h++)
			prefetch_row(round->next_k + j * job->k_stride + h * job->k_stride_head,
			             job->head_dim * bytes);
	}
	for (int32_t j = key; j < end; j++) {
		for (int32_t h = 0; h < job->n_heads; h++)
			prefetch_row(round->next_v + j * job->v_stride + h * job->v_stride_head,
			             job->head_dim_v * bytes);
	}
	round->step++;
}

VEC_INLINE void products(enum fa_attention_dtype dtype, const int rows, const int keys,
                         const struct fa_cpu_job *job, struct state *state, int32_t row,
                         const char *k, int32_t key)
{
	int bytes = vec_element_bytes(dtype);
	vec sums[8][4];
	int32_t c = 0;

	VEC_UNROLL
	for (int j = 0; j < keys; j++) {
		VEC_UNROLL
		for (int r = 0; r < rows; r++)
			sums[j][r] = vec_set(0.0f);
	}
	for (; c + VEC_LANES <= job->head_dim; c += VEC_LANES) {
		VEC_UNROLL
		for (int j = 0; j < keys; j++) {
			vec x = vec_load_elements(dtype, k + j * job->k_stride + c * bytes,
			                          VEC_LANES);

			VEC_UNROLL
			for (int r = 0; r < rows; r++)
				sums[j][r] = vec_fma(vec_load(state->q[row + r] + c), x,
				                     sums[j][r]);
		}
	}
	if (c < job->head_dim) {
		VEC_UNROLL
		for (int j = 0; j < keys; j++) {
			vec x = vec_load_elements(dtype, k + j * job->k_stride + c * bytes, 8);

			VEC_UNROLL
			for (int r = 0; r < rows; r++)
				sums[j][r] = vec_fma(vec_load(state->q[row + r] + c), x,
				                     sums[j][r]);
		}
	}
	VEC_UNROLL
	for (int j = 0; j < keys; j++) {
		VEC_UNROLL
		for (int r = 0; r < rows; r++)
			state->s[row + r][key + j] = vec_sum(sums[j][r]);
	}
}

VEC_INLINE void products_of_rows(enum fa_attention_dtype dtype, const int keys,
                                 const struct fa_cpu_job *job, struct state *state, const char *k,
                                 int32_t key)
{
	int32_t row = 0;

	for (; row + 4 <= job->rows; row += 4) {
		for (int j = 0; j < keys; j += 2)
			products(dtype, 4, keys < 2 ? keys : 2, job, state, row,
			         k + j * job->k_stride, key + j);
	}
	for (; row + 2 <= job->rows; row += 2) {
		for (int j = 0; j < keys; j += 4)
			products(dtype, 2, keys < 4 ? keys : 4, job, state, row,
			         k + j * job->k_stride, key + j);
	}
	if (row < job->rows)
		products(dtype, 1, keys, job, state, row, k, key);
}

VEC_INLINE void round_products(enum fa_attention_dtype dtype, const struct fa_cpu_job *tile,
                               const struct fa_cpu_job *job, struct state *state,
                               struct round *round)
{
	const char *k = score_k(job, round->key);
	int32_t key = 0;

	for (; key + CHUNK_KEYS <= round->end; key += CHUNK_KEYS) {
		prefetch_share(dtype, tile, round);
		products_of_rows(dtype, CHUNK_KEYS, job, state, k + key * job->k_stride, key);
	}
	if (key < round->end)
		prefetch_share(dtype, tile, round);
	for (; key < round->end; key++)
		products_of_rows(dtype, 1, job, state, k + key * job->k_stride, key);
}

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
		if (round->tree) {
			vec_store(s + j, score);
			for (int32_t i = j; i < j + VEC_LANES && i < round->end; i++) {
				if (!score_tree_sees(job, job->row + row, round->key + i))
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

/* Accumulates output dims from @c on over keys [first, end). */
VEC_INLINE void values(enum fa_attention_dtype dtype, const int rows, const int vectors,
                       const int lanes, const struct fa_cpu_job *job, struct state *state,
                       int32_t row, int32_t c, const char *v, int32_t first, int32_t end)
{
	int bytes = vec_element_bytes(dtype);
	vec sums[4][8];

	VEC_UNROLL
	for (int r = 0; r < rows; r++) {
		VEC_UNROLL
		for (int i = 0; i < vectors; i++)
			sums[r][i] = vec_set(0.0f);
	}
	v += first * job->v_stride + c * bytes;
	for (int32_t j = first; j < end; j++, v += job->v_stride) {
		VEC_UNROLL
		for (int i = 0; i < vectors; i++) {
			vec x = vec_load_elements(dtype, v + i * VEC_LANES * bytes, lanes);

			VEC_UNROLL
			for (int r = 0; r < rows; r++)
				sums[r][i] = vec_fma(vec_set(state->s[row + r][j]), x, sums[r][i]);
		}
	}
	VEC_UNROLL
	for (int r = 0; r < rows; r++) {
		VEC_UNROLL
		for (int i = 0; i < vectors; i++) {
			float *o = state->o[row + r] + c + i * VEC_LANES;

			vec_store(o, vec_fma(vec_load(o), vec_set(state->rescale[row + r]),
			                     sums[r][i]));
		}
	}
}

VEC_INLINE void values_of_rows(enum fa_attention_dtype dtype, const int rows,
                               const struct fa_cpu_job *job, struct state *state, int32_t row,
                               const char *v, int32_t first, int32_t end)
{
	const int vectors = VEC_ACCUMULATORS / rows < 8 ? VEC_ACCUMULATORS / rows : 8;
	int32_t c = 0;

	for (; c + vectors * VEC_LANES <= job->head_dim_v; c += vectors * VEC_LANES)
		values(dtype, rows, vectors, VEC_LANES, job, state, row, c, v, first, end);
	for (; c + VEC_LANES <= job->head_dim_v; c += VEC_LANES)
		values(dtype, rows, 1, VEC_LANES, job, state, row, c, v, first, end);
	if (c < job->head_dim_v)
		values(dtype, rows, 1, 8, job, state, row, c, v, first, end);
}

VEC_INLINE void values_of_tree_row(enum fa_attention_dtype dtype, const struct fa_cpu_job *job,
                                   struct state *state, const struct round *round, int32_t row,
                                   const char *v)
{
	for (int32_t j = round->low[row], end; j < round->high[row]; j = end) {
		bool sees = score_tree_sees(job, job->row + row, round->key + j);

		for (end = j + 1; end < round->high[row] &&
		                  score_tree_sees(job, job->row + row, round->key + end) == sees;)
			end++;
		if (!sees)
			continue;
		values_of_rows(dtype, 1, job, state, row, v, j, end);
		state->rescale[row] = 1;
	}
}

VEC_INLINE void round_values(enum fa_attention_dtype dtype, const struct fa_cpu_job *job,
                             struct state *state, const struct round *round)
{
	const char *v = score_v(job, round->key);
	int32_t row = 0;
	bool hidden = false;

	if (round->tree) {
		for (; row < job->rows; row++)
			values_of_tree_row(dtype, job, state, round, row, v);
		return;
	}
	for (int32_t r = 0; r < job->rows; r++)
		hidden |= round->low[r] > 0 || round->high[r] < round->end;
	if (hidden) {
		for (; row < job->rows; row++)
			values_of_rows(dtype, 1, job, state, row, v, round->low[row],
			               round->high[row]);
		return;
	}
	for (; row + 4 <= job->rows; row += 4)
		values_of_rows(dtype, 4, job, state, row, v, 0, round->end);
	for (; row + 2 <= job->rows; row += 2)
		values_of_rows(dtype, 2, job, state, row, v, 0, round->end);
	if (row < job->rows)
		values_of_rows(dtype, 1, job, state, row, v, 0, round->end);
}

/* Moves the sums of the last rounds into those of all; @first: there are none. */
static void carry(const struct fa_cpu_job *job, struct state *state, bool first)
{
	for (int32_t r = 0; r < job->rows; r++) {
		vec base = score_base(vec_set(state->highest[r]));
		vec factor = vec_exp2(vec_set(state->far_highest[r]) - base);
		const size_t bytes = ((size_t)job->head_dim_v + 8) * sizeof(float);

		if (first) {
			memcpy(state->far[r], state->o[r], bytes);
			memset(state->lost[r], 0, bytes);
		}
		for (int32_t c = 0; !first && c < job->head_dim_v; c += VEC_LANES)
			score_carry(state->far[r] + c, state->lost[r] + c, factor,
			            vec_load(state->o[r] + c));
		memset(state->o[r], 0, bytes);
		state->far_highest[r] = state->highest[r];
	}
}

static void state_init(struct state *state, const struct fa_cpu_job *job)
{
	int bytes = vec_element_bytes(job->dtype);

	for (int32_t r = 0; r < job->rows; r++) {
		const char *q = score_q(job, job->row + r);

		for (int32_t c = 0; c < job->head_dim; c += 8) {
			for (int32_t i = 0; i < 8; i += VEC_LANES)
				vec_store(state->q[r] + c + i,
				          vec_load_elements(job->dtype, q + (c + i) * bytes, 8));
		}
		memset(state->o[r], 0, ((size_t)job->head_dim_v + 8) * sizeof(float));
		state->highest[r] = state->far_highest[r] = -INFINITY;
		state->sum[r] = 0;
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

/* Returns the end of the round that starts at @key. The first round may be short: others start at
 * multiples of ROUND_KEYS. */
static int64_t round_end(const struct fa_cpu_job *tile, int64_t key, int64_t end)
{
	int64_t next = (key / ROUND_KEYS + 1) * ROUND_KEYS, page_end = score_page_end(tile, key);

	next = next < page_end ? next : page_end;
	return next < end ? next : end;
}

VEC_INLINE void few_rows(enum fa_attention_dtype dtype, const struct fa_cpu_job *tile,
                         struct scratch *scratch)
{
	int64_t begin = score_low_of(tile, tile->row, tile->row + tile->rows - 1);
	int64_t end = score_high_of(tile, tile->row, tile->row + tile->rows - 1);
	struct score_map map;
	bool carried = false;
	int32_t near = 0;

	score_map_init(&map, tile);
	for (int32_t h = 0; h < tile->n_heads; h++) {
		job_of_head(tile, h, &scratch->jobs[h]);
		state_init(&scratch->states[h], &scratch->jobs[h]);
	}

	for (int64_t key = begin; key < end;) {
		int64_t next = round_end(tile, key, end);
		struct round round = { .key = key };

		if (fa_cpu_job_stopped(tile))
			return;
		if (near++ == NEAR_ROUNDS) {
			for (int32_t h = 0; h < tile->n_heads; h++)
				carry(&scratch->jobs[h], &scratch->states[h], !carried);
			carried = true;
			near = 1;
		}
		round.end = (int32_t)(next - key);
		round.tree = tile->tree && next > tile->n_k - tile->n_q;
		if (next < end) {
			round.next = (int32_t)(round_end(tile, next, end) - next);
			round.next_k = score_k(tile, next);
			round.next_v = score_v(tile, next);
		}
		round.n_steps = (round.end + CHUNK_KEYS - 1) / CHUNK_KEYS * tile->n_heads;
		for (int32_t r = 0; r < tile->rows; r++) {
			round.low[r] = (int32_t)score_clamp(score_low(tile, tile->row + r) - key, 0,
			                                    round.end);
			round.high[r] = (int32_t)score_clamp(score_high(tile, tile->row + r) - key,
			                                     0, round.end);
		}
		for (int32_t h = 0; h < tile->n_heads; h++) {
			const struct fa_cpu_job *job = &scratch->jobs[h];
			struct state *state = &scratch->states[h];

			round_products(dtype, tile, job, state, &round);
			for (int32_t r = 0; r < job->rows; r++)
				row_softmax(job, &map, state, &round, r);
			round_values(dtype, job, state, &round);
		}
		key = next;
	}

	for (int32_t h = 0; h < tile->n_heads; h++) {
		const struct fa_cpu_job *job = &scratch->jobs[h];
		struct state *state = &scratch->states[h];

		if (carried)
			carry(job, state, false);
		for (int32_t r = 0; r < job->rows; r++)
			score_store(
				job, job->row + r, carried ? state->far[r] : state->o[r],
				score_finish(job, job->row + r, state->highest[r], state->sum[r]));
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
