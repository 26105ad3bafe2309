/* All or nothing, in order, pipelined; clears and copies. */
#include "tests/daemon/pool-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void refuse(enum scene_actor actor, const struct fa_pool_step_item *items, uint32_t n,
                   int code, const char *part)
{
	struct fa_pool_info before, after;
	struct fa_pool_step *step;

	fa_pool_get_info(scene.pool, &before);
	SCENE_FAILS(&scene, code, part,
	            fa_pool_step_plan(scene.pool, &scene.actors[actor], items, n, ++scene.number, 0,
	                              &scene.error, &step));
	fa_pool_get_info(scene.pool, &after);
	scene_check_same(&before, &after);
}

static void test_refused(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache);
	uint64_t b = scene_sequence(&scene, SCENE_ANNA, cache);
	uint64_t gone = scene_sequence(&scene, SCENE_ANNA, cache);
	struct fa_pool_step_item items[] = { { a, 10 }, { b, 10 } };
	struct fa_pool_step *step;

	assert_int_equal(
		fa_pool_sequence_remove(scene.pool, &scene.actors[SCENE_ANNA], gone, &scene.error),
		0);
	SCENE_FAILS(&scene, -EINVAL, "number",
	            fa_pool_step_plan(scene.pool, &scene.actors[SCENE_ANNA], items, 2, 0, 0,
	                              &scene.error, &step));
	refuse(SCENE_ANNA, items, 0, -EINVAL, "0 sequences");
	refuse(SCENE_ANNA, items, FA_POOL_STEP_SEQUENCES_MAX + 1, -EINVAL, "4097 sequences");
	items[1].sequence = a;
	refuse(SCENE_ANNA, items, 2, -EINVAL, "item 1");
	items[1].sequence = gone;
	refuse(SCENE_ANNA, items, 2, -ESTALE, "item 1");
	items[1].sequence = 0;
	refuse(SCENE_ANNA, items, 2, -ENOENT, "item 1");
	items[1].sequence = UINT64_MAX;
	refuse(SCENE_ANNA, items, 2, -ENOENT, "item 1");
	items[1].sequence = b + ((uint64_t)1 << 32);
	refuse(SCENE_ANNA, items, 2, -ENOENT, "item 1");
	items[1].sequence = b;
	refuse(SCENE_BOB, items, 2, -ENOENT, "item 0");
	items[1].n_tokens = UINT32_MAX;
	refuse(SCENE_ANNA, items, 2, -EINVAL, "4294967295");
	/* Only the first item would fit. */
	items[1].n_tokens = SCENE_CHUNKS * SCENE_CHUNK_PAGES * SCENE_PAGE_TOKENS;
	refuse(SCENE_ANNA, items, 2, -ENOMEM, "exhausted: 129 pages");
	items[1].n_tokens -= 16;
	scene.number++;
	assert_int_equal(fa_pool_step_plan(scene.pool, &scene.actors[SCENE_ANNA], items, 2,
	                                   scene.number, 0, &scene.error, &step),
	                 0);
	scene_abort(&scene, step);
}

static void test_order(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", FA_MODE(2, 2, 2));
	uint64_t sequence = scene_sequence(&scene, SCENE_ANNA, cache);
	struct fa_pool_step *a, *b, *c, *reader;

	scene_append(&scene, SCENE_ANNA, sequence, 3, 100);
	assert_int_equal(fa_pool_sequence_set_name(scene.pool, &scene.actors[SCENE_ANNA], sequence,
	                                           "s", FA_MODE(2, 2, 2), 0, 0, &scene.error),
	                 0);
	a = scene_plan(&scene, SCENE_ANNA, sequence, 20);
	b = scene_plan(&scene, SCENE_ANNA, sequence, 1);
	assert_int_equal(b->entries[0].before, 23);
	assert_int_equal(scene_info(&scene, sequence).planned, 24);
	scene_plan_fails(&scene, SCENE_DAVID, sequence, 1, -EBUSY);
	/* Other sessions read durable tokens, this one planned ones. */
	reader = scene_plan(&scene, SCENE_DAVID, sequence, 0);
	assert_int_equal(reader->entries[0].after, 3);
	assert_int_equal(reader->groups[0].table_entries, 1);
	c = scene_plan(&scene, SCENE_ANNA, sequence, 0);
	assert_int_equal(c->entries[0].after, 24);

	SCENE_FAILS(&scene, -EBUSY, "item 0", fa_pool_step_commit(scene.pool, b, &scene.error));
	scene_write(&scene, a, 100);
	scene_commit(&scene, a);
	scene_commit(&scene, reader);
	scene_check(&scene, sequence, 0, 23, 100);
	SCENE_FAILS(&scene, -EBUSY, "item 0", fa_pool_step_commit(scene.pool, c, &scene.error));
	scene_abort(&scene, b);
	SCENE_FAILS(&scene, -ECANCELED, "item 0", fa_pool_step_commit(scene.pool, c, &scene.error));
	scene_plan_fails(&scene, SCENE_ANNA, sequence, 1, -EBUSY);
	scene_abort(&scene, c);
	scene_check(&scene, sequence, 0, 23, 100);
	scene_append(&scene, SCENE_DAVID, sequence, 5, 100);
	scene_check(&scene, sequence, 0, 28, 100);
}

static void test_several_caches(void **state)
{
	uint64_t one = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t two = scene_cache(&scene, SCENE_ANNA, NULL, 0), s[4];
	struct fa_pool_step_item items[4];
	struct fa_pool_step *step;

	for (uint32_t i = 0; i < 4; i++) {
		s[i] = scene_sequence(&scene, SCENE_ANNA, i % 2 ? two : one);
		items[i] = (struct fa_pool_step_item){ s[i], 17 * (i + 1) };
	}
	assert_int_equal(fa_pool_step_plan(scene.pool, &scene.actors[SCENE_ANNA], items, 4, 7, 0,
	                                   &scene.error, &step),
	                 0);
	assert_int_equal(step->n_groups, 2);
	for (uint32_t g = 0; g < 2; g++) {
		const struct fa_pool_step_group *group = &step->groups[g];
		uint32_t first = group->cache == one ? 0 : 1;

		assert_int_equal(group->end - group->begin, 2);
		assert_int_equal(step->entries[group->begin].item, first);
		assert_int_equal(step->entries[group->begin + 1].item, first + 2);
		assert_int_equal(group->cu_new[0], 0);
		assert_int_equal(group->cu_new[1], 17 * (first + 1));
		assert_int_equal(group->cu_new[2], 17 * (first + 1) + 17 * (first + 3));
		assert_int_equal(group->lengths[1], 17 * (first + 3));
		assert_int_equal(group->lengths_before[1], 0);
		assert_int_equal(group->table_start[0], 0);
		assert_int_equal(group->table_start[1], 2 + first);
	}
	scene_write(&scene, step, 1000);
	scene_commit(&scene, step);
	for (uint32_t i = 0; i < 4; i++) {
		scene_check(&scene, s[i], 0, 17 * (i + 1), 1000);
		assert_int_equal(scene_info(&scene, s[i]).step, 7);
	}
}

/* A chunk that one cache needs does not save evictions in another. */
static void test_last_chunk(void **state)
{
	uint64_t one = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t two = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t s = scene_sequence(&scene, SCENE_ANNA, one), n;
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	struct fa_prefix_key key = {};
	uint32_t tokens[2048];
	struct fa_pool_step_item items[2];
	struct fa_pool_step *step;

	for (uint32_t i = 0; i < 2048; i++)
		tokens[i] = 1 + i;
	scene_append(&scene, SCENE_ANNA, s, 7 * 256, 1);
	assert_int_equal(pool_publish(scene.pool, anna, s, &key, tokens, 7 * 256, &scene.error, &n),
	                 0);
	assert_int_equal(n, 112);
	assert_int_equal(fa_pool_sequence_remove(scene.pool, anna, s, &scene.error), 0);
	items[0] = (struct fa_pool_step_item){ scene_sequence(&scene, SCENE_ANNA, one), 256 };
	items[1] = (struct fa_pool_step_item){ scene_sequence(&scene, SCENE_ANNA, two), 256 };
	assert_int_equal(fa_pool_step_plan(scene.pool, anna, items, 2, 1, 0, &scene.error, &step),
	                 0);
	assert_int_equal(scene_cache_info(&scene, one).idle_pages, 96);
	scene_abort(&scene, step);

	/* All chunks but one are evicted for the other cache, oldest first. */
	items[1].n_tokens = 7 * 256;
	assert_int_equal(
		fa_pool_step_plan(scene.pool, anna, items + 1, 1, 1, 0, &scene.error, &step), 0);
	assert_int_equal(scene_cache_info(&scene, one).chunks, 1);
	scene_abort(&scene, step);
}

static void test_keep(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0), before;
	uint64_t sequence = scene_sequence(&scene, SCENE_ANNA, cache);
	static const uint32_t path[] = { 0, 1, 4, 40 }, wrong[] = { 1, 1 }, beyond[] = { 41 };
	struct fa_pool_step *step, *later;
	const uint32_t *from;
	uint32_t n, to;

	scene_append(&scene, SCENE_ANNA, sequence, 10, 100);
	before = scene_cache_info(&scene, cache).used_pages;
	step = scene_plan(&scene, SCENE_ANNA, sequence, 41);
	SCENE_FAILS(&scene, -EINVAL, "predecessor",
	            fa_pool_step_keep(scene.pool, step, 0, wrong, 2, &scene.error, &from, &n, &to));
	SCENE_FAILS(
		&scene, -EINVAL, "below 41",
		fa_pool_step_keep(scene.pool, step, 0, beyond, 1, &scene.error, &from, &n, &to));
	SCENE_FAILS(&scene, -EINVAL, "no entry",
	            fa_pool_step_keep(scene.pool, step, 1, path, 1, &scene.error, &from, &n, &to));
	later = scene_plan(&scene, SCENE_ANNA, sequence, 1);
	SCENE_FAILS(&scene, -EBUSY, "later",
	            fa_pool_step_keep(scene.pool, step, 0, path, 4, &scene.error, &from, &n, &to));
	scene_abort(&scene, later);
	assert_int_equal(
		fa_pool_step_keep(scene.pool, step, 0, path, 4, &scene.error, &from, &n, &to), 0);
	assert_int_equal(n, 2);
	assert_int_equal(to, 12);
	assert_int_equal(from[0], 14);
	assert_int_equal(from[1], 50);
	SCENE_FAILS(&scene, -EINVAL, "already",
	            fa_pool_step_keep(scene.pool, step, 0, path, 4, &scene.error, &from, &n, &to));
	scene_plan_fails(&scene, SCENE_ANNA, sequence, 1, -EBUSY);
	for (uint32_t i = 0; i < 4; i++)
		*device_step_token(&scene.device, step, 0, 10 + i) = 110 + i;
	scene_commit(&scene, step);
	scene_check(&scene, sequence, 0, 14, 100);
	assert_int_equal(scene_cache_info(&scene, cache).used_pages, before);

	step = scene_plan(&scene, SCENE_ANNA, sequence, 41);
	assert_int_equal(
		fa_pool_step_keep(scene.pool, step, 0, path, 0, &scene.error, &from, &n, &to), 0);
	assert_int_equal(n, 0);
	scene_commit(&scene, step);
	scene_check(&scene, sequence, 0, 14, 100);
	assert_int_equal(scene_info(&scene, sequence).step, scene.number);
}

static void test_window(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0), first;
	uint64_t sequence = scene_sequence(&scene, SCENE_ANNA, cache);
	struct fa_pool_step *step;

	scene_append(&scene, SCENE_ANNA, sequence, 500, 100);
	assert_int_equal(fa_pool_sequence_drop(scene.pool, &scene.actors[SCENE_ANNA], sequence, 470,
	                                       &scene.error, &first),
	                 0);
	step = scene_plan(&scene, SCENE_ANNA, sequence, 1);
	assert_int_equal(step->groups[0].first[0], 464);
	assert_int_equal(step->groups[0].table_entries, 3);
	assert_int_equal((uint32_t)(step->groups[0].table_start[0] + 29), 0);
	assert_int_equal(*device_step_token(&scene.device, step, 0, 470), 570);
	scene_write(&scene, step, 100);
	scene_commit(&scene, step);
	scene_check(&scene, sequence, 464, 501, 100);
}

static void test_clears(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", FA_MODE(2, 2, 2)), s;
	const uint32_t all = SCENE_CHUNKS * SCENE_CHUNK_PAGES;
	struct fa_pool_step *step;

	s = scene_sequence(&scene, SCENE_ANNA, cache);
	step = scene_plan(&scene, SCENE_ANNA, s, all * SCENE_PAGE_TOKENS);
	assert_int_equal(step->groups[0].n_clears, 0);
	scene_commit(&scene, step);
	fa_pool_release_owner(scene.pool, scene.actors[SCENE_ANNA].owner);

	s = scene_sequence(&scene, SCENE_BOB, cache);
	step = scene_plan(&scene, SCENE_BOB, s, SCENE_PAGE_TOKENS);
	assert_int_equal(step->groups[0].n_clears, 0);
	scene_commit(&scene, step);
	fa_pool_release_owner(scene.pool, scene.actors[SCENE_BOB].owner);

	s = scene_sequence(&scene, SCENE_DAVID, cache);
	for (int i = 0; i < 2; i++) {
		step = scene_plan(&scene, SCENE_DAVID, s, all * SCENE_PAGE_TOKENS);
		assert_int_equal(step->groups[0].n_clears, all);
		/* An aborted step may not have cleared its pages. */
		scene_abort(&scene, step);
	}
	step = scene_plan(&scene, SCENE_DAVID, s, all * SCENE_PAGE_TOKENS);
	scene_commit(&scene, step);
	fa_pool_release_owner(scene.pool, scene.actors[SCENE_DAVID].owner);
	s = scene_sequence(&scene, SCENE_DAVID, cache);
	step = scene_plan(&scene, SCENE_DAVID, s, all * SCENE_PAGE_TOKENS);
	assert_int_equal(step->groups[0].n_clears, 0);
	scene_abort(&scene, step);

	scene_reopen(&scene);
	fa_pool_quarantine_end(scene.pool);
	step = scene_plan(&scene, SCENE_DAVID, s, all * SCENE_PAGE_TOKENS);
	assert_int_equal(step->groups[0].n_clears, all);
	scene_abort(&scene, step);
}

/* The target of an aborted copy must be cleared. */
static void test_copies_aborted(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", FA_MODE(2, 2, 2)), s, fork;
	const uint32_t all = SCENE_CHUNKS * SCENE_CHUNK_PAGES;
	struct fa_pool_step *step;
	uint32_t slot;

	s = scene_sequence(&scene, SCENE_DAVID, cache);
	scene_append(&scene, SCENE_DAVID, s, all * SCENE_PAGE_TOKENS, 100);
	fa_pool_release_owner(scene.pool, scene.actors[SCENE_DAVID].owner);
	s = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, s, 3, 100);
	assert_int_equal(fa_pool_sequence_fork(scene.pool, &scene.actors[SCENE_ANNA], s, UINT64_MAX,
	                                       &scene.error, &fork),
	                 0);
	step = scene_plan(&scene, SCENE_ANNA, fork, 1);
	assert_int_equal(step->groups[0].n_copies, 1);
	slot = step->groups[0].copies_to[0];
	assert_int_not_equal(step->groups[0].copies_from[0], slot);
	scene_abort(&scene, step);
	s = scene_sequence(&scene, SCENE_ANNA, cache);
	step = scene_plan(&scene, SCENE_ANNA, s, SCENE_PAGE_TOKENS * (all - 1));
	for (uint32_t i = 0; slot != UINT32_MAX && i < step->groups[0].n_clears; i++)
		if (step->groups[0].clears[i] == slot)
			slot = UINT32_MAX;
	assert_int_equal(slot, UINT32_MAX);
	scene_abort(&scene, step);
}

/* A fork has the original of a page, not the copy of a step in flight. */
static void test_fork_of_copied(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0), a, b, c;
	uint32_t slot_a, slot_c;
	struct fa_pool_step *step, *reader;

	a = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, a, 3, 100);
	assert_int_equal(fa_pool_sequence_fork(scene.pool, &scene.actors[SCENE_ANNA], a, UINT64_MAX,
	                                       &scene.error, &b),
	                 0);
	pool_sequence_slots(scene.pool, a, &slot_a, 1);
	step = scene_plan(&scene, SCENE_ANNA, a, 1);
	assert_int_equal(fa_pool_sequence_fork(scene.pool, &scene.actors[SCENE_ANNA], a, UINT64_MAX,
	                                       &scene.error, &c),
	                 0);
	pool_sequence_slots(scene.pool, c, &slot_c, 1);
	assert_int_equal(slot_a, slot_c);
	assert_int_equal(fa_pool_sequence_set_name(scene.pool, &scene.actors[SCENE_ANNA], b, "b", 0,
	                                           0, 0, &scene.error),
	                 -EINVAL);
	reader = scene_plan(&scene, SCENE_ADMIN, a, 0);
	assert_int_equal(reader->groups[0].table[0], slot_a);
	scene_abort(&scene, reader);
	scene_abort(&scene, step);
	scene_check(&scene, a, 0, 3, 100);
}

static void test_suspect(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache);
	uint64_t b = scene_sequence(&scene, SCENE_ANNA, cache);
	uint64_t c = scene_sequence(&scene, SCENE_ANNA, cache);
	struct fa_pool_step_item items[] = { { a, 10 }, { b, 0 } };
	struct fa_pool_step *step;

	scene_append(&scene, SCENE_ANNA, b, 3, 100);
	scene_append(&scene, SCENE_ANNA, c, 3, 100);
	assert_int_equal(fa_pool_step_plan(scene.pool, &scene.actors[SCENE_ANNA], items, 2,
	                                   ++scene.number, 0, &scene.error, &step),
	                 0);
	assert_int_equal(fa_pool_step_suspect(scene.pool, step), 1);
	fa_pool_step_free(step);
	SCENE_FAILS(
		&scene, -ESTALE, "removed",
		fa_pool_sequence_remove(scene.pool, &scene.actors[SCENE_ANNA], a, &scene.error));
	scene_check(&scene, b, 0, 3, 100);
	scene_check(&scene, c, 0, 3, 100);
}

static void test_many_pages(void **state)
{
	enum {
		PAGES = 2048,
		SEQUENCES = FA_POOL_STEP_PAGES_MAX / PAGES
	};
	const struct fa_pool_config config = { .chunk_bytes = PAGES * 512,
		                               .max_chunks = 1024,
		                               .page_bytes_min = 512,
		                               .max_sequences = SEQUENCES + 1 };
	const struct fa_pool_cache_config of_cache = { .geometry = scene_geometry };
	struct fa_pool_step_item items[SEQUENCES + 1] = {};
	struct fa_actor actor = { .owner = 1 };
	struct fa_pool *pool;
	struct fa_error error;
	struct fa_pool_step *step;
	uint64_t cache;
	int fd;

	assert_int_equal(fa_pool_format(&config, &error, &fd), 0);
	assert_int_equal(fa_pool_open(fd, NULL, &error, &pool), 0);
	close(fd);
	fa_pool_quarantine_end(pool);
	assert_int_equal(fa_pool_tenant_get(pool, 1000, "/", &error, &actor.tenant), 0);
	assert_int_equal(fa_pool_chunk_add(pool, 0, true, &error), 0);
	assert_int_equal(fa_pool_cache_new(pool, &actor, &of_cache, 0, &error, &cache), 0);
	assert_int_equal(fa_pool_sequence_new(pool, &actor, cache, &error, &items[0].sequence), 0);
	items[0].n_tokens = PAGES * SCENE_PAGE_TOKENS;
	assert_int_equal(fa_pool_step_plan(pool, &actor, items, 1, 1, 0, &error, &step), 0);
	assert_int_equal(fa_pool_step_commit(pool, step, &error), 0);
	fa_pool_step_free(step);
	items[0].n_tokens = 0;
	for (uint32_t i = 1; i <= SEQUENCES; i++)
		assert_int_equal(fa_pool_sequence_fork(pool, &actor, items[0].sequence, UINT64_MAX,
		                                       &error, &items[i].sequence),
		                 0);
	SCENE_FAILS(
		&scene, -EINVAL, "4196352 pages",
		fa_pool_step_plan(pool, &actor, items, SEQUENCES + 1, 2, 0, &scene.error, &step));
	assert_int_equal(fa_pool_step_plan(pool, &actor, items, SEQUENCES, 2, 0, &error, &step), 0);
	assert_int_equal(step->groups[0].table_entries, FA_POOL_STEP_PAGES_MAX);
	fa_pool_step_abort(pool, step);
	fa_pool_step_free(step);
	fa_pool_tenant_put(pool, actor.tenant);
	fa_pool_free(pool);
}

/* Removed some time after a chunk became empty, not after it was added. */
static void test_empty_chunks(void **state)
{
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, scene_cache(&scene, SCENE_ANNA, NULL, 0));
	struct fa_pool_step *step;
	uint32_t chunk, n = 0;

	fa_pool_quarantine_end(scene.pool);
	scene.now_ns = 1000;
	step = scene_plan(&scene, SCENE_ANNA, a, 40);
	scene_commit(&scene, step);
	fa_pool_set_time(scene.pool, 5000);
	assert_int_equal(fa_pool_sequence_remove(scene.pool, anna, a, &scene.error), 0);
	while (fa_pool_chunk_remove_empty(scene.pool, 4999, &chunk))
		n++;
	assert_int_equal(n, SCENE_CHUNKS - 1);
	assert_true(fa_pool_chunk_remove_empty(scene.pool, 5000, &chunk));
	assert_false(fa_pool_chunk_remove_empty(scene.pool, UINT64_MAX, &chunk));
}

/* Needs of all cgroups of a user count together in a step. */
static void test_cells_of_cgroups(void **state)
{
	enum {
		CGROUPS = 10,
		EACH = 100
	};
	const struct fa_pool_config config = { .chunk_bytes = 1 << 20,
		                               .max_chunks = 1,
		                               .page_bytes_min = 512,
		                               .max_sequences = 2000 };
	const struct fa_pool_cache_config of_cache = { .geometry = scene_geometry,
		                                       .name = "c",
		                                       .mode = FA_MODE(2, 2, 2) };
	static struct fa_pool_step_item items[CGROUPS * EACH];
	struct fa_actor actors[CGROUPS];
	struct fa_error error;
	struct fa_pool_step *step;
	struct fa_pool *pool;
	uint64_t cache = 0;
	char text[32];
	int fd;

	assert_int_equal(fa_pool_format(&config, &error, &fd), 0);
	assert_int_equal(fa_pool_open(fd, NULL, &error, &pool), 0);
	close(fd);
	fa_pool_quarantine_end(pool);
	assert_int_equal(fa_pool_chunk_add(pool, 0, true, &error), 0);
	for (int i = 0; i < CGROUPS * EACH; i++) {
		struct fa_actor *const actor = &actors[i / EACH];

		if (i % EACH == 0) {
			*actor = (struct fa_actor){ .owner = (uint64_t)i + 1 };
			snprintf(text, sizeof(text), "/%d", i);
			assert_int_equal(
				fa_pool_tenant_get(pool, 1000, text, &error, &actor->tenant), 0);
		}
		if (i == 0)
			assert_int_equal(
				fa_pool_cache_new(pool, actor, &of_cache, 0, &error, &cache), 0);
		assert_int_equal(
			fa_pool_sequence_new(pool, actor, cache, &error, &items[i].sequence), 0);
		snprintf(text, sizeof(text), "s%d", i);
		assert_int_equal(fa_pool_sequence_set_name(pool, actor, items[i].sequence, text,
		                                           FA_MODE(1, 1, 1), 0, 0, &error),
		                 0);
		items[i].n_tokens = 1;
	}
	SCENE_FAILS(&scene, -EDQUOT, "cells more",
	            fa_pool_step_plan(pool, &actors[0], items, CGROUPS * EACH, 1, 0, &scene.error,
	                              &step));
	assert_int_equal(fa_pool_step_plan(pool, &actors[0], items, 7 * EACH, 2, 0, &error, &step),
	                 0);
	fa_pool_step_abort(pool, step);
	fa_pool_step_free(step);
	for (int i = 0; i < CGROUPS; i++)
		fa_pool_tenant_put(pool, actors[i].tenant);
	fa_pool_free(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_order, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_several_caches, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_last_chunk, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_keep, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_window, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_clears, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_copies_aborted, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_fork_of_copied, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_suspect, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_empty_chunks, set_up, tear_down),
		cmocka_unit_test(test_many_pages),
		cmocka_unit_test(test_cells_of_cgroups),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
