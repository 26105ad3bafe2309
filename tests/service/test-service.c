/*
 * Clients of a daemon with a GPU, real or the tests' CUDA driver: each kind of memory, random
 * requests, clients killed while their kernels run, memory freed in use, forged IPC handles,
 * handles of other users and namespaces.
 *
 * Skips (77) where no daemon with a GPU can be started. FAD_TEST_SEED repeats a run.
 */
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/scene.h"
#include "tests/service/service.h"

#include "common/cudriver.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define RANDOM_CASES (tests_driver() ? 60 : 200)
#define KILLS 200
#define KILLS_AT_ONCE 8
#define KINDS (DEMO_CUDA_FD + 1)

static struct fa_test_daemon daemon_process;
static uint64_t seed;

static const char *const cuda_args[] = { "--backend", "cuda", NULL };

/*
 * A request of several kernels on any GPU. The tests' CUDA driver computes on the CPU and gets
 * fewer tokens, so that it finishes soon with sanitizers, too.
 */
static struct fa_case busy = {
	.dtype = FA_WIRE_DTYPE_BF16,
	.heads = 8,
	.kv_heads = 1,
	.head_dim = 64,
	.seqlen_q = 512,
	.seqlen_k = 2048,
};

/*
 * Returns true on the tests' CUDA driver, which identifies processes by pid and computes on the
 * CPU.
 */
static bool tests_driver(void)
{
	return getenv("FAD_TEST_DRIVER") != NULL;
}

static void run_child(int (*function)(void *), void *userdata)
{
	fa_check_eq(fa_test_reap(fa_test_fork(function, userdata)), 0);
}

/* ---- the device's free memory, measured in a child */

static int child_free_bytes(void *userdata)
{
	struct fa_cudriver driver;
	struct fa_error error;
	CUcontext context;
	CUdevice device;
	size_t total;

	fa_check_eq(fa_cudriver_open(FA_CUDRIVER_FOR_ALL, &error, &driver), 0);
	fa_check_eq(driver.cuInit(0), CUDA_SUCCESS);
	fa_check_eq(driver.cuDeviceGet(&device, 0), CUDA_SUCCESS);
	fa_check_eq(driver.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
	fa_check_eq(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
	fa_check_eq(driver.cuMemGetInfo(*(size_t **)userdata, &total), CUDA_SUCCESS);
	return 0;
}

static size_t free_bytes(void)
{
	static size_t *shared;

	if (!shared)
		shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		              0);
	run_child(child_free_bytes, &shared);
	return *shared;
}

/* Waits until the daemon has released all memory of its clients. */
static void check_given_back(size_t free_before)
{
	const size_t slack = (size_t)64 << 20; /* allows for contexts of slightly different size */
	struct fa_test_accounts accounts;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_process.socket);
	fa_check_eventually((fa_test_accounts(&raw, &accounts),
	                     accounts.sessions == 1 && accounts.buffers == 0));
	fa_check_eq(accounts.buffer_bytes, 0);
	fa_check_eq(accounts.requests, 0);
	fa_raw_close(&raw);
	fa_check_eventually(free_bytes() + slack > free_before);
}

/* ---- kinds of memory, and random requests */

static int child_kinds(void *userdata)
{
	const struct fa_case plain = { .dtype = FA_WIRE_DTYPE_F16,
		                       .heads = 4,
		                       .kv_heads = 2,
		                       .seqlen_q = 100,
		                       .seqlen_k = 130,
		                       .causal = true,
		                       .lse = true };
	/*
	 * The buffer is larger than one piece (allocation) of CUDA_FD, so several pieces are sent.
	 */
	const struct fa_case large = { .dtype = FA_WIRE_DTYPE_F32,
		                       .heads = 1,
		                       .head_dim = 128,
		                       .seqlen_q = 16,
		                       .seqlen_k = 12000 };
	struct fa_service service;

	fa_service_open(&service, daemon_process.socket);
	for (int kind = 0; kind < KINDS; kind++) {
		const struct fa_case *cases[] = { &plain, &large };

		for (int i = 0; i < 2; i++) {
			double error;

			fa_service_make(&service, cases[i], kind, true);
			error = fa_service_error(&service);
			if (!(error <= 1))
				fa_test_fail(__FILE__, __LINE__, "%s, case %d: error %g",
				             demo_memory_name(kind), i, error);
			fa_service_drop(&service);
		}
	}
	fa_service_close(&service);
	return 0;
}

static void test_kinds(void **state)
{
	size_t before = free_bytes();

	run_child(child_kinds, NULL);
	check_given_back(before);
}

static int child_random(void *userdata)
{
	struct fa_test_random random = { seed };
	struct fa_service service;

	fa_service_open(&service, daemon_process.socket);
	for (int i = 0; i < RANDOM_CASES; i++) {
		struct fa_case attention = fa_service_random_case(&random);
		int kind = (int)fa_test_random_below(&random, KINDS);
		double error;

		fa_service_make(&service, &attention, kind, true);
		error = fa_service_error(&service);
		if (!(error <= 1)) {
			fa_service_print(&service.attention, kind);
			fa_test_fail(__FILE__, __LINE__, "random request %d: error %g", i, error);
		}
		fa_service_drop(&service);
	}
	fa_service_close(&service);
	return 0;
}

static void test_random(void **state)
{
	size_t before = free_bytes();

	printf("FAD_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	run_child(child_random, NULL);
	check_given_back(before);
}

/* ---- clients that die */

struct victim {
	int kind;
	int ready; /* a pipe: gets a byte once kernels run */
};

static int child_victim(void *userdata)
{
	const struct victim *victim = userdata;
	struct fa_service service;
	struct fa_ticket ticket;

	fa_service_open(&service, daemon_process.socket);
	fa_service_make(&service, &busy, victim->kind, true);
	for (int i = 0; i < INT_MAX; i++) {
		int r = fa_attention(service.client, &service.request, &ticket);

		if (r == -EAGAIN)
			(void)fa_wait(service.client, &ticket, UINT64_MAX, NULL);
		else if (r < 0)
			fa_test_fail(__FILE__, __LINE__, "%s", fa_error());
		if (i == 3)
			fa_check_eq(write(victim->ready, "", 1), 1);
	}
	return 1;
}

static void test_kill(void **state)
{
	const int kills = tests_driver() ? KILLS_AT_ONCE : KILLS;
	struct fa_test_random random = { seed };
	size_t before = free_bytes();

	for (int done = 0; done < kills; done += KILLS_AT_ONCE) {
		struct victim victims[KILLS_AT_ONCE];
		pid_t pids[KILLS_AT_ONCE];
		int ends[2];
		char byte;

		fa_check_eq(pipe(ends), 0);
		for (int i = 0; i < KILLS_AT_ONCE; i++) {
			victims[i] = (struct victim){ (done + i) % KINDS, ends[1] };
			pids[i] = fa_test_fork(child_victim, &victims[i]);
		}
		close(ends[1]);
		for (int i = 0; i < KILLS_AT_ONCE; i++)
			fa_check_eq(read(ends[0], &byte, 1), 1);
		close(ends[0]);
		for (int i = 0; i < KILLS_AT_ONCE; i++) {
			fa_test_any_moment_us(fa_test_random_below(&random, 2000));
			kill(pids[i], SIGKILL);
		}
		for (int i = 0; i < KILLS_AT_ONCE; i++)
			fa_check_eq(fa_test_reap(pids[i]), SIGKILL);
	}
	run_child(child_kinds, NULL);
	check_given_back(before);
}

/* The client frees its memory while kernels read it; the daemon's mapping keeps the memory. */
static int child_free_in_flight(void *userdata)
{
	const int kinds[] = { DEMO_CUDA_IPC, DEMO_CUDA_FD, DEMO_ARENA, DEMO_MEMFD };
	struct fa_ticket tickets[4];
	struct fa_service service;

	fa_service_open(&service, daemon_process.socket);
	for (int i = 0; i < 4; i++) {
		fa_service_make(&service, &busy, kinds[i], true);
		for (int j = 0; j < 4; j++)
			fa_check_eq(fa_attention(service.client, &service.request, &tickets[j]), 0);
		/* Free the buffer and the memory. */
		fa_service_drop(&service);
		for (int j = 0; j < 4; j++)
			fa_check_eq(fa_wait(service.client, &tickets[j], UINT64_MAX, NULL), 0);
	}
	fa_service_close(&service);
	return 0;
}

static void test_free_in_flight(void **state)
{
	size_t before = free_bytes();

	run_child(child_free_in_flight, NULL);
	run_child(child_kinds, NULL);
	check_given_back(before);
}

/* ---- other users, other namespaces */

static int child_other_user(void *userdata)
{
	if (setgid(65534) < 0 || setuid(65534) < 0)
		return 77;
	return child_kinds(NULL);
}

static void test_other_user(void **state)
{
	int status;

	if (getuid() != 0 || tests_driver())
		skip();
	status = fa_test_reap(fa_test_fork(child_other_user, NULL));
	fa_check_eq(status, 0);
}

/* Runs a client as in a container, with its own pid, IPC and /proc namespaces. */
static int child_in_namespaces(void *userdata)
{
	pid_t pid;
	int status;

	if (unshare(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS) < 0)
		return 77;
	pid = fork();
	if (pid == 0) {
		if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		    mount("proc", "/proc", "proc", 0, NULL) < 0)
			_exit(77);
		_exit(child_kinds(NULL));
	}
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return 1;
	return WEXITSTATUS(status);
}

static void test_namespaces(void **state)
{
	int status;

	if (tests_driver())
		skip();
	status = fa_test_reap(fa_test_fork(child_in_namespaces, NULL));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	fa_check_eq(status, 0);
}

/* Two containers; in each the client has pid 1. */
struct container {
	const char *socket;
	int ready;
	int (*function)(struct container *container);
};

static int child_container(void *userdata)
{
	struct container *container = userdata;
	int status;
	pid_t pid;

	if (unshare(CLONE_NEWPID | CLONE_NEWNS) < 0)
		return 77;
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getpid() != 1 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		    mount("proc", "/proc", "proc", 0, NULL) < 0)
			_exit(77);
		_exit(container->function(container));
	}
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return 1;
	return WEXITSTATUS(status);
}

static int exec_daemon(struct container *container)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", container->ready);
	fcntl(container->ready, F_SETFD, 0);
	execl(getenv("FAD_DAEMON"), "fad", "--config", "/dev/null", "--backend", "cuda", "--socket",
	      container->socket, "--ready-fd", number, "--exit-when-idle", NULL);
	return 1;
}

/* The daemon refuses an IPC handle and suggests another kind of memory; that kind works. */
static int use_both(struct container *container)
{
	const struct fa_case plain = { .dtype = FA_WIRE_DTYPE_BF16, .seqlen_q = 40 };
	struct demo_memory *memory;
	struct fa_service service;
	char text[256];

	fa_service_open(&service, container->socket);
	fa_check(demo_memory_new(service.client, DEMO_CUDA_IPC, 4096, text, sizeof(text), &memory) <
	         0);
	fa_check_contains(text, "PID");
	fa_check_contains(text, "descriptor");
	fa_service_make(&service, &plain, DEMO_CUDA_FD, true);
	fa_check(fa_service_error(&service) <= 1);
	fa_service_close(&service);
	return 0;
}

static void test_equal_pids(void **state)
{
	struct container one = { .function = exec_daemon }, other = { .function = use_both };
	char directory[] = "/tmp/fad-test-XXXXXX", socket[64], word[8];
	pid_t pid;
	int ends[2], status;

	if (getuid() != 0)
		skip();
	fa_check(mkdtemp(directory) && pipe2(ends, O_CLOEXEC) == 0);
	snprintf(socket, sizeof(socket), "%s/fad.sock", directory);
	one.socket = other.socket = socket;
	one.ready = ends[1];
	pid = fa_test_fork(child_container, &one);
	close(ends[1]);
	if (read(ends[0], word, sizeof(word)) > 0) {
		status = fa_test_reap(fa_test_fork(child_container, &other));
		fa_check_eq(fa_test_reap(pid), 0); /* the last client of its container */
		fa_check_eq(status, 0);
	} else {
		status = fa_test_reap(pid);
		fa_check(WIFEXITED(status) && WEXITSTATUS(status) == 77);
	}
	close(ends[0]);
	unlink(socket);
	rmdir(directory);
}

/* ---- forged handles */

struct ipc {
	CUipcMemHandle handle;
	uint64_t bytes;
	int done; /* a pipe: closed when the exporter may exit */
	int ready;
};

/* Exports an allocation and keeps it until @done is closed. */
static int child_export(void *userdata)
{
	struct ipc *ipc = userdata;
	struct fa_cudriver driver;
	struct fa_error error;
	CUcontext context;
	CUdeviceptr at;
	CUdevice device;
	char byte;

	fa_check_eq(fa_cudriver_open(FA_CUDRIVER_FOR_ALL, &error, &driver), 0);
	fa_check_eq(driver.cuInit(0), CUDA_SUCCESS);
	fa_check_eq(driver.cuDeviceGet(&device, 0), CUDA_SUCCESS);
	fa_check_eq(driver.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
	fa_check_eq(driver.cuCtxSetCurrent(context), CUDA_SUCCESS);
	fa_check_eq(driver.cuMemAlloc(&at, ipc->bytes), CUDA_SUCCESS);
	fa_check_eq(driver.cuIpcGetMemHandle(&ipc->handle, at), CUDA_SUCCESS);
	fa_check_eq(write(ipc->ready, "", 1), 1);
	(void)!read(ipc->done, &byte, 1);
	return 0;
}

static struct fa_wire_message ipc_message(const struct ipc *ipc, uint32_t id, uint64_t offset,
                                          uint64_t bytes)
{
	struct fa_wire_message message = fa_raw_register_message(id, bytes);

	message.buffer_register.kind = FA_WIRE_BUFFER_CUDA_IPC;
	message.buffer_register.offset = offset;
	memcpy(message.buffer_register.handle, &ipc->handle, sizeof(ipc->handle));
	message.fds = 0;
	return message;
}

static void test_handles(void **state)
{
	struct fa_test_random random = { seed };
	struct fa_wire_message message;
	struct ipc *ipc, garbage;
	int ready[2], done[2];
	struct fa_raw raw;
	pid_t pid;
	char byte;

	ipc = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	fa_check(ipc != MAP_FAILED && pipe(ready) == 0 && pipe(done) == 0);
	ipc->bytes = 8 << 20;
	ipc->ready = ready[1];
	ipc->done = done[0];
	fcntl(done[1], F_SETFD, FD_CLOEXEC);
	pid = fork();
	if (pid == 0) {
		close(done[1]);
		_exit(child_export(ipc));
	}
	close(ready[1]);
	fa_check_eq(read(ready[0], &byte, 1), 1);
	fa_raw_open(&raw, daemon_process.socket);

	/* The same handle, registered twice, makes two buffers. */
	for (uint32_t id = 1; id <= 2; id++) {
		message = ipc_message(ipc, id, 0, ipc->bytes);
		fa_raw_call(&raw, &message, NULL, 0);
		fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	}
	message = ipc_message(ipc, 3, 4096, ipc->bytes);
	fa_raw_call_expect(&raw, &message, NULL, 0, -EINVAL, "8388608");
	message = ipc_message(ipc, 3, UINT64_MAX - 4095, ipc->bytes);
	fa_raw_call_expect(&raw, &message, NULL, 0, -EINVAL, NULL);
	message = ipc_message(ipc, 3, 0, (uint64_t)1 << 50);
	fa_raw_call(&raw, &message, NULL, 0);
	fa_check(raw.message.type == FA_WIRE_REPLY && raw.message.reply.status < 0);

	for (int i = 0; i < 50; i++) {
		garbage = *ipc;
		if (i % 2) /* random bytes, or else the good handle with changed bytes */
			for (size_t j = 0; j < sizeof(garbage.handle); j++)
				((unsigned char *)&garbage.handle)[j] =
					(unsigned char)fa_test_random(&random);
		else
			((unsigned char *)&garbage.handle)[fa_test_random_below(&random, 16)] ^=
				(unsigned char)(1 + fa_test_random_below(&random, 255));
		message = ipc_message(&garbage, 4, 0, 4096);
		fa_raw_call(&raw, &message, NULL, 0);
		if (raw.message.type == FA_WIRE_BUFFER_REPLY) {
			/* The driver ignored the changed byte, so the buffer exists. */
			message = fa_raw_message(FA_WIRE_BUFFER_FREE);
			message.buffer_free.buffer = 4;
			fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
			continue;
		}
		fa_check(raw.message.type == FA_WIRE_REPLY && raw.message.reply.status < 0);
		fa_check(raw.message.reply.text.length > 10);
	}

	/* After the exporter has exited, open buffers stay valid but its handle is refused. */
	close(done[1]);
	fa_check_eq(fa_test_reap(pid), 0);
	fa_raw_ping(&raw);
	for (uint32_t id = 1; id <= 2; id++) {
		message = fa_raw_message(FA_WIRE_BUFFER_FREE);
		message.buffer_free.buffer = id;
		fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
	}
	fa_test_quiet_ms(100);
	message = ipc_message(ipc, 5, 0, 4096);
	fa_raw_call(&raw, &message, NULL, 0);
	fa_check(raw.message.type == FA_WIRE_REPLY && raw.message.reply.status < 0);
	fa_raw_close(&raw);
	close(ready[0]);
	close(done[0]);
	munmap(ipc, 4096);
	run_child(child_kinds, NULL);
}

static int start(void **state)
{
	const struct fa_test_daemon_options options = { .args = cuda_args, .everyone = true };
	const char *given = getenv("FAD_TEST_SEED");

	seed = given ? strtoull(given, NULL, 0) : fa_now_ns();
	if (tests_driver()) {
		busy.seqlen_q /= 4;
		busy.seqlen_k /= 4;
	}
	if (fa_test_daemon_try(&daemon_process, &options))
		return 0;
	fa_test_daemon_reap(&daemon_process);
	exit(77);
}

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds),          cmocka_unit_test(test_random),
		cmocka_unit_test(test_free_in_flight), cmocka_unit_test(test_kill),
		cmocka_unit_test(test_other_user),     cmocka_unit_test(test_namespaces),
		cmocka_unit_test(test_handles),        cmocka_unit_test(test_equal_pids),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
