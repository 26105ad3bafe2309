#include "bench/fabench/bench.h"
#include "bench/lib/mps.h"
#include "bench/lib/prefiller.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
	const char *name;
	const char *what;
	int (*run)(struct fa_bench *bench);
} benches[] = {
	{ "rtt", "one request by socket and by ring, against a bare ping-pong", fa_bench_rtt },
	{ "throughput", "8, 32 and 64 clients at once; cost of 64 idle clients",
	  fa_bench_throughput },
	{ "crowd", "64 clients for a minute; 62 clients beside two that misbehave",
	  fa_bench_crowd },
	{ "fair", "one user beside the attacks of another; needs root", fa_bench_fair },
	{ "cpu", "CPU kernels, against a matrix multiply and a bare read", fa_bench_cpu },
	{ "wire", "encoding and decoding of messages", fa_bench_wire },
	{ "restart", "time from the daemon's death to the first answer", fa_bench_restart },
	{ "gpu", "requests to a daemon with a GPU, against direct launches", fa_bench_gpu },
	{ "request", "decode requests, steps and kernel pairs, against direct launches",
	  fa_bench_request },
	{ "step", "whole decode steps of 32 sequences, against the kernels alone", fa_bench_step },
	{ "yield", "decode steps that preempt a prefill", fa_bench_yield },
	{ "prefill", "GPU kernels alone, at boost clocks and under sustained load",
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
	        "  all          all that this machine can run\n\n"
	        "  -s, --socket PATH  measure the daemon that listens there (default: start fad\n"
	        "                     from FAD_DAEMON, or as installed or built with fabench)\n"
	        "      --json         print JSON instead of lines\n"
	        "      --list         print the names of cpu's results, and measure nothing\n"
	        "      --mps          run under MPS: the one of CUDA_MPS_PIPE_DIRECTORY if set,\n"
	        "                     else a private one\n"
	        "      --only PATTERN the results of cpu, or attacks of fair (fair/NAME), whose\n"
	        "                     names match the shell pattern\n"
	        "      --seconds N    duration of the saturating part of crowd (default: 60)\n"
	        "      --quick        run briefly, as a test; the numbers mean nothing\n"
	        "  -h, --help\n"
	        "      --version\n\n"
	        "A ratio is the speed relative to the peer: above 1 is faster.\n"
	        "Exit status: 0 success, 1 a benchmark failed, 2 wrong usage.\n");
}

static bool is_bench(const char *name)
{
	for (size_t i = 0; benches[i].name; i++)
		if (strcmp(name, benches[i].name) == 0)
			return true;
	return strcmp(name, "all") == 0;
}

/* Runs under MPS in a child process: if this process used MPS, MPS could not be stopped. */
static int run_under_mps(char **argv)
{
	struct fa_mps mps;
	int r, status = 1;
	pid_t pid;

	r = fa_mps_start(&mps);
	if (r < 0) {
		fprintf(stderr, "fabench: MPS does not start: %s\n", strerror(-r));
		return 1;
	}
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execv("/proc/self/exe", argv);
		_exit(127);
	}
	if (pid > 0 && waitpid(pid, &status, 0) == pid)
		status = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	fa_mps_stop(&mps);
	return status;
}

int main(int argc, char **argv)
{
	enum {
		OPT_JSON = 256,
		OPT_LIST,
		OPT_MPS,
		OPT_ONLY,
		OPT_PREFILLER,
		OPT_QUICK,
		OPT_SECONDS,
		OPT_STORM,
		OPT_VERSION
	};
	static const struct option options[] = {
		{ "socket", required_argument, NULL, 's' },
		{ "json", no_argument, NULL, OPT_JSON },
		{ "list", no_argument, NULL, OPT_LIST },
		{ "mps", no_argument, NULL, OPT_MPS },
		{ "only", required_argument, NULL, OPT_ONLY },
		{ "prefiller", required_argument, NULL, OPT_PREFILLER },
		{ "quick", no_argument, NULL, OPT_QUICK },
		{ "seconds", required_argument, NULL, OPT_SECONDS },
		{ "storm", required_argument, NULL, OPT_STORM },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, OPT_VERSION },
		{ NULL, 0, NULL, 0 },
	};
	struct fa_bench bench;
	const char *storm = NULL, *prefiller = NULL;
	char *end;
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
		case OPT_LIST:
			bench.list = true;
			break;
		case OPT_MPS:
			bench.mps = true;
			break;
		case OPT_ONLY:
			bench.only = optarg;
			break;
		case OPT_QUICK:
			bench.quick = true;
			break;
		case OPT_SECONDS:
			bench.seconds = (unsigned int)strtoul(optarg, &end, 10);
			if (end == optarg || *end || !bench.seconds || bench.seconds > 3600) {
				fprintf(stderr, "fabench: --seconds is a number from 1 to 3600\n");
				return 2;
			}
			break;
		case 'h':
			usage(stdout);
			return 0;
		case OPT_STORM:
			storm = optarg; /* set by fabench gpu for its child */
			break;
		case OPT_PREFILLER:
			prefiller = optarg; /* set by fabench yield for its child */
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
	if (prefiller)
		return fa_prefiller_main((int)strtol(prefiller, NULL, 10));
	if (optind == argc) {
		fprintf(stderr, "fabench: which benchmark? Try 'fabench --help'.\n");
		return 2;
	}
	/* Wrong usage is noticed before any benchmark runs. */
	for (int i = optind; i < argc; i++) {
		if (!is_bench(argv[i])) {
			fprintf(stderr, "fabench: there is no benchmark '%s'\n", argv[i]);
			return 2;
		}
		if (bench.socket && strcmp(argv[i], "restart") == 0) {
			fprintf(stderr, "fabench: restart kills its daemon and cannot be used with "
			                "--socket\n");
			return 2;
		}
	}

	if (bench.mps && !getenv("CUDA_MPS_PIPE_DIRECTORY")) {
		fa_bench_deinit(&bench);
		return run_under_mps(argv);
	}
	for (int i = optind; i < argc; i++) {
		bool all = strcmp(argv[i], "all") == 0;

		for (size_t j = 0; benches[j].name; j++) {
			if (!all && strcmp(argv[i], benches[j].name) != 0)
				continue;
			r = benches[j].run(&bench);
			/* "all" means all that this machine can run. */
			if (r < 0 && !(all && r == -ENODEV))
				failed = 1;
		}
	}
	if (bench.json && !bench.list && fa_bench_print_json(&bench) < 0)
		failed = 1;
	fa_bench_deinit(&bench);
	return failed;
}
