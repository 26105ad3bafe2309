/* The part "copies" of time-paged: tokens from the pool to a client's own pages, and back, against
 * a copy of as many bytes. */
#include "bench/kernels/paged-copies.h"
#include "bench/kernels/paged-scene.h"

#include <stdio.h>
#include <stdlib.h>

struct copies {
	struct time_scene scene;
	uint64_t own;    /* K's pages, then V's */
	uint32_t *pages; /* a permutation */
	uint32_t n_pages;
};

static void run_copy(void *userdata)
{
	const struct copies *copies = userdata;

	paged_gpu_copy(time_gpu, copies->own, copies->scene.pool, 2 * copies->scene.kv_bytes);
}

static void pages_draw(struct copies *copies, uint32_t n)
{
	copies->pages = calloc(n, sizeof(*copies->pages));
	copies->n_pages = n;
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t j = time_random_below(i + 1);

		copies->pages[i] = copies->pages[j];
		copies->pages[j] = i;
	}
}

static void measure(struct copies *copies, uint32_t length, int32_t page_tokens, bool by_head,
                    bool writes)
{
	const int64_t row = time_options.dim, heads = time_options.kv_heads;
	struct fa_attention_tensor tensor = {
		.stride_batch = page_tokens * heads * row,
		.stride_token = by_head ? row : heads * row,
		.stride_head = by_head ? page_tokens * row : row,
	};
	void *k[] = { TIME_POINTER(copies->own) };
	void *v[] = { TIME_POINTER(copies->own + copies->scene.kv_bytes) };
	struct time_run run = { .scene = &copies->scene };
	const struct time_contestant contestants[] = { { time_run, &run }, { run_copy, copies } };
	char name[128];
	double ns[2];

	pages_draw(copies, length / (uint32_t)page_tokens);
	run.request.op = writes ? FA_PAGED_WRITE_OWN : FA_PAGED_READ_OWN;
	run.request.own_copy = (struct fa_paged_own_copy){
		.cache = &copies->scene.cache,
		.step = &copies->scene.step,
		.n_layers = 1,
		.k = tensor,
		.v = tensor,
		.k_data = k,
		.v_data = v,
		.page_tokens = page_tokens,
		.pages = copies->pages,
		.n_pages = copies->n_pages,
	};
	if (paged_gpu_plan(time_gpu, paged_gpu_chip(time_gpu), &run.request, &run.plan) < 0)
		exit(1);
	time_measure(contestants, 2, ns);
	snprintf(name, sizeof(name), "copies/%s/t%u-n%d-h%d.%d-d%d-p%d/%s-%s", time_options.type,
	         length, page_tokens, time_options.heads, time_options.kv_heads, time_options.dim,
	         time_options.page, by_head ? "hnd" : "nhd", writes ? "write" : "read");
	time_print(name, ns[0] / 1e3, "us", "copy", ns[1] / ns[0]);
	time_run_deinit(&run);
	free(copies->pages);
}

void time_copies(void)
{
	static const int32_t sizes[] = { 16, 64, 128, 1 };
	const uint32_t length = time_options.quick ? 128 : 32768;
	struct copies copies;

	/* Codes take fewer bytes in the pool than outside. */
	if (time_options.store != FA_PAGED_PLAIN ||
	    !time_scene_init(&copies.scene, 1, &length, length))
		return;
	copies.own = paged_gpu_alloc(time_gpu, 2 * copies.scene.kv_bytes);
	if (copies.own)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
			for (int form = 0; form < 4; form++)
				measure(&copies, length, sizes[i], form / 2, form % 2);
	paged_gpu_free(time_gpu, copies.own);
	time_scene_deinit(&copies.scene);
}
