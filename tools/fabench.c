/*
 * fabench: measures fad and its parts against peers in the same run.
 */
#include "tools/bench.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	const char *what;
	int (*run)(struct fa_bench *bench);
} benches[] = {
	{ "rtt", "one request through the socket against a bare ping-pong", fa_bench_rtt },
	{ "throughput", "32 clients at once; 64 idle clients", fa_bench_throughput },
	{ "cpu", "the CPU kernels, against a matrix multiply and against reading", fa_bench_cpu },
	{ "wire", "writing and reading messages", fa_bench_wire },
	{ "restart", "from the daemon's death to the first answer", fa_bench_restart },
	{ "gpu", "requests to a daemon with a GPU, against launches of one's own", fa_bench_gpu },
	{ "prefill", "the GPU's kernels alone, in boost and under sustained load",
	  fa_bench_prefill },
	{ NULL, NULL, NULL },
};

static void usage(FILE *file)
{
	fprintf(file, "Usage: fabench [OPTION]... BENCHMARK...\n"
	              "Measures fad against a peer in the same run.\n\n");
	for (size_t i = 0; benches[i].name; i++)
		fprintf(file, "  %-12s %s\n", benches[i].name, benches[i].what);
	fprintf(file,
	        "  all          all of them\n\n"
	        "  -s, --socket PATH  measure the daemon that listens there (default: start one;\n"
	        "                     FAD_DAEMON says where fad is, else it is looked for nearby)\n"
	        "      --json         print JSON instead of lines\n"
	        "      --quick        make it short: to see whether it works, not for numbers\n"
	        "  -h, --help\n"
	        "      --version\n\n"
	        "A ratio is speed against the peer: above 1 is faster than it.\n");
}

int main(int argc, char **argv)
{
	enum {
		OPT_JSON = 256,
		OPT_QUICK,
		OPT_STORM,
		OPT_VERSION
	};
	static const struct option options[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "json", no_argument, NULL, OPT_JSON },
		{ "quick", no_argument, NULL, OPT_QUICK },
		{ "storm", required_argument, NULL, OPT_STORM },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, OPT_VERSION },
		{ NULL, 0, NULL, 0 },
	};
	struct fa_bench bench;
	const char *storm = NULL;
	int c, r, failed = 0;

	fa_bench_init(&bench);
	while ((c = getopt_long(argc, argv, "s:h", options, NULL)) != -1) {
		switch (c) {
		case 's':
			bench.socket = optarg;
			break;
		case OPT_JSON:
			bench.json = true;
			break;
		case OPT_QUICK:
			bench.quick = true;
			break;
		case 'h':
			usage(stdout);
			return 0;
		case OPT_STORM:
			storm = optarg; /* not for people: what fabench gpu starts */
			break;
		case OPT_VERSION:
			printf("fabench %s\n", FAD_VERSION);
			return 0;
		default:
			fprintf(stderr, "Try 'fabench --help'.\n");
			return 2;
		}
	}
	if (storm)
		return fa_bench_gpu_storm(bench.socket, storm);
	if (optind == argc) {
		fprintf(stderr, "fabench: which benchmark? Try 'fabench --help'.\n");
		return 2;
	}

	for (int i = optind; i < argc; i++) {
		bool all = strcmp(argv[i], "all") == 0, found = all;

		for (size_t j = 0; benches[j].name; j++) {
			if (!all && strcmp(argv[i], benches[j].name) != 0)
				continue;
			found = true;
			r = benches[j].run(&bench);
			/* Whoever asks for all of them means those that this machine can run. */
			if (r < 0 && !(all && r == -ENODEV))
				failed = 1;
		}
		if (!found) {
			fprintf(stderr, "fabench: there is no benchmark '%s'\n", argv[i]);
			fa_bench_deinit(&bench);
			return 2;
		}
	}
	if (bench.json && fa_bench_print_json(&bench) < 0)
		failed = 1;
	fa_bench_deinit(&bench);
	return failed;
}
