/*
 * Messages that were recorded with the first release of a protocol version still decode to the same
 * samples. Their encoding is not compared, as it depends on the release of FlatBuffers.
 */
#include "tests/wire/inspect.h"
#include "tests/wire/samples.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *golden_dir;

static size_t read_golden(const char *name, unsigned char *bytes, size_t size)
{
	char path[4096];
	size_t length;
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/%s.bin", golden_dir, name);
	file = fopen(path, "rbe");
	if (!file)
		fail_msg("%s cannot be opened", path);
	length = fread(bytes, 1, size, file);
	assert_int_equal(ferror(file), 0);
	assert_int_equal(fgetc(file), EOF);
	(void)fclose(file);
	return length;
}

static void test_golden_v1(void **state)
{
	static _Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];

	for (size_t i = 0; i < fa_samples_v1_n(); ++i) {
		const struct fa_sample *sample = fa_sample_v1(i);
		struct fa_wire_message message;
		const char *difference;
		size_t length;
		int r;

		length = read_golden(sample->name, bytes, sizeof(bytes));
		r = fa_wire_decode(bytes, length, &message);
		if (r)
			fail_msg("%s: decoding failed with %d", sample->name, r);
		difference = fa_inspect_difference(&sample->message, &message);
		if (difference)
			fail_msg("%s: %s differs", sample->name, difference);
		(void)fa_inspect_read(&message, bytes, length);
	}
}

/* Each recorded file belongs to a sample. */
static void test_no_file_is_left_out(void **state)
{
	struct dirent *entry;
	size_t n_files = 0;
	DIR *dir;

	dir = opendir(golden_dir);
	assert_non_null(dir);
	while ((entry = readdir(dir)))
		n_files += entry->d_name[0] != '.';
	(void)closedir(dir);
	assert_int_equal(n_files, fa_samples_v1_n());
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden_v1),
		cmocka_unit_test(test_no_file_is_left_out),
	};

	if (argc != 2) {
		fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
		return 2;
	}
	golden_dir = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
