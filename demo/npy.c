/* Takes numpy's header alone and exactly the elements it announces. */
#include "demo/npy.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(char *text, size_t text_bytes, int code, const char *path, const char *what)
{
	snprintf(text, text_bytes, "%s: %s", path, what);
	return code;
}

static bool skip(const char **cursor, const char *expected)
{
	size_t length = strlen(expected);

	if (strncmp(*cursor, expected, length) != 0)
		return false;
	*cursor += length;
	return true;
}

/* Takes a header like {'descr': '<f2', 'fortran_order': False, 'shape': (2050, 2, 64), } and
 * spaces. */
static bool parse_header(const char *header, struct demo_npy *npy)
{
	const char *cursor = header;

	if (!skip(&cursor, "{'descr': '<"))
		return false;
	if (strncmp(cursor, "f2", 2) != 0 && strncmp(cursor, "f4", 2) != 0)
		return false;
	memcpy(npy->type, cursor, 2);
	cursor += 2;
	if (!skip(&cursor, "', 'fortran_order': False, 'shape': ("))
		return false;
	while (*cursor != ')') {
		char *end;
		long long n;

		if (npy->rank == DEMO_NPY_RANK_MAX || *cursor < '0' || *cursor > '9')
			return false;
		errno = 0;
		n = strtoll(cursor, &end, 10);
		if (errno != 0 || n > INT32_MAX)
			return false;
		npy->shape[npy->rank++] = n;
		cursor = end;
		/* (5,) ends with a comma */
		if (!skip(&cursor, ", ") && !(npy->rank == 1 && skip(&cursor, ",")) &&
		    *cursor != ')')
			return false;
	}
	if (!skip(&cursor, "), }"))
		return false;
	return cursor[strspn(cursor, " ")] == '\n' && cursor[strspn(cursor, " ") + 1] == '\0';
}

int demo_npy_read(const char *path, char *text, size_t text_bytes, struct demo_npy *ret_npy)
{
	struct demo_npy npy = { 0 };
	uint8_t prefix[10];
	char header[1024];
	size_t header_bytes, bytes;
	FILE *file;
	int r;

	file = fopen(path, "re");
	if (!file) {
		r = -errno;
		return fail(text, text_bytes, r, path, strerror(errno));
	}

	r = -EINVAL;
	if (fread(prefix, 1, sizeof(prefix), file) != sizeof(prefix) ||
	    memcmp(prefix, "\x93NUMPY\x01\x00", 8) != 0) {
		fail(text, text_bytes, r, path, "not a .npy file of version 1.0");
		goto out;
	}
	header_bytes = prefix[8] | (size_t)prefix[9] << 8;
	if (header_bytes >= sizeof(header) ||
	    fread(header, 1, header_bytes, file) != header_bytes) {
		fail(text, text_bytes, r, path, "its header is cut off or too long");
		goto out;
	}
	header[header_bytes] = '\0';
	if (!parse_header(header, &npy)) {
		fail(text, text_bytes, r, path,
		     "its header is not that of a little-endian f2 or f4 array in C order");
		goto out;
	}

	bytes = npy.type[1] == '2' ? 2 : 4;
	for (unsigned int i = 0; i < npy.rank; i++) {
		if (__builtin_mul_overflow(bytes, (size_t)npy.shape[i], &bytes) ||
		    bytes > (size_t)1 << 31) {
			fail(text, text_bytes, r, path, "it is larger than 2 GiB");
			goto out;
		}
	}
	npy.bytes = bytes;
	npy.data = malloc(bytes + 1);
	if (!npy.data) {
		r = fail(text, text_bytes, -ENOMEM, path, "no memory");
		goto out;
	}
	/* Detects too long files. */
	if (fread(npy.data, 1, bytes + 1, file) != bytes) {
		fail(text, text_bytes, r, path, "its length does not fit its shape");
		goto out;
	}
	*ret_npy = npy;
	npy.data = NULL;
	r = 0;
out:
	free(npy.data);
	fclose(file);
	return r;
}

void demo_npy_free(struct demo_npy *npy)
{
	free(npy->data);
	*npy = (struct demo_npy){ 0 };
}
