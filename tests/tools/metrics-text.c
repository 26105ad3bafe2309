/*
 * Reads a status from stdin and prints it as `factl metrics` would, with an argument as `factl
 * metrics --prometheus`; exits with 1 if the status is malformed.
 */
#include "tools/metrics.h"

#include <stdio.h>

int main(int argc, char **argv)
{
	static char json[1 << 20];
	size_t n = fread(json, 1, sizeof(json) - 1, stdin);

	json[n] = 0;
	return fa_metrics_print(json, &(struct fa_metrics_format){ .prometheus = argc > 1 },
	                        stdout) < 0;
}
