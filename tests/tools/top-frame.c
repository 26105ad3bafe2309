/*
 * Reads two statuses from stdin, a list of two, and prints the frame of factl top between them.
 *   top-frame client|tenant SORT FILTER ROWS
 */
#include "tools/top/frame.h"

#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	struct fa_frame_options options = {};
	json_t *both = json_loadf(stdin, 0, NULL);
	const json_t *before = json_array_get(both, 0);
	int r;

	if (argc != 5)
		return 2;
	options.by_tenant = strcmp(argv[1], "tenant") == 0;
	while (strcmp(fa_frame_sort_names[options.sort], argv[2]) != 0)
		++options.sort;
	options.filter = argv[3];
	options.rows_max = strtoul(argv[4], NULL, 10);
	r = fa_frame_print(json_is_null(before) ? NULL : before, json_array_get(both, 1), &options,
	                   stdout);
	json_decref(both);
	return r < 0;
}
