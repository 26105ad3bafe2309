/*
 * A client that got no ring retries at growing intervals, and gets one once the cause is gone,
 * whatever is in flight.
 */
#include "client/faclient.h"
#include "client/faclient_timeline.h"
#include "common/cleanup.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static struct fa_test_daemon daemon_process;
static struct fa_client *client;

static void check(int r)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
}

static struct fa_client *connect_to(const char *socket)
{
	struct fa_options options = { .size = sizeof(options), .socket = socket };
	struct fa_client *made;

	options.reconnect_ns = fa_test_patience_ns();
	check(fa_connect(&options, &made));
	return made;
}

static bool has_ring(struct fa_client *of)
{
	struct fa_info info = { .size = sizeof(info) };

	check(fa_info(of, &info));
	fa_check_eq(info.reconnects, 0);
	return info.ring_bytes;
}

static int setup(void **state)
{
	fa_test_daemon_start(&daemon_process, NULL);
	client = connect_to(daemon_process.socket);
	check(fa_ping(client));
	fa_test_daemon_leave_fds(&daemon_process, 0);
	for (int i = 0; i < 10; ++i)
		check(fa_marker(client, 0, NULL, NULL));
	fa_check(!has_ring(client));
	return 0;
}

static int teardown(void **state)
{
	client = fa_disconnect(client);
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

static void have_again(void)
{
	fa_test_daemon_leave_fds(&daemon_process, UINT_MAX);
}

static void test_retry_succeeds(void **state)
{
	uint64_t begin_ns = fa_now_ns();
	char *status;

	/* Failed retries do not stop later ones. */
	while (fa_now_ns() < begin_ns + FA_NS_PER_SEC)
		check(fa_marker(client, 0, NULL, NULL));
	fa_check(!has_ring(client));
	have_again();
	fa_check_eventually((check(fa_marker(client, 0, NULL, NULL)), has_ring(client)));
	for (int i = 0; i < 100; ++i)
		check(fa_marker(client, 0, NULL, NULL));
	check(fa_status(client, &status));
	fa_check_contains(status, "\"ring_requests\":10");
	free(status);
}

static void test_own_descriptors(void **state)
{
	struct rlimit before, none;

	have_again();
	fa_check(!getrlimit(RLIMIT_NOFILE, &before));
	none = before;
	none.rlim_cur = 0;
	fa_check(!setrlimit(RLIMIT_NOFILE, &none));
	for (int i = 0; i < 200; ++i) {
		check(fa_marker(client, 0, NULL, NULL));
		fa_test_elapse_ms(2);
	}
	fa_check(!setrlimit(RLIMIT_NOFILE, &before));
	fa_check(!has_ring(client));
	fa_check_eventually((check(fa_marker(client, 0, NULL, NULL)), has_ring(client)));
}

static struct fa_attention attention_of(struct fa_buffer *buffer)
{
	struct fa_attention attention = { .size = sizeof(attention) };
	const int64_t q[] = { 1, 1, 1, 64 }, k[] = { 1, 16, 1, 64 };

	fa_tensor_init(&attention.q, buffer, 0, FA_F32, 4, q);
	fa_tensor_init(&attention.k, buffer, 0, FA_F32, 4, k);
	attention.v = attention.k;
	fa_tensor_init(&attention.out, buffer, fa_tensor_bytes(FA_F32, 4, k), FA_F32, 4, q);
	return attention;
}

#define DEPTH 4
#define MORE 300

/* At least DEPTH - 1 requests are in flight; some fail. All must end as expected, in order. */
static void flow(uint32_t stream, struct fa_buffer *buffer, bool passes)
{
	struct fa_completion completion = { .size = sizeof(completion) };
	struct fa_attention good = attention_of(buffer), bad = good;
	uint64_t deadline_ns = fa_deadline_ns(fa_test_patience_ns());
	struct fa_ticket tickets[DEPTH];
	unsigned int more = 0;

	bad.k.shape[3] = 32;
	good.stream = bad.stream = stream;
	for (uint64_t n = 0; more < MORE; ++n) {
		struct fa_ticket *ticket = &tickets[n % DEPTH];

		if (n >= DEPTH) {
			bool fails = (n - DEPTH) % 3 == 2;

			fa_check_eq(fa_wait(client, ticket, UINT64_MAX, n % 2 ? &completion : NULL),
			            fails ? -EINVAL : 0);
			if (fails)
				fa_check_contains(fa_error(), "dim");
			if (!fails && n % 2)
				fa_check(completion.finished_ns >= completion.queued_ns &&
				         completion.queued_ns);
		}
		if (n % 3 == 1)
			check(fa_marker(client, stream, NULL, ticket));
		else
			check(fa_attention(client, n % 3 ? &bad : &good, ticket));
		if (n == 20 && passes)
			have_again();
		more += has_ring(client);
		fa_check(fa_now_ns() < deadline_ns);
	}
	for (uint64_t i = 0; i < DEPTH; ++i) {
		int r = fa_wait(client, &tickets[i], UINT64_MAX, NULL);

		fa_check(r == 0 || r == -EINVAL);
	}
}

static struct fa_buffer *buffer_new(void)
{
	struct fa_buffer *buffer;
	bool without = !has_ring(client);

	/* The request carries a descriptor, its reply does not. */
	have_again();
	check(fa_buffer_new(client, 17 * 64 * sizeof(float), 0, &buffer));
	if (without)
		fa_test_daemon_leave_fds(&daemon_process, 0);
	return buffer;
}

static void test_flow(void **state)
{
	struct fa_buffer *buffer = buffer_new();

	flow(0, buffer, true);
	fa_buffer_free(buffer);
}

static void test_gated(void **state)
{
	const struct fa_gate wait = { .slot = 3, .value = 1 };
	struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &wait };
	const struct fa_gate none = { .slot = 4, .value = 1 };
	struct fa_gates never = { .size = sizeof(never), .n_waits = 1, .waits = &none };
	struct fa_completion completion = { .size = sizeof(completion) };
	struct fa_timeline *timeline;
	struct fa_ticket ticket, behind, cancelled;
	uint32_t stream, other;

	have_again();
	check(fa_timeline_open(client, &timeline));
	fa_test_daemon_leave_fds(&daemon_process, 0);
	check(fa_stream_new(client, 0, &stream));
	check(fa_stream_new(client, 0, &other));
	check(fa_marker(client, stream, &gates, &ticket));
	check(fa_marker(client, other, &never, &cancelled));
	have_again();
	fa_check_eventually((check(fa_marker(client, 0, NULL, NULL)), has_ring(client)));
	check(fa_marker(client, stream, NULL, &behind));
	fa_check_eq(fa_wait(client, &ticket, 0, NULL), -EAGAIN);
	fa_check_eq(fa_wait(client, &behind, FA_NS_PER_MS, NULL), -EAGAIN);
	check(fa_timeline_write(timeline, 3, 1));
	check(fa_wait(client, &behind, UINT64_MAX, &completion));
	fa_check(completion.queued_ns && completion.finished_ns >= completion.queued_ns);
	check(fa_wait(client, &ticket, UINT64_MAX, &completion));
	fa_check(completion.queued_ns && completion.finished_ns >= completion.queued_ns);
	check(fa_cancel(client, &cancelled));
	fa_check_eq(fa_wait(client, &cancelled, UINT64_MAX, NULL), -ECANCELED);
	check(fa_marker(client, other, NULL, NULL));
	check(fa_ping(client));
	fa_check(has_ring(client));
}

/* Completions of requests sent by socket wake threads and event loops. */
static void test_sleepers_are_woken(void **state)
{
	const struct fa_gate wait = { .slot = 3, .value = 1 };
	struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &wait };
	struct epoll_event event = { .events = EPOLLIN };
	struct fa_timeline *timeline;
	struct fa_ticket ticket;
	uint32_t stream;
	int epoll, r;

	have_again();
	check(fa_timeline_open(client, &timeline));
	epoll = epoll_create1(EPOLL_CLOEXEC);
	fa_check(!epoll_ctl(epoll, EPOLL_CTL_ADD, fa_fd(client), &event));
	fa_test_daemon_leave_fds(&daemon_process, 0);
	check(fa_stream_new(client, 0, &stream));
	check(fa_marker(client, stream, &gates, &ticket));
	have_again();
	fa_check_eventually((check(fa_marker(client, 0, NULL, NULL)), has_ring(client)));
	check(fa_dispatch(client));
	check(fa_timeline_write(timeline, 3, 1));
	while ((r = fa_wait(client, &ticket, 0, NULL)) == -EAGAIN) {
		fa_check_eq(
			epoll_wait(epoll, &event, 1, (int)(fa_test_patience_ns() / FA_NS_PER_MS)),
			1);
		check(fa_dispatch(client));
	}
	check(r);
	check(fa_ping(client));
	fa_check(has_ring(client));
	close(epoll);
}

#define THREADS 4

struct flowing {
	pthread_t thread;
	struct fa_buffer *buffer;
	uint32_t stream;
};

static void *flow_in_thread(void *userdata)
{
	struct flowing *flowing = userdata;

	flow(flowing->stream, flowing->buffer, flowing->stream == 0);
	return NULL;
}

static void test_threads(void **state)
{
	struct flowing all[THREADS] = {};

	for (int i = 0; i < THREADS; ++i) {
		all[i].buffer = buffer_new();
		if (i)
			check(fa_stream_new(client, 0, &all[i].stream));
	}
	for (int i = 0; i < THREADS; ++i)
		fa_check(!pthread_create(&all[i].thread, NULL, flow_in_thread, &all[i]));
	for (int i = 0; i < THREADS; ++i)
		pthread_join(all[i].thread, NULL);
	fa_check(has_ring(client));
	for (int i = 0; i < THREADS; ++i)
		fa_buffer_free(all[i].buffer);
}

static atomic_uint n_tries;

static void serve_none(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page;
	struct fa_wire_message reply;

	if (!fake_daemon_next(raw))
		return;
	reply = fake_daemon_hello_reply(raw->message.id);
	reply.hello_reply.features = FA_WIRE_FEATURE_RING;
	page = fake_daemon_welcome_with(raw, &reply);
	while (fa_raw_receive(raw, -1) == 1)
		if (raw->message.type == FA_WIRE_RING_SETUP) {
			atomic_fetch_add(&n_tries, 1);
			fake_daemon_reply(raw, raw->message.id, -EMFILE, "no descriptors");
		} else {
			fake_daemon_answer(raw, page);
		}
}

/* A client that got no ring asks again after 100 ms, then after twice the previous interval. */
static void test_retry_intervals(void **state)
{
	uint64_t begin_ns = fa_now_ns();
	struct fa_client *patient;
	struct fake_daemon fake;
	unsigned int n = 0, most = 1;
	uint64_t took_ns;

	fake_daemon_start(&fake, serve_none, NULL);
	patient = connect_to(fake.socket);
	while (fa_now_ns() < begin_ns + 2 * FA_NS_PER_SEC || n <= 100 ||
	       atomic_load(&n_tries) < 3) {
		check(fa_marker(patient, 0, NULL, NULL));
		++n;
		fa_check(fa_now_ns() < begin_ns + fa_test_patience_ns());
	}
	/* Tries at 0, 100, 300, 700, 1500 ms and so on. */
	took_ns = fa_now_ns() - begin_ns;
	for (uint64_t ms = 100; ms * FA_NS_PER_MS <= took_ns; ms = 2 * ms + 100)
		++most;
	fa_check(!has_ring(patient));
	fa_check(atomic_load(&n_tries) <= most);
	fa_disconnect(patient);
	fake_daemon_stop(&fake);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_retry_succeeds, setup, teardown),
		cmocka_unit_test_setup_teardown(test_own_descriptors, setup, teardown),
		cmocka_unit_test_setup_teardown(test_flow, setup, teardown),
		cmocka_unit_test_setup_teardown(test_gated, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sleepers_are_woken, setup, teardown),
		cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
		cmocka_unit_test(test_retry_intervals),
	};

	return cmocka_run_group_tests_name("ring again", tests, NULL, NULL);
}
