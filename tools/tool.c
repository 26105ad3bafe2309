#include "tools/tool.h"

#include <errno.h>
#include <string.h>

int fa_tool_wrong_usage(const char *what, const char *which)
{
	fprintf(stderr, "factl: %s%s\nTry 'factl --help'.\n", what, which);
	return FA_TOOL_USAGE;
}

int fa_tool_fail(const char *what)
{
	fprintf(stderr, "factl: %s: %s\n", what, fa_error());
	return 1;
}

int fa_tool_connect(struct fa_tool *tool)
{
	struct fa_options options = {
		.size = sizeof(options),
		.socket = tool->socket,
		.name = "factl",
		.reconnect_ns = UINT64_MAX,
	};
	int r;

	if (tool->client)
		return 0;
	r = fa_connect(&options, &tool->client);
	if (r == 0)
		return 0;
	fprintf(stderr, "factl: no connection to fad: %s\n", fa_error());
	return r == -ENOENT || r == -ECONNREFUSED ? FA_TOOL_NO_DAEMON : 1;
}

int fa_tool_flush(const char *command)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	fprintf(stderr, "factl %s: the output cannot be written: %s\n", command, strerror(errno));
	return 1;
}
