/* A failing check fails, the reference notices small errors, and a broken daemon fails its test. */
#include "tests/lib/at_once.h"
#include "tests/lib/attention.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* True if @function fails a check in a child. */
static bool fails(int (*function)(void *userdata), void *userdata)
{
	int status = fa_test_reap(fa_test_fork(function, userdata));

	assert_true(WIFEXITED(status));
	assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == FA_TEST_EXIT);
	return WEXITSTATUS(status) == FA_TEST_EXIT;
}

static int check_number(void *userdata)
{
	fa_check_eq(*(int *)userdata, 1);
	return 0;
}

static int check_text(void *userdata)
{
	fa_check_contains((const char *)userdata, "bound");
	return 0;
}

static int check_never(void *userdata)
{
	setenv("FAD_TEST_PATIENCE_S", "0", 1);
	fa_check_eventually(*(int *)userdata == 1);
	return 0;
}

static void test_checks(void **state)
{
	int one = 1, two = 2;

	assert_false(fails(check_number, &one));
	assert_true(fails(check_number, &two));
	assert_false(fails(check_text, "out of bounds"));
	assert_true(fails(check_text, "all is well"));
	assert_true(fails(check_text, NULL));
	assert_false(fails(check_never, &one));
	assert_true(fails(check_never, &two));
}

/* ---- at_once.h */

static void passes(void **state)
{
}

static void is_skipped(void **state)
{
	skip();
}

static void fails_check(void **state)
{
	fa_check_eq(1, 2);
}

static void fails_assert(void **state)
{
	assert_int_equal(1, 2);
}

static void dies(void **state)
{
	kill(getpid(), SIGKILL);
}

/* Each kind of failure is counted. */
static void test_at_once(void **state)
{
	const struct CMUnitTest good[] = { cmocka_unit_test(passes), cmocka_unit_test(is_skipped) };
	const struct CMUnitTest bad[] = {
		cmocka_unit_test(fails_check),
		cmocka_unit_test(passes),
		cmocka_unit_test(dies),
		cmocka_unit_test(fails_assert),
	};

	assert_int_equal(fa_test_run_at_once("good", good, NULL, NULL), 0);
	assert_int_equal(fa_test_run_at_once("bad", bad, NULL, NULL), 3);
}

/* ---- the reference */

/* What a correct daemon writes: a query of a single key yields that key's value. */
static void test_reference(void **state)
{
	struct fa_case attention = { .heads = 2, .head_dim = 8, .seqlen_q = 1, .lse = true };
	float *q, *k, *v, *out, *lse;
	unsigned char *data;

	fa_case_plan(&attention);
	data = calloc(1, attention.bytes);
	assert_non_null(data);
	fa_case_fill(&attention, data);
	assert_true(fa_case_untouched(&attention, data));
	assert_true(isinf(fa_case_error(&attention, data))); /* poison is not a result */

	q = (float *)(void *)(data + attention.offset_q);
	k = (float *)(void *)(data + attention.offset_k);
	v = (float *)(void *)(data + attention.offset_v);
	out = (float *)(void *)(data + attention.offset_out);
	lse = (float *)(void *)(data + attention.offset_lse);
	memcpy(out, v, 16 * sizeof(*out));
	for (int h = 0; h < 2; ++h) {
		double score = 0;

		for (int d = 0; d < 8; ++d)
			score += (double)q[h * 8 + d] * (double)k[h * 8 + d];
		lse[h] = (float)(score / sqrt(8));
	}
	assert_false(fa_case_untouched(&attention, data));
	assert_true(fa_case_error(&attention, data) <= 1);
	out[3] += 1e-3f;
	assert_true(fa_case_error(&attention, data) > 1);
	out[3] -= 1e-3f;
	lse[1] += 1e-3f;
	assert_true(fa_case_error(&attention, data) > 1);
	lse[1] = INFINITY;
	assert_true(fa_case_error(&attention, data) > 1);
	free(data);
}

/* Without visible keys a row is zeros with an lse of -inf, or that of the sink. */
static void test_reference_empty_rows(void **state)
{
	struct fa_case attention = {
		.head_dim = 8, .seqlen_q = 2, .seqlen_k = 1, .causal = true, .lse = true
	};
	unsigned char *data;
	float *out, *lse;

	fa_case_plan(&attention);
	data = calloc(1, attention.bytes);
	assert_non_null(data);
	fa_case_fill(&attention, data);
	out = (float *)(void *)(data + attention.offset_out);
	lse = (float *)(void *)(data + attention.offset_lse);
	memset(out, 0, 8 * sizeof(*out));
	memcpy(out + 8, data + attention.offset_v, 8 * sizeof(*out));
	lse[0] = -INFINITY;
	{
		const float *q = (const void *)(data + attention.offset_q);
		const float *k = (const void *)(data + attention.offset_k);
		double score = 0;

		for (int d = 0; d < 8; ++d)
			score += (double)q[8 + d] * (double)k[d];
		lse[1] = (float)(score / sqrt(8));
	}
	assert_true(fa_case_error(&attention, data) <= 1);
	lse[0] = 0;
	assert_true(fa_case_error(&attention, data) > 1);
	free(data);
}

static void test_formats(void **state)
{
	static const struct {
		double value;
		uint16_t f16, bf16;
	} known[] = {
		{ 0, 0, 0 },
		{ 1, 0x3c00, 0x3f80 },
		{ -2, 0xc000, 0xc000 },
		{ 0.333251953125, 0x3555, 0x3eab },
		{ 65504, 0x7bff, 0x4780 },
		{ 6.103515625e-05, 0x0400, 0x3880 },
		{ 5.960464477539063e-08, 0x0001, 0x3380 },
	};
	uint16_t bits;

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); ++i) {
		fa_case_dtype_store(FA_WIRE_DTYPE_F16, &bits, 0, known[i].value);
		assert_int_equal(bits, known[i].f16);
		assert_true(fa_case_dtype_load(FA_WIRE_DTYPE_F16, &bits, 0) == known[i].value);
		fa_case_dtype_store(FA_WIRE_DTYPE_BF16, &bits, 0, known[i].value);
		assert_int_equal(bits, known[i].bf16);
	}
	for (unsigned int b = 0; b < 65536; ++b) {
		double value;

		bits = (uint16_t)b;
		value = fa_case_dtype_load(FA_WIRE_DTYPE_F16, &bits, 0);
		if (isnan(value) || isinf(value))
			continue;
		bits = 0;
		fa_case_dtype_store(FA_WIRE_DTYPE_F16, &bits, 0, value);
		assert_int_equal(bits, b);
	}
}

/* ---- broken daemons */

static int start_and_stop(void *userdata)
{
	struct fa_test_daemon daemon;

	fa_test_daemon_start(&daemon, NULL);
	/* The daemon exits by itself before it is stopped. */
	if (userdata)
		fa_test_daemon_wait_dead(&daemon);
	fa_test_daemon_stop(&daemon);
	return 0;
}

/* A directory that the caller names stays. */
static int start_in_dir(void *userdata)
{
	struct fa_test_daemon daemon;
	char dir[48];

	fa_test_dir_make(dir, sizeof(dir));
	fa_test_daemon_start(&daemon, &(struct fa_test_daemon_options){ .dir = dir });
	fa_test_daemon_stop(&daemon);
	fa_check(!access(dir, F_OK));
	fa_test_dir_remove(dir);
	fa_check(access(dir, F_OK) < 0);
	fa_test_daemon_start(&daemon, NULL);
	fa_check(!access(daemon.dir, F_OK));
	fa_test_daemon_stop(&daemon);
	fa_check(access(daemon.dir, F_OK) < 0);
	return 0;
}

/* A shell script as fad; it writes READY to $ready. */
static bool run_script_fails(const char *script, int (*run)(void *userdata), void *userdata)
{
	char path[] = "/tmp/fad-script-XXXXXX", command[2048];
	bool failed;
	FILE *file;
	int fd;

	fd = mkstemp(path);
	assert_true(fd >= 0);
	file = fdopen(fd, "w");
	assert_non_null(file);
	fprintf(file,
	        "#!/bin/sh\n"
	        "while [ $# -gt 0 ]; do [ \"$1\" = --ready-fd ] && fd=$2; shift; done\n"
	        "ready() { eval \"echo READY >&$fd; exec $fd>&-\"; }\n"
	        "%s\n",
	        script);
	assert_int_equal(fchmod(fd, 0755), 0);
	assert_int_equal(fclose(file), 0);
	snprintf(command, sizeof(command), "%s", path);
	setenv("FAD_DAEMON", command, 1);
	failed = fails(run, userdata);
	unlink(path);
	return failed;
}

static bool script_fails(const char *script, bool ends)
{
	return run_script_fails(script, start_and_stop, ends ? &ends : NULL);
}

static void test_broken_daemons(void **state)
{
	const char *wait = "while :; do sleep 0.05; done";
	char script[512];

	snprintf(script, sizeof(script), "trap 'exit 0' TERM; ready; %s", wait);
	assert_false(script_fails(script, false)); /* a correct script passes */
	assert_false(run_script_fails(script, start_in_dir, NULL));
	assert_true(script_fails("exit 0", false));
	assert_true(script_fails("eval \"exec $fd>&-\"; exec sleep 60", false));
	snprintf(script, sizeof(script), "trap 'exit 3' TERM; ready; %s", wait);
	assert_true(script_fails(script, false));
	snprintf(script, sizeof(script),
	         "trap 'exit 0' TERM; echo 'x.c:1: runtime error: y' >&2; ready; %s", wait);
	assert_true(script_fails(script, false));
	snprintf(script, sizeof(script), "ready; kill -SEGV $$; %s", wait);
	assert_true(script_fails(script, false));
	assert_true(script_fails("ready; exit 0", true)); /* exits without a signal */
}

/* ---- directories */

static int wait_in_dir(void *userdata)
{
	char dir[48], path[64];
	FILE *file;

	fa_test_dir_make(dir, sizeof(dir));
	snprintf(path, sizeof(path), "%s/file", dir);
	file = fopen(path, "we");
	fa_check(file && fclose(file) == 0);
	fa_check_eq(write(*(int *)userdata, dir, sizeof(dir)), sizeof(dir));
	pause();
	return 0;
}

/* The directory of a killed process is removed. */
static void test_killed(void **state)
{
	char dir[48];
	int fds[2];
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fa_test_fork(wait_in_dir, &fds[1]);
	assert_int_equal(read(fds[0], dir, sizeof(dir)), sizeof(dir));
	assert_int_equal(access(dir, F_OK), 0);
	kill(pid, SIGKILL);
	fa_test_reap(pid);
	fa_check_eventually(access(dir, F_OK) < 0);
	close(fds[0]);
	close(fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_checks),    cmocka_unit_test(test_at_once),
		cmocka_unit_test(test_reference), cmocka_unit_test(test_reference_empty_rows),
		cmocka_unit_test(test_formats),   cmocka_unit_test(test_broken_daemons),
		cmocka_unit_test(test_killed),
	};

	return cmocka_run_group_tests_name("testlib", tests, NULL, NULL);
}
