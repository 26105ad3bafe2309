/* Random operations on sequences with checkpoints, compared with a model: several steps in flight,
 * forks, drops, prefixes and reopening. */
#include "tests/daemon/pool-scene.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEQUENCES 6
#define IN_FLIGHT 4
#define CHECKPOINTS 64
#define TOKENS_MAX 480u
#define MARKS 4096u
#define MARK_STEP 32u /* more than the pages of a checkpoint */

struct flight {
	struct fa_pool_step *step;
	uint64_t after;
	uint32_t mark; /* of the checkpoint that it writes; 0: none */
	bool appends, ordered;
};

struct model {
	uint64_t id; /* 0: there is no sequence */
	uint64_t length, first;
	uint32_t n; /* checkpoints, oldest first */
	struct {
		uint64_t length;
		uint32_t mark;
	} checkpoints[CHECKPOINTS];
	uint32_t n_flights; /* oldest first */
	struct flight flights[IN_FLIGHT];
};

static struct scene scene;
static struct model models[SEQUENCES];
static struct fa_test_random numbers = { 30 };
static uint32_t tokens[TOKENS_MAX], pages, each, last_mark;
static uint64_t cache, length_of[MARKS]; /* of the checkpoint with a mark */

static uint32_t below(uint32_t bound)
{
	return (uint32_t)fa_test_random_below(&numbers, bound);
}

static const struct fa_actor *anna(void)
{
	return &scene.actors[SCENE_ANNA];
}

/* ---- what must hold */

static bool stays(uint64_t length)
{
	return each && length % each == 0;
}

static void push(struct model *m, uint64_t length, uint32_t mark)
{
	if (m->n &&
	    (m->checkpoints[m->n - 1].length == length || !stays(m->checkpoints[m->n - 1].length)))
		m->n--;
	fa_check(m->n < CHECKPOINTS);
	m->checkpoints[m->n].length = length;
	m->checkpoints[m->n++].mark = mark;
}

/* Where a cut at @length is expected. Returns false if it is to be refused. */
static bool cut_at(const struct model *m, uint64_t length, uint64_t *ret_length)
{
	uint32_t i = m->n;

	while (i && m->checkpoints[i - 1].length > length)
		i--;
	*ret_length = i ? m->checkpoints[i - 1].length : 0;
	return !(length && !i && !each) && *ret_length >= m->first;
}

static void cut(struct model *m, uint64_t length)
{
	m->length = length;
	while (m->n && m->checkpoints[m->n - 1].length > length)
		m->n--;
}

static uint32_t read_mark(uint64_t id, uint64_t length)
{
	const uint32_t *slots;
	uint64_t found;
	uint32_t mark;

	fa_check_eq(fa_pool_sequence_checkpoint(scene.pool, anna(), id, length, &scene.error,
	                                        &found, &slots),
	            0);
	fa_check_eq(found, length);
	mark = *device_token(&scene.device, slots[0], 0);
	for (uint32_t i = 1; i < pages; i++)
		fa_check_eq(*device_token(&scene.device, slots[i], 0), mark + i);
	return mark / MARK_STEP;
}

static void check(const struct model *m)
{
	const struct fa_pool_sequence_info info = scene_info(&scene, m->id);

	fa_check_eq(info.first, m->first);
	fa_check_eq(info.n_checkpoints, m->n);
	fa_check_eq(info.checkpoint, m->n ? m->checkpoints[m->n - 1].length : 0);
	scene_check(&scene, m->id, m->first, m->length, 1000);
	for (uint32_t i = 0; i < m->n; i++)
		fa_check_eq(read_mark(m->id, m->checkpoints[i].length), m->checkpoints[i].mark);
}

/* ---- operations */

static void begin(struct model *m)
{
	const struct fa_pool_step_item item = { m->id, below(3) ? below(40) : 0, below(2) };
	struct flight *flight = &m->flights[m->n_flights];
	const struct fa_pool_step_entry *entry;
	int r;

	if (m->n_flights == IN_FLIGHT || last_mark + 1 == MARKS)
		return;
	r = fa_pool_step_plan(scene.pool, anna(), &item, 1, ++scene.number, scene.now_ns,
	                      &scene.error, &flight->step);
	if (r < 0) {
		/* The pool is full, or there is no token. */
		fa_check(r == -ENOMEM || (r == -EINVAL && item.checkpoint));
		return;
	}
	entry = &flight->step->entries[0];
	device_begin(&scene.device, flight->step);
	scene_write(&scene, flight->step, 1000);
	flight->after = entry->after;
	flight->appends = item.n_tokens || item.checkpoint;
	flight->ordered = entry->ordered;
	flight->mark = 0;
	if (item.checkpoint) {
		flight->mark = ++last_mark;
		length_of[last_mark] = entry->after;
		for (uint32_t i = 0; i < pages; i++)
			*device_token(&scene.device, entry->checkpoint[i],
			              0) = flight->mark * MARK_STEP + i;
	}
	m->n_flights++;
}

static void commit(struct model *m)
{
	const struct flight flight = m->flights[0];

	if (!m->n_flights)
		return;
	scene_commit(&scene, flight.step);
	memmove(m->flights, m->flights + 1, --m->n_flights * sizeof(flight));
	if (flight.appends)
		m->length = flight.after;
	if (flight.mark)
		push(m, flight.after, flight.mark);
}

/* The newest first, as an abort cancels those behind it. */
static void abort_down_to(struct model *m, uint32_t n)
{
	while (m->n_flights > n)
		scene_abort(&scene, m->flights[--m->n_flights].step);
}

static struct model *unused(void)
{
	for (uint32_t i = 0; i < SEQUENCES; i++)
		if (!models[i].id)
			return &models[i];
	return NULL;
}

static void fork_one(const struct model *m)
{
	const uint64_t length = m->first + below((uint32_t)(m->length - m->first) + 1);
	struct model *child = unused();
	uint64_t expected, id;
	int r;

	if (!child)
		return;
	r = fa_pool_sequence_fork(scene.pool, anna(), m->id, length, &scene.error, &id);
	if (!cut_at(m, length, &expected)) {
		fa_check_eq(r, -ENOTSUP);
		return;
	}
	fa_check_eq(r, 0);
	*child = *m;
	child->id = id;
	child->n_flights = 0;
	cut(child, expected);
}

static void truncate_one(struct model *m)
{
	const uint64_t length = m->first + below((uint32_t)(m->length - m->first) + 1);
	bool ordered = false;
	uint64_t expected;
	int r;

	for (uint32_t i = 0; i < m->n_flights; i++)
		ordered = ordered || m->flights[i].ordered;
	r = fa_pool_sequence_truncate(scene.pool, anna(), m->id, length, &scene.error);
	if (ordered) {
		fa_check_eq(r, -EBUSY);
		return;
	}
	if (!cut_at(m, length, &expected)) {
		fa_check_eq(r, -ENOTSUP);
		return;
	}
	fa_check_eq(r, 0);
	cut(m, expected);
}

static void drop(struct model *m)
{
	uint64_t first = below((uint32_t)m->length + 1), got;
	uint32_t n = 0;

	fa_check_eq(fa_pool_sequence_drop(scene.pool, anna(), m->id, first, &scene.error, &got), 0);
	first -= first % SCENE_PAGE_TOKENS;
	m->first = first > m->first ? first : m->first;
	fa_check_eq(got, m->first);
	while (n < m->n && m->checkpoints[n].length < m->first)
		n++;
	m->n -= n;
	memmove(m->checkpoints, m->checkpoints + n, m->n * sizeof(m->checkpoints[0]));
}

static struct fa_prefix_key key_of(void)
{
	static const char *const extras[] = { "", "x" };
	const char *extra = extras[below(2)];

	return (struct fa_prefix_key){ .extra = extra, .extra_bytes = strlen(extra) };
}

static void publish(const struct model *m)
{
	const struct fa_prefix_key key = key_of();
	uint64_t new_pages;

	fa_check_eq(pool_publish(scene.pool, anna(), m->id, &key, tokens, m->length, &scene.error,
	                         &new_pages),
	            0);
}

static uint64_t find(const struct fa_prefix_key *key)
{
	struct fa_prefix_hashes hashes;
	uint64_t found;

	fa_check_eq(fa_prefix_hashes_init_cache(scene.pool, anna(), cache, key, TOKENS_MAX,
	                                        &scene.error, &hashes),
	            0);
	fa_prefix_hashes_compute(&hashes, tokens);
	fa_check_eq(fa_prefix_find(scene.pool, anna(), cache, &hashes, &scene.error, &found), 0);
	fa_prefix_hashes_deinit(&hashes);
	return found;
}

/* An attach finds a checkpoint that was written after as many tokens. */
static void attach(void)
{
	const struct fa_prefix_key key = key_of();
	struct model *m = unused();
	uint64_t found, known;

	if (!m)
		return;
	*m = (struct model){ .id = scene_sequence(&scene, SCENE_ANNA, cache) };
	known = find(&key);
	fa_check_eq(pool_attach(scene.pool, anna(), m->id, &key, tokens, TOKENS_MAX, &scene.error,
	                        &found),
	            0);
	fa_check_eq(found, known);
	if (!found)
		return;
	fa_check(stays(found));
	m->length = found;
	push(m, found, read_mark(m->id, found));
	fa_check_eq(length_of[m->checkpoints[0].mark], found);
}

static void remove_one(struct model *m)
{
	fa_check_eq(fa_pool_sequence_remove(scene.pool, anna(), m->id, &scene.error), 0);
	while (m->n_flights)
		if (below(2))
			commit(m);
		else
			abort_down_to(m, 0);
	m->id = 0;
}

static void reopen(void)
{
	for (uint32_t i = 0; i < SEQUENCES; i++)
		abort_down_to(&models[i], 0);
	scene_reopen(&scene);
	fa_pool_quarantine_end(scene.pool);
}

static bool is_idle(void)
{
	for (uint32_t i = 0; i < SEQUENCES; i++)
		if (models[i].n_flights)
			return false;
	return true;
}

static void operate(void)
{
	struct model *m = &models[below(SEQUENCES)];
	const uint32_t choice = below(40);

	if (!m->id) {
		if (choice < 20)
			*m = (struct model){ .id = scene_sequence(&scene, SCENE_ANNA, cache) };
		else
			attach();
	} else if (choice < 14 && m->length < TOKENS_MAX - 200) {
		begin(m);
	} else if (choice < 24) {
		commit(m);
	} else if (choice < 26) {
		abort_down_to(m, below(m->n_flights + 1));
	} else if (choice < 29) {
		fork_one(m);
	} else if (choice < 31) {
		truncate_one(m);
	} else if (choice < 33) {
		drop(m);
	} else if (choice < 36) {
		publish(m);
	} else if (choice < 38) {
		attach();
	} else if (choice < 39) {
		remove_one(m);
	} else if (below(8) == 0) {
		reopen();
	}
}

static void run(uint32_t n_pages, uint32_t checkpoint_tokens)
{
	const uint32_t state_bytes = n_pages * 512;
	const struct fa_pool_cache_config config = { .geometry = scene_geometry,
		                                     .name = "c",
		                                     .state_bytes = &state_bytes,
		                                     .n_states = 1,
		                                     .checkpoint_tokens = checkpoint_tokens };

	scene_init(&scene, SCENE_CHUNKS);
	pages = n_pages;
	each = checkpoint_tokens;
	last_mark = 0;
	memset(models, 0, sizeof(models));
	fa_check_eq(
		fa_pool_cache_new(scene.pool, anna(), &config, scene.now_ns, &scene.error, &cache),
		0);
	for (int i = 0; i < 600; i++) {
		operate();
		for (uint32_t j = 0; j < SEQUENCES; j++)
			if (models[j].id)
				check(&models[j]);
		if (is_idle())
			scene_check_counts(&scene);
	}
	for (uint32_t i = 0; i < SEQUENCES; i++)
		if (models[i].id)
			remove_one(&models[i]);
	fa_check_eq(scene_cache_info(&scene, cache).used_pages, 0);
	scene_check_counts(&scene);
	scene_deinit(&scene);
}

static void test_random(void **state)
{
	for (uint32_t i = 0; i < TOKENS_MAX; i++)
		tokens[i] = 100 + i;
	for (int i = 0; i < (fa_test_long() ? 400 : 20); i++) {
		run(1, 32);
		run(3, 16);
		run(15, 48);
		run(2, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_random) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
