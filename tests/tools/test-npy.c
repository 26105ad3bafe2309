/*
 * Tests of the demo's .npy reader: it reads what numpy writes and refuses everything else.
 */
#include "demo/npy.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/fad-test-npy.XXXXXX";

static void write_file(const char *magic, const char *header, size_t data_bytes)
{
	uint8_t prefix[10], data[256] = { 0 };
	size_t header_bytes = strlen(header);
	FILE *file;

	memcpy(prefix, magic, 8);
	prefix[8] = header_bytes & 0xff;
	prefix[9] = (uint8_t)(header_bytes >> 8);
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)i;
	file = fopen(path, "we");
	assert_non_null(file);
	assert_int_equal(fwrite(prefix, 1, sizeof(prefix), file), sizeof(prefix));
	assert_int_equal(fwrite(header, 1, header_bytes, file), header_bytes);
	assert_int_equal(fwrite(data, 1, data_bytes, file), data_bytes);
	assert_int_equal(fclose(file), 0);
}

#define MAGIC "\x93NUMPY\x01\x00"

static int read_back(const char *magic, const char *header, size_t data_bytes,
                     struct demo_npy *ret_npy)
{
	char text[256] = "";
	int r;

	write_file(magic, header, data_bytes);
	r = demo_npy_read(path, text, sizeof(text), ret_npy);
	if (r < 0)
		assert_non_null(strstr(text, path));
	return r;
}

static void test_reads(void **state)
{
	struct demo_npy npy;

	assert_int_equal(
		read_back(MAGIC,
	                  "{'descr': '<f2', 'fortran_order': False, 'shape': (3, 2, 4), }  \n", 48,
	                  &npy),
		0);
	assert_string_equal(npy.type, "f2");
	assert_int_equal(npy.rank, 3);
	assert_int_equal(npy.shape[0], 3);
	assert_int_equal(npy.shape[1], 2);
	assert_int_equal(npy.shape[2], 4);
	assert_int_equal(npy.bytes, 48);
	assert_int_equal(((uint8_t *)npy.data)[47], 47);
	demo_npy_free(&npy);

	assert_int_equal(read_back(MAGIC,
	                           "{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }\n",
	                           20, &npy),
	                 0);
	assert_string_equal(npy.type, "f4");
	assert_int_equal(npy.rank, 1);
	assert_int_equal(npy.bytes, 20);
	demo_npy_free(&npy);
}

static void test_refuses(void **state)
{
	static const struct {
		const char *magic, *header;
		size_t data_bytes;
	} files[] = {
		/* another magic, another version */
		{ "\x93NUMPZ\x01\x00",
		  "{'descr': '<f2', 'fortran_order': False, 'shape': (4,), }\n", 8 },
		{ "\x93NUMPY\x02\x00",
		  "{'descr': '<f2', 'fortran_order': False, 'shape': (4,), }\n", 8 },
		/* big endian, another type, Fortran order */
		{ MAGIC, "{'descr': '>f2', 'fortran_order': False, 'shape': (4,), }\n", 8 },
		{ MAGIC, "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }\n", 8 },
		{ MAGIC, "{'descr': '<f2', 'fortran_order': True, 'shape': (4,), }\n", 8 },
		/* a byte too few, a byte too many */
		{ MAGIC, "{'descr': '<f2', 'fortran_order': False, 'shape': (4,), }\n", 7 },
		{ MAGIC, "{'descr': '<f2', 'fortran_order': False, 'shape': (4,), }\n", 9 },
		/* malformed shapes */
		{ MAGIC, "{'descr': '<f2', 'fortran_order': False, 'shape': (-4,), }\n", 8 },
		{ MAGIC, "{'descr': '<f2', 'fortran_order': False, 'shape': (4, x), }\n", 8 },
		{ MAGIC, "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 1, 1, 1, 4), }\n",
		  8 },
		{ MAGIC,
		  "{'descr': '<f2', 'fortran_order': False, 'shape': (2147483647, 2147483647, "
		  "2147483647, 2147483647), }\n",
		  8 },
		{ MAGIC,
		  "{'descr': '<f2', 'fortran_order': False, 'shape': (99999999999999999999,), }\n",
		  8 },
		{ MAGIC, "{'descr': '<f2', 'fortran_order': False, 'shape': (4", 8 },
		{ MAGIC, "", 0 },
	};

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		struct demo_npy npy;

		assert_int_equal(
			read_back(files[i].magic, files[i].header, files[i].data_bytes, &npy),
			-EINVAL);
	}
}

static void test_no_file(void **state)
{
	struct demo_npy npy;
	char text[256] = "";

	assert_int_equal(demo_npy_read("/nonexistent.npy", text, sizeof(text), &npy), -ENOENT);
	assert_non_null(strstr(text, "/nonexistent.npy"));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reads),
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_no_file),
	};
	int fd = mkstemp(path), r;

	if (fd < 0)
		return 1;
	close(fd);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	return r;
}
