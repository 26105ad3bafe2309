/*
 * Times the kernels over pages, bf16, beside what bounds them, in one run. Every sample: L2
 * is flushed by reading, a spin kernel lets the host run ahead, then event, launches,
 * event; ours and the peer's samples take turns; the median counts.
 *   time-paged [--page N] [--samples N] [--heads N] [--kv-heads N] [--dim N] [--new N]
 *              [--only decode|prefill|append] [--peer LIBRARY[:NAME]]... [--json]
 *              [--store plain|e4m3|int8|e4m3-heads|int8-heads]
 *   decode   of batches of one length, and of 64 sequences of 128 to 32k tokens ("mixed"),
 *            against a bare read of the same K and V, against the portable kernel ("sm80"), and
 *            against every peer: a library of other kernels (peer.h), whose result must be ours
 *   prefill  of 8,192 tokens, causal, against the dense kernels: the portable one ("sm80")
 *            and the one that the chip gets ("dense")
 *   append   of 8,192 tokens to one layer, against a copy of as many bytes
 * With --store pages hold codes, whose tokens or heads have scales: no prefill, no peers, and
 * bare reads are of what the pages hold. Skips (77) without a GPU.
 */
#include "tests/gpu/paged-gpu.h"
#include "tests/gpu/peer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLES_MAX 1000
#define PIECE_BYTES 16384
#define PEERS_MAX 6
#define CONTESTANTS_MAX (PEERS_MAX + 3)

static struct {
	int32_t page, heads, kv_heads, dim, n_new, samples;
	const char *only;
	bool json;
	enum fa_paged_store store;
	bool head_scales;
	const char *type; /* in names */
} options = { .page = 64,
	      .heads = 32,
	      .kv_heads = 8,
	      .dim = 128,
	      .n_new = 1,
	      .samples = 30,
	      .only = "",
	      .type = "bf16" };

static struct fa_peer peers[PEERS_MAX];
static int n_peers;
static bool peer_failed;

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

struct contestant {
	void (*run)(void *);
	void *userdata;
};

/* Medians of @n contestants, taking turns; the GPU rests four times as long as it works. */
static void measure(const struct contestant *contestants, int n, double *ret_ns)
{
	static double times[CONTESTANTS_MAX][SAMPLES_MAX];

	for (int i = -2; i < options.samples; i++) {
		for (int c = 0; c < n; c++) {
			double ns;

			paged_gpu_flush(gpu);
			paged_gpu_spin(gpu, 100000);
			paged_gpu_time_start(gpu);
			contestants[c].run(contestants[c].userdata);
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
	struct paged_gpu_plan plan, portable;
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

static uint32_t pages_of(uint32_t length)
{
	return (length + (uint32_t)options.page - 1) / (uint32_t)options.page;
}

/* Bytes of K, or of V, in a page, padded so that pages are whole slots. */
static size_t part_bytes(void)
{
	const size_t rows = (size_t)options.kv_heads * (size_t)options.page;
	size_t of_row = (size_t)options.dim * 2;

	if (options.store != FA_PAGED_PLAIN)
		of_row = (size_t)options.dim + (options.head_scales ? 0 : sizeof(float));
	return (rows * of_row + 127) / 128 * 128;
}

/* Fills a pool of @pages with codes at random, none of them NaN, and scales. */
static void fill_codes(uint64_t pool, uint32_t pages)
{
	const size_t part = part_bytes();
	const size_t codes = (size_t)options.kv_heads * (size_t)options.page * (size_t)options.dim;
	const float scale = 0.01f;
	char *page = calloc(2, part);

	if (!page)
		abort();
	for (int v = 0; v < 2; v++) {
		for (size_t i = 0; i < codes; i++)
			page[(size_t)v * part + i] = (char)(below(0x60) | below(2) << 7);
		for (size_t i = codes; !options.head_scales && i + sizeof(scale) <= part;
		     i += sizeof(scale))
			memcpy(page + (size_t)v * part + i, &scale, sizeof(scale));
	}
	for (uint32_t i = 0; i < pages; i++)
		paged_gpu_upload(gpu, pool + i * 2 * part, page, 2 * part);
	free(page);
}

static float head_scales[1024];

/* False: not enough memory. Pages are shuffled all over the pool. */
static bool scene_init(struct scene *scene, int32_t batch, const uint32_t *lengths, uint32_t n_new)
{
	const size_t row = (size_t)options.dim * 2;
	const size_t k_bytes = part_bytes();
	const uint32_t per_page = (uint32_t)(2 * k_bytes / 256);
	uint32_t all = 0;

	for (int32_t b = 0; b < batch; b++)
		all += pages_of(lengths[b]);
	memset(scene, 0, sizeof(*scene));
	scene->cache = (struct fa_paged_cache){
		.dtype = FA_ATTENTION_BF16,
		.layers = 1,
		.kv_heads = options.kv_heads,
		.head_dim = options.dim,
		.head_dim_v = options.dim,
		.page_tokens = options.page,
		.v_offset = (int64_t)k_bytes,
		.store = options.store,
		.k_scales = options.head_scales ? head_scales : NULL,
		.v_scales = options.head_scales ? head_scales : NULL,
	};
	scene->pool = options.store == FA_PAGED_PLAIN
	                      ? filled((size_t)all * 2 * k_bytes)
	                      : paged_gpu_alloc(gpu, (size_t)all * 2 * k_bytes);
	if (!scene->pool)
		return false;
	if (options.store != FA_PAGED_PLAIN)
		fill_codes(scene->pool, all);
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
		scene->lengths[b] = lengths[b];
		scene->before[b] = lengths[b] - n_new;
		if (b + 1 < batch)
			scene->table_start[b + 1] = scene->table_start[b] + pages_of(lengths[b]);
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
		.host_table = scene->table,
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
	paged_gpu_plan_free(gpu, &scene->portable);
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

/* ---- peers */

/* A scene as peers get it. */
struct peer_scene {
	struct fa_peer_decode request;
	uint64_t k, v, out, table, lengths;
	uint16_t *ours; /* the result to be had */
};

struct peer_run {
	const struct fa_peer *peer;
	struct fa_peer_decode request;
};

static void run_peer(void *userdata)
{
	struct peer_run *run = userdata;
	const int r = run->peer->decode(&run->request);

	if (r < 0) {
		fprintf(stderr, "%s: %s\n", run->peer->title, strerror(-r));
		exit(1);
	}
}

static void peer_scene_deinit(struct peer_scene *with)
{
	paged_gpu_sync(gpu);
	paged_gpu_free(gpu, with->k);
	paged_gpu_free(gpu, with->v);
	paged_gpu_free(gpu, with->out);
	paged_gpu_free(gpu, with->table);
	paged_gpu_free(gpu, with->lengths);
	free(with->ours);
	*with = (struct peer_scene){ 0 };
}

/* Runs ours for the result, too. False: not enough memory. */
static bool peer_scene_init(struct peer_scene *with, struct scene *scene)
{
	const struct fa_paged_cache *cache = &scene->cache;
	const struct fa_paged_step *step = &scene->step;
	const size_t page_bytes = 2 * (size_t)cache->v_offset;
	const uint32_t row_bytes = (uint32_t)options.dim * 2;
	const uint64_t pages = step->table_entries;
	int32_t table_pages, length_max = 0, *table;

	table = fa_peer_table(step, scene->table, cache->page_tokens,
	                      (uint32_t)(page_bytes / FA_PAGED_SLOT_BYTES), &table_pages);
	if (!table)
		abort();
	*with = (struct peer_scene){
		.k = paged_gpu_alloc(gpu, pages * page_bytes / 2),
		.v = paged_gpu_alloc(gpu, pages * page_bytes / 2),
		.out = paged_gpu_alloc(gpu, scene->q_bytes),
		.table = paged_gpu_alloc(gpu, (size_t)(step->batch * table_pages) * 4),
		.lengths = paged_gpu_alloc(gpu, (size_t)step->batch * 4),
		.ours = malloc(scene->q_bytes),
	};
	if (!with->k || !with->v || !with->out || !with->table || !with->lengths || !with->ours) {
		free(table);
		peer_scene_deinit(with);
		return false;
	}
	paged_gpu_upload(gpu, with->table, table, (size_t)(step->batch * table_pages) * 4);
	free(table);
	for (int32_t b = 0; b < step->batch; b++)
		if ((int32_t)step->lengths[b] > length_max)
			length_max = (int32_t)step->lengths[b];
	paged_gpu_upload(gpu, with->lengths, step->lengths, (size_t)step->batch * 4);
	paged_gpu_token_major(gpu, scene->pool, page_bytes, with->k, pages,
	                      (uint32_t)cache->kv_heads, (uint32_t)cache->page_tokens, row_bytes);
	paged_gpu_token_major(gpu, scene->pool + (uint64_t)cache->v_offset, page_bytes, with->v,
	                      pages, (uint32_t)cache->kv_heads, (uint32_t)cache->page_tokens,
	                      row_bytes);
	paged_gpu_launch(gpu, &scene->plan, &scene->request);
	paged_gpu_sync(gpu);
	paged_gpu_download(gpu, with->ours, scene->out, scene->q_bytes);
	with->request = (struct fa_peer_decode){
		.size = sizeof(with->request),
		.dtype = cache->dtype,
		.q = POINTER(scene->q),
		.k = POINTER(with->k),
		.v = POINTER(with->v),
		.out = POINTER(with->out),
		.table = POINTER(with->table),
		.lengths = POINTER(with->lengths),
		.batch = step->batch,
		.n_new = options.n_new,
		.heads = options.heads,
		.kv_heads = cache->kv_heads,
		.dim = cache->head_dim,
		.pages = (int32_t)pages,
		.page_tokens = cache->page_tokens,
		.table_pages = table_pages,
		.length_max = length_max,
		.scale = scene->request.attention.scale,
	};
	return true;
}

/* Readies @ret_run, and says whether the peer takes part: it covers the cell, and its result
 * is ours. */
static bool peer_enters(const struct peer_scene *with, const struct fa_peer *peer, size_t q_bytes,
                        struct peer_run *ret_run)
{
	uint16_t *theirs = malloc(q_bytes);
	double worst = 0;
	bool agrees;
	int r;

	if (!theirs)
		abort();
	*ret_run = (struct peer_run){ .peer = peer, .request = with->request };
	ret_run->request.name = peer->name;
	r = peer->decode(&ret_run->request);
	/* Again, now that it has settled, and over NaN. */
	paged_gpu_sync(gpu);
	paged_gpu_fill(gpu, with->out, 0xff, q_bytes);
	if (r == 0)
		r = peer->decode(&ret_run->request);
	paged_gpu_sync(gpu);
	paged_gpu_download(gpu, theirs, with->out, q_bytes);
	agrees = r == 0 && fa_peer_agrees(with->ours, theirs, q_bytes / 2, &worst);
	free(theirs);
	if (r == -ENOTSUP || agrees)
		return agrees;
	peer_failed = true;
	if (r < 0)
		fprintf(stderr, "%s: %s\n", peer->title, strerror(-r));
	else
		fprintf(stderr, "%s: its result is %.3g of the greatest value off ours\n",
		        peer->title, worst);
	return false;
}

/* ---- decode */

static void run_bare(void *userdata)
{
	const struct scene *scene = userdata;

	paged_gpu_bare(gpu, scene->pieces, scene->n_pieces, scene->piece_bytes);
}

static void run_portable(void *userdata)
{
	struct scene *scene = userdata;

	paged_gpu_launch(gpu, &scene->portable, &scene->request);
}

/* @shape names the sequences, whose lengths are multiples of a page. */
static void decode(const char *shape, int32_t batch, const uint32_t *lengths)
{
	struct scene scene;
	struct contestant contestants[CONTESTANTS_MAX] = { { run_ours, &scene },
		                                           { run_bare, &scene },
		                                           { run_portable, &scene } };
	struct fa_cuda_chip portable = *paged_gpu_chip(gpu);
	struct peer_scene with = { 0 };
	struct peer_run runs[PEERS_MAX];
	double ns[CONTESTANTS_MAX], bytes = 0;
	uint64_t *pieces;
	char name[128];
	int n = 3;

	if (!scene_init(&scene, batch, lengths, (uint32_t)options.n_new)) {
		fprintf(stderr, "%s does not fit this GPU\n", shape);
		return;
	}
	scene_attend(&scene);
	portable.portable_paged = true;
	if (paged_gpu_plan(gpu, &portable, &scene.request, &scene.portable) < 0)
		exit(1);
	/* Whole pages, in the order in which sequences have them. */
	for (int32_t b = 0; b < batch; b++)
		bytes += 2.0 * lengths[b] / options.page * (double)part_bytes();
	scene.piece_bytes = (uint32_t)(2 * scene.cache.v_offset);
	while (scene.piece_bytes > PIECE_BYTES && scene.piece_bytes % 32 == 0)
		scene.piece_bytes /= 2;
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
	if (n_peers > 0 && !peer_scene_init(&with, &scene))
		fprintf(stderr, "%s does not fit this GPU twice: no peers\n", shape);
	for (int i = 0; i < n_peers && with.ours; i++)
		if (peer_enters(&with, &peers[i], scene.q_bytes, &runs[n - 3])) {
			contestants[n] = (struct contestant){ run_peer, &runs[n - 3] };
			n++;
		}
	measure(contestants, n, ns);
	snprintf(name, sizeof(name), "decode/%s/%s-h%d.%d-d%d-p%d-q%d/us", options.type, shape,
	         options.heads, options.kv_heads, options.dim, options.page, options.n_new);
	say(name, ns[0] / 1e3, "us", "bare", ns[1] / ns[0]);
	say(name, ns[0] / 1e3, "us", "sm80", ns[2] / ns[0]);
	for (int i = 3; i < n; i++)
		say(name, ns[0] / 1e3, "us", runs[i - 3].peer->title, ns[i] / ns[0]);
	snprintf(name, sizeof(name), "decode/%s/%s-h%d.%d-d%d-p%d-q%d/rate", options.type, shape,
	         options.heads, options.kv_heads, options.dim, options.page, options.n_new);
	say(name, bytes / ns[0], "GB/s", "bare", ns[1] / ns[0]);
	peer_scene_deinit(&with);
	scene_deinit(&scene);
}

/* All of one length. */
static void decode_even(int32_t batch, uint32_t length)
{
	uint32_t *lengths = calloc((size_t)batch, sizeof(*lengths));
	char shape[32];

	for (int32_t b = 0; b < batch; b++)
		lengths[b] = length;
	snprintf(shape, sizeof(shape), "b%d-c%u", batch, length);
	decode(shape, batch, lengths);
	free(lengths);
}

/* As many of each length, on a logarithmic scale, from 128 to 32k, in any order. */
static void decode_mixed(void)
{
	enum {
		BATCH = 64
	};
	uint32_t lengths[BATCH];

	for (uint32_t b = 0; b < BATCH; b++)
		lengths[b] = pages_of((uint32_t)exp2(7 + 8.0 * b / (BATCH - 1))) *
		             (uint32_t)options.page;
	for (uint32_t b = BATCH - 1; b > 0; b--) {
		const uint32_t other = below(b + 1), length = lengths[b];

		lengths[b] = lengths[other];
		lengths[other] = length;
	}
	decode("b64-mixed", BATCH, lengths);
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
	const double pairs = 0.5 * length * (length + 1.0) * batch * options.heads;
	uint32_t *lengths = calloc((size_t)batch, sizeof(*lengths));
	struct scene scene;
	const struct contestant contestants[] = { { run_ours, &scene },
		                                  { run_dense_80, &scene },
		                                  { run_dense, &scene } };
	double ns[3];
	char name[128];
	bool fits;

	for (int32_t b = 0; b < batch; b++)
		lengths[b] = length;
	fits = scene_init(&scene, batch, lengths, length);
	free(lengths);
	if (!fits)
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
	measure(contestants, 3, ns);
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
	static const uint32_t length = 8192;
	struct scene scene;
	const struct contestant contestants[] = { { run_ours, &scene }, { run_copy, &scene } };
	double ns[2];
	char name[128];

	if (!scene_init(&scene, 1, &length, length))
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
	measure(contestants, 2, ns);
	if (with_q)
		ns[1] *= (double)(2 * scene.kv_bytes + scene.q_bytes) /
		         (double)(2 * scene.kv_bytes);
	snprintf(name, sizeof(name), "append/%s/t8192-h%d.%d-d%d-p%d/%s", options.type,
	         options.heads, options.kv_heads, options.dim, options.page, variant);
	say(name, ns[0] / 1e3, "us", "copy", ns[1] / ns[0]);
	scene_deinit(&scene);
}

static bool set_store(const char *name)
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
		options.store = stores[i].store;
		options.head_scales = stores[i].head_scales;
		options.type = stores[i].type;
		return true;
	}
	return false;
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
		else if (!strcmp(argv[i], "--store")) {
			if (!set_store(value)) {
				fprintf(stderr, "unknown store %s\n", value);
				return 2;
			}
		} else if (!strcmp(argv[i], "--peer") && n_peers < PEERS_MAX) {
			if (fa_peer_open(value, &peers[n_peers]) < 0)
				return 2;
			n_peers++;
		} else {
			fprintf(stderr, "unknown option %s\n", argv[i]);
			return 2;
		}
		i++;
	}
	if (options.samples < 1 || options.samples > SAMPLES_MAX)
		options.samples = 30;
	if (options.store != FA_PAGED_PLAIN && n_peers > 0) {
		fprintf(stderr, "peers do not read codes\n");
		return 2;
	}
	for (size_t i = 0; i < sizeof(head_scales) / sizeof(head_scales[0]); i++)
		head_scales[i] = 0.01f;
	gpu = paged_gpu_open();
	if (!gpu)
		return 77;
	if (options.json)
		printf("{\"device\": \"%s\", \"results\": [", paged_gpu_name(gpu));
	for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
		if (!options.only[0] || !strcmp(options.only, "decode"))
			decode_even(cells[i].batch, cells[i].length);
	if (!options.only[0] || !strcmp(options.only, "decode"))
		decode_mixed();
	if (options.store == FA_PAGED_PLAIN &&
	    (!options.only[0] || !strcmp(options.only, "prefill"))) {
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
	for (int i = 0; i < n_peers; i++)
		fa_peer_close(&peers[i]);
	paged_gpu_close(gpu);
	return peer_failed;
}
