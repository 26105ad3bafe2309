/* Reaping of ended requests, with real sessions and a loop that the test turns. */
#include "daemon/session/completions.h"

#include "daemon/session/context.h"
#include "daemon/session/request.h"
#include "daemon/session/session.h"
#include "fake-device.h"
#include "tests/lib/check.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* More than can be reaped in one turn. */
#define REQUESTS 1000
#define PACKETS 3

static struct fixture engine;
static struct fa_context context;
static struct fa_tenant *other;
static uv_loop_t loop;

/* ---- the daemon's part */

static int bind_request(struct fa_request *request, const struct fa_wire_message *message,
                        struct fa_error *error)
{
	request->job.work.op = FA_DEVICE_ATTENTION;
	return 0;
}

static void release_request(struct fa_request *request)
{
}

static const struct fa_request_kind kind = {
	.name = "Test",
	.bytes = sizeof(struct fa_request),
	.bind = bind_request,
	.release = release_request,
};

/* Every packet uses up the account's turn. */
static bool on_packet(struct fa_session *session, const void *bytes, size_t length, int *fds,
                      size_t n_fds, bool fds_lost)
{
	const uint64_t until_ns = fa_deadline_ns(2 * FA_TURN_NS);

	while (fa_now_ns() < until_ns)
		;
	return true;
}

static void on_session(struct fa_session *session)
{
}

static void on_context(struct fa_context *unused)
{
}

static void on_notify(void *userdata)
{
}

static const struct fa_context_hooks hooks = {
	.packet = on_packet,
	.session_ready = on_session,
	.session_closing = on_session,
	.session_ended = on_session,
	.session_freed = on_context,
	.drain_progress = on_context,
	.idle = on_context,
	.device_lost = on_context,
};

static int set_up(void **state)
{
	fixture_init(&engine, REQUESTS);
	assert_int_equal(uv_loop_init(&loop), 0);
	memset(&context, 0, sizeof(context));
	context.hooks = &hooks;
	context.loop = &loop;
	context.engine = engine.engine;
	context.uid = geteuid();
	assert_int_equal(fa_config_init(&context.config), 0);
	fa_config_resolve(&context.config, 1 << 30, 0, 0, false);
	fa_list_init(&context.sessions);
	fa_list_init(&context.device_sessions);
	fa_list_init(&context.hello_pending);
	fa_list_init(&context.reapable);
	fa_list_init(&context.timelines_ended);
	fa_tenants_init(&context.tenants, &context.config.limits);
	fa_block_cache_init(&context.request_cache, FA_REQUEST_CACHED_BYTES);
	fa_loop_spin_init(&context.spin, &loop);
	fa_turns_init(&context.turns, &context);
	assert_int_equal(fa_fd_reaper_new(on_notify, NULL, &context.reaper), 0);
	/* Only beside another account there are turns. */
	assert_int_equal(fa_tenant_get(&context.tenants, context.uid + 1, "/", &other), 0);
	return 0;
}

static bool is_reaped(void)
{
	(void)fa_fd_reaper_collect(context.reaper);
	return fa_list_empty(&context.tenants.tenants);
}

static int tear_down(void **state)
{
	other = fa_tenant_unref(other);
	fa_check_eventually(is_reaped());
	assert_null(fa_fd_reaper_free(context.reaper));
	fa_tenants_deinit(&context.tenants);
	uv_close((uv_handle_t *)&context.spin.idle, NULL);
	uv_close((uv_handle_t *)&context.turns.prepare, NULL);
	uv_close((uv_handle_t *)&context.turns.idle, NULL);
	uv_close((uv_handle_t *)&context.turns.timer, NULL);
	assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
	assert_int_equal(uv_loop_close(&loop), 0);
	fa_block_cache_deinit(&context.request_cache);
	fa_config_deinit(&context.config);
	fixture_deinit(&engine);
	return 0;
}

/* ---- the test's part */

static struct fa_session *session_new(int *ret_client)
{
	struct fa_session *session;
	struct fa_error error;
	int sockets[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
	assert_int_equal(fa_session_new(&context, sockets[0], &error, &session), 0);
	session->completions = mmap(NULL, FA_COMPLETION_PAGE_BYTES, PROT_READ | PROT_WRITE,
	                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(session->completions, MAP_FAILED);
	session->state = FA_SESSION_READY;
	*ret_client = sockets[1];
	return session;
}

/* Submits requests, all of which end on the device and are not reaped. */
static void end_requests(struct fa_session *session)
{
	const struct fa_wire_message message = { .type = FA_WIRE_ATTENTION };

	assert_int_equal(fa_session_stream_new(session, 0, 0), 0);
	for (uint64_t value = 1; value <= REQUESTS; value++) {
		struct fa_error error;

		assert_int_equal(fa_request_submit(session, &message, 0, fa_now_ns(), &kind,
		                                   (struct fa_request_place){ .value = value },
		                                   &error),
		                 0);
	}
	wait_launched(&engine, REQUESTS);
	for (int i = 0; i < REQUESTS; i++)
		complete(&engine, engine.device.launched[i], 0);
	fa_check_eventually(atomic_load(&session->completions[0].completed) == REQUESTS);
}

static void send_packets(int client)
{
	for (int i = 0; i < PACKETS; i++)
		assert_int_equal(send(client, "", 1, 0), 1);
}

static void next_turn(void)
{
	context.turns.number++;
}

/* Reaps without a turn of the loop until only @n references are left. */
static bool is_reaped_to(const struct fa_session *session, unsigned int n)
{
	(void)fa_completions_poll(&context);
	return session->n_refs == n;
}

static bool has_served(const struct fa_turn *turn)
{
	(void)uv_run(&loop, UV_RUN_NOWAIT);
	return !turn->n_waiting;
}

/*
 * Answering its ended requests closes a session that is about to read. It must not wait for a turn:
 * it is freed while another session of the account waits before it.
 */
static void test_closed_while_reading(void **state)
{
	struct fa_session *session, *busy;
	int client, busy_client;
	unsigned int n_refs;
	struct fa_turn *turn;

	busy = session_new(&busy_client);
	session = session_new(&client);
	turn = fa_tenant_turn(session->tenant);
	n_refs = session->n_refs;
	end_requests(session);
	send_packets(busy_client);
	send_packets(client);

	fa_turn_use(busy, FA_TURN_NS);
	fa_session_read(busy);
	assert_int_equal(turn->n_waiting, 1);
	next_turn();

	assert_int_equal(shutdown(client, SHUT_RD), 0);
	fa_session_read(session);
	assert_int_equal(session->state, FA_SESSION_CLOSING);
	assert_false(fa_list_empty(&context.reapable));

	fa_check_eventually(is_reaped_to(session, n_refs));
	(void)uv_run(&loop, UV_RUN_NOWAIT);
	assert_int_equal(context.n_sessions, 1);
	fa_check_eventually(has_served(turn));
	assert_int_equal(busy->n_messages, PACKETS);

	close(client);
	close(busy_client);
	while (context.n_sessions)
		(void)uv_run(&loop, UV_RUN_ONCE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_closed_while_reading, set_up, tear_down),
	};

	return cmocka_run_group_tests_name("reap", tests, NULL, NULL);
}
