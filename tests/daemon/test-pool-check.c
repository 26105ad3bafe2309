/* Recovery of damaged states, after a death with steps in flight, and without some chunks. */
#include "daemon/pool/id.h"
#include "daemon/pool/state.h"
#include "daemon/pool/state_store.h"
#include "tests/daemon/pool-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static struct scene scene;
static struct fa_state_header *header;

static int set_up(void **state)
{
	void *map;

	scene_init(&scene, SCENE_CHUNKS);
	map = mmap(NULL, sizeof(*header), PROT_READ, MAP_SHARED, scene.fd, 0);
	fa_check(map != MAP_FAILED);
	header = map;
	map = mmap(NULL, header->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, scene.fd, 0);
	fa_check(map != MAP_FAILED);
	munmap(header, sizeof(*header));
	header = map;
	return 0;
}

static int tear_down(void **state)
{
	munmap(header, header->bytes);
	scene_check_counts(&scene);
	scene_deinit(&scene);
	return 0;
}

static void *at(uint64_t offset)
{
	return (char *)header + offset;
}

static uint32_t index_of(enum fa_id_kind kind, uint64_t id)
{
	struct fa_id read;

	fa_check_eq(fa_id_read(scene.pool, kind, id, &scene.error, &read), 0);
	return read.index;
}

static struct fa_state_sequence *sequence_at(uint64_t id)
{
	return (struct fa_state_sequence *)at(header->sequences_at) + index_of(FA_ID_SEQUENCE, id);
}

static struct fa_state_cell *cell_of(uint64_t id)
{
	const struct fa_state_sequence *sequence = sequence_at(id);

	return (struct fa_state_cell *)at(header->cells_at) +
	       sequence->commits[sequence->current].head - 1;
}

/* The report must have @part in one of its lines. */
static void reopen_damaged(const char *part, size_t n_expected)
{
	struct fa_pool_report report = {};
	bool found = false;

	scene.pool = fa_pool_free(scene.pool);
	fa_check_eq(fa_pool_open(scene.fd, &report, &scene.error, &scene.pool), 0);
	for (size_t i = 0; i < report.n_lines; i++)
		found |= strstr(report.lines[i], part) != NULL;
	if (!found || report.n_found != n_expected)
		for (size_t i = 0; i < report.n_lines; i++)
			fprintf(stderr, "%s\n", report.lines[i]);
	if (!found)
		fa_test_fail(__FILE__, __LINE__, "nothing is said of \"%s\"", part);
	fa_check_eq(report.n_found, n_expected);
	fa_pool_report_deinit(&report);
	scene_hold_tenants(&scene);
	/* The repair is durable. */
	scene_check_counts(&scene);
	scene_reopen(&scene);
	fa_pool_quarantine_end(scene.pool);
}

static void test_header(void **state)
{
	struct fa_state_header saved = *header;
	struct fa_pool *pool;

	fa_pool_free(scene.pool);
#define REFUSED(code, part, change)                                                                \
	do {                                                                                       \
		change;                                                                            \
		SCENE_FAILS(&scene, code, part,                                                    \
		            fa_pool_open(scene.fd, NULL, &scene.error, &pool));                    \
		memcpy(header, &saved, sizeof(saved));                                             \
	} while (0)
	REFUSED(-EBADMSG, "no state", header->magic++);
	REFUSED(-EPROTONOSUPPORT, "format 5", header->version = 5);
	REFUSED(-EBADMSG, "damaged", header->version = 3);
	REFUSED(-EBADMSG, "runs of 2^1 chunks", header->run_shift_max = 1);
	REFUSED(-EBADMSG, "damaged", header->chunk_bytes = 0);
	REFUSED(-EBADMSG, "damaged", header->chunk_bytes *= 2);
	REFUSED(-EBADMSG, "damaged", header->max_chunks = 0);
	REFUSED(-EBADMSG, "damaged", header->max_chunks = UINT32_MAX);
	REFUSED(-EBADMSG, "damaged", header->page_shift = 200);
	REFUSED(-EBADMSG, "damaged", header->max_sequences++);
	REFUSED(-EBADMSG, "damaged", header->max_caches = 1000);
	REFUSED(-EBADMSG, "damaged", header->cells_at += 64);
	REFUSED(-EBADMSG, "damaged", header->bytes += 4096);
	REFUSED(-EBADMSG, "damaged", header->high_cells = header->max_cells + 1);
	REFUSED(-EBADMSG, "damaged", header->high_sequences = UINT32_MAX);
	REFUSED(-EBADMSG, "damaged", header->high_tenants = UINT32_MAX);
	SCENE_FAILS(&scene, -EBADMSG, "no state",
	            fa_pool_open(STDIN_FILENO, NULL, &scene.error, &pool));
	assert_int_equal(fa_pool_open(scene.fd, NULL, &scene.error, &scene.pool), 0);
	assert_int_equal(header->generation, 2);
}

static void test_sequences(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", 0), s[12];
	struct fa_state_sequence *r;
	uint32_t n = 0;

	for (uint32_t i = 0; i < 12; i++) {
		s[i] = scene_sequence(&scene, SCENE_ANNA, cache);
		scene_append(&scene, SCENE_ANNA, s[i], 40, 100);
	}
#define DAMAGED(part, change)                                                                      \
	do {                                                                                       \
		r = sequence_at(s[n]);                                                             \
		change;                                                                            \
		reopen_damaged(part, 1);                                                           \
		SCENE_FAILS(&scene, -ESTALE, "removed",                                            \
		            fa_pool_sequence_remove(scene.pool, &scene.actors[SCENE_ANNA], s[n],   \
		                                    &scene.error));                                \
		for (uint32_t _i = ++n; _i < 12; _i++)                                             \
			scene_check(&scene, s[_i], 0, 40, 100);                                    \
	} while (0)
	DAMAGED("state is unknown", r->state = 77);
	DAMAGED("tenant is unknown", r->tenant = 12345);
	DAMAGED("commits", r->current = 2);
	DAMAGED("length", r->commits[r->current].length = UINT64_MAX);
	DAMAGED("length", r->commits[r->current].first = 8);
	DAMAGED("broken", r->commits[r->current].head = 0);
	DAMAGED("broken", r->commits[r->current].head = UINT32_MAX);
	DAMAGED("dropped",
	        r->commits[r->current].length = 400); /* the slots after it are left over */
	DAMAGED("not its cache's", cell_of(s[n])->slots[1] = UINT32_MAX);
	DAMAGED("at another place", cell_of(s[n])->slots[1] = cell_of(s[n])->slots[0]);
	assert_int_equal(n, 10);
	/* The second of two sequences with the same cells is dropped. */
	r = sequence_at(s[11]);
	r->commits[r->current].head = sequence_at(s[10])->commits[sequence_at(s[10])->current].head;
	reopen_damaged("broken", 1);
	scene_check(&scene, s[10], 0, 40, 100);
	/*
	 * The second of two sequences that have a page at different numbers is dropped; the new one
	 * has the lower index.
	 */
	s[11] = scene_sequence(&scene, SCENE_ANNA, cache);
	scene_append(&scene, SCENE_ANNA, s[11], 40, 100);
	DAMAGED("at another place", cell_of(s[n])->slots[1] = cell_of(s[11])->slots[0]);
	/* a list with a cycle */
	r = sequence_at(s[11]);
	r->commits[r->current].length = 16 * 20;
	for (uint32_t i = 0; i < FA_STATE_CELL_PAGES; i++)
		cell_of(s[11])->slots[i] = i;
	cell_of(s[11])->next = r->commits[r->current].head;
	reopen_damaged("broken", 1);
	/* The mode of a name that was never finished admits nobody. */
	s[0] = scene_sequence(&scene, SCENE_ANNA, cache);
	sequence_at(s[0])->mode = FA_MODE(2, 2, 2);
	scene_reopen(&scene);
	assert_int_equal(scene_info(&scene, s[0]).mode, 0);
	assert_int_equal(
		fa_pool_sequence_remove(scene.pool, &scene.actors[SCENE_ANNA], s[0], &scene.error),
		0);
	/* No plain id has such a generation: it would read as an id of another form. */
	r = sequence_at(scene_sequence(&scene, SCENE_ANNA, cache));
	r->origin.id_form = FA_STATE_ID_PLAIN;
	r->generation = (uint32_t)FA_ID_SEQUENCE << 24 | 1;
	reopen_damaged("id is damaged", 1);
	assert_int_equal(scene_cache_info(&scene, cache).sequences, 0);
}

static void test_rest(void **state)
{
	struct fa_state_cache *caches = at(header->caches_at);
	struct fa_state_chunk *chunks = at(header->chunks_at);
	struct fa_state_page *pages = at(header->pages_at);
	struct fa_state_tenant *tenants = at(header->tenants_at);
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", 0), n;
	uint64_t other = scene_cache(&scene, SCENE_ANNA, "d", 0);
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache);
	uint64_t b = scene_sequence(&scene, SCENE_ANNA, other);
	const struct fa_prefix_key key = {};
	uint32_t tokens[64] = { 0 }, slot;

	scene_append(&scene, SCENE_ANNA, a, 40, 100);
	scene_append(&scene, SCENE_ANNA, b, 40, 100);
	assert_int_equal(pool_sequence_slots(scene.pool, b, &slot, 1), 3);
	assert_int_equal(pool_publish(scene.pool, &scene.actors[SCENE_ANNA], a, &key, tokens, 40,
	                              &scene.error, &n),
	                 0);
	assert_int_equal(n, 2);

	chunks[SCENE_CHUNKS - 1].owner = 9999;
	reopen_damaged("nobody known", 1);
	pages[0].state = 9;
	reopen_damaged("published no more", 1);
	pages[0] = pages[1];
	reopen_damaged("another has its content", 1);
	pages[0].tenant = 77;
	reopen_damaged("publisher", 1);
	caches[1].page_tokens = 17;
	reopen_damaged("page_tokens", 1); /* its sequence goes with it */
	scene_check(&scene, a, 0, 40, 100);
	strcpy(caches[0].name, "new");
	memset(caches[0].name, 'x', sizeof(caches[0].name));
	reopen_damaged("no end", 1);
	tenants[0].tag = 3;
	scene.pool = fa_pool_free(scene.pool);
	assert_int_equal(fa_pool_open(scene.fd, NULL, &scene.error, &scene.pool), 0);
	scene_hold_tenants(&scene);
}

/* A cache with damaged scales is dropped. */
static void test_scales(void **state)
{
	struct fa_state_scales *records = at(header->scales_at);
	struct fa_state_cache *caches = at(header->caches_at);
	float scales[2 * FA_STATE_SCALES];
	struct fa_pool_cache_config config = {
		.geometry = scene_geometry,
		.name = "codes",
		.k_scales = scales,
		.v_scales = scales + FA_STATE_SCALES,
	};
	const size_t n = (size_t)scene_geometry.layers * scene_geometry.kv_heads;
	struct fa_pool_cache_info info;
	uint64_t id;

	for (size_t i = 0; i < 2 * FA_STATE_SCALES; i++)
		scales[i] = (float)(i + 1);
	config.geometry.store = FA_PAGED_INT8;
	config.n_k_scales = config.n_v_scales = n;
	for (int round = 0; round < 5; round++) {
		assert_int_equal(fa_pool_cache_new(scene.pool, &scene.actors[SCENE_ANNA], &config,
		                                   1, &scene.error, &id),
		                 0);
		scene_reopen(&scene);
		info = scene_cache_info(&scene, id);
		assert_int_equal(info.geometry.store, FA_PAGED_INT8);
		assert_false(info.geometry.token_scales);
		assert_memory_equal(info.k_scales, config.k_scales, n * sizeof(float));
		assert_memory_equal(info.v_scales, config.v_scales, n * sizeof(float));
		if (round == 0)
			records[index_of(FA_ID_CACHE, id)].k[0] = 0;
		else if (round == 1)
			records[index_of(FA_ID_CACHE, id)].v[n - 1] = -1;
		else if (round == 2)
			caches[index_of(FA_ID_CACHE, id)].token_scales = 2;
		else if (round == 3)
			caches[index_of(FA_ID_CACHE, id)].store = 7;
		else
			caches[index_of(FA_ID_CACHE, id)].layers = UINT32_MAX;
		reopen_damaged(round == 3   ? "store"
		               : round == 4 ? "scales"
		                            : "its scales are damaged",
		               1);
	}
}

/* Random bytes in the tables: the state can be opened and used. */
static void test_random(void **state)
{
	const char *seed = getenv("FAD_TEST_SEED");
	struct fa_test_random random = { seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) };
	const struct fa_prefix_key key = {};
	uint32_t tokens[800] = { 0 };
	uint64_t n_found = 0, cache, n;

	printf("FAD_TEST_SEED=%llu\n", (unsigned long long)random.state);
	fflush(stdout);
	for (int round = 0; round < (fa_test_long() ? 10000 : 1000); round++) {
		struct fa_pool_report report = {};
		const uint64_t starts[] = { header->chunks_at,    header->caches_at,
			                    header->tenants_at,   header->sequences_at,
			                    header->sequences_at, header->cells_at,
			                    header->pages_at,     header->scales_at };
		uint32_t n_bytes = 1 + (uint32_t)fa_test_random_below(&random, 8);

		cache = scene_cache(&scene, SCENE_ANNA, round % 2 ? "c" : NULL, FA_MODE(2, 2, 2));
		for (int i = 0; i < 4; i++) {
			uint64_t s = scene_sequence(&scene, SCENE_ANNA, cache), fork;
			uint32_t length = 1 + (uint32_t)fa_test_random_below(&random, 300);

			scene_append(&scene, SCENE_ANNA, s, length, 100 * (uint32_t)round);
			fa_check_eq(pool_publish(scene.pool, &scene.actors[SCENE_ANNA], s, &key,
			                         tokens, length, &scene.error, &n),
			            0);
			tokens[fa_test_random_below(&random, 300)]++;
			fa_check_eq(fa_pool_sequence_fork(scene.pool, &scene.actors[SCENE_ANNA], s,
			                                  length / 2, &scene.error, &fork),
			            0);
		}
		for (uint32_t i = 0; i < n_bytes; i++) {
			uint64_t start = starts[fa_test_random_below(&random, 7)];
			uint8_t *byte = (uint8_t *)at(start) +
			                fa_test_random_below(
						&random, start == header->chunks_at ? 64 : 2048);

			*byte = fa_test_random_below(&random, 2)
			                ? (uint8_t)(*byte ^ 1u << fa_test_random_below(&random, 8))
			                : (uint8_t)fa_test_random(&random);
		}
		scene.pool = fa_pool_free(scene.pool);
		fa_check_eq(fa_pool_open(scene.fd, &report, &scene.error, &scene.pool), 0);
		n_found += report.n_found;
		fa_pool_report_deinit(&report);
		scene_hold_tenants(&scene);
		scene_check_counts(&scene);
		fa_pool_quarantine_end(scene.pool);
		scene_check_counts(&scene);
		for (uint32_t i = 0; i < SCENE_CHUNKS; i++)
			(void)fa_pool_chunk_add(scene.pool, i, true, &scene.error);
		fa_pool_release_owner(scene.pool, scene.actors[SCENE_ANNA].owner);
		for (uint32_t cursor = 0;;) {
			struct fa_pool_sequence_info info;

			if (!fa_pool_sequence_each(scene.pool, &cursor, &info))
				break;
			fa_check_eq(fa_pool_sequence_remove(scene.pool, &scene.actors[SCENE_ADMIN],
			                                    info.id, &scene.error),
			            0);
		}
		for (uint32_t cursor = 0;;) {
			struct fa_pool_cache_info info;

			if (!fa_pool_cache_each(scene.pool, &cursor, &info))
				break;
			fa_check_eq(fa_pool_cache_remove(scene.pool, &scene.actors[SCENE_ADMIN],
			                                 info.id, &scene.error),
			            0);
		}
	}
	assert_true(n_found > 0);
}

enum {
	LOST_SEQUENCES = 6,
	LOST_PAGES = 13, /* of each sequence */
	LOST_TOKENS = LOST_PAGES * SCENE_PAGE_TOKENS,
	LOST_CHUNKS = (LOST_SEQUENCES * LOST_PAGES + SCENE_CHUNK_PAGES - 1) / SCENE_CHUNK_PAGES,
};

static bool is_left(void *userdata, uint32_t chunk)
{
	return !(*(uint32_t *)userdata >> chunk & 1);
}

static uint64_t published(uint64_t cache, uint32_t i)
{
	const uint32_t tokens[LOST_TOKENS] = { i + 1 };
	const struct fa_prefix_key key = {};
	uint64_t n;

	fa_check_eq(pool_find_prefix(scene.pool, &scene.actors[SCENE_ANNA], cache, &key, tokens,
	                             LOST_TOKENS, &scene.error, &n),
	            0);
	return n;
}

static void lose_chunks(uint32_t lost)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, "c", 0), s[LOST_SEQUENCES], n;
	uint32_t slots[LOST_PAGES], n_left[LOST_SEQUENCES] = { 0 }, n_dropped = 0;
	const struct fa_prefix_key key = {};
	struct fa_pool_report report = {};
	struct fa_pool_sequence_info info;

	for (uint32_t i = 0; i < LOST_SEQUENCES; i++) {
		const uint32_t tokens[LOST_TOKENS] = { i + 1 };

		s[i] = scene_sequence(&scene, SCENE_ANNA, cache);
		scene_append(&scene, SCENE_ANNA, s[i], LOST_TOKENS, 1000 * i);
		fa_check_eq(pool_publish(scene.pool, &scene.actors[SCENE_ANNA], s[i], &key, tokens,
		                         LOST_TOKENS, &scene.error, &n),
		            0);
		fa_check_eq(pool_sequence_slots(scene.pool, s[i], slots, LOST_PAGES), LOST_PAGES);
		while (n_left[i] < LOST_PAGES &&
		       is_left(&lost, slots[n_left[i]] / (SCENE_CHUNK_BYTES / FA_SLOT_BYTES)))
			n_left[i]++;
		n_dropped += i && n_left[i] < LOST_PAGES;
	}
	/* The removed sequence's published pages are idle. */
	fa_check_eq(
		fa_pool_sequence_remove(scene.pool, &scene.actors[SCENE_ANNA], s[0], &scene.error),
		0);

	scene.pool = fa_pool_free(scene.pool);
	fa_check_eq(
		fa_pool_open_partial(scene.fd, is_left, &lost, &report, &scene.error, &scene.pool),
		0);
	fa_check_eq(report.n_found, n_dropped + (uint32_t)__builtin_popcount(lost));
	fa_pool_report_deinit(&report);
	scene_hold_tenants(&scene);
	for (int again = 0; again < 3; again++) {
		scene_check_counts(&scene);
		for (uint32_t i = 0; i < LOST_SEQUENCES; i++) {
			fa_check_eq(published(cache, i), n_left[i] * SCENE_PAGE_TOKENS);
			if (i && n_left[i] == LOST_PAGES)
				scene_check(&scene, s[i], 0, LOST_TOKENS, 1000 * i);
			else
				fa_check_eq(fa_pool_sequence_get_info(scene.pool,
				                                      &scene.actors[SCENE_ANNA],
				                                      s[i], &scene.error, &info),
				            -ESTALE);
		}
		/* With memory again, the missing chunks are added empty. */
		for (uint32_t i = 0; !again && i < SCENE_CHUNKS; i++)
			fa_check_eq(fa_pool_chunk_add(scene.pool, i, false, &scene.error),
			            is_left(&lost, i) ? -EEXIST : 0);
		scene_reopen(&scene);
		fa_pool_quarantine_end(scene.pool);
	}
}

static void test_chunks_lost(void **state)
{
	for (uint32_t lost = 0; lost < 1u << LOST_CHUNKS; lost++) {
		if (lost) {
			tear_down(state);
			set_up(state);
		}
		lose_chunks(lost);
	}
}

/* Pages that a step in flight may write to are quarantined. */
static void test_quarantine(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache);
	struct fa_pool_info info;
	uint32_t old[8], now[8];
	struct fa_pool_step *step;

	scene_append(&scene, SCENE_ANNA, a, 20, 100);
	step = scene_plan(&scene, SCENE_ANNA, a, 60);
	for (uint32_t i = 0; i < 5; i++)
		old[i] = step->groups[0].table[i];
	fa_pool_step_abort(scene.pool, step);
	fa_pool_step_free(step);
	scene_reopen(&scene);
	fa_pool_get_info(scene.pool, &info);
	assert_int_equal(info.quarantined_pages, SCENE_CHUNK_PAGES - 2);
	scene_check(&scene, a, 0, 20, 100);

	/* The last page is copied; new pages are not quarantined. */
	step = scene_plan(&scene, SCENE_ANNA, a, 60);
	assert_int_equal(step->groups[0].n_copies, 1);
	assert_int_equal(step->groups[0].copies_from[0], old[1]);
	for (uint32_t i = 0; i < 5; i++)
		now[i] = step->groups[0].table[i];
	assert_int_equal(now[0], old[0]);
	for (uint32_t i = 1; i < 5; i++)
		for (uint32_t j = 0; j < 5; j++)
			assert_int_not_equal(now[i], old[j]);
	scene_write(&scene, step, 100);
	scene_commit(&scene, step);
	scene_check(&scene, a, 0, 80, 100);
	/* The original of the copy is quarantined, too. */
	fa_pool_get_info(scene.pool, &info);
	assert_int_equal(info.quarantined_pages, SCENE_CHUNK_PAGES - 1);
	/* Seven chunks, with four used pages. */
	scene_plan_fails(&scene, SCENE_ANNA, a, (7 * SCENE_CHUNK_PAGES - 4) * 16 + 1, -ENOMEM);
	fa_pool_quarantine_end(scene.pool);
	fa_pool_get_info(scene.pool, &info);
	assert_int_equal(info.quarantined_pages, 0);
	scene_append(&scene, SCENE_ANNA, a, (7 * SCENE_CHUNK_PAGES - 4) * 16 + 1, 100);
}

/* Chunks of a cache that was being removed stay quarantined, also if the next daemon dies. */
static void test_quarantine_leaving(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0), other;
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache);
	struct fa_pool_info info;
	struct fa_pool_step *step;

	scene_append(&scene, SCENE_ANNA, a, 20, 100);
	((struct fa_state_cache *)at(header->caches_at))[index_of(FA_ID_CACHE, cache)].state =
		FA_STATE_REMOVED;
	for (int i = 0; i < 3; i++) {
		scene_reopen(&scene);
		fa_pool_get_info(scene.pool, &info);
		assert_int_equal(info.chunks, SCENE_CHUNKS);
		assert_int_equal(info.chunks_held_back, 1);
		assert_int_equal(info.chunks_free, SCENE_CHUNKS - 1);
		assert_int_equal(fa_pool_chunk_state(scene.pool, 0), FA_CHUNK_FREE);
		scene_check_counts(&scene);
	}
	/* The record can be another cache's, the chunk cannot. */
	other = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	assert_int_equal(index_of(FA_ID_CACHE, other), index_of(FA_ID_CACHE, cache));
	a = scene_sequence(&scene, SCENE_ANNA, other);
	scene_append(&scene, SCENE_ANNA, a, 20, 100);
	scene_plan_fails(&scene, SCENE_ANNA, a, SCENE_CHUNKS * SCENE_CHUNK_PAGES * 16 - 20,
	                 -ENOMEM);
	fa_pool_get_info(scene.pool, &info);
	assert_int_equal(info.chunks_held_back, 1);
	fa_pool_quarantine_end(scene.pool);
	fa_pool_get_info(scene.pool, &info);
	assert_int_equal(info.chunks_held_back, 0);
	step = scene_plan(&scene, SCENE_ANNA, a, SCENE_CHUNKS * SCENE_CHUNK_PAGES * 16 - 20);
	scene_abort(&scene, step);
	scene_reopen(&scene);
	fa_pool_get_info(scene.pool, &info);
	assert_int_equal(info.chunks_held_back, 0);
}

/* A published page is full even if a sequence ends within it: once evicted it is free, without a
 * quarantine. */
static void test_quarantine_published(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0), s[4], n;
	const struct fa_actor *anna = &scene.actors[SCENE_ANNA];
	uint32_t tokens[2][32] = { { 1 }, { 2 } };
	const struct fa_prefix_key key = {};
	struct fa_pool_step *step;

	for (uint32_t i = 0; i < 2; i++) {
		s[i] = scene_sequence(&scene, SCENE_ANNA, cache);
		scene_append(&scene, SCENE_ANNA, s[i], 32, 100);
		assert_int_equal(
			fa_pool_sequence_fork(scene.pool, anna, s[i], 20, &scene.error, &s[2 + i]),
			0);
	}
	assert_int_equal(
		pool_publish(scene.pool, anna, s[0], &key, tokens[0], 32, &scene.error, &n), 0);
	scene_reopen(&scene);
	assert_int_equal(
		pool_publish(scene.pool, anna, s[1], &key, tokens[1], 32, &scene.error, &n), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(fa_pool_sequence_remove(scene.pool, anna, s[i], &scene.error), 0);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, 4);
	s[0] = scene_sequence(&scene, SCENE_ANNA, cache);
	step = scene_plan(&scene, SCENE_ANNA, s[0], (7 * SCENE_CHUNK_PAGES + 4) * 16);
	assert_int_equal(scene_cache_info(&scene, cache).idle_pages, 0);
	scene_abort(&scene, step);
}

/* The process died between marking sequences suspect and dropping them. */
static void test_suspect(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	uint64_t a = scene_sequence(&scene, SCENE_ANNA, cache);
	uint64_t b = scene_sequence(&scene, SCENE_ANNA, cache);

	scene_append(&scene, SCENE_ANNA, a, 20, 100);
	scene_append(&scene, SCENE_ANNA, b, 20, 100);
	sequence_at(a)->state = FA_STATE_SUSPECT;
	reopen_damaged("went wrong", 1);
	scene_check(&scene, b, 0, 20, 100);
}

static uint32_t points_left;

static void count_down(void)
{
	if (!--points_left)
		_exit(42);
}

/* The first two stores mark sequences, later ones remove them. */
static int suspect_and_die(void *step)
{
	points_left = 5;
	fa_state_fault_hook = count_down;
	fa_pool_step_suspect(scene.pool, step);
	return 0;
}

static void test_suspect_death(void **state)
{
	uint64_t cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	struct fa_pool_step_item items[2];
	struct fa_pool_step *step = NULL;
	struct fa_pool_info info;
	int status;

	for (uint32_t i = 0; i < 2; i++) {
		items[i] = (struct fa_pool_step_item){ scene_sequence(&scene, SCENE_ANNA, cache),
			                               20 };
		scene_append(&scene, SCENE_ANNA, items[i].sequence, 20, 100);
	}
	assert_int_equal(fa_pool_step_plan(scene.pool, &scene.actors[SCENE_ANNA], items, 2,
	                                   ++scene.number, scene.now_ns, &scene.error, &step),
	                 0);
	status = fa_test_reap(fa_test_fork(suspect_and_die, step));
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 42);
	/* Only frees memory: the step's process is gone. */
	fa_pool_step_abort(scene.pool, step);
	fa_pool_step_free(step);
	reopen_damaged("went wrong", 2);
	fa_pool_get_info(scene.pool, &info);
	assert_int_equal(info.sequences, 0);
}

/* Less than 64 bytes a page. */
static void test_size(void **state)
{
	const struct fa_pool_config config = { .chunk_bytes = 1 << 20,
		                               .max_chunks = 64,
		                               .page_bytes_min = 512 };
	const uint32_t all = 64 * 2048;
	const struct fa_prefix_key key = {};
	uint32_t *tokens = calloc(all, 16 * sizeof(*tokens));
	uint64_t cache, id, n;
	struct stat st;

	assert_non_null(tokens);
	fa_pool_free(scene.pool);
	close(scene.fd);
	munmap(header, header->bytes);
	device_deinit(&scene.device);
	device_init(&scene.device, (uint64_t)64 << 20);
	assert_int_equal(fa_pool_format(&config, &scene.error, &scene.fd), 0);
	assert_int_equal(fa_pool_open(scene.fd, NULL, &scene.error, &scene.pool), 0);
	for (uint32_t i = 0; i < 64; i++)
		assert_int_equal(fa_pool_chunk_add(scene.pool, i, true, &scene.error), 0);
	scene_hold_tenants(&scene);
	cache = scene_cache(&scene, SCENE_ANNA, NULL, 0);
	for (uint32_t i = 0; i < all; i += 64) {
		struct fa_pool_step *step;

		id = scene_sequence(&scene, SCENE_ANNA, cache);
		step = scene_plan(&scene, SCENE_ANNA, id, 1024);
		scene_commit(&scene, step);
		tokens[0] = i;
		assert_int_equal(pool_publish(scene.pool, &scene.actors[SCENE_ANNA], id, &key,
		                              tokens, 1024, &scene.error, &n),
		                 0);
		assert_int_equal(n, 64);
	}
	assert_int_equal(fstat(scene.fd, &st), 0);
	assert_in_range(st.st_blocks * 512, all * 40ull, all * 64ull);
	free(tokens);
	header = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, scene.fd, 0);
	assert_true((void *)header != MAP_FAILED);
	fa_pool_release_owner(scene.pool, scene.actors[SCENE_ANNA].owner);
	scene_reopen(&scene);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_header, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_sequences, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_rest, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_scales, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_random, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_chunks_lost, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_quarantine, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_quarantine_leaving, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_quarantine_published, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_suspect, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_suspect_death, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_size, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
