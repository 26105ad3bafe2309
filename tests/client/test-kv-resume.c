/*
 * Sessions over several connections: what Hello names as the previous session, and what becomes of
 * steps, ids and requests. The fake daemon follows the test's script, a line per connection.
 */
#include "client/faclient.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define CONNECTIONS_MAX 8

struct line {
	bool resumed;
	int requests;
	bool silent;
	int status;
	int hello_refused;
};

static struct {
	const struct line *lines;
	atomic_int n;
	struct {
		bool has_resume;
		struct fa_wire_secret secret;
		uint64_t generation;
	} hellos[CONNECTIONS_MAX];
} script;

static struct fa_completion_slot *welcome(struct fa_raw *raw, int i, const struct line *line)
{
	struct fa_completion_slot *page;

	if (!fake_daemon_next(raw))
		return NULL;
	fa_check_eq(raw->message.type, FA_WIRE_HELLO);
	script.hellos[i].has_resume = raw->message.hello.has_resume;
	script.hellos[i].secret = raw->message.hello.resume_secret;
	script.hellos[i].generation = raw->message.hello.resume_generation;
	if (line->hello_refused) {
		fake_daemon_reply(raw, raw->message.id, line->hello_refused, "not now");
		return NULL;
	}
	page = fake_daemon_welcome_as(raw, (uint64_t)i + 100,
	                              (struct fa_wire_secret){ (uint64_t)i + 200, 7 },
	                              line->resumed);
	return page;
}

static void serve(struct fa_raw *raw, void *userdata)
{
	int i = atomic_load(&script.n);
	const struct line *line = &script.lines[i];
	struct fa_completion_slot *page;
	int left = line->requests;

	fa_check(i < CONNECTIONS_MAX);
	page = welcome(raw, i, line);
	atomic_store(&script.n, i + 1);
	while (page && left && fake_daemon_next(raw)) {
		if (line->status)
			fake_daemon_reply(raw, raw->message.id, line->status, "for a reason");
		else
			fake_daemon_answer(raw, page);
		left -= left > 0;
	}
	if (page && line->silent)
		(void)fake_daemon_next(raw);
}

static struct fa_client *start(struct fake_daemon *fake, const struct line *lines)
{
	struct fa_options options = { .size = sizeof(options) };
	struct fa_client *client;

	script.lines = lines;
	atomic_store(&script.n, 0);
	fake_daemon_start(fake, serve, NULL);
	options.socket = fake->socket;
	options.reconnect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	return client;
}

static void stop(struct fake_daemon *fake, struct fa_client *client)
{
	fa_disconnect(client);
	fake_daemon_stop(fake);
}

static void check_info(struct fa_client *client, uint64_t reconnects, uint64_t resumed)
{
	struct fa_info info = { .size = sizeof(info) };

	fa_check_eq(fa_info(client, &info), 0);
	fa_check_eq(info.reconnects, reconnects);
	fa_check_eq(info.resumed, resumed);
}

/* Hello @i must name the session of connection @before. */
static void check_hello(int i, int before)
{
	fa_check(script.hellos[i].has_resume);
	fa_check_eq(script.hellos[i].generation, before + 100);
	fa_check_eq(script.hellos[i].secret.lo, before + 200);
	fa_check_eq(script.hellos[i].secret.hi, 7);
}

static void wait_lost(struct fa_client *client)
{
	fa_check_eventually(fa_client_state(client) == FA_CLIENT_LOST);
}

static struct fa_step *begin(struct fa_client *client)
{
	const struct fa_step_item item = { .sequence = 1, .n_new = 1 };
	struct fa_step_options options = { .size = sizeof(options), .n_items = 1, .items = &item };
	struct fa_step *step;

	fa_check_eq(fa_step_begin(client, &options, &step), 0);
	return step;
}

static void test_resumed(void **state)
{
	const struct line lines[] = { { .requests = 2 }, { .resumed = true, .requests = -1 } };
	struct fa_sequence_info info = { .size = sizeof(info) };
	struct fa_step *step, *idle, *next;
	struct fa_client *client;
	struct fa_ticket ticket;
	struct fake_daemon fake;

	client = start(&fake, lines);
	step = begin(client);
	idle = begin(client);
	wait_lost(client);

	/* The step is lost: a call with it does not reconnect. */
	fa_check_eq(fa_step_commit(step, NULL, NULL), -ECONNRESET);
	fa_check_contains(fa_error(), "the step is gone");
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
	check_info(client, 0, 0);

	fa_check_eq(fa_sequence_info(client, FAKE_DAEMON_SEQUENCE, &info), 0);
	fa_check_eq(fa_client_state(client), FA_CLIENT_CONNECTED);
	fa_check(!script.hellos[0].has_resume);
	check_hello(1, 0);
	check_info(client, 1, 1);

	fa_check_eq(fa_step_commit(step, NULL, &ticket), -ECONNRESET);
	fa_check_eq(fa_step_abort(step, 0, NULL), -ECONNRESET);
	fa_step_free(step);
	fa_step_free(idle);
	next = begin(client);
	fa_check_eq(fa_step_commit(next, NULL, NULL), 0);
	fa_step_free(next);
	stop(&fake, client);
}

static void test_not_resumed(void **state)
{
	const struct line lines[] = { { .requests = 1 },
		                      { .resumed = false, .requests = 1, .status = -ENOENT },
		                      { .resumed = true, .requests = -1, .status = -ENOENT } };
	struct fa_sequence_info info = { .size = sizeof(info) };
	struct fa_client *client;
	struct fake_daemon fake;
	uint64_t cache;

	client = start(&fake, lines);
	fa_check_eq(fa_ping(client), 0);
	wait_lost(client);
	fa_check_eq(fa_sequence_info(client, FAKE_DAEMON_SEQUENCE, &info), -ESTALE);
	fa_check_contains(fa_error(), "session was lost");
	check_info(client, 1, 0);
	check_hello(1, 0);
	wait_lost(client);
	/* The second connection's session is resumed; the first one's is lost. */
	fa_check_eq(fa_sequence_truncate(client, FAKE_DAEMON_SEQUENCE, 1), -ESTALE);
	check_hello(2, 1);
	check_info(client, 2, 1);
	/* No lost session is the cause, so the errno of an unknown name is unchanged. */
	fa_check_eq(fa_cache_find(client, "name", &cache), -ENOENT);
	stop(&fake, client);
}

/* Daemons die while the client registers buffers again: it resumes the newest session. */
static void test_deaths_in_between(void **state)
{
	const struct line lines[] = {
		{ .requests = 2 },
		{ .resumed = true, .silent = true },
		{ .resumed = true, .silent = true },
		{ .hello_refused = -ESHUTDOWN },
		{ .resumed = true, .requests = -1 },
	};
	struct fa_buffer *buffer;
	struct fa_client *client;
	struct fake_daemon fake;

	client = start(&fake, lines);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	fa_check_eq(fa_ping(client), 0);
	wait_lost(client);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(atomic_load(&script.n), 5);
	check_hello(1, 0);
	check_hello(2, 1);
	check_hello(3, 2);
	check_hello(4, 2);
	check_info(client, 1, 1);
	stop(&fake, client);
}

static void test_lost_in_between(void **state)
{
	const struct line lines[] = {
		{ .requests = 2 },
		{ .resumed = false, .silent = true },
		{ .resumed = true, .requests = -1 },
	};
	struct fa_buffer *buffer;
	struct fa_client *client;
	struct fake_daemon fake;

	client = start(&fake, lines);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	fa_check_eq(fa_ping(client), 0);
	wait_lost(client);
	fa_check_eq(fa_ping(client), 0);
	check_hello(2, 1);
	check_info(client, 1, 0);
	stop(&fake, client);
}

static void test_requests_in_flight_end(void **state)
{
	const struct line lines[] = { { .requests = 2, .silent = true },
		                      { .resumed = true, .requests = -1 } };
	const int64_t shape[] = { 1, 1, 16 };
	struct fa_sequence_copy copy = { .size = sizeof(copy), .sequence = FAKE_DAEMON_SEQUENCE };
	struct fa_buffer *buffer;
	struct fa_client *client;
	struct fa_ticket ticket;
	struct fake_daemon fake;
	struct fa_step *step;
	uint64_t sequence;

	client = start(&fake, lines);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	step = begin(client);
	fa_check_eq(fa_step_commit(step, NULL, &ticket), 0);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), -ECONNRESET);
	fa_step_free(step);

	fa_tensor_init(&copy.k, buffer, 0, FA_F32, 3, shape);
	fa_check_eq(fa_sequence_read(client, &copy, NULL), 0);
	fa_check_eq(fa_sequence_create(client, FAKE_DAEMON_CACHE, &sequence), 0);
	check_info(client, 1, 1);
	stop(&fake, client);
}

/* The next daemon has kept nothing. */
static void test_lost_ids(void **state)
{
	struct fa_cache_options cache_options = { .size = sizeof(cache_options),
		                                  .dtype = FA_F32,
		                                  .layers = 1,
		                                  .kv_heads = 1,
		                                  .head_dim = 16 };
	struct fa_sequence_info info = { .size = sizeof(info) };
	struct fa_sequence_copy copy = { .size = sizeof(copy) };
	struct fa_options options = { .size = sizeof(options) };
	const int64_t shape[] = { 1, 1, 16 };
	struct fa_test_daemon daemon;
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct fa_ticket ticket;
	uint64_t cache, freed;
	char dir[48];

	fa_test_dir_make(dir, sizeof(dir));
	fa_test_daemon_start(&daemon, &(struct fa_test_daemon_options){ .dir = dir });
	options.socket = daemon.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), 0);
	fa_tensor_init(&copy.k, buffer, 0, FA_F32, 3, shape);
	fa_check_eq(fa_cache_create(client, &cache_options, &cache), 0);
	fa_check_eq(fa_sequence_create(client, cache, &freed), 0);
	fa_check_eq(fa_sequence_create(client, cache, &copy.sequence), 0);
	fa_check_eq(fa_sequence_remove(client, freed), 0);
	fa_check_eq(fa_sequence_info(client, freed, &info), -ESTALE);

	fa_test_daemon_signal(&daemon, SIGKILL);
	(void)fa_test_daemon_reap(&daemon);
	fa_test_daemon_start(&daemon, &(struct fa_test_daemon_options){ .dir = dir });
	fa_check_eventually(fa_client_state(client) == FA_CLIENT_LOST);
	fa_check_eq(fa_sequence_info(client, copy.sequence, &info), -ESTALE);
	fa_check_eq(fa_sequence_read(client, &copy, NULL), -ENOENT);
	fa_check_eq(fa_sequence_read(client, &copy, &ticket), 0);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), -ENOENT);
	check_info(client, 1, 0);
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
	fa_test_dir_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_resumed),
		cmocka_unit_test(test_not_resumed),
		cmocka_unit_test(test_deaths_in_between),
		cmocka_unit_test(test_lost_in_between),
		cmocka_unit_test(test_requests_in_flight_end),
		cmocka_unit_test(test_lost_ids),
	};

	return cmocka_run_group_tests_name("kv-resume", tests, NULL, NULL);
}
