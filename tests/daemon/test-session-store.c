/* Resuming, and when lost sessions expire. */
#include "daemon/persist/session_store.h"

#include "common/clock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#define S FA_NS_PER_SEC
#define GRACE (30 * S)
#define ALL (10 * GRACE)
#define UID 7
#define N 3

static const struct fa_session_store_device device = { .backend = "test" };
static struct fa_session_store resume;
static int fd = -1;
static uint64_t now_ns;

static struct fa_wire_secret secret_of(uint64_t number)
{
	return (struct fa_wire_secret){ .lo = number * 1000003, .hi = ~number };
}

static int set_up(void **state)
{
	struct fa_error error;

	now_ns = 1000 * S;
	assert_int_equal(fa_session_store_new(&device, &error, &resume, &fd), 0);
	for (uint64_t number = 1; number <= N; ++number) {
		struct fa_wire_secret secret = secret_of(number);

		assert_int_equal(fa_session_store_add(&resume, number, UID, &secret), number - 1);
	}
	fa_session_store_close(&resume);
	assert_int_equal(fa_session_store_open(fd, &device, &error, &resume), 0);
	assert_int_equal(resume.n_lost, N);
	return 0;
}

static int tear_down(void **state)
{
	fa_session_store_close(&resume);
	close(fd);
	return 0;
}

static uint32_t take(uint64_t number)
{
	struct fa_wire_secret secret = secret_of(number);
	uint64_t taken = 0;
	uint32_t record;

	assert_int_equal(fa_session_store_resume(&resume, UID, &secret, now_ns, &record, &taken),
	                 0);
	assert_int_equal(taken, number);
	assert_false(fa_session_store_is_lost(&resume, number));
	return record;
}

/* Exactly the sessions with these digits must expire now. */
static void expect_over(const char *numbers)
{
	uint64_t number;

	for (; *numbers; ++numbers) {
		assert_true(fa_session_store_expire(&resume, now_ns, &number));
		assert_int_equal(number, *numbers - '0');
		assert_false(fa_session_store_is_lost(&resume, number));
	}
	assert_false(fa_session_store_expire(&resume, now_ns, &number));
}

static void expect_none(void)
{
	expect_over("");
}

static void test_once(void **state)
{
	struct fa_wire_secret secret = secret_of(2);
	uint64_t number;
	uint32_t record;

	/* None expires before the grace time is started. */
	now_ns += 1000 * S;
	expect_none();
	fa_session_store_start_grace(&resume, now_ns, GRACE, ALL);
	now_ns += GRACE - 1;
	expect_none();
	(void)take(2);
	now_ns += 1;
	expect_over("13");
	assert_int_equal(resume.n_lost, 0);
	assert_int_equal(fa_session_store_resume(&resume, UID, &secret, now_ns, &record, &number),
	                 -ENOENT);
}

static void test_once_all(void **state)
{
	fa_session_store_start_grace(&resume, now_ns, GRACE, ALL);
	now_ns += GRACE;
	expect_over("123");
	now_ns += 1000 * S;
	expect_none();
}

/* A session lost later has its full grace time. */
static void test_again(void **state)
{
	uint32_t record;

	fa_session_store_start_grace(&resume, now_ns, GRACE, ALL);
	record = take(2);
	now_ns += GRACE - S;
	fa_session_store_set_lost(&resume, record, now_ns);
	assert_true(fa_session_store_is_lost(&resume, 2));
	now_ns += S;
	expect_over("13");
	assert_true(fa_session_store_is_lost(&resume, 2));
}

static void test_much_later(void **state)
{
	uint32_t second, third;

	fa_session_store_start_grace(&resume, now_ns, GRACE, ALL);
	second = take(2);
	third = take(3);
	now_ns += GRACE;
	expect_over("1");
	now_ns += 10000 * S;
	expect_none();
	fa_session_store_set_lost(&resume, third, now_ns);
	now_ns += 10 * S;
	expect_none();
	fa_session_store_set_lost(&resume, second, now_ns);
	now_ns += 20 * S - 1;
	expect_none();
	now_ns += 1;
	expect_over("3");
	now_ns += 10 * S - 1;
	expect_none();
	now_ns += 1;
	expect_over("2");
}

/* Lost behind a scan's position, a session is found by the next scan. */
static void test_broken_off(void **state)
{
	uint64_t number;
	uint32_t record;

	fa_session_store_start_grace(&resume, now_ns, GRACE, ALL);
	record = take(1);
	now_ns += GRACE;
	assert_true(fa_session_store_expire(&resume, now_ns, &number));
	assert_int_equal(number, 2);
	fa_session_store_set_lost(&resume, record, now_ns);
	expect_over("3");
	now_ns += GRACE - 1;
	expect_none();
	now_ns += 1;
	expect_over("1");
}

/* Reconnecting in a loop, a session expires after ten grace times. */
static void test_restless(void **state)
{
	uint64_t away_ns = 0;

	fa_session_store_start_grace(&resume, now_ns, GRACE, ALL);
	while (away_ns + 29 * S < ALL) {
		uint32_t record;

		now_ns += 29 * S;
		away_ns += 29 * S;
		record = take(1);
		/* Time while connected does not count. */
		now_ns += 3600 * S;
		fa_session_store_set_lost(&resume, record, now_ns);
		expect_over(away_ns == 29 * S ? "23" : "");
	}
	assert_int_equal(away_ns, 290 * S);
	now_ns += 10 * S - 1;
	expect_none();
	now_ns += 1;
	expect_over("1");
}

static void test_at_once(void **state)
{
	fa_session_store_start_grace(&resume, now_ns, GRACE, ALL);
	for (int i = 0; i < 1000; ++i)
		fa_session_store_set_lost(&resume, take(1), now_ns);
	now_ns += GRACE - 1;
	expect_none();
	now_ns += 1;
	expect_over("123");
}

static void test_next_daemon(void **state)
{
	struct fa_error error;

	fa_session_store_start_grace(&resume, now_ns, GRACE, ALL);
	for (int i = 0; i < 10; ++i) {
		now_ns += 29 * S;
		fa_session_store_set_lost(&resume, take(1), now_ns);
	}
	fa_session_store_close(&resume);
	assert_int_equal(fa_session_store_open(fd, &device, &error, &resume), 0);
	assert_int_equal(resume.n_lost, N);
	fa_session_store_start_grace(&resume, now_ns, GRACE, ALL);
	now_ns += GRACE - 1;
	expect_none();
	now_ns += 1;
	expect_over("123");
}

#define test(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		test(test_once),       test(test_once_all),    test(test_again),
		test(test_much_later), test(test_broken_off),  test(test_restless),
		test(test_at_once),    test(test_next_daemon),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
