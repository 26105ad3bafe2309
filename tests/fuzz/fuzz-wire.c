/*
 * Feeds any bytes to fa_wire_decode(). A decoded message must lie within the bytes, and be the same
 * after encoding and decoding it again.
 */
#include "tests/wire/inspect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

static void demand(int condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
	static _Alignas(8) unsigned char buffer[FA_WIRE_BYTES_MAX];
	struct fa_wire_message message, again;
	const char *difference;
	const void *bytes;
	void *exact;
	int r;

	/* an aligned heap block of the exact size: ASan watches its end */
	exact = malloc(length ? length : 1);
	demand(exact != NULL, "out of memory");
	memcpy(exact, data, length);

	r = fa_wire_decode(exact, length, &message);
	demand(r == 0 || r == -EBADMSG || r == -ENOSYS || r == -EMSGSIZE, "unknown error");
	if (r == -ENOSYS)
		demand(message.type >= _FA_WIRE_TYPE_N, "a known type is called unknown");
	if (r == -EMSGSIZE)
		demand(message.type < _FA_WIRE_TYPE_N, "an unknown type was read");
	if (r == 0) {
		(void)fa_inspect_read(&message, exact, length);
		r = fa_wire_encode(&message, buffer, sizeof(buffer), &bytes, &length);
		demand(r == 0, "what was decoded cannot be encoded");
		r = fa_wire_decode(bytes, length, &again);
		demand(r == 0, "what was encoded cannot be decoded");
		difference = fa_inspect_difference(&message, &again);
		if (difference) {
			fprintf(stderr, "%s differs the second time\n", difference);
			abort();
		}
	}
	free(exact);
	return 0;
}
