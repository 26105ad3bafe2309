/*
 * Times ggml's attention (ggml_flash_attn_ext, sums in fp32) of a backend, for the cases of
 * bench/kernels/time-vulkan.c. A program of its own, which fad's build leaves out:
 *
 *   cc -O2 bench/peers/ggml-attention.c -o ggml-attention -lggml -lggml-base -lm
 *   ./ggml-attention .../ggml/backends0/libggml-vulkan.so [FILTER]
 *
 * with libggml-dev and libggml0-backend-vulkan of Debian's forky. GGML_VK_DISABLE_COOPMAT2=1 and
 * GGML_VK_DISABLE_COOPMAT=1 leave kernels out. Rates count visible pairs of a query and a key, though
 * ggml computes hidden ones where a mask hides them.
 */
#include <ggml-backend.h>
#include <ggml.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPS 8
#define WARM_S 0.5
#define HEADS 32
#define KV_HEADS 8

struct shape {
	enum ggml_type type;
	int64_t batch, dim, n_q, n_k;
	bool causal;
};

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static float uniform(void)
{
	static uint32_t state = 12345;

	state = state * 1664525 + 1013904223;
	return ((float)(state >> 8) * 0x1p-24f - 0.5f) * 3.4f;
}

/* Fills a tensor, whose numbers repeat at an odd distance; returns them as floats. */
static float *fill(struct ggml_tensor *tensor)
{
	const int64_t n = ggml_nelements(tensor);
	float *numbers = malloc((size_t)n * sizeof(float));
	void *bytes = malloc(ggml_nbytes(tensor));

	if (!numbers || !bytes)
		abort();
	for (int64_t i = 0; i < n; i++)
		numbers[i] = i < 1000003 ? uniform() : numbers[i - 1000003];
	if (tensor->type == GGML_TYPE_F32)
		memcpy(bytes, numbers, (size_t)n * sizeof(float));
	else if (tensor->type == GGML_TYPE_F16)
		ggml_fp32_to_fp16_row(numbers, bytes, n);
	else
		ggml_fp32_to_bf16_row(numbers, bytes, n);
	ggml_backend_tensor_set(tensor, bytes, 0, ggml_nbytes(tensor));
	free(bytes);
	return numbers;
}

static void fill_mask(struct ggml_tensor *mask, const struct shape *s)
{
	ggml_fp16_t *bits = calloc((size_t)ggml_nelements(mask), sizeof(*bits));

	if (!bits)
		abort();
	for (int64_t i = 0; i < mask->ne[1]; i++)
		for (int64_t j = s->n_k - s->n_q + i + 1; j < s->n_k; j++)
			bits[i * s->n_k + j] = 0xfc00; /* minus infinity */
	ggml_backend_tensor_set(mask, bits, 0, ggml_nbytes(mask));
	free(bits);
}

/* Returns the error of row @i of head @h of the first sequence, relative to its largest element. */
static double row_error(const struct shape *s, const float *q, const float *k, const float *v,
                        const struct ggml_tensor *out, int64_t i, int64_t h)
{
	const int64_t n = s->causal ? s->n_k - s->n_q + i + 1 : s->n_k, kv = h / (HEADS / KV_HEADS);
	double most = -INFINITY, sum = 0, worst = 0, highest = 0;
	double *score = calloc((size_t)n, sizeof(double)), exact[256] = { 0 };
	float got[256];

	for (int64_t j = 0; j < n; j++) {
		for (int64_t c = 0; c < s->dim; c++)
			score[j] += (double)q[(h * s->n_q + i) * s->dim + c] *
			            k[(kv * s->n_k + j) * s->dim + c];
		score[j] /= sqrt((double)s->dim);
		most = fmax(most, score[j]);
	}
	for (int64_t j = 0; j < n; j++) {
		sum += exp(score[j] - most);
		for (int64_t c = 0; c < s->dim; c++)
			exact[c] += exp(score[j] - most) * v[(kv * s->n_k + j) * s->dim + c];
	}
	/* The result is [dim, heads, tokens, batch]. */
	ggml_backend_tensor_get(out, got, (size_t)((i * HEADS + h) * s->dim) * sizeof(float),
	                        (size_t)s->dim * sizeof(float));
	for (int64_t c = 0; c < s->dim; c++) {
		highest = fmax(highest, fabs(exact[c] / sum));
		worst = fmax(worst, fabs(exact[c] / sum - got[c]));
	}
	free(score);
	return worst / highest;
}

static void run(ggml_backend_t backend, const struct shape *s, const char *name)
{
	const struct ggml_init_params room = {
		.mem_size = ggml_tensor_overhead() * (16 + REPS) + ggml_graph_overhead(),
		.no_alloc = true,
	};
	struct ggml_context *context = ggml_init(room);
	struct ggml_tensor *q, *k, *v, *mask = NULL, *out[REPS];
	struct ggml_cgraph *graph = ggml_new_graph(context);
	const double pairs = s->causal ? (double)s->n_q * (double)(s->n_q + 1) / 2
	                               : (double)s->n_q * (double)s->n_k;
	float *q_numbers, *k_numbers, *v_numbers;
	ggml_backend_buffer_t buffer;
	double start, seconds, worst = 0;

	q = ggml_new_tensor_4d(context, GGML_TYPE_F32, s->dim, s->n_q, HEADS, s->batch);
	k = ggml_new_tensor_4d(context, s->type, s->dim, s->n_k, KV_HEADS, s->batch);
	v = ggml_new_tensor_4d(context, s->type, s->dim, s->n_k, KV_HEADS, s->batch);
	if (s->causal)
		mask = ggml_new_tensor_4d(context, GGML_TYPE_F16, s->n_k, (s->n_q + 63) / 64 * 64,
		                          1, 1);
	for (int i = 0; i < REPS; i++) {
		out[i] = ggml_flash_attn_ext(context, q, k, v, mask, 1 / sqrtf((float)s->dim), 0,
		                             0);
		(void)ggml_prec_set_acc(out[i], GGML_PREC_F32);
		ggml_build_forward_expand(graph, out[i]);
	}
	if (!ggml_backend_supports_op(backend, out[0])) {
		printf("%-28s not supported\n", name);
		ggml_free(context);
		return;
	}
	buffer = ggml_backend_alloc_ctx_tensors(context, backend);
	if (!buffer) {
		printf("%-28s no memory\n", name);
		ggml_free(context);
		return;
	}
	q_numbers = fill(q);
	k_numbers = fill(k);
	v_numbers = fill(v);
	if (mask)
		fill_mask(mask, s);
	/* An idle GPU's clocks are low. */
	start = now_s();
	do
		(void)ggml_backend_graph_compute(backend, graph);
	while (now_s() < start + WARM_S);
	start = now_s();
	(void)ggml_backend_graph_compute(backend, graph);
	seconds = (now_s() - start) / REPS;
	for (int i = 0; i < 3; i++)
		worst = fmax(worst, row_error(s, q_numbers, k_numbers, v_numbers, out[REPS - 1],
		                              i * (s->n_q - 1) / 2, i * 15));
	printf("%-28s %8.2f TFLOP/s %10.1f us  error %.1e\n", name,
	       4 * pairs * (double)(s->dim * HEADS * s->batch) / seconds * 1e-12, seconds * 1e6,
	       worst);
	(void)fflush(stdout);
	free(q_numbers);
	free(k_numbers);
	free(v_numbers);
	ggml_backend_buffer_free(buffer);
	ggml_free(context);
}

int main(int argc, char **argv)
{
	static const int64_t lengths[] = { 512, 2048, 4096, 16384 };
	const char *filter = argc > 2 ? argv[2] : "";
	ggml_backend_dev_t device;
	ggml_backend_reg_t library;
	ggml_backend_t backend;

	if (argc < 2) {
		fprintf(stderr, "usage: ggml-attention LIBRARY [FILTER]\n");
		return 2;
	}
	library = ggml_backend_load(argv[1]);
	if (!library || ggml_backend_reg_dev_count(library) == 0) {
		fprintf(stderr, "ggml-attention: no device of %s\n", argv[1]);
		return 77;
	}
	device = ggml_backend_reg_dev_get(library, 0);
	backend = ggml_backend_dev_init(device, NULL);
	if (!backend)
		return 77;
	printf("%s\n", ggml_backend_dev_description(device));
	for (int type = 0; type < 2; type++) {
		for (int64_t dim = 64; dim <= 128; dim += 64) {
			for (int i = 0; i < 9; i++) {
				const struct shape s = {
					.type = type ? GGML_TYPE_BF16 : GGML_TYPE_F16,
					.batch = i == 8 ? 32 : 1,
					.dim = dim,
					.n_q = i == 8 ? 1 : lengths[i / 2],
					.n_k = i == 8 ? 4096 : lengths[i / 2],
					.causal = i % 2,
				};
				char name[64];

				snprintf(name, sizeof(name), "%s d%" PRId64 " %s %" PRId64,
				         type ? "bf16" : "fp16", dim,
				         i == 8     ? "decode 32 x"
				         : s.causal ? "causal"
				                    : "full",
				         s.n_k);
				if (strstr(name, filter))
					run(backend, &s, name);
			}
		}
	}
	ggml_backend_free(backend);
	return 0;
}
