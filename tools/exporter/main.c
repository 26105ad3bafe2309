/*
 * fad-metrics: exports the daemon's metrics by HTTP, for `factl metrics --listen`. A program of its
 * own, so that factl needs no HTTP library.
 */
#include "tools/exporter/exporter.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>

#define USAGE_STATUS 2

static int wrong_usage(const char *what, const char *which)
{
	fprintf(stderr, "fad-metrics: %s%s\nTry 'fad-metrics --help'.\n", what, which);
	return USAGE_STATUS;
}

static void usage(void)
{
	puts("Usage: fad-metrics --listen ADDRESS [OPTION]...\n"
	     "Serves the metrics of the daemon fad by HTTP, until SIGTERM.\n"
	     "\n"
	     "  --listen ADDRESS   PORT, HOST:PORT of the loopback interface, or a path; up to 8\n"
	     "  --tenants N        tenants that get series of their own (default: 32)\n"
	     "  --socket PATH      the daemon's socket\n"
	     "  -h, --help\n"
	     "\n"
	     "Exit status: 0 stopped, 1 failure, 2 wrong usage.");
}

static int parse_tenants(const char *text, size_t *ret_n)
{
	unsigned long n;
	char *end;

	errno = 0;
	n = strtoul(text, &end, 10);
	if (errno || end == text || *end || text[0] == '-' || n > FA_FOLD_SLOTS_MAX)
		return wrong_usage("--tenants must be a number from 0 to 128: ", text);
	*ret_n = n;
	return 0;
}

/* Returns an exit status, or -1 to serve. */
static int parse(int argc, char **argv, struct fa_exporter *exporter)
{
	static const struct option options[] = {
		{ "listen", required_argument, NULL, 'l' },
		{ "tenants", required_argument, NULL, 't' },
		{ "socket", required_argument, NULL, 's' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int c, r;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		r = 0;
		if (c == 'h') {
			usage();
			return EXIT_SUCCESS;
		}
		if (c == 'l')
			r = fa_exporter_listen(exporter, optarg);
		else if (c == 't')
			r = parse_tenants(optarg, &exporter->fold.n_slots);
		else if (c == 's')
			exporter->source.socket = optarg;
		else
			return wrong_usage("unknown option", "");
		if (r)
			return r == -EINVAL || r == USAGE_STATUS ? USAGE_STATUS : EXIT_FAILURE;
	}
	if (optind < argc)
		return wrong_usage("unexpected ", argv[optind]);
	return exporter->n_sockets ? -1 : wrong_usage("--listen is missing", "");
}

int main(int argc, char **argv)
{
	static struct fa_exporter exporter = { .fold.n_slots = 32 };
	int r;

	r = parse(argc, argv, &exporter);
	if (r < 0)
		r = fa_exporter_run(&exporter) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
	fa_exporter_deinit(&exporter);
	return r;
}
