/* Driver calls of a one-sequence step: its kernels, and one copy of tables for all layers. */
#include "client/faclient.h"
#include "tests/client/kv-load.h"
#include "tests/client/kv.h"
#include "tests/cuda-driver/control.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The sequence stays within a page: a new page would be cleared. */
#define LENGTH 49
#define STEPS 15

static struct fa_test_cuda cuda;
static struct fa_test_daemon daemon_;
static struct fa_test_cuda_page *page;
static struct fa_client *client;
static struct kv kv;

static uint64_t called(const struct fa_test_cuda_calls *before, enum fa_test_cuda_call call)
{
	struct fa_test_cuda_calls now;

	fa_test_cuda_calls(page, &now);
	return now.n[call] - before->n[call];
}

static int start(void **state)
{
	static const struct fa_test_cuda_calls none;
	struct fa_options options = { .size = sizeof(options) };

	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&daemon_, NULL);
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
	/*
	 * Both threads that launch kernels (loop and engine) set their context before the first
	 * request.
	 */
	fa_check_eventually(called(&none, FA_TEST_CUDA_cuCtxSetCurrent) >= 2);
	options.socket = daemon_.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	kv_init(&kv, client, NULL, 0);
	return 0;
}

static int stop(void **state)
{
	kv_deinit(&kv);
	fa_disconnect(client);
	fa_test_cuda_detach(page);
	fa_test_daemon_stop(&daemon_);
	fa_test_cuda_end(&cuda);
	return 0;
}

static void run_step(const struct kv_item *items, uint32_t n_items)
{
	struct fa_step *step;

	fa_check_eq(kv_begin(&kv, items, n_items, &step), 0);
	fa_check_eq(kv_attend(&kv, step, items, n_items, 0, true), 0);
	fa_check_eq(fa_step_commit(step, NULL, NULL), 0);
	kv_check_out(&kv, items, n_items);
	fa_step_free(step);
}

static void test_decode(void **state)
{
	uint32_t tags[LENGTH + STEPS];
	struct fa_test_cuda_calls before;
	struct kv_item item = { .tags = tags, .length = LENGTH, .n_new = LENGTH };

	for (uint32_t i = 0; i < LENGTH + STEPS; ++i)
		tags[i] = i + 1;
	fa_test_cuda_calls(page, &before);
	fa_check_eq(fa_sequence_create(client, kv.cache, &item.sequence), 0);
	run_step(&item, 1);
	fa_check_eventually(called(&before, FA_TEST_CUDA_cuMemHostRegister) > 0);

	item.n_new = 1;
	fa_test_cuda_calls(page, &before);
	for (uint32_t i = 0; i < STEPS; ++i) {
		++item.length;
		run_step(&item, 1);
	}
	fa_check_eq(called(&before, FA_TEST_CUDA_kernel), 2 * KV_LAYERS * STEPS);
	fa_check_eq(called(&before, FA_TEST_CUDA_cuMemcpyHtoDAsync), STEPS);
	fa_check_eq(called(&before, FA_TEST_CUDA_cuStreamWriteValue64), 0);
	fa_check_eq(called(&before, FA_TEST_CUDA_cuCtxSetCurrent), 0);
	fa_check_eq(fa_sequence_remove(client, item.sequence), 0);
}

/* With many new tokens the tables are copied, once for all layers. */
static void test_prefill(void **state)
{
	uint32_t tags[KV_ROWS_MAX];
	struct fa_test_cuda_calls before;
	struct kv_item item = { .tags = tags, .length = KV_ROWS_MAX, .n_new = KV_ROWS_MAX };

	for (uint32_t i = 0; i < KV_ROWS_MAX; ++i)
		tags[i] = i + 1;
	fa_check_eq(fa_sequence_create(client, kv.cache, &item.sequence), 0);
	fa_test_cuda_calls(page, &before);
	run_step(&item, 1);
	fa_check_eq(called(&before, FA_TEST_CUDA_cuMemcpyHtoDAsync), 2 + 1);
	fa_check_eq(fa_sequence_remove(client, item.sequence), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decode),
		cmocka_unit_test(test_prefill),
	};

	return cmocka_run_group_tests_name("cuda-kv-calls", tests, start, stop);
}
