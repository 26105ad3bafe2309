/* Equal shares for groups, and priorities within them. */
#include "daemon/base/fair_queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define GROUPS 10
#define ENTRIES 400

struct entry {
	struct fa_list link;
	unsigned int group;
	enum fa_fair_queue_class class;
	unsigned int n_served;
};

struct fixture {
	struct fa_fair_queue queue;
	struct fa_fair_queue_group groups[GROUPS];
	struct entry entries[ENTRIES];
	unsigned int n_served[GROUPS];
};

static void init(struct fixture *f)
{
	*f = (struct fixture){ 0 };
	for (unsigned int i = 0; i < GROUPS; i++)
		fa_fair_queue_group_init(&f->groups[i]);
	for (unsigned int i = 0; i < ENTRIES; i++)
		fa_list_init(&f->entries[i].link);
	assert_true(fa_fair_queue_empty(&f->queue));
	assert_null(fa_fair_queue_next(&f->queue));
}

static void add(struct fixture *f, unsigned int entry, unsigned int group, int priority)
{
	f->entries[entry].group = group;
	f->entries[entry].class = fa_fair_queue_class(priority);
	fa_fair_queue_add(&f->queue, &f->groups[group], f->entries[entry].class,
	                  &f->entries[entry].link);
}

static void take_away(struct fixture *f, unsigned int entry)
{
	fa_fair_queue_remove(&f->queue, &f->groups[f->entries[entry].group],
	                     &f->entries[entry].link);
}

static unsigned int serve(struct fixture *f, int64_t cost)
{
	struct entry *entry = fa_container_of(fa_fair_queue_next(&f->queue), struct entry, link);

	fa_fair_queue_charge(&f->queue, &f->groups[entry->group], cost);
	f->n_served[entry->group]++;
	entry->n_served++;
	return (unsigned int)(entry - f->entries);
}

/* Whatever waits in the groups, shares differ by one turn at most. */
static void test_groups(void **state)
{
	static struct fixture f;
	unsigned int n = 0;

	init(&f);
	for (unsigned int group = 0; group < GROUPS; group++)
		for (unsigned int i = 0; i <= group * group; i++)
			add(&f, n++, group, group % 3 == 0);
	for (unsigned int round = 1; round <= 500; round++) {
		for (unsigned int i = 0; i < GROUPS; i++)
			(void)serve(&f, 1);
		for (unsigned int group = 0; group < GROUPS; group++)
			assert_int_equal(f.n_served[group], round);
	}
	for (unsigned int i = 0; i < n; i++) {
		unsigned int size = f.entries[i].group * f.entries[i].group + 1;

		assert_in_range(f.entries[i].n_served, 500 / size, 500 / size + 1);
	}
}

static void test_costs(void **state)
{
	static struct fixture f;
	unsigned int cheap, dear, entry;

	init(&f);
	for (unsigned int i = 0; i < 20; i++)
		add(&f, i, i ? 1 : 0, 0);
	for (int i = 0; i < 1100; i++) {
		fa_fair_queue_charge(&f.queue, &f.groups[0], 5);
		fa_fair_queue_charge(&f.queue, &f.groups[0], -5);
		entry = serve(&f, 0);

		fa_fair_queue_charge(&f.queue, &f.groups[f.entries[entry].group], entry ? 10 : 1);
	}
	cheap = f.n_served[0];
	dear = f.n_served[1];
	assert_in_range(cheap, 998, 1002);
	assert_in_range(dear, 98, 102);
}

/* A latecomer gets its share from then on. */
static void test_latecomer(void **state)
{
	static struct fixture f;

	init(&f);
	add(&f, 0, 0, 0);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(serve(&f, 1), 0);
	add(&f, 1, 1, 0);
	for (int i = 0; i < 100; i++)
		(void)serve(&f, 1);
	assert_in_range(f.n_served[1], 49, 51);

	/* Leaving and returning at once gains nothing. */
	for (int i = 0; i < 100; i++) {
		take_away(&f, 1);
		add(&f, 1, 1, 0);
		(void)serve(&f, 1);
	}
	assert_in_range(f.n_served[1], 98, 102);
	take_away(&f, 0);
	take_away(&f, 0);
	assert_int_equal(serve(&f, 1), 1);
	take_away(&f, 1);
	assert_true(fa_fair_queue_empty(&f.queue));
	assert_null(fa_fair_queue_next(&f.queue));
	/* A charge to an empty entry counts. */
	fa_fair_queue_charge(&f.queue, &f.groups[1], 10);
	add(&f, 0, 0, 0);
	add(&f, 1, 1, 0);
	for (int i = 0; i < 8; i++)
		assert_int_equal(serve(&f, 1), 0);
}

/* Slack makes up for a short absence only. */
static void test_slack(void **state)
{
	static struct fixture f;

	init(&f);
	f.queue.slack = 10;
	add(&f, 0, 0, 0);
	add(&f, 1, 1, 0);
	for (int i = 0; i < 100; i++)
		(void)serve(&f, 1);
	take_away(&f, 1);
	for (int i = 0; i < 5; i++)
		assert_int_equal(serve(&f, 1), 0);
	add(&f, 1, 1, 0);
	for (int i = 0; i < 15; i++)
		(void)serve(&f, 1);
	assert_in_range(f.n_served[1], f.n_served[0] - 1, f.n_served[0] + 1);

	take_away(&f, 1);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(serve(&f, 1), 0);
	add(&f, 1, 1, 0);
	f.n_served[0] = f.n_served[1] = 0;
	for (int i = 0; i < 110; i++)
		(void)serve(&f, 1);
	assert_in_range(f.n_served[1], f.n_served[0] + 8, f.n_served[0] + 12);
}

static void test_urgent(void **state)
{
	static struct fixture f;
	unsigned int urgent = 0;

	init(&f);
	add(&f, 0, 0, 0);
	add(&f, 1, 0, 0);
	add(&f, 2, 0, 1);
	add(&f, 3, 0, 2);
	for (int i = 0; i < 800; i++)
		urgent += serve(&f, 1) >= 2;
	assert_int_equal(urgent, 700);
	for (unsigned int i = 0; i < 4; i++)
		assert_int_equal(f.entries[i].n_served, i < 2 ? 50 : 350);

	/* A group's priorities do not count against another group. */
	add(&f, 4, 1, 0);
	f.n_served[0] = f.n_served[1] = 0;
	for (int i = 0; i < 800; i++)
		(void)serve(&f, 1);
	assert_int_equal(f.n_served[0], f.n_served[1]);

	take_away(&f, 2);
	take_away(&f, 3);
	take_away(&f, 4);
	for (int i = 0; i < 10; i++)
		assert_in_range(serve(&f, 1), 0, 1);
}

static void test_random(void **state)
{
	static struct fixture f;
	unsigned int seed = 5;

	init(&f);
	for (unsigned int n = 0; n < 200000; n++) {
		unsigned int i = (unsigned int)rand_r(&seed) % ENTRIES;

		if (!fa_list_empty(&f.entries[i].link))
			take_away(&f, i);
		else if (rand_r(&seed) % 2)
			add(&f, i, i % GROUPS, rand_r(&seed) % 2);
		fa_fair_queue_charge(&f.queue, &f.groups[i % GROUPS], rand_r(&seed) % 100);
		if (!fa_fair_queue_empty(&f.queue)) {
			struct entry *entry = fa_container_of(fa_fair_queue_next(&f.queue),
			                                      struct entry, link);

			for (unsigned int g = 0; g < GROUPS; g++)
				if (f.groups[g].place.linked)
					assert_true(f.groups[g].used >=
					            f.groups[entry->group].used);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_groups),    cmocka_unit_test(test_costs),
		cmocka_unit_test(test_latecomer), cmocka_unit_test(test_urgent),
		cmocka_unit_test(test_slack),     cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
