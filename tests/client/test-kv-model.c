/*
 * Random operations on caches against a model that keeps each sequence as an array: attention,
 * contents of pages, every length, and at the end every page.
 */
#include "client/faclient.h"
#include "tests/client/kv.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEQUENCES 12
#define LENGTH_MAX 200
#define ITEMS_MAX 4
#define PUBLISHED_MAX 512
#define PAGES_MAX 4096

/* Numbered by the model itself, from 1. */
struct page {
	uint32_t users;
	bool published;
};

struct sequence {
	uint64_t id; /* 0: unused */
	uint32_t tags[LENGTH_MAX + KV_ROWS_MAX];
	uint32_t pages[LENGTH_MAX / KV_PAGE_TOKENS + 2]; /* 0: dropped */
	uint32_t length, first;
	uint64_t step;
};

/* A page in the prefix index, with all tags up to its end. */
struct published {
	uint32_t tags[LENGTH_MAX];
	uint32_t length;
	uint32_t extra;
	uint32_t page;
};

struct model {
	struct fa_test_random random;
	struct kv kv;
	uint32_t last_tag, stream;
	uint64_t gone;
	struct sequence sequences[SEQUENCES];
	struct page pages[PAGES_MAX];
	struct published published[PUBLISHED_MAX];
	uint32_t n_published;
	uint32_t done[16];
};

static uint32_t below(struct model *m, uint32_t n)
{
	return (uint32_t)fa_test_random_below(&m->random, n);
}

static struct sequence *any(struct model *m)
{
	uint32_t i = below(m, SEQUENCES);

	for (uint32_t k = 0; k < SEQUENCES; ++k, i = (i + 1) % SEQUENCES)
		if (m->sequences[i].id)
			return &m->sequences[i];
	return NULL;
}

static struct sequence *none(struct model *m)
{
	for (uint32_t i = 0; i < SEQUENCES; ++i)
		if (!m->sequences[i].id)
			return &m->sequences[i];
	return NULL;
}

static void check_info(struct model *m, const struct sequence *s, uint32_t planned)
{
	struct fa_sequence_info info = { .size = sizeof(info) };

	must(fa_sequence_info(m->kv.client, s->id, &info), "info");
	fa_check_eq(info.cache, m->kv.cache);
	fa_check_eq(info.length, s->length);
	fa_check_eq(info.planned, planned);
	fa_check_eq(info.first, s->first);
	fa_check_eq(info.step, s->step);
}

static uint32_t page_new(struct model *m)
{
	for (uint32_t i = 1; i < PAGES_MAX; ++i)
		if (!m->pages[i].users && !m->pages[i].published) {
			m->pages[i].users = 1;
			return i;
		}
	fa_test_fail(__FILE__, __LINE__, "the model has too few pages");
	return 0;
}

static void page_put(struct model *m, uint32_t *page)
{
	if (*page)
		--m->pages[*page].users;
	*page = 0;
}

static void resize(struct model *m, struct sequence *s, uint32_t length)
{
	uint32_t before = (s->length + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
	uint32_t after = (length + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;

	if (length > s->length && s->length % KV_PAGE_TOKENS) {
		uint32_t *last = &s->pages[before - 1];

		if (m->pages[*last].users > 1 || m->pages[*last].published) {
			page_put(m, last);
			*last = page_new(m);
		}
	}
	for (uint32_t i = before; i < after; ++i)
		s->pages[i] = page_new(m);
	for (uint32_t i = after; i < before; ++i)
		page_put(m, &s->pages[i]);
	s->length = length;
}

static void check_counts(struct model *m)
{
	struct fa_cache_info info = { .size = sizeof(info) };
	uint32_t used = 0, idle = 0, sequences = 0;

	for (uint32_t i = 1; i < PAGES_MAX; ++i) {
		used += m->pages[i].users > 0;
		idle += !m->pages[i].users && m->pages[i].published;
	}
	for (uint32_t i = 0; i < SEQUENCES; ++i)
		sequences += m->sequences[i].id != 0;
	must(fa_cache_info(m->kv.client, m->kv.cache, &info), "cache info");
	fa_check_eq(info.sequences, sequences);
	fa_check_eq(info.used_pages, used);
	fa_check_eq(info.idle_pages, idle);
}

struct plan {
	struct sequence *sequences[ITEMS_MAX];
	struct kv_item items[ITEMS_MAX];
	uint32_t parents[ITEMS_MAX][KV_ROWS_MAX];
	uint32_t n;
};

/* @common: a tag of a text with which many sequences begin, so that published pages are found. */
static uint32_t new_tag(struct model *m, uint32_t at, bool common)
{
	return common ? 1 + at : 0x10000 + ++m->last_tag;
}

static void plan(struct model *m, struct plan *plan)
{
	uint32_t rows = KV_ROWS_MAX, n = 1 + below(m, ITEMS_MAX);

	plan->n = 0;
	for (uint32_t i = 0; i < n; ++i) {
		struct sequence *s = any(m);
		uint32_t n_new = below(m, 8) ? below(m, 6) : below(m, 60);
		bool tree = !below(m, 4),
		     common = !s->length || s->tags[s->length - 1] == s->length;

		for (uint32_t k = 0; k < plan->n; ++k)
			if (plan->sequences[k] == s)
				s = NULL;
		if (!s)
			continue;
		n_new = n_new < rows ? n_new : rows;
		if (s->length + n_new > LENGTH_MAX)
			n_new = 0;
		rows -= n_new;
		common = common && below(m, 4);
		for (uint32_t k = 0; k < n_new; ++k) {
			s->tags[s->length + k] = new_tag(m, s->length + k, common);
			plan->parents[plan->n][k] = below(m, k + 1);
		}
		plan->sequences[plan->n] = s;
		plan->items[plan->n] = (struct kv_item){
			.sequence = s->id,
			.tags = s->tags,
			.length = s->length + n_new,
			.first = s->first,
			.n_new = n_new,
			.parents = tree ? plan->parents[plan->n] : NULL,
		};
		++plan->n;
	}
}

/* Keeps a path of the tree, or a prefix of the new tokens, in the model, too. */
static void keep(struct model *m, struct plan *plan, uint32_t *keep, uint32_t *cu_keep)
{
	uint32_t n = 0;

	cu_keep[0] = 0;
	for (uint32_t i = 0; i < plan->n; ++i) {
		const struct kv_item *item = &plan->items[i];
		struct sequence *s = plan->sequences[i];
		uint32_t path[KV_ROWS_MAX], n_path = 0;

		if (item->parents && item->n_new) {
			for (uint32_t at = below(m, item->n_new);; at = item->parents[at]) {
				path[n_path++] = at;
				if (item->parents[at] == at)
					break;
			}
			for (uint32_t k = 0; k < n_path; ++k)
				keep[n + k] = path[n_path - 1 - k];
		} else {
			/* A lower bound: the daemon may copy a page without need. */
			uint32_t least = item->n_new && s->length % KV_PAGE_TOKENS;

			n_path = least + below(m, item->n_new + 1 - least);
			for (uint32_t k = 0; k < n_path; ++k)
				keep[n + k] = k;
		}
		for (uint32_t k = 0; k < n_path; ++k)
			s->tags[s->length + k] = s->tags[s->length + keep[n + k]];
		resize(m, s, s->length + n_path);
		n += n_path;
		cu_keep[i + 1] = n;
	}
}

static void commit(struct model *m, struct plan *plan, struct fa_step *step)
{
	uint32_t kept[KV_ROWS_MAX], cu_keep[ITEMS_MAX + 1];
	struct fa_step_commit commit = { .size = sizeof(commit), .keep = kept, .cu_keep = cu_keep };
	bool has_tree = false;

	for (uint32_t i = 0; i < plan->n; ++i) {
		if (plan->items[i].n_new)
			plan->sequences[i]->step = fa_step_number(step);
		has_tree = has_tree || plan->items[i].parents;
	}
	if (has_tree || !below(m, 4)) {
		keep(m, plan, kept, cu_keep);
		must(fa_step_commit(step, &commit, NULL), "commit, keeping some");
		return;
	}
	for (uint32_t i = 0; i < plan->n; ++i)
		resize(m, plan->sequences[i], plan->items[i].length);
	must(fa_step_commit(step, NULL, NULL), "commit");
}

static void do_step(struct model *m)
{
	struct fa_step *step = NULL;
	struct plan p;

	plan(m, &p);
	must(kv_begin(&m->kv, p.items, p.n, &step), "begin");
	for (uint32_t i = 0; i < p.n; ++i)
		check_info(m, p.sequences[i], p.items[i].length);
	for (uint32_t i = 0, any_new = 0; i < p.n; ++i) {
		any_new += p.items[i].n_new;
		if (!any_new && i == p.n - 1) {
			fa_step_free(step);
			return;
		}
	}
	must(kv_attend(&m->kv, step, p.items, p.n, m->stream, true), "attend");
	kv_check_out(&m->kv, p.items, p.n);
	switch (below(m, 6)) {
	case 0:
		must(fa_step_abort(step, 0, NULL), "abort");
		break;
	case 1: /* free the handle */
		break;
	default:
		commit(m, &p, step);
	}
	fa_step_free(step);
	/* The daemon aborts a freed step when it reads the message. */
	must(fa_ping(m->kv.client), "ping");
	for (uint32_t i = 0; i < p.n; ++i)
		fa_check_eventually(({
			struct fa_sequence_info info = { .size = sizeof(info) };

			must(fa_sequence_info(m->kv.client, p.items[i].sequence, &info), "info");
			info.planned == info.length;
		}));
	for (uint32_t i = 0; i < p.n; ++i)
		check_info(m, p.sequences[i], p.sequences[i]->length);
}

static void do_pipeline(struct model *m)
{
	struct sequence *s = any(m);
	struct kv_item items[2];
	struct fa_step *steps[2];
	uint32_t n = 1 + below(m, 20);
	bool aborts = !below(m, 3);

	if (s->length + 2 * n > LENGTH_MAX)
		return;
	for (uint32_t i = 0; i < 2 * n; ++i)
		s->tags[s->length + i] = new_tag(m, 0, false);
	for (uint32_t i = 0; i < 2; ++i)
		items[i] = (struct kv_item){ .sequence = s->id,
			                     .tags = s->tags,
			                     .length = s->length + (i + 1) * n,
			                     .first = s->first,
			                     .n_new = n };
	must(kv_begin(&m->kv, &items[0], 1, &steps[0]), "begin");
	must(kv_attend(&m->kv, steps[0], &items[0], 1, 0, true), "attend");
	kv_check_out(&m->kv, &items[0], 1);
	if (kv_begin(&m->kv, &items[1], 1, &steps[1]) < 0) {
		/* The step would have to copy a page that another step is writing. */
		fa_check_contains(fa_error(), "copied");
		steps[1] = NULL;
	} else {
		check_info(m, s, s->length + 2 * n);
		fa_check_eq(fa_sequence_truncate(m->kv.client, s->id, 0), -EBUSY);
		must(kv_attend(&m->kv, steps[1], &items[1], 1, m->stream, true), "attend");
		kv_check_out(&m->kv, &items[1], 1);
	}
	if (aborts) {
		must(fa_step_abort(steps[0], 0, NULL), "abort");
		if (steps[1])
			fa_check_eq(fa_step_commit(steps[1], NULL, NULL), -ECANCELED);
	} else {
		for (int i = 0; i < 2 && steps[i]; ++i) {
			must(fa_step_commit(steps[i], NULL, NULL), "commit");
			resize(m, s, s->length + n);
			s->step = fa_step_number(steps[i]);
		}
	}
	fa_step_free(steps[0]);
	fa_step_free(steps[1]);
	check_info(m, s, s->length);
}

static void do_create(struct model *m)
{
	struct sequence *s = none(m);

	if (!s)
		return;
	*s = (struct sequence){};
	must(fa_sequence_create(m->kv.client, m->kv.cache, &s->id), "create");
	check_info(m, s, 0);
}

static void do_fork(struct model *m)
{
	struct sequence *s = none(m), *parent = any(m);
	struct fa_sequence_info info = { .size = sizeof(info) };
	uint64_t all = UINT64_MAX, id = 0;
	uint32_t n;

	if (!s || s == parent)
		return;
	fa_check_eq(fa_sequence_fork(m->kv.client, parent->id, parent->length + 1, &id), -EINVAL);
	n = parent->first + below(m, parent->length - parent->first + 1);
	if (!below(m, 3))
		n = parent->length;
	must(fa_sequence_fork(m->kv.client, parent->id,
	                      n == parent->length && below(m, 2) ? all : n, &id),
	     "fork");
	*s = *parent;
	s->id = id;
	for (uint32_t i = 0; i < sizeof(s->pages) / sizeof(*s->pages); ++i)
		if (s->pages[i])
			++m->pages[s->pages[i]].users;
	resize(m, s, n);
	/* The parent's step or 0. */
	must(fa_sequence_info(m->kv.client, id, &info), "info");
	s->step = info.step;
	check_info(m, s, n);
}

static void do_truncate(struct model *m)
{
	struct sequence *s = any(m);
	uint32_t n = s->first + below(m, s->length - s->first + 1);

	fa_check_eq(fa_sequence_truncate(m->kv.client, s->id, s->length + 1), -EINVAL);
	must(fa_sequence_truncate(m->kv.client, s->id, n), "truncate");
	resize(m, s, n);
	check_info(m, s, n);
}

static void do_drop(struct model *m)
{
	struct sequence *s = any(m);
	uint32_t n = below(m, s->length + 1), expected = n / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
	uint64_t first;

	fa_check_eq(fa_sequence_drop_before(m->kv.client, s->id, s->length + 1, &first), -EINVAL);
	must(fa_sequence_drop_before(m->kv.client, s->id, n, &first), "drop");
	s->first = expected > s->first ? expected : s->first;
	fa_check_eq(first, s->first);
	for (uint32_t i = 0; i < s->first / KV_PAGE_TOKENS; ++i)
		page_put(m, &s->pages[i]);
	check_info(m, s, s->length);
}

static void do_read(struct model *m)
{
	struct sequence *s = any(m);

	kv_check_sequence(&m->kv, s->id, s->tags, s->length, s->first);
}

static void do_free(struct model *m)
{
	struct sequence *s = any(m);
	struct fa_sequence_info info = { .size = sizeof(info) };
	int r;

	must(fa_sequence_remove(m->kv.client, s->id), "free");
	m->gone = s->id;
	s->id = 0;
	for (uint32_t i = 0; i < sizeof(s->pages) / sizeof(*s->pages); ++i)
		page_put(m, &s->pages[i]);
	r = fa_sequence_info(m->kv.client, m->gone, &info);
	fa_check(r == -ESTALE || r == -ENOENT);
}

/* The published page that ends with these tokens; 0: none. */
static uint32_t look_up(const struct model *m, const uint32_t *tags, uint32_t n, uint32_t extra)
{
	for (uint32_t i = 0; i < m->n_published; ++i) {
		const struct published *p = &m->published[i];

		if (p->extra == extra && p->length == n &&
		    !memcmp(p->tags, tags, n * sizeof(*tags)))
			return p->page;
	}
	return 0;
}

static void do_publish(struct model *m)
{
	uint32_t extra = below(m, 2), added = 0;
	struct sequence *s = any(m);
	struct fa_prefix prefix = { .size = sizeof(prefix),
		                    .tokens = s->tags,
		                    .extra = &extra,
		                    .extra_bytes = sizeof(extra) };
	uint64_t pages;

	if (m->n_published + LENGTH_MAX / KV_PAGE_TOKENS > PUBLISHED_MAX)
		return;
	prefix.n_tokens = s->length + 1;
	fa_check_eq(fa_sequence_publish(m->kv.client, s->id, &prefix, NULL), -EINVAL);
	prefix.n_tokens = below(m, s->length + 1);
	must(fa_sequence_publish(m->kv.client, s->id, &prefix, &pages), "publish");
	for (uint32_t n = KV_PAGE_TOKENS; n <= prefix.n_tokens; n += KV_PAGE_TOKENS) {
		uint32_t page = s->pages[n / KV_PAGE_TOKENS - 1];
		struct published *p = &m->published[m->n_published];

		/* Pages and their tags correspond one to one: only if neither is published yet. */
		if (!page || m->pages[page].published || look_up(m, s->tags, n, extra))
			continue;
		memcpy(p->tags, s->tags, n * sizeof(*p->tags));
		p->length = n;
		p->extra = extra;
		p->page = page;
		m->pages[page].published = true;
		++m->n_published;
		++added;
	}
	fa_check_eq(pages, added);
}

static void do_attach(struct model *m)
{
	struct sequence *s = none(m), *like = any(m);
	uint32_t tags[LENGTH_MAX], extra = below(m, 2);
	struct fa_prefix prefix = { .size = sizeof(prefix),
		                    .tokens = tags,
		                    .extra = &extra,
		                    .extra_bytes = sizeof(extra) };
	uint32_t n = 0, page;
	uint64_t found = 77, could = 78;

	if (!s || !like || s == like)
		return;
	prefix.n_tokens = below(m, LENGTH_MAX);
	for (uint32_t i = 0; i < prefix.n_tokens; ++i)
		tags[i] = i < like->length ? like->tags[i] : 1 + i;
	if (like->length)
		fa_check_eq(fa_sequence_attach(m->kv.client, like->id, &prefix, NULL), -EINVAL);
	*s = (struct sequence){};
	must(fa_sequence_create(m->kv.client, m->kv.cache, &s->id), "create");
	must(fa_prefix_find(m->kv.client, m->kv.cache, &prefix, &could), "find");
	must(fa_sequence_attach(m->kv.client, s->id, &prefix, &found), "attach");
	fa_check_eq(could, found);
	for (; n + KV_PAGE_TOKENS <= prefix.n_tokens; n += KV_PAGE_TOKENS) {
		page = look_up(m, tags, n + KV_PAGE_TOKENS, extra);
		if (!page)
			break;
		s->pages[n / KV_PAGE_TOKENS] = page;
		++m->pages[page].users;
	}
	fa_check_eq(found, n);
	memcpy(s->tags, tags, sizeof(tags));
	s->length = n;
	kv_check_sequence(&m->kv, s->id, s->tags, s->length, 0);
}

static void do_refused(struct model *m)
{
	struct sequence *s = any(m);
	struct kv_item items[2] = { { .sequence = s->id, .length = s->length + 1, .n_new = 1 } };
	struct fa_step *step = NULL;
	int r;

	items[1] = items[0];
	fa_check_eq(kv_begin(&m->kv, items, 2, &step), -EINVAL);
	items[1].sequence = m->gone;
	r = kv_begin(&m->kv, items, 2, &step);
	fa_check(r == -ENOENT || r == -ESTALE);
	items[1].sequence = 12345;
	fa_check_eq(kv_begin(&m->kv, items, 2, &step), -ENOENT);
	fa_check(!step);
	check_info(m, s, s->length);
}

static const struct {
	void (*run)(struct model *m);
	uint32_t weight;
} operations[] = {
	{ do_step, 30 },    { do_pipeline, 6 }, { do_create, 6 },  { do_fork, 10 },
	{ do_truncate, 6 }, { do_drop, 2 },     { do_read, 8 },    { do_free, 7 },
	{ do_publish, 5 },  { do_attach, 4 },   { do_refused, 2 },
};

static void run_one(struct model *m)
{
	uint32_t sum = 0, n = sizeof(operations) / sizeof(*operations), at;

	for (uint32_t i = 0; i < n; ++i)
		sum += operations[i].weight;
	at = below(m, sum);
	for (uint32_t i = 0; i < n; at -= operations[i++].weight)
		if (at < operations[i].weight) {
			++m->done[i];
			operations[i].run(m);
			check_counts(m);
			if (!any(m))
				do_create(m);
			return;
		}
}

static uint32_t n_operations;

static void test_model(void **state)
{
	struct fa_cache_info info = { .size = sizeof(info) };
	struct model *m = calloc(1, sizeof(*m));
	struct fa_options options = { .size = sizeof(options) };
	struct fa_test_daemon daemon;
	struct fa_client *client;

	fa_check(m);
	fa_test_daemon_start(&daemon, NULL);
	options.socket = daemon.socket;
	must(fa_connect(&options, &client), "connect");
	m->random.state = 4711;
	kv_init(&m->kv, client, NULL, 0);
	must(fa_stream_new(client, 1, &m->stream), "stream");
	do_create(m);
	for (uint32_t i = 0; i < n_operations; ++i) {
		run_one(m);
		if (m->n_published + LENGTH_MAX / KV_PAGE_TOKENS > PUBLISHED_MAX) {
			for (uint32_t k = 0; k < SEQUENCES; ++k)
				m->sequences[k].id = 0;
			memset(m->pages, 0, sizeof(m->pages));
			m->n_published = 0;
			must(fa_cache_remove(client, m->kv.cache), "remove");
			kv_deinit(&m->kv);
			kv_init(&m->kv, client, NULL, 0);
			do_create(m);
		}
	}
	for (uint32_t i = 0; i < SEQUENCES; ++i)
		if (m->sequences[i].id) {
			kv_check_sequence(&m->kv, m->sequences[i].id, m->sequences[i].tags,
			                  m->sequences[i].length, m->sequences[i].first);
			must(fa_sequence_remove(client, m->sequences[i].id), "free");
		}
	must(fa_cache_info(client, m->kv.cache, &info), "cache info");
	fa_check_eq(info.used_pages, 0);
	fa_check_eq(info.sequences, 0);
	fa_check_eq(info.idle_pages, m->n_published);
	for (uint32_t i = 0; i < sizeof(operations) / sizeof(*operations); ++i)
		fa_check(m->done[i]);
	kv_deinit(&m->kv);
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
	free(m);
}

/* The argument is the number of operations. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),
	};

	n_operations = fa_test_long() ? 60000 : fa_test_sanitized() ? 1500 : 6000;
	if (argc > 1)
		n_operations = (uint32_t)atoi(argv[1]);
	fa_check(n_operations > 0);
	return cmocka_run_group_tests_name("kv-model", tests, NULL, NULL);
}
