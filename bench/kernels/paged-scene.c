#include "bench/kernels/paged-scene.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PIECE_BYTES 16384
/* Only this many pages of codes differ; the others are copies. */
#define DIFFERENT_PAGES 64
#define HEADS_MAX 1024

struct time_options time_options = { .page = 64,
	                             .heads = 32,
	                             .kv_heads = 8,
	                             .dim = 128,
	                             .n_new = 1,
	                             .samples = 30,
	                             .only = "",
	                             .shapes = "*",
	                             .type = "bf16" };
struct paged_gpu *time_gpu;
bool time_failed;

static float k_head_scales[HEADS_MAX], v_head_scales[HEADS_MAX];

/* ---- numbers and names */

uint32_t time_random_below(uint32_t n)
{
	static uint64_t state = 88172645463325252ull;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)((state >> 20) % n);
}

bool time_set_store(const char *name)
{
	static const struct {
		const char *name, *type;
		enum fa_paged_store store;
		bool head_scales;
	} stores[] = {
		{ "plain", "bf16", FA_PAGED_PLAIN, false },
		{ "e4m3", "bf16-e4m3", FA_PAGED_E4M3, false },
		{ "int8", "bf16-int8", FA_PAGED_INT8, false },
		{ "e4m3-heads", "bf16-e4m3-heads", FA_PAGED_E4M3, true },
		{ "int8-heads", "bf16-int8-heads", FA_PAGED_INT8, true },
	};

	for (size_t i = 0; i < sizeof(stores) / sizeof(stores[0]); i++) {
		if (strcmp(stores[i].name, name) != 0)
			continue;
		time_options.store = stores[i].store;
		time_options.head_scales = stores[i].head_scales;
		time_options.type = stores[i].type;
		return true;
	}
	return false;
}

void time_name(char *name, size_t bytes, const char *kind, const char *shape, const char *what)
{
	snprintf(name, bytes, "%s/%s/%s-h%d.%d-d%d-p%d-q%d/%s", kind, time_options.type, shape,
	         time_options.heads, time_options.kv_heads, time_options.dim, time_options.page,
	         time_options.n_new, what);
}

void time_print(const char *name, double value, const char *unit, const char *peer, double ratio)
{
	static bool said;
	static char last[128];

	if (time_options.profile) {
		/* Print one row per profiled launch. */
		if (!strcmp(unit, "GB/s") || !strcmp(name, last))
			return;
		snprintf(last, sizeof(last), "%s", name);
		printf("%s\n{\"name\": \"%s\"}", said ? "," : "", name);
	} else if (time_options.json)
		printf("%s\n{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"peer\": "
		       "\"%s\", "
		       "\"ratio\": %.4f}",
		       said ? "," : "", name, value, unit, peer, ratio);
	else
		printf("%-56s %9.4g %-8s /%-8s %.3f\n", name, value, unit, peer, ratio);
	said = true;
	fflush(stdout);
}

/* ---- contestants */

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

void time_measure(const struct time_contestant *contestants, int n, double *ret_ns)
{
	static double times[TIME_CONTESTANTS_MAX][TIME_SAMPLES_MAX];

	if (time_options.profile) {
		contestants[0].run(contestants[0].userdata);
		paged_gpu_sync(time_gpu);
		for (int c = 0; c < n; c++)
			ret_ns[c] = 1;
		return;
	}
	for (int i = time_options.quick ? 0 : -2; i < time_options.samples; i++) {
		for (int c = 0; c < n; c++) {
			double ns;

			paged_gpu_flush(time_gpu);
			paged_gpu_spin(time_gpu, 100000);
			paged_gpu_time_start(time_gpu);
			contestants[c].run(contestants[c].userdata);
			ns = paged_gpu_time_stop_ns(time_gpu);
			if (i >= 0)
				times[c][i] = ns;
			if (!time_options.quick)
				rest(4 * (ns + 3e5));
		}
	}
	for (int c = 0; c < n; c++) {
		qsort(times[c], (size_t)time_options.samples, sizeof(double), compare);
		ret_ns[c] = times[c][time_options.samples / 2];
	}
}

/* ---- a cache and its sequences */

static uint64_t alloc_random(size_t bytes)
{
	const uint64_t to = paged_gpu_alloc(time_gpu, bytes);

	if (to)
		paged_gpu_normal(time_gpu, to, bytes, time_random_below(1u << 30));
	return to;
}

uint32_t time_pages_of(uint32_t length)
{
	return (length + (uint32_t)time_options.page - 1) / (uint32_t)time_options.page;
}

/* Returns the bytes of K (or V) in a page, padded to whole slots. */
static size_t part_bytes(void)
{
	const size_t rows = (size_t)time_options.kv_heads * (size_t)time_options.page;
	size_t of_row = (size_t)time_options.dim * 2;

	if (time_options.store != FA_PAGED_PLAIN)
		of_row = (size_t)time_options.dim + (time_options.head_scales ? 0 : sizeof(float));
	return (rows * of_row + 127) / 128 * 128;
}

/* Returns a scale for codes; decoded values are about 1. */
static float random_scale(void)
{
	return (time_options.store == FA_PAGED_E4M3 ? 0.1f : 0.015f) *
	       (0.5f + (float)time_random_below(1024) / 1024);
}

/* Fills pages with random codes, without NaN, and with scales. */
static void fill_codes(uint64_t pool, uint32_t pages)
{
	const size_t part = part_bytes();
	const size_t codes = (size_t)time_options.kv_heads * (size_t)time_options.page *
	                     (size_t)time_options.dim;
	const uint32_t different = pages < DIFFERENT_PAGES ? pages : DIFFERENT_PAGES;
	const size_t have = 2 * different * part;
	char *parts = calloc(2 * different, part);

	if (!parts)
		abort();
	for (uint32_t p = 0; p < 2 * different; p++) {
		char *const at = parts + p * part;

		for (size_t i = 0; i < codes; i++)
			at[i] = (char)(time_random_below(0x60) | time_random_below(2) << 7);
		for (size_t i = codes; !time_options.head_scales && i + sizeof(float) <= part;
		     i += sizeof(float)) {
			const float scale = random_scale();

			memcpy(at + i, &scale, sizeof(scale));
		}
	}
	paged_gpu_upload(time_gpu, pool, parts, have);
	free(parts);
	for (size_t done = have, all = 2 * (size_t)pages * part; done < all; done += have)
		paged_gpu_copy(time_gpu, pool + done, pool, all - done < have ? all - done : have);
	for (int32_t h = 0; h < time_options.kv_heads; h++) {
		k_head_scales[h] = random_scale();
		v_head_scales[h] = random_scale();
	}
}

static void fill_table(struct time_scene *scene, uint32_t all)
{
	const uint32_t per_page = (uint32_t)(scene->page_bytes / FA_PAGED_SLOT_BYTES);

	for (uint32_t i = 0; i < all; i++)
		scene->table[i] = i * per_page;
	for (uint32_t i = all - 1; i > 0; i--) {
		const uint32_t j = time_random_below(i + 1), slot = scene->table[i];

		scene->table[i] = scene->table[j];
		scene->table[j] = slot;
	}
	scene->device_table = paged_gpu_alloc(time_gpu, (size_t)all * 4);
	paged_gpu_upload(time_gpu, scene->device_table, scene->table, (size_t)all * 4);
}

bool time_scene_init(struct time_scene *scene, int32_t batch, const uint32_t *lengths,
                     uint32_t n_new)
{
	const size_t row = (size_t)time_options.dim * 2, part = part_bytes();
	const bool codes = time_options.store != FA_PAGED_PLAIN;
	const bool heads = codes && time_options.head_scales;
	uint32_t all = 0;

	if (time_options.kv_heads > HEADS_MAX)
		abort();
	for (int32_t b = 0; b < batch; b++)
		all += time_pages_of(lengths[b]);
	*scene = (struct time_scene){ .page_bytes = 2 * part };
	scene->cache = (struct fa_paged_cache){
		.dtype = FA_ATTENTION_BF16,
		.layers = 1,
		.kv_heads = time_options.kv_heads,
		.head_dim = time_options.dim,
		.head_dim_v = time_options.dim,
		.page_tokens = time_options.page,
		.v_offset = (int64_t)part,
		.store = time_options.store,
		.k_scales = heads ? k_head_scales : NULL,
		.v_scales = heads ? v_head_scales : NULL,
	};
	scene->pool = codes ? paged_gpu_alloc(time_gpu, (size_t)all * 2 * part)
	                    : alloc_random((size_t)all * 2 * part);
	if (!scene->pool)
		return false;
	if (codes)
		fill_codes(scene->pool, all);
	scene->cache.pool = TIME_POINTER(scene->pool);
	scene->cu_new = calloc((size_t)batch + 1, 4);
	scene->lengths = calloc((size_t)batch, 4);
	scene->before = calloc((size_t)batch, 4);
	scene->table_start = calloc((size_t)batch, 4);
	scene->table = calloc(all, 4);
	fill_table(scene, all);
	for (int32_t b = 0; b < batch; b++) {
		scene->cu_new[b + 1] = scene->cu_new[b] + n_new;
		scene->lengths[b] = lengths[b];
		scene->before[b] = lengths[b] - n_new;
		if (b + 1 < batch)
			scene->table_start[b + 1] = scene->table_start[b] +
			                            time_pages_of(lengths[b]);
	}
	scene->step = (struct fa_paged_step){
		.batch = batch,
		.cu_new = scene->cu_new,
		.lengths = scene->lengths,
		.lengths_before = scene->before,
		.table = TIME_POINTER(scene->device_table),
		.table_start = scene->table_start,
		.table_entries = all,
		.host_table = scene->table,
	};
	scene->q_bytes = (size_t)batch * n_new * (size_t)time_options.heads * row;
	scene->kv_bytes = (size_t)batch * n_new * (size_t)time_options.kv_heads * row;
	scene->q = alloc_random(scene->q_bytes);
	scene->k = alloc_random(scene->kv_bytes);
	scene->v = alloc_random(scene->kv_bytes);
	return true;
}

void time_scene_deinit(struct time_scene *scene)
{
	const uint64_t all[] = { scene->pool, scene->device_table, scene->q, scene->k, scene->v };

	paged_gpu_sync(time_gpu);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		paged_gpu_free(time_gpu, all[i]);
	free(scene->cu_new);
	free(scene->lengths);
	free(scene->before);
	free(scene->table_start);
	free(scene->table);
}

struct fa_attention_tensor time_tensor(uint64_t data, int32_t heads)
{
	return (struct fa_attention_tensor){ TIME_POINTER(data), 0, heads * time_options.dim,
		                             time_options.dim };
}

/* ---- a request over a scene */

void time_run_init(struct time_run *run, const struct time_scene *scene,
                   const struct fa_cuda_chip *chip, const uint32_t *table, bool deterministic)
{
	*run = (struct time_run){
		.scene = scene,
		.step = scene->step,
		.out = paged_gpu_alloc(time_gpu, scene->q_bytes),
		.lse = paged_gpu_alloc(time_gpu, scene->q_bytes),
	};
	if (table) {
		const size_t bytes = (size_t)scene->step.table_entries * 4;

		run->own_table = paged_gpu_alloc(time_gpu, bytes);
		paged_gpu_upload(time_gpu, run->own_table, table, bytes);
		run->step.table = TIME_POINTER(run->own_table);
		run->step.host_table = table;
	}
	run->request.op = FA_PAGED_ATTEND;
	run->request.attention = (struct fa_paged_attention){
		.cache = &scene->cache,
		.step = &run->step,
		.heads = time_options.heads,
		.q = time_tensor(scene->q, time_options.heads),
		.out = time_tensor(run->out, time_options.heads),
		.lse = TIME_POINTER(run->lse),
		.lse_stride_token = time_options.heads,
		.lse_stride_head = 1,
		.scale = 1 / sqrtf((float)time_options.dim),
		.causal = true,
		.window_left = -1,
		.window_right = -1,
		.deterministic = deterministic,
	};
	if (paged_gpu_plan(time_gpu, chip ? chip : paged_gpu_chip(time_gpu), &run->request,
	                   &run->plan) < 0)
		exit(1);
}

void time_run_deinit(struct time_run *run)
{
	paged_gpu_sync(time_gpu);
	paged_gpu_plan_free(time_gpu, &run->plan);
	paged_gpu_free(time_gpu, run->own_table);
	paged_gpu_free(time_gpu, run->out);
	paged_gpu_free(time_gpu, run->lse);
}

void time_run(void *userdata)
{
	struct time_run *run = userdata;

	paged_gpu_launch(time_gpu, &run->plan, &run->request);
}

/* ---- bare reads */

void time_bare_init(struct time_bare *bare, const struct time_scene *scene, const uint32_t *slots,
                    uint32_t n)
{
	uint64_t *pieces;

	*bare = (struct time_bare){ .piece_bytes = PIECE_BYTES,
		                    .bytes = (double)n * (double)scene->page_bytes };
	/* All threads must read equally often, but a page with scales is no power of two. */
	while (bare->piece_bytes > 0 && scene->page_bytes % bare->piece_bytes != 0)
		bare->piece_bytes -= 4096;
	if (bare->piece_bytes == 0)
		bare->piece_bytes = (uint32_t)scene->page_bytes;
	while (bare->piece_bytes > PIECE_BYTES && bare->piece_bytes % 32 == 0)
		bare->piece_bytes /= 2;
	bare->n_pieces = (uint64_t)n * (scene->page_bytes / bare->piece_bytes);
	pieces = malloc(bare->n_pieces * sizeof(*pieces));
	if (!pieces)
		abort();
	for (uint64_t i = 0; i < bare->n_pieces; i++) {
		const uint64_t at = i * bare->piece_bytes;

		pieces[i] = scene->pool +
		            (uint64_t)slots[at / scene->page_bytes] * FA_PAGED_SLOT_BYTES +
		            at % scene->page_bytes;
	}
	bare->pieces = paged_gpu_alloc(time_gpu, bare->n_pieces * sizeof(*pieces));
	paged_gpu_upload(time_gpu, bare->pieces, pieces, bare->n_pieces * sizeof(*pieces));
	free(pieces);
}

void time_bare_deinit(struct time_bare *bare)
{
	paged_gpu_sync(time_gpu);
	paged_gpu_free(time_gpu, bare->pieces);
}

void time_run_bare(void *userdata)
{
	const struct time_bare *bare = userdata;

	paged_gpu_bare(time_gpu, bare->pieces, bare->n_pieces, bare->piece_bytes);
}
