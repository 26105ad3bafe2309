/*
 * Driver calls that wait for the GPU, and that launches wait for: the daemon makes none while a
 * long work runs, but makes all in the end. The tests' driver waits as the real one does, and its
 * kernels run until the test ends them.
 */
#include "attention-client.h"
#include "cuda-client.h"

#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cmocka.h>

#define HIGH 1
/* A work is long from this estimate on: between the cases below. */
#define LONG_NS "8000"
#define PATIENCE_MS 500 /* as in quiesce.c */

static struct fa_test_cuda cuda;
static struct fa_test_daemon daemon_;
static struct fa_test_cuda_page *page;

/* High priority and short; long works; one that comes later. */
static struct attention_client urgent, patient, other;

static int64_t registrations(void)
{
	struct fa_test_cuda_lives lives;

	fa_test_cuda_lives(page, &lives);
	return lives.n[FA_TEST_CUDA_REGISTRATIONS];
}

static uint64_t calls(enum fa_test_cuda_call call)
{
	struct fa_test_cuda_calls all;

	fa_test_cuda_calls(page, &all);
	return all.n[call];
}

static void start(enum fa_wire_dtype dtype)
{
	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&daemon_, NULL);
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
	attention_client_open(&urgent, daemon_.socket, attention_client_small_case());
	fa_raw_stream_create(&urgent.raw, HIGH, 1);
	attention_client_open(&patient, daemon_.socket, attention_client_long_case(dtype));
	attention_client_submit(&urgent, HIGH);
	attention_client_expect(&urgent, HIGH);
	attention_client_submit(&patient, 0);
	attention_client_expect(&patient, 0);
}

static int stop(void **state)
{
	fa_test_cuda_hold(page, false);
	attention_client_close(&urgent);
	attention_client_close(&patient);
	fa_test_daemon_stop(&daemon_);
	fa_check_eq(fa_test_cuda_misuses(page), 0);
	fa_check_eq(fa_test_cuda_abandoned(page), 0);
	fa_test_cuda_detach(page);
	fa_test_cuda_end(&cuda);
	return 0;
}

/* Begins a long work that runs until the test ends it. */
static void begin_long(void)
{
	const uint64_t kernels = fa_test_cuda_kernels(page);

	fa_test_cuda_hold(page, true);
	attention_client_submit(&patient, 0);
	fa_check_eventually(fa_test_cuda_kernels(page) == kernels + 1);
}

/* A client comes and goes, and its memory has to be released. */
static void come_and_go(void)
{
	struct fa_test_accounts before, now;
	struct attention_client goer;

	fa_test_accounts(&urgent.raw, &before);
	attention_client_open(&goer, daemon_.socket, attention_client_small_case());
	attention_client_close(&goer);
	fa_check_eventually((fa_test_accounts(&urgent.raw, &now), now.sessions == before.sessions));
	fa_test_quiet_ms(50);
}

/* The calls wait for a work that is not preemptible; clients do not. */
static void test_nonpreemptible(void **state)
{
	uint64_t kernels, unregistered;
	int64_t registered;

	start(FA_WIRE_DTYPE_F32);
	registered = registrations();
	unregistered = calls(FA_TEST_CUDA_cuMemHostUnregister);
	begin_long();
	kernels = fa_test_cuda_kernels(page);
	come_and_go();
	fa_check_eq(registrations(), registered + 1);
	attention_client_submit(&urgent, HIGH);
	fa_check_eventually(fa_test_cuda_kernels(page) == kernels + 1);
	/* Other clients' memory is pinned meanwhile. */
	attention_client_open(&other, daemon_.socket, attention_client_small_case());
	fa_check_eq(registrations(), registered + 2);
	fa_check_eq(calls(FA_TEST_CUDA_cuMemHostUnregister), unregistered);
	fa_test_cuda_hold(page, false);
	attention_client_expect(&urgent, HIGH);
	attention_client_expect(&patient, 0);
	fa_check_eventually(registrations() == registered + 1);
	attention_client_close(&other);
	fa_check_eventually(registrations() == registered);
}

/* Once the patience is over, the daemon holds works that would end after the running one, and launches
 * all others. */
static void test_held(void **state)
{
	struct attention_client later, giving;
	int64_t registered;
	uint64_t kernels;

	start(FA_WIRE_DTYPE_F32);
	attention_client_open(&later, daemon_.socket,
	                      attention_client_long_case(FA_WIRE_DTYPE_F32));
	attention_client_open(&giving, daemon_.socket,
	                      attention_client_long_case(FA_WIRE_DTYPE_BF16));
	registered = registrations();
	begin_long();
	come_and_go();
	fa_test_elapse_ms(PATIENCE_MS + 200);
	kernels = fa_test_cuda_kernels(page);
	attention_client_submit(&later, 0);
	fa_test_quiet_ms(50);
	fa_check_eq(fa_test_cuda_kernels(page), kernels);
	attention_client_submit(&urgent, HIGH);
	fa_check_eventually(fa_test_cuda_kernels(page) == kernels + 1);
	attention_client_submit(&urgent, 0);
	fa_check_eventually(fa_test_cuda_kernels(page) == kernels + 2);
	attention_client_submit(&giving, 0);
	fa_check_eventually(fa_test_cuda_kernels(page) == kernels + 3);
	fa_check_eq(registrations(), registered + 1);
	fa_test_cuda_hold(page, false);
	attention_client_expect(&urgent, HIGH);
	attention_client_expect(&urgent, 0);
	attention_client_expect(&patient, 0);
	attention_client_expect(&giving, 0);
	attention_client_expect(&later, 0);
	fa_check_eventually(registrations() == registered);
	attention_client_close(&later);
	attention_client_close(&giving);
}

/* A preemptible work is stopped for the calls, and resumed. */
static void test_preemptible(void **state)
{
	uint64_t launches, stopped;
	int64_t registered;

	start(FA_WIRE_DTYPE_BF16);
	registered = registrations();
	for (int i = 0; i < 5; i++) {
		begin_long();
		launches = fa_test_cuda_launches(page);
		stopped = fa_test_cuda_stopped(page);
		come_and_go();
		fa_check_eventually(registrations() == registered);
		fa_check_eventually(fa_test_cuda_launches(page) == launches + 1);
		fa_check_eq(fa_test_cuda_stopped(page), stopped + 1);
		fa_test_cuda_hold(page, false);
		attention_client_expect(&patient, 0);
	}
}

/* A stopped work can be cancelled. */
static void test_cancelled(void **state)
{
	int64_t registered;

	start(FA_WIRE_DTYPE_BF16);
	registered = registrations();
	begin_long();
	come_and_go();
	fa_check_eventually(registrations() == registered);
	fa_raw_close(&patient.raw);
	fa_raw_buffer_free(NULL, &patient.buffer);
	fa_test_cuda_hold(page, false);
	fa_check_eventually(registrations() == registered - 1);
	attention_client_open(&patient, daemon_.socket,
	                      attention_client_long_case(FA_WIRE_DTYPE_BF16));
	attention_client_submit(&patient, 0);
	attention_client_expect(&patient, 0);
	fa_check_eventually(registrations() == registered);
}

/* Long works that follow one another without end are held back after a while, so that memory can be
 * released. */
static void test_patience(void **state)
{
	int64_t registered;
	uint64_t ended;

	start(FA_WIRE_DTYPE_F32);
	registered = registrations();
	fa_test_cuda_kernel_us(page, 100000);
	ended = patient.values[0];
	/* So many that the GPU is busy until the other client has gone, also on a busy machine. */
	for (int i = 0; i < 8; i++)
		attention_client_submit(&patient, 0);
	come_and_go();
	fa_check_eq(registrations(), registered + 1);
	/* One long work is always behind another. */
	while (registrations() > registered) {
		fa_check(patient.values[0] < 100);
		fa_raw_wait_expect(&patient.raw, 0, ++ended, 0, NULL);
		attention_client_submit(&patient, 0);
	}
	fa_check(ended >= 4);
	while (ended < patient.values[0])
		fa_raw_wait_expect(&patient.raw, 0, ++ended, 0, NULL);
}

/* ---- an import that fails */

static void bad_client(int socket)
{
	struct cuda_buffer buffer;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_ipc(&buffer, 1, 4096);
	cuda_register(&raw, &buffer, 0, (uint64_t)1 << 30, 0, -EINVAL, "beyond the allocation");
	fa_raw_close(&raw);
	cuda_buffer_end(&buffer);
}

/* The import is refused at once; what it had opened is closed later. */
static void test_refused(void **state)
{
	struct fa_test_cuda_lives lives;
	struct fa_cuda_child child;

	start(FA_WIRE_DTYPE_F32);
	begin_long();
	child = fa_cuda_child(bad_client, 0);
	fa_cuda_child_end(&child);
	fa_test_cuda_lives(page, &lives);
	fa_check_eq(lives.n[FA_TEST_CUDA_IPC_OPENS], 1);
	fa_check_eq(calls(FA_TEST_CUDA_cuIpcCloseMemHandle), 0);
	fa_test_cuda_hold(page, false);
	attention_client_expect(&patient, 0);
	fa_check_eventually(
		(fa_test_cuda_lives(page, &lives), lives.n[FA_TEST_CUDA_IPC_OPENS] == 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_nonpreemptible, stop),
		cmocka_unit_test_teardown(test_held, stop),
		cmocka_unit_test_teardown(test_preemptible, stop),
		cmocka_unit_test_teardown(test_cancelled, stop),
		cmocka_unit_test_teardown(test_patience, stop),
		cmocka_unit_test_teardown(test_refused, stop),
	};

	setenv("FAD_TUNE_LONG_NS", LONG_NS, 1);
	setenv("FAD_TUNE_PREEMPT_WORK_NS", "0", 1);
	setenv("FAD_TUNE_PREEMPT_STOP_NS", "3600000000000", 1);
	return cmocka_run_group_tests_name("cuda-quiesce", tests, NULL, NULL);
}
