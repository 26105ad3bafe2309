#include "client/struct_size.h"

#include "client/last_error.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#define SIZE_MIN 8 /* the size, and one more field */

static uint32_t size_of(const void *given)
{
	uint32_t size;

	memcpy(&size, given, sizeof(size));
	return size;
}

int fa_struct_in(const char *what, const void *given, void *padded, size_t own_bytes,
                 const void **ret_struct)
{
	const uint8_t *bytes = given;
	uint32_t size;

	if (!given)
		return fa_error_set(-EINVAL, "%s is NULL", what);
	size = size_of(given);
	if (size == own_bytes) {
		*ret_struct = given;
		return 0;
	}
	if (size < SIZE_MIN)
		return fa_error_set(-EINVAL, "%s.size is %u; expected sizeof(struct %s), %zu", what,
		                    size, what, own_bytes);
	for (size_t i = own_bytes; i < size; ++i)
		if (bytes[i])
			return fa_error_set(-E2BIG,
			                    "%s has %u bytes and something in the part after byte "
			                    "%zu, which libfaclient " FAD_VERSION " does not know",
			                    what, size, own_bytes);
	memset(padded, 0, own_bytes);
	memcpy(padded, given, size < own_bytes ? size : own_bytes);
	*ret_struct = padded;
	return 0;
}

int fa_struct_out_check(const char *what, const void *given)
{
	if (!given)
		return fa_error_set(-EINVAL, "the struct %s to fill is NULL", what);
	if (size_of(given) < SIZE_MIN)
		return fa_error_set(-EINVAL, "%s.size is %u; set it to sizeof(struct %s) before",
		                    what, size_of(given), what);
	return 0;
}

void fa_struct_out(void *ret_given, void *filled, size_t own_bytes)
{
	uint32_t size = size_of(ret_given);

	memcpy(filled, &size, sizeof(size));
	memcpy(ret_given, filled, size < own_bytes ? size : own_bytes);
	if (size > own_bytes)
		memset((uint8_t *)ret_given + own_bytes, 0, size - own_bytes);
}
