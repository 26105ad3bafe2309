/*
 * A ring of a real daemon: results, event loops, sleeping threads, a full ring, restarts, many
 * clients.
 */
#include "client/faclient.h"
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct fa_test_daemon daemon_process;
static struct fa_client *client;
static struct fa_test_random numbers = { 11 };

static void check(int r)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
}

static struct fa_client *connect_with(const struct fa_test_daemon *daemon, uint32_t flags,
                                      uint64_t spin_ns)
{
	struct fa_options options = { .size = sizeof(options),
		                      .socket = daemon->socket,
		                      .flags = flags,
		                      .spin_ns = spin_ns };
	struct fa_client *made;

	options.reconnect_ns = fa_test_patience_ns();
	check(fa_connect(&options, &made));
	return made;
}

static uint64_t ring_bytes(struct fa_client *of)
{
	struct fa_info info = { .size = sizeof(info) };

	check(fa_info(of, &info));
	return info.ring_bytes;
}

static struct fa_attention attention_of(struct fa_buffer *buffer, int64_t queries, int64_t keys)
{
	struct fa_attention attention = { .size = sizeof(attention) };
	const int64_t q[] = { 1, queries, 1, 64 }, k[] = { 1, keys, 1, 64 };

	fa_tensor_init(&attention.q, buffer, 0, FA_F32, 4, q);
	fa_tensor_init(&attention.k, buffer, 0, FA_F32, 4, k);
	attention.v = attention.k;
	fa_tensor_init(&attention.out, buffer, fa_tensor_bytes(FA_F32, 4, k), FA_F32, 4, q);
	return attention;
}

static struct fa_buffer *buffer_for(struct fa_client *of, int64_t queries, int64_t keys)
{
	struct fa_buffer *buffer;

	check(fa_buffer_new(of, (uint64_t)(queries + keys) * 64 * sizeof(float), 0, &buffer));
	return buffer;
}

#define SLOW_QUERIES (getenv("FAD_TEST_BACKEND") ? 8192 : 32768)
#define SLOW_KEYS (getenv("FAD_TEST_BACKEND") ? 8192 : 262144) /* lavapipe takes no more */

static int setup(void **state)
{
	fa_test_daemon_start(&daemon_process, NULL);
	client = connect_with(&daemon_process, 0, 0);
	return 0;
}

static int teardown(void **state)
{
	client = fa_disconnect(client);
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

static void test_ring_is_used(void **state)
{
	struct fa_client *other = connect_with(&daemon_process, FA_CONNECT_NO_RING, 0);
	char *status;

	assert_int_equal(ring_bytes(client), 0);
	check(fa_ping(client));
	assert_int_equal(ring_bytes(client), 0);
	check(fa_marker(client, 0, NULL, NULL));
	assert_true(ring_bytes(client) > 0);
	check(fa_status(client, &status));
	fa_check_contains(status, "\"ring_requests\":1,");
	free(status);

	check(fa_marker(other, 0, NULL, NULL));
	assert_int_equal(ring_bytes(other), 0);
	fa_disconnect(other);
}

static void test_results(void **state)
{
	struct fa_buffer *buffer = buffer_for(client, 1, 16);
	struct fa_attention good = attention_of(buffer, 1, 16), bad = good;
	struct fa_completion completion = { .size = sizeof(completion) };
	struct fa_ticket tickets[300];

	/* Only the daemon notices that the shapes differ. */
	bad.k.shape[3] = bad.k.shape[3] / 2;
	for (int i = 0; i < 300; ++i) {
		if (i % 3 == 1)
			check(fa_marker(client, 0, NULL, &tickets[i]));
		else
			check(fa_attention(client, i % 3 ? &bad : &good, &tickets[i]));
	}
	for (int i = 0; i < 300; ++i) {
		int r = fa_wait(client, &tickets[i], UINT64_MAX, i % 2 ? NULL : &completion);

		fa_check_eq(r, i % 3 == 2 ? -EINVAL : 0);
		if (r < 0)
			fa_check_contains(fa_error(), "dim");
	}
	for (int i = 0; i < 300; ++i) {
		fa_check_eq(fa_wait(client, &tickets[i], 0, &completion), i % 3 == 2 ? -EINVAL : 0);
		fa_check_eq(completion.status, i % 3 == 2 ? -EINVAL : 0);
		fa_check(completion.queued_ns && completion.finished_ns >= completion.queued_ns);
		fa_check(!completion.started_ns == (i % 3 != 0));
	}
	fa_buffer_free(buffer);
}

static void test_in_flight(void **state)
{
	struct fa_buffer *buffer = buffer_for(client, SLOW_QUERIES, SLOW_KEYS);
	struct fa_attention slow = attention_of(buffer, SLOW_QUERIES, SLOW_KEYS);
	struct fa_info info = { .size = sizeof(info) };
	struct fa_ticket first, last = { 0 };
	uint64_t n = 1;
	int r;

	check(fa_attention(client, &slow, &first));
	while ((r = fa_marker(client, 0, NULL, &last)) == 0)
		++n;
	fa_check_eq(r, -EAGAIN);
	check(fa_info(client, &info));
	fa_check_eq(n, info.max_requests);
	fa_check_eq(fa_wait(client, &last, 0, NULL), -EAGAIN);
	check(fa_cancel(client, &first));
	check(fa_wait(client, &last, UINT64_MAX, NULL));
	fa_check_eq(fa_wait(client, &first, UINT64_MAX, NULL), -ECANCELED);
	check(fa_marker(client, 0, NULL, NULL));
	fa_buffer_free(buffer);
}

static void *continue_later(void *unused)
{
	fa_test_let_sleep_ms(300);
	fa_test_daemon_signal(&daemon_process, SIGCONT);
	return unused;
}

static void test_full(void **state)
{
	static uint32_t cu_seqlens[4097];
	struct fa_buffer *buffer = buffer_for(client, 1, 16);
	struct fa_attention wide = attention_of(buffer, 1, 16);
	struct fa_ticket tickets[40];
	pthread_t thread;

	check(fa_marker(client, 0, NULL, NULL));
	/* 4096 empty sequences make a message of 33 KB. */
	wide.q.rank = wide.k.rank = wide.v.rank = wide.out.rank = 3;
	memmove(wide.q.shape, wide.q.shape + 1, 3 * sizeof(int64_t));
	memmove(wide.k.shape, wide.k.shape + 1, 3 * sizeof(int64_t));
	wide.v = wide.k;
	memmove(wide.out.shape, wide.out.shape + 1, 3 * sizeof(int64_t));
	cu_seqlens[4096] = 1;
	wide.batch = 4096;
	wide.cu_seqlens_q = wide.cu_seqlens_k = cu_seqlens;
	wide.k.shape[0] = wide.v.shape[0] = 1;

	fa_test_daemon_signal(&daemon_process, SIGSTOP);
	assert_int_equal(pthread_create(&thread, NULL, continue_later, NULL), 0);
	for (int i = 0; i < 40; ++i)
		check(fa_attention(client, &wide, &tickets[i]));
	for (int i = 0; i < 40; ++i)
		check(fa_wait(client, &tickets[i], UINT64_MAX, NULL));
	pthread_join(thread, NULL);
	fa_buffer_free(buffer);
}

static void dawdle(void)
{
	uint64_t until_ns = fa_now_ns() + fa_test_random_below(&numbers, 4) *
	                                          fa_test_random_below(&numbers, 10000);

	while (fa_now_ns() < until_ns)
		;
}

static void wait_readable(int epoll)
{
	struct epoll_event event;

	if (epoll_wait(epoll, &event, 1, (int)(fa_test_patience_ns() / FA_NS_PER_MS)) != 1)
		fa_test_fail(__FILE__, __LINE__, "nobody woke the event loop");
}

/* A request may end before the poll, between the poll and the sleep, or after. */
static void test_epoll(void **state)
{
	const int rounds = fa_test_long() ? 100000 : 5000;
	struct fa_buffer *buffer = buffer_for(client, 1, 16);
	struct fa_attention attention = attention_of(buffer, 1, 16);
	struct epoll_event event = { .events = EPOLLIN };
	int epoll = epoll_create1(EPOLL_CLOEXEC), fd = fa_fd(client);

	assert_true(epoll >= 0 && fd >= 0);
	assert_int_equal(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
	for (int i = 0; i < rounds; ++i) {
		struct fa_ticket tickets[3];
		size_t n = 1 + fa_test_random_below(&numbers, 3), ended = 0;

		for (size_t k = 0; k < n; ++k) {
			if (fa_test_random_below(&numbers, 2))
				check(fa_marker(client, 0, NULL, &tickets[k]));
			else
				check(fa_attention(client, &attention, &tickets[k]));
		}
		while (ended < n) {
			int r = fa_wait(client, &tickets[ended], 0, NULL);

			if (r == 0) {
				++ended;
				continue;
			}
			fa_check_eq(r, -EAGAIN);
			dawdle();
			wait_readable(epoll);
			dawdle();
			check(fa_dispatch(client));
		}
	}
	assert_int_equal(fa_fd(client), fd);
	close(epoll);
	fa_buffer_free(buffer);
}

/*
 * Four threads share a stream. Together they request less than the 4096 results that the library
 * keeps per stream, as one may be scheduled only when the others are done.
 */
#define SLEEPERS 8
#define SLEEPER_ROUNDS 100

struct sleeper {
	pthread_t thread;
	struct fa_client *client;
	uint32_t stream;
};

static void *sleep_and_ask(void *userdata)
{
	struct sleeper *sleeper = userdata;

	for (int i = 0; i < SLEEPER_ROUNDS; ++i) {
		struct fa_completion completion = { .size = sizeof(completion) };
		struct fa_ticket tickets[8];

		for (int k = 0; k < 8; ++k)
			check(fa_marker(sleeper->client, sleeper->stream, NULL, &tickets[k]));
		for (int k = 7; k >= 0; --k)
			check(fa_wait(sleeper->client, &tickets[k], UINT64_MAX,
			              k % 2 ? NULL : &completion));
		check(fa_marker(sleeper->client, sleeper->stream, NULL, NULL));
	}
	return NULL;
}

static void run_threads(uint64_t spin_ns)
{
	struct sleeper sleepers[SLEEPERS];
	struct fa_client *many = connect_with(&daemon_process, 0, spin_ns);

	for (uint32_t i = 0; i < SLEEPERS; ++i) {
		sleepers[i] = (struct sleeper){ .client = many };
		if (i % 2)
			check(fa_stream_new(many, 0, &sleepers[i].stream));
	}
	for (int i = 0; i < SLEEPERS; ++i)
		assert_int_equal(
			pthread_create(&sleepers[i].thread, NULL, sleep_and_ask, &sleepers[i]), 0);
	for (int i = 0; i < SLEEPERS; ++i)
		pthread_join(sleepers[i].thread, NULL);
	fa_disconnect(many);
}

static void test_threads(void **state)
{
	for (int i = 0; i < 4; ++i) {
		run_threads(0);
		run_threads(1);
		run_threads(FA_NS_PER_MS);
	}
}

static void test_without_ring(void **state)
{
	const struct fa_test_daemon_options options = {
		.config = "[limits]\nbuffer_bytes = 1M\n",
	};
	struct fa_test_daemon poor;
	struct fa_client *other;

	fa_test_daemon_start(&poor, &options);
	other = connect_with(&poor, 0, 0);
	for (int i = 0; i < 100; ++i)
		check(fa_marker(other, 0, NULL, NULL));
	assert_int_equal(ring_bytes(other), 0);
	fa_disconnect(other);
	fa_test_daemon_stop(&poor);
}

static void test_window_of_one(void **state)
{
	const struct fa_test_daemon_options options = {
		.config = "[limits]\nsession_requests = 1\n",
	};
	struct fa_test_daemon strict;
	struct fa_attention attention;
	struct fa_buffer *buffer;
	struct fa_client *other;
	struct fa_ticket ticket;

	fa_test_daemon_start(&strict, &options);
	other = connect_with(&strict, 0, 0);
	buffer = buffer_for(other, 1, 16);
	attention = attention_of(buffer, 1, 16);
	/* A request leaves the window once a thread has waited for it. */
	for (int i = 0; i < 2000; ++i) {
		check(fa_attention(other, &attention, &ticket));
		check(fa_wait(other, &ticket, UINT64_MAX, NULL));
	}
	fa_buffer_free(buffer);
	fa_disconnect(other);
	fa_test_daemon_stop(&strict);
}

static char dir[48];
static const struct fa_test_daemon_options in_dir = { .dir = dir };

static void kill_daemon(struct fa_test_daemon *daemon)
{
	fa_test_daemon_signal(daemon, SIGKILL);
	fa_check_eq(WTERMSIG(fa_test_daemon_reap(daemon)), SIGKILL);
}

static _Atomic uint64_t killed_ns;

static void *kill_later(void *userdata)
{
	fa_test_let_sleep_ms(100);
	atomic_store(&killed_ns, fa_now_ns());
	kill_daemon(userdata);
	return NULL;
}

static void test_death(void **state)
{
	const uint64_t spins[] = { 1, 3600 * FA_NS_PER_SEC };

	fa_test_dir_make(dir, sizeof(dir));
	for (size_t i = 0; i < 2; ++i) {
		struct fa_test_daemon mortal;
		struct fa_client *other;
		struct fa_buffer *buffer;
		struct fa_attention slow;
		struct fa_ticket ticket;
		pthread_t thread;

		fa_test_daemon_start(&mortal, &in_dir);
		other = connect_with(&mortal, 0, spins[i]);
		buffer = buffer_for(other, SLOW_QUERIES, SLOW_KEYS);
		slow = attention_of(buffer, SLOW_QUERIES, SLOW_KEYS);
		check(fa_marker(other, 0, NULL, NULL));
		check(fa_attention(other, &slow, &ticket));
		assert_int_equal(pthread_create(&thread, NULL, kill_later, &mortal), 0);
		fa_check_eq(fa_wait(other, &ticket, UINT64_MAX, NULL), -ECONNRESET);
		printf("noticed after %llu us\n",
		       (unsigned long long)(fa_now_ns() - atomic_load(&killed_ns)) / 1000);
		pthread_join(thread, NULL);
		fa_buffer_free(buffer);
		fa_disconnect(other);
	}
	fa_test_dir_remove(dir);
}

static void test_restart(void **state)
{
	struct fa_test_daemon mortal;
	struct fa_client *other;
	struct fa_buffer *buffer;
	struct fa_attention attention;

	fa_test_dir_make(dir, sizeof(dir));
	fa_test_daemon_start(&mortal, &in_dir);
	other = connect_with(&mortal, 0, 0);
	buffer = buffer_for(other, 1, 64);
	attention = attention_of(buffer, 1, 64);
	for (int round = 0; round < 8; ++round) {
		struct fa_ticket tickets[500];
		int done = 0, reset = 0;

		for (int i = 0; i < 500; ++i)
			check(i % 5 ? fa_marker(other, 0, NULL, &tickets[i])
			            : fa_attention(other, &attention, &tickets[i]));
		kill_daemon(&mortal);
		for (int i = 0; i < 500; ++i) {
			int r = fa_wait(other, &tickets[i], UINT64_MAX, NULL);

			fa_check(r == 0 || r == -ECONNRESET);
			done += r == 0;
			reset += r != 0;
			/* After a failed request of a stream no later one succeeds. */
			fa_check(r || !reset);
		}
		fa_check_eq(done + reset, 500);
		fa_test_daemon_start(&mortal, &in_dir);
		check(fa_attention(other, &attention, NULL));
		check(fa_marker(other, 0, NULL, NULL));
		assert_true(ring_bytes(other) > 0);

		fa_test_elapse_ms(5);
		kill_daemon(&mortal);
		fa_test_daemon_start(&mortal, &in_dir);
		check(fa_marker(other, 0, NULL, NULL));
	}
	fa_buffer_free(buffer);
	fa_disconnect(other);
	fa_test_daemon_stop(&mortal);
	fa_test_dir_remove(dir);
}

#define CROWD 64
#define CROWD_DEPTH 16
/* More requests than a ring or a table of records holds. */
#define CROWD_AROUND 4096

struct crowd {
	_Atomic uint64_t done[CROWD];
	atomic_uint ready;
	atomic_bool go, end;
};

static struct crowd *crowd;

static int crowd_member(void *userdata)
{
	int number = *(int *)userdata;
	struct fa_client *member = connect_with(&daemon_process, 0, 0);
	struct fa_ticket tickets[CROWD_DEPTH];
	uint64_t n = 0;

	check(fa_marker(member, 0, NULL, NULL));
	atomic_fetch_add(&crowd->ready, 1);
	fa_check_eventually(atomic_load(&crowd->go));
	for (; !atomic_load_explicit(&crowd->end, memory_order_relaxed); ++n) {
		struct fa_ticket *ticket = &tickets[n % CROWD_DEPTH];

		if (n >= CROWD_DEPTH) {
			check(fa_wait(member, ticket, UINT64_MAX, NULL));
			atomic_fetch_add_explicit(&crowd->done[number], 1, memory_order_relaxed);
		}
		check(fa_marker(member, 0, NULL, ticket));
		fa_check_eq(ticket->value, n + 2);
	}
	for (uint64_t i = n > CROWD_DEPTH ? n - CROWD_DEPTH : 0; i < n; ++i)
		check(fa_wait(member, &tickets[i % CROWD_DEPTH], UINT64_MAX, NULL));
	fa_disconnect(member);
	return 0;
}

static void test_many_clients(void **state)
{
	const unsigned int seconds = fa_test_long() ? 60 : 2;
	uint64_t fewest = UINT64_MAX, most = 0, total = 0;
	struct fa_test_usage before, after;
	pid_t pids[CROWD];
	cpu_set_t cpus;

	crowd = mmap(NULL, sizeof(*crowd), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
	             0);
	assert_true(crowd != MAP_FAILED);
	for (int i = 0; i < CROWD; ++i)
		pids[i] = fa_test_fork(crowd_member, &i);
	fa_check_eventually(atomic_load(&crowd->ready) == CROWD);
	atomic_store(&crowd->go, true);
	fa_test_elapse_ms(seconds * 300);
	/* A ring's memory is allocated on use: let each ring wrap. */
	for (int i = 0; i < CROWD; ++i)
		fa_check_eventually(atomic_load(&crowd->done[i]) > CROWD_AROUND);
	fa_test_daemon_usage(&daemon_process, &before);
	fa_test_elapse_ms(seconds * 700);
	fa_test_daemon_usage(&daemon_process, &after);
	for (int i = 0; i < CROWD; ++i) {
		uint64_t done = atomic_load(&crowd->done[i]);

		fewest = done < fewest ? done : fewest;
		most = done > most ? done : most;
		total += done;
	}
	atomic_store(&crowd->end, true);
	for (int i = 0; i < CROWD; ++i)
		fa_check_eq(fa_test_reap(pids[i]), 0);
	printf("%llu requests in %u s, of one client %llu to %llu\n", (unsigned long long)total,
	       seconds, (unsigned long long)fewest, (unsigned long long)most);
	assert_true(fewest > 0);
	/* With a processor per client, only the daemon determines shares. */
	if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) > CROWD + 8)
		assert_true(2 * fewest >= most);
	if (!fa_test_sanitized())
		assert_true(after.rss_bytes <= before.rss_bytes + (4u << 20));
	(void)munmap(crowd, sizeof(*crowd));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_ring_is_used, setup, teardown),
		cmocka_unit_test_setup_teardown(test_results, setup, teardown),
		cmocka_unit_test_setup_teardown(test_in_flight, setup, teardown),
		cmocka_unit_test_setup_teardown(test_full, setup, teardown),
		cmocka_unit_test_setup_teardown(test_epoll, setup, teardown),
		cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
		cmocka_unit_test_setup_teardown(test_many_clients, setup, teardown),
		cmocka_unit_test(test_without_ring),
		cmocka_unit_test(test_window_of_one),
		cmocka_unit_test(test_death),
		cmocka_unit_test(test_restart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
