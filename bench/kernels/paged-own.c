/* Times attention over a client's own pages, of several sizes and layouts, against the pool's. */
#include "bench/kernels/paged-decode.h"
#include "bench/kernels/paged-scene.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

/* K and V are the halves of the scene's pool, as pages of any size; values do not matter. */
struct own {
	struct time_run run;
	struct fa_paged_own pages;
	const char *layout; /* "nhd" or "hnd" */
	uint64_t table, lengths;
};

static struct fa_attention_tensor pages_at(const struct own *own, uint64_t at)
{
	const int64_t dim = time_options.dim, heads = time_options.kv_heads,
		      tokens = own->pages.page_tokens;
	const bool by_head = own->layout[0] == 'h';

	return (struct fa_attention_tensor){
		.data = TIME_POINTER(at),
		.stride_batch = tokens * heads * dim,
		.stride_token = by_head ? dim : heads * dim,
		.stride_head = by_head ? tokens * dim : dim,
	};
}

/* Uploads a table of pages in random order. */
static void make_table(struct own *own, const struct time_scene *scene)
{
	struct fa_paged_own_attention *p = &own->run.request.own_attention;
	const int32_t tokens = own->pages.page_tokens;
	int32_t *table, *order, n = 0;

	for (int32_t b = 0; b < p->batch; b++) {
		const int32_t length = (int32_t)scene->lengths[b];

		p->max_k = length > p->max_k ? length : p->max_k;
	}
	p->table_columns = (p->max_k + tokens - 1) / tokens;
	p->table_stride = p->table_columns;
	table = calloc((size_t)(p->batch * p->table_stride), sizeof(*table));
	order = calloc((size_t)own->pages.pages, sizeof(*order));
	if (!table || !order)
		abort();
	for (int32_t i = 0; i < own->pages.pages; i++) {
		const int32_t other = (int32_t)time_random_below((uint32_t)i + 1);

		order[i] = order[other];
		order[other] = i;
	}
	for (int32_t b = 0; b < p->batch; b++)
		for (int32_t i = 0; i * tokens < (int32_t)scene->lengths[b]; i++)
			table[b * p->table_stride + i] = order[n++];
	own->table = paged_gpu_alloc(time_gpu, (size_t)(p->batch * p->table_stride) * 4);
	paged_gpu_upload(time_gpu, own->table, table, (size_t)(p->batch * p->table_stride) * 4);
	own->lengths = paged_gpu_alloc(time_gpu, (size_t)p->batch * 4);
	paged_gpu_upload(time_gpu, own->lengths, scene->lengths, (size_t)p->batch * 4);
	p->table = TIME_POINTER(own->table);
	p->lengths = TIME_POINTER(own->lengths);
	free(table);
	free(order);
}

static void own_init(struct own *own, const struct time_scene *scene, const struct time_run *pool,
                     const char *layout, int32_t page_tokens)
{
	const struct fa_paged_attention *from = &pool->request.attention;
	const size_t half = (size_t)scene->step.table_entries * scene->page_bytes / 2;
	const int64_t page_bytes = (int64_t)page_tokens * time_options.kv_heads * time_options.dim *
	                           2;
	struct fa_paged_own_attention *p = &own->run.request.own_attention;

	*own = (struct own){ .layout = layout };
	own->pages = (struct fa_paged_own){
		.dtype = FA_ATTENTION_BF16,
		.kv_heads = time_options.kv_heads,
		.head_dim = time_options.dim,
		.head_dim_v = time_options.dim,
		.page_tokens = page_tokens,
		.pages = (int32_t)((int64_t)half / page_bytes),
	};
	own->pages.k = pages_at(own, scene->pool);
	own->pages.v = pages_at(own, scene->pool + half);
	own->run.scene = scene;
	own->run.out = paged_gpu_alloc(time_gpu, scene->q_bytes);
	own->run.lse = paged_gpu_alloc(time_gpu, scene->q_bytes);
	own->run.request.op = FA_PAGED_ATTEND_OWN;
	*p = (struct fa_paged_own_attention){
		.pages = &own->pages,
		.batch = scene->step.batch,
		.heads = from->heads,
		.max_q = time_options.n_new,
		.total_q = (int64_t)scene->step.batch * time_options.n_new,
		.q = from->q,
		.out = time_tensor(own->run.out, time_options.heads),
		.lse = TIME_POINTER(own->run.lse),
		.lse_stride_token = from->lse_stride_token,
		.lse_stride_head = from->lse_stride_head,
		.scale = from->scale,
		.causal = true,
		.window_left = -1,
		.window_right = -1,
	};
	make_table(own, scene);
	if (paged_gpu_plan(time_gpu, paged_gpu_chip(time_gpu), &own->run.request, &own->run.plan) <
	    0)
		exit(1);
}

static void own_deinit(struct own *own)
{
	time_run_deinit(&own->run);
	paged_gpu_free(time_gpu, own->table);
	paged_gpu_free(time_gpu, own->lengths);
}

static void own_cell(const char *kind, int32_t batch, uint32_t length)
{
	static const struct {
		const char *layout;
		int32_t page_tokens;
	} forms[] = { { "nhd", 16 },  { "hnd", 16 },  { "nhd", 64 }, { "hnd", 64 },
		      { "nhd", 128 }, { "hnd", 128 }, { "nhd", 1 },  { "nhd", 8 } };
	enum {
		FORMS = sizeof(forms) / sizeof(forms[0])
	};
	struct time_contestant contestants[1 + FORMS];
	struct own owns[FORMS];
	double ns[1 + FORMS];
	uint32_t *lengths = calloc((size_t)batch, sizeof(*lengths));
	struct time_scene scene;
	struct time_run pool;
	char name[128], shape[32];

	snprintf(shape, sizeof(shape), "b%d-c%u", batch, length);
	for (int32_t b = 0; b < batch; b++)
		lengths[b] = length;
	if (fnmatch(time_options.shapes, shape, 0) != 0 ||
	    !time_scene_init(&scene, batch, lengths, (uint32_t)time_options.n_new)) {
		free(lengths);
		return;
	}
	free(lengths);
	time_run_init(&pool, &scene, NULL, NULL, false);
	contestants[0] = (struct time_contestant){ time_run, &pool };
	for (int i = 0; i < FORMS; i++) {
		own_init(&owns[i], &scene, &pool, forms[i].layout, forms[i].page_tokens);
		contestants[1 + i] = (struct time_contestant){ time_run, &owns[i].run };
	}
	time_measure(contestants, 1 + FORMS, ns);
	for (int i = 0; i < FORMS; i++) {
		snprintf(name, sizeof(name), "%s/%s/%s-h%d.%d-d%d-p%d-q%d/%s", kind,
		         time_options.type, shape, time_options.heads, time_options.kv_heads,
		         time_options.dim, forms[i].page_tokens, time_options.n_new,
		         forms[i].layout);
		time_print(name, ns[1 + i] / 1e3, "us", "pool", ns[0] / ns[1 + i]);
		own_deinit(&owns[i]);
	}
	time_run_deinit(&pool);
	time_scene_deinit(&scene);
}

void time_own(void)
{
	static const struct {
		int32_t batch;
		uint32_t length;
		int32_t n_new;
	} cells[] = {
		{ 1, 1024, 1 },    { 1, 16384, 1 },   { 8, 1024, 1 },    { 8, 4096, 1 },
		{ 32, 1024, 1 },   { 32, 4096, 1 },   { 128, 4096, 1 },  { 8, 4096, 4 },
		{ 1, 8192, 16 },   { 1, 32768, 16 },  { 1, 131072, 16 }, { 1, 8192, 64 },
		{ 1, 32768, 64 },  { 1, 32768, 128 }, { 1, 32768, 512 }, { 4, 8192, 64 },
		{ 1, 1024, 1024 }, { 1, 8192, 8192 }, { 8, 1024, 1024 },
	};
	const struct time_options before = time_options;

	if (time_options.store != FA_PAGED_PLAIN)
		return;
	if (time_options.quick) {
		own_cell("decode-own", 2, 256);
		time_options.n_new = 128;
		own_cell("prefill-own", 1, 128);
	}
	for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]) && !time_options.quick; i++) {
		time_options.n_new = cells[i].n_new;
		own_cell(cells[i].n_new == (int32_t)cells[i].length ? "prefill-own"
		         : cells[i].n_new >= 16                     ? "extend-own"
		                                                    : "decode-own",
		         cells[i].batch, cells[i].length);
	}
	time_options = before;
}
