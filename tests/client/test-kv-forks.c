/*
 * Steps of forks whose long common prefixes end within a page. Attention equals that of sequences
 * with their own pages. A GPU reads shared pages once, unless the step is deterministic; the
 * session's status counts that.
 */
#include "client/faclient.h"
#include "tests/client/kv.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	FORKS = 60, /* so many and so long that sharing pays on any GPU */
	SHARED = 2000,
	LENGTH_MAX = 2200,
	APART = 4,
	OUT = KV_HEADS * KV_DIM,
};

struct sequence {
	uint64_t id;
	uint32_t tags[LENGTH_MAX];
	uint32_t length;
};

static struct kv kv;
static uint32_t last_tag;

static void open_cache(void)
{
	kv_init(&kv, single_client, NULL, 0);
}

static void close_cache(void)
{
	must(fa_cache_remove(single_client, kv.cache), "remove");
	kv_deinit(&kv);
}

static uint64_t n_prefixes(void)
{
	return single_status("shared_prefixes");
}

static void add_tags(struct sequence *s, uint32_t n)
{
	fa_check(s->length + n <= LENGTH_MAX);
	for (uint32_t i = 0; i < n; ++i)
		s->tags[s->length++] = ++last_tag;
}

static void write_pages(const struct sequence *s, uint32_t from)
{
	while (from < s->length) {
		const uint32_t left = s->length - from;
		const uint32_t n = left < KV_ROWS_MAX ? left : KV_ROWS_MAX;
		const struct kv_item item = {
			.sequence = s->id, .tags = s->tags, .length = from + n, .n_new = n
		};
		struct fa_step *step;

		must(kv_begin(&kv, &item, 1, &step), "begin");
		must(kv_write(&kv, &item), "write");
		must(fa_step_commit(step, NULL, NULL), "commit");
		fa_step_free(step);
		from += n;
	}
}

static void make(struct sequence *s, uint32_t length)
{
	*s = (struct sequence){ .length = 0 };
	must(fa_sequence_create(single_client, kv.cache, &s->id), "create");
	add_tags(s, length);
	write_pages(s, 0);
}

static void fork_at(const struct sequence *from, uint32_t length, struct sequence *s)
{
	*s = *from;
	s->length = length;
	must(fa_sequence_fork(single_client, from->id, length, &s->id), "fork");
}

/*
 * Runs and checks a step in which sequence i gets new[i] tokens. Returns how often a prefix was
 * read once for several sequences.
 */
static uint64_t step(struct sequence *sequences, uint32_t n, const uint32_t *new, bool commit)
{
	const uint64_t before = n_prefixes();
	struct kv_item items[FORKS + 1];
	struct fa_step *step;

	for (uint32_t i = 0; i < n; ++i) {
		add_tags(&sequences[i], new[i]);
		items[i] = (struct kv_item){ .sequence = sequences[i].id,
			                     .tags = sequences[i].tags,
			                     .length = sequences[i].length,
			                     .n_new = new[i] };
	}
	must(kv_begin(&kv, items, n, &step), "begin");
	must(kv_attend(&kv, step, items, n, 0, true), "attend");
	kv_check_out(&kv, items, n);
	if (commit)
		must(fa_step_commit(step, NULL, NULL), "commit");
	else
		must(fa_step_abort(step, 0, NULL), "abort");
	fa_step_free(step);
	for (uint32_t i = 0; i < n && !commit; ++i)
		sequences[i].length -= new[i];
	return n_prefixes() - before;
}

static void check_pages(const struct sequence *s)
{
	kv_check_sequence(&kv, s->id, s->tags, s->length, 0);
}

static struct sequence parent, forks[FORKS + 1];

/* Forks a sequence in the middle of a page; each fork gets one to three new tokens. */
static void make_forks(uint32_t *ret_new)
{
	make(&parent, SHARED);
	for (uint32_t i = 0; i < FORKS; ++i) {
		fork_at(&parent, SHARED - i % 5, &forks[i]);
		ret_new[i] = 1 + i % 3;
	}
}

static void test_grouped(void **state)
{
	const uint64_t grouped = single_on_gpu() ? KV_LAYERS : 0;
	uint32_t new[FORKS + 1];

	open_cache();
	make_forks(new);
	fa_check_eq(step(forks, FORKS, new, true), grouped);
	forks[FORKS] = parent;
	for (uint32_t i = 0; i <= FORKS; ++i)
		new[i] = 1 + i % 2;
	fa_check_eq(step(forks, FORKS + 1, new, true), grouped);
	for (uint32_t i = 0; i <= FORKS; i += 7)
		check_pages(&forks[i]);
	fa_check_eq(step(forks, 2, new, true), 0);
	close_cache();
}

/* Keeps the results of the first @n sequences in a step of @rows new tokens. */
static void keep(uint32_t n, const uint32_t *new, uint32_t rows, float *ret_out, float *ret_lse)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < n; ++i)
		kept += new[i];
	for (uint32_t l = 0; l < KV_LAYERS; ++l) {
		memcpy(ret_out + (size_t)l * kept * OUT, kv.out + (size_t)l * KV_ROWS_MAX * OUT,
		       (size_t)kept * OUT * sizeof(float));
		for (uint32_t h = 0; h < KV_HEADS; ++h)
			memcpy(ret_lse + ((size_t)l * KV_HEADS + h) * kept,
			       kv.lse + (size_t)l * KV_ROWS_MAX * KV_HEADS + (size_t)h * rows,
			       kept * sizeof(float));
	}
}

static void compare(const float *a, const float *b, size_t n, const char *what)
{
	for (size_t i = 0; i < n; ++i)
		if (!(fabsf(a[i] - b[i]) <= 2e-5f * (1 + fabsf(b[i]))))
			fa_test_fail(__FILE__, __LINE__, "%s %zu is %.8g; unshared it is %.8g",
			             what, i, a[i], b[i]);
}

static void test_as_unshared(void **state)
{
	enum {
		KEPT = 1 + 2 + 3 + 1
	};
	static float out[2][KV_LAYERS * KEPT * OUT], lse[2][KV_LAYERS * KV_HEADS * KEPT];
	static struct sequence apart[APART];
	uint32_t new[FORKS + 1], rows = 0;

	open_cache();
	make_forks(new);
	for (uint32_t i = 0; i < FORKS; ++i)
		rows += new[i];
	fa_check_eq(step(forks, FORKS, new, false), single_on_gpu() ? KV_LAYERS : 0);
	keep(APART, new, rows, out[0], lse[0]);
	for (uint32_t i = 0; i < APART; ++i) {
		apart[i] = forks[i];
		must(fa_sequence_create(single_client, kv.cache, &apart[i].id), "create");
		write_pages(&apart[i], 0);
	}
	last_tag -= rows;
	fa_check_eq(step(apart, APART, new, false), 0);
	keep(APART, new, KEPT, out[1], lse[1]);
	compare(out[0], out[1], sizeof(out[0]) / sizeof(float), "out");
	compare(lse[0], lse[1], sizeof(lse[0]) / sizeof(float), "lse");

	/* The count proves that the flag reaches the planner. */
	kv.flags = FA_STEP_DETERMINISTIC;
	last_tag -= KEPT;
	fa_check_eq(step(forks, FORKS, new, false), 0);
	keep(APART, new, rows, out[0], lse[0]);
	compare(out[0], out[1], sizeof(out[0]) / sizeof(float), "deterministic out");
	close_cache();
}

/* Families of forks of forks, truncated and extended at random. */
static void test_random(void **state)
{
	enum {
		FAMILIES = 3,
		STEPS = 5
	};
	static struct sequence all[FORKS];
	struct fa_test_random random = { 12 };
	uint64_t grouped = 0;

	open_cache();
	for (uint32_t i = 0; i < FAMILIES; ++i)
		make(&all[i], 1500 + 100 * i + (uint32_t)fa_test_random_below(&random, 64));
	for (uint32_t i = FAMILIES; i < FORKS; ++i) {
		/* Mostly of the last family, so that families differ in size. */
		const uint32_t any = (uint32_t)fa_test_random_below(&random, i);
		const struct sequence *from = &all[i % 4 ? FAMILIES - 1 : any];
		const uint32_t back = (uint32_t)fa_test_random_below(&random, 80);

		fork_at(from, from->length - back, &all[i]);
	}
	for (int i = 0; i < STEPS; ++i) {
		uint32_t new[FORKS], n = FORKS - (uint32_t)fa_test_random_below(&random, 8);

		for (uint32_t k = 0; k < n; ++k)
			new[k] = 1 + (uint32_t)fa_test_random_below(&random, 2);
		grouped += step(all, n, new, i % 3 != 2);
		for (uint32_t k = 0; k < 6; ++k) {
			struct sequence *s = &all[fa_test_random_below(&random, FORKS)];
			const uint32_t back = (uint32_t)fa_test_random_below(&random, 40);

			must(fa_sequence_truncate(single_client, s->id, s->length - back),
			     "truncate");
			s->length -= back;
		}
	}
	fa_check((grouped > 0) == single_on_gpu());
	for (uint32_t i = 0; i < FORKS; ++i)
		check_pages(&all[i]);
	close_cache();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_grouped),
		cmocka_unit_test(test_as_unshared),
		cmocka_unit_test(test_random),
	};

	/* Also shares short prefixes, which a large GPU would not. */
	fa_test_daemon_tune("SHARE_EARLY", "1");
	return cmocka_run_group_tests_name("kv-forks", tests, single_setup, single_teardown);
}
