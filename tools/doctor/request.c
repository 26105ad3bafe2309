/*
 * A real request: causal attention of a few tokens, over buffers and over a KV cache, compared with
 * double precision. Inputs are multiples of 1/8 from -1 to 1, exact in every dtype.
 */
#include "tools/doctor/checks.h"
#include "tools/format.h"

#include "common/clock.h"

#include <math.h>
#include <string.h>

enum {
	TOKENS = 80,
	HEADS = 2,
	DIM = 64,
	N = TOKENS * HEADS * DIM,
};

struct problem {
	struct fa_client *client;
	struct fa_buffer *buffer;
	uint32_t dtype;
	double tolerance;
	double q[N], k[N], v[N], out[N]; /* [token][head][dim] */
};

static void fill(double numbers[N], uint32_t seed)
{
	for (int i = 0; i < N; ++i) {
		seed = seed * 1664525u + 1013904223u;
		numbers[i] = (double)((int)(seed >> 28) - 8) / 8;
	}
}

static const double *row(const double numbers[N], int token, int head)
{
	return &numbers[(token * HEADS + head) * DIM];
}

static double dot(const double *a, const double *b)
{
	double sum = 0;

	for (int d = 0; d < DIM; ++d)
		sum += a[d] * b[d];
	return sum;
}

static void solve(struct problem *problem)
{
	double weights[TOKENS];

	for (int token = 0; token < TOKENS; ++token)
		for (int head = 0; head < HEADS; ++head) {
			double *out = &problem->out[(token * HEADS + head) * DIM];
			double sum = 0;

			memset(out, 0, DIM * sizeof(*out));
			for (int key = 0; key <= token; ++key) {
				weights[key] = exp(dot(row(problem->q, token, head),
				                       row(problem->k, key, head)) /
				                   sqrt(DIM));
				sum += weights[key];
			}
			for (int key = 0; key <= token; ++key)
				for (int d = 0; d < DIM; ++d)
					out[d] += weights[key] / sum *
					          row(problem->v, key, head)[d];
		}
}

/* bfloat16 is the upper half of a float. */
static void store(const struct problem *problem, int tensor, const double numbers[N])
{
	char *data = (char *)fa_buffer_data(problem->buffer) +
	             (size_t)tensor * N * fa_dtype_bytes(problem->dtype);

	for (int i = 0; i < N; ++i) {
		float value = (float)numbers[i];
		uint32_t bits;
		uint16_t half;

		memcpy(&bits, &value, sizeof(bits));
		half = (uint16_t)(bits >> 16);
		if (problem->dtype == FA_F32)
			memcpy(data + 4 * i, &value, sizeof(value));
		else
			memcpy(data + 2 * i, &half, sizeof(half));
	}
}

/* The largest error; infinity: there is a NaN. */
static double worst(const struct problem *problem)
{
	const char *data = (const char *)fa_buffer_data(problem->buffer) +
	                   (size_t)3 * N * fa_dtype_bytes(problem->dtype);
	double most = 0;

	for (int i = 0; i < N; ++i) {
		uint32_t bits = 0;
		float value;

		if (problem->dtype == FA_F32)
			memcpy(&bits, data + 4 * i, 4);
		else
			memcpy((char *)&bits + 2, data + 2 * i, 2);
		memcpy(&value, &bits, sizeof(value));
		if (!isfinite(value))
			return INFINITY;
		most = fmax(most, fabs((double)value - problem->out[i]));
	}
	return most;
}

static void set_tensors(const struct problem *problem, uint32_t rank, const int64_t *shape,
                        struct fa_tensor *const tensors[4])
{
	for (int i = 0; i < 4; ++i)
		fa_tensor_init(tensors[i], problem->buffer,
		               (uint64_t)i * N * fa_dtype_bytes(problem->dtype), problem->dtype,
		               rank, shape);
}

/* An old result must not pass for a new one. */
static void clear(const struct problem *problem)
{
	const size_t bytes = (size_t)N * fa_dtype_bytes(problem->dtype);

	memset((char *)fa_buffer_data(problem->buffer) + 3 * bytes, 0, bytes);
}

static int attend(const struct problem *problem, uint64_t *ret_ns)
{
	static const int64_t shape[] = { 1, TOKENS, HEADS, DIM };
	struct fa_attention attention = { .size = sizeof(attention), .flags = FA_ATTENTION_CAUSAL };
	uint64_t begin_ns;
	int r;

	set_tensors(
		problem, 4, shape,
		(struct fa_tensor *[]){ &attention.q, &attention.k, &attention.v, &attention.out });
	clear(problem);
	begin_ns = fa_now_ns();
	r = fa_attention(problem->client, &attention, NULL);
	*ret_ns = fa_now_ns() - begin_ns;
	return r;
}

static int step(const struct problem *problem, uint64_t sequence)
{
	static const int64_t shape[] = { TOKENS, HEADS, DIM };
	const struct fa_step_item item = { .sequence = sequence, .n_new = TOKENS };
	struct fa_step_options options = { .size = sizeof(options), .n_items = 1, .items = &item };
	struct fa_step_attend attend_ = { .size = sizeof(attend_), .flags = FA_STEP_CAUSAL };
	struct fa_step *one;
	int r;

	set_tensors(
		problem, 3, shape,
		(struct fa_tensor *[]){ &attend_.q, &attend_.k_new, &attend_.v_new, &attend_.out });
	clear(problem);
	r = fa_step_begin(problem->client, &options, &one);
	if (r < 0)
		return r;
	r = fa_step_attend(one, &attend_, NULL);
	if (r == 0)
		r = fa_step_commit(one, NULL, NULL);
	fa_step_free(one);
	return r;
}

static int attend_cached(const struct problem *problem, uint64_t *ret_ns)
{
	const struct fa_cache_options options = { .size = sizeof(options),
		                                  .dtype = problem->dtype,
		                                  .layers = 1,
		                                  .kv_heads = HEADS,
		                                  .head_dim = DIM };
	uint64_t cache, sequence, begin_ns = fa_now_ns();
	int r;

	r = fa_cache_create(problem->client, &options, &cache);
	if (r < 0)
		return r;
	r = fa_sequence_create(problem->client, cache, &sequence);
	if (r == 0)
		r = step(problem, sequence);
	*ret_ns = fa_now_ns() - begin_ns;
	/* fa_error() keeps the first sentence. */
	if (r == 0)
		(void)fa_cache_remove(problem->client, cache);
	return r;
}

static void report_result(struct fa_report *report, const char *check,
                          const struct problem *problem, int r, uint64_t ns)
{
	const double error = r < 0 ? 0 : worst(problem);
	char text[FA_FORMAT_BYTES];

	if (r < 0)
		fa_report_add(report, FA_REPORT_FAULT, check,
		              "The sentence says what is missing; see also journalctl -u fad.",
		              "a request fails: %s", fa_error());
	else if (error > problem->tolerance)
		fa_report_add(
			report, FA_REPORT_FAULT, check,
			"Do not trust results. Please report it with the output of factl dump.",
			"wrong numbers: off by %.2g, expected at most %.2g", error,
			problem->tolerance);
	else
		fa_report_ok(report, check, "%d tokens in %s, off by %.1g", TOKENS,
		             fa_format_duration((long long)ns, text), error);
}

void fa_doctor_request(struct fa_report *report, struct fa_client *client, const json_t *status)
{
	const char *backend = json_string_value(json_object_get(status, "backend"));
	const bool on_cpu = backend && strcmp(backend, "cpu") == 0;
	static struct problem problem;
	uint64_t ns = 0;
	int r;

	problem.client = client;
	problem.dtype = on_cpu ? FA_F32 : FA_BF16;
	problem.tolerance = on_cpu ? 1e-4 : 1e-2;
	fill(problem.q, 1);
	fill(problem.k, 2);
	fill(problem.v, 3);
	solve(&problem);
	r = fa_buffer_new(client, (uint64_t)4 * N * fa_dtype_bytes(problem.dtype), 0,
	                  &problem.buffer);
	if (r < 0) {
		report_result(report, "attention", &problem, r, 0);
		return;
	}
	store(&problem, 0, problem.q);
	store(&problem, 1, problem.k);
	store(&problem, 2, problem.v);
	r = attend(&problem, &ns);
	report_result(report, "attention", &problem, r, ns);
	if (json_is_object(json_object_get(status, "pool"))) {
		r = attend_cached(&problem, &ns);
		report_result(report, "KV cache", &problem, r, ns);
	}
	(void)fa_buffer_free(problem.buffer);
}
