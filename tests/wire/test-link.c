/* A C program that links the static library needs no run-time library of C++. */
#include <faclient.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
	const char *version = fa_version();

	if (!version || strcmp(version, FAD_VERSION)) {
		fprintf(stderr, "fa_version() is not " FAD_VERSION "\n");
		return 1;
	}
	return 0;
}
