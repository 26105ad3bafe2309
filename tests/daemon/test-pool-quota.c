/*
 * Quotas of a user's cgroups together: a step counts for all its tenants at once, and idle pages of
 * any are evicted before -EDQUOT.
 */
#include "tests/daemon/pool-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAGE_BYTES 512u

static struct scene scene;

/* limits of a tenant and of its user */
static uint64_t tenant_max, user_max;

static int quota(void *userdata, const struct fa_pool_tenant_info *held,
                 const struct fa_pool_more *more, struct fa_error *error)
{
	if (held->bytes + more->bytes > tenant_max)
		return fa_fail(error, -EDQUOT, "%u is too much for a tenant", held->uid);
	if (held->user.bytes + more->bytes > user_max)
		return fa_fail(error, -EDQUOT, "%u is too much for a user", held->uid);
	return 0;
}

static int set_up(void **state)
{
	scene_init(&scene, 4);
	fa_pool_set_quota(scene.pool, quota, NULL);
	tenant_max = user_max = UINT64_MAX;
	return 0;
}

static int tear_down(void **state)
{
	scene_deinit(&scene);
	return 0;
}

/* Makes @n idle pages of @actor. */
static uint64_t publish(enum scene_actor actor, uint32_t first_token, uint32_t n)
{
	const struct fa_actor *who = &scene.actors[actor];
	uint64_t cache = scene_cache(&scene, actor, NULL, 0);
	uint64_t id = scene_sequence(&scene, actor, cache), published;
	uint32_t tokens[16 * SCENE_PAGE_TOKENS] = { first_token };
	const struct fa_prefix_key key = {};

	scene_append(&scene, actor, id, n * SCENE_PAGE_TOKENS, 100);
	assert_int_equal(pool_publish(scene.pool, who, id, &key, tokens, n * SCENE_PAGE_TOKENS,
	                              &scene.error, &published),
	                 0);
	assert_int_equal(published, n);
	assert_int_equal(fa_pool_sequence_remove(scene.pool, who, id, &scene.error), 0);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, n);
	return cache;
}

/* Pages of a user's other cgroups are evicted, too. */
static void test_idle_of_others(void **state)
{
	uint64_t claires = publish(SCENE_CLAIRE, 1, 3), davids = publish(SCENE_DAVID, 2, 3);
	uint64_t annas = publish(SCENE_ANNA, 3, 1), id;

	user_max = 6 * PAGE_BYTES;
	id = scene_sequence(&scene, SCENE_ANNA, annas);
	scene_append(&scene, SCENE_ANNA, id, 2 * SCENE_PAGE_TOKENS, 100);
	/* A request that fails anyway evicts nothing. */
	scene_plan_fails(&scene, SCENE_ANNA, id, 5 * SCENE_PAGE_TOKENS, -EDQUOT);
	assert_int_equal(scene_cache_info(&scene, annas).idle_pages, 1);
	assert_int_equal(scene_cache_info(&scene, claires).idle_pages, 3);
	/* The tenant's own idle pages go first. */
	scene_append(&scene, SCENE_ANNA, id, 1 * SCENE_PAGE_TOKENS, 100);
	assert_int_equal(scene_cache_info(&scene, annas).idle_pages, 0);
	assert_int_equal(scene_cache_info(&scene, claires).idle_pages, 3);
	scene_append(&scene, SCENE_ANNA, id, 2 * SCENE_PAGE_TOKENS, 100);
	assert_int_equal(scene_cache_info(&scene, claires).idle_pages, 1);
	scene_append(&scene, SCENE_ANNA, id, 1 * SCENE_PAGE_TOKENS, 100);
	assert_int_equal(scene_cache_info(&scene, claires).idle_pages, 0);
	scene_plan_fails(&scene, SCENE_ANNA, id, 1, -EDQUOT);
	/* Other users' idle pages stay. */
	assert_int_equal(scene_cache_info(&scene, davids).idle_pages, 3);
	scene_check(&scene, id, 0, 6 * SCENE_PAGE_TOKENS, 100);
	scene_check_counts(&scene);
}

static void test_idle_of_nobody_else(void **state)
{
	uint64_t claires = publish(SCENE_CLAIRE, 1, 3), annas = publish(SCENE_ANNA, 3, 2), id;

	tenant_max = 3 * PAGE_BYTES;
	id = scene_sequence(&scene, SCENE_ANNA, annas);
	scene_append(&scene, SCENE_ANNA, id, 3 * SCENE_PAGE_TOKENS, 100);
	scene_plan_fails(&scene, SCENE_ANNA, id, 1, -EDQUOT);
	assert_int_equal(scene_cache_info(&scene, annas).idle_pages, 0);
	assert_int_equal(scene_cache_info(&scene, claires).idle_pages, 3);
	scene_check_counts(&scene);
}

/* The quota sees a step's needs for all cgroups of a user. */
static void test_step_of_several(void **state)
{
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", FA_MODE(1, 1, 1));
	uint64_t annas = scene_sequence(&scene, SCENE_ANNA, cache);
	uint64_t claires = scene_sequence(&scene, SCENE_CLAIRE, cache);
	struct fa_pool_step_item items[2] = { { annas, 3 * SCENE_PAGE_TOKENS },
		                              { claires, 3 * SCENE_PAGE_TOKENS } };
	struct fa_pool_step *step;

	assert_int_equal(fa_pool_sequence_set_name(scene.pool, &scene.actors[SCENE_CLAIRE], claires,
	                                           "s", FA_MODE(1, 1, 1), 0, scene.now_ns,
	                                           &scene.error),
	                 0);
	user_max = 4 * PAGE_BYTES;
	SCENE_FAILS(&scene, -EDQUOT, "a user",
	            fa_pool_step_plan(scene.pool, anna, items, 2, ++scene.number, scene.now_ns,
	                              &scene.error, &step));
	items[1].n_tokens = SCENE_PAGE_TOKENS;
	assert_int_equal(fa_pool_step_plan(scene.pool, anna, items, 2, ++scene.number, scene.now_ns,
	                                   &scene.error, &step),
	                 0);
	scene_commit(&scene, step);
	scene_plan_fails(&scene, SCENE_ANNA, annas, 1, -EDQUOT);
	scene_plan_fails(&scene, SCENE_CLAIRE, claires, 1, -EDQUOT);
	scene_check_counts(&scene);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_idle_of_others, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_idle_of_nobody_else, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_step_of_several, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
