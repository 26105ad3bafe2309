/*
 * Calls that repeat themselves after a lost connection: the daemon is killed before and during each
 * of them, and none fails.
 */
#include "client/faclient.h"
#include "common/cleanup.h"
#include "tests/client/kv.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

enum {
	TOKENS = 64,
	LONG_TOKENS = 17000, /* more than a message holds */
};

static struct fa_test_daemon supervisor;
static struct kv kv;
static uint64_t written;
static uint32_t tokens[LONG_TOKENS];
static atomic_uint progress;
static atomic_bool stop;

static struct fa_prefix prefix_of(uint64_t n)
{
	return (struct fa_prefix){ .size = sizeof(struct fa_prefix),
		                   .tokens = tokens,
		                   .n_tokens = n };
}

static void must(int r, const char *what)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%s: %d, %s", what, r, fa_error());
}

static int setup(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	/* Space for chunks of daemons that died young, which are unusable for a while. */
	const struct fa_test_daemon_options daemon_options = {
		.args = args, .config = "[pool]\nbytes = 4G\nchunk_bytes = 2M\n"
	};
	struct fa_options options = { .size = sizeof(options) };
	struct fa_prefix prefix = prefix_of(TOKENS);
	struct kv_item item = { .tags = tokens, .length = TOKENS, .n_new = TOKENS };
	struct fa_client *client;
	struct fa_step *step;

	for (uint32_t i = 0; i < LONG_TOKENS; ++i)
		tokens[i] = 1 + i;
	fa_test_daemon_start(&supervisor, &daemon_options);
	options.socket = supervisor.socket;
	must(fa_connect(&options, &client), "connect");
	kv_init(&kv, client, "c", 0);
	must(fa_sequence_create(client, kv.cache, &written), "create");
	must(fa_sequence_set_name(client, written, "s", 0, 0), "name");
	item.sequence = written;
	must(kv_begin(&kv, &item, 1, &step), "begin");
	must(kv_attend(&kv, step, &item, 1, 0, true), "attend");
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
	must(fa_sequence_publish(client, written, &prefix, NULL), "publish");
	return 0;
}

static int teardown(void **state)
{
	struct fa_client *client = kv.client;

	kv_deinit(&kv);
	fa_disconnect(client);
	fa_test_daemon_stop(&supervisor);
	return 0;
}

/* ---- one function a call */

static uint64_t empty;

static void cache_find(void)
{
	uint64_t cache;

	must(fa_cache_find(kv.client, "c", &cache), "cache_find");
	fa_check_eq(cache, kv.cache);
}

static void cache_info(void)
{
	struct fa_cache_info info = { .size = sizeof(info) };

	must(fa_cache_info(kv.client, kv.cache, &info), "cache_info");
	fa_check_eq(info.page_tokens, KV_PAGE_TOKENS);
}

static void sequence_find(void)
{
	uint64_t sequence;

	must(fa_sequence_find(kv.client, "s", &sequence), "sequence_find");
	fa_check_eq(sequence, written);
}

static void sequence_info(void)
{
	struct fa_sequence_info info = { .size = sizeof(info) };

	must(fa_sequence_info(kv.client, written, &info), "sequence_info");
	fa_check_eq(info.length, TOKENS);
}

static void publish(void)
{
	struct fa_prefix prefix = prefix_of(TOKENS);
	uint64_t n;

	must(fa_sequence_publish(kv.client, written, &prefix, &n), "publish");
	fa_check_eq(n, 0);
}

static void prefix_find(void)
{
	struct fa_prefix prefix = prefix_of(TOKENS + 5);
	uint64_t n;

	must(fa_prefix_find(kv.client, kv.cache, &prefix, &n), "prefix_find");
	fa_check_eq(n, TOKENS);
}

static void long_prefix_find(void)
{
	struct fa_prefix prefix = prefix_of(LONG_TOKENS);
	uint64_t n;

	must(fa_prefix_find(kv.client, kv.cache, &prefix, &n), "prefix_find, long");
	fa_check_eq(n, TOKENS);
}

static void attach(void)
{
	struct fa_prefix prefix = prefix_of(TOKENS);
	uint64_t n = 0;

	must(fa_sequence_attach(kv.client, empty, &prefix, &n), "attach");
	fa_check_eq(n, TOKENS);
}

static void drop(void)
{
	uint64_t first;

	must(fa_sequence_drop_before(kv.client, empty, KV_PAGE_TOKENS + 1, &first), "drop");
	fa_check_eq(first, KV_PAGE_TOKENS);
}

static void truncate_it(void)
{
	struct fa_sequence_info info = { .size = sizeof(info) };

	must(fa_sequence_truncate(kv.client, empty, 2 * KV_PAGE_TOKENS), "truncate");
	must(fa_sequence_info(kv.client, empty, &info), "info of the truncated");
	fa_check_eq(info.length, 2 * KV_PAGE_TOKENS);
}

static void begin(void)
{
	struct kv_item item = {
		.sequence = written, .tags = tokens, .length = TOKENS + 1, .n_new = 1
	};
	struct fa_step *step;

	must(kv_begin(&kv, &item, 1, &step), "begin");
	fa_step_free(step);
}

static void (*const calls[])(void) = {
	cache_find,       cache_info, sequence_find, sequence_info, publish, prefix_find,
	long_prefix_find, attach,     drop,          truncate_it,   begin,
};

/* Creating and removing do not repeat themselves. */
static void make_empty(void)
{
	int r;

	do
		r = fa_sequence_create(kv.client, kv.cache, &empty);
	while (r == -ECONNRESET);
	must(r, "create");
}

static void remove_it(void)
{
	int r = fa_sequence_remove(kv.client, empty);

	if (r < 0 && r != -ECONNRESET)
		must(r, "remove");
}

/* ---- the tests */

static void test_before(void **state)
{
	make_empty();
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); ++i) {
		pid_t pid = fa_test_daemon_child(&supervisor);

		fa_check(pid > 0 && !kill(pid, SIGKILL));
		(void)fa_test_daemon_next_child(&supervisor, pid);
		calls[i]();
	}
	remove_it();
}

static void *kill_again_and_again(void *userdata)
{
	const int kills = fa_test_long() ? 300 : 30;
	struct fa_test_random random = { .state = 5 };

	for (int i = 0; i < kills; ++i) {
		unsigned int before = atomic_load(&progress);
		pid_t pid = fa_test_daemon_child(&supervisor);

		fa_check(pid > 0);
		fa_check_eventually(atomic_load(&progress) > before + 8);
		fa_test_any_moment_us(fa_test_random_below(&random, 3000));
		fa_check(!kill(pid, SIGKILL));
		(void)fa_test_daemon_next_child(&supervisor, pid);
	}
	atomic_store(&stop, true);
	return NULL;
}

static void test_during(void **state)
{
	struct fa_info info = { .size = sizeof(info) };
	pthread_t thread;

	fa_check(!pthread_create(&thread, NULL, kill_again_and_again, NULL));
	while (!atomic_load(&stop)) {
		make_empty();
		for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); ++i) {
			calls[i]();
			atomic_fetch_add(&progress, 1);
		}
		remove_it();
	}
	fa_check(!pthread_join(thread, NULL));
	must(fa_info(kv.client, &info), "info");
	fa_check(info.reconnects >= 30);
	fa_check_eq(info.resumed, info.reconnects);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_before),
		cmocka_unit_test(test_during),
	};

	return cmocka_run_group_tests_name("kv-repeat", tests, setup, teardown);
}
