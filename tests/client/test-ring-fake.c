/*
 * A ring whose other end is the test: missing completion records, and results that one thread finds
 * while others sleep for them.
 */
#include "client/faclient.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/memfd.h"
#include "common/results.h"
#include "common/ring.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define RECORDS 64

/* The daemon's end of the ring. */
static struct {
	struct fake_daemon fake;
	struct fa_completion_slot *page;
	struct fa_ring_words *words;
	struct fa_record *records;
	int wake, doorbell, socket;
	_Atomic bool there, pinged;
	enum {
		RIGHT,
		DEAF_DOORBELL,
		NO_WAKE,
		WAITING_WAKE,
		FULL_DOORBELL
	} kind;
	uint64_t features, reply_ns;
	bool reconnects; /* with a successor after a loss */
	struct fa_ring_consumer entries;
	_Atomic unsigned int n_packets;
} end = { .features = FA_WIRE_FEATURE_RING };

static void *memory_of(int fd, uint64_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	fa_check(memory != MAP_FAILED);
	return memory;
}

static void give_ring(struct fa_raw *raw)
{
	const uint64_t bytes = FA_RING_HEAD_BYTES + FA_RING_BYTES_DEFAULT;
	struct fa_wire_message reply = {
		.id = raw->message.id,
		.fds = FA_WIRE_RING_FDS,
		.type = FA_WIRE_RING_REPLY,
		.ring_reply = { .bytes = FA_RING_BYTES_DEFAULT,
		                .results_bytes = fa_results_bytes(RECORDS),
		                .records = RECORDS },
	};
	int fds[FA_WIRE_RING_FDS], wake[2];

	fa_check_eq(fa_memfd_new("ring", bytes, 1, &fds[0]), 0);
	fa_check_eq(fa_memfd_new("results", fa_results_bytes(RECORDS), 1, &fds[1]), 0);
	fa_check((fds[2] = eventfd(
			  0, EFD_CLOEXEC | (end.kind == FULL_DOORBELL ? 0 : EFD_NONBLOCK))) >= 0);
	if (end.kind == FULL_DOORBELL)
		fa_check(!eventfd_write(fds[2], UINT64_MAX - 1));
	fa_check(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, wake));
	if (end.kind == DEAF_DOORBELL || end.kind == NO_WAKE) {
		int ends[2];

		fa_check(!pipe2(ends, O_CLOEXEC));
		close(ends[0]);
		dup3(ends[1], end.kind == NO_WAKE ? wake[0] : fds[2], O_CLOEXEC);
		close(ends[1]);
	}
	if (end.kind == WAITING_WAKE)
		fa_check(!fcntl(wake[0], F_SETFL, 0));
	fds[3] = wake[0];
	end.wake = wake[1];
	end.words = memory_of(fds[0], bytes);
	fa_ring_consumer_init(&end.entries, end.words, FA_RING_BYTES_DEFAULT);
	atomic_store(&end.words->asleep, end.kind == DEAF_DOORBELL || end.kind == FULL_DOORBELL);
	fa_check((end.doorbell = fcntl(fds[2], F_DUPFD_CLOEXEC, 0)) >= 0);
	end.records = memory_of(fds[1], fa_results_bytes(RECORDS));
	fa_check_eq(fa_raw_send(raw, &reply, fds, FA_WIRE_RING_FDS), 0);
	for (int i = 0; i < FA_WIRE_RING_FDS; ++i)
		close(fds[i]);
	atomic_store(&end.there, true);
}

static void answer_begin(struct fa_raw *raw)
{
	const struct fa_wire_message reply = {
		.id = raw->message.id,
		.type = FA_WIRE_STEP_REPLY,
		.step_reply = { .step = raw->message.step_begin.step, .number = FAKE_DAEMON_STEP },
	};

	fa_check_eq(raw->message.step_begin.value, 0);
	fa_check_eq(fa_raw_send(raw, &reply, NULL, 0), 0);
	atomic_fetch_add(&end.n_packets, 1);
}

static void serve(struct fa_raw *raw, void *userdata)
{
	struct fa_wire_message reply;

	if (!fake_daemon_next(raw))
		return;
	reply = fake_daemon_hello_reply(raw->message.id);
	reply.hello_reply.features = end.features;
	end.page = fake_daemon_welcome_with(raw, &reply);
	end.socket = raw->fd;
	while (fa_raw_receive(raw, -1) == 1)
		if (raw->message.type == FA_WIRE_RING_SETUP)
			give_ring(raw);
		else if (raw->message.type == FA_WIRE_PING)
			atomic_store(&end.pinged, true);
		else if (raw->message.type == FA_WIRE_STEP_BEGIN)
			answer_begin(raw);
}

static void publish(uint64_t value, bool wake)
{
	const struct fa_outcome outcome = { .queued_ns = 1, .finished_ns = value };

	fa_record_write(&end.records[fa_record_index(0, RECORDS, value)], value, &outcome);
	atomic_store(&end.page[0].completed, value);
	if (wake && fa_ring_needs_wakeup(end.words))
		fa_check_eq(send(end.wake, "", 1, MSG_DONTWAIT), 1);
}

/* With @n requests in flight; the first ticket is ret_tickets[1]. */
static struct fa_client *start(uint64_t spin_ns, unsigned int n, struct fa_ticket *ret_tickets)
{
	struct fa_options options = { .size = sizeof(options),
		                      .spin_ns = spin_ns,
		                      .reply_ns = end.reply_ns,
		                      .reconnect_ns = end.reconnects ? 0 : UINT64_MAX };
	struct fa_client *client;

	atomic_store(&end.there, false);
	atomic_store(&end.pinged, false);
	fake_daemon_start(&end.fake, serve, NULL);
	options.socket = end.fake.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	for (unsigned int i = 1; i <= n; ++i)
		fa_check_eq(fa_marker(client, 0, NULL, &ret_tickets[i]), 0);
	/* The requests may arrive before the fake has set end.there. */
	fa_check_eventually(!n || atomic_load(&end.there));
	return client;
}

static void finish(struct fa_client *client)
{
	fa_disconnect(client);
	fake_daemon_stop(&end.fake);
	munmap(end.words, FA_RING_HEAD_BYTES + FA_RING_BYTES_DEFAULT);
	munmap(end.records, fa_results_bytes(RECORDS));
	close(end.wake);
	close(end.doorbell);
}

static void test_missing(void **state)
{
	struct fa_ticket tickets[2];
	struct fa_client *client = start(0, 1, tickets);

	atomic_store(&end.page[0].completed, 1);
	(void)fa_wait(client, &tickets[1], UINT64_MAX, NULL);
	fa_check_eq(fa_dispatch(client), -EPROTO);
	fa_check_contains(fa_error(), "no record");
	finish(client);
}

/* The daemon closes the connection before it removes the records. */
static void test_closed_before_records_go(void **state)
{
	struct fa_completion completion = { .size = sizeof(completion) };
	struct fa_ticket tickets[3];
	struct fa_client *client = start(0, 2, tickets);

	publish(1, false);
	atomic_store(&end.page[0].completed, 2);
	fa_check(!shutdown(end.socket, SHUT_RDWR));
	fa_check_eq(fa_wait(client, &tickets[2], UINT64_MAX, &completion), 0);
	fa_check_eq(completion.status, 0);
	fa_check_eq(fa_wait(client, &tickets[1], UINT64_MAX, &completion), 0);
	fa_check_eq(completion.finished_ns, 1);
	fa_check_eq(fa_dispatch(client), -ECONNRESET);
	finish(client);
}

static void signal_end(uint32_t value)
{
	for (int i = 0; i < FA_COMPLETION_DEVICE_WORDS; ++i)
		atomic_store(&end.page[0].device_words[i], value);
}

/*
 * The device signals a request's end and is lost before the daemon sees it: the result stays valid.
 */
static void test_signalled_then_lost(void **state)
{
	struct fa_wire_message message = {
		.type = FA_WIRE_COMPLETION,
		.completion = { .status = -ENODEV, .value = 1, .text = { "lost", 4 } },
	};
	const struct fa_outcome outcome = { .status = -ENODEV };
	struct fa_completion completion = { .size = sizeof(completion) };
	_Alignas(8) unsigned char bytes[65536 + 64];
	struct fa_ticket tickets[3];
	struct fa_client *client = start(FA_NS_PER_SEC, 2, tickets);
	size_t length;

	signal_end(1);
	fa_check_eq(fa_wait(client, &tickets[1], UINT64_MAX, NULL), 0);
	for (uint64_t value = 1; value <= 2; ++value)
		fa_record_write(&end.records[fa_record_index(0, RECORDS, value)], value, &outcome);
	atomic_store(&end.page[0].failed, 2);
	atomic_store(&end.page[0].completed, 2);
	for (uint64_t value = 1; value <= 2; ++value) {
		message.completion.value = value;
		length = fa_raw_encode(&message, bytes);
		fa_check_eq(send(end.socket, bytes, length, 0), (ssize_t)length);
	}
	fa_check_eq(fa_wait(client, &tickets[2], UINT64_MAX, NULL), -ENODEV);
	fa_check_eq(fa_wait(client, &tickets[1], UINT64_MAX, &completion), 0);
	fa_check_eq(completion.status, 0);
	finish(client);
}

/* The device signals two ends, and the second signal replaces the first, before there is a record. */
static void test_signalled_twice(void **state)
{
	struct fa_completion completion = { .size = sizeof(completion) };
	struct fa_ticket tickets[4];
	struct fa_client *client = start(FA_NS_PER_SEC, 3, tickets);

	signal_end(2);
	fa_check_eq(fa_wait(client, &tickets[2], 0, NULL), 0);
	fa_check_eq(fa_wait(client, &tickets[1], 0, NULL), 0);
	fa_check_eq(fa_wait(client, &tickets[3], 0, NULL), -EAGAIN);
	publish(1, false);
	fa_check_eq(fa_wait(client, &tickets[1], 0, &completion), 0);
	fa_check_eq(completion.finished_ns, 1);
	publish(2, false);
	publish(3, false);
	fa_check_eq(fa_wait(client, &tickets[3], UINT64_MAX, &completion), 0);
	finish(client);
}

enum {
	NUMBER = 77,
	BEGINS = 3,
};

static const struct fa_step_item item = { .sequence = 5, .n_new = 1 };
static const struct fa_step_options step_options = { .size = sizeof(step_options),
	                                             .n_items = 1,
	                                             .items = &item };

static void take(struct fa_wire_message *ret_message)
{
	static _Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];
	const uint64_t until_ns = fa_now_ns() + fa_test_patience_ns();
	const char *wrong;
	size_t length;

	while (!atomic_load(&end.there) ||
	       fa_ring_take(&end.entries, bytes, sizeof(bytes), &length, &wrong) < 0)
		fa_check(fa_now_ns() < until_ns);
	fa_check_eq(fa_wire_decode(bytes, length, ret_message), 0);
}

static void end_begin(uint64_t value, int status, const char *text)
{
	const struct fa_outcome outcome = { .status = status,
		                            .queued_ns = 1,
		                            .finished_ns = 2,
		                            .number = status ? 0 : NUMBER + value };
	struct fa_wire_message message = {
		.type = FA_WIRE_COMPLETION,
		.completion = { .status = status, .value = value },
	};
	_Alignas(8) unsigned char bytes[4096];
	size_t length;

	fa_record_write(&end.records[fa_record_index(0, RECORDS, value)], value, &outcome);
	if (status)
		atomic_store(&end.page[0].failed, value);
	atomic_store(&end.page[0].completed, value);
	if (status) {
		message.completion.text = (struct fa_wire_string){ text, strlen(text) };
		length = fa_raw_encode(&message, bytes);
		fa_check_eq(send(end.socket, bytes, length, 0), (ssize_t)length);
	} else if (fa_ring_needs_wakeup(end.words)) {
		fa_check_eq(send(end.wake, "", 1, MSG_DONTWAIT), 1);
	}
}

/* Takes request @value of stream 0, a StepBegin, from the ring. */
static void take_begin(uint64_t value)
{
	struct fa_wire_message message;

	take(&message);
	fa_check_eq(message.type, FA_WIRE_STEP_BEGIN);
	fa_check_eq(message.step_begin.stream, 0);
	fa_check_eq(message.step_begin.value, value);
	fa_check(message.step_begin.step);
	fa_check_eq(message.step_begin.n_items, 1);
	fa_check_eq(message.step_begin.items[0].sequence, item.sequence);
}

static void *answer_begins(void *userdata)
{
	for (uint64_t value = 2; value < 2 + BEGINS; ++value) {
		take_begin(value);
		end_begin(value, 0, NULL);
	}
	take_begin(2 + BEGINS);
	end_begin(2 + BEGINS, -ENOENT, "there is no sequence 0x5");
	return NULL;
}

/* Stream 0 has only request 1 in flight. */
static struct fa_client *start_with_ring(uint64_t features, uint64_t spin_ns)
{
	struct fa_wire_message message;
	struct fa_ticket tickets[2];
	struct fa_client *client;

	end.features = features;
	atomic_store(&end.n_packets, 0);
	client = start(spin_ns, 1, tickets);
	take(&message);
	fa_check_eq(message.type, FA_WIRE_MARKER);
	return client;
}

static void begin_by_ring(uint64_t spin_ns)
{
	struct fa_client *client = start_with_ring(FA_WIRE_FEATURE_RING | FA_WIRE_FEATURE_STEP_RING,
	                                           spin_ns);
	struct fa_step *steps[BEGINS], *none = NULL;
	struct fa_ticket ticket = { .client = 0 };
	pthread_t thread;

	publish(1, false);
	fa_check(!pthread_create(&thread, NULL, answer_begins, NULL));
	for (uint64_t i = 0; i < BEGINS; ++i) {
		fa_check_eq(fa_step_begin(client, &step_options, &steps[i]), 0);
		fa_check_eq(fa_step_number(steps[i]), NUMBER + 2 + i);
	}
	fa_check_eq(fa_step_begin(client, &step_options, &none), -ENOENT);
	fa_check_contains(fa_error(), "there is no sequence 0x5");
	fa_check(!none);
	pthread_join(thread, NULL);
	fa_check_eq(fa_marker(client, 0, NULL, &ticket), 0);
	fa_check_eq(ticket.value, 3 + BEGINS);
	publish(3 + BEGINS, true);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), 0);
	fa_check_eq(atomic_load(&end.n_packets), 0);
	fa_check(!shutdown(end.socket, SHUT_RDWR));
	for (int i = 0; i < BEGINS; ++i)
		fa_step_free(steps[i]);
	finish(client);
	end.features = FA_WIRE_FEATURE_RING;
}

static void test_begin_spinning(void **state)
{
	begin_by_ring(10 * FA_NS_PER_SEC);
}

static void test_begin_asleep(void **state)
{
	begin_by_ring(0);
}

static void *hang_up(void *userdata)
{
	take_begin(2);
	fa_check(!shutdown(end.socket, SHUT_RDWR));
	return NULL;
}

/*
 * Begins a step by ring while the daemon closes the connection, or (@daemon NULL) does not reply.
 */
static void begin_in_vain(void *(*daemon)(void *), uint64_t spin_ns, int error, const char *text)
{
	struct fa_client *client = start_with_ring(FA_WIRE_FEATURE_RING | FA_WIRE_FEATURE_STEP_RING,
	                                           spin_ns);
	struct fa_step *step = NULL;
	pthread_t thread;

	publish(1, false);
	if (daemon)
		fa_check(!pthread_create(&thread, NULL, daemon, NULL));
	fa_check_eq(fa_step_begin(client, &step_options, &step), error);
	fa_check_contains(fa_error(), text);
	fa_check(!step);
	if (daemon)
		pthread_join(thread, NULL);
	fa_check_eq(atomic_load(&end.n_packets), 0);
	finish(client);
	end.features = FA_WIRE_FEATURE_RING;
}

static void test_begin_lost(void **state)
{
	begin_in_vain(hang_up, 0, -ECONNRESET, "went away");
	begin_in_vain(hang_up, 10 * FA_NS_PER_SEC, -ECONNRESET, "went away");
}

/* The client reconnects and sends the successor the StepBegin again, by packet: a step ends with
 * its connection. */
static void begin_again(uint64_t spin_ns)
{
	struct fa_client *client = start_with_ring(FA_WIRE_FEATURE_RING | FA_WIRE_FEATURE_STEP_RING,
	                                           spin_ns);
	struct fa_step *step;
	pthread_t thread;

	publish(1, false);
	fa_check(!pthread_create(&thread, NULL, hang_up, NULL));
	fa_check_eq(fa_step_begin(client, &step_options, &step), 0);
	fa_check_eq(fa_step_number(step), FAKE_DAEMON_STEP);
	pthread_join(thread, NULL);
	fa_check_eq(atomic_load(&end.n_packets), 1);
	fa_check(!shutdown(end.socket, SHUT_RDWR));
	fa_step_free(step);
	finish(client);
	end.features = FA_WIRE_FEATURE_RING;
}

static void test_begin_lost_once(void **state)
{
	end.reconnects = true;
	begin_again(0);
	begin_again(10 * FA_NS_PER_SEC);
	end.reconnects = false;
}

static void test_begin_unanswered(void **state)
{
	end.reply_ns = 50 * FA_NS_PER_MS;
	begin_in_vain(NULL, 0, -ETIMEDOUT, "did not answer StepBegin in time");
	begin_in_vain(NULL, FA_NS_PER_SEC, -ETIMEDOUT, "did not answer StepBegin in time");
	end.reply_ns = 0;
}

/*
 * StepBegin goes by packet without the feature, or (@busy) behind an unfinished request of the
 * stream.
 */
static void begin_as_packet(uint64_t features, bool busy)
{
	struct fa_client *client = start_with_ring(features, 0);
	struct fa_step *step;

	if (!busy)
		publish(1, false);
	fa_check_eq(fa_step_begin(client, &step_options, &step), 0);
	fa_check_eq(fa_step_number(step), FAKE_DAEMON_STEP);
	fa_check_eq(atomic_load(&end.n_packets), 1);
	fa_check(!shutdown(end.socket, SHUT_RDWR));
	fa_step_free(step);
	finish(client);
	end.features = FA_WIRE_FEATURE_RING;
}

static void test_begin_old_daemon(void **state)
{
	begin_as_packet(FA_WIRE_FEATURE_RING, false);
}

static void test_begin_busy(void **state)
{
	begin_as_packet(FA_WIRE_FEATURE_RING | FA_WIRE_FEATURE_STEP_RING, true);
}

static void test_wrong_descriptors(void **state)
{
	for (int kind = DEAF_DOORBELL; kind <= NO_WAKE; ++kind) {
		struct fa_client *client;
		struct fa_ticket ticket;

		end.kind = kind;
		client = start(0, 0, NULL);
		fa_check_eq(fa_marker(client, 0, NULL, &ticket), -EPROTO);
		fa_check_contains(fa_error(), "eventfd");
		finish(client);
	}
	end.kind = RIGHT;
}

static void test_waiting_wake(void **state)
{
	struct fa_ticket tickets[2];
	struct fa_client *client;

	end.kind = WAITING_WAKE;
	client = start(0, 1, tickets);
	fa_check(fa_fd(client) >= 0);
	fa_check_eq(fa_dispatch(client), 0);
	publish(1, true);
	fa_check_eq(fa_dispatch(client), 0);
	fa_check_eq(fa_wait(client, &tickets[1], 0, NULL), 0);
	finish(client);
	end.kind = RIGHT;
}

/* The doorbell is a full eventfd that would block the writer. */
static void test_full_doorbell(void **state)
{
	struct fa_ticket tickets[3];
	struct fa_client *client;

	end.kind = FULL_DOORBELL;
	client = start(0, 1, tickets);
	fa_check(!atomic_load(&end.words->asleep));
	fa_check(fcntl(end.doorbell, F_GETFL) & O_NONBLOCK);
	fa_check(!fcntl(end.doorbell, F_SETFL, 0));
	atomic_store(&end.words->asleep, 1);
	fa_check_eq(fa_marker(client, 0, NULL, &tickets[2]), 0);
	fa_check(!atomic_load(&end.words->asleep));
	publish(1, true);
	publish(2, true);
	fa_check_eq(fa_wait(client, &tickets[2], UINT64_MAX, NULL), 0);
	finish(client);
	end.kind = RIGHT;
}

/* Results found within this time were found at once: a thread sleeps for a second at a time. */
#define SOON_NS (300 * FA_NS_PER_MS)

struct waiter {
	pthread_t thread;
	struct fa_client *client;
	struct fa_ticket ticket;
	_Atomic bool begun;
	_Atomic uint64_t done_ns;
};

static void *wait_for(void *userdata)
{
	struct waiter *waiter = userdata;

	atomic_store(&waiter->begun, true);
	fa_check_eq(fa_wait(waiter->client, &waiter->ticket, UINT64_MAX, NULL), 0);
	atomic_store(&waiter->done_ns, fa_now_ns());
	return NULL;
}

static void begin(struct waiter *waiter, struct fa_client *client, const struct fa_ticket *ticket)
{
	*waiter = (struct waiter){ .client = client, .ticket = *ticket };
	fa_check(!pthread_create(&waiter->thread, NULL, wait_for, waiter));
	fa_check_eventually(atomic_load(&waiter->begun));
}

/*
 * Two threads sleep, one of them watching the daemon; a third finds the other sleeper's result.
 * Returns how long that sleeper went on sleeping.
 */
static uint64_t collect_once(void)
{
	struct fa_ticket tickets[3];
	struct fa_completion completion = { .size = sizeof(completion) };
	struct fa_client *client = start(1, 2, tickets);
	struct waiter leader, sleeper;
	uint64_t then_ns;

	begin(&leader, client, &tickets[2]);
	fa_check_eventually(atomic_load(&end.words->armed));
	begin(&sleeper, client, &tickets[1]);
	fa_test_let_sleep_ms(20);
	publish(1, false);
	then_ns = fa_now_ns();
	fa_check_eq(fa_wait(client, &tickets[1], UINT64_MAX, &completion), 0);
	pthread_join(sleeper.thread, NULL);
	publish(2, true);
	pthread_join(leader.thread, NULL);
	finish(client);
	return atomic_load(&sleeper.done_ns) - then_ns;
}

/* Expects five quick runs of @once in 40, as a loaded machine may delay any single one. */
static void check_soon(uint64_t (*once)(void))
{
	int n_soon = 0, n = 0;

	while (n < 40 && n_soon < 5) {
		n_soon += once() < SOON_NS;
		++n;
	}
	print_message("%d of %d times at once\n", n_soon, n);
	fa_check_eq(n_soon, 5);
}

static void test_other_finds(void **state)
{
	check_soon(collect_once);
}

static void *ask(void *userdata)
{
	fa_check_eq(fa_ping(userdata), -ECONNRESET);
	return NULL;
}

/*
 * One thread sleeps for the socket while another sets up the ring; from then on both wake the
 * sleeper. Returns how long the sleeper went on sleeping.
 */
static uint64_t make_late(void)
{
	struct fa_client *client = start(1, 0, NULL);
	struct fa_ticket ticket;
	struct waiter waiter;
	uint64_t then_ns;
	pthread_t thread;

	fa_check(!pthread_create(&thread, NULL, ask, client));
	fa_check_eventually(atomic_load(&end.pinged));
	fa_test_let_sleep_ms(5);
	fa_check_eq(fa_marker(client, 0, NULL, &ticket), 0);
	begin(&waiter, client, &ticket);
	fa_test_let_sleep_ms(20);
	then_ns = fa_now_ns();
	publish(1, true);
	pthread_join(waiter.thread, NULL);
	shutdown(end.socket, SHUT_RDWR);
	pthread_join(thread, NULL);
	finish(client);
	return atomic_load(&waiter.done_ns) - then_ns;
}

static void test_ring_made_while_asleep(void **state)
{
	check_soon(make_late);
}

/* One thread sleeps while another polls. Returns how long the sleeper went on sleeping. */
static uint64_t dispatch_once(void)
{
	struct fa_ticket tickets[2];
	struct fa_client *client = start(1, 1, tickets);
	struct waiter waiter;
	uint64_t then_ns;

	begin(&waiter, client, &tickets[1]);
	fa_check_eventually(atomic_load(&end.words->armed));
	fa_test_let_sleep_ms(20);
	then_ns = fa_now_ns();
	publish(1, true);
	fa_check_eq(fa_dispatch(client), 0);
	pthread_join(waiter.thread, NULL);
	finish(client);
	return atomic_load(&waiter.done_ns) - then_ns;
}

/* A thread that polls does not consume the wake-up of one that sleeps. */
static void test_dispatch_keeps_wake_ups(void **state)
{
	check_soon(dispatch_once);
}

/*
 * One thread spins for a result while another polls the client's descriptor. Returns how long the
 * descriptor was readable without news.
 */
static uint64_t watch_once(void)
{
	struct fa_ticket tickets[2];
	struct fa_client *client = start(FA_NS_PER_SEC, 1, tickets);
	struct pollfd pollfd = { .fd = fa_fd(client), .events = POLLIN };
	uint64_t then_ns, quiet_ns;
	pthread_t thread;

	fa_check_eq(fa_dispatch(client), 0);
	fa_check(!pthread_create(&thread, NULL, ask, client));
	fa_check_eventually(atomic_load(&end.pinged));
	fa_test_let_sleep_ms(20);
	publish(1, true);
	fa_check_eq(poll(&pollfd, 1, -1), 1);
	fa_check_eq(fa_dispatch(client), 0);
	fa_check_eq(fa_wait(client, &tickets[1], 0, NULL), 0);
	then_ns = fa_now_ns();
	while (poll(&pollfd, 1, 0) > 0)
		fa_check_eq(fa_dispatch(client), 0);
	quiet_ns = fa_now_ns();
	shutdown(end.socket, SHUT_RDWR);
	pthread_join(thread, NULL);
	finish(client);
	return quiet_ns - then_ns;
}

static void test_polled_beside_a_spinner(void **state)
{
	check_soon(watch_once);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wrong_descriptors),
		cmocka_unit_test(test_waiting_wake),
		cmocka_unit_test(test_full_doorbell),
		cmocka_unit_test(test_missing),
		cmocka_unit_test(test_closed_before_records_go),
		cmocka_unit_test(test_signalled_then_lost),
		cmocka_unit_test(test_signalled_twice),
		cmocka_unit_test(test_begin_spinning),
		cmocka_unit_test(test_begin_asleep),
		cmocka_unit_test(test_begin_lost),
		cmocka_unit_test(test_begin_lost_once),
		cmocka_unit_test(test_begin_unanswered),
		cmocka_unit_test(test_begin_old_daemon),
		cmocka_unit_test(test_begin_busy),
		cmocka_unit_test(test_other_finds),
		cmocka_unit_test(test_ring_made_while_asleep),
		cmocka_unit_test(test_dispatch_keeps_wake_ups),
		cmocka_unit_test(test_polled_beside_a_spinner),
	};

	return cmocka_run_group_tests(tests, fake_daemon_setup, NULL);
}
