/* Published prefixes: what is found, by whom, and what is evicted. */
#include "tests/daemon/pool-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOKENS (SCENE_CHUNKS * SCENE_CHUNK_PAGES * SCENE_PAGE_TOKENS)

static struct scene scene;
static uint32_t tokens[TOKENS];
static const struct fa_prefix_key own, shared = { .shared = true };
static const struct fa_prefix_key extra = { .extra = "adapter", .extra_bytes = 7 };

static int set_up(void **state)
{
	scene_init(&scene, SCENE_CHUNKS);
	for (uint32_t i = 0; i < TOKENS; i++)
		tokens[i] = 100 + i;
	return 0;
}

static int tear_down(void **state)
{
	scene_check_counts(&scene);
	scene_deinit(&scene);
	return 0;
}

static uint64_t publish(enum scene_actor actor, uint64_t sequence, const struct fa_prefix_key *key,
                        uint64_t n)
{
	uint64_t pages;

	fa_check_eq(pool_publish(scene.pool, &scene.actors[actor], sequence, key, tokens, n,
	                         &scene.error, &pages),
	            0);
	return pages;
}

static uint64_t find(enum scene_actor actor, uint64_t cache, const struct fa_prefix_key *key,
                     uint64_t n)
{
	uint64_t found;

	fa_check_eq(pool_find_prefix(scene.pool, &scene.actors[actor], cache, key, tokens, n,
	                             &scene.error, &found),
	            0);
	return found;
}

static uint64_t attach(enum scene_actor actor, uint64_t cache, const struct fa_prefix_key *key,
                       uint64_t n, uint64_t *ret_found)
{
	uint64_t sequence = scene_sequence(&scene, actor, cache);

	fa_check_eq(pool_attach(scene.pool, &scene.actors[actor], sequence, key, tokens, n,
	                        &scene.error, ret_found),
	            0);
	return sequence;
}

static void free_sequence(enum scene_actor actor, uint64_t sequence)
{
	fa_check_eq(
		fa_pool_sequence_remove(scene.pool, &scene.actors[actor], sequence, &scene.error),
		0);
}

static void test_found(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", FA_MODE(2, 2, 2)), found;
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache), b, c;

	scene_append(&scene, SCENE_ANNA, a, 100, 100);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 100), 0);
	assert_int_equal(publish(SCENE_ANNA, a, &own, 50), 3);
	assert_int_equal(publish(SCENE_ANNA, a, &own, 50), 0);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 100), 48);
	assert_int_equal(publish(SCENE_ANNA, a, &own, 100), 3);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 100), 96);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 95), 80);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 15), 0);
	assert_int_equal(find(SCENE_ANNA, cache, &extra, 100), 0);
	assert_int_equal(find(SCENE_BOB, cache, &own, 100), 96); /* of the same tenant */
	tokens[33]++;
	assert_int_equal(find(SCENE_ANNA, cache, &own, 100), 32);
	tokens[33]--;
	tokens[0]++;
	assert_int_equal(find(SCENE_ANNA, cache, &own, 100), 0);
	tokens[0]--;

	b = attach(SCENE_BOB, cache, &own, 99, &found);
	assert_int_equal(found, 96);
	scene_check(&scene, b, 0, 96, 100);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 7);
	/* A published page is never written to. */
	free_sequence(SCENE_ANNA, a);
	assert_int_equal(fa_pool_sequence_truncate(scene.pool, &scene.actors[SCENE_BOB], b, 90,
	                                           &scene.error),
	                 0);
	scene_append(&scene, SCENE_BOB, b, 6, 900);
	scene_check(&scene, b, 90, 96, 900);
	c = attach(SCENE_ANNA, cache, &own, 96, &found);
	scene_check(&scene, c, 0, 96, 100);

	scene_reopen(&scene);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 100), 96);
	scene_check(&scene, c, 0, 96, 100);
	free_sequence(SCENE_ANNA, c);
	free_sequence(SCENE_BOB, b);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, 6);
	assert_int_equal(scene_tenant_bytes(&scene, SCENE_ANNA), 6 * 512);
	scene_reopen(&scene);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, 6);
	assert_int_equal(pool_evict(scene.pool, cache), 6);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 100), 0);
	assert_int_equal(scene_tenant_bytes(&scene, SCENE_ANNA), 0);
	scene_reopen(&scene);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 100), 0);
}

/* Tenants find one another's pages only if both share. */
static void test_tenants(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", FA_MODE(2, 2, 2)), found;
	uint64_t other = scene_cache(&scene, SCENE_ANNA, "d", FA_MODE(2, 2, 2)), b;
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache);

	scene_append(&scene, SCENE_ANNA, a, 64, 100);
	assert_int_equal(publish(SCENE_ANNA, a, &own, 32), 2);
	assert_int_equal(find(SCENE_DAVID, cache, &own, 64), 0);
	assert_int_equal(find(SCENE_DAVID, cache, &shared, 64), 0);
	assert_int_equal(find(SCENE_CLAIRE, cache, &own, 64), 0);
	assert_int_equal(find(SCENE_ANNA, cache, &shared, 64), 0);

	assert_int_equal(pool_evict(scene.pool, cache), 0);
	free_sequence(SCENE_ANNA, a);
	assert_int_equal(pool_evict(scene.pool, cache), 2);
	a = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, a, 64, 100);
	assert_int_equal(publish(SCENE_ANNA, a, &shared, 64), 4);
	assert_int_equal(find(SCENE_DAVID, cache, &own, 64), 0);
	assert_int_equal(find(SCENE_DAVID, other, &shared, 64), 0);
	assert_int_equal(find(SCENE_DAVID, cache, &shared, 64), 64);
	b = attach(SCENE_DAVID, cache, &shared, 64, &found);
	assert_int_equal(found, 64);
	/* The publisher is charged for the pages. */
	assert_int_equal(scene_tenant_bytes(&scene, SCENE_DAVID), 0);
	free_sequence(SCENE_ANNA, a);
	assert_int_equal(scene_tenant_bytes(&scene, SCENE_ANNA), 4 * 512);
	scene_append(&scene, SCENE_DAVID, b, 1, 100);
	assert_int_equal(scene_tenant_bytes(&scene, SCENE_DAVID), 512);
	scene_reopen(&scene);
	assert_int_equal(scene_tenant_bytes(&scene, SCENE_ANNA), 4 * 512);
	assert_int_equal(scene_tenant_bytes(&scene, SCENE_DAVID), 512);
	scene_check(&scene, b, 0, 65, 100);
}

/* The first of two pages with the same content stays published. */
static void test_twice(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache);
	uint64_t b = scene_sequence(&scene, SCENE_ANNA, cache);

	scene_append(&scene, SCENE_ANNA, a, 64, 100);
	scene_append(&scene, SCENE_ANNA, b, 96, 100);
	assert_int_equal(publish(SCENE_ANNA, a, &own, 64), 4);
	assert_int_equal(publish(SCENE_ANNA, b, &own, 96), 2);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 96), 96);
	free_sequence(SCENE_ANNA, b);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, 4);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, 2);
	scene_reopen(&scene);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 96), 96);
}

/* Least recently used first, the end of a prefix before its beginning. */
static void test_eviction(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0), found;
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache), b, c;

	scene_append(&scene, SCENE_ANNA, a, 640, 100);
	assert_int_equal(publish(SCENE_ANNA, a, &own, 640), 40);
	free_sequence(SCENE_ANNA, a);
	b = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, b, 640, 100);
	assert_int_equal(publish(SCENE_ANNA, b, &extra, 640), 40);
	free_sequence(SCENE_ANNA, b);
	a = attach(SCENE_ANNA, cache, &own, 640, &found);
	assert_int_equal(found, 640);
	free_sequence(SCENE_ANNA, a);

	c = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, c, (48 + 10) * 16, 5000);
	assert_int_equal(find(SCENE_ANNA, cache, &extra, 640), 480);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 640), 640);
	scene_append(&scene, SCENE_ANNA, c, 33 * 16, 5000);
	assert_int_equal(find(SCENE_ANNA, cache, &extra, 640), 0);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 640), 37 * 16);
	scene_plan_fails(&scene, SCENE_ANNA, c, 38 * 16, -ENOMEM);
	assert_int_equal(find(SCENE_ANNA, cache, &own, 640), 37 * 16);
	scene_append(&scene, SCENE_ANNA, c, 37 * 16, 5000);
	scene_check(&scene, c, 0, 128 * 16, 5000);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, 0);
}

/* A cache without memory takes the least recently used chunk of others. */
static void test_eviction_of_others(void **state)
{
	uint64_t caches[SCENE_CHUNKS], a, found;
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);

	for (uint32_t i = 0; i < SCENE_CHUNKS; i++) {
		caches[i] = scene_cache(&scene, SCENE_ANNA, NULL, 0);
		a = scene_sequence(&scene, SCENE_ANNA, caches[i]);
		scene_append(&scene, SCENE_ANNA, a, 256, 100);
		assert_int_equal(publish(SCENE_ANNA, a, &own, 256), 16);
		free_sequence(SCENE_ANNA, a);
	}
	for (uint32_t i = 0; i < 3; i++) {
		a = attach(SCENE_ANNA, caches[i], &own, 256, &found);
		assert_int_equal(found, 256);
		free_sequence(SCENE_ANNA, a);
	}
	a = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, a, 512, 100);
	for (uint32_t i = 0; i < SCENE_CHUNKS; i++)
		assert_int_equal(find(SCENE_ANNA, caches[i], &own, 256),
		                 i == 3 || i == 4 ? 0 : 256);
}

static void test_refused(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0), n;
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache);
	struct fa_prefix_key long_key = { .extra = tokens, .extra_bytes = 257 };
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	const struct fa_actor *david = &scene.actors[SCENE_DAVID];
	struct fa_pool_step *step;

	scene_append(&scene, SCENE_ANNA, a, 20, 100);
	SCENE_FAILS(&scene, -EINVAL, "at most 20",
	            pool_publish(scene.pool, anna, a, &own, tokens, 21, &scene.error, &n));
	SCENE_FAILS(&scene, -EINVAL, "257",
	            pool_publish(scene.pool, anna, a, &long_key, tokens, 20, &scene.error, &n));
	SCENE_FAILS(&scene, -ENOENT, "no such",
	            pool_publish(scene.pool, david, a, &own, tokens, 20, &scene.error, &n));
	SCENE_FAILS(&scene, -EINVAL, "empty",
	            pool_attach(scene.pool, anna, a, &own, tokens, 20, &scene.error, &n));
	SCENE_FAILS(&scene, -EINVAL, "looked up",
	            pool_attach(scene.pool, anna, a, &own, tokens, FA_POOL_SEQUENCE_TOKENS_MAX + 1,
	                        &scene.error, &n));
	SCENE_FAILS(&scene, -ENOENT, "no such",
	            pool_find_prefix(scene.pool, david, cache, &own, tokens, 20, &scene.error, &n));
	a = scene_sequence(&scene, SCENE_ANNA, cache);
	step = scene_plan(&scene, SCENE_ANNA, a, 3);
	SCENE_FAILS(&scene, -EBUSY, "steps",
	            pool_attach(scene.pool, anna, a, &own, tokens, 20, &scene.error, &n));
	scene_abort(&scene, step);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_found, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_tenants, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_twice, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_eviction, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_eviction_of_others, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
