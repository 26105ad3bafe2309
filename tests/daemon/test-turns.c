/* Shares of the loop thread's time, without a loop that runs. */
#include "daemon/session/turns.h"

#include "common/clock.h"
#include "daemon/session/context.h"
#include "daemon/session/session.h"
#include "tests/lib/pause.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define A_UID 1001
#define B_UID 1002

static struct fa_limits limits;
static struct fa_context context;
static struct fa_session a, b;
static uv_loop_t loop;

static int set_up(void **state)
{
	context = (struct fa_context){ .loop = &loop };
	assert_int_equal(uv_loop_init(&loop), 0);
	fa_tenants_init(&context.tenants, &limits);
	fa_turns_init(&context.turns, &context);
	a.context = b.context = &context;
	assert_int_equal(fa_tenant_get(&context.tenants, A_UID, "/", &a.tenant), 0);
	assert_int_equal(fa_tenant_get(&context.tenants, B_UID, "/", &b.tenant), 0);
	return 0;
}

static int tear_down(void **state)
{
	a.tenant = fa_tenant_unref(a.tenant);
	b.tenant = fa_tenant_unref(b.tenant);
	fa_tenants_deinit(&context.tenants);
	uv_close((uv_handle_t *)&context.turns.prepare, NULL);
	uv_close((uv_handle_t *)&context.turns.idle, NULL);
	uv_close((uv_handle_t *)&context.turns.timer, NULL);
	assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
	assert_int_equal(uv_loop_close(&loop), 0);
	return 0;
}

static void next_turn(void)
{
	context.turns.number++;
}

/* A turn's time is spent; the next turn has more. */
static void test_turn(void **state)
{
	fa_turn_use(&a, FA_TURN_NS / 2);
	assert_true(fa_turn_has_time(&a));
	fa_turn_use(&a, FA_TURN_NS / 2);
	assert_false(fa_turn_has_time(&a));
	assert_true(fa_turn_has_time(&b));
	next_turn();
	assert_true(fa_turn_has_time(&a));
}

/* If no other account has work, an account may use all time. */
static void test_alone(void **state)
{
	b.tenant = fa_tenant_unref(b.tenant);
	for (int i = 0; i < 100; i++)
		fa_turn_use(&a, FA_TURN_LONG_CREDIT_NS);
	assert_true(fa_turn_has_time(&a));
	/* Time used while nobody else waited is no debt later. */
	assert_int_equal(fa_tenant_get(&context.tenants, B_UID, "/", &b.tenant), 0);
	fa_turn_note(&b, fa_now_ns());
	next_turn();
	assert_true(fa_turn_has_time(&a));
}

/* Long messages beyond the credit make their account wait, and no other. */
static void test_debt(void **state)
{
	const uint64_t excess_ns = FA_TURN_LONG_NS;

	fa_turn_note(&b, fa_now_ns());
	fa_turn_use(&a, FA_TURN_LONG_CREDIT_NS);
	next_turn();
	assert_true(fa_turn_has_time(&a));
	fa_turn_use(&a, excess_ns);
	next_turn();
	assert_false(fa_turn_has_time(&a));
	assert_true(fa_turn_has_time(&b));
	fa_test_elapse_ms((unsigned int)(excess_ns * FA_TURN_LONG_SHARE / FA_NS_PER_MS) + 2);
	next_turn();
	assert_true(fa_turn_has_time(&a));
}

/* Any number of short messages makes no debt, and no debt makes wait longer than is promised. */
static void test_bounds(void **state)
{
	fa_turn_note(&b, fa_now_ns());
	for (uint64_t ns = 0; ns < 10 * FA_TURN_LONG_CREDIT_NS; ns += FA_TURN_LONG_NS - 1)
		fa_turn_use(&a, FA_TURN_LONG_NS - 1);
	next_turn();
	assert_true(fa_turn_has_time(&a));
	fa_turn_use(&a, 1000 * FA_TURN_LONG_CREDIT_NS);
	next_turn();
	assert_false(fa_turn_has_time(&a));
	fa_test_elapse_ms((unsigned int)(FA_TURN_LONG_WAIT_NS / FA_NS_PER_MS) + 2);
	next_turn();
	assert_true(fa_turn_has_time(&a));
}

/* Accounts without messages are not others. */
static void test_idle_others(void **state)
{
	const uint64_t now_ns = fa_now_ns();

	fa_turn_note(&b, now_ns > FA_TURN_ALONE_NS ? now_ns - FA_TURN_ALONE_NS : 0);
	fa_turn_use(&a, 2 * FA_TURN_LONG_CREDIT_NS);
	next_turn();
	assert_true(fa_turn_has_time(&a));
	fa_turn_note(&b, fa_now_ns());
	assert_false(fa_turn_has_time(&a));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_turn, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_alone, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_debt, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_bounds, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_idle_others, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
