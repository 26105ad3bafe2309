/*
 * Every driver call fails in turn in every operation, on the tests' CUDA driver: the operation
 * reports it or works without, nothing leaks, others go on. A sticky error ends requests with
 * -ENODEV and the daemon with the exit status that asks for a restart. The same while the daemon
 * starts.
 */
#include "common/cleanup.h"
#include "cuda-client.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)
#define PIECES 3

static struct fa_test_cuda cuda;
static struct fa_test_daemon daemon_;
static struct fa_test_cuda_page *page;

static struct fa_cuda_child owner;
static struct cuda_buffer owned_ipc, owned_fd;

static void owner_main(int socket)
{
	struct cuda_buffer ipc, fd;
	char byte;

	cuda_buffer_ipc(&ipc, 1, MIB);
	cuda_buffer_vmm(&fd, 1, PIECES, 0);
	fa_cu(cuMemsetD8(ipc.at, 0, MIB));
	fa_cu(cuMemsetD8(fd.at, 0, fd.bytes));
	fa_cu(cuCtxSynchronize());
	fa_cuda_send(socket, &ipc, sizeof(ipc), -1);
	for (int i = 0; i < PIECES; ++i)
		fa_cuda_send(socket, &fd, sizeof(fd), fd.fds[i]);
	fa_cuda_receive(socket, &byte, 1);
}

static int setup(void **state)
{
	fa_test_cuda_begin(&cuda);
	owner = fa_cuda_child(owner_main, 0);
	fa_cuda_receive(owner.socket, &owned_ipc, sizeof(owned_ipc));
	for (int i = 0; i < PIECES; ++i) {
		struct cuda_buffer buffer;
		const int fd = fa_cuda_receive(owner.socket, &buffer, sizeof(buffer));

		memcpy(buffer.fds, owned_fd.fds, sizeof(buffer.fds));
		owned_fd = buffer;
		owned_fd.fds[i] = fd;
	}
	return 0;
}

static int teardown(void **state)
{
	kill(owner.pid, SIGKILL);
	fa_test_reap(owner.pid);
	close(owner.socket);
	for (int i = 0; i < PIECES; ++i)
		close(owned_fd.fds[i]);
	fa_test_cuda_end(&cuda);
	return 0;
}

static void daemon_start(void)
{
	fa_test_daemon_start(&daemon_, NULL);
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
}

static void check_misuses(const char *log)
{
	if (fa_test_cuda_misuses(page))
		fa_test_fail(__FILE__, __LINE__, "a GPU would have choked on that: %s", log);
}

static void daemon_stop(void)
{
	_fa_cleanup_(fa_freep) char *log = fa_test_daemon_log(&daemon_);

	fa_test_daemon_stop(&daemon_);
	check_misuses(log);
	fa_test_cuda_detach(page);
}

static void daemon_expect_lost(void)
{
	_fa_cleanup_(fa_freep) char *log = NULL;
	int status;

	fa_test_daemon_wait_dead(&daemon_);
	log = fa_test_daemon_log(&daemon_);
	status = fa_test_daemon_reap(&daemon_);
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), EX_TEMPFAIL);
	fa_check_contains(log, "lost");
	check_misuses(log);
	fa_test_cuda_detach(page);
}

/*
 * ---- operations: return the first error (-ECONNRESET if the connection ends), and undo what they
 * did
 */

static struct fa_case small(void)
{
	struct fa_case attention = {
		.heads = 2,
		.head_dim = 64,
		.batch = 2,
		.seqlen_q = 5,
		.seqlen_k = 23,
		.ragged = true,
		.sinks = true,
	};

	fa_case_plan(&attention);
	return attention;
}

static int call(struct fa_raw *raw, struct fa_wire_message *message, const int *fds, size_t n_fds)
{
	int r;

	message->id = ++raw->next_id;
	message->fds = (uint8_t)n_fds;
	if (fa_raw_send(raw, message, fds, n_fds) < 0)
		return -ECONNRESET;
	do {
		r = fa_raw_receive(raw, 60000);
		if (r == 0)
			return -ECONNRESET;
		fa_check_eq(r, 1);
	} while (raw->message.id != message->id);
	if (raw->message.type != FA_WIRE_REPLY)
		return 0;
	if (raw->message.reply.status < 0)
		fa_check(raw->message.reply.text.length > 10);
	return raw->message.reply.status;
}

static int unregister(struct fa_raw *raw, uint32_t id)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

	message.buffer_free.buffer = id;
	return call(raw, &message, NULL, 0);
}

static int op_ipc(struct fa_raw *raw)
{
	struct fa_wire_message message = cuda_register_message(&owned_ipc, 0, MIB, 0);
	const int r = call(raw, &message, NULL, 0);

	return r < 0 ? r : unregister(raw, 1);
}

static int op_fd(struct fa_raw *raw)
{
	struct fa_wire_message message = cuda_register_message(&owned_fd, 0, MIB, 0);
	const int r = call(raw, &message, owned_fd.fds, PIECES);

	return r < 0 ? r : unregister(raw, 1);
}

static int op_fd_read_only(struct fa_raw *raw)
{
	struct fa_wire_message message = cuda_register_message(&owned_fd, 0, MIB,
	                                                       FA_WIRE_BUFFER_READ_ONLY);
	const int r = call(raw, &message, owned_fd.fds, PIECES);

	return r < 0 ? r : unregister(raw, 1);
}

static int op_arena(struct fa_raw *raw)
{
	struct fa_wire_message message = fa_raw_register_message(1, 3 * MIB);
	int r;

	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	r = call(raw, &message, NULL, 0);
	return r < 0 ? r : unregister(raw, 1);
}

static int op_host(struct fa_raw *raw)
{
	struct fa_wire_message message = fa_raw_register_message(1, 3 * MIB);
	struct fa_raw_buffer buffer;
	int r;

	fa_raw_buffer_make(&buffer, 1, 3 * MIB);
	r = call(raw, &message, &buffer.fd, 1);
	fa_raw_buffer_free(NULL, &buffer);
	return r < 0 ? r : unregister(raw, 1);
}

static uint64_t *value_of(struct fa_raw *raw)
{
	return &raw->session;
}

static int attention_begin(struct fa_raw *raw, uint32_t id)
{
	struct fa_case attention = small();
	struct fa_wire_message message = fa_case_message(&attention, id, 0, 0, ++*value_of(raw));

	return fa_raw_send(raw, &message, NULL, 0) < 0 ? -ECONNRESET : 0;
}

static int attention_end(struct fa_raw *raw)
{
	for (;;) {
		const int r = fa_raw_receive(raw, 60000);

		if (r == 0)
			return -ECONNRESET;
		fa_check_eq(r, 1);
		if (raw->message.type == FA_WIRE_COMPLETION &&
		    raw->message.completion.value == *value_of(raw))
			break;
	}
	if (raw->message.completion.status < 0)
		fa_check(raw->message.completion.text.length > 10);
	return raw->message.completion.status;
}

static int op_attention(struct fa_raw *raw)
{
	const int r = attention_begin(raw, 2);

	return r < 0 ? r : attention_end(raw);
}

static const struct {
	const char *name;
	int (*run)(struct fa_raw *raw);
} ops[] = {
	{ "CUDA_IPC", op_ipc }, { "CUDA_FD", op_fd },   { "CUDA_FD, read-only", op_fd_read_only },
	{ "ARENA", op_arena },  { "HOST_FD", op_host }, { "Attention", op_attention },
};

#define N_OPS (sizeof(ops) / sizeof(ops[0]))

static void open_raw(struct fa_raw *raw)
{
	struct fa_wire_message message = cuda_register_message(&owned_ipc, 0, MIB, 0);

	fa_raw_open(raw, daemon_.socket);
	*value_of(raw) = 0;
	message.buffer_register.buffer = 2;
	fa_check_eq(call(raw, &message, NULL, 0), 0);
}

/* Calls that release something: if one fails, the resource stays. */
static bool gives_back(enum fa_test_cuda_call call)
{
	return call == FA_TEST_CUDA_cuMemUnmap || call == FA_TEST_CUDA_cuMemAddressFree ||
	       call == FA_TEST_CUDA_cuMemRelease || call == FA_TEST_CUDA_cuIpcCloseMemHandle ||
	       call == FA_TEST_CUDA_cuMemHostUnregister;
}

/* Without these calls the GPU cannot be used or observed: the daemon may give up if one fails. */
static bool is_vital(enum fa_test_cuda_call call)
{
	return call == FA_TEST_CUDA_cuCtxSetCurrent || call == FA_TEST_CUDA_cuStreamWriteValue64 ||
	       call == FA_TEST_CUDA_cuStreamQuery;
}

static void expect_lives(const struct fa_test_cuda_lives *lives, const char *name, int n)
{
	const uint64_t deadline = fa_deadline_ns(fa_test_patience_ns());
	uint64_t pause_ns = 0;

	while (!fa_test_cuda_lives_equal(page, lives, fa_now_ns() > deadline)) {
		if (fa_now_ns() > deadline)
			fa_test_fail(__FILE__, __LINE__, "%s left that when call %d failed (%s)",
			             name, n, fa_test_cuda_call_name(fa_test_cuda_failed_at(page)));
		fa_test_poll_pause(&pause_ns);
	}
}

/*
 * Counts resources once asynchronous releases are over, which take long with sanitizers on a loaded
 * machine.
 */
static void lives_settle(struct fa_test_cuda_lives *ret_lives)
{
	const unsigned int step_ms = (unsigned int)(fa_test_patience_ns() / 10000000000U);

	fa_test_cuda_lives(page, ret_lives);
	for (int calm = 0; calm < 20; ++calm) {
		fa_test_quiet_ms(step_ms);
		if (fa_test_cuda_lives_equal(page, ret_lives, false))
			continue;
		fa_test_cuda_lives(page, ret_lives);
		calm = 0;
	}
}

static void fail_each(const char *name, int (*run)(struct fa_raw *raw), CUresult code)
{
	struct fa_test_cuda_lives lives;
	struct fa_raw raw, other;
	int n, n_refused = 0;

	open_raw(&raw);
	open_raw(&other);
	fa_check_eq(run(&raw), 0);
	lives_settle(&lives);
	for (n = 1;; ++n) {
		const uint64_t failed = fa_test_cuda_failed(page);
		char rule[64];
		bool ended;
		int r;

		snprintf(rule, sizeof(rule), "any:%d=%d", n, code);
		fa_test_cuda_fail(page, rule);
		r = run(&raw);
		if (fa_test_cuda_failed(page) == failed)
			lives_settle(&(struct fa_test_cuda_lives){ 0 });
		fa_test_cuda_fail(page, NULL);
		if (fa_test_cuda_failed(page) == failed) {
			if (r < 0)
				fa_test_fail(__FILE__, __LINE__,
				             "%s: %d, %s, though nothing failed", name, r,
				             raw.message.reply.text.text);
			break;
		}
		ended = op_attention(&other) < 0;
		if (ended || r == -ENODEV || r == -ECONNRESET) {
			if (!is_vital(fa_test_cuda_failed_at(page)))
				fa_test_fail(__FILE__, __LINE__, "%s: %d after call %d failed (%s)",
				             name, r, n,
				             fa_test_cuda_call_name(fa_test_cuda_failed_at(page)));
			fa_raw_close(&raw);
			fa_raw_close(&other);
			daemon_expect_lost();
			daemon_start();
			open_raw(&raw);
			open_raw(&other);
			lives_settle(&lives);
			continue;
		}
		n_refused += r < 0;
		if (gives_back(fa_test_cuda_failed_at(page)))
			lives_settle(&lives);
		else
			expect_lives(&lives, name, n);
		fa_check(n < 1000);
	}
	fa_check(n > 1 && n_refused > 0);
	fa_raw_close(&raw);
	fa_raw_close(&other);
}

static void test_calls_fail(void **state)
{
	static const CUresult codes[] = { CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
		                          CUDA_ERROR_NOT_SUPPORTED };

	daemon_start();
	for (size_t i = 0; i < N_OPS; ++i)
		for (size_t j = 0; j < sizeof(codes) / sizeof(codes[0]); ++j)
			fail_each(ops[i].name, ops[i].run, codes[j]);
	daemon_stop();
}

static void test_calls_fail_always(void **state)
{
	static const char *const rules[] = {
		"cuMemAlloc:*=2",     "cuMemCreate:*=2",       "cuMemMap:*=2",
		"cuMemSetAccess:*=1", "cuMemHostRegister:*=2", "cuIpcOpenMemHandle:*=1",
		"cuLaunchKernel:*=1", "cuMemcpyHtoDAsync:*=1", "cuPointerGetAttribute:*=1",
		"cuGetErrorName:*=1", "cuLaunchKernelEx:*=1",
	};
	struct fa_test_cuda_lives lives;
	struct fa_raw raw;

	daemon_start();
	open_raw(&raw);
	lives_settle(&lives);
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); ++i) {
		fa_test_cuda_fail(page, rules[i]);
		for (int round = 0; round < 10; ++round)
			for (size_t j = 0; j < N_OPS; ++j)
				(void)ops[j].run(&raw);
		fa_test_cuda_fail(page, NULL);
		for (size_t j = 0; j < N_OPS; ++j)
			fa_check_eq(ops[j].run(&raw), 0);
		expect_lives(&lives, rules[i], 0);
	}
	fa_raw_close(&raw);
	daemon_stop();
}

/* ---- errors that lose the GPU */

/*
 * Call @n of @op loses the GPU while another client's work runs. Returns false if there was no such
 * call. @n_ended: the other client's requests that this ended.
 */
static bool lose_at(const char *name, int (*run)(struct fa_raw *raw), int n, int *n_ended)
{
	struct fa_test_cuda_lives unused;
	struct fa_raw raw, other;
	bool released = false;
	char rule[64];
	int r, r_other;

	daemon_start();
	open_raw(&raw);
	open_raw(&other);
	fa_test_cuda_hold(page, true);
	fa_check_eq(attention_begin(&other, 2), 0);
	fa_check_eventually(fa_test_cuda_kernels(page) == 1);
	snprintf(rule, sizeof(rule), "any:%d=%d", n, CUDA_ERROR_LAUNCH_FAILED);
	if (run == op_attention) {
		fa_test_cuda_fail(page, rule);
		fa_check_eq(attention_begin(&raw, 2), 0);
		fa_check_eventually(fa_test_cuda_failed(page) || fa_test_cuda_kernels(page) == 2);
		released = !fa_test_cuda_is_lost(page);
		if (released)
			fa_test_cuda_hold(page, false);
		r = attention_end(&raw);
	} else {
		fa_test_cuda_fail(page, rule);
		r = run(&raw);
	}
	if (!fa_test_cuda_failed(page))
		lives_settle(&unused);
	fa_test_cuda_fail(page, NULL);
	if (!fa_test_cuda_is_lost(page)) {
		released = true;
		fa_test_cuda_hold(page, false);
	}
	r_other = attention_end(&other);
	if (!fa_test_cuda_is_lost(page)) {
		const bool failed = fa_test_cuda_failed(page);

		fa_check_eq(r_other, 0);
		if (!failed)
			fa_check_eq(r, 0);
		fa_raw_close(&raw);
		fa_raw_close(&other);
		daemon_stop();
		return failed;
	}
	if (r_other != -ENODEV && !(released && r_other == 0))
		fa_test_fail(__FILE__, __LINE__,
		             "%s: what was in flight ended with %d, not -ENODEV", name, r_other);
	if (r_other == -ENODEV) {
		fa_check_contains(other.message.completion.text.text, "lost");
		++*n_ended;
	}
	fa_raw_close(&raw);
	fa_raw_close(&other);
	daemon_expect_lost();
	return true;
}

static void test_calls_lose(void **state)
{
	for (size_t i = 0; i < N_OPS; ++i) {
		int n = 1, n_ended = 0;

		while (lose_at(ops[i].name, ops[i].run, n, &n_ended))
			n += fa_test_sanitized() ? 4 : 1;
		fa_check(n > 1 && n_ended > 0);
	}
}

/* A kernel faults: no call fails until the daemon synchronises. */
static void test_kernel_faults(void **state)
{
	static const int codes[] = { CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ECC_UNCORRECTABLE };

	for (size_t i = 0; i < 2; ++i) {
		struct fa_raw raws[4];
		char rule[64];

		daemon_start();
		for (int j = 0; j < 4; ++j)
			open_raw(&raws[j]);
		fa_check_eq(op_attention(&raws[0]), 0);
		/* Without the fault, 80 kernels would take four seconds. */
		fa_test_cuda_kernel_us(page, 50000);
		fa_test_cuda_hold(page, true);
		for (int j = 0; j < 3; ++j) {
			for (int k = 0; k < 80; ++k)
				fa_check_eq(attention_begin(&raws[j], 2), 0);
			/*
			 * Make the daemon read all requests: unread ones may end with the
			 * connection.
			 */
			fa_raw_ping(&raws[j]);
		}
		/*
		 * Wait until a kernel of each connection has begun, so that none of them takes the
		 * rule meant for raws[3].
		 */
		fa_check_eventually(fa_test_cuda_kernels(page) == 1 + 3);
		snprintf(rule, sizeof(rule), "kernel:1=%d", codes[i]);
		fa_test_cuda_fail(page, rule);
		fa_check_eq(attention_begin(&raws[3], 2), 0);
		fa_check_eventually(fa_test_cuda_failed(page));
		fa_test_cuda_hold(page, false);
		for (int j = 0; j < 4; ++j) {
			fa_check_eq(attention_end(&raws[j]), -ENODEV);
			fa_check_contains(raws[j].message.completion.text.text,
			                  i ? "ECC" : "ILLEGAL_ADDRESS");
			fa_raw_expect_end(&raws[j]);
			fa_raw_close(&raws[j]);
		}
		daemon_expect_lost();
	}
}

/*
 * The first operation of a new client, while the daemon may exit at any moment. Hello gets
 * -ESHUTDOWN if the daemon knows that its GPU is lost.
 */
static int first_op(void)
{
	struct fa_wire_message hello = fa_raw_hello_message("test");
	struct fa_raw raw;
	int r;

	if (fa_raw_connect_try(&raw, daemon_.socket) < 0)
		return -ECONNRESET;
	r = call(&raw, &hello, NULL, 0);
	if (r == 0)
		r = op_host(&raw);
	fa_raw_close(&raw);
	return r;
}

static bool start_fails_at(int n, CUresult code, bool automatic)
{
	static const char *const cuda_only[] = { "--backend", "cuda", NULL };
	const struct fa_test_daemon_options options = { .args = automatic ? NULL : cuda_only };
	_fa_cleanup_(fa_freep) char *log = NULL;
	struct fa_test_cuda_lives none = { 0 };
	char rule[64];
	bool up, failed;

	snprintf(rule, sizeof(rule), "any:%d=%d", n, code);
	setenv("FAD_TEST_CUDA_FAIL", rule, 1);
	up = fa_test_daemon_try(&daemon_, &options);
	unsetenv("FAD_TEST_CUDA_FAIL");
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
	fa_test_cuda_fail(page, NULL);
	failed = fa_test_cuda_failed(page);
	if (up) {
		const int r = first_op();

		if (fa_test_cuda_is_lost(page)) {
			if (r != -ENODEV && r != -ECONNRESET && r != -ESHUTDOWN)
				fa_test_fail(__FILE__, __LINE__,
				             "%d after call %d lost the GPU (%s)", r, n,
				             fa_test_cuda_call_name(fa_test_cuda_failed_at(page)));
			daemon_expect_lost();
			return true;
		}
		fa_check_eq(r, 0);
		fa_test_daemon_stop(&daemon_);
	} else {
		int status;

		fa_check(!automatic);
		fa_test_daemon_wait_dead(&daemon_);
		log = fa_test_daemon_log(&daemon_);
		status = fa_test_daemon_reap(&daemon_);
		fa_check(WIFEXITED(status) && WEXITSTATUS(status));
		fa_check_contains(log, "CUDA_ERROR");
		if (!fa_test_cuda_is_lost(page)) {
			fa_check_eq(fa_test_cuda_abandoned(page), 0);
			fa_check(fa_test_cuda_lives_equal(page, &none, true));
		}
	}
	fa_check_eq(fa_test_cuda_misuses(page), 0);
	fa_test_cuda_detach(page);
	return failed;
}

static void start_fails(CUresult code, int step)
{
	int n = 1;

	while (start_fails_at(n, code, false))
		n += fa_test_sanitized() ? 10 * step : step;
	fa_check(n > 50);
}

static void test_start_fails(void **state)
{
	start_fails(CUDA_ERROR_OUT_OF_MEMORY, 1);
	start_fails(CUDA_ERROR_LAUNCH_FAILED, 5);
}

/* If the configuration names no backend, the daemon falls back to the CPU. */
static void test_start_falls_back(void **state)
{
	for (int n = 1; n < 60; n += 7)
		start_fails_at(n, CUDA_ERROR_NOT_SUPPORTED, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_calls_fail),  cmocka_unit_test(test_calls_fail_always),
		cmocka_unit_test(test_calls_lose),  cmocka_unit_test(test_kernel_faults),
		cmocka_unit_test(test_start_fails), cmocka_unit_test(test_start_falls_back),
	};

	return cmocka_run_group_tests_name("cuda-faults", tests, setup, teardown);
}
