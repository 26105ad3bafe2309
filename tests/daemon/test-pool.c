/* Chunks, tenants, caches, names and quotas. */
#include "common/clock.h"
#include "daemon/pool/state.h"
#include "tests/daemon/pool-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static struct scene scene;

static uint64_t thread_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * FA_NS_PER_SEC + (uint64_t)now.tv_nsec;
}

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

static void test_format(void **state)
{
	struct fa_pool_config config = { .max_chunks = 4 };
	struct fa_error error;
	int fd;

#define BAD(part, ...)                                                                             \
	do {                                                                                       \
		config = (struct fa_pool_config){ __VA_ARGS__ };                                   \
		assert_int_equal(fa_pool_format(&config, &error, &fd), -EINVAL);                   \
		assert_non_null(strstr(error.text, part));                                         \
	} while (0)
	BAD("power of two", .max_chunks = 4, .chunk_bytes = 3 << 20);
	BAD("power of two", .max_chunks = 4, .chunk_bytes = 2048);
	BAD("power of two", .max_chunks = 4, .chunk_bytes = (uint64_t)8 << 30);
	BAD("may have 0 chunks", .max_chunks = 0);
	BAD("expected 1 to 4096", .max_chunks = 4097);
	BAD("at least 3000", .max_chunks = 4, .page_bytes_min = 3000);
	BAD("too many", .max_chunks = 4, .page_bytes_min = 128);
	BAD("tables", .max_chunks = 4, .max_sequences = 1 << 25);
	config = (struct fa_pool_config){ .max_chunks = 4096 };
	assert_int_equal(fa_pool_format(&config, &error, &fd), 0);
	close(fd);
}

/* Ids of one pool are invalid in another. */
static void test_other_pool(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t sequence = scene_sequence(&scene, SCENE_ANNA, cache);
	struct fa_pool_sequence_info info;
	struct scene other;
	uint64_t other_cache;
	int r;

	scene_init(&other, 1);
	other_cache = scene_cache(&other, SCENE_ANNA, NULL, 0);
	fa_check(other_cache != cache);
	fa_check(scene_sequence(&other, SCENE_ANNA, other_cache) != sequence);
	r = fa_pool_sequence_get_info(other.pool, &other.actors[SCENE_ANNA], sequence, &other.error,
	                              &info);
	fa_check(r == -ENOENT || r == -ESTALE);
	scene_deinit(&other);
}

static void test_chunks(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t other = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache);
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	uint32_t chunk;

	assert_int_equal(fa_pool_chunk_bytes(scene.pool), SCENE_CHUNK_BYTES);
	assert_int_equal(fa_pool_max_chunks(scene.pool), SCENE_CHUNKS);
	SCENE_FAILS(&scene, -EINVAL, "chunk 8",
	            fa_pool_chunk_add(scene.pool, SCENE_CHUNKS, true, &scene.error));
	SCENE_FAILS(&scene, -EEXIST, "chunk 1",
	            fa_pool_chunk_add(scene.pool, 1, true, &scene.error));
	scene_append(&scene, SCENE_ANNA, a, 20 * 16, 100);
	SCENE_FAILS(&scene, -EBUSY, "2 chunks",
	            fa_pool_chunk_remove(scene.pool, &scene.error, &chunk));
	assert_int_equal(fa_pool_sequence_truncate(scene.pool, anna, a, 16 * 16, &scene.error), 0);
	assert_int_equal(fa_pool_chunk_state(scene.pool, 1), FA_CHUNK_CACHE);
	assert_int_equal(fa_pool_chunk_remove(scene.pool, &scene.error, &chunk), 0);
	assert_int_equal(chunk, 1);
	assert_int_equal(fa_pool_chunk_state(scene.pool, 1), FA_CHUNK_ABSENT);
	scene_plan_fails(&scene, SCENE_ANNA, a, 1, -ENOMEM);
	scene_reopen(&scene);
	assert_int_equal(fa_pool_chunk_state(scene.pool, 1), FA_CHUNK_ABSENT);
	scene_check(&scene, a, 0, 16 * 16, 100);

	/* A cache gets another's empty chunks. */
	fa_pool_quarantine_end(scene.pool);
	assert_int_equal(fa_pool_sequence_remove(scene.pool, anna, a, &scene.error), 0);
	assert_int_equal(scene_cache_info(&scene, cache).chunks, 1);
	a = scene_sequence(&scene, SCENE_ANNA, other);
	scene_append(&scene, SCENE_ANNA, a, 1, 100);
	assert_int_equal(scene_cache_info(&scene, cache).chunks, 0);
	assert_int_equal(scene_cache_info(&scene, other).chunks, 1);
}

static void test_tenants(void **state)
{
	char cgroup[FA_STATE_CGROUP_BYTES + 1];
	struct fa_pool_tenant_info info;
	uint32_t tag, again, cursor = 0;

	memset(cgroup, 'x', sizeof(cgroup));
	cgroup[FA_STATE_CGROUP_BYTES] = '\0';
	SCENE_FAILS(&scene, -ENAMETOOLONG, "512 bytes",
	            fa_pool_tenant_get(scene.pool, 7, cgroup, &scene.error, &tag));
	cgroup[FA_STATE_CGROUP_BYTES - 1] = '\0';
	assert_int_equal(fa_pool_tenant_get(scene.pool, 7, cgroup, &scene.error, &tag), 0);
	assert_int_equal(fa_pool_tenant_get(scene.pool, 7, cgroup, &scene.error, &again), 0);
	assert_int_equal(tag, again);
	while (fa_pool_tenant_each(scene.pool, &cursor, &info) && info.tag != tag)
		;
	assert_int_equal(info.uid, 7);
	assert_string_equal(info.cgroup, cgroup);
	fa_pool_tenant_put(scene.pool, tag);
	assert_int_equal(fa_pool_tenant_get(scene.pool, 7, cgroup, &scene.error, &again), 0);
	assert_int_equal(tag, again);
	fa_pool_tenant_put(scene.pool, tag);
	fa_pool_tenant_put(scene.pool, tag);
	/* The record's next tag is another one. */
	assert_int_equal(fa_pool_tenant_get(scene.pool, 8, "", &scene.error, &again), 0);
	assert_int_not_equal(tag, again);
	fa_pool_tenant_put(scene.pool, again);
}

static void test_many_tenants(void **state)
{
	uint32_t tags[FA_STATE_TENANTS], n = 0, tag;

	while (fa_pool_tenant_get(scene.pool, 10000 + n, "", &scene.error, &tag) == 0)
		tags[n++] = tag;
	assert_int_equal(n, FA_STATE_TENANTS - 4);
	assert_non_null(strstr(scene.error.text, "4096 tenants"));
	while (n)
		fa_pool_tenant_put(scene.pool, tags[--n]);
	assert_int_equal(fa_pool_tenant_get(scene.pool, 1, "", &scene.error, &tag), 0);
	fa_pool_tenant_put(scene.pool, tag);
}

static void test_tenants_of_a_user(void **state)
{
	uint32_t tags[FA_STATE_TENANTS], n = 0, tag;
	char cgroup[16];

	for (;;) {
		snprintf(cgroup, sizeof(cgroup), "%u", n);
		if (fa_pool_tenant_get(scene.pool, 7, cgroup, &scene.error, &tag) < 0)
			break;
		tags[n++] = tag;
	}
	SCENE_FAILS(&scene, -EDQUOT, "uid 7",
	            fa_pool_tenant_get(scene.pool, 7, "more", &scene.error, &tag));
	assert_int_equal(n, FA_STATE_TENANTS / 2);
	assert_int_equal(fa_pool_tenant_get(scene.pool, 7, "5", &scene.error, &tag), 0);
	fa_pool_tenant_put(scene.pool, tag);
	/* Not others', and uid 0 has no limit. */
	assert_int_equal(fa_pool_tenant_get(scene.pool, 8, "", &scene.error, &tag), 0);
	fa_pool_tenant_put(scene.pool, tag);
	fa_pool_tenant_put(scene.pool, tags[--n]);
	assert_int_equal(fa_pool_tenant_get(scene.pool, 7, "more", &scene.error, &tags[n++]), 0);
	while (n)
		fa_pool_tenant_put(scene.pool, tags[--n]);
	while (snprintf(cgroup, sizeof(cgroup), "%u", n) > 0 &&
	       fa_pool_tenant_get(scene.pool, 0, cgroup, &scene.error, &tag) == 0)
		tags[n++] = tag;
	assert_int_equal(n, FA_STATE_TENANTS - 4);
	while (n)
		fa_pool_tenant_put(scene.pool, tags[--n]);
}

static void test_caches(void **state)
{
	struct fa_pool_cache_config config = { .geometry = scene_geometry, .name = "c" };
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", FA_MODE(1, 0, 0)), id, own, s;
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	const struct fa_actor *claire = &scene.actors[SCENE_CLAIRE];
	const struct fa_actor *david = &scene.actors[SCENE_DAVID];
	struct fa_pool_cache_info info;
	char name[FA_NAME_BYTES + 1];
	struct fa_pool_step *step;

	own = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	SCENE_FAILS(&scene, -EEXIST, "'c'",
	            fa_pool_cache_new(scene.pool, claire, &config, 0, &scene.error, &id));
	memset(name, 'n', sizeof(name));
	name[FA_NAME_BYTES] = '\0';
	config.name = name;
	SCENE_FAILS(&scene, -ENAMETOOLONG, "64 bytes",
	            fa_pool_cache_new(scene.pool, anna, &config, 0, &scene.error, &id));
	config.name = "a\nb";
	SCENE_FAILS(&scene, -EINVAL, "control",
	            fa_pool_cache_new(scene.pool, anna, &config, 0, &scene.error, &id));
	config.name = "";
	SCENE_FAILS(&scene, -EINVAL, "empty",
	            fa_pool_cache_new(scene.pool, anna, &config, 0, &scene.error, &id));
	config.name = "x";
	config.mode = 3;
	SCENE_FAILS(&scene, -EINVAL, "mode",
	            fa_pool_cache_new(scene.pool, anna, &config, 0, &scene.error, &id));
	config.mode = 64;
	SCENE_FAILS(&scene, -EINVAL, "mode",
	            fa_pool_cache_new(scene.pool, anna, &config, 0, &scene.error, &id));
	config.mode = 0;
	config.geometry.page_tokens = 256;
	config.geometry.layers = 64;
	SCENE_FAILS(&scene, -EINVAL, "chunk",
	            fa_pool_cache_new(scene.pool, anna, &config, 0, &scene.error, &id));
	config.geometry = scene_geometry;
	config.name = NULL;
	config.ttl_ns = 1;
	SCENE_FAILS(&scene, -EINVAL, "time to live",
	            fa_pool_cache_new(scene.pool, anna, &config, 0, &scene.error, &id));

	/* read: same uid; append: same tenant */
	assert_int_equal(
		fa_pool_cache_find(scene.pool, claire, "c", FA_UID_OWN, 0, &scene.error, &id), 0);
	assert_int_equal(id, cache);
	SCENE_FAILS(&scene, -ENOENT, "there is no cache named 'c'",
	            fa_pool_cache_find(scene.pool, david, "c", 1000, 0, &scene.error, &id));
	SCENE_FAILS(&scene, -ENOENT, "'d'",
	            fa_pool_cache_find(scene.pool, david, "d", FA_UID_OWN, 0, &scene.error, &id));
	SCENE_FAILS(&scene, -EACCES, "make sequences",
	            fa_pool_sequence_new(scene.pool, claire, cache, &scene.error, &id));
	SCENE_FAILS(&scene, -EACCES, "remove",
	            fa_pool_cache_remove(scene.pool, claire, cache, &scene.error));
	SCENE_FAILS(&scene, -ENOENT, "no such",
	            fa_pool_cache_get_info(scene.pool, &scene.actors[SCENE_BOB], own, &scene.error,
	                                   &info));
	SCENE_FAILS(&scene, -ENOENT, "no such",
	            fa_pool_cache_get_info(scene.pool, anna, UINT64_MAX, &scene.error, &info));

	/* Freed with the last step in flight. */
	s = scene_sequence(&scene, SCENE_BOB, cache);
	step = scene_plan(&scene, SCENE_BOB, s, 10);
	assert_int_equal(fa_pool_cache_remove(scene.pool, anna, cache, &scene.error), 0);
	SCENE_FAILS(&scene, -ESTALE, "removed",
	            fa_pool_cache_remove(scene.pool, anna, cache, &scene.error));
	SCENE_FAILS(&scene, -ESTALE, "removed",
	            fa_pool_sequence_remove(scene.pool, &scene.actors[SCENE_BOB], s, &scene.error));
	id = scene_cache(&scene, SCENE_DAVID, "c", 0); /* the name is free at once */
	assert_int_equal(fa_pool_step_commit(scene.pool, step, &scene.error), 0);
	assert_true(step->entries[0].stale);
	fa_pool_step_free(step);
	scene_reopen(&scene);
	assert_int_equal(scene_cache_info(&scene, id).chunks, 0);
}

static void test_many_caches(void **state)
{
	struct fa_pool_cache_config config = { .geometry = scene_geometry };
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	struct fa_pool_info info;
	uint64_t id;

	for (uint32_t i = 0; i < FA_STATE_CACHES; i++)
		scene_cache(&scene, SCENE_ANNA, NULL, 0);
	SCENE_FAILS(&scene, -ENOSPC, "256 caches",
	            fa_pool_cache_new(scene.pool, anna, &config, 0, &scene.error, &id));
	fa_pool_release_owner(scene.pool, anna->owner);
	fa_pool_get_info(scene.pool, &info);
	assert_int_equal(info.caches, 0);
}

static void test_names(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", FA_MODE(2, 2, 2)), id;
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache);
	uint64_t b = scene_sequence(&scene, SCENE_CLAIRE, cache);
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	const struct fa_actor *bob = &scene.actors[SCENE_BOB];
	const struct fa_actor *claire = &scene.actors[SCENE_CLAIRE];
	const struct fa_actor *david = &scene.actors[SCENE_DAVID];
	struct fa_pool_sequence_info info;

	scene_append(&scene, SCENE_ANNA, a, 5, 100);
	SCENE_FAILS(&scene, -ENOENT, "no such",
	            fa_pool_sequence_get_info(scene.pool, bob, a, &scene.error, &info));
	assert_int_equal(fa_pool_sequence_set_name(scene.pool, anna, a, "s", FA_MODE(2, 0, 1), 0, 0,
	                                           &scene.error),
	                 0);
	SCENE_FAILS(&scene, -EEXIST, "'s'",
	            fa_pool_sequence_set_name(scene.pool, claire, b, "s", 0, 0, 0, &scene.error));
	SCENE_FAILS(&scene, -EEXIST, "already",
	            fa_pool_sequence_set_name(scene.pool, anna, a, "t", 0, 0, 0, &scene.error));
	SCENE_FAILS(&scene, -EACCES, "change",
	            fa_pool_sequence_set_name(scene.pool, david, a, "s", 0, 0, 0, &scene.error));
	SCENE_FAILS(&scene, -EINVAL, "mode",
	            fa_pool_sequence_set_name(scene.pool, anna, a, "s", 3, 0, 0, &scene.error));

	/* Its own tenant has every right, others have those in the mode. */
	assert_int_equal(fa_pool_sequence_find(scene.pool, david, "s", 1000, 0, &scene.error, &id),
	                 0);
	assert_int_equal(id, a);
	SCENE_FAILS(&scene, -EACCES, "fork",
	            fa_pool_sequence_fork(scene.pool, david, a, 5, &scene.error, &id));
	assert_int_equal(fa_pool_sequence_fork(scene.pool, claire, a, 5, &scene.error, &id), 0);
	scene_plan_fails(&scene, SCENE_CLAIRE, a, 1, -EACCES);
	scene_append(&scene, SCENE_CLAIRE, id, 1, 100);
	assert_int_equal(scene_tenant_bytes(&scene, SCENE_CLAIRE), 512);
	SCENE_FAILS(&scene, -EACCES, "free it",
	            fa_pool_sequence_remove(scene.pool, claire, a, &scene.error));
	scene_append(&scene, SCENE_BOB, a, 1, 100);

	fa_pool_release_owner(scene.pool, anna->owner);
	scene_check(&scene, a, 0, 6, 100);
	scene_reopen(&scene);
	assert_int_equal(
		fa_pool_sequence_find(scene.pool, bob, "s", FA_UID_OWN, 0, &scene.error, &id), 0);
	assert_int_equal(id, a);
	assert_int_equal(scene_info(&scene, a).owner, 0);
	assert_int_equal(fa_pool_sequence_remove(scene.pool, bob, a, &scene.error), 0);
	SCENE_FAILS(&scene, -ENOENT, "'s'",
	            fa_pool_sequence_find(scene.pool, bob, "s", FA_UID_OWN, 0, &scene.error, &id));
	for (uint32_t i = 0; i < SCENE_SEQUENCES - 2; i++) {
		char name[8];

		snprintf(name, sizeof(name), "n%u", i);
		a = scene_sequence(&scene, SCENE_BOB, cache);
		assert_int_equal(
			fa_pool_sequence_set_name(scene.pool, bob, a, name, 0, 0, 0, &scene.error),
			0);
	}
	scene_reopen(&scene);
	for (uint32_t i = 0; i < SCENE_SEQUENCES - 2; i++) {
		char name[8];

		snprintf(name, sizeof(name), "n%u", i);
		assert_int_equal(fa_pool_sequence_find(scene.pool, bob, name, FA_UID_OWN, 0,
		                                       &scene.error, &id),
		                 0);
	}
}

static void test_owners(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0), owner;
	uint64_t named = scene_cache(&scene, SCENE_BOB, "c", 0), a;
	uint32_t cursor = 0, seen[4] = { 0 };

	a = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, a, 30, 100);
	scene_append(&scene, SCENE_BOB, scene_sequence(&scene, SCENE_BOB, named), 30, 100);
	scene_reopen(&scene);
	while (fa_pool_owner_each(scene.pool, &cursor, &owner)) {
		assert_in_range(owner, 1, 3);
		seen[owner]++;
	}
	assert_true(seen[1] && seen[2] && !seen[3]);
	fa_pool_release_owner(scene.pool, scene.actors[SCENE_ANNA].owner);
	assert_int_equal(scene_cache_info(&scene, named).sequences, 1);
	fa_pool_release_owner(scene.pool, scene.actors[SCENE_BOB].owner);
	assert_int_equal(scene_cache_info(&scene, named).sequences, 0);
	cursor = 0;
	assert_false(fa_pool_owner_each(scene.pool, &cursor, &owner));
}

static void test_expiry(void **state)
{
	struct fa_pool_cache_config config = { .geometry = scene_geometry,
		                               .name = "c",
		                               .ttl_ns = 100 };
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	struct fa_pool_step *step;
	uint64_t cache, a, id;

	assert_int_equal(fa_pool_cache_new(scene.pool, anna, &config, 1000, &scene.error, &cache),
	                 0);
	a = scene_sequence(&scene, SCENE_ANNA, cache);
	assert_int_equal(
		fa_pool_sequence_set_name(scene.pool, anna, a, "s", 0, 50, 1000, &scene.error), 0);
	assert_int_equal(fa_pool_expire(scene.pool, 1050), 0);
	assert_int_equal(
		fa_pool_sequence_find(scene.pool, anna, "s", FA_UID_OWN, 1050, &scene.error, &id),
		0);
	assert_int_equal(fa_pool_expire(scene.pool, 1051), 0);
	scene.now_ns = 1090;
	step = scene_plan(&scene, SCENE_ANNA, a, 5);
	/* Nothing expires while a step is in flight. */
	assert_int_equal(fa_pool_expire(scene.pool, 2000), 0);
	scene_write(&scene, step, 100);
	scene_commit(&scene, step);
	scene_reopen(&scene);
	/* In use until the step ended. */
	assert_int_equal(fa_pool_expire(scene.pool, 2050), 0);
	assert_int_equal(fa_pool_expire(scene.pool, 2051), 1);
	SCENE_FAILS(
		&scene, -ENOENT, "'s'",
		fa_pool_sequence_find(scene.pool, anna, "s", FA_UID_OWN, 2051, &scene.error, &id));
	/* In use until the sequence expired. */
	assert_int_equal(fa_pool_expire(scene.pool, 2151), 0);
	fa_pool_quarantine_end(scene.pool);
	assert_int_equal(fa_pool_expire(scene.pool, 2152), 1);
}

/* Forks and changes count as use. */
static void test_expiry_of_used(void **state)
{
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", 0), a, b, n;
	uint32_t tokens[40] = { 0 };
	const struct fa_prefix_key key = {};

	a = scene_sequence(&scene, SCENE_ANNA, cache);
	b = scene_sequence(&scene, SCENE_ANNA, cache);
	scene.now_ns = 1000;
	scene_append(&scene, SCENE_ANNA, a, 40, 100);
	assert_int_equal(
		fa_pool_sequence_set_name(scene.pool, anna, a, "a", 0, 50, 1000, &scene.error), 0);
	assert_int_equal(
		fa_pool_sequence_set_name(scene.pool, anna, b, "b", 0, 50, 1000, &scene.error), 0);
	assert_int_equal(fa_pool_expire(scene.pool, 1040), 0);
	assert_int_equal(fa_pool_sequence_fork(scene.pool, anna, a, 20, &scene.error, &n), 0);
	assert_int_equal(pool_publish(scene.pool, anna, a, &key, tokens, 40, &scene.error, &n), 0);
	assert_int_equal(pool_attach(scene.pool, anna, b, &key, tokens, 40, &scene.error, &n), 0);
	assert_int_equal(n, 32);
	assert_int_equal(fa_pool_expire(scene.pool, 1080), 0);
	assert_int_equal(fa_pool_sequence_truncate(scene.pool, anna, b, 20, &scene.error), 0);
	assert_int_equal(fa_pool_sequence_drop(scene.pool, anna, a, 16, &scene.error, &n), 0);
	assert_int_equal(fa_pool_expire(scene.pool, 1120), 0);
	assert_int_equal(pool_publish(scene.pool, anna, a, &key, tokens, 40, &scene.error, &n), 0);
	assert_int_equal(fa_pool_expire(scene.pool, 1160), 1);
	scene_check(&scene, a, 16, 40, 100);
	assert_int_equal(fa_pool_expire(scene.pool, 1171), 1);
}

static uint64_t quota_bytes, quota_calls;
static uint32_t quota_sequences = 100, quota_caches = 100;

static int quota(void *userdata, const struct fa_pool_tenant_info *held,
                 const struct fa_pool_more *more, struct fa_error *error)
{
	assert_ptr_equal(userdata, &quota_bytes);
	assert_int_equal(held->uid, 1000);
	assert_string_equal(held->cgroup, "/a");
	quota_calls += more->bytes != 0;
	if (held->n_sequences + more->sequences > quota_sequences ||
	    held->n_caches + more->caches > quota_caches)
		return fa_fail(error, -EDQUOT, "too many objects");
	if (held->bytes + more->bytes <= quota_bytes)
		return 0;
	return fa_fail(error, -EDQUOT, "%llu bytes are held", (unsigned long long)held->bytes);
}

static void test_quotas(void **state)
{
	struct fa_pool_cache_config config = { .geometry = scene_geometry, .max_pages = 3 };
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0), small, a, b;
	struct fa_pool_step_item items[2];
	struct fa_pool_info before, after;
	struct fa_pool_step *step;

	fa_pool_set_quota(scene.pool, quota, &quota_bytes);
	quota_bytes = 4 * 512;
	a = scene_sequence(&scene, SCENE_ANNA, cache);
	b = scene_sequence(&scene, SCENE_ANNA, cache);
	items[0] = (struct fa_pool_step_item){ a, 48 };
	items[1] = (struct fa_pool_step_item){ b, 32 };
	fa_pool_get_info(scene.pool, &before);
	SCENE_FAILS(&scene, -EDQUOT, "0 bytes are held",
	            fa_pool_step_plan(scene.pool, anna, items, 2, 1, 0, &scene.error, &step));
	fa_pool_get_info(scene.pool, &after);
	scene_check_same(&before, &after);
	assert_int_equal(quota_calls, 1);
	items[1].n_tokens = 16;
	assert_int_equal(fa_pool_step_plan(scene.pool, anna, items, 2, 1, 0, &scene.error, &step),
	                 0);
	scene_commit(&scene, step);
	scene_plan_fails(&scene, SCENE_ANNA, a, 1, -EDQUOT);
	/* A shared page is paid for once. */
	assert_int_equal(fa_pool_sequence_fork(scene.pool, anna, a, 40, &scene.error, &b), 0);
	scene_plan_fails(&scene, SCENE_ANNA, b, 1, -EDQUOT);
	assert_int_equal(fa_pool_sequence_truncate(scene.pool, anna, a, 32, &scene.error), 0);
	scene_append(&scene, SCENE_ANNA, b, 8, 100);

	quota_bytes = UINT64_MAX;
	assert_int_equal(fa_pool_cache_new(scene.pool, anna, &config, 0, &scene.error, &small), 0);
	a = scene_sequence(&scene, SCENE_ANNA, small);
	scene_plan_fails(&scene, SCENE_ANNA, a, 49, -EDQUOT);
	scene_append(&scene, SCENE_ANNA, a, 48, 100);
	scene_plan_fails(&scene, SCENE_ANNA, a, 1, -EDQUOT);
	assert_non_null(strstr(scene.error.text, "3 of at most 3"));
}

/* Idle pages are evicted before -EDQUOT, but only if that helps. */
static void test_quota_of_idle(void **state)
{
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0), other, a, n;
	uint32_t tokens[80] = { 0 };
	const struct fa_prefix_key key = {};

	fa_pool_set_quota(scene.pool, quota, &quota_bytes);
	quota_bytes = 5 * 512;
	a = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, a, 48, 100);
	assert_int_equal(pool_publish(scene.pool, anna, a, &key, tokens, 48, &scene.error, &n), 0);
	assert_int_equal(n, 3);
	assert_int_equal(fa_pool_sequence_remove(scene.pool, anna, a, &scene.error), 0);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, 3);

	other = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	a = scene_sequence(&scene, SCENE_ANNA, other);
	scene_plan_fails(&scene, SCENE_ANNA, a, 81, -EDQUOT);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, 3);
	scene_append(&scene, SCENE_ANNA, a, 32, 100);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, 3);
	scene_append(&scene, SCENE_ANNA, a, 1, 100);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, 2);
	/* The end of the prefix was evicted. */
	assert_int_equal(
		pool_find_prefix(scene.pool, anna, cache, &key, tokens, 48, &scene.error, &n), 0);
	assert_int_equal(n, 32);
	scene_append(&scene, SCENE_ANNA, a, 47, 100);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, 0);
	scene_check(&scene, a, 0, 80, 100);
	scene_plan_fails(&scene, SCENE_ANNA, a, 1, -EDQUOT);
	scene_check_counts(&scene);
}

/* Attached pages count for max_pages. */
static void test_quota_of_attached(void **state)
{
	struct fa_pool_cache_config config = { .geometry = scene_geometry, .max_pages = 3 };
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	const struct fa_prefix_key key = {};
	uint32_t tokens[32] = { 0 };
	uint64_t cache, a, b, n;

	assert_int_equal(fa_pool_cache_new(scene.pool, anna, &config, 0, &scene.error, &cache), 0);
	a = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, a, 32, 100);
	assert_int_equal(pool_publish(scene.pool, anna, a, &key, tokens, 32, &scene.error, &n), 0);
	assert_int_equal(fa_pool_sequence_remove(scene.pool, anna, a, &scene.error), 0);
	a = scene_sequence(&scene, SCENE_ANNA, cache);
	b = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, b, 20, 200);
	SCENE_FAILS(&scene, -EDQUOT, "2 pages more of a cache that uses 2 of at most 3",
	            pool_attach(scene.pool, anna, a, &key, tokens, 32, &scene.error, &n));
	assert_int_equal(scene_info(&scene, a).length, 0);
	assert_int_equal(pool_attach(scene.pool, anna, a, &key, tokens, 16, &scene.error, &n), 0);
	assert_int_equal(n, 16);
	/* Pages in use do not count again. */
	a = scene_sequence(&scene, SCENE_ANNA, cache);
	assert_int_equal(pool_attach(scene.pool, anna, a, &key, tokens, 16, &scene.error, &n), 0);
	scene_check_counts(&scene);
}

/* One user cannot have all cells. */
static void test_quota_of_lists(void **state)
{
	const struct fa_pool_config config = {
		.chunk_bytes = 1 << 20, .max_chunks = 1, .page_bytes_min = 512, .max_sequences = 100
	};
	const struct fa_pool_cache_config of_cache = { .geometry = scene_geometry,
		                                       .name = "c",
		                                       .mode = FA_MODE(2, 2, 2) };
	struct fa_actor first = { .owner = 1 }, second = { .owner = 2 }, third = { .owner = 1 };
	uint64_t cache, sequence, forks[100], id;
	struct fa_pool_step_item item = { .n_tokens = 1500 * SCENE_PAGE_TOKENS };
	uint32_t n = 0;
	struct fa_error error;
	struct fa_pool_step *step;
	struct fa_pool *pool;
	int fd, r;

	assert_int_equal(fa_pool_format(&config, &error, &fd), 0);
	assert_int_equal(fa_pool_open(fd, NULL, &error, &pool), 0);
	close(fd);
	fa_pool_quarantine_end(pool);
	assert_int_equal(fa_pool_tenant_get(pool, 1000, "/", &error, &first.tenant), 0);
	assert_int_equal(fa_pool_tenant_get(pool, 2000, "/", &error, &second.tenant), 0);
	assert_int_equal(fa_pool_chunk_add(pool, 0, true, &error), 0);
	assert_int_equal(fa_pool_cache_new(pool, &first, &of_cache, 0, &error, &cache), 0);
	assert_int_equal(fa_pool_sequence_new(pool, &first, cache, &error, &sequence), 0);
	item.sequence = sequence;
	assert_int_equal(fa_pool_step_plan(pool, &first, &item, 1, 1, 0, &error, &step), 0);
	assert_int_equal(fa_pool_step_commit(pool, step, &error), 0);
	fa_pool_step_free(step);
	/* One list takes 100 of the 1024 cells. */
	while ((r = fa_pool_sequence_fork(pool, &first, sequence, UINT64_MAX, &error, &forks[n])) ==
	       0)
		n++;
	assert_int_equal(r, -EDQUOT);
	assert_int_equal(n, 6);
	/* Another cgroup of the user gets no more, either. */
	assert_int_equal(fa_pool_tenant_get(pool, 1000, "/other", &error, &third.tenant), 0);
	assert_int_equal(fa_pool_sequence_fork(pool, &third, sequence, UINT64_MAX, &error, &id),
	                 -EDQUOT);
	assert_int_equal(fa_pool_sequence_fork(pool, &third, sequence, 15000, &error, &id), 0);
	assert_int_equal(fa_pool_sequence_remove(pool, &third, id, &error), 0);
	fa_pool_tenant_put(pool, third.tenant);
	assert_int_equal(fa_pool_sequence_new(pool, &second, cache, &error, &id), 0);
	item = (struct fa_pool_step_item){ id, 500 * SCENE_PAGE_TOKENS };
	assert_int_equal(fa_pool_step_plan(pool, &second, &item, 1, 1, 0, &error, &step), 0);
	fa_pool_step_abort(pool, step);
	fa_pool_step_free(step);
	/* Freed cells do not count. */
	for (int i = 0; i < 3; i++) {
		assert_int_equal(fa_pool_sequence_remove(pool, &first, forks[i], &error), 0);
		assert_int_equal(fa_pool_sequence_fork(pool, &first, sequence, UINT64_MAX, &error,
		                                       &forks[i]),
		                 0);
	}
	assert_int_equal(fa_pool_sequence_fork(pool, &first, sequence, UINT64_MAX, &error, &id),
	                 -EDQUOT);
	fa_pool_tenant_put(pool, first.tenant);
	fa_pool_tenant_put(pool, second.tenant);
	fa_pool_free(pool);
}

static void test_quota_of_objects(void **state)
{
	struct fa_pool_cache_config config = { .geometry = scene_geometry };
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	uint64_t cache, a, b;

	fa_pool_set_quota(scene.pool, quota, &quota_bytes);
	quota_bytes = UINT64_MAX;
	quota_caches = 1;
	cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	SCENE_FAILS(&scene, -EDQUOT, "too many objects",
	            fa_pool_cache_new(scene.pool, anna, &config, 0, &scene.error, &a));
	quota_caches = 100;
	quota_sequences = 2;
	a = scene_sequence(&scene, SCENE_ANNA, cache);
	assert_int_equal(fa_pool_sequence_fork(scene.pool, anna, a, 0, &scene.error, &b), 0);
	SCENE_FAILS(&scene, -EDQUOT, "too many objects",
	            fa_pool_sequence_fork(scene.pool, anna, a, 0, &scene.error, &b));
	SCENE_FAILS(&scene, -EDQUOT, "too many objects",
	            fa_pool_sequence_new(scene.pool, anna, cache, &scene.error, &b));
	assert_int_equal(fa_pool_sequence_remove(scene.pool, anna, a, &scene.error), 0);
	(void)scene_sequence(&scene, SCENE_ANNA, cache);
	quota_sequences = 100;
}

static int quota_of_first(void *userdata, const struct fa_pool_tenant_info *held,
                          const struct fa_pool_more *more, struct fa_error *error)
{
	if (held->uid != 1000 || held->bytes + more->bytes <= 8 * 512)
		return 0;
	return fa_fail(error, -EDQUOT, "too much");
}

static void append_to(struct fa_pool *pool, const struct fa_actor *actor, uint64_t sequence,
                      uint32_t n_pages)
{
	const struct fa_pool_step_item item = { sequence, n_pages * SCENE_PAGE_TOKENS };
	static uint64_t number;
	struct fa_error error;
	struct fa_pool_step *step;

	assert_int_equal(fa_pool_step_plan(pool, actor, &item, 1, ++number, 0, &error, &step), 0);
	assert_int_equal(fa_pool_step_commit(pool, step, &error), 0);
	fa_pool_step_free(step);
}

/* 100 steps that evict idle pages of their tenant, which is at its quota. Returns the time. */
static uint64_t append_at_quota(struct fa_pool *pool, const struct fa_actor *actor, uint64_t cache)
{
	static uint32_t tokens[4 * SCENE_PAGE_TOKENS];
	const struct fa_prefix_key key = {};
	uint64_t before, took = 0, id, n;
	struct fa_error error;

	for (int i = 0; i < 100; i++) {
		assert_int_equal(fa_pool_sequence_new(pool, actor, cache, &error, &id), 0);
		append_to(pool, actor, id, 4);
		tokens[0]++;
		assert_int_equal(pool_publish(pool, actor, id, &key, tokens, 4 * SCENE_PAGE_TOKENS,
		                              &error, &n),
		                 0);
		assert_int_equal(n, 4);
		assert_int_equal(fa_pool_sequence_remove(pool, actor, id, &error), 0);
		assert_int_equal(fa_pool_sequence_new(pool, actor, cache, &error, &id), 0);
		before = thread_ns();
		append_to(pool, actor, id, 6);
		took += thread_ns() - before;
		assert_int_equal(fa_pool_sequence_remove(pool, actor, id, &error), 0);
	}
	return took;
}

/* Pages of others do not slow down eviction for a quota. */
static void test_time_among_many(void **state)
{
	enum {
		CHUNKS = 18,
		LISTS = 500,
		PAGES = 1000,
		SEQUENCES = 30000,
	};
	const struct fa_pool_config config = { .chunk_bytes = 1 << 24,
		                               .max_chunks = CHUNKS,
		                               .page_bytes_min = 512 };
	const struct fa_pool_cache_config of_cache = { .geometry = scene_geometry,
		                                       .name = "c",
		                                       .mode = FA_MODE(2, 2, 2) };
	static uint32_t tokens[PAGES * SCENE_PAGE_TOKENS];
	struct fa_actor first = { .owner = 1 }, second = { .owner = 2 };
	uint64_t cache, alone, id, n, before;
	const struct fa_prefix_key key = {};
	struct fa_pool_info info;
	struct fa_error error;
	struct fa_pool *pool;
	int fd;

	assert_int_equal(fa_pool_format(&config, &error, &fd), 0);
	assert_int_equal(fa_pool_open(fd, NULL, &error, &pool), 0);
	close(fd);
	fa_pool_quarantine_end(pool);
	fa_pool_set_quota(pool, quota_of_first, NULL);
	for (uint32_t i = 0; i < CHUNKS; i++)
		assert_int_equal(fa_pool_chunk_add(pool, i, true, &error), 0);
	assert_int_equal(fa_pool_tenant_get(pool, 1000, "/", &error, &first.tenant), 0);
	assert_int_equal(fa_pool_tenant_get(pool, 2000, "/", &error, &second.tenant), 0);
	assert_int_equal(fa_pool_cache_new(pool, &second, &of_cache, 0, &error, &cache), 0);
	alone = append_at_quota(pool, &first, cache);
	for (uint32_t i = 0; i < LISTS; i++) {
		assert_int_equal(fa_pool_sequence_new(pool, &second, cache, &error, &id), 0);
		append_to(pool, &second, id, PAGES);
		tokens[0] = i;
		assert_int_equal(pool_publish(pool, &second, id, &key, tokens,
		                              PAGES * SCENE_PAGE_TOKENS, &error, &n),
		                 0);
		assert_int_equal(fa_pool_sequence_remove(pool, &second, id, &error), 0);
	}
	fa_check(append_at_quota(pool, &first, cache) < 10 * alone + 20 * FA_NS_PER_MS);

	for (uint32_t i = 0; i < SEQUENCES; i++)
		assert_int_equal(fa_pool_sequence_new(pool, &second, cache, &error, &id), 0);
	before = thread_ns();
	for (uint64_t i = 0; i < 200; i++)
		fa_pool_release_owner(pool, 100 + i);
	fa_check(thread_ns() - before < 20 * FA_NS_PER_MS);
	fa_pool_release_owner(pool, second.owner);
	fa_pool_get_info(pool, &info);
	assert_int_equal(info.sequences, 0);
	fa_pool_free(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_format),
		cmocka_unit_test_setup_teardown(test_other_pool, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_chunks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_tenants, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_tenants, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_tenants_of_a_user, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_caches, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_caches, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_names, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_owners, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_expiry, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_expiry_of_used, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_quotas, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_quota_of_idle, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_quota_of_attached, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_quota_of_objects, set_up, tear_down),
		cmocka_unit_test(test_quota_of_lists),
		cmocka_unit_test(test_time_among_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
