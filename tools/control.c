/* factl ping, version, drain, rm. */
#include "tools/tool.h"

#include "common/clock.h"

#include <poll.h>
#include <string.h>

#define PING_PAUSE_MS 200

int fa_tool_ping(struct fa_tool *tool)
{
	const unsigned long count = tool->numbers[FA_TOOL_COUNT];
	uint64_t min = UINT64_MAX, max = 0, sum = 0;
	int r;

	r = fa_tool_connect(tool);
	if (r != 0)
		return r;
	for (unsigned long i = 0; i < count; i++) {
		uint64_t start, took;

		if (i > 0)
			poll(NULL, 0, PING_PAUSE_MS);
		start = fa_now_ns();
		if (fa_ping(tool->client) < 0)
			return fa_tool_fail("ping");
		took = fa_now_ns() - start;
		printf("answer from %s: %.1f us\n", fa_socket_path(tool->client),
		       (double)took / 1e3);
		fflush(stdout);
		min = took < min ? took : min;
		max = took > max ? took : max;
		sum += took;
	}
	if (count > 1)
		printf("%lu answers: min %.1f us, mean %.1f us, max %.1f us\n", count,
		       (double)min / 1e3, (double)sum / (double)count / 1e3, (double)max / 1e3);
	return 0;
}

int fa_tool_version(struct fa_tool *tool)
{
	struct fa_info info = { .size = sizeof(info) };
	int r;

	printf("factl  %s\n", fa_version());
	fflush(stdout);
	r = fa_tool_connect(tool);
	if (r != 0)
		return r;
	if (fa_info(tool->client, &info) < 0)
		return fa_tool_fail("version");
	printf("fad    %s (protocol %u, backend %s: %s)\n", info.daemon_version, info.protocol,
	       info.backend, info.device_name);
	return 0;
}

int fa_tool_drain(struct fa_tool *tool)
{
	int r;

	r = fa_tool_connect(tool);
	if (r != 0)
		return r;
	if (fa_daemon_drain(tool->client) < 0)
		return fa_tool_fail("drain");
	if (fa_tool_given(tool, FA_TOOL_NO_WAIT)) {
		puts("The daemon finishes its requests and exits.");
		return 0;
	}
	/* The daemon has exited when it closes the connection. */
	while (fa_client_state(tool->client) == FA_CLIENT_CONNECTED) {
		struct pollfd poll_fd = { .fd = fa_fd(tool->client), .events = POLLIN };

		poll(&poll_fd, 1, 1000);
		fa_dispatch(tool->client);
	}
	puts("The daemon has finished and exited.");
	return 0;
}

/* The name may soon be another's; the id stays. */
int fa_tool_rm(struct fa_tool *tool)
{
	const char *kind = tool->arguments[0], *name = tool->arguments[1];
	const bool cache = strcmp(kind, "cache") == 0;
	uint64_t id;
	int r;

	if (!cache && strcmp(kind, "sequence") != 0)
		return fa_tool_wrong_usage("rm removes a cache or a sequence, not a ", kind);
	r = fa_tool_connect(tool);
	if (r != 0)
		return r;
	r = cache ? fa_cache_find(tool->client, name, &id)
	          : fa_sequence_find(tool->client, name, &id);
	if (r == 0)
		r = cache ? fa_cache_remove(tool->client, id)
		          : fa_sequence_remove(tool->client, id);
	return r < 0 ? fa_tool_fail("rm") : 0;
}
