/*
 * The daemon dies under load (kv-load.h) on the tests' CUDA driver, by SIGKILL and by a sticky
 * error, after which it asks for a restart by its exit status. All committed tokens survive, except
 * in sequences that a step was writing when the GPU was lost. In the end only the pool holds pages,
 * allocations, mappings or descriptors.
 */
#include "client/faclient.h"
#include "common/cleanup.h"
#include "tests/client/kv-load.h"
#include "tests/client/kv.h"
#include "tests/cuda-driver/control.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

#include <cmocka.h>

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

/*
 * Returns how many descriptors the supervisor has while the KV pool has no chunks: kills the first
 * daemon, connects to its successor, and waits until the number stays the same.
 */
static int count_first_fds(void)
{
	struct fa_options options = { .size = sizeof(options), .socket = supervisor.socket };
	pid_t first = fa_test_daemon_child(&supervisor);
	struct fa_client *client;
	int n;

	options.connect_ns = fa_test_patience_ns();
	fa_check(first > 0 && !kill(first, SIGKILL));
	(void)fa_test_daemon_next_child(&supervisor, first);
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_disconnect(client);
	/* The daemon may serve before the supervisor has its descriptors. */
	n = fa_test_count_fds(supervisor.pid);
	for (int calm = 0; calm < 100; ++calm) {
		const int before = n;

		fa_test_quiet_ms(10);
		n = fa_test_count_fds(supervisor.pid);
		if (n != before)
			calm = 0;
	}
	return n;
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

static long long count_chunks(struct fa_client *client)
{
	json_t *status = status_of(client);
	long long chunks = pool_number(status, "chunks");

	json_decref(status);
	return chunks;
}

/*
 * The daemon maps each chunk, the supervisor holds its descriptor, nobody its handle. Waits:
 * descriptors may be on their way, and empty chunks are freed with a delay.
 */
static bool has_chunks_alone(struct fa_client *client, const struct fa_test_cuda_page *page,
                             int first_fds)
{
	const long long chunks = count_chunks(client);

	return live(page, FA_TEST_CUDA_MAPPINGS) == chunks &&
	       live(page, FA_TEST_CUDA_HANDLES) == 0 &&
	       live(page, FA_TEST_CUDA_RESERVATIONS) == 1 &&
	       fa_test_count_fds(supervisor.pid) == first_fds + chunks &&
	       count_chunks(client) == chunks;
}

/* Nothing but chunks may be left. @first_fds: the supervisor's descriptors without chunks. */
static void check_nothing_left(int first_fds)
{
	struct fa_options options = { .size = sizeof(options), .socket = supervisor.socket };
	struct fa_test_cuda_page *page;
	struct fa_client *client;
	uint64_t pause_ns = 0;
	json_t *status;

	options.connect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check(count_chunks(client) > 0);
	for (;;) {
		status = status_of(client);
		if (!pool_number(status, "caches"))
			break;
		json_decref(status);
		fa_test_poll_pause(&pause_ns);
	}
	fa_check_eq(pool_number(status, "sequences"), 0);
	fa_check_eq(pool_number(status, "used_bytes"), 0);
	fa_check_eq(pool_number(status, "steps"), 0);
	page = fa_test_cuda_attach(&cuda, fa_test_daemon_child(&supervisor));
	fa_check_eventually(live(page, FA_TEST_CUDA_REGISTRATIONS) == 0);
	fa_check_eventually(has_chunks_alone(client, page, first_fds));
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
		pid_t pid = fa_test_daemon_child(&supervisor);

		fa_check_eventually(kv_load_progress() > before + 20);
		fa_test_any_moment_us(fa_test_random_below(&random, 12000));
		fa_check(pid > 0 && !kill(pid, SIGKILL));
		(void)fa_test_daemon_next_child(&supervisor, pid);
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
		pid_t pid = fa_test_daemon_child(&supervisor);
		struct fa_test_cuda_page *page = fa_test_cuda_attach(&cuda, pid);
		char text[64], said[64];

		fa_check_eventually(kv_load_progress() > before + 20);
		snprintf(text, sizeof(text), "kernel:%llu=700",
		         1 + (unsigned long long)fa_test_random_below(&random, 10));
		/* The fault may hit another kernel: set it again until the GPU is lost. */
		while (!fa_test_cuda_is_lost(page)) {
			fa_test_cuda_fail(page, text);
			fa_test_quiet_ms(20);
		}
		(void)fa_test_daemon_next_child(&supervisor, pid);
		fa_check_eq(fa_test_cuda_misuses(page), 0);
		fa_test_cuda_detach(page);
		snprintf(said, sizeof(said), "fad (%ld) exited with status %d", (long)pid,
		         EX_TEMPFAIL);
		fa_test_daemon_log_wait(&supervisor, said);
	}
	kv_load_end();
	check_nothing_left(first_fds);
}

struct owner {
	struct fa_client *client;
	uint32_t tags[KV_PAGE_TOKENS + 3];
	struct kv_item item;
	struct kv kv;
};

static void owner_begin(struct owner *owner)
{
	struct fa_options options = { .size = sizeof(options), .socket = supervisor.socket };
	const uint32_t n = sizeof(owner->tags) / sizeof(*owner->tags);
	struct fa_step *step;

	options.reconnect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &owner->client), 0);
	kv_init(&owner->kv, owner->client, NULL, 0);
	owner->item = (struct kv_item){ .tags = owner->tags, .length = n, .n_new = n };
	fa_check_eq(fa_sequence_create(owner->client, owner->kv.cache, &owner->item.sequence), 0);
	for (uint32_t i = 0; i < n; ++i)
		owner->tags[i] = i + 1;
	fa_check_eq(kv_begin(&owner->kv, &owner->item, 1, &step), 0);
	fa_check_eq(kv_attend(&owner->kv, step, &owner->item, 1, 0, true), 0);
	fa_check_eq(fa_step_commit(step, NULL, NULL), 0);
	fa_step_free(step);
}

/* The dead daemon's successor must have all of the client's state. */
static void owner_check(struct owner *owner)
{
	_fa_cleanup_(fa_freep) char *log = NULL;
	struct fa_info info = { .size = sizeof(info) };
	int r;

	r = kv_check_pages(&owner->kv, owner->item.sequence, owner->tags, 0, owner->item.length);
	if (r < 0) {
		log = fa_test_daemon_log(&supervisor);
		fa_test_fail(__FILE__, __LINE__, "read: %d, %s; the daemon's log: %s", r,
		             fa_error(), log);
	}
	fa_check_eq(fa_info(owner->client, &info), 0);
	fa_check(info.reconnects > 0);
	fa_check_eq(info.resumed, info.reconnects);
}

static void owner_end(struct owner *owner)
{
	kv_deinit(&owner->kv);
	fa_disconnect(owner->client);
}

/*
 * The GPU is lost while the daemon resumes a client: the daemon refuses, and the client finds all
 * its state in the next daemon.
 */
static void test_lost_while_resuming(void **state)
{
	const pid_t first = fa_test_daemon_child(&supervisor);
	struct fa_test_cuda_page *page;
	struct owner owner;
	pid_t second;

	owner_begin(&owner);
	fa_check(!kill(first, SIGKILL));
	second = fa_test_daemon_next_child(&supervisor, first);
	page = fa_test_cuda_attach(&cuda, second);
	fa_test_cuda_fail(page, "cuMemHostRegister:1=700");
	owner_check(&owner);
	fa_check(fa_test_cuda_is_lost(page));
	fa_check(fa_test_daemon_child(&supervisor) != second);
	fa_test_cuda_detach(page);
	owner_end(&owner);
}

/* Daemons that fail before they restore the pool leave it to a later daemon. */
static void test_lost_while_starting(void **state)
{
	static const char *const faults[] = { "cuMemMap:1=700", "cuMemSetAccess:1=700",
		                              "cuInit:1=100", "cuCtxSetCurrent:1=719" };
	struct owner owner;

	owner_begin(&owner);
	for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); ++i) {
		const pid_t first = fa_test_daemon_child(&supervisor);

		fa_test_cuda_fail_next(&cuda, faults[i]);
		fa_check(!kill(first, SIGKILL));
		fa_test_daemon_log_wait(&supervisor, "the persisted KV pool waits for its device");
		fa_test_cuda_fail_next(&cuda, NULL);
		owner_check(&owner);
	}
	owner_end(&owner);
}

static int setup_mps(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options options = {
		.args = args, .config = "[pool]\nbytes = 2M\nchunk_bytes = 2M\n"
	};

	fa_check(!setenv("FAD_TEST_CUDA_MPS", "1", 1));
	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&supervisor, &options);
	fa_check(!unsetenv("FAD_TEST_CUDA_MPS"));
	return 0;
}

/*
 * Under MPS, kernels of a dead process run on for a while. Until they end, no daemon uses memory
 * that they may write: free pages, the rest of a sequence's last page.
 */
static void test_quarantine(void **state)
{
	struct fa_options options = { .size = sizeof(options), .socket = supervisor.socket };
	uint32_t tags[KV_PAGE_TOKENS + 1];
	struct kv_item item = { .tags = tags };
	pid_t pid = fa_test_daemon_child(&supervisor);
	struct fa_client *client;
	struct fa_step *step;
	uint64_t died_ns, pause_ns = 0;
	json_t *status;
	struct kv kv;
	int r;

	options.reconnect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	kv_init(&kv, client, NULL, 0);
	fa_check_eq(fa_sequence_create(client, kv.cache, &item.sequence), 0);
	for (uint32_t i = 0; i <= KV_PAGE_TOKENS; ++i)
		tags[i] = i + 1;
	item.length = item.n_new = KV_PAGE_TOKENS / 2;
	fa_check_eq(kv_begin(&kv, &item, 1, &step), 0);
	fa_check_eq(kv_attend(&kv, step, &item, 1, 0, true), 0);
	fa_check_eq(fa_step_commit(step, NULL, NULL), 0);
	fa_step_free(step);

	died_ns = fa_now_ns();
	fa_check(!kill(pid, SIGKILL));
	(void)fa_test_daemon_next_child(&supervisor, pid);
	item.n_new = 1;
	item.length++;
	do
		r = kv_begin(&kv, &item, 1, &step);
	while (r == -ECONNRESET);
	if (r == -ENOMEM)
		fa_check_contains(fa_error(), "let go");
	else
		fa_check(r == 0 && fa_now_ns() - died_ns > 4 * FA_NS_PER_SEC);
	fa_check_eq(kv_check_pages(&kv, item.sequence, tags, 0, KV_PAGE_TOKENS / 2), 0);
	while (r == -ENOMEM) {
		fa_test_poll_pause(&pause_ns);
		r = kv_begin(&kv, &item, 1, &step);
	}
	fa_check_eq(r, 0);
	fa_check(fa_now_ns() - died_ns > 4 * FA_NS_PER_SEC);
	fa_check_eq(kv_attend(&kv, step, &item, 1, 0, true), 0);
	kv_check_out(&kv, &item, 1);
	fa_check_eq(fa_step_commit(step, NULL, NULL), 0);
	fa_step_free(step);
	status = status_of(client);
	fa_check_eq(pool_number(status, "quarantined_pages"), 0);
	json_decref(status);
	kv_deinit(&kv);
	fa_disconnect(client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_faults, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lost_while_resuming, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lost_while_starting, setup, teardown),
		cmocka_unit_test_setup_teardown(test_quarantine, setup_mps, teardown),
	};

	return cmocka_run_group_tests_name("cuda-kv-crash", tests, NULL, NULL);
}
