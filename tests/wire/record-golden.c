/*
 * Records samples that are missing in tests/wire/golden/v1; never overwrites. Run it after adding a
 * sample, with the oldest FlatBuffers that fad supports:
 *    build/tests/wire/record-golden tests/wire/golden/v1
 */
#include "tests/wire/samples.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	static _Alignas(8) unsigned char buffer[FA_WIRE_BYTES_MAX];

	if (argc != 2) {
		fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
		return 2;
	}
	for (size_t i = 0; i < fa_samples_v1_n(); ++i) {
		const struct fa_sample *sample = fa_sample_v1(i);
		char path[4096];
		const void *bytes;
		size_t length;
		FILE *file;
		int r;

		r = fa_wire_encode(&sample->message, buffer, sizeof(buffer), &bytes, &length);
		if (r < 0) {
			fprintf(stderr, "%s: %s\n", sample->name, strerror(-r));
			return 1;
		}
		(void)snprintf(path, sizeof(path), "%s/%s.bin", argv[1], sample->name);
		file = fopen(path, "wbxe");
		if (!file && errno == EEXIST)
			continue;
		if (!file || fwrite(bytes, 1, length, file) != length || fclose(file)) {
			fprintf(stderr, "%s: %m\n", path);
			return 1;
		}
		printf("%s: %zu bytes\n", path, length);
	}
	return 0;
}
