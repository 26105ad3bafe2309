/*
 * Tests without a GPU which steps go as packed rows, and that their units cover every row and every
 * key that it sees once.
 */
#include "kernels/cuda/common/packed-args.h"
#include "tests/unit/cuda-paged-scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define PACKED "fa_sm90_paged_prefill_bf16_d128_v128_packed"
#define BAND "fa_sm90_paged_prefill_bf16_d128_v128_band"

static void check_unit(const struct scene *scene, const struct fa_cuda_paged_plan *plan,
                       const struct fa_cuda_paged_unit *unit, uint8_t *covered, uint32_t parts)
{
	const struct fa_paged_attention *p = &scene->request.attention;
	const struct fa_cuda_paged_item *items = (const void *)(scene->blob +
	                                                        plan->forward_items_at);
	const struct fa_cuda_paged_item *item = &items[unit->item];
	const uint32_t tokens = 1u << plan->pack_shift, heads = 64 / tokens;
	const uint32_t group = (uint32_t)(p->heads / p->cache->kv_heads);
	const int64_t diagonal = item->packed.diagonal;
	uint32_t set = unit->parts_set >> FA_CUDA_PAGED_UNIT_SET_SHIFT;
	uint32_t head = unit->head, token = unit->token;
	const uint32_t keys = (uint32_t)plan->forward->keys;
	const uint32_t begin = (unit->last + 1 - unit->count) * keys, end = (unit->last + 1) * keys;

	assert_true(unit->item < plan->forward_items && unit->count >= 1);
	assert_true(unit->count <= plan->unit_tiles && parts >= 1);
	assert_int_equal(head % group, set * heads);
	for (int32_t g = 0; g < plan->forward->rows / 64; g++) {
		for (uint32_t i = token; i < token + tokens && i < item->packed.end_row; i++)
			for (uint32_t h = head; h < head + heads; h++) {
				int64_t seen = p->causal ? i + diagonal + 1 : item->n_k;
				int64_t first = item->first;

				if (i < item->packed.begin_row)
					continue;
				seen = seen < item->n_k ? seen : item->n_k;

				if (p->window_left >= 0 && i + diagonal - p->window_left > first)
					first = i + diagonal - p->window_left;
				/* Marks the row's keys in steps of a tile. */
				for (uint32_t key = begin; key < end; key += keys)
					if (key < seen && key + keys > first)
						covered[(((item->first_q + i) * (uint32_t)p->heads +
						          h) *
						         512) +
						        key / keys]++;
			}
		head += heads;
		if (++set == (uint32_t)plan->pack_sets) {
			set = 0;
			head -= group;
			token += tokens;
		}
	}
}

/* Every row has every tile that it sees once. Parts of a block follow one another in a range of
 * partial results of its own. */
static void check_packed(const struct scene *scene, const struct fa_cuda_paged_plan *plan)
{
	const struct fa_paged_attention *p = &scene->request.attention;
	const struct fa_cuda_paged_unit *units = (const void *)(scene->blob +
	                                                        plan->forward_blocks_at);
	const struct fa_cuda_paged_item *items = (const void *)(scene->blob +
	                                                        plan->forward_items_at);
	const uint32_t keys = (uint32_t)plan->forward->keys;
	const size_t rows = (size_t)scene->step.cu_new[scene->step.batch] * (size_t)p->heads;
	uint8_t *covered = calloc(rows, 512), *partials = calloc(plan->unit_partials + 1, 1);

	assert_non_null(covered);
	assert_non_null(partials);
	for (uint32_t u = 0; u < plan->forward_blocks; u++) {
		const uint32_t parts = units[u].parts_set / FA_CUDA_PAGED_UNIT_PARTS %
		                       FA_CUDA_PAGED_UNIT_PARTS;
		const uint32_t part = units[u].parts_set % FA_CUDA_PAGED_UNIT_PARTS;

		assert_true(part < parts);
		check_unit(scene, plan, &units[u], covered, parts);
		if (parts == 1)
			continue;
		assert_true(units[u].partial + part < plan->unit_partials);
		assert_int_equal(partials[units[u].partial + part]++, 0);
		assert_true((units[u].counter + FA_CUDA_PACKED_COUNTERS(parts)) *
		                    (uint32_t)(plan->forward->rows / 16) <=
		            FA_CUDA_PAGED_UNIT_COUNTERS);
		for (uint32_t v = 0; v < u; v++)
			if (units[v].parts_set / FA_CUDA_PAGED_UNIT_PARTS %
			            FA_CUDA_PAGED_UNIT_PARTS >
			    1)
				assert_int_equal(units[v].counter == units[u].counter,
				                 units[v].partial == units[u].partial);
	}
	for (uint32_t b = 0; b < plan->forward_items; b++)
		for (uint32_t i = 0; i < items[b].n_q; i++)
			for (uint32_t h = 0; h < (uint32_t)p->heads; h++) {
				const int64_t diagonal = (int64_t)items[b].n_k - items[b].n_q;
				const int64_t seen = p->causal ? i + diagonal + 1 : items[b].n_k;
				int64_t first = items[b].first;

				if (p->window_left >= 0 && i + diagonal - p->window_left > first)
					first = i + diagonal - p->window_left;
				for (int64_t tile = first / keys; tile <= (seen - 1) / keys; tile++)
					assert_int_equal(covered[((items[b].first_q + i) *
					                                  (uint32_t)p->heads +
					                          h) * 512 +
					                         (uint32_t)tile],
					                 1);
			}
	free(partials);
	free(covered);
}

/* Every row of sequence @b has each tile of its prefix and each tile of its other keys once; @shared:
 * keys of the prefix. */
static void check_row_tiles(const struct scene *scene, uint32_t b, uint32_t shared, uint32_t keys,
                            const uint8_t *covered)
{
	const struct fa_paged_attention *p = &scene->request.attention;
	const uint32_t n_new = scene->cu_new[b + 1] - scene->cu_new[b];

	for (uint32_t i = 0; i < n_new; i++)
		for (uint32_t h = 0; h < (uint32_t)p->heads; h++) {
			const uint32_t seen = p->causal ? scene->lengths[b] - n_new + i + 1
			                                : scene->lengths[b];
			const size_t row = (scene->cu_new[b] + i) * (size_t)p->heads + h;
			const uint32_t from = scene->first[b] / keys;

			for (uint32_t tile = 0; tile < 512; tile++) {
				const uint32_t at = tile * keys;
				uint32_t expected = tile >= from && at < seen;

				/* The tile in which the prefix ends. */
				if (at < shared && at + keys > shared && seen > shared)
					expected = 2;
				assert_int_equal(covered[row * 512 + tile], expected);
			}
		}
}

/* Makes a step of two groups of sequences that share pages, with some that share none. Returns the
 * table, which the caller frees. */
static uint32_t *make_shared(struct scene *scene, uint32_t *ret_shared)
{
	const uint32_t page = (uint32_t)scene->cache.page_tokens;
	uint32_t *table = calloc((size_t)scene->step.batch * 1024, sizeof(*table));
	uint32_t slot = 0, group = 0, pages = 0, first = 0;

	assert_non_null(table);
	for (int32_t b = 0; b < scene->step.batch; b++) {
		const uint32_t n_new = 2 + below(below(3) ? 20 : 200);

		/* A new group, or none. */
		if (b == 0 || below(5) == 0) {
			group = (uint32_t)b;
			pages = below(4) ? 1 + below(8000 / page) : 0;
			first = below(4) ? 0 : below(pages * page + 1);
		}
		ret_shared[b] = pages * page;
		scene->first[b] = first;
		scene->cu_new[b + 1] = scene->cu_new[b] + n_new;
		scene->lengths[b] = pages * page + below(600) + n_new;
		/* Dropped pages have no entries, so that table_start may wrap. */
		scene->table_start[b] = (uint32_t)b * 1024 - first / page;
		for (uint32_t i = 0; i < 1024; i++)
			table[b * 1024 + (int32_t)i] = first / page + i < pages &&
			                                               group != (uint32_t)b
			                                       ? table[group * 1024 + i]
			                                       : slot++;
	}
	scene->step.host_table = table;
	return table;
}

/* Rows of sequences that share a prefix: those of other sequences in a block do not count. */
static void test_share(void **state)
{
	int packed = 0;

	for (int i = 0; i < 200; i++) {
		struct fa_cuda_chip chip = h200;
		struct fa_cuda_paged_plan plan;
		const struct fa_cuda_paged_item *items;
		const struct fa_cuda_paged_unit *units;
		uint32_t shared[16], *table, n = 0;
		uint8_t *covered;
		struct scene scene;

		scene_init(&scene, 2 + (int32_t)below(14));
		scene.request.attention.heads = 8 << below(3);
		scene.request.attention.causal = below(4) > 0;
		scene.cache.page_tokens = 16 << below(4);
		table = make_shared(&scene, shared);
		chip.pack = below(3) ? 0 : 3 + (int32_t)below(20);
		scene_plan(&scene, &chip, &plan);
		items = (const void *)(scene.blob + plan.forward_items_at);
		units = (const void *)(scene.blob + plan.forward_blocks_at);
		covered = calloc((size_t)scene.cu_new[scene.step.batch] * 32, 512);
		assert_non_null(covered);
		for (uint32_t u = 0; u < plan.forward_blocks && plan.packed_prefixes > 0; u++)
			check_unit(&scene, &plan, &units[u], covered,
			           units[u].parts_set / FA_CUDA_PAGED_UNIT_PARTS %
			                   FA_CUDA_PAGED_UNIT_PARTS);
		for (uint32_t item = 0; item < plan.forward_items && plan.packed_prefixes > 0;
		     item++) {
			const uint32_t suffix = items[item].packed.suffix;

			/* A run's items follow one another, and its rows are its sequences'. */
			if (suffix == FA_CUDA_PACKED_ALONE || item >= suffix)
				continue;
			assert_int_equal(suffix, item + 1);
			n++;
			for (uint32_t next = suffix, row = 0; row < items[item].n_q; next++) {
				uint32_t b = 0;

				assert_int_equal(items[next].packed.suffix, suffix);
				assert_int_equal(items[next].packed.begin_row, row);
				while (scene.cu_new[b] != items[item].first_q + row)
					b++;
				row = items[next].packed.end_row;
				assert_int_equal(scene.table_start[b], items[next].table_start);
				assert_int_equal(items[next].n_k, scene.lengths[b]);
				assert_true(items[item].n_k <= shared[b]);
				check_row_tiles(&scene, b, items[item].n_k,
				                (uint32_t)plan.forward->keys, covered);
			}
		}
		assert_int_equal(n, plan.packed_prefixes);
		packed += n > 0;
		free(covered);
		free(table);
		free(scene.blob);
	}
	assert_true(packed > 50);
}

/* Where rows of several sequences fill a tile together, they do. */
static void test_share_choice(void **state)
{
	static const struct {
		uint32_t n_new, before, shared;
		int32_t batch;
		uint32_t prefixes, decode_prefixes;
	} cases[] = {
		{ 8, 32768, 32768, 16, 1, 0 },
		{ 16, 32768, 32768, 16, 1, 0 },
		/* A sequence's rows fill tiles alone. */
		{ 128, 32768, 32768, 16, 0, 0 },
		/* Decode. */
		{ 1, 9216, 8192, 64, 0, 1 },
		/* The sequences share one page. */
		{ 8, 4096, 64, 16, 0, 0 },
		{ 8, 32768, 0, 16, 0, 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const uint32_t each = (cases[i].before + cases[i].n_new) / 64 + 1;
		uint32_t *const table = calloc(each * (uint32_t)cases[i].batch, sizeof(*table));
		struct fa_cuda_paged_plan plan;
		struct scene scene;

		assert_non_null(table);
		scene_init(&scene, cases[i].batch);
		scene.request.attention.heads = 32;
		scene.cache.kv_heads = 8;
		scene.cache.page_tokens = 64;
		for (uint32_t b = 0; b < (uint32_t)cases[i].batch; b++) {
			scene.cu_new[b + 1] = scene.cu_new[b] + cases[i].n_new;
			scene.lengths[b] = cases[i].before + cases[i].n_new;
			scene.table_start[b] = b * each;
			for (uint32_t j = 0; j < each; j++)
				table[b * each + j] = j < cases[i].shared / 64 ? j : b * each + j;
		}
		scene.step.host_table = table;
		scene_plan(&scene, &h200, &plan);
		assert_int_equal(plan.packed_prefixes, cases[i].prefixes);
		assert_int_equal(plan.prefixes, cases[i].decode_prefixes);
		free(scene.blob);
		free(table);
	}
}

static void test_cover(void **state)
{
	static const int32_t heads[] = { 8, 16, 24, 32, 40, 64, 128 };
	int packed = 0;

	for (int i = 0; i < 400; i++) {
		struct fa_cuda_chip chip = h200;
		struct fa_cuda_paged_plan plan;
		struct scene scene;

		scene_init(&scene, 1 + (int32_t)below(4));
		scene.request.attention.heads = heads[below(7)];
		scene.request.attention.window_left = below(3) ? -1 : (int64_t)below(5000);
		scene.request.attention.causal = below(4) > 0;
		scene.cache.head_dim = scene.cache.head_dim_v = 64 << below(3);
		for (int32_t b = 0; b < scene.step.batch; b++) {
			const uint32_t n_new = 48 + below(below(3) ? 100 : 600);

			scene.cu_new[b + 1] = scene.cu_new[b] + n_new;
			scene.lengths[b] = n_new + below(below(3) ? 20000 : 300);
			scene.first[b] = below(4) ? 0 : below(scene.lengths[b] - n_new + 1);
		}
		chip.pack = below(3) ? 0 : 1 + (int32_t)below(20);
		scene_plan(&scene, &chip, &plan);
		if (plan.forward->kind == FA_CUDA_PAGED_PACKED) {
			check_packed(&scene, &plan);
			packed++;
		}
		free(scene.blob);
	}
	assert_true(packed > 100);
}

/* MLA in plain form. */
static void test_plain_mla(void **state)
{
	struct fa_cuda_paged_plan plan;
	struct scene scene;

	scene_init(&scene, 1);
	scene.cu_new[1] = 64;
	scene.lengths[0] = 32768;
	scene.cache.kv_heads = scene.request.attention.heads = 16;
	scene.cache.head_dim = 192;
	scene.cache.head_dim_v = 128;
	scene_plan(&scene, &h200, &plan);
	assert_string_equal(plan.forward->symbol, "fa_sm90_paged_prefill_bf16_d192_v128_packed");
	check_packed(&scene, &plan);
	free(scene.blob);
	scene.request.attention.deterministic = true;
	scene_plan(&scene, &h200, &plan);
	assert_string_equal(plan.forward->symbol, "fa_sm90_paged_prefill_bf16_d192_v128_band");
	free(scene.blob);
}

/* What is packed, in how many units, and how. */
static void test_choice(void **state)
{
	static const struct {
		uint32_t n_new, before;
		int32_t batch, heads, kv_heads;
		const char *symbol;
		uint32_t units_min, units_max, shift;
	} cases[] = {
		/* 64 tokens fill a group per head: 2 blocks for each KV head of 4. */
		{ 64, 131072, 1, 32, 8, PACKED, 112, 132, 6 },
		{ 64, 8192, 1, 32, 8, PACKED, 112, 132, 6 },
		{ 512, 65536, 1, 4, 1, PACKED, 112, 132, 6 },
		/* 128 blocks of rows need no division. */
		{ 512, 32768, 1, 32, 8, PACKED, 128, 132, 6 },
		/* 80 tokens of 32 rows of each of 2 heads leave fewer rows empty. */
		{ 80, 32768, 1, 32, 8, PACKED, 96, 132, 5 },
		/* Groups of 5 heads cannot share rows. */
		{ 64, 32768, 1, 40, 8, PACKED, 96, 132, 6 },
		/* Long prompts fill the GPU. */
		{ 8192, 0, 1, 32, 8, BAND, 0, 0, 0 },
		{ 2048, 0, 8, 32, 8, BAND, 0, 0, 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fa_cuda_paged_plan plan;
		struct scene scene;

		scene_init(&scene, cases[i].batch);
		scene.request.attention.heads = cases[i].heads;
		scene.cache.kv_heads = cases[i].kv_heads;
		for (int32_t b = 0; b < cases[i].batch; b++) {
			scene.cu_new[b + 1] = scene.cu_new[b] + cases[i].n_new;
			scene.lengths[b] = cases[i].before + cases[i].n_new;
		}
		scene_plan(&scene, &h200, &plan);
		assert_string_equal(plan.forward->symbol, cases[i].symbol);
		if (cases[i].units_max > 0) {
			assert_in_range(plan.forward_blocks, cases[i].units_min,
			                cases[i].units_max);
			assert_int_equal(plan.pack_shift, cases[i].shift);
		}
		free(scene.blob);
		/* The bits of a sequence must not depend on the step. */
		scene.request.attention.deterministic = true;
		scene_plan(&scene, &h200, &plan);
		assert_string_equal(plan.forward->symbol, BAND);
		free(scene.blob);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cover),        cmocka_unit_test(test_choice),
		cmocka_unit_test(test_plain_mla),    cmocka_unit_test(test_share),
		cmocka_unit_test(test_share_choice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
