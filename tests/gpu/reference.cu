/*
 * Attention in fp64 as kernels/attention.h defines it; the same with steps rounded to the tensors'
 * type, which shows the error to grant; and kernels for measuring.
 */
#include "kernels/attention.h"

#include <math.h>
#include <stdint.h>

static __device__ double round_to(enum fa_attention_dtype dtype, double x)
{
	uint32_t bits;

	if (dtype == FA_ATTENTION_F32)
		return (double)(float)x;
	if (dtype == FA_ATTENTION_F16) {
		uint16_t half;
		float y;

		asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"((float)x));
		asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(half));
		return (double)y;
	}
	bits = __float_as_uint((float)x);
	bits += 0x7fff + (bits >> 16 & 1);
	return (double)__uint_as_float(bits & 0xffff0000);
}

static __device__ double load(enum fa_attention_dtype dtype, const void *data, int64_t index)
{
	float y;

	if (dtype == FA_ATTENTION_F32)
		return ((const float *)data)[index];
	if (dtype == FA_ATTENTION_BF16)
		return (double)__uint_as_float((uint32_t)((const uint16_t *)data)[index] << 16);
	asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(((const uint16_t *)data)[index]));
	return (double)y;
}

static __device__ bool masks_show(const struct fa_attention_params &params, int64_t b, int64_t i,
                                  int64_t h, int64_t position, int64_t j, int64_t n_k)
{
	const struct fa_attention_blocks &blocks = params.blocks;
	const struct fa_attention_pattern &pattern = params.pattern;
	const struct fa_attention_bits &bits = params.bits;

	if (blocks.rows) {
		const int32_t *offsets = blocks.offsets + b * blocks.offsets_stride_batch +
		                         h * blocks.offsets_stride_head + i / blocks.rows;
		const int32_t *columns = blocks.columns + b * blocks.columns_stride_batch +
		                         h * blocks.columns_stride_head;
		const int64_t n = (n_k + blocks.keys - 1) / blocks.keys;
		const int64_t begin = min(max((int64_t)offsets[0], (int64_t)0), blocks.n_columns);
		const int64_t end = min(max((int64_t)offsets[1], (int64_t)0), blocks.n_columns);
		int64_t highest = -1;

		for (int64_t at = begin; at < min(end, begin + n) && highest < j / blocks.keys; at++)
			if (columns[at] > highest && columns[at] < n)
				highest = columns[at];
		if (highest != j / blocks.keys)
			return false;
	}
	if (pattern.block_tokens) {
		const double tokens = pattern.block_tokens;
		const int64_t number = (int64_t)pattern.first_head + h, step = pattern.head_step;
		const int64_t first = step < 0 ? number / (params.heads / params.kv_heads) * -step
		                               : number * step;
		const int64_t block = j / pattern.block_tokens;

		if (!(floor((double)position / tokens) - (double)block < pattern.local_blocks) &&
		    (block + first + 1) % pattern.vert_stride != 0)
			return false;
	}
	return !bits.words ||
	       (j / 32 < bits.row_words &&
	        bits.words[b * bits.stride_batch + h * bits.stride_head + i * bits.stride_row +
	                   j / 32] >>
	                        j % 32 &
	                1);
}

#define THREADS 128

/*
 * One row per block: grid (seqlen_q, heads, batch). @ret_out [batch][row][head][dim_v] and @ret_lse
 * [batch][row][head] are dense; ragged batches are batch 1. @naive: scores, probabilities and
 * output are rounded to the tensors' type.
 */
extern "C" __global__ void __launch_bounds__(THREADS)
	fa_test_reference(const struct fa_attention_params params, double *ret_out, double *ret_lse,
                          int32_t naive)
{
	__shared__ double scratch[THREADS];
	const int64_t i = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
	const int64_t kv_head = h / (params.heads / params.kv_heads);
	int64_t first_q = 0, first_k = 0, n_q = params.seqlen_q, n_k = params.seqlen_k;

	if (params.cu_seqlens_q) {
		first_q = params.cu_seqlens_q[b];
		first_k = params.cu_seqlens_k[b];
		n_q = params.cu_seqlens_q[b + 1] - first_q;
		n_k = params.cu_seqlens_k[b + 1] - first_k;
	}
	if (i >= n_q)
		return;

	const int64_t q_at = (params.cu_seqlens_q ? 0 : b * params.q.stride_batch) +
	                     (first_q + i) * params.q.stride_token + h * params.q.stride_head;
	const int64_t k_at = (params.cu_seqlens_q ? 0 : b * params.k.stride_batch) +
	                     first_k * params.k.stride_token + kv_head * params.k.stride_head;
	const int64_t v_at = (params.cu_seqlens_q ? 0 : b * params.v.stride_batch) +
	                     first_k * params.v.stride_token + kv_head * params.v.stride_head;
	const int64_t position = i + n_k - n_q;

	const auto visible = [&](int64_t j) {
		return !(params.causal && j > position) &&
		       !(params.window_left >= 0 && j < position - params.window_left) &&
		       !(params.window_right >= 0 && j > position + params.window_right) &&
		       masks_show(params, b, i, h, position, j, n_k);
	};
	const auto score = [&](int64_t j) {
		double s = 0;

		if (!visible(j))
			return (double)-INFINITY;
		for (int d = 0; d < params.head_dim; d++)
			s += load(params.dtype, params.q.data, q_at + d) *
			     load(params.dtype, params.k.data,
			          k_at + j * params.k.stride_token + d);
		s *= params.scale;
		if (naive)
			s = round_to(params.dtype, s);
		if (params.softcap > 0) {
			s = params.softcap * tanh(s / params.softcap);
			if (naive)
				s = round_to(params.dtype, s);
		}
		if (params.alibi_slopes) {
			s -= params.alibi_slopes[h] * fabs((double)(j - position));
			if (naive)
				s = round_to(params.dtype, s);
		}
		return s;
	};
	const auto reduce = [&](double x, bool max) {
		double y;

		__syncthreads();
		scratch[threadIdx.x] = x;
		__syncthreads();
		y = scratch[0];
		for (int t = 1; t < THREADS; t++)
			y = max ? fmax(y, scratch[t]) : y + scratch[t];
		return y;
	};

	double max = params.sinks ? params.sinks[h] : -INFINITY, sum = 0, nans = 0, lse;
	for (int64_t j = threadIdx.x; j < n_k; j += THREADS) {
		const double s = score(j);

		nans += isnan(s);
		max = fmax(max, s);
	}
	max = reduce(max, true);
	nans = reduce(nans, false);
	if (max != -INFINITY)
		for (int64_t j = threadIdx.x; j < n_k; j += THREADS)
			sum += exp(score(j) - max);
	sum = reduce(sum, false);
	if (params.sinks && max != -INFINITY)
		sum += exp(params.sinks[h] - max);
	lse = nans > 0 ? NAN : max == -INFINITY ? -INFINITY : max + log(sum);

	const int64_t row =
		((params.cu_seqlens_q ? first_q : b * params.seqlen_q) + i) * params.heads + h;
	double out[(FA_ATTENTION_HEAD_DIM_V_MAX + THREADS - 1) / THREADS] = { 0 };
	for (int64_t tile = 0; tile < n_k; tile += THREADS) {
		double p = 0;

		if (tile + threadIdx.x < n_k && lse != -INFINITY)
			p = exp(score(tile + threadIdx.x) - lse);
		if (naive)
			p = round_to(params.dtype, p);
		__syncthreads();
		scratch[threadIdx.x] = p;
		__syncthreads();
		for (int c = 0; c * THREADS + threadIdx.x < params.head_dim_v; c++)
			for (int64_t j = tile; j < n_k && j < tile + THREADS; j++)
				if (visible(j))
					out[c] += scratch[j - tile] *
					          load(params.dtype, params.v.data,
					               v_at + j * params.v.stride_token +
					                       c * THREADS + threadIdx.x);
	}
	for (int c = 0; c * THREADS + threadIdx.x < params.head_dim_v; c++)
		ret_out[row * params.head_dim_v + c * THREADS + threadIdx.x] =
			naive ? round_to(params.dtype, out[c]) : out[c];
	if (threadIdx.x == 0)
		ret_lse[row] = lse;
}

/* Leaves NaN in the shared memory of the SMs that run it. */
extern "C" __global__ void fa_test_poison_shared(uint32_t bytes)
{
	extern __shared__ uint32_t words[];

	for (uint32_t i = threadIdx.x; i < bytes / 4; i += blockDim.x)
		((volatile uint32_t *)words)[i] = ~0u;
}

extern "C" __global__ void fa_test_compare(const uint32_t *a, const uint32_t *b, uint64_t count,
                                           uint32_t *ret_count)
{
	uint32_t n = 0;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
	     i += (uint64_t)gridDim.x * blockDim.x)
		n += a[i] != b[i];
	if (n)
		atomicAdd(ret_count, n);
}

/* Pitches are in words. */
extern "C" __global__ void fa_test_copy_rows(uint32_t *to, uint64_t to_pitch, const uint32_t *from,
                                             uint64_t from_pitch, uint64_t words)
{
	for (uint64_t i = threadIdx.x; i < words; i += blockDim.x)
		to[blockIdx.x * to_pitch + i] = from[blockIdx.x * from_pitch + i];
}

/* Keeps the device busy, so that later work runs back to back. */
extern "C" __global__ void fa_test_spin(uint64_t ns)
{
	uint64_t start, now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	while (now - start < ns);
}

/* Fills L2 by reading: no line is dirty. */
extern "C" __global__ void fa_test_read(const uint4 *data, uint64_t count, uint32_t *ret)
{
	uint32_t x = 0;

	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
	     i += (uint64_t)gridDim.x * blockDim.x) {
		const uint4 value = data[i];

		x ^= value.x ^ value.y ^ value.z ^ value.w;
	}
	if (x == 0x12345678)
		*ret = x;
}
