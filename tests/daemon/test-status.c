/* Counters of finished requests, and more sessions than are listed. */
#include "common/cleanup.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define LISTED 128 /* FA_STATUS_LISTED_MAX */
#define CROWD 1500

static struct fa_test_daemon daemon_;

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_);
	return 0;
}

/* A session needs one descriptor in the test and two in the daemon. */
static void raise_limit(uint64_t n)
{
	struct rlimit limit;

	fa_check(!getrlimit(RLIMIT_NOFILE, &limit));
	if (limit.rlim_max < n) {
		print_message("only %llu descriptors may be open\n",
		              (unsigned long long)limit.rlim_max);
		skip();
	}
	limit.rlim_cur = limit.rlim_max;
	fa_check(!setrlimit(RLIMIT_NOFILE, &limit));
}

static int crowd_member(void)
{
	static struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	close(raw.page_fd);
	return raw.fd;
}

static json_t *status_of(struct fa_raw *raw, uint64_t *ret_ns)
{
	uint64_t begin = fa_now_ns();
	_fa_cleanup_(fa_freep) char *text = fa_raw_status(raw);
	json_t *status;

	*ret_ns = fa_now_ns() - begin;
	status = json_loads(text, 0, NULL);
	fa_check(status);
	return status;
}

static json_int_t number(json_t *object, const char *key)
{
	json_t *value = json_object_get(object, key);

	fa_check(json_is_integer(value));
	return json_integer_value(value);
}

static void check_lists(json_t *status, const struct fa_raw *viewer, json_int_t n)
{
	json_t *sessions = json_object_get(status, "sessions");

	fa_check_eq(number(status, "connections"), n);
	fa_check_eq(number(status, "sessions_total"), n);
	fa_check_eq(number(status, "tenants_total"), 1);
	fa_check_eq(json_array_size(sessions), n < LISTED ? n : LISTED);
	fa_check_eq(json_array_size(json_object_get(status, "tenants")), 1);
	/* The asking session is always listed. */
	fa_check_eq(number(json_array_get(sessions, 0), "session"), (long long)viewer->session);
	for (size_t i = 1; i < json_array_size(sessions); ++i)
		fa_check(number(json_array_get(sessions, i), "session") !=
		         (json_int_t)viewer->session);
	fa_check_eq(number(json_array_get(json_object_get(status, "tenants"), 0), "sessions"), n);
	json_decref(status);
}

static void test_many(void **state)
{
	uint64_t ns, few_ns = UINT64_MAX, many_ns = UINT64_MAX;
	static struct fa_raw viewer;
	static int crowd[CROWD];

	raise_limit(2 * CROWD + 200);
	fa_test_daemon_start(&daemon_, &(struct fa_test_daemon_options){
					       .config = "[limits]\nsessions = 4000\n" });
	for (int i = 0; i < LISTED - 2; ++i)
		crowd[i] = crowd_member();
	fa_raw_open(&viewer, daemon_.socket);
	for (int i = 0; i < 30; ++i) {
		check_lists(status_of(&viewer, &ns), &viewer, LISTED - 1);
		few_ns = ns < few_ns ? ns : few_ns;
	}
	for (int i = LISTED - 2; i < CROWD; ++i)
		crowd[i] = crowd_member();
	for (int i = 0; i < 30 || (i < 1000 && many_ns >= 3 * few_ns); ++i) {
		check_lists(status_of(&viewer, &ns), &viewer, CROWD + 1);
		many_ns = ns < many_ns ? ns : many_ns;
	}
	print_message("%d sessions: %d us, %d: %d us\n", LISTED - 1, (int)(few_ns / 1000),
	              CROWD + 1, (int)(many_ns / 1000));
	fa_check(many_ns < 3 * few_ns);
	for (int i = 0; i < CROWD; ++i)
		close(crowd[i]);
	fa_raw_close(&viewer);
}

#define ASKED 40
#define GONE 20

static json_int_t own_fds(struct fa_raw *raw)
{
	uint64_t ns;
	json_t *status = status_of(raw, &ns);
	const json_int_t n = number(json_array_get(json_object_get(status, "tenants"), 0), "fds");

	json_decref(status);
	return n;
}

/* A worker writes the status of many sessions: answers keep their order, and clients may leave. */
static void test_by_worker(void **state)
{
	struct fa_wire_message ask = fa_raw_message(FA_WIRE_STATUS),
			       ping = fa_raw_message(FA_WIRE_PING);
	static struct fa_raw viewer, raws[GONE];
	json_int_t before;

	fa_test_daemon_start(&daemon_, NULL);
	fa_raw_open(&viewer, daemon_.socket);
	for (int i = 0; i < GONE; ++i)
		fa_raw_open(&raws[i], daemon_.socket);
	for (int i = 0; i < ASKED; ++i) {
		ask.id = (uint64_t)i * 2 + 100;
		ping.id = ask.id + 1;
		fa_check_eq(fa_raw_send(&viewer, &ask, NULL, 0), 0);
		fa_check_eq(fa_raw_send(&viewer, &ping, NULL, 0), 0);
		fa_raw_receive_reply(&viewer);
		fa_check_eq(viewer.message.type, FA_WIRE_STATUS_REPLY);
		fa_check_eq(viewer.message.id, ask.id);
		fa_raw_expect_reply(&viewer, ping.id, 0, NULL, false);
	}
	for (int i = 0; i < GONE; ++i)
		fa_raw_close(&raws[i]);
	before = own_fds(&viewer);
	/* Stopped, so that all are asked at once, and all leave soon. */
	for (int i = 0; i < GONE; ++i)
		fa_raw_open(&raws[i], daemon_.socket);
	fa_test_daemon_signal(&daemon_, SIGSTOP);
	for (int i = 0; i < GONE; ++i)
		fa_check_eq(fa_raw_send(&raws[i], &ask, NULL, 0), 0);
	fa_test_daemon_signal(&daemon_, SIGCONT);
	for (int i = 0; i < GONE; ++i)
		fa_raw_close(&raws[i]);
	fa_check_eventually(own_fds(&viewer) <= before);
	fa_raw_close(&viewer);
}

#define SMALL 5
#define MARKERS 3
#define REFUSED 2

static json_t *find_session(json_t *status, uint64_t id)
{
	json_t *session;
	size_t i;

	json_array_foreach(json_object_get(status, "sessions"), i, session)
	{
		if (number(session, "session") == (json_int_t)id)
			return session;
	}
	return NULL;
}

/* Requests in one of the histograms. */
static json_int_t count_in(json_t *object, const char *key)
{
	json_int_t n = 0;
	json_t *entry;
	size_t i;

	fa_check(json_array_size(json_object_get(object, key)) <= 25);
	json_array_foreach(json_object_get(object, key), i, entry)
	{
		n += json_integer_value(entry);
	}
	return n;
}

/*
 * Submits attention, markers behind it and in an empty stream, and refused requests. Returns the
 * sums of device and total time that completions report.
 */
static void work(struct fa_raw *raw, uint64_t *ret_busy_ns, uint64_t *ret_took_ns)
{
	struct fa_case attention = { .heads = 2, .head_dim = 16, .seqlen_q = 9, .seqlen_k = 11 };
	struct fa_wire_message message;
	struct fa_raw_completion completion;
	struct fa_raw_buffer buffer;
	uint64_t value = 0;

	*ret_busy_ns = *ret_took_ns = 0;
	fa_case_plan(&attention);
	fa_raw_buffer_register(raw, &buffer, 1, attention.bytes, 0);
	fa_case_fill(&attention, buffer.data);
	for (int i = 0; i < SMALL; ++i) {
		message = fa_case_message(&attention, 1, 0, 0, ++value);
		fa_check_eq(fa_raw_send(raw, &message, NULL, 0), 0);
		fa_raw_wait(raw, 0, value, &completion);
		fa_check_eq(completion.status, 0);
		*ret_busy_ns += completion.finished_ns - completion.started_ns;
		*ret_took_ns += completion.finished_ns - completion.queued_ns;
	}
	for (int i = 0; i < REFUSED; ++i) {
		message = fa_case_message(&attention, 99, 0, 0, ++value);
		fa_check_eq(fa_raw_send(raw, &message, NULL, 0), 0);
		fa_raw_wait_expect(raw, 0, value, -ENOENT, NULL);
	}
	for (int i = 0; i < MARKERS; ++i) {
		message = fa_raw_message(FA_WIRE_MARKER);
		message.marker.stream = 0;
		message.marker.value = ++value;
		fa_check_eq(fa_raw_send(raw, &message, NULL, 0), 0);
		fa_raw_wait_expect(raw, 0, value, 0, NULL);
	}
	fa_raw_buffer_free(raw, &buffer);
}

static void cancel_one(struct fa_raw *raw)
{
	struct fa_case slow = fa_case_slow();
	struct fa_wire_message message, cancel = fa_raw_message(FA_WIRE_CANCEL);
	struct fa_raw_buffer buffer;

	fa_raw_stream_create(raw, 1, 0);
	fa_raw_buffer_register(raw, &buffer, 2, slow.bytes, 0);
	message = fa_case_message(&slow, 2, 0, 1, 1);
	fa_check_eq(fa_raw_send(raw, &message, NULL, 0), 0);
	cancel.cancel.stream = 1;
	cancel.cancel.value = 1;
	fa_raw_call_expect(raw, &cancel, NULL, 0, 0, NULL);
	fa_raw_wait_expect(raw, 1, 1, -ECANCELED, NULL);
	fa_raw_buffer_free(raw, &buffer);
}

static void check_done(json_t *object, json_int_t clients, json_int_t cancelled, uint64_t busy_ns,
                       uint64_t took_ns)
{
	fa_check_eq(number(object, "finished"), clients * (SMALL + MARKERS + REFUSED) + cancelled);
	fa_check_eq(number(object, "failed"), clients * REFUSED);
	fa_check_eq(number(object, "cancelled"), cancelled);
	if (cancelled) {
		fa_check(number(object, "busy_ns") >= (json_int_t)busy_ns);
		fa_check(number(object, "took_ns") >= (json_int_t)took_ns);
		fa_check(count_in(object, "took") >= clients * SMALL);
		return;
	}
	fa_check_eq(number(object, "busy_ns"), busy_ns);
	fa_check_eq(number(object, "took_ns"), took_ns);
	fa_check_eq(number(object, "waited_ns"), took_ns - busy_ns);
	fa_check_eq(count_in(object, "took"), clients * SMALL);
	fa_check_eq(count_in(object, "waited"), clients * SMALL);
}

/* One of two clients leaves: its counters stay with the tenant. */
static void test_done(void **state)
{
	uint64_t busy_ns[2], took_ns[2], gone, ns;
	static struct fa_raw viewer, raw[2];
	json_t *status, *tenant, *requests;

	fa_test_daemon_start(&daemon_, NULL);
	fa_raw_open(&viewer, daemon_.socket);
	for (int i = 0; i < 2; ++i) {
		fa_raw_open(&raw[i], daemon_.socket);
		work(&raw[i], &busy_ns[i], &took_ns[i]);
	}
	status = status_of(&viewer, &ns);
	check_done(find_session(status, viewer.session), 0, 0, 0, 0);
	for (int i = 0; i < 2; ++i)
		check_done(find_session(status, raw[i].session), 1, 0, busy_ns[i], took_ns[i]);
	json_decref(status);

	gone = raw[0].session;
	fa_raw_close(&raw[0]);
	for (status = NULL; !status || find_session(status, gone);) {
		json_decref(status);
		status = status_of(&viewer, &ns);
	}
	fa_check_eq(json_array_size(json_object_get(status, "tenants")), 1);
	tenant = json_array_get(json_object_get(status, "tenants"), 0);
	check_done(tenant, 2, 0, busy_ns[0] + busy_ns[1], took_ns[0] + took_ns[1]);
	requests = json_object_get(status, "requests");
	fa_check_eq(number(requests, "finished"), number(tenant, "finished"));
	fa_check_eq(number(requests, "failed"), number(tenant, "failed"));
	fa_check_eq(number(requests, "busy_ns"), number(tenant, "busy_ns"));
	fa_check_eq(number(requests, "client_finished"), number(tenant, "finished"));
	fa_check_eq(number(requests, "waited_ns"), number(tenant, "waited_ns"));
	fa_check_eq(number(requests, "ran_ns"), number(tenant, "busy_ns"));
	fa_check_eq(number(tenant, "ran_ns"), number(tenant, "busy_ns"));
	fa_check_eq(count_in(requests, "ran"), 2 * SMALL);
	fa_check_eq(count_in(tenant, "ran"), 2 * SMALL);
	fa_check_eq(count_in(requests, "waited"), 2 * SMALL);
	json_decref(status);

	cancel_one(&raw[1]);
	status = status_of(&viewer, &ns);
	check_done(find_session(status, raw[1].session), 1, 1, busy_ns[1], took_ns[1]);
	json_decref(status);
	fa_raw_close(&raw[1]);
	fa_raw_close(&viewer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_done, stop),
		cmocka_unit_test_teardown(test_by_worker, stop),
		cmocka_unit_test_teardown(test_many, stop),
	};

	return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
