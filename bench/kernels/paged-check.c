/* Checks results, as wrong ones are not measured. */
#include "bench/kernels/paged-scene.h"
#include "bench/kernels/peer.h"
#include "tests/kernels/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The number of heads that are checked per sequence. */
#define CHECKED_HEADS 4
/* The largest allowed error, relative to a row's greatest value. */
#define ERROR_MAX (1.0 / 64)

static void *allocate(size_t bytes)
{
	void *memory = malloc(bytes);

	if (!memory)
		abort();
	return memory;
}

static void fetch_page(const struct time_scene *scene, uint64_t at, int32_t head, uint32_t n,
                       const float *head_scales, double *to)
{
	const struct fa_paged_cache *cache = &scene->cache;
	const size_t dim = (size_t)cache->head_dim, page = (size_t)cache->page_tokens;
	const bool codes = cache->store != FA_PAGED_PLAIN;
	const size_t row = codes ? dim : 2 * dim, first = (size_t)head * page;
	char *rows = allocate(page * row);
	float scales[FA_PAGED_PAGE_TOKENS_MAX];

	paged_gpu_download(time_gpu, rows, at + first * row, n * row);
	if (codes && !head_scales)
		paged_gpu_download(time_gpu, scales,
		                   at + (size_t)cache->kv_heads * page * dim + first * 4, n * 4);
	for (uint32_t t = 0; t < n; t++)
		for (size_t c = 0; c < dim; c++)
			to[t * dim + c] = codes ? reference_code_value(cache->store,
			                                               (uint8_t)rows[t * row + c]) *
			                                  (double)(head_scales ? head_scales[head]
			                                                       : scales[t])
			                        : reference_get(cache->dtype, rows,
			                                        (int64_t)(t * dim + c));
	free(rows);
}

static void fetch(const struct time_run *run, int32_t b, int32_t head, double *k, double *v)
{
	const struct time_scene *scene = run->scene;
	const struct fa_paged_cache *cache = &scene->cache;
	const uint32_t page = (uint32_t)cache->page_tokens, length = scene->lengths[b];

	for (uint32_t t = 0; t < length; t += page) {
		const uint32_t n = length - t < page ? length - t : page;
		const size_t to = (size_t)t * (size_t)cache->head_dim;
		const uint64_t at =
			scene->pool +
			(uint64_t)run->step.host_table[scene->table_start[b] + t / page] *
				FA_PAGED_SLOT_BYTES;

		fetch_page(scene, at, head, n, cache->k_scales, k + to);
		fetch_page(scene, at + (uint64_t)cache->v_offset, head, n, cache->v_scales, v + to);
	}
}

/* Computes attention of one row of q over @n tokens. */
static void attend(const struct time_run *run, const double *q, const double *k, const double *v,
                   uint32_t n, double *weights, double *ret_out)
{
	const int32_t dim = run->scene->cache.head_dim;
	double highest = -INFINITY, sum = 0;

	for (uint32_t j = 0; j < n; j++) {
		weights[j] = 0;
		for (int32_t c = 0; c < dim; c++)
			weights[j] += q[c] * k[(size_t)j * (size_t)dim + (size_t)c];
		weights[j] *= (double)run->request.attention.scale;
		highest = fmax(highest, weights[j]);
	}
	for (int32_t c = 0; c < dim; c++)
		ret_out[c] = 0;
	for (uint32_t j = 0; j < n; j++) {
		const double weight = exp(weights[j] - highest);

		sum += weight;
		for (int32_t c = 0; c < dim; c++)
			ret_out[c] += weight * v[(size_t)j * (size_t)dim + (size_t)c];
	}
	for (int32_t c = 0; c < dim; c++)
		ret_out[c] /= sum;
}

/* Returns the error of a sequence's head, relative to the row's greatest value. */
static double head_error(const struct time_run *run, const void *q, const void *out, int32_t b,
                         int32_t head)
{
	const struct time_scene *scene = run->scene;
	const int32_t dim = scene->cache.head_dim, heads = run->request.attention.heads;
	const uint32_t length = scene->lengths[b], n_new = scene->cu_new[b + 1] - scene->cu_new[b];
	double *k = allocate(((size_t)length * 2 + 2) * (size_t)dim * sizeof(*k));
	double *v = k + (size_t)length * (size_t)dim, *row = v + (size_t)length * (size_t)dim;
	double *weights = allocate(length * sizeof(*weights)), *expected = row + dim, worst = 0;

	fetch(run, b, head / (heads / scene->cache.kv_heads), k, v);
	for (uint32_t i = 0; i < n_new; i++) {
		const int64_t at = ((int64_t)(scene->cu_new[b] + i) * heads + head) * dim;
		double greatest = 0, difference = 0;

		for (int32_t c = 0; c < dim; c++)
			row[c] = reference_get(FA_ATTENTION_BF16, q, at + c);
		attend(run, row, k, v, length - n_new + i + 1, weights, expected);
		for (int32_t c = 0; c < dim; c++) {
			const double got = reference_get(FA_ATTENTION_BF16, out, at + c);

			greatest = fmax(greatest, fabs(expected[c]));
			/* fmax() would ignore NaN. */
			difference = isnan(got) ? INFINITY
			                        : fmax(difference, fabs(got - expected[c]));
		}
		worst = fmax(worst, greatest > 0 ? difference / greatest : INFINITY);
	}
	free(k);
	free(weights);
	return worst;
}

/* Fills the output with NaN, runs, and returns the output. */
static void *run_poisoned(struct time_run *run)
{
	void *out = allocate(run->scene->q_bytes);

	paged_gpu_fill(time_gpu, run->out, 0xff, run->scene->q_bytes);
	time_run(run);
	paged_gpu_sync(time_gpu);
	paged_gpu_download(time_gpu, out, run->out, run->scene->q_bytes);
	return out;
}

bool time_check(struct time_run *run, const char *name)
{
	const struct time_scene *scene = run->scene;
	double worst = 0;
	void *q, *out;

	if (time_options.profile)
		return true;
	q = allocate(scene->q_bytes);
	out = run_poisoned(run);
	paged_gpu_download(time_gpu, q, scene->q, scene->q_bytes);
	for (int i = 0; i < CHECKED_HEADS; i++) {
		const uint32_t heads = (uint32_t)run->request.attention.heads;
		const uint32_t batch = (uint32_t)scene->step.batch;
		const uint32_t b = i == 0 ? 0 : i == 1 ? batch - 1 : time_random_below(batch);

		worst = fmax(worst, head_error(run, q, out, (int32_t)b,
		                               (int32_t)time_random_below(heads)));
	}
	free(q);
	free(out);
	if (worst <= ERROR_MAX)
		return true;
	fprintf(stderr, "%s: %.3g of a row's greatest value is wrong\n", name, worst);
	time_failed = true;
	return false;
}

bool time_compare(struct time_run *ours, struct time_run *theirs, const char *name)
{
	uint16_t *a, *b;
	double worst = 0;
	bool agrees;

	if (time_options.profile)
		return true;
	a = run_poisoned(ours);
	b = run_poisoned(theirs);
	agrees = fa_peer_agrees(a, b, ours->scene->q_bytes / 2, &worst);
	free(a);
	free(b);
	if (agrees)
		return true;
	fprintf(stderr, "%s: the two differ by %.3g of the greatest value\n", name, worst);
	time_failed = true;
	return false;
}
