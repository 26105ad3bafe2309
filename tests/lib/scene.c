#include "tests/lib/scene.h"

#include "common/cleanup.h"
#include "tests/lib/check.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static void decrefp(json_t **json)
{
	json_decref(*json);
}

static int64_t number(json_t *object, const char *key)
{
	json_t *value = json_object_get(object, key);

	if (!json_is_integer(value))
		fa_test_fail(__FILE__, __LINE__, "the status has no number \"%s\"", key);
	return json_integer_value(value);
}

void fa_test_accounts(struct fa_raw *raw, struct fa_test_accounts *ret_accounts)
{
	_fa_cleanup_(fa_freep) char *text = fa_raw_status(raw);
	_fa_cleanup_(decrefp) json_t *status = NULL;
	json_error_t error;
	json_t *tenant;
	size_t i;

	memset(ret_accounts, 0, sizeof(*ret_accounts));
	status = json_loads(text, 0, &error);
	if (!status)
		fa_test_fail(__FILE__, __LINE__, "the status is not JSON: %s", text);
	ret_accounts->connections = number(status, "connections");
	ret_accounts->sessions = (int64_t)json_array_size(json_object_get(status, "sessions"));
	ret_accounts->draining = json_is_true(json_object_get(status, "draining"));
	json_array_foreach(json_object_get(status, "tenants"), i, tenant)
	{
		if (number(tenant, "uid") != (int64_t)getuid())
			continue;
		ret_accounts->tenant_sessions += number(tenant, "sessions");
		ret_accounts->buffers += number(tenant, "buffers");
		ret_accounts->buffer_bytes += number(tenant, "buffer_bytes");
		ret_accounts->fds += number(tenant, "fds");
		ret_accounts->requests += number(tenant, "requests");
	}
}

static bool accounts_equal(const struct fa_test_accounts *a, const struct fa_test_accounts *b)
{
	return a->connections == b->connections && a->sessions == b->sessions &&
	       a->tenant_sessions == b->tenant_sessions && a->buffers == b->buffers &&
	       a->buffer_bytes == b->buffer_bytes && a->fds == b->fds && a->requests == b->requests;
}

/* Makes the daemon allocate what it keeps from then on. */
static void warm_up(struct fa_scene *scene)
{
	struct fa_raw_buffer buffer;
	struct fa_raw raw;

	fa_raw_open(&raw, scene->daemon.socket);
	fa_raw_buffer_arena(&raw, &buffer, 1, 65536);
	fa_raw_buffer_free(&raw, &buffer);
	fa_raw_buffer_register(&raw, &buffer, 1, 65536, 0);
	fa_raw_buffer_free(&raw, &buffer);
	fa_raw_close(&raw);
}

static void explain(struct fa_scene *scene);

void fa_scene_calm(struct fa_scene *scene)
{
	uint64_t deadline;

	fa_check_eventually((fa_test_accounts(&scene->bystander, &scene->accounts),
	                     scene->accounts.connections == 1 && scene->accounts.requests == 0));
	/*
	 * Clients' resources are released asynchronously, and a sent descriptor is charged until it
	 * is known to have arrived.
	 */
	fa_test_daemon_usage(&scene->daemon, &scene->usage);
	deadline = fa_deadline_ns(fa_test_patience_ns());
	for (int calm = 0; calm < 20; ++calm) {
		fa_test_quiet_ms(5);
		if (fa_scene_is_quiet(scene))
			continue;
		if (fa_now_ns() > deadline) {
			explain(scene);
			fa_test_fail(__FILE__, __LINE__, "the daemon does not calm down");
		}
		fa_test_accounts(&scene->bystander, &scene->accounts);
		fa_raw_ping(&scene->bystander);
		fa_test_daemon_usage(&scene->daemon, &scene->usage);
		calm = 0;
	}
}

void fa_scene_start(struct fa_scene *scene, const struct fa_test_daemon_options *options)
{
	memset(scene, 0, sizeof(*scene));
	fa_test_daemon_start(&scene->daemon, options);
	fa_raw_open(&scene->bystander, scene->daemon.socket);
	scene->attention = (struct fa_case){
		.heads = 4,
		.kv_heads = 2,
		.head_dim = 32,
		.seqlen_q = 9,
		.seqlen_k = 33,
		.causal = true,
		.lse = true,
	};
	fa_case_plan(&scene->attention);
	fa_raw_buffer_register(&scene->bystander, &scene->buffer, 1, scene->attention.bytes, 0);
	fa_scene_bystander(scene);
	warm_up(scene);
	fa_scene_calm(scene);
	fa_check_eq(scene->accounts.sessions, 1);
	fa_check_eq(scene->accounts.buffers, 1);
	fa_check_eq(scene->accounts.buffer_bytes, scene->attention.bytes);
}

void fa_scene_stop(struct fa_scene *scene)
{
	fa_raw_close(&scene->bystander);
	fa_raw_buffer_free(NULL, &scene->buffer);
	fa_test_daemon_stop(&scene->daemon);
}

void fa_scene_bystander(struct fa_scene *scene)
{
	struct fa_wire_message message;
	double error;

	scene->attention.seed++;
	fa_case_fill(&scene->attention, scene->buffer.data);
	message = fa_case_message(&scene->attention, 1, 0, 0, ++scene->value);
	fa_check_eq(fa_raw_send(&scene->bystander, &message, NULL, 0), 0);
	fa_raw_wait_expect(&scene->bystander, 0, scene->value, 0, NULL);
	error = fa_case_error(&scene->attention, scene->buffer.data);
	if (!(error <= 1))
		fa_test_fail(__FILE__, __LINE__, "the bystander's attention is wrong by %g", error);
}

bool fa_scene_is_quiet(struct fa_scene *scene)
{
	struct fa_test_accounts accounts;
	struct fa_test_usage usage;

	fa_test_accounts(&scene->bystander, &accounts);
	fa_raw_ping(&scene->bystander); /* before, the reply's own descriptor may be open */
	fa_test_daemon_usage(&scene->daemon, &usage);
	return accounts_equal(&accounts, &scene->accounts) && usage.fds == scene->usage.fds &&
	       usage.memfd_maps == scene->usage.memfd_maps &&
	       usage.memfd_bytes == scene->usage.memfd_bytes;
}

static void explain(struct fa_scene *scene)
{
	struct fa_test_accounts now, *was = &scene->accounts;
	struct fa_test_usage usage;

	fa_test_accounts(&scene->bystander, &now);
	fa_raw_ping(&scene->bystander);
	fa_test_daemon_usage(&scene->daemon, &usage);
#define LINE(name, a, b)                                                                           \
	fprintf(stderr, "  %-16s was %lld, is %lld\n", name, (long long)(a), (long long)(b))
	LINE("open fds", scene->usage.fds, usage.fds);
	LINE("memfd mappings", scene->usage.memfd_maps, usage.memfd_maps);
	LINE("memfd bytes", scene->usage.memfd_bytes, usage.memfd_bytes);
	LINE("connections", was->connections, now.connections);
	LINE("sessions", was->sessions, now.sessions);
	LINE("tenant sessions", was->tenant_sessions, now.tenant_sessions);
	LINE("buffers", was->buffers, now.buffers);
	LINE("buffer bytes", was->buffer_bytes, now.buffer_bytes);
	LINE("charged fds", was->fds, now.fds);
	LINE("requests", was->requests, now.requests);
#undef LINE
}

void fa_scene_check(struct fa_scene *scene)
{
	uint64_t deadline = fa_deadline_ns(fa_test_patience_ns()), pause_ns = 0;

	fa_scene_bystander(scene);
	while (!fa_scene_is_quiet(scene)) {
		if (fa_now_ns() > deadline) {
			explain(scene);
			fa_test_fail(__FILE__, __LINE__, "the daemon kept something");
		}
		fa_test_poll_pause(&pause_ns);
	}
}

/* 2 * 2 * 1024 * 65536 * 64 * 32 = 550 GFLOP in 50 MB; on Vulkan as many, with keys that lavapipe takes. */
struct fa_case fa_case_slow(void)
{
	const bool vulkan = getenv("FAD_TEST_BACKEND") != NULL;
	struct fa_case attention = {
		.heads = 32,
		.kv_heads = 1,
		.head_dim = 64,
		.seqlen_q = vulkan ? 4096 : 1024,
		.seqlen_k = vulkan ? 16384 : 65536,
	};

	fa_case_plan(&attention);
	return attention;
}
