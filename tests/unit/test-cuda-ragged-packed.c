/*
 * Tests without a GPU which ragged batches go as packed rows (kernels/cuda/plan-packed.c), and that
 * their units have every row, with every key that it sees, once.
 */
#include "tests/unit/cuda-ragged-scene.h"

#include "kernels/cuda/common/paged-args.h"

#include <stdlib.h>

static char list[FA_CUDA_LIST_BYTES_MAX] __attribute__((aligned(16)));

/* @pack: as in struct fa_cuda_chip. Returns whether rows are packed. */
static bool plan(int32_t pack)
{
	struct fa_cuda_chip chip = hopper;

	chip.workspace = true;
	chip.pack = pack;
	plan_on(&chip);
	if (batch.launch.kernel->kind != FA_CUDA_PACKED_RAGGED) {
		assert_int_not_equal(batch.launch.kernel->kind, FA_CUDA_PACKED);
		assert_int_equal(fa_cuda_packed_list_bytes(&batch.launch), 0);
		return false;
	}
	assert_int_equal(batch.launch.list_units, 0);
	assert_int_equal(batch.launch.grid, batch.launch.packed.n_units);
	assert_in_range(fa_cuda_packed_list_bytes(&batch.launch), 1, sizeof(list));
	fa_cuda_packed_list(&batch.launch, list, (uint64_t)(uintptr_t)list);
	return true;
}

static bool sees(const struct fa_cuda_paged_item *item, uint32_t token, uint32_t tile)
{
	const struct fa_attention_params *p = &batch.params;
	const int64_t keys = batch.launch.kernel->keys, at = (int64_t)token + item->n_k - item->n_q;
	int64_t begin = p->window_left >= 0 ? at - p->window_left : 0, end = item->n_k;

	if (p->causal)
		end = at + 1;
	else if (p->window_right >= 0 && at + p->window_right + 1 < end)
		end = at + p->window_right + 1;
	return tile * keys < end && (tile + 1) * keys > begin;
}

/* Marks the rows and tiles of a unit in @marks, [heads][token][tile]. */
static void mark(const struct fa_cuda_paged_unit *unit, uint8_t *marks, uint32_t tiles)
{
	const struct fa_cuda_packed_attention *packed = &batch.launch.packed;
	const struct fa_cuda_paged_item *item = &packed->items[unit->item];
	const uint32_t tokens = 1u << packed->pack_shift, heads = 64 / tokens;
	const uint32_t group = (uint32_t)packed->attention.group;
	uint32_t set = unit->parts_set >> FA_CUDA_PAGED_UNIT_SET_SHIFT;
	uint32_t head = unit->head, token = unit->token;

	assert_int_equal(head % group, set * heads);
	for (int32_t g = 0; g < batch.launch.kernel->rows / 64; g++) {
		for (uint32_t i = token; i < token + tokens && i < item->n_q; i++)
			for (uint32_t h = head; h < head + heads; h++)
				for (uint32_t n = 0; n < unit->count; n++)
					marks[((size_t)h * item->n_q + i) * tiles + unit->last -
					      n]++;
		head += heads;
		if (++set == (uint32_t)packed->pack_sets) {
			set = 0;
			head -= group;
			token += tokens;
		}
	}
}

static void check_item(uint32_t at)
{
	const struct fa_cuda_packed_attention *packed = &batch.launch.packed;
	const struct fa_cuda_paged_item *item = &packed->items[at];
	const uint32_t keys = (uint32_t)batch.launch.kernel->keys;
	const uint32_t tiles = (item->n_k + keys - 1) / keys;
	const uint32_t heads = (uint32_t)batch.params.heads;
	uint8_t *marks = calloc((size_t)heads * item->n_q, tiles);

	assert_non_null(marks);
	for (uint32_t u = 0; u < packed->n_units; u++)
		if (packed->units[u].item == at) {
			assert_true(packed->units[u].last < tiles);
			assert_in_range(packed->units[u].count, 1, packed->units[u].last + 1);
			mark(&packed->units[u], marks, tiles);
		}
	/* A block's rows have the tiles that any of them sees, each once. */
	for (uint32_t h = 0; h < heads; h++)
		for (uint32_t i = 0; i < item->n_q; i++)
			for (uint32_t tile = 0; tile < tiles; tile++) {
				const uint8_t n = marks[((size_t)h * item->n_q + i) * tiles + tile];

				assert_true(n == 1 || (n == 0 && !sees(item, i, tile)));
			}
	free(marks);
}

/* Every sequence with rows is an item, and each block's parts have memory of their own. */
static void check(void)
{
	const struct fa_cuda_packed_attention *packed = &batch.launch.packed;
	const size_t state = (size_t)batch.launch.kernel->state_bytes;
	const size_t partials = batch.launch.workspace_bytes / state;
	uint8_t *taken = calloc(partials + 1, 1);
	uint32_t n = 0;

	assert_non_null(taken);
	for (int32_t b = 0; b < batch.params.batch; b++) {
		const uint32_t n_q = batch.cu_q[b + 1] - batch.cu_q[b];

		for (uint32_t i = 0; i < batch.launch.list_items && n_q > 0; i++)
			if (packed->items[i].first_q == batch.cu_q[b] &&
			    packed->items[i].n_q == n_q) {
				assert_int_equal(packed->items[i].table_start, batch.cu_k[b]);
				assert_int_equal(packed->items[i].n_k,
				                 batch.cu_k[b + 1] - batch.cu_k[b]);
				n++;
			}
	}
	assert_int_equal(n, batch.launch.list_items);
	for (uint32_t i = 0; i < n; i++) {
		assert_true(i == 0 || packed->items[i].n_k <= packed->items[i - 1].n_k);
		check_item(i);
	}
	for (uint32_t u = 0; u < packed->n_units; u++) {
		const struct fa_cuda_paged_unit *unit = &packed->units[u];
		const uint32_t part = unit->parts_set % FA_CUDA_PAGED_UNIT_PARTS;
		const uint32_t parts = unit->parts_set / FA_CUDA_PAGED_UNIT_PARTS %
		                       FA_CUDA_PAGED_UNIT_PARTS;

		assert_true(part < parts);
		if (parts == 1)
			continue;
		assert_true(FA_CUDA_PACKED_WORKSPACE_ZERO + (unit->partial + part + 1) * state <=
		            batch.launch.workspace_bytes);
		assert_int_equal(taken[unit->partial + part]++, 0);
		assert_true((unit->counter + FA_CUDA_PACKED_COUNTERS(parts)) *
		                    (uint32_t)(batch.launch.kernel->rows / 16) <=
		            FA_CUDA_PACKED_COUNTERS_MAX);
	}
	free(taken);
}

/* New tokens behind contexts are packed, prompts are not. */
static void test_choice(void **state)
{
	make(128, 4, 1);
	for (uint32_t b = 0; b < 16; b++)
		add(20 + 31 * (b * 7 % 16), 4000 + 500 * b);
	assert_true(plan(0));
	check();
	assert_false(plan(-1));

	make(128, 32, 8);
	for (uint32_t b = 0; b < 16; b++)
		add(300 + 100 * b, 300 + 100 * b);
	assert_false(plan(0));
	assert_true(batch.launch.list_units > 0);
}

/* Not where a row sees no key, or a feature is missing. */
static void test_refused(void **state)
{
	static float slopes[8];

	for (int why = 0; why < 4; why++) {
		make(why == 1 ? 96 : 128, 8, 2);
		add(9, 5000);
		add(20, why == 0 ? 19 : 700);
		batch.params.softcap = why == 2 ? 30 : 0;
		batch.params.alibi_slopes = why == 3 ? slopes : NULL;
		assert_false(plan(3));
	}
	make(128, 8, 2);
	add(9, 5000);
	add(0, 0);
	add(20, 20);
	assert_true(plan(3));
	check();
}

static void test_random(void **state)
{
	static const int dims[] = { 64, 128, 256 };
	int packed = 0;

	srand(11);
	for (int i = 0; i < 150; i++) {
		const int kv_heads = 1 + rand() % 4, n = 1 + rand() % 12;

		make(dims[rand() % 3], kv_heads * (1 + rand() % 16), kv_heads);
		batch.params.causal = rand() % 3;
		batch.params.window_left = rand() % 3 ? -1 : rand() % 900;
		batch.params.window_right = rand() % 3 || batch.params.causal ? -1 : rand() % 300;
		for (int b = 0; b < n; b++) {
			const uint32_t n_q = rand() % 4 ? (uint32_t)rand() % 90 : 0;

			add(n_q, n_q + (uint32_t)rand() % 3000);
		}
		add(1, 1);
		if (!plan(rand() % 2 ? 1 + rand() % 9 : 0))
			continue;
		packed++;
		check();
	}
	assert_true(packed > 50);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_choice),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
