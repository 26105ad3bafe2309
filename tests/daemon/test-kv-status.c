/* What the status says of the KV cache, to which user; what an administrator may remove. */
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define NOBODY 65534

static struct fa_test_daemon daemon_process;
static struct kv_client client;
static uint32_t numbers[100];

static int start(void **state)
{
	static const struct fa_test_daemon_options options = {
		.config = "[daemon]\nmode = 0666\n[pool]\nbytes = 8M\nchunk_bytes = 2M\n",
		.everyone = true,
	};

	fa_test_daemon_start(&daemon_process, &options);
	kv_open(&client, daemon_process.socket);
	/* Few pages, but chunks as large as a GPU needs. */
	kv_spare_layers = 7 * KV_LAYERS;
	kv_count(numbers, 1, 100);
	return 0;
}

static int stop(void **state)
{
	kv_close(&client);
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

static json_t *status_of(struct kv_client *c)
{
	char *text = fa_raw_status(&c->raw);
	json_t *json = json_loads(text, 0, NULL);

	fa_check(json);
	free(text);
	return json;
}

static long long number(const json_t *json, const char *array, size_t i, const char *key)
{
	const json_t *object = array ? json_array_get(json_object_get(json, array), i)
	                             : json_object_get(json, "pool");

	fa_check(json_is_integer(json_object_get(object, key)));
	return json_integer_value(json_object_get(object, key));
}

static json_t *pool_tenants(const json_t *json)
{
	return json_object_get(json_object_get(json, "pool"), "tenants");
}

static long long tenant_number(const json_t *json, size_t i, const char *key)
{
	const json_t *value = json_object_get(json_array_get(pool_tenants(json), i), key);

	fa_check(json_is_integer(value));
	return json_integer_value(value);
}

static void test_contents(void **state)
{
	uint64_t cache = kv_cache(&client, "named", 0), sequence;
	json_t *json = status_of(&client);

	fa_check_eq(number(json, NULL, 0, "chunks"), 0);
	fa_check_eq(number(json, NULL, 0, "chunks_max"), 4);
	json_decref(json);
	sequence = kv_sequence(&client, cache);
	kv_append(&client, sequence, numbers, 0, 40);
	kv_begin_one(&client, 1, sequence, 9);

	json = status_of(&client);
	fa_check_eq(number(json, NULL, 0, "chunks"), 1);
	fa_check_eq(number(json, NULL, 0, "caches"), 1);
	fa_check_eq(number(json, NULL, 0, "sequences"), 1);
	fa_check_eq(number(json, NULL, 0, "steps"), 1);
	fa_check_eq(number(json, NULL, 0, "used_bytes"), 4 * 8 * 6144);
	fa_check_eq(number(json, NULL, 0, "used_pages"), 4);
	fa_check_eq(number(json, NULL, 0, "idle_pages"), 0);
	fa_check_eq(number(json, NULL, 0, "free_pages"), number(json, "caches", 0, "free_pages"));
	fa_check_eq(number(json, NULL, 0, "tenants_total"), 1);
	fa_check_eq(tenant_number(json, 0, "uid"), geteuid());
	fa_check_eq(tenant_number(json, 0, "used_bytes"), 4 * 8 * 6144);
	fa_check_eq(tenant_number(json, 0, "idle_bytes"), 0);
	fa_check_eq(tenant_number(json, 0, "caches"), 1);
	fa_check_eq(tenant_number(json, 0, "sequences"), 1);
	fa_check_eq(number(json, "caches", 0, "cache"), cache);
	fa_check_eq(number(json, "caches", 0, "uid"), geteuid());
	fa_check_eq(number(json, "caches", 0, "session"), client.raw.session);
	fa_check_eq(number(json, "caches", 0, "used_pages"), 4);
	fa_check_eq(number(json, "sequences", 0, "sequence"), sequence);
	fa_check_eq(number(json, "sequences", 0, "length"), 40);
	fa_check_eq(number(json, "sequences", 0, "planned"), 49);
	fa_check_eq(number(json, "sequences", 0, "steps"), 1);
	fa_check_eq(number(json, "sessions", 0, "steps"), 1);
	json_decref(json);
}

static void publish_or_attach(uint64_t sequence, enum fa_wire_type type, uint32_t n,
                              uint64_t matched)
{
	struct fa_wire_message message = fa_raw_message(type);

	/* The two messages have the same fields. */
	message.sequence_publish.sequence = sequence;
	message.sequence_publish.tokens = numbers;
	message.sequence_publish.n_tokens = n;
	kv_call(&client, &message, FA_WIRE_SEQUENCE_REPLY);
	fa_check_eq(client.raw.message.sequence_reply.matched, matched);
}

static void check_shared(long long expected)
{
	json_t *json = status_of(&client);

	fa_check_eq(number(json, NULL, 0, "shared_pages"), expected);
	json_decref(json);
}

/* Shared pages, and lookups of prefixes. */
static void test_sharing(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0), one = kv_sequence(&client, cache), fork;
	json_t *json, *requests;

	kv_append(&client, one, numbers, 0, 40);
	check_shared(0);
	fork = kv_fork(&client, one, UINT64_MAX);
	check_shared(3);
	kv_append(&client, fork, numbers, 40, 1); /* copies the page that is partly filled */
	check_shared(2);
	kv_free(&client, fork);
	check_shared(0);

	publish_or_attach(one, FA_WIRE_SEQUENCE_PUBLISH, 40, 2);
	publish_or_attach(kv_sequence(&client, cache), FA_WIRE_SEQUENCE_ATTACH, 40, 32);
	check_shared(2);
	publish_or_attach(kv_sequence(&client, kv_cache(&client, NULL, 0)), FA_WIRE_SEQUENCE_ATTACH,
	                  30, 0);
	kv_free(&client, one);
	check_shared(0);
	json = status_of(&client);
	fa_check_eq(number(json, "tenants", 0, "prefix_lookups"), 2);
	requests = json_object_get(json, "requests");
	fa_check_eq(json_integer_value(json_object_get(requests, "prefix_lookups")), 2);
	fa_check_eq(json_integer_value(json_object_get(requests, "prefix_hits")), 1);
	fa_check_eq(json_integer_value(json_object_get(requests, "prefix_tokens")), 70);
	fa_check_eq(json_integer_value(json_object_get(requests, "prefix_matched")), 32);
	json_decref(json);
}

static void test_bounded(void **state)
{
	uint64_t cache = kv_cache(&client, NULL, 0);
	json_t *json;

	for (int i = 0; i < 1000; i++)
		(void)kv_sequence(&client, cache);
	json = status_of(&client);
	fa_check_eq(number(json, NULL, 0, "sequences"), 1000);
	fa_check_eq(json_array_size(json_object_get(json, "sequences")), 128);
	json_decref(json);
}

static int stranger(void *userdata)
{
	json_t *json;

	if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
		return 1;
	kv_open(&client, daemon_process.socket);
	(void)kv_sequence(&client, kv_cache(&client, "theirs", 0));
	json = status_of(&client);
	fa_check_eq(json_array_size(json_object_get(json, "caches")), 1);
	fa_check_eq(json_array_size(json_object_get(json, "sequences")), 1);
	fa_check_eq(number(json, "caches", 0, "uid"), NOBODY);
	fa_check_eq(number(json, NULL, 0, "caches"), 1);
	fa_check_eq(number(json, NULL, 0, "sequences"), 1);
	fa_check_eq(number(json, NULL, 0, "used_bytes"), 0);
	fa_check(!json_object_get(json_object_get(json, "pool"), "chunks"));
	fa_check(!json_object_get(json_object_get(json, "pool"), "evicted_pages"));
	fa_check(!json_object_get(json_object_get(json, "pool"), "used_pages"));
	fa_check_eq(json_array_size(pool_tenants(json)), 1);
	fa_check_eq(tenant_number(json, 0, "uid"), NOBODY);
	json_decref(json);
	kv_close(&client);
	return 0;
}

/* Users see their own objects; administrators see and may remove all. */
static void test_other_users(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CACHE_REMOVE);
	json_t *json;

	if (geteuid() != 0)
		skip();
	kv_append(&client, kv_sequence(&client, kv_cache(&client, "ours", 0)), numbers, 0, 20);
	fa_check_eq(fa_test_reap(fa_test_fork(stranger, NULL)), 0);
	json = status_of(&client);
	fa_check_eq(json_array_size(json_object_get(json, "caches")), 2);
	/* A named object stays without a session, and so does its tenant. */
	fa_check_eq(json_array_size(pool_tenants(json)), 2);
	json_decref(json);
	message.cache_remove.cache = kv_cache_find_of(&client, NOBODY + 1, "theirs");
	kv_call_expect(&client, &message, 0, NULL);
	json = status_of(&client);
	fa_check_eq(json_array_size(json_object_get(json, "caches")), 1);
	json_decref(json);
}

static void test_shrinks(void **state)
{
	uint64_t sequence = kv_sequence(&client, kv_cache(&client, NULL, 0));
	struct fa_test_usage usage;
	uint64_t full;
	json_t *json;

	kv_append(&client, sequence, numbers, 0, 100);
	fa_test_daemon_usage(&daemon_process, &usage);
	full = usage.memfd_bytes;
	kv_free(&client, sequence);
	for (int i = 0; i < 400; i++) {
		json = status_of(&client);
		if (!number(json, NULL, 0, "chunks")) {
			json_decref(json);
			fa_test_daemon_usage(&daemon_process, &usage);
			fa_check(usage.memfd_bytes + (2 << 20) <= full);
			return;
		}
		json_decref(json);
		fa_test_quiet_ms(100);
	}
	fa_check(!"the chunk was given back");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, start, stop)
	const struct CMUnitTest tests[] = {
		TEST(contents), TEST(sharing), TEST(bounded), TEST(other_users), TEST(shrinks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
