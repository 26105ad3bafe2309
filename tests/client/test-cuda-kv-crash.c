/*
 * The daemon with a GPU dies under load (kv-load.h), of SIGKILL and of a sticky error: an
 * illegal address, after which it exits with the status that asks for a new start, which it
 * gets. All durable tokens are there afterwards but those of sequences that a step was
 * writing to when the GPU was lost. In the end nothing is held but what the pool has: no
 * page, allocation, mapping or descriptor is left over.
 */
#include "client/faclient.h"
#include "common/cleanup.h"
#include "tests/client/kv-load.h"
#include "tests/cuda-driver/control.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

#include <cmocka.h>

#define CHUNK_BYTES (2u << 20)

static struct fa_test_cuda cuda;
static struct fa_test_daemon supervisor;

static int kills(void)
{
	return fa_test_long() ? 200 : 20;
}

static int setup(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options options = {
		.args = args, .config = "[pool]\nbytes = 4G\nchunk_bytes = 2M\n"
	};

	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&supervisor, &options);
	return 0;
}

/* The supervisor's, when there is no chunk and what it had for its own start is closed. */
static int count_first_fds(void)
{
	struct fa_options options = { .size = sizeof(options), .socket = supervisor.socket };
	pid_t first = kv_load_daemon(supervisor.pid);
	struct fa_client *client;

	fa_check(first > 0 && !kill(first, SIGKILL));
	(void)kv_load_next_daemon(supervisor.pid, first);
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_disconnect(client);
	return fa_test_count_fds(supervisor.pid);
}

static int teardown(void **state)
{
	fa_test_daemon_stop(&supervisor);
	fa_test_cuda_end(&cuda);
	return 0;
}

static long long pool_number(const json_t *status, const char *key)
{
	const json_t *value = json_object_get(json_object_get(status, "pool"), key);

	fa_check(json_is_integer(value));
	return json_integer_value(value);
}

static json_t *status_of(struct fa_client *client)
{
	_fa_cleanup_(fa_freep) char *text = NULL;
	json_t *json;

	fa_check_eq(fa_status(client, &text), 0);
	json = json_loads(text, 0, NULL);
	fa_check(json);
	return json;
}

static int64_t live(const struct fa_test_cuda_page *page, enum fa_test_cuda_live what)
{
	struct fa_test_cuda_lives lives;

	fa_test_cuda_lives(page, &lives);
	return lives.n[what];
}

/*
 * @first_fds: the supervisor's when it had no chunk. The daemon has chunks mapped, holds no
 * handle of one, and its clients' memory is gone.
 */
static void check_nothing_left(int first_fds)
{
	struct fa_options options = { .size = sizeof(options), .socket = supervisor.socket };
	struct fa_test_cuda_page *page;
	struct fa_client *client;
	long long chunks;
	json_t *status;

	fa_check_eq(fa_connect(&options, &client), 0);
	for (;;) {
		status = status_of(client);
		if (!pool_number(status, "caches"))
			break;
		json_decref(status);
		fa_test_sleep_ms(5);
	}
	fa_check_eq(pool_number(status, "sequences"), 0);
	fa_check_eq(pool_number(status, "used_bytes"), 0);
	fa_check_eq(pool_number(status, "steps"), 0);
	chunks = pool_number(status, "chunks");
	fa_check(chunks > 0);
	page = fa_test_cuda_attach(&cuda, kv_load_daemon(supervisor.pid));
	fa_check_eventually(live(page, FA_TEST_CUDA_REGISTRATIONS) == 0);
	fa_check_eq(live(page, FA_TEST_CUDA_MAPPINGS), chunks);
	fa_check_eq(live(page, FA_TEST_CUDA_HANDLES), 0);
	fa_check_eq(live(page, FA_TEST_CUDA_RESERVATIONS), 1);
	fa_check_eq(fa_test_count_fds(supervisor.pid), first_fds + chunks);
	fa_check_eq(fa_test_cuda_misuses(page), 0);
	fa_test_cuda_detach(page);
	json_decref(status);
	fa_disconnect(client);
}

static void test_killed(void **state)
{
	const int first_fds = count_first_fds();
	struct fa_test_random random = { .state = 7 };

	kv_load_begin(supervisor.socket, false);
	for (int i = 0; i < kills(); ++i) {
		uint64_t before = kv_load_progress();
		pid_t pid = kv_load_daemon(supervisor.pid);

		fa_check_eventually(kv_load_progress() > before + 20);
		for (uint64_t k = fa_test_random_below(&random, 12); k; --k)
			fa_test_sleep_ms(1);
		fa_check(pid > 0 && !kill(pid, SIGKILL));
		(void)kv_load_next_daemon(supervisor.pid, pid);
	}
	kv_load_end();
	check_nothing_left(first_fds);
}

static void test_faults(void **state)
{
	const int first_fds = count_first_fds();
	struct fa_test_random random = { .state = 8 };

	kv_load_begin(supervisor.socket, true);
	for (int i = 0; i < kills(); ++i) {
		uint64_t before = kv_load_progress();
		pid_t pid = kv_load_daemon(supervisor.pid);
		struct fa_test_cuda_page *page = fa_test_cuda_attach(&cuda, pid);
		char text[64], said[64];

		fa_check_eventually(kv_load_progress() > before + 20);
		snprintf(text, sizeof(text), "kernel:%llu=700",
		         1 + (unsigned long long)fa_test_random_below(&random, 10));
		/* Kernels begin meanwhile, and the one that is meant may have been before. */
		while (!fa_test_cuda_is_lost(page)) {
			fa_test_cuda_fail(page, text);
			fa_test_sleep_ms(20);
		}
		(void)kv_load_next_daemon(supervisor.pid, pid);
		fa_check_eq(fa_test_cuda_misuses(page), 0);
		fa_test_cuda_detach(page);
		snprintf(said, sizeof(said), "fad (%ld) exited with status %d", (long)pid,
		         EX_TEMPFAIL);
		fa_test_daemon_log_wait(&supervisor, said);
	}
	kv_load_end();
	check_nothing_left(first_fds);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_faults, setup, teardown),
	};

	return cmocka_run_group_tests_name("cuda-kv-crash", tests, NULL, NULL);
}
