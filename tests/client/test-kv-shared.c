/*
 * Several clients of one cache: access to sequences, conflicting appends, cleanup after deaths,
 * lack of space.
 */
#include "client/faclient.h"
#include "tests/client/kv.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define OTHER_UID 12321

static struct fa_test_daemon daemon_;
static struct kv a, b;

static struct fa_client *connect_client(void)
{
	struct fa_options options = { .size = sizeof(options), .socket = daemon_.socket };
	struct fa_client *client;

	fa_check_eq(fa_connect(&options, &client), 0);
	return client;
}

static int setup(void **state)
{
	const struct fa_test_daemon_options options = { .everyone = true };

	fa_test_daemon_start(&daemon_, &options);
	kv_init(&a, connect_client(), "shared", 0);
	kv_init_in(&b, connect_client(), a.cache);
	return 0;
}

static int teardown(void **state)
{
	struct fa_client *clients[] = { a.client, b.client };

	kv_deinit(&a);
	kv_deinit(&b);
	fa_disconnect(clients[0]);
	fa_disconnect(clients[1]);
	fa_test_daemon_stop(&daemon_);
	return 0;
}

static void fill(uint32_t *tags, uint32_t n, uint32_t first)
{
	for (uint32_t i = 0; i < n; ++i)
		tags[i] = first + i;
}

static struct kv_item item(uint64_t sequence, const uint32_t *tags, uint32_t before, uint32_t n_new)
{
	return (struct kv_item){
		.sequence = sequence, .tags = tags, .length = before + n_new, .n_new = n_new
	};
}

static int append(struct kv *kv, uint64_t sequence, const uint32_t *tags, uint32_t before,
                  uint32_t n_new)
{
	const struct kv_item one = item(sequence, tags, before, n_new);
	struct fa_step *step;
	int r;

	r = kv_begin(kv, &one, 1, &step);
	if (r < 0)
		return r;
	r = kv_attend(kv, step, &one, 1, 0, true);
	if (!r)
		kv_check_out(kv, &one, 1);
	if (!r)
		r = fa_step_commit(step, NULL, NULL);
	fa_step_free(step);
	return r;
}

static uint64_t sequence_of(struct kv *kv, const uint32_t *tags, uint32_t n)
{
	uint64_t sequence;

	must(fa_sequence_create(kv->client, kv->cache, &sequence), "create");
	if (n)
		must(append(kv, sequence, tags, 0, n), "append");
	return sequence;
}

static struct fa_sequence_info info_of(struct kv *kv, uint64_t sequence)
{
	struct fa_sequence_info info = { .size = sizeof(info) };

	must(fa_sequence_info(kv->client, sequence, &info), "info");
	return info;
}

static void test_names(void **state)
{
	uint32_t tags[120], others[120];
	struct fa_sequence_info info = { .size = sizeof(info) };
	uint64_t mine, found = 0, fork, cache = 0;

	fill(tags, 120, 1);
	mine = sequence_of(&a, tags, 100);
	/* Unnamed sequences belong to one client. */
	fa_check_eq(fa_sequence_info(b.client, mine, &info), -ENOENT);
	fa_check_eq(fa_sequence_fork(b.client, mine, UINT64_MAX, &fork), -ENOENT);
	fa_check_eq(fa_sequence_find(b.client, "prompt", &found), -ENOENT);

	must(fa_sequence_set_name(a.client, mine, "prompt", 0, 0), "name");
	must(fa_sequence_find(b.client, "prompt", &found), "find");
	fa_check_eq(found, mine);
	must(fa_cache_find(b.client, "shared", &cache), "find cache");
	fa_check_eq(cache, a.cache);
	kv_check_sequence(&b, found, tags, 100, 0);
	must(fa_sequence_fork(b.client, found, 50, &fork), "fork");
	memcpy(others, tags, sizeof(others));
	fill(others + 50, 20, 1000);
	must(append(&b, fork, others, 50, 20), "append");
	kv_check_sequence(&b, fork, others, 70, 0);
	kv_check_sequence(&a, mine, tags, 100, 0);
	fa_check_eq(fa_sequence_info(a.client, fork, &info), -ENOENT);

	/* Within a tenant others may append, truncate and remove. */
	must(append(&b, mine, tags, 100, 5), "append");
	kv_check_sequence(&a, mine, tags, 105, 0);
	must(fa_sequence_truncate(b.client, mine, 60), "truncate");
	fa_check_eq(info_of(&a, mine).length, 60);

	/* One name per sequence, one sequence per name. */
	fa_check_eq(fa_sequence_set_name(b.client, fork, "prompt", 0, 0), -EEXIST);
	fa_check_eq(fa_sequence_set_name(a.client, mine, "another", 0, 0), -EEXIST);
	must(fa_sequence_set_name(a.client, mine, "prompt", FA_MODE_READ_ALL, 0), "mode");
	fa_check_eq(info_of(&b, mine).mode, FA_MODE_READ_ALL);
	fa_check_eq(
		fa_cache_create(a.client,
	                        &(struct fa_cache_options){ .size = sizeof(struct fa_cache_options),
	                                                    .name = "shared",
	                                                    .dtype = FA_F32,
	                                                    .layers = 1,
	                                                    .kv_heads = 1,
	                                                    .head_dim = 16 },
	                        &cache),
		-EEXIST);
	must(fa_sequence_remove(b.client, mine), "free");
	fa_check_eq(fa_sequence_info(a.client, mine, &info), -ESTALE);
	fa_check_eq(fa_sequence_find(a.client, "prompt", &found), -ENOENT);
	must(fa_sequence_remove(b.client, fork), "free");
}

static int run_other_uid(void *userdata)
{
	struct fa_cache_info cache_info = { .size = sizeof(cache_info) };
	uint64_t open, closed = ((uint64_t *)userdata)[0], fork, cache, sequence;
	uint64_t unnamed = ((uint64_t *)userdata)[1];
	struct fa_sequence_info info = { .size = sizeof(info) };
	uint32_t tags[32];
	struct kv kv;

	fa_check_eq(setresuid(OTHER_UID, OTHER_UID, OTHER_UID), 0);
	kv_init_in(&kv, connect_client(), 0);
	fill(tags, 32, 1);
	/*
	 * The last client has the daemon's user and the others' tenant: it may remove any named
	 * object.
	 */
	fa_check_eq(fa_sequence_remove(kv.client, a.cache), -EINVAL);
	fa_check_contains(fa_error(), "is a cache; expected a sequence");
	fa_check_eq(fa_sequence_remove(kv.client, unnamed), -ENOENT);
	fa_check_eq(fa_sequence_info(kv.client, unnamed, &info), -ENOENT);
	fa_check_eq(fa_sequence_remove(kv.client, closed), -ENOENT);
	fa_check(!strcmp(fa_error(), "there is no such sequence"));
	fa_check_eq(fa_sequence_info(kv.client, closed, &info), -ENOENT);
	fa_check(!strcmp(fa_error(), "there is no such sequence"));
	fa_check_eq(fa_sequence_info(kv.client, closed + 1, &info), -ENOENT);
	fa_check(!strcmp(fa_error(), "there is no such sequence"));
	fa_check_eq(fa_sequence_find_of(kv.client, 0, "closed", &open), -ENOENT);
	fa_check_eq(fa_cache_find_of(kv.client, 0, "shared", &cache), -ENOENT);
	fa_check_eq(fa_cache_find_of(kv.client, UINT32_MAX, "shared", &cache), -EINVAL);

	fa_check_eq(fa_sequence_find(kv.client, "open", &open), -ENOENT);
	must(fa_sequence_find_of(kv.client, 0, "open", &open), "find");
	fa_check_eq(info_of(&kv, open).uid, 0);
	kv_check_sequence(&kv, open, tags, 20, 0);
	fa_check_eq(append(&kv, open, tags, 20, 1), -EACCES);
	fa_check_eq(fa_sequence_truncate(kv.client, open, 1), -EACCES);
	fa_check_eq(fa_sequence_remove(kv.client, open), -EACCES);
	fa_check_eq(fa_sequence_set_name(kv.client, open, "open", 0, 0), -EACCES);
	must(fa_sequence_fork(kv.client, open, 10, &fork), "fork");
	must(append(&kv, fork, tags, 10, 5), "append");
	kv_check_sequence(&kv, fork, tags, 15, 0);

	must(fa_sequence_find_of(kv.client, 0, "open too", &open), "find");
	fa_check_eq(fa_sequence_fork(kv.client, open, 10, &fork), -EACCES);
	must(append(&kv, open, tags, 20, 1), "append");
	fa_check_eq(fa_sequence_create(kv.client, info_of(&kv, open).cache, &sequence), -ENOENT);
	return 0;
}

static void test_other_uid(void **state)
{
	struct fa_cache_info before = { .size = sizeof(before) }, after = before;
	uint64_t open, open_too, closed, numbers[2];
	uint32_t tags[32];

	if (getuid() != 0)
		skip();
	fill(tags, 32, 1);
	must(fa_cache_info(a.client, a.cache, &before), "cache");
	open = sequence_of(&a, tags, 20);
	open_too = sequence_of(&a, tags, 20);
	closed = sequence_of(&a, tags, 20);
	must(fa_sequence_set_name(a.client, open, "open", FA_MODE_READ_ALL | FA_MODE_FORK_ALL, 0),
	     "name");
	must(fa_sequence_set_name(a.client, open_too, "open too",
	                          FA_MODE_READ_ALL | FA_MODE_APPEND_ALL, 0),
	     "name");
	must(fa_sequence_set_name(a.client, closed, "closed", FA_MODE_READ_UID | FA_MODE_FORK_UID,
	                          0),
	     "name");
	numbers[0] = closed;
	numbers[1] = sequence_of(&a, tags, 20);
	fa_check_eq(fa_test_reap(fa_test_fork(run_other_uid, numbers)), 0);
	must(fa_sequence_remove(a.client, numbers[1]), "free");
	kv_check_sequence(&a, open_too, tags, 21, 0);
	must(fa_sequence_remove(a.client, open), "free");
	must(fa_sequence_remove(a.client, open_too), "free");
	must(fa_sequence_remove(a.client, closed), "free");
	fa_check_eventually(
		(must(fa_cache_info(a.client, a.cache, &after), "cache"),
	         after.used_pages == before.used_pages && after.sequences == before.sequences));
}

static void test_two_append(void **state)
{
	struct fa_step *first, *second = NULL;
	struct kv_item one;
	uint32_t tags[64];
	uint64_t sequence;

	fill(tags, 64, 500);
	sequence = sequence_of(&a, tags, 10);
	must(fa_sequence_set_name(a.client, sequence, "both", 0, 0), "name");
	one = item(sequence, tags, 10, 3);
	must(kv_begin(&a, &one, 1, &first), "begin");
	fa_check_eq(kv_begin(&b, &one, 1, &second), -EBUSY);
	fa_check_eq(fa_sequence_truncate(b.client, sequence, 1), -EBUSY);
	kv_check_pages(&b, sequence, tags, 0, 10);
	fa_check_eq(info_of(&b, sequence).planned, 13);
	must(kv_attend(&a, first, &one, 1, 0, true), "attend");
	must(fa_step_commit(first, NULL, NULL), "commit");
	fa_check_eq(info_of(&b, sequence).step, fa_step_number(first));
	fa_step_free(first);
	must(append(&b, sequence, tags, 13, 2), "append");
	kv_check_sequence(&a, sequence, tags, 15, 0);
	must(fa_sequence_remove(a.client, sequence), "free");
}

static int die_in_step(void *userdata)
{
	uint64_t sequence, unnamed;
	struct fa_step *step;
	struct kv_item one;
	uint32_t tags[64];
	struct kv kv;

	fill(tags, 64, 700);
	kv_init_in(&kv, connect_client(), 0);
	must(fa_sequence_find(kv.client, "victim", &sequence), "find");
	must(fa_sequence_fork(kv.client, sequence, UINT64_MAX, &unnamed), "fork");
	must(append(&kv, unnamed, tags, 20, 30), "append");
	one = item(sequence, tags, 20, 30);
	must(kv_begin(&kv, &one, 1, &step), "begin");
	must(kv_attend(&kv, step, &one, 1, 0, *(int *)userdata), "attend");
	(void)kill(getpid(), SIGKILL);
	return 1;
}

static void test_death_in_step(void **state)
{
	struct fa_cache_info before = { .size = sizeof(before) }, after = before;
	uint32_t tags[64];
	uint64_t sequence;

	fill(tags, 64, 700);
	sequence = sequence_of(&a, tags, 20);
	must(fa_sequence_set_name(a.client, sequence, "victim", 0, 0), "name");
	must(fa_cache_info(a.client, a.cache, &before), "cache");
	for (int i = 0; i < 6; ++i) {
		int waits = i % 2, status = fa_test_reap(fa_test_fork(die_in_step, &waits));

		fa_check(WIFSIGNALED(status));
		fa_check_eq(WTERMSIG(status), SIGKILL);
		/* All that only the dead client had is freed. */
		fa_check_eventually((must(fa_cache_info(a.client, a.cache, &after), "cache"),
		                     after.used_pages == before.used_pages &&
		                             after.sequences == before.sequences));
		kv_check_sequence(&a, sequence, tags, 20, 0);
	}
	must(append(&a, sequence, tags, 20, 5), "append");
	must(fa_sequence_remove(a.client, sequence), "free");
}

static void test_session_ends(void **state)
{
	struct fa_cache_info info = { .size = sizeof(info) };
	struct fa_client *client = connect_client();
	uint64_t cache, named, unnamed, found;
	uint32_t tags[20];
	struct kv kv;

	fill(tags, 20, 1);
	kv_init(&kv, client, NULL, 0);
	unnamed = sequence_of(&kv, tags, 20);
	cache = kv.cache;
	kv.cache = a.cache;
	named = sequence_of(&kv, tags, 20);
	must(fa_sequence_set_name(client, named, "left", 0, 0), "name");
	kv_deinit(&kv);
	fa_disconnect(client);
	fa_check_eventually(fa_cache_info(a.client, cache, &info) < 0);
	fa_check_eq(fa_sequence_remove(a.client, unnamed), -ESTALE);
	must(fa_sequence_find(a.client, "left", &found), "find");
	kv_check_sequence(&a, found, tags, 20, 0);
	must(fa_sequence_remove(a.client, found), "free");
}

static void test_full(void **state)
{
	struct fa_cache_info info = { .size = sizeof(info) };
	struct kv_item items[3];
	struct fa_step *step = NULL;
	uint64_t sequences[3];
	uint32_t tags[128];
	struct kv kv;
	int r;

	fill(tags, 128, 1);
	kv_init(&kv, a.client, NULL, 6);
	for (int i = 0; i < 3; ++i) {
		sequences[i] = sequence_of(&kv, tags, 10);
		items[i] = item(sequences[i], tags, 10, 30);
	}
	/* Each sequence has a page and needs two more, but three are free. */
	r = kv_begin(&kv, items, 3, &step);
	fa_check(r == -ENOMEM || r == -EDQUOT);
	fa_check(*fa_error());
	must(fa_cache_info(a.client, kv.cache, &info), "cache");
	fa_check_eq(info.used_pages, 3);
	for (int i = 0; i < 3; ++i)
		kv_check_sequence(&kv, sequences[i], tags, 10, 0);
	must(kv_begin(&kv, items, 1, &step), "begin");
	must(kv_attend(&kv, step, items, 1, 0, true), "attend");
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
	must(fa_cache_info(a.client, kv.cache, &info), "cache");
	fa_check_eq(info.used_pages, 5);
	must(fa_cache_remove(a.client, kv.cache), "remove");
	fa_check_eq(fa_sequence_remove(a.client, sequences[0]), -ESTALE);
	fa_check_eq(fa_cache_info(a.client, kv.cache, &info), -ESTALE);
	kv_deinit(&kv);
}

struct worker {
	pthread_t thread;
	struct kv kv;
	uint64_t parent;
	const uint32_t *tags;
	uint32_t seed;
	int rounds;
};

static void *work(void *userdata)
{
	struct worker *w = userdata;
	struct fa_test_random random = { .state = w->seed };
	uint32_t tags[200];

	for (int i = 0; i < w->rounds; ++i) {
		uint32_t at = (uint32_t)fa_test_random_below(&random, 51), length = at;
		uint64_t sequence;

		memcpy(tags, w->tags, sizeof(*tags) * at);
		fill(tags + at, 150, w->seed << 20 | (uint32_t)i << 8);
		must(fa_sequence_fork(w->kv.client, w->parent, at, &sequence), "fork");
		for (int k = 0; k < 5; ++k) {
			uint32_t n = 1 + (uint32_t)fa_test_random_below(&random, 20);

			must(append(&w->kv, sequence, tags, length, n), "append");
			length += n;
		}
		kv_check_sequence(&w->kv, sequence, tags, length, 0);
		must(fa_sequence_remove(w->kv.client, sequence), "free");
	}
	return NULL;
}

static void test_threads(void **state)
{
	enum {
		N = 6
	};
	struct fa_cache_info before = { .size = sizeof(before) }, after = before;
	struct worker workers[N];
	uint64_t parent;
	uint32_t tags[50];

	fill(tags, 50, 9000);
	parent = sequence_of(&a, tags, 50);
	must(fa_sequence_set_name(a.client, parent, "root", 0, 0), "name");
	must(fa_cache_info(a.client, a.cache, &before), "cache");
	for (uint32_t i = 0; i < N; ++i) {
		workers[i] = (struct worker){ .parent = parent,
			                      .tags = tags,
			                      .seed = i + 1,
			                      .rounds = fa_test_sanitized() ? 8 : 40 };
		kv_init_in(&workers[i].kv, i % 2 ? a.client : b.client, a.cache);
		fa_check(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	}
	for (int i = 0; i < N; ++i) {
		pthread_join(workers[i].thread, NULL);
		kv_deinit(&workers[i].kv);
	}
	kv_check_sequence(&a, parent, tags, 50, 0);
	must(fa_cache_info(a.client, a.cache, &after), "cache");
	fa_check_eq(after.used_pages, before.used_pages);
	fa_check_eq(after.sequences, before.sequences);
	must(fa_sequence_remove(a.client, parent), "free");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),        cmocka_unit_test(test_other_uid),
		cmocka_unit_test(test_two_append),   cmocka_unit_test(test_death_in_step),
		cmocka_unit_test(test_session_ends), cmocka_unit_test(test_full),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests_name("kv-shared", tests, setup, teardown);
}
