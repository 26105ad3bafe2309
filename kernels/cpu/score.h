/*
 * From a product <q, k> to a score in log2, and a tile's rows and keys; for all kernels.
 */
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec.h"

/* Keys of a round of online softmax; rounds start at multiples. */
#define SCORE_KEYS 128

struct score_map {
	float scale, cap;
	int shift; /* score_shift() */
	bool capped;
};

/* Beyond this cap tanh(s / cap) * cap is s in fp32, and its factors would overflow. */
#define SCORE_CAP_MAX 1e25f
#define SCORE_CAP_MIN 1e-25f

/* Weights are 2^-shift times exp(score - maximum): over all keys their sum is below 1, and no sum
 * of finite values overflows. All splits of a row have the same shift. */
static inline int score_shift(const struct fa_cpu_job *job)
{
	return job->n_k > 1 ? 64 - __builtin_clzll((uint64_t)job->n_k) : 0;
}

static inline void score_map_init(struct score_map *map, const struct fa_cpu_job *job)
{
	map->shift = score_shift(job);
	map->capped = job->softcap > 0 && job->softcap < SCORE_CAP_MAX;
	if (map->capped) {
		double cap = job->softcap < SCORE_CAP_MIN ? SCORE_CAP_MIN : job->softcap;
		double scale = job->scale / cap;

		map->scale = (float)(scale > 3e38 ? 3e38 : scale < -3e38 ? -3e38 : scale);
		map->cap = (float)(job->softcap * VEC_LOG2E);
	} else {
		double scale = job->scale * VEC_LOG2E;

		map->scale = (float)(scale > 3e38 ? 3e38 : scale < -3e38 ? -3e38 : scale);
		map->cap = 0;
	}
}

/* Keys and positions count from the round's first key. */
VEC_INLINE vec score_bias(vec score, vec slope_log2, vec key, vec position)
{
	return vec_fma(vec_set(0.0f) - slope_log2, vec_abs(key - position), score);
}

VEC_INLINE vec score_mask(vec score, vec key, vec low, vec high)
{
	const vec nothing = vec_set(-INFINITY);

	score = vec_select(vec_less(key, low), nothing, score);
	return vec_select(vec_less(key, high), score, nothing);
}

/* A row's scores are relative to its maximum, or to 0 if it has seen no key. */
VEC_INLINE vec score_base(vec highest)
{
	return vec_select(vec_equal(highest, vec_set(-INFINITY)), vec_set(0.0f), highest);
}

static inline int64_t score_clamp(int64_t x, int64_t low, int64_t high)
{
	return x < low ? low : x > high ? high : x;
}

/* The position of packed row @row, and the keys [low, high) that it sees. */
static inline int64_t score_position(const struct fa_cpu_job *job, int64_t row)
{
	if (job->positions)
		return job->positions[row / job->group];
	return row / job->group + job->n_k - job->n_q;
}

static inline int64_t score_low(const struct fa_cpu_job *job, int64_t row)
{
	return score_clamp(fa_cpu_job_low(job, score_position(job, row)), job->begin, job->end);
}

static inline int64_t score_high(const struct fa_cpu_job *job, int64_t row)
{
	/* A tree's new key may be at a lower position than its index. */
	if (job->tree)
		return job->end;
	return score_clamp(fa_cpu_job_high(job, score_position(job, row)), job->begin, job->end);
}

/* Rows [row, last] see only keys in [low, high). */
static inline int64_t score_low_of(const struct fa_cpu_job *job, int64_t row, int64_t last)
{
	int64_t low;

	if (!job->tree)
		return score_low(job, row);
	for (low = job->end; row <= last; row++) {
		int64_t of_row = score_low(job, row);

		low = of_row < low ? of_row : low;
	}
	return low;
}

static inline int64_t score_high_of(const struct fa_cpu_job *job, int64_t row, int64_t last)
{
	return score_high(job, last);
}

static inline int64_t score_key_position(const struct fa_cpu_job *job, int64_t key)
{
	int64_t old = job->n_k - job->n_q;

	return job->positions && key >= old ? job->positions[key - old] : key;
}

static inline const char *score_key_at(const struct fa_cpu_job *job, const char *base,
                                       int64_t stride, int64_t page_bytes, int64_t key)
{
	uint32_t page;

	if (!job->table)
		return base + key * stride;
	/* One load, so that the bound holds for what is used. */
	page = __atomic_load_n(&job->table[job->table_start + (uint32_t)(key / job->page_tokens)],
	                       __ATOMIC_RELAXED);
	page = page < job->last_page ? page : job->last_page;
	return base + page * page_bytes + key % job->page_tokens * stride;
}

static inline const char *score_k(const struct fa_cpu_job *job, int64_t key)
{
	return score_key_at(job, job->k, job->k_stride, job->k_page_bytes, key);
}

static inline const char *score_v(const struct fa_cpu_job *job, int64_t key)
{
	return score_key_at(job, job->v, job->v_stride, job->v_page_bytes, key);
}

/* Scales of keys from @key to the page's end; NULL: the head has one scale. */
static inline const char *score_scales(const struct fa_cpu_job *job, const char *scales,
                                       int64_t stride, int64_t key)
{
	return scales ? score_key_at(job, scales, stride, job->k_page_bytes, key) : NULL;
}

static inline float score_q_scale(const struct fa_cpu_job *job, int64_t row)
{
	if (!job->q_scales)
		return 1;
	return job->q_scales[row / job->group * job->q_scale_stride_token +
	                     row % job->group * job->q_scale_stride_head];
}

/* Returns the next key that does not follow its predecessor in memory. */
static inline int64_t score_page_end(const struct fa_cpu_job *job, int64_t key)
{
	return job->table ? (key / job->page_tokens + 1) * job->page_tokens : INT64_MAX;
}

/* @key is in [low, high). */
static inline bool score_tree_sees(const struct fa_cpu_job *job, int64_t row, int64_t key)
{
	int64_t token = key - (job->n_k - job->n_q), at, position;

	if (token < 0)
		return true;
	if (!(job->tree[row / job->group * job->tree_words + token / 32] >> token % 32 & 1))
		return false;
	at = score_key_position(job, key);
	position = score_position(job, row);
	return at >= fa_cpu_job_low(job, position) && at < fa_cpu_job_high(job, position);
}

static inline const char *score_q(const struct fa_cpu_job *job, int64_t row)
{
	return job->q + row / job->group * job->q_stride_token +
	       row % job->group * job->q_stride_head;
}

/*
 * Sums have three levels, as one sum of many equal numbers loses a unit in the last place with
 * each: over a round's keys, over SCORE_NEAR_ROUNDS rounds, over all rounds. This adds @near to the
 * last, *far, after multiplying it by @factor. *lost is what rounding took from *far.
 */
#define SCORE_NEAR_ROUNDS 16

VEC_INLINE void score_carry(float *far, float *lost, vec factor, vec near)
{
	vec before = vec_load(far), scaled = vec_fma(before, factor, vec_set(0.0f)), sum;
	vec missing = vec_fma(before, factor, vec_set(0.0f) - scaled);

	/* Infinite sums have lost a NaN that was in them. */
	missing = vec_fma(vec_load(lost), factor, missing);
	missing = vec_select(vec_less(vec_abs(missing), vec_set(INFINITY)), missing, vec_set(0.0f));
	near = near + missing;
	sum = scaled + near;
	vec_store(far, sum);
	vec_store(lost, near - (sum - scaled));
}

/* Turns a row's maximum (log2) and sum, and the sink, into its accumulators' factor; stores the
 * lse. Without keys it is 0. */
static inline float score_finish(const struct fa_cpu_job *job, int64_t row, float highest,
                                 double sum)
{
	int64_t head = row % job->group;
	double total = ldexp(sum, score_shift(job));
	float factor, lse;

	if (job->partial) {
		float *to = job->partial + (row - job->row) * fa_cpu_partial_floats(job) +
		            fa_cpu_partial_values(job);

		to[0] = highest;
		to[1] = (float)sum;
		return 1;
	}
	if (job->sinks && !(highest == -INFINITY && sum == 0)) {
		/* Exact for any sink. */
		double sink = job->sinks[head], top = (double)highest * VEC_LN2;
		double base = sink > top ? sink : top;
		double all = exp(top - base) * total + exp(sink - base);

		factor = (float)ldexp(exp(top - base) / all, score_shift(job));
		lse = (float)(base + log(all));
	} else if (job->sinks) {
		factor = 0;
		lse = job->sinks[head];
	} else if (highest == -INFINITY && sum == 0) {
		factor = 0;
		lse = -INFINITY;
	} else {
		factor = (float)(1 / sum);
		lse = (float)((double)highest * VEC_LN2 + log(total));
	}

	if (job->lse)
		job->lse[row / job->group * job->lse_stride_token + head * job->lse_stride_head] =
			lse;
	return factor;
}

/* Multiplies accumulators by the row's factor. A mean of finite values is finite, though rounding
 * may lift it above the largest. */
VEC_INLINE vec score_mean(vec values, float factor)
{
	const vec largest = vec_set(0x1.fffffep127f), infinite = vec_set(INFINITY);
	vec mean = values * vec_set(factor);
	vec bounded = vec_select(vec_less(largest, mean), largest, mean);

	bounded = vec_select(vec_less(mean, vec_set(0.0f) - largest), vec_set(0.0f) - largest,
	                     bounded);
	return vec_select(vec_less(vec_abs(values), infinite), bounded, mean);
}

static inline void score_store(const struct fa_cpu_job *job, int64_t row, const float *values,
                               float factor)
{
	char *out = job->out + row / job->group * job->out_stride_token +
	            row % job->group * job->out_stride_head;
	int bytes = vec_element_bytes(job->dtype);
	int c = 0;

	if (job->partial) {
		memcpy(job->partial + (row - job->row) * fa_cpu_partial_floats(job), values,
		       (size_t)job->head_dim_v * sizeof(float));
		return;
	}
	for (; c + VEC_LANES <= job->head_dim_v; c += VEC_LANES)
		vec_store_elements(job->dtype, out + c * bytes,
		                   score_mean(vec_load(values + c), factor), VEC_LANES);
	if (c < job->head_dim_v)
		vec_store_elements(job->dtype, out + c * bytes,
		                   score_mean(vec_load(values + c), factor), 8);
}
