/*
 * Another daemon replaces a killed one: requests in flight end, objects are registered again, work
 * goes on.
 */
#include "client/faclient.h"
#include "tests/client/attention-request.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[48];
static const struct fa_test_daemon_options in_dir = { .dir = dir };

static int setup(void **state)
{
	fa_test_dir_make(dir, sizeof(dir));
	return 0;
}

static int teardown(void **state)
{
	fa_test_dir_remove(dir);
	return 0;
}

static struct fa_client *connect_to(const struct fa_test_daemon *daemon)
{
	struct fa_options options = { .size = sizeof(options), .socket = daemon->socket };
	struct fa_client *client;

	options.reconnect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	return client;
}

static void kill_daemon(struct fa_test_daemon *daemon)
{
	fa_test_daemon_signal(daemon, SIGKILL);
	fa_check_eq(WTERMSIG(fa_test_daemon_reap(daemon)), SIGKILL);
}

static uint64_t generation(struct fa_client *client)
{
	struct fa_info info = { .size = sizeof(info) };

	fa_check_eq(fa_info(client, &info), 0);
	return info.generation;
}

static void check_case(struct fa_client *client, struct fa_buffer *buffer,
                       const struct fa_case *attention, uint32_t stream)
{
	struct fa_attention request = fa_case_attention(attention, buffer);
	int r;

	memset((char *)fa_buffer_data(buffer) + attention->offset_out, 0xff,
	       attention->bytes - attention->offset_out);
	request.stream = stream;
	r = fa_attention(client, &request, NULL);
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
	fa_check(fa_case_error(attention, fa_buffer_data(buffer)) <= 1);
}

static void test_killed(void **state)
{
	struct fa_case small = { .heads = 2, .seqlen_q = 33, .causal = true };
	struct fa_case large = { .heads = 8, .seqlen_q = 4096, .head_dim = 128 };
	struct fa_buffer *buffer, *arena, *work;
	struct fa_attention request;
	struct fa_test_daemon daemon;
	struct fa_ticket tickets[6];
	struct fa_client *client;
	uint64_t before, begin;
	uint32_t stream;

	fa_case_plan(&small);
	fa_case_plan(&large);
	fa_test_daemon_start(&daemon, &in_dir);
	client = connect_to(&daemon);
	fa_check_eq(fa_buffer_new(client, small.bytes, 0, &buffer), 0);
	fa_check_eq(fa_buffer_new(client, small.bytes, FA_BUFFER_DEVICE, &arena), 0);
	fa_check_eq(fa_buffer_new(client, large.bytes, 0, &work), 0);
	fa_check_eq(fa_stream_new(client, 1, &stream), 0);
	fa_case_fill(&small, fa_buffer_data(buffer));
	fa_case_fill(&small, fa_buffer_data(arena));
	check_case(client, buffer, &small, stream);
	check_case(client, arena, &small, 0);

	request = fa_case_attention(&large, work);
	for (int i = 0; i < 6; ++i) {
		request.stream = i % 2 ? stream : 0;
		fa_check_eq(fa_attention(client, &request, &tickets[i]), 0);
	}
	before = generation(client);
	kill_daemon(&daemon);
	begin = fa_now_ns();
	for (int i = 4; i < 6; ++i) {
		fa_check_eq(fa_wait(client, &tickets[i], UINT64_MAX, NULL), -ECONNRESET);
		fa_check_contains(fa_error(), "went away");
	}
	fa_check(fa_now_ns() - begin < fa_test_patience_ns());
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);

	fa_test_daemon_start(&daemon, &in_dir);
	check_case(client, buffer, &small, stream);
	check_case(client, arena, &small, 0);
	fa_check_eq(fa_client_state(client), FA_CLIENT_CONNECTED);
	fa_check(generation(client) > before);
	fa_check_eq(fa_wait(client, &tickets[5], UINT64_MAX, NULL), -ECONNRESET);

	kill_daemon(&daemon);
	fa_test_daemon_start(&daemon, &in_dir);
	check_case(client, arena, &small, stream);
	fa_buffer_free(work);
	fa_check_eq(fa_stream_free(client, stream), 0);
	fa_buffer_free(arena);
	fa_buffer_free(buffer);
	fa_check_eq(fa_ping(client), 0);
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
}

/* A thread asleep in fa_wait() notices the death of the daemon. */
struct sleeper {
	struct fa_client *client;
	struct fa_ticket ticket;
	int result;
	pthread_t thread;
};

static void *sleep_in_wait(void *userdata)
{
	struct sleeper *sleeper = userdata;

	sleeper->result = fa_wait(sleeper->client, &sleeper->ticket, UINT64_MAX, NULL);
	return NULL;
}

static void test_sleeper_notices_death(void **state)
{
	struct fa_case large = { .heads = 16, .seqlen_q = 8192, .head_dim = 128 };
	struct fa_attention request;
	struct fa_test_daemon daemon;
	struct sleeper sleepers[4];
	struct fa_client *client;
	struct fa_buffer *work;

	fa_case_plan(&large);
	fa_test_daemon_start(&daemon, &in_dir);
	client = connect_to(&daemon);
	fa_check_eq(fa_buffer_new(client, large.bytes, 0, &work), 0);
	request = fa_case_attention(&large, work);
	for (int i = 0; i < 4; ++i) {
		sleepers[i].client = client;
		fa_check_eq(fa_attention(client, &request, &sleepers[i].ticket), 0);
		fa_check(!pthread_create(&sleepers[i].thread, NULL, sleep_in_wait, &sleepers[i]));
	}
	fa_test_let_sleep_ms(50);
	kill_daemon(&daemon);
	for (int i = 0; i < 4; ++i)
		pthread_join(sleepers[i].thread, NULL);
	fa_check_eq(sleepers[3].result, -ECONNRESET);
	fa_disconnect(client);
}

static void *ping_later(void *userdata)
{
	struct sleeper *sleeper = userdata;

	sleeper->result = fa_ping(sleeper->client);
	return NULL;
}

static void test_calls_wait_for_daemon(void **state)
{
	struct fa_test_daemon daemon;
	struct sleeper sleepers[4];
	struct fa_client *client;

	fa_test_daemon_start(&daemon, &in_dir);
	client = connect_to(&daemon);
	kill_daemon(&daemon);
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
	for (int i = 0; i < 4; ++i) {
		sleepers[i].client = client;
		fa_check(!pthread_create(&sleepers[i].thread, NULL, ping_later, &sleepers[i]));
	}
	fa_test_let_sleep_ms(200);
	fa_test_daemon_start(&daemon, &in_dir);
	for (int i = 0; i < 4; ++i) {
		pthread_join(sleepers[i].thread, NULL);
		fa_check_eq(sleepers[i].result, 0);
	}
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
}

/* The wait for the next daemon does not shorten the time-out of the reply. */
static void test_full_reply_timeout(void **state)
{
	const uint64_t reply_ns = fa_test_patience_ns() / 20;
	struct fa_test_daemon daemon;
	struct fa_options options = { .size = sizeof(options), .reply_ns = reply_ns };
	struct sleeper sleeper;

	fa_test_daemon_start(&daemon, &in_dir);
	options.socket = daemon.socket;
	options.reconnect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &sleeper.client), 0);
	kill_daemon(&daemon);
	/* The client notices the daemon's death only when it sends. */
	fa_check(!pthread_create(&sleeper.thread, NULL, ping_later, &sleeper));
	fa_test_elapse_ms((unsigned int)(3 * reply_ns / 2 / FA_NS_PER_MS));
	fa_test_daemon_start(&daemon, &in_dir);
	pthread_join(sleeper.thread, NULL);
	fa_check_eq(sleeper.result, 0);
	fa_check_eq(fa_client_state(sleeper.client), FA_CLIENT_CONNECTED);
	fa_disconnect(sleeper.client);
	fa_test_daemon_stop(&daemon);
}

/* A client of another user, in a child: root could connect to any socket. */
struct other_user {
	struct fa_test_daemon *daemon;
	int to_parent[2], to_child[2];
	pid_t pid;
};

static bool become_other(void)
{
	return geteuid() || (!setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
}

static void tell(int fd, int what)
{
	fa_check_eq(write(fd, &what, sizeof(what)), sizeof(what));
}

/* Reads a value from the child; -ENOTCONN: the child has exited. */
static int hear(int fd)
{
	int what;

	return read(fd, &what, sizeof(what)) == sizeof(what) ? what : -ENOTCONN;
}

static void start_other(struct other_user *other, int (*run)(void *userdata))
{
	fa_check(!pipe2(other->to_parent, O_CLOEXEC) && !pipe2(other->to_child, O_CLOEXEC));
	other->pid = fa_test_fork(run, other);
	close(other->to_parent[1]);
}

/* Returns false if the child could not change its user. */
static bool end_other(struct other_user *other)
{
	int status;

	close(other->to_child[1]);
	status = fa_test_reap(other->pid);
	close(other->to_parent[0]);
	close(other->to_child[0]);
	fa_check(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		return false;
	fa_check_eq(WEXITSTATUS(status), 0);
	return true;
}

static int ping_as_other(void *userdata)
{
	struct other_user *other = userdata;
	struct fa_client *client;

	close(other->to_child[1]);
	if (!become_other())
		return 77;
	client = connect_to(other->daemon);
	tell(other->to_parent[1], 0);
	while (hear(other->to_child[0]) == 0)
		tell(other->to_parent[1], fa_ping(client));
	fa_disconnect(client);
	return 0;
}

/* Between bind() and chmod() a starting daemon's socket is inaccessible. */
static void test_inaccessible_socket(void **state)
{
	struct fa_test_daemon_options options = { .everyone = true, .dir = dir };
	struct fa_test_daemon daemon;
	struct other_user other = { .daemon = &daemon };
	uint64_t begin_ns, took_ns = 0;
	struct stat before;
	int r;

	fa_check(!stat(dir, &before));
	fa_test_daemon_start(&daemon, &options);
	start_other(&other, ping_as_other);
	r = hear(other.to_parent[0]);
	if (r == 0) {
		kill_daemon(&daemon);
		fa_test_daemon_start(&daemon, &options);
		r = -EACCES;
		/* A loaded machine may take longer than the client waits: retry. */
		for (int i = 0; i < 10 && r == -EACCES; ++i) {
			fa_check(!chmod(daemon.socket, 0));
			tell(other.to_child[1], 0);
			fa_test_elapse_ms(50);
			fa_check(!chmod(daemon.socket, 0666));
			r = hear(other.to_parent[0]);
		}
		fa_check_eq(r, 0);

		/* A socket that stays inaccessible is awaited less long than a missing daemon. */
		kill_daemon(&daemon);
		fa_test_daemon_start(&daemon, &options);
		fa_check(!chmod(daemon.socket, 0));
		begin_ns = fa_now_ns();
		tell(other.to_child[1], 0);
		r = hear(other.to_parent[0]);
		took_ns = fa_now_ns() - begin_ns;
		fa_check_eq(r, -EACCES);
		fa_check(took_ns < fa_test_patience_ns() / 4);
		fa_check(!chmod(daemon.socket, 0666));
	}
	r = end_other(&other);
	fa_test_daemon_stop(&daemon);
	fa_check(!chmod(dir, before.st_mode & 07777));
	if (!r)
		skip();
}

static int connect_from_below(void *userdata)
{
	struct other_user *other = userdata;
	struct fa_options options = { .size = sizeof(options), .socket = "fad.sock" };
	struct fa_client *client;

	close(other->to_child[1]);
	fa_check(!chdir(other->daemon->dir));
	if (geteuid() || !become_other())
		return 77;
	options.reconnect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check(!strcmp(fa_socket_path(client), "fad.sock"));
	tell(other->to_parent[1], 0);
	fa_check_eq(hear(other->to_child[0]), 0);
	fa_check_eq(fa_ping(client), 0);
	fa_disconnect(client);
	return 0;
}

/* A parent of the socket's own directory may be inaccessible. */
static void test_inaccessible_parent_directory(void **state)
{
	char below[48];
	struct fa_test_daemon_options options = { .everyone = true, .dir = below };
	struct fa_test_daemon daemon;
	struct other_user other = { .daemon = &daemon };
	bool was_other;

	(void)snprintf(below, sizeof(below), "%s/below", dir);
	fa_check(!mkdir(below, 0755));
	fa_test_daemon_start(&daemon, &options);
	start_other(&other, connect_from_below);
	if (hear(other.to_parent[0]) == 0) {
		kill_daemon(&daemon);
		fa_test_daemon_start(&daemon, &options);
		tell(other.to_child[1], 0);
	}
	was_other = end_other(&other);
	fa_test_daemon_stop(&daemon);
	fa_test_dir_remove(below);
	if (!was_other)
		skip();
}

struct persistent {
	struct fa_client *client;
	atomic_bool *stop;
	atomic_int *right;
	uint64_t seed;
	pthread_t thread;
};

static void *persist(void *userdata)
{
	struct persistent *persistent = userdata;
	struct fa_client *client = persistent->client;
	struct fa_case attention = { .heads = 2, .seqlen_q = 40, .seed = persistent->seed };
	struct fa_attention request;
	struct fa_buffer *buffer;
	int r;

	fa_case_plan(&attention);
	do
		r = fa_buffer_new(client, attention.bytes,
		                  persistent->seed % 2 ? FA_BUFFER_DEVICE : 0, &buffer);
	while (r == -ECONNRESET);
	fa_check_eq(r, 0);
	request = fa_case_attention(&attention, buffer);
	while (!atomic_load(persistent->stop)) {
		fa_case_fill(&attention, fa_buffer_data(buffer));
		r = fa_attention(client, &request, NULL);
		if (r != 0 && r != -ECONNRESET)
			fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
		if (r)
			continue;
		fa_check(fa_case_error(&attention, fa_buffer_data(buffer)) <= 1);
		atomic_fetch_add(persistent->right, 1);
	}
	fa_buffer_free(buffer);
	return NULL;
}

static void test_repeated_deaths(void **state)
{
	const int kills = fa_test_long() ? 50 : 5;
	struct persistent threads[4];
	struct fa_test_daemon daemon;
	struct fa_client *client;
	atomic_bool stop = false;
	atomic_int right = 0;

	fa_test_daemon_start(&daemon, &in_dir);
	client = connect_to(&daemon);
	for (int i = 0; i < 4; ++i) {
		threads[i] = (struct persistent){ client, &stop, &right, (uint64_t)i, 0 };
		fa_check(!pthread_create(&threads[i].thread, NULL, persist, &threads[i]));
	}
	for (int i = 0; i < kills; ++i) {
		int before = atomic_load(&right);

		fa_check_eventually(atomic_load(&right) > before + 8);
		kill_daemon(&daemon);
		fa_test_daemon_start(&daemon, &in_dir);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 4; ++i)
		pthread_join(threads[i].thread, NULL);
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
}

static void test_drained(void **state)
{
	struct fa_test_daemon daemon;
	struct fa_client *client;
	uint64_t before;

	fa_test_daemon_start(&daemon, &in_dir);
	client = connect_to(&daemon);
	before = generation(client);
	fa_check_eq(fa_daemon_drain(client), 0);
	fa_check_eq(fa_test_daemon_reap(&daemon), 0);
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
	fa_test_daemon_start(&daemon, &in_dir);
	fa_check_eq(fa_ping(client), 0);
	fa_check(generation(client) > before);
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_sleeper_notices_death),
		cmocka_unit_test(test_calls_wait_for_daemon),
		cmocka_unit_test(test_full_reply_timeout),
		cmocka_unit_test(test_inaccessible_socket),
		cmocka_unit_test(test_inaccessible_parent_directory),
		cmocka_unit_test(test_repeated_deaths),
		cmocka_unit_test(test_drained),
	};

	return cmocka_run_group_tests_name("reconnect", tests, setup, teardown);
}
