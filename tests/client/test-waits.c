/*
 * How long calls wait; waiters for a free request slot are woken; a late waiter still finds its
 * result. The fake daemon replies when the test lets it.
 */
#include "client/faclient.h"
#include "common/cleanup.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

/* Much longer than the time-outs of these tests. */
#define LONG_NS (20 * FA_NS_PER_SEC)
#define SHORT_NS (50 * FA_NS_PER_MS)

static struct fa_client *connect_with(struct fake_daemon *fake, struct fa_options options)
{
	struct fa_client *client;

	options.size = sizeof(options);
	options.socket = fake->socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	return client;
}

static void serve_silently(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);

	while (page && fake_daemon_next(raw))
		if (raw->message.type != FA_WIRE_MARKER && raw->message.type != FA_WIRE_PING)
			fake_daemon_answer(raw, page);
}

static void test_spins_no_longer(void **state)
{
	static const uint64_t spins[] = { LONG_NS, UINT64_MAX };

	for (size_t i = 0; i < sizeof(spins) / sizeof(*spins); ++i) {
		struct fa_completion completion = { .size = sizeof(completion) };
		struct fa_client *client;
		struct fa_ticket ticket;
		struct fake_daemon fake;
		uint64_t begin_ns;

		fake_daemon_start(&fake, serve_silently, NULL);
		client = connect_with(&fake, (struct fa_options){ .spin_ns = spins[i],
		                                                  .reply_ns = SHORT_NS,
		                                                  .reconnect_ns = UINT64_MAX });
		fa_check_eq(fa_marker(client, 0, NULL, &ticket), 0);
		begin_ns = fa_now_ns();
		fa_check_eq(fa_wait(client, &ticket, SHORT_NS, &completion), -EAGAIN);
		fa_check(fa_now_ns() - begin_ns >= SHORT_NS);
		fa_check(fa_now_ns() - begin_ns < LONG_NS / 2);
		begin_ns = fa_now_ns();
		fa_check_eq(fa_ping(client), -ETIMEDOUT);
		fa_check(fa_now_ns() - begin_ns >= SHORT_NS);
		fa_check(fa_now_ns() - begin_ns < LONG_NS / 2);
		fa_disconnect(client);
		fake_daemon_stop(&fake);
	}
}

static void hang_up_once(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);
	atomic_int *connections = userdata;
	bool first = !atomic_fetch_add(connections, 1);

	while (page && fake_daemon_next(raw) && !first)
		fake_daemon_answer(raw, page);
}

static void test_connect_without_timeout(void **state)
{
	struct fa_client *client;
	atomic_int connections = 0;
	struct fake_daemon fake;

	fake_daemon_start(&fake, hang_up_once, &connections);
	client = connect_with(
		&fake, (struct fa_options){ .connect_ns = UINT64_MAX, .reconnect_ns = UINT64_MAX });
	fa_check_eq(fa_ping(client), -ECONNRESET);
	fa_check_eq(fa_ping(client), -ECONNRESET);
	fa_check_eq(fa_reconnect(client), 0);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(connections, 2);
	fa_disconnect(client);
	fake_daemon_stop(&fake);
}

struct later {
	struct fa_timeline *timeline;
	uint64_t value;
	int result;
	atomic_bool there;
};

static void *wait_later(void *userdata)
{
	struct later *later = userdata;

	atomic_store(&later->there, true);
	later->result = fa_timeline_wait(later->timeline, 3, later->value, UINT64_MAX);
	return NULL;
}

static void kill_and_restart(struct fa_test_daemon *daemon, const char *dir,
                             struct fa_client *client)
{
	fa_test_daemon_signal(daemon, SIGKILL);
	(void)fa_test_daemon_reap(daemon);
	fa_test_daemon_start(daemon, &(struct fa_test_daemon_options){ .dir = dir });
	fa_check_eventually(fa_client_state(client) == FA_CLIENT_LOST);
	fa_check_eq(fa_ping(client), 0);
}

static void test_timeline_set_up_anew(void **state)
{
	struct fa_gate given = { .slot = 3, .value = 5 };
	const struct fa_gates gates = { .size = sizeof(gates), .n_signals = 1, .signals = &given };
	struct fa_options options = { .size = sizeof(options), .reply_ns = LONG_NS };
	struct fa_timeline *timeline;
	struct fa_test_daemon daemon;
	struct fa_client *client;
	struct later later;
	pthread_t thread;
	uint64_t begin_ns;
	char dir[48];

	fa_test_dir_make(dir, sizeof(dir));
	fa_test_daemon_start(&daemon, &(struct fa_test_daemon_options){ .dir = dir });
	options.socket = daemon.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check_eq(fa_timeline_open(client, &timeline), 0);
	fa_check_eq(fa_marker(client, 0, &gates, NULL), 0);
	/* A request's end is published before its signals are. */
	fa_check_eq(fa_timeline_wait(timeline, 3, 5, fa_test_patience_ns()), 0);
	kill_and_restart(&daemon, dir, client);

	fa_test_daemon_signal(&daemon, SIGSTOP);
	begin_ns = fa_now_ns();
	fa_check_eq(fa_timeline_wait(timeline, 3, 6, 0), -EAGAIN);
	fa_check_eq(fa_timeline_wait(timeline, 3, 5, 0), -ECONNRESET);
	fa_check_eq(fa_timeline_wait(timeline, 4, 1, 0), -EAGAIN);
	fa_check_eq(fa_timeline_wait(timeline, 4, 0, 0), 0);
	fa_check_eq(fa_timeline_wait(timeline, 3, 6, SHORT_NS), -EAGAIN);
	fa_check(fa_now_ns() - begin_ns >= SHORT_NS);
	fa_check_eq(fa_timeline_wait(timeline, 3, 5, UINT64_MAX), -ECONNRESET);
	fa_check(fa_now_ns() - begin_ns < LONG_NS / 2);
	fa_check_eq(fa_client_state(client), FA_CLIENT_CONNECTED);
	fa_test_daemon_signal(&daemon, SIGCONT);

	/* The signaller sets up the timeline while others wait for the value. */
	later = (struct later){ .timeline = timeline, .value = 7 };
	fa_check(!pthread_create(&thread, NULL, wait_later, &later));
	fa_check_eventually(atomic_load(&later.there));
	fa_test_let_sleep_ms(30);
	given.value = 7;
	fa_check_eq(fa_marker(client, 0, &gates, NULL), 0);
	pthread_join(thread, NULL);
	fa_check_eq(later.result, 0);
	fa_check_eq(fa_timeline_wait(timeline, 3, 8, 1), -EAGAIN);
	fa_check_eq(fa_timeline_wait(timeline, 3, 5, 0), -ECONNRESET);
	fa_check_eq(fa_timeline_wait(timeline, 4, 0, 0), 0);

	kill_and_restart(&daemon, dir, client);
	later = (struct later){ .timeline = timeline, .value = 8 };
	fa_check(!pthread_create(&thread, NULL, wait_later, &later));
	fa_check_eventually(atomic_load(&later.there));
	fa_test_let_sleep_ms(30);
	fa_test_daemon_signal(&daemon, SIGKILL);
	(void)fa_test_daemon_reap(&daemon);
	pthread_join(thread, NULL);
	fa_check_eq(later.result, -ECONNRESET);
	fa_test_daemon_start(&daemon, &(struct fa_test_daemon_options){ .dir = dir });
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
	fa_test_dir_remove(dir);
}

#define REQUESTS 2

static struct {
	atomic_int setups, markers;
	atomic_bool may_refuse;
	struct fa_client *client;
	struct fa_step *step;
	struct fa_buffer *buffer;
	struct fa_ticket first;
} room;

/*
 * At most two requests are in flight; both complete when there are two. The first ring is refused
 * at once, the second when the test allows it.
 */
static void serve_few(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page;
	struct fa_wire_message reply;

	if (!fake_daemon_next(raw))
		return;
	reply = fake_daemon_hello_reply(raw->message.id);
	reply.hello_reply.features = FA_WIRE_FEATURE_RING;
	reply.hello_reply.limits.requests = REQUESTS;
	page = fake_daemon_welcome_with(raw, &reply);
	while (fake_daemon_next(raw)) {
		const uint64_t id = raw->message.id;

		if (raw->message.type == FA_WIRE_RING_SETUP) {
			if (atomic_fetch_add(&room.setups, 1))
				fa_check_eventually(atomic_load(&room.may_refuse));
			fake_daemon_reply(raw, id, -EDQUOT, "no ring");
		} else if (raw->message.type != FA_WIRE_MARKER) {
			fake_daemon_answer(raw, page);
		} else if (atomic_fetch_add(&room.markers, 1) + 1 == REQUESTS) {
			atomic_store(&page[0].completed, REQUESTS);
			for (int i = 1; i <= REQUESTS; ++i)
				fake_daemon_complete(raw, 0, i, 0, NULL);
		}
	}
}

static void *wait_first(void *userdata)
{
	fa_check_eq(fa_wait(room.client, &room.first, UINT64_MAX, NULL), 0);
	return NULL;
}

/* The library notices only at this request's turn that the positions do not fit into a message. */
static void *ask_too_much(void *userdata)
{
	static const uint32_t positions[16000];
	struct fa_step_attend attend = { .size = sizeof(attend),
		                         .rotary_dim = 8,
		                         .positions = positions };
	const int64_t shape[] = { 16000, 1, 8 };
	struct fa_ticket ticket;

	fa_tensor_init(&attend.q, room.buffer, 0, FA_F32, 3, shape);
	attend.out = attend.k_new = attend.v_new = attend.q;
	attend.out.offset = 1 << 19;
	fa_check_eq(fa_step_attend(room.step, &attend, &ticket), -EMSGSIZE);
	return NULL;
}

static void *wait_for_room(void *userdata)
{
	fa_check_eq(fa_marker(room.client, 0, NULL, NULL), 0);
	return NULL;
}

static void test_slot_of_unsent_request(void **state)
{
	struct fa_step_item item = { .sequence = 1, .n_new = 16000 };
	struct fa_step_options begin = { .size = sizeof(begin), .n_items = 1, .items = &item };
	pthread_t waits, asks, sends;
	struct fake_daemon fake;

	fake_daemon_start(&fake, serve_few, NULL);
	room.client = connect_with(&fake, (struct fa_options){ .reconnect_ns = UINT64_MAX });
	fa_check_eq(fa_buffer_new(room.client, 1 << 20, 0, &room.buffer), 0);
	fa_check_eq(fa_step_begin(room.client, &begin, &room.step), 0);
	fa_check_eq(fa_marker(room.client, 0, NULL, &room.first), 0);
	fa_check_eq(room.setups, 1);
	fa_check(!pthread_create(&waits, NULL, wait_first, NULL));

	fa_test_let_sleep_ms(150);
	fa_check(!pthread_create(&asks, NULL, ask_too_much, NULL));
	fa_check_eventually(atomic_load(&room.setups) == 2);
	fa_check(!pthread_create(&sends, NULL, wait_for_room, NULL));
	fa_test_quiet_ms(100);
	fa_check_eq(room.markers, 1);
	atomic_store(&room.may_refuse, true);
	pthread_join(asks, NULL);

	fa_check_eventually(atomic_load(&room.markers) == 2);
	pthread_join(sends, NULL);
	pthread_join(waits, NULL);
	fa_step_free(room.step);
	fa_disconnect(room.client);
	fake_daemon_stop(&fake);
}

#define ROUNDS 20

static struct {
	struct fa_client *client;
	struct fa_ticket last;
} told;

/*
 * At most two requests are in flight. Those of stream 0 end at once in the page and later on the
 * socket; the other stream's end last.
 */
static void serve_late(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page;
	struct fa_wire_message reply;
	uint64_t value = 0;

	if (!fake_daemon_next(raw))
		return;
	reply = fake_daemon_hello_reply(raw->message.id);
	reply.hello_reply.limits.requests = REQUESTS;
	page = fake_daemon_welcome_with(raw, &reply);
	while (fake_daemon_next(raw)) {
		const uint32_t stream = raw->message.marker.stream;

		if (raw->message.type != FA_WIRE_MARKER) {
			fake_daemon_answer(raw, page);
		} else if (!stream) {
			atomic_store(&page[0].completed, ++value);
			fa_test_work_us(2000);
			fake_daemon_complete(raw, 0, value, 0, NULL);
			if (value == ROUNDS)
				fake_daemon_complete(raw, told.last.stream, 1, 0, NULL);
		}
	}
}

static void *wait_last(void *userdata)
{
	fa_check_eq(fa_wait(told.client, &told.last, UINT64_MAX, NULL), 0);
	return NULL;
}

static void test_slot_freed_beside_reader(void **state)
{
	struct fake_daemon fake;
	pthread_t thread;
	uint32_t stream;
	int n_soon = 0;

	fake_daemon_start(&fake, serve_late, NULL);
	told.client = connect_with(
		&fake, (struct fa_options){ .spin_ns = SHORT_NS, .reconnect_ns = UINT64_MAX });
	fa_check_eq(fa_stream_new(told.client, 0, &stream), 0);
	fa_check_eq(fa_marker(told.client, stream, NULL, &told.last), 0);
	fa_check(!pthread_create(&thread, NULL, wait_last, NULL));
	fa_test_let_sleep_ms(200);
	for (int i = 0; i < ROUNDS; ++i) {
		const uint64_t begin_ns = fa_now_ns();

		fa_check_eq(fa_marker(told.client, 0, NULL, NULL), 0);
		n_soon += fa_now_ns() - begin_ns < 50 * FA_NS_PER_MS;
	}
	/*
	 * The reader must get the mutex: otherwise each request behind a full window takes 100 ms.
	 */
	print_message("%d of %d requests soon\n", n_soon, ROUNDS);
	fa_check(n_soon > ROUNDS / 4);
	pthread_join(thread, NULL);
	fa_disconnect(told.client);
	fake_daemon_stop(&fake);
}

static struct {
	struct fa_client *client;
	cpu_set_t one;
	uint64_t gate;
	atomic_bool there;
} late;

static void *wait_late(void *userdata)
{
	const struct fa_gate wait = { .slot = 1, .value = late.gate };
	const struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &wait };
	const struct sched_param param = {};

	fa_check(!pthread_setaffinity_np(pthread_self(), sizeof(late.one), &late.one));
	fa_check(!pthread_setschedparam(pthread_self(), SCHED_IDLE, &param));
	atomic_store(&late.there, true);
	fa_check_eq(fa_marker(late.client, 0, &gates, NULL), 0);
	return NULL;
}

/* Before a waiting thread is scheduled, more later requests end than the library keeps results. */
static void let_forget(uint64_t spin_ns)
{
	struct fa_options options = { .size = sizeof(options) };
	struct fa_timeline *timeline;
	struct fa_test_daemon daemon;
	struct fa_ticket last = {};
	cpu_set_t before;
	pthread_t thread;

	fa_test_daemon_start(&daemon, NULL);
	options.socket = daemon.socket;
	options.spin_ns = spin_ns;
	fa_check_eq(fa_connect(&options, &late.client), 0);
	fa_check_eq(fa_timeline_open(late.client, &timeline), 0);
	fa_check(!pthread_getaffinity_np(pthread_self(), sizeof(before), &before));
	CPU_ZERO(&late.one);
	for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&late.one); ++i)
		if (CPU_ISSET(i, &before))
			CPU_SET(i, &late.one);
	fa_check(!pthread_setaffinity_np(pthread_self(), sizeof(late.one), &late.one));
	for (late.gate = 1; late.gate <= 3; ++late.gate) {
		atomic_store(&late.there, false);
		fa_check(!pthread_create(&thread, NULL, wait_late, NULL));
		fa_check_eventually(atomic_load(&late.there));
		fa_test_let_sleep_ms(30);
		fa_check_eq(fa_timeline_write(timeline, 1, late.gate), 0);
		for (int n = 0; n < 4300;) {
			int r = fa_marker(late.client, 0, NULL, &last);

			fa_check(r == 0 || r == -EAGAIN);
			n += r == 0;
		}
		while (fa_wait(late.client, &last, 0, NULL) == -EAGAIN)
			;
		pthread_join(thread, NULL);
	}
	fa_check(!pthread_setaffinity_np(pthread_self(), sizeof(before), &before));
	fa_disconnect(late.client);
	fa_test_daemon_stop(&daemon);
}

static void test_late_waiter_asleep(void **state)
{
	let_forget(1);
}

static void test_late_waiter_spinning(void **state)
{
	let_forget(10 * FA_NS_PER_SEC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_spins_no_longer),
		cmocka_unit_test(test_connect_without_timeout),
		cmocka_unit_test(test_timeline_set_up_anew),
		cmocka_unit_test(test_slot_of_unsent_request),
		cmocka_unit_test(test_slot_freed_beside_reader),
		cmocka_unit_test(test_late_waiter_asleep),
		cmocka_unit_test(test_late_waiter_spinning),
	};

	return cmocka_run_group_tests_name("waits", tests, fake_daemon_setup, NULL);
}
