/*
 * A well-behaved client of the KV cache: append, attend, commit, read; forks, truncation, dropped
 * pages, names, prefixes, trees, and steps planned on one another.
 */
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cmocka.h>

static struct fa_test_daemon daemon_process;
static struct kv_client client;

static int start(void **state)
{
	static const struct fa_test_daemon_options options = {
		.config = "[pool]\nbytes = 16M\nchunk_bytes = 2M\n",
	};

	fa_test_daemon_start(&daemon_process, &options);
	return 0;
}

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

static int open_client(void **state)
{
	kv_open(&client, daemon_process.socket);
	return 0;
}

static int close_client(void **state)
{
	kv_close(&client);
	return 0;
}

static void test_append(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	uint32_t numbers[200];
	struct fa_wire_sequence_reply info;

	kv_count(numbers, 7, 200);
	kv_append(&client, sequence, numbers, 0, 50);
	kv_check(&client, sequence, numbers, 0, 50);
	for (uint32_t n = 50; n < 70; n++)
		kv_append(&client, sequence, numbers, n, 1);
	kv_append(&client, sequence, numbers, 70, 130);
	kv_check(&client, sequence, numbers, 0, 200);
	kv_check(&client, sequence, numbers, 33, 200);
	info = kv_info(&client, sequence);
	fa_check_eq(info.length, 200);
	fa_check_eq(info.planned, 200);
	fa_check_eq(info.first, 0);
	fa_check(info.cache == cache);
}

/* Fork and parent do not see each other's appends, though they share pages. */
static void test_fork(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), parent = kv_sequence(&client, cache), child;
	uint32_t numbers[100], others[100];

	kv_count(numbers, 1, 100);
	kv_count(others, 1, 100);
	kv_count(others + 40, 1000, 60);
	kv_append(&client, parent, numbers, 0, 60);
	child = kv_fork(&client, parent, 40);
	kv_check(&client, child, numbers, 0, 40);
	kv_append(&client, child, others, 40, 30);
	kv_append(&client, parent, numbers, 60, 40);
	kv_check(&client, parent, numbers, 0, 100);
	kv_check(&client, child, others, 0, 70);
	kv_free(&client, parent);
	kv_check(&client, child, others, 0, 70);
	child = kv_fork(&client, child, UINT64_MAX);
	kv_check(&client, child, others, 0, 70);
}

static void test_truncate_and_drop(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	uint32_t numbers[200];

	kv_count(numbers, 1, 200);
	kv_append(&client, sequence, numbers, 0, 100);
	kv_truncate(&client, sequence, 37);
	kv_check(&client, sequence, numbers, 0, 37);
	kv_count(numbers + 37, 500, 163);
	kv_append(&client, sequence, numbers, 37, 100);
	kv_check(&client, sequence, numbers, 0, 137);
	kv_drop(&client, sequence, 50);
	fa_check_eq(kv_info(&client, sequence).first, 48);
	kv_check(&client, sequence, numbers, 48, 137);
}

static void test_mixed_step(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequences[3];
	uint32_t numbers[3][100], flat[64];
	struct fa_wire_step_item items[3];
	const uint32_t old[3] = { 20, 0, 33 }, new[3] = { 5, 40, 0 };
	const float *out[KV_LAYERS];

	for (uint32_t i = 0; i < 3; i++) {
		sequences[i] = kv_sequence(&client, cache);
		kv_count(numbers[i], 1000 * i, 100);
		if (old[i])
			kv_append(&client, sequences[i], numbers[i], 0, old[i]);
		items[i] = (struct fa_wire_step_item){ .sequence = sequences[i], .n_new = new[i] };
	}
	memcpy(flat, numbers[0] + 20, 5 * sizeof(uint32_t));
	memcpy(flat + 5, numbers[1], 40 * sizeof(uint32_t));
	kv_begin(&client, 1, items, 3);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		kv_attend(&client, 0, 1, layer, flat, 45, &out[layer]);
	kv_wait(&client, 0, kv_end(&client, 0, 1, true));
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++) {
		kv_check_out(layer, numbers[0], 25, 5, out[layer]);
		kv_check_out(layer, numbers[1], 40, 40, out[layer] + 5 * KV_HEADS * KV_DIM_V);
	}
	for (uint32_t i = 0; i < 3; i++)
		kv_check(&client, sequences[i], numbers[i], 0, old[i] + new[i]);
}

static void test_two_caches(void **state)
{
	uint64_t a = kv_cache(&client, NULL, 0), b = kv_cache(&client, NULL, 0);
	uint64_t in_a = kv_sequence(&client, a), in_b = kv_sequence(&client, b);
	struct fa_wire_step_item items[2] = { { .sequence = in_a, .n_new = 3 },
		                              { .sequence = in_b, .n_new = 4 } };
	struct fa_wire_message message;
	uint32_t numbers[4];

	kv_count(numbers, 1, 4);
	kv_begin(&client, 1, items, 2);
	message = kv_attend_message(&client, 0, 1, 0, numbers, 3, NULL);
	kv_wait_expect(&client, 0, kv_send(&client, &message, 0), -EINVAL, "cache is 0");
	kv_wait_expect(&client, 0, kv_end(&client, 0, 1, true), -ECANCELED, "has failed");

	kv_begin(&client, 1, items, 2);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++) {
		message = kv_attend_message(&client, 0, 1, layer, numbers, 4, NULL);
		message.step_attend.cache = b;
		kv_send(&client, &message, 0);
		message = kv_attend_message(&client, 0, 1, layer, numbers, 3, NULL);
		message.step_attend.cache = a;
		kv_send(&client, &message, 0);
	}
	kv_wait(&client, 0, kv_end(&client, 0, 1, true));
	kv_check(&client, in_a, numbers, 0, 3);
	kv_check(&client, in_b, numbers, 0, 4);
}

static void test_abort(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	uint32_t numbers[100];

	kv_count(numbers, 1, 100);
	kv_append(&client, sequence, numbers, 0, 20);
	kv_begin_one(&client, 1, sequence, 70);
	fa_check_eq(kv_info(&client, sequence).planned, 90);
	kv_attend(&client, 0, 1, 0, numbers + 20, 70, NULL);
	kv_wait(&client, 0, kv_end(&client, 0, 1, false));
	fa_check_eq(kv_info(&client, sequence).planned, 20);
	kv_check(&client, sequence, numbers, 0, 20);
	kv_append(&client, sequence, numbers, 20, 80);
}

/* Steps are planned on earlier ones before any has ended. */
static void test_pipeline(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	const float *out[10][KV_LAYERS];
	uint64_t values[10];
	uint32_t numbers[100];

	kv_count(numbers, 1, 100);
	fa_raw_stream_create(&client.raw, 1, 1);
	for (uint32_t i = 0; i < 10; i++) {
		kv_begin_one(&client, 1 + i, sequence, 10);
		for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
			kv_attend(&client, i % 2, 1 + i, layer, numbers + 10 * i, 10,
			          &out[i][layer]);
		values[i] = kv_end(&client, i % 2, 1 + i, true);
	}
	for (uint32_t i = 0; i < 10; i++) {
		kv_wait(&client, i % 2, values[i]);
		fa_check(kv_info(&client, sequence).length >= 10 * (i + 1));
		for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
			kv_check_out(layer, numbers, 10 * i + 10, 10, out[i][layer]);
	}
	kv_check(&client, sequence, numbers, 0, 100);
	fa_raw_stream_free(&client.raw, 1);
	client.values[1] = 0;
}

static void test_pipeline_aborted(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	uint64_t other = kv_sequence(&client, cache), values[3];
	uint32_t numbers[100];

	kv_count(numbers, 1, 100);
	for (uint32_t i = 0; i < 3; i++) {
		kv_begin_one(&client, 1 + i, i < 2 ? sequence : other, 10);
		for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
			kv_attend(&client, 0, 1 + i, layer, numbers, 10, NULL);
	}
	for (uint32_t i = 0; i < 3; i++)
		values[i] = kv_end(&client, 0, 1 + i, i != 0);
	kv_wait(&client, 0, values[0]);
	kv_wait_expect(&client, 0, values[1], -ECANCELED, "aborted");
	kv_wait(&client, 0, values[2]);
	kv_check(&client, sequence, numbers, 0, 0);
	kv_check(&client, other, numbers, 0, 10);
	kv_append(&client, sequence, numbers, 0, 100);
}

static void test_copy(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	uint32_t numbers[60];
	const float *out;

	kv_count(numbers, 1, 60);
	kv_begin_one(&client, 1, sequence, 60);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		for (uint32_t at = 0; at < 60; at += 20) {
			float *k, *v;
			struct fa_wire_message message = kv_copy_message(
				&client, 0, sequence, layer, at, 20, true, &k, &v);

			for (uint32_t i = 0; i < 20; i++)
				kv_fill(layer, numbers[at + i], k + i * KV_KV_HEADS * KV_DIM,
				        v + i * KV_KV_HEADS * KV_DIM_V, NULL);
			kv_send(&client, &message, 0);
		}
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++) {
		struct fa_wire_message message = kv_attend_message(&client, 0, 1, layer, numbers,
		                                                   60, &out);

		memset(&message.step_attend.k, 0, sizeof(message.step_attend.k));
		memset(&message.step_attend.v, 0, sizeof(message.step_attend.v));
		kv_wait(&client, 0, kv_send(&client, &message, 0));
		kv_check_out(layer, numbers, 60, 60, out);
	}
	kv_wait(&client, 0, kv_end(&client, 0, 1, true));
	kv_check(&client, sequence, numbers, 0, 60);
}

static void test_names(void **state)
{
	const struct fa_wire_string name = { .text = "fable", .length = 5 };
	uint64_t cache = kv_cache(&client, "tales", 0), sequence = kv_sequence(&client, cache);
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CACHE_REMOVE);
	struct kv_client other;
	uint32_t numbers[80];

	kv_count(numbers, 1, 80);
	kv_append(&client, sequence, numbers, 0, 50);
	kv_set_name(&client, sequence, name.text, 0);
	kv_open(&other, daemon_process.socket);
	fa_check(kv_cache_find(&other, "tales") == cache);
	fa_check(kv_sequence_find(&other, "fable") == sequence);
	kv_check(&other, sequence, numbers, 0, 50);
	kv_append(&other, sequence, numbers, 50, 30);
	/* A name outlives its session. */
	kv_close(&client);
	kv_open(&client, daemon_process.socket);
	kv_check(&client, sequence, numbers, 0, 80);
	kv_close(&other);
	message.cache_remove.cache = cache;
	kv_call_expect(&client, &message, 0, NULL);
	message = fa_raw_message(FA_WIRE_SEQUENCE_INFO);
	message.sequence_info.sequence = sequence;
	kv_call_expect(&client, &message, -ESTALE, "removed");
}

static struct fa_wire_message attach_message(uint64_t sequence, const uint32_t *tokens, size_t n)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_ATTACH);

	message.sequence_attach.sequence = sequence;
	message.sequence_attach.tokens = tokens;
	message.sequence_attach.n_tokens = n;
	return message;
}

/* What a process sent before its end is handled, although the daemon sees the end first and a child
 * keeps the socket open. */
static int run_last_words(void *userdata)
{
	struct fa_wire_message message = kv_cache_message("last words", 0);
	int *pipe = userdata;
	char byte;

	kv_open(&client, daemon_process.socket);
	fa_test_daemon_signal(&daemon_process, SIGSTOP);
	for (uint64_t id = 101; id < 110; ++id) {
		struct fa_wire_message ping = fa_raw_message(FA_WIRE_PING);

		ping.id = id;
		fa_check_eq(fa_raw_send(&client.raw, &ping, NULL, 0), 0);
	}
	message.id = 110;
	fa_check_eq(fa_raw_send(&client.raw, &message, NULL, 0), 0);
	if (fork())
		return 0; /* the parent ends here */
	close(pipe[1]);
	return read(pipe[0], &byte, 1) != 0;
}

static void test_last_words(void **state)
{
	struct fa_wire_message find = fa_raw_message(FA_WIRE_CACHE_FIND);
	int pipe_fds[2];

	find.cache_find.name = (struct fa_wire_string){ "last words", 10 };
	fa_check(!pipe(pipe_fds));
	fa_check(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	fa_check_eq(fa_test_reap(fa_test_fork(run_last_words, pipe_fds)), 0);
	fa_test_daemon_signal(&daemon_process, SIGCONT);
	kv_open(&client, daemon_process.socket);
	fa_check_eventually((fa_raw_call(&client.raw, &find, NULL, 0),
	                     client.raw.message.type == FA_WIRE_CACHE_REPLY));
	kv_close(&client);
	close(pipe_fds[1]);
	fa_check_eq(fa_test_reap(-1), 0);
	close(pipe_fds[0]);
	fa_check(!prctl(PR_SET_CHILD_SUBREAPER, 0));
}

static void check_found(uint64_t cache, const uint32_t *tokens, size_t n, uint64_t expected)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_PREFIX_FIND);

	message.prefix_find.cache = cache;
	message.prefix_find.tokens = tokens;
	message.prefix_find.n_tokens = n;
	kv_call(&client, &message, FA_WIRE_PREFIX_REPLY);
	fa_check_eq(client.raw.message.prefix_reply.cache, cache);
	fa_check_eq(client.raw.message.prefix_reply.tokens, expected);
}

static void test_prefix(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache), next;
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_PUBLISH);
	uint32_t numbers[100];

	kv_count(numbers, 1, 100);
	kv_append(&client, sequence, numbers, 0, 70);
	check_found(cache, numbers, 100, 0);
	message.sequence_publish.sequence = sequence;
	message.sequence_publish.tokens = numbers;
	message.sequence_publish.n_tokens = 70;
	kv_call(&client, &message, FA_WIRE_SEQUENCE_REPLY);
	fa_check_eq(client.raw.message.sequence_reply.matched, 4);
	kv_free(&client, sequence);
	check_found(cache, numbers, 100, 64);
	check_found(cache, numbers, 63, 48);
	check_found(cache, numbers, 15, 0);
	check_found(cache, NULL, 0, 0);
	check_found(cache, numbers + 1, 64, 0);
	check_found(kv_cache(&client, NULL, 0), numbers, 100, 0);
	message = fa_raw_message(FA_WIRE_PREFIX_FIND);
	message.prefix_find.cache = sequence;
	kv_call_expect(&client, &message, -EINVAL, "expected a cache");
	message.prefix_find.cache = 0;
	kv_call_expect(&client, &message, -ENOENT, NULL);
	message.prefix_find.cache = cache;
	message.prefix_find.flags = 2;
	kv_call_expect(&client, &message, -ENOTSUP, "flags");

	next = kv_sequence(&client, cache);
	message = attach_message(next, numbers, 100);
	kv_call(&client, &message, FA_WIRE_SEQUENCE_REPLY);
	fa_check_eq(client.raw.message.sequence_reply.matched, 64);
	kv_check(&client, next, numbers, 0, 64);
	kv_append(&client, next, numbers, 64, 36);
	kv_check(&client, next, numbers, 0, 100);

	next = kv_sequence(&client, cache);
	memcpy(client.buffer.data, numbers, sizeof(numbers));
	((uint32_t *)(void *)client.buffer.data)[40]++;
	message = attach_message(next, NULL, 0);
	message.sequence_attach.tokens_view =
		(struct fa_wire_view){ .buffer = 1, .rank = 1, .shape = { 100 }, .strides = { 1 } };
	kv_call(&client, &message, FA_WIRE_SEQUENCE_REPLY);
	fa_check_eq(client.raw.message.sequence_reply.matched, 32);
	kv_check(&client, next, numbers, 0, 32);
	message.sequence_attach.tokens_view.shape[0] = 5 << 20;
	kv_call_expect(&client, &message, -EINVAL, "tokens_view");
	message.sequence_attach.tokens_view.shape[0] = 100;
	message.sequence_attach.tokens_view.offset = client.buffer.bytes - 200;
	kv_call_expect(&client, &message, -EINVAL, "out of bounds");
}

/* Hashing of many tokens is answered in order, and skipped if nobody waits. */
static void test_many_tokens(void **state)
{
	enum {
		N = 12000
	};
	uint64_t cache = kv_cache(&client, "long", 2 | 2 << 2), sequence, next;
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_PUBLISH), info;
	static uint32_t numbers[N];
	struct kv_client other;

	kv_count(numbers, 1, N);
	sequence = kv_sequence(&client, cache);
	kv_begin_one(&client, 1, sequence, N);
	kv_wait(&client, 0, kv_end(&client, 0, 1, true));
	message.sequence_publish.sequence = sequence;
	message.sequence_publish.tokens = numbers;
	message.sequence_publish.n_tokens = N;
	kv_call(&client, &message, FA_WIRE_SEQUENCE_REPLY);
	fa_check_eq(client.raw.message.sequence_reply.matched, N / KV_PAGE);
	kv_call(&client, &message, FA_WIRE_SEQUENCE_REPLY);
	fa_check_eq(client.raw.message.sequence_reply.matched, 0);

	next = kv_sequence(&client, cache);
	message = attach_message(next, numbers, N);
	info = fa_raw_message(FA_WIRE_SEQUENCE_INFO);
	info.sequence_info.sequence = next;
	message.id = 1000001;
	info.id = 1000002;
	fa_check_eq(fa_raw_send(&client.raw, &message, NULL, 0), 0);
	fa_check_eq(fa_raw_send(&client.raw, &info, NULL, 0), 0);
	for (uint64_t id = 1000001; id <= 1000002; id++) {
		fa_raw_receive_reply(&client.raw);
		fa_check_eq(client.raw.message.id, id);
		fa_check_eq(client.raw.message.type, FA_WIRE_SEQUENCE_REPLY);
		fa_check_eq(client.raw.message.sequence_reply.length, N);
	}
	kv_call_expect(&client, &message, -EINVAL, "12000 tokens; expected an empty one");

	for (int i = 0; i < 30; i++) {
		kv_open(&other, daemon_process.socket);
		message = attach_message(kv_sequence(&other, cache), numbers, N);
		message.id = 1000003;
		fa_check_eq(fa_raw_send(&other.raw, &message, NULL, 0), 0);
		kv_close(&other);
	}
	message = fa_raw_message(FA_WIRE_CACHE_FIND);
	message.cache_find.name = (struct fa_wire_string){ "long", 4 };
	fa_check_eventually((kv_call(&client, &message, FA_WIRE_CACHE_REPLY),
	                     client.raw.message.cache_reply.sequences == 2));
	message = fa_raw_message(FA_WIRE_CACHE_REMOVE);
	message.cache_remove.cache = cache;
	kv_call_expect(&client, &message, 0, NULL);
}

/*
 * Five tokens behind 21: 0 and 1 are roots, 2 follows 0, 3 and 4 follow 2. The path 0, 2, 4 is
 * kept.
 */
static void test_tree(void **state)
{
	const uint32_t masks[5] = { 1 << 0, 1 << 1, 1 << 0 | 1 << 2, 1 << 0 | 1 << 2 | 1 << 3,
		                    1 << 0 | 1 << 2 | 1 << 4 };
	const uint32_t starts[1] = { 0 }, keep[3] = { 0, 2, 4 }, cu_keep[2] = { 0, 3 };
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_BEGIN);
	struct fa_wire_step_item item = { .sequence = sequence, .n_new = 5 };
	const float *out[KV_LAYERS];
	uint32_t numbers[40], path[40];

	kv_count(numbers, 1, 40);
	kv_append(&client, sequence, numbers, 0, 21);
	message.step_begin = (struct fa_wire_step_begin){
		.step = 1,
		.items = &item,
		.n_items = 1,
		.tree = masks,
		.n_tree = 5,
		.tree_start = starts,
		.n_tree_start = 1,
	};
	kv_call(&client, &message, FA_WIRE_STEP_REPLY);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		kv_attend(&client, 0, 1, layer, numbers + 21, 5, &out[layer]);
	message = fa_raw_message(FA_WIRE_STEP_END);
	message.step_end = (struct fa_wire_step_end){
		.value = ++client.values[0],
		.step = 1,
		.flags = FA_WIRE_STEP_COMMIT,
		.keep = keep,
		.n_keep = 3,
		.cu_keep = cu_keep,
		.n_cu_keep = 2,
	};
	kv_wait(&client, 0, kv_send(&client, &message, 0));

	memcpy(path, numbers, sizeof(path));
	path[22] = numbers[23];
	path[23] = numbers[25];
	kv_check(&client, sequence, path, 0, 24);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		kv_check_out(layer, path, 24, 1, out[layer] + 4 * KV_HEADS * KV_DIM_V);
	kv_count(path + 24, 700, 10);
	kv_append(&client, sequence, path, 24, 10);
}

static void test_keep_none(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_END);
	const uint32_t cu_keep[2] = { 0 };
	uint32_t numbers[40];

	kv_count(numbers, 1, 40);
	kv_append(&client, sequence, numbers, 0, 21);
	kv_begin_one(&client, 1, sequence, 5);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		kv_attend(&client, 0, 1, layer, numbers + 30, 5, NULL);
	message.step_end = (struct fa_wire_step_end){
		.value = ++client.values[0],
		.step = 1,
		.flags = FA_WIRE_STEP_COMMIT,
		.cu_keep = cu_keep,
		.n_cu_keep = 2,
	};
	kv_wait(&client, 0, kv_send(&client, &message, 0));
	kv_check(&client, sequence, numbers, 0, 21);
	kv_append(&client, sequence, numbers, 21, 19);
}

static void test_rotary(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	struct fa_wire_message message;
	float k[KV_KV_HEADS * KV_DIM], *got_k, *got_v;
	const float *out;
	uint32_t numbers[30];

	kv_count(numbers, 1, 30);
	kv_begin_one(&client, 1, sequence, 30);
	message = kv_attend_message(&client, 0, 1, 0, numbers, 30, &out);
	message.step_attend.rotary_dim = 8;
	message.step_attend.rotary_base = 10000;
	message.step_attend.rotary_scale = 1;
	kv_send(&client, &message, 0);
	kv_attend(&client, 0, 1, 1, numbers, 30, NULL);
	kv_wait(&client, 0, kv_end(&client, 0, 1, true));
	message = kv_copy_message(&client, 0, sequence, 0, 0, 30, false, &got_k, &got_v);
	kv_wait(&client, 0, kv_send(&client, &message, 0));
	for (uint32_t i = 0; i < 30; i++) {
		kv_fill(0, numbers[i], k, NULL, NULL);
		for (uint32_t h = 0; h < KV_KV_HEADS; h++)
			for (uint32_t d = 0; d < KV_DIM; d++) {
				double a = i * pow(10000, -2.0 * (d % 4) / 8);
				double x = k[h * KV_DIM + d], want = x;

				if (d < 4)
					want = x * cos(a) - k[h * KV_DIM + d + 4] * sin(a);
				else if (d < 8)
					want = x * cos(a) + k[h * KV_DIM + d - 4] * sin(a);
				fa_check(fabs(want - got_k[(i * KV_KV_HEADS + h) * KV_DIM + d]) <
				         1e-5);
			}
	}
	for (uint32_t i = 0; i < 30 * KV_HEADS * KV_DIM_V; i++)
		fa_check(isfinite(out[i]));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, open_client, close_client)
	const struct CMUnitTest tests[] = {
		TEST(append),
		TEST(fork),
		TEST(truncate_and_drop),
		TEST(mixed_step),
		TEST(two_caches),
		TEST(abort),
		TEST(pipeline),
		TEST(pipeline_aborted),
		TEST(copy),
		TEST(names),
		cmocka_unit_test(test_last_words),
		TEST(prefix),
		TEST(many_tokens),
		TEST(tree),
		TEST(keep_none),
		TEST(rotary),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
