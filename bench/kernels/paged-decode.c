#include "bench/kernels/paged-decode.h"

#include "bench/kernels/paged-scene.h"
#include "bench/kernels/peer.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PEERS_MAX 6
#define BATCH_MAX 128

static struct fa_peer peers[PEERS_MAX];
static int n_peers;

/* ---- sequences */

/* A decode shape; lengths are multiples of a page. */
struct cell {
	char shape[32];
	int32_t batch;
	uint32_t lengths[BATCH_MAX];
};

static struct cell equal_lengths(int32_t batch, uint32_t length)
{
	struct cell cell = { .batch = batch };

	for (int32_t b = 0; b < batch; b++)
		cell.lengths[b] = length;
	snprintf(cell.shape, sizeof(cell.shape), "b%d-c%u", batch, length);
	return cell;
}

/* Returns lengths of 128 to 32k in logarithmic steps, equally often, shuffled. */
static struct cell mixed_lengths(void)
{
	struct cell cell = { .batch = time_options.quick ? 4 : 64 };
	const double doublings = time_options.quick ? 2 : 8;

	snprintf(cell.shape, sizeof(cell.shape), "b%d-mixed", cell.batch);
	for (int32_t b = 0; b < cell.batch; b++)
		cell.lengths[b] = time_pages_of(
					  (uint32_t)exp2(7 + doublings * b / (cell.batch - 1))) *
		                  (uint32_t)time_options.page;
	for (int32_t b = cell.batch - 1; b > 0; b--) {
		const uint32_t other = time_random_below((uint32_t)b + 1), length = cell.lengths[b];

		cell.lengths[b] = cell.lengths[other];
		cell.lengths[other] = length;
	}
	return cell;
}

/* Makes the cell's scene. False: --shapes excludes the cell, or memory is short (with a
 * message). */
static bool cell_scene_init(struct time_scene *scene, const struct cell *cell)
{
	if (fnmatch(time_options.shapes, cell->shape, 0) != 0)
		return false;
	if (time_scene_init(scene, cell->batch, cell->lengths, (uint32_t)time_options.n_new))
		return true;
	fprintf(stderr, "%s does not fit this GPU\n", cell->shape);
	return false;
}

/* ---- peers */

struct peer_scene {
	struct fa_peer_decode request;
	uint64_t k, v, out, table, lengths;
	uint16_t *ours; /* our kernel's result, which is expected of peers */
};

struct peer_run {
	const struct fa_peer *peer;
	struct fa_peer_decode request;
};

bool time_peer_open(const char *text)
{
	if (n_peers == PEERS_MAX || fa_peer_open(text, &peers[n_peers]) < 0)
		return false;
	n_peers++;
	return true;
}

bool time_has_peers(void)
{
	return n_peers > 0;
}

void time_peers_close(void)
{
	while (n_peers > 0)
		fa_peer_close(&peers[--n_peers]);
}

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
	const uint64_t all[] = { with->k, with->v, with->out, with->table, with->lengths };

	paged_gpu_sync(time_gpu);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		paged_gpu_free(time_gpu, all[i]);
	free(with->ours);
	*with = (struct peer_scene){ 0 };
}

/* Makes the peer's pool, and runs our kernel for the expected result. False: not enough memory. */
static bool peer_scene_init(struct peer_scene *with, struct time_run *run)
{
	const struct time_scene *scene = run->scene;
	const struct fa_paged_cache *cache = &scene->cache;
	const struct fa_paged_step *step = &scene->step;
	const uint32_t row_bytes = (uint32_t)time_options.dim * 2;
	const uint64_t pages = step->table_entries;
	const uint64_t pools[] = { scene->pool, scene->pool + (uint64_t)cache->v_offset };
	int32_t table_pages, length_max = 0, *table;

	table = fa_peer_table(step, scene->table, cache->page_tokens,
	                      (uint32_t)(scene->page_bytes / FA_PAGED_SLOT_BYTES), &table_pages);
	if (!table)
		abort();
	*with = (struct peer_scene){
		.k = paged_gpu_alloc(time_gpu, pages * scene->page_bytes / 2),
		.v = paged_gpu_alloc(time_gpu, pages * scene->page_bytes / 2),
		.out = paged_gpu_alloc(time_gpu, scene->q_bytes),
		.table = paged_gpu_alloc(time_gpu, (size_t)(step->batch * table_pages) * 4),
		.lengths = paged_gpu_alloc(time_gpu, (size_t)step->batch * 4),
		.ours = malloc(scene->q_bytes),
	};
	if (!with->k || !with->v || !with->out || !with->table || !with->lengths || !with->ours) {
		free(table);
		peer_scene_deinit(with);
		return false;
	}
	paged_gpu_upload(time_gpu, with->table, table, (size_t)(step->batch * table_pages) * 4);
	free(table);
	for (int32_t b = 0; b < step->batch; b++)
		if ((int32_t)step->lengths[b] > length_max)
			length_max = (int32_t)step->lengths[b];
	paged_gpu_upload(time_gpu, with->lengths, step->lengths, (size_t)step->batch * 4);
	for (int v = 0; v < 2; v++)
		paged_gpu_token_major(time_gpu, pools[v], scene->page_bytes, v ? with->v : with->k,
		                      pages, (uint32_t)cache->kv_heads,
		                      (uint32_t)cache->page_tokens, row_bytes);
	time_run(run);
	paged_gpu_sync(time_gpu);
	paged_gpu_download(time_gpu, with->ours, run->out, scene->q_bytes);
	with->request = (struct fa_peer_decode){
		.size = sizeof(with->request),
		.dtype = cache->dtype,
		.q = TIME_POINTER(scene->q),
		.k = TIME_POINTER(with->k),
		.v = TIME_POINTER(with->v),
		.out = TIME_POINTER(with->out),
		.table = TIME_POINTER(with->table),
		.lengths = TIME_POINTER(with->lengths),
		.batch = step->batch,
		.n_new = time_options.n_new,
		.heads = time_options.heads,
		.kv_heads = cache->kv_heads,
		.dim = cache->head_dim,
		.pages = (int32_t)pages,
		.page_tokens = cache->page_tokens,
		.table_pages = table_pages,
		.length_max = length_max,
		.scale = run->request.attention.scale,
	};
	return true;
}

/* Runs the peer once. True: it covers the cell and its result agrees with ours. */
static bool prepare_peer(const struct peer_scene *with, const struct fa_peer *peer, size_t q_bytes,
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
	/* The first call may have chosen a setting, so call again. */
	paged_gpu_sync(time_gpu);
	paged_gpu_fill(time_gpu, with->out, 0xff, q_bytes);
	if (r == 0)
		r = peer->decode(&ret_run->request);
	paged_gpu_sync(time_gpu);
	paged_gpu_download(time_gpu, theirs, with->out, q_bytes);
	agrees = r == 0 && fa_peer_agrees(with->ours, theirs, q_bytes / 2, &worst);
	free(theirs);
	if (r == -ENOTSUP || agrees)
		return agrees;
	time_failed = true;
	if (r < 0)
		fprintf(stderr, "%s: %s\n", peer->title, strerror(-r));
	else
		fprintf(stderr, "%s: its result is %.3g of the greatest value off ours\n",
		        peer->title, worst);
	return false;
}

/* ---- decode */

struct contest {
	struct time_contestant contestants[TIME_CONTESTANTS_MAX];
	const char *names[TIME_CONTESTANTS_MAX]; /* names[0] is ours */
	int scales[TIME_CONTESTANTS_MAX];        /* runs that its time is to stand for; 0: one */
	double ns[TIME_CONTESTANTS_MAX];
	int n;
};

static void contest_add(struct contest *contest, const char *name, void (*run)(void *),
                        void *userdata)
{
	contest->contestants[contest->n] = (struct time_contestant){ run, userdata };
	contest->names[contest->n++] = name;
}

/* Measures all contestants. Prints our time against each other's, and our bandwidth against a
 * bare read. */
static void measure_and_print(struct contest *contest, const char *kind, const struct cell *cell,
                              double bytes)
{
	char name[128];

	time_measure(contest->contestants, contest->n, contest->ns);
	for (int i = 0; i < contest->n; i++)
		contest->ns[i] *= contest->scales[i] ? contest->scales[i] : 1;
	for (int i = 1; i < contest->n; i++) {
		time_name(name, sizeof(name), kind, cell->shape, "us");
		time_print(name, contest->ns[0] / 1e3, "us", contest->names[i],
		           contest->ns[i] / contest->ns[0]);
	}
	time_name(name, sizeof(name), kind, cell->shape, "rate");
	time_print(name, bytes / contest->ns[0], "GB/s", "bare", contest->ns[1] / contest->ns[0]);
}

/* Times attention of the cell's new tokens, as result @kind. @with_plain: also against bf16 pages
 * of the same lengths. */
static void decode_as(const char *kind, const struct cell *cell, bool with_plain)
{
	struct fa_cuda_chip portable_chip = *paged_gpu_chip(time_gpu);
	struct fa_cuda_chip unpacked_chip = portable_chip;
	const struct time_options codes = time_options;
	struct time_scene scene, plain_scene;
	struct time_run ours, portable, plain, unpacked;
	struct peer_scene with = { 0 };
	struct peer_run runs[PEERS_MAX];
	struct time_bare bare;
	struct contest contest = { .n = 0 };

	if (!cell_scene_init(&scene, cell))
		return;
	if (with_plain) {
		time_set_store("plain");
		with_plain = cell_scene_init(&plain_scene, cell);
		if (with_plain)
			time_run_init(&plain, &plain_scene, NULL, NULL, false);
		time_options = codes;
	}
	portable_chip.portable_paged = true;
	unpacked_chip.pack = -1;
	time_run_init(&ours, &scene, NULL, NULL, false);
	time_run_init(&unpacked, &scene, &unpacked_chip, NULL, false);
	time_run_init(&portable, &scene, &portable_chip, NULL, false);
	time_bare_init(&bare, &scene, scene.table, scene.step.table_entries);
	contest_add(&contest, "ours", time_run, &ours);
	contest_add(&contest, "bare", time_run_bare, &bare);
	if (unpacked.plan.plan.forward != ours.plan.plan.forward)
		contest_add(&contest, "unpacked", time_run, &unpacked);
	if (ours.plan.plan.decode && portable.plan.plan.decode != ours.plan.plan.decode)
		contest_add(&contest, "sm80", time_run, &portable);
	if (with_plain)
		contest_add(&contest, "bf16", time_run, &plain);
	if (n_peers > 0 && !peer_scene_init(&with, &ours))
		fprintf(stderr, "%s does not fit this GPU twice: no peers\n", cell->shape);
	for (int i = 0; i < n_peers && with.ours; i++)
		if (prepare_peer(&with, &peers[i], scene.q_bytes, &runs[i]))
			contest_add(&contest, peers[i].title, run_peer, &runs[i]);
	if (time_check(&ours, cell->shape))
		measure_and_print(&contest, kind, cell, bare.bytes);
	peer_scene_deinit(&with);
	time_bare_deinit(&bare);
	time_run_deinit(&portable);
	time_run_deinit(&unpacked);
	time_run_deinit(&ours);
	if (with_plain) {
		time_run_deinit(&plain);
		time_scene_deinit(&plain_scene);
	}
	time_scene_deinit(&scene);
}

static void decode(const struct cell *cell, bool with_plain)
{
	decode_as("decode", cell, with_plain);
}

struct size {
	int32_t batch;
	uint32_t length;
};

static void decode_sizes(const struct size *sizes, size_t n, bool with_plain)
{
	struct cell cell;

	for (size_t i = 0; i < (time_options.quick ? 0 : n); i++) {
		cell = equal_lengths(sizes[i].batch, sizes[i].length);
		decode(&cell, with_plain);
	}
	if (time_options.quick) {
		cell = equal_lengths(2, 256);
		decode(&cell, with_plain);
	}
	cell = mixed_lengths();
	decode(&cell, with_plain);
}

void time_decode(void)
{
	static const struct size sizes[] = {
		{ 1, 1024 },  { 1, 16384 }, { 1, 131072 }, { 8, 1024 },   { 8, 4096 },
		{ 32, 1024 }, { 32, 4096 }, { 32, 16384 }, { 128, 4096 }, { 128, 16384 },
	};

	decode_sizes(sizes, sizeof(sizes) / sizeof(sizes[0]), false);
}

/* Prompts and extends over codes, against bf16. */
static void extend_codes(void)
{
	static const struct {
		uint32_t context;
		int32_t n_new;
	} sizes[] = {
		{ 1024, 1024 }, { 4096, 4096 }, { 8192, 512 },  { 8192, 2048 },
		{ 32768, 64 },  { 32768, 128 }, { 32768, 512 }, { 32768, 2048 },
	};
	const struct time_options before = time_options;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const struct cell cell = equal_lengths(1,
		                                       time_options.quick ? 512 : sizes[i].context);

		time_options.n_new = time_options.quick ? 128 : sizes[i].n_new;
		if (!time_options.quick || i == 0)
			decode_as("extend", &cell, true);
	}
	time_options = before;
}

/* New tokens of a sequence with a longer context. */
void time_extend(void)
{
	static const uint32_t contexts[] = { 8192, 32768, 131072 };
	static const int32_t n_new[] = { 16, 64, 128, 512, 2048 };
	const struct time_options before = time_options;

	if (time_options.store != FA_PAGED_PLAIN) {
		extend_codes();
		return;
	}
	for (size_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++)
		for (size_t j = 0; j < sizeof(n_new) / sizeof(n_new[0]); j++) {
			const struct cell cell = equal_lengths(1, time_options.quick ? 4096
			                                                             : contexts[i]);

			time_options.n_new = n_new[j];
			if (!time_options.quick || (i == 0 && j == 1))
				decode_as("extend", &cell, false);
		}
	time_options = before;
}

void time_codes(void)
{
	static const char *const stores[] = { "e4m3", "e4m3-heads", "int8", "int8-heads" };
	static const struct size sizes[] = {
		{ 1, 16384 }, { 8, 4096 }, { 32, 4096 }, { 32, 16384 }, { 128, 4096 },
	};
	const struct time_options before = time_options;

	for (size_t i = 0; i < sizeof(stores) / sizeof(stores[0]); i++) {
		time_set_store(stores[i]);
		decode_sizes(sizes, sizeof(sizes) / sizeof(sizes[0]), true);
	}
	time_options = before;
}

/* ---- shared prefixes */

/* Makes the first @shared pages of all sequences the first one's, in @scene and @ret_table. Returns
 * the number of distinct pages, listed in @ret_slots. */
static uint32_t share(struct time_scene *scene, uint32_t shared, uint32_t *ret_table,
                      uint32_t *ret_slots)
{
	const uint32_t each = scene->step.table_entries / (uint32_t)scene->step.batch;
	uint32_t n = 0;

	for (uint32_t i = 0; i < scene->step.table_entries; i++) {
		const uint32_t *const first = &scene->table[i % each];

		ret_table[i] = scene->table[i];
		if (i % each < shared && i >= each) {
			ret_table[i] = *first;
			paged_gpu_copy(time_gpu,
			               scene->pool +
			                       (uint64_t)scene->table[i] * FA_PAGED_SLOT_BYTES,
			               scene->pool + (uint64_t)*first * FA_PAGED_SLOT_BYTES,
			               scene->page_bytes);
		} else {
			ret_slots[n++] = scene->table[i];
		}
	}
	return n;
}

static uint32_t prefixes_of(const struct time_run *run)
{
	return run->plan.plan.prefixes + run->plan.plan.packed_prefixes;
}

/* Times attention with a shared prefix, as result @kind. @pays: the plan should group the
 * sequences. */
static void shared_as(const char *kind, int32_t batch, uint32_t length, uint32_t shared, bool pays)
{
	struct fa_cuda_chip chip = *paged_gpu_chip(time_gpu);
	struct cell cell = equal_lengths(batch, length);
	const struct cell single_cell = equal_lengths(1, length);
	struct time_run together, apart, single;
	struct contest contest = { .n = 0 };
	struct time_bare bare;
	struct time_scene scene, single_scene;
	uint32_t *table, *slots, n;

	snprintf(cell.shape, sizeof(cell.shape), "b%d-c%u-s%u", batch, length, shared);
	if (!cell_scene_init(&scene, &cell))
		return;
	if (!cell_scene_init(&single_scene, &single_cell)) {
		time_scene_deinit(&scene);
		return;
	}
	table = calloc(2 * (size_t)scene.step.table_entries, sizeof(*table));
	if (!table)
		abort();
	slots = table + scene.step.table_entries;
	n = share(&scene, shared / (uint32_t)time_options.page, table, slots);
	/* --quick has small shapes, which would not be grouped otherwise. */
	chip.share_early = time_options.quick;
	chip.pack = time_options.pack;
	time_run_init(&together, &scene, &chip, table, false);
	time_run_init(&apart, &scene, NULL, NULL, false);
	time_run_init(&single, &single_scene, NULL, NULL, false);
	time_bare_init(&bare, &scene, slots, n);
	contest_add(&contest, "ours", time_run, &together);
	contest_add(&contest, "bare", time_run_bare, &bare);
	contest_add(&contest, "unshared", time_run, &apart);
	contest.scales[contest.n] = batch;
	contest_add(&contest, "singles", time_run, &single);
	if (prefixes_of(&together) != pays || prefixes_of(&apart) != 0) {
		fprintf(stderr, "%s: %u prefixes, and unshared %u; expected %d and 0\n", cell.shape,
		        prefixes_of(&together), prefixes_of(&apart), pays);
		time_failed = true;
	}
	if (time_check(&together, cell.shape) && time_check(&apart, cell.shape) &&
	    time_compare(&together, &apart, cell.shape))
		measure_and_print(&contest, kind, &cell, bare.bytes);
	time_bare_deinit(&bare);
	time_run_deinit(&single);
	time_scene_deinit(&single_scene);
	time_run_deinit(&apart);
	time_run_deinit(&together);
	time_scene_deinit(&scene);
	free(table);
}

static void shared_cell(int32_t batch, uint32_t length, uint32_t shared, bool pays)
{
	shared_as("decode-shared", batch, length, shared, pays);
}

void time_shared(void)
{
	const struct time_options before = time_options;

	if (time_options.quick) {
		shared_cell(16, 1088, 1024, true);
		shared_cell(3, 128, 64, false);
		return;
	}
	shared_cell(64, 9216, 8192, true);
	/* Grouping these sequences would save less than combining their partial results costs. */
	shared_cell(16, 4096, 2048, false);
	shared_cell(8, 4096, 2048, false);
	/* The sequences share one page. */
	shared_cell(64, 1024, 64, false);
	/* Agents that extend one prefix. */
	time_options.n_new = 8;
	shared_as("extend-shared", 16, 32768 + 8, 32768, true);
	shared_as("extend-shared", 32, 8192 + 512, 8192, true);
	time_options.n_new = 24;
	shared_as("extend-shared", 8, 16384 + 256, 16384, true);
	/* The rows of one sequence fill its tiles. */
	time_options.n_new = 128;
	shared_as("extend-shared", 16, 32768 + 128, 32768, false);
	time_options = before;
}

/* ---- deterministic */

static void deterministic_one(const struct cell *cell)
{
	struct time_run ours, usual;
	struct contest contest = { .n = 0 };
	struct time_scene scene;
	struct time_bare bare;

	if (!cell_scene_init(&scene, cell))
		return;
	time_run_init(&ours, &scene, NULL, NULL, true);
	time_run_init(&usual, &scene, NULL, NULL, false);
	time_bare_init(&bare, &scene, scene.table, scene.step.table_entries);
	contest_add(&contest, "ours", time_run, &ours);
	contest_add(&contest, "bare", time_run_bare, &bare);
	contest_add(&contest, "usual", time_run, &usual);
	if (time_check(&ours, cell->shape) && time_compare(&ours, &usual, cell->shape))
		measure_and_print(&contest, "decode-deterministic", cell, bare.bytes);
	time_bare_deinit(&bare);
	time_run_deinit(&usual);
	time_run_deinit(&ours);
	time_scene_deinit(&scene);
}

void time_deterministic(void)
{
	static const struct size sizes[] = { { 1, 16384 }, { 8, 4096 }, { 32, 4096 } };
	struct cell cell;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		cell = time_options.quick ? equal_lengths(2, 256 << i)
		                          : equal_lengths(sizes[i].batch, sizes[i].length);
		deterministic_one(&cell);
	}
	cell = mixed_lengths();
	deterministic_one(&cell);
}
