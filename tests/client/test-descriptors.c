/*
 * This process has no descriptors left, or its user has too many in flight in sockets
 * (ETOOMANYREFS): calls fail or wait, and the connection survives.
 */
#include "client/faclient.h"
#include "common/packet.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define NOFILE 256

static struct {
	struct rlimit before;
	int fds[NOFILE];
	size_t n;
} taken;

static void leave(size_t n)
{
	struct rlimit limit;

	fa_check(!getrlimit(RLIMIT_NOFILE, &limit));
	taken.before = limit;
	limit.rlim_cur = NOFILE;
	fa_check(!setrlimit(RLIMIT_NOFILE, &limit));
	for (taken.n = 0; (taken.fds[taken.n] = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0; ++taken.n)
		;
	fa_check_eq(errno, EMFILE);
	while (n--)
		close(taken.fds[--taken.n]);
}

static void give_back(void)
{
	while (taken.n)
		close(taken.fds[--taken.n]);
	fa_check(!setrlimit(RLIMIT_NOFILE, &taken.before));
}

static struct fa_client *connect_to(const struct fa_test_daemon *daemon)
{
	struct fa_options options = { .size = sizeof(options), .socket = daemon->socket };
	struct fa_client *client;

	options.reconnect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	return client;
}

/* Requests whose reply carries descriptors fail at once; requests in flight go on. */
static void test_no_descriptor_left(void **state)
{
	const struct fa_gate wait = { .slot = 3, .value = 1 };
	struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &wait };
	struct fa_timeline *timeline, *none = NULL;
	struct fa_client *client, *other;
	struct fa_test_daemon daemon;
	struct fa_buffer *buffer;
	struct fa_ticket ticket;
	char *json;
	int before;

	fa_test_daemon_start(&daemon, NULL);
	client = connect_to(&daemon);
	other = connect_to(&daemon);
	fa_check_eq(fa_timeline_open(client, &timeline), 0);
	fa_check_eq(fa_marker(client, 0, &gates, &ticket), 0);
	before = fa_test_count_fds(0);

	leave(0);
	fa_check_eq(fa_status(client, &json), -EMFILE);
	fa_check_contains(fa_error(), "descriptors");
	fa_check_eq(fa_buffer_new(client, 4096, FA_BUFFER_DEVICE, &buffer), -EMFILE);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffer), -EMFILE);
	fa_check_eq(fa_client_state(client), FA_CLIENT_CONNECTED);
	fa_check_eq(fa_wait(client, &ticket, 0, NULL), -EAGAIN);
	/* A ring needs four descriptors; without one, requests go by socket. */
	fa_check_eq(fa_timeline_open(other, &none), -EMFILE);
	fa_check_eq(fa_marker(other, 0, NULL, NULL), 0);
	give_back();

	fa_check_eq(fa_test_count_fds(0), before);
	fa_check_eq(fa_timeline_write(timeline, 3, 1), 0);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), 0);
	fa_check_eq(fa_timeline_open(other, &none), 0);
	fa_check_eq(fa_status(other, &json), 0);
	free(json);
	fa_disconnect(other);
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
}

static void test_connect_without_descriptors(void **state)
{
	struct fa_options options = { .size = sizeof(options) };
	struct fa_test_daemon daemon;
	struct fa_client *client;

	fa_test_daemon_start(&daemon, NULL);
	options.socket = daemon.socket;
	for (size_t n = 0; n < 5; ++n) {
		leave(n);
		fa_check_eq(fa_connect(&options, &client), n < 4 ? -EMFILE : 0);
		give_back();
	}
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
}

/* With a hard limit of zero, the kernel returns another errno. */
static void test_descriptor_limit_zero(void **state)
{
	struct rlimit before, none;
	struct fa_test_daemon daemon;
	struct fa_client *client;
	char *json;
	int r;

	fa_test_daemon_start(&daemon, NULL);
	client = connect_to(&daemon);
	fa_check(!getrlimit(RLIMIT_NOFILE, &before));
	none = before;
	none.rlim_cur = 0;
	fa_check(!setrlimit(RLIMIT_NOFILE, &none));
	r = fa_status(client, &json);
	fa_check(!setrlimit(RLIMIT_NOFILE, &before));
	fa_check_eq(r, -EMFILE);
	fa_check_eq(fa_status(client, &json), 0);
	free(json);
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
}

static void *ask_again_and_again(void *userdata)
{
	for (int i = 0; i < 500; ++i) {
		char *json;
		int r = fa_status(userdata, &json);

		if (r == 0)
			free(json);
		else
			fa_check_eq(r, -EMFILE);
	}
	return NULL;
}

/* Two concurrent calls do not both rely on the last descriptor. */
static void test_one_descriptor_left(void **state)
{
	struct fa_info info = { .size = sizeof(info) };
	struct fa_test_daemon daemon;
	struct fa_client *client;
	pthread_t threads[3];

	fa_test_daemon_start(&daemon, NULL);
	client = connect_to(&daemon);
	fa_check_eq(fa_marker(client, 0, NULL, NULL), 0);
	leave(1);
	for (int i = 0; i < 3; ++i)
		fa_check(!pthread_create(&threads[i], NULL, ask_again_and_again, client));
	for (int i = 0; i < 3; ++i)
		pthread_join(threads[i], NULL);
	give_back();
	fa_check_eq(fa_info(client, &info), 0);
	fa_check_eq(info.reconnects, 0);
	fa_disconnect(client);
	fa_test_daemon_stop(&daemon);
}

/* Fills a socket with descriptors up to the limit; they are in flight until it is closed. */
static int fill_socket(int *ret_reader)
{
	struct rlimit limit;
	int ends[2], fds[FA_PACKET_FDS_MAX] = {}, r = 0;

	fa_check(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = 64;
	fa_check(!setrlimit(RLIMIT_NOFILE, &limit));
	fa_check(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
	for (int i = 0; i < 200 && r == 0; ++i)
		r = fa_packet_send(ends[0], "", 1, fds, FA_PACKET_FDS_MAX, MSG_DONTWAIT);
	*ret_reader = ends[1];
	close(ends[0]);
	return r;
}

static void *read_later(void *userdata)
{
	fa_test_let_sleep_ms(200);
	close(*(int *)userdata);
	return NULL;
}

struct crowded {
	struct fa_test_daemon *daemon;
	int to_parent[2], to_child[2];
};

static int be_crowded(void *userdata)
{
	struct crowded *crowded = userdata;
	struct fa_buffer *buffers[3];
	struct fa_client *client;
	uint64_t begin_ns;
	pthread_t thread;
	int reader;
	char byte;

	if (!geteuid() && (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534)))
		return 77;
	client = connect_to(crowded->daemon);
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffers[0]), 0);
	fa_check_eq(fa_buffer_new(client, 4096, FA_BUFFER_DEVICE, &buffers[1]), 0);

	if (fill_socket(&reader) != -ETOOMANYREFS)
		return 77;
	fa_check(!pthread_create(&thread, NULL, read_later, &reader));
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffers[2]), 0);
	pthread_join(thread, NULL);

	fa_check_eq(write(crowded->to_parent[1], "", 1), 1);
	fa_check_eq(read(crowded->to_child[0], &byte, 1), 1);
	if (fill_socket(&reader) != -ETOOMANYREFS)
		return 77;
	fa_check(!pthread_create(&thread, NULL, read_later, &reader));
	fa_check_eq(fa_ping(client), 0);
	pthread_join(thread, NULL);

	if (fill_socket(&reader) != -ETOOMANYREFS)
		return 77;
	begin_ns = fa_now_ns();
	fa_check_eq(fa_buffer_new(client, 4096, 0, &buffers[2]), -EMFILE);
	fa_check(fa_now_ns() - begin_ns >= FA_NS_PER_SEC);
	fa_check(fa_now_ns() - begin_ns < fa_test_patience_ns() / 2);
	fa_check_eq(fa_client_state(client), FA_CLIENT_CONNECTED);
	close(reader);
	fa_disconnect(client);
	return 0;
}

static void test_too_many_in_flight(void **state)
{
	struct fa_test_daemon_options options = { .everyone = true };
	struct fa_test_daemon daemon;
	struct crowded crowded = { .daemon = &daemon };
	char dir[48], byte;
	pid_t pid;
	int n, status;

	fa_test_dir_make(dir, sizeof(dir));
	options.dir = dir;
	fa_test_daemon_start(&daemon, &options);
	fa_check(!pipe2(crowded.to_parent, O_CLOEXEC) && !pipe2(crowded.to_child, O_CLOEXEC));
	pid = fa_test_fork(be_crowded, &crowded);
	close(crowded.to_parent[1]);
	n = (int)read(crowded.to_parent[0], &byte, 1);
	if (n == 1) {
		fa_test_daemon_signal(&daemon, SIGKILL);
		fa_check_eq(WTERMSIG(fa_test_daemon_reap(&daemon)), SIGKILL);
		fa_test_daemon_start(&daemon, &options);
		fa_check_eq(write(crowded.to_child[1], "", 1), 1);
	}
	status = fa_test_reap(pid);
	close(crowded.to_parent[0]);
	close(crowded.to_child[0]);
	close(crowded.to_child[1]);
	fa_test_daemon_stop(&daemon);
	fa_test_dir_remove(dir);
	fa_check(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip();
	fa_check_eq(WEXITSTATUS(status), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_descriptor_left),
		cmocka_unit_test(test_connect_without_descriptors),
		cmocka_unit_test(test_descriptor_limit_zero),
		cmocka_unit_test(test_one_descriptor_left),
		cmocka_unit_test(test_too_many_in_flight),
	};

	return cmocka_run_group_tests_name("descriptors", tests, fake_daemon_setup, NULL);
}
