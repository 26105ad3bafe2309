/*
 * factl: shows the state of a running daemon and controls it. One connection, one thread, all
 * through libfaclient. The usage text lists the exit statuses.
 */
#include "tools/metrics.h"
#include "tools/status.h"

#include "client/faclient.h"
#include "common/clock.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2
#define EXIT_NO_DAEMON 3

#define PING_PAUSE_MS 200

struct factl {
	const char *socket;
	struct fa_client *client;
	const char *option; /* the last one that belongs to one command; NULL: none */
	bool json;
	bool prometheus;
	bool wait;
	unsigned long count;
	char **arguments; /* of the command */
};

static int wrong_usage(const char *what, const char *which)
{
	fprintf(stderr, "factl: %s%s\nTry 'factl --help'.\n", what, which);
	return EXIT_USAGE;
}

static int fail(const char *what)
{
	fprintf(stderr, "factl: %s: %s\n", what, fa_error());
	return 1;
}

/* Returns an exit status, after a message if it is not 0. */
static int connect_daemon(struct factl *factl)
{
	struct fa_options options = {
		.size = sizeof(options),
		.socket = factl->socket,
		.name = "factl",
		.reconnect_ns = UINT64_MAX,
	};
	int r;

	r = fa_connect(&options, &factl->client);
	if (r == 0)
		return 0;
	fprintf(stderr, "factl: no connection to fad: %s\n", fa_error());
	return r == -ENOENT || r == -ECONNREFUSED ? EXIT_NO_DAEMON : 1;
}

static int show(struct factl *factl, const char *command, int (*print)(const char *text, FILE *out))
{
	char *text;
	int r;

	r = connect_daemon(factl);
	if (r != 0)
		return r;
	if (fa_status(factl->client, &text) < 0)
		return fail(command);
	r = print(text, stdout);
	fa_free(text);
	if (r < 0) {
		fprintf(stderr, "factl: unexpected JSON in the daemon's status\n");
		return 1;
	}
	/* Scripts replace their last complete output with this one. */
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "factl %s: the output cannot be written: %s\n", command,
		        strerror(errno));
		return 1;
	}
	return 0;
}

static int print_json(const char *text, FILE *out)
{
	(void)fprintf(out, "%s\n", text);
	return 0;
}

static int run_status(struct factl *factl)
{
	return show(factl, "status", factl->json ? print_json : fa_status_print);
}

static int run_metrics(struct factl *factl)
{
	return show(factl, "metrics",
	            factl->prometheus ? fa_metrics_print_prometheus : fa_metrics_print);
}

static int run_ping(struct factl *factl)
{
	uint64_t min = UINT64_MAX, max = 0, sum = 0;
	int r;

	r = connect_daemon(factl);
	if (r != 0)
		return r;
	for (unsigned long i = 0; i < factl->count; i++) {
		uint64_t start, took;

		if (i > 0)
			poll(NULL, 0, PING_PAUSE_MS);
		start = fa_now_ns();
		if (fa_ping(factl->client) < 0)
			return fail("ping");
		took = fa_now_ns() - start;
		printf("answer from %s: %.1f us\n", fa_socket_path(factl->client),
		       (double)took / 1e3);
		fflush(stdout);
		min = took < min ? took : min;
		max = took > max ? took : max;
		sum += took;
	}
	if (factl->count > 1)
		printf("%lu answers: min %.1f us, mean %.1f us, max %.1f us\n", factl->count,
		       (double)min / 1e3, (double)sum / (double)factl->count / 1e3,
		       (double)max / 1e3);
	return 0;
}

static int run_version(struct factl *factl)
{
	struct fa_info info = { .size = sizeof(info) };
	int r;

	printf("factl  %s\n", fa_version());
	fflush(stdout);
	r = connect_daemon(factl);
	if (r != 0)
		return r;
	if (fa_info(factl->client, &info) < 0)
		return fail("version");
	printf("fad    %s (protocol %u, backend %s: %s)\n", info.daemon_version, info.protocol,
	       info.backend, info.device_name);
	return 0;
}

static int run_drain(struct factl *factl)
{
	int r;

	r = connect_daemon(factl);
	if (r != 0)
		return r;
	if (fa_daemon_drain(factl->client) < 0)
		return fail("drain");
	if (!factl->wait) {
		puts("The daemon finishes its requests and exits.");
		return 0;
	}
	/* The daemon has exited when it closes the connection. */
	while (fa_client_state(factl->client) == FA_CLIENT_CONNECTED) {
		struct pollfd poll_fd = { .fd = fa_fd(factl->client), .events = POLLIN };

		poll(&poll_fd, 1, 1000);
		fa_dispatch(factl->client);
	}
	puts("The daemon has finished and exited.");
	return 0;
}

/* The name may soon be another's; the id stays. */
static int run_rm(struct factl *factl)
{
	const char *kind = factl->arguments[0], *name = factl->arguments[1];
	const bool cache = strcmp(kind, "cache") == 0;
	uint64_t id;
	int r;

	if (!cache && strcmp(kind, "sequence") != 0)
		return wrong_usage("rm removes a cache or a sequence, not a ", kind);
	r = connect_daemon(factl);
	if (r != 0)
		return r;
	r = cache ? fa_cache_find(factl->client, name, &id)
	          : fa_sequence_find(factl->client, name, &id);
	if (r == 0)
		r = cache ? fa_cache_remove(factl->client, id)
		          : fa_sequence_remove(factl->client, id);
	return r < 0 ? fail("rm") : 0;
}

static const struct command {
	const char *name;
	int (*run)(struct factl *factl);
	const char *option; /* the only one of its own; NULL: none */
	int n_arguments;
} commands[] = {
	{ "status", run_status, "--json" },  { "metrics", run_metrics, "--prometheus" },
	{ "ping", run_ping, "--count" },     { "version", run_version },
	{ "drain", run_drain, "--no-wait" }, { "rm", run_rm, .n_arguments = 2 },
};

/* Checks that the command line fits @command. Returns an exit status, after a message if not 0. */
static int check_usage(const struct factl *factl, const struct command *command, int n_arguments)
{
	if (n_arguments > command->n_arguments)
		return wrong_usage("one command at a time; unexpected ",
		                   factl->arguments[command->n_arguments]);
	if (n_arguments < command->n_arguments)
		return wrong_usage("an argument is missing after ", command->name);
	if (factl->option && (!command->option || strcmp(factl->option, command->option) != 0))
		return wrong_usage(factl->option, " belongs to another command");
	return 0;
}

static void usage(void)
{
	puts("Usage: factl [OPTION]... COMMAND\n"
	     "Shows the state of the daemon fad, or controls it.\n"
	     "\n"
	     "  status [--json]    show clients, tenants, caches and load, or the raw JSON; root\n"
	     "                     and the daemon's user see all clients, others their own\n"
	     "  metrics            print the same in the OpenMetrics format\n"
	     "    [--prometheus]   or in Prometheus' text format, as node_exporter reads it\n"
	     "  ping [-c N]        time N empty round trips (default: 1)\n"
	     "  version            show the versions of factl and of the daemon\n"
	     "  drain [--no-wait]  let the daemon finish all requests and exit; wait for that\n"
	     "  rm cache NAME      remove a cache and all its sequences\n"
	     "  rm sequence NAME   remove a sequence\n"
	     "\n"
	     "  -s, --socket PATH  the daemon's socket (default: FAD_SOCKET, or\n"
	     "                     $XDG_RUNTIME_DIR/fad/fad.sock if there, or\n"
	     "                     /run/fad/fad.sock)\n"
	     "  -c, --count N      round trips of ping\n"
	     "  -h, --help\n"
	     "      --version      show the version of factl only\n"
	     "\n"
	     "Exit status: 0 success, 1 failure, 2 wrong usage, 3 no daemon.");
}

int main(int argc, char **argv)
{
	enum {
		OPT_JSON = 256,
		OPT_NO_WAIT,
		OPT_PROMETHEUS,
		OPT_VERSION
	};
	static const struct option options[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "count", required_argument, NULL, 'c' },
		{ "json", no_argument, NULL, OPT_JSON },
		{ "no-wait", no_argument, NULL, OPT_NO_WAIT },
		{ "prometheus", no_argument, NULL, OPT_PROMETHEUS },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, OPT_VERSION },
		{ NULL, 0, NULL, 0 },
	};
	struct factl factl = { .wait = true, .count = 1 };
	char *end;
	int c, r;

	while ((c = getopt_long(argc, argv, "s:c:h", options, NULL)) != -1) {
		switch (c) {
		case 's':
			factl.socket = optarg;
			break;
		case 'c':
			errno = 0;
			factl.count = strtoul(optarg, &end, 10);
			if (errno != 0 || *end || end == optarg || optarg[0] == '-' ||
			    factl.count == 0)
				return wrong_usage("the count must be a number from 1: ", optarg);
			factl.option = "--count";
			break;
		case OPT_JSON:
			factl.json = true;
			factl.option = "--json";
			break;
		case OPT_NO_WAIT:
			factl.wait = false;
			factl.option = "--no-wait";
			break;
		case OPT_PROMETHEUS:
			factl.prometheus = true;
			factl.option = "--prometheus";
			break;
		case 'h':
			usage();
			return 0;
		case OPT_VERSION:
			printf("factl %s\n", fa_version());
			return 0;
		default:
			return wrong_usage("unknown option", "");
		}
	}
	if (optind == argc)
		return wrong_usage("a command is missing", "");
	factl.arguments = argv + optind + 1;
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(argv[optind], commands[i].name) != 0)
			continue;
		r = check_usage(&factl, &commands[i], argc - optind - 1);
		if (r == 0)
			r = commands[i].run(&factl);
		fa_disconnect(factl.client);
		return r;
	}
	return wrong_usage("there is no command ", argv[optind]);
}
