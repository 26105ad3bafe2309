/*
 * Driver calls fail one after another under a client of the KV cache. Each step and copy succeeds
 * or reports the failure, the next one succeeds, and nothing leaks. A chunk that cannot be made now
 * is made later; so is the pool restored, or dropped if it never can be.
 */
#include "client/faclient.h"
#include "tests/client/kv-load.h"
#include "tests/client/kv.h"
#include "tests/cuda-driver/control.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct fa_test_cuda cuda;
static struct fa_test_daemon daemon_;
static struct fa_client *client;
static struct kv kv;

static void start(const char *const *args)
{
	const struct fa_test_daemon_options daemon_options = {
		.args = args, .config = "[pool]\nbytes = 8M\nchunk_bytes = 2M\n"
	};
	struct fa_options options = { .size = sizeof(options) };

	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&daemon_, &daemon_options);
	options.socket = daemon_.socket;
	options.reconnect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	kv_init(&kv, client, NULL, 0);
}

static void stop(void)
{
	kv_deinit(&kv);
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon_);
	fa_test_cuda_end(&cuda);
}

static int append(uint64_t sequence, const uint32_t *tags, uint32_t length, uint32_t n_new)
{
	const struct kv_item item = {
		.sequence = sequence, .tags = tags, .length = length, .n_new = n_new
	};
	struct fa_step *step;
	int r;

	r = kv_begin(&kv, &item, 1, &step);
	if (r < 0)
		return r;
	r = kv_attend(&kv, step, &item, 1, 0, true);
	if (r == 0)
		r = fa_step_commit(step, NULL, NULL);
	if (r == 0)
		kv_check_out(&kv, &item, 1);
	fa_step_free(step);
	return r;
}

/* Uses new pages, a copied shared page, a write without attention, and reads. */
static int use(void)
{
	uint32_t tags[64], length = 0;
	uint64_t sequence, fork = 0;
	int r;

	for (uint32_t i = 0; i < 64; ++i)
		tags[i] = i + 1;
	r = fa_sequence_create(client, kv.cache, &sequence);
	if (r < 0)
		return r;
	r = append(sequence, tags, 20, 20);
	if (r == 0)
		r = fa_sequence_fork(client, sequence, 10, &fork);
	if (r == 0)
		r = append(fork, tags, 13, 3);
	if (r == 0)
		r = kv_check_pages(&kv, fork, tags, 0, 13);
	if (r == 0)
		length = 20;
	if (r == 0)
		r = append(sequence, tags, 21, 1);
	if (r == 0)
		r = kv_check_pages(&kv, sequence, tags, 0, length + 1);
	fa_check_eq(fa_sequence_remove(client, sequence), 0);
	if (fork)
		fa_check_eq(fa_sequence_remove(client, fork), 0);
	return r;
}

static bool is_unused(void)
{
	struct fa_cache_info info = { .size = sizeof(info) };

	fa_check_eq(fa_cache_info(client, kv.cache, &info), 0);
	return info.used_pages == 0 && info.sequences == 0;
}

static void test_each_call(void **state)
{
	static const CUresult codes[] = { CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE };
	static const char *const calls[] = { "cuMemcpyHtoDAsync", "cuLaunchKernel", "cuMemAlloc",
		                             "cuMemsetD8Async" };
	struct fa_test_cuda_page *page;
	struct fa_test_cuda_lives lives;
	int n_refused = 0;

	start(NULL);
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
	for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); ++i)
		for (size_t j = 0; j < sizeof(calls) / sizeof(*calls); ++j)
			for (int n = 1;; ++n) {
				const uint64_t failed = fa_test_cuda_failed(page);
				char rule[64];
				int r;

				snprintf(rule, sizeof(rule), "%s:%d=%d", calls[j], n, codes[i]);
				fa_test_cuda_fail(page, rule);
				r = use();
				fa_test_cuda_fail(page, NULL);
				if (r < 0)
					fa_check(strlen(fa_error()) > 10);
				n_refused += r < 0;
				fa_check_eq(use(), 0);
				fa_check_eventually(is_unused());
				if (fa_test_cuda_failed(page) == failed) {
					fa_check_eq(r, 0);
					break;
				}
				fa_check(n < 1000);
			}
	fa_check(n_refused > 10);
	fa_test_cuda_lives(page, &lives);
	fa_check_eq(lives.n[FA_TEST_CUDA_HANDLES], 0);
	fa_check_eq(lives.n[FA_TEST_CUDA_MAPPINGS], 1);
	fa_check_eq(fa_test_cuda_misuses(page), 0);
	fa_test_cuda_detach(page);
	stop();
}

static void test_chunk_is_retried(void **state)
{
	static const char *const rules[] = { "cuMemCreate:1=2", "cuMemMap:1=2",
		                             "cuMemSetAccess:1=1",
		                             "cuMemExportToShareableHandle:1=1" };

	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); ++i) {
		struct fa_test_cuda_page *page;
		struct fa_test_cuda_lives lives;
		uint64_t failed;

		start(NULL);
		page = fa_test_cuda_attach(&cuda, daemon_.pid);
		failed = fa_test_cuda_failed(page);
		fa_test_cuda_fail(page, rules[i]);
		fa_check_eq(use(), -ENOMEM);
		fa_check_eq(fa_test_cuda_failed(page), failed + 1);
		fa_test_cuda_lives(page, &lives);
		fa_check_eq(lives.n[FA_TEST_CUDA_HANDLES], 0);
		fa_check_eq(lives.n[FA_TEST_CUDA_MAPPINGS], 0);
		fa_check_eventually(use() == 0);
		fa_test_daemon_log_wait(&daemon_, "the pool stays at 0 chunks");
		fa_test_cuda_detach(page);
		stop();
	}
}

static void test_pool_dropped(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	static const char *const rules[] = {
		"cuMemImportFromShareableHandle:1=1",
		"cuMemGetAllocationPropertiesFromHandle:1=1",
	};

	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); ++i) {
		struct fa_test_cuda_page *page;
		uint64_t sequence;
		uint32_t tag = 1;
		pid_t pid;
		int r;

		fa_check(!setenv("FAD_TEST_CUDA_FAIL", rules[i], 1));
		start(args);
		fa_check(!unsetenv("FAD_TEST_CUDA_FAIL"));
		fa_check_eq(fa_sequence_create(client, kv.cache, &sequence), 0);
		fa_check_eq(append(sequence, &tag, 1, 1), 0);
		pid = fa_test_daemon_child(&daemon_);
		fa_check(pid > 0 && !kill(pid, SIGKILL));
		pid = fa_test_daemon_next_child(&daemon_, pid);
		fa_test_daemon_log_wait(&daemon_, "the persisted KV pool is dropped");
		do
			r = append(sequence, &tag, 1, 1);
		while (r == -ECONNRESET);
		fa_check(r < 0);
		kv_deinit(&kv);
		kv_init(&kv, client, NULL, 0);
		fa_check_eq(use(), 0);
		page = fa_test_cuda_attach(&cuda, pid);
		fa_check_eq(fa_test_cuda_misuses(page), 0);
		fa_test_cuda_detach(page);
		stop();
	}
}

/* A daemon without memory or descriptors leaves the pool to the next one. */
static void test_pool_restored_later(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	static const char *const rules[] = {
		"cuMemImportFromShareableHandle:1=2",
		"cuMemImportFromShareableHandle:1=304",
		"cuMemGetAllocationPropertiesFromHandle:1=2",
		"cuMemMap:1=2",
		"cuMemSetAccess:1=2",
		"cuMemAddressReserve:1=2",
		"cuMemHostAlloc:2=1",
	};
	uint32_t tags[20];
	uint64_t sequence;

	for (uint32_t i = 0; i < 20; ++i)
		tags[i] = i + 1;
	start(args);
	fa_check_eq(fa_sequence_create(client, kv.cache, &sequence), 0);
	fa_check_eq(append(sequence, tags, 20, 20), 0);
	for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); ++i) {
		pid_t pid = fa_test_daemon_child(&daemon_);
		int r;

		fa_test_cuda_fail_next(&cuda, rules[i]);
		fa_check(pid > 0 && !kill(pid, SIGKILL));
		fa_test_daemon_log_wait(&daemon_, "the persisted KV pool cannot be recovered");
		fa_test_cuda_fail_next(&cuda, NULL);
		do
			r = kv_check_pages(&kv, sequence, tags, 0, 20);
		while (r == -ECONNRESET);
		fa_check_eq(r, 0);
	}
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_call),
		cmocka_unit_test(test_chunk_is_retried),
		cmocka_unit_test(test_pool_dropped),
		cmocka_unit_test(test_pool_restored_later),
	};

	return cmocka_run_group_tests_name("cuda-kv-faults", tests, NULL, NULL);
}
