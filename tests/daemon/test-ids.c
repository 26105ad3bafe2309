/* Ids of caches and sequences: their kind, what they tell, and what refusals tell. */
#include "daemon/pool/id.h"
#include "daemon/pool/objects.h"
#include "tests/daemon/pool-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct scene scene;

static int set_up(void **state)
{
	scene_init(&scene, 2);
	return 0;
}

static int tear_down(void **state)
{
	scene_check_counts(&scene);
	scene_deinit(&scene);
	return 0;
}

/* Makes the ids of a cache and a sequence those of a daemon before ids had kinds. */
static void make_plain(uint64_t *cache, uint64_t *sequence)
{
	struct fa_id ids[2];

	fa_check_eq(fa_id_read(scene.pool, FA_ID_CACHE, *cache, &scene.error, &ids[0]), 0);
	fa_check_eq(fa_id_read(scene.pool, FA_ID_SEQUENCE, *sequence, &scene.error, &ids[1]), 0);
	scene.pool->cache_records[ids[0].index].origin = (struct fa_state_origin){};
	scene.pool->sequence_records[ids[1].index].origin = (struct fa_state_origin){};
	*cache = (uint64_t)ids[0].generation << 32 | ids[0].index;
	*sequence = (uint64_t)ids[1].generation << 32 | ids[1].index;
	scene_reopen(&scene);
}

static void test_ids(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", FA_MODE(2, 2, 2)), s, t, id, plain;
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	const struct fa_actor *david = &scene.actors[SCENE_DAVID];
	struct fa_pool_sequence_info info;
	struct fa_pool_cache_info cache_info;

	/* Ids of numbers that follow one another do not follow one another. */
	s = scene_sequence(&scene, SCENE_ANNA, cache);
	t = scene_sequence(&scene, SCENE_ANNA, cache);
	assert_int_equal(s >> 56, t >> 56);
	assert_true((s ^ t) & 0xfffff);
	assert_true((s ^ t) & 0xfffff00000000);

	SCENE_FAILS(&scene, -EINVAL, "is a cache; expected a sequence",
	            fa_pool_sequence_remove(scene.pool, anna, cache, &scene.error));
	SCENE_FAILS(&scene, -EINVAL, "is a sequence; expected a cache",
	            fa_pool_cache_remove(scene.pool, anna, s, &scene.error));

	/* To another user, objects that it may not see look like objects that do not exist. */
	for (uint32_t i = 0; i < 66; i++) {
		id = i < 64 ? s ^ 1ull << i : i == 64 ? s : 0;
		if (id >> 56 == FA_ID_CACHE)
			continue;
		SCENE_FAILS(&scene, -ENOENT, "there is no such sequence",
		            fa_pool_sequence_get_info(scene.pool, david, id, &scene.error, &info));
		assert_string_equal(scene.error.text, "there is no such sequence");
	}
	assert_int_equal(fa_pool_sequence_remove(scene.pool, anna, s, &scene.error), 0);
	SCENE_FAILS(&scene, -ESTALE, "removed",
	            fa_pool_sequence_get_info(scene.pool, anna, s, &scene.error, &info));
	SCENE_FAILS(&scene, -ENOENT, "there is no such sequence",
	            fa_pool_sequence_get_info(scene.pool, david, s, &scene.error, &info));
	/* Its record is reused: that tells the first user nothing about the second's. */
	id = scene_sequence(&scene, SCENE_DAVID, cache);
	SCENE_FAILS(&scene, -ESTALE, "removed",
	            fa_pool_sequence_get_info(scene.pool, &scene.actors[SCENE_ADMIN], s,
	                                      &scene.error, &info));
	SCENE_FAILS(&scene, -ENOENT, "there is no such sequence",
	            fa_pool_sequence_get_info(scene.pool, david, s, &scene.error, &info));
	assert_int_equal(fa_pool_sequence_remove(scene.pool, david, id, &scene.error), 0);

	/* A pool from before keeps its ids until the objects are removed. */
	assert_int_equal(fa_pool_sequence_set_name(scene.pool, anna, t, "t", 0, 0, 0, &scene.error),
	                 0);
	id = t;
	plain = cache;
	make_plain(&plain, &t);
	SCENE_FAILS(&scene, -ENOENT, "there is no such sequence",
	            fa_pool_sequence_get_info(scene.pool, anna, id, &scene.error, &info));
	SCENE_FAILS(&scene, -ENOENT, "there is no such cache",
	            fa_pool_cache_get_info(scene.pool, anna, cache, &scene.error, &cache_info));
	assert_int_equal(
		fa_pool_sequence_find(scene.pool, anna, "t", FA_UID_OWN, 0, &scene.error, &id), 0);
	assert_int_equal(id, t);
	assert_int_equal(scene_info(&scene, t).cache, plain);
	s = scene_sequence(&scene, SCENE_ANNA, plain);
	assert_int_equal(s >> 56, FA_ID_SEQUENCE);
	scene_append(&scene, SCENE_ANNA, t, 5, 100);
	assert_int_equal(fa_pool_sequence_remove(scene.pool, anna, t, &scene.error), 0);
	assert_int_not_equal(fa_pool_sequence_get_info(scene.pool, anna, t, &scene.error, &info),
	                     0);
}

/* Each user has names of its own: nobody else finds them. */
static void test_users(void **state)
{
	uint64_t evil = scene_cache(&scene, SCENE_DAVID, "c", FA_MODE(2, 2, 2)), good, id, s, t;
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	const struct fa_actor *david = &scene.actors[SCENE_DAVID];

	SCENE_FAILS(&scene, -ENOENT, "there is no cache named 'c'",
	            fa_pool_cache_find(scene.pool, anna, "c", FA_UID_OWN, 0, &scene.error, &id));
	good = scene_cache(&scene, SCENE_ANNA, "c", 0);
	s = scene_sequence(&scene, SCENE_DAVID, evil);
	t = scene_sequence(&scene, SCENE_ANNA, good);
	fa_check_eq(fa_pool_sequence_set_name(scene.pool, david, s, "s", FA_MODE(2, 2, 2), 0, 0,
	                                      &scene.error),
	            0);
	SCENE_FAILS(&scene, -ENOENT, "there is no sequence named 's'",
	            fa_pool_sequence_find(scene.pool, anna, "s", FA_UID_OWN, 0, &scene.error, &id));
	fa_check_eq(fa_pool_sequence_set_name(scene.pool, anna, t, "s", 0, 0, 0, &scene.error), 0);

	/* The second round is after recovery. */
	for (int round = 0; round < 2; round++) {
		fa_check_eq(
			fa_pool_cache_find(scene.pool, anna, "c", FA_UID_OWN, 0, &scene.error, &id),
			0);
		fa_check_eq(id, good);
		fa_check_eq(scene_cache_info(&scene, id).uid, 1000);
		fa_check_eq(fa_pool_cache_find(scene.pool, anna, "c", 2000, 0, &scene.error, &id),
		            0);
		fa_check_eq(id, evil);
		fa_check_eq(scene_cache_info(&scene, id).uid, 2000);
		fa_check_eq(fa_pool_sequence_find(scene.pool, anna, "s", FA_UID_OWN, 0,
		                                  &scene.error, &id),
		            0);
		fa_check_eq(id, t);
		fa_check_eq(
			fa_pool_sequence_find(scene.pool, anna, "s", 2000, 0, &scene.error, &id),
			0);
		fa_check_eq(id, s);
		fa_check_eq(scene_info(&scene, id).uid, 2000);
		SCENE_FAILS(&scene, -ENOENT, "there is no cache named 'c'",
		            fa_pool_cache_find(scene.pool, david, "c", 1000, 0, &scene.error, &id));
		SCENE_FAILS(
			&scene, -ENOENT, "there is no sequence named 's'",
			fa_pool_sequence_find(scene.pool, david, "s", 1000, 0, &scene.error, &id));
		scene_reopen(&scene);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_ids, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_users, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
