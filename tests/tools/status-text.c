/*
 * Reads a status from stdin and prints it as `factl status` would; exits with 1 if the status is
 * malformed.
 */
#include "tools/status.h"

#include <stdio.h>

int main(void)
{
	static char json[1 << 20];
	size_t n = fread(json, 1, sizeof(json) - 1, stdin);

	json[n] = 0;
	return fa_status_print(json, stdout) < 0;
}
