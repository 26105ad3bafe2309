/*
 * Clients with GPU memory are killed while their kernels run, two hundred times, on the tests' CUDA
 * driver: each time memory is released when the kernels end, and others notice nothing.
 */
#include "cuda-client.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)
#define CLIENTS 4
#define REQUESTS 6

static struct fa_test_cuda cuda;
static struct fa_test_daemon daemon_;
static struct fa_test_cuda_page *page;
static struct fa_test_cuda_lives lives;
static struct fa_test_usage usage;

static struct fa_case small(void)
{
	struct fa_case attention = { .heads = 2, .head_dim = 64, .seqlen_q = 5, .seqlen_k = 23 };

	fa_case_plan(&attention);
	return attention;
}

static struct fa_raw bystander;
static struct fa_raw_buffer bystander_buffer;

static void bystander_check(void)
{
	static uint64_t value;
	struct fa_case attention = small();
	struct fa_wire_message message = fa_case_message(&attention, 1, 0, 0, ++value);

	attention.seed = value;
	fa_case_fill(&attention, bystander_buffer.data);
	fa_check_eq(fa_raw_send(&bystander, &message, NULL, 0), 0);
	fa_raw_wait_expect(&bystander, 0, value, 0, NULL);
	fa_check(fa_case_error(&attention, bystander_buffer.data) <= 1);
}

static void submit(struct fa_raw *raw, const struct fa_case *attention, uint32_t id)
{
	for (uint64_t value = 1; value <= REQUESTS; ++value) {
		struct fa_wire_message message = fa_case_message(attention, id, 0, 0, value);

		fa_check_eq(fa_raw_send(raw, &message, NULL, 0), 0);
	}
}

static void client(int socket, enum fa_wire_buffer_kind kind)
{
	struct fa_case attention = small();
	struct cuda_buffer buffer;
	struct fa_raw raw;
	char byte;

	fa_raw_open(&raw, daemon_.socket);
	if (kind == FA_WIRE_BUFFER_ARENA) {
		cuda_arena(&raw, &buffer, 1, MIB);
	} else {
		if (kind == FA_WIRE_BUFFER_CUDA_IPC)
			cuda_buffer_ipc(&buffer, 1, MIB);
		else
			cuda_buffer_vmm(&buffer, 1, 10, 0);
		cuda_register(&raw, &buffer, 0, buffer.bytes, 0, 0, NULL);
	}
	cuda_case_fill(&attention, buffer.at);
	submit(&raw, &attention, 1);
	fa_cuda_send(socket, "r", 1, -1);
	fa_cuda_receive(socket, &byte, 1);
}

static void ipc_client(int socket)
{
	client(socket, FA_WIRE_BUFFER_CUDA_IPC);
}

static void fd_client(int socket)
{
	client(socket, FA_WIRE_BUFFER_CUDA_FD);
}

static void arena_client(int socket)
{
	client(socket, FA_WIRE_BUFFER_ARENA);
}

/* Loops, to be killed anywhere between registering and freeing. */
static void busy_client(int socket)
{
	struct cuda_buffer ipc, fd, arena;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_ipc(&ipc, 1, MIB);
	cuda_buffer_vmm(&fd, 2, 10, 0);
	fa_cuda_send(socket, "r", 1, -1);
	for (;;) {
		cuda_register(&raw, &ipc, 0, ipc.bytes, 0, 0, NULL);
		cuda_register(&raw, &fd, 0, fd.bytes, 0, 0, NULL);
		cuda_arena(&raw, &arena, 3, MIB);
		cuda_unregister(&raw, 2);
		cuda_unregister(&raw, 3);
		cuda_unregister(&raw, 1);
		cuda_buffer_end(&arena);
	}
}

static void (*const clients[CLIENTS])(int) = { ipc_client, fd_client, arena_client, busy_client };

static void kill_children(struct fa_cuda_child *children)
{
	for (int i = 0; i < CLIENTS; ++i)
		kill(children[i].pid, SIGKILL);
	for (int i = 0; i < CLIENTS; ++i) {
		const int status = fa_test_reap(children[i].pid);

		fa_check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		close(children[i].socket);
	}
}

static void start_some(struct fa_cuda_child *children, int begin, int end)
{
	char byte;

	for (int i = begin; i < end; ++i)
		children[i] = fa_cuda_child(clients[i], 0);
	for (int i = begin; i < end; ++i)
		fa_cuda_receive(children[i].socket, &byte, 1);
}

static void start_children(struct fa_cuda_child *children)
{
	start_some(children, 0, CLIENTS);
}

static bool all_is_back(bool loud)
{
	struct fa_test_usage now;

	fa_test_daemon_usage(&daemon_, &now);
	if (loud)
		fprintf(stderr, "%d fds, were %d; %d memfds mapped, were %d\n", now.fds, usage.fds,
		        now.memfd_maps, usage.memfd_maps);
	return fa_test_cuda_lives_equal(page, &lives, loud) && now.fds == usage.fds &&
	       now.memfd_maps == usage.memfd_maps &&
	       (int64_t)fa_test_cuda_bytes(&cuda) == lives.n[FA_TEST_CUDA_DEVICE_BYTES];
}

static void check_all_is_back(void)
{
	const uint64_t deadline = fa_deadline_ns(fa_test_patience_ns());
	uint64_t pause_ns = 0;

	while (!all_is_back(fa_now_ns() > deadline)) {
		fa_check(fa_now_ns() <= deadline);
		fa_test_poll_pause(&pause_ns);
	}
}

static int start(void **state)
{
	struct fa_case attention = small();
	struct fa_cuda_child children[CLIENTS];

	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&daemon_, NULL);
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
	fa_raw_open(&bystander, daemon_.socket);
	fa_raw_buffer_register(&bystander, &bystander_buffer, 1, attention.bytes, 0);
	fa_test_cuda_lives(page, &lives);
	start_children(children);
	kill_children(children);
	bystander_check();
	fa_check_eventually(fa_test_cuda_lives_equal(page, &lives, false));
	fa_raw_ping(&bystander);
	fa_test_daemon_usage(&daemon_, &usage);
	/* Descriptors of killed clients may be closed late. */
	for (int calm = 0; calm < 40; ++calm) {
		fa_test_quiet_ms(25);
		if (all_is_back(false))
			continue;
		fa_test_daemon_usage(&daemon_, &usage);
		calm = 0;
	}
	return 0;
}

static int stop(void **state)
{
	fa_raw_buffer_free(NULL, &bystander_buffer);
	fa_raw_close(&bystander);
	fa_test_daemon_stop(&daemon_);
	fa_check_eq(fa_test_cuda_abandoned(page), 0);
	fa_check_eq(fa_test_cuda_misuses(page), 0);
	fa_test_cuda_detach(page);
	fa_test_cuda_end(&cuda);
	return 0;
}

/* A client is killed while its kernel is held: memory is released after the kernel. */
static void test_held(void **state)
{
	for (int round = 0; round < 5; ++round) {
		struct fa_cuda_child children[CLIENTS];
		const uint64_t kernels = fa_test_cuda_kernels(page);

		fa_test_cuda_hold(page, true);
		/*
		 * The busy client comes last: closing its handle waits for held kernels, and
		 * launches wait for that.
		 */
		start_some(children, 0, CLIENTS - 1);
		fa_check_eventually(fa_test_cuda_kernels(page) >= kernels + 3);
		start_some(children, CLIENTS - 1, CLIENTS);
		kill_children(children);
		fa_test_quiet_ms(20);
		fa_check(fa_test_cuda_bytes(&cuda) >= (uint64_t)lives.n[FA_TEST_CUDA_DEVICE_BYTES] +
		                                              MIB + 10 * CUDA_CHUNK + CUDA_CHUNK);
		fa_test_cuda_hold(page, false);
		bystander_check();
		check_all_is_back();
	}
}

static void test_at_random(void **state)
{
	const int rounds = fa_test_long() ? 450 : 45;
	struct fa_test_random random = { 11 };

	for (int round = 0; round < rounds; ++round) {
		struct fa_cuda_child children[CLIENTS];

		fa_test_cuda_kernel_us(page, (uint32_t)fa_test_random_below(&random, 5000));
		start_children(children);
		fa_test_any_moment_us(fa_test_random_below(&random, 10000));
		kill_children(children);
		bystander_check();
		check_all_is_back();
	}
	fa_test_cuda_kernel_us(page, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_held),
		cmocka_unit_test(test_at_random),
	};

	return cmocka_run_group_tests_name("cuda-kill", tests, start, stop);
}
