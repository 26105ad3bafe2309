/*
 * Times the kernels over pages, bf16, beside what bounds them, in one run. Every sample: L2
 * is flushed by reading, a spin kernel lets the host run ahead, then event, launches,
 * event; ours and the peer's samples take turns; the median counts.
 *   time-paged [--page N] [--samples N] [--heads N] [--kv-heads N] [--dim N] [--new N]
 *              [--only decode|prefill|append] [--json]
 *   decode   against a bare read of the same K and V
 *   prefill  of 8,192 tokens, causal, against the dense kernels: the portable one ("sm80")
 *            and the one that the chip gets ("dense")
 *   append   of 8,192 tokens to one layer, against a copy of as many bytes
 * Skips (77) without a GPU.
 */
#include "tests/gpu/paged-gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLES_MAX 1000
#define PIECE_BYTES 16384

static struct {
	int32_t page, heads, kv_heads, dim, n_new, samples;
	const char *only;
	bool json;
} options = { 64, 32, 8, 128, 1, 30, "", false };

static struct paged_gpu *gpu;
static bool first_result = true;

static uint64_t random_state = 88172645463325252ull;

static uint32_t below(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)((random_state >> 20) % n);
}

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void rest(double ns)
{
	const struct timespec time = { (time_t)(ns / 1e9), (long)fmod(ns, 1e9) };

	nanosleep(&time, NULL);
}

/* Medians of @n contestants, taking turns; the GPU rests four times as long as it works. */
static void measure(void (*const contestants[])(void *), int n, void *userdata, double *ret_ns)
{
	static double times[4][SAMPLES_MAX];

	for (int i = -2; i < options.samples; i++) {
		for (int c = 0; c < n; c++) {
			double ns;

			paged_gpu_flush(gpu);
			paged_gpu_spin(gpu, 100000);
			paged_gpu_time_start(gpu);
			contestants[c](userdata);
			ns = paged_gpu_time_stop_ns(gpu);
			if (i >= 0)
				times[c][i] = ns;
			rest(4 * (ns + 3e5));
		}
	}
	for (int c = 0; c < n; c++) {
		qsort(times[c], (size_t)options.samples, sizeof(double), compare);
		ret_ns[c] = times[c][options.samples / 2];
	}
}

static void say(const char *name, double value, const char *unit, const char *peer, double ratio)
{
	if (options.json)
		printf("%s\n{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"peer\": "
		       "\"%s\", "
		       "\"ratio\": %.4f}",
		       first_result ? "" : ",", name, value, unit, peer, ratio);
	else
		printf("%-44s %9.4g %-8s /%-6s %.3f\n", name, value, unit, peer, ratio);
	first_result = false;
	fflush(stdout);
}

/* ---- a cache and a step, all on the device */

struct scene {
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	struct fa_paged_request request;
	struct paged_gpu_plan plan;
	uint32_t *cu_new, *lengths, *before, *table, *table_start;
	uint64_t pool, device_table, q, k, v, out, lse, pieces, n_pieces;
	size_t q_bytes, kv_bytes;
	uint32_t piece_bytes;
	struct fa_cuda_chip chip80;
	struct fa_attention_params dense;
};

#define POINTER(address) ((void *)(uintptr_t)(address))

static uint64_t filled(size_t bytes)
{
	const uint64_t to = paged_gpu_alloc(gpu, bytes);

	if (to)
		paged_gpu_normal(gpu, to, bytes, below(1u << 30));
	return to;
}

/* False: not enough memory. Pages are shuffled all over the pool. */
static bool scene_init(struct scene *scene, int32_t batch, uint32_t length, uint32_t n_new)
{
	const size_t row = (size_t)options.dim * 2;
	const size_t k_bytes = (size_t)options.kv_heads * (size_t)options.page * row;
	const uint32_t pages = (length + (uint32_t)options.page - 1) / (uint32_t)options.page;
	const uint32_t all = pages * (uint32_t)batch, per_page = (uint32_t)(2 * k_bytes / 256);

	memset(scene, 0, sizeof(*scene));
	scene->cache = (struct fa_paged_cache){
		.dtype = FA_ATTENTION_BF16,
		.layers = 1,
		.kv_heads = options.kv_heads,
		.head_dim = options.dim,
		.head_dim_v = options.dim,
		.page_tokens = options.page,
		.v_offset = (int64_t)k_bytes,
	};
	scene->pool = filled((size_t)all * 2 * k_bytes);
	if (!scene->pool)
		return false;
	scene->cache.pool = POINTER(scene->pool);
	scene->cu_new = calloc((size_t)batch + 1, 4);
	scene->lengths = calloc((size_t)batch, 4);
	scene->before = calloc((size_t)batch, 4);
	scene->table_start = calloc((size_t)batch, 4);
	scene->table = calloc(all, 4);
	for (uint32_t i = 0; i < all; i++)
		scene->table[i] = i * per_page;
	for (uint32_t i = all - 1; i > 0; i--) {
		const uint32_t j = below(i + 1), slot = scene->table[i];

		scene->table[i] = scene->table[j];
		scene->table[j] = slot;
	}
	for (int32_t b = 0; b < batch; b++) {
		scene->cu_new[b + 1] = scene->cu_new[b] + n_new;
		scene->lengths[b] = length;
		scene->before[b] = length - n_new;
		scene->table_start[b] = (uint32_t)b * pages;
	}
	scene->device_table = paged_gpu_alloc(gpu, (size_t)all * 4);
	paged_gpu_upload(gpu, scene->device_table, scene->table, (size_t)all * 4);
	scene->step = (struct fa_paged_step){
		.batch = batch,
		.cu_new = scene->cu_new,
		.lengths = scene->lengths,
		.lengths_before = scene->before,
		.table = POINTER(scene->device_table),
		.table_start = scene->table_start,
		.table_entries = all,
	};
	scene->q_bytes = (size_t)batch * n_new * (size_t)options.heads * row;
	scene->kv_bytes = (size_t)batch * n_new * (size_t)options.kv_heads * row;
	scene->q = filled(scene->q_bytes);
	scene->k = filled(scene->kv_bytes);
	scene->v = filled(scene->kv_bytes);
	scene->out = paged_gpu_alloc(gpu, scene->q_bytes);
	scene->lse = paged_gpu_alloc(gpu, scene->q_bytes);
	return true;
}

static struct fa_attention_tensor tensor(uint64_t data, int32_t heads)
{
	return (struct fa_attention_tensor){ POINTER(data), 0, heads * options.dim, options.dim };
}

static void scene_attend(struct scene *scene)
{
	scene->request.op = FA_PAGED_ATTEND;
	scene->request.attention = (struct fa_paged_attention){
		.cache = &scene->cache,
		.step = &scene->step,
		.heads = options.heads,
		.q = tensor(scene->q, options.heads),
		.out = tensor(scene->out, options.heads),
		.lse = POINTER(scene->lse),
		.lse_stride_token = options.heads,
		.lse_stride_head = 1,
		.scale = 1 / sqrtf((float)options.dim),
		.causal = true,
		.window_left = -1,
		.window_right = -1,
	};
	if (paged_gpu_plan(gpu, paged_gpu_chip(gpu), &scene->request, &scene->plan) < 0)
		exit(1);
}

static void scene_deinit(struct scene *scene)
{
	paged_gpu_sync(gpu);
	paged_gpu_plan_free(gpu, &scene->plan);
	paged_gpu_free(gpu, scene->pool);
	paged_gpu_free(gpu, scene->device_table);
	paged_gpu_free(gpu, scene->q);
	paged_gpu_free(gpu, scene->k);
	paged_gpu_free(gpu, scene->v);
	paged_gpu_free(gpu, scene->out);
	paged_gpu_free(gpu, scene->lse);
	paged_gpu_free(gpu, scene->pieces);
	free(scene->cu_new);
	free(scene->lengths);
	free(scene->before);
	free(scene->table_start);
	free(scene->table);
}

static void run_ours(void *userdata)
{
	struct scene *scene = userdata;

	paged_gpu_launch(gpu, &scene->plan, &scene->request);
}

/* ---- decode */

static void run_bare(void *userdata)
{
	const struct scene *scene = userdata;

	paged_gpu_bare(gpu, scene->pieces, scene->n_pieces, scene->piece_bytes);
}

static void decode(int32_t batch, uint32_t length)
{
	void (*const contestants[])(void *) = { run_ours, run_bare };
	struct scene scene;
	double ns[2], bytes;
	uint64_t *pieces;
	char name[128];

	if (!scene_init(&scene, batch, length, (uint32_t)options.n_new)) {
		printf("%d x %u does not fit this GPU\n", batch, length);
		return;
	}
	scene_attend(&scene);
	/* Whole pages, in the order in which sequences have them. */
	bytes = 2.0 * batch * length * options.kv_heads * options.dim * 2;
	scene.piece_bytes = PIECE_BYTES;
	if (2 * scene.cache.v_offset < PIECE_BYTES)
		scene.piece_bytes = (uint32_t)(2 * scene.cache.v_offset);
	scene.n_pieces = (uint64_t)bytes / scene.piece_bytes;
	pieces = malloc(scene.n_pieces * sizeof(*pieces));
	for (uint64_t i = 0; i < scene.n_pieces; i++) {
		const uint64_t page_bytes = 2 * (uint64_t)scene.cache.v_offset;
		const uint64_t at = i * scene.piece_bytes;

		pieces[i] = scene.pool + (uint64_t)scene.table[at / page_bytes] * 256 +
		            at % page_bytes;
	}
	scene.pieces = paged_gpu_alloc(gpu, scene.n_pieces * sizeof(*pieces));
	paged_gpu_upload(gpu, scene.pieces, pieces, scene.n_pieces * sizeof(*pieces));
	free(pieces);
	measure(contestants, 2, &scene, ns);
	snprintf(name, sizeof(name), "decode/bf16/b%d-c%u-h%d.%d-d%d-p%d-q%d/us", batch, length,
	         options.heads, options.kv_heads, options.dim, options.page, options.n_new);
	say(name, ns[0] / 1e3, "us", "bare", ns[1] / ns[0]);
	snprintf(name, sizeof(name), "decode/bf16/b%d-c%u-h%d.%d-d%d-p%d-q%d/rate", batch, length,
	         options.heads, options.kv_heads, options.dim, options.page, options.n_new);
	say(name, bytes / ns[0], "GB/s", "bare", ns[1] / ns[0]);
	scene_deinit(&scene);
}

/* ---- prefill */

static void run_dense(void *userdata)
{
	const struct scene *scene = userdata;

	if (paged_gpu_dense(gpu, paged_gpu_chip(gpu), &scene->dense) < 0)
		exit(1);
}

static void run_dense_80(void *userdata)
{
	const struct scene *scene = userdata;

	if (paged_gpu_dense(gpu, &scene->chip80, &scene->dense) < 0)
		exit(1);
}

static void prefill(int32_t batch, uint32_t length)
{
	void (*const contestants[])(void *) = { run_ours, run_dense_80, run_dense };
	const double pairs = 0.5 * length * (length + 1.0) * batch * options.heads;
	struct scene scene;
	double ns[3];
	char name[128];

	if (!scene_init(&scene, batch, length, length))
		return;
	scene_attend(&scene);
	scene.chip80 = *paged_gpu_chip(gpu);
	scene.chip80.arch = 80;
	scene.dense = (struct fa_attention_params){
		.dtype = FA_ATTENTION_BF16,
		.batch = batch,
		.heads = options.heads,
		.kv_heads = options.kv_heads,
		.head_dim = options.dim,
		.head_dim_v = options.dim,
		.seqlen_q = length,
		.seqlen_k = length,
		.q = tensor(scene.q, options.heads),
		.k = tensor(scene.k, options.kv_heads),
		.v = tensor(scene.v, options.kv_heads),
		.out = tensor(scene.out, options.heads),
		.lse = POINTER(scene.lse),
		.lse_stride_batch = (int64_t)length * options.heads,
		.lse_stride_token = options.heads,
		.lse_stride_head = 1,
		.scale = 1 / sqrtf((float)options.dim),
		.causal = true,
		.window_left = -1,
		.window_right = -1,
	};
	scene.dense.q.stride_batch = scene.dense.out.stride_batch = (int64_t)length *
	                                                            options.heads * options.dim;
	scene.dense.k.stride_batch = scene.dense.v.stride_batch = (int64_t)length *
	                                                          options.kv_heads * options.dim;
	measure(contestants, 3, &scene, ns);
	snprintf(name, sizeof(name), "prefill/bf16/b%d-s%u-h%d.%d-d%d-p%d/causal", batch, length,
	         options.heads, options.kv_heads, options.dim, options.page);
	say(name, 4 * pairs * options.dim / ns[0] / 1e3, "TFLOP/s", "sm80", ns[1] / ns[0]);
	say(name, 4 * pairs * options.dim / ns[0] / 1e3, "TFLOP/s", "dense", ns[2] / ns[0]);
	scene_deinit(&scene);
}

/* ---- append */

static void run_copy(void *userdata)
{
	const struct scene *scene = userdata;

	/* As many bytes read and written as K and V have. */
	paged_gpu_copy(gpu, scene->pool, scene->q, 2 * scene->kv_bytes);
}

static void append(const char *variant, int32_t rotary_dim, bool with_q)
{
	void (*const contestants[])(void *) = { run_ours, run_copy };
	struct scene scene;
	double ns[2];
	char name[128];

	if (!scene_init(&scene, 1, 8192, 8192))
		return;
	scene.request.op = FA_PAGED_APPEND;
	scene.request.append = (struct fa_paged_append){
		.cache = &scene.cache,
		.step = &scene.step,
		.k = tensor(scene.k, options.kv_heads),
		.v = tensor(scene.v, options.kv_heads),
		.heads = with_q ? options.heads : 0,
		.q = tensor(scene.q, options.heads),
		.q_out = tensor(scene.out, options.heads),
		.rotary = { .dim = rotary_dim, .base = 10000, .scale = 1 },
	};
	if (paged_gpu_plan(gpu, paged_gpu_chip(gpu), &scene.request, &scene.plan) < 0)
		exit(1);
	measure(contestants, 2, &scene, ns);
	if (with_q)
		ns[1] *= (double)(2 * scene.kv_bytes + scene.q_bytes) /
		         (double)(2 * scene.kv_bytes);
	snprintf(name, sizeof(name), "append/bf16/t8192-h%d.%d-d%d-p%d/%s", options.heads,
	         options.kv_heads, options.dim, options.page, variant);
	say(name, ns[0] / 1e3, "us", "copy", ns[1] / ns[0]);
	scene_deinit(&scene);
}

int main(int argc, char **argv)
{
	static const struct {
		int32_t batch;
		uint32_t length;
	} cells[] = {
		{ 1, 1024 },  { 1, 16384 }, { 1, 131072 }, { 8, 1024 },   { 8, 4096 },
		{ 32, 1024 }, { 32, 4096 }, { 32, 16384 }, { 128, 4096 }, { 128, 16384 },
	};

	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : "0";

		if (!strcmp(argv[i], "--json")) {
			options.json = true;
			continue;
		}
		if (!strcmp(argv[i], "--page"))
			options.page = atoi(value);
		else if (!strcmp(argv[i], "--samples"))
			options.samples = atoi(value);
		else if (!strcmp(argv[i], "--heads"))
			options.heads = atoi(value);
		else if (!strcmp(argv[i], "--kv-heads"))
			options.kv_heads = atoi(value);
		else if (!strcmp(argv[i], "--dim"))
			options.dim = atoi(value);
		else if (!strcmp(argv[i], "--new"))
			options.n_new = atoi(value);
		else if (!strcmp(argv[i], "--only"))
			options.only = value;
		else {
			fprintf(stderr, "unknown option %s\n", argv[i]);
			return 2;
		}
		i++;
	}
	if (options.samples < 1 || options.samples > SAMPLES_MAX)
		options.samples = 30;
	gpu = paged_gpu_open();
	if (!gpu)
		return 77;
	if (options.json)
		printf("{\"device\": \"%s\", \"results\": [", paged_gpu_name(gpu));
	for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
		if (!options.only[0] || !strcmp(options.only, "decode"))
			decode(cells[i].batch, cells[i].length);
	if (!options.only[0] || !strcmp(options.only, "prefill")) {
		prefill(1, 8192);
		prefill(2, 8192);
		prefill(8, 1024);
	}
	if (!options.only[0] || !strcmp(options.only, "append")) {
		append("plain", 0, false);
		append("rotary", options.dim, false);
		append("rotary-q", options.dim, true);
	}
	if (options.json)
		printf("\n]}\n");
	paged_gpu_close(gpu);
	return 0;
}
