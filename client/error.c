/*
 * The sentence of each thread's last error, and the rule of structs that grow.
 * The sentences lie behind a pthread key rather than in thread-local storage, so
 * that the library can be loaded with dlopen() at any time.
 */
#include "client/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool have_key;

static void make_key(void)
{
	have_key = !pthread_key_create(&key, free);
}

/* NULL if there is no memory for one; then fa_error() says nothing. */
static struct fa_error *thread_error(void)
{
	struct fa_error *error;

	pthread_once(&once, make_key);
	if (!have_key)
		return NULL;
	error = pthread_getspecific(key);
	if (error)
		return error;
	error = fa_new(struct fa_error);
	if (error && pthread_setspecific(key, error)) {
		free(error);
		return NULL;
	}
	return error;
}

const char *fa_error(void)
{
	struct fa_error *error = thread_error();

	return error ? error->text : "";
}

int fa_error_set(int code, const char *format, ...)
{
	struct fa_error *error = thread_error();
	va_list args;

	if (error) {
		va_start(args, format);
		(void)vsnprintf(error->text, sizeof(error->text), format, args);
		va_end(args);
	}
	return code;
}

int fa_error_copy(int code, const struct fa_error *from)
{
	struct fa_error *error = thread_error();

	if (error)
		*error = *from;
	return code;
}

/* ---- structs that grow: their first field is uint32_t size */

#define SIZE_MIN 8 /* the size, and one field more */

static uint32_t size_of(const void *given)
{
	uint32_t size;

	memcpy(&size, given, sizeof(size));
	return size;
}

int fa_struct_in(const char *what, const void *given, void *known, size_t known_bytes,
                 const void **ret_known)
{
	const uint8_t *bytes = given;
	uint32_t size;

	if (!given)
		return fa_error_set(-EINVAL, "%s is NULL", what);
	size = size_of(given);
	if (size == known_bytes) {
		*ret_known = given;
		return 0;
	}
	if (size < SIZE_MIN)
		return fa_error_set(-EINVAL, "%s.size is %u; expected sizeof(struct %s), %zu", what,
		                    size, what, known_bytes);
	for (size_t i = known_bytes; i < size; ++i)
		if (bytes[i])
			return fa_error_set(-E2BIG,
			                    "%s has %u bytes and something in the part after byte "
			                    "%zu, which libfaclient " FAD_VERSION " does not know",
			                    what, size, known_bytes);
	memset(known, 0, known_bytes);
	memcpy(known, given, size < known_bytes ? size : known_bytes);
	*ret_known = known;
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

void fa_struct_out(void *ret_given, void *known, size_t known_bytes)
{
	uint32_t size = size_of(ret_given);

	memcpy(known, &size, sizeof(size));
	memcpy(ret_given, known, size < known_bytes ? size : known_bytes);
	if (size > known_bytes)
		memset((uint8_t *)ret_given + known_bytes, 0, size - known_bytes);
}
