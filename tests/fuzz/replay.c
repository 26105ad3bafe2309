/*
 * Replaces libFuzzer in builds without it. Runs the target over every file of the given
 * directories, ignores options, and fails if there is no file.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_BYTES_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

/* Runs the target over the directory's files. Returns their number, or -1. */
static int replay(const char *directory)
{
	struct dirent *entry;
	uint8_t *input;
	int n = 0;
	DIR *dir;

	dir = opendir(directory);
	input = malloc(INPUT_BYTES_MAX);
	if (!dir || !input) {
		perror(directory);
		return -1;
	}
	while ((entry = readdir(dir))) {
		char path[4096];
		size_t length;
		FILE *file;

		if (entry->d_name[0] == '.')
			continue;
		(void)snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
		file = fopen(path, "rbe");
		if (!file) {
			perror(path);
			return -1;
		}
		length = fread(input, 1, INPUT_BYTES_MAX, file);
		(void)fclose(file);
		LLVMFuzzerTestOneInput(input, length);
		++n;
	}
	(void)closedir(dir);
	free(input);
	return n;
}

int main(int argc, char **argv)
{
	int n_inputs = 0;

	for (int i = 1; i < argc; ++i) {
		int n;

		if (argv[i][0] == '-')
			continue;
		n = replay(argv[i]);
		if (n < 0)
			return 1;
		n_inputs += n;
	}
	printf("%d inputs\n", n_inputs);
	return n_inputs ? 0 : 1;
}
