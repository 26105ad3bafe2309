/* Tests without a GPU when the attention launch also appends new tokens to the pages, and when it
 * reports its parts separately. */
#include "tests/unit/cuda-paged-scene.h"

/* Three sequences with two, one and five new tokens. */
static void scene_init_append(struct scene *scene, struct fa_paged_append *ret_append)
{
	static const uint32_t lengths[] = { 100, 1, 70 };
	static const uint32_t cu_new[] = { 0, 2, 3, 8 };

	scene_init(scene, 3);
	scene->appends = true;
	memcpy(scene->lengths, lengths, sizeof(lengths));
	memcpy(scene->cu_new, cu_new, sizeof(cu_new));
	*ret_append = (struct fa_paged_append){
		.cache = &scene->cache,
		.step = &scene->step,
		.k = { (void *)(uintptr_t)(1 << 12), 0, 8 * 128, 128 },
		.v = { (void *)(uintptr_t)(1 << 13), 0, 8 * 136, 136 },
	};
}

static bool appends_on(const struct fa_cuda_chip *chip, struct scene *scene,
                       const struct fa_paged_append *append)
{
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	struct fa_cuda_paged_plan plan;
	bool can;

	scene_plan(scene, chip, &plan);
	can = fa_cuda_paged_can_append(&plan, &scene->request.attention, append);
	if (can) {
		const struct fa_cuda_attention *args = &launches[0].args.attention.attention;

		assert_int_equal(fa_cuda_paged_launches(&plan, &scene->request, 1 << 16, 1 << 20, 1,
		                                        launches),
		                 1);
		assert_true(launches[0].kernel->appends);
		assert_null(args->k.data);
		assert_null(args->v.data);
		fa_cuda_paged_add_append(&launches[0], append);
		assert_ptr_equal(args->k.data, append->k.data);
		assert_ptr_equal(args->v.data, append->v.data);
		assert_int_equal(args->k.stride_token, 2 * append->k.stride_token);
		assert_int_equal(args->k.stride_head, 2 * append->k.stride_head);
		assert_int_equal(args->v.stride_token, 2 * append->v.stride_token);
		assert_int_equal(args->v.stride_head, 2 * append->v.stride_head);
	}
	free(scene->blob);
	return can;
}

static void test_append(void **state)
{
	static uint32_t tree[64];
	struct fa_paged_append append, other;
	struct fa_paged_step step;
	struct scene scene;

	scene_init_append(&scene, &append);
	assert_true(appends_on(&h200, &scene, &append));
	assert_false(appends_on(&portable_h200, &scene, &append));
	assert_false(appends_on(&newer, &scene, &append));
	assert_false(appends_on(&rtx, &scene, &append));

	/* Appends that also handle Q, rotate, lack K or V, or belong to another layer or step. */
	other = append;
	other.heads = 32;
	assert_false(appends_on(&h200, &scene, &other));
	other = append;
	other.rotary = (struct fa_paged_rotary){ .dim = 64, .base = 10000, .scale = 1 };
	assert_false(appends_on(&h200, &scene, &other));
	other = append;
	other.k.data = NULL;
	assert_false(appends_on(&h200, &scene, &other));
	other = append;
	other.v.data = NULL;
	assert_false(appends_on(&h200, &scene, &other));
	other = append;
	other.layer = 1;
	assert_false(appends_on(&h200, &scene, &other));
	other = append;
	step = scene.step;
	other.step = &step;
	assert_false(appends_on(&h200, &scene, &other));

	/* K or V has rows that are not aligned to 16 bytes. */
	other = append;
	other.k.data = (void *)((uintptr_t)other.k.data + 8);
	assert_false(appends_on(&h200, &scene, &other));
	other = append;
	other.v.stride_head = 132;
	assert_false(appends_on(&h200, &scene, &other));
	other = append;
	other.k.stride_token += 4;
	assert_false(appends_on(&h200, &scene, &other));

	/* Only kernels of head dims 128 and 256 can append, and of 64 with up to 16 rows per KV
	 * head. */
	for (int32_t dim = 64; dim <= 256; dim += 32) {
		scene_init_append(&scene, &append);
		scene.cache.head_dim = scene.cache.head_dim_v = dim;
		assert_int_equal(appends_on(&h200, &scene, &append), dim == 128 || dim == 256);
		scene.cu_new[3] = 7;
		assert_int_equal(appends_on(&h200, &scene, &append),
		                 dim == 64 || dim == 128 || dim == 256);
	}
	scene_init_append(&scene, &append);
	scene.cache.dtype = FA_ATTENTION_F32;
	assert_false(appends_on(&h200, &scene, &append));
	scene.cache.dtype = FA_ATTENTION_F16;
	assert_true(appends_on(&h200, &scene, &append));
	scene.cache.store = FA_PAGED_E4M3;
	assert_false(appends_on(&h200, &scene, &append));
	scene_init_append(&scene, &append);
	scene.cache.v_offset = 0;
	assert_false(appends_on(&h200, &scene, &append));

	/* Deterministic steps (split decode), windows and trees do not append. */
	scene_init_append(&scene, &append);
	scene.request.attention.deterministic = true;
	assert_true(appends_on(&h200, &scene, &append));
	scene.cache.head_dim = scene.cache.head_dim_v = 64;
	assert_false(appends_on(&h200, &scene, &append));
	scene_init_append(&scene, &append);
	scene.request.attention.window_left = 3;
	assert_true(appends_on(&h200, &scene, &append));
	scene.request.attention.window_left = 0;
	assert_true(appends_on(&h200, &scene, &append));
	scene_init_append(&scene, &append);
	scene.request.attention.tree = tree;
	scene.request.attention.tree_start = scene.tree_start;
	assert_true(appends_on(&h200, &scene, &append));

	/* The launch does not append if one sequence has many new tokens. */
	scene_init_append(&scene, &append);
	scene.lengths[2] = 60;
	scene.cu_new[3] = 63;
	assert_false(appends_on(&h200, &scene, &append));

	/* The launch does not append if a new token was dropped at once, or if no token is new. */
	scene_init_append(&scene, &append);
	scene.first[2] = 65;
	assert_true(appends_on(&h200, &scene, &append));
	scene.first[2] = 66;
	assert_false(appends_on(&h200, &scene, &append));
	scene.appends = false;
	assert_true(appends_on(&h200, &scene, &append));
	scene.cu_new[1] = scene.cu_new[2] = scene.cu_new[3] = 0;
	assert_false(appends_on(&h200, &scene, &append));
}

/* Every new token lies in a tile of its item. */
static void test_append_tiles(void **state)
{
	for (int i = 0; i < 500; i++) {
		struct fa_cuda_paged_plan plan;
		struct scene scene;
		const struct fa_cuda_paged_item *items;

		scene_init(&scene, 1 + (int32_t)below(20));
		scene.appends = true;
		for (int32_t b = 0; b < scene.step.batch; b++) {
			const uint32_t n_new = below(48);

			scene.cu_new[b + 1] = scene.cu_new[b] + n_new;
			scene.lengths[b] = n_new + below(below(2) ? 20 : 1000);
			scene.first[b] = below(3) ? 0 : below(scene.lengths[b] + 1);
		}
		scene.request.attention.window_left = below(2) ? (int64_t)below(100) : -1;
		scene_plan(&scene, &h200, &plan);
		items = plan.decode_items <= FA_CUDA_PAGED_INLINE_ITEMS
		                ? plan.first_items
		                : (const void *)(scene.blob + plan.decode_items_at);
		for (uint32_t j = 0; j < plan.decode_items && plan.appends; j++) {
			const uint32_t begin = items[j].begin / 16 * 16;

			assert_int_equal(items[j].append, items[j].n_k - items[j].n_q);
			assert_true(items[j].append >= items[j].begin);
			assert_true(begin + 64 * items[j].tiles >= items[j].n_k);
		}
		free(scene.blob);
	}
}

/* Returns how many parts the launch reports separately. Every sequence of @scene has @length
 * tokens, of which the last @n_new are new. */
static uint32_t told(const struct fa_cuda_chip *chip, struct scene *scene, uint32_t length,
                     uint32_t n_new, const struct fa_paged_append *append)
{
	static const uint32_t table[64];
	struct fa_cuda_paged_launch launches[FA_CUDA_PAGED_LAUNCHES_MAX];
	struct fa_cuda_paged_plan plan;
	const int32_t last = scene->step.batch;

	for (int32_t b = 0; b < last; b++) {
		scene->lengths[b] = length;
		scene->cu_new[b + 1] = scene->cu_new[b] + n_new;
	}
	/* If the caller has set step.table, only the device has the table. */
	scene->step.host_table = scene->step.table ? NULL : table;
	scene->step.table = (void *)(uintptr_t)4096;
	scene->step.table_entries = 64;
	memset(launches, 0xfe, sizeof(launches));
	scene_plan(scene, chip, &plan);
	assert_int_equal(
		fa_cuda_paged_launches(&plan, &scene->request, 1 << 16, 1 << 20, 1, launches), 1);
	if (append) {
		assert_true(fa_cuda_paged_can_append(&plan, &scene->request.attention, append));
		fa_cuda_paged_add_append(&launches[0], append);
	}
	free(scene->blob);
	scene->step.table = NULL;
	return launches[0].parts;
}

static void test_told(void **state)
{
	struct fa_paged_append append;
	struct scene scene;

	/* One part per KV head and row block; with more than FA_CUDA_DONE_PARTS, none is
	 * reported. */
	scene_init(&scene, 1);
	assert_int_equal(told(&h200, &scene, 1000, 1, NULL), 8);
	assert_int_equal(told(&h200, &scene, 30, 1, NULL), 8);
	assert_int_equal(told(&h200, &scene, 1000, 4, NULL), 8);
	scene.cache.kv_heads = 1;
	scene.request.attention.heads = 32;
	assert_int_equal(told(&h200, &scene, 1000, 1, NULL), 1);
	scene.cache.kv_heads = 16;
	assert_int_equal(told(&h200, &scene, 1000, 1, NULL), 0);

	/* Kernels that cannot report parts, or that still read the step's memory after the last
	 * part. */
	scene_init(&scene, 1);
	assert_int_equal(told(&portable_h200, &scene, 1000, 1, NULL), 0);
	assert_int_equal(told(&newer, &scene, 1000, 1, NULL), 0);
	assert_int_equal(told(&rtx, &scene, 1000, 1, NULL), 0);
	scene.request.attention.deterministic = true;
	assert_int_equal(told(&h200, &scene, 1000, 1, NULL), 0);
	scene_init(&scene, 1);
	scene.step.table = (void *)(uintptr_t)4096;
	assert_int_equal(told(&h200, &scene, 1000, 1, NULL), 0);
	scene_init(&scene, 1);
	assert_int_equal(told(&h200, &scene, 1000, 70, NULL), 0);
	/* A launch over several sequences reports no separate parts, but a launch that also
	 * appends does. */
	scene_init(&scene, 2);
	assert_int_equal(told(&h200, &scene, 1000, 1, NULL), 0);
	scene_init_append(&scene, &append);
	scene.step.batch = 1;
	assert_int_equal(told(&h200, &scene, 1000, 1, NULL), 8);
	assert_int_equal(told(&h200, &scene, 1000, 1, &append), 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_append),
		cmocka_unit_test(test_append_tiles),
		cmocka_unit_test(test_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
