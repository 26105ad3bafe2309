/*
 * factl: shows a running daemon's state and controls it. One connection, one thread, all through
 * libfaclient. The usage text lists the exit statuses.
 */
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define BIT(option) (1u << FA_TOOL_##option)

static const struct command {
	const char *name;
	int (*run)(struct fa_tool *tool);
	uint32_t options; /* bits of those that it takes */
	int n_arguments;
} commands[] = {
	{ "status", fa_tool_status, BIT(JSON) },
	{ "metrics", fa_tool_metrics, BIT(PROMETHEUS) | BIT(LISTEN) | BIT(TENANTS) },
	{ "top", fa_tool_top, BIT(ONCE) | BIT(INTERVAL) | BIT(SORT) | BIT(FILTER) | BIT(BY) },
	{ "doctor", fa_tool_doctor, BIT(JSON) },
	{ "dump", fa_tool_dump },
	{ "ping", fa_tool_ping, BIT(COUNT) },
	{ "version", fa_tool_version },
	{ "drain", fa_tool_drain, BIT(NO_WAIT) },
	{ "rm", fa_tool_rm, .n_arguments = 2 },
};

static const struct {
	enum fa_tool_option option;
	unsigned long preset, min, max;
	const char *wrong;
} numbers[] = {
	{ FA_TOOL_COUNT, 1, 1, UINT32_MAX, "the count must be a number from 1: " },
	{ FA_TOOL_TENANTS, 32, 0, 128, "--tenants must be a number from 0 to 128: " },
	{ FA_TOOL_INTERVAL, 1000, 0, 3600000,
	  "--interval must be milliseconds from 0 to 3600000: " },
};

static const char *const option_names[_FA_TOOL_OPTION_N] = {
	[FA_TOOL_COUNT] = "--count",     [FA_TOOL_JSON] = "--json",
	[FA_TOOL_NO_WAIT] = "--no-wait", [FA_TOOL_PROMETHEUS] = "--prometheus",
	[FA_TOOL_LISTEN] = "--listen",   [FA_TOOL_TENANTS] = "--tenants",
	[FA_TOOL_ONCE] = "--once",       [FA_TOOL_INTERVAL] = "--interval",
	[FA_TOOL_SORT] = "--sort",       [FA_TOOL_FILTER] = "--filter",
	[FA_TOOL_BY] = "--by",
};

static int check_usage(const struct fa_tool *tool, const struct command *command, int n_arguments)
{
	if (n_arguments > command->n_arguments)
		return fa_tool_wrong_usage("one command at a time; unexpected ",
		                           tool->arguments[command->n_arguments]);
	if (n_arguments < command->n_arguments)
		return fa_tool_wrong_usage("an argument is missing after ", command->name);
	for (int i = 0; i < _FA_TOOL_OPTION_N; i++)
		if (tool->given & ~command->options & 1u << i)
			return fa_tool_wrong_usage(option_names[i], " belongs to another command");
	return 0;
}

static int read_numbers(struct fa_tool *tool)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		const char *text = tool->values[numbers[i].option];
		unsigned long number = numbers[i].preset;
		char *end;

		if (text) {
			errno = 0;
			number = strtoul(text, &end, 10);
			if (errno != 0 || *end || end == text || text[0] == '-' ||
			    number < numbers[i].min || number > numbers[i].max)
				return fa_tool_wrong_usage(numbers[i].wrong, text);
		}
		tool->numbers[numbers[i].option] = number;
	}
	return 0;
}

static void usage(void)
{
	puts("Usage: factl [OPTION]... COMMAND\n"
	     "Shows the state of the daemon fad, or controls it.\n"
	     "\n"
	     "  status [--json]    show clients, tenants, caches and load, or the raw JSON;\n"
	     "                     root and the daemon's user see all clients, others their own\n"
	     "  top                show what happens now, again and again; q quits\n"
	     "    [--once]         once, as text\n"
	     "    [--by KIND]      client or tenant (default: client)\n"
	     "    [--sort KEY]     rate, wait, share, memory or name (default: rate)\n"
	     "    [--filter TEXT]  only lines with TEXT\n"
	     "    [--interval MS]  how often (default: 1000)\n"
	     "  metrics            print the status in the OpenMetrics format\n"
	     "    [--prometheus]   or in Prometheus' text format, as node_exporter reads it\n"
	     "    [--listen ADDRESS]...  or serve both by HTTP, at a loopback address or a\n"
	     "                     path, until SIGTERM; see factl(1)\n"
	     "    [--tenants N]    tenants that get series of their own (default: 32)\n"
	     "  doctor [--json]    check machine, daemon and access, and compute something;\n"
	     "                     say what to do about what is wrong\n"
	     "  dump               print what a bug report needs, without names of users and\n"
	     "                     programs, as JSON\n"
	     "  ping [-c N]        time N empty round trips (default: 1)\n"
	     "  version            show the versions of factl and of the daemon\n"
	     "  drain [--no-wait]  let the daemon finish all requests and exit; wait for that\n"
	     "  rm cache NAME      remove a cache and all its sequences\n"
	     "  rm sequence NAME   remove a sequence\n"
	     "\n"
	     "  -s, --socket PATH  the daemon's socket (default: FAD_SOCKET, or\n"
	     "                     $XDG_RUNTIME_DIR/fad/fad.sock if there, or\n"
	     "                     /run/fad/fad.sock)\n"
	     "  -i, --instance NAME  the daemon of fad@NAME.service (default: FAD_INSTANCE)\n"
	     "  -c, --count N      round trips of ping\n"
	     "  -h, --help\n"
	     "      --version      show the version of factl only\n"
	     "\n"
	     "Exit status: 0 success, 1 failure, 2 wrong usage, 3 no daemon.");
}

/* Returns an exit status, or -1 to go on with the command at argv[optind]. */
static int parse(int argc, char **argv, struct fa_tool *tool)
{
	enum {
		OPT_VERSION = 256,
		OPT_COMMAND, /* + enum fa_tool_option */
	};
	static const struct option options[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "instance", required_argument, NULL, 'i' },
		{ "count", required_argument, NULL, 'c' },
		{ "json", no_argument, NULL, OPT_COMMAND + FA_TOOL_JSON },
		{ "no-wait", no_argument, NULL, OPT_COMMAND + FA_TOOL_NO_WAIT },
		{ "prometheus", no_argument, NULL, OPT_COMMAND + FA_TOOL_PROMETHEUS },
		{ "listen", required_argument, NULL, OPT_COMMAND + FA_TOOL_LISTEN },
		{ "tenants", required_argument, NULL, OPT_COMMAND + FA_TOOL_TENANTS },
		{ "once", no_argument, NULL, OPT_COMMAND + FA_TOOL_ONCE },
		{ "interval", required_argument, NULL, OPT_COMMAND + FA_TOOL_INTERVAL },
		{ "sort", required_argument, NULL, OPT_COMMAND + FA_TOOL_SORT },
		{ "filter", required_argument, NULL, OPT_COMMAND + FA_TOOL_FILTER },
		{ "by", required_argument, NULL, OPT_COMMAND + FA_TOOL_BY },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, OPT_VERSION },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "s:i:c:h", options, NULL)) != -1) {
		if (c == 'c')
			c = OPT_COMMAND + FA_TOOL_COUNT;
		if (c == 's') {
			tool->socket = optarg;
		} else if (c == 'i') {
			/* The library makes the path, and says what a name may be. */
			tool->instance = optarg;
		} else if (c == 'h') {
			usage();
			return EXIT_SUCCESS;
		} else if (c == OPT_VERSION) {
			printf("factl %s\n", fa_version());
			return EXIT_SUCCESS;
		} else if (c >= OPT_COMMAND) {
			tool->given |= 1u << (c - OPT_COMMAND);
			tool->values[c - OPT_COMMAND] = optarg;
			if (c == OPT_COMMAND + FA_TOOL_LISTEN &&
			    tool->n_listen == FA_TOOL_LISTEN_MAX)
				return fa_tool_wrong_usage("too many addresses: ", optarg);
			if (c == OPT_COMMAND + FA_TOOL_LISTEN)
				tool->listen[tool->n_listen++] = optarg;
		} else {
			return fa_tool_wrong_usage("unknown option", "");
		}
	}
	if (optind == argc)
		return fa_tool_wrong_usage("a command is missing", "");
	return -1;
}

int main(int argc, char **argv)
{
	struct fa_tool tool = {};
	int r;

	r = parse(argc, argv, &tool);
	if (r >= 0)
		return r;
	if (tool.instance && tool.socket)
		return fa_tool_wrong_usage("--instance does not go with ", "--socket");
	if (tool.instance &&
	    (unsetenv("FAD_SOCKET") < 0 || setenv("FAD_INSTANCE", tool.instance, true) < 0))
		return EXIT_FAILURE;
	tool.arguments = argv + optind + 1;
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(argv[optind], commands[i].name) != 0)
			continue;
		r = check_usage(&tool, &commands[i], argc - optind - 1);
		if (r == 0)
			r = read_numbers(&tool);
		if (r == 0)
			r = commands[i].run(&tool);
		fa_disconnect(tool.client);
		return r;
	}
	return fa_tool_wrong_usage("there is no command ", argv[optind]);
}
