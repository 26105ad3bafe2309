#include "tests/daemon/pool-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct scene scene;

static int set_up(void **state)
{
	scene_init(&scene, SCENE_CHUNKS);
	return 0;
}

static int tear_down(void **state)
{
	scene_check_counts(&scene);
	scene_deinit(&scene);
	return 0;
}

static void test_append(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t sequence = scene_sequence(&scene, SCENE_ANNA, cache);

	scene_check(&scene, sequence, 0, 0, 0);
	/* Within a page, to its end, across it, and across cells. */
	scene_append(&scene, SCENE_ANNA, sequence, 5, 100);
	scene_append(&scene, SCENE_ANNA, sequence, 11, 100);
	scene_append(&scene, SCENE_ANNA, sequence, 17, 100);
	scene_append(&scene, SCENE_ANNA, sequence, 700, 100);
	scene_check(&scene, sequence, 0, 733, 100);
	assert_int_equal(scene_info(&scene, sequence).step, scene.number);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 46);
	assert_int_equal(scene_tenant_bytes(&scene, SCENE_ANNA), 46 * 512);
	scene_reopen(&scene);
	scene_check(&scene, sequence, 0, 733, 100);
	assert_int_equal(scene_info(&scene, sequence).step, scene.number);
	assert_int_equal(scene_tenant_bytes(&scene, SCENE_ANNA), 46 * 512);
}

static void test_fork(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t parent = scene_sequence(&scene, SCENE_ANNA, cache), child, grandchild;

	scene_append(&scene, SCENE_ANNA, parent, 40, 100);
	assert_int_equal(fa_pool_sequence_fork(scene.pool, &scene.actors[SCENE_ANNA], parent,
	                                       UINT64_MAX, &scene.error, &child),
	                 0);
	assert_int_equal(fa_pool_sequence_fork(scene.pool, &scene.actors[SCENE_ANNA], parent, 20,
	                                       &scene.error, &grandchild),
	                 0);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 3);
	scene_check(&scene, child, 0, 40, 100);
	scene_check(&scene, grandchild, 0, 20, 100);

	/* The first to write copies the last page. */
	scene_append(&scene, SCENE_ANNA, child, 10, 500);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 5);
	scene_append(&scene, SCENE_ANNA, parent, 10, 900);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 6);
	scene_append(&scene, SCENE_ANNA, grandchild, 1, 700);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 7);
	scene_check(&scene, parent, 40, 50, 900);
	scene_check(&scene, child, 40, 50, 500);
	scene_check(&scene, grandchild, 20, 21, 700);
	assert_int_equal(fa_pool_sequence_truncate(scene.pool, &scene.actors[SCENE_ANNA], parent,
	                                           40, &scene.error),
	                 0);
	scene_check(&scene, parent, 0, 40, 100);

	assert_int_equal(fa_pool_sequence_remove(scene.pool, &scene.actors[SCENE_ANNA], parent,
	                                         &scene.error),
	                 0);
	scene_reopen(&scene);
	scene_check(&scene, grandchild, 20, 21, 700);
	scene_check(&scene, child, 40, 50, 500);
	SCENE_FAILS(&scene, -ESTALE, "removed",
	            fa_pool_sequence_fork(scene.pool, &scene.actors[SCENE_ANNA], parent, 0,
	                                  &scene.error, &child));
	SCENE_FAILS(&scene, -EINVAL, "51",
	            fa_pool_sequence_fork(scene.pool, &scene.actors[SCENE_ANNA], child, 51,
	                                  &scene.error, &child));
}

static void test_fork_in_flight(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t parent = scene_sequence(&scene, SCENE_ANNA, cache), child;
	struct fa_pool_step *first, *second, *third;

	scene_append(&scene, SCENE_ANNA, parent, 6, 100);
	first = scene_plan(&scene, SCENE_ANNA, parent, 1);
	scene_write(&scene, first, 100);
	assert_int_equal(fa_pool_sequence_fork(scene.pool, &scene.actors[SCENE_ANNA], parent,
	                                       UINT64_MAX, &scene.error, &child),
	                 0);
	second = scene_plan(&scene, SCENE_ANNA, parent, 1);
	assert_int_equal(second->groups[0].n_copies, 1);
	scene_write(&scene, second, 100);
	scene_append(&scene, SCENE_ANNA, child, 3, 700);
	third = scene_plan(&scene, SCENE_ANNA, parent, 20);
	assert_int_equal(third->groups[0].n_copies, 0);
	scene_write(&scene, third, 100);
	SCENE_FAILS(&scene, -EBUSY, "has not ended",
	            fa_pool_step_commit(scene.pool, second, &scene.error));
	scene_commit(&scene, first);
	scene_check(&scene, parent, 0, 7, 100);
	scene_commit(&scene, second);
	scene_check(&scene, parent, 0, 8, 100);
	scene_abort(&scene, third);
	scene_check(&scene, parent, 0, 8, 100);
	scene_check(&scene, child, 6, 9, 700);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 2);
}

static void test_drop(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t sequence = scene_sequence(&scene, SCENE_ANNA, cache), first, child;
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];

	scene_append(&scene, SCENE_ANNA, sequence, 300, 100);
	assert_int_equal(
		fa_pool_sequence_drop(scene.pool, anna, sequence, 15, &scene.error, &first), 0);
	assert_int_equal(first, 0);
	assert_int_equal(
		fa_pool_sequence_drop(scene.pool, anna, sequence, 34, &scene.error, &first), 0);
	assert_int_equal(first, 32);
	assert_int_equal(
		fa_pool_sequence_drop(scene.pool, anna, sequence, 16, &scene.error, &first), 0);
	assert_int_equal(first, 32);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 17);
	scene_check(&scene, sequence, 32, 300, 100);
	assert_int_equal(
		fa_pool_sequence_fork(scene.pool, anna, sequence, 290, &scene.error, &child), 0);
	scene_reopen(&scene);
	scene_check(&scene, sequence, 32, 300, 100);
	scene_check(&scene, child, 32, 290, 100);

	/* beyond the first cell */
	assert_int_equal(
		fa_pool_sequence_drop(scene.pool, anna, sequence, 299, &scene.error, &first), 0);
	assert_int_equal(first, 288);
	scene_append(&scene, SCENE_ANNA, sequence, 4, 100);
	scene_check(&scene, sequence, 288, 304, 100);
	assert_int_equal(
		fa_pool_sequence_drop(scene.pool, anna, sequence, 304, &scene.error, &first), 0);
	assert_int_equal(first, 304);
	scene_reopen(&scene);
	scene_check(&scene, sequence, 304, 304, 100);
	scene_append(&scene, SCENE_ANNA, sequence, 40, 100);
	scene_reopen(&scene);
	scene_check(&scene, sequence, 304, 344, 100);
	scene_check(&scene, child, 32, 290, 100);
	SCENE_FAILS(&scene, -EINVAL, "344",
	            fa_pool_sequence_drop(scene.pool, anna, sequence, 345, &scene.error, &first));
	SCENE_FAILS(&scene, -EINVAL, "304",
	            fa_pool_sequence_truncate(scene.pool, anna, sequence, 303, &scene.error));
	SCENE_FAILS(&scene, -EINVAL, "345",
	            fa_pool_sequence_truncate(scene.pool, anna, sequence, 345, &scene.error));
	SCENE_FAILS(&scene, -EINVAL, "304",
	            fa_pool_sequence_fork(scene.pool, anna, sequence, 303, &scene.error, &child));
}

static void test_leave_in_flight(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t sequence = scene_sequence(&scene, SCENE_ANNA, cache), first;
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	struct fa_pool_step *a, *b;

	scene_append(&scene, SCENE_ANNA, sequence, 64, 100);
	a = scene_plan(&scene, SCENE_ANNA, sequence, 1);
	assert_int_equal(
		fa_pool_sequence_drop(scene.pool, anna, sequence, 64, &scene.error, &first), 0);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 5);
	b = scene_plan(&scene, SCENE_ANNA, sequence, 1);
	assert_int_equal(b->groups[0].table_entries, 1);
	SCENE_FAILS(&scene, -EBUSY, "end them",
	            fa_pool_sequence_truncate(scene.pool, anna, sequence, 64, &scene.error));
	scene_write(&scene, a, 100);
	scene_commit(&scene, a);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 1);
	assert_int_equal(fa_pool_sequence_remove(scene.pool, anna, sequence, &scene.error), 0);
	SCENE_FAILS(&scene, -ESTALE, "removed",
	            fa_pool_sequence_remove(scene.pool, anna, sequence, &scene.error));
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 1);
	assert_int_equal(fa_pool_step_commit(scene.pool, b, &scene.error), 0);
	assert_true(b->entries[0].stale);
	fa_pool_step_free(b);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 0);
	assert_int_equal(scene_cache_info(&scene, cache).sequences, 0);
}

/* Later steps can use what a step reserved for a removed sequence. */
static void test_freed_with_copy(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t sequence = scene_sequence(&scene, SCENE_ANNA, cache), fork;
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	struct fa_pool_step *a, *b;

	scene_append(&scene, SCENE_ANNA, sequence, 5, 100);
	assert_int_equal(
		fa_pool_sequence_fork(scene.pool, anna, sequence, UINT64_MAX, &scene.error, &fork),
		0);
	a = scene_plan(&scene, SCENE_ANNA, sequence, 20);
	assert_int_equal(a->groups[0].n_copies, 1);
	b = scene_plan(&scene, SCENE_ANNA, sequence, 20);
	assert_int_equal(fa_pool_sequence_remove(scene.pool, anna, sequence, &scene.error), 0);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 4);
	assert_int_equal(fa_pool_step_commit(scene.pool, a, &scene.error), 0);
	assert_true(a->entries[0].stale);
	fa_pool_step_free(a);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 4);
	scene_abort(&scene, b);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 1);
	scene_check(&scene, fork, 0, 5, 100);
}

static void test_many(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0), ids[SCENE_SEQUENCES], id;
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];

	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t i = 0; i < SCENE_SEQUENCES; i++)
			ids[i] = scene_sequence(&scene, SCENE_ANNA, cache);
		SCENE_FAILS(&scene, -ENOSPC, "no more",
		            fa_pool_sequence_new(scene.pool, anna, cache, &scene.error, &id));
		for (uint32_t i = 0; i < SCENE_SEQUENCES; i++)
			assert_int_equal(
				fa_pool_sequence_remove(scene.pool, anna, ids[i], &scene.error), 0);
		scene_reopen(&scene);
	}
}

/* A reader sees truncated tokens, whatever is appended. */
static void test_truncate_under_reader(void **state)
{
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", FA_MODE(2, 2, 2)), a;
	struct fa_pool_step *reader, *step;
	struct fa_pool_sequence_info info;

	a = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, a, 30, 100);
	assert_int_equal(fa_pool_sequence_set_name(scene.pool, anna, a, "s", FA_MODE(2, 0, 0), 0, 0,
	                                           &scene.error),
	                 0);
	reader = scene_plan(&scene, SCENE_BOB, a, 0);
	assert_int_equal(fa_pool_sequence_truncate(scene.pool, anna, a, 20, &scene.error), 0);
	for (int i = 0; i < 2; i++) {
		step = scene_plan(&scene, SCENE_ANNA, a, 10);
		assert_int_equal(step->groups[0].n_copies, 1);
		assert_int_equal(step->groups[0].copies_from[0], reader->groups[0].table[1]);
		assert_int_equal(step->groups[0].copies_tokens[0], 4);
		scene_write(&scene, step, 500);
		if (i == 0)
			scene_abort(&scene, step);
	}
	scene_commit(&scene, step);
	info = scene_info(&scene, a);
	for (uint64_t p = 0; p < 30; p++)
		assert_int_equal(
			device_read(&scene.device, scene.pool, &info, SCENE_PAGE_TOKENS, p),
			(p < 20 ? 100 : 500) + p);
	for (uint64_t p = 0; p < 30; p++)
		assert_int_equal(*device_step_token(&scene.device, reader, 0, p), 100 + p);
	step = scene_plan(&scene, SCENE_ANNA, a, 1);
	assert_int_equal(step->groups[0].n_copies, 0);
	scene_abort(&scene, step);
	scene_abort(&scene, reader);

	/* Without a reader the page is overwritten in place. */
	assert_int_equal(fa_pool_sequence_truncate(scene.pool, anna, a, 20, &scene.error), 0);
	step = scene_plan(&scene, SCENE_ANNA, a, 10);
	assert_int_equal(step->groups[0].n_copies, 0);
	scene_abort(&scene, step);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_append, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_fork, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_fork_in_flight, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_drop, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_leave_in_flight, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_freed_with_copy, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_truncate_under_reader, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
