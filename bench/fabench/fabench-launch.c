/* fabench-launch: a decode step's cost to the daemon's threads on a GPU (launch.c). */
#include "bench/fabench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char usage[] = "Usage: fabench-launch [--json] [--quick] [--prepare]\n"
			    "Measures what a decode step costs the daemon's threads "
			    "on a GPU.\n"
			    "  --json     print JSON instead of lines\n"
			    "  --quick    run briefly, as a test; the numbers mean nothing\n"
			    "  --prepare  plan, but do not launch: for a slow test driver\n";

int main(int argc, char **argv)
{
	bool prepares_only = false;
	struct fa_bench bench;
	int r;

	fa_bench_init(&bench);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--json")) {
			bench.json = true;
		} else if (!strcmp(argv[i], "--quick")) {
			bench.quick = true;
		} else if (!strcmp(argv[i], "--prepare")) {
			prepares_only = true;
		} else {
			bool asked = !strcmp(argv[i], "-h") || !strcmp(argv[i], "--help");

			fputs(usage, asked ? stdout : stderr);
			return asked ? 0 : 2;
		}
	}
	r = fa_bench_launch(&bench, prepares_only);
	if (bench.json && fa_bench_print_json(&bench) < 0)
		r = -EIO;
	fa_bench_deinit(&bench);
	return r < 0;
}
