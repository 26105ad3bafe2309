/*
 * The daemon is killed under its clients: committed tokens survive bit by bit, steps in flight
 * never happened, sessions are resumed with their objects or expire.
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "kv-client.h"
#include "tests/lib/at_once.h"
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
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define GRACE_S 3

static struct fa_test_daemon supervisor;
static struct kv_client client;

static void start_with(const char *config)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options options = { .args = args, .config = config };

	fa_test_daemon_start(&supervisor, &options);
	kv_open(&client, supervisor.socket);
}

static int start(void **state)
{
	start_with("[pool]\nbytes = 16M\nchunk_bytes = 2M\n");
	return 0;
}

static int start_large(void **state)
{
	start_with("[pool]\nbytes = 1G\nchunk_bytes = 2M\n");
	return 0;
}

static int start_impatient(void **state)
{
	char config[64];

	snprintf(config, sizeof(config), "[pool]\nbytes = 16M\nchunk_bytes = 2M\ngrace_s = %d\n",
	         GRACE_S);
	start_with(config);
	return 0;
}

static int stop(void **state)
{
	kv_close(&client);
	fa_test_daemon_stop(&supervisor);
	return 0;
}

static void kill_child(void)
{
	const pid_t before = fa_test_daemon_child(&supervisor);

	fa_check(before > 0);
	kill(before, SIGKILL);
	(void)fa_test_daemon_next_child(&supervisor, before);
}

static bool come_back(struct kv_client *c)
{
	struct fa_wire_secret secret = c->raw.secret;
	uint64_t generation = c->raw.generation, session = c->raw.session;
	bool resumed;

	kv_close(c);
	kv_open_resumed(c, supervisor.socket, &secret, generation);
	resumed = c->raw.message.hello_reply.resumed;
	kv_open_buffer(c);
	if (resumed)
		fa_check(c->raw.session == session);
	fa_check(c->raw.generation >= generation);
	return resumed;
}

static void test_kill(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache), fork;
	uint64_t before, number, generation;
	uint32_t numbers[300];

	kv_count(numbers, 1, 300);
	kv_append(&client, sequence, numbers, 0, 100);
	fork = kv_fork(&client, sequence, 75);
	number = kv_info(&client, sequence).step;
	kv_begin_one(&client, 5, sequence, 40);
	kv_wait(&client, 0, kv_attend(&client, 0, 5, 0, numbers + 200, 40, NULL));
	before = client.raw.session;

	generation = client.raw.generation;
	kill_child();
	fa_check(come_back(&client));
	fa_check(client.raw.generation > generation);
	fa_check(client.raw.session == before);
	kv_check(&client, sequence, numbers, 0, 100);
	fa_check(kv_info(&client, sequence).step == number);
	fa_check(kv_info(&client, sequence).planned == 100);
	kv_check(&client, fork, numbers, 0, 75);
	kv_append(&client, sequence, numbers, 100, 60);
	kv_append(&client, fork, numbers, 75, 1);
	kv_check(&client, sequence, numbers, 0, 160);
	kv_check(&client, fork, numbers, 0, 76);

	for (uint32_t n = 160; n < 200; n += 10) {
		kill_child();
		fa_check(come_back(&client));
		kv_check(&client, sequence, numbers, 0, n);
		kv_append(&client, sequence, numbers, n, 10);
	}
	kv_check(&client, fork, numbers, 0, 76);
}

static void hello_and_leave(const struct fa_raw *session)
{
	struct fa_wire_message hello = fa_raw_hello_message("impatient");
	static struct fa_raw raw;

	hello.hello.has_resume = true;
	hello.hello.resume_secret = session->secret;
	hello.hello.resume_generation = session->generation;
	fa_raw_connect(&raw, supervisor.socket);
	fa_check_eq(fa_raw_send(&raw, &hello, NULL, 0), 0);
	fa_raw_close(&raw);
}

/*
 * A client that gave up before the next daemon was ready, or disconnected before using its objects,
 * has them when it comes back.
 */
static void test_impatient(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	static struct kv_client thief;
	uint32_t numbers[100];

	kv_count(numbers, 1, 100);
	for (uint32_t n = 0; n < 100; n += 20) {
		kv_append(&client, sequence, numbers, n, 20);
		kill(fa_test_daemon_next_child(&supervisor, 0), SIGKILL);
		for (int i = 0; i < 3; i++)
			hello_and_leave(&client.raw);
		fa_check(come_back(&client));
		kv_check(&client, sequence, numbers, 0, n + 20);
	}
	kill_child();
	for (int i = 0; i < 3; i++) {
		fa_check(come_back(&client));
		hello_and_leave(&client.raw);
	}
	/* One connection at a time has the session. Once used, it ends with that connection. */
	fa_check(kv_info(&client, sequence).length == 100);
	kv_open_resumed(&thief, supervisor.socket, &client.raw.secret, client.raw.generation);
	fa_check(!thief.raw.message.hello_reply.resumed);
	kv_open_buffer(&thief);
	kv_close(&thief);
	kv_check(&client, sequence, numbers, 0, 100);
	fa_check(!come_back(&client));
}

static void hold(struct kv_client *c)
{
	const struct fa_wire_gate wait = { .slot = 0, .value = 1 };
	struct fa_wire_message message = fa_raw_message(FA_WIRE_TIMELINE_SETUP);

	fa_raw_call(&c->raw, &message, NULL, 0);
	fa_check_eq(c->raw.message.type, FA_WIRE_TIMELINE_REPLY);
	message = fa_raw_message(FA_WIRE_MARKER);
	message.marker.value = 1;
	message.waits = &wait;
	message.n_waits = 1;
	(void)kv_send(c, &message, 0);
}

/*
 * A daemon that stops normally drops no session, even after the grace time: the next daemon may see
 * it. A session resumed but not used counts as not resumed.
 */
static void test_grace_over(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	const struct kv_client before = client;
	static struct kv_client other;
	uint32_t numbers[20];
	struct fa_raw probe;
	pid_t child;

	kv_count(numbers, 1, 20);
	kv_append(&client, sequence, numbers, 0, 20);
	kill_child();
	fa_check(come_back(&client));
	kv_open(&other, supervisor.socket);
	hold(&other);
	fa_test_elapse_ms((GRACE_S + 1) * 1000);
	child = fa_test_daemon_child(&supervisor);
	kill(child, SIGTERM);
	fa_test_daemon_log_wait(&supervisor, "1 requests in flight");
	kv_close(&client);
	/* Expired sessions are looked for once a second. */
	fa_test_elapse_ms(2500);
	kill(child, SIGKILL);
	kv_close(&other);
	/*
	 * The socket's path goes when the daemon begins to stop, and reappears just before
	 * listen().
	 */
	fa_check_eventually(fa_raw_connect_try(&probe, supervisor.socket) == 0);
	fa_raw_close(&probe);
	kv_open_resumed(&client, supervisor.socket, &before.raw.secret, before.raw.generation);
	fa_check(client.raw.message.hello_reply.resumed);
	kv_open_buffer(&client);
	kv_check(&client, sequence, numbers, 0, 20);
}

/*
 * A cache used just before the kill does not expire, although the next daemon does not know its
 * age.
 */
static void test_expiry(void **state)
{
	struct fa_wire_message message = kv_cache_message("c", 0);
	uint64_t cache, sequence;

	message.cache_create.ttl_ns = 20 * FA_NS_PER_SEC;
	kv_call(&client, &message, FA_WIRE_CACHE_REPLY);
	cache = client.raw.message.cache_reply.cache;
	sequence = kv_sequence(&client, cache);
	kill(fa_test_daemon_next_child(&supervisor, 0), SIGKILL);
	fa_check(come_back(&client));
	kv_free(&client, sequence);
	fa_test_quiet_ms(1500);
	fa_check_eq(kv_cache_find(&client, "c"), cache);
}

/* Several daemons lack memory to restore the pool; the first with enough restores all of it. */
static void test_no_memory(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), sequence = kv_sequence(&client, cache);
	struct rlimit before, less;
	uint32_t numbers[20];

	/* Sanitizers exceed RLIMIT_AS, and a GPU driver's use of addresses is unknown. */
	if (fa_test_sanitized() || getenv("FAD_TEST_BACKEND"))
		skip();
	kv_count(numbers, 1, 20);
	kv_append(&client, sequence, numbers, 0, 20);
	fa_check_eq(prlimit(supervisor.pid, RLIMIT_AS, NULL, &before), 0);
	if (before.rlim_max != RLIM_INFINITY)
		skip();
	/* Half of the peak: less than the pool reserves, enough to report the failure. */
	less = (struct rlimit){ .rlim_cur = fa_test_peak_bytes(fa_test_daemon_child(&supervisor)) /
		                            2,
		                .rlim_max = RLIM_INFINITY };
	fa_check_eq(prlimit(supervisor.pid, RLIMIT_AS, &less, NULL), 0);
	kill(fa_test_daemon_next_child(&supervisor, 0), SIGKILL);
	for (int i = 0; i < 7; i++)
		fa_test_daemon_log_wait(&supervisor, "exited with status 75; starting it again");
	fa_check_eq(prlimit(supervisor.pid, RLIMIT_AS, &before, NULL), 0);
	fa_check(come_back(&client));
	kv_check(&client, sequence, numbers, 0, 20);
}

/* The supervisor stores (220 - 64) / 2 - 1 = 77 descriptors of the pool. */
enum {
	FILES = 220,
	KEPT_CHUNKS = 75,
	CHUNK_TOKENS = 5 * KV_PAGE,
};

static int start_small(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options options = {
		.args = args,
		.config = "[pool]\nbytes = 200M\nchunk_bytes = 2M\n",
		.nofile = FILES,
	};

	kv_spare_layers = 63 * KV_LAYERS;
	fa_test_daemon_start(&supervisor, &options);
	kv_open(&client, supervisor.socket);
	return 0;
}

static int stop_small(void **state)
{
	kv_spare_layers = 0;
	return stop(state);
}

/* More chunks than the supervisor can store: the daemon says so, and stored ones survive. */
static void test_no_room(void **state)
{
	uint64_t cache = kv_cache(&client, "c", 0), sequence;
	_fa_cleanup_(fa_freep) char *log = NULL;
	uint32_t numbers[CHUNK_TOKENS];
	char name[16];

	if (getenv("FAD_TEST_BACKEND"))
		skip();
	kv_count(numbers, 1, CHUNK_TOKENS);
	for (int i = 0; i < KEPT_CHUNKS + 10; i++) {
		sequence = kv_sequence(&client, cache);
		kv_append(&client, sequence, numbers, 0, CHUNK_TOKENS);
		snprintf(name, sizeof(name), "s%d", i);
		kv_set_name(&client, sequence, name, 0);
	}
	fa_test_daemon_log_wait(&supervisor, "fad-pool-75 cannot be kept now: the fd store has no");
	kill_child();
	(void)come_back(&client);
	for (int i = 0; i < KEPT_CHUNKS; i++) {
		snprintf(name, sizeof(name), "s%d", i);
		kv_check(&client, kv_sequence_find(&client, name), numbers, 0, CHUNK_TOKENS);
	}
	fa_test_daemon_log_wait(&supervisor, "chunk 75 has no memory any more");
	log = fa_test_daemon_log(&supervisor);
	fa_check(!strstr(log, "fad-pool-74 cannot be kept"));
	fa_check(!strstr(log, "descriptors already") && !strstr(log, "has too many"));
}

#define IN_THE_WAY 80

/* Low numbers are in use, so stored descriptors get high ones. */
static int start_crowded(void **state)
{
	int before[IN_THE_WAY];

	for (size_t i = 0; i < IN_THE_WAY; i++)
		before[i] = dup(STDERR_FILENO);
	start_small(state);
	for (size_t i = 0; i < IN_THE_WAY; i++)
		close(before[i]);
	return 0;
}

static void test_crowded(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), first = kv_sequence(&client, cache);
	uint32_t numbers[CHUNK_TOKENS];

	if (getenv("FAD_TEST_BACKEND"))
		skip();
	kv_count(numbers, 1, CHUNK_TOKENS);
	kv_append(&client, first, numbers, 0, CHUNK_TOKENS);
	for (int i = 1; i < KEPT_CHUNKS; i++)
		kv_append(&client, kv_sequence(&client, cache), numbers, 0, CHUNK_TOKENS);
	kill_child();
	fa_check(come_back(&client));
	kv_check(&client, first, numbers, 0, CHUNK_TOKENS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_kill, start, stop),
		cmocka_unit_test_setup_teardown(test_impatient, start, stop),
		cmocka_unit_test_setup_teardown(test_expiry, start, stop),
		cmocka_unit_test_setup_teardown(test_no_memory, start_large, stop),
		cmocka_unit_test_setup_teardown(test_no_room, start_small, stop_small),
		cmocka_unit_test_setup_teardown(test_crowded, start_crowded, stop_small),
		cmocka_unit_test_setup_teardown(test_grace_over, start_impatient, stop),
	};

	return fa_test_run_at_once("kv-restart", tests, NULL, NULL);
}
