#include "tests/client/single-client.h"

#include "kernels/quantise.h"
#include "tests/lib/check.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct fa_test_daemon single_daemon;
struct fa_client *single_client, *single_pair[2];

int single_setup(void **state)
{
	struct fa_options options = { .size = sizeof(options) };

	fa_test_daemon_start(&single_daemon, NULL);
	options.socket = single_daemon.socket;
	fa_check_eq(fa_connect(&options, &single_client), 0);
	return 0;
}

int single_teardown(void **state)
{
	fa_disconnect(single_client);
	fa_test_daemon_stop(&single_daemon);
	return 0;
}

int single_pair_setup(void **state)
{
	struct fa_options options = { .size = sizeof(options) };

	fa_test_daemon_start(&single_daemon, NULL);
	options.socket = single_daemon.socket;
	for (int i = 0; i < 2; ++i) {
		options.flags = i ? FA_CONNECT_NO_RING : 0;
		must(fa_connect(&options, &single_pair[i]), "connect");
	}
	return 0;
}

int single_pair_teardown(void **state)
{
	for (int i = 0; i < 2; ++i)
		fa_disconnect(single_pair[i]);
	fa_test_daemon_stop(&single_daemon);
	return 0;
}

void must(int r, const char *what)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%s: %d, %s", what, r, fa_error());
}

struct fa_step *single_begin(const struct fa_step_item *items, uint32_t n)
{
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = n,
		                                 .items = items };
	struct fa_step *step;

	must(fa_step_begin(single_client, &options, &step), "begin");
	return step;
}

void single_fill(uint64_t *state, void *to, size_t n)
{
	for (size_t i = 0; i < n; ++i) {
		float value;

		*state = *state * 6364136223846793005u + 1442695040888963407u;
		value = (float)(int32_t)(*state >> 32) / (float)(1u << 31) * 1.7f;
		fa_floats_to(FA_ATTENTION_BF16, (char *)to + 2 * i, &value, 1);
	}
}

static struct fa_info info(void)
{
	struct fa_info info = { .size = sizeof(info) };

	must(fa_info(single_client, &info), "info");
	return info;
}

bool single_on_gpu(void)
{
	return !strcmp(info().backend, "cuda");
}

uint64_t single_status(const char *key)
{
	const uint64_t own = info().session;
	json_t *json, *session, *value = NULL;
	uint64_t number;
	char *text;
	size_t i;

	must(fa_status(single_client, &text), "status");
	json = json_loads(text, 0, NULL);
	json_array_foreach(
		json_object_get(json, "sessions"), i,
		session) if ((uint64_t)json_integer_value(json_object_get(session, "session")) ==
	                     own) value = json_object_get(session, key);
	if (!json_is_integer(value))
		fa_test_fail(__FILE__, __LINE__, "no %s of session %llu in %s", key,
		             (unsigned long long)own, text);
	number = (uint64_t)json_integer_value(value);
	json_decref(json);
	fa_check(!fa_free(text));
	fa_check(!fa_free(NULL));
	return number;
}
