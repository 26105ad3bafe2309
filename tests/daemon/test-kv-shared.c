/*
 * Several clients of one pool: rights, conflicting steps, quotas, and what a killed client leaves.
 */
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define NOBODY 65534
#define ROOT 1 /* as the wire has uids */
#define SOMEBODY 65533

static struct fa_test_daemon daemon_process;
static struct kv_client client, other;
static uint32_t numbers[4096];

static void start_with(const char *config)
{
	struct fa_test_daemon_options options = { .config = config, .everyone = true };

	/* Few pages, but chunks as large as a GPU needs. */
	kv_spare_layers = 7 * KV_LAYERS;
	fa_test_daemon_start(&daemon_process, &options);
	kv_open(&client, daemon_process.socket);
	kv_open(&other, daemon_process.socket);
	kv_count(numbers, 1, 4096);
}

static int start(void **state)
{
	start_with("[daemon]\nmode = 0666\n[pool]\nbytes = 8M\nchunk_bytes = 2M\n");
	return 0;
}

static int stop(void **state)
{
	kv_close(&client);
	kv_close(&other);
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

/* The session that begins a step alone may append until the step ends. */
static void test_two_append(void **state)
{
	uint64_t cache = kv_cache(&client, "c", 0), sequence = kv_sequence(&client, cache);
	struct fa_wire_step_item item = { .sequence = sequence, .n_new = 5 };

	kv_set_name(&client, sequence, "s", 0);
	kv_begin(&client, 1, &item, 1);
	kv_begin_expect(&other, 1, &item, 1, -EBUSY, "another session");
	item.n_new = 0;
	kv_begin(&other, 1, &item, 1);
	kv_wait(&other, 0, kv_end(&other, 0, 1, true));
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		kv_attend(&client, 0, 1, layer, numbers, 5, NULL);
	kv_wait(&client, 0, kv_end(&client, 0, 1, true));
	kv_append(&other, sequence, numbers, 5, 10);
	kv_check(&client, sequence, numbers, 0, 15);
}

/* Two clients append, and retry when refused: each token is there once, in some order. */
static int appender(void *userdata)
{
	const uint32_t mine = *(const uint32_t *)userdata;
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_BEGIN);
	struct fa_wire_step_item item = { .n_new = 1 };
	uint32_t done = 0;

	kv_open(&other, daemon_process.socket);
	item.sequence = kv_sequence_find(&other, "s");
	message.step_begin = (struct fa_wire_step_begin){ .step = 1, .items = &item, .n_items = 1 };
	while (done < 50) {
		uint32_t number = mine + done;

		fa_raw_call(&other.raw, &message, NULL, 0);
		if (other.raw.message.type == FA_WIRE_REPLY) {
			fa_check_eq(other.raw.message.reply.status, -EBUSY);
			continue;
		}
		for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
			kv_attend(&other, 0, 1, layer, &number, 1, NULL);
		kv_wait(&other, 0, kv_end(&other, 0, 1, true));
		done++;
	}
	kv_close(&other);
	return 0;
}

static void test_race(void **state)
{
	const uint32_t firsts[2] = { 1000, 2000 };
	uint64_t cache = kv_cache(&client, "c", 0), sequence = kv_sequence(&client, cache);
	struct fa_wire_message message;
	float first[KV_KV_HEADS * KV_DIM], *k, *v;
	pid_t pids[2];
	uint32_t seen[2] = { 0, 0 };

	kv_close(&other);
	kv_set_name(&client, sequence, "s", 0);
	for (int i = 0; i < 2; i++)
		pids[i] = fa_test_fork(appender, (void *)&firsts[i]);
	for (int i = 0; i < 2; i++)
		fa_check_eq(fa_test_reap(pids[i]), 0);
	fa_check_eq(kv_info(&client, sequence).length, 100);
	message = kv_copy_message(&client, 0, sequence, 0, 0, 100, false, &k, &v);
	kv_wait(&client, 0, kv_send(&client, &message, 0));
	for (int i = 0; i < 100; i++) {
		bool found = false;

		for (int j = 0; j < 2 && !found; j++) {
			kv_fill(0, firsts[j] + seen[j], first, NULL, NULL);
			found = memcmp(first, k + i * KV_KV_HEADS * KV_DIM, sizeof(first)) == 0;
			seen[j] += found;
		}
		fa_check(found);
	}
	fa_check(seen[0] == 50 && seen[1] == 50);
}

/* Nobody; the same uid reads; all read; all do everything; all append, and so read. */
static const uint32_t modes[] = { 0, 1 | 1 << 4, 2, 2 | 2 << 2 | 2 << 4, 2 << 2 };
#define N_MODES 5

static int stranger(void *userdata)
{
	static const char *const names[N_MODES] = { "s0", "s1", "s2", "s3", "s4" };
	struct fa_wire_message message;

	if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
		return 1;
	kv_open(&client, daemon_process.socket);
	for (uint32_t i = 0; i < N_MODES; i++) {
		bool append = modes[i] >> 2 & 2, fork = modes[i] >> 4 & 2;
		bool read = (modes[i] & 2) || append || fork;
		struct fa_wire_step_item item = { .n_new = 1 };

		message = fa_raw_message(FA_WIRE_SEQUENCE_FIND);
		message.sequence_find.name = (struct fa_wire_string){ names[i], 2 };
		kv_call_expect(&client, &message, -ENOENT, "there is no sequence named");
		message.sequence_find.user = ROOT;
		if (!read) {
			kv_call_expect(&client, &message, -ENOENT, "there is no sequence named");
			continue;
		}
		kv_call(&client, &message, FA_WIRE_SEQUENCE_REPLY);
		item.sequence = client.raw.message.sequence_reply.sequence;
		kv_check(&client, item.sequence, numbers, 0, 20);
		if (append) {
			kv_append(&client, item.sequence, numbers, 20, 1);
			kv_truncate(&client, item.sequence, 20);
		} else {
			kv_begin_expect(&client, 1, &item, 1, -EACCES, "append");
		}
		message = fa_raw_message(FA_WIRE_SEQUENCE_FORK);
		message.sequence_fork.sequence = item.sequence;
		message.sequence_fork.tokens = UINT64_MAX;
		if (fork)
			kv_call(&client, &message, FA_WIRE_SEQUENCE_REPLY);
		else
			kv_call_expect(&client, &message, -EACCES, "fork");
		message = fa_raw_message(FA_WIRE_SEQUENCE_FREE);
		message.sequence_free.sequence = item.sequence;
		kv_call_expect(&client, &message, -EACCES, "another tenant");
		message = fa_raw_message(FA_WIRE_SEQUENCE_SET_NAME);
		message.sequence_set_name.sequence = item.sequence;
		message.sequence_set_name.name = (struct fa_wire_string){ names[i], 2 };
		kv_call_expect(&client, &message, -EACCES, "another tenant");
	}
	/* Another user's name is free. */
	(void)kv_cache(&client, "c", 0);
	message = fa_raw_message(FA_WIRE_CACHE_FIND);
	message.cache_find.user = ROOT;
	kv_call_expect(&client, &message, -EINVAL, "without a name");
	message.cache_find.name = (struct fa_wire_string){ "c", 1 };
	kv_call(&client, &message, FA_WIRE_CACHE_REPLY);
	fa_check_eq(client.raw.message.cache_reply.uid, 0);
	message.cache_find.user = 0;
	kv_call(&client, &message, FA_WIRE_CACHE_REPLY);
	fa_check_eq(client.raw.message.cache_reply.uid, NOBODY);
	message.cache_find.user = 0x100000000;
	kv_call_expect(&client, &message, -EINVAL, "user is 4294967296");
	kv_close(&client);
	return 0;
}

static void test_rights(void **state)
{
	uint64_t cache, sequence;

	if (geteuid() != 0)
		skip();
	cache = kv_cache(&client, "c", 2 | 2 << 2);
	for (uint32_t i = 0; i < N_MODES; i++) {
		char name[3] = { 's', (char)('0' + i), 0 };

		sequence = kv_sequence(&client, cache);
		kv_append(&client, sequence, numbers, 0, 20);
		kv_set_name(&client, sequence, name, modes[i]);
	}
	fa_check_eq(fa_test_reap(fa_test_fork(stranger, NULL)), 0);
}

/* Another tenant's private prefixes are not found, nor its freed pages seen. */
static int prober(void *userdata)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_ATTACH);
	struct fa_wire_message find = fa_raw_message(FA_WIRE_PREFIX_FIND);
	uint64_t cache, sequence;

	if (setgid(SOMEBODY) < 0 || setuid(SOMEBODY) < 0)
		return 1;
	kv_open(&client, daemon_process.socket);
	cache = kv_cache_find_of(&client, ROOT, "c");
	find.prefix_find.cache = cache;
	find.prefix_find.tokens = numbers;
	find.prefix_find.n_tokens = 64;
	for (uint32_t shared = 0; shared < 2; shared++) {
		find.prefix_find.flags = shared ? FA_WIRE_PREFIX_SHARED : 0;
		kv_call(&client, &find, FA_WIRE_PREFIX_REPLY);
		fa_check_eq(client.raw.message.prefix_reply.tokens, shared ? 32 : 0);
		sequence = kv_sequence(&client, cache);
		message.sequence_attach.sequence = sequence;
		message.sequence_attach.tokens = numbers;
		message.sequence_attach.n_tokens = 64;
		message.sequence_attach.flags = shared ? FA_WIRE_PREFIX_SHARED : 0;
		kv_call(&client, &message, FA_WIRE_SEQUENCE_REPLY);
		fa_check_eq(client.raw.message.sequence_reply.matched, shared ? 32 : 0);
	}
	kv_close(&client);
	return 0;
}

static void test_other_tenants_prefixes(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_PUBLISH);
	uint64_t cache, sequence;

	if (geteuid() != 0)
		skip();
	cache = kv_cache(&client, "c", 2 | 2 << 2);
	sequence = kv_sequence(&client, cache);
	kv_append(&client, sequence, numbers, 0, 64);
	message.sequence_publish.sequence = sequence;
	message.sequence_publish.tokens = numbers;
	message.sequence_publish.n_tokens = 64;
	kv_call(&client, &message, FA_WIRE_SEQUENCE_REPLY);
	fa_check_eq(client.raw.message.sequence_reply.matched, 4);
	sequence = kv_sequence(&client, cache);
	kv_append(&client, sequence, numbers, 0, 64);
	message.sequence_publish.sequence = sequence;
	message.sequence_publish.n_tokens = 32;
	message.sequence_publish.flags = FA_WIRE_PREFIX_SHARED;
	kv_call(&client, &message, FA_WIRE_SEQUENCE_REPLY);
	fa_check_eq(client.raw.message.sequence_reply.matched, 2);
	fa_check_eq(fa_test_reap(fa_test_fork(prober, NULL)), 0);
}

/*
 * Pages are zeroed even where nothing is written: a step that attends without appending sees no old
 * data.
 */
static int scavenger(void *userdata)
{
	uint64_t cache, sequence;
	struct fa_wire_message message;
	float *k, *v;

	if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
		return 1;
	kv_open(&client, daemon_process.socket);
	cache = kv_cache_find_of(&client, ROOT, "c");
	sequence = kv_sequence(&client, cache);
	kv_begin_one(&client, 1, sequence, 1000);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++) {
		message = kv_copy_message(&client, 0, sequence, layer, 0, 1000, false, &k, &v);
		kv_wait(&client, 0, kv_send(&client, &message, 0));
		for (int i = 0; i < 1000 * KV_KV_HEADS * KV_DIM; i++)
			fa_check(k[i] == 0);
		for (int i = 0; i < 1000 * KV_KV_HEADS * KV_DIM_V; i++)
			fa_check(v[i] == 0);
	}
	kv_wait(&client, 0, kv_end(&client, 0, 1, false));
	kv_close(&client);
	return 0;
}

static void test_cleared(void **state)
{
	uint64_t cache, sequence;

	if (geteuid() != 0)
		skip();
	cache = kv_cache(&client, "c", 2 | 2 << 2);
	sequence = kv_sequence(&client, cache);
	kv_append(&client, sequence, numbers, 0, 1500);
	kv_free(&client, sequence);
	fa_check_eq(fa_test_reap(fa_test_fork(scavenger, NULL)), 0);
}

/*
 * A fork's copy of a page has nothing behind its tokens: kept tokens that were never written are
 * zeros.
 */
static int forger(void *userdata)
{
	struct fa_wire_message message;
	uint64_t sequence;
	float *k, *v;

	if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
		return 1;
	kv_open(&client, daemon_process.socket);
	sequence = kv_fork(&client, kv_sequence_find_of(&client, ROOT, "s"), UINT64_MAX);
	kv_begin_one(&client, 1, sequence, 12);
	kv_wait(&client, 0, kv_end(&client, 0, 1, true));
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++) {
		message = kv_copy_message(&client, 0, sequence, layer, 20, 12, false, &k, &v);
		kv_wait(&client, 0, kv_send(&client, &message, 0));
		for (int i = 0; i < 12 * KV_KV_HEADS * KV_DIM; i++)
			fa_check(k[i] == 0);
		for (int i = 0; i < 12 * KV_KV_HEADS * KV_DIM_V; i++)
			fa_check(v[i] == 0);
	}
	kv_truncate(&client, sequence, 20);
	kv_check(&client, sequence, numbers, 0, 20);
	kv_close(&client);
	return 0;
}

static void test_copied_tail(void **state)
{
	uint64_t cache, sequence;

	if (geteuid() != 0)
		skip();
	cache = kv_cache(&client, "c", 2 | 2 << 2);
	sequence = kv_sequence(&client, cache);
	kv_append(&client, sequence, numbers, 0, 30);
	kv_truncate(&client, sequence, 20);
	kv_set_name(&client, sequence, "s", 2 | 2 << 4);
	fa_check_eq(fa_test_reap(fa_test_fork(forger, NULL)), 0);
}

/* 8 MiB of pages of 48 KiB: 16 tokens, 16 layers, 2 heads of 16 + 8 floats. */
static void test_exhausted(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequences[2];
	struct fa_wire_step_item items[2];

	for (int i = 0; i < 2; i++)
		sequences[i] = kv_sequence(&client, cache);
	kv_append(&client, sequences[0], numbers, 0, 1500);
	items[0] = (struct fa_wire_step_item){ .sequence = sequences[0], .n_new = 1000 };
	items[1] = (struct fa_wire_step_item){ .sequence = sequences[1], .n_new = 1000 };
	kv_begin_expect(&client, 1, items, 2, -ENOMEM, "exhausted");
	fa_check_eq(kv_info(&client, sequences[0]).planned, 1500);
	kv_append(&client, sequences[1], numbers, 0, 1000);
	kv_begin_expect(&client, 1, items, 1, -ENOMEM, "exhausted");
	kv_free(&client, sequences[0]);
	kv_append(&client, sequences[1], numbers, 1000, 1000);
	kv_check(&client, sequences[1], numbers, 0, 2000);
}

static int start_with_quota(void **state)
{
	start_with("[pool]\nbytes = 8M\nchunk_bytes = 2M\n[limits]\npool_bytes = 800K\n"
	           "sequences = 3\ncaches = 2\n");
	return 0;
}

static void test_quota(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	struct fa_wire_step_item item = { .sequence = sequence, .n_new = 100 };
	struct fa_wire_message message = kv_cache_message(NULL, 0);

	kv_append(&client, sequence, numbers, 0, 200);
	kv_begin_expect(&client, 1, &item, 1, -EDQUOT, "pool_bytes");
	fa_check_eq(kv_info(&client, sequence).planned, 200);
	kv_append(&client, sequence, numbers, 200, 56);

	message.cache_create.max_pages = 2;
	kv_call(&other, &message, FA_WIRE_CACHE_REPLY);
	item.sequence = kv_sequence(&other, other.raw.message.cache_reply.cache);
	item.n_new = 33;
	kv_begin_expect(&other, 1, &item, 1, -EDQUOT, "at most 2");
	kv_free(&client, sequence);
	item.n_new = 32;
	kv_begin(&other, 1, &item, 1);

	message = kv_cache_message(NULL, 0);
	kv_call_expect(&other, &message, -EDQUOT, "limit caches, which is 2");
	for (int i = 0; i < 2; i++)
		sequence = kv_sequence(&client, cache);
	message = fa_raw_message(FA_WIRE_SEQUENCE_CREATE);
	message.sequence_create.cache = cache;
	kv_call_expect(&client, &message, -EDQUOT, "limit sequences, which is 3");
	message = fa_raw_message(FA_WIRE_SEQUENCE_FORK);
	message.sequence_fork.sequence = sequence;
	kv_call_expect(&client, &message, -EDQUOT, "limit sequences, which is 3");
	kv_free(&client, sequence);
	kv_sequence(&client, cache);
}

static int start_with_small_steps(void **state)
{
	start_with("[pool]\nbytes = 8M\nchunk_bytes = 2M\n[limits]\nstep_bytes = 25616\n");
	return 0;
}

/*
 * A step's tables are charged while it is in flight. A step of few pages fits, with the device's
 * memory for one request.
 */
static void test_step_bytes(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	struct fa_wire_step_item item = { .sequence = sequence, .n_new = 1000 };

	kv_begin_expect(&client, 1, &item, 1, -EDQUOT, "step_bytes");
	fa_check_eq(kv_info(&client, sequence).planned, 0);
	for (int i = 0; i < 3; i++) {
		kv_begin_one(&client, 1, sequence, 64);
		kv_begin_expect(&client, 2, &item, 1, -EDQUOT, "step_bytes");
		kv_wait(&client, 0, kv_end(&client, 0, 1, false));
	}
	kv_append(&client, sequence, numbers, 0, 80);
}

static void test_too_late(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	struct fa_raw_completion late;

	for (int i = 0; i < 50; i++) {
		uint64_t end, value;

		kv_begin_one(&client, 1, sequence, 16);
		for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
			kv_attend(&client, 0, 1, layer, numbers + 16 * i, 16, NULL);
		end = kv_end(&client, 0, 1, true);
		value = kv_attend(&client, 0, 1, 0, numbers, 16, NULL);
		kv_wait(&client, 0, end);
		fa_raw_wait(&client.raw, 0, value, &late);
		fa_check(late.status == -EINVAL || late.status == -ENOENT);
	}
	kv_check(&client, sequence, numbers, 0, 800);
}

static int dies_between(void *userdata)
{
	uint64_t sequence;

	kv_open(&client, daemon_process.socket);
	sequence = kv_sequence_find(&client, "s");
	kv_begin_one(&client, 1, sequence, 30);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		kv_wait(&client, 0, kv_attend(&client, 0, 1, layer, numbers + 100, 30, NULL));
	kv_begin_one(&client, 2, kv_sequence(&client, kv_cache_find(&client, "c")), 100);
	raise(SIGKILL);
	return 0;
}

static void test_killed(void **state)
{
	uint64_t cache = kv_cache(&client, "c", 0), sequence = kv_sequence(&client, cache);
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CACHE_FIND);
	struct fa_wire_cache_reply info;

	kv_append(&client, sequence, numbers, 0, 20);
	kv_set_name(&client, sequence, "s", 0);
	message.cache_find.name = (struct fa_wire_string){ "c", 1 };
	kv_call(&client, &message, FA_WIRE_CACHE_REPLY);
	info = client.raw.message.cache_reply;
	for (int i = 0; i < 20; i++) {
		int status = fa_test_reap(fa_test_fork(dies_between, NULL));

		fa_check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		fa_check_eventually(kv_info(&client, sequence).planned == 20);
		kv_check(&client, sequence, numbers, 0, 20);
		fa_check_eventually((kv_call(&client, &message, FA_WIRE_CACHE_REPLY),
		                     client.raw.message.cache_reply.used_pages == info.used_pages));
		fa_check_eq(client.raw.message.cache_reply.sequences, 1);
	}
	kv_append(&client, sequence, numbers, 20, 30);
	kv_check(&client, sequence, numbers, 0, 50);
}

/*
 * A copy for one sequence of a step does not wait for the others, so a fork can join sequences
 * whose steps are planned on one another.
 */
static void test_fork_joins(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), busy = kv_sequence(&client, cache);
	uint64_t parent = kv_sequence(&client, cache), child;
	struct fa_wire_step_item items[2];
	uint32_t news[2];

	kv_append(&client, busy, numbers, 0, 20);
	kv_append(&client, parent, numbers, 0, 20);
	child = kv_fork(&client, parent, UINT64_MAX);
	items[0] = (struct fa_wire_step_item){ .sequence = busy, .n_new = 1 };
	items[1] = (struct fa_wire_step_item){ .sequence = child, .n_new = 1 };
	kv_begin(&client, 1, items, 1);
	kv_begin(&client, 2, items, 2);
	/* A fork would need a copy of a page that a step is writing. */
	(void)kv_fork(&client, busy, UINT64_MAX);
	kv_begin_expect(&client, 3, items, 1, -EBUSY, "end that step first");
	news[0] = numbers[21];
	news[1] = numbers[20];
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++) {
		kv_attend(&client, 0, 1, layer, &numbers[20], 1, NULL);
		kv_attend(&client, 0, 2, layer, news, 2, NULL);
	}
	kv_wait(&client, 0, kv_end(&client, 0, 1, true));
	kv_wait(&client, 0, kv_end(&client, 0, 2, true));
	kv_check(&client, busy, numbers, 0, 22);
	kv_check(&client, child, numbers, 0, 21);
	kv_check(&client, parent, numbers, 0, 20);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, start, stop)
	const struct CMUnitTest tests[] = {
		TEST(two_append),
		TEST(race),
		TEST(rights),
		TEST(other_tenants_prefixes),
		TEST(cleared),
		TEST(copied_tail),
		TEST(fork_joins),
		TEST(exhausted),
		cmocka_unit_test_setup_teardown(test_quota, start_with_quota, stop),
		cmocka_unit_test_setup_teardown(test_step_bytes, start_with_small_steps, stop),
		TEST(too_late),
		TEST(killed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
