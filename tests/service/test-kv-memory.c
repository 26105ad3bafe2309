/*
 * The KV cache of a daemon with a GPU, real or the tests' CUDA driver: q, k, v and out in each
 * kind of client memory, in steps and in copies; one kind appends to a sequence that another
 * reads.
 *
 * Skips (77) where no daemon with a GPU can be started.
 */
#include "client/faclient.h"
#include "demo/memory.h"
#include "tests/client/kv.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define KINDS (DEMO_CUDA_FD + 1)
#define CACHE "kv-memory"

static struct fa_test_daemon daemon_process;

static void must(int r, const char *what)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%s: %d, %s", what, r, fa_error());
}

static void move(void *userdata, bool to_device)
{
	struct demo_memory *memory = userdata;

	fa_check_eq(to_device ? demo_memory_push(memory) : demo_memory_pull(memory), 0);
}

static struct demo_memory *open_memory(struct kv *kv, struct fa_client *client, uint64_t cache,
                                       enum demo_memory_kind kind)
{
	struct demo_memory *memory;
	char text[256];

	if (demo_memory_new(client, kind, KV_BUFFER_BYTES, text, sizeof(text), &memory) < 0)
		fa_test_fail(__FILE__, __LINE__, "%s: %s", demo_memory_name(kind), text);
	kv_init_over(kv, client, cache, demo_memory_buffer(memory), demo_memory_host(memory));
	kv->move = move;
	kv->userdata = memory;
	return memory;
}

static void append(struct kv *kv, const struct kv_item *item, bool writes)
{
	struct fa_step *step;

	must(kv_begin(kv, item, 1, &step), "begin");
	if (writes) {
		must(kv_write(kv, item), "write");
	} else {
		must(kv_attend(kv, step, item, 1, 0, true), "attend");
		kv_check_out(kv, item, 1);
	}
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
}

/* A single child tests all kinds, so that one sequence is used from buffers of different kinds. */
static int child(void *userdata)
{
	static const uint32_t lengths[] = { 5, 16, 100, 33, 1, 70 };
	struct fa_options options = { .size = sizeof(options), .socket = daemon_process.socket };
	struct demo_memory *memories[KINDS];
	struct kv kvs[KINDS], plain;
	uint32_t tags[1024], length = 0;
	struct fa_client *client;
	uint64_t sequence;

	for (uint32_t i = 0; i < 1024; ++i)
		tags[i] = i + 1;
	fa_check_eq(fa_connect(&options, &client), 0);
	kv_init(&plain, client, CACHE, 0);
	must(fa_sequence_create(client, plain.cache, &sequence), "create");
	for (int kind = 0; kind < KINDS; ++kind)
		memories[kind] = open_memory(&kvs[kind], client, plain.cache,
		                             (enum demo_memory_kind)kind);
	for (uint32_t i = 0; i < 4 * sizeof(lengths) / sizeof(*lengths) && length < 700; ++i) {
		const uint32_t n_new = lengths[i % (sizeof(lengths) / sizeof(*lengths))];
		struct kv_item item = {
			.sequence = sequence, .tags = tags, .length = length + n_new, .n_new = n_new
		};

		append(&kvs[i % KINDS], &item, i % 3 == 2);
		length += n_new;
		for (int kind = 0; kind < KINDS; ++kind)
			must(kv_check_pages(&kvs[kind], sequence, tags, 0, length), "read");
	}
	for (int kind = 0; kind < KINDS; ++kind) {
		kv_deinit(&kvs[kind]);
		demo_memory_free(memories[kind]);
	}
	kv_check_sequence(&plain, sequence, tags, length, 0);
	kv_deinit(&plain);
	fa_disconnect(client);
	return 0;
}

static void test_kinds(void **state)
{
	static const char *const args[] = { "--backend", "cuda", NULL };
	const struct fa_test_daemon_options options = { .args = args };

	if (!fa_test_daemon_try(&daemon_process, &options)) {
		char *log = fa_test_daemon_log(&daemon_process);

		fa_test_daemon_reap(&daemon_process);
		printf("no daemon with a GPU: %s", log);
		free(log);
		exit(77);
	}
	fa_check_eq(fa_test_reap(fa_test_fork(child, NULL)), 0);
	fa_test_daemon_stop(&daemon_process);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds),
	};

	return cmocka_run_group_tests_name("kv-memory", tests, NULL, NULL);
}
