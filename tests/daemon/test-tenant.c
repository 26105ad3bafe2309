#include "daemon/account/tenant.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct fa_limits limits;
static struct fa_tenants tenants;

static int set_up(void **state)
{
	limits = (struct fa_limits){ .tenant = { [FA_RESOURCE_SESSIONS] = 3,
		                                 [FA_RESOURCE_BUFFER_BYTES] = 1000,
		                                 [FA_RESOURCE_REQUESTS] = UINT64_MAX },
		                     .uid_factor = 2 };
	fa_tenants_init(&tenants, &limits);
	return 0;
}

static struct fa_tenant *get(uid_t uid, const char *cgroup)
{
	struct fa_tenant *tenant;

	assert_int_equal(fa_tenant_get(&tenants, uid, cgroup, &tenant), 0);
	return tenant;
}

static void test_identity(void **state)
{
	struct fa_tenant *a = get(0, "/a"), *again = get(0, "/a"), *b = get(0, "/b"),
			 *c = get(1, "/a"), *d = get(0, "");

	assert_ptr_equal(a, again);
	assert_ptr_not_equal(a, b);
	assert_ptr_not_equal(a, c);
	assert_ptr_not_equal(a, d);
	fa_tenant_unref(again);
	fa_tenant_unref(a);
	fa_tenant_unref(b);
	fa_tenant_unref(c);
	fa_tenant_unref(d);
	assert_true(fa_list_empty(&tenants.tenants));
	assert_null(fa_tenant_unref(NULL));
}

static void test_limit(void **state)
{
	struct fa_tenant *tenant = get(1, "/"), *other = get(2, "/");
	struct fa_charge charges[4] = {}, foreign = {};
	struct fa_error error = {};

	for (int i = 0; i < 3; ++i)
		assert_int_equal(
			fa_charge_add(&charges[i], tenant, FA_RESOURCE_SESSIONS, 1, &error), 0);
	assert_int_equal(fa_charge_add(&charges[3], tenant, FA_RESOURCE_SESSIONS, 1, &error),
	                 -EDQUOT);
	assert_non_null(strstr(error.text, "sessions, which is 3"));
	assert_null(charges[3].tenant);
	assert_int_equal(tenant->used[FA_RESOURCE_SESSIONS], 3);

	assert_int_equal(fa_charge_add(&foreign, other, FA_RESOURCE_SESSIONS, 1, &error), 0);

	fa_charge_release(&charges[0]);
	assert_int_equal(fa_charge_add(&charges[3], tenant, FA_RESOURCE_SESSIONS, 1, &error), 0);

	limits.tenant[FA_RESOURCE_SESSIONS] = 1;
	assert_int_equal(fa_charge_add(&charges[0], tenant, FA_RESOURCE_SESSIONS, 0, &error),
	                 -EDQUOT);
	for (int i = 0; i < 4; ++i)
		fa_charge_release(&charges[i]);
	fa_charge_release(&foreign);
	fa_tenant_unref(tenant);
	fa_tenant_unref(other);
	assert_true(fa_list_empty(&tenants.tenants));
}

static void test_amounts(void **state)
{
	struct fa_tenant *tenant = get(1, "/");
	struct fa_charge a = {}, b = {}, c = {};

	assert_int_equal(fa_charge_add(&a, tenant, FA_RESOURCE_BUFFER_BYTES, 999, NULL), 0);
	assert_int_equal(fa_charge_add(&b, tenant, FA_RESOURCE_BUFFER_BYTES, 2, NULL), -EDQUOT);
	assert_int_equal(fa_charge_add(&b, tenant, FA_RESOURCE_BUFFER_BYTES, UINT64_MAX, NULL),
	                 -EDQUOT);
	assert_int_equal(fa_charge_add(&b, tenant, FA_RESOURCE_BUFFER_BYTES, 1, NULL), 0);
	assert_int_equal(tenant->used[FA_RESOURCE_BUFFER_BYTES], 1000);

	/* No sum overflows. */
	assert_int_equal(fa_charge_add(&c, tenant, FA_RESOURCE_REQUESTS, UINT64_MAX, NULL), 0);
	assert_int_equal(fa_charge_add(&c, tenant, FA_RESOURCE_REQUESTS, 1, NULL), -EDQUOT);
	fa_charge_release(&c);

	fa_charge_move(&a, &b);
	assert_null(b.tenant);
	assert_int_equal(a.amount, 1000);
	fa_charge_move(&c, &a);
	assert_null(a.tenant);
	fa_charge_move(&c, &a);
	assert_int_equal(tenant->used[FA_RESOURCE_BUFFER_BYTES], 1000);

	/* A charge keeps its tenant alive. */
	fa_tenant_unref(tenant);
	assert_false(fa_list_empty(&tenants.tenants));
	fa_charge_release(&c);
	fa_charge_release(&c);
	assert_true(fa_list_empty(&tenants.tenants));
}

/* The cgroups of one uid, except 0, share an account with uid_factor times the limits. */
static void test_user(void **state)
{
	struct fa_tenant *a = get(1, "/a"), *b = get(1, "/b"), *c = get(1, "/c");
	struct fa_tenant *other = get(2, "/a"), *roots[4];
	struct fa_charge charges[8] = {}, bytes = {}, much[2] = {}, timelines[3] = {};
	struct fa_error error = {};

	assert_ptr_equal(a->user, b->user);
	assert_ptr_not_equal(a->user, other->user);
	assert_int_equal(fa_charge_add(&charges[0], a, FA_RESOURCE_SESSIONS, 3, &error), 0);
	assert_int_equal(fa_charge_add(&charges[1], b, FA_RESOURCE_SESSIONS, 2, &error), 0);
	assert_int_equal(fa_charge_add(&charges[2], c, FA_RESOURCE_SESSIONS, 2, &error), -EDQUOT);
	assert_non_null(strstr(error.text, "sessions"));
	assert_non_null(strstr(error.text, "uid 1 "));
	assert_non_null(strstr(error.text, "which is 6 (uid_factor is 2)"));
	assert_non_null(strstr(error.text, "of which 5 are in use"));
	assert_null(charges[2].tenant);
	assert_int_equal(c->used[FA_RESOURCE_SESSIONS], 0);
	assert_int_equal(a->user->used[FA_RESOURCE_SESSIONS], 5);
	assert_int_equal(fa_charge_add(&charges[2], c, FA_RESOURCE_SESSIONS, 1, &error), 0);
	/* The tenant's own limit is checked first. */
	assert_int_equal(fa_charge_add(&charges[3], a, FA_RESOURCE_SESSIONS, 1, &error), -EDQUOT);
	assert_null(strstr(error.text, "uid_factor"));
	assert_int_equal(fa_charge_add(&bytes, c, FA_RESOURCE_BUFFER_BYTES, 1000, &error), 0);
	assert_int_equal(fa_charge_add(&charges[4], other, FA_RESOURCE_SESSIONS, 3, &error), 0);
	/* Timelines have no factor: a user's cgroups together have the limit of one. */
	limits.tenant[FA_RESOURCE_TIMELINES] = 3;
	assert_int_equal(fa_charge_add(&timelines[0], a, FA_RESOURCE_TIMELINES, 2, &error), 0);
	assert_int_equal(fa_charge_add(&timelines[1], b, FA_RESOURCE_TIMELINES, 1, &error), 0);
	assert_int_equal(fa_charge_add(&timelines[2], c, FA_RESOURCE_TIMELINES, 1, &error),
	                 -EDQUOT);
	assert_non_null(strstr(error.text, "which is 3 (uid_factor is 1)"));
	assert_int_equal(fa_charge_add(&much[0], a, FA_RESOURCE_REQUESTS, UINT64_MAX - 1, &error),
	                 0);
	assert_int_equal(fa_charge_add(&much[1], b, FA_RESOURCE_REQUESTS, 2, &error), -EDQUOT);
	assert_int_equal(fa_charge_add(&much[1], b, FA_RESOURCE_REQUESTS, 1, &error), 0);

	fa_charge_release(&charges[0]);
	assert_int_equal(fa_charge_add(&charges[0], c, FA_RESOURCE_SESSIONS, 2, &error), 0);
	limits.uid_factor = 1;
	assert_int_equal(fa_charge_add(&charges[5], a, FA_RESOURCE_SESSIONS, 1, &error), -EDQUOT);

	for (int i = 0; i < 8; ++i)
		fa_charge_release(&charges[i]);
	for (int i = 0; i < 3; ++i)
		fa_charge_release(&timelines[i]);
	fa_charge_release(&bytes);
	fa_charge_release(&much[0]);
	fa_charge_release(&much[1]);
	for (int i = 0; i < _FA_RESOURCE_N; ++i)
		assert_int_equal(a->user->used[i], 0);

	for (int i = 0; i < 4; ++i) {
		roots[i] = get(0, (const char *[]){ "/a", "/b", "/c", "/d" }[i]);
		assert_null(roots[i]->user);
		assert_int_equal(
			fa_charge_add(&charges[i], roots[i], FA_RESOURCE_SESSIONS, 3, &error), 0);
	}
	for (int i = 0; i < 4; ++i) {
		fa_charge_release(&charges[i]);
		fa_tenant_unref(roots[i]);
	}
	fa_tenant_unref(a);
	fa_tenant_unref(b);
	fa_tenant_unref(c);
	fa_tenant_unref(other);
	assert_true(fa_list_empty(&tenants.tenants));
	assert_true(fa_list_empty(&tenants.users));
}

/*
 * A user has half of all descriptors, or its higher limit; all users together have no more than
 * all.
 */
static void test_all_fds(void **state)
{
	struct fa_tenant *a = get(1, "/a"), *b = get(1, "/b"), *other = get(2, "/a"),
			 *root = get(0, "/");
	struct fa_charge charges[4] = {};
	struct fa_error error = {};

	limits.tenant[FA_RESOURCE_FDS] = 40;
	limits.all_fds = 100;
	assert_int_equal(fa_charge_add(&charges[0], a, FA_RESOURCE_FDS, 30, &error), 0);
	assert_int_equal(fa_charge_add(&charges[1], b, FA_RESOURCE_FDS, 21, &error), -EDQUOT);
	assert_non_null(strstr(error.text, "uid 1 together, which is 50"));
	assert_int_equal(fa_charge_add(&charges[1], b, FA_RESOURCE_FDS, 20, &error), 0);
	assert_int_equal(fa_charge_add(&charges[2], other, FA_RESOURCE_FDS, 40, &error), 0);
	assert_int_equal(fa_charge_add(&charges[3], root, FA_RESOURCE_FDS, 11, &error), -EDQUOT);
	assert_non_null(strstr(error.text, "all clients together, which are 100"));
	assert_null(charges[3].tenant);
	assert_int_equal(root->used[FA_RESOURCE_FDS], 0);
	assert_int_equal(fa_charge_add(&charges[3], root, FA_RESOURCE_FDS, 10, &error), 0);
	assert_int_equal(tenants.used[FA_RESOURCE_FDS], 100);

	fa_charge_release(&charges[0]);
	assert_int_equal(fa_charge_add(&charges[3], root, FA_RESOURCE_FDS, 30, &error), 0);
	fa_charge_release(&charges[3]);
	limits.tenant[FA_RESOURCE_FDS] = 60;
	assert_int_equal(fa_charge_add(&charges[2], other, FA_RESOURCE_FDS, 20, &error), 0);
	assert_int_equal(fa_charge_add(&charges[2], other, FA_RESOURCE_FDS, 1, &error), -EDQUOT);

	for (int i = 0; i < 4; ++i)
		fa_charge_release(&charges[i]);
	assert_int_equal(tenants.used[FA_RESOURCE_FDS], 0);
	fa_tenant_unref(a);
	fa_tenant_unref(b);
	fa_tenant_unref(other);
	fa_tenant_unref(root);
}

/* The same for host memory. */
/* Users leave half of the daemon's buffers and connections to others, whatever their limits. */
static void test_half(void **state)
{
	static const enum fa_resource resources[] = { FA_RESOURCE_BUFFERS, FA_RESOURCE_SESSIONS };

	tenants.own_uid = 7;
	for (int i = 0; i < 2; ++i) {
		struct fa_tenant *a = get(1, "/a"), *b = get(1, "/b"), *other = get(2, "/");
		struct fa_tenant *own = get(7, "/"), *root = get(0, "/");
		struct fa_charge charges[5] = {};
		struct fa_error error = {};

		limits.all_buffers = limits.connections = 20;
		limits.tenant[resources[i]] = 16;
		assert_int_equal(fa_charge_add(&charges[0], a, resources[i], 11, &error), -EDQUOT);
		assert_non_null(strstr(error.text, "which is 10 for a user"));
		assert_int_equal(fa_charge_add(&charges[0], a, resources[i], 10, &error), 0);
		assert_int_equal(fa_charge_add(&charges[1], b, resources[i], 1, &error), -EDQUOT);
		assert_int_equal(fa_charge_add(&charges[2], other, resources[i], 10, &error), 0);
		assert_int_equal(fa_charge_add(&charges[3], own, resources[i], 16, &error), 0);
		assert_int_equal(fa_charge_add(&charges[4], root, resources[i], 16, &error), 0);
		for (int c = 0; c < 5; ++c)
			fa_charge_release(&charges[c]);
		limits.all_buffers = limits.connections = 1;
		assert_int_equal(fa_charge_add(&charges[0], a, resources[i], 1, &error), 0);
		fa_charge_release(&charges[0]);
		fa_tenant_unref(a);
		fa_tenant_unref(b);
		fa_tenant_unref(other);
		fa_tenant_unref(own);
		fa_tenant_unref(root);
	}
}

static unsigned int n_ended;

static void count_ended(struct fa_tenants *of)
{
	assert_ptr_equal(of, &tenants);
	++n_ended;
}

static void test_ending(void **state)
{
	struct fa_tenant *tenant = get(1, "/");

	tenants.ended = count_ended;
	n_ended = 0;
	assert_false(fa_tenants_are_ending(&tenants, 1));
	fa_tenant_ending(tenant);
	fa_tenant_unref(tenant);
	assert_true(fa_tenants_are_ending(&tenants, 1));
	assert_false(fa_tenants_are_ending(&tenants, 2));
	fa_tenant_ended(tenant);
	assert_int_equal(n_ended, 1);
	assert_true(fa_list_empty(&tenants.tenants));
}

static void test_all_buffer_bytes(void **state)
{
	struct fa_tenant *a = get(1, "/a"), *b = get(1, "/b"), *root = get(0, "/");
	struct fa_charge charges[3] = {};
	struct fa_error error = {};

	limits.tenant[FA_RESOURCE_BUFFER_BYTES] = 60;
	limits.all_buffer_bytes = 100;
	assert_int_equal(fa_charge_add(&charges[0], a, FA_RESOURCE_BUFFER_BYTES, 50, &error), 0);
	assert_int_equal(fa_charge_add(&charges[1], b, FA_RESOURCE_BUFFER_BYTES, 11, &error),
	                 -EDQUOT);
	assert_non_null(strstr(error.text, "uid 1 together, which is 60"));
	assert_int_equal(fa_charge_add(&charges[2], root, FA_RESOURCE_BUFFER_BYTES, 51, &error),
	                 -EDQUOT);
	assert_non_null(strstr(error.text, "limit all_buffer_bytes, which is 100 for all clients "
	                                   "together, of which 50 are in use"));
	assert_int_equal(fa_charge_add(&charges[2], root, FA_RESOURCE_BUFFER_BYTES, 50, &error), 0);
	for (int i = 0; i < 3; ++i)
		fa_charge_release(&charges[i]);
	assert_int_equal(tenants.used[FA_RESOURCE_BUFFER_BYTES], 0);
	fa_tenant_unref(a);
	fa_tenant_unref(b);
	fa_tenant_unref(root);
}

static void go(uid_t uid, const char *cgroup, uint64_t finished)
{
	struct fa_tenant *tenant = get(uid, cgroup);

	tenant->usage.finished = finished;
	fa_tenant_unref(tenant);
}

/* Tenants that have counted requests are remembered, up to the maximum. */
static void test_gone(void **state)
{
	struct fa_charge charge = {};
	struct fa_tenant *tenant;
	struct fa_usage usage;
	char cgroup[16];

	tenant = get(7, "/idle");
	fa_tenant_unref(tenant);
	assert_int_equal(tenants.n_gone, 0);

	go(7, "/a", 5);
	assert_true(fa_list_empty(&tenants.tenants));
	assert_true(fa_list_empty(&tenants.users));
	assert_int_equal(tenants.n_gone, 1);
	/* Counters are those of this uid and cgroup. */
	fa_tenant_unref(get(8, "/a"));
	fa_tenant_unref(get(7, "/b"));
	assert_int_equal(tenants.n_gone, 1);
	tenant = get(7, "/a");
	assert_int_equal(tenants.n_gone, 0);
	assert_int_equal(tenant->usage.finished, 5);
	assert_int_equal(fa_charge_add(&charge, tenant, FA_RESOURCE_SESSIONS, 3, NULL), 0);
	assert_int_equal(tenant->user->used[FA_RESOURCE_SESSIONS], 3);
	fa_charge_release(&charge);
	fa_tenant_unref(tenant);

	for (int i = 0; i < FA_TENANTS_GONE_MAX; ++i) {
		snprintf(cgroup, sizeof(cgroup), "/%d", i);
		go(i % 2 ? 7 : 0, cgroup, 1);
	}
	assert_int_equal(tenants.n_gone, FA_TENANTS_GONE_MAX);
	tenant = get(7, "/a");
	assert_int_equal(tenant->usage.finished, 0);
	fa_tenant_unref(tenant);
	tenant = get(0, "/0");
	assert_int_equal(tenant->usage.finished, 1);
	fa_tenant_unref(tenant);
	/* A user with many cgroups evicts no others. */
	go(9, "/a", 9);
	for (int i = 0; i < 3 * FA_TENANTS_GONE_MAX; ++i) {
		snprintf(cgroup, sizeof(cgroup), "/more%d", i);
		go(7, cgroup, 1);
	}
	assert_int_equal(tenants.n_gone, FA_TENANTS_GONE_MAX);
	tenant = get(9, "/a");
	assert_int_equal(tenant->usage.finished, 9);
	fa_tenant_unref(tenant);
	/* The sum includes those that were forgotten. */
	fa_tenants_usage(&tenants, &usage);
	assert_int_equal(usage.finished, 5 + FA_TENANTS_GONE_MAX + 9 + 3 * FA_TENANTS_GONE_MAX);
	assert_true(tenants.forgotten.finished > 5);
	fa_tenants_deinit(&tenants);
	assert_int_equal(tenants.n_gone, 0);
	assert_true(fa_list_empty(&tenants.gone));
}

static void test_took(void **state)
{
	assert_int_equal(fa_usage_latency_bucket(0), 0);
	assert_int_equal(fa_usage_latency_bucket(1), 0);
	assert_int_equal(fa_usage_latency_bucket(1024), 0);
	for (unsigned int i = 1; i < FA_USAGE_LATENCY_BUCKETS; ++i) {
		uint64_t most = (uint64_t)1 << (FA_USAGE_LATENCY_LOG2_MIN + i);

		assert_int_equal(fa_usage_latency_bucket(most / 2 + 1), i);
		assert_int_equal(fa_usage_latency_bucket(most), i);
	}
	assert_int_equal(fa_usage_latency_bucket(UINT64_MAX), FA_USAGE_LATENCY_BUCKETS - 1);
}

static void test_names(void **state)
{
	assert_string_equal(fa_resource_name(FA_RESOURCE_SESSIONS), "sessions");
	assert_string_equal(fa_resource_name(FA_RESOURCE_BUFFERS), "buffers");
	assert_string_equal(fa_resource_name(FA_RESOURCE_BUFFER_BYTES), "buffer_bytes");
	assert_string_equal(fa_resource_name(FA_RESOURCE_FDS), "fds");
	assert_string_equal(fa_resource_name(FA_RESOURCE_REQUESTS), "requests");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_identity, set_up),
		cmocka_unit_test_setup(test_limit, set_up),
		cmocka_unit_test_setup(test_amounts, set_up),
		cmocka_unit_test_setup(test_user, set_up),
		cmocka_unit_test_setup(test_all_fds, set_up),
		cmocka_unit_test_setup(test_half, set_up),
		cmocka_unit_test_setup(test_ending, set_up),
		cmocka_unit_test_setup(test_all_buffer_bytes, set_up),
		cmocka_unit_test_setup(test_gone, set_up),
		cmocka_unit_test(test_took),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
