/* factl status and metrics. */
#include "tools/metrics.h"
#include "tools/status.h"
#include "tools/tool.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define EXPORTER "fad-metrics"

static int show(struct fa_tool *tool, const char *command,
                int (*print)(const char *text, FILE *out))
{
	char *text;
	int r;

	r = fa_tool_connect(tool);
	if (r != 0)
		return r;
	if (fa_status(tool->client, &text) < 0)
		return fa_tool_fail(command);
	r = print(text, stdout);
	fa_free(text);
	if (r < 0) {
		fprintf(stderr, "factl: unexpected JSON in the daemon's status\n");
		return 1;
	}
	return fa_tool_flush(command);
}

static int print_open_metrics(const char *text, FILE *out)
{
	return fa_metrics_print(text, &(struct fa_metrics_format){}, out);
}

static int print_prometheus(const char *text, FILE *out)
{
	return fa_metrics_print(text, &(struct fa_metrics_format){ .prometheus = true }, out);
}

static int print_json(const char *text, FILE *out)
{
	(void)fprintf(out, "%s\n", text);
	return 0;
}

int fa_tool_status(struct fa_tool *tool)
{
	return show(tool, "status",
	            fa_tool_given(tool, FA_TOOL_JSON) ? print_json : fa_status_print);
}

/* The exporter lies beside factl, and replaces this process. */
static int become_exporter(struct fa_tool *tool)
{
	char *arguments[2 * FA_TOOL_LISTEN_MAX + 6] = {};
	char path[PATH_MAX];
	size_t n = 0;
	char *slash;
	ssize_t length;

	length = readlink("/proc/self/exe", path, sizeof(path));
	slash = length > 0 ? memrchr(path, '/', (size_t)length) : NULL;
	if (!slash || (size_t)(slash - path) + sizeof("/" EXPORTER) > sizeof(path)) {
		fprintf(stderr, "factl: the folder of factl is not in /proc/self/exe\n");
		return 1;
	}
	strcpy(slash, "/" EXPORTER);
	arguments[n++] = path;
	if (tool->socket) {
		arguments[n++] = (char *)"--socket";
		arguments[n++] = (char *)tool->socket;
	}
	if (tool->values[FA_TOOL_TENANTS]) {
		arguments[n++] = (char *)"--tenants";
		arguments[n++] = (char *)tool->values[FA_TOOL_TENANTS];
	}
	for (size_t i = 0; i < tool->n_listen; i++) {
		arguments[n++] = (char *)"--listen";
		arguments[n++] = (char *)tool->listen[i];
	}
	execv(path, arguments);
	fprintf(stderr, "factl: %s: %s%s\n", path, strerror(errno),
	        errno == ENOENT ? "; it is built where libmicrohttpd is (-Dexporter)" : "");
	return 1;
}

int fa_tool_metrics(struct fa_tool *tool)
{
	if (fa_tool_given(tool, FA_TOOL_LISTEN))
		return become_exporter(tool);
	if (fa_tool_given(tool, FA_TOOL_TENANTS))
		return fa_tool_wrong_usage("--tenants", " needs --listen");
	return show(tool, "metrics",
	            fa_tool_given(tool, FA_TOOL_PROMETHEUS) ? print_prometheus
	                                                    : print_open_metrics);
}
