/*
 * Many threads use one client: all kinds of requests, on one stream and on many. The fake daemon
 * breaks connections; results are compared on the real one.
 */
#include "client/faclient.h"
#include "tests/client/attention-request.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#define THREADS 8

struct shared {
	struct fake_daemon fake;
	struct fa_client *client;
	int rounds;
	bool lossy;
	atomic_int served, lost, done;
};

struct worker {
	struct shared *shared;
	int number;
	pthread_t thread;
};

static struct fa_attention small_attention(struct fa_buffer *buffer)
{
	struct fa_attention attention = { .size = sizeof(attention) };
	const int64_t shape[] = { 1, 4, 1, 8 };

	fa_tensor_init(&attention.q, buffer, 0, FA_F32, 4, shape);
	attention.k = attention.v = attention.out = attention.q;
	attention.out.offset = 2048;
	return attention;
}

/* True: success; false: broken connection (lossy only). Fails otherwise. */
static bool went_well(struct shared *shared, int r)
{
	if (shared->lossy && r == -ECONNRESET) {
		atomic_fetch_add(&shared->lost, 1);
		return false;
	}
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
	return true;
}

static void *work(void *userdata)
{
	struct worker *worker = userdata;
	struct shared *shared = worker->shared;
	struct fa_client *client = shared->client;
	struct fa_attention attention;
	struct fa_buffer *buffer;
	uint32_t stream = 0;

	while (!went_well(shared, fa_buffer_new(client, 4096, worker->number % 2 * FA_BUFFER_DEVICE,
	                                        &buffer)))
		;
	while (worker->number % 4 == 1 && !went_well(shared, fa_stream_new(client, 0, &stream)))
		;
	attention = small_attention(buffer);
	attention.stream = stream;

	for (int i = 0; i < shared->rounds; ++i) {
		struct fa_completion completion = { .size = sizeof(completion) };
		struct fa_ticket tickets[4];
		struct fa_buffer *passing;
		char *json;
		int r;

		switch ((i + worker->number) % 6) {
		case 0:
			went_well(shared, fa_ping(client));
			break;
		case 1:
			went_well(shared, fa_attention(client, &attention, NULL));
			break;
		case 2:
			for (int k = 0; k < 4; ++k) {
				tickets[k].client = 0;
				do
					r = fa_attention(client, &attention, &tickets[k]);
				while (r == -EAGAIN);
				if (!went_well(shared, r))
					tickets[k].client = 0;
			}
			for (int k = 3; k >= 0; --k)
				if (tickets[k].client)
					went_well(shared, fa_wait(client, &tickets[k], UINT64_MAX,
					                          i & 1 ? &completion : NULL));
			break;
		case 3:
			if (went_well(shared, fa_buffer_new(client, 4096, 0, &passing)))
				fa_buffer_free(passing);
			break;
		case 4:
			if (went_well(shared, fa_status(client, &json)))
				free(json);
			break;
		case 5:
			r = fa_attention(client, &attention, &tickets[0]);
			if (r == -EAGAIN || !went_well(shared, r))
				break;
			do
				r = fa_wait(client, &tickets[0], FA_NS_PER_US, NULL);
			while (r == -EAGAIN);
			went_well(shared, r);
			break;
		}
	}
	while (stream && !went_well(shared, fa_stream_free(client, stream)))
		;
	fa_buffer_free(buffer);
	atomic_fetch_add(&shared->done, 1);
	return NULL;
}

static void serve_fifty(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);

	for (int i = 0; page && i < 50 && fake_daemon_next(raw); ++i)
		fake_daemon_answer(raw, page);
}

static void *watch(void *userdata)
{
	struct shared *shared = userdata;
	struct pollfd pollfd = { .fd = fa_fd(shared->client), .events = POLLIN };

	fa_check(pollfd.fd >= 0);
	while (atomic_load(&shared->done) < THREADS) {
		fa_check(poll(&pollfd, 1, 5) >= 0);
		went_well(shared, fa_dispatch(shared->client));
		(void)fa_client_state(shared->client);
	}
	return NULL;
}

static void run(struct shared *shared, uint64_t spin_ns)
{
	struct fa_options options = { .size = sizeof(options), .spin_ns = spin_ns };
	struct worker workers[THREADS];
	pthread_t watcher;

	fake_daemon_start(&shared->fake, shared->lossy ? serve_fifty : fake_daemon_serve, NULL);
	options.socket = shared->fake.socket;
	fa_check_eq(fa_connect(&options, &shared->client), 0);
	for (int i = 0; i < THREADS; ++i) {
		workers[i] = (struct worker){ .shared = shared, .number = i };
		fa_check(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	}
	fa_check(!pthread_create(&watcher, NULL, watch, shared));
	for (int i = 0; i < THREADS; ++i)
		pthread_join(workers[i].thread, NULL);
	pthread_join(watcher, NULL);
	fa_disconnect(shared->client);
	fake_daemon_stop(&shared->fake);
}

static int rounds(void)
{
	return (fa_test_sanitized() ? 100 : 500) * (fa_test_long() ? 10 : 1);
}

static void test_together(void **state)
{
	struct shared shared = { .rounds = rounds() };

	run(&shared, 1);
	fa_check_eq(shared.lost, 0);
}

static void test_spinning(void **state)
{
	struct shared shared = { .rounds = rounds() };

	run(&shared, 100 * FA_NS_PER_US);
}

static void test_broken_connections(void **state)
{
	struct shared shared = { .rounds = rounds(), .lossy = true };

	run(&shared, 20 * FA_NS_PER_US);
	fa_check(shared.lost > 0);
}

/* Polling must not consume completions that another thread awaits. */
static void *ping_often(void *userdata)
{
	struct shared *shared = userdata;

	for (int i = 0; i < shared->rounds; ++i)
		went_well(shared, fa_ping(shared->client));
	atomic_store(&shared->done, 1);
	return NULL;
}

static void serve_slowly(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);

	while (page && fake_daemon_next(raw)) {
		fa_test_work_us(1000);
		fake_daemon_answer(raw, page);
	}
}

static void test_poll_consumes_nothing(void **state)
{
	struct shared shared = { .rounds = rounds() };
	struct fa_options options = { .size = sizeof(options) };
	pthread_t thread;

	options.reply_ns = fa_test_patience_ns() / 4;
	fake_daemon_start(&shared.fake, serve_slowly, NULL);
	options.socket = shared.fake.socket;
	fa_check_eq(fa_connect(&options, &shared.client), 0);
	fa_check(!pthread_create(&thread, NULL, ping_often, &shared));
	while (!atomic_load(&shared.done))
		fa_check_eq(fa_client_state(shared.client), FA_CLIENT_CONNECTED);
	pthread_join(thread, NULL);
	fa_disconnect(shared.client);
	fake_daemon_stop(&shared.fake);
}

static void *compute(void *userdata)
{
	struct worker *worker = userdata;
	struct fa_client *client = worker->shared->client;
	struct fa_case attention = { .heads = 2,
		                     .seqlen_q = 10 + worker->number,
		                     .causal = worker->number % 2,
		                     .seed = (uint64_t)worker->number };
	struct fa_attention request;
	struct fa_buffer *buffer;
	uint32_t stream = 0;

	fa_case_plan(&attention);
	went_well(worker->shared, fa_buffer_new(client, attention.bytes, 0, &buffer));
	if (worker->number % 3 == 1)
		went_well(worker->shared, fa_stream_new(client, worker->number % 2, &stream));
	request = fa_case_attention(&attention, buffer);
	request.stream = stream;
	for (int i = 0; i < worker->shared->rounds; ++i) {
		struct fa_ticket ticket;

		/* The poison in out reveals results reported too early. */
		fa_case_fill(&attention, fa_buffer_data(buffer));
		if (i % 2) {
			went_well(worker->shared, fa_attention(client, &request, NULL));
		} else {
			went_well(worker->shared, fa_attention(client, &request, &ticket));
			went_well(worker->shared, fa_wait(client, &ticket, UINT64_MAX, NULL));
		}
		fa_check(fa_case_error(&attention, fa_buffer_data(buffer)) <= 1);
	}
	if (stream)
		went_well(worker->shared, fa_stream_free(client, stream));
	fa_buffer_free(buffer);
	return NULL;
}

static void test_real_daemon(void **state)
{
	const uint64_t spins[] = { 1, 50 * FA_NS_PER_US };
	struct fa_test_daemon fad;

	fa_test_daemon_start(&fad, NULL);
	for (int k = 0; k < 2; ++k) {
		struct fa_options options = { .size = sizeof(options),
			                      .socket = fad.socket,
			                      .spin_ns = spins[k] };
		struct shared shared = { .rounds = rounds() / 10 };
		struct worker workers[THREADS];

		fa_check_eq(fa_connect(&options, &shared.client), 0);
		for (int i = 0; i < THREADS; ++i) {
			workers[i] = (struct worker){ .shared = &shared, .number = i };
			fa_check(!pthread_create(&workers[i].thread, NULL, compute, &workers[i]));
		}
		for (int i = 0; i < THREADS; ++i)
			pthread_join(workers[i].thread, NULL);
		fa_disconnect(shared.client);
	}
	fa_test_daemon_stop(&fad);
}

static void *fail_alone(void *userdata)
{
	struct fa_client *client = userdata;
	struct fa_ticket ticket = {};

	assert_string_equal(fa_error(), "");
	for (int i = 0; i < 100; ++i) {
		fa_check_eq(fa_wait(client, &ticket, 0, NULL), -EINVAL);
		fa_check_contains(fa_error(), "ticket");
	}
	return NULL;
}

static void test_errors_per_thread(void **state)
{
	struct fa_options options = { .size = sizeof(options) };
	struct fa_client *client;
	struct fake_daemon fake;
	pthread_t thread;

	fake_daemon_start(&fake, fake_daemon_serve, NULL);
	options.socket = fake.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check(!pthread_create(&thread, NULL, fail_alone, client));
	for (int i = 0; i < 100; ++i) {
		fa_check_eq(fa_stream_free(client, 9), -ENOENT);
		fa_check_contains(fa_error(), "stream 9");
	}
	pthread_join(thread, NULL);
	fa_disconnect(client);
	fake_daemon_stop(&fake);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_together),
		cmocka_unit_test(test_spinning),
		cmocka_unit_test(test_broken_connections),
		cmocka_unit_test(test_poll_consumes_nothing),
		cmocka_unit_test(test_real_daemon),
		cmocka_unit_test(test_errors_per_thread),
	};

	return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
