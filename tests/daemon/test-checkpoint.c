/* Checkpoints: which a sequence keeps, what forks and prefixes share, and what survives a death
 * between any two stores. */
#include "daemon/pool/state_store.h"
#include "tests/daemon/pool-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A checkpoint takes 16 pages, so that its list has two cells. */
static const uint32_t state_bytes[] = { 7000, 1000 };
#define PAGES 16u
#define EACH 32u /* checkpoint_tokens */

static struct scene scene;
static uint32_t tokens[512];

static int set_up(void **state)
{
	scene_init(&scene, SCENE_CHUNKS);
	for (uint32_t i = 0; i < 512; i++)
		tokens[i] = 100 + i;
	return 0;
}

static int tear_down(void **state)
{
	scene_check_counts(&scene);
	scene_deinit(&scene);
	return 0;
}

static int try_cache(const uint32_t *bytes, size_t n, uint32_t each, uint64_t *ret_id)
{
	const struct fa_pool_cache_config config = { .geometry = scene_geometry,
		                                     .name = "c",
		                                     .state_bytes = bytes,
		                                     .n_states = n,
		                                     .checkpoint_tokens = each };

	return fa_pool_cache_new(scene.pool, &scene.actors[SCENE_ANNA], &config, scene.now_ns,
	                         &scene.error, ret_id);
}

static uint64_t cache_new(uint32_t each)
{
	uint64_t id;

	fa_check_eq(try_cache(state_bytes, 2, each, &id), 0);
	return id;
}

static int try_plan(uint64_t sequence, uint32_t n, bool checkpoint, struct fa_pool_step **ret_step)
{
	const struct fa_pool_step_item item = { sequence, n, checkpoint };
	int r;

	r = fa_pool_step_plan(scene.pool, &scene.actors[SCENE_ANNA], &item, 1, ++scene.number,
	                      scene.now_ns, &scene.error, ret_step);
	if (r == 0)
		device_begin(&scene.device, *ret_step);
	return r;
}

/* Every page of the checkpoint gets a number that depends on @mark and its place. */
static struct fa_pool_step *plan(uint64_t sequence, uint32_t n, uint32_t mark)
{
	const struct fa_pool_step_entry *entry;
	struct fa_pool_step *step;

	fa_check_eq(try_plan(sequence, n, mark != 0, &step), 0);
	scene_write(&scene, step, 1000);
	entry = &step->entries[0];
	for (uint32_t i = 0; mark && i < PAGES; i++)
		*device_token(&scene.device, entry->checkpoint[i], 0) = mark + i;
	return step;
}

static void append(uint64_t sequence, uint32_t n, uint32_t mark)
{
	scene_commit(&scene, plan(sequence, n, mark));
}

/* The checkpoint after @length tokens must have @mark; 0: there is none. */
static void check(uint64_t sequence, uint64_t length, uint32_t mark)
{
	const uint32_t *slots;
	uint64_t found;
	int r;

	r = fa_pool_sequence_checkpoint(scene.pool, &scene.actors[SCENE_ADMIN], sequence, length,
	                                &scene.error, &found, &slots);
	fa_check_eq(r, mark ? 0 : -ENOENT);
	for (uint32_t i = 0; mark && i < PAGES; i++)
		fa_check_eq(*device_token(&scene.device, slots[i], 0), mark + i);
}

static void check_ends(uint64_t sequence, uint64_t length, uint64_t newest, uint32_t n)
{
	const struct fa_pool_sequence_info info = scene_info(&scene, sequence);

	fa_check_eq(info.length, length);
	fa_check_eq(info.checkpoint, newest);
	fa_check_eq(info.n_checkpoints, n);
}

static uint64_t fork_at(uint64_t sequence, uint64_t length)
{
	uint64_t id;

	fa_check_eq(fa_pool_sequence_fork(scene.pool, &scene.actors[SCENE_ANNA], sequence, length,
	                                  &scene.error, &id),
	            0);
	return id;
}

static int truncate_to(uint64_t sequence, uint64_t length)
{
	return fa_pool_sequence_truncate(scene.pool, &scene.actors[SCENE_ANNA], sequence, length,
	                                 &scene.error);
}

static void free_sequence(uint64_t sequence)
{
	fa_check_eq(fa_pool_sequence_remove(scene.pool, &scene.actors[SCENE_ANNA], sequence,
	                                    &scene.error),
	            0);
}

/* Checkpoints after 32, 64 and 74 of 80 tokens. */
static uint64_t sequence_new(uint64_t cache)
{
	uint64_t sequence = scene_sequence(&scene, SCENE_ANNA, cache);

	append(sequence, 16, 10);
	append(sequence, 16, 20);
	append(sequence, 32, 30);
	append(sequence, 10, 40);
	append(sequence, 6, 0);
	return sequence;
}

static void test_kept(void **state)
{
	uint64_t cache = cache_new(EACH), sequence = sequence_new(cache);

	fa_check_eq(scene_cache_info(&scene, cache).checkpoint_pages, PAGES);
	check_ends(sequence, 80, 74, 3);
	check(sequence, 16, 0);
	check(sequence, 32, 20);
	check(sequence, 64, 30);
	check(sequence, 74, 40);
	check(sequence, UINT64_MAX, 40);
	check(sequence, 80, 0);
	fa_check_eq(scene_cache_info(&scene, cache).used_pages, 5 + 3 * PAGES);
	append(sequence, 16, 50);
	check_ends(sequence, 96, 96, 3);
	check(sequence, 74, 0);
	check(sequence, 96, 50);
	/* The same length again, without new tokens. */
	append(sequence, 0, 60);
	check_ends(sequence, 96, 96, 3);
	check(sequence, 96, 60);
	free_sequence(sequence);
	fa_check_eq(scene_cache_info(&scene, cache).used_pages, 0);
}

static void test_aborted(void **state)
{
	uint64_t sequence = sequence_new(cache_new(EACH));
	struct fa_pool_step *first, *second;

	scene_abort(&scene, plan(sequence, 16, 50));
	check_ends(sequence, 80, 74, 3);
	check(sequence, 74, 40);
	scene_abort(&scene, plan(sequence, 0, 50));
	check(sequence, UINT64_MAX, 40);
	first = plan(sequence, 16, 50);
	second = plan(sequence, 1, 60);
	check(sequence, UINT64_MAX, 40);
	scene_commit(&scene, first);
	check(sequence, 74, 0);
	scene_abort(&scene, second);
	check_ends(sequence, 96, 96, 3);
	check(sequence, 96, 50);
}

/* Three steps in flight replace one checkpoint after the other, while a reader keeps the first. */
static void test_in_flight(void **state)
{
	uint64_t cache = cache_new(0), sequence = scene_sequence(&scene, SCENE_ANNA, cache), found;
	const struct fa_pool_step_item read = { .sequence = sequence };
	struct fa_pool_step *steps[3], *reader;
	const uint32_t *slots;
	uint32_t slot;

	append(sequence, 5, 10);
	fa_check_eq(fa_pool_step_plan(scene.pool, &scene.actors[SCENE_BOB], &read, 1,
	                              ++scene.number, scene.now_ns, &scene.error, &reader),
	            -ENOENT); /* it has no name */
	fa_check_eq(fa_pool_step_plan(scene.pool, &scene.actors[SCENE_ANNA], &read, 1,
	                              ++scene.number, scene.now_ns, &scene.error, &reader),
	            0);
	fa_check_eq(fa_pool_sequence_checkpoint(scene.pool, &scene.actors[SCENE_ANNA], sequence, 5,
	                                        &scene.error, &found, &slots),
	            0);
	slot = slots[0];
	for (uint32_t i = 0; i < 3; i++)
		steps[i] = plan(sequence, 7, 20 + 10 * i);
	fa_check_eq(scene_cache_info(&scene, cache).used_pages, 2 + 4 * PAGES);
	for (uint32_t i = 0; i < 3; i++)
		scene_commit(&scene, steps[i]);
	check_ends(sequence, 26, 26, 1);
	check(sequence, 26, 40);
	/* A reader's pages stay until it has ended, even if they were replaced meanwhile. */
	fa_check_eq(*device_token(&scene.device, slot, 0), 10);
	fa_check_eq(scene_cache_info(&scene, cache).used_pages, 2 + 4 * PAGES);
	scene_commit(&scene, reader);
	fa_check_eq(scene_cache_info(&scene, cache).used_pages, 2 + PAGES);
}

/* Steps in flight replace one checkpoint after the other, and most pages of tokens are dropped
 * before: all these pages are released when the steps have ended. */
static void test_dropped_in_flight(void **state)
{
	uint64_t cache = cache_new(0), sequence = scene_sequence(&scene, SCENE_ANNA, cache), first;
	const struct fa_pool_step_item read = { .sequence = sequence };
	struct fa_pool_step *steps[3], *reader;

	append(sequence, 30 * SCENE_PAGE_TOKENS, 10);
	fa_check_eq(fa_pool_step_plan(scene.pool, &scene.actors[SCENE_ANNA], &read, 1,
	                              ++scene.number, scene.now_ns, &scene.error, &reader),
	            0);
	for (uint32_t i = 0; i < 3; i++)
		steps[i] = plan(sequence, 1, 20 + 10 * i);
	fa_check_eq(fa_pool_sequence_drop(scene.pool, &scene.actors[SCENE_ANNA], sequence,
	                                  30 * SCENE_PAGE_TOKENS, &scene.error, &first),
	            0);
	for (uint32_t i = 0; i < 3; i++)
		scene_commit(&scene, steps[i]);
	check(sequence, UINT64_MAX, 40);
	fa_check_eq(scene_cache_info(&scene, cache).used_pages, 31 + 4 * PAGES);
	scene_commit(&scene, reader);
	fa_check_eq(scene_cache_info(&scene, cache).used_pages, 1 + PAGES);
}

static void test_refused(void **state)
{
	static uint32_t many[FA_STATE_STATES + 1];
	const uint32_t zero = 0, large = UINT32_MAX, huge[] = { 1 << 20, 1 << 20, 1 << 20 };
	uint64_t plain = scene_cache(&scene, SCENE_ANNA, NULL, 0), id, sequence;
	struct fa_pool_step *step;
	const uint32_t *from;
	uint32_t n, to;

	for (uint32_t i = 0; i < FA_STATE_STATES + 1; i++)
		many[i] = 1;
	SCENE_FAILS(&scene, -EINVAL, "state_bytes[0] is 0", try_cache(&zero, 1, 0, &id));
	SCENE_FAILS(&scene, -EINVAL, "expected 1 to 1073741824", try_cache(&large, 1, 0, &id));
	SCENE_FAILS(&scene, -ENOTSUP, "expected at most 4096 pages", try_cache(huge, 3, 0, &id));
	SCENE_FAILS(&scene, -ENOTSUP, "1025 states", try_cache(many, FA_STATE_STATES + 1, 0, &id));
	SCENE_FAILS(&scene, -EINVAL, "checkpoint_tokens is 24", try_cache(state_bytes, 2, 24, &id));
	SCENE_FAILS(&scene, -EINVAL, "the cache has no states", try_cache(NULL, 0, 32, &id));

	sequence = scene_sequence(&scene, SCENE_ANNA, plain);
	SCENE_FAILS(&scene, -EINVAL, "no states", try_plan(sequence, 1, true, &step));
	sequence = scene_sequence(&scene, SCENE_ANNA, cache_new(0));
	SCENE_FAILS(&scene, -EINVAL, "at least one token", try_plan(sequence, 0, true, &step));
	step = plan(sequence, 5, 10);
	SCENE_FAILS(&scene, -EINVAL, "expected that all are kept",
	            fa_pool_step_keep(scene.pool, step, 0, (const uint32_t[]){ 0 }, 1, &scene.error,
	                              &from, &n, &to));
	scene_commit(&scene, step);
	append(sequence, 5, 0);
	/* The cache keeps the newest alone. */
	SCENE_FAILS(&scene, -ENOTSUP, "keeps no checkpoints", truncate_to(sequence, 4));
	check_ends(sequence, 10, 5, 1);
	fa_check_eq(truncate_to(sequence, 7), 0);
	check_ends(sequence, 5, 5, 1);
	fa_check_eq(truncate_to(sequence, 0), 0);
	check_ends(sequence, 0, 0, 0);
}

static void test_cut(void **state)
{
	uint64_t cache = cache_new(EACH), sequence = sequence_new(cache), child, first;
	const uint64_t used = scene_cache_info(&scene, cache).used_pages;

	child = fork_at(sequence, UINT64_MAX);
	check_ends(child, 74, 74, 3);
	check(child, 74, 40);
	fa_check_eq(scene_cache_info(&scene, cache).used_pages, used);
	append(child, 1, 70);
	check(child, 75, 70);
	check(sequence, 74, 40);
	free_sequence(child);

	child = fork_at(sequence, 73);
	check_ends(child, 64, 64, 2);
	check(child, 32, 20);
	scene_check(&scene, child, 0, 64, 1000);
	fa_check_eq(truncate_to(child, 63), 0);
	check_ends(child, 32, 32, 1);
	fa_check_eq(truncate_to(child, 31), 0);
	check_ends(child, 0, 0, 0);
	append(child, 3, 80);
	check(child, 3, 80);
	free_sequence(child);

	/* Checkpoints before the first token that is left are of no use. */
	fa_check_eq(fa_pool_sequence_drop(scene.pool, &scene.actors[SCENE_ANNA], sequence, 50,
	                                  &scene.error, &first),
	            0);
	fa_check_eq(first, 48);
	check_ends(sequence, 80, 74, 2);
	SCENE_FAILS(&scene, -ENOTSUP, "no checkpoint", truncate_to(sequence, 63));
	fa_check_eq(fa_pool_sequence_drop(scene.pool, &scene.actors[SCENE_ANNA], sequence, 80,
	                                  &scene.error, &first),
	            0);
	check_ends(sequence, 80, 0, 0);
	append(sequence, 16, 90);
	check_ends(sequence, 96, 96, 1);
}

static uint64_t attach(uint64_t cache, uint64_t n, uint64_t *ret_found)
{
	static const struct fa_prefix_key key;
	uint64_t sequence = scene_sequence(&scene, SCENE_ANNA, cache);

	fa_check_eq(pool_attach(scene.pool, &scene.actors[SCENE_ANNA], sequence, &key, tokens, n,
	                        &scene.error, ret_found),
	            0);
	return sequence;
}

static uint64_t publish(uint64_t sequence, uint64_t n)
{
	static const struct fa_prefix_key key;
	uint64_t pages;

	fa_check_eq(pool_publish(scene.pool, &scene.actors[SCENE_ANNA], sequence, &key, tokens, n,
	                         &scene.error, &pages),
	            0);
	return pages;
}

static void test_published(void **state)
{
	uint64_t cache = cache_new(EACH), sequence = sequence_new(cache), found, other;

	fa_check_eq(publish(sequence, 80), 5 + 2 * PAGES);
	fa_check_eq(publish(sequence, 80), 0);
	other = attach(cache, 512, &found);
	fa_check_eq(found, 64);
	check_ends(other, 64, 64, 1);
	check(other, 64, 30);
	free_sequence(other);
	other = attach(cache, 63, &found);
	fa_check_eq(found, 32);
	check(other, 32, 20);
	/* The sequence goes on and publishes the rest, of which only its own checkpoint is new. */
	append(other, 32, 70);
	fa_check_eq(publish(other, 64), 0);
	free_sequence(other);

	/* The checkpoints outlive their sequence, as the pages of tokens do. */
	free_sequence(sequence);
	fa_check_eq(scene_cache_info(&scene, cache).used_pages, 0);
	fa_check_eq(scene_cache_info(&scene, cache).idle_pages, 5 + 2 * PAGES);
	scene_check_counts(&scene);
	other = attach(cache, 512, &found);
	fa_check_eq(found, 64);
	check(other, 64, 30);
	free_sequence(other);
	fa_check_eq(pool_evict(scene.pool, cache), 5 + 2 * PAGES);
	other = attach(cache, 512, &found);
	fa_check_eq(found, 0);
	free_sequence(other);
}

/* One page of a published checkpoint is evicted: the checkpoint is no longer found, and another
 * takes its place. */
static void test_evicted(void **state)
{
	uint64_t cache = cache_new(EACH), sequence = sequence_new(cache), found, other, big;
	const uint64_t free_pages = (uint64_t)SCENE_CHUNKS * SCENE_CHUNK_PAGES;

	publish(sequence, 64);
	free_sequence(sequence);
	/* The newest is evicted first. */
	big = scene_sequence(&scene, SCENE_ANNA, cache);
	append(big, (uint32_t)(free_pages - 4 - 2 * PAGES + 1) * SCENE_PAGE_TOKENS, 0);
	fa_check_eq(scene_cache_info(&scene, cache).idle_pages, 4 + 2 * PAGES - 1);
	free_sequence(big);
	other = attach(cache, 512, &found);
	fa_check_eq(found, 32);
	check(other, 32, 20);
	append(other, 32, 70);
	fa_check_eq(publish(other, 64), PAGES);
	free_sequence(other);
	other = attach(cache, 512, &found);
	fa_check_eq(found, 64);
	check(other, 64, 70);
	free_sequence(other);
}

static uint32_t version(void)
{
	struct fa_state_header header;

	fa_check_eq(pread(scene.fd, &header, sizeof(header), 0), sizeof(header));
	return header.version;
}

static void test_reopened(void **state)
{
	uint64_t cache, sequence, child, found, other;

	/* An older pool gets the format with its first cache that has states. */
	fa_check_eq(version(), FA_STATE_VERSION);
	cache = cache_new(EACH);
	fa_check_eq(version(), FA_STATE_VERSION_CHECKPOINTS);
	sequence = sequence_new(cache);
	child = fork_at(sequence, 70);
	publish(sequence, 64);
	for (int i = 0; i < 2; i++) {
		scene_reopen(&scene);
		check_ends(sequence, 80, 74, 3);
		check(sequence, 32, 20);
		check(sequence, 64, 30);
		check(sequence, 74, 40);
		check_ends(child, 64, 64, 2);
		check(child, 32, 20);
		scene_check_counts(&scene);
		other = attach(cache, 512, &found);
		fa_check_eq(found, 64);
		check(other, 64, 30);
		free_sequence(other);
		append(child, 1, 80);
		check(child, 65, 80);
		fa_check_eq(truncate_to(child, 64), 0);
		fa_pool_quarantine_end(scene.pool);
	}
}

/* ---- deaths */

#define DIED 42

static uint64_t points_left;

static void count_down(void)
{
	if (!--points_left)
		_exit(DIED);
}

struct work {
	uint64_t cache, sequence, n_points;
	uint32_t *done; /* how many operations have ended */
};

/* The sequence after each operation. Marks grow with the operations. */
static const struct {
	uint64_t length, newest;
	uint32_t n, mark;
} ends[] = {
	{ 0, 0, 0, 0 },    { 16, 16, 1, 10 }, { 32, 32, 1, 20 }, { 40, 40, 2, 30 },
	{ 45, 40, 2, 30 }, { 64, 64, 2, 40 }, { 96, 96, 3, 50 }, { 64, 64, 2, 40 },
	{ 64, 64, 1, 40 }, { 70, 70, 2, 60 }, { 70, 70, 2, 70 },
};

static void operate(uint64_t sequence, uint32_t i)
{
	uint64_t first;

	switch (i) {
	case 1:
		return append(sequence, 16, 10);
	case 2:
		return append(sequence, 16, 20);
	case 3:
		return append(sequence, 8, 30);
	case 4:
		return append(sequence, 5, 0);
	case 5:
		return append(sequence, 19, 40);
	case 6:
		return append(sequence, 32, 50);
	case 7:
		fa_check_eq(truncate_to(sequence, 90), 0);
		return;
	case 8:
		fa_check_eq(fa_pool_sequence_drop(scene.pool, &scene.actors[SCENE_ANNA], sequence,
		                                  48, &scene.error, &first),
		            0);
		return;
	case 9:
		return append(sequence, 6, 60);
	case 10:
		return append(sequence, 0, 70);
	}
}

static int work(void *userdata)
{
	const struct work *w = userdata;

	points_left = w->n_points;
	fa_state_fault_hook = count_down;
	for (uint32_t i = 1; i < sizeof(ends) / sizeof(*ends); i++) {
		operate(w->sequence, i);
		*w->done = i;
	}
	return 0;
}

static bool is_at(uint64_t sequence, uint32_t i)
{
	const struct fa_pool_sequence_info info = scene_info(&scene, sequence);

	return info.length == ends[i].length && info.checkpoint == ends[i].newest &&
	       info.n_checkpoints == ends[i].n;
}

static void test_deaths(void **state)
{
	const uint32_t n_ends = sizeof(ends) / sizeof(*ends);
	uint32_t *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
	                      0);
	uint64_t n = 0;
	int status;

	do {
		struct work w = { .n_points = ++n, .done = done };
		uint32_t at;

		scene_deinit(&scene);
		set_up(NULL);
		w.cache = cache_new(EACH);
		w.sequence = scene_sequence(&scene, SCENE_ANNA, w.cache);
		*done = 0;
		status = fa_test_reap(fa_test_fork(work, &w));
		fa_check(WIFEXITED(status));
		fa_check(!WEXITSTATUS(status) || WEXITSTATUS(status) == DIED);
		scene_reopen(&scene);
		at = *done;
		if (!is_at(w.sequence, at) && at + 1 < n_ends)
			at++;
		fa_check(is_at(w.sequence, at));
		/* The last operation changes the checkpoint's contents alone. */
		if (ends[at].mark && *done != 9)
			check(w.sequence, UINT64_MAX, ends[at].mark);
		if (ends[at].length >= 32 && at < 8)
			check(w.sequence, 32, 20);
		scene_check_counts(&scene);
		fa_pool_quarantine_end(scene.pool);
		append(w.sequence, 32, 99);
		check(w.sequence, UINT64_MAX, 99);
		scene_check_counts(&scene);
	} while (WEXITSTATUS(status) == DIED);
	fa_check(n > 60);
	munmap(done, 4096);
}

static uint64_t publish_as(uint64_t sequence, const char *extra)
{
	const struct fa_prefix_key key = { .extra = extra, .extra_bytes = strlen(extra) };
	uint64_t pages;

	fa_check_eq(pool_publish(scene.pool, &scene.actors[SCENE_ANNA], sequence, &key, tokens, 64,
	                         &scene.error, &pages),
	            0);
	return pages;
}

static void check_found(uint64_t cache, const char *extra, uint64_t expected, uint32_t mark)
{
	const struct fa_prefix_key key = { .extra = extra, .extra_bytes = strlen(extra) };
	uint64_t sequence = scene_sequence(&scene, SCENE_ANNA, cache), found;

	fa_check_eq(pool_attach(scene.pool, &scene.actors[SCENE_ANNA], sequence, &key, tokens, 512,
	                        &scene.error, &found),
	            0);
	fa_check_eq(found, expected);
	if (mark)
		check(sequence, 64, mark);
	free_sequence(sequence);
}

static int die_publishing(void *userdata)
{
	const struct work *w = userdata;

	points_left = w->n_points;
	fa_state_fault_hook = count_down;
	(void)publish_as(w->sequence, "");
	return 0;
}

/* A process dies while it publishes a checkpoint. Whoever publishes it after that has it found. */
static void test_death_publishing(void **state)
{
	uint64_t n = 0;
	int status;

	do {
		struct work w = { .n_points = ++n };

		scene_deinit(&scene);
		set_up(NULL);
		w.cache = cache_new(EACH);
		w.sequence = sequence_new(w.cache);
		status = fa_test_reap(fa_test_fork(die_publishing, &w));
		scene_reopen(&scene);
		fa_pool_quarantine_end(scene.pool);
		(void)publish_as(w.sequence, "");
		check_found(w.cache, "", 64, 30);
		scene_check_counts(&scene);
	} while (WEXITSTATUS(status) == DIED);
	fa_check(n > 2 * PAGES);
}

/* A second process dies while it publishes a sequence with some of the same tokens. What is left of
 * the first is published under another key. */
static void test_deaths_publishing(void **state)
{
	uint64_t n = 0;
	int status;

	do {
		struct work first = { .n_points = 4 + PAGES / 2 }, w = { .n_points = ++n };
		uint64_t other;

		scene_deinit(&scene);
		set_up(NULL);
		first.cache = cache_new(EACH);
		first.sequence = scene_sequence(&scene, SCENE_ANNA, first.cache);
		append(first.sequence, 64, 30);
		fa_check_eq(WEXITSTATUS(fa_test_reap(fa_test_fork(die_publishing, &first))), DIED);
		scene_reopen(&scene);
		fa_pool_quarantine_end(scene.pool);
		w.sequence = scene_sequence(&scene, SCENE_ANNA, first.cache);
		append(w.sequence, 64, 70);
		status = fa_test_reap(fa_test_fork(die_publishing, &w));
		scene_reopen(&scene);
		fa_pool_quarantine_end(scene.pool);

		other = scene_sequence(&scene, SCENE_ANNA, first.cache);
		append(other, 64, 0);
		fa_check_eq(publish_as(other, "x"), 4);
		fa_check_eq(publish_as(first.sequence, "x"), PAGES);
		check_found(first.cache, "x", 64, 30);
		(void)publish_as(w.sequence, "");
		check_found(first.cache, "", 64, 70);
		free_sequence(first.sequence);
		free_sequence(w.sequence);
		free_sequence(other);
		check_found(first.cache, "x", 64, 30);
		scene_check_counts(&scene);
		(void)pool_evict(scene.pool, first.cache);
		check_found(first.cache, "x", 0, 0);
	} while (WEXITSTATUS(status) == DIED);
	fa_check(n > PAGES);
}

/* Whatever the state holds, opening ends, and what it leaves is consistent. */
static void test_damaged(void **state)
{
	struct fa_test_random random = { 30 };
	uint64_t cache = cache_new(EACH), sequence = sequence_new(cache);
	const struct fa_state_header *header;
	unsigned char *map, *copy;
	uint64_t bytes, n_dropped = 0;

	(void)fork_at(sequence, 70);
	publish(sequence, 64);
	header = mmap(NULL, 4096, PROT_READ, MAP_SHARED, scene.fd, 0);
	bytes = header->bytes;
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, scene.fd, 0);
	copy = malloc(bytes);
	fa_check(copy && map != MAP_FAILED);
	scene.pool = fa_pool_free(scene.pool);
	memcpy(copy, map, bytes);
	for (int i = 0; i < (fa_test_long() ? 20000 : 2000); i++) {
		const uint64_t tables[][2] = {
			{ header->cells_at, 40 * sizeof(struct fa_state_cell) },
			{ header->sequences_at, 3 * sizeof(struct fa_state_sequence) },
			{ header->caches_at, sizeof(struct fa_state_cache) },
			{ header->scales_at + sizeof(struct fa_state_scales) - 16, 16 },
		};
		const uint64_t *table = tables[fa_test_random_below(&random, 4)];
		const uint64_t at = table[0] + fa_test_random_below(&random, table[1] / 4) * 4;
		const uint32_t word = fa_test_random_below(&random, 2)
		                              ? (uint32_t)fa_test_random(&random)
		                              : (uint32_t)fa_test_random_below(&random, 100);
		struct fa_pool_report report = {};

		memcpy(map, copy, bytes);
		memcpy(map + at, &word, sizeof(word));
		fa_check_eq(fa_pool_open(scene.fd, &report, &scene.error, &scene.pool), 0);
		n_dropped += report.n_found != 0;
		fa_pool_report_deinit(&report);
		scene_hold_tenants(&scene);
		scene_check_counts(&scene);
		fa_pool_quarantine_end(scene.pool);
		scene.pool = fa_pool_free(scene.pool);
	}
	fa_check(n_dropped > 100);
	memcpy(map, copy, bytes);
	munmap(map, bytes);
	free(copy);
	fa_check_eq(fa_pool_open(scene.fd, NULL, &scene.error, &scene.pool), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_kept),
		TEST(test_aborted),
		TEST(test_in_flight),
		TEST(test_dropped_in_flight),
		TEST(test_refused),
		TEST(test_cut),
		TEST(test_published),
		TEST(test_evicted),
		TEST(test_reopened),
		TEST(test_deaths),
		TEST(test_death_publishing),
		TEST(test_deaths_publishing),
		TEST(test_damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
